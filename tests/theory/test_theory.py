"""`hetsim.theory`: every formula against an independent computation, its limits, and bad input; then the engine and
`hetsim theory` against the formulas."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from cost import lines_run
from scipy import integrate, stats

import hetsim as hs
from hetsim import theory
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.policy import ListScheduler, arrival_order
from hetsim.queueing.facts import PredictedRow
from hetsim.queueing.matching import match
from hetsim.queueing.model_check import PredictionCheck
from hetsim.results.statistics import student_interval
from hetsim.theory.general import ConstantJumps

Part = dict[str, Any]
close = pytest.approx


def solved(rates: np.ndarray) -> np.ndarray:
    """Stationary distribution of a generator by least squares: nothing in common with what is tested."""
    size = len(rates)
    generator = rates - np.diag(rates.sum(axis=1))
    system = np.vstack([generator.T, np.ones(size)])
    return np.linalg.lstsq(system, np.concatenate([np.zeros(size), [1.0]]), rcond=None)[0]


def mean_of(tail: Any, upto: float) -> float:
    """The mean from a tail."""
    return integrate.quad(tail, 0, upto, limit=400)[0]


# Chains and Erlang's formulas ------------------------------------------------------------------------------------


def test_import_is_light():
    """`import hetsim` and the theory's names load neither numpy nor scipy; pure formulas load no scipy."""
    code = "import sys, hetsim; hetsim.theory; assert 'numpy' not in sys.modules; hetsim.theory.erlang_b(3, 4); "
    code += "assert 'scipy' not in sys.modules and 'pandas' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_name_is_there():
    for name in theory.__all__:
        assert getattr(theory, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing_like_it"):
        theory.nothing_like_it  # noqa: B018


def test_arrays_go_in_and_come_out():
    rates, servers = np.linspace(1, 13, 4), np.array([[14], [16]])
    figures = theory.each(theory.mmc, rates, 1.0, servers=servers)
    assert figures["wait_mean"].shape == (2, 4)
    for (row, column), wait in np.ndenumerate(figures["wait_mean"]):
        assert wait == theory.mmc(float(rates[column]), 1.0, int(servers[row, 0])).wait_mean
    assert theory.each(theory.erlang_b, 3.0, np.array([4]))["value"] == [theory.erlang_b(3.0, 4)]
    assert theory.each(theory.mm1, 0.5, 1.0)["wait_mean"] == theory.mm1(0.5, 1.0).wait_mean
    arrivals = np.array([[-2.0, 1.0], [1.0, -3.0]]), np.array([[1.0, 0.0], [0.0, 2.0]])  # matrices are one argument
    law = theory.phase_type([1.0], [[0.0]], [2.0])
    wait = theory.each(theory.map_phc, *arrivals, law, np.array([2, 3]))["wait_mean"]
    assert wait.tolist() == [theory.map_phc(*arrivals, law, servers).wait_mean for servers in (2, 3)]
    with pytest.raises(UsageError, match=r"arrays must broadcast; got the shapes rate \(4,\), servers \(3,\)"):
        theory.each(theory.mmc, rates, 1.0, np.array([20, 21, 22]))
    with pytest.raises(UsageError):
        theory.each(theory.mmc, np.array([1.0, 99.0]), 1.0, 4)


@pytest.mark.slow
def test_birth_death_and_stationary_agree_with_a_direct_solution():
    births, deaths = [3.0, 1.0, 0.5, 2.0], [1.0, 2.0, 4.0, 0.3]
    rates = np.diag(births, 1) + np.diag(deaths, -1)
    assert theory.birth_death(births, deaths) == close(solved(rates), rel=1e-10)
    assert theory.stationary(rates) == close(solved(rates), rel=1e-10)
    dense = np.array([[0, 2.0, 1.0], [0.5, 0, 3.0], [1.5, 0.1, 0]])
    assert theory.stationary(dense) == close(solved(dense), rel=1e-10)
    assert theory.birth_death([1.0, 0.0, 5.0], [1.0, 1.0, 1.0]).tolist() == [0.5, 0.5, 0.0, 0.0]
    wide = theory.birth_death(np.full(100_000, 50_000.0), np.arange(1.0, 100_001))
    assert wide == close(stats.poisson.pmf(np.arange(100_001), 50_000), rel=1e-8, abs=1e-300)


def exact_b(load: Fraction, servers: int) -> Fraction:
    terms = [Fraction(1)]
    for server in range(1, servers + 1):
        terms.append(terms[-1] * load / server)
    return terms[-1] / sum(terms)


@pytest.mark.parametrize(("load", "servers"), [(Fraction(1, 3), 1), (Fraction(4), 5), (Fraction(30), 20), (20, 60)])
def test_erlang_b_is_the_ratio_of_its_definition(load: Fraction, servers: int):
    assert theory.erlang_b(float(load), servers) == close(float(exact_b(Fraction(load), servers)), rel=1e-13)


def test_erlang_b_of_published_tables():
    """Loads at a loss of 1 % from the usual tables of telephony: 5 trunks 1.361 E, 10 4.461 E, 100 84.064 E."""
    for servers, load in ((5, 1.361), (10, 4.461), (100, 84.064)):
        assert theory.load_for_loss(servers, 0.01) == close(load, abs=6e-4)
    assert theory.erlang_b(2, 0) == 1.0


def test_erlang_inverses_invert():
    for servers in (1, 7, 160, 10_000):
        for share in (1e-6, 0.01, 0.3, 0.9):
            assert theory.erlang_b(theory.load_for_loss(servers, share), servers) == close(share, rel=1e-9)
            load = theory.load_for_delay(servers, share)
            assert load < servers
            assert theory.erlang_c(load, servers) == close(share, rel=1e-8)
    for load in (0.4, 13.7, 812.0):
        for share in (0.3, 0.01):
            lossy = theory.servers_for_loss(load, share)
            assert theory.erlang_b(load, lossy) <= share < theory.erlang_b(load, lossy - 1)
            few = theory.servers_for_delay(load, share)
            assert theory.erlang_c(load, few) <= share
            assert few - 1 <= load or theory.erlang_c(load, few - 1) > share
    enough = theory.servers_for_wait(13.7, 1.0, 0.2)
    assert enough == 16
    served = theory.servers_for_wait(0.2, 180.0, 20.0, share=0.8)  # calls of 3 min, 80 % within 20 s
    assert theory.mmc(0.2, 180.0, served).wait_tail(20.0) <= 0.2 < theory.mmc(0.2, 180.0, served - 1).wait_tail(20.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.erlang_b(9900, 10_000),
        lambda: theory.erlang_c(9900, 10_000),
        lambda: theory.servers_for_loss(9900, 0.01),
        lambda: theory.servers_for_delay(9900, 0.1),
        lambda: theory.servers_for_wait(9900, 1, 0.001),
        lambda: theory.load_for_loss(10_000, 0.01),
        lambda: theory.load_for_delay(10_000, 0.2),
        lambda: theory.mmc(9900, 1, 10_000),
        lambda: theory.mmck(9900, 1, 10_000, 11_000),
        lambda: theory.mmc_abandonment(10_100, 1, 10_000, 2),
    ],
)
def test_ten_thousand_servers_cost_a_few_lines_a_server(call: Any):
    call()  # imports
    assert lines_run(call) < 100_000


