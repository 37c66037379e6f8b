"""Pictures on paper: the only file of this package that imports matplotlib.

matplotlib is used through its objects only: no window opens, and no global state changes.
"""

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.text import Text
from matplotlib.transforms import offset_copy

from hetsim.errors import PictureWarning, visible_lines
from hetsim.plots.style import short
from hetsim.results.colors import GRID, INK, MUTED
from hetsim.results.panels import Axis, Band, Boxes, Line, Panel, Picture, Points, Shades, Texts, settled

# line styles in addition to colors, so that lines also differ in print
DASHES: Any = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
DPI = 150
# TrueType in PDF, since journals reject Type 3; text of an SVG stays text; same picture, same file
EDITABLE: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "hetsim"}
UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}


class Drawing(Figure):
    """A figure that a notebook displays by itself, without pyplot."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure without a date; one warning for all characters without a glyph."""
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
            message = f"the font of pictures lacks {some}: set a font that has them as font.family in a matplotlibrc"
            warnings.warn(message, PictureWarning, stacklevel=2)

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


MAX_HEIGHT = 8.4  # maximum height in inches of a figure on paper, with room for its caption
# fonts that match the Times of papers; the second has characters that the first lacks
PAPER = "STIXGeneral", "DejaVu Sans"
_widths: ContextVar[tuple[float, float] | None] = ContextVar("widths", default=None)


@contextmanager
def on_paper(column: float, page: float) -> Iterator[None]:
    """Draw figures as wide as a column or, if large, as the page (both in inches)."""
    token = _widths.set((column, page))
    try:
        # A name that matplotlib does not know would be a warning for each text.
        with rc_context({"font.family": [name for name in PAPER if name in get_font_names()]}):
            yield
    finally:
        _widths.reset(token)


