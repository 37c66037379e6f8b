"""The relaxed assignment program: split over types, then rounded to whole tasks.

Decides where and in which order, for sequential tasks with or without a task graph and arrivals.  One linear program
(`assignment`, with the lanes of each type as one site) gives the least T; split tasks are made whole; then every type
takes its tasks by list scheduling, the longest way to the end first (of independent tasks the longest).

Independent tasks that are all there at once.  The optimum is a vertex, so with K types at most K - 1 tasks are split,
and they can be matched to types of theirs, each to another one (Lenstra, Shmoys, Tardos, Approximation Algorithms for
Scheduling Unrelated Parallel Machines, 1990).  So a type with c lanes has at most cT of whole tasks and one task of
length t more, and a list schedule takes at most (cT + t)/c + (1 - 1/c) t', t' being its last task: *the makespan is at
most T plus the longest task as placed*.  This is no constant ratio, as T may be far below the longest task; `lst`
leaves out the pairs that are too long and has ratio 2 for it.  Each split task where most of it is, is tried too, and
the shorter schedule is taken; the descent starts from both.
With a graph each task goes whole to the type that has most of it, at least 1/K, so that work and paths grow by K at
most and the list schedule is within K(K + 1) times the optimum, as for `hlp`, which solves the same program.
Reference: Lenstra, Shmoys and Tardos as above; for graphs Kedad-Sidhoum, Monna, Trystram, Scheduling Tasks with
Precedence Constraints on Hybrid Multi-core Machines (2015).
`Plan.bound` is T, certified by its prices, or that of paths and areas (`graph_bounds`) if it is larger.
Weakness: transfers and shared data are not seen, and data stay on no device in particular.
Cost: one linear program of tasks × types variables.
"""

from __future__ import annotations

import numpy as np

from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.assignment import AssignmentProgram, by_type, ordered, times_at
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import DescendingPlanner, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.mct import mct
from hetsim_policies.task_graphs import graph_of, topological

WHOLE = 1 - 1e-6
"""A task with more than this of it in one place is not split."""


class LinearProgram(DescendingPlanner):
    """Relaxed assignment, rounded, then list scheduling; graphs included."""

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "linear_program")
        (schedule, *others), bound = roundings(instance)
        return plan_of(instance, schedule, bound, descent=self.descent, others=others)


def linear_program(instance: Instance) -> tuple[Schedule, float]:
    """The schedule, and a lower bound on all makespans, from the first arrival."""
    schedules, bound = roundings(instance)
    return schedules[0], bound


def roundings(instance: Instance) -> tuple[list[Schedule], float]:
    """The same with the schedules of both ways of rounding, the shorter first."""
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
    """A site for every task: where most of it is, or one matched to it alone."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    site_of = share.argmax(axis=1)
    split = np.flatnonzero(share.max(axis=1) < WHOLE)
    if matched and len(split):
        sites = maximum_bipartite_matching(csr_array(share[split] > 1 - WHOLE), perm_type="column")
        site_of[split] = np.where(sites >= 0, sites, site_of[split])
    return np.asarray(site_of)


def all_at_once(instance: Instance) -> bool:
    """No graph, and no task comes later than another."""
    tasks = instance.problem.tasks
    return not any(tasks.predecessors or ()) and (not instance.size or float(np.ptp(tasks.arrival)) == 0)


def by_completion(instance: Instance) -> Schedule:
    """The schedule of `mct`: long tasks first, or in order of graph and arrival."""
    tasks = instance.problem.tasks
    if any(tasks.predecessors or ()):
        order = topological(graph_of(tasks))
    else:
        order = np.lexsort((-instance.time.min(axis=1, initial=np.inf), tasks.arrival)).tolist()
    return mct(
        instance.time, instance.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors, since=instance.free
    )


def span(instance: Instance, schedule: Schedule) -> float:
    """Makespan from the first arrival."""
    return schedule.makespan - float(instance.problem.tasks.arrival.min())
