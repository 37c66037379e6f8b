"""Who occupies what: cores, memory and shares of accelerators, and an index of where a mode fits.

Amounts are integers (thousandths of cores, millionths of a GPU, bytes), so give and take are exact.

The index: for one whole accelerator of a type there is a bitmask of the nodes that have one, kept with every give
and take.  For every other mode that anybody asked for there is one Python integer, a bitmask of the nodes on which it
fits now.  Nodes that changed are noted in one log; a mode's mask is brought up to date when it is asked for, by
looking only at the nodes noted since.  So the cost of a decision grows with what changed, not with the number
of devices, and first fit is the lowest set bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from sim.engine.budgets import Budget
from sim.model.cluster import WHOLE, Cluster, Device, DeviceType, Node, Partition
from sim.model.plan import Placement
from sim.model.tasks import Mode

UNLIMITED = 1 << 62

KEPT_GANGS = 256
"""Placements of gangs that a node remembers (nodes of 8 accelerators have no more that differ in practice)."""


def available_at(state: GpuState | NodeState, now: float, free: int) -> float:
    """When a launch can begin its first stage on a device of which it leaves `free`.

    Capacity whose former user is still saving its state counts as free; a newcomer waits only if it needs that
    part.  `state.saving` lists (until, amount).
    """
    time = state.ready_at
    if state.saving:
        state.saving = saving = sorted(entry for entry in state.saving if entry[0] > now)
        being_saved = sum(amount for _, amount in saving)
        for until, amount in saving:
            if being_saved <= free:
                break
            being_saved -= amount
            time = max(time, until)
    return time


class GpuState:
    """The changing side of one accelerator.

    `free` is the share still to be given away: `streams` launches of a whole GPU at first.  `room` is the memory
    that launches may claim: capacity less what launches hold and less pinned items; items that lie there
    unpinned can be evicted and do not count.  `normal`: computes at its nominal rate, at once.
    """

    __slots__ = (
        "device", "node", "bit", "free", "room", "up", "asleep", "normal", "frequency", "slowdown", "ready_at",
        "saving", "placements", "layout", "relaid", "slices", "engines", "kind",
    )  # fmt: skip

    def __init__(self, device: Device, node: NodeState, kind: int):
        self.device = device
        self.node = node
        self.kind = kind
        self.bit = 1 << device.local
        self.free = device.type.streams * WHOLE
        self.room = UNLIMITED if device.type.memory is None else device.type.memory
        self.up = True
        self.asleep = False
        self.normal = True
        self.frequency = 1.0
        self.slowdown = 1.0 + device.type.preemption.overhead
        if self.slowdown != 1.0:
            self.normal = False
        self.ready_at = 0.0
        self.saving: list[tuple[float, int]] = []
        self.placements: dict[Mode, Placement] = {}
        layouts = device.type.sharing.layouts
        self.layout = tuple(round(s * WHOLE) for s in layouts[0])
        self.relaid = False  # mig: the layout was changed and the time for it is still to be paid
        self.slices: dict[Any, int] = {}  # mig: launch -> slice it sits in
        self.engines: Any = None

    def takes(self, mode: Mode) -> bool:
        """Is there a share and memory for one more launch in this mode?"""
        if not self.up or self.asleep or mode.gpu_memory > self.room:
            return False
        if self.device.type.sharing.kind == "mig":
            return self.slice_for(mode.share) is not None
        return self.free >= mode.share

    def slice_for(self, share: int) -> tuple[tuple[int, ...], int] | None:
        """mig: the layout and slice a launch would take: the least that is large enough, without a change of
        layout if possible; another layout only when the GPU is empty."""
        free = list(self.layout)
        for used in self.slices.values():
            free.remove(used)
        fitting = [size for size in free if size >= share]
        if fitting:
            return self.layout, min(fitting)
        if not self.slices:
            for layout in self.device.type.sharing.layouts:
                sizes = [round(size * WHOLE) for size in layout]
                fitting = [size for size in sizes if size >= share]
                if fitting:
                    return tuple(sizes), min(fitting)
        return None

    @property
    def left(self) -> int:
        """Capacity still to be given away."""
        return self.free

    @property
    def open(self) -> bool:
        """Could a launch of a whole GPU start here, memory aside?"""
        return self.up and not self.asleep and self.free >= WHOLE


class NodeState:
    """The changing side of one node.  `open[t]`: bitmask of its accelerators of type number t that are open."""

    __slots__ = (
        "node", "index", "bit", "device", "cpu_free", "mem_free", "cores", "gpus", "open", "up", "asleep", "normal",
        "frequency", "slowdown", "ready_at", "saving", "placements", "gangs",
    )  # fmt: skip

    def __init__(self, node: Node, types: dict[DeviceType, int]):
        self.node = node
        self.index = node.index
        self.bit = 1 << node.index
        self.device = node.cpu
        self.cpu_free = node.cpus * 1000
        self.mem_free = UNLIMITED if node.memory is None else node.memory
        self.cores = (1 << node.cpus) - 1
        self.gpus = [GpuState(device, self, types[device.type]) for device in node.accelerators]
        self.open = [0] * len(types)
        for gpu in self.gpus:
            self.open[gpu.kind] |= gpu.bit
        self.up = True
        self.asleep = False
        self.normal = True
        self.frequency = 1.0
        self.slowdown = 1.0
        self.ready_at = 0.0
        self.saving: list[tuple[float, int]] = []
        self.placements: dict[Mode, Placement] = {}
        self.gangs: dict[tuple[Mode, int], Placement] = {}
        """Placements of gangs of whole GPUs by mode and what was open when they were made."""

    @property
    def left(self) -> int:
        """Capacity (thousandths of cores) still to be given away."""
        return self.cpu_free


class ModeIndex:
    """Where one mode fits: `mask` is true for the log up to `seen`."""

    __slots__ = ("mask", "seen", "kind", "simple", "bare")

    def __init__(self, kind: int, simple: bool, bare: bool):
        self.bare = bare
        """Nothing but one whole accelerator: `Capacity.with_open` knows."""
        self.mask = 0
        self.seen = -1
        self.kind = kind
        self.simple = simple
        """Whole GPUs of one stream, without a claim on their memory: counting open ones is enough."""


class Capacity:
    """The state of all nodes, and the index over them."""

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
        self.log: list[int] = []
        """Indexes of nodes in the order in which they changed; emptied now and then (`log_generation` counts)."""
        self.log_generation = 0
        self.releases = 0
        """How often something has come free."""
        self.noting = False
        """Does anybody read the log?"""
        self.undisturbed = True
        """Has every device been in service ever since the start?"""
        self.with_open = [0] * len(self.types)
        """By type number: bitmask of the nodes that are up and have an open accelerator of the type."""
        for node in self.nodes:
            for kind, available in enumerate(node.open):
                if available:
                    self.with_open[kind] |= node.bit
        self._having: list[list[int]] = [[] for _ in self.types]
        """By type number: indexes of the nodes that have a device of the type."""
        for node in self.nodes:
            for kind in dict.fromkeys([self.types[node.device.type], *(gpu.kind for gpu in node.gpus)]):
                self._having[kind].append(node.index)
        self._log_limit = 4 * len(self.nodes) + 1000
        self.budgets: dict[Partition, Budget] = {}
        """Of partitions with a limit on all that runs there."""

    # Where does a mode fit? ---------------------------------------------------------------------------------

    def index_of(self, mode: Mode) -> ModeIndex:
        index = self.indexes.get(mode)
        if index is None:
            plain = mode.type.streams == 1 and mode.type.sharing.kind != "mig"
            simple = mode.gpus > 0 and mode.whole and not mode.gpu_memory and plain
            bare = simple and mode.bare
            index = self.indexes[mode] = ModeIndex(self.types[mode.type], simple, bare)
            if not bare:
                self.noting = True
        return index

    def mask(self, mode: Mode) -> int:
        """Bitmask of the nodes on which the mode fits now."""
        mask = self.room(mode)
        return self.budget(mode).narrowed(mode, mask) if mode.limited else mask

    def room(self, mode: Mode) -> int:
        """Bitmask of the nodes with room for the mode, limits of its partition aside."""
        index = self.indexes.get(mode) or self.index_of(mode)
        if index.bare:
            return self.with_open[index.kind]
        if index.seen != len(self.log):
            self._refresh(mode, index)
        return index.mask

    def budget(self, mode: Mode) -> Budget:
        """What the partition of a limited mode has in use."""
        partition = mode.partition
        assert partition is not None
        budget = self.budgets.get(partition)
        if budget is None:
            budget = self.budgets[partition] = Budget(partition)
        return budget

    def _refresh(self, mode: Mode, index: ModeIndex) -> None:
        """Look again at the nodes noted since the index was last asked."""
        log, nodes = self.log, self.nodes
        seen, mask = index.seen, index.mask
        changed: Iterable[int] = log[seen:]
        if seen < 0 or len(log) - seen > len(nodes):
            mask, changed = 0, self._having[index.kind]
        if mode.nodes is not None:
            own = mode.nodes
            changed = [number for number in changed if own >> number & 1]
        if index.simple:
            kind, gpus, cpus, memory = index.kind, mode.gpus, mode.cpus, mode.memory
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
                if self.fits_on(node, mode):
                    mask |= node.bit
                elif mask & node.bit:
                    mask ^= node.bit
        index.mask = mask
        index.seen = len(log)
        self.tidy()

    def tidy(self) -> None:
        """Start the log anew if it has grown long: indexes that are behind will look at every node once."""
        length = len(self.log)
        if length <= self._log_limit:
            return
        self.log.clear()
        self.log_generation += 1
        for other in self.indexes.values():
            other.seen = 0 if other.seen == length else -1

    def fits_on(self, node: NodeState, mode: Mode) -> bool:
        """Does the mode fit on this node (or on a sketch of it)?"""
        if mode.cpus > node.cpu_free or mode.memory > node.mem_free or not node.up:
            return False
        if mode.nodes is not None and not mode.nodes & node.bit:
            return False
        if mode.gpus == 0:
            return node.device.type is mode.type and not node.asleep
        count = 0
        for gpu in node.gpus:
            if gpu.device.type is mode.type and gpu.takes(mode):
                count += 1
                if count == mode.gpus:
                    return True
        return False

    def first(self, mode: Mode) -> Placement | None:
        """The mode on the first node where it fits, on that node's first devices."""
        index = self.indexes.get(mode) or self.index_of(mode)
        if index.bare:
            mask = self.with_open[index.kind]
            if not mask:
                return None
            node = self.nodes[(mask & -mask).bit_length() - 1]
            available = node.open[index.kind]
            placements = node.gpus[(available & -available).bit_length() - 1].placements
            if mode in placements:
                return placements[mode]
            return self.on_node(mode, node)
        if index.seen != len(self.log):
            self._refresh(mode, index)
        mask = index.mask
        if mode.limited:
            mask = self.budget(mode).narrowed(mode, mask)
        if not mask:
            return self._first_across(mode, index) if mode.span_any else None
        return self.on_node(mode, self.nodes[(mask & -mask).bit_length() - 1])

    def _first_across(self, mode: Mode, index: ModeIndex) -> Placement | None:
        """The first devices of any nodes; of whole accelerators only nodes that have one open are looked at."""
        if not index.simple:
            return self._across(mode, self.nodes)
        mask = self.with_open[index.kind]
        if mode.nodes is not None:
            mask &= mode.nodes
        nodes = [self.nodes[number] for number in self.nodes_in(mask)]
        if sum(node.open[index.kind].bit_count() for node in nodes) < mode.gpus:
            return None
        return self._across(mode, nodes)

    def on_node(self, mode: Mode, node: NodeState) -> Placement | None:
        """The mode on this node's first devices; the caller knows that it fits (else None or a wrong answer
        that `claim` will refuse)."""
        if mode.gpus == 0:
            placement = node.placements.get(mode)
            if placement is None:
                placement = node.placements[mode] = Placement(mode, (node.device,))
            return placement
        index = self.indexes[mode]
        if mode.gpus == 1:
            if index.simple:
                available = node.open[index.kind]
                if not available:
                    return None
                gpu = node.gpus[(available & -available).bit_length() - 1]
            else:
                found = self.best_gpu(mode, node)
                if found is None:
                    return None
                gpu = found
            placement = gpu.placements.get(mode)
            if placement is None:
                placement = gpu.placements[mode] = Placement(mode, (gpu.device,))
            return placement
        if index.simple:
            return self._gang(mode, node, node.open[index.kind])
        fitting = [gpu for gpu in node.gpus if gpu.device.type is mode.type and gpu.takes(mode)]
        if mode.type.streams > 1:
            fitting.sort(key=lambda gpu: -gpu.free)
        return Placement(mode, tuple(gpu.device for gpu in fitting[: mode.gpus])) if len(fitting) >= mode.gpus else None

    def _gang(self, mode: Mode, node: NodeState, available: int) -> Placement | None:
        """The first so many of a node's open accelerators."""
        placement = node.gangs.get((mode, available))
        if placement is not None:
            return placement
        left, chosen = available, []
        for _ in range(mode.gpus):
            if not left:
                return None
            lowest = left & -left
            chosen.append(node.gpus[lowest.bit_length() - 1].device)
            left ^= lowest
        if len(node.gangs) >= KEPT_GANGS:
            node.gangs.clear()
        placement = node.gangs[mode, available] = Placement(mode, tuple(chosen))
        return placement

    def best_gpu(self, mode: Mode, node: NodeState) -> GpuState | None:
        """The accelerator for one launch: of those where it fits the fullest for a fraction (so that whole ones
        stay whole), the emptiest where whole launches overlap or share by time slices, else the first."""
        fitting = [gpu for gpu in node.gpus if gpu.device.type is mode.type and gpu.takes(mode)]
        if not fitting:
            return None
        if mode.type.sharing.kind == "timeslice" or (mode.whole and mode.type.streams > 1):
            return max(fitting, key=lambda gpu: gpu.free)
        if mode.whole:
            return fitting[0]
        return min(fitting, key=lambda gpu: gpu.free)

    def _across(self, mode: Mode, nodes: Iterable[NodeState], budget: Budget | None = None) -> Placement | None:
        """A gang over several nodes, filling nodes in order; host shares in proportion to its devices there.

        `budget`: what its partition will have in use by then; None: what it has now.
        """
        chosen: list[Device] = []
        new = 1 << 30
        if mode.limited:
            budget = budget or self.budget(mode)
            if not budget.enough(mode):
                return None
            new = budget.new_nodes()
        for node in nodes:
            if not node.up or (mode.nodes is not None and not mode.nodes & node.bit):
                continue
            fresh = budget is not None and node.index not in budget.on
            if fresh and not new:
                continue
            here = [gpu.device for gpu in node.gpus if gpu.device.type is mode.type and gpu.takes(mode)]
            here = here[: mode.gpus - len(chosen)]
            while here:
                cpus, memory = host_part(mode, len(here))
                if cpus <= node.cpu_free and memory <= node.mem_free:
                    break
                here.pop()
            chosen += here
            new -= bool(fresh and here)
            if len(chosen) == mode.gpus:
                return Placement(mode, tuple(chosen))
        return None

    # Give and take -------------------------------------------------------------------------------------------

    def refusal(self, placement: Placement) -> str | None:
        """Why a placement cannot be taken now, as the end of a sentence; None if it can."""
        mode, devices = placement.mode, placement.devices
        if len(set(devices)) != len(devices) or len(devices) != max(1, mode.gpus):
            return f"mode {mode.name} needs {max(1, mode.gpus)} different devices, it names {len(devices)}"
        by_node: dict[int, int] = {}
        for device in devices:
            state = self.of[device.index] if device.index < len(self.of) else None
            if state is None or state.device is not device:
                return f"{device} is not a device of this cluster"
            if device.type is not mode.type:
                return f"{device} is a {device.type.name} and mode {mode.name} runs on {mode.type.name}"
            if not mode.allows(device.node):
                return f"{device} is not in partition {mode.partition}"
            by_node[device.node] = by_node.get(device.node, 0) + 1
            if not state.up or state.asleep or not self.nodes[device.node].up:
                return f"{device} is {'asleep' if state.asleep else 'down'}"
            if mode.gpus and not state.takes(mode):
                if mode.gpu_memory > state.room:
                    return f"{device} has {state.room:,} bytes of memory free and the mode needs {mode.gpu_memory:,}"
                return f"{device} has {max(0, state.free) / WHOLE:g} free and the mode needs {mode.share / WHOLE:g}"
        if mode.limited and (refusal := self.budget(mode).refusal(mode, devices)) is not None:
            return refusal
        if len(by_node) > 1 and not mode.span_any:
            return f"mode {mode.name} does not span nodes"
        for number, count in by_node.items():
            node = self.nodes[number]
            cpus, memory = host_part(mode, count)
            if cpus > node.cpu_free:
                return f"node {node.node} has {node.cpu_free / 1000:g} cores free and the mode needs {cpus / 1000:g}"
            if memory > node.mem_free:
                return f"node {node.node} has {node.mem_free:,} bytes of memory free and the mode needs {memory:,}"
            if placement.cores is not None:
                if len(set(placement.cores)) * 1000 != mode.cpus:
                    return f"mode {mode.name} needs {mode.cpus / 1000:g} cores, it names {len(set(placement.cores))}"
                if any(not node.cores >> core & 1 for core in placement.cores):
                    return f"a core it names on {node.node} is busy"
        return None

    def quick_take(self, placement: Placement) -> int:
        """Check and occupy in one go: the fast path for a launch on one device, or on whole accelerators of one
        node, that are in their normal state.

        Returns the bitmask of cores taken (0 on an accelerator), or -1, with nothing changed, if anything is
        unusual: then `refusal` and `take` decide.  Only for modes without memory of items and without mig.
        """
        mode = placement.mode
        if mode.gpus > 1:
            return self._quick_gang(placement)
        device = placement.devices[0]
        if len(placement.devices) > 1:
            return -1
        state = self.of[device.index]
        if state.device is not device or device.type is not mode.type or not state.normal:
            return -1
        if mode.gpus:
            node = state.node
            if state.free < mode.share or not node.up:
                return -1
            if not mode.bare:
                if mode.gpu_memory > state.room or mode.cpus > node.cpu_free or mode.memory > node.mem_free:
                    return -1
                if mode.nodes is not None and (mode.limited or not mode.nodes & node.bit):
                    return -1
                state.room -= mode.gpu_memory
                node.cpu_free -= mode.cpus
                node.mem_free -= mode.memory
            state.free = free = state.free - mode.share
            if free < WHOLE:
                kind = state.kind
                available = node.open[kind] = node.open[kind] & ~state.bit
                if not available:
                    self.with_open[kind] &= ~node.bit
            if self.noting:
                self.log.append(node.index)
            return 0
        if mode.cpus > state.cpu_free or mode.memory > state.mem_free or placement.cores is not None:
            return -1
        if mode.nodes is not None and (mode.limited or not mode.nodes & state.bit):
            return -1
        state.cpu_free -= mode.cpus
        state.mem_free -= mode.memory
        self.log.append(state.index)
        if mode.cpus == 1000:
            core = state.cores & -state.cores
            state.cores ^= core
            return core
        return self._take_cores(state, placement)

    def _quick_gang(self, placement: Placement) -> int:
        """`quick_take` for several whole accelerators of one node."""
        mode, devices, of = placement.mode, placement.devices, self.of
        node = self.nodes[devices[0].node]
        if mode.gpu_memory or mode.cpus > node.cpu_free or mode.memory > node.mem_free or not node.up:
            return -1
        if mode.nodes is not None and (mode.limited or not mode.nodes & node.bit):
            return -1
        bits = 0
        states = []
        for device in devices:
            state = of[device.index]
            if (
                state.device is not device
                or not state.normal
                or state.free != WHOLE  # of one stream: nothing else runs there
                or state.node is not node
                or device.type is not mode.type
            ):
                return -1
            bits |= state.bit
            states.append(state)
        if len(states) != mode.gpus or bits.bit_count() != mode.gpus:
            return -1
        for state in states:
            state.free = 0
        node.cpu_free -= mode.cpus
        node.mem_free -= mode.memory
        kind = states[0].kind
        available = node.open[kind] = node.open[kind] & ~bits
        if not available:
            self.with_open[kind] &= ~node.bit
        if self.noting:
            self.log.append(node.index)
        return 0

    def quick_give(self, placement: Placement, cores: int) -> None:
        """Release what `quick_take` occupied."""
        mode = placement.mode
        if mode.gpus > 1:
            self.give(placement, None, cores)
            return
        self.releases += 1
        state = self.of[placement.devices[0].index]
        if not mode.gpus:
            if mode.limited:
                self.budget(mode).give(mode, placement.devices)
            state.cores |= cores
            state.cpu_free += mode.cpus
            state.mem_free += mode.memory
            self.log.append(state.index)
            return
        node = state.node
        if not mode.bare:
            if mode.limited:
                self.budget(mode).give(mode, placement.devices)
            state.room += mode.gpu_memory
            node.cpu_free += mode.cpus
            node.mem_free += mode.memory
        state.free = free = state.free + mode.share
        if free >= WHOLE and state.up and not state.asleep:
            kind = state.kind
            if not node.open[kind] and node.up:
                self.with_open[kind] |= node.bit
            node.open[kind] |= state.bit
        if self.noting:
            self.log.append(node.index)

    def _note(self, node: NodeState) -> None:
        """The node changed by other than the quick ways: bring masks and log along."""
        for kind, available in enumerate(node.open):
            if available and node.up:
                self.with_open[kind] |= node.bit
            else:
                self.with_open[kind] &= ~node.bit
        if self.noting:
            self.log.append(node.index)

    def take(self, placement: Placement, launch: Any) -> int:
        """Occupy; the caller has validated.  Returns the bitmask of cores taken by a CPU launch, else 0."""
        mode, devices = placement.mode, placement.devices
        if mode.limited:
            self.budget(mode).take(mode, devices)
        if mode.gpus == 0:
            node = self.of[devices[0].index]
            node.cpu_free -= mode.cpus
            node.mem_free -= mode.memory
            self._note(node)
            return self._take_cores(node, placement)
        mig = mode.type.sharing.kind == "mig"
        for device in devices:
            gpu = self.of[device.index]
            if mig:
                self._take_slice(gpu, mode.share, launch)
            gpu.free -= mode.share
            gpu.room -= mode.gpu_memory
            if gpu.free < WHOLE:
                gpu.node.open[gpu.kind] &= ~gpu.bit
        for node, cpus, memory in self._host_parts(mode, devices):
            node.cpu_free -= cpus
            node.mem_free -= memory
            self._note(node)
        return 0

    def give(self, placement: Placement, launch: Any, cores: int = 0) -> None:
        """Release what `take` occupied."""
        mode, devices = placement.mode, placement.devices
        if mode.gpus == 0:
            self.quick_give(placement, cores)
            return
        self.releases += 1
        if mode.limited:
            self.budget(mode).give(mode, devices)
        for device in devices:
            gpu = self.of[device.index]
            if gpu.slices:
                gpu.slices.pop(launch, None)
            gpu.free = free = gpu.free + mode.share
            gpu.room += mode.gpu_memory
            if free >= WHOLE and gpu.up and not gpu.asleep:
                gpu.node.open[gpu.kind] |= gpu.bit
        for node, cpus, memory in self._host_parts(mode, devices):
            node.cpu_free += cpus
            node.mem_free += memory
            self._note(node)

    def _host_parts(self, mode: Mode, devices: tuple[Device, ...]) -> list[tuple[NodeState, int, int]]:
        """What a launch holds on the host, by node: (node, cores, memory)."""
        if not mode.span_any:
            return [(self.nodes[devices[0].node], mode.cpus, mode.memory)]
        counts: dict[int, int] = {}
        for device in devices:
            counts[device.node] = counts.get(device.node, 0) + 1
        return [(self.nodes[number], *host_part(mode, count)) for number, count in counts.items()]

    @staticmethod
    def _take_cores(node: NodeState, placement: Placement) -> int:
        """Whole cores get a name of their own (for pictures and plans); parts of cores do not."""
        taken = 0
        if placement.cores is not None:
            for core in placement.cores:
                taken |= 1 << core
        else:
            free = node.cores
            for _ in range(placement.mode.cpus // 1000):
                lowest = free & -free
                taken |= lowest
                free ^= lowest
        node.cores &= ~taken
        return taken

    @staticmethod
    def _take_slice(gpu: GpuState, share: int, launch: Any) -> None:
        chosen = gpu.slice_for(share)
        assert chosen is not None
        layout, size = chosen
        gpu.relaid = layout != gpu.layout
        gpu.layout = layout
        gpu.slices[launch] = size

    def changed(self, state: GpuState | NodeState) -> None:
        """Up, asleep or room of a device changed by other means."""
        self.releases += 1
        self.undisturbed = self.undisturbed and state.up and not state.asleep
        if isinstance(state, NodeState):
            self._note(state)
            return
        if state.open:
            state.node.open[state.kind] |= state.bit
        else:
            state.node.open[state.kind] &= ~state.bit
        self._note(state.node)

    # What if? -------------------------------------------------------------------------------------------------

    def countable(self, mode: Mode) -> bool:
        """Is it enough to count what a launch in this mode takes: cores, or whole accelerators of one node?"""
        return mode.gpus == 0 or (not mode.span_any and (self.indexes.get(mode) or self.index_of(mode)).simple)

    def sketch(self, node: NodeState) -> NodeState:
        """A copy of a node on which releases can be tried out with `release`."""
        copy = _copy(node)
        copy.open = list(node.open)
        copy.gpus = [_copy(gpu) for gpu in node.gpus]
        for gpu in copy.gpus:
            gpu.node = copy
            gpu.slices = dict(gpu.slices)
        return copy

    def release(self, sketch: NodeState, placement: Placement, launch: Any) -> None:
        """Give back on a sketch what a launch holds on that node."""
        mode = placement.mode
        here = [device for device in placement.devices if device.node == sketch.index]
        cpus, memory = host_part(mode, len(here))
        sketch.cpu_free += cpus
        sketch.mem_free += memory
        if mode.gpus:
            for device in here:
                gpu = sketch.gpus[device.local]
                gpu.free += mode.share
                gpu.room += mode.gpu_memory
                gpu.slices.pop(launch, None)

    def on_sketch(self, sketch: NodeState, mode: Mode) -> Placement | None:
        """Where the mode would sit on a sketch; None if it does not fit there."""
        if not self.fits_on(sketch, mode):
            return None
        if mode.gpus == 0:
            return Placement(mode, (sketch.device,))
        chosen = [gpu.device for gpu in sketch.gpus if gpu.device.type is mode.type and gpu.takes(mode)]
        return Placement(mode, tuple(chosen[: mode.gpus]))

    def nodes_in(self, mask: int) -> Iterator[int]:
        """Indexes of the set bits, ascending."""
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest


class Tally:
    """What would be free on a node, where counting is enough (see `Capacity.countable`): a cheap sketch."""

    __slots__ = ("node", "open", "cpu_free", "mem_free")

    def __init__(self, node: NodeState):
        self.node = node
        self.open = list(node.open)
        self.cpu_free = node.cpu_free
        self.mem_free = node.mem_free

    def release(self, placement: Placement) -> None:
        """Give back what a launch holds, all of it on this node."""
        mode = placement.mode
        self.cpu_free += mode.cpus
        self.mem_free += mode.memory
        if mode.gpus:
            gpus = self.node.gpus
            for device in placement.devices:
                gpu = gpus[device.local]
                if gpu.up and not gpu.asleep:
                    self.open[gpu.kind] |= gpu.bit

    def occupy(self, placement: Placement) -> None:
        """Take what a launch would hold, all of it on this node."""
        mode = placement.mode
        self.cpu_free -= mode.cpus
        self.mem_free -= mode.memory
        if mode.gpus:
            for device in placement.devices:
                gpu = self.node.gpus[device.local]
                self.open[gpu.kind] &= ~gpu.bit

    def fits(self, mode: Mode, kind: int) -> bool:
        """Would a mode (on accelerators of type number `kind`) fit?"""
        node = self.node
        if mode.cpus > self.cpu_free or mode.memory > self.mem_free or not node.up:
            return False
        if mode.nodes is not None and not mode.nodes & node.bit:
            return False
        if mode.gpus:
            return self.open[kind].bit_count() >= mode.gpus
        return node.device.type is mode.type and not node.asleep

    def place(self, mode: Mode, kind: int) -> Placement:
        """Where a mode that fits would sit."""
        node, left, chosen = self.node, self.open[kind], []
        if not mode.gpus:
            return Placement(mode, (node.device,))
        for _ in range(mode.gpus):
            lowest = left & -left
            chosen.append(node.gpus[lowest.bit_length() - 1].device)
            left ^= lowest
        return Placement(mode, tuple(chosen))


def host_part(mode: Mode, count: int) -> tuple[int, int]:
    """Cores (thousandths) and memory held on a node where `count` of the launch's devices are."""
    if count >= mode.gpus:  # all of them, or a CPU mode
        return mode.cpus, mode.memory
    return math.ceil(mode.cpus * count / mode.gpus), math.ceil(mode.memory * count / mode.gpus)


def _copy(state: Any) -> Any:
    new = object.__new__(type(state))
    for name in type(state).__slots__:
        setattr(new, name, getattr(state, name))
    return new
