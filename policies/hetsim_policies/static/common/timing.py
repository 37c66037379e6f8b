"""When each step of a plan starts and ends, computed without the engine.

A lane (core or GPU) starts its tasks in the order of the plan; a task starts when a stream of the lane is free, it has
arrived and its predecessors are done.  An accelerator has an upload, a compute and a download engine, each for one task
at a time, in the order of starts.  A memory has a copy of an item after the item was read or written there, or after a
transfer of the item has passed through it.  A task transfers its missing items memory by memory (all items from one
together) and hop by hop (host, other node, device); results that no later task uses are downloaded to the host.
Each transfer is timed as if it used its links alone.  The timetable is `exact` if no transfers share a link, and if
neither memory, host cores nor sharing rules can delay a task; if estimates are right, starts equal the run's.
Cost: O(n + edges) if lanes are serial and nothing is shared, else O((n + edges + reads) log n), in Python.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from hetsim.model.device import Device
from hetsim.model.device_type import Link
from hetsim.model.stages import download_rate, way_to_host
from hetsim_policies.static.common.instance import Instance, undisturbed
from hetsim_policies.task_graphs import graph_of, successors

UP, COMPUTE, DOWN = range(3)
ARRIVE, ENGINE, LEG = range(3)  # Events: a task arrives, an engine is done with a task, a leg of an upload is over

NOMINAL: Mapping[str, float] = {}
Placed = tuple[int, int, int]  # (task, type, lane number), in the order of the plan


@dataclass(frozen=True)
class Timing:
    """Start and finish of each task; `exact`: as in the run if estimates are right."""

    start: np.ndarray
    finish: np.ndarray
    exact: bool


def timing(instance: Instance, placed: Sequence[Placed], frequencies: Mapping[str, float] = NOMINAL) -> Timing:
    """Compute a plan's timetable; `placed` has each task once, in a valid order.

    frequencies: by device name, for devices whose frequency is not 1.
    """
    tasks = instance.problem.tasks
    if any(tasks.reads or ()) or any(tasks.writes or ()) or instance.pipelined:
        return Pipeline(instance, placed, frequencies).run()
    # Lanes take one task at a time, each for as long as it says.
    if instance.alike and not frequencies:
        rows = np.array(placed, dtype=np.int64).reshape(-1, 3)
        seconds = instance.alone[rows[:, 0], rows[:, 1]].tolist()
    else:
        stages = LaneStages(instance, frequencies)
        seconds = [sum(stages.seconds(*one)) for one in placed]
    arrival, graph = np.maximum(tasks.arrival, instance.problem.now).tolist(), tasks.predecessors
    free = [[0.0] * count if instance.free is None else instance.free[kind].tolist()
            for kind, count in enumerate(instance.counts)]  # fmt: skip
    start, finish = [0.0] * instance.size, [0.0] * instance.size
    for (task, kind, lane), length in zip(placed, seconds, strict=True):
        at = free[kind][lane]
        if arrival[task] > at:
            at = arrival[task]
        for before in graph[task] if graph is not None else ():
            if finish[before] > at:
                at = finish[before]
        start[task] = at
        finish[task] = free[kind][lane] = at + length
    return Timing(np.array(start), np.array(finish), undisturbed(instance))


class LaneStages:
    """Seconds of the stages of tasks on given cores or GPUs."""

    def __init__(self, instance: Instance, frequencies: Mapping[str, float] = NOMINAL):
        self.instance = instance
        self.frequencies = frequencies
        cluster, self.devices = instance.problem.cluster, instance.devices
        self.ways = [[way_to_host(cluster, device) for device in devices] for devices in self.devices]
        self.fixed: dict[tuple[int, int], tuple[float, float]] = {}

    def seconds(self, task: int, kind: int, lane: int) -> tuple[float, float, float]:
        instance = self.instance
        compute = self.compute(task, kind, lane)
        if instance.types[kind].kind == "cpu":
            return 0.0, compute, 0.0
        way, up, down = self.ways[kind][lane], instance.private.up[task], instance.private.down[task]
        fixed = self.durations(task, kind)
        above = fixed[0] + (way.latency + up * way.up if up > 0 else 0.0)
        return above, compute, fixed[1] + (way.latency + down * way.down if down > 0 else 0.0)

    def compute(self, task: int, kind: int, lane: int) -> float:
        seconds = float(self.instance.compute[task, kind])
        return seconds / self.frequencies.get(self.devices[kind][lane].name, 1.0) if self.frequencies else seconds

    def durations(self, task: int, kind: int) -> tuple[float, float]:
        """Return a task's fixed seconds of upload and download, without those per byte."""
        tasks = self.instance.problem.tasks
        key = int(tasks.shape[task]), int(self.instance.mode[task, kind])
        if key not in self.fixed:
            mode = tasks.shapes[key[0]].modes[key[1]]
            self.fixed[key] = mode.upload.seconds_for(1), mode.download.seconds_for(1)
        return self.fixed[key]


