"""Constraint programming: types and times, optimal within limits (CP-SAT).

Decides where and in which order, for sequential tasks with or without a task graph and arrivals.  Every task is one of
several optional intervals, one a type of device; the lanes of a type run as many intervals at once as there are lanes,
successors start after predecessors, and the last end is least.  On accelerators with overlapping stages (several
streams) each lane has three engines without overlap, and as many tasks in flight as streams.
The best of the quick planners is the hint and the upper limit, their bound is a cut.  Plan and bound are never worse
than theirs.  Times are rounded down to a 10 millionth of the hint's makespan, so that what the solver proves of them
is a bound on the true optimum; `optimal` says that plan and bound are the same to 1e-5.
Items that several tasks read or write, shared links and memory are not in the program: then a tenth of the effort is
spent, plan and hint are simulated, the better one is taken, and `optimal` is false.
One worker, a fixed seed and a limit on deterministic time: the same plan on every machine.
Reference: Perron, Furnon, OR-Tools (CP-SAT); the model with optional intervals and one resource for equal lanes is that
of Laborie, Rogerie, Shaw, Vilím, IBM ILOG CP Optimizer for Scheduling (2018).
Weakness: exponential in the worst case; beyond some 100 tasks it seldom proves more than the hint's bound.
Cost: `effort` units of deterministic time, about a second each, and the quick planners.
Needs OR-tools: pip install 'hetsim[exact]'.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.flow_shop import ordered
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import finished, plan_of, planned, together
from hetsim_policies.static.common.ranks import traffic_of
from hetsim_policies.static.common.search import bound_together, seeds_of, simulated, span_of
from hetsim_policies.static.common.timing import Placed
from hetsim_policies.static.programs import beyond_first, hlp, integer_program
from hetsim_policies.task_graphs import graph_of, topological

MISSING = "constraint_program needs OR-tools: pip install 'hetsim[exact]'"
UNITS = 10_000_000
"""Units of time in the hint's makespan."""
UNPROVEN = 0.1
"""Part of the effort where the program does not hold all that the run does, so that nothing can be proven of it."""
PROVEN = 1e-5
"""A gap up to here is the rounding of times, not of the proof."""


class ConstraintProgram(PlannedScheduler):
    """Scheduling by constraint programming; exact where it says so.

    effort: units of deterministic time for the search, about a second each.
    """

    def __init__(self, effort: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 10.0):
        super().__init__()
        self.effort = effort

    def check(self, problem: PlanProblem) -> None:
        if find_spec("ortools") is None:
            raise ScenarioError(Problem(MISSING, key="policy.scheduler"))

    def plan(self, problem: PlanProblem) -> Plan:
        self.check(problem)
        instance = runnable(problem, "constraint_program")
        hint, bound = quick(instance)
        if not instance.size:
            return hint
        proven = hint.notes["timetable"] == "exact"
        solved = hint
        if not (proven and hint.bound is not None and span_of(hint) <= hint.bound * (1 + PROVEN)):
            simple = together(instance) and instance.free is None and not bound_together(instance)
            solved = (Assignment if simple else IntervalModel)(instance, hint, bound).solved(
                self.effort if proven else self.effort * UNPROVEN
            )
        shared = not (proven and solved.notes["timetable"] == "exact")
        if shared:
            solved.makespan, hint.makespan = simulated(problem, solved), simulated(problem, hint)
        best = min((hint, solved), key=span_of)
        best.bound = min(max(bound, solved.bound or 0.0), span_of(best))
        gap = 1 - best.bound / span_of(best) if span_of(best) > 0 else 0.0
        best.notes |= {"optimal": gap <= PROVEN and not shared, "gap": gap}
        if "ratio_certified" in best.notes:
            best.notes["ratio_certified"] = span_of(best) / best.bound if best.bound > 0 else 1.0
        return finished(instance, best, judged=shared)


def quick(instance: Instance) -> tuple[Plan, float]:
    """The best plan of the quick planners, and the best bound that they prove."""
    if not instance.size:
        return planned(instance, [], 0.0), 0.0
    tasks = instance.problem.tasks
    before = graph_of(tasks)
    schedules = [seed.schedule for seed in seeds_of(instance, traffic_of(instance, before))]
    given = instance.time, instance.counts, before, tasks.arrival
    if bound_together(instance):
        schedule, bound = hlp(*given, instance.free)
    else:
        schedule, bound = integer_program(instance, max_variables=1)
    plans = [plan_of(instance, one, bound, draft=True) for one in (schedule, *schedules)]
    best = min(range(len(plans)), key=lambda number: span_of(plans[number]))
    improved = plan_of(instance, (schedule, *schedules)[best], bound, descent=True, draft=True)
    return improved, improved.bound or 0.0


