"""Placements as small integers, for the columns of a run."""

from __future__ import annotations

from hetsim.model.cluster import Cluster, Device
from hetsim.model.plan import Placement

KNOWN_GANGS = 20_000
"""Maximum number of gangs' placements for which the code is remembered by identity."""


class PlacementCodes:
    """Small integers for placements: first every device, then every core, then gangs as they appear."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.core_base: list[int] = []
        base = len(cluster.devices)
        for node in cluster.nodes:
            self.core_base.append(base)
            base += node.cpus
        self._base = base
        self._more: dict[tuple[tuple[int, ...], int], int] = {}
        self._known: dict[int, tuple[Placement, int]] = {}
        """The same by identity of the placement, which is kept so that nothing else can have it."""

    def code(self, placement: Placement, cores: int) -> int:
        """The number of a placement on these cores (a bitmask; 0: none are named)."""
        devices = placement.devices
        if len(devices) == 1:
            if not cores:
                return devices[0].index
            if not cores & (cores - 1):
                return self.core_base[devices[0].node] + cores.bit_length() - 1
        if cores:
            return self._gang(devices, cores)
        known = self._known.get(id(placement))
        if known is None:
            if len(self._known) >= KNOWN_GANGS:
                self._known.clear()
            known = self._known[id(placement)] = placement, self._gang(devices, 0)
        return known[1]

    def _gang(self, devices: tuple[Device, ...], cores: int) -> int:
        key = (tuple(device.index for device in devices), cores)
        return self._more.setdefault(key, self._base + len(self._more))

    def table(self) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
        rows: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [((d.index,), None) for d in self.cluster.devices]
        for node in self.cluster.nodes:
            rows += [((node.cpu.index,), (core,)) for core in range(node.cpus)]
        for devices, cores in self._more:
            rows.append((devices, tuple(c for c in range(cores.bit_length()) if cores >> c & 1) if cores else None))
        return rows
