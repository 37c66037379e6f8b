"""Gangs that block the queue when they do not fit, and calls that retry."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.levels import Level, _bounded, _solved, _with
from hetsim.theory.prediction import Prediction, not_negative, positive, stable, steady, whole_number
from hetsim.theory.queues import stationary

MAX_RETRYING = 200_000  # calls between tries × servers up to which a chain is solved within some seconds


class Saturation(NamedTuple):
    """Completion rate of gangs in a queue that is never empty.

    throughput   completions per second of all classes together; `by_class`: of each class
    load         rate of arrivals / `throughput`; a queue in front of the servers is stable if it is below 1
    utilization  share of the servers that is busy; the free servers are too few for the next gang
    """

    throughput: float
    by_class: tuple[float, ...]
    load: float
    utilization: float


def multiserver_jobs(servers: int, classes: Sequence[tuple[float, float, int]]) -> Saturation:
    """Gangs first come, first served: the maximum rate at which the queue is stable.

    classes   (rate, service_mean, width); rates are those of arrivals, and only their ratios matter

    A gang starts when `width` servers are free and all before it have started.  A queue of Poisson arrivals is stable
    if and only if their rate is below the throughput of a queue that is never empty.  Exact for exponential services:
    the state is the number of running gangs of each class, and the class of the next gang, which does not fit.
    Raises: UsageError: a gang that never fits, or more than 1,000 states.
    Reference: Rumyantsev and Morozov, Stability Criterion of a Multiserver Model with Simultaneous Service (2017);
    Grosof, Harchol-Balter and Scheller-Wolf, Stability for Two-class Multiserver-job Systems (2020).
    """
    whole_number(1, servers=servers)
    for rate, service_mean, width in classes:
        positive(rate=rate, service_mean=service_mean)
        whole_number(1, width=width)
    if not classes or max(width for _, _, width in classes) > servers:
        raise UsageError(f"gangs need classes (rate, service_mean, width) with widths of at most {servers} servers")
    rates, means, widths = (np.array(one, dtype=float) for one in zip(*classes, strict=True))
    shares = rates / rates.sum()

    def started(running: tuple[int, ...], head: int) -> dict[tuple[tuple[int, ...], int], float]:
        """Start gangs until one does not fit; return the probability of each end state."""
        ends: dict[tuple[tuple[int, ...], int], float] = {}
        open_states = {(running, head): 1.0}
        while open_states:
            (busy, first), chance = open_states.popitem()
            if np.dot(busy, widths) + widths[first] > servers:
                ends[busy, first] = ends.get((busy, first), 0.0) + chance
                continue
            more = _with(busy, first, busy[first] + 1)
            for kind, share in enumerate(shares):
                open_states[more, kind] = open_states.get((more, kind), 0.0) + chance * share
        return ends

    widest = int(np.argmax(widths))  # if only such come, all other states lead here
    start = (_with((0,) * len(classes), widest, int(servers // widths[widest])), widest)
    numbers, moves = {start: 0}, []
    for state in (states := [start]):
        running, head = state
        for kind, busy in enumerate(running):
            for other, chance in started(_with(running, kind, busy - 1), head).items() if busy else ():
                if other not in numbers:
                    numbers[other] = len(numbers)
                    states.append(other)
                moves.append((numbers[state], numbers[other], busy / means[kind] * chance))
        _bounded(f"gangs of {len(classes)} classes on {servers} servers", len(states))
    flows = np.zeros((len(states), len(states)))
    for source, target, flow in moves:
        flows[source, target] += flow
    busy_means = stationary(flows) @ np.array([running for running, _ in states])
    by_class = busy_means / means
    throughput = float(by_class.sum())
    return Saturation(throughput, tuple(by_class.tolist()), float(rates.sum()) / throughput,
                      float(busy_means @ widths) / servers)  # fmt: skip


def retrials(
    rate: float, service_mean: float, servers: int, retry_mean: float, patience_mean: float = 0.0
) -> Prediction:
    """M/M/c with retrials: a call that finds no server free tries again later.

    retry_mean      mean seconds between two tries of a waiting call, exponential
    patience_mean   mean seconds that a try waits for a server, exponential; 0: there is no queue

    Each call retries until it is served.  `wait_mean` counts from the first try; `delayed` is the share of first tries
    that find no server free.  Without a queue, `queue_length_mean` is the number of calls between tries.  With a queue
    (M/M/c+M with retrials), calls between tries count neither as waiting nor as in the system, and `loss` is the share
    of tries that end unserved.  For one server without a queue E[W] = ρ (E[S] + retry_mean) / (1 - ρ).  Otherwise a
    chain is solved, whose levels are numbers of calls between tries (cut below 1e-15).  Exact, means only.
    Raises: UsageError: no steady state, or too many calls between tries.
    Reference: Falin and Templeton, Retrial Queues (1997).
    """
    positive(rate=rate, service_mean=service_mean, retry_mean=retry_mean)
    not_negative(patience_mean=patience_mean)
    whole_number(1, servers=servers)
    servers, load = int(servers), rate * service_mean
    name = f"M/M/{servers} with retrials"
    stable(load, servers, name)
    if servers == 1 and not patience_mean:
        return steady(name, rate, service_mean, 1, wait=load * (service_mean + retry_mean) / (1 - load), delayed=load)
    _bounded(name, servers + 1)
    _, chances = _between_tries(name, rate, service_mean, servers=servers, retry_mean=retry_mean,
                                patience_mean=patience_mean)  # fmt: skip
    between = math.fsum(number * float(one.sum()) for number, one in enumerate(chances))
    full = math.fsum(float(one[servers:].sum()) for one in chances)
    waiting = math.fsum(float(one[servers:] @ np.arange(len(one) - servers)) for one in chances)
    line = steady(name, rate, service_mean, servers, wait=(between + waiting) / rate, delayed=full)
    if not patience_mean:
        return line
    again = between / retry_mean
    return replace(line, model=f"M/M/{servers}+M with retrials", queue_length_mean=waiting, loss=again / (rate + again),
                   jobs_in_system_mean=waiting + load)  # fmt: skip


def retries_in_vain(
    rate: float, service_mean: float, servers: int, retry_mean: float, times: int, patience_mean: float = 0.0
) -> float:
    """Share of calls of `retrials` whose first try and `times` retries all fail.

    For one call in the steady state of the other calls, with exponential times between tries.  With a queue, the time
    that the call waits in a try is ignored; so the queue changes less between two tries than in reality.
    """
    from scipy.sparse import diags, eye, kron
    from scipy.sparse.linalg import splu

    levels, chances = _between_tries("retrials", rate, service_mean, servers=servers, retry_mean=retry_mean,
                                     patience_mean=patience_mean)  # fmt: skip
    (up, within, _), succeeds, line = levels[0], levels[1].down, len(levels)
    rates = kron(eye(line), within) + kron(eye(line, k=1), up) + kron(diags(np.arange(1.0, line), -1), succeeds)
    leaving = np.asarray(rates.sum(axis=1)).ravel()
    after = splu((diags(leaving + 1 / retry_mean) - rates).tocsc())
    ahead = np.maximum(np.arange(len(within)) - servers + 1.0, 0)  # with itself: places to pass before it leaves
    full = np.tile(ahead / (ahead + servers / service_mean * patience_mean) if patience_mean else ahead, line)
    fails = full
    for _ in range(times):
        fails = full * after.solve(fails / retry_mean)
    return float(np.concatenate(chances) @ fails)


def _between_tries(
    name: str, rate: float, service_mean: float, servers: int, retry_mean: float, patience_mean: float
) -> tuple[list[Level], list[np.ndarray]]:
    """Return Markov chain rates and probabilities by the number of retrying calls."""
    longest, edge, room = 64, 1.0, servers + (32 if patience_mean else 0)
    while edge > 1e-15:
        inside = np.arange(1, room + 1)
        within = np.diag(np.full(room, rate), 1) + np.diag(np.minimum(inside, servers) / service_mean, -1)
        up, succeeds = np.zeros_like(within), np.eye(room + 1, k=1) / retry_mean
        if patience_mean:
            up = np.diag(np.maximum(inside - servers, 0) / patience_mean, -1)
        else:
            up[-1, -1] = rate
        if longest * room * (room / 40 if patience_mean else 1) > MAX_RETRYING:
            raise UsageError(f"{name}: the calls between two tries are too many to compute; use a shorter retry_mean")
        levels = [Level(up, within, number * succeeds) for number in range(longest)]
        levels.append(Level(np.zeros_like(up), within, longest * succeeds))
        chances, _ = _solved(levels, levels[-1])
        full = math.fsum(float(one[-1]) for one in chances) if patience_mean else 0.0
        edge = max(float(chances[-1].sum()), full)
        longest, room = longest * (1 + (chances[-1].sum() > 1e-15)), room * (1 + (full > 1e-15))
    return levels, chances
