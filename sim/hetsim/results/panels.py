"""Pictures as data: panels with marks along two axes.

This module draws nothing: `hetsim.plots.draw` draws a picture for print, the script of a report's page draws it on a
canvas.  Limits and ticks are computed here, so that both are equal.  `rows` of marks name the table row or task of each
point or box: the page shows it, and a click opens it.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetsim import registry
from hetsim.errors import PictureWarning
from hetsim.model.files import write_whole
from hetsim.results.colors import BLUE, INK
from hetsim.results.formatting import SECONDS, fitting, seconds

# Package of a higher layer; loaded by name only when a picture is drawn, since matplotlib is slow to load.
PLOTS = "hetsim.plots"


@dataclass
class Line:
    """A line through points.

    dash: number of the dash pattern; steps: each value is constant until the next x.
    """

    x: Any
    y: Any
    label: str = ""
    color: str = BLUE
    dash: int = 0
    width: float = 1.4
    steps: bool = False
    alpha: float = 1.0
    marker: str = ""
    behind: bool = False
    rows: Sequence[str] = ()


@dataclass
class Band:
    """The area between two lines; peak: if lines are averaged, `high` is a maximum."""

    x: Any
    low: Any
    high: Any
    label: str = ""
    color: str = BLUE
    alpha: float = 0.2
    steps: bool = False
    peak: bool = False


@dataclass
class Points:
    """Single points; hollow: draw them as rings.

    across, up: error bars (length below, length above) in x and in y.
    """

    x: Any
    y: Any
    label: str = ""
    color: str = BLUE
    marker: str = "o"
    size: float = 4.0
    alpha: float = 1.0
    across: Any = None
    up: Any = None
    hollow: bool = False
    rows: Sequence[str] = ()


@dataclass
class Boxes:
    """Boxes from x0 to x1 and y0 to y1; edge: line width; hollow: draw only the edges."""

    x0: Any
    x1: Any
    y0: Any
    y1: Any
    label: str = ""
    color: str = BLUE
    edge: float = 0.0
    alpha: float = 1.0
    hollow: bool = False
    rows: Sequence[str] = ()


def row_boxes(x0: Any, x1: Any, row: Any, half: float, **look: Any) -> Boxes:
    """Build horizontal bars that extend `half` above and below each row of a chart."""
    return Boxes(x0, x1, np.asarray(row) - half, np.asarray(row) + half, **look)


@dataclass
class Texts:
    """Texts at points, moved by `shift` points (1/72 inch).

    inside: axes ("x", "y", "xy") whose coordinates are shares of the panel; align: the horizontal anchor (left, center
    or right); rise: the vertical one (bottom, center or top); room: available width in x units; a wider text is
    omitted; free: move each text to where it covers no point, or omit it.
    """

    x: Any
    y: Any
    texts: Sequence[str]
    color: str | Sequence[str] = INK
    size: float | Sequence[float] = 8.0
    align: str = "left"
    rise: str = "center"
    shift: tuple[float, float] = (0.0, 0.0)
    inside: str = ""
    room: Any = math.inf
    free: bool = False


@dataclass
class Shades:
    """A grid of cells colored by value; x, y: edges of cells; label: of the color bar."""

    x: Any
    y: Any
    values: Any
    scale: tuple[float, float]
    label: str = ""


@dataclass
class Axis:
    """A side of a panel; low, high, ticks: None if derived from the marks.

    bare: omit the name and the tick texts, because a neighboring panel shows them.
    """

    label: str = ""
    low: Any = None
    high: Any = None
    ticks: Sequence[tuple[float, str]] | None = None
    log: bool = False
    count: int = 6
    integer: bool = False
    bare: bool = False


@dataclass
class Panel:
    """Marks along two axes; later marks are drawn in front.

    grid: x, y, both or ``; legend: inside, lower right, right, above, above right or ``; room: space above for texts,
    in points.  means: a step line with more changes than can be drawn is drawn as means over intervals.
    """

    marks: list[Any] = field(default_factory=list)
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""
    grid: str = "y"
    legend: str = ""
    means: bool = False
    room: float = 0.0
    small: bool = False


@dataclass(repr=False)
class Picture:
    """Panels in rows, on a sheet with a size in inches; None leaves a cell empty.

    Notebooks show it; `save` writes it as PNG, PDF or SVG, `figure` returns a matplotlib figure, and `draw` draws the
    panels on given matplotlib axes.
    """

    rows: list[list[Any]]
    width: float = 9.0
    height: float = 4.5
    heights: Sequence[float] | None = None
    widths: Sequence[float] | None = None
    legend: bool = False  # one above all panels, for the lines in the first
    note: str = ""

    def __repr__(self) -> str:
        return f"<Picture: {', '.join(filter(None, (panel.title or panel.y.label for panel in self.panels)))}>"

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row if panel is not None]

    def figure(self) -> Any:
        """Return a new matplotlib figure, independent of pyplot."""
        return registry.load_object(f"{PLOTS}.draw:drawing")(self)

    def draw(self, *axes: Any) -> None:
        """Draw each panel on one of these matplotlib axes."""
        for panel, ax in zip(self.panels, axes, strict=True):
            registry.load_object(f"{PLOTS}.draw:draw_panel")(panel, ax)

    def save(self, file: Any, **options: Any) -> None:
        """Write the picture in the format of the file's suffix; options: as for `savefig`."""
        self.figure().savefig(file, **options)

    def _repr_png_(self) -> bytes:
        return bytes(self.figure()._repr_png_())


