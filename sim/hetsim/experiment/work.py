"""One run as a job: what a worker receives, executes and returns."""

import gc
import hashlib
import platform
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hetsim.errors import InvariantError, RunError, ScenarioError, UsageError
from hetsim.experiment.identity import Identity, Signature, differences, fingerprint, signature, undeclared
from hetsim.experiment.progress import Meter
from hetsim.experiment.workers import unpacked
from hetsim.model.files import recorded_inputs, watch_opens
from hetsim.results.declared import added_to_summaries, current_name
from hetsim.results.many_runs.replications import ALWAYS, replication_values
from hetsim.results.many_runs.warmup import response_series
from hetsim.results.one_run.estimands import weight_of
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario

LARGE = 100_000  # Tasks above which a run's memory is freed at once, which takes a tenth of a second.
SPAN = 1.0  # Seconds after which a worker starts no further run of its job.
SHELF = 4  # Number of scenarios, and of traces, that a worker caches.


@dataclass(frozen=True)
class Setup:
    """Data shared by all runs of a study; audit: find inputs that no scenario names."""

    scenarios: tuple[Scenario, ...]
    metrics: tuple[str, ...] = ()
    check: bool = False
    audit: bool = False
    keep: tuple[str, ...] = ()  # the only metrics that are kept; empty: all

    def __post_init__(self) -> None:
        if not self.keep:  # a run that was stored before one of these was declared lacks it
            object.__setattr__(self, "metrics", tuple(dict.fromkeys((*self.metrics, *added_to_summaries()))))


@dataclass(frozen=True)
class RunJob:
    """One run: scenario number, changes to the scenario, seed and replication.

    `warmup` (s) replaces the scenario's; `pilot`: the run only yields arrivals and response times, to find the warm-up.
    `digest`: expected digest of scenario and input files, compared on the worker before the run; empty: no check.
    """

    scenario: int
    overrides: Mapping[str, Any]
    seed: int
    replication: int
    warmup: float | None = None
    pilot: bool = False
    digest: str = ""


class OtherInputs(Exception):
    """Raised if the inputs of a job differ on the worker, or are unreadable there."""

    def __init__(self, job: RunJob, parts: Mapping[str, str], problem: str = "", host: str = ""):
        self.job, self.parts, self.problem, self.host = job, dict(parts), problem, host or platform.node()
        super().__init__(problem or "other inputs")

    def __reduce__(self) -> tuple:
        return type(self), (self.job, self.parts, self.problem, self.host)


@dataclass(frozen=True)
class RunOutcome:
    """Metrics of a run; if the run failed, `values` is None and `error` says why.

    `series`: arrivals and response times of a pilot.  `lasting`: True if the failure would occur again.  `refused`: the
    scenario's checks failed before anything ran.  `unknown`: inputs that the run's digest does not cover.  `reduced`:
    `values` has only the metrics that the study was to keep.
    """

    values: Mapping[str, float] | None
    warnings: list[str] = field(default_factory=list)
    series: tuple[np.ndarray, np.ndarray] | None = None
    error: str = ""
    lasting: bool = True
    refused: bool = False
    unknown: str = ""
    reduced: bool = False

    def packed(self) -> "RunOutcome":
        """Return the outcome in a tenth of the memory, for studies of a million runs."""
        if not self.values or isinstance(self.values, Packed):
            return self
        return replace(self, values=Packed(self.values))

    def only(self, figures: Sequence[str]) -> "RunOutcome":
        """Return the outcome with only these metrics, and the counts that weight them."""
        if not figures or self.values is None:
            return self
        wanted = needed_for(figures)
        if self.reduced and wanted.issuperset(self.values):
            return self
        return replace(self, values={name: self.values[name] for name in self.values if name in wanted}, reduced=True)


