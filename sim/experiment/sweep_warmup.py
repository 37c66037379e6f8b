"""The warm-up of a sweep's points where it is `auto`: found for each from a pilot, as `hetsim compare` finds it.

A pilot is a policy's first replications at a point, at most twenty; all policies of a point share the longest of their
cuts.  What a pilot found is kept like a finished run; its runs are not, for a cut is all that is wanted of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sim.errors import UsageError
from sim.experiment.cache import Hashes, Store
from sim.experiment.jobs import Outcome, Watch
from sim.experiment.sweep_runs import Job, Queue
from sim.results.warmup import LEAST, PILOT, Cut, WarmupSeries

REMARK = (
    "warm-up: that of each point is found from a pilot (MSER-5 on the mean response of up to {runs} replications, by "
    "order of arrival) and is the longest of its policies"
)


def pilot_size(most: int) -> int:
    """Replications of a pilot where a row has `most`; UsageError if these are too few."""
    if most < LEAST:
        raise UsageError(
            f"warmup: auto takes the mean across replications, at least {LEAST} of them: ask for more "
            "(replications: 10, or --replications 10), or give the warm-up as a time (--set warmup='1 h')"
        )
    return min(PILOT, most)


@dataclass
class Pilot:
    """The pilot of a scenario with its policy: its runs are added up in their order."""

    scenario: str
    """The hash of the scenario."""
    overrides: Mapping[str, object]
    seed: int
    size: int
    hashes: Hashes
    series: WarmupSeries = field(default_factory=WarmupSeries)
    outcome: Outcome | None = None
    """What it found: a cut, or why it has none."""
    _early: dict[int, Outcome] = field(default_factory=dict)
    _next: int = 0

    @property
    def run(self) -> str:
        """The hash under which its cut is kept."""
        return self.hashes.run(f"{self.scenario} warmup", self.seed, self.size)

    @property
    def jobs(self) -> Iterator[Job]:
        for number in range(self.size):
            run = self.hashes.run(f"{self.scenario} series", self.seed, number)
            yield Job(run, dict(self.overrides), self.seed, number, series=True)

    def add(self, number: int, outcome: Outcome) -> None:
        """Take in one of its runs, in whatever order they come; after the last, or one that failed, it has an outcome.

        Of several that fail the first tells why.
        """
        self._early[number] = outcome
        while self.outcome is None and self._next in self._early:
            one = self._early.pop(self._next)
            if one.series is None:
                error = f"replication {self._next}, in the pilot that finds the warm-up: {one.error}"
                self.outcome = Outcome(None, error=error, lasting=one.lasting)
                self._early.clear()
                return
            self.series.add(*one.series)
            self._next += 1
            if self._next == self.size:
                try:
                    cut = self.series.cut
                except UsageError as error:
                    self.outcome = Outcome(None, error=str(error))
                    return
                self.outcome = Outcome({"time": cut.time, "tasks": cut.tasks, "of": cut.of, "runs": cut.runs})

    @property
    def cut(self) -> Cut | None:
        """None of one that failed."""
        if self.outcome is None or self.outcome.values is None:
            return None
        found = self.outcome.values
        return Cut(found["time"], int(found["tasks"]), int(found["of"]), int(found["runs"]))


class Pilots(Queue):
    """The runs of pilots.  `landed` gives what is to be kept: the outcome of a pilot, once it has one."""

    def __init__(self, pilots: Sequence[Pilot], watch: Watch | None = None):
        jobs = [(pilot, job) for pilot in pilots for job in pilot.jobs]
        super().__init__(job for _, job in jobs)
        self._of = {job.run: pilot for pilot, job in jobs}
        self.watch = watch

    def next(self) -> Job | None:
        while (job := super().next()) is not None:
            if self._of[job.run].outcome is None:
                return job
            self._left -= 1  # one before it failed
            if self.watch is not None:
                self.watch.skipped(1)
        return None

    def landed(self, job: Job, outcome: Outcome) -> list[tuple[Job, Outcome]]:
        self._left -= 1
        if self.watch is not None:
            self.watch.finished()
        pilot = self._of[job.run]
        if pilot.outcome is None:
            pilot.add(job.replication, outcome)
            if pilot.outcome is not None:
                return [(Job(pilot.run, dict(pilot.overrides), pilot.seed, pilot.size), pilot.outcome)]
        return []


def look_up(pilots: Sequence[Pilot], store: Store) -> list[Pilot]:
    """Those of which the store has no outcome; the others get theirs."""
    for pilot in pilots:
        pilot.outcome = store.get(pilot.run)
    return [pilot for pilot in pilots if pilot.outcome is None]


@dataclass(frozen=True)
class Warmup:
    """What the pilots of a point found: the cut that its policies share, or why one (or the point) has none."""

    cut: Cut | None
    errors: Mapping[str, Outcome]
    """Of the pilots that failed, by their `run`."""

    def error_of(self, pilot: Pilot) -> Outcome | None:
        """Why a row has no replications."""
        if pilot.run in self.errors:
            return self.errors[pilot.run]
        for error in self.errors.values():
            if not error.lasting:  # which would be tried again, and might then give another cut
                return Outcome(None, error=f"the point has no warm-up yet: {error.error}", lasting=False)
        return None


def shared(pilots: Sequence[Pilot]) -> Warmup:
    """The longest cut of the pilots of a point; one that fails for good has no part in it."""
    errors = {pilot.run: pilot.outcome for pilot in pilots if pilot.outcome is not None and pilot.cut is None}
    cuts = [cut for pilot in pilots if (cut := pilot.cut) is not None]
    return Warmup(max(cuts, key=lambda cut: cut.time, default=None), errors)
