"""`service: {kind: llm}`: a language model that answers token by token."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sim.model.units import Bytes, Seconds
from sim.scenario.batch_table import INLINE, Measured, short
from sim.scenario.fields import Count, KeyProblem, Model, Name, Positive, Short
from sim.scenario.service_schema import Service

PolicyName = Annotated[Any, Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]})]
MAX_TOKENS = 10**9


def _as_table(value: Any) -> Any:
    """A mapping of sizes to times is a table; one time alone is none."""
    return value if isinstance(value, str) else short(value)


TABLE = Short(_as_table, INLINE)


class StepTime(Model):
    """Seconds of a step: `fixed`, for each sequence that decodes, for each prompt token it reads, and for each token
    of context of the sequences that decode; or measured ones (`decode`, `prefill`)."""

    fixed: Seconds = 0.0
    """Time of any step, 0 unless given."""
    per_sequence: Seconds = 0.0
    """Time for each sequence that decodes, 0 unless given."""
    per_prompt_token: Seconds = 0.0
    """Time for each prompt token that is read, 0 unless given."""
    per_context_token: Seconds = 0.0
    """Time for each token of context of the sequences that decode, 0 unless given."""
    decode: Annotated[Measured, TABLE] | None = None
    """Measured times of a step that only decodes, by its number of sequences, in place of per_sequence."""
    prefill: Annotated[Measured, TABLE] | None = None
    """Measured times of a step that only reads prompts, by its number of tokens, in place of per_prompt_token."""

    @model_validator(mode="after")
    def _tables(self) -> StepTime:
        for name, line in (("decode", "per_sequence"), ("prefill", "per_prompt_token")):
            stage = getattr(self, name)
            if stage is None:
                continue
            if stage.measured is None:
                raise KeyProblem(name, "expected times by number, such as {1: 20 ms, 8: 24 ms}, or table: FILE")
            if line in self.model_fields_set:
                raise KeyProblem(name, f"a table and {line} cannot stand together; the table is the time of the step")
            if stage.measured.spread:
                raise KeyProblem(name, "times of steps are not drawn; give one time for each number")
            if self.fixed > min(stage.measured.seconds):
                raise KeyProblem("fixed", f"every step takes at least that, and {name} has a shorter one")
        return self


class Cache(Model):
    """Keys and values: bytes a token, and how many tokens a block holds."""

    per_token: Annotated[Bytes, Field(gt=0)] | None = None
    """Bytes of keys and values for one token, on all GPUs of a replica together; not needed next to tokens."""
    tokens: Annotated[Count, Field(le=MAX_TOKENS)] | None = None
    """Tokens whose keys and values a replica holds; as many as fit next to the model unless given."""
    block: Annotated[Count, Field(le=65_536)] = 16
    """Tokens in a block of memory, 16 unless given."""


class Prefixes(Model):
    """Beginnings of prompts are kept; one of a request's `hash_ids` stands for so many tokens."""

    tokens: Annotated[Count, Field(le=MAX_TOKENS)] = 512
    """Tokens that one of a request's hash_ids stands for, 512 unless given."""


class Autoscale(Model):
    """From `min` to `max` replicas, so many that each has about `target` requests; one change each `cooldown`."""

    min: Count = 1
    """Fewest replicas, 1 unless given."""
    max: Count
    """Most replicas."""
    target: Positive
    """Requests that each replica should have."""
    cooldown: Seconds = 0.0
    """Least time between two changes, 0 unless given."""

    @model_validator(mode="after")
    def _order(self) -> Autoscale:
        if self.max < self.min:
            raise KeyProblem("max", f"at most {self.max} replicas and at least {self.min} contradict each other")
        return self


class Disaggregated(Model):
    """Replicas that only prefill, and replicas that decode; keys and values move between them."""

    prefill: Count
    """Replicas that only read prompts."""
    decode: Count
    """Replicas that only decode."""


class TokenLimits(Model):
    """What a request may take: to its first token, and for each further token on average."""

    ttft: Seconds | None = None
    """Longest time from arrival to the first token; no limit unless given."""
    tpot: Seconds | None = None
    """Longest mean time for each further token; no limit unless given."""


