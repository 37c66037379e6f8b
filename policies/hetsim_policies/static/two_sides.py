"""Independent tasks on two types of device, by the ratio of their times."""

import heapq
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.instance import Instance, Schedule, independent, longest_first
from hetsim_policies.static.common.outcome import DescendingPlanner, PlainPlanner, plan_of


def two_types(instance: Instance, planner: str) -> tuple[np.ndarray, list[int]]:
    """Return times and device counts of two types; the second may have no devices.

    Raise ScenarioError if there are more types.
    """
    if len(instance.types) > 2:
        names = ", ".join(kind.name for kind in instance.types)
        count = len(instance.types)
        raise refusal(f"{planner} plans for at most two types of devices; the cluster has {count}: {names}")
    missing = 2 - len(instance.types)
    return np.pad(instance.time, ((0, 0), (0, missing)), constant_values=np.inf), instance.counts + [0] * missing


def by_speed_up(times: np.ndarray) -> np.ndarray:
    """Return tasks by descending ratio of first to second time, then in table order."""
    p, q = times[:, 0], times[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((q == 0) & (p == 0), 1.0, p / q)
    return np.argsort(-ratio, kind="stable")


TOLERANCE = 1e-12  # a sum may exceed a limit by this fraction: a guess is then accepted, and a schedule shows it


class GreedyDual(DescendingPlanner):
    """Greedy dual approximation: for a guess λ, fill accelerators by speedup.

    For independent sequential tasks on at most two types of device.  Decides the device of each task.  Let a task take
    p on one of m cores and q on one of k GPUs.  For a guess λ, a task with p > λ must run on a GPU, and a task with q >
    λ on a CPU.  The other tasks are assigned to the GPUs in descending order of p/q while the GPUs' work is less than
    kλ, the remaining tasks to the CPUs.  The guess is refused if a task is longer than λ on both types, if the tasks
    that must run on GPUs have more than kλ of work, or if the tasks assigned to CPUs have more than mλ.  Bisection
    finds the smallest accepted guess; each side is scheduled by longest processing time first.
    Reference: Kedad-Sidhoum, Monna, Mounié, Trystram, Scheduling Independent Tasks on Multi-Cores with GPU Accelerators
    (2013), where it precedes the better algorithm.
    Ratio 2 (1 + precision) without arrivals.  A refusal is right: the GPUs have at least kλ of work, and their tasks
    are those that save most CPU work per GPU second (a fractional knapsack), so no schedule of length λ has less CPU
    work.  An acceptance is right: let s be the time of the task that ends last on its side, and L the work of that
    side; the task ends by (L - s)/devices + s.  On the CPUs L is at most mλ, on the GPUs at most kλ plus the last task,
    and no task is longer than λ where it runs.  So the task ends by 2λ.  With arrivals each lane waits for its next
    task to arrive, and there is no ratio.  The plan has the largest rejected guess as a certified lower bound.
    Weakness: `dual_approximation` has a better ratio; transfers are not counted.
    Cost: O(n log n) once, and for each of about log(1 / precision) guesses O(n), plus O(n log n) if it is accepted.

    precision: bisection stops when the smallest accepted guess is within this fraction of the largest rejected one.
    """

    def __init__(self, precision: Annotated[float, Field(gt=0, le=1)] = 1e-3, descent: bool = True):
        super().__init__(descent)
        self.precision = precision

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "greedy_dual")
        times, counts = two_types(instance, "greedy_dual")
        schedule, bound = greedy_dual(times, counts, problem.tasks.arrival, self.precision)
        return plan_of(instance, schedule, bound, 2 * (1 + self.precision), descent=self.descent)


def greedy_dual(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, precision: float = 1e-3
) -> tuple[Schedule, float]:
    """Return the best schedule over guesses of the makespan, and a lower bound on it.

    `times[j, 0]` is the time of task j on one of the `counts[0]` cores or GPUs of one type, `times[j, 1]` that on the
    other type; a time is inf if the task cannot run there.
    """
    allowed = np.where(np.asarray(counts) > 0, times, np.inf)
    shortest = allowed.min(axis=1, initial=np.inf)
    low = float(max(shortest.max(initial=0.0), shortest.sum() / max(1, sum(counts))))  # no schedule is shorter
    best = longest_first(times, counts, allowed[:, 1] < allowed[:, 0], ready)
    if not low:
        return best, low
    order = by_speed_up(allowed)
    high = max(low, best.makespan)
    guess = low
    while True:
        if (side := fill(allowed, counts, order, guess)) is None:
            low = max(low, guess)
        else:
            high = min(high, guess)
            schedule = longest_first(times, counts, side, ready)
            if schedule.makespan < best.makespan:
                best = schedule
                high = max(low, min(high, best.makespan))
        guess = (low * high) ** 0.5
        if high <= low * (1 + precision) or not low < guess < high:  # or they are neighboring numbers
            return best, low


