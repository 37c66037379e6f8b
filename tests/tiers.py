"""The two tiers of the suite: plain `pytest` is the quick one, `pytest --all` the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

whole = False
"""Set by conftest.py before a test module is imported."""


def some(count: int) -> int:
    """A number of repetitions: all of them in the whole suite, a sixth in the quick tier."""
    return count if whole else max(3, count // 6)


def examples(count: int, **more: Any) -> settings:
    """Settings of a property test that tries this number of examples, or a sixth of it in the quick tier."""
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


TOGETHER = ("async_", "the_table_of_sens", "pcie_and_images")


def runs_shared(module: str, test: str) -> str:
    """The group of tests that look at the same runs, which one process makes once for all; empty: it is alone."""
    if module in ("test_report", "test_compare_groups"):
        return module
    if module != "test_shipped_scenarios":
        return ""
    name, _, parameter = test.removeprefix("test_").partition("[")
    if name.startswith(TOGETHER):
        return "async-latency"
    return parameter.rstrip("]") if name == "nobody_waits_for_ever" else name.replace("_", "-")
