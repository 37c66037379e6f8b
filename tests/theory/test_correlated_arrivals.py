"""MAP/PH/c: against the chain written out, models that it contains, and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from test_levels import COXIAN, ERLANG, EXPONENTIAL, MIXED, MODULATED, State, balanced, chain, drawn, scenario

from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate

SWITCH = [[0, 0.3, 0.1], [0.2, 0, 0.4], [0, 0.5, 0]]
ARRIVE = [[0.4, 0, 0.3], [0.1, 1.1, 0], [0, 0.2, 0.1]]


def written_out(switch: Any, arrive: Any, service: Any, servers: int, longest: int) -> tuple[float, float]:
    """Queue length and share of arrivals that are delayed; states: of the arrivals, the queue, and servers by phase."""
    phases, states = range(len(service.start)), range(len(arrive))

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        here, queue, *busy = state
        for there in states:
            if there != here and switch[here][there]:
                yield (there, queue, *busy), switch[here][there]
            if sum(busy) < servers:
                for j, share in enumerate(service.start):
                    yield (there, 0, *(n + (k == j) for k, n in enumerate(busy))), arrive[here][there] * share
            elif queue < longest:
                yield (there, queue + 1, *busy), arrive[here][there]
        for i in phases:
            gone = [n - (k == i) for k, n in enumerate(busy)]
            if not busy[i]:
                continue
            for j in phases:
                moved = tuple(n + (k == j) for k, n in enumerate(gone))
                yield (here, queue, *moved), busy[i] * service.onward[i, j]
                if queue:
                    yield (here, queue - 1, *moved), busy[i] * service.ends[i] * service.start[j]
            if not queue:
                yield (here, 0, *gone), busy[i] * service.ends[i]

    def possible(state: State) -> Iterable[tuple[State, float]]:
        return [(to, rate) for to, rate in leaves(state) if rate and to != state]

    numbers, rates = chain((0, 0, *(0 for _ in phases)), possible)
    chance = balanced(rates)
    come = {state: sum(arrive[state[0]]) * chance[n] for state, n in numbers.items()}
    late = sum(rate for state, rate in come.items() if sum(state[2:]) == servers)
    return sum(state[1] * chance[n] for state, n in numbers.items()), late / sum(come.values())


@pytest.mark.quick(3)
@pytest.mark.parametrize("service", [EXPONENTIAL, ERLANG, COXIAN], ids=["M", "E2", "three"])
@pytest.mark.parametrize("servers", [1, 2])
def test_it_is_as_in_the_chain_written_out(service: Any, servers: int) -> None:
    times = 0.8 * servers / service.mean
    switch, arrive = np.array(SWITCH) * times, np.array(ARRIVE) * times
    found = theory.map_phc(switch, arrive, service, servers)
    queue, delayed = written_out(switch, arrive, service, servers, longest=90)
    assert 0.5 < found.load < 0.7
    assert (found.queue_length_mean, found.delayed) == pytest.approx((queue, delayed), rel=1e-9)


def test_it_contains_the_models_with_one_of_both() -> None:
    for servers in (1, 3):
        plain = theory.mphc(0.7 * servers, MIXED, servers)
        found = theory.map_phc([[0]], [[0.7 * servers]], MIXED, servers)
        assert found.values() == pytest.approx(plain.values(), rel=1e-12)
        rates, switching = [0.4 * servers, 1.5 * servers], [[0, 0.2], [0.5, 0]]
        modulated = theory.mmpp_mc(rates, switching, 1, servers)
        found = theory.map_phc(switching, np.diag(rates), EXPONENTIAL, servers)
        assert found.values() == pytest.approx(modulated.values(), rel=1e-12)
        assert found.response_percentile(0.99) == pytest.approx(modulated.response_percentile(0.99), rel=1e-10)


def test_independent_gaps_are_kendalls_queue() -> None:
    gaps = theory.phase_type([1, 0], [[0, 1.4], [0, 0]], [0, 1.4])
    found = theory.map_phc(gaps.onward, np.outer(gaps.ends, gaps.start), EXPONENTIAL, 1)
    known = theory.gim1(0.7, 1, lambda s: 1 - (1.4 / (1.4 + s)) ** 2)
    assert found.values() == pytest.approx(known.values(), rel=1e-9)
    assert found.wait_percentile(0.95) == pytest.approx(known.wait_percentile(0.95), rel=1e-9)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.map_phc([[0, 1]], [[1]], ERLANG, 1), "a Markovian arrival process must be two square "
                                                         "matrices of the same size"),
    (lambda: theory.map_phc([[0, 1], [1, 0]], [[1, -1], [0, 1]], ERLANG, 1), "rates of a Markovian arrival "
                                                                             "process must be at least 0"),
    (lambda: theory.map_phc([[0, 1], [0, 0]], [[1, 0], [0, 1]], ERLANG, 3), "never leads back"),
    (lambda: theory.map_phc([[0, 1], [1, 0]], [[2, 0], [0, 1]], ERLANG, 1), "no steady state"),
    (lambda: theory.map_phc(np.ones((9, 9)), np.eye(9), COXIAN, 20), "MAP/PH/20 must have at most 1,000 states "
                                                                     "per level"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


RENEWAL = {"process": "renewal", "rate": "2.4/s", "scv": 3}
SCENARIOS = {
    "MMPP/PH/3": scenario(drawn("hyperexponential", 1.5), MODULATED | {"rates": ["0.4/s", "4/s"]}),
    "PH/PH/3": scenario(drawn("gamma", 2**-0.5), RENEWAL),
    "PH/PH/3 of exponential service": scenario(drawn("gamma", 1), RENEWAL),
    "PH/PH/3 of gaps in stages": scenario(drawn("hyperexponential", 2), RENEWAL | {"scv": 0.25}),
    "MMPP/PH/1": scenario(drawn("gamma", 0.5), MODULATED | {"rates": ["0.1/s", "1.6/s"]},
                          {"nodes": [{"gpus": {"type": "g"}}]}),
}  # fmt: skip


@pytest.mark.parametrize("model", SCENARIOS)
def test_the_model_is_recognized(model: str) -> None:
    found = match(SCENARIOS[model])
    assert (found.model, found.verdict) == (model.partition(" ")[0], "matches"), found.failed


@pytest.mark.slow
@pytest.mark.parametrize("model", SCENARIOS)
def test_the_engine_agrees(model: str) -> None:
    for one in simulate(SCENARIOS[model], match(SCENARIOS[model]).rows, confidence=0.999):
        assert one.covered, one


@pytest.mark.parametrize(("times", "arrivals"), [
    (drawn("lognormal", 2), RENEWAL), (drawn("hyperexponential", 2), RENEWAL | {"family": "gamma"}),
    (drawn("gamma", 1), {"process": "deterministic", "rate": "2.4/s"}),
    (drawn("hyperexponential", 2), RENEWAL | {"scv": 0.3}),
])  # fmt: skip
def test_gaps_or_services_without_phases_are_only_approximated(times: Any, arrivals: Any) -> None:
    found = match(scenario(times, arrivals))
    assert (found.model, found.verdict) == ("G/G/3 (Allen and Cunneen)", "approximation")


def test_bursty_gaps_are_forgotten_slowly() -> None:
    """Relaxation takes (scv of gaps + scv of services) / 2 times as long as for M/M."""
    for scv, verdict in ((30, "approximation"), (3, "matches")):
        short = scenario(drawn("gamma", 0.5), RENEWAL | {"scv": scv}, warmup="200 s", horizon="3000 s")
        assert match(short).verdict == verdict
