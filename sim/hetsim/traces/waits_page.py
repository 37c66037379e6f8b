"""The page of a log's recorded waits: why its jobs waited, and what comes out when it is simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hetsim.model.files import write_whole
from hetsim.report import terminal
from hetsim.report.html.elements import Cell, Section, items, page, picture, table, warnings
from hetsim.traces import waits_report

if TYPE_CHECKING:
    from hetsim.traces.from_log import Compared
    from hetsim.workload.logs.waits import Explained


def write_waits(
    path: Path, name: str, explained: Explained, compared: Compared | None, simulated: bool, notes: Iterable[str] = ()
) -> None:
    """Write the page, whole or not at all."""
    text = waits_page(name, explained, compared if simulated else None, notes)
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def waits_page(name: str, explained: Explained, compared: Compared | None, notes: Iterable[str] = ()) -> str:
    """The page as text."""
    from hetsim import __version__
    from hetsim.traces.waits_picture import recorded_waits as draw

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
    return page(f"Recorded waits of {name}", filter(None, said), sections, f"Made by hetsim {__version__}.")


def _variants(compared: Compared) -> str:
    means = [mean for one in compared.variants for mean in (one.recorded, one.simulated)]
    defined = [mean for mean in means if not math.isnan(mean)]
    written = iter(terminal.several(defined, terminal.SECONDS)) if defined else iter(())
    rows: list[list[str | Cell]] = []
    for number, one in enumerate(compared.variants):
        times = [Cell("–" if math.isnan(mean) else next(written), mean) for mean in (one.recorded, one.simulated)]
        both = [Cell("–" if math.isnan(r) else f"{r:.2f}", r) for r in (one.correlation, one.rank_correlation)]
        name = one.name if one.kept else f"{one.name}: no better, left out"
        rows.append([Cell(str(number), number), name, Cell(f"{one.jobs:,}", one.jobs), *times, *both])
    titles = ["Step", "Scenario", "Jobs", "Recorded mean", "Simulated mean", "Correlation", "Of ranks"]
    under = f"Waits under {waits_report.policy_of(compared)}, with one thing after the other taken in."
    return table(titles, rows, under)
