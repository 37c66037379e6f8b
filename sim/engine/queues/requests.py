"""Queues of waiting requests, as batching policies see them (the contract is `sim.policy.batching.RequestQueue`).

A `Sliced` queue is the sorted column of arrivals with a head: nothing happens when a request arrives, and a batch
is a slice.  Requests become objects when they are looked at, or stopped.  A `Taskwise` queue holds an object for each
request: for runs in which something is decided about single requests (admission, patience, priorities, data).  Both
answer the same in a round.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import ARRIVAL, Clock, Timer
from sim.engine.queues.cache import Cache, cache_of
from sim.model.batch_times import StageTable
from sim.model.plan import Placement
from sim.model.randomness import RandomTree
from sim.model.record import RunInput
from sim.model.service import Service
from sim.model.tasks import Mode, Task, Tasks
from sim.policy.batching import BatchTimes
from sim.policy.contract import Requests

BLOCK = 8192
"""Arrivals held as Python numbers at once."""

NOISE_BLOCK = 1024
LEAST_FACTOR = 0.1
"""Noise never makes a stage shorter than this part of its time."""


class _Queue:
    """What both kinds have in common: who it is for, noise, the wish to be woken."""

    def __init__(
        self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, links: Links,
        bell: dict[Any, bool],
    ):  # fmt: skip
        self.number = number
        self.service = service
        self.table = tasks
        self.clock = clock
        self.links = links
        self.total = len(service.rows)
        self.wanted = 0
        """Requests from which on the policy is to be asked; 0: it does not wait for arrivals."""
        self.bell = bell
        """Queues about which their policies may have to be asked again, of all services."""
        self.cache: Cache | None = None
        self._random = random.stream("stages", service.name)
        self._spread = random.stream("spread", service.name)
        self._factors: list[list[float]] = []

    def ring(self, again: bool = False) -> None:
        """Something has happened here: as many requests wait as were wanted, or (`again`) a batch has ended."""
        self.bell[self] = again or self.bell.get(self, False)

    def want(self, count: int) -> None:
        """Ring, and have the policy asked, when so many wait or the last of the stream has come; 0: do not."""
        self.wanted = count

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """Stage times of a batch of so many requests, as far as estimates tell."""
        service, links = self.service, self.links
        mode, device = placement.mode, placement.devices[0]
        up, down = mode.upload.of(size), mode.download.of(size)
        if service.bytes_in:
            up += Links.alone(links.up(device), size * service.bytes_in)
        if service.bytes_out:
            down += Links.alone(links.down(device), size * service.bytes_out)
        return BatchTimes(up, mode.base(size) + size * service.per_item[service.shape.position[mode]], down)

    def factors(self, mode: Mode, size: int) -> Sequence[float]:
        """Factors of the upload, compute and download of the next batch."""
        if mode.scattered:
            stages = (mode.upload, mode.table, mode.download)
            drawn = zip(stages, self._spread.random(3).tolist(), self._noise(), strict=True)
            return [f * stage.factor(size, u) if isinstance(stage, StageTable) else f for stage, u, f in drawn]
        return self._noise()

    def _noise(self) -> Sequence[float]:
        if not self.service.noise:
            return (1.0, 1.0, 1.0)
        if not self._factors:
            drawn = 1.0 + self.service.noise * self._random.standard_normal((NOISE_BLOCK, 3))
            self._factors = np.maximum(drawn, LEAST_FACTOR).tolist()[::-1]
        return self._factors.pop()

    def class_of(self, position: int) -> str:
        """The class of the request at a position of the service."""
        table = self.table
        row = self.service.rows[position]
        return table.classes[0 if table.class_code is None else table.class_code[row]]

    def deadline_of(self, row: int) -> float:
        """By when its batch must end: the response has a way to go from there."""
        column = self.table.deadline
        if column is None:
            return math.inf
        value = float(column[row])
        return math.inf if value != value else value - self.service.response_delay


class Sliced(_Queue):
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
        """Requests whose batch was stopped, in order of arrival: they wait before all that have not started."""
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
        """Nobody comes any more; how many were to."""
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


class Taskwise(_Queue):
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


def make_queues(run: RunInput, clock: Clock, links: Links, sliced: bool) -> list[Sliced | Taskwise]:
    """A queue for each service of the run."""
    kind = Sliced if sliced else Taskwise
    bell: dict[Any, bool] = {}
    return [
        kind(number, service, run.tasks, clock, run.random, links, bell)
        for number, service in enumerate(run.services)
    ]
