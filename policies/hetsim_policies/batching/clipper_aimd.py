"""Clipper, additive increase, multiplicative decrease: probe for the batch size.

Decides how many: all that wait, up to a limit for each device which grows by `step` after a full batch that kept the
SLO and falls by a tenth after one that did not.  Batches do not overlap.
Reference: Crankshaw, Wang, Zhou, Franklin, Gonzalez and Stoica, Clipper: A Low-Latency Online Prediction Serving
System (NSDI 2017), section 4.3; the rule is that of Chiu and Jain (1989) for congestion.
Weakness: the SLO bounds the time of a batch, not that of a request, which waits besides: latencies reach twice the
SLO.  From one request on the limit needs as many batches as it counts, and it oscillates over its last tenth for ever.
Cost: O(1) a batch.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from hetsim.model.cluster import Device
from hetsim.model.plan import Placement
from hetsim.model.units import Seconds
from hetsim.policy import Batching, BatchReport, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import limit, occupied


class Clipper(Batching):
    """Base of both rules: take all that wait, up to a limit that the rule moves."""

    def __init__(self, slo: float | None, max_batch: int | None, start: int = 1):
        self.start = start
        self.slo = slo
        self.max_batch = max_batch
        self.limits: dict[Device, int] = {}
        """The present limit of each device."""

    def begin(self, queue: RequestQueue, view: View) -> None:
        if self.slo is None:
            self.slo = queue.service.slo

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        present = self.limits.get(placement.devices[0], self.start)
        return Take(min(len(queue), limit(placement, self.max_batch), present))


class ClipperAimd(Clipper):
    """A limit for each device, by additive increase and multiplicative decrease.

    start: the first limit.  step: how much it grows.  backoff: the part of a batch that is left when it took too long.
    slo: seconds that a batch may take; the service's own unless given.
    max_batch: largest batch (the mode's own limit holds besides).
    """

    def __init__(
        self,
        start: Annotated[int, Field(ge=1)] = 1,
        step: Annotated[int, Field(ge=1)] = 1,
        backoff: Annotated[float, Field(gt=0, lt=1)] = 0.9,
        slo: Annotated[Seconds, Field(gt=0)] | None = None,
        max_batch: Annotated[int, Field(ge=1)] | None = None,
    ):
        super().__init__(slo, max_batch, start)
        self.step = step
        self.backoff = backoff

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        device = report.placement.devices[0]
        present = self.limits.get(device, self.start)
        slo = math.inf if self.slo is None else self.slo
        if report.end - report.decided > slo:
            # A smaller batch than the limit allowed says even more: the limit is of no use above it.
            self.limits[device] = max(1, math.floor(self.backoff * min(present, report.count)))
        elif report.count >= present:
            self.limits[device] = min(present + self.step, limit(report.placement, self.max_batch))
