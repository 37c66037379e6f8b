"""Commands killed at random moments and given again: the bytes are those of a call that nothing interrupted."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descent import needs_proc, workers_of

GPUS = "cluster.nodes.0.gpus.count"
SCENARIO: dict[str, Any] = {
    "name": "killed",
    "cluster": {"nodes": [{"cpus": 2, "gpus": {"type": "k20", "count": 2}}]},
    "workload": [
        {"name": "a", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 400,
         "gpu_time": {"distribution": "exponential", "mean": "1 s"}}
    ],
    "policy": "fcfs",
}  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "sweep": ["--over", f"{GPUS}=2,3", "--policy", "fcfs", "--policy", "sjf", "--replications", "4"],
    "run": ["--replications", "12"],
    "compare": ["--policy", "fcfs", "--policy", "sjf", "--replications", "6"],
    "tune": ["--over", "discipline=block,skip", "--first", "3", "--final", "4"],
    "size": ["--target", "wait_mean < 100 s", "--over", f"{GPUS}=1..3", "--replications", "4"],
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(verb: str, here: Path, name: str) -> list[str]:
    """A front door with two workers, that keeps its runs and tables in the folder of that name."""
    kept = {"sweep": ["--out", f"{name}/s"], "run": ["--cache", f"{name}/c", "--out", f"{name}/r"]}
    more = kept.get(verb, ["--cache", f"{name}/c"])
    start = [sys.executable, "-c", "from hetsim.cli import main; main()", verb, "killed.yaml", *COMMANDS[verb]]
    return [*start, *more, "--workers", "2", "--json", "-q"]


def call(words: list[str], here: Path) -> subprocess.CompletedProcess:
    return subprocess.run(words, cwd=here, capture_output=True, check=False)


def start(words: list[str], here: Path) -> subprocess.Popen:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=here, stdout=quiet, stderr=quiet, start_new_session=True)


def parent(process: subprocess.Popen, _: random.Random) -> None:
    process.kill()


def terminated(process: subprocess.Popen, _: random.Random) -> None:
    process.terminate()


def everything(process: subprocess.Popen, _: random.Random) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def worker(process: subprocess.Popen, chance: random.Random) -> None:
    """One of its workers; it goes on by itself, for a while or to the end."""
    for one in chance.sample(found := workers_of(process.pid), min(1, len(found))):
        os.kill(one, signal.SIGKILL)
    try:
        process.wait(chance.uniform(0, 3))
    except subprocess.TimeoutExpired:
        process.kill()


WAYS: list[Callable[[subprocess.Popen, random.Random], None]] = [parent, worker, everything, terminated]


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(("verb", "moments"), [("sweep", 4), ("run", 2), ("size", 2)])
def test_killed_at_random_moments_it_gives_the_same_bytes(tmp_path: Path, verb: str, moments: int):
    """Parent, worker, or both.  Six moments of each command, thirty in all, take two minutes of processor time."""
    (tmp_path / "killed.yaml").write_text(json.dumps(SCENARIO))
    began = time.monotonic()
    whole = call(command(verb, tmp_path, "whole"), tmp_path)
    lasts = time.monotonic() - began
    assert whole.returncode == 0, whole.stderr
    chance = random.Random(verb)
    words = command(verb, tmp_path, "killed")
    for number in range(moments):
        process = start(words, tmp_path)
        time.sleep(chance.uniform(0.2, 1.0) * lasts)
        if process.poll() is None:
            WAYS[(number + len(verb)) % len(WAYS)](process, chance)
        if process.wait() == 0:  # it ended by itself: what it left is whole, and the next one begins anew
            assert files(tmp_path / "killed") == files(tmp_path / "whole")
            shutil.rmtree(tmp_path / "killed")
    last = call(words, tmp_path)
    assert (last.returncode, last.stdout) == (0, whole.stdout), last.stderr
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


COUNTED = """
import os, signal, sys
from pathlib import Path
from hetsim.experiment import sweep as sweeps, work
from hetsim.experiment.store import merge_stores
sys.path.append("TESTS")
from stored import stored_runs
from hetsim.experiment.work import RunOutcome

work.outcome_of = lambda setup, scenario, job, meter=None: RunOutcome(
    {"replication": float(job.replication), "wait_mean": float(job.seed), "_end": 1.0, "_watts_at_end": 0.0})
sweeps.BLOCK = 4
PREPARED


