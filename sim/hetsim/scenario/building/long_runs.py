"""What a run says beforehand if it may take long: its policy looks at all waiting tasks, and the queue grows."""

from __future__ import annotations

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.tasks import Tasks
from hetsim.policy import PlanProblem, Scheduler

LONG = 120.0
"""Seconds from which on a run is said to take long."""


def may_take_long(scheduler: Scheduler, name: str, problem: PlanProblem) -> list[str]:
    """A warning if the rounds of a scheduler look at all waiting tasks, and many are going to wait."""
    cost, count = scheduler.round_cost(problem), len(problem.tasks)
    if not cost or cost * count**2 < LONG:
        return []
    load = offered_load(problem.tasks, problem.cluster)
    waiting = 0.5 * count * max(0.0, 1.0 - 1.0 / load) if load > 0 else 0.0  # on average, while tasks arrive
    expected = cost * 2 * count * waiting  # two rounds a task
    if expected < LONG:
        return []
    return [
        f"{name} looks at all waiting tasks in each round, and at a load of {load:.3g} the queue grows: with "
        f"{count:,} tasks a run may take {expected / 60:,.0f} minutes (see docs/speed.md); fewer tasks, more devices, "
        "or a policy that looks at a bounded number of them take less"
    ]


def offered_load(tasks: Tasks, cluster: Cluster) -> float:
    """Work that arrives a second over what the cluster can do: of accelerators or of cores, whichever is greater.

    Each task counts in its fastest mode, by estimate; inf if all arrive at once.
    """
    work = {"cores": 0.0, "accelerators": 0.0}
    by_mode = tasks.computing(tasks.estimate)
    for number, shape in enumerate(tasks.shapes):
        times = by_mode[tasks.shape == number][:, : len(shape.modes)]
        if not len(times):
            continue
        fastest = np.argmin(times, axis=1)
        for position, mode in enumerate(shape.modes):
            mine = times[fastest == position, position]
            work["cores" if mode.on_cpu else "accelerators"] += float(mine[np.isfinite(mine)].sum()) * mode.width
    total = {
        "cores": float(sum(node.cpus for node in cluster.nodes)),
        "accelerators": float(sum(len(node.accelerators) for node in cluster.nodes)),
    }
    seconds = max(work[kind] / total[kind] for kind in work if total[kind]) if any(total.values()) else 0.0
    span = float(np.ptp(tasks.arrival)) if len(tasks) else 0.0
    return seconds / span if span > 0 else float("inf")
