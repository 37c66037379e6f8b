"""Sweeps: a scenario at many points under several policies, in one table."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.experiment.folder import Directory, check_folder, claim, mark_of
from hetsim.experiment.identity import Identity, fingerprint, plain_digest
from hetsim.experiment.options import StudyKeywords, StudyOptions, with_options
from hetsim.experiment.points import PointRow, PointRows, Points, check_all, column_of, rows, shown_value
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.precision import Estimate, estimate
from hetsim.experiment.progress import Meter
from hetsim.experiment.run import prepare
from hetsim.experiment.shard import Shard, ShardOver, ShardReport, make_all, make_part, part_of
from hetsim.experiment.stopping import Amount, Pilot, Warmup, amount_of, find_cuts, missing, pilot_size, shared
from hetsim.experiment.store import Store, open_cache
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.experiment.workers import Workers
from hetsim.results.formatting import json_number, metric_name
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.sweep import EACH, TABLE, Sweep
from hetsim.results.many_runs.sweep_tables import SweepRow, SweepTables
from hetsim.results.one_run.metrics import listed, metric
from hetsim.results.stored_files import read_frame
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION

MAX_RUNS = 1_000_000  # Maximum number of runs of one sweep, replications included.

BLOCK = 4096  # Number of runs that are sealed together; a block has whole points, so it may have more.
OPEN_BLOCKS = 8  # Maximum number of unfinished blocks besides the current one; they are in memory.
MANY_BLOCKS = 4  # Minimum number of blocks per shard for shards that consist of whole blocks.

WARMUP_REMARK = (
    "warm-up: a pilot finds that of each point (MSER-5 on the mean response of up to {runs} replications, by "
    "order of arrival); the longest of the policies is used"
)


@with_options(StudyKeywords)
def sweep(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    over: Mapping[str, Any] | None = None,
    *,
    points: Points | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    sample: str = "grid",
    n: int | None = None,
    sample_seed: int = 0,
    metrics: str | Iterable[str] = (),
    keep: str | Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    **options: Unpack[StudyKeywords],
) -> Sweep:
    """Run a scenario at every point under every policy; each is a row of the table.

    A run that fails gives a row with its error.

    Parameters:
        scenario: as for `run`.
        over: key of the scenario -> list of values, or a range: `"10/s..1000/s log"` or {low, high, scale, integer,
            steps}.  The key `policy` takes policies as in `compare`.  Without `over` and `points`, the scenario's
            `sweep` is used.
        points: mappings of keys to values, in place of `over`.
        policies: policies under which every point is run.
        sample: "grid" (all combinations; ranges need `steps`), or "random", "latin_hypercube" or "sobol", which draw a
            value from each list or range.
        n, sample_seed: the number of points that are drawn, and the seed of drawing them.
        replications: replications of every row, in place of the scenario's: a number, or {precision, metric, max,
            confidence}, with which each row has as many as its precision needs, at least ten.  Replication r has the
            same arrivals, sizes and faults in all rows, unless the point itself changes these.
        metrics: metrics to keep in addition to those of the summary; if given, only they are shown.
        keep: keep only these metrics and `metrics`, to save space in very large sweeps.
        out: a directory for finished runs (written as they finish) and tables; an interrupted sweep is continued there.
        resume: `out` must contain a sweep, either this one or one that shares runs with it.
        cache: store finished runs there and not in `out`, for several sweeps; stored runs are not run again.
        fresh: run everything again; a sweep in `out` is deleted.
        shard: "2/8": run only that part, and store it in out or cache, which all shards share.
        options: those of every study.
    Returns: the tables of the sweep.
    Raises:
        ScenarioError: points are invalid; the error lists all of them before anything is run.
        ShardOver: the requested shard is finished.
    """
    plan = plan_sweep(
        scenario, over, points=points, policies=policies, sample=sample, n=n, sample_seed=sample_seed, metrics=metrics,
        keep=keep, **options,
    )  # fmt: skip
    return sweep_plan(plan, out, resume)


def sweep_plan(plan: SweepPlan, out: str | Path | None = None, resume: bool = False) -> Sweep:
    """Run a planned sweep and return its tables, as `sweep` does."""
    options, part = plan.options, part_of(plan.options)
    if part is not None and options.fresh:
        raise UsageError("--shard cannot be combined with --fresh: it would discard the runs of the other shards")
    if part is not None and out is None and options.cache is None:
        raise UsageError("a shard needs a shared folder: give --out or --cache")
    pool = Workers(options.workers, options.dask, options.executor)
    with _place(plan, out, resume) as (store, directory):
        with (
            Meter(options.progress, plan.max_runs) as meter,
            Study(plan.setup, pool, store=store, meter=meter, identity=plan.identity) as study,
        ):
            if part is not None:
                raise ShardOver(plan.make_part(study, part))
            with closing(plan.tables(directory)) as tables:
                plan.make(study, tables)
                made = plan.result(tables, directory)
        store.tell()
    return made


class Checked:
    """The validated rows of a planned sweep, as columns.

    A row is a point of the sweep under one policy.  Only these columns of each row are kept in memory.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.policy, self.seeds, self.warmups = array("i"), list[int](), array("d")
        self.scenarios, self.runs = bytearray(), bytearray()
        self.pilots: dict[bytes, Pilot] = {}  # pilots of cases with `warmup: auto`, by the digest of their first run

    def add(self, label: str, scenario: str, run: str, seed: int, warmup: float) -> None:
        """Add a row of the sweep: digests in hex, `warmup` in s (NaN: from pilot runs)."""
        self.policy.append(self.names.setdefault(label, len(self.names)))
        self.scenarios += bytes.fromhex(scenario)
        self.runs += bytes.fromhex(run)
        self.seeds.append(seed)
        self.warmups.append(warmup)

    def __len__(self) -> int:
        return len(self.seeds)

    def run(self, row: int) -> bytes:
        return bytes(self.runs[32 * row : 32 * row + 32])

    def pilot(self, row: int) -> Pilot | None:
        return self.pilots.get(self.run(row)) if math.isnan(self.warmups[row]) else None

    @cached_property
    def same(self) -> np.ndarray:
        """For each row the number of the first row that has the same runs."""
        digests = np.frombuffer(self.runs, dtype=">u8").reshape(-1, 4)
        _, first, which = np.unique(digests[:, 0], return_index=True, return_inverse=True)  # 20 times as fast
        if (digests[first[which]] != digests).any():
            _, first, which = np.unique(digests, axis=0, return_index=True, return_inverse=True)
        return first[which.ravel()]


