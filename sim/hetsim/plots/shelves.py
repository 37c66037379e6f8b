"""The shelves of a dual-approximation schedule relative to the guess λ."""

import math
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.gantt import lanes_axis
from hetsim.plots.style import describe, short
from hetsim.results.colors import BLUE, MUTED, ORANGE, SKY, VERMILION
from hetsim.results.formatting import seconds
from hetsim.results.one_run.over_bins import device_bars
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Line, Panel, Picture, Texts, row_boxes, time_axis

CLASSES = (
    ("long: more than 2λ/3", 2 / 3, BLUE), ("medium: more than λ/3", 1 / 3, ORANGE),
    ("small", 0.0, SKY),
)  # fmt: skip
LINES = (("λ/3", 1 / 3), ("2λ/3", 2 / 3), ("λ", 1.0), ("4λ/3", 4 / 3))
ROUNDING = 1e-9
"""A task with a time of a third of the guess, but for rounding, is small."""


def shelves(result: Result, *, guess: float | None = None) -> Picture:
    """Draw the schedule of `dual_approximation` as its proof sees it.

    A task is long, medium or small by its time on the device where it ran: the proof gives a device one long task or
    two medium ones at most, and fills up with small ones to 4λ/3.

    Parameters: result: a run; guess: λ in seconds, without it the one that the algorithm accepted last
        (`result.notes["guess"]`).
    Returns: the picture.
    Raises: UsageError: the policy tells no guess, or it is not above 0.
    """
    guess = _guess(result) if guess is None else guess
    if not (guess > 0 and math.isfinite(guess)):
        raise UsageError(f"shelves need a guess above 0 s, not {guess:g}")
    bars, lanes = _lanes(result)
    begin, end, row = (bars[name].to_numpy(dtype=float) for name in ("compute_start", "compute_end", "row"))
    remaining, marks = np.ones(len(bars), dtype=bool), list[Any]()
    for name, above, color in CLASSES:
        chosen = remaining & (end - begin > above * guess * (1 + ROUNDING))
        remaining &= ~chosen
        if chosen.any():
            look = {"label": name, "color": color, "edge": 0.5}
            marks.append(row_boxes(begin[chosen], end[chosen], row[chosen], 0.4, **look))
    for text, part in LINES:
        at, color = part * guess, VERMILION if part == 1 else MUTED
        marks += [Line([at, at], [-math.inf, math.inf], color=color, dash=1, width=1.2),
                  Texts([at], [1.01], [text], size=9, align="center", rise="bottom", inside="y")]  # fmt: skip
    last = max(float(end.max(initial=0.0)), 4 / 3 * guess)
    title = f"{short(describe(result), 44)} · λ = {seconds(guess)}"
    panel = Panel(marks, time_axis(0.0, 1.02 * last), lanes_axis(list(enumerate(lanes)), len(lanes)), title,
                  grid="", legend="above right", room=16)  # fmt: skip
    return Picture([[panel]], 10, min(14.0, 1.9 + 0.3 * max(len(lanes), 3)))


def _guess(result: Result) -> float:
    value = result.notes.get("guess")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise UsageError(
        f"shelves are drawn of a run that dual_approximation planned; {result.policy or 'this policy'} tells no guess"
    )


def _lanes(result: Result) -> tuple[pd.DataFrame, list[str]]:
    """The launches that computed, each with its `row`; the names of the rows."""
    bars = device_bars(result)
    bars = bars[bars["compute_end"].notna()]
    place = {str(name): number for number, name in enumerate(result.devices["device"])}
    bars = bars.assign(place=bars["line"].map(place)).sort_values(["place", "core", "compute_start"], kind="stable")
    number = bars.groupby(["place", "core"], sort=True).ngroup().to_numpy()
    first = bars.iloc[np.unique(number, return_index=True)[1]]
    names = [
        f"{line}{core}" if core >= 0 else str(line) for line, core in zip(first["line"], first["core"], strict=True)
    ]
    return bars.assign(row=number), names
