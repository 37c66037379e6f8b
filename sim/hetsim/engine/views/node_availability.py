"""Estimated times at which each node will have room for a mode, kept up to date."""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from hetsim.engine.core.state import RunState, launches_since
from hetsim.engine.flight.launch import Launch
from hetsim.engine.launching.stopping import Stops
from hetsim.engine.resources.occupancy import Sketch
from hetsim.engine.views.forecast import Forecast
from hetsim.model.mode import Mode

MANY = 64  # length of a node's list of launches from which each new one removes ended launches


class Bounds:
    """Earliest time at which a mode fits, by node; for `stale` nodes a lower bound.

    A launch that starts on a node cannot make the mode fit there earlier, and the end of a launch at its expected time
    is already included.  So a time remains a valid lower bound, and is computed again only when it is the minimum of
    all nodes.  Only a launch that ends before its expected time invalidates the bound of its node (`forget`).
    """

    __slots__ = ("kind", "times", "heap", "stale", "generation", "position")

    def __init__(self, kind: int, nodes: int):
        self.kind = kind  # number of the type of device
        self.times = [-math.inf] * nodes
        self.heap = [(-math.inf, number) for number in range(nodes)]  # (time, node), and some that no longer hold
        self.stale = set(range(nodes))
        self.generation = -1
        self.position = 0  # up to where the log of changes has been read

    def note(self, log: list[int], generation: int) -> None:
        """Mark those nodes as stale that changed (by the `log`) since the last call."""
        if self.generation != generation:
            self.stale.update(range(len(self.times)))
        elif self.position != len(log):
            self.stale.update(log[self.position :])
        self.generation, self.position = generation, len(log)

    def forget(self, number: int) -> None:
        self.stale.add(number)
        self.put(number, -math.inf)

    def put(self, number: int, time: float) -> None:
        if time == self.times[number]:
            return
        self.times[number] = time  # an entry of the heap holds while it equals this
        heappush(self.heap, (time, number))
        if len(self.heap) > 4 * len(self.times) + 64:
            self.heap = [(time, number) for number, time in enumerate(self.times)]
            heapify(self.heap)

    def first_end(self) -> tuple[float, int]:
        """Return the earliest time of all nodes, and the first node with that time."""
        heap = self.heap
        while heap[0][0] != self.times[heap[0][1]]:  # equal floats: an entry is a copy of its time
            heappop(heap)
        return heap[0]


