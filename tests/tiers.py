"""The two tiers of the suite: plain `pytest` is the quick one, `pytest --all` the whole."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

whole = False
"""Set by conftest.py before a test module is imported."""


def some(count: int) -> int:
    """A number of repetitions: all of them in the whole suite, a quarter in the quick tier."""
    return count if whole else max(3, count // 4)


def examples(count: int, **more: Any) -> settings:
    """Settings of a property test that tries this number of examples, or a quarter of it in the quick tier."""
    return settings(max_examples=some(count), deadline=None, **more)
