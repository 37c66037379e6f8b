"""A cluster: nodes with cores and accelerators, partitions, and the network.

These descriptions never change during a run; the engine has the changing state.  Units are those of `device_type`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hetsim.errors import KeyProblem
from hetsim.model.device import Device
from hetsim.model.device_type import FREE, NO_KEY, OPTIONAL, REQUIRED, DeviceType, Link, Price

if TYPE_CHECKING:
    from hetsim.model.units import (
        Bytes,
        BytesPerSecond,
        Count,
        Name,
        Positive,
        Seconds,
        Whole,
    )


@dataclass(frozen=True)
class Fabric:
    """Rates (bytes/s) of racks' uplinks and of stores, and the model of contention."""

    uplinks: dict[str, float] = field(default_factory=dict)
    contention: Literal["random", "aligned", "interleaved", "none"] = "random"
    stores: dict[str, float] = field(default_factory=dict)


MAX_DEVICES = 2_000_000
PLACES = ("gpu", "host", "disk")  # where nodes may have the weights of models; stores have names of their own


@dataclass(frozen=True, slots=True)
class Disk:
    """A node's disk, from which replicas load models."""

    read: BytesPerSecond = field(metadata=REQUIRED)
    """Read rate, shared by all loads from this disk."""
    size: Bytes = field(default=math.inf, metadata=OPTIONAL)
    """Bytes of models that the disk can store. Default: no limit."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """`count` equal nodes: cores, memory, accelerators, switches and network."""

    cpus: Whole = 0
    """Cores of each node."""
    memory: Bytes | None = None
    """Host memory of each node. Default: no limit."""
    accelerators: tuple[tuple[DeviceType, int], ...] = field(default=(), metadata=NO_KEY)
    count: Whole = 1
    """Number of equal nodes."""
    name: Name | None = None
    """Name of the nodes; several equal nodes get a number appended, and nodes without a name are n0, n1, ..."""
    cpu_type: DeviceType = field(default_factory=lambda: DeviceType("cpu", kind="cpu"), metadata=NO_KEY)
    # accelerators per PCIe switch, in order; None: each has its own path to the host
    switch_size: int | None = field(default=None, metadata=NO_KEY)
    island_size: Count | None = field(default=None, metadata={"alias": "island"})
    """Number of consecutive accelerators that NVLink connects directly."""
    nvlink: Link = field(default_factory=Link, metadata=OPTIONAL)
    """Link between the GPUs of a node, for parallel training: a rate, rate and latency, or a bandwidth curve. Default:
    no limit."""
    cards: Count = 1
    """Number of network cards that share the node's network rate equally, for parallel training."""
    switch: Link = field(default_factory=Link, metadata=NO_KEY)
    network: Link = field(default_factory=Link, metadata=OPTIONAL)
    """Link to all other nodes."""
    rack: Name | None = None
    """Name of the rack of these nodes. Default: no rack."""
    # number of the first node, if these are part of a larger group of nodes (those of one rack)
    first: int | None = field(default=None, metadata=NO_KEY)
    price: Price = field(default=FREE, metadata=OPTIONAL)
    """Price of a node as a whole, added in equal parts to the prices of its accelerators, or of its cores if it has
    none."""
    partitions: tuple[str, ...] = ()
    """Partitions (virtual clusters) to which the nodes belong; the rules of partitions are under `site`."""
    driver_cores: Whole = 0
    """Cores that drive each accelerator of a node and run no tasks."""
    disk: Disk | None = None
    """The disk of each node, from which replicas load models. Default: none."""
    keep: Bytes = field(default=math.inf, metadata=OPTIONAL)
    """Host memory of each node for models that replicas have loaded. Default: no limit."""

    def room(self, place: str) -> float:
        """Return the maximum bytes of models in a `place` of a node: "disk" or "host"."""
        return self.keep if place == "host" else 0.0 if self.disk is None else self.disk.size

    @property
    def drivers(self) -> int:
        """Cores of a node that drive its accelerators."""
        return self.driver_cores * sum(count for _, count in self.accelerators)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A named part of the cluster with its rules; partitions may overlap."""

    name: str = field(metadata=NO_KEY)
    mask: int = field(default=0, metadata=NO_KEY)  # bitmask of the indexes of its nodes
    default: bool = False
    """True for the partition of tasks that name no partition."""
    default_time: Seconds | None = None
    """Time limit of tasks that request none. Default: max_time."""
    max_time: Seconds = math.inf
    """Maximum time limit that a task may request."""
    tier: Whole = 0
    """Priority tier: slurm_multifactor considers tasks of partitions with a higher tier first."""
    max_gpus: Positive | None = None
    """Maximum GPUs that its running tasks occupy at one time, fractions included. Default: no limit."""
    max_cpus: Positive | None = None
    """Maximum cores that its running tasks occupy at one time. Default: no limit."""
    max_nodes: Count | None = None
    """Maximum number of nodes on which its tasks run at one time. Default: no limit."""
    users: tuple[str, ...] | None = None
    """Users who may use the partition. Default: all."""
    accounts: tuple[str, ...] | None = None
    """Accounts that may use the partition. Default: all."""
    # bitmask of what its jobs compete for, its nodes by default (see `Cluster.claims`)
    claims: int = field(default=0, metadata=NO_KEY)

    def __post_init__(self) -> None:
        if not self.claims:
            object.__setattr__(self, "claims", self.mask)

    def check(self) -> None:
        """Raise KeyProblem for time limits that contradict each other."""
        if self.default_time is not None and self.default_time > self.max_time:
            text = f"default_time must be at most the max_time of {self.max_time:g} s; got {self.default_time:g} s"
            raise KeyProblem("default_time", text)
        for key in ("default_time", "max_time"):
            if getattr(self, key) == 0:
                raise KeyProblem(key, "a time limit must be above 0; leave it out if there is none")

    @property
    def limited(self) -> bool:
        """True if there is a limit on the resources that its running tasks occupy."""
        return self.max_gpus is not None or self.max_cpus is not None or self.max_nodes is not None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Node:
    """One node: `cpu` (the device of its cores) and `accelerators`, in order."""

    index: int
    name: str
    cpus: int  # cores for tasks; those that drive its accelerators (`spec.drivers`) are not included
    memory: int | None
    cpu: Device
    accelerators: tuple[Device, ...]
    spec: NodeSpec

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return self.name


class Cluster:
    """All nodes and devices, numbered; default names of nodes: n0, n1, ..."""

    def __init__(self, specs: Sequence[NodeSpec], partitions: dict[str, Partition] | None = None,
                 fabric: Fabric = Fabric()):  # noqa: B008  # fmt: skip
        self.specs = list(specs)
        if sum(spec.count * (1 + sum(count for _, count in spec.accelerators)) for spec in specs) > MAX_DEVICES:
            raise ValueError(f"a cluster must have at most {MAX_DEVICES:,} devices")
        self.nodes: list[Node] = []
        self.devices: list[Device] = []
        self.types: dict[str, DeviceType] = {}
        for spec in specs:
            for copy in range(spec.count):
                self._add(spec, copy)
        masks: dict[str, int] = {}
        for node in self.nodes:
            for name in node.spec.partitions:
                masks[name] = masks.get(name, 0) | 1 << node.index
        by_node = {name: Partition(name, mask, claims=self.claims(mask)) for name, mask in masks.items()}
        # partitions by name; the code that builds the cluster may replace them by ones with rules
        self.partitions = partitions or by_node
        self.fabric = fabric  # the shared network between nodes; replaced like the partitions

    def _add(self, spec: NodeSpec, copy: int) -> None:
        index = len(self.nodes)
        name = f"n{index}"
        if spec.name:
            name = spec.name if spec.count == 1 and spec.first is None else f"{spec.name}{(spec.first or 0) + copy}"
        types = [spec.cpu_type] + [kind for kind, _ in spec.accelerators]
        for kind in types:
            first = self.types.setdefault(kind.name, kind)
            if first != kind:
                raise ValueError(f'device type "{kind.name}" has two different descriptions; give one another name')
        cpu = self._device(f"{name}/cpu", spec.cpu_type, index, local=-1, spec=spec)
        accelerators: list[Device] = []
        for kind, count in spec.accelerators:
            for _ in range(count):
                local = len(accelerators)
                accelerators.append(self._device(f"{name}/g{local}", kind, index, local=local, spec=spec))
        cores = spec.cpus - spec.drivers
        if cores < 0:
            raise ValueError(f"node {name} needs a core for each of {spec.drivers} driver cores; it has {spec.cpus}")
        self.nodes.append(
            Node(index, name, cores, memory=spec.memory, cpu=cpu, accelerators=tuple(accelerators), spec=spec)
        )

    def _device(self, name: str, kind: DeviceType, node: int, local: int, spec: NodeSpec) -> Device:
        switch = None if spec.switch_size is None or local < 0 else local // spec.switch_size
        island = None if spec.island_size is None or local < 0 else local // spec.island_size
        device = Device(
            len(self.devices), name, kind, node=node, local=local, switch=switch, island=island, rack=spec.rack
        )
        self.devices.append(device)
        return device

    def claims(self, mask: int, kind: DeviceType | None = None) -> int:
        """Return a bitmask of the resources of the nodes in `mask`.

        Tasks bound to different sets of nodes compete if their bitmasks have a common bit.  Each node has a bit and, if
        it has several types of accelerators, a bit for each type.  For tasks that need only accelerators of type
        `kind`, only the bit of this type is set.
        """
        types = [list(dict.fromkeys(one.type for one in node.accelerators)) for node in self.nodes]
        longest = max(map(len, types), default=0)
        mask_of_claims = 0
        for index in (number for number in range(len(types)) if mask >> number & 1):
            first = len(types) + index * longest
            if kind is None or len(types[index]) < 2:
                mask_of_claims |= 1 << index
            if len(types[index]) > 1:
                wanted = [at for at, one in enumerate(types[index]) if kind is None or one is kind]
                mask_of_claims |= sum(1 << first + at for at in wanted)
        return mask_of_claims

    @cached_property
    def by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    def of_kind(self, kind: str) -> list[DeviceType]:
        """Return the device types of the cluster with this kind (cpu, gpu, npu) or name."""
        present = {device.type.name for device in self.devices if device.type.kind != "cpu"}
        if any(node.cpus for node in self.nodes):
            present |= {node.cpu.type.name for node in self.nodes if node.cpus}
        return [t for t in self.types.values() if t.name in present and kind in (t.name, t.kind)]

    def count(self, kind: str) -> int:
        """Return the number of devices of a kind or type (CPUs: of their cores for tasks)."""
        units = zip(self.devices, self.units, strict=True)
        return sum(count for device, count in units if kind in (device.type.kind, device.type.name))

    @cached_property
    def units(self) -> list[int]:
        """Number of units that tasks can occupy, by device: cores of a CPU, 1 for others."""
        return [self.nodes[d.node].cpus if d.type.kind == "cpu" else 1 for d in self.devices]

    @cached_property
    def powered_units(self) -> list[int]:
        """By device, units of power and cost: 1, or a CPU's cores (driver cores included)."""
        return [
            self.nodes[d.node].cpus + self.nodes[d.node].spec.drivers if d.type.kind == "cpu" else 1
            for d in self.devices
        ]

    @cached_property
    def prices(self) -> list[Price]:
        """Price of each device (for a CPU: of a core), with its part of the node's price."""
        by_device = []
        for device in self.devices:
            node = self.nodes[device.node]
            carriers = len(node.accelerators) or node.cpus
            carries = (device.local >= 0) == bool(node.accelerators)
            by_device.append(device.type.price + (node.spec.price.over(carriers) if carries and carriers else FREE))
        return by_device

    @cached_property
    def has_watts(self) -> bool:
        """True if any device draws power; if False, energy is unknown instead of 0 J."""
        return any(d.type.power.idle or d.type.power.busy or d.type.power.sleep for d in self.devices)

    @property
    def priced(self) -> bool:
        return any(price != FREE for price in self.prices)

    def price_of(self, kind: str) -> float:
        """Return the mean price per second of devices (or cores) of this type; 0 if none."""
        devices = zip(self.devices, self.prices, self.units, strict=True)
        paid = [(price.up, count) for device, price, count in devices if device.type.name == kind]
        number = sum(count for _, count in paid)
        return sum(price * count for price, count in paid) / number if number else 0.0

    def describe(self) -> str:
        """Return a description in one line, such as `8 x (32 cores, 4 x v100)`."""
        groups: list[tuple[NodeSpec, int]] = []
        for node in self.nodes:
            rack = node.spec.rack if node.spec.first is None else None
            spec = replace(node.spec, count=1, name=None, rack=rack, first=None, partitions=(), price=FREE)
            if groups and groups[-1][0] == spec:
                groups[-1] = (spec, groups[-1][1] + 1)
            else:
                groups.append((spec, 1))
        parts = []
        for spec, count in groups:
            inside = [f"{spec.cpus} core{'s' if spec.cpus != 1 else ''}"] if spec.cpus else []
            if spec.drivers:
                what = "GPUs" if all(kind.kind == "gpu" for kind, _ in spec.accelerators) else "accelerators"
                inside[0] += f" ({spec.drivers} of them drive{'s' if spec.drivers == 1 else ''} {what})"
            inside += [f"{number} × {kind.name}" for kind, number in spec.accelerators if number]
            body = ", ".join(inside) or "empty"
            parts.append(f"{count} × ({body})" if count > 1 or len(groups) > 1 else body)
        shown = parts if len(parts) <= 6 else [*parts[:5], f"… {len(parts) - 5} more kinds of node"]
        return " + ".join(shown)
