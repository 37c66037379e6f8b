"""Placements of gangs: on the fewest nodes, by topology, or by racks and links.

Other tasks are placed so that gangs keep whole nodes: on the tightest node, or the tightest switch or island.
Cost: NumPy operations over the free GPUs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.common import grouped
from hetsim_policies.placement_rules.common.choice import by_room, equally_fast, on_gpu, taking

Found = tuple[tuple[float, ...], Placement]  # (key, placement); the lowest key is the best


def consolidate(task: Task, view: View) -> Placement | None:
    """Place a spanning gang on as few nodes as possible.

    Reference: the consolidation of Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (NSDI
    2019).  The emptiest nodes are used first, which is optimal: fewer nodes never have as many free GPUs.  The last
    node is the one with the fewest free GPUs that suffices.  Weakness: it uses the largest gaps, which the next gang
    may need.
    """
    for modes in equally_fast(task):
        if options := [option for mode in modes for option in _fewest_nodes(task, mode, view)]:
            return min(options, key=lambda option: option[0])[1]
    return None


def _fewest_nodes(task: Task, mode: Mode, view: View) -> Iterator[Found]:
    if (placement := by_room(task, [mode], view, tightest=True)) is None and mode.unit is not None:
        placement = view.first(mode, task)
    elif placement is None and mode.span_any:
        placement = _over_nodes(task, mode, np.arange(len(view.cluster.nodes)), view)
    if placement is not None:
        yield (float(len({device.node for device in placement.devices})), _free_on(placement, view)), placement


def _free_on(placement: Placement, view: View) -> float:
    node = placement.devices[0].node
    return float(sum(column[node] for column in view.nodes.gpus.values()))


def _over_nodes(task: Task, mode: Mode, nodes: np.ndarray, view: View) -> Placement | None:
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
    """Return by node how many of a gang's devices its cores and memory can serve."""
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
    """Place a gang in the fastest part with room: island, PCIe switch, node, rack.

    If the speed does not depend on the part (`span_speeds`), the narrowest part is used, at ties the part with the
    fewest free GPUs; a gang over several nodes uses as few nodes as possible.  A single GPU is taken from the island or
    switch with the fewest free GPUs.

    Reference: Amaral, Polo, Carrera, Seelam, Steinder, Topology-aware GPU Scheduling for Learning Workloads in Cloud
    Environments (SC 2017); the locality levels of Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for
    DNN Training Workloads (ATC 2019).  Weakness: it uses what is free now and never waits for a better place.
    """

    def __init__(self) -> None:
        # By level: number of the part of each accelerator (a row per node), -1 for none
        self._parts: dict[str, np.ndarray] = {}

    def __call__(self, task: Task, view: View) -> Placement | None:
        if not self._parts:
            self._parts = parts_of(view.cluster)
        for modes in equally_fast(task):
            if options := [option for mode in modes for option in self._options(task, mode, view)]:
                return min(options, key=lambda option: option[0])[1]
        return None

    def _options(self, task: Task, mode: Mode, view: View) -> Iterator[Found]:
        """Yield the best placement of a mode, if there is one, with its sort key.

        The key is (-rate, free GPUs in the part of the topology that is used).
        """
        if not mode.gpus or not mode.whole_devices or mode.unit is not None:
            if (placement := by_room(task, [mode], view, tightest=True)) is None and mode.unit is not None:
                placement = view.first(mode, task)
            if placement is not None:
                yield (-1.0, _free_on(placement, view)), placement
            return
        if options := [*self._within_nodes(task, mode, view), *self._over_nodes(task, mode, view)]:
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
                if (placement := self._devices(task, mode, node, positions=positions, view=view)) is not None:
                    yield (-mode.span_rate(placement.devices), float(narrowness), float(free[number])), placement
                    break

    def _devices(self, task: Task, mode: Mode, node: int, positions: np.ndarray, view: View) -> Placement | None:
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
        everywhere = list(range(len(view.cluster.nodes)))
        racks = grouped((rack, node.index) for node in view.cluster.nodes if (rack := node.spec.rack) is not None)
        for narrowness, nodes in [*((3.0, rack) for rack in racks.values()), (4.0, everywhere)]:
            if (placement := _over_nodes(task, mode, np.array(nodes), view)) is not None:
                used = float(len({device.node for device in placement.devices}))
                yield (-mode.span_rate(placement.devices), narrowness, used), placement


def parts_of(cluster: Cluster) -> dict[str, np.ndarray]:
    """Return, by level, ids of each accelerator's island, switch, node (-1: none)."""
    widest = max((len(node.accelerators) for node in cluster.nodes), default=0)
    parts = {level: np.full((len(cluster.nodes), widest), -1) for level in ("island", "switch", "node")}
    for node in cluster.nodes:
        for device in node.accelerators:
            for level in ("island", "switch"):
                if (number := getattr(device, level)) is not None:
                    parts[level][node.index, device.local] = node.index * widest + number
            parts["node"][node.index, device.local] = node.index
    return parts


# Placements of jobs of `nodes: N` by racks, and by the load on their links.  Other tasks are placed on the fullest node
# where they fit, as `best_fit` does.  All nodes without a rack count as one rack.  Cost: linear in the number of free
# nodes; the cost of `least_contention` is linear in the number of jobs on the candidates' links, too.


Choice = Callable[[Mode, list[list[int]]], list[int]]  # function that chooses a job's nodes from the free nodes by rack

SKEWED = 0.25  # Share of a model's bytes in its largest tensor above which its job is kept together


