"""Chrome traces: what is in them is what ran, nothing overlaps, and the checker finds what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chrome_trace import check_trace
from click.testing import CliRunner
from tiers import spread

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.report.perfetto import write_trace

GRAPH = """
name: diamond
cluster: {nodes: [{cpus: 2, gpus: {type: g, count: 1}}]}
workload: [{trace: {format: tasks, path: tasks.csv}}]
policy: fcfs
"""
TASKS = """id,cpu_time,gpu_time,bytes_out,predecessors
a,1,,,
b,,2,,a
c,3,,,a
d,1,,,b c
"""
SHARED = {
    "name": "shared",
    "seed": 3,
    "cluster": {"nodes": [{"count": 2, "cpus": 4, "gpus": {"type": "g", "count": 2, "streams": 2}}]},
    "workload": [
        {
            "name": "part", "count": 60, "arrivals": {"process": "poisson", "rate": "1/s"}, "gpus": 0.5,
            "gpu_time": {"distribution": "exponential", "mean": "3 s"}, "bytes_in": "2 GB", "bytes_out": "1 GB",
        },
        {
            "name": "core", "count": 40, "arrivals": {"process": "poisson", "rate": "1/s"}, "cpus": 2,
            "cpu_time": {"distribution": "exponential", "mean": "2 s"},
        },
    ],
    "policy": "srtf",
}  # fmt: skip


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    (tmp_path / "tasks.csv").write_text(TASKS)
    (tmp_path / "diamond.yaml").write_text(GRAPH)
    return tmp_path / "diamond.yaml"


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def test_a_graph_as_it_ran(graph: Path, tmp_path: Path):
    found = events(write_trace(hs.run(graph), tmp_path / "run.json"))
    slices = {event["name"]: event for event in found if event["ph"] == "X" and event["cat"] == "compute"}
    assert {name: (event["ts"], event["dur"]) for name, event in slices.items()} == {
        "a": (0, 1e6), "b": (1e6, 2e6), "c": (1e6, 3e6), "d": (4e6, 1e6)
    }  # fmt: skip
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names[slices["b"]["pid"], slices["b"]["tid"]] == "g0 compute"
    assert names[slices["c"]["pid"], slices["c"]["tid"]] == "cpu0 compute"
    starts, ends = ([e for e in found if e["ph"] == kind] for kind in "sf")
    arrows = {(s["ts"], f["ts"]) for s, f in zip(starts, ends, strict=True)}
    assert arrows == {(0, 1e6), (1e6, 4e6)} and len(starts) == 4
    busy = [(e["ts"], e["args"]["busy"]) for e in found if e["ph"] == "C" and e["name"] == "GPUs"]
    assert busy == [(0, 0), (1e6, 1), (3e6, 0)]


@pytest.mark.parametrize(
    "name",
    spread(["cholesky-8", "overlap", "slices-of-one-gpu", "time-slices", "save-and-restore", "chunked-prefill"], 2),
)
@pytest.mark.slow
def test_shipped_scenarios_pass_the_checker(name: str, tmp_path: Path):
    result = hs.run(name)
    path = write_trace(result, tmp_path / "run.json.gz")
    assert check_trace(path) == []
    stages = [event for event in events(path) if event["ph"] == "X" and event["cat"] == "compute"]
    devices = result.launches["device"].astype(str).str.count(r"\+") + 1
    assert len(stages) == int(devices[result.launches["compute_start"].notna()].sum())


def test_slices_sum_to_the_tables(tmp_path: Path):
    result = hs.run(SHARED, check=True)
    path = write_trace(result, tmp_path / "run.json")
    assert check_trace(path) == []
    total: dict[str, float] = {}
    for event in events(path):
        if event["ph"] == "X":
            total[event["cat"]] = total.get(event["cat"], 0.0) + event["dur"] / 1e6
    table = result.launches
    upload = (table["upload_end"].fillna(table["end"]) - table["upload_start"]).sum()
    assert total["upload"] == pytest.approx(upload, rel=1e-6)
    lines = table["device"].astype(str).str.count(r"\+") + 1  # each of the two cores has its own
    held = ((table["end"].fillna(result.end) - table["decided"]) * lines).sum()
    assert sum(total.values()) == pytest.approx(held, rel=1e-6)


@pytest.mark.slow
def test_same_run_same_bytes_also_from_its_directory(tmp_path: Path):
    first = hs.run(SHARED)
    first.save(tmp_path / "kept")
    files = [write_trace(run, tmp_path / f"{number}.json.gz")
             for number, run in enumerate((first, hs.run(SHARED), hs.Result.load(tmp_path / "kept")))]  # fmt: skip
    assert len({file.read_bytes() for file in files}) == 1


def test_from_the_command_line(graph: Path, tmp_path: Path):
    target = tmp_path / "run.json.gz"
    found = CliRunner().invoke(main, ["run", str(graph), "--perfetto", str(target)])
    assert found.exit_code == 0 and f"timeline: {target}" in found.stderr
    assert check_trace(target) == []


@pytest.mark.parametrize("target", ["", "nowhere/run.json"])
def test_a_target_that_cannot_be_written(graph: Path, tmp_path: Path, target: str):
    found = CliRunner().invoke(main, ["run", str(graph), "--perfetto", str(tmp_path / target)])
    assert found.exit_code == 2
    assert "folder" in found.stderr and "response" not in found.stdout


def slice_(begin: float, length: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": "s", "pid": 1, "tid": thread, "ts": begin, "dur": length}


def arrow(kind: str, time: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": kind, "id": 7, "pid": 1, "tid": thread, "ts": time}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([slice_(0, 2), slice_(1, 2)], "begins before"),
        ([slice_(0, 4), slice_(1, 2)], "begins before"),
        ([slice_(0, -1)], "not below 0"),
        ([{"ph": "X", "name": "s", "pid": 1, "tid": 1, "ts": 0}], "lacks dur"),
        ([{"ph": "?"}], "no known kind"),
        ([slice_(0, 1), arrow("s", 0)], "1 beginnings and 0 ends"),
        ([slice_(0, 9), arrow("s", 5), arrow("f", 2)], "before it begins"),
        ([slice_(0, 1), arrow("s", 0), arrow("f", 5)], "touches no slice"),
        ([{"ph": "C", "name": "c", "pid": 1, "ts": t, "args": {"v": 1}} for t in (2, 1)], "goes back"),
    ],
)
def test_the_checker_finds_what_is_wrong(tmp_path: Path, content: list[dict[str, Any]], said: str):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"traceEvents": content}))
    problems = check_trace(path)
    assert problems and said in problems[0]


def test_the_checker_on_nested_slices_and_broken_files(tmp_path: Path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps([slice_(0, 4), slice_(1, 2)]))
    assert check_trace(path, overlap=True) == []
    path.write_bytes(gzip.compress(b'{"traceEvents": []}')[:-9])
    assert "cannot be read" in check_trace(path)[0]
    assert "cannot be read" in check_trace(tmp_path / "none.json")[0]


def test_a_slice_without_length_lies_beside_one_that_begins_with_it(tmp_path: Path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps([slice_(5, 2), slice_(5, 0), slice_(7, 0)]))
    assert check_trace(path) == []
    path.write_text(json.dumps([slice_(5, 2), slice_(6, 0)]))
    assert "begins before" in check_trace(path)[0]


def test_requests_to_a_language_model_have_slices_of_their_own(tmp_path: Path):
    """A launch is a busy period of a replica: what a user looks for are the requests inside it."""
    result = hs.run("chunked-prefill", overrides={"horizon": "40 s", "warmup": "0 s"})
    path = write_trace(result, tmp_path / "run.json")
    assert check_trace(path) == []
    events = json.loads(path.read_text())["traceEvents"]
    (process,) = [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"].startswith("requests")]
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == process]
    spent = {what: sum(event["dur"] for event in slices if event["cat"] == what) for what in ("prompt", "answer")}
    record = result.record
    begun = record.start == record.start
    first = np.where(np.isnan(record.first_token), record.end, record.first_token)[begun]
    finish = np.where(np.isnan(record.finish), record.end, record.finish)[begun]
    assert spent["prompt"] == pytest.approx(1e6 * (first - record.start[begun]).sum())
    assert spent["answer"] == pytest.approx(1e6 * (finish - first).sum())
    assert len({event["tid"] for event in slices}) < begun.sum() / 2


@pytest.mark.slow
def test_replications_are_not_one_run(tmp_path: Path):
    runs = hs.replicate(SHARED, replications=3)
    path = tmp_path / "run.json"
    with pytest.raises(UsageError, match=r"write_trace needs one run; got 3 replications: .*results\[0\]"):
        write_trace(runs, path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="write_trace needs the result of a run; got a dict"):
        write_trace({"fcfs": runs}, path)  # type: ignore[arg-type]
    assert not path.exists()
    assert check_trace(write_trace(runs.results[0], path)) == []
