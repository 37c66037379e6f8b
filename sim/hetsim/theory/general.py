"""Queues with general service or arrivals: M/G/1, M/D/1, sharing, G/G/c.

scv is the squared coefficient of variation, variance / mean²: 0 constant, 1 exponential.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from hetsim.errors import UsageError
from hetsim.theory.erlang import erlang_c
from hetsim.theory.prediction import Prediction, not_negative, positive, stable, steady, whole_number


def mg1(rate: float, service_mean: float, service_scv: float) -> Prediction:
    """M/G/1: E[W] = λ E[S²] / (2 (1 - ρ)), by Pollaczek and Khinchine.

    Exact, means only, for every order that does not depend on sizes.
    Reference: Pollaczek, Über eine Aufgabe der Wahrscheinlichkeitstheorie (1930); Khinchine (1932).
    """
    positive(rate=rate, service_mean=service_mean)
    not_negative(service_scv=service_scv)
    load = rate * service_mean
    stable(load, 1, "M/G/1")
    wait = load * service_mean * (1 + service_scv) / (2 * (1 - load))
    return steady("M/G/1", rate, service_mean, servers=1, wait=wait, delayed=load)


def md1(rate: float, service_mean: float) -> Prediction:
    """M/D/1: constant service; E[W] is half of that of M/M/1.

    Exact, distributions included.  P(W ≤ t) is computed by Franx's formula, a sum of positive terms over the
    distribution of the queue's length: Erlang's own (1909) alternates in sign and loses all its digits from about t =
    25 E[S] on.  For large t, where 1 - P(W ≤ t) would lose digits as well, P(W > t) is its leading exponential.
    Reference: Erlang, The Theory of Probabilities and Telephone Conversations (1909); Franx, A Simple Solution for the
    M/D/c Waiting Time Distribution (2001); Cramér, On the Mathematical Theory of Risk (1930), for the exponential.
    """
    positive(rate=rate, service_mean=service_mean)
    load = rate * service_mean
    stable(load, 1, "M/D/1")
    workload = ConstantJumps(load)
    leading = _LeadingExponential.at_load(load)

    def wait_above(t: float) -> float:
        x = t / service_mean
        if leading is not None and x > leading.alone_from:
            return leading.factor * math.exp(-leading.decay * x)
        return max(0.0, 1 - (1 - load) * workload.below(x))

    def response_above(t: float) -> float:
        return 1.0 if t < service_mean else wait_above(t - service_mean)

    return steady("M/D/1", rate, service_mean, servers=1, wait=load * service_mean / (2 * (1 - load)), delayed=load,
                  wait_above=wait_above, response_above=response_above)  # fmt: skip


def mdc(rate: float, service_mean: float, servers: int) -> Prediction:
    """M/D/c, first come first served: constant service D on several servers.

    Exact, means only.  Each server serves every c-th customer, as a single server would whose gaps are sums of c gaps
    (Erlang-c).  Let A_k be the sum of kc gaps between arrivals.  Spitzer's identity gives E[W] = Σ_k E[(kD - A_k)^+] /
    k and P(W = 0) = exp(-Σ_k P(A_k < kD) / k).  Near a load of 1 (long sums), roots of z^c = exp(a (z - 1)) in the unit
    circle are used.
    Reference: Crommelin, Delay Probability Formulae when the Holding Times are Constant (1932); Spitzer, A
    Combinatorial Lemma and Its Application to Probability Theory (1956).
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers)
    servers, load = int(servers), rate * service_mean / servers
    stable(rate * service_mean, servers, f"M/D/{servers}")
    queue, at_once = (_by_spitzer if load <= 0.95 else _by_roots)(load, servers)
    return steady(f"M/D/{servers}", rate, service_mean, servers=servers, wait=max(0.0, queue) / rate,
                  delayed=1 - at_once)  # fmt: skip


def _by_spitzer(load: float, servers: int) -> tuple[float, float]:
    """Return queue length and share not delayed of M/D/c, by stable sums."""
    import numpy as np
    from scipy.special import gammainc, gammaln

    exponent = load - 1 - math.log1p(load - 1)
    number = servers * np.arange(1.0, 80 / (servers * exponent) + 3)
    with np.errstate(under="ignore"):
        below = gammainc(number, load * number)  # that so many gaps are below the time of their services
        # The density at that time: Stirling's formula, as the logarithms cancel for large numbers.
        inverse = 1 / number
        stirling = inverse / 12 - inverse**3 / 360 + inverse**5 / 1260
        exact = gammaln(number + 1) - number * np.log(number) + number - np.log(2 * math.pi * number) / 2
        density = np.exp(-number * exponent - np.where(number < 20, exact, stirling)) / np.sqrt(2 * math.pi * number)
    waits = math.fsum(density - (1 - load) * below)
    return servers * waits, math.exp(-servers * math.fsum(below / number))


