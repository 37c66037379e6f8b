"""Demand for accelerator time: by arriving tasks, requests, and waiting tasks.

A task counts its GPUs × its estimate in the fastest mode on accelerators.  A request counts its share of the largest
batch that takes no more than half of its limit, on the type where that is least: what it costs under load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.model.cluster import DeviceType
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import Counter, RequestQueue, View

LARGEST = 64
"""Requests of a batch at most, where the mode sets no limit."""


def asked_of(task: Task) -> tuple[DeviceType, float] | None:
    """The accelerators' type that is best for a task, and the device-seconds it asks for; None if it wants none."""
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if not mode.on_cpu:
            return mode.type, mode.gpu_share * (mode.fixed + task.estimates[position])
    return None


class ServiceDemand:
    """The requests of one service: which type serves them, and the device-seconds of each."""

    def __init__(self, counter: Counter, view: View):
        self.queue = queue = counter.queue
        self.counted = 0
        self.kind: DeviceType | None = None
        self.each = 0.0
        choices = [
            (each, mode) for mode in queue.service.shape.modes
            if not mode.on_cpu and (each := _cost(queue, mode, view)) < math.inf
        ]  # fmt: skip
        if choices:
            self.each, mode = min(choices, key=lambda choice: choice[0])
            self.kind = mode.type

    def new(self) -> int:
        """How many have come since this was asked last."""
        before, self.counted = self.counted, self.queue.arrived
        return self.counted - before


def _cost(queue: RequestQueue, mode: Mode, view: View) -> float:
    """Device-seconds of a request in a batch that leaves half of the time limit for waiting."""
    devices = [device for device in view.cluster.devices if device.type is mode.type and device.local >= 0]
    if len(devices) < mode.gpus:
        return math.inf
    placement = Placement(mode, tuple(devices[: mode.gpus]))
    best = math.inf
    for size in range(1, min(mode.batch_limit, LARGEST) + 1):
        stages = queue.stages(size, placement)
        if size > 1 and stages.total > queue.service.slo / 2:
            break
        # With several launches in flight transfers overlap with computing.
        busy = stages.total if mode.type.streams == 1 else max(stages)
        best = min(best, mode.gpu_share * busy / size)
    return best


def waiting_work(view: View, requests: Sequence[ServiceDemand]) -> dict[DeviceType, float]:
    """Device-seconds that wait, by type.  Linear in the waiting tasks."""
    found: dict[DeviceType, float] = {}
    for one in requests:
        if one.kind is not None:
            found[one.kind] = found.get(one.kind, 0.0) + one.each * len(one.queue)
    for task in view.waiting(own=True):
        asked = asked_of(task) if view.queue_of(task) is None else None
        if asked is not None:
            found[asked[0]] = found.get(asked[0], 0.0) + asked[1] * (1 - task.done)
    return found
