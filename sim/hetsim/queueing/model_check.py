"""Model check: predictions of queueing theory compared with simulated CIs."""

import math
from typing import NamedTuple, Unpack

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.experiment.options import StudyKeywords
from hetsim.experiment.run import replicate
from hetsim.queueing.facts import PredictedRow
from hetsim.results.declared import COMPLETED_COUNT, TASK_COUNT
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.estimands import ratio_contributions, weight_of
from hetsim.results.statistics import Interval, student_interval
from hetsim.scenario.scenario import Scenario

MIN_REPLICATIONS = 10  # replications where the scenario has fewer than two
RARE = 1e-6  # a mean below it (seconds or tasks) may be 0 in all replications: a wait that one task in a million has
LOST = ("rejected_count", "expired_count")


class PredictionCheck(NamedTuple):
    """A predicted figure, and the confidence interval of the simulation."""

    row: PredictedRow
    interval: Interval

    @property
    def covered(self) -> bool | None:
        """True if the interval covers the prediction; None without an interval."""
        value, interval = self.row.value, self.interval
        if math.isnan(interval.low) or (interval.low == interval.high == 0 < value < RARE):
            return None
        # Where nothing is random (no task ever waits) the confidence interval is a point, and only rounding is left.
        return interval.covers(value) or math.isclose(value, interval.mean, rel_tol=1e-9, abs_tol=1e-15)


def simulate(
    scenario: Scenario, rows: list[PredictedRow], *, confidence: float = 0.95, **options: Unpack[StudyKeywords]
) -> list[PredictionCheck]:
    """Return the rows with CIs from replications: the scenario's number, or ten."""
    given = scenario.model.replications
    if options.get("replications") is None and isinstance(given, int) and given < 2:
        options["replications"] = MIN_REPLICATIONS
    metrics = [row.metric for row in rows if row.metric != "loss"]
    if by_class := any(row.class_ for row in rows):
        options["workers"] = 1  # the runs themselves are kept
    runs = replicate(scenario, metrics=metrics, keep=by_class, **options)
    if len(runs) < 2:
        raise UsageError("a confidence interval needs at least two replications; give --replications 10")
    of_classes = [row.metric for row in rows if row.class_ and row.metric != "loss"]
    wanted = list(dict.fromkeys([*of_classes, COMPLETED_COUNT, *LOST, TASK_COUNT]))
    tables = [one.by("class", wanted) for one in runs] if by_class else []
    return [PredictionCheck(row, _interval(row, runs, tables, confidence)) for row in rows]


def _interval(row: PredictedRow, runs: Replications, tables: list[pd.DataFrame], confidence: float) -> Interval:
    """Return the CI from runs of the metric in `row`, for all tasks or its class."""
    def column(name: str) -> np.ndarray:
        if row.class_:
            return np.array([float(table[name][row.class_]) for table in tables])
        return runs.column(name).to_numpy()

    if row.metric == "loss":
        lost, came = sum(map(column, LOST)), column(TASK_COUNT)
        values = ratio_contributions(lost / came, came)
    elif row.class_:
        values = column(row.metric)
        if weight_of(row.metric) is not None:
            values = ratio_contributions(values, column(COMPLETED_COUNT))
    else:
        contributions = runs.contributions(row.metric)
        if contributions.count() >= 2:
            return runs.interval(row.metric, confidence)
        values = contributions.to_numpy()
    return student_interval(values, confidence, row.metric)
