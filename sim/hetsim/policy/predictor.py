"""The contract of a predictor of a time series (see `hetsim_policies.prediction`)."""

import math
from collections.abc import Callable
from typing import ClassVar

from hetsim.errors import UsageError


class Predictor:
    """Base of predictors of a time series; subclasses define `_learn` and `_expect`."""

    flat: ClassVar[bool] = False  # True if its forecast is a recent measurement, whatever the horizon

    # True if it receives the `truth`, as a yardstick; all other policies see only the past
    knows_rates: ClassVar[bool] = False

    truth: Callable[[float], float] | None = None  # if `knows_rates`: the true mean of the series at any time

    def __init__(self) -> None:
        self.seen = 0  # number of observations
        self.time = -math.inf  # time of the last observation
        self.gap = 0.0  # seconds between the last two observations; 0 if there is only one
        self.last = 0.0  # last observed value; 0 before any

    @property
    def own(self) -> bool:
        """True if it forecasts by its own method, False while it uses a simpler fallback."""
        return self.seen > 0

    def observe(self, time: float, value: float) -> None:
        """Add an observation of the series."""
        if not (math.isfinite(time) and math.isfinite(value)):
            raise UsageError(f"a predictor must observe finite numbers; got {value} at t = {time}")
        if time < 0:
            raise UsageError(f"a predictor must observe at a time of at least 0; got {time:g} s")
        if not time > self.time:
            raise UsageError(f"a predictor must observe in the order of time; got t = {time:g} s after {self.time:g} s")
        if self.seen:
            self.gap = time - self.time
        self.time, self.last = time, float(value)
        self.seen += 1
        self._learn(time, float(value))

    def forecast(self, horizon: float) -> float:
        """Return the value expected `horizon` s after the last observation; 0 without any."""
        if not horizon >= 0 or horizon == math.inf:
            raise UsageError(f"horizon must be at least 0 s; got {horizon} s")
        return self._expect(horizon) if self.seen else 0.0

    def ceiling(self) -> float:
        """Return an upper bound of all forecasts while zeros are observed; inf: unknown."""
        return math.inf

    def skip(self, count: int, time: float) -> None:
        """Observe `count` evenly spaced zeros up to `time`; only if `ceiling()` is near 0."""
        self.gap = (time - self.time) / count
        self._pass_over(count, time)
        self.time, self.last = time, 0.0
        self.seen += count

    def _pass_over(self, count: int, time: float) -> None:
        """Hook: process `count` values of 0, before `skip` updates time, last and seen."""

    def _learn(self, time: float, value: float) -> None:
        """Subclass hook: learn an observation; self.time, gap, last and seen include it."""

    def _expect(self, horizon: float) -> float:
        raise NotImplementedError
