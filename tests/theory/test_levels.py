"""M/PH/c, MMPP/M/c, M/D/c and unlike servers: against chains written out state by state, limits, and the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.linalg import expm
from tiers import examples

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate
from hetsim.theory import general, levels

State = tuple[int, ...]
EXPONENTIAL = theory.phase_type([1], [[0]], [1])
ERLANG = theory.phase_type([1, 0], [[0, 2], [0, 0]], [0, 2])
MIXED = theory.phase_type([0.3, 0.7], [[0, 0], [0, 0]], [0.5, 1.75])
COXIAN = theory.phase_type([0.5, 0.2, 0.3], [[0, 2, 0.5], [0, 0, 1], [0.3, 0, 0]], [0.4, 1, 2])


def chain(start: State, leaves: Callable[[State], Iterable[tuple[State, float]]]) -> tuple[dict[State, int], Any]:
    """All states that are reached, and their rates."""
    numbers, rows = {start: 0}, []
    for state in (waiting := [start]):
        for other, rate in leaves(state):
            if other not in numbers:
                numbers[other] = len(numbers)
                waiting.append(other)
            rows.append((numbers[state], numbers[other], rate))
    rates = np.zeros((len(numbers), len(numbers)))
    for source, target, rate in rows:
        rates[source, target] += rate
    return numbers, rates


def balanced(rates: Any) -> Any:
    """π by one linear system: nothing in common with what is tested."""
    system = (rates - np.diag(rates.sum(axis=1))).T
    system[0] = 1
    return np.linalg.solve(system, np.eye(len(rates))[0])


def served_by_phases(rate: float, service: Any, servers: int, longest: int) -> tuple[float, float]:
    """Queue length and share delayed of M/PH/c; a state is the queue and the servers in each phase."""
    phases = range(len(service.start))

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        queue, *busy = state
        for j in phases:
            if sum(busy) < servers and service.start[j]:
                yield (0, *(n + (k == j) for k, n in enumerate(busy))), rate * service.start[j]
        if sum(busy) == servers and queue < longest:
            yield (queue + 1, *busy), rate
        for i in phases:
            gone = [n - (k == i) for k, n in enumerate(busy)]
            for j in phases:
                if busy[i] and service.onward[i, j]:
                    yield (queue, *(n + (k == j) for k, n in enumerate(gone))), busy[i] * service.onward[i, j]
                if busy[i] and queue and service.start[j]:
                    moved = (queue - 1, *(n + (k == j) for k, n in enumerate(gone)))
                    yield moved, busy[i] * service.ends[i] * service.start[j]
            if busy[i] and not queue and service.ends[i]:
                yield (0, *gone), busy[i] * service.ends[i]

    numbers, rates = chain((0, *(0 for _ in phases)), leaves)
    chance = balanced(rates)
    return (
        sum(state[0] * chance[n] for state, n in numbers.items()),
        sum(chance[n] for state, n in numbers.items() if sum(state[1:]) == servers),
    )


@pytest.mark.quick(5)
@pytest.mark.parametrize("service", [EXPONENTIAL, ERLANG, MIXED, COXIAN], ids=["M", "E2", "H2", "three"])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_phases_of_service_are_as_in_the_chain_written_out(service: Any, servers: int) -> None:
    rate = 0.5 * servers / service.mean
    found = theory.mphc(rate, service, servers)
    queue, delayed = served_by_phases(rate, service, servers, longest=70)
    assert (found.queue_length_mean, found.delayed) == pytest.approx((queue, delayed), rel=1e-9)


@pytest.mark.parametrize(("service", "scv"), [(EXPONENTIAL, 1.0), (ERLANG, 0.5)])
def test_one_server_is_pollaczek_and_khinchine(service: Any, scv: float) -> None:
    for load in (0.1, 0.9, 0.999):
        assert theory.mphc(load, service, 1).wait_mean == pytest.approx(theory.mg1(load, 1, scv).wait_mean, rel=1e-9)


def test_exponential_service_is_erlang_s_delay_system_with_its_tails() -> None:
    for servers, load in ((1, 0.5), (4, 0.9), (30, 0.97)):
        found, known = theory.mphc(servers * load, EXPONENTIAL, servers), theory.mmc(servers * load, 1, servers)
        assert found.values() == pytest.approx(known.values(), rel=1e-9)
        for share in (0.5, 0.95, 0.999):
            assert found.response_percentile(share) == pytest.approx(known.response_percentile(share), rel=1e-9)
            assert found.wait_percentile(share) == pytest.approx(known.wait_percentile(share), rel=1e-9)


def test_tails_are_those_of_ends_ahead_in_line() -> None:
    """A customer that finds n waiting starts with the (n + 1)-th end: states of the line ahead, by exponentials."""
    rate, servers, service, longest = 1.3, 2, ERLANG, 60
    states = [(queue, first) for queue in range(longest + 1) for first in range(servers + 1)]
    place, rates, all_rates = {state: n for n, state in enumerate(states)}, *np.zeros((2, len(states), len(states)))
    for queue, first in states:
        second, here = servers - first, place[queue, first]
        if first:
            rates[here, place[queue, first - 1]] += 2 * first
        if second and queue:
            rates[here, place[queue - 1, first + 1]] += 2 * second
        all_rates[here] = rates[here]
    leaves = rates.sum(axis=1) + np.array([2.0 * (servers - first) * (queue == 0) for queue, first in states])
    ahead = rates - np.diag(leaves)  # an end with no customer ahead in line: it starts

    def steps(state: State) -> Iterable[tuple[State, float]]:
        queue, first, second = state
        if first + second < servers:
            yield (0, first + 1, second), rate
        elif queue < longest:
            yield (queue + 1, first, second), rate
        if first:
            yield (queue, first - 1, second + 1), 2.0 * first
        if second:
            yield ((queue - 1, first + 1, second - 1) if queue else (0, first, second - 1)), 2.0 * second

    numbers, whole = chain((0, 0, 0), steps)
    chance = balanced(whole)
    finds = np.array([chance[numbers[queue, first, servers - first]] for queue, first in states])
    found = theory.mphc(rate, service, servers)
    for t in (0.0, 0.3, 1.0, 4.0):
        assert found.wait_tail(t) == pytest.approx(float((finds @ expm(ahead * t)).sum()), rel=1e-9)


@pytest.mark.parametrize("service", [ERLANG, MIXED, COXIAN], ids=["E2", "H2", "three"])
def test_means_are_the_integrals_of_the_tails(service: Any) -> None:
    found = theory.mphc(1.4 / service.mean, service, 2)
    for tail, mean in ((found.wait_tail, found.wait_mean), (found.response_tail, found.response_mean)):
        assert integrate.quad(tail, 0, 60 * service.mean, limit=200)[0] == pytest.approx(mean, rel=1e-6)


@given(st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.1, 10)), min_size=1, max_size=3), st.integers(1, 3),
       st.floats(0.05, 0.95))  # fmt: skip
@examples(40)
def test_more_variable_service_waits_longer_and_one_server_needs_two_moments(
    branches: list[tuple[float, float]], servers: int, load: float
) -> None:
    weights = np.array([weight for weight, _ in branches]) / sum(weight for weight, _ in branches)
    ends = np.array([rate for _, rate in branches])
    service = theory.phase_type(weights, np.zeros((len(ends), len(ends))), ends)
    found = theory.mphc(servers * load / service.mean, service, servers)
    assert found.wait_mean >= theory.mmc(servers * load / service.mean, service.mean, servers).wait_mean * (1 - 1e-9)
    if servers == 1:
        scv = float(2 * weights @ ends**-2.0) / service.mean**2 - 1
        assert found.wait_mean == pytest.approx(theory.mg1(load / service.mean, service.mean, scv).wait_mean, rel=1e-9)


@pytest.mark.quick(2)
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(("rates", "switching"), [
    ([0.1, 1.5], [[0, 0.4], [0.8, 0]]), ([0.0, 1.1, 0.4], [[0, 1, 0], [0, 0, 0.7], [0.2, 0.3, 0]]),
])  # fmt: skip
def test_modulated_arrivals_are_as_in_the_chain_written_out(
    rates: list[float], switching: list[list[float]], servers: int
) -> None:
    longest, scale = 160, servers

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        inside, phase = state
        if inside < longest and rates[phase]:
            yield (inside + 1, phase), scale * rates[phase]
        if inside:
            yield (inside - 1, phase), 1.0 * min(inside, servers)
        yield from (((inside, other), rate) for other, rate in enumerate(switching[phase]) if rate)

    numbers, matrix = chain((0, 0), leaves)
    chance = balanced(matrix)
    found = theory.mmpp_mc([scale * one for one in rates], switching, 1.0, servers)
    queue = sum(max(0, inside - servers) * chance[n] for (inside, _), n in numbers.items())
    came = {state: scale * rates[state[1]] * chance[n] for state, n in numbers.items() if state[0] < longest}
    total = sum(came.values())
    assert found.throughput == pytest.approx(total, rel=1e-9)
    assert found.queue_length_mean == pytest.approx(queue, rel=1e-9)
    for t in (0.0, 0.5, 3.0):
        ahead = sum(flow * stats.poisson.cdf(inside - servers, servers * t) for (inside, _), flow in came.items())
        assert found.wait_tail(t) == pytest.approx(ahead / total, rel=1e-9)
    assert integrate.quad(found.response_tail, 0, 200, limit=200)[0] == pytest.approx(found.response_mean, rel=1e-6)


def test_a_rate_that_is_the_same_in_all_states_is_poisson() -> None:
    found, known = theory.mmpp_mc([3.5, 3.5], [[0, 1], [2, 0]], 1, 4), theory.mmc(3.5, 1, 4)
    assert found.values() == pytest.approx(known.values(), rel=1e-9)
    assert found.response_percentile(0.99) == pytest.approx(known.response_percentile(0.99), rel=1e-9)
    assert levels.modulation([3.5, 3.5], [[0, 1], [2, 0]]) == pytest.approx((0, 1 / 3), abs=1e-12)


def test_the_dispersion_of_counts_is_that_of_two_states() -> None:
    """Fischer and Meier-Hellstern (1993), for two states: 1 + 2 (λ1 - λ2)² σ1 σ2 / ((σ1 + σ2)² (λ1 σ2 + λ2 σ1))."""
    first, second, up, down = 0.4, 8.0, 0.05, 0.2
    more = 2 * (first - second) ** 2 * up * down / ((up + down) ** 2 * (first * down + second * up))
    assert levels.modulation([first, second], [[0, up], [down, 0]]) == pytest.approx((more, 4.0))


def constant_service(rate: float, servers: int, longest: int) -> tuple[float, float]:
    """Queue length and share delayed of M/D/c: one service later there are those that could not start, and arrivals."""
    arrive = stats.poisson.pmf(np.arange(longest), rate)
    matrix = np.zeros((longest, longest))
    for inside in range(longest):
        left = max(inside - servers, 0)
        matrix[inside, left:] = arrive[: longest - left]
    chance = theory.stationary(matrix)
    return float(chance @ np.maximum(np.arange(longest) - servers, 0)), float(chance[servers:].sum())


@pytest.mark.quick(2)
@pytest.mark.parametrize(("servers", "load"), [(2, 0.5), (3, 0.1), (4, 0.7), (8, 0.9), (5, 0.955)])
def test_constant_service_is_as_in_crommelin_s_chain(servers: int, load: float) -> None:
    found = theory.mdc(servers * load, 1, servers)
    queue, delayed = constant_service(servers * load, servers, longest=500 if load > 0.8 else 150)
    assert (found.queue_length_mean, found.delayed) == pytest.approx((queue, delayed), rel=1e-9)


@pytest.mark.parametrize("servers", [1, 2, 7, 200])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
def test_both_forms_of_constant_service_are_the_same(servers: int, load: float) -> None:
    assert general._by_roots(load, servers) == pytest.approx(general._by_spitzer(load, servers), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("load", [0.2, 0.9, 0.96, 0.9999])
def test_constant_service_on_one_server_is_half_of_exponential(load: float) -> None:
    assert theory.mdc(load, 1, 1).wait_mean == pytest.approx(theory.mm1(load, 1).wait_mean / 2, rel=1e-9)


def test_many_stages_come_close_to_constant_service() -> None:
    stages = 60
    many = theory.phase_type(np.eye(stages)[0], np.diag(np.full(stages - 1, 60.0), 1), 60.0 * np.eye(stages)[-1])
    constant = theory.mdc(0.8, 1, 1).wait_mean
    assert theory.mphc(0.8, many, 1).wait_mean == pytest.approx(constant * (1 + 1 / stages), rel=1e-9)
    two = theory.mphc(1.6, theory.phase_type(np.eye(30)[0], np.diag(np.full(29, 30.0), 1), 30.0 * np.eye(30)[-1]), 2)
    assert 1.0 < two.wait_mean / theory.mdc(1.6, 1, 2).wait_mean < 1.05


@pytest.mark.parametrize("kinds", [[(0.5, 1), (2.0, 1)], [(2.0, 2), (0.5, 1)], [(0.5, 2), (1.0, 3), (4.0, 1)]])
def test_unlike_servers_are_as_in_the_chain_written_out(kinds: list[tuple[float, int]]) -> None:
    rate, longest = 0.6 * sum(count / mean for mean, count in kinds), 80

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        queue, *busy = state
        free = [k for k, (_, count) in enumerate(kinds) if busy[k] < count]
        if free:
            yield (0, *(n + (k == free[0]) for k, n in enumerate(busy))), rate
        elif queue < longest:
            yield (queue + 1, *busy), rate
        for k, (mean, _) in enumerate(kinds):
            if busy[k]:
                after = (queue - 1, *busy) if queue else (0, *(n - (j == k) for j, n in enumerate(busy)))
                yield after, busy[k] / mean

    numbers, matrix = chain((0, *(0 for _ in kinds)), leaves)
    chance = balanced(matrix)
    found = theory.unlike_servers(rate, kinds)
    expected = {
        "queue_length_mean": sum(state[0] * chance[n] for state, n in numbers.items()),
        "jobs_in_system_mean": sum(sum(state) * chance[n] for state, n in numbers.items()),
        "utilization": sum(sum(state[1:]) * chance[n] for state, n in numbers.items()) / sum(c for _, c in kinds),
        "delayed": sum(chance[n] for state, n in numbers.items() if sum(state[1:]) == sum(c for _, c in kinds)),
    }
    assert {name: found.values()[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert integrate.quad(found.wait_tail, 0, 200, limit=200)[0] == pytest.approx(found.wait_mean, rel=1e-6)


def test_alike_servers_of_several_kinds_are_erlang_s() -> None:
    found, known = theory.unlike_servers(4.2, [(1, 2), (1, 3)]), theory.mmc(4.2, 1, 5)
    assert found.values() == pytest.approx(known.values(), rel=1e-9)
    fast, slow = (theory.unlike_servers(1, kinds).response_mean for kinds in ([(0.5, 1), (2, 1)], [(2, 1), (0.5, 1)]))
    assert fast < slow  # the slow server first is worse


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.phase_type([1, 0], [[0, 1]], [0, 1]), "2 phases need a 2 x 2 matrix `onward` and 2 values "
                                                          "of `ends`"),
    (lambda: theory.phase_type([0.5, 0.4], [[0, 1], [0, 0]], [0, 1]), "phases: the probabilities of start must "
                                                                      "sum to 1; got 0.9"),
    (lambda: theory.phase_type([1, 0], [[0, 1], [1, 0]], [0, 0]), "phase 1 cannot reach the end"),
    (lambda: theory.phase_type([1, 0], [[0, -1], [0, 0]], [0, 1]), "rates must be at least 0"),
    (lambda: theory.mphc(2, EXPONENTIAL, 2), "M/PH/2 has no steady state"),
    (lambda: theory.mphc(50, COXIAN, 200), "M/PH/200 must have at most 1,000 states per level; got 20,301"),
    (lambda: theory.mmpp_mc([1, 2], [[0, 1]], 1, 3), "switching must be a 2 x 2 matrix, as rates has 2 values"),
    (lambda: theory.mmpp_mc([1, 2], [[0, 0], [1, 0]], 1, 3), ": state 2 is transient; leave it out"),
    (lambda: theory.mmpp_mc([1, -2], [[0, 1], [1, 0]], 1, 3), "rate 2 must be a number of at least 0; got"),
    (lambda: theory.mdc(4, 1, 4), "M/D/4 has no steady state"),
    (lambda: theory.unlike_servers(3, [(0.5, 1), (1, 1)]), "no steady state"),
    (lambda: theory.unlike_servers(3, [(0.5, 0.5)]), "servers must be a whole number"),
    (lambda: theory.unlike_servers(3, []), "at least one type"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


# Scenarios --------------------------------------------------------------------------------------------------------


def scenario(times: Any, arrivals: dict[str, Any], nodes: Any = None, **changes: Any) -> Any:
    return hs.load({
        "name": "levels", "seed": 7, "warmup": "10 min", "replications": 10,
        "cluster": nodes or {"nodes": [{"gpus": {"type": "g", "count": 3}}]},
        "workload": {"count": 20_000, "arrivals": arrivals, "gpu_time": times},
    } | changes)  # fmt: skip


def drawn(distribution: str, cv: float) -> dict[str, Any]:
    return {"distribution": distribution, "mean": "1 s", "cv": cv}


POISSON = {"process": "poisson", "rate": "2.4/s"}
MODULATED = {"process": "mmpp", "rates": ["0.4/s", "5/s"], "holding": ["3 s", "2 s"]}
UNLIKE = {"nodes": [{"gpus": {"type": "slow", "count": 2, "speed": 0.5, "memory": "16GB"}},
                    {"gpus": {"type": "fast", "speed": 2, "memory": "80GB"}}]}  # fmt: skip
MEMORYLESS = {"distribution": "exponential", "mean": "1 s"}
SCENARIOS = {
    "M/PH/3": scenario(drawn("hyperexponential", 2), POISSON),
    "M/PH/3 of stages": scenario(drawn("gamma", math.sqrt(0.5)), POISSON),
    "M/D/3": scenario("1 s", POISSON),
    "MMPP/M/3": scenario(MEMORYLESS, MODULATED),
    "M/M/3 of unlike servers": scenario(MEMORYLESS, {"process": "poisson", "rate": "2/s"}, UNLIKE),
}


@pytest.mark.parametrize("model", SCENARIOS)
def test_the_model_is_recognized(model: str) -> None:
    found = match(SCENARIOS[model])
    assert (found.model, found.verdict) == (model.removesuffix(" of stages"), "matches") and len(found.rows) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("model", SCENARIOS)
def test_the_engine_agrees(model: str) -> None:
    """Of five models, each with five figures or more, that go together: a miss far outside is a wrong formula."""
    rows = match(SCENARIOS[model]).rows
    for one in simulate(SCENARIOS[model], rows, confidence=0.9999):
        assert one.covered, one


def test_a_task_without_time_matches_nothing() -> None:
    for nodes in (None, UNLIKE):
        assert match(scenario("0 s", POISSON, nodes)).verdict == "none"


@pytest.mark.parametrize("modes", [
    [{"device": "g", "time": MEMORYLESS}, {"device": "g", "time": "0.5 s"}],  # it takes the faster one
    [{"device": "g", "gpus": 1, "time": MEMORYLESS}, {"device": "g", "gpus": 2, "time": "0.5 s"}],
])  # fmt: skip
def test_tasks_with_a_choice_on_one_type_match_nothing(modes: list[Any]) -> None:
    workload = {"count": 20_000, "arrivals": POISSON, "modes": modes}
    assert match(scenario(None, POISSON, workload=workload)).verdict == "none"


def test_the_time_on_a_named_type_is_as_it_stands() -> None:
    """Whatever its speed, and if its name is that of a kind, too."""
    nodes = {"nodes": [{"gpus": {"type": "gpu", "count": 3, "speed": 2}}]}
    workload = {"count": 20_000, "arrivals": POISSON, "modes": [{"device": "gpu", "time": MEMORYLESS}]}
    found = match(scenario(None, POISSON, nodes, workload=workload))
    assert found.rows[0].value == pytest.approx(theory.mmc(2.4, 1, 3).wait_mean)


def test_classes_of_exponential_service_are_a_mixture() -> None:
    times = [{"distribution": "exponential", "mean": mean} for mean in ("0.5 s", "2.5 s")]
    classes = [{"class": one["mean"], "weight": 3 - 2 * n, "gpu_time": one} for n, one in enumerate(times)]
    whole = {"workload": {"count": 20_000, "arrivals": POISSON, "classes": classes}}
    found = match(scenario(None, POISSON, **whole))
    service = theory.phase_type([0.75, 0.25], [[0, 0], [0, 0]], [2, 0.4])
    wait = next(row.value for row in found.rows if row.metric == "wait_mean")
    assert found.model == "M/PH/3" and wait == pytest.approx(theory.mphc(2.4, service, 3).wait_mean, rel=1e-12)


def test_other_services_keep_the_approximation() -> None:
    for times in (drawn("lognormal", 2), drawn("gamma", 0.9), drawn("gamma", 2)):
        assert match(scenario(times, POISSON)).model == "M/G/3 (Allen and Cunneen)"


def test_modulated_arrivals_at_general_service_are_only_approximated() -> None:
    found = match(scenario(drawn("lognormal", 2), MODULATED))
    assert (found.model, found.verdict) == ("MMPP/M/3", "approximation")


def test_a_rate_that_moves_slowly_takes_a_longer_warm_up() -> None:
    slow = MODULATED | {"holding": ["60 min", "40 min"]}
    start = [one for one in match(scenario(MEMORYLESS, slow)).assumptions if one.text.startswith("the warm-up is")]
    assert not start[0].holds


@pytest.mark.parametrize(("changes", "failed"), [
    ({"policy": {"scheduler": {"name": "fcfs", "placement": "best_fit"}}}, "the fastest free server is taken"),
    ({"policy": "random"}, "first come, first served"),
    ({"workload": {"count": 20_000, "arrivals": POISSON, "gpu_time": MEMORYLESS, "gpu_time.slow": MEMORYLESS}},
     "times are random, and differ only by the speeds of types"),
    ({"workload": {"count": 20_000, "arrivals": POISSON, "gpu_time": MEMORYLESS, "gpus": 0.5}},
     "a server is a fixed number of whole devices"),
    ({"cluster": {"nodes": [{"cpus": 1, "gpus": [{"type": "slow", "speed": 0.5}, {"type": "fast", "speed": 2}]}]},
      "workload": {"count": 20_000, "arrivals": POISSON, "gpu_time": MEMORYLESS, "cpus": 1}},
     "servers never wait for cores or memory of their node"),
    ({"workload": {"count": 20_000, "arrivals": MODULATED, "gpu_time": MEMORYLESS}}, "arrivals are Poisson"),
    ({"workload": {"count": 20_000, "arrivals": POISSON, "gpu_time": MEMORYLESS, "classes": [
        {"class": "a", "weight": 1, "gpu_memory": "12GB"}, {"class": "b", "weight": 5, "gpu_memory": "10GB"}]}},
     "a server is a fixed number of whole devices"),
    ({"cluster": {"nodes": [{"gpus": {"type": name, "count": 64, "speed": 1 + n}} for n, name in enumerate("abc")]}},
     "the exact Markov chain is small enough to solve"),
])  # fmt: skip
def test_unlike_servers_are_not_recognized_in_what_else_is_set(changes: dict[str, Any], failed: str) -> None:
    found = match(scenario(MEMORYLESS, POISSON, UNLIKE, **changes))
    assert found.verdict == "none" and failed in [one.text for one in found.failed]
