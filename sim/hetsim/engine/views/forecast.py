"""Forecasts from estimates: durations and ends of tasks, launches and devices."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hetsim.engine.core.state import RunState, launches_on
from hetsim.engine.flight.durations import planned, reached, restore_seconds, seconds_of
from hetsim.engine.flight.history import History
from hetsim.engine.flight.launch import COMPUTE, DOWNLOAD, QUEUED, RESTORE, UPLOAD, Launch, Timetable
from hetsim.engine.flight.links import Links
from hetsim.engine.flight.transfers import Transfers
from hetsim.engine.resources.occupancy import GpuState, available_at
from hetsim.engine.views.generated import Generated
from hetsim.model.curves import layout_of
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task

Engine = Literal["stream", "upload", "compute", "download"]


class StageEstimate(NamedTuple):
    """Estimated seconds of each stage of a launch that has not begun."""

    ready: float  # seconds until its devices are ready (saving of state, waking, reconfiguration)
    write_back: float
    upload: float
    restore: float
    compute: float
    download: float

    @property
    def total(self) -> float:
        return max(self.ready, self.write_back) + self.upload + self.restore + self.compute + self.download


class EngineTimes(NamedTuple):
    """When each engine of an accelerator becomes free, and when its last launch ends."""

    upload: float
    compute: float
    download: float
    end: float


class Forecast:
    """Durations and ends of launches, forecast by the engine from estimated times."""

    def __init__(self, state: RunState, transfers: Transfers, generated: Generated):
        self.state = state
        self._generated = generated
        self._fleets = generated.fleets
        self.transfers = transfers
        self.clock = state.clock
        self._capacity = state.capacity

    @property
    def now(self) -> float:
        return self.clock._now

    def duration(self, task: Task, placement: Placement) -> float:
        """Return the estimated seconds of a launch on idle links and engines."""
        mode, steady = placement.mode, self.state.steady and task._launch is None
        if steady and mode.curve is None and task.shape not in self._fleets:
            part_left = 1.0 - task.done
            return mode.computing(1, task.estimates[task.shape.position[mode]] * part_left, part_left)
        return self.stages((task,), placement).total

    def stages(self, tasks: Sequence[Task], placement: Placement) -> StageEstimate:
        """Return the seconds of each stage if these tasks started now with all else idle.

        Computed by the engine's own functions from estimates.  For a running task (a Move), its remaining work counts.
        """
        mode = placement.mode
        transfers = self.transfers
        now = self.now
        needed = mode.share or mode.millicores
        states = [self._capacity.of[device.index] for device in placement.devices]
        # It waits for state being saved there only if it needs that capacity.
        ready = max(available_at(state, now, state.free_amount - needed) for state in states)
        if mode.gpus and mode.type.sharing.kind == "mig":
            ready = max(ready, *(state.slices.copy().take(mode, None, now) for state in states))  # on copies
        parts_left = [self._left(task) for task in tasks]
        if mode.parts:
            seconds = seconds_of(tasks, transfers.fusion(tasks), mode.parts, True)
        else:
            parts = parts_left
            if mode.curve is not None:
                layout = layout_of(placement.devices)
                parts = [mode.curve.seconds_left(layout, 1.0 - part) for part in parts_left]
            works = [t.estimates[t.shape.position[mode]] * part for t, part in zip(tasks, parts, strict=True)]
            seconds = mode.computing(len(tasks), math.fsum(works), max(parts_left))
        rate = min(state.frequency / state.slowdown for state in states)  # a gang waits for its slowest device
        rate *= mode.span_rate(placement.devices)
        kept = [self._kept(task) for task in tasks]
        for history in kept:
            if history is not None:
                history.look(self._capacity.of)  # a failure since may have lost what was saved
        return StageEstimate(
            ready=max(0.0, ready - now),
            write_back=self._write_back(tasks, placement) if self.state.places.items else 0.0,
            upload=transfers.upload_seconds(tasks, placement, histories=kept),
            restore=sum(restore_seconds(t, h, placement) for t, h in zip(tasks, kept, strict=True) if h is not None),
            compute=seconds / rate,
            download=transfers.download_seconds(tasks, placement),
        )

    def _left(self, task: Task) -> float:
        """Return the estimated remaining fraction of a task's work."""
        launch = task._launch
        if task.shape in self._fleets:
            full_time = task.shortest_estimate
            return self.remaining(task) / full_time if full_time > 0 else 0.0
        if task.state != RUNNING or launch is None:
            return 1.0 - task.done
        mode, seconds_left = launch.placement.mode, self.remaining_of(launch)
        if mode.curve is not None:
            return 1.0 - reached(launch, planned(launch) - seconds_left, estimated=True)
        full_time = planned(launch) if mode.parts else mode.computing(1, task.estimates[task.shape.position[mode]])
        return seconds_left / full_time if full_time > 0 else 0.0

    def _kept(self, task: Task) -> History | None:
        """Return a task's saved work (None: none) as if a running task stopped now."""
        launch = task._launch
        if task.state != RUNNING or launch is None or launch.fusion is not None:
            return task._history
        table = launch.table
        if (launch.decided if table is None else table.compute_start) >= self.now:
            return task._history
        history = History()
        history.save(launch.placement.devices, task.shape.stopping, self.now)
        # 1 once it has computed: only its output is missing.
        history.checkpoint = float(table is not None and table.compute_end <= self.now)
        return history

    def _write_back(self, tasks: Sequence[Task], placement: Placement) -> float:
        """Return the seconds to write back items that a start would evict from GPU memory."""
        longest, places = 0.0, self.state.places
        for device in placement.devices:
            state = self._capacity.of[device.index]
            if not isinstance(state, GpuState):
                continue
            here = places.on(device)
            wanted = self.transfers.needed_items(tasks, placement.mode)
            claim = places.claim(wanted, device) + placement.mode.gpu_memory
            kept = sum(places.items[i].size for i in wanted if i in here.resident and i not in here.pins)
            leaving = places.evictable(here, claim - (state.room - here.unpinned + kept), wanted)
            size = sum(places.items[item].size for item in leaving if len(places.where[item]) == 1)
            longest = max(longest, Links.alone(self.state.links.down(device), size))
        return longest

    def remaining(self, task: Task) -> float:
        launch = task._launch
        if self._fleets and task.shape in self._fleets:
            return self._generated.remaining(task)
        if task.state != RUNNING or launch is None:
            return task.shortest_remaining
        return self.remaining_of(launch)

    def remaining_of(self, launch: Launch) -> float:
        """Return the estimated remaining compute seconds of a launch at rate 1."""
        table: Timetable | None = launch.table
        expected, now = planned(launch), self.now
        if table is None:
            return max(0.0, expected - (now - launch.decided))
        if (stage := table.stage(now)) < COMPUTE:
            return expected  # it has computed nothing yet
        if stage > COMPUTE:
            return 0.0
        done = table.total - table.left + table.rate * (now - table.updated)
        return max(0.0, expected - done)

    def finish_of(self, launch: Launch) -> float:
        """Estimate a launch's end at present rates, if earlier launches are served first."""
        if launch.resident:
            return math.inf
        if launch.table is None:
            # The same float as the event if the estimate is exact, which `now` + the remainder is not.
            return max(self.now, launch.decided + planned(launch))
        return self._pipeline(launch).end

    def _pipeline(self, launch: Launch) -> EngineTimes:
        """Return when the device's engines are free after this and all earlier launches."""
        table: Timetable = launch.table
        before = table.lanes[0].flights if table.lanes else [launch]
        times = EngineTimes(self.now, self.now, self.now, self.now)
        for other in before:
            times = self._follow(other, times)
            if other is launch:
                break
        return times

    def _follow(self, launch: Launch, free: EngineTimes) -> EngineTimes:
        """Return when the upload, compute and download engines are free after this launch."""
        table: Timetable = launch.table
        now = self.now
        up, down = self.transfers.estimate(launch)
        if (stage := table.stage(now)) == DOWNLOAD:
            began = table.download_start
            end = max(now, began + down) if began <= now else free.download + down
            return EngineTimes(free.upload, free.compute, end, end)
        if stage == COMPUTE:
            # Calculated from when the rate was last set, so that the answer is the same float at any time.
            uploaded = now
            seconds_left = planned(launch) - (table.total - table.left)
            # At rate 0 (a link is down) assume full rate.
            computed = max(now, table.updated + seconds_left / (table.rate or 1.0))
        else:
            uploaded = self._upload_end(launch, stage, up, free.upload)
            alone = launch.placement.mode.share == WHOLE
            # Fractional launches compute concurrently.
            computed = max(uploaded, free.compute if alone else now) + self.remaining_of(launch)
        end = max(computed, free.download if down else computed) + down
        return EngineTimes(max(free.upload, uploaded), max(free.compute, computed), max(free.download, end), end)

    def _upload_end(self, launch: Launch, stage: int, seconds: float, upload_free: float) -> float:
        table: Timetable = launch.table
        if stage in (RESTORE, QUEUED):
            return self.now
        if stage == UPLOAD:
            began = table.upload_start
            return max(self.now, began + seconds) if began <= self.now else upload_free + seconds
        states = [self._capacity.of[device.index] for device in launch.placement.devices]
        ready = max(available_at(state, self.now, state.free_amount) for state in states)
        sliced = (state.slices.busy[launch][1] for state in states if state.slices is not None)
        return max(upload_free, ready, *sliced) + seconds

    def free_at(self, device: Device, engine: Engine = "stream", lent: bool = False) -> float:
        """Return the time at which a device's engine will have finished all its launches.

        `engine`: a copy or compute engine, or "stream": the result is then the time at which one more launch on the
        whole device may start (on a CPU: at which a core is free).  `lent`: True if the query is from the replica that
        occupies the device; any other query about an occupied device returns inf.
        """
        now = self.now
        state = self._capacity.of[device.index]
        if engine == "stream" and state.free_amount >= (WHOLE if isinstance(state, GpuState) else 1000):
            return now
        launches = launches_on(self.state, device)
        if not lent and any(launch.resident for launch in launches):
            return math.inf
        if engine == "stream":
            return min((self.finish_of(launch) for launch in launches if not launch.resident), default=now)
        times = EngineTimes(now, now, now, now)
        for launch in launches:
            if launch.table is not None:
                times = self._follow(launch, times)
            elif not launch.resident:
                times = times._replace(compute=max(times.compute, now + self.remaining_of(launch)))
        return float(getattr(times, engine))
