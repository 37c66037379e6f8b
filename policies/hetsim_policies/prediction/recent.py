"""The mean load of the last minutes, or of a longer time if arrivals were few.

Several exponentially weighted means are updated, each over twice the time of the previous mean.  The mean over the
shortest time with at least `ENOUGH` arrivals is used, or else that over the longest time.  So the mean follows a busy
series immediately, and does not jump at each arrival of a series with one arrival per hour.  Cost: O(1).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

ENOUGH = 8  # minimum number of arrivals of a mean
MEMORIES = 7  # number of means: the longest is over 64 times the time of the shortest


class Mean(NamedTuple):
    """Mean recent load: as observed (`value`), and as forecast earlier (`expected`)."""

    value: float
    expected: float
    error: float  # relative standard error of the value, for Poisson arrivals of equal size


class Recent:
    def __init__(self, memory: float):
        self._sums = [[FadingSum(memory * 2**number) for _ in range(4)] for number in range(MEMORIES)]

    def observe(self, time: float, value: float, expected: float, arrivals: float) -> None:
        for sums in self._sums:
            for one, amount in zip(sums, (1.0, value, expected, arrivals), strict=True):
                one.add(time, amount)

    def skip(self, count: int, time: float) -> None:
        """Add `count` measuring intervals up to `time` (s), with load and forecast 0."""
        for sums in self._sums:
            for one, amount in zip(sums, (1.0, 0.0, 0.0, 0.0), strict=True):
                one.add_often(count, time, amount)

    @property
    def ceiling(self) -> float:
        """Upper bound of the mean load per second until the next arrival."""
        return max(sums[1].total / sums[0].total if sums[0].total else 0.0 for sums in self._sums)

    @property
    def mean(self) -> Mean:
        """Mean load of the shortest averaging time with `ENOUGH` arrivals, or the longest."""
        sums = next((sums for sums in self._sums if sums[3].total >= ENOUGH), self._sums[-1])
        weight, value, expected, arrivals = (one.total for one in sums)
        # Weights that fade over m seconds have the variance of a plain mean over 2 m.
        return Mean(value / weight, expected / weight, 1.0 / math.sqrt(2.0 * max(1.0, arrivals)))


# A sum of amounts with weights exp(-age / memory); divided by `memory` it estimates a rate over the last `memory`
# seconds.  Reference: Cox, Isham, Point Processes (1980), ch. 5.6 (shot noise).  Cost: O(1).


@dataclass(eq=False, slots=True)
class FadingSum:
    """A sum of amounts that decay exponentially with time."""

    memory: float
    time: float = 0.0
    total: float = 0.0  # the sum at `time`

    def add(self, time: float, amount: float) -> None:
        self.total = self.at(time) + amount
        self.time = time

    def add_often(self, count: int, time: float, amount: float) -> None:
        """Add `amount` `count` times, at equal intervals from the last addition to `time`."""
        kept = math.exp(-(time - self.time) / self.memory)
        each = math.exp(-(time - self.time) / count / self.memory)
        self.total = kept * self.total + amount * (1.0 - kept) / (1.0 - each)
        self.time = time

    def at(self, time: float) -> float:
        """Return the decayed sum at a time, which must not precede the last addition."""
        return math.exp(-(time - self.time) / self.memory) * self.total
