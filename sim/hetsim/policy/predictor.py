"""The contract of a predictor of a series (see `hetsim_policies.prediction`)."""

import math
from collections.abc import Callable
from typing import ClassVar

from hetsim.errors import UsageError


class Predictor:
    """Base of predictors that keep the time; subclasses give `_learn` and `_expect`."""

    flat: ClassVar[bool] = False
    """True if its forecast is what was measured lately, whatever the horizon."""

    knows_rates: ClassVar[bool] = False
    """True if it is given the `truth`, as a yardstick: the declared exception to "policies see the past only"."""

    truth: Callable[[float], float] | None = None
    """If it `knows_rates`: the true mean of the series at any time."""

    def __init__(self) -> None:
        self.seen = 0
        """Observations so far."""
        self.time = -math.inf
        """Time of the last observation."""
        self.gap = 0.0
        """Seconds between the last two; 0 while there is only one."""
        self.last = 0.0
        """The value observed last; 0 before any."""

    @property
    def own(self) -> bool:
        """Return True if it forecasts by its own method, not by its fall-back."""
        return self.seen > 0

    def observe(self, time: float, value: float) -> None:
        """Add an observation of the series; the cost is the method's."""
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
        """The value expected `horizon` seconds after the last observation, or 0."""
        if not horizon >= 0 or horizon == math.inf:
            raise UsageError(f"horizon must be at least 0 s; got {horizon} s")
        return self._expect(horizon) if self.seen else 0.0

    def ceiling(self) -> float:
        """Upper bound of expectations while only zeros are observed; inf: unknown."""
        return math.inf

    def skip(self, count: int, time: float) -> None:
        """Observe `count` zeros at equal intervals, where `ceiling` is about 0.

        Cost: O(1) in the count.
        """
        self.gap = (time - self.time) / count
        self._pass_over(count, time)
        self.time, self.last = time, 0.0
        self.seen += count

    def _pass_over(self, count: int, time: float) -> None:
        """Apply `skip`; `time`, `last` and `seen` are those of before."""

    def _learn(self, time: float, value: float) -> None:
        """One more observation; `time`, `gap`, `last` and `seen` are up to date."""

    def _expect(self, horizon: float) -> float:
        """At least one value was observed."""
        raise NotImplementedError