class IntervalModel:
    """The program of one instance; times are whole units from the problem's origin."""

    def __init__(self, instance: Instance, hint: Plan, bound: float):
        from ortools.sat.python import cp_model

        self.instance, self.cp = instance, cp_model
        self.model: Any = cp_model.CpModel()
        self.problem = instance.problem
        self.unit = span_of(hint) / UNITS or 1.0
        self.origin = self.problem.origin
        self.horizon = UNITS
        self.least = int(bound / self.unit * (1 - 1e-9))
        self.span = self.model.new_int_var(min(self.least, UNITS), UNITS, "makespan")
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.place: list[dict[tuple[int, int], Any]] = []
        """For each task, whether it is on a type (lane -1) or a lane."""
        self.busy: dict[int, list[Any]] = {kind: [] for kind in range(len(instance.types))}
        self._tasks()
        self._lanes()
        self._hint(hint)
        self.model.minimize(self.span)

    def _units(self, seconds: float) -> int:
        return int(seconds / self.unit * (1 - 1e-12))

    def _tasks(self) -> None:
        model, instance = self.model, self.instance
        arrival = np.maximum(self.problem.tasks.arrival, self.problem.now) - self.origin
        for task in range(instance.size):
            start = model.new_int_var(self._units(float(arrival[task])), self.horizon, f"s{task}")
            end = model.new_int_var(0, self.horizon, f"e{task}")
            self.start.append(start)
            self.end.append(end)
            model.add(end <= self.span)
            place: dict[tuple[int, int], Any] = {}
            for kind in np.flatnonzero(np.isfinite(instance.time[task])).tolist():
                if self._overlaps(kind):
                    for lane in range(instance.counts[kind]):
                        place[kind, lane] = model.new_bool_var(f"x{task}_{kind}_{lane}")
                else:
                    place[kind, -1] = model.new_bool_var(f"x{task}_{kind}")
                    length = self._units(float(instance.alone[task, kind]))
                    self.busy[kind].append(
                        model.new_optional_interval_var(start, length, end, place[kind, -1], f"i{task}_{kind}")
                    )
            model.add_exactly_one(list(place.values()))
            self.place.append(place)
        for task, before in enumerate(graph_of(self.problem.tasks)):
            for one in dict.fromkeys(before):
                model.add(self.start[task] >= self.end[one])

    def _overlaps(self, kind: int) -> bool:
        return not self.instance.serial[kind] and bool((self.instance.up + self.instance.down)[:, kind].any())

    def _lanes(self) -> None:
        """No more tasks at once than lanes; engines and streams where stages overlap."""
        model, instance = self.model, self.instance
        for kind, count in enumerate(instance.counts):
            since = [0] * count if instance.free is None else [
                self._units(float(at) - self.origin) for at in instance.free[kind].tolist()]  # fmt: skip
            if self._overlaps(kind):
                for lane in range(count):
                    self._engines(kind, lane, since[lane])
                continue
            busy = [model.new_fixed_size_interval_var(0, until, "held") for until in since if until > 0]
            intervals = [*self.busy[kind], *busy]
            if count == 1:
                model.add_no_overlap(intervals)
            else:
                model.add_cumulative(intervals, [1] * len(intervals), count)
                if not any(since):  # all work is done within the makespan
                    work = [self._units(float(instance.alone[task, kind])) * place[kind, -1]
                            for task, place in enumerate(self.place) if (kind, -1) in place]  # fmt: skip
                    model.add(sum(work) <= count * self.span)

    def _engines(self, kind: int, lane: int, since: int) -> None:
        model, instance = self.model, self.instance
        stages: list[list[Any]] = [[], [], []]
        flights = []
        for task, place in enumerate(self.place):
            if (kind, lane) not in place:
                continue
            here, at = place[kind, lane], self.start[task]
            model.add(at >= since).only_enforce_if(here)
            begin = after = at
            for stage, part in enumerate((instance.up, instance.compute, instance.down)):
                length = self._units(float(part[task, kind]))
                if stage:
                    begin = model.new_int_var(0, self.horizon, f"b{task}_{kind}_{lane}_{stage}")
                    model.add(begin >= after).only_enforce_if(here)
                interval = model.new_optional_fixed_size_interval_var(begin, length, here, "stage")
                stages[stage].append(interval)
                after = begin + length
            model.add(self.end[task] >= after).only_enforce_if(here)
            size = model.new_int_var(0, self.horizon, f"f{task}_{kind}_{lane}")
            flights.append(model.new_optional_interval_var(at, size, self.end[task], here, "flight"))
        for one in stages:
            model.add_no_overlap(one)
        model.add_cumulative(flights, [1] * len(flights), instance.types[kind].streams)

    def _hint(self, hint: Plan) -> None:
        number = {
            name: (kind, lane) for kind, names in enumerate(self.instance.lanes) for lane, name in enumerate(names)
        }
        assert hint.timetable is not None
        for step, (start, finish) in zip(hint.steps, hint.timetable.tolist(), strict=True):
            kind, lane = number[step.devices[0]]
            self.model.add_hint(self.start[step.task], self._units(start - self.origin))
            self.model.add_hint(self.end[step.task], self._units(finish - self.origin))
            for key, value in self.place[step.task].items():
                self.model.add_hint(value, key in ((kind, lane), (kind, -1)))

    def solved(self, effort: float) -> Plan:
        """The plan of the best solution, or of the hint, with the solver's bound."""
        solver: Any = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = effort
        status = solver.solve(self.model)
        bound = max(self.least, solver.best_objective_bound) * self.unit
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            if status == self.cp.INFEASIBLE:  # nothing is as short as the hint but for the rounding
                bound = self.horizon * self.unit * (1 - PROVEN / 10)
            return Plan([], makespan=np.inf, bound=bound, notes={"timetable": "exact"})
        plan = planned(self.instance, ordered(self.instance, self._rows(solver)), bound, draft=True)
        plan.bound = max(bound, plan.bound or 0.0)
        return plan

    def _rows(self, solver: Any) -> list[Placed]:
        """Tasks by start, each on a lane of its type that is free by then."""
        instance = self.instance
        starts = [int(solver.value(one)) for one in self.start]
        ends = [int(solver.value(one)) for one in self.end]
        free = [[0] * count if instance.free is None else [self._units(float(at) - self.origin) for at in
                instance.free[kind].tolist()] for kind, count in enumerate(instance.counts)]  # fmt: skip
        rows: list[Placed] = []
        depth = {one: number for number, one in enumerate(topological(graph_of(self.problem.tasks)))}
        for task in sorted(range(instance.size), key=lambda one: (starts[one], ends[one], depth[one])):
            kind, lane = next(key for key, value in self.place[task].items() if solver.boolean_value(value))
            if lane < 0:
                lane = min(range(len(free[kind])), key=free[kind].__getitem__)
                free[kind][lane] = ends[task]
            rows.append((task, kind, lane))
        return rows


