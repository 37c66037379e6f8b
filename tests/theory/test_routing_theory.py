"""Redundant copies, the shorter of two lines, a slow reserve: against chains written out, hand, and each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve
from test_levels import State, balanced, chain

from hetsim import theory
from hetsim.errors import UsageError


@pytest.mark.quick(3)
@pytest.mark.parametrize(("servers", "copies", "longest"), [(2, 1, 8), (2, 2, 12), (3, 1, 6), (3, 2, 6), (3, 3, 12)])
def test_redundancy_is_as_in_the_chain_of_the_line(servers: int, copies: int, longest: int) -> None:
    """A state is the kinds of tasks, by their servers, in order of arrival; at each server the first one is served.

    At so light a load the cut line matters nowhere, and 1e-9 is several powers of the rate.
    """
    kinds, rate, service = list(combinations(range(servers), copies)), 0.02, 0.8

    def leaves(line: State) -> Iterable[tuple[State, float]]:
        if len(line) < longest:
            for kind in range(len(kinds)):
                yield (*line, kind), rate / len(kinds)
        for server in range(servers):
            first = next((place for place, kind in enumerate(line) if server in kinds[kind]), None)
            if first is not None:
                yield (*line[:first], *line[first + 1 :]), 1 / service

    numbers, rates = chain((), leaves)
    chances = balanced(rates)
    inside = sum(len(line) * chances[n] for line, n in numbers.items())
    busy = sum(len({s for kind in line for s in kinds[kind]}) * chances[n] for line, n in numbers.items())
    found = theory.redundancy(rate, service, servers, copies)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9)
    assert found.response_mean == pytest.approx(inside / rate, rel=1e-9)
    assert found.utilization == pytest.approx(busy / servers, rel=1e-9)
    assert found.error == 0 and math.isnan(found.wait_mean) and "wait_mean" not in found.values()


@pytest.mark.parametrize(("servers", "copies", "rate", "longest"), [(3, 2, 1.0, 8), (3, 1, 0.8, 8)])
def test_redundancy_under_load_is_as_in_the_chain_of_the_line(
    servers: int, copies: int, rate: float, longest: int
) -> None:
    """The same chain at up to fifty times the load, where lines that differ by the names of servers are one state.

    What the cut leaves out is about its length times the chance of the longest line.
    """
    kinds, service = list(combinations(range(servers), copies)), 0.8
    renamed = [[kinds.index(tuple(sorted(to[s] for s in kind))) for kind in kinds]
               for to in permutations(range(servers))]  # fmt: skip

    def first(line: State) -> State:
        return min(tuple(names[kind] for kind in line) for names in renamed)

    numbers, moves = {(): 0}, []
    for line in (lines := [()]):
        ends = [next((place for place, kind in enumerate(line) if server in kinds[kind]), None)
                for server in range(servers)]  # fmt: skip
        ways = [((*line, kind), rate / len(kinds)) for kind in range(len(kinds)) if len(line) < longest]
        ways += [((*line[:place], *line[place + 1 :]), 1 / service) for place in ends if place is not None]
        for other, flow in ways:
            if (other := first(other)) not in numbers:
                numbers[other] = len(numbers)
                lines.append(other)
            moves += [(flow, numbers[other], numbers[line]), (-flow, numbers[line], numbers[line])]
    flows, rows, columns = zip(*moves, strict=True)
    balance = coo_matrix((flows, (rows, columns))).tocsc()
    chances = np.insert(spsolve(balance[1:, 1:], -balance[1:, [0]].toarray().ravel()), 0, 1.0)
    lengths = np.array([len(line) for line in lines])
    cut = float(chances[lengths == longest].sum() / chances.sum())
    found = theory.redundancy(rate, service, servers, copies)
    assert cut < 2e-4
    assert found.jobs_in_system_mean == pytest.approx(float(chances @ lengths / chances.sum()), rel=2 * longest * cut)


def test_redundancy_under_load_is_as_in_a_simulation() -> None:
    random, servers, copies, rate, events = np.random.default_rng(5), 5, 2, 3.5, 120_000
    line: list[frozenset[int]] = []
    area = now = 0.0
    gaps, tickets = random.exponential(1 / (rate + servers), events), random.random((events, servers))
    for gap, which, ticket in zip(gaps.tolist(), random.random(events).tolist(), tickets, strict=True):
        now, area = now + gap, area + gap * len(line)
        server = int(which * (rate + servers) - rate)
        if which * (rate + servers) < rate:
            line.append(frozenset(np.argsort(ticket)[:copies].tolist()))
        else:
            first = next((place for place, kind in enumerate(line) if server in kind), None)
            if first is not None:
                del line[first]
    assert area / now == pytest.approx(theory.redundancy(rate, 1, servers, copies).jobs_in_system_mean, rel=0.04)


@pytest.mark.parametrize("servers", [1, 4, 30])
def test_one_copy_and_all_copies_are_single_servers(servers: int) -> None:
    one = theory.redundancy(0.7 * servers, 1, servers, 1)
    assert one.response_mean == pytest.approx(theory.mm1(0.7, 1).response_mean, rel=1e-11)
    each = theory.redundancy(0.7 * servers, 1, servers, servers)
    assert each.response_mean == pytest.approx(theory.mm1(0.7 * servers, 1 / servers).response_mean, rel=1e-11)


def reserve(rate: float, fast: float, slow: float, threshold: int, most: int) -> tuple[float, float, float]:
    """Mean number inside, waiting, and share that cannot start at once: a state is fast, slow, waiting."""

    def settled(fast_busy: int, slow_busy: int, waiting: int) -> State:
        if not fast_busy and waiting:
            fast_busy, waiting = 1, waiting - 1
        if not slow_busy and waiting >= threshold:
            slow_busy, waiting = 1, waiting - 1
        return fast_busy, slow_busy, waiting

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        one, other, waiting = state
        if waiting < most:
            yield settled(one, other, waiting + 1), rate
        if one:
            yield settled(0, other, waiting), 1 / fast
        if other:
            yield settled(one, 0, waiting), 1 / slow

    numbers, rates = chain((0, 0, 0), leaves)
    chances = balanced(rates)
    held = sum(chances[n] for state, n in numbers.items() if state[2] or (state[0] and (state[1] or threshold > 1)))
    waiting = sum(state[2] * chances[n] for state, n in numbers.items())
    return sum(sum(state) * chances[n] for state, n in numbers.items()), waiting, held


@pytest.mark.quick(4)
@pytest.mark.parametrize("threshold", [1, 2, 5])
@pytest.mark.parametrize(("rate", "fast", "slow"), [(0.8, 1.0, 4.0), (1.6, 0.5, 2.0), (0.3, 2, 2), (1.05, 1, 3)])
def test_a_slow_server_is_as_in_the_chain_written_out(threshold: int, rate: float, fast: float, slow: float) -> None:
    inside, waiting, held = reserve(rate, fast, slow, threshold=threshold, most=150)
    found = theory.slow_server(rate, fast, slow, threshold)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9)
    assert found.queue_length_mean == pytest.approx(waiting, rel=1e-9)
    assert found.delayed == pytest.approx(held, rel=1e-9)
    assert (found.wait_mean * rate, found.response_mean * rate) == pytest.approx((waiting, inside), rel=1e-9)


@pytest.mark.parametrize("rate", [0.1, 0.7, 1.2])
def test_a_threshold_of_one_takes_any_free_server(rate: float) -> None:
    found, known = theory.slow_server(rate, 1, 3, 1), theory.unlike_servers(rate, [(1, 1), (3, 1)])
    for name in ("load", "utilization", "wait_mean", "response_mean", "queue_length_mean", "delayed"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-10), name
    far = theory.slow_server(0.5, 1, 3, 200)  # never reached: the fast server alone
    assert far.response_mean == pytest.approx(theory.mm1(0.5, 1).response_mean, rel=1e-10)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("rate", "fast", "slow"), [(0.8, 1, 4), (0.8, 1, 1), (0.3, 1, 20), (0.9, 1, 20), (1.1, 1, 8)])
def test_the_best_threshold_is_the_best_of_all(rate: float, fast: float, slow: float) -> None:
    means = [theory.slow_server(rate, fast, slow, threshold).response_mean for threshold in range(1, 60)]
    best = theory.best_threshold(rate, fast, slow)
    assert means[best - 1] == pytest.approx(min(means), rel=1e-12)
    assert best == 1 or means[best - 2] > means[best - 1]


def test_a_best_threshold_that_is_too_high_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert theory.best_threshold(0.9, 1, 1000) == 108
    monkeypatch.setattr("hetsim.theory.routing.MAX_BEST", 100)
    with pytest.raises(UsageError, match="the best threshold is above 50: the slow server is almost useless"):
        theory.best_threshold(0.9, 1, 1000)


def lines(load: float, servers: int, choices: int, most: int) -> float:
    """Mean number in a line: a state is the length of each, and each set of lines is as likely to be drawn."""
    drawn = list(combinations(range(servers), choices))

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        for among in drawn:
            place = min(among, key=lambda one: state[one])
            if state[place] < most:
                yield (*state[:place], state[place] + 1, *state[place + 1 :]), load * servers / len(drawn)
        for place, length in enumerate(state):
            if length:
                yield (*state[:place], length - 1, *state[place + 1 :]), 1.0

    numbers, rates = chain((0,) * servers, leaves)
    chances = balanced(rates)
    return float(sum(sum(state) * chances[n] for state, n in numbers.items()) / servers)


@pytest.mark.parametrize(("load", "servers", "choices", "most"), [
    (0.5, 2, 2, 20), (0.05, 3, 2, 6), (0.05, 3, 3, 6), (0.02, 4, 2, 4),
])  # fmt: skip
def test_the_shorter_line_is_as_in_the_chain_written_out(load: float, servers: int, choices: int, most: int) -> None:
    found = theory.power_of_choices(load * servers / 0.4, 0.4, servers, choices)
    exact = lines(load, servers, choices, most=most)
    assert found.jobs_in_system_mean / servers == pytest.approx(exact, rel=1e-9 if servers < 4 else found.error)
    assert (found.error > 0) == (servers == 4)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("load", "four", "ten", "fifty"), [
    (0.5, 0.66223038, 0.6426, 0.6357), (0.9, 3.37777, 2.6764, 2.4110), (0.95, 6.0581, 4.1415, 3.3659),
])  # fmt: skip
def test_more_lines_are_within_the_stated_error(load: float, four: float, ten: float, fifty: float) -> None:
    """Four by the chain of up to 560 states a level; ten and fifty by 600 simulations, standard errors to 0.5 %."""
    for servers, known in ((4, four), (10, ten), (50, fifty)):
        found = theory.power_of_choices(load * servers, 1, servers)
        assert found.jobs_in_system_mean / servers == pytest.approx(known, rel=found.error)
        assert found.error == 0.02


@pytest.mark.nightly
def test_near_a_load_of_one_the_lines_are_one_queue() -> None:
    """In heavy traffic all lines are as long as each other, and n (1 - load) of each goes to 1."""
    for choices in (2, 3):
        found = theory.power_of_choices(3 * 0.999, 1, 3, choices)
        assert found.jobs_in_system_mean * 0.001 == pytest.approx(1, rel=3e-3)


def test_lines_drawn_at_random_and_very_many_lines() -> None:
    """One choice is an M/M/1; of infinitely many lines a share of load^(2^k - 1) has at least k."""
    assert theory.power_of_choices(2.4, 1, 4, 1).response_mean == pytest.approx(2.5, rel=1e-12)
    fixed = sum(0.9 ** (2**k - 1) for k in range(1, 12))
    assert theory.power_of_choices(9e5, 1, 10**6).jobs_in_system_mean / 10**6 == pytest.approx(fixed, rel=1e-5)
    assert theory.power_of_choices(96, 1, 100).error == math.inf


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.redundancy(1, 1, 2, 3), "copies .3. must be at most servers .2."),
    (lambda: theory.redundancy(1, 1, 2, 0), "copies must be a whole number"),
    (lambda: theory.redundancy(2, 1, 2, 2), "redundancy-2 at 2 servers has no steady state"),
    (lambda: theory.redundancy(2, -1, 2, 2), "service mean must be a number above 0"),
    (lambda: theory.power_of_choices(1, 1, 2, 3), "choices must be at most 2 for 2 servers; got 3"),
    (lambda: theory.power_of_choices(8, 1, 10, 3), "choices must be at most 2 for 10 servers; got 3"),
    (lambda: theory.power_of_choices(8, 1, 8, 2), "the shortest of 2 sampled queues, 8 servers has no steady state"),
    (lambda: theory.slow_server(1.5, 1, 2, 1), "no steady state"),
    (lambda: theory.slow_server(0.5, 1, 2, 0), "threshold must be a whole number"),
    (lambda: theory.best_threshold(0.5, 2, 1), "slow_mean must be at least fast_mean"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()