@dataclass(eq=False, slots=True)
class TimedLane:
    """One core or GPU in the timetable: its queue and its launches.

    holder, waiting: of each engine (upload, compute, download) the task that uses it, and those that wait.
    """

    device: Device
    kind: int
    number: int
    since: float
    queue: list[int] = field(default_factory=list)
    head: int = 0
    flying: int = 0
    holder: list[int] = field(default_factory=lambda: [-1, -1, -1])
    waiting: list[list[int]] = field(default_factory=lambda: [[], [], []])
    streams: int = field(init=False)
    place: int = field(init=False)  # location of its data: a device index, or -1 - node for host memory

    def __post_init__(self) -> None:
        on_host = self.device.type.kind == "cpu"
        self.streams = 1 if on_host else self.device.type.streams
        self.place = -1 - self.device.node if on_host else self.device.index


class Pipeline:
    """The timetable of a plan, computed event by event; stages may overlap."""

    def __init__(self, instance: Instance, placed: Sequence[Placed], frequencies: Mapping[str, float] = NOMINAL):
        self.instance = instance
        problem = instance.problem
        self.tasks, self.cluster = problem.tasks, problem.cluster
        self.stages = LaneStages(instance, frequencies)
        self.lanes: dict[tuple[int, int], TimedLane] = {}
        for kind, devices in enumerate(self.stages.devices):
            for number, device in enumerate(devices):
                since = problem.now if instance.free is None else float(instance.free[kind][number])
                self.lanes[kind, number] = TimedLane(device, kind, number, since)
        self.lane_of: list[TimedLane] = [None] * instance.size  # type: ignore[list-item]
        for task, kind, number in placed:
            lane = self.lane_of[task] = self.lanes[kind, number]
            lane.queue.append(task)
        size = instance.size
        self.missing = [1 + len(dict.fromkeys(before)) for before in self.tasks.predecessors or [()] * size]
        self.after = successors(graph_of(self.tasks))
        self.start, self.finish = [np.nan] * size, [np.nan] * size
        self.number = [0] * size
        self.started = 0
        self.events: list[tuple[float, int, int, int]] = []
        self.legs: dict[int, list[tuple[float, list[tuple[str, float]], list[int], int]]] = {}
        self.busy: dict[str, float] = {}
        self.contended = False
        self.items = Copies(instance) if self.tasks.items else None

    def run(self) -> Timing:
        for task, at in enumerate(np.maximum(self.tasks.arrival, self.instance.problem.now).tolist()):
            heapq.heappush(self.events, (at, ARRIVE, task, 0))
        for lane in self.lanes.values():  # asks again once it is free at first
            if lane.queue and lane.since > 0:
                heapq.heappush(self.events, (lane.since, ARRIVE, -1 - lane.queue[0], 0))
        touched: dict[int, TimedLane] = {}
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, what, task, engine = heapq.heappop(self.events)
                if what == ARRIVE and task < 0:
                    touched[id(self.lane_of[-1 - task])] = self.lane_of[-1 - task]
                elif what == ARRIVE:
                    self._there(task, touched)
                elif what == LEG:
                    self._leg_done(task, now, touched)
                else:
                    self._served(task, engine, now, touched)
            self._serve(touched, now)
            touched.clear()
        start, finish = np.array(self.start, dtype=float), np.array(self.finish, dtype=float)
        assert not np.isnan(finish).any(), "the orders of the plan contradict the predecessors"
        exact = not self.contended and undisturbed(self.instance) and not np.isnan(start).any()
        return Timing(start, finish, exact)

    def _there(self, task: int, touched: dict[int, TimedLane]) -> None:
        self.missing[task] -= 1
        if not self.missing[task]:
            touched[id(self.lane_of[task])] = self.lane_of[task]

    def _serve(self, touched: dict[int, TimedLane], now: float) -> None:
        for lane in list(touched.values()):
            while lane.head < len(lane.queue) and lane.flying < lane.streams and now >= lane.since:
                task = lane.queue[lane.head]
                if self.missing[task]:
                    break
                lane.head += 1
                lane.flying += 1
                self.number[task] = self.started
                self.started += 1
                up = self.stages.seconds(task, lane.kind, lane.number)[UP]
                missing = self.items is not None and self.items.sources(task, lane.place, lane.device)
                lane.waiting[UP if up > 0 or missing else COMPUTE].append(task)
            for engine in (UP, COMPUTE, DOWN):
                if lane.holder[engine] < 0 and lane.waiting[engine]:
                    task = min(lane.waiting[engine], key=self.number.__getitem__)
                    lane.waiting[engine].remove(task)
                    self._begin(lane, task, engine, now)

    def _begin(self, lane: TimedLane, task: int, engine: int, now: float) -> None:
        lane.holder[engine] = task
        if engine == UP:
            self.legs[task] = self._uploads(lane, task)
            if self.legs[task]:
                self.start[task] = now
            self._next_leg(task, now)
            return
        if engine == COMPUTE:
            if self.start[task] != self.start[task]:
                self.start[task] = now
            length = self.stages.compute(task, lane.kind, lane.number)
        else:
            way, size = self.stages.ways[lane.kind][lane.number], self._home_bytes(task)
            length = self.stages.durations(task, lane.kind)[1] + (way.latency + size * way.down if size else 0.0)
            self._use(self._device_links(lane.device, "down"), now + way.latency, now + length)
        heapq.heappush(self.events, (now + length, ENGINE, task, engine))

    def _uploads(self, lane: TimedLane, task: int) -> list[tuple[float, list[tuple[str, float]], list[int], int]]:
        """Return a task's uploads: (seconds, [(link, latency)], items, destination)."""
        way, fixed = self.stages.ways[lane.kind][lane.number], (0.0, 0.0)
        size = 0.0
        if lane.device.type.kind != "cpu":
            size, fixed = float(self.instance.private.up[task]), self.stages.durations(task, lane.kind)
        sources = self.items.sources(task, lane.place, lane.device) if self.items is not None else {}
        legs = []
        here, items = sources.pop(-1 - lane.device.node, (0.0, []))
        if lane.device.type.kind != "cpu" and (size or here or fixed[0] or items):
            seconds = fixed[0] + (way.latency if size + here else 0.0) + (size + here) * way.up
            legs.append((seconds, self._device_links(lane.device, "up"), items, lane.place))
        for source, (total, names) in sources.items():
            legs += [(*leg[:2], names, leg[2]) for leg in self._hops(source, lane, total)]
        return legs

    def _hops(self, source: int, lane: TimedLane, size: float) -> list[tuple[float, list[tuple[str, float]], int]]:
        """Return the transfers that bring data from `source` to a device, hop by hop.

        For each: seconds if alone, the links that it uses, and the place where the data then are.
        """
        hops = []
        node = -1 - source
        if source >= 0:
            origin = self.cluster.devices[source]
            node, way = origin.node, way_to_host(self.cluster, origin)
            seconds = (way.latency if size else 0.0) + size * way.down
            hops.append((seconds, self._device_links(origin, "down"), -1 - node))
        if node != lane.device.node:
            out, into = self.cluster.nodes[node].spec.network, self.cluster.nodes[lane.device.node].spec.network
            pace = 1 / min(out.upload, download_rate(into))
            seconds = (out.latency + into.latency if size else 0.0) + size * pace
            links = self._pipes((f"net{node}", out, "up"), (f"net{lane.device.node}", into, "down"))
            hops.append((seconds, links, -1 - lane.device.node))
        if lane.device.type.kind != "cpu":
            way = self.stages.ways[lane.kind][lane.number]
            seconds = (way.latency if size else 0.0) + size * way.up
            hops.append((seconds, self._device_links(lane.device, "up"), lane.place))
        return hops

    def _device_links(self, device: Device, direction: str) -> list[tuple[str, float]]:
        named = [(device.name, device.type.link, direction)]
        if device.switch is not None:
            named.append(
                (f"switch{device.node}.{device.switch}", self.cluster.nodes[device.node].spec.switch, direction)
            )
        return self._pipes(*named)

    @staticmethod
    def _pipes(*named: tuple[str, Link, str]) -> list[tuple[str, float]]:
        rates = [link.upload if direction == "up" else download_rate(link) for _, link, direction in named]
        finite = [one for one, rate in zip(named, rates, strict=True) if np.isfinite(rate)]
        return [(name if link.duplex == "half" else f"{name}:{way}", link.latency) for name, link, way in finite]

    def _use(self, pipes: list[tuple[str, float]], since: float, until: float) -> None:
        for name, _ in pipes:
            if self.busy.get(name, -np.inf) > since * (1 + 1e-12):
                self.contended = True
            self.busy[name] = max(self.busy.get(name, 0.0), until)

    def _next_leg(self, task: int, now: float) -> None:
        lane, legs = self.lane_of[task], self.legs[task]
        if not legs:
            heapq.heappush(self.events, (now, ENGINE, task, UP))
            return
        seconds, pipes, _, _ = legs[0]
        self._use(pipes, now + min(seconds, sum(latency for _, latency in pipes)), now + seconds)
        heapq.heappush(self.events, (now + seconds, LEG, task, lane.kind))

    def _leg_done(self, task: int, now: float, touched: dict[int, TimedLane]) -> None:
        _, _, items, place = self.legs[task].pop(0)
        if self.items is not None:
            self.items.arrived(items, place)
        if self.legs[task]:
            self._next_leg(task, now)
        else:
            self._served(task, UP, now, touched)

    def _home_bytes(self, task: int) -> float:
        own = 0.0 if self.tasks.bytes_out is None else float(self.tasks.bytes_out[task])
        return own + (self.items.final_bytes(task) if self.items is not None else 0.0)

    def _served(self, task: int, engine: int, now: float, touched: dict[int, TimedLane]) -> None:
        lane = self.lane_of[task]
        lane.holder[engine] = -1
        touched[id(lane)] = lane
        if engine == UP:
            lane.waiting[COMPUTE].append(task)
            return
        if engine == COMPUTE:
            if self.items is not None:
                self.items.written(task, lane.place)
            on_gpu = lane.device.type.kind != "cpu"
            if on_gpu and (self._home_bytes(task) > 0 or self.stages.durations(task, lane.kind)[1] > 0):
                lane.waiting[DOWN].append(task)
                return
        self.finish[task] = now
        lane.flying -= 1
        if self.items is not None:
            self.items.ended(task, lane.device.node)
        for later in self.after[task]:
            self._there(later, touched)


