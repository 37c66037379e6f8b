"""A learning curve: what a policy earned on validation runs, next to baselines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hetsim.learning.agents.files import LearnedPolicy
from hetsim.learning.environment.rewards import REWARDS, Reward
from hetsim.plots.sweeps import is_wide
from hetsim.results.colors import PALETTE
from hetsim.results.panels import Axis, Line, Panel, Picture, Points, Texts

WIDE = 8.0
"""A range of costs beyond this factor is drawn on a logarithmic axis."""


def learning_curve(policy: LearnedPolicy, curve: pd.DataFrame, beside: Mapping[str, float]) -> Picture:
    """Draw a learning curve, the kept policy, and a line for every baseline."""
    about = policy.training
    parts = about["reward"]
    name, sign = "weighted reward per task", 1.0
    if list(parts.values()) == [1.0]:
        name, sign = REWARDS.get(next(iter(parts)), Reward).per_task
    steps, values = curve["steps"].to_numpy(), sign * curve["reward_per_task"].to_numpy()
    at = np.flatnonzero(steps == about["kept_after"])[:1]
    marks: list[Any] = [
        Line(steps, values, policy.agent, marker="o"), Points(steps[at], values[at], size=10, hollow=True),
        Texts(steps[at], values[at], [f"kept: {values[at][0]:.3g}"], size=9, align="center", shift=(0, 14)),
    ]  # fmt: skip
    others = {label: sign * value for label, value in beside.items()}
    for n, (label, value) in enumerate(others.items()):
        color = PALETTE[1 + n % (len(PALETTE) - 1)]
        marks.append(Line([-np.inf, np.inf], [value, value], f"{label}: {value:.3g}", color, dash=1 + n % 3))
    log = is_wide([*values, *others.values()], WIDE)
    y = Axis(f"{name}, validation runs", 0 if sign < 0 and not log else None, log=log)
    panel = Panel(marks, Axis("steps", 0), y, f"{about['scenario']} · {policy.agent}", legend="inside")
    return Picture([[panel]], 8)
