"""A comparison of policies: each metric's mean and interval, policy by policy."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetsim.plots.cdf import labeled, shares
from hetsim.plots.style import short
from hetsim.results.colors import BLUE, MUTED, ORANGE
from hetsim.results.formatting import figures, finite, fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Line, Panel, Picture, Points, Texts, round_values

COLUMNS = 3


def comparison(found: Comparison) -> Picture:
    """Draw a panel a metric: each policy's mean and interval, the best marked.

    Parameters: found: what `compare` gave.
    Returns: the picture.
    """
    count, rows = len(found.metrics), len(found.table)
    columns = 2 if count == 4 else min(COLUMNS, count)
    panels: list[Any] = [_metric(found, name, is_first=n % columns == 0) for n, name in enumerate(found.metrics)]
    panels += [None] * (-count % columns)
    note = f"means, with {found.confidence * 100:g} % intervals" if (found.pairs["n"] > 1).any() else "one run of each"
    best = "; orange: shown to be better than all others" if any(found.winners.values()) else ""
    grid = [panels[at : at + columns] for at in range(0, count, columns)]
    return Picture(grid, 1.6 + 2.8 * columns, 0.5 + len(grid) * (0.8 + 0.32 * rows), note=note + best)


def _metric(found: Comparison, metric: str, is_first: bool) -> Panel:
    policies, part = [str(name) for name in found.table.index], found.table[metric]
    factor, unit = fitting(part["mean"].tolist(), units_of(metric))
    marks, top = list[Any](), 0.0
    for row, (mean, half) in enumerate(zip(part["mean"], part["half_width"], strict=True)):
        value, error = mean / factor, finite(half) / factor
        if not math.isfinite(value):
            marks.append(Texts([0.02], [row], ["∞" if mean == math.inf else "–"], MUTED, size=10, inside="x"))
            continue
        color = ORANGE if found.winners[metric] == policies[row] else BLUE
        marks += [
            Line([0, value], [row, row], color=color, width=1, alpha=0.35),
            Points([value], [row], color=color, size=5.5, across=[[error], [error]] if error else None,
                   rows=[policies[row]]),
            Texts([value + error], [row], [figures(value)], shift=(7, 0)),
        ]  # fmt: skip
        top = max(top, value + error)
    last_tick = 100 if unit == "%" and top <= 100 else 1.3 * top
    ticks = [(at, f"{at:g}") for at in round_values(0, last_tick, 6)] if top > 0 else None
    names = [(row, short(name)) for row, name in enumerate(policies)]
    # Room for the figures next to the dots.
    return Panel(marks, Axis("", 0, 1.3 * top if top > 0 else 1, ticks),
                 Axis("", len(policies) - 0.5, -0.6, names, bare=not is_first),
                 metric_name(metric) + (f" ({unit})" if unit else ""), grid="x", small=True)  # fmt: skip


def distributions(
    results: Result | Iterable[Result] | Mapping[str, Result], columns: Iterable[str] | None = None
) -> Picture:
    """Draw a panel a column of the task table, with a line for every run.

    Parameters: results: runs, with labels if in a mapping; columns: without them response, wait (where any task waits)
        and the bounded slowdown.
    Returns: the picture.
    """
    runs = labeled(results)
    panels = [shares(runs, column) for column in (_usual(list(runs.values())) if columns is None else columns)]
    for number, panel in enumerate(panels):
        panel.legend, panel.y.bare, panel.title = "", number > 0, "" if number else panel.title
    return Picture([panels], 1.2 + 3.6 * len(panels), 3.9, legend=True)


def _usual(runs: list[Result]) -> list[str]:
    bounded = next(name for name in runs[0].tasks.columns if name.startswith("bounded_slowdown"))
    waits = any(np.nan_to_num(run.measured.column("wait")).any() for run in runs)
    return ["response", *(["wait"] if waits else []), bounded]
