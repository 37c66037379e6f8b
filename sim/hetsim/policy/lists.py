"""List scheduling: an order, a placement rule, and a discipline for blocked heads."""

import math
from collections.abc import Generator, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, Literal, get_args

from hetsim.model.cluster import Partition
from hetsim.model.mode import Shape
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.policy.arrival_order import arrival_order
from hetsim.policy.batching import Counter
from hetsim.policy.contract import OrderKey, PlacementRule, Scheduler, View
from hetsim.policy.decisions import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_FIT,
    WAIT_FOR_READY,
    WAIT_FOR_RELEASE,
    Annotate,
    Decision,
    Pause,
    Reject,
    Start,
    Wait,
)
from hetsim.policy.dispatch import Dispatcher
from hetsim.policy.queues import EVERYWHERE, TaskQueue, claims_of, partition_of

Discipline = Literal["block", "skip"]
AnyDiscipline = Literal["block", "skip", "keep", "keep_backfill"]

_EMPTY = TaskQueue()

DECLINED_DEPTH = 64  # tasks of a shape tried in one round after the placement rule declined the first


def _known(discipline: Any) -> Any:
    if discipline not in get_args(AnyDiscipline):
        raise ValueError(f"discipline must be one of {', '.join(get_args(AnyDiscipline))}; got {discipline!r}")
    return discipline


