"""Model check: predictions compared with CIs of the scenario's replications."""

from __future__ import annotations

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

MIN_REPLICATIONS = 10
"""Replications where the scenario has fewer than two."""
RARE = 1e-6
"""A mean below it (seconds or tasks) may be 0 in all replications: a wait that one task in a million has."""
LOST = ("rejected_count", "expired_count")


class PredictionCheck(NamedTuple):
    """A predicted figure, and the confidence interval of the simulation."""

    row: PredictedRow
    interval: Interval

    @property
    def covered(self) -> bool | None:
        """True if the interval covers the prediction; None without one."""
        value, interval = self.row.value, self.interval
        if math.isnan(interval.low) or (interval.low == interval.high == 0 < value < RARE):
            return None
        # Where nothing is random (no task ever waits) the confidence interval is a point, and only rounding is left.
        return interval.covers(value) or math.isclose(value, interval.mean, rel_tol=1e-9, abs_tol=1e-15)


def simulate(
    scenario: Scenario, rows: list[PredictedRow], *, confidence: float = 0.95, **options: Unpack[StudyKeywords]
) -> list[PredictionCheck]:
    """Run the scenario's replications (or ten); CIs of the predicted figures."""
    given = scenario.model.replications
    if options.get("replications") is None and isinstance(given, int) and given < 2:
        options["replications"] = MIN_REPLICATIONS
    metrics = [row.metric for row in rows if row.metric != "loss"]
    by_class = any(row.class_ for row in rows)
    if by_class:
        options["workers"] = 1  # the runs themselves are kept
    runs = replicate(scenario, metrics=metrics, keep=by_class, **options)
    if len(runs) < 2:
        raise UsageError("an interval needs at least two replications; ask for more (--replications 10)")
    of_classes = [row.metric for row in rows if row.class_ and row.metric != "loss"]
    wanted = list(dict.fromkeys([*of_classes, COMPLETED_COUNT, *LOST, TASK_COUNT]))
    tables = [one.by("class", wanted) for one in runs] if by_class else []
    return [
        PredictionCheck(row, _of_class(row, tables, confidence) if row.class_ else _of_all(row, runs, confidence))
        for row in rows
    ]


def _of_all(row: PredictedRow, runs: Replications, confidence: float) -> Interval:
    """The confidence interval of a figure of all tasks."""
    if row.metric != "loss":
        values = runs.contributions(row.metric)
        if values.count() < 2:
            return student_interval(values.to_numpy(), confidence, row.metric)
        return runs.interval(row.metric, confidence)
    lost, came = sum(runs.column(name).to_numpy() for name in LOST), runs.column(TASK_COUNT).to_numpy()
    return _of_shares(lost / came, came, confidence, row.metric)


def _of_class(row: PredictedRow, tables: list[pd.DataFrame], confidence: float) -> Interval:
    """Return the CI of a class's figure, from a table of classes by replication."""
    def column(name: str) -> np.ndarray:
        return np.array([float(table[name][row.class_]) for table in tables])

    if row.metric == "loss":
        lost, came = sum(map(column, LOST)), column(TASK_COUNT)
        return _of_shares(lost / came, came, confidence, row.metric)
    values = column(row.metric)
    if weight_of(row.metric) is None:
        return student_interval(values, confidence, row.metric)
    return _of_shares(values, column(COMPLETED_COUNT), confidence, row.metric)


def _of_shares(values: np.ndarray, weights: np.ndarray, confidence: float, metric: str) -> Interval:
    """Return the CI of a mean over tasks, weighted by each replication's tasks."""
    return student_interval(ratio_contributions(values, weights), confidence, metric)
