"""SimPy next to the engine: a user's processes and resources in the clock's heap.

    environment = environment_of(simulation.state.clock)
    environment.process(maintenance(environment))

Processes run in SimPy's order (time, priority, insertion), as in a separate environment.  At one instant, the engine's
finishes, faults and arrivals come first; the engine's timers and the user's processes follow in the order of insertion.
A run with processes cannot be forked, since a running generator cannot be copied.
"""

from typing import Any

import simpy
from simpy.core import SimTime
from simpy.events import NORMAL, Event, EventPriority

from hetsim.engine.kernel.clock import Clock, Later
from hetsim.errors import UsageError


def environment_of(clock: Clock) -> "SharedEnvironment":
    """Return the SimPy environment on a clock's heap; it is created on first use."""
    if clock.environment is None:
        clock.environment = SharedEnvironment(clock)
    return clock.environment


class SharedEnvironment(simpy.Environment):
    """A SimPy environment that uses the time and event heap of a clock."""

    _clock: Clock

    def __init__(self, clock: Clock):
        self._clock = clock
        super().__init__()

    @property
    def _now(self) -> SimTime:
        return self._clock._now

    @_now.setter
    def _now(self, _: SimTime) -> None:
        """Ignore the assignment that SimPy makes when the environment is created."""

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        clock = self._clock
        clock.at(clock._now + delay, priority, Later(_fire, event))

    def peek(self) -> SimTime:
        heap, feed = self._clock._heap, self._clock.feed_time
        return min(heap[0][0], feed) if heap else feed

    def step(self) -> None:
        raise UsageError("this environment cannot be run: run the simulation that it belongs to")


def _fire(event: Any) -> None:
    callbacks, event.callbacks = event.callbacks, None
    for callback in callbacks:
        callback(event)
    if not event._ok and not hasattr(event, "_defused"):
        raise event._value