@dataclass
class SweepPlan:
    """A sweep that has been validated and not yet run."""

    base: Scenario
    setup: Setup
    keys: list[str]
    rows: Sequence[PointRow]
    amount: Amount
    identity: Identity
    metrics: list[str] = field(default_factory=list)
    checked: Checked = field(default_factory=Checked)
    remarks: list[str] = field(default_factory=list)
    options: StudyOptions = StudyOptions()

    @property
    def replications(self) -> int | dict[str, Any]:
        """Replications of every row: a number, or a precision to reach."""
        amount = self.amount
        if amount.precision is None:
            return amount.maximum
        return {
            "precision": amount.precision, "metric": amount.metric, "max": amount.maximum,
            "confidence": amount.confidence,
        }  # fmt: skip

    @property
    def seed(self) -> int:
        return self.base.model.seed if self.options.seed is None else self.options.seed

    @property
    def pilots(self) -> list[Pilot]:
        return list(self.checked.pilots.values())

    @property
    def max_runs(self) -> int:
        return len(self.rows) * self.amount.maximum + sum(pilot.size for pilot in self.pilots)

    @cached_property
    def block(self) -> int:
        """Number of table rows whose runs are stored together (whole points of the sweep)."""
        if not isinstance(self.rows, PointRows):
            return max(1, len(self.rows))  # of a list of points that name their policies, in any order
        policies, amount = len(self.rows.policies), self.amount
        return policies * max(1, BLOCK // (policies * (amount.maximum if amount.precision is None else amount.first)))

    def make(self, study: Study, tables: SweepTables) -> None:
        """Run the replications of every row; add each finished block to the tables."""
        find_cuts(study, self.pilots)

        def finish(number: int, made: list[RowRuns]) -> None:
            tables.add([self.row(self.block * number + at, one) for at, one in enumerate(made)])

        self._make_blocks(study, range(len(self.rows)), finish)

    def _make_blocks(self, study: Study, numbers: Iterable[int], finish: Callable[[int, list[RowRuns]], None]) -> None:
        def seal(number: int, made: list[RowRuns]) -> None:
            if not all(one.lasting for one in made):
                study.store.leave(number)
            study.store.seal(number)
            finish(number, made)

        blocks = OpenBlocks(self.block, len(self.rows), seal)
        study.make(self.wanted(study, numbers, blocks))
        blocks.settle()

    def make_part(self, study: Study, part: Shard) -> ShardReport:
        """Run one of n shards of the sweep: every n-th run, or every n-th block of runs.

        If results determine the number of runs (a required precision, pilot runs), a shard has every n-th point.
        """
        if self.amount.precision is None and not self.pilots:
            if len(self.rows) >= MANY_BLOCKS * self.block * part.count:
                return self._make_part_of_blocks(study, part)
            return make_part(study, self.listed(study, range(len(self.rows))), part)
        points = set(part.items_of(dict.fromkeys(row.point for row in self.rows)))
        mine = [number for number, row in enumerate(self.rows) if row.point in points]
        pilots = {id(pilot): pilot for number in mine if (pilot := self.checked.pilot(number)) is not None}
        find_cuts(study, list(pilots.values()))
        return make_all(study, list(self.listed(study, mine)), part)

    def _make_part_of_blocks(self, study: Study, part: Shard) -> ShardReport:
        ended = Counter[bool]()

        def count(_: int, rows: list[RowRuns]) -> None:
            ended.update(outcome.values is None for one in rows if one.series for outcome in one.series.taken)

        mine = part.items_of(range(0, len(self.rows), self.block))
        self._make_blocks(study, (row for begin in mine for row in range(len(self.rows))[begin:][: self.block]), count)
        return ShardReport(part, ended.total() - study.found, study.found, ended[True])

    def listed(self, study: Study, numbers: Iterable[int]) -> Iterator[Replicates]:
        return (one for one in self.wanted(study, numbers) if one is not None)

    def wanted(
        self, study: Study, numbers: Iterable[int], blocks: OpenBlocks | None = None
    ) -> Iterator[Replicates | None]:
        """Yield the replications of these table rows.

        Rows with the same runs share one object.  blocks: unfinished blocks of rows, to which each row is added.  While
        too many blocks are unfinished, None is yielded, and the caller should first complete the cases that run.
        """
        cuts, rule = self._cuts(), self.amount.rule(study)
        earlier: dict[tuple[int, float | None], Replicates] = {}
        several = np.bincount(self.checked.same, minlength=1) > 1
        for number in numbers:
            while blocks is not None and blocks.crowded:
                yield None
            pilot = self.checked.pilot(number)
            row = self.rows[number]
            one = RowRuns() if pilot is None else _cut(pilot, cuts[row.point])
            if blocks is not None:
                blocks.add(number, one)
            first = int(self.checked.same[number])
            one.series = None if one.error else earlier.get((first, one.warmup))
            if one.error or one.series is not None:
                study.meter.expect(-self.amount.maximum)
                continue
            one.series = Replicates(
                self.case(row, number), self.amount.first, most=self.amount.maximum, rule=rule, warmup=one.warmup,
                runs=Replications() if rule else None, block=first // self.block,
            )  # fmt: skip
            if several[first]:
                earlier[first, one.warmup] = one.series
            yield one.series

    def case(self, row: PointRow, number: int) -> Case:
        scenario = self.checked.scenarios[32 * number : 32 * number + 32].hex()
        return Case(self.base, row.overrides, self.checked.seeds[number], scenario)

    def _cuts(self) -> dict[int, Warmup]:
        of_point: dict[int, list[Pilot]] = {}
        if self.pilots:
            for number, row in enumerate(self.rows):
                if (pilot := self.checked.pilot(number)) is not None:
                    of_point.setdefault(row.point, []).append(pilot)
        return {point: shared(pilots) for point, pilots in of_point.items()}

    def _points(self) -> dict[str, list[Any]]:
        def plain(values: list[Any]) -> list[Any]:
            texts = [shown_value(value) for value in values]
            return [json_number(value) if isinstance(value, float) else value for value in texts]

        rows = self.rows
        if isinstance(rows, PointRows):
            return {key: rows.points.column(key, plain) for key in self.keys}
        first = {row.point: row for row in reversed(rows)}  # those equal but for the policy are one point
        return {key: plain([first[point].values[key] for point in sorted(first)]) for key in self.keys}

    def _column(self, key: str) -> list[Any]:
        rows = self.rows
        if not isinstance(rows, PointRows):
            return column_of([row.values[key] for row in rows])
        values, policies = rows.points.column(key, column_of), len(rows.policies)
        return values if policies == 1 else [value for value in values for _ in range(policies)]

    @property
    def about(self) -> dict[str, Any]:
        return {
            "name": self.base.name,
            "seed": self.seed,
            "replications": self.replications,
            "metrics": self.metrics,
            **({"keep": list(self.setup.keep)} if self.setup.keep else {}),
            "keys": self.keys,
            "points": [list(point) for point in zip(*self._points().values(), strict=True)] or [[]],
            "policies": list(self.checked.names),
            "scenario": plain_digest({key: value for key, value in self.base.raw.items() if key != "sweep"}),
            "versions": fingerprint(),
            **({"inputs": self.identity.named} if self.identity.named else {}),
            "remarks": self.remarks,
            "rows": self.checked.runs.hex(),
        }

    @property
    def table(self) -> pd.DataFrame:
        values = [[shown_value(row.values[key]) for key in self.keys] for row in self.rows]
        frame = pd.DataFrame(values, columns=pd.Index(self.keys), dtype=object)
        frame.insert(0, "point", [row.point for row in self.rows])
        frame["policy"] = np.array(list(self.checked.names), dtype=object)[self.checked.policy]
        return frame

    def tables(self, directory: Directory | None = None, only: Sequence[int] | None = None) -> SweepTables:
        """Create empty tables of all rows (or `only` these); large ones grow on disk."""
        on_disk = directory is not None and len(self.rows) > self.block
        columns = {key: self._column(key) for key in self.keys}
        return SweepTables(
            columns if only is None else {key: [column[row] for row in only] for key, column in columns.items()},
            several=self.amount.maximum > 1, text_seeds=max(self.checked.seeds, default=0) >= 1 << 63,
            folder=directory.folder / TABLE if directory is not None and on_disk else None,
        )  # fmt: skip

    def result(self, tables: SweepTables, directory: Directory | None = None) -> Sweep:
        """Finish the tables, write them to the directory if any, and return the sweep."""
        columns = self._points()
        count = len(columns[self.keys[0]]) if self.keys else 1
        points = pd.DataFrame(columns, index=range(count), columns=pd.Index(self.keys), dtype=object)
        if directory is not None:
            directory.finish(tables)
        if tables.parts or directory is None:
            both: list[Any] = tables.frames()
        else:
            both = [partial(read_frame, directory.folder / name) for name in (TABLE, EACH)]
        made = Sweep(
            both[0], both[1], points, name=self.base.name, seed=self.seed, metrics=self.metrics,
            remarks=self.remarks, replications=self.replications,
        )  # fmt: skip
        made.directory = None if directory is None else directory.folder
        return made

    def row(self, number: int, made: RowRuns) -> SweepRow:
        checked = self.checked
        row = SweepRow(self.rows[number].point, list(checked.names)[checked.policy[number]], checked.seeds[number])
        if self.pilots:
            row.warmup = made.warmup if math.isnan(checked.warmups[number]) else checked.warmups[number]
        row.errors += [made.error] if made.error else []
        for replication, outcome in enumerate(made.series.taken if made.series else ()):
            row.runs.append(outcome.values)
            prefix = f"replication {replication}: " if self.amount.maximum > 1 else ""
            if outcome.error:
                row.errors.append(prefix + outcome.error)
            row.warnings += [prefix + text for text in outcome.warnings]
        row.warnings += made.warnings
        if made.series is not None and made.series.runs is not None and not made.series.failed:
            text, is_warning = self.amount.remark(made.series.runs)  # that the precision was not reached
            row.warnings += [text] if is_warning else []
        return row


class OpenBlocks:
    """Unfinished blocks of a sweep; they are finished in order."""

    def __init__(self, size: int, rows: int, finish: Callable[[int, list[RowRuns]], None]):
        """size: rows per block; rows: number of all rows; finish: called after each block."""
        self.size, self.rows, self.finish = size, rows, finish
        self._open: deque[tuple[int, list[RowRuns]]] = deque()
        self._done = 0  # rows of the first one that are known to be done

    def add(self, number: int, row: RowRuns) -> None:
        block = number // self.size
        if not self._open or self._open[-1][0] != block:
            self._open.append((block, []))
        self._open[-1][1].append(row)

    @property
    def first(self) -> list[RowRuns]:
        return self._open[0][1] if self._open else []

    @property
    def crowded(self) -> bool:
        """Return True if too many blocks of rows are unfinished to begin a further row."""
        self.settle()
        return len(self._open) > OPEN_BLOCKS

    def settle(self) -> None:
        while self._open:
            number, rows = self._open[0]
            while self._done < len(rows) and rows[self._done].done:
                self._done += 1
            if self._done < min(self.size, self.rows - number * self.size):
                return
            self._open.popleft()
            self._done = 0
            self.finish(number, rows)


@dataclass(slots=True)
class RowRuns:
    """The replications of a row, or the error that explains why it has none."""

    series: Replicates | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    warmup: float | None = None
    lasting: bool = True

    @property
    def done(self) -> bool:
        return bool(self.error) or (self.series is not None and self.series.done)


def _cut(pilot: Pilot, found: Warmup) -> RowRuns:
    if error := found.error_of(pilot):
        return RowRuns(error=error, lasting=found.lasting is None)
    if found.cut is None:  # of a plan that is only looked at
        return RowRuns()
    return RowRuns(warnings=[found.cut.warning] if found.cut.near_half else [], warmup=found.cut.time)


def plan_sweep(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    over: Mapping[str, Any] | None = None,
    *,
    points: Points | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    sample: str = "grid",
    n: int | None = None,
    sample_seed: int = 0,
    metrics: str | Iterable[str] = (),
    keep: str | Iterable[str] = (),
    **options: Unpack[StudyKeywords],
) -> SweepPlan:
    """Plan a sweep: validate all points without running any."""
    study_options = StudyOptions(**options)
    seed = study_options.seed
    base = prepare(scenario, None, study_options.overrides, study_options.program).moved()
    names = list(dict.fromkeys(listed(metrics)))
    figures = list(dict.fromkeys(listed(keep)))
    for name in [*names, *figures]:
        metric(name)  # an unknown one is refused here
    amount = amount_of(base, study_options.replications)
    keys, given = rows(base, over=over, points=points, policies=policies, sample=sample, n=n, sample_seed=sample_seed)
    if seed is not None and "seed" in keys:
        raise UsageError("seeds must be given once: as the key seed, or as seed (--seed)")
    if len(given) * amount.maximum > MAX_RUNS:
        up_to = "" if amount.precision is None else "up to "
        raise UsageError(
            f"{len(given):,} rows × {up_to}{amount.maximum:,} replications are {len(given) * amount.maximum:,} runs, "
            f"but a sweep must have at most {MAX_RUNS:,}"
        )
    kept = tuple(dict.fromkeys([*names, *figures, *([] if amount.precision is None else [amount.metric])]))
    check = study_options.check
    plan = SweepPlan(
        base=base, setup=Setup((base,), kept, check, audit=study_options.audit, keep=kept if figures else ()),
        keys=keys,
        rows=given, amount=amount, identity=Identity(check), metrics=names or figures, options=study_options,
    )  # fmt: skip
    if sample == "sobol" and n is not None and n & (n - 1):
        plan.remarks.append(f"the size of a Sobol sample should be a power of 2, for balance; got {n}")
    checked = plan.checked

    def facts(one: Scenario) -> tuple[str, float, str]:
        warmup = math.nan if isinstance(one.model.warmup, str) else one.model.warmup
        return plan.identity.scenario(one), warmup, one.policies.label

    def add(row: PointRow, own: int, values: tuple[str, float, str]) -> None:
        own, (scenario, warmup, label) = own if seed is None else seed, values
        run = plan.identity.run(scenario, own, 0)
        checked.add(row.policy or label, scenario=scenario, run=run, seed=own, warmup=warmup)
        if math.isnan(warmup) and bytes.fromhex(run) not in checked.pilots:
            case = Case(base, row.overrides, own, scenario)
            checked.pilots[bytes.fromhex(run)] = Pilot(case, pilot_size(amount.maximum))

    check_all(base, given, facts, add)
    plan.remarks += [f"inputs are unknown: {why}" for why in dict.fromkeys(plan.identity.unknown.values())]
    if checked.pilots:
        plan.remarks.append(WARMUP_REMARK.format(runs=pilot_size(amount.maximum)))
    if amount.precision is not None:
        plan.remarks.append(
            f"replications: each row is repeated until the {100 * amount.confidence:g} % interval of its "
            f"{metric_name(amount.metric)} is within ± {100 * amount.precision:g} % of the mean, {MIN_FOR_PRECISION} "
            f"to {amount.maximum:,} replications"
        )
    return plan


# Running it -------------------------------------------------------------------------------------------------------


@contextmanager
def _place(plan: SweepPlan, out: str | Path | None, resume: bool) -> Iterator[tuple[Store, Directory | None]]:
    fresh, shared = plan.options.fresh, plan.options.shard is not None
    if out is None and resume:
        raise UsageError("resume needs the directory of the sweep: give out (--out DIR)")
    if resume and fresh:
        raise UsageError("resume and fresh exclude each other; give one of them")
    folder = open_cache(plan.options.cache)
    if out is None:
        yield Store(folder, fresh, plan.options.trust), None
        return
    text = plan.base.to_yaml(absolute_paths=True)
    directory = claim(out, plan.about, text, resume=resume, fresh=fresh, shared=shared)
    try:
        # The runs of a directory that begins anew are gone; those of a cache stay, and are not looked at.
        runs, afresh = (directory.runs, False) if folder is None else (folder, fresh)
        yield Store(runs, afresh, plan.options.trust), directory
    finally:
        directory.release()


def estimate_sweep(plan: SweepPlan, out: str | Path | None, resume: bool) -> Estimate:
    """Estimate the time of the remaining runs; a lower bound if a precision is set."""
    options = plan.options
    folder = None if options.cache is None else Path(options.cache).expanduser()
    if out is not None:
        check_folder(out, plan.about, mark_of(plan.about), resume=resume, fresh=options.fresh)
        folder = folder or Path(out) / "runs"
    study = Study(plan.setup, Workers(), store=Store(folder, options.fresh, options.trust), identity=plan.identity)
    todo = [(pilot, number) for pilot in missing(study, plan.pilots) for number in range(pilot.size)]
    series = list(plan.listed(study, range(len(plan.rows))))
    outstanding = study.outstanding(series)
    open_end = plan.amount.precision is not None and any(not one.done for one in series)
    jobs = [study.job(*place) for place in [*todo, *outstanding]]
    return estimate(
        jobs, study.found, plan.setup, workers=Workers(options.workers, options.dask).workers, is_bound=open_end
    )