def test_ten_thousand_servers_are_right():
    """Against Poisson probabilities with 1e-11 of their own, and the chain against the recursion."""
    poisson = stats.poisson(9900)
    assert theory.erlang_b(9900, 10_000) == close(poisson.pmf(10_000) / poisson.cdf(10_000), rel=1e-9)
    big = theory.mmck(9900, 1, 10_000, 13_000)  # a room never filled
    free = theory.mmc(9900, 1, 10_000)
    assert big.wait_mean == close(free.wait_mean, rel=1e-9)
    assert theory.mmck(9900, 1, 10_000, 10_000).loss == close(theory.erlang_b(9900, 10_000), rel=1e-10)
    impatient = theory.mmc_abandonment(9900, 1, 10_000, 1e7)
    assert impatient.wait_mean == close(free.wait_mean, rel=1e-3)


# Markov queues ---------------------------------------------------------------------------------------------------


def test_mm1_is_mmc_of_one():
    found = theory.mm1(0.7, 1)
    assert found == theory.mmc(0.7, 1, 1)
    assert found.wait_mean == close(0.7 / 0.3)
    assert found.response_percentile(0.95) == close(math.log(20) / 0.3)
    assert found.wait_percentile(0.2) == 0.0  # 30 % do not wait


@pytest.mark.parametrize(("rate", "servers"), [(0.5, 1), (3.0, 4), (2.0, 3), (13.7, 16), (0.01, 8)])
def test_mmc_against_the_chain_and_its_own_tails(rate: float, servers: int):
    """(2, 3) has a = c - 1, where the two exponents of the response meet."""
    found = theory.mmc(rate, 1, servers)
    most = 4_000
    chance = theory.birth_death([rate] * most, [min(k, servers) for k in range(1, most + 1)])
    assert found.jobs_in_system_mean == close(float(chance @ np.arange(most + 1)), rel=1e-9)
    assert found.delayed == close(float(chance[servers:].sum()), rel=1e-9)
    assert mean_of(found.wait_tail, 200) == close(found.wait_mean, rel=1e-7)
    assert mean_of(found.response_tail, 200) == close(found.response_mean, rel=1e-7)
    assert found.response_tail(0) == 1
    near = theory.mmc(rate + 1e-7, 1, servers)
    assert near.response_tail(1.3) == close(found.response_tail(1.3), rel=1e-5)


@pytest.mark.parametrize(("rate", "servers", "room"), [(2.7, 3, 6), (0.9, 1, 4), (7.0, 2, 2), (1.0, 1, 9)])
def test_mmck_by_its_chain(rate: float, servers: int, room: int):
    found = theory.mmck(rate, 1, servers, room)
    chain = np.zeros((room + 1, room + 1))
    for k in range(room):
        chain[k, k + 1], chain[k + 1, k] = rate, min(k + 1, servers)
    chance = solved(chain)
    assert found.loss == close(chance[-1], rel=1e-8)
    assert found.response_mean == close(chance @ np.arange(room + 1) / (rate * (1 - chance[-1])), rel=1e-8)
    assert found.response_mean == close(found.wait_mean + 1)
    assert mean_of(found.wait_tail, 100) == close(found.wait_mean, rel=1e-6, abs=1e-12)
    assert theory.mmck(rate, 1, servers, servers).loss == close(theory.erlang_b(rate, servers))


def test_abandonment_by_its_chain_and_by_following_one_customer():
    rate, servers, patience = 4.5, 4, 2.0
    found = theory.mmc_abandonment(rate, 1, servers, patience)
    size = 80
    chain = np.zeros((size, size))
    for k in range(size - 1):
        chain[k, k + 1] = rate
        chain[k + 1, k] = min(k + 1, servers) + max(0, k + 1 - servers) / patience
    chance = solved(chain)
    queue = chance @ np.maximum(np.arange(size) - servers, 0)
    assert found.loss == close(queue / patience / rate, rel=1e-8)
    # The wait of who is served: with j ahead, patience must outlast a sum of exponentials, whose steps are the exits.
    total = served = 0.0
    for ahead in range(size - servers):
        steps = servers + np.arange(ahead + 1) / patience  # others leave, one by one
        chain_ = np.diag(-steps[::-1]) + np.diag(steps[::-1][:-1], 1) if ahead else np.array([[-float(servers)]])
        kill = chain_ - np.eye(ahead + 1) / patience
        weight = chance[servers + ahead]
        inverse = np.linalg.inv(-kill)
        out = np.zeros(ahead + 1)
        out[-1] = servers
        served += weight * (inverse @ out)[0]
        total += weight * (inverse @ inverse @ out)[0]
    alone = chance[:servers].sum()
    assert found.wait_mean == close(total / (served + alone), rel=1e-6)
    assert theory.mmc_abandonment(0.7, 1, 1, 1e9).wait_mean == close(theory.mm1(0.7, 1).wait_mean, rel=1e-6)
    assert theory.mmc_abandonment(4, 1, 5, 1e-9).loss == close(theory.erlang_b(4, 5), rel=1e-6)


def test_closed_loop_meets_its_limits():
    assert theory.closed_loop(1, 4, 1).response_mean == close(1)
    many = theory.closed_loop(5_000, 10_000, 1)  # so many clients that arrivals are nearly Poisson of rate 0.5
    assert many.response_mean == close(theory.mm1(0.5, 1).response_mean, rel=2e-3)
    full = theory.closed_loop(50, 1, 1, servers=2)
    assert full.throughput == close(2, rel=1e-9)
    assert full.response_mean == close(50 / full.throughput - 1)


