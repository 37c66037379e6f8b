"""The queue of a service: rows of requests; task objects exist only if accessed.

If nothing has to be decided at the arrivals of a service, an arrival causes no event: the waiting requests are a slice
of the sorted column of arrivals, from `head_at` to the last arrived request, and a batch is a part of this slice.
All others wait in a separate list, as objects: requests that return from a stopped batch, and all requests of a service
whose arrivals are events (because admission decides on each, requests wait for data or predecessors, clients send them,
or a cache may answer them).
"""

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from copy import copy
from functools import partial
from operator import index
from struct import pack
from typing import Any, SupportsIndex

import numpy as np

from hetsim.engine.flight.launch import Terms
from hetsim.engine.flight.links import Links
from hetsim.engine.kernel.clock import ARRIVAL, Clock, Draws, Timer
from hetsim.engine.queues.cache import Cache, ClockCache
from hetsim.model.batch_times import StageTable
from hetsim.model.demand import BatchTimes
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.record import RunInput
from hetsim.model.service import Service
from hetsim.model.task import Task
from hetsim.policy.request_queue import Requests

MAX_GONE = 8192  # number of removed rows at the front of a list from which the list is shortened


def sent_late(service: Service, run: RunInput) -> bool:
    """Return True if clients send requests of this service during the run."""
    again = run.calls is not None and bool((run.calls.whose[service.rows] >= 0).any())
    return again or any(np.isin(stream.rows, service.rows).any() for stream in run.closed)


NOISE_BLOCK = 1024
RECENT = 1024  # number of arrival times that are packed together
MIN_FACTOR = 0.1  # minimum factor by which noise multiplies a stage's time


class OneByOne:
    """Arrivals that are reported one by one; some expected ones may never arrive."""

    def __init__(self, total: int):
        self.total = total  # number of requests, including those that are still expected
        # arrival times, the last ones in a list: a single append to an array takes four times as long
        self._earlier = array("d")
        self._recent: list[float] = []

    @property
    def arrived(self) -> int:
        return len(self._earlier) + len(self._recent)

    @property
    def over(self) -> bool:
        return self.arrived == self.total

    def join(self, now: float) -> None:
        self._recent.append(now)
        if len(self._recent) == RECENT:
            self._earlier.frombytes(pack(f"={RECENT}d", *self._recent))
            self._recent.clear()

    def since(self, time: float) -> int:
        """Return the number of requests that arrived after a time."""
        if self._recent and self._recent[0] <= time:
            return len(self._recent) - bisect_right(self._recent, time)
        return self.arrived - bisect_right(self._earlier, time)

    def end_now(self) -> int:
        """End the arrivals; return the number of requests that will not arrive any more."""
        arrived = self.arrived
        requests_left, self.total = self.total - arrived, arrived
        return requests_left


class ArrivalColumn(OneByOne):
    """Arrivals as a sorted column of times, without an event for each."""

    def __init__(self, times: np.ndarray, clock: Clock):
        super().__init__(len(times))
        self.times = times
        self.clock = clock
        self.counted_at, self.counted = -1.0, 0  # number of arrivals at the last count, and the time of that count

    @property
    def arrived(self) -> int:
        now = self.clock._now
        if now != self.counted_at:
            self.counted_at, self.counted = now, int(self.times.searchsorted(now, side="right"))
        return self.counted

    def since(self, time: float) -> int:
        return self.arrived - int(self.times.searchsorted(time, side="right"))

    def end_now(self) -> int:
        requests_left = super().end_now()
        self.times = self.times[: self.total]
        return requests_left


def _factors(noise: float, random: np.random.Generator, count: int) -> np.ndarray:
    return np.maximum(1.0 + noise * random.standard_normal((count, 3)), MIN_FACTOR)


