"""Assignment programs: relaxed and rounded, or solved for whole tasks."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.plan import Plan
from hetsim.model.units import Seconds
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static import dual_approximation
from hetsim_policies.static.common.assignment import ROUNDING, AssignmentProgram, by_lane, by_type, ordered, times_at
from hetsim_policies.static.common.bounds import TOLERANCE
from hetsim_policies.static.common.descent import descended, improved, is_additive
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, Instance, Schedule, independent, runnable
from hetsim_policies.static.common.outcome import DescendingPlanner, finished, plan_of
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.unrelated import allowed_times, good_prices
from hetsim_policies.static.insertion import Heft, Insertion
from hetsim_policies.static.lists import graham, max_min, mct
from hetsim_policies.static.vertices import RATIO, lst
from hetsim_policies.static.vertices import roundings as vertex_roundings
from hetsim_policies.task_graphs import Graph, graph_of, topological, upward

WHOLE = 1 - 1e-6  # a task with more than this share in one place is not split


class LinearProgram(DescendingPlanner):
    """The relaxed assignment program: split over types, then rounded to whole tasks.

    Decides where and in which order, for sequential tasks with or without a task graph and arrivals.  One linear
    program (`assignment`, with the lanes (cores or GPUs) of each type as one site) gives the minimum T and fractions of
    tasks.  Each split task is assigned to one type; then every type schedules its tasks as a list, longest path to the
    end first (for independent tasks: longest task first).

    If all tasks are independent and present at the start, the optimum is a vertex.  So with K types at most K - 1 tasks
    are split, and each split task can be matched to a different type that has a share of it (Lenstra, Shmoys, Tardos,
    Approximation Algorithms for Scheduling Unrelated Parallel Machines, 1990).  A type with c lanes then has at most cT
    of work of whole tasks and one more task of length t.  So its list schedule takes at most (cT + t)/c + (1 - 1/c) t',
    where t' is the time of its last task: *the makespan is at most T plus the time of the longest task where it is
    placed*.  That is not a constant ratio, as T may be far below the longest task; `lst` excludes the pairs that are
    too long and therefore has ratio 2.  A second rounding assigns each split task to the type with its largest share;
    the shorter schedule is used, and the descent starts from both.  With a graph each task is placed whole on the type
    that has its largest share, which is at least 1/K.  Work and paths then grow by a factor of at most K, and the list
    schedule is at most K(K + 1) times the optimum (proof: `hlp`, which solves the same program).
    Reference: Lenstra, Shmoys and Tardos as above; for graphs Kedad-Sidhoum, Monna, Trystram, Scheduling Tasks with
    Precedence Constraints on Hybrid Multi-core Machines (2015).
    `Plan.bound` is T, certified by its prices, or the bound by paths and areas (`graph_bounds`) if that is larger.
    Weakness: it ignores transfers, shared data and the location of data.
    Cost: one linear program of tasks × types variables.
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "linear_program")
        (schedule, *others), bound = roundings(instance)
        return plan_of(instance, schedule, bound, descent=self.descent, others=others)


def linear_program(instance: Instance) -> tuple[Schedule, float]:
    """Return a rounded schedule and a lower bound of makespans from the first arrival."""
    schedules, bound = roundings(instance)
    return schedules[0], bound


def roundings(instance: Instance) -> tuple[list[Schedule], float]:
    """Return one or two schedules rounded from the relaxed program, and a lower bound.

    The shorter schedule is first.  The second way to round, a matching, is tried only without a task graph and if all
    tasks arrive together.
    """
    if not instance.size:
        return [Schedule.empty(0)], 0.0
    tasks, sites = instance.problem.tasks, by_type(instance)
    times, simple = times_at(instance, sites), all_at_once(instance)
    upper = span(instance, by_completion(instance))
    program = AssignmentProgram(
        times, instance.counts, upper, predecessors=tasks.predecessors, arrivals=tasks.arrival, longest=False
    )
    solution = program.relaxed()
    bound = graph_bound(instance.time, instance.counts, graph_of(tasks), tasks.arrival)
    if solution is None:  # the solver gave up: each task where it is shortest
        return [ordered(instance, sites, times.argmin(axis=1))], bound
    tried = (False, True) if simple else (False,)
    ways = [ordered(instance, sites, rounded(solution.share, matched)) for matched in tried]
    return sorted(ways, key=lambda schedule: schedule.makespan), max(bound, solution.bound)


