"""Groups of devices: members, waiting and running tasks, and predicted waits.

Groups are the device types, nodes, racks, or sets of nodes of a given size.  A *kind* is the set of tasks of one class
with equal demands; a plan says which fraction of a kind's tasks each group gets.
"""

from collections.abc import Container, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Literal

import numpy as np

from hetsim.errors import refusal
from hetsim.model.cluster import Cluster, Node
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import can_host
from hetsim.model.task import Task
from hetsim.policy import Scheduler
from hetsim_policies.hybrid.common.part_view import PartView

Grouping = Literal["type", "node", "rack"] | int


class TaskKind:
    """Tasks of one class and demand: device groups for them, times, waiting tasks."""

    __slots__ = ("number", "name", "positions", "modes", "waiting", "holders", "seen", "total", "queued", "turns",
                 "arrived", "rate", "home")  # fmt: skip

    def __init__(self, number: int, task: Task):
        self.number = number
        self.name = task.class_
        self.positions = tuple(task.allowed or range(len(task.modes)))
        self.modes = task.modes
        self.waiting = 0
        self.holders: dict[int, None] = {}  # groups in which tasks of the kind wait
        self.seen = 0
        self.total = [0.0] * len(task.modes)  # estimated seconds of all that came, by mode
        self.queued = [0.0] * len(task.modes)  # estimated seconds of all that wait
        self.turns: Turns | None = None  # which group's turn it is when tasks are handed out; None: not planned yet
        self.arrived = 0  # in this epoch
        self.rate = 0.0  # arrivals a second, as observed
        self.home: dict[int, tuple[int, ...]] = {}  # by group: positions of the modes that can run there

    def came(self, task: Task) -> None:
        self.seen += 1
        self.arrived += 1
        for position in self.positions:
            self.total[position] += task.estimate_at(position)

    def wait(self, task: Task, sign: int) -> None:
        """Record that a task waits (sign 1), or no longer waits (sign -1)."""
        self.waiting += sign
        for position in self.positions:
            seconds = task.estimate_at(position) * (1.0 - task.done)
            self.queued[position] = self.queued[position] + sign * seconds if self.waiting else 0.0

    def expected(self, position: int, coming: float) -> float:
        """Return the total seconds of all waiting and `coming` average tasks in a mode."""
        return max(0.0, self.queued[position]) + coming * self.total[position] / max(1, self.seen)


class GroupedTask:
    """A task in a device group: its kind, and its expected seconds in this group."""

    __slots__ = ("task", "kind", "group", "type", "seconds", "width", "end")

    def __init__(self, task: Task, kind: TaskKind, group: "DeviceGroup"):
        self.task = task
        self.kind = kind
        self.place(group)
        self.end: float | None = None  # when it ends by estimate, while it runs

    def place(self, group: "DeviceGroup") -> None:
        self.group = group
        position = group.best(self.task, self.kind)
        mode = self.kind.modes[position]
        self.type = mode.type
        self.width = mode.width
        self.seconds = self.task.remaining_in(self.task.modes[position])


class DeviceGroup:
    """A group of devices with its own scheduler."""

    def __init__(self, number: int, name: str, nodes: list[Node], types: Iterable[DeviceType], mask: int | None):
        self.number = number
        self.name = name
        self.nodes = nodes
        self.mask = mask  # bitmask of its nodes; None where groups are types of device
        self.lanes = dict.fromkeys(types, 0)  # devices that are up, by type; of a CPU its cores
        self.count_lanes(())
        self.waiting: dict[int, Task] = {}
        self.running: dict[int, Task] = {}
        # Waiting tasks by the number of their kind, in the order in which they joined the group
        self.of_kind: dict[int, dict[int, Task]] = {}
        self.queued = dict.fromkeys(self.lanes, 0)  # waiting tasks by the type on which they would run best
        self.backlog = dict.fromkeys(self.lanes, 0.0)  # device-seconds of these
        self.used = dict.fromkeys(self.lanes, 0.0)
        self._ends: dict[DeviceType, list[tuple[float, int]]] = {kind: [] for kind in self.lanes}
        self.until = float("inf")  # when its scheduler wants to be asked again
        self.scheduler: Scheduler
        self.view: PartView

    def __repr__(self) -> str:
        return self.name

    def count_lanes(self, down: Container[int]) -> None:
        """Count usable cores and accelerators by type; none on a node whose CPU is down."""
        self.lanes.update(dict.fromkeys(self.lanes, 0))
        for node in self.nodes:
            for device in (node.cpu, *node.accelerators) if node.cpu.index not in down else ():
                if device.type in self.lanes and device.index not in down:
                    self.lanes[device.type] += lanes_of(device, node)

    def hosts(self, kind: TaskKind) -> tuple[int, ...]:
        if (positions := kind.home.get(self.number)) is None:
            positions = tuple(p for p in kind.positions if self.can_host(kind.modes[p]))
            kind.home[self.number] = positions
        return positions

    def can_host(self, mode: Mode) -> bool:
        if mode.type not in self.lanes:
            return False
        if mode.span_any and mode.gpus and mode.unit is None:
            return sum(_count(node, mode.type) for node in self.nodes if mode.allows(node.index)) >= mode.gpus
        part = mode.unit or mode
        there = [(node, _count(node, part.type)) for node in self.nodes if can_host(node, part)]
        fitting = [node for node, count in there if count >= max(1, part.gpus)]
        if mode.unit is not None and mode.node_count == 1:  # cores of any nodes
            return sum(node.cpus for node in fitting) >= mode.cpus
        return len(fitting) >= mode.node_count

    def best(self, task: Task, kind: TaskKind) -> int:
        return min(self.hosts(kind), key=lambda position: (task.remaining_in(task.modes[position]), position))

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
        """Seconds until a new task starts on a type in this group.

        less: device-seconds to subtract from the backlog (work that would move away).
        """
        if not (lanes := self.lanes.get(kind, 0)):
            return float("inf")
        wait = max(0.0, self.backlog[kind] - less) / lanes
        if self.used[kind] + width <= lanes + 1e-9:
            return wait
        ends = self._running_ends(kind)
        return wait + (max(0.0, ends[0][0] - now) if ends else 0.0)

    def _running_ends(self, kind: DeviceType) -> list[tuple[float, int]]:
        """Return the heap of expected ends on a type, without ended tasks at its head."""
        ends = self._ends[kind]
        while ends and ends[0][1] not in self.running:
            heappop(ends)
        return ends


