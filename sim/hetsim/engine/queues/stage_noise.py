"""Noise on the stages of batches, and measured times that scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.model.batch_times import StageTable
from hetsim.model.randomness import RandomTree
from hetsim.model.service import Service
from hetsim.model.tasks import Mode

NOISE_BLOCK = 1024
MIN_FACTOR = 0.1
"""Noise never makes a stage shorter than this part of its time."""


class StageNoise:
    """Draws factors of the nominal stage times of a service's batches."""

    def __init__(self, service: Service, random: RandomTree):
        self.noise = service.noise
        self._random = random.stream("stages", service.name)
        self._spread = random.stream("spread", service.name)
        self._factors: list[list[float]] = []

    def factors(self, mode: Mode, size: int) -> Sequence[float]:
        """Factors of the upload, compute and download of the next batch, of this size."""
        if mode.scattered:
            stages = (mode.upload, mode.table, mode.download)
            drawn = zip(stages, self._spread.random(3).tolist(), self._noise(), strict=True)
            return [f * stage.factor(size, u) if isinstance(stage, StageTable) else f for stage, u, f in drawn]
        return self._noise()

    def forget(self) -> None:
        """Draw again what comes from now on."""
        self._factors = []

    def _noise(self) -> Sequence[float]:
        if not self.noise:
            return (1.0, 1.0, 1.0)
        if not self._factors:
            drawn = 1.0 + self.noise * self._random.standard_normal((NOISE_BLOCK, 3))
            self._factors = np.maximum(drawn, MIN_FACTOR).tolist()[::-1]
        return self._factors.pop()
