"""Calls that give more than four arguments name those behind the third; unpacked ones (`*pair`) are left alone."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parent.parent
MAX_BY_POSITION = 4
ONE_A_TASK = {"Task", "Launch"}
"""Made for each task of a run: by name they cost 0.1 µs more each, which is 4 % of the time of a plain task."""


def parameters(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of functions and classes with the number of arguments that each takes by position; -1: any number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            takes = node.args
            number = -1 if takes.vararg else len(takes.posonlyargs) + len(takes.args)
            yield node.name, number
        elif isinstance(node, ast.ClassDef):
            made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            yield node.name, dict(parameters(made[0]))["__init__"] if made else 99


def by_position(tree: ast.AST, takes: dict[str, set[int]]) -> list[int]:
    """The lines of calls of these functions that give more than four arguments by position."""
    lines = []
    for node in ast.walk(tree):
        unpacked = isinstance(node, ast.Call) and any(isinstance(one, ast.Starred) for one in node.args)
        if isinstance(node, ast.Call) and len(node.args) > MAX_BY_POSITION and not unpacked:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ONE_A_TASK:
                continue
            numbers = {99} if name in ("__init__", "cls") else takes.get(name, set())
            if numbers and -1 not in numbers and max(numbers) >= len(node.args):
                lines.append(node.lineno)
    return lines


def test_more_than_four_arguments_are_named() -> None:
    paths = [path for top in ("sim", "policies") for path in sorted((TOP / top).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    takes: dict[str, set[int]] = defaultdict(set)
    for tree in trees.values():
        for name, number in parameters(tree):
            takes[name].add(number)
    wrong = [f"{path.relative_to(TOP)}:{line}" for path, tree in trees.items() for line in by_position(tree, takes)]
    assert not wrong, "name the arguments behind the third:\n" + "\n".join(wrong)


def test_a_call_with_five_by_position_is_seen() -> None:
    tree = ast.parse("def f(a, b, c, d, e): ...\nf(1, 2, 3, 4, 5)\nf(1, 2, 3, d=4, e=5)\ng(1, 2, 3, 4, 5)")
    takes = {name: {number} for name, number in parameters(tree)}
    assert by_position(tree, takes) == [2]
