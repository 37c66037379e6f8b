"""Runs of cases (a scenario under a policy) and their replications, in this process or in several.

What comes out does not depend on the number of workers: a run depends on nothing but scenario, seed and
replication, and outcomes are taken in order of replication, whichever is ready first.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sim.errors import RunError, ScenarioError, UsageError
from sim.experiment.executors import (
    GUARD,
    as_worker,
    close_pool,
    interrupts_held,
    packed,
    process_pool,
    start_error,
    unpacked,
)
from sim.experiment.progress import Progress, Told
from sim.scenario.schema import LEAST_FOR_PRECISION

if TYPE_CHECKING:
    import numpy as np

    from sim.engine.simulation import Simulation
    from sim.model.record import RunInput
    from sim.results.replications import Replications
    from sim.results.result import Result
    from sim.scenario.scenario import Scenario

TOO_FEW = (
    "auto takes the mean across replications, at least {} of them: ask for more "
    "(replications: 10, or --replications 10), or give the warm-up as a time (warmup: 1 h)"
)
POLL = 0.2
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class Case:
    """A scenario with its policy, under a label; `seed` and `warmup` (s) in place of the scenario's."""

    label: str
    scenario: Scenario
    seed: int | None = None
    warmup: float | None = None


@dataclass(frozen=True)
class Amount:
    """How many replications: `most`, or fewer once the interval of `metric` is within ± `precision` of its mean."""

    most: int
    precision: float | None = None
    metric: str = ""
    confidence: float = 0.95

    def enough(self, runs: Replications) -> bool:
        """Is the precision reached?  Never by an interval that is not defined."""
        if self.precision is None or len(runs) < LEAST_FOR_PRECISION:
            return False
        return runs.identical or runs.relative_half_width(self.metric, self.confidence) <= self.precision

    def remark(self, runs: Replications) -> tuple[str, bool]:
        """What to say of the precision asked for, and whether it is a warning."""
        assert self.precision is not None
        wanted = f"± {100 * self.precision:g} %"
        level = f"{100 * self.confidence:g} % interval of {self.metric}"
        found = runs.relative_half_width(self.metric, self.confidence)
        if runs.identical:
            return f"no precision of {self.metric} after {len(runs)} replications: nothing is random here", True
        if found <= self.precision:
            said = f"precision: {level} is ± {100 * found:.2g} % after {len(runs)} replications ({wanted} asked for)"
            return said, False
        if not math.isfinite(found):
            said = f"precision not reached after {len(runs)} replications ({wanted} asked for)"
            return f"{said}: the {level} is not defined", True
        needed = math.ceil(len(runs) * (found / self.precision) ** 2)
        return (
            f"precision not reached: {level} is ± {100 * found:.2g} % after {len(runs)} replications, the most allowed "
            f"({wanted} asked for); about {needed:,} would do, or longer runs"
        ), True


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: numbers, not tables.  `values` is None where the run failed.

    `series`: arrivals and responses, of a run that only looks for the warm-up.  `error`: why it failed, for who keeps
    failures beside results; `lasting` if another try would fail in the same way.
    """

    values: dict[str, float] | None
    warnings: list[str] = field(default_factory=list)
    series: tuple[np.ndarray, np.ndarray] | None = None
    error: str = ""
    lasting: bool = True


def run_cases(
    cases: list[Case],
    replications: int | Mapping[str, Any] | None,
    check: bool,
    metrics: Iterable[str],
    keep: bool,
    workers: int,
    progress: Progress | bool | None,
) -> dict[str, Result | Replications]:
    """Each case's Result, or its Replications where there are several; by label, in order."""
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if keep and workers > 1:
        raise UsageError("keep=True keeps whole runs, which stay in the process that made them: use one worker")
    amounts = [checked_amount(case.scenario, replications) for case in cases]
    further = list(metrics)
    further += [amount.metric for amount in amounts if amount.precision is not None and amount.metric not in further]
    jobs = [(number, replication) for number, amount in enumerate(amounts) for replication in range(amount.most)]
    with (
        Told(progress) as told,
        Watch(told, len(jobs)) as watch,
        runner(cases, len(jobs), check, further, workers, watch) as fetch,
    ):
        remarks, warnings = cut_warmup(fetch, [amount.most for amount in amounts])
        fetch.begin(jobs)
        found = {
            case.label: _replicate(number, amount, keep, further, fetch)
            for number, (case, amount) in enumerate(zip(cases, amounts, strict=True))
        }
    tell_all(found.values(), remarks, warnings)
    return found


