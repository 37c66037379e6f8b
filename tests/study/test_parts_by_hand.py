"""Parts of studies by themselves: properties, small cases by hand, and what they say in full."""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import io
import itertools
import math
import os
import random
import re
import sys
import time
import types
import warnings
from collections import OrderedDict, deque
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stored import stored_runs

from hetsim.errors import DamagedFile, DamageWarning, HetsimError, ScenarioError, UsageError
from hetsim.experiment import identity, points, policies, precision, progress
from hetsim.experiment.code_digest import code_digest, stated_identity
from hetsim.experiment.directory import check_target, folder_name
from hetsim.experiment.folder import check_folder, claim, mark_of
from hetsim.experiment.identity import plain_digest
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.points import GridValues, PointRows
from hetsim.experiment.policies import named_policy
from hetsim.experiment.precision import Estimate
from hetsim.experiment.run import tell_all, whole_series
from hetsim.experiment.segment import Segment, line_of, parse_line, segment_of
from hetsim.experiment.set_order import takes_order
from hetsim.experiment.shard import Shard, ShardReport, make_all, make_part, part_of
from hetsim.experiment.stopping import Amount
from hetsim.experiment.store import Store, _replaces, merge_stores, open_cache
from hetsim.experiment.study import Case, Replicates
from hetsim.experiment.sweep import OPEN_BLOCKS, OpenBlocks, RowRuns
from hetsim.experiment.work import Packed, RunOutcome, described, needed_for, of_environment
from hetsim.results.many_runs.replications import Replications
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.sweep import is_range

NAN, INF = math.nan, math.inf
NOTHING: Any = None

# What a study will take, and how far it is ----------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "text"), [
    (Estimate(1, 0, 1, (2.0,)), "1 run to make: about 2 s with one worker (2 s a run, from one of them tried now)."),
    (Estimate(1000, 1200, 4, (1.0, 1.1, 3.0)),
     "1,000 runs to make, 1,200 there already: about 7.17 min with 4 workers (1 s to 3 s a run, from 3 of them tried "
     "now)."),
    (Estimate(20, 0, 1, (1.0, 1.09)),
     "20 runs to make: about 21 s with one worker (1 s a run, from 2 of them tried now)."),
    (Estimate(20, 0, 1, (1.0, 1.1)),
     "20 runs to make: about 21 s with one worker (1 s to 1.1 s a run, from 2 of them tried now)."),
    (Estimate(3, 0, 2, (), True), "at least 3 runs to make; all tried runs failed."),
    (Estimate(0, 1, 2, ()), "0 runs to make, 1 there already."),
    (Estimate(4, 0, 2, (1.0,), True),
     "at least 4 runs to make: about 3.5 s with 2 workers (1 s a run, from one of them tried now). This is a lower "
     "bound: the number that the precision needs is known only during the runs."),
])  # fmt: skip
def test_what_is_said_of_the_cost(cost: Estimate, text: str):
    assert cost.sentence == text


def test_the_cost_of_no_run_is_not_known():
    assert math.isnan(Estimate(3, 0, 1, ()).total) and Estimate(3, 0, 2, (1.0, 3.0)).total == 3 * 2 / 2 + 1.5


def test_the_first_the_middle_and_the_last_run_are_timed(monkeypatch: pytest.MonkeyPatch):
    timed: list[int] = []

    def spent(job: Any, setup: Any) -> float:
        timed.append(job)
        if job == 2:
            raise ScenarioError("refused")
        return job + 0.5

    monkeypatch.setattr(precision, "_time", spent)
    asked: list[Any] = []
    for count in range(7):
        timed.clear()
        asked.append((precision.estimate(list(range(count)), 9, NOTHING, 2, is_bound=count > 3), list(timed)))
    assert [jobs for _, jobs in asked] == [[], [0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 2, 4], [0, 3, 5]]
    assert asked[4][0] == Estimate(4, 9, 2, (0.5, 3.5), True) and asked[0][0] == Estimate(0, 9, 2, ())


@pytest.mark.parametrize(("share", "passed", "text"), [
    (0.0, 3.0, "0 % done, 3 s passed"), (0.42, 12.0, "42 % done, 12 s passed, about 17 s left"),
    (1.0, 12.34, "100 % done, 12 s passed"), (0.999, 100.0, "100 % done, 100 s passed, about 100 ms left"),
])  # fmt: skip
def test_the_text_of_a_notebook(share: float, passed: float, text: str):
    assert progress.NotebookBar.text(share, passed) == text


def simulation(ended: int, tasks: int, horizon: float, now: float) -> Any:
    return SimpleNamespace(state=SimpleNamespace(ended=ended), input=SimpleNamespace(tasks=[0] * tasks,
        horizon=horizon),
                           view=SimpleNamespace(now=now))  # fmt: skip


def test_the_progress_of_a_run_is_by_tasks_or_by_time():
    cases = [(3, 12, INF, 5.0, 0.25), (3, 12, 10.0, 5.0, 0.5), (9, 12, 10.0, 5.0, 0.75), (0, 0, INF, 9.0, 0.0)]
    assert [progress.run_share(simulation(*case[:4])) for case in cases] == [case[4] for case in cases]
    assert progress.run_share(None) == 0.0


def test_the_progress_of_a_study_never_goes_back():
    meter = progress.Meter(None, 4)
    shares = [meter.share()]
    meter.finished()
    meter.simulation = simulation(1, 2, INF, 0.0)
    shares.append(meter.share())
    meter.expect(4)
    shares.append(meter.share())
    meter.simulation = None
    for _ in range(4):
        meter.finished()
    shares.append(meter.share())
    meter.ahead = 2
    shares.append(meter.share())
    meter.ahead = -3
    meter.expect(-4)
    shares.append(meter.share())
    assert shares == [0, 1.5 / 4, 1.5 / 4, 5 / 8, 5 / 8, 1.0]
    assert progress.Meter(None).share() == 0.0
    with (
        pytest.raises(UsageError, match="progress must be True, or a function of the share done; got 3"),
        progress.Meter(3),
    ):  # type: ignore[arg-type]
        pass


def test_progress_is_told_at_the_end_of_what_was_quick():
    told: list[float] = []
    with progress.Meter(told.append, 2) as meter:
        meter.finished()
        meter.finished()
    assert told == [1.0]
    with pytest.raises(KeyError), progress.Meter(told.append, 2):
        raise KeyError
    assert told == [1.0]


def test_a_bar_is_told_how_it_ended(monkeypatch: pytest.MonkeyPatch):
    closed: list[bool] = []

    class Bar:
        def __call__(self, share: float) -> None:
            pass

        def close(self, done: bool) -> None:
            closed.append(done)

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "NotebookBar", Bar)
    with progress.reporting(True) as bar:
        assert isinstance(bar, Bar)
    with pytest.raises(KeyError), progress.reporting(True):
        raise KeyError
    assert closed == [True, False]
    for quiet in (None, False):
        with progress.reporting(quiet) as bar:
            assert bar is None
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress.reporting(True) as bar:
        assert bar is None


# Parts of a study -----------------------------------------------------------------------------------------------------


def test_shards_share_out_what_there_is():
    assert (
        Shard.parse(" 2 / 8 ") == Shard(2, 8)
        and Shard.parse("8/8") == Shard(8, 8)
        and Shard.parse("1/1") == Shard(1, 1)
    )
    for wrong in ("0/8", "9/8", "2", "a/b", "-1/8", "2/8/3", "00000001/8", "0/0"):
        with pytest.raises(UsageError, match=f'such as 2/8 .the first is 1/8.; got "{wrong}"'):
            Shard.parse(wrong)
    parts = [list(Shard(one, 3).items_of(range(8))) for one in (1, 2, 3)]
    assert parts == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert part_of(StudyOptions(shard="2/3")) == Shard(2, 3) and part_of(StudyOptions()) is None


def test_what_is_said_of_a_shard():
    end = "; the same command without --shard makes the remaining runs and the tables"
    assert ShardReport(Shard(2, 8), 1, 0, 0).sentence == f"shard 2/8: 1 run made, 0 found{end}"
    assert (
        ShardReport(Shard(1, 2), 1200, 3000, 5).sentence
        == f"shard 1/2: 1,200 runs made (5 failed), 3,000 found{end}"
    )
    assert ShardReport(Shard(2, 8), 3, 4, 1).to_json() == {"shard": "2/8", "made": 3, "there": 4, "failed": 1}


def test_a_part_is_of_single_replications():
    """Of two cases with five and three, of which the first of one is kept whole: every third of the other seven."""
    made: list[Any] = []

    def make(series: Any) -> None:
        made.extend(series)
        study.found += 1
        for number, one in enumerate(series):
            one.taken = [RunOutcome(None if number == 1 else {"jain": 1.0})]

    study: Any = SimpleNamespace(found=4, make=make)
    cases: Any = ["a", "b"]
    series = [Replicates(cases[0], 5, whole=1, warmup=2.5), Replicates(cases[1], 3, begin=10)]
    report = make_part(study, series, Shard(2, 3))
    assert [(one.case, one.begin, one.goal, one.warmup) for one in made] == [("a", 2, 1, 2.5), ("b", 10, 1, None)]
    assert report == ShardReport(Shard(2, 3), 1, 1, 1)
    assert make_all(study, series, Shard(1, 1)).made == 1


