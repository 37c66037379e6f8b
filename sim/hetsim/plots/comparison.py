"""A comparison of policies: means and intervals, distributions, groups of tasks."""

import math
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.cdf import labeled, shares
from hetsim.plots.style import short, stacked
from hetsim.results.colors import BLUE, INK, MUTED, ORANGE, PALETTE
from hetsim.results.declared import higher_is_better, in_set
from hetsim.results.formatting import SECONDS, figures, finite, fitting, metric_name, units_of
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.one_run.groups import title
from hetsim.results.one_run.result import Result
from hetsim.results.panels import ROUND_TIMES, Axis, Boxes, Line, Panel, Picture, Points, Texts, round_values

COLUMNS, MARKS = 3, "osD^vP"
MAX_POLICIES = 30  # with more policies, only the best are drawn
FAR = 30.0  # ratio of maximum to minimum from which on the axis of groups is logarithmic


def comparison(found: Comparison) -> Picture:
    """Draw a panel per metric: each policy's mean and interval, the best marked.

    Parameters: found: the result of `compare`.
    Returns: the picture.
    """
    count, first = len(found.metrics), found.metrics[0]
    columns = 2 if count == 4 else min(COLUMNS, count)
    ranks = found.table[first, "mean"].rank(ascending=not higher_is_better(first), method="first", na_option="bottom")
    table = found.table[ranks <= MAX_POLICIES]
    panels: list[Any] = [_metric(found, table, name, is_first=n % columns == 0) for n, name in enumerate(found.metrics)]
    panels += [None] * (-count % columns)
    note = f"means, with {found.confidence * 100:g} % intervals" if (found.pairs["n"] > 1).any() else "one run of each"
    note += "; orange: significantly better than all others" if any(found.winners.values()) else ""
    if len(table) < len(ranks):
        note += f"; the best {MAX_POLICIES} of {len(ranks)} policies in {metric_name(first)}"
    grid = [panels[at : at + columns] for at in range(0, count, columns)]
    return Picture(grid, 1.6 + 2.8 * columns, 0.5 + len(grid) * (0.8 + 0.32 * len(table)), note=note)


def _metric(found: Comparison, table: pd.DataFrame, metric: str, is_first: bool) -> Panel:
    policies, part = [str(name) for name in table.index], table[metric]
    factor, unit = fitting(part["mean"].tolist(), units_of(metric))
    marks, top = list[Any](), 0.0
    for row, (mean, half) in enumerate(zip(part["mean"], part["half_width"], strict=True)):
        value, error = mean / factor, finite(half) / factor
        if not math.isfinite(value):
            marks.append(Texts([0.02], [row], ["∞" if mean == math.inf else "–"], MUTED, size=10, inside="x"))
            continue
        color = ORANGE if found.winners[metric] == policies[row] else BLUE
        marks += [
            Line([0, value], [row, row], color=color, width=1, alpha=0.35),
            Points([value], [row], color=color, size=5.5, rows=[policies[row]],
                   across=[[min(error, max(value, 0.0))], [error]] if error else None),
            Texts([value + error], [row], [figures(value)], shift=(7, 0)),
        ]  # fmt: skip
        top = max(top, value + error)
    last_tick = 100 if unit == "%" and top <= 100 else 1.3 * top
    ticks = [(at, f"{at:g}") for at in round_values(0, last_tick, 6)] if top > 0 else None
    names = [(row, short(name)) for row, name in enumerate(policies)]
    # Room for the figures next to the dots.
    return Panel(marks, Axis("", 0, 1.3 * top if top > 0 else 1, ticks),
                 Axis("", len(policies) - 0.5, -0.6, names, bare=not is_first),
                 metric_name(metric) + (f" ({unit})" if unit else ""), grid="x", small=True)  # fmt: skip


def distributions(
    results: Result | Iterable[Result] | Mapping[str, Result], columns: Iterable[str] | None = None
) -> Picture:
    """Draw a panel per column of the task table, with one line per run.

    Parameters: results: runs, with labels if in a mapping; columns: by default response, wait (if any task waits)
        and the bounded slowdown.
    Returns: the picture.
    """
    runs = labeled(results)
    if columns is None:
        every = list(runs.values())
        bounded = next(name for name in every[0].tasks.columns if name.startswith("bounded_slowdown"))
        waits = any(np.nan_to_num(run.measured.column("wait")).any() for run in every)
        columns = ["response", *["wait"] * waits, bounded]
    panels = [shares(runs, column) for column in columns]
    for number, panel in enumerate(panels):
        panel.legend, panel.y.bare, panel.title = "", number > 0, "" if number else panel.title
    return Picture([panels], 1.2 + 3.6 * len(panels), 3.9, legend=True)


def groups(table: pd.DataFrame, metrics: Iterable[str] | None = None) -> Picture:
    """Draw the table of `Comparison.by`: panels by metric, bars by group and policy.

    If values differ by a large factor the axis is logarithmic, with dots instead of bars.

    Parameters: table: of groups; metrics: by default the means of wait, response and bounded slowdown.
    Returns: the picture.
    Raises: UsageError: the table has no groups.
    """
    if "policy" not in table.index.names or table.empty:
        raise UsageError("the table must be a result of Comparison.by with two or more groups")
    usual = [name for name in in_set("group_rows") if name.endswith("_mean") and name in table]
    chosen = usual if metrics is None else list(metrics)
    names = list(dict.fromkeys(table.index.get_level_values(0)))
    panels = [_group(pd.DataFrame(table[metric]), names, metric) for metric in chosen]
    panels[-1].x.label = title(str(table.index.names[0]), names)
    some = any(table[metric, "half_width"].notna().any() for metric in chosen)
    note = "means over replications, with intervals" if some else ""
    return stacked(panels, 9.5, 0.9 + len(chosen) * 1.9, legend=True, note=note)


def _group(part: pd.DataFrame, names: list[str], metric: str) -> Panel:
    policies = list(dict.fromkeys(part.index.get_level_values("policy")))
    width, means, units = 0.8 / len(policies), part["mean"].to_numpy(dtype=float), units_of(metric)
    positive = means[np.isfinite(means) & (means > 0)]
    log = len(positive) > 0 and positive.max() > FAR * positive.min()
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
