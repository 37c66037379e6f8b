"""Sweeps and tunings whose runs are made up: rows, blocks, shards, precision and warm-ups against a few plain loops."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import three
from scipy import stats

import hetsim as hs
from hetsim.errors import HetsimError, RunError, UsageError
from hetsim.experiment import points as points_of_sweeps
from hetsim.experiment import precision
from hetsim.experiment import study as studies
from hetsim.experiment import sweep as sweeps
from hetsim.experiment.compare import run_policies, select_best
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.segment import Segment
from hetsim.experiment.shard import ShardOver
from hetsim.experiment.stopping import Pilot, shared
from hetsim.experiment.store import Store
from hetsim.experiment.study import Case
from hetsim.experiment.sweep import Checked, estimate_sweep, plan_sweep, sweep
from hetsim.experiment.work import RunJob, RunOutcome, Setup
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.warmup import WarmupCut
from hetsim.search.size import _first_sustained, size
from hetsim.search.targets import Target
from hetsim.search.tune import tune

COUNT = "workload.jobs.count"
SMALL: dict[str, Any] = {
    "name": "small", "seed": 3, "cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]}, "policy": "fcfs",
    "workload": [{"name": "jobs", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 9, "gpu_time": "1 s"}],
}  # fmt: skip
OVER = {COUNT: [3, 5, 4]}
Kind = tuple[int, str]


def kind_of(job: RunJob) -> Kind:
    policy = job.overrides.get("policy", "fcfs")
    return job.overrides.get(COUNT, 9), policy if isinstance(policy, str) else policy["scheduler"]["name"]


def value(kind: Kind, seed: int, replication: int) -> float:
    """What a run of this kind gives: around a mean of its own, with a spread of its own."""
    count, policy = kind
    rng = random.Random(f"{count} {policy} {seed} {replication}")
    return 0.5 + 0.01 * count + 0.05 * (policy == "sjf") + 0.02 * (count - 2) * rng.uniform(-1, 1)


class Made:
    """Runs that are made up; `jobs` has those that were asked for."""

    def __init__(self) -> None:
        self.jobs: list[RunJob] = []
        self.wrong: Callable[[Kind, RunJob], RunOutcome | None] = lambda kind, job: None
        self.series: Callable[[Kind, int], tuple[np.ndarray, np.ndarray]] = NotImplemented
        self.limit = math.inf

    def __call__(self, setup: Any, shelf: Any, digest: str, *, job: RunJob, meter: Any = None) -> RunOutcome:
        if len(self.jobs) == self.limit:
            raise KeyboardInterrupt
        self.jobs.append(job)
        kind = kind_of(job)
        if (wrong := self.wrong(kind, job)) is not None:
            return wrong
        if job.pilot:
            return RunOutcome({}, series=self.series(kind, job.replication))
        found = {"replication": float(job.replication), "jain": value(kind, job.seed, job.replication), "rho_max": 2.0}
        return RunOutcome(found).only(setup.keep)

    @property
    def kinds(self) -> list[tuple[Kind, int]]:
        return [(kind_of(job), job.replication) for job in self.jobs]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    runs = Made()
    monkeypatch.setattr(studies, "outcome_or_error", runs)
    return runs


def half_of(values: list[float]) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


KINDS = [(count, policy) for count in (3, 5, 4) for policy in ("fcfs", "sjf")]

# Rows -----------------------------------------------------------------------------------------------------------------


def test_the_rows_of_a_grid(made: Made):
    found = sweep(SMALL, OVER, policies=["fcfs", "sjf"], replications=4, metrics="jain")
    assert made.kinds == [(kind, number) for kind in KINDS for number in range(4)]
    assert found.table["point"].tolist() == [0, 0, 1, 1, 2, 2] and found.keys == [COUNT]
    assert [(row[COUNT], row["policy"]) for _, row in found.table.iterrows()] == KINDS
    for kind, (_, row) in zip(KINDS, found.table.iterrows(), strict=True):
        values = [value(kind, 3, number) for number in range(4)]
        facts = row[["seed", "replications", "status", "error", "warnings"]].tolist()
        assert facts == [3, 4, "done", "", ""]
        wanted = [np.mean(values), np.mean(values) - half_of(values), np.mean(values) + half_of(values)]
        assert row[["jain", "jain_ci_low", "jain_ci_high"]].tolist() == pytest.approx(wanted)
        assert (row["rho_max"], row["rho_max_ci_low"]) == (2.0, 2.0)
    each = found.by_replication
    assert each["jain"].tolist() == [value(kind, 3, number) for kind in KINDS for number in range(4)]
    assert each["replication"].tolist() == list(range(4)) * 6 and each["point"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert (found.name, found.seed, found.metrics, found.replications, found.remarks) == ("small", 3, ["jain"], 4, [])


def test_one_replication_has_no_interval_and_seeds_may_be_given(made: Made):
    found = sweep(SMALL, OVER, seed=1 << 63)
    assert list(found.table["seed"]) == [str(1 << 63)] * 3 and "jain_ci_low" not in found.table
    assert found.table["jain"].tolist() == [value((count, "fcfs"), 1 << 63, 0) for count in (3, 5, 4)]
    by_key = sweep(SMALL, {"seed": [7, 8]})
    assert by_key.table["jain"].tolist() == [value((9, "fcfs"), seed, 0) for seed in (7, 8)]
    with pytest.raises(UsageError, match="seeds must be given once: as the key seed, or as seed"):
        sweep(SMALL, {"seed": [7, 8]}, seed=1)


def test_errors_and_warnings_name_their_replication(made: Made):
    def wrong(kind: Kind, job: RunJob) -> RunOutcome | None:
        if kind == (5, "fcfs") and job.replication == 1:
            return RunOutcome(None, error="no room")
        warned = {"jain": 0.5, "rho_max": 1.0, "replication": float(job.replication)}
        return RunOutcome(warned, ["careful", "careful"]) if kind[0] == 4 else None

    made.wrong = wrong
    found = sweep(SMALL, OVER, replications=2)
    assert found.table["status"].tolist() == ["done", "failed", "done"]
    assert found.table["error"].tolist() == ["", "replication 1: no room", ""]
    assert found.table["warnings"].tolist() == ["", "", "replication 0: careful; replication 1: careful"]
    assert found.table["jain"].isna().tolist() == [False, True, False] and len(found.failed) == 1
    assert found.by_replication["status"].tolist() == ["done", "done", "done", "failed", "done", "done"]
    made.wrong = lambda kind, job: RunOutcome(None, error="no room") if kind[0] == 5 else None
    assert sweep(SMALL, OVER).table["error"].tolist() == ["", "no room", ""]


def test_equal_rows_have_the_same_runs(made: Made):
    progress: list[float] = []
    points = [{COUNT: 3}, {COUNT: 4}, {COUNT: 3}]
    found = sweep(SMALL, points=points, policies=["fcfs", "sjf"], replications=2, progress=progress.append)
    assert made.kinds == [((count, policy), n) for count in (3, 4) for policy in ("fcfs", "sjf") for n in range(2)]
    assert found.table["jain"].tolist()[:2] == found.table["jain"].tolist()[4:]
    assert len(found.by_replication) == 12 and progress[-1] == 1.0


def test_runs_of_which_only_some_figures_are_kept(made: Made, tmp_path: Path):
    found = sweep(SMALL, OVER, keep="jain", replications=2, out=tmp_path / "s")
    assert "rho_max" not in found.table and found.metrics == ["jain"]
    again = sweep(SMALL, OVER, keep="jain", replications=2, out=tmp_path / "s")
    assert len(made.jobs) == 6 and again.table.equals(found.table)
    (segment,) = (Segment(path) for path in (tmp_path / "s" / "runs").glob("*.runs"))
    assert segment.load() == [] and segment.outcome(0).reduced


# How many -------------------------------------------------------------------------------------------------------------


def as_many_as_needed(kind: Kind, share: float, most: int) -> list[float]:
    """At least ten, and another as long as the interval is wider than the share of the mean."""
    values = [value(kind, 3, number) for number in range(10)]
    while half_of(values) / abs(np.mean(values)) > share and len(values) < most:
        values.append(value(kind, 3, len(values)))
    return values


def test_a_row_has_as_many_replications_as_its_precision_takes(made: Made):
    wanted = {"precision": 0.017, "metric": "jain", "max": 30}
    found = sweep(SMALL, OVER, policies=["fcfs", "sjf"], replications=wanted)
    values = {kind: as_many_as_needed(kind, 0.017, 30) for kind in KINDS}
    counts = [len(one) for one in values.values()]
    assert found.table["replications"].tolist() == counts and min(counts) == 10 and max(counts) == 30
    assert 10 < sorted(counts)[2] < 30  # some of each
    assert found.table["jain"].tolist() == pytest.approx([np.mean(one) for one in values.values()])
    assert len(made.jobs) == sum(counts) and len(found.by_replication) == sum(counts)
    assert [text.startswith("precision not reached") for text in found.table["warnings"]] == [
        half_of(one) / np.mean(one) > 0.017 for one in values.values()
    ]
    assert found.replications == {**wanted, "confidence": 0.95}
    assert found.remarks == [
        "replications: each row is repeated until the 95 % interval of its jain is within ± 1.7 % of the mean, "
        "10 to 30 replications"
    ]


def test_after_a_replication_that_fails_there_are_no_more(made: Made):
    made.wrong = lambda kind, job: RunOutcome(None, error="no") if kind[0] == 5 and job.replication == 11 else None
    found = sweep(SMALL, OVER, replications={"precision": 0.0001, "metric": "jain", "max": 14})
    assert found.table["replications"].tolist() == [14, 12, 14]
    assert found.table["error"].tolist()[1] == "replication 11: no" and found.table["warnings"][1] == ""


# Warm-ups -------------------------------------------------------------------------------------------------------------


def transient(tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """120 tasks, one every two seconds, of which the first take 9 s and the others 1 or 2."""
    number = np.arange(120)
    return 2.0 * number, np.where(number < tasks, 9.0, 1.0 + number % 2)


AUTO = SMALL | {"warmup": "auto", "replications": 6}
CUTS = {(3, "fcfs"): 10, (3, "sjf"): 25, (5, "fcfs"): 0, (5, "sjf"): 0, (4, "fcfs"): 55, (4, "sjf"): 20}


def test_policies_of_a_point_share_the_longest_warmup(made: Made):
    made.series = lambda kind, replication: transient(CUTS[kind])
    found = sweep(AUTO, OVER, policies=["fcfs", "sjf"])
    assert [job.pilot for job in made.jobs] == [True] * 36 + [False] * 36
    assert found.table["warmup_cut"].tolist() == [50.0, 50.0, 0.0, 0.0, 110.0, 110.0]
    assert [job.warmup for job in made.jobs if not job.pilot][::6] == [50.0, 50.0, 0.0, 0.0, 110.0, 110.0]
    assert ["near the half" in text for text in found.table["warnings"]] == [False] * 4 + [True] * 2
    assert found.remarks == [sweeps.WARMUP_REMARK.format(runs=6)]
    fixed = sweep(SMALL | {"warmup": "2 s"}, OVER)
    assert "warmup_cut" not in fixed.table and {job.warmup for job in made.jobs[-3:]} == {None}
    both = sweep(AUTO, {"warmup": ["auto", "3 s"], COUNT: [3]})
    assert sorted(both.table["warmup_cut"].tolist()) == [3.0, 20.0]
    many = sweep(AUTO | {"replications": 30}, {COUNT: [3]})
    assert sum(job.pilot for job in made.jobs[-50:]) == 20 and many.table["replications"].tolist() == [30]
    with pytest.raises(UsageError, match="at least 5 replications"):
        sweep(AUTO, OVER, replications=4)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_pilot_that_fails(made: Made, lasting: bool, tmp_path: Path):
    """For good: its row fails alone.  One that is to be tried again leaves the point for the next call."""
    made.series = lambda kind, replication: transient(CUTS[kind])
    failing = [True]

    def wrong(kind: Kind, job: RunJob) -> RunOutcome | None:
        out = failing[0] and kind == (3, "sjf") and job.pilot and job.replication == 2
        return RunOutcome(None, error="no", lasting=lasting) if out else None

    made.wrong = wrong
    found = sweep(AUTO, OVER, policies=["fcfs", "sjf"], out=tmp_path / "s")
    said = "replication 2, in the pilot that finds the warm-up: no"
    other = "" if lasting else f"the warm-up of the point cannot be found: {said}"
    assert found.table["error"].tolist() == [other, said, "", "", "", ""]
    assert math.isnan(found.table["warmup_cut"][1]) and found.table["warmup_cut"].tolist()[2:] == [0, 0, 110, 110]
    assert Counter(job.pilot for job in made.jobs) == {True: 33, False: 30 if lasting else 24}
    made.jobs.clear()
    failing[0] = False
    again = sweep(AUTO, OVER, policies=["fcfs", "sjf"], out=tmp_path / "s")
    if lasting:
        assert not made.jobs and again.table["error"].tolist() == ["", said, "", "", "", ""]
    else:  # the pilots that ended are kept
        assert Counter(job.pilot for job in made.jobs) == {True: 6, False: 12}
        assert again.table["warmup_cut"].tolist()[:2] == [50, 50] and again.failed.empty


def test_a_pilot_that_is_too_short_is_an_error(made: Made):
    made.series = lambda kind, replication: (np.arange(99.0), np.ones(99))
    found = sweep(AUTO, {COUNT: [3]})
    assert (
        found.table["error"][0].endswith("or give the warm-up as a time")
        or "replication 0 has 99 tasks" in (found.table["error"][0])
    )
    assert len(made.jobs) == 6


# Blocks, shards, and what is there already ----------------------------------------------------------------------------


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_interrupted_anywhere_it_goes_on_and_gives_the_same_bytes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sweeps, "BLOCK", 4)  # of one policy two points of two replications, of two policies one
    options: dict[str, Any] = {"policies": ["fcfs", "sjf"], "replications": 2}
    whole = sweep(SMALL, OVER, out=tmp_path / "whole", **options)
    assert len(made.jobs) == 12 and len(list((tmp_path / "whole" / "runs").glob("*.runs"))) == 3
    for limit in (0, 3, 4, 11):
        made.jobs.clear()
        made.limit = limit
        out = tmp_path / f"{limit}"
        with pytest.raises(KeyboardInterrupt):
            sweep(SMALL, OVER, out=out, **options)
        assert not (out / "table.parquet").exists() and len(list((out / "runs").glob("*.runs"))) == limit // 4
        made.limit = math.inf
        found = sweep(SMALL, OVER, out=out, resume=True, **options)
        assert len(made.jobs) == 12 and found.table.equals(whole.table)
        assert files_in(out) == files_in(tmp_path / "whole")
    made.jobs.clear()
    assert sweep(SMALL, OVER, out=out, **options).table.equals(whole.table) and not made.jobs
    sweep(SMALL, OVER, out=out, fresh=True, **options)
    assert len(made.jobs) == 12 and files_in(out) == files_in(tmp_path / "whole")
    assert sweep(SMALL, {COUNT: [3, 6]}, out=out, resume=True, **options).table["jain"].notna().all()
    assert len(made.jobs) == 16
    for more, said in (
        ({"resume": True}, "resume needs the directory of the sweep: give out"),
        ({"resume": True, "fresh": True, "out": out}, "resume and fresh exclude each other; give one of them"),
    ):
        with pytest.raises(UsageError, match=said):
            sweep(SMALL, OVER, **more)  # type: ignore[arg-type]


def test_sweeps_share_a_cache(made: Made, tmp_path: Path):
    cache = tmp_path / "cache"
    sweep(SMALL, OVER, cache=cache)
    sweep(SMALL, {COUNT: [4, 6]}, cache=cache, out=tmp_path / "s")
    assert [kind[0] for kind, _ in made.kinds] == [3, 5, 4, 6] and not (tmp_path / "s" / "runs").exists()
    sweep(SMALL, {COUNT: [4, 6]}, cache=cache, out=tmp_path / "s", fresh=True)
    assert [kind[0] for kind, _ in made.kinds] == [3, 5, 4, 6, 4, 6]
    sweep(SMALL, OVER, cache=cache, replications=2)
    assert made.kinds[6:] == [((count, "fcfs"), 1) for count in (3, 5, 4)]


@pytest.mark.parametrize("many", [1, 99])
def test_shards_make_each_run_once(made: Made, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every second block of two rows, or (of few blocks) every second run; the last call makes nothing."""
    monkeypatch.setattr(sweeps, "BLOCK", 4)
    monkeypatch.setattr(sweeps, "MANY_BLOCKS", many)
    made.wrong = lambda kind, job: RunOutcome(None, error="no") if kind == (5, "sjf") else None
    options: dict[str, Any] = {"policies": ["fcfs", "sjf"], "replications": 2, "out": tmp_path / "s"}
    parts = []
    for shard in ("1/2", "2/2", "1/2"):
        before = len(made.jobs)
        with pytest.raises(ShardOver) as over:
            sweep(SMALL, OVER, shard=shard, **options)
        parts.append((made.kinds[before:], over.value.report))
    every = [(kind, number) for kind in KINDS for number in range(2)]
    first = [every[n] for n in (0, 1, 2, 3, 8, 9, 10, 11)] if many == 1 else every[::2]
    failed = (0, 2) if many == 1 else (1, 1)
    assert [one for one, _ in parts] == [first, [one for one in every if one not in first], []]
    assert [(one.made, one.there, one.failed) for _, one in parts] == [
        (len(first), 0, failed[0]), (12 - len(first), 0, failed[1]), (0, len(first), failed[0]),
    ]  # fmt: skip
    found = sweep(SMALL, OVER, **options)
    assert len(made.jobs) == 12 and found.table["status"].tolist().count("failed") == 1
    for wrong, said in (({"out": None}, "a shard needs a shared folder: give --out or "
                                        "--cache"), ({"fresh": True}, "cannot be combined with --fresh")):
        with pytest.raises(UsageError, match=said):
            sweep(SMALL, OVER, shard="1/2", **(options | wrong))


