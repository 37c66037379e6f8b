"""Runs of cases (a scenario under a policy) and their replications, in this process or in several.

What comes out does not depend on the number of workers: a run depends on nothing but scenario, seed and
replication, and outcomes are taken in order of replication, whichever is ready first.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from sim import registry
from sim.errors import RunError, UsageError

if TYPE_CHECKING:
    from sim.engine.simulation import Simulation
    from sim.results.replications import Replications
    from sim.results.result import Result
    from sim.scenario.scenario import Scenario

Progress = Callable[[float], None]
"""Told the share of all work that is done, 0 to 1."""

LEAST_FOR_PRECISION = 5
"""Replications before a precision is believed: with fewer, narrow intervals come about by chance."""

POLL = 0.2
"""Seconds between two reports of progress."""


_GUARD = 'A script that asks for workers needs its own code under `if __name__ == "__main__":`.'


@dataclass(frozen=True)
class Case:
    """A scenario with its policy, under a label; `seed` in place of the scenario's."""

    label: str
    scenario: Scenario
    seed: int | None = None


@dataclass(frozen=True)
class Amount:
    """How many replications: `most`, or fewer once the interval of `metric` is within ± `precision` of its mean."""

    most: int
    precision: float | None = None
    metric: str = ""
    confidence: float = 0.95

    def enough(self, runs: Replications) -> bool:
        if self.precision is None or len(runs) < LEAST_FOR_PRECISION:
            return False
        interval = runs.interval(self.metric, self.confidence)
        return interval.half_width <= self.precision * abs(interval.mean)


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: numbers, not tables.  `values` is None where the run failed."""

    values: dict[str, float] | None
    warnings: list[str] = field(default_factory=list)


def run_cases(
    cases: list[Case],
    replications: int | Mapping[str, Any] | None,
    check: bool,
    metrics: Iterable[str],
    keep: bool,
    workers: int,
    progress: Progress | None,
) -> dict[str, Result | Replications]:
    """Each case's Result, or its Replications where there are several; by label, in order."""
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if keep and workers > 1:
        raise UsageError("keep=True keeps whole runs, which stay in the process that made them: use one worker")
    amounts = [_amount(case.scenario, replications) for case in cases]
    further = list(metrics)
    further += [amount.metric for amount in amounts if amount.precision is not None and amount.metric not in further]
    watch = _Watch(progress, sum(amount.most for amount in amounts))
    jobs = [(number, replication) for number, amount in enumerate(amounts) for replication in range(amount.most)]
    with watch, _runner(cases, jobs, check, further, workers, watch) as fetch:
        return {
            case.label: _replicate(case, number, amount, keep, further, fetch, watch)
            for number, (case, amount) in enumerate(zip(cases, amounts, strict=True))
        }


def _amount(scenario: Scenario, replications: int | Mapping[str, Any] | None) -> Amount:
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


def _replicate(
    case: Case, number: int, amount: Amount, keep: bool, metrics: list[str], fetch: Fetch, watch: _Watch
) -> Result | Replications:
    """All replications of one case, taken in order."""
    from sim.results.replications import Replications

    # The first run stays whole: it is shown, drawn and explained for all.
    first = simulate(case, 0, check=fetch.check, watch=watch)
    watch.finished()
    if amount.most == 1:
        return first
    runs = Replications([first], metrics, keep=keep)
    if not keep:
        runs.results.append(first)
    for replication in range(1, amount.most):
        if amount.enough(runs):
            watch.skipped(amount.most - replication)
            break
        if keep:
            runs.add(simulate(case, replication, check=fetch.check, watch=watch))
        else:
            outcome = fetch(number, replication)
            assert outcome.values is not None
            runs.add_values(outcome.values)
            runs.warnings += [f"replication {replication}: {warning}" for warning in outcome.warnings]
        watch.finished()
    return runs


def simulate(case: Case, replication: int, *, check: bool = False, watch: _Watch | None = None) -> Result:
    """One run.  A RunError carries the tables up to then as `result`."""
    from sim.engine.simulation import Simulation
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
    simulation = Simulation(scenario.build(seed, replication), check=check)
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


def _outcome(case: Case, replication: int, check: bool, metrics: list[str]) -> Outcome:
    from sim.results.replications import replication_values

    result = simulate(case, replication, check=check)
    return Outcome(replication_values(result, metrics), result.warnings)


# Where runs are made -----------------------------------------------------------------------------------------


