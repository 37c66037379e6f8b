"""Each group of tasks under each policy: bars with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from hetsim.errors import UsageError
from hetsim.plots.style import INK, MUTED, PALETTE, figure, legend_above, name_axes, plain, round_ticks, short, tidy
from hetsim.results.declared import in_set
from hetsim.results.formatting import SECONDS, fitting, metric_name, units_of
from hetsim.results.one_run.groups import title

MARKS = "osD^vP"

WIDE = 30.0
"""From this ratio of the greatest to the least value on the axis is logarithmic."""


def groups(table: pd.DataFrame, metrics: Iterable[str] | None = None) -> Figure:
    """Draw the table of `Comparison.by`: a panel a metric, a bar a group and policy.

    Where values lie far apart the axis is logarithmic, with dots in place of bars.

    Parameters: table: of groups; metrics: without them the means of wait, response and bounded slowdown.
    Returns: the figure.
    Raises: UsageError: the table has no groups.
    """
    if "policy" not in table.index.names or table.empty:
        raise UsageError("there are no groups to draw: this takes the table of Comparison.by, with two groups or more")
    usual = [name for name in in_set("group_rows") if name.endswith("_mean") and name in table]
    chosen = usual if metrics is None else list(metrics)
    names = list(dict.fromkeys(table.index.get_level_values(0)))
    policies = list(dict.fromkeys(table.index.get_level_values("policy")))
    picture = figure(9.5, 0.9 + len(chosen) * 1.9)
    panels = picture.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    for ax, metric in zip(panels, chosen, strict=True):
        _bars(ax, pd.DataFrame(table[metric]), names, policies=policies, metric=metric)
    panels[-1].set_xticks(range(len(names)), [plain(short(str(name), 16)) for name in names])
    if sum(min(len(str(name)), 16) for name in names) > 75:
        panels[-1].tick_params(axis="x", labelrotation=30)
    name_axes(panels[-1], title(str(table.index.names[0]), names))
    legend_above(picture, panels[0])
    if any(table[metric, "half_width"].notna().any() for metric in chosen):
        subtitle = "means over replications, with intervals"
        panels[-1].annotate(subtitle, (1.0, -0.22), xycoords="axes fraction", ha="right", va="top", fontsize=8,
                            color=MUTED, annotation_clip=False)  # fmt: skip
    return picture


def _bars(ax: Axes, part: pd.DataFrame, names: list[str], policies: list[str], metric: str) -> None:
    width = 0.8 / len(policies)
    means = part["mean"].to_numpy(dtype=float)
    positive = means[np.isfinite(means) & (means > 0)]
    log = len(positive) > 0 and positive.max() > WIDE * positive.min()
    units = units_of(metric)
    factor, unit = (1.0, "") if log and units == SECONDS else fitting(positive.tolist(), units)
    lowest = positive.min() / factor / 3 if log else 0.0
    for number, policy in enumerate(policies):
        where = np.arange(len(names)) + (number - (len(policies) - 1) / 2) * width
        of_policy = part.xs(policy, level="policy").reindex(names)
        value = of_policy["mean"].to_numpy(dtype=float) / factor
        half = np.nan_to_num(of_policy["half_width"].to_numpy(dtype=float) / factor)
        there, color = np.isfinite(value), PALETTE[number % len(PALETTE)]
        if log:
            there &= value > 0
        shown = np.where(there, value, 0.0)
        low = np.minimum(half, shown - lowest if log else shown).clip(min=0.0)
        error = np.array([low, half]) if half.any() else None
        if log:  # a bar would begin anywhere
            seen = None if error is None else error[:, there]
            ax.errorbar(where[there], shown[there], seen, fmt=MARKS[number % len(MARKS)], color=color,
                        markersize=6, elinewidth=1.5, capsize=3, label=plain(short(policy)))  # fmt: skip
        else:
            ax.bar(where, shown, width * 0.92, yerr=error, label=plain(short(policy)), color=color,
                   error_kw={"elinewidth": 1, "capsize": 2, "ecolor": INK})  # fmt: skip
        for x, mean in zip(where[~there], of_policy["mean"].to_numpy(dtype=float)[~there], strict=True):
            text = "∞" if mean == math.inf else "0" if mean == 0 else "–"
            ax.text(x, 0.02, text, transform=ax.get_xaxis_transform(), ha="center", va="bottom", fontsize=8,
                    color=MUTED)  # fmt: skip
    tidy(ax, y="\n".join(wrap(metric_name(metric) + (f" ({unit})" if unit else ""), 18)))
    if log:
        _log_axis(ax, lowest, units == SECONDS)
    else:
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(4))


def _log_axis(ax: Axes, least: float, seconds: bool) -> None:
    ax.set_yscale("log")
    ax.set_ylim(bottom=least)
    if seconds:
        round_ticks(ax.yaxis)
    else:
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
