"""The page of a forecast for a live cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetsim.page.elements import Section, items, page, picture, table, warnings, write_page
from hetsim.plots.style import BLUE, INK, MUTED, VERMILION, figure, plain, short, tidy, time_axis, title
from hetsim.twin import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hetsim.twin.forecast import TwinForecast

MAX_DRAWN = 25
"""Jobs and nodes that are drawn."""


def write_twin(
    path: Path, told: TwinForecast, now: float, errors: Mapping[str, float], other: TwinForecast | None = None,
    changed: str = "", notes: list[str] | None = None,
) -> None:  # fmt: skip
    """Write the page of the forecast."""
    under = "Thin 90 %, thick 50 % of the samples, a dot for the median; a stroke: the start by time limits alone."
    what = "what is held, when waiting jobs start, when nodes are free"
    sections = [
        Section("Picture", picture(lambda: draw(told, other), what, under)),
        Section("When waiting jobs start", table(report.HEADS, report.job_rows(told, now)) if told.jobs else ""),
        Section("When nodes are free for maintenance", table(report.FREE_HEADS, report.free_rows(told, now))),
        Section("What if", "" if other is None else items(report.summary(other, now)[1:])
                + table(report.WHAT_IF_HEADS, report.what_if_rows(told, other, now), changed)),
        Section("How good the models were on the log", items(report.error_lines(errors))),
        Section("Rules of the site", items(report.rule_lines(told)) if report.rule_lines(told) else ""),
        Section("Notes", warnings(notes or [])),
    ]  # fmt: skip
    head = f"Forecast from {report.moment(0.0, now)}"
    write_page(path, page(head, report.summary(told, now), sections))


def draw(told: TwinForecast, other: TwinForecast | None = None) -> Figure:
    """Draw occupancy over time, starts of waiting jobs, and free nodes."""
    jobs, nodes = min(MAX_DRAWN, len(told.jobs)), min(MAX_DRAWN, len(told.free))
    rows = max(jobs, nodes, 4)
    picture = figure(9, 4.2 + 0.24 * rows)
    grid = picture.add_gridspec(2, 2, height_ratios=[3.2, 0.24 * rows + 0.6], width_ratios=[3, 2])
    _held(picture.add_subplot(grid[0, :]), told, other)
    _starts(picture.add_subplot(grid[1, 0]), told, other, jobs)
    _free(picture.add_subplot(grid[1, 1]), told, nodes)
    return picture


def _held(ax: Axes, told: TwinForecast, other: TwinForecast | None) -> None:
    for one, color, name in ((told, BLUE, "as it is"), (other, VERMILION, "changed")):
        if one is None:
            continue
        low, half, high = np.quantile(one.occupied, (0.05, 0.5, 0.95), axis=0)
        ax.fill_between(one.times, low, high, color=color, alpha=0.2, linewidth=0, label=f"{name}: 90 % of samples")
        ax.plot(one.times, half, color=color, linewidth=1.6, label=f"{name}: median")
        ax.axhline(one.capacity, color=color if other is not None else MUTED, linewidth=0.9, linestyle=(0, (5, 2)))
    ax.set_ylim(0, 1.08 * max(one.capacity for one in (told, other) if one is not None))
    ax.set_ylabel(f"{told.unit} held (dashed: all)", fontsize=9, color=INK)
    time_axis(ax, 0.0, told.horizon, "time from now")
    tidy(ax)
    title(ax, f"{told.unit} held in the next {told.horizon / 3600:g} h", pad=18)
    ax.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)


def _starts(ax: Axes, told: TwinForecast, other: TwinForecast | None, count: int) -> None:
    places = {} if other is None else {job.id: place for place, job in enumerate(other.jobs)}
    for row, job in enumerate(told.jobs[:count]):
        _interval(ax, told, row, y=row - (0.16 if other is not None else 0.0), color=BLUE)
        if other is not None and job.id in places:
            _interval(ax, other, places[job.id], y=row + 0.16, color=VERMILION)
        limit = told.by_limits[row]
        if np.isfinite(limit):
            ax.plot([limit], [row], marker="|", color=MUTED, markersize=9, markeredgewidth=1.4)
    ax.set_yticks(range(count), [plain(short(job.id, 14)) for job in told.jobs[:count]], fontsize=8)
    ax.set_ylim(max(count, 1) - 0.4, -0.6)
    time_axis(ax, 0.0, told.horizon, "start, from now")
    tidy(ax, grid="x")
    more = f", first {count} of {len(told.jobs):,}" if len(told.jobs) > count else ""
    title(ax, f"When waiting jobs start{more}")


def _interval(ax: Axes, told: TwinForecast, job: int, y: float, color: str) -> None:
    """90 % thin, 50 % thick, the median a dot; cut at the horizon."""
    low, first, half, third, high = np.minimum(told.quantiles(job, (0.05, 0.25, 0.5, 0.75, 0.95)), told.horizon)
    ax.plot([low, high], [y, y], color=color, linewidth=1.1)
    ax.plot([first, third], [y, y], color=color, linewidth=4, alpha=0.55, solid_capstyle="butt")
    if half < told.horizon:
        ax.plot([half], [y], marker="o", color=color, markersize=4)


def _free(ax: Axes, told: TwinForecast, count: int) -> None:
    names = list(told.free)[:count]
    for row, name in enumerate(names):
        low, half, high = np.minimum(np.quantile(told.free[name], (0.05, 0.5, 0.95)), told.horizon)
        ax.plot([low, high], [row, row], color=BLUE, linewidth=1.1)
        if half < told.horizon:
            ax.plot([half], [row], marker="o", color=BLUE, markersize=4)
    ax.set_yticks(range(len(names)), ["all nodes" if name == "all" else plain(short(name, 14)) for name in names],
                  fontsize=8)  # fmt: skip
    ax.set_ylim(max(len(names), 1) - 0.4, -0.6)
    time_axis(ax, 0.0, told.horizon, "free, from now")
    tidy(ax, grid="x")
    title(ax, "When nodes are free, drained now")
