"""Priorities: tasks in a given order, each in the first interval without conflict.

Decides where and when.  `by: deadline` takes the earliest deadline first (those without last), `demand` the longest
task first (by its time on its fastest device), `importance` the highest priority first, then the greatest weight.
Ties go by arrival, then as in the table; in a task graph a task is next once its predecessors have been placed.  It
goes where it ends first, into a gap between tasks placed before if one is long enough, and these never move: what comes
first is served first, and no later task can delay it.
Reference: Liu and Layland, Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment (1973), for
deadlines; Graham, Bounds on Multiprocessing Timing Anomalies (1969), for the longest first; Coffman (ed.), Computer
and Job-Shop Scheduling Theory (1976), for both.
On one lane, when all arrive together, the order by deadline has the least greatest lateness (Jackson's rule, 1955);
the longest first is at most 4/3 - 1/(3m) times the least makespan on m equal lanes.  On unlike lanes neither holds.
Deadlines that the plan will miss do not stop it: its notes tell how many there are, and by how much at most.
Weakness: it sees one task at a time; a lane is kept for a task that cannot start yet; transfers are not counted.
Cost: O(n lanes), vectorized over the lanes, and a look at the gaps of lanes that have one long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hetsim.model.plan import Plan
from hetsim.model.tasks import Tasks
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.insertion import Insertion
from hetsim_policies.task_graphs import Graph, topological

Criterion = Literal["deadline", "demand", "importance"]


class Prioritized(PlannedScheduler):
    """Prioritized placement without conflict, for sequential tasks, graphs included.

    by: what goes first; the earliest `deadline`, the greatest `demand` of time, or the highest `importance`.
    """

    def __init__(self, by: Criterion = "deadline"):
        super().__init__()
        if by not in ("deadline", "demand", "importance"):
            raise ValueError(f"by is deadline, demand or importance, not {by!r}")
        self.by = by

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, "prioritized"), problem.tasks
        order = ranking(tasks, instance.time, self.by)
        schedule = prioritized(
            instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors
        )
        plan = plan_of(instance, schedule)
        plan.notes |= missed(schedule, tasks)
        return plan


def missed(schedule: Schedule, tasks: Tasks) -> dict[str, float]:
    """The number of missed deadlines, and the maximum lateness; {} without any."""
    if tasks.deadline is None or np.isnan(tasks.deadline).all():
        return {}
    # A request with stages ends with its last one, and counts once.
    ends = slice(len(tasks)) if tasks.staged is None else tasks.staged.last
    finish = schedule.finish[ends]
    late = finish - tasks.deadline[ends]
    late = late[late > 1e-9 * np.abs(finish)]  # NaN, no deadline, is not
    return {"deadlines_missed": len(late), "deadline_missed_by": float(late.max(initial=0.0))}


def ranking(tasks: Tasks, times: np.ndarray, by: Criterion) -> list[int]:
    """Tasks in the order in which they are placed, each after its predecessors."""
    blank = np.zeros(len(tasks))
    if by == "deadline":
        deadline = blank if tasks.deadline is None else tasks.deadline
        key = np.where(np.isnan(deadline), np.inf, deadline)
        order = np.lexsort((tasks.arrival, key))
    elif by == "demand":
        order = np.lexsort((tasks.arrival, -times.min(axis=1, initial=np.inf)))
    else:
        priority = blank if tasks.priority is None else tasks.priority
        weight = blank if tasks.weight is None else tasks.weight
        order = np.lexsort((tasks.arrival, -weight, -priority))
    return order.tolist() if tasks.predecessors is None else _respecting(order, tasks.predecessors)


def _respecting(order: np.ndarray, predecessors: Graph) -> list[int]:
    """Next is the first task of the order with all predecessors placed."""
    topological(predecessors)  # refuses circles by the table's own rows
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    ranked = topological([position[list(predecessors[task])].tolist() for task in order.tolist()])
    return order[ranked].tolist()


def prioritized(
    times: np.ndarray,
    counts: Sequence[int],
    order: Sequence[int],
    ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
) -> Schedule:
    """Each task of the order where it ends first; ties go to the first type and lane."""
    placed = Insertion(times, counts, predecessors or [()] * len(times), ready)
    for task in order:
        begin, needs = placed.offer(task)
        placed.place(task, int((begin + needs).argmin()), begin, needs)
    return placed.schedule
