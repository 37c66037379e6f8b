"""Batching: how many of a service's waiting requests are launched now; and who asks for which device.

A batching policy is asked for one service and one device with room for a launch, whenever its last answer may no
longer hold: a batch of its own has ended, its `until` has come, as many requests wait as it asked to be told of, or,
where that is what it waits for, something has come free.  It may be asked more often.
It never sees the future: arrivals, deadlines and estimates only of requests that are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from sim.errors import PolicyError
from sim.model.plan import Placement
from sim.model.service import Service
from sim.model.tasks import Mode, Task
from sim.policy.contract import Decision, Pause, Reject, Requests, Start, View


class BatchTimes(NamedTuple):
    """Seconds of the stages of a batch, each alone on idle links and engines."""

    upload: float
    compute: float
    download: float

    @property
    def total(self) -> float:
        return self.upload + self.compute + self.download


class BatchReport(NamedTuple):
    """A batch that has ended: how many requests, as how many it was launched (padding), and when its stages were.

    Stages that it did not have are of no length.  `oldest` is the arrival of its first request.
    """

    count: int  # type: ignore[assignment]  # a tuple's own method of that name is of no use here
    size: int
    placement: Placement
    decided: float
    upload_start: float
    upload_end: float
    compute_start: float
    compute_end: float
    download_start: float
    end: float
    oldest: float

    @property
    def times(self) -> BatchTimes:
        return BatchTimes(
            self.upload_end - self.upload_start,
            self.compute_end - self.compute_start,
            self.end - self.download_start,
        )


class RequestQueue(Protocol):
    """The waiting requests of a service, in order of arrival; position 0 is the oldest."""

    service: Service
    wanted: int
    bell: dict[Any, bool]
    """Of all services: queues to which something has happened, and whether their policies must be asked again."""

    def __len__(self) -> int:
        """How many wait now."""
        ...

    @property
    def over(self) -> bool:
        """Has the last request of the stream arrived?"""
        ...

    @property
    def arrived(self) -> int:
        """Requests that have joined the queue so far."""
        ...

    def arrival(self, position: int) -> float:
        """When the request at a position arrived."""
        ...

    def deadline(self, position: int) -> float:
        """By when its batch must end to meet its deadline, the response's way taken off; inf where there is none."""
        ...

    def recent(self, seconds: float) -> int:
        """How many joined the queue within the last so many seconds."""
        ...

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """What a batch of so many would take there, as far as estimates tell."""
        ...

    def first(self, count: int, size: int | None = None) -> Requests:
        """The oldest `count`, to be launched as if they were `size` (padding)."""
        ...

    def tasks(self) -> Sequence[Task]:
        """The requests themselves: only for policies that say `per_request`."""
        ...

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        """Some of `tasks()`."""
        ...

    @property
    def head(self) -> Task:
        """The oldest request, for orders among services."""
        ...

    @property
    def oldest(self) -> float:
        """When it arrived at the front end."""
        ...

    def want(self, count: int) -> None:
        """Have the policy asked when so many wait, or the last of the stream has come; 0: do not."""
        ...


class Take:
    """Launch the oldest `count` requests, or these, as one batch; `size`: as if they were so many (padding)."""

    __slots__ = ("which", "size")

    def __init__(self, which: int | Sequence[Task], size: int | None = None):
        self.which = which
        self.size = size


class Discard:
    """The oldest `count` requests, or these, will not be served; ask again at once.

    expired: their time ran out, as in `Reject`; False where they are refused for another reason.
    """

    __slots__ = ("which", "reason", "expired")

    def __init__(self, which: int | Sequence[Task], reason: str = "too late", expired: bool = True):
        self.which = which
        self.reason = reason
        self.expired = expired


class Linger:
    """Not now: ask again at `until`, when `count` requests wait, or when a batch of the service has ended.

    released: also when anything has come free, so that another device may be offered; unless given, that is what is
    waited for where neither a time nor a count is named.
    """

    __slots__ = ("until", "count", "released")

    def __init__(self, until: float = math.inf, count: int | None = None, released: bool | None = None):
        self.until = until
        self.count = count
        self.released = (until == math.inf and count is None) if released is None else released


class Batching:
    """Base of batching policies.  There is one object for each service."""

    policy_kind: ClassVar[str] = "batching"

    per_request: bool = False
    """Does it look at single requests (`queue.tasks()`)?  Then each is an object of its own, which costs time."""

    max_batch: int | None = None
    """Largest batch that it forms by its own parameters; None: what the service allows.  A load for which that is too
    little is a warning of the run."""

    def remarks(self, modes: Sequence[Mode]) -> Sequence[str]:
        """What a reader of the figures should know of this policy on a service with these modes: sentences without
        their subject, which is the policy."""
        return ()

    def begin(self, queue: RequestQueue, view: View) -> None:
        """Once, before the first request."""

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Linger:
        """At least one request waits and a launch could start on the placement: what goes now?"""
        raise NotImplementedError

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        """A batch of this service has ended."""

    def urgency(self, queue: RequestQueue, placement: Placement, view: View) -> float | None:
        """Where several services want a device the least number goes first; None: the scheduler's order decides."""
        return None


