"""Two metrics at once, and what each policy gives away against the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hetsim.plots.style import BLUE, INK, MUTED, ORANGE, PALETTE, own_axes, plain, possible, short, tidy, title
from hetsim.plots.sweeps import key_name
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import Better, front, more_is_better, regrets

MAX_NAMED = 16
"""Of more points only those of the front have their names next to them."""
WIDE = 20.0
"""Above this ratio of the largest to the least value an axis is logarithmic."""


def pareto(found: Comparison | Sweep, x: str, y: str, ax: Axes | None = None, *, better: Better | None = None) -> Axes:
    """Draw two metrics of every policy or row, and the front of undominated ones.

    Intervals are drawn where there are replications; the front goes by the means.

    Parameters: found: a comparison, or a sweep, of which x or y may be a key with numbers; x, y: metrics; better:
        {"gpu_utilization": "more"} for metrics of which neither way is better by itself; ax: axes to draw on, else
        those of a new figure.
    Returns: the axes.
    """
    ax = own_axes(ax, 7.5, 5)
    table = front(found, x, y, better)
    keys = getattr(found, "keys", [])
    across, up = _scale_of("x", x, table, keys=keys, better=better), _scale_of("y", y, table, keys=keys, better=better)
    best = table["front"].to_numpy()
    groups = table["policy"].astype(str).to_numpy()
    several = len(table) > len(set(groups))
    colors = {policy: PALETTE[number % len(PALETTE)] for number, policy in enumerate(dict.fromkeys(groups))}
    of_points = [colors[group] if several else ORANGE if good else BLUE
                 for group, good in zip(groups, best, strict=True)]  # fmt: skip
    spans = _draw_points(ax, across, up, best=best, colors=of_points)
    order = np.flatnonzero(best)[np.argsort(across.values[best], kind="stable")]
    # Between two points of the front nothing is known to be reachable but what either of them is.
    where: Any = "pre" if across.more else "post"
    ax.step(across.values[order], up.values[order], where=where, color=MUTED, linewidth=1, linestyle="--", zorder=0)
    across.dress(ax)
    up.dress(ax)
    ax.margins(0.12, 0.13)
    for scale in (across, up):
        _keep_possible(ax, scale.side, scale.limits, scale.values)
    tidy(ax, grid="both")
    named = [number for number in range(len(table)) if best[number] or not (several or len(table) > MAX_NAMED)]
    marks = list(zip(across.values.tolist(), up.values.tolist(), strict=True))
    _name_points(ax, [(*marks[n], str(table["label"].iloc[n]), bool(best[n])) for n in named], marks, spans)
    if several:
        for policy, color in colors.items():
            ax.plot([], [], "o", color=color, label=plain(short(policy)))
        ax.legend(frameon=False, fontsize=9)
    return ax


@dataclass(frozen=True)
class _Scale:
    """A metric, or a key of a sweep, along one axis, in the unit that is shown."""

    side: Literal["x", "y"]
    label: str
    values: np.ndarray
    half: np.ndarray
    limits: tuple[float, float]
    """Between which its values lie."""
    more: bool
    """True if more of it is better."""
    is_key: bool

    def dress(self, ax: Axes) -> None:
        """Label the axis; logarithmic for distant values, integer for integer keys."""
        getattr(ax, f"set_{self.side}label")(self.label, fontsize=9, color=INK)
        axis = getattr(ax, f"{self.side}axis")
        if self.values.min() > 0 and self.values.max() > WIDE * self.values.min():
            getattr(ax, f"set_{self.side}scale")("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        elif self.is_key and (self.values == np.round(self.values)).all():
            axis.set_major_locator(MaxNLocator(8, integer=True))


def _scale_of(
    side: Literal["x", "y"], name: str, table: pd.DataFrame, keys: Sequence[str], better: Better | None
) -> _Scale:
    is_key, more = name in keys, more_is_better(name, better, keys)
    factor, unit = (1.0, "") if is_key else fitting(table[name].tolist(), units_of(name))
    values = table[name].to_numpy(dtype=float) / factor
    called = key_name(name, keys) if is_key else metric_name(name)
    return _Scale(
        side,
        f"{called}{f' ({unit})' if unit else ''}, {'more' if more else 'less'} is better",
        values,
        half=table[f"{name}_half"].to_numpy(dtype=float) / factor,
        limits=(-np.inf, np.inf) if is_key else possible(name, values, factor),
        more=more,
        is_key=is_key,
    )


def _draw_points(ax: Axes, across: _Scale, up: _Scale, best: np.ndarray, colors: Sequence[str]) -> list[Span]:
    """A marker for each point with the bars of its intervals; where these bars run."""
    spans: list[Span] = []
    for number, (good, color) in enumerate(zip(best, colors, strict=True)):
        bars: dict[str, Any] = {}
        x, y = across.values[number], up.values[number]
        for scale, value in ((across, x), (up, y)):
            half, (low, high) = scale.half[number], scale.limits
            if half > 0:  # drawn no farther than its metric can be
                below, above = (max(0.0, min(half, end)) for end in (value - low, high - value))
                bars[f"{scale.side}err"] = [[below], [above]]
                ends = ((x - below, y), (x + above, y)) if scale is across else ((x, y - below), (x, y + above))
                spans.append(ends)
        ax.errorbar(x, y, fmt="o", markersize=6 if good else 4, color=color, alpha=1.0 if good else 0.6, capsize=2,
                    linewidth=1, **bars)  # fmt: skip
    return spans


def _keep_possible(ax: Axes, axis: str, limits: tuple[float, float], values: np.ndarray) -> None:
    """End an axis where its metric ends, with room for a marker there."""
    low, high = getattr(ax, f"get_{axis}lim")()
    if getattr(ax, f"get_{axis}scale")() == "log":
        low = max(low, 0.6 * values.min())  # an interval down to 0 has no end
    else:
        room = 0.025 * (min(high, limits[1]) - max(low, limits[0]))
        low = max(low, limits[0] - (room if (values - limits[0] < room).any() else 0.0))
        high = min(high, limits[1] + (room if (limits[1] - values < room).any() else 0.0))
    getattr(ax, f"set_{axis}lim")(low, high)


MARKER = 4.0
"""Half of what a marker takes, in points; names are about 9 high, and 5 a letter wide."""

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""
Span = tuple[tuple[float, float], tuple[float, float]]


def _name_points(
    ax: Axes, points: list[tuple[float, float, str, bool]], marks: list[tuple[float, float]], spans: list[Span]
) -> None:
    """Put a name next to each point, clear of names, markers and, if possible, bars."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # only then is it known where on the page a point lies

    def placed(at: tuple[float, float]) -> tuple[float, float]:
        """In points, as offsets are."""
        x, y = ax.transData.transform(at) * 72 / figure.dpi
        return float(x), float(y)

    taken = [(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in map(placed, marks)]
    bars = [(*placed(begin), *placed(end)) for begin, end in spans]
    left_edge, bottom, right, top = (np.asarray(ax.bbox.extents) * 72 / figure.dpi).tolist()
    for across, up, text, best in sorted(points, key=lambda point: (not point[3], point[0]))[:MAX_NAMED]:
        text = short(text, 32)
        free = [
            (box, shift, side) for box, shift, side in _beside(*placed((across, up)), 5.0 * len(text))
            if left_edge <= box[0] and bottom <= box[1] and box[2] <= right and box[3] <= top
            and not any(_overlap(box, other) for other in taken)
        ]  # fmt: skip
        clear = [one for one in free if not any(_overlap(one[0], bar) for bar in bars)]
        if not free:
            continue  # no room: of points that lie on one another some go without a name
        box, shift, side = (clear or free)[0]
        taken.append(box)
        ax.annotate(plain(text), (across, up), xytext=(6 if side == "left" else -6, shift), ha=side, fontsize=8,
                    textcoords="offset points", color=INK if best else MUTED)  # fmt: skip


def _beside(x: float, y: float, wide: float) -> Iterator[tuple[Box, int, Literal["left", "right"]]]:
    """Places for a name, the nearest first: its box, how far up, which end."""
    for shift in (5, -12, 16, -23, 27, -34):
        yield (x + 6, y + shift - 2, x + 6 + wide, y + shift + 7), shift, "left"
        yield (x - 6 - wide, y + shift - 2, x - 6, y + shift + 7), shift, "right"


def _overlap(one: Box, other: Box) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def regret(found: Comparison | Sweep, metric: str = DEFAULT_METRIC, ax: Axes | None = None) -> Axes:
    """Draw how far each policy is from the best one, in percent of the best.

    A dot for every replication of a comparison or every point of a sweep, and the mean as a line.

    Parameters: found: a comparison or a sweep; metric: by which; ax: axes to draw on, else those of a new figure.
    Returns: the axes.
    """
    table = regrets(found, metric)
    policies = [str(name) for name in table.columns]
    ax = own_axes(ax, 8, 1.4 + 0.38 * len(policies))
    top = 0.0
    for row, name in enumerate(policies):
        values = 100 * table[name].dropna().to_numpy(dtype=float)
        values = values[np.isfinite(values)]
        if not len(values):
            ax.text(0, row, " –", va="center", color=MUTED)
            continue
        spread = 0.22 * np.sin(np.arange(len(values)) * 2.4)  # apart, and the same in every picture
        ax.plot(values, row + spread, "o", color=BLUE, markersize=3.5, alpha=0.45)
        mean = float(values.mean())
        ax.plot([mean, mean], [row - 0.34, row + 0.34], color=ORANGE, linewidth=2.2)
        ax.annotate(f"mean {mean:.3g} %", (float(values.max()), row), xytext=(8, 0), textcoords="offset points",
                    va="center", fontsize=8, color=INK)  # fmt: skip
        top = max(top, float(values.max()))
    ax.set_yticks(range(len(policies)), [plain(short(name)) for name in policies])
    ax.set_ylim(len(policies) - 0.4, -0.6)
    ax.set_xlim(-0.02 * top, 1.18 * top if top > 0 else 1)
    ax.tick_params(axis="y", length=0)
    tidy(ax, grid="x", x=f"{metric_name(metric)}: above the best of each {table.index.name} (%)")
    title(ax, "regret; the line is the mean")
    return ax
