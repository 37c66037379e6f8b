"""Docstrings of the public names have one form: what it does, then Parameters, Returns and Raises.

    Parameters:
        name: what it is; two that belong together stand as `low, high: ...`
    Returns: what comes out.
    Raises:
        UsageError: when.

What is short stands on the line of its section, several entries with `;` between them.  A method without parameters may
say in its first line what it returns ("Return ...").  Properties are nouns.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from test_guide import made

from hetsim import errors
from hetsim.experiment.shard import ShardOver

SECTION = re.compile(r"(Parameters|Returns|Raises):(?: (.*))?")
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): \S.*")


@dataclass
class Section:
    """Its lines without their indentation; `inline`: they begin on the line of its name."""

    inline: bool
    lines: list[str]


def sections(text: str) -> dict[str, Section]:
    """The sections of a docstring by name; they are its end."""
    found: dict[str, Section] = {}
    here: Section | None = None
    for line in inspect.cleandoc(text).splitlines():
        if match := SECTION.fullmatch(line):
            assert match[1] not in found, f"{match[1]} twice"
            here = found[match[1]] = Section(bool(match[2]), [match[2]] if match[2] else [])
        elif here is not None:
            assert line.startswith("    "), f"a line that is in no section: {line!r}"
            here.lines.append(line[4:])
    assert all(section.lines for section in found.values()), "a section is empty"
    return found


def entries(section: Section | None) -> list[str]:
    """The names that a section describes."""
    if section is None:
        return []
    if section.inline:
        begun = re.split(r"; (?=[\w, ]+: )", " ".join(section.lines))
    else:
        begun = [line for line in section.lines if not line.startswith("    ")]
    wrong = [line for line in begun if not ENTRY.fullmatch(line)]
    assert not wrong, f"no `name: meaning`: {wrong}"
    return [name for line in begun for name in line.partition(": ")[0].split(", ")]


def raised(function: Callable[..., Any]) -> set[str]:
    """The classes of exceptions that its own code raises."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {found.func.id for found in calls if isinstance(found, ast.Call) and isinstance(found.func, ast.Name)}


def complaints(function: Callable[..., Any]) -> Iterator[str]:
    """What its docstring lacks."""
    text = function.__doc__ or ""
    found = sections(text)
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    described = entries(found.get("Parameters"))
    if described != names and sorted(described) != sorted(names):
        yield f"parameters {names}, described are {described}"
    returns = signature.return_annotation not in (None, "None", NoReturn)
    by_summary = not names and text.startswith("Return ")
    if returns != ("Returns" in found or by_summary):
        yield "Returns is missing" if returns else "Returns of what returns None"
    named = entries(found.get("Raises"))
    for name in named:
        kind = getattr(errors, name, None) or getattr(builtins, name, None) or {"ShardOver": ShardOver}.get(name)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield f"{name} is no exception"
    if lacking := raised(function) - set(named):
        yield f"raises {sorted(lacking)} without a word"
    if list(found) != [name for name in ("Parameters", "Returns", "Raises") if name in found]:
        yield f"the order is {list(found)}"


def public() -> list[Any]:
    """Every function and method of the page."""
    return [pytest.param(item, id=name) for name, item in made().public_functions()]


@pytest.mark.parametrize("function", public())
def test_a_public_function_says_what_it_takes_gives_and_raises(function: Callable[..., Any]):
    assert not list(complaints(function))


def test_what_is_missing_is_seen():
    def wrong(a: int, b: int) -> int:
        """Add.

        Parameters:
            a: one
            c: another
        Raises: Nonsense: never.
        """
        if a > b:
            raise ValueError(a)
        return a + b

    assert list(complaints(wrong)) == [
        "parameters ['a', 'b'], described are ['a', 'c']", "Returns is missing", "Nonsense is no exception",
        "raises ['ValueError'] without a word",
    ]  # fmt: skip
