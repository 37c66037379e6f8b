"""Schedulers of pybatsim 3.2.1 on logs, next to ours under the same rule.

Two rules of theirs are not ours.  Consecutive cores: a job starts only on a run of free cores without a gap.  Bounded
ends: `easyBackfill` reserves a range of cores for the head, and limits the length of jobs only in the free ranges that
touch an end of it; a job in another free range may delay the head.  On two cores neither matters.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pages
import pytest

import hetsim as hs

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("pybatsim")]
HERE = Path(__file__).parent
SHIPPED = pages.TOP / "scenarios/hetsim_scenarios"
NEEDED = ("pybatsim==3.2.1", "procset==1.0", "sortedcontainers", "docopt")  # without its pins: no ZeroMQ, no pandas
EASY = {"name": "easy_backfill", "depth": None}
LOGS = {"jobs": 128, "lublin": 256, "drawn": 64}
"""Logs, and the cores of their machines."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pybatsim")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("pybatsim cannot be installed: pip does not end")
    if done.returncode:
        pytest.skip(f"pybatsim cannot be installed: {done.stderr.strip()[-200:]}")
    return folder


def rows(log: str) -> list[list[str]]:
    """The first jobs of a shipped log with requested times and of one without, and a log that is drawn."""
    if log == "drawn":
        random = np.random.default_rng(42)
        arrival = np.cumsum(random.integers(0, 40, 500)).tolist()
        run = random.integers(1, 900, 500).tolist()
        asked = (np.array(run) + random.integers(0, 600, 500)).tolist()
        width = np.minimum(64, 2 ** random.integers(0, 7, 500) + random.integers(0, 3, 500)).tolist()
        lines = zip(arrival, run, width, asked, strict=True)
        return [f"{k + 1} {a} -1 {r} {w} -1 -1 {w} {q} -1 1 1 1 -1 1 -1 -1 -1".split()
                for k, (a, r, w, q) in enumerate(lines)]  # fmt: skip
    if log == "jobs":
        text = (SHIPPED / "clusters/jobs.swf").read_text(encoding="utf-8")
    else:
        text = gzip.decompress((SHIPPED / "published/rlscheduler/lublin_1.swf.gz").read_bytes()).decode()
    return [line.split() for line in text.splitlines() if not line.startswith(";")][:600]


def scenario(log: str, cores: int, folder: Path, width: Callable[[int], int] = int) -> dict:
    """The log on one node of so many cores, with the widths of jobs changed."""
    file = folder / "log.swf"
    changed = [[*row[:4], str(width(int(row[4]))), *row[5:7], str(width(int(row[4]))), *row[8:]] for row in rows(log)]
    file.write_text("".join(f"{' '.join(row)}\n" for row in changed), encoding="utf-8")
    workload = [{"name": "jobs", "trace": {"format": "swf", "path": str(file)}}]
    return {"cluster": {"nodes": [{"cpus": cores}]}, "seed": 1, "workload": workload}


def external(installed: Path, name: str) -> list[str]:
    return [sys.executable, str(HERE / "pybatsim_on_pipes.py"), str(installed), name]


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(("theirs", "ours"), [("schedFcfs", "fcfs"), ("easyBackfill", EASY)], ids=["fcfs", "easy"])
def test_every_job_starts_as_ours_does_where_no_rule_differs(log, theirs, ours, installed, tmp_path) -> None:
    """Two cores: jobs wider than a quarter of the machine take both, all others one."""
    two = scenario(log, 2, tmp_path, lambda width: 2 if 4 * width > LOGS[log] else 1)
    other = hs.run(two, policy="external", external=external(installed, theirs)).tasks
    assert other["start"].tolist() == hs.run(two, policy=ours).tasks["start"].tolist()


@pytest.mark.parametrize("log", LOGS)
def test_their_fcfs_starts_the_head_when_enough_consecutive_cores_are_free(log, installed, tmp_path) -> None:
    """At each message, given the cores that were named so far: all heads that have a run of cores, and no other job."""
    told = hs.run(scenario(log, LOGS[log], tmp_path), policy="external", external=external(installed, "schedFcfs"),
                  exchange=tmp_path / "log")  # fmt: skip
    machine = Machine(LOGS[log], next((tmp_path / "log").glob("*.jsonl")))
    started = 0
    for waiting, starts, free in machine.moments():
        for job, cores in starts:
            assert job == waiting[0] and len(cores) == machine.width[job] == cores[-1] - cores[0] + 1
            assert free.issuperset(cores)
            free.difference_update(cores)
            waiting.pop(0)
            started += 1
        assert not waiting or longest_run(free) < machine.width[waiting[0]]
    assert started == len(told.tasks)


@pytest.mark.parametrize("log", LOGS)
def test_their_easy_bounds_only_what_touches_an_end_of_the_reservation(log, installed, tmp_path) -> None:
    """Wide jobs take the whole machine, others one core, so that the reservation of a wide head is the whole machine.

    Each job that passes such a head and may outlast the reservation starts in a free range within the machine.
    """
    cores = LOGS[log]
    whole = scenario(log, cores, tmp_path, lambda width: cores if 4 * width > cores else 1)
    hs.run(whole, policy="external", external=external(installed, "easyBackfill"), exchange=tmp_path / "log")
    machine = Machine(cores, next((tmp_path / "log").glob("*.jsonl")))
    late = 0
    for waiting, starts, free in machine.moments():
        for job, taken in starts:
            head = waiting[0]
            if job != head and machine.width[head] == cores:
                reserved = max(end for end, _ in machine.running.values())
                if machine.now + machine.walltime[job] > reserved:
                    late += 1
                    assert taken[0] not in end_ranges(free, cores)
            free.difference_update(taken)
            machine.running[job] = machine.now + machine.walltime[job], taken
            waiting.remove(job)
    assert late > 0


class Machine:
    """What was said in an exchange, moment by moment."""

    def __init__(self, cores: int, log: Path):
        self.cores, self.now = cores, 0.0
        self.width: dict[str, int] = {}
        self.walltime: dict[str, float] = {}
        self.running: dict[str, tuple[float, list[int]]] = {}
        self._lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]

    def moments(self):
        """Jobs that wait in their order, the starts that were answered, and the free cores before these."""
        waiting: list[str] = []
        free = set(range(self.cores))
        taken: dict[str, list[int]] = {}
        for message, answer in zip(self._lines[::2], self._lines[1::2], strict=True):
            self.now = message["now"]
            for event in message["events"]:
                data = event["data"]
                if event["type"] == "JOB_SUBMITTED":
                    job = data["job"]
                    waiting.append(job["id"])
                    self.width[job["id"]], self.walltime[job["id"]] = job["res"], job["walltime"]
                elif event["type"] == "JOB_COMPLETED":
                    free.update(taken.pop(data["job_id"]))
                    self.running.pop(data["job_id"], None)
            starts = [(event["data"]["job_id"], span(event["data"]["alloc"])) for event in answer["events"]]
            taken |= dict(starts)
            yield waiting, starts, free


def span(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def longest_run(free: set[int]) -> int:
    best = run = 0
    for core in range(max(free, default=-1) + 1):
        run = run + 1 if core in free else 0
        best = max(best, run)
    return best


def end_ranges(free: set[int], cores: int) -> set[int]:
    """The free cores that are connected with the first or the last core."""
    found = set()
    for order in (range(cores), reversed(range(cores))):
        for core in order:
            if core not in free:
                break
            found.add(core)
    return found
