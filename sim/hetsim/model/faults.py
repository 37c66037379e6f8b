"""Descriptions of faults: failures and repairs, slowdowns, maintenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.device_type import NO_KEY, REQUIRED

if TYPE_CHECKING:
    from hetsim.model.units import Fraction, Name, Positive, Seconds

Draw = Callable[[np.random.Generator, int], np.ndarray]  # draws a number of times, in seconds


@dataclass(frozen=True, slots=True)
class FaultProcess:
    """Repeated independent faults of some devices; with `factor`, slowdowns.

    `between` draws the times from a repair to the next fault, `lasting` the times from a fault to its repair.  With
    probability `together`, each other device of the same group (`groups`, by device) fails at the same time, until the
    same repair. Devices are indexes; a CPU stands for its whole node.  Links between nodes are numbered after the
    devices (`hetsim.model.exchange.link_names`).
    """

    name: Name = field(metadata={"optional": True})
    """Name of this source of faults, which selects its random streams."""
    devices: Sequence[int] = field(metadata=NO_KEY)
    between: Draw = field(metadata=NO_KEY)
    lasting: Draw = field(metadata=NO_KEY)
    factor: Positive | None = field(default=None, metadata={"alias": "slow"})
    """Slowdown factor instead of a failure: launches on the device take this many times as long."""
    together: Fraction = 0.0
    """Probability that each other node of the same rack fails at the same time."""
    groups: dict[int, tuple[int, ...]] | None = field(default=None, metadata=NO_KEY)
    mean: float = field(default=math.inf, metadata=NO_KEY)  # mean of `between`
    longest: float = field(default=math.inf, metadata=NO_KEY)  # upper bound of `between`


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A known fault: at a time a device fails, is repaired, or changes its speed.

    "slow" replaces the slowdown factor that the same source set before (1: full speed); "up" ends one "down" event of
    the source.
    """

    time: float
    device: int
    what: str
    factor: float = 1.0
    source: str = ""  # the file that lists it


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A window in which devices are down.

    Policies are notified at `announced`; from then on, with `drain`, the devices accept no new launches.
    """

    devices: tuple[int, ...] = field(default=(), metadata=NO_KEY)
    start: Seconds = field(default=0.0, metadata={"alias": "from", **REQUIRED})
    """Time at which the devices go down."""
    length: Seconds = field(default=0.0, metadata={"alias": "for", **REQUIRED})
    """Time for which the devices are down."""
    announced: Seconds = field(default=0.0, metadata={"optional": True})
    """Time of the run at which policies are notified. Default in scenarios: the start of the maintenance."""
    drain: bool = True
    """True if the devices accept no new launches from the announcement on."""

    @classmethod
    def given(cls, start: float, announced: float | None = None, **others: Any) -> Maintenance:
        """Return a maintenance; if `announced` is missing, it equals `start`."""
        return cls(start=start, announced=start if announced is None else announced, **others)

    def check(self) -> None:
        """Raise KeyProblem for a window of length 0, or one announced after its start."""
        if not self.length:
            raise KeyProblem("for", "the duration of a maintenance must be above 0")
        if self.announced > self.start:
            raise KeyProblem("announced", "a maintenance must be announced before it begins")

    @property
    def end(self) -> float:
        return self.start + self.length


Faults = FaultProcess | FaultEvent | Maintenance
