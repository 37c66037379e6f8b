"""Deadlines: which tasks they are judged by, and the metrics of those.

A run with a horizon ends with tasks that have a deadline still to come.  To count them as misses is wrong, and to leave
out only those that are unfinished favors fast tasks: what finished early would count and what takes longer would not.
So all tasks with a deadline after the end leave every share, whatever became of them: the tasks that remain are
chosen by arrival and deadline alone, which no policy changes.  `deadline_after_end` counts those that left.
"""

import math

import numpy as np

from hetsim.model.record import REJECTED
from hetsim.results.declared import metric
from hetsim.results.one_run.measured import Measured
from hetsim.results.one_run.rows import TableRows


def _met(run: Measured) -> tuple[int, int]:
    """Tasks that met their deadline, and tasks with one before the end of the run."""
    column = run.series("met_deadline")
    return int(column.sum()), int(column.notna().sum())


def _arrivals(run: Measured) -> int:
    """The number of arrivals; of a call one."""
    return len(run.status) - int(run.is_retry.sum())


@metric(unit="1/s", better="more", sets=("summary", "deadlines"))
def goodput(run: Measured) -> float:
    """Tasks in time per second of the window: goodput_fraction × arrival rate."""
    return goodput_fraction(run) * _arrivals(run) / run.duration if run.duration > 0 else math.nan


@metric(
    unit="share", better="more", weight="_all_but_later",
    sets=("summary", "usual:40", "cluster:220", "deadlines", "sweep:30"), congested=True,
)  # fmt: skip
def goodput_fraction(run: Measured) -> float:
    """Met / (arrivals - those with a deadline after the end); NaN if none."""
    met, judged = _met(run)
    return met / (_arrivals(run) - deadline_after_end(run)) if judged else math.nan


@metric(unit="share", better="more", congested=True)
def value_fraction(run: Measured) -> float:
    """Weight of tasks completed in time / weight of all arrivals.

    Without those that have a deadline after the end.
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
    """Met / arrivals with a deadline before the end; what fails or is left is a miss."""
    met, judged = _met(run)
    return met / judged if judged else math.nan


@metric(
    unit="share", better="more", weight="_judged_admitted", sets=("summary", "deadlines"), title="met of admitted",
    congested=True,
)  # fmt: skip
def attainment_admitted(run: Measured) -> float:
    """Met / arrivals with a deadline before the end that were not rejected."""
    met, _ = _met(run)
    judged = int((run.series("met_deadline").notna().to_numpy() & (run.status != REJECTED)).sum())
    return met / judged if judged else math.nan


@metric(unit="tasks", better="neither", sets=("summary",), hide_if_zero=True)
def deadline_after_end(run: Measured) -> float:
    """Tasks of the window with a deadline after the end of the run."""
    return int(np.count_nonzero(run.deadline_later))
