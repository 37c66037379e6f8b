"""Parts of a self-contained HTML page: sections, sortable tables, pictures.

Style and scripts are in `page.css`, `core.js`, `tables.js`, `pictures.js`, and (for columns of runs) `explorer.js`.
"""

import base64
import html
import json
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetsim.errors import UsageError, visible_lines
from hetsim.model.files import write_whole
from hetsim.results.colors import GRID, INK, MUTED, PALETTE
from hetsim.results.panels import Picture, attempt, settled

LONG_FIGURE = 12  # characters above which figures on cards have a smaller font


def escape(text: str) -> str:
    """Escape a text for HTML, with control characters visible."""
    return html.escape(visible_lines(text))


class Cell(NamedTuple):
    """The text of a table cell, and the number by which it is sorted."""

    text: str
    value: float


class Markup(Protocol):
    """The functions that make tables and pictures, on a page or in a paper."""

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str: ...
    def picture(self, draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str: ...
    def folded(self, body: str, summary: str) -> str: ...


class Section(NamedTuple):
    """A part of the page with a heading; `body` is HTML."""

    title: str
    body: str


def write_page(path: Path, text: str) -> None:
    """Write a page atomically, with the same bytes on every system."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def page(title: str, lines: Iterable[str], sections: Sequence[Section], columns: bytes = b"") -> str:
    """Return the HTML page; columns: compressed task data for the explorer element."""
    from hetsim import __version__

    kept = [section for section in sections if section.body]
    links = "".join(f'<a href="#part-{n}">{escape(section.title)}</a>' for n, section in enumerate(kept))
    parts = "".join(
        f'<section id="part-{n}"><h2>{escape(section.title)}</h2>{section.body}</section>\n'
        for n, section in enumerate(kept)
    )
    said = "".join(f"<p>{escape(line)}</p>" for line in lines)
    names = ["core.js", "tables.js", "pictures.js", *(["explorer.js"] if columns else [])]
    scripts = "\n".join(map(_file, names))
    packed = base64.b64encode(columns).decode("ascii")
    data = f'<script type="text/plain" id="columns">{packed}</script>\n' if columns else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{_file('page.css')}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{said}<nav>{links}</nav></header>\n<main>\n{parts}</main>\n"
        f"<footer><p>Made by hetsim {escape(__version__)}.</p></footer>\n"
        f"{data}<script>{scripts}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def explorer() -> str:
    """Return the element in which the script shows pictures and tables."""
    return (
        '<div id="explorer"><noscript><p class="warning">The pictures and tables of tasks need JavaScript.</p>'
        "</noscript></div>"
    )


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """Return the main figures in large type: title, value, metric name."""
    entries = "".join(
        f'<div title="{escape(name)}"><dt>{escape(title)}</dt>'
        f"<dd{' class=long' if len(text) > LONG_FIGURE else ''}>{escape(text)}</dd></div>"
        for title, text, name in figures
    )
    return f'<dl class="cards">{entries}</dl>' if entries else ""


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return a sortable table; cells are texts, or a `Cell` that sorts by number."""
    body = [list(row) for row in rows]
    if not body:
        return ""
    number = [isinstance(cell, Cell) for cell in body[0]]
    head = "".join(
        f'<th scope="col"{" class=number" if is_number else ""}><button type="button">{escape(title)}</button></th>'
        for title, is_number in zip(titles, number, strict=True)
    )
    cells = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in body)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table class="sortable">{above}<thead><tr>{head}</tr></thead>'
        f"<tbody>{cells}</tbody></table></div>"
    )


def _cell(cell: str | Cell) -> str:
    if not isinstance(cell, Cell):
        return f"<td>{escape(cell)}</td>"
    value = "" if cell.value != cell.value else f"{cell.value!r}".replace("inf", "Infinity")
    return f'<td class="number" data-value="{value}">{escape(cell.text)}</td>'


def items(texts: Iterable[str]) -> str:
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{lines}</ul>" if lines else ""


def warnings(texts: Iterable[str]) -> str:
    """Return warnings as HTML, to be placed before the figures."""
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in texts)


def picture(draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str:
    """Return the picture of `draw` as data for the page; a warning if drawing fails.

    An optional picture is omitted if `draw` raises UsageError.
    """
    data = list[bytes]()

    def write() -> None:
        if (made := made_by(draw, optional)) is not None:
            data.append(zlib.compress(json.dumps(described(made), allow_nan=False, ensure_ascii=False).encode(), 9))

    failed = attempt(f'"{alt}"', write)
    if failed is not None or not data:
        return warnings([failed] if failed else [])
    code = base64.b64encode(data[0]).decode("ascii")
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure role="group" aria-label="{escape(alt)}" data-picture="{code}">{below}</figure>'


def made_by(draw: Callable[[], Any], optional: bool) -> Any:
    """Return the picture of `draw`; None if it is optional and raises UsageError."""
    try:
        return draw()
    except UsageError:
        if not optional:
            raise
        return None


PIXELS = 80.0  # pixels per inch of a picture's width, on a usual screen
# colors with a CSS variable, which differs between light and dark mode
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", **{color: f"c{n}" for n, color in enumerate(PALETTE)}}


def described(picture: Picture) -> Any:
    """Return the picture for `pictures.js`: fields by name, numbers with seven digits."""
    pixels = PIXELS * picture.width / max(map(len, picture.rows))
    return _data(replace(picture, rows=[[panel and settled(panel, pixels) for panel in row] for row in picture.rows]))


def _data(value: Any, is_color: bool = False) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        return VARIABLES.get(value, value) if is_color else visible_lines(value)
    if isinstance(value, list | tuple):
        return [_data(one, is_color) for one in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if is_dataclass(value):
        made = {field.name: _data(getattr(value, field.name), field.name == "color") for field in fields(value)}
        return {"kind": type(value).__name__, **made}
    return value


def code(text: str, summary: str = "") -> str:
    """Return preformatted text, collapsed under a summary if one is given."""
    block = f"<pre>{escape(text)}</pre>"
    return folded(block, summary) if summary else block


def folded(body: str, summary: str) -> str:
    """Return HTML collapsed under a summary; empty if there is no HTML."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""