@pytest.mark.parametrize("seed", range(8))
def test_blocks_are_finished_in_their_order(seed: int):
    """However rows end, each block once, with all its rows, and no more than some are open."""
    rng = random.Random(seed)
    size, rows = rng.randint(1, 4), rng.randint(1, 23)
    finished: list[tuple[int, list[RowRuns]]] = []
    blocks = OpenBlocks(size, rows, lambda number, mine: finished.append((number, mine)))
    made = [RowRuns() if rng.random() < 0.8 else RowRuns(error="no") for _ in range(rows)]
    waiting: list[RowRuns] = []
    for number, row in enumerate(made):
        while blocks.crowded:
            waiting.pop(rng.randrange(len(waiting))).error = "made"
        begun = {one // size for one in range(number)}
        assert len(begun) - len(finished) <= OPEN_BLOCKS
        blocks.add(number, row)
        waiting += [] if row.error else [row]
    rng.shuffle(waiting)
    for row in waiting:
        row.error = "made"
    blocks.settle()
    assert [number for number, _ in finished] == list(range(math.ceil(rows / size)))
    assert [row for _, mine in finished for row in mine] == made and all(one.done for one in made)
    assert not RowRuns().done and not RowRuns(Replicates(NOTHING, 1)).done and RowRuns(Replicates(NOTHING, 0)).done


def test_replications_that_count():
    runs = Replications()
    series = Replicates(NOTHING, 3, runs=runs, strict=True)
    assert (series.most, series.likely, series.done, series.failed) == (3, 3, False, False)
    for number in range(3):
        series.add(RunOutcome({"replication": float(number), "jain": 1.0 + number}, ["careful"] if number else []))
    assert series.done and not series.failed and isinstance(series.taken[0].values, Packed)
    assert runs.warnings == ["replication 1: careful", "replication 2: careful"] and list(runs.column("jain")) == [
        1,
        2,
        3,
    ]
    series.add(RunOutcome(None, error="no"))
    assert series.failed and len(runs) == 3
    quiet = Replicates(NOTHING, 2, most=9, runs=Replications())
    quiet.add(RunOutcome({"replication": 0.0, "jain": 1.0}, ["careful"]))
    assert quiet.most == 9 and quiet.runs is not None and quiet.runs.warnings == [] and not quiet.done


def test_the_seed_of_a_case():
    scenario: Any = SimpleNamespace(model=SimpleNamespace(seed=7, warmup="auto"))
    assert (Case(scenario).own_seed, Case(scenario, seed=0).own_seed, Case(scenario).auto_warmup) == (7, 0, True)
    scenario.model.warmup = 3.0
    assert not Case(scenario).auto_warmup


# What is stored -------------------------------------------------------------------------------------------------------


def run_name(number: int) -> str:
    return f"{number:02x}" * 32


def outcomes_of(seed: int, count: int = 5) -> dict[str, RunOutcome]:
    """Runs with different metrics in different orders, missing and infinite values, errors and marks."""
    rng = random.Random(seed)
    made = {}
    for number in rng.sample(range(250), count):
        names = rng.sample(["jain", "bubble", "wait_mean", "energy_j"], rng.randint(0, 4))
        values = {name: rng.choice([0.1, -2.5, NAN, INF, -INF, 1e300]) for name in names}
        fails = rng.random() < 0.3
        made[run_name(number)] = RunOutcome(
            None if fails else values, rng.choice([[], ["careful"], ["é", "b"]]), error="it failed" if fails else "",
            refused=fails and rng.random() < 0.5, unknown=rng.choice(["", "the clock"]), reduced=rng.random() < 0.3,
        )  # fmt: skip
    return made


def same(one: RunOutcome, other: RunOutcome) -> bool:
    def facts(outcome: RunOutcome) -> Any:
        values = None if outcome.values is None else [(name, repr(value)) for name, value in outcome.values.items()]
        return (
            values,
            outcome.warnings,
            outcome.error,
            outcome.refused,
            outcome.unknown,
            outcome.reduced,
            outcome.lasting,
        )

    return facts(one) == facts(other)


@pytest.mark.parametrize("seed", range(6))
def test_a_segment_has_what_was_put_into_it(seed: int, tmp_path: Path):
    made = outcomes_of(seed)
    data = segment_of(made)
    assert data == segment_of(dict(reversed(made.items())))  # whatever the order
    path = tmp_path / "a.runs"
    path.write_bytes(data)
    segment = Segment(path)
    assert [segment.run(number) for number in range(len(segment))] == sorted(made) and segment.load() == []
    assert all(same(segment.outcome(number), made[segment.run(number)]) for number in range(len(segment)))
    segment.unload()
    assert segment.load() == [] and len(segment) == 5
    for run, outcome in made.items():
        assert parse_line(path, line_of(run, outcome))[0] == run
        assert same(parse_line(path, line_of(run, outcome))[1], outcome)


def test_any_byte_of_a_segment_that_changes_is_seen(tmp_path: Path):
    """In the head the file is refused, in a row that row (or more) is damaged; so it is where bytes are missing."""
    made = outcomes_of(2)
    data, path = segment_of(made), tmp_path / "a.runs"
    path.write_bytes(data)
    head = Segment(path)._begin
    size = (len(data) - head) // 5
    for at in range(0, len(data), 11):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        if at < head:
            with pytest.raises((DamagedFile, UsageError)):
                Segment(path)
        else:
            bad = Segment(path).load()
            assert (at - head) // size in bad and (len(bad) == 1 or (at - head) % size < 8)
    for length in range(0, len(data), 37):
        path.write_bytes(data[:length])
        if length < head:
            with pytest.raises((DamagedFile, UsageError)):
                Segment(path)
        else:
            assert Segment(path).load() == list(range((length - head) // size, 5))
    path.write_bytes(data.replace(b"hetsim runs 1", b"hetsim runs 2"))
    with pytest.raises(UsageError, match="it was written by another version of hetsim"):
        Segment(path)


def test_any_byte_of_a_line_that_changes_is_seen(tmp_path: Path):
    run, outcome = run_name(7), RunOutcome({"jain": 0.5}, ["careful"])
    line = line_of(run, outcome)
    for at in range(len(line) - 1):
        with pytest.raises(UsageError):
            parse_line(tmp_path / "x", line[:at] + bytes([line[at] ^ 0x11]) + line[at + 1 :])
    with pytest.raises(DamagedFile, match="not the outcome of a run"):
        parse_line(tmp_path / "x", line_of(run[2:], outcome))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_store_is_a_mapping_that_survives(seed: int, tmp_path: Path):
    """Runs of blocks that are sealed, left or begun again; a new process has all that was put, and nothing else."""
    rng = random.Random(seed)
    wanted: dict[str, RunOutcome] = {}
    pool = outcomes_of(seed, 60)
    names = list(pool)
    for session in range(4):
        store = Store(tmp_path, trust=True)
        for block in range(3):
            for run in names[20 * block : 20 * block + 5 * (session + 1)]:
                kept = store.get(run, (), block, True)
                assert (kept is None) == (run not in wanted)
                if kept is None:
                    store.put(run, pool[run], block=block)
                    wanted[run] = pool[run]
                else:
                    assert same(kept, wanted[run])
            if rng.random() < 0.3:
                store.leave(block)
            if rng.random() < 0.7:
                store.seal(block)
        store.close(complete=rng.random() < 0.5)
        found = stored_runs(tmp_path)
        assert found.keys() == wanted.keys() and all(same(found[run], wanted[run]) for run in wanted)
        assert not store.damaged
    merged = tmp_path / "merged"
    merged.mkdir()
    first = merge_stores([tmp_path], merged)
    assert first.copied >= 60 and (first.there, first.damaged) == (0, [])  # one in two segments is copied with both
    again = merge_stores([tmp_path], merged)
    assert (again.copied, again.there) == (0, first.copied) and stored_runs(merged).keys() == wanted.keys()
    assert first.sentence == f"{first.copied} finished runs copied, 0 there already"


def test_which_stored_outcomes_are_given_out(tmp_path: Path):
    store = Store(tmp_path)
    store.put(run_name(1), RunOutcome({"jain": 1.0, "bubble": 2.0}))
    store.put(run_name(2), RunOutcome({"jain": 1.0}, unknown="the clock"))
    store.put(run_name(3), RunOutcome({"jain": 1.0}, reduced=True))
    store.put(run_name(4), RunOutcome(None, error="no"))
    store.put(run_name(5), RunOutcome(None, error="busy", lasting=False))
    store.put(run_name(6), RunOutcome({"jain": 1.0}), "a file")
    store.close(complete=False)
    plain, trusting, fresh = Store(tmp_path), Store(tmp_path, trust=True), Store(tmp_path, True)
    for one, numbers in ((plain, [1, 4]), (trusting, [1, 2, 4, 6]), (fresh, [])):
        assert [number for number in range(1, 7) if one.get(run_name(number), ["jain"]) is not None] == numbers
    assert plain.get(run_name(1), ["jain", "rho_max"]) is None and plain.get(run_name(4), ["rho_max"]) is not None
    assert plain.get(run_name(3), ["jain"], None, True) is not None and plain.get(run_name(9)) is None
    kept = trusting.get(run_name(6))
    assert kept is not None and kept.unknown == "a file"
    assert Store(None).folder is None


@pytest.mark.parametrize("inner", ["", "runs", "sweep"])
def test_runs_are_looked_for_in_all_places_where_they_once_were(inner: str, tmp_path: Path):
    """A file a run, in folders of two letters; below `runs` where there is such a folder, or a sweep."""
    folder = tmp_path / "runs" if inner else tmp_path
    (folder / "ab").mkdir(parents=True)
    if inner == "sweep":
        (tmp_path / "sweep.json").write_text("{}")
    run = "ab" * 32
    (folder / "ab" / f"{run}.json").write_bytes(line_of(run, RunOutcome({"jain": 0.5})))
    (folder / "ab" / f"{run[:-2]}00.json").write_bytes(b"{}")
    assert list(stored_runs(tmp_path)) == [run] and stored_runs(tmp_path)[run].values == {"jain": 0.5}
    store = Store(folder)
    assert store.get(run) is not None and store.get(run_name(5)) is None and store.damaged == []
    assert store.get(f"{run[:-2]}00") is None and len(store.damaged) == 1


def test_runs_that_contradict_each_other_are_not_merged(tmp_path: Path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        store = Store(tmp_path / name)
        store.put(run_name(1), RunOutcome({"jain": value, "bubble": NAN}))
        store.close(complete=True)
    with pytest.raises(UsageError, match=r"have different outcomes of the same run"):
        merge_stores([tmp_path / "a"], tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(UsageError, match="no finished runs in .*: it is neither a cache nor the directory of a sweep"):
        merge_stores([tmp_path / "c"], tmp_path / "b")


def test_sources_of_which_one_has_no_runs(tmp_path: Path):
    """Whatever came before it: a folder that brings nothing and has nothing is named."""
    store = Store(tmp_path / "a")
    store.put(run_name(1), RunOutcome({"jain": 1.0}))
    store.close(complete=True)
    (tmp_path / "empty").mkdir()
    merged = merge_stores([tmp_path / "a", tmp_path / "a"], tmp_path / "b")
    assert (merged.copied, merged.there, merged.damaged) == (1, 1, [])
    for sources in (["a", "empty"], ["a", "a", "empty"], ["empty", "a"]):
        with pytest.raises(UsageError, match=f"there are no finished runs in {tmp_path / 'empty'}: it is neither"):
            merge_stores([tmp_path / one for one in sources], tmp_path / "b")


def test_journals_are_numbered_from_one(tmp_path: Path):
    store = Store(tmp_path)
    for block in ("x", "y"):
        store.put(run_name(1 if block == "x" else 2), RunOutcome({"jain": 1.0}), block=block)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition("-")[2] for name in names] == ["1.jsonl", "2.jsonl"]
    assert len({name.rpartition("-")[0] for name in names}) == 1 and f"-{os.getpid()}-" in names[0]


def test_damaged_files_are_told(tmp_path: Path):
    store = Store(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.tell()
    store.damaged += [tmp_path / "a", tmp_path / "b"]
    with pytest.warns(DamageWarning, match=f"runs: 2, such as {tmp_path / 'a'}; the lost runs were simulated again$"):
        store.tell()
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match=f"the cache {file} cannot be written: File exists"):
        open_cache(file)
    assert open_cache(None) is None and open_cache(tmp_path / "new") == tmp_path / "new"
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(("one", "other", "replaces"), [
    (RunOutcome({"a": 1.0, "b": 2.0}), RunOutcome({"a": 1.0}), True),
    (RunOutcome({"a": 1.0}), RunOutcome({"a": 1.0}), True),
    (RunOutcome({"a": 1.0}), RunOutcome({"a": 1.0, "b": 2.0}), False),
    (RunOutcome({"a": 1.0}, unknown="x"), RunOutcome({"a": 1.0}), False),
    (RunOutcome({"a": 1.0}), RunOutcome({"a": 1.0}, unknown="x"), False),
    (RunOutcome({"a": 1.0}, reduced=True), RunOutcome({"a": 1.0}), False),
    (RunOutcome({"a": 1.0}), RunOutcome({"a": 1.0}, reduced=True), True),
    (RunOutcome(None, error="no"), RunOutcome(None, error="no"), True),
    (RunOutcome(None, error="no"), RunOutcome(None, error="yes"), False),
    (RunOutcome(None, error="no"), RunOutcome({}), False), (RunOutcome({}), RunOutcome(None, error=""), False),
])  # fmt: skip
def test_which_outcomes_stand_for_others(one: RunOutcome, other: RunOutcome, replaces: bool, tmp_path: Path):
    """A run that is put again is written again, unless what is there has all of it."""
    assert _replaces(one, other) is replaces
    store = Store(tmp_path)
    store.put(run_name(1), one)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    store.put(run_name(1), other)
    assert (sum(path.stat().st_size for path in tmp_path.iterdir()) == size) is replaces


# Outcomes -------------------------------------------------------------------------------------------------------------


def test_numbers_are_kept_small():
    values = {"jain": 1.5, "bubble": NAN}
    packed = Packed(values)
    assert list(packed) == ["jain", "bubble"] and packed["jain"] == 1.5 and len(packed) == 2
    assert "jain" in packed and "rho_max" not in packed and packed.numbers.itemsize == 8
    with pytest.raises(KeyError):
        packed["rho_max"]
    outcome = RunOutcome(values).packed()
    assert isinstance(outcome.values, Packed) and outcome.packed() is outcome
    nothing = RunOutcome({})
    assert nothing.packed() is nothing
    assert needed_for(("wait_mean",)) == {"wait_mean", "_started", "replication", "_end", "_watts_at_end"}
    some = RunOutcome({"jain": 1.0, "wait_mean": 2.0, "_started": 3.0, "rho_max": 4.0, "_end": 5.0})
    kept = some.only(("wait_mean",))
    assert kept.values == {"wait_mean": 2.0, "_started": 3.0, "_end": 5.0} and kept.reduced
    assert kept.only(("wait_mean",)) is kept and some.only(()) is some
    failed = RunOutcome(None, error="no")
    assert failed.only(("jain",)) is failed and kept.only(("jain",)).values == {"_end": 5.0}


def test_errors_of_the_machine_may_go_away():
    def of(error: BaseException, cause: BaseException | None = None) -> BaseException:
        error.__cause__ = cause
        return error

    assert [of_environment(one) for one in (OSError(), MemoryError(), ImportError(), ValueError(), None)] == [
        1,
        1,
        1,
        0,
        0,
    ]
    assert of_environment(of(ValueError(), of(KeyError(), OSError()))) and not of_environment(
        of(ValueError(), KeyError())
    )
    assert described(ValueError("a\n  b")) == "ValueError: a b" and described(KeyError()) == "KeyError: no message"


# Folders --------------------------------------------------------------------------------------------------------------


def test_names_of_folders():
    texts = {"a b": "a-b", "fcfs + las": "fcfs+las", "x/y:z": "x-y-z", "..": "run", "-a-": "a", "": "run", "é.1": "é.1",
             "a/ +  b": "a-+b"}  # fmt: skip
    assert {text: folder_name(text) for text in texts} == texts


def test_what_can_be_written_to(tmp_path: Path):
    assert check_target(tmp_path / "a" / "b" / "c") == tmp_path / "a" / "b" / "c" and not (tmp_path / "a").exists()
    (tmp_path / "empty").mkdir()
    (tmp_path / "partial" / "partial").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for name in ("empty", "partial", "run"):
        check_target(tmp_path / name)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "empty2").mkdir()
    (tmp_path / "empty2" / "note").write_text("x")
    for name in ("file", "link", "empty2"):
        with pytest.raises(UsageError, match=f"{name} exists and is not a run directory; it was not changed"):
            check_target(tmp_path / name)
    with pytest.raises(UsageError, match="file is not a folder"):
        check_target(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="cannot be written: the name is not valid"):
        check_target("a\0b")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["empty", "partial", "run", "file", "link", "empty2"]
    )


def about(**more: Any) -> dict[str, Any]:
    rows = "".join(run_name(number) for number in (1, 2))
    given: dict[str, Any] = {"scenario": "s", "points": [[1]], "policies": ["p"], "replications": 1, "seed": 0,
                             "metrics": [], "versions": {}, "rows": rows}  # fmt: skip
    return given | more


def test_the_folder_of_a_sweep(tmp_path: Path):
    folder = tmp_path / "sweep"

    def state(new: dict[str, Any], **how: bool) -> str:
        how = {"resume": False, "fresh": False} | how
        return check_folder(folder, new, mark_of(new), **how)

    first = about()
    assert state(first) == "new"
    claim(folder, first, "scenario", resume=False, fresh=False).release()
    assert state(first) == "same" == state(first, resume=True) and state(first, fresh=True) == "replaced"
    assert check_folder(folder, first, "another text", resume=False, fresh=False) == "same"
    other = about(seed=1, points=[[2]], rows=run_name(2) + run_name(3))
    with pytest.raises(
        UsageError, match="has another sweep .it differs in the points and the seed.; give another dir"
    ):
        state(other)
    assert state(other, resume=True) == "extended"
    with pytest.raises(UsageError, match="no run of it belongs to this sweep; give another directory, or --fresh"):
        state(about(seed=1, rows=run_name(3)), resume=True)
    code = about(rows=run_name(1) + run_name(9))
    differs = r"differs in the contents of files that it names, or the code of a policy \({}: sha256 {} there, {} here"
    digests = [plain_digest(one["rows"])[:12] for one in (first, code)]
    with pytest.raises(UsageError, match=differs.format("runs", *digests)):  # as of a folder of an earlier hetsim
        state(code)
    for theirs, said in (({"file x": "1" * 64, "odd": 3}, "1" * 12), ({}, "none"), ([1], digests[0])):
        (folder / "sweep.json").write_text(mark_of(about(inputs=theirs)))
        here = digests[1] if theirs == [1] else "2" * 12
        with pytest.raises(UsageError, match=differs.format("runs" if theirs == [1] else "file x", said, here)):
            state(about(rows=code["rows"], inputs={"file x": "2" * 64}))
    old = about(rows=[run_name(1), run_name(2)])  # once they were a list
    (folder / "sweep.json").write_text(mark_of(old))
    assert state(first) == "same"
    (folder / "sweep.json").write_text("{")
    assert state(first, resume=True) == "extended"
    with pytest.raises(
        UsageError, match="; --resume rewrites it and reuses the intact runs, --fresh starts again"
    ):
        state(first)
    (folder / "sweep.json").unlink()
    with pytest.raises(UsageError, match="exists and is not the directory of a sweep; it was not changed"):
        state(first)
    (folder / "scenario.yaml").unlink()
    with pytest.raises(UsageError, match="has no sweep to resume; leave out --resume"):
        state(first, resume=True)
    (folder / "table.parquet").mkdir()
    with pytest.raises(UsageError, match="table.parquet must be a file of a sweep, but is a folder"):
        state(first)
    with pytest.raises(UsageError, match="cannot be used: embedded null byte"):
        check_folder("a\0b", first, resume=False, fresh=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="must be a folder; got a file, which was not changed"):
        check_folder(tmp_path / "file", first, resume=False, fresh=False)


def test_what_a_claimed_folder_keeps(tmp_path: Path):
    def fill() -> None:
        (tmp_path / "runs").mkdir(exist_ok=True)
        for name in ("tables.json", "table.parquet", "replications.parquet", "runs/a"):
            (tmp_path / name).write_text("x")

    def there() -> list[str]:
        return sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())

    held = claim(tmp_path, about(), "text", resume=False, fresh=False)
    assert there() == ["scenario.yaml", "sweep.json"] and (tmp_path / "scenario.yaml").read_text() == "text"
    with pytest.raises(UsageError, match="another hetsim process is running the sweep in"):
        claim(tmp_path, about(), "text", resume=True, fresh=False)
    claim(tmp_path, about(), "text", resume=True, fresh=False, shared=True).release()
    held.release()
    held.release()
    fill()
    before = there()
    claim(tmp_path, about(), "text", resume=True, fresh=False).release()
    assert there() == before
    claim(tmp_path, about(seed=1), "text", resume=True, fresh=False).release()
    assert there() == ["runs/a", "scenario.yaml", "sweep.json"]
    fill()
    claim(tmp_path, about(seed=1), "new", resume=False, fresh=True).release()
    assert there() == ["scenario.yaml", "sweep.json"] and (tmp_path / "scenario.yaml").read_text() == "new"


def test_marks_of_many_points_are_not_indented():
    few, many = ("\n" in mark_of(about(points=[[1]] * number)).rstrip("\n") for number in (10_000, 10_001))
    assert few and not many


@pytest.mark.parametrize(("given", "said"), [
    ({"seed": -1}, "seed must be a whole number of at least 0; got -1"), ({"seed": True}, "got True"),
    ({"seed": 1.5}, "got 1.5"), ({"replications": 0}, "replications must be a whole number from 1 to 100,000; got 0"),
    ({"replications": 100_001}, "got 100001"), ({"workers": 1001}, "from 1 to 1,000; got 1001"),
    ({"dask": "tcp://a:1", "workers": 2}, "with dask, workers and executor must be left out: the Dask cluster has"),
    ({"dask": "tcp://a:1", "executor": object()}, "with dask, workers and executor must be left out: the Dask "
                                                  "cluster has"),
])  # fmt: skip
def test_options_out_of_bounds(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        StudyOptions(**given)


def test_options_within_bounds():
    for good in ({"seed": 0}, {"seed": np.int64(3)}, {"replications": 100_000}, {"workers": 1000}, {"workers": None},
                 {"replications": {"precision": 0.1}}, {"dask": "a"}, {"dask": "a", "workers": None}):  # fmt: skip
        StudyOptions(**good)  # type: ignore[arg-type]


# The digest of what decides a run -------------------------------------------------------------------------------------


class Color(Enum):
    RED = 1
    BLUE = 2


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x: float, y: float | None = None) -> None:
        self.x = x
        if y is not None:
            self.y = y

    def length(self, times: int = 1) -> float:
        return times * self.x


class Tagged(Point):
    def __init__(self, x: float, **more: Any) -> None:
        super().__init__(x)
        self.__dict__.update(more)


class Numbers(list):
    pass


def one_more(value: float, by: float = 1.0) -> float:
    return value + by


def two_more(value: float, by: float = 2.0) -> float:
    return value + by


def closed(number: Any) -> Any:
    return lambda value: value + number


SCALE = 3


def scaled(value: float) -> float:
    return SCALE * value


DIFFERENT: list[Any] = [
    None, ..., NotImplemented, True, False, 0, 1, -1, 10, 16, 1 << 70, 0.0, -0.0, 1.0, NAN, INF, 1j, "", "1", "a",
    b"", b"a",
    (), (1,), (1, 2), (2, 1), [], [1], [1, 2], [[1], 2], [1, [2]], set(), {1}, {1, 2}, frozenset(), frozenset({1}),
    {}, {1: 2},
    {2: 1}, {1: 2, 2: 1}, {1: [2]}, {"1": 2}, types.MappingProxyType({1: 2}), Color.RED, Color.BLUE, Color, Point,
    Tagged,
    Point(1), Point(2), Point(1, 1), Tagged(1), Tagged(1, a=1), Tagged(1, a=2), Tagged(1, b=1), Numbers(), Numbers([1]),
    np.arange(3), np.arange(4), np.arange(3.0), np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), np.int64(1),
    np.float64(1), np.array([1, None], object), np.array([None, 1], object), np.random.default_rng(1), deque([1]),
    deque([2]),
    deque([1], 5), OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), one_more, two_more, closed(1), closed(2),
    closed([1]), scaled,
    functools.partial(one_more, 1), functools.partial(one_more, 2), functools.partial(one_more, by=1),
    functools.partial(two_more, 1), Point(1).length, Point(2).length, Point.length, math.sin, math.cos, len, [].append,
    [1].append, itertools.count(3), itertools.count(4), datetime.timedelta(1), datetime.timedelta(2),
    decimal.Decimal("1"),
    decimal.Decimal("1.0"), range(3), range(4), slice(1), slice(2), random.Random(1), random.Random(2), math, np,
    str.join,
    str.split, property(one_more), property(two_more), staticmethod(one_more), classmethod(one_more), int.__add__,
    (1).__add__,
]  # fmt: skip


