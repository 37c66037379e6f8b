"""Asynchronous linear: upload the next batch just in time, behind the current.

Decides how many and when, on two streams of a device.  Stage times are taken for linear in the batch size,
τ_x(n) = a_x·n + b_x, and re-estimated from the last `window` batches (`linear_fit`); the policy starts from two
batches of different sizes.  The next upload starts at (end of the current compute) - τ_up(next).  A batch that fills
before that, because the rate has risen, is uploaded at once, and the next is filled for as long as the running batch
and the one just uploaded compute; when the rate falls, what is there goes just in time.
Reference: Zhang, Zha, Wan and Cheng, A GPU Inference System Scheduling Algorithm with Asynchronous Data Transfer
(IPDPSW 2019).  Its slides take c·(τ_calc(n) - τ_up(n)) = n for the size at arrival rate c, which leaves out what
arrives during the upload; `flow_balance`, c·τ_calc(n) = n, does not.
When the device is idle all that waits goes at once: with one compute engine waiting for more pays only while fewer
wait than arrive during a batch, and then the device is hardly ever idle (measured on the paper's network: to wait for
a second request changes the mean latency by +146 % at 20/s, +6 % at 100/s and less than 0.5 % from 150/s up).
Weakness: what fills too early is cut off from what comes just after it, so sizes must not follow Poisson noise:
a batch counts as full `margin` standard deviations beyond the expected size.  On several devices only the first of
those that are equally busy is served just in time, the others when they are idle.  A device with one stream
overlaps nothing: batches go one after the other, all that waits at a time, as under `serial_greedy` (a limit on the
latency still bounds them); the run says so.
Cost: O(1) amortized a batch (some four rounds).
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.tasks import Mode
from hetsim.model.units import Seconds
from hetsim.policy import Batching, BatchReport, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.linear_fit import LinearFit, line_remarks
from hetsim_policies.batching.common.sizing import limit

LATEST = 4.0
"""Standard deviations of a compute time: by then a batch has ended."""


class AsyncLinear(Batching):
    """Two streams with uploads just in time; `streams: 1` is `serial_greedy`.

    rule: the expected batch size at a rate: flow_balance, n = c·τ(n) of the slowest stage; or slides,
        n = c·(τ_calc(n) - τ_up(n)).
    window: batches from which stage times and the arrival rate are estimated.
    latency: what the first request of a batch may take; unless given, the service's slo.  It limits batches.
    max_batch: largest batch (the mode's own limit holds besides).
    margin: standard deviations of a Poisson count by which a batch exceeds its expected size before it counts as
        full; 0: upload as soon as filled.
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
        self.launched: deque[tuple[float, int]] = deque(maxlen=window)
        """When the last launches were, and how many requests had arrived by then."""
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
        self.devices = max(1, sum(view.cluster.count(kind) for kind in kinds))
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
        # Until the upload of the waiting and still arriving requests must start.
        computing = end - view.now
        computing += self._hesitation(self.upload.at(waiting + self.rate * computing))
        time_left = (computing - self.upload.at(waiting)) / (1.0 + self.upload.slope * self.rate)
        if time_left <= self.upload.slope or view.now + time_left <= view.now:
            return self._launch(waiting, queue, view, max_size)
        early = self.upload.slope * 2.0 * math.sqrt(self.rate * time_left)  # arrivals are less uncertain by then
        again = time_left - early if early < 0.25 * time_left else time_left
        return Delay(view.now + again, math.ceil(min(self.full, max_size)), released=True)

    # When -----------------------------------------------------------------------------------------------------

    def _hesitation(self, upload: float) -> float:
        """Seconds from the expected end of the compute to the end of the upload.

        Each second too late costs the waiting requests, each second too early those that come in it and miss the batch,
        which wait for a whole one: at flow balance as many.  And when the compute does end, the upload starts.  For an
        error of standard deviation σ the best is where 2 Φ(x/σ) - Φ((x - τ_up)/σ) = 1: next to 0 where uploads are
        long, and late, as on one stream, where they are short compared with σ.
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

    # How many -------------------------------------------------------------------------------------------------

    def _launch(self, count: int, queue: RequestQueue, view: View, most: int) -> Take:
        """Start just in time, or on an idle device, and expect the batch of the rate.

        Until two sizes have been seen batches go one after the other; at low load that costs nothing, and at the
        limit, where all would be of one size, the second is halved.
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
        """Launch a batch that is full before its time: the rate has risen.

        The next batch has as long as the running batch still computes and this one will.
        """
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
        """Set the size from which on the next batch counts as full."""
        self.full = max(1.0, min(size + self.margin * math.sqrt(size), most)) if size < math.inf else most

    def _max_size(self, placement: Placement) -> int:
        """The largest batch that the limits and the requested latency allow.

        Its first request waits for the slowest stage of the batch before (on one stream: for all of it) and passes
        through all stages itself.
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

    # The arrival rate -----------------------------------------------------------------------------------------

    def _note(self, count: int, queue: RequestQueue, view: View) -> None:
        self.running = count
        (last, after) = newest = view.now, queue.arrived
        self.launched.append(newest)
        first, before = self.launched[0]
        self.rate = (after - before) / (last - first) / self.devices if last > first else 0.0


def _normal(x: float) -> float:
    """Probability of less than x standard deviations."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _fixed_point(slope: float, fixed: float, rate: float) -> float:
    """n = rate·(slope·n + fixed); inf where there is none."""
    load = rate * slope
    return max(0.0, rate * fixed) / (1.0 - load) if load < 1.0 else math.inf
