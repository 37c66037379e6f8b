"""The page of Python: public functions with their signatures, classes with their methods, and what is said of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reference_pages.markdown import code, generated, prose, row, table

import sim
from sim import plots, registry, testing

RETURNED = {
    "Difference": "sim.results.many_runs.difference:Difference",
    "PrecisionPlan": "sim.experiment.precision:PrecisionPlan",
    "Sizing": "sim.experiment.size:Sizing", "Training": "sim.learning.training.train:Training",
    "Tuning": "sim.results.many_runs.tuning:Tuning",
}  # fmt: skip
"""Classes that functions return, and that are made in no other way."""

CHECKS = ("check_policy", "check_trace", "random_system", "systems")
ELSEWHERE = ("errors", "plots", "theory")
"""Modules among the public names."""
INNER = (
    "add", "add_values", "base", "cells", "content_hash", "energy_until", "files", "moved", "plans_title", "record",
    "replays", "share_table", "shown", "shown_metrics", "title", "usage", "without_chance",
)  # fmt: skip
"""Members of classes that the program itself needs, and users hardly ever."""


def python_page() -> Iterator[str]:
    """Functions of `sim`, what they return, pictures, tests."""
    yield "# Python"
    yield from generated("the signatures and docstrings of the public names")
    yield "`import sim` costs next to nothing; each name is loaded when it is first used. Exact queueing models:"
    yield "[queueing theory](../theory.md); the contract for policies: [own policy](../how-to/own-policy.md); what the"
    yield "pictures look like: [pictures](../pictures.md); the columns of the tables: [results](results.md)."
    names = [name for name in sim.__all__ if name not in ELSEWHERE]
    yield "\n## Functions\n"
    for name in names:
        if inspect.isfunction(item := getattr(sim, name)):
            yield from _function(f"sim.{name}", item)
    yield "## What they return\n"
    for name in names:
        if inspect.isclass(item := getattr(sim, name)):
            yield from _class(f"sim.{name}", item)
    for name, where in RETURNED.items():
        yield from _class(name, registry.load_object(where))
    yield "## Pictures\n"
    for name in plots.__all__:
        yield from _function(f"sim.plots.{name}", getattr(plots, name))
    yield "## Tests of policies and files\n"
    for name in CHECKS:
        yield from _function(f"sim.testing.{name}", getattr(testing, name))


def _function(name: str, item: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"```text\n{name}{signature(item)}\n```\n"
    yield from described(inspect.getdoc(item) or "", list(inspect.signature(item).parameters))


def _class(name: str, item: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield from described(inspect.getdoc(item) or "", ())
    members = [(key, value) for key, value in vars(item).items() if not key.startswith("_") and key not in INNER]
    documented = [(key, value) for key, value in members if _is_documented(value)]
    if documented:
        yield from table("member", "meaning")
    for key, value in documented:
        function = inspect.unwrap(getattr(value, "__func__", value))
        called = signature(function) if inspect.isfunction(function) else ""
        yield row(code(key + called), prose(_doc(value).split("\n\n")[0]))
    yield ""


def _is_documented(value: Any) -> bool:
    """Methods and properties with a text of their own; a plain attribute has that of its type."""
    if isinstance(value, str | int | float | tuple | list | dict) or value is None:
        return False
    return bool(_doc(value))


def _doc(value: Any) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def signature(item: Any) -> str:
    """`(scenario, *, seed=None)`: names and defaults; what each is stands in the text."""
    given = inspect.signature(item)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values()]
    kept = [one for one in plain if one.name not in ("self", "cls")]
    return str(given.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def described(text: str, names: Sequence[str]) -> Iterator[str]:
    """The paragraphs of a docstring; lines `name: meaning` of parameters, and `name   meaning`, become a list."""
    known = "|".join(map(re.escape, names)) or "(?!)"
    begins = re.compile(rf"((?:{known})(?:, (?:{known}))*): +(.*)|(\w+(?:, \w+)*) {{2,}}(\S.*)")
    for block in text.split("\n\n"):
        plain: list[str] = []
        items: list[list[str]] = []
        for line in block.splitlines():
            if found := begins.fullmatch(line):
                items.append([f"`{found[1] or found[3]}`: {found[2] or found[4]}"])
            elif items and line.startswith(" "):
                items[-1].append(line.strip())
            elif items:
                yield from _list(plain, items)
                plain, items = [line], []
            else:
                plain.append(line)
        yield from _list(plain, items)


def _list(plain: list[str], items: list[list[str]]) -> Iterator[str]:
    if plain:
        yield prose(" ".join(plain)) + "\n"
    if items:
        yield "\n".join("- " + prose(" ".join(lines)) for lines in items) + "\n"