# General service -------------------------------------------------------------------------------------------------


def test_mg1_meets_mm1_and_md1():
    assert theory.mg1(0.8, 1, 1).wait_mean == close(theory.mm1(0.8, 1).wait_mean)
    assert theory.mg1(0.8, 1, 0).wait_mean == close(theory.md1(0.8, 1).wait_mean)
    assert theory.allen_cunneen(0.8, 1, 1, 1, 2.5).wait_mean == close(theory.mg1(0.8, 1, 2.5).wait_mean)
    assert theory.allen_cunneen(3, 1, 4, 1, 1).wait_mean == close(theory.mmc(3, 1, 4).wait_mean)
    assert not theory.allen_cunneen(0.8, 1, 1, 1, 2.5).error  # of M/G/1 no moment above the second matters
    assert theory.allen_cunneen(3, 1, 4, 1, 2).error and theory.allen_cunneen(0.5, 1, 1, 2, 1).error


def erlang_1909(load: Fraction, x: Fraction) -> Fraction:
    """G(x) of M/D/1 by the alternating sum, its exponentials to 60 digits: exact where floats are lost."""
    total = Fraction(0)
    for k in range(math.floor(x) + 1):
        z = load * (x - k)
        total += (-z) ** k / math.factorial(k) * _exp(z)
    return total


def _exp(z: Fraction) -> Fraction:
    whole = math.floor(z)
    fraction = sum(((z - whole) ** n / math.factorial(n) for n in range(45)), Fraction(0))
    base = sum((Fraction(1, math.factorial(n)) for n in range(60)), Fraction(0))
    return base**whole * fraction


@pytest.mark.quick(8)
@pytest.mark.parametrize("load", [Fraction(1, 4), Fraction(9, 10), Fraction(5, 4), Fraction(4)])
@pytest.mark.parametrize("x", [Fraction(n, 8) for n in (0, 4, 8, 17, 320, 322)])
def test_md1_workload_is_erlangs_sum(load: Fraction, x: Fraction):
    found = ConstantJumps(float(load)).below(float(x))
    assert found == close(float(erlang_1909(load, x)), rel=1e-11)


def test_md1_distribution_has_its_mean():
    found = theory.md1(0.45, 2.0)
    assert found.wait_tail(0) == close(0.9)
    assert sum(integrate.quad(found.wait_tail, k, k + 2)[0] for k in range(0, 400, 2)) == close(
        found.wait_mean, rel=1e-7
    )
    assert found.response_tail(1.9) == 1
    assert found.response_percentile(0.95) == close(found.wait_percentile(0.95) + 2.0)


def test_processor_sharing_is_mm1_in_the_mean():
    assert theory.mg1_ps(0.65, 1).response_mean == close(theory.mm1(0.65, 1).response_mean)


def test_gim1_meets_mm1_and_the_textbook():
    """D/M/1 at load 1/2: σ = exp(-2 (1 - σ)) = 0.2032 (Kleinrock)."""
    assert theory.gim1(0.7, 1, lambda s: s / (0.7 + s)).wait_mean == close(theory.mm1(0.7, 1).wait_mean, rel=1e-9)
    assert theory.gim1(0.5, 1, lambda s: -math.expm1(-s / 0.5)).delayed == close(0.2032, abs=5e-5)
    assert theory.gim1(0.9999, 1, lambda s: s / (0.9999 + s)).wait_mean == close(9999, rel=1e-9)


# Priorities ------------------------------------------------------------------------------------------------------


def test_priorities_conserve_work():
    """Kleinrock's conservation law: Σ ρ_k W_k is that of first come, first served, whatever the order of classes."""
    classes = [theory.Class(0.3, 1, 1), theory.Class(0.2, 0.5, 2.25), theory.Class(0.15, 2, 1)]
    rate = sum(one.rate for one in classes)
    mean = sum(one.rate * one.service_mean for one in classes) / rate
    second = sum(one.rate * one.service_mean**2 * (1 + one.service_scv) for one in classes) / rate
    fcfs = theory.mg1(rate, mean, second / mean**2 - 1)
    for order in (classes, classes[::-1], [classes[1], classes[0], classes[2]]):
        found = theory.nonpreemptive(order)
        assert sum(f.load * f.wait_mean for f in found) == close(fcfs.load * fcfs.wait_mean)
    same = [theory.Class(0.3, 1), theory.Class(0.4, 1)]
    for solve in (theory.nonpreemptive, theory.preemptive_resume):
        assert sum(f.jobs_in_system_mean for f in solve(same)) == close(theory.mm1(0.7, 1).jobs_in_system_mean)
    assert theory.preemptive_resume(same)[0].response_mean == close(theory.mm1(0.3, 1).response_mean)


@pytest.mark.slow
def test_priorities_at_several_servers():
    """By the chain of (high, low) in the system for the preemptive; in sum M/M/c for both; one class is M/M/c."""
    classes = [theory.Class(0.8, 1), theory.Class(0.9, 1)]
    cut = 30
    rates = np.zeros((cut * cut, cut * cut))
    for high in range(cut):
        for low in range(cut):
            here = high * cut + low
            if high + 1 < cut:
                rates[here, here + cut] = 0.8
            if low + 1 < cut:
                rates[here, here + 1] = 0.9
            if high:
                rates[here, here - cut] = min(high, 3)
            if low:
                rates[here, here - 1] = min(low, max(0, 3 - high))
    chance = theory.stationary(rates).reshape(cut, cut)
    found = theory.preemptive_resume(classes, servers=3)
    assert found[0].jobs_in_system_mean == close(chance.sum(axis=1) @ np.arange(cut), rel=1e-6)
    assert found[1].jobs_in_system_mean == close(chance.sum(axis=0) @ np.arange(cut), rel=1e-4)
    total = theory.mmc(1.7, 1, 3).jobs_in_system_mean
    assert sum(f.jobs_in_system_mean for f in theory.nonpreemptive(classes, servers=3)) == close(total)
    assert theory.nonpreemptive([(1.7, 1)], servers=3)[0].wait_mean == close(theory.mmc(1.7, 1, 3).wait_mean)
    with pytest.raises(UsageError, match="exact only for exponential services"):
        theory.nonpreemptive([(0.5, 1), (0.5, 2), (0.5, 1)], servers=3)


# Batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(("rate", "most"), [(3.0, 5), (0.7, 1), (1.5, 2), (0.2, 64)])
def test_bulk_service_by_its_chain(rate: float, most: int):
    """States: idle, and busy with n waiting; b = 1 is M/M/1."""
    size = 400
    rates = np.zeros((size + 1, size + 1))
    rates[0, 1] = rate
    for waiting in range(size):
        if waiting + 1 < size:
            rates[1 + waiting, 2 + waiting] = rate
        rates[1 + waiting, 0 if waiting == 0 else 1 + waiting - min(waiting, most)] = 1.0
    chance = theory.stationary(rates)
    found = theory.bulk_service(rate, 1, most)
    assert found.queue_length_mean == close(chance[1:] @ np.arange(size), rel=1e-7, abs=1e-12)
    assert found.queue_length_mean == close(rate * found.wait_mean, rel=1e-9)
    assert found.idle == close(chance[0], rel=1e-7)
    assert mean_of(found.wait_tail, 300) == close(found.wait_mean, rel=1e-6)
    assert mean_of(found.response_tail, 300) == close(found.response_mean, rel=1e-6)
    if most == 1:
        assert found.response_mean == close(theory.mm1(rate, 1).response_mean)
        assert found.response_tail(2.0) == close(theory.mm1(rate, 1).response_tail(2.0))


@pytest.mark.parametrize(("rate", "most"), [(30, None), (30, 8), (5, 3), (45, None), (90 / 7, 1)])
@pytest.mark.slow
def test_greedy_batches_by_playing_them(rate: float, most: int | None):
    """Against a simulation of a few lines, of 200,000 batches with a fixed seed: within 4 standard errors."""
    per_item, fixed = 0.02, 0.05
    found = theory.greedy_batches(rate, per_item, fixed, most)
    rng = np.random.default_rng(5)
    blocks = []
    waiting = 0
    for _ in range(40):
        area = served = waited = 0.0
        for _ in range(5_000):
            size = max(1, waiting if most is None else min(waiting, most))
            length = per_item * size + fixed
            come = rng.poisson(rate * length)
            left = max(0, waiting - size)
            waited += left * length + come * length / 2
            area += size * length
            served += size
            waiting = left + come
        blocks.append(((area + waited) / served, waited / served))
    for column, exact in zip(np.array(blocks).T, (found.response_mean, found.wait_mean), strict=True):
        assert abs(column.mean() - exact) < 4 * column.std(ddof=1) / math.sqrt(len(column))


def test_greedy_batches_meet_their_limits_and_bounds():
    md1 = theory.md1(12, 0.07)
    one = theory.greedy_batches(12, 0.02, 0.05, 1)
    assert one.wait_mean == close(md1.wait_mean, rel=1e-9)
    assert one.utilization == close(md1.utilization, rel=1e-9)
    free, wide = theory.greedy_batches(20, 0.02, 0.05), theory.greedy_batches(20, 0.02, 0.05, 60)
    assert wide.response_mean == close(free.response_mean, rel=1e-9)
    middles = (np.arange(4_000) + 0.5) * 0.0005
    assert 0.0005 * sum(map(free.wait_tail, middles)) == close(free.wait_mean, rel=1e-5)
    assert 0.0005 * sum(map(free.response_tail, middles)) == close(free.response_mean, rel=1e-3)
    for rate in (0.01, 1, 5, 20, 40, 48):
        exact, bounds = theory.greedy_batches(rate, 0.02, 0.05).response_mean, theory.inoue_bounds(rate, 0.02, 0.05)
        assert bounds.lower * (1 - 1e-12) <= exact <= bounds.upper * (1 + 1e-12)
        assert bounds.upper / bounds.lower < 1.25
    high = theory.inoue_bounds(40, 0.02, 0.05).upper  # φ_1 of the paper
    assert high == close(1.5 * 0.05 / 0.2 + 0.01 * 2.8 / (1 - 0.64))


@pytest.mark.slow
def test_greedy_batches_of_a_server_that_is_as_good_as_never_idle():
    """There the equations of the chain are singular but for rounding; the bounds are less than 1e-6 apart."""
    per_item, fixed = 0.001378, 0.0132
    for rate in (600, 650, 660, 680):
        exact, bounds = theory.greedy_batches(rate, per_item, fixed), theory.inoue_bounds(rate, per_item, fixed)
        assert bounds.lower * (1 - 1e-12) <= exact.response_mean <= bounds.upper * (1 + 1e-12), rate


# Networks --------------------------------------------------------------------------------------------------------


