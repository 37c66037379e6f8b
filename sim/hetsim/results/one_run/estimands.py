"""Values behind confidence intervals: one per replication, or per batch of a run.

A mean (or share) over customers, which are tasks or tokens, is the ratio of two expectations: the sum over a
replication's customers, and their number.  The estimate is therefore the sum over all replications / the number of
customers.  (The mean of the replications' means is a different quantity if replications with congestion have more
customers, as under bursty arrivals: all replications have the same weight in it.)  The jackknife removes the bias of
the estimate (Quenouille 1956; Tukey 1958): of n replications the i-th contributes n × ratio - (n - 1) × (the ratio
without replication i).  Means, intervals, paired differences, stopping rules and selections all use these
contributions.  For all other metrics (percentiles, maxima, time averages, counts, energy, cost), the expectation of a
replication's value is estimated, and a replication contributes its value.

Intervals from one long run are batch means of its tasks in order of arrival (Conway, "Some tactical problems in
digital simulation", 1963; Schmeiser, "Batch size effects in the analysis of simulation output", 1982: 10 to 30
batches are enough).  Means of long batches are almost independent and normal, so Student's t applies; with short
batches the interval is too narrow.  The run is therefore first cut into four times as many batches: if their means are
correlated (von Neumann's ratio as a test of lag 1, one-sided, 10 %), UsageError is raised.  Percentiles are biased in
short batches, so only means have such intervals.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.record import COMPLETED, REJECTED
from hetsim.results.declared import declaration, in_set
from hetsim.results.one_run import metrics
from hetsim.results.one_run.measured import QUANTILES, Measured, Run
from hetsim.results.one_run.tables import bound_name
from hetsim.results.one_run.task_metrics import deadline_after_end
from hetsim.results.statistics import Interval, normal_quantile, student_interval

ATTAINMENT = "slo_attainment"


def _judged_admitted(run: Measured) -> float:
    return int((run.series("met_deadline").notna().to_numpy() & (run.status != REJECTED)).sum())


def _known(run: Measured, column: str) -> int:
    return len(run.known_values(column)) if column in run.result.tasks else 0


WEIGHTS: dict[str, Callable[[Measured], float]] = {
    "_completed": lambda run: run.count(COMPLETED),
    "_started": lambda run: len(run.known_values("wait")),
    "_first_tokens": lambda run: _known(run, "ttft"),
    "_further_tokens": lambda run: _known(run, "tpot"),
    "_arrived": lambda run: len(run.status),
    "_judged": lambda run: int(run.series("met_deadline").notna().sum()),
    "_judged_admitted": _judged_admitted,
    "_all_but_later": lambda run: len(run.status) - deadline_after_end(run),
}  # Numbers of customers over which means and shares are taken; stored next to the metrics.


def weight_of(metric: str) -> str | None:
    """Return the name of the count that weights a metric's mean; None: not a mean."""
    declared = declaration(metric)
    return None if declared is None else declared.weight


def weights(run: Measured, names: Iterable[str]) -> dict[str, float]:
    """Return the numbers of customers over which these metrics of a run are averaged."""
    needed = {weight_of(name) for name in names}
    return {key: float(count(run)) for key, count in WEIGHTS.items() if key in needed}


def contributions(frame: pd.DataFrame, metric: str) -> pd.Series:
    """Return one value per replication; the mean of the values estimates the metric.

    `frame` has a row per replication, with the metric and its weight (`weight_of`), a number of customers.  Without
    this column all replications weigh the same.  NaN: the metric is undefined in the replication.
    """
    values, key = frame[metric], weight_of(metric)
    if key is None or key not in frame:
        return values
    weighted = weighted_contributions(values.to_numpy(dtype=np.float64), frame[key].to_numpy(dtype=np.float64))
    return pd.Series(weighted, index=values.index, name=metric)


