"""The page of a forecast for a live cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetsim.model.files import write_whole
from hetsim.report.html.elements import Section, items, page, picture, table, warnings
from hetsim.twin import report

if TYPE_CHECKING:
    from hetsim.twin.forecast import TwinForecast


def write_twin(
    path: Path, told: TwinForecast, now: float, errors: Mapping[str, float], other: TwinForecast | None = None,
    changed: str = "", notes: list[str] | None = None,
) -> None:  # fmt: skip
    """Write the page, whole or not at all."""
    text = twin_page(told, now, errors, other, changed, notes or [])
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def twin_page(
    told: TwinForecast,
    now: float,
    errors: Mapping[str, float],
    other: TwinForecast | None,
    changed: str,
    notes: list[str],
) -> str:
    """The page as text."""
    from hetsim import __version__
    from hetsim.twin.picture import twin as draw

    under = "Thin 90 %, thick 50 % of the samples, a dot for the median; a stroke: the start by time limits alone."
    what = "what is held, when waiting jobs start, when nodes are free"
    sections = [
        Section("Picture", picture(lambda: draw(told, other), what, under)),
        Section("When waiting jobs start", table(report.HEADS, report.job_rows(told, now)) if told.jobs else ""),
        Section("When nodes are free for maintenance", table(report.FREE_HEADS, report.free_rows(told, now))),
        Section("What if", "" if other is None else items(report.summary(other, now)[1:])
                + table(report.WHAT_IF_HEADS, report.what_if_rows(told, other, now), changed)),
        Section("How good the models were on the log", items(report.error_lines(errors))),
        Section("Notes", warnings(notes)),
    ]  # fmt: skip
    head = f"Forecast from {report.moment(0.0, now)}"
    return page(head, report.summary(told, now), sections, f"Made by hetsim {__version__}.")
