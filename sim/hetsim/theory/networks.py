"""Networks of queues: Jackson's, and tandems such as CPU → PCIe → GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, Tail, _at, not_negative, percentile, positive
from hetsim.theory.queues import mmc


class Station(NamedTuple):
    """A queue of a network: mean exponential service time, and servers."""

    service_mean: float
    servers: int = 1
    name: str = ""


@dataclass(frozen=True)
class Network:
    """A network in steady state: its stations, each an M/M/c, and end-to-end figures.

    response_mean        seconds from the outside to the outside
    jobs_in_system_mean  customers in all stations together
    throughput           arrivals from outside per second, and departures
    """

    stations: tuple[Prediction, ...]
    response_mean: float
    jobs_in_system_mean: float
    throughput: float
    response_above: Tail | None = field(default=None, repr=False, compare=False)

    def response_tail(self, seconds: float) -> float:
        """P(response > seconds), if exact: tandems of single servers."""
        return _at(self._tail(), seconds)

    def response_percentile(self, share: float) -> float:
        return percentile(self._tail(), share, self.response_mean)

    def _tail(self) -> Tail:
        if self.response_above is None:
            raise UsageError("the distribution of the response is exact only for a tandem of single servers")
        return self.response_above


def jackson(
    stations: Sequence[Station | tuple], arrivals: Sequence[float], routing: Sequence[Sequence[float]]
) -> Network:
    """An open Jackson network.

    `arrivals[i]` per second come from outside to station i, from which a share `routing[i][j]` goes on to j; the rest
    leaves.
    In steady state the stations are independent M/M/c queues with the rates of the traffic equations λ = γ + λ P.
    Exact, means only.  Reference: Jackson, Networks of Waiting Lines (1957).
    """
    given = [Station(*one) for one in stations]
    outside = np.asarray(arrivals, dtype=np.float64)
    shares = np.asarray(routing, dtype=np.float64)
    count = len(given)
    if not count or outside.shape != (count,) or shares.shape != (count, count):
        raise UsageError(f"{count} stations need {count} arrival rates and routing of {count} rows of {count} shares")
    for rate in outside:
        not_negative(arrival_rate=float(rate))
    if not outside.any():
        raise UsageError("no arrivals: at least one arrival rate must be above 0")
    if not np.isfinite(shares).all() or (shares < 0).any() or (shares.sum(axis=1) > 1 + 1e-12).any():
        raise UsageError("the routing from each station consists of shares that add up to at most 1")
    if abs(np.linalg.eigvals(shares)).max() > 1 - 1e-12:
        raise UsageError("customers can never leave: some stations route everything to one another")
    rates = np.linalg.solve((np.eye(count) - shares).T, outside)
    rated = enumerate(zip(given, rates.tolist(), strict=True))
    queues_of = tuple(_station(one, rate, number) for number, (one, rate) in rated)
    inside = sum(one.jobs_in_system_mean for one in queues_of)
    through = float(outside.sum())
    return Network(queues_of, inside / through, inside, through)


def _station(one: Station, rate: float, number: int) -> Prediction:
    positive(service_mean=one.service_mean)
    name = one.name or f"station {number}"
    if rate <= 0:
        return Prediction(
            f"{name}: no arrivals", 0, 0, wait_mean=0, response_mean=one.service_mean, queue_length_mean=0,
            jobs_in_system_mean=0, throughput=0, delayed=0
        )
    try:
        queue = mmc(rate, one.service_mean, one.servers)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return replace(queue, model=f"{name}: {queue.model}")


def tandem(rate: float, stations: Sequence[Station | tuple[Any, ...]]) -> Network:
    """A tandem: Poisson arrivals pass all stations in turn, as CPU, PCIe and GPU.

    What leaves an M/M/c is Poisson again, so that each station is an M/M/c with the same rate: exact.  With single
    servers throughout, the times at the stations are independent, and the distribution of their sum is exact too.
    Reference: Burke, The Output of a Queuing System (1956); Reich, Waiting Times when Queues are in Tandem (1957).
    """
    positive(rate=rate)
    given = [Station(*one) for one in stations]
    if not given:
        raise UsageError("a tandem needs at least one station")
    queues_of = tuple(_station(one, rate, number) for number, one in enumerate(given))
    response = sum(one.response_mean for one in queues_of)
    tail = _sum_above([1 / one.response_mean for one in queues_of]) if all(s.servers == 1 for s in given) else None
    return Network(queues_of, response, rate * response, throughput=rate, response_above=tail)


def _sum_above(rates: list[float]) -> Tail:
    """P(sum of independent exponentials > t): a chain has phases left at time t."""
    phases = np.diag([-rate for rate in rates]) + np.diag(rates[:-1], 1)

    def above(t: float) -> float:
        from scipy.linalg import expm

        return float(expm(phases * t)[0].sum())

    return above
