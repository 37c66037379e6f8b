"""The picture of an entry: the authors' figures and ours as bars side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hetsim.plots import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hetsim.gallery.schema import FiguresTable

PAPER, OURS = "#9aa4b1", "#1f6fb4"
BOTH = {"paper": PAPER, "hetsim": OURS}
MAX_GROUPS = 40


def bars(comparison: pd.DataFrame, table: FiguresTable) -> Figure | None:
    """Two bars a figure of one table, or one for places; None if nothing was run."""
    rows = comparison[(comparison["table"] == table.name) & comparison["hetsim"].notna()]
    if not len(rows) or table.picture == "none":
        return None
    axes = [axis for axis in table.axes if axis in rows.columns and _varies(rows[axis])]
    values = [name for name in table.values if (rows["value"] == name).any()]
    across = _across(table, axes)
    panels = [axis for axis in axes if axis != across]
    groups = [(value, key) for value in values for key in _keys(rows, panels)]
    places = {label: x for x, label in enumerate(dict.fromkeys(rows[across]))} if across is not None else {}
    height = min(2.0 + 1.9 * len(groups), 22.0)
    picture = style.figure(9.0, height)
    grid = picture.subplots(len(groups), 1, squeeze=False, sharex=True)
    for place, (value, key) in zip(grid[:, 0], groups, strict=True):
        mine = rows[rows["value"] == value]
        for axis, wanted in zip(panels, key, strict=True):
            mine = mine[mine[axis] == wanted]
        x = np.zeros(1) if across is None else mine[across].map(places).to_numpy(float)
        reach = _pairs_of_bars(place, mine, x, {"hetsim": OURS} if table.tolerance.shape else BOTH)
        shown = table.values[value]
        unit = f" ({shown.unit})" if shown.unit else ""
        place.set_ylabel(f"{shown.label or value}{unit}")
        _fit(place, *reach)
        labels = [style.short(style.plain(str(label))) for label in places or [value]]
        place.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
        if key:
            subtitle = ", ".join(f"{axis} {name}" for axis, name in zip(panels, key, strict=True))
            place.set_title(subtitle, fontsize="medium", loc="left")
        style.tidy(place)
    handles, names = grid[0, 0].get_legend_handles_labels()
    style.legend_above(picture, handles, names)
    return picture


def _across(table: FiguresTable, axes: list[str]) -> str | None:
    """The axis along which bars stand side by side: named, or last; None if none."""
    if table.across in axes:
        return table.across
    return axes[-1] if axes else None


def _varies(axis: pd.Series) -> bool:
    """Return True if an axis has a value in every row, and several different ones."""
    return bool(axis.notna().all()) and axis.nunique() > 1


def _pairs_of_bars(
    place: Axes, rows: pd.DataFrame, x: np.ndarray, series: Mapping[str, str]
) -> tuple[float, float]:
    """A bar of each series at each x; the range of bars and deviations."""
    reach = []
    for number, (name, color) in enumerate(series.items()):
        spread = rows["deviation" if name == "hetsim" else "paper_deviation"].replace(0, np.nan)
        offset = 0.4 * (number - (len(series) - 1) / 2)
        place.bar(x + offset, rows[name], 0.38, color=color, label=name, yerr=spread)
        reach += [rows[name] - spread.fillna(0.0), rows[name] + spread.fillna(0.0)]
    return float(np.nanmin(reach)), float(np.nanmax(reach))


def _fit(place: Axes, low: float, high: float) -> None:
    """An axis that shows the bars: logarithmic if distant, cut off if alike."""
    if low > 0 and high / low > 30:
        place.set_yscale("log")
    elif low > 0.6 * high:
        place.set_ylim(low - 0.6 * (high - low) - 0.02 * high, high + 0.02 * high)


def _keys(rows: pd.DataFrame, panels: list[str]) -> list[tuple[str, ...]]:
    """Values of the axes that have a panel each, in the order of the rows."""
    if not panels:
        return [()]
    return list(dict.fromkeys(rows[panels].itertuples(index=False, name=None)))
