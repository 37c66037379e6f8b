"""Base of `eft`, `dmda`, `dmdas`: ready tasks join the line where they end first.

Lines stand before each accelerator and before the cores of each node.  Of lines that are alike (of one type, on
nodes of one kind, equally far from the task's data) only the one that is free first is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from hetsim.model.cluster import MILLI, Cluster, DeviceType, Node, NodeSpec
from hetsim.model.plan import Placement, can_host
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import PlanProblem, View
from hetsim_policies.dynamic.common.lines import AssigningScheduler, DeviceLine, LineTask, refuse_parts_of_nodes

NEAR = 16
"""Nodes near the data of a task: their devices are looked at one by one."""


class Alike:
    """Lines of one type on nodes of one kind, by the time of their first free lane.

    A heap with an entry for every change; entries that are out of date are dropped when they come to the top.
    """

    def __init__(self, kind: DeviceType) -> None:
        self.type = kind
        self.lines: list[DeviceLine] = []
        self._heap: list[tuple[float, int, DeviceLine]] = []

    def add(self, line: DeviceLine) -> None:
        self.lines.append(line)
        line.changed = self.push
        self.push(line)

    def push(self, line: DeviceLine) -> None:
        """The line's ends have changed."""
        heappush(self._heap, (line.first_end(), line.number, line))
        if len(self._heap) > 64 + 4 * len(self.lines):
            self._heap = [(other.first_end(), other.number, other) for other in self.lines]
            heapify(self._heap)

    def first(self) -> DeviceLine | None:
        """The line that is free first, of those that are up."""
        heap, aside = self._heap, []
        first = None
        while heap:
            end, _, line = heap[0]
            if end == line.first_end():
                if line.up:
                    first = line
                    break
                aside.append(heap[0])
            heappop(heap)
        for entry in aside:
            heappush(heap, entry)
        return first


class EarliestLine(AssigningScheduler):
    """Put a task into the line of the earliest expected end; ties: the faster mode.

    `expected` says how long it takes.
    """

    with_data = False
    """True if the place of data matters."""

    def check(self, problem: PlanProblem) -> None:
        refuse_parts_of_nodes(problem)

    def make_lines(self, cluster: Cluster) -> list[DeviceLine]:
        lines: list[DeviceLine] = []
        groups: dict[tuple[DeviceType, NodeSpec], Alike] = {}
        self._alike: dict[DeviceType, list[Alike]] = {}
        self._on_node: dict[tuple[int, DeviceType], list[DeviceLine]] = {}
        for node in cluster.nodes:
            devices = [(device, self.unit(device.type)) for device in node.accelerators]
            for device, lanes in [(node.cpu, node.cpus)] * bool(node.cpus) + devices:
                line = DeviceLine(len(lines), device.type, lanes, device)
                lines.append(line)
                self._on_node.setdefault((node.index, device.type), []).append(line)
                group = groups.get((device.type, node.spec))
                if group is None:
                    group = groups[device.type, node.spec] = Alike(device.type)
                    self._alike.setdefault(device.type, []).append(group)
                group.add(line)
        return lines

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        """Begin and end of a task on devices that are free at a time."""
        raise NotImplementedError

    def assign(self, task: Task, view: View) -> LineTask | None:
        best = math.inf
        chosen: LineTask | None = None
        items = dict.fromkeys((*task.reads, *task.writes))
        size = sum(view.items[item].size for item in items)
        near = self._nodes_near(task, view) if self.with_data and task.reads else []
        for position in task.modes_by_speed():
            mode = task.modes[position]
            need = self.need(mode)
            room = mode.type.memory is None or mode.gpu_memory + size <= mode.type.memory
            if not room and not mode.on_cpu:
                continue
            for lines in self._candidates(mode, need, near, view):
                placement = Placement(mode, tuple(line.device for line in lines if line.device is not None))
                free = max(line.free_at(need, view.now) for line in lines)
                begin, end = self.expected(task, placement, free, view)
                if chosen is None or end < best:
                    best = end
                    chosen = LineTask(task, mode, placement, lines=lines, need=need, begin=begin, length=end - begin)
        return chosen

    def _candidates(self, mode: Mode, need: int, near: list[int], view: View) -> Iterator[tuple[DeviceLine, ...]]:
        nodes = view.cluster.nodes
        for node in near:
            if mode.gpus <= 1:
                for line in self._on_node.get((node, mode.type), ()):
                    if line.up and can_host(nodes[node], mode):
                        yield (line,)
        for group in self._alike.get(mode.type, ()):
            device = group.lines[0].device
            assert device is not None
            if not mode.span_any and not can_host(nodes[device.node], mode):
                continue
            if mode.gpus > 1:
                continue
            if need == 1:
                earliest = group.first()
                if earliest is not None:
                    yield (earliest,)
            else:
                yield from ((line,) for line in group.lines if line.up)
        if mode.gpus > 1:
            yield from self._gangs(mode, view)

    def _gangs(self, mode: Mode, view: View) -> Iterator[tuple[DeviceLine, ...]]:
        """On each node the lines that are free first; for spanning gangs those of all."""
        need, now = self.need(mode), view.now
        everywhere: list[tuple[float, int, DeviceLine]] = []
        for node in view.cluster.nodes:
            lines = self._on_node.get((node.index, mode.type), [])
            here = sorted((line.free_at(need, now), line.number, line) for line in lines if line.up)
            if len(here) >= mode.gpus and can_host(node, mode):
                yield tuple(line for _, _, line in here[: mode.gpus])
            everywhere += here[: _share_of(node, mode)] if mode.allows(node.index) else []
        if mode.span_any and len(everywhere) >= mode.gpus:
            yield tuple(line for _, _, line in sorted(everywhere)[: mode.gpus])

    @staticmethod
    def _nodes_near(task: Task, view: View) -> list[int]:
        """Nodes with copies of a task's data, those with devices that hold it first."""
        nodes: dict[int, None] = {}
        hosts: dict[int, None] = {}
        for item in task.reads:
            places = view.holders(item)
            for place in places:
                if isinstance(place, int):
                    if len(places) <= NEAR:
                        hosts[place] = None
                else:
                    nodes[place.node] = None
        return list(nodes | hosts)[:NEAR]


def _share_of(node: Node, mode: Mode) -> int:
    """Devices of a gang for which each node has host cores and memory, in proportion."""
    share = mode.gpus
    if mode.millicores:
        share = min(share, MILLI * node.cpus * mode.gpus // mode.millicores)
    if mode.memory and node.memory is not None:
        share = min(share, node.memory * mode.gpus // mode.memory)
    return share
