"""Gangs behind a head that does not fit, and retrials: against chains written out, closed forms, and simulations."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from test_levels import State, balanced, chain

from hetsim import theory
from hetsim.errors import UsageError


def with_all_servers(servers: int, share: float, one: float, wide: float) -> float:
    """Throughput of gangs of 1, a share of all, and of `servers`, by hand.

    Runs of gangs of 1 alternate with runs of wide ones.  A run of N takes as long as N services on all the servers,
    which then end one by one.
    """
    ends = one * (sum(share ** (k - 1) / k for k in range(1, servers + 1)) + share**servers / (1 - share) / servers)
    jobs = 1 / (1 - share) + 1 / share
    return jobs / (ends + wide / share)


@pytest.mark.parametrize("servers", [1, 2, 5, 40])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_gangs_of_all_servers_by_hand(servers: int, share: float) -> None:
    found = theory.multiserver_jobs(servers, [(share, 0.8, 1), (1 - share, 2.5, servers)])
    known = with_all_servers(servers, share, 0.8, 2.5) if servers > 1 else 1 / (share * 0.8 + (1 - share) * 2.5)
    assert found.throughput == pytest.approx(known, rel=1e-11)
    assert found.by_class == pytest.approx([share * known, (1 - share) * known], rel=1e-11)
    assert found.load == pytest.approx(1 / known, rel=1e-11)
    used = known * (share * 0.8 / servers + (1 - share) * 2.5)
    assert found.utilization == pytest.approx(used, rel=1e-11)


def test_one_width_wastes_what_it_cannot_fill() -> None:
    found = theory.multiserver_jobs(7, [(3.0, 0.5, 2)])
    assert found.throughput == pytest.approx(6) and found.utilization == pytest.approx(6 / 7)
    assert found.load == pytest.approx(0.5)


def saturated(servers: int, classes: Any) -> float:
    """Throughput of the chain over the first so many of an endless line, whose order is the state.

    The line is cut after as many as can run, since no gang further back can start.
    """
    total = sum(rate for rate, _, _ in classes)

    def running(line: State) -> int:
        free = servers
        for place, kind in enumerate(line):
            free -= classes[kind][2]
            if free < 0:
                return place
        return len(line)

    def leaves(line: State) -> Iterable[tuple[State, float]]:
        for place in range(running(line)):
            for kind, (rate, _, _) in enumerate(classes):
                yield (*line[:place], *line[place + 1 :], kind), rate / total / classes[line[place]][1]

    numbers, rates = chain((0,) * servers, leaves)
    chances = balanced(rates)
    return float(sum(chances[n] / classes[kind][1] for line, n in numbers.items() for kind in line[: running(line)]))


@pytest.mark.parametrize(("servers", "classes"), [
    (4, [(1.0, 1.0, 1), (1.0, 1.0, 3)]), (5, [(1.0, 0.4, 1), (3.0, 2.0, 3)]), (8, [(1.0, 0.4, 2), (0.2, 2.0, 5)]),
    (5, [(1.0, 0.4, 1), (3.0, 2.0, 2), (0.5, 1.0, 4)]), (6, [(1.0, 0.4, 2), (3.0, 2.0, 2), (0.5, 1.0, 3)]),
])  # fmt: skip
def test_gangs_are_as_in_the_chain_of_the_line(servers: int, classes: Any) -> None:
    found = theory.multiserver_jobs(servers, classes)
    assert found.throughput == pytest.approx(saturated(servers, classes), rel=1e-9)


def test_gangs_are_as_in_a_simulation_of_a_saturated_queue() -> None:
    random, servers, classes, count = np.random.default_rng(3), 16, [(0.7, 1.0, 2), (0.3, 3.0, 7)], 60_000
    kinds, services = random.choice(2, count, p=[0.7, 0.3]), random.exponential(1.0, count)
    free, now, ends = servers, 0.0, []
    for kind, service in zip(kinds.tolist(), services.tolist(), strict=True):
        _, mean, width = classes[kind]
        while free < width:
            now, freed = heapq.heappop(ends)
            free += freed
        free -= width
        heapq.heappush(ends, (now + service * mean, width))
    found = theory.multiserver_jobs(servers, classes)
    assert count / now == pytest.approx(found.throughput, rel=0.015)
    assert found.utilization < 0.95  # some servers stay free: the load alone says less


@pytest.mark.quick(4)
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("retry", [0.1, 1.5, 12.0])
def test_retrials_are_as_in_the_chain_written_out(servers: int, retry: float) -> None:
    """A state is how many calls are served and how many are between tries."""
    rate, service, most = 0.9 * servers, 0.5, 160

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        busy, between = state
        if busy < servers:
            yield (busy + 1, between), rate
            if between:
                yield (busy + 1, between - 1), between / retry
        elif between < most:
            yield (busy, between + 1), rate
        if busy:
            yield (busy - 1, between), busy / service

    numbers, rates = chain((0, 0), leaves)
    chances = balanced(rates)
    between = sum(state[1] * chances[n] for state, n in numbers.items())
    found = theory.retrials(rate, service, servers, retry)
    assert found.queue_length_mean == pytest.approx(between, rel=1e-9)
    assert found.wait_mean == pytest.approx(between / rate, rel=1e-9)
    full = sum(chances[n] for (busy, _), n in numbers.items() if busy == servers)
    assert found.delayed == pytest.approx(full, rel=1e-9)
    assert sum(state[0] * chances[n] for state, n in numbers.items()) / servers == pytest.approx(found.utilization)


@pytest.mark.parametrize(("servers", "patience", "retry"), [(1, 0.8, 0.6), (2, 3.0, 1.5), (3, 0.2, 2.5)])
def test_tries_that_wait_for_a_while_are_as_in_the_chain_written_out(
    servers: int, patience: float, retry: float
) -> None:
    """A state is how many tries wait or are served, and how many calls are between tries."""
    rate, service, inside, between = 0.5 * servers, 0.8, 30, 26

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        here, away = state
        if here < inside:
            yield (here + 1, away), rate
            if away:
                yield (here + 1, away - 1), away / retry
        if here:
            yield (here - 1, away), min(here, servers) / service
        if here > servers and away < between:
            yield (here - 1, away + 1), (here - servers) / patience

    numbers, rates = chain((0, 0), leaves)
    chances = balanced(rates)
    found = theory.retrials(rate, service, servers, retry, patience)
    away = sum(state[1] * chances[n] for state, n in numbers.items())
    waiting = sum(max(0, state[0] - servers) * chances[n] for state, n in numbers.items())
    assert found.queue_length_mean == pytest.approx(waiting, rel=1e-9)
    assert found.wait_mean == pytest.approx((away + waiting) / rate, rel=1e-9)
    assert found.loss == pytest.approx(away / retry / (rate + away / retry), rel=1e-9)
    assert found.delayed == pytest.approx(sum(chances[n] for (here, _), n in numbers.items() if here >= servers))
    leaving = waiting / patience / (rate + away / retry)  # the share of tries that end waiting, counted as they leave
    assert found.loss == pytest.approx(leaving, rel=1e-9)


@pytest.mark.parametrize(("patience", "retry"), [(1e5, 1.0), (1.0, 1e-5)])
def test_long_patience_or_short_times_between_tries_are_a_queue(patience: float, retry: float) -> None:
    """Either way hardly any call is away from the queue M/M/c."""
    found, queue = theory.retrials(0.8, 1, 2, retry, patience), theory.mmc(0.8, 1, 2)
    assert found.queue_length_mean == pytest.approx(queue.queue_length_mean, rel=1e-3)
    assert found.wait_mean == pytest.approx(queue.wait_mean, rel=1e-3)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("servers", "load"), [(1, 0.8), (2, 0.5), (5, 0.9), (20, 0.7)])
def test_retrials_at_once_are_a_queue_and_rare_ones_are_random(servers: int, load: float) -> None:
    """With retry times to 0 this is M/M/c; the longer they are, the nearer each try is to one by chance.

    Then calls come at a rate Λ of first and later tries, and B(c, Λ) of all tries fail.
    """
    queue = theory.mmc(load * servers, 1, servers)
    at_once = theory.retrials(load * servers, 1, servers, 1e-7)
    assert at_once.wait_mean == pytest.approx(queue.wait_mean, rel=1e-5)
    assert at_once.delayed == pytest.approx(queue.delayed, rel=1e-5)
    tries = load * servers
    for _ in range(2000):
        tries = load * servers / (1 - theory.erlang_b(tries, servers))
    rare = theory.retrials(load * servers, 1, servers, 300)
    assert rare.delayed == pytest.approx(theory.erlang_b(tries, servers), rel=0.02)
    assert rare.wait_mean / 300 == pytest.approx(tries / (load * servers) - 1, rel=0.03)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.retrials(2, 1, 2, 1), "M/M/2 with retrials has no steady state"),
    (lambda: theory.retrials(1, 1, 2, 0), "retry mean must be a number above 0"),
    (lambda: theory.retrials(1, 1, 2000, 1), "M/M/2000 with retrials must have at most 1,000 states per level; "
                                             "got 2,001"),
    (lambda: theory.multiserver_jobs(4, []), "gangs need classes"),
    (lambda: theory.multiserver_jobs(4, [(1, 1, 5)]), "with widths of at most 4 servers"),
    (lambda: theory.multiserver_jobs(4, [(0, 1, 2)]), "rate must be a number above 0"),
    (lambda: theory.multiserver_jobs(0, [(1, 1, 2)]), "servers must be a whole number"),
    (lambda: theory.multiserver_jobs(4, [(1, 1, 1.5)]), "width must be a whole number"),
    (lambda: theory.multiserver_jobs(200, [(1, 1, 1), (1, 1, 2), (1, 1, 3)]), "must have at most 1,000"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_too_many_calls_between_tries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetsim.theory.blocking.MAX_RETRYING", 1000)
    with pytest.raises(UsageError, match="the calls between two tries are too many to compute"):
        theory.retrials(1.9, 1, 2, 1e6)
