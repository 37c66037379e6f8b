"""List scheduling: an order, a placement, and what happens when the head does not fit."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Literal

from sim.model.plan import Placement
from sim.model.tasks import Shape, Task
from sim.policy.batching import Counter, Dispatcher
from sim.policy.contract import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    WAIT_FOR_RELEASE,
    Decision,
    OrderKey,
    PlacementRule,
    Reject,
    Scheduler,
    Start,
    View,
    Wait,
)
from sim.policy.queues import TaskQueue

Discipline = Literal["block", "skip"]

DECLINED_DEPTH = 64
"""Tasks of a shape that a placement rule is asked about in one round after it declined the first."""


def arrival_order(task: Task) -> float:
    """First come, first served: the order of arrival.

    Reference: the yardstick of all queueing theory; e.g. Kleinrock, Queueing Systems I (1975).  Nobody starves, and
    among orders blind to sizes its response times vary least.  Weakness: short tasks wait behind long ones (its
    mean wait grows with the square of the sizes' variation), and a wide head leaves devices empty.
    """
    return task.arrival


class ListScheduler(Scheduler):
    """Start waiting tasks in the order of a key, where the placement rule says.

    order: key of a task, constant while it waits; the least goes first, ties by arrival.
    placement: where a task goes; None takes its fastest mode that fits now, on the first devices.
    discipline: "block": nothing passes a head that does not fit; "skip": whatever fits may start.
    drop_expired: reject a task that comes to the head of its queue when its deadline has passed.

    Under "block" there is one queue.  Under "skip" tasks with equal demands share a shape and a queue, merged at
    their heads; a shape that does not fit is dropped for the round, so nothing is tried twice.
    Cost: O(log n) a task, and under "skip" O(shapes) a round.
    """

    def __init__(
        self,
        order: OrderKey = arrival_order,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        drop_expired: bool = False,
    ):
        self.order = order
        self.placement = placement
        self.discipline = discipline
        self.drop_expired = drop_expired
        self.queue = TaskQueue()
        self.by_shape: dict[Shape | tuple[Shape, tuple[int, ...]], TaskQueue] = {}
        """A queue for each demand: a shape, and where admission ties tasks to some of its modes these besides."""
        self.dispatcher: Dispatcher | None = None
        """Where there are services: gives them devices."""
        self._alone = False
        self._blocked: dict[Shape | tuple[Shape, tuple[int, ...]], None] = {}
        """Demands that fit nowhere since the last release."""
        self._releases = -1

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self.dispatcher = Dispatcher(self.order, counters)
        self._alone = alone

    def ready(self, task: Task) -> None:
        if self.discipline == "block":
            self.queue.push(self.order(task), task)
        else:
            demand = task.shape if task.allowed is None else (task.shape, task.allowed)
            queue = self.by_shape.get(demand)
            if queue is None:
                queue = self.by_shape[demand] = TaskQueue()
            queue.push(self.order(task), task)

    def schedule(self, view: View) -> Iterator[Decision]:
        if self.dispatcher is None:
            yield from self._schedule_tasks(view)
            return
        # Requests before tasks: they wait for milliseconds where tasks run for minutes.
        wait = yield from self.dispatcher.schedule(view)
        if not self._alone:
            for decision in self._schedule_tasks(view):
                if not isinstance(decision, Wait):
                    yield decision
            wait.on = "change"
        yield wait

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if self.discipline == "skip":
            yield from self._skipping(view)
            return
        head = yield from self.start_in_order(view)
        if head is None:
            yield WAIT_FOR_READY
        else:
            # Behind a blocked head a newcomer cannot help, unless it can become the head itself.
            yield WAIT_FOR_RELEASE if self.order is arrival_order else WAIT_FOR_CHANGE

    def start_in_order(self, view: View) -> Generator[Decision, None, Task | None]:
        """Start from the head on until one does not fit: returns that task, or None when the queue is empty."""
        queue, rule, drop = self.queue, self.placement, self.drop_expired
        head, pop = queue.head, queue.pop
        while True:
            task = head()
            if task is None:
                return None
            if drop and task.deadline <= view.now:
                pop()
                yield Reject(task, "its deadline passed while it waited")
                continue
            placement = view.fit(task) if rule is None else rule(task, view)
            if placement is None:
                return task
            pop()
            yield Start(task, placement)

    def behind(self, head: Task, depth: int | None = None) -> list[Task]:
        """The waiting tasks behind a head, in order; at most `depth` of them."""
        tasks = list(self.queue) if depth is None else self.queue.first(depth + 1)
        return [task for task in tasks if task is not head]

    def _skipping(self, view: View) -> Iterator[Decision]:
        if view.releases != self._releases:  # capacity has come free: what was blocked may fit
            self._releases = view.releases
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
                    yield Reject(task, "its deadline passed while it waited")
                else:
                    yield Start(task, placement)
                following = queue.head_entry()
                if following is None:
                    heappop(heads)
                else:
                    heapreplace(heads, (following, queue, shape))
                continue
            heappop(heads)
            if not any(view.fits(task.modes[position]) for position in task.modes_by_speed()):
                blocked[shape] = None  # starts free nothing, nor do arrivals: not again before a release
            elif self.placement is not None:
                yield from self._others(queue, task, view)
        # What is blocked needs a release, but a newcomer with other demands may fit at once.
        yield WAIT_FOR_CHANGE

    def _others(self, queue: TaskQueue, declined: Task, view: View) -> Iterator[Decision]:
        """The rule declined a task that would fit: it may judge others of the shape otherwise.

        Only the next few are asked, or a long queue would be walked through in every round.
        """
        for task in queue.first(DECLINED_DEPTH):
            if task is not declined:
                placement = self.place(task, view)
                if placement is not None:
                    queue.remove(task)
                    yield Start(task, placement)

    def place(self, task: Task, view: View) -> Placement | None:
        return view.fit(task) if self.placement is None else self.placement(task, view)

