"""Run a scenario once, or several times with independent randomness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ScenarioError, UsageError
from sim.experiment.identity import Identity
from sim.experiment.policies import PolicyLike, named_policy
from sim.experiment.progress import Meter, Progress
from sim.experiment.shard import Shard, ShardOver, make_part
from sim.experiment.stopping import checked_amount, cut_warmup
from sim.experiment.store import Store, open_cache
from sim.experiment.study import Case, Replicates, Study
from sim.experiment.work import Setup
from sim.experiment.workers import Workers
from sim.results.many_runs.replications import Replications

if TYPE_CHECKING:
    from sim.model.record import RunInput
    from sim.results.one_run.result import Result
    from sim.scenario.scenario import Overrides, Scenario


def run(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    policy: PolicyLike | None = None,
    seed: int | None = None,
    replications: int | Mapping[str, Any] | None = None,
    check: bool = False,
    overrides: Overrides = (),
    metrics: Iterable[str] = (),
    by: str | Iterable[str] = (),
    keep: bool = False,
    workers: int = 1,
    dask: str | None = None,
    executor: Executor | None = None,
    cache: str | Path | None = None,
    fresh: bool = False,
    shard: str | None = None,
    progress: Progress | bool | None = None,
) -> Result | Replications:
    """The outcome of a scenario: a Result, or Replications where more than one run is asked for.

    scenario: a file, the name of a shipped scenario, a mapping, or a Scenario.
    policy: in place of the scenario's whole policy: a name (`"sjf"`, `"sjf + best_fit"`), a mapping as under
        `policy:`, or a scheduler class or order key of your own.
    seed, replications: in place of the scenario's.  Replications are a number, or {precision, metric, max, confidence}:
        then as many as the precision needs, at least ten.
    check: verify the simulator's invariants after every round (slower).
    overrides: further values, `{"cluster.nodes.0.count": 4}` or `["cluster.nodes.0.count=4"]`; applied after policy.
    metrics: to keep of every replication besides those of the summary (or sets of them: cluster, all).
    by: class, gpus or user: to keep of every replication what `Replications.by` tells of these groups.
    keep: keep the whole runs of replications, not only their metrics (one worker only).
    workers: local processes for replications; dask: address of a Dask scheduler; executor: any
        `concurrent.futures.Executor`.  The result does not depend on them.
    cache: a folder for finished replications (all but the first, which stays whole); none that is there is made again,
        unless `fresh`.
    shard: "2/8": make that part of the replications into the cache, and raise ShardOver with a report.
    progress: called with the share done, 0 to 1, five times a second from another thread; True shows a bar, on a
        terminal or in a notebook.

    ScenarioError lists everything wrong with the scenario.  A RunError has the tables up to then as `result`.
    """
    loaded = prepare(scenario, policy, overrides)
    kept = to_keep(loaded, metrics, by, seed, replications)
    where = Where(workers, dask, executor, cache, fresh, shard)
    return run_cases([Case(loaded, seed=seed)], replications, check, kept, keep, where, progress)[0]


@dataclass(frozen=True)
class Where:
    """Where the runs of a study are made and kept."""

    workers: int = 1
    dask: str | None = None
    executor: Executor | None = None
    cache: str | Path | None = None
    fresh: bool = False
    shard: str | None = None

    @contextmanager
    def study(
        self, setup: Setup, progress: Progress | bool | None, runs: int = 0, identity: Identity | None = None
    ) -> Iterator[Study]:
        """A study there; UsageError for what does not go together."""
        pool = Workers(self.workers, self.dask, self.executor)
        if self.part is not None and self.cache is None:
            raise UsageError("shards need a folder that all of them share: give cache (--cache DIR)")
        store = Store(open_cache(self.cache), self.fresh)
        with Meter(progress, runs) as meter, Study(setup, pool, store=store, meter=meter, identity=identity) as study:
            yield study
        store.tell()

    @property
    def part(self) -> Shard | None:
        return None if self.shard is None else Shard.parse(self.shard)

    def stop(self, study: Study, series: Iterable[Replicates]) -> None:
        """Of a shard: make its part of these cases, and raise ShardOver."""
        if self.part is not None:
            raise ShardOver(make_part(study, series, self.part))


def run_cases(
    cases: list[Case], replications: int | Mapping[str, Any] | None, check: bool, metrics: Iterable[str], keep: bool,
    where: Where, progress: Progress | bool | None,
) -> list[Result | Replications]:  # fmt: skip
    """The Result of each case, or its Replications where there are several."""
    if keep and (where.workers > 1 or where.dask or where.executor):
        raise UsageError("keep=True keeps whole runs, which stay in the process that made them: use one worker")
    amounts = [checked_amount(case.scenario, replications) for case in cases]
    kept = [*metrics, *(amount.metric for amount in amounts if amount.precision is not None)]
    setup = Setup(tuple(case.scenario for case in cases), tuple(dict.fromkeys(kept)), check)
    with where.study(setup, progress, sum(amount.most for amount in amounts)) as study:
        warmups, remarks, warnings = cut_warmup(study, cases, [amount.most for amount in amounts])
        series = [
            whole_series(case, amount.first, keep=keep, most=amount.most, rule=amount.rule(study), warmup=warmup)
            for case, amount, warmup in zip(cases, amounts, warmups, strict=True)
        ]
        where.stop(study, series)
        study.make(series)
    for one, amount in zip(series, amounts, strict=True):
        if one.runs is not None and amount.precision is not None:
            text, warns = amount.remark(one.runs)
            (one.runs.warnings if warns else one.runs.remarks).append(text)
    tell_all(series, remarks, warnings)
    return [one.results[0] if one.runs is None else one.runs for one in series]


def whole_series(case: Case, goal: int, *, keep: bool = False, most: int = 0, **more: Any) -> Replicates:
    """Replications of which the first run stays whole, to be shown, drawn and explained for all; with `keep` all."""
    most = max(goal, most)
    runs = Replications() if most > 1 else None
    return Replicates(case, goal, most=most, whole=most if keep else 1, strict=True, runs=runs, **more)


def tell_all(found: Iterable[Replicates], remarks: list[str], warnings: list[str]) -> None:
    """What was said of all cases together, with the figures of each."""
    for series in found:
        if series.runs is not None:
            series.runs.remarks[:0] = remarks
            series.runs.warnings += warnings


def rehearse(scenario: Scenario) -> RunInput:
    """Everything that `run` does with a scenario before its clock starts, and no more: the input of the run."""
    checked_amount(scenario, None)
    return scenario.begin().input


def to_keep(
    scenario: Scenario, metrics: Iterable[str], by: str | Iterable[str], seed: int | None,
    replications: int | Mapping[str, Any] | None,
) -> list[str]:  # fmt: skip
    """What replications are asked to keep besides the metrics of the summary: further metrics, and groups.

    Which users have a row of their own is decided by the workload of the first replication, for all of them.
    """
    from sim.results.one_run.groups import checked, groupings
    from sim.results.one_run.metric_sets import expanded

    names, wanted = expanded(name for name in metrics if name != "usual"), checked(by)  # the usual ones are kept
    number = scenario.model.replications if replications is None else replications
    if not wanted or number == 1:  # of one run everything is kept
        return names
    built = scenario.build(scenario.model.seed if seed is None else seed, 0)
    return names + [grouping.text for grouping in groupings(built, wanted, names)]


def prepare(
    scenario: str | Path | Mapping[str, Any] | Scenario, policy: PolicyLike | None = None, overrides: Overrides = ()
) -> Scenario:
    """The loaded scenario with another policy and other values."""
    from sim.scenario.scenario import load

    if policy is None:
        return load(scenario, overrides)
    value = named_policy(policy)[1]
    if not isinstance(overrides, Mapping):
        from sim.scenario.overrides import parse_assignment

        overrides = dict(parse_assignment(text) for text in overrides)
    named = {"--set policy": "--policy"} if "policy" not in overrides else {}
    try:
        # One pass for all: a scenario with a wrong policy of its own is still fine under another.
        loaded = load(scenario, {"policy": value, **overrides})
    except ScenarioError as error:
        raise ScenarioError([replace(p, file=named.get(p.file or "", p.file)) for p in error.problems]) from None
    set_by = loaded.document.set_by
    set_by.update({path: named.get(source, source) for path, source in set_by.items()})  # for what is found later
    return loaded
