"""Schedules in the making: what the list algorithms of this folder share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Schedule:
    """Start, finish, type and lane of each task, and the tasks in order of placing."""

    start: np.ndarray
    finish: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    order: list[int]

    @classmethod
    def empty(cls, size: int) -> Schedule:
        """No task placed yet: start and finish NaN, type and lane -1."""
        nowhere = np.full(size, -1, dtype=np.int64)
        return cls(np.full(size, np.nan), np.full(size, np.nan), nowhere, lane=nowhere.copy(), order=[])

    def put(self, task: int, start: float, time: float, kind: int, lane: int) -> float:
        """Place a task; its finish."""
        self.start[task], self.kind[task], self.lane[task] = start, kind, lane
        self.finish[task] = start + time
        self.order.append(task)
        return start + time

    @property
    def makespan(self) -> float:
        """The last finish; 0 without tasks."""
        return float(self.finish.max(initial=0.0))
