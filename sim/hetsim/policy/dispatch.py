"""Dispatch of many services: batching policies are called only after a change.

If a batching policy delays, its answer is valid for the offered device in its present state, until this offer or the
service's own queue changes.  So a batch costs one or two calls of policies, however many services there are.
"""

import math
from collections.abc import Callable, Generator, Sequence
from heapq import heappop, heappush
from typing import Any

from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.batching import Batching, Counter, ask
from hetsim.policy.contract import View
from hetsim.policy.decisions import Decision, Pause

IDLE, FRESH, ANSWERED, ASKED, DELAYED = range(5)
"""State of a service.  IDLE: no request waits; FRESH: its policy must be called for any offer of a device; ANSWERED:
its policy declined the offer stored in `LikeServices.passed`, and need not be called for an equal one; ASKED: it
declined another offer, and is called again after a release; DELAYED: it waits for a time or for more requests, whatever
device is offered."""


EMPTY = (-1, 0)  # the offer of any device on which nothing runs: all of them are equivalent


# entry of a service in a heap: sort key of its oldest request, its number, version of the entry
QueuedService = tuple[Any, int, int]


class LikeServices:
    """Services whose batches need the same resources: they get the same offers."""

    __slots__ = ("mode", "heaps", "asked", "passed", "released", "idle")

    def __init__(self, mode: Mode):
        self.mode = mode
        self.heaps: dict[int, list[QueuedService]] = {FRESH: [], ANSWERED: []}
        self.asked: list[tuple[int, Any]] = []  # numbers of the services in state ASKED, and their offers
        self.passed: Any = None  # the offer for which the ANSWERED services have answered
        self.released = True  # True if capacity was released since all have answered
        self.idle: list[int] = []  # services without a request: their next arrival matters only when there is room


