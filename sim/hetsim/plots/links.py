"""The links of a network over time, as shades."""

from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.exchange import link_names
from hetsim.plots.style import describe, short
from hetsim.results.colors import VERMILION
from hetsim.results.one_run.network import series
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Boxes, Panel, Picture, Shades, averaged, time_axis

MAX_LINKS = 32


def links(result: Result, *, bins: int = 160) -> Picture:
    """Draw the utilization of each link over time, with shared times marked.

    Links that jobs shared come first, then the busiest; uplinks are named by their rack.

    Parameters: result: a run; bins: stretches of time.
    Returns: the picture.
    Raises: UsageError: no job sends anything between nodes.
    """
    if not (columns := series(result.record)):
        raise UsageError("no job here sends anything between nodes; `training` or `communication` would tell what")
    end = result.end or 1.0
    edges = np.linspace(0.0, end, bins + 1)
    names, table = link_names(result.record.input.cluster), result.links.set_index("link")
    order = sorted(columns, key=lambda link: (-table["shared"][names[link]], -table["utilization"][names[link]], link))
    shown = order[:MAX_LINKS]
    busy = np.array([averaged(columns[link][0], columns[link][1], edges, end) for link in shown])
    shared = np.array([averaged(columns[link][0], columns[link][2] > 1, edges, end) for link in shown])
    row, place = np.nonzero(shared > 0.5)
    label, rates = "rate in use (%), red: shared", 100 * np.minimum(busy, 1.0)
    marks: list[Any] = [
        Shades(edges, np.arange(len(shown) + 1), rates, (0, 100), label=label),
        Boxes(edges[place], edges[place + 1], row, row + 0.12, color=VERMILION),
    ]
    more = f" · {len(order) - len(shown)} more links" if len(order) > len(shown) else ""
    rows = [(at + 0.5, short(names[link], 30)) for at, link in enumerate(shown)]
    panel = Panel(marks, time_axis(0.0, edges[-1], means=edges), Axis("", len(shown), 0, rows), describe(result) + more,
                  grid="")  # fmt: skip
    return Picture([[panel]], 9, 1.9 + 0.26 * max(len(shown), 4))
