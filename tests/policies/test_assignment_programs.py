"""The assignment programs: against optima by trying everything; their bounds, limits, and injected constraints."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from test_static_lists import optimum, problem, random_graph, random_times, simulate
from tiers import some

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.testing import check_policy, small_systems
from hetsim_policies.static.common.assignment import (
    Apart,
    AssignmentProgram,
    Before,
    Cap,
    Fuse,
    Pin,
    Together,
    by_lane,
    by_place,
    by_type,
    ordered,
    times_at,
    violated,
)
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.programs import IntegerProgram, LinearProgram, beyond_first, linear_program, rounded


def instances(seed, rounds, most=6):
    """Random tasks on one or two cores and one or two GPUs, now and then with a GPU of another type."""
    rng = np.random.default_rng(seed)
    for number in range(rounds):
        counts = [int(rng.integers(1, 3)), int(rng.integers(1, 3))] + [1] * (number % 3 == 0)
        yield random_times(rng, int(rng.integers(1, most)), len(counts)), counts


# Exact and relaxed ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_integer_program_is_optimal():
    for times, counts in instances(1, 60):
        plan = IntegerProgram().plan(problem(times, counts))
        best = optimum(times, counts)
        assert plan.makespan == pytest.approx(best, rel=1e-5)
        assert plan.bound <= best * (1 + 1e-9)
        assert plan.notes["optimal"] is True


def test_the_search_alone_is_optimal():
    """Without the rivals: what the solver finds with renumbered lanes, and its bound."""
    for times, counts in instances(2, some(40), most=7):
        instance = runnable(problem(times, counts), "test")
        sites = by_lane(instance)
        at = times_at(instance, sites)
        unit = float(times.min(axis=1).sum())
        found = AssignmentProgram(at, [1] * len(sites), unit).integral(
            fixed=beyond_first(at, [site.kind for site in sites])
        )
        best = optimum(times, counts)
        load = np.zeros(len(sites))
        np.add.at(load, found.site_of, at[np.arange(len(at)), found.site_of])
        assert load.max() == pytest.approx(best, rel=1e-5)
        assert best * (1 - 1e-4) <= found.bound <= best * (1 + 1e-9)


def test_integer_program_finds_what_its_rivals_miss():
    """3, 3, 2, 2, 2 on two cores: longest first takes 7, 6 is possible and proven."""
    given = problem([[3], [3], [2], [2], [2]], [2])
    plan = IntegerProgram().plan(given)
    assert plan.makespan == simulate(IntegerProgram(), given) == 6
    assert plan.bound == pytest.approx(6, rel=1e-5)


def test_linear_program_keeps_what_it_promises():
    """Bound <= optimum <= makespan <= bound + the longest task as matched, which is no more than the longest at all."""
    for times, counts in instances(3, some(80)):
        schedule, bound = linear_program(runnable(problem(times, counts), "test"))
        best = optimum(times, counts)
        assert bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= schedule.makespan
        assert schedule.makespan <= (bound + times[np.isfinite(times)].max()) * (1 + 1e-9)


@pytest.mark.slow
def test_the_bound_is_the_value_of_the_program():
    """Certified by prices, and not far below: else the promise above would be idle."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        times, counts = rng.uniform(1, 10, (40, 3)), [4, 2, 1]
        instance = runnable(problem(times, counts), "test")
        found = AssignmentProgram(times_at(instance, by_type(instance)), counts, 100.0, longest=False).relaxed()
        assert found.value * (1 - 1e-6) <= found.bound <= found.value * (1 + 1e-9)
        assert (found.share.max(axis=1) < 1 - 1e-6).sum() <= 2  # a vertex: at most types - 1 tasks are split


def test_split_tasks_go_to_sites_of_their_own():
    share = np.array([[0.6, 0.4, 0], [0.5, 0, 0.5], [0, 1, 0]])
    assert sorted(rounded(share, matched=True)[:2].tolist()) != [0, 0]
    assert rounded(share, matched=False).tolist() == [0, 0, 1]


@pytest.mark.slow
def test_bounds_on_graphs_and_arrivals():
    """Below every schedule that heft, mct and the programs find, and at least the longest path."""
    rng = np.random.default_rng(5)
    for round_ in range(some(12)):
        times, counts = random_times(rng, 15, 2), [2, 1]
        arrivals = np.sort(rng.uniform(0, 10, 15)).tolist() if round_ % 2 else None
        given = problem(times, counts, arrivals, predecessors=random_graph(rng, 15))
        plans = [policy().plan(given) for policy in (LinearProgram, IntegerProgram)]
        spans = [simulate(policy(), given) for policy in (LinearProgram, IntegerProgram)]
        assert [plan.makespan for plan in plans] == pytest.approx(spans, rel=1e-9)
        assert max(plan.bound for plan in plans) <= min(spans) * (1 + 1e-9)
        assert spans[1] <= spans[0] * (1 + 1e-9)
        assert plans[0].bound <= plans[1].bound * (1 + 1e-5)


