"""Types of devices: links, sharing, preemption, power and price.

Times are seconds, sizes bytes, rates bytes per second, power watts.  CPU cores are counted in thousandths (`MILLI`) and
shares of a GPU in millionths (`WHOLE`), as integers, so that occupying and releasing are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hetsim.errors import KeyProblem
from hetsim.model.bandwidth import BandwidthCurve
from hetsim.model.slices import Layout, Slice

if TYPE_CHECKING:
    from hetsim.model.units import (
        Bytes,
        BytesPerSecond,
        Count,
        Fraction,
        Name,
        NotNegative,
        PerSecond,
        Positive,
        Seconds,
        Watts,
    )

NO_KEY = {"key": False}  # metadata of a field that is not a key of scenarios (`hetsim.scenario.fields`)
REQUIRED, OPTIONAL = {"required": True}, {"optional": True}
MILLI = 1_000
WHOLE = 1_000_000


def millicores(cores: float) -> int:
    """Return a number of cores as integer thousandths."""
    return round(cores * MILLI)


def micro_share(gpus: float) -> int:
    """Return a share of a GPU in millionths, rounded down so that three thirds fit."""
    return math.floor(gpus * WHOLE + 1e-6)


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth per direction; if only one direction is given, it applies to both.

    With `half` duplex both directions share one rate (that of `upload`).
    """

    upload: BytesPerSecond = math.inf
    """Bytes per second from host to device. Default: the download rate if there is one, else no limit."""
    download: BytesPerSecond = math.inf
    """Bytes per second from device to host. Default: the upload rate if there is one, else no limit."""
    latency: Seconds = 0.0
    """Time before the first byte of each transfer."""
    duplex: Literal["full", "half"] = "full"
    """full (each direction has its own rate) or half (both directions share one rate)."""
    # measured bus bandwidth of collectives; its highest value is the rate in both directions
    curve: BandwidthCurve | None = field(default=None, metadata=NO_KEY)

    @classmethod
    def given(cls, upload: float | None = None, download: float | None = None, **others: Any) -> Link:
        """Return a link; if one direction is missing, it gets the rate of the other."""
        if 0 in (upload, download):
            raise KeyProblem("upload" if upload == 0 else "download", "a bandwidth must be above 0")
        rates = [rate for rate in (upload, download) if rate is not None] or [math.inf]
        return cls(rates[0], rates[-1], **others)


