"""One run: what a worker is sent, what it makes of it, and what it sends back."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.errors import InvariantError, RunError, ScenarioError, UsageError
from sim.experiment.identity import fingerprint
from sim.experiment.workers import differences, unpacked
from sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import numpy as np

    from sim.experiment.progress import Meter
    from sim.results.result import Result

SHELF = 4
"""Scenarios, and traces, that a worker keeps for the next job."""


@dataclass(frozen=True)
class Setup:
    """What all runs of a study have in common: the scenarios that jobs vary, further metrics, checks."""

    scenarios: tuple[Scenario, ...]
    metrics: tuple[str, ...] = ()
    check: bool = False


@dataclass(frozen=True)
class Job:
    """One run: which scenario of the setup, what is changed in it, seed and replication.

    `warmup` (s) in place of the scenario's; `pilot`: only its arrivals and responses are wanted, to find the warm-up.
    """

    scenario: int
    overrides: Mapping[str, Any]
    seed: int
    replication: int
    warmup: float | None = None
    pilot: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run gives, as numbers: `values` is None where it failed, and `error` says why.

    `series`: arrivals and responses, of a pilot.  `lasting`: another try would fail in the same way.
    """

    values: dict[str, float] | None
    warnings: list[str] = field(default_factory=list)
    series: tuple[np.ndarray, np.ndarray] | None = None
    error: str = ""
    lasting: bool = True


def simulate(
    scenario: Scenario, job: Job, *, check: bool = False, meter: Meter | None = None, described: bool = True
) -> Result:
    """One run.  A RunError carries the tables up to then as `result`.

    described: the result says which run it is, with its scenario as text; that takes longer than a short run.
    """
    from sim.results.result import Result

    def about() -> dict[str, Any]:
        if not described:
            return {"seed": job.seed, "replication": job.replication}
        # A warm-up that was found, after the scenario was written: the saved scenario says how long it was.
        warmup = None if job.warmup is None else f"{job.warmup!r} s"
        return {
            "name": scenario.name, "seed": job.seed, "replication": job.replication,
            "policy": scenario.policies.label, "scenario": scenario.to_yaml(absolute_paths=True, warmup=warmup),
        }  # fmt: skip

    simulation = scenario.begin(job.seed, job.replication, check=check, warmup=job.warmup)
    if meter is not None:
        meter.simulation = simulation
    try:
        record = simulation.run()
    except RunError as error:
        partial = getattr(error, "record", None)
        if partial is not None:
            error.result = Result(partial, error=str(error), **about())
        raise
    finally:
        if meter is not None:
            meter.simulation = None
    return Result(record, **about())


def outcome_of(setup: Setup, scenario: Scenario, job: Job, meter: Meter | None = None) -> Outcome:
    """What a run gives, as numbers."""
    from sim.results.replications import replication_values
    from sim.results.warmup import response_series

    result = simulate(scenario, job, check=setup.check, meter=meter, described=False)
    if job.pilot:
        return Outcome({}, series=response_series(result))
    return Outcome(replication_values(result, setup.metrics), result.warnings)


def outcome_or_error(setup: Setup, shelf: Shelf, digest: str, job: Job, meter: Meter | None = None) -> Outcome:
    """What a run gives, or why it failed."""
    try:
        return outcome_of(setup, shelf.scenario(setup, digest, job), job, meter)
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


class Shelf:
    """The scenarios and traces of the last jobs: those of a case have one scenario, and often all have one trace."""

    def __init__(self) -> None:
        self.scenarios: OrderedDict[str, Scenario] = OrderedDict()
        self.tables: OrderedDict[str, Any] = OrderedDict()
        self.lock = threading.Lock()

    def scenario(self, setup: Setup, digest: str, job: Job) -> Scenario:
        """The scenario of a job; `digest` tells setups apart."""
        base = setup.scenarios[job.scenario]
        if not job.overrides:
            return base
        key = hashlib.sha256(f"{digest} {job.scenario} {job.overrides!r}".encode()).hexdigest()
        with self.lock:
            found = self.scenarios.get(key)
            if found is None:
                found = base.with_overrides(job.overrides)
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
        if len(shelf) > SHELF:
            shelf.popitem(last=False)


# In a worker ------------------------------------------------------------------------------------------------------

_shelf = Shelf()
_setups: OrderedDict[str, Setup] = OrderedDict()
"""The setups of the last jobs, by their digest."""


def work(packed: bytes, job: Job) -> Outcome:
    """One job.  UsageError if this worker is not like the machine that sent it."""
    digest = hashlib.sha256(packed).hexdigest()
    if digest not in _setups:
        setup, expected = unpacked(packed)
        if expected is not None and expected != fingerprint():
            raise UsageError(f"a worker is not like this machine: {differences(expected, fingerprint())}")
        _setups[digest] = setup
        if len(_setups) > SHELF:
            _setups.popitem(last=False)
    return outcome_or_error(_setups[digest], _shelf, digest, job)
