"""The offline problem of planners: tasks on the cores and GPUs of several types.

A *lane* runs one task at a time: a core or an accelerator.  Planners of this folder plan sequential tasks (one core or
one whole accelerator each); other demands are refused with a message.

The time of a task on a lane is computed here for all planners: an accelerator with one stream is occupied from the
start of a task's upload to the end of its download, so its time there is upload + compute + download.  With several
streams the stages of different tasks overlap, and the time used is that of the task's longest stage (`pipelined`).  It
is good for decisions but gives no bound; `stage_bound` gives a bound.  Items that several tasks use are in `traffic`.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError, refusal
from hetsim.model.cluster import Node
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Step, can_host, lane_names
from hetsim.model.stages import Private, Way, download_rate, private_bytes, stage_seconds, way_to_host
from hetsim.model.tasks import Tasks
from hetsim.policy import PlanProblem
from hetsim_policies.common import grouped

Free = list[np.ndarray] | None  # When each lane of each type can start its first task; None: all at 0


@dataclass(frozen=True)
class Instance:
    """n sequential tasks and the lanes (cores or GPUs) of T device types.

    `time[j, t]` is the estimated time for which task j occupies a lane of type t (inf: cannot run there), `mode[j, t]`
    the position of the mode used in the list of the task's modes (-1: none).  `up`, `compute` and `down` are its stages
    on idle links.  `lanes[t]` are the names of the type's lanes.  Types are in the order of the cluster, cores first.
    If planning happens during a run, `free[t]` has the time when each lane of the type can start its first task (lanes
    that are down are omitted); None if all lanes are free from the start.  A planner that ignores `free` plans as if
    all lanes were free immediately, which gives a valid but worse plan.
    """

    problem: PlanProblem
    types: list[DeviceType]
    lanes: list[list[str]]
    time: np.ndarray
    mode: np.ndarray
    free: Free = None
    up: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    compute: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    down: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    private: Private = field(default_factory=lambda: Private(np.empty(0), np.empty(0)))

    @property
    def alone(self) -> np.ndarray:
        """Seconds of each task on each type, all stages, with idle links."""
        return self.up + self.compute + self.down

    @property
    def serial(self) -> np.ndarray:
        """Mask of types with devices that run one task at a time, transfers included."""
        return np.array([kind.kind == "cpu" or kind.streams == 1 for kind in self.types], dtype=bool)

    @property
    def idle_while_held(self) -> np.ndarray:
        """Seconds of a task's stages during which it does not occupy its core or GPU."""
        return np.where(np.isfinite(self.time), self.alone, 0.0) - np.where(np.isfinite(self.time), self.time, 0.0)

    @cached_property
    def alike(self) -> bool:
        """Return True if all devices of each type have equal paths to hosts."""
        cluster = self.problem.cluster
        return all(len(dict.fromkeys(way_to_host(cluster, one) for one in cluster.devices if one.type is kind)) < 2
                   for kind in self.types)  # fmt: skip

    @cached_property
    def pipelined(self) -> bool:
        """Return True if stages of different tasks can overlap on a core or GPU."""
        moved = (self.up + self.down).any(axis=0)
        return bool((moved & ~self.serial).any())

    def step(self, task: int, kind: int, lane: int) -> Step:
        return Step(task, int(self.mode[task, kind]), (self.lanes[kind][lane],))

    @cached_property
    def lane_kind(self) -> np.ndarray:
        """Type of each core or GPU, numbered over all types."""
        return np.repeat(np.arange(len(self.lanes)), np.asarray(self.counts, dtype=np.int64))

    @cached_property
    def first_lane(self) -> np.ndarray:
        """Number of the first core or GPU of each type; the last entry is their total."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @cached_property
    def devices(self) -> list[list[Device]]:
        """Device of each core or GPU, by type."""
        names = lane_names(self.problem.cluster)
        return [[names[name] for name in lanes] for lanes in self.lanes]

    @cached_property
    def places(self) -> tuple[list[Device], np.ndarray]:
        """Devices (a node's cores are one), and for each core or GPU its device's number."""
        devices = [device for of_type in self.devices for device in of_type]
        number = {device: place for place, device in enumerate(dict.fromkeys(devices))}
        return list(number), np.array([number[device] for device in devices], dtype=np.int64)

    @property
    def size(self) -> int:
        return len(self.time)

    @property
    def counts(self) -> list[int]:
        return [len(lanes) for lanes in self.lanes]


def instance_of(problem: PlanProblem, planner: str, everywhere: bool = True) -> Instance:
    """Return a problem's sequential tasks; raise ScenarioError for other tasks.

    everywhere: a mode must fit on every node with its device type, so that all cores or GPUs of a type are equal.
    """
    cluster, tasks = problem.cluster, problem.tasks
    up_lanes = ((name, device) for name, device in lane_names(cluster).items() if is_up(problem, name))
    lanes_by_type = grouped((device.type, name) for name, device in up_lanes)
    types = sorted(lanes_by_type, key=lambda kind: (kind.kind != "cpu", list(cluster.types).index(kind.name)))
    column = {kind: number for number, kind in enumerate(types)}
    hosts = {kind: [node for node in cluster.nodes if _has(node, kind)] for kind in types}
    ways = {kind: slowest_way(problem, kind) for kind in types}
    private = private_bytes(tasks)
    time = np.full((len(tasks), len(types)), np.inf)
    stages = np.zeros((3, *time.shape))
    stages[1] = np.inf
    mode_of = np.full((len(tasks), len(types)), -1, dtype=np.int32)
    problems: dict[str, None] = dict.fromkeys(_wrong_times(tasks))
    misfits: dict[bool, list[tuple[np.ndarray, Shape]]] = {}
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        if not len(rows):
            continue
        usable = False
        for position, mode in enumerate(shape.modes):
            if mode.type not in column:
                continue  # a type without lanes: cores on a cluster that has none
            # Planners take all lanes of a type for equal, so a mode must be at home on each.
            enough = all if everywhere else any
            if not _of_one_lane(mode) or not enough(can_host(node, mode) for node in hosts[mode.type]):
                continue
            usable = True
            kind = column[mode.type]
            parts = np.array(staged(tasks, rows, position, mode=mode, way=ways[mode.type], private=private))
            seconds = occupied(parts, mode)
            better = seconds < time[rows, kind]
            time[rows[better], kind] = seconds[better]
            stages[:, rows[better], kind] = parts[:, better]
            mode_of[rows[better], kind] = position
        if not usable:
            fitting = [mode for mode in shape.modes if hosts.get(mode.type)]
            misfits.setdefault(any(map(_of_one_lane, fitting)), []).append((rows, shape))
    for one_lane, shapes in misfits.items():
        for rows, shape in shapes if one_lane else shapes[:1]:  # those of other sizes have one sentence together
            count = len(rows) if one_lane else sum(len(one) for one, _ in shapes)
            problems[_misfit(planner, tasks.name(int(rows[0])), count, shape=shape, hosts=hosts)] = None
    if problems:
        raise ScenarioError([Problem(text, key="policy.scheduler") for text in problems])
    lanes = [lanes_by_type[kind] for kind in types]
    free: Free = None
    if problem.in_mid_run:
        free = [np.array([max(problem.now, problem.free_at.get(name, 0.0)) for name in names]) for names in lanes]
    up, compute, down = stages
    return Instance(
        problem, types, lanes, time=time, mode=mode_of, free=free, up=up, compute=compute, down=down, private=private
    )


def is_up(problem: PlanProblem, lane: str) -> bool:
    return problem.free_at.get(lane, 0.0) < np.inf


def _of_one_lane(mode: Mode) -> bool:
    return mode.millicores == 1000 if mode.on_cpu else mode.gpus == 1 and mode.whole_devices


def staged(
    tasks: Tasks, rows: np.ndarray, position: int, mode: Mode, way: Way, private: Private
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return upload, compute and download seconds of the tasks `rows` in a mode."""
    up, down = stage_seconds(mode, way, private, rows)
    return up, mode.computing(1, tasks.time[rows, position]), down


def occupied(stages: np.ndarray, mode: Mode) -> np.ndarray:
    """Seconds for which each task occupies a core or GPU.

    With one stream, the sum of all stages; if stages overlap, the longest one.
    """
    up, compute, down = stages
    if mode.on_cpu or mode.type.streams == 1:
        return np.asarray(up + compute + down)
    if mode.type.link.duplex == "half":  # both directions are one engine's worth of link
        return np.maximum(compute, up + down)
    return np.asarray(stages.max(axis=0))


def slowest_way(problem: PlanProblem, kind: DeviceType) -> Way:
    """Return the slowest path to the host: each part is the worst of a type's devices."""
    cluster = problem.cluster
    ways = dict.fromkeys(way_to_host(cluster, device) for device in cluster.devices if device.type is kind)
    return Way(*(max(part) for part in zip(*((w.latency, w.up, w.down) for w in ways), strict=True)))


def _misfit(planner: str, first: Any, count: int, shape: Shape, hosts: dict[DeviceType, list[Node]]) -> str:
    fitting = [mode for mode in shape.modes if hosts.get(mode.type)]
    sequential = [mode for mode in fitting if _of_one_lane(mode)]
    if not sequential:
        what = "tasks of one core or one whole GPU"
        wide = any(mode.millicores >= 2000 or mode.gpus > 1 for mode in fitting)
        others = "graham, heft, genetic and others plan parallel tasks, and " if wide else ""
        others += "unfit: leave_out_parallel leaves such rows of a trace out"
        return f"{planner} plans {what}; {count} tasks are not (the first is {first}): {others}"
    mode = sequential[0]
    outside = [node for node in hosts[mode.type] if not mode.allows(node.index)]
    if outside and len(outside) < len(hosts[mode.type]):
        alike = f"{planner} treats all devices of a type as equal"
        return f"{planner}: task {first} is bound to partition {mode.partition}, but {outside[0]} is not in it; {alike}"
    named = f"task {first}" + (f" (and {count - 1} more like it)" if count > 1 else "")
    largest = max((node.memory for node in hosts[mode.type] if node.memory is not None), default=0)
    if mode.type.memory is not None and mode.gpu_memory > mode.type.memory:
        wants, has = mode.gpu_memory, f"one {mode.type.name} has {mode.type.memory / 1e9:.6g} GB"
    elif any(node.memory is not None and mode.memory > node.memory for node in hosts[mode.type]):
        wants, has = mode.memory, f"the largest node with {mode.type.name} has {largest / 1e9:.6g} GB"
        if largest >= mode.memory:
            has = f"not every node with {mode.type.name} has that, but {planner} treats all of a type as equal"
    else:
        return f"{planner}: {named} needs {mode.cpus:g} cores next to {mode.type.name}; some nodes lack these cores"
    return f"{planner}: {named} needs {wants / 1e9:.6g} GB of memory in mode {mode.name}; {has}"


def _wrong_times(tasks: Tasks) -> Iterator[str]:
    """Yield problems with times that are NaN or negative (possible in Python input)."""
    for what, bad in (("NaN", np.isnan(tasks.time)), ("negative", tasks.time < 0)):
        if len(rows := np.flatnonzero(bad.any(axis=1))):
            yield f"{len(rows)} tasks have a time that is {what} (the first is {tasks.name(int(rows[0]))})"


def _has(node: Node, kind: DeviceType) -> bool:
    return (node.cpus > 0 and node.cpu.type is kind) or any(device.type is kind for device in node.accelerators)


def runnable(problem: PlanProblem, planner: str, everywhere: bool = True) -> Instance:
    """Call `instance_of`, and raise ScenarioError if a task can run on no core or GPU."""
    instance = instance_of(problem, planner, everywhere)
    if len(nowhere := np.flatnonzero(~np.isfinite(instance.time).any(axis=1))):
        first = problem.tasks.name(int(nowhere[0]))
        count = f"{planner}: {len(nowhere)} tasks"
        raise refusal(f"{count} can run on no core and no whole GPU of the cluster ({first}, ...)")
    return instance


def independent(problem: PlanProblem, planner: str) -> Instance:
    """Return a problem as arrays; raise ScenarioError if there is a task graph."""
    refuse_graph(problem, planner)
    return runnable(problem, planner)


def refuse_graph(problem: PlanProblem, planner: str) -> None:
    """Raise ScenarioError if tasks have predecessors."""
    if bound := [j for j, before in enumerate(problem.tasks.predecessors or ()) if before]:
        first = problem.tasks.name(bound[0])
        text = f"{planner} plans independent tasks; {len(bound)} tasks have predecessors ({first}, ...)"
        others = "cpop, graham, heft, hlp, mct and peft plan task graphs"
        raise refusal(f"{text}: {others}")


def free_lanes(count: int, free: np.ndarray | None = None) -> list[tuple[float, int]]:
    """Return a heap of (free at, number) of cores or GPUs; `free` None: all free at 0."""
    return sorted((0.0 if free is None else float(free[lane]), lane) for lane in range(count))


def list_schedule(
    times: np.ndarray, count: int, order: Sequence[int], ready: np.ndarray | None = None,
    since: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return start and lane of tasks, each in turn on its type's earliest free lane.

    Tasks not in `order` get start NaN and lane -1.  At ties the first lane is chosen.
    since: time when each lane is first free; None: 0 for all.
    """
    starts = np.full(len(times), np.nan)
    lanes = np.full(len(times), -1, dtype=np.int64)
    free = free_lanes(count, since)
    for task in order:
        at, lane = free[0]
        start = at if ready is None else max(at, float(ready[task]))
        starts[task], lanes[task] = start, lane
        heapq.heapreplace(free, (start + float(times[task]), lane))
    return starts, lanes


def longest_first(
    times: np.ndarray, counts: Sequence[int], kind: np.ndarray, ready: np.ndarray | None = None, since: Free = None
) -> "Schedule":
    """Schedule tasks on given types (`kind` by task) by longest processing time first."""
    schedule = Schedule.empty(len(times))
    for number, count in enumerate(counts):
        need = times[:, number]
        tasks = np.flatnonzero(kind == number)
        if not (order := tasks[np.argsort(-need[tasks], kind="stable")].tolist()):
            continue
        starts, lanes = list_schedule(need, count, order, ready=ready, since=since[number] if since else None)
        for task in order:
            schedule.put(task, float(starts[task]), float(need[task]), kind=number, lane=int(lanes[task]))
    return schedule


def by_arrival(instance: Instance, lanes: np.ndarray, needs: np.ndarray) -> "Schedule":
    """Schedule tasks by arrival on given cores or GPUs, numbered over all types."""
    schedule = Schedule.empty(instance.size)
    free = np.zeros(len(instance.lane_kind))
    arrival = instance.problem.tasks.arrival
    for task in np.argsort(arrival, kind="stable").tolist():
        lane = int(lanes[task])
        kind = int(instance.lane_kind[lane])
        start, number = max(float(free[lane]), float(arrival[task])), lane - int(instance.first_lane[kind])
        free[lane] = schedule.put(task, start, float(needs[task]), kind=kind, lane=number)
    return schedule


@dataclass
class Schedule:
    """Start, finish, type and device (`lane`) of each task, and the order of placing."""

    start: np.ndarray
    finish: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    order: list[int]

    @classmethod
    def empty(cls, size: int) -> "Schedule":
        """Return a schedule without placed tasks: times NaN, type and lane -1."""
        nowhere = np.full(size, -1, dtype=np.int64)
        return cls(np.full(size, np.nan), np.full(size, np.nan), nowhere, lane=nowhere.copy(), order=[])

    def put(self, task: int, start: float, time: float, kind: int, lane: int) -> float:
        self.start[task], self.kind[task], self.lane[task] = start, kind, lane
        self.finish[task] = start + time
        self.order.append(task)
        return start + time

    @property
    def makespan(self) -> float:
        return float(self.finish.max(initial=0.0))


def undisturbed(instance: Instance) -> bool:
    """Return True if neither links, memory, host cores nor sharing can delay a task."""
    return not shared_links(instance) and not memory_binds(instance) and not cores_bind(instance) and alone(instance)


def shared_links(instance: Instance) -> bool:
    """Return True if data of one task moves over a link that other tasks can use."""
    moved = (instance.up + instance.down).any(axis=0)
    for kind, there in zip(instance.types, moved, strict=True):
        if not there or kind.kind == "cpu":
            continue
        if kind.link.duplex == "half" and kind.streams > 1 and np.isfinite(kind.link.upload):
            return True
        for node in instance.problem.cluster.nodes:
            mine = [one for one in node.accelerators if one.type is kind and one.switch is not None]
            finite = np.isfinite(min(node.spec.switch.upload, download_rate(node.spec.switch)))
            if finite and any([other.switch for other in node.accelerators].count(one.switch) > 1 for one in mine):
                return True
            if finite and mine and kind.streams > 1 and node.spec.switch.duplex == "half":
                return True
    return False


def memory_binds(instance: Instance) -> bool:
    """Return True if memory could make tasks wait, or make the engine evict items."""
    tasks, cluster = instance.problem.tasks, instance.problem.cluster
    used = [mode for mode in tasks.modes if mode.type in instance.types]
    items = sum(item.size for item in tasks.items)
    for kind in instance.types:
        if kind.memory is not None:
            demand = max((mode.gpu_memory for mode in used if mode.type is kind), default=0)
            if kind.streams * demand + items > kind.memory and (kind.streams > 1 or items):
                return True
    host = {kind: max((mode.memory for mode in used if mode.type is kind), default=0) for kind in instance.types}
    for node in cluster.nodes:
        if node.memory is not None:
            demand = node.cpus * host.get(node.cpu.type, 0)
            demand += sum(one.type.streams * host.get(one.type, 0) for one in node.accelerators)
            if demand > node.memory:
                return True
    return False


def cores_bind(instance: Instance) -> bool:
    """Return True if tasks on accelerators also occupy cores, and may wait for them."""
    tasks = instance.problem.tasks
    return any(mode.cpus for mode in tasks.modes if mode.gpus and mode.type in instance.types)


def alone(instance: Instance) -> bool:
    """Return True if each accelerator computes one task at a time, at full rate."""
    return all(kind.streams == 1 or kind.sharing.kind == "exclusive" for kind in instance.types)
