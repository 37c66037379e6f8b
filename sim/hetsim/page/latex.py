"""Tables and figures of a page as files for LaTeX: floats with booktabs, PDFs at the width of a column.

`Latex` has the functions of `hetsim.page.elements` that tables and pictures are made by, so that a paper shows what
the page shows.  Nothing in a name is a command of LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.errors import visible_lines
from hetsim.model.files import write_text
from hetsim.page.elements import Cell, figure_of
from hetsim.results.many_runs.groups import SHOWN_MARK
from hetsim.results.pictures import attempt

MAX_ROWS = 40
"""A float has to fit on a page; the files of the results have all rows."""
LETTER = 4.1
"""Points that a letter takes in a table, on average."""


class Style(NamedTuple):
    """The widths of a venue's column and page, in points."""

    column: float
    text: float
    gap: float
    """Between columns; 0 where there is one."""


STYLES = {
    "ieee": Style(252.0, 516.0, 12.0),
    "acm": Style(241.15, 506.3, 24.0),
    "neurips": Style(397.48, 397.48, 0.0),
}
"""IEEEtran (conference), acmart (sigconf) and the style of NeurIPS."""

_CHARACTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "-": "{-}", "[": "{[}", "]": "{]}",
    "*": "{*}", "'": "{'}", ",": "{,}", "?": "{?}", "!": "{!}", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$",
    "µ": r"\textmu{}", "μ": r"\textmu{}", "∞": r"$\infty$", "≥": r"$\geq$", "≤": r"$\leq$", "−": r"$-$", "–": "--",
    "—": "---", "…": r"\dots{}", "’": "{'}", "→": r"$\rightarrow$", "²": r"\textsuperscript{2}", "\xad": "",
    "\xa0": "~", "◂": r"$\triangleleft$",
}  # fmt: skip
"""Characters that LaTeX does not print as they are, those of ligatures, and the ones that tables of hetsim have."""


def escape(text: str) -> str:
    """A text as LaTeX prints it; letters beyond Latin ones as their code points."""
    return "".join(map(_escaped, visible_lines(text).replace("\n", " ")))


def _escaped(character: str) -> str:
    code = ord(character)
    return _CHARACTERS.get(character) or (character if code < 0x180 and code not in (0x149, 0x17F) else f"U+{code:04X}")


class Latex:
    """Writes floats into a folder; has the functions of `elements` for tables and pictures."""

    def __init__(self, folder: Path, style: Style):
        self.folder, self.style = folder, style
        self.files: list[str] = []
        """Names of the floats, in order."""

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
        """Write a float with a table; ◂ is bold."""
        body = [list(row) for row in rows]
        if not body:
            return ""
        if len(body) > MAX_ROWS:
            caption += f"{'; the' if caption else 'The'} first {MAX_ROWS} of {len(body):,} rows"
        texts = [list(map(_text, row)) for row in [titles, *body[:MAX_ROWS]]]
        letters = sum(2 + max(len(row[at]) for row in texts if at < len(row)) for at in range(len(titles)))
        columns = "".join("r" if isinstance(cell, Cell) else "l" for cell in body[0])
        lines = [" & ".join(map(_cell, row)) + r" \\" for row in texts]
        return self._float("table", letters * LETTER, [
            rf"\caption{{{escape(caption.replace('◂', 'bold:'))}}}" if caption else r"\caption{}",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
            r"\end{tabular}}",
        ])  # fmt: skip

    def picture(self, draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str:
        """Write a float with the figure of `draw`; none if drawing fails, which warns."""
        from hetsim.plots.style import on_paper

        drawn: list[float] = []
        name = self._next("figure")

        def write() -> None:
            with on_paper(self.style.column / 72.27, self.style.text / 72.27):
                if (figure := figure_of(draw, optional)) is not None:
                    figure.savefig(self.folder / f"{name}.pdf")
                    drawn.append(72.27 * figure.get_figwidth())

        if attempt(f'"{alt}"', write) is not None or not drawn:
            return ""
        text = escape(alt[:1].upper() + alt[1:] + (f". {caption}" if caption else ""))
        return self._float("figure", drawn[0], [rf"\includegraphics{{{name}.pdf}}", rf"\caption{{{text}}}"])

    def folded(self, body: str, summary: str) -> str:
        """Nothing is folded on paper."""
        return body

    def _next(self, kind: str) -> str:
        """The name of the next float of a kind, such as `figure-2`."""
        return f"{kind}-{1 + sum(name.startswith(kind) for name in self.files)}"

    def _float(self, kind: str, width: float, lines: list[str]) -> str:
        """Write a float over one column, or over the page if it is wider; its file."""
        wide, name = kind + "*" * bool(width > self.style.column + 1 and self.style.gap), self._next(kind)
        label = rf"\label{{hetsim:{name}}}"
        text = [rf"\begin{{{wide}}}[tbp]", r"\centering", *lines, label, rf"\end{{{wide}}}", ""]
        write_text(self.folder / f"{name}.tex", "\n".join(text))
        self.files.append(f"{name}.tex")
        return self.files[-1]


def _text(cell: Any) -> str:
    return cell.text if isinstance(cell, Cell) else str(cell)


def _cell(text: str) -> str:
    """A cell, in bold type where it has the mark of the best."""
    for mark, form in ((" ◂", r"\textbf{{{}}}"), (SHOWN_MARK, r"{}\rlap{{*}}")):
        if text.endswith(mark):
            return form.format(escape(text.removesuffix(mark)))
    return escape(text)


def code(text: str) -> str:
    """A command that breaks at its blanks."""
    return rf"{{\raggedright\footnotesize\ttfamily {escape(text)}\par}}"


def lines_of(texts: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"\\item {escape(re.sub(r'[.]?$', '.', text))}\n" for text in texts)
    return f"\\begin{{itemize}}\n{items}\\end{{itemize}}\n" if items else ""
