"""Syntax trees of sources, walked in a quarter of the time of `ast.walk`: tests look through all of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = [path for folder in ("policies", "sim")
           for path in sorted((Path(__file__).parent.parent / folder).rglob("*.py"))]  # fmt: skip
"""All files of the packages."""


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but those that tell loading from storing, in no stated order."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        values = vars(node)
        for name in node._fields:
            value = values.get(name)
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                stack.append(value)


Nodes = dict[type[ast.AST], list[Any]]
"""The nodes of a tree by their class."""


def by_class(tree: ast.AST) -> Nodes:
    """All nodes of a tree but those that tell loading from storing, each class in no stated order."""
    found: Nodes = {}
    stack = [tree]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind in found:
            found[kind].append(node)
        else:
            found[kind] = [node]
        if kind is ast.Name or kind is ast.Constant:
            continue
        values = vars(node)
        for name in node._fields:
            value = values.get(name)
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                stack.append(value)
    return found


_LOOKS: dict[str, Callable[[Nodes], Any]] = {}


def look(name: str, at: Callable[[Nodes], Any]) -> None:
    """Let `seen(name)` be what this function says of the nodes of each file."""
    _LOOKS[name] = at


@cache
def _seen() -> dict[str, dict[Path, Any]]:
    """What each look sees in each file: to make the trees takes most of the time, so that it is done once for all."""
    answers: dict[str, dict[Path, Any]] = {name: {} for name in _LOOKS}
    enabled = gc.isenabled()
    gc.disable()  # trees have no cycles, and millions of nodes
    try:
        for path in SOURCES:
            nodes = by_class(ast.parse(path.read_text(encoding="utf-8")))
            for name, at in _LOOKS.items():
                answers[name][path] = at(nodes)
    finally:
        if enabled:
            gc.enable()
    return answers


def seen(name: str) -> dict[Path, Any]:
    """What a look sees in each file of the packages; tests that ask for it are in the group `sources`."""
    return _seen()[name]
