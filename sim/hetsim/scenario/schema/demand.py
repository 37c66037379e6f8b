"""The demand of a task: times, devices, memory, data, limits, estimates."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from hetsim.errors import KeyProblem
from hetsim.model.demand import SpanSpeeds, Stopping
from hetsim.model.units import (
    Bytes,
    Count,
    Degree,
    Flag,
    Fraction,
    Name,
    NotNegative,
    Number,
    Positive,
    Seconds,
    Share,
    forbid,
)
from hetsim.scenario.fields import (
    MAPPING,
    VALUE,
    VALUE_OR_MAPPING,
    Keys,
    Mirror,
    Model,
    OneOrMany,
    Short,
    SomeNames,
    keys_of,
    looked_up,
)
from hetsim.scenario.schema.training import Communication, TrainingSpec
from hetsim.workload.costs import profiles
from hetsim.workload.costs.roofline import Work
from hetsim.workload.distributions import BytesDistribution, NumberDistribution, StepCount, TimeDistribution

_FEW_TOKENS = "a request must have at least one token; got {0.mean:g} on average"
Amount = Annotated[NumberDistribution, forbid(lambda tokens: tokens.mean < 1, _FEW_TOKENS)]


class Tokens(Model):
    """Numbers of tokens of prompt and answer, at least one each."""

    prompt: Amount
    """Tokens of the prompt, a number or a distribution."""
    output: Amount
    """Tokens of the answer, a number or a distribution."""


GPU_TIME = "gpu_time."


class Speedup(Model):
    """`{speedup: 24}`: 24 times the time that was drawn for the reference mode."""

    speedup: Positive
    """Factor on the time drawn for the reference mode: 24 means 24 times as long, not as fast."""


Time = Annotated[
    Annotated[TimeDistribution, Tag("<distribution>")] | Annotated[Speedup, Tag("<speedup>")],
    Discriminator(
        lambda v: "<speedup>" if isinstance(v, Speedup) or isinstance(v, dict) and "speedup" in v else "<distribution>"
    ),
]


_BROKEN_GPUS = "must be a share of one GPU below 1, or whole GPUs; got {:g}"


class Factor(Model):
    """`slo: {factor: 3}`: three times the task's fastest time."""

    factor: Positive
    """The limit is the fastest time of the task, in any of its modes, times this factor."""


def seconds_of(limit: float | Factor | None, fastest: np.ndarray) -> np.ndarray | None:
    """Return each task's limit in seconds; a factor multiplies its `fastest` time."""
    if limit is None:
        return None
    return limit.factor * fastest if isinstance(limit, Factor) else np.full(len(fastest), float(limit))


_NO_LIMIT = "a time limit must be above 0; leave it out if there is none"
_NO_TYPE = "gpu_time. must have the name of a GPU type after the dot"
Limit = Annotated[Annotated[Seconds, VALUE] | Annotated[Factor, MAPPING], VALUE_OR_MAPPING]


@keys_of(Stopping)
class StoppingSpec(Mirror):
    """Costs of stopping and resuming a task (`hetsim.model.demand.Stopping`)."""

    preemptible: Flag = True
    """Allow policies to stop the task."""


def _unit_mean(value: Any) -> Any:
    if isinstance(value, dict) and "distribution" in value and "cv" in value and "mean" not in value:
        return {**value, "mean": 1}
    return value


class Estimates(Model):
    """Times that policies see: true time × a random `error` × a constant `factor`."""

    basis: Literal["time", "mean"] = "time"
    """What error and factor multiply: each task's own time (time), or the mean time of its class (mean)."""
    error: Annotated[NumberDistribution, Short(_unit_mean, {"type": "object"})] | None = None
    """Random factor on the true time, a distribution; if it has cv but no mean, its mean is 1. Default: none."""
    factor: Positive = 1.0
    """Constant factor on the true time."""


class User(Model):
    """One of several users and its share of the arrivals."""

    name: Name
    """Name of the user."""
    weight: NotNegative = 1.0
    """Share of the arrivals, relative to the other users."""


class Users(Model):
    """`count` users u0, u1, ...; `zipf: s`: shares are proportional to k^-s."""

    count: Degree
    """Number of users, named u0, u1 and so on."""
    zipf: NotNegative = 0.0
    """Exponent s of shares proportional to k^-s; 0: all users have equal shares."""


