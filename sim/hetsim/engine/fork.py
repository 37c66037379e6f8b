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
from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import date, timedelta
from enum import Enum
from functools import partial
from itertools import count, repeat
from operator import is_
from pathlib import PurePath
from random import Random
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, TypeVar

import numpy as np
import simpy

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.links import LinkPath
from hetsim.engine.queues.sources import with_own_columns
from hetsim.errors import UsageError
from hetsim.model.record import RunInput
from hetsim.model.task import Task

ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), range, type(Ellipsis), type(NotImplemented)})
SHARED = (type, ModuleType, BuiltinFunctionType, Enum, np.generic, np.dtype, PurePath, date, timedelta, LinkPath)
# modules of the input's classes; their objects never change in a run, except those of `CHANGING`
INPUT = ("hetsim.model.", "hetsim.scenario.")
CHANGING = (Task, RunInput)
MANY = 8  # minimum number of values that are copied together, by class

FEW = 3  # maximum number of classes among values that are copied together

All = Callable[[list[Any]], list[Any]]  # returns the copies of values
Fill = Callable[[list[Any], list[Any], All], None]  # fills empty copies of one class from their originals

MISSING = NotImplemented  # a slot that was never set

Run = TypeVar("Run")  # the driver of a run, which references all parts of it


def fork(simulation: Run, state: RunState) -> Run:
    """Copy a simulation and its state between two decisions."""
    run = state.input
    shared = unchanging(state)
    if run.closed or run.calls is not None:  # clients write the times at which they send into the columns
        shared[id(run.tasks)] = with_own_columns(run).tasks
    copy: Run = Copier(shared).copy(simulation)
    return copy


def unchanging(state: RunState) -> dict[int, Any]:
    """Return the objects that forks of a run share, by `id`; None: absent in forks."""
    arriving, links = state.sources, state.links
    block = arriving._rows, arriving._arrivals, arriving._shapes, arriving._times, arriving._estimates
    values = links.up_lines, links.down_lines, arriving._delivered, *block
    return {id(state.sources.progress): None} | {id(one): one for one in values}


