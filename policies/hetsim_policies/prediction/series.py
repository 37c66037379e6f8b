"""A measured load with its forecasts, their errors, and the capacity to prepare.

An amount recorded between two instants counts as the load's rate at the middle of this interval.  Forecasts are for the
coming intervals, up to the lead: their maximum is the capacity to prepare, and their mean is compared with the actual
load at the end of the lead.  (A comparison for a single short interval would mostly measure chance.)

`demand` takes its level from the present measurement and its changes from the forecast:

    measured the mean load of the last minutes
    rise     the maximum forecast minus the predictor's value for these last minutes;
             0 if this is at most twice the recent forecast error
    demand   measured + rise; or the maximum forecast if that is larger, but not by more than `NOISE` standard errors

So on an unusual day the demand is that of a reactive autoscaler: it is never less than the measured load, a forecast
rise that does not occur adds capacity once, for about one lead, and forecasts with errors are not used.  On a usual day
the demand is the forecast, which is less noisy than the measured mean.
"""

import math
from collections import deque

from hetsim.policy import Predictor
from hetsim_policies.prediction.durations import Score
from hetsim_policies.prediction.predictors import Ewma
from hetsim_policies.prediction.recent import Recent

MAX_ASKED = 12  # number of times within the lead at which a forecast is evaluated for its peak
NOTHING = 1e-9  # load in devices below which it counts as 0
NOISE = 0.5  # standard errors by which the measurement may be below the load by chance
DOUBTFUL = 2.0  # factor of the recent mean forecast error that a rise must exceed
LEADS = 10  # number of leads over which that error is averaged


class Series:
    """Measures the load of each interval and feeds it to a predictor.

    interval: seconds between measurements.  lead: seconds ahead that are forecast.
    score: record of forecast errors; several series may share one record.
    memory: seconds over which the present load is averaged; a longer time is used if arrivals are few.
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
        # Seconds from the middle of the last interval to the middles of the forecast ones
        self._ahead = [interval * math.ceil(self._steps * (k + 1) / count) for k in range(count)]
        self._said: deque[tuple[float, float]] = deque()  # last forecasts: (sum of all loads until then, expected mean)
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
        """Upper bound of the load to prepare for while no work arrives; inf: unknown."""
        peak = self.peak_ceiling()
        return peak if self.predictor.flat else peak + max(peak, self._recent.ceiling)

    def peak_ceiling(self) -> float:
        """Upper bound of the predictor's forecasts while nothing arrives; inf if unknown."""
        return math.inf if self._noted else self.predictor.ceiling()

    @property
    def settled(self) -> bool:
        """Return True if all forecasts are about 0 and remain so while nothing arrives."""
        if len(self._said) < self._steps or self.ceiling() > NOTHING:
            return False
        return all(before == self._sum and expected <= NOTHING for before, expected in self._said)

    def skip(self, count: int, end: float) -> None:
        """Record `count` intervals without arrivals at once; the last one ends at `end`.

        Only allowed if the series is settled (further empty intervals do not change its forecast).  The effect is that
        of calling `measure` for each interval, except that loads below `NOTHING` count as 0.  Cost: O(1).
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
        """Return the load to prepare for: the measured mean load and the expected rise.

        If the forecast without this rise is above the measured mean, the mean is raised to it, at most by a margin for
        noise.  end, value: last measurement (time, load).
        """
        self._recent.observe(end, value, max(0.0, self.predictor.forecast(0.0)), self._arrivals)
        measured, expected, error = self._recent.mean
        if (rise := self.peak - expected) <= DOUBTFUL * self._error.forecast(0.0):
            rise = 0.0
        return rise + max(measured, min(self.peak - rise, (1.0 + NOISE * error) * measured))
