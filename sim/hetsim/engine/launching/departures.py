"""Departures: what a launch releases, and what its tasks are charged."""

from __future__ import annotations

from collections.abc import Iterable

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.contention import Member
from hetsim.engine.flight.launch import COMPUTE, Launch, Timetable
from hetsim.engine.flight.rates import Speeds
from hetsim.engine.launching.attained import AttainedService
from hetsim.engine.resources.occupancy import GpuState


class Departures:
    """Takes launches off devices and links, and keeps the accounts of their tasks."""

    def __init__(self, state: RunState, speeds: Speeds, received: AttainedService):
        self.clock = state.clock
        self.capacity = state.capacity
        self.links = state.links
        self.places = state.places
        self.recorder = state.recorder
        self.network = state.network
        self.speeds = speeds
        self.received = received

    def release(self, launch: Launch, table: Timetable) -> None:
        """The launch leaves its devices."""
        if launch.entry >= 0:
            self.clock.cancel(launch)
        if table.traffic is not None:
            self.leave_network(table.traffic)
        for lane in table.lanes:
            lane.flights.remove(launch)
        now = self.clock._now
        for part in table.up:
            if part.lane is not None:
                part.lane.uploads.remove(part)
            if part.alone and part.at <= now:
                self.links.moved += part.size
        for part in table.down:
            if part.lane is not None:
                part.lane.downloads.remove(part)
            if part.alone and part.at <= now:
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

    def leave_network(self, member: Member) -> None:
        """Take a launch off the network; others on its links are faster from now on."""
        assert self.network is not None
        self.network.leave(member)

    def account(
        self, launch: Launch, table: Timetable, times: tuple[float, ...], end: float, kept: float,
        complete: bool = False,
    ) -> None:  # fmt: skip
        """Add a launch's stage times to its tasks; `kept`: the part that counts."""
        _, up, uploaded, began, computed, down = times
        detail = self.recorder.detail
        tasks = launch.tasks
        upload = uploaded - up if uploaded == uploaded else 0.0
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
        """Account a launch that the end of the run cuts off."""
        table = launch.table
        assert table is not None
        if table.traffic is not None and self.network is not None:
            self.network.leave(table.traffic, end)
        if table.stage(end) == COMPUTE:
            table.settle(end)
        elif table.compute_end <= end and not table.computed:
            table.settle(table.compute_end)
        return table.times(end)


def written(launch: Launch) -> Iterable[int]:
    """Items that a launch writes to memory."""
    if launch.fusion is not None:
        return launch.fusion.outputs
    return [item for task in launch.tasks for item in task.writes]
