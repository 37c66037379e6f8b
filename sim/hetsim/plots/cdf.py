"""How a column of the task table is distributed, for one run or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hetsim.errors import UsageError, suggestion
from hetsim.model.record import UNFINISHED
from hetsim.plots.style import INK, MUTED, describe, line_looks, log_time_axis, name_axes, own_axes, tidy, time_axis
from hetsim.results.one_run.result import Result

MAX_POINTS = 2000
FEW_LINES = 6
"""With more lines the legend stands next to the picture."""
WIDE = 50.0
"""Above this ratio of the largest to a small value the axis is logarithmic."""

_TIMES = ("response", "wait", "overhead", "upload", "compute", "download")


def cdf(
    results: Result | Iterable[Result] | Mapping[str, Result], column: str = "response", ax: Axes | None = None
) -> Axes:
    """Draw the share of tasks with `column` at most x, a line for every run.

    Of tasks in the window.  Unfinished tasks count as +∞: a line that ends below 100 % has some.

    Parameters: results: runs, with labels if in a mapping; column: of `tasks`; ax: axes to draw on, else those of a new
        figure.
    Returns: the axes.
    """
    lines = {label: _values(result, column) for label, result in labeled(results).items()}
    ax = own_axes(ax)
    everything = np.concatenate([values for values, _ in lines.values()])
    looks = line_looks(list(lines))
    for label, (values, total) in lines.items():
        share = 100 * np.arange(1, len(values) + 1) / max(total, 1)
        kept = _thinned(len(values))
        look = looks[label]
        if len(values) < total and look["label"] and look["zorder"] > 1:
            look = look | {"label": f"{look['label']} ({_percent(1 - len(values) / total)} unfinished)".strip()}
        # From 0 % on: of one task, or of many with the same value, the rise is all there is to see.
        ax.plot(np.append(values[:1], values[kept]), np.append([0.0] * len(values[:1]), share[kept]),
                drawstyle="steps-post", linewidth=1.6, **look)  # fmt: skip
    _x_axis(ax, everything, column)
    if not everything.any():
        reason = f"{column.replace('_', ' ')} is 0 for all" if len(everything) else "none has come to its end"
        ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", fontsize=9, color=MUTED)
        ax.set_xticks([])  # there is nothing to read off
    ax.set_ylim(0, 101)
    tidy(ax, grid="both", y="tasks (%)")
    if 1 < len(lines) <= FEW_LINES:
        ax.legend(frameon=False, fontsize=9, loc="lower right")
    elif len(lines) > 1:
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        ax.set_title(str(ax.lines[-1].get_label()), loc="left", fontsize=11, color=INK)
    return ax


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


def _x_axis(ax: Axes, values: np.ndarray, column: str) -> None:
    label = column.replace("_", " ")
    positive = values[values > 0]
    small = float(np.quantile(positive, 0.05)) if len(positive) else 0.0
    wide = len(positive) > 0 and float(positive.max()) > WIDE * small > 0
    if column in _TIMES:
        if wide:
            log_time_axis(ax, label)
        else:
            time_axis(ax, 0.0, 1.02 * float(values.max(initial=0.0)) or 1.0, label)
        return
    if wide:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.xaxis.set_minor_locator(NullLocator())
    elif len(values) and float(np.ptp(values)) <= 1e-9 * float(np.abs(values).max()):
        ax.set_xlim(0, 2 * float(values.max()) or 1.0)  # one value: axes around it would magnify its rounding
    name_axes(ax, label)