class Copier:
    """Copies connected objects: each object once, shared input never.

    An object is created empty when the traversal reaches it.  All objects of its class are filled later, together and
    field by field: there are thousands of similar objects, and a column of values is copied five times as fast as
    single values.  The classes with most objects fill their copies themselves (`fill_copies`); they share the values
    that are never changed in place.
    """

    def __init__(self, known: dict[int, Any]) -> None:
        self.known = known  # copies by `id` of the original
        # originals, and copies that await their contents, by class; lists and dictionaries are filled first
        self._batches: dict[type, tuple[list[Any], list[Any]]] = {list: ([], []), dict: ([], [])}
        # dictionaries and sets of objects, filled last: their hashes need the objects' fields
        self._keyed: list[tuple[Any, Any]] = []
        # keeps temporary objects (bound methods) alive, so that no other object gets their `id`
        self._originals: list[Any] = []

    def copy(self, root: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()  # all objects created here are kept
        try:
            return self._copy(root)
        finally:
            if collecting:
                gc.enable()

    def copies(self, kind: type) -> list[Any]:
        """Return all copies of objects of a class and its subclasses."""
        return [one for one in self.known.values() if isinstance(one, kind)]

    def _copy(self, root: Any) -> Any:
        new = self.value(root)
        self._fill_all()
        while keyed := self._keyed:  # filling may add further ones
            self._keyed = []
            keys = [self._all(list(old)) for old, _ in keyed]
            values = [self._all(list(old.values())) if isinstance(old, dict) else None for old, _ in keyed]
            self._fill_all()
            for (_, empty), members, belonging in zip(keyed, keys, values, strict=True):
                if belonging is None:
                    empty.update(members)
                else:
                    _put(empty, members, belonging)
        return new

    def value(self, old: Any) -> Any:
        """Return a value's copy (filled later), or the value itself if it never changes."""
        kind = type(old)
        if kind in ATOMS:
            return old
        new = self.known.get(id(old), self)
        if new is not self:
            return new
        if (make := MAKERS.get(kind)) is None:
            make = _maker(kind)
        return make(self, old)

    def _fill_all(self) -> None:
        more = True
        while more:
            more = False
            for kind, (originals, empty) in list(self._batches.items()):
                if empty:
                    self._batches[kind] = [], []  # before filling, which appends to both lists
                    try:
                        FILLS[kind](originals, empty, self._all)
                    except AttributeError:  # a field that was never set
                        Fields(kind).fill(originals, empty, self._all)
                    more = True

    def _all(self, values: list[Any]) -> list[Any]:
        if len(values) >= MANY:
            kind: Any = None
            kinds: dict[type, None] = {}
            for old in values:
                if type(old) is not kind:
                    kind = type(old)
                    kinds[kind] = None
            if ATOMS.issuperset(kinds):
                return values
            if len(kinds) == 1:
                if (together := self._alike(values, kind)) is not None:
                    return together
            elif len(kinds) <= FEW:
                for kind in kinds:
                    if kind not in ATOMS and kind is not tuple:
                        self._alike([old for old in values if type(old) is kind], kind)
        atoms, made, value = ATOMS, self.known, self.value
        return [
            old if old is None or type(old) in atoms else new if (new := made.get(id(old))) is not None else value(old)
            for old in values
        ]

    def _alike(self, values: list[Any], kind: type) -> list[Any] | None:
        """Return copies of values of one class; None if each must be copied separately."""
        made, ids = self.known, list(map(id, values))
        if values[0] is values[-1] and ids.count(ids[0]) == len(ids):  # such as the function called at ends
            return [self.value(values[0])] * len(ids)
        try:
            return list(map(made.__getitem__, ids))
        except KeyError:
            pass
        none_made = made.keys().isdisjoint(ids)
        if kind is tuple:
            # A tuple that was copied before must stay one object.
            return self._alike_tuples(values, ids) if none_made else None
        if (MAKERS.get(kind) or _maker(kind)) not in (Copier._object, Copier._list):
            return None
        new, fresh, before = ids, values, len(made)
        if not none_made:
            by_id = {here: old for here, old in zip(ids, values, strict=True) if here not in made}
            new, fresh = list(by_id), list(by_id.values())
        make_empty: Any = kind.__new__
        empty: list[Any] = list(map(make_empty, repeat(kind, len(fresh))))
        made.update(zip(new, empty, strict=True))  # before they are filled
        if len(made) < before + len(fresh):  # an object that is there twice has one copy, the last that was made
            by_id = dict(zip(ids, values, strict=True))
            fresh, empty = list(by_id.values()), list(map(made.__getitem__, by_id))
        batch = self._batches.setdefault(kind, ([], []))
        batch[0].extend(fresh)
        batch[1].extend(empty)
        return empty if fresh is values else list(map(made.__getitem__, ids))

    def _alike_tuples(self, values: list[Any], ids: list[int]) -> list[Any] | None:
        try:
            columns = list(map(list, zip(*values, strict=True)))
        except ValueError:  # of several lengths
            return None
        copied = list(map(self._all, columns))
        # Nothing in them was copied: the tuples themselves are shared.
        if all(new is old or all(map(is_, new, old)) for new, old in zip(copied, columns, strict=True)):
            return values
        if len(set(ids)) < len(ids) or not self.known.keys().isdisjoint(ids):  # one occurs more than once
            return None
        tuples = list(zip(*copied, strict=True))
        self.known.update(zip(ids, tuples, strict=True))
        return tuples

    def _remember(self, old: Any, new: Any) -> Any:
        self.known[id(old)] = new  # before filling, so that reference cycles end here
        return new

    def _later(self, old: Any, empty: Any, kind: type) -> Any:
        self.known[id(old)] = empty
        if (batch := self._batches.get(kind)) is None:
            batch = self._batches[kind] = [], []
        batch[0].append(old)
        batch[1].append(empty)
        return empty

    # Containers -----------------------------------------------------------------------------------------------

    def _list(self, old: list[Any]) -> Any:
        return self._later(old, [], list)

    def _deque(self, old: deque[Any]) -> Any:
        return self._later(old, deque(maxlen=old.maxlen), list)

    def _hashing(self, old: Any) -> Any:
        """Copy a dictionary or a set."""
        kind = type(old)
        empty = defaultdict(self.value(old.default_factory)) if kind is defaultdict else kind()
        if not ATOMS.issuperset(map(type, old)):
            self._keyed.append((old, empty))
        elif kind is set:
            empty.update(old)
        elif old:
            return self._later(old, empty, dict)  # such keys are hashed without any field: no need to wait
        return self._remember(old, empty)

    def _frozenset(self, old: frozenset[Any]) -> Any:
        if not all(map(is_, self._all(list(old)), old)):
            text = "a frozenset of objects that change in a run cannot be copied when the run is forked; use a dict"
            raise UsageError(text)
        return self._remember(old, old)

    def _tuple(self, old: tuple[Any, ...]) -> Any:
        value = self.value
        # A tuple cannot be made empty and filled later: its members come first.
        members = [one if type(one) in ATOMS else value(one) for one in old]
        self._originals.append(old)  # a field of a compiled class gives a new tuple each time
        new = old if all(map(is_, members, old)) else tuple.__new__(type(old), members)
        return self._remember(old, new)

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

    def _partial(self, old: Any) -> Any:
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

    def _whole(self, old: Any) -> Any:
        return self._remember(old, old[:])

    def _rows(self, old: Any) -> Any:
        column: Any = array(old.format)
        column.frombytes(old.cast("B"))
        return self._remember(old, memoryview(column))

    def _column(self, old: Any) -> Any:
        if old.dtype.hasobject:
            return self._remember(old, deepcopy(old))
        return self._remember(old, old.copy() if old.flags.writeable else old)  # read-only: of the input

    def _by_itself(self, old: Any) -> Any:
        return self._remember(old, deepcopy(old))  # with its state: the copy draws the same numbers

    def _same(self, old: Any) -> Any:
        return old

    def _object(self, old: Any) -> Any:
        kind: Any = type(old)
        return self._later(old, kind.__new__(kind), kind)

    def _hashed(self, old: Any) -> Any:
        """Copy an instance of a class derived from dict or set."""
        empty = self._object(old)
        self._keyed.append((old, empty))
        return empty


MAKERS: dict[type, Callable[[Copier, Any], Any]] = {
    list: Copier._list, deque: Copier._deque, tuple: Copier._tuple, frozenset: Copier._frozenset, set: Copier._hashing,
    dict: Copier._hashing, defaultdict: Copier._hashing, OrderedDict: Copier._hashing, Counter: Copier._hashing,
    MethodType: Copier._method, partial: Copier._partial, array: Copier._whole, bytearray: Copier._whole,
    memoryview: Copier._rows, np.ndarray: Copier._column,
    np.random.Generator: Copier._by_itself, count: Copier._by_itself, Random: Copier._by_itself,
    FunctionType: Copier._function, MethodWrapperType: Copier._builtin, BuiltinFunctionType: Copier._builtin,
}  # fmt: skip
"""How copies are made, by class; further classes are added when they first occur."""


def _maker(kind: Any) -> Callable[[Copier, Any], Any]:
    if (kind.__module__.startswith(INPUT) and not issubclass(kind, CHANGING)) or issubclass(kind, SHARED):
        make = Copier._same
    elif issubclass(kind, tuple):
        make = Copier._tuple
    elif issubclass(kind, simpy.Event | GeneratorType):
        raise UsageError("a run with a process of SimPy cannot be forked: a running generator cannot be copied")
    else:
        # Not the method of a base, which does not know all fields.
        FILLS[kind] = kind.fill_copies if "fill_copies" in vars(kind) else Fields(kind).fill
        make = Copier._hashed if issubclass(kind, dict | set) else Copier._object
    MAKERS[kind] = make
    return make


def _extend(originals: list[Any], copies: list[Any], all_of: All) -> None:
    for old, new in zip(originals, copies, strict=True):
        new.extend(all_of(list(old)))


def _update(originals: list[Any], copies: list[Any], all_of: All) -> None:
    for old, new in zip(originals, copies, strict=True):
        _put(new, old, all_of(list(old.values())))


def _put(empty: Any, keys: Iterable[Any], values: list[Any]) -> None:
    # `Counter.update` would add counts, and an `OrderedDict` also keeps a list of its keys
    kind: Any = OrderedDict if isinstance(empty, OrderedDict) else dict
    kind.update(empty, zip(keys, values, strict=True))


FILLS: dict[type, Fill] = {list: _extend, dict: _update}


class Fields:
    """Copies objects of a class: their slots, `__dict__` entries, and list elements."""

    def __init__(self, kind: Any) -> None:
        each = [vars(base).get("__mypyc_attrs__") or vars(base).get("__slots__", ()) for base in kind.__mro__]
        names = [name for some in each for name in ((some,) if isinstance(some, str) else some)]
        self.slots = [name for name in dict.fromkeys(names) if name not in ("__dict__", "__weakref__")]
        self.inner = kind.__dictoffset__ != 0
        self.frozen = kind.__setattr__ is not object.__setattr__
        self.listed = issubclass(kind, list)
        # A class implemented in C, whose contents cannot be copied.
        filled = self.slots or self.inner or issubclass(kind, list | dict | set)
        if not filled and kind.__basicsize__ > object.__basicsize__:
            raise UsageError(f"an object of {kind.__module__}.{kind.__qualname__} cannot be copied, so the run cannot "
                             "be forked")  # fmt: skip

    def fill(self, originals: list[Any], copies: list[Any], all_of: All) -> None:
        if len(originals) == 1:  # all fields together
            old = originals[0]
            columns = [[value] for value in all_of([getattr(old, name, MISSING) for name in self.slots])]
        else:
            columns = [all_of([getattr(old, name, MISSING) for old in originals]) for name in self.slots]
        put: Callable[[Any, str, Any], None] = object.__setattr__ if self.frozen else setattr
        for name, values in zip(self.slots, columns, strict=True):
            for new, value in zip(copies, values, strict=True):
                if value is not MISSING:
                    put(new, name, value)
        if self.inner:
            for old, new in zip(originals, copies, strict=True):
                if fields := getattr(old, "__dict__", None):
                    inner = dict(zip(fields, all_of(list(fields.values())), strict=True))
                    object.__setattr__(new, "__dict__", inner)  # the class may be frozen
        if self.listed:
            _extend(originals, copies, all_of)
