"""The style of all pictures: colors, plain axes, time in readable units."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from hetsim.errors import PictureWarning, visible_lines
from hetsim.results.formatting import PERCENT, SECONDS, Unit, fitting, seconds, units_of

# Okabe and Ito's palette: told apart with every common kind of color blindness.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
"""Line styles in addition to colors, so that lines differ in print too."""

MAX_LINES = 12
"""With more lines in one picture they cannot be told apart."""
LONGEST = 44
"""Longer names in a picture are cut."""

INK, MUTED, GRID = "#222222", "#666666", "#E4E4E4"
DPI = 150


EDITABLE: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "hetsim"}
"""TrueType in PDF, since journals refuse Type 3; text of an SVG stays text; the same picture is the same file."""
UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}


class Picture(Figure):
    """A figure that a notebook shows by itself, without pyplot."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure without a date; characters that its font lacks are one warning."""
        self._escape_names()
        if _widths.get() is not None:
            for ax in self.axes:
                ax.tick_params(labelsize=7)
            for text in self.findobj(Text):
                text.set_fontsize(min(text.get_fontsize(), 8))
        form = str(options.get("format") or Path(str(fname)).suffix[1:]).lower()
        with rc_context(EDITABLE), warnings.catch_warnings(record=True) as raised:
            warnings.filterwarnings("always", "Glyph ")
            super().savefig(fname, **{"metadata": UNDATED.get(form), **options})
        missing = {chr(int(match[1])) for one in raised if (match := re.match(r"Glyph (\d+)", str(one.message)))}
        if missing:
            some = " ".join(sorted(missing)[:8]) + (" …" if len(missing) > 8 else "")
            message = f"the font of pictures lacks {some}: name one that has them as font.family in a matplotlibrc"
            warnings.warn(message, PictureWarning, stacklevel=2)

    def _escape_names(self) -> None:
        """Write control characters of names as escapes: they make an SVG unreadable."""
        for axis in (axis for ax in self.axes for axis in (ax.xaxis, ax.yaxis)):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            escaped = [visible_lines(label) for label in labels]
            if escaped != labels:
                axis.set_ticks(axis.get_ticklocs(), escaped)
        for text in self.findobj(Text):
            text.set_text(visible_lines(text.get_text()))

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


PAPER: dict[Any, Any] = {"font.family": ["STIXGeneral", "DejaVu Sans"]}
"""Next to the Times of papers; what it lacks comes from the second."""
_widths: ContextVar[tuple[float, float] | None] = ContextVar("widths", default=None)


@contextmanager
def on_paper(column: float, page: float) -> Iterator[None]:
    """Draw figures as wide as a column, or as the page if they are wide; inches."""
    token = _widths.set((column, page))
    try:
        with rc_context(PAPER):
            yield
    finally:
        _widths.reset(token)


def figure(width: float = 9.0, height: float = 5.0) -> Figure:
    """Make a figure that is independent of pyplot; size in inches, but `on_paper`."""
    if (widths := _widths.get()) is not None:
        limit = widths[width > 9]
        width, height = limit, max(height * limit / width, min(height, 0.7 * limit))
    return Picture(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def save(picture: Axes | Figure, file: str | Path, **options: Any) -> None:
    """Write the figure of axes, or a figure, as PNG, PDF or SVG.

    Parameters: picture: what a function of `hetsim.plots` gave; file: its suffix says the format; options: those of
        matplotlib's `savefig`, such as dpi.
    """
    drawn = picture if isinstance(picture, Figure) else picture.get_figure(root=True)
    assert drawn is not None
    drawn.savefig(file, **options)


def own_axes(ax: Axes | None, width: float = 9.0, height: float = 4.5) -> Axes:
    """The axes given, or those of a new figure."""
    return figure(width, height).add_subplot() if ax is None else ax


def tidy(ax: Axes, grid: str = "y", *, x: str | None = None, y: str | None = None) -> None:
    """Axes without clutter: two spines, a light grid behind; `x`, `y`: their names."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    name_axes(ax, x, y)
    ax.tick_params(colors=INK, labelsize=9)
    ax.set_axisbelow(True)
    if grid:
        ax.grid(True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]


def name_axes(ax: Axes, x: str | None = None, y: str | None = None) -> None:
    """Write the names of these axes; None leaves a name as it is."""
    for text, write in ((x, ax.set_xlabel), (y, ax.set_ylabel)):
        if text is not None:
            write(text, fontsize=9, color=INK)


def title(ax: Axes, text: str, pad: float | None = None) -> None:
    """Write the title above the picture; `pad` (points) leaves room for a legend."""
    inches = ax.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    ax.set_title(plain(short(text, int(11.5 * inches))), loc="left", fontsize=11, color=INK, pad=pad)


def plain(text: str) -> str:
    """A name as literal text: dollar signs do not start a formula."""
    return text.replace("$", r"\$")


def short(text: str, most: int = LONGEST) -> str:
    """A name shortened so that the picture has room."""
    return text if len(text) <= most else text[: most - 1] + "…"


def look(number: int) -> dict[str, Any]:
    """Color and dashes of a line; the first 28 all differ."""
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number % len(DASHES)]}


def line_looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The looks of several lines; beyond MAX_LINES they are thin and grey."""
    looks = {}
    for number, label in enumerate(labels):
        if number < MAX_LINES or len(labels) == MAX_LINES + 1:
            looks[label] = {**look(number), "label": plain(short(label)), "zorder": 2}
        else:
            more = f"{len(labels) - MAX_LINES} more" if number == MAX_LINES else None
            looks[label] = {"color": "#BBBBBB", "linestyle": "-", "label": more, "zorder": 1}
    return looks


def time_axis(ax: Axes, low: float, high: float, label: str = "time", told: str = "") -> Unit:
    """Seconds on the x axis, in the unit that suits the range; `told`: a subtitle."""
    unit = fitting([high - low], SECONDS)
    factor, name = unit
    steps = [1, 1.5, 2, 3, 6, 10] if name in ("min", "h") else [1, 2, 2.5, 5, 10]
    locator = MaxNLocator(8, steps=steps)
    ax.set_xticks([tick * factor for tick in locator.tick_values(low / factor, high / factor)])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:g}"))
    ax.set_xlim(low, high)
    name_axes(ax, f"{label} ({name})" + (f" · {told}" if told else ""))
    return unit


