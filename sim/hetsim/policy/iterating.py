"""Continuous batching: policies of language models that batch step by step.

Between two steps of a replica the engine asks its batching policy in this order, and applies each answer before the
next question: which sequence to preempt (as long as decoding sequences lack KV blocks for their next tokens), which
request joins (as long as the first waiting request may join), and what the step does.  A series of decode-only steps
needs no calls until a sequence ends, a request arrives that may join, or blocks run out; after a preemption the policy
is also called after one step, if the first waiting request may fit.  The policy never sees the length of an answer.
Within a step, a replica shows its state after the last complete step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from hetsim.model.service import LanguageService
from hetsim.policy.routing import RoutedReplica, RoutedRequest


class Generation(RoutedRequest, Protocol):
    """A request to a language model, as its batching and routing policies see it."""

    prompt: int  # tokens of the prompt
    longest: int  # maximum tokens of the answer that it announces (`max_output_tokens` of the service); 0: none

    @property
    def produced(self) -> int:
        """Number of tokens generated so far."""

    @property
    def to_prefill(self) -> int:
        """Number of tokens to prefill before decoding; after a preemption, all its tokens."""


class Foreseen(NamedTuple):
    """Estimated times at which a replica's requests join, get a token, and leave.

    All times are by row of the request, and assume that no other requests arrive.  A request leaves when its last token
    is generated or, on a prefill replica, when its prompt is prefilled.  Each answer is assumed to have its estimated
    length, or one more token if it is already longer.  Steps, joins and preemptions are those of the batching policy.
    Times that have passed, or that cannot be estimated, are left out.
    """

    starts: Mapping[int, float]
    first_tokens: Mapping[int, float]
    ends: Mapping[int, float]
    rests: float  # when the replica has no work left; inf: unknown

    @property
    def first_end(self) -> float:
        """Time at which the first request leaves; inf if no such time can be estimated."""
        return min(self.ends.values(), default=math.inf)


class Replica(RoutedReplica, Protocol):
    """One copy of the model, on devices that no other replica uses."""

    service: LanguageService

    blocks: int  # KV blocks that it has; replicas of a service on different device types may differ

    @property
    def now(self) -> float: ...

    @property
    def size(self) -> int:
        """Number of requests that have joined, or whose KV cache is being sent here."""

    @property
    def members(self) -> Sequence[Any]:
        """Requests in their prefill or decode phase, in the order in which they joined."""

    @property
    def prefilling(self) -> Sequence[Any]:
        """Joined requests that still have tokens to prefill, in the order of joining."""

    @property
    def decoding(self) -> int:
        """Number of requests that generate a token in every step."""

    @property
    def heads(self) -> Mapping[str, Any]:
        """The first waiting request of each client; defined for policies with `by_client`."""

    @property
    def steps(self) -> int:
        """Number of steps of this replica in which sequences decoded."""

    @property
    def free_blocks(self) -> int:
        """Number of free KV blocks."""

    def blocks_for(self, request: Any) -> int:
        """Return the number of free KV blocks that a waiting request needs to join."""

    def cached(self, request: Any) -> int:
        """Return how many leading tokens of the request's prompt are in the prefix cache."""

    def foresee(self, request: Any = None) -> Foreseen:
        """Forecast the replica's requests (and `request`, if given) if no request arrives.

        This is for routers.  A batching policy must not call it at a boundary of the same replica, since the forecast
        calls the batching policy.

        Cost: linear in the requests of the replica; cached until the replica changes.
        """


class BatchStep(NamedTuple):
    """A step: tokens to prefill for some requests, and whether all others decode."""

    prefill: Iterable[tuple[Any, int]] = ()
    decode: bool = True


class IterationPolicy:
    """Base of continuous (iteration-level) batching policies; one object per service."""

    policy_kind: ClassVar[str] = "batching"
    iterates: ClassVar[bool] = True  # True: it is for language models; policies that form whole batches are not

    reserves: bool = False
    """True if a request joins only if KV blocks will suffice for the longest answers that the requests announce.  A
    service whose requests announce no length is then an error, and a request that can never fit is rejected."""

    by_client: bool = False  # True if requests wait in one queue per client, and `turn` names the next client

    follows: bool = False  # True if its hooks for requests that join, decode and leave a replica are called

    changes: bool = False  # True if its answers may change while the same members only decode: see `steady`

    def key(self, request: Generation) -> Any:
        """Return the sort key of a waiting request, lowest first; constant while it waits."""
        return request.arrival

    def turn(self, replica: Replica) -> str:
        """Return the client (a key of `heads`) whose request joins next."""
        raise NotImplementedError

    def queued(self, replica: Replica, request: Generation) -> None:
        """Hook if `self.by_client`: a request begins to wait, not yet in `replica.heads`."""

    def joined(self, replica: Replica, request: Generation) -> None:
        """Hook: a request joins the replica, or its KV transfer to the replica begins."""

    def decodes(self, replica: Replica, request: Generation) -> None:
        """Hook: from now on a request decodes in each decoding step, until it leaves."""

    def request_left(self, replica: Replica, request: Generation, over: bool) -> None:
        """Hook: a request that had joined leaves the replica; called if `self.follows`.

        over: True if the request has ended; False if it is preempted, goes to another replica, or the replica fails.
        """

    def admits(self, replica: Replica, request: Generation) -> bool:
        """Return True if the first waiting request may join; its KV blocks are available."""
        return True

    def steady(self, replica: Replica, request: Generation, steps: int) -> int:
        """Return the number of steps, 1 to `steps`, until the policy must be asked again.

        The engine calls this only if `changes` is True, the next `steps` steps only decode, and `request` (the first
        waiting request) may not join now.  A number that is too small only costs time.
        """
        return steps

    def step(self, replica: Replica) -> BatchStep:
        """Return the next step, in which at least one request prefills or decodes."""
        raise NotImplementedError

    def victim(self, replica: Replica) -> Generation:
        """Return the joined request to preempt when KV blocks run out."""
        raise NotImplementedError
