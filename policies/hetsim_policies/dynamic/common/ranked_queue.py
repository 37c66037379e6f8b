"""Waiting tasks in the order of a score of their columns (features).

The order is valid until `rescore`; new tasks are inserted.  All scores are computed with NumPy (nanoseconds per task),
but only the first tasks of the order are sorted and stored.  Cost: O(1) per new or removed task, plus a binary search
if the task belongs to these first tasks.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from hetsim.model.task import Task

Key = tuple[float, float, float, int, Task]  # (-tier, -score, arrival, row, task)


class RankedQueue:
    """Tasks by tier, then score (both descending), then arrival.

    columns_of: function that returns constant numbers of a task, its tier first.  A score is a function of all columns.
    """

    def __init__(self, width: int, columns_of: Callable[[Task], Sequence[float]]):
        self.tasks: list[Task] = []  # in no order
        self._columns_of = columns_of
        self._position: dict[int, int] = {}  # by row
        self._columns = np.zeros((64, width + 2))  # by position: columns of the task, its arrival and its row
        self._last: list[tuple[float, ...]] = []  # columns of the other tasks, not yet written there
        self._score: Callable[[Any], Any]  # from the first `rescore` on, before which nothing is ranked
        self._first: list[Key] = []  # the first tasks in order; and their keys by row
        self._keys: dict[int, Key] = {}
        # By row: tasks that arrived since the last ranking, and their columns
        self._new: dict[int, tuple[Task, tuple[float, ...]]] = {}

    def add(self, task: Task) -> None:
        self._position[task.index] = len(self.tasks)
        self.tasks.append(task)
        columns = *self._columns_of(task), task.arrival, task.index
        self._last.append(columns)
        self._new[task.index] = task, columns

    def remove(self, task: Task) -> bool:
        if (position := self._position.pop(task.index, None)) is None:
            return False
        self._new.pop(task.index, None)
        if (key := self._keys.pop(task.index, None)) is not None:
            del self._first[bisect_left(self._first, key)]
        last = self.tasks.pop()
        columns: Any = self._last.pop() if self._last else self._columns[len(self.tasks)]
        if last is not task:  # the last one takes its position
            self.tasks[position] = last
            self._position[last.index] = position
            written = len(self.tasks) - len(self._last)
            if position < written:
                self._columns[position] = columns
            else:
                self._last[position - written] = columns
        return True

    def rescore(self, score: Callable[[Any], Any]) -> None:
        """Rank tasks by `score`, a function of their columns; discard the old ranking."""
        self._score = score
        self._first.clear()
        self._keys.clear()

    def ranked(self, count: int) -> Iterator[Task]:
        """Yield all tasks in the present order; fast if only about `count` are used."""
        if len(self.tasks) == 1:
            yield self.tasks[0]
            return
        self._rank(count, count)
        first, total = self._first.copy(), len(self.tasks)
        yield from map(itemgetter(-1), first)
        if len(first) < total:
            self._rank(len(self.tasks), len(self.tasks))
            rows = {key[3] for key in first}
            yield from [key[-1] for key in self._first if key[3] not in rows]

    def first(self, count: int) -> Task:
        """Return the first task, and sort about `count` tasks for later calls."""
        self._rank(1, count)
        return self._first[0][-1]

    def _rank(self, needed: int, count: int) -> None:
        """Ensure that the first `needed` tasks are sorted: if not, sort 2 × `count` tasks."""
        new, first = self._new, self._first
        if new and first:
            complete = len(first) + len(new) == len(self.tasks)
            for row, (task, columns) in new.items():
                key = -columns[0], -float(self._score(columns)), task.arrival, row, task
                if complete or key < first[-1]:
                    insort(first, key)
                    self._keys[row] = key
        new.clear()
        if len(first) < min(needed, len(self.tasks)):
            first[:] = self._sorted(2 * count)
            self._keys = {key[3]: key for key in first}

    def _sorted(self, count: int) -> list[Key]:
        if self._last:
            while len(self.tasks) > len(self._columns):
                self._columns = np.vstack((self._columns, self._columns))
            self._columns[len(self.tasks) - len(self._last) : len(self.tasks)] = self._last
            self._last.clear()
        columns = self._columns[: len(self.tasks)].T
        tier, score, arrival, row = -columns[0], -self._score(columns), columns[-2], columns[-1].astype(int)
        chosen = np.arange(len(score))
        if len(chosen) > count and not tier.any():
            chosen = np.flatnonzero(score <= np.partition(score, count - 1)[count - 1])
        chosen = chosen[np.lexsort((row[chosen], arrival[chosen], score[chosen], tier[chosen]))[:count]]
        tasks = [self.tasks[position] for position in chosen.tolist()]
        return list(zip(*(one[chosen].tolist() for one in (tier, score, arrival, row)), tasks, strict=True))