def test_different_values_have_different_digests(monkeypatch: pytest.MonkeyPatch):
    """Each pair of them, and none has a reason why it is not known."""
    monkeypatch.setattr("hetsim.experiment.code_digest._patched", dict)  # the same for all
    found = [code_digest(one) for one in DIFFERENT]
    assert [DIFFERENT[at] for at, (_, reasons) in enumerate(found) if reasons] == []
    assert len({digest for digest, _ in found}) == len(DIFFERENT)
    assert [code_digest(one)[0] for one in DIFFERENT] == [digest for digest, _ in found]
    inside = [code_digest({"x": [one]})[0] for one in DIFFERENT]
    assert len(set(inside)) == len(DIFFERENT) and not {digest for digest, _ in found} & set(inside)


def test_equal_values_have_equal_digests():
    pairs: list[tuple[Any, Any]] = [
        ({1: 2, "a": 3}, {"a": 3, 1: 2}), ({"a", "b", "c", 1}, {1, "c", "b", "a"}), (closed(5), closed(5)), (Point(3),
            Point(3)),
        ((1, "a" * 3), (1, "aaa")), (Tagged(1, a=1, b=2), Tagged(1, b=2, a=1)), (np.arange(3), np.arange(3)),
        (1000 * 1000, 10**6), (frozenset((2, 3)), frozenset((3, 2))), (random.Random(3), random.Random(3)),
    ]  # fmt: skip
    for one, other in pairs:
        assert code_digest(one) == code_digest(other)


