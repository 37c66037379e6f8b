"""Sweeps: a scenario at many points, under several policies, with common random numbers, and all of it in one table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from sim.experiment.cache import Hashes, Store, fingerprint
from sim.experiment.executors import Crew, DaskCluster, Processes
from sim.experiment.jobs import Outcome, Watch
from sim.experiment.policies import PolicyLike
from sim.experiment.progress import Progress, Told
from sim.experiment.sweep_directory import Directory, check_folder, claim, digest
from sim.experiment.sweep_points import Points, Row, check_all, column_of, rows, shown_value
from sim.experiment.sweep_runs import Job, Setup, perform
from sim.scenario.schema import MOST_REPLICATIONS, Precision

if TYPE_CHECKING:
    import pandas as pd

    from sim.experiment.sweep_estimate import Estimate
    from sim.results.sweep import Sweep
    from sim.scenario.scenario import Overrides, Scenario

MOST_RUNS = 1_000_000
"""Of one sweep, replications counted."""


def sweep(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    over: Mapping[str, Any] | None = None,
    *,
    points: Points | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    sample: str = "grid",
    n: int | None = None,
    sample_seed: int = 0,
    replications: int | None = None,
    seed: int | None = None,
    metrics: Iterable[str] = (),
    check: bool = False,
    overrides: Overrides = (),
    out: str | Path | None = None,
    cache: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    workers: int = 1,
    dask: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
) -> Sweep:
    """Run a scenario at every point under every policy: `Sweep.table` has a row for each.

    scenario, seed, check, overrides: as in `sim.run`.
    over: key of the scenario -> list of values, or a range: `"10/s..1000/s log"` or {low, high, scale, integer, steps}.
        The key `policy` takes policies as in `sim.compare`.  Without it and `points` the scenario's `sweep`.
    points: mappings of keys to values, in place of `over`.
    policies: every point is run under each.
    sample: "grid" (all combinations; ranges need `steps`), or "random", "latin_hypercube" or "sobol": `n` points drawn
        with `sample_seed`; lists are choices.
    replications: of every point, in place of the scenario's; replication r meets the same arrivals, sizes and faults
        at every point and under every policy, as far as the point itself does not change them.
    metrics: to keep besides those of the summary; shown first.
    out: a directory for finished runs (as they end) and tables; a sweep that was interrupted goes on there.  `resume`:
        there must be one, which may be another that shares runs with this; `fresh`: whatever sweep is there goes.
    cache: keep finished runs there and not in `out`, for several sweeps together.  No run that is there is made again,
        unless `fresh`.
    workers: processes of this machine; dask: address of a Dask scheduler; executor: any `concurrent.futures.Executor`
        (with `workers` at a time).  The tables do not depend on them.
    progress: called with the share done; True shows a bar.

    ScenarioError names all points that are invalid before anything is run.  A run that fails is a row with its error.
    """
    plan = plan_sweep(
        scenario, over, points=points, policies=policies, sample=sample, n=n, sample_seed=sample_seed,
        replications=replications, seed=seed, metrics=metrics, check=check, overrides=overrides,
    )  # fmt: skip
    return sweep_plan(
        plan, out=out, cache=cache, resume=resume, fresh=fresh, workers=workers, dask=dask, executor=executor,
        progress=progress,
    )  # fmt: skip


def sweep_plan(
    plan: Plan,
    *,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    workers: int = 1,
    dask: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
) -> Sweep:
    """Make the runs of a sweep that has been planned; see `sweep`."""
    hired = hiring(workers, dask, executor)
    with Told(progress) as told, _place(plan, out, cache, resume=resume, fresh=fresh) as (store, directory):
        with hired, Watch(told, len(plan.jobs)) as watch:
            found = plan.result(collect(plan.jobs, plan.setup, store, hired, watch))
        if directory is not None:
            directory.finish(found)
            found.directory = directory.folder
    return found


@dataclass
class Plan:
    """A sweep that has been checked and not yet run."""

    base: Scenario
    setup: Setup
    keys: list[str]
    rows: list[Row]
    replications: int
    labels: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seed: int | None = None
    """In place of the scenario's."""

    @property
    def about(self) -> dict[str, Any]:
        """What `sweep.json` says."""
        from sim.results.result import json_number

        values = {row.point: [shown_value(row.values[key]) for key in self.keys] for row in self.rows}
        points = [
            [json_number(value) if isinstance(value, float) else value for value in one] for one in values.values()
        ]
        return {
            "name": self.base.name,
            "seed": self.base.model.seed if self.seed is None else self.seed,
            "replications": self.replications,
            "metrics": list(self.setup.metrics),
            "keys": self.keys,
            "points": points,
            "policies": list(dict.fromkeys(self.labels)),
            "scenario": digest({key: value for key, value in self.base.raw.items() if key != "sweep"}),
            "versions": fingerprint(),
            "remarks": self.remarks,
            "rows": [job.run for job in self.jobs[:: self.replications]],
        }

    @property
    def table(self) -> pd.DataFrame:
        """Every row's point, values as written, and policy."""
        import pandas as pd

        values = [[shown_value(row.values[key]) for key in self.keys] for row in self.rows]
        frame = pd.DataFrame(values, columns=pd.Index(self.keys), dtype=object)
        frame.insert(0, "point", [row.point for row in self.rows])
        frame["policy"] = self.labels
        return frame

    def result(self, outcomes: Mapping[str, Outcome]) -> Sweep:
        """The tables, from the outcome of every job."""
        import pandas as pd

        from sim.results.sweep import Sweep, SweepRow, tables

        made = []
        each = iter(self.jobs)
        for row, label, seed in zip(self.rows, self.labels, self.seeds, strict=True):
            found = SweepRow(row.point, label, seed)
            for replication in range(self.replications):
                outcome = outcomes[next(each).run]
                found.runs.append(outcome.values)
                of = f"replication {replication}: " if self.replications > 1 else ""
                if outcome.error:
                    found.errors.append(of + outcome.error)
                found.warnings += [of + text for text in outcome.warnings]
            made.append(found)
        about = self.about
        points = pd.DataFrame(about["points"], columns=pd.Index(self.keys), dtype=object)
        written = {row.point: row.values for row in self.rows}
        kinds = {key: column_of([values[key] for values in written.values()]) for key in self.keys}
        table, each_run = tables(self.keys, made, kinds)
        return Sweep(
            table, each_run, points, name=self.base.name, seed=about["seed"], metrics=self.setup.metrics,
            remarks=self.remarks,
        )  # fmt: skip


