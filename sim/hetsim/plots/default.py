"""The picture that comes with a result."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hetsim.plots.cdf import cdf
from hetsim.plots.gantt import gantt, timeline
from hetsim.plots.style import BLUE, INK, MUTED, figure, tidy, title
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import SECONDS, fitting, pair, with_unit
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result

FEW_LAUNCHES = 250
FEW_DEVICES = 32


def default(outcome: Result | Replications) -> Figure:
    """Draw a suitable picture of a run or of replications.

    A small run is shown as a Gantt chart; a large one, or one of language models (their launches are busy periods that
    tell little), as its timeline and the distributions of response and wait; replications as the first run's timeline,
    with the mean response of each next to it.

    Parameters: outcome: the run, or the replications.
    Returns: the figure.
    """
    return _of_replications(outcome) if isinstance(outcome, Replications) else _of_run(outcome)


def _small(result: Result) -> bool:
    launches = result.launches
    few = 0 < len(launches) <= FEW_LAUNCHES and launches["device"].nunique() <= FEW_DEVICES
    return few and not result.record.input.language


def _of_run(result: Result) -> Figure:
    if _small(result):
        return gantt(result).get_figure(root=True)  # type: ignore[return-value]
    picture = figure(10, 7)
    above, below = picture.subfigures(2, 1, height_ratios=[1.5, 1], squeeze=False)[:, 0]
    upper, lower = above.subplots(2, 1, sharex=True)
    timeline(result, (upper, lower))
    left_axes, right = below.subplots(1, 2, sharey=True)
    waits = np.nan_to_num(result.measured.column("wait")).any()
    for ax, column in ((left_axes, "response"), (right, "wait" if waits else "slowdown")):
        cdf({column: result}, column, ax)
        ax.set_title(ax.get_title(loc="left"), loc="left", fontsize=9)
    right.set_ylabel("")
    return picture


def _of_replications(runs: Replications) -> Figure:
    first = runs.results[0] if runs.results else None
    picture = figure(10, 6.5 if first is not None else 3.2)
    if first is None:
        _spread(runs, picture.add_subplot())
        return picture
    above, below = picture.subfigures(2, 1, height_ratios=[1.7, 1], squeeze=False)[:, 0]
    upper, lower = above.subplots(2, 1, sharex=True)
    timeline(first, (upper, lower))
    title(upper, f"{upper.get_title(loc='left')} · replication 0 of {len(runs)}")
    left_axes, right = below.subplots(1, 2)
    cdf({"response": first}, "response", left_axes)
    left_axes.set_title(left_axes.get_title(loc="left"), loc="left", fontsize=9)
    _spread(runs, right)
    return picture


def _spread(runs: Replications, ax: Axes) -> None:
    """The mean response of every replication, and the interval for its expectation."""
    values = runs.values[DEFAULT_METRIC]
    factor, unit = fitting(values.tolist(), SECONDS)
    ax.plot(values.index, values / factor, "o", color=BLUE, markersize=4, alpha=0.8)
    interval = runs.interval(DEFAULT_METRIC) if values.notna().sum() > 1 else None
    if interval is not None and math.isfinite(interval.mean):
        mean, half = interval.mean / factor, interval.half_width / factor
        ax.axhline(mean, color=INK, linewidth=1)
        ax.axhspan(interval.low / factor, interval.high / factor, color=MUTED, alpha=0.18, linewidth=0)
        ax.set_title(f"mean {with_unit(pair(mean, half), unit)} (95 %)", loc="left", fontsize=9)
    ax.set_ylim(0, 1.08 * values[np.isfinite(values)].max() / factor if np.isfinite(values).any() else 1)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    tidy(ax, x="replication", y=f"mean response ({unit})")
