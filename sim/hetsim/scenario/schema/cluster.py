"""The `cluster:` part of a scenario: nodes, accelerators, links, power, sharing."""

import inspect
import itertools
import math
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hetsim.errors import KeyProblem, ScenarioError, UnknownName, suggestion
from hetsim.model.bandwidth import BandwidthCurve
from hetsim.model.cluster import PLACES, Disk, NodeSpec
from hetsim.model.device_type import DeviceType, Link, Power, Preemption, Price, Sharing
from hetsim.model.slices import PROFILES, Layout, Slice, arrangements, full_layouts
from hetsim.model.units import Bytes, BytesPerSecond, Count, Degree, Name, Positive, Whole, forbid, is_number, shown
from hetsim.scenario.fields import Keys, Mirror, Model, Names, OneOrMany, Short, keys_of, looked_up, unknown
from hetsim.scenario.file.profile_files import Profiled
from hetsim.workload.costs import roofline
from hetsim.workload.costs.roofline import Peak

Upper = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
Family = Annotated[Literal["A100-40", "A100-80", "H100-80"], Upper]


def _slice(value: Any) -> Any:
    if isinstance(value, str) or (is_number(value) and value > 0):
        return value
    raise ValueError(f"must be a share of the GPU or the name of a profile; got {shown(value)}")


class MigLayout(Model):
    """One MIG layout of a GPU; a list of slices is its short form."""

    slices: Annotated[list[Annotated[float | str, BeforeValidator(_slice)]], Field(min_length=1)]
    """Shares of one GPU, or names of profiles: [0.5, 0.25, 0.25], [3g.20gb, 2g.10gb, 2g.10gb]."""
    memory: list[Annotated[Bytes, Field(gt=0)]] | None = None
    """Memory of each slice. Default: in proportion to its share."""
    positions: list[Whole] | None = None
    """For profiles: the first memory slice (0 to 7) of each profile. Default: all that NVIDIA allows."""

    def cuts(self, family: Family | None) -> list[Layout]:
        """Return all arrangements of the profiles on a GPU; KeyProblem if there are none."""
        shapes, slices = PROFILES.get(family or "", {}), self.slices
        for key, values in (("memory", self.memory), ("positions", self.positions)):
            if values is not None and (key == "memory") == bool(family):
                raise KeyProblem(key, "memory is for shares of the GPU, positions for MIG profiles; leave this key out")
            if values is not None and len(values) != len(slices):
                raise KeyProblem(key, f"must have a value for each of {len(slices)} slices; got {len(values)}")
        for one in slices:
            if family is None and isinstance(one, str):
                text = f"{one} is not a share; profiles by name need the GPU (profiles: {', '.join(PROFILES)})"
                raise KeyProblem("slices", text)
            if family is not None and one not in shapes:
                raise KeyProblem("slices", unknown(UnknownName(f"profile of an {family}", str(one), shapes)))
        if family is None:
            if sum(map(float, slices)) > 1 + 1e-6:
                text = f"the slices of a layout must be shares with a sum of at most 1; got {slices}"
                raise KeyProblem("slices", text)
            return [tuple(map(Slice, map(float, slices), self.memory or [0] * len(slices)))]
        wanted = Counter(slices if self.positions is None else zip(slices, self.positions, strict=True))
        layouts = [
            layout for layout in arrangements(family) if wanted == Counter(
                one.profile if self.positions is None else (one.profile, one.position) for one in layout)
        ]  # fmt: skip
        if not layouts:
            starts = (f"{one} may start at {', '.join(map(str, shapes[str(one)][2]))}" for one in dict.fromkeys(slices))
            text = f"slices must not overlap and must start at allowed positions ({'; '.join(starts)})"
            raise KeyProblem("slices" if self.positions is None else "positions", text)
        return layouts


Cutting = Annotated[MigLayout, Short(lambda v: {"slices": v} if isinstance(v, list) else v, {"type": "array"})]


