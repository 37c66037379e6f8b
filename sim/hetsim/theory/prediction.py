"""Predictions of models, and the checks of their arguments."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hetsim.errors import UsageError

Tail = Callable[[float], float]  # probability of exceeding a number of seconds


@dataclass(frozen=True)
class Prediction:
    """A model in steady state; figures are named as the simulator's metrics.

    model                name in Kendall's notation
    load                 offered load of a server, λ E[S] / c
    utilization          share of time that a server is busy
    wait_mean            seconds from arrival to the start, of the customers served
    response_mean        seconds from arrival to the end, of the customers served
    queue_length_mean    number waiting, time average (customers that renege later included)
    jobs_in_system_mean  number waiting or in service, time average
    throughput           completed services per second
    loss                 share of arrivals that are not served: rejected, or reneged
    delayed              share of admitted customers that cannot start at once; NaN if unknown
    error                maximum measured relative error (of either sign) of an approximation's mean wait;
                         inf if unknown, 0 for an exact model

    `wait_tail`, `response_tail` and the percentiles are available if they are exact (`has_tails`).
    """

    model: str
    load: float
    utilization: float
    wait_mean: float
    response_mean: float
    queue_length_mean: float
    jobs_in_system_mean: float
    throughput: float
    loss: float = 0.0
    delayed: float = math.nan
    error: float = 0.0
    wait_above: Tail | None = field(default=None, repr=False, compare=False)
    response_above: Tail | None = field(default=None, repr=False, compare=False)

    @property
    def has_tails(self) -> bool:
        """True if distributions are known, not only means."""
        return self.wait_above is not None and self.response_above is not None

    def wait_tail(self, seconds: float) -> float:
        """Return P(wait > seconds)."""
        return _at(self._tail("wait", self.wait_above), seconds)

    def response_tail(self, seconds: float) -> float:
        """Return P(response > seconds)."""
        return _at(self._tail("response", self.response_above), seconds)

    def wait_percentile(self, share: float) -> float:
        """Return the seconds that a share of the waits does not exceed (0.95, 0.99)."""
        return percentile(self._tail("wait", self.wait_above), share, self.response_mean)

    def response_percentile(self, share: float) -> float:
        """Return the seconds that a share of the responses does not exceed."""
        return percentile(self._tail("response", self.response_above), share, self.response_mean)

    def values(self) -> dict[str, float]:
        """Return the known figures by metric name."""
        names = ("utilization", "wait_mean", "response_mean", "queue_length_mean", "jobs_in_system_mean",
                 "throughput", "loss", "delayed")  # fmt: skip
        return {name: value for name in names if not math.isnan(value := getattr(self, name))}

    def _tail(self, what: str, tail: Tail | None) -> Tail:
        if tail is None:
            raise UsageError(f"{self.model}: only the mean {what} is known, not its distribution")
        return tail


def _at(tail: Tail, seconds: float) -> float:
    if not _number(seconds) or math.isnan(seconds):
        raise UsageError(f"seconds must be a number; got {seconds!r}")
    return 1.0 if seconds < 0 else min(1.0, max(0.0, tail(seconds)))


def percentile(tail: Tail, share: float, scale: float) -> float:
    """Return the point at which a decreasing tail is 1 - share; scale: a first guess.

    The equation is solved for the logarithm of the tail, which is nearly a straight line, between two times that differ
    by at most a factor of 2: the relative accuracy of the percentile is that of the tail, however small both are.
    """
    from scipy.optimize import brentq

    if not 0 < share < 1:
        raise UsageError(f"share must be between 0 and 1 (for example 0.95); got {share:g}")
    wanted = 1 - share
    if tail(0.0) <= wanted:
        return 0.0
    high = scale if scale > 0 else 1.0
    while tail(high) > wanted:
        high *= 2
    low = high / 2
    while tail(low) <= wanted:
        if low < sys.float_info.min:
            return 0.0
        low, high = low / 2, low

    def above(t: float) -> float:
        return math.log(max(tail(t), sys.float_info.min) / wanted)

    return float(brentq(above, low, high, xtol=1e-15 * low, rtol=1e-15, maxiter=300))


def either_ends(own: float, other: float, t: float) -> float:
    """Return own ∫_0^t exp(-own (t - s)) exp(-other s) ds, stable for any rates."""
    apart = abs(own - other) * t
    return own * t * math.exp(-min(own, other) * t) * (1.0 if apart == 0 else -math.expm1(-apart) / apart)


def steady(model: str, rate: float, service: float, servers: int, wait: float, **more: Any) -> Prediction:
    """Return the prediction of a lossless model from its mean wait (Little's law)."""
    load, response = rate * service / servers, wait + service
    return Prediction(model, load, load, wait_mean=wait, response_mean=response, queue_length_mean=rate * wait,
                      jobs_in_system_mean=rate * response, throughput=rate, **more)  # fmt: skip


# What is given ---------------------------------------------------------------------------------------------------


def positive(**values: float) -> None:
    """Raise UsageError unless each value is a finite number above 0."""
    for name, value in values.items():
        if not (_number(value) and 0 < value < math.inf):
            raise UsageError(f"{name.replace('_', ' ')} must be a number above 0; got {value!r}")


def not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (_number(value) and 0 <= value < math.inf):
            raise UsageError(f"{name.replace('_', ' ')} must be a number of at least 0; got {value!r}")


def whole_number(least: int = 1, **values: int) -> None:
    for name, value in values.items():
        if not (_number(value) and math.isfinite(value) and value == int(value) and value >= least):
            raise UsageError(f"{name.replace('_', ' ')} must be a whole number of at least {least}; got {value!r}")


def proportion(**values: float) -> None:
    for name, value in values.items():
        if not (_number(value) and 0 < value < 1):
            raise UsageError(f"{name.replace('_', ' ')} must be a share between 0 and 1; got {value!r}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "__float__") and not isinstance(value, str))


def stable(load: float, servers: int, what: str) -> None:
    """Raise UsageError unless the load is below the number of servers."""
    if load >= servers:
        min_servers = math.floor(load) + 1
        remedy = (
            f"use at least {min_servers} servers, a lower rate or a limit on admission"
            if servers > 1 or load < 1e6
            else "use a lower rate or a limit on admission"
        )
        raise UsageError(
            f"{what} has no steady state: the load of a server is {load / servers:.4g}, not below 1, and the queue "
            f"grows without bound; {remedy}"
        )
