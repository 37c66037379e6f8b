"""Balanced makespan: favorite types first, then the overloaded type gives tasks.

Decides where, for two types of devices.  Tasks start on the type on which they are shorter.  From the type with more
work a lane they move to the other in the order of what that costs (the ratio of their two times), until the work is
balanced; tasks longer than a limit on the other type stay.  Every limit that can matter is tried, and of the
partitions just before and just after balance the one with the shortest schedule is kept, with longest processing
time first on either side.
Reference: Canon, Marchal, Vivien, Low-Cost Approximation Algorithms for Scheduling Independent Tasks on Hybrid
Platforms (2017).  Theirs looks for a task that dominates after each move and moves it back; here the limit does
that, which makes the proof short.
Ratio 2 without arrivals.  Let λ be the least makespan and the limit the longest of the times up to λ.  No task is
then longer than λ where it runs, and moving in that order is the best fractional way to balance the work if what is
longer than the limit must stay.  So just before balance the lanes of the type that receives have at most λ of work
each, those of the other at most λ each and the one task that moves next, no longer than λ.  As for `greedy_dual`,
longest processing time first ends by 2λ.  With arrivals there is no ratio.  Transfers are not counted.
Weakness: it tries few partitions, all of them along one order.
Cost: O(n log n), and O(n) for each limit between a lower bound and the first schedule found, at most n; then
O(n log n) for each partition with less work per lane than the best makespan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.instance import independent
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.common.two_types import by_sides, by_speed_up, two_types


class BalancedMakespan(DescendingPlanner):
    """Balanced makespan, for independent sequential tasks on at most two device types."""

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "balanced_makespan")
        times, counts = two_types(instance, "balanced_makespan")
        schedule = balanced_makespan(times, counts, problem.tasks.arrival)
        return plan_of(instance, schedule, descent=self.descent)


def balanced_makespan(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None) -> Schedule:
    """The best schedule on `counts[0]` and `counts[1]` lanes of two types."""
    allowed = np.where(np.asarray(counts) > 0, times, np.inf)
    on_second = allowed[:, 1] < allowed[:, 0]
    best = by_sides(times, counts, on_second, ready)
    work = [float(allowed[~on_second, 0].sum()), float(allowed[on_second, 1].sum())]
    heavy = int(work[1] * counts[0] > work[0] * counts[1])
    light = 1 - heavy
    if not counts[light]:
        return best
    order = by_speed_up(allowed)
    order = order[::-1] if heavy else order
    movers = order[(on_second[order] == bool(heavy)) & np.isfinite(allowed[order, light])]
    shortest = allowed.min(axis=1, initial=np.inf)
    low = float(max(shortest.max(initial=0.0), shortest.sum() / sum(counts)))
    limits = np.unique(allowed[movers, light])
    limits = np.concatenate([[low], limits[(limits > low) & (limits <= best.makespan)]])
    partitions: list[tuple[float, float, int]] = []
    """(work a lane, limit, tasks moved)"""
    for limit in limits.tolist():
        able = movers[allowed[movers, light] <= limit]
        kept = (work[heavy] - np.cumsum(allowed[able, heavy])) / counts[heavy]
        taken = (work[light] + np.cumsum(allowed[able, light])) / counts[light]
        before = int(np.searchsorted(taken - kept, 0.0))  # this number of moves leaves the heavy side the heavier
        moves = [moved for moved in (before, before + 1) if 0 < moved <= len(able)]
        partitions += [(float(max(kept[n - 1], taken[n - 1])), limit, n) for n in moves]
    for share, limit, moved in sorted(partitions):
        if share >= best.makespan:
            break
        second = on_second.copy()
        second[movers[allowed[movers, light] <= limit][:moved]] = bool(light)
        schedule = by_sides(times, counts, second, ready)
        if schedule.makespan < best.makespan:
            best = schedule
    return best
