"""Tables and figures of a page as LaTeX files, at the width of a column.

A paper shows the same as the page: `Latex` has the functions of `hetsim.page.elements` that make tables and pictures.
Names are escaped, so that none is a LaTeX command.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hetsim.errors import visible_lines
from hetsim.model.files import write_text
from hetsim.page.common import sentence_case
from hetsim.page.elements import Cell, made_by
from hetsim.results.many_runs.groups import SHOWN_MARK
from hetsim.results.panels import attempt

MAX_ROWS = 40  # maximum rows of a float, which must fit on a page; the result files have all rows
UNKNOWN = "ĦħĸĿŀŉŦŧ"  # Latin letters that LaTeX's T1 fonts do not have
LETTER, INCH = 4.1, 72.27  # mean points of a letter in a table; points of an inch
# Widths in points of a column and of the page, in IEEEtran, acmart (sigconf) and the NeurIPS style
STYLES = {"ieee": (252.0, 516.0), "acm": (241.15, 506.3), "neurips": (397.48, 397.48)}
# Characters that LaTeX does not print literally, and that tables of hetsim contain
_CHARACTERS: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "±": r"$\pm$",
    "×": r"$\times$", "·": r"$\cdot$", "µ": r"\textmu{}", "μ": r"\textmu{}", "∞": r"$\infty$", "≥": r"$\geq$",
    "≤": r"$\leq$", "−": r"$-$", "–": r"\textendash{}", "—": r"\textemdash{}", "…": r"\dots{}", "→": r"$\to$",
    "ρ": r"$\rho$", "\xad": "-", "\xa0": "~", "“": r"\textquotedblleft{}", "”": r"\textquotedblright{}",
    "‘": r"\textquoteleft{}", "’": r"\textquoteright{}", "•": r"\textbullet{}",
    **{one: rf"\{one}" for one in "{}$&%#_"}, **{one: f"{{{one}}}" for one in "[]*"},
}  # fmt: skip


def escape(text: str) -> str:
    """Escape a text for LaTeX; characters it cannot print become codes such as U+4E2D."""
    text = re.sub(r"(?<![\w-])-(?=\d| )", "−", visible_lines(text).replace("\n", " "))
    printed = [one in _CHARACTERS or (one < "ſ" and one not in UNKNOWN) for one in text]
    latin = "".join(one if has else f"U+{ord(one):04X}" for one, has in zip(text, printed, strict=True))
    return re.sub(r"([-,'])(?=\1)", r"\1{}", latin.translate(str.maketrans(_CHARACTERS)))


class Latex:
    """Writer of LaTeX floats into a folder; `subject`: default caption of tables."""

    def __init__(self, folder: Path, style: str, subject: str):
        self.folder, self.widths, self.subject = folder, STYLES[style], subject
        self.names: list[str] = []  # of the floats, in order

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
        """Write a float with a table, the best values in bold; return its name."""
        body = [list(row) for row in rows]
        if not body:
            return ""
        more = f"; the first {MAX_ROWS} of {len(body):,} rows" if len(body) > MAX_ROWS else ""
        texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in [titles, *body[:MAX_ROWS]]]
        letters = sum(2 + max(map(len, column)) for column in zip(*texts, strict=True))
        first, *others = [" & ".join(map(_cell, row)) + r" \\" for row in texts]
        return self._float("table", LETTER * letters, (caption or self.subject) + more, [
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{''.join('lr'[isinstance(cell, Cell)] for cell in body[0])}}}",
            r"\toprule", first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}}",
        ])  # fmt: skip

    def picture(self, draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str:
        """Write a float with the figure of `draw`; print a warning if drawing fails."""
        from hetsim.plots.draw import on_paper  # matplotlib is large

        name, drawn = self._next("figure"), list[float]()

        def write() -> None:
            with on_paper(*(width / INCH for width in self.widths)):
                if (made := made_by(draw, optional)) is not None:
                    figure = made.figure()
                    figure.savefig(self.folder / f"{name}.pdf")
                    drawn.append(INCH * figure.get_figwidth())

        if attempt(f'"{alt}"', write) is not None or not drawn:
            return ""
        text = sentence_case(alt) + (f". {caption}" if caption else "")
        return self._float("figure", drawn[0], text, [rf"\includegraphics{{{name}.pdf}}"])

    def folded(self, body: str, summary: str) -> str:
        """Return the body unchanged: a paper has no collapsed sections."""
        return body

    def _next(self, kind: str) -> str:
        return f"{kind}-{1 + sum(name.startswith(kind) for name in self.names)}"

    def _float(self, kind: str, width: float, caption: str, lines: list[str]) -> str:
        (column, page), name = self.widths, self._next(kind)
        wide = f"{kind}*" if page > column and width > column + 1 else kind
        text = escape(caption.removesuffix(".").replace("◂", "bold:") + ".")
        about = rf"\caption{{{text}}}\label{{hetsim:{name}}}"
        inside = [about, *lines] if kind == "table" else [*lines, about]
        write_text(self.folder / f"{name}.tex", "\n".join(
            [rf"\begin{{{wide}}}[tbp]", r"\centering", *inside, rf"\end{{{wide}}}", ""]
        ))  # fmt: skip
        self.names.append(name)
        return name


def _cell(text: str) -> str:
    plain = text.removesuffix(SHOWN_MARK)
    best, star = plain.removesuffix(" ◂"), r"\rlap{$^*$}" * (plain != text)
    return (escape(plain) if best == plain else rf"\textbf{{{escape(best)}}}") + star
