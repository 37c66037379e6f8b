"""Actions at the boundaries between stages of launches, and their effects.

A launch has one pending clock entry, for its next boundary: in most cases its end.  If a rate, a link or the engines of
an accelerator (compute and copy units) change, this module recomputes the later boundaries of the launches.
`hetsim.engine.flight.timetable` describes how the engines serve launches.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.contention import SharedNetwork
from hetsim.engine.flight.data_locations import host
from hetsim.engine.flight.launch import (
    COMPUTE,
    COMPUTED,
    END,
    INF,
    JOIN,
    NAN,
    READY,
    TURN,
    Lane,
    Launch,
    ShareGroup,
    Timetable,
)
from hetsim.engine.flight.part import Part, insert_part
from hetsim.engine.flight.prefetch import Fetching
from hetsim.engine.flight.rates import Speeds
from hetsim.engine.flight.timetable import again, all_compute, download_over
from hetsim.engine.flight.transfers import Transfers
from hetsim.engine.kernel.clock import FINISH
from hetsim.engine.launching.attained import AttainedService
from hetsim.engine.launching.sketches import Sketches
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.record import LAUNCH_COMPLETED


class Boundaries:
    """Advances launches through their stages; calls `launch_completed` at the end."""

    def __init__(self, state: RunState, signals: Signals, received: AttainedService):
        clock, capacity, modes = state.clock, state.capacity, state.tasks.modes
        self.clock = clock
        self.capacity = capacity
        self.links = state.links
        self.places = state.places
        self.recorder = state.recorder
        self.pacing = state.pacing
        self.signals = signals
        self.received = received
        self.speeds = Speeds(clock, capacity)
        self.transfers = Transfers(
            clock, capacity, state.links, places=state.places, arrived=self._arrived, cleared=self._cleared,
            asked=self.follow_lanes
        )  # fmt: skip
        if any(mode.exchange is not None and mode.node_count > 1 for mode in modes):
            # Only where gangs exchange data over nodes.
            state.network = SharedNetwork(clock, capacity.cluster, self._paced)
        self.network: Any = state.network  # the `SharedNetwork`, if any launch has traffic; else None
        self.sketches = Sketches(state, self.speeds, self.transfers, ended=self._write, due=self._due)
        self.boundary = self.sketches.boundary  # called when the clock entry of a launch fires
        on_gpus = [mode for mode in modes if mode.gpus]  # Each accelerator's lane, as the modes of the run use it.
        tied = {mode.type for mode in on_gpus if not mode.whole_devices or (mode.gpus > 1 and mode.type.streams > 1)}
        ganged = {mode.type for mode in on_gpus if mode.gpus > 1}
        for gpu in capacity.of:
            if isinstance(gpu, GpuState):
                kind = gpu.device.type
                group = ShareGroup(self._group_due) if kind.sharing.kind in ("timeslice", "mps") else None
                simple = group is None and kind not in tied
                up, down = self.links.up_lines[gpu.device.index], self.links.down_lines[gpu.device.index]
                direct = simple and kind.sharing.kind != "mig" and up.private == down.private
                regular = simple or (group is not None and kind not in ganged)
                gpu.lane = Lane(up, down, group, kind.sharing.kind == "timeslice", regular=regular, direct=direct)

    # The timetable goes on ----------------------------------------------------------------------------------

    def follow(self, launch: Launch) -> None:
        """Recompute a launch's later stage times after a change, and reschedule its event."""
        table: Timetable = launch.own_table
        if table.lanes:
            self.follow_lanes(table.lanes)
        else:
            again((), self.clock._now, self.speeds.plan, launch)
            self.arm(launch)

    def follow_lanes(self, lanes: Sequence[Lane]) -> None:
        """Recompute the times of all launches in flight on some accelerators."""
        lanes, flights = again(lanes, self.clock._now, self.speeds.plan)
        for flight in flights:
            if flight._tasks != ():  # (): it has ended or been stopped
                self.arm(flight)
        for lane in lanes:
            if lane.fetching:
                for part in list(lane.uploads):  # a list, since a prefetch that ends is removed from `uploads`
                    if part.owner.__class__ is Fetching:
                        part.owner.arm()

    def arm(self, launch: Launch) -> None:
        """Set the one clock entry of a launch to its next boundary between stages."""
        table: Timetable = launch.own_table
        time, due = next_boundary(table)
        if time == table.armed and due == table.due:  # equal floats: nothing moved, and the entry keeps its place
            return
        if launch.entry >= 0:
            self.clock.cancel(launch)
        table.armed, table.due = time, due
        # Unknown: `follow` is called again when it becomes known.
        if time == INF:
            return
        if time <= self.clock._now and due in (READY, TURN, JOIN):
            self._step(launch, table)
        else:
            self.clock.at(time, FINISH, launch)  # also if it ends now: in the order of all finishes

    def _due(self, launch: Launch) -> None:
        table: Timetable = launch.own_table
        if table.due != END:
            self._step(launch, table)
        elif table.traffic is not None and table.end > self.clock._now:
            table.armed = -1.0  # other jobs on its links have delayed it since
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
            for parts, way in ((table.up, self.links.up), (table.down, self.links.down)):
                for part in parts:
                    if part.at <= now and not (part.alone or part.begun):
                        self.transfers.turn(part, way)
                        flow = part.flow
            if flow is not None and len(table.lanes) == 1:
                table.armed, table.due = INF, END  # its end is unknown before its bytes have arrived
            elif table.armed < 0:
                self.arm(launch)
        elif due == JOIN:
            table.joined = True
            if table.traffic is not None:
                self.network.join(table.traffic, bool(table.down or table.items or table.group))
                if table.traffic.simple:  # its rate is the network's, and nothing else waits for it
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
        if part.owner.__class__ is Fetching:
            part.owner.over()
            return
        launch: Launch = part.owner
        table: Timetable = launch.own_table
        now = self.clock._now
        if part in table.down and (len(table.down) == 1 or all(other.until <= now for other in table.down)):
            table.end = now  # Its last download is over: the launch ends, and the next one gets the download engine.
            self._complete(launch, table)
            if len(table.lanes) == 1 and table.lanes[0].regular and not self.places.items:
                for other in download_over(table.lanes[0], now):
                    self.arm(other)
            else:
                self.follow_lanes(table.lanes)
        else:
            self.follow(launch)

    def moved(self, gangs: Iterable[Launch]) -> None:
        """Reschedule the ends of gangs (multi-GPU launches), whose times have changed."""
        for gang in gangs:
            self.follow(gang)

    def _group_due(self, group: ShareGroup) -> None:
        now = self.clock._now
        # A list: `_computed` takes members out of the group.
        for launch in [m for m in group.members if m.own_table.finish_at <= now and m.own_table.group is group]:
            self._computed(launch)

    def _computed(self, launch: Launch) -> None:
        table: Timetable = launch.own_table
        now = self.clock._now
        table.settle(now)
        table.left = 0.0  # a remainder from rounding
        table.compute_end = now
        table.computed = True
        if table.joined:
            self.moved(self.speeds.leave(launch))
        if table.traffic is not None:
            self.network.leave(table.traffic)
        if table.items:
            lead = launch.placement.devices[0]
            for item in written(launch):
                self.places.version[item] += 1  # first: copies in transit are outdated by the write
                self.places.keep_only(item, host(lead.node) if lead.type.kind == "cpu" else lead.index)
            self.transfers.final(launch, table)
            self._ask_for_download(table)
        lanes = table.lanes
        if not table.down and len(lanes) == 1 and lanes[0].regular and all_compute(lanes[0]):
            table.end = table.armed = now  # and no launch waited for it
            table.due = END
            self.clock.again(now, FINISH, launch)
        else:
            self.follow(launch)

    # What it moves -------------------------------------------------------------------------------------

    def _cleared(self, owner: Any) -> None:
        """Handle an eviction that has ended: a launch or a prefetch waited for it."""
        if isinstance(owner, Fetching):
            owner.cleared()  # a prefetch, which has no timetable
            return
        table = owner.table
        table.blocked -= 1
        if not table.blocked and owner.tasks:  # (): it was stopped as it waited
            table.begin = max(table.open_at, self.clock._now)
            self.follow(owner)

    def _take_turns(self, launch: Launch, table: Timetable) -> None:
        """Plan the transfers of a launch, and queue them at the copy engines."""
        self.transfers.plan(launch, table)
        table.prepared = True  # from here on `next_boundary` need not come back to this
        for part in table.up:
            part.ask = table.begin
            if part.lane is None:
                part.at = table.begin  # cores wait for no engine
            else:
                insert_part(part.lane.uploads, part)
        self._ask_for_download(table)

    @staticmethod
    def _ask_for_download(table: Timetable) -> None:
        for part in table.down:
            assert part.lane is not None
            insert_part(part.lane.downloads, part)

    # The end ------------------------------------------------------------------------------------------------

    def end_resumed(self, launch: Launch) -> None:
        """Complete a compute-only launch that resumed a task after an earlier stop."""
        began, now = launch.decided, self.clock._now
        self.capacity.give(launch.placement, launch, launch.cores)
        _, busy, watts = self.speeds.nominal_of(launch)
        elapsed = now - began
        self._write(launch, (began, NAN, NAN, began, now, NAN), now, busy=busy * elapsed, energy=watts * elapsed)

    def _write(self, launch: Launch, times: tuple[float, ...], end: float, busy: float, energy: float) -> None:
        if launch.terms is not None:
            self.recorder.batch(launch, LAUNCH_COMPLETED, times, end=end, busy=busy, energy=energy)
        else:
            self.recorder.completed(launch, times, end, busy=busy, energy=energy)
        if self.received.busy is not None:
            for task in launch.tasks:
                self.received.staged(task, busy / launch.count)
        self.signals.launch_completed(launch, times)
        launch._tasks = ()  # a stale entry of the clock may still hold the launch

    def _complete(self, launch: Launch, table: Timetable) -> None:
        now = self.clock._now
        if not table.computed:
            elapsed = table.compute_end - table.updated  # as `Timetable.settle`, of which the rest is not needed
            table.busy += table.busy_rate * elapsed
            table.energy += table.watts * elapsed
        if table.items:
            for item in written(launch):
                if self.places.final(item, launch.tasks):
                    self.places.keep_only(item, host(launch.placement.devices[0].node))
        self.release(launch, table)  # before any hook is called: its devices are free
        times = table.times()
        if launch.terms is None and len(launch.tasks) > 1:
            self.recorder.launch(launch, LAUNCH_COMPLETED, times, end=now, busy=table.busy, energy=table.energy)
            self.account(launch, table, times, end=now, kept=1.0, complete=True)
            self.signals.launch_completed(launch, times)
            launch._tasks = ()  # as in `_write`
        else:
            self._write(launch, times, now, busy=table.busy, energy=table.energy)

    def release(self, launch: Launch, table: Timetable) -> None:
        if launch.entry >= 0:
            self.clock.cancel(launch)
        if table.traffic is not None:
            self.network.leave(table.traffic)
        for lane in table.lanes:
            lane.flights.remove(launch)  # the caller recomputes the launches behind it if needed
        now = self.clock._now
        for part in table.up + table.down:
            if part.lane is not None:
                (part.lane.uploads if part in table.up else part.lane.downloads).remove(part)
            if part.alone and part.at <= now:  # the others were counted when they were sent
                self.links.moved += part.size
        if self.places.items:
            for device in launch.placement.devices:
                state = self.capacity.of[device.index]
                if isinstance(state, GpuState):
                    self.places.unpin(table.items, state)
        self.capacity.give(launch.placement, launch, launch.cores)

    def account(
        self, launch: Launch, table: Timetable, times: tuple[float, ...], end: float, kept: float,
        complete: bool = False,
    ) -> None:  # fmt: skip
        """Add a launch's stage times and energy to its tasks; `kept`: share of work kept."""
        _, up, uploaded, began, computed, down = times
        detail = self.recorder.detail
        tasks = launch.tasks
        upload = uploaded - up if uploaded == uploaded else 0.0
        # If it was stopped while computing: up to its end.
        compute = (computed if computed == computed else end) - began if began == began else 0.0
        download = end - down if complete and down == down else 0.0
        members = len(tasks)
        batch, joules = detail("batch"), detail("energy")
        uploads, computes, downloads = detail("upload"), detail("compute"), detail("download")
        for task in tasks:
            row = task.index
            batch[row] = launch.number
            self.received.staged(task, table.busy / members)
            joules[row] += table.energy / members
            if kept > 0:
                uploads[row] += upload
                computes[row] += compute * kept
                downloads[row] += download

    def close(self, launch: Launch, end: float) -> tuple[float, ...]:
        """Update a launch in flight to the `end` of the run; return its stage times."""
        table: Timetable = launch.table
        if table.traffic is not None:
            self.network.leave(table.traffic, end)
        if table.stage(end) == COMPUTE:
            table.settle(end)
        elif table.compute_end <= end and not table.computed:
            table.settle(table.compute_end)
        return table.times(end)

    def _paced(self, launch: Launch) -> None:
        self.speeds.rerate(launch)
        self.follow(launch)


def written(launch: Launch) -> Iterable[int]:
    if launch.fusion is not None:
        return launch.fusion.outputs
    return [item for task in launch.tasks for item in task.writes]


def next_boundary(table: Timetable) -> tuple[float, int]:
    """Return time and kind (such as END) of the next stage boundary to be handled."""
    if not table.prepared:
        return table.begin, READY  # what must be uploaded is known only then
    turn = _turn(table.up) if table.up else INF
    if turn < INF:
        return turn, TURN
    if not table.computed:
        lanes = table.lanes
        traffic = table.traffic
        shared = traffic is not None or (lanes and lanes[0].group is not None)
        if shared and not table.joined:
            return table.compute_start, JOIN
        # Its download, or the speed of others, depends on that.
        if (table.items or shared) and (traffic is None or not traffic.simple):
            return table.compute_end, COMPUTED
    turn = _turn(table.down) if table.down else INF
    return (turn, TURN) if turn < INF else (table.end, END)


def _turn(parts: Sequence[Part]) -> float:
    """Return when the next transfer on a shared path begins; inf: unknown, or none."""
    return min([part.at for part in parts if not (part.alone or part.begun)], default=INF)