class Queue:
    """Waiting requests of a service in order of arrival (a `RequestQueue`)."""

    def __init__(self, number: int, service: Service, run: RunInput, clock: Clock, links: Links, bell: dict[Any, bool],
                 by_clock: bool):  # fmt: skip
        self.number = number
        self.service = service
        self.table = table = run.tasks
        self.clock = clock
        self.links = links
        self.total = len(service.rows)
        self.delay = service.request_delay
        self.wanted = 0  # number of waiting requests at which the policy is called; 0: never
        self.bell = bell  # for all services: queues whose policies may have to be called again
        self._spread = run.random.stream("spread", service.name)
        self._noise: Any = None
        if service.noise:
            stages = run.random.stream("stages", service.name)
            self._noise = Draws(partial(_factors, service.noise), stages, NOISE_BLOCK)
        self.cache: Cache | None = None
        if service.cache is not None:
            self.cache = (Cache if service.cache.evict == "lru" else ClockCache)(service.cache.size)
        self.column: ArrivalColumn | None = None  # arrivals, where requests come by the clock
        if by_clock:
            every = len(service.rows) == len(table.arrival)
            times = np.ascontiguousarray(table.arrival if every else table.arrival[service.rows])
            self.column = ArrivalColumn(times + self.delay if self.delay else times, clock)
        self.coming: OneByOne = self.column or OneByOne(self.total)
        self.head_at = 0  # position in the column of the first request that waits there
        # requests that wait before those of the column, in order of arrival, from `_first` on
        self._apart: list[Task] = []
        self._first = 0
        # sort key of rows; None: the row; clients of a closed loop send in another order
        self.order = self._came if sent_late(service, run) else None
        predecessors = table.predecessors
        # True if requests become ready in row order: none has predecessors
        self.by_readiness = predecessors is None or not any(predecessors[row] for row in service.rows.tolist())
        self._seen: dict[int, Task] = {}  # objects of requests of the column, by row, as far as they were looked at
        self._one_class: bool | None = None
        self.returned = False  # True if any request has come back from a batch that was stopped
        self.timer = Timer(self._enough)
        self.fleet: Any = None  # the replicas that serve these requests, if they do; each has a queue of its own
        self.holder: Any = None  # the replica of which this is the queue

    def apart_for(self, holder: Any) -> "Queue":
        """Return an empty queue for the requests routed to one replica (`holder`)."""
        queue = copy(self)  # cache and noise are those of the service
        queue.holder, queue.fleet, queue.coming, queue.timer = holder, None, OneByOne(0), Timer(queue._enough)
        queue._apart, queue._first, queue._seen, queue.returned, queue.wanted = [], 0, {}, False, 1
        return queue

    # Which requests wait --------------------------------------------------------------------------------------

    @property
    def _edge(self) -> int:
        return 0 if self.column is None else self.column.arrived

    def __len__(self) -> int:
        apart, column = len(self._apart) - self._first, self.column
        if column is None:
            return apart
        # Read several times at one instant: avoids a call.
        arrived = column.counted if column.counted_at == self.clock._now else column.arrived
        return arrived - self.head_at + apart

    @property
    def uniform(self) -> bool:
        """True if all waiting requests have the same work and class as the oldest one."""
        if self._one_class is None:
            code, rows = self.table.class_code, self.service.rows
            self._one_class = code is None or bool((code[rows] == code[rows[0]]).all())
        return self.service.alike and self._one_class and not self.returned

    @property
    def apart(self) -> bool:
        """True if a request waits outside the array of arrivals that are known in advance."""
        return bool(self._apart)

    @property
    def arrived(self) -> int:
        return self.coming.arrived

    @property
    def over(self) -> bool:
        holder = self.holder
        return self.coming.over if holder is None else holder.draining or holder.fleet.queue.over

    def recent(self, seconds: float) -> int:
        return self.coming.since(self.clock._now - seconds)

    def _row(self, position: int) -> int:
        apart = len(self._apart) - self._first
        if position < apart:
            return self._apart[self._first + position].index
        return self.service.rows.item(self.head_at + position - apart)

    def waiting_rows(self, count: int | None = None) -> list[int]:
        """Return the rows of the oldest `count` requests (None: of all requests)."""
        count = len(self) if count is None else min(count, len(self))
        rows = [task.index for task in self._apart[self._first : self._first + count]]
        return rows + self.service.rows[self.head_at : self.head_at + count - len(rows)].tolist()

    def waits(self, row: int) -> bool:
        return self._place(row) >= 0 or self.head_at <= self._position(row) < self._edge

    def may_wait(self, row: int) -> bool:
        if (column := self.column) is None or self._place(row) >= 0:
            return True
        return self.head_at <= self._position(row) < column.total

    def _position(self, row: int) -> int:
        return int(np.searchsorted(self.service.rows, row)) if self.total < len(self.table) else row

    def _came(self, row: int) -> tuple[float, int]:
        return float(self.table.arrival[row]), row

    def _place(self, row: int) -> int:
        """Return the index of row `row` in the list `_apart`; -1 if it is not there."""
        if self._first < len(self._apart) and self._apart[self._first].index == row:  # most often the oldest
            return self._first
        at = bisect_left(self._apart, self._key(row), self._first, key=self._key_of)
        return at if at < len(self._apart) and self._apart[at].index == row else -1

    def _key(self, row: int) -> Any:
        return row if self.order is None else self.order(row)

    def _key_of(self, task: Task) -> Any:
        return self._key(task.index)

    def arrival(self, position: SupportsIndex) -> float:
        return self.table.arrival.item(self._row(index(position))) + self.delay

    def deadline(self, position: SupportsIndex) -> float:
        if (column := self.table.deadline) is None:
            return math.inf
        value = float(column[self._row(index(position))])
        return math.inf if value != value else value - self.service.response_delay

    @property
    def oldest(self) -> float:
        """Time at which the oldest waiting request reached the service's front end."""
        return self.table.arrival.item(self._row(0))

    # Requests as objects --------------------------------------------------------------------------------------

    @property
    def head(self) -> Task:
        return self.look(1)[0]

    def look(self, count: SupportsIndex | None = None) -> list[Task]:
        """Return the oldest `count` requests, or all, as task objects."""
        count = len(self) if count is None else min(index(count), len(self))
        there = self._apart[self._first : self._first + count]
        return there + self._objects(self.service.rows[self.head_at : self.head_at + count - len(there)].tolist())

    def tasks(self) -> Sequence[Task]:
        return self.look()

    def at(self, row: int) -> Task:
        place = self._place(row)
        return self._objects([row])[0] if place < 0 else self._apart[place]

    def _objects(self, rows: list[int]) -> list[Task]:
        seen = self._seen
        new = [row for row in rows if row not in seen]
        if new:
            seen.update(zip(new, self.made(new), strict=True))
        return [seen[row] for row in rows]

    def made(self, rows: Sequence[int]) -> list[Task]:
        table, shape, delay = self.table, self.service.shape, self.delay
        at = np.asarray(rows)
        times = list(map(tuple, table.time[at].tolist()))
        estimates = times if table.estimate is table.time else list(map(tuple, table.estimate[at].tolist()))
        requests = []
        for row, arrival, time, estimate in zip(at.tolist(), table.arrival[at].tolist(), times, estimates, strict=True):
            task = Task(row, arrival, shape, time, estimate, table)
            task.ready = arrival + delay
            requests.append(task)
        return requests

    def factors(self, mode: Mode, size: int) -> Sequence[float]:
        """Return random factors on a batch's upload, compute and download times."""
        factors: Sequence[float] = (1.0, 1.0, 1.0) if self._noise is None else self._noise()
        if mode.scattered:
            drawn = zip((mode.upload, mode.table, mode.download), self._spread.random(3).tolist(), factors, strict=True)
            return [f * stage.factor(size, u) if isinstance(stage, StageTable) else f for stage, u, f in drawn]
        return factors

    def first(self, count: SupportsIndex, size: SupportsIndex | None = None) -> Requests:
        return Requests(self, index(count), index(count if size is None else size))

    def chosen(self, tasks: Sequence[Task], size: SupportsIndex | None = None) -> Requests:
        return Requests(self, len(tasks), len(tasks) if size is None else index(size), tuple(tasks))

    # The engine's side ----------------------------------------------------------------------------------------

    def ring(self, again: bool = False) -> None:
        """Request a call of the policy; `again`: even if its last answer is still valid."""
        if self.holder is not None:
            self.holder.wake()
        elif self.fleet is None:
            self.bell[self] = again or self.bell.get(self, False)

    def _call(self) -> None:
        self.ring()
        if self.holder is None:
            self.clock.round_due = True

    def join(self, task: Task) -> None:
        """Add a request that has just arrived; for queues whose arrivals are events."""
        self.coming.join(self.clock._now)
        self._insert(task)

    def never(self) -> None:
        """Expect one request fewer to arrive: this request will never wait in the queue."""
        if self.column is None:
            self.coming.total -= 1
        self.came()

    def push(self, task: Task) -> None:
        """Return a request of a stopped batch to the queue."""
        self.returned = True  # from now on requests are no longer alike
        self.ring(True)
        self._insert(task)

    def _insert(self, task: Task) -> None:
        apart, order, row = self._apart, self.order, task.index
        last = apart[-1].index if apart else -1
        if len(apart) == self._first or (last < row if order is None else order(last) < order(row)):
            apart.append(task)
        else:
            insort(apart, task, self._first, key=self._key_of)
            self.ring()

    def remove(self, row: int) -> bool:
        """Remove a request from any position; return False if the request does not wait."""
        if (at := self._place(row)) == self._first:
            self._leave(1)
        elif at >= 0:
            del self._apart[at]
        else:
            position = self._position(row)
            if not self.head_at <= position < self._edge:
                return False
            # The earlier ones move to the separate list: the column has no gaps.
            self._apart += self._of_column(position - self.head_at)
            self._seen.pop(row, None)
            self.head_at += 1
        return True

    def gone(self, task: Task) -> bool:
        """Forget a request that ends early; return True if it waits in this queue."""
        if self.remove(task.index):
            self.ring()
            if self.fleet is not None:
                self.fleet.gone(task.index)
            return True
        if task._history is None:  # it is on its way here, not in a batch
            self.never()
        return False

    def _leave(self, count: int) -> None:
        self._first += count
        if self._first == len(self._apart):
            self._apart, self._first = [], 0
        elif self._first > MAX_GONE and 2 * self._first > len(self._apart):
            del self._apart[: self._first]
            self._first = 0

    def take(self, count: int) -> tuple[int, list[int] | None, tuple[Task, ...] | None]:
        """Remove the oldest requests from the queue; return (position, rows, tasks).

        If the requests are a slice of `service.rows`, `position` is its first index and `rows` is None; otherwise
        `position` is -1.  `tasks` is None if no task object exists yet.
        """
        # The separate list is older than the head of the column, so the oldest are a slice only if it is empty.
        if there := tuple(self._apart[self._first : self._first + count]):
            self._leave(len(there))
            tasks = there + self._of_column(count - len(there)) if count > len(there) else there
            return -1, [task.index for task in tasks], tasks
        first = self.head_at
        if self._seen and not self._seen.keys().isdisjoint(self.service.rows[first : first + count].tolist()):
            return first, None, self._of_column(count)
        self.head_at += count
        return first, None, None

    def _of_column(self, count: int) -> tuple[Task, ...]:
        """Remove the oldest requests of the column; return their objects."""
        rows = self.service.rows[self.head_at : self.head_at + count].tolist()
        self.head_at += count
        tasks = tuple(self._objects(rows))
        for row in rows:
            del self._seen[row]
        return tasks

    def _enough(self, _: Timer) -> None:
        if len(self) < self.wanted and not self.over:
            self.want(self.wanted)  # some have left since
            return
        self._call()

    def came(self) -> None:
        """Handle an arrival: call the policy if enough requests wait or no more will come."""
        if self.fleet is not None and self.over:
            for replica in self.fleet.replicas:
                replica.queue.came()
        elif self.wanted and (len(self) >= self.wanted or self.over):
            self._call()

    def want(self, count: SupportsIndex) -> None:
        """Call the policy when `count` requests wait or no more arrive; 0: cancel this."""
        self.wanted = wanted = index(count)
        if self.column is None:
            return
        if not wanted:
            self.clock.cancel(self.timer)
            return
        last = min(self.head_at + wanted - len(self._apart) + self._first, self.column.total) - 1
        if last >= 0:
            time: float = self.column.times.item(last)
            if time > self.clock._now:
                self.clock.again(time, ARRIVAL, self.timer)

    def end_now(self) -> int:
        """Stop further arrivals; return how many known future requests will not arrive."""
        self.clock.cancel(self.timer)
        requests_left = self.coming.end_now()
        return 0 if self.column is None else requests_left

    def input_of(self, row: int) -> int:
        return int(self.table.extra["input"][row])

    def stages(self, size: SupportsIndex, placement: Placement) -> BatchTimes:
        """Return the estimated stage times of a batch of `size` requests."""
        service, mode, devices, links = self.service, placement.mode, placement.devices, self.links
        own, count = service.per_item[service.shape.position[mode]], index(size)
        times, share = mode.stages(count, count * own), count / len(devices)
        if devices[0].type.kind == "cpu":  # the data are in host memory
            return times
        return times._replace(
            upload=times.upload + max([Links.alone(links.up(one), share * service.bytes_in) for one in devices]),
            download=times.download + max([Links.alone(links.down(one), share * service.bytes_out) for one in devices]),
        )

    def seconds(self, position: int, terms: Terms, estimated: bool) -> float:
        """Return the sum of requests' (estimated) compute seconds in the mode `position`."""
        if self.service.alike:
            return terms.requests.count * self.service.per_item[position]
        column = self.table.estimate if estimated else self.table.time
        return math.fsum(column[terms.rows, position].tolist())
