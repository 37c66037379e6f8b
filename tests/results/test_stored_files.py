"""A folder from a stranger is read in bounded memory and time, and what is wrong with it is one sentence."""

from __future__ import annotations

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

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.results.sealed import digest_of, sealed, unsealed
from hetsim.results.stored_files import read_frame, read_json

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


def test_large_files_that_are_what_they_say_are_read(tmp_path: Path):
    values = [[float(number) + 0.25, number, "a"] for number in range(300_000)]
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert read_json(tmp_path / "a.json") == values
    frame = pd.DataFrame({"time": np.random.default_rng(1).random(400_000), "status": "completed"})
    frame.to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read_frame(tmp_path / "a.parquet"), frame)


def test_rows_and_texts_that_cannot_be_there(tmp_path: Path):
    for make, word in ((rows, "80,000,000 rows"), (texts, "its column status would take 100,000,000,000 bytes")):
        make(tmp_path / "a.parquet")
        with pytest.raises(UsageError, match=word):
            read_frame(tmp_path / "a.parquet")
