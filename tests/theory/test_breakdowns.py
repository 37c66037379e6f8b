"""Servers that fail, and a server that sleeps: against chains written out, second formulas, and the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from test_levels import ERLANG, EXPONENTIAL, MIXED, State, balanced, chain

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate


@pytest.mark.parametrize(("rate", "mean", "servers", "uptime", "repair"), [
    (0.5, 1.0, 1, 10.0, 2.0), (1.1, 1.0, 2, 3.0, 1.0), (2.2, 0.8, 4, 2.0, 0.7),
])  # fmt: skip
def test_breakdowns_of_several_are_as_in_the_chain_written_out(
    rate: float, mean: float, servers: int, uptime: float, repair: float
) -> None:
    def leaves(state: State) -> Iterable[tuple[State, float]]:
        number, up = state
        if number < 120:
            yield (number + 1, up), rate
        if min(number, up):
            yield (number - 1, up), min(number, up) / mean
        if up:
            yield (number, up - 1), up / uptime
        if up < servers:
            yield (number, up + 1), (servers - up) / repair

    numbers, rates = chain((0, servers), leaves)
    chance = balanced(rates)
    inside = sum(state[0] * chance[n] for state, n in numbers.items())
    found = theory.mmc_breakdowns(rate, mean, servers, uptime, repair)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9)
    assert found.response_mean == pytest.approx(inside / rate, rel=1e-9)


def test_one_server_that_keeps_work_is_gavers_formula() -> None:
    """With C of mean E[S] (1 + ξ E[R]) and variance that of S times (1 + ξ E[R])² plus ξ E[R²] E[S]."""
    for load, uptime, repair in ((0.3, 10.0, 2.0), (0.8, 100.0, 5.0), (0.5, 1.0, 0.2)):
        longer = 1 + repair / uptime
        second = 2 * longer**2 + 2 * repair**2 / uptime
        response = longer + load * second / 2 / (1 - load * longer) + repair**2 / uptime / longer
        found = theory.mmc_breakdowns(load, 1, 1, uptime, repair)
        assert found.response_mean == pytest.approx(response, rel=1e-9)


def completion(service: float, fails: float, repair: float, square: float) -> tuple[float, float]:
    """Two moments of the time until a service of this length is done, attempt by attempt: a geometric sum."""
    lost = -math.expm1(-fails * service)
    part = stats.truncexpon(fails * service, scale=1 / fails)
    mean, spread = part.mean() + repair, part.var() + square - repair**2
    times = lost / (1 - lost)
    first = service + times * mean
    return first, first**2 + times * spread + times / (1 - lost) * mean**2


@pytest.mark.quick(2)
@pytest.mark.parametrize(("service", "density"), [
    (EXPONENTIAL, stats.expon().pdf), (ERLANG, stats.gamma(2, scale=0.5).pdf),
    (MIXED, lambda x: 0.3 * stats.expon(scale=2).pdf(x) + 0.7 * stats.expon(scale=1 / 1.75).pdf(x)), (1.3, None),
], ids=["M", "E2", "H2", "D"])  # fmt: skip
@pytest.mark.parametrize("uptime", [8.0, 300.0])
def test_lost_work_is_a_geometric_sum_of_attempts(service: Any, density: Any, uptime: float) -> None:
    rate, repair, scv = 0.3, 1.5, 3.0
    square = repair**2 * (1 + scv)
    if density is None:
        moments = completion(service, 1 / uptime, repair, square)
    else:
        moments = tuple(integrate.quad(
            lambda x, k=k: completion(x, 1 / uptime, repair, square)[k] * density(x), 0, 150, epsabs=0, epsrel=1e-11,
            limit=400)[0] for k in (0, 1))  # fmt: skip
    down = square / uptime / 2 / (1 + repair / uptime)
    response = moments[0] + rate * moments[1] / 2 / (1 - rate * moments[0]) + down
    found = theory.mg1_breakdowns(rate, service, uptime, repair, scv)
    assert found.response_mean == pytest.approx(response, rel=1e-8)
    assert found.response_mean - found.wait_mean == pytest.approx(moments[0], rel=1e-9)


def test_a_constant_service_in_many_short_stages_is_lost_alike() -> None:
    """Where a failure sends a chain of stages back to the first one, with ever more of them: 8 and 16, extrapolated."""
    rate, uptime, repair = 0.4, 5.0, 1.0

    def response(stages: int) -> float:
        def leaves(state: State) -> Iterable[tuple[State, float]]:
            number, stage, up = state
            if number < 40:
                yield (number + 1, stage, up), rate
            yield ((number, 0, 0), 1 / uptime) if up else ((number, 0, 1), 1 / repair)
            if up and number:
                yield ((number, stage + 1, 1) if stage + 1 < stages else (number - 1, 0, 1)), float(stages)

        numbers, rates = chain((0, 0, 1), leaves)
        chance = balanced(rates)
        return sum(state[0] * chance[n] for state, n in numbers.items()) / rate

    few, more = response(8), response(16)
    assert theory.mg1_breakdowns(rate, 1.0, uptime, repair).response_mean == pytest.approx(2 * more - few, rel=2e-3)


def test_without_faults_it_is_the_queue_itself() -> None:
    for service, plain in ((EXPONENTIAL, theory.mm1(0.6, 1)), (1.0, theory.md1(0.6, 1))):
        assert theory.mg1_breakdowns(0.6, service, 1e9, 1).response_mean == pytest.approx(plain.response_mean, rel=1e-6)
    assert theory.mmc_breakdowns(2.5, 1, 3, 1e9, 1).values()["response_mean"] == pytest.approx(
        theory.mmc(2.5, 1, 3).response_mean, rel=1e-6)  # fmt: skip


def test_a_sleeping_server_is_as_in_the_chain_written_out() -> None:
    """With exponential set-up and sleep after exponential idle times, whose chance to sleep is as that of p."""
    rate, setup, idle = 0.6, 2.0, 3.0

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        number, awake = state
        if number < 150:
            yield (number + 1, awake), rate
        if number and awake:
            yield (number - 1, 1), 1.0
        elif awake:
            yield (0, 0), 1 / idle
        elif number:
            yield (number, 1), 1 / setup

    numbers, rates = chain((0, 1), leaves)
    chance = balanced(rates)
    inside = sum(state[0] * chance[n] for state, n in numbers.items())
    after = -math.log(1 / idle / (rate + 1 / idle)) / rate
    found = theory.mg1_setup(rate, 1, 1, setup, setup_scv=1, sleep_after=after)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9)
    assert theory.mg1_setup(rate, 1, 1, 0).wait_mean == pytest.approx(theory.mm1(rate, 1).wait_mean)


@pytest.mark.parametrize(("rate", "service", "servers", "setup", "longest"), [
    (0.6, EXPONENTIAL, 1, EXPONENTIAL, 60), (1.4, EXPONENTIAL, 3, theory.phase_type([1], [[0]], [0.7]), 70),
    (0.9, ERLANG, 2, MIXED, 40),
])  # fmt: skip
def test_several_sleeping_servers_are_as_in_the_chain_written_out(
    rate: float, service: Any, servers: int, setup: Any, longest: int
) -> None:
    """A state is the queue and what each server does: it sleeps (0), is in a phase of its set-up, or of a service."""
    wakes, phases = len(setup.start), range(1, len(setup.start) + len(service.start) + 1)

    def leaves(state: State) -> Iterable[tuple[State, float]]:
        queue, *does = state
        if 0 in does:
            for phase, share in enumerate(setup.start, 1):
                yield (queue, *does[: does.index(0)], phase, *does[does.index(0) + 1 :]), rate * share
        elif queue < longest:
            yield (queue + 1, *does), rate
        for place, phase in ((place, phase) for place, phase in enumerate(does) if phase):
            law, offset = (setup, 1) if phase <= wakes else (service, 1 + wakes)
            begins = [(wakes + 1 + n, share) for n, share in enumerate(service.start)]
            then = begins if phase <= wakes or queue else [(0, 1.0)]
            moves = [(other, law.onward[phase - offset, other - offset])
                     for other in phases if (other <= wakes) == (phase <= wakes)]  # fmt: skip
            ended = law.ends[phase - offset]
            for other, pace in [*moves, *((to, ended * share) for to, share in then)]:
                less = other in dict(then) and phase > wakes and queue > 0 and (other, pace) not in moves
                yield (queue - less, *does[:place], other, *does[place + 1 :]), pace

    numbers, rates = chain((0, *[0] * servers), lambda state: (one for one in leaves(state) if one[1]))
    chance = balanced(rates)
    inside = sum((state[0] + sum(map(bool, state[1:]))) * chance[n] for state, n in numbers.items())
    found = theory.mphc_setup(rate, service, servers, setup)
    assert found.jobs_in_system_mean == pytest.approx(inside, rel=1e-9) and found.error == 0


def test_a_constant_set_up_is_within_its_error() -> None:
    """Of Levy and Kleinrock's formula; of the set-up itself where no server is ever missing; of 12 stages."""
    alone = theory.mphc_setup(0.6, EXPONENTIAL, 1, 0.8)
    assert alone.wait_mean == pytest.approx(theory.mg1_setup(0.6, 1, 1, 0.8).wait_mean, rel=1e-9)
    many = theory.mphc_setup(0.3, EXPONENTIAL, 12, 0.4)
    assert many.wait_mean == pytest.approx(0.4, rel=many.error)
    stages = {n: theory.phase_type(np.eye(n)[0], np.diag(np.full(n - 1, n / 0.4), 1), n / 0.4 * np.eye(n)[-1])
              for n in (11, 12)}  # fmt: skip
    few, more = (theory.mphc_setup(1.2, EXPONENTIAL, 2, one).wait_mean for one in stages.values())
    found = theory.mphc_setup(1.2, EXPONENTIAL, 2, 0.4)
    assert found.wait_mean == pytest.approx(12 * more - 11 * few, rel=2e-5) and 0 < found.error < 2e-4
    assert theory.mphc_setup(1.2, EXPONENTIAL, 2, 0).wait_mean == pytest.approx(theory.mmc(1.2, 1, 2).wait_mean)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.mg1_breakdowns(0.3, EXPONENTIAL, 1.9, 1), "the mean response is infinite"),
    (lambda: theory.mg1_breakdowns(0.6, EXPONENTIAL, 4, 4), "no steady state"),
    (lambda: theory.mmc_breakdowns(1.5, 1, 2, 3, 1.5), "M/M/2 with breakdowns has no steady state"),
    (lambda: theory.mmc_breakdowns(1.5, 1, 2000, 3, 1), "M/M/2000 with breakdowns must have at most 1,000 "
                                                        "states per level; got 2,001"),
    (lambda: theory.mg1_setup(0.5, 1, 1, -1), "setup mean must be a number of at least 0; got"),
    (lambda: theory.mphc_setup(0.5, EXPONENTIAL, 2, -1), "setup must be a number of at least 0; got"),
    (lambda: theory.mphc_setup(2, EXPONENTIAL, 2, 1), "M/PH/2 with set-up has no steady state"),
    (lambda: theory.mphc_setup(2, EXPONENTIAL, 50, 1), "M/PH/50 with set-up must have at most 1,000 states per "
                                                       "level; got 1,326"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


# Scenarios --------------------------------------------------------------------------------------------------------


def exponential(mean: str) -> dict[str, str]:
    return {"distribution": "exponential", "mean": mean}


def scenario(gpus: int = 1, rate: str = "0.5/s", **changes: Any) -> Any:
    return hs.load({
        "name": "failing", "seed": 3, "warmup": "10 min", "horizon": "8 h", "replications": 10,
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": gpus}}]},
        "faults": [{"on": "gpu", "every": exponential("60 s"), "repair": exponential("10 s")}],
        "workload": {"arrivals": {"process": "poisson", "rate": rate}, "gpu_time": exponential("1 s")} | changes.pop(
            "entry", {}),
    } | changes)  # fmt: skip


KEPT = {"stopping": {"interval": "1 ms"}}
ASLEEP = {"faults": [], "policy": {"scheduler": {"name": "power_down", "patience": "3 s", "safety": 0}},
          "cluster": {"nodes": [{"gpus": {"type": "g", "power": {
              "idle": "60 W", "busy": "400 W", "sleep": "8 W", "wake": "0.8 s"}}}]}}  # fmt: skip
LONG_MEMORY = {"policy": {"scheduler": {"name": "power_down", "patience": "1 s", "safety": 0, "memory": "10 h"}}}


def asleep(gpus: int, patience: str = "0 s", **more: Any) -> dict[str, Any]:
    """The changes for several GPUs that sleep."""
    policy = {"name": "power_down", "patience": patience, "safety": 0, "memory": "10 h"}
    power = {"idle": "60 W", "busy": "400 W", "sleep": "8 W", "wake": "0.35 s"}
    return {"faults": [], "policy": {"scheduler": policy}, "cluster": {"nodes": [
        {"count": gpus // 2, "gpus": {"type": "g", "count": 2, "power": power | more}}]}}  # fmt: skip


SCENARIOS = {
    "M/G/1 with breakdowns, work is lost": (scenario(), "matches"),
    "the same with a constant service": (
        scenario(entry={"gpu_time": "1.2 s"}, faults=[{
            "on": "gpu", "every": exponential("30 s"), "repair": {"distribution": "gamma", "mean": "4 s", "cv": 2}}]),
        "matches"),
    "M/M/3 with breakdowns": (scenario(3, "1.8/s", entry=KEPT), "nearly"),
    "M/M/1 with breakdowns": (scenario(entry=KEPT), "nearly"),
    "M/G/1 with set-up": (scenario(rate="0.4/s", **(ASLEEP | LONG_MEMORY)), "matches"),
    "M/PH/2 with set-up": (scenario(rate="1.2/s", horizon="2 h", **asleep(2)), "nearly"),
    "M/PH/4 with set-up": (scenario(rate="1.1/s", horizon="2 h", **asleep(4), entry={"gpu_time": {
        "distribution": "gamma", "mean": "2 s", "cv": 0.5**0.5}}), "nearly"),
}


@pytest.mark.parametrize("model", SCENARIOS)
def test_the_model_is_recognized(model: str) -> None:
    scenario, verdict = SCENARIOS[model]
    found = match(scenario)
    assert found.verdict == verdict and len(found.rows) >= 2, found.failed
    assert found.model == model or model.startswith("the same")
    assert found.error < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("model", SCENARIOS)
def test_the_engine_agrees(model: str) -> None:
    scenario, _ = SCENARIOS[model]
    for one in simulate(scenario, match(scenario).rows, confidence=0.999):
        assert one.covered, one


TWO = [{"on": "gpu", "every": exponential("60 s"), "repair": exponential("10 s")}] * 2


@pytest.mark.parametrize(("changes", "failed"), [
    ({"faults": [{"on": "node", "every": exponential("60 s"), "repair": exponential("10 s")}]},
     "GPUs fail independently, and nothing else fails"),
    ({"faults": TWO}, "GPUs fail independently, and nothing else fails"),
    ({"faults": [{"on": "gpu", "every": exponential("60 s"), "slow": 2, "for": "9 s"}]}, "not recognized: faults.slow"),
    ({"faults": [{"maintenance": {"nodes": ["n0"], "from": "1 h", "for": "1 h"}}]},
     "not recognized: faults.maintenance"),
    ({"entry": {"stopping": {"interval": "0.1 s", "restore": "1 s"}}}, "not recognized: stopping.restore"),
    ({"entry": {"stopping": {"interval": "0.1 s", "checkpoint": "0.1 s"}}}, "not recognized: stopping.checkpoint"),
    ({"entry": {"bytes_in": "1 MB"}}, "not recognized: bytes_in"),
    ({"entry": {"gpus": 0.5}}, "a server is one whole GPU"),
    ({"cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g"}}]}, "entry": {"cpus": 1, "cpu_time": "2 s"}},
     "all tasks run in one mode on equal devices"),
    ({"entry": {"patience": "1 s"}}, "not recognized: faults"),
    ({"policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 3}}}, "not recognized: faults"),
    ({"policy": {"name": "priority", "preemptive": True}, "entry": {"classes": [
        {"class": "a"}, {"class": "b", "priority": 1}]}}, "not recognized: faults"),
    ({"policy": "lcfs"}, "first come, first served"),
    ({"policy": "srtf"}, "not recognized: faults"),
    ({"entry": {"gpu_time": {"distribution": "lognormal", "mean": "1 s", "cv": 1}}},
     "service is phase-type or constant"),
    ({"gpus": 2}, "a fault loses at most an interval of work"),
    ({"cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g", "count": 2}}]}, "entry": KEPT | {"cpus": 1}},
     "a server is one whole GPU"),
    ({"cluster": {"nodes": [{"gpus": {"type": "g", "streams": 2}}]}}, "a GPU takes one task at a time"),
    (ASLEEP | {"rate": "0.7/s"}, "the forecast wakes no additional GPU"),
    (ASLEEP | LONG_MEMORY | {"faults": TWO[:1]}, "not recognized: faults"),
    (ASLEEP | LONG_MEMORY | {"policy": {"scheduler": {"name": "power_down", "patience": "3 s"}}},
     "the forecast wakes no additional GPU"),
    (ASLEEP | LONG_MEMORY | {"cluster": {"nodes": [{"gpus": {"type": "g", "count": 2, "power": {
        "idle": "60 W", "busy": "400 W", "sleep": "8 W", "wake": "0.8 s"}}}]}},
     "there is one GPU, or idle GPUs sleep at once"),
    (asleep(2, patience="1 ms"), "there is one GPU, or idle GPUs sleep at once"),
    (asleep(2) | {"rate": "1.5/s"}, "the forecast wakes no additional GPU"),
    (asleep(2, sleep="60 W"), "sleep saves energy"),
    (asleep(2) | {"entry": {"gpus": 2}}, "a server is one whole GPU"),
    (asleep(2) | {"entry": {"gpu_time": "1 s"}}, "service is phase-type"),
    (asleep(2) | {"entry": {"bytes_in": "1 MB"}}, "not recognized: bytes_in"),
    (asleep(24), "the exact Markov chain is small enough to solve"),
])  # fmt: skip
def test_what_else_is_set_is_not_recognized(changes: dict[str, Any], failed: str) -> None:
    found = match(scenario(**changes))
    assert found.verdict == "none" and failed in [one.text for one in found.failed], found.failed


