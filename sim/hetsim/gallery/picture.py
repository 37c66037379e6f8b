"""The picture of a gallery entry: the authors' figures and ours as bars."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetsim.gallery.schema import FiguresTable
from hetsim.plots import style

PAPER, OURS = "#9aa4b1", "#1f6fb4"
BOTH = {"paper": PAPER, "hetsim": OURS}
MAX_GROUPS = 40


def bars(comparison: pd.DataFrame, table: FiguresTable) -> Figure | None:
    """Draw two bars per figure, one for places in an order; None if nothing was run."""
    rows = comparison[(comparison["table"] == table.name) & comparison["hetsim"].notna()]
    if not len(rows) or table.picture == "none":
        return None
    axes = [axis for axis in table.axes if axis in rows and rows[axis].notna().all() and rows[axis].nunique() > 1]
    values = [name for name in table.values if (rows["value"] == name).any()]
    across = table.across if table.across in axes else axes[-1] if axes else None  # along it bars stand side by side
    panels = [axis for axis in axes if axis != across]
    keys = list(dict.fromkeys(rows[panels].itertuples(index=False, name=None))) if panels else [()]
    groups = [(value, key) for value in values for key in keys]
    places = {label: x for x, label in enumerate(dict.fromkeys(rows[across]))} if across is not None else {}
    picture = style.figure(9.0, min(2.0 + 1.9 * len(groups), 22.0))
    grid = picture.subplots(len(groups), 1, squeeze=False, sharex=True)
    for place, (value, key) in zip(grid[:, 0], groups, strict=True):
        mine = rows[rows["value"] == value]
        for axis, wanted in zip(panels, key, strict=True):
            mine = mine[mine[axis] == wanted]
        x = np.zeros(1) if across is None else mine[across].map(places).to_numpy(float)
        low, high = _pairs_of_bars(place, mine, x, {"hetsim": OURS} if table.tolerance.shape else BOTH)
        shown = table.values[value]
        unit = f" ({shown.unit})" if shown.unit else ""
        place.set_ylabel(f"{shown.label or value}{unit}")
        if low > 0 and high / low > 30:
            place.set_yscale("log")
        elif low > 0.6 * high:  # bars that are alike could not be told apart on an axis from 0
            place.set_ylim(low - 0.6 * (high - low) - 0.02 * high, high + 0.02 * high)
        labels = [style.short(style.plain(str(label))) for label in places or [value]]
        place.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
        if key:
            subtitle = ", ".join(f"{axis} {name}" for axis, name in zip(panels, key, strict=True))
            place.set_title(subtitle, fontsize="medium", loc="left")
        style.tidy(place)
    style.legend_above(picture, grid[0, 0])
    return picture


def _pairs_of_bars(place: Axes, rows: pd.DataFrame, x: np.ndarray, series: Mapping[str, str]) -> tuple[float, float]:
    """Draw a bar of each series at each x; return the range with its deviations."""
    reach = []
    for number, (name, color) in enumerate(series.items()):
        spread = rows["deviation" if name == "hetsim" else "paper_deviation"].replace(0, np.nan)
        offset = 0.4 * (number - (len(series) - 1) / 2)
        place.bar(x + offset, rows[name], 0.38, color=color, label=name, yerr=spread)
        reach += [rows[name] - spread.fillna(0.0), rows[name] + spread.fillna(0.0)]
    return float(np.nanmin(reach)), float(np.nanmax(reach))
