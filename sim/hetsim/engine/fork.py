"""Forks: copies of a run in mid-flight that continue to identical results.

All changing state of a run is data: numbers, columns, objects with fields, bound methods; future calls are `Later`
objects or timers with a bound method.  So a traversal of the connected objects copies everything.  Input
(`hetsim.model`: cluster, modes, columns of tasks) is shared.  Objects that cannot be copied (closures over variables of
the run, running generators) cause an error that names them.

Cost: proportional to running and waiting tasks, and a `memcpy` of the columns written so far.
"""

import gc
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache, partial
from itertools import count, repeat
from operator import is_
from pathlib import PurePath
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, TypeVar

import numpy as np
import simpy

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Lane, Launch, Timetable
from hetsim.engine.flight.links import Links
from hetsim.engine.flight.part import Part
from hetsim.engine.kernel.clock import Clock, Draws
from hetsim.engine.queues.sources import Sources, with_own_columns
from hetsim.engine.resources.occupancy import GpuState
from hetsim.engine.resources.slices import GpuSlices
from hetsim.errors import UsageError
from hetsim.model.record import RunInput
from hetsim.model.task import Task

ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), range, type(Ellipsis), type(NotImplemented)})
SHARED = (type, ModuleType, BuiltinFunctionType, Enum, np.generic, np.dtype, PurePath, date, timedelta)
# modules of the input's classes; their objects never change in a run, except those of `CHANGING`
INPUT = ("hetsim.model.", "hetsim.scenario.")
CHANGING = (Task, RunInput)
MISSING = object()