def cuts_of(layouts: list[MigLayout] | None, family: Family | None, memory: int | None = None) -> tuple[Layout, ...]:
    """Return all MIG layouts of a GPU; a wrong one raises KeyProblem (key `sharing`)."""
    every: list[Layout] = [] if layouts else list(full_layouts(family)) if family else [(Slice(1.0),)]
    for number, layout in enumerate(layouts or [None]):
        try:
            every += [] if layout is None else layout.cuts(family)
            total = max(sum(one.bytes_of(memory) for one in cut) for cut in every)
            if memory is not None and total > memory + 9:  # rounded
                text = f"the slices have {total / 1e9:g} GB in all, but the GPU has {memory / 1e9:g} GB"
                raise KeyProblem("memory" if layout and layout.memory else "slices", text)
        except KeyProblem as problem:
            inside = ("profiles",) if layout is None else ("layouts", number, problem.key)
            raise KeyProblem("sharing", str(problem), inside) from None
    return tuple(dict.fromkeys(every))


# Peak rates of a device for the cost model: figures, or the name of a known device.
NamedPeak = Annotated[
    Peak,
    Short(lambda value: looked_up(roofline.device, value) if isinstance(value, str) else value,
          {"type": "string", "enum": sorted(roofline.DEVICES)}),
]  # fmt: skip


KIND = Short(lambda value: {"kind": value} if isinstance(value, str) else value, {"type": "string"})
Powered = Annotated[Power, Keys(Power)]
Preempted = Annotated[Preemption, Keys(Preemption), KIND]
Priced = Annotated[
    Price, Keys(Price), Short(lambda v: v if isinstance(v, dict | Price) else {"up": v}, {"type": ["string", "number"]})
]


@keys_of(Sharing)
class SharingSpec(Mirror):
    """Sharing of an accelerator by several launches; `sharing: mps` is a short form."""

    layouts: Annotated[list[Cutting], Field(min_length=1)] | None = None
    """For mig: the layouts that a GPU can have, each a list of shares or profiles, or a mapping that also gives the
    slices' memory or positions. Default: the whole GPU as one slice; with profiles, all that they allow.
    """
    profiles: Family | None = None
    """For mig: the GPU whose profiles (1g.5gb, ...) are used: A100-40, A100-80 or H100-80."""
    pairs: dict[str, dict[str, Positive | None]] = {}
    """Slowdown (time with partner / time alone) by class, then by class of the partner; null if they cannot share."""

    def _check_keys(self) -> None:
        if self.pairs and self.kind not in ("timeslice", "mps"):
            raise KeyProblem("pairs", f"pairs need sharing timeslice or mps; got {self.kind}")

    def cut(self) -> Sharing:
        """Return the `Sharing`, with MIG layouts and pairs (class, other class, slowdown)."""
        rows = ((one, *row) for one, others in self.pairs.items() for row in others.items())
        pairs = tuple((one, other, math.inf if slower is None else slower) for one, other, slower in rows)
        return self.made(layouts=cuts_of(self.layouts, self.profiles), pairs=pairs)


Linked = Annotated[Link, Keys(Link)]


@keys_of(Link)
class Switch(Mirror):
    """A PCIe switch, whose bandwidth `size` accelerators share."""

    size: Count
    """Number of consecutive accelerators behind one switch that share its bandwidth."""


@keys_of(Link)
class Pcie(Profiled):
    """The PCIe path of each accelerator: rates, a switch, or a measured `profile`."""

    SECTION: ClassVar = "pcie"

    switch: Switch | None = None
    """The PCIe switch that several accelerators share. Default: none."""


Flowing = Annotated[BytesPerSecond, Field(gt=0)]
CurveRow = tuple[Annotated[Bytes, Field(gt=0)], Flowing]
Curve = Annotated[list[CurveRow], Field(min_length=1, max_length=1000)]


def _check_curve(curve: list[tuple[int, float]] | None) -> None:
    for number, ((size, rate), (larger, faster)) in enumerate(itertools.pairwise(curve or []), 1):
        if larger <= size:
            text = f"sizes must increase; {larger:,} B follows {size:,} B"
            raise KeyProblem("curve", text, number)
        if faster < rate:
            text = f"the curve falls from {rate / 1e9:.4g} GB/s at {size:,} B to {faster / 1e9:.4g} GB/s"
            raise KeyProblem("curve", f"{text} at {larger:,} B; larger messages are never slower", number)


def bandwidth_curve(curve: list[tuple[int, float]] | None) -> BandwidthCurve | None:
    return None if curve is None else BandwidthCurve(*(tuple(map(float, one)) for one in zip(*curve, strict=True)))


