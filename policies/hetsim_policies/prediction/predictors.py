"""Predictors of a series: last value, means, seasons, and the true rate (oracle)."""

import math
from collections import deque
from itertools import islice
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.errors import UsageError
from hetsim.model.units import Seconds
from hetsim.policy import Predictor
from hetsim_policies.prediction.recent import FadingSum


class LastValue(Predictor):
    """Last value: the forecast is the present value.

    It is the baseline of all forecasts (optimal for a random walk), and the method of autoscalers that react to a
    measurement.
    Reference: Hyndman, Athanasopoulos, Forecasting: Principles and Practice (2021), ch. 5.2 (the naive method).
    Weakness: after a change of the load the forecast is late by the whole horizon; it is as noisy as the measurement.
    Cost: O(1).
    """

    flat = True

    def ceiling(self) -> float:
        return self.last

    def _expect(self, horizon: float) -> float:
        return self.last


class Ewma(Predictor):
    """EWMA: the exponentially weighted mean of observations.

    The weight of an observation falls to 1/e after `memory` seconds.  Weights are divided by their sum, so that the
    first value has no more weight than its age allows.
    Reference: Brown, Statistical Forecasting for Inventory Control (1959); Holt (1957), reprinted 2004.  Weakness: the
    forecast is the same for all horizons; after a change of the load it is late by about `memory`.  Cost: O(1).
    """

    flat = True

    def __init__(self, memory: Annotated[Seconds, Field(gt=0)] = 600.0):
        if not memory > 0:
            raise ValueError(f"memory must be above 0; got {memory:g} s")
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


MAX_STEPS = 10_000  # maximum steps of a forecast: beyond, a stable fit has long converged


class Autoregressive(Predictor):
    """AR: the next value as a weighted sum of the last few, by least squares.

    x[t] = c + a1 x[t-1] + ... + ap x[t-p]; a forecast further ahead uses forecasts as inputs, step by step.
    Reference: Box, Jenkins, Time Series Analysis (1970), ch. 7; for servers' load Dinda, O'Hallaron, Host Load
    Prediction Using Linear Models (2000), which finds AR(16) sufficient for a few seconds ahead.  Fallback: the mean of
    the observations, until there are twice as many equations as weights (3 x order + 2 observations).  Forecasts are
    limited to the interval from min - d to max + d, where min and max are those of the window's values and d = max -
    min.
    Weakness: it has no season longer than its order; far ahead it tends to the mean.
    Cost: least squares of window x order every `refit` observations, O(order) per step of a forecast.
    """

    def __init__(
        self,
        order: Annotated[int, Field(ge=1, le=1000)] = 4,
        window: Annotated[int, Field(ge=2, le=100_000)] = 288,
        refit: Annotated[int, Field(ge=1)] = 10,
    ):
        super().__init__()
        if window < (needed := 3 * order + 2):
            raise ValueError(f"window must be at least {needed} observations for order {order}; got {window}")
        self.order, self.refit = order, refit
        self._values: deque[float] = deque(maxlen=window)
        self._weights: list[float] = []  # the constant, then those of the last value, the one before, and so on

    @property
    def own(self) -> bool:
        return bool(self._weights)

    def _learn(self, time: float, value: float) -> None:
        self._values.append(value)
        enough = len(self._values) >= 3 * self.order + 2
        if enough and (not self._weights or self.seen % self.refit == 0):
            self._fit()

    def ceiling(self) -> float:
        """Upper bound of forecasts while nothing arrives: twice the window's maximum."""
        return 2.0 * max(self._values, default=0.0)

    def _pass_over(self, count: int, time: float) -> None:
        """Add `count` observations of 0; fit again if a fit would have been due meanwhile."""
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


Weight = Annotated[float, Field(ge=0, le=1)]

Cells = dict[tuple[int, int], tuple[int, float]]  # by slots of day and week: number and sum of observations

MAX_SLOTS = 1_000_000  # Maximum slots of a season: more indicate a wrong unit, and could not be learned