def named(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN: dict[type, frozenset[str]] = {
    Task: named("index arrival ready shape estimates _time _table state done _done ticket allowed"),
    Launch: named("entry number placement cores position decided"),
    GpuState: named("device kind bit free room up asleep sleeping closed normal frequency slowdown ready_at placements "
                     "least_room failed_at"),
    GpuSlices: named("kind layout taken fixed known"),
    Lane: named("upload ready compute download sliced regular direct shared fetching up down"),
    Part: named("device size seconds span alone ask at until delay begun settled moved"),
    Timetable: named("open_at blocked prepared restore uploaded ready compute_start compute_end end updated finish_at "
                      "busy energy busy_rate watts rate done items stepwise armed due joined computed estimate planned "
                      "begin total left"),
    Links: named("up_lines down_lines _network_latency"),
    Draws: named("draw block"),
    Sources: named("_delivered _block"),
}
"""Fields with numbers, input, or values that are never changed in place: copied without inspection.  All other fields
are inspected, so a field that is missing here only costs time."""

OWNED: dict[type, frozenset[str]] = {
    GpuState: frozenset({"saving"}),
    GpuSlices: frozenset({"idle", "busy"}),
    Lane: frozenset({"flights", "uploads", "downloads"}),
}  # fields with lists or dictionaries that no other object references; empty ones need no inspection

Fill = Callable[[list[Any], list[Any]], None]  # fills copies, all of one class, from their originals


@dataclass(slots=True, eq=False)
class Batch:
    """All copies of objects of one class; those in `empty` await their fields."""

    fill: Fill
    keyed: bool = False  # True if they are also dictionaries or sets, whose members are filled last
    originals: list[Any] = field(default_factory=list)
    empty: list[Any] = field(default_factory=list)
    copies: list[Any] = field(default_factory=list)


def slot_filler(
    kind: type, slots: tuple[str, ...], value: Callable[[Any], Any], all_of: Callable[[list[Any]], list[Any]]
) -> Fill:
    """Create a function that copies these fields of a class; it is faster than a loop.

    `value` copies one value, `all_of` a list of values.
    """

    def rest(old: Any, empty: Any) -> None:
        for name in slots:
            one = getattr(old, name, MISSING)
            if one is not MISSING:
                object.__setattr__(empty, name, one if one.__class__ in ATOMS else value(one))

    names: dict[str, Any] = {"all_of": all_of, "value": value, "rest": rest}
    exec(filling(kind, slots), names)
    return names["fill"]


@lru_cache(None)
def filling(kind: type, slots: tuple[str, ...]) -> CodeType:
    """Return the compiled code that copies these fields of a class (cached)."""
    plain, owned = PLAIN.get(kind, frozenset()), OWNED.get(kind, frozenset())
    looked = [name for name in slots if name not in plain]
    lines = ["def fill(originals, copies):", " try:"]
    for name in looked:
        if name in owned:
            lines.append(f"  _{name} = [value(one) if (one := old.{name}) else one.__class__() for old in originals]")
        else:
            lines.append(f"  _{name} = all_of([old.{name} for old in originals])")
    columns = "".join(f", _{name}" for name in looked)
    lines.append(f"  for old, empty{columns} in zip(originals, copies{columns}):")
    lines += [f"   empty.{name} = {f'_{name}' if name in looked else f'old.{name}'}" for name in slots]
    # A slot that was never set: those objects are filled one by one.
    lines += [" except AttributeError:", "  for old, empty in zip(originals, copies): rest(old, empty)"]
    return compile("\n".join(lines), f"<copy of {kind.__qualname__}>", "exec")


def _slots(kind: type) -> tuple[str, ...]:
    named = vars(kind).get("__mypyc_attrs__") or vars(kind).get("__slots__", ())
    named = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


MANY = 8  # minimum number of values that are copied together, by class

FEW = 3  # maximum number of classes among values that are copied together

Run = TypeVar("Run")  # the driver of a run, which references all parts of it


def fork(simulation: Run, state: RunState, within_round: bool = False) -> Run:
    """Copy a simulation and its state between two decisions.

    If the policy is deciding (`within_round`), the fork begins that round again: its policy is called at the same
    instant, after the decisions made so far.
    """
    run = state.input
    shared: dict[int, Any] = {id(state.sources.progress): None}
    if run.closed or run.calls is not None:  # clients write the times at which they send into the columns
        shared[id(run.tasks)] = with_own_columns(run).tasks
    copier = Copier(shared)
    copy: Run = copier.copy(simulation)
    copier.close()
    clock: Clock = shared[id(state.clock)]  # the copy, which the copier has put there
    clock.round_due = clock.round_due or within_round
    return copy


class Copier:
    """Copies connected objects: each object once, shared input never.

    An object is created empty when the traversal reaches it.  All objects of its class are filled later, together and
    field by field: there are thousands of similar objects, and a column of values is copied five times as fast as
    single values.
    """

    def __init__(self, known: dict[int, Any]) -> None:
        self.known = known  # copies by `id` of the original
        self._batches: dict[type, Batch] = {}
        # dictionaries and sets of objects, filled last: their hashes need the objects' fields
        self._keyed: list[tuple[Any, Any]] = []
        # keeps temporary objects (bound methods) alive, so that no other object gets their `id`
        self._originals: list[Any] = []
        self._makers: dict[type, Callable[[Any], Any]] = {
            list: self._list, dict: self._dict, tuple: self._tuple, set: self._set, frozenset: self._frozenset,
            defaultdict: self._defaults, OrderedDict: self._ordered, Counter: self._ordered, deque: self._deque,
            MethodType: self._method, partial: self._partial, array: self._whole, bytearray: self._whole,
            memoryview: self._rows, np.ndarray: self._column,
            np.random.Generator: self._by_itself, count: self._by_itself, Random: self._by_itself,
            FunctionType: self._function, MethodWrapperType: self._builtin, BuiltinFunctionType: self._builtin,
        }  # fmt: skip
        self._sequences = Batch(self._fill_sequences)
        self._mappings = Batch(self._fill_mappings)
        self.generators: list[np.random.Generator] = []

    def copy(self, root: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()  # all objects created here are kept
        try:
            return self._copy(root)
        finally:
            if collecting:
                gc.enable()

    def close(self) -> None:
        """Drop all references to copies, since a run collects no garbage."""
        self._makers.clear()
        self._batches.clear()

    def copies(self, kind: type) -> list[Any]:
        """Return all copies of objects of a class and its subclasses."""
        return [one for made, batch in self._batches.items() if issubclass(made, kind) for one in batch.copies]

    def _copy(self, root: Any) -> Any:
        new = self.value(root)
        self._drain()
        while self._keyed:  # filling may add further ones
            old, empty = self._keyed.pop()
            if isinstance(old, dict):
                keys, values = self._all(list(old)), self._all(list(old.values()))
                self._drain()
                dict.update(empty, zip(keys, values, strict=True))  # `Counter.update` would add counts
            else:
                members = self._all(list(old))
                self._drain()
                empty.update(members)
        return new

    def value(self, old: Any) -> Any:
        """Return a value's copy, whose fields are filled later; an immutable value itself."""
        kind = old.__class__
        if kind in ATOMS:
            return old
        new = self.known.get(id(old), self)
        if new is not self:
            return new
        if (make := self._makers.get(kind)) is None:
            make = self._makers[kind] = self._maker(kind)
        return make(old)

    def _drain(self) -> None:
        more = True
        while more:
            more = False
            for batch in (self._sequences, self._mappings, *self._batches.values()):
                if batch.empty:
                    originals, empty = batch.originals, batch.empty
                    batch.originals, batch.empty = [], []  # emptied first, since filling appends to both lists
                    batch.fill(originals, empty)
                    more = True

    def _all(self, values: list[Any]) -> list[Any]:
        if len(values) >= MANY:
            kinds = dict.fromkeys(map(type, values))
            if ATOMS.issuperset(kinds):
                return values
            if len(kinds) == 1:
                if (new := self._alike(values, next(iter(kinds)))) is not None:
                    return new
            elif len(kinds) <= FEW:
                for kind in kinds:
                    if kind not in ATOMS and kind is not tuple:
                        self._alike([old for old in values if old.__class__ is kind], kind)
        value, copy_of = self.value, self.known.get
        return [
            old if old.__class__ in ATOMS else new if (new := copy_of(id(old))) is not None else value(old)
            for old in values
        ]

    def _alike(self, values: list[Any], kind: type) -> list[Any] | None:
        """Return copies of values of one class; None if each must be copied separately."""
        copies, ids = self.known, list(map(id, values))
        if kind is tuple:
            # A tuple that was copied before must stay one object.
            return self._alike_tuples(values, ids) if copies.keys().isdisjoint(ids) else None
        if kind not in self._makers:
            self._makers[kind] = self._maker(kind)
        batch = self._sequences if kind is list else self._batches.get(kind)
        if batch is None or batch.keyed:
            return None
        met = map(copies.get, ids)
        # By `id`, so that an object that is there twice is copied once.
        fresh = {here: old for here, old, new in zip(ids, values, met, strict=True) if new is None}
        if fresh:
            make_empty: Any = kind.__new__
            empty: list[Any] = list(map(make_empty, repeat(kind, len(fresh))))
            copies.update(zip(fresh, empty, strict=True))  # before they are filled
            batch.originals += fresh.values()
            batch.empty += empty
            batch.copies += empty
        return list(map(copies.__getitem__, ids))

    def _alike_tuples(self, values: list[Any], ids: list[int]) -> list[Any] | None:
        if len(set(map(len, values))) > 1 or not values[0]:
            return None
        columns = list(map(list, zip(*values, strict=True)))
        copied = list(map(self._all, columns))
        # Nothing in them was copied: the tuples themselves are shared.
        if all(new is old or all(map(is_, new, old)) for new, old in zip(copied, columns, strict=True)):
            return values
        if len(set(ids)) < len(ids) or not self.known.keys().isdisjoint(ids):  # one occurs more than once
            return None
        tuples = list(zip(*copied, strict=True))
        self.known.update(zip(ids, tuples, strict=True))
        return tuples

    # Containers -----------------------------------------------------------------------------------------------

    def _later(self, batch: Batch, old: Any, empty: Any) -> Any:
        self.known[id(old)] = empty
        if old:
            batch.originals.append(old)
            batch.empty.append(empty)
        return empty

    def _list(self, old: list[Any]) -> list[Any]:
        return self._later(self._sequences, old, [])

    def _fill_sequences(self, originals: list[Any], empty: list[Any]) -> None:
        for old, new in zip(originals, empty, strict=True):
            new.extend(self._all(list(old)))

    def _deque(self, old: deque[Any]) -> Any:
        return self._later(self._sequences, old, deque(maxlen=old.maxlen))

    def _dict(self, old: dict[Any, Any], empty: dict[Any, Any] | None = None) -> Any:
        empty = {} if empty is None else empty
        if not old:
            return self._remember(old, empty)
        if ATOMS.issuperset(map(type, old)):  # such keys are hashed without any field: no need to wait
            return self._later(self._mappings, old, empty)
        self._keyed.append((old, empty))
        return self._remember(old, empty)

    def _fill_mappings(self, originals: list[Any], empty: list[Any]) -> None:
        for old, new in zip(originals, empty, strict=True):
            dict.update(new, zip(old, self._all(list(old.values())), strict=True))

    def _defaults(self, old: Any) -> Any:
        return self._dict(old, defaultdict(self.value(old.default_factory)))

    def _ordered(self, old: Any) -> Any:
        return self._dict(old, old.__class__())

    def _set(self, old: set[Any]) -> Any:
        if ATOMS.issuperset(map(type, old)):
            return self._remember(old, old.copy())
        empty: set[Any] = set()
        self._keyed.append((old, empty))
        return self._remember(old, empty)

    def _frozenset(self, old: frozenset[Any]) -> Any:
        if not all(map(is_, self._all(list(old)), old)):
            text = "a frozenset of objects that change in a run cannot be copied when the run is forked; use a dict"
            raise UsageError(text)
        return self._remember(old, old)

    def _tuple(self, old: tuple[Any, ...]) -> Any:
        value, copy_of = self.value, self.known.get
        # A tuple cannot be made empty and filled later: its members come first.
        members = [
            one if one.__class__ in ATOMS else new if (new := copy_of(id(one))) is not None else value(one)
            for one in old
        ]
        self._originals.append(old)  # a field of a compiled class gives a new tuple each time
        if all(map(is_, members, old)):
            return self._remember(old, old)
        return self._remember(old, tuple.__new__(old.__class__, members))

    # Functions ------------------------------------------------------------------------------------------------

    def _method(self, old: MethodType) -> Any:
        self._originals.append(old)  # temporary object: keep it, so that its `id` is not reused
        return self._remember(old, MethodType(old.__func__, self.value(old.__self__)))

    def _builtin(self, old: Any) -> Any:
        owner = getattr(old, "__self__", None)
        if owner is None or isinstance(owner, ModuleType | type):
            return old
        self._originals.append(old)
        return self._remember(old, getattr(self.value(owner), old.__name__))

    def _partial(self, old: partial[Any]) -> Any:
        keywords = {name: self.value(one) for name, one in old.keywords.items()}
        return self._remember(old, partial(self.value(old.func), *self._all(list(old.args)), **keywords))

    def _function(self, old: FunctionType) -> Any:
        for cell in old.__closure__ or ():
            if self.value(cell.cell_contents) is not cell.cell_contents:  # the copy would use the original
                where = f"{old.__module__}.{old.__qualname__}"
                raise UsageError(f"{where} is a closure over variables of a run, so the run cannot be forked; "
                                 "use a method of an object")  # fmt: skip
        return old

    # Everything else ------------------------------------------------------------------------------------------

    def _remember(self, old: Any, new: Any) -> Any:
        self.known[id(old)] = new  # before filling, so that reference cycles end here
        return new

    def _whole(self, old: Any) -> Any:
        return self._remember(old, old[:])

    def _rows(self, old: "memoryview[float]") -> Any:
        column: Any = array(old.format)
        column.frombytes(old.cast("B"))
        return self._remember(old, memoryview(column))

    def _column(self, old: np.ndarray) -> Any:
        if old.dtype.hasobject:
            return self._remember(old, deepcopy(old))
        return self._remember(old, old.copy() if old.flags.writeable else old)  # read-only: of the input

    def _by_itself(self, old: Any) -> Any:
        new = self._remember(old, deepcopy(old))  # with its state: the copy draws the same numbers
        if isinstance(new, np.random.Generator):
            self.generators.append(new)
        return new

    def _same(self, old: Any) -> Any:
        return old

    def _maker(self, kind: type) -> Callable[[Any], Any]:
        if (kind.__module__.startswith(INPUT) and not issubclass(kind, CHANGING)) or issubclass(kind, SHARED):
            return self._same
        if issubclass(kind, tuple):
            return self._tuple
        if issubclass(kind, simpy.Event | GeneratorType):
            raise UsageError("a run with a process of SimPy cannot be forked: a running generator cannot be copied")
        return self._fielded(kind)

    def _fielded(self, kind: type) -> Callable[[Any], Any]:
        slots = tuple(dict.fromkeys(name for base in kind.__mro__ for name in _slots(base)))  # with those of bases
        fields = kind.__dictoffset__ != 0
        contents = next((base for base in (list, dict, set) if issubclass(kind, base)), None)
        # A class implemented in C, whose contents cannot be copied.
        if not slots and not fields and contents is None and kind.__basicsize__ > object.__basicsize__:
            raise UsageError(f"an object of {kind.__module__}.{kind.__qualname__} cannot be copied, so the run cannot "
                             "be forked")  # fmt: skip
        new: Any = kind.__new__
        made = self.known
        plain = PLAIN.get(kind, frozenset())
        fill_slots = slot_filler(kind, slots, self.value, self._all) if slots else None

        def fill(originals: list[Any], copies: list[Any]) -> None:
            if fill_slots is not None:
                fill_slots(originals, copies)
            if fields:
                self._fill_fields(originals, copies, plain)
            if contents is list:
                for old, empty in zip(originals, copies, strict=True):
                    empty.extend(self._all(list(old)))

        self._batches[kind] = batch = Batch(fill, contents in (dict, set))

        def make(old: Any) -> Any:
            made[id(old)] = empty = new(kind)
            batch.originals.append(old)
            batch.empty.append(empty)
            batch.copies.append(empty)
            if batch.keyed:
                self._keyed.append((old, empty))
            return empty

        return make

    def _fill_fields(self, originals: list[Any], copies: list[Any], plain: frozenset[str]) -> None:
        for empty in copies:
            if not hasattr(empty, "__dict__"):  # of a compiled class, where the first field makes it
                empty.__dict__ = {}
        new = [empty.__dict__ for empty in copies]
        for old, inner in zip(originals, new, strict=True):
            inner.update(getattr(old, "__dict__", ()))  # all at once; what must be copied is replaced below
        if len(new) < MANY:
            for inner in new:
                for name, one in inner.items():
                    if name not in plain and one.__class__ not in ATOMS:
                        inner[name] = self.value(one)
            return
        for name in sorted(set().union(*new) - plain):  # sorted: a set has no order to rely on
            having = [inner for inner in new if name in inner]
            for inner, one in zip(having, self._all([inner[name] for inner in having]), strict=True):
                inner[name] = one
