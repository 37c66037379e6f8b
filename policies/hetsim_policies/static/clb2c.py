"""Centralized load balancing for two clusters: from both ends of a speed-up list.

Decides where, for two types of devices.  Tasks are sorted by the ratio of their two times; at each step the task at
either end is tried on the least loaded lane of the type that it suits best, and the one that would be complete
first is placed.
Reference: Cheriere and Saule, Considerations on Distributed Load Balancing for Fully Heterogeneous Machines: Two
Particular Cases (2015).  At most 2 times the least makespan if no task is longer than that on either type, without
arrivals.  Weakness: without that condition no ratio holds, as the last tasks left may be long ones on their worse
type; transfers are not counted.
Cost: O(n log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.instance import independent
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.common.two_types import by_speed_up, two_types


class Clb2c(DescendingPlanner):
    """CLB2C, for independent sequential tasks on at most two types of devices."""

    def __init__(self, descent: bool = False):
        super().__init__(descent)

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "clb2c")
        times, counts = two_types(instance, "clb2c")
        return plan_of(instance, clb2c(times, counts, problem.tasks.arrival), descent=self.descent)


def clb2c(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None) -> Schedule:
    """CLB2C on `counts[0]` and `counts[1]` lanes; ties go to the second type."""
    schedule = Schedule.empty(len(times))
    free = [[(0.0, lane) for lane in range(count)] for count in counts]  # heaps
    order = by_speed_up(np.where(np.asarray(counts) > 0, times, np.inf)).tolist()
    arrivals = [0.0] * len(times) if ready is None else ready.tolist()
    head, tail = 0, len(order) - 1  # most for the second type, most for the first

    def completion(task: int, kind: int) -> float:
        return max(free[kind][0][0], arrivals[task]) + float(times[task, kind]) if free[kind] else np.inf

    while head <= tail:
        kind = int(completion(order[head], 1) <= completion(order[tail], 0))
        task = order[head] if kind else order[tail]
        head, tail = (head + 1, tail) if kind else (head, tail - 1)
        since, lane = free[kind][0]
        end = schedule.put(task, max(since, arrivals[task]), float(times[task, kind]), kind=kind, lane=lane)
        heapq.heapreplace(free[kind], (end, lane))
    return schedule
