"""Lists: tasks in an order, each assigned to a device once."""

import heapq
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, Schedule, free_lanes, independent, refuse_graph, runnable
from hetsim_policies.static.common.outcome import PlainPlanner, plan_of
from hetsim_policies.static.common.parallel import Choice, listed, parallel, wide_graham, wide_mct, wide_rounds
from hetsim_policies.task_graphs import Graph, graph_of, successors, topological

ListOrder = Literal["given", "longest", "shortest"]


class Graham(PlannedScheduler):
    """List scheduling: an idle device takes the first listed task that can run on it.

    For sequential and parallel tasks, with or without a task graph.
    Decides where and when, from a given list; no device is idle by choice, however slow it is.
    Reference: Graham, Bounds for Certain Multiprocessing Anomalies (1966).  On m equal lanes (cores or GPUs) the
    makespan is at most 2 - 1/m times the minimum, for every list, task graphs included; with the longest tasks first
    and without a graph at most 4/3 - 1/(3m) (Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
    Weakness: on unlike devices no constant ratio holds: with one CPU, one GPU and two tasks with (CPU time, GPU time) =
    (x, 1) and (1, x + 1), both tasks start on the wrong device, and the makespan is x + 1 times the minimum.  Transfers
    are not counted.  Cost: O((n + lanes) (log n + sets)) for n tasks, where sets is the number of different sets of
    device types that tasks can run on.

    order: order of the list; `given` is by arrival, then table order; `longest` and `shortest` are by the time on each
        task's fastest device.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    def __init__(self, order: ListOrder = "given"):
        super().__init__()
        self.order = order

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            return listed(problem, "graham", lambda all_, some: wide_graham(all_, some, self.list(all_.fastest())))
        instance, tasks = runnable(problem, "graham"), problem.tasks
        given, order = (instance.time, instance.counts), self.list(instance.time.min(axis=1, initial=np.inf))
        schedule = graham(*given, order, tasks.arrival, tasks.predecessors, instance.free)
        return plan_of(instance, schedule, graph_bound(*given, graph_of(tasks), tasks.arrival))

    def list(self, shortest: np.ndarray) -> Sequence[int]:
        keys = {"given": np.zeros(len(shortest)), "longest": -shortest, "shortest": shortest}
        return np.argsort(keys[self.order], kind="stable").tolist()


class _WaitingTasks:
    """Tasks that can start, in list order, by the device types that can run them."""

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
        heaps = [heap for heap in self._served[kind] if heap]
        return heapq.heappop(min(heaps, key=lambda heap: heap[0]))[1] if heaps else None


OPENS, ENDS, COMES = -1, 0, 1  # Events, in this order at one time: a lane is first free, a task ends, a task can start


def graham(
    times: np.ndarray, counts: Sequence[int], order: Sequence[int], ready: np.ndarray | None = None,
    predecessors: Graph | None = None, since: Free = None,
) -> Schedule:  # fmt: skip
    """List-schedule tasks of `times[j, t]` seconds on `counts[t]` devices per type.

    If several cores or GPUs are idle, the first in the order of types gets a task first.
    since: time when each lane of each type is first free; None: 0 for all.
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
                if (task := waiting.take(kind)) is None:
                    break
                end = schedule.put(task, now, float(times[task, kind]), kind=kind, lane=heapq.heappop(idle[kind]))
                heapq.heappush(events, (end, ENDS, task, kind))
    return schedule


