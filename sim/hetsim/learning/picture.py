"""A learning curve: what a policy earned on validation runs, next to baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hetsim.learning.agents.files import LearnedPolicy
from hetsim.learning.environment.rewards import REWARDS, Reward
from hetsim.plots.style import BLUE, DASHES, INK, PALETTE, figure, tidy, title

WIDE = 8.0
"""A range of costs beyond this factor is drawn on a logarithmic axis."""


def learning_curve(policy: LearnedPolicy, curve: pd.DataFrame, beside: Mapping[str, float]) -> Figure:
    """Draw a learning curve, the kept policy, and a line for every baseline."""
    about = policy.training
    parts = about["reward"]
    name, sign = "weighted reward per task", 1.0
    if list(parts.values()) == [1.0]:
        name, sign = REWARDS.get(next(iter(parts)), Reward).per_task
    picture = figure(8.0, 4.5)
    ax = picture.add_subplot()
    steps = curve["steps"].to_numpy()
    values = sign * curve["reward_per_task"].to_numpy()
    ax.plot(steps, values, "o-", color=BLUE, markersize=4, label=policy.agent)
    at = int(np.flatnonzero(steps == about["kept_after"])[0])
    ax.plot(steps[at], values[at], "o", color=BLUE, markersize=10, markerfacecolor="none")
    ax.annotate(f"kept: {values[at]:.3g}", (steps[at], values[at]), xytext=(0, 9), textcoords="offset points",
                ha="center", fontsize=9, color=INK)  # fmt: skip
    others = {label: sign * value for label, value in beside.items()}
    for number, (label, value) in enumerate(others.items()):
        style: Any = DASHES[1 + number % (len(DASHES) - 1)]
        color = PALETTE[1 + number % (len(PALETTE) - 1)]
        ax.axhline(value, color=color, linestyle=style, linewidth=1.4, label=f"{label}: {value:.3g}")
    everything = [*values, *others.values()]
    if min(everything) > 0 and max(everything) > WIDE * min(everything):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    elif sign < 0:
        ax.set_ylim(0, None)
    ax.set_xlim(0, None)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel("steps", fontsize=9, color=INK)
    ax.set_ylabel(f"{name}, validation runs", fontsize=9, color=INK)
    tidy(ax)
    ax.legend(fontsize=8.5, frameon=False, labelcolor=INK)
    title(ax, f"{about['scenario']} · {policy.agent}")
    return picture
