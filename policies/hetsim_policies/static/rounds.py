"""Rounds of one task each: the task that is complete first goes, then again.

The three planners differ in the task that a round places.
Cost of all: O(n^2 types), vectorized over the tasks: of equal lanes only the one that is free first is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.instance import Free, free_lanes, independent, refuse_graph
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.parallel import parallel
from hetsim_policies.static.common.parallel_lists import listed, wide_min_min
from hetsim_policies.static.common.schedule import Schedule

Choice = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From completion times on the first and the second free lane (types by tasks) a value for each task."""
Between = Literal["lanes", "types"]


class MinMin(DescendingPlanner):
    """Min-min, for independent sequential and parallel tasks.

    Of all tasks left, the one that can be complete first goes where it is complete first; then again.
    Decides where, and in which order: short tasks come first.
    Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
    algorithm D: at most m times the least makespan on m unlike lanes.  Often good in practice (Braun et al., A
    Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks, 2001).
    Weakness: the long tasks come last and stand out at the end, while other lanes are empty.  Transfers are not
    counted.
    """

    def __init__(self, descent: bool = False):
        super().__init__(descent)

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            refuse_graph(problem, "min_min")
            return listed(problem, "min_min", wide_min_min)
        instance = independent(problem, "min_min")
        return plan_of(instance, min_min(instance.time, instance.counts, problem.tasks.arrival, instance.free),
                       descent=self.descent)  # fmt: skip


class MaxMin(DescendingPlanner):
    """Max-min, for independent sequential tasks.

    Place next the task with the latest earliest completion time.
    Decides where, and in which order: long tasks come first, each where it is complete first.
    Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
    algorithm E: at most m times the least makespan on m unlike lanes.  On equal lanes it is longest processing time
    first, at most 4/3 - 1/(3m) (Graham, 1969).  Good where few tasks are long and many are short.
    Weakness: where most tasks are long, they take the fast devices from those that gain most there (Braun et al., 2001,
    find it much behind min-min then).  Transfers are not counted.
    """

    def __init__(self, descent: bool = False):
        super().__init__(descent)

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "max_min")
        return plan_of(instance, max_min(instance.time, instance.counts, problem.tasks.arrival, instance.free),
                       descent=self.descent)  # fmt: skip


class Sufferage(DescendingPlanner):
    """Sufferage, for independent sequential tasks.

    The task that would lose most by not getting its best lane gets it; then again.
    Decides where, and in which order.  The sufferage of a task is the difference between its completion on the best and
    on the second best lane, lanes of one type included; a task that only one lane can run suffers without limit.
    Reference: Maheswaran, Ali, Siegel, Hensgen, Freund, Dynamic Mapping of a Class of Independent Tasks onto
    Heterogeneous Computing Systems (1999); placing one task a round, as here, Casanova et al., Heuristics for
    Scheduling Parameter Sweep Applications in Grid Environments (2000).  No ratio is proven.
    Weakness: with two or more equal lanes that are free at the same time the sufferage of every task is 0, and ties
    decide (Casanova et al. propose the difference between clusters of lanes for that: `between: types`).  Transfers are
    not counted.

    between: what is second best: another lane, or a lane of another type of device (XSufferage).
    """

    def __init__(self, between: Between = "lanes", descent: bool = False):
        super().__init__(descent)
        self.between = between

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "sufferage")
        given = (instance.time, instance.counts, problem.tasks.arrival, self.between, instance.free)
        return plan_of(instance, sufferage(*given), descent=self.descent)


def min_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Min-min on the `counts[t]` lanes of each type; ties: first task, type, lane."""
    return rounds(times, counts, ready, choice=lambda first, second: -first.min(axis=0), since=since)


def max_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Max-min on the `counts[t]` lanes of each type; ties: first task, type, lane."""
    return rounds(times, counts, ready, choice=lambda first, second: first.min(axis=0), since=since)


def sufferage(
    times: np.ndarray,
    counts: Sequence[int],
    ready: np.ndarray | None = None,
    between: Between = "lanes",
    since: Free = None,
) -> Schedule:
    """Sufferage on the `counts[t]` lanes of each type; ties: first task, type, lane."""

    def suffers(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        ends = first if between == "types" else np.concatenate([first, second])
        if len(ends) == 1:  # one type: there is no other
            return np.full(ends.shape[1], np.inf)
        best = np.partition(ends, 1, axis=0)
        return best[1] - best[0]

    return rounds(times, counts, ready, choice=suffers, since=since)


def rounds(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None, choice: Choice, since: Free = None
) -> Schedule:
    """Repeatedly place the task with the greatest value where it is complete first.

    since: when each lane of each type is free at first; None: at 0.
    """
    size = len(times)
    schedule = Schedule.empty(size)
    rest = np.arange(size)
    need = np.ascontiguousarray(times.T)  # types by tasks that are left
    there = np.zeros(size) if ready is None else np.asarray(ready, dtype=float)
    free = [free_lanes(count, since[kind] if since else None) for kind, count in enumerate(counts)]
    first, second = np.empty_like(need), np.empty_like(need)

    def renew(kind: int) -> None:
        """Completion on the two lanes of a type that are free first."""
        lanes = free[kind]
        first[kind] = np.maximum(lanes[0][0], there) + need[kind]
        next_free = min((lane[0] for lane in lanes[1:3]), default=np.inf)  # of a heap the second is one of these
        second[kind] = np.maximum(next_free, there) + need[kind]

    for kind in range(len(counts)):
        renew(kind)
    for _ in range(size):
        at = int(choice(first, second).argmax())
        kind = int(first[:, at].argmin())
        begin, lane = free[kind][0]
        end = schedule.put(int(rest[at]), max(begin, float(there[at])), float(need[kind, at]), kind=kind, lane=lane)
        heapq.heapreplace(free[kind], (end, lane))
        kept = np.arange(len(rest)) != at
        rest, there, need = rest[kept], there[kept], need[:, kept]
        first, second = first[:, kept], second[:, kept]
        renew(kind)
    return schedule
