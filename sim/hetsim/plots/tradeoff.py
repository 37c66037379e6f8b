"""Two metrics at once, and the regret of each policy against the best."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hetsim.plots.comparison import MAX_POLICIES
from hetsim.plots.style import possible, short
from hetsim.plots.sweeps import is_wide, key_name, row_names
from hetsim.results.colors import BLUE, INK, MUTED, ORANGE, PALETTE
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import Better, front, more_is_better, regrets
from hetsim.results.panels import Axis, Line, Panel, Picture, Points, Texts

MAX_NAMED = 16  # points above which only those of the front have names


def pareto(found: Comparison | Sweep, x: str, y: str, *, better: Better | None = None) -> Picture:
    """Draw two metrics of every policy or row, and the front of undominated ones.

    Intervals are drawn if there are replications; the front is that of the means.

    Parameters: found: a comparison, or a sweep; x, y: metrics, or a numeric key of a sweep; better:
        {"gpu_utilization": "more"} for metrics for which neither direction is better by itself.
    Returns: the picture.
    """
    table, keys = front(found, x, y, better), getattr(found, "keys", [])
    (across, errors, x_axis), (up, errors_up, y_axis) = (_scale(name, table, keys, better) for name in (x, y))
    best, groups = table["front"].to_numpy(), table["policy"].astype(str).to_numpy()
    labels, several = table["label"].astype(str).tolist(), len(table) > len(set(groups))
    names = labels
    if isinstance(found, Sweep):
        names = row_names(found, found.table[np.isfinite(found.table[[x, y]].astype(float)).all(axis=1)])
    colors = {policy: PALETTE[number % len(PALETTE)] for number, policy in enumerate(dict.fromkeys(groups))}
    order = np.flatnonzero(best)[np.argsort(across[best], kind="stable")]
    # Between two points of the front nothing is known to be reachable but what either of them is.
    at = np.repeat(across[order], 2), np.repeat(up[order], 2)
    stairs = (at[0][:-1], at[1][1:]) if more_is_better(x, better, keys) else (at[0][1:], at[1][:-1])
    marks: list[Any] = [Line(*stairs, color=MUTED, dash=1, width=1, behind=True)]
    for number, (good, group) in enumerate(zip(best.tolist(), groups, strict=True)):
        color = colors[group] if several else ORANGE if good else BLUE
        label = short(group) if several and group not in groups[:number] else ""
        marks.append(Points(across[[number]], up[[number]], label, color, size=6 if good else 4,
                            alpha=1.0 if good else 0.6, across=errors[number], up=errors_up[number],
                            rows=[names[number]]))  # fmt: skip
    named = [number for number in range(len(table)) if best[number] or not (several or len(table) > MAX_NAMED)]
    named = sorted(named, key=lambda number: (not best[number], across[number]))[:MAX_NAMED]
    inks = [INK if best[number] else MUTED for number in named]
    marks.append(Texts(across[named], up[named], [short(labels[number], 32) for number in named], inks, free=True))
    return Picture([[Panel(marks, x_axis, y_axis, grid="both", legend="inside" if several else "")]], 7.5, 5)


def _scale(
    name: str, table: pd.DataFrame, keys: Sequence[str], better: Better | None
) -> tuple[np.ndarray, list[np.ndarray | None], Axis]:
    is_key, many = name in keys, "more" if more_is_better(name, better, keys) else "less"
    factor, unit = (1.0, "") if is_key else fitting(table[name].tolist(), units_of(name))
    values, half = (table[one].to_numpy(dtype=float) / factor for one in (name, f"{name}_half"))
    half = np.nan_to_num(half)
    lower, upper = (-np.inf, np.inf) if is_key else possible(name, values, factor)
    errors = np.maximum([np.minimum(half, values - lower), np.minimum(half, upper - values)], 0.0)
    ends = np.concatenate([values, values - errors[0], values + errors[1]])
    if log := is_wide(values, 20.0):
        ends = np.log(ends[ends >= 0.6 * values.min()])  # an interval down to 0 has no end
    room = 0.13 * float(np.ptp(ends)) or 0.05 * abs(float(ends.max())) or 1.0
    low, high = float(ends.min()) - room, float(ends.max()) + room
    if log:
        low, high = max(np.exp(low), 0.6 * values.min()), np.exp(high)
    else:  # with room for a marker where the bounds are
        room = 0.025 * (min(high, upper) - max(low, lower))
        low = max(low, lower - (room if (values - lower < room).any() else 0.0))
        high = min(high, upper + (room if (upper - values < room).any() else 0.0))
    label = f"{key_name(name, keys) if is_key else metric_name(name)}{f' ({unit})' if unit else ''}, {many} is better"
    axis = Axis(label, low, high, log=log, count=6 if log else 8, integer=is_key and bool((values % 1 == 0).all()))
    return values, [errors[:, [n]] if one > 0 else None for n, one in enumerate(half.tolist())], axis


def regret(found: Comparison | Sweep, metric: str = DEFAULT_METRIC) -> Picture:
    """Draw how far each policy is from the best one, in percent of the best.

    Each replication of a comparison or point of a sweep is a dot, and the mean is a line.

    Parameters: found: a comparison or a sweep; metric: that of the regret.
    Returns: the picture.
    """
    table = regrets(found, metric)
    table = table[[name for name in table if name in set(table.mean().nsmallest(MAX_POLICIES).index)]]
    policies, marks, top = [str(name) for name in table.columns], list[Any](), 0.0
    for row, name in enumerate(policies):
        column = table.loc[np.isfinite(table[name]), name]
        at = column.index.astype(str) + f" · {name}" if table.index.name == "point" else pd.Index([name])
        values = 100 * column.to_numpy(dtype=float)
        if not len(values):
            marks.append(Texts([0], [row], [" –"], MUTED, size=10))
            continue
        spread = 0.22 * np.sin(np.arange(len(values)) * 2.4)  # apart, and the same in every picture
        mean, greatest = float(values.mean()), float(values.max())
        marks += [
            Points(values, row + spread, size=3.5, alpha=0.45, rows=at.tolist()),
            Line([mean, mean], [row - 0.34, row + 0.34], color=ORANGE, width=2.2),
            Texts([greatest], [row], [f"mean {mean:.3g} %"], shift=(8, 0)),
        ]
        top = max(top, greatest)
    label = f"{metric_name(metric)}: above the best of each {table.index.name} (%)"
    x = Axis(label, -0.02 * top, 1.3 * top or 1, count=8)
    y = Axis("", len(policies) - 0.4, -0.6, [(row, short(name)) for row, name in enumerate(policies)])
    panel = Panel(marks, x, y, "regret; the line is the mean", grid="x")
    return Picture([[panel]], 8, 1.4 + 0.38 * len(policies))
