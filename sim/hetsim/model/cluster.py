"""What a cluster is made of: nodes with CPU cores and accelerators, their links, power and ways of sharing.

Everything here is a description and never changes during a run; the engine keeps the changing state.
Times are seconds, sizes bytes, rates bytes per second, power watts.  CPU cores are counted in thousandths
(`MILLI`) and shares of a GPU in millionths (`WHOLE`), as integers, so that taking and giving back is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from sim.model.bandwidth import BandwidthCurve
from sim.model.fabric import Fabric

MILLI = 1_000
WHOLE = 1_000_000

SharingKind = Literal["exclusive", "timeslice", "mps", "mig"]


def millicores(cores: float) -> int:
    """Cores as the integer thousandths in which they are booked."""
    return round(cores * MILLI)


def micro_share(gpus: float) -> int:
    """A share of one GPU as integer millionths, rounded down so that three thirds fit on one."""
    return math.floor(gpus * WHOLE + 1e-6)


@dataclass(frozen=True)
class Link:
    """A device's way to its host: bandwidth per direction, latency, duplex.

    With `half` duplex both directions share one rate (that of `upload`).
    """

    upload: float = math.inf
    download: float = math.inf
    latency: float = 0.0
    duplex: Literal["full", "half"] = "full"
    curve: BandwidthCurve | None = None
    """Measured bus bandwidth of collectives, whose highest value is the rate in both directions."""


@dataclass(frozen=True)
class Sharing:
    """How one accelerator serves several launches.

    exclusive: launches compute one after the other in start order; fractions run side by side, undisturbed.
    timeslice: all launches in flight compute at once, each at min(1, 1 / sum of shares) of its rate, and at
        (1 - switch_cost) of that while they are more than one.
    mps: fractions side by side; each launch runs at 1 / (1 + interference * shares of the others).
    mig: a fraction takes a slice of the present layout, at least as large; another layout is taken on only when
        the GPU is empty, and costs `reconfigure` seconds.
    pairs: (class, class next to it, times slower than alone), as measured, for timeslice and mps; inf if the two
        cannot share.  Next to several the factors multiply.  Pairs not given, or inf, follow the rule above.
    """

    kind: SharingKind = "exclusive"
    switch_cost: float = 0.0
    interference: float = 0.0
    layouts: tuple[tuple[float, ...], ...] = ((1.0,),)
    reconfigure: float = 0.0
    pairs: tuple[tuple[str, str, float], ...] = ()

    @cached_property
    def slower(self) -> dict[tuple[str, str], float]:
        """Times slower by class and class next to it."""
        return {(one, other): times for one, other, times in self.pairs}


PreemptionKind = Literal["context_switch", "drain", "flush", "flep"]


@dataclass(frozen=True)
class Preemption:
    """How a running launch is preempted on an accelerator.

    context_switch: at once; the task's state is saved, over the device's link or at `rate` bytes per second.
    drain: the blocks under way run to their end first; nothing is saved and nothing lost.
    flush: at once; of idempotent kernels the blocks under way are thrown away, others are drained.
    flep: as drain, at the preemption points between the blocks of a transformed kernel, which computes slower by
        `overhead` all the time.
    Tanasic, Gelado, Cabezas, Ramirez, Navarro, Valero, Enabling Preemptive Multiprogramming on GPUs (ISCA 2014);
    Park, Park, Mahlke, Chimera: Collaborative Preemption for Multitasking on a Shared GPU (ASPLOS 2015);
    Wu, Liu, Zhou, Jiang, FLEP: Enabling Flexible and Efficient Preemption on GPUs (ASPLOS 2017).
    """

    kind: PreemptionKind = "context_switch"
    rate: float | None = None
    overhead: float = 0.0


@dataclass(frozen=True)
class Power:
    """Watts of a device when idle, busy (at full speed) and asleep, and how long it takes to wake.

    Of a CPU the watts are those of one core.  Dynamic power (busy - idle) grows as the cube of frequency.
    """

    idle: float = 0.0
    busy: float = 0.0
    sleep: float = 0.0
    wake: float = 0.0


@dataclass(frozen=True)
class Price:
    """Money that a device or a node costs for each second in which it is up, and in which it is asleep.

    Of a CPU it is that of one core.  Nothing is paid while a device is down.
    """

    up: float = 0.0
    asleep: float = 0.0

    def __add__(self, other: Price) -> Price:
        return Price(self.up + other.up, self.asleep + other.asleep)

    def over(self, parts: int) -> Price:
        """An equal part of it."""
        return Price(self.up / parts, self.asleep / parts)


FREE = Price()


@dataclass(frozen=True)
class DeviceType:
    """A named type of device; `kind` is cpu, gpu or that of another accelerator (npu, ...)."""

    name: str
    kind: str = "gpu"
    speed: float = 1.0
    memory: int | None = None
    streams: int = 1
    link: Link = field(default_factory=Link)
    sharing: Sharing = field(default_factory=Sharing)
    power: Power = field(default_factory=Power)
    preemption: Preemption = field(default_factory=Preemption)
    multiprocessors: int | None = None
    price: Price = FREE
    peak: object | None = None
    """What the roofline cost model needs to know of this type (`sim.workload.costs.roofline.Peak`), if anything."""

    def __hash__(self) -> int:
        return hash(self.name)  # not of all fields: types are keys in the innermost loops


@dataclass(frozen=True)
class Device:
    """One device: all cores of a node (`n0/cpu`), or one accelerator (`n0/g1`)."""

    index: int
    name: str
    type: DeviceType
    node: int
    local: int
    """Position among the accelerators of the node; -1 for the cores."""
    switch: int | None = None
    """Number of the PCIe switch on its node behind which it sits, if any."""
    island: int | None = None
    """Number of the NVLink island on its node to which it belongs, if any."""
    rack: str | None = None

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class NodeSpec:
    """`count` equal nodes: cores, host memory, accelerators as (type, count), switches and network."""

    cpus: int = 0
    memory: int | None = None
    accelerators: tuple[tuple[DeviceType, int], ...] = ()
    count: int = 1
    name: str | None = None
    cpu_type: DeviceType = field(default_factory=lambda: DeviceType("cpu", kind="cpu"))
    switch_size: int | None = None
    """Accelerators behind one PCIe switch (filled in order); None: each has a way of its own."""
    island_size: int | None = None
    """Accelerators that NVLink joins directly (filled in order); None: none are."""
    nvlink: Link = field(default_factory=Link)
    """What joins its GPUs: the rate of each in one direction, and the latency of a hop."""
    cards: int = 1
    """Network cards, which share the rate of `network`."""
    switch: Link = field(default_factory=Link)
    network: Link = field(default_factory=Link)
    """The node's way to all other nodes: `upload` is out of the node, `download` into it."""
    rack: str | None = None
    first: int | None = None
    """Number of the first of them, where they are part of a larger group of nodes (those of one rack)."""
    price: Price = FREE
    """Price of the node as a whole; its accelerators share it equally, or its cores if it has none."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions (virtual clusters) to which these nodes belong."""
    driver_cores: int = 0
    """Cores (of `cpus`) that drive one accelerator: this number for each accelerator run no tasks."""

    @property
    def drivers(self) -> int:
        """Cores of a node that drive its accelerators."""
        return self.driver_cores * sum(count for _, count in self.accelerators)


