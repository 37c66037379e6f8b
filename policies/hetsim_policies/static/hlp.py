"""Heterogeneous linear program: a relaxed program, then list scheduling.

Decides where and in which order, for task graphs on any number Q of device types.  The program (`assignment`)
splits tasks over types so that neither a path nor the work of a type is longer than λ, and minimizes λ; each task
goes to the type that has the largest share of it (for two types: rounding at 1/2).  Then list scheduling, with the
longest way to the end first, on the types as chosen.
Reference: Kedad-Sidhoum, Monna, Trystram, Scheduling Tasks with Precedence Constraints on Hybrid Multi-Core Machines
(2015), for two types, ratio 6; Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling Applications
on Hybrid Multi-Core Machines (2017), for Q types and with the order by distance from the end.
Ratio Q(Q + 1)(1 + ε), so 6 on two types but for a small ε, without transfers.  The program minimizes λ + εW with W
the mean work of a lane; W ≤ λ, so its λ is at most 1 + ε times the least one, which is at most the least makespan.
The largest share of a task is at least 1/Q, so rounding makes its time, the length of a path with the arrival before
it, and the work of a type at most Q times what they are in the program.  Go back from the task that ends last to
whatever let it begin, predecessor or arrival: between that and its start every lane of its type is busy.  So the
makespan is at most one such path, Qλ, and for each type its work per lane, Qλ: in all Q(Q + 1)λ.  The plan carries a
certified bound.
Weakness: what the ratio allows; the program does not know that few tasks are ready at a time; transfers are not
counted.
Cost: the program, n (Q + 1) variables and n + edges rows: 0.1 s for 1,000 tasks, 0.5 s for 3,000.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.assignment import AssignmentProgram
from hetsim_policies.static.common.bounds import TOLERANCE
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.common.unrelated import allowed_times
from hetsim_policies.static.graham import graham
from hetsim_policies.static.insertion import Heft, Insertion
from hetsim_policies.task_graphs import Graph, graph_of, topological, upward

KEY = "policy.scheduler"
ROOM = 1 + 1e-6
"""By so much the program may be longer than a schedule that is there, lest the solver's rounding make it impossible."""
FRUGAL = 1e-3
"""Weight ε of the mean work of a lane besides λ: of many optima, those that do not waste work off the longest path."""


class Hlp(PlannedScheduler):
    """HLP, for sequential tasks with or without a task graph."""

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, "hlp"), problem.tasks
        before = graph_of(tasks)
        schedule, bound = hlp(instance.time, instance.counts, before, ready=tasks.arrival, since=instance.free)
        return plan_of(instance, schedule, bound)


def hlp(
    times: np.ndarray,
    counts: Sequence[int],
    predecessors: Graph,
    ready: np.ndarray | None = None,
    since: Free = None,
) -> tuple[Schedule, float]:
    """The schedule, and a lower bound on the makespan from the first arrival."""
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
    """The share of each task on each type, and a certified bound on the makespan.

        Minimize λ + εW over x_jt ≥ 0 and starts s_j ≥ r_j with  Σ_t x_jt = 1,  Σ_j p_jt x_jt ≤ c_t λ,
        s_i + Σ_t p_it x_it ≤ s_j for i before j,  s_j + Σ_t p_jt x_jt ≤ λ.

    The last rows are left out for independent tasks on single lanes, where the tasks' own work is all that counts.
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
    solution = program.relaxed()
    if solution is None:
        raise ScenarioError(Problem("hlp: the solver found no solution; its times are too far apart", key=KEY))
    return solution.share, solution.bound / (1 + FRUGAL)