class LanguageModel(Model):
    """A language model served by replicas, each on `gpus` devices of one node (the step times are for so many).

    `model` are the bytes of weights of one replica, which lie there when the run starts; what is left of the devices'
    memory holds keys and values.
    """

    kind: Literal["llm"]
    """llm: a language model that answers token by token."""
    step: StepTime
    """Time of a step, linear in what it does, for the given number of GPUs."""
    device: Name = "gpu"
    """Type or kind of device of the replicas, gpu unless given."""
    gpus: Count = 1
    """Devices of one node that each replica is on, 1 unless given."""
    replicas: Count | None = None
    """How many replicas, 1 unless given."""
    model: Bytes = 0
    """Bytes of weights of one replica, on its devices together; 0 unless given."""
    kv: Cache | None = None
    """Memory that keys and values take; without it memory is no limit."""
    max_num_batched_tokens: Annotated[Count, Field(le=MAX_TOKENS)] | None = None
    """Most tokens of a step: one for each sequence that decodes, and those of prompts; no limit unless given."""
    max_num_seqs: Annotated[Count, Field(le=1_000_000)] = 256
    """Most requests in a replica at a time; unless given 256, or fewer if no more were measured or fit into a step."""
    max_output_tokens: Annotated[Count, Field(le=MAX_TOKENS)] | Literal["exact"] | None = None
    """Longest answer that a request announces, at which answers end; exact: each announces its own length; none unless
    given."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """Time after its arrival at which a client aborts a request, even one that runs; endless unless given."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """When memory runs out: recompute (default) or swap to the host."""
    prefix_cache: Annotated[Prefixes, Short(lambda v: {} if v is True else v, {"const": True})] | None = None
    """Keeps beginnings of prompts: true, or the tokens that a hash stands for; off unless given."""
    disaggregated: Disaggregated | None = None
    """Separate replicas for prompts and for decoding."""
    autoscale: Autoscale | None = None
    """Adds and gives up replicas with the load."""
    slo: TokenLimits = TokenLimits()
    """Limits on first and further tokens that a request should keep."""
    batching: PolicyName = None
    """A policy of who joins a step, for this service: a name, or name and parameters."""
    routing: PolicyName = None
    """A policy of which replica serves a request, for this service: a name, or name and parameters."""

    @model_validator(mode="after")
    def _whole(self) -> LanguageModel:
        step = self.step
        self._measured_numbers()
        self._batch_limits()
        if not step.fixed and not ((step.per_prompt_token or step.prefill) and (step.per_sequence or step.decode)):
            raise KeyProblem("step", "every step needs some time; give fixed, or per_prompt_token and per_sequence")
        decoding = step.fixed + step.per_sequence
        if step.decode is not None and step.decode.measured is not None:
            decoding = min(step.decode.measured.seconds)
        for key, needed in (("ttft", step.fixed), ("tpot", decoding)):
            limit = getattr(self.slo, key)
            if limit is not None and limit < needed:
                what = f"no request can meet a {key} of {1e3 * limit:.4g} ms: a step takes {1e3 * needed:.4g} ms"
                raise KeyProblem("slo", what)
        if self.disaggregated is not None and self.autoscale is not None:
            raise KeyProblem("autoscale", "replicas that only prefill or only decode do not scale by themselves")
        for other in ("disaggregated", "autoscale"):
            if self.replicas is not None and getattr(self, other) is not None:
                raise KeyProblem("replicas", f"{other} says how many replicas there are; give one of the two")
        if self.prefix_cache is not None and self.kv is None:
            raise KeyProblem("prefix_cache", "prefixes are kept in KV blocks; give kv: {per_token: ...}")
        if self.prefix_cache is not None and self.kv is not None and self.prefix_cache.tokens % self.kv.block:
            what = f"{self.prefix_cache.tokens} tokens are no whole number of blocks of {self.kv.block}"
            raise KeyProblem("prefix_cache", what)
        for key in ("disaggregated", "preemption"):
            needed = self.disaggregated is not None if key == "disaggregated" else self.preemption == "swap"
            if needed and self.kv is None:
                raise KeyProblem(key, "keys and values are moved; give kv: {per_token: ...}")
        return self


    @property
    def most_sequences(self) -> int:
        """Most requests in a replica: unless it is given, no more than were measured."""
        decode = self.step.decode
        if "max_num_seqs" in self.model_fields_set:
            return self.max_num_seqs
        most = self.max_num_seqs
        if self.max_num_batched_tokens is not None:
            most = min(most, self.max_num_batched_tokens)
        if decode is None or decode.measured is None or decode.extrapolate:
            return most
        return min(most, decode.measured.sizes[-1])

    def _batch_limits(self) -> None:
        """A step has a token for every sequence, and a replica room for more than one announced answer."""
        budget, kv = self.max_num_batched_tokens, self.kv
        if budget is not None and "max_num_seqs" in self.model_fields_set and budget < self.max_num_seqs:
            text = f"a step of {budget:,} tokens cannot decode {self.max_num_seqs:,} sequences (max_num_seqs), one each"
            raise KeyProblem("max_num_batched_tokens", f"{text}; let it be at least {self.max_num_seqs:,}")
        if kv is None:
            return
        if kv.per_token is None and kv.tokens is None:
            raise KeyProblem("kv", "how much fits?  Give per_token (bytes), or tokens (of a replica)")
        if kv.tokens is not None and kv.tokens < kv.block:
            raise KeyProblem("kv", f"{kv.tokens:,} tokens do not fill one block of {kv.block}")
        if kv.per_token is None and (self.preemption == "swap" or self.disaggregated is not None):
            raise KeyProblem("kv", "keys and values are moved; give per_token, their bytes")

    def _measured_numbers(self) -> None:
        """No step is larger than what was measured, unless the table says that it goes on."""
        decode, prefill = self.step.decode, self.step.prefill
        if decode is not None and decode.measured is not None and not decode.extrapolate:
            largest = decode.measured.sizes[-1]
            if "max_num_seqs" in self.model_fields_set and self.max_num_seqs > largest:
                text = f"the largest measured number of step.decode is {largest}; extrapolate: true there goes beyond"
                raise KeyProblem("max_num_seqs", text)
        if prefill is not None and prefill.measured is not None and not prefill.extrapolate:
            largest = prefill.measured.sizes[-1]
            if self.max_num_batched_tokens is None or self.max_num_batched_tokens > largest:
                text = f"the largest measured number of step.prefill is {largest}; extrapolate: true there goes beyond"
                raise KeyProblem("max_num_batched_tokens", f"{text}, or let a step read no more than that")


def _kind(value: Any) -> str:
    if isinstance(value, LanguageModel):
        return "<llm>"
    return "<llm>" if isinstance(value, dict) and "kind" in value else "<batches>"


AnyService = Annotated[
    Annotated[Service, Tag("<batches>")] | Annotated[LanguageModel, Tag("<llm>")], Discriminator(_kind)
]