@dataclass(frozen=True, eq=False)
class Partition:
    """A named part of the cluster, and the rules for jobs there.  Partitions may overlap.  Compared by identity."""

    name: str
    mask: int = 0
    """Bitmask of the indexes of its nodes."""
    default: bool = False
    """Do jobs that name no partition go here?"""
    default_time: float | None = None
    """Time limit of jobs that have none of their own; None: `max_time`."""
    max_time: float = math.inf
    tier: int = 0
    """Jobs of a higher tier go first, where the scheduler knows of tiers."""
    max_gpus: float | None = None
    """GPUs that its jobs may hold at once."""
    max_cpus: float | None = None
    """Cores that its jobs may hold at once."""
    max_nodes: int | None = None
    """Nodes on which its jobs may be at once."""
    users: tuple[str, ...] | None = None
    accounts: tuple[str, ...] | None = None
    """Users and accounts that may use it; None: all."""
    claims: int = 0
    """What its jobs compete for, as a bitmask (`Cluster.claims`): jobs of partitions that share a bit do.  Its nodes
    unless given."""

    def __post_init__(self) -> None:
        if not self.claims:
            object.__setattr__(self, "claims", self.mask)

    @property
    def limited(self) -> bool:
        """Is there a limit on what its jobs hold at once?"""
        return self.max_gpus is not None or self.max_cpus is not None or self.max_nodes is not None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Node:
    """One node; `cpu` is the device of all its cores, `accelerators` the others in order."""

    index: int
    name: str
    cpus: int
    """Cores for tasks: those that drive its accelerators (`spec.drivers`) are not among them."""
    memory: int | None
    cpu: Device
    accelerators: tuple[Device, ...]
    spec: NodeSpec

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return self.name


