"""The dual approximation against exact optima, its own proof, the published recursion, and bad input."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tiers import some, spread

import hetsim as hs
from benchmarks.dual_as_published import as_published
from benchmarks.hybrid_instances import FAMILIES, instances, optimum
from hetsim.errors import HetsimError, ScenarioError
from hetsim_policies.static import dual_approximation
from hetsim_policies.static.common.bounds import Relaxation, area_bound, by_gain, linear_bound, longest_task, relaxation
from hetsim_policies.static.dual_approximation import (
    RATIO,
    DualApproximation,
    Shelves,
    attempt,
    counting_refuses,
    counts,
    earliest_finish,
    longest_first,
    solve,
    weights,
)

SLACK = 1 + 1e-6
"""What the exact solver may be off."""


def check(schedule, p, q, m, k):
    """It is a schedule: every task once, on a lane that exists, none at the same time on one lane."""
    time = np.where(schedule.on_gpu, q, p)
    assert np.all(np.isfinite(time))
    assert np.all((schedule.lanes >= 0) & (schedule.lanes < np.where(schedule.on_gpu, k, m)))
    for side, lanes in ((False, m), (True, k)):
        for lane in range(lanes):
            here = np.flatnonzero((schedule.on_gpu == side) & (schedule.lanes == lane))
            here = here[np.lexsort((time[here], schedule.starts[here]))]
            ends = schedule.starts[here] + time[here]
            assert np.all(schedule.starts[here][1:] >= ends[:-1] * (1 - 1e-12))
    assert schedule.makespan == pytest.approx(np.max(schedule.starts + time, initial=0.0))


def nothing_fixed(p, q, m, k, guess):
    """Only what the guess itself forces: the program without the relaxation's help."""
    cpu, gpu = q > guess, p > guess
    return Relaxation(cpu, gpu, gpu.copy())


# Against the optimum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", spread(FAMILIES, 1))
def test_makespan_and_bounds_enclose_the_optimum(family):
    """area ≤ linear ≤ dual ≤ optimum ≤ makespan ≤ 4/3·(1 + ε)·optimum, and 1.02 on average."""
    ratios = []
    for p, q, m, k in instances(family, each=some(4, 1)):
        exact = optimum(p, q, m, k)
        found = solve(p, q, m, k, tolerance=1e-3)
        check(found.schedule, p, q, m, k)
        area, linear = area_bound(p, q, m, k), linear_bound(p, q, m, k)
        assert area <= linear * SLACK
        assert linear <= found.bound * SLACK
        assert found.bound <= exact * SLACK
        assert exact <= found.makespan * SLACK
        assert found.makespan <= RATIO * 1.001 * exact * SLACK
        assert found.makespan <= found.ratio * exact * SLACK
        assert found.guarantee == pytest.approx(RATIO * 1.001)
        ratios.append(found.makespan / exact)
    assert np.mean(ratios) <= 1.02


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", spread(FAMILIES, 2))
def test_the_program_alone_keeps_the_ratio(family):
    """No relaxation, no cut: at any guess of at least the optimum the finest program gives 4/3 of the guess."""
    for p, q, m, k in instances(family, each=some(2, 1), most=8, seed=12):
        exact = optimum(p, q, m, k)
        for factor in (1.0, 1.02, 1.3):
            guess = exact * factor * SLACK
            shelves = Shelves(p, q, m, k, guess, nothing_fixed(p, q, m, k, guess))
            on_gpu = shelves.assignment(shelves.units(coarseness=1))
            assert on_gpu is not None
            assert longest_first(p, q, m, k, on_gpu).makespan <= RATIO * guess * SLACK


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", spread(FAMILIES, 2))
def test_no_refusal_at_or_above_the_optimum(family):
    """Neither the relaxation nor the counts nor the program, in units of any size, refuses a possible guess."""
    for p, q, m, k in instances(family, each=some(2, 1), most=8, seed=13):
        guess = optimum(p, q, m, k) * SLACK
        relaxed = relaxation(p, q, m, k, guess)
        assert relaxed is not None
        assert not counting_refuses(p, q, m, k, guess, relaxed)
        assert not counting_refuses(p, q, m, k, guess, nothing_fixed(p, q, m, k, guess))
        shelves = Shelves(p, q, m, k, guess, relaxed)
        assert all(shelves.assignment(units) is not None for units in (1, 2, 7, 64, 500))


