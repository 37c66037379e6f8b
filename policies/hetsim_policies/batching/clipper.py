"""The two rules of Clipper: a limit of the batch size follows measured times."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.device import Device
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.units import Seconds
from hetsim.policy import Batching, BatchReport, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.linear_fit import line_remarks
from hetsim_policies.batching.common.sizing import limit, occupied


class Clipper(Batching):
    """Base of Clipper's AIMD and quantile rules: take all requests, up to a limit."""

    rejects = False

    def __init__(self, slo: float | None, max_batch: int | None, start: int = 1):
        self.start = start
        self.slo = slo
        self.max_batch = max_batch
        self.limits: dict[Device, int] = {}  # the present limit of each device

    def begin(self, queue: RequestQueue, view: View) -> None:
        if self.slo is None:
            self.slo = queue.service.slo

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        present = self.limits.get(placement.devices[0], self.start)
        return Take(min(len(queue), limit(placement, self.max_batch), present))


class ClipperAimd(Clipper):
    """Clipper, additive increase, multiplicative decrease: probe for the batch size.

    Decides how many requests: all waiting, up to a limit per device.  The limit grows by `step` after a full batch
    within the SLO, and is multiplied by `backoff` after a batch that exceeds the SLO.  Batches do not overlap.
    Reference: Crankshaw, Wang, Zhou, Franklin, Gonzalez and Stoica, Clipper: A Low-Latency Online Prediction Serving
    System (NSDI 2017), section 4.3; the rule is that of Chiu and Jain (1989) for congestion.
    Weakness: the SLO bounds the time of a batch; a request also waits, so latencies reach twice the SLO.  The limit
    grows by one `step` per batch, so it reaches a large value late; then it oscillates between this value and `backoff`
    times it.
    Cost: O(1) per batch.

    start: the first limit.  step: increase of the limit after a full batch in time.  backoff: factor on the limit after
        a batch that took too long.
    slo: maximum seconds of a batch; default: the service's slo.
    max_batch: largest batch (the mode's own limit applies too).
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
        if report.end - report.decided > (math.inf if self.slo is None else self.slo):
            # A smaller batch than the limit allowed says even more: the limit is of no use above it.
            self.limits[device] = max(1, math.floor(self.backoff * min(present, report.count)))
        elif report.count >= present:
            self.limits[device] = min(present + self.step, limit(report.placement, self.max_batch))


REFIT = 16  # number of batches between two fits
PROBES = 8  # number of batches before the first fit, during which the limit doubles
SECTIONS = 64  # steps of the search for the slope; each leaves 62 % of the interval
GOLDEN = (math.sqrt(5) - 1) / 2


class ClipperQuantile(Clipper):
    """Clipper, quantile regression: largest batch with 99th percentile in the SLO.

    Decides how many requests: all waiting, up to a limit per device.  The quantile of the batch time is modeled as a
    line in the batch size, refitted every few batches.  The fit uses the last `window` batches and, of older batches,
    the last one with a size in [2^i, 2^(i+1)) for each i.  Batches do not overlap.
    Reference: Crankshaw, Wang, Zhou, Franklin, Gonzalez and Stoica, Clipper: A Low-Latency Online Prediction Serving
    System (NSDI 2017), section 4.3; Koenker and Bassett, Regression Quantiles (1978).
    Weakness: the SLO bounds the time of a batch, but not the wait of a request.  At a constant load, the sizes of
    recent batches are nearly equal, so the slope depends on older batches and may be wrong; therefore the limit is at
    most twice the largest size used so far.  A 99th percentile is uncertain, since only one of 100 batches exceeds it.
    Cost: O(window · 50) per refit, a few microseconds per batch.

    quantile: quantile of batch times, such as 0.99.  window: number of batches of a fit.
    slo: maximum seconds of a batch; default: the service's slo.
    max_batch: largest batch (the mode's own limit applies too).
    """

    def __init__(
        self,
        quantile: Annotated[float, Field(gt=0, lt=1)] = 0.99,
        window: Annotated[int, Field(ge=PROBES)] = 100,
        slo: Annotated[Seconds, Field(gt=0)] | None = None,
        max_batch: Annotated[int, Field(ge=1)] | None = None,
    ):
        super().__init__(slo, max_batch)
        self.quantile = quantile
        self.window = window
        self.seen: dict[Device, deque[tuple[int, float]]] = {}  # sizes and times of the last batches of each device
        # Older batches, the last of each power of two, which keep the slope known
        self.of_class: dict[Device, dict[int, tuple[int, float]]] = {}
        self.fresh: dict[Device, int] = {}  # batches since the last fit

    def remarks(self, modes: Sequence[Mode]) -> Sequence[str]:
        return line_remarks(modes)

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        device = report.placement.devices[0]
        seen = self.seen.setdefault(device, deque(maxlen=self.window))
        seconds = report.end - report.decided
        if len(seen) == self.window:
            size, _ = old = seen[0]
            self.of_class.setdefault(device, {})[size.bit_length()] = old
        seen.append((report.count, seconds))
        fresh = self.fresh[device] = self.fresh.get(device, 0) + 1
        present, slo = self.limits.get(device, 1), math.inf if self.slo is None else self.slo
        if len(seen) < PROBES:
            if 2 * seconds <= slo and report.count >= present:
                self.limits[device] = 2 * present
        elif fresh >= REFIT or len(seen) == PROBES or (seconds > slo and report.count >= present):
            self.fresh[device] = 0
            self.limits[device] = self._largest([*self.of_class.get(device, {}).values(), *seen], slo)

    def _largest(self, seen: list[tuple[int, float]], slo: float) -> int:
        sizes, times = (np.array(column, dtype=float) for column in zip(*seen, strict=True))
        slope, intercept = quantile_line(sizes, times, self.quantile)
        max_size = 2 * int(sizes.max())
        if slo == math.inf or intercept + slope * max_size <= slo:
            return max_size
        return max(1, math.floor((slo - intercept) / slope * (1 + 1e-12))) if slope > 0 else 1


def quantile_line(sizes: np.ndarray, times: np.ndarray, quantile: float) -> tuple[float, float]:
    """Return slope (at least 0) and intercept of the line with minimum quantile loss.

    For a given slope the best intercept is the quantile of the residuals; the loss is convex in the slope, which is
    found by golden-section search.  If all sizes are equal, the slope is 0.
    """
    if sizes.min() == sizes.max():
        return 0.0, _quantile(times, quantile)

    def error(slope: float) -> float:
        rest = times - slope * sizes
        rest -= _quantile(rest, quantile)
        return float(np.maximum(quantile * rest, (quantile - 1) * rest).sum())

    low, high = 0.0, float(times.max() - times.min())  # sizes differ by 1 at least
    inner, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    of_left, of_right = error(inner), error(right)
    for _ in range(SECTIONS):
        if of_left <= of_right:
            high, right, of_right = right, inner, of_left
            inner = high - GOLDEN * (high - low)
            of_left = error(inner)
        else:
            low, inner, of_left = inner, right, of_right
            right = low + GOLDEN * (high - low)
            of_right = error(right)
    slope = (low + high) / 2
    return slope, _quantile(times - slope * sizes, quantile)


def _quantile(values: np.ndarray, quantile: float) -> float:
    """Return the smallest value that a share `quantile` of the values does not exceed."""
    rank = max(0, math.ceil(quantile * len(values) - 1e-9) - 1)
    return float(np.partition(values, rank)[rank])
