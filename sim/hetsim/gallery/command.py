"""`hetsim gallery`: published results compared with results of this simulator."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, TELLING, WORKERS
from hetsim.errors import UsageError, suggestion
from hetsim.model.files import write_text, write_whole
from hetsim.report import terminal

if TYPE_CHECKING:
    import pandas as pd

    from hetsim.gallery.entry import Entry
    from hetsim.gallery.outcome import Outcome

VERDICTS = {
    "(?P<judged>[0-9]+) of (?P=judged) figures are within the tolerance": "good",
    "[0-9]+ of [0-9]+ figures are within the tolerance|(?<=  )outside$": "bad",
}


@click.command(short_help="Run published results, and compare them with the authors' figures.")
@click.argument("names", metavar="[NAME|FILE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Run every entry that ships.")
@click.option("--short", is_flag=True, help="Run the short cases only: seconds instead of minutes.")
@click.option("--case", "cases", multiple=True, metavar="AXIS=VALUE[,VALUE]",
              help="Run only cases with these values on an axis (repeatable).")  # fmt: skip
@click.option("--inputs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
              help="Folder with the files of an entry that do not ship.")  # fmt: skip
@click.option("--recorded", "as_recorded", is_flag=True, help="Run nothing: show the last recorded results.")
@click.option("--record", is_flag=True, help="Store the results next to the entry, for --recorded and the guide.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Write the comparison as CSV and pictures to DIR.")
@WORKERS
@TELLING
def gallery(
    names: tuple[str, ...], everything: bool, short: bool, cases: tuple[str, ...], inputs: Path | None,
    as_recorded: bool, record: bool, out: Path | None, workers: int | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run published results, and compare them with their authors' figures.

    Without a name the entries are listed, with their last recorded outcome and its run time. A name, or the
    expected.yaml of an entry of your own, runs the entry. Exit code 1: a figure is outside its tolerance.
    """
    from hetsim.gallery import entry as catalogue
    from hetsim.gallery import outcome as outcomes

    if not names and not everything:
        for given, option in (
            (short, "--short"), (cases, "--case"), (inputs, "--inputs"), (record, "--record"), (out, "--out")
        ):  # fmt: skip
            if given:
                raise UsageError(f"{option} needs an entry to run: give its name, or --all")
        _list(catalogue.entries(), as_json)
        return
    if names and everything:
        raise UsageError("--all runs every entry; leave out the names")
    if record and (short or as_recorded):
        raise UsageError("--record saves the figures of complete runs; leave out --short and --recorded")
    chosen = _chosen(cases)
    entries = catalogue.entries() if everything else [catalogue.entry(name) for name in names]
    for entry in entries:
        entry.inputs = inputs
    _check_axes(entries, chosen)
    show = None if quiet else console.note
    done = []
    for entry in entries:
        entry.check()
        if as_recorded:
            outcome = outcomes.recorded(entry)
        else:
            outcome = outcomes.run(entry, chosen, short=short, workers=workers, told=show, keep=record)
        done.append((entry, outcome, outcome.comparison()))
    if out is not None:
        _write(done, out, quiet)
    console.result(as_json, lambda: [_json(*one) for one in done],
                   lambda: (line for one in done for line in _text(*one)), VERDICTS)  # fmt: skip
    outside = sum(int((~table["within"].dropna().astype(bool)).sum()) for _, _, table in done)
    if outside and not short:
        click.get_current_context().exit(1)


def _chosen(cases: tuple[str, ...]) -> dict[str, list[str]]:
    values_of_axes: dict[str, list[str]] = {}
    for text in cases:
        axis, sign, values = text.partition("=")
        if not sign or not axis.strip() or not values.strip():
            raise UsageError(f'--case must be AXIS=VALUE; got "{text}"')
        values_of_axes.setdefault(axis.strip(), []).extend(value.strip() for value in values.split(","))
    return values_of_axes


def _check_axes(entries: list[Entry], chosen: dict[str, list[str]]) -> None:
    known_values: dict[str, dict[str, None]] = {}
    for entry in entries:
        for number, table in enumerate(entry.expected.tables):
            for axis, ways in entry.ways(number, table).items():
                known_values.setdefault(axis, {}).update(dict.fromkeys(ways))
    for axis, values in chosen.items():
        if axis not in known_values:
            there = f"; there are {', '.join(known_values)}" if known_values else ""
            raise UsageError(f'--case: there is no axis "{axis}"{suggestion(axis, known_values) or there}')
        for value in values:
            if value not in known_values[axis]:
                near = suggestion(value, known_values[axis]) or f"; there are {', '.join(known_values[axis])}"
                raise UsageError(f'--case: {axis} has no value "{value}"{near}')


