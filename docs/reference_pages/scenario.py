"""The page of scenario files: all keys, from their JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from reference_pages.markdown import code, generated, prose, row, table

from hetsim import registry

NAMES = {
    "sim__scenario__cluster_schema__Network": "Network of a node",
    "sim__scenario__service_schema__Network": "Network of a service",
    "sim__scenario__service_schema__Cache": "Cache of results",
    "sim__scenario__llm_schema__Cache": "Cache of keys and values",
    "Entry": "Workload entry",
}
"""Headings of models with names that say too little."""


def scenario_page() -> Iterator[str]:
    """All keys of a scenario file, from the whole to its parts."""
    from hetsim.scenario.schema.whole import json_schema

    schema = json_schema()
    parts = {name: part for name, part in schema["$defs"].items() if part.get("properties")}
    order: dict[str, None] = {}
    for name in _reachable(schema, schema["$defs"]):
        if name in parts:
            order.setdefault(_title(name))
    by_title = {_title(name): parts[name] for name in reversed(list(parts))}
    yield "# Scenario files"
    yield from generated("the JSON Schema that `hetsim schema` prints")
    yield "A scenario is one YAML file. A value with a dimension has a unit (`5 min`, `2 GB`, `40/h`, `250 W`,"
    yield "`5%`); an unknown key is an error, and the message suggests a known key. In place of a list of mappings a"
    yield "single mapping is accepted. Keys in **bold** are required. A *distribution* is either a quantity, which"
    yield "is constant, or a mapping with the key `distribution` and one of the kinds below."
    yield ""
    yield "## The whole file"
    yield ""
    yield from _keys(schema)
    for title in order:
        part = by_title[title]
        yield f"\n## {title}\n"
        if part.get("description"):
            yield from (prose(text) + "\n" for text in part["description"].split("\n\n"))
        yield from _keys(part)


def _reachable(part: Any, defs: Mapping[str, Any], seen: dict[str, None] | None = None) -> dict[str, None]:
    """Names of the definitions that a part of the schema refers to, depth first, in the order of its keys."""
    seen = {} if seen is None else seen
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref" and (name := value.rpartition("/")[2]) not in seen:
                seen[name] = None
                _reachable(defs[name], defs, seen)
            elif key not in ("$defs", "discriminator", "$ref"):
                _reachable(value, defs, seen)
    elif isinstance(part, list):
        for value in part:
            _reachable(value, defs, seen)
    return seen


def _title(name: str) -> str:
    """Return a heading; `LognormalSeconds` and `LognormalBytes` share the heading Lognormal distribution."""
    if name in NAMES:
        return NAMES[name]
    plain = re.sub(r"_Annotated.*", "", name)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    words = words[0] + words[1:].lower()
    if plain != name and plain != "Branch":
        return f"{words} distribution"
    return f"{_ARRIVALS[plain]} arrivals" if plain in _ARRIVALS else words


_ARRIVALS = {reference.rpartition(":")[2]: name for name, reference in registry.table("arrivals").items()}


def _keys(part: dict[str, Any]) -> Iterator[str]:
    required = part.get("required", ())
    yield from table("key", "value", "default", "meaning")
    keys = dict(part["properties"])
    if "patternProperties" in part:
        (typed,) = part["patternProperties"].values()
        keys = {key: value for name, one in keys.items() for key, value in _with_typed(name, one, typed)}
    for key, one in keys.items():
        name = f"**{code(key)}**" if key in required else code(key)
        yield row(name, _value(one), _default(one), prose(one["description"]))


def _with_typed(name: str, one: Any, typed: Any) -> list[tuple[str, Any]]:
    return [(name, one), ("gpu_time.TYPE", typed)] if name == "gpu_time" else [(name, one)]


def _default(one: dict[str, Any]) -> str:
    value = one.get("default")
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(value) if isinstance(value, int | float | str) and str(value) and "const" not in one else ""


def _value(one: dict[str, Any]) -> str:
    """Describe the accepted values in a few words, with links to parts that have keys of their own."""
    found = list(dict.fromkeys(_kinds(one)))
    found = [f"{kind} or a list" if f"list of {kind}" in found else kind for kind in found
             if kind.removeprefix("list of ") == kind or kind.removeprefix("list of ") not in found]  # fmt: skip
    if "*distribution*" in found:
        found = [kind for kind in found if not kind.endswith(" distribution")]
    return " or ".join(found)


def _kinds(one: dict[str, Any]) -> Iterator[str]:
    if "$ref" in one:
        title = _title(one["$ref"].rpartition("/")[2])
        if title.endswith(" distribution"):
            yield "*distribution*"
        elif title.endswith(" arrivals"):
            yield "*arrival process*"
        else:
            yield f"[{title[0].lower() + title[1:]}](#{_anchor(title)})"
        return
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in one:
            for each in one[choice]:
                yield from _kinds(each)
            return
    if "enum" in one or "const" in one:
        values = one.get("enum") or [one["const"]]
        shown = [value for value in values if value is not None and value != 0]
        yield from (code(str(value).lower() if isinstance(value, bool) else value) for value in shown)
    elif one.get("type") == "array":
        items = one.get("items") or (one.get("prefixItems") or [{}])[0]
        inner = list(dict.fromkeys(_kinds(items)))
        yield "list of " + (" or ".join(inner) if inner else "values")
    elif one.get("type") == "object":
        values = one.get("additionalProperties")
        inner = list(dict.fromkeys(_kinds(values))) if isinstance(values, dict) and values else []
        yield "mapping to " + " or ".join(inner) if inner else "mapping"
    elif one.get("examples"):
        yield " or ".join(code(example) for example in one["examples"])
    else:
        kind = one.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
        yield from (words[kind] for kind in kinds if kind in words)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower())
