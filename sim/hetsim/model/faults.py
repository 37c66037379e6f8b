"""What goes wrong with devices in a run: failures and repairs, slowdowns, maintenance.  Descriptions only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""So many times, in seconds."""


@dataclass(frozen=True)
class FaultProcess:
    """Each of some devices fails (or, with a `factor`, slows down) again and again, independently of the others.

    `between` are the times from being sound to the next fault, `lasting` those from fault to repair.  With
    `together`, every other device of the same group (`groups`, by device) falls ill with the first with that
    probability, until the same repair.  Devices are indexes; that of a node's cores stands for the whole node.  Links
    between nodes are numbered on behind the devices (`hetsim.model.exchange.link_names`).
    """

    name: str
    devices: Sequence[int]
    between: Draw
    lasting: Draw
    factor: float | None = None
    together: float = 0.0
    groups: dict[int, tuple[int, ...]] | None = None
    mean: float = math.inf
    """Of `between`."""
    longest: float = math.inf
    """What `between` never exceeds."""


@dataclass(frozen=True)
class FaultEvent:
    """A fault that is known beforehand: at a time a device goes down, comes up, or runs slower by a factor.

    "slow" replaces the factor that the same source gave before (1 ends it), "up" ends one "down" of that source.
    """

    time: float
    device: int
    what: str
    factor: float = 1.0
    source: str = ""
    """The file that tells it."""


@dataclass(frozen=True)
class Maintenance:
    """Devices are down from `start` to `end`.  Policies are told at `announced`; with `drain` the devices take no
    new launches from then on."""

    devices: tuple[int, ...]
    start: float
    end: float
    announced: float
    drain: bool = True


Faults = FaultProcess | FaultEvent | Maintenance