# Limits and ticks -------------------------------------------------------------------------------------------------


def time_axis(low: float, high: float, label: str = "time", means: np.ndarray | None = None) -> Axis:
    """Time axis in a suitable unit; means: edges (s) of bins whose means are drawn."""
    factor, name = fitting([high - low], SECONDS)
    steps = (1, 1.5, 2, 3, 6, 10) if name in ("min", "h") else STEPS
    ticks = [(tick * factor, f"{tick:g}") for tick in round_values(low / factor, high / factor, 8, steps=steps)]
    more = "" if means is None else f" · {mean_over(means)}"
    return Axis(f"{label} ({name}){more}", low, high, ticks)


def mean_over(edges: np.ndarray) -> str:
    return f"mean over {seconds(float(edges[1] - edges[0]))}"


# Familiar durations, spaced by factors of five to ten.
ROUND_TIMES = [
    *((10.0**power * size, f"{10**power} {unit}") for size, unit in ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"))
      for power in range(3)),
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (18000.0, "5 h"),
    (86400.0, "1 d"), (864000.0, "10 d"), (8640000.0, "100 d"), (86400000.0, "1000 d"),
]  # fmt: skip


STEPS = (1, 2, 2.5, 5, 10)


def round_values(
    low: float, high: float, count: int, integer: bool = False, *, steps: Sequence[float] = STEPS
) -> list[float]:
    """Return about `count` round values between `low` and `high` (in either order)."""
    low, high = min(low, high), max(low, high)
    raw = (high - low) / count
    if not (raw > 0 and math.isfinite(raw)):
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * one for one in steps if size * one >= raw * (1 - 1e-9))
    step = max(1.0, math.ceil(step)) if integer else step
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(n * step, 12 - math.floor(math.log10(step))) + 0.0 for n in numbers]


