"""Schedules in the making, and task graphs: what the list algorithms of this folder share."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import ScenarioError
from sim.model.tasks import Tasks

Graph = Sequence[Sequence[int]]
"""Predecessors of each task."""


@dataclass
class Schedule:
    """Where and when tasks run: start, finish, type and lane of each, and the tasks in the order of placing."""

    start: np.ndarray
    finish: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    order: list[int]

    @classmethod
    def empty(cls, size: int) -> Schedule:
        """No task placed yet: start and finish NaN, type and lane -1."""
        nowhere = np.full(size, -1, dtype=np.int64)
        return cls(np.full(size, np.nan), np.full(size, np.nan), nowhere, nowhere.copy(), [])

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


def graph_of(tasks: Tasks) -> Graph:
    """Predecessors of each task, none of each where there is no graph."""
    return tasks.predecessors or [()] * len(tasks)


def successors(predecessors: Graph) -> list[list[int]]:
    """The tasks that wait for each task."""
    after: list[list[int]] = [[] for _ in predecessors]
    for task, before in enumerate(predecessors):
        for predecessor in dict.fromkeys(before):
            after[predecessor].append(task)
    return after


def topological(predecessors: Graph) -> list[int]:
    """All tasks, each after its predecessors; the first of the table that can be next is next."""
    missing = [len(set(before)) for before in predecessors]
    after = successors(predecessors)
    free = [task for task, count in enumerate(missing) if not count]
    order = []
    while free:
        task = heapq.heappop(free)
        order.append(task)
        for successor in after[task]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(free, successor)
    if len(order) < len(missing):
        stuck = [task for task, count in enumerate(missing) if count]
        raise ScenarioError(f"{len(stuck)} tasks wait for each other in a circle: rows {stuck[:5]}")
    return order
