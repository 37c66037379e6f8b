"""Last value: what is now will be.

The yardstick of all forecasts (the random walk's best one), and what autoscalers do that react to a measurement.
Reference: Hyndman, Athanasopoulos, Forecasting: Principles and Practice (2021), ch. 5.2 (the naive method).
Weakness: late by the whole horizon when the load moves, and as noisy as the measurement.
Cost: O(1).
"""

from __future__ import annotations

from hetsim.policy import Predictor


class LastValue(Predictor):
    """The last observed value."""

    flat = True

    def ceiling(self) -> float:
        return self.last

    def _expect(self, horizon: float) -> float:
        return self.last
