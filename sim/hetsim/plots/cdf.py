"""How a column of the task table is distributed, for one run or several."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetsim.errors import UsageError, suggestion
from hetsim.model.record import UNFINISHED
from hetsim.plots.style import describe, line_looks
from hetsim.results.colors import MUTED
from hetsim.results.one_run.result import Result
from hetsim.results.panels import ROUND_TIMES, Axis, Line, Panel, Picture, Texts, time_axis

MAX_POINTS = 2000
FEW_LINES = 6
"""With more lines the legend stands next to the picture."""
WIDE = 50.0
"""Above this ratio of the largest to a small value the axis is logarithmic."""

_TIMES = ("response", "wait", "overhead", "upload", "compute", "download")


def cdf(results: Result | Iterable[Result] | Mapping[str, Result], column: str = "response") -> Picture:
    """Draw the share of tasks with `column` at most x, a line for every run.

    Of tasks in the window.  Unfinished tasks count as +∞: a line that ends below 100 % has some.

    Parameters: results: runs, with labels if in a mapping; column: of `tasks`.
    Returns: the picture.
    """
    return Picture([[shares(labeled(results), column)]])


def shares(runs: Mapping[str, Result], column: str, *, small: bool = False) -> Panel:
    """The panel of `cdf`."""
    lines = {label: _values(result, column) for label, result in runs.items()}
    looks, marks = line_looks(list(lines)), list[Any]()
    for label, (values, total) in lines.items():
        share, kept = 100 * np.arange(1, len(values) + 1) / max(total, 1), _thinned(len(values))
        look = looks[label]
        if len(values) < total and "dash" in look:
            look = look | {"label": f"{look['label']} ({_percent(1 - len(values) / total)} unfinished)".strip()}
        # From 0 % on: of one task, or of many with the same value, the rise is all there is to see.
        x, y = np.append(values[:1], values[kept]), np.append([0.0] * len(values[:1]), share[kept])
        marks.append(Line(x, y, steps=True, width=1.6, **look))
    everything = np.concatenate([values for values, _ in lines.values()])
    x_axis, legend = _x_axis(everything, column), "lower right" if len(lines) <= FEW_LINES else "right"
    title = marks[-1].label if len(lines) == 1 else ""
    if not everything.any():
        reason = f"{column.replace('_', ' ')} is 0 for all" if len(everything) else "none has come to its end"
        marks.append(Texts([0.5], [0.5], [reason], MUTED, size=9, align="center", inside="xy"))
        x_axis.ticks = []  # there is nothing to read off
    return Panel(marks, x_axis, Axis("tasks (%)", 0, 101), title, grid="both", legend="" if title else legend,
                 small=small or len(lines) > FEW_LINES)  # fmt: skip


def _percent(value: float) -> str:
    """`100 %`, `0.26 %`: what is not all is not told as all."""
    return "100 %" if value == 1 else "over 99 %" if value > 0.99 else f"{100 * value:.2g} %"


def labeled(results: Any) -> dict[str, Result]:
    """Runs by label: as they are given, or by scenario and policy."""
    if isinstance(results, Mapping):
        return dict(results)
    if hasattr(results, "tasks"):
        results = [results]
    by_label: dict[str, Result] = {}
    for result in results:
        label = describe(result) or "run"
        if label in by_label:
            label = f"{label} · seed {result.seed} · replication {result.replication}"
        by_label[label] = result
    if not by_label:
        raise UsageError("there is no run to draw")
    return by_label


def _values(result: Result, column: str) -> tuple[np.ndarray, int]:
    """Sorted values of the window's tasks, and the count with unfinished ones."""
    table = result.measured.tasks
    if column not in table.columns:
        raise UsageError(f'tasks have no column "{column}"{suggestion(column, table.columns)}')
    if table[column].dtype.kind not in "fiub":
        raise UsageError(f'the column "{column}" does not hold numbers')
    values = table[column].to_numpy(dtype=float)
    missing = np.isnan(values)
    pending = int((missing & (table["status"].cat.codes.to_numpy() == UNFINISHED)).sum())
    ascending = np.sort(values[~missing])
    return ascending, len(ascending) + pending


def _thinned(count: int) -> np.ndarray:
    """Which of the sorted points to draw: the tail, where a line is read, in full."""
    if count <= MAX_POINTS:
        return np.arange(count)
    half = MAX_POINTS // 2
    return np.unique(np.concatenate([np.linspace(0, count - 1, half).astype(int), np.arange(count - half, count)]))


def _x_axis(values: np.ndarray, column: str) -> Axis:
    label = column.replace("_", " ")
    positive = values[values > 0]
    small = float(np.quantile(positive, 0.05)) if len(positive) else 0.0
    is_wide = len(positive) > 0 and float(positive.max()) > WIDE * small > 0
    if column in _TIMES and not is_wide:
        return time_axis(0.0, 1.02 * float(values.max(initial=0.0)) or 1.0, label)
    if not is_wide and len(values) and float(np.ptp(values)) <= 1e-9 * float(np.abs(values).max()):
        return Axis(label, 0, 2 * float(values.max()) or 1.0)  # axes around one value would magnify its rounding
    return Axis(label, log=is_wide, ticks=ROUND_TIMES if column in _TIMES else None)
