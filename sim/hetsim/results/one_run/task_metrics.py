"""Metrics of tasks: outcomes, times, deadlines, makespan, throughput.

A metric maps a `Measured` run to a number; NaN means that it is undefined (a makespan with unfinished tasks).  Task
metrics cover the tasks that arrive in the window [warmup, horizon), device metrics the time in the window.

A run with a horizon ends with tasks whose deadline is still to come.  To count them as misses would be wrong, and to
drop only the unfinished ones would favor fast tasks.  All tasks with a deadline after the end are therefore excluded
from every share, whatever their outcome: arrival and deadline alone, which no policy changes, determine the remaining
tasks.  `deadline_after_end` is the number of excluded tasks.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from hetsim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED, STATUS_NAMES, UNFINISHED
from hetsim.results.declared import DEFAULT_BOUND, Unit, metric
from hetsim.results.one_run.measured import QUANTILES, Measured
from hetsim.results.one_run.rows import TableRows
from hetsim.results.one_run.tables import BOUNDED_SLOWDOWN

STATISTICS = ("mean", *QUANTILES, "max")


@metric(unit="tasks", better="neither", sets=("summary", "groups:10", "group_rows:10", "display:10"), title="tasks")
def task_count(run: Measured) -> float:
    """Tasks that arrived in the window."""
    return len(run.status)


def _counting(status: int) -> Callable[[Measured], float]:
    return lambda run: run.count(status)


_FATES = {
    COMPLETED: "completed",
    REJECTED: "were rejected",
    EXPIRED: "expired before they started",
    FAILED: "failed, or had a failed predecessor",
    UNFINISHED: "were waiting or running when the run ended",
}
for _place, (_status, _meaning) in enumerate(_FATES.items()):
    _count = _counting(_status)
    _count.__doc__ = f"Tasks in the window that {_meaning}."
    _lost = (f"usual:{40 + 10 * _place}", f"cluster:{220 + 10 * _place}", f"group_rows:{20 + 10 * _place}")
    _sets = ("summary", f"groups:{20 + 10 * _place}", *(() if _status == COMPLETED else _lost))
    _sets += ("display:20",) if _status == UNFINISHED else ()
    metric(unit="tasks", better="more" if _status == COMPLETED else "less", sets=_sets,
           hide_if_zero=_status != COMPLETED, title=STATUS_NAMES[_status],
           name=f"{STATUS_NAMES[_status]}_count")(_count)  # fmt: skip


def declare_statistics(
    column: str, meaning: str, unit: Unit, sets: Mapping[str, tuple[str, ...]], every: str = "summary",
    weight: str | None = None, module: str = __name__,
) -> None:  # fmt: skip
    """Declare five metrics of a column of the task table: mean, p50, p95, p99 and max.

    `meaning`: the column in words.  `sets`: by statistic, the further metric sets that contain it.  `every`: a metric
    set that contains all five.  `weight`: as for `metric`, for the mean.
    """
    for label in STATISTICS:
        metric(
            unit=unit, better="less", weight=weight if label == "mean" else None, sets=(every, *sets.get(label, ())),
            congested=True, name=f"{column}_{label}", module=module,
        )(_statistic(column, label, meaning))  # fmt: skip


def _statistic(column: str, label: str, meaning: str) -> Callable[[Measured], float]:
    def value(run: Measured) -> float:
        name = column.format(bound=run.result.bound)
        if name not in run.result.tasks:
            return math.nan
        if label in QUANTILES:
            return run.quantile(name, QUANTILES[label])
        return run.mean(name) if label == "mean" else run.maximum(name)

    infinite = f"{meaning}; unfinished tasks count as +inf."
    value.__doc__ = {
        "mean": f"Mean {meaning}; unfinished tasks are excluded (see `unfinished_count`).",
        "max": f"Maximum {infinite}",
    }.get(label, f"{label[1:]}th percentile of the {infinite}")
    return value


declare_statistics(
    "response", "time from arrival to finish", "s", weight="_completed",
    sets={"mean": ("usual:20", "cluster:10", "groups:90", "group_rows:90", "display:40", "page_tasks:10",
                   "page_cards:60", "sweep:10"),
          "p95": ("usual:30", "cluster:20", "groups:100", "group_rows:100", "display:50", "page_cards:70", "sweep:20"),
          "p99": ("cluster:30",)},
)  # fmt: skip
declare_statistics(
    "wait", "time from ready to the first stage's start", "s", weight="_started",
    sets={"mean": ("cluster:40", "groups:70", "group_rows:70", "display:30", "page_tasks:20", "page_cards:80"),
          "p95": ("cluster:50", "groups:80")},
)  # fmt: skip
declare_statistics(
    "slowdown", "response / T* (time alone in the fastest mode, transfers included)", "ratio", weight="_completed",
    sets={"mean": ("cluster:60", "groups:110", "page_tasks:30", "page_cards:150")},
)  # fmt: skip
declare_statistics(
    BOUNDED_SLOWDOWN, f"max(1, response / max(T*, {DEFAULT_BOUND:g} s))", "ratio", weight="_completed",
    sets={"mean": ("cluster:70", "groups:120", "group_rows:120"), "p95": ("cluster:80", "groups:130")},
)  # fmt: skip


@metric(unit="ratio", better="less", weight="_completed", sets=("summary",), congested=True)
def bsld_swf_mean(run: Measured) -> float:
    """Mean of max(1, response / max(finish - start, 10 s)) of completed tasks.

    It is common for batch schedulers (Feitelson's SWF logs); `bounded_slowdown` divides by the shortest possible time.
    """
    done = run.status == COMPLETED
    if not done.any():
        return math.nan
    ran = (run.column("finish") - run.column("start"))[done]
    return float(np.maximum(run.column("response")[done] / np.maximum(ran, DEFAULT_BOUND), 1.0).mean())


@metric(unit="s", better="less", sets=("summary", "usual:10", "cluster:90", "display:60", "page_cards:90"),
        needs_end=True)  # fmt: skip
def makespan(run: Measured) -> float:
    """Last finish of a completed task - first arrival; undefined if any is unfinished."""
    if not run.count(COMPLETED) or run.count(UNFINISHED):
        return math.nan
    return float(run.column("finish")[run.status == COMPLETED].max() - run.column("arrival").min())


@metric(unit="1/s", better="more", of="run", sets=("summary", "page_cards:140"))
def throughput(run: Measured) -> float:
    """Completions in the window per second, whenever the tasks arrived."""
    return completions(run) / run.duration if run.duration > 0 else math.nan


def completions(run: Measured) -> int:
    """Number of completions in the window, whenever the tasks arrived."""
    frame = run.result.tasks
    finish = frame["finish"].to_numpy()[frame["status"].cat.codes.to_numpy() == COMPLETED]
    return int(np.count_nonzero((finish >= run.low) & (finish <= run.high)))  # a drained run ends with its last finish


@metric(unit="share", better="less", weight="_arrived", sets=("summary", "page_cards:10"), congested=True)
def rejected_fraction(run: Measured) -> float:
    """Rejected tasks / all arrivals in the window; undefined without arrivals."""
    return run.count(REJECTED) / len(run.status) if len(run.status) else math.nan


def _met(run: Measured) -> tuple[int, int]:
    """Count tasks that met their deadline, and tasks whose deadline passed in the run."""
    column = run.series("met_deadline")
    return int(column.sum()), int(column.notna().sum())


def _arrivals(run: Measured) -> int:
    return len(run.status) - int(run.is_retry.sum())


@metric(unit="1/s", better="more", sets=("summary", "deadlines"))
def goodput(run: Measured) -> float:
    """Tasks completed in time, per second: goodput_fraction × arrival rate."""
    return goodput_fraction(run) * _arrivals(run) / run.duration if run.duration > 0 else math.nan


@metric(
    unit="share", better="more", weight="_all_but_later",
    sets=("summary", "usual:40", "cluster:220", "deadlines", "sweep:30"), congested=True,
)  # fmt: skip
def goodput_fraction(run: Measured) -> float:
    """Tasks that met their deadline / all arrivals, except those due after the end."""
    met, judged = _met(run)
    return met / (_arrivals(run) - deadline_after_end(run)) if judged else math.nan


@metric(unit="share", better="more", congested=True)
def value_fraction(run: Measured) -> float:
    """Weight of tasks completed in time / weight of all arrivals.

    Tasks with a deadline after the end of the run are excluded.
    """
    record = run.result.record
    weight = record.input.tasks.weight
    weights = np.ones(len(run.status)) if weight is None else run.chosen(TableRows(record)(weight))
    met = run.completed & run.series("met_deadline").fillna(True).to_numpy(dtype=bool)
    counted = ~run.deadline_later & ~run.is_retry
    total = float(weights[counted].sum())
    return float(weights[met & counted].sum()) / total if total > 0 else math.nan


@metric(
    unit="share", better="more", weight="_judged",
    sets=("summary", "cluster:210", "groups:140", "group_rows:140", "display:70", "page_tasks:40", "page_cards:20",
          "deadlines"), title="deadlines met", congested=True,
)  # fmt: skip
def slo_attainment(run: Measured) -> float:
    """Tasks that met their deadline / arrivals with a deadline before the end."""
    met, judged = _met(run)
    return met / judged if judged else math.nan


@metric(
    unit="share", better="more", weight="_judged_admitted", sets=("summary", "deadlines"), title="met of admitted",
    congested=True,
)  # fmt: skip
def attainment_admitted(run: Measured) -> float:
    """slo_attainment over admitted tasks only: rejected tasks are left out."""
    met, _ = _met(run)
    judged = int((run.series("met_deadline").notna().to_numpy() & (run.status != REJECTED)).sum())
    return met / judged if judged else math.nan


@metric(unit="tasks", better="neither", sets=("summary",), hide_if_zero=True)
def deadline_after_end(run: Measured) -> float:
    """Tasks in the window with a deadline after the end of the run."""
    return int(np.count_nonzero(run.deadline_later))
