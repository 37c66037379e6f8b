"""The quick tier leaves out what is slow, and no policy or scenario that ships."""

from __future__ import annotations

import pytest
import test_admission
import test_batching_policies
import test_conformance
import test_llm
import test_prediction
import test_properties
import test_shipped_scenarios
import tiers

from hetsim.scenario.file.shipped import shipped
from hetsim_policies import CATALOGUE

ELSEWHERE = {
    "scheduler": {"learned", "replay"},  # test_learning.py, test_static_lists.py
    "batching": {"async_linear", "serial_greedy", "continuous"},  # test_async_linear.py, test_services.py, test_llm.py
    "admission": {"learned"},  # test_train_admission.py
}
"""Policies that tests of their own run in the quick tier."""


def tried(test, position=0):
    """The values of one parameter with which the quick tier runs a test."""
    marks = {mark.name: mark for mark in test.pytestmark}
    assert not {"slow", "quick"} & marks.keys()
    rows = [row if hasattr(row, "marks") else pytest.param(row) for row in marks["parametrize"].args[1]]
    quick = [row.values for row in rows if not any(mark.name == "slow" for mark in row.marks)]
    return {values[0][position] if isinstance(values[0], tuple) else values[position] for values in quick}


def test_it_runs_every_shipped_scenario():
    every = test_shipped_scenarios.test_runs_with_every_invariant_checked_and_comes_back_from_disk
    assert tried(every) == {one.name for one in shipped()}


@pytest.mark.parametrize("kind", CATALOGUE)
def test_it_runs_every_policy(kind):
    names = {
        "scheduler": tried(test_properties.test_every_policy_keeps_every_invariant)
        | tried(test_properties.test_every_planner_refuses_or_keeps_every_invariant),
        "placement": tried(test_conformance.test_registered_policies_conform, 1) - {None},
        "batching": {
            name.split()[0] for name in tried(test_batching_policies.test_two_services_of_each_policy_share_a_gpu)
        },
        "routing": tried(test_llm.test_every_router_serves_everybody),
        "admission": tried(test_admission.test_every_admission_policy_keeps_every_invariant),
        "predictor": tried(test_prediction.test_every_predictor_keeps_the_rules),
    }[kind]
    assert names | ELSEWHERE.get(kind, set()) == set(CATALOGUE[kind])
    assert not names & ELSEWHERE.get(kind, set())


@pytest.mark.parametrize(("length", "count"), [(8, 4), (9, 4), (16, 8), (3, 1), (3, 3), (2, 5), (40, 16)])
def test_cases_are_spread_evenly(length, count):
    kept = sorted(tiers.evenly(length, count))
    assert len(kept) == min(length, count) and kept[0] >= 0 and kept[-1] < length
    assert max(later - one for one, later in zip([-1, *kept], [*kept, length], strict=True)) <= 2 * -(-length // count)
    if length >= 2 * count > 2:  # of a second parameter with two values both are there
        assert {place % 2 for place in kept} == {0, 1}


def test_cases_beyond_those_that_a_test_names_are_slow():
    class Case:
        def __init__(self, name, *marks):
            self.nodeid, self.marks = name, {mark.name: mark for mark in marks}

        def get_closest_marker(self, name):
            return self.marks.get(name)

        def add_marker(self, mark):
            self.marks[mark.name] = mark.mark

    two = pytest.mark.quick(2).mark
    cases = [Case(f"t.py::a[{n}]", two, *([pytest.mark.slow.mark] if n == 0 else [])) for n in range(5)]
    others = [Case(f"t.py::b[{n}]") for n in range(3)] + [Case("t.py::c", two)]
    tiers.mark_slow_cases(cases + others)
    assert ["slow" in case.marks for case in cases] == [True, False, True, True, False]
    assert not any("slow" in case.marks for case in others)


@pytest.mark.xdist_group("tiers")
def test_the_scheduler_of_processes_knows_the_groups(request):
    """By the ends of node ids: else what a group shares is made once for each of its tests."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("one process")
    groups = [(item, mark.args[0]) for item in request.session.items for mark in item.iter_markers("xdist_group")]
    assert groups
    assert [item.nodeid for item, group in groups if not item.nodeid.endswith(f"@{group}")] == []
