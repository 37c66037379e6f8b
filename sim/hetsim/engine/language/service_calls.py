"""The interface through which a language model's replicas call their service.

`hetsim.engine.language.llm_service.Fleet` implements it.  Lower modules declare replicas as `Any`.
"""

import math
from typing import Any

import numpy as np

from hetsim.engine.core.recorder import Recorder
from hetsim.engine.flight.links import Links
from hetsim.engine.language.generation import Generation
from hetsim.engine.language.kv_transfers import KVTransfers
from hetsim.engine.residents.holder import HolderType, Owner
from hetsim.model.service import LanguageService
from hetsim.policy.iterating import Foreseen


class ReplicaType(HolderType):
    """Replicas on one type of device: their speed, power and memory."""

    __slots__ = ("steps", "blocks")

    def __init__(self, service: LanguageService, position: int):
        given = service.kinds[position]
        super().__init__(position, service.shape.modes[position], given)
        self.steps = given.step
        self.blocks = given.blocks

    def measure(self, service: LanguageService, prompt: np.ndarray, output: np.ndarray) -> None:
        """Set the speed: tokens per second in full batches of requests of these lengths."""
        decoding = float((output - 1.0).mean()) / service.max_sequences
        filled = float((prompt + output - 1.0).mean()) / (service.max_num_batched_tokens or math.inf)
        seconds = self.steps.demand(prompt, output, service.max_sequences)[2]
        seconds += self.steps.fixed * max(decoding, filled)
        if seconds > 0:
            self.speed = float((prompt + output).mean()) / seconds


class ServiceCalls(Owner):
    """Calls that the replicas and clients of a language model make to its service."""

    service: LanguageService
    batching: Any
    kinds: list[ReplicaType]
    links: Links
    recorder: Recorder
    transfers: KVTransfers
    checked: bool  # True if each step boundary is checked for inconsistencies (--check)

    def foresee(self, replica: Any, newcomer: Generation | None) -> Foreseen:
        """Forecast a replica's requests from estimates, with `newcomer` added if given."""
        raise NotImplementedError

    # Of a request

    def drops(self, request: Generation) -> bool:
        """Return True if admission drops a request that is about to join a replica."""
        return False

    def joined(self, request: Generation, replica: Any) -> None:
        """Record that a request joined a replica; the first join is the request's start."""

    def looked_up(self, request: Generation, tokens: int) -> None:
        """Record how many prompt tokens of a request were cached when it joined."""

    def first_token(self, request: Generation) -> None:
        """Record the time of a request's first token."""

    def hand_over(self, request: Generation) -> None:
        """Route a prefilled request to another replica, which decodes it."""

    def gave_way(self, request: Generation, kind: str) -> None:
        """Count that a request was preempted or lost its replica; `kind`: the cause."""

    def finished(self, request: Generation, replica: Any) -> None:
        """Record a request that got its last token or was aborted."""

    # Of replicas

    def rested(self, replica: Any) -> None:
        """Handle a replica that has become idle: it may be stopped."""

    def number_launch(self) -> int:
        raise NotImplementedError

    def write(
        self, periods: Any, number: int, outcome: int, times: tuple[float, ...], busy: float, powered: float
    ) -> None:
        """Write a row of the launches table for a busy or idle period of a replica.

        If no request took part, the row names the service's first request.  busy: computed device-seconds.  powered:
        energy of the period, as device-seconds at nominal power.
        """
