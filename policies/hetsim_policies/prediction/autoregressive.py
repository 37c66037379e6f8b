"""AR: the next value as a weighted sum of the last few, by least squares.

x[t] = c + a1 x[t-1] + ... + ap x[t-p]; a forecast further ahead feeds forecasts back in, a step after the other.
Reference: Box, Jenkins, Time Series Analysis (1970), ch. 7; for servers' load Dinda, O'Hallaron, Host Load Prediction
Using Linear Models (2000), which finds AR(16) enough a few seconds ahead.
Fall-back: the mean of what is known, until least squares have twice as many equations as weights (3 x order + 2
observations); a fit that explodes is kept within the window's range, widened by as much again on each side.
Weakness: knows no season longer than its order; far ahead it tends to the mean.
Cost: least squares of window x order every `refit` observations, O(order) a step of a forecast.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.policy import Predictor

MAX_STEPS = 10_000
"""Maximum steps of a forecast: beyond, a stable fit has long converged."""


class Autoregressive(Predictor):
    """AR(order), fitted to the last `window` observations every `refit` of them."""

    def __init__(
        self,
        order: Annotated[int, Field(ge=1, le=1000)] = 4,
        window: Annotated[int, Field(ge=2, le=100_000)] = 288,
        refit: Annotated[int, Field(ge=1)] = 10,
    ):
        super().__init__()
        if window < (needed := 3 * order + 2):
            raise ValueError(f"a window of {window} observations is too short for order {order}, which needs {needed}")
        self.order, self.refit = order, refit
        self._values: deque[float] = deque(maxlen=window)
        self._weights: list[float] = []
        """The constant, then those of the last value, the one before, and so on."""

    @property
    def own(self) -> bool:
        return bool(self._weights)

    def _learn(self, time: float, value: float) -> None:
        self._values.append(value)
        enough = len(self._values) >= 3 * self.order + 2
        if enough and (not self._weights or self.seen % self.refit == 0):
            self._fit()

    def ceiling(self) -> float:
        """Forecasts are kept within the window's range, widened by as much again."""
        return 2.0 * max(self._values, default=0.0)

    def _pass_over(self, count: int, time: float) -> None:
        """The window is all zeros, and so are its weights once they are fitted to it."""
        self._values.extend([0.0] * min(count, self._values.maxlen or 0))
        again = (self.seen + count) // self.refit > self.seen // self.refit
        if len(self._values) >= 3 * self.order + 2 and (again or not self._weights):
            self._fit()

    def _fit(self) -> None:
        values = np.array(self._values)
        rows, order = len(values) - self.order, self.order
        past = [values[order - lag : order - lag + rows] for lag in range(1, order + 1)]
        matrix = np.column_stack([np.ones(rows), *past])
        self._weights = np.linalg.lstsq(matrix, values[order:], rcond=None)[0].tolist()

    def _expect(self, horizon: float) -> float:
        values = self._values
        if not self._weights:
            return sum(values) / len(values)
        constant, *weights = self._weights
        low, high = min(values), max(values)
        low, high = 2 * low - high, 2 * high - low
        recent = deque(islice(reversed(values), self.order), maxlen=self.order)
        for _ in range(min(MAX_STEPS, max(1, round(horizon / self.gap)))):
            expected = constant + sum(weight * value for weight, value in zip(weights, recent, strict=True))
            recent.appendleft(min(high, max(low, expected)))
        return recent[0]
