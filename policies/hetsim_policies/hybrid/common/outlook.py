"""The outcome of a fork of a run, as one number: the mean of an objective.

The mean is over the tasks that were unfinished at the start of the fork.  A task that is still unfinished at its end
counts as if it then continued, or started, in its fastest mode.  Its energy and cost are those of the mode in which it
runs; if it has not started, those of its cheapest mode.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from hetsim.errors import refusal
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, NOT_ARRIVED, UNFINISHED, Record
from hetsim.model.tasks import Tasks
from hetsim.policy import PlanProblem

Objective = Literal["response", "slowdown", "deadline_misses", "energy", "cost"]

LOST = 1e6  # seconds for a task that would wait forever: worse than any that ends


def check_objective(objective: Objective, problem: PlanProblem) -> None:
    """Raise ScenarioError if an objective cannot distinguish schedules."""
    tasks, cluster = problem.tasks, problem.cluster
    text = ""
    if objective == "deadline_misses" and (tasks.deadline is None or np.isnan(tasks.deadline).all()):
        text = "no task has a deadline (slo) that could be missed"
    if objective == "cost" and not cluster.priced:
        text = "nothing in the cluster has a price"
    if objective == "energy" and not any(kind.power.busy > kind.power.idle for kind in cluster.types.values()):
        text = "no device of the cluster has watts"
    if text:
        raise refusal(text, "policy.scheduler.objective")


def mean_of(record: Record, objective: Objective, now: float) -> float:
    """Return an objective's mean over the tasks that were unfinished at time `now`.

    `record` is that of a fork of the run, which began at `now`.  Objectives: response (seconds from arrival to the
    end), slowdown (response / shortest estimated time), deadline_misses (share of tasks with a deadline that miss it),
    energy (joules above idle), cost (price × time of the occupied devices).
    """
    tasks, end = record.input.tasks, record.end
    # What ends at this very instant counts: the tasks have to be the same in all forks that are compared.
    unfinished = ~(record.finish < now) & (record.status != NOT_ARRIVED)
    finish = np.where(record.status == UNFINISHED, end, record.finish)
    open_ = np.flatnonzero(record.status == UNFINISHED)
    if len(open_) and math.isinf(record.input.horizon):  # all that could happen has happened
        finish[open_] = end + LOST
    elif len(open_):
        begun = np.where(np.isfinite(record.start[open_]), record.start[open_], end)
        finish[open_] = np.maximum(end, begun + shortest(tasks, open_))
    if tasks.staged is not None and objective not in ("energy", "cost"):
        unfinished &= tasks.staged.last  # a request ends with its last stage, and counts once
    rows = np.flatnonzero(unfinished & np.isfinite(finish))
    if not len(rows):
        return 0.0
    if objective == "response":
        return float((finish - tasks.arrival)[rows].mean())
    if objective == "slowdown":
        return float(((finish - tasks.arrival)[rows] / np.maximum(shortest(tasks, rows), 1e-9)).mean())
    if objective == "deadline_misses":
        return _misses(record, rows, finish)

    def rate(mode: Mode) -> float:
        power = mode.type.power
        each = power.busy - power.idle if objective == "energy" else record.input.cluster.price_of(mode.type.name)
        return mode.width * each

    return _taken(record, rows, rate)


def shortest(tasks: Tasks, rows: np.ndarray) -> np.ndarray:
    """Estimated seconds of each task in its fastest mode."""
    return _in_cheapest_mode(tasks, rows, lambda mode: 1.0)


def _in_cheapest_mode(tasks: Tasks, rows: np.ndarray, weight: Callable[[Mode], float]) -> np.ndarray:
    best = np.empty(len(rows))
    shape = tasks.shape[rows]
    for number in np.unique(shape).tolist():
        modes = tasks.shapes[number].modes
        here = shape == number
        seconds = tasks.estimate[rows[here], : len(modes)] + np.array([mode.single for mode in modes])
        weights = np.array([weight(mode) for mode in modes])
        with np.errstate(invalid="ignore"):
            best[here] = np.nanmin(seconds * weights, axis=1)  # 0 × inf: a mode in which it cannot run
    return best


def _misses(record: Record, rows: np.ndarray, finish: np.ndarray) -> float:
    if (deadline := record.input.tasks.deadline) is None:
        return 0.0
    due = rows[np.isfinite(deadline[rows])]
    late = (finish[due] > deadline[due]) | ~np.isin(record.status[due], (COMPLETED, UNFINISHED))
    return float(late.mean()) if len(due) else 0.0


def _taken(record: Record, rows: np.ndarray, rate: Callable[[Mode], float]) -> float:
    """Return the tasks' mean of `rate(mode)` × estimated seconds, in their last modes.

    A task that has not started counts in its cheapest mode.
    """
    tasks = record.input.tasks
    values = _in_cheapest_mode(tasks, rows, rate)
    for place, row in enumerate(rows.tolist()):
        position = int(record.mode[row])
        if position >= 0:
            mode = tasks.shapes[int(tasks.shape[row])].modes[position]
            values[place] = rate(mode) * mode.computing(1, float(tasks.estimate[row, position]))
    return float(values.mean())
