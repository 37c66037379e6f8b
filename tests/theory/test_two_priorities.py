"""Two priorities with services of their own at several servers: against chains, limits, and the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from test_levels import State, balanced, chain

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate

PAIRS = [((0.5, 0.6), (0.4, 1.5)), ((0.7, 1.2), (0.5, 0.3))]


def preempting(classes: Any, servers: int, longest: int) -> list[float]:
    """Mean number of each class; a state is both numbers."""
    (high, first), (low, second) = classes

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        one, other = state
        if one < longest:
            yield (one + 1, other), high
        if other < longest:
            yield (one, other + 1), low
        if one:
            yield (one - 1, other), min(one, servers) / first
        if other and servers > one:
            yield (one, other - 1), min(other, servers - one) / second

    numbers, rates = chain((0, 0), leaves)
    chance = balanced(rates)
    return [sum(state[kind] * chance[n] for state, n in numbers.items()) for kind in (0, 1)]


def waiting(classes: Any, servers: int, longest: int) -> list[float]:
    """Mean number of each class that waits; a state is both numbers in service and in line."""
    (high, first), (low, second) = classes

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        one, other, line, behind = state
        free = one + other < servers
        if free or line < longest:
            yield ((one + 1, other, 0, 0) if free else (one, other, line + 1, behind)), high
        if free or behind < longest:
            yield ((one, other + 1, 0, 0) if free else (one, other, line, behind + 1)), low
        for ended, rate in (((1, 0), one / first), ((0, 1), other / second)):
            if rate:
                left = one - ended[0], other - ended[1]
                if line:
                    yield (left[0] + 1, left[1], line - 1, behind), rate
                elif behind:
                    yield (left[0], left[1] + 1, line, behind - 1), rate
                else:
                    yield (*left, 0, 0), rate

    numbers, rates = chain((0, 0, 0, 0), leaves)
    chance = balanced(rates)
    return [sum(state[kind] * chance[n] for state, n in numbers.items()) for kind in (2, 3)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("classes", PAIRS)
@pytest.mark.parametrize("servers", [2, 3])
def test_they_are_as_in_the_chains_written_out(classes: Any, servers: int) -> None:
    classes = [(rate * servers * 0.35, mean) for rate, mean in classes]
    inside = [one.jobs_in_system_mean for one in theory.preemptive_resume(classes, servers)]
    assert inside == pytest.approx(preempting(classes, servers, longest=40), rel=1e-9)
    classes = [(rate * 0.6, mean) for rate, mean in classes]
    lines = [one.queue_length_mean for one in theory.nonpreemptive(classes, servers)]
    assert lines == pytest.approx(waiting(classes, servers, longest=22 if servers > 2 else 26), rel=1e-9)


@pytest.mark.parametrize("solve", [theory.preemptive_resume, theory.nonpreemptive])
def test_nearly_equal_services_are_those_of_the_formula(solve: Any) -> None:
    for rates in ((1.0, 0.5), (0.2, 2.3)):
        near = solve([(rates[0], 1.0), (rates[1], 1 + 1e-12)], 3)
        known = solve([(rates[0], 1.0), (rates[1], 1.0)], 3)
        assert [one.wait_mean for one in near] == pytest.approx([one.wait_mean for one in known], rel=1e-9)


def test_the_higher_class_does_not_see_the_lower_where_it_preempts() -> None:
    high, _ = theory.preemptive_resume([(3.0, 1.0), (0.3, 2.5)], 4)
    assert high.response_mean == pytest.approx(theory.mmc(3, 1, 4).response_mean, rel=1e-9)


def test_bad_input_is_a_sentence() -> None:
    for classes in ([(0.1, 1), (0.1, 2), (0.1, 3)], [(0.1, 1, 2.0), (0.1, 2)]):
        with pytest.raises(UsageError, match="exact only for exponential services"):
            theory.nonpreemptive(classes, 2)
    with pytest.raises(UsageError, match="class 2, with all above it, has no steady state"):
        theory.preemptive_resume([(1.0, 1), (1.0, 2)], 2)
    with pytest.raises(UsageError, match="two priorities at 100 servers"):
        theory.nonpreemptive([(50.0, 1), (10.0, 2)], 100)


# Scenarios --------------------------------------------------------------------------------------------------------


def scenario(policy: Any = "priority", classes: Any = (), **changes: Any) -> Any:
    classes = classes or [("urgent", 2, "0.5 s"), ("other", 0, "3 s")]
    workload = [
        {"name": name, "priority": priority, "arrivals": {"process": "poisson", "rate": "0.7/s"},
         "gpu_time": {"distribution": "exponential", "mean": mean}} for name, priority, mean in classes
    ]  # fmt: skip
    return hs.load({
        "name": "two priorities", "seed": 5, "warmup": "10 min", "horizon": "5 h", "replications": 10,
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": 3}}]}, "workload": workload, "policy": policy,
    }, changes)  # fmt: skip


PREEMPTIVE = {"scheduler": {"name": "priority", "preemptive": True}}


@pytest.mark.parametrize("policy", ["priority", PREEMPTIVE], ids=["waiting", "preempting"])
def test_two_services_on_several_gpus_are_recognized(policy: Any) -> None:
    found = match(scenario(policy))
    assert found.verdict == "matches" and found.model.startswith("M/M/3 with"), found.failed
    solve = theory.nonpreemptive if policy == "priority" else theory.preemptive_resume
    known = [one.response_mean for one in solve([(0.7, 0.5), (0.7, 3.0)], 3)]
    assert [row.value for row in found.rows if row.metric == "response_mean"] == pytest.approx(known)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["priority", PREEMPTIVE], ids=["waiting", "preempting"])
def test_the_engine_agrees(policy: Any) -> None:
    for one in simulate(scenario(policy), match(scenario(policy)).rows, confidence=0.999):
        assert one.covered, one


ONE_SERVICE = "with several servers: exponential service, equal for all classes or for two classes"


@pytest.mark.parametrize(("changes", "failed"), [
    ({"classes": [("a", 2, "0.5 s"), ("b", 1, "1 s"), ("c", 0, "2 s")]}, ONE_SERVICE),
    ({"workload.0.gpu_time": "0.5 s"}, ONE_SERVICE),
    ({"workload.0.bytes_in": "1 MB"}, "not recognized: bytes_in"),
    ({"policy": PREEMPTIVE, "workload.1.stopping": {"restore": "1 s"}}, "not recognized: stopping"),
    ({"faults": [{"on": "gpu", "every": "60 s", "repair": "10 s"}]}, "not recognized: faults"),
    ({"policy": {"scheduler": {"name": "priority", "aging": "1/s"}}}, "priorities do not change"),
    ({"policy": {"scheduler": {"name": "priority", "placement": "spread"}}}, "no device idles while a task waits"),
    ({"policy": {"scheduler": "priority", "admission": {"name": "queue_limit", "limit": 3}}},
     "not recognized: scheduler.name"),
    ({"workload.0.gpus": 2}, "all tasks run in one mode on equal devices"),
    ({"cluster.nodes.0.gpus.count": 20, "workload.0.arrivals.rate": "16/s"},
     "the exact Markov chain is small enough to solve"),
])  # fmt: skip
def test_what_else_is_set_is_not_recognized(changes: dict[str, Any], failed: str) -> None:
    found = match(scenario(**changes))
    assert found.verdict == "none"
    if not failed.endswith("scheduler.name"):  # a queue with a limit is another family, which refuses the order
        assert failed in [one.text for one in found.failed], found.failed
