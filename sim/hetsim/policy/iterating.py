"""Continuous batching and routing: policies of services that generate by tokens.

A replica goes from step to step.  At a boundary the engine asks its batching policy in this order, and carries each
answer out before the next question: which sequence is preempted (as long as the sequences that decode lack KV blocks
for their next tokens), which request joins (as long as the head of the waiting requests may), and what the step does.
Steps that only decode are all alike: the policy is not asked again before a sequence ends, a request arrives that may
join, or blocks run out, and one step after a preemption if the head may fit then.  It never sees how long an answer
will be.  Between two boundaries a replica shows what the steps that are over have left.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hetsim.model.service import LanguageService
from hetsim.model.tasks import Mode


class Generation(Protocol):
    """A request as the policies of its service see it."""

    row: int
    arrival: float
    priority: float
    weight: float
    client: str
    """The client that has sent it: its `user`."""
    prompt: int
    """Tokens of the prompt."""
    longest: int
    """Tokens of the longest answer that it announces (`max_output_tokens` of the service); 0: it announces none."""

    @property
    def produced(self) -> int:
        """Tokens generated so far."""
        ...

    @property
    def to_prefill(self) -> int:
        """Tokens to prefill before it can decode; after preemption also those it had."""
        ...


class Foreseen(NamedTuple):
    """Estimated joins, first tokens and leaves of a replica's requests, by row.

    As far as estimates tell, if no others come. A request leaves with its last token or, where prefill is apart, with
    its prompt read.

    An answer is as long as the estimate of its request says, and one that has become longer
    ends with the next token; steps, joins and preemptions are those that the batching policy will want.  Of a request
    that has joined already, or has its first token, no time of that is there; what cannot be told is not there either.
    """

    starts: Mapping[int, float]
    first_tokens: Mapping[int, float]
    ends: Mapping[int, float]
    rests: float
    """When nothing is left to do there; inf: that cannot be told."""

    @property
    def first_end(self) -> float:
        """When the first of them leaves."""
        return min(self.ends.values(), default=math.inf)


class Replica(Protocol):
    """One copy of the model, on GPUs of its own."""

    service: LanguageService
    number: int

    blocks: int
    """KV blocks that it has; replicas of a service on unlike devices may have unlike numbers."""

    speed: float
    """Tokens per second of full batches there, as far as its devices and the requests of the service tell: what counts
    is how they compare among replicas on unlike devices."""

    @property
    def outstanding(self) -> int:
        """Requests that have been sent here and have not ended."""
        ...

    @property
    def now(self) -> float: ...

    @property
    def size(self) -> int:
        """Requests in it: members, and those with keys and values on their way to it."""
        ...

    @property
    def members(self) -> Sequence[Any]:
        """The requests that prefill or decode, in the order in which they joined."""
        ...

    @property
    def prefilling(self) -> Sequence[Any]:
        """Those of them that still have tokens to prefill, in that order."""
        ...

    @property
    def decoding(self) -> int:
        """How many of them generate a token in every step."""
        ...

    @property
    def heads(self) -> Mapping[str, Any]:
        """The first waiting request of each client that has any (`by_client` only)."""
        ...

    @property
    def steps(self) -> int:
        """Steps so far in which it has decoded."""
        ...

    @property
    def free_blocks(self) -> int:
        """KV blocks that are free."""
        ...

    def blocks_for(self, request: Any) -> int:
        """Free KV blocks that a waiting request would take, idle prefixes included."""
        ...

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of its prompt with keys and values there already."""
        ...

    def foresee(self, request: Any = None) -> Foreseen:
        """Future of its requests (with `request`: and that one) if no others come.

        For routers, and not for batching policies at a boundary of the same replica: it is found by asking those.
        Cost: linear in the requests that are here; once for all questions until something happens here.
        """
        ...


class BatchStep(NamedTuple):
    """A step: numbers of tokens to prefill by member, and whether the others decode."""

    prefill: Iterable[tuple[Any, int]] = ()
    decode: bool = True


class IterationPolicy:
    """Base of continuous batching policies.  There is one object for each service."""

    policy_kind: ClassVar[str] = "batching"
    iterates: ClassVar[bool] = True
    """It batches by iterations, so it is for language models; policies that form whole batches are not."""

    reserves: bool = False
    """Does it admit by the longest answers that requests announce?

    A service with requests that announce none is then refused, and a request that never fits is rejected.
    """

    by_client: bool = False
    """Do requests wait in a line for each client, of which `turn` names the next?"""

    follows: bool = False
    """Is it told which requests join, decode and leave a replica?"""

    changes: bool = False
    """May its answers change while a replica only decodes, with the same members?

    Then it says when (`steady`).
    """

    def key(self, request: Generation) -> Any:
        """The order of the waiting requests, least first; constant while one waits."""
        return request.arrival

    def turn(self, replica: Replica) -> str:
        """The client with the next request to join, one of `heads`."""
        raise NotImplementedError

    def queued(self, replica: Replica, request: Generation) -> None:
        """A request is about to wait; it is not among the `heads` yet (`by_client` only)."""

    def joined(self, replica: Replica, request: Generation) -> None:
        """A request joins the replica, or its keys and values will."""

    def decodes(self, replica: Replica, request: Generation) -> None:
        """A request decodes a token in each decoding step from now on."""

    def request_left(self, replica: Replica, request: Generation, over: bool) -> None:
        """A joined request leaves the replica: complete, or preempted (`follows` only)."""

    def admits(self, replica: Replica, request: Generation) -> bool:
        """Return True if the head of the waiting requests, which fits, may join."""
        return True

    def steady(self, replica: Replica, request: Generation, steps: int) -> int:
        """The number of decode-only steps until it must be asked again (`changes` only).

        request: the head of the waiting requests, which may not join now.  At least one; too few costs time only.
        """
        return steps

    def step(self, replica: Replica) -> BatchStep:
        """Decide the next step; at least one member prefills or decodes."""
        raise NotImplementedError

    def victim(self, replica: Replica) -> Generation:
        """The request to preempt when blocks run out: a member that decodes or prefills."""
        raise NotImplementedError


class WantedReplica(NamedTuple):
    """A missing replica: at the begin, after a failure or stop, or for load."""

    service: LanguageService
    modes: tuple[Mode, ...]
    """In which it can be, the preferred one first: one for each type of device that the service names."""
    prefills_only: bool
    requests: int
    """Requests to the service that have arrived and have not ended."""


class OpenReplicas(Sequence[Any]):
    """Replicas that take requests, in the order of their start, with their loads."""

    __slots__ = ("replicas", "members", "loads")

    def __init__(self, replicas: list[Any]):
        self.replicas, self.members = replicas, set(replicas)
        self.loads = np.array([(replica.outstanding + 1) / replica.speed for replica in replicas])
        """Outstanding requests, a further one included, for the speed of the replica; kept up to date."""

    def __len__(self) -> int:
        return len(self.replicas)

    def __getitem__(self, place: Any) -> Any:
        return self.replicas[place]

    def __contains__(self, replica: Any) -> bool:
        return isinstance(replica, Hashable) and replica in self.members

    def least_loaded(self) -> Any:
        """The replica with the least load, the first of equals."""
        return self.replicas[int(self.loads.argmin())]


class Routing:
    """Base of routing policies: the replica for a request; one object a service."""

    policy_kind: ClassVar[str] = "routing"

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        """Choose at a request's arrival, and between prefill and decode."""
        raise NotImplementedError
