"""Orders of a queue in which a head that does not fit may stop running tasks."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import (
    WAIT_FOR_READY,
    Counter,
    Decision,
    Discipline,
    ListScheduler,
    OrderKey,
    PlacementRule,
    PlanProblem,
    Reject,
    Start,
    Stop,
    TaskQueue,
    View,
    Wait,
    claims_of,
)
from hetsim_policies.common import part_left, place_of
from hetsim_policies.orders import edf

Head = tuple[Task, TaskQueue]


class PreemptiveList(ListScheduler):
    """A `ListScheduler` whose heads may stop lower-ranked running tasks.

    The least urgent tasks are stopped first, and only as many as the head needs; none, if stopping all would not
    suffice.  Stopped tasks wait again, with their work kept.  Tasks that are not preemptible continue.  Cost: for a
    head that does not fit but might displace a running task, one pass over the running tasks until resources become
    free.
    """

    def __init__(
        self,
        order: OrderKey,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = True,
    ):
        super().__init__(order, placement, discipline)
        self.preemptive = preemptive
        # An instant, and rows of tasks that did not start then although room had been made for them
        self._declined: tuple[float, dict[int, None]] = (-1.0, {})
        # Rows of tasks for which no room can be made, while releases and others' starts equal `_since`
        self._in_vain: dict[int, None] = {}
        self._since = -1, -1
        self._own_starts = 0  # starts under "block": they rank before all that waits, and are no victims of theirs
        # Upper bound of the ranks of running tasks (None: no start yet); these ranks never grow
        self._worst: Any = None

    def rank(self, task: Task, view: View) -> Any:
        """Return a running task's rank; call `ranks_grew` when ranks change during a run."""
        return self.order(task)

    def yields(self, running: Any, waiting: Any) -> bool:
        """Return True if a task of rank `waiting` preempts rank `running`."""
        return running > waiting

    def ranks_grew(self) -> None:
        """Record that running tasks rank lower now, so that preemption is tried again."""
        self._in_vain.clear()

    def beginning(self, view: View) -> None:
        """Hook at the beginning of a round."""

    def until(self, view: View) -> Wait | None:
        """Time of the next round if nothing changes; None if no round is needed."""
        return None

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        key = self.order(task)
        if self._worst is None or key > self._worst:
            self._worst = key

    def victims(self, key: Any, view: View) -> Iterable[Task]:
        """Return running tasks that a rank may preempt, least urgent first."""
        if self._worst is None or not self.yields(self._worst, key):
            return ()  # spares most heads the pass over all running tasks
        ranked = [(self.rank(other, view), other) for other in view.running("start", own=True)]
        ranked.sort(key=lambda entry: entry[0], reverse=True)
        self._worst = ranked[0][0] if ranked else None
        return [other for rank, other in ranked if self.yields(rank, key)]

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        if self.preemptive:
            raise refusal("a preemptive scheduler cannot serve requests: batches cannot be preempted")
        super().serve(counters, alone)

    def schedule(self, view: View) -> Iterator[Decision]:
        return self._preempting(view) if self.preemptive else super().schedule(view)

    def _preempting(self, view: View) -> Iterator[Decision]:
        self.beginning(view)
        if not (heads := _heads_of(self.queues())):
            yield WAIT_FOR_READY
        blocking = self.discipline == "block"
        while heads:
            task, queue = heads[0]
            if len(heads) > 1:
                task, queue = min(heads, key=lambda head: (self.order(head[0]), head[0].arrival, head[0].index))
            if task.index in self._in_vain and self._since == self._known(view):
                placement = None
            elif (placement := self.place(task, view)) is not None:
                queue.pop()
            elif (room := self._room_for(task, view)) is not None:
                for victim in room[1]:
                    yield Stop(victim)
                if (placement := self.place(task, view)) is None:
                    # The rule declines, or the task's data find no room: not again at this instant, or it would go on.
                    self._declined[1][task.index] = None
            queues = [other for _, other in heads]
            if placement is not None:
                self.starting(task, placement, view)
                self._own_starts += blocking
                yield Start(task, placement)
            elif len(heads) == 1:
                break
            elif not blocking or view.over_limit(task):
                queues.remove(queue)  # held back by a limit, it blocks its own partition alone, even on shared nodes
            else:
                closed = claims_of(task)
                queues = [other for head, other in _heads_of(queues) if not claims_of(head) & closed]
            heads = _heads_of(queues)
        if (wait := self.until(view)) is not None:
            yield wait

    def _known(self, view: View) -> tuple[int, int]:
        """Return a state of the engine; preemption that failed in it is not tried again."""
        changes = view.changes
        return changes.releases, changes.launches - self._own_starts

    def _room_for(self, task: Task, view: View) -> tuple[Placement, list[Task]] | None:
        """Return a task's placement and the lower-ranked tasks to stop; None: impossible."""
        # Without a rule and data that have to find room, a task of one mode that found no place fits nowhere.
        plain = self.placement is None and not view.items
        if not (plain and len(task.modes) == 1) and any(view.fits(mode) for mode in task.modes):
            return None  # the placement rule declines what fits, or only the task's data find no room
        if self._declined[0] != view.now:
            self._declined = (view.now, {})
        if task.index in self._declined[1]:
            return None
        if (room := view.make_room(task, self.victims(self.order(task), view))) is None and plain:
            state = self._known(view)
            if self._since != state:
                self._since = state
                self._in_vain.clear()
            self._in_vain[task.index] = None
        return room