def test_the_path_bound_by_hand():
    """A chain of three (2, 1) on a core and a GPU of its own: no work is to be divided, the path is 3."""
    given = problem([[2, 1], [2, 1], [2, 1]], [1, 1], predecessors=[(), (0,), (1,)])
    for policy in (LinearProgram, IntegerProgram):
        plan = policy().plan(given)
        assert plan.makespan == 3
        assert plan.bound == pytest.approx(3)


# Limits -----------------------------------------------------------------------------------------------------------


def hard():
    """Twenty tasks whose optimum takes the search many nodes."""
    return problem(np.random.default_rng(0).uniform(1, 10, (20, 2)), [4, 2])


@pytest.mark.slow
def test_a_limit_is_flagged_with_the_gap():
    plan = IntegerProgram(node_limit=1).plan(hard())
    assert plan.notes["optimal"] is False
    assert plan.notes["gap"] == pytest.approx(1 - plan.bound / plan.makespan)
    assert 1e-5 < plan.notes["gap"] < 0.1
    assert plan == IntegerProgram(node_limit=1).plan(hard())


@pytest.mark.slow
def test_more_nodes_prove_more():
    few, many = (IntegerProgram(node_limit=nodes).plan(hard()) for nodes in (1, 5000))
    assert few.notes["optimal"] is False and many.notes["optimal"] is True
    assert many.notes["gap"] < few.notes["gap"]
    assert few.bound < many.bound <= many.makespan <= few.makespan


@pytest.mark.slow
def test_too_large_a_program_is_not_tried():
    plan = IntegerProgram(max_variables=10).plan(hard())
    assert plan.notes["optimal"] is False
    assert plan.bound <= IntegerProgram().plan(hard()).makespan


def test_a_gap_that_is_good_enough():
    plan = IntegerProgram(gap=0.2).plan(hard())
    assert plan.notes["gap"] <= 0.2


def test_a_time_limit_is_a_limit():
    plan = IntegerProgram(time_limit=0.01).plan(hard())
    assert plan.bound <= plan.makespan
    assert plan.notes["optimal"] is (plan.notes["gap"] <= 4e-6)


@pytest.mark.slow
def test_readers_are_told(tmp_path):
    table = {"gpu_time": "1 s", "cpu_time": "3 s", "arrivals": {"process": "all_at_once", "count": 13}}
    scenario = {"cluster": {"nodes": {"cpus": 3, "gpus": {"type": "k20", "count": 2}}}, "workload": [table]}
    proven = hs.run(scenario, policy="integer_program")
    assert proven.warnings == []
    open_ = hs.run("cnn-operators", policy="integer_program")
    (warning,) = open_.warnings
    assert warning == "the plan of integer_program is not proven optimal: gap 58 %"
    assert hs.load(open_.save(tmp_path / "run")).warnings == [warning]


@pytest.mark.parametrize("bad", [{"node_limit": 0}, {"gap": 1.0}, {"gap": -0.1}, {"time_limit": "0 s"}])
def test_limits_that_make_no_sense_are_refused(bad):
    with pytest.raises(ScenarioError):
        hs.run("list-lemma", policy={"name": "integer_program", **bad})


# Injected constraints -------------------------------------------------------------------------------------------


def injected(times, counts, constraints, predecessors=None):
    """The sites of the best assignment with constraints, each lane a site; None if there is none."""
    found = AssignmentProgram(times, counts, float(times.min(axis=1).sum()), predecessors, None, constraints).integral()
    return found.site_of