def run(out, moment):
    # In a process of its own, which is killed when it writes, renames or removes something for the so many-th time.
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def counting(owner, name, before):
        real = getattr(owner, name)

        def counted(*given, **more):
            nonlocal count
            count += 1
            if count == moment:
                before(real, *given)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **more)

        setattr(owner, name, counted)

    counting(os, "write", lambda real, handle, line: real(handle, line[: len(line) // 2]))
    counting(Path, "write_bytes", lambda real, path, data: real(path, data[: len(data) // 2]))
    counting(Path, "replace", lambda *given: None)
    counting(Path, "unlink", lambda *given: None)
    WRITTEN
    os._exit(0)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def runs(folder):  # of a merge, which may lie in segments or in journals: the same runs, and no temporary file
    assert not list(Path(folder).rglob(".*")), os.listdir(folder)
    return stored_runs(Path(folder))


assert run("whole", 0) == 0
moment, ended = 0, None
while ended != 0:
    moment += 1
    out = f"killed-{moment}"
    ended = run(out, moment)
    if ended:
        assert ended == -signal.SIGKILL
        for again in (moment % 3 + 1, 0):
            run(out, again)
    assert CONTENTS(out) == CONTENTS("whole"), moment
print(moment)
"""


@pytest.mark.slow
def test_killed_at_each_write_it_gives_the_same_bytes(tmp_path: Path):
    """At the moments at which a file is written (in the middle of it), renamed or removed, and once more soon after."""
    prepared = f'plan = sweeps.plan_sweep({SCENARIO!r}, {{"seed": range(11)}})'
    moments = killed_at_each_moment(tmp_path, prepared, "sweeps.sweep_plan(plan, out)", "files")
    assert moments > 11 + 3 * 2  # a line a run; each of three segments written, renamed, its journal removed


@pytest.mark.slow
def test_a_merge_killed_at_each_write_gives_the_same_runs(tmp_path: Path):
    """Of two folders that have some runs in common; nothing else stays in the folder that they are merged into."""
    prepared = f"""
for name, seeds in (("one", range(11)), ("two", range(6, 21))):
    sweeps.sweep_plan(sweeps.plan_sweep({SCENARIO!r}, {{"seed": seeds}}), name)
"""
    written = 'merge_stores([Path("one"), Path("two")], Path(out))'
    moments = killed_at_each_moment(tmp_path, prepared, written, "runs")
    assert moments > 3 + 3  # a segment, or a line of the journal, for each block that is copied


def killed_at_each_moment(folder: Path, prepared: str, written: str, contents: str) -> int:
    """The number of moments at which the code was killed, and then run to its end with the same contents."""
    code = COUNTED
    tests = str(Path(__file__).parents[1])
    for name, text in {"TESTS": tests, "PREPARED": prepared, "WRITTEN": written, "CONTENTS": contents}.items():
        code = code.replace(name, text)
    done = call([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


def small_files() -> None:
    """No file may be larger than 2 kB: what is longer ends as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


@pytest.mark.slow
def test_a_disk_without_room_is_told_and_harms_nothing(tmp_path: Path):
    (tmp_path / "killed.yaml").write_text(json.dumps(SCENARIO))
    whole = call(command("sweep", tmp_path, "whole"), tmp_path)
    words = command("sweep", tmp_path, "full")
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, preexec_fn=small_files)
    assert found.returncode == 1
    assert "File too large" in found.stderr
    assert "full/" in found.stderr
    assert "Traceback" not in found.stderr
    assert call(words, tmp_path).stdout == whole.stdout
    assert files(tmp_path / "full") == files(tmp_path / "whole")


@pytest.mark.skipif(not Path("/proc/sys").is_dir(), reason="a folder that not even root can write")
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path, verb: str):
    (tmp_path / "killed.yaml").write_text(json.dumps(SCENARIO))
    from click.testing import CliRunner

    from hetsim.cli import hetsim

    words = [str(tmp_path / "killed.yaml"), *COMMANDS[verb], "--workers", "1"]
    for option in ("--out", "--cache") if verb in ("sweep", "run", "compare") else ("--cache",):
        found = CliRunner().invoke(hetsim, [verb, *words, option, "/proc/sys/hetsim"], prog_name="hetsim")
        assert found.exit_code == 2, found.output
        assert "/proc/sys/hetsim" in found.stderr
        assert "cannot be written" in found.stderr
