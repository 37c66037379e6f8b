"""Schedules in the making, and task graphs: what the list algorithms of this folder share."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.static.instance import Instance
from sim.errors import ScenarioError
from sim.model.plan import Plan, Step
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


def plan_of(instance: Instance, schedule: Schedule, bound: float | None = None) -> Plan:
    """The schedule as a plan, in the order of starts; tasks without length go before what starts with them.

    Its makespan is counted from the first arrival, as that of a run and a lower bound on it; in mid-run both are
    counted from `now`.
    """
    placed = np.empty(instance.size, dtype=np.int64)
    placed[schedule.order] = np.arange(instance.size)
    steps = []
    for task in np.lexsort((placed, schedule.finish, schedule.start)).tolist():
        kind = int(schedule.kind[task])
        lane = instance.lanes[kind][int(schedule.lane[task])]
        steps.append(Step(task, int(instance.mode[task, kind]), (lane,)))
    problem = instance.problem
    first = float(problem.tasks.arrival.min(initial=np.inf)) if instance.size else 0.0
    makespan = max(0.0, schedule.makespan - problem.origin) if problem.in_mid_run else schedule.makespan - first
    if bound is not None and problem.in_mid_run and instance.size:
        bound += first - problem.origin
    # A bound that is met exactly may lie above by the last bits, as it adds the same times in another order.
    return Plan(steps, makespan, None if bound is None else min(bound, makespan))


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
