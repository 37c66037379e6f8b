"""Markov queues: Poisson arrivals and exponential service, as birth-death chains.

μ = 1 / E[S], a = λ E[S], c servers, ρ = a / c.
"""

import math
from collections.abc import Sequence

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.erlang import erlang_c
from hetsim.theory.prediction import Prediction, either_ends, positive, stable, steady, whole_number

MAX_STATES = 20_000_000
Floats = np.ndarray


def _mean(chance: np.ndarray, values: np.ndarray) -> float:
    """Return Σ chance × value; unlike `chance @ values`, it starts no BLAS threads."""
    return float((chance * values).sum())


def mm1(rate: float, service_mean: float) -> Prediction:
    """M/M/1: E[T] = 1 / (μ - λ), and T is exponential.  Exact.  Erlang (1917)."""
    return mmc(rate, service_mean, 1)


def mmc(rate: float, service_mean: float, servers: int) -> Prediction:
    """M/M/c, first come first served: E[W] = C(c, a) / (cμ - λ).

    P(W > t) = C(c, a) exp(-(cμ - λ) t).
    Exact, distributions included.  The means are valid for every order that does not depend on sizes.
    Reference: Erlang (1917); Kleinrock, Queueing Systems I (1975), ch. 3.
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers)
    load = rate * service_mean
    name = f"M/M/{servers}"
    stable(load, servers, name)
    delayed = erlang_c(load, servers)
    drain = (servers - load) / service_mean  # cμ - λ

    def wait_above(t: float) -> float:
        return delayed * math.exp(-drain * t)

    def response_above(t: float) -> float:
        # the customer's own service, at once or after an exponential wait of rate cμ - λ
        return math.exp(-t / service_mean) + delayed * either_ends(1 / service_mean, drain, t)

    return steady(
        name, rate, service_mean, servers=servers, wait=delayed / drain, delayed=delayed, wait_above=wait_above,
        response_above=response_above
    )


def mmck(rate: float, service_mean: float, servers: int, room: int) -> Prediction:
    """M/M/c/K: at most `room` in the system; further arrivals are lost.  Any load.

    A birth-death chain up to K; waits are those of admitted customers.  Exact, distributions included.
    Reference: Kleinrock, Queueing Systems I (1975), ch. 3.
    """
    positive(rate=rate, service_mean=service_mean)
    whole_number(1, servers=servers, room=room)
    servers, room = int(servers), int(room)
    if room < servers:
        raise UsageError(f"room must be at least the number of servers ({servers}); got {room}")
    if room > MAX_STATES:
        raise UsageError(f"room must be at most {MAX_STATES:,}; got {room:,}")
    busy = np.minimum(np.arange(1, room + 1), servers)
    chance = birth_death(np.full(room, rate), busy / service_mean)
    numbers = np.arange(room + 1)
    served = _mean(chance, np.minimum(numbers, servers))
    inside = _mean(chance, numbers)
    waiting = _mean(chance[servers:], numbers[: room + 1 - servers])
    loss = float(chance[-1])
    throughput = served / service_mean
    at_arrival = chance[:-1] / (1 - loss) if loss < 0.5 else chance[:-1] / chance[:-1].sum()
    behind = at_arrival[servers:]  # of the admitted: with j ahead in the queue the wait is Erlang(j + 1, cμ)

    def wait_above(t: float) -> float:
        from scipy.special import gammaincc

        return _mean(behind, gammaincc(np.arange(1, len(behind) + 1), servers * t / service_mean))

    return Prediction(
        model=f"M/M/{servers}/{room}",
        load=rate * service_mean / servers,
        utilization=served / servers,
        wait_mean=waiting / throughput,
        response_mean=inside / throughput,
        queue_length_mean=waiting,
        jobs_in_system_mean=inside,
        throughput=throughput,
        loss=loss,
        delayed=float(behind.sum()),
        wait_above=wait_above,
    )


def mmc_abandonment(rate: float, service_mean: float, servers: int, patience_mean: float) -> Prediction:
    """M/M/c + M (Erlang A): waiting customers renege after exponential patience.

    The mean patience is 1 / θ.  Any load.  A birth-death chain with an additional death rate of θ per waiting
    customer.  `loss` is the share that reneges; `wait_mean` is that of the customers served.  A customer that arrives
    behind j waiting ones is served with probability cμ / (cμ + (j + 1) θ); whether it is served or not, it waits Σ_{i ≤
    j + 1} 1 / (cμ + iθ) on average.  Exact, means only.
    Reference: Palm, Research on Telephone Traffic Carried by Full Availability Groups (1957); Garnett, Mandelbaum and
    Reiman, Designing a Call Center with Impatient Customers (2002).
    """
    positive(rate=rate, service_mean=service_mean, patience_mean=patience_mean)
    whole_number(1, servers=servers)
    servers = int(servers)
    capacity, leaving = servers / service_mean, 1 / patience_mean
    queue = _longest_queue(rate, capacity, leaving)
    waiting = np.arange(queue + 1)
    deaths = np.concatenate([np.arange(1, servers) / service_mean, capacity + waiting * leaving])
    chance = birth_death(np.full(len(deaths), rate), deaths)
    delayed = chance[servers:]  # the last state stands for the rest, of no weight
    length = _mean(delayed, np.arange(len(delayed)))
    loss = leaving * length / rate
    steps = capacity + np.arange(1, len(delayed) + 1) * leaving
    served_of = delayed * capacity / steps
    wait = _mean(served_of, np.cumsum(1 / steps)) / (1 - loss)
    busy = _mean(chance, np.minimum(np.arange(len(chance)), servers))
    return Prediction(
        model=f"M/M/{servers}+M",
        load=rate * service_mean / servers,
        utilization=busy / servers,
        wait_mean=wait,
        response_mean=wait + service_mean,
        queue_length_mean=length,
        jobs_in_system_mean=length + busy,
        throughput=busy / service_mean,
        loss=loss,
        delayed=float(delayed.sum()),
    )


def _longest_queue(rate: float, service_rate: float, renege_rate: float) -> int:
    """Return a length beyond which queues are negligible (1e-18 of the likeliest one)."""
    center = max(0.0, (rate - service_rate) / renege_rate)
    if center > MAX_STATES:
        raise UsageError(
            f"about {center:.3g} customers wait before they renege, too many to compute; "
            "check that the patience is in seconds"
        )
    length = int(center) + 16
    while True:
        numbers = np.arange(int(center) + 1, length + 1)
        weight = float(np.log(rate / (service_rate + numbers * renege_rate)).sum())
        if weight < -42:
            return length
        length = int(center) + 2 * (length - int(center))
        if length > MAX_STATES:
            raise UsageError("almost no customer reneges at a load of 1 or more: the queue is too long to compute")


def closed_loop(clients: int, think_mean: float, service_mean: float, servers: int = 1) -> Prediction:
    """N clients that each think, send one task, and wait until it completes.

    The machine repair model M/M/c//N.  A birth-death chain with births (N - k) / Z (Z is the mean think time) and
    deaths min(k, c) μ.  Exact, whatever the distribution of thinking (Baskett, Chandy, Muntz and Palacios 1975).
    Reference: Palm, The Assignment of Workers in Servicing Automatic Machines (1958).
    """
    whole_number(1, clients=clients, servers=servers)
    positive(think_mean=think_mean, service_mean=service_mean)
    if clients > MAX_STATES:
        raise UsageError(f"clients must be at most {MAX_STATES:,}; got {int(clients):,}")
    clients = int(clients)
    numbers = np.arange(clients + 1)
    chance = birth_death((clients - numbers[:-1]) / think_mean, np.minimum(numbers[1:], servers) / service_mean)
    busy = _mean(chance, np.minimum(numbers, servers))
    inside = _mean(chance, numbers)
    throughput = busy / service_mean
    return Prediction(
        model=f"M/M/{servers}//{clients}",
        load=clients * service_mean / (think_mean + service_mean) / servers,
        utilization=busy / servers,
        wait_mean=inside / throughput - service_mean,
        response_mean=inside / throughput,
        queue_length_mean=inside - busy,
        jobs_in_system_mean=inside,
        throughput=throughput,
    )


def birth_death(births: Sequence[float] | Floats, deaths: Sequence[float] | Floats) -> Floats:
    """Return stationary probabilities of 0, 1, ..., n of a birth-death chain.

    `births[k]` is the rate from k to k + 1, `deaths[k]` the rate back.
    p_k = p_0 Π births / deaths (Feller, An Introduction to Probability Theory I, 1950).  Exact: products are taken
    outward from the most likely state, so that nothing overflows and no digits are lost for 100,000 states.
    """
    up, down = np.asarray(births, dtype=np.float64), np.asarray(deaths, dtype=np.float64)
    if up.shape != down.shape or up.ndim != 1:
        raise UsageError(f"births and deaths must have the same length; got {up.size} and {down.size}")
    if not (np.isfinite(up).all() and np.isfinite(down).all() and (up >= 0).all() and (down > 0).all()):
        raise UsageError("births must be rates of at least 0 and deaths above 0")
    reach = int(np.argmin(up > 0)) if (up == 0).any() else len(up)  # nothing beyond a birth rate of 0
    with np.errstate(over="ignore", under="ignore"):
        ratio = up[:reach] / down[:reach]
    if not (np.isfinite(ratio).all() and (ratio > 0).all()):
        raise UsageError("births and deaths differ too much for floating-point numbers")
    likely = int(np.argmax(np.concatenate([[0.0], np.cumsum(np.log(ratio))])))
    with np.errstate(under="ignore"):
        above = np.cumprod(ratio[likely:])
        below = np.cumprod(1 / ratio[:likely][::-1])[::-1]
    weights = np.concatenate([below, [1.0], above, np.zeros(len(up) - reach)])
    return weights / weights.sum()


def stationary(matrix: Sequence[Sequence[float]] | Floats) -> Floats:
    """Return stationary probabilities of an irreducible chain.

    `matrix` contains its transition probabilities, or its rates; the diagonal is ignored.
    Grassmann, Taksar and Heyman, Regenerative Analysis and Steady State Distributions for Markov Chains (1985): an
    elimination without subtractions, accurate to the last digits.
    """
    work = np.array(matrix, dtype=np.float64)
    if work.ndim != 2 or work.shape[0] != work.shape[1] or not len(work):
        raise UsageError("a chain must be a square matrix")
    np.fill_diagonal(work, 0.0)
    if not np.isfinite(work).all() or (work < 0).any():
        raise UsageError("rates and probabilities of a chain must be finite and at least 0")
    size = len(work)
    for last in range(size - 1, 0, -1):
        out = work[last, :last].sum()
        if out == 0:
            raise UsageError(f"state {last} of the chain never leads back: it has no unique stationary distribution")
        work[:last, last] /= out
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    chance = np.empty(size)
    chance[0] = 1.0
    for state in range(1, size):
        chance[state] = chance[:state] @ work[:state, state]
    return chance / chance.sum()
