"""M/M/c from an empty start and under a rate that moves: against matrix exponentials, limits, and the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm

import hetsim as hs
from hetsim import theory
from hetsim.errors import UsageError
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import simulate


def generator(rate: float, mean: float, servers: int, size: int) -> Any:
    rates = np.diag(np.full(size - 1, rate), 1) + np.diag(np.minimum(np.arange(1, size), servers) / mean, -1)
    return rates - np.diag(rates.sum(axis=1))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("pieces", "servers"), [
    ([(3.0, 0.2), (2.0, 1.4)], 1), ([(40.0, 2.6), (30.0, 0.0), (5.0, 1.0)], 2), ([(0.5, 0.0), (0.1, 8.0)], 2),
])  # fmt: skip
def test_a_cycle_is_as_by_matrix_exponentials(pieces: list[tuple[float, float]], servers: int) -> None:
    size, mean = 150, 1.0
    cycle, rate = sum(t for t, _ in pieces), sum(t * each for t, each in pieces) / sum(t for t, _ in pieces)
    steps, spent = np.eye(size), np.zeros((size, size))
    delayed = np.zeros((size, size))
    for seconds, each in pieces:
        both = np.block([[generator(each, mean, servers, size), np.eye(size)], [np.zeros((size, 2 * size))]])
        moved = expm(both * seconds)
        spent, delayed = spent + steps @ moved[:size, size:], delayed + each * steps @ moved[:size, size:]
        steps = steps @ moved[:size, :size]
    system = (steps - np.eye(size)).T
    system[0] = 1
    start = np.linalg.solve(system, np.eye(size)[0])
    numbers = np.arange(size)
    found = theory.mmc_periodic(pieces, mean, servers)
    assert found.jobs_in_system_mean == pytest.approx(float(start @ spent @ numbers) / cycle, rel=1e-9)
    queue = float(start @ spent @ np.maximum(numbers - servers, 0)) / cycle
    assert (found.queue_length_mean, found.wait_mean) == pytest.approx((queue, queue / rate), rel=1e-9)
    assert found.delayed == pytest.approx(float((start @ delayed)[servers:].sum()) / cycle / rate, rel=1e-9)


def test_one_rate_is_erlangs_delay_system() -> None:
    for pieces in ([(5.0, 2.4)], [(1.0, 2.4), (3.0, 2.4)]):
        found, known = theory.mmc_periodic(pieces, 1, 3), theory.mmc(2.4, 1, 3)
        assert found.values() == pytest.approx(known.values(), rel=1e-9)


def test_a_slow_cycle_is_a_mixture_of_steady_states() -> None:
    found = theory.mmc_periodic([(4_000.0, 0.3), (4_000.0, 1.2)], 1, 2)
    mixed = sum(theory.mmc(rate, 1, 2).jobs_in_system_mean for rate in (0.3, 1.2)) / 2
    assert found.jobs_in_system_mean == pytest.approx(mixed, rel=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("rate", "servers"), [(0.5, 1), (0.9, 1), (4.5, 6)])
def test_the_settling_time_is_where_the_mean_reaches_its_share(rate: float, servers: int) -> None:
    for share in (0.5, 0.95):
        settled = theory.settling_time(rate, 1, servers, share)
        chance = expm(generator(rate, 1, servers, 300) * settled)[0]
        known = theory.mmc(rate, 1, servers).jobs_in_system_mean
        assert float(chance @ np.arange(300)) == pytest.approx(share * known, rel=1e-8)


def test_many_servers_settle_as_infinitely_many() -> None:
    """Where no customer waits the mean number is a (1 - exp(-t)): 95 % after ln 20."""
    assert theory.settling_time(20, 1, 60) == pytest.approx(np.log(20), rel=1e-6)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: theory.mmc_periodic([(1, 3), (1, 0.5)], 1, 1), "no steady state"),
    (lambda: theory.mmc_periodic([], 1, 1), "mean rate must be"),
    (lambda: theory.mmc_periodic([(0, 1)], 1, 1), "seconds must be"),
    (lambda: theory.mmc_periodic([(1e5, 1)], 1, 2), "arrivals and ends; got about"),
    (lambda: theory.settling_time(1, 1, 2, 1.0), "share must be a share between 0 and 1"),
    (lambda: theory.settling_time(0.9999, 1, 1), "customers are too many to compute; the load may be close to 1"),
])  # fmt: skip
def test_bad_input_is_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


# Scenarios --------------------------------------------------------------------------------------------------------


WAVE = {"process": "piecewise_poisson", "rate": [["0 s", "0.5/s"], ["30 s", "3.5/s"]], "period": "50 s"}


def scenario(arrivals: Any = WAVE, gpus: int = 2, **changes: Any) -> Any:
    return hs.load({
        "name": "wave", "seed": 6, "warmup": "1000 s", "horizon": "21000 s", "replications": 10,
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": gpus}}]},
        "workload": [{"arrivals": arrivals, "gpu_time": {"distribution": "exponential", "mean": "0.8 s"}}],
    }, changes)  # fmt: skip


def test_a_square_wave_is_recognized() -> None:
    found = match(scenario())
    assert (found.model, found.verdict) == ("M(t)/M/2", "matches"), found.failed
    known = theory.mmc_periodic([(30, 0.5), (20, 3.5)], 0.8, 2)
    assert found.rows[0].value == pytest.approx(known.wait_mean)


@pytest.mark.slow
def test_the_engine_agrees() -> None:
    for one in simulate(scenario(), match(scenario()).rows, confidence=0.999):
        assert one.covered, one


@pytest.mark.parametrize(("changes", "verdict", "failed"), [
    ({"arrivals": {key: value for key, value in WAVE.items() if key != "period"}}, "none", "the rate moves in a cycle"),
    ({"arrivals": WAVE | {"between": "linear"}}, "none", "the rate moves in steps"),
    ({"arrivals": WAVE | {"rate": [["0 s", "0.5/s"], ["30 s", "9/s"]]}}, "none", "the load is below 1"),
    ({"arrivals": WAVE | {"rate": [["0 s", "1/s"]], "period": "20 h"}, "horizon": "600 h"}, "none",
     "the exact Markov chain is small enough to solve"),
    ({"horizon": "21013 s"}, "nearly", "the run after its warm-up is whole cycles"),
    ({"warmup": "auto"}, "nearly", "the run after its warm-up is whole cycles"),
    ({"workload.0.gpu_time": "0.8 s"}, "approximation", "service is exponential"),
    ({"workload.0.bytes_in": "1 MB", "cluster.nodes.0.pcie": {"upload": "1 GB/s"}}, "approximation",
     "service is exponential"),
    ({"policy": "sjf"}, "none", "not recognized: arrivals.period"),
    ({"policy": "priority", "workload.0.classes": [{"class": "a"}, {"class": "b", "priority": 2}]}, "none",
     "not recognized: arrivals.period"),
    ({"policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 3}}}, "none",
     "not recognized: arrivals.period"),
    ({"workload.0.patience": "1 s"}, "none", "not recognized: arrivals.period"),
    ({"faults": [{"on": "gpu", "every": "60 s", "repair": "10 s"}]}, "none", "not recognized: arrivals.period"),
])  # fmt: skip
def test_what_else_is_set_is_not_called_exact(changes: dict[str, Any], verdict: str, failed: str) -> None:
    found = match(scenario(**changes))
    assert (found.verdict, failed in [one.text for one in found.failed]) == (verdict, True), found.failed
