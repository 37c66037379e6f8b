"""Lanes kept for planned tasks, and what may be done in their gaps.

A lane (a core, an accelerator) has its planned tasks in order.  While it is idle it is kept for the next of them, with
the host cores and memory that these need, but may be lent to a task that will have ended by the time that one is due.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from hetsim.model.cluster import MILLI, Cluster, Device, DeviceType
from hetsim.model.plan import Placement, Plan, Step, lane_names
from hetsim.model.tasks import Mode, Tasks
from hetsim.policy import View


def kept_lanes(cluster: Cluster, part: float) -> dict[str, Device]:
    """The last lanes of each type, at least this part and at least one of them.

    First fit reaches them last.
    """
    by_type: dict[DeviceType, list[str]] = {}
    lanes = lane_names(cluster)
    for name, device in lanes.items():
        by_type.setdefault(device.type, []).append(name)
    counts = {kind: max(1, math.ceil(part * len(names) - 1e-9)) for kind, names in by_type.items()}
    kept = [name for kind, names in by_type.items() for name in names[-counts[kind] :]]
    return {name: lanes[name] for name in kept}


class LaneQueue:
    """One lane and the planned tasks still to start there, by number in the plan."""

    __slots__ = ("name", "device", "steps", "cores", "memory", "busy")

    def __init__(self, name: str, device: Device):
        self.name = name
        self.device = device
        self.steps: deque[int] = deque()
        self.cores = 0
        """Host cores (thousandths) and bytes that the largest of its planned tasks holds."""
        self.memory = 0
        self.busy = False
        """Does a planned task run there?"""


class PlanInProgress:
    """A plan in progress: the next task of each lane, and when it is due."""

    def __init__(self, plan: Plan, rows: np.ndarray, tasks: Tasks, cluster: Cluster):
        self.steps = [Step(int(rows[step.task]), step.mode, step.devices) for step in plan.steps]
        self.modes: list[Mode] = [tasks.shapes[tasks.shape[step.task]].modes[step.mode] for step in self.steps]
        self.number = {step.task: number for number, step in enumerate(self.steps)}
        self.arrival = [float(tasks.arrival[step.task]) for step in self.steps]
        self.lanes: dict[str, LaneQueue] = {}
        self.on_node: dict[int, list[LaneQueue]] = {}
        self.kept: dict[Device, LaneQueue] = {}
        """Accelerators of the plan."""
        self.waiting: dict[int, None] = {}
        self.ends: dict[int, float] = {}
        """Planned tasks that run, by number, and when they will have ended."""
        names = lane_names(cluster)
        for number, step in enumerate(self.steps):
            for name in step.devices:
                self._lane(name, names[name]).steps.append(number)
        self.start = self._starts(tasks)

    def _lane(self, name: str, device: Device) -> LaneQueue:
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = LaneQueue(name, device)
            self.on_node.setdefault(device.node, []).append(lane)
            if device.local >= 0:
                self.kept[device] = lane
        return lane

    def _starts(self, tasks: Tasks) -> list[float]:
        """The start of each planned task, and its lane's host demand, by estimates."""
        free: dict[str, float] = {}
        starts = []
        for number, step in enumerate(self.steps):
            mode = self.modes[number]
            start = max([self.arrival[number], *(free.get(name, 0.0) for name in step.devices)])
            end = start + mode.computing(1, float(tasks.estimate[step.task, step.mode]))
            for name in step.devices:
                free[name] = end
                lane = self.lanes[name]
                lane.cores = max(lane.cores, MILLI if mode.on_cpu else -(-mode.millicores // len(step.devices)))
                lane.memory = max(lane.memory, -(-mode.memory // len(step.devices)))
            starts.append(start)
        return starts

    def heads(self, number: int) -> bool:
        """Return True if it is the next on all its lanes, and these are idle."""
        lanes = [self.lanes[name] for name in self.steps[number].devices]
        return all(lane.steps and lane.steps[0] == number and not lane.busy for lane in lanes)

    def next_steps(self) -> list[int]:
        """Planned tasks that wait and may start now, in plan order.

        Cost: O(lanes).
        """
        first = dict.fromkeys(lane.steps[0] for lane in self.lanes.values() if lane.steps and not lane.busy)
        return sorted(number for number in first if number in self.waiting and self.heads(number))

    def begin(self, number: int, end: float) -> None:
        for name in self.steps[number].devices:
            lane = self.lanes[name]
            lane.steps.popleft()
            lane.busy = True
        del self.waiting[number]
        self.ends[number] = end

    def end(self, number: int) -> None:
        """It has ended, or will never start."""
        self.waiting.pop(number, None)
        running = self.ends.pop(number, None) is not None
        for name in self.steps[number].devices:
            lane = self.lanes[name]
            if running:
                lane.busy = False
            elif number in lane.steps:
                lane.steps.remove(number)

    def back(self, number: int) -> None:
        """It was stopped: it goes on before what comes after it."""
        self.end(number)
        for name in self.steps[number].devices:
            self.lanes[name].steps.appendleft(number)
        self.waiting[number] = None

    def due(self, lane: LaneQueue) -> float:
        """When the next planned task of an idle lane may start: at its arrival."""
        return self.arrival[lane.steps[0]] if lane.steps else math.inf

    # Gaps -----------------------------------------------------------------------------------------------------

    def placement(self, number: int, cluster: Cluster) -> Placement:
        """Where a planned task runs, with any of the node's free cores."""
        mode, names = self.modes[number], self.steps[number].devices
        if mode.on_cpu:
            return Placement(mode, (self.lanes[names[0]].device,))
        return Placement(mode, tuple(cluster.by_name[name] for name in names))

    def forget(self, device: Device) -> list[int]:
        """Nothing more is planned on a device: the numbers of what was."""
        numbers: dict[int, None] = {}
        for lane in self.on_node.get(device.node, ()):
            if lane.device is device:
                numbers.update(dict.fromkeys(lane.steps))
        for number in numbers:
            self.end(number)
        return list(numbers)

    def claimed(self, node: int, end: float, slack: float) -> tuple[dict[Device, None], float, float]:
        """Resources of a node that are not lent until `end`.

        Accelerators on which planned tasks run, and accelerators, cores and bytes of idle lanes with a next task that
        is due by then, less `slack`.
        """
        devices: dict[Device, None] = {}
        cores = memory = 0.0
        for lane in self.on_node.get(node, ()):
            soon = not lane.busy and self.due(lane) + slack < end
            if (lane.busy or soon) and lane.device.local >= 0:
                devices[lane.device] = None
            if soon:
                cores += lane.cores / MILLI
                memory += lane.memory
        return devices, cores, memory

    def leaves(self, placement: Placement, end: float, slack: float, view: View) -> bool:
        """Return True if a task from now to `end` leaves room for tasks planned before."""
        mode = placement.mode
        by_node: dict[int, int] = {}
        for device in placement.devices:
            by_node[device.node] = by_node.get(device.node, 0) + 1
        for node, count in by_node.items():
            devices, cores, memory = self.claimed(node, end, slack)
            if mode.gpus and any(device in devices for device in placement.devices):
                return False
            part = count / max(1, mode.gpus)
            free = view.free(view.cluster.nodes[node].cpu.type.name, node)
            if mode.millicores and cores and mode.millicores * part / MILLI > free - cores + 1e-9:
                return False
            if mode.memory and memory and mode.memory * part > self._memory(node, view) - memory:
                return False
        return True

    @staticmethod
    def _memory(node: int, view: View) -> float:
        view.nodes.refresh()
        return float(view.nodes.memory[node])

    def spared(self, mode: Mode, end: float, slack: float, nodes: Iterable[int], view: View) -> Placement | None:
        """A placement on one of these nodes that does not delay the plan; None if none."""
        for node in nodes:
            if not mode.gpus:
                placement = view.first(mode, node=node)
                if placement is not None and self.leaves(placement, end, slack, view):
                    return placement
                continue
            devices, _, _ = self.claimed(node, end, slack)
            chosen: list[Device] = []
            for device in view.cluster.nodes[node].accelerators:
                if device.type is mode.type and device not in devices and len(chosen) < mode.gpus:
                    if mode.gpus == 1 and not view.fits(mode, Placement(mode, (device,))):
                        continue
                    if view.load(device) and mode.gpus > 1:
                        continue
                    chosen.append(device)
            placement = Placement(mode, tuple(chosen))
            if len(chosen) == mode.gpus and view.fits(mode, placement) and self.leaves(placement, end, slack, view):
                return placement
        return None