def rounded(share: np.ndarray, matched: bool) -> np.ndarray:
    """Return the type (site) of each task from the fractions of a relaxed assignment.

    It is that of the largest fraction.  matched: divided tasks get different sites if possible (matching).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    site_of = share.argmax(axis=1)
    split = np.flatnonzero(share.max(axis=1) < WHOLE)
    if matched and len(split):
        sites = maximum_bipartite_matching(csr_array(share[split] > 1 - WHOLE), perm_type="column")
        site_of[split] = np.where(sites >= 0, sites, site_of[split])
    return np.asarray(site_of)


def all_at_once(instance: Instance) -> bool:
    """Return True if there is no task graph and all tasks arrive together."""
    tasks = instance.problem.tasks
    return not any(tasks.predecessors or ()) and (not instance.size or float(np.ptp(tasks.arrival)) == 0)


def by_completion(instance: Instance) -> Schedule:
    """Return an `mct` schedule: in graph order, or by arrival with longer tasks first."""
    tasks = instance.problem.tasks
    if any(tasks.predecessors or ()):
        order = topological(graph_of(tasks))
    else:
        order = np.lexsort((-instance.time.min(axis=1, initial=np.inf), tasks.arrival)).tolist()
    return mct(
        instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors, since=instance.free
    )


def span(instance: Instance, schedule: Schedule) -> float:
    """Makespan, counted from the first arrival."""
    return schedule.makespan - float(instance.problem.tasks.arrival.min())


Whole = Annotated[int, Field(ge=1, strict=True)]

EFFORT = 20_000_000  # maximum nodes × variables² if no limit is given
MIN_NODES = 10
MAX_ROUNDS = 5000  # maximum number of tasks for max_min, which has quadratic cost
MAX_VARIABLES = 2000


class IntegerProgram(DescendingPlanner):
    """The integer assignment program: R||Cmax of independent sequential tasks.

    Decides where and in which order.  For independent tasks that are all present at the start, the program
    (`assignment`) assigns each task to one lane (core or GPU), and a plan that the solver reports as optimal is optimal
    (to 1e-6).  Equal lanes may be renumbered, so the i-th longest task is allowed only on the first i lanes of a type.
    Pairs of task and lane whose time exceeds the best known makespan are excluded.  The solver takes no initial
    schedule, so the best of mct, max_min, linear_program, lst and (on cores and one type of GPU) dual_approximation is
    compared with its result, and the better one is the plan.
    With a graph or arrivals the plan need not be optimal: the program only chooses the type of each task, and limits
    the load of each type and the length of each path of the graph.  List scheduling by upward ranks then gives the
    order.  The bound is still valid.  Transfers and shared data are ignored.
    A search that ends at a limit returns its best plan, with `optimal: false` and `gap` in the notes and in a warning;
    `Plan.bound` is then the solver's bound.  With `node_limit` (the default) the plan is the same on every machine,
    with `time_limit` it is not; `node_limit` does not limit the work at the root of the search.  Programs of more than
    `max_variables` variables are not solved; the best other schedule, with the linear program's bound, is the result.
    Reference: the problem is that of Horowitz and Sahni, Exact and Approximate Algorithms for Scheduling Nonidentical
    Processors (1976); the search is branch and bound with cuts by HiGHS (Huangfu and Hall, Parallelizing the Dual
    Revised Simplex Method, 2018), through scipy.optimize.milp.
    Cost: exponential in the worst case; in practice up to about 100 tasks on ten lanes in seconds.

    node_limit: maximum nodes of the search tree; default: 20 million / variables² (1,400 nodes for 20 tasks on 6
        lanes), at least 10.
    time_limit: maximum seconds of search; the plan then depends on the machine.
    gap: a plan proven to be within this fraction of the optimum is good enough.
    max_variables: larger programs are not tried.
    """

    def __init__(
        self,
        node_limit: Whole | None = None,
        time_limit: Annotated[Seconds, Field(gt=0)] | None = None,
        gap: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        max_variables: Whole = MAX_VARIABLES,
        descent: bool = True,
    ):
        super().__init__(descent)
        self.node_limit = node_limit
        self.time_limit = time_limit
        self.gap = gap
        self.max_variables = max_variables

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "integer_program")
        limits = self.node_limit, self.time_limit, self.gap, self.max_variables
        plan = plan_of(instance, *integer_program(instance, *limits), descent=self.descent)
        assert plan.makespan is not None and plan.bound is not None
        gap = max(0.0, 1 - plan.bound / plan.makespan) if plan.makespan > 0 else 0.0
        plan.notes |= {"optimal": gap <= 4 * ROUNDING and plan.notes["timetable"] == "exact", "gap": gap}
        return plan


def integer_program(
    instance: Instance, node_limit: int | None = None, time_limit: float | None = None, gap: float = 0.0,
    max_variables: int = MAX_VARIABLES,
) -> tuple[Schedule, float]:  # fmt: skip
    """Return the best schedule within the limits, and a lower bound on all makespans."""
    if not instance.size:
        return Schedule.empty(0), 0.0
    relaxed, bound = linear_program(instance)
    exact, tasks = all_at_once(instance), instance.problem.tasks
    others = [relaxed, *rivals(instance)]
    if exact:
        matched, better = lst(instance.time, instance.counts, tasks.arrival)
        others, bound = [*others, matched], max(bound, better)
    best = min(others, key=lambda schedule: schedule.makespan)
    if (upper := span(instance, best)) <= bound / (1 - gap) * (1 + ROUNDING):
        return best, bound
    sites = by_lane(instance) if exact else by_type(instance)
    times = times_at(instance, sites)
    times = np.where(times <= upper * (1 + ROUNDING), times, np.inf)
    if (variables := int(np.isfinite(times).sum())) > max_variables:
        return best, bound
    if node_limit is None:
        node_limit = max(MIN_NODES, EFFORT // variables**2)
    counts = [len(site.lanes) for site in sites]
    program = AssignmentProgram(times, counts, upper, predecessors=tasks.predecessors, arrivals=tasks.arrival)
    renumbered = beyond_first(times, [site.kind for site in sites]) if exact else None
    solution = program.integral(node_limit, time_limit, gap, renumbered)
    if solution.site_of is not None:
        best = min(best, ordered(instance, sites, solution.site_of), key=lambda schedule: schedule.makespan)
    return best, max(bound, solution.bound)


def rivals(instance: Instance) -> Iterator[Schedule]:
    """Yield schedules of fast planners for the same tasks."""
    tasks, times, counts = instance.problem.tasks, instance.time, instance.counts
    yield by_completion(instance)
    if any(tasks.predecessors or ()):
        yield Heft.placed(Insertion(times, counts, graph_of(tasks), tasks.arrival))
        return
    if instance.size <= MAX_ROUNDS:
        yield max_min(times, counts, tasks.arrival)
    sides = [kind.kind == "cpu" for kind in instance.types]
    if all_at_once(instance) and sides in ([True, False], [True], [False]):
        yield by_dual_approximation(instance, sides)


def by_dual_approximation(instance: Instance, sides: Sequence[bool]) -> Schedule:
    """Return the schedule of `dual_approximation`; `sides`: True for each type of CPU."""
    nowhere = np.full(instance.size, np.inf)
    p, q = (instance.time[:, sides.index(cpu)] if cpu in sides else nowhere for cpu in (True, False))
    m, k = (instance.counts[sides.index(cpu)] if cpu in sides else 0 for cpu in (True, False))
    seed = dual_approximation.solve(p, q, m, k).schedule
    schedule = Schedule.empty(instance.size)
    begin = float(instance.problem.tasks.arrival.min())
    for task in np.argsort(seed.starts, kind="stable").tolist():
        kind = sides.index(not seed.on_gpu[task])
        at = begin + float(seed.starts[task])
        schedule.put(task, at, float(instance.time[task, kind]), kind=kind, lane=int(seed.lanes[task]))
    return schedule


def beyond_first(times: np.ndarray, kinds: Sequence[int]) -> np.ndarray:
    """Return the mask of pairs (task, core or GPU) that some optimal schedule avoids.

    Equal cores or GPUs (lanes) can be renumbered by their longest tasks, longest first.  Then the i-th longest task is
    on one of the first i lanes of its type, and the pairs with later lanes are not needed.
    """
    shortest = times.min(axis=1)
    rank = np.empty(len(times), dtype=int)
    rank[np.argsort(-shortest, kind="stable")] = np.arange(len(times))
    first: dict[int, int] = {}
    number = np.array([site - first.setdefault(kind, site) for site, kind in enumerate(kinds)])
    return np.asarray(number[None, :] > rank[:, None])


ROOM = 1 + 1e-6  # Factor by which the program may exceed a known schedule, against the solver's rounding
# Weight ε of the mean work of a lane in addition to λ: prefers optima without wasted work off the longest path
FRUGAL = 1e-3


class Hlp(PlannedScheduler):
    """Heterogeneous linear program: a relaxed program, then list scheduling.

    For sequential tasks, with or without a task graph.  Decides where and in which order, for any number Q of device
    types.  The program (`assignment`) divides each task among types and minimizes λ, the maximum of all path lengths
    and of the work per lane of each type.  Each task is placed on the type with its largest share (for two types:
    rounding at 1/2).  Then follows list scheduling on the chosen types, with the longest path to the end first.
    Reference: Kedad-Sidhoum, Monna, Trystram, Scheduling Tasks with Precedence Constraints on Hybrid Multi-Core
    Machines (2015), for two types, ratio 6; Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling
    Applications on Hybrid Multi-Core Machines (2017), for Q types and with the order by distance from the end.  Ratio
    Q(Q + 1)(1 + ε) without transfers, so 6(1 + ε) on two types.  The program minimizes λ + εW, where W is the mean work
    per lane (core or GPU).  W ≤ λ holds, so the λ of its solution is at most 1 + ε times the minimum λ, which is at
    most the minimum makespan.  Proof of the ratio: the largest share of a task is at least 1/Q.  So rounding increases
    each of the following by a factor of at most Q: the time of a task, the length of a path (counted from the arrival
    of its first task), and the work of a type.  From the task that ends last, go back to the event that allowed it to
    begin (the end of a predecessor, or its arrival), and so on.  Between that event and the start of the task every
    lane of its type is busy.  So the makespan is at most the length of this path, Qλ, plus for each of the Q types its
    work per lane, Qλ: together Q(Q + 1)λ.  The plan has a certified bound.
    Weakness: the program ignores that few tasks are ready at a time; transfers are not counted.  Cost: a program of n
    (Q + 1) variables and n + edges rows for n tasks: 0.1 s for 1,000 tasks, 0.5 s for 3,000.
    """

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, "hlp"), problem.tasks
        before = graph_of(tasks)
        schedule, bound = hlp(instance.time, instance.counts, before, ready=tasks.arrival, since=instance.free)
        return plan_of(instance, schedule, bound)


def hlp(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None, since: Free = None
) -> tuple[Schedule, float]:
    """Return an LP-based schedule, and a lower bound of makespans from first arrival."""
    share, bound = graph_linear_program(times, counts, predecessors, ready)
    rows = np.arange(len(times))
    kind = share.argmax(axis=1) if len(times) else np.empty(0, dtype=np.int64)
    chosen = np.full(times.shape, np.inf)
    chosen[rows, kind] = times[rows, kind]
    rank = upward(times[rows, kind], ways(predecessors), topological(predecessors))
    order = np.argsort(-np.asarray(rank), kind="stable").tolist()
    schedule = graham(chosen, counts, order, ready=ready, predecessors=predecessors, since=since)
    return schedule, max(bound, graph_bound(times, counts, predecessors, ready))


def graph_linear_program(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Return the share of each task on each type, and a certified makespan bound.

        Minimize λ + εW over x_jt ≥ 0 and starts s_j ≥ r_j with  Σ_t x_jt = 1,  Σ_j p_jt x_jt ≤ c_t λ,
        s_i + Σ_t p_it x_it ≤ s_j for i before j,  s_j + Σ_t p_jt x_jt ≤ λ.

    The last rows are omitted for independent tasks on single cores or GPUs, where only the tasks' own work matters.
    """
    allowed = allowed_times(times, counts)
    if not len(times):
        return allowed, 0.0
    arrivals = np.zeros(len(times)) if ready is None else np.asarray(ready, dtype=float)
    upper = Heft.placed(Insertion(allowed, counts, predecessors, arrivals)).makespan - float(arrivals.min())
    # No schedule that is as short as this one runs a task where it alone takes longer.
    allowed[allowed > upper * (1 + TOLERANCE)] = np.inf
    guess = upper * ROOM
    program = AssignmentProgram(allowed, counts, guess, predecessors=predecessors, arrivals=arrivals, frugal=FRUGAL)
    if (solution := program.relaxed()) is None:
        raise refusal("hlp: the solver found no solution; the task times differ too much")
    return solution.share, solution.bound / (1 + FRUGAL)


