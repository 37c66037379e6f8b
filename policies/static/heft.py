"""Heterogeneous earliest finish time: tasks by their distance from the end, each where it finishes first.

Decides where and in which order, for task graphs.  The upward rank of a task is its mean time over the lanes that
can run it, its own transfers included, plus the most, over the tasks that wait for it, of their rank and the mean
time to move what they read of it.  In descending order of rank each task goes to the lane on which it finishes first,
into a gap between tasks placed before if one is long enough (insertion).
Reference: Topcuoglu, Hariri, Wu, Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous
Computing (2002).  No ratio is proven for graphs; the plan carries a certified lower bound (`graph_bounds`).  Without
a graph, arrivals and transfers it is longest mean time first and at most m times the least makespan on m unlike
lanes, 4/3 - 1/(3m) times on equal ones (Graham, 1969).
Transfers are those of items between the places where they are written and read, over idle links, hop by hop, and
start when the writer has finished.  What lies on a host at the start, `bytes_in`, `bytes_out`, items that no later task
reads, and stages given as durations lengthen the task that reads or writes them; what lies there at the start moves to
each device once.
Weakness: it looks one task ahead, and means over unlike devices say little; contention on links, limited memory and
copies made for other readers are not seen; a plan with `overlap` expects data that its lane will have to wait for.
Cost: O((n + edges) lanes), vectorized over the lanes, and a look at the gaps of lanes that have one long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.static.common.insertion import Insertion, InsertionPlanner
from policies.static.common.instance import Free
from policies.static.common.parallel import parallel
from policies.static.common.parallel_lists import listed, wide_heft
from policies.static.common.ranks import needs, ways
from policies.static.common.schedule import Schedule
from policies.static.common.traffic import Traffic
from policies.task_graphs import Graph, topological, upward
from sim.model.plan import Plan
from sim.policy import PlanProblem


class Heft(InsertionPlanner):
    """HEFT, for sequential and parallel tasks with or without a task graph; of parallel ones neither option is used.

    insertion: may a task go into a gap before tasks that were placed earlier?
    overlap: do data move while the lane still works on the task before, as in the paper, or, as when the plan is
        followed, once it is free?
    """

    name = "heft"

    def plan(self, problem: PlanProblem) -> Plan:
        return listed(problem, "heft", wide_heft) if parallel(problem) else super().plan(problem)

    def placed(self, *given: Any) -> Schedule:
        return heft(*given)


def heft(
    times: np.ndarray,
    counts: Sequence[int],
    predecessors: Graph,
    ready: np.ndarray | None = None,
    traffic: Traffic | None = None,
    insertion: bool = True,
    overlap: bool = True,
    since: Free = None,
) -> Schedule:
    """HEFT on the `counts[t]` lanes of each type; ties go to the first type and lane."""
    lanes = Insertion(times, counts, predecessors, ready, traffic, insertion, overlap, since)
    for task in ranking(times, counts, predecessors, traffic):
        begin, cost = lanes.offer(task)
        lanes.place(task, int((begin + cost).argmin()), begin, cost)
    return lanes.schedule


def ranking(times: np.ndarray, counts: Sequence[int], predecessors: Graph, traffic: Traffic | None = None) -> list[int]:
    """Tasks by descending upward rank, each after its predecessors."""
    order = topological(predecessors)
    rank = upward(needs(times, counts, traffic).mean(), ways(predecessors, traffic), order)
    position = {task: number for number, task in enumerate(order)}
    return sorted(order, key=lambda task: (-rank[task], position[task]))
