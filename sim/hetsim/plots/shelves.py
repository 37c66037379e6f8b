"""The shelves of a dual-approximation schedule relative to the guess λ."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from hetsim.errors import UsageError
from hetsim.plots import style
from hetsim.plots.gantt import bar_boxes, label_lanes
from hetsim.results.formatting import seconds
from hetsim.results.one_run.gantt_rows import device_bars
from hetsim.results.one_run.result import Result

CLASSES = (
    ("long: more than 2λ/3", 2 / 3, style.BLUE), ("medium: more than λ/3", 1 / 3, style.ORANGE),
    ("small", 0.0, style.SKY),
)  # fmt: skip
LINES = (("λ/3", 1 / 3), ("2λ/3", 2 / 3), ("λ", 1.0), ("4λ/3", 4 / 3))
ROUNDING = 1e-9
"""A task with a time of a third of the guess, but for rounding, is small."""


def shelves(result: Result, ax: Axes | None = None, *, guess: float | None = None) -> Axes:
    """Draw the schedule of `dual_approximation` as its proof sees it.

    A task is long, medium or small by its time on the device where it ran: the proof gives a device one long task or
    two medium ones at most, and fills up with small ones to 4λ/3.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure; guess: λ in seconds, without it the one
        that the algorithm accepted last (`result.notes["guess"]`).
    Returns: the axes.
    Raises: UsageError: the policy tells no guess, or it is not above 0.
    """
    guess = _guess(result) if guess is None else guess
    if not (guess > 0 and math.isfinite(guess)):
        raise UsageError(f"shelves need a guess above 0 s, not {guess:g}")
    bars, lanes = _lanes(result)
    ax = style.own_axes(ax, 10, min(14.0, 1.9 + 0.3 * max(len(lanes), 3)))
    begin, end, row = (bars[name].to_numpy(dtype=float) for name in ("compute_start", "compute_end", "row"))
    remaining, legend = np.ones(len(bars), dtype=bool), []
    for name, above, color in CLASSES:
        chosen = remaining & (end - begin > above * guess * (1 + ROUNDING))
        remaining &= ~chosen
        if chosen.any():
            boxes = bar_boxes(begin[chosen], end[chosen], row[chosen], 0.4)
            ax.add_collection(PolyCollection(boxes, facecolors=color, edgecolors="white", linewidths=0.5, zorder=2))
            legend.append(Patch(facecolor=color, label=name))
    last = max(float(end.max(initial=0.0)), 4 / 3 * guess)
    label_lanes(ax, [(float(number), name) for number, name in enumerate(lanes)], list(range(len(lanes) + 1)))
    style.time_axis(ax, 0.0, 1.02 * last)
    style.tidy(ax, grid="")
    for text, part in LINES:
        ax.axvline(
            part * guess, color=style.VERMILION if part == 1 else style.MUTED, linewidth=1.2, linestyle=(0, (4, 2)),
            zorder=3
        )
        ax.annotate(text, (part * guess, 1.0), xycoords=ax.get_xaxis_transform(), xytext=(0, 2), ha="center",
                    textcoords="offset points", fontsize=9, color=style.INK)  # fmt: skip
    ax.tick_params(axis="y", length=0)
    style.title(ax, f"{style.short(style.describe(result), 44)} · λ = {seconds(guess)}", pad=18)
    if legend:
        ax.legend(handles=legend, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(legend), frameon=False,
                  fontsize=9, borderaxespad=1.8, handlelength=1.2, columnspacing=1.2)  # fmt: skip
    return ax


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
