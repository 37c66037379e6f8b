"""A picture of a log of jobs: load over time, run times, and GPUs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hetsim.plots.style import BLUE, INK, ORANGE, figure, log_time_axis, means_told, tidy, time_axis, title
from hetsim.workload.logs import summary
from hetsim.workload.traces import TaskTable


def trace(table: TaskTable) -> Figure:
    """Draw the tasks of a trace: load over time above, durations and sizes below."""
    picture = figure(9, 6)
    grid = picture.add_gridspec(2, 2)
    _load(picture.add_subplot(grid[0, :]), table)
    _durations(picture.add_subplot(grid[1, 0]), table)
    _sizes(picture.add_subplot(grid[1, 1]), table)
    return picture


def _load(ax: Axes, table: TaskTable) -> None:
    load_steps = summary.load(table, 200)
    if load_steps:
        first, last = float(table.arrival.min()), float(table.arrival.max())
        edges = np.linspace(first, last, len(load_steps["jobs"]) + 1)
        key, color = ("gpus", BLUE) if any(load_steps["gpus"]) else ("cores", ORANGE)
        ax.stairs(load_steps[key], edges, fill=True, color=color, alpha=0.25)
        ax.stairs(load_steps[key], edges, color=color, linewidth=1.3)
        ax.set_ylabel(f"{'GPUs' if key == 'gpus' else 'cores'} held", fontsize=9, color=INK)
        ax.set_ylim(bottom=0)
        time_axis(ax, first, last, told=means_told(edges))
    tidy(ax)
    begin = "recorded start" if "recorded_start" in table.extra else "submission"
    title(ax, f"{len(table):,} tasks, each from its {begin} on")


def _durations(ax: Axes, table: TaskTable) -> None:
    values = np.sort(summary.durations(table))
    values = values[np.isfinite(values)]
    share = np.arange(1, len(values) + 1) / max(1, len(values))
    step = max(1, len(values) // 2000)
    ax.plot(np.maximum(values, 1e-3)[::step], share[::step], color=BLUE, linewidth=1.6, drawstyle="steps-post")
    log_time_axis(ax, "duration")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylim(0, 1.01)
    tidy(ax, grid="both")


def _sizes(ax: Axes, table: TaskTable) -> None:
    rows = summary.sizes(table)
    on_cores = all("cores" in row for row in rows)
    place = np.arange(len(rows))
    ax.bar(place - 0.2, [row["tasks_share"] for row in rows], 0.38, color=BLUE, label="tasks")
    work = "core time" if on_cores else "GPU time"
    ax.bar(place + 0.2, [row["work_share"] for row in rows], 0.38, color=ORANGE, label=work)
    # Of a class of cores only where it begins, or the names run into each other.
    names = [row["cores"].partition("–")[0] if on_cores else row["gpus"] for row in rows]
    ax.set_xticks(place, names, fontsize=8 if len(names) <= 10 else 7)
    ax.set_xlabel("cores of a task, from" if on_cores else "GPUs of a task", fontsize=9, color=INK)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.legend(frameon=False, fontsize=9)
    tidy(ax)
