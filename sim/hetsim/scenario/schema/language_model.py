"""`service: {kind: llm}`: a language model that answers token by token."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError, ValidationInfo, model_validator

from hetsim.errors import KeyProblem
from hetsim.model.service import LanguageService
from hetsim.model.step_times import StepTimes, scaled
from hetsim.model.units import Bytes, Count, Degree, Name, Seconds, Share
from hetsim.scenario.fields import Mirror, Model, Short, keys_of
from hetsim.scenario.file.profile_files import Profiled, included
from hetsim.scenario.schema.cluster import NamedPeak
from hetsim.scenario.schema.demand import Drift
from hetsim.scenario.schema.service import BOTH_WAYS, FrontEndSpec, PolicyName, Replicas, ReplicasOn, ServiceSpec
from hetsim.scenario.schema.steps import EngineName, StepTime, Weights, figures_missing, of_engine
from hetsim.workload.costs.architectures import Architecture
from hetsim.workload.costs.roofline import Peak


class Disaggregated(Model):
    """Separate replicas for reading prompts (prefill) and for decoding."""

    prefill: Count
    """Number of replicas that only prefill prompts."""
    decode: Count
    """Number of replicas that only decode."""
    prefill_on: Name | None = None
    """Device type of the prefill replicas, one of also_on. Default: the service's device."""
    decode_on: Name | None = None
    """Device type of the decode replicas, one of also_on. Default: the service's device."""


class AlsoOn(ReplicasOn):
    """Replicas on another device type, and the keys that differ on this type."""

    step: StepTime | None = None
    """Time of a step on gpus devices of this type. Default: estimated from model and gpu, if the service's step is."""
    gpu: NamedPeak | None = None
    """Peak rates of the GPU for the estimate: a known name, or figures."""
    tensor_parallel: Count | None = None
    """Number of GPUs of a node over which each replica is divided; the same as gpus, give one of the two."""
    memory_share: Share | None = None
    """Share of the devices' memory for model, keys and values. Default: that of the service."""


StepFactor = Annotated[float, Field(gt=0, le=100)]
MAX_TOKENS = 10**9
# Defaults of `memory_share`; the first is the default of servers (vLLM: gpu_memory_utilization)
FILLED = {"where model is an architecture": 0.9, "where it is bytes": 1.0}
OF_THE_REST = "trtllm"  # engine whose `memory_share` applies to the memory without the weights
_WEIGHTS: TypeAdapter[int | Architecture] = TypeAdapter(Weights)


@keys_of(LanguageService, "block", block=Annotated[Count, Field(le=65_536)])
class KvCacheSpec(Mirror):
    """KV cache: bytes per token, and tokens per block."""

    FIRST: ClassVar = ("per_token", "tokens")

    per_token: Annotated[Bytes, Field(gt=0)] | None = None
    """Bytes of keys and values of one token, summed over all GPUs of a replica; not needed if tokens is given."""
    tokens: Annotated[Count, Field(le=MAX_TOKENS)] | None = None
    """Number of tokens whose keys and values a replica can store. Default: as many as memory allows."""


class Prefixes(Model):
    """Prefix caching: each of a request's `hash_ids` names a block of prompt tokens."""

    tokens: Annotated[Count, Field(le=MAX_TOKENS)] = 512
    """Number of tokens per entry of a request's hash_ids."""


@keys_of(LanguageService, "ttft", "tpot")
class TokenLimits(Mirror):
    """Limits on times to the first and to each further token."""


LIMITS = {"max_num_batched_tokens": Annotated[Count, Field(le=MAX_TOKENS)] | None}
WAITS = "batch_wait_max_tokens_ratio", "batch_wait_timeout_iters"
OWN = (*LIMITS, "async_scheduling", "scheduler_recv_interval", *WAITS)

REPLACED = {"autoscale": "a policy: scale: {name: target_requests, min: 1, ...}",
            "timeout": "a key of the entry's clients: clients: {timeout: 5 min, at_timeout: cancel}"}  # fmt: skip