ROUND_TIMES = {
    **{10.0**power * 1e-9: f"{10**power} ns" for power in range(3)},
    **{10.0**power * 1e-6: f"{10**power} µs" for power in range(3)},
    **{10.0**power * 1e-3: f"{10**power} ms" for power in range(3)},
    1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 18000.0: "5 h",
    86400.0: "1 d", 864000.0: "10 d", 8640000.0: "100 d", 86400000.0: "1000 d",
}  # fmt: skip
"""Times that people know, a factor of five to ten apart."""


def log_time_axis(ax: Axes, label: str) -> None:
    """A logarithmic time axis with ticks at round times."""
    ax.set_xscale("log")
    round_ticks(ax.xaxis)
    name_axes(ax, label)


def round_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at round times, with their names."""
    axis.set_major_locator(FixedLocator(list(ROUND_TIMES)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: ROUND_TIMES.get(value, "")))


def one_time_axis(panels: Iterable[Axes]) -> None:
    """Show the time axis only at the lowest of these panels."""
    for ax in panels:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)


def possible(metric: str, values: np.ndarray, factor: float = 1.0) -> tuple[float, float]:
    """The bounds of a metric in units of `factor`: 0 below, shares at most 1.

    Its values have the last word, so that nothing is cut off.  Intervals are drawn no farther than this.
    """
    finite = values[np.isfinite(values)]
    share = units_of(metric) == PERCENT and not (finite * factor > 1 + 1e-9).any()
    return (-np.inf if (finite < 0).any() else 0.0), (1 / factor if share else np.inf)


def legend_above(picture: Figure, panel: Axes) -> None:
    """One legend above all panels, of the lines in one; none for a single line."""
    handles, labels = panel.get_legend_handles_labels()
    if len(labels) > 1:
        across = max(1, min(len(labels), 95 // (6 + max(map(len, labels)))))
        picture.legend(handles, labels, frameon=False, fontsize=9, loc="outside upper left", ncols=across)


def describe(outcome: Any) -> str:
    """`scenario · policy`, the title of a run."""
    return " · ".join(part for part in (outcome.name, outcome.policy) if part)


# Step functions over time: every change where there is room, else means.
#
# A line that changes more often than every few pixels paints its panel all over: nothing can be read from it, and it
# hides the lines below.  Such a line is drawn as its means over equal intervals, exact and weighted by time, and the
# label of its axis says so.


PIXELS_A_CHANGE = 3
"""A line with less room than this for each of its changes is drawn as means."""
PIXELS_A_STROKE = 12
"""The same for each stroke over the whole height of the panel, which is three pixels wide itself."""
PIXELS_A_MEAN = 8
"""How wide each of these means is."""


def intervals(ax: Axes, end: float, *series: np.ndarray) -> np.ndarray | None:
    """Edges of averaging intervals for these series; None if every change fits."""
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
    """Means of a step function between the edges, before `end`; NaN where none.

    The steps are 0 before the first.
    """
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
    """Draw a step function up to `end`, or its means between the edges.

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
    """The part of an axis label that says that means are drawn."""
    return f"mean over {seconds(float(edges[1] - edges[0]))}"


def steps_label(name: str, edges: np.ndarray | None, *, shaded: bool = False) -> str:
    """The axis label of `draw_steps`: the quantity, and the averaging time."""
    if edges is None:
        return name
    return f"{name}\n({means_told(edges)}" + (";\nshaded: maximum)" if shaded else ")")
