"""Tasks and requests that do not wait for ever: one event for all of a kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from hetsim.engine.kernel.clock import TIMER, Clock, Timer


class Deadlines:
    """Rows by the time at which something is due; it keeps no task alive."""

    __slots__ = ("clock", "due", "waits", "timer", "heap")

    def __init__(self, clock: Clock, due: Callable[[int], None], waits: Callable[[int], bool] | None = None):
        """`due` is called with a row when its time has come.

        waits: tells whether a row is still watched; the event stands for one that is.
        """
        self.clock = clock
        self.due = due
        self.waits = waits
        self.timer = Timer(self._fired)
        self.heap: list[tuple[float, int]] = []

    def watch(self, row: int, time: float) -> None:
        """Watch a row; a time of inf never comes."""
        if time == math.inf:
            return
        heappush(self.heap, (time, row))
        if self.heap[0][1] == row:
            self._arm()

    def _arm(self) -> None:
        self.clock.again(max(self.heap[0][0], self.clock._now), TIMER, self.timer)

    def _fired(self, _: Timer) -> None:
        heap, now, waits = self.heap, self.clock._now, self.waits
        while heap and (heap[0][0] <= now or (waits is not None and not waits(heap[0][1]))):
            row = heappop(heap)[1]
            if waits is None or waits(row):
                self.due(row)
        if heap:
            self._arm()


class RowPatience:
    """Requests of a column of arrivals, in the order in which patience ends.

    The event stands for the first that may still wait; by the time it fires that one has mostly started, and those
    after it that have started too are passed over.  So patience costs a look at each request, and an event for each
    that runs out of it.
    """

    def __init__(self, rows: np.ndarray, ends: np.ndarray, clock: Clock, may_wait: Callable[[int], bool],
                 expire: Callable[[int], None]):  # fmt: skip
        """`may_wait`: True if a row waits or is still to come."""
        order = np.lexsort((rows, ends))
        order = order[ends[order] < math.inf]
        self.rows, self.ends = rows[order], ends[order]
        self.clock = clock
        self.may_wait = may_wait
        self.expire = expire
        self.timer = Timer(self._due)
        self._first = 0
        self._arm()

    def _arm(self) -> None:
        """Have the event stand for the first request that may wait."""
        row = self._next()
        if row >= 0:
            self.clock.again(max(float(self.ends[self._first]), self.clock._now), TIMER, self.timer)

    def _next(self) -> int:
        """The first row that may wait; -1: none."""
        may_wait, item = self.may_wait, self.rows.item
        for position in range(self._first, len(self.rows)):
            row = item(position)
            if may_wait(row):
                self._first = position
                return row
        self._first = len(self.rows)
        return -1

    def _due(self, _: Timer) -> None:
        while (row := self._next()) >= 0 and self.ends[self._first] <= self.clock._now:
            self._first += 1
            self.expire(row)
        if row >= 0:
            self._arm()

    def end(self, row_comes: Callable[[int], bool]) -> None:
        """Leave out those that will not come."""
        kept = np.array([k for k, row in enumerate(self.rows[self._first :].tolist()) if row_comes(row)], dtype=int)
        self.rows, self.ends = self.rows[self._first + kept], self.ends[self._first + kept]
        self._first = 0
        self.clock.cancel(self.timer)
        self._arm()
