"""Services: requests launched together as one batch; and clients that give up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.cluster import DeviceType
from hetsim.model.step_times import StepTimes
from hetsim.model.tasks import Shape
from hetsim.model.units import Count, Fraction, Positive, Seconds


@dataclass(frozen=True, slots=True)
class ResultCache:
    """A cache of `size` results, evicted by lru or clock, that answers in `hit`.

    The inputs of the requests are the column `input` of `Tasks.extra`.
    """

    size: Count
    """How many results are kept."""
    evict: Literal["lru", "clock"] = "lru"
    """Which result goes when there is no room: lru or clock."""
    hit: Seconds = 0.0
    """Time of an answer from the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A stream of requests that are served in batches.

    `rows` are its rows of `Tasks`, in order of arrival; they alone have the service's shape.  A batch of n in mode j
    computes for `shape.modes[j].base` plus the sum of its requests' own times, which for most services are all
    `per_item[j]`; uploads and downloads are those of the mode.  `slo` is the relative deadline of each request.
    `noise` is the relative standard deviation of every stage time of a batch (normal, cut off at a tenth).
    """

    name: str
    shape: Shape
    rows: np.ndarray
    per_item: tuple[float, ...]
    slo: float = math.inf
    noise: Fraction = 0.0
    """Relative standard deviation of all stage times, from 0 to 30%."""
    alike: bool = True
    """True if all requests take exactly `per_item`."""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    """Private data of a request, on average."""
    cache: ResultCache | None = None
    request_delay: Seconds = field(default=0.0, metadata={"alias": "request"})
    """Time of a request from the front end to the node."""
    response_delay: Seconds = field(default=0.0, metadata={"alias": "response"})
    """Time of a response back to the front end."""
    about: dict[str, object] = field(default_factory=dict)
    """Further facts of its scenario entry for policies (tokens, cache, ...)."""
    policy_key: str = "policy.batching"
    """Where the scenario names its batching policy, for messages."""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """From `min` to `max` replicas, by a target load for each replica."""

    min_replicas: Count = field(default=1, metadata={"alias": "min"})
    """Fewest replicas."""
    max_replicas: Count = field(metadata={"alias": "max"})
    """Most replicas."""
    target: Positive
    """Requests that each replica should have."""
    cooldown: Seconds = 0.0
    """Least time between two changes."""

    def check(self) -> None:
        """Raise KeyProblem for bounds that contradict each other."""
        if self.max_replicas < self.min_replicas:
            text = f"at most {self.max_replicas} replicas and at least {self.min_replicas} contradict each other"
            raise KeyProblem("max", text)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaKind:
    """Replicas on one type of device: step times, KV blocks, weights, first count.

    `prefillers` only prefill; `replicas` are the others.
    """

    step: StepTimes
    blocks: int
    weights: int = 0
    replicas: int = 1
    prefillers: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LanguageService:
    """A language model with continuous batching: members change at steps.

    `rows` are its rows of `Tasks`; the columns `prompt_tokens` and `output_tokens` (of `Tasks.extra`) say how long
    these requests are.  They alone have its modes, each a replica on some devices of one type and node; `kinds` are
    what replicas are in these modes, in this order.  `token_bytes` is what the keys and values of a token take.
    """

    name: str
    shape: Shape
    rows: np.ndarray
    kinds: tuple[ReplicaKind, ...]
    block: Count = 16
    """Tokens in a block of memory."""
    token_bytes: int = 0
    max_num_batched_tokens: Count | None = None
    """Most tokens of a step: one for each sequence that decodes, and those of prompts; no limit unless given."""
    max_sequences: int = 256
    max_output: int | None = None
    """Longest answer that a request announces; 0: exactly as many tokens as it will have; None: it announces none."""
    timeout: Seconds = math.inf
    """Time after its arrival at which a client aborts a request, even one that runs."""
    swap: bool = False
    """True if preempted sequences are copied to the host instead of computed again."""
    autoscale: Autoscaling | None = None
    """Adds and gives up replicas with the load."""
    prefix_block: int = 0
    """Tokens that one of a request's `hash_ids` stands for, where prefixes are kept; 0: they are not."""
    ttft: Seconds = math.inf
    """Longest time from arrival to the first token."""
    tpot: Seconds = math.inf
    """Longest mean time for each further token."""
    request_delay: float = 0.0
    """Seconds until a request is at the replicas: over the network, and in front of them."""
    response_delay: float = 0.0
    """Seconds until a client has a token."""
    key: str = ""
    """Where the scenario describes the service, for messages."""

    @property
    def prefillers(self) -> int:
        """Replicas at the start that only prefill; 0: all do both."""
        return sum(kind.prefillers for kind in self.kinds)

    def kind_on(self, device: DeviceType) -> ReplicaKind:
        """The replica kind on this type of device."""
        position = next(k for k, mode in enumerate(self.shape.modes) if mode.type is device)
        return self.kinds[position]

    def __repr__(self) -> str:
        return self.name


Cause = Literal["timeout", "rejected", "failed"]
"""How an attempt ends badly."""

MAX_TOKENS = 10.0
"""Retries and hedges that a budget may save up, as in gRPC's retry throttling."""

MAX_HEDGES = 20
"""Most hedges of an attempt: each call has rows for all its attempts."""

