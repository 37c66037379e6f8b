"""The picture that comes with a result."""

import math

import numpy as np

from hetsim.plots.cdf import shares
from hetsim.plots.gantt import gantt, timeline
from hetsim.results.colors import INK, MUTED
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import SECONDS, fitting, pair, with_unit
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Boxes, Line, Panel, Picture, Points

FEW_LAUNCHES = 250
FEW_DEVICES = 32


def default(outcome: Result | Replications) -> Picture:
    """Draw a suitable picture of a run or of replications.

    A small run is shown as a Gantt chart; a large one, or one of language models (their launches are busy periods that
    tell little), as its timeline and the distributions of response and wait; replications as the first run's timeline,
    with the mean response of each next to it.

    Parameters: outcome: the run, or the replications.
    Returns: the picture.
    """
    if isinstance(outcome, Replications):
        return _of_replications(outcome)
    launches = outcome.launches
    few = 0 < len(launches) <= FEW_LAUNCHES and launches["device"].nunique() <= FEW_DEVICES
    if few and not outcome.record.input.language:
        return gantt(outcome)
    waits = np.nan_to_num(outcome.measured.column("wait")).any()
    columns = "response", "wait" if waits else "slowdown"
    below = [shares({column: outcome}, column, small=True) for column in columns]
    below[1].y.bare = True
    return Picture([*timeline(outcome).rows, below], 10, 7, heights=(1, 1, 1.33))


def _of_replications(runs: Replications) -> Picture:
    if not runs.results:
        return Picture([[_spread(runs)]], 10, 3.2)
    rows = timeline(runs.results[0]).rows
    rows[0][0].title += f" · replication 0 of {len(runs)}"
    below = [shares({"response": runs.results[0]}, "response", small=True), _spread(runs)]
    return Picture([*rows, below], 10, 6.5, heights=(1, 1, 1.18))


def _spread(runs: Replications) -> Panel:
    """The mean response of every replication, and the interval for its expectation."""
    values = runs.values[DEFAULT_METRIC]
    factor, unit = fitting(values.tolist(), SECONDS)
    finite = values[np.isfinite(values)] / factor
    y = Axis(f"mean response ({unit})", 0, 1.08 * finite.max() if len(finite) else 1)
    panel = Panel([Points(finite.index, finite, alpha=0.8)], Axis("replication", count=8, integer=True), y, small=True)
    interval = runs.interval(DEFAULT_METRIC) if values.notna().sum() > 1 else None
    if interval is not None and math.isfinite(interval.mean):
        mean, half = interval.mean / factor, interval.half_width / factor
        ends = [interval.low / factor], [interval.high / factor]
        panel.marks += [Boxes([-math.inf], [math.inf], *ends, "", MUTED, alpha=0.18),
                        Line([-math.inf, math.inf], [mean, mean], color=INK, width=1)]  # fmt: skip
        panel.title = f"mean {with_unit(pair(mean, half), unit)} (95 %)"
    return panel
