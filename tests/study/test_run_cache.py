"""What a store of finished runs gives back: the outcome of the very run that was asked for, whole, or nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from array import array
from hashlib import blake2b, sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import stored_runs
from tiers import examples

from hetsim.errors import UsageError
from hetsim.experiment.segment import MAGIC, Segment
from hetsim.experiment.store import Store, merge_stores
from hetsim.experiment.work import RunOutcome
from hetsim.results.stored_files import sealed

RUN, OTHER = "ab" + "1" * 62, "ab" + "2" * 62


def stored(tmp_path, run=RUN, outcome=None, whole=True):
    store = Store(tmp_path)
    store.put(run, outcome or RunOutcome({"wait_mean": 2.5, "makespan": math.nan}, ["slow"]))
    store.close(whole)


def kept(tmp_path):
    stored(tmp_path)
    return Store(tmp_path)


def test_what_was_kept_comes_back(tmp_path):
    found = kept(tmp_path).get(RUN)
    assert found is not None
    assert found.values["wait_mean"] == 2.5
    assert math.isnan(found.values["makespan"])
    assert found.warnings == ["slow"]
    assert kept(tmp_path).get(OTHER) is None


def old(tmp_path, run=RUN, name=RUN, **more):
    """A file of one run, as finished runs were kept before there were segments."""
    path = tmp_path / name[:2] / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    about = {"run": run, "error": "", "warnings": ["slow"], "values": {"wait_mean": 2.5, "makespan": None}, **more}
    path.write_text(sealed(about))
    return path


def test_files_of_one_run_are_read_and_stay(tmp_path):
    path = old(tmp_path)
    text = path.read_text()
    store = Store(tmp_path)
    found = store.get(RUN)
    assert (found.values["wait_mean"], found.warnings) == (2.5, ["slow"])
    assert math.isnan(found.values["makespan"])
    assert store.get(OTHER) is None
    store.put(OTHER, RunOutcome({"wait_mean": 1.0}))
    store.close(complete=True)
    assert path.read_text() == text
    assert {run: one.values["wait_mean"] for run, one in stored_runs(tmp_path).items()} == {RUN: 2.5, OTHER: 1.0}


def test_a_file_of_another_run_is_not_taken_for_this_one(tmp_path):
    """Copied, or named by hand: the digest inside decides."""
    old(tmp_path, run=RUN, name=OTHER)
    store = Store(tmp_path)
    assert store.get(OTHER) is None
    assert len(store.damaged) == 1
    assert store.get(RUN) is None
    old(tmp_path, unknown="reads the clock")
    assert Store(tmp_path).get(RUN) is None
    assert Store(tmp_path, trust=True).get(RUN).values["wait_mean"] == 2.5


def test_an_error_that_was_kept_is_one_again(tmp_path):
    stored(tmp_path, outcome=RunOutcome(None, ["slow"], error="the policy looped"))
    found = Store(tmp_path).get(RUN)
    assert found is not None
    assert (found.values, found.error, found.warnings) == (None, "the policy looped", ["slow"])
    stored(tmp_path, OTHER, RunOutcome(None, [], error="the disk was full", lasting=False))
    assert Store(tmp_path).get(OTHER) is None


UNSEALED = json.dumps({"run": RUN, "error": "", "warnings": [], "values": {}})


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"run": 3}', UNSEALED, "hetsim runs 1\n"])
@pytest.mark.parametrize("name", [f"{RUN[:32]}.runs", f"{RUN[:2]}/{RUN}.json", "journal-1-2-3.jsonl"])
def test_a_damaged_file_is_no_outcome(tmp_path, damage, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(damage and damage + "\n")
    store = Store(tmp_path)
    assert store.get(RUN) is None
    assert store.damaged == [tmp_path / name] or (not damage and name.endswith("l"))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([RUN, "../x", "wait_mean", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "warnings", "a"]), inner),
    max_leaves=6,
)  # fmt: skip


def forged_segment(head, row):
    """A segment whose checksums fit, as anybody can write one."""
    text = json.dumps(head).encode()
    top = MAGIC + len(text).to_bytes(8, "little") + text + bytes.fromhex(RUN) + blake2b(row, digest_size=8).digest()
    return top + sha256(top).digest() + row


HEAD = {"runs": 1, "columns": ["wait_mean"], "notes": [{"error": "", "warnings": []}], "sets": [[0]]}
LINE = {"run": RUN, "error": "", "warnings": [], "values": {"wait_mean": 2.5}}


@pytest.mark.quick(0)
@given(st.sampled_from([*HEAD, "row", *LINE]), ANY, st.binary(min_size=8, max_size=24))
@settings(max_examples=150, deadline=None)
def test_a_forged_file_of_runs_is_read_or_damaged(key, value, row):
    """The folder of a stranger: sums that fit say nothing of what they are sums of."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if key in LINE:
            (folder / "journal-1-2-3.jsonl").write_text(sealed(LINE | {key: value}))
        else:
            sound = bytes(8) + array("d", [2.5]).tobytes()
            head = HEAD if key == "row" else HEAD | {key: value}
            (folder / "a.runs").write_bytes(forged_segment(head, row if key == "row" else sound))
        store = Store(folder)
        outcome = store.get(RUN)
        assert outcome is not None or store.damaged or key == "run"
        assert outcome is None or isinstance(outcome.error, str)
        with TemporaryDirectory() as into:
            try:
                assert merge_stores([folder], Path(into)).copied == len(stored_runs(folder)) == 1
            except UsageError as error:
                assert "damaged" in str(error)  # noqa: PT017
                assert not stored_runs(folder)