class Index:
    """An index that assigns devices to services in order of their oldest requests.

    It requires that each service has one mode, on whole devices and without data items, and that no policy defines
    `urgency`.

    Cost: O(log services) per batch.
    """

    def __init__(self, order: Callable[[Task], Any] | None, counters: Sequence[Counter]):
        """counters: one per service, with its queue.  order: sort key; None: by arrival."""
        self.order = order
        self.counters = counters
        self.bell: dict[Any, bool] = counters[0].queue.bell
        self._number = {counter.queue: number for number, counter in enumerate(counters)}
        self._state = [IDLE] * len(counters)
        self._version = [0] * len(counters)
        lines: dict[Any, LikeServices] = {}
        self._line: list[LikeServices] = []
        for number, counter in enumerate(counters):
            mode = counter.queue.service.shape.modes[0]
            demand = mode.type, mode.share, mode.millicores, mode.memory, mode.gpu_memory, mode.partition
            line = lines.setdefault(demand, LikeServices(mode))
            line.idle.append(number)
            counter.count = None
            self._line.append(line)
        self._lines = list(lines.values())
        self._untils: list[tuple[float, int]] = []
        # services that have named a time, and are called before that time after a release
        self._timed: dict[int, None] = {}
        self._releases = -1

    @staticmethod
    def serves(counters: Sequence[Counter], view: View) -> bool:
        """Return True if this index can decide for all these services."""
        offers = getattr(view, "offers", None)
        if offers is None or view.items:
            return False
        modes = [counter.queue.service.shape.modes for counter in counters]
        if any(type(counter.batching).urgency is not Batching.urgency for counter in counters):
            return False
        return all(len(own) == 1 and offers.serves(own[0]) for own in modes)

    def schedule(self, view: View) -> Generator[Decision, None, Pause]:
        """Yield the decisions of this round; return the Pause that the caller shall yield."""
        self._hear(view)
        offers: Any = view.offers  # type: ignore[attr-defined]
        while True:
            best: Any = None  # of the offer that goes first: key and service, line, device
            for line in self._lines:
                if (services := offers.offer_of(line.mode)) is None:
                    continue
                if line.idle:
                    self._arm(line)
                entry = self._next(line, services[1])
                if entry is not None and (best is None or entry < best[0]):
                    best = entry, line, services
            if best is None:
                return Pause("release", self._until())
            entry, line, (placement, offer) = best
            number = entry[1]
            counter = self.counters[number]
            mode = counter.queue.service.shape.modes[0]
            if mode is not line.mode:
                placement = offers.there(mode, placement.devices[0])
            counter.ended = counter.queue.over
            counter.until, counter.count = math.inf, None
            if (decision := ask(counter, placement, view)) is None:
                self._delay(number, line, offer)
            else:
                yield decision
                queue = counter.queue
                if queue.wanted:
                    queue.want(0)
                self._stand(number, len(queue))

    # What has happened ----------------------------------------------------------------------------------------

    def _hear(self, view: View) -> None:
        for queue, again in self.bell.items():
            number = self._number[queue]
            counter, waiting = self.counters[number], len(queue)
            wanted = counter.count is not None and waiting >= counter.count
            state = self._state[number]
            if not waiting or again or wanted or state < ANSWERED or (not counter.ended and queue.over):
                self._look(number, waiting)
            elif state == ANSWERED:
                self._enter(number, ANSWERED)  # its oldest request may have changed
        self.bell.clear()
        if self._releases != view.changes.releases:
            self._releases = view.changes.releases
            for number in list(self._timed):
                self._look(number, len(self.counters[number].queue))
            for line in self._lines:
                line.released = True
                for number, _ in line.asked:
                    if self._state[number] == ASKED:
                        self._enter(number, FRESH)
                line.asked.clear()
        untils = self._untils
        while untils and untils[0][0] <= view.now:
            until, number = heappop(untils)
            if self.counters[number].until == until:
                self._look(number, len(self.counters[number].queue))

    def _look(self, number: int, waiting: int) -> None:
        counter = self.counters[number]
        if counter.until < math.inf:
            self._timed.pop(number, None)
            counter.until = math.inf
        counter.count = None
        if counter.queue.wanted:
            counter.queue.want(0)
        self._stand(number, waiting)

    def _stand(self, number: int, waiting: int) -> None:
        if waiting:
            self._enter(number, FRESH)
            return
        if self._state[number] != IDLE or number not in self._line[number].idle:
            self._line[number].idle.append(number)
        self._state[number] = IDLE
        self._version[number] += 1

    def _enter(self, number: int, state: int) -> None:
        queue = self.counters[number].queue
        self._state[number] = state
        self._version[number] += 1
        key = queue.oldest if self.order is None else self.order(queue.head)
        heappush(self._line[number].heaps[state], (key, number, self._version[number]))

    def _arm(self, line: LikeServices) -> None:
        """Put idle services with a request in the heap; an arrival will add the others."""
        idle, line.idle = line.idle, []
        for number in idle:
            if self._state[number] == IDLE:
                counter = self.counters[number]
                if len(counter.queue):
                    self._enter(number, FRESH)
                else:
                    counter.count = 1
                    counter.queue.want(1)

    def _delay(self, number: int, line: LikeServices, offer: Any) -> None:
        counter = self.counters[number]
        counter.queue.want(counter.count or 0)
        if counter.until < math.inf:
            heappush(self._untils, (counter.until, number))
            if counter.released:
                self._timed[number] = None
        if counter.count is not None and len(counter.queue) >= counter.count:
            self.bell.setdefault(counter.queue, False)
        self._state[number] = ASKED if counter.released else DELAYED
        self._version[number] += 1
        if counter.released:
            line.asked.append((number, offer))

    def _until(self) -> float:
        untils = self._untils
        while untils and self.counters[untils[0][1]].until != untils[0][0]:
            heappop(untils)
        return untils[0][0] if untils else math.inf

    # The next service -----------------------------------------------------------------------------------------

    def _next(self, line: LikeServices, offer: Any) -> QueuedService | None:
        fresh = self._head(line.heaps[FRESH])
        again = line.released and offer != line.passed
        answered = self._head(line.heaps[ANSWERED]) if again else None
        if fresh is None and answered is None:
            if again:
                line.passed = offer
            line.released = False
            if line.asked:
                line.asked = [one for one in line.asked if not self._settled(line, *one)]
            return None
        other: Any = answered  # keys of NumPy compare to NumPy's bool
        if answered is None or (fresh is not None and fresh < other):
            return fresh
        return answered

    def _settled(self, line: LikeServices, number: int, offer: Any) -> bool:
        if self._state[number] == ASKED and offer == line.passed:
            self._enter(number, ANSWERED)
        return self._state[number] != ASKED

    def _head(self, heap: list[QueuedService]) -> QueuedService | None:
        version = self._version
        while heap:
            entry = heap[0]
            if version[entry[1]] == entry[2]:
                return entry
            heappop(heap)
        return None


