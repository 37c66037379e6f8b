"""A load, measured interval by interval, with its forecasts and how they turned out.

What is noted between two instants counts as the rate of that interval, at its middle.  Forecasts are for the coming
intervals, up to the lead: their greatest is what must be ready for, and their mean is held against what came, when the
lead is over.  (A single short interval would be held against little but chance.)
"""

from __future__ import annotations

import math
from collections import deque

from policies.prediction.contract import Predictor
from policies.prediction.errors import Score

MOST_ASKED = 12
"""Times within the lead at which a forecast is asked for its peak."""


class Series:
    """A predictor with its measuring.

    interval: seconds between measurements.  lead: how far ahead it is asked, in seconds.
    score: where the errors of forecasts are noted; perhaps that of several series.
    """

    def __init__(self, predictor: Predictor, interval: float, lead: float, score: Score):
        self.predictor = predictor
        self.interval = interval
        self.lead = lead
        self.score = score
        self.peak = 0.0
        """The greatest load that the last forecasts expect within the lead."""
        self.forecasts = self.fallbacks = 0
        self._noted = 0.0
        """Work since the last measurement."""
        self._steps = max(1, math.ceil(lead / interval - 1e-9))
        count = min(MOST_ASKED, self._steps)
        self._ahead = [interval * math.ceil(self._steps * (k + 1) / count) for k in range(count)]
        """Seconds from the middle of the last interval to the middles of those that are forecast."""
        self._said: deque[tuple[float, float]] = deque()
        """Of the last forecasts: the sum of all loads until then, and the mean expected."""
        self._sum = 0.0

    def note(self, amount: float) -> None:
        """So much came (device-seconds, say)."""
        self._noted += amount

    def measure(self, end: float) -> None:
        """An interval is over."""
        value, self._noted = self._noted / self.interval, 0.0
        self._sum += value
        if len(self._said) == self._steps:
            before, expected = self._said.popleft()
            self.score.note((self._sum - before) / self._steps, expected)
        self.predictor.observe(end - self.interval / 2, value)
        found = [max(0.0, self.predictor.forecast(horizon)) for horizon in self._ahead]
        self.peak = max(found)
        self._said.append((self._sum, sum(found) / len(found)))
        self.forecasts += 1
        self.fallbacks += not self.predictor.own
