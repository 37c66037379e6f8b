"""A folder from a stranger is read in bounded memory and time, and what is wrong with it is one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pages
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import DamagedFile, UsageError
from hetsim.results.stored_files import digest_of, read_frame, read_json, read_stored, sealed, unsealed

SMALL = {
    "name": "small", "cluster": {"nodes": {"cpus": 2}},
    "workload": [{"count": 20, "arrivals": {"process": "poisson", "rate": "1/s"}, "cpu_time": "1 s"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    hs.run(SMALL).save(folder)
    return folder


def rows(path: Path) -> None:
    """Ten billion rows said to be in some hundred bytes: one value, repeated."""
    block = pa.table({"task": pa.array(np.zeros(10_000_000, np.int8)).dictionary_encode()})
    with pq.ParquetWriter(path, block.schema, compression="zstd") as file:
        for _ in range(8):
            file.write_table(block)


def texts(path: Path) -> None:
    """A text of a megabyte, in each of a hundred thousand rows."""
    chosen = pa.array(np.zeros(100_000, np.int32))
    pq.write_table(pa.table({"status": pa.DictionaryArray.from_arrays(chosen, ["x" * 1_000_000])}), path)


def lists(path: Path) -> None:
    path.write_bytes(b"[" + b"[]," * 30_000_000 + b"[]]")


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 200_000 + b"]" * 200_000)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def resealed(folder: Path, name: str) -> None:
    """The mark of a run names the new digest of a file, as a stranger would have it."""
    mark = folder / "run.json"
    about = unsealed(mark)
    about["files"][name] = digest_of(folder / name)
    mark.write_text(sealed(about, 1))


HOSTILE: list[tuple[str, Callable[[Path], None]]] = [
    ("tasks.parquet", rows), ("record/tasks.parquet", rows), ("tasks.parquet", texts), ("record/tasks.parquet", texts),
    ("summary.json", lists), ("record/rest.json", lists), ("record/objects.json", nested), ("summary.json", nested),
    ("run.json", lists), ("run.json", pipe), ("summary.json", pipe), ("tasks.parquet", pipe), ("run.json", folder),
    ("record/rest.json", folder), ("scenario.yaml", pipe),
]  # fmt: skip
WATCHED = """
import sys
from hetsim.cli import main
try:
    main(sys.argv[1:])
finally:
    most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(int(most.split()[1]) // 1024, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), HOSTILE, ids=[f"{name}-{make.__name__}" for name, make in HOSTILE])
@pytest.mark.parametrize(
    "verb", ["report", *(pytest.param(verb, marks=pytest.mark.nightly) for verb in ("diff", "explain"))]
)  # fmt: skip
def test_a_hostile_folder_is_one_sentence(saved: Path, tmp_path: Path, name: str, make: Callable, verb: str):
    there = tmp_path / "theirs"
    shutil.copytree(saved, there)
    listed = name in unsealed(there / "run.json")["files"]
    make(there / name)
    if listed and (there / name).is_file():
        resealed(there, name)
    words = {"report": [verb, str(there)], "diff": [verb, str(there), str(saved)], "explain": [verb, str(there), "3"]}
    command = [sys.executable, "-c", WATCHED, *words[verb]]
    environment = {**os.environ, "PYTHONPATH": pages.SOURCES}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:  # a verb that does not read that file need not mind
        assert done.returncode == 2, done.stderr
        assert "error:" in done.stderr and str(there) in done.stderr
    assert int(done.stderr.split()[-1]) < 300
    assert verb != "report" or done.returncode == 2 or name.startswith("record/")


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["tasks", "launches", "devices", "timeline"])
def test_a_record_does_not_answer_for_a_table_that_is_cut(saved: Path, tmp_path: Path, name: str):
    """Nor do metrics that are made from it."""
    there = tmp_path / "cut"
    shutil.copytree(saved, there)
    os.truncate(there / f"{name}.parquet", 500)
    for words in (["explain", str(there), "3"], ["explain", str(there), "--by", "class"]):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: {there / name}.parquet is damaged: its checksum does not match; nothing of it was used\n"
        )
    with pytest.raises(UsageError, match=rf"{name}\.parquet is damaged"):
        hs.Result.load(there).explain(3)
    assert CliRunner().invoke(main, ["explain", str(saved), "3"]).exit_code == 0


def replaced(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_parquet(path)).to_parquet(path, index=False)


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