def pack_racks(task: Task, view: View) -> Placement | None:
    """Place a job over several nodes in as few racks as possible.

    If one rack suffices, the tightest such rack is used; otherwise the emptiest racks are filled first.
    Reference: the locality of Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
    Workloads (ATC 2019).  Weakness: it considers only nodes that are free now, so it splits jobs when racks are nearly
    full.
    """
    return _over_racks(task, view, lambda mode, racks: _packed(mode.node_count, racks))


def spread_racks(task: Task, view: View) -> Placement | None:
    """Place a job over nodes of many racks, each from the rack with most free nodes.

    The failure of a rack then affects the smallest part of the job.  Reference: none, it is a baseline.  Weakness: all
    traffic of the job crosses the racks' uplinks.
    """
    return _over_racks(task, view, lambda mode, racks: _spread(mode.node_count, racks))


class Skew:
    """Consolidate jobs with one large tensor; place other jobs in the fullest racks.

    A job waits until it fits in as few racks as in an empty cluster if its largest tensor has a large share of the
    job's bytes; any other job is placed in the racks with the fewest free nodes.

    Reference: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (NSDI 2019), which consolidates
    jobs only if the skew of their tensors makes it worth the wait.  Weakness: the share ignores the fraction of a step
    that is communication.
    """

    def __init__(self, threshold: float = SKEWED):
        """threshold: jobs with at least this share of their bytes in one tensor wait."""
        self.threshold = threshold
        self._sizes: list[int] = []

    def __call__(self, task: Task, view: View) -> Placement | None:
        if not self._sizes:
            self._sizes = sorted(Counter(node.spec.rack for node in view.cluster.nodes).values(), reverse=True)
        return _over_racks(task, view, self._nodes)

    def _nodes(self, mode: Mode, racks: list[list[int]]) -> list[int]:
        if mode.exchange is None or mode.exchange.largest < self.threshold:
            return _taken(mode.node_count, sorted(racks, key=len))
        nodes = _packed(mode.node_count, racks)
        level, rest = 0, mode.node_count
        while rest > 0:
            rest -= self._sizes[level]
            level += 1
        used = sum(1 for rack in racks if not set(nodes).isdisjoint(rack))
        return nodes if used <= level else []


def least_contention(task: Task, view: View) -> Placement | None:
    """Choose the cheapest of several placements of a job over several nodes.

    The cost of a placement is the sum of the step time of the job there and the step times of the jobs that use the
    same links (`View.crowding`), each multiplied by the number of devices of its job.  The candidates are every rack
    that suffices, the fewest racks, the racks with the fewest free nodes, the emptiest racks, and the first nodes.
    Reference: the compatibility of jobs on links in Rajasekaran, Ghobadi, Akella, CASSINI: Network-Aware Job Scheduling
    in Machine Learning Clusters (NSDI 2024), here with predicted times.  Weakness: it considers only the jobs that run
    now.
    """
    for modes in equally_fast(task):
        options: list[tuple[float, int, Placement]] = []
        for mode in modes:
            if mode.node_count == 1:
                if (placement := _without_nodes(task, mode, view)) is not None:
                    return placement
                continue
            racks = _racks(mode, view)
            count = mode.node_count
            choices = [rack[:count] for rack in racks if len(rack) >= count]
            choices += [_packed(count, racks), _taken(count, sorted(racks, key=len)), _spread(count, racks)]
            choices.append(sorted(node for rack in racks for node in rack)[:count])
            for nodes in dict.fromkeys(map(tuple, choices)):
                placement = _on(mode, nodes, view) if len(nodes) == count else None
                if placement is not None and view.holds(task, placement):
                    step, others = view.crowding(placement)
                    options.append((mode.width * (step - 1.0) + others, len(options), placement))
        if options:
            return min(options)[2]
    return None


def _without_nodes(task: Task, mode: Mode, view: View) -> Placement | None:
    if (placement := by_room(task, [mode], view, tightest=True)) is None and mode.span_any:
        placement = view.first(mode, task)
    return placement if placement is not None and view.holds(task, placement) else None


def _over_racks(task: Task, view: View, choose: Choice) -> Placement | None:
    for modes in equally_fast(task):
        for mode in modes:
            if mode.node_count == 1:
                placement = _without_nodes(task, mode, view)
            else:
                nodes = choose(mode, _racks(mode, view))
                placement = _on(mode, nodes, view) if len(nodes) == mode.node_count else None
            if placement is not None and view.holds(task, placement):
                return placement
    return None


def _racks(mode: Mode, view: View) -> list[list[int]]:
    assert mode.unit is not None
    nodes = view.nodes.fitting(mode.unit)
    return list(grouped((view.cluster.nodes[node].spec.rack, node) for node in nodes).values())


def _packed(count: int, racks: list[list[int]]) -> list[int]:
    """Choose `count` nodes of the fewest racks; fewer if there are no more."""
    chosen: list[int] = []
    rest = list(racks)
    while rest and len(chosen) < count:
        missing = count - len(chosen)
        enough = [rack for rack in rest if len(rack) >= missing]
        rack = min(enough, key=len) if enough else max(rest, key=len)
        rest.remove(rack)
        chosen += rack[:missing]
    return chosen


def _taken(count: int, racks: Iterable[list[int]]) -> list[int]:
    return [node for rack in racks for node in rack][:count]


def _spread(count: int, racks: list[list[int]]) -> list[int]:
    """Choose `count` nodes one by one, each from the rack with the most nodes left."""
    rest = [list(rack) for rack in racks]
    return [max(rest, key=len).pop(0) for _ in range(min(count, sum(map(len, rest))))]


def _on(mode: Mode, nodes: Iterable[int], view: View) -> Placement | None:
    return view.first(mode, among=sum(1 << node for node in dict.fromkeys(nodes)))
