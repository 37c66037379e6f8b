"""Minimum completion time: one task after the other to its earliest lane.

Decides where, in the order of the list: by arrival, then as in the table; a task of a graph comes when its
predecessors have been placed.  A device is chosen although it is busy, if it is fast enough to be worth waiting for.
Reference: Armstrong, Hensgen, Kidd, The Relative Performance of Various Mapping Algorithms Is Independent of Sizable
Variances in Run-Time Predictions (1998); Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on
Nonidentical Processors (1977), with the proof that on m unlike lanes it is at most m times the least makespan, without
a graph and arrivals; on equal lanes it is then list scheduling, at most 2 - 1/m.
Weakness: it sees one task at a time, so that a task that gains little takes the device that a later one would need;
a lane is kept for a task that cannot start yet; transfers are not counted.
Cost: O(n (types + log lanes)): of equal lanes only the one that is free first is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, free_lanes, runnable
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.parallel import parallel
from hetsim_policies.static.common.parallel_lists import listed, wide_mct
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.task_graphs import Graph, graph_of, topological


class Mct(DescendingPlanner):
    """Minimum completion time, for sequential and parallel tasks, graphs included."""

    def __init__(self, descent: bool = False):
        super().__init__(descent)

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            return listed(problem, "mct", wide_mct)
        instance = runnable(problem, "mct")
        tasks = problem.tasks
        order = list(range(len(tasks))) if tasks.predecessors is None else topological(tasks.predecessors)
        schedule = mct(
            instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors,
            since=instance.free
        )
        bound = graph_bound(instance.time, instance.counts, graph_of(tasks), tasks.arrival)
        return plan_of(instance, schedule, bound, descent=self.descent)


def mct(
    times: np.ndarray,
    counts: Sequence[int],
    order: Sequence[int],
    ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
    since: Free = None,
) -> Schedule:
    """Each task where it finishes first, in an order that respects the graph.

    Ties go to the first type and lane.

    since: when each lane of each type is free at first; None: at 0.
    """
    schedule = Schedule.empty(len(times))
    free = [free_lanes(count, since[kind] if since else None) for kind, count in enumerate(counts)]
    finish = [0.0] * len(times)
    rows = times.tolist()
    arrivals = [0.0] * len(times) if ready is None else ready.tolist()
    for task in order:
        there = arrivals[task]
        if predecessors is not None:
            there = max([there, *(finish[before] for before in predecessors[task])])
        ends = [max(there, lanes[0][0]) + time for lanes, time in zip(free, rows[task], strict=True)]
        kind = min(range(len(ends)), key=ends.__getitem__)
        at, lane = free[kind][0]
        finish[task] = schedule.put(task, max(there, at), rows[task][kind], kind=kind, lane=lane)
        heapq.heapreplace(free[kind], (finish[task], lane))
    return schedule
