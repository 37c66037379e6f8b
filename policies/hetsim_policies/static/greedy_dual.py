"""Greedy dual approximation: for a guess λ, fill accelerators by speed-up.

Decides where, for two types of devices (CPU times p on m cores, GPU times q on k GPUs).  For a guess λ, a task with
p > λ must run on a GPU and one with q > λ on a CPU; the others go to the GPUs in descending order of p/q while the
GPUs' work is less than kλ, then to the CPUs.  The answer is NO if a task is longer than λ on both, if the tasks that
must run on GPUs need more than kλ there, or if those on CPUs need more than mλ.  Longest processing time first
makes a schedule of each side, bisection finds the least guess that is accepted.
Reference: Kedad-Sidhoum, Monna, Mounié, Trystram, Scheduling Independent Tasks on Multi-Cores with GPU Accelerators
(2013), where it precedes the better algorithm.
Ratio 2 (1 + precision) without arrivals.  NO is right: the GPUs hold at least kλ of work, chosen so that a second
there saves as much CPU work as it can (a fractional knapsack), hence no schedule of length λ has less CPU work.
YES is right: with s the task that ends last on its side and L the work of the side, s ends by (L - s)/lanes + s;
on the CPUs L is at most mλ, on the GPUs at most kλ plus the last task, and no task there is longer than λ: at most
2λ.  With arrivals the schedule waits for each task in its turn and there is no ratio.
The plan carries the largest rejected guess as a certified lower bound.  Weakness: up to half of what a better
program gains (see `dual_approximation`); transfers are not counted.
Cost: O(n log n) once, and for each of about log(1 / precision) guesses O(n), plus O(n log n) if it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.instance import independent
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.common.two_types import by_sides, by_speed_up, two_types

TOLERANCE = 1e-12
"""Sums that exceed a limit by less than this part do not: towards YES, which a schedule then shows."""


class GreedyDual(DescendingPlanner):
    """Greedy dual approximation of independent tasks on at most two device types.

    precision: bisection stops when the least accepted guess is within this part of the largest rejected one.
    """

    def __init__(self, precision: Annotated[float, Field(gt=0, le=1)] = 1e-3, descent: bool = True):
        super().__init__(descent)
        self.precision = precision

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "greedy_dual")
        times, counts = two_types(instance, "greedy_dual")
        arrival = problem.tasks.arrival
        schedule, bound = greedy_dual(times, counts, arrival, self.precision)
        return plan_of(instance, schedule, bound, 2 * (1 + self.precision), descent=self.descent)


def greedy_dual(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, precision: float = 1e-3
) -> tuple[Schedule, float]:
    """The best schedule over all guesses, and a lower bound on the makespan.

    `times[j, 0]` on the `counts[0]` lanes of one type, `times[j, 1]` on the `counts[1]` of the other, inf: cannot.
    """
    allowed = np.where(np.asarray(counts) > 0, times, np.inf)
    shortest = allowed.min(axis=1, initial=np.inf)
    low = float(max(shortest.max(initial=0.0), shortest.sum() / max(1, sum(counts))))  # no schedule is shorter
    best = by_sides(times, counts, allowed[:, 1] < allowed[:, 0], ready)
    if not low:
        return best, low
    order = by_speed_up(allowed)
    high = max(low, best.makespan)
    guess = low
    while True:
        side = fill(allowed, counts, order, guess)
        if side is None:
            low = max(low, guess)
        else:
            high = min(high, guess)
            schedule = by_sides(times, counts, side, ready)
            if schedule.makespan < best.makespan:
                best = schedule
                high = max(low, min(high, best.makespan))
        guess = (low * high) ** 0.5
        if high <= low * (1 + precision) or not low < guess < high:  # or they are neighboring numbers
            return best, low


def fill(times: np.ndarray, counts: Sequence[int], order: np.ndarray, guess: float) -> np.ndarray | None:
    """The tasks of the second type with none longer than the guess; None: refuted."""
    limit = guess * (1 + TOLERANCE)
    p, q = times[:, 0], times[:, 1]
    second = p > limit
    if (second & (q > limit)).any():
        return None
    work = float(q[second].sum())
    if work > counts[1] * limit:
        return None
    free = order[(p[order] <= limit) & (q[order] <= limit)]
    before = work + np.concatenate([[0.0], np.cumsum(q[free])[:-1]]) if len(free) else np.empty(0)
    second[free[before < counts[1] * guess]] = True
    return None if float(p[~second].sum()) > counts[0] * limit else second
