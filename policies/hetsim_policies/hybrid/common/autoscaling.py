"""The number of awake devices of a type, with a target that falls late.

The Set decisions that reach it are made here as well.

As the autoscaler of Kubernetes does it (its documentation: Horizontal Pod Autoscaling): the number wanted is the load
over the target utilization, rounded up; more are woken at once, while fewer are wanted only as soon as nothing within
the stabilization window wanted more.  Waking devices take no work before they are awake.  Only idle devices sleep,
the last ones first, as work goes to the first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

from hetsim.model.cluster import Device, DeviceType
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import Counter, Decision, RequestQueue, Set, View

AWAKE, WAKING, ASLEEP, DOWN = "awake", "waking", "asleep", "down"
LARGEST = 64
"""Requests of a batch at most, where the mode sets no limit."""


class DevicePool:
    """The devices of one type.

    min_awake: the minimum number awake; stabilization: seconds for which a want counts.
    """

    def __init__(self, kind: DeviceType, devices: Sequence[Device], min_awake: int, stabilization: float):
        self.kind = kind
        self.devices = list(devices)
        self.min_awake = min_awake
        self.stabilization = stabilization
        self.state = {device.index: AWAKE for device in devices}
        self.wanted = len(devices)
        self._wants: deque[tuple[float, int]] = deque()
        """Times and numbers, both so that the first is the greatest within the window."""

    def want(self, now: float, number: float) -> None:
        """The number of devices that suffices for the load; a fraction of one is one."""
        wanted = max(self.min_awake, math.ceil(number - 1e-9))
        while self._wants and self._wants[-1][1] <= wanted:
            self._wants.pop()
        self._wants.append((now, wanted))
        while self._wants[0][0] < now - self.stabilization:
            self._wants.popleft()
        self.wanted = min(len(self.devices), self._wants[0][1])

    def want_all(self) -> None:
        """For this time, everything."""
        self.wanted = len(self.devices)

    @property
    def awake(self) -> int:
        return sum(state == AWAKE for state in self.state.values())

    def changed(self, device: Device, up: bool) -> None:
        """Note that a device is awake, has failed or is repaired (hook `device`).

        Sleep is this pool's own doing.
        """
        state = self.state.get(device.index)
        if state in (AWAKE, DOWN):
            self.state[device.index] = AWAKE if up else DOWN
        elif state == WAKING and up:
            self.state[device.index] = AWAKE

    def steer(self, view: View) -> Iterator[Decision]:
        """Wake devices, or send idle ones to sleep, until as many are up as are wanted."""
        state = self.state
        surplus = sum(one in (AWAKE, WAKING) for one in state.values()) - self.wanted
        if surplus < 0:
            for device in self.devices:
                if surplus < 0 and state[device.index] == ASLEEP:
                    state[device.index] = WAKING if self.kind.power.wake > 0 else AWAKE
                    surplus += 1
                    yield Set(device, "wake")
            return
        for unwanted in (WAKING, AWAKE):
            for device in reversed(self.devices):
                if surplus > 0 and state[device.index] == unwanted and view.load(device) == 0:
                    state[device.index] = ASLEEP
                    surplus -= 1
                    yield Set(device, "off")


# Demand for accelerator time: by arriving tasks, requests, and waiting tasks.
#
# A task counts its GPUs × its estimate in the fastest mode on accelerators.  A request counts its share of the largest
# batch that takes no more than half of its limit, on the type where that is least: what it costs under load.


def asked_of(task: Task) -> tuple[DeviceType, float] | None:
    """The best accelerator type for a task, and its device-seconds; None if none."""
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if not mode.on_cpu:
            return mode.type, mode.gpu_share * task.estimate_at(position)
    return None


class ServiceDemand:
    """The requests of one service: the type that serves them, and seconds of each."""

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
    """Device-seconds of a request in a batch that takes half of the time limit."""
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
    work: dict[DeviceType, float] = {}
    for one in requests:
        if one.kind is not None:
            work[one.kind] = work.get(one.kind, 0.0) + one.each * len(one.queue)
    for task in view.waiting(own=True):
        asked = asked_of(task) if view.queue_of(task) is None else None
        if asked is not None:
            work[asked[0]] = work.get(asked[0], 0.0) + asked[1] * (1 - task.done)
    return work
