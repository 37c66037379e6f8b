"""Measured times of batches: a table by batch size instead of a linear formula.

Between two measured sizes a batch takes the time of the next larger size (`step`), or its time is interpolated
(`linear`, `power`).  A batch smaller than the smallest measured size takes the time of that size.  Beyond the largest
size the line through the last two sizes is extended; the scenario decides whether that is allowed.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

MAX_POINTS = 64  # maximum number of sizes to which a line is fitted: the cost grows with its third power


@dataclass(frozen=True)
class TimeSpread:
    """Distribution of the times of one batch size, given by quantiles or samples.

    Between two probabilities the time is interpolated linearly; below the first it is the first value, above the last
    the last value.  If `probabilities` is empty, the values are samples, each drawn with equal probability.
    """

    values: tuple[float, ...]
    probabilities: tuple[float, ...] = ()

    def at(self, u: float) -> float:
        """Return the value at a probability from 0 to 1."""
        if not self.probabilities:
            return self.values[min(len(self.values) - 1, int(u * len(self.values)))]
        return float(np.interp(u, self.probabilities, self.values))

    @property
    def mean(self) -> float:
        if not self.probabilities:
            return math.fsum(self.values) / len(self.values)
        p, v = (0.0, *self.probabilities, 1.0), (self.values[0], *self.values, self.values[-1])
        return math.fsum((p[k + 1] - p[k]) * (v[k + 1] + v[k]) / 2 for k in range(len(p) - 1))


@dataclass(frozen=True)
class NearestLine:
    """Line `per_item · n + fixed` fitted to a table; its largest error is at `at`."""

    per_item: float
    fixed: float
    worst: float
    at: int


@dataclass(frozen=True, eq=False)
class StageTable:
    """Measured seconds of a stage by batch size (ascending); replaces a `StageTime`."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    between: Literal["linear", "step", "power"] = "linear"
    spread: tuple[TimeSpread, ...] = ()  # random times by size, if measured times vary; policies expect `seconds`
    floor: float = 0.0  # with `power`: seconds of a batch that do not depend on its size
    _known: dict[int, float] = field(default_factory=dict, repr=False)

    def above(self, floor: float) -> "StageTable":
        """Return a copy with this `floor`: the part of batch seconds common to all sizes.

        The measured times stay the same; the floor is only used if `between` is "power".
        """
        return StageTable(self.sizes, self.seconds, self.between, spread=self.spread, floor=floor)

    def seconds_for(self, count: int) -> float:
        """Return the seconds of a launch of `count` tasks."""
        if (seconds := self._known.get(count)) is None:
            seconds = self._known[count] = self._between(count, self.seconds)
        return seconds

    @property
    def fixed(self) -> float:
        """Seconds of a batch of one task, used as the constant part of the stage time."""
        return self.seconds_for(1)

    @property
    def per_item(self) -> float:
        return 0.0

    def factor(self, count: int, u: float) -> float:
        """Return a random batch time divided by the expected time.

        `u`: the quantile to return, in [0, 1); between measured sizes, quantiles are interpolated like expected times.
        """
        expected = self.seconds_for(count)
        if not self.spread or expected <= 0:
            return 1.0
        return self._between(count, [one.at(u) for one in self.spread]) / expected

    def _between(self, count: int, seconds: Sequence[float]) -> float:
        sizes = self.sizes
        place = bisect_left(sizes, count)
        if self.between == "power" and len(sizes) > 1 and (place == len(sizes) or sizes[place] != count):
            scaled = self._by_power(count, min(max(place, 1), len(sizes) - 1), seconds)
            if scaled is not None:
                return scaled
        if place == 0:
            return seconds[0]
        if place < len(sizes) and (self.between == "step" or sizes[place] == count):
            return seconds[place]
        if len(sizes) == 1:
            return seconds[0] * count / sizes[0]
        high = min(place, len(sizes) - 1)
        low = high - 1
        slope = (seconds[high] - seconds[low]) / (sizes[high] - sizes[low])
        if place == len(sizes):
            return seconds[high] + max(0.0, slope) * (count - sizes[high])
        return seconds[low] + slope * (count - sizes[low])

    def _by_power(self, count: int, high: int, seconds: Sequence[float]) -> float | None:
        """Return seconds by a power law through entries `high` - 1, `high`; None: no fit."""
        first, last = seconds[high - 1] - self.floor, seconds[high] - self.floor
        if min(first, last) <= 0:
            return None
        sizes = self.sizes
        power = math.log(last / first) / math.log(sizes[high] / sizes[high - 1])
        if count > sizes[-1]:
            power = 1.0  # large batches are limited by arithmetic; two sizes do not determine the power well
        elif count < sizes[0]:
            power = max(0.0, power)
        near = high if count > sizes[high] else high - 1
        return self.floor + (seconds[near] - self.floor) * (count / sizes[near]) ** power

    def min_seconds(self, limit: int) -> float:
        """Return the shortest time of a batch of up to `limit` tasks."""
        return min(self.seconds_for(size) for size in self._measured(limit))

    def min_per_item(self, limit: int) -> float:
        """Return the minimum seconds per task in batches of up to `limit` tasks."""
        return min(self.seconds_for(size) / size for size in self._measured(limit))

    def _measured(self, limit: int) -> list[int]:
        # On a line, seconds per task are monotone in the size; a step is cheapest at its end.
        return sorted({min(limit, size) for size in (1, *self.sizes)} | ({limit} if limit < 1 << 30 else set()))

    def line(self) -> NearestLine:
        """Return the line that `hetsim calibrate` would fit to the times of this table."""
        n, seconds = np.array(self.sizes, dtype=float), np.array(self.seconds)
        chosen = np.unique(np.linspace(0, len(n) - 1, min(len(n), MAX_POINTS)).astype(int))
        per_item, fixed = nearest_line(n[chosen], seconds[chosen])
        off = np.abs((per_item * n + fixed) / seconds - 1)
        worst = int(np.argmax(off))
        return NearestLine(per_item, fixed, float(off[worst]), self.sizes[worst])

    def falls(self, noise: float) -> tuple[int, int] | None:
        """Return sizes (larger, smaller) if the larger is faster by over `noise`, or None."""
        slowest = 0
        for place, seconds in enumerate(self.seconds):
            if seconds < self.seconds[slowest] * (1 - noise):
                return self.sizes[place], self.sizes[slowest]
            slowest = place if seconds > self.seconds[slowest] else slowest
        return None


def nearest_line(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return (per_item, fixed) of the best line through one or two of the points.

    No coefficient is negative.  The error is the sum of |log(seconds / line)|.  It is relative, because medians vary in
    proportion to their size, and the largest batches alone would otherwise determine `fixed`.  It is not squared,
    because squares would bend the line towards special sizes (a batch of one may use another kernel, a size may fill
    the device badly).
    """
    lines = [(0.0, float(value)) for value in seconds]
    lines += [(float(value / size), 0.0) for size, value in zip(sizes, seconds, strict=True)]
    for first in range(len(sizes)):
        for second in range(first + 1, len(sizes)):
            slope = float((seconds[second] - seconds[first]) / (sizes[second] - sizes[first]))
            lines.append((slope, float(seconds[first] - slope * sizes[first])))
    possible = [line for line in lines if min(line) >= 0 and max(line) > 0]
    return min(possible, key=lambda line: float(np.abs(np.log((line[0] * sizes + line[1]) / seconds)).sum()))
