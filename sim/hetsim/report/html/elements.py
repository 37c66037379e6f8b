"""Parts of a self-contained HTML page: sections, sortable tables, pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from hetsim.errors import UsageError, visible_lines
from hetsim.results.pictures import attempt

STYLE = """
:root { color-scheme: light; --ink: #222; --muted: #666; --line: #e2e2e2; --mark: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; line-height: 1.5;
       font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.1rem; }
header { padding-top: 1.6rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-top: .5rem; border-top: 1px solid var(--line); }
p, li { max-width: 46rem; overflow-wrap: anywhere; }
header p { color: var(--muted); margin: .2rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin-top: .8rem; font-size: .92rem; }
a { color: var(--mark); }
ul { padding-left: 1.2rem; margin: .4rem 0; }
li { margin: .25rem 0; }
.warning { border-left: 3px solid #d55e00; padding: .1rem 0 .1rem .8rem; margin: .5rem 0; }
.wide { overflow-x: auto; margin: .4rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding: .2rem 0; }
th, td { padding: .28rem .7rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.number, td.number { text-align: right; }
thead th { vertical-align: bottom; white-space: normal; min-width: 4.5rem; border-bottom: 2px solid #bbb; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--mark); }
th button::after { content: "\\2195"; color: #bbb; padding-left: .3em; font-size: .8em; }
th[aria-sort=ascending] button::after { content: "\\2191"; color: var(--mark); }
th[aria-sort=descending] button::after { content: "\\2193"; color: var(--mark); }
figure { margin: .6rem 0 1.4rem; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--muted); font-size: .9rem; max-width: 46rem; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem 1rem; font-size: .85rem; line-height: 1.4; }
details > summary { cursor: pointer; color: var(--mark); }
footer { color: var(--muted); font-size: .85rem; padding-bottom: 2rem; margin-top: 2.5rem; }
@media (max-width: 40rem) { h1 { font-size: 1.3rem; } th, td { padding: .3rem .5rem; }
  figure { overflow-x: auto; } figure img { max-width: none; width: 42rem; } }
@media print { th button::after { content: ""; } nav { display: none; } }
"""

SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const number = head.classList.contains("number");
      const key = row => {
        const cell = row.cells[column];
        return number ? (cell.dataset.value === "" ? NaN : Number(cell.dataset.value)) : cell.textContent;
      };
      const rows = Array.from(table.tBodies[0].rows).map(row => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (!number) return (up ? 1 : -1) * a.localeCompare(b, "en", {numeric: true});
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);   // what has no value stays below
        return a === b ? 0 : (up ? 1 : -1) * (a < b ? -1 : 1);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
});
"""

PICTURE_DPI = 110


def escape(text: str) -> str:
    """A text as HTML shows it, control characters as escapes."""
    return html.escape(visible_lines(text))


class Cell(NamedTuple):
    """The text of a cell, and the number by which its column is sorted."""

    text: str
    value: float


class Section(NamedTuple):
    """A part of the page with a heading; `body` is HTML."""

    title: str
    body: str


def page(title: str, lines: Iterable[str], sections: Sequence[Section], footer: str) -> str:
    """The whole page."""
    kept = [section for section in sections if section.body]
    links = "".join(f'<a href="#part-{n}">{escape(section.title)}</a>' for n, section in enumerate(kept))
    parts = "".join(
        f'<section id="part-{n}"><h2>{escape(section.title)}</h2>{section.body}</section>\n'
        for n, section in enumerate(kept)
    )
    said = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{said}<nav>{links}</nav></header>\n<main>\n{parts}</main>\n"
        f"<footer><p>{escape(footer)}</p></footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A sortable table; cells are texts, or a `Cell` that sorts by number."""
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
    """A list of sentences."""
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{lines}</ul>" if lines else ""


def warnings(texts: Iterable[str]) -> str:
    """Warnings to be read before the figures."""
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in texts)


def picture(draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str:
    """The figure or axes of `draw` inside the page; a warning where that fails.

    An optional picture is left out where `draw` refuses by UsageError.
    """
    data = BytesIO()

    def write() -> None:
        try:
            drawn = draw()
        except UsageError:
            if not optional:
                raise
            return
        figure = (drawn.get_figure(root=True) if hasattr(drawn, "get_figure") else drawn) or drawn
        figure.savefig(data, format="png", dpi=PICTURE_DPI)

    failed = attempt(f'"{alt}"', write)
    if failed is not None:
        return warnings([failed])
    if not data.getvalue():
        return ""
    code = base64.b64encode(data.getvalue()).decode("ascii")
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{code}">{below}</figure>'


def code(text: str, summary: str = "") -> str:
    """Text as it is, folded away under a summary if one is given."""
    block = f"<pre>{escape(text)}</pre>"
    return f"<details><summary>{escape(summary)}</summary>{block}</details>" if summary else block
