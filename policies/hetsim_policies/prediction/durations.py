"""Expected times of jobs, from ended jobs of the same user and class.

The prediction is a mean in which recent jobs have larger weights, or a quantile of the last jobs.  While the user has
little history, it is blended with the mean, or the quantile, of the jobs of all users.
Reference: Tsafrir, Etsion, Feitelson, Backfilling Using System-Generated Predictions Rather than User Runtime Estimates
(2007), where the mean of a user's last two jobs is better than users' estimates; Hu et al., Characterization and
Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters (2021) for rolling means by user and name.
Fallback: `default` before any job has ended.  Cost: O(1) per job for means; O(window) for quantiles.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hetsim.errors import UsageError
from hetsim.policy import Predictor


class DurationHistory:
    """Past durations by user and class.

    decay: weight of earlier jobs in a user's mean; the latest job has weight 1 - decay.
    trust: with this number of jobs, a user's own mean has the same weight as the mean of all jobs.
    default: prediction before any job has ended.
    quantile: predict this quantile of the last `window` durations; None: predict the mean.
    """

    def __init__(
        self,
        decay: float = 0.8,
        trust: float = 3.0,
        default: float = 3600.0,
        quantile: float | None = None,
        window: int = 100,
    ):
        self.decay, self.trust, self.default, self.quantile = decay, trust, default, quantile
        self.window = window
        # By user and class: number of ended jobs, and their mean duration
        self._means: dict[tuple[str, str], tuple[int, float]] = {}
        self._all = (0, 0.0)
        self._recent: dict[tuple[str, str], RunningQuantile] = {}
        self._recent_all = RunningQuantile(10 * window)

    def observe(self, user: str, class_: str, seconds: float) -> None:
        key = user, class_
        jobs, own = self._means.get(key, (0, seconds))
        self._means[key] = jobs + 1, self.decay * own + (1 - self.decay) * seconds
        count, overall = self._all
        self._all = count + 1, overall + (seconds - overall) / (count + 1)
        if self.quantile is not None:
            if key not in self._recent:
                self._recent[key] = RunningQuantile(self.window)
            self._recent[key].add(seconds)
            self._recent_all.add(seconds)

    def forecast(self, user: str, class_: str) -> float:
        """Predicted seconds of a user's next job of a class; first job of all: `default`."""
        count, overall = self._all
        jobs, own = self._means.get((user, class_), (0, 0.0))
        if self.quantile is not None and count:
            overall = self._recent_all.at(self.quantile)
            own = self._recent[user, class_].at(self.quantile) if jobs else 0.0
        overall = overall if count else self.default
        part = jobs / (jobs + self.trust)
        return part * own + (1 - part) * overall


class RunningQuantile:
    """Quantiles of the last `window` values.

    Cost: O(window) per value, O(1) per quantile.
    """

    def __init__(self, window: int):
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self.window = window

    def add(self, value: float) -> None:
        if len(self._order) == self.window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    def at(self, quantile: float) -> float:
        """Return the smallest value that this share of values does not exceed."""
        last = len(self._sorted) - 1
        return self._sorted[min(last, max(0, math.ceil(quantile * (last + 1) - 1e-9) - 1))]


# Forecast errors.  MAPE: the mean of |actual - forecast| / |actual| over all actual values but 0, which are counted.
# Pinball loss at quantile q: the mean of q × (actual - forecast) if the forecast was too low, else of (1 - q) ×
# (forecast - actual); it is least for the q-quantile, and at 0.5 half the mean absolute error.
# Reference: Hyndman, Koehler, Another Look at Measures of Forecast Accuracy (2006); Koenker, Bassett, Regression
# Quantiles (1978).


@dataclass(frozen=True)
class PredictionError:
    """Forecast errors; `mape` is NaN if all values were 0."""

    count: int
    mape: float
    pinball: float
    bias: float  # mean of forecast - actual
    zeros: int  # number of actual values of 0, which `mape` excludes
    quantile: float = 0.5


class Score:
    """Forecast errors computed incrementally: O(1) per forecast, without a history."""

    def __init__(self, quantile: float = 0.5):
        if not 0 < quantile < 1:
            raise UsageError(f"quantile must be between 0 and 1; got {quantile:g}")
        self.quantile = quantile
        self.count = self.zeros = 0
        self._parts = self._loss = self._excess = 0.0

    def note(self, actual: float, forecast: float) -> None:
        if not (math.isfinite(actual) and math.isfinite(forecast)):
            raise UsageError(f"forecast and actual must be finite; got {forecast} and {actual}")
        missed = actual - forecast
        self.count += 1
        self._excess -= missed
        self._loss += self.quantile * missed if missed > 0 else (self.quantile - 1) * missed
        if actual:
            self._parts += abs(missed / actual)
        else:
            self.zeros += 1

    def skip(self, count: int) -> None:
        """Add `count` intervals in which the forecast and the value were both 0."""
        self.count += count
        self.zeros += count

    @property
    def error(self) -> PredictionError:
        counted = self.count - self.zeros
        return PredictionError(
            self.count,
            self._parts / counted if counted else math.nan,
            self._loss / self.count if self.count else math.nan,
            bias=self._excess / self.count if self.count else math.nan,
            zeros=self.zeros,
            quantile=self.quantile,
        )


def prediction_error(actual: Iterable[float], forecast: Iterable[float], quantile: float = 0.5) -> PredictionError:
    """Return error measures of `forecast`, which has one number per actual value.

    >>> prediction_error([10, 20, 0], [12, 15, 1])
    PredictionError(count=3, mape=0.225, pinball=1.3333333333333333, bias=-0.6666666666666666, zeros=1, quantile=0.5)
    """
    score = Score(quantile)
    came, expected = list(actual), list(forecast)
    if len(came) != len(expected):
        raise UsageError(f"forecasts and values must have the same length; got {len(expected)} and {len(came)}")
    for value, said in zip(came, expected, strict=True):
        score.note(float(value), float(said))
    return score.error


def error_notes(name: str, error: PredictionError, **more: Any) -> dict[str, Any]:
    """Return errors as notes of a policy, without NaN."""
    notes = {"count": error.count, "mape": error.mape, "pinball": error.pinball, "quantile": error.quantile, **more}
    return {f"{name}_{key}": value for key, value in notes.items() if value == value}


def backtest(
    predictor: Predictor,
    times: Iterable[float],
    values: Iterable[float],
    steps: int = 1,
    quantile: float = 0.5,
    skip: int = 0,
) -> PredictionError:
    """Return the error of a new predictor over a series, `steps` observations ahead.

    Each forecast is for exactly the time of the value that it is compared with.  skip: number of values at the start
    whose forecasts do not count (a season to learn, for example).
    """
    came, at = [float(value) for value in values], [float(time) for time in times]
    if len(came) != len(at):
        raise UsageError(f"times and values must have the same length; got {len(at)} and {len(came)}")
    if steps < 1:
        raise UsageError(f"steps must be at least 1 (observations ahead); got {steps}")
    score = Score(quantile)
    for position, (time, value) in enumerate(zip(at, came, strict=True)):
        predictor.observe(time, value)
        target = position + steps
        if skip <= target < len(came):
            score.note(came[target], predictor.forecast(at[target] - time))
    return score.error
