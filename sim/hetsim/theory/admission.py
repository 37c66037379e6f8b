"""Admission control: server reservation, workload limits, token buckets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.general import ConstantJumps
from hetsim.theory.prediction import Prediction, not_negative, positive, whole_number
from hetsim.theory.queues import birth_death

MAX_STATES = 30_000
MAX_TRIES = 8
FAR = 1e4  # so much likelier than the state of reference may another be before that one is taken instead
ROUNDING = 1e-9


class Stream(NamedTuple):
    """A class of customers with Poisson arrivals and exponential service."""

    rate: float
    service_mean: float
    reserved: int = 0  # number of servers that must remain free when a customer of this class starts


@dataclass(frozen=True)
class Losses:
    """A loss system of several classes: losses by class, and utilization."""

    loss: tuple[float, ...]
    utilization: float
    throughput: tuple[float, ...]
    busy: tuple[float, ...]  # probabilities of 0, 1, ..., c busy servers


def trunk_reservation(servers: int, classes: Sequence[Stream | tuple]) -> Losses:
    """Trunk reservation: an arrival is lost if it would leave too few servers free.

    An arrival is admitted if more servers are free than its class reserves (`Stream.reserved`).  If all classes have
    one mean service, the number of busy servers is a birth-death chain; otherwise the chain of the numbers of customers
    by class is solved directly (up to 30,000 states; there is no product form).  Exact for exponential service; without
    reservation it is Erlang's B, for any distribution of service.
    Reference: Miller, A Queueing Reward System with Several Customer Classes (1969), which proves such limits optimal;
    Roberts, Teletraffic Models for the Telecom 1 Integrated Services Network (1983).
    """
    whole_number(1, servers=servers)
    servers = int(servers)
    given = [Stream(*one) for one in classes]
    if not given:
        raise UsageError("trunk reservation must have at least one class: (rate, service_mean, reserved)")
    for one in given:
        positive(rate=one.rate, service_mean=one.service_mean)
        whole_number(0, reserved=one.reserved)
        if one.reserved >= servers:
            raise UsageError(f"reserved must be below the number of servers ({servers}); got {one.reserved}")
    given = [one._replace(reserved=int(one.reserved)) for one in given]
    if all(one.service_mean == given[0].service_mean for one in given):
        busy = np.arange(servers)
        births = np.sum([np.where(busy < servers - one.reserved, one.rate, 0.0) for one in given], axis=0)
        chance = birth_death(births, np.arange(1, servers + 1) / given[0].service_mean)
    else:
        chance = _busy_of_many(servers, given)
    loss = tuple(float(chance[servers - one.reserved :].sum()) for one in given)
    return Losses(
        loss,
        float(chance @ np.arange(servers + 1)) / servers,
        tuple(one.rate * (1 - lost) for one, lost in zip(given, loss, strict=True)),
        tuple(chance.tolist()),
    )


def kaufman_roberts(servers: int, classes: Sequence[tuple[float, float, int]]) -> Losses:
    """Gangs with loss: Poisson classes (rate, service_mean, width) on common servers.

    A gang that does not find `width` servers free is lost.  With a_k the load λ E[S] of class k and b_k its width, the
    probability q(n) of n busy servers satisfies n q(n) = Σ a_k b_k q(n - b_k).  Exact for any distribution of service.
    Reference: Kaufman, Blocking in a Shared Resource Environment (1981); Roberts (1981).
    """
    whole_number(1, servers=servers)
    for rate, service_mean, width in classes:
        positive(rate=rate, service_mean=service_mean)
        whole_number(1, width=width)
    if not classes or max(width for _, _, width in classes) > servers:
        raise UsageError(f"gangs with loss need classes (rate, service_mean, width), of width up to {servers} servers")
    chance = np.zeros(int(servers) + 1)
    chance[0] = 1.0
    for busy in range(1, len(chance)):
        ways = (rate * mean * b * chance[busy - int(b)] for rate, mean, b in classes if b <= busy)
        chance[busy] = sum(ways) / busy
        if chance[busy] > FAR:
            chance /= chance[busy]
    chance /= chance.sum()
    loss = tuple(float(chance[-int(width) :].sum()) for _, _, width in classes)
    served = tuple(one[0] * (1 - lost) for one, lost in zip(classes, loss, strict=True))
    return Losses(loss, float(chance @ np.arange(len(chance))) / servers, served, busy=tuple(chance.tolist()))


def _busy_of_many(servers: int, given: list[Stream]) -> np.ndarray:
    """Return probabilities of 0 to `servers` busy servers, for unequal service means."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import spsolve

    if math.comb(servers + len(given), len(given)) > MAX_STATES:
        raise UsageError(
            f"{len(given)} classes of different service means on {servers} servers have too many states for the exact "
            f"chain (more than {MAX_STATES:,}); use one mean, or fewer classes or servers"
        )
    states = [state for state in product(range(servers + 1), repeat=len(given)) if sum(state) <= servers]
    index = {state: number for number, state in enumerate(states)}
    moves: list[tuple[float, int, int]] = []

    def move(start: int, state: tuple[int, ...], rate: float) -> None:
        # the balance of the target gains what the balance of the start loses
        moves.extend(((rate, index[state], start), (-rate, start, start)))

    for number, state in enumerate(states):
        for k, one in enumerate(given):
            if sum(state) < servers - one.reserved:
                move(number, (*state[:k], state[k] + 1, *state[k + 1 :]), one.rate)
            if state[k]:
                move(number, (*state[:k], state[k] - 1, *state[k + 1 :]), state[k] / one.service_mean)
    size = len(states)
    rates, rows, columns = zip(*moves, strict=True)
    balance = coo_matrix((rates, (rows, columns)), shape=(size, size)).tocsr()
    # One state has weight 1, and its own balance follows from those of the others.  It has to be a likely one: weights
    # relative to a state of chance 1e-17, such as the empty one of 50 servers, have no digits left.
    offered = [one.rate * one.service_mean for one in given]
    part = min(1.0, servers / sum(offered))
    expected = zip(offered, given, strict=True)
    likely = index[tuple(min(int(load * part), servers - one.reserved) for load, one in expected)]
    for _ in range(MAX_TRIES):
        others = np.delete(np.arange(size), likely)
        rest = spsolve(balance[others][:, others].tocsc(), -balance[others][:, [likely]].toarray().ravel())
        weights = np.insert(np.atleast_1d(rest), likely, 1.0)
        likeliest = int(np.argmax(np.abs(weights)))
        if abs(weights[likeliest]) < FAR:
            break
        likely = likeliest
    chance = weights / weights.sum()
    if not (chance.min() > -ROUNDING and np.abs(balance @ chance).max() <= ROUNDING * sum(one.rate for one in given)):
        raise UsageError("the chain of these classes is too ill-conditioned to be solved; use one mean service for all")
    total = np.bincount([sum(state) for state in states], weights=np.maximum(chance, 0.0))
    return np.asarray(total / total.sum())


