"""List scheduling: an idle device takes the first listed task that can run on it.

Decides where and when, from a given list; no device stays idle by choice, however slow it is.
Reference: Graham, Bounds for Certain Multiprocessing Anomalies (1966).  On m equal lanes the makespan is at most
2 - 1/m times the least possible, for every list, task graphs included; with the longest tasks first and without a
graph at most 4/3 - 1/(3m) (Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
Weakness: on unlike devices there is no such ratio, not even that of the largest speed-up: with one CPU and one
GPU and the tasks (CPU time, GPU time) = (x, 1) and (1, x + 1) both start on the wrong one, x + 1 times the least.
Transfers are not counted.
Cost: O((n + lanes) (log n + sets)) for n tasks, where sets is the number of different sets of device types that
tasks can run on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.parallel import parallel
from hetsim_policies.static.common.parallel_lists import listed, wide_graham
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.task_graphs import Graph, graph_of, successors

ListOrder = Literal["given", "longest", "shortest"]


class Graham(PlannedScheduler):
    """List scheduling of sequential and parallel tasks, with or without a task graph.

    order: the list; `given` is by arrival, then as in the table, `longest` and `shortest` go by the time on each
    task's fastest device.
    """

    def __init__(self, order: ListOrder = "given"):
        super().__init__()
        self.order = order

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            return listed(problem, "graham", lambda all_, some: wide_graham(all_, some, self.list(all_.fastest())))
        instance, tasks = runnable(problem, "graham"), problem.tasks
        order = self.list(instance.time.min(axis=1, initial=np.inf))
        schedule = graham(
            instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors,
            since=instance.free
        )
        bound = graph_bound(instance.time, instance.counts, graph_of(tasks), tasks.arrival)
        return plan_of(instance, schedule, bound)

    def list(self, shortest: np.ndarray) -> Sequence[int]:
        """The tasks in the order of the list, by the shortest time of each."""
        keys = {"given": np.zeros(len(shortest)), "longest": -shortest, "shortest": shortest}
        order: Sequence[int] = np.argsort(keys[self.order], kind="stable").tolist()
        return order


class _WaitingTasks:
    """Tasks that can start, in list order, by the types of lanes that are `usable`."""

    def __init__(self, usable: np.ndarray, order: Sequence[int]):
        groups, group_of = np.unique(usable, axis=0, return_inverse=True)
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in groups]  # of (position in the list, task)
        self._heap_of = [self._heaps[group] for group in group_of.reshape(-1).tolist()]
        self._served = [[self._heaps[n] for n in np.flatnonzero(groups[:, kind])] for kind in range(usable.shape[1])]
        position = np.empty(len(usable), dtype=np.int64)
        position[list(order)] = np.arange(len(usable))
        self._position: list[int] = position.tolist()

    def add(self, task: int) -> None:
        heapq.heappush(self._heap_of[task], (self._position[task], task))

    def take(self, kind: int) -> int | None:
        """The first of the list that can run on a type of lane; None if none waits."""
        heaps = [heap for heap in self._served[kind] if heap]
        return heapq.heappop(min(heaps, key=lambda heap: heap[0]))[1] if heaps else None


OPENS, ENDS, COMES = -1, 0, 1
"""What happens, in this order at one time: a lane is free at first, a task ends, a task can start."""


def graham(
    times: np.ndarray,
    counts: Sequence[int],
    order: Sequence[int],
    ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
    since: Free = None,
) -> Schedule:
    """List schedule of tasks with `times[j, t]` on the `counts[t]` lanes of each type.

    The first idle lane (types in order, then lanes) chooses first.
    since: when each lane of each type is free at first; None: at 0.
    """
    size, kinds = times.shape
    schedule = Schedule.empty(size)
    waiting = _WaitingTasks(np.isfinite(times), order)
    idle: list[list[int]] = [[] if since else list(range(count)) for count in counts]  # heaps
    there = [0.0] * size if ready is None else [float(at) for at in ready]
    graph: Graph = [()] * size if predecessors is None else predecessors
    missing, after = [len(set(before)) for before in graph], successors(graph)
    # (time, what happens, number of the task or lane, type of the lane)
    events = [(there[task], COMES, task, 0) for task in range(size) if not missing[task]]
    for kind, times_free in enumerate(since or ()):
        events += [(float(at), OPENS, lane, kind) for lane, at in enumerate(times_free)]
    heapq.heapify(events)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, what, number, kind = heapq.heappop(events)
            if what == COMES:
                waiting.add(number)
                continue
            if what == OPENS:
                heapq.heappush(idle[kind], number)
                continue
            heapq.heappush(idle[kind], int(schedule.lane[number]))
            for successor in after[number]:
                missing[successor] -= 1
                if not missing[successor]:
                    heapq.heappush(events, (max(now, there[successor]), COMES, successor, 0))
        for kind in range(kinds):
            while idle[kind]:
                task = waiting.take(kind)
                if task is None:
                    break
                end = schedule.put(task, now, float(times[task, kind]), kind=kind, lane=heapq.heappop(idle[kind]))
                heapq.heappush(events, (end, ENDS, task, kind))
    return schedule
