"""How full the GPUs are over time, and how much of the free capacity no task can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsim.errors import UsageError
from hetsim.plots.steps import averaged, intervals, steps_label
from hetsim.plots.style import BLUE, INK, VERMILION, describe, figure, tidy, time_axis, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hetsim.results.one_run.result import Result


def fragmentation(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the allocated GPUs, and on top of them the free ones that the workload's mix of requests cannot use.

    Both are in percent of the GPUs that are up; what lies between the upper line and 100 % is free and of use.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure.
    Returns: the axes.
    Raises: UsageError: the cluster has no GPUs.
    """
    if not any(device.type.kind != "cpu" for device in result.record.input.cluster.devices):
        raise UsageError("there are no GPUs here, so none of them can be left over")
    if ax is None:
        ax = figure(9, 4).subplots()
    table, end = result.fragmentation_over_time, result.end
    up = (table["allocated_gpus"] + table["unallocated_gpus"]).to_numpy()
    time = table["time"].to_numpy()
    allocated = 100 * table["allocation"].fillna(0.0).to_numpy()
    stranded = 100 * table["fragmented_gpus"].to_numpy() / up.clip(min=1e-12)
    low, high = allocated, allocated + stranded
    edges = intervals(ax, end, low, high)
    if edges is not None:
        low, high, time = averaged(time, low, edges, end), averaged(time, high, edges, end), edges[:-1]
    time, low, high = np.append(time, end), np.append(low, low[-1:]), np.append(high, high[-1:])
    ax.fill_between(time, low, step="post", color=BLUE, alpha=0.25, linewidth=0, label="allocated")
    ax.fill_between(time, low, high, step="post", color=VERMILION, alpha=0.45, linewidth=0,
                    label="free, but of no use to the mix")  # fmt: skip
    ax.set_ylim(0, 105)
    ax.set_ylabel(steps_label("GPUs (%)", edges), fontsize=9, color=INK)
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.1)
    tidy(ax)
    time_axis(ax, 0.0, end if end > 0 else 1.0)
    title(ax, describe(result), pad=24)
    return ax
