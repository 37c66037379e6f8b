"""Estimated times at which nodes or the cluster will have room for a mode."""

from bisect import insort
from collections.abc import Iterable

import numpy as np

from hetsim.engine.core.state import RunState, launches_since
from hetsim.engine.flight.launch import INF, Launch
from hetsim.engine.resources.occupancy import Sketch
from hetsim.engine.views.forecast import Forecast
from hetsim.model.mode import Mode

SLACK = 64  # maximum number of ended launches in the list of a place beyond the number of running ones


class Profile:
    """Expected ends of launches by place, and the first place with room for a mode.

    A place is a node.  If any task may use accelerators of several nodes, the only place is the whole cluster, and only
    modes that need nothing but whole accelerators are supported.  This is for runs in which every launch computes at
    nominal rate from its start (`Changes.steady`), so that its expected end does not change.  Cost: linear in the
    starts and ends since the last query, and for each mode in the places that changed since its last query.
    """

    def __init__(self, state: RunState, forecast: Forecast):
        self.state = state
        self.forecast = forecast
        self.capacity = state.capacity
        self.capacity.noting = True  # from now on starts and ends are logged
        self.pooled = any(mode.span_any for mode in state.tasks.modes)
        # True if every launch ends when expected unless it is stopped
        self.exact = state.tasks.estimate is state.tasks.time and not state.input.language
        # by place: (end, number, launch) of its launches by end, and of some that are over
        self.on: list[list[tuple[float, int, Launch]]] = [[] for _ in ([0] if self.pooled else self.capacity.nodes)]
        # by mode: when it fits at each place, valid up to a position in a generation of the log
        self._times: dict[Mode, tuple[np.ndarray, int, int]] = {}
        self._last = 0
        self._countable = True

    def covers(self, modes: Iterable[Mode]) -> bool:
        """Read new launches; return True if `earliest` can be used for these modes."""
        for mode in modes:
            if not self.pooled:
                possible = self.capacity.countable(mode)
            else:  # counting is enough
                needs_more = mode.millicores or mode.memory or mode.nodes is not None or not self._simple(mode)
                possible = mode.span_any and self.capacity.undisturbed and not needs_more
            if not possible:
                return False
        fresh, self._last = launches_since(self.state, self._last), self.state.last_launch
        for launch in reversed(fresh):  # as they started
            mode = launch.placement.mode
            if self.pooled and not mode.gpus:
                continue
            if len(launch.tasks) > 1 or not (self._simple(mode) if self.pooled else self.capacity.countable(mode)):
                self._countable = False  # for good: launches that were not read would be missing
                break
            if launch.own_table is None and launch.terms is None:
                task = launch.tasks[0]  # as `Forecast.finish_of`: this is asked of every launch
                end = launch.decided + (mode.single + task.estimates[launch.position]) * (1.0 - task.done)
            else:
                end = self.forecast.finish_of(launch)
            place = 0 if self.pooled else launch.placement.devices[0].node
            here = self.on[place]
            insort(here, (end, launch.number, launch))  # the number decides between equals
            if len(here) > 2 * len(self.state.running) + SLACK:
                self.on[place] = [entry for entry in here if entry[1] in self.state.running]
        return self._countable

    def _simple(self, mode: Mode) -> bool:
        return self.capacity.index_of(mode).simple

    def earliest(self, mode: Mode) -> tuple[float, int]:
        """Return when a mode fits first, and the first such place; -inf: it fits now."""
        log, generation = self.capacity.log, self.capacity.log_generation
        times, read, position = self._times.get(mode) or (np.full(len(self.on), INF), -1, 0)
        changed = range(len(self.on)) if read != generation or self.pooled else log[position:]
        for place in set(changed):
            times[place] = self._time(place, mode)
        self._times[mode] = times, generation, len(log)
        place = int(times.argmin())
        return float(times[place]), place

    def _time(self, place: int, mode: Mode) -> float:
        """Return when a mode fits at a place; -inf if it fits now, inf if never."""
        here, running, kind, capacity = self.on[place], self.state.running, mode.type, self.capacity
        while here and here[0][1] not in running:
            del here[0]
        if self.pooled:
            missing = mode.gpus - self.free(mode)
        else:
            node = capacity.nodes[place]
            within = mode.bare or (
                mode.millicores <= node.cpu_free and mode.memory <= node.mem_free
                and (mode.nodes is None or mode.nodes & node.bit)
            )  # fmt: skip
            if not (mode.gpus and within and capacity.undisturbed):
                if node.fits(mode):
                    return -INF
                sketch = Sketch(node)
                for end, number, launch in here:
                    if number in running:
                        sketch.release(launch.placement, launch)  # in order of their ends
                        if sketch.fits(mode):
                            return end
                return INF
            missing = mode.gpus - node.open[capacity.types[kind]].bit_count()
        # Only accelerators can be missing: counting suffices, three times as fast as a sketch.
        if missing <= 0:
            return -INF
        for end, number, launch in here:
            other = launch.placement.mode
            if other.type is kind and number in running:
                missing -= other.gpus
                if missing <= 0:
                    return end
        return INF

    def free(self, mode: Mode) -> int:
        """Return the number of free accelerators of the type of a mode."""
        kind, having = self.capacity.types[mode.type], self.capacity.with_open
        return sum(self.capacity.nodes[n].open[kind].bit_count() for n in self.capacity.nodes_in(having[kind]))

    def due(self, place: int, time: float) -> list[Launch]:
        """Return the launches at a place that end by `time`."""
        return [launch for end, number, launch in self.on[place] if end <= time and number in self.state.running]
