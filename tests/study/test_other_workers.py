"""Workers of a Dask cluster that have other inputs than the machine that sends them runs are refused, and nothing that
they made is kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
from stored import stored_runs
from test_inputs import KEY, ROWS, write

import hetsim as hs
from hetsim import registry
from hetsim.errors import UsageError
from hetsim.experiment.segment import line_of

FILES = {
    "keys_of_workers.py": "from constants_of_workers import S\n\n" + KEY.format("S"),
    "constants_of_workers.py": "S = 1\n",
    "jobs.csv": ROWS.format(*range(9, 0, -1)),
}
OTHER = {
    "constants": {"constants_of_workers.py": "S = -1\n"},
    "trace": {"jobs.csv": ROWS.format(*range(1, 10))},
    "policy": {"keys_of_workers.py": "from constants_of_workers import S\n\n" + KEY.format("-S")},
}
NAMED = {"constants": "source of scheduler mine", "trace": "file .*jobs.csv", "policy": "source of scheduler mine"}
TRACED: dict[str, Any] = {
    "name": "d", "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "v100", "count": 1}}}, "policy": "mine",
    # Each process has its own file under this name: that in the folder in which it runs.
    "workload": [{"name": "jobs", "trace": {"format": "tasks", "path": "/proc/self/cwd/jobs.csv"}}],
}  # fmt: skip
OVER = {"workload.jobs.time_scale": [round(1 + 0.1 * step, 1) for step in range(16)]}

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a part of a Dask cluster in a folder; all are ended with the test."""
    started = []

    def one(kind: str, folder: Path, *arguments: str) -> subprocess.Popen:
        path = os.pathsep.join([str(folder), str(pages.SOURCES)])
        line = [sys.executable, "-B", "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *arguments]
        env = {**os.environ, "PYTHONPATH": path}
        started.append(subprocess.Popen(line, cwd=folder, env=env, stderr=subprocess.DEVNULL))
        return started[-1]

    yield one
    for process in reversed(started):
        process.kill()
        process.wait()


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="the trace is named by the folder of each process")
@pytest.mark.parametrize("others", [["constants"], ["trace"], ["policy"], ["constants", "trace"]], ids="-".join)
@pytest.mark.slow
def test_workers_with_other_inputs_are_refused_by_name(
    others: list[str], tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
):
    """The runs of a worker that has the same inputs stay, and are those of this machine."""
    distributed = pytest.importorskip("distributed")
    here = tmp_path / "here"
    write(here, FILES)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    for name in ("keys_of_workers", "constants_of_workers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    registry.register("mine", __import__("keys_of_workers").mine)

    about = tmp_path / "scheduler.json"
    start("scheduler", tmp_path, "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(about))
    where = ""
    while not where:  # the file is there before it is written
        time.sleep(0.05)
        with contextlib.suppress(OSError, ValueError):
            where = json.loads(about.read_text())["address"]
    for name in ["same", *others][-2:]:
        write(tmp_path / name, {**FILES, **OTHER.get(name, {})})
        start("worker", tmp_path / name, where, "--nthreads", "1", "--no-nanny")
    with distributed.Client(where, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)

    with pytest.raises(UsageError, match="a worker on .* has other inputs than this study") as caught:
        hs.sweep(TRACED, OVER, dask=where, out=tmp_path / "dask")
    said = [name for name in others if re.search(NAMED[name], str(caught.value))]
    assert said if len(others) > 1 else said == others
    here_and_there = re.findall(r"sha256 ([0-9a-f]{12}) there, ([0-9a-f]{12}) here", str(caught.value))
    assert here_and_there and all(there != own for there, own in here_and_there)
    assert "no run was made with them" in str(caught.value)

    alone = hs.sweep(TRACED, OVER, out=tmp_path / "alone")
    assert alone.table["status"].eq("done").all() and alone.table["response_mean"].nunique() == 16
    kept, right = (
        {run: line_of(run, outcome) for run, outcome in stored_runs(tmp_path / name).items()}
        for name in ("dask", "alone")
    )
    assert kept.items() <= right.items()
    assert len(kept) < len(right) == 16
    if len(others) > 1:
        assert kept == {}
