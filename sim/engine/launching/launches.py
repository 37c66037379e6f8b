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
from sim.engine.flight.contention import Member, Network
from sim.engine.flight.data_locations import host, items_of, kept_there
from sim.engine.flight.durations import work
from sim.engine.flight.launch import (
    COMPUTE,
    COMPUTED,
    END,
    INF,
    JOIN,
    READY,
    TURN,
    Lane,
    Launch,
    Part,
    ShareGroup,
    Timetable,
)
from sim.engine.flight.prefetch import Fetching
from sim.engine.flight.rates import Speeds
from sim.engine.flight.timetable import again, all_compute, alone, append, append_shared, data_came, download_over
from sim.engine.flight.transfers import Transfers
from sim.engine.kernel.clock import FINISH
from sim.engine.launching.attained import AttainedService
from sim.engine.resources.occupancy import GpuState, available_at
from sim.model.record import LAUNCH_COMPLETED
from sim.model.tasks import Task


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
            state.network = Network(clock, capacity.cluster, self._paced)
        self.network: Network | None = state.network
        modes = [mode for mode in modes if mode.gpus]
        tied = {mode.type for mode in modes if not mode.whole or (mode.gpus > 1 and mode.type.streams > 1)}
        ganged = {mode.type for mode in modes if mode.gpus > 1}
        for gpu in capacity.of:
            if isinstance(gpu, GpuState):
                kind = gpu.device.type
                group = ShareGroup(self._group_due) if kind.sharing.kind in ("timeslice", "mps") else None
                simple = group is None and kind not in tied
                gpu.lane = Lane(group, kind.sharing.kind == "timeslice", simple, simple or kind not in ganged)

    # Start --------------------------------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        """Compute when the stages of a launch are, once it has taken its devices."""
        now = self.clock._now
        table = launch.table = Timetable(now, work(launch))
        of = self.capacity.of
        devices = launch.placement.devices
        if len(devices) == 1 and not self.places.items:
            state = of[devices[0].index]
            if state.__class__ is GpuState and state.normal and not state.relaid and state.lane.regular:
                tasks = launch._tasks
                if not state.ready_at > now and (tasks is None or tasks[0]._history is None):
                    # Most launches by far: nothing that others did delays this one but the engines themselves.
                    self._begin_simply(launch, table, state.lane)
                    return
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
                    table.restore += self._restore_seconds(launch, task)
        table.begin = begin
        mode = launch.placement.mode
        if mode.exchange is not None and mode.node_count > 1:
            table.traffic = Member(launch, mode.exchange)
            table.stepwise = True
        self.speeds.plan(launch)
        for lane in lanes:
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

    def _begin_simply(self, launch: Launch, table: Timetable, lane: Lane) -> None:
        table.lanes = (lane,)
        if lane.group is None:
            table.rate, table.busy_rate, table.watts = self.speeds.nominal(launch)
        else:
            table.group = lane.group
            table.stepwise = True
        lane.flights.append(launch)
        self.transfers.both(launch, table, lane)
        for part in table.up:
            lane.uploads.append(part)
            if part.line is None:
                table.stepwise = True
        for part in table.down:
            lane.downloads.append(part)
            if part.line is None:
                table.stepwise = True
        if not (append(lane, table) if lane.group is None else append_shared(lane, table)):
            self.follow(launch)
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
                _insert(part.lane.uploads, part)
            if part.line is None:
                table.stepwise = True
        if not table.items:  # else what is final is known once it has computed
            self._ask_for_download(launch, table)

    def _ask_for_download(self, launch: Launch, table: Timetable) -> None:
        """Find out what must be downloaded, and ask the download engines for it."""
        self.transfers.final(launch, table)
        for part in table.down:
            assert part.lane is not None
            _insert(part.lane.downloads, part)
            if part.line is None:
                table.stepwise = True

    def _restore_seconds(self, launch: Launch, task: Task) -> float:
        """Seconds to restore what was saved of a task, before computing goes on."""
        device = launch.placement.devices[0]
        if task._done == 0 or task._history.saved_at is None:
            return 0.0
        seconds = task.shape.stopping.restore
        if kept_there(task, device):
            seconds += task.shape.stopping.state / (device.type.preemption.rate or INF)
        return seconds

    # The timetable goes on ----------------------------------------------------------------------------------

    def follow(self, launch: Launch) -> None:
        """Recompute the future times of a launch after a change, and set its clock entry."""
        table = launch.table
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
            if flight.table is not None and flight._tasks != ():  # (): it has ended or been stopped
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
        table = launch.table
        assert table is not None
        time, due = _next(table) if table.stepwise else (table.end, END)
        if time == table.armed and due == table.due:
            return
        self.clock.cancel(launch)
        table.armed, table.due = time, due
        if time == INF:
            return
        if time <= self.clock._now and due in (READY, TURN, JOIN):
            self._step(launch, table)
        else:
            self.clock.at(time, FINISH, launch)

    def boundary(self, launch: Launch) -> None:
        """Handle the boundary that the launch's clock entry stood for."""
        table = launch.table
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
            for part in table.up:
                if part.at <= now and part.open:
                    self.transfers.turn(part)
            for part in table.down:
                if part.at <= now and part.open:
                    self.transfers.bring_down(part)
            if table.armed < 0:
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
                self.arm(launch)
        else:
            self._computed(launch)

    def _arrived(self, part: Part) -> None:
        """The last byte of a part has come."""
        launch: Launch = part.owner
        table = launch.table
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
        for launch in [m for m in group.members if m.table.finish_at <= now and m.table.group is group]:  # type: ignore[union-attr]
            self._computed(launch)

    def _computed(self, launch: Launch) -> None:
        """End the computation of a launch that others depend on."""
        table, now = launch.table, self.clock._now
        assert table is not None
        self.speeds.settle(table, now)
        table.left = 0.0
        table.compute_end = now
        table.computed = True
        if table.joined:
            self.moved(self.speeds.leave(launch))
        if table.traffic is not None:
            self._leave_network(table.traffic)
        if table.items:
            lead = launch.placement.devices[0]
            for item in _written(launch):
                self.places.written(item, host(lead.node) if lead.type.kind == "cpu" else lead.index)
            self._ask_for_download(launch, table)
        lanes = table.lanes
        if not table.down and len(lanes) == 1 and lanes[0].regular and all_compute(lanes[0]):
            table.end = now  # and nothing waited for it
            self.arm(launch)
        else:
            self.follow(launch)

    # The end ------------------------------------------------------------------------------------------------

    def _complete(self, launch: Launch, table: Timetable) -> None:
        """A launch has ended well."""
        now = self.clock._now
        if not table.computed:
            elapsed = table.compute_end - table.updated
            table.busy += table.busy_rate * elapsed
            table.energy += table.watts * elapsed
        if table.items:
            for item in _written(launch):
                if self.places.final(item, launch.tasks):
                    self.places.brought_home(item, host(launch.placement.devices[0].node))
        self.release(launch, table)
        times = table.all_times()
        if launch.terms is not None:
            self.recorder.batch(launch, LAUNCH_COMPLETED, times, now, table.busy, table.energy)
            if self.received.asked:
                self.received.batch(launch)
        else:
            self.recorder.launch(launch, LAUNCH_COMPLETED, times, now, table.busy, table.energy)
            if launch.count > 1:
                self.account(launch, table, times, now, 1.0, True)
            elif self.received.asked:
                self.received.staged(launch.task, table.busy)
        self.signals.launch_completed(launch, times)
        launch._tasks = ()

    def release(self, launch: Launch, table: Timetable) -> None:
        """The launch leaves its devices."""
        if launch.entry >= 0:
            self.clock.cancel(launch)
        if table.traffic is not None:
            self._leave_network(table.traffic)
        for lane in table.lanes:
            lane.flights.remove(launch)
        now = self.clock._now
        for part in table.up:
            if part.lane is not None:
                part.lane.uploads.remove(part)
            if part.line is not None and part.at <= now:
                self.links.moved += part.size
        for part in table.down:
            if part.lane is not None:
                part.lane.downloads.remove(part)
            if part.line is not None and part.at <= now:
                self.links.moved += part.size
        placement = launch.placement
        if len(placement.devices) == 1 and not self.places.items and placement.mode.type.sharing.kind != "mig":
            self.capacity.quick_give(placement, launch.cores)
            return
        if self.places.items:
            for device in placement.devices:
                state = self.capacity.of[device.index]
                if isinstance(state, GpuState):
                    self.places.unpin(table.items, state)
        self.capacity.give(placement, launch, launch.cores)

    def _paced(self, launch: Launch) -> None:
        """Update a launch when its pace on the network has changed."""
        self.speeds.rerate(launch)
        self.follow(launch)

    def _leave_network(self, member: Member) -> None:
        """Take a launch off the network; launches that shared links with it are faster from now on."""
        assert self.network is not None
        self.network.leave(member)

    def account(
        self, launch: Launch, table: Timetable, times: tuple[float, ...], end: float, kept: float,
        complete: bool = False,
    ) -> None:  # fmt: skip
        """Add the stage times of a launch to its tasks; `kept` is the fraction of its compute that counts."""
        _, up, uploaded, began, computed, down = times
        detail = self.recorder.detail
        tasks = launch.tasks
        upload = uploaded - up if uploaded == uploaded else 0.0
        compute = (computed if computed == computed else end) - began if began == began else 0.0
        download = end - down if complete and down == down else 0.0
        members = len(tasks)
        for task in tasks:
            row = task.index
            detail("batch")[row] = launch.number
            self.received.staged(task, table.busy / members)
            detail("energy")[row] += table.energy / members
            if kept > 0:
                detail("upload")[row] += upload
                detail("compute")[row] += compute * kept
                detail("download")[row] += download
            else:
                detail("upload"), detail("compute"), detail("download")

    # Changes in mid-flight ----------------------------------------------------------------------------------

    def materialize(self, launch: Launch) -> None:
        """Build the timetable of a launch that was compute-only so far."""
        if launch.table is not None:
            return
        table = launch.table = Timetable(launch.decided, work(launch))
        table.uploaded = table.ready = table.compute_start = table.updated = launch.decided
        table.end = table.armed = table.compute_end = table.finish_at = launch.decided + table.total
        launch.then = self.boundary
        mode = launch.placement.mode
        if mode.gpus:
            table.lanes = tuple(self.capacity.of[device.index].lane for device in launch.placement.devices)
            for lane in table.lanes:
                lane.flights.append(launch)
                lane.flights.sort()
        power = mode.type.power
        table.busy_rate = mode.gpu_share or mode.millicores / 1000
        table.watts = table.busy_rate * (power.busy - power.idle)
        signals = self.signals
        if signals.materialized is not None:
            signals.materialized(launch)
        if signals.slowed is not None:
            signals.slowed(launch)

    def retime(self, state: Any, launches: list[Launch]) -> None:
        """A device's frequency or speed has changed; `launches` are those on it, all with a timetable."""
        moved = self.speeds.retime(state, launches)
        for launch in launches:
            if launch._tasks != ():
                self.follow(launch)
        self.moved(moved)

    def close(self, launch: Launch, end: float) -> tuple[float, ...]:
        """Account for the part of a launch that ran before the end of the run cut it off."""
        table = launch.table
        assert table is not None
        if table.traffic is not None and self.network is not None:
            self.network.leave(table.traffic, end)
        if table.stage(end) == COMPUTE:
            self.speeds.settle(table, end)
        elif table.compute_end <= end and not table.computed:
            self.speeds.settle(table, table.compute_end)
        return table.times(end)


