"""How much work comes, as a share of what the cluster can do: the load of headlines and of `load:` at a trace.

Work of a task on a type of device is devices × time in its way there of least device-seconds (fractions count as
such, of a batch the fixed part is shared at best); what it holds besides, cores next to a GPU, is not counted.
The load is the least x such that all the work that comes, split among the types of device as well as can be, takes at
most x of the device-seconds of every type between the first arrival and the last.  Above 1 no policy keeps up; below 1
one may, if gangs and uneven arrivals let it.  On a cluster with one type of device it is work / (devices × time).
"""

from __future__ import annotations

import math

import numpy as np

from hetsim.model.tasks import Tasks
from hetsim.results.one_run.bounds import area_bound, areas
from hetsim.results.one_run.modes import ModeTable


def offered_load(tasks: Tasks, table: ModeTable) -> float:
    """The load of all tasks with a known arrival; 0 of none, inf where they all come at one instant."""
    chosen = np.flatnonzero(np.isfinite(tasks.arrival))
    if not len(chosen):
        return 0.0
    arrival = tasks.arrival[chosen]
    span = float(arrival.max() - arrival.min())
    work, capacity = areas(tasks, table, chosen)
    kept = np.isfinite(work).any(axis=1)  # what can never run asks for nothing
    least = min_area(work[kept], capacity)
    return least / span if span > 0 else (math.inf if least > 0 else 0.0)


def min_area(work: np.ndarray, capacity: np.ndarray) -> float:
    """Least λ such that fractions of the tasks fit into λ × capacity of every type: in closed form up to two types.

    More types among which tasks have a choice take linear programs (`area_bound`).
    """
    choice = np.isfinite(work).sum(axis=1) > 1
    single = np.where(np.isfinite(work[~choice]), work[~choice], 0.0).sum(axis=0) / capacity
    if not choice.any():
        return float(single.max(initial=0.0))
    open_ = np.isfinite(work[choice]).any(axis=0)
    if open_.sum() > 2:
        return area_bound(work, capacity)
    first, second = np.flatnonzero(open_).tolist()
    both = max(_split(work[choice][:, [first, second]] / capacity[[first, second]], single[[first, second]]), 0.0)
    return max(both, float(single.max()))


def _split(loads: np.ndarray, fixed: np.ndarray) -> float:
    """Two types: those go to the first that are the best there, until both are equally loaded."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(loads[:, 0] / loads[:, 1], posinf=math.inf)
    order = np.argsort(ratio, kind="stable")
    first = fixed[0] + np.concatenate([[0.0], np.cumsum(loads[order, 0])])
    second = fixed[1] + np.concatenate([np.cumsum(loads[order[::-1], 1])[::-1], [0.0]])
    meet = int(np.searchsorted(first >= second, True))
    if meet == 0 or meet == len(first):
        return float(max(first[0], second[0]) if meet == 0 else max(first[-1], second[-1]))
    # One task is split so that both are equal.
    rise, fall = first[meet] - first[meet - 1], second[meet - 1] - second[meet]
    share = (second[meet - 1] - first[meet - 1]) / (rise + fall)
    return float(first[meet - 1] + share * rise)
