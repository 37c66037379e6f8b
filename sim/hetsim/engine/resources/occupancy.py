"""Occupancy of nodes and accelerators, and what-if copies of nodes (`Sketch`).

Amounts are integers (thousandths of cores, millionths of a GPU, bytes), so occupying and releasing are exact.
"""

import math
from collections.abc import Callable
from typing import Any

from hetsim.engine.resources.slices import GpuSlices
from hetsim.model.cluster import Node
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement

UNLIMITED = 1 << 62


def room_of(kind: DeviceType) -> int:
    return UNLIMITED if kind.memory is None else kind.memory


def available_at(state: "DeviceState", now: float, free: int) -> float:
    """Return when a launch can begin on a device that may be saving earlier state.

    `free`: capacity that remains free when the launch has started.  Capacity already counts as free while the previous
    launch is saving its state; a new launch waits only if it needs that part.  `state.saving` lists (until, amount).
    Not for MIG.
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
            time = max(time, until)  # the part that is saved first is free first
    return time


class DeviceState:
    """The changing state of an accelerator, or of the cores of a node."""

    __slots__ = (
        "device", "up", "asleep", "sleeping", "closed", "normal", "frequency", "slowdown", "ready_at", "saving",
        "placements", "failed_at",
    )  # fmt: skip

    slices: GpuSlices | None = None

    def __init__(self, device: Device):
        self.device = device
        self.up = True
        self.asleep = False  # accepts no launches, for one of these two reasons:
        self.sleeping = False
        self.closed = 0  # maintenances that have been announced and are not over
        self.frequency = 1.0
        self.slowdown = 1.0 + device.type.preemption.overhead
        self.normal = self.slowdown == 1.0  # True if it computes at its nominal rate, at once
        self.ready_at = 0.0
        self.failed_at = -math.inf
        self.saving: list[tuple[float, int]] = []
        self.placements: dict[Mode, Placement] = {}

    def copy_to(self, new: "DeviceState") -> None:
        """Copy this state to an empty one of a fork; both share the cache `placements`."""
        new.device, new.up, new.asleep = self.device, self.up, self.asleep
        new.sleeping, new.closed, new.normal = self.sleeping, self.closed, self.normal
        new.frequency, new.slowdown, new.ready_at = self.frequency, self.slowdown, self.ready_at
        new.failed_at, new.saving, new.placements = self.failed_at, self.saving[:], self.placements

    def placement(self, mode: Mode) -> Placement:
        """Return the placement of a mode on this device alone, free or not (cached)."""
        if (placement := self.placements.get(mode)) is None:
            placement = self.placements[mode] = Placement(mode, (self.device,))
        return placement


class GpuState(DeviceState):
    """The changing state of one accelerator.

    `free` is the share still available: at first one whole GPU for each launch that may run at a time (`streams`).
    `room` is the memory that launches can claim: capacity minus the memory of launches and of pinned items; unpinned
    items can be evicted for it.
    """

    __slots__ = ("node", "bit", "free", "room", "slices", "lane", "kind", "min_room")

    def __init__(self, device: Device, node: "NodeState", kind: int):
        super().__init__(device)
        self.node = node
        self.kind = kind
        self.bit = 1 << device.local
        self.free = device.type.streams * WHOLE
        self.room = room_of(device.type)
        self.min_room = self.room  # minimum so far of `room` minus the unpinned items
        self.slices = GpuSlices(device.type) if device.type.sharing.kind == "mig" else None
        self.lane: Any = None  # launches in flight there (`hetsim.engine.flight.launch.Lane`)

    @staticmethod
    def fill_copies(gpus: "list[GpuState]", copies: "list[GpuState]", all_of: Callable[[list[Any]], list[Any]]) -> None:
        """Copy the fields of `gpus` to the empty `copies`; `all_of` copies a list."""
        nodes, lanes = all_of([gpu.node for gpu in gpus]), all_of([gpu.lane for gpu in gpus])
        taken = all_of([gpu.slices for gpu in gpus])
        for old, new, node, lane, slices in zip(gpus, copies, nodes, lanes, taken, strict=True):
            old.copy_to(new)
            new.kind, new.bit, new.free = old.kind, old.bit, old.free
            new.room, new.min_room = old.room, old.min_room
            new.node, new.lane, new.slices = node, lane, slices

    def note_memory(self, unpinned: int = 0) -> None:
        """Update the least free memory so far, from which the peak usage follows.

        unpinned: bytes of data items that no launch needs; they count as used here.
        """
        if self.room - unpinned < self.min_room:
            self.min_room = self.room - unpinned

    def takes(self, mode: Mode) -> bool:
        """Return True if share and memory are enough for one more launch in this mode."""
        if mode.share > self.free or mode.gpu_memory > self.room or not self.up or self.asleep:
            return False
        return self.slices is None or self.slices.cut_for(mode) is not None

    @property
    def free_amount(self) -> int:
        """Capacity still free: share of the GPU in millionths."""
        return self.free

    @property
    def open(self) -> bool:
        """True if a whole-GPU launch could start here, without regard to memory."""
        return self.up and not self.asleep and self.free >= WHOLE


class NodeState(DeviceState):
    """Changing state of a node; `open[t]`: bitmask of its free accelerators of type t."""

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
        # placements of gangs of whole GPUs, by mode and the bitmask of open GPUs
        self.gangs: dict[tuple[Mode, int], Placement] = {}

    @staticmethod
    def fill_copies(nodes: "list[NodeState]", copies: "list[NodeState]", all_of: Callable[..., list[Any]]) -> None:
        """Fill a fork's empty node states `copies` from `nodes`; `all_of` copies a list."""
        for old, new in zip(nodes, copies, strict=True):
            old.copy_to(new)
            new.node, new.index, new.bit = old.node, old.index, old.bit
            new.cpu_free, new.mem_free, new.cores = old.cpu_free, old.mem_free, old.cores
            new.gpus, new.open, new.gangs = list(all_of(old.gpus)), old.open[:], old.gangs

    @property
    def free_amount(self) -> int:
        return self.cpu_free

    def taking(self, mode: Mode) -> list[GpuState]:
        """Return the accelerators of this node with room for one more launch in this mode."""
        return [gpu for gpu in self.gpus if gpu.device.type is mode.type and gpu.takes(mode)]

    def fits(self, mode: Mode) -> bool:
        """Return True if the mode fits on this node alone; partition limits are ignored."""
        if mode.millicores > self.cpu_free or mode.memory > self.mem_free or not self.up:
            return False
        if mode.nodes is not None and not mode.nodes & self.bit:
            return False
        if mode.node_count > 1:  # only its parts fit on single nodes (`Mode.unit`)
            return False
        if mode.gpus == 0:
            return self.device.type is mode.type and not self.asleep
        lacking, kind, share = mode.gpus, mode.type, mode.share
        for gpu in self.gpus:
            # Counted, not listed, and most often full: called for every node that changed.
            if gpu.free >= share and gpu.device.type is kind and gpu.takes(mode):
                lacking -= 1
                if not lacking:
                    return True
        return False


