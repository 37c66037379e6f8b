"""Asynchronous linear: upload the next batch just before the current compute ends.

Decides how many requests are launched and when, on two streams of a device.  Stage times are assumed linear in the
batch size n, τ_x(n) = a_x·n + b_x, and re-estimated from the last `window` batches (`linear_fit`); the policy begins
with two batches of different sizes.  The next upload starts at (end of the current compute) - τ_up(next).  If the rate
rises, a batch that is full before this time is uploaded immediately, and the next batch is filled while the two earlier
batches compute; if the rate falls, the requests waiting at this time are uploaded.
Reference: Zhang, Zha, Wan and Cheng, A GPU Inference System Scheduling Algorithm with Asynchronous Data Transfer
(IPDPSW 2019).  Its slides choose the size n by c·(τ_calc(n) - τ_up(n)) = n at arrival rate c, which ignores arrivals
during the upload; `flow_balance`, c·τ_calc(n) = n, does not.  When the device is idle, all waiting requests are
launched.  Waiting for more requests would help only if more requests arrive during a batch than wait now, and at such
rates the device is hardly ever idle (on the paper's network, waiting for a second request changes the mean latency by
+146 % at 20 requests/s, +6 % at 100/s and less than 0.5 % from 150/s up).
Weakness: a batch that is launched too early misses the next requests.  To avoid this in spite of random arrivals, a
batch counts as full only `margin` standard deviations above the expected size.  If several devices are equally busy,
only the first device gets its next batch just in time; any other device gets a batch when it is idle.  A device with
one stream cannot overlap stages: each batch has all waiting requests, as under `serial_greedy`, up to the limit on
latency; the run reports this.  Cost: O(1) amortized per batch (about four scheduling rounds).
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.units import Seconds
from hetsim.policy import Batching, BatchReport, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.linear_fit import LinearFit, line_remarks
from hetsim_policies.batching.common.sizing import limit

LATEST = 4.0  # standard deviations of a compute time after which a batch is assumed to have ended


class AsyncLinear(Batching):
    """Upload the next batch just before the present compute ends (needs two streams).

    rule: equation for the batch size n at arrival rate c: flow_balance (n = c·τ(n), τ: time of the slowest stage) or
        slides (n = c·(time to compute n - time to upload n), as in the authors' slides).
    window: number of batches from which stage times and the arrival rate are estimated.
    latency: maximum latency in seconds of the first request of a batch, which limits the batch size; default: the
        service's slo.
    max_batch: largest batch (the mode's own limit applies too).
    margin: a batch counts as full if it exceeds its expected size by this many standard deviations of a Poisson count;
        0: as soon as the expected size is reached.
    """

    in_order = True
    rejects = False

    def __init__(
        self,
        rule: Literal["flow_balance", "slides"] = "flow_balance",
        window: Annotated[int, Field(ge=2)] = 16,
        latency: Annotated[Seconds, Field(gt=0)] | None = None,
        max_batch: Annotated[int, Field(ge=1)] | None = None,
        margin: Annotated[float, Field(ge=0)] = 8.0,
    ):
        self.rule = rule
        self.window = window
        self.latency = latency
        self.max_batch = max_batch
        self.margin = margin
        self.upload, self.compute, self.download = (LinearFit(window) for _ in range(3))
        self.first_size: int | None = None
        self.running = 0  # size of the last batch launched
        self.devices = 1
        self.full = math.inf  # waiting requests from which on the batch that fills counts as full
        # Times of the last launches, and the numbers of requests that had arrived by then
        self.launched: deque[tuple[float, int]] = deque(maxlen=window)
        self.rate = 0.0  # requests per second and device over these launches

    def remarks(self, modes: Sequence[Mode]) -> Sequence[str]:
        serial = list(dict.fromkeys(mode.type.name for mode in modes if mode.on_cpu or mode.type.streams == 1))
        lines = line_remarks(modes)
        if not serial:
            return lines
        text = f"cannot overlap on {' and '.join(serial)}, which run one launch at a time: it acts as "
        return [f"{text}serial_greedy; give the GPUs streams: 2", *lines]

    def begin(self, queue: RequestQueue, view: View) -> None:
        kinds = {mode.type.name for mode in queue.service.shape.modes}
        self.devices = max(1, sum(view.cluster.count(kind) for kind in kinds)) if queue.holder is None else 1
        if self.latency is None:
            self.latency = queue.service.slo

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        times = report.times
        self.upload.add(report.size, times.upload)
        self.compute.add(report.size, times.compute)
        self.download.add(report.size, times.download)

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        device = placement.devices[0]
        in_flight = view.load(device)
        max_size = self._max_size(placement)
        ready = self.compute.is_fitted or max_size == 1
        if in_flight > 0 and (in_flight > 1 or not ready or placement.mode.on_cpu):
            return Delay()
        waiting = len(queue)
        if in_flight <= 0:
            return self._launch(min(waiting, max_size), queue, view, max_size)
        end = view.free_at(device, "compute")
        if waiting >= self.full or waiting >= max_size:
            return self._fill(min(waiting, max_size), queue, view, end=end, most=max_size)
        computing = end - view.now  # Until the upload of the waiting and still arriving requests must start.
        computing += self._hesitation(self.upload.at(waiting + self.rate * computing))
        time_left = (computing - self.upload.at(waiting)) / (1.0 + self.upload.slope * self.rate)
        if time_left <= self.upload.slope or view.now + time_left <= view.now:
            return self._launch(waiting, queue, view, max_size)
        early = self.upload.slope * 2.0 * math.sqrt(self.rate * time_left)  # arrivals are less uncertain by then
        again = time_left - early if early < 0.25 * time_left else time_left
        return Delay(view.now + again, math.ceil(min(self.full, max_size)), released=True)

    def _hesitation(self, upload: float) -> float:
        """Return how long after the expected end of the compute the upload should end.

        The end of the compute is uncertain, with standard deviation σ.  If the upload ends too late, the waiting
        requests are delayed; if it ends too early, requests that arrive meanwhile must wait for another batch.  The
        best delay x satisfies 2 Φ(x/σ) - Φ((x - τ_up)/σ) = 1 (Φ: normal distribution, τ_up: upload time): x is near 0
        if the upload is long compared with σ, and large if it is short.
        """
        sigma = math.sqrt(self.compute.variance) * self.compute.at(self.running)
        if sigma <= 0.05 * upload:
            return 0.0
        low, high = 0.0, LATEST
        for _ in range(6):
            middle = 0.5 * (low + high)
            if 2.0 * _normal(middle) - _normal(middle - upload / sigma) < 1.0:
                low = middle
            else:
                high = middle
        return high * sigma

    def _launch(self, count: int, queue: RequestQueue, view: View, most: int) -> Take:
        """Launch `count` requests now, and set the size at which the next batch is full.

        Until batches of two sizes have been measured, batches do not overlap.  If the first two batches would both have
        the maximum size (`most`), the second one is halved, so that their sizes differ.
        """
        if self.first_size is None:
            self.first_size = count
        elif not self.compute.is_fitted and count == self.first_size == most:
            count = max(1, most // 2)
        self._note(count, queue, view)
        # As many arrive in a cycle as it takes.
        upload, compute = self.upload, self.compute
        if self.rule == "slides":
            size = _fixed_point(compute.slope - upload.slope, compute.fixed - upload.fixed, self.rate)
        else:
            size = max(_fixed_point(one.slope, one.fixed, self.rate) for one in (upload, compute, self.download))
        self._expect(size, most)
        return Take(count)

    def _fill(self, count: int, queue: RequestQueue, view: View, end: float, most: int) -> Take:
        """Launch a batch that became full early; compute the full size of the next batch."""
        rate = self.rate
        if self.launched:
            since, arrived = self.launched[-1]
            if view.now > since:
                rate = max(rate, (queue.arrived - arrived) / (view.now - since) / self.devices)
        self._note(count, queue, view)
        seconds = end - view.now + self.compute.at(count)
        if self.rule == "slides":
            seconds = max(0.0, seconds - self.upload.fixed) / (1.0 + rate * self.upload.slope)
        self._expect(rate * seconds, most)
        return Take(count)

    def _expect(self, size: float, most: int) -> None:
        self.full = max(1.0, min(size + self.margin * math.sqrt(size), most)) if size < math.inf else most

    def _max_size(self, placement: Placement) -> int:
        """Return the largest batch that the limits and the requested latency allow.

        The first request of a batch waits for the slowest stage of the previous batch.  (A device with one stream does
        not overlap batches, so that the request waits for all stages.)  Then it passes through all stages itself.
        """
        max_size = limit(placement, self.max_batch)
        if self.latency is None or math.isinf(self.latency) or not self.compute.is_fitted:
            return max_size
        stages = (self.upload, self.compute, self.download)
        slope, fixed = sum(stage.slope for stage in stages), sum(stage.fixed for stage in stages)
        if placement.mode.type.streams == 1:
            waits = [(slope, fixed)]
        else:
            waits = [(stage.slope, stage.fixed) for stage in stages]
        for a, b in waits:
            if a + slope > 0:
                max_size = min(max_size, max(1, int((self.latency - b - fixed) / (a + slope))))
        return max_size

    def _note(self, count: int, queue: RequestQueue, view: View) -> None:
        self.running = count
        (last, after) = newest = view.now, queue.arrived
        self.launched.append(newest)
        first, before = self.launched[0]
        self.rate = (after - before) / (last - first) / self.devices if last > first else 0.0


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _fixed_point(slope: float, fixed: float, rate: float) -> float:
    load = rate * slope
    return max(0.0, rate * fixed) / (1.0 - load) if load < 1.0 else math.inf