# Where copies of items lie while the timetable of a plan is worked out: on hosts and accelerators, as the engine keeps
# them but for memory, which is not limited.  A place is the index of an accelerator, or -1 - node for host memory.


class Copies:
    """Locations of all copies of data items; memory is taken as unlimited."""

    def __init__(self, instance: Instance):
        self.tasks, self.cluster = instance.problem.tasks, instance.problem.cluster
        nothing: list[tuple[int, ...]] = [()] * instance.size
        self.reads, self.writes = self.tasks.reads or nothing, self.tasks.writes or nothing
        self.readers, self.writers = Counter(chain(*self.reads)), Counter(chain(*self.writes))
        self.made = frozenset(self.writers)
        hosts = {-1 - node.index: None for node in self.cluster.nodes}
        data = instance.problem.data
        self.where: list[dict[int, None]] = []
        for index, entry in enumerate(self.tasks.items):
            if index in data:
                self.where.append({h.index if isinstance(h, Device) else -1 - h: None for h in data[index]})
            elif entry.home is not None:
                self.where.append({-1 - entry.home: None})
            else:
                self.where.append({} if index in self.made else dict(hosts))

    def sources(self, task: int, place: int, device: Device) -> dict[int, tuple[float, list[int]]]:
        """Return (bytes, items) that a task must move to `place`, by their present place.

        A core reads the items on its own host without a transfer.
        """
        sources: dict[int, tuple[float, list[int]]] = {}
        for item in dict.fromkeys(self.reads[task]):
            if place not in self.where[item] and (source := self._source(item, device)) is not None:
                total, items = sources.get(source, (0.0, []))
                sources[source] = total + self.tasks.items[item].size, [*items, item]
        return sources

    def _source(self, item: int, device: Device) -> int | None:
        best, best_rank = None, 4
        for place in self.where[item]:
            node = -1 - place if place < 0 else self.cluster.devices[place].node
            rank = (0 if node == device.node else 2) + (place >= 0)
            if rank < best_rank:
                best, best_rank = place, rank
        return best

    def arrived(self, items: Sequence[int], place: int) -> None:
        for item in items:
            if self.where[item]:
                self.where[item][place] = None

    def written(self, task: int, place: int) -> None:
        for item in self.writes[task]:
            self.where[item] = {place: None}

    def final_bytes(self, task: int) -> float:
        """Bytes of items that the task wrote and no unfinished task uses."""
        return float(sum(self.tasks.items[item].size for item in self.writes[task]
                         if self._final(item, task)))  # fmt: skip

    def _final(self, item: int, task: int) -> bool:
        mine = item in self.reads[task], item in self.writes[task]
        return self.readers[item] <= mine[0] and self.writers[item] <= mine[1]

    def ended(self, task: int, node: int) -> None:
        for item in self.writes[task]:
            if self._final(item, task):
                self.where[item] = {-1 - node: None}
        for item in self.writes[task]:
            self.writers[item] -= 1
        for item in self.reads[task]:
            self.readers[item] -= 1
            unused = not self.readers[item] and not self.writers[item] and item in self.made
            if unused and item not in self.writes[task]:
                self.where[item] = {}
