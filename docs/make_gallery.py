"""Write docs/gallery.md and its pictures from the recorded results of the gallery's entries.

    python docs/make_gallery.py              writes the page, the pictures of docs/gallery, and the counts in
                                             README.md and docs/index.md
    python docs/make_gallery.py --check      exit code 1 if the page differs from the page that would be written

`hetsim gallery NAME --record` runs an entry and records the results; this script only reads the record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hetsim.gallery.entry import Entry, entries
from hetsim.gallery.outcome import Outcome, difference, number, ratios, recorded, sentence
from hetsim.gallery.schema import FiguresTable
from hetsim.results.colors import BLUE, GREEN, MUTED, ORANGE
from hetsim.results.panels import Axis, Line, Panel, Picture, Points

HERE = Path(__file__).parent
PAGE, PICTURES = HERE / "gallery.md", HERE / "gallery"
COUNTING = ((HERE.parent / "README.md", "docs/gallery.md"), (HERE / "index.md", "gallery.md"))
MAX_ROWS = 40
"""Maximum rows of a table on the page; a longer table is shown by its picture and a sentence only."""

NOT_TUNED_ON = {
    "gavel": {"jobs": ["200", "400", "500", "600", "700"]},
    "fgd": {"trace": ["cpu100", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpuspec10", "gpuspec20",
                      "multigpu20", "multigpu30", "multigpu40"]},
}  # fmt: skip
"""By entry: values of an axis that were first run when scenario, model and tolerance were final."""
FITTED = {"vtc": "one factor"}
"""By entry: the table in which a number was fitted for each row; its figures are not counted."""
COUNTED = re.compile(r"\[[0-9]+ published (?:.|\n)*?was tuned on\.")
"""The sentences with the counts, in README.md and docs/index.md."""


def halves(entry: Entry, comparison: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split figures into those on inputs used while hetsim was built, and those on other inputs."""
    rows = comparison
    others = pd.Series(False, index=rows.index)
    for axis, values in NOT_TUNED_ON.get(entry.name, {}).items():
        others |= rows[axis].map("{}".format).str.removesuffix(".0").isin(values)
    return rows[~others], rows[others & rows["hetsim"].notna()]


def judged_rows(entry: Entry, outcome: Outcome) -> pd.DataFrame:
    """Return the comparison without tables that have a number fitted to each row."""
    rows = outcome.comparison()
    return rows[rows["table"] != FITTED.get(entry.name)]


def tally(rows: pd.DataFrame) -> tuple[int, int]:
    judged = rows["within"].dropna().astype(bool)
    return int(judged.sum()), len(judged)


def counts(gallery: str = "gallery.md") -> str:
    """Return the sentences on the gallery in README.md and docs/index.md."""
    every = [halves(entry, judged_rows(entry, recorded(entry))) for entry in entries()]
    (good, judged), (good_other, judged_other) = (
        map(sum, zip(*(tally(pair[half]) for pair in every), strict=True)) for half in (0, 1)
    )
    return (
        f"[{len(every)} published results]({gallery}) are reproduced by scenarios that ship, from the inputs of the "
        f"results' authors. {good} of {judged} figures are within the tolerance of their source, and so are "
        f"{good_other} of {judged_other} figures on inputs that nothing was tuned on."
    )


def counted(page: Path, link: str) -> str:
    return COUNTED.sub(lambda _: counts(link), page.read_text(encoding="utf-8"), count=1)


def page() -> str:
    return "\n".join(_page()).rstrip() + "\n"


def _page() -> Iterator[str]:
    yield "# Gallery of published results"
    yield ""
    yield "<!-- docs/make_gallery.py generates this page from the recorded results of the entries; do not edit. -->"
    yield ""
    yield "Each entry compares a published result with hetsim's result on the authors' own inputs: it states the"
    yield "figures of the paper, the figures of hetsim, and why they differ. `hetsim gallery` lists the entries,"
    yield "`hetsim gallery NAME` runs one entry and prints its table, and `hetsim gallery NAME --short` runs a short"
    yield "case in seconds. The inputs are in `scenarios/hetsim_scenarios/published`, with notices of their licenses."
    yield "CONTRIBUTING describes how to add an entry."
    yield ""
    yield "The third column counts figures on inputs that were available while scenario and model were made. The fourth"
    yield "column counts figures on inputs that were first run afterwards, and nothing was changed for these inputs."
    yield "Neither column counts figures for which a number was fitted to each figure."
    yield ""
    yield "| entry | published result | figures within the tolerance | on inputs that nothing was tuned on | time |"
    yield "| --- | --- | --- | --- | --- |"
    found = [(entry, recorded(entry)) for entry in entries()]
    for entry, outcome in found:
        used, others = halves(entry, judged_rows(entry, outcome))
        first, second = ("{} of {}".format(*tally(rows)) if len(rows) else "–" for rows in (used, others))
        missing = int((used["hetsim"].isna() & used["paper"].notna()).sum())
        first += f", {missing} not run" if missing else ""
        yield f"| [{entry.name}](#{anchor(entry)}) | {entry.expected.title} | {first} | {second} | {seconds(outcome)} |"
    servers = measured_servers()
    errors = " and ".join(f"{percent(servers[name].median())} (time {text})" for name, text in ERRORS.items())
    yield (f"| [real servers](#real-servers) | Times of language-model servers, predicted without fitting | – | "
           f"{len(servers):,} points; the median errors are {errors} | – |")  # fmt: skip
    for entry, outcome in found:
        yield from _entry(entry, outcome)
    yield from _servers(servers)


SERVERS = PICTURES / "real-servers.csv.gz"
"""Measured and predicted times of servers, which `python -m benchmarks.measured_servers --points CSV` writes."""
ERRORS = {"token": "per token", "first": "to the first token"}
ENGINES = {"sglang": ("SGLang", GREEN), "trtllm": ("TensorRT-LLM", BLUE), "vllm": ("vLLM", ORANGE)}


