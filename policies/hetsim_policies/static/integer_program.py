"""The integer assignment program: R||Cmax of independent sequential tasks.

Decides where and in which order.  Independent tasks that are all there at once: every lane is a site of the program of
`assignment`, and what the solver proves optimal is optimal (to 1e-6).  Equal lanes may be renumbered, so the i-th of
the tasks, longest first, is allowed on the first i lanes of a type only.  Pairs longer than the best schedule known
are left out.  The solver takes no schedule to start from, so the best of mct, max_min, linear_program, lst and (on
cores and one type of GPU) dual_approximation is compared with what it finds, and the better one is the plan.
With a graph or arrivals it is *not exact*: the program chooses a type for each task, with the load of each type and
the paths of the graph as rows, and list scheduling by upward ranks gives the order.  Its bound still holds.
Transfers and shared data are not seen.
Limits: a search that ends at one returns its best plan, with `optimal: false` and `gap` among the notes and in the
warnings of the result; `Plan.bound` is then the solver's bound.  `node_limit`, the default, and `max_variables`
give the same plan on every machine; a `time_limit` does not, and the root of the search is not cut short by nodes.
Programs of more than `max_variables` are not tried: the best of the rivals is returned with the linear bound.
Reference: the problem is that of Horowitz and Sahni, Exact and Approximate Algorithms for Scheduling Nonidentical
Processors (1976); the search is branch and bound with cuts by HiGHS (Huangfu and Hall, Parallelizing the Dual Revised
Simplex Method, 2018), through scipy.optimize.milp.
Cost: exponential in the worst case; in practice up to some 100 tasks on ten lanes in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Plan
from hetsim.model.units import Seconds
from hetsim.policy import PlanProblem
from hetsim_policies.static import dual_approximation
from hetsim_policies.static.common.assignment import ROUNDING, AssignmentProgram, by_lane, by_type, ordered, times_at
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.insertion import Heft, Insertion
from hetsim_policies.static.linear_program import all_at_once, by_completion, linear_program, span
from hetsim_policies.static.lst import lst
from hetsim_policies.static.rounds import max_min
from hetsim_policies.task_graphs import graph_of

Whole = Annotated[int, Field(ge=1, strict=True)]

EFFORT = 20_000_000
"""Nodes × variables² at most, where no limit is given."""
MIN_NODES = 10
MAX_ROUNDS = 5000
"""Above this number of tasks max_min, which has quadratic cost, is not tried."""
MAX_VARIABLES = 2000


class IntegerProgram(DescendingPlanner):
    """Assignment by MIP; exact for independent sequential tasks without arrivals.

    node_limit: nodes of the search tree at most; without one, as many as make nodes × variables²
        is 20 million (1,400 for 20 tasks on 6 lanes), and 10 at least.
    time_limit: seconds of search at most; the plan then depends on the machine.
    gap: a plan proven to be within this part of the optimum is good enough.
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
    instance: Instance,
    node_limit: int | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    max_variables: int = MAX_VARIABLES,
) -> tuple[Schedule, float]:
    """The schedule, and a lower bound on all makespans, from the first arrival."""
    if not instance.size:
        return Schedule.empty(0), 0.0
    relaxed, bound = linear_program(instance)
    exact, tasks = all_at_once(instance), instance.problem.tasks
    others = [relaxed, *rivals(instance)]
    if exact:
        matched, better = lst(instance.time, instance.counts, tasks.arrival)
        others, bound = [*others, matched], max(bound, better)
    best = min(others, key=lambda schedule: schedule.makespan)
    upper = span(instance, best)
    if upper <= bound / (1 - gap) * (1 + ROUNDING):
        return best, bound
    sites = by_lane(instance) if exact else by_type(instance)
    times = times_at(instance, sites)
    times = np.where(times <= upper * (1 + ROUNDING), times, np.inf)
    variables = int(np.isfinite(times).sum())
    if variables > max_variables:
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
    """Schedules of quick planners for the same tasks."""
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
    """Its schedule in the terms of this folder."""
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
    """Pairs that some optimum avoids: the i-th longest task beyond its i-th lanes.

    Any schedule can be renumbered so that the lanes of a type stand in the order of their longest task.
    """
    shortest = times.min(axis=1)
    rank = np.empty(len(times), dtype=int)
    rank[np.argsort(-shortest, kind="stable")] = np.arange(len(times))
    first: dict[int, int] = {}
    number = np.array([site - first.setdefault(kind, site) for site, kind in enumerate(kinds)])
    return np.asarray(number[None, :] > rank[:, None])
