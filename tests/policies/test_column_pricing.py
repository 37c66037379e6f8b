"""Column pricing: against optima by trying everything, with occupied lanes, and on published instances."""

from __future__ import annotations

import csv
import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_static_lists import optimum, problem, random_times, simulate
from tiers import some

from hetsim.errors import ScenarioError
from hetsim.testing import check_policy, small_systems
from hetsim_policies.static.common.instance import longest_first, runnable
from hetsim_policies.static.programs import ColumnPricing, cheap_pairs
from hetsim_policies.static.vertices import Lst

HCSP = Path(__file__).parents[3] / "shared" / "data" / "published" / "hcsp"


def test_every_shorter_schedule_consists_of_cheap_pairs():
    """At any prices, with lanes that are occupied at first: no pair that is left out occurs in a shorter schedule."""
    rng = np.random.default_rng(3)
    dropped = 0
    for _ in range(some(60)):
        times, prices = random_times(rng, 5, 3), rng.uniform(0, 1, 3) * (rng.random(3) < 0.9)
        since = rng.uniform(0, 4, 3) * rng.integers(2)
        lengths = {}
        for lanes in itertools.product(range(3), repeat=5):
            load = since + np.bincount(lanes, times[np.arange(5), lanes], minlength=3)
            lengths[lanes] = float(load.max())
        makespan = min(lengths.values()) * rng.uniform(1, 1.5)
        keep = cheap_pairs(times, prices, since, makespan)
        dropped += int((~keep & np.isfinite(times)).sum())
        for lanes, length in lengths.items():
            assert length > makespan or keep[np.arange(5), lanes].all()
    assert dropped


@pytest.mark.slow
def test_small_plans_are_optimal():
    """With gap 0 a program of few pairs loses nothing, from any schedule: the optimum of trying everything."""
    rng = np.random.default_rng(5)
    planner = ColumnPricing(gap=0, node_limit=10_000)
    for number in range(some(16)):
        times, counts = random_times(rng, 5, 3), [1, 1 + number % 2, 1]
        given, best = problem(times.tolist(), counts), optimum(times, counts)
        kinds = np.where(np.isfinite(times), rng.random(times.shape), -1).argmax(axis=1)
        anywhere = longest_first(times, counts, kinds)
        assert planner._repriced(runnable(given, "test"), anywhere, 0.0).makespan == pytest.approx(best, rel=2e-6)
        plan = planner.plan(given)
        assert plan.makespan == pytest.approx(best, rel=2e-6) and plan.bound <= best * (1 + 1e-9)
        assert simulate(planner, given) == pytest.approx(plan.makespan)


def test_occupied_lanes_count():
    """In mid-run: as if each occupied lane had one task more, which can run there only."""
    rng = np.random.default_rng(6)
    for _ in range(some(24)):
        times, ends = rng.uniform(1, 9, (5, 2)), rng.uniform(0, 12, 2)
        given = replace(
            problem(times.tolist(), [1, 1]), in_mid_run=True, free_at={"n0/cpu0": ends[0], "n0/g0": ends[1]}
        )
        longer = np.vstack([times, np.where(np.eye(2, dtype=bool), ends, np.inf)])
        plan = ColumnPricing(gap=0, node_limit=10_000).plan(given)
        assert max(plan.makespan, *ends) == pytest.approx(optimum(longer, [1, 1]), rel=2e-6)


@pytest.mark.slow
def test_programs_of_some_lanes_shorten_the_plan():
    """On more lanes than a program has: the same twice, and shorter than that of lst."""
    rng = np.random.default_rng(0)
    times = rng.uniform(1, 100, (180, 1)) * rng.uniform(1, 10, (180, 18))
    given = problem(times.tolist(), [1] * 18)
    plans = [ColumnPricing(gap=0.015, restarts=1, node_limit=1).plan(given) for _ in range(2)]
    assert plans[0].makespan == plans[1].makespan and plans[0].steps == plans[1].steps
    assert plans[0].bound <= plans[0].makespan < Lst().plan(given).makespan


def test_arrivals_and_graphs():
    arriving = problem([[3.0, 2.0], [3.0, 2.0], [1.0, 4.0]], [1, 1], arrivals=[0, 1, 2])
    assert ColumnPricing().plan(arriving).makespan == Lst().plan(arriving).makespan
    with pytest.raises(ScenarioError, match=r"column_pricing plans independent tasks; 1 tasks have predecessors"):
        ColumnPricing().plan(problem([[1, 1], [1, 1]], [1, 1], predecessors=[(), (0,)]))


@pytest.mark.slow
def test_it_keeps_the_contract():
    """On the systems of the suite whose tasks it plans."""
    planned = []
    for system in small_systems():
        try:
            ColumnPricing().plan(problem_of(system))
        except ScenarioError:
            continue
        planned.append(system)
    assert planned
    check_policy(ColumnPricing, planned)


def problem_of(system):
    return replace(problem([[1.0]], [1]), tasks=system.tasks, cluster=system.cluster)


@pytest.mark.slow
@pytest.mark.skipif(not HCSP.exists(), reason="the published instances are not here")
@pytest.mark.parametrize("instance", ["u_i_hihi.0", "u_s_lohi.0"])
def test_published_instances_are_within_half_a_percent_of_the_best_known(instance):
    """The two of Braun's on which `lst` is worst; all twelve in docs/planning.md."""
    rows = csv.DictReader((HCSP / "best_known.csv").read_text().splitlines())
    best = min(float(row["makespan"]) for row in rows if row["instance"] == instance)
    with gzip.open(HCSP / f"512x16_{instance}.gz", "rt") as stream:
        times = np.array(stream.read().split(), dtype=float)[3:].reshape(512, 16)
    given = problem(np.column_stack([np.full(512, np.inf), times]).tolist(), [0] + [1] * 16)
    assert 1 - 1e-6 <= ColumnPricing().plan(given).makespan / best <= 1.005 < Lst().plan(given).makespan / best
