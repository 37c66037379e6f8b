"""Formulas of `hetsim.theory` at means that are not 1: what other units change, Little's law, and exact boundaries.

A formula that forgets to multiply or divide by the service time is right for a mean of 1 s.  So every model is asked in
other units of time, where times grow and rates fall by the same factor and everything else stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate

from hetsim import theory
from hetsim.errors import UsageError
from hetsim.theory.general import ConstantJumps
from hetsim.theory.prediction import Prediction, percentile

close = pytest.approx
UNITS = (0.04, 3.7)
"""Seconds of a unit of time; powers of two would hide less rounding, 1 would hide the defects looked for."""

TIMES = {"wait_mean", "response_mean"}
RATES = {"throughput"}

Of = Callable[[float], Prediction]

LOSSLESS: dict[str, tuple[float, Of]] = {
    "M/M/1": (1, lambda s: theory.mm1(0.7 / s, s)),
    "M/M/3": (3, lambda s: theory.mmc(2.2 / s, s, 3)),
    "M/M/3, two equal exponents": (3, lambda s: theory.mmc(2 / s, s, 3)),
    "M/G/1": (1, lambda s: theory.mg1(0.6 / s, s, 2.3)),
    "M/D/1": (1, lambda s: theory.md1(0.6 / s, s)),
    "GI/M/1": (1, lambda s: theory.gim1(0.6 / s, s, lambda x: -math.expm1(-x * s / 0.6))),
    "G/G/3": (3, lambda s: theory.allen_cunneen(2.2 / s, s, 3, 0.7, 2.3)),
    "non-preemptive, first": (1, lambda s: theory.nonpreemptive([(0.3 / s, s, 2.0), (0.2 / s, 2 * s, 0.5)])[0]),
    "preemptive, first": (1, lambda s: theory.preemptive_resume([(0.3 / s, s, 2.0), (0.2 / s, 2 * s, 0.5)])[0]),
    "non-preemptive, three servers": (3, lambda s: theory.nonpreemptive([(0.9 / s, s), (1.1 / s, s)], 3)[1]),
    "preemptive, three servers": (3, lambda s: theory.preemptive_resume([(0.9 / s, s), (1.1 / s, s)], 3)[1]),
    "tandem's first": (2, lambda s: theory.tandem(1.3 / s, [(s, 2), (0.5 * s, 1)]).stations[0]),
}
"""Model in units of s with a mean service of s: servers, and what makes it."""

OTHERS: dict[str, tuple[float, Of]] = {
    "M/M/2/5": (2, lambda s: theory.mmck(2.3 / s, s, 2, 5)),
    "M/M/2+M": (2, lambda s: theory.mmc_abandonment(2.3 / s, s, 2, 1.7 * s)),
    "M/M/2//6": (2, lambda s: theory.closed_loop(6, 1.9 * s, s, 2)),
    "M/G/1-PS": (1, lambda s: theory.mg1_ps(0.6 / s, s)),
    "workload limit, light": (1, lambda s: theory.workload_limit(0.6 / s, s, 2.5 * s)),
    "workload limit, load 1": (1, lambda s: theory.workload_limit(1 / s, s, 2.5 * s)),
    "workload limit, heavy": (1, lambda s: theory.workload_limit(1.4 / s, s, 2.5 * s)),
    "M/M^[4]/1": (4, lambda s: theory.bulk_service(2.7 / s, s, 4)),
    "greedy batches": (math.nan, lambda s: theory.greedy_batches(1.4 / s, 0.4 * s, 0.6 * s)),
    "greedy batches of 3": (math.nan, lambda s: theory.greedy_batches(1.4 / s, 0.4 * s, 0.6 * s, 3)),
}
EVERY = LOSSLESS | OTHERS


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", EVERY)
def test_other_units_of_time_change_times_and_rates_only(name, unit):
    _, of = EVERY[name]
    plain, scaled = of(1.0), of(unit)
    for field in fields(plain):
        one, other = getattr(plain, field.name), getattr(scaled, field.name)
        if not isinstance(one, float):
            continue
        factor = unit if field.name in TIMES else 1 / unit if field.name in RATES else 1.0
        assert other == close(one * factor, rel=1e-9, nan_ok=True), field.name
    assert scaled.has_tails == plain.has_tails
    if plain.wait_above is not None:
        for t in (0.0, 0.3, 1.0, 2.4, 6.5):
            assert scaled.wait_tail(t * unit) == close(plain.wait_tail(t), rel=1e-9, abs=1e-13)
    if plain.response_above is not None:
        for t in (0.0, 0.3, 1.1, 2.4, 6.5):
            assert scaled.response_tail(t * unit) == close(plain.response_tail(t), rel=1e-9, abs=1e-13)
        assert scaled.response_percentile(0.9) == close(plain.response_percentile(0.9) * unit, rel=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_littles_law_and_the_share_of_time_that_a_server_is_busy(name):
    servers, of = EVERY[name]
    found = of(0.37)
    if name != "M/M/2+M":  # where customers that give up wait too
        assert found.jobs_in_system_mean == close(found.throughput * found.response_mean, rel=1e-9)
        assert found.queue_length_mean == close(found.throughput * found.wait_mean, rel=1e-9)
    if name not in ("M/G/1-PS", "M/M^[4]/1") and not name.startswith("greedy"):
        assert found.response_mean == close(found.wait_mean + 0.37)
        assert found.utilization == close(found.throughput * 0.37 / servers, rel=1e-9)
    if name in LOSSLESS:
        assert found.loss == 0.0
        assert found.load == close(found.utilization)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", [name for name, (_, of) in EVERY.items() if of(1.0).has_tails])
def test_tails_integrate_to_their_means_and_begin_where_they_should(name):
    """E[W] = ∫ P(W > t) dt, P(W > 0) = `delayed`, and a response is longer than 0 always."""
    _, of = EVERY[name]
    found = of(0.37)
    steps = np.linspace(0, 30, 201)

    def mean(tail):
        return sum(integrate.quad(tail, a, b)[0] for a, b in zip(steps, steps[1:], strict=False))

    if not name.startswith("greedy"):  # whose tails have many corners
        assert mean(found.wait_tail) == close(found.wait_mean, rel=1e-5)
        assert mean(found.response_tail) == close(found.response_mean, rel=1e-5)
    assert found.wait_tail(0.0) == close(found.delayed)
    assert found.response_tail(0.0) == close(1.0)
    assert found.wait_tail(-1.0) == found.response_tail(-1.0) == 1.0


def test_the_second_class_at_one_server_by_hand():
    """σ_1 = 0.3, σ_2 = 0.7; λ E[S²] / 2 is 0.3 · 3 / 2 = 0.45 and 0.2 · 4 · 1.5 / 2 = 0.6, together 1.05."""
    classes = [(0.3, 1.0, 2.0), (0.2, 2.0, 0.5)]
    first, second = theory.nonpreemptive(classes)
    assert first.wait_mean == close(1.05 / 0.7)
    assert second.wait_mean == close(1.05 / (0.7 * 0.3))
    first, second = theory.preemptive_resume(classes)
    assert first.response_mean == close(1 + 0.45 / 0.7)
    assert second.response_mean == close(2 / 0.7 + 1.05 / (0.7 * 0.3))
    assert second.wait_mean == close(second.response_mean - 2)


def test_classes_at_several_servers_by_their_sums():
    """Of three classes of one service the first k together are an M/M/3, whatever the order among them."""
    mean, classes = 0.4, [(1.5, 0.4), (2.0, 0.4), (2.5, 0.4)]
    inside = 0.0
    for k, one in enumerate(theory.preemptive_resume(classes, 3), 1):
        inside += one.jobs_in_system_mean
        assert inside == close(theory.mmc(sum(rate for rate, _ in classes[:k]), mean, 3).jobs_in_system_mean)
        assert one.model == f"M/M/3 preemptive-resume, class {k}"
    whole = theory.mmc(6.0, mean, 3)
    waits = [one.wait_mean for one in theory.nonpreemptive(classes, 3)]
    left = whole.delayed * mean / 3  # what an arrival finds left to do, a server
    loads = [rate * mean / 3 for rate, _ in classes]
    assert waits == close([
        left / (1 - loads[0]),
        left / (1 - loads[0]) / (1 - loads[0] - loads[1]),
        left / (1 - loads[0] - loads[1]) / (1 - sum(loads)),
    ])  # fmt: skip
    assert sum(rate * wait for (rate, _), wait in zip(classes, waits, strict=True)) == close(whole.queue_length_mean)
    assert theory.nonpreemptive(classes, 3)[2].model == "M/M/3 non-preemptive, class 3"


@pytest.mark.parametrize("classes", [
    [(0.5, 1), (0.5, 2), (0.5, 1)], [(0.5, 1, 2), (0.5, 1)], [(0.5, 1), (0.5, 1, 0.5)]])
@pytest.mark.parametrize("solve", [theory.nonpreemptive, theory.preemptive_resume])
def test_several_servers_need_one_exponential_service(solve, classes):
    with pytest.raises(UsageError, match="exact only for exponential services"):
        solve(classes, servers=3)
    assert len(solve([(rate / 3, *rest) for rate, *rest in classes], servers=1)) == len(classes)
    with pytest.raises(UsageError, match="class 2, with all above it, has no steady state"):
        solve([(1.0, 1.0), (2.0, 1.0)], servers=3)


# Erlang ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_servers_for_a_wait_in_other_units(unit):
    for longest in (0.02, 0.2, 1.0):
        assert theory.servers_for_wait(13.7 / unit, unit, longest * unit) == theory.servers_for_wait(13.7, 1.0, longest)
        few = theory.servers_for_wait(13.7 / unit, unit, longest * unit, share=0.9)
        assert few == theory.servers_for_wait(13.7, 1.0, longest, share=0.9)


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0, 13.7])
def test_servers_for_a_wait_are_the_fewest(load):
    mean, longest = 0.4, 0.05
    found = theory.servers_for_wait(load / mean, mean, longest)
    assert theory.mmc(load / mean, mean, found).wait_mean <= longest
    assert found - 1 <= load or theory.mmc(load / mean, mean, found - 1).wait_mean > longest
    served = theory.servers_for_wait(load / mean, mean, longest, share=0.9)
    assert theory.mmc(load / mean, mean, served).wait_tail(longest) <= 0.1
    assert served - 1 <= load or theory.mmc(load / mean, mean, served - 1).wait_tail(longest) > 0.1
    at_once = theory.servers_for_wait(load / mean, mean, 0, share=0.9)  # none of them waits
    assert at_once == theory.servers_for_delay(load, 0.1)


def test_erlangs_inverses_at_the_very_share():
    """M/M/1: B = a / (1 + a) and C = a.  A share that is met exactly is met."""
    assert theory.load_for_loss(1, 0.2) == close(0.25, rel=1e-12)
    assert theory.load_for_delay(1, 0.2) == close(0.2, rel=1e-12)
    assert theory.servers_for_loss(1.0, 0.5) == 1
    assert theory.servers_for_delay(0.5, 0.5) == 1
    assert theory.servers_for_wait(0.5, 1.0, 1.0) == 1  # E[W] = a / (1 - a)
    assert theory.servers_for_wait(1.0, 0.5, 0.0, share=0.5) == 1
    assert theory.erlang_b(0.5, 0) == 1.0
    assert theory.erlang_b(2.0, 1) == close(2 / 3)
    for share in (1e-4, 0.999):
        for servers in (1, 3, 200):
            assert theory.erlang_b(theory.load_for_loss(servers, share), servers) == close(share, rel=1e-11)
            assert theory.erlang_c(theory.load_for_delay(servers, share), servers) == close(share, rel=1e-10)


def test_too_many_servers_are_not_counted_for_ever(monkeypatch):
    monkeypatch.setattr("hetsim.theory.erlang.MAX_SERVERS", 50)
    assert theory.servers_for_loss(38.0, theory.erlang_b(38.0, 50)) == 50
    with pytest.raises(UsageError, match="more than 50 servers are needed; check that rate and service_mean are in"):
        theory.servers_for_loss(38.0, theory.erlang_b(38.0, 51))
    with pytest.raises(UsageError, match="more than 50 servers are needed; check that rate and service_mean are in"):
        theory.servers_for_delay(60.0, 0.01)


# Queues ---------------------------------------------------------------------------------------------------------------


def test_a_room_and_a_load_of_many_sizes_by_weights():
    """M/M/c/K from its weights a^k / Π min(i, c), for a mean of 0.4 s; found by an arrival: the first K of them."""
    mean = 0.4
    for rate, servers, room in ((1.5, 1, 1), (1.5, 2, 3), (12.0, 3, 4), (40.0, 2, 7)):
        weights = [1.0]
        for k in range(1, room + 1):
            weights.append(weights[-1] * rate * mean / min(k, servers))
        chance = np.array(weights) / sum(weights)
        found = theory.mmck(rate, mean, servers, room)
        queue = sum(p * max(0, k - servers) for k, p in enumerate(chance))
        assert found.model == f"M/M/{servers}/{room}"
        assert found.load == close(rate * mean / servers)
        assert found.loss == close(chance[-1])
        assert found.throughput == close(rate * (1 - chance[-1]))
        assert found.queue_length_mean == close(queue, abs=1e-15)
        assert found.delayed == close(chance[servers:-1].sum() / (1 - chance[-1]), abs=1e-15)
        if room > servers:
            assert found.wait_tail(0.7) == close(
                sum(
                    chance[servers + j] / (1 - chance[-1]) * erlang_tail(j + 1, servers / mean * 0.7)
                    for j in range(room - servers)
                )
            )


def erlang_tail(stages, x):
    """P(Erlang > t) with x = rate · t."""
    return math.exp(-x) * sum(x**i / math.factorial(i) for i in range(stages))


def test_a_closed_loop_by_weights():
    """Machine repair: weights Π (N - i) / z / (min(i + 1, c) μ)."""
    clients, think, mean, servers = 5, 1.3, 0.4, 2
    weights = [1.0]
    for k in range(clients):
        weights.append(weights[-1] * (clients - k) / think / (min(k + 1, servers) / mean))
    chance = np.array(weights) / sum(weights)
    found = theory.closed_loop(clients, think, mean, servers)
    busy = sum(p * min(k, servers) for k, p in enumerate(chance))
    assert found.throughput == close(busy / mean)
    assert found.utilization == close(busy / servers)
    assert found.jobs_in_system_mean == close(sum(k * p for k, p in enumerate(chance)))
    assert found.response_mean == close(clients / found.throughput - think)
    assert found.wait_mean == close(found.response_mean - mean)
    assert found.load == close(clients * mean / (think + mean) / servers)
    assert found.model == "M/M/2//5"


def test_abandonment_by_weights():
    """Erlang A: what comes in goes out served or gives up; the queue is the rate of giving up times the patience."""
    rate, mean, servers, patience = 6.0, 0.4, 2, 0.7
    weights = [1.0]
    for k in range(1, 120):
        weights.append(weights[-1] * rate / (min(k, servers) / mean + max(0, k - servers) / patience))
    chance = np.array(weights) / sum(weights)
    found = theory.mmc_abandonment(rate, mean, servers, patience)
    busy = sum(p * min(k, servers) for k, p in enumerate(chance))
    queue = sum(p * max(0, k - servers) for k, p in enumerate(chance))
    assert found.queue_length_mean == close(queue)
    assert found.loss == close(queue / patience / rate)
    assert found.throughput == close(busy / mean)
    assert found.throughput == close(rate * (1 - found.loss))
    assert found.utilization == close(busy / servers)
    assert found.jobs_in_system_mean == close(busy + queue)
    assert found.delayed == close(chance[servers:].sum())
    assert found.load == close(rate * mean / servers)
    assert found.response_mean == close(found.wait_mean + mean)


def test_nearly_all_are_lost_and_still_the_others_are_right():
    """M/M/1/2 at a load of 1e15: of those that get in all but one in 1e15 find the server busy."""
    found = theory.mmck(1e15 / 0.4, 0.4, 1, 2)
    assert found.delayed == close(1.0)
    assert found.wait_mean == close(0.4)
    assert found.throughput == close(2.5)


def test_the_response_of_many_servers_by_convolution():
    """P(T > t) = P(S > t) + ∫ P(W > t - s) dP(S ≤ s), below, at and above the load where the two exponents meet."""
    mean = 0.4
    for rate in (0.9, 4.9, 5.0, 5.1, 7.4):
        found = theory.mmc(rate, mean, 3)
        for t in (0.1, 0.6, 2.5):
            later = integrate.quad(lambda s: found.wait_tail(t - s) * math.exp(-s / mean) / mean, 0, t)[0]  # noqa: B023
            assert found.response_tail(t) == close(math.exp(-t / mean) + later, rel=1e-8)


def test_states_that_can_be_followed_end_where_they_are_said_to(monkeypatch):
    monkeypatch.setattr("hetsim.theory.queues.MAX_STATES", 40)
    assert theory.mmck(1, 1, 1, 40).loss > 0
    assert theory.closed_loop(40, 1, 1).throughput > 0
    with pytest.raises(UsageError, match="room must be at most 40"):
        theory.mmck(1, 1, 1, 41)
    with pytest.raises(UsageError, match="clients must be at most 40"):
        theory.closed_loop(41, 1, 1)
    with pytest.raises(UsageError, match="about 41 customers wait before they renege, too many to compute;"):
        theory.mmc_abandonment(42, 1, 1, 1)
    with pytest.raises(UsageError, match="almost no customer reneges at a load of 1 or more: the queue is too long"):
        theory.mmc_abandonment(1, 1, 1, 1e4)


def test_queues_need_a_server_a_client_and_a_room():
    for call in (
        lambda: theory.erlang_c(0.5, 0),
        lambda: theory.mmc(0.5, 1, 0),
        lambda: theory.mmck(0.5, 1, 0, 3),
        lambda: theory.mmck(0.5, 1, 1, 0),
        lambda: theory.mmc_abandonment(0.5, 1, 0, 1),
        lambda: theory.closed_loop(0, 1, 1),
        lambda: theory.closed_loop(1, 1, 1, 0),
        lambda: theory.load_for_loss(0, 0.5),
        lambda: theory.load_for_delay(0, 0.5),
        lambda: theory.allen_cunneen(0.5, 1, 0, 1, 1),
        lambda: theory.nonpreemptive([(0.5, 1)], 0),
        lambda: theory.trunk_reservation(0, [(1, 1, 0)]),
        lambda: theory.bulk_service(0.5, 1, 0),
        lambda: theory.greedy_batches(0.5, 1, 1, 0),
    ):
        with pytest.raises(UsageError, match="must be a whole number of at least 1; got 0"):
            call()


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "1"])
def test_what_must_be_above_zero_is_checked_everywhere(bad):
    for call in (
        lambda x: theory.erlang_b(x, 2),
        lambda x: theory.erlang_c(x, 2),
        lambda x: theory.servers_for_loss(x, 0.1),
        lambda x: theory.servers_for_delay(x, 0.1),
        lambda x: theory.servers_for_wait(x, 1, 1),
        lambda x: theory.servers_for_wait(1, x, 1),
        lambda x: theory.servers_for_wait(1, 1, x),
        lambda x: theory.mmc(x, 1, 2),
        lambda x: theory.mmc(1, x, 2),
        lambda x: theory.mmck(x, 1, 1, 2),
        lambda x: theory.mmck(1, x, 1, 2),
        lambda x: theory.mmc_abandonment(x, 1, 1, 1),
        lambda x: theory.mmc_abandonment(1, x, 1, 1),
        lambda x: theory.mmc_abandonment(1, 1, 1, x),
        lambda x: theory.closed_loop(2, x, 1),
        lambda x: theory.closed_loop(2, 1, x),
        lambda x: theory.mg1(x, 1, 1),
        lambda x: theory.md1(x, 1),
        lambda x: theory.mg1_ps(x, 1),
        lambda x: theory.gim1(x, 1, lambda s: s / (1 + s)),
        lambda x: theory.allen_cunneen(x, 1, 1, 1, 1),
        lambda x: theory.nonpreemptive([(x, 1)]),
        lambda x: theory.preemptive_resume([(0.5, x)]),
        lambda x: theory.tandem(x, [(1,)]),
        lambda x: theory.tandem(0.5, [(x,)]),
        lambda x: theory.trunk_reservation(2, [(x, 1, 0)]),
        lambda x: theory.trunk_reservation(2, [(1, x, 0)]),
        lambda x: theory.workload_limit(x, 1, 1),
        lambda x: theory.workload_limit(1, x, 1),
        lambda x: theory.token_bucket(x, 1, 1),
        lambda x: theory.token_bucket(1, x, 1),
        lambda x: theory.bulk_service(x, 1, 2),
        lambda x: theory.bulk_service(1, x, 2),
        lambda x: theory.greedy_batches(x, 1, 1),
        lambda x: theory.inoue_bounds(x, 1, 1),
        lambda x: theory.naor(x, 1, 9, 1),
        lambda x: theory.naor(1, x, 9, 1),
        lambda x: theory.naor(1, 1, x, 1),
        lambda x: theory.naor(1, 1, 9, x),
        lambda x: theory.halfin_whitt(x, 1, 0.5),
        lambda x: theory.halfin_whitt(1, x, 0.5),
    ):
        with pytest.raises(UsageError, match="must be a number above 0; got "):
            call(bad)


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, "1"])
def test_what_must_not_be_negative_is_checked_everywhere(bad):
    for call in (
        lambda x: theory.mg1(0.5, 1, x),
        lambda x: theory.allen_cunneen(0.5, 1, 1, x, 1),
        lambda x: theory.allen_cunneen(0.5, 1, 1, 1, x),
        lambda x: theory.nonpreemptive([(0.5, 1, x)]),
        lambda x: theory.workload_limit(1, 1, x),
        lambda x: theory.token_bucket(1, 1, x),
        lambda x: theory.greedy_batches(0.1, x, 1),
        lambda x: theory.greedy_batches(0.1, 1, x),
        lambda x: theory.inoue_bounds(0.1, x, 1),
        lambda x: theory.inoue_bounds(0.1, 1, x),
    ):
        with pytest.raises(UsageError, match="must be a number of at least 0; got "):
            call(bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.5, 1.5, math.nan, "half"])
def test_shares_lie_strictly_between_0_and_1(bad):
    for call in (
        lambda x: theory.servers_for_loss(1, x),
        lambda x: theory.servers_for_delay(1, x),
        lambda x: theory.servers_for_wait(1, 1, 1, x),
        lambda x: theory.load_for_loss(1, x),
        lambda x: theory.load_for_delay(1, x),
        lambda x: theory.halfin_whitt(1, 1, x),
    ):
        with pytest.raises(UsageError, match="must be a share between 0 and 1; got "):
            call(bad)
    with pytest.raises((UsageError, TypeError)):
        theory.mm1(0.5, 1).wait_percentile(bad)


@pytest.mark.parametrize("bad", [1.5, math.inf, math.nan, -1, "2"])
def test_counts_are_whole(bad):
    for call in (
        lambda x: theory.erlang_b(0.5, x),
        lambda x: theory.mmc(0.5, 1, x),
        lambda x: theory.trunk_reservation(3, [(1, 1, x)]),
    ):
        with pytest.raises(UsageError, match="must be a whole number of at least "):
            call(bad)


def test_the_longest_wait_may_be_zero_with_a_share_only():
    assert theory.servers_for_wait(1.0, 0.5, 0, share=0.5) == 1
    for bad in (-0.1, math.inf, math.nan):
        with pytest.raises(UsageError, match="the longest wait must be at least 0 s; got"):
            theory.servers_for_wait(1.0, 0.5, bad, share=0.5)


@pytest.mark.parametrize("load", [1.0, 1.01, 1.99])
def test_one_server_is_not_enough_for_a_load_of_one(load):
    for call in (
        lambda rate: theory.mm1(rate, 0.5),
        lambda rate: theory.mg1(rate, 0.5, 0.3),
        lambda rate: theory.md1(rate, 0.5),
        lambda rate: theory.mg1_ps(rate, 0.5),
        lambda rate: theory.gim1(rate, 0.5, lambda s: -math.expm1(-s / rate)),
        lambda rate: theory.allen_cunneen(rate, 0.5, 1, 0.3, 0.3),
        lambda rate: theory.nonpreemptive([(rate, 0.5)]),
        lambda rate: theory.tandem(rate, [(0.5,)]),
        lambda rate: theory.bulk_service(rate, 0.5, 1),
        lambda rate: theory.greedy_batches(rate, 0.5, 0.0),
    ):
        with pytest.raises(UsageError, match="no steady state"):
            call(load / 0.5)


def test_what_would_help_an_overloaded_system_is_said():
    with pytest.raises(UsageError, match=r"load of a server is 1\.167, not below 1.*at least 8 servers"):
        theory.mmc(7, 1, 6)
    with pytest.raises(UsageError, match=r"load of a server is 1, .*at least 7 servers"):
        theory.mmc(6, 1, 6)
    with pytest.raises(UsageError, match=r"at least 3 servers"):
        theory.mm1(2.5, 1)
    with pytest.raises(UsageError, match="use a lower rate or a limit on admission$") as said:
        theory.mm1(1e6, 1)
    assert "servers" not in str(said.value)
    assert "at least 1000000 servers" in str(pytest.raises(UsageError, theory.mm1, 1e6 - 0.5, 1).value)
    assert "at least 2000001 servers" in str(pytest.raises(UsageError, theory.mmc, 2e6, 1, 2).value)


# Tails and percentiles ------------------------------------------------------------------------------------------------


def test_a_percentile_is_where_the_tail_falls_to_the_rest():
    for scale in (1e-3, 0.5, 40.0, 0.0):  # a guess of the size, good or not
        assert percentile(lambda t: math.exp(-t / 0.5), 0.95, scale) == close(0.5 * math.log(20), rel=1e-11)
    assert percentile(lambda t: 0.25 * math.exp(-t), 0.75, 1.0) == 0.0  # exactly three quarters are 0
    assert percentile(lambda t: 0.25 * math.exp(-t), 0.76, 1.0) > 0.0
    assert percentile(lambda t: 0.5 if t == 0 else 0.1, 0.8, 1.0) == 0.0  # passed at once


def test_tails_stay_probabilities():
    found = Prediction("odd", 0.5, 0.5, 1, 2, 1, 2, 1, wait_above=lambda t: 1.5 - t, response_above=lambda t: 1.5 - t)
    assert [found.wait_tail(t) for t in (-1, 0, 1, 2)] == [1.0, 1.0, 0.5, 0.0]
    assert [found.response_tail(t) for t in (-1, 0, 1, 2)] == [1.0, 1.0, 0.5, 0.0]


def test_figures_that_are_not_known_are_left_out():
    found = theory.mg1(0.5, 1, 1)
    assert not found.has_tails
    assert "delayed" in found.values()
    unknown = theory.allen_cunneen(1.5, 1, 2, 1, 2)
    assert "delayed" not in unknown.values()
    assert unknown.values()["wait_mean"] == unknown.wait_mean
    one = Prediction("half", 0.5, 0.5, 1, 2, 1, 2, 1, wait_above=lambda t: 0.0)
    assert not one.has_tails
    with pytest.raises(UsageError, match="half: only the mean response is known, not its distribution"):
        one.response_tail(1)


def test_whole_counts_may_be_floats():
    """As they come from a table: 3.0 is as whole as 3."""
    for call in (
        lambda c: theory.erlang_b(2, c),
        lambda c: theory.mmc(2, 1, c).wait_mean,
        lambda c: theory.mmck(2, 1, c, 2 * c).loss,
        lambda c: theory.mmc_abandonment(2, 1, c, 1.5).loss,
        lambda c: theory.closed_loop(2 * c, 1, 1, c).throughput,
        lambda c: theory.trunk_reservation(c, [(1, 1, c - 1)]).loss,
        lambda c: theory.trunk_reservation(c, [(1, 1, c - 1), (1, 2, 0)]).loss,
        lambda c: theory.bulk_service(1, 1, c).wait_mean,
        lambda c: theory.greedy_batches(1, 0.2, 0.2, c).wait_mean,
        lambda c: theory.load_for_loss(c, 0.1),
        lambda c: theory.load_for_delay(c, 0.1),
        lambda c: theory.tandem(1, [(0.5, c)]).response_mean,
    ):
        assert call(3.0) == call(np.float64(3)) == call(np.int32(3)) == call(3)


def test_numbers_of_other_kinds_are_numbers():
    plain = theory.mmck(0.5, 2.0, 2, 4)
    assert theory.mmck(Fraction(1, 2), np.float32(2.0), 2, 4).loss == close(plain.loss)
    assert theory.mm1(np.float32(0.5), 1).wait_tail(np.int64(2)) == close(theory.mm1(0.5, 1).wait_tail(2))


def test_which_general_queues_are_exact():
    exact = {(scv, service, servers): not theory.allen_cunneen(0.5, 1, servers, scv, service).error
             for scv in (0.5, 1) for service in (0, 1, 2.5) for servers in (1, 2)}  # fmt: skip
    assert exact == {key: key[0] == 1 and key[2] == 1 for key in exact}  # an scv of 1 is not exponential yet


def test_gaps_whose_mean_is_not_that_of_the_rate_are_noticed():
    """Gaps with a mean of 0.9 s for a service of 1 s: the queue they make has no steady state."""
    with pytest.raises(UsageError, match="for arrival gaps of mean 1 / rate"):
        theory.gim1(0.5, 1, lambda s: 0.9 * s / (1 + 0.9 * s))


# Constant service -----------------------------------------------------------------------------------------------------


def test_the_workload_of_constant_service_at_its_corners():
    """G(x) = exp(ρx) on [0, 1], and e^{ρx} - ρ (x - 1) e^{ρ (x - 1)} on [1, 2]."""
    for load in (0.3, 0.9, 2.5):
        jumps = ConstantJumps(load)
        assert jumps.below(-1e-9) == 0.0
        assert jumps.below(0.0) == 1.0
        for x in (0.25, 0.999):
            assert jumps.below(x) == close(math.exp(load * x), rel=1e-12)
        for x in (1.0, 1.5, 1.999):
            wanted = math.exp(load * x) - load * (x - 1) * math.exp(load * (x - 1))
            assert jumps.below(x) == close(wanted, rel=1e-12)
    assert ConstantJumps(0.6).below(400.0) == close(1 / 0.4, rel=1e-12)  # P(V = 0) = 1 - ρ
    assert ConstantJumps(700.0).below(1.5) == ConstantJumps.ENDLESS
    assert ConstantJumps(700.0).below(0.5) == close(math.exp(350))
    assert ConstantJumps(30.0).below(50.0) >= 1e250


@pytest.mark.parametrize(("load", "x"), [("0.25", 5), ("0.5", 10), ("0.75", 14)])
def test_the_wait_of_constant_service_far_out(load, x):
    """1 - (1 - ρ) Σ (-z)^k e^z / k!, z = ρ (x - k), with 80 digits; where P(W > t) is 1e-6 floats have 10 of them."""
    with localcontext() as context:
        context.prec = 80
        rho = Decimal(load)
        below = sum((-rho * (x - k)) ** k * (rho * (x - k)).exp() / math.factorial(k) for k in range(x + 1))
        exact = float(1 - (1 - rho) * below)
    assert 1e-6 < exact < 1e-3
    assert theory.md1(float(load) / 0.3, 0.3).wait_tail(0.3 * x) == close(exact, rel=1e-9)


def test_the_loss_of_a_bucket_at_its_corners():
    """A depth of 1: M/D/1/1, the loss ρ / (1 + ρ).  A depth of 2: 1 - e^ρ / (1 + ρ e^ρ)."""
    for load in (0.3, 1.0, 2.5):
        assert theory.token_bucket(load * 4, 4, 1) == close(load / (1 + load))
        grown = math.exp(load)
        assert theory.token_bucket(load * 4, 4, 2) == close(1 - grown / (1 + load * grown))
        half = math.exp(load / 2)
        assert theory.token_bucket(load * 4, 4, 1.5) == close(1 - half / (1 + load * half))
    assert theory.token_bucket(60.0, 3.0, 40) == close(1 - 1 / 20, rel=1e-9)
    with pytest.raises(UsageError, match="at least one token, or no arrival is"):
        theory.token_bucket(1, 1, 0.999)


# Admission and networks -----------------------------------------------------------------------------------------------


def test_trunk_reservation_by_hand():
    """Two servers, mean 0.5: rates 1.2 and 0.8, the second class leaves one free.  Weights 1, 1, 0.3."""
    found = theory.trunk_reservation(2, [(1.2, 0.5, 0), (0.8, 0.5, 1)])
    weights = np.array([1.0, 2.0 * 0.5, 2.0 * 0.5 * 1.2 * 0.25])
    chance = weights / weights.sum()
    assert found.busy == close(tuple(chance))
    assert found.loss == close((chance[2], chance[1] + chance[2]))
    assert found.throughput == close((1.2 * (1 - chance[2]), 0.8 * chance[0]))
    assert found.utilization == close(chance[1] / 2 + chance[2])
    assert found.utilization * 2 == close(sum(found.throughput) * 0.5)


@pytest.mark.parametrize("reserved", [0, 1, 2])
def test_trunk_reservation_of_two_means_by_its_chain(reserved):
    """Against a chain put together here; and carried load = busy servers."""
    servers, one, two = 3, (1.2, 0.5), (0.9, 1.7)
    states = [(i, j) for i in range(servers + 1) for j in range(servers + 1 - i)]
    index = {state: n for n, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for i, j in states:
        if i + j < servers:
            rates[index[i, j], index[i + 1, j]] = one[0]
        if i + j < servers - reserved:
            rates[index[i, j], index[i, j + 1]] = two[0]
        if i:
            rates[index[i, j], index[i - 1, j]] = i / one[1]
        if j:
            rates[index[i, j], index[i, j - 1]] = j / two[1]
    generator = np.vstack([(rates - np.diag(rates.sum(axis=1))).T, np.ones(len(states))])
    chance = np.linalg.lstsq(generator, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
    busy = [sum(chance[index[s]] for s in states if sum(s) == n) for n in range(servers + 1)]
    found = theory.trunk_reservation(servers, [(*one, 0), (*two, reserved)])
    assert found.busy == close(tuple(busy), rel=1e-9)
    assert found.loss == close((busy[-1], sum(busy[servers - reserved :])), rel=1e-9)
    assert found.utilization * servers == close(found.throughput[0] * one[1] + found.throughput[1] * two[1])


def test_trunk_reservation_has_a_largest_chain(monkeypatch):
    monkeypatch.setattr("hetsim.theory.admission.MAX_STATES", 10)
    assert len(theory.trunk_reservation(3, [(1, 1, 0), (1, 2, 0)]).busy) == 4  # 10 states
    with pytest.raises(UsageError, match="too many states for the exact chain"):
        theory.trunk_reservation(4, [(1, 1, 0), (1, 2, 0)])
    with pytest.raises(UsageError, match="reserved must be below the number of servers"):
        theory.trunk_reservation(3, [(1, 1, 3)])


def test_a_workload_limit_by_integration():
    """The density of the workload is p_0 λ e^{-(μ - λ) x} up to the limit; the masses add up to 1."""
    mean = 0.4
    for rate in (1.3, 2.4999, 2.5, 4.1):
        limit = 1.1
        found = theory.workload_limit(rate, mean, limit)
        inside = integrate.quad(lambda x: rate * math.exp(-(1 / mean - rate) * x), 0, limit)[0]  # noqa: B023
        tail = rate * math.exp(-(1 / mean - rate) * limit) * mean
        empty = 1 / (1 + inside + tail)
        assert found.utilization == close(1 - empty)
        assert found.loss == close(tail * empty)
        moment = integrate.quad(lambda x: x * rate * math.exp(-(1 / mean - rate) * x), 0, limit)[0]  # noqa: B023
        assert found.wait_mean == close(moment / (1 + inside), rel=1e-9)
        assert found.delayed == close(inside / (1 + inside))
        assert found.wait_tail(limit) == 0.0
        assert found.wait_tail(limit * (1 - 1e-6)) > 0.0
        assert found.load == close(rate * mean)
    assert theory.workload_limit(2.0, mean, 0).loss == close(0.8 / 1.8)  # Erlang's B for one server
    with pytest.raises(UsageError, match="at a load above 1 this workload limit is practically infinite; the limit"):
        theory.workload_limit(1e3, 1.0, 1.0)


def test_a_workload_limit_of_a_thousand_services():
    """P(T > t) below the limit: that of M/M/1, e^{-(μ - λ) t} (1 + λ / (μ - λ)), less what the limit cuts off."""
    rate, mean, limit, slope = 900.0, 1e-3, 0.9, 100.0
    found = theory.workload_limit(rate, mean, limit)
    for t in (0.7, 0.8, 0.89):
        above = math.exp(-slope * t) * (1 + rate / slope) - rate / slope * math.exp(-slope * limit)
        accepted = 1 + rate / slope * (1 - math.exp(-slope * limit))
        assert found.response_tail(t) == close(above / accepted, rel=1e-6)
    assert found.response_tail(limit + 5e-3) == close(found.response_tail(limit) * math.exp(-5), rel=1e-6)


def test_a_network_with_feedback_and_two_doors():
    """λ = γ + λP by hand: station 0 gets 1 + 0.25 λ_1, station 1 gets 0.5 + 0.5 λ_0: λ = (1.2857…, 1.1428…)."""
    found = theory.jackson([(0.3,), (0.5, 2)], [1.0, 0.5], [[0, 0.5], [0.25, 0]])
    first, second = 1.125 / 0.875, 1.0 / 0.875
    assert [one.throughput for one in found.stations] == close([first, second])
    inside = theory.mm1(first, 0.3).jobs_in_system_mean + theory.mmc(second, 0.5, 2).jobs_in_system_mean
    assert found.jobs_in_system_mean == close(inside)
    assert found.throughput == close(1.5)
    assert found.response_mean == close(inside / 1.5)
    empty = theory.jackson([(0.3,), (0.5,)], [1.0, 0.0], [[0, 0], [0, 0]]).stations[1]
    assert (empty.load, empty.throughput, empty.wait_mean, empty.response_mean, empty.delayed) == (0, 0, 0, 0.5, 0)
    assert empty.jobs_in_system_mean == empty.queue_length_mean == empty.utilization == 0


def test_a_tandem_of_unequal_single_servers():
    """The sum of exponentials with rates a and b exceeds t with chance (b e^{-at} - a e^{-bt}) / (b - a)."""
    found = theory.tandem(1.5, [(0.4,), (0.2,)])
    a, b = 1 / 0.4 - 1.5, 1 / 0.2 - 1.5
    for t in (0.0, 0.3, 2.0):
        assert found.response_tail(t) == close((b * math.exp(-a * t) - a * math.exp(-b * t)) / (b - a))
    assert found.response_mean == close(1 / a + 1 / b)
    assert found.jobs_in_system_mean == close(1.5 * found.response_mean)
    assert found.response_tail(found.response_percentile(0.9)) == close(0.1)
    assert found.stations[0].model == "station 0: M/M/1"


@pytest.mark.parametrize(
    ("stations", "arrivals", "routing", "said"),
    [
        ([], [], [], "0 stations need 0 rates of arrivals"),
        ([(1,)], [0.1, 0.1], [[0]], "1 stations need 1 rates of arrivals"),
        ([(1,)], [0.1], [[0, 0]], "1 stations need 1 rates of arrivals"),
        ([(1,)], [-0.1], [[0]], "arrival rate"),
        ([(1,), (1,)], [0.0, 0.0], [[0, 0], [0, 0]], "at least one arrival rate must be above 0"),
        ([(1,)], [0.1], [[-0.1]], "the routing from each station must be shares that sum to at most 1"),
        ([(1,), (1,)], [0.1, 0], [[0.6, 0.6], [0, 0]], "the routing from each station must be shares that sum "
                                                       "to at most 1"),
        ([(1,), (1,)], [0.1, 0], [[0, math.nan], [0, 0]], "the routing from each station must be shares that "
                                                          "sum to at most 1"),
        ([(1,), (1,)], [0.1, 0], [[0, 0.5], [-0.1, 0]], "the routing from each station must be shares that sum "
                                                        "to at most 1"),
        ([(1,)], [0.1], [[math.nan]], "the routing from each station must be shares that sum to at most 1"),
        ([(1,)], [0.1], [[1.0]], "customers must be able to leave, but some stations send all customers to"),
        ([(0,)], [0.1], [[0]], "service mean"),
    ],
)
def test_networks_that_are_none(stations, arrivals, routing, said):
    with pytest.raises(UsageError, match=said):
        theory.jackson(stations, arrivals, routing)


def test_a_tandem_of_nothing_is_refused():
    with pytest.raises(UsageError, match="at least one station"):
        theory.tandem(1.0, [])
    with pytest.raises(UsageError, match="at least one class"):
        theory.nonpreemptive([])


# Chains ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("births", "deaths", "said"),
    [
        ([1.0], [1.0, 2.0], "got 1 and 2"),
        ([[1.0]], [[1.0]], "births and deaths must have the same length"),
        ([-1.0], [1.0], "births must be rates"),
        ([1.0], [0.0], "births must be rates"),
        ([math.inf], [1.0], "births must be rates"),
        ([1.0], [math.nan], "births must be rates"),
        ([1e-300], [1e300], "births and deaths differ too much for floating-point numbers"),
        ([1.0, math.inf], [1.0, 1.0], "births must be rates"),
        ([1.0, 1.0], [1.0, math.inf], "births must be rates"),
        ([1.0, -1.0], [1.0, 1.0], "births must be rates"),
        ([1.0, 1.0], [1.0, 0.0], "births must be rates"),
        ([1.0, 1e-300], [1.0, 1e300], "births and deaths differ too much for floating-point numbers"),
        ([1.0, 1e300], [1.0, 1e-300], "births and deaths differ too much for floating-point numbers"),
    ],
)
def test_rates_that_make_no_chain(births, deaths, said):
    with pytest.raises(UsageError, match=said):
        theory.birth_death(births, deaths)


def test_nothing_is_beyond_a_birth_rate_of_zero():
    assert theory.birth_death([3.0, 0.0, 5.0], [1.0, 2.0, 7.0]) == close([0.25, 0.75, 0.0, 0.0])
    assert theory.birth_death([0.0, 2.0], [1.0, 1.0]).tolist() == [1.0, 0.0, 0.0]
    assert theory.birth_death([2.0, 3.0], [4.0, 1.0]) == close([1 / 3, 1 / 6, 1 / 2])


@pytest.mark.parametrize("matrix", [[], [[1.0, 2.0]], [1.0, 2.0]])
def test_a_chain_is_square(matrix):
    with pytest.raises(UsageError, match="square matrix"):
        theory.stationary(matrix)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_chain_has_rates(bad):
    for where in ([[0, bad], [1, 0]], [[0, 1], [bad, 0]]):
        with pytest.raises(UsageError, match="rates and probabilities of a chain must be finite and at least 0"):
            theory.stationary(where)


def test_a_chain_of_one_state_and_its_diagonal():
    assert theory.stationary([[5.0]]).tolist() == [1.0]
    assert theory.stationary([[-7.0, 1.0], [3.0, 99.0]]) == close([0.75, 0.25])


# Prices and staffing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.8, 1.0, 1.2])
def test_naor_in_other_units_of_time_and_money(rate, unit):
    money = 2.7
    plain = theory.naor(rate, 1, 12.3, 1)
    found = theory.naor(rate / unit, unit, 12.3 * money, money / unit)
    assert (found.individual, found.social, found.revenue) == (plain.individual, plain.social, plain.revenue)
    assert found.toll == close(plain.toll * money)
    assert found.welfare == close(plain.welfare * money / unit)
    assert found.welfare_individual == close(plain.welfare_individual * money / unit)


@pytest.mark.parametrize("gap", [Fraction(3, 10_000), Fraction(1, 5_000_000), Fraction(-1, 5_000_000)])
def test_naors_welfare_next_to_a_load_of_one(gap):
    """Where the chances are nearly uniform, against fractions, to nine digits."""
    load, ratio = 1 - gap, 40
    found = theory.naor(float(load) / 0.3, 0.3, ratio * 0.3 * 2.0, 2.0)
    powers = [load**k for k in range(ratio + 1)]
    free = 1 - powers[-1] / sum(powers)
    welfare = load * free * ratio - sum(k * power for k, power in enumerate(powers)) / sum(powers)
    assert found.welfare_individual == close(float(2 * welfare), rel=1e-9)


def test_naor_where_a_service_is_just_worth_it():
    alone = theory.naor(0.5, 2.0, 6.0, 3.0)  # R μ / C = 1
    assert (alone.individual, alone.social, alone.revenue, alone.toll) == (1, 1, 1, 0.0)
    assert alone.welfare == close(0.0, abs=1e-12)  # what is earned is what the only one inside costs
    with pytest.raises(UsageError, match="no customer ever joins: the waiting cost of a service in an empty system"):
        theory.naor(0.5, 2.0, 5.99, 3.0)
    two = theory.naor(0.3, 1.0, 1.9, 1.0)
    assert two.individual == 1


@pytest.mark.parametrize("unit", UNITS)
def test_staffing_depends_on_the_load_alone(unit):
    plain, found = theory.halfin_whitt(40, 1, 0.2), theory.halfin_whitt(40 / unit, unit, 0.2)
    assert (found.servers, found.exact_servers) == (plain.servers, plain.exact_servers)
    assert found.delayed == close(plain.delayed)
    assert found.delayed_limit == 0.2
    assert found.servers == math.ceil(40 + found.safety * math.sqrt(40))


def test_staffing_is_stable_even_for_a_share_of_nearly_all():
    assert theory.halfin_whitt(9, 1, 0.9999).servers == 10
    assert theory.halfin_whitt(0.2, 1, 0.999).servers == 1


# Batches --------------------------------------------------------------------------------------------------------------


def test_the_states_of_greedy_batches_are_doubled_until_nothing_is_left(monkeypatch):
    sizes = []

    def solved(rate, per_item, fixed, max_batch, size):
        sizes.append(size)
        chance = np.zeros(size)
        chance[-1 if len(sizes) < 3 else 0] = 1.0
        return chance

    monkeypatch.setattr("hetsim.theory.batches._solve", solved)
    theory.greedy_batches(1.4, 0.4, 0.6)
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]
    monkeypatch.setattr("hetsim.theory.batches.MAX_DENSE", 3 * sizes[0])
    sizes.clear()
    with pytest.raises(UsageError, match="greedy batches: the load is too near to 1, or batches are too large, "
                                         "for the exact chain;"):
        theory.greedy_batches(1.4, 0.4, 0.6)
    assert len(sizes) == 2
    monkeypatch.setattr("hetsim.theory.batches.MAX_CELLS", 100)
    with pytest.raises(UsageError, match="greedy batches of at most 3: the load is too near to 1, or batches "
                                         "are too large, for the exact chain;"):
        theory.greedy_batches(1.4, 0.4, 0.6, 3)


def test_a_batch_server_that_takes_one_is_mm1():
    found = theory.bulk_service(2.0, 0.3, 1)
    plain = theory.mm1(2.0, 0.3)
    for name in ("wait_mean", "response_mean", "queue_length_mean", "jobs_in_system_mean", "utilization", "delayed"):
        assert getattr(found, name) == close(getattr(plain, name), rel=1e-9), name
    assert found.idle == close(0.4)
    assert found.batch_mean == close(1.0)
    for t in (0.1, 0.8, 3.0):
        assert found.wait_tail(t) == close(plain.wait_tail(t), rel=1e-9)
        assert found.response_tail(t) == close(plain.response_tail(t), rel=1e-9)


@pytest.mark.parametrize("most", [None, 1, 2, 5])
def test_greedy_batches_are_renewals(most):
    """Batches a second × mean size = arrivals a second; busy time = batches a second × mean length."""
    rate, per_item, fixed = 1.4, 0.21, 0.37
    found = theory.greedy_batches(rate, per_item, fixed, most)
    batches = rate / found.batch_mean
    assert found.utilization == close(batches * (per_item * found.batch_mean + fixed), rel=1e-9)
    assert found.idle == close(1 - found.utilization)
    sizes = found.batch_sizes
    assert sizes.sum() == close(1.0)
    assert sizes @ np.arange(len(sizes)) == close(found.batch_mean)
    assert sizes[0] == 0.0
    assert 1 - found.delayed == close(found.idle)  # Poisson arrivals see time averages
    assert found.load == close(rate * per_item if most is None else rate * (per_item + fixed / most))
    second = sizes @ (np.arange(len(sizes)) * (per_item * np.arange(len(sizes)) + fixed)) / found.batch_mean
    assert found.response_mean - found.wait_mean == close(second)


def test_greedy_batches_without_a_fixed_time_hardly_ever_serve_two():
    """At a low rate a batch is one: wait ≈ λ s² / 2, response ≈ s."""
    found = theory.greedy_batches(1e-4, 0.3, 0.4)
    assert found.response_mean == close(0.7, rel=1e-3)
    assert found.batch_mean == close(1.0, rel=1e-3)
    assert found.wait_mean == close(1e-4 * 0.7**2 / 2, rel=1e-3)


@pytest.mark.parametrize("call", [
    lambda most: theory.bulk_service(1.0, most, most),
    lambda most: theory.greedy_batches(most, 0.5, 0.5 * most, most),
    lambda most: theory.greedy_batches(2.0, 0.5, 0.5),
    lambda most: theory.inoue_bounds(2.0, 0.5, 0.5),
])  # fmt: skip
def test_full_batches_that_just_do_not_suffice(call):
    """A load of exactly 1 has no steady state; a little less has."""
    with pytest.raises(UsageError, match="the load is 1 even with full batches"):
        call(1)


def test_bounds_of_inoue_in_other_units():
    for unit in UNITS:
        plain, found = theory.inoue_bounds(1.4, 0.4, 0.6), theory.inoue_bounds(1.4 / unit, 0.4 * unit, 0.6 * unit)
        assert (found.lower, found.upper) == close((plain.lower * unit, plain.upper * unit))
    one = theory.inoue_bounds(0.05, 0.4, 0.6)  # φ_0: E[B] ≥ 1 binds
    moment = (1 + 2 * 0.05 * 0.02 * 0.6 + 0.03**2) / (1 - 0.02**2)
    assert one.upper == close(0.4 * 1.01 * moment + 0.6 * 1.02 + 0.05 * 0.36 / 2)
    batch = (0.05 * 0.6 + math.exp(-0.05)) / 0.98  # E[B] at most, which gives the lower bound where it is above 1
    assert batch > 1
    moment = (1 + 2 * 0.05 * 0.02 * 0.6 + 0.03**2 / batch) / (1 - 0.02**2)
    assert one.lower == close(0.4 * 1.01 * moment + 0.6 * 1.02 + 0.05 * 0.36 / 2 / batch)
