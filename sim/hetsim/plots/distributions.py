"""How response, wait and slowdown are distributed under several policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hetsim.plots.cdf import cdf
from hetsim.plots.style import figure, legend_above, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hetsim.results.one_run.result import Result


def distributions(
    results: Result | Iterable[Result] | Mapping[str, Result], columns: Iterable[str] | None = None
) -> Figure:
    """Draw a panel a column of the task table with a line for every run, and one legend above.

    Parameters: results: runs, with labels if in a mapping; columns: without them response, wait (where any task waits)
        and the bounded slowdown.
    Returns: the figure.
    """
    from hetsim.plots.cdf import labeled

    runs = labeled(results)
    chosen = _usual(list(runs.values())) if columns is None else list(columns)
    picture = figure(1.2 + 3.6 * len(chosen), 3.9)
    panels = picture.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for number, (ax, column) in enumerate(zip(panels, chosen, strict=True)):
        cdf(runs, column, ax)
        ax.set_title("", loc="left")
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
        if number:
            ax.set_ylabel("")
    handles, labels = panels[0].get_legend_handles_labels()
    legend_above(picture, handles, labels)
    if len(labels) == 1:
        title(panels[0], labels[0])
    return picture


def _usual(runs: list[Result]) -> list[str]:
    bounded = next(name for name in runs[0].tasks.columns if name.startswith("bounded_slowdown"))
    waits = any(np.nan_to_num(run.measured.column("wait")).any() for run in runs)
    return ["response", *(["wait"] if waits else []), bounded]