def test_shards_of_runs_that_depend_on_others_are_of_points(made: Made, tmp_path: Path):
    made.series = lambda kind, replication: transient(CUTS[kind])
    cases: list[Any] = [(AUTO, 6), (SMALL, {"precision": 0.02, "metric": "jain", "max": 20})]
    for number, (scenario, wanted) in enumerate(cases):
        made.jobs.clear()
        options: dict[str, Any] = {"policies": ["fcfs", "sjf"], "replications": wanted, "out": tmp_path / f"{number}"}
        counts = []
        for shard in ("1/2", "2/2"):
            before = len(made.jobs)
            with pytest.raises(ShardOver) as over:
                sweep(scenario, OVER, shard=shard, **options)
            here = made.jobs[before:]
            assert {kind_of(job)[0] for job in here} == ({3, 4} if shard == "1/2" else {5})
            assert over.value.report.made == sum(not job.pilot for job in here)
            counts.append(len(here))
        found = sweep(scenario, OVER, **options)
        assert len(made.jobs) == sum(counts)
        kept = found.table["replications"].tolist()
        assert sum(kept) == sum(not job.pilot for job in made.jobs)


def test_rows_of_a_block():
    """As many whole points as 4,096 runs have; at least one."""
    wanted: Any = {"precision": 0.1, "metric": "jain", "max": 500}  # ten at first
    for count, replications, rows in ((2, 2, 2 * 1024), (1, 5000, 1), (1, 4095, 1), (1, 2, 2048), (2, wanted, 2 * 204)):
        policies = ["fcfs", "sjf"][:count]
        assert plan_sweep(SMALL, {COUNT: [3]}, policies=policies, replications=replications).block == rows
    assert plan_sweep(SMALL, points=[{COUNT: 3, "policy": "sjf"}, {COUNT: 4, "policy": "fcfs"}]).block == 2
    with pytest.raises(UsageError, match=r"3 rows × 400,000 replications|from 1 to 100,000"):
        plan_sweep(SMALL, OVER, replications=400_000)


