"""Aligned tables of text for a terminal, and its numbers.

This module has no expensive imports and prints nothing: every function returns text.  The formats of numbers, which
need NumPy, are loaded at their first use, so that `hetsim --help` answers at once.
"""

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetsim.results.formatting import (
        JOULES,
        SECONDS,
        clock,
        count,
        data_size,
        energy,
        figures,
        formatter,
        lower_bound,
        metric_name,
        one,
        pair,
        plain,
        rate,
        seconds,
        several,
        share,
        units_of,
    )  # fmt: skip
else:
    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'hetsim.report.terminal' has no attribute {name!r}")
        from hetsim.results import formatting

        globals()[name] = getattr(formatting, name)
        return globals()[name]

__all__ = [
    "JOULES", "SECONDS", "lower_bound", "clock", "count", "data_size", "energy", "figures",
    "formatter", "metric_name", "one", "padded", "pair", "paragraphs", "plain", "rate", "seconds",
    "several", "share", "table", "units_of", "width", "wrapped",
]  # fmt: skip

COLUMNS = 100  # maximum number of columns of a text or a table


def width(text: str) -> int:
    """Return the number of columns that a text occupies on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, columns: int, right: bool) -> str:
    gap = " " * max(0, columns - width(text))
    return gap + text if right else text + gap


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), gap: int = 3) -> list[str]:
    """Return rows of cells as aligned lines; columns in `right` are right-aligned."""
    if not rows:
        return []
    to_right = set(right)
    columns = max(len(row) for row in rows)
    full = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(width(row[column]) for row in full) for column in range(columns)]
    space = " " * gap
    return [space.join(padded(cell, widths[c], c in to_right) for c, cell in enumerate(row)).rstrip() for row in full]


def wrapped(text: str, columns: int = COLUMNS, indent: int = 0) -> list[str]:
    """Return a paragraph as lines; all but the first are indented."""
    return textwrap.wrap(text, columns, subsequent_indent=" " * indent, break_long_words=False)


def paragraphs(texts: Iterable[str]) -> list[str]:
    """Return paragraphs as lines; all but the first line of each are indented."""
    return [line for text in texts for line in wrapped(text, indent=2)]