def measured_servers() -> pd.DataFrame:
    """Read the points, and add the relative errors of the two times."""
    table = pd.read_csv(SERVERS)
    errors = {name: (table[f"{name}_predicted_ms"] / table[f"{name}_ms"] - 1.0).abs() for name in ERRORS}
    return table.assign(**errors)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _servers(servers: pd.DataFrame) -> Iterator[str]:
    own, others = (servers[servers["unseen"] == name] for name in ("GPU", "kept out"))
    yield ""
    yield "## real servers"
    yield ""
    yield (
        f"This section has {len(servers):,} servers of vLLM, TensorRT-LLM and SGLang under a steady number of "
        "concurrent requests. It compares measured times (aiconfigurator-core 0.12.0, Apache-2.0, "
        "[notice](gallery/real-servers-NOTICE.txt)) with times that hetsim predicts from kernels that were measured "
        "one by one. No prediction is fitted to the measurement that it predicts: for "
        f"{len(own):,} points the constants of the engine come from servers on other GPUs, and {len(others):,} points "
        "were excluded from all fits. "
        "[Measured servers](background/measured-servers.md) explains the method and its limits. "
        "`python -m benchmarks.measured_servers --points CSV` writes the table of "
        "[all points](gallery/real-servers.csv.gz) again."
    )
    yield ""
    yield "![Measured and predicted times per token and to the first token, a dot per server](gallery/real-servers.png)"
    yield ""
    yield "Each cell has two errors, the median and the 90th percentile of the absolute relative error over the points."
    yield ""
    yield "| model | GPU | engine | points | time per token | time to the first token | time per token within 20 % |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    groups = [*servers.groupby(["model", "gpu", "engine"]), (("all", "all", "all"), servers)]
    for (model, gpu, engine), rows in groups:
        shown = [" / ".join(percent(rows[name].quantile(share)) for share in (0.5, 0.9)) for name in ERRORS]
        name = ENGINES.get(engine, (engine,))[0]
        near = f"{(rows['token'] <= 0.2).sum():,} of {len(rows):,}"
        cells = [model, gpu if gpu == "all" else gpu.upper(), name, f"{len(rows):,}", *shown, near]
        yield f"| {' | '.join(cells)} |"


def servers_picture(servers: pd.DataFrame) -> Picture:
    """Plot predicted over measured times, one dot per server; on the line both are equal."""
    panels = []
    for name, text in ERRORS.items():
        low, high = servers[f"{name}_ms"].min() / 1.5, servers[f"{name}_ms"].max() * 1.5
        marks: list[object] = [Line([low, high], [low, high], color=MUTED, width=1, behind=True)]
        for engine, (label, color) in ENGINES.items():
            rows = servers[servers["engine"] == engine]
            x, y = (np.asarray(rows[f"{name}{part}_ms"]) for part in ("", "_predicted"))
            marks.append(Points(x, y, label, color, size=2.5, alpha=0.4))
        panels.append(Panel(marks, Axis(f"measured time {text} (ms)", low, high, log=True),
                            Axis("predicted (ms)", low, high, log=True), grid="both"))  # fmt: skip
    return Picture([panels], 11, 5, legend=True)


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
        took = f"The recorded cases of `hetsim gallery {entry.name}` took {seconds(outcome)}; `--case` selects cases."
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
        yield "No figure of this table was run."
        return
    if table.picture != "none" and (PICTURES / f"{_file(entry, table)}").exists():
        drawn = "hetsim's figures" if table.tolerance.shape else "the paper's figures and hetsim's"
        yield f"![{table.title or table.name}: {drawn}](gallery/{_file(entry, table)})"
        yield ""
    tail = f" {missing} further figures of this table were not run." if missing else ""
    rows, others = (half[half["table"] == table.name] for half in halves(entry, rows))
    if not len(rows):
        rows, others = others, rows
        tail += " Nothing in hetsim was tuned on these inputs."
    if len(others):
        good, judged = tally(others)
        tail += f" On inputs not used for tuning, {good} of {judged} figures are within the tolerance:"
        tail += f" {_others(entry, others)}."
    if len(rows) > MAX_ROWS:
        good = int(rows["within"].dropna().astype(bool).sum())
        yield f"{good} of {len(rows)} figures are within the tolerance ({table.tolerance.text}).{tail}"
        return
    axes = [axis for axis in table.axes if axis in rows and rows[axis].notna().any()]
    told = ""
    if table.tolerance.mean_ratio is not None:
        told = " The mean ratio is {:.4f}, the largest ratio {:.4f}.".format(*ratios(rows))
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
    """Return the number of figures within the tolerance, by value of the axis."""
    (axis,) = NOT_TUNED_ON[entry.name]
    by_value = others.groupby(axis, sort=False)
    return ", ".join("{} {} of {}".format(value, *tally(rows)) for value, rows in by_value)


def _file(entry: Entry, table: FiguresTable) -> str:
    return f"{entry.name}-{table.name.replace(' ', '-')}.png"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def pictures() -> None:
    """Draw the pictures of all recorded results."""
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
    shown = servers_picture(measured_servers())
    write_whole(PICTURES / "real-servers.png", lambda file: shown.save(file, dpi=80))


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        same = all(COUNTED.search(counted(*one)) and counted(*one) == one[0].read_text("utf-8") for one in COUNTING)
        if same and PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print("gallery.md, README.md or index.md is not up to date; run docs/make_gallery.py", file=sys.stderr)
        return 1
    pictures()
    PAGE.write_text(page(), encoding="utf-8")
    for one in COUNTING:
        one[0].write_text(counted(*one), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
