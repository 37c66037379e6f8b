"""The page about a sweep."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from io import StringIO
from itertools import product
from shlex import quote

import pandas as pd

from sim.errors import UsageError
from sim.report.html import elements
from sim.report.html.common import Parts, front_picture, policy_option, regret_picture, scenario_file, sentence_case
from sim.report.html.elements import Cell, Section
from sim.results.metrics import HIGHER_IS_BETTER
from sim.results.sweep import Sweep
from sim.results.wording import metric_name, several, units_of

MOST_ROWS = 2000


def of_sweep(found: Sweep, folder: str) -> Parts:
    """Title, first lines and sections about a sweep."""
    words = elements.items(_swept_in_words(found))
    failed = [f"point {row.point} under {row.policy} failed: {row.error}" for row in found.failed.itertuples()]
    again = _again(found, folder) if found.directory else ""
    return found.name or "sweep", [found.title], [
        Section("In words", words + elements.warnings([*found.remarks, *failed[:20]])),
        Section("Pictures", _swept_pictures(found)),
        Section("All points", _swept_table(found)),
        Section("Scenario", _swept_scenario(found)),
        Section("Make it again", again),
    ]  # fmt: skip


def _again(found: Sweep, folder: str) -> str:
    """The command: a grid as its keys, other points as a table to be saved beside."""
    keys = found.keys
    texts = [[str(value) for value in found.points[key]] for key in keys]
    grid = [list(dict.fromkeys(values)) for values in texts]
    rows = list(zip(*texts, strict=True))
    options, table = [], ""
    if rows == list(product(*grid)) and not any("," in value for values in grid for value in values):
        options = [f"--over {quote(f'{key}=' + ','.join(values))}" for key, values in zip(keys, grid, strict=True)]
    elif keys:
        options = ["--points points.csv"]
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows([keys, *rows])
        table = "<p>with the points in a file:</p>" + elements.code(file.getvalue(), "points.csv")
    policies = list(dict.fromkeys(found.table["policy"]))
    options += [policy_option(name) for name in policies] if len(policies) > 1 or not keys else []
    options += [f"--metric {quote(name)}" for name in found.metrics]
    number = int(found.table["replications"].max())
    words = [f"hetsim sweep {scenario_file(folder)}", *options, f"--replications {number} --seed {found.seed}"]
    return elements.code(" ".join(words)) + table


def _swept_in_words(found: Sweep) -> Iterator[str]:
    for name in found.shown_metrics:
        try:
            row = found.best(name)
        except UsageError:
            continue
        at = ", ".join(f"{key} = {found.points[key].loc[row['point']]}" for key in found.keys)
        under = f" under {row['policy']}" if found.table["policy"].nunique() > 1 else ""
        most = "highest" if name in HIGHER_IS_BETTER else "lowest"
        half = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2 if f"{name}_ci_high" in row else math.nan
        yield (
            f"{sentence_case(metric_name(name))} is {most}, {several([row[name]], units_of(name), [half])[0]}, "
            f"with {at or 'the only point'}{under}."
        )
        if found.table["policy"].nunique() > 1:
            leads = found.best(name, by="point")["policy"].value_counts()
            told = ", ".join(f"{policy} at {number}" for policy, number in leads.items())
            yield f"Points at which each policy has the best {metric_name(name)}: {told}."
    if found.table["replications"].max() > 1:
        yield "The best of many estimates looks better than it is: run it again with another seed before relying on it."


def _swept_pictures(found: Sweep) -> str:
    from sim import plots

    varied = [key for key in found.keys if found.table[key].nunique() > 1]
    policies = list(dict.fromkeys(found.table["policy"]))
    parts = []
    for name in found.shown_metrics[:2]:
        if len(varied) == 1:
            drawn = plots.against(found, varied[0], name)
            parts.append(elements.picture(drawn, f"{metric_name(name)} against {varied[0]}"))
        elif len(varied) == 2:
            for policy in policies[:4]:
                where = {"policy": policy} if len(policies) > 1 else None
                try:
                    drawn = plots.sweep_map(found, varied[0], varied[1], name, where=where)
                except UsageError:  # sampled points are no grid
                    break
                parts.append(elements.picture(drawn, f"{metric_name(name)} over {varied[0]} and {varied[1]}"))
    if len(policies) > 1:
        parts.append(regret_picture(found, found.shown_metrics))
    parts.append(front_picture(found, found.shown_metrics))
    return "".join(parts)


def _swept_table(found: Sweep) -> str:
    titles, texts = found.shown(MOST_ROWS)
    frame = found.table.iloc[:MOST_ROWS]
    metrics = [metric_name(name) for name in found.shown_metrics]
    rows = []
    for at, row in enumerate(texts):
        cells: list[str | Cell] = []
        for title, text in zip(titles, row, strict=True):
            if title in metrics:
                cells.append(Cell(text, float(frame[found.shown_metrics[metrics.index(title)]].iloc[at])))
            elif title == "point":
                cells.append(Cell(text, float(text)))
            elif title in found.keys and pd.api.types.is_numeric_dtype(frame[title]):
                cells.append(Cell(text, float(frame[title].iloc[at])))
            else:
                cells.append(text)
        rows.append(cells)
    more = f"The first {MOST_ROWS:,} of {len(found):,} rows" if len(found) > MOST_ROWS else ""
    return elements.table(titles, rows, more)


def _swept_scenario(found: Sweep) -> str:
    file = None if found.directory is None else found.directory / "scenario.yaml"
    if file is None or not file.is_file():
        return ""
    return elements.code(file.read_text(encoding="utf-8"), "the scenario that was swept")
