"""The quick tier leaves out what is slow, and no policy or scenario that ships."""

from __future__ import annotations

import costs
import pytest
import test_admission
import test_batching_policies
import test_conformance
import test_llm
import test_loading
import test_prediction
import test_properties
import test_scaling
import test_shipped_scenarios
import tiers

from hetsim.scenario.file.shipped import shipped
from hetsim_policies import CATALOGUE

ELSEWHERE = {
    "scheduler": {"external", "learned", "replay"},  # test_external.py, test_learning.py, test_static_lists.py
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
        "scale": tried(test_scaling.test_every_scaling_policy_serves_all_requests),
        "eviction": tried(test_loading.test_the_policy_says_which_model_gives_way) - {"newest"},
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


class Case:
    """What is asked of an item of pytest."""

    def __init__(self, name, *marks):
        self.nodeid, self.marks = name, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        self.marks[mark.name] = mark.mark


def test_cases_beyond_those_that_a_test_names_are_slow():
    two = pytest.mark.quick(2).mark
    cases = [Case(f"t.py::a[{n}]", two, *([pytest.mark.slow.mark] if n == 0 else [])) for n in range(5)]
    others = [Case(f"t.py::b[{n}]") for n in range(3)] + [Case("t.py::c", two)]
    tiers.mark_slow_cases(cases + others)
    assert ["slow" in case.marks for case in cases] == [True, False, True, True, False]
    assert not any("slow" in case.marks for case in others)


SLOW = pytest.mark.slow.mark


def nightly(monkeypatch, cases, record):
    monkeypatch.setattr(tiers, "recorded_costs", lambda: record)
    monkeypatch.setattr(tiers, "ALWAYS", ("kept", "t.py::kept"))
    tiers.mark_nightly_cases(cases)
    return [case.nodeid for case in cases if "nightly" in case.marks]


def test_slow_tests_that_cost_much_are_nightly(monkeypatch):
    """By the cost of their group, and in a group that the whole suite keeps by their own."""
    group, kept = pytest.mark.xdist_group("group").mark, pytest.mark.xdist_group("kept").mark
    cases = [
        Case("t.py::long", SLOW), Case("t.py::short", SLOW), Case("t.py::quick"), Case("t.py::kept", SLOW),
        Case("t.py::in_group", SLOW, group), Case("t.py::quick_in_group", group),
        Case("t.py::short_in_kept", SLOW, kept), Case("t.py::long_in_kept", SLOW, kept),
    ]  # fmt: skip
    over = tiers.MAX_LAST + 1
    record = dict.fromkeys(("t.py::long", "t.py::quick", "t.py::kept", "group", "kept", "t.py::long_in_kept"), over)
    record["t.py::short"] = tiers.MAX_COST
    assert nightly(monkeypatch, cases, record) == ["t.py::long", "t.py::in_group", "t.py::long_in_kept"]


def test_a_test_of_which_no_case_would_stay_keeps_its_shortest(monkeypatch):
    """Unless it belongs to a group, which would make its runs again, or a quick case stays."""
    group = pytest.mark.xdist_group("group").mark
    cases = [
        Case("t.py::a[0]", SLOW), Case("t.py::a[1]", SLOW), Case("t.py::b[0]", SLOW), Case("t.py::b[1]"),
        Case("t.py::in_group", SLOW, group), Case("t.py::longer", SLOW),
    ]  # fmt: skip
    record = dict.fromkeys([*(case.nodeid for case in cases), "group"], tiers.MAX_LAST)
    record |= dict.fromkeys(("t.py::a[0]", "t.py::longer"), tiers.MAX_LAST + 1)
    moved = nightly(monkeypatch, cases, record)
    assert moved == ["t.py::a[0]", "t.py::b[0]", "t.py::in_group", "t.py::longer"]


def test_of_the_cases_of_a_test_the_whole_suite_keeps_short_ones(monkeypatch):
    turns = pytest.mark.by_turns(3).mark
    record = {f"t.py::a[{number}]": tiers.MAX_COST * (0.8 + number / 40) for number in (0, 1, 5)}
    names = [f"t.py::a[{number}]" for number in range(8)]
    moved = nightly(monkeypatch, [Case(name, SLOW, turns) for name in names], record)
    assert len(moved) == 5 and {names[number] for number in (0, 1, 5)} <= {*moved}
    record |= dict.fromkeys(names[2:4] + names[6:], tiers.MAX_COST + 0.5)
    # One without a record is kept, then those that cost the least.
    cases = [Case(name, SLOW, turns) for name in names] + [Case("t.py::a[quick]", turns)]
    assert {*names} - {*nightly(monkeypatch, cases, record)} == {names[4], names[0], names[1]}


@pytest.mark.parametrize(("length", "kept"), [(3, 3), (4, 4), (9, 4), (60, 5)])
def test_of_many_slow_cases_the_whole_suite_keeps_a_twelfth(monkeypatch, length, kept):
    cases = [Case(f"t.py::a[{number}]", SLOW) for number in range(length)] + [Case("t.py::a[quick]")]
    assert len(nightly(monkeypatch, cases, {})) == length - kept
    shared = [Case(f"t.py::a[{number}]", SLOW, pytest.mark.xdist_group("group").mark) for number in range(length)]
    assert nightly(monkeypatch, shared, {}) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_of_the_nightly_tests_cost_about_the_same(monkeypatch, count):
    record = {f"t{number}": 60 / (1 + number) for number in range(40)}
    monkeypatch.setattr(tiers, "recorded_costs", lambda: record)
    units = [*record, *["group"] * 9, "t0"]
    parts = tiers.parts_of(units, count)
    assert parts.keys() == {*units} and {*parts.values()} == {*range(count)}
    sums = [sum((record | {"group": 9.0})[unit] for unit in parts if parts[unit] == part) for part in range(count)]
    assert max(sums) - min(sums) <= min(record.values())


def test_what_takes_long_starts_first(monkeypatch):
    monkeypatch.setattr(tiers, "recorded_costs", lambda: {"long": 9.0, "longer": 10.0})
    units = ["one", "long", "pair", "longer", "pair", "other"]
    assert [units[at] for at in tiers.longest_first(units)] == ["longer", "long", "pair", "pair", "one", "other"]


def test_seconds_of_a_group_are_those_of_its_tests(tmp_path):
    log = tmp_path / "costs.txt"
    log.write_text("1.50\tgroup\tt.py::a\n2.00\tgroup\tt.py::b\n9.00\tt.py::c\tt.py::c\n4.00\tt.py::c\tt.py::c\n")
    assert costs.measured([str(log)]) == {"group": 3.5, "t.py::a": 1.5, "t.py::b": 2.0, "t.py::c": 4.0}


@pytest.mark.xdist_group("tiers")
def test_the_scheduler_of_processes_knows_the_groups(request):
    """By the ends of node ids: else what a group shares is made once for each of its tests."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("one process")
    groups = [(item, mark.args[0]) for item in request.session.items for mark in item.iter_markers("xdist_group")]
    assert groups
    assert [item.nodeid for item, group in groups if not item.nodeid.endswith(f"@{group}")] == []
