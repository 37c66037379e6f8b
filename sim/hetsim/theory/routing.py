"""Choice among servers: shorter queues, redundant copies, a slow reserve server."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.levels import Level, _bounded, _inside, _solved
from hetsim.theory.prediction import Prediction, positive, stable, steady, whole_number
from hetsim.theory.queues import MAX_STATES

MAX_BEST = 4_000  # thresholds are tried up to here for the best one
MAX_CHAIN = 3  # lines of which the chain is solved; of more it has too many states
CHOICES_FROM = 0.001  # load below which chances in the chain are too small to be told from 0
CHOICES_ERROR, CHOICES_LOAD = 0.02, 0.95  # of two choices of more lines, and the load up to which it was measured


def redundancy(rate: float, service_mean: float, servers: int, copies: int) -> Prediction:
    """Redundancy-d: copies at d random servers; the first to end completes the task.

    Poisson arrivals at all servers together; the `copies` are at different servers and are canceled when one ends.
    Copies of a task have independent exponential times; each server is first come, first served.  With n = `servers`,
    d = `copies`, λ = `rate` and μ = 1 / `service_mean`: E[T] = Σ_{i=d}^{n} 1 / (n μ r_i - λ), where r_i = C(n-1, d-1) /
    C(i-1, d-1).  Exact, means only.  A task has no single start, so that `wait_mean` and `queue_length_mean` are NaN.
    Copies with the same service time would be a different model, with longer responses.
    Raises: UsageError: no steady state, or more copies than servers.
    Reference: Gardner, Harchol-Balter, Scheller-Wolf, Velednitsky and Zbarsky, Redundancy-d: The Power of d Choices for
    Redundancy (2017).
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers, copies=copies)
    if not copies <= servers <= MAX_STATES:
        raise UsageError(f"copies ({copies}) must be at most servers ({servers}), and servers at most {MAX_STATES:,}")
    name = f"redundancy-{int(copies)} at {int(servers)} servers"
    stable(rate * service_mean, int(servers), name)
    capacity, share, response = servers / service_mean, 1.0, 0.0
    for busy in range(int(servers), int(copies) - 1, -1):
        response += share / (capacity - rate * share)
        share *= (busy - copies) / (busy - 1) if busy > 1 else 0.0  # C(busy - 2, d - 1) over C(busy - 1, d - 1)
    line = steady(name, rate, service_mean, int(servers), wait=response - service_mean)
    return replace(line, wait_mean=math.nan, queue_length_mean=math.nan)


def slow_server(rate: float, fast_mean: float, slow_mean: float, threshold: int) -> Prediction:
    """M/M/2 with a fast and a slow server; the slow server is used when many wait.

    fast_mean, slow_mean   mean service times
    threshold              number of waiting customers at which the slow server, if free, starts one

    First come, first served; the fast server is used whenever it is free; a customer remains on its server.  With a
    threshold of 1 it equals `unlike_servers`.  Exact, means only.
    Raises: UsageError: no steady state with both servers.
    Reference: Lin and Kumar, Optimal Control of a Queueing System with Two Heterogeneous Servers (1984).
    """
    positive(rate=rate, fast_mean=fast_mean, slow_mean=slow_mean)
    whole_number(1, threshold=threshold)
    size, fast, slow = int(threshold), 1 / fast_mean, 1 / slow_mean
    name = f"M/M/2, the slow server from {size} waiting on"
    stable(rate / (fast + slow) * 2, 2, name)
    if size > MAX_STATES:
        raise UsageError(f"the threshold must be at most {MAX_STATES:,}; got {size:,}")
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
    """Return the number of waiting customers at which a slow server should help.

    The mean response of `slow_server` decreases up to this threshold and increases from it on: the search brackets it
    between two powers of two, and bisects.  Means are compared to 13 digits; equal means count as equally good.
    Raises: UsageError: no steady state with both servers, a faster "slow" server, or a best threshold above 2,000.
    """
    if slow_mean < fast_mean:
        raise UsageError(f"slow_mean must be at least fast_mean ({fast_mean:g} s); got {slow_mean:g} s")

    def falls(threshold: int) -> bool:
        here, after = (slow_server(rate, fast_mean, slow_mean, threshold + more).response_mean for more in (0, 1))
        return after < here * (1 - 1e-13)

    low, high = 0, 1
    while falls(high):
        low, high = high, 2 * high
        if high > MAX_BEST:
            raise UsageError(f"the best threshold is above {MAX_BEST // 2:,}: the slow server is almost useless")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if falls(middle) else (low, middle)
    return high