def _heads_of(queues: Iterable[TaskQueue]) -> list[Head]:
    return [(head, queue) for queue in queues if (head := queue.head()) is not None]


# Running tasks by a constant key.  An entry is void unless its start number is still that of the task (`task.memo`, set
# by the policy); void entries are removed when they may be half of all.


class RunningList:
    """Running tasks sorted by key.

    Cost: a binary search per insertion; insertions and removals at the front move the entries behind.
    """

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Task]] = []  # key, number of the start, task
        self._limit = 64  # maximum number of entries before void ones are removed

    def push(self, key: Any, task: Task) -> None:
        """Add a task before it starts.

        `task.memo` must be the number of this start: it distinguishes the entry from those of earlier starts.
        """
        entries = self._entries
        while entries:  # where those that end first come last, nothing else has to be removed
            _, start, last = entries[-1]
            if last.memo == start and last.state == RUNNING:
                break
            entries.pop()
        insort(entries, (key, task.memo, task))
        if len(entries) > self._limit:
            self._entries = [e for e in entries if e[2] is task or (e[2].memo == e[1] and e[2].state == RUNNING)]
            self._limit = max(64, 2 * len(self._entries))

    def clear(self) -> None:
        self._entries.clear()

    def head(self) -> tuple[Any, Task] | None:
        """Return the lowest key and its task; None if no task runs."""
        entries = self._entries
        while entries:
            key, start, task = entries[0]
            if task.memo == start and task.state == RUNNING:
                return key, task
            del entries[0]
        return None

    def pop(self) -> None:
        del self._entries[0]

    def until(self, reached: Callable[[Any], bool]) -> Iterator[Task]:
        """Yield tasks before the first one whose key satisfies `reached`."""
        entries = self._entries
        if not entries or reached(entries[0][0]):
            return iter(())
        return self._first(bisect_left(entries, True, lo=1, key=lambda entry: reached(entry[0])))

    def all(self) -> Iterator[Task]:
        return self._first(len(self._entries))

    def _first(self, count: int) -> Iterator[Task]:
        for _, start, task in self._entries[:count]:
            if task.memo == start and task.state == RUNNING:
                yield task


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
        """Remaining fraction of a running task times its estimate on its best mode."""
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
        """Move tasks that reached a threshold to the next queue."""
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
