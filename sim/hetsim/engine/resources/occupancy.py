"""Occupancy of nodes and accelerators: cores, memory and shares in use.

Amounts are integers (thousandths of cores, millionths of a GPU, bytes), so give and take are exact.
"""

from __future__ import annotations

import math
from typing import Any

from hetsim.engine.resources.slices import GpuSlices
from hetsim.model.cluster import WHOLE, Device, DeviceType, Node
from hetsim.model.plan import Placement
from hetsim.model.tasks import Mode

UNLIMITED = 1 << 62


def available_at(state: DeviceState, now: float, free: int) -> float:
    """When a launch that leaves `free` of a device can begin there; MIG aside.

    Capacity counts as free while the launch that left it is still saving its state; a new launch waits only if it
    needs that part.  `state.saving` lists (until, amount).
    """
    time = state.ready_at
    if state.saving:
        # What has been saved by now is dropped.
        state.saving = saving = sorted(entry for entry in state.saving if entry[0] > now)
        being_saved = sum(amount for _, amount in saving)
        for until, amount in saving:
            if being_saved <= free:  # what is saved still fits next to the launch
                break
            being_saved -= amount
            time = max(time, until)
    return time


class DeviceState:
    """The changing state of an accelerator, or of the cores of a node."""

    __slots__ = (
        "device", "up", "asleep", "sleeping", "closed", "normal", "frequency", "slowdown", "ready_at", "saving",
        "placements", "failed_at",
    )  # fmt: skip

    slices: GpuSlices | None = None
    """The slices of a MIG GPU."""

    def __init__(self, device: Device):
        self.device = device
        self.up = True
        self.asleep = False
        """Takes no launches, for one of these two reasons:"""
        self.sleeping = False
        self.closed = 0
        """Maintenances that have been announced and are not over."""
        self.frequency = 1.0
        self.slowdown = 1.0 + device.type.preemption.overhead
        self.normal = self.slowdown == 1.0
        """True if it computes at its nominal rate, at once."""
        self.ready_at = 0.0
        self.failed_at = -math.inf
        self.saving: list[tuple[float, int]] = []
        self.placements: dict[Mode, Placement] = {}

    @property
    def free_amount(self) -> int:
        """Capacity still free: a share, or thousandths of cores."""
        raise NotImplementedError

    def placement(self, mode: Mode) -> Placement:
        """The placement of a mode on this device alone, made once."""
        placement = self.placements.get(mode)
        if placement is None:
            placement = self.placements[mode] = Placement(mode, (self.device,))
        return placement


class GpuState(DeviceState):
    """The changing state of one accelerator.

    `free` is the share still to be given away: `streams` launches of a whole GPU at first.  `room` is the memory
    that launches may claim: capacity less what launches hold and less pinned items; items that lie there
    unpinned can be evicted and do not count.
    """

    __slots__ = ("node", "bit", "free", "room", "slices", "lane", "kind", "least_room")

    def __init__(self, device: Device, node: NodeState, kind: int):
        super().__init__(device)
        self.node = node
        self.kind = kind
        self.bit = 1 << device.local
        self.free = device.type.streams * WHOLE
        self.room = UNLIMITED if device.type.memory is None else device.type.memory
        self.least_room = self.room
        """The least that was ever left of the room, with what lies there unpinned taken off."""
        self.slices = GpuSlices(device.type) if device.type.sharing.kind == "mig" else None
        self.lane: Any = None
        """Launches in flight there (`hetsim.engine.flight.launch.Lane`)."""

    def note_memory(self, unpinned: int = 0) -> None:
        """Note that more memory is held, or that it keeps unused items."""
        if self.room - unpinned < self.least_room:
            self.least_room = self.room - unpinned

    def takes(self, mode: Mode) -> bool:
        """Return True if there is share and memory for one more launch in this mode."""
        if not self.up or self.asleep or mode.gpu_memory > self.room:
            return False
        if self.slices is not None and self.slices.cut_for(mode) is None:
            return False
        return self.free >= mode.share

    @property
    def free_amount(self) -> int:
        return self.free

    @property
    def open(self) -> bool:
        """Return True if a whole-GPU launch could start here, memory aside."""
        return self.up and not self.asleep and self.free >= WHOLE


class NodeState(DeviceState):
    """Changing state of a node; `open[t]`: bitmask of open accelerators of a type."""

    __slots__ = ("node", "index", "bit", "cpu_free", "mem_free", "cores", "gpus", "open", "gangs")

    def __init__(self, node: Node, types: dict[DeviceType, int]):
        super().__init__(node.cpu)
        self.node = node
        self.index = node.index
        self.bit = 1 << node.index
        self.cpu_free = node.cpus * 1000
        self.mem_free = UNLIMITED if node.memory is None else node.memory
        self.cores = (1 << node.cpus) - 1
        self.gpus = [GpuState(device, self, types[device.type]) for device in node.accelerators]
        self.open = [0] * len(types)
        for gpu in self.gpus:
            self.open[gpu.kind] |= gpu.bit
        self.gangs: dict[tuple[Mode, int], Placement] = {}
        """Placements of gangs of whole GPUs by mode and what was open when they were made."""

    @property
    def free_amount(self) -> int:
        return self.cpu_free

    def taking(self, mode: Mode) -> list[GpuState]:
        """Its accelerators with room for one more launch in this mode."""
        return [gpu for gpu in self.gpus if gpu.device.type is mode.type and gpu.takes(mode)]

    def fits(self, mode: Mode) -> bool:
        """Return True if the mode fits on this node alone, partition limits aside."""
        if mode.millicores > self.cpu_free or mode.memory > self.mem_free or not self.up:
            return False
        if mode.nodes is not None and not mode.nodes & self.bit:
            return False
        if mode.node_count > 1:  # its parts fit on nodes (`Mode.unit`), it does not
            return False
        if mode.gpus == 0:
            return self.device.type is mode.type and not self.asleep
        lacking, kind = mode.gpus, mode.type
        for gpu in self.gpus:
            if gpu.device.type is kind and gpu.takes(mode):  # counted, not listed: asked of every node that changed
                lacking -= 1
                if not lacking:
                    return True
        return False