def power_of_choices(rate: float, service_mean: float, servers: int, choices: int = 2) -> Prediction:
    """Power of d choices: a task joins the shortest of d queues drawn at random.

    rate      arrivals at all servers together
    choices   number of distinct queues that are compared: 1 or 2; with three servers also 3 (join the shortest)

    Poisson arrivals, exponential services, one server per queue, first come first served.  Exact for up to three
    servers, by solving the chain, and for one choice.  For more servers it is an approximation: the fixed point of
    infinitely many servers with its first correction in 1 / n, and with corrections in 1 / n² and 1 / n³ that make two
    and three servers exact.  It was within 1 % of chains and simulations of 4 to 50 servers at loads up to 0.95, and
    `error` is 2 %; at higher loads the error is unknown.  Means only.
    Raises: UsageError: no steady state, more choices than servers, or more than 2 choices with more than three servers;
    a load below 0.001, at which hardly any task waits.
    Reference: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001); Gast and Van Houdt, A Refined
    Mean Field Approximation (2017).
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers, choices=choices)
    servers, choices = int(servers), int(choices)
    name = f"the shortest of {choices} sampled queues, {servers} servers"
    largest = servers if servers <= MAX_CHAIN else 2
    if choices > largest:
        raise UsageError(f"choices must be at most {largest} for {servers} servers; got {choices}")
    load, error = rate * service_mean / servers, 0.0
    stable(load * servers, servers, name)
    if choices > 1 and load < CHOICES_FROM:
        raise UsageError(f"the load must be at least {CHOICES_FROM:g} for the chain to be solved; got {load:.3g}")
    if choices == 1:
        present = load / (1 - load)
    elif servers <= MAX_CHAIN:
        present = _in_a_line(load, servers, choices, 1e-12)
    else:
        two, three = (_in_a_line(load, few, 2, 1e-6) - _refined(load, few) for few in (2, 3))
        square, cube = np.linalg.solve([[1 / 4, 1 / 8], [1 / 9, 1 / 27]], [two, three])
        present = _refined(load, servers) + float(square + cube / servers) / servers**2
        error = CHOICES_ERROR if load <= CHOICES_LOAD else math.inf
    return steady(name, rate, service_mean, servers, wait=(present / load - 1) * service_mean, error=error)


def _in_a_line(load: float, servers: int, choices: int, cut: float) -> float:
    """Return the mean number in a queue, from the chain of all sorted queue lengths.

    A level is the length of the shortest queue; its states are the excess lengths of the others, truncated where their
    probability is below `cut`.  If only some queues are compared, the longest queue gets no task, so states in which it
    is much longer than the second longest are rarer and are truncated earlier.
    """
    def reach(state: tuple[int, ...]) -> float:
        return (3 * state[0] - state[1]) / 2 if choices < servers else state[0]

    longest, edge, step, shares = 8, 1.0, 4, (1.0, 1.0)
    while edge > cut:
        every = ((*more, 0) for more in combinations_with_replacement(range(longest, -1, -1), servers - 1))
        states = [state for state in every if reach(state) <= longest]
        _bounded(f"{servers} lines", len(states))
        numbers = {state: number for number, state in enumerate(states)}
        level = Level(*(np.zeros((len(states), len(states))) for _ in range(3)))
        for state, number in numbers.items():
            for place, length in enumerate(state):
                chance = math.comb(place, choices - 1) / math.comb(servers, choices)  # that it is the shortest drawn
                for change, flow in ((1, load * servers * chance), (-1, 1.0)):
                    first = state.index(length) + (state.count(length) - 1) * (change < 0)  # equal ones stay in order
                    lines = [*state[:first], length + change, *state[first + 1 :]]
                    reached = numbers.get(tuple(one - lines[-1] for one in lines))
                    if reached is not None:
                        level[1 - lines[-1]][number, reached] += flow
        shortest, by_state = _inside([level], level)  # at level 0 nothing goes down
        edge = float(sum(chance for state, chance in zip(states, by_state, strict=True) if reach(state) > longest - 1))
        if shares[1] < 1:  # from here on it falls as it did: how far the chain has to reach
            step = 1 + int(math.log(cut / edge) / (math.log(edge / shares[1]) / step))
        longest, shares = longest + step, (shares[1], edge)
    return shortest + float(by_state @ np.array([sum(state) for state in states])) / servers


def _refined(load: float, servers: int) -> float:
    """Return the mean number in a queue if tasks join the shorter of two drawn queues.

    It is the limit of many queues, with a correction in 1 / (number of queues).  x(k) is the share of queues with at
    least k tasks; its drift is load (x(k-1)² - x(k)²) - x(k) + x(k+1).  The correction is the sum of two effects.
    First, random deviations of x change the mean, because the drift is not linear; their covariance W solves A W + W A'
    + Q = 0, with A the Jacobian of the drift and Q the covariance of the jumps per unit of time.  Second, the two
    queues drawn differ.
    """
    from scipy.linalg import solve_continuous_lyapunov

    longest = math.ceil(math.log2(1 + 40 / -math.log(load)))
    shares = load ** (2.0 ** np.arange(longest + 1) - 1)
    lines = shares[1:]
    drift = np.diag(-2 * load * lines - 1) + np.diag(2 * load * lines[:-1], -1) + np.eye(longest, k=1)
    noise = load * (shares[:-1] ** 2 - lines**2) + lines - np.append(lines[1:], 0)
    spread = np.diag(solve_continuous_lyapunov(drift, -np.diag(noise)))
    bends = load * (spread - lines * (1 - lines))
    more = np.linalg.solve(drift, bends - np.append(0, bends[:-1]))
    return float(lines.sum() + more.sum() / servers)
