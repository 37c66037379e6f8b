"""Compare policies on one scenario: replication r of each meets the same arrivals, sizes and faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from sim.experiment.jobs import Case, Progress, run_cases
from sim.experiment.policies import PolicyLike, named_policies
from sim.experiment.run import prepare

if TYPE_CHECKING:
    from sim.results.compare import Comparison
    from sim.results.replications import Replications
    from sim.results.result import Result
    from sim.scenario.scenario import Overrides, Scenario

Policies = Iterable[PolicyLike] | Mapping[str, PolicyLike]


def compare(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    *,
    metrics: Iterable[str] | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    replications: int | Mapping[str, Any] | None = None,
    check: bool = False,
    overrides: Overrides = (),
    workers: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Which policy is better, and by how much: a table, paired differences, and sentences that say so.

    policies: names, mappings or classes as in `run`, or a mapping of labels to these.
    metrics: those compared; without them the common ones that are defined here.
    baseline: the label with which every other is compared; without it every pair is.
    The other parameters are those of `run`.
    """
    from sim.results.compare import compare as evaluate

    names = None if metrics is None else list(metrics)
    runs = run_policies(
        scenario, policies, metrics=names or (), seed=seed, replications=replications, check=check,
        overrides=overrides, workers=workers, progress=progress,
    )  # fmt: skip
    return evaluate(runs, names, baseline=baseline, confidence=confidence)


def run_policies(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    *,
    metrics: Iterable[str] = (),
    seed: int | None = None,
    replications: int | Mapping[str, Any] | None = None,
    check: bool = False,
    overrides: Overrides = (),
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Result | Replications]:
    """The runs themselves, by label: what `compare` evaluates.

    Where replications are given as a precision, each policy has as many as it needs; a comparison takes those
    that all have.
    """
    values = named_policies(policies)
    if len(values) < 2:
        raise UsageError("a comparison needs at least two policies")
    cases = [Case(label, prepare(scenario, value, overrides), seed) for label, value in values.items()]
    return run_cases(cases, replications, check, metrics, False, workers, progress)
