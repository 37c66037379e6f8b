"""Life cycle of a launch: start, boundaries, end, stop.

A launch occupies its devices.  Its timetable is computed as far as it is known, and it has one pending clock entry, for
its next boundary: in most cases its end.  Whatever changes a rate, a link or a lane calls this module to recompute the
rest of the timetable.
An accelerator's engines serve launches as `sim.engine.flight.timetable` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sim.engine.core.signals import Signals
from sim.engine.core.state import RunState
from sim.engine.flight.contention import Member, SharedNetwork
from sim.engine.flight.data_locations import host, items_of
from sim.engine.flight.durations import restore_seconds, work
from sim.engine.flight.launch import COMPUTED, END, INF, JOIN, NAN, READY, TURN, Lane, Launch, ShareGroup, Timetable
from sim.engine.flight.part import Part, insert_part
from sim.engine.flight.prefetch import Fetching
from sim.engine.flight.rates import Speeds
from sim.engine.flight.timetable import (
    again,
    all_compute,
    alone,
    append,
    append_shared,
    data_came,
    download_over,
)
from sim.engine.flight.transfers import Transfers
from sim.engine.kernel.clock import FINISH
from sim.engine.launching.attained import AttainedService
from sim.engine.launching.boundaries import next_boundary
from sim.engine.launching.departures import Departures, written
from sim.engine.launching.lanes import give_lanes
from sim.engine.launching.sketches import Sketches
from sim.engine.resources.occupancy import GpuState, available_at
from sim.model.record import LAUNCH_COMPLETED


class Launches:
    """Carries launches from start to end; calls `Signals.launch_completed` when one has ended well."""

    def __init__(self, state: RunState, signals: Signals, received: AttainedService):
        clock, capacity, tasks = state.clock, state.capacity, state.tasks
        self.clock = clock
        self.capacity = capacity
        self.links = state.links
        self.places = state.places
        self.recorder = state.recorder
        self.signals = signals
        self.received = received
        self.speeds = Speeds(clock, capacity)
        self.transfers = Transfers(
            clock, capacity, state.links, state.places, self._arrived, self._cleared, self._asked
        )  # fmt: skip
        modes = [mode for shape in tasks.shapes for mode in shape.modes]
        if any(mode.exchange is not None and mode.node_count > 1 for mode in modes):
            state.network = SharedNetwork(clock, capacity.cluster, self._paced)
        self.network: SharedNetwork | None = state.network
        self.departures = Departures(state, self.speeds, received)
        self.sketches = Sketches(state, self.speeds, self.transfers, self._write, self._due)
        self.boundary = self.sketches.boundary
        """Called when the entry of a launch has come."""
        give_lanes(capacity, self.links, modes, self._group_due)

    # Start --------------------------------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        """Compute when the stages of a launch are, once it has taken its devices."""
        if self.sketches.begin(launch):
            return
        now = self.clock._now
        devices = launch.placement.devices
        if len(devices) == 1 and not self.places.items:
            state = self.capacity.of[devices[0].index]
            if state.__class__ is GpuState and state.normal and not state.relaid:
                lane: Lane = state.lane
                tasks = launch._tasks
                if lane.regular and state.ready_at <= now and (tasks is None or tasks[0]._history is None):
                    # Nothing that others did delays this one but the engines themselves.
                    self._begin_simply(launch, lane, now)
                    return
        self._begin_delayed(launch, now)

    def _begin_delayed(self, launch: Launch, now: float) -> None:
        """`begin` of a launch that others may delay: by saving their state, by its own former launches, by items."""
        of = self.capacity.of
        table = launch.own_table = Timetable(now, work(launch))
        lanes: list[Lane] = []
        begin = now
        for device in launch.placement.devices:
            state = of[device.index]
            if state.__class__ is GpuState:
                lanes.append(state.lane)
                if state.relaid:
                    state.relaid = False
                    state.ready_at = max(state.ready_at, now) + device.type.sharing.reconfigure
            if state.ready_at > now or state.saving:
                begin = max(begin, available_at(state, now, state.left))
        table.lanes = tuple(lanes)
        if launch._tasks is not None:
            for task in launch._tasks:
                if task._history is not None:
                    begin = max(begin, task._history.saved_by)
                    table.restore += restore_seconds(launch, task)
        table.begin = begin
        mode = launch.placement.mode
        if mode.exchange is not None and mode.node_count > 1:
            table.traffic = Member(launch, mode.exchange)
            table.stepwise = True
        self.speeds.plan(launch)
        for lane in lanes:
            lane.write_out()
            lane.flights.append(launch)
            if lane.group is not None:
                table.stepwise = True
                if len(lanes) == 1:
                    table.group = lane.group
        if self.places.items:
            self._claim_items(launch, table)
            self.follow(launch)
            return
        self._take_turns(launch, table)
        if len(lanes) == 1 and lanes[0].simple and append(lanes[0], table):
            if table.stepwise:
                self.arm(launch)
            else:
                table.armed = table.end
                self.clock.at(table.end, FINISH, launch)
            return
        self.follow(launch)

    def _begin_simply(self, launch: Launch, lane: Lane, now: float) -> None:
        lane.write_out()
        table = launch.own_table = Timetable(now, work(launch), lane.alone)
        if lane.group is None:
            table.rate, table.busy_rate, table.watts = self.speeds.nominal_of(launch)
        else:
            table.group = lane.group
            table.stepwise = True
        lane.flights.append(launch)
        self.transfers.both(launch, table, lane)
        if not (append(lane, table) if lane.group is None else append_shared(lane, table)):
            self.follow(launch)
        elif table.up and not table.up[0].alone and table.up[0].at <= now:
            table.due = TURN
            self._step(launch, table)
        elif table.group is not None and table.compute_start <= now:
            table.due = JOIN
            self._step(launch, table)
        elif table.stepwise:
            self.arm(launch)
        else:
            table.armed = end = table.end
            self.clock.at(end, FINISH, launch)

    def _claim_items(self, launch: Launch, table: Timetable) -> None:
        """Pin the items of a launch on its devices and evict others to make room for them.

        Which items must be uploaded is determined only when the launch begins (`_take_turns`), after the evictions.
        """
        table.items = items_of(launch.tasks) if launch.fusion is None else launch.fusion.held
        table.stepwise = True
        table.prepared = False
        for device in launch.placement.devices:
            gpu = self.capacity.of[device.index]
            if isinstance(gpu, GpuState):
                self.places.pin(table.items, gpu)
                table.blocked += self.transfers.make_room(gpu, launch)
                gpu.note_memory(self.places.on(device).unpinned)
        if table.blocked:
            table.open_at, table.begin = table.begin, INF

    def _cleared(self, owner: Any) -> None:
        """An eviction that a launch or a prefetch waited for is done."""
        if isinstance(owner, Fetching):
            owner.cleared()
            return
        table = owner.table
        table.blocked -= 1
        if not table.blocked and owner.tasks:
            table.begin = max(table.open_at, self.clock._now)
            self.follow(owner)

    def _take_turns(self, launch: Launch, table: Timetable) -> None:
        """Find out what must be uploaded and downloaded, and ask the copy engines for it."""
        self.transfers.prepare(launch, table)
        table.prepared = True
        for part in table.up:
            part.ask = table.begin
            if part.lane is None:
                part.at = table.begin  # cores wait for no engine
            else:
                insert_part(part.lane.uploads, part)
            if not part.alone:
                table.stepwise = True
        if not table.items:  # else what is final is known once it has computed
            self._ask_for_download(launch, table)

    def _ask_for_download(self, launch: Launch, table: Timetable) -> None:
        """Find out what must be downloaded, and ask the download engines for it."""
        self.transfers.final(launch, table)
        for part in table.down:
            assert part.lane is not None
            insert_part(part.lane.downloads, part)
            if not part.alone:
                table.stepwise = True

    # The timetable goes on ----------------------------------------------------------------------------------

    def follow(self, launch: Launch) -> None:
        """Recompute the future times of a launch after a change, and set its clock entry."""
        table = launch.own_table
        assert table is not None
        if table.lanes:
            self.follow_lanes(table.lanes)
        else:
            alone(launch, table, self.clock._now, self.speeds.plan)
            self.arm(launch)

    def follow_lanes(self, lanes: Sequence[Lane]) -> None:
        """Recompute (`follow`) all launches in flight on some accelerators."""
        if len(lanes) == 1 and lanes[0].idle(self.clock._now):
            return
        lanes, flights = again(lanes, self.clock._now, self.speeds.plan)
        for flight in flights:
            if flight.own_table is not None and flight._tasks != ():  # (): it has ended or been stopped
                self.arm(flight)
        for lane in lanes:
            if lane.fetching:
                for part in list(lane.uploads):
                    if part.owner.__class__ is Fetching:
                        part.owner.arm()

    def _asked(self, gpu: GpuState) -> None:
        self.follow_lanes((gpu.lane,))

    def arm(self, launch: Launch) -> None:
        """Set the launch's one clock entry to its next boundary."""
        table = launch.own_table
        assert table is not None
        time, due = next_boundary(table) if table.stepwise else (table.end, END)
        if time == table.armed and due == table.due:
            return
        if launch.entry >= 0:
            self.clock.cancel(launch)
        table.armed, table.due = time, due
        if time == INF:
            return
        if time <= self.clock._now and due in (READY, TURN, JOIN):
            self._step(launch, table)
        else:
            self.clock.at(time, FINISH, launch)

    def _due(self, launch: Launch) -> None:
        """Handle the boundary that the launch's clock entry stood for."""
        table = launch.own_table
        assert table is not None
        if table.due != END:
            self._step(launch, table)
        elif table.traffic is not None and table.end > self.clock._now:
            table.armed = -1.0  # others on its links have delayed it since
            self.arm(launch)
        else:
            self._complete(launch, table)

    def _step(self, launch: Launch, table: Timetable) -> None:
        now, due = self.clock._now, table.due
        table.armed = -1.0
        if due == READY:
            self._take_turns(launch, table)
            self.follow(launch)
        elif due == TURN:
            flow = None
            for part in table.up:
                if part.at <= now and not (part.alone or part.begun):
                    self.transfers.turn(part)
                    flow = part.flow
            for part in table.down:
                if part.at <= now and not (part.alone or part.begun):
                    self.transfers.bring_down(part)
                    flow = part.flow
            if flow is not None and len(table.lanes) == 1:
                table.armed, table.due = INF, END  # nothing is known before its bytes have come
            elif table.armed < 0:
                self.arm(launch)
        elif due == JOIN:
            table.joined = True
            if table.traffic is not None:
                assert self.network is not None
                self.network.join(table.traffic, bool(table.down or table.items or table.group))
                if table.traffic.simple:
                    self.arm(launch)
                    return
            self.moved(self.speeds.join(launch))
            if table.group is None:  # its end has become known
                self.follow(launch)
            else:
                table.armed, table.due = INF, COMPUTED  # the group has an entry for all of them
        else:
            self._computed(launch)

    def _arrived(self, part: Part) -> None:
        """The last byte of a part has come."""
        launch: Launch = part.owner
        table = launch.own_table
        assert table is not None
        now = self.clock._now
        if part in table.down and (len(table.down) == 1 or all(other.until <= now for other in table.down)):
            # Its last download is over: the launch ends, and the next one gets the download engine.
            table.end = now
            self._complete(launch, table)
            if len(table.lanes) == 1 and table.lanes[0].regular and not self.places.items:
                for other in download_over(table.lanes[0], now):
                    self.arm(other)
            else:
                self.follow_lanes(table.lanes)
            return
        lanes = table.lanes
        if len(lanes) == 1 and not self.places.items and data_came(lanes[0], launch, table, now, self.speeds.plan):
            self.arm(launch)
        else:
            self.follow(launch)

    def moved(self, gangs: Iterable[Launch]) -> None:
        """Reschedule gangs that share accelerators, after their ends have moved."""
        for gang in gangs:
            self.follow(gang)

    def _group_due(self, group: ShareGroup) -> None:
        now = self.clock._now
        for launch in [m for m in group.members if m.own_table.finish_at <= now and m.own_table.group is group]:  # type: ignore[union-attr]
            self._computed(launch)

    def _computed(self, launch: Launch) -> None:
        """End the computation of a launch that others depend on."""
        table, now = launch.own_table, self.clock._now
        assert table is not None
        self.speeds.settle(table, now)
        table.left = 0.0
        table.compute_end = now
        table.computed = True
        if table.joined:
            self.moved(self.speeds.leave(launch))
        if table.traffic is not None:
            self.departures.leave_network(table.traffic)
        if table.items:
            lead = launch.placement.devices[0]
            for item in written(launch):
                self.places.written(item, host(lead.node) if lead.type.kind == "cpu" else lead.index)
            self._ask_for_download(launch, table)
        lanes = table.lanes
        if not table.down and len(lanes) == 1 and lanes[0].regular and all_compute(lanes[0]):
            table.end = table.armed = now  # and nothing waited for it
            table.due = END
            self.clock.again(now, FINISH, launch)
        else:
            self.follow(launch)

    # The end ------------------------------------------------------------------------------------------------

    def end_resumed(self, launch: Launch) -> None:
        """A launch that only computed, of a task that was stopped before, has ended well."""
        placement, began, now = launch.placement, launch.decided, self.clock._now
        if len(placement.devices) == 1:
            self.capacity.quick_give(placement, launch.cores)
        else:
            self.capacity.give(placement, launch, launch.cores)
        _, busy, watts = self.speeds.nominal_of(launch)
        elapsed = now - began
        self._write(launch, (began, NAN, NAN, began, now, NAN), now, busy * elapsed, watts * elapsed)

    def _write(self, launch: Launch, times: tuple[float, ...], end: float, busy: float, energy: float) -> None:
        """Write down a launch that has ended well, but for one of several tasks, and tell of it."""
        if launch.terms is not None:
            self.recorder.batch(launch, LAUNCH_COMPLETED, times, end, busy, energy)
            if self.received.asked:
                self.received.batch(launch, busy)
        else:
            self.recorder.completed(launch, times, end, busy, energy)
            if self.received.asked:
                self.received.staged(launch.task, busy)
        self.signals.launch_completed(launch, times)
        launch._tasks = ()

    def _complete(self, launch: Launch, table: Timetable) -> None:
        """A launch has ended well."""
        now = self.clock._now
        if not table.computed:
            elapsed = table.compute_end - table.updated
            table.busy += table.busy_rate * elapsed
            table.energy += table.watts * elapsed
        if table.items:
            for item in written(launch):
                if self.places.final(item, launch.tasks):
                    self.places.brought_home(item, host(launch.placement.devices[0].node))
        self.departures.release(launch, table)
        times = table.all_times()
        if launch.terms is None and len(launch.tasks) > 1:
            self.recorder.launch(launch, LAUNCH_COMPLETED, times, now, table.busy, table.energy)
            self.departures.account(launch, table, times, now, 1.0, True)
            self.signals.launch_completed(launch, times)
            launch._tasks = ()
        else:
            self._write(launch, times, now, table.busy, table.energy)

    def _paced(self, launch: Launch) -> None:
        """Update a launch when its pace on the network has changed."""
        self.speeds.rerate(launch)
        self.follow(launch)

    # Changes in mid-flight ----------------------------------------------------------------------------------

    def tabulate(self, launch: Launch) -> Timetable:
        """The timetable of a launch that is compute-only; its accelerators' lanes know nothing of it."""
        table = launch.own_table = Timetable(launch.decided, work(launch))
        table.uploaded = table.ready = table.compute_start = table.updated = launch.decided
        table.end = table.armed = table.compute_end = table.finish_at = launch.decided + table.total
        _, table.busy_rate, table.watts = self.speeds.nominal_of(launch)
        return table

    def materialize(self, launch: Launch) -> None:
        """Build the timetable of a launch that was compute-only so far, and will go on with it."""
        if launch.table is not None or launch.resident:
            return
        table = self.tabulate(launch)
        launch.then = self.boundary
        if launch.placement.mode.gpus:
            table.lanes = tuple(self.capacity.of[device.index].lane for device in launch.placement.devices)
            for lane in table.lanes:
                lane.flights.append(launch)
                lane.flights.sort()
        signals = self.signals
        if signals.materialized is not None:
            signals.materialized(launch)
        if signals.slowed is not None:
            signals.slowed(launch)

    def retime(self, state: Any, launches: list[Launch]) -> None:
        """A device's frequency or speed has changed; `launches` are those on it, with a timetable if they end."""
        timed = [launch for launch in launches if not launch.resident]
        moved = self.speeds.retime(state, timed)
        for launch in timed:
            if launch._tasks != ():
                self.follow(launch)
        self.moved(moved)
        for launch in launches:
            if launch.resident:
                self.signals.paced(launch)
