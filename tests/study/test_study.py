"""No figure without its inputs: what decides a run is verified where it is made, and what was written is verified when
it is read."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pages
import pandas as pd
import pytest
import tiers
from descent import needs_proc, workers_of
from stored import stored_runs

import hetsim as hs
from hetsim import registry
from hetsim.errors import DamagedFile, RunError, UsageError
from hetsim.experiment import workers as pools
from hetsim.experiment.identity import Identity
from hetsim.experiment.sweep import plan_sweep, sweep, sweep_plan
from hetsim.policy import ListScheduler
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.stored_files import sealed, unsealed
from hetsim.scenario.scenario import load

ROWS = "id,arrival,gpu_time,user\n" + "".join(f"{i},{i * 0.9},{1 + i % 3},u{i % 2}\n" for i in range(20))
GPUS = "cluster.nodes.0.gpus.count"
STATIC: dict[str, Any] = {
    "name": "traced",
    "cluster": {"nodes": [{"cpus": 2, "gpus": {"type": "k20", "count": 2}}]},
    "workload": [{"trace": {"format": "tasks", "path": "jobs.csv"}}],
    "policy": "fcfs",
}


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A scenario file whose tasks are in a trace next to it."""
    (tmp_path / "jobs.csv").write_text(ROWS)
    (tmp_path / "traced.yaml").write_text(json.dumps(STATIC))
    return tmp_path / "traced.yaml"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Elsewhere(Executor):
    """Another machine: has other files, or code, by the time it is asked."""

    def __init__(self, change: Any):
        self.change = change

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future:
        self.change()
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


# Inputs -----------------------------------------------------------------------------------------------------------


def test_another_trace_under_the_same_name_is_refused(traced: Path, tmp_path: Path):
    """Twice as long under the same name: before, its figure was kept under the digest of the trace that is here."""
    other = Elsewhere(lambda: traced.with_name("jobs.csv").write_text(ROWS.replace(",1,", ",9,")))
    plan = plan_sweep(traced, {GPUS: [2, 3]}, executor=other)
    with pytest.raises(UsageError) as caught:
        sweep_plan(plan, out=tmp_path / "s")
    told = str(caught.value)
    assert "other inputs than this study (file jobs.csv: sha256 " in told
    assert told.count("there") == told.count("here,") + 1 or " here" in told
    assert not stored_runs(tmp_path / "s")


def test_a_trace_that_changes_during_a_sweep_is_refused_here_too(traced: Path, tmp_path: Path):
    plan = plan_sweep(traced, {GPUS: [2, 3]}, cache=tmp_path / "cache")
    traced.with_name("jobs.csv").write_text(ROWS.replace(",1,", ",9,"))
    with pytest.raises(UsageError, match="file jobs.csv: sha256 .* now, .* when the study began"):
        sweep_plan(plan)
    assert not stored_runs(tmp_path / "cache")
    found = sweep(traced, {GPUS: [2, 3]}, cache=tmp_path / "cache")  # the same command again
    assert (found.table["status"] == "done").all()


def test_a_worker_without_the_trace_is_refused(traced: Path):
    elsewhere = Elsewhere(lambda: traced.with_name("jobs.csv").unlink(missing_ok=True))
    plan = plan_sweep(traced, {GPUS: [2]}, executor=elsewhere)
    with pytest.raises(UsageError, match="cannot load the scenario: .*jobs.csv"):
        sweep_plan(plan)