class Dispatcher:
    """Assigns devices to services in the order of their oldest requests.

    Each service that may start is offered the device of its fastest mode that has the fewest launches in flight.

    Cost: O(services) per round, and O(devices) per batch if there are several services; O(log services) if an `Index`
    (heaps of services) can be used.
    """

    def __init__(self, order: Callable[[Task], Any], counters: Sequence[Counter], by_arrival: bool = False):
        self.order = order
        self.counters = list(counters)
        self.by_arrival = by_arrival
        self._index: Any = None  # index of many services; False if none can be used

    def schedule(self, view: View) -> Generator[Decision, None, Pause]:
        """Yield the decisions of this round; return the Pause that the caller shall yield."""
        if len(self.counters) == 1:  # the usual case: saves two lists a round
            counter = self.counters[0]
            if counter.due(view.now, view.changes.releases):
                while (decision := self._step(counter, view)) is not None:
                    yield decision
            counter.queue.want(counter.count or 0)
            return Pause("release", counter.until)
        if self._index is None:
            order = None if self.by_arrival else self.order
            self._index = Index.serves(self.counters, view) and Index(order, self.counters)
        if self._index:
            return (yield from self._index.schedule(view))
        releases = view.changes.releases
        due = [counter for counter in self.counters if counter.due(view.now, releases)]
        while due:
            counter = due[0] if len(due) == 1 else self._first_due(due, view)
            if (decision := self._step(counter, view)) is None:
                due.remove(counter)
            else:
                yield decision
        for counter in self.counters:
            counter.queue.want(counter.count or 0)
        return Pause("release", min(counter.until for counter in self.counters))

    def _first_due(self, due: list[Counter], view: View) -> Counter:
        def urgency(counter: Counter) -> Any:
            if not len(counter.queue):
                return (-1, 0)  # no request is left in this round: `_step` handles that
            if (placement := self.place(counter, view)) is not None:
                value = counter.batching.urgency(counter.queue, placement, view)
                if value is not None:
                    return (0, value)
            return (1, self.order(counter.queue.head))

        return min(due, key=urgency)

    def _step(self, counter: Counter, view: View) -> Decision | None:
        queue = counter.queue
        counter.asked, counter.releases, counter.ended = True, view.changes.releases, queue.over
        counter.until, counter.count = math.inf, None
        if not len(queue):
            counter.asked = False
            if not self._full(counter, view):  # if it is full, an arrival changes nothing before the next release
                counter.count = 1
            return None
        placement = self.place(counter, view)
        return None if placement is None else ask(counter, placement, view)

    @staticmethod
    def _full(counter: Counter, view: View) -> bool:
        modes = counter.queue.service.shape.modes
        return len(modes) == 1 and view.first(modes[0], by="load") is None

    @staticmethod
    def place(counter: Counter, view: View) -> Placement | None:
        """Return the least loaded placement of the fastest mode that fits now, or None."""
        modes = counter.queue.service.shape.modes
        data = view.items
        if len(modes) == 1 and not data:
            return view.first(modes[0], by="load")
        head = counter.queue.head
        for position in head.modes_by_speed():
            if (placement := view.first(modes[position], head if data else None, by="load")) is not None:
                return placement
        return None