def _by_roots(load: float, servers: int) -> tuple[float, float]:
    """Return queue length and share not delayed of M/D/c, by generating functions."""
    import numpy as np
    from scipy.special import lambertw

    turns = np.exp(2j * math.pi * np.arange(1, servers) / servers)
    apart = 1 + lambertw(-load * math.exp(-load) * turns) / load  # 1 - z
    offered = load * servers
    length = float((1 / apart).real.sum()) - (servers * (servers - 1) - offered**2) / (2 * (servers - offered))
    return length, (servers - offered) / math.exp(float(np.log(abs(apart)).sum()))


class _LeadingExponential(NamedTuple):
    """P(V > x) ≈ factor exp(-decay x) of the workload V of M/D/1.

    V is in service times.  For x above `alone_from`, this term alone is exact up to rounding.  The transform of P(V >
    x) has a pole at -z for every root z ≠ 0 of z = ρ (exp(z) - 1), which are z = -ρ - W_k(-ρ exp(-ρ)) with Lambert's
    function W.  `decay` is the real root; the next two roots (a complex pair) give `alone_from`.
    """

    factor: float
    decay: float
    alone_from: float

    @classmethod
    def at_load(cls, load: float) -> "_LeadingExponential | None":
        from scipy.optimize import brentq
        from scipy.special import lambertw

        if load < 0.01:
            return None
        # Not by Lambert's function: its two branches meet at a load of 1, and there it has half of the digits.
        low = (1 - load) / 2
        high = 1.0
        while load * math.expm1(high) < high:
            high *= 2
        decay = float(brentq(lambda z: load * math.expm1(z) - z, low, high, xtol=1e-30, rtol=1e-15))
        following = -load - float(lambertw(-load * math.exp(-load), 1).real)
        return cls((1 - load) / (decay + load - 1), decay, 40 / (following - decay))


class ConstantJumps:
    """The function G(x) = P(V ≤ x) / P(V = 0), V: the workload of the queue M/D/1.

    x is in units of the service time: G(x) = Σ_k (-ρ(x-k))^k / k! exp(ρ(x-k)).  For a load of 1 and more V has no
    steady state, but G is used if the workload is limited (admission by `token_bucket`).
    """

    ENDLESS = 1e280  # values above this count as infinite

    def __init__(self, load: float):
        from scipy.special import gammainc

        self.load = load
        self.free = math.exp(-load)
        above = -math.expm1(-load)
        term, self.more = self.free, []
        number = 1
        while above > 1e-17 or number <= load:  # P(arrivals in a service ≥ number)
            self.more.append(above)
            term *= load / number
            above = float(gammainc(number + 1, load))
            number += 1
        self.weights = [1.0]
        self.sums = [1.0]

    def _grow(self, size: int) -> None:
        weights, more = self.weights, self.more
        while len(weights) <= size:
            n = len(weights) - 1
            up = weights[0] * more[n] if n < len(more) else 0.0
            # from i in 1..n by arrivals ≥ n + 2 - i
            up += sum(weights[i] * more[n + 1 - i] for i in range(max(1, n + 2 - len(more)), n + 1))
            weights.append(min(up / self.free, self.ENDLESS) if self.free > 0 else self.ENDLESS)
            self.sums.append(min(self.sums[-1] + weights[-1], self.ENDLESS))

    def below(self, x: float) -> float:
        if x < 0:
            return 0.0
        if x < 1:
            return math.exp(min(self.load * x, 640.0))
        if self.load > 600:
            return self.ENDLESS  # at least exp(ρ) - ρ
        steps = math.floor(x) + 1
        self._grow(steps)
        passed = self.load * (steps - x)
        total, chance = 0.0, math.exp(-passed)
        for number in range(steps):
            term = self.sums[steps - number] * chance
            total += term
            chance *= passed / (number + 1)
            if term < 1e-18 * total and number > passed:
                break
        return total


def mg1_ps(rate: float, service_mean: float) -> Prediction:
    """M/G/1 processor sharing: E[T] = E[S] / (1 - ρ) for every distribution.

    A task of size x takes x / (1 - ρ).  Exact, means only; no customer waits.  Reference: Kleinrock, Time-Shared
    Systems: A Theoretical Treatment (1967); Sakata, Noguchi and Oizumi (1971) for general service.
    """
    positive(rate=rate, service_mean=service_mean)
    load = rate * service_mean
    stable(load, 1, "M/G/1-PS")
    response = service_mean / (1 - load)
    return Prediction("M/G/1-PS", load, load, wait_mean=0.0, response_mean=response, queue_length_mean=0.0,
                      jobs_in_system_mean=rate * response, throughput=rate, delayed=0.0)  # fmt: skip