@keys_of(LanguageService, *OWN, **LIMITS)
class LanguageModel(Profiled, Replicas):
    """A language model served by replicas on `gpus` devices of one node.

    The weights are loaded before the run starts; the rest of the devices' memory stores keys and values.  If `model` is
    an architecture, step times and bytes of keys and values that are not given are estimated from it, `gpu` and
    `tensor_parallel`.
    """

    SECTION: ClassVar = "service"
    FIRST: ClassVar = (
        "kind", "profile", "step", "gpu", "tensor_parallel", "data_parallel", "expert_parallel", "engine", "uncertain",
        "interval", "drift", "device", "gpus", "replicas", "also_on", "model", "memory_share", "kv",
        "max_num_batched_tokens", "max_num_seqs", "async_scheduling", "scheduler_recv_interval", *WAITS,
        "max_output_tokens", "preemption", "prefix_cache", "disaggregated", "scale", "network", "front_end", "slo",
        "batching",
    )  # fmt: skip

    USED: ClassVar = {"replicas": 1, "memory_share": FILLED}

    kind: Literal["llm"]
    """llm: a language model that answers token by token."""
    device: Name = "gpu"
    """Type or kind of device of the replicas."""
    gpus: Count = 1
    """Number of devices of one node that each replica uses."""
    replicas: Count | None = None
    """Number of replicas, where neither scale nor disaggregated sets it."""
    step: StepTime
    """Time of a step on gpus devices. Default: estimated from model, gpu and tensor_parallel."""
    gpu: NamedPeak | None = None
    """GPU for the estimate: a name of `hetsim list models`, or matrix_flops, bandwidth, link, memory."""
    tensor_parallel: Count | None = None
    """Number of GPUs of a node over which each replica is divided; the same as gpus, give one of the two."""
    data_parallel: Count = 1
    """Number of replicas over which the experts of a layer are divided; each has its own attention, requests, keys and
    values.  A step takes as long as if all of them had as many tokens.
    """
    expert_parallel: Count = 1
    """Number of parts into which the experts of a layer are divided; the GPUs of a part divide each of its experts."""
    engine: EngineName | None = None
    """Serving engine and its version, such as vllm-0.15; replaces step.  A step then takes the kernel times measured
    for model on gpu with tensor_parallel, plus the engine's own times between kernels.
    """
    uncertain: bool = False
    """True: multiply all step times of a replication by a random factor, drawn from `interval` or, if only `engine` is
    given, from the prediction errors of this engine on measured servers; then also the number of KV blocks.
    """
    interval: tuple[StepFactor, StepFactor] | None = None
    """90 % interval of the factor on step times. Unless `uncertain` is set, the factor is its geometric mean."""
    drift: Drift | None = None
    """Random variation of a server's speed from run to run: a factor on all steps of a run, {cv: 2%, mean: 1}."""
    also_on: list[AlsoOn] = []
    """Further device types on which replicas run, or may run, in order of preference."""
    model: Weights = 0
    """Bytes of weights of one replica, on its devices together; or its architecture: a name of `hetsim list models`,
    its figures, a file {config: config.json} (published with the weights), or one of these with changes, such as {name:
    llama-2-70b, number_format: fp8}."""
    memory_share: Share | None = None
    """Share of the devices' memory for model, keys and values; with engine: trtllm, of the memory without the model."""
    kv: KvCacheSpec | None = None
    """Memory that keys and values need. Default: memory is not limited."""
    max_num_seqs: Degree = 256
    """Maximum number of requests in a replica; less if step or max_num_batched_tokens allows less."""
    max_output_tokens: Annotated[Count, Field(le=MAX_TOKENS)] | Literal["exact"] | None = None
    """Token count at which answers end, announced by requests; exact: they announce true lengths. Default: none."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """Treatment of preempted requests when KV blocks run out: recompute, or swap to the host."""
    prefix_cache: Annotated[Prefixes, Short(lambda v: {} if v is True else v, {"const": True})] | None = None
    """Prefix caching: true, or {tokens: N} if each entry of a request's hash_ids stands for N tokens. Default: off."""
    disaggregated: Disaggregated | None = None
    """Separate replicas for prefill and for decoding."""
    network: Annotated[FrontEndSpec, BOTH_WAYS] = FrontEndSpec()
    """Delay between the clients and the replicas: one time for both ways, or request and response."""
    front_end: Seconds = 0.0
    """Time that each request spends in front of the replicas (tokenization, routing) before it waits at one."""
    slo: TokenLimits = TokenLimits()
    """Target limits on the time to the first token and per further token."""
    batching: PolicyName = None
    """Batching policy of this service (which requests join a step): a name, or name and parameters."""

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        for key in [key for key in REPLACED if isinstance(value, dict) and key in value]:
            raise KeyProblem(key, f"{key} is now {REPLACED[key]}")
        merged = included(value, cls.SECTION, cls, info)
        return _estimated(merged, info) if isinstance(merged, dict) else merged

    @property
    def weights(self) -> int:
        if not isinstance(self.model, Architecture):
            return self.model
        return round(self.model.bytes - self.model.expert_bytes * (1 - 1 / self.data_parallel))

    @property
    def kinds(self) -> list[LanguageModel]:
        """The service as configured on each of its device types, its main type first."""
        return [self, *(self._on(other, number) for number, other in enumerate(self.also_on))]

    def _on(self, other: AlsoOn, number: int) -> LanguageModel:
        key = f"also_on.{number}"
        if other.tensor_parallel is not None and other.gpus not in (None, other.tensor_parallel):
            raise KeyProblem(f"{key}.gpus", "gpus and tensor_parallel are the same; give one of the two")
        step = other.step
        if step is None and (self.step.roofline is None or other.gpu is None):
            text = "the step time is missing; give step, or gpu (a known GPU) if model is an "
            raise KeyProblem(f"{key}.step", text + "architecture and the service's own steps are estimated")
        gpus = other.tensor_parallel or other.gpus or self.gpus
        kv = self.kv
        if isinstance(self.model, Architecture):
            _check_heads(self.model, gpus, f"{key}.{'gpus' if other.tensor_parallel is None else 'tensor_parallel'}")
            if kv is not None and self.model.stored(self.gpus) == kv.per_token:
                kv = kv.model_copy(update={"per_token": self.model.stored(gpus)})
        changes = {
            "device": other.device, "gpus": gpus, "tensor_parallel": other.tensor_parallel, "kv": kv,
            "gpu": other.gpu or self.gpu, "step": step or self.step, "also_on": [],
            "engine": self.engine if step is None else None, "uncertain": self.uncertain and step is None,
            "interval": self.interval if step is None else None,
            "expert_parallel": self.expert_parallel if step is None else 1,
            "replicas": other.used("replicas"),
            "memory_share": self.memory_share if other.memory_share is None else other.memory_share,
        }  # fmt: skip
        changed = self.model_copy(update=changes)
        try:
            changed._check_estimate()
            changed._measured_numbers()
        except KeyProblem as problem:
            raise KeyProblem(f"{key}.step", str(problem)) from problem
        return changed

    @property
    def figures(self) -> tuple[Architecture, Peak, int] | None:
        """Return architecture, GPU and GPU count to estimate steps; None: not estimated."""
        if isinstance(self.model, Architecture) and self.gpu is not None:
            return self.model, self.gpu, self.gpus
        return None

    @property
    def estimated(self) -> bool:
        """True if step times are estimated from published figures, not measured."""
        return self.engine is None and self.step.roofline is not None and not self.step.roofline.model_fields_set

    @property
    def share(self) -> float:
        """Share of the devices' memory that may be used; its default depends on `model`."""
        of_architecture, of_bytes = FILLED.values()
        return self.memory_share or (of_architecture if isinstance(self.model, Architecture) else of_bytes)

    @property
    def times(self) -> StepTimes:
        return self.times_of(1.0)

    def times_of(self, factor: float) -> StepTimes:
        times: StepTimes = self.step.times(self.figures)
        if self.engine is not None and self.figures is not None:
            times = of_engine("steps")(*self.figures, self.engine, self.data_parallel, self.expert_parallel)
        return scaled(times, factor) if factor != 1.0 else times

    def _check_estimate(self) -> None:
        if self.uncertain and self.engine is None and self.interval is None:
            raise KeyProblem("uncertain", "uncertain needs interval, or a measured engine; give engine: vllm-0.15, say")
        if self.interval is not None and not self.interval[0] < self.interval[1]:
            raise KeyProblem("interval", "the first number must be below the second, as in [0.97, 1.05]")
        self._check_experts()
        if self.step.roofline is None:
            return
        if not isinstance(self.model, Architecture):
            text = "needs the architecture; name a known model, as in model: llama-2-70b"
            raise KeyProblem("model", f"{'a roofline' if self.engine is None else 'engine'} {text}")
        if self.gpu is None:
            raise KeyProblem("gpu", "a roofline needs the figures of the GPU; name a known GPU, as in gpu: h100")
        if (missing := figures_missing(self.gpu, self.gpus)) is not None:
            raise KeyProblem("gpu", f"{missing}; give the figures of the GPU")
        try:
            self.times_of(1.0)
        except ValueError as problem:
            raise KeyProblem("model" if self.engine is None else "engine", str(problem)) from None

    def _check_experts(self) -> None:
        data, all_gpus = self.data_parallel, self.gpus * self.data_parallel
        key = "data_parallel" if data > 1 else "expert_parallel"
        if data * self.expert_parallel == 1:
            return
        if self.engine is None or not isinstance(self.model, Architecture) or self.model.experts == 1:
            raise KeyProblem(key, "needs a mixture of experts and measured kernels; give model and engine: vllm-0.15")
        if all_gpus % self.expert_parallel or self.model.experts % self.expert_parallel:
            text = f"must divide the {all_gpus} GPUs and the {self.model.experts} experts; got {self.expert_parallel}"
            raise KeyProblem("expert_parallel", text)
        if data > 1 and (self.scale is not None or self.also_on):
            raise KeyProblem(key, "the number of replicas that share their experts is constant; omit scale and also_on")
        if data > 1 and any(count % data for count in self.starts(self)):
            raise KeyProblem(key, f"the number of replicas must be a multiple of {data}; give replicas: {data}")

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> LanguageModel:
        self._check_estimate()
        if not (info.context or {}).get("profile"):  # the scenario that includes it says how large steps may be
            self._measured_numbers()
            self._batch_limits()
        step = self.step
        is_complete = (step.per_prompt_token or step.prefill) and (step.per_sequence or step.decode)
        if not (step.roofline or step.fixed or is_complete):
            raise KeyProblem("step", "every step must take time; give fixed, or per_prompt_token and per_sequence")
        self._check_slo()
        self._check_roles()
        self._unlike()
        self.check_counts("disaggregated", "scale")
        self._check_blocks()
        return self

    def _check_roles(self) -> None:
        apart, scale = self.disaggregated, self.scale
        if scale is None or apart is None:
            return
        for role in ("prefill", "decode"):
            number, low, high = getattr(apart, role), scale.min_replicas, scale.max_replicas
            if role not in scale.roles and not low:
                text = f"min must be at least 1, as the {number} replicas for {role} need replicas of the other role"
                raise KeyProblem("scale.min", f"{text}; or give scale.roles both roles")
            if role in scale.roles and not low <= number <= high:
                text = f"must be from {low} to {high}, the limits of scale; got {number} replicas at the start"
                raise KeyProblem(f"disaggregated.{role}", text)

    def _check_slo(self) -> None:
        times, decode = self.times, self.step.decode
        decoding = times.seconds_for(0, 1, 0)
        if decode is not None and decode.measured is not None:
            decoding = min(decode.measured.seconds)
        low = 1.0 if self.interval is None else self.interval[0]  # steps may take as little as this factor
        for key, needed in (("ttft", low * times.fixed), ("tpot", low * decoding)):
            if (limit := getattr(self.slo, key)) is not None and limit < needed:
                what = f"no request can meet a {key} of {1e3 * limit:.4g} ms: a step takes {1e3 * needed:.4g} ms"
                raise KeyProblem("slo", what)

    def _check_blocks(self) -> None:
        moved = "keys and values are transferred, so their size is needed; give kv: {per_token: ...}"
        kept = "prefixes are stored in KV blocks, whose size is needed; give kv: {per_token: ...}"
        needs = (
            ("prefix_cache", self.prefix_cache is not None, kept),
            ("disaggregated", self.disaggregated is not None, moved),
            ("preemption", self.preemption == "swap", moved),
        )
        for key, needed, why in needs:
            if needed and self.kv is None:
                raise KeyProblem(key, why)
        if self.prefix_cache is not None and self.kv is not None and self.prefix_cache.tokens % self.kv.block:
            raise KeyProblem("prefix_cache", f"must be a multiple of kv.block ({self.kv.block}); got "
                             f"{self.prefix_cache.tokens}")  # fmt: skip

    @property
    def max_sequences(self) -> int:
        """Maximum number of requests in a replica, as `max_num_seqs` describes."""
        decode = self.step.decode
        if "max_num_seqs" in self.model_fields_set:
            return self.max_num_seqs
        max_sequences = self.max_num_seqs
        if self.max_num_batched_tokens is not None:
            max_sequences = min(max_sequences, self.max_num_batched_tokens)
        if decode is None or decode.measured is None or decode.extrapolate:
            return max_sequences
        return min(max_sequences, decode.measured.sizes[-1])

    def _batch_limits(self) -> None:
        limit, kv = self.max_num_batched_tokens, self.kv
        if limit is not None and "max_num_seqs" in self.model_fields_set and limit < self.max_num_seqs:
            text = f"a step of {limit:,} tokens cannot decode {self.max_num_seqs:,} sequences (max_num_seqs)"
            raise KeyProblem("max_num_batched_tokens", f"{text}; it must be at least {self.max_num_seqs:,}")
        given = bool(self.batch_wait_max_tokens_ratio), bool(self.batch_wait_timeout_iters)
        if any(given) and not (all(given) and limit is not None):
            text = "prompts wait for a share of max_num_batched_tokens, for a limited time; give also "
            missing = [key for key, one in zip((*WAITS, *LIMITS), (*given, limit), strict=True) if not one]
            raise KeyProblem(WAITS[not given[0]], text + " and ".join(missing))
        if kv is None:
            return
        if kv.per_token is None and kv.tokens is None:
            raise KeyProblem("kv", "the size of the cache is missing; give per_token (bytes) or tokens (of a replica)")
        if kv.tokens is not None and kv.tokens < kv.block:
            raise KeyProblem("kv", f"tokens must be at least one block ({kv.block}); got {kv.tokens:,}")
        if kv.per_token is None and (self.preemption == "swap" or self.disaggregated is not None):
            raise KeyProblem("kv", "the KV cache is transferred, so its size is needed; give per_token (bytes)")

    def _unlike(self) -> None:
        names = [kind.device for kind in self.kinds]
        if len(set(names)) < len(names):
            raise KeyProblem("also_on", "names a type of device twice, or that of the service itself")
        apart = self.disaggregated
        for number, other in enumerate(self.also_on):
            if other.replicas is not None and (apart is not None or self.scale is not None):
                said = "disaggregated" if apart is not None else "scale"
                raise KeyProblem(f"also_on.{number}.replicas", f"{said} defines the number of replicas; leave this out")
        if apart is None:
            return
        for key in ("prefill_on", "decode_on"):
            if getattr(apart, key) not in (None, *names):
                text = f"must be the service's device or one of also_on; got {getattr(apart, key)}"
                raise KeyProblem(f"disaggregated.{key}", text)
        few, many = sorted(kind.gpus for kind in (self.prefills_on, self.decodes_on))
        if many % few:
            text = "prefill and decode replicas must have the same number of GPUs, or one a multiple of the other"
            raise KeyProblem("also_on", f"{text}; got {few} and {many}")

    @property
    def prefills_on(self) -> LanguageModel:
        """The service as configured on its prefill device type (default: its own type)."""
        return self._named(None if self.disaggregated is None else self.disaggregated.prefill_on)

    @property
    def decodes_on(self) -> LanguageModel:
        """The service on the devices that decode, with their own keys if disaggregated."""
        return self._named(None if self.disaggregated is None else self.disaggregated.decode_on)

    def _named(self, device: str | None) -> LanguageModel:
        return next((kind for kind in self.kinds if kind.device == device), self)

    def starts(self, kind: LanguageModel) -> tuple[int, int]:
        """Return a type's initial replica counts: (decoding or complete, prefill-only)."""
        if (apart := self.disaggregated) is not None:
            decode = apart.decode if kind.device == self.decodes_on.device else 0
            return decode, apart.prefill if kind.device == self.prefills_on.device else 0
        if self.scale is not None:
            return (self.scale.min_replicas if kind.device == self.device else 0), 0
        return kind.used("replicas"), 0

    def _measured_numbers(self) -> None:
        decode, prefill = self.step.decode, self.step.prefill
        if decode is not None and decode.measured is not None and not decode.extrapolate:
            low, high = decode.measured.sizes[0], decode.measured.sizes[-1]
            if "max_num_seqs" in self.model_fields_set and self.max_num_seqs > high:
                text = f"step.decode was measured from {low} to {high} sequences; extrapolate: true allows more"
                raise KeyProblem("max_num_seqs", text)
        if prefill is not None and prefill.measured is not None and not prefill.extrapolate:
            sizes = prefill.measured.sizes
            if self.max_num_batched_tokens is None or self.max_num_batched_tokens > sizes[-1]:
                range_ = f"from {sizes[0]:,} to {sizes[-1]:,} tokens"
                text = f"step.prefill was measured {range_}; extrapolate: true allows more"
                raise KeyProblem("max_num_batched_tokens", f"{text}, or limit the tokens of a step")


