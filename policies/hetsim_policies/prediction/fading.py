"""A sum in which what came long ago counts less: each part by exp(-age / memory).

Divided by `memory` it estimates a rate: of so many devices asked for a second, say, averaged over about the last
`memory` seconds.  Reference: Cox, Isham, Point Processes (1980), ch. 5.6 (shot noise).
Cost: O(1).
"""

from __future__ import annotations

import math


class FadingSum:
    """Amounts noted at times that ascend."""

    __slots__ = ("memory", "time", "total")

    def __init__(self, memory: float):
        self.memory = memory
        self.time = 0.0
        self.total = 0.0
        """As it stood at `time`."""

    def add(self, time: float, amount: float) -> None:
        """An amount that came at a time."""
        self.total = self.at(time) + amount
        self.time = time

    def add_often(self, count: int, time: float, amount: float) -> None:
        """The same amount at equal distances, `count` times, the last at a time."""
        kept = math.exp(-(time - self.time) / self.memory)
        each = math.exp(-(time - self.time) / count / self.memory)
        self.total = kept * self.total + amount * (1.0 - kept) / (1.0 - each)
        self.time = time

    def at(self, time: float) -> float:
        """The faded sum of all amounts at a time not before the last."""
        return math.exp(-(time - self.time) / self.memory) * self.total
