"""M/M/c after an empty start, and under a periodic arrival rate.

Reference: Jensen, Markoff Chains as an Aid in the Study of Markoff Processes (1953), for uniformization.
"""

import math
from collections.abc import Sequence

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, not_negative, positive, proportion, stable, steady, whole_number
from hetsim.theory.queues import mmc

Floats = np.ndarray
# maximum number of customers in a chain, and of events in a cycle: about a second
MAX_STATES, MAX_STEPS = 5_000, 100_000
EDGE = 1e-13  # customers above those that are followed have at most this probability


def _advance(chance: Floats, rate: float, seconds: float, *, mean: float, servers: int) -> tuple[Floats, Floats]:
    """Return M/M/c state probabilities after `seconds`, and mean seconds per state."""
    from scipy.stats import poisson

    speed, numbers = rate + servers / mean, np.arange(len(chance))
    up, down = np.where(numbers < numbers[-1], rate / speed, 0.0), np.minimum(numbers, servers) / mean / speed
    slices = max(1, math.ceil(speed * seconds / 200))
    steps = speed * seconds / slices
    counts = np.arange(int(steps + 10 * math.sqrt(steps) + 40))
    weights, beyond = poisson.pmf(counts, steps), poisson.sf(counts, steps) / speed
    spent = np.zeros(len(chance))
    for _ in range(slices):
        moving, chance = chance, np.zeros(len(chance))
        for weight, time in zip(weights, beyond, strict=True):
            chance += weight * moving
            spent += time * moving
            risen, fallen = moving * up, moving * down
            moving = moving - risen - fallen
            moving[1:] += risen[:-1]
            moving[:-1] += fallen[1:]
        chance /= chance.sum()  # rounding must not add up over slices
    return chance, spent


def settling_time(rate: float, service_mean: float, servers: int, share: float = 0.95) -> float:
    """Return the seconds until an M/M/c that starts empty is nearly in steady state.

    At this time its mean number of customers is `share` of that in steady state; a warm-up should be this long.  Exact.
    """
    from scipy.optimize import brentq

    proportion(share=share)
    steady_state = mmc(rate, service_mean, servers)
    size = servers + 2 + math.ceil(math.log(EDGE) / math.log(steady_state.load))
    _bounded(size)

    def lacking(seconds: float) -> float:
        chance, _ = _advance(np.eye(1, size)[0], rate, seconds, mean=service_mean, servers=servers)
        return share * steady_state.jobs_in_system_mean - float(chance @ np.arange(size))

    high = service_mean
    while lacking(high) > 0:
        high *= 2
    return float(brentq(lacking, 0.0, high, xtol=1e-12 * high, rtol=1e-12))


def mmc_periodic(pieces: Sequence[tuple[float, float]], service_mean: float, servers: int) -> Prediction:
    """M/M/c under a periodic arrival rate, long after the start.

    pieces   (seconds, rate) pairs in sequence, repeated forever
    Figures are averages over a cycle: over its customers, or over time.  Exact, means only, by uniformization.
    Raises: UsageError: no steady state over a cycle, or too many customers for the chain.
    """
    positive(service_mean=service_mean)
    whole_number(1, servers=servers)
    for seconds, each in pieces:
        positive(seconds=seconds)
        not_negative(rate=each)
    cycle = sum(seconds for seconds, _ in pieces) or 1.0
    rate = sum(seconds * each for seconds, each in pieces) / cycle
    positive(mean_rate=rate)
    name, events = f"M(t)/M/{int(servers)}", cycle * (rate + servers / service_mean)
    stable(rate * service_mean, servers, name)
    if events > MAX_STEPS:
        raise UsageError(f"{name}: a cycle must have at most {MAX_STEPS:,} arrivals and ends; got about {events:,.0f}")
    size, highest = 2 * int(servers) + 64, np.ones(1)
    while highest[-1] > EDGE:
        _bounded(size)
        chance, begun, highest = np.eye(1, size)[0], np.ones(size), np.zeros(size)
        while abs(chance - begun).max() > EDGE >= highest[-1]:
            spent, begun, delayed = np.zeros(size), chance, 0.0
            for seconds, each in pieces:
                chance, here = _advance(chance, each, seconds, mean=service_mean, servers=int(servers))
                spent, delayed = spent + here, delayed + each * float(here[int(servers) :].sum())
                highest = np.maximum(highest, chance)
        size *= 2
    waiting = float(spent @ np.maximum(np.arange(len(spent)) - servers, 0)) / cycle
    return steady(name, rate, service_mean, servers=int(servers), wait=waiting / rate, delayed=delayed / cycle / rate)


def _bounded(size: int) -> None:
    if size > MAX_STATES:
        raise UsageError(f"more than {MAX_STATES:,} customers are too many to compute; the load may be close to 1")
