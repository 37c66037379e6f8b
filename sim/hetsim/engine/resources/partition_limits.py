"""Partition limits: resources that the jobs of a partition use, and their maximum."""

from collections.abc import Iterable

from hetsim.model.cluster import Partition
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.mode import Mode


class Budget:
    """Usage of a limited partition: GPUs (millionths), cores (thousandths), nodes."""

    __slots__ = ("partition", "max_gpus", "max_cpus", "max_nodes", "gpus", "cpus", "on", "mask")

    def __init__(self, partition: Partition):
        self.partition = partition
        self.max_gpus = None if partition.max_gpus is None else round(partition.max_gpus * WHOLE)
        self.max_cpus = None if partition.max_cpus is None else round(partition.max_cpus * MILLI)
        self.max_nodes = partition.max_nodes
        self.gpus = self.cpus = 0
        self.on: dict[int, int] = {}  # devices in use by node
        self.mask = 0  # bitmask of the nodes in use

    def copy(self) -> "Budget":
        other = Budget(self.partition)
        # With its own dictionary, so that changes of the copy do not affect the original.
        other.gpus, other.cpus, other.on, other.mask = self.gpus, self.cpus, dict(self.on), self.mask
        return other

    def take(self, mode: Mode, devices: Iterable[Device]) -> None:
        self.gpus += mode.gpus * mode.share
        self.cpus += mode.millicores
        for device in devices:
            self.on[device.node] = self.on.get(device.node, 0) + 1
            self.mask |= 1 << device.node  # by node, however many launches are there

    def give(self, mode: Mode, devices: Iterable[Device]) -> None:
        self.gpus -= mode.gpus * mode.share
        self.cpus -= mode.millicores
        for device in devices:
            if (launches_left := self.on[device.node] - 1):
                self.on[device.node] = launches_left
            else:
                del self.on[device.node]
                self.mask &= ~(1 << device.node)

    def enough(self, mode: Mode) -> bool:
        """Return True if GPU and core limits (not node limits) allow one more launch."""
        if self.max_cpus is not None and self.cpus + mode.millicores > self.max_cpus:
            return False
        return self.max_gpus is None or self.gpus + mode.gpus * mode.share <= self.max_gpus

    def new_nodes(self) -> int:
        """Return how many further nodes the partition's jobs may use."""
        return 1 << 30 if self.max_nodes is None else max(0, self.max_nodes - len(self.on))

    def narrowed(self, mode: Mode, mask: int) -> int:
        """Return the part of a node bitmask on which partition limits allow the mode."""
        if not self.enough(mode):
            return 0
        return mask if self.new_nodes() else mask & self.mask  # no further node allowed: only the nodes in use

    def refusal(self, mode: Mode, devices: Iterable[Device]) -> str | None:
        """Return why the limits forbid a launch (end of a sentence); None if they do not."""
        if not self.enough(mode):
            limits = ((self.max_gpus, self.gpus, mode.gpus * mode.share, WHOLE, "GPUs"),
                      (self.max_cpus, self.cpus, mode.millicores, MILLI, "cores"))  # fmt: skip
            for limit, used, more, unit, what in limits:
                if limit is not None and used + more > limit:
                    usage = f"jobs of partition {self.partition} occupy {used / unit:g} of {limit / unit:g} {what}"
                    return f"{usage}, and the mode needs {more / unit:g}"
        new = {device.node: None for device in devices if device.node not in self.on}
        if len(new) > self.new_nodes():
            return f"jobs of partition {self.partition} are on {len(self.on)} of {self.max_nodes} allowed nodes"
        return None
