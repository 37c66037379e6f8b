"""The `cluster:` part of a scenario: nodes, accelerators, links, power, and ways of sharing."""

from __future__ import annotations

import inspect
import itertools
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sim.errors import ScenarioError, UnknownName, suggestion
from sim.model.bandwidth import BandwidthCurve
from sim.model.units import Bytes, BytesPerSecond, Fraction, PerSecond, Seconds, Watts
from sim.scenario.fields import (
    Count,
    KeyProblem,
    Model,
    Name,
    NotNegative,
    OneOrMany,
    Positive,
    Short,
    Whole,
    unknown,
)
from sim.scenario.file.profile_files import included
from sim.workload.costs import roofline
from sim.workload.costs.roofline import Peak


def _peak(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return roofline.device(value)
    except UnknownName as error:
        raise ValueError(unknown(error)) from None


NamedPeak = Annotated[Peak, Short(_peak, {"type": "string", "enum": sorted(roofline.DEVICES)})]
"""What the cost model knows of a device: figures, or the name of a known device."""


class PowerSpec(Model):
    """Watts of a device (of a CPU: of one core) and its wake-up delay."""

    idle: Watts = 0.0
    """Watts while up and doing nothing, 0 unless given."""
    busy: Watts = 0.0
    """Watts while computing at full speed, idle watts included; 0 unless given."""
    sleep: Watts = 0.0
    """Watts while asleep, 0 unless given."""
    wake: Seconds = 0.0
    """Time from the order to wake until the device can be used, 0 unless given."""


class PriceSpec(Model):
    """Money for a time in which a device (of a CPU: a core) or a node is up; asleep it costs the same unless said.

    `price: 2.5/h` alone is that of both.
    """

    up: PerSecond
    """Money for a time in which it is up, used or not, in any currency: 2.5/h."""
    asleep: PerSecond | None = None
    """Money for a time asleep; the price of being up unless given."""


Priced = Annotated[
    PriceSpec, Short(lambda v: v if isinstance(v, dict | PriceSpec) else {"up": v}, {"type": ["string", "number"]})
]


class SharingSpec(Model):
    """How an accelerator serves several launches; `sharing: mps` alone is the kind."""

    kind: Literal["exclusive", "timeslice", "mps", "mig"]
    """What computes at once: exclusive (in start order), timeslice (all, in turn), mps (side by side), mig (slices)."""
    switch_cost: Fraction = 0.0
    """Share of the rate that time slices lose while several launches take turns, 0 unless given."""
    interference: NotNegative = 0.0
    """Under mps a launch runs at 1 / (1 + interference × shares of the others), 0 unless given."""
    layouts: list[list[Positive]] = Field(default=[[1.0]], min_length=1)
    """Of mig the ways to cut one GPU, each a list of shares; one slice of the whole GPU unless given."""
    reconfigure: Seconds = 0.0
    """Of mig the time to take on another layout, which needs an empty GPU; 0 unless given."""
    pairs: dict[str, dict[str, Positive | None]] = {}
    """By class, then by class of the partner: times slower than alone, as measured; null where two cannot share."""

    @model_validator(mode="after")
    def _side_by_side(self) -> SharingSpec:
        if self.pairs and self.kind not in ("timeslice", "mps"):
            raise KeyProblem("pairs", f"they go with timeslice or mps, not with {self.kind}")
        return self

    @field_validator("switch_cost")
    @classmethod
    def _share(cls, value: float) -> float:
        if not 0 <= value < 1:
            raise ValueError(f"switch_cost is a share from 0 to below 1, not {value:g}")
        return value

    @field_validator("layouts")
    @classmethod
    def _fit(cls, value: list[list[float]]) -> list[list[float]]:
        for layout in value:
            if not layout or sum(layout) > 1 + 1e-6:
                raise ValueError(f"the slices of a layout are shares of one GPU and sum to at most 1, not {layout}")
        return value


class PreemptionSpec(Model):
    """How an accelerator lets go of what it computes; `preemption: drain` alone is the kind."""

    kind: Literal["context_switch", "drain", "flush", "flep"]
    """How running work is left: context_switch (save state), drain (end the block), flush (drop it), flep (yield)."""
    rate: BytesPerSecond | None = None
    """Of context_switch the rate at which state goes to the device's own memory; over its link unless given."""
    overhead: Fraction = 0.0
    """Of flep the share by which every launch there is slower, 0 unless given."""

    @model_validator(mode="after")
    def _belongs(self) -> PreemptionSpec:
        if self.rate is not None and self.kind != "context_switch":
            raise KeyProblem("rate", "state is saved only by context_switch")
        if self.rate == 0:
            raise KeyProblem("rate", "a rate must be above 0")
        if self.overhead and self.kind != "flep":
            raise KeyProblem("overhead", "only flep slows its kernels down all the time")
        if self.overhead < 0:
            raise KeyProblem("overhead", "must not be negative")
        return self


class LinkSpec(Model):
    """Bandwidth per direction; a direction that is not given has that of the other."""

    upload: BytesPerSecond | None = None
    """Bytes per second from host to device; those of download, or no limit, unless given."""
    download: BytesPerSecond | None = None
    """Bytes per second from device to host; those of upload, or no limit, unless given."""
    latency: Seconds = 0.0
    """Time before the first byte of each transfer, 0 unless given."""
    duplex: Literal["full", "half"] = "full"
    """full (both directions at once, the default) or half (they share one rate)."""

    @field_validator("upload", "download")
    @classmethod
    def _above_zero(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("a bandwidth must be above 0")
        return value


class Switch(LinkSpec):
    """A PCIe switch: `size` accelerators behind each, sharing its bandwidth."""

    size: Count
    """How many accelerators in a row are behind one switch and share its bandwidth."""


class Pcie(LinkSpec):
    """The way of each accelerator to its host, and the switch it may share; or a measured `profile` of the way."""

    profile: str | None = None
    """A file of `hetsim calibrate` with the measured link, relative to the scenario."""
    switch: Switch | None = None
    """The PCIe switch that several accelerators share; none unless given."""

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        return included(value, "pcie", cls, info)


CurveRow = tuple[Annotated[Bytes, Field(gt=0)], Annotated[BytesPerSecond, Field(gt=0)]]
Curve = Annotated[list[CurveRow], Field(min_length=1, max_length=1000)]


def _check_curve(curve: list[tuple[int, float]] | None) -> None:
    """KeyProblem for the first row of a measured curve that is not larger, or not as fast, as the one before."""
    for number, ((size, rate), (larger, faster)) in enumerate(itertools.pairwise(curve or []), 1):
        if larger <= size:
            text = f"sizes rise from row to row; {larger:,} B come after {size:,} B"
            raise KeyProblem("curve", text, number)
        if faster < rate:
            text = f"the curve falls from {rate / 1e9:.4g} GB/s at {size:,} B to {faster / 1e9:.4g} GB/s"
            raise KeyProblem("curve", f"{text} at {larger:,} B; larger messages are never slower", number)


def bandwidth_curve(curve: list[tuple[int, float]] | None) -> BandwidthCurve | None:
    """What stands under `curve`, to compute with."""
    return None if curve is None else BandwidthCurve(*(tuple(map(float, one)) for one in zip(*curve, strict=True)))


class GpuLink(Model):
    """NVLink or the like between the GPUs of a node: a rate, or a curve that was measured."""

    profile: str | None = None
    """A file of `hetsim calibrate nccl` with the measured curve, relative to the scenario."""
    rate: Annotated[BytesPerSecond, Field(gt=0)] | None = None
    """Bus bandwidth of a GPU in one direction that collectives reach."""
    curve: Curve | None = None
    """In place of rate the bus bandwidth by bytes, rising: [[1 MB, 40 GB/s], [1 GB, 230 GB/s]]; log-log in between."""
    latency: Seconds = 0.0
    """Time of a hop from GPU to GPU, 0 unless given; a curve contains it."""

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        return included(value, "nvlink", cls, info)

    @model_validator(mode="after")
    def _rate_or_curve(self) -> GpuLink:
        if (self.rate is None) == (self.curve is None):
            text = "give a rate or a curve" if self.rate is None else "the curve tells it; leave one of the two out"
            raise KeyProblem("rate", text)
        if self.curve is not None and self.latency:
            raise KeyProblem("latency", "the curve contains latencies; leave this out")
        _check_curve(self.curve)
        return self


Joined = Annotated[GpuLink, Short(lambda v: v if isinstance(v, dict) else {"rate": v}, {"type": "string"})]


class NodeNetworkSpec(Model):
    """A node's way to all others; `out` and `in`, or the same as upload and download; or a curve that was measured."""

    profile: str | None = None
    """A file of `hetsim calibrate nccl` with the measured curve, relative to the scenario."""
    curve: Curve | None = None
    """In place of out and in the bus bandwidth of a node by bytes, rising: [[1 MB, 9 GB/s], [1 GB, 90 GB/s]]."""
    out: BytesPerSecond | None = None
    """Bytes per second from this node to others; those of in, or no limit, unless given."""
    into: BytesPerSecond | None = Field(None, alias="in")
    """Bytes per second from others to this node; those of out, or no limit, unless given."""
    upload: BytesPerSecond | None = None
    """Another name of out."""
    download: BytesPerSecond | None = None
    """Another name of in."""
    latency: Seconds = 0.0
    """Time before the first byte of each transfer between nodes, 0 unless given."""
    duplex: Literal["full", "half"] = "full"
    """full (both directions at once, the default) or half (they share one rate)."""

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        return included(value, "network", cls, info)

    @model_validator(mode="after")
    def _once(self) -> NodeNetworkSpec:
        for first, second, words in (
            (self.out, self.upload, "out and upload"),
            (self.into, self.download, "in and download"),
        ):
            if first is not None and second is not None:
                raise ValueError(f"{words} mean the same; give one of them")
        if 0 in (self.out, self.into, self.upload, self.download):
            raise ValueError("a bandwidth must be above 0")
        if self.curve is not None:
            given = [key for key in ("out", "into", "upload", "download", "latency") if getattr(self, key)]
            if given:
                key = "in" if given[0] == "into" else given[0]
                raise KeyProblem(key, "the curve tells rates and latencies; leave one of the two out")
            _check_curve(self.curve)
        return self


class Accelerator(Model):
    """`count` equal accelerators of a node."""

    type: Name
    """Name of the type, such as v100; tasks and tables use it."""
    count: Annotated[Whole, Field(le=10_000)] = 1
    """How many of them each node has, 1 unless given."""
    kind: Name | None = None
    """What it is if no GPU, such as npu; needed under accelerators."""
    speed: Positive = 1.0
    """How many times as fast as the GPU for which gpu_time is given, 1 unless given."""
    memory: Bytes | None = None
    """Memory of each; no limit unless given."""
    streams: Annotated[Count, Field(le=1_000_000)] = 1
    """How many launches may be in flight on each, 1 unless given; 2 overlap an upload with a compute."""
    pcie: LinkSpec | None = None
    """Its own link to the host, where it differs from the node's pcie."""
    sharing: Annotated[SharingSpec, Short(lambda v: {"kind": v} if isinstance(v, str) else v, {"type": "string"})] = (
        SharingSpec(kind="exclusive")
    )
    """How each serves several launches, exclusive unless given; a kind alone, or with its figures."""
    power: PowerSpec = PowerSpec()
    """Watts of each, 0 unless given."""
    preemption: Annotated[
        PreemptionSpec, Short(lambda v: {"kind": v} if isinstance(v, str) else v, {"type": "string"})
    ] = PreemptionSpec(kind="context_switch")
    """How each lets go of running work, context_switch unless given; a kind alone, or with its figures."""
    multiprocessors: Count | None = None
    """Number of streaming multiprocessors, for work given by kernels; that of a known device unless given."""
    price: Priced | None = None
    """What each costs, as 2.5/h or with up and asleep; that under cluster.prices, or nothing, unless given."""
    peak: NamedPeak | None = None
    """Its best rates, for work and profiles: figures or the name of a known device; looked up by type unless given."""

    @field_validator("type", "kind")
    @classmethod
    def _not_cpu(cls, value: str | None) -> str | None:
        if value == "cpu":
            raise ValueError('"cpu" means the cores of a node; an accelerator needs another name')
        return value


class Cpu(Model):
    """The cores of a node, where they differ from the default."""

    type: Name = "cpu"
    """Name of the type of these cores, cpu unless given."""
    speed: Positive = 1.0
    """How many times as fast as the core for which cpu_time is given, 1 unless given."""
    power: PowerSpec = PowerSpec()
    """Watts of each core, 0 unless given."""
    price: Priced | None = None
    """What each core costs, as 0.03/h; that under cluster.prices, or nothing, unless given."""
    peak: NamedPeak | None = None
    """Best rates of a core, for work and profiles: figures or the name of a known device."""

    @field_validator("type")
    @classmethod
    def _not_gpu(cls, value: str) -> str:
        if value == "gpu":
            raise ValueError('"gpu" means the GPUs of a node; a CPU needs another name')
        return value


class Nodes(Model):
    """`count` equal nodes."""

    name: Name | None = None
    """Name of the nodes; of several equal ones a number is added, and without a name they are n0, n1, ..."""
    count: Annotated[Whole, Field(le=1_000_000)] = 1
    """How many equal nodes, 1 unless given."""
    cpus: Annotated[Whole, Field(le=1_000_000)] = 0
    """Cores of each node, none unless given."""
    driver_cores: Annotated[Whole, Field(le=1_000_000)] = 0
    """Cores that drive each accelerator of a node and run no tasks, 0 unless given."""
    memory: Bytes | None = None
    """Host memory of each node; no limit unless given."""
    cpu: Cpu = Cpu()
    """What its cores are, where they differ from the default."""
    gpus: Annotated[list[Accelerator], OneOrMany] = []
    """Its GPUs: one mapping, or a list of them by type."""
    accelerators: Annotated[list[Accelerator], OneOrMany] = []
    """Accelerators that are no GPUs, each with its kind."""
    pcie: Pcie = Pcie()
    """The way of each accelerator to the host; no limit and no latency unless given."""
    network: NodeNetworkSpec = NodeNetworkSpec()
    """The way to all other nodes; no limit and no latency unless given."""
    rack: Name | None = None
    """Name of the rack in which these nodes are; in none unless given."""
    partitions: Annotated[list[Name], Short(lambda v: [v] if isinstance(v, str) else v, {"type": "string"})] = []
    """Partitions (virtual clusters) to which they belong; rules stand under `site`."""
    island: Count | None = None
    """Accelerators that NVLink joins directly, in order."""
    nvlink: Joined | None = None
    """What joins its GPUs, for parallel training: a rate, rate and latency, or a curve; no limit unless given."""
    cards: Count = 1
    """Network cards that share the rate of its network equally, for parallel training; 1 unless given."""
    price: Priced | None = None
    """Of the node as a whole, in addition to those of its devices."""

    @field_validator("accelerators")
    @classmethod
    def _of_a_kind(cls, value: list[Accelerator]) -> list[Accelerator]:
        for accelerator in value:
            if accelerator.kind is None:
                raise ValueError(f'say of which kind "{accelerator.type}" is (kind: npu); GPUs stand under gpus')
        return value


class Racks(Model):
    """Racks of nodes, and the uplinks by which each is joined to the others."""

    nodes: Annotated[Count, Field(le=1_000_000)] | None = None
    """Nodes in a rack, in their order: racks r0, r1, ...; those that name their `rack` themselves unless given."""
    uplink: Annotated[BytesPerSecond, Field(gt=0)] | None = None
    """Bytes per second out of each rack, and as many into it; no limit unless given."""
    uplinks: dict[Name, Annotated[BytesPerSecond, Field(gt=0)]] = {}
    """The same of racks that differ, by name."""
    oversubscription: Positive | None = None
    """How many times the rates of its nodes' networks exceed those of the rack's uplink; in place of uplink."""

    @model_validator(mode="after")
    def _once(self) -> Racks:
        if self.uplink is not None and self.oversubscription is not None:
            raise KeyProblem("oversubscription", "uplink tells the same; give one of them")
        return self


class NodeList(Model):
    """A file that lists the machines; the other keys are those of its reader (`hetsim list clusters`)."""

    model_config = {**Model.model_config, "extra": "allow"}

    format: str
    """Name of the reader of the file; `hetsim list clusters` has all."""
    path: str
    """The file, relative to the scenario."""


class ClusterSpec(Model):
    """The machines: listed here, or read from a file with `trace`."""

    nodes: Annotated[list[Nodes], OneOrMany, Field(min_length=1)]
    """The machines: one mapping, or a list of groups of equal nodes."""
    trace: NodeList | None = None
    """A file that lists the machines, in place of nodes."""
    racks: Racks | None = None
    """Racks and the rates of their uplinks; racks that nodes name, without a limit, unless given."""
    contention: Literal["random", "aligned", "interleaved", "none"] = "random"
    """How phases of jobs that share a link meet: random, aligned (all at once), interleaved, none (no slowdown)."""
    prices: dict[Name, Priced] = {}
    """By type of device, as `price` at the type: for clusters that a file lists."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_trace(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or "trace" not in value:
            return value
        if "nodes" in value:
            raise KeyProblem("trace", "the machines are listed under nodes already; leave one of the two out")
        return {**value, "nodes": listed(value["trace"], (info.context or {}).get("base", "."))}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        found.pop("required", None)
        found["oneOf"] = [{"required": ["nodes"]}, {"required": ["trace"]}]
        return found


def listed(trace: Any, base: str) -> list[dict[str, Any]]:
    """The nodes in the file that a `trace:` names, as they would stand under `nodes`; KeyProblem otherwise."""
    from sim import registry
    from sim.scenario.schema.policy import parameter_model

    if not isinstance(trace, dict) or not isinstance(trace.get("format"), str):
        raise KeyProblem("trace", "expected a mapping with format and path")
    given = {key: value for key, value in trace.items() if key != "format"}
    try:
        reader = registry.entry("clusters", trace["format"])
    except UnknownName as error:
        raise KeyProblem("trace", str(error)) from None
    model = parameter_model(f"nodes {trace['format']}", dict(inspect.signature(reader, eval_str=True).parameters))
    try:
        checked = model.model_validate(given, context={"base": base})
        return reader(**{key: getattr(checked, key) for key in checked.model_fields_set})
    except ScenarioError as error:
        raise KeyProblem("trace", str(error), problems=error.problems) from None
    except ValidationError as error:
        raise KeyProblem("trace", "; ".join(_refused(one, model) for one in error.errors())) from None


def _refused(detail: Any, model: type[BaseModel]) -> str:
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f'unknown key "{key}"{suggestion(key, model.model_fields)}'
    if detail["type"] == "missing":
        return f"the key {key} is missing"
    return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
