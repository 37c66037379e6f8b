"""Dual approximation for parallel tasks: minimum work within a guess, then list.

Decides on how many lanes of which type each task runs, where and when, for independent rigid and moldable tasks on
cores and gangs of GPUs.  For a guess λ, a task takes on each type the option of least area (width × seconds) of at most
λ seconds, and a linear program deals the areas out to the types.  A guess without a solution is below every makespan: a
schedule of length λ uses options of at most λ, of no less area, and solves the program.  The least guess that has one
is the certified bound and the start of the schedule: a vertex splits fewer tasks than there are types, each goes whole
to a type that takes no other, and the tasks of every type are listed, the longest or the widest first.
Reference: the guesses are those of Hochbaum and Shmoys, Using Dual Approximation Algorithms for Scheduling Problems
(1987); allotments of least area and the list after them are those of Turek, Wolf, Yu, Approximate Algorithms for
Scheduling Parallelizable Tasks (1992); the vertex is that of Lenstra, Shmoys, Tardos (1990).
Ratio: 2 on one type of device, 3 on several, where the lanes of each type stand on one node or no option is wider than
one lane.  Proof: let A be the area of what the program gives a type of m lanes whole, A ≤ mλ, and no task longer than
λ.  If its list ended after 2λ, at no moment t < λ could what started after t have been put next to what ran at t, so t
and t + λ together keep more than m lanes busy, and A > mλ.  A task that was split comes after that: 3λ.
Weakness: gangs that must find their lanes on one of several nodes carry no ratio; arrivals are kept to, no more.
Cost: O(log n) linear programs of n × types variables, and some lists of O(n lanes).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.instance import refuse_graph
from hetsim_policies.static.common.parallel import PoolLanes, WideTasks, wide, wide_graham, wide_plan
from hetsim_policies.static.common.unrelated import Split, priced, split
from hetsim_policies.static.lst import WHOLE, rounded, spread

WIDER = (1.0, 1.1, 1.25, 1.5)
"""Multiples of the least guess for which allotments are listed too: they are narrower and waste less."""


class MoldableDual(PlannedScheduler):
    """Dual approximation for rigid and moldable tasks, without a task graph."""

    def plan(self, problem: PlanProblem) -> Plan:
        refuse_graph(problem, "moldable_dual")
        instance = wide(problem, "moldable_dual")
        if not instance.size:
            return wide_plan(instance, [], 0.0)
        guess, solution = min_guess(instance)
        tried = [one for wider in WIDER for one in schedules(instance, guess * wider, solution if wider == 1 else None)]
        best = min(tried, key=lambda lanes: lanes.makespan)
        return wide_plan(instance, best.placed, guess, guaranteed(instance))


def guaranteed(instance: WideTasks) -> float | None:
    """The ratio that is proven for the instance; None: none."""
    together = float(np.ptp(instance.problem.tasks.arrival)) == 0 and not instance.problem.in_mid_run
    fits = all(instance.gathered) or int(instance.width.max()) == 1
    able = np.isfinite(instance.min_areas()).any(axis=0).sum()
    return (2.0 if able < 2 else 3.0) if together and fits else None


def min_guess(instance: WideTasks) -> tuple[float, Split]:
    """The least makespan with a solvable program, and a vertex of that program.

    Between two lengths of options the program is the same, so guesses are such lengths, halved.
    """
    counts = instance.counts

    def at(longest: float) -> tuple[Split, float]:
        areas = instance.min_areas(longest * (1 + 1e-9))
        solution = split(areas, counts, divisible=True)
        return solution, float(priced(areas, counts, solution.prices).sum())

    low = max(float(instance.fastest().max()), at(np.inf)[1])
    levels = [low, *np.unique(instance.seconds[instance.seconds > low]).tolist()]
    first, last = 0, len(levels) - 1  # the last is possible: nothing is left out there, and `low` has room for all
    middle = 0  # mostly possible
    best: tuple[Split, float] | None = None
    while first < last:
        solution, area = at(levels[middle])
        if area <= levels[middle + 1] * (1 + 1e-9):
            last, best = middle, (solution, area)
        else:
            first = middle + 1
        middle = (first + last) // 2
    solution, area = best or at(levels[last])
    return max(levels[last], area), solution


def schedules(instance: WideTasks, guess: float, found: Split | None) -> list[PoolLanes]:
    """Lists of a guess's allotments, dealt out by a vertex (None: computed here)."""
    areas = instance.min_areas(guess * (1 + 1e-9))
    share = (found or split(areas, instance.counts, divisible=True)).share
    made = []
    for kind in (rounded(share), spread(share, areas, instance.counts)):
        usable = np.isfinite(areas[np.arange(instance.size), kind])
        kind = np.where(usable, kind, areas.argmin(axis=1))
        chosen = _options(instance, kind, guess)
        width, seconds = instance.width[chosen], instance.seconds[chosen]
        late = np.flatnonzero(share.max(axis=1) < WHOLE)  # what was split comes last, as the proof has it
        for keys in ((-width, -seconds), (-seconds, -width)):
            order = np.lexsort(keys)
            made.append(_list(instance, chosen, order, ()))
            if len(late):
                made.append(_list(instance, chosen, order[~np.isin(order, late)], late.tolist()))
    return made


def _options(instance: WideTasks, kind: np.ndarray, guess: float) -> np.ndarray:
    """Each task's option of minimum area on its type within the guess; ties: first."""
    right = (instance.kind == kind[instance.task]) & (instance.seconds <= guess * (1 + 1e-9))
    area = np.where(right, instance.area, np.inf)
    order = np.lexsort((area, instance.task))
    return order[instance.first[:-1]]


def _list(instance: WideTasks, chosen: np.ndarray, order: np.ndarray, late: Sequence[int]) -> PoolLanes:
    """The chosen options in list order; no task begins before its arrival."""
    allowed = np.zeros(len(instance.task), dtype=bool)
    allowed[chosen] = True
    lanes = wide_graham(instance, allowed, order.tolist())
    for task in late:
        option = int(chosen[task])
        ready = float(instance.problem.tasks.arrival[task])
        start, pool = lanes.earliest(instance.pools_of[option], int(instance.width[option]), ready)
        lanes.put(option, pool, start)
    return lanes