class Mct(PlainPlanner):
    """Minimum completion time: one task after the other to its earliest device.

    For sequential and parallel tasks, with or without a task graph.
    Decides the device of each task, one task at a time: by arrival, then table order; a task of a graph is placed after
    its predecessors.  A busy device is chosen if it is fast enough to be worth waiting for.
    Reference: Armstrong, Hensgen, Kidd, The Relative Performance of Various Mapping Algorithms Is Independent of
    Sizable Variances in Run-Time Predictions (1998); Ibarra and Kim, Heuristic Algorithms for Scheduling Independent
    Tasks on Nonidentical Processors (1977), with the proof that without a graph and arrivals the makespan on m
    unrelated lanes (cores or GPUs) is at most m times the minimum; on equal lanes the rule is list scheduling, with
    ratio 2 - 1/m.  Weakness: it considers one task at a time, so a task that gains little uses the device that a later
    task needs; a lane is reserved for a task that cannot start yet; transfers are not counted.
    Cost: O(n (types + log lanes)): of equal lanes only the one that is free first is considered.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            return listed(problem, "mct", wide_mct)
        instance, tasks, graph = runnable(problem, "mct"), problem.tasks, graph_of(problem.tasks)
        given = instance.time, instance.counts
        schedule = mct(*given, topological(graph), tasks.arrival, tasks.predecessors, instance.free)
        return plan_of(instance, schedule, graph_bound(*given, graph, tasks.arrival), descent=self.descent)


def mct(
    times: np.ndarray, counts: Sequence[int], order: Sequence[int], ready: np.ndarray | None = None,
    predecessors: Graph | None = None, since: Free = None,
) -> Schedule:  # fmt: skip
    """Place tasks, each after its predecessors, on the lane where it finishes first.

    At ties the first type and lane (core or GPU) are chosen.  since: time when each lane of each type is first free;
    None: 0 for all.
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


Between = Literal["lanes", "types"]


class _InRounds(PlainPlanner):
    """Base of planners that place in each step the task of highest value (`choice`)."""

    spreads = frozenset({"gpus", "cores", "nodes"})
    name: ClassVar[str]
    choice: Choice

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            refuse_graph(problem, self.name)
            return listed(problem, self.name, lambda instance, allowed: wide_rounds(instance, allowed, self.choice))
        instance = independent(problem, self.name)
        arrival = problem.tasks.arrival
        schedule = rounds(instance.time, instance.counts, arrival, choice=self.choice, since=instance.free)
        return plan_of(instance, schedule, descent=self.descent)


def _shortest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(-first.min(axis=0))


def _longest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(first.min(axis=0))


class MinMin(_InRounds):
    """Min-min, for independent sequential and parallel tasks.

    In each step, the remaining task with the earliest possible completion is placed where it completes first.
    Decides where, and in which order: short tasks first.
    Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
    algorithm D: the makespan is at most m times the minimum on m unrelated lanes (cores or GPUs).  It is often good in
    practice (Braun et al., A Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks, 2001).
    Weakness: long tasks are placed last; at the end they run on few lanes, while the other lanes are idle.  Transfers
    are not counted.  Cost: O(n^2 types), vectorized over the tasks: of equal lanes only the one that is free first is
    considered.
    """

    name = "min_min"
    choice = staticmethod(_shortest)


class MaxMin(_InRounds):
    """Max-min, for independent sequential and parallel tasks.

    The task whose earliest possible completion is latest is placed next.
    Decides where, and in which order: long tasks first, each where it completes first.
    Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
    algorithm E: the makespan is at most m times the minimum on m unrelated lanes (cores or GPUs).  On equal lanes the
    algorithm is longest processing time first, at most 4/3 - 1/(3m) times the minimum (Graham, 1969).  It is good if
    few tasks are long and many are short.  Weakness: if most tasks are long, they occupy the fast devices that other
    tasks need more (Braun et al., 2001, find max-min much worse than min-min in this case).  Transfers are not counted.
    Cost: O(n^2 types), vectorized over the tasks: of equal lanes only the one that is free first is considered.
    """

    name = "max_min"
    choice = staticmethod(_longest)


class Sufferage(_InRounds):
    """Sufferage, for independent sequential and parallel tasks.

    In each step, the task that would lose most without its best lane (core or GPU) gets its best lane.
    Decides where, and in which order.  The sufferage of a task is the difference between its completion on the best and
    on the second best lane, lanes of one type included; the sufferage of a task that only one lane can run is infinite.
    The second best place of a parallel task consists of as many other lanes.
    Reference: Maheswaran, Ali, Siegel, Hensgen, Freund, Dynamic Mapping of a Class of Independent Tasks onto
    Heterogeneous Computing Systems (1999); Casanova et al., Heuristics for Scheduling Parameter Sweep Applications in
    Grid Environments (2000), for one task per round, as here.  No ratio is proven.  Weakness: with two or more equal
    lanes that are free at the same time the sufferage of every task is 0, and ties decide (for this case Casanova et
    al. propose the difference between clusters of lanes: `between: types`).  Transfers are not counted.
    Cost: O(n^2 types), vectorized over the tasks: of equal lanes only the one that is free first is considered.

    between: the second best place: another lane, or a lane of another device type (XSufferage).
    """

    name = "sufferage"

    def __init__(self, between: Between = "lanes", descent: bool = False):
        super().__init__(descent)
        self.choice = partial(suffering, between)