def test_equal_parts_may_be_one_object_or_several():
    """As a module comes from its source or from a cached file; of lists it matters."""
    for make in (lambda: (1, "x" * 3, 2.5), lambda: frozenset((1, 2)), lambda: compile("a + b", "f", "eval")):
        one = make()
        assert code_digest([one, one]) == code_digest([make(), make()])
    shared: list[int] = [1]
    assert code_digest([shared, shared]) != code_digest([[1], [1]]) and code_digest([[1], 2, [1]]) != code_digest(
        [[1], 2]
    )


def test_the_bases_and_the_kind_of_a_class_count():
    class Meta(type):
        pass

    def made(kind: type, bases: tuple[type, ...], **body: Any) -> str:
        return code_digest(kind("K", bases, {"__module__": __name__, "__qualname__": "K", **body}))[0]

    kinds = [made(type, (Point,)), made(type, (Tagged,)), made(Meta, (Point,)), made(type, (Point,), a=1),
             made(type, (Point,), a=2), made(type, (Point,), b=1)]  # fmt: skip
    assert len(set(kinds)) == 6 and made(type, (Point,), __doc__="what it is") == kinds[0]


def test_the_names_in_a_module_of_the_user_count():
    def made(**names: Any) -> str:
        module = types.ModuleType("of_the_user")
        vars(module).update(names)
        return code_digest([module])[0]

    assert len({made(), made(a=1), made(a=2), made(b=1), made(a=1, b=1), made(__getattr__=one_more)}) == 6
    assert made(__doc__="text", __version__="1") == made() and made(a=1, b=2) == made(b=2, a=1)


