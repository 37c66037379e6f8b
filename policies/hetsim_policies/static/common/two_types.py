"""Shared parts of algorithms for two types of devices (cores, one type of GPU)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Plan
from hetsim_policies.static.common.flow_shop import ordered
from hetsim_policies.static.common.instance import Free, Instance, list_schedule
from hetsim_policies.static.common.outcome import planned
from hetsim_policies.static.common.schedule import Schedule


def two_types(instance: Instance, planner: str) -> tuple[np.ndarray, list[int]]:
    """Times and lanes of two types, the second possibly without lanes.

    ScenarioError if there are more.
    """
    if len(instance.types) > 2:
        names = ", ".join(kind.name for kind in instance.types)
        text = f"{planner} plans for at most two types of devices; the cluster has {len(instance.types)}: {names}"
        raise ScenarioError(Problem(text, key="policy.scheduler"))
    missing = 2 - len(instance.types)
    times = np.pad(instance.time, ((0, 0), (0, missing)), constant_values=np.inf)
    return times, instance.counts + [0] * missing


def by_speed_up(times: np.ndarray) -> np.ndarray:
    """Tasks by descending ratio of the first time to the second, ties in table order."""
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
    """Longest first on each of two types; tasks where `second` is true on the second."""
    schedule = Schedule.empty(len(times))
    for kind, chosen in enumerate((~second, second)):
        need = times[:, kind]
        tasks = np.flatnonzero(chosen)
        order = tasks[np.argsort(-need[tasks], kind="stable")].tolist()
        if not order:
            continue
        starts, lanes = list_schedule(need, counts[kind], order, ready=ready, since=since[kind] if since else None)
        for task in order:
            schedule.put(task, float(starts[task]), float(need[task]), kind=kind, lane=int(lanes[task]))
    return schedule


# The rest of a run on two types of devices, some lanes of which are busy at first, by an algorithm that knows of none.
#
# What still runs is given to the algorithm as a task that can run on its own side alone.  The assignment that comes out
# is kept, with lanes of a side renamed so that each running task comes first on the lane on which it runs; where two of
# those came to share a lane, the tasks of the side are listed again, longest first.  The shorter of both is taken.
# A schedule of the rest is one of these tasks too, so a lower bound that the algorithm proves holds; no ratio does.
# Weakness: the algorithm takes all tasks for there at once.


class Sides(Protocol):
    """Which tasks run on the second side, and on which lane of their side."""

    @property
    def on_gpu(self) -> np.ndarray: ...

    @property
    def lanes(self) -> np.ndarray: ...


class Solved(Protocol):
    """Such an assignment, and a lower bound on every makespan."""

    @property
    def schedule(self) -> Sides: ...

    @property
    def bound(self) -> float: ...


def rest_of_two_types(
    instance: Instance,
    p: np.ndarray,
    q: np.ndarray,
    kinds: Sequence[int | None],
    solve: Callable[[np.ndarray, np.ndarray], Solved],
) -> Plan:
    """The plan of what is left, with times p and q on the two sides of types `kinds`.

    A type that is None does not exist.  The makespan is that of running and remaining tasks.
    """
    problem = instance.problem
    assert instance.free is not None
    since = [np.empty(0) if kind is None else instance.free[kind] for kind in kinds]
    busy = [np.flatnonzero(times > problem.now) for times in since]
    until = [times[lanes] - problem.now for times, lanes in zip(since, busy, strict=True)]
    nowhere = [np.full(len(times), np.inf) for times in until]
    needs = np.concatenate([p, until[0], nowhere[1]]), np.concatenate([q, nowhere[0], until[1]])
    solution = solve(*needs)
    placed: list[tuple[float, int, int, int]] = []
    makespan = max(float(times.max(initial=0.0)) for times in until)
    size, first = instance.size, instance.size
    for side, (need, kind) in enumerate(zip(needs, kinds, strict=True)):
        if kind is None:
            continue
        tasks = np.flatnonzero(solution.schedule.on_gpu[:size] == bool(side))
        given = need, tasks, since[side], problem.tasks.arrival
        lanes = _renamed(solution.schedule.lanes, tasks, busy[side], first=first, count=len(since[side]))
        ways = [_spread(*given)] + ([] if lanes is None else [_spread(*given, lanes)])
        starts, chosen, end = min(ways, key=lambda way: way[2])
        placed += [(float(starts[task]), task, kind, int(chosen[task])) for task in tasks.tolist()]
        makespan = max(makespan, end - problem.now)
        first += len(busy[side])
    plan = planned(instance, ordered(instance, [entry[1:] for entry in sorted(placed)]))
    plan.makespan = max(makespan, plan.makespan or 0.0)  # a running task may end last
    if not instance.pipelined:
        plan.bound = min(solution.bound, plan.makespan)
        if placed and plan.bound > 0 and plan.notes["timetable"] == "exact":
            plan.notes["ratio_certified"] = plan.makespan / plan.bound
    return plan


def _renamed(lanes: np.ndarray, tasks: np.ndarray, busy: np.ndarray, first: int, count: int) -> np.ndarray | None:
    """Lanes of one side's tasks, renamed so that running tasks keep their lanes.

    Running tasks are the rows from `first` on.  None if two of them share a lane.
    """
    names = lanes[first : first + len(busy)]
    if len(np.unique(names)) < len(names):
        return None
    name = np.full(count, -1)
    name[names] = busy
    name[name < 0] = np.setdiff1d(np.arange(count), busy)
    renamed = np.full(len(lanes), -1)
    renamed[tasks] = name[lanes[tasks]]
    return renamed


def _spread(
    need: np.ndarray, tasks: np.ndarray, since: np.ndarray, arrival: np.ndarray, lanes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Starts, lanes and end of one side's tasks, longest first, on lanes as given."""
    order = tasks[np.argsort(-need[tasks], kind="stable")].tolist()
    if lanes is None:
        starts, lanes = list_schedule(need, len(since), order, ready=arrival, since=since)
    else:
        free, starts = since.copy(), np.full(len(need), np.nan)
        for task in order:
            starts[task] = max(free[lanes[task]], arrival[task])
            free[lanes[task]] = starts[task] + need[task]
    return starts, lanes, float((starts[tasks] + need[tasks]).max(initial=0.0))