def fill(times: np.ndarray, counts: Sequence[int], order: np.ndarray, guess: float) -> np.ndarray | None:
    """Mask of tasks on the second type, for a makespan `guess`; None: it is too short."""
    limit = guess * (1 + TOLERANCE)
    p, q = times[:, 0], times[:, 1]
    second = p > limit
    if (second & (q > limit)).any():
        return None
    if (work := float(q[second].sum())) > counts[1] * limit:
        return None
    free = order[(p[order] <= limit) & (q[order] <= limit)]
    before = work + np.concatenate([[0.0], np.cumsum(q[free])[:-1]]) if len(free) else np.empty(0)
    second[free[before < counts[1] * guess]] = True
    return None if float(p[~second].sum()) > counts[0] * limit else second


class BalancedMakespan(DescendingPlanner):
    """Balanced makespan: favorite types first, then tasks of the overloaded type move.

    For independent sequential tasks on at most two types of device.  Decides the device of each task.  Tasks are first
    assigned to the type on which they are shorter.  Then tasks of the type with more work per device are moved to the
    other type, in ascending order of the ratio of the two times, until the work is balanced; a task that would be
    longer than a limit on the other type is not moved.  All limits that could give a shorter schedule are tried.  The
    partitions just before and just after balance are scheduled by longest processing time first on each type, and the
    shortest schedule is used.
    Reference: Canon, Marchal, Vivien, Low-Cost Approximation Algorithms for Scheduling Independent Tasks on Hybrid
    Platforms (2017).  The original algorithm moves a dominating task back after each move; here the limit prevents such
    moves, which makes the proof short.  Ratio 2 without arrivals.  Let λ be the minimum makespan, and take as the limit
    the largest time of a task that is at most λ.  Then no task is longer than λ where it runs, and this order of moves
    balances the work with the smallest total if tasks longer than the limit are not moved (a fractional knapsack).
    Consider the partition just before balance: the receiving type has at most λ of work per lane; the other type has at
    most λ per lane plus the task that moves next, which is no longer than λ.  As for `greedy_dual`, longest processing
    time first ends by 2λ.  With arrivals there is no ratio.  Transfers are not counted.  Weakness: it tries few
    partitions, all of them along one order.  Cost: O(n log n), and O(n) for each limit between a lower bound and the
    first schedule found, at most n; then O(n log n) for each partition with less work per lane than the best makespan.
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "balanced_makespan")
        times, counts = two_types(instance, "balanced_makespan")
        return plan_of(instance, balanced_makespan(times, counts, problem.tasks.arrival), descent=self.descent)


def balanced_makespan(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None) -> Schedule:
    """Return the best schedule found on two types of `counts[0]`, `counts[1]` devices."""
    allowed = np.where(np.asarray(counts) > 0, times, np.inf)
    on_second = allowed[:, 1] < allowed[:, 0]
    best = longest_first(times, counts, on_second, ready)
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
    partitions: list[tuple[float, float, int]] = []  # (work per lane, limit, tasks moved)
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
        schedule = longest_first(times, counts, second, ready)
        if schedule.makespan < best.makespan:
            best = schedule
    return best


class Clb2c(PlainPlanner):
    """Centralized load balancing for two device types (CLB2C).

    For independent sequential tasks on at most two types of device.  Decides the device of each task.  Tasks are sorted
    by the ratio of their two times.  In each step, the first and the last task of this order are tried on the least
    loaded device of the type that each prefers; the task that would complete first is placed.
    Reference: Cheriere and Saule, Considerations on Distributed Load Balancing for Fully Heterogeneous Machines: Two
    Particular Cases (2015).  Without arrivals, the makespan is at most 2 times the minimum if no task is longer than
    the minimum on either type.  Weakness: without that condition no ratio holds, as the last tasks may be long ones on
    their worse type; transfers are not counted.  Cost: O(n log n).
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "clb2c")
        times, counts = two_types(instance, "clb2c")
        return plan_of(instance, clb2c(times, counts, problem.tasks.arrival), descent=self.descent)


def clb2c(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None) -> Schedule:
    """Schedule by CLB2C (centralized load balancing) on devices of two types.

    Tasks are sorted by speedup; next is the first or the last one, whichever ends earlier (at ties on the second type).
    """
    schedule = Schedule.empty(len(times))
    free = [[(0.0, lane) for lane in range(count)] for count in counts]  # heaps
    order = by_speed_up(np.where(np.asarray(counts) > 0, times, np.inf)).tolist()
    arrivals = [0.0] * len(times) if ready is None else ready.tolist()
    head, tail = 0, len(order) - 1  # most for the second type, most for the first

    def completion(task: int, kind: int) -> float:
        return max(free[kind][0][0], arrivals[task]) + float(times[task, kind]) if free[kind] else np.inf

    while head <= tail:
        kind = int(completion(order[head], 1) <= completion(order[tail], 0))
        task = order[head] if kind else order[tail]
        head, tail = (head + 1, tail) if kind else (head, tail - 1)
        since, lane = free[kind][0]
        end = schedule.put(task, max(since, arrivals[task]), float(times[task, kind]), kind=kind, lane=lane)
        heapq.heapreplace(free[kind], (end, lane))
    return schedule
