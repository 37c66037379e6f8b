"""Pictures of a sweep: a metric along one key, or over two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from hetsim.errors import UsageError
from hetsim.plots.style import INK, line_looks, name_axes, own_axes, plain, possible, short, tidy, title
from hetsim.results.declared import DEFAULT_METRIC, has_direction, higher_is_better
from hetsim.results.formatting import figures, fitting, metric_name, units_of
from hetsim.results.many_runs.point_differences import rows_where
from hetsim.results.many_runs.sweep import Sweep

WIDE = 50.0
"""Above this ratio of the largest to the least value an axis is logarithmic."""


def against(
    sweep: Sweep, x: str, metric: str = DEFAULT_METRIC, ax: Axes | None = None, *, by: str = "policy",
    where: Mapping[str, Any] | None = None,
) -> Axes:  # fmt: skip
    """Draw a metric against a key, a line for each policy, with 95 % intervals.

    Parameters: sweep: its result; x, metric: what is drawn; ax: axes to draw on, else those of a new figure; by:
        another key may tell the lines apart; where: fixes other columns of the sweep's table.
    Returns: the axes.
    """
    frame = _chosen(sweep, metric, where)
    _needs(sweep, frame, (x, by))
    ax = own_axes(ax)
    factor, unit = fitting(frame[metric].tolist(), units_of(metric))
    numbers, written = pd.api.types.is_numeric_dtype(frame[x]), list(dict.fromkeys(frame[x]))
    looks = line_looks(list(map(str, frame[by].drop_duplicates())))
    for label, mine in frame.groupby(by, sort=False, observed=True):
        mine = mine.sort_values(x) if numbers else mine
        value = mine[metric].to_numpy(dtype=float) / factor
        at = mine[x].to_numpy(dtype=float) if numbers else np.array([written.index(v) for v in mine[x]])
        look = looks[str(label)]
        ax.plot(at, value, marker="o", markersize=4, linewidth=1.6, **look)
        if f"{metric}_ci_low" in mine:
            ends = (mine[f"{metric}_ci_{end}"].to_numpy(dtype=float) / factor for end in ("low", "high"))
            low, high = (np.clip(end, *possible(metric, value, factor)) for end in ends)
            ax.fill_between(at, low, high, color=look["color"], alpha=0.18, linewidth=0)
    _value_axis(ax, frame[metric].to_numpy(dtype=float) / factor)
    if numbers:
        _key_axis(ax, sweep, x)
    else:
        names = [plain(short(str(value), 24)) for value in written]
        ax.set_xticks(range(len(names)), names, fontsize=9)
    tidy(ax, grid="both", x=key_name(x, sweep.keys), y=metric_name(metric) + (f" ({unit})" if unit else ""))
    title(ax, sweep.name)
    if frame[by].nunique() > 1:
        ax.legend(frameon=False, fontsize=9)
    return ax


def sweep_map(
    sweep: Sweep, x: str, y: str, metric: str = DEFAULT_METRIC, ax: Axes | None = None, *,
    where: Mapping[str, Any] | None = None,
) -> Axes:  # fmt: skip
    """Draw a metric over two keys as shades with values; the best is framed.

    Parameters: sweep: its result; x, y, metric: what is drawn; ax: axes to draw on, else those of a new figure; where:
        fixes other columns of the sweep's table; needed for one policy of several ({"policy": "sjf"}).
    Returns: the axes.
    """
    frame = _chosen(sweep, metric, where)
    _needs(sweep, frame, (x, y))
    grid = sweep.pivot(x, y, metric, where)
    factor, unit = fitting(grid.to_numpy().ravel().tolist(), units_of(metric))
    values = grid.to_numpy(dtype=float) / factor
    ax = own_axes(ax, 2.6 + 0.85 * grid.shape[1], 1.6 + 0.42 * grid.shape[0])
    sound = values[np.isfinite(values)]
    wide = len(sound) > 0 and sound.min() > 0 and sound.max() > WIDE * sound.min()
    shades = np.log(values) if wide else values
    image = ax.imshow(shades, cmap="cividis", aspect="auto", origin="lower")
    middle = np.nanmean([np.nanmin(shades), np.nanmax(shades)]) if len(sound) else 0.0
    for row, column in np.ndindex(values.shape):
        value = float(values[row, column])
        text = "–" if np.isnan(value) else figures(value)
        ax.text(column, row, text, ha="center", va="center", fontsize=8.5,
                color="#111111" if np.isfinite(value) and shades[row, column] > middle else "white" if
                np.isfinite(value) else INK)  # fmt: skip
    _frame_best(ax, metric, values)
    ax.set_xticks(range(grid.shape[1]), _labels(sweep, x, grid.columns), fontsize=8.5)
    ax.set_yticks(range(grid.shape[0]), _labels(sweep, y, grid.index), fontsize=8.5)
    ax.tick_params(length=0, colors=INK)
    ax.spines[:].set_visible(False)
    name_axes(ax, key_name(x, sweep.keys), key_name(y, sweep.keys))
    fixed = "".join(f" · {value}" for value in (where or {}).values())
    title(ax, f"{metric_name(metric)}" + (f" ({unit})" if unit else "") + fixed)
    image.set_rasterized(True)
    return ax


def _frame_best(ax: Axes, metric: str, values: np.ndarray) -> None:
    if not has_direction(metric) or not np.isfinite(values).any():
        return
    find = np.nanargmax if higher_is_better(metric) else np.nanargmin
    row, column = np.unravel_index(find(np.where(np.isfinite(values), values, np.nan)), values.shape)
    ax.add_patch(Rectangle((float(column) - 0.5, float(row) - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=2))


def _chosen(sweep: Sweep, metric: str, where: Mapping[str, Any] | None) -> pd.DataFrame:
    """The sound rows with these values."""
    sweep._known(metric)
    frame = sweep.table[sweep.table["status"] == "done"]
    if frame.empty:
        raise UsageError("no row of the sweep is left to draw: all have failed")
    return rows_where(sweep, frame, where)


def _needs(sweep: Sweep, frame: pd.DataFrame, columns: tuple[str, str]) -> None:
    for column in columns:
        sweep._column(column)
    if frame.duplicated(list(columns)).any():
        free = [name for name in [*sweep.keys, "policy"] if name not in columns and frame[name].nunique() > 1]
        more = f': fix {", ".join(free)} with where={{"{free[0]}": ...}}' if free else ""
        raise UsageError(f"several rows fall on one value of {columns[0]} and {columns[1]}{more}")


def _labels(sweep: Sweep, key: str, values: Any) -> list[str]:
    """The values as they were written."""
    if key not in sweep.keys:
        return [plain(short(str(value), 24)) for value in values]
    first = sweep.table.drop_duplicates("point")
    texts = sweep.points[key].astype(str).tolist()
    written = {value: texts[point] for point, value in zip(first["point"].tolist(), first[key].tolist(), strict=True)}
    return [plain(short(written.get(value, str(value)), 24)) for value in values]


def key_name(key: str, others: Iterable[str] = ()) -> str:
    """The last parts of a path, which are enough on an axis.

    `workload.jobs.arrivals.rate` -> `jobs arrivals rate`, `cluster.nodes.0.gpus.count` -> `gpus count`.

    Places in lists are told only where one of the `others` would have the same name.
    """
    name = _without_places(key)
    if any(other != key and _without_places(other) == name for other in others):
        return " ".join(_parts(key)[-4:])
    return name


def _parts(key: str) -> list[str]:
    return [part for part in key.split(".") if part not in ("workload", "cluster", "policy")]


def _without_places(key: str) -> str:
    names = [part for part in _parts(key) if not part.isdigit()]
    if names[:1] == ["nodes"] and len(names) > 2:  # of what nodes have the thing says enough
        names = names[1:]
    return " ".join(names[-3:]) or key


def _key_axis(ax: Axes, sweep: Sweep, key: str) -> None:
    """Ticks at the values of the key, as they were written, where these are few."""
    values = sorted(set(sweep.table[key].dropna().tolist()))
    if len(values) > 1 and min(values) > 0 and max(values) > WIDE * min(values):
        ax.set_xscale("log")
        ax.minorticks_off()
    if key in sweep.keys and len(values) <= 10:
        ax.set_xticks(values, _labels(sweep, key, values), fontsize=9)


def _value_axis(ax: Axes, values: np.ndarray) -> None:
    sound = values[np.isfinite(values)]
    if len(sound) and sound.min() > 0 and sound.max() > WIDE * sound.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.set_ylim(bottom=0)