@keys_of(Link, "latency")
class GpuLink(Profiled):
    """NVLink or similar between the GPUs of a node: a rate, or a curve."""

    SECTION: ClassVar = "nvlink"
    FIRST: ClassVar = ("rate", "curve")

    rate: Flowing | None = None
    """Bus bandwidth per GPU in one direction that collective operations achieve."""
    curve: Curve | None = None
    """Bus bandwidth by message size, in place of rate: [[1 MB, 40 GB/s], [1 GB, 230 GB/s]]; interpolated log-log."""

    def _check_keys(self) -> None:
        if (self.rate is None) == (self.curve is None):
            text = "give a rate or a curve" if self.rate is None else "rate and curve exclude each other; give one"
            raise KeyProblem("rate", text)
        if self.curve is not None and self.latency:
            raise KeyProblem("latency", "the curve contains latencies; leave latency out")
        _check_curve(self.curve)

    def link(self) -> Link:
        curve = bandwidth_curve(self.curve)
        return self.made(upload=self.rate if curve is None else curve.top, curve=curve)


Joined = Annotated[GpuLink, Short(lambda v: v if isinstance(v, dict) else {"rate": v}, {"type": "string"})]


@keys_of(Link, "latency", "duplex")
class NodeNetworkSpec(Profiled):
    """A node's network: `out` and `in` (upload, download), or a curve."""

    SECTION: ClassVar = "network"
    FIRST: ClassVar = ("curve", "out", "in", "upload", "download")

    curve: Curve | None = None
    """Bus bandwidth by message size, in place of out and in: [[1 MB, 9 GB/s], [1 GB, 90 GB/s]]; it must rise."""
    out: BytesPerSecond | None = None
    """Bytes per second from this node to others. Default: the rate of in; no limit if in is missing, too."""
    into: BytesPerSecond | None = Field(None, alias="in")
    """Bytes per second from others to this node. Default: the rate of out; no limit if out is missing, too."""
    upload: BytesPerSecond | None = None
    """Another name of the key `out`."""
    download: BytesPerSecond | None = None
    """Another name of the key `in`."""

    def _check_keys(self) -> None:
        for first, second, words in (
            (self.out, self.upload, "out and upload"),
            (self.into, self.download, "in and download"),
        ):
            if first is not None and second is not None:
                raise ValueError(f"{words} are the same key; give one of them")
        if 0 in (self.out, self.into, self.upload, self.download):
            raise ValueError("a bandwidth must be above 0")
        if self.curve is not None:
            if given := [key for key in ("out", "into", "upload", "download", "latency") if getattr(self, key)]:
                key = "in" if given[0] == "into" else given[0]
                raise KeyProblem(key, "a curve has rates and latencies; leave one of the two out")
            _check_curve(self.curve)

    def link(self) -> Link:
        curve = bandwidth_curve(self.curve)
        out, into = ((self.out, self.into) if curve is None else (curve.top, curve.top))
        rates = {"upload": self.upload if out is None else out, "download": self.download if into is None else into}
        return self.made(**rates, curve=curve)


@keys_of(DeviceType, streams=Degree, power=Powered, preemption=Preempted, price=Priced, peak=NamedPeak | None)
class Accelerator(Mirror):
    """`count` equal accelerators of a node."""

    FIRST: ClassVar = ("type", "count", "kind")

    type: Name
    """Name of the type, such as v100; tasks and tables use it."""
    count: Annotated[Whole, Field(le=10_000)] = 1
    """Number of these accelerators on each node."""
    pcie: Linked | None = None
    """The accelerator's link to the host. Default: the node's pcie."""
    sharing: Annotated[SharingSpec, KIND] = SharingSpec.model_validate({"kind": "exclusive"})
    """Sharing of each accelerator by several launches: a kind, or a mapping with its parameters."""

    def _check_keys(self) -> None:
        cuts_of(self.sharing.layouts, self.sharing.profiles, self.memory)

    @field_validator("type", "kind")
    @classmethod
    def _not_cpu(cls, value: str | None) -> str | None:
        if value == "cpu":
            raise ValueError('"cpu" means the cores of a node; an accelerator needs another name')
        return value


_NO_CPU = '"gpu" means the GPUs of a node; a CPU needs another name'


@keys_of(DeviceType, "speed", "power", "price", "peak", power=Powered, price=Priced, peak=NamedPeak | None)
class Cpu(Mirror):
    """Properties of a node's cores."""

    FIRST: ClassVar = ("type",)

    type: "Annotated[Name, forbid(lambda name: name == 'gpu', _NO_CPU)]" = "cpu"
    """Name of the type of these cores."""