def gim1(
    rate: float, service_mean: float, gap_complement: Callable[[float], float], name: str = "GI/M/1"
) -> Prediction:
    """GI/M/1: independent gaps, exponential service; distributions included.

    `gap_complement(s)` is 1 - A*(s) = E[1 - exp(-s gap)], the complement of the transform A* of the gaps: for constant
    gaps `-math.expm1(-s / rate)`, for exponential gaps `s / (rate + s)`.  A difference 1 - A*(s) of computed numbers
    loses digits near a load of 1.

    An arrival finds the server busy with probability σ = A*(μ (1 - σ)), and then P(W > t) = σ exp(-μ (1 - σ) t).
    Exact.  Reference: Kendall, Stochastic Processes Occurring in the Theory of Queues (1953).
    """
    from scipy.optimize import brentq

    positive(rate=rate, service_mean=service_mean)
    load = rate * service_mean
    stable(load, 1, name)
    high = 1 - 1e-15  # In 1 - σ: near a load of 1 it is small, and σ itself would have no digits for it.

    def gap(free: float) -> float:
        return free - gap_complement(free / service_mean)

    low = high
    while low > 1e-14 and gap(low) > 0:
        low /= 2
    if gap(low) > 0 or gap_complement(0.0) != 0:
        raise UsageError(f"{name}: gap_complement(s) must be E[1 - exp(-s gap)] for arrival gaps of mean 1 / rate")
    free = float(brentq(gap, low, high, xtol=1e-30, rtol=1e-15)) if gap(high) > 0 else high
    busy = 1 - free
    drain = free / service_mean
    return steady(
        name, rate, service_mean, servers=1, wait=busy / drain, delayed=busy,
        wait_above=lambda t: busy * math.exp(-drain * t), response_above=lambda t: math.exp(-drain * t),
    )  # fmt: skip


def allen_cunneen(
    rate: float, service_mean: float, servers: int, arrival_scv: float, service_scv: float,
    service_third: float = math.inf,
) -> Prediction:  # fmt: skip
    """G/G/c: E[W] ≈ (arrival scv + service scv) / 2 × E[W] of M/M/c.

    An approximation, but exact for M/M/c and for M/G/1.  `service_third` is the third central moment of a service
    divided by mean³ (2 if exponential, inf if unknown); only the error depends on it, not the formula.  `error` is that
    of `_error_of_mgc` for Poisson arrivals (an scv of 1), inf for other arrivals.
    Reference: Allen, Probability, Statistics, and Queueing Theory (1990), §5.3, after Cunneen; Kingman (1962) for the
    limit in heavy traffic.
    """
    positive(rate=rate, service_mean=service_mean)
    not_negative(arrival_scv=arrival_scv, service_scv=service_scv)
    whole_number(1, servers=servers)
    load = rate * service_mean
    name = f"G/G/{servers}"
    stable(load, servers, name)
    delayed = erlang_c(load, servers)
    wait = (arrival_scv + service_scv) / 2 * delayed * service_mean / (servers - load)
    poisson = arrival_scv == 1
    error = _error_of_mgc(load / servers, servers, service_scv, service_third) if poisson else math.inf
    return steady(name, rate, service_mean, servers=servers, wait=wait, error=error)


def _error_of_mgc(load: float, servers: int, scv: float, third: float) -> float:
    """Return the maximum relative error of `allen_cunneen` for M/G/c, high or low.

    load: per server; third: third central moment of the service time / mean³ (inf: unknown).  For constant service,
    Cosmetatos gives a correction that raises the formula; the formula is too low by at most 1.2 times this correction.
    It is too high by at most the scv and, if the third moment is known, by at most a bound fitted to services with two
    possible values, which Gupta and Osogami conjecture to be the extreme ones.  Measured for up to 32 servers
    (docs/theory.md).
    Reference: Cosmetatos, Some Approximate Equilibrium Results for the Multi-Server Queue (M/G/r) (1976); Gupta and
    Osogami, On Markov-Krein Characterization of the Mean Waiting Time in M/G/K (2011).
    """
    if servers == 1:
        return 0.0
    free = (1 - load) / load
    constant = (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * servers) * free
    more = min(constant, (servers - 1) / (servers + 1))
    spread = 4 * (third + 3 * scv + 1) / (3 * (1 + scv) ** 2) - 1
    long = 0.05 * (1 + scv) ** 0.75 * (max(spread - 1 / 3, 0.0) * (servers - 1)) ** 0.9 * free**1.1
    return max(1.2 * more / (1 + more), min(scv, long))