class Sketch(NodeState):
    """A what-if copy of a node; changes of it do not change the node.

    An accelerator is copied only when it first changes in the what-if copy; until then it must not change on the node.
    For a copy that is used longer (`lasting`) all accelerators are copied at once.
    """

    __slots__ = ("_own",)

    def __init__(self, node: NodeState, lasting: bool = False):
        self.device, self.node, self.index, self.bit = node.device, node.node, node.index, node.bit
        self.up, self.asleep = node.up, node.asleep
        self.cpu_free, self.mem_free = node.cpu_free, node.mem_free
        self.gpus = list(map(_copy, node.gpus)) if lasting else list(node.gpus)  # a list of its own in either case
        self._own = -1 if lasting else 0  # bitmask of the accelerators that are copies; the others are the node's

    def release(self, placement: Placement, launch: Any) -> None:
        self._change(placement, 1, launch)

    def occupy(self, placement: Placement) -> None:
        self._change(placement, -1, None)

    def _change(self, placement: Placement, sign: int, launch: Any) -> None:
        mode, here = placement.mode, self.index
        for node, cpus, memory in placement.hosts():
            if node == here:
                self.cpu_free += sign * cpus
                self.mem_free += sign * memory
        share, room = sign * mode.share, sign * mode.gpu_memory
        for device in placement.devices if mode.gpus else ():
            if device.node != here:
                continue
            gpu = self.gpus[device.local]
            if not self._own & gpu.bit:
                gpu = self.gpus[device.local] = _copy(gpu)
                self._own |= gpu.bit  # the node's own stays as it is
            gpu.free += share
            gpu.room += room
            if gpu.slices is None:
                continue
            if sign > 0:
                gpu.slices.give(launch)  # by launch, as they were taken
            else:
                gpu.slices.take(mode, placement, 0.0)  # keyed by its placement, since a trial has no launch

    def place(self, mode: Mode) -> Placement | None:
        if not self.fits(mode):
            return None
        if mode.gpus == 0:
            return Placement(mode, (self.device,))
        return Placement(mode, tuple(gpu.device for gpu in self.taking(mode)[: mode.gpus]))


def _copy(gpu: GpuState) -> GpuState:
    """Copy an accelerator for what-if checks: only fields that `GpuState.takes` reads."""
    kind: Any = GpuState
    copy: GpuState = kind.__new__(kind)
    copy.device, copy.bit = gpu.device, gpu.bit
    copy.up, copy.asleep, copy.free, copy.room = gpu.up, gpu.asleep, gpu.free, gpu.room
    copy.slices = gpu.slices and gpu.slices.copy()  # those of MIG GPUs
    return copy
