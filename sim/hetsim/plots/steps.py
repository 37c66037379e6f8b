"""Step functions over time: every change where there is room, else means.

A line that changes more often than every few pixels paints its panel all over: nothing can be read from it, and it
hides the lines below.  Such a line is drawn as its means over equal intervals, exact and weighted by time, and the
label of its axis says so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hetsim.results.formatting import seconds

PIXELS_A_CHANGE = 3
"""A line with less room than this for each of its changes is drawn as means."""
PIXELS_A_STROKE = 12
"""The same for each stroke over the whole height of the panel, which is three pixels wide itself."""
PIXELS_A_MEAN = 8
"""How wide each of these means is."""


def intervals(ax: Axes, end: float, *series: np.ndarray) -> np.ndarray | None:
    """Edges of the intervals for means of these series; None if every change fits."""
    pixels = ax.get_window_extent().width
    roomy = all(_roomy(values, pixels) for values in series)
    if roomy or not math.isfinite(end) or end <= 0:
        return None
    return np.linspace(0.0, end, max(2, int(pixels / PIXELS_A_MEAN)) + 1)


def _roomy(values: np.ndarray, pixels: float) -> bool:
    """Return True if a panel from 0 to the greatest value has few enough changes."""
    changes = np.abs(np.diff(values))
    strokes = changes.sum() / max(float(np.max(values, initial=0.0)), 1e-300)
    return bool(np.count_nonzero(changes) * PIXELS_A_CHANGE <= pixels and strokes * PIXELS_A_STROKE <= pixels)


def averaged(time: np.ndarray, value: np.ndarray, edges: np.ndarray, end: float) -> np.ndarray:
    """Means of steps between the edges, before `end`; NaN where there is none.

    The steps are 0 before the first.
    """
    area = np.concatenate([[0.0], np.cumsum(value * np.diff(time, append=end))])
    inside = np.minimum(edges, end)
    span = np.diff(inside)
    area_between = np.diff(np.interp(inside, np.append(time, end), area))
    return np.divide(area_between, span, out=np.full(len(span), np.nan), where=span > 0)


def highest(time: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The greatest value of steps between the edges; 0 before the first step."""
    before = np.searchsorted(time, edges, side="right") - 1
    greatest = np.where(before[:-1] >= 0, value[np.maximum(before[:-1], 0)], 0.0)
    last = np.searchsorted(time, edges[-1], side="left")
    inside = np.searchsorted(edges, time[:last], side="right") - 1
    seen = inside >= 0
    np.maximum.at(greatest, inside[seen], value[:last][seen])
    return greatest


def draw_steps(
    ax: Axes,
    time: np.ndarray,
    value: np.ndarray,
    end: float,
    edges: np.ndarray | None = None,
    *,
    fill: bool = False,
    **look: Any,
) -> None:
    """Draw a line of steps up to `end`, or of their means between the edges.

    fill: shade what is below the line; below means, up to the greatest value of each interval, so that no peak is lost.
    """
    top = value
    if edges is not None:
        value, top = averaged(time, value, edges, end), highest(time, value, edges)
        time = edges[:-1]
    time, value, top = np.append(time, end), np.append(value, value[-1:]), np.append(top, top[-1:])
    ax.plot(time, value, drawstyle="steps-post", **{"linewidth": 1.4, **look})
    if fill:
        ax.fill_between(time, top, step="post", color=look["color"], alpha=0.15, linewidth=0)


def means_told(edges: np.ndarray) -> str:
    """How the label of an axis says that means are drawn."""
    return f"mean over {seconds(float(edges[1] - edges[0]))}"


def steps_label(name: str, edges: np.ndarray | None, *, shaded: bool = False) -> str:
    """The label of the axis of `draw_steps`: the quantity, and the averaging time."""
    if edges is None:
        return name
    return f"{name}\n({means_told(edges)}" + (";\nshaded: maximum)" if shaded else ")")