def test_a_fixed_task_runs_on_its_side_in_every_schedule_of_the_guess():
    rng = np.random.default_rng(14)
    fixed, rounds = 0, some(40)
    for _ in range(rounds):
        n, m, k = 7, int(rng.integers(1, 4)), int(rng.integers(1, 3))
        p, q = rng.uniform(1, 10, n), rng.uniform(1, 10, n)
        sides = np.array(list(product([False, True], repeat=n)))
        spans = np.array([longest_first(p, q, m, k, on_gpu).makespan for on_gpu in sides])
        guess = float(spans.min()) * 1.03
        possible = sides[spans <= guess]
        relaxed = relaxation(p, q, m, k, guess)
        assert relaxed is not None
        assert not possible[:, relaxed.cpu].any()
        assert possible[:, relaxed.gpu].all()
        fixed += int(relaxed.cpu.sum() + relaxed.gpu.sum())
    assert fixed > rounds


# The program --------------------------------------------------------------------------------------------------


def min_cpu_area(p, q, m, k, guess):
    """By trying all assignments under the published constraints; inf if none keeps them."""
    n, limit = len(p), guess * (1 + 1e-9)
    area = np.floor(q * (3 * n / limit) * (1 - 1e-9))
    least = np.inf
    for sides in product([False, True], repeat=n):
        gpu = np.array(sides)
        if np.any(p[~gpu] > limit) or np.any(q[gpu] > limit) or area[gpu].sum() > 3 * k * n:
            continue
        if weights(p[~gpu], limit).sum() > 2 * m or (k >= 2 and weights(q[gpu], limit).sum() > 2 * k):
            continue
        least = min(least, float(p[~gpu].sum()))
    return least


@pytest.mark.quick(1)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_published_recursion_finds_the_least_cpu_area(k):
    rng = np.random.default_rng(15)
    answers = set()
    for _ in range(25):
        m, n = int(rng.integers(1, 4)), 7
        p, q = rng.uniform(1, 10, n), rng.uniform(1, 10, n)
        guess = linear_bound(p, q, m, k) * rng.uniform(0.9, 1.2)
        least, found = min_cpu_area(p, q, m, k, guess), as_published(p, q, m, k, guess)
        assert (found is not None) == (least <= m * guess * (1 + 1e-9))
        if found is not None:
            assert p[~found.on_gpu].sum() == pytest.approx(least)
        answers.add(found is None)
    assert answers == {True, False}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_collapsed_program_finds_it_too(k):
    """Joined axes lose nothing: with all tasks free the two answer alike, in the same units."""
    rng = np.random.default_rng(24)
    answers = set()
    for _ in range(40):
        m, n = int(rng.integers(1, 4)), 8
        p, q = rng.uniform(1, 10, n), rng.uniform(1, 10, n)
        guess = max(10.0, linear_bound(p, q, m, k)) * rng.uniform(1.0, 1.05)
        p, q = p * 10 * rng.uniform(0.3, 1) / p.max(), q * 10 * rng.uniform(0.3, 1) / q.max()
        published = as_published(p, q, m, k, guess)
        collapsed = Shelves(p, q, m, k, guess, nothing_fixed(p, q, m, k, guess)).assignment(3 * k * n)
        assert (published is None) == (collapsed is None)
        if published is not None:
            assert p[~published.on_gpu].sum() == pytest.approx(p[~collapsed].sum())
        answers.add(published is None)
    assert False in answers


@pytest.mark.parametrize("s", [1, 2, 3, 6])
def test_counts_sum_to_one_at_most_on_a_device(s):
    rng = np.random.default_rng(17)
    for parts in [*rng.dirichlet(np.full(6, 0.5), 200), np.full(2, 1 / 2), np.full(3, 1 / 3), np.full(7, 1 / 7)]:
        assert counts(parts, s).sum() <= 1 + 1e-12
    assert counts(np.array([0.4, 0.4, 0.4]), 2).sum() > 1.2


