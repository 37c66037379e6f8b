"""Rollout: before another scheduler goes on, its first decision is tried against others, by playing each to the end.

Decides, around a base scheduler, which waiting task starts first.  In each round the run is forked (`View.fork`) once
for the base as it is, once for each of the `candidates` best other first starts (the base goes on after it), and once
for starting nothing until something changes, or where nothing runs one task alone.  The fork with the best mean of the
objective wins, the base among equals; where a start wins it is made, and the rest of the round is tried anew.
Forks know what the policy knows: estimates, no fault, and of arrivals none, or those drawn from a model learned so far.
Candidates are what fits now and the base would not start, taken by turns from the shortest, the earliest, the smallest
and the most urgent.  All meet the same arrivals and the same random numbers; of several futures the mean counts, less
a standard error of the paired differences.
Reference: Bertsekas, Tsitsiklis, Wu, Rollout Algorithms for Combinatorial Optimization (1997): where a fork tells the
truth, a rollout is never worse than its base; policy improvement by one step.
Weakness: estimates that are wrong are believed; a gain in the fork that is smaller than what is not known of the
future is chance, which `margin` holds against; what comes later is not foreseen unless `arrivals` is `learned`.
Cost: at most `forks` forks a decision, each O(tasks that run and wait) and the base's work until its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from policies.hybrid.outlook import Objective, mean_of
from policies.prediction.arrivals import ENOUGH_ARRIVALS, ArrivalHistory
from sim.errors import Problem, ScenarioError
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import WAITING, Task
from sim.model.units import Seconds
from sim.policy import Counter, Decision, ListScheduler, PlanProblem, Scheduler, Start, View, Wait

ALONE = ("Afs", "LasIntervals", "Optimus", "OptimusIntervals", "Pollux", "RoundRobin", "SpeedupMean")
"""Schedulers with books of their own on what they started: they cannot go on after the start of another."""
SLACK = 1e-9
"""Part of a mean by which another must be better: forks differ by rounding."""


@dataclass
class First:
    """What a candidate does before the base goes on: start a task there, or (None) nothing until something changes.

    alone: after that start nothing more until something changes.
    """

    task: Task | None = None
    placement: Placement | None = None
    alone: bool = False


class Led(Scheduler):
    """A base scheduler after a first decision that is not its own.

    What another starts is gone for the base; if it is stopped, it is ready again.
    """

    def __init__(self, by: Scheduler):
        self.by = by
        self.first: First | None = None
        self._taken: dict[int, None] = {}
        """Tasks that were started for the base, by row."""

    def begin(self, view: View) -> None:
        self.by.begin(view)

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self.by.serve(counters, alone)

    def ready(self, task: Task) -> None:
        self._taken.pop(task.index, None)
        self.by.ready(task)

    def finished(self, task: Task) -> None:
        if task.index in self._taken:
            del self._taken[task.index]
        else:
            self.by.finished(task)

    def gone(self, task: Task) -> None:
        if task.index in self._taken:
            del self._taken[task.index]
        else:
            self.by.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self.by.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self.by.announced(device, start, end)

    def take(self, task: Task) -> None:
        """Another starts this task."""
        self._taken[task.index] = None
        self.by.gone(task)

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
        yield from self.by.schedule(view)


class Rollout(Scheduler):
    """A base scheduler whose first decision in each round is tried against others in forks.

    by: the base; none given: fcfs.  It must not plan beforehand, put devices to sleep, nor give tasks turns or sizes
        of its own (`round_robin`, `afs`, `optimus`, `speedup_mean`, `pollux`, `las_intervals`, `optimus_intervals`).
    objective: the mean that is to be least: response, slowdown, deadline_misses, energy (above idle) or cost.
    candidates: other first starts that are tried.
    hold: is starting nothing, until something changes, tried as well?
    horizon: seconds that a fork is played on; none given: until all that is known has ended.
    arrivals: `none` come in forks, or those of a model `learned` from what came so far; it needs a horizon.
    samples: forks for each candidate, with other arrivals and random numbers.
    forks: the budget of a decision; as many candidates are tried as it allows.
    margin: part of its mean by which the base must be beaten.
    """

    looks_ahead = True

    def __init__(
        self,
        by: Scheduler | None = None,
        objective: Objective = "response",
        candidates: Annotated[int, Field(ge=1, le=100)] = 6,
        hold: bool = True,
        horizon: Annotated[Seconds, Field(gt=0)] | None = None,
        arrivals: Literal["none", "learned"] = "none",
        samples: Annotated[int, Field(ge=1, le=1000)] = 1,
        forks: Annotated[int, Field(ge=2, le=100_000)] = 16,
        margin: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        self.by = ListScheduler() if by is None else by
        if type(self.by).prepare is not Scheduler.prepare or self.by.sets_devices:
            text = f"{type(self.by).__name__} plans beforehand or puts devices to sleep, and cannot go on in a fork; "
            raise ScenarioError(Problem(text + "name a dynamic scheduler", key="policy.scheduler.by"))
        if type(self.by).__name__ in ALONE:
            text = f"{type(self.by).__name__} keeps books on its own starts, and cannot go on after those of others"
            raise ScenarioError(Problem(f"{text}; name another scheduler", key="policy.scheduler.by"))
        if arrivals == "learned" and horizon is None:
            raise ValueError("arrivals: learned needs a horizon: arrivals would never end")
        if forks < 2 * samples:
            raise ValueError(f"forks: {forks} are fewer than 2 × samples ({samples}), so nothing could be compared")
        self.objective: Objective = objective
        self.candidates = candidates
        self.hold = hold
        self.horizon = math.inf if horizon is None else horizon
        self.arrivals = arrivals
        self.samples = samples
        self.forks = forks
        self.margin = margin
        self.notes: dict[str, Any] = {"decisions_tried": 0, "forks": 0, "other_starts": 0, "held": 0}
        self._led = Led(self.by)
        self._came = ArrivalHistory()
        self._seen: dict[int, None] = {}
        """Rows of the tasks that wait or run, each of which has come once."""
        if arrivals == "learned":
            self.notes["decisions_without_arrivals"] = 0

    # What it is told ------------------------------------------------------------------------------------------

    def check(self, problem: PlanProblem) -> None:
        tasks = problem.tasks
        self.by.check(problem)
        if self.arrivals == "learned" and len(tasks) < ENOUGH_ARRIVALS:
            text = f"a model of arrivals is learned from {ENOUGH_ARRIVALS} or more, and only {len(tasks)} tasks come"
            raise ScenarioError(Problem(f"{text}; set arrivals to none", key="policy.scheduler.arrivals"))
        if self.arrivals == "learned" and (tasks.predecessors is not None or tasks.items):
            text = "arrivals of task graphs, and of tasks that share data, cannot be drawn from a model"
            raise ScenarioError(Problem(f"{text}; set arrivals to none", key="policy.scheduler.arrivals"))
        if self.objective == "deadline_misses" and (tasks.deadline is None or np.isnan(tasks.deadline).all()):
            text = "no task has a deadline (slo) that could be missed"
            raise ScenarioError(Problem(text, key="policy.scheduler.objective"))
        if self.objective == "cost" and not problem.cluster.priced:
            raise ScenarioError(Problem("nothing in the cluster has a price", key="policy.scheduler.objective"))
        watts = any(kind.power.busy > kind.power.idle for kind in problem.cluster.types.values())
        if self.objective == "energy" and not watts:
            raise ScenarioError(Problem("no device of the cluster has watts", key="policy.scheduler.objective"))

    def begin(self, view: View) -> None:
        self._led.begin(view)

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self._led.serve(counters, alone)

    def ready(self, task: Task) -> None:
        if self.arrivals == "learned" and task.index not in self._seen:
            self._seen[task.index] = None
            self._came.observe(task)
        self._led.ready(task)

    def finished(self, task: Task) -> None:
        self._seen.pop(task.index, None)
        self._led.finished(task)

    def gone(self, task: Task) -> None:
        self._seen.pop(task.index, None)
        self._led.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self._led.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self._led.announced(device, start, end)

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        while (first := self._better(view)) is not None:
            if first.task is None:
                self.notes["held"] += 1
                return
            assert first.placement is not None
            self.notes["other_starts"] += 1
            self._led.take(first.task)
            yield Start(first.task, first.placement)
            if first.alone:
                self.notes["held"] += 1
                return
        for decision in self._led.schedule(view):
            if not isinstance(decision, Wait):
                yield decision
                continue
            # The base may wait for a release; what comes meanwhile is a candidate.
            yield Wait(until=decision.until)
            return

    def _better(self, view: View) -> First | None:
        """A first decision after which the objective is better than if the base decided; None if there is none."""
        fitting = [(task, place) for task in self._ranked(view) if (place := self._place(task, view)) is not None]
        if not fitting:
            return None
        futures = self._futures(view)
        self.notes["decisions_tried"] += 1
        base, starts = self._played(None, futures, view)
        others = [First(task, place) for task, place in fitting if task.index not in starts][: self.candidates]
        if self.hold and view.running():
            others = [First(), *others] if starts else others
        elif self.hold and len(starts) > 1:  # something has to start, or nothing ever changes
            alone = [First(task, place, alone=True) for task, place in fitting]
            others = [one for pair in zip_longest(alone, others) for one in pair if one is not None]
        best: First | None = None
        least = -max(SLACK, self.margin) * abs(float(base.mean()))
        for other in others[: self.forks // len(futures) - 1]:
            gain = self._played(other, futures, view)[0] - base
            # Beyond chance: what is better in some futures and worse in others has to be so by a standard error.
            doubt = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
            if gain.mean() + doubt < least:
                best, least = other, float(gain.mean()) + doubt
        return best

    def _futures(self, view: View) -> list[tuple[int, list[tuple[float, Task]]]]:
        """Seeds, and what comes: the same for all candidates."""
        decision, until = self.notes["decisions_tried"], view.now + self.horizon
        if self.arrivals == "none":
            return [(self.samples * decision + k, []) for k in range(self.samples)]
        self.notes["decisions_without_arrivals"] += not self._came.enough
        streams = [np.random.default_rng((decision, k)) for k in range(self.samples if self._came.enough else 1)]
        return [(k, self._came.sample(view.now, until, random)) for k, random in enumerate(streams)]

    def _played(
        self, first: First | None, futures: list[tuple[int, list[tuple[float, Task]]]], view: View
    ) -> tuple[np.ndarray, dict[int, None]]:
        """The objective in each future after a first decision, and the rows of what starts at once then."""
        found: list[float] = []
        starts: dict[int, None] = {}
        for seed, coming in futures:
            self._led.first = first
            try:
                fork = view.fork(self._led, seed=seed, coming=coming)
            finally:
                self._led.first = None
            self.notes["forks"] += 1
            record = fork.run(view.now + self.horizon)
            found.append(mean_of(record, self.objective, view.now))
            starts = dict.fromkeys(np.flatnonzero(record.start == view.now).tolist())
        return np.array(found), starts

    def _place(self, task: Task, view: View) -> Placement | None:
        by = self.by
        return by.place(task, view) if isinstance(by, ListScheduler) else view.fit(task)

    def _ranked(self, view: View) -> list[Task]:
        """Waiting tasks that could be candidates, the most promising first: by turns from several orders."""
        waiting = [task for task in view.waiting() if task.state == WAITING and view.queue_of(task) is None]
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
        found: dict[int, Task] = {}
        for turn in zip(*orders, strict=True):
            found.update((task.index, task) for task in turn)
        return list(found.values())


def _size(task: Task) -> float:
    """Devices × time, in the mode in which that is least."""
    return min(max(mode.width, 1e-9) * (mode.fixed + task.estimates[i]) for i, mode in enumerate(task.modes))
