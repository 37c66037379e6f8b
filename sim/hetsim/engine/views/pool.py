"""Times at which enough accelerators of a type will be free anywhere, by counting."""

from __future__ import annotations

import math
from bisect import insort

from hetsim.engine.core.state import RunState, launches_since
from hetsim.engine.views.forecast import Forecast
from hetsim.model.tasks import Mode

SLACK = 64
"""Launches that are over may stay in the list until they are so many more than those that run."""


class PoolEnds:
    """Expected ends of all launches, in order, where these do not move (`Changes.steady`).

    Nodes do not matter to a gang that may take any whole accelerators of its type and nothing of a host: it fits as
    soon as so many are free.  Cost: a step for each end up to the shadow, and one for each launch since the last.
    """

    def __init__(self, state: RunState, forecast: Forecast):
        self.state = state
        self.forecast = forecast
        self.capacity = state.capacity
        self.ends: list[tuple[float, int, int, int]] = []
        """(end, launch, type number, accelerators), of some launches that are over too."""
        self._last = 0
        self._countable = True

    def counts(self, mode: Mode) -> bool:
        """Return True if counting is enough for this mode and for all that runs."""
        if not (mode.span_any and self.capacity.undisturbed and mode.nodes is None and not mode.limited):
            return False
        if mode.millicores or mode.memory or not self.capacity.index_of(mode).simple:
            return False
        return self._known()

    def _known(self) -> bool:
        """Take note of new launches; False if one takes parts of accelerators."""
        fresh, self._last = launches_since(self.state, self._last), self.state.last_launch
        capacity, running = self.capacity, self.state.running
        for launch in fresh:
            mode = launch.placement.mode
            if not mode.gpus:
                continue
            if len(launch.tasks) > 1 or not capacity.index_of(mode).simple:
                self._countable = False
                break
            end = self.forecast.finish_of(launch)
            insort(self.ends, (end, launch.number, capacity.types[mode.type], mode.gpus))
        if len(self.ends) > 2 * len(running) + SLACK:
            self.ends = [entry for entry in self.ends if entry[1] in running]
        return self._countable

    def free_now(self, kind: int) -> int:
        """Whole accelerators of a type that are free."""
        capacity = self.capacity
        return sum(capacity.nodes[n].open[kind].bit_count() for n in capacity.nodes_in(capacity.with_open[kind]))

    def earliest(self, mode: Mode) -> tuple[float, int]:
        """When a mode fits (inf: never), and how many accelerators are then left over."""
        kind = self.capacity.types[mode.type]
        left = self.free_now(kind) - mode.gpus
        time = -math.inf if left >= 0 else math.inf
        now = self.forecast.now
        for end, number, other, gpus in self.ends:
            if end > time and end > now:  # all launches that overran are expected to end now, together
                break
            if other == kind and number in self.state.running:
                left += gpus
                if time == math.inf and left >= 0:
                    time = end  # and all that ends with it
        return (time, left) if left >= 0 else (math.inf, 0)
