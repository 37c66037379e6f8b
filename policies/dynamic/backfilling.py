"""What the backfilling schedulers have in common: a window on the queue, and time limits."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator
from heapq import heappop, heappush
from typing import Any

from policies.dynamic.occupancy import Occupancy
from policies.dynamic.reservations import Profile, Reservation
from sim.model.cluster import Device, Partition
from sim.model.tasks import Task
from sim.policy import (
    EVERYWHERE,
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Decision,
    Hold,
    ListScheduler,
    PlacementRule,
    PlanProblem,
    Start,
    TaskQueue,
    View,
    nodes_of,
    partition_of,
)

ROUND_COST = 1e-6
"""Seconds that a waiting task with a reservation adds to a round, where estimates are wrong (docs/speed.md)."""

Demand = Any
"""A shape, and where admission ties tasks to some of its modes these besides."""


def demand_of(task: Task) -> Demand:
    return task.shape if task.allowed is None else (task.shape, task.allowed)


def by_arrival(task: Task) -> tuple[float, int]:
    return task.arrival, task.index


class Window:
    """The first waiting tasks in order of arrival, at most `size` of each partition (None: all); the others queue
    behind.  Those bound to none count as one partition."""

    def __init__(self, size: int | None):
        self.size = size
        self.tasks: list[Task] = []
        self.demands: dict[Demand, int] = {}
        """How many tasks of the window have each demand."""
        self.changed = 0
        """From this position on tasks have been put in since it was last set."""
        self._count: dict[Partition | None, int] = {}
        """Tasks of the window by partition."""
        self._behind: dict[Partition | None, TaskQueue] = {}

    def push(self, task: Task) -> None:
        partition = partition_of(task)
        if self.size is not None and self._count.get(partition, 0) >= self.size:
            last = next(other for other in reversed(self.tasks) if partition_of(other) is partition)
            if by_arrival(task) > by_arrival(last):
                self._behind.setdefault(partition, TaskQueue()).push(task.arrival, task)
                return
        self._put_in(task, partition)

    def _put_in(self, task: Task, partition: Partition | None) -> None:
        tasks = self.tasks
        if not tasks or by_arrival(task) > by_arrival(tasks[-1]):
            tasks.append(task)
        else:  # it was stopped, or deferred, or had queued behind others of its partition: it may stand before others
            insort(tasks, task, key=by_arrival)
            self.changed = min(self.changed, bisect_left(tasks, by_arrival(task), key=by_arrival))
        demand = demand_of(task)
        self.demands[demand] = self.demands.get(demand, 0) + 1
        self._count[partition] = self._count.get(partition, 0) + 1

    def take(self, position: int) -> Task:
        """Take a task out; the next of its partition from behind comes in, further back."""
        task = self.tasks.pop(position)
        partition, demand = partition_of(task), demand_of(task)
        left = self.demands[demand] - 1
        if left:
            self.demands[demand] = left
        else:
            del self.demands[demand]
        self._count[partition] -= 1
        behind = self._behind.get(partition)
        following = None if behind is None else behind.head()
        if behind is not None and following is not None:
            behind.pop()
            self._put_in(following, partition)
        return task

    def discard(self, task: Task) -> None:
        """A task has gone, from the window or from behind."""
        if task in self.tasks:
            position = self.tasks.index(task)
            self.take(position)
            self.changed = min(self.changed, position)


class Backfilling(ListScheduler):
    """First come, first served with a window of `depth` tasks behind the head that may pass it.

    Where the cluster has partitions, `depth` of each.
    """

    def __init__(self, placement: PlacementRule | None, depth: int | None):
        super().__init__(placement=placement)
        self.window = Window(None if depth is None else depth + 1)
        self._stuck: tuple[Task, int] | None = None
        """A head behind which nobody can be another, and `View.releases` when it fitted nowhere."""

    def ready(self, task: Task) -> None:
        self.window.push(task)

    def gone(self, task: Task) -> None:
        self.window.discard(task)

    def starting(self, task: Task, end: float) -> None:
        """A task is about to start, and expected to end at a time."""

    def start_heads(self, view: View) -> Generator[Decision, None, list[Task]]:
        """Start in order until somebody, the head, does not fit; behind it only those that may use none of the nodes
        of its partition, until one of these does not fit.  Returns the heads, whose partitions share no nodes."""
        window = self.window
        tasks = window.tasks
        heads: list[Task] = []
        if self._stuck is not None and tasks and self._stuck == (tasks[0], view.releases):
            return [tasks[0]]
        self._stuck = None
        closed = position = 0
        while position < len(tasks) and closed != EVERYWHERE:
            task = tasks[position]
            nodes = nodes_of(task)
            placement = None if nodes & closed else self.place(task, view)
            if placement is not None:
                window.take(position)
                window.changed = 0
                self.starting(task, view.now + view.duration(task, placement))
                yield Start(task, placement)
                continue
            if not nodes & closed:
                heads.append(task)
                closed |= nodes
            position += 1
        # A rule may judge otherwise next time, and data that lie ready elsewhere may make room.
        if closed == EVERYWHERE and len(heads) == 1 and self.placement is None and not view.items:
            self._stuck = heads[0], view.releases
        return heads


class Reserving(Backfilling):
    """Tasks of the window are given reservations in order of arrival, and start when these are due.

    The reservations stand as long as everything goes as expected: then a newcomer is fitted in behind all others.
    When a task ends at another time than expected, or overruns, all are made anew, in the same order.
    """

    def __init__(self, placement: PlacementRule | None, depth: int | None):
        super().__init__(placement, depth)
        self._profile: Profile | None = None
        """None where nobody waits, or nothing is as was expected."""
        self._promised: dict[int, Reservation] = {}
        self._expected: dict[int, float] = {}
        """Expected ends of running tasks, by row; and the same as a heap."""
        self._ends: list[tuple[float, int]] = []
        self._ended: list[int] = []
        self._standing = 0
        """Tasks of the window that were looked at."""
        self._overrun: dict[int, None] = {}
        """Running tasks that have passed their estimates."""

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST if self.window.size is None else 0.0

    def begin(self, view: View) -> None:
        self._occupancy = Occupancy(view)

    def promises(self, task: Task) -> bool:
        """Is this task given a reservation if it cannot start now?"""
        return True

    def order_window(self, view: View) -> None:
        """Before reservations are made anew: put the tasks of the window into another order."""

    def gone(self, task: Task) -> None:
        super().gone(task)
        self._occupancy.ended(task)
        if self._promised.pop(task.index, None) is not None:
            self._profile = None
        if self._expected.pop(task.index, None) is not None:
            self._profile = None

    def finished(self, task: Task) -> None:
        self._ended.append(task.index)
        self._occupancy.ended(task)

    def ready(self, task: Task) -> None:
        super().ready(task)
        self._occupancy.ended(task)
        if self._expected.pop(task.index, None) is not None:  # it was stopped
            self._profile = None

    def device(self, device: Device, up: bool) -> None:
        self._profile = None
        self._occupancy.device(device, up)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        self._compare(view)
        if not self._promised:
            launches = view.launches
            heads = yield from self.start_heads(view)
            if not heads or view.launches != launches:
                self._profile = None  # it does not know of what has just started
            if not heads:
                yield WAIT_FOR_READY
                return
        window = self.window
        if self._profile is None or window.changed < self._standing:
            self._begin_anew(view)
        yield from self._walk(view)
        yield WAIT_FOR_CHANGE

    def starting(self, task: Task, end: float) -> None:
        self._expected[task.index] = end
        heappush(self._ends, (end, task.index))
        self._occupancy.started(task)

    def _compare(self, view: View) -> None:
        """Has everything ended when it was expected to?"""
        now = view.now
        if self._ended and self._profile is not None and self._occupancy.ending:
            self._profile = None
        for row in self._ended:
            if self._expected.pop(row, now) != now:
                self._profile = None
        self._ended.clear()
        ends, expected = self._ends, self._expected
        while ends and (ends[0][0] <= now or expected.get(ends[0][1]) != ends[0][0]):
            end, row = heappop(ends)
            if expected.get(row) == end:
                expected[row] = math.inf
                self._overrun[row] = None
        if self._overrun:  # ends at once, as always since its estimate passed
            self._overrun = {row: None for row in self._overrun if expected.get(row) == math.inf}
            self._profile = None

    def _begin_anew(self, view: View) -> None:
        self._occupancy.update()
        self._profile = Profile(self._occupancy, view)
        self._promised.clear()
        self.window.changed = 0
        self.order_window(view)

    def _walk(self, view: View) -> Iterator[Decision]:
        """Start what is due; find a place for who has none."""
        window, profile = self.window, self._profile
        assert profile is not None
        position = 0
        while position < len(window.tasks):
            task = window.tasks[position]
            found = self._promised.get(task.index)
            if found is None:
                found = profile.find(task, view)
                if found is None:
                    position += 1
                    continue
                due = found.time <= view.now
                if due or self.promises(task):
                    profile.occupy(found)
                    self._promised[task.index] = found
                if not due and view.fit(task) is not None:
                    yield Hold(task, "reservation")
            due = found.time <= view.now
            placement = found.placement(task, view) if due else None
            if due and placement is None:
                # What the profile does not know of (data, links) is in the way: the head takes what there is.
                placement = view.fit(task) if position == 0 else None
                self._profile = None
            if due and placement is not None:
                self._promised.pop(task.index, None)
                window.take(position)
                self.starting(task, found.end)
                yield Start(task, placement)
            else:
                position += 1
        window.changed = self._standing = len(window.tasks)


def fits_nowhere(task: Task, view: View) -> bool:
    return not any(view.fits(task.modes[position]) for position in task.modes_by_speed())


def demand_fits_nowhere(demand: Demand, view: View) -> bool:
    """The same of all tasks with a demand."""
    shape, allowed = demand if isinstance(demand, tuple) else (demand, None)
    modes = [shape.modes[position] for position in allowed] if allowed else shape.modes
    return not any(map(view.fits, modes))
