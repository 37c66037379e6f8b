"""The links of a network over time, as shades."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from hetsim.errors import UsageError
from hetsim.model.exchange import link_names
from hetsim.plots.style import INK, VERMILION, averaged, describe, means_told, own_axes, plain, short, time_axis, title
from hetsim.results.one_run.network import series
from hetsim.results.one_run.result import Result

MAX_NAMES = 40
MAX_LINKS = 32


def _shades(ax: Axes, edges: np.ndarray, shares: np.ndarray, names: list[str], label: str) -> None:
    """A row of shades for each name, from 0 to 1 between the edges, and their scale."""
    rows = len(names)
    # cividis reads alike with all kinds of color vision, and in print.
    mesh = ax.pcolormesh(
        edges, np.arange(rows + 1), 100 * shares, cmap="cividis", vmin=0, vmax=100, linewidth=0, rasterized=True
    )
    ax.invert_yaxis()
    shown = range(0, rows, max(1, -(-rows // MAX_NAMES)))
    ax.set_yticks([row + 0.5 for row in shown], [plain(short(names[row], 30)) for row in shown],
                  fontsize=7 if rows > 20 else 8.5)  # fmt: skip
    ax.tick_params(axis="y", length=0, colors=INK)
    time_axis(ax, 0.0, edges[-1], told=means_told(edges))
    ax.spines[:].set_visible(False)
    bar = ax.get_figure(root=True).colorbar(mesh, ax=ax, fraction=0.03, pad=0.015)  # type: ignore[union-attr]
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, length=0)


def links(result: Result, ax: Axes | None = None, *, bins: int = 160) -> Axes:
    """Draw the utilization of each link over time, with shared times marked.

    Links that jobs shared come first, then the busiest; uplinks are named by their rack.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure; bins: stretches of time.
    Returns: the axes.
    Raises: UsageError: no job sends anything between nodes.
    """
    columns = series(result.record)
    if not columns:
        raise UsageError("no job here sends anything between nodes; `training` or `communication` would tell what")
    end = result.end or 1.0
    edges = np.linspace(0.0, end, bins + 1)
    names, table = link_names(result.record.input.cluster), result.links.set_index("link")
    order = sorted(columns, key=lambda link: (-table["shared"][names[link]], -table["utilization"][names[link]], link))
    shown = order[:MAX_LINKS]
    busy = np.array([averaged(columns[link][0], columns[link][1], edges, end) for link in shown])
    shared = np.array([averaged(columns[link][0], columns[link][2] > 1, edges, end) for link in shown])
    ax = own_axes(ax, 9, 1.9 + 0.26 * max(len(shown), 4))
    for row, together in enumerate(shared):
        for place in np.flatnonzero(together > 0.5):
            ax.plot(edges[place : place + 2], [row + 0.06] * 2, color=VERMILION, linewidth=2.2, solid_capstyle="butt")
    shown_names = [names[link] for link in shown]
    _shades(ax, edges, np.minimum(busy, 1.0), names=shown_names, label="rate in use (%), red: shared")
    more = f" · {len(order) - len(shown)} more links" if len(order) > len(shown) else ""
    title(ax, describe(result) + more)
    return ax
