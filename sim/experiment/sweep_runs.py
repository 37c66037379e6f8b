"""The runs of a sweep, on whatever executor: each job says all that a worker needs to know.

What comes out depends neither on who makes a run nor on the order in which they end.  An outcome counts once, when its
future gives it here: a worker that died with it, or a cluster that made it twice, adds nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from sim.errors import InvariantError, RunError, ScenarioError, UsageError
from sim.experiment.cache import fingerprint
from sim.experiment.executors import Crew, differences, packed, unpacked
from sim.experiment.jobs import POLL, Case, Outcome, Watch, outcome_of
from sim.scenario.scenario import Scenario

KEPT = 4
"""Scenarios, and traces, that a worker keeps for the next job."""

LOST = "a worker process died in this run, and another when it was tried again (out of memory?)"


@dataclass(frozen=True)
class Setup:
    """What all runs of a sweep have in common."""

    scenario: Scenario
    metrics: tuple[str, ...] = ()
    check: bool = False


@dataclass(frozen=True)
class Job:
    """One run: the hash it is kept under, what makes its scenario of the sweep's, seed and replication.

    `warmup` (s) in place of the scenario's; `series`: only its arrivals and responses are wanted, to find the warm-up.
    """

    run: str
    overrides: dict[str, Any]
    seed: int
    replication: int
    warmup: float | None = None
    series: bool = False


class Queue:
    """Jobs that are all needed, in this order: what `perform` makes.

    Another kind of queue may decide what is needed next by the outcomes that it was told of.
    """

    def __init__(self, jobs: Iterable[Job]):
        self._jobs = deque(jobs)
        self._left = len(self._jobs)

    @property
    def open(self) -> bool:
        """Is there an outcome that is still needed?"""
        return self._left > 0

    def next(self) -> Job | None:
        """A job that is needed; None if there is none at present."""
        return self._jobs.popleft() if self._jobs else None

    def ahead(self) -> Job | None:
        """One that may turn out to be needed, for workers who would be idle; None if there is none."""
        return None

    def landed(self, job: Job, outcome: Outcome) -> list[tuple[Job, Outcome]]:
        """Take in an outcome; those that count from now on, in the order in which they do."""
        self._left -= 1
        return [(job, outcome)]


def perform(
    queue: Queue, setup: Setup, crew: Crew | None = None, watch: Watch | None = None
) -> Iterator[tuple[Job, Outcome]]:
    """The outcomes that are needed, whichever counts first; without a crew made here, one after the other.

    A job whose worker died is tried again, alone; if that worker dies too, its outcome is the error.
    """
    if crew is None:
        scenarios = _Kept()
        while (job := queue.next()) is not None:
            yield from queue.landed(job, _made(setup, "", job, scenarios, watch))
        return
    like = fingerprint() if crew.elsewhere else None
    for job, outcome in _spread(queue, packed((setup, like)), crew):
        yield from queue.landed(job, outcome)


def _spread(queue: Queue, setup: bytes, crew: Crew) -> Iterator[tuple[Job, Outcome]]:
    again, suspects = deque[Job](), deque[Job]()
    deaths: dict[str, int] = {}
    flight: dict[Future, Job] = {}
    alone = False  # what is under way was submitted as a suspect

    def needed() -> Job | None:
        return again.popleft() if again else queue.next()

    while queue.open:
        broken = False
        if not (alone and flight):
            alone = bool(suspects) and not flight
            if suspects:
                broken = not _fill(flight, lambda: suspects.popleft() if suspects else None, 1, suspects, setup, crew)
            else:
                broken = not (
                    _fill(flight, needed, crew.room, again, setup, crew)
                    and _fill(flight, queue.ahead, crew.workers, again, setup, crew)
                )
        done, _ = wait(flight, timeout=POLL, return_when=FIRST_COMPLETED)
        lost = []
        while done:
            for future in done:
                job = flight.pop(future)
                outcome = _landed(future)
                if outcome is None:
                    lost.append(job)
                else:
                    yield job, outcome
            # When one worker has died none is left, and all futures are about to say so.
            done = set(flight) if lost else set()
        if not (broken or lost):
            continue
        crew.renew()
        if alone and lost:
            yield lost.pop(), Outcome(None, error=LOST, lasting=False)
        alone = False
        for job in lost:
            deaths[job.run] = deaths.get(job.run, 0) + 1
            (again.appendleft if deaths[job.run] == 1 else suspects.append)(job)
    for future in flight:  # made ahead for nothing
        future.cancel()
    crew.unwanted = bool(flight)


def _fill(
    flight: dict[Future, Job], take: Callable[[], Job | None], room: int, back: deque[Job], setup: bytes, crew: Crew
) -> bool:
    """Submit what there is room for; False, and the job put `back`, if the executor turned out to be broken."""
    while len(flight) < room and (job := take()) is not None:
        try:
            flight[crew.submit(work, setup, job)] = job
        except BrokenExecutor:
            back.appendleft(job)
            return False
    return True


def _landed(future: Future) -> Outcome | None:
    """What a job gave; None if its worker died and took the executor with it."""
    try:
        found: Outcome = future.result()
        return found
    except BrokenExecutor:
        return None
    except UsageError:  # a worker that is not like this machine
        raise
    except CancelledError:
        raise RunError("the workers are gone: the connection to their scheduler is lost") from None
    except Exception as error:  # what the executor says of a worker that it lost
        said = " ".join(str(error).split())
        return Outcome(None, error=f"{type(error).__name__}: {said}", lasting=False)


# In a worker ------------------------------------------------------------------------------------------------------


class _Kept:
    """The scenarios and traces of the last jobs, for those of a point have one scenario, and all often one trace."""

    def __init__(self) -> None:
        self.scenarios: OrderedDict[str, Scenario] = OrderedDict()
        self.tables: OrderedDict[str, Any] = OrderedDict()
        self.lock = threading.Lock()

    def scenario(self, setup: Setup, digest: str, job: Job) -> Scenario:
        key = hashlib.sha256(f"{digest} {job.overrides!r}".encode()).hexdigest()
        with self.lock:
            found = self.scenarios.get(key)
            if found is None:
                found = setup.scenario.with_overrides(job.overrides)
                for entry, spec in found.traces.items():
                    found.share_table(entry, self._table(found, entry, f"{digest} {spec!r}"))
                self._keep(self.scenarios, key, found)
        return found

    def _table(self, scenario: Scenario, entry: int, key: str) -> Any:
        if key not in self.tables:
            self._keep(self.tables, key, scenario.traces[entry].read())
        return self.tables[key]

    @staticmethod
    def _keep(shelf: OrderedDict[str, Any], key: str, value: Any) -> None:
        shelf[key] = value
        if len(shelf) > KEPT:
            shelf.popitem(last=False)


_kept = _Kept()
_setups: OrderedDict[str, Setup] = OrderedDict()
"""In a worker process: what it was told last."""


def work(setup: bytes, job: Job) -> Outcome:
    """One job, in a worker.  UsageError if it is not like the machine that sent it."""
    digest = hashlib.sha256(setup).hexdigest()
    if digest not in _setups:
        told, expected = unpacked(setup)
        if expected is not None and expected != fingerprint():
            raise UsageError(f"a worker is not like this machine: {differences(expected, fingerprint())}")
        _setups[digest] = told
        if len(_setups) > KEPT:
            _setups.popitem(last=False)
    return _made(_setups[digest], digest, job, _kept)


def _made(setup: Setup, digest: str, job: Job, kept: _Kept, watch: Watch | None = None) -> Outcome:
    """What a run gives, or why it failed."""
    try:
        case = Case("", kept.scenario(setup, digest, job), job.seed, job.warmup)
        return outcome_of(case, job.replication, setup.check, list(setup.metrics), job.series, watch)
    except InvariantError as error:
        return Outcome(None, error=f"{error} (a defect of hetsim, please report it)")
    except (RunError, ScenarioError) as error:
        return Outcome(None, error=str(error))
    except MemoryError:
        return Outcome(None, error="out of memory", lasting=False)
    except Exception as error:
        said = " ".join(str(error).split())
        again = isinstance(error, OSError)  # a full disk, say: may go well next time
        return Outcome(None, error=f"{type(error).__name__}: {said or 'no message'}", lasting=not again)
