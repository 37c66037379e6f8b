"""A part of the cluster as if it were the whole: the view of a group's scheduler.

A part is some nodes and some device types.  Placements use only these; times, data and random numbers are those of the
run.  Cost: that of the cluster's view; also for a small part, since `options`, `nodes.fitting` and `nodes.candidates`
compute results for the whole cluster and then filter them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import PlacementRule, View
from hetsim.policy.contract import NEVER, Preference


class PartView:
    """A view limited to a part of the cluster.

    nodes: bitmask of the part's nodes, None for all; types: its device types.
    waiting_tasks, running_tasks: the tasks of the part by task index, kept up to date by the caller; None: all tasks of
        the cluster that wait or run.
    """

    def __init__(
        self, view: View, nodes: int | None, types: Iterable[DeviceType],
        waiting_tasks: Mapping[int, Task] | None = None, running_tasks: Mapping[int, Task] | None = None,
    ):  # fmt: skip
        self._view = view
        self._mask = nodes
        self._types = dict.fromkeys(types)
        self._waiting = waiting_tasks
        self._running = running_tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def now(self) -> float:
        return self._view.now

    @cached_property
    def cluster(self) -> Cluster:
        """The part as a cluster; created on first use."""
        return PartOfCluster(self._view.cluster, self._mask, self._types)

    @cached_property
    def nodes(self) -> Any:
        return NodesOfPart(self)

    def has(self, mode: Mode) -> bool:
        return mode.type in self._types

    def holds_node(self, node: int) -> bool:
        return self._mask is None or bool(self._mask >> node & 1)

    def contains(self, placement: Placement) -> bool:
        return self.has(placement.mode) and all(self.holds_node(device.node) for device in placement.devices)

    def first(
        self,
        mode: Mode,
        task: Task | None = None,
        *,
        node: int | None = None,
        among: int | Mapping[int, int] | None = None,
        by: Preference = "node",
    ) -> Placement | None:
        view = self._view
        named = among if isinstance(among, Mapping) else () if node is None else (node,)
        if not self.has(mode) or not all(map(self.holds_node, named)):
            return None
        if isinstance(among, Mapping) or node is not None or (self._mask is None and (by == "node" or among is None)):
            return view.first(mode, task, node=node, among=among, by=by)
        mask = self._mask if among is None else among if self._mask is None else among & self._mask
        if by == "load":
            elsewhere = view.first(mode, task, by=by)
            if elsewhere is None or mask is None or all(mask >> device.node & 1 for device in elsewhere.devices):
                return elsewhere
            there = [place for node in self.nodes.fitting(mode) if (place := view.first(mode, task, node=node))]
            return min(there, key=lambda place: view.load(place.devices[0]), default=None)
        if by != "node":
            return view.first(mode, among=mask, by=by)
        placement = view.first(mode, among=mask)
        if placement is None or task is None or not view.items or view.holds(task, placement):
            return placement
        there_too = (view.first(mode, task, node=node) for node in self.nodes.fitting(mode))
        return next((place for place in there_too if place is not None), None)

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            return rule(task, self)  # type: ignore[arg-type]
        placements = (self.first(mode, task) for mode in task.fastest_modes())
        return next((placement for placement in placements if placement is not None), None)

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None:
            return self.contains(placement) and self._view.fits(mode, placement, tasks)
        return self.first(mode) is not None

    def options(self, task: Task, mode: Mode, distinct: bool = False) -> list[Placement]:
        if not self.has(mode):
            return []
        options = self._view.options(task, mode, distinct)
        inside = [place for place in options if self.contains(place)]
        if inside or not options or not distinct:
            return inside
        first = self.first(mode)  # all are alike, and the first of all lies elsewhere
        return [] if first is None else [first]

    def earliest_fit(self, task: Task, mode: Mode | None = None) -> Any:
        """Return the cluster's earliest fit if it lies in the part, else NEVER."""
        modes = task.fastest_modes() if mode is None else [mode]
        shadows = [self._view.earliest_fit(task, one) for one in modes if self.has(one)]
        inside = [one for one in shadows if one.placement is not None and self.contains(one.placement)]
        return min(inside, key=lambda one: one.time, default=NEVER)

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        room = self._view.make_room(task, victims)
        return room if room is not None and self.contains(room[0]) else None

    def free(self, kind: str, node: int | None = None) -> float:
        names = [one.name for one in self._types if kind in (one.kind, one.name)]
        nodes = [one.index for one in self._view.cluster.nodes] if node is None else [node]
        return sum(self._view.free(name, one) for one in nodes if self.holds_node(one) for name in names)

    def running(
        self, by: Literal["finish", "start"] = "finish", device: Device | None = None, own: bool = False
    ) -> list[Task]:
        tasks, mine = self._view.running(by, device, own), self._running
        return tasks if mine is None else [task for task in tasks if task.index in mine]

    def waiting(self, count: int | None = None, own: bool = False) -> list[Task]:
        if self._waiting is None:
            return self._view.waiting(count, own)
        if count == 1:
            return sorted(self._waiting.values(), key=lambda task: (task.ready, task.index))[:1]
        return [task for task in self._view.waiting(own=own) if task.index in self._waiting][:count]

    def num_waiting(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> int:
        if self._waiting is None or kind is not None or class_ is not None:
            return self._view.num_waiting(kind, class_, own)
        return len(self._waiting)


class NodesOfPart:
    """The nodes that a view of a part of the cluster shows (`PartView.nodes`).

    Arrays have entries for all nodes of the cluster, but only nodes of the part are candidates for a placement.
    """

    def __init__(self, part: PartView):
        self._part = part
        self._nodes = part._view.nodes
        self._inside = np.array([part.holds_node(node.index) for node in part._view.cluster.nodes])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    def fitting(self, mode: Mode) -> list[int]:
        nodes = self._nodes.fitting(mode) if self._part.has(mode) else ()
        return [node for node in nodes if self._part.holds_node(node)]

    def candidates(self, mode: Mode) -> np.ndarray:
        nodes = self._nodes.candidates(mode)  # brings the columns up to date
        return np.asarray(nodes[self._inside[nodes]] if self._part.has(mode) else nodes[:0])


HIDDEN = DeviceType("cores of another group", kind="cpu")


class PartOfCluster(Cluster):
    """A cluster with the same node numbers that has only the part's devices.

    If a part has accelerators of a node but not its cores, the cores only host launches; they have a device type on
    which no task can run.
    """

    def __init__(self, whole: Cluster, mask: int | None, types: Mapping[DeviceType, None]):
        def here(device: Device) -> bool:
            return device.type in types and (mask is None or bool(mask >> device.node & 1))

        self.nodes = []
        for node in whole.nodes:
            accelerators = tuple(filter(here, node.accelerators))
            cpu = node.cpu
            if not here(cpu):
                cpu = Device(cpu.index, cpu.name, HIDDEN, node=cpu.node, local=cpu.local, rack=cpu.rack)
            cpus = node.cpus if here(node.cpu) or accelerators else 0
            self.nodes.append(replace(node, cpus=cpus, cpu=cpu, accelerators=accelerators))
        self.devices = [device for device in whole.devices if here(device)]
        self.types = {name: kind for name, kind in whole.types.items() if kind in types}
        self.partitions = whole.partitions