def test_tandem_and_jackson():
    rate, stages = 5.0, [theory.Station(0.1, 4, "CPU"), theory.Station(0.02, 1, "PCIe"), theory.Station(0.15, 1, "GPU")]
    found = theory.tandem(rate, stages)
    assert found.response_mean == close(theory.mmc(5, 0.1, 4).response_mean + 1 / 45 + 1 / (1 / 0.15 - 5))
    as_network = theory.jackson(stages, [rate, 0, 0], [[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert as_network.response_mean == close(found.response_mean)
    again = theory.jackson([(0.1,)], [2.0], [[0.5]])  # half of all come back: twice the rate
    assert again.stations[0].throughput == close(4.0)
    assert again.response_mean == close(2 * theory.mm1(4, 0.1).response_mean)
    equal = theory.tandem(0.5, [(1.0,), (1.0,)])  # Erlang of two stages
    assert equal.response_tail(3.0) == close(math.exp(-1.5) * 2.5)
    with pytest.raises(UsageError, match="single servers"):
        found.response_percentile(0.95)
    with pytest.raises(UsageError, match="GPU.*no steady state"):
        theory.tandem(7.0, stages)
    with pytest.raises(UsageError, match="customers must be able to leave"):
        theory.jackson([(0.1,), (0.1,)], [1, 0], [[0, 1], [1, 0]])


# Admission -------------------------------------------------------------------------------------------------------


def test_trunk_reservation():
    classes = [theory.Stream(3, 1, 0), theory.Stream(2, 1, 1)]
    found = theory.trunk_reservation(5, classes)
    chance = solved(np.diag([5.0, 5, 5, 5, 3], 1) + np.diag([1.0, 2, 3, 4, 5], -1))
    assert found.loss == close((chance[5], chance[4] + chance[5]), rel=1e-8)
    nearly = theory.trunk_reservation(5, [theory.Stream(3, 1, 0), theory.Stream(2, 1 + 1e-9, 1)])  # the other way
    assert nearly.loss == close(found.loss, rel=1e-6)
    free = theory.trunk_reservation(6, [(3, 0.5), (1, 2.0), (0.5, 3.0)])  # without reservation: Erlang B for any
    assert free.loss == close([theory.erlang_b(5, 6)] * 3, rel=1e-9)
    assert theory.trunk_reservation(10_000, [(9000, 1, 0), (2000, 1, 50)]).loss[0] < 1e-3


@pytest.mark.parametrize(("rate", "limit"), [(0.7, 3.0), (1.5, 4.0), (1.0, 2.0), (1.0001, 2.0), (3.0, 0.0)])
def test_workload_limit_by_a_grid(rate: float, limit: float):
    """By level crossing on a grid: f(x) = λ (p0 e^-x + ∫_0^min(x, limit) f(y) e^-(x - y) dy), trapezes."""
    found = theory.workload_limit(rate, 1, limit)
    if limit == 0:
        assert found.loss == close(theory.erlang_b(rate, 1))
        return
    step, f = limit / 4000, []
    held = 0.0  # ∫ f(y) e^-(x - y)
    for n in range(4001):
        x = n * step
        if n:
            decay = math.exp(-step)
            value = rate * (math.exp(-x) + held * decay + step / 2 * f[-1] * decay) / (1 - rate * step / 2)
            held = held * decay + step / 2 * (f[-1] * decay + value)
        else:
            value = rate
        f.append(value)
    inside = step * (sum(f) - (f[0] + f[-1]) / 2)
    beyond = f[-1]
    first = step * sum(k * step * v for k, v in enumerate(f)) - step / 2 * limit * f[-1]
    total = 1 + inside + beyond
    assert found.loss == close(beyond / total, rel=1e-4)
    assert found.wait_mean == close(first / (1 + inside), rel=1e-4)
    assert mean_of(found.wait_tail, limit) == close(found.wait_mean, rel=1e-6)
    assert mean_of(found.response_tail, limit) + mean_of(lambda t: found.response_tail(limit + t), 60) == close(
        found.response_mean, rel=1e-6
    )
    assert theory.workload_limit(0.7, 1, 500).wait_mean == close(theory.mm1(0.7, 1).wait_mean)


def test_token_bucket_is_md1b():
    """Depth 1: ρ / (1 + ρ).  Whole depths: M/D/1/b by its chain at departures.  Any depth: by playing it."""
    assert theory.token_bucket(2, 1, 1) == close(2 / 3)
    for rate in (0.5, 1.0, 1.7):
        depth = 4
        arrivals = stats.poisson(rate)
        rows = np.zeros((depth, depth))
        for left in range(depth):
            start = max(left, 1) - 1
            for come in range(depth - start):
                rows[left, min(start + come, depth - 1)] += arrivals.pmf(come)
            rows[left, depth - 1] += arrivals.sf(depth - start - 1)
        at_departures = theory.stationary(rows)
        through = 1 / (at_departures[0] + rate)  # Σ of M/G/1/K: loss = 1 - 1 / (π_0 + ρ)
        assert theory.token_bucket(rate, 1, depth) == close(1 - through, rel=1e-9)
    rng = np.random.default_rng(3)
    tokens, lost = 2.5, 0
    for gap in rng.exponential(1 / 1.3, 400_000).tolist():
        tokens = min(2.5, tokens + gap)
        if tokens >= 1:
            tokens -= 1
        else:
            lost += 1
    assert theory.token_bucket(1.3, 1, 2.5) == close(lost / 400_000, rel=0.01)
    assert theory.token_bucket(1.0, 1, 2000) == close(1 / 4000, rel=1e-2)
    assert theory.token_bucket(900, 1, 7) == close(1 - 1 / 900)
    assert theory.token_bucket(0.3, 1, 500) == 0


# Naor and staffing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "ratio", "thresholds"), [(0.8, 10, (10, 4, 2)), (1.2, 25, (25, 5, 4))])
def test_naors_thresholds(rate: float, ratio: float, thresholds: tuple[int, int, int]):
    found = theory.naor(rate, 1, ratio, 1)
    assert (found.individual, found.social, found.revenue) == thresholds


@pytest.mark.parametrize("rate", [0.3, 0.8, 1.0, 1.0000001, 1.2, 4.0])
@pytest.mark.parametrize("ratio", [1.5, 7.3, 40.0])
def test_naor_by_trying_all(rate: float, ratio: float):
    found = theory.naor(rate, 1, ratio, 1)
    worth, load = Fraction(ratio), Fraction(rate)  # exact: the welfare is nearly flat
    welfare, revenue = [], []
    for n in range(1, math.floor(ratio) + 1):
        powers = [load**k for k in range(n + 1)]
        free = 1 - powers[-1] / sum(powers)
        welfare.append(load * free * worth - sum(k * power for k, power in enumerate(powers)) / sum(powers))
        revenue.append(load * free * (worth - n))
    assert found.social == 1 + welfare.index(max(welfare))
    assert found.revenue == 1 + revenue.index(max(revenue))
    assert found.welfare == close(float(max(welfare)), rel=1e-7)
    assert found.welfare_individual == close(float(welfare[-1]), rel=1e-6)
    assert found.revenue <= found.social <= found.individual
    assert found.social == found.individual or math.floor(ratio - found.toll + 1e-9) == found.social


def test_square_root_staffing():
    """φ(β) = β Φ(β) at half delayed, and the rule is within one server of the truth."""
    half = theory.halfin_whitt(100, 1, 0.5).safety
    assert stats.norm.pdf(half) == close(half * stats.norm.cdf(half), rel=1e-9)
    for load in (4, 100, 9900):
        for delayed in (0.9, 0.5, 0.05):
            found = theory.halfin_whitt(load, 1, delayed)
            assert abs(found.servers - found.exact_servers) <= 1
            assert theory.erlang_c(load, found.exact_servers) <= delayed
            assert found.delayed == close(theory.erlang_c(load, found.servers))


# Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.mmc(5, 1, 4),
        lambda: theory.mm1(1, 1),
        lambda: theory.mg1(1.5, 1, 1),
        lambda: theory.md1(1, 1),
        lambda: theory.mg1_ps(2, 1),
        lambda: theory.gim1(2, 1, lambda s: -math.expm1(-s / 2)),
        lambda: theory.allen_cunneen(4, 1, 4, 1, 1),
        lambda: theory.erlang_c(4, 4),
        lambda: theory.nonpreemptive([(0.5, 1), (0.6, 1)]),
        lambda: theory.preemptive_resume([(0.5, 1), (0.6, 1)]),
        lambda: theory.bulk_service(5, 1, 5),
        lambda: theory.greedy_batches(50, 0.02, 0.05),
        lambda: theory.greedy_batches(30, 0.02, 0.05, 2),
        lambda: theory.inoue_bounds(50, 0.02, 0.05),
        lambda: theory.tandem(1, [(1.0,)]),
    ],
)
def test_unstable_systems_are_told_not_computed(call: Any):
    with pytest.raises(UsageError, match="no steady state.*load.*grows without bound"):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.mm1(-1, 1), "rate must be a number above 0"),
        (lambda: theory.mm1(math.nan, 1), "rate"),
        (lambda: theory.mmc(1, 1, 2.5), "servers must be a whole number"),
        (lambda: theory.mmck(1, 1, 3, 2), "room"),
        (lambda: theory.mg1(0.5, 1, -1), "service scv"),
        (lambda: theory.mg1(0.5, "1 s", 1), "service mean must be a number"),
        (lambda: theory.mg1(0.5, 1, 1).wait_tail(1), "is known, not its distribution"),
        (lambda: theory.mm1(0.5, 1).wait_percentile(95), "between 0 and 1"),
        (lambda: theory.gim1(0.5, 1, lambda s: math.exp(-s / 0.5)), "for arrival gaps of mean 1 / rate"),
        (lambda: theory.servers_for_loss(3, 0), "share between 0 and 1"),
        (lambda: theory.token_bucket(1, 1, 0.5), "at least one token"),
        (lambda: theory.trunk_reservation(3, [(1, 1, 3)]), "must be below the number of servers"),
        (lambda: theory.trunk_reservation(3, []), "at least one class"),
        (lambda: theory.naor(1, 1, 1, 2), "no customer ever joins"),
        (lambda: theory.halfin_whitt(10, 1, 1.5), "delayed"),
        (lambda: theory.birth_death([1], [1, 2]), "births and deaths must have the same length"),
        (lambda: theory.stationary([[0, 1], [0, 0]]), "never leads back"),
        (lambda: theory.workload_limit(1, 1, -1), "the limit must be a number of at least 0"),
        (lambda: theory.greedy_batches(1, 0, 0), "time of a batch"),
        (lambda: theory.mmc_abandonment(1e9, 1, 1, 1e9), "too many to compute; check that the"),
    ],
)
def test_bad_input_is_told(call: Any, said: str):
    with pytest.raises(UsageError, match=said):
        call()