def amount_of(scenario: Scenario, replications: int | Mapping[str, Any] | None) -> Amount:
    """How many replications a scenario asks for, or `replications` in its place; UsageError if that is no number."""
    from sim.scenario.schema import MOST_REPLICATIONS, Precision

    wanted: Any = scenario.model.replications if replications is None else replications
    if isinstance(wanted, Mapping):
        from pydantic import ValidationError

        try:
            wanted = Precision.model_validate(dict(wanted))
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"replications: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if isinstance(wanted, Precision):
        from sim.results.metrics import metric

        metric(wanted.metric)  # an unknown name is said before the first run, not after
        return Amount(wanted.max, wanted.precision, wanted.metric, wanted.confidence)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= MOST_REPLICATIONS:
        raise UsageError(f"replications must be a whole number from 1 to {MOST_REPLICATIONS:,}, not {wanted!r}")
    return Amount(wanted)


def checked_amount(scenario: Scenario, replications: int | Mapping[str, Any] | None) -> Amount:
    """The same; ScenarioError where the scenario's own number is too small for its own `warmup: auto`."""
    from sim.results.warmup import LEAST

    amount = amount_of(scenario, replications)
    if replications is None and scenario.model.warmup == "auto" and amount.most < LEAST:
        raise ScenarioError(scenario.document.problem(("warmup",), TOO_FEW.format(LEAST)))
    return amount


def rehearse(scenario: Scenario) -> RunInput:
    """Everything that `run_cases` does with a scenario before its clock starts, and no more: the input of the run."""
    checked_amount(scenario, None)
    return scenario.begin().input


def tell_all(found: Iterable[Result | Replications], remarks: list[str], warnings: list[str]) -> None:
    """What was said of all cases together, beside the figures of each."""
    from sim.results.replications import Replications

    for outcome in found:
        if isinstance(outcome, Replications):
            outcome.remarks[:0] = remarks
            outcome.warnings += warnings


def cut_warmup(fetch: Fetch, most: list[int]) -> tuple[list[str], list[str]]:
    """Where `warmup: auto` is asked for, finds the cut, sets it for all such cases, and tells it.

    It costs a pilot of at most `PILOT` replications of each, which are then made again.  Policies that are compared
    share the longest of their cuts, so that they are measured over the same tasks.
    """
    from sim.results.warmup import LEAST, PILOT, WarmupSeries

    numbers = [number for number, case in enumerate(fetch.cases) if case.scenario.model.warmup == "auto"]
    if not numbers:
        return [], []
    pilots = {number: min(PILOT, most[number]) for number in numbers}
    if min(pilots.values()) < LEAST:
        raise UsageError(f"warmup: {TOO_FEW.format(LEAST)}")
    fetch.watch.skipped(-sum(pilots.values()))
    fetch.begin([(number, replication) for number in numbers for replication in range(pilots[number])], series=True)
    cuts = []
    for number in numbers:
        series = WarmupSeries()
        for replication in range(pilots[number]):
            outcome = fetch(number, replication)
            assert outcome.series is not None
            series.add(*outcome.series)
            fetch.watch.finished()
        cuts.append(series.cut)
    longest = max(cuts, key=lambda cut: cut.time)
    for number in numbers:
        fetch.cases[number] = replace(fetch.cases[number], warmup=longest.time)
    remark = longest.sentence + (", the longest of those compared" if len(numbers) > 1 and longest.tasks else "")
    return [remark], [longest.warning] if longest.near_half else []


def _replicate(
    number: int, amount: Amount, keep: bool, metrics: list[str], fetch: Fetch
) -> Result | Replications:
    """All replications of one case, taken in order."""
    first = simulate(fetch.cases[number], 0, check=fetch.check, watch=fetch.watch)
    fetch.watch.finished()
    if amount.most == 1:
        return first
    runs = begun(first, metrics, keep)
    for replication in range(1, amount.most):
        if amount.enough(runs):
            fetch.watch.skipped(amount.most - replication)
            break
        if keep:
            runs.add(simulate(fetch.cases[number], replication, check=fetch.check, watch=fetch.watch))
        else:
            take(runs, fetch(number, replication), replication)
        fetch.watch.finished()
    if amount.precision is not None:
        text, warns = amount.remark(runs)
        (runs.warnings if warns else runs.remarks).append(text)
    return runs


