"""What a task of a scenario demands: times, devices, memory, data, limits, and how much of it policies know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from sim.errors import UnknownName
from sim.model import tasks
from sim.model.units import Bytes, Fraction, Seconds
from sim.scenario.fields import (
    Count,
    Flag,
    KeyProblem,
    Model,
    Name,
    NotNegative,
    Number,
    OneOrMany,
    Positive,
    Short,
    unknown,
)
from sim.scenario.tokens_schema import Tokens
from sim.workload import profiles
from sim.workload.distributions import BytesDistribution, NumberDistribution, TimeDistribution
from sim.workload.roofline import Work

GPU_TIME = "gpu_time."


class Speedup(Model):
    """`{speedup: 24}`: 24 × the drawn time of the reference mode (for `cpu_time` the GPU time)."""

    speedup: Positive


def _speedup_or_not(value: Any) -> str:
    is_it = isinstance(value, Speedup) or (isinstance(value, dict) and "speedup" in value)
    return "<speedup>" if is_it else "<distribution>"


Time = Annotated[
    Annotated[TimeDistribution, Tag("<distribution>")] | Annotated[Speedup, Tag("<speedup>")],
    Discriminator(_speedup_or_not),
]


Part = Annotated[Positive, Field(le=1)]


def _check_gpus(value: float | None) -> float | None:
    if value is not None and value > 1 and value != int(value):
        raise ValueError(f"{value:g} GPUs: a fraction is below 1 (of one GPU), more GPUs are whole")
    return value


def _known_profile(name: str) -> str:
    try:
        profiles.profile(name)
    except UnknownName as error:
        raise ValueError(unknown(error)) from None
    return name


def _efficiency(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"efficiency is a share above 0 and at most 1, not {value:g}")
    return value


class Factor(Model):
    """`slo: {factor: 3}`: three times the task's fastest time."""

    factor: Positive


def _factor_or_not(value: Any) -> str:
    return "<factor>" if isinstance(value, dict | Factor) else "<time>"


Limit = Annotated[Annotated[Seconds, Tag("<time>")] | Annotated[Factor, Tag("<factor>")], Discriminator(_factor_or_not)]


