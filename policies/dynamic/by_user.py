"""Policies that take turns between users: one queue a user, and whose turn it is from what each has received."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any

from policies.dynamic.backfilling import Demand, demand_of, fits_nowhere
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Decision,
    Discipline,
    ListScheduler,
    PlacementRule,
    Start,
    TaskQueue,
    View,
)


class ByUser(ListScheduler):
    """The first task of the user whose standing is least goes next; ties by arrival.

    Under "block" nobody passes a task that does not fit; under "skip" the next user's may.  A user's tasks go in the
    order of arrival.  Standings are asked for when the round begins and when a user's task has started.
    """

    def __init__(
        self,
        weights: dict[str, float] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "skip",
    ):
        super().__init__(placement=placement, discipline=discipline)
        self.weights = weights or {}
        self.of_user: dict[str, TaskQueue] = {}
        self._full: dict[Demand, None] = {}
        """Demands that fit nowhere since the last release."""
        self._seen = -1

    def weight(self, user: str) -> float:
        return self.weights.get(user, 1.0)

    def standing(self, user: str) -> Any:
        """The least goes first."""
        raise NotImplementedError

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        """A task is about to start."""

    def left(self, task: Task) -> None:
        """A task has ended, or was stopped."""

    def key(self, task: Task) -> Any:
        """The order among a user's tasks."""
        return task.arrival

    def ready(self, task: Task) -> None:
        self.left(task)
        queue = self.of_user.get(task.user)
        if queue is None:
            queue = self.of_user[task.user] = TaskQueue()
        queue.push(self.key(task), task)

    def finished(self, task: Task) -> None:
        self.left(task)

    def gone(self, task: Task) -> None:
        self.left(task)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if view.releases != self._seen:
            self._seen = view.releases
            self._full.clear()
        heads = [self._entry(user, task) for user, queue in self.of_user.items() if (task := queue.head()) is not None]
        if not heads:
            yield WAIT_FOR_READY
            return
        heapify(heads)
        while heads:
            user, task = heads[0][-2:]
            placement = None if demand_of(task) in self._full else self.place(task, view)
            if placement is None:
                if fits_nowhere(task, view):
                    self._full[demand_of(task)] = None
                if self.discipline == "block":
                    break
                heappop(heads)
                continue
            queue = self.of_user[user]
            queue.pop()
            self.starting(task, placement, view)
            yield Start(task, placement)
            following = queue.head()
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, self._entry(user, following))
        yield WAIT_FOR_CHANGE

    def _entry(self, user: str, task: Task) -> tuple[Any, float, int, str, Task]:
        return self.standing(user), task.arrival, task.index, user, task