def begun(first: Result, metrics: list[str], keep: bool = False) -> Replications:
    """Replications with the first run, which stays whole: it is shown, drawn and explained for all."""
    from sim.results.replications import Replications

    runs = Replications([first], metrics, keep=keep)
    if not keep:
        runs.results.append(first)
    return runs


def take(runs: Replications, outcome: Outcome, replication: int) -> None:
    """One more replication."""
    assert outcome.values is not None
    runs.add_values(outcome.values)
    runs.warnings += [f"replication {replication}: {warning}" for warning in outcome.warnings]


def simulate(case: Case, replication: int, *, check: bool = False, watch: Watch | None = None) -> Result:
    """One run.  A RunError carries the tables up to then as `result`."""
    from sim.results.result import Result

    scenario = case.scenario
    seed = scenario.model.seed if case.seed is None else case.seed
    about: dict[str, Any] = {
        "name": scenario.name,
        "seed": seed,
        "replication": replication,
        "policy": scenario.policies.label,
        "scenario": scenario.to_yaml(absolute_paths=True),
    }
    if case.warmup is not None:  # found after the scenario was written: the saved one says how long it was
        about["scenario"] = scenario.to_yaml(absolute_paths=True, warmup=f"{case.warmup!r} s")
    simulation = scenario.begin(seed, replication, check=check, warmup=case.warmup)
    if watch is not None:
        watch.simulation = simulation
    try:
        record = simulation.run()
    except RunError as error:
        partial = getattr(error, "record", None)
        if partial is not None:
            error.result = Result(partial, error=str(error), **about)
        raise
    finally:
        if watch is not None:
            watch.simulation = None
    return Result(record, **about)


def outcome_of(
    case: Case, replication: int, check: bool, metrics: list[str], series: bool, watch: Watch | None = None
) -> Outcome:
    """What a run gives, as numbers."""
    from sim.results.replications import replication_values
    from sim.results.warmup import response_series

    result = simulate(case, replication, check=check, watch=watch)
    if series:
        return Outcome({}, series=response_series(result))
    return Outcome(replication_values(result, metrics), result.warnings)


# Where runs are made -----------------------------------------------------------------------------------------


class Fetch:
    """Gives the outcome of a replication of a case: here, made on the spot."""

    def __init__(self, cases: list[Case], check: bool, metrics: list[str], watch: Watch):
        self.cases, self.check, self.metrics, self.watch = list(cases), check, metrics, watch
        self.series = False

    def begin(self, jobs: list[tuple[int, int]], series: bool = False) -> None:
        """These are wanted next, more or less in this order; with `series` only their arrivals and responses."""
        self.series = series

    def drop(self, number: int) -> None:
        """No more of this case."""

    def __call__(self, number: int, replication: int) -> Outcome:
        return outcome_of(self.cases[number], replication, self.check, self.metrics, self.series, self.watch)


