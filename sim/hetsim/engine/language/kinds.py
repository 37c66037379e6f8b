"""The types of device on which replicas of a service may be, for the engine."""

from __future__ import annotations

import math

import numpy as np

from hetsim.model.service import LanguageService


class ReplicaType:
    """A replica on one type of device: its speed, power and memory."""

    __slots__ = ("position", "mode", "steps", "blocks", "weights", "replicas", "prefillers", "width", "watts", "speed")

    def __init__(self, service: LanguageService, position: int):
        self.position = position
        """Position of its mode in the shape of the service's requests."""
        self.mode = mode = service.shape.modes[position]
        given = service.kinds[position]
        self.steps = given.step
        self.blocks = given.blocks
        self.weights = given.weights
        self.replicas, self.prefillers = given.replicas, given.prefillers
        self.width = mode.width
        self.watts = mode.type.power.busy - mode.type.power.idle
        """Watts of one device, above idle."""
        self.speed = 1.0
        """Tokens per second of full batches; only where there are unlike types."""

    def measure(self, service: LanguageService, prompt: np.ndarray, output: np.ndarray) -> None:
        """Compute the speed with these requests, each with its tokens and part of steps."""
        decoding = float((output - 1.0).mean()) / service.max_sequences
        filled = float((prompt + output - 1.0).mean()) / (service.max_num_batched_tokens or math.inf)
        seconds = self.steps.demand(prompt, output, service.max_sequences)[2]
        seconds += self.steps.fixed * max(decoding, filled)
        if seconds > 0:
            self.speed = float((prompt + output).mean()) / seconds
