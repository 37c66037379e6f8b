"""List algorithms for parallel tasks: `graham`, `mct`, `heft`, `min_min`.

Decides where, when and, of a moldable task, on how many lanes.  Each works as its sequential namesake, with a task's
options (`parallel`) in the place of types: `graham` starts the first task of its list that fits what is idle, in the
option that ends first; the others place one task after the other where it ends first.
Ending first makes every task as wide as it can be, although wide options waste work.  So each algorithm is run with
several floors under the efficiency of an option, its task's least area on the type over its own area, and the
shortest schedule is taken.
Reference: list scheduling of rigid tasks is that of Garey and Graham, Bounds for Multiprocessor Scheduling with
Resource Constraints (1975): on lanes of one type on one node at most twice the least makespan, without a graph and
arrivals.  HEFT with options is M-HEFT of Casanova, Desprez, Suter, From Heterogeneous Task Scheduling to Heterogeneous
Mixed Parallel Scheduling (2004); the floors are ours and serve as the limits on widths that later versions of it have.
Weakness: no gaps are filled, except by `graham`; items that tasks share are not seen; no ratio on unlike lanes.
Cost: some floors × O(n (options + log lanes)); `min_min` O(n^2 options), vectorized; `graham` up to O(n) a start.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.parallel import PoolLanes, WideTasks, wide, wide_plan
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.task_graphs import graph_of, successors, topological, upward

FLOORS = (0.0, 0.5, 0.75, 0.9, 1.0)
"""Efficiencies below which options are not looked at."""

Rule = Callable[[WideTasks, np.ndarray], PoolLanes]
"""Places the tasks of an instance in options that a mask allows."""


def listed(problem: PlanProblem, planner: str, rule: Rule) -> Plan:
    """The shortest of the rule's schedules over all floors."""
    instance = wide(problem, planner)
    areas = instance.min_areas()[instance.task, instance.kind]
    with np.errstate(invalid="ignore", divide="ignore"):
        efficiency = np.where(instance.area > 0, areas / instance.area, 1.0)
    masks = dict.fromkeys(tuple((efficiency >= floor * (1 - 1e-9)).tolist()) for floor in FLOORS)
    schedules = [rule(instance, np.array(mask, dtype=bool)) for mask in masks]
    return wide_plan(instance, min(schedules, key=lambda lanes: lanes.makespan).placed)


def in_order(instance: WideTasks, allowed: np.ndarray, order: Sequence[int]) -> PoolLanes:
    """One task after the other where it ends first, of equals in its first option."""
    tasks, lanes = instance.problem.tasks, PoolLanes(instance)
    graph, finish = graph_of(tasks), [0.0] * instance.size
    for task in order:
        ready = max([float(tasks.arrival[task]), *(finish[before] for before in graph[task])])
        best: tuple[float, int, float, int] | None = None
        for option in range(instance.first[task], instance.first[task + 1]):
            if allowed[option]:
                start, pool = lanes.earliest(instance.pools_of[option], int(instance.width[option]), ready)
                end = start + float(instance.seconds[option])
                if best is None or end < best[0]:
                    best = end, option, start, pool
        assert best is not None  # the option of least area passes every floor
        finish[task] = lanes.put(best[1], best[3], best[2])
    return lanes


def wide_mct(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """In the order of the table, each after its predecessors."""
    return in_order(instance, allowed, topological(graph_of(instance.problem.tasks)))


def wide_heft(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """By descending upward rank, of the mean seconds of the options of each task."""
    graph = graph_of(instance.problem.tasks)
    order = topological(graph)
    total = np.bincount(instance.task[allowed], instance.seconds[allowed], minlength=instance.size)
    mean = total / np.maximum(1, np.bincount(instance.task[allowed], minlength=instance.size))
    rank = upward(mean, ways(graph), order)
    position = {task: number for number, task in enumerate(order)}
    return in_order(instance, allowed, sorted(order, key=lambda task: (-rank[task], position[task])))


def wide_min_min(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """Place the task that can end first, again and again; ties: the first option."""
    lanes, arrival = PoolLanes(instance), instance.problem.tasks.arrival[instance.task]
    demands = list(dict.fromkeys(zip(instance.pools_of, instance.width.tolist(), strict=True)))
    number = {demand: index for index, demand in enumerate(demands)}
    demand_of = np.array([number[one] for one in zip(instance.pools_of, instance.width.tolist(), strict=True)], int)
    seconds = np.where(allowed, instance.seconds, np.inf)
    for _ in range(instance.size):
        starts = [lanes.earliest(homes, width) for homes, width in demands]
        begin = np.maximum(np.array([start for start, _ in starts])[demand_of], arrival)
        option = int((begin + seconds).argmin())
        lanes.put(option, starts[demand_of[option]][1], float(begin[option]))
        task = instance.task[option]
        seconds[instance.first[task] : instance.first[task + 1]] = np.inf
    return lanes


def wide_graham(instance: WideTasks, allowed: np.ndarray, order: Sequence[int]) -> PoolLanes:
    """Start the first listed task that fits on idle lanes, in its earliest option.

    order: the list; independent tasks that it leaves out are not placed.  Of tasks with the same options by width and
    pools only the first of the list that does not fit is looked at.
    """
    tasks, lanes = instance.problem.tasks, PoolLanes(instance)
    graph = graph_of(tasks)
    after, missing = successors(graph), [len(set(before)) for before in graph]
    position = np.empty(instance.size, dtype=np.int64)
    position[list(order)] = np.arange(len(order))
    options = [[o for o in range(instance.first[j], instance.first[j + 1]) if allowed[o]] for j in range(instance.size)]
    group = [tuple((int(instance.width[o]), instance.pools_of[o]) for o in row) for row in options]
    waiting: dict[tuple[tuple[int, tuple[int, ...]], ...], list[tuple[int, int]]] = {}
    # (time, task is there (0), task is over (1), lanes are free at first (-1), number)
    events = [(float(tasks.arrival[j]), 0, j) for j in order if not missing[j]]
    events += [(at, -1, 0) for at in dict.fromkeys(at for pool in instance.pools for at in pool.free)]
    heapq.heapify(events)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, what, task = heapq.heappop(events)
            if what == 0:
                heapq.heappush(waiting.setdefault(group[task], []), (int(position[task]), task))
            elif what == 1:
                for later in after[task]:
                    missing[later] -= 1
                    if not missing[later]:
                        heapq.heappush(events, (max(now, float(tasks.arrival[later])), 0, later))
        heads = [(heap[0], key) for key, heap in waiting.items() if heap]
        heapq.heapify(heads)
        while heads:
            (_, task), key = heapq.heappop(heads)
            begun = _begin(instance, lanes, options[task], now)
            if begun is None:
                continue  # nor does any other of its group
            heapq.heappush(events, (begun, 1, task))
            heapq.heappop(waiting[key])
            if waiting[key]:
                heapq.heappush(heads, (waiting[key][0], key))
    return lanes


def _begin(instance: WideTasks, lanes: PoolLanes, options: Sequence[int], now: float) -> float | None:
    """Start the option that ends first, now; return its end, or None if none fits."""
    for option in sorted(options, key=lambda one: float(instance.seconds[one])):
        start, pool = lanes.earliest(instance.pools_of[option], int(instance.width[option]), now)
        if start <= now:
            return lanes.put(option, pool, now)
    return None
