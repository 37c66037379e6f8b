"""`service:`: requests that are served in batches, and the keys of replicas."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from hetsim.errors import KeyProblem
from hetsim.model.demand import ComputeTime, StageTime
from hetsim.model.service import ReplicaStart, ResultCache, ScaleBounds, Service
from hetsim.model.units import Bytes, Count, Fraction, Name, NotNegative, Seconds, forbid
from hetsim.scenario.fields import ONE_NAME, Keys, Mirror, Model, OneOrMany, Short, SomeNames, inline_of, keys_of
from hetsim.scenario.file.profile_files import Profiled
from hetsim.scenario.schema.batch_tables import INLINE as TABLE
from hetsim.scenario.schema.batch_tables import MeasuredSpec, short
from hetsim.scenario.schema.demand import Occupied
from hetsim.workload.distributions import TimeDistribution

PolicyName = Annotated[Any, Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]})]


class ReplicasOn(Model):
    """Replicas on another type of device."""

    USED: ClassVar = {"replicas": 1}

    device: Name
    """Type of device of these replicas."""
    replicas: Annotated[int, Field(ge=0)] | None = None
    """Initial number of replicas on this type; 0: the type is used only for replicas that are added or replaced."""
    gpus: Count | None = None
    """Number of devices of a node that each replica uses. Default: the service's gpus."""


ROLES = Annotated[tuple[Literal["prefill", "decode"], ...], Field(min_length=1), ONE_NAME]


@keys_of(ScaleBounds, every=Annotated[Seconds, Field(gt=0)], roles=ROLES)
class ScaleSpec(Mirror):
    """The scaling policy of a service, with its parameters and bounds."""

    model_config = ConfigDict(extra="allow")
    FIRST: ClassVar = ("name",)

    name: Name
    """Name of the policy (`hetsim list policies --kind scale`); its parameters are further keys here."""


class Replicas(Model):
    """Keys of a service with replicas."""

    replicas: Any = None
    scale: ScaleSpec | None = None
    """Policy that starts and drains replicas according to the load."""
    start: Annotated[ReplicaStart, Keys(ReplicaStart, sources=SomeNames)] = ReplicaStart()
    """How replicas start during the run: constant times, and the places from which the weights are loaded."""
    routing: PolicyName = None
    """Routing policy of this service (which replica serves a request): a name, or name and parameters."""

    def check_counts(self, *others: str) -> None:
        """Raise KeyProblem for `replicas` with one of `others`, or unusable `scale.roles`."""
        if self.scale is not None and "roles" in self.scale.model_fields_set and not getattr(self, "disaggregated", 0):
            raise KeyProblem("scale.roles", "roles are for disaggregated replicas, but these are not; leave roles out")
        for other in others:
            if self.replicas is not None and getattr(self, other) is not None:
                raise KeyProblem("replicas", f"{other} defines the number of replicas; give one of the two")


Kept = Annotated[Count, Field(le=10_000_000)]
MAX_NOISE = 0.3  # more would change the mean noticeably, since negative times are cut off


@keys_of(StageTime)
class StageSpec(MeasuredSpec, Mirror):
    """Seconds of a transfer: `fixed` and `per_item`, or a measured `table`."""


@keys_of(ComputeTime)
class ComputeStage(MeasuredSpec, Mirror):
    """Compute seconds: `fixed` and `per_item` (and per token), or a measured `table`."""

    per_item: TimeDistribution | None = None
    """Time for each request of the batch, a quantity or a distribution."""
    per_prompt_token: Seconds = 0.0
    """Time for each token of a request's prompt."""
    per_output_token: Seconds = 0.0
    """Time for each token of a request's answer."""

    @property
    def by_tokens(self) -> bool:
        """Return True if the time depends on a request's tokens."""
        return self.per_prompt_token > 0 or self.per_output_token > 0


_NOT_NOISE = f"noise must be a relative standard deviation from 0 to {MAX_NOISE:.0%}; got {{:g}}"
BOTH_WAYS = Short(lambda value: {"request": value, "response": value} if isinstance(value, str) else value,
                  {"type": "string"})  # fmt: skip
NUMBER = Short(lambda value: {"": value} if isinstance(value, int) and value > 0 else value,
               {"type": "integer", "minimum": 1})  # fmt: skip
FIXED_ONLY = Short(short, {"anyOf": [{"type": "string"}, TABLE]})


class VariantSpec(Occupied):
    """One variant of a service: its devices, and its stage times on them."""

    FIRST: ClassVar = ("name", "device", "upload", "compute", "download")

    name: Name | None = None
    """Name of the variant in tables. Default: derived from the device."""
    device: Name = "gpu"
    """Type or kind of device on which it runs."""
    upload: Annotated[StageSpec, FIXED_ONLY] = StageSpec()
    """Time to upload a batch: {fixed, per_item}, a single (fixed) time, or times measured by batch size."""
    compute: Annotated[ComputeStage, FIXED_ONLY]
    """Time to compute a batch: {fixed, per_item}, a single (fixed) time, or times measured by batch size."""
    download: Annotated[StageSpec, FIXED_ONLY] = StageSpec()
    """Time to download a batch: {fixed, per_item}, a single (fixed) time, or times measured by batch size."""
    gpu_memory_per_item: Bytes = 0
    """Memory used on each GPU per request of a batch, in addition to gpu_memory."""
    max_batch: Count | None = None
    """Maximum number of requests in a batch. Default: no limit, except by memory (`gpu_memory_per_item`) and by the
    measured batch sizes."""

    def _check_keys(self) -> None:
        check_whole(self)


