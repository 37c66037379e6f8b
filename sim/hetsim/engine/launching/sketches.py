"""Sketches: launches in compact form, whose few stage times need no timetable.

A sketch (`hetsim.engine.flight.launch.Sketch`) is for a launch on one accelerator.  If other launches use the path of
its transfer, the transfer waits for its turn.  The end of a transfer is known while it is alone on the path
(`Links.book`); otherwise the times of all later stages are inf until the transfer has ended.  Any other event on an
accelerator converts its sketches to timetables, and booked transfers to ordinary ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.durations import work
from hetsim.engine.flight.launch import INF, NAN, Lane, Launch, Sketch, Timetable
from hetsim.engine.flight.links import Flow
from hetsim.engine.flight.part import Part
from hetsim.engine.flight.rates import Speeds
from hetsim.engine.flight.transfers import Transfers
from hetsim.engine.kernel.clock import FINISH
from hetsim.engine.resources.occupancy import GpuState


@dataclass(eq=False)
class Sketches:
    """Runs launches in compact form: a few stage times instead of a full timetable."""

    state: RunState
    speeds: Speeds
    transfers: Transfers
    ended: Callable[..., None]  # called with a launch that has ended, its times, end, busy seconds and joules
    due: Callable[[Launch], None]  # called with a launch that has a timetable when its clock entry fires

    def __post_init__(self) -> None:
        state = self.state
        self.clock, self.capacity, self.links = state.clock, state.capacity, state.links
        self.items = bool(state.places.items)
        self.links.unsure = self._unsure  # only sketches book
        self._on_drained = self._drained  # bound once

    def begin(self, launch: Launch) -> bool:
        """Start a launch in compact form; return False if it needs a full timetable.

        It returns False, and changes nothing, if the launch would overtake another one, waits for an unknown time, does
        not use exactly one accelerator, resumes a task, or has several tasks that are not requests of a service.
        """
        placement, now = launch.placement, self.clock._now
        devices, mode = placement.devices, placement.mode
        any_state: Any = self.capacity.of[devices[0].index]
        if self.items or len(devices) > 1 or any_state.__class__ is not GpuState:
            return False
        state: GpuState = any_state
        lane: Lane = state.lane
        tasks, one = launch._tasks, launch.terms is None
        if (
            not (lane.direct and state.normal) or state.ready_at > now or lane.compute == INF
            or (tasks is not None and (tasks[0]._history is not None or (one and len(tasks) > 1)))
        ):  # fmt: skip
            return False
        up_bytes, up_seconds, down_bytes, down_seconds = moves = self.transfers.private(launch)
        if one and mode.curve is None:  # as `work`, of a task that has not run before
            seconds_left = mode.single + tasks[0]._time[launch.position]  # type: ignore[index]
        else:
            seconds_left = work(launch)
        at = now
        up_at = uploaded = down_at = NAN
        flow = None
        up = up_bytes or up_seconds
        if up:
            if lane.upload > at:
                at = lane.upload
            up_at = at
            rate, latency, private = lane.up  # as `Part`
            if private:
                delay = latency if up_bytes else 0.0
                if rate == INF:
                    at += delay + up_seconds
                else:
                    at = at + delay + (up_bytes + up_seconds * rate) / rate  # summed as `serve` does: equal floats
            elif at > now or lane.ready > now:
                return False  # a shared path can be booked only from now on
            else:
                flow = self.links.book(
                    self.links.up(devices[0]), up_bytes, up_seconds, done=self._on_drained, owner=launch, called=INF
                )
                at = flow.until
            uploaded = at
        if at < lane.ready:
            return False  # it would compute before an earlier launch of the lane
        lane.ready = at
        if up:
            lane.upload = at  # by then its bytes have come
        began = at = lane.compute if lane.compute > at else at
        rates = self.speeds.nominal.get(mode) or self.speeds.nominal_of(launch)
        # Summed stage by stage as in `timetable.again`, so that expanding the sketch changes no float.
        lane.compute = computed = entry = end = at + seconds_left / rates[0]
        if down_bytes or down_seconds:
            rate, latency, private = lane.down
            if private:
                down_at = lane.download if lane.download > computed else computed
                delay = latency if down_bytes else 0.0
                if rate == INF:
                    end = down_at + (delay + down_seconds)
                else:
                    # Summed as `serve` does: equal floats.
                    end = down_at + delay + (down_bytes + down_seconds * rate) / rate
                lane.download = entry = end
            else:
                end = INF  # its download is a flow: known only when it begins (`boundary`)
        times = up_at if up else began, up_at, uploaded, began, computed, down_at
        launch.sketch = lane, seconds_left, rates, times, end, moves, flow, None
        lane.flights.append(launch)
        if entry < INF:
            self.clock.at(entry, FINISH, launch)
        return True

    def boundary(self, launch: Launch, called: float = -INF) -> None:
        """Handle a launch's clock entry: the begin of its download, or its end.

        `called`: inf if the download had to wait for the end of another download on this accelerator, else -inf.
        """
        if launch.sketch is None:
            self.due(launch)
            return
        lane, seconds_left, rates, times, end, moves, up_flow, down_flow = launch.sketch
        if end == INF:
            now = self.clock._now
            for other in lane.flights:
                if other is launch:
                    break
                if other.sketch is not None and other.sketch[7] is not None:
                    return  # its end calls this one
            if lane.download > now:  # one with a timetable downloads: its end serves this launch
                lane.write_out()
                return
            if called < 0.0:
                # Its turn was decided when the end of its computing became known.
                called = launch.decided if up_flow is None else times[2]
            way = self.links.down(launch.placement.devices[0])
            flow = self.links.book(way, moves[2], moves[3], done=self._on_drained, owner=launch, called=called)
            lane.download = end = flow.until
            launch.sketch = lane, seconds_left, rates, (*times[:5], now), end, moves, up_flow, flow
            if end < INF:
                self.clock.at(end, FINISH, launch)
            return
        # Invariant: while a launch is a sketch, nothing has changed on its accelerator since it was made, so
        # its times are those that a timetable would have.
        # As `Launches._complete`.
        flights = lane.flights
        if len(flights) == 1:
            flights.clear()
        else:
            flights.remove(launch)
        if not lane.shared:  # else they were counted as they were booked
            links = self.links
            links.moved += moves[0]  # as `Boundaries.release` counts them
            links.moved += moves[2]
        self.capacity.quick_give(launch.placement, launch.cores)
        launch.sketch = None  # first: `Launch.table` must not expand a launch that is over
        elapsed = times[4] - times[3]
        self.ended(launch, times, end, rates[1] * elapsed, rates[2] * elapsed)
        if up_flow is not None:
            up_flow.owner = None  # a pipe may still reference the flow
        if down_flow is not None:
            down_flow.owner = None  # marks the flow as over for `Flow.there`
            for other in lane.flights:  # the download engine is free for the first waiting launch
                drawn = other.sketch
                if drawn is not None and drawn[4] == INF and drawn[3][4] <= end and other.entry < 0:
                    self.boundary(other, INF)
                    return

    def _drained(self, flow: Flow) -> None:
        """Continue a launch when a transfer whose end was not known in advance has ended."""
        if flow.owner.__class__ is Part:
            self.transfers.brought(flow)
            return
        launch: Launch = flow.owner
        at = self.clock._now
        drawn: Sketch = launch.sketch  # type: ignore[assignment]
        lane, seconds_left, rates, times, _, moves, up_flow, down_flow = drawn
        if flow is down_flow:
            lane.download = at
            launch.sketch = lane, seconds_left, rates, times, at, moves, up_flow, flow
            self.boundary(launch)
            return
        free = at  # when the last launch before it has computed, if that is later; inf: unknown
        for other in lane.flights:
            if other is launch:
                break
            if other.sketch is not None:
                computed = other.sketch[3][4]
            else:
                table: Timetable = other.own_table
                computed = INF if table.ready > at else table.compute_end
            if computed > free:  # launches of a lane compute in start order
                free = computed
        if free == INF:
            lane.write_out()
            flow.owner = launch.own_table.up[0]  # a part of the timetable from here on
            self.transfers.brought(flow)
            return
        lane.upload = lane.ready = at
        lane.compute = computed = free + seconds_left / rates[0]
        end = INF if moves[2] or moves[3] else computed  # a download over a shared way is booked in its turn
        times = times[1], times[1], at, free, computed, NAN
        launch.sketch = lane, seconds_left, rates, times, end, moves, up_flow, None
        self.clock.at(computed, FINISH, launch)

    def _unsure(self, flow: Flow) -> None:
        """Update a launch whose transfer now shares its path: its end is unknown."""
        launch: Launch = flow.owner
        drawn: Sketch = launch.sketch  # type: ignore[assignment]
        lane, seconds_left, rates, times, _, moves, up_flow, down_flow = drawn
        if flow is down_flow:
            lane.download = INF
            drawn = lane, seconds_left, rates, times, INF, moves, up_flow, flow
        else:  # it is the last launch of its lane: no other is sketched before its data have arrived
            lane.upload = lane.ready = lane.compute = INF
            times = times[1], times[1], INF, INF, INF, NAN
            drawn = lane, seconds_left, rates, times, INF, moves, flow, None
        launch.sketch = drawn
        self.clock.cancel(launch)  # its entry is for an end that is no longer valid
