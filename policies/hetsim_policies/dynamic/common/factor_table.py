"""Waiting tasks with the factors of their priorities as columns, so that a round need not look at each of them.

Cost: O(1) a task that comes or goes; a ranking is some operations on columns (nanoseconds a task) and sorts only the
tasks that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hetsim.model.task import Task

WIDTH = 7


class FactorTable:
    """The waiting tasks of `hetsim_policies.dynamic.slurm_multifactor`, in no order."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._position: dict[int, int] = {}
        """By row."""
        self._columns = np.zeros((WIDTH, 64))
        self._filled = 0
        """The number of tasks, from the first, whose columns are filled in."""

    def add(self, task: Task) -> None:
        self._position[task.index] = len(self.tasks)
        self.tasks.append(task)

    def remove(self, task: Task) -> bool:
        """Take a task out; returns False if it is not there."""
        position = self._position.pop(task.index, None)
        if position is None:
            return False
        last, count = self.tasks.pop(), len(self.tasks)
        if last is not task:  # the last one takes its position
            self.tasks[position] = last
            self._position[last.index] = position
            if count < self._filled:
                self._columns[:, position] = self._columns[:, count]
            else:
                self._filled = min(self._filled, position)
        self._filled = min(self._filled, count)
        return True

    def columns(self, columns_of: Callable[[Task], Sequence[float]]) -> np.ndarray:
        """What `columns_of` says of each task, which is not to change, and last its arrival and row."""
        count = len(self.tasks)
        while self._columns.shape[1] < count:
            self._columns = np.hstack((self._columns, self._columns))
        for position in range(self._filled, count):
            task = self.tasks[position]
            self._columns[:, position] = *columns_of(task), task.arrival, task.index
        self._filled = count
        return self._columns[:, :count]

    def ranked(self, score: np.ndarray, tier: np.ndarray, first: int) -> Iterator[Task]:
        """All tasks by falling tier, then by falling score, ties by arrival.

        first: the number of tasks that are likely to be asked for.
        """
        tasks, rest = self.tasks.copy(), np.arange(len(score))
        arrival, row = self._columns[-2:, : len(score)]
        while len(rest):
            chosen, rest = rest, rest[:0]
            if len(chosen) > 2 * first and not tier.any():
                value = score[chosen]
                late = value < np.partition(value, len(value) - first)[len(value) - first]
                chosen, rest = chosen[~late], chosen[late]
            order = np.lexsort((row[chosen], arrival[chosen], -score[chosen], -tier[chosen]))
            yield from [tasks[place] for place in chosen[order].tolist()]
            first *= 4