def test_a_function_that_asks_for_all_names_has_all_of_them():
    module = types.ModuleType("of_the_user")
    exec("def ask(): return globals()\ndef same(): return vars()\nOTHER = 1", vars(module))
    before = [code_digest(module.ask), code_digest(module.same)]
    module.OTHER = 2  # type: ignore[attr-defined]
    assert all(code_digest(one) != other for one, other in zip((module.ask, module.same), before, strict=True))


def test_a_constant_that_a_function_names_counts(monkeypatch: pytest.MonkeyPatch):
    before = code_digest(scaled)
    monkeypatch.setitem(globals(), "SCALE", 4)
    assert code_digest(scaled) != before
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert code_digest(scaled) == before
    monkeypatch.setattr(one_more, "__defaults__", (7.0,))
    assert code_digest(one_more) != code_digest(two_more)


def opens(path: str) -> Any:
    return open(path)


def lists(path: str) -> Any:
    return os.listdir(path)


def environment() -> Any:
    return os.environ["HOME"], os.getenv("HOME")


def clock() -> Any:
    return time.time()


def today() -> Any:
    return datetime.date.today()


def evaluates(text: str) -> Any:
    return eval(text)


def reads(path: Path) -> Any:
    return path.read_text()


def draws() -> float:
    return random.random() + np.random.random()  # noqa: NPY002


def imports(name: str) -> Any:
    return __import__(name)


def changes() -> None:
    np.own = 3  # type: ignore[attr-defined]


def all_modules() -> Any:
    return sys.modules


def subprocesses() -> Any:
    import subprocess

    return subprocess.run


def table(path: str) -> Any:
    return np.load(path), np.loadtxt(path)


class Reader:
    def read(self, path: str) -> Any:
        return io.open_code(path)


@pytest.mark.parametrize(("code", "reasons"), [
    (opens, ["opens opens files"]), (lists, ["lists lists folders"]), (environment,
        ["environment reads the environment"]),
    (clock, ["clock reads the clock"]), (today, ["today reads the clock"]), (evaluates, ["evaluates evaluates text"]),
    (reads, ["reads opens files (read_text)"]), (draws, ["draws draws from the global random generator"]),
    (imports, ["imports imports modules by computed names"]), (changes, ["changes changes numpy.own"]),
    (all_modules, ["all_modules imports modules by computed names"]), (subprocesses, ["subprocesses uses subprocess"]),
    (Reader, ["Reader.read opens files"]), (Reader().read, ["Reader.read opens files"]), ([closed(open)],
        ["closed.<locals>.<lambda> opens files"]),
    (table, ["table opens files (loadtxt)", "table opens files (load)"]),
])  # fmt: skip
def test_what_is_not_in_a_digest_is_told(code: Any, reasons: list[str]):
    """By the place, and once."""
    found = [text.removeprefix(f"{__name__}.") for text in code_digest(code)[1]]
    assert sorted(found) == sorted(reasons)


class Member:
    """A member of sets in any order: its hash is its place in `order`."""

    order = ""

    def __init__(self, name: str):
        self.name = name

    def __hash__(self) -> int:
        return Member.order.index(self.name)

    def __lt__(self, other: Member) -> bool:
        return self.name < other.name

    def __repr__(self) -> str:
        return self.name


EXPRESSIONS = (
    "list({a, b, c})", "[*{a, b, c}]", "tuple(set((a, b, c)))", "[x for x in {a, b, c}]", "next(iter({a, b, c}))",
    "list(x for x in frozenset([a, b, c]))", "{a, b, c}.pop()", "list(enumerate({a, b, c}))",
    "list(map(repr, {a, b, c}))", "list(zip({a, b, c}, 'xyz'))", "list(dict.fromkeys(set([a, b, c])))",
    "max({a, b, c}, key=lambda x: 0)", "sorted({a, b, c}, key=lambda x: 0)", "[*({a, b} | {c})]",
    "list({a, b, c} - {c})", "list(set([a, b]) ^ {c})", "list({a, b, c} & set([a, b]))", "list({x: 1 for x in {a, b}})",
    "','.join(repr(x) for x in {a, b, c})", "[[x for x in {a, b}]]", "list(filter(None, {a, b, c}))",
    "max([x for x in {a, b, c}], key=lambda x: 0)", "max(*{a, b, c}, key=lambda x: 0)", "print_to(*{a, b, c})",
    "[y for y in [x for x in {a, b, c}]]", "min((x for x in {a, b}), key=lambda x: 0)", "list({x for x in (a, b, c)})",
    # In any order the same:
    "sorted({a, b, c})", "len({a, b, c})", "{x for x in {a, b, c}}", "min({a, b, c})", "{*{a, b}, c}",
    "sorted([*{a, b, c}])", "sorted(x for x in {a, b, c})", "len([x for x in {a, b, c}])",
    "any(x is a for x in {a, b})", "all(x is a for x in {a, b})", "sorted(list({a, b, c}))", "a in {a, b}",
    "{a, b} | {c}", "frozenset({a, b, c})", "max(*{a, b, c})", "set([x for x in {a, b}])", "sorted(tuple({a, b}))",
    "{y for y in [x for x in {a, b, c}]}", "sorted(y for y in [x for x in {a, b}])", "[x for x in (a, b)]",
    "list((a, b, c))", "[a, b, c].pop()", "set([a]) <= {a, b}", "len({a} - {b})", "[1 for x in (a, b) if x in {a}]",
)  # fmt: skip
BODIES = (
    "out = []\nfor x in {a, b, c}:\n    out.append(x)\nreturn out", "x, *y = {a, b, c}\nreturn x",
    "[x, y] = {a, b}\nreturn x", "def inner():\n    yield from {a, b, c}\nreturn list(inner())",
    # In any order the same:
    "x = {a, b}\nreturn len(x)", "for x in (a, b):\n    if x in {a, b}:\n        return x",
    "x = y = {a, b, c}\nreturn x", "(x, y), z = (a, b), {a, c}\nreturn x",
)