MAX_CLIENTS = 2**31 - 1
"""Most clients of an entry: their numbers are stored in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWait:
    """The wait before a retry: `first`, then each time longer by `factor`."""

    first: Seconds = 0.0
    """Wait before the first retry."""
    factor: Positive = 2.0
    """By how much each further wait is longer."""
    longest: Seconds = field(default=math.inf, metadata={"alias": "max"})
    """Longest wait."""
    jitter: Literal["full", "exponential", "none"] = "none"
    """full: drawn uniformly between 0 and the wait; exponential: with it as mean; or none."""

    def check(self) -> None:
        if self.factor < 1:
            raise KeyProblem("factor", f"a wait never becomes shorter; give 1 or more, not {self.factor:g}")

    def seconds(self, retry: int, drawn: float) -> float:
        """Wait before the retry of this number; `drawn`: the part after jitter."""
        try:
            return min(self.longest, self.first * self.factor**retry) * drawn
        except OverflowError:
            return self.longest * drawn if self.first > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retries: a call whose attempt failed is sent again, at most `times` times."""

    times: Count
    """Most retries of a call."""
    on: list[Cause] = field(default_factory=lambda: ["timeout", "rejected", "failed"])
    """Causes of a retry: an attempt that timed out, was rejected (or expired), or failed."""
    wait: RetryWait = RetryWait()
    """Wait before each retry."""
    size: Literal["same", "new"] = "same"
    """same: an attempt takes as long as the first; new: as long as a random call of its class."""
    budget: Fraction | None = None
    """Most retries and hedges as a share of the calls so far, at most 10 saved up; no limit unless given."""

    def check(self) -> None:
        if not self.on:
            raise KeyProblem("on", "these retries have nothing to react to; name timeout, rejected or failed")
        if self.times > 100:
            raise KeyProblem("times", f"at most 100 retries of a call, not {self.times}")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise KeyProblem("budget", f"a budget is a share of the calls above 0 and up to 100%, not {self.budget:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """Hedges: another attempt of a call is sent while one has no answer yet."""

    after: Seconds
    """Time from each attempt to the next one; with 0 s all are sent at once."""
    times: Count = 1
    """Most hedges of an attempt; a retry has as many again."""
    size: Literal["same", "new"] = "same"
    """same: a hedge takes as long as the attempt; new: as long as a random call of its class."""

    def check(self) -> None:
        if self.times > MAX_HEDGES:
            raise KeyProblem("times", f"at most {MAX_HEDGES} hedges of an attempt, not {self.times}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Clients whose calls are series of attempts until one is answered."""

    timeout: Seconds = math.inf
    """Time that an attempt may take, waiting or running."""
    at_timeout: Literal["leave", "cancel"] = "leave"
    """leave: the server does not know, and works on; cancel: it stops; also where another attempt was answered."""
    give_up_after: Seconds = math.inf
    """Time after which the whole call is given up."""
    retry: Retry | None = None
    """When a call is sent again; never unless given."""
    hedge: Hedge | None = None
    """When a call is sent once more although it is still awaited; never unless given."""
    count: Count | None = None
    """Clients from which the calls come, drawn for each, every one with a retry budget of its own; one unless given."""

    def check(self) -> None:
        for key, value in (("timeout", self.timeout), ("give_up_after", self.give_up_after)):
            if value <= 0:
                raise KeyProblem(key, "a client waits for some time; leave it out where it waits for ever")
        if self.retry is None and self.hedge is None and math.isinf(self.timeout) and math.isinf(self.give_up_after):
            raise KeyProblem("timeout", "these clients do nothing; give timeout, give_up_after, retry or hedge")
        if self.hedge is not None and self.hedge.after >= (limit := min(self.timeout, self.give_up_after)):
            text = f"no attempt is awaited for so long; give less than the {limit:g} s after which its client leaves"
            raise KeyProblem("hedge", text, "after")
        if self.count is not None and self.count > MAX_CLIENTS:
            raise KeyProblem("count", f"at most {MAX_CLIENTS:,} clients, not {self.count:,}")
        if self.count is not None and (self.retry is None or self.retry.budget is None):
            raise KeyProblem("count", "clients are told apart by their retry budgets, and there is none")

    @property
    def copies(self) -> int:
        """Most attempts that a call has at a time."""
        return 1 if self.hedge is None else 1 + self.hedge.times

    @property
    def attempts(self) -> int:
        """Most attempts of a call: its retries and all hedges included."""
        return self.copies * (1 if self.retry is None else 1 + self.retry.times)


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The attempts of all calls, by row of the tasks; later ones arrive as sent.

    `whose`: index in `clients`, -1 for a task that is not an attempt; `attempt_of`: row of the first attempt of the
    same call (-1 likewise); `following`: row of the next attempt, -1 if there is none, where those of a retry stand
    behind all hedges before it; `number`: how many attempts of its call stand before it; `bucket`: which retry budget
    the call uses; `drawn`: the part that jitter leaves of the wait before this attempt.
    """

    clients: list[Clients]
    whose: np.ndarray
    attempt_of: np.ndarray
    following: np.ndarray
    number: np.ndarray
    bucket: np.ndarray
    drawn: np.ndarray
