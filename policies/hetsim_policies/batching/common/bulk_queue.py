"""One server that takes Poisson arrivals in batches of known times.

The model that the analytic batching policies share; a batch's time is fixed by its size.

States are the number of requests in the system, up to `states`; what comes beyond is counted there.  Time passes in
services (size s: time[s]) and in waiting for the next arrival.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammainc, gammaln, xlogy

from hetsim.model.plan import Placement
from hetsim.policy import RequestQueue
from hetsim_policies.batching.common.sizing import limit

RATIO = 1.1
"""Rates are rounded to powers of this, so that few have to be solved for."""

MAX_ARRIVALS = 512
"""Largest batch of these models: their cost grows with the third power of the states."""
MODELED = 64
"""Largest batch of these models unless a policy is given one; beyond it a batch takes all waiting requests."""


def rounded(rate: float) -> float:
    """The nearest power of `RATIO`."""
    return float(RATIO ** round(math.log(rate) / math.log(RATIO)))


def states_for(batch: int, wanted: int | None) -> int:
    """States for batches up to a size: four times it, or `wanted`, at least twice it."""
    return 4 * batch if wanted is None else max(wanted, 2 * batch)


def batch_times(queue: RequestQueue, placement: Placement, most: int | None) -> np.ndarray:
    """Seconds of batches of 1, 2, ... requests, all stages, as far as estimates tell."""
    sizes = range(1, limit(placement, most or MODELED) + 1)
    return np.array([queue.stages(size, placement).total for size in sizes])


def arrivals_during(rate: float, times: np.ndarray, most: int) -> np.ndarray:
    """Probabilities of 0, 1, ..., `most` or more arrivals, one row for each time."""
    mean = rate * times[:, None]
    count = np.arange(most)
    table = np.empty((len(times), most + 1))
    table[:, :most] = np.exp(xlogy(count, mean) - mean - gammaln(count + 1))
    table[:, most] = gammainc(most, mean[:, 0]) if most else 1.0  # P(N >= most)
    return table


class BulkQueue:
    """The queue at one rate: what happens during a batch of each size."""

    def __init__(self, rate: float, times: np.ndarray, states: int):
        self.rate = rate
        self.times = times
        self.states = states
        self.arrivals = arrivals_during(rate, times, states)

    @property
    def stable(self) -> bool:
        """Return True if full batches keep up with the arrivals."""
        return bool(self.rate * self.times[-1] < len(self.times))

    def after(self, present: int, size: int) -> np.ndarray:
        """Distribution of the number in the system when a batch of this size has ended."""
        rest, states = present - size, self.states
        row = np.zeros(states + 1)
        chances = self.arrivals[size - 1]
        row[rest:states] = chances[: states - rest]
        row[states] = max(0.0, 1.0 - row[:states].sum())
        return row

    def request_seconds(self, present: int, size: int) -> float:
        """Expected request-seconds in the system during a service, arrivals included."""
        time = float(self.times[size - 1])
        return present * time + self.rate * time * time / 2

    def beyond(self, size: int) -> np.ndarray:
        """Expected arrivals beyond the states in a batch, by the number it leaves behind."""
        room = self.states - np.arange(self.states)
        filled = np.cumsum(np.cumsum(self.arrivals[size - 1]))  # [k - 1]: expected room left of k
        return np.maximum(0.0, self.rate * self.times[size - 1] - room + filled[room - 1])
