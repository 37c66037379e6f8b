"""Load balancing: each task goes to the lane with least projected load per speed.

Decides where, in the order of the list: by arrival, then as in the table; a task of a graph comes after its
predecessors.  Devices have one speed, whatever the task: that of a type is the geometric mean, over the tasks that
can run on all types, of how many times faster than the slowest type it is.  The work of a task is its time times the
speed of the type, on average over the types that can run it, and the load of a lane its work divided by its speed.
Reference: Cho and Sahni, Bounds for List Schedules on Uniform Processors (1980).  Where times are work divided by
speed, all arrive together and there is no graph, the makespan is at most (1 + √5)/2 times the least on two lanes and
1 + √(2m - 2)/2 times on m > 2.
Weakness: one speed a device hides which tasks gain from it, which is most of what unlike devices offer, and then
there is no ratio; deadlines, memory and transfers are not looked at.
Cost: O(n (types + log lanes)).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.task_graphs import Graph, topological


class LoadBalance(PlannedScheduler):
    """Load balancing, for sequential tasks with or without a task graph."""

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "load_balance")
        tasks = problem.tasks
        order = list(range(len(tasks))) if tasks.predecessors is None else topological(tasks.predecessors)
        return plan_of(
            instance,
            load_balance(instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors)
        )


def load_balance(
    times: np.ndarray,
    counts: Sequence[int],
    order: Sequence[int],
    ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
) -> Schedule:
    """Each task on the least loaded lane, in an order that respects the graph.

    Ties go to the first type and lane.
    """
    schedule = Schedule.empty(len(times))
    speed = speeds(times)
    usable = np.isfinite(times)
    work = (np.where(usable, times, 0.0) * speed).sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    projected = np.where(usable, work[:, None] / speed, np.inf).tolist()
    loads = [[(0.0, lane) for lane in range(count)] for count in counts]  # heaps
    free = [[0.0] * count for count in counts]
    for task in order:
        ends = [lanes[0][0] + more if lanes else np.inf for lanes, more in zip(loads, projected[task], strict=True)]
        kind = min(range(len(ends)), key=ends.__getitem__)
        lane = loads[kind][0][1]
        heapq.heapreplace(loads[kind], (ends[kind], lane))
        there = 0.0 if ready is None else float(ready[task])
        if predecessors is not None:
            there = max([there, *(float(schedule.finish[before]) for before in predecessors[task])])
        start = max(there, free[kind][lane])
        free[kind][lane] = schedule.put(task, start, float(times[task, kind]), kind=kind, lane=lane)
    return schedule


def speeds(times: np.ndarray) -> np.ndarray:
    """The speed of each type relative to the slowest; all 1 without common tasks."""
    common = times[np.isfinite(times).all(axis=1) & (times > 0).all(axis=1)]
    if not len(common):
        return np.ones(times.shape[1])
    slowness = np.log(common).mean(axis=0)
    return np.exp(slowness.max(initial=-np.inf) - slowness)
