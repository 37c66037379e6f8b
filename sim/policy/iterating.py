"""Continuous batching and routing: the policies of services that generate token by token.

A replica goes from step to step.  At a boundary the engine asks its batching policy in this order, and carries each
answer out before the next question: who gives way (as long as the sequences that decode lack KV blocks for their next
tokens), who joins (as long as the head of the waiting requests may), and what the step does.  Steps that only decode
are all alike: the policy is not asked again before a sequence ends, a request arrives that may join, or blocks run
out.  It never sees how long an answer will be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from sim.model.service import LanguageService


class Generation(Protocol):
    """A request as the policies of its service see it."""

    arrival: float
    priority: float
    prompt: int
    """Tokens of the prompt."""

    @property
    def produced(self) -> int:
        """Tokens generated so far."""
        ...

    @property
    def left(self) -> int:
        """Tokens to prefill before it can decode: of the prompt, and after it had to give way of its own too."""
        ...


class Replica(Protocol):
    """One copy of the model, on GPUs of its own."""

    service: LanguageService
    number: int

    @property
    def outstanding(self) -> int:
        """Requests that have been sent here and have not ended."""
        ...

    @property
    def now(self) -> float: ...

    @property
    def size(self) -> int:
        """Requests in it: its members, and those whose keys and values are on their way to it."""
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
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        ...

    def blocks_for(self, request: Any) -> int:
        """KV blocks that a waiting request would take by joining."""
        ...

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of its prompt whose keys and values are there already."""
        ...


class Step(NamedTuple):
    """What a step does: so many tokens of these members are prefilled, and whether the others decode."""

    prefill: Iterable[tuple[Any, int]] = ()
    decode: bool = True


class IterationPolicy:
    """Base of continuous batching policies.  There is one object for each service."""

    policy_kind: ClassVar[str] = "batching"
    iterates: ClassVar[bool] = True
    """It batches by iterations, so it is for language models; policies that form whole batches are not."""

    max_prompt_tokens: int | None = None
    """A step begins no further prompt once it reads this many tokens; None: it begins any number.  A load for which
    that is too little is a warning of the run."""

    def key(self, request: Generation) -> Any:
        """The order of the waiting requests, least first; constant while one waits."""
        return request.arrival

    def admits(self, replica: Replica, request: Generation) -> bool:
        """May the head of the waiting requests join?  The engine has seen to it that it fits."""
        return True

    def step(self, replica: Replica) -> Step:
        """What the next step does.  At least one member prefills or decodes."""
        raise NotImplementedError

    def victim(self, replica: Replica) -> Generation:
        """Who gives way, as blocks for the next tokens are lacking: a member that decodes or prefills."""
        raise NotImplementedError


class Routing:
    """Base of routing policies: which replica serves a request.  There is one object for each service."""

    policy_kind: ClassVar[str] = "routing"

    def choose(self, request: Generation, replicas: Sequence[Any], random: np.random.Generator) -> Replica:
        """Asked when a request arrives (and, where prefill and decode are separate, once more between them)."""
        raise NotImplementedError
