"""Queue orders with preemption: a task that does not fit may stop running ones."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import Discipline, PlacementRule, PlanProblem, View
from hetsim.policy.decisions import Decision, Reject, Wait
from hetsim.policy.preemption import PreemptiveList, RunningList
from hetsim_policies.common import part_left, place_of
from hetsim_policies.orders import edf


class Priority(PreemptiveList):
    """Priority: the highest priority first, with optional aging and preemption.

    Decides when, and with preemption which running task is preempted.  Equal priorities are served in the order of
    arrival and never preempt each other.
    Reference: Cobham, Priority Assignment in Waiting Line Problems (1954), and for preemption White and Christie,
    Queuing with Preemptive Priorities (1958); both give the exact mean waits for M/M/1.  Aging, a priority that grows
    with time in the system, is Kleinrock's delay-dependent discipline (1964).
    Weakness: without aging, tasks of low priority starve while tasks of higher priority occupy all devices.
    Cost: O(log n) per task; if preemptive, one pass over the running tasks for a head that does not fit.

    preemptive: a head that does not fit stops running tasks of lower priority.
    aging: priority gained per second since arrival.  All priorities grow equally, so the order of two tasks never
        changes and the key is constant: aging × arrival - priority.
    """

    queueing = "priorities"

    def __init__(
        self,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = False,
        aging: PerSecond = 0.0,
    ):
        super().__init__(self._key, placement, discipline, preemptive)
        self.aging = aging

    def _key(self, task: Task) -> float:
        return self.aging * task.arrival - task.priority


class Edf(PreemptiveList):
    """Earliest deadline first: nearest deadline first, tasks without one last.

    Decides when, with preemption which running task is preempted, and with `drop_expired` which tasks are dropped.
    Reference: Liu and Layland, Scheduling Algorithms for Multiprogramming (1973); Dertouzos (1974): with preemption on
    one server, it meets all deadlines if any policy can.  This does not hold on several servers (Dhall and Liu, 1978).
    Weakness: under overload it runs tasks that are nearly late and misses one deadline after the other, which
    `drop_expired` limits.  Cost: O(log n) per task; if preemptive, one pass over the running tasks for a head that does
    not fit.

    preemptive: a head that does not fit stops running tasks with later deadlines.
    drop_expired: a waiting task that reaches the head of its queue after its deadline expires.
    """

    def __init__(
        self,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = False,
        drop_expired: bool = False,
    ):
        super().__init__(edf, placement, discipline, preemptive)
        self.drop_expired = self.rejects = drop_expired

    def schedule(self, view: View) -> Iterator[Decision]:
        if self.drop_expired:
            for queue in self.queues():
                # Deadlines ascend along the queue: the expired ones are all at its head.
                while (task := queue.head()) is not None and task.deadline <= view.now:
                    yield Reject(task, "its deadline passed while it waited", expired=True)
        yield from super().schedule(view)


ROUNDING = 1e-9  # relative rounding error between equal times that were computed in two ways


def _time_left(task: Task) -> float:
    return task.shortest_remaining


class Srtf(PreemptiveList):
    """Shortest remaining time first, by estimate, with preemption.

    Decides when, and which task is preempted.  The remaining time is that in the task's best mode, so that a task on a
    slow device does not count as long.
    Reference: Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time Discipline (1968): on one
    server, with exact estimates and free preemption, no policy has fewer tasks in the system at any time.  For mean
    response on m servers, it is O(log min(n/m, P)) competitive, for n tasks and a ratio P of the longest to the
    shortest time (Leonardi and Raz, 1997).
    Weakness: long tasks can starve; every stop costs its save and restore; wrong estimates mislead it.
    Cost: O(log n) per task and stop, if running tasks compute at a constant rate in their best mode: their ends are
    then constant, and a list sorted by ends gives the task with most time left.  Otherwise one pass over the running
    tasks for a head that does not fit.

    margin: a running task is preempted only by a task that is shorter by more than these seconds (such as the cost of a
        stop).
    """

    queueing = "shortest remaining time first"

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "block", margin: Seconds = 0.0):
        super().__init__(_time_left, placement, discipline)
        self.margin = margin
        self._worst = math.inf  # nothing is noted of it while ends are
        self._steady = True
        self._starts = 0
        self._ends = RunningList()  # running tasks by -end: the latest end first

    def rank(self, task: Task, view: View) -> float:
        """Remaining fraction of a running task × its estimate (s) in its fastest mode."""
        return part_left(task, view) * task.shortest_estimate

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        best = len(task.modes) == 1 or task.estimate_in(placement.mode) <= task.shortest_estimate
        if self._steady and best and view.changes.steady:
            self._starts += 1
            task.memo = self._starts
            self._ends.push(-(view.now + task.shortest_remaining), task)
            return
        if self._steady:
            self._steady = False
            self._ends.clear()
        super().starting(task, placement, view)

    def victims(self, key: float, view: View) -> Iterable[Task]:
        if not (self._steady and view.changes.steady):
            return super().victims(key, view)
        return self._ends.until(lambda end: not self.yields(-end - view.now, key))

    def yields(self, running: float, waiting: float) -> bool:
        return running > waiting * (1 + ROUNDING) + self.margin


class Las(PreemptiveList):
    """Least attained service first, in a few queues between thresholds of service.

    Decides when, and which task is preempted.  The service a task has attained is GPUs × time (cores × time in CPU
    modes).  Tasks between the same two thresholds form a queue in the order of arrival; a task that crosses a threshold
    moves to the next queue, and can be preempted by all tasks that then precede it.  It needs no estimates.
    Reference: Nuyens and Wierman, The Foreground-Background Queue: A Survey (2008); discretized and for gangs: Gu et
    al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019).  With heavy-tailed sizes (decreasing
    hazard rate) and free preemption, least attained service minimizes the mean response in M/G/1 among orders that do
    not use sizes (Righter and Shanthikumar, 1989).
    Weakness: long tasks starve while load is high; with equal sizes it is worse than fcfs.  Cost: O(log n) per task,
    stop and crossed threshold; one timer per crossed threshold while tasks wait.

    thresholds: GPU-seconds (core-seconds) at which a task moves to the next queue; default: one at an hour.
    """

    queueing = "least attained service"

    def __init__(
        self,
        thresholds: Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(min_length=1)] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
    ):
        super().__init__(self._key, placement, discipline)
        self.thresholds = sorted(thresholds or [3600.0])
        self.order_of_levels = list(range(len(self.thresholds) + 1))  # the rank of each queue; the least goes first
        self._level: dict[int, int] = {}  # queues of tasks that have crossed a threshold, by row
        self._starts = 0
        self._running = [RunningList() for _ in self.order_of_levels]  # by level: running tasks, latest arrival first
        self._crossings = RunningList()  # when running tasks reach their next thresholds

    def _key(self, task: Task) -> tuple[int, float, int]:
        return self.order_of_levels[self._level.get(task.index, 0)], task.arrival, task.index

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        self._starts += 1
        task.memo = self._starts
        level = self._level.get(task.index, 0)
        self._running[level].push((-task.arrival, -task.index), task)
        self._foresee_crossing(task, level, placement.mode.width, view)

    def _foresee_crossing(self, task: Task, level: int, width: float, view: View) -> None:
        if level < len(self.thresholds):
            threshold = self.thresholds[level]
            missing = max(threshold - view.attained(task), ROUNDING * threshold)
            self._crossings.push(view.now + missing / width, task)

    def finished(self, task: Task) -> None:
        self._level.pop(task.index, None)

    gone = finished

    def victims(self, key: tuple[int, float, int], view: View) -> Iterator[Task]:
        own = -key[1], -key[2]
        for level in sorted(range(len(self._running)), key=self.order_of_levels.__getitem__, reverse=True):
            rank, running = self.order_of_levels[level], self._running[level]
            if rank < key[0]:
                return
            for task in running.until(lambda arrival: arrival >= own) if rank == key[0] else running.all():
                if self._level.get(task.index, 0) == level:
                    yield task

    def beginning(self, view: View) -> None:
        """At the start of a round, move tasks that reached a threshold to the next queue."""
        now = view.now
        while (entry := self._crossings.head()) is not None and entry[0] <= now:
            task = entry[1]
            self._crossings.pop()
            before = self._level.get(task.index, 0)
            if (level := max(before, bisect_right(self.thresholds, view.attained(task) * (1 + ROUNDING)))) > before:
                self._level[task.index] = level
                self._running[level].push((-task.arrival, -task.index), task)
                self.ranks_grew()
            self._foresee_crossing(task, level, place_of(task, view).mode.width, view)

    def until(self, view: View) -> Wait | None:
        if not view.num_waiting(own=True):
            return None
        entry, now = self._crossings.head(), view.now
        if entry is None:
            return Wait()
        return Wait(entry[0] if entry[0] > now else math.nextafter(now, math.inf))


class Tiresias(Las):
    """Tiresias with known sizes: queues of attained service, ranked by Gittins index.

    Decides when, and which task is preempted: as `las`, but the order of queues follows from the distribution of GPU
    time.  The index of a queue is the maximum, over all later thresholds, of p / s: p is the probability that a task of
    the queue ends before the threshold, and s its expected service until then.  The largest index is served first.
    Reference: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019), its discretized
    2D-Gittins index; Gittins, Bandit Processes and Dynamic Allocation Indices (1979): in the limit of many thresholds,
    the order has the optimal mean response in M/G/1 among orders that know only the distribution.  The distribution is
    that of the estimates of the whole workload (GPUs × estimated time in the fastest mode); estimates of single tasks
    are not used.  If the hazard rate decreases, this is `las`.  Weakness: a distribution that changes over time is not
    followed.  Cost: O(log n) per task, stop and crossed threshold.
    """

    queueing = ""

    def prepare(self, problem: PlanProblem) -> None:
        sizes = _services(problem)
        if not len(sizes):
            return
        edges = np.array([0.0, *self.thresholds, np.inf])
        indexes = [gittins(sizes, edges, level) for level in range(len(edges) - 1)]
        by_index = sorted(range(len(indexes)), key=lambda level: (-indexes[level], level))
        for rank, level in enumerate(by_index):
            self.order_of_levels[level] = rank


def gittins(sizes: np.ndarray, edges: np.ndarray, level: int) -> float:
    """Gittins index of tasks that have attained the threshold `edges[level]`.

    It is the maximum over later edges of P(task ends before the edge) / expected service until then.  sizes: service of
    tasks, a sample.
    """
    attained = edges[level]
    remaining = sizes[sizes > attained] - attained
    if not len(remaining):
        return 0.0
    coming = edges[level + 1 :] - attained
    return max(float((remaining <= until).mean() / np.minimum(remaining, until).mean()) for until in coming)


def _services(problem: PlanProblem) -> np.ndarray:
    tasks = problem.tasks
    times = tasks.computing(tasks.time)
    best, fastest = times.min(axis=1), times.argmin(axis=1).tolist()
    width = [tasks.shapes[shape].modes[mode].width for shape, mode in zip(tasks.shape, fastest, strict=True)]
    return (best * width)[np.isfinite(best)]
