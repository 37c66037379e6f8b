"""Time limits: a task that holds its devices for longer than it may is killed.

The clock of a task runs while it holds devices, transfers and restoring included.  A stop that keeps its work, a move
or a change of mode lets the clock go on where it stood; after a failure of a device, or a stop that loses its work, the
job is submitted again and its clock begins again.  A task that ends at the very instant of its limit is completed.
"""

from __future__ import annotations

import math

from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.durations import work
from hetsim.engine.flight.launch import Launch
from hetsim.engine.kernel.clock import TIMER, Later, Timer

REASON = "time limit"


class TimeLimits:
    """Watches time limits; launches that surely end in time cost no event."""

    def __init__(self, state: RunState, signals: Signals, grace: float):
        self.clock = state.clock
        self.signals = signals
        self.grace = grace
        self.state = state
        self._used: dict[int, float] = {}
        """Seconds that earlier launches of a task took, by its row."""
        self._timers: dict[int, Timer] = {}
        """Timers of running launches, by number."""
        signals.slowed = self.watch

    def watch(self, launch: Launch) -> None:
        """Watch a launch that began, or may take longer as its devices slow down."""
        limit = self.state.tasks.time_limit  # of a fork it may have more rows than when the run began
        assert limit is not None
        seconds_left = min(float(limit[task.index]) - self._used.get(task.index, 0.0) for task in launch.tasks)
        end = launch.decided + seconds_left + self.grace
        if end == math.inf or launch.number in self._timers:
            return
        if launch.table is None and launch.decided + work(launch) <= end:
            return
        timer = self._timers[launch.number] = Later(self._due, launch)
        self.clock.at(max(end, self.clock._now), TIMER, timer)

    def over(self, launch: Launch, keep: bool = True) -> None:
        """End a launch at its limit; `keep`: its tasks keep the time used so far."""
        timer = self._timers.pop(launch.number, None)
        if timer is not None:
            self.clock.cancel(timer)
        for task in launch.tasks:
            if keep:
                self._used[task.index] = self._used.get(task.index, 0.0) + self.clock._now - launch.decided
            else:
                self._used.pop(task.index, None)

    def _due(self, launch: Launch) -> None:
        del self._timers[launch.number]
        self.signals.kill(launch, REASON)