class Stopping(Model):
    """What stopping and resuming costs; see `sim.model.tasks.Stopping`."""

    save: Seconds = 0.0
    restore: Seconds = 0.0
    state: Bytes = 0
    interval: Seconds | None = None
    block: Seconds = 0.0
    idempotent: Flag = False
    preemptible: Flag = True

    @field_validator("interval")
    @classmethod
    def _above_zero(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("checkpoints need an interval above 0")
        return value


def _unit_mean(value: Any) -> Any:
    """An error without a mean has mean 1: estimates right on average."""
    if isinstance(value, dict) and "distribution" in value and "cv" in value and "mean" not in value:
        return {**value, "mean": 1}
    return value


class Estimates(Model):
    """What policies know of a time: the truth × a drawn `error` × a fixed `factor`; `exact` is the truth."""

    error: Annotated[NumberDistribution, Short(_unit_mean, {"type": "object"})] | None = None
    factor: Positive = 1.0


class User(Model):
    """One of several users and its share of the arrivals."""

    name: Name
    weight: NotNegative = 1.0


class Users(Model):
    """`count` users u0, u1, ...; with `zipf: s` the k-th sends a share proportional to k^-s."""

    count: Annotated[Count, Field(le=1_000_000)]
    zipf: NotNegative = 0.0


def _users(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if isinstance(value, list):
        return [{"name": one} if isinstance(one, str | int) else one for one in value]
    return value


UserMix = Annotated[
    Annotated[
        Annotated[list[User], Field(min_length=1), Tag("<list>")] | Annotated[Users, Tag("<count>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<count>"),
    ],
    Short(_users, {"type": "integer"}),
]


class SpanSpeeds(Model):
    """Rates of a gang by the narrowest part of the cluster that holds it; one not given has that of the one before.

    `island` and `switch` count where the nodes have them (`island`, `pcie: {switch: ...}`), `rack` where nodes have.
    """

    island: Part | None = None
    switch: Part | None = None
    node: Part | None = None
    rack: Part | None = None
    cluster: Part | None = None

    @model_validator(mode="after")
    def _wider_is_slower(self) -> SpanSpeeds:
        if not self.model_fields_set:
            raise ValueError("span_speeds needs the rate of at least one of island, switch, node, rack and cluster")
        speeds = self.resolved()
        for wide, narrow in (("node", "island"), ("node", "switch"), ("rack", "node"), ("cluster", "rack")):
            if getattr(speeds, wide) > getattr(speeds, narrow):
                raise KeyProblem(wide, f"a gang over one {wide} cannot be faster than within one {narrow}")
        return self

    def resolved(self) -> tasks.SpanSpeeds:
        """All five rates."""
        rates, rate = [], 1.0
        for level in tasks.SpanSpeeds._fields:
            rate = getattr(self, level) or rate
            rates.append(rate)
        return tasks.SpanSpeeds(*rates)


def span_speeds(*demands: Any) -> tasks.SpanSpeeds | None:
    """The rates by level that the first of these demands to say anything of spans gives."""
    for demand in demands:
        if demand.span_speeds is not None:
            found: tasks.SpanSpeeds = demand.span_speeds.resolved()
            return found
        if demand.span_speed is not None:
            return None
    return None


def _devices(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class TaskMode(Model):
    """One way to run, in full: on which devices, for how long, and what it holds there.

    The time is given, or computed for each type of device from `work` or a `profile`.
    """

    device: Name
    time: Time | None = None
    work: Work | None = None
    profile: Annotated[Name, AfterValidator(_known_profile)] | None = None
    batch: Annotated[Count, Field(le=10**9)] | None = None
    steps: NumberDistribution | None = None
    efficiency: Annotated[Fraction, AfterValidator(_efficiency)] | None = None
    name: Name | None = None
    cpus: NotNegative | None = None
    gpus: Positive | None = None
    memory: Bytes | None = None
    gpu_memory: Bytes | None = None
    span: Literal["node", "any"] | None = None
    span_speed: Part | None = None
    span_speeds: SpanSpeeds | None = None
    upload: Seconds | None = None
    download: Seconds | None = None

    _gpus = field_validator("gpus")(_check_gpus)

    @model_validator(mode="after")
    def _one_time(self) -> TaskMode:
        given = [key for key in ("time", "work", "profile") if getattr(self, key) is not None]
        if len(given) != 1:
            both = f", not {' and '.join(given)}" if given else ""
            raise ValueError(f"a mode needs one of time, work and profile{both}")
        if self.span_speed is not None and self.span_speeds is not None:
            raise ValueError("span_speed and span_speeds cannot stand together; give one of them")
        _check_profile_keys(self)
        _check_share(self.work, self.gpus)
        return self


def _check_profile_keys(demand: TaskMode | Demand, elsewhere: bool = False) -> None:
    for name in ("batch", "steps", "efficiency"):
        if getattr(demand, name) is not None and demand.profile is None and not elsewhere:
            raise KeyProblem(name, "this belongs to a profile, and there is none here")


def demanded_share(work: Work | None) -> float | None:
    """The share of a GPU's multiprocessors that the work asks for; None where it says nothing of it."""
    return work.share if work is not None and "share" in work.model_fields_set else None


def _check_share(work: Work | None, gpus: float | None, scaling: Any = None) -> None:
    share = demanded_share(work)
    if share is not None and scaling is not None:
        raise KeyProblem("scaling", "work that demands a share of one GPU does not scale over several")
    if share is not None and gpus is not None and share != gpus:
        raise KeyProblem("gpus", f"{gpus:g} contradicts the share of {share:g} that the work demands; give one of them")


class Demand(Model):
    """What an entry of the workload and each of its classes may say; a class overrides its entry."""

    class_: Name | None = Field(None, alias="class")
    gpu_time: TimeDistribution | None = None
    typed_gpu_time: dict[str, TimeDistribution] = Field(default={}, alias="gpu_time.*")
    """`gpu_time.TYPE`, by the whole key."""
    cpu_time: Time | None = None
    modes: Annotated[list[TaskMode], OneOrMany, Field(min_length=1)] | None = None
    scaling: dict[str, Positive] | None = None
    work: Work | None = None
    profile: Annotated[Name, AfterValidator(_known_profile)] | None = None
    devices: Annotated[list[Name], Short(_devices, {"type": "string"}), Field(min_length=1)] | None = None
    """Types and kinds of devices that `work` or `profile` is computed for; all whose peak is known unless given."""
    batch: Annotated[Count, Field(le=10**9)] | None = None
    steps: NumberDistribution | None = None
    efficiency: Annotated[Fraction, AfterValidator(_efficiency)] | None = None
    cpus: NotNegative | None = None
    gpus: Positive | None = None
    memory: Bytes | None = None
    gpu_memory: Bytes | None = None
    span: Literal["node", "any"] | None = None
    span_speed: Part | None = None
    span_speeds: SpanSpeeds | None = None
    bytes_in: BytesDistribution | None = None
    bytes_out: BytesDistribution | None = None
    upload: Seconds | None = None
    download: Seconds | None = None
    deadline: Limit | None = None
    slo: Limit | None = None
    patience: TimeDistribution | None = None
    priority: Number | None = None
    user: Name | None = None
    users: UserMix | None = None
    estimates: Annotated[Estimates, Short(lambda v: {} if v == "exact" else v, {"const": "exact"})] | None = None
    stopping: Stopping | None = None
    reads: list[Name] | None = None
    writes: list[Name] | None = None
    tokens: Tokens | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather_types(cls, value: Any) -> Any:
        """`gpu_time.v100: ...` is a key of its own in the file and an entry of one field here."""
        if not isinstance(value, dict):
            return value
        typed = {key: v for key, v in value.items() if isinstance(key, str) and key.startswith(GPU_TIME)}
        if not typed:
            return value
        rest = {key: v for key, v in value.items() if key not in typed}
        return {**rest, "gpu_time.*": typed}

    _gpus = field_validator("gpus")(_check_gpus)

    @field_validator("typed_gpu_time")
    @classmethod
    def _named(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.removeprefix(GPU_TIME):
                raise ValueError("gpu_time. needs the name of a GPU type after the dot")
        return value

    @field_validator("scaling")
    @classmethod
    def _whole_counts(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not key.isdigit() or int(key) < 1:
                raise ValueError(
                    f'scaling maps whole numbers of GPUs to speed-ups, as in {{1: 1, 2: 1.9}}; "{key}" is none'
                )
        if value is not None and not value:
            raise ValueError("scaling needs at least one number of GPUs")
        return value

    @model_validator(mode="after")
    def _one_of_two(self) -> Demand:
        for first, second in (("deadline", "slo"), ("user", "users"), ("scaling", "gpus"), ("profile", "work"),
                              ("span_speed", "span_speeds")):  # fmt: skip
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{first} and {second} cannot stand together; give one of them")
        given = [name for name in ("gpu_time", "cpu_time", "typed_gpu_time", "scaling") if getattr(self, name)]
        if self.modes is not None and given:
            raise ValueError("modes is the full form of gpu_time, cpu_time and scaling; give one of the two")
        if self.modes is not None and (self.work or self.profile):
            raise ValueError("modes is the full form of work and profile; give each mode its own")
        if self.modes is not None and isinstance(self.modes[0].time, Speedup):
            raise ValueError("the first of the modes has nothing to be a speedup of; give it a time")
        _check_profile_keys(self, elsewhere=any(mode.profile for mode in self.modes or ()))
        _check_share(self.work, self.gpus, self.scaling)
        return self

    def check_whole(self) -> None:
        """KeyProblem for what contradicts itself, or lacks its other half, once a class stands over its entry."""
        _check_share(self.work, self.gpus, self.scaling)
        if self.devices is not None and not (self.work or self.profile):
            raise KeyProblem("devices", "this belongs to work or a profile, and there is none here")

    @property
    def limit(self) -> float | Factor | None:
        """The relative deadline, under either of its names."""
        return self.slo if self.slo is not None else self.deadline

    @property
    def dangling(self) -> bool:
        """Whether `cpu_time` is a speedup of nothing."""
        others = self.gpu_time or self.typed_gpu_time or self.work or self.profile
        return isinstance(self.cpu_time, Speedup) and not others

    @property
    def has_times(self) -> bool:
        return bool(self.gpu_time or self.cpu_time or self.typed_gpu_time or self.modes or self.work or self.profile)

    def over(self, other: Demand) -> Demand:
        """The demand with the values of this one (a class), and of `other` (its entry) where it gives none."""
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
    frozenset({"scaling", "gpus"}),
    frozenset({"span_speed", "span_speeds"}),
)
"""Keys that say the same in two ways: a class that gives one replaces both of its entry."""

PROFILE_KEYS = ("profile", "batch", "steps", "efficiency")


def profile_use(demand: Demand | TaskMode, default: Demand | None = None) -> profiles.ProfileUse:
    """The profile that a demand names, with its parameters, or those of `default` where it gives none."""
    values = {key: getattr(demand, key) for key in PROFILE_KEYS}
    if default is not None:
        values = {key: getattr(default, key) if value is None else value for key, value in values.items()}
    return profiles.ProfileUse.model_validate({key: v for key, v in values.items() if v is not None})
