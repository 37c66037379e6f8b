"""Closed loops of several classes and fork-join: against mean value analysis, chains written out, and the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from test_levels import State, balanced, chain

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate


def mean_values(clients: Sequence[int], think: Sequence[float], service: Sequence[float]) -> tuple[Any, Any]:
    """Throughputs and responses at one server, by Reiser and Lavenberg's exact recursion over all populations."""
    lengths: dict[tuple[int, ...], float] = {}
    for here in product(*(range(count + 1) for count in clients)):
        less = [tuple(n - (other == r) for other, n in enumerate(here)) for r in range(len(here))]
        responses = np.array([each * (1 + lengths.get(one, 0.0)) for each, one in zip(service, less, strict=True)])
        rates = np.array(here) / (np.array(think) + responses)
        lengths[here] = float(rates @ responses)
    return rates, responses


@pytest.mark.parametrize(("clients", "think", "service"), [
    ([3, 2], [1.0, 4.0], [0.5, 0.5]), ([6, 1, 4], [2.0, 0.3, 9.0], [0.2, 1.5, 0.7]), ([7], [3.0], [0.8]),
])  # fmt: skip
def test_loops_at_one_server_are_those_of_mean_value_analysis(
    clients: list[int], think: list[float], service: list[float]
) -> None:
    found = theory.closed_classes(clients, think, service)
    rates, responses = mean_values(clients, think, service)
    assert found.throughput == pytest.approx(rates, rel=1e-10)
    assert found.response_mean == pytest.approx(responses, rel=1e-10)
    assert found.utilization == pytest.approx(rates @ service, rel=1e-10)


@pytest.mark.parametrize("servers", [2, 3])
def test_loops_at_several_servers_are_as_in_the_chain_written_out(servers: int) -> None:
    """A state is the line in order of arrival: who is among the first so many is served."""
    clients, think, service = (3, 2), (1.0, 2.5), 0.9

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        for kind in (0, 1):
            if idle := clients[kind] - state.count(kind):
                yield (*state, kind), idle / think[kind]
        for place in range(min(len(state), servers)):
            yield (*state[:place], *state[place + 1 :]), 1 / service

    numbers, rates = chain((), leaves)
    chance = balanced(rates)
    inside = [sum(state.count(kind) * chance[n] for state, n in numbers.items()) for kind in (0, 1)]
    found = theory.closed_classes(clients, think, [service, service], servers)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9)
    assert found.throughput == pytest.approx([(clients[k] - inside[k]) / think[k] for k in (0, 1)], rel=1e-9)


def test_one_class_is_the_machine_repair_model() -> None:
    for clients, servers in ((1, 1), (40, 3), (900, 50)):
        found = theory.closed_classes([clients], [5], [0.4], servers)
        known = theory.closed_loop(clients, 5, 0.4, servers)
        assert found.response_mean[0] == pytest.approx(known.response_mean, rel=1e-9)
        assert found.utilization == pytest.approx(known.utilization, rel=1e-9)


