"""Backfilling: FCFS in which tasks behind a blocked head may start before it."""

import math
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator
from typing import Any

from hetsim.model.cluster import Partition
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.policy.contract import PlacementRule, Shadow, View
from hetsim.policy.decisions import WAIT_FOR_FIT, WAIT_FOR_READY, Decision, Pause, Start, as_number
from hetsim.policy.lists import ListScheduler
from hetsim.policy.queues import EVERYWHERE, TaskQueue, claims_of, partition_of

Demand = Any  # the shape of a task, with its allowed modes if admission restricts them


def demand_of(task: Task) -> Demand:
    return task.shape if task.allowed is None else (task.shape, task.allowed)


def by_arrival(task: Task) -> tuple[float, int]:
    return task.arrival, task.index


def fits_nowhere(task: Task, view: View) -> bool:
    return not any(view.fits(task.modes[position]) for position in task.modes_by_speed())


def demand_fits_nowhere(demand: Demand, view: View) -> bool:
    """Return True if no task with this demand fits anywhere now."""
    shape, allowed = demand if isinstance(demand, tuple) else (demand, None)
    modes = [shape.modes[position] for position in allowed] if allowed else shape.modes
    return not any(map(view.fits, modes))


class QueueWindow:
    """The first waiting tasks by arrival, at most `size` per partition.

    Further tasks wait in a queue behind the window.  Tasks without a partition count as one partition.
    """

    def __init__(self, size: float):
        self.size = size
        self.tasks: list[Task] = []
        self.demands: dict[Demand, int] = {}  # number of tasks in the window by demand
        self.changed = 0  # tasks were inserted at or after this position since the value was last set
        self._count: dict[Partition | None, int] = {}  # number of tasks in the window by partition
        self._behind: dict[Partition | None, TaskQueue] = {}

    def push(self, task: Task) -> None:
        partition = task.shape.modes[0].partition
        if self._count.get(partition, 0) >= self.size:
            last = next(other for other in reversed(self.tasks) if partition_of(other) is partition)
            if by_arrival(task) > by_arrival(last):
                self._behind.setdefault(partition, TaskQueue()).push(task.arrival, task)
                return
        self._put_in(task, partition)

    def _put_in(self, task: Task, partition: Partition | None) -> None:
        tasks = self.tasks
        if not tasks or task.arrival > tasks[-1].arrival or by_arrival(task) > by_arrival(tasks[-1]):
            tasks.append(task)
        else:  # a task that was stopped, deferred or outside the window may belong before others
            insort(tasks, task, key=by_arrival)
            self.changed = min(self.changed, bisect_left(tasks, by_arrival(task), key=by_arrival))
        demand = task.shape if task.allowed is None else (task.shape, task.allowed)
        demands, count = self.demands, self._count
        demands[demand] = demands[demand] + 1 if demand in demands else 1
        count[partition] = count[partition] + 1 if partition in count else 1

    def take(self, position: int) -> Task:
        """Remove and return a task; the next one of its partition enters the window."""
        task = self.tasks.pop(position)
        partition = task.shape.modes[0].partition
        demand = task.shape if task.allowed is None else (task.shape, task.allowed)
        if self.demands[demand] > 1:
            self.demands[demand] -= 1
        else:
            del self.demands[demand]
        self._count[partition] -= 1
        if partition in self._behind:
            behind = self._behind[partition]
            if (following := behind.head()) is not None:
                behind.pop()
                self._put_in(following, partition)
        return task

    def discard(self, task: Task) -> None:
        if task in self.tasks:
            position = self.tasks.index(task)
            self.take(position)
            self.changed = min(self.changed, position)