@pytest.mark.slow
def test_another_version_of_a_users_module_is_refused(tmp_path: Path):
    """The module is edited between the plan and the start of the workers."""
    script = f"""
import hetsim as hs, json
from pathlib import Path
from hetsim.experiment.sweep import plan_sweep, sweep_plan
import mine

if __name__ == "__main__":
    hs.register("mine", mine.order)
    plan = plan_sweep({{**json.loads(Path("s.json").read_text()), "policy": "mine"}}, {{"{GPUS}": [2, 3]}}, workers=2)
    Path("helper.py").write_text("SIGN = -1.0\\n")
    try:
        sweep_plan(plan, out="out")
    except hs.errors.UsageError as error:
        print(error)
"""
    (tmp_path / "helper.py").write_text("SIGN = 1.0\n")
    (tmp_path / "mine.py").write_text("import helper\n\ndef order(task):\n    return helper.SIGN * task.arrival\n")
    (tmp_path / "s.json").write_text(json.dumps(STATIC))
    (tmp_path / "jobs.csv").write_text(ROWS)
    (tmp_path / "script.py").write_text(script)
    path = {**os.environ, "PYTHONPATH": f"{pages.SOURCES}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert "source of scheduler mine: sha256 " in done.stdout, done.stderr
    assert not stored_runs(tmp_path / "out")


def test_the_digest_covers_what_a_users_module_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its own modules and its package, not what is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import numpy as np\nfrom mine_two import key\n\ndef one(task):\n    return key(task)\n"
    (tmp_path / "mine_one.py").write_text(text)
    (tmp_path / "mine_two.py").write_text("def key(task):\n    return task.arrival\n")
    registry.register("mine_one", __import__("mine_one").one)
    scenario = load({**STATIC, "workload": [], "policy": "mine_one"} | {"workload": one_stream()})
    parts = Identity().parts(scenario)
    assert [name for name in parts if name.startswith("source")] == ["source of scheduler mine_one"]
    assert Identity().parts(scenario) == parts
    (tmp_path / "mine_two.py").write_text("def key(task):\n    return -task.arrival\n")
    with pytest.raises(UsageError, match=r"mine_two.py has changed since it was imported: key differs from its"):
        Identity().parts(scenario)
    importlib.invalidate_caches()
    for name in ("mine_one", "mine_two"):
        del sys.modules[name]
    registry.register("mine_one", __import__("mine_one").one)
    other = Identity().parts(scenario)
    assert {name for name in parts if parts[name] != other[name]} == {"source of scheduler mine_one"}


def one_stream() -> list[dict[str, Any]]:
    return [{"name": "a", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 8, "gpu_time": "1 s"}]


# Failures ---------------------------------------------------------------------------------------------------------


class Failing(ListScheduler):
    """Raises what it is told to."""

    error: type[Exception] = ValueError

    def __init__(self) -> None:
        super().__init__(order=lambda task: task.arrival)

    def schedule(self, view):
        raise self.error("as told")
        yield


@pytest.mark.parametrize(
    ("error", "kept"), [(ValueError, 1), (OSError, 0), (MemoryError, 0), (ModuleNotFoundError, 0)]
)
def test_failures_of_the_environment_are_not_kept(tmp_path: Path, error: type[Exception], kept: int):
    Failing.error = error
    registry.register("failing", Failing)
    found = sweep({**STATIC, "workload": one_stream(), "policy": "failing"}, {GPUS: [2]}, out=tmp_path / "s")
    assert found.table["status"].tolist() == ["failed"]
    assert "as told" in found.table["error"][0]
    assert len(stored_runs(tmp_path / "s")) == kept


# Files ------------------------------------------------------------------------------------------------------------


def flipped(path: Path, place: float) -> None:
    """Change a bit of the byte at this share of a file."""
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 4
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore::hetsim.errors.DamageWarning")
@pytest.mark.slow
def test_a_changed_byte_in_any_file_of_a_sweep_is_repaired(tmp_path: Path):
    over = {GPUS: [2, 3]}
    scenario = {**STATIC, "workload": one_stream()}
    out = tmp_path / "s"
    first = sweep(scenario, over, out=out)
    whole = files(out)
    assert len(whole) == 1 + 5
    for name in whole:
        for place in (0.0, 0.37, 1.0) if tiers.whole else (0.37,):
            flipped(out / name, place)
            if not name.startswith("runs"):  # the tables stand on their own
                with pytest.raises(UsageError, match=Path(name).name):
                    Sweep.load(out)
            again = sweep(scenario, over, out=out, resume=True)
            pd.testing.assert_frame_equal(again.table, first.table, check_exact=True)
            assert files(out) == whole, name
    (out / "sweep.json").write_text("{")
    with pytest.raises(UsageError, match="sweep.json is damaged.*--resume"):
        sweep(scenario, over, out=out)
    sweep(scenario, over, out=out, resume=True)
    assert files(out) == whole


def read_all(folder: Path) -> None:
    run = hs.Result.load(folder)
    for table in ("tasks", "launches", "devices", "timeline"):
        getattr(run, table)
    assert run.record.input.tasks is not None


def test_a_changed_byte_in_any_file_of_a_run_is_named(traced: Path, tmp_path: Path):
    hs.run(traced).save(tmp_path / "run")
    for name, data in files(tmp_path / "run").items():
        for place in (0.0, 0.5, 1.0) if tiers.whole else (0.5,):
            flipped(tmp_path / "run" / name, place)
            with pytest.raises(UsageError, match=Path(name).name):
                read_all(tmp_path / "run")
        (tmp_path / "run" / name).unlink()
        with pytest.raises(UsageError, match=Path(name).name):
            read_all(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(data)
    read_all(tmp_path / "run")


@pytest.mark.parametrize("many", ["replications", "comparison"])
@pytest.mark.slow
def test_a_changed_byte_in_a_directory_of_several_runs_is_named(traced: Path, tmp_path: Path, many: str):
    """All but pictures, and tables of single runs, which are verified when they are read."""
    from hetsim.experiment.compare import run_policies
    from hetsim.experiment.directory import save, save_comparison
    from hetsim.experiment.options import StudyOptions

    runs = run_policies(traced, ["fcfs", "sjf"], StudyOptions(replications=2))
    if many == "comparison":
        from hetsim.results.many_runs.compare import compare

        folder, load_again = save_comparison(compare(runs), runs, tmp_path / "s", picture=False), hs.Comparison.load
    else:
        folder, load_again = save(runs["fcfs"], tmp_path / "s", picture=False), hs.Replications.load
    load_again(folder)
    own = [name for name in files(folder) if "replication-0" not in name and not name.endswith(".png")]
    assert len(own) > 3
    for name in own:
        flipped(folder / name, 0.5)
        with pytest.raises(UsageError, match=Path(name).name):
            load_again(folder)
        flipped(folder / name, 0.5)


def test_a_saved_run_never_reads_its_trace_again(traced: Path, tmp_path: Path):
    """Edited or gone: figures that were not asked for before the run was saved are those of the run."""
    run = hs.run(traced)
    run.save(tmp_path / "run")
    expected = {name: run.metric(name) for name in ("rho_mean", "makespan_ratio", "jain", "fragmentation")}
    traced.with_name("jobs.csv").write_text(ROWS.replace(",1,", ",9,"))
    loaded = hs.Result.load(tmp_path / "run")
    assert isinstance(loaded, type(run))
    assert {name: loaded.metric(name) for name in expected} == pytest.approx(expected, nan_ok=True, rel=0, abs=0)
    pd.testing.assert_frame_equal(loaded.explain(), run.explain())
    traced.with_name("jobs.csv").unlink()
    assert hs.Result.load(tmp_path / "run").metric("rho_mean") == expected["rho_mean"]
    assert list(loaded.inputs) == ["file jobs.csv"]


@pytest.mark.parametrize("number", [1, 3])
def test_another_format_is_refused_by_name(tmp_path: Path, number: int):
    hs.run({**STATIC, "workload": one_stream()}).save(tmp_path / "run")
    mark = tmp_path / "run" / "run.json"
    mark.write_text(sealed({**unsealed(mark), "format": number}, 1))
    with pytest.raises(UsageError, match=f"run.json cannot be read: it has format {number}, and this hetsim reads"):
        hs.Result.load(tmp_path / "run")


def test_what_is_sealed_comes_back(tmp_path: Path):
    value = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    for indent in (None, 1):
        (tmp_path / "x.json").write_text(sealed(value, indent), encoding="utf-8")
        assert unsealed(tmp_path / "x.json") == value
    (tmp_path / "x.json").write_text(json.dumps({"format": 2, **value}))
    with pytest.raises(DamagedFile, match="checksum"):
        unsealed(tmp_path / "x.json")


# Workers that are killed ------------------------------------------------------------------------------------------


def kill_one(over: threading.Event) -> None:
    while not over.wait(0.002):
        for worker in workers_of(os.getpid())[:1]:
            os.kill(worker, signal.SIGKILL)
            return


@pytest.mark.slow
@needs_proc
def test_a_worker_killed_while_it_starts():
    """Others are started."""
    over = threading.Event()
    killer = threading.Thread(target=kill_one, args=(over,))
    killer.start()
    try:
        found = sweep({**STATIC, "workload": one_stream()}, {GPUS: [1, 2, 3]}, workers=2)
        assert (found.table["status"] == "done").all()
    finally:
        over.set()
        killer.join()


@pytest.mark.slow
def test_a_pool_that_breaks_while_it_starts_a_process(monkeypatch: pytest.MonkeyPatch):
    """Its pipes are closed under the process being started; the study goes on with another pool."""
    broken: list[Any] = []
    make = pools.process_pool

    def breaking(*given: Any) -> Any:
        pool = make(*given)
        if not broken:
            broken.append(pool)

            def spawn() -> None:
                pool._broken = "a worker process died while another was starting"
                raise OSError(errno.EBADF, "Bad file descriptor")

            monkeypatch.setattr(pool, "_spawn_process", spawn)
        return pool

    monkeypatch.setattr(pools, "process_pool", breaking)
    found = sweep({**STATIC, "workload": one_stream()}, {GPUS: [1, 2, 3]}, workers=2)
    assert broken
    assert (found.table["status"] == "done").all()


@pytest.mark.slow
@needs_proc
def test_the_server_of_workers_ends_while_they_start():
    """A request without its pipes ends it; while it ends, it lives and refuses connections."""
    for _ in range(3):
        pools.close_pool(pools.process_pool(1, pools.as_worker), at_once=True)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(forkserver._forkserver._forkserver_address)
        found = sweep({**STATIC, "workload": one_stream()}, {GPUS: [1, 2, 3]}, workers=2)
        assert (found.table["status"] == "done").all()


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_that_always_die_while_they_start(monkeypatch):
    """It ends, and blames no missing guard."""
    monkeypatch.setattr(pools, "as_worker", dies)
    with pytest.raises(RunError, match=f"died while they were starting, {pools.STARTS} times") as caught:
        sweep({**STATIC, "workload": one_stream()}, {GPUS: [1, 2, 3]}, workers=2)
    assert "__main__" not in str(caught.value)
