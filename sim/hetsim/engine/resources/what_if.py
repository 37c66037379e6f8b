"""Sketches of nodes, on which releases and starts are tried out."""

from __future__ import annotations

from typing import Any

from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.model.plan import Placement
from hetsim.model.tasks import Mode


class Sketch(NodeState):
    """A node after assumed changes; the node or sketch it comes from stays as is.

    An accelerator is copied when something changes on the sketch.  So until then it must not change on the node: a
    sketch that outlives the question for which it is made is a `lasting` one, with all of them copied at once.
    """

    __slots__ = ("_own",)

    def __init__(self, node: NodeState, lasting: bool = False):
        self.device, self.node, self.index, self.bit = node.device, node.node, node.index, node.bit
        self.up, self.asleep = node.up, node.asleep
        self.cpu_free, self.mem_free = node.cpu_free, node.mem_free
        self.gpus = list(map(_copy, node.gpus)) if lasting else list(node.gpus)  # a list of its own in either case
        self._own = -1 if lasting else 0
        """Bitmask of the accelerators that are copies, as something has changed there; the others are the node's."""

    def release(self, placement: Placement, launch: Any) -> None:
        """Give back what a launch occupies on this node."""
        self._change(placement, 1, launch)

    def occupy(self, placement: Placement) -> None:
        """Take what a launch would occupy on this node."""
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
                self._own |= gpu.bit
            gpu.free += share
            gpu.room += room
            if gpu.slices is None:
                continue
            if sign > 0:
                gpu.slices.give(launch)
            else:
                gpu.slices.take(mode, placement, 0.0)  # kept by its placement: what is tried out is no launch

    def place(self, mode: Mode) -> Placement | None:
        """The placement of the mode; None if it does not fit."""
        if not self.fits(mode):
            return None
        if mode.gpus == 0:
            return Placement(mode, (self.device,))
        return Placement(mode, tuple(gpu.device for gpu in self.taking(mode)[: mode.gpus]))


def _copy(gpu: GpuState) -> GpuState:
    """An accelerator with what `GpuState.takes` asks for."""
    kind: Any = GpuState
    copy: GpuState = kind.__new__(kind)
    copy.device, copy.bit = gpu.device, gpu.bit
    copy.up, copy.asleep, copy.free, copy.room = gpu.up, gpu.asleep, gpu.free, gpu.room
    copy.slices = gpu.slices and gpu.slices.copy()  # those of MIG GPUs
    return copy
