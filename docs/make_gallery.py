"""Write docs/gallery.md and its pictures from what the gallery's entries recorded.

    python docs/make_gallery.py              writes the page, the pictures of docs/gallery, and the counts in
                                             README.md and docs/index.md
    python docs/make_gallery.py --check      exit code 1 if the page is not what would be written now

`hetsim gallery NAME --record` runs an entry and records what comes out; this only reads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hetsim.gallery.entry import Entry, entries
from hetsim.gallery.outcome import Outcome, difference, number, ratios, recorded, sentence
from hetsim.gallery.schema import FiguresTable

HERE = Path(__file__).parent
PAGE, PICTURES = HERE / "gallery.md", HERE / "gallery"
COUNTING = ((HERE.parent / "README.md", "docs/gallery.md"), (HERE / "index.md", "gallery.md"))
MAX_ROWS = 40
"""Rows of a table on the page; a longer one is told by its picture and its sentence."""

NOT_TUNED_ON = {
    "fgd": {"trace": ["cpu100", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpuspec10", "gpuspec20",
                      "multigpu20", "multigpu30", "multigpu40"]},
}  # fmt: skip
"""By entry, the values of an axis that were first run when scenario, model and tolerance stood, and changed nothing."""
FITTED = {"vtc": "one factor"}
"""By entry, a table of which a number was fitted for each row; it is not counted."""
COUNTED = re.compile(r"\[[0-9]+ published (?:.|\n)*?was tuned on\.")
"""The sentence with the counts, in README.md and docs/index.md."""


def halves(entry: Entry, comparison: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The figures on inputs that were used in building, and those on others."""
    rows = comparison
    others = pd.Series(False, index=rows.index)
    for axis, values in NOT_TUNED_ON.get(entry.name, {}).items():
        others |= rows[axis].isin(values)
    return rows[~others], rows[others & rows["hetsim"].notna()]


def judged_rows(entry: Entry, outcome: Outcome) -> pd.DataFrame:
    """The comparison without tables that have a number fitted to each row."""
    rows = outcome.comparison()
    return rows[rows["table"] != FITTED.get(entry.name)]


def tally(rows: pd.DataFrame) -> tuple[int, int]:
    judged = rows["within"].dropna().astype(bool)
    return int(judged.sum()), len(judged)


def counts(gallery: str = "gallery.md") -> str:
    """What README.md and docs/index.md say of the gallery."""
    every = [halves(entry, judged_rows(entry, recorded(entry))) for entry in entries()]
    (good, judged), (good_other, judged_other) = (
        map(sum, zip(*(tally(pair[half]) for pair in every), strict=True)) for half in (0, 1)
    )
    return (
        f"[{len(every)} published results]({gallery}) are reproduced from their authors' own inputs, by scenarios that "
        f"ship: {good} of {judged} figures are within the tolerance of their source, and {good_other} of "
        f"{judged_other} on inputs that nothing was tuned on."
    )


def counted(page: Path, link: str) -> str:
    return COUNTED.sub(lambda _: counts(link), page.read_text(encoding="utf-8"), count=1)


def page() -> str:
    return "\n".join(_page()).rstrip() + "\n"


def _page() -> Iterator[str]:
    yield "# Gallery of published results"
    yield ""
    yield "<!-- Made from what the entries recorded by docs/make_gallery.py; do not edit. -->"
    yield ""
    yield "Published results, with their authors' own inputs and figures: what the paper says, what hetsim gives, why"
    yield "they differ. `hetsim gallery` lists the entries, `hetsim gallery NAME` runs one and prints this table,"
    yield "`hetsim gallery NAME --short` takes seconds. The inputs lie in"
    yield "`scenarios/hetsim_scenarios/published`, with notices of their"
    yield "licenses; how to add an entry is told in CONTRIBUTING."
    yield ""
    yield "The third column counts inputs that were there while scenario and model were made; those of the fourth were"
    yield "first run afterwards, and nothing was changed for them. Figures with a number fitted to each are in neither."
    yield ""
    yield "| entry | what | figures within the tolerance | on inputs that nothing was tuned on | time |"
    yield "| --- | --- | --- | --- | --- |"
    found = [(entry, recorded(entry)) for entry in entries()]
    for entry, outcome in found:
        used, others = halves(entry, judged_rows(entry, outcome))
        first, second = ("{} of {}".format(*tally(rows)) if len(rows) else "–" for rows in (used, others))
        missing = int((used["hetsim"].isna() & used["paper"].notna()).sum())
        first += f", {missing} not run" if missing else ""
        yield f"| [{entry.name}](#{anchor(entry)}) | {entry.expected.title} | {first} | {second} | {seconds(outcome)} |"
    for entry, outcome in found:
        yield from _entry(entry, outcome)


def anchor(entry: Entry) -> str:
    return entry.name.lower()


def seconds(outcome: Outcome) -> str:
    return f"{outcome.seconds:,.0f} s" if outcome.seconds < 120 else f"{outcome.seconds / 60:,.0f} min"


