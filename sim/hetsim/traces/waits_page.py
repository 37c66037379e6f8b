"""The page of a log's recorded waits: reasons, and simulated waits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetsim.page.elements import Cell, Section, items, page, picture, table, warnings, write_page
from hetsim.plots import style
from hetsim.report import terminal
from hetsim.traces import waits_report
from hetsim.traces.from_log import Compared
from hetsim.workload.logs.recorded_log import HeldOverTime
from hetsim.workload.logs.waits import REASONS, Explained

SHORTEST = 1.0
"""Seconds as which no wait at all is drawn."""


def write_waits(
    path: Path, name: str, explained: Explained, compared: Compared | None, simulated: bool, notes: Iterable[str] = ()
) -> None:
    """Write the page of waits."""
    write_page(path, waits_page(name, explained, compared if simulated else None, notes))


def waits_page(name: str, explained: Explained, compared: Compared | None, notes: Iterable[str] = ()) -> str:
    """The page of waits as text."""
    mean = terminal.several([explained.mean_wait], terminal.SECONDS)[0]
    of_capacity = f"{explained.capacity:,.6g} {explained.jobs.unit}"
    said = [f"Mean recorded wait {mean} over {len(explained.jobs):,} jobs, on {of_capacity}."]
    said += [waits_report.conclusion(compared)] if compared is not None else []
    shares = [
        [reason, Cell(f"{100 * share:.1f} %", share), waits_report.meaning(explained, reason)]
        for reason, share in explained.shares.items()
    ]
    sections = [
        Section("Picture", picture(lambda: draw(explained, compared), "what was held, why jobs waited, and how long")),
        Section("Why jobs waited", table(["Reason", "Of all waiting", "Meaning"], shares)),
        Section("What the log shows of its site", items(waits_report.inferred(explained))),
        Section("Recorded and simulated waits", "" if compared is None else _variants(compared)),
        Section("Notes", warnings(notes)),
    ]
    return page(f"Recorded waits of {name}", filter(None, said), sections)


def _variants(compared: Compared) -> str:
    rows = []
    for number, (one, texts) in enumerate(zip(compared.variants, waits_report.variant_rows(compared), strict=True)):
        values = (one.jobs, one.recorded, one.simulated, one.correlation, one.rank_correlation)
        rows.append([Cell(str(number), number), texts[0], *map(Cell, texts[1:], values)])
    titles = ["Step", "Scenario", "Jobs", "Recorded mean", "Simulated mean", "Correlation", "Of ranks"]
    under = f"Waits under {waits_report.policy_of(compared)}, with one thing after the other taken in."
    return table(titles, rows, under)


def draw(explained: Explained, compared: Compared | None = None) -> Figure:
    """Draw the held part of the capacity, reasons of waits, and their distribution."""
    picture = style.figure(9, 7)
    grid = picture.add_gridspec(2, 2)
    _held(picture.add_subplot(grid[0, :]), explained)
    _reasons(picture.add_subplot(grid[1, 0]), explained)
    _waits(picture.add_subplot(grid[1, 1]), explained, compared)
    return picture


def _held(ax: Axes, explained: Explained) -> None:
    jobs = explained.jobs
    occupancy = HeldOverTime(jobs.start, jobs.end, jobs.amount)
    low, high = float(jobs.arrival[0]), float(jobs.end.max())
    times, level = occupancy.times, occupancy.level
    # Shaded up to the highest level of each interval: what matters is how near it comes to the capacity.
    edges = style.intervals(ax, high - low, level)
    edges = None if edges is None else low + edges
    style.draw_steps(ax, times, level, end=high, edges=edges, fill=True, color=style.BLUE, linewidth=1.0, label="held")
    points = [*explained.curve, (high, explained.curve[-1][1])]
    at, up = zip(*points, strict=True)
    ax.step(at, up, where="post", color=style.VERMILION, linewidth=1.6, label="capacity, as inferred")
    if explained.warm_end > low:
        ax.axvspan(low, explained.warm_end, color=style.GRID, zorder=0, label="head of the log")
    ax.set_ylim(0, 1.08 * explained.capacity)
    ax.set_ylabel(style.steps_label(jobs.unit, edges, shaded=True), fontsize=9, color=style.INK)
    style.time_axis(ax, low, high)
    style.tidy(ax)
    style.title(ax, f"{len(jobs):,} jobs from their recorded starts on", pad=18)
    ax.legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)


def _reasons(ax: Axes, explained: Explained) -> None:
    place = np.arange(len(REASONS))
    shares = [100 * explained.shares[reason] for reason in REASONS]
    colors = [style.MUTED if reason == "held back" else style.BLUE for reason in REASONS]
    ax.barh(place, shares, color=colors, height=0.7)
    for row, share in zip(place, shares, strict=True):
        ax.annotate(f"{share:.1f} %", (share, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_yticks(place, REASONS)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.2 * max(*shares, 1.0))
    ax.set_xlabel("of all waiting (%)", fontsize=9, color=style.INK)
    style.tidy(ax, grid="x")
    style.title(ax, "why jobs waited")


def _waits(ax: Axes, explained: Explained, compared: Compared | None) -> None:
    run = [one for one in (compared.variants if compared is not None else []) if one.waits is not None and one.jobs]
    lines = {"recorded": run[0].waits[0] if run and run[0].waits is not None else explained.jobs.wait}
    best = [number for number, one in enumerate(run) if one.kept]
    for one in dict.fromkeys([0, best[-1]]) if best else ():
        waits = run[one].waits
        assert waits is not None
        lines["simulated, as it stands" if one == 0 else "simulated, with all that was kept"] = waits[1]
    for number, (label, values) in enumerate(lines.items()):
        ordered = np.maximum(np.sort(values), SHORTEST)
        share = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
        step = max(1, len(ordered) // 2000)
        look = style.look(number)
        ax.plot(ordered[::step], share[::step], drawstyle="steps-post", linewidth=1.6, label=label, **look)
    style.log_time_axis(ax, f"wait (at most; none is drawn as {SHORTEST:g} s)")
    ax.set_ylim(0, 101)
    ax.set_ylabel("jobs (%)", fontsize=9, color=style.INK)
    style.tidy(ax, grid="both")
    style.title(ax, "how long they waited")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
