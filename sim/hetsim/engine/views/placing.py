"""Placements of tasks and modes on devices in their present state."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.transfers import Transfers
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.resources.offers import Offers
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.contract import Preference

CORES = 36  # bits for thousandths of cores below the accelerators' share, so that one number holds both amounts
ALL_CORES = (1 << CORES) - 1


class RoomIndex:
    """Nodes by the free share of their accelerators of one type, then by free cores.

    Nodes with equal amounts share one bitmask.  A query updates the index with the nodes that changed since the last
    query.  Cost: O(log n) per change of n nodes; a query also examines amounts that only nodes have on which the mode
    does not fit because of cores, memory or a partition.
    """

    def __init__(self, capacity: Capacity, kind: int, whole_devices: bool):
        self._capacity, self._kind, self.whole_devices = capacity, kind, whole_devices
        self._generation = self._position = -1
        self._amount = [-1] * len(capacity.nodes)  # by node: what was free there at the last look; -1: it was down
        self._amounts: list[int] = []  # amounts that any node has, ascending
        self._masks: list[int] = []  # by position in `_amounts`: bitmask of the nodes that have this amount
        capacity.noting = True

    def node(self, mode: Mode, among: int, tightest: bool) -> int:
        """Return the node with the least (`tightest`) or most free capacity; ties: first.

        -1: the mode fits on none.  `among`: bitmask of nodes, on all of which the mode has room for what the index does
        not count.
        """
        self._refresh()
        amounts, masks, cores = self._amounts, self._masks, mode.millicores
        # No smaller amount is enough.
        begin = bisect_left(amounts, (mode.gpus << CORES) + cores) if self.whole_devices else 0
        end = len(amounts)
        at, step = (begin, 1) if tightest else (end - 1, -1)
        while begin <= at < end:
            if (there := masks[at] & among) and amounts[at] & ALL_CORES >= cores:
                return (there & -there).bit_length() - 1
            at += step
        return -1

    def _refresh(self) -> None:
        capacity, before, amounts, masks, kind = self._capacity, self._amount, self._amounts, self._masks, self._kind
        log, nodes = capacity.log, capacity.nodes
        if self._generation == capacity.log_generation:  # else the log was cleared: every node with such a device
            touched = log[self._position :]
        else:
            touched = capacity.having[kind]
        for number in touched:
            node, old, amount = nodes[number], before[number], -1
            if node.up:
                share = node.open[kind].bit_count() if self.whole_devices else self._share(node)
                amount = (share << CORES) + node.cpu_free
            if amount == old:
                continue
            before[number] = amount
            bit = node.bit
            if old >= 0:
                at = bisect_left(amounts, old)
                if masks[at] == bit:  # no other node has it
                    del amounts[at], masks[at]
                else:
                    masks[at] ^= bit
            if amount >= 0:
                at = bisect_left(amounts, amount)
                if at < len(amounts) and amounts[at] == amount:
                    masks[at] |= bit
                else:
                    amounts.insert(at, amount)
                    masks.insert(at, bit)
        capacity.tidy()
        self._generation, self._position = capacity.log_generation, len(log)

    def _share(self, node: NodeState) -> int:
        return sum(min(WHOLE, max(0, gpu.free)) for gpu in node.gpus
                   if gpu.kind == self._kind and gpu.up and not gpu.asleep)  # fmt: skip


@dataclass
class AcceleratorColumns:
    """All accelerators: one row per node, one column per position on the node."""

    share: np.ndarray  # free share in millionths, 0 to WHOLE; 0 if there is none, or it is down or asleep
    room: np.ndarray  # bytes of memory that launches may claim; 0 if there is no accelerator
    kind: np.ndarray  # index of its type in `types`; -1 if there is no accelerator
    types: list[str]
    stamp: np.ndarray  # by node: the value of `look` when a change was last seen
    look: int = 0  # incremented by every refresh


class NodeColumns:
    """Free capacity of all nodes as NumPy columns, for placements that score nodes.

    `cores`, `memory`, and `gpus[type name]` (free share, summed over the node).  `refresh()`, which `candidates` calls,
    updates only nodes that changed since the last refresh.  `accelerators` are updated from their first use on.
    """

    def __init__(self, capacity: Capacity):
        self._capacity = capacity
        nodes = self._capacity.nodes
        self.cores = np.zeros(len(nodes))
        self.memory = np.zeros(len(nodes))
        self.gpus = {kind.name: np.zeros(len(nodes)) for kind in self._capacity.types if kind.kind != "cpu"}
        self._kinds = [number for number, kind in enumerate(capacity.types) if kind.kind != "cpu"]
        self._accelerators: AcceleratorColumns | None = None
        self._generation = -1
        self._position = 0

    @property
    def accelerators(self) -> AcceleratorColumns:
        """Each accelerator separately, with its state at the last refresh."""
        if self._accelerators is None:
            nodes = self._capacity.nodes
            size = len(nodes), max((len(node.gpus) for node in nodes), default=0)
            names = [kind.name for kind in self._capacity.types]
            kind = np.full(size, -1)
            for node in nodes:
                for gpu in node.gpus:
                    kind[node.index, gpu.device.local] = gpu.kind
            self._accelerators = AcceleratorColumns(
                np.zeros(size, np.int64), np.zeros(size), kind, types=names, stamp=np.zeros(len(nodes), np.int64)
            )
            self._generation = -1  # every node anew
            self.refresh()
        return self._accelerators

    def refresh(self) -> None:
        self._capacity.noting = True
        log = self._capacity.log
        touched: Iterable[int] = dict.fromkeys(log[self._position :])
        if self._generation != self._capacity.log_generation:
            touched = range(len(self._capacity.nodes))
        self._capacity.tidy()
        self._generation, self._position = self._capacity.log_generation, len(log)
        if (single := self._accelerators) is not None:
            single.look += 1  # nodes that are refreshed now are stamped with it
        for number in touched:
            node = self._capacity.nodes[number]
            self.cores[number] = node.cpu_free / 1000 if node.up else 0.0
            self.memory[number] = float(node.mem_free)
            sums = [0] * len(self._capacity.types)
            for gpu in node.gpus:
                free = gpu.free if gpu.up and not gpu.asleep else 0
                if free > 0:
                    sums[gpu.kind] += free if free < WHOLE else WHOLE
                if single is not None:
                    single.share[number, gpu.device.local] = min(WHOLE, max(0, free)) if node.up else 0
                    single.room[number, gpu.device.local] = gpu.room
            if single is not None:
                single.stamp[number] = single.look
            for kind, column in zip(self._kinds, self.gpus.values(), strict=True):
                column[number] = sums[kind] / WHOLE

    def fitting(self, mode: Mode) -> list[int]:
        """Return the nodes on which a mode fits, ascending; columns are not refreshed."""
        return list(self._capacity.nodes_in(self._capacity.mask(mode)))

    def candidates(self, mode: Mode) -> np.ndarray:
        """Refresh the columns; return the nodes on which a mode fits, in ascending order."""
        mask = self._capacity.mask(mode)
        self.refresh()
        bits = np.frombuffer(mask.to_bytes((len(self._capacity.nodes) + 7) // 8, "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))


class Placing:
    """Finds placements; nothing here changes the state of the run."""

    def __init__(self, state: RunState, transfers: Transfers, fleets: Mapping[Shape, Any]):
        self._fleets = fleets
        self._capacity = state.capacity
        self._places = state.places
        self._transfers = transfers
        self.cluster: Cluster = state.input.cluster
        self.nodes = NodeColumns(state.capacity)
        self._offers: Offers | None = None
        self._rooms: dict[int, RoomIndex] = {}  # by number of a type, from the first question on
        self._shapes = state.tasks.shapes
        self._with_items = bool(state.tasks.items)
        self._specs: dict[DeviceType, int] = {}
        self._only: dict[Mode, tuple[Any, ...]] = {}

    @property
    def offers(self) -> Offers:
        """Index structure that finds accelerators with most free capacity, for services."""
        if self._offers is None:
            self._offers = Offers(self._capacity)
        return self._offers

    def fit(self, task: Task) -> Placement | None:
        """Return a task's placement in its fastest mode that fits now; None if none fits."""
        modes, first, items = task.shape.modes, self._capacity.first, self._with_items
        for position in () if task.shape in self._fleets else task.modes_by_speed():
            placement = self._first_with_items(modes[position], task) if items else first(modes[position])
            if placement is not None:
                return placement
        return None

    def first(
        self, mode: Mode, task: Task | None = None, *, node: int | None = None,
        among: int | Mapping[int, int] | None = None, by: Preference = "node",
    ) -> Placement | None:  # fmt: skip
        if by == "load":
            return self._emptiest(mode, task)
        if by != "node":
            return self._by_room(mode, among if isinstance(among, int) else -1, by == "tightest")
        if node is not None:
            return self._on_node(mode, node, task)
        if among is not None:
            return self._first_among(mode, among)
        if task is not None and self._with_items:
            return self._first_with_items(mode, task)
        return self._capacity.first(mode)

    def _by_room(self, mode: Mode, among: int, tightest: bool) -> Placement | None:
        capacity = self._capacity
        kind = capacity.types[mode.type]
        if (rooms := self._rooms.get(kind)) is None:
            rooms = self._rooms[kind] = self._room_index(mode.type, kind)
        if mode.memory or mode.nodes is not None or not (rooms.whole_devices and capacity.index_of(mode).simple):
            among &= capacity.mask(mode)
        number = rooms.node(mode, among, tightest) if among else -1
        return None if number < 0 else capacity.on_node(mode, capacity.nodes[number])

    def _room_index(self, type: DeviceType, kind: int) -> RoomIndex:
        modes = (mode for shape in self._shapes for mode in shape.modes if mode.type is type)
        exclusive = type.streams == 1 and type.sharing.kind == "exclusive"
        return RoomIndex(self._capacity, kind, exclusive and all(mode.whole_devices for mode in modes))

    def _first_with_items(self, mode: Mode, task: Task) -> Placement | None:
        placement = self._capacity.first(mode)  # most often there is room for its data, too
        if placement is None or self.holds(task, placement):
            return placement
        there = (self._on_node(mode, node, task) for node in self.nodes.fitting(mode))
        return next((placement for placement in there if placement is not None), None)

    def holds(self, tasks: Task | Sequence[Task], placement: Placement) -> bool:
        """Return True if a placement's devices have room for the data of these tasks."""
        if isinstance(tasks, Task):
            tasks = (tasks,)
        return self._transfers.items_refusal(tasks, placement, placement.mode.gpu_memory) is None

    def _first_among(self, mode: Mode, nodes: int | Mapping[int, int]) -> Placement | None:
        if isinstance(nodes, Mapping):
            return self._capacity._across(mode, map(self._capacity.nodes.__getitem__, nodes), amounts=nodes)
        if (mask := self._capacity.mask(mode) & nodes):
            return self._capacity.on_node(mode, self._capacity.nodes[(mask & -mask).bit_length() - 1])
        if not mode.span_any:
            return None
        return self._capacity._across(mode, (self._capacity.nodes[node] for node in self._capacity.nodes_in(nodes)))

    def _emptiest(self, mode: Mode, task: Task | None) -> Placement | None:
        """Return the least loaded placement: O(1) for whole devices, else linear."""
        if (only := self._only.get(mode)) is None:
            only = self._only[mode] = self._only_place(mode)
        if only:
            placement, gpu, node = only
            if mode.limited and not self._capacity.mask(mode):
                return None
            room = gpu.takes(mode) and mode.millicores <= node.cpu_free and mode.memory <= node.mem_free and node.up
            return placement if room and (task is None or self.holds(task, placement)) else None
        if mode.on_cpu or mode.gpus != 1:
            return self.first(mode, task)
        if task is not None and self._with_items:
            there = {option: option.devices[0] for option in self.options(task, mode)}
            return min(there, key=lambda p: (self.load(there[p]), self._missing_bytes(task, there[p])), default=None)
        offers = self.offers
        offer = offers.offer_of(mode) if offers.serves(mode) else offers.by_looking(mode)
        return None if offer is None else offer[0]

    def _missing_bytes(self, task: Task, device: Device) -> int:
        return sum(self._places.items[item].size for item in self._places.missing(task.reads, device))

    def _only_place(self, mode: Mode) -> tuple[Any, ...]:
        """Return the only possible placement of a mode, with its GPU and node; else ()."""
        if mode.on_cpu or mode.gpus != 1 or mode.type.sharing.kind == "mig" or self.cluster.count(mode.type.name) != 1:
            return ()
        device = next(device for device in self.cluster.devices if device.type is mode.type)
        if not mode.allows(device.node):
            return ()
        return Placement(mode, (device,)), self._capacity.of[device.index], self._capacity.nodes[device.node]

    def _on_node(self, mode: Mode, node: int, task: Task | None = None) -> Placement | None:
        if not self._capacity.mask(mode) >> node & 1:
            return None
        state = self._capacity.nodes[node]
        if task is None or not self._with_items or mode.on_cpu:
            return self._capacity.on_node(mode, state)
        here = (gpu.device for gpu in state.taking(mode))
        chosen = [device for device in here if self.holds(task, Placement(mode, (device,)))]
        return Placement(mode, tuple(chosen[: mode.gpus])) if len(chosen) >= mode.gpus else None

    def options(self, task: Task, mode: Mode, distinct: bool = False) -> list[Placement]:
        if task.shape in self._fleets:
            return []
        if distinct and self._alike(task, mode):
            first = self._capacity.first(mode)
            return [] if first is None else [first]
        placements = []
        for node in self.nodes.fitting(mode):
            state = self._capacity.nodes[node]
            if mode.gpus == 1:
                here = [Placement(mode, (gpu.device,)) for gpu in state.taking(mode)]
                placements += [placement for placement in here if not self._with_items or self.holds(task, placement)]
            else:
                if (placement_here := self._on_node(mode, node, task)) is not None:
                    placements.append(placement_here)
        return placements

    def _alike(self, task: Task, mode: Mode) -> bool:
        """Return True if the task would end at the same time on all placements of a mode."""
        kind = mode.type
        if task.reads or not (mode.on_cpu or mode.whole_devices):
            return False
        if kind.streams > 1 or kind.sharing.kind != "exclusive":
            return False
        if mode.span_speeds is not None or mode.exchange is not None:
            return False
        if (specs := self._specs.get(kind)) is None:
            nodes = self.cluster.nodes
            having = [n for n in nodes if n.cpu.type is kind or any(d.type is kind for d in n.accelerators)]
            specs = self._specs[kind] = len({(n.spec.switch, n.spec.switch_size is None) for n in having})
        # A slower or waking device makes a difference.
        return specs == 1 and all(state.normal for state in self._capacity.of)

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None:
            return self._capacity.refusal(placement) is None and (not tasks or self.holds(tasks, placement))
        return bool(self._capacity.mask(mode)) or (mode.span_any and self._capacity.first(mode) is not None)

    def over_limit(self, task: Task) -> bool:
        """Return True if only limits of the task's partition prevent its start."""
        modes = task.shape.modes
        for mode in modes:
            if mode.limited:
                break
        else:  # a loop, for speed: called for every head that does not fit
            return False
        capacity = self._capacity
        for position in task.allowed or range(len(modes)):
            mode = modes[position]
            if not mode.limited:
                return False
            budget = capacity.budget(mode)
            beyond = not budget.new_nodes() and not capacity.room(mode) & budget.mask
            if budget.enough(mode) and not beyond:
                return False
        return True

    def load(self, device: Device) -> float:
        state = self._capacity.of[device.index]
        if state.__class__ is GpuState:
            return float(device.type.streams - state.free / WHOLE)
        return 1.0 - state.cpu_free / (1000 * state.node.cpus) if state.node.cpus else 1.0


def together(state: RunState, rows: Sequence[int]) -> tuple[Task, ...] | None:
    """Return these rows' tasks if they can start as one launch now, else None."""
    members: list[Task] = []
    before: dict[int, None] = {}
    graph = state.graph
    for row in rows:
        task = state.waiting.get(row)
        if row in before:
            return None
        if task is None:
            if (task := graph.blocked.get(row)) is None or state.tasks.predecessors is None:
                return None
            # It waits for a task outside the launch.
            if graph.missing[row] != sum(p in before for p in state.tasks.predecessors[row]):
                return None
        if task.shape in state.queue_of:
            return None  # requests are launched in batches
        members.append(task)
        before[row] = None  # those after it may wait for it
    return tuple(members)