class Fetch:
    """Gives the outcome of a replication of a case: here, made on the spot."""

    def __init__(self, cases: list[Case], check: bool, metrics: list[str], watch: _Watch):
        self.cases, self.check, self.metrics, self.watch = cases, check, metrics, watch

    def __call__(self, number: int, replication: int) -> Outcome:
        from sim.results.replications import replication_values

        result = simulate(self.cases[number], replication, check=self.check, watch=self.watch)
        return Outcome(replication_values(result, self.metrics), result.warnings)


class FetchFromPool(Fetch):
    """Gives what worker processes made ahead: a few jobs more than there are workers are in flight."""

    def __init__(self, jobs: list[tuple[int, int]], pool: ProcessPoolExecutor, ahead: int, *others: Any):
        super().__init__(*others)
        self.pool, self.ahead = pool, ahead
        self.to_submit = iter([job for job in jobs if job[1] > 0])
        self.futures: dict[tuple[int, int], Future[Outcome]] = {}
        self._submit()

    def _submit(self) -> None:
        while len(self.futures) < self.ahead and (job := next(self.to_submit, None)) is not None:
            self._send(job)

    def _send(self, job: tuple[int, int]) -> None:
        with _interrupts_held():
            self.futures[job] = self.pool.submit(_work, *job)

    def __call__(self, number: int, replication: int) -> Outcome:
        # Replications that an earlier case no longer needs make room.
        for job in [job for job in self.futures if job < (number, replication)]:
            self.futures.pop(job).cancel()
        while (number, replication) not in self.futures:
            job = next(self.to_submit)
            if job >= (number, replication):
                self._send(job)
        outcome = self.futures.pop((number, replication)).result()
        self._submit()
        if outcome.values is None:
            # Made again here, where the tables up to the failure can be kept.
            return super().__call__(number, replication)
        return outcome


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile, and processes started now never see it.

    One that is still importing would answer it with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _runner(
    cases: list[Case], jobs: list[tuple[int, int]], check: bool, metrics: list[str], workers: int, watch: _Watch
) -> Iterator[Fetch]:
    workers = min(workers, sum(1 for _, replication in jobs if replication > 0))
    if workers < 2:
        yield Fetch(cases, check, metrics, watch)
        return
    setup = _packed((cases, check, metrics, registry._registered))
    # Spawned, not forked: the same on every platform, and no thread of ours is copied in the middle of its work.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_set_up, initargs=(setup,))
    try:
        yield FetchFromPool(jobs, pool, 2 * workers, cases, check, metrics, watch)
    except BrokenProcessPool:
        raise RunError(f"a worker process died (out of memory?); try fewer workers. {_GUARD}") from None
    except RuntimeError as error:
        if "bootstrapping" in str(error):  # we are in a worker that reads the script which started it
            raise UsageError(_GUARD) from None
        raise
    except BaseException:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _packed(setup: Any) -> bytes:
    """Pickled here, so that what cannot be sent is said in a sentence."""
    import pickle

    try:
        return pickle.dumps(setup)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise UsageError(
            f"this cannot be sent to worker processes ({problem}); put your policy into a module, or use one worker"
        ) from None


_worker: dict[str, Any] = {}
"""In a worker process: what it was set up with."""


def _set_up(setup: bytes) -> None:
    import pickle

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that started us
    cases, check, metrics, registered = pickle.loads(setup)
    for kind, items in registered.items():
        for name, item in items.items():
            registry.register(name, item, kind)
    _worker.update(cases=cases, check=check, metrics=metrics)


def _work(number: int, replication: int) -> Outcome:
    try:
        return _outcome(_worker["cases"][number], replication, _worker["check"], _worker["metrics"])
    except RunError:
        return Outcome(None)


# Progress ----------------------------------------------------------------------------------------------------


class _Watch:
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
        return min(1.0, (self.done + _share(self.simulation)) / max(self.runs, 1))

    def _report(self) -> None:
        assert self.progress is not None
        while not self._stop.wait(POLL):
            self.progress(self.share())

    def __enter__(self) -> _Watch:
        if self.progress is not None:
            self._thread = threading.Thread(target=self._report, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()


def _share(simulation: Simulation | None) -> float:
    """How far a run is: by tasks that ended or by time to the horizon, whichever is further."""
    if simulation is None:
        return 0.0
    ended = simulation.ended / max(len(simulation.tasks), 1)
    horizon = simulation.input.horizon
    return ended if math.isinf(horizon) else max(ended, simulation.view.now / horizon)