@dataclass(frozen=True)
class Sharing:
    """How several launches share an accelerator; `sharing: mps` sets only the kind.

    - exclusive: launches on whole devices compute one after the other in start order; launches on fractions of a device
      run concurrently and do not slow each other.
    - timeslice: all launches in flight compute concurrently, each at min(1, 1 / sum of shares) of its rate; if there
      are several launches, this rate is also multiplied by (1 - switch_cost).
    - mps: fractions run concurrently, each at 1 / (1 + interference * sum of the other launches' shares) of its rate.
    - mig: each launch has its own slice of the present layout.  The GPU changes its layout when it is empty, or, with
      `recut` "idle", to any layout that contains the busy slices; new slices are usable after `reconfigure` seconds.

    pairs: measured slowdowns for timeslice and mps, as (class, class next to it, slowdown); inf: policies should not
    let the two share a device.  The slowdowns by several neighbors are multiplied.  If the slowdown by a neighbor is
    inf or is not given, the rules above apply.
    """

    kind: Literal["exclusive", "timeslice", "mps", "mig"] = field(default="exclusive", metadata=REQUIRED)
    """How launches share the device: exclusive (in start order), timeslice (in turn), mps (together), mig (slices)."""
    switch_cost: Fraction = 0.0
    """Fraction of the rate that is lost while several launches take turns in time slices."""
    interference: NotNegative = 0.0
    """Under mps a launch runs at 1 / (1 + interference × sum of the other launches' shares) of its rate."""
    layouts: tuple[Layout | tuple[float, ...], ...] = field(default=((1.0,),), metadata=NO_KEY)
    reconfigure: Seconds = 0.0
    """For mig: the time until newly cut slices can be used."""
    pairs: tuple[tuple[str, str, float], ...] = field(default=(), metadata=NO_KEY)
    recut: Literal["empty", "idle"] = "empty"
    """For mig: a GPU may change its layout only when no slice is used (empty), or also in idle slices (idle)."""

    def check(self) -> None:
        """Raise KeyProblem unless `switch_cost` is at least 0 and below 1."""
        if not 0 <= self.switch_cost < 1:
            raise KeyProblem("switch_cost", f"switch_cost must be a share from 0 to below 1; got {self.switch_cost:g}")

    @cached_property
    def slower(self) -> dict[tuple[str, str], float]:
        """Measured slowdowns, by (class, class next to it)."""
        return {(one, other): times for one, other, times in self.pairs}

    @cached_property
    def cuts(self) -> tuple[Layout, ...]:
        """MIG layouts, each as its slices in ascending order; empty unless mig."""
        layouts = self.layouts if self.kind == "mig" else ()
        return tuple(tuple(sorted(x if isinstance(x, Slice) else Slice(x) for x in layout)) for layout in layouts)

    @cached_property
    def slices(self) -> Layout:
        """The distinct slices that occur in any layout."""
        return tuple(dict.fromkeys(one for layout in self.cuts for one in layout))

    def share_of(self, profile: str | None) -> float | None:
        """Return the GPU share of the slices with this profile; None if no slice has it."""
        return next((one.share for one in self.slices if one.profile == profile and profile), None)


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption of running launches; `preemption: drain` is the short form.

    - context_switch: immediately; the task's state is saved, over the device's link or at `rate` bytes per second.
    - drain: the launch stops when its blocks in progress have ended; no state is saved and no work is lost.
    - flush: immediately; blocks in progress are discarded if their kernel is idempotent, otherwise drained.
    - flep: like drain, at the preemption points between the blocks of a transformed kernel, which always computes
      slower by `overhead`.

    References: Tanasic, Gelado, Cabezas, Ramirez, Navarro, Valero, Enabling Preemptive Multiprogramming on GPUs (ISCA
    2014); Park, Park, Mahlke, Chimera: Collaborative Preemption for Multitasking on a Shared GPU (ASPLOS 2015); Wu,
    Liu, Zhou, Jiang, FLEP: Enabling Flexible and Efficient Preemption on GPUs (ASPLOS 2017).
    """

    kind: Literal["context_switch", "drain", "flush", "flep"] = field(default="context_switch", metadata=REQUIRED)
    """How a running launch is preempted: context_switch (save its state), drain (end the block), flush (drop the
    block), or flep (yield)."""
    rate: BytesPerSecond | None = None
    """For context_switch: the rate at which state is saved to the device's own memory. Default: it is saved over the
    device's link."""
    overhead: Fraction = 0.0
    """For flep, whose preemptible kernels are slower: the share by which every launch on the device slows down."""

    def check(self) -> None:
        """Raise KeyProblem for keys that do not belong to this kind of preemption."""
        if self.rate is not None and self.kind != "context_switch":
            raise KeyProblem("rate", "only preemption by context_switch saves state; leave it out")
        if self.rate == 0:
            raise KeyProblem("rate", "a rate must be above 0")
        if self.overhead and self.kind != "flep":
            raise KeyProblem("overhead", "only preemption by flep slows kernels down; leave it out")
        if self.overhead < 0:
            raise KeyProblem("overhead", "must be at least 0")


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of a device (for a CPU: of one core), and its wake-up delay.

    Dynamic power (busy - idle) is proportional to the cube of the frequency.
    """

    idle: Watts = 0.0
    """Watts while up and doing nothing."""
    busy: Watts = 0.0
    """Watts while computing at full speed, idle watts included."""
    sleep: Watts = 0.0
    """Watts while asleep."""
    wake: Seconds = 0.0
    """Time from the order to wake until the device can be used."""


@dataclass(frozen=True, slots=True)
class Price:
    """Price per time of a node or device (CPU: of a core), when up and when asleep.

    `price: 2.5/h` sets both.  Nothing is paid while a device is down.
    """

    up: PerSecond = field(default=0.0, metadata=REQUIRED)
    """Price per time while up, used or not, in any currency, such as 2.5/h."""
    asleep: PerSecond = field(default=0.0, metadata=OPTIONAL)
    """Price per time while asleep. Default: the price of being up."""

    @classmethod
    def given(cls, up: float, asleep: float | None = None) -> Price:
        """Return a price; if `asleep` is missing, it equals `up`."""
        return cls(up, up if asleep is None else asleep)

    def __add__(self, other: Price) -> Price:
        return Price(self.up + other.up, self.asleep + other.asleep)

    def over(self, parts: int) -> Price:
        """Divide a price equally among `parts` devices."""
        return Price(self.up / parts, self.asleep / parts)


FREE = Price()


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A named type of device; `kind` is cpu, gpu or another accelerator (npu, ...)."""

    name: str = field(metadata=NO_KEY)
    kind: Name = field(default="gpu", metadata=OPTIONAL)
    """Kind of the device, such as npu; gpu if it is not given. Required for devices in `accelerators`."""
    speed: Positive = 1.0
    """Speed relative to the GPU for which gpu_time is given; for a CPU: relative to the core of cpu_time."""
    memory: Bytes | None = None
    """Memory of each device. Default: no limit."""
    streams: Count = 1
    """Maximum number of launches in flight on each device; 2 overlap an upload with a compute."""
    link: Link = field(default_factory=Link, metadata=NO_KEY)
    sharing: Sharing = field(default_factory=Sharing, metadata=NO_KEY)
    power: Power = field(default_factory=Power)
    """Watts of each device; for a CPU: of each core."""
    preemption: Preemption = field(default_factory=Preemption)
    """How a running launch on the device is preempted: a kind, or a kind with its parameters."""
    multiprocessors: Count | None = None
    """Number of streaming multiprocessors, for work given as kernels. Default: the number of the known device with the
    name of this type."""
    price: Price = field(default=FREE, metadata=OPTIONAL)
    """Price per device (CPU: per core): 2.5/h, or keys up and asleep. Default: as in cluster.prices, else nothing."""
    peak: object | None = None
    """Peak rates of each device (for a CPU: of a core), for work and profiles: figures, or the name of a known device
    such as h100. Default: looked up by the name of the type."""

    def __hash__(self) -> int:
        return hash(self.name)  # only the name, for speed: types are keys in the innermost loops

    def slices_for(self, share: int, memory: int = 0, profile: str = "") -> Layout:
        """Return MIG slices with at least this share and memory (and this profile).

        share: in millionths of a GPU.  memory: in bytes.
        """
        named = [one for one in self.sharing.slices if profile in ("", one.profile)]
        return tuple(one for one in named if micro_share(one.share) >= share and one.bytes_of(self.memory) >= memory)