def test_another_format_of_segments_is_refused_and_stays(tmp_path):
    (tmp_path / "ab.runs").write_bytes(b"hetsim runs 2\nanything")
    with pytest.raises(UsageError, match="written by another version of hetsim"):
        Store(tmp_path).get(RUN)


def test_a_run_without_a_metric_that_is_asked_for_is_made_again(tmp_path):
    kept(tmp_path)
    assert Store(tmp_path).get(RUN, ["wait_mean", "makespan"]) is not None
    assert Store(tmp_path).get(RUN, ["wait_mean", "jain"]) is None
    assert Store(tmp_path, fresh=True).get(RUN) is None
    assert Store(None).get(RUN) is None


@pytest.mark.parametrize("whole", [True, False], ids=["segment", "journal"])
def test_any_byte_that_is_changed_is_seen(tmp_path, whole):
    stored(tmp_path, whole=whole)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        store = Store(tmp_path)
        if place == len(data) - 1 and not whole:  # the end of the last line: it was being written
            assert store.get(RUN) is None
            continue
        try:
            assert store.get(RUN) is None, place
            assert store.damaged == [path]
        except UsageError:  # the version in the first line
            assert whole and place in (12, 13)
    for short in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:short])
        assert Store(tmp_path).get(RUN) is None
    path.write_bytes(data)
    assert Store(tmp_path).get(RUN) is not None


values = st.floats(allow_nan=True, allow_infinity=True)
outcomes = st.dictionaries(
    st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}"),
    st.one_of(
        st.builds(RunOutcome, st.dictionaries(st.sampled_from("abcd"), values), st.lists(st.text(max_size=3))),
        st.builds(RunOutcome, st.none(), error=st.text(), refused=st.booleans()),
    ),
    max_size=6,
)  # fmt: skip


def plain(outcome):
    found = None if outcome.values is None else {name: repr(float(value)) for name, value in outcome.values.items()}
    return found, outcome.warnings, outcome.error, outcome.refused


