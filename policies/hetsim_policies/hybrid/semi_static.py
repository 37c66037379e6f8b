"""A plan for long, predictable tasks, and a queue for the rest, which fills gaps.

Decides when and where.  Tasks of the `static` classes are planned once, before the clock starts, by a static policy
on lanes (cores, accelerators) that are kept for them; each starts when it heads its lane, arrived and the lane idle.
All other tasks wait in the order of `rest`.  They take what is not kept; and a kept lane, with the host cores and the
memory that its tasks need, is lent to one that by estimate will have ended when the lane's next planned task arrives,
or `slack` later.  With exact estimates no planned task starts later than in the plan by more than `slack`: a lane is
lent only until the arrival of its next task plus `slack`, and what follows starts when that one ends.
"auto" plans the classes that are predictable and long: the coefficient of variation of their estimated times is at
most `cv`, their mean time at least that of all tasks, and they are tasks that planners can plan, without a graph.
Reference: the split by what is known is that of Hawk, which plans long jobs centrally and lets short ones find their
own way on the rest (Delgado, Dinu, Kermarrec, Zwaenepoel, Hawk: Hybrid Datacenter Scheduling, USENIX ATC 2015);
filling gaps by estimates is that of Mu'alem and Feitelson (2001).
Weakness: a task that overruns its estimate on a lent lane delays the plan (`margin` stretches these estimates); planned
tasks never use devices that are not kept, even idle ones; contention on shared links is not modeled.  When a lane's
device fails, what was planned there joins the rest.
Cost: the planner's; a round O(lanes of the plan), O(lanes of a node) for each placement looked at, and where the first
one is refused a pass over the nodes on which the task fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.model.cluster import Device
from hetsim.model.plan import Placement, lane_names
from hetsim.model.task import Task
from hetsim.model.tasks import Mode, Tasks
from hetsim.model.units import Seconds
from hetsim.policy import (
    Decision,
    ListScheduler,
    PlacementRule,
    PlannedScheduler,
    PlanProblem,
    Scheduler,
    Start,
    View,
    Wait,
)
from hetsim.policy.remaining import rows_of
from hetsim_policies.hybrid.common.lanes import PlanInProgress, kept_lanes
from hetsim_policies.hybrid.common.nesting import check_nested
from hetsim_policies.placements import first_fit
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.mct import Mct


class SemiStatic(Scheduler):
    """Planned classes on kept lanes, all others in a queue that fills the gaps.

    static: the classes to plan, or "auto".
    planner: a static policy for them, by name or as a mapping with its parameters; none given: mct.
    rest: the list order of the others; none given: fcfs that skips what does not fit.
    reserve: part of the lanes of each type that are kept, or "auto": the planned classes' part of all estimated work.
    slack: seconds by which lending a lane may delay its next planned task.
    cv: for "auto": greatest coefficient of variation of the estimated times of a class that is planned.
    margin: factor on estimates of the others when they are to fill a gap.
    """

    def __init__(
        self,
        static: Literal["auto"] | list[str] = "auto",
        planner: PlannedScheduler | None = None,
        rest: Scheduler | None = None,
        reserve: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = "auto",
        slack: Annotated[Seconds, Field(ge=0)] = 0.0,
        cv: Annotated[float, Field(ge=0)] = 0.5,
        margin: Annotated[float, Field(gt=0)] = 1.0,
    ):
        self.static = static
        self.planner = Mct() if planner is None else planner
        self.rest = ListScheduler(placement=first_fit, discipline="skip") if rest is None else rest
        self.reserve = reserve
        self.slack = slack
        self.cv = cv
        self.margin = margin
        self.planned: PlanInProgress | None = None
        self._down: set[int] = set()
        self._tasks: dict[int, Task] = {}
        """Waiting and running tasks."""

    # The plan -------------------------------------------------------------------------------------------------

    def check(self, problem: PlanProblem) -> None:
        check_nested(self.rest, "semi_static", "rest", lines=False)
        if self.static != "auto":
            unknown = [name for name in self.static if name not in _classes(problem.tasks)]
            if unknown:
                names = ", ".join(name for name in _classes(problem.tasks) if name) or "none: give the tasks classes"
                text = f'static names class "{unknown[0]}", which no task has; the classes are {names}'
                raise ScenarioError(Problem(text, key="policy.scheduler.static"))
        self.rest.check(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self.check(problem)
        self.rest.prepare(problem)
        tasks = problem.tasks
        rows = self._rows(problem)
        self.notes = {"planned_tasks": len(rows), "kept_lanes": 0}
        if not len(rows):
            return
        unknown = int((~np.isfinite(tasks.arrival[rows])).sum())
        if unknown:
            text = f"a plan needs every arrival before the clock starts; {unknown} tasks of static classes have none"
            raise ScenarioError(Problem(text, key="policy.scheduler.static"))
        kept = kept_lanes(problem.cluster, self._part(tasks, rows))
        others = {name: np.inf for name in lane_names(problem.cluster) if name not in kept}
        part = PlanProblem(rows_of(tasks, rows), problem.cluster, problem.random, free_at=others)
        try:
            plan = self.planner.plan(part)
        except UsageError as error:
            text = f"semi_static plans a part of the tasks, and {type(self.planner).__name__} cannot: {error}"
            raise ScenarioError(Problem(text, key="policy.scheduler.planner")) from None
        impossible = plan.problems(part.tasks, problem.cluster)
        impossible += [f"the plan uses {name}, which is not kept for it" for name in plan.queues() if name not in kept]
        if impossible:
            raise ScenarioError([Problem(text, key="policy.scheduler.planner") for text in impossible])
        self.planned = PlanInProgress(plan, rows, tasks, problem.cluster)
        self.notes = {"planned_tasks": len(rows), "kept_lanes": len(kept)}

    def _rows(self, problem: PlanProblem) -> np.ndarray:
        """Rows of the tasks to be planned; ScenarioError where they have predecessors."""
        tasks = problem.tasks
        code = np.zeros(len(tasks), dtype=int) if tasks.class_code is None else tasks.class_code
        graph = np.zeros(len(tasks), dtype=bool)
        for row, before in enumerate(tasks.predecessors or ()):
            if before:
                graph[[row, *before]] = True
        if self.static == "auto":
            chosen = [number for number in range(len(tasks.classes)) if self._suits(problem, code == number, graph)]
            return np.flatnonzero(np.isin(code, chosen))
        rows = np.flatnonzero(np.isin(code, [tasks.classes.index(name) for name in self.static]))
        if graph[rows].any():
            first = tasks.name(int(rows[graph[rows]][0]))
            count = int(graph[rows].sum())
            text = f"semi_static plans independent tasks; {count} of its static classes are in a graph ({first}, ...)"
            raise ScenarioError(Problem(text, key="policy.scheduler.static"))
        return rows

    def _suits(self, problem: PlanProblem, which: np.ndarray, graph: np.ndarray) -> bool:
        """Return True if a class is predictable, long, and of tasks that can be planned."""
        tasks, rows = problem.tasks, np.flatnonzero(which)
        if not len(rows) or graph[rows].any() or not np.isfinite(tasks.arrival[rows]).all():
            return False
        seconds, overall = fastest(tasks)[rows], float(fastest(tasks).mean())
        mean = float(seconds.mean())
        if not 0 < mean < np.inf or mean < overall or float(seconds.std()) > self.cv * mean:
            return False
        try:
            runnable(replace(problem, tasks=rows_of(tasks, rows)), "semi_static")
        except ScenarioError:
            return False
        return True

    def _part(self, tasks: Tasks, rows: np.ndarray) -> float:
        """Part of the lanes to keep."""
        if self.reserve != "auto":
            return self.reserve
        seconds = fastest(tasks)
        total = float(seconds.sum())
        return float(seconds[rows].sum()) / total if 0 < total < np.inf else 1.0

    # Hooks ----------------------------------------------------------------------------------------------------

    def begin(self, view: View) -> None:
        self._view = view if self.planned is None else GapView(view, self.planned, self.slack, self.margin)
        self.rest.begin(self._view)

    def _number(self, task: Task) -> int | None:
        return None if self.planned is None else self.planned.number.get(task.index)

    def ready(self, task: Task) -> None:
        number = self._number(task)
        if number is None or self.planned is None:
            self.rest.ready(task)
        elif self._impossible(number, task):
            self.planned.end(number)
            del self.planned.number[task.index]
            self.rest.ready(task)
        elif number in self.planned.ends:
            self.planned.back(number)
        else:
            self.planned.waiting[number] = None
        self._tasks[task.index] = task

    def _impossible(self, number: int, task: Task) -> bool:
        """Return True if its lane is down, or admission forbids its mode."""
        assert self.planned is not None
        if task.allowed is not None and self.planned.steps[number].mode not in task.allowed:
            return True
        devices = [self.planned.lanes[name].device for name in self.planned.steps[number].devices]
        cluster = self._view.cluster
        return any(d.index in self._down or cluster.nodes[d.node].cpu.index in self._down for d in devices)

    def finished(self, task: Task) -> None:
        number = self._number(task)
        del self._tasks[task.index]
        if number is None or self.planned is None:
            self.rest.finished(task)
        else:
            self.planned.end(number)

    def gone(self, task: Task) -> None:
        number = self._number(task)
        self._tasks.pop(task.index, None)
        if number is None or self.planned is None:
            self.rest.gone(task)
        else:
            self.planned.end(number)

    def device(self, device: Device, up: bool) -> None:
        (self._down.discard if up else self._down.add)(device.index)
        if not up and self.planned is not None:
            node = self._view.cluster.nodes[device.node]
            for other in (node.cpu, *node.accelerators) if device is node.cpu else (device,):
                self._give_up(self.planned, other)
        self.rest.device(device, up)

    def _give_up(self, planned: PlanInProgress, device: Device) -> None:
        """Tasks planned on a device that failed join the tasks that are not planned."""
        for number in planned.forget(device):
            row = planned.steps[number].task
            del planned.number[row]
            if row in self._tasks:
                self.rest.ready(self._tasks[row])

    def announced(self, device: Device, start: float, end: float) -> None:
        self.rest.announced(device, start, end)

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        if self.planned is not None:
            yield from self._start_planned(self.planned, view)
        for decision in self.rest.schedule(self._view):
            if not isinstance(decision, Wait):
                yield decision
                continue
            # The other scheduler does not wait for everything that may happen: planned tasks come and end.
            yield Wait(until=decision.until) if self.planned is not None else decision
            return

    def _start_planned(self, planned: PlanInProgress, view: View) -> Iterator[Decision]:
        for number in planned.next_steps():
            task = self._tasks[planned.steps[number].task]
            placement = planned.placement(number, view.cluster)
            if view.fits(placement.mode, placement) and view.holds(task, placement):
                planned.begin(number, view.now + view.duration(task, placement))
                yield Start(task, placement)


class GapView:
    """The view of the other tasks: fits only what does not delay the plan."""

    def __init__(self, view: View, planned: PlanInProgress, slack: float, margin: float):
        self._view = view
        self._planned = planned
        self._slack = slack
        self._margin = margin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def now(self) -> float:
        return self._view.now

    def end(self, task: Task, placement: Placement) -> float:
        """When a task that starts there now will have ended, cautiously."""
        return self._view.now + self._margin * self._view.duration(task, placement)

    def leaves(self, task: Task, placement: Placement) -> bool:
        return self._planned.leaves(placement, self.end(task, placement), self._slack, self._view)

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            placement = rule(task, self)
            return placement if placement is None or self.leaves(task, placement) else None
        for position in task.modes_by_speed():
            mode = task.modes[position]
            placement = self._view.first(mode)
            if placement is None:
                continue
            if self.leaves(task, placement) and self._view.holds(task, placement):
                return placement
            end = self.end(task, placement)
            nodes = self._view.nodes.fitting(mode)
            placement = self._planned.spared(mode, end, self._slack, nodes, self._view)
            if placement is not None and self._view.holds(task, placement):
                return placement
        return None

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None and tasks and not all(self.leaves(task, placement) for task in tasks):
            return False
        return self._view.fits(mode, placement, tasks)


def fastest(tasks: Tasks) -> np.ndarray:
    """The estimated time of every task in its fastest mode."""
    return tasks.computing(tasks.estimate).min(axis=1)


def _classes(tasks: Tasks) -> list[str]:
    """The classes of which there is a task."""
    if tasks.class_code is None:
        return tasks.classes[:1] if len(tasks) else []
    return [tasks.classes[number] for number in np.unique(tasks.class_code)]