def min_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Schedule by min-min on `counts[t]` cores or GPUs of type t; ties: first task."""
    return rounds(times, counts, ready, choice=_shortest, since=since)


def max_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Schedule by max-min on `counts[t]` cores or GPUs per type; ties go to the first."""
    return rounds(times, counts, ready, choice=_longest, since=since)


def sufferage(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, between: Between = "lanes",
    since: Free = None,
) -> Schedule:  # fmt: skip
    """Return a sufferage schedule; default: tasks arrive and lanes are free at 0 s."""
    return rounds(times, counts, ready, partial(suffering, between), since=since)


def suffering(between: Between, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return how much later (s) each task ends if it gets its second best choice.

    between: choices are device types ("types"), or lanes, so that two lanes (cores or GPUs) of a type are two choices.
    first, second: end of each task (column) on the lane of each type (row) that is free first, and on the next one.
    """
    ends = first if between == "types" else np.concatenate([first, second])
    if len(ends) == 1:  # one type: there is no other
        return np.full(ends.shape[1], np.inf)
    best = np.partition(ends, 1, axis=0)
    return np.asarray(best[1] - best[0])


def rounds(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None, choice: Choice, since: Free = None
) -> Schedule:
    """Repeatedly place the task with the highest `choice` score where it ends first.

    since: time when each lane (core or GPU) of each type is first free; None: 0 for all.
    """
    size = len(times)
    schedule = Schedule.empty(size)
    rest = np.arange(size)
    need = np.ascontiguousarray(times.T)  # types by tasks that are left
    there = np.zeros(size) if ready is None else np.asarray(ready, dtype=float)
    free = [free_lanes(count, since[kind] if since else None) for kind, count in enumerate(counts)]
    first, second = np.empty_like(need), np.empty_like(need)

    def renew(kind: int) -> None:
        """Update each task's completion on the two earliest free devices of a type."""
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


class LoadBalance(PlannedScheduler):
    """Load balancing: each task to the device with least projected load per speed.

    For sequential tasks, with or without a task graph.
    Decides the device of each task, one task at a time: by arrival, then table order; a task of a graph is placed after
    its predecessors.  Each type has one speed for all tasks: the geometric mean, over the tasks that can run on all
    types, of its speedup over the slowest type.  The work of a task is its time times the speed of the type, averaged
    over the types that can run it, and the load of a lane (core or GPU) is its work divided by its speed.
    Reference: Cho and Sahni, Bounds for List Schedules on Uniform Processors (1980).  If times are work divided by
    speed, all tasks arrive together and there is no graph, the makespan is at most (1 + √5)/2 times the minimum on two
    lanes, and 1 + √(2m - 2)/2 times the minimum on m > 2 lanes.
    Weakness: one speed per device ignores that some tasks gain more from it than others; the ratio needs the assumption
    of one speed; deadlines, memory and transfers are ignored.  Cost: O(n (types + log lanes)).
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, "load_balance"), problem.tasks
        given = instance.time, instance.counts, topological(graph_of(tasks)), tasks.arrival, tasks.predecessors
        return plan_of(instance, load_balance(*given))


def load_balance(
    times: np.ndarray, counts: Sequence[int], order: Sequence[int], ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
) -> Schedule:  # fmt: skip
    """Place each task, after its predecessors, on the first least loaded device."""
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
    """Speed of each type relative to the slowest; 1 if no task can run on all types."""
    common = times[np.isfinite(times).all(axis=1) & (times > 0).all(axis=1)]
    if not len(common):
        return np.ones(times.shape[1])
    slowness = np.log(common).mean(axis=0)
    return np.exp(slowness.max(initial=-np.inf) - slowness)
