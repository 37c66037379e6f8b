"""EWMA: the exponentially weighted mean of observations.

An observation counts 1/e after `memory` seconds.

Weights are divided by their sum, so that the first value does not weigh more than its age allows.
Reference: Brown, Statistical Forecasting for Inventory Control (1959); Holt (1957), reprinted 2004.
Weakness: the forecast is flat: late by about `memory` when the load moves.
Cost: O(1).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.units import Seconds
from hetsim.policy import Predictor
from hetsim_policies.prediction.recent import FadingSum


class Ewma(Predictor):
    """The mean of the last `memory` seconds or so."""

    flat = True

    def __init__(self, memory: Annotated[Seconds, Field(gt=0)] = 600.0):
        if not memory > 0:
            raise ValueError(f"memory is a time above 0, not {memory:g} s")
        super().__init__()
        self._values, self._weights = FadingSum(memory), FadingSum(memory)

    def _learn(self, time: float, value: float) -> None:
        self._values.add(time, value)
        self._weights.add(time, 1.0)

    def ceiling(self) -> float:
        return self.forecast(0.0)

    def _pass_over(self, count: int, time: float) -> None:
        self._values.add_often(count, time, 0.0)
        self._weights.add_often(count, time, 1.0)

    def _expect(self, horizon: float) -> float:
        return self._values.total / self._weights.total
