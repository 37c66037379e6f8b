"""Intervals from one long run by batch means of its tasks in order of arrival.

Conway, "Some tactical problems in digital simulation", 1963; Schmeiser, "Batch size effects in the analysis of
simulation output", 1982 (10 to 30 batches are enough).  Means of long batches are almost independent and normal, so
Student's t applies to them; of short ones they are not, and the interval is too narrow.  Therefore the run is first
cut into four times as many batches: if even their means are correlated (von Neumann's ratio as a test of lag 1,
one-sided, 10 %), the interval is refused.  Only means have batch means here; percentiles are biased in short batches.
"""

import math
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.record import REJECTED
from hetsim.results.declared import in_set
from hetsim.results.one_run import metrics
from hetsim.results.one_run.estimands import weight_of
from hetsim.results.one_run.measured import QUANTILES, Run
from hetsim.results.one_run.tables import bound_name
from hetsim.results.statistics import Interval, normal_quantile, student_interval

METHOD = "batch means of one run"
BATCHES = 20
MIN_BATCHES = 10
MAX_BATCHES = 100
FINER = 4
MIN_TASKS = 25
"""Of a finer batch: so a run needs 25 × 4 × 20 = 2,000 tasks for 20 batches."""
LEVEL = 0.10
"""At which a correlation between neighboring batches is believed."""


def batch_means(result: Run, metric: str, batches: int = BATCHES, confidence: float = 0.95) -> Interval:
    """The interval of the steady mean of one run; UsageError with the reason."""
    metrics.metric(metric, result.bound)
    if isinstance(batches, bool) or not isinstance(batches, int) or not MIN_BATCHES <= batches <= MAX_BATCHES:
        raise UsageError(f"batch means take {MIN_BATCHES} to {MAX_BATCHES} batches, not {batches!r}")
    return batch_interval(_values(result, metric), metric, batches, confidence)


def batch_interval(values: np.ndarray, metric: str, batches: int = BATCHES, confidence: float = 0.95) -> Interval:
    """The interval from one number per task, in order of arrival."""
    needed = MIN_TASKS * FINER * batches
    if len(values) < needed:
        raise UsageError(
            f"{metric}: {len(values):,} tasks are too few for {batches} batch means; {needed:,} are needed. "
            "Make the run longer, or ask for replications"
        )
    if not np.isfinite(values).all():
        raise UsageError(f"{metric} is infinite for some task: there are no batch means of it")
    count = FINER * batches
    lag = lag_one(means_of(values, count))
    limit = normal_quantile(1 - LEVEL) * math.sqrt((count - 2) / (count**2 - 1))  # of independent normal values
    if lag > limit:
        raise UsageError(
            f"{metric}: means of {len(values) // (FINER * batches):,} tasks are still correlated (lag 1: {lag:.2f}, "
            f"above {limit:.2f}), so {batches} batch means would give too narrow an interval. "
            "Make the run longer, or ask for replications"
        )
    student = student_interval(means_of(values, batches), confidence)
    return Interval(
        metric, student.mean, student.low, high=student.high, confidence=confidence, n=batches, method=METHOD
    )


def candidates(result: Run) -> list[str]:
    """Metrics of a run with batch means that are defined in it."""
    names = [f"{column}_mean" for column in ("response", "wait", "slowdown", "ttft", "tpot")]
    functions = metrics.metrics(result.bound)
    return [name for name in (*names, "slo_attainment") if name in functions and not math.isnan(result.metric(name))]


def means_of(values: np.ndarray, batches: int) -> np.ndarray:
    """Means of consecutive equal batches; surplus first values are left out."""
    size = len(values) // batches
    return values[len(values) - size * batches :].reshape(batches, size).mean(axis=1)


def lag_one(means: np.ndarray) -> float:
    """1 - half of von Neumann's ratio: unbiased correlation of neighbors."""
    around = float(((means - means.mean()) ** 2).sum())
    return 0.0 if around == 0 else 1 - float((np.diff(means) ** 2).sum()) / (2 * around)


def _values(result: Run, metric: str) -> np.ndarray:
    """The values whose mean the metric is: one a task of the window, by arrival."""
    tasks = result.measured.tasks
    order = np.argsort(tasks["arrival"].to_numpy(), kind="stable")
    tasks = tasks.iloc[order]
    columns = ["response", "wait", "slowdown", bound_name(result.bound), "ttft", "tpot"]
    if metric in in_set("deadlines") and weight_of(metric):
        return _met(tasks, metric, result.measured.deadline_later[order])
    if metric.removesuffix("_mean") in columns and metric.endswith("_mean"):
        column = metric.removesuffix("_mean")
        values = tasks[column].to_numpy(dtype=np.float64) if column in tasks else np.zeros(0)
        return values[~np.isnan(values)]
    others = ", ".join([f"{column}_mean" for column in columns[:4]] + list(filter(weight_of, in_set("deadlines"))))
    why = "the percentile of a short batch is biased" if metric.rpartition("_")[2] in QUANTILES else (
        "it is no mean over tasks")  # fmt: skip
    raise UsageError(f"there are no batch means of {metric}: {why}. There are of {others}; else ask for replications")


def _met(tasks: Any, metric: str, later: np.ndarray) -> np.ndarray:
    """1 for each task that met its deadline, 0 for the others that count."""
    met = tasks["met_deadline"]
    having = met.notna().to_numpy()
    if not having.any():
        return np.zeros(0)
    if metric == "slo_attainment":
        counted = having
    elif metric == "attainment_admitted":
        counted = having & (tasks["status"].cat.codes.to_numpy() != REJECTED)
    else:
        counted = ~later
    return met.fillna(False).to_numpy(dtype=np.float64)[counted]