def plan_sweep(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    over: Mapping[str, Any] | None = None,
    *,
    points: Points | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    sample: str = "grid",
    n: int | None = None,
    sample_seed: int = 0,
    replications: int | None = None,
    seed: int | None = None,
    metrics: Iterable[str] = (),
    check: bool = False,
    overrides: Overrides = (),
) -> Plan:
    """Everything of a sweep but the runs; all points are checked."""
    from sim.scenario.scenario import load

    base = load(scenario, overrides).moved()
    names = list(dict.fromkeys(metrics))
    _check_metrics(names)
    number = _replications(base, replications)
    no_auto_warmup(base)
    keys, given = rows(
        base, over=over, points=points, policies=policies, sample=sample, n=n, sample_seed=sample_seed
    )
    if seed is not None and "seed" in keys:
        raise UsageError("seeds are given twice: as the key seed, and by themselves")
    if len(given) * number > MOST_RUNS:
        raise UsageError(
            f"{len(given):,} rows × {number:,} replications are {len(given) * number:,} runs, more than the "
            f"{MOST_RUNS:,} that a sweep takes"
        )
    plan = Plan(base, Setup(base, tuple(names), check), keys, given, number, seed=seed)
    if sample == "sobol" and n is not None and n & (n - 1):
        plan.remarks.append(f"a Sobol sample is balanced where its size is a power of 2; {n} is none")
    hashes = Hashes(check)

    def add(row: Row, one: Scenario) -> None:
        own = one.model.seed if seed is None else seed
        plan.labels.append(row.policy or one.policies.label)
        plan.seeds.append(own)
        of_scenario = hashes.scenario(one)
        plan.jobs += [
            Job(hashes.run(of_scenario, own, replication), row.overrides, own, replication)
            for replication in range(number)
        ]

    check_all(base, given, add)
    return plan


def _check_metrics(names: list[str]) -> None:
    from sim.results.metrics import metric

    for name in names:
        metric(name)


def _replications(base: Scenario, wanted: int | None) -> int:
    found: Any = base.model.replications if wanted is None else wanted
    if isinstance(found, Precision) or isinstance(wanted, Mapping):
        raise UsageError(
            "all points of a sweep have the same number of replications, not a precision: give one (--replications 10)"
        )
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= MOST_REPLICATIONS:
        raise UsageError(f"replications must be a whole number from 1 to {MOST_REPLICATIONS:,}, not {found!r}")
    return found