def test_counts_refuse_what_areas_do_not():
    """Five tasks of 0.6 on two CPUs and two GPUs: an area of 3.0 in 4 devices, but no two share a device."""
    time = np.full(5, 0.6)
    relaxed = relaxation(time, time, 2, 2, 1.0)
    assert relaxed is not None
    assert counting_refuses(time, time, 2, 2, 1.0, relaxed)
    assert solve(time, time, 2, 2).bound == pytest.approx(1.2, rel=1e-2)


def test_a_coarser_ratio_is_kept_and_never_finer_units_than_it_needs():
    rng = np.random.default_rng(18)
    p, q = rng.uniform(1, 10, 30), rng.uniform(1, 10, 30)
    for ratio in (RATIO, 1.5, 2.0):
        found = solve(p, q, 4, 2, ratio=ratio)
        assert found.guarantee <= ratio * 1.001 * SLACK
        assert found.makespan <= ratio * 1.001 * found.bound * SLACK
    shelves = Shelves(p, q, 4, 2, 40.0, nothing_fixed(p, q, 4, 2, 40.0))
    assert shelves.units(coarseness=1) == pytest.approx(3 * 2 * 30, abs=1)
    assert shelves.units(coarseness=4) == pytest.approx(3 * 2 * 30 / 4, abs=1)


def test_a_program_that_is_too_large_is_coarsened_and_what_is_proven_stays_true(monkeypatch):
    monkeypatch.setattr(dual_approximation, "LARGEST", 1)
    monkeypatch.setattr(dual_approximation, "FIRST_UNITS", 1)
    for p, q, m, k in instances("bimodal", each=some(2, 1), seed=19):
        found = solve(p, q, m, k)
        exact = optimum(p, q, m, k)
        assert found.bound <= exact * SLACK
        assert found.makespan <= min(found.guarantee, found.ratio) * exact * SLACK


def test_the_program_refines_until_it_decides(monkeypatch):
    """With the cut and the counts away, and one unit to begin with, the ratio is still kept."""
    monkeypatch.setattr(dual_approximation, "FIRST_UNITS", 1)
    monkeypatch.setattr(dual_approximation, "counting_refuses", lambda *_, **named: False)
    for p, q, m, k in instances("heavy-tailed", each=some(2, 1), most=8, seed=20):
        exact = optimum(p, q, m, k)
        worst = earliest_finish(p, q, m, k, np.argsort(p + q))
        for factor in (0.8, 0.95, 1.0 + 1e-6, 1.1):
            found = attempt(p, q, m, k, exact * factor, RATIO, by_gain(p, q), worst)
            if found is None:
                assert factor < 1
            else:
                assert min(found.makespan, worst.makespan) <= RATIO * exact * factor * SLACK


# Degenerate cases ---------------------------------------------------------------------------------------------


def test_no_tasks():
    found = solve(np.array([]), np.array([]), 3, 2)
    assert (found.makespan, found.bound, found.ratio, found.guesses) == (0.0, 0.0, 1.0, 0)
    assert area_bound(np.array([]), np.array([]), 3, 2) == linear_bound(np.array([]), np.array([]), 3, 2) == 0.0


@pytest.mark.parametrize(("m", "k"), [(2, 0), (0, 2), (1, 0), (0, 1)])
def test_one_side_only(m, k):
    time, impossible = np.array([5.0, 4.0, 3.0, 3.0, 3.0]), np.full(5, np.inf)
    for p, q in ((time, time), (time, impossible) if m else (impossible, time)):
        found = solve(p, q, m, k)
        check(found.schedule, p, q, m, k)
        assert found.makespan <= RATIO * 1.001 * (18 if m + k == 1 else 9)
        assert found.bound <= 18 / (m + k)
        if m + k == 1:
            assert found.makespan == found.bound == 18
    assert area_bound(time, time, m, k) == 18 / (m + k)


def test_all_tasks_on_the_cpus_only():
    p, q = np.array([2.0, 2.0, 2.0, 2.0]), np.full(4, np.inf)
    found = solve(p, q, 2, 3)
    assert found.makespan == found.bound == 4.0
    assert not found.schedule.on_gpu.any()


