"""Cost against response: candidates of a search for a size, and their front."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hetsim.plots.style import BLUE, INK, MUTED, ORANGE, figure, plain, short, tidy, title
from hetsim.plots.sweeps import key_name
from hetsim.results.formatting import fitting, metric_name, units_of
from hetsim.search.decide import Decision

LOOKS = {"met": ("o", BLUE), "missed": ("x", MUTED), "open": ("D", INK), "not defined": ("s", MUTED)}
WIDE = 20.0
"""Above this ratio of the largest to the least value the axis of the metric is logarithmic."""


def decision(found: Decision) -> Figure:
    """Draw the objective against the first target's metric, with bound and front."""
    drawn = figure(7.5, 4.5)
    axes = drawn.subplots()
    target = found.targets[0]
    drawable = (one for one in found.candidates if not math.isnan(one.objective))
    shown = [one for one in drawable if np.isfinite(one.trial.findings[0].mean)]
    means = [one.trial.findings[0].mean for one in shown]
    factor, unit = fitting([*means, target.value], units_of(target.metric))
    for verdict, (marker, color) in LOOKS.items():
        mine = [one for one in shown if one.trial.verdict == verdict]
        if mine:
            at = [one.trial.findings[0].mean / factor for one in mine]
            axes.plot([one.objective for one in mine], at, marker, color=color, markersize=5, label=verdict)
    front = [one for one in found.front if one in shown]
    at = [one.trial.findings[0].mean / factor for one in front]
    axes.plot([one.objective for one in front], at, color=BLUE, linewidth=1, alpha=0.6, drawstyle="steps-post")
    low, high = min(means, default=0.0) / factor, max(means, default=1.0) / factor
    if low > 0 and high / low > WIDE:
        axes.set_yscale("log")
    bound, ends = target.value / factor, axes.get_ylim()
    axes.axhline(bound, color=ORANGE, linewidth=1.2)
    axes.set_ylim(min(ends[0], bound), max(ends[1], bound))
    beyond = (bound, axes.get_ylim()[1]) if target.below else (axes.get_ylim()[0], bound)
    axes.axhspan(*beyond, color=ORANGE, alpha=0.08, linewidth=0)
    axes.set_ylim(*sorted((axes.get_ylim()[0], axes.get_ylim()[1])))
    if found.best is not None and found.best in shown:  # a ring around it, with its values in the legend
        place = found.best.objective, found.best.trial.findings[0].mean / factor
        values = [f"{key_name(key, found.keys)} {value}" for key, value in found.best.values.items()]
        named = [found.best.policy] if len(set(found.policies)) > 1 else []
        ring: dict[str, Any] = {
            "markersize": 11, "markerfacecolor": "none", "markeredgecolor": ORANGE, "markeredgewidth": 2,
        }  # fmt: skip
        axes.plot(*place, "o", label=plain(short(", ".join([*values, *named]), 60)), **ring)
    objective = {"price": "price of the cluster (per hour)", "total": f"total of {', '.join(found.keys)}"}
    name = objective.get(found.objective, found.objective)
    axes.set_xlabel(plain(short(name, 70)), fontsize=9, color=INK)
    axes.set_ylabel(metric_name(target.metric) + (f" ({unit})" if unit else ""), fontsize=9, color=INK)
    axes.legend(fontsize=8, frameon=False)
    tidy(axes, grid="both")
    title(axes, plain(short(f"{found.scenario}: {' and '.join(one.text for one in found.targets)}", 80)))
    return drawn
