"""The number of arrived requests of a service, by column and clock or singly."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from hetsim.engine.kernel.clock import Clock


class ArrivalColumn:
    """Requests come at the times of a sorted column: nothing happens when one does."""

    def __init__(self, times: np.ndarray, clock: Clock):
        self.times = times
        self.clock = clock
        self.total = len(times)
        self.known_at, self.known = -1.0, 0
        """How many have come, as it was reckoned last, and when that was."""

    @property
    def arrived(self) -> int:
        now = self.clock._now
        if now != self.known_at:
            self.known_at, self.known = now, int(self.times.searchsorted(now, side="right"))
        return self.known

    @property
    def over(self) -> bool:
        return self.arrived == self.total

    def time(self, index: int) -> float:
        """When the request at a position of the column comes."""
        return self.times.item(index)

    def since(self, time: float) -> int:
        """The number that have come after a time."""
        return self.arrived - int(np.searchsorted(self.times, time, side="right"))

    def end_now(self) -> int:
        """Let no more come; the number that were still to come."""
        arrived = self.arrived
        requests_left, self.total = self.total - arrived, arrived
        self.times = self.times[:arrived]
        self.known_at = -1.0
        return requests_left


class OneByOne:
    """Each request is told of as it comes, or that it never will."""

    def __init__(self, total: int):
        self.to_come = total
        self.joined = array("d")
        """When each came."""

    @property
    def arrived(self) -> int:
        return len(self.joined)

    @property
    def over(self) -> bool:
        return self.to_come == 0

    def since(self, time: float) -> int:
        """The number that have come after a time."""
        return len(self.joined) - bisect_right(self.joined, time)

    def end_now(self) -> int:
        """End the arrivals; the number that would have come by the clock alone: none."""
        self.to_come = 0
        return 0