def _estimated(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    keys = dict(value)
    if keys.get("engine") is not None:
        if "step" in keys:
            raise KeyProblem("engine", "engine and step exclude each other; give one of the two")
        keys = {**_defaults_of(keys["engine"]), **keys}
    if (parallel := keys.get("tensor_parallel")) is not None:
        if "gpus" in keys and keys["gpus"] != parallel:
            raise KeyProblem("gpus", "gpus and tensor_parallel are the same; give one of the two")
        if isinstance(parallel, int) and parallel > 0:  # otherwise the field says what is wrong
            keys["gpus"] = parallel
    try:
        model = _WEIGHTS.validate_python(keys.get("model", 0), context=info.context)
    except ValidationError:
        return {"step": {"roofline": {}}, **keys}  # the field says what is wrong
    if not isinstance(model, Architecture):
        return {"step": {"roofline": {}}, **keys} if "gpu" in keys or keys.get("engine") is not None else keys
    keys["model"] = model
    devices = parallel if isinstance(parallel, int) and parallel > 0 else keys.get("gpus", 1)
    if isinstance(devices, int) and devices > 0:
        _check_heads(model, devices, "gpus" if parallel is None else "tensor_parallel")
        kv = keys.get("kv", {})
        if isinstance(kv, dict) and "per_token" not in kv:
            keys["kv"] = {**kv, "per_token": f"{model.stored(devices)} B"}
    if "step" not in keys:
        if "gpu" not in keys:
            raise KeyProblem("gpu", "the GPU of the steps is missing; give gpu, as in gpu: h100, or step")
        keys["step"] = {"roofline": {}}
    return keys


def _check_heads(model: Architecture, gpus: int, key: str) -> None:
    try:
        model.check_parts(gpus)
    except ValueError as problem:
        raise KeyProblem(key, str(problem)) from None


def _defaults_of(engine: Any) -> dict[str, Any]:
    try:
        return dict(of_engine("defaults")(engine)) if isinstance(engine, str) else {}
    except ValueError:
        return {}  # the field says what is wrong


def _kind(value: Any) -> str:
    if isinstance(value, LanguageModel):
        return "<llm>"
    return "<llm>" if isinstance(value, dict) and "kind" in value else "<batches>"


AnyService = Annotated[
    Annotated[ServiceSpec, Tag("<batches>")] | Annotated[LanguageModel, Tag("<llm>")], Discriminator(_kind)
]