class Backfilling(ListScheduler):
    """FCFS in which a window of `depth` tasks behind the head may start before it.

    In a cluster with partitions, the window has `depth` tasks of each partition.  A subclass decides in `backfill`
    which of the tasks that fit now (`fitting`) may start, from the reserved starts of the heads (`reservations`).

    Cost: a round checks only tasks whose demands may fit since the last release, each task once until the next release;
    the arrival of a task that fits nowhere causes no round.
    """

    def __init__(self, placement: PlacementRule | None, depth: Any):
        super().__init__(placement=placement)
        behind = math.inf if depth is None else as_number(depth, int)
        if behind is None or behind < 0:
            raise ValueError(f"depth must be a whole number of at least 0, or None for all tasks; got {depth!r}")
        self.window = QueueWindow(behind + 1)
        self._notes_starts = type(self).starting is not Backfilling.starting
        # head with which all tasks compete, and `View.releases` when it fitted nowhere
        self._stuck: tuple[Task, int] | None = None
        self._heads: list[Task] = []
        self._releases = -1
        self._full: dict[Demand, None] = {}  # demands that fit nowhere since the last release
        self._shadows: dict[int, Shadow] = {}  # when each head (by row) could start, as computed in this round
        self._due: dict[int, float] = {}  # estimated start times of heads, by row
        # minimum of `_due`: after it a running task has overrun, and more may be free next to the head
        self._soonest = math.inf

    def ready(self, task: Task) -> None:
        self.window.push(task)

    def gone(self, task: Task) -> None:
        self.window.discard(task)

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        """Hook: called before a task is started in order, not before one is backfilled."""

    def backfill(self, heads: list[Task], view: View) -> Iterator[Decision]:
        """Yield starts of tasks that may pass the heads; a subclass defines which."""
        return iter(())

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        heads = self._same_head(view) or (yield from self.start_heads(view))
        if not heads:
            yield WAIT_FOR_READY
            return
        yield from self.backfill(heads, view)
        yield self._until_something_fits(view)  # a new task may pass the heads

    def _until_something_fits(self, view: View) -> Pause:
        pause = self._pause or super()._until_something_fits(view)
        if pause is WAIT_FOR_FIT and self._soonest < math.inf:
            return Pause("fit", math.inf, self._soonest)
        return pause

    def _same_head(self, view: View) -> list[Task] | None:
        tasks = self.window.tasks
        if self._stuck is not None and tasks and self._stuck == (tasks[0], view.changes.releases):
            return [tasks[0]]
        self._stuck = None
        return None

    def start_heads(self, view: View) -> Generator[Decision, None, list[Task]]:
        """Start tasks in order; return the heads: the tasks that do not fit now.

        A task behind a head starts only if it does not compete with this head for resources (`claims_of`); if such a
        task does not fit, it becomes a head, too.  So heads do not compete with each other.
        """
        window, rule = self.window, self.placement
        tasks = window.tasks
        heads: list[Task] = []
        closed = position = 0
        while position < len(tasks):
            task = tasks[position]
            if closed and claims_of(task) & closed:
                position += 1
                continue
            placement = view.fit(task) if rule is None else rule(task, view)
            if placement is not None:
                window.take(position)
                window.changed = 0
                if self._notes_starts:
                    self.starting(task, placement, view)
                yield Start(task, placement)
                continue
            heads.append(task)
            closed |= claims_of(task)
            if closed == EVERYWHERE:
                break
            position += 1
        # Not with a rule, whose answer may change, nor with data items, whose locations may change.
        if closed == EVERYWHERE and len(heads) == 1 and self.placement is None and not view.items:
            self._stuck = heads[0], view.changes.releases
        return heads

    def _look_anew(self, heads: list[Task], view: View) -> None:
        window = self.window
        self._shadows.clear()
        if view.changes.releases != self._releases or heads != self._heads:
            self._releases, self._heads = view.changes.releases, heads
            window.changed = 0
            self._due.clear()
            self._soonest = math.inf
            self._full.clear()
            if self._stuck is not None:
                self._full[demand_of(heads[0])] = None
        elif view.now > self._soonest:
            window.changed = 0

    def fitting(self, heads: list[Task], view: View) -> Iterator[tuple[Task, Placement]]:
        """Yield the tasks behind the heads that could start now, each with a placement.

        The caller starts each task before it requests the next one.  A task that it does not start is yielded again
        only after the next release.
        """
        self._look_anew(heads, view)
        window, full, rule = self.window, self._full, self.placement
        tasks, demands = window.tasks, window.demands
        plain = rule is None and not view.items  # then `fit` finds a place if there is one
        here = window.changed or 1
        hopeless = demands.keys() <= full.keys()
        while not hopeless:
            for position in range(here, len(tasks)):
                task = tasks[position]
                demand = task.shape if task.allowed is None else (task.shape, task.allowed)
                if demand not in full and task not in heads:
                    break
            else:
                break
            placement = view.fit(task) if rule is None else rule(task, view)
            if placement is not None:
                try:
                    yield task, placement
                finally:  # a cycle of the scheduler may end with this start (`policy.decisions.max_starts`)
                    started = task.state != WAITING
                    if started and task in tasks[position : position + 1]:  # not if admission has dropped it
                        window.take(position)
                if started:
                    here = position
                    continue
            elif plain or fits_nowhere(task, view):
                full[demand] = None
                hopeless = demands.keys() <= full.keys()
            here = position + 1
        window.changed = len(tasks)  # tasks pushed later have not been tried

    def reservations(self, heads: list[Task], task: Task, view: View) -> list[Shadow]:
        """Return the reserved starts of the heads that compete with a task for resources.

        heads: tasks that wait because they do not fit now.  All calls in a round return the same `Shadow` objects; a
        task for which `Shadow.survives` returned True counts as started in that object.
        """
        reserved = []
        for head in heads if len(heads) == 1 else [head for head in heads if claims_of(head) & claims_of(task)]:
            if head.index not in self._shadows:
                shadow = self._shadows[head.index] = view.earliest_fit(head)
                self._due[head.index] = shadow.time
                self._soonest = min(self._due.values())
            reserved.append(self._shadows[head.index])
        return reserved

    def beside(self, heads: list[Task], task: Task, placement: Placement, view: View) -> Placement | None:
        """Return a place where the task delays no head, or None.

        The place is the given placement, or one on a node that no head has reserved.  If an earlier head allows a
        placement and a later head does not, the earlier reservation counts the task as started for the rest of the
        round.  This only makes that reservation stricter: no head is delayed.
        """
        ahead = self.reservations(heads, task, view)
        if _delays_none(ahead, task, placement):
            return placement
        if self.placement is not None or any(shadow.anywhere or shadow.placement is None for shadow in ahead):
            return None
        reserved = {device.node for shadow in ahead if shadow.placement for device in shadow.placement.devices}
        for position in task.modes_by_speed():
            mode = task.modes[position]
            for node in view.nodes.fitting(mode):
                place = None if node in reserved else view.first(mode, task, node=node)
                if place is not None and _delays_none(ahead, task, place):
                    return place
        return None


def _delays_none(ahead: list[Shadow], task: Task, placement: Placement) -> bool:
    for shadow in ahead:  # noqa: SIM110 - faster than all(...)
        if not shadow.survives(task, placement):
            return False
    return True
