"""Batches on accelerators that nothing disturbs: all stage times of a launch are known when it starts.

An accelerator's engines serve launches in start order, so where no rate can change and no link is shared the end of
every stage follows from the engines' last ends, and a launch needs one event instead of four.  Such launches give
the same tables, to the last bit, as those that go through `oracle.engine.launcher`; a test says so.

`undisturbed` says when that is allowed.  Anything else (faults, frequencies, shared links or devices, data with
places, tasks besides the services) sends every launch the full way.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from oracle.engine.clock import FINISH, Timer
from oracle.engine.links import Links
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.record import LAUNCH_COMPLETED, RunInput
from sim.model.tasks import Mode, Task
from sim.policy.batching import Batching, BatchReport
from sim.policy.request_queue import BatchTimes, Requests

if TYPE_CHECKING:
    from oracle.engine.simulation import Simulation

NAN = math.nan


def undisturbed(run: RunInput, links: Links) -> bool:
    """May the batches of this run go the short way?"""
    tasks = run.tasks
    served = sum(len(service.rows) for service in run.services)
    if not run.services or served < len(tasks) or tasks.predecessors is not None or tasks.items:
        return False
    still = getattr(run.scheduler, "undisturbed", not run.scheduler.sets_devices)
    disturbed = not still or not all(getattr(batching, "undisturbed", True) for batching in run.batching)
    if run.faults or disturbed:
        return False
    modes = [mode for service in run.services for mode in service.shape.modes]
    devices = [device for node in run.cluster.nodes for device in node.accelerators]
    private = all(_private(links, device) for device in devices)
    # A launch without upload would overtake one that is uploading.
    uploads = {bool(mode.upload.fixed or mode.upload.per_item or tasks.bytes_in is not None) for mode in modes}
    return private and len(uploads) == 1 and all(_simple(mode) for mode in modes)


def _private(links: Links, device: Device) -> bool:
    """Has the device a way of its own in each direction?"""
    up, down = links.up(device)[0], links.down(device)[0]
    return device.switch is None and not any(pipe in down for pipe in up)


def _simple(mode: Mode) -> bool:
    one = mode.gpus == 1 and mode.whole and not mode.span_any and not mode.type.preemption.overhead
    return one and mode.type.sharing.kind == "exclusive"


class BatchLaunch(Timer):
    """A launch of requests with its stage times; a stage that it does not have is NaN."""

    __slots__ = (
        "number", "task", "tasks", "placement", "cores", "decided", "requests", "first", "position", "stages",
        "upload_start", "upload_end", "compute_start", "compute_end", "download_start", "end", "oldest", "planned",
    )  # fmt: skip
    number: int
    placement: Placement
    cores: int
    position: int
    decided: float
    requests: Requests
    first: int
    """Of its requests among those of the service, if they are a slice; else -1."""
    task: Task | None
    tasks: tuple[Task, ...]
    """Empty where the requests are a slice."""
    upload_start: float
    upload_end: float
    compute_start: float
    compute_end: float
    download_start: float
    end: float
    oldest: float
    planned: float
    """Estimated seconds of computing."""
    stages: None

    def __hash__(self) -> int:
        return int(self.number)


class Path:
    """What a launch in one mode on one accelerator needs: rates and latencies of its ways."""

    __slots__ = ("mode", "rate_up", "latency", "rate_down", "watts")

    def __init__(self, mode: Mode, links: Links, device: Device):
        up, latency = links.up(device)
        down, _ = links.down(device)
        self.mode = mode
        self.rate_up = min((pipe.rate for pipe in up), default=math.inf)
        self.rate_down = min((pipe.rate for pipe in down), default=math.inf)
        self.latency = latency
        self.watts = device.type.power.busy - device.type.power.idle


def passed(start: float, seconds: float, size: float, rate: float, latency: float) -> float:
    """When a transfer that begins at `start` ends, alone on its way: reckoned as `Links.send` does."""
    delay = latency if size else 0.0
    if rate == math.inf:
        delay += seconds
        return start + delay if delay else start
    if seconds:
        size += seconds * rate
    if delay:
        start += delay
    return start + size / rate if size else start


class Lane:
    """One accelerator: when its engines have served all that was started, and what is in flight."""

    __slots__ = ("upload", "compute", "download", "flights")

    def __init__(self) -> None:
        self.upload = self.compute = self.download = 0.0
        self.flights: deque[BatchLaunch] = deque()


class Pipeline:
    """Launches batches the short way."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.clock = simulation.clock
        self.lanes: dict[int, Lane] = {}
        self.paths: dict[tuple[Mode, int], Path] = {}
        self.listens = [type(policy).ended is not Batching.ended for policy in simulation.input.batching]
        """Does the batching policy of each service want to hear of the ends of its batches?"""
        self.bytes_in = simulation.tasks.bytes_in
        self.bytes_out = simulation.tasks.bytes_out

    def path(self, mode: Mode, device: Device) -> Path:
        key = (mode, device.index)
        path = self.paths.get(key)
        if path is None:
            path = self.paths[key] = Path(mode, self.simulation.links, device)
        return path

    def begin(self, requests: Requests, placement: Placement, position: int) -> None:
        """Start validated requests on a placement that they have taken."""
        simulation = self.simulation
        now = self.clock._now
        queue, mode, device = requests.queue, placement.mode, placement.devices[0]
        launch = BatchLaunch(self._over)
        simulation.last_launch = launch.number = simulation.last_launch + 1
        launch.placement, launch.requests, launch.position = placement, requests, position
        launch.decided, launch.stages, launch.oldest = now, None, queue.arrival(0)
        count, size = requests.count, requests.size
        tasks = requests.tasks
        if tasks is None:
            launch.first = queue.take(count)
            launch.tasks, launch.task = (), None
        else:
            launch.first = -1
            launch.tasks, launch.task = tasks, tasks[0]
            launch.oldest = min(task.arrival for task in tasks) + queue.service.request_delay
            simulation.taken(launch, tasks)
        launch.cores = 0
        simulation.running[launch.number] = launch  # type: ignore[assignment]
        self._time(launch, self.path(mode, device), self._lane(device), count, size)
        self.clock.at(launch.end, FINISH, launch)

    def _lane(self, device: Device) -> Lane:
        lane = self.lanes.get(device.index)
        if lane is None:
            lane = self.lanes[device.index] = Lane()
        return lane

    def _time(self, launch: BatchLaunch, path: Path, lane: Lane, count: int, size: int) -> None:
        """Work out when its stages are."""
        now, mode = self.clock._now, path.mode
        noise = launch.requests.queue.factors()
        bytes_in = 0.0 if self.bytes_in is None else self._bytes(launch, self.bytes_in, count)
        bytes_out = 0.0 if self.bytes_out is None else self._bytes(launch, self.bytes_out, count)
        upload = (mode.upload.fixed + mode.upload.per_item * size) * noise[0]
        at = now
        launch.upload_start = launch.upload_end = NAN
        if upload or bytes_in:
            launch.upload_start = at = max(now, lane.upload)
            launch.upload_end = at = lane.upload = passed(at, upload, bytes_in, path.rate_up, path.latency)
        work = self._work(launch, count, size)
        launch.planned = mode.fixed + work[1]
        launch.compute_start = max(at, lane.compute)
        launch.compute_end = at = lane.compute = launch.compute_start + (mode.fixed + work[0]) * noise[1]
        download = (mode.download.fixed + mode.download.per_item * size) * noise[2]
        launch.download_start = NAN
        if download or bytes_out:
            launch.download_start = at = max(at, lane.download)
            at = lane.download = passed(at, download, bytes_out, path.rate_down, path.latency)
        launch.end = at
        lane.flights.append(launch)

    def _bytes(self, launch: BatchLaunch, column: Any, count: int) -> float:
        if launch.task is not None:
            return float(sum(column[task.index] for task in launch.tasks))
        return float(column[launch.requests.queue.rows(launch.first, count)].sum())

    def _work(self, launch: BatchLaunch, count: int, size: int) -> tuple[float, float]:
        """Compute seconds of the members, true and estimated."""
        queue, position = launch.requests.queue, launch.position
        service = queue.service
        each = service.per_item[position]
        if service.alike:
            work = count * each + (size - count) * each
            return work, work
        table, padding = queue.table, (size - count) * each
        if launch.task is not None:
            times = [task._time[position] for task in launch.tasks]
            estimates = [task.estimates[position] for task in launch.tasks]
        else:
            rows = queue.rows(launch.first, count)
            times = table.time[rows, position].tolist()
            estimates = times if table.estimate is table.time else table.estimate[rows, position].tolist()
        return math.fsum(times) + padding, math.fsum(estimates) + padding

    # The end --------------------------------------------------------------------------------------------------

    def _over(self, launch: BatchLaunch) -> None:
        simulation = self.simulation
        placement = launch.placement
        simulation.capacity.quick_give(placement, 0)
        lane = self.lanes[placement.devices[0].index]
        if lane.flights[0] is launch:
            lane.flights.popleft()
        else:
            lane.flights.remove(launch)
        self.write(launch, LAUNCH_COMPLETED, launch.end)
        simulation.batch_over(launch)

    def write(self, launch: BatchLaunch, outcome: int, end: float) -> None:
        """A row for the launch, complete or as it is at the end of the run."""
        path = self.path(launch.placement.mode, launch.placement.devices[0])
        if outcome == LAUNCH_COMPLETED:
            began = launch.compute_start
            start = launch.upload_start if launch.upload_start == launch.upload_start else began
            times = (
                launch.decided, start, launch.upload_start, launch.upload_end, began, launch.compute_end,
                launch.download_start, end,
            )  # fmt: skip
            busy = launch.compute_end - began
            self.simulation.recorder.batch(launch, outcome, times, busy, busy * path.watts)
            return
        known = [
            time if time <= end else NAN
            for time in (
                launch.upload_start, launch.upload_end, launch.compute_start, launch.compute_end, launch.download_start
            )
        ]  # fmt: skip
        start = known[0] if launch.upload_start == launch.upload_start else known[2]
        busy = (known[3] if known[3] == known[3] else end) - known[2] if known[2] == known[2] else 0.0
        self.simulation.recorder.batch(launch, outcome, (launch.decided, start, *known, end), busy, busy * path.watts)

    def report(self, launch: BatchLaunch) -> BatchReport:
        """What the batching policy is told of a launch that has ended."""
        start, end = launch.upload_start, launch.end
        down = launch.download_start
        up = start == start
        return BatchReport(
            launch.requests.count,
            launch.requests.size,
            launch.placement,
            launch.decided,
            start if up else launch.compute_start,
            launch.upload_end if up else launch.compute_start,
            launch.compute_start,
            launch.compute_end,
            down if down == down else end,
            end,
            launch.oldest,
        )

    # Estimates ------------------------------------------------------------------------------------------------

    def free_at(self, device: Device, engine: str) -> float:
        """As `EngineView.free_at`, on the same estimates."""
        now = self.clock._now
        lane = self.lanes.get(device.index)
        upload = compute = download = now
        ends = []
        for launch in lane.flights if lane is not None else ():
            upload, compute, download, end = self._follow(launch, now, upload, compute, download)
            ends.append(end)
        if engine == "stream":
            free = device.type.streams - len(ends)
            return now if free > 0 else min(ends)
        return {"upload": upload, "compute": compute, "download": download}[engine]

    def _follow(
        self, launch: BatchLaunch, now: float, upload: float, compute: float, download: float
    ) -> tuple[float, float, float, float]:
        """The engines' next free times, as far as estimates tell, once they have served this launch too."""
        times = self.alone(launch.requests.size, launch.placement, launch.position, launch)
        seconds = times.download
        if launch.compute_end <= now:
            began = launch.download_start
            end = max(now, began + seconds) if began <= now else download + seconds
            return upload, compute, end, end
        if launch.compute_start <= now:
            uploaded = now
            computed = max(now, launch.compute_start + launch.planned)
        else:
            if not launch.upload_end > now:
                uploaded = now
            elif launch.upload_start <= now:
                uploaded = max(now, launch.upload_start + times.upload)
            else:
                uploaded = upload + times.upload
            computed = max(uploaded, compute) + launch.planned
        end = max(computed, download if seconds else computed) + seconds
        return max(upload, uploaded), max(compute, computed), max(download, end), end

    def alone(self, size: int, placement: Placement, position: int, launch: BatchLaunch) -> BatchTimes:
        """Estimated stage times of a launch on idle engines."""
        path, mode, count = self.path(placement.mode, placement.devices[0]), placement.mode, launch.requests.count
        bytes_in = 0.0 if self.bytes_in is None else self._bytes(launch, self.bytes_in, count)
        bytes_out = 0.0 if self.bytes_out is None else self._bytes(launch, self.bytes_out, count)
        up = mode.upload.of(size) + (path.latency + bytes_in / path.rate_up if bytes_in else 0.0)
        down = mode.download.of(size) + (path.latency + bytes_out / path.rate_down if bytes_out else 0.0)
        return BatchTimes(up, launch.planned, down)
