"""The page of Python: public functions with signatures, classes with methods, and their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reference_pages.markdown import code, generated, prose, row, table

import hetsim as hs
from hetsim import plots, registry, testing

RETURNED = {
    "Difference": "hetsim.results.many_runs.difference:Difference",
    "PrecisionPlan": "hetsim.experiment.precision:PrecisionPlan",
    "Sizing": "hetsim.search.size:Sizing", "Training": "hetsim.learning.training.train:Training",
    "Tuning": "hetsim.search.tune:Tuning",
}  # fmt: skip
"""Classes that are made only by functions which return them."""

CHECKS = ("check_policy", "check_predictor", "random_system", "systems")
ELSEWHERE = ("errors", "plots", "theory")
"""Modules among the public names."""
INNER = (
    "add", "add_values", "addresses", "among", "base", "begin", "cells", "content_hash", "contributions",
    "deferred_yaml", "energy_until", "files", "fragmentation_between", "keeps", "moved", "plans_title", "record",
    "replays", "share_table", "shown", "shown_metrics", "shown_plans", "shown_table", "title", "usage",
    "without_chance",
)  # fmt: skip
"""Members of classes that hetsim itself uses, and users hardly ever need."""


def python_page() -> Iterator[str]:
    """Write the sections on functions, classes of results, pictures and tests."""
    yield "# Python"
    yield from generated("the signatures and docstrings of the public names")
    yield "`import hetsim` takes almost no time, since each name is loaded at its first use. Other pages describe"
    yield "the exact queueing models ([queueing theory](../theory.md)), the contract for policies ([own"
    yield "policy](../how-to/own-policy.md)), the [pictures](../pictures.md), the columns of the tables"
    yield "([results](results.md)), and the parts of the interface that later versions keep"
    yield "([promises](../promises.md))."
    names = [name for name in hs.__all__ if name not in ELSEWHERE]
    yield "\n## Functions\n"
    for name in names:
        if inspect.isfunction(item := getattr(hs, name)):
            yield from _function(f"hetsim.{name}", item)
    yield "## Classes of results\n"
    for name in names:
        if inspect.isclass(item := getattr(hs, name)):
            yield from _class(f"hetsim.{name}", item)
    for name, where in RETURNED.items():
        yield from _class(name, registry.load_object(where))
    yield "## Pictures\n"
    for name in plots.__all__:
        yield from _function(f"hetsim.plots.{name}", getattr(plots, name))
    yield "## Tests of policies and files\n"
    for name in CHECKS:
        yield from _function(f"hetsim.testing.{name}", getattr(testing, name))


def public_functions() -> Iterator[tuple[str, Any]]:
    """Return every function and method of the page by its name on the page."""
    names = [name for name in hs.__all__ if name not in ELSEWHERE]
    yield from ((f"hetsim.{name}", item) for name in names if inspect.isfunction(item := getattr(hs, name)))
    yield from ((f"hetsim.plots.{name}", getattr(plots, name)) for name in plots.__all__)
    yield from ((f"hetsim.testing.{name}", getattr(testing, name)) for name in CHECKS)
    classes = [item for name in names if inspect.isclass(item := getattr(hs, name))]
    for item in [*classes, *map(registry.load_object, RETURNED.values())]:
        for key, value in _members(item):
            if inspect.isfunction(function := inspect.unwrap(getattr(value, "__func__", value))):
                yield f"{item.__name__}.{key}", function


def _members(item: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that users may want."""
    for key, value in vars(item).items():
        if not key.startswith("_") and key not in INNER and _is_documented(value):
            yield key, value


def _function(name: str, item: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"```text\n{name}{signature(item)}\n```\n"
    yield from described(inspect.getdoc(item) or "")


def _class(name: str, item: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield from described(inspect.getdoc(item) or "")
    documented = list(_members(item))
    if documented:
        yield from table("member", "meaning")
    for key, value in documented:
        function = inspect.unwrap(getattr(value, "__func__", value))
        called = signature(function) if inspect.isfunction(function) else ""
        yield row(code(key + called), prose(_in_one_line(_doc(value))))
    yield ""


def _is_documented(value: Any) -> bool:
    """Return True for methods and properties with a docstring of their own, not that of their type."""
    if isinstance(value, str | int | float | tuple | list | dict) or value is None:
        return False
    return bool(_doc(value))


def _doc(value: Any) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def signature(item: Any) -> str:
    """Return names and defaults, such as `(scenario, *, seed=None)`; the docstring has the meanings."""
    given = inspect.signature(item)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values()]
    kept = [one for one in plain if one.name not in ("self", "cls")]
    return str(given.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def described(text: str) -> Iterator[str]:
    """Write a docstring: its paragraphs, with lines `name   meaning` as a list, and its sections."""
    paragraphs, sections = parted(text)
    attribute = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")
    for block in paragraphs.split("\n\n"):
        plain: list[str] = []
        items: list[str] = []
        for line in filter(None, block.splitlines()):
            if found := attribute.fullmatch(line):
                items.append(f"`{found[1]}`: {found[2]}")
            elif items and line.startswith(" "):
                items[-1] += " " + line.strip()
            else:
                plain.append(line)
        yield from _list(" ".join(plain), items)
    for name, entries in sections.items():
        if len(entries) == 1 and name != "Parameters":
            yield prose(f"{name}: {entries[0]}") + "\n"
        else:
            yield from _list(f"{name}:", entries)


def parted(text: str) -> tuple[str, dict[str, list[str]]]:
    """The paragraphs of a docstring, and the entries of its sections (Parameters, Returns, Raises)."""
    before, *rest = re.split(r"^(Parameters|Returns|Raises):", text, flags=re.MULTILINE)
    sections: dict[str, list[str]] = {}
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        if body.startswith("\n"):
            parts = re.split(r"\n {4}(?! )", body)[1:]
        else:
            parts = re.split(r"; (?=[\w, ]+: )", " ".join(body.split())) if name != "Returns" else [body]
        known = [" ".join(part.split()) for part in parts]
        sections[name] = known if name == "Returns" else [_named(entry) for entry in known]
    return before.rstrip(), sections


def _named(entry: str) -> str:
    """`name: meaning`, the names as code."""
    names, _, meaning = entry.partition(": ")
    return ", ".join(f"`{name}`" for name in names.split(", ")) + f": {meaning}"


def _in_one_line(text: str) -> str:
    """The first paragraph of a docstring and its sections, for a cell of a table."""
    paragraphs, sections = parted(text)
    told = [f"{name}: {'; '.join(entries)}".rstrip(".") + "." for name, entries in sections.items()]
    return " ".join([paragraphs.split("\n\n")[0], *told])


def _list(text: str, items: Sequence[str]) -> Iterator[str]:
    if text:
        yield prose(text) + "\n"
    if items:
        yield "\n".join("- " + prose(item) for item in items) + "\n"
