"""What if?  Copies of nodes on which releases and starts are tried out."""

from __future__ import annotations

from typing import Any

from sim.engine.resources.occupancy import NodeState
from sim.model.plan import Placement
from sim.model.tasks import Mode


def what_if_copy(node: NodeState) -> NodeState:
    """A copy of a node on which releases can be tried out with `release`."""
    copy = _copy(node)
    copy.open = list(node.open)
    copy.gpus = [_copy(gpu) for gpu in node.gpus]
    for gpu in copy.gpus:
        gpu.node = copy
        gpu.slices = dict(gpu.slices)
    return copy


def release(sketch: NodeState, placement: Placement, launch: Any) -> None:
    """Give back on a sketch what a launch holds on that node."""
    mode = placement.mode
    for node, cpus, memory in placement.hosts():
        if node == sketch.index:
            sketch.cpu_free += cpus
            sketch.mem_free += memory
    for device in placement.devices if mode.gpus else ():
        if device.node == sketch.index:
            gpu = sketch.gpus[device.local]
            gpu.free += mode.share
            gpu.room += mode.gpu_memory
            gpu.slices.pop(launch, None)


def occupy(sketch: NodeState, placement: Placement) -> None:
    """Take on a sketch what a launch would hold on that node."""
    mode = placement.mode
    for node, cpus, memory in placement.hosts():
        if node == sketch.index:
            sketch.cpu_free -= cpus
            sketch.mem_free -= memory
    for device in placement.devices if mode.gpus else ():
        if device.node == sketch.index:
            gpu = sketch.gpus[device.local]
            gpu.free -= mode.share
            gpu.room -= mode.gpu_memory


def on_sketch(sketch: NodeState, mode: Mode) -> Placement | None:
    """Where the mode would sit on a sketch; None if it does not fit there."""
    if not sketch.fits(mode):
        return None
    if mode.gpus == 0:
        return Placement(mode, (sketch.device,))
    chosen = [gpu.device for gpu in sketch.gpus if gpu.device.type is mode.type and gpu.takes(mode)]
    return Placement(mode, tuple(chosen[: mode.gpus]))


class Tally:
    """What would be free on a node, where counting is enough (see `PlacementIndex.countable`): a cheap sketch."""

    __slots__ = ("node", "open", "cpu_free", "mem_free")

    def __init__(self, node: NodeState):
        self.node = node
        self.open = list(node.open)
        self.cpu_free = node.cpu_free
        self.mem_free = node.mem_free

    def release(self, placement: Placement) -> None:
        """Give back what a launch holds, all of it on this node."""
        mode = placement.mode
        self.cpu_free += mode.millicores
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
        self.cpu_free -= mode.millicores
        self.mem_free -= mode.memory
        if mode.gpus:
            for device in placement.devices:
                gpu = self.node.gpus[device.local]
                self.open[gpu.kind] &= ~gpu.bit

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
        node, left, chosen = self.node, self.open[kind], []
        if not mode.gpus:
            return Placement(mode, (node.device,))
        for _ in range(mode.gpus):
            lowest = left & -left
            chosen.append(node.gpus[lowest.bit_length() - 1].device)
            left ^= lowest
        return Placement(mode, tuple(chosen))


def _copy(state: Any) -> Any:
    new = object.__new__(type(state))
    for name in type(state).__slots__:
        setattr(new, name, getattr(state, name))
    return new