ODD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "tasks.parquet": ("report", lambda path: replaced(path, lambda tasks: tasks.drop(columns="status")), "'status'"),
    "launches.parquet": ("diff", lambda path: replaced(path, lambda table: table.drop(columns="task")), "'task'"),
    "record/tasks.parquet": ("explain", lambda path: replaced(path, lambda tasks: tasks[:9]),
        "it cannot be read (its input has 20 tasks, but its table has 9"),
    "scenario.yaml": ("diff", lambda path: path.write_text("a: ["), "is not YAML"),
    "a bomb": ("diff", lambda path: path.write_text("a: &a [1, 1]\nb: &b [*a, *a]\n"),
        "it is not a file as hetsim writes it"),
    "deep": ("diff", lambda path: path.write_text("[" * 900 + "]" * 900), "it is not a file as hetsim writes it"),
    "a circle": ("diff", circle, "its symbolic links form a cycle"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_hetsim_would_not_write_is_one_sentence(saved: Path, tmp_path: Path, name: str):
    """Also where the digests fit, and whatever goes wrong in evaluating it."""
    verb, make, said = ODD[name]
    file = name if "." in name else "scenario.yaml"
    there = tmp_path / "theirs"
    shutil.copytree(saved, there)
    make(there / file)
    if name != "a circle":
        resealed(there, file)
    further = {"report": [], "diff": [str(saved)], "explain": ["3"]}[verb]
    done = CliRunner().invoke(main, [verb, str(there), *further])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_a_mark_without_texts_is_refused(saved: Path, tmp_path: Path):
    there = tmp_path / "theirs"
    shutil.copytree(saved, there)
    about = unsealed(there / "run.json")
    (there / "run.json").write_text(sealed({**about, "warnings": [{"a": 1}]}, 1))
    with pytest.raises(UsageError, match="the name, policy and warnings of"):
        hs.Result.load(there)


def test_a_scenario_that_the_mark_does_not_name_is_not_read(saved: Path, tmp_path: Path):
    """It could be a link to any file."""
    there = tmp_path / "theirs"
    shutil.copytree(saved, there)
    about = unsealed(there / "run.json")
    del about["files"]["scenario.yaml"]
    (there / "run.json").write_text(sealed(about, 1))
    (tmp_path / "secret").write_text("secret: 1")
    (there / "scenario.yaml").unlink()
    (there / "scenario.yaml").symlink_to(tmp_path / "secret")
    assert hs.Result.load(there).scenario is None


@pytest.mark.quick(0)
def test_large_files_that_are_what_they_say_are_read(tmp_path: Path):
    values = [[float(number) + 0.25, number, "a"] for number in range(300_000)]
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert read_json(tmp_path / "a.json") == values
    frame = pd.DataFrame({"time": np.random.default_rng(1).random(400_000), "status": "completed"})
    frame.to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.parquet"), frame)


@pytest.mark.slow
def test_rows_and_texts_that_cannot_be_there(tmp_path: Path):
    for make, word in ((rows, "80,000,000 rows"), (texts, "its column status would take 100,000,000,000 bytes")):
        make(tmp_path / "a.parquet")
        with pytest.raises(UsageError, match=word):
            read_frame(tmp_path / "a.parquet")


def test_a_file_of_holes_is_not_read(tmp_path: Path):
    """A few kilobytes of an archive make terabytes of it."""
    (tmp_path / "a").write_bytes(b"x")
    os.truncate(tmp_path / "a", 1 << 42)
    with pytest.raises(DamagedFile, match="almost all of the file is holes without data"):
        digest_of(tmp_path / "a")
    os.truncate(tmp_path / "a", 1 << 26)  # one of this size is read
    assert len(read_stored(tmp_path / "a")) == 1 << 26


@pytest.mark.quick(1)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_seal_fits_one_text_only(indent: int | None, tmp_path: Path):
    """Whatever byte of a file is changed, left out or put in, it is refused; the checksum is that of the rest."""
    value = {"a": [1.5, None], "sha": "é", "b": {"c": "x"}}
    text = sealed(value, indent).encode()
    plain = json.dumps({"format": 2, **value}, ensure_ascii=False).encode()
    assert json.loads(text)["sha256"] == hashlib.sha256(plain).hexdigest()
    path = tmp_path / "f.json"
    path.write_bytes(text)
    assert unsealed(path) == value
    changes = ((b"0", 1), (b"", 1), (b" ", 0))
    others = {text[:at] + new + text[at + size :] for at in range(len(text)) for new, size in changes}
    for other in others - {text}:
        path.write_bytes(other)
        with pytest.raises((DamagedFile, UsageError)):
            unsealed(path)