def test_code_that_takes_members_of_sets_in_their_order(tmp_path: Path):
    """The code is run with the members in all orders: what it gives differs where it is said to."""
    codes = [f"return {text}" for text in EXPRESSIONS] + list(BODIES)
    lines = ["def print_to(*given):\n    return given\n", "def same(function):\n    return function\n"]
    for number, code in enumerate(codes):
        decorator = "@same\n" if number % 3 == 0 else ""
        lines.append(f"{decorator}def f{number}(a, b, c):\n" + "".join(f"    {line}\n" for line in code.split("\n")))
    file = tmp_path / "orders_of_sets.py"
    file.write_text("\n".join(lines))
    names: dict[str, Any] = {"__name__": "orders_of_sets"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    for number, code in enumerate(codes):
        outcomes = set()
        for order in itertools.permutations("abc"):
            Member.order = "".join(order)
            found = names[f"f{number}"](*map(Member, "abc"))
            outcomes.add(repr(sorted(found) if isinstance(found, set | frozenset) else found))
        assert takes_order(names[f"f{number}"]) == (len(outcomes) > 1), code
    assert not takes_order(eval("lambda: list({1, 2})"))  # no file has it


def test_an_object_may_say_what_it_is():
    class Own:
        identity = "version 1"

    class Heir(Own):
        pass

    own = Own()
    assert stated_identity(Own) == "version 1" == stated_identity(own) and stated_identity(Heir) is None
    own.identity = "version 2"
    assert stated_identity(own) == "version 2" and code_digest(own) != code_digest(Own()) == code_digest(Own)
    own.identity = 3  # type: ignore[assignment]
    assert stated_identity(own) is None and stated_identity(3) is None and code_digest(Own) == code_digest(Own())


# Points of a sweep ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "said"), [
    ("8..1", "k: low must be below high; got 8 to 1"),
    (3, "k must be a list of values, or a range such as 1..8; got 3"),
    ("abc", "got 'abc'"),
    ({"a": 1}, "k must be a list of values, or a range such as "
               "1..8"), ([], "k must have at least one value to try"), (b"ab", "k must be a list of values, or "
                                                                               "a range such as 1..8"),
])  # fmt: skip
def test_values_that_are_no_axis(axis: Any, said: str):
    with pytest.raises(UsageError, match=said):
        points._axis("k", axis)


def test_values_of_an_axis():
    assert points._axis("k", (1, "2 s", None)) == [1, "2 s", None] and points._axis("k", range(3)) == [0, 1, 2]
    made = points._axis("k", "1..5 integer 3")
    assert points._steps("k", made) == [1, 3, 5] and points._axis("k", made) is made
    shares = np.array([[0.0], [0.33], [0.34], [0.99], [1.0]])
    sampled = points.SampledValues({"k": ["a", "b", "c"]}, shares)
    assert [sampled.at(point)["k"] for point in range(5)] == ["a", "a", "b", "c", "c"]
    with pytest.raises(UsageError, match="k: the value 1000 ms is given twice; give each value once"):
        points._steps("k", ["1 s", "2 s", "1000 ms"])
    with pytest.raises(UsageError, match="k: a range in a grid needs a step count"):
        points._steps("k", points._axis("k", "1..8"))
    assert points.is_sampled({"a": [1, 2], "b": "1..8"}) and not points.is_sampled({"a": "1..8 integer 2"})
    assert points._same({"policy": {"scheduler": "fcfs"}, "a": 1.0}) == points._same({"a": 1, "policy": "fcfs"})
    assert points._same({"policy": "fcfs"}) != points._same({"policy": "sjf"})


def test_samples_of_the_unit_cube():
    for sample in ("random", "latin_hypercube", "sobol"):
        made = points._shares(sample, 11, 3, 5)
        assert made.shape == (11, 3) and ((made >= 0) & (made < 1)).all()
        assert (made == points._shares(sample, 11, 3, 5)).all() and (made != points._shares(sample, 11, 3, 6)).any()
    strata = np.floor(points._shares("latin_hypercube", 11, 3, 5) * 11).astype(int)
    assert all(sorted(column) == list(range(11)) for column in strata.T)
    assert (points._shares("sobol", 11, 3, 5) == points._shares("sobol", 16, 3, 5)[:11]).all()
    assert sorted(np.floor(points._shares("sobol", 8, 1, 5)[:, 0] * 8).astype(int)) == list(range(8))
    assert points._shares("sobol", 1, 2, 5).shape == (1, 2)