def check_whole(way: VariantSpec) -> None:
    """Raise KeyProblem for times of a variant that contradict each other."""
    for name in ("upload", "compute", "download"):
        _check_table(way, name)
    each, fixed = way.compute.per_item, way.compute.fixed
    if way.compute.measured is not None or (way.compute.by_tokens and (each is None or each.mean > 0)):
        pass  # every batch, or every request, takes time of its own
    elif each is None and not fixed:
        raise KeyProblem("compute", "a batch must take time; give per_item, fixed or both")
    elif each is not None and each.mean == 0:
        raise KeyProblem("compute", "per_item must be above 0; leave it out if a batch of any size takes the same")
    elif each is None and way.max_batch is None:
        raise KeyProblem("compute", "without per_item a batch of any size takes the same time, so max_batch is needed")
    if way.device == "cpu" and (way.upload != StageSpec() or way.download != StageSpec()):
        raise KeyProblem("upload", "upload and download need an accelerator; leave them out for a CPU")


def _check_table(way: VariantSpec, name: str) -> None:
    """Raise KeyProblem for a table next to other times, or batches beyond the table."""
    stage = getattr(way, name)
    if (table := stage.measured) is None:
        return
    for key in dict.fromkeys(("per_item", *stage.KEYS)):
        if key in stage.model_fields_set:
            raise KeyProblem(name, f"a table and {key} exclude each other: the table gives the time of the whole batch")
    largest = table.sizes[-1]
    if way.max_batch is not None and way.max_batch > largest and not stage.extrapolate:
        text = f"the largest measured size of {name} is {largest}; extrapolate: true there allows more"
        raise KeyProblem("max_batch", f"{text}, or measure batches of {way.max_batch}")


INLINE = tuple(key for key in VariantSpec.model_fields if key != "name")  # that a service may have itself


@keys_of(ResultCache, size=Kept)
class ResultCacheSpec(Mirror):
    """A cache of popular inputs: the k-th input has a share proportional to k^-zipf."""

    inputs: Kept
    """Number of different inputs among which requests choose."""
    zipf: NotNegative = 1.0
    """Exponent of the inputs' popularity: the k-th input has a share proportional to k^-zipf."""


@keys_of(Service, "request_delay", "response_delay")
class FrontEndSpec(Mirror):
    """Delays of requests from front end to node, and of responses back."""


@keys_of(Service, "noise", noise=Annotated[Fraction, forbid(lambda noise: not 0 <= noise <= MAX_NOISE, _NOT_NOISE)])
@inline_of(VariantSpec, "name")
class ServiceSpec(Profiled, Replicas):
    """A service: one variant inline, or several under `variants`.

    With `replicas` or `scale` each replica has a queue and a batching policy on devices of its own; without them,
    batches run wherever the scheduler starts them.
    """

    SECTION: ClassVar = "service"
    FIRST: ClassVar = VariantSpec.FIRST[1:]

    variants: Annotated[list[VariantSpec], OneOrMany, Field(min_length=1)] | None = None
    """Several variants, each with its own device and times."""
    replicas: Annotated[dict[str, Annotated[int, Field(ge=0)]], NUMBER, Field(min_length=1)] | None = None
    """Number of replicas: one number, or one for each variant or type of device by name."""
    model: Bytes | None = None
    """Bytes of weights that must be loaded on an accelerator before it serves. Default: none."""
    cache: ResultCacheSpec | None = None
    """Cache of the results of popular inputs. Default: none."""
    network: Annotated[FrontEndSpec, BOTH_WAYS] = FrontEndSpec()
    """Delay between front end and node: one time for both ways, or request and response."""
    batching: PolicyName = None
    """Batching policy of this service in place of that of `policy`: a name, or name and parameters."""

    def _check_keys(self) -> None:
        inline = [key for key in INLINE if getattr(self, key) is not None]
        if self.variants is not None and inline:
            raise KeyProblem(inline[0], "with variants, the key must be given in each variant")
        if self.variants is None and self.compute is None:
            raise ValueError("a service needs compute: {per_item: ..., fixed: ...}, or variants with it")
        if self.variants is None:
            check_whole(self.ways[0])
        self.check_counts("scale")
        for key in ("routing", "start"):
            if key in self.model_fields_set and not self.kept:
                raise KeyProblem(key, "this key is for replicas, but the service has none; give replicas or scale")

    @property
    def kept(self) -> bool:
        """True if the service has replicas, which occupy their devices permanently."""
        return self.replicas is not None or self.scale is not None

    @property
    def ways(self) -> list[VariantSpec]:
        """All variants; a service without `variants` is its only variant."""
        if self.variants is not None:
            return self.variants
        return [
            VariantSpec.model_construct(**{key: value for key in INLINE if (value := getattr(self, key)) is not None})
        ]
