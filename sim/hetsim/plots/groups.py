"""Each group of tasks under each policy: bars with intervals."""

import math
from collections.abc import Iterable
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.style import short
from hetsim.results.colors import INK, MUTED, PALETTE
from hetsim.results.declared import in_set
from hetsim.results.formatting import SECONDS, fitting, metric_name, units_of
from hetsim.results.one_run.groups import title
from hetsim.results.panels import ROUND_TIMES, Axis, Boxes, Panel, Picture, Points, Texts

MARKS = "osD^vP"
WIDE = 30.0
"""From this ratio of the greatest to the least value on the axis is logarithmic."""


def groups(table: pd.DataFrame, metrics: Iterable[str] | None = None) -> Picture:
    """Draw the table of `Comparison.by`: a panel a metric, a bar a group and policy.

    Where values lie far apart the axis is logarithmic, with dots in place of bars.

    Parameters: table: of groups; metrics: without them the means of wait, response and bounded slowdown.
    Returns: the picture.
    Raises: UsageError: the table has no groups.
    """
    if "policy" not in table.index.names or table.empty:
        raise UsageError("there are no groups to draw: this takes the table of Comparison.by, with two groups or more")
    usual = [name for name in in_set("group_rows") if name.endswith("_mean") and name in table]
    chosen = usual if metrics is None else list(metrics)
    names = list(dict.fromkeys(table.index.get_level_values(0)))
    panels = [_panel(pd.DataFrame(table[metric]), names, metric) for metric in chosen]
    for panel in panels[:-1]:
        panel.x.bare = True
    panels[-1].x.label = title(str(table.index.names[0]), names)
    some = any(table[metric, "half_width"].notna().any() for metric in chosen)
    note = "means over replications, with intervals" if some else ""
    return Picture([[panel] for panel in panels], 9.5, 0.9 + len(chosen) * 1.9, legend=True, note=note)


def _panel(part: pd.DataFrame, names: list[str], metric: str) -> Panel:
    policies = list(dict.fromkeys(part.index.get_level_values("policy")))
    width, means, units = 0.8 / len(policies), part["mean"].to_numpy(dtype=float), units_of(metric)
    positive = means[np.isfinite(means) & (means > 0)]
    log = len(positive) > 0 and positive.max() > WIDE * positive.min()
    factor, unit = (1.0, "") if log and units == SECONDS else fitting(positive.tolist(), units)
    lowest, marks = positive.min() / factor / 3 if log else 0.0, list[Any]()
    for number, policy in enumerate(policies):
        where = np.arange(len(names)) + (number - (len(policies) - 1) / 2) * width
        of_policy = part.xs(policy, level="policy").reindex(names)
        mean = of_policy["mean"].to_numpy(dtype=float)
        value, half = mean / factor, np.nan_to_num(of_policy["half_width"].to_numpy(dtype=float) / factor)
        there, color = np.isfinite(value) & ((value > 0) | (not log)), PALETTE[number % len(PALETTE)]
        x, y = where[there], value[there]
        up = [np.minimum(half[there], y - lowest).clip(min=0.0), half[there]] if half.any() else None
        if log:  # a bar would begin anywhere
            marks.append(Points(x, y, short(policy), color, marker=MARKS[number % len(MARKS)], size=6, up=up))
        else:
            marks.append(Boxes(x - 0.46 * width, x + 0.46 * width, 0 * y, y, label=short(policy), color=color))
            marks += [Points(x, y, color=INK, marker="", up=up)] * (up is not None)
        texts = ["∞" if one == math.inf else "0" if one == 0 else "–" for one in mean[~there]]
        marks.append(Texts(where[~there], np.full(len(texts), 0.02), texts, MUTED, align="center", rise="bottom",
                           inside="y"))  # fmt: skip
    y_label = "\n".join(wrap(metric_name(metric) + (f" ({unit})" if unit else ""), 18))
    ticks = [(at, short(str(name), 16)) for at, name in enumerate(names)]
    y_axis = Axis(y_label, lowest, None, ROUND_TIMES if log and units == SECONDS else None, log=log, count=4)
    return Panel(marks, Axis("", -0.55, len(names) - 0.45, ticks), y_axis)