class Counter:
    """A service as the dispatcher sees it: its queue, its policy, and what the policy answered last."""

    __slots__ = ("queue", "batching", "until", "count", "released", "releases", "ended", "asked")

    def __init__(self, queue: RequestQueue, batching: Batching):
        self.queue = queue
        self.batching = batching
        self.until = math.inf
        self.count: int | None = 1
        self.released = True
        self.releases = -1
        self.ended = False
        self.asked = False

    def due(self, now: float, releases: int) -> bool:
        """May the last answer no longer hold?"""
        queue = self.queue
        waiting = len(queue)
        if not waiting:
            self.until, self.count, self.asked = math.inf, 1, False
            return False
        if not self.asked or self.releases != releases or now >= self.until:
            return True
        if self.count is not None and waiting >= self.count:
            return True
        return not self.ended and queue.over


class Dispatcher:
    """Gives devices to services, for schedulers that order them by their oldest request.

    A service that may start is offered the device of its fastest mode with the fewest launches in flight.
    Cost: O(services) a round, and O(devices) a batch where there are several; O(log) where an index can be kept
    (`sim.policy.dispatch`).
    """

    def __init__(self, order: Callable[[Task], Any], counters: Sequence[Counter], by_arrival: bool = False):
        """`by_arrival`: is the order that of arrivals?"""
        self.order = order
        self.counters = list(counters)
        self.by_arrival = by_arrival
        self._index: Any = None
        """Of many services; False if none can be kept."""

    def schedule(self, view: View) -> Generator[Decision, None, Pause]:
        """Decisions of this round; the Wait at the end is for the scheduler to yield."""
        if len(self.counters) == 1:  # nearly always: two lists less a round
            counter = self.counters[0]
            if counter.due(view.now, view.changes.releases):
                while (yield from self._step(counter, view)):
                    pass
            counter.queue.want(counter.count or 0)
            return Pause("release", counter.until)
        if self._index is None:
            from sim.policy.dispatch import Index  # which is made of what is here

            order = None if self.by_arrival else self.order
            self._index = Index.serves(self.counters, view) and Index(order, self.counters)
        if self._index:
            return (yield from self._index.schedule(view))
        releases = view.changes.releases
        due = [counter for counter in self.counters if counter.due(view.now, releases)]
        while due:
            counter = due[0] if len(due) == 1 else self._most_urgent(due, view)
            if not (yield from self._step(counter, view)):
                due.remove(counter)
        for counter in self.counters:
            counter.queue.want(counter.count or 0)
        return Pause("release", min(counter.until for counter in self.counters))

    def _most_urgent(self, due: list[Counter], view: View) -> Counter:
        def urgency(counter: Counter) -> Any:
            if not len(counter.queue):
                return (-1, 0)  # all has been taken this round: its step sees to that
            placement = self.place(counter, view)
            if placement is not None:
                value = counter.batching.urgency(counter.queue, placement, view)
                if value is not None:
                    return (0, value)
            return (1, self.order(counter.queue.head))

        return min(due, key=urgency)

    def _step(self, counter: Counter, view: View) -> Generator[Decision, None, bool]:
        """Ask the service's policy once; True if it may go on at once."""
        queue = counter.queue
        counter.asked, counter.releases, counter.ended = True, view.changes.releases, queue.over
        counter.until, counter.count = math.inf, None
        if not len(queue):
            counter.asked = False
            if not self._full(counter, view):  # else the next arrival changes nothing before a release does
                counter.count = 1
            return False
        placement = self.place(counter, view)
        if placement is None:
            return False
        return (yield from ask(counter, placement, view))

    @staticmethod
    def _full(counter: Counter, view: View) -> bool:
        """Is there surely no room for the next request?"""
        modes = counter.queue.service.shape.modes
        return len(modes) == 1 and view.first(modes[0], by="load") is None

    @staticmethod
    def place(counter: Counter, view: View) -> Placement | None:
        """The device of the service's fastest mode that has room, with the fewest launches in flight."""
        modes = counter.queue.service.shape.modes
        data = view.items
        if len(modes) == 1 and not data:
            return view.first(modes[0], by="load")
        head = counter.queue.head
        for position in head.modes_by_speed():
            placement = view.first(modes[position], head if data else None, by="load")
            if placement is not None:
                return placement
        return None


def ask(counter: Counter, placement: Placement, view: View) -> Generator[Decision, None, bool]:
    """Ask the service's policy about a device; True if it may go on at once."""
    queue = counter.queue
    answer = counter.batching.next_batch(queue, placement, view)
    if isinstance(answer, Take):
        yield Start(_which(queue, answer.which, answer.size), placement)
        return True
    if isinstance(answer, Discard):
        yield Reject(_which(queue, answer.which), answer.reason, answer.expired)
        return True
    if not isinstance(answer, Linger):
        name = type(counter.batching).__name__
        raise PolicyError(f"{name}.next_batch answered {answer!r}; Take, Discard or Linger is expected")
    counter.until, counter.count, counter.released = answer.until, answer.count, answer.released
    return False


def _which(queue: RequestQueue, which: int | Sequence[Task], size: int | None = None) -> Requests:
    return queue.first(which, size) if isinstance(which, int) else queue.chosen(which, size)
