"""Oracle: the true rate, as a yardstick for a perfect forecast of the load.

Forecasts: the load that the arrival rates of the scenario make on average at that time; not the arrivals themselves,
which stay random.  It is the one predictor that is told the truth (`knows_rates`), and no other policy gets it.
Reference: Raiffa, Schlaifer, Applied Statistical Decision Theory (1961), ch. 4 (the value of perfect information).
Weakness: no real system has it.  A run is refused in which a rate is not certain: traces, closed loops, bursts, and
rates that change at random.  What an arrival asks for is the mean of its class so far; rejected ones count.
Cost: O(classes) a forecast.
"""

from __future__ import annotations

from hetsim.errors import UsageError
from hetsim.policy import Predictor


class Oracle(Predictor):
    """The true mean load at that time."""

    knows_rates = True

    def _expect(self, horizon: float) -> float:
        if self.truth is None:
            raise UsageError("the oracle knows the rates of a run only: name it as the predictor of `predictive`")
        return self.truth(self.time + horizon)
