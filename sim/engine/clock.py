"""SimPy's environment with what a scheduler simulator needs besides.

Hot paths do not use SimPy's Event objects: a `Timer` goes into the same heap and is fired by calling
`timer.then(timer)`, which costs half of a Timeout.  SimPy events and generator processes work beside them
(faults, autoscalers, user code).

Same-instant order is the heap's second key: FINISH < FAULT < ARRIVAL < TIMER, where TIMER is SimPy's NORMAL;
a round comes when the next entry is strictly later.  "Instant" means equal float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import simpy
from simpy.core import BoundClass

FINISH, FAULT, ARRIVAL, TIMER = -3, -2, -1, 1


class Timer:
    """Something that fires at a time: calls `then(self)`.  Re-arming makes the former entry stale."""

    __slots__ = ("entry", "then")

    def __init__(self, then: Callable[[Any], None] | None = None):
        self.entry = -1
        self.then = then


class Clock(simpy.Environment):
    """A SimPy environment that runs to the next round instead of to an event."""

    # A subclass must declare these again: SimPy binds early only what stands in the class's own namespace,
    # and looking them up through the descriptor costs 10 % of a run that uses them.
    process = BoundClass(simpy.Process)
    timeout = BoundClass(simpy.Timeout)
    event = BoundClass(simpy.Event)
    all_of = BoundClass(simpy.AllOf)
    any_of = BoundClass(simpy.AnyOf)

    def __init__(self) -> None:
        super().__init__()
        self.end = math.inf
        """Events from this time on do not happen."""
        self.round_due = False
        self.fired = 0
        self._stale = 0
        self._next_entry: Callable[[], int] = self._eid.__next__
        self._heap: list[Any] = self._queue
        """SimPy's heap, which holds (time, order, entry, event)."""

    def at(self, time: float, order: int, timer: Timer) -> None:
        """Fire the timer at an absolute time (so that equal times stay equal floats)."""
        timer.entry = entry = self._next_entry()
        heappush(self._heap, (time, order, entry, timer))

    def cancel(self, timer: Timer) -> None:
        """The timer's pending entry becomes stale; harmless if none is pending."""
        if timer.entry >= 0:
            timer.entry = -1
            self._stale += 1
            if self._stale > 1000 and 2 * self._stale > len(self._heap):
                self._compact()

    def again(self, time: float, order: int, timer: Timer) -> None:
        """Re-arm: cancel what is pending and fire at `time` instead."""
        self.cancel(timer)
        self.at(time, order, timer)

    def _compact(self) -> None:
        """Throw out stale entries; in place, because the loop holds on to the list."""
        self._heap[:] = [item for item in self._heap if getattr(item[3], "entry", item[2]) == item[2]]
        heapify(self._heap)
        self._stale = 0

    @property
    def pending(self) -> int:
        """Live entries in the heap."""
        return len(self._heap) - self._stale

    def advance(self) -> bool:
        """Fire events until a round is due (True), or until nothing is left before `end` (False)."""
        queue = self._heap
        while queue:
            time = queue[0][0]
            if time > self._now:
                if self.round_due:
                    return True
                if time >= self.end:
                    return False
            _, _, entry, event = heappop(queue)
            try:
                current = event.entry
            except AttributeError:
                self._now = time
                self._fire_simpy(event)
                continue
            if current != entry:
                self._stale -= 1
                continue
            self._now = time
            event.entry = -1
            event.then(event)
        return self.round_due

    def _fire_simpy(self, event: Any) -> None:
        """What `simpy.Environment.step` does with one event."""
        callbacks, event.callbacks = event.callbacks, None
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value