def test_a_wait_without_a_variance_is_only_approximated() -> None:
    """Lost work can give completions whose third moment is infinite: no run is long enough for the mean."""
    for uptime, verdict in (("2.5 s", "approximation"), ("40 s", "matches")):
        faults = {"on": "gpu", "every": exponential(uptime), "repair": exponential("1 s")}
        found = match(scenario(rate="0.2/s", faults=[faults]))
        assert found.verdict == verdict, found.failed
        assert ("the variance of waits is finite" in [one.text for one in found.failed]) == (verdict != "matches")


def test_too_many_servers_are_refused_before_their_chain_is_made() -> None:
    found = match(scenario(150, "1/s", entry=KEPT))
    assert (found.verdict, found.failed[-1].text) == ("none", "the exact Markov chain is small enough to solve")


def test_other_laws_of_faults_match_nothing() -> None:
    for key in ("every", "repair"):
        faults = {"on": "gpu", "every": exponential("60 s"), "repair": exponential("10 s"), key: "30 s"}
        found = match(scenario(3, "1.2/s", entry=KEPT, faults=[faults]))
        assert (found.verdict, [one.key for one in found.failed]) == ("none", [f"faults.0.{key}"])
    assert np.isfinite(match(scenario(faults=[
        {"on": "gpu", "every": exponential("60 s"), "repair": "10 s"}])).error)  # one GPU: any repair
