"""The benchmarks run and print; how fast anything is, no test says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pages
import pytest

from benchmarks import kueue, kueue_twin, peers
from benchmarks.gang_load import Sizes
from benchmarks.measure import Row

ROOT = Path(__file__).parent.parent


def benchmark(*arguments: str, module: str = "engine") -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": pages.SOURCES}
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


FIGURES = {
    "engine": {
        "throughput": "tasks per bare event",
        "simpy": "bare SimPy, 100,000 pending",
        "growth": "9,000 / 3,000 tasks",
        "width": "10,000 / 100 GPUs",
        "memory": "peak memory",
        "peers": "the three agree within their intervals",
        "cli": "hetsim --help",
        "storm": "preemptions",
    },
    "serving": {
        "throughput": "async_linear, 2 streams",
        "admission": "admission request by request",
        "memory": "and the table of requests",
    },
    "cluster": {
        "program": "one max-min program, 512 jobs × 4 types",
        "saturated": "finish_time_fairness with pairs",
        "openb": "--openb FOLDER",
        "growth": "time a job, 4,000 / 1,000: las",
        "memory": "from 1,000 to 4,000 jobs: easy_backfill",
    },
    "environments": {"environments": "64 in one process"},
    "vulnerable": {"edge": "edge at a load of 0.7", "permanence": "back at a load of 0.2"},
    "regret": {"naor": "square wave"},
}
"""Figures of some benchmarks, and what each of them prints."""


@pytest.mark.slow
@pytest.mark.parametrize("module", FIGURES)
def test_every_figure_runs(module: str):
    """Where Alibaba's files are not there, the figure says what it wants."""
    done = benchmark("--quick", "--only", ",".join(FIGURES[module]), module=module)
    assert done.returncode == 0, done.stderr
    assert {name for name, line in FIGURES[module].items() if line not in done.stdout} == set()
    assert module != "engine" or "≥ 0.10" in done.stdout  # figures come with their targets


PLAIN = """
import heapq
free, now, ends, starts, began = 8 * nodes, 0, [], {}, time.process_time()
for job in jobs:
    now = max(now, job["arrival"])
    while ends and (ends[0][0] <= now or free < job["width"]):
        end, width = heapq.heappop(ends)
        now, free = max(now, end), free + width
    starts[job["number"]], free = now, free - job["width"]
    heapq.heappush(ends, (now + job["duration"], job["width"]))
spent = time.process_time() - began
"""
"""First come, first served on processors anywhere, as a peer."""


@pytest.mark.slow
def test_a_peer_runs_the_same_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(peers.PEERS, "plain", peers.Peer(PLAIN, ("fcfs",), "gangs across nodes", peers.ANYWHERE))
    shown = list(peers.peer_figures(Sizes(peer_jobs=300, peer_nodes=(2,)), "plain", tmp_path, 60.0))
    rows = [row for row in shown if isinstance(row, Row) and row.figure.startswith("  same")]
    assert [(row.measured, row.holds) for row in rows] == [("100.00% of the jobs, on average +0 s", True)] * 2
    late = PLAIN.replace("= now, free -", '= now + (job["number"] == 7), free -')
    monkeypatch.setitem(peers.PEERS, "plain", peers.Peer(late, ("fcfs",), "gangs across nodes", peers.ANYWHERE))
    shown = list(peers.beside("plain", tmp_path, count=300, nodes=2, load=0.7, policy="fcfs", limit=60.0))
    assert [row.holds for row in shown if row.figure.startswith("  same")] == [False]


@pytest.mark.slow
def test_a_peer_goes_with_its_folder(tmp_path: Path):
    for given in (("--peer", "pai"), ("--path", str(tmp_path)), ("--peer", "pai", "--path", str(tmp_path / "none"))):
        done = benchmark(*given, module="cluster")
        assert done.returncode == 2
        assert "--peer NAME goes with --path FOLDER" in done.stderr


@pytest.mark.slow
def test_forks_are_timed():
    done = benchmark("--quick", module="forks")
    assert done.returncode == 0, done.stderr
    assert "(80 running, 80 waiting)" in done.stdout