class Cluster:
    """All nodes and devices, numbered; node names are n0, n1, ... unless given."""

    def __init__(self, specs: Sequence[NodeSpec]):
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
        self.partitions = {name: Partition(name, mask, claims=self.claims(mask)) for name, mask in masks.items()}
        """By name; the code that builds the cluster may replace them by others, with rules."""
        self.fabric = Fabric()
        """The network between nodes, as far as it is not theirs alone; replaced like the partitions."""

    def _add(self, spec: NodeSpec, copy: int) -> None:
        index = len(self.nodes)
        name = f"n{index}"
        if spec.name:
            name = spec.name if spec.count == 1 and spec.first is None else f"{spec.name}{(spec.first or 0) + copy}"
        types = [spec.cpu_type] + [kind for kind, _ in spec.accelerators]
        for kind in types:
            known = self.types.setdefault(kind.name, kind)
            if known != kind:
                raise ValueError(f'device type "{kind.name}" is described in two ways')
        cpu = self._device(f"{name}/cpu", spec.cpu_type, index, -1, spec)
        accelerators: list[Device] = []
        for kind, count in spec.accelerators:
            for _ in range(count):
                local = len(accelerators)
                accelerators.append(self._device(f"{name}/g{local}", kind, index, local, spec))
        cores = spec.cpus - spec.drivers
        if cores < 0:
            raise ValueError(f"{spec.drivers} driver cores are more than the {spec.cpus} cores of node {name}")
        self.nodes.append(Node(index, name, cores, spec.memory, cpu, tuple(accelerators), spec))

    def _device(self, name: str, kind: DeviceType, node: int, local: int, spec: NodeSpec) -> Device:
        switch = None if spec.switch_size is None or local < 0 else local // spec.switch_size
        island = None if spec.island_size is None or local < 0 else local // spec.island_size
        device = Device(len(self.devices), name, kind, node, local, switch, island, spec.rack)
        self.devices.append(device)
        return device

    def claims(self, mask: int, kind: DeviceType | None = None) -> int:
        """What tasks bound to these nodes compete for, as a bitmask: the nodes, and where a node has several types of
        accelerator each of them.  Of tasks that take nothing but a `kind` of them, there that type alone."""
        types = [list(dict.fromkeys(one.type for one in node.accelerators)) for node in self.nodes]
        most = max(map(len, types), default=0)
        found = 0
        for index in (number for number in range(len(types)) if mask >> number & 1):
            first = len(types) + index * most
            if kind is None or len(types[index]) < 2:
                found |= 1 << index
            if len(types[index]) > 1:
                wanted = [at for at, one in enumerate(types[index]) if kind is None or one is kind]
                found |= sum(1 << first + at for at in wanted)
        return found

    @cached_property
    def by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    def of_kind(self, kind: str) -> list[DeviceType]:
        """The types present that answer to `kind`: a kind (cpu, gpu, npu) or a type's own name."""
        present = {device.type.name for device in self.devices if device.type.kind != "cpu"}
        if any(node.cpus for node in self.nodes):
            present |= {node.cpu.type.name for node in self.nodes if node.cpus}
        return [t for t in self.types.values() if t.name in present and kind in (t.name, t.kind)]

    def count(self, kind: str) -> int:
        """Devices of a kind or type; of a CPU, its cores for tasks."""
        units = zip(self.devices, self.units, strict=True)
        return sum(count for device, count in units if kind in (device.type.kind, device.type.name))

    @cached_property
    def units(self) -> list[int]:
        """For each device the units that tasks can take: the cores of a CPU, 1 of an accelerator."""
        return [self.nodes[d.node].cpus if d.type.kind == "cpu" else 1 for d in self.devices]

    @cached_property
    def powered_units(self) -> list[int]:
        """Units of each device that draw power and cost money: all cores of a CPU, driver cores included."""
        return [
            self.nodes[d.node].cpus + self.nodes[d.node].spec.drivers if d.type.kind == "cpu" else 1
            for d in self.devices
        ]

    @cached_property
    def prices(self) -> list[Price]:
        """Price of each device (of a CPU: of one core), its part of its node's price included."""
        found = []
        for device in self.devices:
            node = self.nodes[device.node]
            carriers = len(node.accelerators) or node.cpus
            carries = (device.local >= 0) == bool(node.accelerators)
            found.append(device.type.price + (node.spec.price.over(carriers) if carries and carriers else FREE))
        return found

    @cached_property
    def has_watts(self) -> bool:
        """Does any device draw power?  Without watts the energy of a run is not known, which is not 0 J."""
        return any(d.type.power.idle or d.type.power.busy or d.type.power.sleep for d in self.devices)

    @property
    def priced(self) -> bool:
        """Does anything here cost money?"""
        return any(price != FREE for price in self.prices)

    def price_of(self, kind: str) -> float:
        """Money for a second of a device of this type (a core), on average over those there are; 0 of none."""
        devices = zip(self.devices, self.prices, self.units, strict=True)
        paid = [(price.up, count) for device, price, count in devices if device.type.name == kind]
        number = sum(count for _, count in paid)
        return sum(price * count for price, count in paid) / number if number else 0.0

    def describe(self) -> str:
        """One line for people: `8 x (32 cores, 4 x v100)`."""
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
