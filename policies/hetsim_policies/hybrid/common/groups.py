"""Groups of devices: members, waiting and running tasks, when there will be room.

Groups are the types of device, nodes, racks or a given number of nodes.  The tasks of a *kind* are of one class and ask
for the same; a plan speaks of kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Literal

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Cluster, Device, DeviceType, Node
from hetsim.model.plan import can_host
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import Scheduler
from hetsim_policies.hybrid.common.part_view import PartView
from hetsim_policies.hybrid.common.quotas import Turns

Grouping = Literal["type", "node", "rack"] | int


class TaskKind:
    """Tasks of one class and demand: where they can run, known times, waiting tasks."""

    __slots__ = ("number", "name", "positions", "modes", "waiting", "holders", "seen", "total", "queued", "turns",
                 "arrived", "rate", "home")  # fmt: skip

    def __init__(self, number: int, task: Task):
        self.number = number
        self.name = task.class_
        self.positions = tuple(task.allowed or range(len(task.modes)))
        self.modes = task.modes
        self.waiting = 0
        self.holders: dict[int, None] = {}
        """Groups in which tasks of the kind wait."""
        self.seen = 0
        self.total = [0.0] * len(task.modes)
        """Estimated seconds of all that came, by mode."""
        self.queued = [0.0] * len(task.modes)
        """Estimated seconds of all that wait."""
        self.turns: Turns | None = None
        """Which group's turn it is when tasks are handed out; None: not planned yet."""
        self.arrived = 0
        """In this epoch."""
        self.rate = 0.0
        """Arrivals a second, as observed."""
        self.home: dict[int, tuple[int, ...]] = {}
        """By group: positions of the modes that can run there."""

    def came(self, task: Task) -> None:
        self.seen += 1
        self.arrived += 1
        for position in self.positions:
            self.total[position] += task.estimate_at(position)

    def wait(self, task: Task, sign: int) -> None:
        """A task waits (1), or waits no longer (-1)."""
        self.waiting += sign
        for position in self.positions:
            seconds = task.estimate_at(position) * (1.0 - task.done)
            self.queued[position] = self.queued[position] + sign * seconds if self.waiting else 0.0

    def expected(self, position: int, coming: float) -> float:
        """Seconds of waiting tasks and of a number of expected ones, in a mode."""
        return max(0.0, self.queued[position]) + coming * self.total[position] / max(1, self.seen)


class GroupedTask:
    """A task in a group: its kind, and what it is expected to take there."""

    __slots__ = ("task", "kind", "group", "type", "seconds", "width", "end")

    def __init__(self, task: Task, kind: TaskKind, group: DeviceGroup):
        self.task = task
        self.kind = kind
        self.place(group)
        self.end: float | None = None
        """When it ends by estimate, while it runs."""

    def place(self, group: DeviceGroup) -> None:
        self.group = group
        position = group.best(self.task, self.kind)
        mode = self.kind.modes[position]
        self.type = mode.type
        self.width = mode.width
        self.seconds = self.task.remaining_in(self.task.modes[position])