class HoltWinters(Predictor):
    """Holt-Winters: level, trend, and effects of the time of day and of the week.

    Additive exponential smoothing with one season or two: an observation y in slot k of the day and slot w of the week
    moves

        level   toward  y - day[k] - week[w]             by alpha
        trend   toward  the change of the level          by beta
        day[k]  toward  y - level - week[w]              by gamma
        week[w] toward  y - level - day[k]               by delta

    and the forecast is level + trend × horizon + day + week at the forecast time.  Time is divided into slots, in each
    of which the season adds a constant.  The weights alpha to delta are those of an observation that covers a whole
    slot (for delta: a whole `week_slot`); if it covers only a fraction f of the slot, its weight is 1 - (1 - alpha)^f,
    and so on.  So the measuring interval hardly matters, and with one observation per slot this is the textbook method.
    Reference: Winters, Forecasting Sales by Exponentially Weighted Moving Averages (1960); with two seasons Taylor,
    Short-Term Electricity Demand Forecasting Using Double Seasonal Exponential Smoothing (2003).  Fallback: until a
    whole season has been observed, the mean of about the last hour (`ewma`); the first season sets level and day.
    There is no second season until a whole week has been observed.  Then the mean of the week becomes the level, the
    mean over its days the day effects, and the remainder the week effects.
    Weakness: additive seasons do not grow with the level; an unusual day is forecast as a usual day; a slot that is
    shorter than the measuring interval may have no observation, and is then forecast without a season.
    Cost: O(1) per observation; memory of one number per slot, and during the first week of one per pair of slots.

    season: seconds after which the pattern repeats.  week: seconds of a second, longer season; None: no second season.
    slot, week_slot: length in seconds of the slots of the season, and of the second season.
    alpha, beta, gamma, delta: weights of one slot's observations in level, trend, day and week.  beta 0: no trend.
    """

    def __init__(
        self,
        season: Annotated[Seconds, Field(gt=0)] = 86400.0,
        week: Annotated[Seconds, Field(gt=0)] | None = None,
        slot: Annotated[Seconds, Field(gt=0)] = 900.0,
        week_slot: Annotated[Seconds, Field(gt=0)] = 7200.0,
        alpha: Weight = 0.26,
        beta: Weight = 0.0,
        gamma: Weight = 0.3,
        delta: Weight = 0.3,
    ):
        super().__init__()
        if season < 2 * slot:
            raise ValueError(f"season ({season:g} s) must be at least two slots ({slot:g} s each)")
        for length, part in ((season, slot), (week or 0.0, week_slot)):
            if length / part > MAX_SLOTS:
                text = f"a season must have at most {MAX_SLOTS:,} slots; got {length:g} s with slots of {part:g} s"
                raise ValueError(f"{text}; use a longer slot")
        if week is not None and week <= season:
            raise ValueError(f"the second season must be longer than the first ({season:g} s); got {week:g} s")
        self.season, self.week, self.slot, self.week_slot = season, week, slot, week_slot
        self.alpha, self.beta, self.gamma, self.delta = alpha, beta, gamma, delta
        self.level = 0.0
        self.trend = 0.0  # change of the level, per second
        self.day = [0.0] * _slots(season, slot)
        self.of_week = [0.0] * (0 if week is None else _slots(week, week_slot))
        self._first = 0.0
        self._young: Ewma | None = Ewma(3600.0)  # forecasts during the first season
        self._first_day: Cells | None = {}
        self._first_week: Cells | None = None if week is None else {}

    @property
    def own(self) -> bool:
        return self._young is None

    def _learn(self, time: float, value: float) -> None:
        if self.seen == 1:
            self._first = time
        passed = time - self._first
        if self._first_day is not None and passed >= self.season * (1 - 1e-9):
            self._begin(self._first_day)
            self._young, self._first_day = None, None
        if self._first_week is not None and self.week is not None and passed >= self.week * (1 - 1e-9):
            self._begin(self._first_week)
            self._first_week = None
        k, w = self._slots_at(time)
        if self._first_week is not None:
            _note(self._first_week, k, w, value)
        if self._young is None:
            self._smooth(k, w, value)
        else:
            self._young.observe(time, value)
            if self._first_day is not None:
                _note(self._first_day, k, 0, value)

    def ceiling(self) -> float:
        """Upper bound of all forecasts as long as only zeros are observed.

        It is inf during the first season, and with a trend or a weekly pattern.  A zero moves the level towards -day[k]
        (k: slot of the season), and -day[k] towards the level.  So the level and all -day[k] stay between their present
        minimum and maximum, and a forecast, level + day[k], is at most the difference of the two.
        """
        if self._young is not None or self.week is not None or self.beta:
            return math.inf
        ever = self.day if self.season % self.slot else self.day[:-1]  # the last slot may be for rounding only
        return max(self.level, -min(ever)) - min(self.level, -max(ever))

    def _slots_at(self, time: float) -> tuple[int, int]:
        k = int(time % self.season / self.slot)
        return k, 0 if self.week is None else int(time % self.week / self.week_slot)

    def _begin(self, cells: Cells) -> None:
        """End the first season or week: set the level and the effects of times of day.

        They follow from the mean of each slot (and weekday); each mean counts once, however many observations it has.
        """
        means = [(k, w, total / count) for (k, w), (count, total) in cells.items()]
        self.level = sum(mean for _, _, mean in means) / len(means)
        self.day = _means([(k, mean - self.level) for k, _, mean in means], len(self.day))
        if cells is self._first_week:
            rest = [(w, mean - self.level - self.day[k]) for k, w, mean in means]
            self.of_week = _means(rest, len(self.of_week))

    def _smooth(self, k: int, w: int, value: float) -> None:
        passed = self.gap / self.slot
        added = 0.0 if self.week is None else self.of_week[w]
        before = self.level
        expected = before + self.trend * self.gap
        self.level = expected + _part(self.alpha, passed) * (value - self.day[k] - added - expected)
        if self.beta:
            self.trend += _part(self.beta, passed) * ((self.level - before) / self.gap - self.trend)
        self.day[k] += _part(self.gamma, min(1.0, passed)) * (value - self.level - added - self.day[k])
        if self.week is not None and self._first_week is None:
            part = _part(self.delta, min(1.0, self.gap / self.week_slot))
            self.of_week[w] += part * (value - self.level - self.day[k] - self.of_week[w])

    def _expect(self, horizon: float) -> float:
        if self._young is not None:
            return self._young.forecast(horizon)
        k, w = self._slots_at(self.time + horizon)
        value = self.level + self.trend * horizon + self.day[k]
        return value if self.week is None else value + self.of_week[w]


