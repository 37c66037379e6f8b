"""Servers to choose from: redundant copies, a slow server as a reserve."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.levels import Level, _solved
from hetsim.theory.prediction import Prediction, positive, stable, steady, whole_number
from hetsim.theory.queues import MAX_STATES

MAX_BEST = 4_000  # thresholds are tried up to here for the best one


def redundancy(rate: float, service_mean: float, servers: int, copies: int) -> Prediction:
    """Redundancy-d: copies at d random servers, the first to end counts.

    Poisson arrivals at all servers together; `copies` at different ones are canceled when one ends.  Copies of
    a task have independent exponential times; each server is first come, first served.
    E[T] = Σ_{i=d}^{n} 1 / (n μ C(n-1, d-1) / C(i-1, d-1) - λ).  Exact, means only.  A task has no one start, so that
    `wait_mean` and `queue_length_mean` are NaN.  A time that all copies share would be another model, and longer.
    Raises: UsageError: no steady state, or more copies than servers.
    Reference: Gardner, Harchol-Balter, Scheller-Wolf, Velednitsky and Zbarsky, Redundancy-d: The Power of d Choices for
    Redundancy (2017).
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers, copies=copies)
    if not copies <= servers <= MAX_STATES:
        raise UsageError(f"{copies} copies need as many servers, {MAX_STATES:,} at most; there are {servers}")
    name = f"redundancy-{int(copies)} at {int(servers)} servers"
    stable(rate * service_mean, int(servers), name)
    capacity, share, response = servers / service_mean, 1.0, 0.0
    for busy in range(int(servers), int(copies) - 1, -1):
        response += share / (capacity - rate * share)
        share *= (busy - copies) / (busy - 1) if busy > 1 else 0.0  # C(busy - 2, d - 1) over C(busy - 1, d - 1)
    line = steady(name, rate, service_mean, int(servers), wait=response - service_mean)
    return replace(line, wait_mean=math.nan, queue_length_mean=math.nan)


def slow_server(rate: float, fast_mean: float, slow_mean: float, threshold: int) -> Prediction:
    """M/M/2 of unlike servers, the slow one used when many wait.

    fast_mean, slow_mean   mean services
    threshold              the slow server takes a customer when it is free and this many wait

    First come, first served, to the fast server whenever it is free; a customer stays where it began.  With a threshold
    of 1 it is `unlike_servers`.  Exact, means only.
    Raises: UsageError: no steady state with both servers.
    Reference: Lin and Kumar, Optimal Control of a Queueing System with Two Heterogeneous Servers (1984).
    """
    positive(rate=rate, fast_mean=fast_mean, slow_mean=slow_mean)
    whole_number(1, threshold=threshold)
    size, fast, slow = int(threshold), 1 / fast_mean, 1 / slow_mean
    name = f"M/M/2, the slow server from {size} waiting on"
    stable(rate / (fast + slow) * 2, 2, name)
    if size > MAX_STATES:
        raise UsageError(f"a threshold of {size:,} is more than the {MAX_STATES:,} that are solved")
    states = [[*([0] if number <= size else []), *([1] if number else [])] for number in range(size + 3)]
    levels = []
    for number, here in enumerate(states[:-1]):  # of a level; a state is if the slow server is busy
        above, below = states[number + 1], states[max(number - 1, 0)]
        level = Level(*(np.zeros((len(here), len(there))) for there in (above, here, below)))
        for place, busy in enumerate(here):
            level.up[place, above.index(max(busy, int(number >= size)))] = rate
            if number > busy:
                level.down[place, below.index(busy)] += fast
            if busy:
                level.down[place, 0] += slow
        levels.append(level)
    alike = Level(np.full((1, 1), rate), np.zeros((1, 1)), np.full((1, 1), fast + slow))
    chances, powers = _solved(levels, alike)
    ratio = float(powers[0, 0])
    beyond = float(chances[-1][0]) / (1 - ratio)  # where both are busy with `size` - 1 waiting or more
    inside, serving, at_once = beyond * (size + 1 + ratio / (1 - ratio)), 2 * beyond, 0.0
    for number, (here, chance) in enumerate(zip(states, chances[:-1], strict=False)):
        for busy, share in zip(here, chance.tolist(), strict=True):
            inside += number * share
            serving += (busy + (number > busy)) * share
            at_once += share if number == busy or size == number == 1 else 0.0
    return Prediction(
        model=name, load=rate / (fast + slow), utilization=serving / 2, wait_mean=(inside - serving) / rate,
        response_mean=inside / rate, queue_length_mean=inside - serving, jobs_in_system_mean=inside, throughput=rate,
        delayed=1 - at_once,
    )  # fmt: skip


def best_threshold(rate: float, fast_mean: float, slow_mean: float) -> int:
    """The threshold of `slow_server` with the minimum mean response.

    The mean response falls up to it and rises from it on, so that it is between two powers of two and then bisected.
    Means are compared to 13 digits: beyond, a higher threshold is as good.
    Raises: UsageError: no steady state with both servers, a slow server that is the faster one, or a best threshold
    above 2,000.
    """
    if slow_mean < fast_mean:
        raise UsageError(f"the slow server has a mean service of {slow_mean:g} s, below the fast one's {fast_mean:g} s")

    def falls(threshold: int) -> bool:
        here, after = (slow_server(rate, fast_mean, slow_mean, threshold + more).response_mean for more in (0, 1))
        return after < here * (1 - 1e-13)

    low, high = 0, 1
    while falls(high):
        low, high = high, 2 * high
        if high > MAX_BEST:
            raise UsageError(f"the best threshold is above {MAX_BEST // 2:,}: the slow server is hardly of use")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if falls(middle) else (low, middle)
    return high
