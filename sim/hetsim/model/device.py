"""One device of a cluster, a module of its own because it is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetsim.model.device_type import DeviceType


class Device:
    """One device: all cores of a node (`n0/cpu`), or an accelerator (`n0/g1`).

    index: position among all devices.  local: position among the accelerators of the node; -1 for the cores.
    switch, island: number of its PCIe switch and its NVLink island on the node, if any.
    """

    __slots__ = ("index", "name", "type", "node", "local", "switch", "island", "rack")

    def __init__(self, index: int, name: str, type: DeviceType, node: int, local: int, switch: int | None = None,
                 island: int | None = None, rack: str | None = None):  # fmt: skip
        self.index = index
        self.name = name
        self.type = type
        self.node = node
        self.local = local
        self.switch = switch
        self.island = island
        self.rack = rack

    def __hash__(self) -> int:
        return self.index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        mine = (self.index, self.name, self.node, self.local, self.switch, self.island, self.rack)
        its = (other.index, other.name, other.node, other.local, other.switch, other.island, other.rack)
        return mine == its and self.type == other.type

    def __repr__(self) -> str:
        return self.name
