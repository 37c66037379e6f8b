"""Local search on the simulated makespan, from the best plan of several planners.

Decides where, in which order and what is brought ahead.  It begins with the plans of fast planners and of dmda and
dmdas, rehearsed on the estimates, and simulates each, as it is and with prefetches (what the next task of a GPU reads
moves while the one before computes).  From the best it tries changes, each simulated by the engine with contention,
memory and prefetches: a task moves to another lane, to another place in the order between its predecessors and
successors, or both.  A change with a much longer timetable on idle links (`timing`) is not simulated.  One that ends
later than the best by more than a threshold is undone; the threshold falls to 0 while the budget is spent.
Reference: threshold accepting is that of Dueck, Scheuer, Threshold Accepting: A General Purpose Optimization
Algorithm Appearing Superior to Simulated Annealing (1990).
No ratio: the simulated makespan is never above that of any of its seeds, on the estimates.
Weakness: every evaluation is a run; it knows nothing of errors of the estimates.
The same seed gives the same plan where the budget is one of evaluations.  With `seconds` it depends on the machine,
and the plan's notes say that it is not deterministic.
Cost: a simulation an evaluation, some 10 ms for 100 tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.errors import HetsimError
from hetsim.model.plan import Plan, Step
from hetsim.model.units import Seconds
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.dynamic.dmda import Dmda
from hetsim_policies.dynamic.dmdas import Dmdas
from hetsim_policies.static.common.ahead import copies_ahead
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import finished, plan_of, planned
from hetsim_policies.static.common.search import SearchBudget, check_budget, seeds_of, simulated
from hetsim_policies.static.common.timing import Placed, timing
from hetsim_policies.static.common.traffic import traffic_of
from hetsim_policies.task_graphs import graph_of, successors

HOTTEST = 0.02
"""The threshold at the start, as a part of the best makespan."""
FALSE_HOPE = 1.02
"""A change with a timetable above this times the former one is not simulated."""
HOPES = 200
"""This number of changes in a row that are not simulated ends the search."""


class LocalSearch(PlannedScheduler):
    """Local search on the simulated makespan, for sequential tasks, graphs included.

    evaluations: plans that are simulated before it ends, seeds included.
    seconds: instead, wall-clock seconds after which it ends; two runs then need not give the same plan.
    """

    def __init__(self, evaluations: Annotated[int, Field(ge=1, le=10**9)] = 200, seconds: Seconds | None = None):
        super().__init__()
        check_budget(evaluations, seconds, "local_search")
        self.evaluations, self.seconds = evaluations, seconds

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "local_search")
        budget = SearchBudget(self.evaluations, self.seconds)
        bound = 0.0
        if not instance.pipelined:
            bound = graph_bound(instance.time, instance.counts, graph_of(problem.tasks), problem.tasks.arrival)
        search = Climb(instance, budget, problem.random or np.random.default_rng(0), bound)
        best = search.run()
        idle = planned(instance, best.rows, bound, draft=True)
        notes = idle.notes | {"seed": best.seed, "seed_makespan": search.seeded, **budget.notes}
        lower = None if idle.bound is None else min(idle.bound, best.makespan)
        if best.plan.steps != idle.steps:  # dmda may choose another mode on the same lane
            notes["timetable"] = "idle links"
        made = replace(best.plan, makespan=best.makespan, bound=lower, notes=notes, timetable=idle.timetable)
        return finished(instance, made, judged=True)


@dataclass(frozen=True)
class Found:
    """A plan with its rows in order, its simulated makespan, its original planner."""

    rows: tuple[Placed, ...]
    plan: Plan
    makespan: float
    seed: str
    ahead: bool
    """Does it bring ahead what the next task of each GPU reads?"""


class Climb:
    """One search."""

    def __init__(self, instance: Instance, budget: SearchBudget, random: np.random.Generator, bound: float):
        self.enough = bound * (1 + 1e-9) if not instance.problem.in_mid_run else 0.0
        self.instance, self.budget, self.random = instance, budget, random
        self.problem = instance.problem
        self.graph = graph_of(self.problem.tasks)
        self.after = successors(self.graph)
        self.number = {
            name: (kind, lane) for kind, names in enumerate(instance.lanes) for lane, name in enumerate(names)
        }
        self.moves_items = any(self.problem.tasks.reads or ())
        self.seeded = np.inf

    def run(self) -> Found:
        best: Found | None = None
        for seed, plan in self._seeds():
            for ahead in (None, False, True) if plan.copies else (False, True):
                candidate = self._tried(plan, seed, ahead)
                if candidate is not None and (best is None or candidate.makespan < best.makespan):
                    best = candidate
        assert best is not None  # the first seed is tried whatever the budget
        self.seeded = best.makespan
        return self._climbed(best) if self.instance.size > 1 else best

    # Seeds

    def _seeds(self) -> Iterator[tuple[str, Plan]]:
        instance, problem = self.instance, self.problem
        traffic = traffic_of(instance, self.graph)
        for seed in seeds_of(instance, traffic):
            yield seed.planner, plan_of(instance, seed.schedule, draft=True)
        for name, scheduler in (("dmda", Dmda()), ("dmdas", Dmdas())):
            try:
                plan = problem.rehearse(scheduler)
            except HetsimError:  # no engine, or a policy that cannot serve these tasks
                continue
            if len(plan.steps) == instance.size and all(step.devices[0] in self.number for step in plan.steps):
                yield name, plan

    def _tried(self, plan: Plan, seed: str, ahead: bool | None) -> Found | None:
        """A seed simulated with its own copies (None), with none, or with prefetches."""
        if ahead and not self.moves_items:
            return None
        if not self.budget.spend(1) and self.seeded < np.inf:
            return None
        rows = tuple((step.task, *self.number[step.devices[0]]) for step in plan.steps)
        if ahead is not None:
            plan = replace(plan, copies=copies_ahead(self.instance, rows) if ahead else [])
        makespan = simulated(self.problem, plan)
        self.seeded = min(self.seeded, makespan)
        return Found(rows, plan, makespan, seed, bool(plan.copies))

    # Changes

    def _climbed(self, best: Found) -> Found:
        now, hopes = best, HOPES
        idle = self._idle(best.rows)
        while hopes and self.budget.part < 1 and best.makespan > self.enough:
            rows = self._changed(list(now.rows))
            there = self._idle(rows)
            if there > FALSE_HOPE * idle:
                hopes -= 1
                continue
            if not self.budget.spend(1):
                break
            hopes = HOPES
            plan = self._plan(rows, now.ahead)
            makespan = simulated(self.problem, plan)
            threshold = HOTTEST * (1 - self.budget.part)
            if makespan <= (1 + threshold) * best.makespan:
                now, idle = Found(tuple(rows), plan, makespan, best.seed, now.ahead), there
                if makespan < best.makespan:
                    best = now
            elif now.makespan > (1 + threshold) * best.makespan:
                now, idle = best, self._idle(best.rows)
        return best

    def _idle(self, rows: Sequence[Placed]) -> float:
        """When the rows are done on idle links."""
        return float(timing(self.instance, rows).finish.max())

    def _plan(self, rows: Sequence[Placed], ahead: bool) -> Plan:
        """The rows as a plan."""
        instance = self.instance
        steps = [Step(task, int(instance.mode[task, kind]), (instance.lanes[kind][lane],)) for task, kind, lane in rows]
        return Plan(steps, copies=copies_ahead(self.instance, rows) if ahead else [])

    def _changed(self, rows: list[Placed]) -> list[Placed]:
        """The rows with one task on another lane, at another place in the order, or both."""
        place = int(self.random.integers(len(rows)))
        task, kind, lane = rows.pop(place)
        low, high = self._between(rows, task)
        to = int(self.random.integers(low, high + 1)) if self.random.random() < 0.6 else min(max(place, low), high)
        if self.random.random() < 0.7:
            kind, lane = self._lane(task)
        rows.insert(to, (task, kind, lane))
        return rows

    def _lane(self, task: int) -> tuple[int, int]:
        usable = np.flatnonzero(np.isfinite(self.instance.time[task]))
        kind = int(usable[self.random.integers(len(usable))])
        return kind, int(self.random.integers(self.instance.counts[kind]))

    def _between(self, rows: list[Placed], task: int) -> tuple[int, int]:
        """The first and the last position at which a task can stand."""
        low, high = 0, len(rows)
        before, after = dict.fromkeys(self.graph[task]), dict.fromkeys(self.after[task])
        for position, (other, _, _) in enumerate(rows):
            if other in before:
                low = position + 1
            elif other in after:
                high = min(high, position)
        return low, high
