"""A measured load with its forecasts, their errors, and the capacity to prepare.

What is noted between two instants counts as the rate of that interval, at its middle.  Forecasts are for the coming
intervals, up to the lead: their greatest is what must be ready for, and their mean is held against what came, when the
lead is over.  (A single short interval would be held against little but chance.)

`demand` takes its level from what is measured now and from the forecast what is going to change:

    rise     the greatest forecast less what the predictor expected of the time that the measured mean is over;
             nothing if it is no more than twice the error of the forecasts of late
    demand   measured + rise, or the greatest forecast where that is more, by at most `NOISE` standard errors

So a day that breaks with the rhythm is met as by an autoscaler that reacts: demand is never less than what is measured,
what does not come is made ready for once, for about one lead, and forecasts that have erred are not believed.  On a
day like those before it is the forecast, which does not jump with chance as the measured mean does.
"""

import math
from collections import deque

from hetsim.policy import Predictor
from hetsim_policies.prediction.durations import Score
from hetsim_policies.prediction.predictors import Ewma
from hetsim_policies.prediction.recent import Recent

MAX_ASKED = 12
"""Times within the lead at which a forecast is asked for its peak."""
NOTHING = 1e-9
"""Devices, below which a load is none."""
NOISE = 0.5
"""Standard errors by which what is measured may fall short of the load by chance."""
DOUBTFUL = 2.0
"""Times the mean error of the forecasts of late that a rise must exceed."""
LEADS = 10
"""Leads over which that error is averaged."""


class Series:
    """A predictor fed with measured intervals.

    interval: seconds between measurements.  lead: how far ahead it is asked, in seconds.
    score: where the errors of forecasts are noted; perhaps that of several series.
    memory: seconds of which the mean is what is measured now, more while too few arrivals came.
    """

    def __init__(self, predictor: Predictor, interval: float, lead: float, score: Score, memory: float = 300.0):
        self.predictor = predictor
        self.interval = interval
        self.lead = lead
        self.score = score
        self.peak = 0.0  # the greatest load that the last forecasts expect within the lead
        self.demand = 0.0  # the load that must be ready for within the lead; of a flat predictor its forecast
        self.forecasts = self.fallbacks = 0
        self._noted = 0.0  # work since the last measurement
        self._arrivals = 0.0
        self._steps = max(1, math.ceil(lead / interval - 1e-9))
        count = min(MAX_ASKED, self._steps)
        self._ahead = [interval * math.ceil(self._steps * (k + 1) / count) for k in range(count)]
        """Seconds from the middle of the last interval to the middles of those that are forecast."""
        self._said: deque[tuple[float, float]] = deque()
        """Last forecasts: the sum of all loads until then, and the mean expected."""
        self._sum = 0.0
        self._recent = Recent(memory)
        self._error = Ewma(LEADS * lead)  # absolute error of the forecast mean over a lead

    def note(self, amount: float, arrivals: float = 1.0) -> None:
        """Add an amount (such as device-seconds) from a number of arrivals."""
        self._noted += amount
        self._arrivals += arrivals

    def measure(self, end: float) -> None:
        value, self._noted = self._noted / self.interval, 0.0
        self._sum += value
        if len(self._said) == self._steps:
            before, expected = self._said.popleft()
            came = (self._sum - before) / self._steps
            self.score.note(came, expected)
            self._error.observe(end, abs(came - expected))
        self.predictor.observe(end - self.interval / 2, value)
        forecasts = [max(0.0, self.predictor.forecast(horizon)) for horizon in self._ahead]
        self.peak = max(forecasts)
        self.demand = self.peak if self.predictor.flat or self.predictor.knows_rates else self._demanded(end, value)
        self._arrivals = 0.0
        self._said.append((self._sum, sum(forecasts) / len(forecasts)))
        self.forecasts += 1
        self.fallbacks += not self.predictor.own

    def ceiling(self) -> float:
        """Upper bound of demand while nothing arrives; inf if unknown."""
        peak = self.peak_ceiling()
        return peak if self.predictor.flat else peak + max(peak, self._recent.ceiling)

    def peak_ceiling(self) -> float:
        """Upper bound of peak demand while nothing arrives; inf if unknown."""
        return math.inf if self._noted else self.predictor.ceiling()

    @property
    def settled(self) -> bool:
        """Return True if nothing is expected, so that intervals can be skipped."""
        if len(self._said) < self._steps or self.ceiling() > NOTHING:
            return False
        return all(before == self._sum and expected <= NOTHING for before, expected in self._said)

    def skip(self, count: int, end: float) -> None:
        """Skip empty intervals up to a time; only if the series is settled.

        The same as `measure` for each but for what is below `NOTHING`.  Cost: O(1) in the count.
        """
        self.predictor.skip(count, end - self.interval / 2)
        self.score.skip(count)
        self._error.skip(count, end)
        if not self.predictor.flat:
            self._recent.skip(count, end)
        self.forecasts += count
        self.fallbacks += count * (not self.predictor.own)
        self._arrivals = 0.0

    def _demanded(self, end: float, value: float) -> float:
        """The demand from measurement and forecast, as the head of this file says."""
        self._recent.observe(end, value, max(0.0, self.predictor.forecast(0.0)), self._arrivals)
        measured, expected, error = self._recent.mean
        if (rise := self.peak - expected) <= DOUBTFUL * self._error.forecast(0.0):
            rise = 0.0
        return rise + max(measured, min(self.peak - rise, (1.0 + NOISE * error) * measured))
