"""The shadow of a task: when and where it could start (the reservation of backfilling)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.engine.capacity import NodeState, host_part
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task

if TYPE_CHECKING:
    from sim.engine.view import EngineView


class EarliestFit:
    """The shadow of a task: when and where it could start if running tasks ended as estimated.

    Walks through the running launches in order of expected finish, giving back what each holds on copies of
    its nodes, until a mode of the task fits.  Cost: one sort of the running launches a question.
    """

    def __init__(self, view: EngineView, task: Task, mode: Mode | None = None):
        self.view = view
        self.task = task
        self.mode = mode
        self.time = math.inf
        self.placement: Placement | None = None
        self._capacity = view._capacity
        self._sketches: dict[int, NodeState] = {}
        self._known = view._simulation.last_launch
        self._find()

    def _find(self) -> None:
        now_fitting = self.view.fit(self.task) if self.mode is None else self.view.first(self.mode)
        if now_fitting is not None:
            self.time, self.placement = self.view.now, now_fitting
            return
        modes = [self.mode] if self.mode else [self.task.shape.modes[p] for p in self.task.modes_by_speed()]
        seen: set[int] = set()
        for running in self.view.running("finish"):
            launch = running._launch
            if launch.number in seen:
                continue
            seen.add(launch.number)
            for number in dict.fromkeys(device.node for device in launch.placement.devices):
                sketch = self._sketch(number)
                self._capacity.release(sketch, launch.placement, launch)
                for mode in modes:
                    placement = self._capacity.on_sketch(sketch, mode)
                    if placement is None and mode.span_any:
                        nodes = [self._sketches.get(n.index, n) for n in self._capacity.nodes]
                        placement = self._capacity._across(mode, nodes)
                    if placement is not None:
                        self.time = max(self.view.now, self.view.expected_finish(running))
                        self.placement = placement
                        return

    def _sketch(self, number: int) -> NodeState:
        """The node as it will be at the shadow time, as far as is known."""
        if number not in self._sketches:
            sketch = self._sketches[number] = self._capacity.sketch(self._capacity.nodes[number])
            # What was started since the shadow was found may be over by then.
            for launch in reversed(self.view._simulation.running.values()):
                if launch.number <= self._known:
                    break
                here = any(device.node == number for device in launch.placement.devices)
                if here and self.view.expected_finish(launch.task) <= self.time:
                    self._capacity.release(sketch, launch.placement, launch)
        return self._sketches[number]

    def survives(self, task: Task, placement: Placement) -> bool:
        """True if `task` may start there without delaying the shadow; the answer counts on that it then does."""
        if self.placement is None or self.view.now + self.view.duration(task, placement) <= self.time:
            return True
        mine = {device.node for device in self.placement.devices}
        theirs = {device.node for device in placement.devices}
        if not mine & theirs:
            return True
        sketches = {number: self._capacity.sketch(self._sketch(number)) for number in sorted(mine | theirs)}
        for number, sketch in sketches.items():
            here = [device for device in placement.devices if device.node == number]
            if here:
                _occupy(sketch, placement.mode, here)
        mode = self.placement.mode
        if len(mine) == 1:
            again = self._capacity.on_sketch(sketches[next(iter(mine))], mode)
        else:
            everywhere = [sketches.get(node.index) or self._sketch(node.index) for node in self._capacity.nodes]
            again = self._capacity._across(mode, everywhere)
        if again is None:
            return False
        self.placement = again
        self._sketches.update(sketches)
        return True


def _occupy(sketch: NodeState, mode: Mode, devices: list[Device]) -> None:
    """Take on a sketch what a launch of the mode would hold on these devices of the node."""
    cpus, memory = host_part(mode, len(devices))
    sketch.cpu_free -= cpus
    sketch.mem_free -= memory
    for device in devices:
        if mode.gpus:
            gpu = sketch.gpus[device.local]
            gpu.free -= mode.share
            gpu.room -= mode.gpu_memory
