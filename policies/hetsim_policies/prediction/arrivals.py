"""Which tasks will come, and when: those of late over again, in other gaps.

The gaps between the last arrivals and the tasks themselves are drawn anew, independently of each other (the bootstrap
of Efron, 1979): bursts of tasks that come at one instant stay as frequent, days and weeks and what a user sends after
what do not.
Fall-back: none; below `ENOUGH_ARRIVALS` it says so (`enough`), and draws nothing.
Cost: O(1) an arrival, O(tasks drawn) a sample.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from hetsim.model.task import Task

ENOUGH_ARRIVALS = 20
"""Arrivals below which nothing is drawn: the mean gap of fewer is known to no better than a quarter."""
MAX_DRAWN = 1000
"""Tasks of one sample."""


class ArrivalHistory:
    """The last `window` arrivals, as a model of those to come."""

    def __init__(self, window: int = 512):
        self._last: deque[Task] = deque(maxlen=window)

    @property
    def enough(self) -> bool:
        return len(self._last) >= ENOUGH_ARRIVALS

    def observe(self, task: Task) -> None:
        """A task has come; they are told in the order of arrival."""
        self._last.append(task)

    def sample(self, now: float, until: float, random: np.random.Generator) -> list[tuple[float, Task]]:
        """Times from `now` on and before `until`, each with a task that the one to come is like."""
        if not self.enough:
            return []
        times = np.array([task.arrival for task in self._last])
        gaps = np.diff(times)
        if not gaps.sum():  # all came at one instant
            return []
        found: list[tuple[float, Task]] = []
        at = now + float(random.choice(gaps))
        while at < until and len(found) < MAX_DRAWN:
            found.append((at, self._last[int(random.integers(len(self._last)))]))
            at += float(random.choice(gaps))
        return found
