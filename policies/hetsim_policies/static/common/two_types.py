"""Shared parts of algorithms for two types of devices (cores, one type of GPU)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim_policies.static.common.instance import Free, Instance, list_schedule
from hetsim_policies.static.common.schedule import Schedule


def two_types(instance: Instance, planner: str) -> tuple[np.ndarray, list[int]]:
    """Times and lanes of two types, the second without lanes if there is one; ScenarioError if there are more."""
    if len(instance.types) > 2:
        names = ", ".join(kind.name for kind in instance.types)
        text = f"{planner} plans for at most two types of devices; the cluster has {len(instance.types)}: {names}"
        raise ScenarioError(Problem(text, key="policy.scheduler"))
    missing = 2 - len(instance.types)
    times = np.pad(instance.time, ((0, 0), (0, missing)), constant_values=np.inf)
    return times, instance.counts + [0] * missing


def by_speed_up(times: np.ndarray) -> np.ndarray:
    """Tasks by descending ratio of the first time to the second, ties in the order of the table."""
    p, q = times[:, 0], times[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((q == 0) & (p == 0), 1.0, p / q)
    return np.argsort(-ratio, kind="stable")


def by_sides(
    times: np.ndarray,
    counts: Sequence[int],
    second: np.ndarray,
    ready: np.ndarray | None = None,
    since: Free = None,
) -> Schedule:
    """Longest processing time first on each of two types: tasks where `second` is true run on the second."""
    schedule = Schedule.empty(len(times))
    for kind, chosen in enumerate((~second, second)):
        need = times[:, kind]
        tasks = np.flatnonzero(chosen)
        order = tasks[np.argsort(-need[tasks], kind="stable")].tolist()
        if not order:
            continue
        starts, lanes = list_schedule(need, counts[kind], order, ready, since[kind] if since else None)
        for task in order:
            schedule.put(task, float(starts[task]), float(need[task]), kind, int(lanes[task]))
    return schedule