def weighted_contributions(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return jackknife contributions to a mean weighted by `counts`; NaN if undefined."""
    defined = ~np.isnan(values) & (counts > 0)
    adjusted = values.copy()
    adjusted[defined] = ratio_contributions(values[defined], counts[defined])
    return adjusted


def ratio_contributions(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Jackknife values of Σ counts·values / Σ counts; `values` if any is not finite."""
    number = values.shape[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = values * counts
        pooled = sums.sum(axis=-1, keepdims=True) / counts.sum(axis=-1, keepdims=True)
        others = (sums.sum(axis=-1, keepdims=True) - sums) / (counts.sum(axis=-1, keepdims=True) - counts)
        pseudo_values = number * pooled - (number - 1) * others
    plain = (counts == counts[..., :1]).all(axis=-1) | (values == values[..., :1]).all(axis=-1)
    plain |= ~np.isfinite(pseudo_values).all(axis=-1)
    return np.where(plain[..., None], values, pseudo_values)


METHOD = "batch means of one run"
BATCHES = 20
MIN_BATCHES = 10
MAX_BATCHES = 100
FINER = 4
MIN_TASKS = 25  # Minimum number of tasks per finer batch: 20 batches need 25 × 4 × 20 = 2,000 tasks.
LEVEL = 0.10  # Significance level of the test for correlated neighboring batches.


def batch_means(result: Run, metric: str, batches: int = BATCHES, confidence: float = 0.95) -> Interval:
    """Return a steady-state mean's interval from one run; UsageError if unsuitable."""
    metrics.metric(metric, result.bound)
    if isinstance(batches, bool) or not isinstance(batches, int) or not MIN_BATCHES <= batches <= MAX_BATCHES:
        raise UsageError(f"batches must be from {MIN_BATCHES} to {MAX_BATCHES}; got {batches!r}")
    return batch_interval(_values(result, metric), metric, batches, confidence)


def batch_interval(values: np.ndarray, metric: str, batches: int = BATCHES, confidence: float = 0.95) -> Interval:
    """Return the batch-means interval of `values`, one number per task, by arrival."""
    needed = MIN_TASKS * FINER * batches
    if len(values) < needed:
        raise UsageError(
            f"{metric}: {len(values):,} tasks are too few for {batches} batch means; {needed:,} are needed. "
            "Make the run longer, or use --replications"
        )
    if not np.isfinite(values).all():
        raise UsageError(f"{metric} is infinite for some task, so it has no batch means")
    count = FINER * batches
    lag = lag_one(means_of(values, count))
    limit = normal_quantile(1 - LEVEL) * math.sqrt((count - 2) / (count**2 - 1))  # of independent normal values
    if lag > limit:
        raise UsageError(
            f"{metric}: means of {len(values) // (FINER * batches):,} tasks are still correlated (lag 1: {lag:.2f}, "
            f"above {limit:.2f}), so {batches} batch means would give too narrow an interval. "
            "Make the run longer, or use --replications"
        )
    student = student_interval(means_of(values, batches), confidence)
    return Interval(
        metric, student.mean, student.low, high=student.high, confidence=confidence, n=batches, method=METHOD
    )


def candidates(result: Run) -> list[str]:
    """Metrics with a defined value, of which `batch_means` can compute an interval."""
    names = [f"{column}_mean" for column in ("response", "wait", "slowdown", "ttft", "tpot")]
    functions = metrics.metrics(result.bound)
    return [name for name in (*names, ATTAINMENT) if name in functions and not math.isnan(result.metric(name))]


def means_of(values: np.ndarray, batches: int) -> np.ndarray:
    size = len(values) // batches
    return values[len(values) - size * batches :].reshape(batches, size).mean(axis=1)


def lag_one(means: np.ndarray) -> float:
    """Correlation of neighboring means: 1 - half of von Neumann's ratio."""
    around = float(((means - means.mean()) ** 2).sum())
    return 0.0 if around == 0 else 1 - float((np.diff(means) ** 2).sum()) / (2 * around)


def _values(result: Run, metric: str) -> np.ndarray:
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
        "it is not a mean over tasks")  # fmt: skip
    raise UsageError(f"{metric} has no batch means: {why}. Use {others}, or --replications")


def _met(tasks: Any, metric: str, later: np.ndarray) -> np.ndarray:
    met = tasks["met_deadline"]
    having = met.notna().to_numpy()
    if not having.any():
        return np.zeros(0)
    if metric == ATTAINMENT:
        counted = having
    elif metric == "attainment_admitted":
        counted = having & (tasks["status"].cat.codes.to_numpy() != REJECTED)
    else:
        counted = ~later
    return met.fillna(False).to_numpy(dtype=np.float64)[counted]