def test_points_that_are_made():
    grid = points._made({"a": [1, 2], "b": [3]}, "grid", None, 0)
    assert [grid.at(number) for number in range(len(grid))] == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    sample = points._made({"a": ["x", "y"], "b": points._axis("b", "1..2")}, "latin_hypercube", 4, 0)
    assert sorted(sample.at(number)["a"] for number in range(len(sample))) == ["x", "x", "y", "y"]
    assert all(1 <= sample.at(number)["b"] <= 2 for number in range(4))
    for axes, kind, n, said in (
        ({"a": [1]}, "gird", None, 'unknown sample "gird"; did you mean "grid"'),
        ({"a": [1]}, "grid", 3, "is for samples: the values of a grid define the number of points"),
        ({"a": [1]}, "random", None, r", its number of points, which must be at least 1"),
        ({"a": [1]}, "random", 0, r", its number of points, which must be at least 1"),
        ({}, "random", 3, "a sample needs keys with ranges: over"),
        ({"a": list(range(1001)), "b": list(range(1000))}, "grid", None,
            "the sweep must have at most 1,000,000 points"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            points._made(axes, kind, n, 0)  # type: ignore[arg-type]
    points._check_count(points.MAX_ROWS)


def test_samples_may_have_one_point():
    for kind in ("random", "latin_hypercube", "sobol"):
        assert len(points._made({"a": [1, 2]}, kind, 1, 0)) == 1


@pytest.mark.parametrize("policies", [{None: None}, {"p": 1, "q": 2}])
def test_rows_are_a_sequence(policies: dict[str | None, Any]):
    """As a list of all, point by point, is."""
    rows = PointRows(GridValues({"a": [1, 2], "b": ["x", "y"]}), policies)
    wanted = [(point, values, label) for point, values in enumerate(
        [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]) for label in policies]
    count = len(wanted)
    plain = [(row.point, row.values, row.policy) for row in rows]
    assert plain == wanted and len(rows) == count
    for number in range(-count, count):
        assert (rows[number].point, rows[number].values, rows[number].policy) == wanted[number]
        assert [row.label for row in rows[number:]] == [row.label for row in rows][number:]
    for number in (count, -count - 1):
        with pytest.raises(IndexError):
            rows[number]
    own = [{**({} if label is None else {"policy": policies[label]}), **values} for _, values, label in wanted]
    assert [row.overrides for row in rows] == own


def test_points_of_a_file(tmp_path: Path):
    file = tmp_path / "points.csv"
    file.write_text('\ufeffa , policy\n1, fcfs\n"2 s",sjf\n\n1,sjf\n', encoding="utf-8")
    assert points.read_points(file) == [
        {"a": 1, "policy": "fcfs"},
        {"a": "2 s", "policy": "sjf"},
        {"a": 1, "policy": "sjf"},
    ]
    for text, said in (
        ("", "the first line must name a key for each "
             "column"), ("a,,b\n", "the first line must name a key for each column"),
        ("a,a\n", ": each key must be named once in the first "
                  "line"), ("a,b\n1\n", ":2: a row must have 2 values; got 1"),
        ("a\n1 s\n2\n1000 ms\n", ":4: the row repeats the point of line 2"), ('a\n"1', "is not CSV"),
        ("a\n[1\n", ":2: a value "),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            points.read_points(file)
    file.write_bytes(b"a\n\xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        points.read_points(file)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        points.read_points(tmp_path / "none")


def test_points_that_are_listed():
    keys, listed = points._listed([{"b": 1, "a": 2}, {"a": 3, "b": 4}, {"b": 1, "a": 2}])
    assert keys == ["b", "a"] and listed[1] == {"b": 4, "a": 3} and list(listed[1]) == keys and len(listed) == 3
    for given_points, said in (
        ([{"a": 1}, {}], "point 1 must be a mapping of keys to values; got "
                         "{}"), ([{"a": 1}, 3], "point 1 must be a mapping of keys to values; got"),
        ([{"a": 1}, {"b": 1, "c": 2}], "point 1 and point 0 have different keys: a, b, "
                                       "c"), ([], "points must have at least one point"),
        ([{"a": 1, "policy": "fcfs"}, {"a": 2, "policy": "fcfs"}, {"a": 1.0, "policy": "fcfs"}],
            "point 2 is the same as point 0"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            points._listed(given_points)  # type: ignore[arg-type]


PLAIN = load({
    "name": "plain", "cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]}, "policy": "fcfs",
    "workload": [{"name": "jobs", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 3, "gpu_time": "1 s"}],
})  # fmt: skip
COUNT = "workload.0.count"


@pytest.mark.parametrize(("given", "said"), [
    ({"points": [{COUNT: 1}], "over": {COUNT: [1]}}, "with points, over, sample and n must be left out"),
    ({"points": [{COUNT: 1}], "sample": "random"}, "with points, over, sample and n must be left out"),
    ({"points": [{COUNT: 1}], "n": 3}, "with points, over, sample and n must be left out"),
    ({"points": [{COUNT: 1, "policy": "fcfs"}], "policies": ["sjf"]}, "policies must be given once: in the "
                                                                      "points, or as policies"),
    ({"over": {"policy": "fcfs"}}, "policy must be a list of policies"),
    ({"over": {"policy": "1..8"}}, "policy must be a list of policies"),
    ({"over": {"policy": ["fcfs"]}, "policies": ["sjf"]}, "policies must be given once: as the key policy, or "
                                                          "as policies"),
    ({}, "there is nothing to sweep: the scenario has no `sweep:`; give keys and"),
    ({"over": {}}, "nothing to sweep"), ({"over": {COUNT: [1]}, "policies": []},
        "policies must have at least one policy"),
    ({"over": {"name": ["a"]}}, "name: cannot be swept: it is the scenario"),
    ({"over": {"replications": [3]}}, "replications: cannot be swept: the number is the same for all points: "
                                      "give replications"),
    ({"over": {"sweep": [3]}}, "sweep: cannot be swept: a sweep cannot contain a sweep"),
    ({"over": {"sed": [3]}}, 'there is no key "sed" in a scenario; did you mean "seed"'),
    ({"over": {"workload.7.count": [3]}}, "workload.7.count: "),
    ({"points": [{"sed": 3, "policy": "fcfs"}]}, 'there is no key "sed" in a scenario'),
    ({"points": [{"name": "a"}]}, "name: cannot be swept: it is the scenario"),
])  # fmt: skip
def test_sweeps_that_are_not_begun(given: dict[str, Any], said: str):
    with pytest.raises((UsageError, ScenarioError), match=re.escape(said)):
        points.rows(PLAIN, **given)


def test_policies_of_a_sweep():
    """Given by themselves, as a key, by labels, in the points, or none."""
    for given, labels in (
        ({"over": {COUNT: [1, 2]}}, [None, None]), ({"over": {COUNT: [1], "policy": ["fcfs", "sjf"]}}, ["fcfs", "sjf"]),
        ({"over": {COUNT: [1]}, "policies": {"a": "fcfs"}}, ["a"]), ({"policies": ["fcfs"]}, ["fcfs"]),
        ({"points": [{COUNT: 1, "policy": "fcfs"}, {COUNT: 1.0, "policy": "sjf"}]}, ["fcfs", "sjf"]),
        ({"over": {COUNT: [1], "policy": {"b": "sjf"}}}, ["b"]),
    ):  # fmt: skip
        keys, made = points.rows(PLAIN, **given)
        assert [row.policy for row in made] == labels
        assert keys == ([] if list(given) == ["policies"] else [COUNT])
        meant = [None if one is None else named_policy({"a": "fcfs", "b": "sjf"}.get(one, one))[1] for one in labels]
        assert [row.overrides.get("policy") for row in made] == meant
    _, made = points.rows(PLAIN, points=[{COUNT: 1, "policy": "fcfs"}, {COUNT: 2, "policy": "sjf"},
                                         {COUNT: 1.0, "policy": "sjf"}])  # fmt: skip
    assert [row.point for row in made] == [0, 1, 0]


@pytest.mark.parametrize(("text", "key", "values"), [
    ("a.b=1,2 s,x", "a.b", [1, "2 s", "x"]), (" a = [1, 2] ", "a", [1, 2]), ("a=true", "a", [True]),
    ("a=[0, 1], [2, 3]", "a", [[0, 1], [2, 3]]), ("a={b: 1},{b: 2}", "a", [{"b": 1}, {"b": 2}]),
    ("a=null", "a", [None]),
])  # fmt: skip
def test_values_on_the_command_line(text: str, key: str, values: list[Any]):
    assert points.parse_over(text) == (key, values)


@pytest.mark.parametrize(("text", "said"), [
    ("a", '--over must be key.path=values, such as cluster.nodes.0.count=8,16,32; got '
          '"a"'), ("=3", "must be key.path=values"),
    ("a..b=3", "--over must be key.path=values, such as cluster.nodes.0.count=8,16,32; "
               "got"), ("a= ", "--over must have at least one value to try"), ("a=[1", "--over a=[1: the values "),
])  # fmt: skip
def test_texts_that_name_no_values(text: str, said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        points.parse_over(text)
    assert is_range(points.parse_over("a=1..8 log")[1])


@pytest.mark.parametrize(("values", "column"), [
    ([True, False], [True, False]), ([1, 2], [1, 2]), ([1, True], ["1", "true"]), ([2**63], [str(2**63)]),
    ([-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]), ([-(2**63) - 1, 1], [str(-(2**63) - 1), "1"]), ([1, 2.5], [1, 2.5]),
    (["1 s", "2 min"], [1, 120]), (["1 s", 0], [1, 0]), (["1 s", "1/s"], ["1 s", "1/s"]),
    (["1 s", None], ["1 s", "null"]),
    (["a", "b"], ["a", "b"]), ([[1, 2], {"a": 1}], ["[1, 2]", "{a: 1}"]),
    ([{"scheduler": "fcfs"}, "x"], ["fcfs", "x"]), ([{"name": "fcfs"}, True], ["fcfs", "true"]),
])  # fmt: skip
def test_columns_of_values(values: list[Any], column: list[Any]):
    """Numbers in base units where all are of one kind, else texts."""
    assert points.column_of(values) == column and list(map(type, points.column_of(values))) == [
        type(one) if isinstance(one, str | bool) else type(found) for one, found in
        zip(column, points.column_of(values), strict=True)
    ]  # fmt: skip


def test_all_points_that_are_wrong_are_named():
    _, made = points.rows(PLAIN, over={COUNT: [1, -1, 2, -2]}, policies=["fcfs", "sjf"])
    seen: list[str] = []
    with pytest.raises(ScenarioError) as refused:
        points.check_all(PLAIN, made, lambda _: None, lambda row, *_: seen.append(row.label))
    assert seen == [row.label for row in made[:2]]
    assert [problem.file for problem in refused.value.problems] == [
        f"point 1 ({COUNT}=-1, fcfs) and 1 more", f"point 3 ({COUNT}=-2, fcfs) and 1 more",
    ]  # fmt: skip
    wrong = points.rows(PLAIN, over={COUNT: [-1]}, policies=["fcfs", "sjf"])[1]
    with pytest.raises(ScenarioError, match=r"every point, such as point 0 \(workload.0.count=-1, fcfs\)"):
        points.check_all(PLAIN, wrong, lambda _: None, lambda *_: None)
    checked: list[Any] = []
    made = points.rows(PLAIN, over={COUNT: [4, 5]})[1]
    points.check_all(PLAIN, made, lambda one: one.raw["workload"][0]["count"], lambda _, *of: checked.append(of))
    assert checked == [(PLAIN.model.seed, 4), (PLAIN.model.seed, 5)]


def test_whose_problem_it_is():
    rows = list(PointRows(GridValues({"a": [1, 2, 3]}), {None: None}))
    assert (
        points._whose(rows, 3) == "every point, such as point 0 (a=1)" and points._whose(rows[:1], 1) == "point 0 (a=1)"
    )
    assert points._whose(rows[1:], 3) == "point 1 (a=2) and 1 more" and points._whose(rows[2:], 3) == "point 2 (a=3)"


# Names of policies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "label", "value"), [
    ("sjf", "sjf", {"scheduler": {"name": "sjf"}}),
    (" sjf+ best_fit ", "sjf + best_fit", {"scheduler": {"name": "sjf", "placement": "best_fit"}}),
    ("sjf + queue_limit", "sjf + queue_limit", {"scheduler": {"name": "sjf"}, "admission": {"name": "queue_limit"}}),
    ("serial_greedy", "serial_greedy", {"batching": {"name": "serial_greedy"}}),
    ({"scheduler": {"name": "sjf", "placement": {"name": "best_fit"}}, "admission": {"name": "queue_limit",
        "limit": 3}},
     "sjf (placement: best_fit) + queue_limit (limit: 3)", None),
    ("{scheduler: sjf}", "sjf", {"scheduler": "sjf"}),
])  # fmt: skip
def test_labels_of_policies(given: Any, label: str, value: Any):  # noqa: F811
    found = policies.named_policy(given)
    assert found == (label, given if value is None else value)
    text = policies.written(label, found[1])
    assert text is not None and policies.long_form(policies.named_policy(text)[1]) == policies.long_form(found[1])


@pytest.mark.parametrize(("text", "said"), [
    ("nosuch", 'unknown scheduler "nosuch"'), ("sjf + nosuch", "placement, admission or batching policy"),
    ("sjf + best_fit + worst_fit", "names two placement policies; name one"),
    ("sjf + queue_limit + queue_limit", "names two admission policies"), ("{a", 'the policy "{a"'),
])  # fmt: skip
def test_texts_that_are_no_policy(text: str, said: str):
    with pytest.raises(HetsimError, match=said):
        policies.named_policy(text)


def test_several_policies():
    assert list(policies.named_policies("sjf")) == ["sjf"] and list(policies.named_policies(["sjf", "fcfs"])) == [
        "sjf",
        "fcfs",
    ]
    assert policies.named_policies({"a": "sjf", 2: "fcfs"})["2"] == {"scheduler": {"name": "fcfs"}}
    assert {"fcfs", "sjf"} < set(policies.named_policies(["all"]))
    with pytest.raises(UsageError, match='policy "sjf" is given twice'):
        policies.named_policies(["sjf", "sjf"])
    with pytest.raises(UsageError, match="a policy must be a name, a mapping, a class or an order key; got 3"):
        policies.named_policy(3)  # type: ignore[arg-type]
    assert policies.written("nosuch") is None and policies.written("a + b") is None
    assert policies.written("mine", {"scheduler": "sjf"}) == "{scheduler: sjf}"
    assert policies.written("sjf (placement: best_fit)") == "{scheduler: {name: sjf, placement: best_fit}}"


# Identities -----------------------------------------------------------------------------------------------------------


def test_inputs_that_differ_are_named():
    one = {"numpy": "2.2.0", "code": "a" * 64, "file x": "b" * 64, "same": "1"}
    other = {"numpy": "2.1.0", "code": "c" * 64, "same": "1", "file y": "d" * 64}
    assert identity.differences(one, other) == (
        "numpy 2.1.0 there, 2.2.0 here; code of hetsim: sha256 cccccccccccc there, aaaaaaaaaaaa here; "
        "file x: sha256 none there, bbbbbbbbbbbb here; file y: sha256 dddddddddddd there, none here"
    )
    assert identity.differences(one, one) == "" and "2.1.0 then, 2.2.0 now" in identity.differences(
        one, other, ("then", "now")
    )
    assert list(identity._texts({"a": ["x", {"b": "y"}, 3], "c": "z"})) == ["x", "y", "z"]
    assert identity.plain_digest({"a": 1, "b": 2}) == identity.plain_digest({"b": 2, "a": 1})
    assert identity.plain_digest([1, 2]) != identity.plain_digest([2, 1])
    runs = {identity.Identity().run(*each) for each in itertools.product(("a", "b"), (0, 1), (0, 1))}
    assert len(runs) == 8 and all(len(run) == 64 for run in runs)


def test_files_are_read_again_after_a_change(tmp_path: Path):
    known, file = identity.Identity(), tmp_path / "f"
    file.write_text("one")
    first = known._file(file)
    assert known._file(file) == first == hashlib.sha256(b"one").hexdigest()
    file.write_text("two!")
    assert known._file(file) == hashlib.sha256(b"two!").hexdigest() and known._first[file] == first
    assert known._file(tmp_path) == identity.plain_digest(["f"])
    (tmp_path / "a.py").write_text("x = 1")
    tree = identity._tree(tmp_path)
    (tmp_path / "b.txt").write_text("")
    assert identity._tree(tmp_path) == tree
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert identity._tree(tmp_path) != tree


# Runs of a case -------------------------------------------------------------------------------------------------------


def test_the_first_run_is_kept_whole():
    for goal, how, expected in (
        (1, {}, (1, 1, False)), (5, {}, (5, 1, True)), (5, {"keep": True}, (5, 5, True)), (1, {"several": True}, (1, 1,
            True)),
        (2, {"most": 9, "keep": True}, (9, 9, True)),
    ):  # fmt: skip
        series = whole_series(NOTHING, goal, **how)  # type: ignore[arg-type]
        assert (
            (series.most, series.whole, series.runs is not None) == expected and series.strict and series.goal == goal
        )
    one, other = Replicates(NOTHING, 1, runs=Replications()), Replicates(NOTHING, 1)
    assert one.runs is not None
    one.runs.remarks, one.runs.warnings = ["c"], ["z"]
    tell_all([one, other], ["a", "b"], ["y"])
    assert one.runs.remarks == ["a", "b", "c"] and one.runs.warnings == ["z", "y"]


def test_the_digest_of_a_scenario_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch):
    found = identity.Identity()
    parts = {"scenario": "1", "unknown inputs of scheduler mine": "it reads the clock; it opens files",
             "unknown inputs of traces t": "it draws"}  # fmt: skip
    monkeypatch.setattr(found, "parts", lambda scenario: parts if scenario else {"scenario": "1"})
    digest, plain = found.scenario(True), found.scenario(NOTHING)  # type: ignore[arg-type]
    assert digest != plain and digest == identity.plain_digest(parts)
    assert found.unknown == {digest: "scheduler mine: it reads the clock; it opens files; traces t: it draws"}
    runs = {found.run(one, seed, number) for one in (digest, plain) for seed in (1, 2) for number in (1, 2)}
    assert len(runs) == 8 and found.run("d", 1, 2) == hashlib.sha256(b"d 1 2").hexdigest()


def test_code_of_others_counts_where_the_scenario_names_it(monkeypatch: pytest.MonkeyPatch):
    """Policies by their reference; traces, arrivals and clusters of packages where a text of the scenario names one."""
    spec = SimpleNamespace(kind="scheduler", name="fcfs")
    scenario: Any = SimpleNamespace(raw={"a": [{"b": "mine"}, 3], "c": "third"})
    monkeypatch.setattr(identity, "_specs", lambda _: [spec])
    monkeypatch.setattr(identity.registry, "reference", lambda kind, name: f"{kind}:{name}")
    theirs = {"traces": ["mine", "other"], "arrivals": ["third", "mine"], "clusters": []}
    monkeypatch.setattr(identity.registry, "third_party", theirs.__getitem__)
    monkeypatch.setattr(identity.registry, "table", lambda kind: {"mine": f"m {kind}", "third": f"t {kind}"})
    assert identity._named(scenario) == [
        ("scheduler", "fcfs", "scheduler:fcfs"), ("traces", "mine", "m traces"), ("arrivals", "mine", "m arrivals"),
        ("arrivals", "third", "t arrivals"),
    ]  # fmt: skip
    theirs |= {"traces": [], "arrivals": []}
    assert identity._named(scenario) == [("scheduler", "fcfs", "scheduler:fcfs")]


def test_files_that_a_run_opened_without_saying_so(monkeypatch: pytest.MonkeyPatch):
    scenario: Any = SimpleNamespace(undeclared=lambda opened: opened)
    stated, plain = SimpleNamespace(identity="1"), SimpleNamespace()
    for items, told in (([], True), ([stated], False), ([stated, stated], False), ([stated, plain], True),
                        (["hetsim_policies.x:y"], True), (["hetsim.x:y", stated], False)):  # fmt: skip
        monkeypatch.setattr(identity, "_named", lambda _, items=items: [("k", "n", one) for one in items])
        assert identity.undeclared(scenario, "it opened x") == ("it opened x" if told else "")  # type: ignore[arg-type]
        assert identity.undeclared(scenario, "") == ""  # type: ignore[arg-type]


def test_packages_that_a_policy_imports_have_versions():
    """Also those that modules which it imports do; not Python's own, nor those that count for every run."""
    assert identity.packages_of("hetsim_policies.static.programs") == {
        "package pydantic": identity.package_version("pydantic")
    }
    assert identity.packages_of("hetsim_policies.static.lists") == {} == identity.packages_of("mine")


def test_imports_are_seen_wherever_a_statement_can_stand(tmp_path, monkeypatch):
    (tmp_path / "imports_everywhere.py").write_text("""
import one, two.inner as three
from four.inner import five, six
class C:
    def f(self):
        while True:
            with self as x: import seven
        else: import eight
    async def g(self):
        async for x in y:
            match x:
                case 1: import nine
try: import ten
except ImportError: import eleven
else: import twelve
finally: import thirteen
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = "one two.inner four.inner seven eight nine ten eleven twelve thirteen"
    assert sorted(identity._imported("imports_everywhere")) == sorted(names.split())
    assert identity._imported("imports_nowhere") == ()


def test_a_precision_is_reached_at_the_precision():
    """Twenty runs with an interval of ± 5, 6 or 12 %, or with none; ± 6 % were asked for."""

    class Runs(SimpleNamespace):
        def __len__(self) -> int:
            return 20

    wide: Any = Runs(identical=False, relative_half_width=lambda metric, confidence: wide.half)
    amount = Amount(30, 0.06, "jain", 0.9)
    for half, enough, said in (
        (0.05, True, "precision: 90 % interval of jain is ± 5 % after 20 replications (± 6 % asked for)"),
        (0.06, True, "precision: 90 % interval of jain is ± 6 % after 20 replications (± 6 % asked for)"),
        (0.12, False, "precision not reached: 90 % interval of jain is ± 12 % after 20 replications, the maximum "
         "(± 6 % asked for); use about 80 replications, or longer runs"),
        (INF, False, "precision not reached after 20 replications (± 6 % asked for): the 90 % interval of jain is not "
         "defined"),
    ):  # fmt: skip
        wide.half = half
        assert amount.remark(wide) == (said, not enough) and amount.enough(wide) == enough
