"""Making the runs of a sweep: who makes them, in what order, and what is kept of them when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sim.errors import UsageError
from sim.experiment.cache import Store, fingerprint
from sim.experiment.executors import Crew, DaskCluster, Processes
from sim.experiment.jobs import Outcome, Watch
from sim.experiment.sweep_precision import Course, Rounds
from sim.experiment.sweep_runs import Job, Queue, Setup, perform
from sim.experiment.sweep_warmup import Pilot, Pilots, Warmup, look_up, shared

if TYPE_CHECKING:
    from sim.experiment.sweep import Plan


@dataclass
class Made:
    """What a row's runs gave: its replications, or the error for which it has none; `warmup`: the one found for it."""

    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    warmup: float | None = None


class Hire:
    """Who makes the runs; nobody is hired before there is something to do, and all are let go at the end."""

    def __init__(self, workers: int, dask: str | None, executor: Executor | None):
        self.workers, self.dask, self.executor = workers, dask, executor
        self.crew: Crew | None = None

    def __call__(self, jobs: int) -> Crew | None:
        """The crew, for so many jobs; None: they are made in this process."""
        if self.crew is None:
            if self.executor is not None:
                self.crew = Crew(self.executor, self.workers if self.workers > 1 else cores())
            elif self.dask is not None:
                self.crew = DaskCluster(self.dask, fingerprint, fingerprint())
            elif self.workers > 1 and jobs > 1:
                self.crew = Processes(min(self.workers, jobs))
        return self.crew

    def __enter__(self) -> Hire:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.crew is not None:
            self.crew.close(at_once=kind is not None or self.crew.unwanted)


def hiring(workers: int, dask: str | None, executor: Executor | None) -> Hire:
    """UsageError for what does not go together."""
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if dask is not None and (executor is not None or workers > 1):
        raise UsageError("a Dask cluster has workers of its own: leave out workers and executor")
    return Hire(workers, dask, executor)


def cores() -> int:
    """Of this machine, as far as we may use them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect(
    jobs: Iterable[Job], setup: Setup, store: Store, hire: Hire, watch: Watch
) -> dict[str, Outcome]:
    """The outcome of every job by its hash; what the store has is not made again, nor is the same run made twice.

    `watch` counts all jobs, and is told of those that need not be made.
    """
    outcomes: dict[str, Outcome] = {}
    todo: dict[str, Job] = {}
    number = 0
    for job in jobs:
        number += 1
        if job.run in outcomes or job.run in todo:
            continue
        found = store.get(job.run)
        if found is None:
            todo[job.run] = job
        else:
            outcomes[job.run] = found
    watch.skipped(number - len(todo))
    for job, outcome in perform(Queue(todo.values()), setup, hire(len(todo)) if todo else None, watch):
        store.put(job.run, outcome)  # on disk before it counts
        outcomes[job.run] = outcome
        watch.finished()
    return outcomes


def make(plan: Plan, store: Store, hire: Hire, watch: Watch) -> list[Made]:
    """What the runs of every row give, in order."""
    made = _warm_up(plan, store, hire, watch)
    going = [number for number, of_row in enumerate(made) if not of_row.error]
    watch.skipped((len(made) - len(going)) * plan.amount.most)
    if plan.amount.precision is not None:
        _replicate(plan, made, going, store, hire, watch)
        return made
    replications = range(plan.amount.most)
    jobs = {number: [plan.job(number, one, made[number].warmup) for one in replications] for number in going}
    outcomes = collect((job for of_row in jobs.values() for job in of_row), plan.setup, store, hire, watch)
    for number, of_row in jobs.items():
        made[number].outcomes = [outcomes[job.run] for job in of_row]
    return made


def _warm_up(plan: Plan, store: Store, hire: Hire, watch: Watch) -> list[Made]:
    """Every row with the warm-up that is found for it, if one has to be."""
    cuts = Store(store.folder, [], store.fresh)
    missing = look_up(plan.pilots, cuts)
    watch.skipped(sum(pilot.size for pilot in plan.pilots) - sum(pilot.size for pilot in missing))
    if missing:
        crew = hire(plan.most_runs)
        for job, outcome in perform(Pilots(missing, watch), plan.setup, crew, watch):
            cuts.put(job.run, outcome)
    made = [Made() for _ in plan.rows]
    for number, (pilot, found) in warmups_of(plan).items():
        if (error := found.error_of(pilot)) is not None:
            made[number].error = error.error
            continue
        assert found.cut is not None
        made[number].warmup = found.cut.time
        made[number].warnings = [found.cut.warning] if found.cut.near_half else []
    return made


def warmups_of(plan: Plan) -> dict[int, tuple[Pilot, Warmup]]:
    """Row -> its pilot, and what those of its point found."""
    of_point: dict[int, list[Pilot]] = {}
    for row, pilot in zip(plan.rows, plan.warmups, strict=True):
        if isinstance(pilot, Pilot):
            of_point.setdefault(row.point, []).append(pilot)
    found = {point: shared(pilots) for point, pilots in of_point.items()}
    each = enumerate(zip(plan.rows, plan.warmups, strict=True))
    return {number: (pilot, found[row.point]) for number, (row, pilot) in each if isinstance(pilot, Pilot)}


def _replicate(plan: Plan, made: list[Made], going: list[int], store: Store, hire: Hire, watch: Watch) -> None:
    """Runs of the rows until each has reached its precision."""
    courses = courses_of(plan, {number: made[number].warmup for number in going})
    watch.skipped((len(going) - len(set(courses.values()))) * plan.amount.most)
    rounds = Rounds(dict.fromkeys(courses.values()), store, watch)
    crew = hire(len(rounds.going) * plan.amount.most) if rounds.going else None
    for job, outcome in perform(rounds, plan.setup, crew, watch):
        store.put(job.run, outcome)  # on disk before it counts
    for number, course in courses.items():
        made[number].outcomes = course.taken
        made[number].warnings += course.warnings


def courses_of(plan: Plan, warmups: Mapping[int, float | None]) -> dict[int, Course]:
    """Row -> its course; rows that are the same have one."""
    courses: dict[str, Course] = {}
    found = {}
    for number, warmup in warmups.items():
        course = Course(plan.amount, partial(plan.job, number, warmup=warmup))
        found[number] = courses.setdefault(plan.job(number, 0, warmup).run, course)
    return found