def joined(rate: float) -> float:
    """Mean response of two lines that each arrival joins, by a chain over what is left in each, and Little's law.

    A task is in the system while either of its parts is: as many as are in the longer line.
    """
    def leaves(state: State) -> Iterable[tuple[State, float]]:
        one, other = state
        if max(state) < 34:
            yield (one + 1, other + 1), rate
        if one:
            yield (one - 1, other), 1.0
        if other:
            yield (one, other - 1), 1.0

    numbers, rates = chain((0, 0), leaves)
    chance = balanced(rates)
    return sum(max(state) * chance[n] for state, n in numbers.items()) / rate


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_fork_join_of_two_is_as_in_the_chain_written_out(rate: float) -> None:
    found = theory.fork_join(rate, 1, 2)
    assert (found.response_mean, found.error) == (pytest.approx(joined(rate), rel=1e-9), 0)
    assert theory.fork_join(rate, 1, 1).response_mean == pytest.approx(theory.mm1(rate, 1).response_mean, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("branches", [3, 8, 32])
@pytest.mark.parametrize("load", [0.2, 0.5, 0.9])
def test_fork_join_of_many_is_as_near_as_it_says(branches: int, load: float) -> None:
    """By Lindley's recursion for each line, on common arrivals."""
    random, count = np.random.default_rng(7), 400_000
    gaps, waits, total = random.exponential(1 / load, count), np.zeros(branches), 0.0
    for block in range(0, count, 1000):
        parts = random.exponential(1.0, (1000, branches))
        for gap, part in zip(gaps[block : block + 1000], parts, strict=True):
            waits = np.maximum(waits - gap, 0) + part
            total += waits.max()
    found = theory.fork_join(load, 1, branches)
    assert 0 < found.error <= 0.05
    assert abs(found.response_mean / (total / count) - 1) <= found.error


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.closed_classes([3], [1, 2], [1]), "must have the same length .at least 1.; got 1, 2, 1"),
    (lambda: theory.closed_classes([3, 2], [1, 2], [1, 2], 2), "classes at several servers must have the same "
                                                               "service mean for a product"),
    (lambda: theory.closed_classes([9999, 9999], [1, 2], [1, 1], 2), "states, too many to compute"),
    (lambda: theory.closed_classes([0], [1], [1]), "clients must be a whole number"),
    (lambda: theory.fork_join(1.2, 1, 2), "no steady state"),
    (lambda: theory.fork_join(0.5, 1, 0), "branches must be a whole number"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


# Scenarios --------------------------------------------------------------------------------------------------------


def loop(name: str, clients: int, think: str, **more: Any) -> dict[str, Any]:
    times = {"gpu_time": {"distribution": "exponential", "mean": "1 s"}} | more
    arrivals = {"process": "closed", "clients": clients, "think": {"distribution": "gamma", "mean": think, "cv": 0.7}}
    return {"name": name, "arrivals": arrivals} | times


def scenario(gpus: int = 2, workload: Any = None, **changes: Any) -> Any:
    return hs.load({
        "name": "loops", "seed": 4, "warmup": "5 min", "horizon": "4 h", "replications": 10,
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": gpus}}]},
        "workload": workload or [loop("eager", 3, "2 s"), loop("slow", 5, "10 s")],
    } | changes)  # fmt: skip


def test_loops_of_two_classes_are_recognized() -> None:
    found = match(scenario())
    assert (found.verdict, found.model) == ("matches", "closed loops of 2 classes, M/M/2")
    known = theory.closed_classes([3, 5], [2, 10], [1, 1], 2)
    rows = {(row.metric, row.class_): row.value for row in found.rows}
    assert rows["response_mean", "eager"] == pytest.approx(known.response_mean[0])
    assert rows["wait_mean", "slow"] == pytest.approx(known.response_mean[1] - 1)
    assert rows["throughput", ""] == pytest.approx(sum(known.throughput))


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_engine_agrees(gpus: int) -> None:
    for one in simulate(scenario(gpus), match(scenario(gpus)).rows, confidence=0.999):
        assert one.covered, one


@pytest.mark.parametrize(("changes", "failed"), [
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", gpu_time={"distribution": "exponential", "mean": "2 s"})]},
     "service is exponential"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", priority=2)], "policy": "priority"},
     "first come, first served"),
    ({"policy": "random"}, "first come, first served"),
    ({"horizon": None, "workload": [loop("a", 3, "2 s", count=3000), loop("b", 2, "3 s", count=9000)]},
     "clients send tasks to the end of the run"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s") | {"arrivals": {"process": "poisson", "rate": "0.1/s"}}]},
     "all arrivals are closed loops, each of one class if several"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", classes=[{"class": "x"}, {"class": "y"}])]},
     "all arrivals are closed loops, each of one class if several"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", count=50)]},
     "clients send tasks to the end of the run"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", bytes_in="1 MB")]}, "not recognized: bytes_in"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s", gpus=2)]}, "all tasks run in one mode on equal devices"),
    ({"workload": [loop("a", 3, "2 s"), loop("b", 2, "3 s") | {"arrivals": {
        "process": "closed", "clients": [["0 s", 2], ["1 h", 4]], "think": "2 s"}}]},
     "the number of clients does not change"),
    ({"policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 1}}},
     "no blocking: every task is admitted"),
    ({"faults": [{"on": "gpu", "every": "60 s", "repair": "10 s"}]}, "not recognized: faults"),
    ({"workload": [loop("a", 3000, "50 min"), loop("b", 9000, "2 h")]},
     "the exact Markov chain is small enough to solve"),
    ({"workload": [loop("a", 3, "2 s") | {"arrivals": {"process": "closed", "clients": 3, "think": "0 s"}}]},
     "the model can be solved"),
])  # fmt: skip
def test_what_else_is_set_is_not_called_exact(changes: dict[str, Any], failed: str) -> None:
    found = match(scenario(**changes))
    assert found.verdict in ("none", "approximation") and failed in [one.text for one in found.failed], found.failed