class Ends:
    """Times at which nodes will have room for a mode, from expected ends of launches.

    This is for runs in which every launch computes at nominal rate from its start, so that its expected end does not
    change.  Cost: linear in the starts and ends since the last query, and in the nodes that might be the first to have
    room.
    """

    def __init__(self, state: RunState, forecast: Forecast, stops: Stops):
        self.forecast = forecast
        self.capacity = state.capacity
        self.capacity.noting = True  # from now on starts and ends are logged
        self.state = state
        self.stops = stops
        self.language = bool(self.state.input.language)
        # by node: (end, number, launch) of its launches by end, and of some that are over
        self.on: list[list[tuple[float, int, Launch]]] = [[] for _ in self.capacity.nodes]
        self._voids = 0  # how often bounds became void because a launch ended before its expected time
        self.bounds: dict[Mode, Bounds] = {}
        self._last = 0
        self._generation = -1
        self._position = 0
        self._countable = True
        tasks = self.state.tasks
        shapes = [] if tasks.estimate is not tasks.time or self.language else tasks.shapes
        # True if every launch can be counted, and ends when expected unless it is stopped
        self._exact = bool(shapes) and all(self.capacity.countable(mode) for shape in shapes for mode in shape.modes)
        self._stops = 0  # launches stopped before the last look

    def as_known(self) -> bool:
        """Return True if all launches certainly ended as expected; if not, call `refresh`."""
        return self._exact and self._stops == self.stops.count or self.refresh()

    def refresh(self) -> bool:
        """Read new starts and ends; return False if a launch's end cannot be foreseen."""
        fresh, crowded = launches_since(self.state, self._last), []
        self._last = self.state.last_launch  # read together with `fresh`
        stopped, self._stops = self._stops != self.stops.count, self.stops.count
        exact = self._exact
        for launch in reversed(fresh):  # as they started
            # Exact: all times are estimates and nothing but a stop ends a launch early, so its end is known without
            # asking it.
            if exact and launch.own_table is None and launch.sketch is None:
                task, position = launch._tasks[0], launch.position  # type: ignore[index]
                mode = launch.placement.mode  # As `planned`: this is asked of every launch.
                end = launch.decided + (mode.single + task.estimates[position]) * (1.0 - task.done)
            elif len(launch.tasks) > 1 or not self.capacity.countable(launch.placement.mode):
                self._countable = False  # final: launches that were not read would be missing
                break
            else:
                end = self.forecast.finish_of(launch)
            here = self.on[launch.placement.devices[0].node]
            insort(here, (end, launch.number, launch))  # the number decides: launches have no order
            if len(here) > MANY:
                crowded.append(launch.placement.devices[0].node)
        if self._countable and (stopped or not exact):
            self._look_at_changed()
        for node in crowded:
            self.on[node] = self.launches(node)
        self._generation, self._position = self.capacity.log_generation, len(self.capacity.log)  # read up to here
        return self._countable

    def _look_at_changed(self) -> None:
        running, now = self.state.running, self.forecast.now
        changed: Iterable[int] = set(self.capacity.log[self._position :])
        if self._generation != self.capacity.log_generation:
            changed = range(len(self.on))
        for node in changed:
            # Replicas of language models hold and free devices, and are no launches.
            early = self.language or any(end > now and number not in running for end, number, _ in self.on[node])
            self.on[node] = self.launches(node)
            if early:
                self._voids += 1  # the earliest node may have changed
                for bounds in self.bounds.values():
                    bounds.forget(node)  # -inf is below any time: it is looked at before all others

    def stamp(self) -> tuple[int, int, int]:
        """Return a mark of the present state (call `as_known` before), for `unchanged`."""
        return self._voids, self.capacity.log_generation, len(self.capacity.log)

    def unchanged(self, node: int, stamp: tuple[int, int, int]) -> bool:
        """Return True if a node is unchanged since a `stamp`, and no launch ended early.

        If the node was the first to have room for a mode, at a time still to come, this is then still true.
        """
        voids, generation, position = stamp
        # A release may have made another node the first.
        if voids != self._voids or generation != self.capacity.log_generation:
            return False
        return node not in self.capacity.log[position:]

    def launches(self, number: int) -> list[tuple[float, int, Launch]]:
        here, running = self.on[number], self.state.running
        if self._exact:
            here = here[bisect_left(here, (self.forecast.now,)) :]  # what was to end earlier has
        return [entry for entry in here if entry[1] in running]

    def due(self, number: int, time: float) -> list[tuple[float, int, Launch]]:
        """Return the launches on a node that end by `time`, a result of `earliest`."""
        here = self.on[number]
        return here[: bisect_right(here, (time, math.inf))]

    def earliest(self, mode: Mode) -> tuple[float, int]:
        """Return the first time at which a mode fits, and the node; -inf if it fits now."""
        if (bounds := self.bounds.get(mode)) is None:
            bounds = self.bounds[mode] = Bounds(self.capacity.types[mode.type], len(self.on))
        bounds.note(self.capacity.log, self.capacity.log_generation)
        time, number = bounds.first_end()
        if time <= self.forecast.now:
            # A bound in the past may have come true, so that the mode fits there now: recompute it.
            now, times = self.forecast.now, bounds.times
            for other in [other for other in bounds.stale if times[other] <= now]:
                bounds.stale.discard(other)
                bounds.put(other, self._time(other, mode, bounds.kind))
            time, number = bounds.first_end()
        while number in bounds.stale:  # others may stay stale: their bounds are later
            bounds.stale.discard(number)
            bounds.put(number, self._time(number, mode, bounds.kind))
            time, number = bounds.first_end()
        return time, number

    def _time(self, number: int, mode: Mode, kind: int) -> float:
        """Return when a mode fits on a node; -inf if it fits now, inf if never."""
        node = self.capacity.nodes[number]
        here = self.on[number] = self.launches(number)
        host = mode.millicores <= node.cpu_free and mode.memory <= node.mem_free
        if mode.gpus and self.capacity.undisturbed and host and (mode.nodes is None or mode.nodes & node.bit):
            # Only accelerators can be missing: counting suffices, three times as fast as a sketch.
            if (missing := mode.gpus - node.open[kind].bit_count()) <= 0:
                return -math.inf
            gpus = node.gpus
            for end, _, launch in here:
                placement = launch.placement
                if placement.mode.gpus and gpus[placement.devices[0].local].kind == kind:
                    missing -= placement.mode.gpus
                    if missing <= 0:
                        return end
            return math.inf
        if node.fits(mode):
            return -math.inf
        sketch = Sketch(node)
        for end, _, launch in here:
            sketch.release(launch.placement, launch)  # in order of their ends
            if sketch.fits(mode):
                return end
        return math.inf