def test_more_runs_than_a_sweep_takes_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweeps, "MAX_RUNS", 11)
    assert plan_sweep(SMALL, {COUNT: list(range(1, 12))}).max_runs == 11
    with pytest.raises(UsageError, match="^3 rows × 4 replications are 12 runs, but a sweep must have at most 11$"):
        plan_sweep(SMALL, OVER, replications=4)
    with pytest.raises(UsageError, match="^3 rows × up to 20 replications are 60 runs"):
        plan_sweep(SMALL, OVER, replications={"precision": 0.1, "metric": "jain", "max": 20})


def test_what_a_plan_says():
    plan = plan_sweep(SMALL, OVER, policies=["fcfs", "sjf"], metrics=["jain", "jain"], replications=4, seed=8)
    assert (plan.seed, plan.replications, plan.max_runs, plan.metrics) == (8, 4, 24, ["jain"])
    assert plan.table.to_numpy().tolist() == [[n // 2, count, policy] for n, (count, policy) in enumerate(KINDS)]
    about = plan.about
    assert list(about) == ["name", "seed", "replications", "metrics", "keys", "points", "policies", "scenario",
                           "versions", "remarks", "rows"]  # fmt: skip
    assert (about["points"], about["policies"], about["keys"]) == ([[3], [5], [4]], ["fcfs", "sjf"], [COUNT])
    assert len(about["rows"]) == 64 * 6
    kept = plan_sweep(SMALL, OVER, keep=["jain"])
    assert kept.about["keep"] == ["jain"] and kept.setup.keep == ("jain",) and plan.setup.keep == ()
    assert plan_sweep(AUTO, OVER).max_runs == 3 * 6 + 3 * 6
    sobol = {COUNT: "2..9 integer"}
    assert plan_sweep(SMALL, sobol, sample="sobol", n=4).remarks == []
    assert plan_sweep(SMALL, sobol, sample="sobol", n=5).remarks == [
        "the size of a Sobol sample should be a power of 2, for balance; got 5"
    ]
    assert plan_sweep(SMALL, sobol, sample="random", n=5).remarks == []


def test_rows_are_the_same_only_if_all_of_their_digest_is():
    checked = Checked()
    for run in ("ab" * 32, "ab" * 8 + "cd" * 24, "ab" * 32, "cd" * 32):
        checked.add("p", scenario="00" * 32, run=run, seed=1, warmup=1.0)
    assert checked.same.tolist() == [0, 1, 0, 3] and len(checked) == 4 and checked.run(3) == b"\xcd" * 32
    plain = Checked()
    for run in ("02" * 32, "01" * 32, "02" * 32):
        plain.add("p", scenario="00" * 32, run=run, seed=1, warmup=math.nan)
    assert plain.same.tolist() == [0, 1, 0] and plain.pilot(1) is None


def test_the_estimate_of_what_is_left(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    timed: list[RunJob] = []
    monkeypatch.setattr(precision, "_time", lambda job, setup: timed.append(job) or 2.0)
    out = tmp_path / "s"
    sweep(SMALL, {COUNT: [3, 5]}, out=out)
    plan = plan_sweep(SMALL, OVER, replications=3)
    found = estimate_sweep(plan, out, True)
    assert (found.runs, found.there, found.is_bound) == (7, 2, False)
    assert [(kind_of(job)[0], job.replication) for job in timed] == [(3, 1), (5, 2), (4, 2)]
    wanted = {"precision": 0.0001, "metric": "jain", "max": 14}
    bound = estimate_sweep(plan_sweep(SMALL, OVER, replications=wanted), None, False)
    assert (bound.runs, bound.there, bound.is_bound) == (30, 0, True)
    auto = estimate_sweep(plan_sweep(AUTO, OVER), None, False)
    assert (auto.runs, auto.there, auto.is_bound) == (36, 0, False)
    assert (
        sorted(files_in(tmp_path)) == sorted(files_in(tmp_path))
        and estimate_sweep(plan_sweep(SMALL, {COUNT: [3, 5]}), out, False).runs == 0
    )


# Tuning ---------------------------------------------------------------------------------------------------------------


def halved(kinds: list[Kind], first: int) -> tuple[Kind, dict[Kind, int]]:
    """The best third (at least one) goes on to three times as many replications; less is better."""
    left, after, counts = list(kinds), first, {}
    while len(left) > 1:
        counts |= dict.fromkeys(left, after)
        left = sorted(left, key=lambda kind: np.mean([-value(kind, 3, n) for n in range(after)]))[: -(-len(left) // 3)]
        after *= 3
    return left[0], counts


def test_a_tuning_is_successive_halving(made: Made):
    """Seven numbers and the present one: of eight the best three, of these the best."""
    numbers = [3, 4, 5, 6, 7, 8, 10]
    found = tune(SMALL, over={COUNT: numbers}, metric="jain", first=2, final=4)
    kinds = [(number, "fcfs") for number in [*numbers, 9]]
    best, counts = halved(kinds, 2)
    assert found.settings[found.best].values.get(COUNT, 9) == best[0] and not found.keeps
    assert [len(one.seen) for one in found.settings] == [counts[kind] for kind in kinds]
    assert [one.seen for one in found.settings] == [
        pytest.approx([value(kind, 3, n) for n in range(counts[kind])]) for kind in kinds
    ]
    used = max(counts.values())
    assert found.used == used == 6
    assert found.ours == pytest.approx([value(best, 3, used + n) for n in range(4)])
    assert found.present == pytest.approx([value((9, "fcfs"), 3, used + n) for n in range(4)])
    assert Counter(kind for kind, _ in made.kinds) == Counter(counts) + Counter({best: 4}) + Counter({(9, "fcfs"): 4})
    assert [one.stage for one in found.settings] == [1 + (counts[kind] > 2) for kind in kinds]


def test_settings_that_fail_come_last(made: Made):
    made.wrong = lambda kind, job: RunOutcome(None, error=f"no {kind[0]}") if kind[0] > 3 else None
    found = tune(SMALL, over={COUNT: [20, 3]}, metric="jain", first=2, final=3)
    assert found.settings[found.best].values == {COUNT: 3}
    assert [one.error for one in found.settings] == ["no 20", "", "no 9"]
    made.wrong = lambda kind, job: RunOutcome(None, error=f"no {kind[0]}")
    with pytest.raises(UsageError, match="jain is not defined under any setting: no 20"):
        tune(SMALL, over={COUNT: [20, 3]}, metric="jain", first=2, final=3)
    made.wrong = lambda kind, job: RunOutcome({"jain": math.nan, "replication": 0.0})
    with pytest.raises(UsageError, match="jain is not defined under any setting$"):
        tune(SMALL, over={COUNT: [20, 3]}, metric="jain", first=2, final=3)


@pytest.mark.parametrize(("more", "said"), [
    ({"first": 1}, "first must be at least 2 and final at least 3 replications; got 1 and 20"),
    ({"final": 2}, "got 3 and 2"), ({"confidence": 1.0}, "confidence must be between 0 and 1"),
    ({"confidence": 0.0}, "confidence must be between 0 and 1"), ({"metric": "task_count"}, "neither more nor less"),
    ({"over": {}}, "nothing to tune"),
])  # fmt: skip
def test_what_no_tuning_takes(more: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        tune(SMALL, **({"over": {COUNT: [3]}, "metric": "jain"} | more))


def test_a_setting_that_is_the_present_one_is_tried_once(made: Made):
    found = tune(SMALL, over={COUNT: [9, 3]}, metric="jain", first=2, final=3)
    assert [one.values for one in found.settings] == [{COUNT: 3}, {}]
    only = hs.tune(SMALL, over={COUNT: [9]}, metric="jain", first=2, final=3)
    assert [one.values for one in only.settings] == [{COUNT: 9}, {}] and isinstance(only.table, pd.DataFrame)


# Sizes ----------------------------------------------------------------------------------------------------------------


def tried(count: int, least: float, first: int, error: float) -> tuple[int, float, float, str]:
    """Looks with 3, a third of the replications, all, and four times as many, as long as the last left it open."""
    third = -(-first // 3)
    looks = [*([3] if third > 3 else []), *([third] if third >= 3 else []), first, 4 * first]
    for replications in looks:
        values = [value((count, "fcfs"), 3, number) for number in range(replications)]
        mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
        half = float(stats.t.ppf(1 - error / len(looks), replications - 1)) * deviation / math.sqrt(replications)
        if deviation < 1e-12 and replications < first:  # of a short look equal values show no spread
            half, verdict = math.nan, "open"
            continue
        verdict = "met" if mean - least >= half else "missed" if mean - least <= -half else "open"
        if verdict != "open":
            break
    return replications, mean, half, verdict


def bisected(least: float, low: int, most: int | None, first: int, confidence: float) -> Any:
    """Sizes are doubled until one meets it (`most` is the second where it is given), then halved; trials, answer."""
    top = 4096 if most is None else most
    error = (1 - confidence) / (2 * (math.ceil(math.log2(top / low)) + 1) + 1)
    trials: dict[int, tuple[int, float, float, str]] = {}

    def meets(count: int) -> bool:
        trials.setdefault(count, tried(count, least, first, error))
        return trials[count][3] == "met"

    bad, good = low - 1, low
    while not meets(good):
        if good == top:
            return trials, None
        bad, good = good, min(2 * good, top) if most is None else top
    while good - bad > 1:
        middle = (good + bad) // 2
        bad, good = (bad, middle) if meets(middle) else (middle, good)
    return trials, good


@pytest.mark.parametrize(("least", "low", "most", "first"), [
    (0.63, 1, None, 9), (0.63, 1, 40, 5), (0.63, 7, 12, 12), (0.56, 2, None, 6), (3.0, 4, 8, 4), (0.6, 1, 15, 2),
])  # fmt: skip
def test_the_least_size_by_bisection(made: Made, least: float, low: int, most: int | None, first: int):
    told: list[Any] = []
    progress: list[float] = []
    found = size(
        SMALL, f"jain > {least}", COUNT, least=low, most=most, replications=first, confidence=0.9, tell=told.append,
        progress=progress.append,
    )  # fmt: skip
    trials, answer = bisected(least, low, most, first, 0.9)
    assert found.size == answer and [one.size for one in told] == list(trials)
    assert [(one.size, one.replications, one.verdict) for one in found.trials] == [
        (count, trials[count][0], trials[count][3]) for count in sorted(trials)
    ]
    for one in found.trials:
        assert (one.mean, one.half) == pytest.approx(trials[one.size][1:3], nan_ok=True)
    assert Counter(kind[0] for kind, _ in made.kinds) == {count: one[0] for count, one in trials.items()}
    assert (found.min_size, found.max_size, found.confidence, found.key) == (low, most or 4096, 0.9, COUNT)
    assert progress == sorted(progress) and progress[-1] == 1.0


def test_sizes_that_cannot_run_or_fail(made: Made):
    made.wrong = lambda kind, job: RunOutcome(None, error="never fits\nbecause", refused=True) if kind[0] < 5 else None
    found = size(SMALL, "jain > 0.1", COUNT, least=1, most=8, replications=3)
    facts = [(one.size, one.verdict, one.reason, one.replications > 0) for one in found.trials]
    assert facts[:2] == [(1, "missed", "never fits", False), (4, "missed", "never fits", False)]
    assert found.size == 5 and all(one[1:] == ("met", "", True) for one in facts[2:])
    with pytest.raises(UsageError, match=f"no {COUNT} from 1 to 3 can run: never fits"):
        size(SMALL, "jain > 0.1", COUNT, least=1, most=3)
    made.wrong = lambda kind, job: RunOutcome(None, error="it broke")
    with pytest.raises(RunError, match=f"^{COUNT} = 2: it broke$"):
        size(SMALL, "jain > 0.1", COUNT, least=2, most=3)
    made.wrong = lambda kind, job: RunOutcome({"jain": math.nan, "replication": float(job.replication)})
    with pytest.raises(UsageError, match=f"^jain is not defined with any {COUNT} tried: choose another metric"):
        size(SMALL, "jain > 0.1", COUNT, least=2, most=3)


@pytest.mark.parametrize(("more", "said"), [
    ({"confidence": 1.0}, "confidence must be between"), ({"confidence": 0.0}, "confidence must be between"),
    ({"replications": 1}, r"replications must be at least 2 \(one run has no confidence interval\); got 1"),
    ({"least": 0}, "sizes must be a range of whole numbers of at least 1; got 0 to "
                   "4096"), ({"least": 5, "most": 4}, "sizes must be a range of whole numbers of at least 1; "
                                                      "got 5 to 4"),
    ({"over": "seed"}, "it selects the random numbers, not a size"),
    ({"shard": "1/2", "cache": "x"}, "a bisection cannot be sharded: sizes depend on earlier ones; give values"),
])  # fmt: skip
def test_what_no_search_takes(more: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"over": COUNT, "target": "jain > 0.1"} | more
    with pytest.raises(HetsimError, match=said):
        size(SMALL, **given)


# Comparisons ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def strictly(made: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Runs of comparisons, which end with the first that fails."""

    def simulate(scenario: Any, job: RunJob, **_: Any) -> Any:
        result: Any = three()
        result.record.input.warnings = ["careful"]
        result.made = made(Setup(()), None, "", job=job).values
        return result

    monkeypatch.setattr(studies, "simulate", simulate)
    monkeypatch.setattr(studies, "replication_values", lambda result, metrics: result.made)
    monkeypatch.setattr(sys.modules[__name__], "kind_of", lambda job: (9, "sjf" if job.scenario else "fcfs"))
    return made


def test_policies_have_as_many_replications_as_their_precision_takes(strictly: Made):
    wanted = {"precision": 0.06, "metric": "jain", "max": 80}
    found = run_policies(SMALL, ["fcfs", "sjf"], StudyOptions(replications=wanted))
    values = [as_many_as_needed((9, policy), 0.06, 80) for policy in ("fcfs", "sjf")]
    assert [list(runs.column("jain")) for runs in found.values()] == values  # type: ignore[union-attr]
    assert [len(one) for one in values] != [10, 10] and len(strictly.jobs) == sum(map(len, values))
    for runs in found.values():
        assert isinstance(runs, Replications) and runs.remarks[0].startswith("precision: 95 % interval of jain is ±")
    assert found["fcfs"].warnings[:2] == ["replication 0: careful", "replication 1: careful"]


def test_a_selection_drops_policies_one_after_another(strictly: Made):
    """Kim and Nelson: W(r) = (2 η (n - 1) S² / δ² - r) δ / 2r; a policy goes that is further behind than that."""
    runs, found = select_best(SMALL, ["fcfs", "sjf"], StudyOptions(replications=4), "jain", 0.9, 0.06)
    values = {policy: [value((9, policy), 3, number) for number in range(1000)] for policy in ("fcfs", "sjf")}
    first = {policy: np.array(one[:4]) for policy, one in values.items()}
    delta = 0.06 * max(one.mean() for one in first.values())
    eta = ((2 * 0.1) ** (-2 / 3) - 1) / 2
    limit = 2 * eta * 3 * np.var(first["fcfs"] - first["sjf"], ddof=1) / delta**2
    r = 4
    while abs(np.mean(values["fcfs"][:r]) - np.mean(values["sjf"][:r])) <= max(0.0, (limit - r) * delta / (2 * r)):
        r += 1
    best = max(values, key=lambda policy: np.mean(values[policy][:r]))
    assert (found.best, found.delta, r > 5) == (best, pytest.approx(delta), True)
    assert {policy: len(one) for policy, one in runs.items()} == {"fcfs": r, "sjf": r} == found.runs
    assert list(found.dropped.values()) == [r] and len(strictly.jobs) == 2 * r


# What is refused, and what is left as it is ---------------------------------------------------------------------------


def test_points_and_policies_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="policies must be given once: in the points, or as policies"):
        plan_sweep(SMALL, points=[{COUNT: 3, "policy": "sjf"}], policies=["fcfs"])
    monkeypatch.setattr(points_of_sweeps, "MAX_ROWS", 5)
    assert len(plan_sweep(SMALL, OVER).rows) == 3
    with pytest.raises(UsageError, match="the sweep must have at most 5 points .with policies.; got 6"):
        plan_sweep(SMALL, OVER, policies=["fcfs", "sjf"])


def test_a_tuning_begins_with_three_replications(made: Made):
    found = tune(SMALL, over={COUNT: [3, 4, 5]}, metric="jain")
    assert sorted(len(one.seen) for one in found.settings) == [3, 3, 9, 9] and len(found.ours) == 20


def test_the_first_pilot_that_is_to_be_tried_again_is_told():
    pilots: list[Any] = [Pilot(Case(hs.load(SMALL)), 5) for _ in range(4)]
    for pilot, error in zip(pilots[:3], (RunOutcome(None, error="gone"), RunOutcome(None, error="a", lasting=False),
                                         RunOutcome(None, error="b", lasting=False)), strict=True):  # fmt: skip
        pilot.error = error
    pilots[3].cut = WarmupCut(5.0, 3, 9, 5)
    found = shared(pilots)
    assert found.cut is pilots[3].cut and found.lasting is pilots[1].error
    assert [found.error_of(one) for one in pilots] == ["gone", "a", "b", "the warm-up of the point cannot be found: a"]


def test_a_folder_among_the_runs_is_named(tmp_path: Path):
    (tmp_path / "x.runs").mkdir()
    with pytest.raises(UsageError, match=f"{tmp_path}/x.runs must be a file of runs; got a folder: move it elsewhere"):
        _ = Store(tmp_path).files


def test_the_least_number_that_overload_allows_by_bisection():
    """Up to 11 the queue grows; numbers are doubled, then halved, and nothing beyond the most is looked at."""
    asked: list[int] = []

    class Scaled:
        model = SimpleNamespace(workload=[SimpleNamespace(service="s")])

        def with_overrides(self, values: dict[str, int]) -> Any:
            asked.append(values["k"])
            overloads = [(f"full at {values['k']}", 100, 1e4)] if values["k"] <= 11 else []
            return SimpleNamespace(build=lambda seed: SimpleNamespace(overloads=overloads, tasks=range(100)))

    scenario: Any = Scaled()
    aim = Target.parse("wait_mean < 1 s")
    assert _first_sustained(scenario, aim, "k", most=100, seed=None) == (12, "full at 11")
    assert asked == [1, 2, 4, 8, 16, 12, 10, 11]
    asked.clear()
    assert _first_sustained(scenario, aim, "k", most=9, seed=None) == (9, "full at 8") and max(asked) == 8


@pytest.mark.parametrize(("text", "mean", "missed", "allowed"), [
    ("slo_attainment > 0.9", 0.95, 0.05, 0.1), ("slo_attainment > 0.9", 0.8, 0.2, 0.1),
])  # fmt: skip
def test_the_gap_of_a_share_is_on_the_scale_of_what_is_missed(text: str, mean: float, missed: float, allowed: float):
    assert Target.parse(text).gap(mean) == pytest.approx(missed * math.log(allowed / missed))
    assert Target.parse(text).gap(1.0) == pytest.approx(0.1) and Target.parse("slo_attainment > 1").gap(0.9) < 0
    assert Target.parse("wait_mean < 3 s").gap(1.0) == 2.0 and Target.parse("jain > 0.5").gap(0.75) == 0.25
