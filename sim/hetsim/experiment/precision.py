"""Estimates the time of a sweep, or of reaching a wanted precision (by a pilot)."""

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from hetsim.errors import HetsimError, UsageError
from hetsim.experiment.options import LocalKeywords, StudyOptions, with_options
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.progress import Meter, Progress, run_share
from hetsim.experiment.run import prepare, tell_all, whole_series
from hetsim.experiment.stopping import cut_warmup
from hetsim.experiment.study import Case, Study
from hetsim.experiment.work import RunJob, Setup, outcome_of
from hetsim.experiment.workers import Workers
from hetsim.results.declared import DEFAULT_METRIC
from hetsim.results.formatting import metric_name, seconds
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.metrics import metric as known
from hetsim.results.statistics import (
    chi_square_quantile,
    deviation,
    excess_kurtosis,
    freedom,
    half_width,
    student_quantile,
)
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION

PILOT = 10
LONGER = (4, 16)  # Run lengths to estimate too, as multiples of the scenario's length.
LEVEL = 0.8  # Confidence level of the range of `replications`: a pilot's variance is only an estimate.


@dataclass(frozen=True)
class PrecisionPlan:
    """The number of replications that a precision needs, estimated from a pilot.

    `replications` is the expected number, with the 80 % interval `low` to `high` from the uncertainty of the pilot's
    variance.  `longer` maps a multiple of the run's length to the number of replications of that length; the variance
    falls in proportion to the length once runs are long relative to their congestion.  `spent`: wall-clock seconds of
    one replication of the pilot.
    """

    metric: str
    precision: float
    confidence: float
    mean: float
    half_width: float
    pilot: int
    replications: int
    low: int
    high: int
    longer: Mapping[int, int]
    length: str
    spent: float
    workers: int
    runs: Replications

    @property
    def sentences(self) -> list[str]:
        name, wanted = metric_name(self.metric), f"± {100 * self.precision:g} %"
        level = f"{100 * self.confidence:g} %"
        have = abs(self.half_width / self.mean)
        said = [f"Pilot: {self.pilot} replications of {self.length} give {name} to ± {100 * have:.2g} % ({level})."]
        if self.replications <= self.pilot:
            said.append(f"{wanted} is reached by the pilot; {self.replications} such runs suffice ({self._time(1)}).")
        else:
            said.append(
                f"{wanted} needs about {self.replications:,} such replications ({self.low:,} to {self.high:,}, "
                f"estimated from {self.pilot} runs): {self._time(1)}."
            )
            for times, number in self.longer.items():
                said.append(f"Runs {times} times as long: about {number:,} replications, {self._time(times, number)}.")
        said.append(
            "Longer runs cost about the same in all, lose less to the warm-up, and are needed where a run is short "
            f"relative to its congestion; at least {MIN_FOR_PRECISION} replications are made in any case."
        )
        said.append(
            f"In the scenario: replications: {{precision: {100 * self.precision:g}%, metric: {self.metric}, "
            f"max: {max(2 * self.high, 20)}}}"
        )
        return said

    def _time(self, times: int, number: int | None = None) -> str:
        total = self.spent * times * (self.replications if number is None else number) / self.workers
        by = f"{self.workers} workers" if self.workers > 1 else "one worker"
        return f"about {seconds(float(f'{total:.2g}'))} with {by}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the times, which depend on the machine."""
        return {
            "metric": self.metric, "precision": self.precision, "confidence": self.confidence, "mean": self.mean,
            "half_width": self.half_width, "pilot": self.pilot, "replications": self.replications, "low": self.low,
            "high": self.high, "longer": {str(times): number for times, number in self.longer.items()},
        }  # fmt: skip