# Scenarios that are models ---------------------------------------------------------------------------------------


def exponential(mean: str = "1 s") -> Part:
    return {"distribution": "exponential", "mean": mean}


def scenario(
    entry: Any, gpus: Part | None = None, policy: Any = "fcfs", nodes: Part | None = None, **more: Any
) -> Part:
    return {
        "name": "model",
        "warmup": "600 s",
        "horizon": "4000 s",
        "replications": 12,
        "cluster": {"nodes": [{"gpus": {"type": "gpu", **(gpus or {})}, **(nodes or {})}]},
        "workload": [{"arrivals": {"process": "poisson", "rate": "0.6/s"}, **part} for part in as_list(entry)],
        "policy": policy,
        **more,
    }


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


ONE = {"gpu_time": exponential()}
URGENT = [
    {"name": "urgent", "priority": 1, "arrivals": {"process": "poisson", "rate": "0.3/s"}, **ONE},
    {"name": "patient", "arrivals": {"process": "poisson", "rate": "0.3/s"}, "gpu_time": "1 s"},
]
BATCHES = {
    "arrivals": {"process": "poisson", "rate": "30/s"},
    "service": {"compute": {"per_item": "20 ms", "fixed": "50 ms"}},
}
SIZES = {"classes": [
    {"class": "short", "weight": 3, "gpu_time": {"distribution": "lognormal", "mean": "0.5 s", "cv": 1}},
    {"class": "long", "gpu_time": {"distribution": "gamma", "mean": "2.5 s", "cv": 0.5}},
]}  # fmt: skip
GAPS = {"arrivals": {"process": "renewal", "rate": "0.6/s", "scv": 4}, **ONE}