def workload_limit(rate: float, service_mean: float, limit: float) -> Prediction:
    """M/M/1 that admits an arrival if at most `limit` seconds of work wait.

    Valid for any load.  The workload is 0 with probability p_0, has density λ p_0 exp(-(μ - λ) x) up to the limit and
    falls as exp(-μ x) beyond it; an admitted customer waits for the workload that it finds.  Exact, distributions
    included.
    Reference: Gavish and Schweitzer, The Markovian Queue with Bounded Waiting Time (1977).
    """
    positive(rate=rate, service_mean=service_mean)
    not_negative(the_limit=limit)
    mu = 1 / service_mean
    slope = mu - rate

    def mass(x: float) -> float:
        return rate * x if slope == 0 else rate * -math.expm1(-slope * x) / slope

    if -slope * limit > 600:
        raise UsageError("at a load above 1 this workload limit is practically infinite; the limit must be in seconds")
    beyond = rate * math.exp(-slope * limit) / mu
    empty = 1 / (1 + mass(limit) + beyond)
    accepted = empty * (1 + mass(limit))
    z = slope * limit  # E[V; V ≤ limit], by parts; series where the slope is nearly nothing
    if abs(z) < 1e-3:
        first = rate * limit**2 * (0.5 - z / 3 + z**2 / 8 - z**3 / 30)
    else:
        first = rate * (-math.expm1(-z) - z * math.exp(-z)) / slope**2
    wait = empty * first / accepted
    throughput = rate * accepted

    def between(t: float) -> float:
        return math.exp(-slope * t) * mass(limit - t)

    def wait_above(t: float) -> float:
        return 0.0 if t >= limit else empty * between(t) / accepted

    def response_above(t: float) -> float:
        inner = min(t, limit)  # the own service is longer than t - W
        # ∫_0^inner λ exp(-slope y) exp(-μ (t - y)) dy = λ exp(-μt) ∫ exp(λ y) dy
        shared = math.exp(-mu * t) * math.expm1(rate * inner) if rate * inner < 600 else math.exp(rate * inner - mu * t)
        return (empty * (math.exp(-mu * t) + shared + between(inner))) / accepted

    return Prediction(
        model=f"M/M/1 with at most {limit:g} s of work ahead", load=rate * service_mean, utilization=1 - empty,
        wait_mean=wait, response_mean=wait + service_mean, queue_length_mean=throughput * wait,
        jobs_in_system_mean=throughput * (wait + service_mean), throughput=throughput, loss=empty * beyond,
        delayed=1 - empty / accepted, wait_above=wait_above, response_above=response_above,
    )  # fmt: skip


def token_bucket(rate: float, refill: float, depth: float) -> float:
    """Return the share of Poisson arrivals that a token bucket rejects.

    A rejected arrival finds less than one token in a bucket of `depth` that is filled at `refill` tokens per second.
    The number of missing tokens is the workload V (in service times) of an M/D/1 queue with service time 1 / refill,
    which rejects an arrival that would raise V above `depth`.  Let G(x) be P(V ≤ x) / P(V = 0) of the same M/D/1
    without rejections, x in tokens.  The loss is 1 - G / (1 + ρ G) at x = depth - 1, with ρ = rate / refill.  For a
    whole b = depth: the loss of M/D/1/b.  Exact, any load, depth ≥ 1.
    Reference: Berger, Performance Analysis of a Rate-Control Throttle where Tokens and Jobs Queue (1991); Takács, The
    Time Dependence of a Single-Server Queue with Poisson Input and General Service Times (1962), for G.
    """
    positive(rate=rate, refill=refill)
    not_negative(depth=depth)
    if depth < 1:
        raise UsageError(f"a bucket must have room for at least one token, or no arrival is admitted; got {depth!r}")
    load = rate / refill
    below = ConstantJumps(load).below(depth - 1)
    if below < 1e12 or load < 1:
        # 1 - G / (1 + ρG) = (1 - (1 - ρ) G) / (1 + ρG)
        return max(0.0, (1 - (1 - load) * below) / (1 + load * below))
    return 1 - 1 / (1 / below + load)
