"""Min-min: of all tasks left, the one that can be complete first goes where it is complete first; then again.

Decides where, and in which order: short tasks come first.
Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
algorithm D: at most m times the least makespan on m unlike lanes.  Often good in practice (Braun et al., A
Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks, 2001).
Weakness: the long tasks come last and stand out at the end, while other lanes are empty.  Transfers are not counted.
Cost: O(n^2 types), vectorized over the tasks: of equal lanes only the one that is free first is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from policies.static.common.instance import Free, free_lanes, independent, refuse_graph
from policies.static.common.outcome import plan_of
from policies.static.common.parallel import parallel
from policies.static.common.parallel_lists import listed, wide_min_min
from policies.static.common.schedule import Schedule
from sim.model.plan import Plan
from sim.policy import PlannedScheduler, PlanProblem

Choice = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From completion times on the first and the second free lane (types by tasks) a value for each task."""


class MinMin(PlannedScheduler):
    """Min-min, for independent sequential and parallel tasks.

    descent: end by moving and exchanging tasks of the longest lane (`descent`), of sequential tasks there
        at once.
    """

    def __init__(self, descent: bool = False):
        super().__init__()
        self.descent = descent

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            refuse_graph(problem, "min_min")
            return listed(problem, "min_min", wide_min_min)
        instance = independent(problem, "min_min")
        return plan_of(instance, min_min(instance.time, instance.counts, problem.tasks.arrival, instance.free),
                       descent=self.descent)  # fmt: skip


def min_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Min-min on the `counts[t]` lanes of each type; ties go to the first task, type and lane."""
    return rounds(times, counts, ready, lambda first, second: -first.min(axis=0), since)


def rounds(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None, choice: Choice, since: Free = None
) -> Schedule:
    """Repeatedly place the task with the greatest value where it is complete first.

    since: when each lane of each type is free at first; None: at 0.
    """
    size = len(times)
    schedule = Schedule.empty(size)
    left = np.arange(size)
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
        end = schedule.put(int(left[at]), max(begin, float(there[at])), float(need[kind, at]), kind, lane)
        heapq.heapreplace(free[kind], (end, lane))
        kept = np.arange(len(left)) != at
        left, there, need = left[kept], there[kept], need[:, kept]
        first, second = first[:, kept], second[:, kept]
        renew(kind)
    return schedule