MODELS = {
    "M/M/1": scenario(ONE),
    "M/M/4": scenario({**ONE, "arrivals": {"process": "poisson", "rate": "3/s"}}, {"count": 4}),
    "M/D/1": scenario({"gpu_time": "1 s"}),
    "M/G/1": scenario({"gpu_time": {"distribution": "uniform", "low": "0 s", "high": "2 s"}}),
    "GI/M/1": scenario(GAPS),
    "M/M/1/4": scenario({**ONE, "arrivals": {"process": "poisson", "rate": "1.2/s"}},
                        policy={"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 3}}),
    "M/G/2/2": scenario({"gpu_time": {"distribution": "lognormal", "mean": "1 s", "cv": 1},
                         "arrivals": {"process": "poisson", "rate": "2/s"}}, {"count": 2},
                        policy={"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 0}}),
    "M/G/1/1 (Erlang B)": scenario({**ONE, "patience": "1 ns"}),
    "M/M/1+M": scenario({**ONE, "patience": exponential("2 s"), "arrivals": {"process": "poisson", "rate": "1.2/s"}}),
    "M/M/1//6": scenario({**ONE, "arrivals": {"process": "closed", "clients": 6, "think": "5 s"}}),
    "M/G/1-PS": scenario(ONE, {"sharing": "timeslice", "streams": 200}, "processor_sharing"),
    "M/G/1 with non-preemptive priorities": scenario(URGENT, policy="priority"),
    "M/G/1 with preemptive-resume priorities": scenario(URGENT, policy={"name": "priority", "preemptive": True}),
    "tandem of M/M/1: upload → compute": scenario(
        {**ONE, "bytes_in": exponential("0.5 GB")}, {"streams": 200, "pcie": {"upload": "1 GB/s"}}),
    "token bucket with Poisson arrivals (M/D/1/b): loss only": scenario(
        {**ONE, "arrivals": {"process": "poisson", "rate": "2/s"}}, {"count": 8},
        policy={"scheduler": "fcfs", "admission": {"name": "token_bucket", "rate": "1/s", "burst": 3}}),
    "trunk reservation, M/M/c/c of several classes": scenario(
        [{**one, **ONE} for one in URGENT], {"count": 2}, policy={
            "scheduler": "fcfs", "admission": {"name": "trunk_reservation", "reserve": {"patient": 1}}}),
    "M/M/1/4 (Naor, social)": scenario({**ONE, "arrivals": {"process": "poisson", "rate": "0.8/s"}}, policy={
        "scheduler": "fcfs", "admission": {"name": "naor", "reward": 10, "cost": 1, "arrival_rate": "0.8/s",
                                           "service_time": "1 s"}}),
    "M/M/1 with a limit on the work ahead": scenario(
        {**ONE, "arrivals": {"process": "poisson", "rate": "1.5/s"}},
        policy={"scheduler": "fcfs", "admission": {"name": "predicted_wait", "max_wait": "4 s"}}),
    "M/G/1-SRPT": scenario(SIZES, policy="srtf"),
    "M/G/1-SJF": scenario(SIZES, policy="sjf"),
    "M/G/1-LAS with 3 queues": scenario(SIZES, policy={"scheduler": {"name": "las", "thresholds": ["1 s", "0.3 s"]}}),
    "greedy batches, M/D^[1,b]/1 with no largest batch": {
        **scenario(BATCHES, policy="serial_greedy"), "horizon": "200 s", "warmup": "20 s"},
    "greedy batches, M/D^[1,b]/1 with b = 8": {
        **scenario(BATCHES, policy={"batching": {"name": "serial_greedy", "max_batch": 8}}), "horizon": "200 s",
        "warmup": "20 s"},
}  # fmt: skip


@pytest.mark.quick(12)
@pytest.mark.parametrize("model", list(MODELS))
def test_a_scenario_is_its_model(model: str):
    found = match(hs.load(MODELS[model]))
    assert found.model == model
    assert found.verdict == "matches", found.failed
    assert found.rows


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MODELS))
def test_the_engine_covers_its_model(model: str):
    """Every figure that is predicted lies in the 99.9 % interval of 12 replications (with fixed seeds)."""
    from hetsim.queueing.model_check import simulate

    loaded = hs.load(MODELS[model])
    for one in simulate(loaded, match(loaded).rows, confidence=0.999, seed=11):
        assert one.covered, (one.row, str(one.interval))


SHORT = {
    "seed": 7, "horizon": "80 s", "warmup": "30 s",
    "cluster": {"nodes": {"cpus": 16, "gpus": {"type": "a100", "count": 2}}},
    "workload": {"arrivals": {"process": "poisson", "rate": "0.4/s"},
                 "gpu_time": {"distribution": "exponential", "mean": "1 s"}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["response_p95", "wait_mean"])
def test_a_run_of_a_few_tasks_has_no_interval_and_contradicts_nothing(metric: str, tmp_path):
    """Of 20 tasks two that are open at the end make a p95 of +inf; with two tasks some runs have none that waited."""
    few = {"count": 2, **SHORT["workload"]}  # type: ignore[dict-item]
    document = {**SHORT, "workload": few, "warmup": "4 s"} if metric == "wait_mean" else SHORT
    (tmp_path / "few.yaml").write_text(json.dumps({"name": "few", **document}))
    command = ["theory", str(tmp_path / "few.yaml"), "--seed", "7", "--replications", "3"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if line.startswith(metric.replace("_", " ")))
    assert row.endswith("no interval") and "±" not in row
    figures = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)["figures"]
    figure = next(one for one in figures if one["metric"] == metric)
    assert figure["covered"] is None
    assert ("∞: unfinished tasks count as +∞" in done.stdout) == (metric == "response_p95")


def test_replications_without_a_task_in_their_window_are_not_called_free_of_chance():
    document = {"name": "none", **SHORT, "workload": {"count": 1, **SHORT["workload"]}}  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="no task arrived in the window of any replication"):
        hs.replicate(hs.load(document), replications=3).interval("queue_length_mean")


@pytest.mark.parametrize(("wait", "covered"), [(0.0, True), (1.5e-9, None), (0.5, False)])
def test_zeros_contradict_no_wait_that_hardly_any_task_has(wait: float, covered: bool | None):
    """M/M/8 at load 0.05: of 40,000 tasks none waits, while the mean wait is 1.5 ns."""
    never = student_interval([0.0] * 30, metric="wait_mean")
    assert PredictionCheck(PredictedRow("wait_mean", wait), never).covered is covered


def test_an_interval_that_is_none_says_so():
    text = str(student_interval([1.0, math.inf], metric="response_p95"))
    assert text == "response_p95: inf (no interval) (95%, n = 2)"


CHANGED = [
    ({"workload.0.gpu_time": {"distribution": "lognormal", "mean": "1 s", "cv": 2}, "cluster.nodes.0.gpus.count": 2},
     "approximation", None),
    ({"warmup": "1 s"}, "nearly", "warmup"),
    ({"workload.0.bytes_in": "1 GB", "cluster.nodes.0.gpus.pcie": {"upload": "4 GB/s"}}, "matches", None),
    ({"policy": "ljf"}, "none", "policy.scheduler"),
    ({"policy": "sjf", "cluster.nodes.0.gpus.count": 2}, "none", "policy.scheduler"),
    ({"policy": "srtf", "workload.0.gpu_time": "1 s"}, "none", "workload.0.gpu_time"),
    ({"policy": {"scheduler": {"name": "sjf", "discipline": "keep"}}}, "none", "policy.scheduler.discipline"),
    ({"policy": {"scheduler": {"name": "srtf", "margin": "1 s"}}}, "none", "policy.scheduler.margin"),
    ({"policy": "srtf", "workload.0.stopping": {"save": "1 s"}}, "none", "workload.0.stopping"),
    ({"workload.0.cpu_time": {"speedup": 3}, "cluster.nodes.0.cpus": 4}, "none", "workload.0.cpu_time"),
    ({"workload.0.scaling": {"1": 1, "2": 1.9}, "cluster.nodes.0.gpus.count": 2}, "none", "workload.0.scaling"),
    ({"workload.0.arrivals.rate": "1.5/s"}, "none", "workload.0.arrivals.rate"),
    ({"cluster.nodes.0.gpus.streams": 4}, "none", "cluster.nodes.gpus.streams"),
    ({"workload.0.reads": ["weights"], "data": [{"name": "weights", "size": "1 GB"}]}, "none", "workload.0.reads"),
    ({"workload.0.arrivals": {"process": "diurnal", "mean": "0.5/s", "amplitude": 0.5, "period": "1 h"}}, "none",
     "workload.0.arrivals.process"),
    ({"policy": "lcfs"}, "matches", None),
    ({"workload.0.until": "2000 s"}, "approximation", "workload.0.until"),
    ({"cluster.nodes.0.gpus.preemption": {"kind": "flep", "overhead": "5 %"}}, "none",
     "cluster.nodes.0.gpus.preemption.overhead"),
    ({"faults": [{"on": "gpu", "every": "1 h", "repair": "1 min"}]}, "none", "faults.0.every"),
    ({"faults": [{"on": "gpu", "every": "1 h", "repair": "1 min"}], "workload.0.patience": "9 s"}, "none", "faults"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "verdict", "key"), CHANGED)
def test_what_fails_is_named(changes: Part, verdict: str, key: str | None):
    found = match(hs.load(MODELS["M/M/1"], changes))
    assert found.verdict == verdict, found.failed
    assert bool(found.rows) == (verdict != "none")
    if key:
        assert key in [one.key for one in found.failed]


def test_disguised_servers_are_counted():
    """Quarters of 2 GPUs beside 7 cores of which each task holds one: 7 servers."""
    part = {**ONE, "gpus": 0.25, "cpus": 1, "arrivals": {"process": "poisson", "rate": "3/s"}}
    found = match(hs.load(scenario(part, {"count": 2}, nodes={"cpus": 7})))
    assert found.model == "M/M/7"
    figures = {row.metric: row.value for row in found.rows}
    assert figures["gpu_utilization"] == close(3 * 0.25 / 2)


def test_streams_of_different_length_match_nothing():
    two = [{"name": "a", **ONE, "until": "100 s"}, {"name": "b", "gpu_time": "1 s", "arrivals": GAPS["arrivals"]}]
    two[1]["arrivals"] = {"process": "poisson", "rate": "0.2/s"}
    found = match(hs.load(scenario(two)))
    assert found.verdict == "none" and "workload.1.until" in [one.key for one in found.failed]


def test_the_documentation_says_what_comes_out():
    """The Python blocks of docs/theory.md run, and the scenario in it is what is said of it."""
    import re
    from pathlib import Path

    from yaml import safe_load

    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        for line in block.splitlines():
            code, _, said = line.partition("#")
            if said and code.strip().startswith(("theory", "line")) and "[" not in code:
                value = eval(code, names)
                number = re.search(r"[\d.]*\d", said)
                if number:
                    assert value == close(float(number[0]), rel=2e-3), line
            else:
                exec(line, names)
    models = ("fork-join of 2 M/M/1", "tandem of M/M/1: upload → compute")
    for pictured, model in zip(re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL), models, strict=True):
        found = match(hs.load(safe_load(pictured)))
        assert (found.verdict, found.model) == ("matches", model)
    assert set(re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE))
    missing = [name for name in theory.__all__ if name[0].islower() and f"`{name}`" not in text]
    assert not missing


