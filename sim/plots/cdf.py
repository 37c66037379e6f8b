"""How a column of the task table is distributed, for one run or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import UsageError, suggestion
from sim.model.record import UNFINISHED
from sim.plots.style import DASHES, INK, PALETTE, describe, log_time_axis, own_axes, tidy, time_axis, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.results.result import Result

MOST_POINTS = 2000
WIDE = 50.0
"""Above this ratio of the largest to a small value the axis is logarithmic."""

_TIMES = ("response", "wait", "held", "upload", "compute", "download")


def cdf(
    results: Result | Iterable[Result] | Mapping[str, Result], column: str = "response", ax: Axes | None = None
) -> Axes:
    """Draw the share of tasks whose `column` is at most x, a line for every run.

    Of tasks in the window.  Unfinished tasks count as +∞: a line that ends below 100 % has some.
    """
    lines = {label: _values(result, column) for label, result in _labelled(results).items()}
    ax = own_axes(ax)
    everything = np.concatenate([values for values, _ in lines.values()])
    for number, (label, (values, total)) in enumerate(lines.items()):
        look: Any = DASHES[number % len(DASHES)]
        share = 100 * np.arange(1, len(values) + 1) / max(total, 1)
        kept = _thinned(len(values))
        text = label
        if len(values) < total:
            text = f"{label} ({100 * (1 - len(values) / total):.2g} % unfinished)".strip()
        ax.plot(values[kept], share[kept], drawstyle="steps-post", linewidth=1.6, label=text,
                color=PALETTE[number % len(PALETTE)], linestyle=look)  # fmt: skip
    _x_axis(ax, everything, column)
    ax.set_ylim(0, 101)
    ax.set_ylabel("tasks (%)", fontsize=9, color=INK)
    tidy(ax, grid="both")
    if len(lines) > 1:
        ax.legend(frameon=False, fontsize=9, loc="lower right")
    else:
        title(ax, ax.lines[-1].get_label())  # type: ignore[arg-type]
    return ax


def _labelled(results: Any) -> dict[str, Result]:
    if isinstance(results, Mapping):
        return dict(results)
    if hasattr(results, "tasks"):
        results = [results]
    found: dict[str, Result] = {}
    for result in results:
        label = describe(result) or "run"
        if label in found:
            label = f"{label} · seed {result.seed} · replication {result.replication}"
        found[label] = result
    if not found:
        raise UsageError("there is no run to draw")
    return found


def _values(result: Result, column: str) -> tuple[np.ndarray, int]:
    """Sorted values of the window's tasks, and how many tasks they are out of: unfinished ones included."""
    table = result.measured.tasks
    if column not in table.columns:
        raise UsageError(f'tasks have no column "{column}"{suggestion(column, table.columns)}')
    if table[column].dtype.kind not in "fiub":
        raise UsageError(f'the column "{column}" does not hold numbers')
    values = table[column].to_numpy(dtype=float)
    missing = np.isnan(values)
    pending = int((missing & (table["status"].cat.codes.to_numpy() == UNFINISHED)).sum())
    known = np.sort(values[~missing])
    return known, len(known) + pending


def _thinned(count: int) -> np.ndarray:
    """Which of so many sorted points to draw: the tail, where a line is read, in full."""
    if count <= MOST_POINTS:
        return np.arange(count)
    half = MOST_POINTS // 2
    return np.unique(np.concatenate([np.linspace(0, count - 1, half).astype(int), np.arange(count - half, count)]))


def _x_axis(ax: Axes, values: np.ndarray, column: str) -> None:
    label = column.replace("_", " ")
    positive = values[values > 0]
    small = float(np.quantile(positive, 0.05)) if len(positive) else 0.0
    wide = len(positive) > 0 and float(positive.max()) > WIDE * small > 0
    if column in _TIMES:
        if wide:
            log_time_axis(ax, label)
        elif len(values):
            time_axis(ax, 0.0, max(float(values.max()) * 1.02, 1e-9), label)
        return
    if wide:
        ax.set_xscale("log")
    ax.set_xlabel(label, fontsize=9, color=INK)
