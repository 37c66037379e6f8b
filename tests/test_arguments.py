"""Calls that give more than four arguments name those behind the third; unpacked ones (`*pair`) are left alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import syntax

TOP = Path(__file__).parent.parent
MAX_BY_POSITION = 4
EXCEPT = {
    "made for each task of a run: by name they cost 0.1 µs more each, which is 4 % of the time of a plain task": (
        "Task Launch"
    ),
    "they take any number of arguments": "zip add put keys_of",
    "they hand arguments on to a function that they are given": "_at call partial",
    "called through an attribute or a table, with the arguments of whatever stands there": (
        "ended measurements.reader('latencies')"
    ),
    "not ours: they take their arguments by position, or in an order that is commonly known": "datetime Conv2d",
    "of `struct`, which takes values by position alone": "_pack pack_steps",
}
"""Names of functions and classes, by the reason why their arguments are not named."""


def by_position(nodes: syntax.Nodes) -> Iterator[tuple[int, str]]:
    """Lines and names of calls that give more than four arguments by position."""
    for node in nodes.get(ast.Call, ()):
        if len(node.args) > MAX_BY_POSITION and not any(isinstance(one, ast.Starred) for one in node.args):
            yield node.lineno, node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


syntax.look("by position", lambda nodes: [*by_position(nodes)])


@pytest.mark.xdist_group("sources")
def test_more_than_four_arguments_are_named() -> None:
    calls = [(path, *one) for path, found in syntax.seen("by position").items() for one in found]
    excepted = {name for names in EXCEPT.values() for name in names.split()}
    wrong = [f"{path.relative_to(TOP)}:{line} {name}" for path, line, name in calls if name not in excepted]
    assert not wrong, "name the arguments behind the third:\n" + "\n".join(wrong)
    assert excepted == {name for _, _, name in calls}, "an exception that nothing needs"


def test_a_call_with_five_by_position_is_seen() -> None:
    tree = ast.parse("f(1, 2, 3, 4, 5)\nf(1, 2, 3, d=4, e=5)\na.g(1, 2, 3, 4, 5)\nf(1, 2, 3, 4, *more)\nf(1, 2, 3, 4)")
    assert sorted(by_position(syntax.by_class(tree))) == [(1, "f"), (3, "g")]