def test_each_model_has_a_small_plot():
    """Of docs/theory_figures.py: a function stands in one heading of its page, above a picture of a few kB."""
    import re
    from pathlib import Path

    page = Path(__file__).parents[2] / "docs" / "background" / "theory-plots.md"
    text = page.read_text(encoding="utf-8")
    headed = [name for line in re.findall(r"^## (.*)", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]
    chains = {"birth_death", "stationary", "each"}
    assert sorted([*headed, *chains]) == [name for name in theory.__all__ if name[0].islower()]
    pictures = [page.parent / name for name in re.findall(r"\]\((theory/.*?)\)", text)]
    assert all(one.stat().st_size < 8_000 for one in pictures) and len(pictures) == text.count("\n## ")
    assert {*pictures} == {*(page.parent / "theory").iterdir()}


# The command -----------------------------------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    from hetsim.cli import main

    return CliRunner().invoke(main, ["theory", *arguments])


@pytest.mark.slow
def test_command_says_matches_and_covers():
    found = command("mm16", "--json", "--replications", "4")
    told = json.loads(found.stdout)
    assert told["model"] == "M/M/16" and told["verdict"] == "matches"
    figures = {one["metric"]: one for one in told["figures"]}
    assert figures["wait_mean"]["predicted"] == close(theory.mmc(13.7, 1, 16).wait_mean)
    assert figures["wait_mean"]["simulated"]["n"] == 4
    assert all(one["holds"] for one in told["assumptions"])


def test_command_in_words():
    shown = command("mm16", "--predict-only")
    assert shown.exit_code == 0 and "every assumption holds" in shown.stdout and "196 ms" in shown.stdout
    unstable = command("mm16", "--set", "cluster.nodes.gpus.count=12")
    assert "grows without bound" in unstable.stdout and "1.142" in unstable.stdout
    other = command("first-steps")
    assert "matches no exact model" in other.stdout and "workload.0.cpu_time" in other.stdout
    near = command("mm16", "--predict-only", "--set", "warmup=0 s")
    assert "nearly" in near.stdout


@pytest.mark.slow
def test_no_shipped_scenario_breaks_the_matching():
    from hetsim.scenario.file.shipped import shipped

    verdicts = {one.name: match(hs.load(one.name)).verdict for one in shipped()}
    assert verdicts["mm16"] == verdicts["time-slices"] == verdicts["thinking-clients"] == "matches"


class OldestFirst(ListScheduler):
    """A scheduler of somebody else's, that says which queueing model it follows."""

    queueing = "order of arrival"

    def __init__(self) -> None:
        super().__init__(order=arrival_order)


class OldestFirstUntold(OldestFirst):
    """The same, which does not say so."""

    queueing = ""


def test_policies_of_others_are_recognized_by_the_model_that_they_declare():
    for name, policy in (("oldest_first", OldestFirst), ("untold", OldestFirstUntold)):
        hs.register(name, policy)
    ours = match(hs.load(MODELS["M/M/1"], {"policy": "fcfs"}))
    theirs = match(hs.load(MODELS["M/M/1"], {"policy": "oldest_first"}))
    assert (theirs.model, theirs.verdict, theirs.rows) == (ours.model, "matches", ours.rows)
    assert match(hs.load(MODELS["M/M/1"], {"policy": "untold"})).verdict == "none"
