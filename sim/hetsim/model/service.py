"""Services: requests of one kind that can be launched together as one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.cluster import DeviceType
from hetsim.model.step_times import StepTimes
from hetsim.model.tasks import Shape

if TYPE_CHECKING:
    from hetsim.model.units import Count, Fraction, Seconds, Whole


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
class ScaleBounds:
    """From `min` to `max` replicas of each role that scales."""

    min_replicas: Whole = field(default=1, metadata={"alias": "min"})
    """Fewest replicas."""
    max_replicas: Count = field(metadata={"alias": "max"})
    """Most replicas."""
    every: Seconds = field(default=math.inf, metadata={"optional": True})
    """Time between two questions to the policy; it is asked when a request comes or ends unless given."""
    roles: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")
    """Roles of a disaggregated service that scale; the others keep their number."""

    def within(self, number: int) -> int:
        """Return the number, or the bound that it exceeds."""
        return min(self.max_replicas, max(self.min_replicas, number))

    def check(self) -> None:
        """Raise KeyProblem for bounds that contradict each other."""
        if self.max_replicas < self.min_replicas:
            text = f"max must be at least min ({self.min_replicas}); got {self.max_replicas}"
            raise KeyProblem("max", text)


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """How a replica starts: the places of its weights by preference, and fixed times.

    The last place has them always; host memory and disks before it keep what comes through them.
    """

    fixed: Seconds = 0.0
    """Time before the weights begin to load: container, process, engine."""
    warm: Seconds | None = None
    """The same on a node where the service has had a replica; fixed unless given."""
    sources: tuple[str, ...] = field(default=("host",), metadata={"alias": "from"})
    """Where weights come from, by preference: gpu (of a replica there, over nvlink), host, disk, or a
    store's name; host unless given."""
    share: bool = False
    """True if a replica joins a load of the same model that is under way on its node."""


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
    swap: bool = False
    """True if preempted sequences are copied to the host instead of computed again."""
    scaling: ScaleBounds | None = None
    """Bounds of the replicas that a policy adds and gives up with the load; None: their number is fixed."""
    start: ReplicaStart = ReplicaStart()
    """How replicas start."""
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
