"""Picture of a size search: cost against the target's metric, and Pareto front."""

import math
from typing import Any

import numpy as np

from hetsim.plots.style import short
from hetsim.plots.sweeps import is_wide, key_name
from hetsim.results.colors import BLUE, INK, MUTED, ORANGE
from hetsim.results.formatting import fitting, metric_name, units_of
from hetsim.results.panels import Axis, Boxes, Line, Panel, Picture, Points
from hetsim.search.decide import Decision

LOOKS = {"met": ("o", BLUE), "missed": ("x", MUTED), "open": ("D", INK), "not defined": ("s", MUTED)}
WIDE = 20.0  # ratio of the largest to the smallest value above which the metric's axis is logarithmic


def decision(found: Decision) -> Picture:
    """Draw candidates (objective, first target's metric) with the target and front."""
    target = found.targets[0]
    shown = [each for each in found.candidates
             if not math.isnan(each.objective) and np.isfinite(each.trial.findings[0].mean)]  # fmt: skip
    factor, unit = fitting([*(each.trial.findings[0].mean for each in shown), target.value], units_of(target.metric))
    at = {id(each): (each.objective, each.trial.findings[0].mean / factor) for each in shown}
    marks, bound, means = list[Any](), target.value / factor, [y for _, y in at.values()]
    for verdict, (marker, color) in LOOKS.items():
        if mine := [at[id(each)] for each in shown if each.trial.verdict == verdict]:
            x, y = np.transpose(mine)
            marks.append(Points(x, y, label=verdict, color=color, marker=marker, size=5))
    if front := [at[id(each)] for each in found.front if each in shown]:
        x, y = np.transpose(front)
        marks.append(Line(x, y, width=1, alpha=0.6, steps=True))
    if found.best is not None and found.best in shown:  # a ring around it, with its values in the legend
        values = [f"{key_name(key, found.keys)} {value}" for key, value in found.best.values.items()]
        named = [found.best.policy] if len(set(found.policies)) > 1 else []
        x, y = np.transpose([at[id(found.best)]])
        marks.append(Points(x, y, short(", ".join([*values, *named]), 60), ORANGE, size=11, hollow=True))
    low, high = (bound, math.inf) if target.below else (-math.inf, bound)
    marks[:0] = [Boxes([-math.inf], [math.inf], [low], [high], color=ORANGE, alpha=0.08),
                 Line([-math.inf, math.inf], [bound, bound], color=ORANGE, width=1.2)]  # fmt: skip
    objective = {"price": "price of the cluster (per hour)", "total": f"total of {', '.join(found.keys)}"}
    name = short(objective.get(found.objective, found.objective), 70)
    y_axis = Axis(metric_name(target.metric) + (f" ({unit})" if unit else ""), log=is_wide(means, WIDE))
    title = short(f"{found.scenario}: {' and '.join(each.text for each in found.targets)}", 80)
    return Picture([[Panel(marks, Axis(name), y_axis, title, grid="both", legend="inside")]], 7.5)