Many = Annotated[Whole, Field(le=1_000_000)]


@keys_of(NodeSpec, cpus=Many, count=Many, driver_cores=Many, price=Priced, partitions=Names, nvlink=Joined,
         network=NodeNetworkSpec, disk=Annotated[Disk, Keys(Disk, read=Flowing)] | None)  # fmt: skip
class Nodes(Mirror):
    """`count` equal nodes."""

    FIRST: ClassVar = ("name", "count", "cpus", "driver_cores", "memory")

    cpu: Cpu = Cpu()
    """Properties of the node's cores, if they differ from the default."""
    gpus: Annotated[list[Accelerator], OneOrMany] = []
    """GPUs of the node: one mapping, or a list of them by type."""
    accelerators: Annotated[list[Accelerator], OneOrMany] = []
    """Accelerators other than GPUs, each with its kind."""
    pcie: Pcie = Pcie()
    """The path from each accelerator to the host."""

    @field_validator("accelerators")
    @classmethod
    def _of_a_kind(cls, value: list[Accelerator]) -> list[Accelerator]:
        for accelerator in value:
            if accelerator.kind is None:
                raise ValueError(f'the accelerator "{accelerator.type}" needs a kind (kind: npu); list GPUs under gpus')
        return value


class Store(Model):
    """Storage outside the nodes that holds models, such as object storage."""

    name: Annotated[Name, forbid(lambda name: name in PLACES, "{} is a place of the nodes; give another name")]
    """Name that services refer to (`from`)."""
    out: Flowing
    """Bytes per second that the store sends, shared by all nodes."""


class Racks(Model):
    """Racks of nodes, and their uplinks to the other racks."""

    nodes: Degree | None = None
    """Nodes per rack, assigned in order to racks r0, r1 and so on. Default: the racks that nodes name (`rack`)."""
    uplink: Flowing | None = None
    """Bytes per second out of each rack, and the same rate into it. Default: no limit."""
    uplinks: dict[Name, Flowing] = {}
    """Uplink rates of single racks, by name, if they differ."""
    oversubscription: Positive | None = None
    """Sum of the network rates of a rack's nodes divided by the rate of its uplink; in place of uplink."""

    def _check_keys(self) -> None:
        if self.uplink is not None and self.oversubscription is not None:
            raise KeyProblem("oversubscription", "oversubscription and uplink both define the uplink; give one of them")


class NodeList(Model):
    """A file that lists the nodes, with the keys of its reader."""

    model_config = {**Model.model_config, "extra": "allow"}

    format: str
    """Name of the file's reader; `hetsim list clusters` lists all."""
    path: str
    """File that lists the nodes, relative to the scenario."""


class ClusterSpec(Model):
    """The machines: listed in the scenario, or read from a file with `trace`."""

    nodes: Annotated[list[Nodes], OneOrMany, Field(min_length=1)]
    """The machines: one mapping, or a list of groups of equal nodes."""
    trace: NodeList | None = None
    """A file that lists the machines, in place of nodes."""
    racks: Racks | None = None
    """Racks and the rates of their uplinks. Default: the racks that nodes name, without limits."""
    stores: Annotated[list[Store], OneOrMany] = []
    """Stores from which replicas load models over the network."""
    contention: Literal["random", "aligned", "interleaved", "none"] = "random"
    """How communication phases of jobs on a shared link overlap: random, aligned (all at once), interleaved, none (no
    slowdown)."""
    prices: dict[Name, Priced] = {}
    """Prices by type of device, like the key `price` of a type; for clusters that a file lists."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_trace(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or "trace" not in value:
            return value
        if "nodes" in value:
            raise KeyProblem("trace", "nodes and trace both list machines; leave one of the two out")
        return {**value, "nodes": listed(value["trace"], (info.context or {}).get("base", "."))}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        resolved = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        resolved.pop("required", None)
        resolved["oneOf"] = [{"required": ["nodes"]}, {"required": ["trace"]}]
        return resolved


def listed(trace: Any, base: str) -> list[dict[str, Any]]:
    """Return the nodes in the file of the key `trace`, in the form of the key `nodes`."""
    from hetsim import registry
    from hetsim.scenario.schema.policy import parameter_model

    if not isinstance(trace, dict) or not isinstance(trace.get("format"), str):
        raise KeyProblem("trace", "must be a mapping with format and path")
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