def _magnitudes(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every, factors = max(1, math.ceil((last - first) / count)), (1, 2, 5) if last - first <= 2 else (1,)
    return [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]


def _extent(marks: Iterable[Any], side: str) -> np.ndarray:
    names, error = (("x", "x0", "x1"), "across") if side == "x" else (("y", "low", "high", "y0", "y1"), "up")
    values = [np.empty(0)]
    for mark in marks:
        if not isinstance(mark, Texts):
            values += [np.ravel(getattr(mark, name)).astype(float) for name in names if hasattr(mark, name)]
            if (half := getattr(mark, error, None)) is not None:
                values += [values[-1] - half[0], values[-1] + half[1]]
    return np.concatenate(values)


def _settled_axis(axis: Axis, marks: list[Any], side: str) -> Axis:
    low, high, ticks = axis.low, axis.high, axis.ticks
    if low is None or high is None:
        values, (to, back) = _extent(marks, side), (np.log, np.exp) if axis.log else (float, float)
        values = values[np.isfinite(values) & ((values > 0) | (not axis.log))]
        first, last = (to(values.min()), to(values.max())) if len(values) else (0.0, 1.0)
        first, last = first if low is None else to(low), last if high is None else to(high)
        room = 0.05 * (last - first) or 0.05 * abs(last) or 1.0
        low = float(back(first - room)) if low is None else low
        high = float(back(last + room)) if high is None else high
    if ticks is None:
        at = _magnitudes(low, high, axis.count) if axis.log else round_values(low, high, axis.count, axis.integer)
        ticks = [(value, f"{value:,.10g}") for value in at]
    return replace(axis, low=low, high=high, ticks=[tick for tick in ticks if not axis.log or low <= tick[0] <= high])


# Step functions over time: every change where there is room, else means.
#
# A line that changes more often than every few pixels paints its panel all over: nothing can be read from it, and it
# hides the lines below.  Such a line is drawn as its means over equal intervals, exact and weighted by time, and the
# label of its axis says so.

PIXELS_A_CHANGE = 3  # Pixels per change below which a step line is drawn as means.
PIXELS_A_STROKE = 12  # Pixels per full-height stroke below which a step line is drawn as means; a stroke has 3.
PIXELS_A_MEAN = 8  # Width in pixels of each mean.


def settled(panel: Panel, pixels: float) -> Panel:
    """Return a panel (`pixels` wide) with limits and ticks; dense lines become means."""
    marks, label = panel.marks, panel.y.label
    edges = _means_edges(panel, pixels) if panel.means else None
    if edges is not None:
        marks = [_mean_steps(mark, edges) if getattr(mark, "steps", False) else mark for mark in marks]
        peaks = any(getattr(mark, "peak", False) for mark in marks)
        label += f"\n({mean_over(edges)}" + (";\nshaded: maximum)" if peaks else ")")
    x, y = (_settled_axis(axis, marks, side) for axis, side in ((panel.x, "x"), (panel.y, "y")))
    return replace(panel, marks=[_within(mark, x, y) for mark in marks], x=x, y=replace(y, label=label))


def _within(mark: Any, x: Any, y: Any) -> Any:
    ends = {}
    for name in ("x", "y", "x0", "x1", "y0", "y1") if isinstance(mark, Line | Boxes) else ():
        if (values := getattr(mark, name, None)) is not None:
            low, high = sorted((x.low, x.high) if name[0] == "x" else (y.low, y.high))
            ends[name] = np.nan_to_num(np.atleast_1d(values).astype(float), nan=np.nan, posinf=high, neginf=low)
    return replace(mark, **ends) if ends else mark


def _values(mark: Line | Band) -> dict[str, np.ndarray]:
    names = [name for name in ("y", "low", "high") if np.ndim(getattr(mark, name, 0.0))]
    return {name: getattr(mark, name)[:-1] for name in names}


def _means_edges(panel: Panel, pixels: float) -> np.ndarray | None:
    """Return edges of intervals to average over; None if no step curve is too dense."""
    series = [values for mark in panel.marks if getattr(mark, "steps", False) for values in _values(mark).values()]
    low, high = panel.x.low or 0.0, panel.x.high or 0.0
    if all(_is_roomy(values, pixels) for values in series) or not (math.isfinite(high) and high > low):
        return None
    return np.linspace(low, high, max(2, int(pixels / PIXELS_A_MEAN)) + 1)


def _is_roomy(values: np.ndarray, pixels: float) -> bool:
    changes = np.abs(np.diff(values))
    strokes = changes.sum() / max(float(np.max(values, initial=0.0)), 1e-300)
    return bool(np.count_nonzero(changes) * PIXELS_A_CHANGE <= pixels and strokes * PIXELS_A_STROKE <= pixels)


def _mean_steps(mark: Any, edges: np.ndarray) -> Any:
    time, end, made = mark.x[:-1], float(mark.x[-1]), {}
    for name, values in _values(mark).items():
        is_peak = name == "high" and mark.peak
        means = highest(time, values, edges) if is_peak else averaged(time, values, edges, end)
        made[name] = np.append(means, means[-1:])
    return replace(mark, x=edges, **made)


def averaged(time: np.ndarray, value: np.ndarray, edges: np.ndarray, end: float) -> np.ndarray:
    """Means of a step function in the intervals between the edges; NaN after `end`."""
    area = np.concatenate([[0.0], np.cumsum(value * np.diff(time, append=end))])
    inside = np.minimum(edges, end)
    span = np.diff(inside)
    area_between = np.diff(np.interp(inside, np.append(time, end), area))
    return np.divide(area_between, span, out=np.full(len(span), np.nan), where=span > 0)


def highest(time: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Maximum of a step function between the edges; 0 before the first step."""
    before = np.searchsorted(time, edges, side="right") - 1
    greatest = np.where(before[:-1] >= 0, value[np.maximum(before[:-1], 0)], 0.0)
    last = np.searchsorted(time, edges[-1], side="left")
    inside = np.searchsorted(edges, time[:last], side="right") - 1
    seen = inside >= 0
    np.maximum.at(greatest, inside[seen], value[:last][seen])
    return greatest


def drawn(name: str, results: Any, **options: Any) -> Picture:
    """Draw a picture by its name in `hetsim.plots`."""
    return registry.load_object(f"{PLOTS}:{name}")(results, **options)


def attempt(name: str, draw: Callable[[], Any]) -> str | None:
    """Draw a picture; if that fails, warn by PictureWarning and return the message."""
    try:
        draw()
    except Exception as error:  # matplotlib, fonts, a full disk: tables without a picture are better than none
        said = " ".join(str(error).split()) or "no message"
        reason = isinstance(error, OSError) and error.strerror
        message = f"the picture {name} could not be drawn: {reason or f'{type(error).__name__}: {said}'}"
        warnings.warn(message, PictureWarning, stacklevel=2)
        return message
    return None


def write_picture(draw: Callable[[], Any], path: Path) -> bool:
    """Write a picture to a file; return False if it could not be drawn."""

    return attempt(str(path), lambda: write_whole(path, lambda file: draw().save(file))) is None