@with_options(LocalKeywords)
def plan_precision(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    precision: float,
    metric: str = DEFAULT_METRIC,
    *,
    confidence: float = 0.95,
    pilot: int = PILOT,
    policy: PolicyLike | None = None,
    seed: int | None = None,
    **options: Unpack[LocalKeywords],
) -> PrecisionPlan:
    """Estimate, from a pilot, the replications and the time that a precision needs.

    Parameters:
        scenario, policy, seed: as for `run`.
        precision: half-width of the interval as a share of the mean, such as 0.05.
        metric, confidence: the metric of the interval, and its confidence level.
        pilot: number of replications of the pilot, which run in this process.
        workers: number of processes for which the time is stated; None for one per core.
        options: those of every study.
    Returns: the number of replications with its uncertainty, and the numbers that suffice if runs are longer.
    Raises: UsageError: a share is not between 0 and 1, `pilot` is below 5, or the metric has no interval.
    """
    known(metric)
    for what, share in (("precision", precision), ("confidence", confidence)):
        if not 0 < share < 1:
            raise UsageError(f"{what} must be a share above 0 and below 1, such as 5%; got {share:g}")
    if pilot < 5:
        raise UsageError(f"pilot must be at least 5 replications, to estimate the spread; got {pilot}")
    study_options = StudyOptions(seed=seed, **options)
    loaded = prepare(scenario, policy, study_options.overrides)
    runs, spent = _pilot(Case(loaded, seed=seed), metric, pilot, study_options.progress)
    values = runs.contributions(metric).to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        raise UsageError(f"{metric} is not finite in every replication of the pilot: choose another metric")
    if runs.identical:
        raise UsageError(runs.without_chance)
    mean, spread = float(values.mean()), deviation(values)
    if mean == 0 and spread > 0:
        raise UsageError(f"the mean of {metric} is 0, so its relative precision is undefined: choose another")
    upper = (chi_square_quantile(0.5 - LEVEL / 2, pilot - 1), chi_square_quantile(0.5 + LEVEL / 2, pilot - 1))
    high, low = (spread * math.sqrt((pilot - 1) / value) for value in upper)
    number = needed(spread, mean, precision, confidence=confidence, metric=metric)
    half = half_width(values, metric, 0.5 + confidence / 2)
    first = runs.results[0]
    length = seconds(first.horizon) if math.isfinite(first.horizon) else f"{len(first.tasks):,} tasks"
    fewer = partial(needed, mean=mean, precision=precision, confidence=confidence, metric=metric)
    longer = {times: fewer(spread / math.sqrt(times)) for times in LONGER}
    return PrecisionPlan(
        metric=metric, precision=precision, confidence=confidence, mean=mean, half_width=half, pilot=pilot,
        replications=number, low=needed(low, mean, precision, confidence=confidence, metric=metric),
        high=needed(high, mean, precision, confidence=confidence, metric=metric),
        longer={times: many for times, many in longer.items() if number > MIN_FOR_PRECISION and many < number},
        length=length, spent=spent, workers=Workers(study_options.workers).workers, runs=runs,
    )  # fmt: skip


def needed(spread: float, mean: float, precision: float, confidence: float, metric: str = "") -> int:
    """Return the replications (10 or more) for a precision; `spread`: std. deviation."""
    if not spread:
        return MIN_FOR_PRECISION

    kurtosis = excess_kurtosis(metric, spread, mean)

    def enough(number: int) -> bool:
        half = student_quantile(0.5 + confidence / 2, float(freedom(kurtosis, number))) * spread / math.sqrt(number)
        return half <= precision * abs(mean)

    high = MIN_FOR_PRECISION
    while not enough(high):
        high *= 2
    return bisect_left(range(high), True, lo=MIN_FOR_PRECISION, key=enough)


def _pilot(case: Case, metric: str, pilot: int, progress: Progress | bool | None) -> tuple[Replications, float]:
    setup = Setup((case.scenario,), (metric,))
    with Meter(progress, pilot) as meter, Study(setup, Workers(), meter=meter) as study:
        (warmup,), remarks, warnings = cut_warmup(study, [case], [pilot])
        series = whole_series(case, pilot, warmup=warmup)
        began = time.perf_counter()
        study.make([series])
        spent = time.perf_counter() - began
    tell_all([series], remarks, warnings)
    assert series.runs is not None
    return series.runs, spent / pilot


SAMPLES = 3
LONGEST = 3.0  # Maximum seconds to time one run; the time of a longer run is extrapolated from its progress.
START = 1.5  # Seconds until worker processes have started.


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a sweep.

    runs: number of runs to make (a lower bound if `is_bound`).  there: number of runs that are stored and need not be
    made.  spent: seconds of each run that was made to measure the time.
    """

    runs: int
    there: int
    workers: int
    spent: tuple[float, ...]
    is_bound: bool = False

    @property
    def total(self) -> float:
        """Estimated seconds of all runs to make; NaN if none could be timed."""
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
            return f"{number}; all tried runs failed."
        low, high = min(self.spent), max(self.spent)
        each = seconds(low) if high < 1.1 * low else f"{seconds(low)} to {seconds(high)}"
        by = f"{self.workers} workers" if self.workers > 1 else "one worker"
        tried = f"{len(self.spent)} of them" if len(self.spent) > 1 else "one of them"
        total = seconds(float(f"{self.total:.2g}"))
        text = f"{number}: about {total} with {by} ({each} a run, from {tried} tried now)"
        if self.is_bound:
            return f"{text}. This is a lower bound: the number that the precision needs is known only during the runs."
        return f"{text}."


def estimate(jobs: Sequence[RunJob], there: int, setup: Setup, workers: int, is_bound: bool = False) -> Estimate:
    """Time three of a sweep's `jobs` to estimate its cost; `there`: stored runs."""
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