def test_all_times_zero_or_some():
    assert linear_bound(np.array([np.inf]), np.array([np.inf]), 2, 2) == np.inf
    assert solve(np.zeros(4), np.zeros(4), 1, 1).makespan == 0.0
    found = solve(np.array([0.0, 5.0, 3.0]), np.array([7.0, 0.0, 2.0]), 1, 1)
    assert found.makespan == pytest.approx(2.0)
    assert found.bound == pytest.approx(2.0)
    assert solve(np.array([0.0, np.inf]), np.array([np.inf, 0.0]), 1, 1).makespan == 0.0


def test_full_gpus_take_no_more():
    """A GPU that its own tasks fill to the last leaves no area at all, not an area of zero for every task."""
    p, q = np.array([np.inf, 4.0, 4.0]), np.array([8.0, 4.0, 4.0])
    full = Relaxation(np.zeros(3, bool), np.array([True, False, False]), np.array([True, False, False]))
    shelves = Shelves(p, q, 1, 1, 8.0, full)
    shelves.gpu_area = 0.0
    on_gpu = shelves.assignment(5)
    assert on_gpu is not None
    assert on_gpu.tolist() == [True, False, False]
    assert solve(p, q, 1, 1).makespan == 8.0


def test_one_task_goes_where_it_is_faster():
    found = solve(np.array([3.0]), np.array([2.0]), 4, 4)
    assert found.makespan == found.bound == 2.0
    assert found.schedule.on_gpu.all()


def test_the_area_bound_splits_the_tasks_between():
    """One task of (4, 4) on one CPU and one GPU: half on each takes 2; it cannot be split, so its time is a bound."""
    p = np.array([4.0])
    assert area_bound(p, p, 1, 1) == 2.0
    assert longest_task(p, p, 1, 1) == linear_bound(p, p, 1, 1) == 4.0


def test_times_of_any_magnitude():
    rng = np.random.default_rng(21)
    p, q = rng.uniform(1, 10, 12), rng.uniform(1, 10, 12)
    plain = solve(p, q, 2, 2)
    for unit in (2.0**-300, 2.0**300):
        scaled = solve(p * unit, q * unit, 2, 2)
        assert scaled.makespan / unit == pytest.approx(plain.makespan, rel=1e-9)


def test_times_of_very_different_magnitude_lose_no_digits():
    """What a huge CPU time leaves of a tiny one in a difference would not do for a bound."""
    p, q = np.array([1e9, 1e-7, 3e-7]), np.array([1e-7, 1e9, 1e9])
    assert area_bound(p, q, 1, 1) == pytest.approx(4e-7, rel=1e-9)
    found = solve(p, q, 2, 1)
    assert found.makespan == pytest.approx(3e-7, rel=1e-12)
    assert found.bound == pytest.approx(3e-7, rel=1e-12)


def test_a_solve_repeats_itself_and_leaves_its_input_alone():
    rng = np.random.default_rng(22)
    p, q = rng.uniform(1, 10, 60), rng.uniform(1, 10, 60)
    before = p.copy(), q.copy()
    one, two = solve(p, q, 4, 2), solve(p, q, 4, 2)
    assert np.array_equal(one.schedule.lanes, two.schedule.lanes)
    assert np.array_equal(one.schedule.on_gpu, two.schedule.on_gpu)
    assert np.array_equal(one.schedule.starts, two.schedule.starts)
    assert (one.bound, one.guesses) == (two.bound, two.guesses)
    assert np.array_equal(p, before[0])
    assert np.array_equal(q, before[1])


@pytest.mark.slow
def test_a_thousand_tasks_are_planned_well():
    rng = np.random.default_rng(23)
    p = rng.uniform(1, 10, 1000)
    found = solve(p, p / rng.uniform(1, 20, 1000), 32, 8)
    assert found.ratio <= 1.01


# Bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "text"),
    [
        ([1, np.nan], [1, 1], "task 1: its time is NaN"),
        ([1, 1], [-1, 1], "task 0: its time is negative"),
        ([1, np.inf], [1, np.inf], "task 1: its time is infinite wherever there is a device"),
        ([1, 1], [1], "times must match the devices; got"),
    ],
)
def test_bad_times_are_refused(p, q, text):
    with pytest.raises(ScenarioError, match=text):
        solve(np.array(p, dtype=float), np.array(q, dtype=float), 1, 1)


def test_a_task_for_devices_that_are_not_there_is_refused():
    with pytest.raises(ScenarioError, match="infinite wherever there is a device"):
        solve(np.array([1.0, np.inf]), np.array([1.0, 1.0]), 1, 0)
    with pytest.raises(ScenarioError, match="infinite wherever there is a device"):
        solve(np.array([1.0]), np.array([1.0]), 0, 0)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"ratio": 1.3}, "4/3"),
        ({"ratio": float("nan")}, "4/3"),
        ({"tolerance": 0.0}, "tolerance must be above 0; got 0"),
    ],
)
def test_bad_parameters_are_refused(parameters, text):
    with pytest.raises(ScenarioError, match=text):
        DualApproximation(**parameters)
    with pytest.raises(ScenarioError, match=text):
        solve(np.ones(2), np.ones(2), 1, 1, **parameters)


# As a policy --------------------------------------------------------------------------------------------------


class Kept(DualApproximation):
    """Keeps its last plan for the test to see."""

    last = None

    def plan(self, problem):
        type(self).last = super().plan(problem)
        return type(self).last


def scenario(policy="dual", **more):
    """Forty tasks at once on eight cores and two GPUs, without transfers."""
    return {
        "cluster": {"nodes": {"count": 2, "cpus": 4, "gpus": {"type": "v100", "count": 1}}},
        "workload": {
            "arrivals": {"process": "all_at_once", "count": 40},
            "gpu_time": {"distribution": "uniform", "low": "1 s", "high": "9 s"},
            "cpu_time": {"distribution": "uniform", "low": "4 s", "high": "30 s"},
        },
        "policy": policy,
        **more,
    }


@pytest.mark.quick(0)
def test_the_engine_takes_as_long_as_the_plan_says():
    hs.register("dual", Kept)
    workload = {**scenario()["workload"], "arrivals": {"process": "all_at_once", "count": 40}}
    result = hs.run(scenario("dual", workload=workload), check=True)
    plan = Kept.last
    assert plan.bound <= plan.makespan
    assert plan.notes["ratio_certified"] == pytest.approx(plan.makespan / plan.bound)
    assert plan.notes["ratio_guaranteed"] == pytest.approx(RATIO * 1.001)
    assert plan.notes["guesses"] >= 0
    tasks = result.tasks
    assert len(tasks) == 40
    assert tasks.finish.max() == pytest.approx(plan.makespan, rel=1e-9)


def test_nodes_without_cores_or_without_gpus_need_no_special_case():
    hs.register("dual", Kept)
    for nodes, demand in (
        ({"cpus": 4}, {"cpu_time": {"distribution": "uniform", "low": "1 s", "high": "9 s"}}),
        ({"cpus": 0, "gpus": {"type": "v100", "count": 3}}, {"gpu_time": "2 s"}),
    ):
        workload = {"arrivals": {"process": "all_at_once", "count": 9}, **demand}
        result = hs.run(scenario(cluster={"nodes": nodes}, workload=workload), check=True)
        assert result.tasks.finish.max() == pytest.approx(Kept.last.makespan, rel=1e-9)


@pytest.mark.parametrize(
    ("policy", "more", "text"),
    [
        ({"name": "dual", "ratio": 1.2}, {}, "ratio"),
        ({"name": "dual", "tolerance": 0}, {}, "tolerance"),
        ("dual", {"cluster": {"nodes": {"cpus": 4, "gpus": [{"type": "v100"}, {"type": "a100"}]}}}, "one GPU type"),
    ],
)
def test_a_scenario_that_does_not_go_with_it_is_refused(policy, more, text):
    hs.register("dual", DualApproximation)
    with pytest.raises(HetsimError, match=text):
        hs.run(scenario(policy, **more))
