"""Descriptions of faults: failures and repairs, slowdowns, maintenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.cluster import NO_KEY, REQUIRED

if TYPE_CHECKING:
    from hetsim.model.units import Fraction, Name, Positive, Seconds

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""So many times, in seconds."""


@dataclass(frozen=True, slots=True)
class FaultProcess:
    """Repeated independent faults of some devices; with `factor`, slowdowns.

    `between` are the times from being sound to the next fault, `lasting` those from fault to repair.  With
    `together`, every other device of the same group (`groups`, by device) falls ill with the first with that
    probability, until the same repair.  Devices are indexes; that of a node's cores stands for the whole node.  Links
    between nodes are numbered on behind the devices (`hetsim.model.exchange.link_names`).
    """

    name: Name = field(metadata={"optional": True})
    """Name of this source of faults, by which its random streams are keyed."""
    devices: Sequence[int] = field(metadata=NO_KEY)
    between: Draw = field(metadata=NO_KEY)
    lasting: Draw = field(metadata=NO_KEY)
    factor: Positive | None = field(default=None, metadata={"alias": "slow"})
    """Instead of failing, a device takes this many times as long."""
    together: Fraction = 0.0
    """Probability that each other node of the same rack fails along."""
    groups: dict[int, tuple[int, ...]] | None = field(default=None, metadata=NO_KEY)
    mean: float = field(default=math.inf, metadata=NO_KEY)
    """Mean of `between`."""
    longest: float = field(default=math.inf, metadata=NO_KEY)
    """Upper bound of `between`."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A known fault: at a time a device goes down, comes up, or runs slower.

    "slow" replaces the factor that the same source gave before (1 ends it), "up" ends one "down" of that source.
    """

    time: float
    device: int
    what: str
    factor: float = 1.0
    source: str = ""
    """The file that tells it."""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A window in which devices are down.

    Policies are told at `announced`; from then on, with `drain`, the devices take nothing new.
    """

    devices: tuple[int, ...] = field(default=(), metadata=NO_KEY)
    start: Seconds = field(default=0.0, metadata={"alias": "from", **REQUIRED})
    """When they go down."""
    length: Seconds = field(default=0.0, metadata={"alias": "for", **REQUIRED})
    """For how long they are down."""
    announced: Seconds = field(default=0.0, metadata={"optional": True})
    """When policies are told; when it begins unless given."""
    drain: bool = True
    """True if the nodes take no new launches from the announcement on."""

    @classmethod
    def given(cls, start: float, announced: float | None = None, **others: Any) -> Maintenance:
        """Fill in the announcement: at the begin, unless given."""
        return cls(start=start, announced=start if announced is None else announced, **others)

    def check(self) -> None:
        """Raise KeyProblem for an empty window or one announced too late."""
        if not self.length:
            raise KeyProblem("for", "the duration of a maintenance must be above 0")
        if self.announced > self.start:
            raise KeyProblem("announced", "a maintenance must be announced before it begins")

    @property
    def end(self) -> float:
        return self.start + self.length


Faults = FaultProcess | FaultEvent | Maintenance
