"""Processor seconds of tests: `pytest --costs=FILE` writes them; `python tests/costs.py FILE...` makes tests/costs.csv.

What is on record decides which slow tests are nightly, how nightly ones are divided, and which start first (tiers.py).
Rows of tests that the files do not have stay.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import tiers

SHORTEST = 0.3
"""Seconds from which on a test or a group has a row."""


def spent() -> float:
    """Processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Costs:
    """A plugin that adds a line for each test: its seconds, its group or itself, itself."""

    def __init__(self, file: str) -> None:
        self.file = file

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = spent()
        done = yield
        group = item.get_closest_marker("xdist_group")
        name = item.nodeid.removesuffix(f"@{group.args[0]}" if group else "")
        with open(self.file, "a", encoding="utf-8") as target:
            target.write(f"{spent() - before:.2f}\t{tiers.unit_of(item).partition('@')[0]}\t{name}\n")
        return done


def measured(files: list[str]) -> dict[str, float]:
    """Seconds of each test; of a group that of all its tests, next to those of each."""
    tests: dict[str, tuple[float, str]] = {}
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            seconds, unit, name = line.split("\t")
            tests[name] = float(seconds), unit
    sums: dict[str, float] = {}
    for name, (seconds, unit) in tests.items():
        for one in {unit, name}:
            sums[one] = sums.get(one, 0.0) + seconds
    return sums


if __name__ == "__main__":
    rows = tiers.recorded_costs() | measured(sys.argv[1:])
    with tiers.COSTS.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(("test", "seconds"))
        writer.writerows((test, f"{cost:.1f}") for test, cost in sorted(rows.items()) if cost >= SHORTEST)
