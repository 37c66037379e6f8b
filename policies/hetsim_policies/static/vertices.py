"""Linear programs whose vertices split few tasks, which are then made whole."""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, Schedule, independent, longest_first, refuse_graph
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.parallel import PoolLanes, WideTasks, wide, wide_graham, wide_plan
from hetsim_policies.static.common.unrelated import SAMPLE, Split, allowed_times, good_prices, priced, split

RATIO = 2.0
TOLERANCE = 1e-9  # Relative slack of comparisons with a deadline, so that rounding never makes one impossible
WHOLE = 1 - 1e-6  # a share above this is a whole task, up to the solver's rounding


class Lst(DescendingPlanner):
    """Lenstra, Shmoys, Tardos: a vertex of the deadline linear program, rounded.

    For independent sequential tasks on any types of device.  Decides the device of each task.  For a deadline T, a task
    may use only the types on which it takes at most T; the program splits tasks over these types so that no type has
    more than T of work per lane (`unrelated`).  The minimum feasible T is found by bisection.  A vertex splits few
    tasks; each split task is matched to a different type that has a share of it and is placed there whole.  The lanes
    (cores or GPUs) of each type are then scheduled by longest processing time first.  Two other roundings of the vertex
    (`roundings`) are tried too.  Local search (`descent`) improves all three schedules, and the shortest one is used.
    Reference: Lenstra, Shmoys, Tardos, Approximation Algorithms for Scheduling Unrelated Parallel Machines (1990).
    Their program has a variable for each task and lane.  Lanes of one type are equal, so a variable for each task and
    type is enough here: 3,000 instead of 24,000 variables for 1,000 tasks on 24 lanes of three types.
    Ratio 2 without arrivals.  The minimum T is at most the minimum makespan, since an optimal schedule satisfies the
    program.  A type of c lanes has at most cT of work of tasks that are not split, and at most one split task, of time
    e.  Let s be the time of the task that ends last.  Until it starts every lane of the type is busy, so it ends by (cT
    + e - s)/c + s = T + e/c + s(1 - 1/c).  This is at most 2T, as no task is longer than T where it runs.  With one
    lane per type this is the proof of Lenstra, Shmoys and Tardos.  The program changes only where T passes the time of
    a task, so bisection over these times finds the minimum T exactly; it is the certified bound of the plan.  With
    arrivals the bound is valid, but not the ratio.  Transfers are not counted.  Weakness: the program considers areas,
    not lanes; on two types `dual_approximation` is better and faster.
    Cost: a linear program of n times types variables for each of at most log2(n types) deadlines, often one.
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance, arrival = independent(problem, "lst"), problem.tasks.arrival
        (schedule, *others), bound = roundings(instance.time, instance.counts, arrival, instance.free)
        bound = max(bound, graph_bound(instance.time, instance.counts, [()] * instance.size, arrival))
        return plan_of(instance, schedule, bound, RATIO, descent=self.descent, others=others)


def lst(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None
) -> tuple[Schedule, float]:
    """Return the Lenstra-Shmoys-Tardos schedule, and a lower bound on the makespan."""
    schedules, bound = roundings(times, counts, ready, since)
    return schedules[0], bound


def roundings(
    times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None
) -> tuple[list[Schedule], float]:
    """Return schedules from several roundings of the linear program, and its bound.

    The schedules are sorted by makespan; no makespan is below the bound.  Longer ones are included since local search
    often makes them the shortest. ready, since: earliest start by task, and by core or GPU.
    """
    bound, share = min_deadline(times, counts)
    largest = share.argmax(axis=1) if len(share) else np.empty(0, dtype=np.int64)
    kinds = {kind.tobytes(): kind for kind in (rounded(share), spread(share, times, counts), largest)}
    schedules = [longest_first(times, counts, kind, ready=ready, since=since) for kind in kinds.values()]
    return sorted(schedules, key=lambda schedule: schedule.makespan), bound


def min_deadline(times: np.ndarray, counts: Sequence[int]) -> tuple[float, np.ndarray]:
    """Return the minimum deadline T for which the linear program is feasible.

    The program divides the tasks among the types.  The work on each type must fit in T, and a task that takes longer
    than T on a type must not use this type.  Also returns a vertex of the program for this T.
    """
    allowed = allowed_times(times, counts)
    if not len(times):
        return 0.0, allowed
    longest = float(allowed.min(axis=1).max())
    if len(times) <= SAMPLE:
        unpruned = split(allowed, counts)
        low = max(longest, float(priced(allowed, counts, unpruned.prices).sum()))
        work = (np.where(unpruned.share > 0, allowed, 0.0) * unpruned.share).sum(axis=0)
        fits = (work <= np.asarray(counts) * low * (1 + TOLERANCE)).all()
        if fits and not (unpruned.share[allowed > low * (1 + TOLERANCE)] > 0).any():
            return low, unpruned.share  # it is as good without the pairs that are too long
    else:
        low = max(longest, float(priced(allowed, counts, good_prices(allowed, counts)).sum()))
    later = np.unique(allowed[np.isfinite(allowed) & (allowed > low)])
    levels = [low, *later.tolist()]

    def at(level: float) -> tuple[Split, float]:
        pruned = np.where(allowed <= level * (1 + TOLERANCE), allowed, np.inf)
        solution = split(pruned, counts)
        return solution, float(priced(pruned, counts, solution.prices).sum())

    deadline, solution = first_solvable(levels, at)
    return deadline, solution.share


def first_solvable(levels: Sequence[float], at: Callable[[float], tuple[Split, float]]) -> tuple[float, Split]:
    """Return the minimum length with a feasible program and its vertex, by bisection.

    levels: ascending lengths; the program changes only at these lengths, and the last one must be feasible.  at:
        function that returns the vertex of a level's program, and the area that it needs per lane (core or GPU).
    """
    first, last = 0, len(levels) - 1
    middle = 0  # mostly possible
    best: tuple[Split, float] | None = None
    while first < last:
        solution, area = at(levels[middle])
        if area <= levels[middle + 1] * (1 + TOLERANCE):
            last, best = middle, (solution, area)
        else:
            first = middle + 1
        middle = (first + last) // 2
    solution, area = best or at(levels[last])
    return max(levels[last], area), solution


def spread(share: np.ndarray, times: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return each task's type; split tasks, longest first, go where they end first.

    No ratio is proven, but the local search that follows has less to improve than after `rounded`.
    """
    kind = share.argmax(axis=1) if len(share) else np.empty(0, dtype=np.int64)
    lanes = np.maximum(np.asarray(counts, dtype=float), 1.0)
    parts = np.flatnonzero(share.max(axis=1, initial=0.0) < WHOLE)
    whole_tasks = np.setdiff1d(np.arange(len(share)), parts)
    work = np.bincount(kind[whole_tasks], times[whole_tasks, kind[whole_tasks]], minlength=len(lanes))
    able = np.where(np.asarray(counts) > 0, times, np.inf)
    for task in parts[np.argsort(-able[parts].min(axis=1, initial=np.inf), kind="stable")].tolist():
        kind[task] = int(((work + able[task]) / lanes).argmin())
        work[kind[task]] += able[task, kind[task]]
    return kind


