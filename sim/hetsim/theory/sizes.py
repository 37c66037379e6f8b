"""Scheduling by size in M/G/1: SRPT, SJF, preemptive SJF, least attained service.

Sizes are given by their density, a function of an array of seconds or anything with a `pdf`, such as a law of
scipy.stats.  The density is 0 outside its support; `edges` are points where it is not smooth; `at` are sizes whose mean
response is requested.  All models give means only, which are exact for sizes with a density.  m_k(x) is E[S^k; S ≤ x],
ρ(x) = λ m_1(x).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, positive, stable

POINTS = 16
MAX_HALVINGS = 60
SMALLEST, LARGEST = 2.0**-400, 2.0**400
PRECISION = 1e-14  # error of a panel's moments, over those of all sizes
SMOOTH_START = 1e-30  # below this the integrand of the mean slowdown vanishes at 0


@dataclass(frozen=True)
class SizePrediction(Prediction):
    """Prediction for a queue ordered by size; `response_by_size` has means by `sizes`."""

    slowdown_mean: float = math.nan  # mean of response / size; NaN if it diverges, or nearly does
    sizes: Any = field(default=None, repr=False, compare=False)
    response_by_size: Any = field(default=None, repr=False, compare=False)
    # mean response of a class of tasks, as a function of the density of its sizes
    response_of: Any = field(default=None, repr=False, compare=False)


def srpt(rate: float, sizes: Any, edges: Sequence[float] = (), at: Any = None) -> SizePrediction:
    """M/G/1 under shortest remaining processing time first, with preemption.

    E[T(x)] = λ (m_2(x) + x² P(S > x)) / 2 / (1 - ρ(x))² + ∫_0^x dt / (1 - ρ(t)); the first part is the wait until the
    first start.  Exact.  Reference: Schrage and Miller, The Queue M/G/1 with the Shortest Remaining Processing Time
    Discipline (1966).
    """
    law = _Sizes(rate, sizes, [*edges], at)
    free = 1 - rate * law.below(law.x)
    residence = law.integral(1 / free[:, :POINTS])
    return law.prediction("M/G/1-SRPT", rate * law.second_up_to() / 2 / free**2, residence)


def sjf(rate: float, sizes: Any, edges: Sequence[float] = (), at: Any = None) -> SizePrediction:
    """M/G/1 under shortest job first, without preemption.

    E[W(x)] = λ E[S²] / 2 / (1 - ρ(x))²; ρ(x): load of tasks up to size x.  Exact.  edges: where the density is not
    smooth; at: sizes for which means are returned.  Phipps, Machine Repair as a Priority Waiting-Line Problem (1956).
    """
    law = _Sizes(rate, sizes, [*edges], at)
    wait = rate * law.second / 2 / (1 - rate * law.below(law.x)) ** 2
    return law.prediction("M/G/1-SJF", wait, law.ends)


def psjf(rate: float, sizes: Any, edges: Sequence[float] = (), at: Any = None) -> SizePrediction:
    """M/G/1 under preemptive shortest job first: by the size at arrival.

    E[T(x)] = λ m_2(x) / 2 / (1 - ρ(x))² + x / (1 - ρ(x)).  Exact.  Reference: Harchol-Balter, Performance Modeling and
    Design of Computer Systems (2013), ch. 32.
    """
    law = _Sizes(rate, sizes, [*edges], at)
    free = 1 - rate * law.below(law.x)
    return law.prediction("M/G/1-PSJF", rate * law.below(law.x**2) / 2 / free**2, law.ends / free)


def las(
    rate: float, sizes: Any, edges: Sequence[float] = (), at: Any = None, thresholds: Sequence[float] = (),
) -> SizePrediction:  # fmt: skip
    """M/G/1 under least attained service (foreground-background).

    With `thresholds` of attained service, the tasks between two thresholds are one queue, in the order of arrival, as
    in the policy `las`.  E[T(x)] = (λ E[min(S, b)²] / 2 / (1 - λ E[min(S, b)]) + x) / (1 - λ E[min(S, a)]), where a and
    b are the thresholds below and above the size x (a = b = x without thresholds).  Exact.  Reference: Kleinrock,
    Queueing Systems II (1976), §4.6 and §4.7.
    """
    if any(not 0 < one < math.inf for one in thresholds):
        raise UsageError("thresholds of attained service must be numbers of seconds above 0")
    law = _Sizes(rate, sizes, [*edges, *thresholds], at)
    free = 1 - rate * (law.below(law.x) + law.ends * law.above())
    ahead = rate * law.second_up_to() / 2 / free
    if not len(thresholds):
        return law.prediction("M/G/1-LAS", np.zeros_like(free), (ahead + law.ends) / free)
    marks = np.unique(thresholds)
    panels = np.clip(np.searchsorted(law.bounds, marks) - 1, 0, len(free) - 1)
    free_at = np.concatenate([[1.0], free[panels, POINTS], free[-1:, POINTS]])
    ahead_at = np.concatenate([ahead[panels, POINTS], ahead[-1:, POINTS]])
    level = np.searchsorted(marks, law.ends)
    response = (ahead_at[level] + law.ends) / free_at[level]
    start = np.full_like(response, ahead_at[0])
    return law.prediction(f"M/G/1-LAS with {len(marks) + 1} queues", start, response - start)


class _Sizes:
    """Integrals over a density of sizes, on panels halved until the moments are exact."""

    def __init__(self, rate: float, sizes: Any, edges: list[float], at: Any):
        positive(rate=rate)
        self.rate, self.at = rate, np.atleast_1d(np.asarray([] if at is None else at, dtype=float))
        self.law = getattr(sizes, "pdf", sizes)
        unit, self.weights = legendre.leggauss(POINTS)
        bounds = np.unique([*(2.0 ** np.arange(-400, 401)), *np.clip([*edges, *self.at], SMALLEST, LARGEST)])
        self.bounds = self._refined(bounds, unit)
        self.half = np.diff(self.bounds)[:, None] / 2
        self.x = self.bounds[:-1, None] + self.half * (1 + unit)
        self.ends = np.column_stack([self.x, self.bounds[1:]])
        self.inner = np.linalg.inv(legendre.legvander(unit, POINTS - 1)).T @ legendre.legval(
            unit, legendre.legint(np.eye(POINTS), lbnd=-1)
        )  # ∫_-1^u of the polynomial through the values at the nodes
        self.density = self.law(self.x)
        self.total, self.mean, self.second = (self.expected(self.x**power) for power in range(3))
        # A density that is unbounded at 0 may have some weight below the smallest size: those take no time.
        if not (abs(self.total - 1) < 1e-9 or 0.99 < self.total < 1):
            raise UsageError(f"the density of sizes must have the integral 1; got {self.total:.10g}")
        stable(rate * self.mean, 1, "M/G/1")

    def _refined(self, bounds: np.ndarray, unit: np.ndarray) -> np.ndarray:
        def moments(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            half = (high - low)[:, None] / 2
            x = low[:, None] + half * (1 + unit)
            return np.stack([(x**power * self.law(x) * half * self.weights).sum(axis=1) for power in range(3)])

        ready, fixed = [bounds], np.zeros(3)
        low, high = bounds[:-1], bounds[1:]
        sums = moments(low, high)
        for _ in range(MAX_HALVINGS):
            middle = (low + high) / 2
            lower, upper = moments(low, middle), moments(middle, high)
            error = np.abs(lower + upper - sums)
            off = (error > PRECISION * (fixed + (lower + upper).sum(axis=1))[:, None]).any(axis=0)
            fixed += (lower + upper)[:, ~off].sum(axis=1)
            ready.append(middle[off])
            if not off.any():
                break
            low, high = np.append(low[off], middle[off]), np.append(middle[off], high[off])
            sums = np.append(lower[:, off], upper[:, off], axis=1)
        return np.unique(np.concatenate(ready))

    def expected(self, values: np.ndarray) -> float:
        return float((values * self.density * self.half * self.weights).sum())

    def integral(self, values: np.ndarray) -> np.ndarray:
        ends = np.cumsum((self.half * values * self.weights).sum(axis=1))
        before = np.concatenate([[0.0], ends[:-1]])[:, None]
        return np.column_stack([before + self.half * (values @ self.inner), ends])

    def below(self, values: np.ndarray) -> np.ndarray:
        return self.integral(values * self.density)

    def above(self) -> np.ndarray:
        """Return P(S > x), summed from above, so that small values are accurate."""
        panels = (self.half * self.density * self.weights).sum(axis=1)
        after = np.concatenate([np.cumsum(panels[::-1])[::-1][1:], [0.0]])[:, None]
        inner = panels[:, None] - self.half * (self.density @ self.inner)
        return np.maximum(np.column_stack([after + inner, after]), 0.0)

    def second_up_to(self) -> np.ndarray:
        return self.below(self.x**2) + self.ends**2 * self.above()

    def prediction(self, model: str, wait: np.ndarray, residence: np.ndarray) -> SizePrediction:
        response = wait + residence
        first = wait[0, 0] * (1 - self.total)
        waits, mean = (self.expected(part[:, :POINTS]) + first for part in (wait, response))
        at_nodes = response[:, :POINTS]

        def response_of(sizes: Any) -> float:
            return float((at_nodes * getattr(sizes, "pdf", sizes)(self.x) * self.half * self.weights).sum())

        smooth = response[0, 0] * self.density[0, 0] < SMOOTH_START
        load = self.rate * self.mean
        return SizePrediction(
            model, load, utilization=load, wait_mean=waits, response_mean=mean,
            queue_length_mean=self.rate * (mean - self.mean), jobs_in_system_mean=self.rate * mean,
            throughput=self.rate,
            slowdown_mean=self.expected(at_nodes / self.x) if smooth else math.nan, sizes=self.at,
            response_by_size=np.interp(self.at, self.bounds[1:], response[:, POINTS]), response_of=response_of,
        )  # fmt: skip
