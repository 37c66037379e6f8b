"""BatOpt: wait for the number of requests that a queueing model gives, take all.

Decides when: at the threshold a of least mean response in the queue M/D(a, b)/1/N, where service begins once a
requests wait and takes up to b.  Its batch times are those estimated, deterministic and by size; the rate is that of
the last `window` seconds, rounded to the nearest power of 1.1.  Batches do not overlap.
Model: the chain of requests left behind by batches, N states, exact; mean response by Little's law from the mean held
over a cycle of waiting and service.
Reference: Zhang, Luo, Wang, Kui and Ren, BatOpt: Optimizing GPU-Based Deep Learning Inference Using Dynamic Batch
Processing (IEEE Transactions on Cloud Computing 2024), where M/G(a, b)/1/N also weighs GPU memory, which here is the
bound b; Neuts, A General Class of Bulk Queues with Poisson Input (1967).
Weakness: it knows Poisson arrivals only.  With linear batch times a threshold gains little over taking all waiting
requests; after the rate has fallen requests wait for others that do not come, until twice the expected time has passed
or their SLO calls.
Cost: O(1) a batch; of each new rate up to 20 linear systems of N unknowns (0.2 s at N = 256).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import Batching, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.bulk_queue import MAX_ARRIVALS, BulkQueue, batch_times, rounded, states_for
from hetsim_policies.batching.common.sizing import ArrivalRate, limit, occupied

PATIENCE = 2.0
"""Times the expected wait for a full threshold after which a batch goes without it."""


class BatOpt(Batching):
    """The threshold of least mean response.

    max_batch: b, the largest batch; that of the service unless given, of which the model knows the first 64 sizes.
    states: N, at least twice b; four times it unless given.
    window: how far back the rate looks.  rate: requests per second, where it is not to be estimated.
    """

    def __init__(
        self,
        max_batch: Annotated[int, Field(ge=1, le=MAX_ARRIVALS)] | None = None,
        states: Annotated[int, Field(ge=2, le=4 * MAX_ARRIVALS)] | None = None,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        rate: Annotated[PerSecond, Field(gt=0)] | None = None,
    ):
        self.max_batch = max_batch
        self.states = states
        self.rate = rate
        self.estimate = ArrivalRate(window)
        self.thresholds: dict[tuple[Placement, float], int] = {}

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        waiting = len(queue)
        take = Take(min(waiting, limit(placement, self.max_batch)))
        rate = self.rate or self.estimate.rate(queue, view.now)
        if rate is None or queue.over:
            return take
        rate = self.rate or rounded(rate)
        threshold = self._threshold(queue, placement, rate)
        if waiting >= threshold:
            return take
        called = queue.deadline(0) - queue.stages(waiting, placement).total
        until = min(queue.arrival(0) + PATIENCE * threshold / rate, called)
        return Delay(until, threshold) if until > view.now else take

    def _threshold(self, queue: RequestQueue, placement: Placement, rate: float) -> int:
        key = (placement, rate)
        if key not in self.thresholds:
            times = batch_times(queue, placement, self.max_batch)
            self.thresholds[key] = best_threshold(BulkQueue(rate, times, states_for(len(times), self.states)))
        return self.thresholds[key]


def best_threshold(model: BulkQueue) -> int:
    """The threshold of the minimum mean response; 1 where the queue is unstable.

    Beyond 8 only a geometric choice is tried.
    """
    if not model.stable:
        return 1
    max_size = len(model.times)
    tried = sorted({min(max_size, round(1.25**power)) for power in range(1 + math.ceil(math.log(max_size + 1, 1.25)))})
    responses = mean_responses(model, tried)
    return tried[int(np.argmin(responses))]


def mean_responses(model: BulkQueue, thresholds: list[int]) -> list[float]:
    """Mean response of a request under each threshold."""
    states, max_size, rate = model.states, len(model.times), model.rate
    starts = np.arange(1, states + 1)
    sizes = np.minimum(starts, max_size)
    pairs = list(zip(starts.tolist(), sizes.tolist(), strict=True))
    rows = np.vstack([model.after(*pair) for pair in pairs])
    request_seconds = np.array([model.request_seconds(*pair) for pair in pairs])
    present = np.arange(states + 1)
    means = []
    for threshold in thresholds:
        begins = np.maximum(present, threshold) - 1  # by what the last batch left: the row of the next one's start
        share = stationary(rows[begins])
        missing = np.maximum(threshold - present, 0)
        waited = (present * missing + missing * (missing - 1) / 2) / rate  # request-seconds until the threshold is met
        of_cycle = share @ (waited + request_seconds[begins])
        means.append(float(of_cycle / (share @ sizes[begins])))
    return means


def stationary(chain: np.ndarray) -> np.ndarray:
    """The stationary distribution of a chain with one recurrent class."""
    system = np.eye(len(chain)) - chain.T
    system[-1] = 1.0
    right = np.zeros(len(chain))
    right[-1] = 1.0
    return np.linalg.solve(system, right)
