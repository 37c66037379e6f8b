"""Queues of waiting requests, as batching policies see them (the contract is `sim.policy.batching.RequestQueue`).

A `Sliced` queue is the sorted column of arrivals with a head: nothing happens when a request arrives, and a batch
is a slice.  A `Taskwise` queue holds an object for each request: for runs in which something is decided about single
requests (admission, patience, priorities, data).  Both answer the same in a round.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from oracle.engine.cache import Cache, cache_of
from oracle.engine.clock import ARRIVAL, Clock, Timer
from oracle.engine.links import Links
from sim.model.plan import Placement
from sim.model.randomness import RandomTree
from sim.model.service import Service
from sim.model.tasks import Task, Tasks
from sim.policy.request_queue import BatchTimes, Requests

if TYPE_CHECKING:
    from oracle.engine.simulation import Simulation

BLOCK = 8192
"""Arrivals held as Python numbers at once."""

NOISE_BLOCK = 1024
LEAST_FACTOR = 0.1
"""Noise never makes a stage shorter than this part of its time."""

Alone = Callable[[int, Placement], BatchTimes]


class _Queue:
    """What both kinds have in common: who it is for, noise, the wish to be woken."""

    def __init__(self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, alone: Alone):
        self.number = number
        self.service = service
        self.table = tasks
        self.clock = clock
        self.stages = alone
        self.total = len(service.rows)
        self.bell: dict = {}
        self.wanted = 0
        """Requests from which on the policy is to be asked; 0: it does not wait for arrivals."""
        self.cache: Cache | None = None
        self._random = random.stream("stages", service.name)
        self._factors: list[list[float]] = []

    def want(self, count: int) -> None:
        """As the engine's queues since then: what `Wait.arrivals` asked for."""
        self.wanted = count
        if hasattr(self, "wake_at"):
            if count:
                self.wake_at(count)
            else:
                self.clock.cancel(self.timer)

    def factors(self) -> Sequence[float]:
        """Factors of the upload, compute and download of the next batch."""
        if not self.service.noise:
            return (1.0, 1.0, 1.0)
        if not self._factors:
            drawn = 1.0 + self.service.noise * self._random.standard_normal((NOISE_BLOCK, 3))
            self._factors = np.maximum(drawn, LEAST_FACTOR).tolist()[::-1]
        return self._factors.pop()

    def deadline_of(self, row: int) -> float:
        """By when its batch must end: the response has a way to go from there."""
        column = self.table.deadline
        if column is None:
            return math.inf
        value = float(column[row])
        return math.inf if value != value else value - self.service.response_delay


class Sliced(_Queue):
    """Requests of which nobody looks at a single one: the sorted column of arrivals, and where the head is."""

    def __init__(self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, alone: Alone):
        super().__init__(number, service, tasks, clock, random, alone)
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
        return self.arrived - self.head_at

    @property
    def over(self) -> bool:
        return self.arrived == self.total

    def arrival(self, position: int) -> float:
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
        return self.deadline_of(int(self.service.rows[self.head_at + position]))

    def recent(self, seconds: float) -> int:
        since = self.clock._now - seconds
        return self.arrived - int(np.searchsorted(self.times, since, side="right"))

    def first(self, count: int, size: int | None = None) -> Requests:
        return Requests(self, count, count if size is None else size)

    def tasks(self) -> Sequence[Task]:
        raise TypeError("the batching policy does not say per_request, so there are no requests to look at")

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        raise TypeError("the batching policy does not say per_request, so it cannot choose among requests")

    @property
    def head(self) -> Task:
        """The oldest request as an object that lives for a question only."""
        row = int(self.service.rows[self.head_at])
        table = self.table
        times = tuple(table.time[row].tolist())
        estimates = times if table.estimate is table.time else tuple(table.estimate[row].tolist())
        return Task(row, float(table.arrival[row]), self.service.shape, times, estimates, table)

    # The engine's side ----------------------------------------------------------------------------------------

    def take(self, count: int) -> int:
        """Take the oldest off; the position of the first of them in `service.rows`."""
        first = self.head_at
        self.head_at = first + count
        return first

    def _enough(self, _: Timer) -> None:
        self.clock.round_due = True

    def wake_at(self, count: int) -> None:
        """Fire the timer when so many wait, or the last has come."""
        index = min(self.head_at + count, self.total) - 1
        if index >= 0:
            time = float(self.times[index])
            if time > self.clock._now:
                self.clock.again(time, ARRIVAL, self.timer)

    def rows(self, first: int, count: int) -> np.ndarray:
        return self.service.rows[first : first + count]


class Taskwise(_Queue):
    """Requests as objects, in order of arrival."""

    def __init__(self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, alone: Alone):
        super().__init__(number, service, tasks, clock, random, alone)
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
            insort(self._waiting, task, key=lambda other: other.index)
        else:
            waiting.append(task)

    def never(self) -> None:
        """A request that had been to come was refused before it could wait."""
        self.to_come -= 1

    def remove(self, task: Task) -> None:
        """A request has been taken or has gone."""
        waiting, head = self._waiting, self._head
        if head < len(waiting) and waiting[head] is task:
            self._head = head + 1
            if self._head > BLOCK and 2 * self._head > len(waiting):
                del waiting[: self._head]
                self._head = 0
        else:
            self._left[task.index] = None

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


def make_queues(simulation: Simulation, sliced: bool) -> list[Sliced | Taskwise]:
    """A queue for each service of the run."""
    run = simulation.input
    kind = Sliced if sliced else Taskwise
    queues = []
    for number, service in enumerate(run.services):
        alone = partial(_alone, simulation, service)
        queues.append(kind(number, service, run.tasks, simulation.clock, run.random, alone))
    return queues


def _alone(simulation: Simulation, service: Service, size: int, placement: Placement) -> BatchTimes:
    """Stage times of a batch of so many requests, as far as estimates tell."""
    mode, device, links = placement.mode, placement.devices[0], simulation.links
    up, down = mode.upload.of(size), mode.download.of(size)
    if service.bytes_in:
        up += Links.alone(links.up(device), size * service.bytes_in)
    if service.bytes_out:
        down += Links.alone(links.down(device), size * service.bytes_out)
    return BatchTimes(up, mode.fixed + size * service.per_item[service.shape.position[mode]], down)