class Packed(Mapping[str, float]):
    """Read-only mapping of names to numbers, as an array; equal names are stored once."""

    __slots__ = ("_at", "_names", "numbers")

    def __init__(self, values: Mapping[str, float]):
        self._names, self._at = _positions(tuple(values))
        self.numbers = array("d", values.values())

    @classmethod
    def from_numbers(cls, names: tuple[str, ...], numbers: "array[float]") -> "Packed":
        packed = cls.__new__(cls)
        packed._names, packed._at = _positions(names)
        packed.numbers = numbers
        return packed

    def __reduce__(self) -> tuple:
        return Packed.from_numbers, (self._names, self.numbers)

    def __getitem__(self, name: str) -> float:
        return self.numbers[self._at[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._at

    def __len__(self) -> int:
        return len(self._names)


@lru_cache(64)
def _positions(names: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, int]]:
    names = tuple(map(current_name, names))
    return names, {name: number for number, name in enumerate(names)}


@lru_cache(16)
def needed_for(figures: Sequence[str]) -> frozenset[str]:
    return frozenset({*figures, *(weight_of(name) or "" for name in figures), *ALWAYS})


def simulate(
    scenario: Scenario, job: RunJob, *, check: bool = False, meter: Meter | None = None, described: bool = True
) -> Result:
    """Execute one run; a RunError has the tables up to the failure as `result`.

    described: add the scenario's text and the digests of its inputs to the result, which takes longer than a short run.
    """
    same = {"name": scenario.name, "seed": job.seed, "replication": job.replication, "policy": scenario.policies.label}

    def about() -> dict[str, Any]:
        # A warm-up that was found, after the scenario was written: the saved scenario says how long it was.
        warmup = None if job.warmup is None else f"{job.warmup!r} s"
        text = scenario.deferred_yaml(absolute_paths=True, warmup=warmup)
        return {**same, "scenario": text, "inputs": Identity(check).inputs(scenario)}

    try:
        with recorded_inputs() as inputs:
            simulation = scenario.begin(job.seed, job.replication, check=check, warmup=job.warmup)
            if meter is not None:
                meter.simulation = simulation
            record = simulation.run()
    except RunError as error:
        if (partial := getattr(error, "record", None)) is not None:
            error.result = Result(partial, error=str(error), **about())
        raise
    finally:
        if meter is not None:
            meter.simulation = None
    result = Result(record, **(about() if described else same))
    result.undeclared = undeclared(scenario, inputs)
    return result


def outcome_of(setup: Setup, scenario: Scenario, job: RunJob, meter: Meter | None = None) -> RunOutcome:
    result = simulate(scenario, job, check=setup.check, meter=meter, described=False)
    if job.pilot:
        return RunOutcome({}, series=response_series(result))
    outcome = RunOutcome(replication_values(result, setup.metrics), result.warnings, unknown=result.undeclared)
    outcome = outcome.only(setup.keep)
    large = len(result.record.input.tasks) > LARGE
    del result
    if large:  # a run refers to itself, and without this the next one would be built next to it
        gc.collect()
    return outcome


def outcome_or_error(setup: Setup, shelf: "Shelf", digest: str, job: RunJob, meter: Meter | None = None) -> RunOutcome:
    """Execute a run; return its metrics, or an outcome with the error if it fails."""
    try:
        return outcome_of(setup, shelf.scenario(setup, digest, job), job, meter)
    except OtherInputs:
        raise
    except InvariantError as error:
        return RunOutcome(None, error=f"{error} (a defect of hetsim, please report it)")
    except MemoryError:
        return RunOutcome(None, error="out of memory", lasting=False)
    except Exception as error:
        said = str(error) if isinstance(error, RunError | ScenarioError) else described(error)
        return RunOutcome(None, error=said, lasting=not of_environment(error), refused=isinstance(error, ScenarioError))


def described(error: BaseException) -> str:
    """Format an error on one line: `OSError: the disk is full`."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def of_environment(error: BaseException | None) -> bool:
    """Return True if the machine caused the error (full disk, no memory, ...)."""
    while error is not None:
        if isinstance(error, OSError | MemoryError | ImportError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Shelf:
    """Cache of the scenarios and traces of recent jobs."""

    def __init__(self) -> None:
        self.scenarios: OrderedDict[str, Scenario] = OrderedDict()
        self.tables: OrderedDict[str, Any] = OrderedDict()
        self.verified: OrderedDict[str, list[Signature]] = OrderedDict()
        self.identities = {check: Identity(check) for check in (False, True)}
        self.lock = threading.Lock()

    def scenario(self, setup: Setup, digest: str, job: RunJob) -> Scenario:
        """Return a job's scenario (cached); raise OtherInputs if this host's files differ."""
        key = hashlib.sha256(f"{digest} {job.scenario} {job.overrides!r}".encode()).hexdigest()
        with self.lock:
            if (scenario := self.scenarios.get(key)) is None:
                scenario = setup.scenarios[job.scenario]
                if job.overrides:
                    scenario = scenario.with_overrides(job.overrides)
                if job.digest:
                    self._verify(scenario, setup.check, job)
                for entry, spec in scenario.traces.items() if job.overrides else ():
                    if (trace := f"{digest} {spec!r}") not in self.tables:
                        self._keep(self.tables, trace, spec.read())
                    scenario.share_table(entry, self.tables[trace])
                self._keep(self.scenarios, key, scenario)
            elif job.digest and not self._unchanged(job.digest):
                self._verify(scenario, setup.check, job)
        return scenario

    def _verify(self, scenario: Scenario, check: bool, job: RunJob) -> None:
        identity = self.identities[check]
        if identity.scenario(scenario) != job.digest:
            raise OtherInputs(job, identity.parts(scenario))
        self._keep(self.verified, job.digest, [signature(path) for path in scenario.files])

    def _unchanged(self, digest: str) -> bool:
        try:
            return all(signature(one[0]) == one for one in self.verified[digest])
        except (OSError, KeyError):
            return False

    @staticmethod
    def _keep(shelf: OrderedDict[str, Any], key: str, value: Any) -> None:
        shelf[key] = value
        if len(shelf) > SHELF:
            shelf.popitem(last=False)


# In a worker ------------------------------------------------------------------------------------------------------

_shelf = Shelf()
_setups: OrderedDict[str, Setup] = OrderedDict()  # the setups of the last jobs, by their digest


def work(packed: bytes, jobs: Sequence[RunJob]) -> list[RunOutcome]:
    """Run the first of some jobs, and further ones until `SPAN` seconds have passed.

    UsageError if this worker has other code or libraries than the sender, OtherInputs if its input files differ.
    """
    digest = hashlib.sha256(packed).hexdigest()
    if digest not in _setups:
        setup, expected = unpacked(packed)
        if expected is not None and expected != fingerprint():
            raise UsageError(f"a worker differs from this machine: {differences(expected, fingerprint())}")
        if setup.audit:
            watch_opens("audit")
        _setups[digest] = setup
        if len(_setups) > SHELF:
            _setups.popitem(last=False)
    until = time.monotonic() + SPAN
    made: list[RunOutcome] = []
    while len(made) < len(jobs) and (not made or time.monotonic() < until):
        made.append(_work(_setups[digest], digest, jobs[len(made)]).packed())
    return made


def _work(setup: Setup, digest: str, job: RunJob) -> RunOutcome:
    try:
        _shelf.scenario(setup, digest, job)
    except (OSError, ScenarioError) as error:  # the machine that sent it could load it
        raise OtherInputs(job, {}, str(error) if isinstance(error, ScenarioError) else described(error)) from None
    except (ImportError, RunError) as error:  # a module of a policy that is missing: others may not need it
        said = str(error) if isinstance(error, RunError) else described(error)
        return RunOutcome(None, error=said, lasting=False)
    return outcome_or_error(setup, _shelf, digest, job)