def _entry(entry: Entry, outcome: Outcome) -> Iterator[str]:
    expected = entry.expected
    comparison = outcome.comparison()
    yield ""
    yield f"## {entry.name}"
    yield ""
    link = f" [Paper]({expected.link})." if expected.link else ""
    yield f"{expected.title}. {expected.paper}.{link} Source of the figures: {expected.source}."
    yield ""
    if expected.measured_on:
        yield f"The figures were measured on a real machine: {expected.measured_on}."
        yield ""
    if (comparison["hetsim"].isna() & comparison["paper"].notna()).any():
        took = f"What was run of `hetsim gallery {entry.name}` took {seconds(outcome)}; `--case` runs a part."
    else:
        took = f"`hetsim gallery {entry.name}` takes {seconds(outcome)}."
    yield f"**{capital(sentence(comparison))}.** {took}"
    for text in (expected.property, expected.differences):
        if text:
            yield ""
            yield text
    for table in expected.tables:
        yield from _table(entry, table, comparison)


def _table(entry: Entry, table: FiguresTable, comparison: pd.DataFrame) -> Iterator[str]:
    rows = comparison[(comparison["table"] == table.name) & comparison["hetsim"].notna()]
    missing = int((comparison["table"] == table.name).sum()) - len(rows)
    yield ""
    yield f"### {table.title or table.name}"
    yield ""
    if not len(rows):
        yield "Not run."
        return
    if table.picture != "none" and (PICTURES / f"{_file(entry, table)}").exists():
        drawn = "hetsim's figures" if table.tolerance.shape else "the paper's figures and hetsim's"
        yield f"![{table.title or table.name}: {drawn}](gallery/{_file(entry, table)})"
        yield ""
    tail = f" {missing} further figures were not run." if missing else ""
    rows, others = (half[half["table"] == table.name] for half in halves(entry, rows))
    if len(others):
        good, judged = tally(others)
        tail += f" On inputs that nothing was tuned on {good} of {judged} are within it: {_others(entry, others)}."
    if len(rows) > MAX_ROWS:
        good = int(rows["within"].dropna().astype(bool).sum())
        yield f"{good} of {len(rows)} figures are within the tolerance ({table.tolerance.text}).{tail}"
        return
    axes = [axis for axis in table.axes if axis in rows and rows[axis].notna().any()]
    told = ""
    if table.tolerance.mean_ratio is not None:
        told = " Mean ratio {:.4f}, largest {:.4f}.".format(*ratios(rows))
    yield f"Tolerance: {table.tolerance.text}.{told}{tail}"
    yield ""
    yield "| " + " | ".join([*axes, "figure", "paper", "hetsim", "difference", "within"]) + " |"
    yield "| --- " * (len(axes) + 5) + "|"
    for row in rows.to_dict("records"):
        value = table.values[row["value"]]
        unit = f" {value.unit}" if value.unit else ""
        spread = f" ± {number(row['paper_deviation'])}" if row["paper_deviation"] else ""
        paper = "–" if row["paper"] != row["paper"] else number(row["paper"]) + spread + unit
        if table.tolerance.shape and paper != "–":
            paper = f"place {number(row['paper'])}"
        within = "" if row["within"] is None or row["within"] != row["within"] else "yes" if row["within"] else "no"
        cells = [*(str(row[axis]) for axis in axes), value.label or row["value"], paper, number(row["hetsim"]) + unit]
        yield "| " + " | ".join([*cells, difference(row, table.tolerance, unit), within]) + " |"


def _others(entry: Entry, others: pd.DataFrame) -> str:
    """How many figures are within the tolerance, by value of the axis."""
    (axis,) = NOT_TUNED_ON[entry.name]
    by_value = others.groupby(axis, sort=False)
    return ", ".join("{} {} of {}".format(value, *tally(rows)) for value, rows in by_value)


def _file(entry: Entry, table: FiguresTable) -> str:
    return f"{entry.name}-{table.name.replace(' ', '-')}.png"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def pictures() -> None:
    """Draw the pictures of all that was recorded."""
    from hetsim.gallery.picture import bars
    from hetsim.model.files import write_whole

    PICTURES.mkdir(exist_ok=True)
    for entry in entries():
        comparison, _ = halves(entry, recorded(entry).comparison())
        for table in entry.expected.tables:
            picture = bars(comparison, table)
            if picture is not None:
                target = PICTURES / _file(entry, table)
                write_whole(target, lambda file, shown=picture: shown.save(file, dpi=80))  # type: ignore[misc]


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        same = all(COUNTED.search(counted(*one)) and counted(*one) == one[0].read_text("utf-8") for one in COUNTING)
        if same and PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print("gallery.md, README.md or index.md is not what docs/make_gallery.py writes now; run it", file=sys.stderr)
        return 1
    pictures()
    PAGE.write_text(page(), encoding="utf-8")
    for one in COUNTING:
        one[0].write_text(counted(*one), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
