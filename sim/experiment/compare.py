"""Compare policies on one scenario: replication r of each meets the same arrivals, sizes and faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from sim.experiment.policies import PolicyLike, named_policies
from sim.experiment.progress import Progress
from sim.experiment.run import Where, prepare, run_cases, tell_all, to_keep, whole_series
from sim.experiment.stopping import cut_warmup, select
from sim.experiment.study import Case
from sim.experiment.work import Setup

if TYPE_CHECKING:
    from sim.results.many_runs.compare import Comparison
    from sim.results.many_runs.replications import Replications
    from sim.results.many_runs.selection import Selection
    from sim.results.one_run.result import Result
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
    dask: str | None = None,
    executor: Executor | None = None,
    cache: str | Path | None = None,
    fresh: bool = False,
    shard: str | None = None,
    progress: Progress | bool | None = None,
    best: str | None = None,
    probability: float = 0.95,
    delta: float = 0.01,
    by: str | Iterable[str] = (),
) -> Comparison:
    """Which policy is better, and by how much: a table, paired differences, and sentences that say so.

    policies: names, mappings or classes as in `run`, or a mapping of labels to these.
    metrics: those compared, or names of sets of them (usual, cluster, all), of which those are that tell something
        here; without them the usual ones.
    by: class, gpus or user: to keep of replications what `Comparison.by` tells of these groups.
    baseline: the label with which every other is compared; without it every pair is.
    best: a metric by which to select the best policy with the stated `probability`, unless another is within `delta`
        (a share of the mean) of it: as many replications are made as that takes (`sim.results.many_runs.selection`), at
        least those asked for (without: 10).  The result is in `Comparison.selection`.
    The other parameters are those of `run`.
    """
    from sim.results.many_runs.compare import compare as evaluate

    names = None if metrics is None else list(metrics)
    if best is not None:
        runs, found = select_best(
            scenario, policies, best, probability, delta, metrics=names or (), seed=seed, replications=replications,
            check=check, overrides=overrides, workers=workers, dask=dask, executor=executor, cache=cache, fresh=fresh,
            shard=shard, progress=progress, by=by,
        )  # fmt: skip
        selected = evaluate(runs, names, baseline=baseline, confidence=confidence, selection=found)
        selected.asked = asked_for(names, by, best, probability, delta, replications)
        return selected
    plain = run_policies(
        scenario, policies, metrics=names or (), seed=seed, replications=replications, check=check,
        overrides=overrides, workers=workers, dask=dask, executor=executor, cache=cache, fresh=fresh, shard=shard,
        progress=progress, by=by,
    )  # fmt: skip
    compared = evaluate(plain, names, baseline=baseline, confidence=confidence)
    compared.asked = asked_for(names, by)
    return compared


def asked_for(
    metrics: Iterable[str] | None, by: str | Iterable[str], best: str | None = None, probability: float | None = None,
    delta: float | None = None, replications: int | Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`Comparison.asked`; what was left out is not in it."""
    asked: dict[str, Any] = {"metrics": list(metrics or ()), "by": [by] if isinstance(by, str) else list(by)}
    if best is not None:
        asked |= {"best": best, "probability": probability, "delta": delta, "replications": replications}
    return {name: value for name, value in asked.items() if value}


def select_best(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    best: str,
    probability: float = 0.95,
    delta: float = 0.01,
    *,
    metrics: Iterable[str] = (),
    seed: int | None = None,
    replications: int | Mapping[str, Any] | None = None,
    check: bool = False,
    overrides: Overrides = (),
    workers: int = 1,
    dask: str | None = None,
    executor: Executor | None = None,
    cache: str | Path | None = None,
    fresh: bool = False,
    shard: str | None = None,
    progress: Progress | bool | None = None,
    by: str | Iterable[str] = (),
) -> tuple[dict[str, Replications], Selection]:
    """The best policy by one metric, and the runs that showed it, by label; see `compare`.

    `replications`: those of the first stage.
    """
    from sim.results.many_runs import selection

    if isinstance(replications, Mapping):
        raise UsageError("a selection makes as many replications as it takes: give the number of its first stage only")
    where = Where(workers, dask, executor, cache, fresh, shard)
    first = selection.FIRST if replications is None else replications
    if first < 3:
        raise UsageError(f"the first stage of a selection takes at least 3 replications, not {first}")
    values = named_policies(policies)
    cases = [Case(prepare(scenario, value, overrides), seed=seed) for value in values.values()]
    kept = to_keep(cases[0].scenario, metrics, by, seed, {} if replications is None else replications)
    race = selection.Race(list(values), best, probability, delta)
    setup = Setup(tuple(case.scenario for case in cases), tuple(dict.fromkeys([*kept, best])), check)
    most = max(selection.MOST, first)
    with where.study(setup, progress, first * len(cases)) as study:
        warmups, remarks, warnings = cut_warmup(study, cases, [most] * len(cases))
        series = {
            label: whole_series(case, first, warmup=warmup)
            for label, case, warmup in zip(values, cases, warmups, strict=True)
        }
        where.stop(study, series.values())
        select(study, race, series, first, most)
    tell_all(series.values(), remarks, warnings)
    return {label: one.runs for label, one in series.items() if one.runs is not None}, race.found()


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
    dask: str | None = None,
    executor: Executor | None = None,
    cache: str | Path | None = None,
    fresh: bool = False,
    shard: str | None = None,
    progress: Progress | bool | None = None,
    by: str | Iterable[str] = (),
) -> dict[str, Result | Replications]:
    """The runs themselves, by label: what `compare` evaluates.

    Where replications are given as a precision, each policy has as many as it needs; a comparison takes those
    that all have.
    """
    values = named_policies(policies)
    if len(values) < 2:
        raise UsageError("a comparison needs at least two policies")
    cases = [Case(prepare(scenario, value, overrides), seed=seed) for value in values.values()]
    kept = to_keep(cases[0].scenario, metrics, by, seed, replications)
    where = Where(workers, dask, executor, cache, fresh, shard)
    return dict(zip(values, run_cases(cases, replications, check, kept, False, where, progress), strict=True))
