"""Continuous batching: policies of services that generate by tokens.

A replica goes from step to step.  At a boundary the engine asks its batching policy in this order, and carries each
answer out before the next question: which sequence is preempted (as long as the sequences that decode lack KV blocks
for their next tokens), which request joins (as long as the head of the waiting requests may), and what the step does.
Steps that only decode are all alike: the policy is not asked again before a sequence ends, a request arrives that may
join, or blocks run out, and one step after a preemption if the head may fit then.  It never sees how long an answer
will be.  Between two boundaries a replica shows what the steps that are over have left.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from hetsim.model.service import LanguageService
from hetsim.policy.routing import RoutedReplica, RoutedRequest


class Generation(RoutedRequest, Protocol):
    """A request as the policies of its service see it."""

    prompt: int
    """Tokens of the prompt."""
    longest: int
    """Tokens of the longest answer that it announces (`max_output_tokens` of the service); 0: it announces none."""

    @property
    def produced(self) -> int:
        """Tokens generated so far."""

    @property
    def to_prefill(self) -> int:
        """Tokens to prefill before decoding; after preemption all that it had."""


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
        """Time at which the first request leaves."""
        return min(self.ends.values(), default=math.inf)


class Replica(RoutedReplica, Protocol):
    """One copy of the model, on GPUs of its own."""

    service: LanguageService

    blocks: int
    """KV blocks that it has; replicas of a service on unlike devices may have unlike numbers."""

    @property
    def now(self) -> float: ...

    @property
    def size(self) -> int:
        """Number of members, and of requests whose keys and values are on their way."""

    @property
    def members(self) -> Sequence[Any]:
        """Requests that prefill or decode, in the order of joining."""

    @property
    def prefilling(self) -> Sequence[Any]:
        """Members that still have tokens to prefill, in the order of joining."""

    @property
    def decoding(self) -> int:
        """Number of members that generate a token in every step."""

    @property
    def heads(self) -> Mapping[str, Any]:
        """The first waiting request of each client that has any (`by_client` only)."""

    @property
    def steps(self) -> int:
        """Number of its steps that decoded."""

    @property
    def free_blocks(self) -> int:
        """Number of free KV blocks."""

    def blocks_for(self, request: Any) -> int:
        """Free KV blocks that a waiting request would take, idle prefixes too."""

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of its prompt that are in the prefix cache here."""

    def foresee(self, request: Any = None) -> Foreseen:
        """Forecast its requests (and `request`), if no others come.

        For routers, and not for batching policies at a boundary of the same replica: it is found by asking those.
        Cost: linear in the requests that are here; once for all questions until something happens here.
        """


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
    """True if it admits by the longest answers that requests announce.

    A service with requests that announce none is then refused, and a request that never fits is rejected.
    """

    by_client: bool = False
    """True if requests wait in one queue per client, and `turn` names the next client."""

    follows: bool = False
    """True if its hooks for requests that join, decode and leave a replica are called."""

    changes: bool = False
    """True if its answers may change while a replica only decodes, with the same members.

    Then it says when (`steady`).
    """

    def key(self, request: Generation) -> Any:
        """Sort key of waiting requests, lowest first; constant while waiting."""
        return request.arrival

    def turn(self, replica: Replica) -> str:
        """Choose the client, one of `heads`, whose request joins next."""
        raise NotImplementedError

    def queued(self, replica: Replica, request: Generation) -> None:
        """Hook: a request will wait; not yet among `heads` (`by_client` only)."""

    def joined(self, replica: Replica, request: Generation) -> None:
        """Hook: a request joins the replica, or its data are on their way."""

    def decodes(self, replica: Replica, request: Generation) -> None:
        """Hook: a request decodes in each decoding step from now on."""

    def request_left(self, replica: Replica, request: Generation, over: bool) -> None:
        """Hook: a joined request leaves (`follows` only)."""

    def admits(self, replica: Replica, request: Generation) -> bool:
        """Return True if the first waiting request, which fits, may join."""
        return True

    def steady(self, replica: Replica, request: Generation, steps: int) -> int:
        """Number of decode-only steps before the next call (`changes` only).

        request: the head of the waiting requests, which may not join now.  At least one; too few costs time only.
        """
        return steps

    def step(self, replica: Replica) -> BatchStep:
        """Decide the next step; at least one member prefills or decodes."""
        raise NotImplementedError

    def victim(self, replica: Replica) -> Generation:
        """Choose the member to preempt when blocks run out."""
        raise NotImplementedError