class FetchFromPool(Fetch):
    """Gives what worker processes made ahead, and makes the next ones here rather than wait for those under way.

    So of n workers n - 1 are processes of their own: one start-up less, a second of imports, and none is idle.
    """

    def __init__(self, pool: ProcessPoolExecutor, workers: int, *others: Any):
        super().__init__(*others)
        self.pool, self.workers = pool, workers
        self.place: dict[tuple[int, int], int] = {}
        self.queue: deque[tuple[int, int]] = deque()
        self.dropped: set[int] = set()
        self.futures: dict[tuple[int, int], Future[Outcome]] = {}
        self.made: dict[tuple[int, int], Outcome] = {}
        self.in_flight = 0
        self.lock = threading.RLock()  # a worker that is done is given its next job in the pool's thread

    def begin(self, jobs: list[tuple[int, int]], series: bool = False) -> None:
        super().begin(jobs, series)
        with self.lock:
            wanted = jobs if series else [job for job in jobs if job[1] > 0]  # first runs are made here, whole
            self.place = {job: place for place, job in enumerate(wanted)}
            self.queue = deque(wanted)
            self._submit()

    def drop(self, number: int) -> None:
        with self.lock:
            self.dropped.add(number)
            self._forget(lambda job: job[0] == number)

    def _forget(self, unwanted: Callable[[tuple[int, int]], bool]) -> None:
        for job in [job for job in self.futures if unwanted(job)]:
            self.futures.pop(job).cancel()
        for job in [job for job in self.made if unwanted(job)]:
            del self.made[job]

    def _next(self) -> tuple[int, int] | None:
        """The next job, unless there is enough ahead already that may turn out not to be needed."""
        while self.queue and self.queue[0][0] in self.dropped:
            self.queue.popleft()
        ahead = len(self.futures) + len(self.made)
        return self.queue.popleft() if self.queue and ahead < 2 * self.workers else None

    def _submit(self) -> None:
        with self.lock:
            while self.in_flight < self.workers - 1 and (job := self._next()) is not None:
                with interrupts_held():
                    future = self.pool.submit(_work, *job, self.cases[job[0]].warmup, self.series)
                self.in_flight += 1
                self.futures[job] = future
                future.add_done_callback(self._landed)

    def _landed(self, _: Future[Outcome]) -> None:
        with self.lock, suppress(RuntimeError):  # the pool is closing, or broken: whoever asks for a result is told
            self.in_flight -= 1
            self._submit()

    def __call__(self, number: int, replication: int) -> Outcome:
        wanted = (number, replication)
        here = self.place[wanted]
        with self.lock:  # replications that an earlier case no longer needs make room
            self._forget(lambda job: self.place[job] < here)
            while self.queue and self.place[self.queue[0]] < here:
                self.queue.popleft()
        outcome = self._outcome(wanted)
        self._submit()
        if outcome is None or outcome.values is None:
            # Made here, where the tables up to a failure can be kept.
            return super().__call__(number, replication)
        return outcome

    def _outcome(self, wanted: tuple[int, int]) -> Outcome | None:
        """Of a job that is done, or that a worker has; None of one that is still to be made."""
        while True:
            with self.lock:
                if wanted in self.made:
                    return self.made.pop(wanted)
                if wanted not in self.futures:
                    self.queue.remove(wanted)
                    return None
                future = self.futures[wanted]
                job = None if future.done() else self._next()
            if job is None:
                found = future.result()
                with self.lock:
                    self.futures.pop(wanted, None)
                return found
            try:
                made = Fetch.__call__(self, *job)
            except Exception:  # told when its turn comes, if it does
                made = Outcome(None)
            with self.lock:
                self.made[job] = made


@contextmanager
def runner(
    cases: list[Case], runs: int, check: bool, metrics: list[str], workers: int, watch: Watch
) -> Iterator[Fetch]:
    workers = min(workers, runs - len(cases))
    if workers < 2:
        yield Fetch(cases, check, metrics, watch)
        return
    pool = process_pool(workers - 1, _set_up, packed((cases, check, metrics)))
    at_once = False
    try:
        yield FetchFromPool(pool, workers, cases, check, metrics, watch)
    except BrokenProcessPool:
        raise RunError(f"a worker process died (out of memory?); try fewer workers. {GUARD}") from None
    except RuntimeError as error:
        raise start_error(error) from None
    except BaseException:
        at_once = True
        raise
    finally:
        close_pool(pool, at_once=at_once)


_worker: dict[str, Any] = {}
"""In a worker process: what it was set up with."""


def _set_up(setup: bytes) -> None:
    as_worker()
    cases, check, metrics = unpacked(setup)
    _worker.update(cases=cases, check=check, metrics=metrics)


def _work(number: int, replication: int, warmup: float | None, series: bool) -> Outcome:
    case = replace(_worker["cases"][number], warmup=warmup)
    try:
        return outcome_of(case, replication, _worker["check"], _worker["metrics"], series)
    except RunError:
        return Outcome(None)


# Progress ----------------------------------------------------------------------------------------------------


class Watch:
    """Reports progress from a thread of its own, so that the engine's loop does not pay for it."""

    def __init__(self, progress: Progress | None, runs: int):
        self.progress, self.runs = progress, runs
        self.done = 0
        self.simulation: Simulation | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def finished(self) -> None:
        self.done += 1

    def skipped(self, runs: int) -> None:
        self.runs -= runs

    def share(self) -> float:
        return min(1.0, (self.done + run_share(self.simulation)) / max(self.runs, 1))

    def _report(self) -> None:
        assert self.progress is not None
        while not self._stop.wait(POLL):
            self.progress(self.share())

    def __enter__(self) -> Watch:
        if self.progress is not None:
            self._thread = threading.Thread(target=self._report, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            if kind is None and self.progress is not None:  # also of work that was done before the first report
                self.progress(self.share())


def run_share(simulation: Simulation | None) -> float:
    """How far a run is: by tasks that ended or by time to the horizon, whichever is further."""
    if simulation is None:
        return 0.0
    ended = simulation.ended / max(len(simulation.tasks), 1)
    horizon = simulation.input.horizon
    return ended if math.isinf(horizon) else max(ended, simulation.view.now / horizon)
