"""Power over time, by what it is for; the area is the energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsim.plots.steps import means_told
from hetsim.plots.style import INK, PALETTE, describe, own_axes, plain, short, tidy, time_axis, title
from hetsim.results.formatting import energy, fitting
from hetsim.results.one_run.over_bins import power_over_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hetsim.results.one_run.result import Result

WATTS = ((1.0, "W"), (1e3, "kW"), (1e6, "MW"))
_PARTS = (("sleep", 0.25), ("idle", 0.5), ("work", 1.0))
"""From the bottom up, with how strongly each is painted."""


def power(result: Result, ax: Axes | None = None, *, bins: int = 200) -> Axes:
    """Draw the watts of each device type, stacked: asleep, idle, and above idle for work.

    The title tells the energy of the whole run, which is the area.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure; bins: stretches of time.
    Returns: the axes.
    """
    ax = own_axes(ax)
    table = power_over_time(result, bins)
    edges = np.append(table["time"].to_numpy(), result.end or 1.0)
    columns = table.drop(columns="time")
    total = columns.sum(axis=1)
    factor, unit = fitting([float(total.max())], WATTS)
    floor = np.zeros(len(edges))
    kinds = list(dict.fromkeys(str(name).rpartition(".")[0] for name in columns if columns[name].any()))
    for number, kind in enumerate(kinds):
        for part, strength in _PARTS:
            watts = columns[f"{kind}.{part}"].to_numpy() / factor
            if not watts.any():
                continue
            top = floor + np.append(watts, watts[-1:])
            label = f"{plain(short(kind, 24))} {'at work' if part == 'work' else part}"
            ax.fill_between(edges, floor, top, step="post", linewidth=0, color=PALETTE[number % len(PALETTE)],
                            alpha=strength, label=label)  # fmt: skip
            floor = top
    ax.set_ylim(0, 1.05 * float(floor.max()) if floor.any() else 1.0)
    ax.set_ylabel(f"power ({unit})", fontsize=9, color=INK)
    time_axis(ax, 0.0, result.end or 1.0, told=means_told(edges))
    tidy(ax)
    spent = float((total * np.diff(edges)).sum()) if result.end > 0 else 0.0
    subtitle = energy(spent) if total.any() else "no power is given"
    title(ax, f"{short(describe(result), 70)} · {subtitle}")
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
