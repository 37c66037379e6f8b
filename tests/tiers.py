"""The two tiers of the suite: plain `pytest` is the quick one, `pytest --all` the whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

whole = False
"""Set by conftest.py before a test module is imported."""

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # how long examples take depends on what else runs on the machine


def some(count: int, quick: int | None = None) -> int:
    """A number of repetitions: all of them in the whole suite; in the quick tier so many, or an eighth."""
    return count if whole else max(3, count // 8) if quick is None else quick


def examples(count: int, **more: Any) -> settings:
    """Settings of a property test that tries this number of examples, or an eighth of it in the quick tier."""
    return settings(max_examples=some(count), deadline=None, **more)


def spread(rows: Iterable[Any], quick: int) -> list[Any]:
    """Parameters of a test, of which the quick tier tries this number, spread evenly."""
    every = [row if hasattr(row, "marks") else pytest.param(*row) if isinstance(row, tuple) else pytest.param(row)
             for row in rows]  # fmt: skip
    kept = {number * len(every) // quick for number in range(quick)}
    return [
        row if number in kept else pytest.param(*row.values, marks=[*row.marks, pytest.mark.slow], id=row.id)
        for number, row in enumerate(every)
    ]


def by_night(rows: Iterable[Any], whole_suite: int) -> list[Any]:
    """Parameters of which those that are slow are nightly, too, but for one in this number."""
    slow, every = 0, []
    for row in rows:
        if any(mark.name == "slow" for mark in row.marks):
            if slow % whole_suite:
                row = pytest.param(*row.values, marks=[*row.marks, pytest.mark.nightly], id=row.id)
            slow += 1
        every.append(row)
    return every


def evenly(length: int, count: int) -> set[int]:
    """Places of a number of items among all, one in each stretch; by turns elsewhere in it, so that of two crossed
    parameters none has one value only."""
    count = min(length, count)
    return {number * length // count + number % (length // count) for number in range(count)}


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """Of a test marked `quick(N)`, all cases become slow but N of those that are not."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for every in cases.values():
        mark = every[0].get_closest_marker("quick")
        kept = evenly(len(every), mark.args[0] if mark else 0)
        for number, item in enumerate(every):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


SCENARIOS = {path.stem for path in (Path(__file__).parent.parent / "scenarios" / "hetsim_scenarios").glob("*/*.yaml")}
TOGETHER = ("async-", "the-table-of-sens", "pcie-and-images")
NAMED_BY = ("nobody_waits_for_ever", "the_policies_it_proposes_to_compare_can_run", "a_day_unlike_those_learned")
"""Tests whose parameter is the scenario that they look at."""
ABOUT = {"mm16_is_erlang_c": "mm16", "cholesky": "cholesky-8", "a_network_with_its_kernels_fused": "fused-network",
         "repaired_plans_under_faults_and_late_arrivals": "broken-and-late"}  # fmt: skip
"""Scenarios that tests of another name look at."""


MADE_ONCE = ("checkers", "held_out", "earned", "swept", "compared", "grid", "kinds", "precise", "alone", "site",
             "folders")  # fmt: skip
"""Fixtures of a module that take seconds: tests that ask for one are a group, so that one process makes it."""


def runs_shared(module: str, test: str, fixtures: Iterable[str] = ()) -> str:
    """The group of tests that look at the same runs, which one process makes once for all; empty: it is alone."""
    for fixture in fixtures:
        if fixture in MADE_ONCE:
            return f"{module}-{fixture}"
    name, _, parameter = test.removeprefix("test_").partition("[")
    if name == "repaired_plans_beat_plans_and_no_plans":
        return "wrong-estimates-graph" if "graph" in parameter else "wrong-estimates"
    scenario = parameter.rstrip("]") if name in NAMED_BY else ABOUT.get(name, name.replace("_", "-"))
    if scenario.startswith(TOGETHER) and (scenario in SCENARIOS or module == "test_shipped_scenarios"):
        return "async-latency"
    return scenario if scenario in SCENARIOS or module == "test_shipped_scenarios" else ""
