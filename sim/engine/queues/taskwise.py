"""A queue with an object for each request: for runs in which something is decided about single requests.

So it is with admission, patience, priorities, data and caches; it answers as `Sliced` does.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.queues.cache import cache_of
from sim.engine.queues.queue import Queue
from sim.model.randomness import RandomTree
from sim.model.service import Service
from sim.model.tasks import Task, Tasks
from sim.policy.contract import Requests

BLOCK = 8192
"""Requests that have left keep their places until there are more than this many, and more than waiting ones."""


class Taskwise(Queue):
    """Requests as objects, in order of arrival."""

    def __init__(
        self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, links: Links,
        bell: dict[Any, bool],
    ):  # fmt: skip
        super().__init__(number, service, tasks, clock, random, links, bell)
        if service.cache is not None:
            self.cache = cache_of(service.cache.evict, service.cache.size)
        self._waiting: list[Task] = []
        self._head = 0
        self._left: dict[int, None] = {}
        """Rows of entries that have left although they were not the first."""
        self.joined: list[float] = []
        self.to_come = self.total

    def input_of(self, task: Task) -> int:
        """What the result cache knows the request by."""
        return int(self.table.extra["input"][task.index])

    def keep_results(self, tasks: Sequence[Task]) -> None:
        """These have been served: their results go into the cache."""
        assert self.cache is not None
        for task in tasks:
            self.cache.add(self.input_of(task))

    def push(self, task: Task) -> None:
        """A request waits (again)."""
        waiting = self._tidy() if self._left else self._waiting
        if task._history is None:
            self.to_come -= 1
            self.joined.append(self.clock._now)
        if len(waiting) > self._head and task.index < waiting[-1].index:
            self._tidy()
            self.ring()
            insort(self._waiting, task, key=lambda other: other.index)
        else:
            waiting.append(task)

    def never(self) -> None:
        """A request that had been to come was refused before it could wait."""
        self.to_come -= 1
        if self.wanted and self.over:
            self.ring()
            self.clock.round_due = True

    def remove(self, task: Task) -> list[Task]:
        """A request has been taken or has gone."""
        waiting, head = self._waiting, self._head
        if head < len(waiting) and waiting[head] is task:
            self._head = head + 1
            if self._head > BLOCK and 2 * self._head > len(waiting):
                del waiting[: self._head]
                self._head = 0
        else:
            self._left[task.index] = None
        return []

    def _tidy(self) -> list[Task]:
        """The waiting requests without gaps."""
        if self._left:
            left = self._left
            self._waiting = [task for task in self._waiting[self._head :] if task.index not in left]
            self._head = 0
            self._left = {}
        elif self._head:
            del self._waiting[: self._head]
            self._head = 0
        return self._waiting

    def __len__(self) -> int:
        return len(self._waiting) - self._head - len(self._left)

    @property
    def over(self) -> bool:
        return self.to_come == 0

    @property
    def arrived(self) -> int:
        return len(self.joined)

    def _at(self, position: int) -> Task:
        return (self._tidy() if self._left else self._waiting)[self._head + position]

    def arrival(self, position: int) -> float:
        return self._at(position).arrival + self.service.request_delay

    def deadline(self, position: int) -> float:
        return self._at(position).deadline - self.service.response_delay

    def recent(self, seconds: float) -> int:
        return len(self.joined) - bisect_right(self.joined, self.clock._now - seconds)

    def first(self, count: int, size: int | None = None) -> Requests:
        if self._left:
            self._tidy()
        tasks = tuple(self._waiting[self._head : self._head + count])
        return Requests(self, len(tasks), len(tasks) if size is None else size, tasks)

    def tasks(self) -> Sequence[Task]:
        return self._tidy()

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        return Requests(self, len(tasks), len(tasks) if size is None else size, tuple(tasks))

    @property
    def head(self) -> Task:
        return self._at(0)

    @property
    def oldest(self) -> float:
        return self._at(0).arrival