EVEN = np.ones((6, 3))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "constraint",
    [
        Together((0, 1, 2)),
        Apart((0, 1, 2)),
        Pin((0, 1, 2, 3), (1,)),
        Pin((0, 5), (0, 2)),
        Cap(tuple((task, 0, 1.0) for task in range(6)), upper=1.0),
        Cap(tuple((task, 0, 2.0) for task in range(6)), per_makespan=1.0),
        Fuse((2, 4, 5)),
    ],
    ids=repr,
)
def test_each_kind_of_constraint_holds(constraint):
    """In whole tasks, in the relaxation, and at the least makespan that any assignment with it has."""
    rng = np.random.default_rng(7)
    for times in (EVEN, rng.uniform(1, 5, (6, 3))):
        site_of = injected(times, [1, 1, 1], [constraint])
        load = np.bincount(site_of, times[np.arange(6), site_of], minlength=3)
        assert violated([constraint], site_of, load.max()) == []
        # By trying all: the least T that load and constraint allow.
        best = math.inf
        for chosen in itertools.product(range(3), repeat=6):
            sites = np.array(chosen)
            span = float(np.bincount(sites, times[np.arange(6), sites], minlength=3).max())
            if isinstance(constraint, Cap) and constraint.per_makespan:
                used = sum(weight for task, site, weight in constraint.terms if sites[task] == site)
                span = max(span, (used - constraint.upper) / constraint.per_makespan)
            if not violated([constraint], sites, span):
                best = min(best, span)
        used = 0.0
        if isinstance(constraint, Cap) and constraint.per_makespan:
            used = sum(weight for task, site, weight in constraint.terms if site_of[task] == site)
        assert max(load.max(), used) == pytest.approx(best, rel=1e-5)
        relaxed = AssignmentProgram(times, [1, 1, 1], 10.0, constraints=[constraint]).relaxed()
        assert relaxed.bound <= best * (1 + 1e-9)


def test_constraints_that_bite():
    """What holds above would not hold by itself: without the constraint the optimum breaks it."""
    times = np.array([[1.0, 9, 9], [9, 1, 9], [1, 9, 9]])
    free = injected(times, [1, 1, 1], [])
    assert violated([Together((0, 1))], free)
    assert violated([Apart((0, 2))], injected(times * [1, 9, 9], [1, 1, 1], []))
    assert injected(times, [1, 1, 1], [Together((0, 1))])[0] == injected(times, [1, 1, 1], [Together((0, 1))])[1]
    assert injected(times, [1, 1, 1], [Pin((0,), (2,))])[0] == 2


def test_before_makes_a_path():
    """Two tasks of 1 on two cores: 1; one before the other: 2, and that order."""
    times = np.ones((2, 1))
    program = AssignmentProgram(times, [2], 2.0, constraints=[Before(1, 0)])
    assert program.relaxed().value == pytest.approx(2)
    instance = runnable(problem([[1], [1]], [2]), "test")
    schedule = ordered(instance, by_place(instance), np.zeros(2, dtype=int), [Before(1, 0)])
    assert schedule.start.tolist() == [1, 0]


def test_fused_tasks_stand_in_a_row():
    """By length 5, 4, 3, 2: fused, the last follows the first."""
    instance = runnable(problem([[5], [4], [3], [2]], [1]), "test")
    alone = ordered(instance, by_place(instance), np.zeros(4, dtype=int))
    fused = ordered(instance, by_place(instance), np.zeros(4, dtype=int), [Fuse((0, 3))])
    assert alone.order == [0, 1, 2, 3]
    assert fused.order == [0, 3, 1, 2]


@pytest.mark.parametrize(
    "constraints",
    [
        [Together((0, 1)), Apart((0, 1))],
        [Pin((0,), (1,)), Pin((1,), (2,)), Together((0, 1))],
        [Apart((0, 1, 2, 3))],
        [Cap(tuple((task, site, 1.0) for task in range(6) for site in range(3)), upper=5.0)],
        [Pin((0,), ())],
        [Before(0, 1), Before(1, 0)],
    ],
    ids=repr,
)
def test_what_cannot_be_is_infeasible(constraints):
    assert injected(EVEN, [1, 1, 1], constraints) is None


def test_sites():
    instance = runnable(problem([[1, 1]], [3, 2]), "test")
    assert [len(site.lanes) for site in by_type(instance)] == [3, 2]
    assert [len(site.lanes) for site in by_lane(instance)] == [1] * 5
    places = by_place(instance)
    assert [(len(site.lanes), site.place.name) for site in places] == [(3, "n0/cpu"), (1, "n0/g0"), (1, "n0/g1")]


# The contract -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", [LinearProgram, IntegerProgram])
def test_the_policies_keep_the_contract(policy):
    """On the systems of the suite whose tasks they plan; the others they refuse in a sentence."""
    planned = []
    for system in small_systems():
        try:
            policy().plan(problem_of(system))
        except ScenarioError as error:
            assert "linear_program" in str(error) or "integer_program" in str(error)
        else:
            planned.append(system)
    assert planned
    check_policy(policy, planned)


def problem_of(system):
    from hetsim.policy import PlanProblem

    return PlanProblem(system.tasks, system.cluster)


@pytest.mark.parametrize("policy", [LinearProgram, IntegerProgram])
def test_no_tasks_and_no_time(policy):
    given = problem([[0, 0], [0, 0]], [1, 1])
    plan = policy().plan(given)
    assert (plan.makespan, plan.bound) == (0, 0)