class Assignment(IntervalModel):
    """The program where only lanes matter: no lane has more work than the makespan."""

    def _tasks(self) -> None:
        instance = self.instance
        kinds = np.repeat(np.arange(len(instance.counts)), instance.counts)
        times = instance.alone[:, kinds]
        spare = beyond_first(times, kinds.tolist())
        lanes = [(kind, lane) for kind, count in enumerate(instance.counts) for lane in range(count)]
        for task in range(instance.size):
            usable = np.flatnonzero(np.isfinite(instance.time[task, kinds]) & ~spare[task]).tolist()
            place = {lanes[site]: self.model.new_bool_var(f"x{task}_{site}") for site in usable}
            self.model.add_exactly_one(list(place.values()))
            self.place.append(place)

    def _lanes(self) -> None:
        for kind, count in enumerate(self.instance.counts):
            for lane in range(count):
                here = [(task, place[kind, lane]) for task, place in enumerate(self.place) if (kind, lane) in place]
                work = [self._units(float(self.instance.alone[task, kind])) * there for task, there in here]
                self.model.add(sum(work) <= self.span)

    def _hint(self, hint: Plan) -> None:
        """Lanes of a type in the order of their longest task, as the program numbers them."""
        number = {
            name: (kind, lane) for kind, names in enumerate(self.instance.lanes) for lane, name in enumerate(names)
        }
        rank = np.argsort(-self.instance.alone.min(axis=1), kind="stable").tolist()
        on = {step.task: number[step.devices[0]] for step in hint.steps}
        renamed: dict[tuple[int, int], int] = {}
        used = [0] * len(self.instance.counts)
        for task in rank:
            kind, lane = on[task]
            if (kind, lane) not in renamed:
                renamed[kind, lane] = used[kind]
                used[kind] += 1
            for key, value in self.place[task].items():
                self.model.add_hint(value, key == (kind, renamed[kind, lane]))

    def _rows(self, solver: Any) -> list[Placed]:
        order = np.argsort(-self.instance.alone.min(axis=1), kind="stable").tolist()
        chosen = [next(key for key, value in place.items() if solver.boolean_value(value)) for place in self.place]
        return [(task, *chosen[task]) for task in order]
