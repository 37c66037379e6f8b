"""Holt-Winters: a level, a trend, and what a time of day and a time of the week add to it.

Additive exponential smoothing with one season or two: an observation y at a time of day k and of the week w moves

    level   toward  y - day[k] - week[w]             by alpha
    trend   toward  the change of the level          by beta
    day[k]  toward  y - level - week[w]              by gamma
    week[w] toward  y - level - day[k]               by delta

and the forecast is level + trend × horizon + day + week at the time asked for.  Time is cut into slots, in each of
which the season adds the same.
Reference: Winters, Forecasting Sales by Exponentially Weighted Moving Averages (1960); with two seasons Taylor,
Short-Term Electricity Demand Forecasting Using Double Seasonal Exponential Smoothing (2003).
Fall-back: until a whole season has been observed the mean of the last hour or so (`ewma`); the first season sets the
level and the day, and what is left over in the first week begins the week.
Weakness: seasons that add do not grow with the level; a day unlike the others is forecast as one of them.
Cost: O(1) an observation; memory of one number a slot.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.prediction.contract import Predictor
from policies.prediction.ewma import Ewma
from sim.model.units import Seconds

Weight = Annotated[float, Field(ge=0, le=1)]

MOST_SLOTS = 1_000_000
"""Of a season: more are a mistake in a unit, and would be learnt from nothing."""


class HoltWinters(Predictor):
    """Additive smoothing with a daily and, if asked for, a weekly season.

    season: seconds after which the pattern repeats; week: those of a second, longer season; none: there is none.
    slot, week_slot: seconds in which the season, and the second one, add the same.
    alpha, beta, gamma, delta: weights of an observation in level, trend, day and week.  beta 0: no trend.
    """

    def __init__(
        self,
        season: Annotated[Seconds, Field(gt=0)] = 86400.0,
        week: Annotated[Seconds, Field(gt=0)] | None = None,
        slot: Annotated[Seconds, Field(gt=0)] = 900.0,
        week_slot: Annotated[Seconds, Field(gt=0)] = 7200.0,
        alpha: Weight = 0.02,
        beta: Weight = 0.0,
        gamma: Weight = 0.1,
        delta: Weight = 0.1,
    ):
        super().__init__()
        if season < 2 * slot:
            raise ValueError(f"a season of {season:g} s has no two slots of {slot:g} s")
        for length, part in ((season, slot), (week or 0.0, week_slot)):
            if length / part > MOST_SLOTS:
                raise ValueError(f"a season of {length:g} s has more than {MOST_SLOTS:,} slots of {part:g} s")
        if week is not None and week <= season:
            raise ValueError(f"the second season, {week:g} s, must be longer than the first, {season:g} s")
        self.season, self.week, self.slot, self.week_slot = season, week, slot, week_slot
        self.alpha, self.beta, self.gamma, self.delta = alpha, beta, gamma, delta
        self.level = 0.0
        self.trend = 0.0
        """Of the level, per second."""
        self.day = [0.0] * _slots(season, slot)
        self.of_week = [0.0] * (0 if week is None else _slots(week, week_slot))
        self._first = 0.0
        self._young: Ewma | None = Ewma(3600.0)
        """Forecasts during the first season."""
        self._sums = [(0, 0.0)] * len(self.day)
        self._left_over: list[tuple[int, float]] | None = [(0, 0.0)] * len(self.of_week) if week else None
        """Counts and sums by slot during the first week."""

    @property
    def own(self) -> bool:
        return self._young is None

    def _learn(self, time: float, value: float) -> None:
        if self.seen == 1:
            self._first = time
        passed = time - self._first
        if self._young is not None and passed >= self.season * (1 - 1e-9):
            self._begin()
        if self._left_over is not None and self.week is not None and passed >= self.week * (1 - 1e-9):
            self.of_week = _means(self._left_over)
            self._left_over = None
        if self._young is not None:
            self._young.observe(time, value)
            _note(self._sums, _slot(time, self.season, self.slot), value)
        else:
            self._smooth(time, value)

    def _begin(self) -> None:
        """The first season is over: its mean is the level, what its slots add to that the day."""
        means = [total / count for count, total in self._sums if count]
        self.level = sum(means) / len(means)
        self.day = [mean - self.level for mean in _means(self._sums, self.level)]
        self._young, self._sums = None, []

    def _smooth(self, time: float, value: float) -> None:
        k = _slot(time, self.season, self.slot)
        w = None if self.week is None else _slot(time, self.week, self.week_slot)
        added = 0.0 if w is None else self.of_week[w]
        before = self.level
        expected = before + self.trend * self.gap
        if w is not None and self._left_over is not None:
            _note(self._left_over, w, value - before - self.day[k])
        self.level = expected + self.alpha * (value - self.day[k] - added - expected)
        if self.beta:
            self.trend += self.beta * ((self.level - before) / self.gap - self.trend)
        self.day[k] += self.gamma * (value - self.level - added - self.day[k])
        if w is not None and self._left_over is None:
            self.of_week[w] += self.delta * (value - self.level - self.day[k] - self.of_week[w])

    def _expect(self, horizon: float) -> float:
        if self._young is not None:
            return self._young.forecast(horizon)
        time = self.time + horizon
        found = self.level + self.trend * horizon + self.day[_slot(time, self.season, self.slot)]
        return found if self.week is None else found + self.of_week[_slot(time, self.week, self.week_slot)]


def _slot(time: float, season: float, slot: float) -> int:
    return int(time % season / slot)


def _slots(season: float, slot: float) -> int:
    """Slots of a season, the last perhaps shorter; one more, as a remainder may be rounded up to the season."""
    return int(season / slot) + 1


def _note(sums: list[tuple[int, float]], position: int, value: float) -> None:
    count, total = sums[position]
    sums[position] = count + 1, total + value


def _means(sums: list[tuple[int, float]], empty: float = 0.0) -> list[float]:
    return [total / count if count else empty for count, total in sums]
