"""Networks of queues: Jackson's, tandems (CPU → PCIe → GPU), loops, fork-join."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, Tail, _at, not_negative, percentile, positive, steady, whole_number
from hetsim.theory.queues import MAX_STATES, mmc


class Station(NamedTuple):
    """A queue of a network: mean exponential service time, and number of servers."""

    service_mean: float
    servers: int = 1
    name: str = ""


@dataclass(frozen=True)
class Network:
    """A network in steady state: its stations, each an M/M/c, and end-to-end figures.

    response_mean        seconds from the arrival to the departure from the network
    jobs_in_system_mean  customers in all stations together
    throughput           arrivals from outside per second, equal to the departures
    """

    stations: tuple[Prediction, ...]
    response_mean: float
    jobs_in_system_mean: float
    throughput: float
    response_above: Tail | None = field(default=None, repr=False, compare=False)

    def response_tail(self, seconds: float) -> float:
        """Return P(response > seconds) of a tandem of single servers; else UsageError."""
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

    Station i has `arrivals[i]` external arrivals per second; after service a share `routing[i][j]` moves to station j,
    and the remaining customers leave.
    In steady state the stations are independent M/M/c queues with the rates of the traffic equations λ = γ + λ P.
    Exact, means only.  Reference: Jackson, Networks of Waiting Lines (1957).
    """
    given = [Station(*one) for one in stations]
    outside = np.asarray(arrivals, dtype=np.float64)
    shares = np.asarray(routing, dtype=np.float64)
    count = len(given)
    if not count or outside.shape != (count,) or shares.shape != (count, count):
        raise UsageError(f"{count} stations need {count} rates of arrivals, and routing as a {count} x {count} matrix")
    for rate in outside:
        not_negative(arrival_rate=float(rate))
    if not outside.any():
        raise UsageError("at least one arrival rate must be above 0")
    if not np.isfinite(shares).all() or (shares < 0).any() or (shares.sum(axis=1) > 1 + 1e-12).any():
        raise UsageError("the routing from each station must be shares that sum to at most 1")
    if abs(np.linalg.eigvals(shares)).max() > 1 - 1e-12:
        raise UsageError("customers must be able to leave, but some stations send all customers to each other")
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
            f"{name} has no arrivals", 0, 0, wait_mean=0, response_mean=one.service_mean, queue_length_mean=0,
            jobs_in_system_mean=0, throughput=0, delayed=0
        )
    try:
        queue = mmc(rate, one.service_mean, one.servers)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return replace(queue, model=f"{name}: {queue.model}")


def tandem(rate: float, stations: Sequence[Station | tuple[Any, ...]]) -> Network:
    """A tandem: Poisson arrivals visit all stations in order, such as CPU, PCIe, GPU.

    The departures of an M/M/c are Poisson again, so that each station is an M/M/c with the same rate: exact.  With
    single servers throughout, times at the stations are independent, and their sum is exact too.
    Reference: Burke, The Output of a Queuing System (1956); Reich, Waiting Times when Queues are in Tandem (1957).
    """
    positive(rate=rate)
    given = [Station(*one) for one in stations]
    if not given:
        raise UsageError("a tandem must have at least one station")
    queues_of = tuple(_station(one, rate, number) for number, one in enumerate(given))
    response = sum(one.response_mean for one in queues_of)
    tail = _sum_above([1 / one.response_mean for one in queues_of]) if all(s.servers == 1 for s in given) else None
    return Network(queues_of, response, rate * response, throughput=rate, response_above=tail)


def _sum_above(rates: list[float]) -> Tail:
    """Return the function t -> P(sum of independent exponential times > t)."""
    phases = np.diag([-rate for rate in rates]) + np.diag(rates[:-1], 1)

    def above(t: float) -> float:
        from scipy.linalg import expm

        return float(expm(phases * t)[0].sum())

    return above


class ClosedLoops(NamedTuple):
    """Metrics of closed loops at one station by class; `utilization`: of one server."""

    throughput: tuple[float, ...]
    response_mean: tuple[float, ...]
    utilization: float
    jobs_in_system_mean: tuple[float, ...]


def closed_classes(
    clients: Sequence[int], think: Sequence[float], service_means: Sequence[float], servers: int = 1
) -> ClosedLoops:
    """Closed loops of several classes at one station, by the product-form solution.

    Exact, for any distribution of thinking: first come first served requires the same exponential service for all
    classes; processor sharing at one server permits any service.
    Reference: Baskett, Chandy, Muntz and Palacios, Open, Closed, and Mixed Networks of Queues (1975).
    """
    from scipy.special import gammaln

    whole_number(1, servers=servers)
    if not len(clients) == len(think) == len(service_means) >= 1:
        got = f"{len(clients)}, {len(think)}, {len(service_means)}"
        raise UsageError(f"clients, think and service_means must have the same length (at least 1); got {got}")
    for count, idle, each in zip(clients, think, service_means, strict=True):
        whole_number(1, clients=count)
        positive(think_mean=idle, service_mean=each)
    if servers > 1 and len({*service_means}) > 1:
        raise UsageError("classes at several servers must have the same service mean for a product form")
    if math.prod(count + 1 for count in clients) > MAX_STATES:
        raise UsageError(f"{clients} clients have more than {MAX_STATES:,} states, too many to compute")
    present = np.indices([int(count) + 1 for count in clients])
    total, logs = present.sum(axis=0), 0.0
    for number, count, idle, each in zip(present, clients, think, service_means, strict=True):
        logs = logs + number * math.log(each / idle) - gammaln(number + 1) - gammaln(count - number + 1)
    logs = logs + gammaln(total + 1)
    logs -= np.cumsum(np.log(np.minimum(np.maximum(np.arange(total.max() + 1), 1), servers)))[total]
    chance = np.exp(logs - logs.max())
    chance /= chance.sum()
    inside = tuple(float((chance * number).sum()) for number in present)
    rates = tuple((count - here) / idle for count, here, idle in zip(clients, inside, think, strict=True))
    busy = float((chance * np.minimum(total, servers)).sum()) / servers
    return ClosedLoops(rates, tuple(here / rate for here, rate in zip(inside, rates, strict=True)), busy, inside)


def fork_join(rate: float, service_mean: float, branches: int) -> Prediction:
    """Fork-join: each task has one part per server, and ends with its last part.

    Poisson arrivals, exponential parts, one queue per server.  Exact for two servers, E[T] = (12 - ρ) / 8 × that of
    M/M/1; for more servers it is an approximation by Nelson and Tantawi: within 5 % for up to 32 servers, as measured
    by them and here. `wait_mean` is the response minus the mean of the longest part.
    Reference: Flatto and Hahn, Two Parallel Queues Created by Arrivals with Two Demands (1984); Nelson and Tantawi,
    Approximate Analysis of Fork/Join Synchronization in Parallel Queues (1988).
    """
    whole_number(1, branches=branches)
    one = mmc(rate, service_mean, 1)
    longest = [sum(1 / k for k in range(1, n + 1)) for n in (2, int(branches))]
    two = (12 - one.load) / 8 * one.response_mean
    share = longest[1] / longest[0]
    response = one.response_mean if branches == 1 else (share + 4 / 11 * (1 - share) * one.load) * two
    line = steady(f"fork-join of {int(branches)} M/M/1", rate, longest[1] * service_mean, servers=1,
                  wait=response - longest[1] * service_mean)  # fmt: skip
    error = 0.0 if branches <= 2 else 0.05 if branches <= 32 else math.inf
    return replace(line, load=one.load, utilization=one.load, error=error)
