"""States of devices from a device log: up, asleep, waking or down.

A device sleeps on through a failure and its repair; an accelerator is down while its node is.
"""

from hetsim.model.cluster import Cluster

UP, ASLEEP, WAKING, DOWN = "up", "asleep", "waking", "down"

_POWER = {"sleep": ASLEEP, "wake": WAKING, "awake": UP}
"""Entries by which a device goes to sleep and wakes, and what it is from then on unless it is down."""


class DeviceStates:
    """The state of every device by entry of the log; all are up at first."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._power = [UP] * len(cluster.devices)
        self._failed = [False] * len(cluster.devices)
        self.of = list(self._power)

    def change(self, index: int, what: str) -> list[int]:
        """Apply an entry; return the devices whose state changes."""
        device = self._cluster.devices[index]
        touched = [index]
        if what in _POWER:
            self._power[index] = _POWER[what]
        elif what in ("down", "up"):
            self._failed[index] = what == "down"
            if device.type.kind == "cpu":  # its cores stand for the node
                touched += [one.index for one in self._cluster.nodes[device.node].accelerators]
        else:
            return []
        changed = []
        for one in touched:
            state = self._state(one)
            if state != self.of[one]:
                self.of[one] = state
                changed.append(one)
        return changed

    def _state(self, index: int) -> str:
        host = self._cluster.nodes[self._cluster.devices[index].node].cpu.index
        return DOWN if self._failed[index] or self._failed[host] else self._power[index]
