"""What every queue of requests has (what batching policies see of it is `sim.policy.batching.RequestQueue`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.queues.cache import Cache
from sim.model.batch_times import StageTable
from sim.model.plan import Placement
from sim.model.randomness import RandomTree
from sim.model.service import Service
from sim.model.tasks import Mode, Tasks
from sim.policy.batching import BatchTimes

NOISE_BLOCK = 1024
MIN_FACTOR = 0.1
"""Noise never makes a stage shorter than this part of its time."""


class Queue:
    """What both kinds have in common: the service, noise, the wish of the policy to be woken."""

    def __init__(
        self, number: int, service: Service, tasks: Tasks, clock: Clock, random: RandomTree, links: Links,
        bell: dict[Any, bool],
    ):  # fmt: skip
        self.number = number
        self.service = service
        self.table = tasks
        self.clock = clock
        self.links = links
        self.total = len(service.rows)
        self.wanted = 0
        """Requests from which on the policy is to be asked; 0: it does not wait for arrivals."""
        self.bell = bell
        """Queues about which their policies may have to be asked again, of all services."""
        self.cache: Cache | None = None
        self._random = random.stream("stages", service.name)
        self._spread = random.stream("spread", service.name)
        self._factors: list[list[float]] = []

    def ring(self, again: bool = False) -> None:
        """Something has happened here: as many requests wait as were wanted, or (`again`) a batch has ended."""
        self.bell[self] = again or self.bell.get(self, False)

    def want(self, count: int) -> None:
        """Ring, and have the policy asked, when so many wait or the last of the stream has come; 0: do not."""
        self.wanted = count

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """Stage times of a batch of so many requests, as far as estimates tell."""
        service, links = self.service, self.links
        mode, device = placement.mode, placement.devices[0]
        up, down = mode.upload.of(size), mode.download.of(size)
        if service.bytes_in:
            up += Links.alone(links.up(device), size * service.bytes_in)
        if service.bytes_out:
            down += Links.alone(links.down(device), size * service.bytes_out)
        return BatchTimes(up, mode.base(size) + size * service.per_item[service.shape.position[mode]], down)

    def factors(self, mode: Mode, size: int) -> Sequence[float]:
        """Factors of the upload, compute and download of the next batch."""
        if mode.scattered:
            stages = (mode.upload, mode.table, mode.download)
            drawn = zip(stages, self._spread.random(3).tolist(), self._noise(), strict=True)
            return [f * stage.factor(size, u) if isinstance(stage, StageTable) else f for stage, u, f in drawn]
        return self._noise()

    def _noise(self) -> Sequence[float]:
        if not self.service.noise:
            return (1.0, 1.0, 1.0)
        if not self._factors:
            drawn = 1.0 + self.service.noise * self._random.standard_normal((NOISE_BLOCK, 3))
            self._factors = np.maximum(drawn, MIN_FACTOR).tolist()[::-1]
        return self._factors.pop()

    def class_of(self, position: int) -> str:
        """The class of the request at a position of the service."""
        table = self.table
        row = self.service.rows[position]
        return table.classes[0 if table.class_code is None else table.class_code[row]]

    def deadline_of(self, row: int) -> float:
        """The time by which its batch must end: the deadline less the way of the response."""
        column = self.table.deadline
        if column is None:
            return math.inf
        value = float(column[row])
        return math.inf if value != value else value - self.service.response_delay
