"""A queue of requests that are rows: the sorted column of arrivals with a head.

Nothing happens when a request arrives, and a batch is a slice.  Requests become objects when they are looked at, or
stopped.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import ARRIVAL, Clock, Timer
from sim.engine.queues.queue import Queue
from sim.model.randomness import RandomTree
from sim.model.service import Service
from sim.model.tasks import Task, Tasks
from sim.policy.request_queue import Requests

BLOCK = 8192
"""Arrivals held as Python numbers at once."""


class Sliced(Queue):
    """The sorted column of arrivals, where the head is, and the requests that came back."""

    def __init__(
        self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, links: Links,
        bell: dict[Any, bool],
    ):  # fmt: skip
        super().__init__(number, service, tasks, clock, random, links, bell)
        rows = service.rows
        all_of_them = len(rows) == len(tasks.arrival)
        times = np.ascontiguousarray(tasks.arrival if all_of_them else tasks.arrival[rows])
        self.times = times + service.request_delay if service.request_delay else times
        self.head_at = 0
        self._front: list[float] = []
        """Arrivals from `_front_at` on, to tell those of the oldest."""
        self._front_at = 0
        self._edge: list[float] = []
        """Arrivals from `_edge_at` on, to tell how many have come by now."""
        self._edge_at = 0
        self._asked_at, self._arrived = -1.0, 0
        self.timer = Timer(self._enough)
        self.back: list[Task] = []
        """Requests of stopped batches, in order of arrival: they wait before all that have not started."""
        self._seen: dict[int, Task] = {}
        """Objects of waiting requests, by row, as far as they were looked at."""

    # How many have come -------------------------------------------------------------------------------------

    @property
    def arrived(self) -> int:
        now = self.clock._now
        if now == self._asked_at:
            return self._arrived
        edge = self._edge
        if not edge or edge[-1] <= now:
            if self._edge_at + len(edge) == self.total:
                self._asked_at, self._arrived = now, self.total
                return self.total
            first = self._edge_at + len(edge)
            if first + BLOCK <= self.total and self.times[first + BLOCK - 1] <= now:  # a long time has passed
                first = int(np.searchsorted(self.times, now, side="right"))
            self._edge_at = first
            self._edge = edge = self.times[first : first + BLOCK].tolist()
        self._asked_at, self._arrived = now, self._edge_at + bisect_right(edge, now)
        return self._arrived

    def __len__(self) -> int:
        return self.arrived - self.head_at + len(self.back)

    @property
    def over(self) -> bool:
        return self.arrived == self.total

    def arrival(self, position: int) -> float:
        if self.back:
            if position < len(self.back):
                return self.back[position].arrival + self.service.request_delay
            position -= len(self.back)
        index = self.head_at + position
        offset = index - self._front_at
        if not 0 <= offset < len(self._front):
            self._front_at = self.head_at
            self._front = self.times[self.head_at : self.head_at + BLOCK].tolist()
            offset = position
            if offset >= len(self._front):
                return float(self.times[index])
        return self._front[offset]

    def deadline(self, position: int) -> float:
        if self.back:
            if position < len(self.back):
                return self.back[position].deadline - self.service.response_delay
            position -= len(self.back)
        return self.deadline_of(int(self.service.rows[self.head_at + position]))

    def recent(self, seconds: float) -> int:
        since = self.clock._now - seconds
        return self.arrived - int(np.searchsorted(self.times, since, side="right"))

    def first(self, count: int, size: int | None = None) -> Requests:
        size = count if size is None else size
        if not self.back:
            return Requests(self, count, size)
        fresh = self._objects(self.head_at, self.head_at + max(0, count - len(self.back)))
        return Requests(self, count, size, (*self.back[:count], *fresh))

    def tasks(self) -> Sequence[Task]:
        raise TypeError("the batching policy does not say per_request, so there are no requests to look at")

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        raise TypeError("the batching policy does not say per_request, so it cannot choose among requests")

    @property
    def head(self) -> Task:
        """The oldest request."""
        return self.back[0] if self.back else self._object(int(self.service.rows[self.head_at]))

    @property
    def oldest(self) -> float:
        """When the oldest request arrived at the front end."""
        return self.back[0].arrival if self.back else float(self.table.arrival[self.service.rows[self.head_at]])

    # The engine's side ----------------------------------------------------------------------------------------

    def end_now(self) -> int:
        """Let no more requests arrive; the number that were still to arrive."""
        arrived = self.arrived
        left, self.total = self.total - arrived, arrived
        self.times = self.times[:arrived]
        self._edge, self._edge_at, self._asked_at = [], arrived, -1.0
        self.clock.cancel(self.timer)
        return left

    def _object(self, row: int) -> Task:
        """A waiting request that is looked at; it stays the same object from then on."""
        task = self._seen.get(row)
        if task is None:
            task = self._seen[row] = self._make(row)
        return task

    def _make(self, row: int) -> Task:
        table = self.table
        times = tuple(table.time[row].tolist())
        estimates = times if table.estimate is table.time else tuple(table.estimate[row].tolist())
        task = Task(row, float(table.arrival[row]), self.service.shape, times, estimates, table)
        task.ready = task.arrival + self.service.request_delay
        return task

    def _objects(self, first: int, stop: int) -> list[Task]:
        return [self._object(row) for row in self.service.rows[first:stop].tolist()]

    @property
    def fresh_count(self) -> int:
        """How many requests wait that have never started."""
        return self.arrived - self.head_at

    def fresh(self) -> list[Task]:
        """The waiting requests that have never started."""
        return self._objects(self.head_at, self.arrived)

    def first_fresh(self) -> Task | None:
        """The oldest of them."""
        return self._object(int(self.service.rows[self.head_at])) if self.fresh_count else None

    def members(self, first: int, count: int) -> tuple[Task, ...]:
        """The requests of a batch that is under way."""
        return tuple(map(self._make, self.service.rows[first : first + count].tolist()))

    def seconds(self, position: int, first: int, count: int, estimated: bool) -> float:
        """Compute seconds of a batch in one mode, without what it costs once."""
        if self.service.alike:
            return count * self.service.per_item[position]
        table = self.table
        column = table.estimate if estimated else table.time
        return math.fsum(column[self.service.rows[first : first + count], position].tolist())

    def take(self, count: int) -> int:
        """Take the oldest off; the position of the first of them in `service.rows`."""
        first = self.head_at
        self.head_at = first + count
        return first

    def seen(self, first: int, count: int) -> tuple[Task, ...] | None:
        """The requests of a batch that starts, if any of them has been looked at."""
        if not self._seen:
            return None
        rows = self.service.rows[first : first + count].tolist()
        if not any(row in self._seen for row in rows):
            return None
        return tuple(self._seen.pop(row) if row in self._seen else self._make(row) for row in rows)

    def push(self, task: Task) -> None:
        """A request waits again."""
        self.ring(True)
        insort(self.back, task, key=lambda other: other.index)

    def never(self) -> None:
        """Nothing: requests of a slice are not refused before they wait."""

    def remove(self, task: Task) -> list[Task]:
        """A request has been taken or has gone; those before it that have objects of their own from now on."""
        self.ring()
        if task in self.back:
            self.back.remove(task)
            return []
        position = int(np.searchsorted(self.service.rows, task.index))
        passed = self._objects(self.head_at, position)
        self.back += passed
        self.head_at = position + 1
        for other in (*passed, task):
            self._seen.pop(other.index, None)
        return passed

    def _enough(self, _: Timer) -> None:
        self.ring()
        self.clock.round_due = True

    def want(self, count: int) -> None:
        self.wanted = count
        if not count:
            self.clock.cancel(self.timer)
            return
        index = min(self.head_at + count, self.total) - 1
        if index >= 0:
            time = float(self.times[index])
            if time > self.clock._now:
                self.clock.again(time, ARRIVAL, self.timer)

    def rows(self, first: int, count: int) -> np.ndarray:
        return self.service.rows[first : first + count]
