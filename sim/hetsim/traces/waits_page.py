"""The page of a log's recorded waits: reasons, and simulated waits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.page.elements import Cell, Section, items, page, picture, table, warnings, write_page
from hetsim.plots.style import look, until
from hetsim.report import terminal
from hetsim.results.colors import BLUE, GRID, MUTED, VERMILION
from hetsim.results.panels import ROUND_TIMES, Axis, Band, Boxes, Line, Panel, Picture, Texts, row_boxes, time_axis
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


def draw(explained: Explained, compared: Compared | None = None) -> Picture:
    """Draw the held part of the capacity, reasons of waits, and their distribution."""
    return Picture([[_held(explained)], [_reasons(explained), _waits(explained, compared)]], 9, 7)


def _held(explained: Explained) -> Panel:
    jobs = explained.jobs
    occupancy = HeldOverTime(jobs.start, jobs.end, jobs.amount)
    low, high = float(jobs.arrival[0]), float(jobs.end.max())
    time, level = until(high, occupancy.times, occupancy.level)
    at, up = zip(*explained.curve, (high, explained.curve[-1][1]), strict=True)
    head = [Boxes([low], [explained.warm_end], [-np.inf], [np.inf], label="head of the log", color=GRID)]
    marks: list[Any] = [
        *head * (explained.warm_end > low),
        # Shaded up to the highest level of each interval: what matters is how near it comes to the capacity.
        Band(time, 0.0, level, alpha=0.15, steps=True, peak=True), Line(time, level, "held", width=1.0, steps=True),
        # Each step as a line of its own: these are not averaged.
        Line(np.repeat(at, 2)[1:], np.repeat(up, 2)[:-1], "capacity, as inferred", VERMILION, width=1.6),
    ]  # fmt: skip
    return Panel(marks, time_axis(low, high), Axis(jobs.unit, 0, 1.08 * explained.capacity),
                 f"{len(jobs):,} jobs from their recorded starts on", legend="above right", means=True)  # fmt: skip


def _reasons(explained: Explained) -> Panel:
    place, shares = np.arange(len(REASONS)), np.array([100 * explained.shares[reason] for reason in REASONS])
    marks: list[Any] = [
        row_boxes(0 * shares[mine], shares[mine], place[mine], 0.35, color=color)
        for color, mine in ((MUTED, np.array(REASONS) == "held back"), (BLUE, np.array(REASONS) != "held back"))
    ]  # fmt: skip
    marks.append(Texts(shares, place, [f"{share:.1f} %" for share in shares], size=9, shift=(4, 0)))
    y = Axis("", len(REASONS) - 0.5, -0.5, list(enumerate(REASONS)))
    x = Axis("of all waiting (%)", 0, 1.2 * max(*shares, 1.0))
    return Panel(marks, x, y, "why jobs waited", grid="x", small=True)


def _waits(explained: Explained, compared: Compared | None) -> Panel:
    run = [one for one in (compared.variants if compared is not None else []) if one.waits is not None and one.jobs]
    lines = {"recorded": run[0].waits[0] if run and run[0].waits is not None else explained.jobs.wait}
    best = [number for number, one in enumerate(run) if one.kept]
    for one in dict.fromkeys([0, best[-1]]) if best else ():
        waits = run[one].waits
        assert waits is not None
        lines["simulated, as it stands" if one == 0 else "simulated, with all that was kept"] = waits[1]
    marks = []
    for number, (label, values) in enumerate(lines.items()):
        ordered = np.maximum(np.sort(values), SHORTEST)
        share = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
        step = max(1, len(ordered) // 2000)
        marks.append(Line(ordered[::step], share[::step], label, steps=True, width=1.6, **look(number)))
    x = Axis(f"wait (at most; none is drawn as {SHORTEST:g} s)", ticks=ROUND_TIMES, log=True)
    title = "how long they waited"
    return Panel(list(marks), x, Axis("jobs (%)", 0, 101), title, grid="both", legend="inside", small=True)
