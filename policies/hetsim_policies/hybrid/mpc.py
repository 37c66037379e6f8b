"""Model predictive control: periodic plans of waiting tasks, followed if better.

Decides, around a base scheduler, in which order and where the next tasks start.  Every `every` seconds, as long as
something waits, the run is forked (`View.fork`) three times: with the plan that is followed, with the base alone, and
with a new plan of the `window` tasks that have waited longest (the base starts all others, behind what the plan
starts).  What has the best mean of the objective is followed until the next time; the base among equals, then the plan
that is followed already.  Tasks that come between two plans are the base's.
Reference: receding horizon control as in Mayne, Rawlings, Rao, Scokaert, Constrained Model Predictive Control:
Stability and Optimality (2000); for scheduling, rolling horizons: Ovacik, Uzsoy, Rolling Horizon Procedures (1994).
No ratio is proven.  Known weakness: planners minimize the makespan, so that under a steady load the base is often
better and is what is followed; estimates that are wrong are believed until the next plan; a plan that is followed keeps
its order even where a step is late.
Cost: every `every` seconds the planner's, and three forks, each O(tasks that run and wait) and the base's work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from hetsim.model.cluster import Device
from hetsim.model.plan import Plan
from hetsim.model.task import WAITING, Task
from hetsim.model.tasks import Shape
from hetsim.model.units import Seconds
from hetsim.policy import (
    Counter,
    Decision,
    ListScheduler,
    PlannedScheduler,
    PlanProblem,
    Progress,
    Scheduler,
    Start,
    View,
    Wait,
)
from hetsim.policy.remaining import Resumed
from hetsim_policies.hybrid.common.inner import check_nested, default_planner, plannable
from hetsim_policies.hybrid.common.outlook import Objective, check_objective, mean_of

SLACK = 1e-9
"""Part of a mean by which another must be better: forks differ by rounding."""


@dataclass
class Change:
    """A plan to follow from now on, by rows of the whole run, or (None) the base."""

    plan: Plan | None
    problem: PlanProblem


class Guided(Scheduler):
    """A base scheduler, and a plan for some of the tasks, which goes first."""

    def __init__(self, base: ListScheduler):
        self.base = base
        self.change: Change | None = None
        """Made in the next round."""
        self.steps: Resumed | None = None
        self._waiting: dict[int, Task] = {}
        """Tasks of the plan that wait, by row: for the base they are gone."""
        self._ours: dict[int, None] = {}
        """Rows of the tasks of the plan that have not ended, and of those that an earlier plan has started."""

    @property
    def steps_left(self) -> int:
        """Steps of the plan that have not started."""
        return len(self._waiting)

    def begin(self, view: View) -> None:
        self.base.begin(view)

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self.base.serve(counters, alone)

    def ready(self, task: Task) -> None:
        if self.steps is not None and self.steps.has(task):
            self._waiting[task.index] = task
            self.steps.ready(task)
        else:
            self._ours.pop(task.index, None)
            self.base.ready(task)

    def finished(self, task: Task) -> None:
        if self.steps is not None:
            self.steps.finished(task)
        if self._ours.pop(task.index, self) is self:
            self.base.finished(task)

    def gone(self, task: Task) -> None:
        self._waiting.pop(task.index, None)
        if self.steps is not None:
            self.steps.gone(task)
        if self._ours.pop(task.index, self) is self:
            self.base.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self.base.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self.base.announced(device, start, end)

    def schedule(self, view: View) -> Iterator[Decision]:
        change, self.change = self.change, None
        if change is not None:
            self._follow(change, view)
        if self.steps is not None:
            for decision in self.steps.schedule(view):
                for row in [row for row, task in self._waiting.items() if task.state != WAITING]:
                    del self._waiting[row]
                yield decision
            for row in [row for row, task in self._waiting.items() if task.state != WAITING]:
                del self._waiting[row]
        for decision in self.base.schedule(view):
            if isinstance(decision, Start) and isinstance(decision.tasks, Task):
                self._taken(decision.tasks)
            # The base does not wait for everything that may happen: steps of the plan wait for other events.
            yield Wait(until=decision.until) if self._waiting and isinstance(decision, Wait) else decision

    def _taken(self, task: Task) -> None:
        """The base starts a task of the plan after all: one that a limit had kept."""
        if self._waiting.pop(task.index, None) is not None and self.steps is not None:
            self.steps.gone(task)
            del self._ours[task.index]

    def _follow(self, change: Change, view: View) -> None:
        """Give up the plan, and begin with another one or with none."""
        for task in self._waiting.values():
            del self._ours[task.index]
            self.base.ready(task)
        self._waiting, self.steps = {}, None
        if change.plan is None:
            return
        self.steps = Resumed(change.plan, change.problem.tasks, change.problem.cluster)
        for task in [task for task in view.waiting(own=True) if self.steps.has(task)]:
            self.base.gone(task)
            self.base.queue.remove(task)
            self._ours[task.index] = None
            self._waiting[task.index] = task
            self.steps.ready(task)


class Mpc(Scheduler):
    """A base scheduler that follows a plan for a window of tasks while that is better.

    base: a list scheduler; none given: fcfs that skips what does not fit.
    planner: a static policy; none given: `dual_approximation` for independent tasks without transfers on cores and one
        type of GPU, `peft` for task graphs, else `heft`.  Those that try plans out (`genetic`, ...) do so in forks.
    every: seconds from plan to plan.
    window: tasks that are planned.
    objective: the mean by which plans are judged: response, slowdown, deadline_misses, energy (above idle) or cost.
    """

    looks_ahead = True

    def __init__(
        self,
        base: Scheduler | None = None,
        planner: PlannedScheduler | None = None,
        every: Annotated[Seconds, Field(gt=0)] = 60.0,
        window: Annotated[int, Field(ge=1, le=10_000)] = 100,
        objective: Objective = "response",
    ):
        self.base = ListScheduler(discipline="skip") if base is None else base
        check_nested(self.base, "mpc", "base", lines=False)
        assert isinstance(self.base, ListScheduler)
        self.planner = planner
        self.every = every
        self.window = window
        self.objective: Objective = objective
        self.notes: dict[str, Any] = {"plans": 0, "plans_followed": 0, "plans_given_up": 0}
        self._guided = Guided(self.base)
        self._next = 0.0
        self._plannable: dict[Shape, bool] = {}

    # Hooks ----------------------------------------------------------------------------------------------------

    def check(self, problem: PlanProblem) -> None:
        self.base.check(problem)
        check_objective(self.objective, problem)
        if self.planner is not None:
            self.planner.check(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self._problem = problem
        self._progress = Progress(problem)
        self._plannable = plannable(problem, self.planner)

    def begin(self, view: View) -> None:
        self._guided.begin(view)
        self._next = view.now

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self._guided.serve(counters, alone)

    def ready(self, task: Task) -> None:
        self._progress.ready(task)
        self._guided.ready(task)

    def finished(self, task: Task) -> None:
        self._progress.ended(task)
        self._guided.finished(task)

    def gone(self, task: Task) -> None:
        self._progress.ended(task)
        self._guided.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self._progress.device(device, up)
        self._guided.device(device, up)
        self._next = min(self._next, 0.0)  # what was planned there has to go elsewhere

    def announced(self, device: Device, start: float, end: float) -> None:
        self._guided.announced(device, start, end)

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        if view.now >= self._next and self._look(view):
            self._next = view.now + self.every
        for decision in self._guided.schedule(view):
            if not isinstance(decision, Wait):
                yield decision
                continue
            # The next plan is made in time only if something waits for it and may change until then.
            waits = view.num_waiting(own=True) and view.running(own=True)
            due = self._next if waits and self._next > view.now else math.inf
            yield Wait(until=min(decision.until, due))
            return

    def _look(self, view: View) -> bool:
        """Choose the plan to follow; return False where nothing waits to be planned."""
        waiting = [task for task in view.waiting(own=True) if self._plannable.get(task.shape) and task.allowed is None]
        if len(waiting) < 2:
            return False
        chosen = {task.index: None for task in waiting[: self.window]}
        rest = self._progress.rest(view, foresight=False, wanted=chosen.__contains__)
        if not rest.rows:
            return False
        plan = (self.planner or default_planner(rest.problem)).plan(rest.problem)
        self.notes["plans"] += 1
        new = Change(Plan(rest.steps(plan)), self._problem)
        options = [Change(None, self._problem), new]
        if self._guided.steps_left:
            options.insert(1, None)  # type: ignore[arg-type]
        best, best_mean = options[0], math.inf
        for option in options:
            mean = self._played(option, view)
            if mean < best_mean - SLACK * abs(mean):
                best, best_mean = option, mean
        self.notes["plans_followed"] += best is new
        self.notes["plans_given_up"] += bool(self._guided.steps_left) and best is options[0]
        self._guided.change = best
        return True

    def _played(self, change: Change | None, view: View) -> float:
        """The mean of the objective with a change, or (None) without one."""
        self._guided.change = change
        try:
            fork = view.fork(self._guided)
        finally:
            self._guided.change = None
        return mean_of(fork.run(), self.objective, view.now)