Part = Annotated[float, Field(ge=0, lt=1)]
Limit = Annotated[Seconds, Field(gt=0)]

SHARE = 0.011  # maximum reduced cost of a pair, in makespans over the number of lanes
FEW = 600  # number of pairs up to which only the lossless limit is used
LANES = 16  # maximum number of lanes of a program
MAX_PAIRS = 10_000  # larger programs are not tried: they take minutes to reach their first node
GUESS_ROOM = 1.01  # factor by which a solution may exceed the known schedule, as the descent may shorten it


class ColumnPricing(PlannedScheduler):
    """Column pricing: an integer program over few pairs, chosen by LP prices.

    For independent sequential tasks, on any number of device types.  Decides the device of each task.  The linear
    program of the planner `lst` gives a price w_s of each lane s (core or GPU), with sum 1, and a lower bound; the plan
    of `lst` is the first schedule, of length U.  With p_js the time of task j on lane s, the pair (j, s) has the
    reduced cost w_s p_js - min_r w_r p_jr.  No schedule shorter than U has a pair of reduced cost above U - Σ_j min_r
    w_r p_jr.  The integer program has the remaining pairs with a reduced cost of at most a fraction `SHARE` of U /
    lanes, and at least the `FEW` cheapest pairs.  It is solved to the relative gap `gap`, and a local search follows.
    With more than `LANES` lanes, `restarts` programs are solved in turn, each over the longest lanes and some random
    lanes.
    Reference: Gogos, Valouxis, Alefragis, Goulas, Voros, Housos, Scheduling Independent Tasks on Heterogeneous
    Processors Using Heuristics and Column Pricing (FGCS 60, 2016); limits on pairs and lanes, local search and restarts
    are additions of hetsim.
    Ratio 2, as the plan is never longer than that of `lst`; the certified bound is that of the linear program.
    Weakness: with arrivals, shared items or more than `MAX_PAIRS` pairs in a program, it is the plan of `lst`.
    Cost: `restarts` integer programs of at most `node_limit` nodes (HiGHS), a few seconds each for 512 tasks on 16
    lanes.  The plan is the same on every computer, unless `time_limit` ends a search: nodes do not limit the solver's
    own heuristics.

    gap: a plan within this fraction of the lower bound is good enough; a program is solved to within this fraction of
        its own bound.
    restarts: maximum number of programs if there are more than 16 lanes.
    node_limit: maximum nodes of the search tree of a program.
    time_limit: maximum seconds of all searches together; the plan then depends on the machine.
    """

    def __init__(self, gap: Part = 0.004, restarts: Whole = 12, node_limit: Whole = 100, time_limit: Limit = 60.0):
        super().__init__()
        self.gap, self.restarts, self.node_limit, self.time_limit = gap, restarts, node_limit, time_limit

    def plan(self, problem: PlanProblem) -> Plan:
        instance, arrival = independent(problem, "column_pricing"), problem.tasks.arrival
        (schedule, *others), bound = vertex_roundings(instance.time, instance.counts, arrival, instance.free)
        bound = max(bound, graph_bound(instance.time, instance.counts, [()] * instance.size, arrival))
        schedules = [schedule, descended(instance, schedule, bound, others)]
        if is_additive(instance):
            schedules.append(self._repriced(instance, schedules[1], bound))
        plans = [plan_of(instance, one, bound, RATIO, draft=True) for one in schedules]
        return finished(instance, min(plans, key=lambda plan: plan.makespan or 0.0))

    def _repriced(self, instance: Instance, schedule: Schedule, bound: float) -> Schedule:
        sites = by_lane(instance)
        times, kind = times_at(instance, sites), np.array([site.kind for site in sites])
        lane = np.searchsorted(kind, schedule.kind) + schedule.lane
        since = np.zeros(len(sites))
        if instance.free is not None:
            since = np.maximum(0.0, np.concatenate(instance.free) - float(instance.problem.tasks.arrival[0]))
        prices = good_prices(instance.time, instance.counts)[kind]
        end = time.perf_counter() + self.time_limit
        random = np.random.default_rng(0)  # restarts are part of the algorithm, not of the run's randomness
        load = loads(times, lane, since)
        for _ in range(self.restarts if len(sites) > LANES else 1):
            seconds = end - time.perf_counter()
            if load.max() <= bound * (1 + self.gap) or seconds <= 0:
                break
            chosen = np.argsort(-load, kind="stable")
            rest = random.permutation(chosen[LANES // 2 :])
            chosen = np.sort(np.append(chosen[: LANES // 2], rest[: LANES // 2]))
            trial = self._solved(times, lane, chosen, since=since, prices=prices, seconds=seconds)
            trial = improved(instance.time, instance.counts, trial, enough=bound, since=since, rounds=0)
            after = loads(times, trial, since)
            if after.max() <= load.max():
                lane, load = trial, after
        return ordered(instance, sites, lane)

    def _solved(
        self, times: np.ndarray, lane: np.ndarray, lanes: np.ndarray, since: np.ndarray, prices: np.ndarray,
        seconds: float,
    ) -> np.ndarray:  # fmt: skip
        tasks = np.flatnonzero(np.isin(lane, lanes))
        own, at = times[np.ix_(tasks, lanes)], np.searchsorted(lanes, lane[tasks])
        makespan = float(loads(times, lane, since)[lanes].max())
        keep = cheap_pairs(own, prices[lanes], since[lanes], makespan)
        keep[np.arange(len(tasks)), at] = True
        if keep.sum() > MAX_PAIRS:
            return lane
        # A lane that is occupied at first has a task more, which can run there only.
        occupied = np.where(np.eye(len(lanes), dtype=bool), since[lanes], np.inf)
        allowed = np.vstack([np.where(keep, own, np.inf), occupied])
        program = AssignmentProgram(allowed, [1] * len(lanes), makespan * GUESS_ROOM, longest=False)
        site_of = program.integral(self.node_limit, seconds, self.gap).site_of
        result = lane.copy()
        result[tasks] = lane[tasks] if site_of is None else lanes[site_of[: len(tasks)]]
        return result


def loads(times: np.ndarray, lane: np.ndarray, since: np.ndarray) -> np.ndarray:
    return since + np.bincount(lane, times[np.arange(len(lane)), lane], minlength=len(since))


def cheap_pairs(times: np.ndarray, prices: np.ndarray, since: np.ndarray, makespan: float) -> np.ndarray:
    """Mask of (task, lane) pairs with small reduced cost at the given lane prices.

    Pairs that no schedule shorter than `makespan` can use are excluded; if many remain, only the cheapest are used
    (`FEW` or more).  prices: value of a second on each lane; since: when each lane is first free (s).
    """
    worth = prices / prices.sum() if prices.sum() > 0 else np.full(len(prices), 1 / max(1, len(prices)))
    allowed = np.isfinite(times)
    cost = np.where(allowed, np.where(allowed, times, 0.0) * worth, np.inf)
    cheapest = cost.min(axis=1, keepdims=True, initial=np.inf)
    reduced = np.where(allowed, cost - cheapest, np.inf)
    slack = makespan - float(cheapest.sum()) - float(since @ worth)
    few = np.sort(reduced, axis=None)[:FEW][-1:].max(initial=0.0)
    return reduced <= min(slack * (1 + TOLERANCE), max(SHARE * makespan / len(prices), few))
