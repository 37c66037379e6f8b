"""Schedulers that try decisions or plans out in forks of the run, around a base."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Device
from hetsim.model.plan import Placement, Plan
from hetsim.model.task import WAITING, Task
from hetsim.model.tasks import Shape
from hetsim.model.units import Seconds
from hetsim.policy import (
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
from hetsim.policy.relay import Relay
from hetsim.policy.remaining import Resumed
from hetsim_policies.hybrid.common.inner import check_nested, default_planner, plannable
from hetsim_policies.hybrid.common.outlook import Objective, check_objective, mean_of
from hetsim_policies.prediction.estimates import ENOUGH_ARRIVALS, ArrivalHistory, Believed, EstimateHistory

ALONE = ("Afs", "LasIntervals", "Optimus", "OptimusIntervals", "Pollux", "RoundRobin", "SpeedupMean")
"""Schedulers with books of their own on what they started: they cannot go on after the start of another."""
SLACK = 1e-9
"""Part of a mean by which another must be better: forks differ by rounding."""


@dataclass
class First:
    """A candidate's first action: start a task, or (None) wait for a change.

    alone: after that start nothing more until something changes.
    """

    task: Task | None = None
    placement: Placement | None = None
    alone: bool = False


@dataclass(frozen=True)
class Future:
    """A seed, future arrivals, believed estimates (None: all), ratios to draw from."""

    seed: int
    coming: Sequence[tuple[float, Task]]
    ratios: Sequence[float] = ()
    believed: Believed | None = None


class Led(Relay):
    """A base scheduler after a first decision that is not its own.

    What another starts is gone for the base; if it is stopped, it is ready again.
    """

    def __init__(self, base: Scheduler):
        super().__init__(base)
        self.first: First | None = None
        self._taken: dict[int, None] = {}
        """Tasks that were started for the base, by row."""

    def ready(self, task: Task) -> None:
        self._taken.pop(task.index, None)
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        if task.index in self._taken:
            del self._taken[task.index]
        else:
            self.inner.finished(task)

    def gone(self, task: Task) -> None:
        if task.index in self._taken:
            del self._taken[task.index]
        else:
            self.inner.gone(task)

    def take(self, task: Task) -> None:
        """Another starts this task."""
        self._taken[task.index] = None
        self.inner.gone(task)

    def schedule(self, view: View) -> Iterator[Decision]:
        first, self.first = self.first, None
        if first is not None:
            if first.task is None:
                return
            assert first.placement is not None
            self.take(first.task)
            yield Start(first.task, first.placement)
            if first.alone:
                return
        yield from self.inner.schedule(view)


class Rollout(Relay):
    """Rollout: try a scheduler's first decision against others, each to the end.

    Decides, around a base scheduler, which waiting task starts first.  In each round the run is forked (`View.fork`)
    once for the base as it is, once for each of the `candidates` best other first starts (the base goes on after it),
    and once for starting nothing until something changes, or where nothing runs one task alone.  The fork with the best
    mean of the objective wins, the base among equals; where a start wins it is made, and the rest of the round is tried
    again.  Forks know what the policy knows: estimates, no fault, and of arrivals none, or those drawn from a model
    learned so far.  Candidates are what fits now and the base would not start, taken by turns from the shortest, the
    earliest, the smallest and the most urgent.  The base is left only where that is better beyond chance.  Where tasks
    that have ended took other times than estimated, too few have ended to tell, or arrivals are drawn, the best
    candidate is held against the base in `samples` further futures: each task takes what its estimate lets expect (less
    of it where estimates of its class told little, see `hetsim_policies.prediction.estimates`) times a ratio of one
    that has ended to that, and both meet the same times, arrivals and random numbers.  The lower confidence limit of
    the mean paired gain (Student's t, one-sided) must exceed 0, or `margin` of the base.
    Reference: Bertsekas, Tsitsiklis, Wu, Rollout Algorithms for Combinatorial Optimization (1997): where a fork tells
    the truth, a rollout is never worse than its base; policy improvement by one step.
    Weakness: what comes later is not foreseen unless `arrivals` is `learned`, and no test tells what that costs; ratios
    are drawn for each task by itself, whatever its user; where devices are shared they hold the waiting for others as
    well.
    Cost: at most `forks` forks a decision, each O(tasks that run and wait) and the base's work until its end.

    base: another scheduler; none given: fcfs.  It must not plan beforehand, put devices to sleep, nor give tasks turns
        or sizes of its own (`round_robin`, `afs`, `optimus`, `speedup_mean`, `pollux`, `las_intervals`,
        `optimus_intervals`).
    objective: the mean that is to be least: response, slowdown, deadline_misses, energy (above idle) or cost.
    candidates: other first starts that are tried.
    hold: starting nothing, until something changes, is tried as well.
    horizon: seconds that a fork is played on; none given: until all that is known has ended.
    arrivals: `none` come in forks, or those of a model `learned` from what came so far; it needs a horizon.
    samples: futures in which the best candidate is held against the base, where times or arrivals are uncertain; 1: in
        none, what the first fork says is believed.
    confidence: of the limit of the mean gain that must be above 0.
    forks: the budget of a decision; as many candidates are tried as it allows.
    margin: part of its mean by which the base must be beaten.
    """

    looks_ahead = True

    def __init__(
        self,
        base: Scheduler | None = None,
        objective: Objective = "response",
        candidates: Annotated[int, Field(ge=1, le=100)] = 6,
        hold: bool = True,
        horizon: Annotated[Seconds, Field(gt=0)] | None = None,
        arrivals: Literal["none", "learned"] = "none",
        samples: Annotated[int, Field(ge=1, le=1000)] = 8,
        confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95,
        forks: Annotated[int, Field(ge=2, le=100_000)] = 32,
        margin: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        self.base = ListScheduler() if base is None else base
        if type(self.base).prepare is not Scheduler.prepare or self.base.sets_devices:
            text = f"{type(self.base).__name__} plans beforehand or puts devices to sleep, and cannot go on in a fork; "
            raise ScenarioError(Problem(text + "name a dynamic scheduler", key="policy.scheduler.base"))
        if type(self.base).__name__ in ALONE:
            text = f"{type(self.base).__name__} keeps books on its own starts, and cannot go on after those of others"
            raise ScenarioError(Problem(f"{text}; name another scheduler", key="policy.scheduler.base"))
        if arrivals == "learned" and horizon is None:
            raise ValueError("arrivals: learned needs a horizon: arrivals would never end")
        self._tested = 2 * samples if samples > 1 else 0
        """Forks of the test of a candidate."""
        if forks < 2 + self._tested:
            text = f"forks: {forks} are fewer than {2 + self._tested}, 2 and 2 × samples ({samples}) for the test"
            raise ValueError(text)
        self.objective: Objective = objective
        self.candidates = candidates
        self.hold = hold
        self.horizon = math.inf if horizon is None else horizon
        self.arrivals = arrivals
        self.samples = samples
        self.confidence = confidence
        self._student = quantile_of_t(confidence, samples - 1) if samples > 1 else 0.0
        self.forks = forks
        self.margin = margin
        self.notes: dict[str, Any] = {"decisions_tried": 0, "forks": 0, "other_starts": 0, "held": 0,
                                      "in_doubt": 0}  # fmt: skip
        self._led = Led(self.base)
        super().__init__(self._led)
        self._came = ArrivalHistory()
        self._seen: dict[int, None] = {}
        """Rows of the tasks that wait or run, each of which has come once."""
        self._begun: dict[int, tuple[float, float]] = {}
        """Start and estimated run time of running tasks, by row."""
        self._estimates = EstimateHistory()
        if arrivals == "learned":
            self.notes["decisions_without_arrivals"] = 0

    # Hooks ----------------------------------------------------------------------------------------------------

    def check(self, problem: PlanProblem) -> None:
        tasks = problem.tasks
        self.base.check(problem)
        if self.arrivals == "learned" and len(tasks) < ENOUGH_ARRIVALS:
            text = f"a model of arrivals is learned from {ENOUGH_ARRIVALS} or more, and only {len(tasks)} tasks come"
            raise ScenarioError(Problem(f"{text}; set arrivals to none", key="policy.scheduler.arrivals"))
        if self.arrivals == "learned" and (tasks.predecessors is not None or tasks.items):
            text = "arrivals of task graphs, and of tasks that share data, cannot be drawn from a model"
            raise ScenarioError(Problem(f"{text}; set arrivals to none", key="policy.scheduler.arrivals"))
        check_objective(self.objective, problem)

    def begin(self, view: View) -> None:
        self._view = view
        self._led.begin(view)

    def ready(self, task: Task) -> None:
        self._begun.pop(task.index, None)  # it was stopped
        if self.arrivals == "learned" and task.index not in self._seen:
            self._seen[task.index] = None
            self._came.observe(task)
        self._led.ready(task)

    def finished(self, task: Task) -> None:
        self._seen.pop(task.index, None)
        since, seconds = self._begun.pop(task.index, (0.0, 0.0))
        if seconds > 0 and self._view.now > since:
            self._estimates.observe(task, (self._view.now - since) / seconds)
        self._led.finished(task)

    def gone(self, task: Task) -> None:
        self._seen.pop(task.index, None)
        self._begun.pop(task.index, None)
        self._led.gone(task)

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        while (first := self._better(view)) is not None:
            if first.task is None:
                self.notes["held"] += 1
                return
            assert first.placement is not None
            self.notes["other_starts"] += 1
            self._led.take(first.task)
            yield self._noted(Start(first.task, first.placement), view)
            if first.alone:
                self.notes["held"] += 1
                return
        for decision in self._led.schedule(view):
            if not isinstance(decision, Wait):
                yield self._noted(decision, view)
                continue
            # The base may wait for a release; what comes meanwhile is a candidate.
            yield Wait(until=decision.until)
            return

    def _noted(self, decision: Decision, view: View) -> Decision:
        """The decision, and of a start when it was made and how long it is to take."""
        if self.samples > 1 and isinstance(decision, Start) and isinstance(decision.tasks, Task):
            task = decision.tasks
            self._begun[task.index] = view.now, view.duration(task, decision.placement)
        return decision

    def _better(self, view: View) -> First | None:
        """A first decision that improves the objective over the base; None if none."""
        fitting = [(task, place) for task in self._ranked(view) if (place := self._place(task, view)) is not None]
        if not fitting:
            return None
        self.notes["decisions_tried"] += 1
        future = self._future(view, 0)
        base, starts = self._played(None, future, view)
        others = [First(task, place) for task, place in fitting if task.index not in starts][: self.candidates]
        if self.hold and view.running(own=True):
            others = [First(), *others] if starts else others
        elif self.hold and len(starts) > 1:  # something has to start, or nothing ever changes
            alone = [First(task, place, alone=True) for task, place in fitting]
            others = [one for pair in zip_longest(alone, others) for one in pair if one is not None]
        best: First | None = None
        best_value = base - max(SLACK, self.margin) * abs(base)
        for other in others[: self.forks - self._tested - 1]:
            value = self._played(other, future, view)[0]
            if value < best_value:
                best, best_value = other, value
        if best is not None and self._uncertain() and not self._beyond_chance(best, view):
            self.notes["in_doubt"] += 1
            return None
        return best

    def _uncertain(self) -> bool:
        """Return True if futures differ in which candidates could be compared."""
        return self.samples > 1 and (self._estimates.uncertain or (self.arrivals == "learned" and self._came.enough))

    def _beyond_chance(self, other: First, view: View) -> bool:
        """Return True if the lower confidence limit of the mean gain exceeds the margin."""
        gains: list[float] = []
        bases: list[float] = []
        for number in range(1, self.samples + 1):
            future = self._future(view, number)
            bases.append(self._played(None, future, view)[0])
            gains.append(bases[-1] - self._played(other, future, view)[0])
            if number == (self.samples + 1) // 2 and sum(gains) <= 0:
                return False  # the other half will not show it either
        gain, spread = float(np.mean(gains)), float(np.std(gains, ddof=1))
        doubt = self._student * spread / math.sqrt(len(gains))
        return gain - doubt > max(SLACK, self.margin) * abs(float(np.mean(bases)))

    def _future(self, view: View, number: int) -> Future:
        """Arrivals and times, the same for all candidates; the first has expected ones."""
        decision, until = self.notes["decisions_tried"], view.now + self.horizon
        coming: list[tuple[float, Task]] = []
        if self.arrivals == "learned":
            self.notes["decisions_without_arrivals"] += not (number or self._came.enough)
            coming = self._came.sample(view.now, until, np.random.default_rng((decision, number)))
        seed = (self.samples + 1) * decision + number
        if not self._estimates.uncertain:
            return Future(seed, coming)
        believed = self._estimates.believed()
        return Future(seed, coming, believed.residuals.tolist() if number else [1.0], believed)

    def _played(self, first: First | None, future: Future, view: View) -> tuple[float, dict[int, None]]:
        """The objective after a first decision, and the rows that then start at once."""
        self._led.first = first
        try:
            expected = None if future.believed is None else future.believed.parts
            fork = view.fork(self._led, (), future.seed, coming=future.coming, ratios=future.ratios, expected=expected)
        finally:
            self._led.first = None
        self.notes["forks"] += 1
        record = fork.run(view.now + self.horizon)
        starts = dict.fromkeys(np.flatnonzero(record.start == view.now).tolist())
        return mean_of(record, self.objective, view.now), starts

    def _place(self, task: Task, view: View) -> Placement | None:
        base = self.base
        return base.place(task, view) if isinstance(base, ListScheduler) else view.fit(task)

    def _ranked(self, view: View) -> list[Task]:
        """Waiting candidates, the most promising first, by turns from several orders."""
        waiting = [task for task in view.waiting(own=True) if task.state == WAITING and view.queue_of(task) is None]
        if not waiting:
            return []
        count = 2 * self.candidates
        orders = [
            sorted(waiting, key=lambda task: task.shortest_remaining)[:count],
            waiting[:count],
            sorted(waiting, key=_size)[:count],
        ]
        if any(task.deadline < math.inf for task in waiting):
            orders.append(sorted(waiting, key=lambda task: task.deadline)[:count])
        if len({task.weight for task in waiting}) > 1:
            orders.append(sorted(waiting, key=lambda task: task.shortest_remaining / max(task.weight, 1e-9))[:count])
        ranked: dict[int, Task] = {}
        for turn in zip(*orders, strict=True):
            ranked.update((task.index, task) for task in turn)
        return list(ranked.values())


def quantile_of_t(share: float, freedom: int) -> float:
    """Of Student's t distribution."""
    from scipy.special import stdtrit  # which only this needs

    return float(stdtrit(freedom, share))


def _size(task: Task) -> float:
    """Devices × time, in the mode in which that is least."""
    return min(max(mode.width, 1e-9) * task.estimate_at(i) for i, mode in enumerate(task.modes))


@dataclass
class Change:
    """A plan to follow from now on, by rows of the whole run, or (None) the base."""

    plan: Plan | None
    problem: PlanProblem


class Guided(Relay):
    """A base scheduler, and a plan for some of the tasks, which goes first."""

    inner: ListScheduler

    def __init__(self, base: ListScheduler):
        super().__init__(base)
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

    def ready(self, task: Task) -> None:
        if self.steps is not None and self.steps.has(task):
            self._waiting[task.index] = task
            self.steps.ready(task)
        else:
            self._ours.pop(task.index, None)
            self.inner.ready(task)

    def finished(self, task: Task) -> None:
        if self.steps is not None:
            self.steps.finished(task)
        if self._ours.pop(task.index, self) is self:
            self.inner.finished(task)

    def gone(self, task: Task) -> None:
        self._waiting.pop(task.index, None)
        if self.steps is not None:
            self.steps.gone(task)
        if self._ours.pop(task.index, self) is self:
            self.inner.gone(task)

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
        for decision in self.inner.schedule(view):
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
            self.inner.ready(task)
        self._waiting, self.steps = {}, None
        if change.plan is None:
            return
        self.steps = Resumed(change.plan, change.problem.tasks, change.problem.cluster)
        for task in [task for task in view.waiting(own=True) if self.steps.has(task)]:
            self.inner.gone(task)
            self.inner.queue.remove(task)
            self._ours[task.index] = None
            self._waiting[task.index] = task
            self.steps.ready(task)


class Mpc(Relay):
    """Model predictive control: periodic plans of waiting tasks, followed if better.

    Decides, around a base scheduler, in which order and where the next tasks start.  Every `every` seconds, as long as
    something waits, the run is forked (`View.fork`) three times: with the plan that is followed, with the base alone,
    and with a new plan of the `window` tasks that have waited longest (the base starts all others, behind what the plan
    starts).  What has the best mean of the objective is followed until the next time; the base among equals, then the
    plan that is followed already.  Tasks that come between two plans are the base's.
    Reference: receding horizon control as in Mayne, Rawlings, Rao, Scokaert, Constrained Model Predictive Control:
    Stability and Optimality (2000); for scheduling, rolling horizons: Ovacik, Uzsoy, Rolling Horizon Procedures (1994).
    No ratio is proven.  Known weakness: planners minimize the makespan, so that under a steady load the base is often
    better and is what is followed; estimates that are wrong are believed until the next plan; a plan that is followed
    keeps its order even where a step is late.
    Cost: every `every` seconds the planner's, and three forks, each O(tasks that run and wait) and the base's work.

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
        super().__init__(self._guided)
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
