"""Similarity: jobs of a similar profile are placed together, or apart.

Decides where; tasks start in the order of arrival.  Two jobs are the more alike the closer the ratios of their times
on the types of device are (the cosine of their speeds by type), and jobs of one class are alike altogether.
`together` goes to the node with the running jobs most alike, where data or caches are shared; `apart` to the node with
the running jobs least alike, as jobs of one model ask for the same part of a device at the same time.
References: Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, Tiresias: A GPU Cluster Manager for Distributed Deep
Learning (NSDI 2019), which places by profiles of models; Delimitrou, Kozyrakis, Paragon: QoS-Aware Scheduling for
Heterogeneous Datacenters (ASPLOS 2013), for similar jobs apart.  The rule here is simpler than either: no training,
no measurement.
Weakness: where neither data are shared nor devices interfere, similarity means nothing and this is another first fit.
Cost: the running tasks on each node where the task fits.
"""

from __future__ import annotations

import math
from typing import Literal

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Discipline, ListScheduler, View
from hetsim_policies.orders import fcfs


class Similarity(ListScheduler):
    """First come, first served, next to those that are alike or unlike.

    prefer: together or apart.
    """

    def __init__(self, prefer: Literal["together", "apart"] = "apart", discipline: Discipline = "skip"):
        super().__init__(fcfs, self._beside, discipline)
        self.sign = -1.0 if prefer == "together" else 1.0
        self._on_node: dict[int, dict[int, Task]] = {}
        self._nodes: dict[int, tuple[int, ...]] = {}

    def ready(self, task: Task) -> None:
        self.finished(task)  # if it was stopped
        super().ready(task)

    def finished(self, task: Task) -> None:
        for node in self._nodes.pop(task.index, ()):
            del self._on_node[node][task.index]

    def gone(self, task: Task) -> None:
        self.finished(task)

    def _beside(self, task: Task, view: View) -> Placement | None:
        """Its fastest mode that fits, on the node that is best; it starts there at once."""
        for position in task.modes_by_speed():
            options = view.options(task, task.modes[position])
            if options:
                placement = min(options, key=lambda option: self._unease(task, option, view))
                return self._noted(task, placement)
        placement_anywhere = view.fit(task)
        return None if placement_anywhere is None else self._noted(task, placement_anywhere)

    def _unease(self, task: Task, placement: Placement, view: View) -> tuple[float, float]:
        """Likeness of running jobs of the node and, for fractions, again of the device."""
        device = placement.devices[0]
        others = self._on_node.get(device.node, {}).values()
        alike = sum(likeness(task, other) for other in others)
        if not placement.mode.whole and not placement.mode.on_cpu:
            alike += sum(likeness(task, other) for other in view.running("start", device))
        return self.sign * alike, view.load(device)

    def _noted(self, task: Task, placement: Placement) -> Placement:
        nodes = tuple(dict.fromkeys(device.node for device in placement.devices))
        self._nodes[task.index] = nodes
        for node in nodes:
            self._on_node.setdefault(node, {})[task.index] = task
        return placement


def likeness(one: Task, other: Task) -> float:
    """1 for one class, else the cosine of speeds by type; 0 without a common type."""
    if one.class_ and one.class_ == other.class_:
        return 1.0
    first, second = _speeds(one), _speeds(other)
    norm = math.hypot(*first.values()) * math.hypot(*second.values())
    return sum(value * second.get(name, 0.0) for name, value in first.items()) / norm if norm > 0 else 0.0


def _speeds(task: Task) -> dict[str, float]:
    """By type, the speed of its best mode against the best of all."""
    best = task.shortest_estimate
    speeds: dict[str, float] = {}
    for mode in task.modes:
        seconds = task.estimate_in(mode)
        speed = 1.0 if seconds <= best else best / seconds
        speeds[mode.type.name] = max(speed, speeds.get(mode.type.name, 0.0))
    return speeds
