"""Placements of gangs: on the fewest nodes (`consolidate`), or by `topology`.

Other tasks go where they leave whole what gangs need: the tightest node, or the tightest switch or island.
Cost: NumPy operations over the GPUs that are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import by_room, equally_fast, on_gpu, taking

Found = tuple[tuple[float, ...], Placement]
"""A placement and its key: the least is the best."""


def consolidate(task: Task, view: View) -> Placement | None:
    """A spanning gang on as few nodes as possible; on one node the tightest.

    Reference: the consolidation of Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (NSDI
    2019).  The largest holes first is optimal: no fewer nodes have as many free GPUs.  The last node is the tightest
    that suffices.  Weakness: takes the largest holes, which the next gang may want.
    """
    for modes in equally_fast(task):
        options = [option for mode in modes for option in _fewest_nodes(task, mode, view)]
        if options:
            return min(options, key=lambda option: option[0])[1]
    return None


def _fewest_nodes(task: Task, mode: Mode, view: View) -> Iterator[Found]:
    placement = by_room(task, [mode], view, tightest=True)
    if placement is None and mode.unit is not None:
        placement = view.first(mode, task)
    elif placement is None and mode.span_any:
        placement = _over_nodes(task, mode, np.arange(len(view.cluster.nodes)), view)
    if placement is not None:
        yield (float(len({device.node for device in placement.devices})), _free_on(placement, view)), placement


def _free_on(placement: Placement, view: View) -> float:
    node = placement.devices[0].node
    return float(sum(column[node] for column in view.nodes.gpus.values()))


def _over_nodes(task: Task, mode: Mode, nodes: np.ndarray, view: View) -> Placement | None:
    """A gang over the fewest of these nodes; None without devices or room for data."""
    good = taking(mode, nodes, view)
    count = np.minimum(good.sum(axis=1), _host_room(mode, nodes, view))
    if count.sum() < mode.gpus:
        return None
    rest = mode.gpus
    chosen: list[tuple[int, int]] = []
    for place in np.argsort(-count, kind="stable").tolist():
        if count[place] >= rest:  # the last one: rather the tightest that suffices
            enough = np.flatnonzero((count >= rest) & ~np.isin(np.arange(len(count)), [c for c, _ in chosen]))
            chosen.append((int(enough[count[enough].argmin()]), rest))
            break
        chosen.append((place, int(count[place])))
        rest -= int(count[place])
    devices = [
        view.cluster.nodes[nodes[place]].accelerators[position]
        for place, taken in chosen
        for position in np.flatnonzero(good[place])[:taken].tolist()
    ]
    return _if_it_fits(task, mode, devices, view)


def _host_room(mode: Mode, nodes: np.ndarray, view: View) -> np.ndarray:
    """Devices of a gang that each node's cores and memory serve, in proportion."""
    room = np.full(len(nodes), mode.gpus)
    if mode.millicores:
        free = np.round(view.nodes.cores[nodes] * 1000).astype(np.int64)
        room = np.minimum(room, free * mode.gpus // mode.millicores)
    if mode.memory:
        room = np.minimum(room, view.nodes.memory[nodes] * mode.gpus // mode.memory).astype(np.int64)
    return room


def _if_it_fits(task: Task, mode: Mode, devices: Sequence[object], view: View) -> Placement | None:
    placement = Placement(mode, tuple(devices))  # type: ignore[arg-type]
    return placement if view.fits(mode, placement, (task,)) else None


class Topology:
    """A gang within the fastest part: NVLink island, PCIe switch, node, rack.

    Where `span_speeds` make no difference the narrowest part, and of equals the one with the least free; over racks
    and nodes as few nodes as can be.  One GPU comes from the island or switch with the least free.

    Reference: Amaral, Polo, Carrera, Seelam, Steinder, Topology-aware GPU Scheduling for Learning Workloads in Cloud
    Environments (SC 2017); the locality levels of Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for
    DNN Training Workloads (ATC 2019).  Weakness: takes what is free now and never waits for a better place.
    """

    def __init__(self) -> None:
        self._parts: dict[str, np.ndarray] = {}
        """By level: the number of the part to which each accelerator belongs (a row a node), -1 for none."""

    def __call__(self, task: Task, view: View) -> Placement | None:
        """The rule."""
        if not self._parts:
            self._parts = parts_of(view.cluster)
        for modes in equally_fast(task):
            options = [option for mode in modes for option in self._options(task, mode, view)]
            if options:
                return min(options, key=lambda option: option[0])[1]
        return None

    def _options(self, task: Task, mode: Mode, view: View) -> Iterator[Found]:
        """The best place of a mode, if any, with (-rate, free in the part)."""
        if not mode.gpus or not mode.whole or mode.unit is not None:
            placement = by_room(task, [mode], view, tightest=True)
            if placement is None and mode.unit is not None:
                placement = view.first(mode, task)
            if placement is not None:
                yield (-1.0, _free_on(placement, view)), placement
            return
        options = [*self._within_nodes(task, mode, view), *self._over_nodes(task, mode, view)]
        if options:
            yield min(options, key=lambda option: option[0])

    def _within_nodes(self, task: Task, mode: Mode, view: View) -> Iterator[Found]:
        nodes = view.nodes.candidates(mode)
        if not len(nodes):
            return
        good = taking(mode, nodes, view)
        for narrowness, level in enumerate(("island", "switch", "node")):
            part = self._parts[level][nodes]
            inside = good & (part >= 0)
            free = np.bincount(part[inside], minlength=1)
            enough = np.flatnonzero(free >= mode.gpus)
            for number in enough[np.lexsort([enough, free[enough]])].tolist():
                row, positions = np.nonzero(inside & (part == number))
                node = int(nodes[row[0]])
                placement = self._devices(task, mode, node, positions=positions, view=view)
                if placement is not None:
                    rate = mode.span_rate(placement.devices)
                    yield (-rate, float(narrowness), float(free[number])), placement
                    break

    def _devices(self, task: Task, mode: Mode, node: int, positions: np.ndarray, view: View) -> Placement | None:
        """A node's accelerators for a mode: switches and islands with least free first."""
        for level in ("switch", "island"):
            part = self._parts[level][node, positions]
            free = np.array([(part == number).sum() for number in part])
            positions = positions[np.lexsort([positions, part, free])]
        if mode.gpus == 1:
            return on_gpu(task, mode, node, view=view, order=positions)
        accelerators = view.cluster.nodes[node].accelerators
        return _if_it_fits(task, mode, [accelerators[position] for position in positions[: mode.gpus].tolist()], view)

    def _over_nodes(self, task: Task, mode: Mode, view: View) -> Iterator[Found]:
        if not mode.span_any:
            return
        view.nodes.refresh()
        racks: dict[str, list[int]] = {}
        for node in view.cluster.nodes:
            if node.spec.rack is not None:
                racks.setdefault(node.spec.rack, []).append(node.index)
        everywhere = list(range(len(view.cluster.nodes)))
        for narrowness, nodes in [*((3.0, rack) for rack in racks.values()), (4.0, everywhere)]:
            placement = _over_nodes(task, mode, np.array(nodes), view)
            if placement is not None:
                used = float(len({device.node for device in placement.devices}))
                yield (-mode.span_rate(placement.devices), narrowness, used), placement


def parts_of(cluster: Cluster) -> dict[str, np.ndarray]:
    """By level, the island, switch and node of each accelerator, numbered globally."""
    widest = max((len(node.accelerators) for node in cluster.nodes), default=0)
    parts = {level: np.full((len(cluster.nodes), widest), -1) for level in ("island", "switch", "node")}
    for node in cluster.nodes:
        for device in node.accelerators:
            for level in ("island", "switch"):
                number = getattr(device, level)
                if number is not None:
                    parts[level][node.index, device.local] = node.index * widest + number
            parts["node"][node.index, device.local] = node.index
    return parts