def lanes_of(device: Device, node: Node) -> int:
    return node.cpus if device is node.cpu else 1


def make_groups(cluster: Cluster, grouping: Grouping) -> list[DeviceGroup]:
    """Group the devices; ScenarioError if grouping is by rack and no node has a rack."""
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
        text = 'groups: rack needs racks; give the nodes `rack: NAME`, or use "type", "node" or a number'
        raise refusal(text)
    groups: list[DeviceGroup] = []
    for key, nodes in parts.items():
        name = "without a rack" if key is None else str(key) if isinstance(key, str) else _span(nodes)
        mask = sum(1 << node.index for node in nodes)
        groups.append(DeviceGroup(len(groups), name, nodes, types=_types(nodes), mask=mask))
    return groups


def _count(node: Node, kind: DeviceType) -> int:
    return lanes_of(node.cpu, node) if node.cpu.type is kind else sum(one.type is kind for one in node.accelerators)


def _types(nodes: list[Node]) -> dict[DeviceType, None]:
    devices = (one for node in nodes for one in (node.cpu, *node.accelerators) if one is not node.cpu or node.cpus)
    return dict.fromkeys(device.type for device in devices)


def _span(nodes: list[Node]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"{nodes[0].name}..{nodes[-1].name}"


# The share of each class on each device type, and the order in which groups get tasks.
#
# `by_program` divides classes freely (the linear program of `unrelated`); `by_guess` assigns parts of classes with
# `dual_approximation`.  If all work can end within FILL of an epoch, each class runs where it takes the least time, as
# far as the devices allow.  `Turns`: Tijdeman, The Chairman Assignment Problem (Discrete Mathematics 32, 1980): after n
# tasks, the number of a group differs by less than 1 from its share.
# Cost: one or two linear programs of classes × types variables; O(log groups) per turn.


Planner = Literal["lp", "dual_approximation"]

FILL = 0.8  # Fraction of an epoch up to which each device gets its fastest work; queues are long above it
PARTS = 32  # number of parts of a class that the dual approximation places whole
SLACK = 1e-6  # relative slack of the second program over the value of the first


def shares(work: np.ndarray, lanes: np.ndarray, epoch: float, planner: Planner, fill: float = FILL) -> np.ndarray:
    """Return the share of each class (row) on each device type; rows sum to 1 or 0.

    work: device-seconds of all tasks of a class on a type, inf if they cannot run there; lanes: number of devices of
        each type.
    fill: if all work can end within this fraction of an epoch, minimize the total work, otherwise the time of its end;
        0: always minimize the end; inf: each class runs where it takes the shortest time.
    """
    possible = np.where(lanes > 0, work, np.inf)
    share = np.zeros(work.shape)
    if len(rows := np.flatnonzero(np.isfinite(possible).any(axis=1))):
        plan = by_program if planner == "lp" else by_guess
        share[rows] = plan(possible[rows], lanes, fill * epoch)
    return share


def by_program(work: np.ndarray, lanes: np.ndarray, unhurried: float) -> np.ndarray:
    """Divide classes of work among device types so that all work ends earliest.

    Of the divisions that end earliest, or within `unhurried` s, that of least work is chosen, by two linear programs.
    """
    from hetsim_policies.static.common.unrelated import split

    share = split(work, [int(count) for count in lanes], divisible=True).share
    longest = loads(share, work, lanes).max(initial=0.0)
    return min_work(work, lanes, max(longest * (1 + SLACK), unhurried), share)


def min_work(work: np.ndarray, lanes: np.ndarray, limit: float, otherwise: np.ndarray) -> np.ndarray:
    """Divide classes among device types with least work, so that all end by `limit`.

    work: device-seconds by class and device type.  otherwise: result if there is no such division.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    fastest = np.zeros(work.shape)
    fastest[np.arange(len(work)), work.argmin(axis=1)] = 1.0
    if loads(fastest, work, lanes).max(initial=0.0) <= limit:
        return fastest
    row, column = np.nonzero(np.isfinite(work))
    number, scale = np.arange(len(row)), limit or 1.0
    area = work[row, column] / scale
    once = csr_array((np.ones(len(row)), (row, number)), shape=(len(work), len(row)))
    load = csr_array((area, (column, number)), shape=(work.shape[1], len(row)))
    solution = linprog(area, A_ub=load, b_ub=lanes * (limit / scale), A_eq=once, b_eq=np.ones(len(work)),
                    method="highs-ds")  # fmt: skip
    if solution.x is None:
        return otherwise
    share = np.zeros(work.shape)
    share[row, column] = np.maximum(0.0, solution.x)
    return share / share.sum(axis=1, keepdims=True)


def by_guess(work: np.ndarray, lanes: np.ndarray, unhurried: float) -> np.ndarray:
    """Return each class's shares (a row) on two device types, by dual approximation.

    Each class of work counts as PARTS equal tasks, each type as one machine.  If all work can end before `unhurried`
    (s), the second type gets only parts that take less time there (`two_sides.fill`).
    """
    from hetsim_policies.static.dual_approximation import solve
    from hetsim_policies.static.two_sides import by_speed_up, fill

    fastest = np.zeros(work.shape)
    fastest[np.arange(len(work)), work.argmin(axis=1)] = 1.0
    if work.shape[1] < 2 or loads(fastest, work, lanes).max(initial=0.0) <= unhurried:
        return fastest
    times = np.repeat(work / np.maximum(lanes, 1), PARTS, axis=0) / PARTS
    solution = solve(times[:, 0], times[:, 1], int(lanes[0] > 0), int(lanes[1] > 0), tolerance=0.01)
    second = solution.schedule.on_gpu
    if solution.makespan < unhurried and (filled := fill(times, [1, 1], by_speed_up(times), unhurried)) is not None:
        filled &= times[:, 1] < times[:, 0]
        second = filled if float(times[~filled, 0].sum()) <= unhurried else second
    part = second.reshape(len(work), PARTS).mean(axis=1)
    return np.column_stack([1.0 - part, part])


def loads(share: np.ndarray, work: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Seconds of work per device, by type; `share`: fraction of work on each type."""
    done = np.where(share > 0, share * np.where(np.isfinite(work), work, 0.0), 0.0)
    return np.asarray(done.sum(axis=0) / np.maximum(lanes, 1))


def apportion(count: int, share: Sequence[float]) -> list[int]:
    """Round `count` × `share` to whole numbers of sum `count`, by largest remainders."""
    exact = [count * part for part in share]
    counts = [int(value) for value in exact]
    behind = sorted(range(len(share)), key=lambda i: (counts[i] - exact[i], i))
    for i in behind[: count - sum(counts)]:
        counts[i] += 1
    return counts


class Turns:
    """Assigns tasks to groups so that counts follow given shares (Tijdeman 1980).

    A group may get the next task if it would then have less than one task more than its share.  Of these groups, the
    one that would otherwise fall below its share first gets the task; at ties, the group with the next number from
    `first` on.
    """

    def __init__(self, share: dict[int, float], first: int = 0):
        self.share = {group: part for group, part in share.items() if part > 0}
        total = sum(self.share.values())
        self.share = {group: part / total for group, part in self.share.items()}
        self.taken = dict.fromkeys(self.share, 0)
        self.count = 0
        self._grace = 1 / (2 * len(self.share) - 2) if len(self.share) > 1 else 0.0
        order = sorted(self.share)
        self._rank = {group: (number - first) % len(order) for number, group in enumerate(order)}
        # When groups may get their next task, by the count of tasks
        self._early = [(self._grace / part, self._rank[group], group) for group, part in self.share.items()]
        heapify(self._early)
        self._due: list[tuple[float, int, int]] = []

    def next(self) -> int:
        self.count += 1
        while self._early and (self._early[0][0] <= self.count or not self._due):
            group = heappop(self._early)[2]
            due = (self.taken[group] + 1 - self._grace) / self.share[group]
            heappush(self._due, (due, self._rank[group], group))
        group = heappop(self._due)[2]
        self.taken[group] += 1
        heappush(self._early, ((self.taken[group] + self._grace) / self.share[group], self._rank[group], group))
        return group
