"""Naor's thresholds of queue length: individual, social, and for revenue."""

import math
from dataclasses import dataclass

from hetsim.errors import UsageError
from hetsim.theory.prediction import positive


@dataclass(frozen=True)
class Thresholds:
    """Maximum numbers of customers in an M/M/1 system at which an arrival joins.

    The arriving customer is counted.
    individual  threshold if each customer chooses for itself
    social      threshold that maximizes the welfare
    revenue     threshold under the fee that earns most
    welfare     reward minus cost of waiting, per second, under the social threshold
    welfare_individual  the same under the individual threshold
    toll        maximum fee at which customers join up to the social threshold (0 if both thresholds agree)
    """

    individual: int
    social: int
    revenue: int
    welfare: float
    welfare_individual: float
    toll: float


def naor(rate: float, service_mean: float, reward: float, cost: float) -> Thresholds:
    """Naor's M/M/1: a service has a `reward`, and each second in the system a `cost`.

    Arriving customers see the queue.  R is the reward, C the cost, p_n and L_n the loss and the mean number in M/M/1/n.
    Individual: n_s = ⌊R μ / C⌋.  Social: the n that maximizes λ R (1 - p_n) - C L_n, found by Naor's inequality.
    Revenue: a fee of R - C n / μ keeps the queue at n and earns λ (1 - p_n) (R - C n / μ).  Always revenue ≤ social ≤
    individual.  Exact, any load.
    Reference: Naor, The Regulation of Queue Size by Levying Tolls (1969).
    """
    positive(rate=rate, service_mean=service_mean, reward=reward, cost=cost)
    ratio = reward / (cost * service_mean)
    individual = math.floor(ratio * (1 + 1e-12))
    if individual < 1:
        raise UsageError(
            f"no customer ever joins: the waiting cost of a service in an empty system is {cost * service_mean:.4g}, "
            f"and its reward is {reward:.4g}"
        )
    load = rate * service_mean
    social, revenue = _social(load, ratio, individual), _revenue(load, ratio, individual)
    toll = 0.0 if social == individual else max(0.0, reward - cost * service_mean * social)
    return Thresholds(
        individual,
        social,
        revenue,
        welfare=cost * _welfare(load, ratio, social),
        welfare_individual=cost * _welfare(load, ratio, individual),
        toll=toll,
    )


def _social(load: float, ratio: float, most: int) -> int:
    """Return the threshold n that maximizes the welfare of all customers together.

    It is the last n up to `most` with (n (1 - ρ) - ρ (1 - ρ^n)) / (1 - ρ)² ≤ `ratio` = Rμ/C.  The welfare itself is too
    flat near its maximum to be searched.
    """
    power = inner = needed = 1.0
    for n in range(1, most):
        power *= load
        inner += power  # 1 + ρ + ... + ρ^n
        needed += inner
        if needed > ratio * (1 + 1e-12):
            return n
    return most


def _revenue(load: float, ratio: float, most: int) -> int:
    """Return the threshold (maximum number of customers) that earns the most revenue.

    It is the last n up to `most` with n + (1 - ρ^(n-1)) (1 - ρ^(n+1)) / (ρ^(n-1) (1 - ρ)²) ≤ `ratio` = Rμ/C, where ρ is
    the load, R the reward, 1/μ the mean service time and C the cost of waiting per second.
    """
    below = 0.0
    power, above = load, 1 + load
    # below: (1 + ... + ρ^(n-2)) / ρ^(n-1); above: 1 + ... + ρ^n
    for n in range(2, most + 1):
        power *= load
        above += power
        below = (below + 1) / load
        if n + below * above > ratio * (1 + 1e-12):
            return n - 1
    return most


def _welfare(load: float, ratio: float, n: int) -> float:
    # Of M/M/1/n: the share of arrivals that find it full, and the mean number in it.
    if load > 1:  # count the empty places instead: they are M/M/1/n at the inverse load
        full, places = _chances(1 / load, n)
        inside = n - places
    else:
        empty, inside = _chances(load, n)
        full = empty * load**n
    return load * ratio * (1 - full) - inside


def _chances(load: float, n: int) -> tuple[float, float]:
    """Return P(0) and the mean of the distribution on 0..n with weights load^k."""
    gap = 1 - load
    if gap * n < 1e-5:  # nearly uniform
        weights = 1 / (n + 1) * (1 + gap * n / 2)
        return weights, n / 2 - gap * n * (n + 2) / 12
    last = -math.expm1((n + 1) * math.log(load))  # 1 - load^(n+1)
    return gap / last, load / gap - (n + 1) * (1 - last) / last
