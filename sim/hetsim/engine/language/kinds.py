"""The types of device on which replicas of a service may be, for the engine."""

from __future__ import annotations

import math

import numpy as np

from hetsim.engine.residents.holder import HolderType
from hetsim.model.service import LanguageService


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
