"""Locations of copies of data items; what a start must copy, reserve and evict.

A location is a device index (accelerator memory) or `host(node)`.  Host memory for copies is unlimited.  Accelerator
memory is limited: when a launch needs space, the least recently used copies are evicted.  If an evicted copy is the
only one, it is written back to its host before the first stage of the new launch.  An item that was written during the
run is dropped everywhere after its last reader.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.flight.links import Links, Way
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.task import Task
from hetsim.model.tasks import Item, Tasks
from hetsim.policy.decisions import as_number


def host(node: int) -> int:
    """Return the location number of a node's host memory."""
    return -1 - node


@dataclass(slots=True, eq=False)
class Eviction:
    """The write-back of an item's only copy to the host; meanwhile it uses GPU memory."""

    gpu: GpuState
    item: int
    size: int
    version: int
    waiters: list[Any] = field(default_factory=list)  # launches and prefetches that need the memory


@dataclass(slots=True, eq=False)
class GpuItems:
    """Items on one accelerator.

    `resident`: items in order of use (least recent first); `pins`: number of launches in flight that use an item;
    `leaving`: evicted items that are being written back.
    """

    resident: dict[int, None] = field(default_factory=dict)
    pins: dict[int, int] = field(default_factory=dict)
    unpinned: int = 0  # bytes of resident items that may be evicted
    leaving: dict[Eviction, None] = field(default_factory=dict)