def _list(entries: list[Entry], as_json: bool) -> None:
    from hetsim.gallery import outcome as outcomes
    rows = []
    for entry in entries:
        outcome = outcomes.recorded(entry)
        rows.append((entry, outcome, outcome.comparison()))
    if as_json:
        console.as_json([_json(entry, outcome, table) for entry, outcome, table in rows])
        return
    lines = [["name", "figures", "as recorded", "time"]]
    for entry, outcome, table in rows:
        figures = int(table["paper"].notna().sum())
        lines.append([entry.name, f"{figures:,}", outcomes.sentence(table).partition(";")[0], _time(outcome.seconds)])
    console.lines(terminal.table(lines, right=(1, 3)), VERDICTS)
    console.note("hetsim gallery NAME runs an entry, with --short only short cases; --recorded shows recorded results")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _text(entry: Entry, found: Outcome, comparison: pd.DataFrame) -> list[str]:
    from hetsim.gallery import outcome as outcomes
    expected = entry.expected
    lines = [f"{entry.name}: {expected.title}", *terminal.wrapped(expected.paper), ""]
    for table in expected.tables:
        mine = comparison[(comparison["table"] == table.name) & comparison["hetsim"].notna()]
        if not len(mine):
            continue
        axes = [axis for axis in table.axes if axis in mine and mine[axis].notna().any()]
        rows = [[*axes, "", "paper", "hetsim", "difference", ""]]
        for row in mine.to_dict("records"):
            value = table.values[row["value"]]
            unit = f" {value.unit}" if value.unit else ""
            figures = [outcomes.number(row[key]) for key in ("paper", "hetsim")]
            texts = [text if text == "–" else text + unit for text in figures]
            texts.append(outcomes.difference(row, table.tolerance, unit))
            if table.tolerance.shape and figures[0] != "–":
                texts[0] = f"place {figures[0]}"
            within = row["within"]
            mark = "outside" if within is not None and within == within and not within else ""
            rows.append([*(str(row[axis]) for axis in axes), value.label or row["value"], *texts, mark])
        tolerance = f"tolerance: {table.tolerance.text}"
        if table.tolerance.mean_ratio is not None:
            tolerance += "; mean {:.4f}, largest {:.4f}".format(*outcomes.ratios(mine))
        lines += [f"{table.title or table.name} ({tolerance})", ""]
        lines += [*terminal.table(rows, right=range(len(axes) + 1, len(axes) + 4)), ""]
    lines += terminal.wrapped(outcomes.sentence(comparison) + f"; {_time(found.seconds)}.")
    for text in (expected.property, expected.differences):
        if text:
            lines += terminal.wrapped(text)
    return [*lines, ""]


def _json(entry: Entry, found: Outcome, comparison: pd.DataFrame) -> dict[str, Any]:
    from hetsim.gallery import outcome as outcomes
    from hetsim.results.formatting import json_number

    def plain(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        return json_number(value) if isinstance(value, float) else value

    rows = [
        {key: plain(value) for key, value in row.items() if value == value and value is not None}
        for row in comparison.to_dict("records")
    ]
    return {
        "name": entry.name, "title": entry.expected.title, "paper": entry.expected.paper,
        "license": entry.expected.license, "sentence": outcomes.sentence(comparison), "seconds": found.seconds,
        "figures": rows,
    }  # fmt: skip


def _write(done: list[tuple[Entry, Outcome, pd.DataFrame]], out: Path, quiet: bool) -> None:
    from hetsim.gallery.picture import bars

    out.mkdir(parents=True, exist_ok=True)
    for entry, _, comparison in done:
        path = out / f"{entry.name}.csv"
        write_whole(path, partial(write_text, text=comparison.to_csv(index=False)))
        console.note(f"comparison: {path}", quiet)
        for table in entry.expected.tables:
            if (picture := bars(comparison, table)) is not None:
                path = out / f"{entry.name}-{table.name.replace(' ', '-')}.png"
                write_whole(path, lambda file, shown=picture: shown.save(file))  # type: ignore[misc]
                console.note(f"picture: {path}", quiet)
