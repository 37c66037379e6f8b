"""Patience of requests that come by their column of arrivals: one pending event for all of a service."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetsim.engine.kernel.clock import TIMER, Clock, Timer

BLOCK = 8192
"""Rows held as Python numbers at once."""


class RowPatience:
    """Requests in the order in which their patience ends.

    The event stands for the first that may still wait; by the time it fires that one has mostly started, and those
    after it that have started too are passed over.  So patience costs a look at each request, and an event for each
    that runs out of it.
    """

    def __init__(self, rows: np.ndarray, ends: np.ndarray, clock: Clock, may_wait: Callable[[int], bool],
                 expire: Callable[[int], None]):  # fmt: skip
        """`may_wait`: does a row wait, or is it still to come?"""
        order = np.lexsort((rows, ends))
        order = order[ends[order] < math.inf]
        self.rows, self.ends = rows[order], ends[order]
        self.clock = clock
        self.may_wait = may_wait
        self.expire = expire
        self.timer = Timer(self._due)
        self._first = 0
        self._block: list[int] = []
        self._times: list[float] = []
        self._base = 0
        self._arm()

    def _arm(self) -> None:
        """Have the event stand for the first request that may wait."""
        row = self._next()
        if row >= 0:
            self.clock.again(max(self._times[self._first - self._base], self.clock._now), TIMER, self.timer)

    def _next(self) -> int:
        """The first row that may wait; -1: none."""
        may_wait = self.may_wait
        while self._first < len(self.rows):
            offset = self._first - self._base
            if offset == len(self._block):
                self._base, offset = self._first, 0
                self._block = self.rows[self._base : self._base + BLOCK].tolist()
                self._times = self.ends[self._base : self._base + BLOCK].tolist()
            if may_wait(self._block[offset]):
                return self._block[offset]
            self._first += 1
        return -1

    def _due(self, _: Timer) -> None:
        while (row := self._next()) >= 0 and self._times[self._first - self._base] <= self.clock._now:
            self._first += 1
            self.expire(row)
        if row >= 0:
            self._arm()

    def end(self, row_comes: Callable[[int], bool]) -> None:
        """Leave out those that will not come."""
        kept = np.array([k for k, row in enumerate(self.rows[self._first :].tolist()) if row_comes(row)], dtype=int)
        self.rows, self.ends = self.rows[self._first + kept], self.ends[self._first + kept]
        self._first = self._base = 0
        self._block, self._times = [], []
        self.clock.cancel(self.timer)
        self._arm()
