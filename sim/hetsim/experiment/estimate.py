"""The estimated cost of a sweep: a few of its runs are made, or begun, and timed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.errors import HetsimError
from hetsim.experiment.progress import run_share
from hetsim.experiment.work import RunJob, Setup, outcome_of
from hetsim.results.formatting import seconds

SAMPLES = 3
LONGEST = 3.0
"""Seconds that one of them may take; of a longer run the rest is estimated from the share done."""
START = 1.5
"""Seconds until worker processes are there."""


@dataclass(frozen=True)
class Estimate:
    """Numbers of runs to make and already `there`, and the seconds of those tried."""

    runs: int
    there: int
    workers: int
    spent: tuple[float, ...]
    is_bound: bool = False

    @property
    def total(self) -> float:
        """Seconds of the minimum number of runs; NaN if none could be tried."""
        if not self.spent:
            return float("nan")
        each = sum(self.spent) / len(self.spent)
        return each * self.runs / self.workers + (START if self.workers > 1 else 0.0)

    @property
    def sentence(self) -> str:
        number = f"{'at least ' if self.is_bound else ''}{self.runs:,} run{'s' if self.runs != 1 else ''} to make"
        if self.there:
            number += f", {self.there:,} there already"
        if not self.runs:
            return f"{number}."
        if not self.spent:
            return f"{number}; those that were tried failed."
        low, high = min(self.spent), max(self.spent)
        each = seconds(low) if high < 1.1 * low else f"{seconds(low)} to {seconds(high)}"
        by = f"{self.workers} workers" if self.workers > 1 else "one worker"
        tried = f"{len(self.spent)} of them" if len(self.spent) > 1 else "one of them"
        total = seconds(float(f"{self.total:.2g}"))
        text = f"{number}: about {total} with {by} ({each} a run, from {tried} tried now)"
        if self.is_bound:
            return f"{text}, which is a lower bound: how many the precision takes, the runs will tell."
        return f"{text}."


def estimate(jobs: Sequence[RunJob], there: int, setup: Setup, workers: int, is_bound: bool = False) -> Estimate:
    """Time the first, the middle and the last job; `is_bound`: there may be more."""
    chosen = sorted({0, len(jobs) // 2, len(jobs) - 1}) if jobs else []
    spent = []
    for number in chosen[:SAMPLES]:
        try:
            spent.append(_time(jobs[number], setup))
        except HetsimError:
            continue  # it will be a row with its error
    return Estimate(runs=len(jobs), there=there, workers=workers, spent=tuple(spent), is_bound=is_bound)


def _time(job: RunJob, setup: Setup) -> float:
    scenario = setup.scenarios[job.scenario].with_overrides(job.overrides)
    simulation = scenario.begin(job.seed, job.replication, check=setup.check)
    began = time.perf_counter()
    while simulation.advance():
        for decision in simulation.input.scheduler.schedule(simulation.view):
            simulation.apply(decision)
        if (passed := time.perf_counter() - began) > LONGEST:
            return passed / max(run_share(simulation), 1e-6)
    began = time.perf_counter()  # short enough to be made in full, tables and metrics too
    outcome_of(setup, scenario, job)
    return time.perf_counter() - began
