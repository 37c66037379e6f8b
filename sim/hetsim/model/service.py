"""Services: requests of one kind that can be launched together as one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode, Shape
from hetsim.model.step_times import StepTimes

if TYPE_CHECKING:
    from hetsim.model.units import Count, Fraction, Seconds, Share, Whole


@dataclass(frozen=True, slots=True)
class ResultCache:
    """A cache of `size` results that answers in `hit` seconds, with LRU or CLOCK.

    The inputs of the requests are the column `input` of `Tasks.extra`.
    """

    size: Count
    """Maximum number of cached results."""
    evict: Literal["lru", "clock"] = "lru"
    """Result to evict when the cache is full: least recently used (lru), or by CLOCK (clock)."""
    hit: Seconds = 0.0
    """Time in which the cache answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBounds:
    """Bounds of the number of replicas, for each role (prefill, decode) that scales."""

    min_replicas: Whole = field(default=1, metadata={"alias": "min"})
    """Minimum number of replicas."""
    max_replicas: Count = field(metadata={"alias": "max"})
    """Maximum number of replicas."""
    every: Seconds = field(default=math.inf, metadata={"optional": True})
    """Time between two calls of the scaling policy. Default: a call at each arrival and each end of a request."""
    roles: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")
    """Roles of a disaggregated service that scale; the other roles keep their number of replicas."""

    def within(self, number: int) -> int:
        low, high = self.min_replicas, self.max_replicas
        return low if number < low else high if number > high else number

    def check(self) -> None:
        """Raise KeyProblem for bounds that contradict each other."""
        if self.max_replicas < self.min_replicas:
            text = f"max must be at least min ({self.min_replicas}); got {self.max_replicas}"
            raise KeyProblem("max", text)


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """How a replica starts: fixed times, and sources of its weights.

    The last source always has the weights; host memory and disks before it store a copy of weights that pass through.
    """

    fixed: Seconds = 0.0
    """Time before the weights begin to load: start of container, process and engine."""
    warm: Seconds | None = None
    """Time before the weights load on a node where the service already had a replica. Default: `fixed`."""
    sources: tuple[str, ...] = field(default=("host",), metadata={"alias": "from"})
    """Where weights come from, by preference: gpu (of another replica on the node, over nvlink), host, disk, or the
    name of a store. Default: host."""
    share: bool = False
    """True if a starting replica shares a transfer of the same weights that is in progress on its node."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaKind:
    """Replicas on one device type: step times, KV blocks, weights, initial numbers.

    `prefillers`: number of replicas that only prefill; `replicas`: number of all other replicas.  `mode`: in services
    that form batches instead of steps, what a replica occupies: devices of one node, and cores and memory of the host.
    """

    step: StepTimes
    blocks: int
    weights: int = 0
    replicas: int = 1
    prefillers: int = 0
    mode: Mode | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A stream of requests that are served in batches.

    `rows` are its rows of `Tasks`, in order of arrival; no other tasks have its `shape`.  A batch of n requests in mode
    j computes for `shape.modes[j].base(n)` plus the sum of its requests' own times (for most services each is
    `per_item[j]`); uploads and downloads are those of the mode.  `slo` is the relative deadline of each request.
    `noise` is the relative standard deviation of every stage time of a batch (normal factors, at least 0.1).
    """

    name: str
    shape: Shape
    rows: np.ndarray
    per_item: tuple[float, ...]
    slo: float = math.inf
    noise: Fraction = 0.0
    """Relative standard deviation of all stage times, from 0 to 30%."""
    alike: bool = True  # True if all requests take exactly `per_item`
    bytes_in: float = 0.0
    bytes_out: float = 0.0  # mean bytes of output per request
    cache: ResultCache | None = None
    request_delay: Seconds = field(default=0.0, metadata={"alias": "request"})
    """Time of a request from the front end to the node."""
    response_delay: Seconds = field(default=0.0, metadata={"alias": "response"})
    """Time of a response back to the front end."""
    about: dict[str, object] = field(default_factory=dict)  # other data of the scenario entry, for policies
    policy_key: str = "policy.batching"  # scenario key of the batching policy, for messages
    # Its replicas in each of its modes, if it has any; else batches run wherever the scheduler starts them.
    kinds: tuple[ReplicaKind, ...] = ()
    scaling: ScaleBounds | None = None
    start: ReplicaStart = ReplicaStart()
    key: str = ""  # where the scenario describes the service, for messages
    prefillers: ClassVar[int] = 0

    @property
    def max_sequences(self) -> int:
        """Maximum number of requests in a batch."""
        return max(mode.batch_limit for mode in self.shape.modes)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class LanguageService:
    """A language model with continuous batching: the batch changes between steps.

    `rows` are its rows of `Tasks`; the columns `prompt_tokens` and `output_tokens` (of `Tasks.extra`) have the lengths
    of its requests.  Each mode of `shape` is a replica on devices of one type and node; `kinds` describes the replicas
    in the order of the modes.  `token_bytes`: size of the keys and values of one token.
    """

    name: str
    shape: Shape
    rows: np.ndarray
    kinds: tuple[ReplicaKind, ...]
    block: Count = 16
    """Number of tokens per block of KV memory."""
    token_bytes: int = 0
    max_num_batched_tokens: Count | None = None
    """Maximum tokens of a step: one per decoding sequence, plus prompt tokens. Default: no limit."""
    async_scheduling: bool = False
    """Clients see the results of a step after the replica's next step, or when it has become idle."""
    scheduler_recv_interval: Count = 1
    """Decoding steps between two looks at new requests. A step that read prompts is followed by a look."""
    batch_wait_max_tokens_ratio: Share = 0.0
    """While answers run, prompts wait until a step has this share of max_num_batched_tokens."""
    batch_wait_timeout_iters: Count = 0
    """Maximum number of decoding steps for which prompts wait (batch_wait_max_tokens_ratio)."""
    max_sequences: int = 256
    max_output: int | None = None
    """Maximum answer length that each request announces; 0: it announces its exact length; None: it announces none."""
    swap: bool = False  # True if preempted sequences are copied to the host; False if they are recomputed
    scaling: ScaleBounds | None = None  # bounds for the scaling policy; None: the number is fixed
    start: ReplicaStart = ReplicaStart()
    """Fixed times and weight sources of starting replicas."""
    prefix_block: int = 0
    """Number of tokens per entry of a request's `hash_ids`, for prefix caching; 0 disables it."""
    ttft: Seconds = math.inf
    """Maximum time from arrival to the first token."""
    tpot: Seconds = math.inf
    """Maximum mean time per further token."""
    request_delay: float = 0.0  # seconds from arrival until the request waits at a replica
    response_delay: float = 0.0  # seconds that a token takes to reach the client
    key: str = ""  # scenario key that describes the service, for messages

    @property
    def prefillers(self) -> int:
        """Initial number of replicas that only prefill; 0 if all prefill and decode."""
        return sum(kind.prefillers for kind in self.kinds)

    def kind_on(self, device: DeviceType) -> ReplicaKind:
        position = next(k for k, mode in enumerate(self.shape.modes) if mode.type is device)
        return self.kinds[position]

    def __repr__(self) -> str:
        return self.name