def test_unknown_figures_are_refused():
    done = benchmark("--only", "nonsense")
    assert done.returncode == 2
    assert "there are simpy, throughput" in done.stderr


@pytest.mark.slow
def test_figures_of_the_planners_need_no_files_but_ours(tmp_path):
    """Nor any other planner: what is missing is named."""
    done = benchmark("--quick", str(tmp_path), module="static")
    assert done.returncode == 0, done.stderr
    for line in (
        "worst ratio to the optimum",
        f"no task files in {tmp_path}",
        "recursion as published",
        "heft",
        "only the shipped graph",
        "simulated makespan over the bound",
    ):
        assert line in done.stdout
    assert "MISSED" not in done.stdout.split("n = 200")[0]  # ratios, which are the same on every machine


@pytest.mark.slow
def test_figures_of_the_planners_on_files(tmp_path):
    """A chain of three tasks, the first of which has no GPU version."""
    (tmp_path / "spotrf-64-2.txt").write_text("1 2.0 -1\n2 4.0 0.5 1\n3 4.0 0.5 2\n")
    done = benchmark("--quick", str(tmp_path), "--only", "published,graphs", module="static")
    assert done.returncode == 0, done.stderr
    assert "1 task files on 1 clusters" in done.stdout
    row = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith("64-2"))
    assert row[:6] == ["64-2", "3", "16", "+", "4", "3"]  # ms: 2 + 0.5 + 0.5
    assert row[-1] == "1.000"


@pytest.mark.slow
def test_figures_of_sweeps():
    done = benchmark("--quick", module="sweep")
    assert done.returncode == 0, done.stderr
    for line in ("overhead a point, one worker", "two workers over one", "by wall clock"):
        assert line in done.stdout


@pytest.mark.slow
def test_the_table_of_wrong_estimates():
    done = benchmark("--quick", module="robustness")
    assert done.returncode == 0, done.stderr
    for line in ("| `dual_approximation` | 1.00", "0.3 repaired", "| `dmda`, no plan | 1.00 |"):
        assert line in done.stdout


@pytest.mark.slow
def test_the_table_of_graphs_with_transfers():
    done = benchmark("--quick", "--only", "made", module="graphs")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| LU", "| QR"))]
    assert len(rows) == 2 and all(float(row[-1].rstrip(" |")) <= 1 for row in rows)


@pytest.mark.slow
def test_rollouts_are_held_against_their_bases():
    done = benchmark("--quick", "--only", "deeprm", module="ahead")
    assert done.returncode == 0, done.stderr
    assert "| deeprm | `sjf`, slowdown |" in done.stdout


@pytest.mark.nightly
def test_kueue_is_predicted_and_its_forecasts_are_judged(monkeypatch: pytest.MonkeyPatch, capsys):
    """On small sets: in the first, two queues of a cohort share 40 cores; 20 large workloads of 20 cores, 1 s each."""
    monkeypatch.setitem(kueue.SETS, "baseline", (1, 2, (("small", 2, 0.1, 0.2, 50, 1), ("medium", 2, 0.5, 0.5, 100, 5),
                                                        ("large", 10, 0.1, 1.0, 200, 20))))  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["kueue", "baseline", "--per-start", "0.01", "--requeue", "0"])
    kueue.main()
    wall = float(capsys.readouterr().out.split("wall ")[1].split(" s")[0])
    assert 10 <= wall <= 12.5  # two at a time, and the others beside or after them
    monkeypatch.setattr(kueue_twin, "QUEUES", {"a": (2, 90), "b": (2, 60), "c": (4, 40)})
    monkeypatch.setattr(kueue_twin, "COUNT", 80)
    monkeypatch.setattr(kueue_twin, "HOURS", 2.0)
    monkeypatch.setattr(sys, "argv", ["kueue_twin", "--instants", "1", "--samples", "2"])
    kueue_twin.main()
    assert re.search(r"so far \d+.\d% of \d+ starts are in the 90 % intervals", capsys.readouterr().out)
