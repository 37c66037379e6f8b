"""HTML page of a forecast for a live cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.page.elements import Section, items, page, picture, table, warnings, write_page
from hetsim.plots.style import short
from hetsim.results.colors import BLUE, MUTED, VERMILION
from hetsim.results.panels import Axis, Band, Line, Panel, Picture, Points, time_axis
from hetsim.twin import report

if TYPE_CHECKING:
    from hetsim.twin.forecast import TwinForecast

MAX_DRAWN = 25  # maximum number of jobs and nodes in a picture
QUARTERS = (0.05, 0.25, 0.5, 0.75, 0.95)


def write_twin(
    path: Path, told: TwinForecast, now: float, errors: Mapping[str, float], other: TwinForecast | None = None,
    changed: str = "", notes: list[str] | None = None, tables: Mapping[str, list[list[str]]] | None = None,
) -> None:  # fmt: skip
    """Write a page: forecast, model `errors`, what-if `other`; tables: headings first."""
    under = "Thin 90 %, thick 50 % of the samples, a dot for the median; a stroke: the start by time limits alone."
    what = "what is held, when waiting jobs start, when nodes are free"
    sections = [
        Section("Picture", picture(lambda: draw(told, other), what, under)),
        Section("When waiting jobs start", table(report.heads(told), report.job_rows(told, now)) if told.jobs else ""),
        *(Section(title, table(rows[0], rows[1:])) for title, rows in (tables or {}).items() if rows[1:]),
        Section("When nodes are free for maintenance", table(report.FREE_HEADS, report.free_rows(told, now))),
        Section("What if", "" if other is None else items(report.summary(other, now)[1:])
                + table(report.WHAT_IF_HEADS, report.what_if_rows(told, other, now), changed)),
        Section("How good the models were on the log", items(report.error_lines(errors))),
        Section("Rules of the site", items(report.rule_lines(told)) if report.rule_lines(told) else ""),
        Section("Notes", warnings(notes or [])),
    ]  # fmt: skip
    head = f"Forecast from {report.moment(0.0, now)}"
    write_page(path, page(head, report.summary(told, now), sections))


def draw(told: TwinForecast, other: TwinForecast | None = None) -> Picture:
    """Draw occupancy, job starts and free nodes; `other`: a what-if forecast."""
    jobs, nodes = min(MAX_DRAWN, len(told.jobs)), min(MAX_DRAWN, len(told.free))
    rows = max(jobs, nodes, 4)
    below = [_starts(told, other, jobs), _free(told, nodes)]
    heights = [3.2, 0.24 * rows + 0.6]
    return Picture([[_held(told, other)], below], 9, 4.2 + 0.24 * rows, heights=heights, widths=[3, 2])


def _held(told: TwinForecast, other: TwinForecast | None) -> Panel:
    marks, capacity = list[Any](), 0.0
    for one, color, name in ((told, BLUE, "as it is"), (other, VERMILION, "changed")):
        if one is not None:
            low, half, high = np.quantile(one.occupied, (0.05, 0.5, 0.95), axis=0)
            limit = color if other is not None else MUTED
            marks += [Band(one.times, low, high, label=f"{name}: 90 % of samples", color=color),
                      Line(one.times, half, f"{name}: median", color, width=1.6),
                      Line([-np.inf, np.inf], [one.capacity] * 2, color=limit, dash=1, width=0.9)]  # fmt: skip
            capacity = max(capacity, one.capacity)
    y = Axis(f"{told.unit} held (dashed: all)", 0, 1.08 * capacity)
    title = f"{told.unit} held in the next {told.horizon / 3600:g} h"
    return Panel(marks, time_axis(0.0, told.horizon, "time from now"), y, title, legend="above right")


def _starts(told: TwinForecast, other: TwinForecast | None, count: int) -> Panel:
    places, marks = {} if other is None else {job.id: place for place, job in enumerate(other.jobs)}, list[Any]()
    for row, job in enumerate(told.jobs[:count]):
        quantiles = [(told.quantiles(row, QUARTERS), row - (0.16 if other is not None else 0.0), BLUE)]
        if other is not None and job.id in places:
            quantiles.append((other.quantiles(places[job.id], QUARTERS), row + 0.16, VERMILION))
        for values, y, color in quantiles:
            cut = np.minimum(values, told.horizon)
            marks += [*_interval(cut[::2], y, told.horizon, color),
                      Line(cut[[1, 3]], [y, y], color=color, width=4, alpha=0.55)]  # fmt: skip
        if np.isfinite(limit := told.by_limits[row]):
            marks.append(Points([limit], [row], color=MUTED, marker="|", size=9))
    more = f", first {count} of {len(told.jobs):,}" if len(told.jobs) > count else ""
    return Panel(marks, time_axis(0.0, told.horizon, "start, from now"), _rows([job.id for job in told.jobs[:count]]),
                 f"When waiting jobs start{more}", grid="x")  # fmt: skip


def _interval(values: np.ndarray, y: float, horizon: float, color: str = BLUE) -> list[Any]:
    dot = [Points(values[1:2], [y], color=color)] * bool(values[1] < horizon)
    return [Line(values[::2], [y, y], color=color, width=1.1), *dot]


def _rows(names: list[str]) -> Axis:
    return Axis("", max(len(names), 1) - 0.4, -0.6, [(row, short(name, 14)) for row, name in enumerate(names)])


def _free(told: TwinForecast, count: int) -> Panel:
    names, marks = list(told.free)[:count], list[Any]()
    for row, name in enumerate(names):
        quantiles = np.quantile(told.free[name], (0.05, 0.5, 0.95))
        marks += _interval(np.minimum(quantiles, told.horizon), row, told.horizon)
    return Panel(marks, time_axis(0.0, told.horizon, "free, from now"),
                 _rows(["all nodes" if name == "all" else name for name in names]), "When nodes are free, drained now",
                 grid="x")  # fmt: skip
