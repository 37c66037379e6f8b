"""Markdown of the reference pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def prose(text: str) -> str:
    """Return a docstring's text as one line of Markdown, with accidental tags and emphasis escaped."""
    line = " ".join(text.split())
    parts = re.split(r"(`[^`]*`)", line)
    for number in range(0, len(parts), 2):
        plain = parts[number].replace("<", "&lt;").replace(" * ", " \\* ")
        parts[number] = re.sub(r"(?<=\w)\*(?=\W)(?!\*)|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)", r"\\\g<0>", plain)
    return "".join(parts)


def table(*heads: str) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| " + " | ".join("---" for _ in heads) + " |"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(text: Any) -> str:
    return f"`{text}`" if str(text) else ""


def generated(what: str) -> list[str]:
    return ["", f"`docs/make_reference.py` generates this page from {what}.", ""]
