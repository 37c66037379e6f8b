"""How far forecasts were from what came: MAPE and pinball loss.

MAPE: the mean of |actual - forecast| / |actual| over what was not 0; of 0 no part can be taken, and how many those
were is told.  Pinball loss at quantile q: the mean of q × (actual - forecast) where the forecast was too low and of
(1 - q) × (forecast - actual) where it was too high, in the unit of the series; least for the q-quantile, and at 0.5
half the mean absolute error.
Reference: Hyndman, Koehler, Another Look at Measures of Forecast Accuracy (2006); Koenker, Bassett, Regression
Quantiles (1978).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hetsim.errors import UsageError
from hetsim.policy import Predictor


@dataclass(frozen=True)
class PredictionError:
    """Forecast errors: `mape` is NaN if all were 0, `pinball` without a forecast."""

    count: int
    mape: float
    pinball: float
    bias: float
    """Mean of forecast - actual."""
    zeros: int
    """Actual values of 0, which `mape` leaves out."""
    quantile: float = 0.5


class Score:
    """The same in passing: O(1) a forecast, nothing kept."""

    def __init__(self, quantile: float = 0.5):
        if not 0 < quantile < 1:
            raise UsageError(f"a quantile lies between 0 and 1, {quantile:g} does not")
        self.quantile = quantile
        self.count = self.zeros = 0
        self._parts = self._loss = self._excess = 0.0

    def note(self, actual: float, forecast: float) -> None:
        """This was forecast, and that came."""
        if not (math.isfinite(actual) and math.isfinite(forecast)):
            raise UsageError(f"forecasts and what came are finite numbers, not {forecast} and {actual}")
        missed = actual - forecast
        self.count += 1
        self._excess -= missed
        self._loss += self.quantile * missed if missed > 0 else (self.quantile - 1) * missed
        if actual:
            self._parts += abs(missed / actual)
        else:
            self.zeros += 1

    def skip(self, count: int) -> None:
        """Nothing was forecast this number of times, and nothing came."""
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
    """The error of forecasts, one for each value that came.

    >>> prediction_error([10, 20, 0], [12, 15, 1])
    PredictionError(count=3, mape=0.225, pinball=1.3333333333333333, bias=-0.6666666666666666, zeros=1, quantile=0.5)
    """
    score = Score(quantile)
    came, expected = list(actual), list(forecast)
    if len(came) != len(expected):
        raise UsageError(f"{len(expected)} forecasts for {len(came)} values: one each is wanted")
    for value, said in zip(came, expected, strict=True):
        score.note(float(value), float(said))
    return score.error


def error_notes(name: str, error: PredictionError, **more: Any) -> dict[str, Any]:
    """Errors as notes of a policy (`hetsim.results.one_run.forecasts`); no NaN."""
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
    """The error of a fresh predictor over a series, a number of observations ahead.

    Each forecast is asked for exactly the time of the value it is held against.  skip: forecasts of this number of
    first values do not count (a season to learn, say).
    """
    came, at = [float(value) for value in values], [float(time) for time in times]
    if len(came) != len(at):
        raise UsageError(f"{len(at)} times for {len(came)} values: one each is wanted")
    if steps < 1:
        raise UsageError(f"a forecast is at least one observation ahead, not {steps}")
    score = Score(quantile)
    for position, (time, value) in enumerate(zip(at, came, strict=True)):
        predictor.observe(time, value)
        target = position + steps
        if skip <= target < len(came):
            score.note(came[target], predictor.forecast(at[target] - time))
    return score.error
