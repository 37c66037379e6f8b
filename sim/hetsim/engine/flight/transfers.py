"""Transfers of a launch: uploads of missing data, final downloads, prefetches.

The functions that move data also estimate the cost of moving for policies (`upload_seconds`, `download_seconds`), so
that estimates agree with the run.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.flight.data_locations import Eviction, Places, Way, host, items_of, reads
from hetsim.engine.flight.history import History
from hetsim.engine.flight.launch import Lane, Launch, Moves, Terms, Timetable
from hetsim.engine.flight.links import Links
from hetsim.engine.flight.part import INF, Part
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.device import Device
from hetsim.model.fusion import Fusion, fusion_of
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task

Sources = dict[int, tuple[float, list[tuple[int, int]]]]  # bytes and (item, version) pairs to copy, by source location

# source, hops, bytes, seconds given as a duration, arriving (item, version) pairs
Transfer = tuple[int, list[tuple[Way, int]], float, float, list[tuple[int, int]]]


@dataclass(eq=False)
class Transfers:
    """The upload and download stages of launches.

    Callbacks: `arrived(part)` when the transfer of one accelerator (`Part`) over a shared path has ended;
    `cleared(owner)` when an eviction that a launch or prefetch waited for is done; `asked(lanes)` when a prefetch
    requests or releases the upload engine of an accelerator.
    """

    clock: Clock
    capacity: Capacity
    links: Links
    places: Places
    arrived: Callable[[Part], None]
    cleared: Callable[[Any], None]
    asked: Callable[[Sequence[Lane]], None]
    of_one: dict[Mode, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_columns()

    def read_columns(self) -> None:
        """Read the transfer sizes of all tasks; called again after tasks were added."""
        self.bytes_in = self.places.tasks.bytes_in
        self.bytes_out = self.places.tasks.bytes_out
        # Python numbers at hand: one of an array takes a quarter of the time of one of a NumPy column.
        self.into = None if self.bytes_in is None else array("d", self.bytes_in.astype(float).tobytes())
        self.out = None if self.bytes_out is None else array("d", self.bytes_out.astype(float).tobytes())

    # Memory of items ------------------------------------------------------------------------------------------

    def items_refusal(self, tasks: Sequence[Task], placement: Placement, private: int) -> str | None:
        """Return why the tasks' data do not fit into the devices' memory; None if they do.

        private: bytes that the launch needs in addition to shared data items.
        """
        if placement.mode.on_cpu:
            return None
        if not (items := self.needed_items(tasks, placement.mode)):
            return None
        for device in placement.devices:
            state = self.capacity.of[device.index]
            if (claim := self.places.claim(items, device) + private) > state.room:
                return f"{device} has {state.room:,} bytes free and the task's data need {claim:,}"
        return None

    def fusion(self, tasks: Sequence[Task]) -> Fusion:
        """Return what these tasks read and write if they were launched as one kernel now."""
        rows = [task.index for task in tasks]
        return fusion_of(self.places.tasks, rows, self.places.readers, self.places.writers)

    def needed_items(self, tasks: Sequence[Task], mode: Mode) -> tuple[int, ...]:
        return self.fusion(tasks).held_items if mode.parts else items_of(tasks)

    def make_room(self, gpu: GpuState, owner: Any) -> int:
        """Evict items for a launch or prefetch; return how many write-backs it waits for."""
        here = self.places.on(gpu.device)
        for item in self.places.evict(gpu):
            eviction = Eviction(gpu, item, self.places.items[item].size, self.places.version[item])
            here.leaving[eviction] = None  # its room is taken until the host has it
            self.links.send(self.links.down(gpu.device), eviction.size, 0.0, done=self._written_back, owner=eviction)
        if gpu.room - here.unpinned - sum(eviction.size for eviction in here.leaving) >= 0:
            return 0
        for eviction in here.leaving:
            eviction.waiters.append(owner)  # it waits for all evictions, whichever one frees its memory
        return len(here.leaving)

    def _written_back(self, flow: Any) -> None:
        eviction = flow.owner
        self.places.on(eviction.gpu.device).leaving.pop(eviction, None)  # a failure may have emptied it
        self.places.written_back(eviction.item, eviction.gpu, eviction.version)
        for owner in eviction.waiters:
            self.cleared(owner)

    # Upload -----------------------------------------------------------------------------------------------

    def plan(self, launch: Launch, table: Timetable) -> None:
        """Plan a launch's uploads and, if it has no data items, its downloads."""
        terms, tasks = launch.terms, launch._tasks or ()
        one = len(tasks) == 1 and tasks[0]._history is None and not (self.places.items or launch.placement.mode.on_cpu)
        if one if terms is None else terms.fresh:  # only private data, which wait only for their turns
            up_bytes, up_seconds, down_bytes, down_seconds = self.private(launch)
            if up_bytes or up_seconds:
                table.up = _parts(launch, table.lanes, True, size=up_bytes, seconds=up_seconds)
            if down_bytes or down_seconds:
                table.down = _parts(launch, table.lanes, False, size=down_bytes, seconds=down_seconds)
            return
        placement = launch.placement
        parts = []
        for device in placement.devices:  # what is missing there
            if (transfers := self.missing(launch.tasks, placement, device, terms)):
                lane = None if placement.mode.on_cpu else self.capacity.of[device.index].lane
                _, hops, size, seconds, items = transfers[0]
                one_way = len(transfers) == len(hops) == 1 and not items
                line = lane.up if one_way and lane is not None and lane.up.private else None
                parts.append(Part(launch, lane, device, line=line, size=size, seconds=seconds))
        table.up = tuple(parts)
        if table.items:
            table.estimate = self.upload_seconds(launch.tasks, placement, terms), 0.0
        else:  # final items are known once it has computed
            self.final(launch, table)

    def private(self, launch: Launch, true: bool = True) -> Moves:
        """Return bytes and seconds of a launch's own upload and download.

        Data items, which tasks share, are not included.  true: include the random variation of a batch's stage times.
        """
        mode = launch.placement.mode
        if (terms := launch.terms) is None:
            row = launch._tasks[0].index  # type: ignore[index]
            up_seconds, down_seconds = self.of_one.get(mode) or self.seconds_of_one(mode)
            into, out = self.into, self.out
            return (0.0 if into is None else into[row], up_seconds, 0.0 if out is None else out[row], down_seconds)
        size, rows = terms.requests.size, terms.rows
        up, down = (terms.up, terms.down) if true else (1.0, 1.0)
        moved = [0.0 if column is None else float(column[rows].sum()) for column in (self.bytes_in, self.bytes_out)]
        return moved[0], mode.upload.seconds_for(size) * up, moved[1], mode.download.seconds_for(size) * down

    def seconds_of_one(self, mode: Mode) -> tuple[float, float]:
        """Return the fixed upload and download seconds of a task in a mode, cached."""
        seconds = self.of_one[mode] = mode.upload.seconds_for(1), mode.download.seconds_for(1)
        return seconds

    def missing(
        self, tasks: Sequence[Task], placement: Placement, device: Device, terms: Terms | None = None,
        true: bool = True, histories: Sequence[History | None] | None = None,
    ) -> list[Transfer]:  # fmt: skip
        """Return the transfers to one device that a launch still needs.

        They include private data (data of one task only).  A stopped task needs its saved state and its input.  If its
        input was saved with the state, devices on the node that stores the state do not need the input again.  A task
        that has computed everything needs only its output, if it continues on another device.  `terms`: padding and
        noise of a batch (None: not a batch); `true`: use the true instead of the expected stage times of a batch;
        `histories`: what each task has saved (None: as recorded in the tasks).
        """
        places, mode, home = self.places, placement.mode, host(device.node)
        size, seconds = 0.0, 0.0
        sources: Sources = {}
        fresh = unfinished = 0
        for task, history in zip(tasks, histories or [task._history for task in tasks], strict=True):
            for source, saved in () if history is None else self._saved(task, history, placement, device):
                _add(sources, source, saved)
            if history is not None and history.checkpoint == 1.0:
                continue
            unfinished += 1  # one that is done needs no input, only its output
            near = history is not None and history.input_saved and history.source(placement, device) == home
            if mode.on_cpu or near:
                continue  # its input is in the host's memory, or part of the state there
            fresh += 1
            if history is None or not history.input_saved:
                size += task.bytes_in / mode.gpus  # each device of a gang gets an equal part
            elif task.bytes_in:  # sent together with the state
                _add(sources, history.source(placement, device), task.bytes_in / mode.gpus)
        if fresh:
            seconds = mode.upload.seconds_for(fresh)
            if terms is not None:
                seconds = mode.upload.seconds_for(fresh + terms.extra) * (terms.up if true else 1.0)
        read = () if not (unfinished and places.items) else self.fusion(tasks).inputs if mode.parts else reads(tasks)
        for item in places.missing(read, device):
            # The nearest copy at present; copies may change before the turn.
            if (copy := places.source(item, device)) is not None:  # else nothing has written it yet: nothing to bring
                _add(sources, copy, places.items[item].size, (item, places.version[item]))
        here, items_here = sources.pop(home, (0.0, [])) if sources else (0.0, [])
        if device.type.kind == "cpu":
            here = 0.0  # already in host memory
        transfers: list[Transfer] = []
        if size or here or seconds or items_here:
            transfers.append((home, places.hops(home, device), size + here, seconds, items_here))
        for source, (total, items) in sources.items():
            transfers.append((source, places.hops(source, device), total, 0.0, items))
        return [transfer for transfer in transfers if transfer[1]]

    def _saved(self, task: Task, history: History, placement: Placement, device: Device) -> list[tuple[int, float]]:
        """Return (location, bytes) of state or output that a resumed task's device needs."""
        saved: float = task.shape.stopping.state if history.state_saved else 0
        if history.checkpoint == 1.0:
            saved = task.bytes_out + sum(self.places.items[item].size for item in task.writes)
        if saved and history.in_memory:
            return [(source, saved * part) for source, part in history.parts(placement)[device]]
        return [(history.source(placement, device), saved / len(placement.devices))] if saved else []

    def _alone(self, transfers: list[Transfer]) -> float:
        total = 0.0
        for _, hops, size, seconds, _ in transfers:
            total += seconds
            for way, _ in hops:
                total += Links.alone(way, size)
        return total

    def upload_seconds(
        self, tasks: Sequence[Task], placement: Placement, terms: Terms | None = None,
        histories: Sequence[History | None] | None = None,
    ) -> float:  # fmt: skip
        """Return the estimated seconds of an upload stage on idle links and engines."""
        return max(
            self._alone(self.missing(tasks, placement, device, terms, true=False, histories=histories))
            for device in placement.devices
        )

    # The turn of a part that is not alone on its way ----------------------------------------------------------

    def turn(self, part: Part, way: Callable[[Device], Way]) -> None:
        """Begin a transfer whose turn at the copy engine has come.

        The data that an upload must move are determined only now.  `way`: function that returns the path between an
        accelerator and its host, in the direction of the transfer.
        """
        launch: Launch = part.owner
        part.begun = True
        if part.settled:
            part.flow = self.links.send(way(part.device), part.size, part.seconds, done=self.brought, owner=part)
            return
        transfers = self.missing(launch.tasks, launch.placement, part.device, launch.terms)
        part.moved = bool(transfers)  # another launch may have copied everything in the meantime
        # The seconds of a stage go with its first leg, once.
        part.legs = [
            (way, size, seconds if number == 0 else 0.0, items, location, source if number == 0 else -1)
            for source, hops, size, seconds, items in transfers
            for number, (way, location) in enumerate(hops)
        ]
        self.go_on(part)

    def go_on(self, part: Part) -> None:
        """Start a part's next transfer; end the part if none is left or its device failed."""
        if not part.legs or not self.capacity.of[part.device.index].up:
            part.until = self.clock._now
            self.arrived(part)  # nothing is left to move, or nothing was
            return
        way, size, seconds, _, _, source = part.legs[0]
        if source >= 0:
            self._share(self.places.cluster.devices[source])
        part.flow = self.links.send(way, size, seconds, done=self.brought, owner=part)

    def brought(self, flow: Any) -> None:
        """Register the data that a completed transfer moved; start the next transfer."""
        part = flow.owner
        part.flow = None
        if part.legs:
            _, _, _, items, location, _ = part.legs.pop(0)
            for item, version in items if location < 0 or self.capacity.of[location].up else ():
                self.places.arrived(item, location, version)
        self.go_on(part)

    def _share(self, device: Device) -> None:
        """Simulate an accelerator's private links as shared: other devices now use them."""
        lane: Lane = self.capacity.of[device.index].lane
        if not lane.down.private or lane.down.rate == INF:
            return
        lane.write_out()
        now, links = self.clock._now, self.links
        ways = (lane.uploads, lane.up, links.up(device)), (lane.downloads, lane.down, links.down(device))
        for parts, line, (pipes, _) in ways if lane.up.rate < INF else ways[1:]:
            for part in [part for part in parts if part.alone and part.until > now and line.private]:
                latency, size = part.at + part.delay - now, min(part.span, part.until - now) * line.rate
                part.alone, part.settled, part.begun = False, True, part.at <= now
                part.until, part.delay, part.span = INF, INF, 0.0  # its end is not known any more: it comes by an event
                if part.begun:
                    part.flow = links.send((pipes, max(0.0, latency)), size, 0.0, done=self.brought, owner=part)
                    links.moved += part.size - size  # `send` counts only what was left of it
        lane.up, lane.down = lane.up._replace(private=lane.up.rate == INF), lane.down._replace(private=False)
        lane.shared, lane.direct = True, lane.direct and not lane.up.private
        self.asked((lane,))  # recompute turns that were known

    def cancel(self, table: Timetable) -> None:
        for part in (*table.up, *table.down):
            if part.flow is not None:
                self.links.cancel(part.flow)
                part.flow = None

    # Download ---------------------------------------------------------------------------------------------

    def final(self, launch: Launch, table: Timetable) -> None:
        """Plan the download stage of a launch, which copies data to its host at its end."""
        mode = launch.placement.mode
        if mode.on_cpu:
            return
        size, seconds = self.final_bytes(launch.tasks, mode, launch.terms, fusion=launch.fusion)
        if size or seconds:
            table.down = _parts(launch, table.lanes, False, size=size, seconds=seconds)

    def final_bytes(
        self, tasks: Sequence[Task], mode: Mode, terms: Terms | None = None, true: bool = True,
        fusion: Fusion | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Return the bytes to download, and the additional seconds that the mode states."""
        size = float(sum([task.bytes_out for task in tasks]))
        if self.places.items:
            items = (fusion or self.fusion(tasks)).outputs if mode.parts else [i for task in tasks for i in task.writes]
            size += sum(self.places.items[item].size for item in items if self.places.final(item, tasks))
        if terms is None:
            return size, mode.download.seconds_for(len(tasks))
        return size, mode.download.seconds_for(len(tasks) + terms.extra) * (terms.down if true else 1.0)

    def download_seconds(self, tasks: Sequence[Task], placement: Placement, terms: Terms | None = None) -> float:
        if placement.mode.on_cpu:
            return 0.0
        size, seconds = self.final_bytes(tasks, placement.mode, terms, False)
        size /= len(placement.devices)
        return seconds + max(Links.alone(self.links.down(device), size) for device in placement.devices)

    def estimate(self, launch: Launch) -> tuple[float, float]:
        """Return the estimated seconds of upload and download on idle links."""
        table: Timetable = launch.table
        terms, placement, estimate = launch.terms, launch.placement, table.estimate
        if estimate is not None and not table.items:
            return estimate
        if terms is not None and terms.fresh and not table.items:  # requests without objects: by their columns
            up_bytes, up, down_bytes, down = self.private(launch, False)
            parts = len(placement.devices)
            up += max([Links.alone(self.links.up(device), up_bytes / parts) for device in placement.devices])
            down += max([Links.alone(self.links.down(device), down_bytes / parts) for device in placement.devices])
        else:
            up = estimate[0] if estimate is not None else self.upload_seconds(launch.tasks, placement, terms)
            down = self.download_seconds(launch.tasks, placement, terms)
        if not table.items:
            table.estimate = up, down
        return up, down


def _add(sources: Sources, source: int, size: float, *items: tuple[int, int]) -> None:
    total, before = sources.get(source, (0.0, []))
    sources[source] = total + size, [*before, *items]


def _parts(launch: Launch, lanes: Sequence[Lane], up: bool, size: float, seconds: float) -> tuple[Part, ...]:
    devices = launch.placement.devices
    size /= len(devices)
    return tuple([
        Part(launch, lane, device, line=lane.up if up else lane.down, size=size, seconds=seconds)
        for device, lane in zip(devices, lanes, strict=True)
    ])  # fmt: skip
