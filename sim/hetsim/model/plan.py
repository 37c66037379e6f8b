"""Placements, and static plans: a mode, devices and an order for each task."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hetsim.model.cluster import Cluster, Node
from hetsim.model.device import Device
from hetsim.model.fusion import fusible
from hetsim.model.mode import Mode
from hetsim.model.tasks import Tasks

PLANNED_MAKESPAN = "planned_makespan"


class Placement:
    """A mode and the devices on which it runs.

    For a launch on CPUs, `devices` has one entry for each node: the CPU of that node.  If it runs on several nodes,
    `parts` has the thousandths of cores that it occupies on each of them; by default the parts are equal.  `cores`
    names the cores of a launch on one node, if a plan requires particular cores.
    """

    __slots__ = ("mode", "devices", "cores", "parts")

    def __init__(
        self,
        mode: Mode,
        devices: tuple[Device, ...],
        cores: tuple[int, ...] | None = None,
        parts: tuple[int, ...] | None = None,
    ):
        self.mode = mode
        self.devices = devices
        self.cores = cores
        if parts is None and not mode.gpus and len(devices) > 1:
            parts = (mode.millicores // len(devices),) * len(devices)
        self.parts = parts

    def hosts(self) -> list[tuple[int, int, int]]:
        """Return host resources by node: (node, thousandths of cores, bytes of memory)."""
        mode, devices = self.mode, self.devices
        if not mode.span_any:
            return [(devices[0].node, mode.millicores, mode.memory)]
        if self.parts is not None:
            return [
                (device.node, part, -(-mode.memory * part // mode.millicores))
                for device, part in zip(devices, self.parts, strict=True)
            ]
        counts: dict[int, int] = {}
        for device in devices:
            counts[device.node] = counts.get(device.node, 0) + 1
        return [(node, *host_part(mode, count)) for node, count in counts.items()]

    def __repr__(self) -> str:
        names = "+".join(device.name for device in self.devices)
        return f"{self.mode.name} on {names}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        same = self.mode is other.mode and self.devices == other.devices
        return same and self.cores == other.cores and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((id(self.mode), self.devices, self.cores))


def host_part(mode: Mode, count: int) -> tuple[int, int]:
    """Return the millicores and bytes that `count` GPUs of a mode need on their node."""
    if count >= mode.gpus:  # all accelerators of the launch, or a CPU mode
        return mode.millicores, mode.memory
    return math.ceil(mode.millicores * count / mode.gpus), math.ceil(mode.memory * count / mode.gpus)


def split_cores(devices: Sequence[Device], cores: int, cluster: Cluster) -> list[int]:
    """Split the bitmask of a CPU launch's cores into one mask for each node."""
    if len(devices) == 1:
        return [cores]
    masks, rest = [], cores
    for device in devices:
        count = cluster.nodes[device.node].cpus
        masks.append(rest & ((1 << count) - 1))
        rest >>= count
    return masks


def cores_on(devices: Sequence[int], cores: Sequence[int] | None, cluster: Cluster) -> list[list[int]]:
    """Return the core numbers of a recorded placement, a list per device."""
    by_place: list[list[int]] = [[] for _ in devices]
    position = shift = 0
    for core in sorted(cores or ()):
        while core - shift >= cluster.nodes[cluster.devices[devices[position]].node].cpus:
            shift += cluster.nodes[cluster.devices[devices[position]].node].cpus
            position += 1
        by_place[position].append(core - shift)
    return by_place


@dataclass(frozen=True)
class Step:
    """One step of a plan: task, mode and devices (core lanes are named `n0/cpu3`).

    Steps with the same number in `launch` are launched as one kernel (`hetsim.model.fusion`), in their order; they must
    follow each other on one device.
    """

    task: int
    mode: int
    devices: tuple[str, ...]
    launch: int | None = None


# event of a task for which a copy waits: it becomes ready, starts or has ended
Moment = Literal["ready", "start", "finish"]


@dataclass(frozen=True)
class Copy:
    """A prefetch of an item to an accelerator before a step, or a drop of its copy.

    It is executed when task `after` becomes ready, starts or ends, as stated by `moment` (`after` None: in the first
    round), or later, as soon as the item exists and there is room for it.
    """

    item: int
    device: str
    after: int | None = None
    moment: Moment = "start"
    drop: bool = False


