"""Batch service: one server that serves several customers at once."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, either_ends, not_negative, positive, whole_number

NEGLIGIBLE = 1e-13  # weight of the states beyond those that are kept

MAX_CELLS = 60_000_000
MAX_DENSE = 6000


@dataclass(frozen=True)
class BatchPrediction(Prediction):
    """Steady state of a batch server, with mean batch size and idle share."""

    batch_mean: float = math.nan
    idle: float = math.nan
    # probabilities of batches of 0, 1, 2, ..., if known
    batch_sizes: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class BatchBounds:
    """Bounds on the mean response: `lower` ≤ E[T] ≤ `upper`."""

    lower: float
    upper: float


def bulk_service(rate: float, service_mean: float, max_batch: int) -> BatchPrediction:
    """M/M^[b]/1: the server takes up to b waiting customers at a time.

    b is `max_batch`; the service of a batch is exponential, independent of its size; later arrivals wait for its end.
    With r the root in (0, 1) of μ r^(b+1) - (λ + μ) r + λ = 0, the probability that the server is busy and k customers
    wait is A r^k (A is constant), and P(W > t) = A / (1 - r) exp(-μ (1 - r^b) t).  Exact.
    Reference: Bailey, On Queueing Processes with Bulk Service (1954); Neuts, A General Class of Bulk Queues with
    Poisson Input (1967), here with a minimum batch of 1; Medhi, Waiting Time Distribution in a Poisson Queue with a
    General Bulk Service Rule (1975).
    """
    from scipy.optimize import brentq

    positive(rate=rate, service_mean=service_mean)
    whole_number(1, the_largest_batch=max_batch)
    load = rate * service_mean / max_batch
    if load >= 1:
        raise _overloaded(f"M/M^[{max_batch}]/1", load)
    offered = rate * service_mean  # λ / μ
    # In gap = 1 - r, without the root r = 1: (1 - r^b) r / (1 - r) = λ / μ.

    def excess(gap: float) -> float:
        return -math.expm1(max_batch * math.log1p(-gap)) * (1 - gap) / gap - offered

    low = 1e-15
    gap = float(brentq(excess, low, 1 - 1e-16, xtol=1e-17, rtol=1e-14))
    r = 1 - gap
    busy_empty = 1 / (1 / offered + 1 / gap)  # A: the server is busy, and the queue is empty
    delayed = busy_empty / gap
    own, drain = 1 / service_mean, -math.expm1(max_batch * math.log1p(-gap)) / service_mean
    wait = delayed / drain
    idle = 1 - delayed

    def wait_above(t: float) -> float:
        return delayed * math.exp(-drain * t)

    def response_above(t: float) -> float:
        # W is 0, or exponential with rate `drain`; the own service is exponential with rate `own`.
        return math.exp(-own * t) + delayed * either_ends(own, drain, t)

    return BatchPrediction(
        model=f"M/M^[{max_batch}]/1", load=load, utilization=1 - idle,
        wait_mean=wait, response_mean=wait + service_mean,
        queue_length_mean=busy_empty * r / gap**2, jobs_in_system_mean=rate * (wait + service_mean), throughput=rate,
        delayed=delayed, wait_above=wait_above, response_above=response_above,
        batch_mean=rate * service_mean / (1 - idle), idle=idle,
    )  # fmt: skip


def greedy_batches(rate: float, per_item: float, fixed: float, max_batch: int | None = None) -> BatchPrediction:
    """Greedy batch service, M/D^[1,b]/1.

    When the server is idle it starts all waiting customers (at most `max_batch`) as one batch; a batch of n takes
    per_item · n + fixed seconds exactly.
    The numbers of waiting customers when services end form a Markov chain; its stationary distribution gives all means
    by renewal reward, and without `max_batch` also the distributions (an arrival during a service of length s waits a
    uniform part of it, and its batch has 1 + Poisson(λ s) members).  Exact up to a cut of 1e-13 of the probability.
    Reference: Neuts, A General Class of Bulk Queues with Poisson Input (1967); Inoue, Queueing Analysis of GPU-Based
    Inference Servers with Dynamic Batching: A Closed-Form Characterization (2021).
    """
    positive(rate=rate)
    not_negative(per_item=per_item, fixed=fixed)
    positive(the_time_of_a_batch=per_item + fixed)
    name = f"greedy batches{'' if max_batch is None else f' of at most {max_batch}'}"
    if max_batch is not None:
        whole_number(1, the_largest_batch=max_batch)
        max_batch = int(max_batch)
    load = rate * per_item if max_batch is None else rate * (per_item + fixed / max_batch)
    if load >= 1:
        raise _overloaded(name, load)
    chance = _waiting_at_ends(rate, per_item, fixed, max_batch=max_batch, name=name)
    waiting = np.arange(len(chance))
    batch = np.maximum(waiting if max_batch is None else np.minimum(waiting, max_batch), 1)
    times = per_item * batch + fixed
    empty = float(chance[0])
    cycle = float(chance @ times) + empty / rate
    served = float(chance @ batch)  # a cycle; = rate × cycle
    still_waiting = np.maximum(waiting - batch, 0)
    queue_area = float(chance @ (still_waiting * times + rate * times**2 / 2))
    wait = queue_area / served
    service = float(chance @ (batch * times)) / served
    sizes = np.bincount(batch, weights=chance)
    tail_figures = {}
    if max_batch is None:
        tail_figures = _tails(rate, per_item, fixed, sizes=sizes, empty=empty)
    return BatchPrediction(
        model=name, load=load, utilization=1 - empty / rate / cycle, wait_mean=wait, response_mean=wait + service,
        queue_length_mean=rate * wait, jobs_in_system_mean=rate * (wait + service), throughput=rate,
        delayed=1 - empty / served, batch_mean=served, idle=empty / rate / cycle, batch_sizes=sizes, **tail_figures,
    )  # fmt: skip


def _waiting_at_ends(rate: float, per_item: float, fixed: float, max_batch: int | None, name: str) -> np.ndarray:
    slope = rate * per_item
    if max_batch is None:
        mean = (rate * fixed + 1) / (1 - slope)
        spread = math.sqrt(mean / (1 - slope**2) + rate * fixed + 1)
    else:
        full = rate * (per_item * max_batch + fixed)
        mean, spread = max_batch + full, full / (max_batch - full) + math.sqrt(full) + 1
    size = int(mean + 12 * spread) + 40
    while True:
        cells = size * size if max_batch is None else size * (4 * max_batch + 60)
        if cells > MAX_CELLS or (max_batch is None and size > MAX_DENSE):
            text = "the load is too near to 1, or batches are too large, for the exact chain; use inoue_bounds"
            raise UsageError(f"{name}: {text}")
        chance = _solve(rate, per_item, fixed, max_batch=max_batch, size=size)
        if chance[-max(1, size // 50) :].sum() < NEGLIGIBLE:
            return chance
        size *= 2


def _solve(rate: float, per_item: float, fixed: float, max_batch: int | None, size: int) -> np.ndarray:
    if max_batch is None:
        rows = np.array([_poisson(rate * (per_item * max(n, 1) + fixed), size) for n in range(size)])
        system = np.eye(size - 1) - rows[1:, 1:].T
        rest = np.linalg.solve(system, rows[0, 1:])
    else:
        rest = _solve_banded(rate, per_item, fixed, max_batch=max_batch, size=size)
    if rest.sum() < 0:
        # A server that is as good as never idle: the system is singular but for rounding, which then decides the sign.
        # What comes out is one step of inverse iteration, the stationary vector to the last digits.
        rest = -rest
    chance = np.concatenate([[1.0], np.maximum(rest, 0.0)])
    return chance / chance.sum()


def _solve_banded(rate: float, per_item: float, fixed: float, max_batch: int, size: int) -> np.ndarray:
    from scipy.linalg import solve_banded

    full = rate * (per_item * max_batch + fixed)
    come = int(full + 12 * math.sqrt(full) + 30)
    lower = min(come, size - 2)  # rows below the diagonal: from fewer waiting to more
    upper = min(max_batch, size - 2)
    band = np.zeros((lower + upper + 1, size - 1))
    first = np.zeros(size)
    arrivals = {n: _poisson(rate * (per_item * n + fixed), come + 1) for n in range(1, min(max_batch, size) + 1)}
    first[: min(come + 1, size)] = arrivals[1][: min(come + 1, size)]
    for waiting in range(1, size):
        batch = min(waiting, max_batch)
        chances = arrivals[batch]
        start = waiting - batch
        # to state start + k, k = 0..come, in column `waiting`: row index in the band is upper + to - waiting
        low = max(start, 1)
        high = min(start + come, size - 1, waiting + lower)
        if high >= low:
            rows = np.arange(low, high + 1) - waiting + upper
            band[rows, waiting - 1] -= chances[low - start : high - start + 1]
        band[upper, waiting - 1] += 1.0
    return np.asarray(solve_banded((lower, upper), band, first[1:]))


def _poisson(mean: float, size: int) -> np.ndarray:
    from scipy.special import gammaln

    numbers = np.arange(size)
    return np.asarray(np.exp(numbers * math.log(mean) - mean - gammaln(numbers + 1)))


def _tails(rate: float, per_item: float, fixed: float, sizes: np.ndarray, empty: float) -> dict[str, Any]:
    count = np.flatnonzero(sizes)
    times = per_item * count + fixed
    mean = float(sizes @ np.arange(len(sizes)))
    weight = sizes[count] * rate * times / mean  # of arrivals during a service of that many
    at_once = empty / mean

    def wait_above(t: float) -> float:
        return float(weight @ np.maximum(0.0, 1 - t / times))

    others = np.arange(len(sizes) + 20)
    own = per_item * (others + 1) + fixed
    chances = np.array([_poisson(rate * time, len(others)) for time in times])

    def response_above(t: float) -> float:
        beyond = np.clip(1 - (t - own[np.newaxis, :]) / times[:, np.newaxis], 0.0, 1.0)
        alone = at_once if per_item + fixed > t else 0.0
        return alone + float(weight @ (chances * beyond).sum(axis=1))

    return {"wait_above": wait_above, "response_above": response_above}


def inoue_bounds(rate: float, per_item: float, fixed: float) -> BatchBounds:
    """Bound the mean response of greedy batches of any size, in closed form.

    E[T] is a decreasing function of the mean batch E[B] alone.  With α = `per_item` and τ = `fixed`, E[B] is at least 1
    and at least λτ / (1 - λα).  Let φ_0 and φ_1 be the values of E[T] at these two bounds; min(φ_0, φ_1) is Inoue's
    upper bound.  φ_1 = 3τ / (2 (1 - λα)) + α (λα + 2) / (2 (1 - λ²α²)).  Lower bound: P(no arrival during a service) ≤
    exp(-λ (α + τ)), so E[B] ≤ (λτ + exp(-λ (α + τ))) / (1 - λα).
    Reference (upper bound): Inoue, Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching (2021).
    """
    positive(rate=rate)
    not_negative(per_item=per_item, fixed=fixed)
    positive(the_time_of_a_batch=per_item + fixed)
    slope = rate * per_item
    if slope >= 1:
        raise _overloaded("greedy batches", slope)

    def response(batch: float) -> float:
        moment = (1 + 2 * rate * slope * fixed + (rate * fixed) ** 2 / batch) / (1 - slope**2)  # E[B²] / E[B]
        return per_item * (1 + slope / 2) * moment + fixed * (1 + slope) + rate * fixed**2 / (2 * batch)

    min_response = rate * fixed / (1 - slope)
    largest = (rate * fixed + math.exp(-rate * (per_item + fixed))) / (1 - slope)
    return BatchBounds(response(max(largest, 1.0)), response(max(min_response, 1.0)))


def _overloaded(name: str, load: float) -> UsageError:
    return UsageError(
        f"{name}: no steady state: the load is {load:.4g} even with full batches, not below 1, and the queue grows "
        "without bound; a lower rate, a lower time per item or larger batches are needed"
    )
