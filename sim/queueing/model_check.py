"""Model check: a prediction compared with the scenario's own replications, and which CIs cover the exact values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.errors import UsageError
from sim.queueing.facts import PredictedRow

if TYPE_CHECKING:
    from sim.results.statistics import Interval
    from sim.scenario.scenario import Scenario

LEAST = 10
"""Replications where the scenario has fewer than two."""


class PredictionCheck(NamedTuple):
    """A predicted figure, and the confidence interval of the simulation."""

    row: PredictedRow
    interval: Interval

    @property
    def covered(self) -> bool:
        value, interval = self.row.value, self.interval
        # Where nothing is random (no task ever waits) the confidence interval is a point, and only rounding is left.
        return interval.covers(value) or math.isclose(value, interval.mean, rel_tol=1e-9, abs_tol=1e-15)


def simulate(
    scenario: Scenario,
    rows: list[PredictedRow],
    *,
    confidence: float = 0.95,
    replications: int | None = None,
    **running: Any,
) -> list[PredictionCheck]:
    """The scenario's own replications, ten if it has none, and their confidence intervals for the predicted figures."""
    import numpy as np

    from sim.experiment.run import run
    from sim.results.many_runs.replications import Replications
    from sim.results.one_run.estimands import ratio_contributions, weight_of
    from sim.results.statistics import student_interval

    given = scenario.model.replications
    if replications is None and isinstance(given, int) and given < 2:
        replications = LEAST
    metrics = [row.metric for row in rows if row.metric != "loss"]
    by_class = any(row.class_ for row in rows)
    if by_class:
        running["workers"] = 1  # the runs themselves are kept
    runs = run(scenario, replications=replications, metrics=metrics, keep=by_class, **running)
    if not isinstance(runs, Replications):
        raise UsageError("an interval needs at least two replications; ask for more (--replications 10)")
    tables = [one.by("class", list(dict.fromkeys(metrics_of_tasks(rows)))) for one in runs] if by_class else []
    found = []
    for row in rows:
        if row.class_ and row.metric == "loss":
            lost = np.array([float((table["rejected"] + table["expired"])[row.class_]) for table in tables])
            came = np.array([float(table["tasks"][row.class_]) for table in tables])
            interval = student_interval(ratio_contributions(lost / came, came), confidence, row.metric)
        elif row.class_:
            values = np.array([float(table[row.metric][row.class_]) for table in tables])
            done = np.array([float(table["completed"][row.class_]) for table in tables])
            mean = weight_of(row.metric) is not None
            interval = student_interval(ratio_contributions(values, done) if mean else values, confidence, row.metric)
        elif row.metric == "loss":
            lost, came = (runs.column("rejected") + runs.column("expired")).to_numpy(), runs.column("tasks").to_numpy()
            interval = student_interval(ratio_contributions(lost / came, came), confidence, row.metric)
        else:
            interval = runs.interval(row.metric, confidence)
        found.append(PredictionCheck(row, interval))
    return found


def metrics_of_tasks(rows: list[PredictedRow]) -> list[str]:
    """Metrics of tasks that are needed for each class."""
    named = [row.metric for row in rows if row.class_ and row.metric != "loss"]
    return [*named, "completed", "rejected", "expired", "tasks"]