def figure(width: float = 9.0, height: float = 5.0) -> Figure:
    """Return a figure independent of pyplot, of a size in inches; see `on_paper`."""
    if (widths := _widths.get()) is not None:
        limit = widths[width > 9]
        width, height = limit, min(max(height * limit / width, min(height, 0.7 * limit)), MAX_HEIGHT)
    return Drawing(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def plain(text: str) -> str:
    """Return a name with $ escaped, and without control characters (invalid in SVG)."""
    return visible_lines(text).replace("$", r"\$")


def drawing(picture: Picture) -> Figure:
    sheet = figure(picture.width, picture.height)
    columns = math.lcm(*map(len, picture.rows))
    grid = sheet.add_gridspec(len(picture.rows), columns, height_ratios=picture.heights, width_ratios=picture.widths)
    handles = list[dict[str, Any]]()
    for number, row in enumerate(picture.rows):
        wide = columns // len(row)
        for at, panel in enumerate(row):
            if panel is not None:
                handles.append(draw_panel(panel, sheet.add_subplot(grid[number, at * wide : (at + 1) * wide])))
    if picture.legend and len(labels := list(handles[0])) > 1:
        across = max(1, min(len(labels), 95 // (6 + max(map(len, labels)))))
        sheet.legend(list(handles[0].values()), labels, frameon=False, fontsize=9, loc="outside upper left",
                     ncols=across)  # fmt: skip
    if picture.note:
        sheet.text(1.0, 0.0, picture.note, ha="right", va="bottom", fontsize=8, color=MUTED)
        sheet.set_layout_engine("constrained", rect=(0, 0.05, 1, 0.95))
    return sheet


def draw_panel(panel: Panel, ax: Axes) -> dict[str, Any]:
    """Draw a panel on axes; return the legend's handles by label."""
    panel = settled(panel, ax.get_window_extent().width)
    sides: tuple[tuple[Any, Axis], ...] = ("x", panel.x), ("y", panel.y)
    for side, axis in sides:
        getattr(ax, f"set_{side}scale")("log" if axis.log else "linear")
        getattr(ax, f"set_{side}lim")(axis.low, axis.high)
        ticks = axis.ticks or []
        getattr(ax, f"set_{side}ticks")([at for at, _ in ticks], [plain(text) for _, text in ticks])
        getattr(ax, f"set_{side}label")("" if axis.bare else plain(axis.label), fontsize=9, color=INK)
        getattr(ax, f"{side}axis").minorticks_off()
        size = (6.5 if len(ticks) > 48 else 8 if len(ticks) > 20 else 9) if side == "y" else 9
        names = {f"label{'bottom' if side == 'x' else 'left'}": False} if axis.bare else {}
        ax.tick_params(side, colors=INK, labelsize=size, **names)
        if side == "x" and not axis.log and sum(len(text) for _, text in ticks) > 12 * _inches(ax):
            ax.tick_params("x", labelrotation=25)
        if panel.grid not in (side, "both") and axis.low > axis.high:  # rows: their names need no ticks
            ax.tick_params(side, length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.set_axisbelow(True)
    if panel.grid:
        ax.grid(True, axis=panel.grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    handles = dict[str, Any]()
    for number, mark in enumerate(panel.marks):
        order = (1.0 if getattr(mark, "behind", False) else 2.0) + number / 1000
        handle = _MARKS[type(mark)](ax, mark, order)  # type: ignore[operator]
        if getattr(mark, "label", "") and not isinstance(mark, Shades):
            handles.setdefault(plain(mark.label), handle)
    _legend_and_title(ax, panel, handles)
    for mark in panel.marks:
        if isinstance(mark, Texts) and mark.free:
            _place_texts(ax, panel, mark)
    return handles


def _inches(ax: Axes) -> float:
    return float(ax.get_window_extent().width / ax.figure.dpi)


def _legend_and_title(ax: Axes, panel: Panel, handles: dict[str, Any]) -> None:
    inches = _inches(ax) / 0.775  # of its part of the sheet
    names, room, pad = [6 + len(label) for label in handles] or [1], panel.room, panel.room or None
    width = int(12.2 * inches)
    across = len(names) if sum(names) <= width else max(1, width // max(names))
    corner: dict[str, Any] = {"bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1 + room / 9, "ncols": len(handles)}
    places: dict[str, dict[str, Any]] = {
        "inside": {"loc": "best"}, "right": {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)},
        "above": {"loc": "lower left", **corner, "bbox_to_anchor": (0.0, 1.0), "ncols": across},
        "above right": {"loc": "lower right", **corner, "handlelength": 1.2, "columnspacing": 1.2},
    }  # fmt: skip
    if panel.legend == "above":
        pad = room + 6 + 18 * math.ceil(len(handles) / across)
    elif panel.legend == "above right" and len(panel.title) + sum(names) + 2 * len(names) > 11 * inches:
        pad = room + 24
    if panel.legend and handles:
        size = 8 if panel.small else 9
        ax.legend(list(handles.values()), list(handles), frameon=False, fontsize=size,
                  **places.get(panel.legend, {"loc": panel.legend}))  # fmt: skip
    if panel.title:
        size = 9 if panel.small else 11
        ax.set_title(plain(short(panel.title, int(126 / size * inches))), loc="left", fontsize=size, color=INK, pad=pad)


# Marks ------------------------------------------------------------------------------------------------------------


def _line(ax: Axes, mark: Line, order: float) -> Any:
    style = "steps-post" if mark.steps else "default"
    return ax.plot(
        mark.x, mark.y, color=mark.color, linestyle=DASHES[mark.dash % len(DASHES)], linewidth=mark.width,
        alpha=mark.alpha, drawstyle=style, marker=mark.marker or None, markersize=4, zorder=order,
        dash_capstyle="butt", solid_capstyle="butt", label=plain(mark.label) or "_",
    )[0]  # fmt: skip


def _band(ax: Axes, mark: Band, order: float) -> Any:
    return ax.fill_between(mark.x, mark.low, mark.high, step="post" if mark.steps else None, color=mark.color,
                           alpha=mark.alpha, linewidth=0, zorder=order, label=plain(mark.label) or "_")  # fmt: skip


def _points(ax: Axes, mark: Points, order: float) -> Any:
    face = "none" if mark.hollow else mark.color
    return ax.errorbar(
        mark.x, mark.y, xerr=mark.across, yerr=mark.up, fmt=mark.marker or "none", color=mark.color, alpha=mark.alpha,
        markersize=mark.size, markerfacecolor=face, markeredgewidth=2 if mark.hollow else None, capsize=2, elinewidth=1,
        zorder=order, label=plain(mark.label) or "_",
    )  # fmt: skip


def _boxes(ax: Axes, mark: Boxes, order: float) -> Any:
    x0, x1, y0, y1 = np.broadcast_arrays(mark.x0, mark.x1, mark.y0, mark.y1)
    corners = np.stack([np.stack([x0, x0, x1, x1], -1), np.stack([y0, y1, y1, y0], -1)], -1)
    edge = mark.color if mark.hollow else "white" if mark.edge else "none"
    boxes = PolyCollection(list(corners), facecolors="none" if mark.hollow else mark.color, edgecolors=edge,
                           linewidths=mark.edge, alpha=mark.alpha, zorder=order,
                           label=plain(mark.label) or "_")  # fmt: skip
    boxes.set_snap(False)  # else of bars thinner than a pixel some are seen and others not
    ax.add_collection(boxes, autolim=False)
    return boxes


def _texts(ax: Axes, mark: Texts, order: float) -> None:
    place = {"": ax.transData, "x": ax.get_yaxis_transform(), "y": ax.get_xaxis_transform(), "xy": ax.transAxes}
    moved: Any = offset_copy(place[mark.inside], ax.get_figure(root=True), *mark.shift, units="points")
    parts = mark.x, mark.y, mark.texts, mark.color, mark.size, mark.room
    each = () if mark.free else np.broadcast_arrays(*parts)
    width = 72 * _inches(ax) / abs(np.diff(ax.get_xlim())[0])
    for x, y, text, color, size, room in zip(*map(np.ravel, each), strict=True):
        fits = min(size, room * width / (0.62 * len(text) + 0.15))
        if fits >= min(size, SMALLEST):
            # Names in the middle of bars end where the panel does.
            ax.text(x, y, plain(text), transform=moved, ha=mark.align, va=mark.rise, fontsize=fits, color=color,
                    zorder=order + 1, clip_on=mark.align == "center" and not mark.inside)  # fmt: skip


def _shades(ax: Axes, mark: Shades, order: float) -> None:
    # cividis reads alike with all kinds of color vision, and in print.
    low, high = mark.scale
    mesh = ax.pcolormesh(mark.x, mark.y, mark.values, cmap="cividis", vmin=low, vmax=high, linewidth=0,
                         rasterized=True, zorder=order)  # fmt: skip
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if mark.label:
        bar = ax.get_figure(root=True).colorbar(mesh, ax=ax, fraction=0.03, pad=0.015)  # type: ignore[union-attr]
        bar.outline.set_visible(False)
        bar.set_label(mark.label, fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8, length=0)


_MARKS = {Line: _line, Band: _band, Points: _points, Boxes: _boxes, Texts: _texts, Shades: _shades}
SMALLEST = 4.5  # points of the smallest text in a bar
MARKER = 4.0  # half the size of a marker in points; names are about 9 points high, 5 per letter


def _place_texts(ax: Axes, panel: Panel, mark: Texts) -> None:
    sheet = ax.get_figure(root=True)
    assert sheet is not None
    sheet.draw_without_rendering()  # only then is it known where on the page a point lies

    def placed(x: Any, y: Any) -> np.ndarray:
        return np.asarray(ax.transData.transform(np.column_stack([x, y])) * 72 / sheet.dpi)

    taken = list[Any]()  # boxes, and what it costs to lie on them
    for one in (one for one in panel.marks if isinstance(one, Points)):
        x, y = np.atleast_1d(one.x), np.atleast_1d(one.y)
        taken += [(x - MARKER, y - MARKER, x + MARKER, y + MARKER, 99) for x, y in placed(x, y).tolist()]
        for half, along in ((one.across, 1), (one.up, 0)):
            if half is not None:
                begin, end = (placed(x + along * by, y + (1 - along) * by) for by in (-half[0], half[1]))
                taken += [(*a, *b, 1) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    x0, y0, x1, y1 = (np.asarray(ax.bbox.extents) * 72 / sheet.dpi).tolist()
    points = zip(mark.x, mark.y, strict=True), placed(mark.x, mark.y).tolist()
    for at, (x, y), text, color in zip(*points, mark.texts, mark.color, strict=True):
        boxes, wide = list[Any](), 5.0 * len(text)
        for up, aside in product((5, -12, 16, -23, 27, -34), (6, -6 - wide)):
            begin, low, end, high = x + aside, y + up - 2, x + aside + wide, y + up + 7
            costs = [cost for a, b, c, d, cost in taken if begin <= c and a <= end and low <= d and b <= high]
            if x0 <= begin and y0 <= low and end <= x1 and high <= y1 and sum(costs) < 99:
                boxes.append((bool(costs), len(boxes), (begin, low, end, high)))
        if boxes:  # else of points that lie on one another some go without a name
            box = min(boxes)[2]
            taken.append((*box, 99))
            align, edge = ("left", box[0]) if box[0] > x else ("right", box[2])
            ax.annotate(plain(text), at, xytext=(edge - x, box[1] + 2 - y), ha=align, fontsize=8, color=color,
                        textcoords="offset points")  # fmt: skip