def _users(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if isinstance(value, list):
        return [{"name": one} if isinstance(one, str | int) else one for one in value]
    return value


_UserList = Annotated[list[User], Field(min_length=1), VALUE]
UserMix = Annotated[
    Annotated[_UserList | Annotated[Users, MAPPING], VALUE_OR_MAPPING], Short(_users, {"type": "integer"})
]  # fmt: skip


Speeds = Annotated[SpanSpeeds, Keys(SpanSpeeds)]


class PartitionColumn(Model):
    """Partition by the value in a column: `{column: vc, names: {11cb48: research}}`."""

    column: Name = "partition"
    """Column of the trace with the name of the partition; may also be user or class."""
    names: dict[str, Name] = {}
    """Partition by value of the column; a value that is not listed is itself the name of a partition."""
    others: Name | None = None
    """Partition of tasks with any other value. Default: none; they are rejected."""


PartitionOf = Annotated[Annotated[Name, VALUE] | Annotated[PartitionColumn, MAPPING], VALUE_OR_MAPPING]


class Occupied(Model):
    """Resources that a launch occupies: keys of modes, tasks and service variants."""

    USED: ClassVar = {"gpus": 1.0, "memory": 0}

    cpus: NotNegative | None = None
    """Cores used. Default: 1 for a mode on cores, 0 for a mode on GPUs."""
    gpus: Annotated[Positive, forbid(lambda gpus: gpus > 1 and gpus != int(gpus), _BROKEN_GPUS)] | None = None
    """GPUs used by a mode on GPUs: a whole number, or a share of one GPU below 1."""
    memory: Bytes | None = None
    """Host memory used."""
    gpu_memory: Bytes | None = None
    """Memory used on each GPU. Default: that of the task's profile, or nothing without a profile."""


class Held(Occupied):
    """Needs of a mode or task: resources, and what its times are computed from."""

    USED: ClassVar = {
        "batch": profiles.BATCH, "steps": profiles.STEPS, "efficiency": profiles.EFFICIENCY, "nodes": 1,
        "span_speed": 1.0, "upload": 0.0, "download": 0.0,
    }  # fmt: skip

    work: Work | None = None
    """Operations and bytes, from which times are computed for each type of device."""
    profile: Annotated[Name, AfterValidator(lambda name: looked_up(profiles.profile, name) and name)] | None = None
    """Name of a built-in job profile, such as cnn_training, from which times are computed."""
    batch: Annotated[Count, Field(le=10**9)] | None = None
    """Batch size: number of items that each step of the job profile processes."""
    steps: StepCount | None = None
    """Number of steps of the job profile: a whole number, or a distribution whose values are rounded."""
    efficiency: Share | None = None
    """Share of a device's peak rates that the profile reaches."""
    nodes: Degree | None = None
    """Number of nodes of a job; cpus, gpus and memory are then those on each."""
    slice: Name | None = None
    """Profile of the MIG slice used, such as 2g.20gb, in place of gpus. Default: any slice large enough."""
    span_speed: Annotated[Positive, Field(le=1)] | None = None
    """Speed of a gang that spans several nodes, relative to one node."""
    span_speeds: Speeds | None = None
    """Speed of a gang by the smallest unit that contains all its devices: island, switch, node, rack, cluster."""
    upload: Seconds | None = None
    """Time of the upload if no other transfer uses the link."""
    download: Seconds | None = None
    """Time of the download if no other transfer uses the link."""


class TaskMode(Held):
    """One mode in full: devices, time (or its source), and resources."""

    FIRST: ClassVar = ("device", "time")
    USED: ClassVar = {"span": "node"}

    device: Name
    """Type or kind of device on which this mode runs, such as cpu, gpu or v100."""
    time: Time | None = None
    """Time on an idle device: a quantity, a distribution, or a speedup relative to the first mode."""
    name: Name | None = None
    """Name of the mode in tables. Default: derived from the device."""
    span: Literal["node", "any"] | None = None
    """node (all on one node) or any (cores or GPUs of several nodes)."""

    def _check_keys(self) -> None:
        given = [key for key in ("time", "work", "profile") if getattr(self, key) is not None]
        if len(given) != 1:
            both = f", not {' and '.join(given)}" if given else ""
            raise ValueError(f"a mode needs one of time, work and profile{both}")
        for first, second in (("span_speed", "span_speeds"), ("gpus", "slice")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{first} and {second} exclude each other; give one of them")
        _check_profile_keys(self)
        _check_share(self.work, self.gpus)
        check_nodes(self, self.device == "cpu")

    def within(self, demand: Demand) -> TaskMode:
        """Return the mode, with missing keys inherited from a task's demand."""
        said = {key for key in Held.model_fields.keys() | {"span"} if getattr(self, key) is not None}
        inherited = {key: getattr(demand, key) for key, other in INHERITED.items() if not said & {key, other}}
        inherited["gpus"] = self.gpus or demanded_share(self.work) or demand.gpus
        complete = self.model_copy(update=inherited)
        if complete.gpu_memory is None and complete.profile is not None:
            return complete.model_copy(update={"gpu_memory": profile_use(complete).gpu_memory})
        return complete


def check_nodes(demand: TaskMode | Demand, on_cores: bool) -> None:
    """Raise KeyProblem for keys that conflict with the key `nodes`."""
    nodes = demand.nodes
    if nodes is None or nodes == 1:
        return
    if demand.span is not None:
        text = f"nodes: {nodes} and span: {demand.span} both state the number of nodes; leave one out"
        raise KeyProblem("span", text)
    if demand.gpus is not None and demand.gpus < 1:
        raise KeyProblem("gpus", f"a gang over {nodes} nodes must use whole GPUs; got {demand.gpus:g} of a GPU")
    if demand.slice is not None:
        raise KeyProblem("slice", f"a gang over {nodes} nodes must use whole GPUs; got a slice")
    if getattr(demand, "scaling", None) is not None:
        raise KeyProblem("scaling", f"scaling is for GPUs of one node, but the job is on {nodes} nodes; use modes")
    if on_cores and demand.cpus is not None and demand.cpus != int(demand.cpus):
        raise KeyProblem("cpus", f"a gang over {nodes} nodes must use whole cores; got {demand.cpus:g} on each")


def _check_profile_keys(demand: TaskMode | Demand, elsewhere: bool = False) -> None:
    for name in ("batch", "steps", "efficiency"):
        if getattr(demand, name) is not None and demand.profile is None and not elsewhere:
            raise KeyProblem(name, "the key needs a profile")


def demanded_share(work: Work | None) -> float | None:
    """Return the share of a GPU's multiprocessors that the work states, or None."""
    return work.share if work is not None and "share" in work.model_fields_set else None


def _check_share(work: Work | None, gpus: float | None, scaling: Any = None) -> None:
    share = demanded_share(work)
    if share is not None and scaling is not None:
        raise KeyProblem("scaling", "work with a share of one GPU cannot have scaling")
    if share is not None and gpus is not None and share != gpus:
        raise KeyProblem("gpus", f"gpus must equal share ({share:g}) of the work, or be left out; got {gpus:g}")


class Drift(Model):
    """Random variation of speed between runs; each replication has one factor."""

    cv: Annotated[Fraction, Field(ge=0, le=1)] = 0.0
    """Coefficient of variation of the lognormal factor on all times, or on all steps of a service."""
    mean: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Mean factor: with 1.05 all times, or steps, are on average 5 % longer."""

    def factor(self, generator: np.random.Generator) -> float:
        variance = math.log1p(self.cv**2)
        return self.mean * math.exp(generator.normal(-variance / 2, math.sqrt(variance)))


class Demand(Held):
    """Needs of a task: keys of a workload entry, or of a class, which have precedence."""

    FIRST: ClassVar = ("class", "gpu_time", "gpu_time.*", "cpu_time", "modes", "scaling")
    USED: ClassVar = {"span": "node", "priority": 0.0, "estimates": "exact"}

    class_: Name | None = Field(None, alias="class")
    """Name of the class, for tables and policies. Default: the entry's name."""
    gpu_time: TimeDistribution | None = None
    """Time on a GPU of speed 1: a quantity or a distribution."""
    typed_gpu_time: Annotated[dict[str, TimeDistribution], forbid(lambda times: GPU_TIME in times, _NO_TYPE)] = Field(
        default={}, alias="gpu_time.*"
    )
    """Time on a GPU of this type (gpu_time.v100), whatever its speed: a quantity or a distribution."""
    cpu_time: Time | None = None
    """Time on a core of speed 1: a quantity, a distribution, or a speedup relative to the GPU time."""
    modes: Annotated[list[TaskMode], OneOrMany, Field(min_length=1)] | None = None
    """All modes in which a task can run, in full; in place of gpu_time, cpu_time and scaling."""
    scaling: dict[str, Positive] | None = None
    """Speed-up by number of GPUs, such as {1: 1, 2: 1.9}: one mode for each number."""
    drift: Drift | None = None
    """Factor on all times of these tasks, drawn for each class once a replication. Default: none."""
    training: TrainingSpec | None = None
    """Parallel training of a transformer, from which times and memory are computed for the GPUs of the job."""
    communication: Communication | None = None
    """Communication among the ranks of a job, which lengthens its times. Default: none."""
    devices: SomeNames | None = None
    """Types and kinds of devices for which `work`, `profile` or `training` is computed. Default: all with a known
    peak."""
    span: Literal["node", "any", "recorded"] | None = None
    """node (all on one node), any (cores or GPUs of several nodes), recorded (as in the trace)."""
    bytes_in: BytesDistribution | None = None
    """Bytes to upload before computing on an accelerator. Default: none."""
    bytes_out: BytesDistribution | None = None
    """Bytes to download at the end. Default: none."""
    deadline: Limit | None = None
    """Another name of slo."""
    slo: Limit | None = None
    """Time from arrival within which a task should complete, or a multiple of its fastest time. Default: none."""
    patience: TimeDistribution | None = None
    """Time after which a waiting task gives up, a quantity or a distribution. Default: never."""
    priority: Number | None = None
    """Priority for policies that use it; tasks of a higher value are first."""
    partition: PartitionOf | None = None
    """Partition in which the tasks must run, or the column of a trace that names it."""
    time_limit: Annotated[Limit, forbid(lambda limit: limit == 0, _NO_LIMIT)] | None = None
    """Maximum time for which a task may occupy its devices, or a multiple of its fastest time: `{factor: 2}`."""
    qos: Name | None = None
    """Quality of service, for slurm_multifactor."""
    account: Name | None = None
    """Account, for partitions and for policies that share by account."""
    user: Name | None = None
    """The user that these tasks belong to."""
    users: UserMix | None = None
    """Several users: their number, or a list with weights."""
    estimates: Annotated[Estimates, Short(lambda v: {} if v == "exact" else v, {"const": "exact"})] | None = None
    """Time estimates that policies see: exact, or true time × random error × constant factor."""
    stopping: StoppingSpec | None = None
    """Costs of stopping and resuming. Default: stops cost nothing and keep all work."""
    reads: list[Name] | None = None
    """Names of data items that must be on the device before the task computes."""
    writes: list[Name] | None = None
    """Names of data items that the task produces."""
    tokens: Tokens | None = None
    """Lengths of prompts and answers, for requests to a language model."""
    ttft: Annotated[Seconds, Field(gt=0)] | None = None
    """Limit on the time to the first token of these requests, in place of that of the language model (`slo`)."""
    tpot: Annotated[Seconds, Field(gt=0)] | None = None
    """Limit on the mean time per further token of these requests, in place of that of the language model."""

    @model_validator(mode="before")
    @classmethod
    def _gather_types(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        typed = {key: v for key, v in value.items() if isinstance(key, str) and key.startswith(GPU_TIME)}
        if not typed:
            return value
        rest = {key: v for key, v in value.items() if key not in typed}
        return {**rest, "gpu_time.*": typed}

    @field_validator("scaling")
    @classmethod
    def _whole_counts(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not key.isdigit() or int(key) < 1:
                raise ValueError(
                    f'scaling must map whole numbers of GPUs to speed-ups, as in {{1: 1, 2: 1.9}}; got "{key}"'
                )
        if value is not None and not value:
            raise ValueError("scaling must have at least one number of GPUs")
        return value

    def _check_keys(self) -> None:
        for first, second in (("deadline", "slo"), ("user", "users"), ("scaling", "gpus"), ("profile", "work"),
                              ("span_speed", "span_speeds"), ("gpus", "slice"), ("scaling", "slice")):  # fmt: skip
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{first} and {second} exclude each other; give one of them")
        given = [name for name in ("gpu_time", "cpu_time", "typed_gpu_time", "scaling") if getattr(self, name)]
        if self.modes is not None and given:
            raise ValueError("modes replaces gpu_time, cpu_time and scaling; give either modes or these keys")
        if self.modes is not None and (self.work or self.profile):
            raise ValueError("with modes, work and profile must be given in each mode")
        if self.modes is not None and isinstance(self.modes[0].time, Speedup):
            raise ValueError("the first mode needs a time, since a speedup is relative to it")
        _check_profile_keys(self, elsewhere=any(mode.profile for mode in self.modes or ()))
        _check_share(self.work, self.gpus, self.scaling)
        check_nodes(self, self.cpu_time is not None)
        self._check_training()

    def _check_training(self) -> None:
        for name in ("modes", "scaling", "training", "span"):
            if self.communication is not None and getattr(self, name):
                text = f"communication needs a fixed number of GPUs and nodes; leave out {name}"
                raise KeyProblem("communication", text)
        if self.training is None:
            return
        if self.gpus is not None and self.gpus < 1:
            raise KeyProblem("gpus", f"training must use whole GPUs; got {self.gpus:g} of a GPU")
        if self.training.widths is not None and self.nodes is not None:
            raise KeyProblem("nodes", "training.widths defines the numbers of nodes; leave one of the two out")
        others = ("cpu_time", "typed_gpu_time", "modes", "scaling", "work", "profile", "gpu_memory", "span", "slice")
        for name in ("gpu_time", *others):
            if getattr(self, name):
                key = "gpu_time.TYPE" if name == "typed_gpu_time" else name
                raise KeyProblem("training", f"training defines times, memory and nodes; leave out {key}")

    def check_whole(self) -> None:
        """Raise ValueError if keys of a class and of its `workload:` entry contradict."""
        _check_share(self.work, self.gpus, self.scaling)
        check_nodes(self, self.cpu_time is not None)
        self._check_training()
        if self.drift is not None and (self.work or self.profile or self.training or self.communication):
            raise KeyProblem("drift", "the key is for given times, not for those of work, profile or training")
        if self.devices is not None and not (self.work or self.profile or self.training):
            raise KeyProblem("devices", "the key needs work, a profile or training")
        others = self.gpu_time or self.typed_gpu_time or self.work or self.profile
        if isinstance(self.cpu_time, Speedup) and not others:
            raise ValueError("cpu_time: a speedup is relative to gpu_time, work or a profile; give one of them")

    @property
    def limit(self) -> float | Factor | None:
        """Relative deadline: the value of `slo` or of `deadline`."""
        return self.slo if self.slo is not None else self.deadline

    @property
    def has_times(self) -> bool:
        return bool(self.gpu_time or self.cpu_time or self.typed_gpu_time or self.modes or self.work or self.profile
                    or self.training)  # fmt: skip

    def over(self, other: Demand) -> Demand:
        """Return this demand with missing values filled from `other`."""
        values = {name: getattr(other, name) for name in Demand.model_fields}
        given = self.model_fields_set & set(values)
        for rivals in RIVALS:
            if given & rivals:
                values.update({name: Demand.model_fields[name].get_default() for name in rivals})
        values.update({name: getattr(self, name) for name in given})
        return Demand.model_construct(**values)


RIVALS = (
    frozenset({"deadline", "slo"}),
    frozenset({"user", "users"}),
    frozenset({"scaling", "gpus", "slice"}),
    frozenset({"span_speed", "span_speeds"}),
    frozenset({"nodes", "span"}),
)  # Alternative keys: a class that gives one of them replaces the others of its entry.

INHERITED = {
    **dict.fromkeys(("batch", "steps", "efficiency", "cpus", "memory", "gpu_memory", "span", "upload", "download")),
    "nodes": "span", "slice": "gpus", "span_speed": "span_speeds", "span_speeds": "span_speed",
}  # Keys that a mode inherits from its task, unless it gives the key or its alternative.


def profile_use(demand: Held) -> profiles.ProfileUse:
    """Return the profile that a demand names, with its parameters."""
    given = {one.name: getattr(demand, one.name) for one in fields(profiles.ProfileUse)}
    return profiles.ProfileUse(**{key: value for key, value in given.items() if value is not None})