@pytest.mark.slow
@given(outcomes, st.randoms())
@examples(60)
def test_segments_and_journals_give_back_what_was_put(many, chance):
    """In whatever order, and whichever of the runs were in the journal of a call that was killed."""
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        store = Store(Path(one))
        for run, outcome in many.items():
            store.put(run, outcome)
        store.close(complete=True)
        order = chance.sample(list(many), len(many))
        killed = Store(Path(other))
        for run in order[: len(order) // 2]:
            killed.put(run, many[run])
        killed.close(complete=False)
        store = Store(Path(other))
        for run in order:
            if store.get(run) is None:
                store.put(run, many[run])
        store.close(complete=True)
        assert {run: plain(found) for run, found in stored_runs(Path(one)).items()} == {
            run: plain(outcome) for run, outcome in many.items()
        }
        segments = [[path.read_bytes() for path in Path(folder).iterdir()] for folder in (one, other)]
        assert segments[0] == segments[1]
        assert len(segments[0]) == bool(many)


def test_a_run_that_failed_by_the_machine_leaves_its_block_to_the_next_call(tmp_path):
    """So that the segment has all runs of the block, as if nothing had failed."""
    store = Store(tmp_path / "s")
    store.put(RUN, RunOutcome({"a": 1.0}), block=3)
    store.put(OTHER, RunOutcome(None, error="out of memory", lasting=False), block=3)
    store.seal(3)
    store.close(complete=True)
    assert [path.suffix for path in (tmp_path / "s").iterdir()] == [".jsonl"]
    again = Store(tmp_path / "s")
    assert again.get(RUN, block=3).values["a"] == 1.0
    again.put(OTHER, RunOutcome({"a": 2.0}), block=3)
    again.seal(3)
    again.close(complete=True)
    (segment,) = (tmp_path / "s").iterdir()
    assert len(Segment(segment)) == 2


def test_a_journal_that_grew_since_it_was_read_is_not_removed(tmp_path):
    """Its process is alive: what it has added is nowhere else."""
    other = Store(tmp_path)
    other.put(RUN, RunOutcome({"a": 1.0}))
    mine = Store(tmp_path)
    assert mine.get(RUN) is not None
    other.put(OTHER, RunOutcome({"a": 2.0}))
    mine.close(complete=True)
    other.close(complete=False)
    assert set(stored_runs(tmp_path)) == {RUN, OTHER}


def test_a_process_whose_journal_is_gone_writes_another(tmp_path):
    other = Store(tmp_path)
    other.put(RUN, RunOutcome({"a": 1.0}))
    mine = Store(tmp_path)
    assert mine.get(RUN) is not None
    mine.close(complete=True)
    other.put(OTHER, RunOutcome({"a": 2.0}))
    other.close(complete=False)
    assert set(stored_runs(tmp_path)) == {RUN, OTHER}


def test_of_runs_with_unknown_inputs_the_last_is_trusted(tmp_path):
    """Made again with other runs, so that the segment of the first is still there."""
    for count, value in enumerate((1.0, 2.0, 3.0)):
        store = Store(tmp_path)
        assert store.get(RUN) is None
        store.put(RUN, RunOutcome({"a": value}), "reads the clock")
        store.put(f"{count:064x}", RunOutcome({"a": 0.0}))
        store.close(complete=value < 3)
        for place, path in enumerate(sorted(tmp_path.glob("*.runs"), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(path, (place, place))
        assert Store(tmp_path, trust=True).get(RUN).values["a"] == value


def forged(head: dict, rows: bytes = b"", runs: tuple[str, ...] = (RUN,)) -> bytes:
    """A segment with any head, whose checksums fit."""
    size = len(rows) // max(len(runs), 1)
    index = b"".join(
        bytes.fromhex(run) + hashlib.blake2b(rows[size * at : size * (at + 1)], digest_size=8).digest()
        for at, run in enumerate(runs)
    )
    about = {"runs": len(runs), "columns": ["a"], "notes": [{"error": "", "warnings": []}], "sets": [[0]], **head}
    text = json.dumps(about).encode()
    top = b"hetsim runs 1\n" + len(text).to_bytes(8, "little") + text + index
    return top + hashlib.sha256(top).digest() + rows


ROW = struct.pack("<IId", 0, 0, 2.5)


def test_a_forged_segment_is_read_where_it_is_one(tmp_path):
    (tmp_path / "x.runs").write_bytes(forged({}, ROW))
    assert dict(Store(tmp_path).get(RUN).values) == {"a": 2.5}


@pytest.mark.parametrize("data", [
    forged({"columns": 5}, ROW), forged({"sets": [[7]]}, ROW), forged({"sets": 3}, ROW), forged({"notes": [5]}, ROW),
    forged({"notes": [{"error": "", "warnings": 3}]}, ROW), forged({"notes": [{"error": [], "warnings": []}]}, ROW),
    forged({}, struct.pack("<IId", 1, 0, 2.5)), forged({}, struct.pack("<IId", 0, 9, 2.5)),
    forged({"runs": 1 << 50}, ROW), forged({"runs": -1}, ROW), forged({"runs": "1"}, ROW), forged({}, ROW[:8]),
    b"hetsim runs 1\n" + (1 << 62).to_bytes(8, "little") + b"{}",
])  # fmt: skip
def test_a_segment_of_a_stranger_counts_for_nothing(data: bytes, tmp_path):
    """Its checksums can fit what hetsim never writes."""
    (tmp_path / "x.runs").write_bytes(data)
    store = Store(tmp_path)
    assert store.get(RUN) is None
    assert store.damaged == [tmp_path / "x.runs"]
    assert stored_runs(tmp_path) == {}


@pytest.mark.parametrize("about", [{"run": 7}, {"run": "zz"}, {"run": "ab"}, {"error": 5}, {"warnings": [1]}])
def test_a_line_of_a_stranger_counts_for_nothing(about: dict, tmp_path):
    line = sealed({"run": RUN, "error": "", "warnings": [], "values": {"a": 1.0}, **about})
    whole = sealed({"run": OTHER, "error": "", "warnings": [], "values": {}})
    (tmp_path / "journal-0-1-1.jsonl").write_text(line + whole)
    assert list(stored_runs(tmp_path)) == [OTHER]


@settings(max_examples=25, deadline=None)
@given(
    folders=st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.booleans()), min_size=1, max_size=4),
    again=st.integers(1, 2),
)
def test_merging_makes_the_union(folders: list[tuple[set[int], bool]], again: int):
    """Of segments and journals, into a folder that is not there; each run is copied once, all others are there."""
    with TemporaryDirectory() as top:
        sources = [Path(top) / f"source-{number}" for number in range(len(folders))]
        for source, (numbers, complete) in zip(sources, folders, strict=True):
            source.mkdir()
            store = Store(source)
            for number in numbers:
                store.put(f"{number:064x}", RunOutcome({"a": float(number)}))
            store.close(complete)
        into = Path(top) / "new" / "folder"
        union = set().union(*(numbers for numbers, _ in folders))
        merged = merge_stores(sources, into)
        total = sum(len(numbers) for numbers, _ in folders)
        assert (merged.copied, merged.there, merged.damaged) == (len(union), total - len(union), [])
        for _ in range(again):
            merged = merge_stores(sources, into)
            assert (merged.copied, merged.there) == (0, total)
        runs = {run: dict(outcome.values) for run, outcome in stored_runs(into).items()}
        assert runs == {f"{number:064x}": {"a": float(number)} for number in union}


def test_what_merging_says(tmp_path):
    for number, damaged in enumerate((0, 1, 2)):
        source = tmp_path / str(number)
        source.mkdir()
        stored(source)
        for name in range(damaged):
            (source / f"x{name}.runs").write_bytes(b"x")
        copied = "1 finished run copied, 0 there already"
        files = ["", ", 1 damaged file", ", 2 damaged files"][damaged]
        assert merge_stores([source], tmp_path / f"into-{number}").sentence == copied + files
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no finished runs in .*empty: it is neither a cache nor"):
        merge_stores([tmp_path / "empty"], tmp_path / "into-0")


NAMES = st.lists(st.sampled_from("abcdef"), unique=True)


@settings(max_examples=40, deadline=None)
@given(runs=st.lists(NAMES, min_size=1, max_size=8))
def test_a_segment_has_runs_with_other_figures_in_any_order(runs: list[list[str]]):
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        wanted = {f"{at:064x}": {name: 10.0 * at + ord(name) for name in names} for at, names in enumerate(runs)}
        for run, values in wanted.items():
            store.put(run, RunOutcome(values))
        store.close(complete=True)
        again = Store(Path(folder))
        found = {run: again.get(run) for run in wanted}
        assert {run: dict(outcome.values) for run, outcome in found.items() if outcome is not None} == wanted
        assert {run: list(outcome.values) for run, outcome in found.items() if outcome} == {
            run: list(values) for run, values in wanted.items()
        }