class ListScheduler(Scheduler):
    """Start waiting tasks in the order of a key, placed by a rule.

    order: key of a task, constant while it waits; the lowest key is first, ties by arrival.
    placement: rule that places a task; None: its fastest mode that fits now, on the first devices.
    discipline: whether tasks may pass a head that does not fit: block, skip, keep or keep_backfill.
    drop_expired: a task whose deadline has passed when it becomes the head of its queue expires.

    Disciplines: "block": no task passes the head on any node of its partition; "skip": any task that fits may start;
    "keep": like block, but the head remains the head until it has started, even if a task with a smaller key arrives;
    "keep_backfill": like keep, but tasks that are expected to end before the head's start, as estimated when it became
    head, may pass it in the order of arrival.

    With "block" there is one queue, or one queue per partition; the head with the lowest key is first.  With "skip"
    tasks with equal demands share a shape and a queue; a shape that does not fit is skipped for the rest of the round,
    so no demand is tried twice.

    Cost: O(log n) per task and, with "skip", O(shapes) per round; with "block" O(partitions) per start.
    """

    def __init__(
        self,
        order: OrderKey = arrival_order,
        placement: PlacementRule | None = None,
        discipline: AnyDiscipline = "block",
        drop_expired: bool = False,
    ):
        self.order = order
        self.placement = placement
        self._counts = getattr(placement, "counts_waiting", False)  # depends on the number of waiting tasks
        self.discipline: str = _known(discipline)
        self.drop_expired = self.rejects = drop_expired
        self.queue = TaskQueue()
        # with "block": queues of tasks bound to a partition; all others are in `queue`
        self.of_partition: dict[Partition, TaskQueue] = {}
        # queues by demand: a shape, with its allowed modes if admission restricts them
        self.by_shape: dict[Shape | tuple[Shape, tuple[int, ...]], TaskQueue] = {}
        self.dispatcher: Dispatcher | None = None  # assigns devices to services, if there are services
        self._alone = False
        # demands that fit nowhere since the last release
        self._blocked: dict[Shape | tuple[Shape, tuple[int, ...]], None] = {}
        self._releases = -1
        # tasks held back by a limit of their partition, by row, until the next release
        self._aside: dict[int, Task] = {}
        self._aside_since = -1
        self._pause: Pause | None = None
        # with "keep": chosen head of each partition, which is in no queue, and its expected start
        self._kept: dict[Partition | None, tuple[Task, float]] = {}

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self.dispatcher = Dispatcher(self.order, counters, self.order is arrival_order)
        self._alone = alone

    def ready(self, task: Task) -> None:
        order = self.order
        key = task.arrival if order is arrival_order else order(task)
        if self.discipline != "skip":
            queue = self.queue if task.shape.modes[0].partition is None else self._line(task)
        else:
            demand = task.shape if task.allowed is None else (task.shape, task.allowed)
            by_demand = self.by_shape.get(demand)
            queue = self.by_shape.setdefault(demand, TaskQueue()) if by_demand is None else by_demand
        queue.push(key, task)

    def _line(self, task: Task) -> TaskQueue:
        if (partition := partition_of(task)) is None:
            return self.queue
        if (line := self.of_partition.get(partition)) is None:
            line = self.of_partition[partition] = TaskQueue()
        return line

    def queues(self) -> list[TaskQueue]:
        """Return the queues of waiting tasks; only the head of each may start.

        Discipline "skip": a queue for each demand.  Others: one for each partition, one for tasks without a partition.
        """
        return [self.queue, *self.of_partition.values()] if self.discipline != "skip" else list(self.by_shape.values())

    def schedule(self, view: View) -> Iterator[Decision]:
        return self._schedule_tasks(view) if self.dispatcher is None else self._schedule_all(view, self.dispatcher)

    def _schedule_all(self, view: View, dispatcher: Dispatcher) -> Iterator[Decision]:
        # Requests before tasks: they wait for milliseconds where tasks run for minutes.
        wait = yield from dispatcher.schedule(view)
        if not self._alone:
            for decision in self._schedule_tasks(view):
                if not isinstance(decision, Wait):
                    yield decision
            wait.on = "change"
        yield wait

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if self.discipline == "block":
            return self._in_order(view)
        return self._skipping(view) if _known(self.discipline) == "skip" else self._keeping(view)

    def _in_order(self, view: View) -> Iterator[Decision]:
        closed = 0
        if self._aside:
            self._bring_back(view)
        while (decision := self._next_in_order(view, closed)) is not None:
            if not isinstance(decision, Task):
                yield decision
                continue
            closed |= claims_of(decision)
            if closed == EVERYWHERE:
                break
        if not closed:
            yield WAIT_FOR_READY
        else:
            # Behind a blocked head a new task cannot start, unless it becomes the head or uses other nodes.
            hopeless = closed == EVERYWHERE and self.order is arrival_order and not self._counts
            yield WAIT_FOR_RELEASE if hopeless else self._until_something_fits(view)

    def _until_something_fits(self, view: View) -> Pause:
        # A rule may change its answer over time, and a subclass may also start tasks that do not fit: at any change.
        if self._pause is None:
            plain = self.placement is None and not self.drop_expired and not view.items
            kind = type(self)
            plain = plain and kind.schedule is ListScheduler.schedule and kind.place is ListScheduler.place
            self._pause = WAIT_FOR_FIT if plain else WAIT_FOR_CHANGE
        return self._pause

    def start_in_order(self, view: View, closed: int = 0) -> Generator[Decision, None, Task | None]:
        """Start tasks in order; return the first that does not fit, or None.

        closed: bitmask of the resources (`claims_of`) for which a task that did not fit waits; tasks that need one of
        these are skipped.  Partitions without common resources each have a first task that does not fit (a head):
        repeated calls, with the last head's resources closed, return all heads, then None.  A task that is held back by
        a limit of its partition does not block the tasks behind it, and is tried again after the next release.
        """
        if self._aside:
            self._bring_back(view)
        if closed == EVERYWHERE:
            return None
        while (decision := self._next_in_order(view, closed)) is not None:
            if isinstance(decision, Task):
                return decision
            yield decision
        return None

    def _next_in_order(self, view: View, closed: int) -> Start | Reject | Annotate | Task | None:
        queue = self._first_open(closed) if self.of_partition else self.queue
        if (task := queue.head()) is None:
            return None
        if self.drop_expired and task.deadline <= view.now:
            queue.pop()
            return Reject(task, "its deadline passed while it waited", expired=True)
        rule: Any = self.placement  # what it returns is checked by the engine
        placement = view.fit(task) if rule is None else rule(task, view)
        if placement is not None:
            queue.pop()
            return Start(task, placement)
        return self.set_aside(task, view) if view.over_limit(task) else task

    def _first_open(self, closed: int) -> TaskQueue:
        best = _EMPTY
        first: Any = None
        if not closed:
            best, first = self.queue, self.queue.head_entry()
        for partition, queue in self.of_partition.items():
            if not partition.claims & closed:
                entry = queue.head_entry()
                if entry is not None and (first is None or entry < first):
                    best, first = queue, entry
        return best

    def set_aside(self, task: Task, view: View) -> Annotate:
        """Remove a task until the next release, as a limit of its partition is reached."""
        self.queue.remove(task)
        self._aside_since = view.changes.releases
        self._aside[task.index] = task
        return Annotate(task, "quota")

    def _bring_back(self, view: View) -> None:
        if view.changes.releases != self._aside_since:
            for kept in self._aside.values():
                if kept.state == WAITING:
                    self._line(kept).push(self.order(kept), kept)
            self._aside.clear()

    def behind(self, head: Task, depth: int | None = None) -> list[Task]:
        """Return the first `depth` tasks (None: all) behind a head (discipline "block")."""
        lines = [list(line) if depth is None else line.first(depth + 1) for line in self.queues()]
        tasks = [task for line in lines for task in line if task is not head]
        if self.of_partition:
            tasks.sort(key=lambda task: (self.order(task), task.arrival, task.index))
        return tasks[:depth]

    def _keeping(self, view: View) -> Iterator[Decision]:
        self._bring_back(view)
        every: list[Partition | None] = [None, *self.of_partition]
        lines = dict(zip(every, self.queues(), strict=True))
        closed = 0
        while closed != EVERYWHERE:
            if (partition := self._next_line(lines, closed)) is None:
                break
            line = lines.pop(partition[0])
            head = yield from self._start_kept(partition[0], line, view)
            if head is not None:
                closed |= claims_of(head)
        if not closed:
            yield WAIT_FOR_READY
        elif self.discipline == "keep":
            # The head is chosen: an arrival cannot start on its nodes, but may start on others.
            yield WAIT_FOR_RELEASE if closed == EVERYWHERE and not self._counts else WAIT_FOR_CHANGE
        else:
            yield from self._behind_kept(view)
            yield WAIT_FOR_CHANGE

    def _next_line(self, lines: dict[Partition | None, TaskQueue], closed: int) -> tuple[Partition | None] | None:
        best: tuple[Partition | None] | None = None
        first: Any = None
        for partition, queue in lines.items():
            if (EVERYWHERE if partition is None else partition.claims) & closed:
                continue
            if partition in self._kept:
                return (partition,)
            if (entry := queue.head_entry()) is not None and (first is None or entry < first):
                best, first = (partition,), entry
        return best

    def _start_kept(
        self, partition: Partition | None, line: TaskQueue, view: View
    ) -> Generator[Decision, None, Task | None]:
        kept = self._kept.pop(partition, None)
        while True:
            task = kept[0] if kept is not None and kept[0].state == WAITING else line.head()
            if task is None:
                return None
            chosen = kept is not None and task is kept[0]
            if not chosen:
                kept = None
                line.pop()
            if self.drop_expired and task.deadline <= view.now:
                yield Reject(task, "its deadline passed while it waited", expired=True)
                kept = None
                continue
            if (placement := self.place(task, view)) is not None:
                kept = None
                yield Start(task, placement)
            elif view.over_limit(task):
                kept = None
                yield self.set_aside(task, view)
            else:
                due = kept[1] if kept is not None else view.earliest_fit(task).time
                self._kept[partition] = (task, due)
                return task

    def _behind_kept(self, view: View) -> Iterator[Decision]:
        """Start tasks that should end before the heads' reserved starts ("keep_backfill")."""
        waiting = sorted((task for line in self.queues() for task in line), key=lambda task: (task.arrival, task.index))
        for task in waiting:
            nodes = claims_of(task)
            due = min((due for head, due in self._kept.values() if claims_of(head) & nodes), default=math.inf)
            placement = self.place(task, view)
            if placement is not None and view.now + view.duration(task, placement) < due:
                self._line(task).remove(task)
                yield Start(task, placement)

    def _skipping(self, view: View) -> Iterator[Decision]:
        if view.changes.releases != self._releases:  # capacity was released: blocked demands may fit
            self._releases = view.changes.releases
            self._blocked.clear()
        blocked = self._blocked
        heads = [
            (entry, queue, shape)
            for shape, queue in self.by_shape.items()
            if shape not in blocked and (entry := queue.head_entry()) is not None
        ]
        if not heads and not blocked:
            yield WAIT_FOR_READY
            return
        heapify(heads)
        while heads:
            entry, queue, shape = heads[0]
            task = entry[4]
            late = self.drop_expired and task.deadline <= view.now
            placement = None if late else self.place(task, view)
            if late or placement is not None:
                queue.pop()
                if placement is None:
                    yield Reject(task, "its deadline passed while it waited", expired=True)
                else:
                    yield Start(task, placement)
                if (following := queue.head_entry()) is None:
                    heappop(heads)
                else:
                    heapreplace(heads, (following, queue, shape))
                continue
            heappop(heads)
            if not any(view.fits(task.modes[position]) for position in task.modes_by_speed()):
                blocked[shape] = None  # neither starts nor arrivals free capacity: not again before a release
            elif self.placement is not None:
                yield from self._others(queue, task, view)
        # Blocked demands need a release, but a new task with another demand may fit at once.
        yield self._until_something_fits(view)

    def _others(self, queue: TaskQueue, declined: Task, view: View) -> Iterator[Decision]:
        """Start tasks that the placement rule accepts, behind a head that it declined."""
        for task in queue.first(DECLINED_DEPTH):
            if task is not declined and (placement := self.place(task, view)) is not None:
                yield Start(task, placement)

    def place(self, task: Task, view: View) -> Placement | None:
        return view.fit(task) if self.placement is None else self.placement(task, view)
