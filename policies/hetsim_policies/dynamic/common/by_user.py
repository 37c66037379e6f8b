"""Policies that take turns between users: one queue a user, turns by service."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any

from hetsim.model.cluster import Partition
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Decision,
    Demand,
    Discipline,
    ListScheduler,
    PlacementRule,
    Start,
    TaskQueue,
    View,
    claims_of,
    demand_of,
    fits_nowhere,
    partition_of,
)

Line = tuple[str, Partition | None]
"""An owner, and a partition to which some of its tasks are bound."""


class ByUser(ListScheduler):
    """The first task of the user with the least standing goes next; ties by arrival.

    Under "block" no task passes one that does not fit, on any node of its partition; under "skip" the next user's may.
    A user's tasks go in the order of arrival, those bound to another partition in a line of their own.  Standings are
    asked for when the round begins and when a user's task has started.
    """

    def __init__(
        self,
        weights: dict[str, float] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "skip",
    ):
        super().__init__(placement=placement, discipline=discipline)
        self.weights = weights or {}
        self.of_user: dict[Line, TaskQueue] = {}
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

    def leave(self, task: Task) -> None:
        """A task has ended, or was stopped."""

    def key(self, task: Task) -> Any:
        """The order among a user's tasks."""
        return task.arrival

    def owner(self, task: Task) -> str:
        """The user that must have its turn for the task to go."""
        return task.user

    def ready(self, task: Task) -> None:
        self.leave(task)
        line = self.owner(task), partition_of(task)
        queue = self.of_user.get(line)
        if queue is None:
            queue = self.of_user[line] = TaskQueue()
        queue.push(self.key(task), task)

    def finished(self, task: Task) -> None:
        self.leave(task)

    def gone(self, task: Task) -> None:
        self.leave(task)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if view.changes.releases != self._seen:
            self._seen = view.changes.releases
            self._full.clear()
        heads = [self._entry(line, task) for line, queue in self.of_user.items() if (task := queue.head()) is not None]
        if not heads:
            yield WAIT_FOR_READY
            return
        heapify(heads)
        while heads:
            line, task = heads[0][-2:]
            if line[1] is not None and heads[0] < (again := self._entry(line, task)):
                heapreplace(heads, again)  # another line of the user has moved on
                continue
            placement = None if demand_of(task) in self._full else self.place(task, view)
            if placement is None:
                if fits_nowhere(task, view):
                    self._full[demand_of(task)] = None
                if self.discipline == "block":
                    heads = [entry for entry in heads if not claims_of(entry[-1]) & claims_of(task)]
                    heapify(heads)
                else:
                    heappop(heads)
                continue
            queue = self.of_user[line]
            queue.pop()
            self.starting(task, placement, view)
            yield Start(task, placement)
            following = queue.head()
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, self._entry(line, following))
        yield WAIT_FOR_CHANGE

    def _entry(self, line: Line, task: Task) -> tuple[Any, float, int, Line, Task]:
        return self.standing(line[0]), task.arrival, task.index, line, task
