"""Heaps of deadlines of tasks, requests, clients or launches; one event per heap."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from hetsim.engine.kernel.clock import TIMER, Clock, Timer

BLOCK = 64  # number of rows with known deadlines that the heap receives at once


@dataclass(eq=False)
class Deadlines:
    """A heap of task rows (or launch numbers) by deadline; it stores no task objects."""

    clock: Clock
    due: Callable[[int], None]  # called with a row whose deadline is due
    waits: Callable[[int], bool] | None = None  # returns True if a row must still be watched; None: all rows

    def __post_init__(self) -> None:
        self.timer = Timer(self._fired)
        self.heap: list[tuple[float, int]] = []
        # rows with known deadlines, by time; those from `_at` on are not in the heap yet
        self.rows, self.times = np.zeros(0, int), np.zeros(0)
        self._at = 0

    def expect(self, rows: np.ndarray, times: np.ndarray) -> None:
        """Register deadlines known in advance, by row of the task; inf: no deadline."""
        order = np.lexsort((rows, times))
        order = order[times[order] < math.inf]
        self.rows, self.times = rows[order], times[order]
        if self._fill():
            self._arm()

    def _fill(self) -> bool:
        """Put the next deadlines into the heap; return False if there are none any more."""
        heap, at, waits = self.heap, self._at, self.waits
        while at < len(self.rows) and (not heap or self.times.item(at) <= heap[0][0]):
            self._at = at + BLOCK  # before the loop: rows of a block are taken in once
            for entry in zip(self.times[at : self._at].tolist(), self.rows[at : self._at].tolist(), strict=True):
                if waits is None or waits(entry[1]):  # most have started by then
                    heappush(heap, entry)
            at = self._at
        return bool(heap)

    def watch(self, row: int, time: float) -> None:
        """Register a task's deadline by its row; do nothing if the deadline is inf."""
        if time == math.inf:
            return
        heappush(self.heap, (time, row))
        if self.heap[0][1] == row:  # else the event stands for an earlier one
            self._arm()

    def _arm(self) -> None:
        self.clock.again(max(self.heap[0][0], self.clock._now), TIMER, self.timer)

    def _fired(self, _: Timer) -> None:
        heap, now, waits = self.heap, self.clock._now, self.waits
        while self._fill() and (heap[0][0] <= now or (waits is not None and not waits(heap[0][1]))):
            row = heappop(heap)[1]
            if waits is None or waits(row):
                self.due(row)
        if heap:
            self._arm()
