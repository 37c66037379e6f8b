"""Critical path on a processor: the longest path of the graph stays on one lane, the rest goes where it finishes first.

Decides where and in which order, for task graphs.  The priority of a task is the length of the longest path through
it, with mean times over the lanes and the mean time to move data (upward plus downward rank).  The path with the
highest priority is the critical one; all its tasks go to the one lane on which they take least in sum.  Of the tasks
with all predecessors placed the one with the highest priority is next; off the critical path it goes where it finishes
first, into a gap if one is long enough.
Reference: Topcuoglu, Hariri, Wu, Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous
Computing (2002), which introduces `heft` beside it.  No ratio is proven.  What moving data costs is counted as in
`heft`.  Where no lane runs every task of the critical path, the one that runs most of them is taken, and the rest of
them go where they finish first.
Weakness: one lane for the critical path costs much where its tasks are fast on different types: on published Cholesky
and LU graphs without transfers, on 16 cores and 4 GPUs, it takes up to 3.6 times as long as `heft`.
Cost: O((n + edges) lanes), vectorized over the lanes, and a look at the gaps of lanes that have one long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.static.common.insertion import Insertion, InsertionPlanner
from policies.static.common.instance import Free
from policies.static.common.ranks import Needs, by_key, needs, ways
from policies.static.common.schedule import Schedule
from policies.static.common.traffic import Traffic
from policies.task_graphs import Graph, Ways, downward, topological, upward


class Cpop(InsertionPlanner):
    """CPOP, for sequential tasks with or without a task graph.

    insertion: may a task go into a gap before tasks that were placed earlier?
    overlap: do data move while the lane still works on the task before, as in the paper, or, as when the plan is
        followed, once it is free?
    """

    name = "cpop"

    def placed(self, *given: Any) -> Schedule:
        return cpop(*given)


def cpop(
    times: np.ndarray,
    counts: Sequence[int],
    predecessors: Graph,
    ready: np.ndarray | None = None,
    traffic: Traffic | None = None,
    insertion: bool = True,
    overlap: bool = True,
    since: Free = None,
) -> Schedule:
    """CPOP on the `counts[t]` lanes of each type; ties go to the first type and lane."""
    lanes = Insertion(times, counts, predecessors, ready, traffic, insertion, overlap, since)
    need, before = needs(times, counts, traffic), ways(predecessors, traffic)
    order, mean = topological([tuple(earlier) for earlier in before]), need.mean()
    up, down = upward(mean, before, order), downward(mean, before, order)
    path = critical_tasks(up, before)
    home = lane_of_path(need, path, since)
    critical = set(path)
    for task in by_key([-(u + d) for u, d in zip(up, down, strict=True)], before):
        begin, cost = lanes.offer(task)
        at_home = task in critical and np.isfinite(cost[home])
        lanes.place(task, home if at_home else int((begin + cost).argmin()), begin, cost)
    return lanes.schedule


def critical_tasks(up: Sequence[float], before: Ways) -> list[int]:
    """One path of greatest length, from its first task to the end; ties go to the first in the table."""
    after: list[dict[int, float]] = [{} for _ in before]
    for task, earlier in enumerate(before):
        for writer, seconds in earlier.items():
            after[writer][task] = seconds
    path = []
    heads = {task: 0.0 for task, earlier in enumerate(before) if not earlier}
    while heads:
        task = max(heads, key=lambda later: heads[later] + up[later])  # the first of the greatest
        path.append(task)
        heads = after[task]
    return path


def lane_of_path(need: Needs, path: Sequence[int], since: Free = None) -> int:
    """The lane that runs most of the tasks, of those one that takes least for them, and of those the first free."""
    seconds = need.seconds[list(path)]
    usable = np.isfinite(seconds)
    order = np.lexsort((np.where(usable, seconds, 0.0).sum(axis=0), -usable.sum(axis=0)))
    with_lanes = order[need.lanes[order] > 0]
    if not len(with_lanes):
        return 0
    lanes = np.flatnonzero(need.place == with_lanes[0])
    return int(lanes[np.concatenate(since)[lanes].argmin()] if since else lanes[0])
