"""SimPy next to the engine: a user's processes and resources in the clock's heap.

    environment = environment_of(simulation.state.clock)
    environment.process(maintenance(environment))

They go on in SimPy's order (time, priority, insertion), as in an environment of their own; what the engine does at the
same instant comes before (finishes, faults, arrivals) or by insertion (timers).  A run with such a process cannot be
forked: a running generator cannot be copied.
"""

from typing import Any

import simpy
from simpy.core import SimTime
from simpy.events import NORMAL, Event, EventPriority

from hetsim.engine.kernel.clock import Clock, Later
from hetsim.errors import UsageError


def environment_of(clock: Clock) -> "SharedEnvironment":
    """The SimPy environment of a clock's heap, made on first use."""
    if clock.environment is None:
        clock.environment = SharedEnvironment(clock)
    return clock.environment


class SharedEnvironment(simpy.Environment):
    """An environment with the time and heap of a clock; the simulation steps it."""

    _clock: Clock

    def __init__(self, clock: Clock):
        self._clock = clock
        super().__init__()

    @property
    def _now(self) -> SimTime:
        return self._clock._now

    @_now.setter
    def _now(self, _: SimTime) -> None:
        """SimPy sets the time at which it begins."""

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        clock = self._clock
        clock.at(clock._now + delay, priority, Later(_fire, event))

    def peek(self) -> SimTime:
        heap, feed = self._clock._heap, self._clock.feed_time
        return min(heap[0][0], feed) if heap else feed

    def step(self) -> None:
        raise UsageError("this environment cannot be run: run the simulation that it belongs to")


def _fire(event: Any) -> None:
    """Process one event as `simpy.Environment.step` does."""
    callbacks, event.callbacks = event.callbacks, None
    for callback in callbacks:
        callback(event)
    if not event._ok and not hasattr(event, "_defused"):
        raise event._value
