"""What if?  Copies of nodes on which releases and starts are tried out."""

from __future__ import annotations

from typing import Any

from hetsim.engine.kernel.fields import all_slots
from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.resources.placement_index import first_devices
from hetsim.model.plan import Placement
from hetsim.model.tasks import Mode


def what_if_copy(node: NodeState) -> NodeState:
    """A copy of a node on which releases can be tried out with `release`."""
    copy = _copy(node)
    copy.open = list(node.open)
    copy.gpus = [_copy(gpu) for gpu in node.gpus]
    for gpu in copy.gpus:
        gpu.node = copy
        gpu.slices = gpu.slices and gpu.slices.copy()
    return copy


def release(sketch: NodeState, placement: Placement, launch: Any) -> None:
    """Give back on a sketch what a launch holds on that node."""
    for gpu in _change(sketch, placement, 1):
        if gpu.slices is not None:
            gpu.slices.give(launch)


def occupy(sketch: NodeState, placement: Placement) -> None:
    """Take on a sketch what a launch would hold on that node."""
    for gpu in _change(sketch, placement, -1):
        if gpu.slices is not None:
            gpu.slices.take(placement.mode, placement, 0.0)


def _change(sketch: NodeState, placement: Placement, sign: int) -> list[GpuState]:
    """Add what a launch holds on that node, or take it off; the accelerators there that it is on."""
    mode = placement.mode
    for node, cpus, memory in placement.hosts():
        if node == sketch.index:
            sketch.cpu_free += sign * cpus
            sketch.mem_free += sign * memory
    if not mode.gpus:
        return []
    gpus = [sketch.gpus[device.local] for device in placement.devices if device.node == sketch.index]
    for gpu in gpus:
        gpu.free += sign * mode.share
        gpu.room += sign * mode.gpu_memory
    return gpus


def on_sketch(sketch: NodeState, mode: Mode) -> Placement | None:
    """Where the mode would sit on a sketch; None if it does not fit there."""
    if not sketch.fits(mode):
        return None
    if mode.gpus == 0:
        return Placement(mode, (sketch.device,))
    return Placement(mode, tuple(gpu.device for gpu in sketch.taking(mode)[: mode.gpus]))


class Tally:
    """What would be free on a node, where counting is enough (see `PlacementIndex.countable`): a cheap sketch."""

    __slots__ = ("node", "open", "cpu_free", "mem_free")

    def __init__(self, node: NodeState):
        self.node = node
        self.open = list(node.open)
        self.cpu_free = node.cpu_free
        self.mem_free = node.mem_free

    def change(self, placement: Placement, sign: int) -> None:
        """Give back (1) or take (-1) what a launch occupies, all of it on this node."""
        mode = placement.mode
        self.cpu_free += sign * mode.millicores
        self.mem_free += sign * mode.memory
        for device in placement.devices if mode.gpus else ():
            gpu = self.node.gpus[device.local]
            if sign < 0:
                self.open[gpu.kind] &= ~gpu.bit
            elif gpu.up and not gpu.asleep:
                self.open[gpu.kind] |= gpu.bit

    def fits(self, mode: Mode, kind: int) -> bool:
        """Would a mode (on accelerators of type number `kind`) fit?"""
        node = self.node
        if mode.millicores > self.cpu_free or mode.memory > self.mem_free or not node.up:
            return False
        if mode.nodes is not None and not mode.nodes & node.bit:
            return False
        if mode.gpus:
            return self.open[kind].bit_count() >= mode.gpus
        return node.device.type is mode.type and not node.asleep

    def place(self, mode: Mode, kind: int) -> Placement:
        """Where a mode that fits would sit."""
        node = self.node
        return Placement(mode, first_devices(node, self.open[kind], mode.gpus) if mode.gpus else (node.device,))


def _copy(state: Any) -> Any:
    kind: Any = type(state)
    new = kind.__new__(kind)
    for name in all_slots(kind):
        setattr(new, name, getattr(state, name))
    return new