def no_auto_warmup(base: Scenario) -> None:
    """UsageError for a warm-up that is to be found from replications."""
    if base.model.warmup == "auto":
        raise UsageError(
            "warmup: auto would cut every point elsewhere: give the warm-up as a time (--set warmup='1 h'); "
            "`hetsim run` finds one"
        )


# Running it -------------------------------------------------------------------------------------------------------


class Hire:
    """Who makes the runs; nobody is hired before there is something to do, and all are let go at the end."""

    def __init__(self, workers: int, dask: str | None, executor: Executor | None):
        self.workers, self.dask, self.executor = workers, dask, executor
        self.crew: Crew | None = None

    def __call__(self, jobs: int) -> Crew | None:
        """The crew, for so many jobs; None: they are made in this process."""
        if self.crew is None:
            if self.executor is not None:
                self.crew = Crew(self.executor, self.workers if self.workers > 1 else cores())
            elif self.dask is not None:
                self.crew = DaskCluster(self.dask, fingerprint, fingerprint())
            elif self.workers > 1 and jobs > 1:
                self.crew = Processes(min(self.workers, jobs))
        return self.crew

    def __enter__(self) -> Hire:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.crew is not None:
            self.crew.close(at_once=kind is not None)


def hiring(workers: int, dask: str | None, executor: Executor | None) -> Hire:
    """UsageError for what does not go together."""
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if dask is not None and (executor is not None or workers > 1):
        raise UsageError("a Dask cluster has workers of its own: leave out workers and executor")
    return Hire(workers, dask, executor)


def cores() -> int:
    """Of this machine, as far as we may use them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect(
    jobs: Iterable[Job], setup: Setup, store: Store, hire: Hire, watch: Watch
) -> dict[str, Outcome]:
    """The outcome of every job by its hash; what the store has is not made again, nor is the same run made twice.

    `watch` counts all jobs, and is told of those that need not be made.
    """
    outcomes: dict[str, Outcome] = {}
    todo: dict[str, Job] = {}
    number = 0
    for job in jobs:
        number += 1
        if job.run in outcomes or job.run in todo:
            continue
        found = store.get(job.run)
        if found is None:
            todo[job.run] = job
        else:
            outcomes[job.run] = found
    watch.skipped(number - len(todo))
    for job, outcome in perform(todo.values(), setup, hire(len(todo)) if todo else None, watch):
        store.put(job.run, outcome)  # on disk before it counts
        outcomes[job.run] = outcome
        watch.finished()
    return outcomes


@contextmanager
def _place(
    plan: Plan, out: str | Path | None, cache: str | Path | None, *, resume: bool, fresh: bool
) -> Iterator[tuple[Store, Directory | None]]:
    if out is None and resume:
        raise UsageError("nothing to resume without the directory of the sweep: give out (--out DIR)")
    if resume and fresh:
        raise UsageError("either resume, or begin anew with fresh")
    metrics = list(plan.setup.metrics)
    folder = cache_folder(cache)
    if out is None:
        yield Store(folder, metrics, fresh), None
        return
    directory = claim(out, plan.about, plan.base.to_yaml(absolute_paths=True), resume=resume, fresh=fresh)
    try:
        # The runs of a directory that begins anew are gone; those of a cache stay, and are not looked at.
        yield Store(directory.runs, metrics) if folder is None else Store(folder, metrics, fresh), directory
    finally:
        directory.release()


def cache_folder(cache: str | Path | None) -> Path | None:
    """The folder of a cache, made if it is not there."""
    if cache is None:
        return None
    folder = Path(cache).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the cache {folder} cannot be written: {error.strerror}") from None
    return folder


def estimate_sweep(
    plan: Plan, out: str | Path | None, cache: str | Path | None, *, resume: bool, fresh: bool, workers: int
) -> Estimate:
    """What the rest of a sweep would cost; nothing is written."""
    from sim.experiment.sweep_estimate import estimate

    folder = None if cache is None else Path(cache).expanduser()
    if out is not None:
        check_folder(out, plan.about, resume=resume, fresh=fresh)
        folder = folder or Path(out) / "runs"
    store = Store(folder, list(plan.setup.metrics), fresh)
    wanted = {job.run: job for job in plan.jobs}
    todo = [job for job in wanted.values() if store.get(job.run) is None]
    return estimate(todo, len(wanted) - len(todo), plan.setup, workers)
