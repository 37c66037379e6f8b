"""The calls upward of replicas and clients of a language model to its service.

`hetsim.engine.language.llm_service.Fleet` is it.  A replica is `Any` to what stands below it.
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
    """A replica on one type of device: its speed, power and memory."""

    __slots__ = ("steps", "blocks")

    def __init__(self, service: LanguageService, position: int):
        given = service.kinds[position]
        super().__init__(position, service.shape.modes[position], given)
        self.steps = given.step
        self.blocks = given.blocks

    def measure(self, service: LanguageService, prompt: np.ndarray, output: np.ndarray) -> None:
        """Compute the speed, in tokens per second of full batches, with these requests."""
        decoding = float((output - 1.0).mean()) / service.max_sequences
        filled = float((prompt + output - 1.0).mean()) / (service.max_num_batched_tokens or math.inf)
        seconds = self.steps.demand(prompt, output, service.max_sequences)[2]
        seconds += self.steps.fixed * max(decoding, filled)
        if seconds > 0:
            self.speed = float((prompt + output).mean()) / seconds


class ServiceCalls(Owner):
    """Calls that replicas and clients of one service make."""

    service: LanguageService
    batching: Any
    kinds: list[ReplicaType]
    links: Links
    recorder: Recorder
    transfers: KVTransfers
    checked: bool
    """True if there is a round at each boundary."""

    def foresee(self, replica: Any, newcomer: Generation | None) -> Foreseen:
        """Forecast the requests of a replica by estimates."""
        raise NotImplementedError

    # Of a request

    def drops(self, request: Generation) -> bool:
        """Return True if admission has dropped a request; in a forecast it does not."""
        return False

    def joined(self, request: Generation, replica: Any) -> None:
        """Note a request that joined a replica: the first time is its start."""

    def looked_up(self, request: Generation, tokens: int) -> None:
        """Note the prompt tokens that were in the prefix cache at the join."""

    def first_token(self, request: Generation) -> None:
        """Note the first token of a request."""

    def hand_over(self, request: Generation) -> None:
        """Hand a prefilled request to another replica, which decodes it."""

    def gave_way(self, request: Generation, kind: str) -> None:
        """Note a request that was preempted, or lost its replica."""

    def finished(self, request: Generation, replica: Any) -> None:
        """Note a request that has its last token, or was aborted."""

    # Of replicas

    def rested(self, replica: Any) -> None:
        """Note a replica that has nothing left to do."""

    def number_launch(self) -> int:
        raise NotImplementedError

    def write(
        self, periods: Any, number: int, outcome: int, times: tuple[float, ...], busy: float, powered: float
    ) -> None:
        """Write a row of launches; `leader` -1 (no request) names the service's first.

        busy, powered: device-seconds, as they passed and as they would draw as much at nominal power.
        """
