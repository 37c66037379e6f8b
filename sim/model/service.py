"""Services: requests of one kind, many of which can be launched together as one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sim.model.batch_times import StageTable
from sim.model.tasks import Shape


@dataclass(frozen=True)
class ResultCache:
    """Results of `size` inputs are kept (`evict`: lru or clock), and answer in `hit` seconds.

    The inputs of the requests are the column `input` of `Tasks.extra`.
    """

    size: int
    evict: str = "lru"
    hit: float = 0.0


@dataclass(frozen=True, eq=False)
class Service:
    """A stream of requests that are served in batches.

    `rows` are its rows of `Tasks`, in order of arrival; they alone have the service's shape.  A batch of n in mode j
    computes for `shape.modes[j].fixed` plus the sum of its requests' own times, which for most services are all
    `per_item[j]`; uploads and downloads are those of the mode.  `slo` is the relative deadline of each request.
    `noise` is the relative standard deviation of every stage time of a batch (normal, cut off at a tenth).
    """

    name: str
    shape: Shape
    rows: np.ndarray
    per_item: tuple[float, ...]
    slo: float = math.inf
    noise: float = 0.0
    alike: bool = True
    """Do all requests take `per_item` exactly?"""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    """Private data of a request, on average."""
    cache: ResultCache | None = None
    request_delay: float = 0.0
    response_delay: float = 0.0
    """Seconds between the front end, where requests arrive, and the node that serves them, there and back."""
    about: dict[str, object] = field(default_factory=dict)
    """What else its scenario entry says that policies may want to know (tokens, cache, ...)."""
    policy_key: str = "policy.batching"
    """Where the scenario names its batching policy, for messages."""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step of a language model on one replica, linear in what the step does, or as it was measured.

    `decode` and `prefill` are what a step takes that decodes so many sequences, or reads so many prompt tokens, and
    does nothing else; they stand in place of `per_sequence` and `per_prompt_token`.  A step that does both takes both,
    `fixed` counted once.
    """

    fixed: float = 0.0
    per_sequence: float = 0.0
    per_prompt_token: float = 0.0
    per_context_token: float = 0.0
    decode: StageTable | None = None
    prefill: StageTable | None = None

    def decodes(self, sequences: int) -> float:
        """What decoding so many sequences adds to `fixed`, but for their context."""
        if self.decode is None:
            return self.per_sequence * sequences
        return self.decode.of(sequences) - self.fixed if sequences else 0.0

    def reads(self, prompt_tokens: int) -> float:
        """What reading so many prompt tokens adds to `fixed`."""
        if self.prefill is None:
            return self.per_prompt_token * prompt_tokens
        return self.prefill.of(prompt_tokens) - self.fixed if prompt_tokens else 0.0

    def of(self, prompt_tokens: int, sequences: int, context: int) -> float:
        """A step that prefills so many tokens and decodes so many sequences with so much context in all."""
        decoding = self.decodes(sequences) + self.per_context_token * context
        return self.fixed + self.reads(prompt_tokens) + decoding

    def decoding(self, steps: int, sequences: int, context: int) -> float:
        """So many steps that only decode, one after the other: the context grows by a token a sequence and step."""
        first = self.fixed + self.decodes(sequences) + self.per_context_token * context
        return steps * first + self.per_context_token * sequences * (steps * (steps - 1) // 2)

    def alone(self, prompt: np.ndarray, output: np.ndarray, chunk: int | None) -> np.ndarray:
        """Seconds from the first step to the last of requests that have a replica to themselves."""
        prefills = np.ones(len(prompt)) if chunk is None else np.ceil(prompt / chunk)
        decodes = output - 1.0
        context = decodes * prompt + decodes * output / 2
        steps = self.fixed * (prefills + decodes) + self.decodes(1) * decodes
        return steps + self._reading(prompt, chunk) + self.per_context_token * context

    def _reading(self, prompt: np.ndarray, chunk: int | None) -> np.ndarray:
        """What reading each of these prompts alone, in chunks of so many tokens, adds to `fixed` in all its steps."""
        if self.prefill is None:
            return self.per_prompt_token * prompt
        tokens, place = np.unique(prompt, return_inverse=True)
        parts = [(0, int(one)) if chunk is None else divmod(int(one), chunk) for one in tokens.tolist()]
        seconds = [whole * self.reads(chunk or 0) + self.reads(rest) for whole, rest in parts]
        return np.array(seconds)[place].reshape(prompt.shape)

    def least(self, sequences: int) -> tuple[float, float]:
        """The least that a decoded token of up to so many sequences, and a prompt token, add to `fixed`."""
        each = self.per_sequence
        if self.decode is not None:
            each = max(0.0, self.decode.least_per_item(sequences) - self.fixed / sequences)
        token = self.per_prompt_token
        if self.prefill is not None:
            largest = self.prefill.sizes[-1]
            sizes = (*self.prefill.sizes, 1 << 20) if len(self.prefill.sizes) > 1 else (largest,)
            token = max(0.0, min(self.reads(size) / size for size in sizes))
        return each, token


@dataclass(frozen=True)
class Autoscaling:
    """Between `least` and `most` replicas, so many that each has about `target` requests; a change at most each
    `cooldown` seconds."""

    least: int
    most: int
    target: float
    cooldown: float


@dataclass(frozen=True, eq=False)
class LanguageService:
    """A language model that generates token by token: requests join and leave at the boundaries of its steps.

    `rows` are its rows of `Tasks`, whose columns `prompt_tokens` and `output_tokens` (of `Tasks.extra`) say how long
    requests are; they alone have its one mode, a replica on `gpus` devices of one node.  The keys and values of
    `block` tokens fill one KV block, of which a replica has `blocks`; `token_bytes` is what one token's take.
    `budget`: most tokens of a step, those that it decodes and those of prompts together; None: no limit.
    """

    name: str
    shape: Shape
    rows: np.ndarray
    step: StepTimes
    blocks: int
    block: int = 16
    token_bytes: int = 0
    weights: int = 0
    budget: int | None = None
    max_sequences: int = 256
    max_output: int | None = None
    """Longest answer that a request announces; 0: exactly as many tokens as it will have; None: it announces none."""
    timeout: float = math.inf
    """Seconds after which a client aborts its request, running or not."""
    swap: bool = False
    """Are sequences that must give way copied to the host, rather than computed again?"""
    replicas: int = 1
    """At the start of the run; where prefill and decode are separate, those that decode."""
    prefillers: int = 0
    """Replicas that only prefill; 0: every replica does both."""
    scaling: Autoscaling | None = None
    prefix_block: int = 0
    """Tokens that one of a request's `hash_ids` stands for, where prefixes are kept; 0: they are not."""
    ttft: float = math.inf
    tpot: float = math.inf
    """Limits on the time to the first token and the time per further token."""
    key: str = ""
    """Where the scenario describes the service, for messages."""

    def __repr__(self) -> str:
        return self.name
