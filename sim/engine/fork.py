"""Forks: a copy of a run in mid-flight that goes on by itself, to the same bytes, and leaves the original alone.

Everything that changes in a run is data: numbers, columns, objects with fields, bound methods; calls to come are
`Later` or timers with a bound method.  So one walk over what hangs together copies it all, whatever it is; what is
input (`sim.model`: cluster, modes, tasks' columns) is shared.  What cannot be copied, functions that hold variables of
their own and running generators, is refused by name.

Cost: proportional to what runs and waits, and a `memcpy` of the columns written so far.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache, partial
from itertools import count
from pathlib import PurePath
from random import Random
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, TypeVar

import numpy as np
import simpy

from sim.engine.core.state import RunState
from sim.engine.flight.launch import Lane, Launch, Part
from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.kernel.draws import Draws
from sim.engine.queues.sources import Sources, with_own_columns
from sim.engine.resources.occupancy import GpuState
from sim.errors import UsageError
from sim.model.record import RunInput
from sim.model.tasks import Task

ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), range, type(Ellipsis), type(NotImplemented)})
SHARED = (type, ModuleType, BuiltinFunctionType, Enum, np.generic, np.dtype, PurePath, date, timedelta)
INPUT = ("sim.model.", "sim.scenario.")
"""Where the classes of the input are: their objects never change in a run, but for those of `CHANGING`."""
CHANGING = (Task, RunInput)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN: dict[type, frozenset[str]] = {
    Task: _names("index arrival ready shape estimates _time _table state done _done ticket allowed"),
    Launch: _names("entry number placement cores position decided"),
    GpuState: _names("device kind bit free room up asleep normal frequency slowdown ready_at placements"),
    Lane: _names("upload ready compute download share sliced simple fetching"),
    Part: _names("number device size seconds line ask at until begun moved"),
    Links: _names("up_lines down_lines _latency _network_latency"),
    Draws: _names("draw block"),
    Sources: _names("_times _shapes _rows _estimates"),
}
"""Fields with numbers, input and what is only ever replaced: copied as they are, without a look.  All other fields are
looked at, so that one that is missing here costs time and nothing else."""

OWNED: dict[type, frozenset[str]] = {
    GpuState: frozenset({"saving", "slices"}),
    Lane: frozenset({"flights", "uploads", "downloads", "computing"}),
}
"""Fields with lists or dictionaries that no other object holds: empty ones, most by far, need no look either."""

Fill = Callable[[Any, Any], None]
Run = TypeVar("Run")
"""What drives a run: it holds all parts of it."""


def fork(simulation: Run, state: RunState, within_round: bool = False) -> Run:
    """A copy of a simulation, and with it of its state, made between two decisions.

    One that is made while the policy decides (`within_round`) begins that round anew: its policy is asked at the same
    instant, after what has been decided so far.
    """
    run = state.input
    known: dict[int, Any] = {id(state.sources.progress): None}
    if run.closed:  # its clients write the times at which they send into the columns
        known[id(run.tasks)] = with_own_columns(run).tasks
    copy: Run = Copier(known).copy(simulation)
    clock: Clock = known[id(state.clock)]
    clock.round_due = clock.round_due or within_round
    return copy


class Copier:
    """Copies what hangs together: every object once, shared ones never."""

    def __init__(self, known: dict[int, Any]) -> None:
        self.known = known
        """Copies by `id` of the original."""
        self._todo: list[tuple[Fill, Any, Any]] = []
        """Copies that are still empty."""
        self._keyed: list[tuple[Any, Any]] = []
        """Dictionaries and sets of objects, filled last: their hashes need the objects' fields."""
        self._originals: list[Any] = []
        """Keeps what exists for a moment only (bound methods), so that nothing else gets its `id`."""
        self._makers: dict[type, Callable[[Any], Any]] = {
            list: self._list, dict: self._dict, tuple: self._tuple, set: self._set, frozenset: self._frozenset,
            MethodType: self._method, partial: self._partial, deque: self._deque, array: self._whole,
            bytearray: self._whole, np.ndarray: self._column, np.random.Generator: self._by_itself,
            count: self._by_itself, Random: self._by_itself, FunctionType: self._function,
            MethodWrapperType: self._wrapper, BuiltinFunctionType: self._builtin,
        }  # fmt: skip

    def copy(self, root: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()  # everything made here stays
        try:
            return self._copy(root)
        finally:
            if collecting:
                gc.enable()

    def _copy(self, root: Any) -> Any:
        new = self.value(root)
        self._drain()
        while self._keyed:
            old, empty = self._keyed.pop()
            if isinstance(old, dict):
                keys, values = self._all(old), self._all(old.values())
                self._drain()
                empty.update(zip(keys, values, strict=True))
            else:
                members = self._all(old)
                self._drain()
                empty.update(members)
        return new

    def value(self, old: Any) -> Any:
        """The copy of a value: itself if it cannot change; empty at first if it is an object with fields."""
        kind = old.__class__
        if kind in ATOMS:
            return old
        new = self.known.get(id(old), self)
        if new is not self:
            return new
        make = self._makers.get(kind)
        if make is None:
            make = self._makers[kind] = self._maker(kind)
        return make(old)

    def _drain(self) -> None:
        todo = self._todo
        while todo:
            fill, old, empty = todo.pop()
            fill(old, empty)

    def _all(self, values: Any) -> list[Any]:
        value, known = self.value, self.known.get
        return [
            old if old.__class__ in ATOMS else new if (new := known(id(old))) is not None else value(old)
            for old in values
        ]

    def _later(self, fill: Fill, old: Any, empty: Any) -> Any:
        self.known[id(old)] = empty
        self._todo.append((fill, old, empty))
        return empty

    # Containers -----------------------------------------------------------------------------------------------

    def _list(self, old: list[Any]) -> list[Any]:
        return self._later(self._fill_list, old, []) if old else self._remember(old, [])

    def _fill_list(self, old: Any, empty: Any) -> None:
        empty.extend(self._all(old))

    def _deque(self, old: deque[Any]) -> Any:
        return self._later(self._fill_list, old, deque(maxlen=old.maxlen))

    def _dict(self, old: dict[Any, Any], empty: dict[Any, Any] | None = None) -> Any:
        empty = {} if empty is None else empty
        if not old:
            return self._remember(old, empty)
        if ATOMS.issuperset(map(type, old)):
            return self._later(self._fill_dict, old, empty)
        self._keyed.append((old, empty))
        return self._remember(old, empty)

    def _fill_dict(self, old: dict[Any, Any], empty: dict[Any, Any]) -> None:
        empty.update(zip(old, self._all(old.values()), strict=True))

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
        members = self._all(old)
        same = all(one is other for one, other in zip(members, old, strict=True))
        if not same:
            text = "a frozenset of objects that change in a run cannot be copied when the run is forked; use a dict"
            raise UsageError(text)
        return self._remember(old, old)

    def _tuple(self, old: tuple[Any, ...]) -> Any:
        if len(old) == 1:
            first = self.value(old[0])
            return self._remember(old, old if first is old[0] else tuple.__new__(old.__class__, (first,)))
        same, members, value = True, [], self.value
        for one in old:
            if one.__class__ not in ATOMS:
                new = value(one)
                same = same and new is one
                one = new
            members.append(one)
        return self._remember(old, old if same else tuple.__new__(old.__class__, members))

    # Functions ------------------------------------------------------------------------------------------------

    def _method(self, old: MethodType) -> Any:
        self._originals.append(old)
        return self._remember(old, MethodType(old.__func__, self.value(old.__self__)))

    def _wrapper(self, old: MethodWrapperType) -> Any:
        self._originals.append(old)
        return self._remember(old, getattr(self.value(old.__self__), old.__name__))

    def _builtin(self, old: Any) -> Any:
        """A function of a module is shared; a method of a list or the like belongs to its copy."""
        owner = getattr(old, "__self__", None)
        if owner is None or isinstance(owner, ModuleType | type):
            return old
        self._originals.append(old)
        return self._remember(old, getattr(self.value(owner), old.__name__))

    def _partial(self, old: partial[Any]) -> Any:
        keywords = {name: self.value(one) for name, one in old.keywords.items()}
        return self._remember(old, partial(self.value(old.func), *self._all(old.args), **keywords))

    def _function(self, old: FunctionType) -> Any:
        for cell in old.__closure__ or ():
            if self.value(cell.cell_contents) is not cell.cell_contents:
                where = f"{old.__module__}.{old.__qualname__}"
                raise UsageError(f"{where} is a function that holds variables of a run, so the run cannot be forked; "
                                 "use a method of an object")  # fmt: skip
        return old

    # Everything else ------------------------------------------------------------------------------------------

    def _remember(self, old: Any, new: Any) -> Any:
        self.known[id(old)] = new
        return new

    def _whole(self, old: Any) -> Any:
        return self._remember(old, old[:])

    def _column(self, old: np.ndarray) -> Any:
        if old.dtype.hasobject:
            return self._remember(old, deepcopy(old))
        return self._remember(old, old.copy() if old.flags.writeable else old)

    def _by_itself(self, old: Any) -> Any:
        return self._remember(old, deepcopy(old))

    def _same(self, old: Any) -> Any:
        return old

    def _maker(self, kind: type) -> Callable[[Any], Any]:
        """How objects of a class are copied."""
        if (kind.__module__.startswith(INPUT) and not issubclass(kind, CHANGING)) or issubclass(kind, SHARED):
            return self._same
        for base, make in ((defaultdict, self._defaults), (OrderedDict, self._ordered), (tuple, self._tuple)):
            if kind is base or (issubclass(kind, base) and base is tuple):
                return make
        if kind is Counter:
            return self._ordered
        if issubclass(kind, simpy.Event | GeneratorType):
            raise UsageError("a process of SimPy runs beside the simulation, and a running function cannot be copied: "
                             "this run cannot be forked")  # fmt: skip
        return self._fielded(kind)

    def _fielded(self, kind: type) -> Callable[[Any], Any]:
        """For objects that are their fields, and perhaps a list or a dictionary besides."""
        slots = _all_slots(kind)
        fields = kind.__dictoffset__ != 0
        contents = next((base for base in (list, dict, set) if issubclass(kind, base)), None)
        if not slots and not fields and contents is None and kind.__basicsize__ > object.__basicsize__:
            raise UsageError(f"an object of {kind.__module__}.{kind.__qualname__} cannot be copied, so the run cannot "
                             "be forked")  # fmt: skip
        make_empty: Any = kind.__new__
        new, todo, known, value = make_empty, self._todo, self.known, self.value
        plain = PLAIN.get(kind, frozenset())
        fill_slots = self._slot_filler(kind, slots) if slots else None

        def fill(old: Any, empty: Any) -> None:
            if fill_slots is not None:
                fill_slots(old, empty)
            if fields:
                inner = empty.__dict__
                for name, one in old.__dict__.items():
                    inner[name] = one if one.__class__ in ATOMS or name in plain else value(one)
            if contents is list:
                empty.extend(self._all(old))

        filler: Fill = fill_slots if fill_slots is not None and not fields and contents is not list else fill

        def make(old: Any) -> Any:
            known[id(old)] = empty = new(kind)
            todo.append((filler, old, empty))
            if contents is dict or contents is set:
                self._keyed.append((old, empty))
            return empty

        return make

    def _slot_filler(self, kind: type, slots: tuple[str, ...]) -> Fill:
        """A function that copies these fields, written out: a third of the time of a loop over their names."""
        value = self.value

        def rest(old: Any, empty: Any) -> None:
            """One by one: some are not set."""
            for name in slots:
                one = getattr(old, name, MISSING)
                if one is not MISSING:
                    object.__setattr__(empty, name, one if one.__class__ in ATOMS else value(one))

        names: dict[str, Any] = {"ATOMS": ATOMS, "value": value, "known": self.known, "rest": rest}
        exec(_filling(kind, slots), names)
        filler: Fill = names["fill"]
        return filler


MISSING = object()
ONE = "one if one.__class__ in ATOMS else new if (new := known.get(id(one))) is not None else value(one)"


@lru_cache(None)
def _filling(kind: type, slots: tuple[str, ...]) -> CodeType:
    """The code of a function that copies these fields; compiled once, as that takes longer than a small fork."""
    plain, owned = PLAIN.get(kind, frozenset()), OWNED.get(kind, frozenset())
    lines = ["def fill(old, empty):", " try:"]
    for name in slots:
        if name in plain:
            lines.append(f"  empty.{name} = old.{name}")
        else:
            lines.append(f"  one = old.{name}")
            copied = "value(one) if one else one.__class__()" if name in owned else ONE
            lines.append(f"  empty.{name} = {copied}")
    lines += [" except AttributeError:", "  rest(old, empty)"]
    return compile("\n".join(lines), f"<copy of {kind.__qualname__}>", "exec")


@lru_cache(None)
def _all_slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in _slots(base))


def _slots(kind: type) -> tuple[str, ...]:
    """Fields that a class declares as slots."""
    named = vars(kind).get("__slots__", ())
    named = (named,) if isinstance(named, str) else tuple(named)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))
