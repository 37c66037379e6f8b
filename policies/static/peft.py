"""Predict earliest finish time: each task where it and the shortest way from there to the end finish first.

Decides where and in which order, for task graphs.  The optimistic cost of a task on a lane is the longest of the
shortest ways from there to the end: the most, over the tasks that wait for it, of the least, over their lanes, of
their time, their own optimistic cost, and the mean time to move the data unless they stay where they are.  Of the tasks
with all predecessors placed the one with the highest mean optimistic cost is next (the longest of those with the same,
as all independent tasks are), and goes to the lane on which its finish plus its optimistic cost is least, into a gap if
one is long enough.
Reference: Arabnejad, Barbosa, List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost Table (2014).
No ratio is proven.  What moving data costs is counted as in `heft`.  Lanes of one host share their data here, so
nothing moves between them; without any transfers the optimistic cost is the same on every lane, and only the order
differs from that of `heft`.
Weakness: the table knows of no lane that is busy, so on graphs that are wider than the cluster it looks ahead to
lanes that others will have taken.
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
from policies.task_graphs import Graph, Ways, topological


class Peft(InsertionPlanner):
    """PEFT, for sequential tasks with or without a task graph.

    insertion: may a task go into a gap before tasks that were placed earlier?
    overlap: do data move while the lane still works on the task before, as in the paper, or, as when the plan is
        followed, once it is free?
    """

    name = "peft"

    def placed(self, *given: Any) -> Schedule:
        return peft(*given)


def peft(
    times: np.ndarray,
    counts: Sequence[int],
    predecessors: Graph,
    ready: np.ndarray | None = None,
    traffic: Traffic | None = None,
    insertion: bool = True,
    overlap: bool = True,
    since: Free = None,
) -> Schedule:
    """PEFT on the `counts[t]` lanes of each type; ties go to the first type and lane."""
    lanes = Insertion(times, counts, predecessors, ready, traffic, insertion, overlap, since)
    need, before = needs(times, counts, traffic), ways(predecessors, traffic)
    ahead = optimistic_costs(need, before)
    keys = np.stack([-need.mean(ahead), -need.mean()], axis=1).tolist()
    for task in by_key(keys, before):
        begin, cost = lanes.offer(task)
        lanes.place(task, int((begin + cost + ahead[task, need.place]).argmin()), begin, cost)
    return lanes.schedule


def optimistic_costs(need: Needs, before: Ways) -> np.ndarray:
    """The table: by task and place, the least that must come after it if every task had the lanes to itself."""
    ahead = np.zeros(need.seconds.shape)
    for task in reversed(topological([tuple(earlier) for earlier in before])):
        here = np.where(need.lanes > 0, need.seconds[task] + ahead[task], np.inf)
        best = here.min(initial=np.inf)
        for earlier, seconds in before[task].items():
            np.maximum(ahead[earlier], np.minimum(here, best + seconds), out=ahead[earlier])
    return ahead
