"""A scheduler that tries decisions in forks of the run, around a base scheduler."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, ListScheduler, PlanProblem, Scheduler, Start, View, Wait
from hetsim.policy.relay import Relay
from hetsim_policies.hybrid.common.outlook import Objective, check_objective, mean_of
from hetsim_policies.prediction.estimates import ENOUGH_ARRIVALS, ArrivalHistory, Believed, EstimateHistory

# Schedulers that record their own starts: they cannot continue after another scheduler's start
ALONE = ("Afs", "LasIntervals", "Optimus", "OptimusIntervals", "Pollux", "RoundRobin", "SpeedupMean")
SLACK = 1e-9  # Relative gain of a mean below which a difference is rounding


@dataclass
class First:
    """The action with which a simulated future begins: a start or, if None, a wait.

    alone: True if the base scheduler starts nothing else in this round.
    """

    place: tuple[Task, Placement] | None = None
    alone: bool = False


@dataclass(frozen=True)
class Future:
    """Assumptions about the future of a fork, the same for all candidates.

    seed: seed of the fork's random numbers.  coming: new arrivals, as (time, task).  ratios: samples of actual /
    expected time; each task draws one.  believed: how expected times follow from estimates (None: they are equal).
    """

    seed: int
    coming: Sequence[tuple[float, Task]]
    ratios: Sequence[float] = ()
    believed: Believed | None = None


class Led(Relay):
    """A base scheduler that continues after a first decision by another scheduler.

    A task that another scheduler starts counts as gone for the base scheduler; if it is stopped, it is ready again.
    """

    def __init__(self, base: Scheduler):
        super().__init__(base)
        self.first: First | None = None
        self._taken: dict[int, Task] = {}  # tasks that were started for the base, by row

    def ready(self, task: Task) -> None:
        self._taken.pop(task.index, None)
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        if self._taken.pop(task.index, None) is None:
            self.inner.finished(task)

    def gone(self, task: Task) -> None:
        if self._taken.pop(task.index, None) is None:
            self.inner.gone(task)

    def take(self, task: Task) -> None:
        """Record that another scheduler starts the task; to the base scheduler it is gone."""
        self._taken[task.index] = task
        self.inner.gone(task)

    def schedule(self, view: View) -> Iterator[Decision]:
        first, self.first = self.first, None
        if first is not None:
            if first.place is None:
                return
            self.take(first.place[0])
            yield Start(*first.place)
            if first.alone:
                return
        yield from self.inner.schedule(view)


class Rollout(Relay):
    """Rollout: compare a scheduler's next start with other starts in forks of the run.

    Decides, around a base scheduler, which waiting task starts first.  In each round the run is forked (`View.fork`):
    once with the base scheduler alone; once for each of the `candidates` best other tasks to start first, with the
    base's decisions after this start; and once with no start until something changes (if nothing runs: with one task
    alone).  The fork with the best mean of the objective wins; at ties, the base wins.  If a fork with a start wins,
    this start is made, and the comparison is repeated for the rest of the round.  Forks have the information of the
    policy: estimates, no faults, and no arrivals except those drawn from a learned model.  Candidates are tasks that
    fit now and that the base would not start: in turn the shortest, the earliest, the smallest and the most urgent
    task.  The future is uncertain if ended tasks did not take their estimated times, if too few tasks have ended to
    judge this, or if arrivals are drawn.  Then the best candidate must be significantly better than the base: both are
    compared in `samples` further futures.  In each, the time of a task is its expected time, given its estimate
    (`hetsim_policies.prediction.estimates`), times the ratio drawn from an ended task; base and candidate have the same
    times, arrivals and random numbers.  The lower confidence limit of the mean paired gain (Student's t, one-sided)
    must exceed 0, or the fraction `margin` of the base's mean.
    Reference: Bertsekas, Tsitsiklis, Wu, Rollout Algorithms for Combinatorial Optimization (1997): if forks are exact,
    a rollout is never worse than its base (one step of policy improvement).
    Weakness: later arrivals are not foreseen unless `arrivals` is `learned`; ratios are drawn independently for each
    task, whatever its user; on shared devices ratios include the wait for other tasks.  Cost: at most `forks` forks per
    decision; each takes O(running and waiting tasks) and the base's work until the end of the fork.

    base: another scheduler; default: fcfs.  It must not plan beforehand, put devices to sleep, nor manage turns or
        sizes of tasks (`round_robin`, `afs`, `optimus`, `speedup_mean`, `pollux`, `las_intervals`,
        `optimus_intervals`).
    objective: the mean to minimize: response, slowdown, deadline_misses, energy (above idle) or cost.
    candidates: number of other first starts that are tried.
    hold: also try starting nothing until something changes.
    horizon: seconds of a fork; default: until all known tasks have ended.
    arrivals: arrivals in forks: `none`, or drawn from a model that is `learned` from past arrivals, which needs a
        horizon.
    samples: number of futures in which the best candidate is compared with the base, if times or arrivals are
        uncertain; 1: the result of the first fork is trusted.
    confidence: level of the lower confidence limit of the mean gain, which must be above 0.
    forks: maximum number of forks per decision, which limits the candidates.
    margin: relative gain over the base's mean that a candidate needs.
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
            text = f"{type(self.base).__name__} plans in advance or puts devices to sleep, so it cannot run in a fork; "
            raise refusal(text + "name a dynamic scheduler", "policy.scheduler.base")
        if type(self.base).__name__ in ALONE:
            text = f"{type(self.base).__name__} records only the starts that it made itself, and cannot continue after "
            raise refusal(text + "starts of another scheduler; use another scheduler", "policy.scheduler.base")
        if arrivals == "learned" and horizon is None:
            raise ValueError("arrivals: learned needs a horizon: arrivals would never end")
        self._tested = 2 * samples if samples > 1 else 0  # forks of the test of a candidate
        if forks < 2 + self._tested:
            text = f"forks must be at least {2 + self._tested} (2, and 2 per sample for the test); got {forks}"
            raise ValueError(text)
        self.objective: Objective = objective
        self.candidates = candidates
        self.hold = hold
        self.horizon = math.inf if horizon is None else horizon
        self.arrivals = arrivals
        self.samples = samples
        self.confidence = confidence
        self._student = 0.0
        if samples > 1:
            from scipy.special import stdtrit  # which only this needs

            self._student = float(stdtrit(samples - 1, confidence))
        self.forks = forks
        self.margin = margin
        self.notes: dict[str, Any] = {"decisions_tried": 0, "forks": 0, "other_starts": 0, "held": 0,
                                      "in_doubt": 0}  # fmt: skip
        self._led = Led(self.base)
        super().__init__(self._led)
        self._came = ArrivalHistory()
        self._seen: dict[int, None] = {}  # rows of the tasks that wait or run, each of which has come once
        self._begun: dict[int, tuple[float, float]] = {}  # start and estimated run time of running tasks, by row
        self._estimates = EstimateHistory()
        if arrivals == "learned":
            self.notes["decisions_without_arrivals"] = 0

    def check(self, problem: PlanProblem) -> None:
        tasks = problem.tasks
        self.base.check(problem)
        text = ""
        if len(tasks) < ENOUGH_ARRIVALS:
            text = f"a model of arrivals needs {ENOUGH_ARRIVALS} or more arrivals; the workload has {len(tasks)} tasks"
        elif tasks.predecessors is not None or tasks.items:
            text = "arrivals of task graphs, and of tasks that share data, cannot be drawn from a model"
        if text and self.arrivals == "learned":
            raise refusal(f"{text}; set arrivals to none", "policy.scheduler.arrivals")
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

    def schedule(self, view: View) -> Iterator[Decision]:
        while (first := self._better(view)) is not None:
            if first.place is None:
                self.notes["held"] += 1
                return
            self.notes["other_starts"] += 1
            self._led.take(first.place[0])
            yield self._noted(Start(*first.place), view)
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
        if self.samples > 1 and isinstance(decision, Start) and isinstance(decision.tasks, Task):
            task = decision.tasks
            self._begun[task.index] = view.now, view.duration(task, decision.placement)
        return decision

    def _better(self, view: View) -> First | None:
        fitting = [(task, place) for task in self._ranked(view) if (place := self._place(task, view)) is not None]
        if not fitting:
            return None
        self.notes["decisions_tried"] += 1
        future = self._future(view, 0)
        base, starts = self._played(None, future, view)
        others = [First(place) for place in fitting if place[0].index not in starts][: self.candidates]
        if self.hold and view.running(own=True):
            others = [First(), *others] if starts else others
        elif self.hold and len(starts) > 1:  # something has to start, or nothing ever changes
            alone = [First(place, alone=True) for place in fitting]
            others = [one for pair in zip_longest(alone, others) for one in pair if one is not None]
        best: First | None = None
        best_value = base - max(SLACK, self.margin) * abs(base)
        for other in others[: self.forks - self._tested - 1]:
            if (value := self._played(other, future, view)[0]) < best_value:
                best, best_value = other, value
        # Futures differ in which candidates could be compared.
        uncertain = self._estimates.uncertain or (self.arrivals == "learned" and self._came.enough)
        if best is not None and self.samples > 1 and uncertain and not self._beyond_chance(best, view):
            self.notes["in_doubt"] += 1
            return None
        return best

    def _beyond_chance(self, other: First, view: View) -> bool:
        """Return True if `other` gains significantly more over the base than the margin."""
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
        """Return a sampled future; in future 0 all tasks take their expected times."""
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
        """Run a copy of the simulation (a fork) under the base policy up to the horizon.

        first: what is done first; None: what the base policy decides.  Return the mean of the objective, and the rows
        of the tasks that started immediately.
        """
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
        """Return waiting tasks, taken in turn from several orders (shortest, oldest, ...)."""
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
        return list({task.index: task for turn in zip(*orders, strict=True) for task in turn}.values())


def _size(task: Task) -> float:
    return min(max(mode.width, 1e-9) * task.estimate_at(i) for i, mode in enumerate(task.modes))
