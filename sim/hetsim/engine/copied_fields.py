"""What forks copy of an object: the tables of fields, and the code that copies those of a class."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

import numpy as np

from hetsim.engine.flight.launch import Lane, Launch, Timetable
from hetsim.engine.flight.links import Links
from hetsim.engine.flight.part import Part
from hetsim.engine.kernel.draws import Draws
from hetsim.engine.queues.sources import Sources
from hetsim.engine.resources.occupancy import GpuState
from hetsim.engine.resources.slices import GpuSlices
from hetsim.model.record import RunInput
from hetsim.model.task import Task

ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), range, type(Ellipsis), type(NotImplemented)})
SHARED = (type, ModuleType, BuiltinFunctionType, Enum, np.generic, np.dtype, PurePath, date, timedelta)
INPUT = ("hetsim.model.", "hetsim.scenario.")
"""Where the classes of the input are: their objects never change in a run, but for those of `CHANGING`."""
CHANGING = (Task, RunInput)
MISSING = object()


def named(text: str) -> frozenset[str]:
    """The names that a text lists."""
    return frozenset(text.split())


PLAIN: dict[type, frozenset[str]] = {
    Task: named("index arrival ready shape estimates _time _table state done _done ticket allowed"),
    Launch: named("entry number placement cores position decided"),
    GpuState: named("device kind bit free room up asleep sleeping closed normal frequency slowdown ready_at placements "
                     "least_room"),
    GpuSlices: named("kind layout taken fixed known"),
    Lane: named("upload ready compute download share sliced simple regular direct shared fetching up down"),
    Part: named("device size seconds span alone ask at until delay begun settled moved"),
    Timetable: named("open_at blocked prepared restore uploaded ready compute_start compute_end end updated finish_at "
                      "busy energy busy_rate watts rate done items stepwise armed due joined computed estimate planned "
                      "begin total left"),
    Links: named("up_lines down_lines _latency _network_latency"),
    Draws: named("draw block"),
    Sources: named("_delivered _block"),
}
"""Fields with numbers, input and what is only ever replaced: copied as they are, without a look.  All other fields are
looked at, so that one that is missing here costs time and nothing else."""

OWNED: dict[type, frozenset[str]] = {
    GpuState: frozenset({"saving"}),
    GpuSlices: frozenset({"idle", "busy"}),
    Lane: frozenset({"flights", "uploads", "downloads", "computing"}),
}
"""Fields with lists or dictionaries that no other object holds: empty ones, most by far, need no look either."""

Fill = Callable[[list[Any], list[Any]], None]
"""Fills copies, all of one class, from their originals."""


class Batch:
    """The copies of one class: those that are still empty, with their originals, and all."""

    __slots__ = ("fill", "keyed", "originals", "empty", "copies")

    def __init__(self, fill: Fill, keyed: bool = False):
        self.fill = fill
        self.keyed = keyed
        """Are they dictionaries or sets too, whose members come last?"""
        self.originals: list[Any] = []
        self.empty: list[Any] = []
        self.copies: list[Any] = []


def slot_filler(
    kind: type, slots: tuple[str, ...], value: Callable[[Any], Any], all_of: Callable[[list[Any]], list[Any]]
) -> Fill:
    """A function that copies these fields, written out: a third of the time of a loop over their names.

    `value` and `all_of` are the copies of a value and of several.
    """

    def rest(old: Any, empty: Any) -> None:
        """One by one: some are not set."""
        for name in slots:
            one = getattr(old, name, MISSING)
            if one is not MISSING:
                object.__setattr__(empty, name, one if one.__class__ in ATOMS else value(one))

    names: dict[str, Any] = {"all_of": all_of, "value": value, "rest": rest}
    exec(filling(kind, slots), names)
    filler: Fill = names["fill"]
    return filler


@lru_cache(None)
def filling(kind: type, slots: tuple[str, ...]) -> CodeType:
    """The code of a function that copies these fields; compiled once, as that takes longer than a small fork."""
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
    lines += [" except AttributeError:", "  for old, empty in zip(originals, copies): rest(old, empty)"]
    return compile("\n".join(lines), f"<copy of {kind.__qualname__}>", "exec")
