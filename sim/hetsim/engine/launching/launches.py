"""Launches: their begin, and changes in flight; `boundaries` runs them to the end.

A launch occupies its devices, and its stage times are computed as far as they are known.
"""

from typing import Any

from hetsim.engine.flight.contention import Member
from hetsim.engine.flight.data_locations import items_of
from hetsim.engine.flight.durations import restore_seconds, work
from hetsim.engine.flight.launch import INF, JOIN, Lane, Launch, Resident, Timetable
from hetsim.engine.flight.timetable import append_shared
from hetsim.engine.launching.boundaries import Boundaries
from hetsim.engine.resources.occupancy import GpuState, available_at


class Launches(Boundaries):
    """Starts launches, and changes launches in flight."""

    # Start --------------------------------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        """Compute the stage times of a new launch, whose devices are already occupied."""
        now = begin = self.clock._now
        if self.pacing is not None and launch.within is None:
            begin = self.pacing.effective(now)  # when its start takes effect
        elif self.sketches.begin(launch):  # none where starts take effect later
            return
        table = launch.own_table = Timetable(now, work(launch))
        # After it has taken its devices, before it asks for an engine.
        table.begin = self._devices_ready(launch, table, now, begin)
        mode = launch.placement.mode
        if mode.exchange is not None and mode.node_count > 1:
            table.traffic = Member(launch, mode.exchange)
        lanes = table.lanes
        for lane in lanes:
            lane.write_out()  # from now on their stages depend on this launch, too
            lane.flights.append(launch)
            if lane.group is not None and len(lanes) == 1:
                table.group = lane.group  # a gang is in several groups: its end is its own event
        if table.group is None:  # else its rate is set when it joins the others there
            self.speeds.plan(launch)
        if self.places.items:
            self._claim_items(launch, table)
        else:
            self._take_turns(launch, table)
        # If launches compute concurrently and all have requested the upload engine, the last one delays no other.
        if self.places.items or table.group is None or not lanes[0].regular or not append_shared(lanes[0], table, now):
            self.follow(launch)
        elif table.compute_start <= now:
            table.due = JOIN  # its data are there: it computes at once
            self._step(launch, table)  # no clock entry for the present instant
        else:
            self.arm(launch)

    def _devices_ready(self, launch: Launch, table: Timetable, now: float, begin: float) -> float:
        """Return the time at which all devices, and the tasks' saved states, are ready."""
        states = self.capacity.of
        lanes: list[Lane] = []
        for device in launch.placement.devices:
            state = states[device.index]
            if state.__class__ is GpuState:
                lanes.append(state.lane)
                if state.slices is not None:
                    begin = max(begin, state.slices.busy[launch][1])  # its slice is still being cut
            if state.ready_at > now or state.saving:
                begin = max(begin, available_at(state, now, state.free_amount))
        table.lanes = tuple(lanes)
        for task in launch._tasks or ():
            if task._history is not None:
                task._history.look(states)  # a failure since may have lost what was saved
                begin = max(begin, task._history.saved_by)
                table.restore += restore_seconds(task, task._history, launch.placement)
        return begin

    def _claim_items(self, launch: Launch, table: Timetable) -> None:
        """Pin a launch's items on its devices; evict other items if room is needed."""
        table.items = items_of(launch.tasks) if launch.fusion is None else launch.fusion.held_items
        table.prepared = False
        for device in launch.placement.devices:
            gpu = self.capacity.of[device.index]
            if isinstance(gpu, GpuState):
                self.places.pin(table.items, gpu)  # before room is made, which must not evict them
                table.blocked += self.transfers.make_room(gpu, launch)
                gpu.note_memory(self.places.on(device).unpinned)
        if table.blocked:
            table.open_at, table.begin = table.begin, INF  # until `Boundaries._cleared` sets it again

    # Changes in mid-flight ----------------------------------------------------------------------------------

    def tabulate(self, launch: Launch) -> Timetable:
        """Give a compute-only launch a new timetable of its planned times, and return it."""
        table = launch.own_table = Timetable(launch.decided, work(launch))
        table.uploaded = table.ready = table.compute_start = table.updated = launch.decided
        table.end = table.armed = table.compute_end = table.finish_at = launch.decided + table.total
        _, table.busy_rate, table.watts = self.speeds.nominal_of(launch)
        return table

    def materialize(self, launch: Launch) -> None:
        """Give a running compute-only launch a timetable, so that its times can change."""
        if launch.table is not None or launch.resident:
            return
        table = self.tabulate(launch)
        launch.then = self.boundary  # its clock entry remains and will use the timetable
        if launch.placement.mode.gpus:
            table.lanes = tuple(self.capacity.of[device.index].lane for device in launch.placement.devices)
            for lane in table.lanes:
                lane.flights.append(launch)
                lane.flights.sort(key=lambda one: one.number)  # turns are given in start order
        signals = self.signals
        if signals.materialized is not None:
            signals.materialized(launch)
        if signals.slowed is not None:
            signals.slowed(launch)

    def retime(self, state: Any, launches: list[Launch]) -> None:
        """Update the pending ends of launches on the device `state`, whose speed changed."""
        timed = [launch for launch in launches if not launch.resident]
        moved = self.speeds.retime(state, timed)
        for launch in timed:
            if launch._tasks != ():  # it may have ended while another launch was recomputed
                self.follow(launch)
        self.moved(moved)
        for launch in launches:
            if isinstance(launch, Resident):
                launch.holder.fleet.rerate(launch.holder)
