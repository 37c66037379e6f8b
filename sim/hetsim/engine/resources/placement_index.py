"""Index of the nodes on which a mode fits.

For modes of one whole accelerator there is, per type, a bitmask (a Python integer) of the nodes with a free
accelerator, updated with every change.  For every other mode that was queried there is a bitmask of the nodes on which
the mode fits.  Changed nodes are appended to one log; a query updates the mask of its mode by checking only the nodes
logged since its last update.  So the cost of a decision grows with the number of changes, not with the number of
devices; first fit is the lowest set bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.resources.partition_limits import Budget
from hetsim.model.cluster import Cluster, Partition
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, host_part

KEPT_GANGS = 256  # maximum number of cached gang placements of a node (nodes of 8 accelerators need fewer in practice)


@dataclass(slots=True, eq=False)
class ModeIndex:
    """Index of the nodes on which a mode fits (bitmask).

    `mask` includes the changes of nodes in `PlacementIndex.log` up to position `seen`.
    """

    kind: int
    counted: bool  # mode of whole GPUs without GPU memory: it fits where enough GPUs are open
    simple: bool  # `counted`, and accelerators have one stream: any open ones can be used
    bare: bool  # the mode needs only one whole accelerator: `PlacementIndex.with_open` suffices
    mask: int = 0
    seen: int = -1


class PlacementIndex:
    """The state of all nodes, and the index of the nodes on which modes fit."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.types: dict[DeviceType, int] = {kind: i for i, kind in enumerate(cluster.types.values())}
        self.nodes = [NodeState(node, self.types) for node in cluster.nodes]
        self.of: list[Any] = [None] * len(cluster.devices)
        for node in self.nodes:
            self.of[node.device.index] = node
            for gpu in node.gpus:
                self.of[gpu.device.index] = gpu
        self.indexes: dict[Mode, ModeIndex] = {}
        # indexes of nodes in the order of their changes; `log_generation` counts how often it was emptied
        self.log: list[int] = []
        self.log_generation = 0
        self.noting = False  # True if the log has a reader
        # by type number: bitmask of the nodes that are up and have an open accelerator of the type
        kinds = range(len(self.types))
        self.with_open = [sum([node.bit for node in self.nodes if node.open[kind]]) for kind in kinds]
        # by type number: indexes of the nodes that have a device of the type
        cpu_of = [self.types[node.device.type] for node in self.nodes]
        self.having = [[n.index for n in self.nodes if n.open[kind] or cpu_of[n.index] == kind] for kind in kinds]
        self._log_limit = 4 * len(self.nodes) + 1000
        self.budgets: dict[Partition, Budget] = {}  # usage of partitions with a limit on all that runs there

    def index_of(self, mode: Mode) -> ModeIndex:
        if (index := self.indexes.get(mode)) is None:
            counted = mode.gpus > 0 and mode.whole_devices and not mode.gpu_memory and mode.type.sharing.kind != "mig"
            counted = counted and mode.node_count == 1
            simple = counted and mode.type.streams == 1
            bare = counted and mode.bare
            index = self.indexes[mode] = ModeIndex(self.types[mode.type], counted, simple, bare)
            if not bare:
                self.noting = True  # from now on changes are logged: bare modes need no log
        return index

    def mask(self, mode: Mode) -> int:
        """Return the bitmask of the nodes on which the mode fits now."""
        mask = self.room(mode)
        return self.budget(mode).narrowed(mode, mask) if mode.limited else mask

    def room(self, mode: Mode) -> int:
        """Return the bitmask of nodes with room for a mode; partition limits are ignored."""
        index = self.indexes.get(mode) or self.index_of(mode)
        if index.bare:
            return self.with_open[index.kind]
        if index.seen != len(self.log):  # the log only grows, but for `tidy`
            self._refresh(mode, index)
        return index.mask

    def has_room(self, modes: Iterable[Mode]) -> bool:
        """Return True if any of the modes has room; partition limits and data are ignored."""
        for mode in modes:  # noqa: SIM110 (a third of the time: this is asked with most arrivals)
            if self.room(mode) or (mode.span_any and self.first(mode) is not None):
                return True
        return False

    def budget(self, mode: Mode) -> Budget:
        """Return limits and usage of a mode's partition, which must have limits."""
        partition = mode.partition
        assert partition is not None
        if (budget := self.budgets.get(partition)) is None:
            budget = self.budgets[partition] = Budget(partition)
        return budget

    def _refresh(self, mode: Mode, index: ModeIndex) -> None:
        log, nodes = self.log, self.nodes
        seen, mask = index.seen, index.mask
        # Invariant: `mask` is correct for all nodes that are not in the log from `seen` on.
        changed: Iterable[int] = log[seen:]
        # Outdated since the log was cleared, or more entries than nodes: check every node with such a device.
        if seen < 0 or len(log) - seen > len(nodes):
            mask, changed = 0, self.having[index.kind]  # all bits are computed again
        if mode.nodes is not None:
            own = mode.nodes
            changed = [number for number in changed if own >> number & 1]
        if index.counted:
            kind, gpus, cpus, memory = index.kind, mode.gpus, mode.millicores, mode.memory
            for number in changed:
                node = nodes[number]
                if (
                    node.open[kind].bit_count() >= gpus
                    and cpus <= node.cpu_free
                    and memory <= node.mem_free
                    and node.up
                ):
                    mask |= node.bit
                elif mask & node.bit:
                    mask ^= node.bit
        else:
            for number in changed:
                node = nodes[number]
                if node.fits(mode):
                    mask |= node.bit
                elif mask & node.bit:
                    mask ^= node.bit
        index.mask = mask
        index.seen = len(log)  # before `tidy`, which keeps the indexes that have read all
        if index.seen > self._log_limit:
            self.tidy()

    def tidy(self) -> None:
        """Clear the log of changed nodes if it is long; outdated masks are rebuilt later."""
        if (length := len(self.log)) <= self._log_limit:
            return
        self.log.clear()  # in place: readers hold the list, and see the generation
        self.log_generation += 1
        # An index that has read the whole log stays valid; any other has missed entries.
        for other in self.indexes.values():
            other.seen = 0 if other.seen == length else -1

    def first(self, mode: Mode) -> Placement | None:
        """Return the mode's placement on the first node where it fits, or None."""
        index = self.indexes.get(mode) or self.index_of(mode)
        if index.bare:
            if not (mask := self.with_open[index.kind]) or not index.simple:
                return self.on_node(mode, self.nodes[(mask & -mask).bit_length() - 1]) if mask else None
            node = self.nodes[(mask & -mask).bit_length() - 1]
            available = node.open[index.kind]
            placements = node.gpus[(available & -available).bit_length() - 1].placements
            return placements[mode] if mode in placements else self.on_node(mode, node)
        if index.seen != len(self.log):
            self._refresh(mode, index)
        mask = index.mask
        if mode.limited:
            mask = self.budget(mode).narrowed(mode, mask)
        if not mask:
            return self._first_across(mode, index) if mode.span_any else None
        return self.on_node(mode, self.nodes[(mask & -mask).bit_length() - 1])

    def _first_across(self, mode: Mode, index: ModeIndex) -> Placement | None:
        numbers = self.having_room(mode)
        if mode.node_count > 1 and numbers.bit_count() < mode.node_count:
            return None
        if index.simple and sum(self.nodes[n].open[index.kind].bit_count() for n in self.nodes_in(numbers)) < mode.gpus:
            return None
        return self._across(mode, (self.nodes[number] for number in self.nodes_in(numbers)))

    def having_room(self, mode: Mode) -> int:
        """Return the bitmask of the nodes that may have room for a part of a gang."""
        if mode.unit is not None:
            return self.room(mode.unit)
        # Other modes may fit where no whole accelerator is open.
        mask = self.with_open[self.index_of(mode).kind] if self.index_of(mode).simple else (1 << len(self.nodes)) - 1
        return mask if mode.nodes is None else mask & mode.nodes

    def free_for(self, mode: Mode) -> int:
        """Return all nodes' free amount for a gang: in nodes, GPUs or 1/1000 cores."""
        numbers = self.having_room(mode)
        if mode.node_count > 1:
            return numbers.bit_count()
        amount = amount_of(mode)
        return sum(share_of(mode, self.nodes[number], amount) for number in self.nodes_in(numbers))

    def on_node(self, mode: Mode, node: NodeState) -> Placement | None:
        """Return a mode's placement on the first devices of a node on which it fits.

        Not everything is checked here: if the mode does not fit, the result is None, or `refusal` rejects it.
        """
        if mode.gpus == 0:
            return node.placement(mode)
        index = self.indexes[mode]
        if mode.gpus == 1:
            if index.simple:
                available = node.open[index.kind]
                gpu = node.gpus[(available & -available).bit_length() - 1] if available else None
            else:
                gpu = self.best_gpu(mode, node)
            return None if gpu is None else gpu.placement(mode)
        if index.simple:
            return self._gang(mode, node, node.open[index.kind])
        fitting = node.taking(mode)
        if mode.type.streams > 1:
            fitting.sort(key=lambda gpu: -gpu.free)
        return Placement(mode, tuple(gpu.device for gpu in fitting[: mode.gpus])) if len(fitting) >= mode.gpus else None

    def _gang(self, mode: Mode, node: NodeState, available: int) -> Placement | None:
        placement = node.gangs.get((mode, available))  # the same open ones give the same devices
        if placement is not None:
            return placement
        if available.bit_count() < mode.gpus:
            return None
        if len(node.gangs) >= KEPT_GANGS:
            node.gangs.clear()  # they are created again when needed
        chosen, rest = [], available
        for _ in range(mode.gpus):
            lowest = rest & -rest
            chosen.append(node.gpus[lowest.bit_length() - 1].device)
            rest ^= lowest
        placement = node.gangs[mode, available] = Placement(mode, tuple(chosen))
        return placement

    def best_gpu(self, mode: Mode, node: NodeState) -> GpuState | None:
        """Return the best accelerator of a node for one launch; None if it fits on none.

        Of the accelerators on which the launch fits, return the fullest for a fraction (so that other accelerators
        remain whole), the emptiest for whole launches that overlap or share by time slices, otherwise the first.
        """
        index = self.indexes.get(mode)
        if index is not None and index.counted and not index.simple:
            best, max_free, empty = None, 0, mode.type.streams * WHOLE
            available, gpus = node.open[index.kind], node.gpus
            while available:
                lowest = available & -available
                available ^= lowest
                gpu = gpus[lowest.bit_length() - 1]
                if (free := gpu.free) > max_free:  # the first among equals
                    if free == empty:
                        return gpu
                    best, max_free = gpu, free
            return best
        if not (fitting := node.taking(mode)):
            return None
        if mode.type.sharing.kind == "timeslice" or (mode.whole_devices and mode.type.streams > 1):
            return max(fitting, key=lambda gpu: gpu.free)
        return fitting[0] if mode.whole_devices else min(fitting, key=lambda gpu: gpu.free)

    def _across(
        self, mode: Mode, nodes: Iterable[NodeState], budget: Budget | None = None,
        amounts: Mapping[int, int] | None = None,
    ) -> Placement | None:  # fmt: skip
        """Place a gang on nodes in this order; None: no room. amounts: maximum per node."""
        new = 1 << 30
        if mode.limited:
            budget = budget or self.budget(mode)
            if not budget.enough(mode):
                return None
            new = budget.new_nodes()
        chosen: list[tuple[NodeState, int]] = []
        amount_left = amount_of(mode)
        for node in nodes:
            fresh = budget is not None and node.index not in budget.on
            if fresh and not new:  # the limit of its partition allows no further node
                continue
            here = share_of(mode, node, amount_left if amounts is None else min(amount_left, amounts[node.index]))
            if here:
                chosen.append((node, here))
                new -= fresh  # a bool: a node that the partition did not use before
                amount_left -= here
                if not amount_left:
                    return _gang_on(mode, chosen)
        return None

    def countable(self, mode: Mode) -> bool:
        """Return True if numbers of free cores or GPUs show whether a mode fits on a node."""
        if mode.span_any:
            return False
        return mode.gpus == 0 or (self.indexes.get(mode) or self.index_of(mode)).simple

    def nodes_in(self, mask: int) -> Iterator[int]:
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest


def amount_of(mode: Mode) -> int:
    """Return a gang's demand: in nodes, in GPUs, or in thousandths of cores."""
    return mode.node_count if mode.node_count > 1 else mode.gpus or mode.millicores


def share_of(mode: Mode, node: NodeState, left: int) -> int:
    """Return how much of a gang fits on a node, at most `left` (unit: `amount_of`)."""
    if mode.unit is not None:
        if not node.fits(mode.unit):
            return 0
        if mode.node_count > 1:
            return 1
        cores = min(left, node.cpu_free)
        if mode.memory:
            cores = min(cores, node.mem_free * mode.millicores // mode.memory)
        return cores // 1000 * 1000  # whole cores only
    if not node.up or (mode.nodes is not None and not mode.nodes & node.bit):
        return 0
    count = min(len(node.taking(mode)), left)
    while count:
        cpus, memory = host_part(mode, count)
        if cpus <= node.cpu_free and memory <= node.mem_free:
            break
        count -= 1  # a smaller part needs less of the host
    return count


def _gang_on(mode: Mode, chosen: list[tuple[NodeState, int]]) -> Placement:
    if not mode.gpus:
        devices = tuple(node.device for node, _ in chosen)
        if mode.node_count > 1:
            return Placement(mode, devices)
        return Placement(mode, devices, parts=tuple(part for _, part in chosen) if len(chosen) > 1 else None)
    taken: list[Device] = []
    for node, count in chosen:
        count *= mode.gpus // mode.node_count if mode.node_count > 1 else 1  # its part of each node
        taken += [gpu.device for gpu in node.taking(mode)[:count]]  # the first ones of each node
    return Placement(mode, tuple(taken))