class Places:
    def __init__(self, cluster: Cluster, capacity: Capacity, links: Links, tasks: Tasks):
        self.cluster = cluster
        self.capacity = capacity
        self.links = links
        self.tasks = tasks
        self.items: Sequence[Item] = tasks.items
        self.readers = [0] * len(tasks.items)  # tasks that read an item and have not ended
        self.writers = [0] * len(tasks.items)
        # incremented by each write of an item, so that outdated copies in transit are recognized
        self.version = [0] * len(tasks.items)
        for row in tasks.writes or ():
            for index in row:
                self.writers[index] += 1
        for row in tasks.reads or ():
            for index in row:
                self.readers[index] += 1
        self.made = [number > 0 for number in self.writers]
        hosts = [host(node.index) for node in cluster.nodes]
        self.where: list[dict[int, None]] = [
            dict.fromkeys(() if made else hosts) if item.home is None else {host(item.home): None}
            for item, made in zip(tasks.items, self.made, strict=True)
        ]
        self._on: dict[int, GpuItems] = defaultdict(GpuItems)

    def on(self, device: Device) -> GpuItems:
        return self._on[device.index]

    # Questions ----------------------------------------------------------------------------------------------

    def present(self, item: int, device: Device) -> bool:
        """Return True if a device has a valid copy of the item (a CPU: its host memory)."""
        location = host(device.node) if device.type.kind == "cpu" else device.index
        return location in self.where[item]

    def missing(self, items: Iterable[int], device: Device) -> list[int]:
        return [item for item in items if not self.present(item, device)]

    def claim(self, items: Iterable[int], device: Device) -> int:
        """Return the bytes that an accelerator would pin for `items`, beyond those pinned."""
        pins = self.on(device).pins
        return sum(self.items[item].size for item in items if item not in pins)

    def source(self, item: int, device: Device) -> int | None:
        """Return the location from which to copy an item; None if no copy exists.

        Order of preference: this node's host, an accelerator of this node, another node's host, another node's
        accelerator.
        """
        # Among equals the first: `where` is in the order of arrival.
        ranks = {at: 2 * (self.node_of(at) != device.node) + (at >= 0) for at in self.where[item]}
        return min(ranks, key=ranks.__getitem__, default=None)

    def node_of(self, location: int) -> int:
        return -1 - location if location < 0 else self.cluster.devices[location].node

    def hops(self, source: int, device: Device) -> list[tuple[Way, int]]:
        """Return the route from a location to a device: hops (link path, next location)."""
        hops: list[tuple[Way, int]] = []
        node = self.node_of(source)
        if source >= 0:
            hops.append((self.links.down(self.cluster.devices[source]), host(node)))
        if node != device.node:
            hops.append((self.links.between(node, device.node), host(device.node)))
        if device.type.kind != "cpu":
            hops.append((self.links.up(device), device.index))
        return hops

    # Changes ------------------------------------------------------------------------------------------------

    def pin(self, items: Iterable[int], gpu: GpuState) -> None:
        """Reserve memory on an accelerator for items that a launch reads or writes."""
        here = self.on(gpu.device)
        for item in items:
            size = self.items[item].size
            if item in here.pins:
                here.pins[item] += 1
            else:
                here.pins[item] = 1
                gpu.room -= size  # the memory is reserved even before the bytes arrive
                if item in here.resident:
                    here.unpinned -= size
            here.resident.pop(item, None)
            here.resident[item] = None  # most recently used

    def unpin(self, items: Iterable[int], gpu: GpuState) -> None:
        """Unpin an ended launch's data items on a GPU, so that they can be evicted."""
        here = self.on(gpu.device)
        for item in items:
            here.pins[item] -= 1
            if here.pins[item]:
                continue
            del here.pins[item]
            size = self.items[item].size
            gpu.room += size
            if gpu.device.index in self.where[item]:
                here.unpinned += size  # evictable from now on
            else:
                here.resident.pop(item, None)  # its copy never arrived, or is outdated

    def evictable(self, here: GpuItems, lacking: float, spared: Collection[int] = ()) -> list[int]:
        """Return unpinned items to evict for `lacking` bytes, oldest first, not `spared`."""
        chosen: list[int] = []
        for item in here.resident:
            if lacking <= 0:
                break
            if item not in here.pins and item not in spared:
                lacking -= self.items[item].size
                chosen.append(item)
        return chosen

    def evict(self, gpu: GpuState) -> list[int]:
        """Evict items until pinned items fit; return those to write back to the host."""
        here = self.on(gpu.device)
        back: list[int] = []
        for item in self.evictable(here, here.unpinned - gpu.room):
            del here.resident[item]
            here.unpinned -= self.items[item].size
            if len(self.where[item]) == 1:
                back.append(item)  # its only copy stays valid until the host has it
            else:
                del self.where[item][gpu.device.index]
        return back

    def written_back(self, item: int, gpu: GpuState, version: int) -> None:
        """Record that an item is at the host, unless it was written again meanwhile."""
        copies = self.where[item]
        if version != self.version[item] or gpu.device.index not in copies:
            return
        copies[host(gpu.device.node)] = None  # before the device's copy is removed, so that one copy is always valid
        if item not in self.on(gpu.device).resident:  # else a launch has claimed it again meanwhile
            del copies[gpu.device.index]

    def arrived(self, item: int, location: int, version: int) -> None:
        """Record a copy at a location, unless the item was written again meanwhile."""
        if version == self.version[item] and self.where[item]:
            self.where[item][location] = None

    def keep_only(self, item: int, *locations: int) -> None:
        """Remove all copies of an item except those at these locations."""
        for other in list(self.where[item]):
            if other not in locations:
                self._forget(item, other)
        self.where[item] = dict.fromkeys(locations)  # in this order: `source` takes the first of equals

    def final(self, item: int, by: Sequence[Task]) -> bool:
        """Return True if only the tasks `by`, which are ending, still use the item."""
        own_reads = sum(item in task.reads for task in by)
        own_writes = sum(item in task.writes for task in by)
        # The tasks of this launch still count as readers and writers.
        return self.readers[item] <= own_reads and self.writers[item] <= own_writes

    def ended(self, task: Task) -> None:
        """Record the end of a task; drop written items that no other task uses."""
        for item in task.writes:
            self.writers[item] -= 1
        for item in task.reads:
            self.readers[item] -= 1  # each reader counts once, however often it ran
            unused = not self.readers[item] and not self.writers[item]
            if unused and self.made[item] and item not in task.writes:
                self.keep_only(item)

    def lose(self, device: Device) -> list[int]:
        """Drop the copies on a failed device; return needed items that have no copy left."""
        lost = []
        here = self.on(device)
        for item, copies in enumerate(self.where):
            if device.index in copies:
                self._forget(item, device.index)
                if not copies and self.readers[item]:
                    lost.append(item)  # only if a task still reads it: others need no copy
        here.leaving.clear()  # write-backs from a failed device are lost
        return lost

    def drop(self, item: Any, device: Device) -> str | None:
        """Carry out a policy's Drop; return the reason if it is illegal, else None."""
        if (item := as_number(item, int)) is None or not 0 <= item < len(self.items):
            return "the item does not exist"
        copies = self.where[item]
        if device.index not in copies:
            return f"{device} has no copy of {self.items[item].name}"
        if item in self.on(device).pins:
            return f"{self.items[item].name} is in use on {device}"
        if len(copies) == 1:
            return f"{device} has the only copy of {self.items[item].name}"
        self._forget(item, device.index)
        return None

    def _forget(self, item: int, location: int) -> None:
        del self.where[item][location]
        here = self._on.get(location)
        # The memory of a pinned copy is released when it is unpinned.
        if here is not None and item in here.resident and item not in here.pins:
            del here.resident[item]
            here.unpinned -= self.items[item].size


def items_of(tasks: Sequence[Task]) -> tuple[int, ...]:
    return tuple({item: None for task in tasks for item in (*task.reads, *task.writes)})


def reads(tasks: Sequence[Task]) -> list[int]:
    if len(tasks) == 1:
        return list(tasks[0].reads)
    return list(dict.fromkeys(item for task in tasks for item in task.reads))
