"""The page of trace readers, node lists and arrival processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from reference_pages.markdown import code, generated, prose, row, table

from hetsim import registry
from hetsim.cli.listing import parameters, summary


def traces_page() -> Iterator[str]:
    """Readers of traces and node lists, arrival processes."""
    yield "# Traces, node lists, arrivals"
    yield from generated("the registries of trace readers, node lists and arrival processes")
    yield "[Traces](../traces.md) explains how to use traces, which fields each reader omits, and how readers were"
    yield "checked; [calibrate](../calibrate.md#requests-from-a-trace) does so for traces of requests. [Own trace"
    yield "reader](../how-to/own-trace-reader.md) shows how to write a reader."
    for kind, heading, label in (
        ("traces", "Trace formats", "trace"), ("clusters", "Formats of node lists", "nodes"),
    ):  # fmt: skip
        yield f"\n## {heading}\n"
        for name, reference in registry.table(kind).items():
            if reference.startswith("hetsim."):
                yield from _reader(name, registry.load_object(reference), label)
    yield "\n## Arrival processes\n"
    yield "[Scenario files](scenario.md#poisson-arrivals) describes the keys of all arrival processes.\n"
    yield from table("process", "what it is", "keys")
    for name, reference in registry.table("arrivals").items():
        if reference.startswith("hetsim."):
            item = registry.load_object(reference)
            yield row(code(name), prose(summary(item)), ", ".join(code(key) for key in parameters("arrivals", item)))


def _reader(name: str, item: Callable[..., Any], label: str) -> Iterator[str]:
    yield f"\n### {name}\n"
    text = inspect.cleandoc(item.__doc__ or "")
    yield from (prose(block) + "\n" for block in text.split("\n\n"))
    given = parameters(label, item)
    module = inspect.cleandoc(inspect.getmodule(item).__doc__ or "")  # type: ignore[union-attr]
    for block in module.split("\n\n")[1:]:
        if not block.startswith("    "):
            yield prose(block) + "\n"
    yield "Keys: " + ", ".join(code(key if default is None else f"{key}: {default}") if default != "" else code(key)
                               for key, default in given.items()) + "."  # fmt: skip
