"""How many devices of a type are awake: a target that falls only after a while, and the Set decisions that reach it.

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
from hetsim.policy import Decision, Set, View

AWAKE, WAKING, ASLEEP, DOWN = "awake", "waking", "asleep", "down"


class DevicePool:
    """The devices of one type.  least: never fewer awake.  stabilization: seconds for which a want counts."""

    def __init__(self, kind: DeviceType, devices: Sequence[Device], least: int, stabilization: float):
        self.kind = kind
        self.devices = list(devices)
        self.least = least
        self.stabilization = stabilization
        self.state = {device.index: AWAKE for device in devices}
        self.wanted = len(devices)
        self._wants: deque[tuple[float, int]] = deque()
        """Times and numbers, both so that the first is the greatest within the window."""

    def want(self, now: float, number: float) -> None:
        """The number of devices that suffices for the load; a fraction of one is one."""
        wanted = max(self.least, math.ceil(number - 1e-9))
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
        """What the hook `device` tells: awake, failed or repaired.  Sleep is this pool's own doing."""
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
