"""Distribution of a column of the task table, for one run or several."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetsim.errors import UsageError, suggestion
from hetsim.model.record import UNFINISHED
from hetsim.plots.style import describe, line_looks
from hetsim.results.colors import MUTED
from hetsim.results.one_run.result import Result
from hetsim.results.panels import ROUND_TIMES, Axis, Line, Panel, Picture, Texts, time_axis

MAX_POINTS, FEW_LINES = 2000, 6  # maximum points per line; lines above which the legend is next to the picture
_TIMES = ("response", "wait", "overhead", "upload", "compute", "download")


def cdf(results: Result | Iterable[Result] | Mapping[str, Result], column: str = "response") -> Picture:
    """Draw the share of tasks with `column` at most x, one line per run.

    Only tasks in the window count.  Unfinished tasks count as +∞: a line with unfinished tasks ends below 100 %.

    Parameters: results: runs, with labels if in a mapping; column: of `tasks`.
    Returns: the picture.
    """
    return Picture([[shares(labeled(results), column)]])


def shares(runs: Mapping[str, Result], column: str, *, small: bool = False) -> Panel:
    """Return the panel with the cumulative distribution of a column, a line per run."""
    lines = {label: _values(result, column) for label, result in runs.items()}
    looks, marks = line_looks(list(lines)), list[Any]()
    for label, (values, total) in lines.items():
        count, kept, look = len(values), np.arange(len(values)), looks[label]
        if count > MAX_POINTS:  # of its tail, where a line is read, all are drawn
            kept = kept[(kept % (2 * count // MAX_POINTS) == 0) | (kept >= count - MAX_POINTS // 2)]
        if count < total and "dash" in look:
            share = 1 - count / total  # what is not all is not told as all
            text = "100 %" if share == 1 else "over 99 %" if share > 0.99 else f"{100 * share:.2g} %"
            look = look | {"label": f"{look['label']} ({text} unfinished)".strip()}
        # From 0 % on: of one task, or of many with the same value, the rise is all there is to see.
        x, y = np.append(values[:1], values[kept]), np.append(0 * values[:1], 100 * (1 + kept) / max(total, 1))
        marks.append(Line(x, y, steps=True, width=1.6, **look))
    everything = np.concatenate([values for values, _ in lines.values()])
    x_axis, many = _x_axis(everything, column), len(lines) > FEW_LINES
    title = marks[-1].label if len(lines) == 1 else ""
    if not everything.any():
        reason = f"{column.replace('_', ' ')} is 0 for all" if len(everything) else "no task has ended"
        marks.append(Texts([0.5], [0.5], [reason], MUTED, size=9, align="center", inside="xy"))
        x_axis.ticks = []  # there is nothing to read off
    legend = "" if title else "right" if many else "lower right"
    return Panel(marks, x_axis, Axis("tasks (%)", 0, 101), title, grid="both", legend=legend, small=small or many)


def labeled(results: Any) -> dict[str, Result]:
    """Return runs by label: the given labels, or scenario and policy."""
    if isinstance(results, Mapping):
        return dict(results)
    by_label: dict[str, Result] = {}
    for result in [results] if hasattr(results, "tasks") else results:
        label = describe(result) or "run"
        again = f"{label} · seed {result.seed} · replication {result.replication}"
        by_label[again if label in by_label else label] = result
    if not by_label:
        raise UsageError("runs must have at least one run to draw")
    return by_label


def _values(result: Result, column: str) -> tuple[np.ndarray, int]:
    table = result.measured.tasks
    if column not in table.columns:
        raise UsageError(f'tasks have no column "{column}"{suggestion(column, table.columns)}')
    if table[column].dtype.kind not in "fiub":
        raise UsageError(f'the column "{column}" must have numbers')
    values = table[column].to_numpy(dtype=float)
    missing = np.isnan(values)
    pending = missing & (table["status"].cat.codes.to_numpy() == UNFINISHED)
    return np.sort(values[~missing]), int((~missing | pending).sum())


def _x_axis(values: np.ndarray, column: str) -> Axis:
    label, positive, is_time = column.replace("_", " "), values[values > 0], column in _TIMES
    is_wide = len(positive) > 0 and bool(positive.max() > 50 * np.quantile(positive, 0.05))
    if is_time and not is_wide:
        return time_axis(0.0, 1.02 * float(values.max(initial=0.0)) or 1.0, label)
    if not is_wide and len(values) and float(np.ptp(values)) <= 1e-9 * float(np.abs(values).max()):
        return Axis(label, 0, 2 * float(values.max()) or 1.0)  # axes around one value would magnify its rounding
    return Axis(label, log=is_wide, ticks=ROUND_TIMES if is_time else None)
