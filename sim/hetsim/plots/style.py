"""The style of all pictures: shortened names, and distinguishable styles of lines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.results.colors import PALETTE
from hetsim.results.formatting import PERCENT, units_of
from hetsim.results.panels import Panel, Picture

MAX_LINES = 12  # maximum number of distinguishable lines in one picture
LONGEST = 44  # length above which a name in a picture is cut


def short(text: str, most: int = LONGEST) -> str:
    """Return a name, shortened so that the picture has room."""
    return text if len(text) <= most else text[: most - 1] + "…"


def look(number: int) -> dict[str, Any]:
    """Return color and dashes of a line; the first 28 all differ."""
    return {"color": PALETTE[number % len(PALETTE)], "dash": number % 4}


def line_looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the looks of several lines; beyond MAX_LINES they are thin and gray."""
    looks = {}
    for number, label in enumerate(labels):
        if number < MAX_LINES or len(labels) == MAX_LINES + 1:
            looks[label] = {**look(number), "label": short(label)}
        else:
            more = f"{len(labels) - MAX_LINES} more" if number == MAX_LINES else ""
            looks[label] = {"color": "#BBBBBB", "label": more, "behind": True}
    return looks


def stacked(panels: list[Panel], width: float, height: float, **more: Any) -> Picture:
    """Return panels stacked vertically; only the last has x-axis texts."""
    for panel in panels[:-1]:
        panel.x.bare = True
    return Picture([[panel] for panel in panels], width, height, **more)


def possible(metric: str, values: np.ndarray, factor: float = 1.0) -> tuple[float, float]:
    """Return the bounds of a metric in units of `factor`: 0, and for a share also 1.

    A bound is left out if a value exceeds it.  Pictures draw confidence intervals only within the bounds.
    """
    finite = values[np.isfinite(values)]
    share = units_of(metric) == PERCENT and not (finite * factor > 1 + 1e-9).any()
    return (-np.inf if (finite < 0).any() else 0.0), (1 / factor if share else np.inf)


def describe(outcome: Any) -> str:
    """Return `scenario · policy`, the title of a run."""
    return " · ".join(part for part in (outcome.name, outcome.policy) if part)


def until(end: float, time: np.ndarray, *series: np.ndarray) -> list[np.ndarray]:
    """Return times and values of step curves, with the last values repeated at `end`."""
    return [np.append(time, end), *(np.append(values, values[-1:]) for values in series)]