class DeviceGroup:
    """Some devices with a scheduler of their own."""

    def __init__(self, number: int, name: str, nodes: list[Node], types: Iterable[DeviceType], mask: int | None):
        self.number = number
        self.name = name
        self.nodes = nodes
        self.mask = mask
        """Bitmask of its nodes; None where groups are types of device."""
        self.lanes = dict.fromkeys(types, 0)
        """Devices that are up, by type; of a CPU its cores."""
        for node in nodes:
            for device in (node.cpu, *node.accelerators):
                if device.type in self.lanes:
                    self.lanes[device.type] += lanes_of(device, node)
        self.most = dict(self.lanes)
        """The same with all of them up."""
        self.waiting: dict[int, Task] = {}
        self.running: dict[int, Task] = {}
        self.of_kind: dict[int, dict[int, Task]] = {}
        """Waiting tasks by the number of their kind, in the order in which they came here."""
        self.queued = dict.fromkeys(self.lanes, 0)
        """Waiting tasks by the type on which they would run best."""
        self.backlog = dict.fromkeys(self.lanes, 0.0)
        """Device-seconds of these."""
        self.used = dict.fromkeys(self.lanes, 0.0)
        self._ends: dict[DeviceType, list[tuple[float, int]]] = {kind: [] for kind in self.lanes}
        self.until = float("inf")
        """When its scheduler wants to be asked again."""
        self.scheduler: Scheduler
        self.view: PartView

    def __repr__(self) -> str:
        return self.name

    def hosts(self, kind: TaskKind) -> tuple[int, ...]:
        """Positions of the modes in which tasks of a kind could run here, were it empty."""
        positions = kind.home.get(self.number)
        if positions is None:
            positions = tuple(p for p in kind.positions if self.can_host(kind.modes[p]))
            kind.home[self.number] = positions
        return positions

    def can_host(self, mode: Mode) -> bool:
        """Return True if a launch in this mode could run here, were the group empty."""
        if mode.type not in self.lanes:
            return False
        nodes = [node for node in self.nodes if mode.allows(node.index)]
        if mode.on_cpu:
            return any(node.cpus and node.cpu.type is mode.type and can_host(node, mode) for node in nodes)
        if mode.span_any:
            return sum(_count(node, mode.type) for node in nodes) >= mode.gpus
        return any(_count(node, mode.type) >= mode.gpus and can_host(node, mode) for node in nodes)

    def best(self, task: Task, kind: TaskKind) -> int:
        """The mode in which a task of a kind would take least time here."""
        return min(self.hosts(kind), key=lambda position: (task.remaining_in(task.modes[position]), position))

    # Waiting and running tasks --------------------------------------------------------------------------------

    def enqueue(self, entry: GroupedTask) -> None:
        task, kind = entry.task, entry.kind
        self.waiting[task.index] = task
        self.of_kind.setdefault(kind.number, {})[task.index] = task
        kind.holders[self.number] = None
        self.queued[entry.type] += 1
        self.backlog[entry.type] += entry.seconds * entry.width

    def dequeue(self, entry: GroupedTask) -> None:
        task, kind = entry.task, entry.kind
        del self.waiting[task.index]
        here = self.of_kind[kind.number]
        del here[task.index]
        if not here:
            kind.holders.pop(self.number, None)
        self.queued[entry.type] -= 1
        rest = self.backlog[entry.type] - entry.seconds * entry.width
        self.backlog[entry.type] = rest if self.queued[entry.type] else 0.0

    def start(self, entry: GroupedTask, mode: Mode, now: float) -> None:
        entry.type, entry.width = mode.type, mode.width
        entry.end = now + entry.task.remaining_in(mode)
        self.running[entry.task.index] = entry.task
        self.used[mode.type] += mode.width
        heappush(self._running_ends(mode.type), (entry.end, entry.task.index))

    def end(self, entry: GroupedTask) -> None:
        del self.running[entry.task.index]
        self.used[entry.type] -= entry.width
        if not self.running:
            self.used = dict.fromkeys(self.used, 0.0)
        entry.end = None

    def wait_for(self, kind: DeviceType, width: float, now: float, less: float = 0.0) -> float:
        """Seconds until a newcomer starts on a type here, with `less` of the backlog."""
        lanes = self.lanes.get(kind, 0)
        if not lanes:
            return float("inf")
        wait = max(0.0, self.backlog[kind] - less) / lanes
        if self.used[kind] + width <= lanes + 1e-9:
            return wait
        ends = self._running_ends(kind)
        return wait + (max(0.0, ends[0][0] - now) if ends else 0.0)

    def _running_ends(self, kind: DeviceType) -> list[tuple[float, int]]:
        """The heap of expected ends on a type; its head is of a task that runs."""
        ends = self._ends[kind]
        while ends and ends[0][1] not in self.running:
            heappop(ends)
        return ends


def lanes_of(device: Device, node: Node) -> int:
    return node.cpus if device is node.cpu else 1


def make_groups(cluster: Cluster, grouping: Grouping) -> list[DeviceGroup]:
    """The groups, numbered; ScenarioError where the cluster has no such parts."""
    if grouping == "type":
        present = [kind for kind in cluster.types.values() if cluster.count(kind.name)]
        having = {kind: [node for node in cluster.nodes if kind in _types([node])] for kind in present}
        return [
            DeviceGroup(number, kind.name, having[kind], types=[kind], mask=None) for number, kind in enumerate(present)
        ]
    parts: dict[Any, list[Node]] = {}
    for node in cluster.nodes:
        if grouping == "node":
            key: Any = node.name
        elif grouping == "rack":
            key = node.spec.rack
        else:
            key = node.index // grouping
        parts.setdefault(key, []).append(node)
    if grouping == "rack" and list(parts) == [None]:
        text = 'groups: rack, but no node has a rack; give the nodes `rack: NAME`, or take "type", "node" or a number'
        raise ScenarioError(Problem(text, key="policy.scheduler"))
    groups: list[DeviceGroup] = []
    for key, nodes in parts.items():
        name = "without a rack" if key is None else str(key) if isinstance(key, str) else _span(nodes)
        mask = sum(1 << node.index for node in nodes)
        groups.append(DeviceGroup(len(groups), name, nodes, types=_types(nodes), mask=mask))
    return groups


def _count(node: Node, kind: DeviceType) -> int:
    return sum(device.type is kind for device in node.accelerators)


def _types(nodes: list[Node]) -> dict[DeviceType, None]:
    """The types of device that some nodes have."""
    types: dict[DeviceType, None] = {}
    for node in nodes:
        if node.cpus:
            types[node.cpu.type] = None
        for device in node.accelerators:
            types[device.type] = None
    return types


def _span(nodes: list[Node]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"{nodes[0].name}..{nodes[-1].name}"