def _written(launch: Launch) -> Iterable[int]:
    """Items that a launch writes to memory."""
    if launch.fusion is not None:
        return launch.fusion.outputs
    return [item for task in launch.tasks for item in task.writes]


def _insert(parts: list[Part], part: Part) -> None:
    """Insert a part in start order."""
    if parts and parts[-1].number > part.number:
        parts.append(part)
        parts.sort(key=lambda one: one.number)
    else:
        parts.append(part)


def _next(table: Timetable) -> tuple[float, int]:
    """The next boundary of a launch for which something must be done before its end."""
    if not table.prepared:
        return table.begin, READY
    turn = _turn(table.up) if table.up else INF
    if turn < INF:
        return turn, TURN
    if not table.computed:
        lanes = table.lanes
        traffic = table.traffic
        shared = traffic is not None or (lanes and lanes[0].group is not None)
        if shared and not table.joined:
            return table.compute_start, JOIN
        if (table.items or shared) and (traffic is None or not traffic.simple):
            return table.compute_end, COMPUTED
    turn = _turn(table.down) if table.down else INF
    return (turn, TURN) if turn < INF else (table.end, END)


def _turn(parts: Sequence[Part]) -> float:
    """When the next transfer that needs its own events gets its copy engine."""
    first = INF
    for part in parts:
        if part.line is None and not part.begun and part.at < first:
            first = part.at
    return first
