"""Static planning at its edges: no time at all, arrivals, horizons, patience, precision beyond numbers, services."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from test_static_lists import problem, simulate
from tiers import spread

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim.results.one_run.measured import quantile
from hetsim_policies import CATALOGUE
from hetsim_policies.static.convex_energy import ConvexEnergy
from hetsim_policies.static.dual_approximation import DualApproximation
from hetsim_policies.static.two_sides import GreedyDual

PLANNERS = [
    name
    for name in CATALOGUE["scheduler"]
    if name not in ("as_planned", "replay")
    and isinstance(registry.policy("scheduler", name), type)
    and issubclass(registry.policy("scheduler", name), PlannedScheduler)
]


def scenario(policy, rows=(), columns="id,cpu_time,gpu_time", path=None, **entry):
    """Tasks of a table, or one entry of a workload, on four cores and two GPUs."""
    found = {
        "name": "edge",
        "cluster": {"nodes": [{"cpus": 4, "gpus": {"type": "g", "count": 2}}]},
        "workload": [{"name": "x", **entry}],
        "policy": policy,
    }
    if path is not None:
        (path / "tasks.csv").write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
        found["workload"] = [{"trace": {"format": "tasks", "path": str(path / "tasks.csv")}}]
    return found


def at_once(policy, count=30, **more):
    arrivals = {"process": "all_at_once", "count": count}
    return scenario(policy, arrivals=arrivals, cpu_time="8 s", gpu_time="3 s", **more)


@pytest.mark.parametrize("planner", PLANNERS)
def test_no_tasks(planner):
    one = problem([[1, 1]], [1, 1])
    none = {name: getattr(one.tasks, name)[:0] for name in ("arrival", "shape", "time", "estimate")}
    given = PlanProblem(replace(one.tasks, **none), one.cluster, np.random.default_rng(0), lambda plan: 0.0)
    plan = registry.policy("scheduler", planner)().plan(given)
    assert plan.steps == []
    assert (plan.makespan or 0.0) == (plan.bound or 0.0) == 0.0


@pytest.mark.quick(3)
@pytest.mark.parametrize("planner", spread(PLANNERS, 8))
@pytest.mark.parametrize("rows", [["a,0,0", "b,0,0", "c,0,0"], ["a,5,", "b,7,", "c,,2"], ["a,0,1", "b,1,0", "c,0,0"]])
def test_no_length_and_one_type_only(planner, rows, tmp_path):
    result = hs.run(scenario(planner, rows, path=tmp_path), check=True)
    assert result.metric("completed_count") == 3
    assert result.metric("makespan") == pytest.approx(result.metric("planned_makespan"))


def test_convex_energy_leaves_tasks_where_they_can_run():
    # Without power every lane costs the same, those included on which a task can never run.
    given = problem([[5, math.inf], [7, math.inf], [math.inf, 2]], [2, 2])
    plan = ConvexEnergy().plan(given)
    assert {step.task: step.mode for step in plan.steps} == {0: 0, 1: 0, 2: 1}


def test_dual_approximation_waits_for_arrivals():
    rng = np.random.default_rng(1)
    for offset in (0.0, 1000.0):
        arrivals = (offset + np.sort(rng.uniform(0, 20, 15))).tolist()
        given = problem(rng.uniform(1, 9, (15, 2)).tolist(), [2, 1], arrivals)
        planner = DualApproximation()
        plan = planner.plan(given)
        assert plan.makespan == pytest.approx(simulate(DualApproximation(), given))
        assert plan.notes["ratio_certified"] == pytest.approx(plan.makespan / plan.bound)
        assert "ratio_guaranteed" not in plan.notes  # what was proven is so of tasks that are there at once
    together = DualApproximation().plan(problem([[2, 3], [4, 1], [2, 2]], [1, 1], [7.0] * 3))
    assert together.notes["ratio_guaranteed"] >= together.notes["ratio_certified"]


@pytest.mark.parametrize("planner", [DualApproximation(tolerance=1e-18), GreedyDual(precision=1e-18)])
@pytest.mark.slow
def test_a_precision_beyond_numbers_ends(planner):
    for scale in (1e-3, 1.0, 1e9):
        times = [[scale * (2 + number % 5), scale * (1 + number % 3)] for number in range(24)]
        plan = planner.plan(problem(times, [4, 2]))
        assert plan.bound <= plan.makespan <= 2 * plan.bound


@pytest.mark.parametrize("planner", ["as_planned", "constraint_injection"])
@pytest.mark.parametrize("limit", [{"horizon": "10 s"}, {"patience": "10 s"}])
def test_what_is_tried_out_goes_on_to_the_end(planner, limit):
    given = at_once(planner, **{key: value for key, value in limit.items() if key == "patience"})
    result = hs.run({**given, **{key: value for key, value in limit.items() if key == "horizon"}})
    assert result.metric("planned_makespan") == 27
    assert 0 < result.metric("completed_count") < 30


@pytest.mark.parametrize("inner", ["round_robin", "srtf"])
def test_a_plan_of_what_was_stopped_promises_what_it_holds(inner, tmp_path):
    rows = [f"{number},{2 * (5 + number % 7)},{5 + number % 7}" for number in range(14)]
    result = hs.run(scenario({"scheduler": {"name": "as_planned", "base": inner}}, rows, path=tmp_path))
    assert result.metric("planned_makespan") == pytest.approx(result.metric("makespan"))


@pytest.mark.parametrize("name", ["graham", "constraint_injection", "as_planned", "heteroprio", "dmda"])
def test_who_serves_no_requests_is_named_as_in_the_scenario(name):
    service = {"compute": {"per_item": "1 ms", "fixed": "10 ms"}}
    given = scenario(name, service=service, arrivals={"process": "poisson", "rate": "50/s"}, slo="250 ms")
    with pytest.raises(ScenarioError, match=f"{name} does not serve requests in batches"):
        hs.run({**given, "horizon": "1 s"})


def test_a_quantile_among_infinite_values_is_infinite():
    values = np.array([1.0, math.inf, math.inf, math.inf])
    assert quantile(values, 0.6) == math.inf
    assert quantile(values, 0.1) == math.inf
    assert quantile(values, 0.0) == 1.0
    assert quantile(np.array([1.0, 3.0]), 0.5) == 2.0


def test_deadlines_that_no_device_can_meet_are_told_whatever_the_policy():
    described = {
        "cluster": {"nodes": {"cpus": 2, "gpus": {"type": "g", "count": 1}}},
        "workload": {"arrivals": {"process": "all_at_once", "count": 5}, "gpu_time": "3 s", "slo": "2 s"},
    }
    for policy in ("fcfs", "mct"):
        warnings = hs.run(described, policy=policy).warnings
        assert any("deadlines of 5 of 5 tasks" in text and "by 1 s at most" in text for text in warnings)
    assert not hs.run(described, overrides={"workload.slo": "3 s"}, policy="fcfs").warnings
