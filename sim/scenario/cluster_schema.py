"""The `cluster:` part of a scenario: nodes, accelerators, links, power, and ways of sharing."""

from __future__ import annotations

import inspect
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
from sim.model.units import Bytes, BytesPerSecond, Fraction, Seconds, Watts
from sim.scenario.fields import Count, KeyProblem, Model, Name, NotNegative, OneOrMany, Positive, Short, Whole, unknown
from sim.scenario.profile_files import included
from sim.workload import roofline
from sim.workload.roofline import Peak


def _peak(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return roofline.device(value)
    except UnknownName as error:
        raise ValueError(unknown(error)) from None


NamedPeak = Annotated[Peak, Short(_peak, {"type": "string", "enum": sorted(roofline.DEVICES)})]
"""What the cost model knows of a device: figures, or the name of a known device."""


class Power(Model):
    """Watts of a device (of a CPU: of one core) and its wake-up delay."""

    idle: Watts = 0.0
    busy: Watts = 0.0
    sleep: Watts = 0.0
    wake: Seconds = 0.0


class Sharing(Model):
    """How an accelerator serves several launches; `sharing: mps` alone is the kind."""

    kind: Literal["exclusive", "timeslice", "mps", "mig"]
    switch_cost: Fraction = 0.0
    interference: NotNegative = 0.0
    layouts: list[list[Positive]] = Field(default=[[1.0]], min_length=1)
    reconfigure: Seconds = 0.0

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


class Preemption(Model):
    """How an accelerator lets go of what it computes; `preemption: drain` alone is the kind."""

    kind: Literal["context_switch", "drain", "flush", "flep"]
    rate: BytesPerSecond | None = None
    overhead: Fraction = 0.0

    @model_validator(mode="after")
    def _belongs(self) -> Preemption:
        if self.rate is not None and self.kind != "context_switch":
            raise KeyProblem("rate", "state is saved only by context_switch")
        if self.rate == 0:
            raise KeyProblem("rate", "a rate must be above 0")
        if self.overhead and self.kind != "flep":
            raise KeyProblem("overhead", "only flep slows its kernels down all the time")
        if self.overhead < 0:
            raise KeyProblem("overhead", "must not be negative")
        return self


class Link(Model):
    """Bandwidth per direction; a direction that is not given has that of the other."""

    upload: BytesPerSecond | None = None
    download: BytesPerSecond | None = None
    latency: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"

    @field_validator("upload", "download")
    @classmethod
    def _above_zero(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("a bandwidth must be above 0")
        return value


class Switch(Link):
    """A PCIe switch: `size` accelerators behind each, sharing its bandwidth."""

    size: Count


class Pcie(Link):
    """The way of each accelerator to its host, and the switch it may share; or a measured `profile` of the way."""

    profile: str | None = None
    switch: Switch | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        return included(value, "pcie", cls, info)


class Network(Model):
    """A node's way to all others; `out` and `in`, or the same as upload and download."""

    out: BytesPerSecond | None = None
    into: BytesPerSecond | None = Field(None, alias="in")
    upload: BytesPerSecond | None = None
    download: BytesPerSecond | None = None
    latency: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"

    @model_validator(mode="after")
    def _once(self) -> Network:
        for first, second, words in (
            (self.out, self.upload, "out and upload"),
            (self.into, self.download, "in and download"),
        ):
            if first is not None and second is not None:
                raise ValueError(f"{words} mean the same; give one of them")
        if 0 in (self.out, self.into, self.upload, self.download):
            raise ValueError("a bandwidth must be above 0")
        return self


class Accelerator(Model):
    """`count` equal accelerators of a node."""

    type: Name
    count: Annotated[Whole, Field(le=10_000)] = 1
    kind: Name | None = None
    speed: Positive = 1.0
    memory: Bytes | None = None
    streams: Annotated[Count, Field(le=1_000_000)] = 1
    pcie: Link | None = None
    sharing: Annotated[Sharing, Short(lambda v: {"kind": v} if isinstance(v, str) else v, {"type": "string"})] = (
        Sharing(kind="exclusive")
    )
    power: Power = Power()
    preemption: Annotated[Preemption, Short(lambda v: {"kind": v} if isinstance(v, str) else v, {"type": "string"})] = (
        Preemption(kind="context_switch")
    )
    multiprocessors: Count | None = None
    peak: NamedPeak | None = None

    @field_validator("type", "kind")
    @classmethod
    def _not_cpu(cls, value: str | None) -> str | None:
        if value == "cpu":
            raise ValueError('"cpu" means the cores of a node; an accelerator needs another name')
        return value


class Cpu(Model):
    """The cores of a node, where they differ from the default."""

    type: Name = "cpu"
    speed: Positive = 1.0
    power: Power = Power()
    peak: NamedPeak | None = None

    @field_validator("type")
    @classmethod
    def _not_gpu(cls, value: str) -> str:
        if value == "gpu":
            raise ValueError('"gpu" means the GPUs of a node; a CPU needs another name')
        return value


class Nodes(Model):
    """`count` equal nodes."""

    name: Name | None = None
    count: Annotated[Whole, Field(le=1_000_000)] = 1
    cpus: Annotated[Whole, Field(le=1_000_000)] = 0
    memory: Bytes | None = None
    cpu: Cpu = Cpu()
    gpus: Annotated[list[Accelerator], OneOrMany] = []
    accelerators: Annotated[list[Accelerator], OneOrMany] = []
    pcie: Pcie = Pcie()
    network: Network = Network()
    rack: Name | None = None
    island: Count | None = None
    """Accelerators that NVLink joins directly, in order."""

    @field_validator("accelerators")
    @classmethod
    def _of_a_kind(cls, value: list[Accelerator]) -> list[Accelerator]:
        for accelerator in value:
            if accelerator.kind is None:
                raise ValueError(f'say of which kind "{accelerator.type}" is (kind: npu); GPUs stand under gpus')
        return value


class NodeList(Model):
    """A file that lists the machines; the other keys are those of its reader (`hetsim list clusters`)."""

    model_config = {**Model.model_config, "extra": "allow"}

    format: str
    path: str


class Cluster(Model):
    """The machines: listed here, or read from a file with `trace`."""

    nodes: Annotated[list[Nodes], OneOrMany, Field(min_length=1)]
    trace: NodeList | None = None

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
        found = handler.resolve_ref_schema(handler(schema))
        found.pop("required", None)
        found["oneOf"] = [{"required": ["nodes"]}, {"required": ["trace"]}]
        return found


def listed(trace: Any, base: str) -> list[dict[str, Any]]:
    """The nodes in the file that a `trace:` names, as they would stand under `nodes`; KeyProblem otherwise."""
    from sim import registry
    from sim.scenario.policy_schema import parameter_model

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
        raise KeyProblem("trace", "\n".join(map(str, error.problems))) from None
    except ValidationError as error:
        raise KeyProblem("trace", "; ".join(_refused(one, model) for one in error.errors())) from None


def _refused(detail: Any, model: type[BaseModel]) -> str:
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f'unknown key "{key}"{suggestion(key, model.model_fields)}'
    if detail["type"] == "missing":
        return f"the key {key} is missing"
    return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
