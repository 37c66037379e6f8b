"""The clock: a heap of timers in SimPy's order (time, priority, insertion).

When a `Timer` fires, `timer.then(timer)` is called; this takes half the time of a SimPy Timeout.  SimPy's events,
processes and resources can use the same heap (`hetsim.engine.kernel.environment`).  Events of one instant are in the
order of their priority: READING (of routers' signals) < FINISH < FAULT < ARRIVAL < TIMER (SimPy's NORMAL) < LAST
(replicas form batches).  A decision round takes place when the next event is strictly later.  Two times are one instant
if they are equal floats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

READING, FINISH, FAULT, ARRIVAL, TIMER, LAST = -4, -3, -2, -1, 1, 2
INF = math.inf


class Timer:
    """A timer that calls `then(self)` when it fires; it has at most one pending event."""

    __slots__ = ("entry", "then")

    def __init__(self, then: Callable[[Any], None] | None = None):
        self.entry = -1
        self.then = then


class Later(Timer):
    """A call at a later time, stored as data: a function and its arguments."""

    __slots__ = ("method", "arguments")

    def __init__(self, method: Callable[..., None], *arguments: Any):
        self.entry = -1
        self.then = _call
        self.method = method
        self.arguments = arguments


def _call(later: Later) -> None:
    later.method(*later.arguments)


class Clock:
    """The time, the pending events, and whether a decision round is due."""

    def __init__(self) -> None:
        self._now = 0.0
        # (time, order, entry number, timer); an entry fires only if its number is still its timer's.  `Any`: compiled,
        # a read of one field would otherwise convert all four.
        self._heap: list[tuple[Any, ...]] = []
        self._entries = 0  # how many entries have been made
        self.end = INF  # events from this time on do not happen
        self.round_due = False
        self.feed_time = INF  # when `feed` fires next: a sorted source merged with the heap, of rank ARRIVAL
        self.feed: Timer = Timer()
        self._stale = 0
        self.environment: Any = None  # SimPy's, once a caller has asked for it

    def number(self) -> int:
        """Return the number of a new entry; it orders entries of equal time and priority."""
        self._entries = entry = self._entries + 1
        return entry

    def at(self, time: float, order: int, timer: Timer) -> None:
        """Set a timer to fire at an absolute time; `order`: priority within the instant."""
        # The number orders what is equal in time and rank by insertion; an entry that is not its timer's last one is
        # stale.
        timer.entry = self._entries = entry = self._entries + 1
        heappush(self._heap, (time, order, entry, timer))

    def cancel(self, timer: Timer) -> None:
        """Invalidate the timer's pending entry; do nothing if no entry is pending."""
        if timer.entry >= 0:
            timer.entry = -1
            self._stale += 1
            if self._stale > 1000 and 2 * self._stale > len(self._heap):
                self._compact()

    def _compact(self) -> None:
        self._heap[:] = [item for item in self._heap if item[3].entry == item[2]]
        heapify(self._heap)  # keys are unique, so the order of events does not change
        self._stale = 0

    def again(self, time: float, order: int, timer: Timer) -> None:
        """Cancel a timer's pending entry and set the timer again; parameters: see `at`."""
        self.cancel(timer)
        self.at(time, order, timer)


    @property
    def pending(self) -> int:
        """Number of valid entries in the heap, plus one if an arrival is pending."""
        return len(self._heap) - self._stale + (self.feed_time < INF)

    def only(self, order: int) -> bool:
        """Return True if all pending events have priority `order`; O(number of events)."""
        if self.feed_time < INF:
            return False
        return all(item[1] == order for item in self._heap if item[3].entry == item[2])

    def advance(self) -> bool:
        """Fire events until a round is due (return True) or `end` is reached (False).

        Arrivals are merged with the heap instead of being pushed to it: an arrival is usually the next event, and would
        be the most expensive event to push and to pop (measured: 8 % of a run with 1,000 busy devices).
        """
        heap, now = self._heap, self._now
        while True:
            feed_time = self.feed_time
            time: float = heap[0][0] if heap else INF
            if self.round_due and time > now and feed_time > now:  # after all events of its instant
                return True
            # At equal times the feed has rank ARRIVAL: after finishes and faults, before timers.
            if time < feed_time or (time == feed_time and heap and heap[0][1] < ARRIVAL):
                if time >= self.end:
                    return False
                entry = heappop(heap)
                number: int = entry[2]
                timer: Timer = entry[3]
                if timer.entry == number:
                    self._now = now = time
                    timer.entry = -1
                    then = timer.then
                    then(timer)  # type: ignore[misc]
                else:
                    self._stale -= 1  # its timer was armed again, or canceled
            else:
                if feed_time >= self.end:
                    return False
                self._now = now = feed_time
                feed = self.feed
                then = feed.then
                then(feed)  # type: ignore[misc]


@dataclass(slots=True, eq=False)
class Draws:
    """Random numbers, one per call; `draw` generates `block` of them at a time."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    random: np.random.Generator
    block: int
    unused: list[Any] = field(default_factory=list)  # numbers (or rows) of the current block, the next one last

    def __call__(self) -> Any:
        if not self.unused:
            self.unused = self.draw(self.random, self.block).tolist()[::-1]
        return self.unused.pop()