@dataclass
class Plan:
    """Steps in order; each device runs its steps in the order of the list.

    A plan fixes no times: a task starts when it is first in all its devices' queues, the devices are free and its
    predecessors have completed.  `bound` is a certified lower bound on the makespan, and `makespan` the planned
    makespan, if known; `notes` are further figures of the planner (such as `ratio_certified`, its optimality gap or its
    time).  `copies` are prefetches and drops, in their order. `frequencies` of devices by name (`n0/g1`; `n0/cpu` for
    all cores of a node) are set before any start.
    """

    steps: list[Step]
    makespan: float | None = None
    bound: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    frequencies: dict[str, float] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    # expected start and finish, one row per step; None if the planner has none
    timetable: np.ndarray | None = field(default=None, compare=False)

    @property
    def figures(self) -> dict[str, float | None]:
        """The planned makespan and the lower bound, named as in `notes`."""
        return {PLANNED_MAKESPAN: self.makespan, "lower_bound": self.bound}

    def queues(self) -> dict[str, list[int]]:
        """Return the indices in `steps` of each device's steps, in the order of the plan."""
        queues: dict[str, list[int]] = {}
        for number, step in enumerate(self.steps):
            for device in step.devices:
                queues.setdefault(device, []).append(number)
        return queues

    def launches(self) -> list[list[int]]:
        """Return the indices in `steps` by launch: one step, or several that are fused."""
        groups: list[list[int]] = []
        fused: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.launch is None:
                groups.append([number])
            elif step.launch in fused:
                fused[step.launch].append(number)
            else:
                fused[step.launch] = [number]
                groups.append(fused[step.launch])
        return groups

    @property
    def fused(self) -> list[list[int]]:
        """Indices in `steps`, a list for each launch of several tasks (a fused launch)."""
        return [numbers for numbers in self.launches() if len(numbers) > 1]

    def problems(self, tasks: Tasks, cluster: Cluster) -> list[str]:
        """Return all reasons why the plan is impossible, as sentences."""
        texts: list[str] = []
        lanes = lane_names(cluster)
        for device, frequency in self.frequencies.items():
            if device not in cluster.by_name:
                texts.append(f'the plan sets the frequency of "{device}", which the cluster lacks')
            elif not 0 < frequency < math.inf:
                texts.append(f"the plan sets {device} to frequency {frequency!r}")
        seen: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            name = tasks.name(step.task)
            if step.task in seen:
                texts.append(f"task {name} is planned twice")
            seen[step.task] = number
            mode = tasks.shapes[tasks.shape[step.task]].modes[step.mode]
            for device in step.devices:
                if device not in lanes:
                    texts.append(f'task {name} is planned on "{device}", which the cluster lacks')
                elif lanes[device].type is not mode.type:
                    texts.append(f"task {name}: mode {mode.name} does not run on {device} ({lanes[device].type.name})")
                elif not mode.span_any and not can_host(cluster.nodes[lanes[device].node], mode):
                    texts.append(f"task {name}: the node of {device}, even idle, lacks resources for mode {mode.name}")
            wanted = max(1, mode.millicores // 1000) if mode.on_cpu else mode.gpus
            if len(set(step.devices)) != len(step.devices) or len(step.devices) != wanted:
                named = len(step.devices)
                texts.append(f"task {name}: mode {mode.name} needs {wanted} devices; the plan has {named}")
        for copy in self.copies:
            texts.extend(_copy_problems(copy, tasks, lanes, seen))
        if missing := [tasks.name(i) for i in range(len(tasks)) if i not in seen]:
            texts.append(f"{len(missing)} tasks are not in the plan: {_some(missing)}")
        return texts or self.problems_of_order(tasks)

    def problems_of_order(self, tasks: Tasks) -> list[str]:
        """Return problems of the steps together: impossible fused launches, and cycles."""
        problems = list(_fusion_problems(self, tasks))
        cycle = None if problems else self._cycle(tasks)
        if cycle:
            problems.append("the orders on devices contradict the predecessors: " + " → ".join(map(str, cycle)))
        return problems

    def _cycle(self, tasks: Tasks) -> list[Any] | None:
        number_of = {step.task: number for number, step in enumerate(self.steps)}
        launches = self.launches()
        launch_of = {number: one for one, numbers in enumerate(launches) for number in numbers}
        after: list[list[int]] = [[] for _ in launches]
        for queue in self.queues().values():
            for first, second in zip(queue, queue[1:], strict=False):
                if launch_of[first] != launch_of[second]:
                    after[launch_of[first]].append(launch_of[second])
        for number, step in enumerate(self.steps):
            for predecessor in (tasks.predecessors or {step.task: ()})[step.task]:
                if launch_of[number_of[predecessor]] != launch_of[number]:
                    after[launch_of[number_of[predecessor]]].append(launch_of[number])
        if (cycle := find_cycle(after)) is None:
            return None
        return ["+".join(str(tasks.name(self.steps[n].task)) for n in launches[one]) for one in cycle]


def _fusion_problems(plan: Plan, tasks: Tasks) -> Iterator[str]:
    place = {number: at for queue in plan.queues().values() for at, number in enumerate(queue)}
    for numbers in plan.fused:
        steps = [plan.steps[number] for number in numbers]
        names = _some([tasks.name(step.task) for step in steps])
        if any(step.devices != steps[0].devices for step in steps):
            devices = _some(list(dict.fromkeys("+".join(step.devices) for step in steps)))
            yield f"tasks {names} are fused into one launch, but on different devices: {devices}"
            continue
        refusal = fusible([tasks.shapes[tasks.shape[step.task]].modes[step.mode] for step in steps])
        if refusal is not None:
            yield f"tasks {names} cannot be fused into one launch: {refusal}"
            continue
        if any(place[second] != place[first] + 1 for first, second in zip(numbers, numbers[1:], strict=False)):
            lane = steps[0].devices[0]
            yield f"tasks {names} are fused into one launch, but other steps are between them on {lane}"
        rows = [step.task for step in steps]
        for at, row in enumerate(rows):
            if late := [p for p in (tasks.predecessors or {row: ()})[row] if p in rows[at + 1 :]]:
                yield (f"tasks {names} are fused into one launch, but {tasks.name(row)} is before its predecessor "
                       f"{tasks.name(late[0])}")  # fmt: skip


def _copy_problems(copy: Copy, tasks: Tasks, lanes: Mapping[str, Device], steps: Mapping[int, int]) -> Iterator[str]:
    verb = "drops" if copy.drop else "fetches"
    if not 0 <= copy.item < len(tasks.items):
        yield f"the plan {verb} item {copy.item}, but items are 0 to {len(tasks.items) - 1}"
        return
    item = tasks.items[copy.item]
    where = f"the plan {verb} {item.name} {'from' if copy.drop else 'to'} {copy.device}"
    if (device := lanes.get(copy.device)) is None:
        yield f"{where}, which the cluster lacks"
    elif device.type.kind == "cpu":
        yield f"{where}, which is not an accelerator"
    elif device.type.memory is not None and item.size > device.type.memory:
        yield f"{where}, which has {device.type.memory / 1e9:.6g} GB; the item has {item.size / 1e9:.6g} GB"
    if copy.after is not None and copy.after not in steps:
        yield f"{where} after a task that is not in the plan (row {copy.after})"


def can_host(node: Node, mode: Mode) -> bool:
    """Return True if an idle node allows the mode and has its cores and memory."""
    if not mode.allows(node.index):
        return False
    enough_cores = mode.millicores <= 1000 * node.cpus
    enough_memory = node.memory is None or mode.memory <= node.memory
    return enough_cores and enough_memory and (mode.type.memory is None or mode.gpu_memory <= mode.type.memory)


def lane_names(cluster: Cluster) -> dict[str, Device]:
    """Map each lane name that a plan can use to its device.

    A lane is an accelerator (`n0/g0`) or a core, named by its node and number (`n0/cpu0`, `n0/cpu1`, ...).
    """
    lanes = {device.name: device for node in cluster.nodes for device in node.accelerators}
    for node in cluster.nodes:
        lanes.update({f"{node.cpu.name}{core}": node.cpu for core in range(node.cpus)})
    return lanes


def find_cycle(after: Sequence[Iterable[int]]) -> list[int] | None:
    """Return a cycle of a directed graph as a closed path, or None.  Cost: O(n + m)."""
    color = [0] * len(after)
    for root in range(len(after)):
        if color[root]:
            continue
        path: list[int] = []
        stack = [(root, iter(after[root]))]
        color[root] = 1
        path.append(root)
        while stack:
            node, successors = stack[-1]
            for successor in successors:
                if color[successor] == 1:
                    return [*path[path.index(successor) :], successor]
                if color[successor] == 0:
                    color[successor] = 1
                    path.append(successor)
                    stack.append((successor, iter(after[successor])))
                    break
            else:
                color[node] = 2
                path.pop()
                stack.pop()
    return None


def _some(names: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(map(str, names[:most]))
    return shown + (", …" if len(names) > most else "")