def _slots(season: float, slot: float) -> int:
    return int(season / slot) + 1


def _part(weight: float, slots: float) -> float:
    return 1.0 - (1.0 - weight) ** slots


def _note(cells: Cells, k: int, w: int, value: float) -> None:
    count, total = cells.get((k, w), (0, 0.0))
    cells[k, w] = count + 1, total + value


def _means(values: list[tuple[int, float]], slots: int) -> list[float]:
    counts, sums = [0] * slots, [0.0] * slots
    for slot, value in values:
        counts[slot] += 1
        sums[slot] += value
    return [total / count if count else 0.0 for count, total in zip(counts, sums, strict=True)]


class Oracle(Predictor):
    """Oracle: the true rate, as a baseline of perfect load forecasts.

    The forecast is the mean load that follows from the scenario's arrival rates at that time; the arrivals themselves
    remain random.  It is the only policy that is given the truth (`knows_rates`).
    Reference: Raiffa, Schlaifer, Applied Statistical Decision Theory (1961), ch. 4 (the value of perfect information).
    Weakness: no real system has it.  Runs whose rates are uncertain are refused: traces, closed loops, bursts, and
    rates that change at random.  The demand per arrival is the mean of its class so far, including rejected arrivals.
    Cost: O(classes) per forecast.
    """

    knows_rates = True

    def _expect(self, horizon: float) -> float:
        if self.truth is None:
            raise UsageError("the oracle knows only the rates of a run: use it as the predictor of `predictive`")
        return self.truth(self.time + horizon)
