"""Capacity: what a launch may occupy, and the changes when it starts or ends.

The `quick_` functions serve compute-only launches on devices in their normal state; other launches use `refusal`,
`take` and `give`.
"""

from collections.abc import Sequence
from typing import Any

from hetsim.engine.kernel.clock import Clock
from hetsim.engine.resources.occupancy import DeviceState, GpuState, NodeState, room_of
from hetsim.engine.resources.placement_index import PlacementIndex
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, split_cores


class Capacity(PlacementIndex):
    """Free capacity of each device, and checks of placements against this capacity."""

    def __init__(self, cluster: Cluster, clock: Clock | None = None):
        super().__init__(cluster)
        self.clock = clock  # time for slices of MIG GPUs; without a clock it is always 0
        # accelerators whose occupancy changed, for a reader that indexes them (`Offers`); None: no reader
        self.moved: list[GpuState] | None = None
        self.releases = 0
        self.undisturbed = True  # True if every device has been in service since the start

    def refusal(self, placement: Placement) -> str | None:
        """Return why a placement is impossible now (end of a sentence); None if it fits."""
        mode, devices = placement.mode, placement.devices
        wanted = mode.gpus or (len(devices) if mode.unit is not None and mode.node_count == 1 else mode.node_count)
        if len(set(devices)) != len(devices) or len(devices) != max(1, wanted):
            return f"mode {mode.name} needs {max(1, wanted)} different devices; got {len(devices)}"
        by_node: dict[int, int] = {}
        for device in devices:
            if (refusal := self._device_refusal(device, mode)) is not None:
                return refusal
            by_node[device.node] = by_node.get(device.node, 0) + 1
        if mode.limited and (refusal := self.budget(mode).refusal(mode, devices)) is not None:
            return refusal
        if len(by_node) > 1 and not mode.span_any:
            return f"mode {mode.name} does not span nodes"
        if mode.node_count > 1 and list(by_node.values()) != [max(1, mode.gpus // mode.node_count)] * mode.node_count:
            return f"mode {mode.name} needs equal parts of {mode.node_count} nodes; got {len(by_node)} nodes"
        if placement.parts is not None and sum(placement.parts) != mode.millicores:
            cores = sum(placement.parts) / 1000
            return f"mode {mode.name} needs {mode.cpus:g} cores; its nodes have {cores:g}"
        return self._host_refusal(placement)

    def _device_refusal(self, device: Device, mode: Mode) -> str | None:
        state = self.of[device.index] if device.index < len(self.of) else None
        if state is None or state.device is not device:
            return f"{device} is not a device of this cluster"
        if device.type is not mode.type:
            return f"{device} is of type {device.type.name} and mode {mode.name} runs on {mode.type.name}"
        if not mode.allows(device.node):
            return f"{device} is not in partition {mode.partition}"
        if not state.up or state.asleep or not self.nodes[device.node].up:
            return f"{device} is {'asleep' if state.asleep else 'down'}"
        if mode.gpus and not state.takes(mode):
            if mode.gpu_memory > state.room:
                return f"{device} has {state.room:,} bytes of memory free and the mode needs {mode.gpu_memory:,}"
            if state.slices is not None:
                return f"{device} has no idle slice for mode {mode.name}, and none can be cut now"
            return f"{device} has {max(0, state.free) / WHOLE:g} free and the mode needs {mode.share / WHOLE:g}"
        return None

    def _host_refusal(self, placement: Placement) -> str | None:
        mode = placement.mode
        for number, cpus, memory in placement.hosts():
            node = self.nodes[number]
            if cpus > node.cpu_free:
                return f"node {node.node} has {node.cpu_free / 1000:g} cores free and the mode needs {cpus / 1000:g}"
            if memory > node.mem_free:
                return f"node {node.node} has {node.mem_free:,} bytes of memory free and the mode needs {memory:,}"
            if placement.cores is not None:
                if len(set(placement.cores)) * 1000 != mode.millicores:
                    return f"mode {mode.name} needs {mode.cpus:g} cores; got {len(set(placement.cores))}"
                if any(not node.cores >> core & 1 for core in placement.cores):
                    return f"a named core of {node.node} is busy"
        return None

    def quick_take(self, placement: Placement) -> int:
        """Check and occupy a placement: the fast path for devices in their normal state.

        It is for launches on one device, or on accelerators of one node, but not for modes with data items or MIG.
        Return the bitmask of the occupied cores (0 on an accelerator).  If a device is not in its normal state, or the
        launch does not fit, change nothing and return -1; the caller then uses `refusal` and `take`.
        """
        mode, first = placement.mode, placement.devices[0]
        either = self.of[first.index]
        device: DeviceState = either
        if not device.normal:
            return -1
        if not mode.bare or device.placements.get(mode) is not placement:
            if device.device is not first or first.type is not mode.type:
                return -1
            return self._quick_shares(placement) if mode.gpus else self._quick_cores(placement, either)
        state: GpuState = either
        node = state.node
        free = state.free - WHOLE
        if free < 0 or not node.up:
            return -1
        state.free = free
        if free < WHOLE:
            kind, opened = state.kind, node.open
            opened[kind] = available = opened[kind] & ~state.bit
            if not available:
                self.with_open[kind] &= ~node.bit
        if self.moved is not None:
            self.moved.append(state)
        if self.noting:
            self.log.append(node.index)
        return 0

    def _quick_shares(self, placement: Placement) -> int:
        """Occupy accelerators of one node and return 0; if impossible, only return -1."""
        mode, devices = placement.mode, placement.devices
        node = self.nodes[devices[0].node]
        if mode.millicores > node.cpu_free or mode.memory > node.mem_free or mode.node_count > 1 or not node.up:
            return -1
        # Partition limits are checked by `refusal`.
        if mode.nodes is not None and (mode.limited or not mode.nodes & node.bit):
            return -1
        share, memory, bits = mode.share, mode.gpu_memory, 0
        for device in devices:
            state = self.of[device.index]
            if (
                not isinstance(state, GpuState) or state.device is not device or device.type is not mode.type
                or state.node is not node or not state.normal or share > state.free or memory > state.room
            ):  # fmt: skip
                return -1
            bits |= state.bit
        if len(devices) != mode.gpus or bits.bit_count() != mode.gpus:  # fewer bits than devices: one is named twice
            return -1
        self._hold_on(mode, node, devices, cpus=mode.millicores, memory=mode.memory, sign=1)
        return 0

    def _quick_cores(self, placement: Placement, state: NodeState) -> int:
        mode = placement.mode
        if mode.millicores > state.cpu_free or mode.memory > state.mem_free or placement.cores is not None:
            return -1
        if len(placement.devices) > 1 or mode.node_count > 1:
            return -1
        if mode.nodes is not None and (mode.limited or not mode.nodes & state.bit):
            return -1
        state.cpu_free -= mode.millicores
        state.mem_free -= mode.memory
        self.log.append(state.index)
        if mode.millicores == 1000:
            core = state.cores & -state.cores  # the lowest one that is free
            state.cores ^= core
            return core
        return self._take_cores(state, placement, mode.millicores)

    def quick_give(self, placement: Placement, cores: int) -> None:
        """Release what `quick_take` occupied on one device."""
        mode = placement.mode
        if mode.gpus and not mode.bare:
            self.give(placement, None)
            return
        self.releases += 1  # what did not fit may fit now
        if not mode.gpus:
            if mode.limited:
                self.budget(mode).give(mode, placement.devices)
            host: NodeState = self.of[placement.devices[0].index]
            host.cores |= cores
            host.cpu_free += mode.millicores
            host.mem_free += mode.memory
            self.log.append(host.index)
            return
        state: GpuState = self.of[placement.devices[0].index]
        node = state.node
        state.free = free = state.free + WHOLE
        if self.moved is not None:
            self.moved.append(state)
        if free >= WHOLE and state.up and not state.asleep:  # else it opens when it is back (`changed`)
            kind, opened = state.kind, node.open
            if not (available := opened[kind]) and node.up:
                self.with_open[kind] |= node.bit
            opened[kind] = available | state.bit
        if self.noting:
            self.log.append(node.index)

    def peak_memory(self) -> int:
        """Return the maximum bytes that were in use at one time on any accelerator."""
        gpus = [state for state in self.of if isinstance(state, GpuState)]
        return max((room_of(gpu.device.type) - gpu.min_room for gpu in gpus), default=0)

    def take(self, placement: Placement, launch: Any) -> int:
        """Occupy a validated placement; return the bitmask of cores, 0 for accelerators.

        On several nodes, the core bits of each node follow those of the previous node
        (`hetsim.model.plan.split_cores`).
        """
        mode, devices = placement.mode, placement.devices
        if mode.limited:
            self.budget(mode).take(mode, devices)
        if mode.type.sharing.kind == "mig" and mode.gpus:
            for device in devices:
                self.of[device.index].slices.take(mode, launch, 0.0 if self.clock is None else self.clock._now)
        self._hold(placement, 1)
        taken = shift = 0
        for number, cpus, _ in placement.hosts() if not mode.gpus else ():
            node = self.nodes[number]
            taken |= self._take_cores(node, placement, cpus) << shift
            shift += node.node.cpus  # the order in which `split_cores` reads them
        return taken

    def _hold(self, placement: Placement, sign: int) -> None:
        """Occupy (`sign` 1) or release (-1) a launch's share of accelerators and hosts."""
        on: dict[int, list[Device]] = {}
        for device in placement.devices:
            on.setdefault(device.node, []).append(device)
        for number, cpus, memory in placement.hosts():
            self._hold_on(placement.mode, self.nodes[number], on[number], cpus=cpus, memory=memory, sign=sign)

    def _hold_on(
        self, mode: Mode, node: NodeState, devices: Sequence[Device], cpus: int, memory: int, sign: int
    ) -> None:  # fmt: skip
        node.cpu_free -= sign * cpus
        node.mem_free -= sign * memory
        if self.noting:
            self.log.append(node.index)
        if not mode.gpus:
            return
        share, room, opened, closed = sign * mode.share, sign * mode.gpu_memory, 0, 0
        for device in devices:
            gpu: GpuState = self.of[device.index]
            gpu.free = free = gpu.free - share
            if free >= WHOLE and gpu.up and not gpu.asleep:
                opened |= gpu.bit
            else:
                closed |= gpu.bit
            if self.moved is not None:
                self.moved.append(gpu)
            if room:
                gpu.room -= room
                gpu.note_memory()
        kind, before = gpu.kind, node.open[gpu.kind]
        node.open[kind] = available = before & ~closed | opened
        if not available:
            self.with_open[kind] &= ~node.bit
        elif not before and node.up:
            self.with_open[kind] |= node.bit

    def give(self, placement: Placement, launch: Any, cores: int = 0) -> None:
        mode, devices = placement.mode, placement.devices
        mig = mode.gpus and mode.type.sharing.kind == "mig"
        if not mig and (mode.bare or (not mode.gpus and len(devices) == 1)):
            self.quick_give(placement, cores)
            return
        self.releases += 1
        if mode.limited:
            self.budget(mode).give(mode, devices)
        if not mode.gpus:
            for device, mask in zip(devices, split_cores(devices, cores, self.cluster), strict=True):
                self.of[device.index].cores |= mask
        for device in devices if mig else ():
            self.of[device.index].slices.give(launch)
        if mode.span_any:
            self._hold(placement, -1)
        else:
            node = self.nodes[devices[0].node]
            self._hold_on(mode, node, devices, cpus=mode.millicores, memory=mode.memory, sign=-1)

    @staticmethod
    def _take_cores(node: NodeState, placement: Placement, millicores: int) -> int:
        taken = 0
        if placement.cores is not None:
            for core in placement.cores:
                taken |= 1 << core
        else:
            free = node.cores
            for _ in range(millicores // 1000):
                lowest = free & -free
                taken |= lowest
                free ^= lowest
        node.cores &= ~taken  # the numbers of free cores; `cpu_free` counts how many are free
        return taken

    def changed(self, state: GpuState | NodeState) -> None:
        """Update the index after a change of a device's state that no launch caused."""
        self.releases += 1
        # Never True again: counts of open devices rely on it.
        self.undisturbed = self.undisturbed and state.up and not state.asleep
        node, gpus = (state, state.gpus) if isinstance(state, NodeState) else (state.node, [state])
        if self.moved is not None:
            self.moved += gpus
        for gpu in gpus:
            others = node.open[gpu.kind] & ~gpu.bit
            node.open[gpu.kind] = others | gpu.bit if gpu.open else others
        for kind, available in enumerate(node.open):
            elsewhere = self.with_open[kind] & ~node.bit
            self.with_open[kind] = elsewhere | node.bit if available and node.up else elsewhere
        if self.noting:
            self.log.append(node.index)
