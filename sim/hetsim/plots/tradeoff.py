"""Two metrics at once, and what each policy gives away against the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hetsim.plots.style import possible, short
from hetsim.plots.sweeps import is_wide, key_name
from hetsim.results.colors import BLUE, INK, MUTED, ORANGE, PALETTE
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import Better, front, more_is_better, regrets
from hetsim.results.panels import Axis, Line, Panel, Picture, Points, Texts

MAX_NAMED = 16
"""Of more points only those of the front have their names next to them."""
WIDE = 20.0
"""Above this ratio of the largest to the least value an axis is logarithmic."""


def pareto(found: Comparison | Sweep, x: str, y: str, *, better: Better | None = None) -> Picture:
    """Draw two metrics of every policy or row, and the front of undominated ones.

    Intervals are drawn where there are replications; the front goes by the means.

    Parameters: found: a comparison, or a sweep, of which x or y may be a key with numbers; x, y: metrics; better:
        {"gpu_utilization": "more"} for metrics of which neither way is better by itself.
    Returns: the picture.
    """
    table, keys = front(found, x, y, better), getattr(found, "keys", [])
    across, up = _scale_of(x, table, keys, better), _scale_of(y, table, keys, better)
    best, groups = table["front"].to_numpy(), table["policy"].astype(str).to_numpy()
    several = len(table) > len(set(groups))
    colors = {policy: PALETTE[number % len(PALETTE)] for number, policy in enumerate(dict.fromkeys(groups))}
    order = np.flatnonzero(best)[np.argsort(across.values[best], kind="stable")]
    # Between two points of the front nothing is known to be reachable but what either of them is.
    at = np.repeat(across.values[order], 2), np.repeat(up.values[order], 2)
    stairs = (at[0][:-1], at[1][1:]) if across.more else (at[0][1:], at[1][:-1])
    marks: list[Any] = [Line(*stairs, color=MUTED, dash=1, width=1, behind=True)]
    for number, (good, group) in enumerate(zip(best.tolist(), groups, strict=True)):
        color = colors[group] if several else ORANGE if good else BLUE
        label = short(group) if several and group not in groups[:number] else ""
        marks.append(Points(across.values[[number]], up.values[[number]], label, color, size=6 if good else 4,
                            alpha=1.0 if good else 0.6, across=across.error(number), up=up.error(number),
                            rows=[str(table["label"].iloc[number])]))  # fmt: skip
    named = [number for number in range(len(table)) if best[number] or not (several or len(table) > MAX_NAMED)]
    named = sorted(named, key=lambda number: (not best[number], across.values[number]))[:MAX_NAMED]
    names = [short(str(table["label"].iloc[number]), 32) for number in named]
    inks = [INK if best[number] else MUTED for number in named]
    marks.append(Texts(across.values[named], up.values[named], names, inks, free=True))
    panel = Panel(marks, across.axis(), up.axis(), grid="both", legend="inside" if several else "")
    return Picture([[panel]], 7.5, 5)


@dataclass(frozen=True)
class _Scale:
    """A metric, or a key of a sweep, along one axis, in the unit that is shown."""

    label: str
    values: np.ndarray
    half: np.ndarray
    limits: tuple[float, float]
    """Between which its values lie."""
    more: bool
    """True if more of it is better."""
    is_key: bool

    def error(self, number: int) -> np.ndarray | None:
        """The interval of a value below and above, no farther than its metric can be."""
        half, value = self.half[number], self.values[number]
        ends = [min(half, end) for end in (value - self.limits[0], self.limits[1] - value)]
        return np.maximum(ends, 0.0)[:, None] if half > 0 else None

    def axis(self) -> Axis:
        """Logarithmic for distant values; it ends where its metric does."""
        values, half, (lower, upper) = self.values, np.nan_to_num(self.half), self.limits
        ends = np.concatenate([values, np.maximum(values - half, lower), np.minimum(values + half, upper)])
        if log := is_wide(values, WIDE):
            ends = np.log(ends[ends >= 0.6 * values.min()])  # an interval down to 0 has no end
        low, high = float(ends.min()), float(ends.max())
        room = 0.13 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - room, high + room
        if log:
            return Axis(self.label, max(np.exp(low), 0.6 * values.min()), np.exp(high), log=True)
        # With room for a marker there.
        room = 0.025 * (min(high, upper) - max(low, lower))
        low = max(low, lower - (room if (values - lower < room).any() else 0.0))
        high = min(high, upper + (room if (upper - values < room).any() else 0.0))
        return Axis(self.label, low, high, count=8, integer=self.is_key and bool((values == np.round(values)).all()))


def _scale_of(name: str, table: pd.DataFrame, keys: Sequence[str], better: Better | None) -> _Scale:
    is_key, more = name in keys, more_is_better(name, better, keys)
    factor, unit = (1.0, "") if is_key else fitting(table[name].tolist(), units_of(name))
    values = table[name].to_numpy(dtype=float) / factor
    called = key_name(name, keys) if is_key else metric_name(name)
    label = f"{called}{f' ({unit})' if unit else ''}, {'more' if more else 'less'} is better"
    limits = (-np.inf, np.inf) if is_key else possible(name, values, factor)
    half = table[f"{name}_half"].to_numpy(dtype=float) / factor
    return _Scale(label, values, half, limits, more=more, is_key=is_key)


def regret(found: Comparison | Sweep, metric: str = DEFAULT_METRIC) -> Picture:
    """Draw how far each policy is from the best one, in percent of the best.

    A dot for every replication of a comparison or every point of a sweep, and the mean as a line.

    Parameters: found: a comparison or a sweep; metric: by which.
    Returns: the picture.
    """
    table = regrets(found, metric)
    policies, marks, top = [str(name) for name in table.columns], list[Any](), 0.0
    for row, name in enumerate(policies):
        values = 100 * table[name].dropna().to_numpy(dtype=float)
        values = values[np.isfinite(values)]
        if not len(values):
            marks.append(Texts([0], [row], [" –"], MUTED, size=10))
            continue
        spread = 0.22 * np.sin(np.arange(len(values)) * 2.4)  # apart, and the same in every picture
        mean, greatest = float(values.mean()), float(values.max())
        marks += [
            Points(values, row + spread, size=3.5, alpha=0.45, rows=[name] * len(values)),
            Line([mean, mean], [row - 0.34, row + 0.34], color=ORANGE, width=2.2),
            Texts([greatest], [row], [f"mean {mean:.3g} %"], shift=(8, 0)),
        ]
        top = max(top, greatest)
    label = f"{metric_name(metric)}: above the best of each {table.index.name} (%)"
    x = Axis(label, -0.02 * top, 1.18 * top or 1, count=8)
    y = Axis("", len(policies) - 0.4, -0.6, [(row, short(name)) for row, name in enumerate(policies)])
    panel = Panel(marks, x, y, "regret; the line is the mean", grid="x")
    return Picture([[panel]], 8, 1.4 + 0.38 * len(policies))