def rounded(share: np.ndarray) -> np.ndarray:
    """Return one device type for each task, given the fractions of tasks by type.

    Tasks split over types are matched to these types, at most one to each, so that the sum of fractions is highest.
    """
    kind = share.argmax(axis=1) if len(share) else np.empty(0, dtype=np.int64)
    if len(parts := np.flatnonzero(share.max(axis=1, initial=0.0) < WHOLE)):
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import min_weight_full_bipartite_matching

        shares = share[parts]
        # Not full only if the solver returned no vertex: then the largest shares are as good as any.
        with contextlib.suppress(ValueError):
            rows, kinds = min_weight_full_bipartite_matching(csr_array(shares * (shares > 1 - WHOLE)), maximize=True)
            kind[parts[rows]] = kinds
    return kind


# Multiples of the smallest guess whose allotments are listed too: narrower, with less waste
WIDER = (1.0, 1.1, 1.25, 1.5)


class MoldableDual(PlannedScheduler):
    """Dual approximation for parallel tasks: minimum work within a guess, then list.

    For rigid and moldable tasks, without a task graph.  Decides the type, the lanes (cores or GPUs), their number and
    the start of each task.  For a guess λ, a task uses on each type its option of minimum area (width × seconds) among
    those of at most λ seconds, and a linear program divides the areas over the types.  A guess λ without a solution is
    below every makespan: a schedule of length λ would use options of at most λ seconds, whose areas are at least the
    minimum areas, and would give a solution.  The smallest guess with a solution is the certified bound and the start
    of the schedule:  a vertex splits fewer tasks than there are types; each split task is placed whole on a different
    type, and the tasks of each type are list-scheduled, longest or widest first.
    Reference: the guesses are those of Hochbaum and Shmoys, Using Dual Approximation Algorithms for Scheduling Problems
    (1987); the choice of minimum areas followed by a list schedule is that of Turek, Wolf, Yu, Approximate Algorithms
    for Scheduling Parallelizable Tasks (1992); the vertex is that of `lst`.  Ratio: 2 on one type of device, 3 on
    several, if the lanes of each type are on one node or no option is wider than one lane.  Proof: let A ≤ mλ be the
    area of whole tasks that the program gives a type of m lanes; no task is longer than λ.  Suppose that the list of
    the type ended after 2λ, and let t < λ.  The tasks that run at t + λ started after t, so none of them fitted at t
    next to the tasks running then.  Hence t and t + λ together have more than m busy lanes, for every t < λ, and A >
    mλ: a contradiction.  So the list ends by 2λ.  A split task is placed after it and ends by 3λ.
    Weakness: gangs that must find their lanes on one of several nodes have no ratio; arrivals are respected without a
    ratio.  Cost: O(log n) linear programs of n × types variables, and some lists of O(n lanes).
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    def plan(self, problem: PlanProblem) -> Plan:
        refuse_graph(problem, "moldable_dual")
        instance = wide(problem, "moldable_dual")
        if not instance.size:
            return wide_plan(instance, [], 0.0)
        guess, solution = min_guess(instance)
        tried = [one for wider in WIDER for one in schedules(instance, guess * wider, solution if wider == 1 else None)]
        return wide_plan(instance, min(tried, key=lambda lanes: lanes.makespan).placed, guess, guaranteed(instance))


def guaranteed(instance: WideTasks) -> float | None:
    """Return the proven ratio of makespan to optimum for these tasks; None: none is."""
    together = float(np.ptp(instance.problem.tasks.arrival)) == 0 and not instance.problem.in_mid_run
    fits = all(instance.gathered) or int(instance.width.max()) == 1
    able = np.isfinite(instance.min_areas()).any(axis=0).sum()
    return (2.0 if able < 2 else 3.0) if together and fits else None


def min_guess(instance: WideTasks) -> tuple[float, Split]:
    """Return the minimum makespan for which the linear program of `split` is feasible.

    Also returns a vertex of the program.  The program changes only at durations of options (tasks in a mode), so only
    these durations are tried, by bisection.
    """
    counts = instance.counts

    def at(longest: float) -> tuple[Split, float]:
        areas = instance.min_areas(longest * (1 + TOLERANCE))
        solution = split(areas, counts, divisible=True)
        return solution, float(priced(areas, counts, solution.prices).sum())

    low = max(float(instance.fastest().max()), at(np.inf)[1])
    return first_solvable([low, *np.unique(instance.seconds[instance.seconds > low]).tolist()], at)


def schedules(instance: WideTasks, guess: float, found: Split | None) -> list[PoolLanes]:
    """Return list schedules for a guessed makespan; found: LP solution (None: solve)."""
    areas = instance.min_areas(guess * (1 + 1e-9))
    share = (found or split(areas, instance.counts, divisible=True)).share
    made = []
    for kind in (rounded(share), spread(share, areas, instance.counts)):
        kind = np.where(np.isfinite(areas[np.arange(instance.size), kind]), kind, areas.argmin(axis=1))
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
    right = (instance.kind == kind[instance.task]) & (instance.seconds <= guess * (1 + 1e-9))
    area = np.where(right, instance.area, np.inf)
    return np.lexsort((area, instance.task))[instance.first[:-1]]


def _list(instance: WideTasks, chosen: np.ndarray, order: np.ndarray, late: Sequence[int]) -> PoolLanes:
    allowed = np.zeros(len(instance.task), dtype=bool)
    allowed[chosen] = True
    lanes = wide_graham(instance, allowed, order.tolist())
    for task in late:
        option = int(chosen[task])
        start, pools = lanes.of_option(option, float(instance.problem.tasks.arrival[task]))
        lanes.put(option, pools, start)
    return lanes
