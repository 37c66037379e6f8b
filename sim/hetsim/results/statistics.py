"""Confidence intervals of means over replications, and simultaneous tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.results.declared import declaration

Floats = Any  # A number, or an array of numbers.


# Skewness of runs' contributions to a mean wait, divided by their coefficient of variation: 6 to 7 for gamma gaps
# (scv 4) at loads of 0.5 to 0.8.
SKEW = 6.5
EXPONENTIAL_KURTOSIS = 6.0
# As `SKEW`, for the share of tasks that congestion makes late. Late tasks occur in clusters, a Poisson number of
# them: one for each time that the queue exceeds a level, with a size proportional to the time A that Brownian motion
# with drift -1 from 0 spends above 0 (Aldous, Probability Approximations via the Poisson Clumping Heuristic, 1989).
# E[exp(-sA)] is 2 / (1 + √(1 + 2s)), so E[A], E[A²], E[A³], E[A⁴] are 1/2, 1, 15/4, 21: skewness / variation is E[A³]
# E[A] / E[A²]² = 15/8, and excess kurtosis / variation² is E[A⁴] E[A]² / E[A²]³ = 5.25, where 1.5 × (15/8)² is 5.27.
SHARE_SKEW = 15 / 8
SHARE_KURTOSIS = 24.0  # Upper limit of the kurtosis of such a share: fewer than one cluster per run.


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a metric (Student t).

    `method`: the n values are either of replications or of batches of one run (`hetsim.results.one_run.estimands`).
    """

    metric: str
    mean: float
    low: float
    high: float
    confidence: float
    n: int
    method: str = "replications"

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def covers(self, value: float) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        said = f"n = {self.n}" if self.method == "replications" else f"{self.n} {self.method}"
        half = " (no interval)" if math.isnan(self.half_width) else f" ± {self.half_width:.3g}"
        return f"{self.metric}: {self.mean:.6g}{half} ({100 * self.confidence:g}%, {said})"


def student_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95, metric: str = "") -> Interval:
    """Return the t interval of independent values; NaN for one value or infinite ones."""
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be between 0 and 1 (for example 0.95); got {confidence:g}")
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    count = len(array)
    mean = float(array.mean()) if count else math.nan
    if count < 2 or not np.isfinite(array).all():
        return Interval(metric, mean, math.nan, high=math.nan, confidence=confidence, n=count)
    half = half_width(array, metric, 0.5 + confidence / 2)
    return Interval(metric, mean, mean - half, high=mean + half, confidence=confidence, n=count)


def half_width(values: np.ndarray, metric: str, share: float) -> float:
    """Return the half-width of the t interval up to quantile `share` (0.975: 95 %)."""
    count, spread = len(values), deviation(values)
    degrees = freedom(excess_kurtosis(metric, spread, float(values.mean())), count)
    return student_quantile(share, float(degrees)) * spread / math.sqrt(count)


def excess_kurtosis(metric: str, spread: Floats, mean: Floats) -> Floats:
    """Assumed excess kurtosis of a metric's replications; 0 unless it is `congested`.

    A congested metric is declared to depend on waiting.  Ten replications are too few to estimate the skewness.  In a
    queue, however, the skewness is about `SKEW` times the coefficient of variation, and the excess kurtosis is 1.5
    times the square of the skewness (as in the gamma family), at most that of the exponential distribution.  For a
    share of which more is better, the coefficient of variation is that of 1 - share.
    """
    declared = declaration(metric)
    if declared is None or not declared.congested:
        return np.zeros_like(spread)
    is_share = declared.unit == "share"
    skew, limit = (SHARE_SKEW, SHARE_KURTOSIS) if is_share else (SKEW, EXPONENTIAL_KURTOSIS)
    with np.errstate(invalid="ignore", divide="ignore"):
        variation = np.divide(spread, 1 - mean if is_share and declared.better == "more" else mean)
        return np.nan_to_num(np.minimum(1.5 * (skew * variation) ** 2, limit))


def freedom(kurtosis: Floats, count: int) -> Floats:
    """Degrees of freedom of a standard deviation of n values with excess kurtosis κ.

    Few or short runs may miss the rare periods of congestion: then their mean and their standard deviation are both too
    small, and Student's interval is too narrow.  The variance of the variance is that of normal values times
    1 + κ (n - 1) / 2n, which leaves (n - 1) / (1 + κ (n - 1) / 2n) degrees of freedom (Box 1953; Satterthwaite 1946).
    Resulting coverage: benchmarks/coverage.py.
    """
    return (count - 1) / (1 + kurtosis * (count - 1) / (2 * count))


def student_quantile(share: float, freedom: float) -> float:
    return float(student_quantiles(share, freedom))


def student_quantiles(share: float, freedom: Floats) -> Floats:
    """Quantiles of Student's t for many numbers of degrees of freedom."""
    # Not scipy.stats: importing it takes as long as a small run, and single runs need neither.
    from scipy.special import stdtrit

    return stdtrit(freedom, share)


def student_tail(value: float, freedom: float) -> float:
    """Probability that Student's t exceeds a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))


def normal_quantile(share: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(share))


def chi_square_quantile(share: float, freedom: int) -> float:
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(freedom / 2, share))


def deviation(values: np.ndarray) -> float:
    """Sample standard deviation; NaN if undefined."""
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(values.std(ddof=1))


@dataclass(frozen=True)
class PairedDifference:
    """A mean paired difference; `p` and the interval are adjusted by Holm."""

    mean: float
    half_width: float
    p: float
    significant: bool
    n: int


def paired_differences(pairs: Sequence[np.ndarray], confidence: float = 0.95) -> list[PairedDifference]:
    """Test by Holm's step-down procedure that each array of differences has mean 0.

    Of m tests, that with the k-th smallest p is made at level (1 - confidence) / (m - k + 1); all tests after the first
    that fails use the level of that test.  Each interval has the level of its test: it excludes 0 exactly if the
    difference is significant.  The degrees of freedom are n - 1.  The correction of `freedom` is not applied: only the
    end of an interval that is far from 0 would need it, so no difference is reported too often.
    """
    results = []
    for values in pairs:
        count, mean = len(values), float(values.mean()) if len(values) else math.nan
        error = deviation(values) / math.sqrt(count) if count >= 2 else math.nan
        if math.isnan(error):
            p = math.nan
        elif error == 0:
            p = 1.0 if mean == 0 else 0.0
        else:
            p = 2 * student_tail(abs(mean) / error, count - 1)
        results.append((mean, error, p, count))
    testable = sorted((i for i in range(len(results)) if not math.isnan(results[i][2])), key=lambda i: results[i][2])
    result = [PairedDifference(mean, math.nan, p, significant=False, n=count) for mean, _, p, count in results]
    level, holds, adjusted = 0.0, True, 0.0
    for step, index in enumerate(testable):
        mean, error, p, count = results[index]
        if holds:
            level = (1 - confidence) / (len(testable) - step)
            holds = p <= level
        half = student_quantile(1 - level / 2, count - 1) * error
        adjusted = max(adjusted, min(1.0, p * (len(testable) - step)))
        result[index] = PairedDifference(mean, half, adjusted, significant=holds, n=count)
    return result
