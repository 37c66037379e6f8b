"""The picture of a gallery entry: the authors' figures and ours as bars."""

from typing import Any

import numpy as np
import pandas as pd

from hetsim.gallery.schema import FiguresTable
from hetsim.plots.style import short, stacked
from hetsim.results.colors import INK
from hetsim.results.panels import Axis, Boxes, Panel, Picture, Points

PAPER, OURS = "#9aa4b1", "#1f6fb4"
BOTH = {"paper": PAPER, "hetsim": OURS}
MAX_GROUPS = 40


def bars(comparison: pd.DataFrame, table: FiguresTable) -> Picture | None:
    """Draw the values of a gallery table as bars: the paper's next to those of hetsim.

    Where only ranks are compared, only hetsim's are drawn.  None if nothing was run, or with `picture: none`.
    """
    rows = comparison[(comparison["table"] == table.name) & comparison["hetsim"].notna()]
    if not len(rows) or table.picture == "none":
        return None
    axes = [axis for axis in table.axes if axis in rows and rows[axis].notna().all() and rows[axis].nunique() > 1]
    values = [name for name in table.values if (rows["value"] == name).any()]
    across = table.across if table.across in axes else axes[-1] if axes else None  # along it bars stand side by side
    panels_axes = [axis for axis in axes if axis != across]
    keys = list(dict.fromkeys(rows[panels_axes].itertuples(index=False, name=None))) if panels_axes else [()]
    groups = [(value, key) for value in values for key in keys]
    places = {label: x for x, label in enumerate(dict.fromkeys(rows[across]))} if across is not None else {}
    series = {"hetsim": OURS} if table.tolerance.shape else BOTH
    panels = []
    for value, key in groups:
        mine = rows[rows["value"] == value]
        for axis, wanted in zip(panels_axes, key, strict=True):
            mine = mine[mine[axis] == wanted]
        x = np.zeros(1) if across is None else mine[across].map(places).to_numpy(float)
        marks, reach = list[Any](), list[Any]()
        for number, (name, color) in enumerate(series.items()):
            spread = mine["deviation" if name == "hetsim" else "paper_deviation"].fillna(0.0).to_numpy(float)
            at, tops = x + 0.4 * (number - (len(series) - 1) / 2), mine[name].to_numpy(float)
            reach += [tops - spread, tops + spread]
            marks.append(Boxes(at - 0.19, at + 0.19, np.minimum(tops, -np.inf), tops, label=name, color=color))
            marks += [Points(at, tops, color=INK, marker="", up=[spread, spread])] * bool(spread.any())
        low, high, shown = float(np.nanmin(reach)), float(np.nanmax(reach)), table.values[value]
        y = Axis(f"{shown.label or value}{f' ({shown.unit})' if shown.unit else ''}", min(low, 0.0), count=5)
        if low > 0 and high / low > 30:
            y.low, y.log = low / 2, True
        elif low > 0.6 * high:  # bars that are alike could not be told apart on an axis from 0
            y.low, y.high = low - 0.6 * (high - low) - 0.02 * high, high + 0.02 * high
        labels = [(n, short(str(label))) for n, label in enumerate(places or [value])]
        subtitle = ", ".join(f"{axis} {name}" for axis, name in zip(panels_axes, key, strict=True))
        panels.append(Panel(marks, Axis("", -0.6, len(labels) - 0.4, labels), y, subtitle, small=True))
    return stacked(panels, 9.0, min(2.0 + 1.9 * len(groups), 22.0), legend=True)
