"""A comparison of policies: each metric's mean and interval, policy by policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hetsim.plots.cdf import cdf, labeled
from hetsim.plots.style import BLUE, INK, MUTED, ORANGE, figure, legend_above, plain, short, tidy, title
from hetsim.results.formatting import figures, finite, fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.one_run.result import Result

COLUMNS = 3


def comparison(found: Comparison) -> Figure:
    """Draw a panel a metric: each policy's mean and interval, the best marked.

    Parameters: found: what `compare` gave.
    Returns: the figure.
    """
    metrics = found.metrics
    policies = [str(name) for name in found.table.index]
    names = [plain(short(name)) for name in policies]
    columns = 2 if len(metrics) == 4 else min(COLUMNS, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    picture = figure(1.6 + 2.8 * columns, 0.5 + rows * (0.8 + 0.32 * len(policies)))
    panels = picture.subplots(rows, columns, squeeze=False, sharey=True)
    for number, panel in enumerate(panels.flat):
        if number >= len(metrics):
            panel.set_visible(False)
            continue
        metric = metrics[number]
        part = found.table[metric]
        factor, unit = fitting(part["mean"].tolist(), units_of(metric))
        top = 0.0
        for row, (mean, half) in enumerate(zip(part["mean"], part["half_width"], strict=True)):
            value, error = mean / factor, finite(half) / factor
            if not math.isfinite(value):
                panel.text(0.02, row, "∞" if mean == math.inf else "–", transform=panel.get_yaxis_transform(),
                           va="center", color=MUTED)  # fmt: skip
                continue
            color = ORANGE if found.winners[metric] == policies[row] else BLUE
            panel.errorbar(value, row, xerr=error or None, fmt="o", color=color, markersize=5.5, capsize=3)
            panel.plot([0, value], [row, row], color=color, linewidth=1, alpha=0.35)
            panel.annotate(figures(value), (value + error, row), xytext=(7, 0), textcoords="offset points",
                           va="center", fontsize=8, color=INK)  # fmt: skip
            top = max(top, value + error)
        panel.set_xlim(0, 1.3 * top if top > 0 else 1)  # room for the figures beside the dots
        panel.set_ylim(len(policies) - 0.5, -0.6)
        panel.set_yticks(range(len(policies)), names)
        ticks = MaxNLocator(4).tick_values(0, 100 if unit == "%" and top <= 100 else top)
        panel.set_xticks([tick for tick in ticks if tick <= (100 if unit == "%" else panel.get_xlim()[1])])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        tidy(panel, grid="x")
        panel.tick_params(axis="y", length=0)
        panel.set_title(metric_name(metric) + (f" ({unit})" if unit else ""), fontsize=10, loc="left", color=INK)
    note = f"means, with {found.confidence * 100:g} % intervals" if (found.pairs["n"] > 1).any() else "one run of each"
    best = "; orange: shown to be better than all others" if any(found.winners.values()) else ""
    picture.text(1.0, 0.0, note + best, ha="right", va="bottom", fontsize=8, color=MUTED)
    picture.set_layout_engine("constrained", rect=(0, 0.05, 1, 0.95))
    return picture


def distributions(
    results: Result | Iterable[Result] | Mapping[str, Result], columns: Iterable[str] | None = None
) -> Figure:
    """Draw a panel a column of the task table, with a line for every run.

    Parameters: results: runs, with labels if in a mapping; columns: without them response, wait (where any task waits)
        and the bounded slowdown.
    Returns: the figure.
    """
    runs = labeled(results)
    chosen = _usual(list(runs.values())) if columns is None else list(columns)
    picture = figure(1.2 + 3.6 * len(chosen), 3.9)
    panels = picture.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for number, (ax, column) in enumerate(zip(panels, chosen, strict=True)):
        cdf(runs, column, ax)
        ax.set_title("", loc="left")
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
        if number:
            ax.set_ylabel("")
    legend_above(picture, panels[0])
    _, labels = panels[0].get_legend_handles_labels()
    if len(labels) == 1:
        title(panels[0], labels[0])
    return picture


def _usual(runs: list[Result]) -> list[str]:
    bounded = next(name for name in runs[0].tasks.columns if name.startswith("bounded_slowdown"))
    waits = any(np.nan_to_num(run.measured.column("wait")).any() for run in runs)
    return ["response", *(["wait"] if waits else []), bounded]
