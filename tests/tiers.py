"""The two tiers of the suite: plain `pytest` is the quick one, `pytest --all` the whole."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from functools import cache
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


COSTS = Path(__file__).parent / "costs.csv"
"""Processor seconds of groups and tests that take some; `tests/costs.py` writes them."""


@cache
def recorded_costs() -> dict[str, float]:
    with COSTS.open(encoding="utf-8", newline="") as file:
        return {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}


def unit_of(item: pytest.Item) -> str:
    """What one process runs in one go: the group of a test, or the test alone."""
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else item.nodeid


def cost_of(unit: str) -> float:
    """Processor seconds on record of a group or a test; 0: nothing is on record."""
    return recorded_costs().get(unit, 0.0)


MAX_COST = 0.3
"""Processor seconds on record of a slow test, or of a group, above which it is nightly."""
ALWAYS = (
    "kernels-that-let-go", "kernels-that-yield", "known-users", "learned-admission", "mm16", "naor",
    "prefill-and-decode-apart", "suite as a class", "test_compare_groups-compared", "test_guide-site",
    "test_report_promises-swept", "test_sweep_precision-precise", "thinking-clients",
    "tests/command/test_cli.py::test_same_seed_same_bytes_in_two_processes",
    "tests/theory/test_overload.py::test_intervals_hold_what_is_exact",
    "tests/oracle/test_fluid_replay.py::test_finishes_are_those_of_the_replay_in_several_hundred_systems",
    "tests/page/test_watch.py::test_ctrl_c_ends_it_and_nothing_stays",
)  # fmt: skip
"""Tests that the whole suite runs all the same, as there is no shorter one of their kind, and groups of which it runs
what is short."""


MAX_LAST = 0.8
"""Processor seconds on record up to which the shortest case of a test stays, where all others are nightly."""
FEW_CASES = 4
"""Slow cases of a test, of which the whole suite runs all."""
SHARE = 12
"""Of more it runs one in this number."""


def mark_nightly_cases(items: Iterable[pytest.Item]) -> None:
    """Slow tests become nightly by their cost on record, and by turns: of a test with many slow cases a twelfth stay.

    These are spread evenly among the cases of which no cost is on record, so that they are short; where they are too
    few, those that cost the least come next.  `by_turns(N)` says another number.  Tests of a group share runs, so that
    turns of each would save little: only those that say a number take turns.

    A test of which no case would stay keeps its shortest, but for those of a group: they would make its runs again.
    """
    cases: dict[str, list[pytest.Item]] = {}
    dear: dict[str, list[pytest.Item]] = {}
    staying = set[str]()
    for item in items:
        if item.get_closest_marker("nightly"):
            continue
        test, unit = item.nodeid.partition("[")[0], unit_of(item)
        if unit in ALWAYS:
            unit = item.nodeid
        if not item.get_closest_marker("slow"):
            staying.add(test)
        elif unit not in ALWAYS and cost_of(unit) > MAX_COST:
            dear.setdefault(test, []).append(item)
            if unit != item.nodeid:
                staying.add(test)
        else:
            staying.add(test)
            if unit_of(item) == item.nodeid or item.get_closest_marker("by_turns"):
                cases.setdefault(test, []).append(item)
    for test, every in dear.items():
        every.sort(key=lambda item: cost_of(item.nodeid))
        stays = test not in staying and cost_of(every[0].nodeid) <= MAX_LAST
        for item in every[stays:]:
            item.add_marker(pytest.mark.nightly)
    for every in cases.values():
        mark = every[0].get_closest_marker("by_turns")
        count = mark.args[0] if mark else max(FEW_CASES, len(every) // SHARE)
        every.sort(key=lambda item: cost_of(item.nodeid))
        short = sum(not cost_of(item.nodeid) for item in every)
        kept = evenly(short, count) if short > count else set(range(count))
        for number, item in enumerate(every):
            if number not in kept:
                item.add_marker(pytest.mark.nightly)


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


def parts_of(units: Sequence[str], count: int) -> dict[str, int]:
    """Divide units among parts of about the same cost: the longest first, each to the part with the least so far.

    A unit that is not on record counts as a second for each of its tests.
    """
    sizes: dict[str, int] = {}
    for unit in units:
        sizes[unit] = sizes.get(unit, 0) + 1
    costs = {unit: cost_of(unit) or float(size) for unit, size in sizes.items()}
    sums, part = [0.0] * count, {}
    for unit in sorted(costs, key=lambda unit: (-costs[unit], unit)):
        part[unit] = sums.index(min(sums))
        sums[part[unit]] += costs[unit]
    return part


def longest_first(units: Sequence[str]) -> list[int]:
    """Positions by cost of their unit, then by its size: at the end of a run there is little to wait for."""
    sizes: dict[str, int] = {}
    for unit in units:
        sizes[unit] = sizes.get(unit, 0) + 1
    order = {unit: (-cost_of(unit), -size) for unit, size in sizes.items()}
    return sorted(range(len(units)), key=lambda position: order[units[position]])
