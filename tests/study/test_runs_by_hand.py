"""What becomes of one run: outcomes and errors, shelves and verification, pools, folders; without any engine."""

from __future__ import annotations

import json
import logging
import math
import pickle
import signal
import sys
import threading
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import cluster, record, three, workload
from scipy import stats
from stored import stored_runs

import hetsim as hs
from hetsim.errors import (
    DamagedFile,
    HetsimError,
    InvariantError,
    Problem,
    RunError,
    ScenarioError,
    UnknownInputs,
    UsageError,
)
from hetsim.experiment import directory, precision, progress, run, segment, work, workers
from hetsim.experiment import study as studies
from hetsim.experiment.compare import Refusals, asked_for, select_best
from hetsim.experiment.directory import comparison_json, first_run, load_any, save, save_comparison
from hetsim.experiment.identity import Identity
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.progress import Meter
from hetsim.experiment.store import Store
from hetsim.experiment.study import Case, Replicates
from hetsim.experiment.work import OtherInputs, RunJob, RunOutcome, Setup, Shelf
from hetsim.experiment.workers import GivenPool, Processes, Workers
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import versions
from hetsim.results.stored_files import sealed
from hetsim.scenario.scenario import load
from hetsim.search.targets import Target

NOTHING: Any = None
SMALL: dict[str, Any] = {
    "name": "small", "seed": 3, "cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]}, "policy": "fcfs",
    "workload": [{"name": "jobs", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 3, "gpu_time": "1 s"}],
}  # fmt: skip
JOB = RunJob(0, {}, 1, 0)

# One run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("problem", "error", "lasting", "refused"), [
    (InvariantError("a task ran twice"), "a task ran twice (a defect of hetsim, please report it)", True, False),
    (MemoryError("no"), "out of memory", False, False),
    (RunError("the run\nfailed"), "the run\nfailed", True, False),
    (ScenarioError("no such thing"), str(ScenarioError("no such thing")), True, True),
    (OSError("the disk\n is full"), "OSError: the disk is full", False, False),
    (ImportError("no module"), "ImportError: no module", False, False),
    (ZeroDivisionError(), "ZeroDivisionError: no message", True, False),
])  # fmt: skip
def test_errors_of_a_run(problem: Exception, error: str, lasting: bool, refused: bool, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> Any:
        raise problem

    monkeypatch.setattr(work, "outcome_of", fails)
    shelf: Any = SimpleNamespace(scenario=lambda *_: None)
    made = work.outcome_or_error(NOTHING, shelf, "", JOB)
    assert made == RunOutcome(None, error=error, lasting=lasting, refused=refused)


def test_other_inputs_are_no_outcome():
    refused = OtherInputs(JOB, {"a": "b"}, "no file", "host")

    def scenario(*_: Any) -> Any:
        raise refused

    shelf: Any = SimpleNamespace(scenario=scenario)
    with pytest.raises(OtherInputs, match="no file"):
        work.outcome_or_error(NOTHING, shelf, "", JOB)
    again = pickle.loads(pickle.dumps(refused))
    assert (again.job, again.parts, again.problem, again.host) == (JOB, {"a": "b"}, "no file", "host")
    assert str(OtherInputs(JOB, {})) == "other inputs" and OtherInputs(JOB, {}).host


def test_a_run_with_and_without_its_description():
    scenario = load(SMALL)
    plain = work.simulate(scenario, RunJob(0, {}, 5, 2, warmup=1.5), described=False)
    full = work.simulate(scenario, RunJob(0, {}, 5, 2, warmup=1.5))
    assert (plain.name, plain.seed, plain.replication, plain.policy) == ("small", 5, 2, "fcfs")
    assert plain.scenario is None and full.scenario is not None and "1.5 s" in full.scenario
    assert full.inputs == Identity().inputs(scenario) and full.record.input.warmup == 1.5
    pd.testing.assert_frame_equal(plain.tasks, full.tasks)
    assert not plain.tasks.equals(work.simulate(scenario, RunJob(0, {}, 5, 3)).tasks)
    meter = Meter(None)
    work.simulate(scenario, JOB, meter=meter)
    assert meter.simulation is None


def test_the_outcome_of_a_run_has_the_figures_that_are_kept():
    scenario = load(SMALL)
    every = work.outcome_of(Setup((scenario,), ("rho_max",)), scenario, JOB)
    assert every.values is not None and {"wait_mean", "rho_max", "replication"} <= set(every.values)
    assert every.error == "" and every.lasting and not every.reduced and every.series is None
    few = work.outcome_of(Setup((scenario,), keep=("wait_mean",)), scenario, JOB)
    assert few.reduced and few.values is not None and "wait_mean" in few.values and "jain" not in few.values
    pilot = work.outcome_of(Setup((scenario,)), scenario, RunJob(0, {}, 1, 0, pilot=True))
    assert pilot.values == {} and pilot.series is not None and [len(one) for one in pilot.series] == [3, 3]
    assert Setup(()).metrics == tuple(dict.fromkeys(Setup((), ("jain", "jain")).metrics[1:]))
    assert Setup((), ("jain", "jain"), keep=("jain",)).metrics == ("jain", "jain")


# What a worker keeps --------------------------------------------------------------------------------------------------


class Plain:
    """A scenario that is made up."""

    def __init__(self, name: str, files: tuple[Path, ...] = ()):
        self.name, self.files, self.traces = name, files, {}
        self.made: list[Any] = []

    def with_overrides(self, overrides: Any) -> Plain:
        made = Plain(f"{self.name}{dict(overrides)}", self.files)
        self.made.append(made)
        return made


def test_a_worker_keeps_the_last_four_scenarios():
    first: Any = Plain("s")
    setup, shelf = Setup((first,)), Shelf()

    def asked(value: int, digest: str = "d") -> Any:
        return shelf.scenario(setup, digest, RunJob(0, {"x": value}, 1, 0))

    assert shelf.scenario(setup, "d", JOB) is first
    made = {value: asked(value) for value in (1, 2, 3)}
    assert [one.name for one in made.values()] == ["s{'x': 1}", "s{'x': 2}", "s{'x': 3}"]
    assert all(asked(value) is made[value] for value in made) and len(first.made) == 3
    assert asked(1, "other") is not made[1]  # of another setup; the fifth, so that the first of all goes
    assert len(shelf.scenarios) == work.SHELF == 4 and asked(2) is made[2]
    shelf.scenario(setup, "d", JOB)  # which takes the place of made[1]
    assert asked(1) is not made[1] and asked(3) is made[3]


def test_inputs_are_verified_once_and_again_when_a_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "trace.csv"
    path.write_text("1")
    scenario: Any = Plain("s", (path,))
    asked: list[bool] = []
    answer = ["right"]

    class Stub:
        def __init__(self, check: bool = False):
            self.check = check

        def scenario(self, _: Any) -> str:
            asked.append(self.check)
            return answer[0]

        def parts(self, _: Any) -> dict[str, str]:
            return {"file": answer[0]}

    monkeypatch.setattr(work, "Identity", Stub)
    shelf, setup, job = Shelf(), Setup((scenario,), check=True), RunJob(0, {}, 1, 0, digest="right")
    assert shelf.scenario(setup, "d", JOB) is scenario and not asked  # no digest: nothing to verify
    assert shelf.scenario(setup, "d", job) is scenario and asked == [True]
    assert shelf.scenario(setup, "d", job) is scenario and asked == [True]
    path.write_text("22")
    answer[0] = "wrong"
    with pytest.raises(OtherInputs) as refused:
        shelf.scenario(setup, "d", job)
    assert refused.value.parts == {"file": "wrong"} and refused.value.job is job and len(asked) == 2
    answer[0] = "right"
    shelf.scenario(setup, "d", job)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        shelf.scenario(setup, "d", job)
    fresh = Shelf()
    answer[0] = "wrong"
    with pytest.raises(OtherInputs):
        fresh.scenario(Setup((scenario,)), "d", job)
    assert asked[-1] is False and not fresh.scenarios


def test_points_share_the_tables_of_traces():
    shared: list[tuple[int, Any]] = []

    class Trace:
        def __init__(self, read: Any):
            self.read = read

        def __repr__(self) -> str:
            return "t"

    class Traced(Plain):
        reads = 0

        def with_overrides(self, overrides: Any) -> Any:
            made: Any = Traced(f"{dict(overrides)}")
            made.traces = {0: Trace(self.read)}
            made.share_table = lambda entry, table: shared.append((entry, table))
            return made

        def read(self) -> str:
            Traced.reads += 1
            return f"table {Traced.reads}"

    setup, shelf = Setup((Traced("s"),)), Shelf()  # type: ignore[arg-type]
    for value in (1, 2, 3):
        shelf.scenario(setup, "d", RunJob(0, {"x": value}, 1, 0))
    assert shared == [(0, "table 1")] * 3 and Traced.reads == 1
    shelf.scenario(setup, "other", RunJob(0, {"x": 1}, 1, 0))
    assert shared[-1] == (0, "table 2")


def test_a_worker_begins_no_run_after_its_span(monkeypatch: pytest.MonkeyPatch):
    now = [10.0]

    def one(setup: Any, digest: str, job: Any) -> RunOutcome:
        now[0] += 0.4
        return RunOutcome({"jain": float(job)})

    monkeypatch.setattr(work, "_work", one)
    monkeypatch.setattr(work.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(work, "_setups", work.OrderedDict())
    sent = workers.packed((Setup((), ("jain",)), None))
    jobs: Any = [1, 2, 3, 4, 5]
    assert [made.values["jain"] for made in work.work(sent, jobs)] == [1, 2, 3]  # type: ignore[index]  # at 0, 0.4, 0.8
    assert len(work.work(sent, jobs[:2])) == 2 and work.work(sent, []) == []
    monkeypatch.setattr(work, "SPAN", 0.0)
    assert len(work.work(sent, jobs)) == 1
    for number in range(6):
        work.work(workers.packed((Setup((), (f"m{number}",)), None)), jobs[:1])
    assert len(work._setups) == 4
    with pytest.raises(UsageError, match="^a worker differs from this machine: numpy .* there, 0 here"):
        work.work(workers.packed((Setup(()), {**work.fingerprint(), "numpy": "0"})), jobs)
    assert len(work.work(workers.packed((Setup(()), work.fingerprint())), jobs)) == 1


def test_what_a_worker_says_of_a_scenario_that_it_cannot_load(monkeypatch: pytest.MonkeyPatch):
    problem: list[Exception] = [NOTHING]

    def fails(*_: Any) -> Any:
        raise problem[0]

    monkeypatch.setattr(work._shelf, "scenario", fails)
    for problem[0], said in ((FileNotFoundError(2, "No such file", "x"), "FileNotFoundError: [Errno 2] No such file: "
                              "'x'"), (ScenarioError("wrong"), str(ScenarioError("wrong")))):  # fmt: skip
        with pytest.raises(OtherInputs) as refused:
            work._work(NOTHING, "d", JOB)
        assert refused.value.problem == said and refused.value.parts == {}
    for problem[0], said in ((ImportError("no x"), "ImportError: no x"), (RunError("not here"), "not here")):
        assert work._work(NOTHING, "d", JOB) == RunOutcome(None, error=said, lasting=False)


# Front doors ----------------------------------------------------------------------------------------------------------


def test_what_a_run_says_of_replications():
    found = hs.run(SMALL | {"replications": 2000})
    assert found.warnings[-1] == (
        "the scenario has 2,000 replications, but this result is only the first: hetsim.replicate runs all and "
        "gives confidence intervals"
    )
    assert not hs.run(SMALL | {"replications": 1}).warnings and found.seed == 3 and found.replication == 0
    one = hs.replicate(SMALL)
    assert one.warnings == ["one replication gives no confidence interval: use replications=10, or hetsim.run"]
    assert hs.replicate(SMALL, replications=1).warnings == [] and len(one) == 1
    two = hs.replicate(SMALL, replications=2, seed=9, metrics="rho_max")
    assert len(two.results) == 1 and len(two) == 2 and two.warnings == [] and two.seed == 9 and two.keeps("rho_max")
    assert [one.replication for one in hs.replicate(SMALL, replications=2, keep=True).results] == [0, 1]
    assert hs.run(SMALL, seed=9).tasks.equals(two.results[0].tasks)
    for more in ({"workers": 2}, {"executor": object()}):
        with pytest.raises(UsageError, match="keep=True stores whole runs in the process that makes them"):
            hs.replicate(SMALL, keep=True, replications=2, **more)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a shard needs a shared folder: give cache"):
        hs.replicate(SMALL, replications=2, shard="1/2")


def test_a_precision_is_told_as_a_remark_or_a_warning():
    wanted = {"precision": 0.9, "metric": "response_mean", "max": 30}
    found = hs.replicate(SMALL, replications=wanted)
    assert found.remarks[0].startswith("precision: 95 % interval of response_mean is ±") and not found.warnings
    missed = hs.replicate(SMALL, replications=wanted | {"precision": 0.001, "max": 10})
    assert missed.warnings[0].startswith("precision not reached") and not missed.remarks and len(missed) == 10


def test_groups_are_kept_of_several_replications():
    two = [SMALL["workload"][0] | {"name": name} for name in ("a", "b")]
    scenario = load(SMALL | {"workload": two})

    def kept(metrics: Any, by: Any, **more: Any) -> list[str]:
        return run.to_keep(scenario, metrics, by, StudyOptions(**more))

    assert kept(["usual", "rho_max"], ()) == ["rho_max"] == kept(["rho_max"], "class") == kept("rho_max", ())
    assert kept(["rho_max"], "class", replications=1) == ["rho_max"]
    groups = kept((), "class", replications=2)
    assert len(groups) == 1 and groups[0].startswith('by:["class", null, ["task_count"')
    assert kept(["jain"], "class", replications=3)[0] == "jain"


def test_a_policy_in_place_of_that_of_the_scenario():
    changed = run.prepare(SMALL, "sjf + best_fit", ["seed=8"])
    assert (changed.policies.label, changed.model.seed) == ("sjf (placement: best_fit)", 8)
    assert run.prepare(SMALL).policies.label == "fcfs"
    assert run.prepare(SMALL | {"policy": "nonsense"}, "sjf").policies.label == "sjf"
    with pytest.raises(ScenarioError) as wrong:
        run.prepare(SMALL, {"scheduler": "sjf", "placement": "x"})
    assert {one.file for one in wrong.value.problems} == {"--policy"}
    with pytest.raises(ScenarioError) as wrong:
        run.prepare(SMALL, "sjf", {"policy": "x"})
    assert {one.file for one in wrong.value.problems} == {"--set policy"}


def test_policies_that_refuse():
    refusals = Refusals("b")
    refusals.add("a", ScenarioError([Problem("no", "policy.x"), Problem("nor this")]))
    assert refusals.reasons == {"a": "policy.x: no; nor this"}
    with pytest.raises(ScenarioError, match='the baseline "b" cannot run the scenario, so nothing can be '
                                            'compared with it:'):
        refusals.add("b", ScenarioError("no"))
    refusals.require_others(1)
    refusals.require_others(2, 2)
    for count, least in ((0, 1), (1, 2)):
        with pytest.raises(ScenarioError, match="nor this"):
            refusals.require_others(count, least)


def test_what_was_asked_of_a_comparison():
    assert asked_for(None, ()) == {} and asked_for(["jain"], "user") == {"metrics": ["jain"], "by": ["user"]}
    assert asked_for((), ("class", "user"), best="jain", probability=0.9, delta=0.1, replications=5) == {
        "by": ["class", "user"], "best": "jain", "probability": 0.9, "delta": 0.1, "replications": 5,
    }  # fmt: skip
    assert "replications" not in asked_for((), (), best="jain", probability=0.9, delta=0.1)
    assert asked_for((), (), probability=0.9) == {}


def test_what_a_selection_takes():
    with pytest.raises(UsageError, match="the first stage of a selection must have at least 3 replications"):
        select_best(SMALL, ["fcfs", "sjf"], StudyOptions(replications=2), "jain")
    with pytest.raises(UsageError, match="with a selection, replications must be one number: that of the first stage"):
        select_best(SMALL, ["fcfs", "sjf"], StudyOptions(replications={"precision": 0.1}), "jain")
    with pytest.raises(UsageError, match="a comparison needs at least two policies"):
        hs.compare(SMALL, ["fcfs"])
    runs, chosen = select_best(SMALL, ["fcfs", "sjf"], StudyOptions(replications=3), "response_mean", 0.9, 0.5)
    assert list(runs) == ["fcfs", "sjf"] and chosen.metric == "response_mean" and chosen.probability == 0.9
    assert [len(one) for one in runs.values()] == [3, 3] and chosen.best == "fcfs"


# Pools ----------------------------------------------------------------------------------------------------------------


class Here(Executor):
    """Runs what it is sent at once."""

    closed = False

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*given, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True


def test_where_runs_are_made(monkeypatch: pytest.MonkeyPatch):
    class Made(GivenPool):
        ended: list[bool] = []  # noqa: RUF012

        def __init__(self, count: int):
            super().__init__(Here(), count)

        def close(self, *, at_once: bool) -> None:
            self.ended.append(at_once)

    monkeypatch.setattr(workers, "Processes", Made)
    monkeypatch.setattr(workers, "cores", lambda: 7)
    assert (Workers().workers, Workers(None).workers, Workers(3).workers, Workers(None, "a").workers) == (1, 7, 3, 1)
    assert (Workers().remote, Workers(4).remote, Workers(dask="a").remote, Workers(executor=Here()).remote) == (
        False, False, True, True,
    )  # fmt: skip
    for count, runs, likely, size in ((1, 9, 9, 0), (4, 1, 9, 0), (4, 0, 9, 0), (4, 2, 0, 2), (4, 2, 3, 3),
                                      (4, 9, 0, 4)):  # fmt: skip
        pool = Workers(count)
        assert pool.open(runs, likely) == (size > 0) and (pool.pool.workers if pool.pool else 0) == size
    assert not pool.open(0) and pool.open(1)  # it stays open
    pool.close(at_once=False)
    assert pool.pool is not None
    pool.pool.unwanted = True
    pool.close(at_once=False)
    pool.pool.unwanted = False
    pool.close(at_once=True)
    assert Made.ended == [False, True, True]
    Workers(4).close(at_once=True)
    for given, size in ((1, 7), (2, 2)):
        pool = Workers(given, executor=Here())
        assert not pool.open(0) and pool.open(1) and pool.pool is not None and pool.pool.workers == size
        assert pool.pool.room == 2 * size + 2 and pool.pool.elsewhere and not pool.pool.unwanted
    with pytest.raises(RunError, match="the executor is broken: one of its workers died"):
        pool.pool.renew()  # type: ignore[union-attr]
    assert pool.pool.submit(math.sqrt, 9.0).result() == 3  # type: ignore[union-attr]


def test_processes_are_started_again_unless_none_can_start(monkeypatch: pytest.MonkeyPatch):
    """Four pools in a row whose workers died before their first job; one that did something starts the count anew."""
    started: list[tuple[Any, ...]] = []
    codes: list[Any] = []
    closed: list[bool] = []

    class Fresh(Here):
        def __init__(self) -> None:
            self._processes = {n: SimpleNamespace(exitcode=code) for n, code in enumerate(codes)}

    monkeypatch.setattr(workers, "process_pool", lambda *given: started.append(given) or Fresh())
    monkeypatch.setattr(workers, "close_pool", lambda pool, at_once: closed.append(at_once))
    monkeypatch.setattr(Processes, "_pool", property(lambda self: self.executor))
    pool = Processes(3)
    assert started == [(3, workers.as_worker)] and not pool.elsewhere
    for _ in range(3):
        pool.renew()
    pool.submit(int)  # the first job of a worker before it: it ends well
    assert pool._greeting is not None and pool._greeting.done()
    pool.renew()
    assert pool._greeting is None and len(started) == 5
    for _ in range(3):
        pool.renew()
    with pytest.raises(RunError, match=r"while they were starting, 4 times in a row \(out of memory, or killed "
                                       r"by the system"):
        pool.renew()
    assert closed == [True] * 7
    codes += [0, 1]
    with pytest.raises(RunError, match="no worker process could be started. A script that uses workers must "
                                       "have its code under `if __name__ =="):
        Processes(2).renew()
    codes[:] = [0, -9, None]
    Processes(2).renew()
    monkeypatch.setattr(Fresh, "submit", lambda *_: (_ for _ in ()).throw(RuntimeError("bootstrapping phase")))
    with pytest.raises(UsageError, match="A script that uses workers must have its code under `if __name__ =="):
        Processes(2).submit(int)
    monkeypatch.setattr(Fresh, "submit", lambda *_: (_ for _ in ()).throw(RuntimeError("shut down")))
    with pytest.raises(RuntimeError, match="shut down"):
        Processes(2).submit(int)
    pool.close(at_once=False)
    assert closed[-1] is False


def test_what_cannot_be_sent_is_told():
    with pytest.raises(UsageError, match=r"the policy cannot be sent to worker processes.*put it into a module"):
        workers.packed(lambda: 1)
    assert workers.unpacked(workers.packed({"a": 1})) == {"a": 1}


def test_workers_of_a_cluster(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    now, log = [100.0], logging.getLogger("distributed.client")
    counts: dict[str, int] = {"a": 3, "b": 5}

    class Client:
        executor: Any = Here()

        def get_executor(self, pure: bool) -> Any:
            calls.append(("executor", pure))
            return self.executor

        def ncores(self) -> dict[str, int]:
            calls.append("counted")
            return counts

        def close(self, **how: Any) -> None:
            calls.append(("closed", how))

    monkeypatch.setattr(workers, "_client", lambda address: Client())
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    before = log.level
    pool = workers.DaskCluster("tcp://a:1", lambda: {"x": "1"}, {"x": "1"})
    assert log.level == logging.CRITICAL and calls == [("executor", False)] and pool.elsewhere
    assert pool.room == 2 * 8 + 2
    counts["b"] = 1
    now[0] += workers.ROSTER
    assert pool.room == 18 and calls.count("counted") == 1  # counted five seconds ago
    now[0] += 0.1
    assert pool.room == 10 and calls.count("counted") == 2
    counts.clear()
    now[0] += 6
    assert pool.room == 4
    with pytest.raises(RunError, match="the connection to the Dask scheduler at tcp://a:1 is lost"):
        pool.renew()
    pool.close(at_once=False)
    assert log.level == before and calls[-1] == ("closed", {"timeout": 2}) and Client.executor.closed
    for greet, said in (
        (lambda: {"x": "2"}, "differ from this machine: x 2 there, 1 here"),
        (lambda: 1 / 0, r"cannot run hetsim \(ZeroDivisionError: division by zero\); install the same"),
    ):
        with pytest.raises(UsageError, match=f"the workers at tcp://a:1 {said}"):
            workers.DaskCluster("tcp://a:1", greet, {"x": "1"})
        assert log.level == before and calls[-1] == ("closed", {})
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    monkeypatch.setattr(Here, "submit", lambda *_: Future())
    with pytest.raises(UsageError, match="has no worker that answers within 0 s; start some: dask worker tcp://a:1 --"):
        workers.DaskCluster("tcp://a:1", lambda: 1, 1)


def test_addresses_of_clusters(monkeypatch: pytest.MonkeyPatch):
    problem: list[Exception] = []

    def client(address: str, **how: Any) -> Any:
        assert how == {"timeout": "10s", "set_as_default": False}
        if problem:
            raise problem[0]
        return address

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=client))  # type: ignore[arg-type]
    for good in ("tcp://a:1", "a.b:8786", "tls://10.0.0.1:1/"):
        assert workers._client(good) == good
    for bad in ("a", "tcp://a", "a:b", "tcp:/a:1", "a b:1"):
        with pytest.raises(
            UsageError, match=f'^"{bad}" is not the address of a Dask scheduler, such as tcp://HOST:8786'
        ):
            workers._client(bad)
    for one, said in ((OSError("no route\nat all"), "no route"), (TimeoutError(), "TimeoutError")):
        problem[:] = [one]
        with pytest.raises(UsageError, match=rf"no Dask scheduler answers at a:1 \({said}\); start one with"):
            workers._client("a:1")
    problem[:] = [ValueError("unknown protocol")]
    with pytest.raises(UsageError, match='"a:1" is not the address of a Dask scheduler: unknown protocol'):
        workers._client("a:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="running on a Dask cluster needs Dask: pip install"):
        workers._client("a:1")


# Folders --------------------------------------------------------------------------------------------------------------


def faster() -> Result:
    """`three` with a policy that starts the third task before the second: waits 0, 5, 2."""
    tasks = workload([0, 1, 2], [4, 3, 2])
    rec = record(cluster(), tasks, [0, 6, 4], [4, 9, 6], [(1,)] * 3)
    rec.input.policy = "other"
    return Result(rec, seed=7)


def files_in(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def test_the_folder_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        directory, "_save_figure", lambda name, results, path, **how: drawn.append((name, path.name, how))
    )
    runs: dict[str, Any] = {"a b": three(), "c": faster()}
    found = compare(runs, ["wait_mean"], refused={"d": "it is"})
    found.asked = {"metrics": ["wait_mean"]}
    table = found.by("class")
    target = save_comparison(found, runs, tmp_path / "out", groups={"class": table})
    names = [name for name in files_in(target) if "/" not in name]
    assert names == ["by_class.csv", "comparison.csv", "comparison.json", "pairs.csv", "run.json"]
    assert {one.name for one in target.iterdir() if one.is_dir()} == {"a-b", "c"}
    titles, *lines, last = (target / "comparison.csv").read_text().splitlines()
    assert (titles, last) == ("policy,wait_mean_mean,wait_mean_half_width,wait_mean_n,refused", "d,,,,it is")
    rows = [line.split(",") for line in lines]
    assert [row[0] for row in rows] == ["a b", "c"]
    assert [float(row[1]) for row in rows] == pytest.approx([8 / 3, 7 / 3])
    pairs = (target / "pairs.csv").read_text().splitlines()
    assert pairs[0].startswith("metric,policy,other,difference") and pairs[1].startswith("wait_mean,a b,c,0.33333")
    mark = json.loads((target / "run.json").read_text())
    assert (mark["name"], mark["seed"], mark["policies"]) == ("by hand", 7, {"a b": "a-b", "c": "c"})
    assert mark["asked"] == {"metrics": ["wait_mean"]} and mark["versions"] == versions()
    assert drawn == [("default", "picture.png", {})] * 2 + [
        ("comparison", "picture.png", {}), ("distributions", "distributions.png", {}),
        ("over_time", "over_time.png", {}), ("groups", "by_class.png", {}),
    ]  # fmt: skip
    again = load_any(target)
    assert list(again.runs) == ["a b", "c"] and again.refused == {"d": "it is"}
    with pytest.raises(UsageError, match=f" is a comparison; give one of its runs: {target}/a-b, {target}/c$"):
        first_run(target)
    assert first_run(target / "c").policy == "other"
    drawn.clear()
    save_comparison(compare(runs, ["wait_mean"]), runs, tmp_path / "plain", picture=False)
    assert not drawn and "asked" not in json.loads((tmp_path / "plain" / "run.json").read_text())
    assert "refused" not in (tmp_path / "plain" / "comparison.csv").read_text()


def test_a_comparison_as_data():
    runs: dict[str, Any] = {"a": three(), "b": faster()}
    found = comparison_json(compare(runs, ["wait_mean"], baseline="a"), runs)
    assert list(found) == ["scenario", "seed", "policies", "baseline", "differences", "winners", "sentences"]
    assert (found["scenario"], found["seed"], found["baseline"]) == ("by hand", 7, "a")
    assert found["policies"]["b"] == faster().to_json()["summary"]
    (row,) = found["differences"]
    assert (row["metric"], row["policy"], row["other"], row["significant"]) == ("wait_mean", "b", "a", False)
    assert row["difference"] == pytest.approx(-1 / 3) and row["half_width"] is None and row["n"] == 1
    refused = comparison_json(compare(runs, ["wait_mean"], refused={"d": "no"}), runs)
    assert refused["refused"] == {"d": "no"} and refused["baseline"] is None and json.dumps(refused)


def test_the_folder_of_replications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        directory, "_save_figure", lambda name, results, path, **how: drawn.append((name, path.name, how))
    )
    runs = hs.replicate(SMALL, replications=3, keep=True)
    runs.warnings, runs.remarks = ["careful"], ["so it is"]
    table = pd.DataFrame({("jain", "mean"): [1.0], ("jain", "half_width"): [0.5]}, index=["x"])
    target = save(runs, tmp_path / "out", groups={"class": table})
    assert [one for one in files_in(target) if "/" not in one] == [
        "by_class.csv", "replications.parquet", "run.json", "scenario.yaml", "summary.json",
    ]  # fmt: skip
    assert [one.name for one in target.iterdir() if one.is_dir()] == ["replication-0"]
    assert drawn == [("default", "picture.png", {})]
    mark = json.loads((target / "run.json").read_text())
    assert {name: mark[name] for name in ("name", "seed", "replications", "policy", "warnings", "remarks")} == {
        "name": "small", "seed": 3, "replications": 3, "policy": "fcfs", "warnings": ["careful"],
        "remarks": ["so it is"],
    }  # fmt: skip
    assert json.loads((target / "summary.json").read_text()) == json.loads(json.dumps(runs.to_json()))
    again = load_any(target)
    assert isinstance(again, Replications) and len(again) == 3 and again.warnings == ["careful"]
    pd.testing.assert_frame_equal(again.values, runs.values)
    assert first_run(target).tasks["wait"].tolist() == runs.results[0].tasks["wait"].tolist()
    save(runs, tmp_path / "bare", picture=False)
    assert len(drawn) == 1 and not (tmp_path / "bare" / "by_class.csv").exists()


def test_which_picture_a_policy_has(monkeypatch: pytest.MonkeyPatch):
    drawn: list[Any] = []
    monkeypatch.setattr(directory, "_save_figure", lambda name, results, path, **how: drawn.append((name, how)))
    one, path = three(), Path("x")
    directory._draw(one, path)
    directory._draw(one, path, 12.0)
    directory._draw(Replications(), path, 12.0)
    monkeypatch.setattr(directory, "MAX_BARS", 3)
    directory._draw(one, path, 12.0)
    monkeypatch.setattr(directory, "MAX_BARS", 2)
    directory._draw(one, path, 12.0)
    assert drawn == [("default", {}), ("gantt", {"until": 12.0}), ("default", {}), ("gantt", {"until": 12.0}),
                     ("default", {})]  # fmt: skip


def test_what_a_folder_holds(tmp_path: Path):
    three().save(tmp_path / "run")
    assert load_any(tmp_path / "run").policy == "paper" == hs.load(str(tmp_path / "run")).policy
    with pytest.raises(UsageError, match="run is a directory of results, to which overrides cannot be applied"):
        hs.load(tmp_path / "run", {"seed": 2})
    assert hs.load(SMALL, {"seed": 2}).model.seed == 2
    with pytest.raises(UsageError, match="not a run directory"):
        load_any(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UsageError, match="is a sweep, which stores metrics of runs but not their tasks: run two of"):
        first_run(tmp_path)


def test_the_folder_of_a_run_that_failed_gives_way(tmp_path: Path):
    target = tmp_path / "out"
    directory.save_partial(Result(three().record, error="it failed"), target)
    assert [one.name for one in target.iterdir()] == ["partial"]
    save(three(), target, picture=False)
    assert not (target / "partial").exists() and (target / "run.json").is_file()
    other = tmp_path / "other"
    (other / "partial").mkdir(parents=True)
    (other / "partial" / "notes").write_text("mine")
    with pytest.raises(UsageError, match="not a run directory"):
        save(three(), other, picture=False)
    assert (other / "partial" / "notes").read_text() == "mine"


def test_cases_and_unknown_metrics():
    with pytest.raises(UsageError, match='replications: metric: Value error, unknown metric "nothing"'):
        run.run_cases([Case(load(SMALL))], StudyOptions(replications={"precision": 0.1, "metric": "nothing"}))
    with pytest.raises(UsageError, match="replications: precision: Field required"):
        run.run_cases([Case(load(SMALL))], StudyOptions(replications={"metric": "jain"}))
    found = run.run_cases([Case(load(SMALL), seed=4), Case(load(SMALL))], StudyOptions())
    assert [type(one) for one in found] == [Result, Result] and [one.seed for one in found] == [4, 3]
    both = run.run_cases([Case(load(SMALL))], StudyOptions(replications=2), ("rho_max", "rho_max"))
    assert isinstance(both[0], Replications) and both[0].keeps("rho_max")


# Processes ------------------------------------------------------------------------------------------------------------


def test_a_pool_that_breaks_while_a_process_starts(monkeypatch: pytest.MonkeyPatch):
    stopped: list[bool] = []
    problem: list[Any] = [None]

    def submit(self: Any, function: Any, /, *given: Any, **named: Any) -> Any:
        if problem[0] is not None:
            raise problem[0]
        return function, given, named

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    monkeypatch.setattr("multiprocessing.forkserver._forkserver._stop", lambda: stopped.append(True))
    pool = workers._Processes(2)
    assert pool.submit(max, 1, 2, key=abs) == (max, (1, 2), {"key": abs})  # type: ignore[comparison-overlap]
    problem[0] = OSError("too many files")
    with pytest.raises(OSError, match="too many files"):
        pool.submit(int)
    pool._broken = "a child died"  # type: ignore[attr-defined]
    with pytest.raises(BrokenProcessPool, match="a worker process died while another was starting"):
        pool.submit(int)
    assert not stopped
    for problem[0] in (ConnectionResetError(), EOFError()):
        with pytest.raises(BrokenProcessPool, match="a worker process died while another was starting"):
            pool.submit(int)
    assert stopped == [True, True]


def test_signals_wait_until_the_end_of_a_block():
    came: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda one, _: came.append(one)) for number in both}
    try:
        with workers.signals_held():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert not came
        assert came == [signal.SIGTERM]  # one of them is enough
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGTERM, signal.SIGINT]
        mine = signal.getsignal(signal.SIGTERM)
        inside: list[Any] = []

        def elsewhere() -> None:
            with workers.signals_held():
                inside.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert inside == [mine]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with workers.interrupts_held():
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked | {signal.SIGINT}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_processes_of_other_platforms_start_by_themselves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    pool: Any = workers.process_pool(3, max, 1, 2)
    assert (pool._max_workers, pool._initializer, pool._initargs) == (3, max, (1, 2))
    assert pool._mp_context.get_start_method() == "spawn"
    ended: list[Any] = []
    stub: Any = SimpleNamespace(
        _processes={1: SimpleNamespace(terminate=lambda: ended.append("process"))},
        shutdown=lambda **how: ended.append(how),
    )
    workers.close_pool(stub, at_once=False)
    workers.close_pool(stub, at_once=True)
    assert ended == [{"wait": True, "cancel_futures": True}, "process", {"wait": True, "cancel_futures": True}]
    stub._processes = None
    workers.close_pool(stub, at_once=True)
    assert len(ended) == 4


# Studies --------------------------------------------------------------------------------------------------------------


def study_of(monkeypatch: pytest.MonkeyPatch, folder: Path | None = None, **how: Any) -> Any:
    scenario: Any = SimpleNamespace(policies=SimpleNamespace(label="p"), model=SimpleNamespace(seed=1))
    setup: Any = SimpleNamespace(scenarios=[scenario], metrics=(), keep=(), check=False, audit=False)
    made = studies.Study(setup, Workers(), store=Store(folder, **how))
    made.case = Case(scenario, digest="d" * 64)  # type: ignore[attr-defined]
    return made


def test_what_was_made_for_nothing_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = study_of(monkeypatch, tmp_path)
    series = Replicates(study.case, 2)
    for number, value in ((3, 30.0), (1, 10.0), (0, 0.5), (0, 7.0), (2, 20.0)):  # 3 was made ahead
        study._land(series, number, RunOutcome({"jain": value}))
    assert [dict(one.values)["jain"] for one in series.taken] == [0.5, 10.0] and study.meter.done == 2
    kept = {study.key(series, number): number for number in range(4)}
    assert {kept[run] for run in stored_runs(tmp_path)} == {0, 1}
    study.more(series, 2)
    assert not study._open  # it has them
    study.more(series, 4, 3)
    assert (series.goal, series.likely, series.most) == (4, 4, 4) and list(study._open.values()) == [series]
    study.more(series, 4, 9)
    assert series.likely == 9 and len(study._untold) == 1
    study._land(series, 2, RunOutcome({"jain": 20.0}))
    assert study._open and len(series.taken) == 3


def test_the_store_is_asked_for_what_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    study = study_of(monkeypatch, tmp_path)
    first = Replicates(study.case, 3)
    for number in (0, 2):
        study.store.put(study.key(first, number), RunOutcome({"jain": float(number)}))
    assert study.outstanding([first]) == [(first, 1)] and study.found == 2 and [one.values for one in first.taken] != []
    whole = Replicates(study.case, 3, whole=1)
    assert study.outstanding([whole]) == [(whole, 0), (whole, 1)]  # the first is made each time
    pilot = Replicates(study.case, 3, pilot=True)
    assert study.outstanding([pilot]) == [(pilot, 0), (pilot, 1), (pilot, 2)]
    later = Replicates(study.case, 1, begin=2)
    assert study.outstanding([later]) == [] and study.key(later, 0) == study.key(first, 2)
    keys = {study.key(Replicates(study.case, 1, warmup=warmup), 0) for warmup in (None, 1.0, 1.5)}
    assert len(keys) == 3


def test_unknown_inputs_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = "not all inputs of these runs are known (x reads the clock): "
    for trust, then in ((False, "they are saved, but repeated by every call without trust"),
                        (True, "saved runs are reused nevertheless, because of trust")):  # fmt: skip
        study = study_of(monkeypatch, tmp_path, trust=trust)
        study.identity.unknown = {study.case.digest: "x reads the clock"}
        with pytest.warns(UnknownInputs) as told:
            study.digest(study.case)
            study.digest(study.case)
        assert [str(one.message)[: len(said + then)] for one in told] == [said + then]
        other = Case(study.case.scenario, digest="e")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert study.digest(other) == "e"
    nowhere = study_of(monkeypatch)
    nowhere.identity.unknown = {nowhere.case.digest: "x reads the clock"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nowhere.digest(nowhere.case)


def test_the_label_of_a_case(monkeypatch: pytest.MonkeyPatch):
    study = study_of(monkeypatch)
    scenario = SimpleNamespace(policies=SimpleNamespace(label="sjf"))
    scenario.with_overrides = lambda _: scenario
    assert study._label(Case(scenario, {"a.b": 1, "policy": "x", "policy.scheduler": "y", "c": 2})) == "a.b=1, c=2, sjf"  # type: ignore[arg-type]
    assert study._label(study.case) == "p"


@pytest.mark.parametrize("change", [
    {"error": None}, {"unknown": 3}, {"warnings": [1]}, {"warnings": None}, {"values": [1]}, {"values": {"a": "x"}},
    {"run": "abc"}, {"run": "ab" * 31},
])  # fmt: skip
def test_a_line_that_is_no_outcome(change: dict[str, Any], tmp_path: Path):
    plain = segment.plain("ab" * 32, RunOutcome({"jain": 1.0}, ["w"], unknown="u"))
    assert segment.parse_line(tmp_path / "x", sealed(plain).encode())[0] == "ab" * 32
    with pytest.raises(DamagedFile, match="it is not the outcome of a run"):
        segment.parse_line(tmp_path / "x", sealed(plain | change).encode())


def test_how_long_a_run_is_tried(monkeypatch: pytest.MonkeyPatch):
    """Steps of 0.7 s: after the fifth, at 3.5 s, it is more than three; a tenth was done."""
    now = [-0.7]

    def clock() -> float:
        now[0] += 0.7
        return now[0]

    def advance() -> bool:
        return True

    simulation: Any = SimpleNamespace(
        advance=advance, input=SimpleNamespace(scheduler=SimpleNamespace(schedule=lambda view: ())), view=None
    )
    scenario: Any = SimpleNamespace(begin=lambda *_, **__: simulation)
    scenario.with_overrides = lambda _: scenario
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(precision, "run_share", lambda _: 0.1)
    setup: Any = SimpleNamespace(scenarios=[scenario], check=False)
    assert precision._time(JOB, setup) == pytest.approx(35.0)
    assert now[0] == pytest.approx(3.5)


# What a precision costs -----------------------------------------------------------------------------------------------


def replications(values: list[float]) -> Replications:
    made = Replications()
    for number, value in enumerate(values):
        made.add_values({"replication": number, "jain": value})
    made.results = [three()]
    return made


def least(spread: float, mean: float, share: float, level: float) -> int:
    number = 10
    while stats.t.ppf(0.5 + level / 2, number - 1) * spread / math.sqrt(number) > share * abs(mean):
        number += 1
    return number


@pytest.mark.parametrize(("share", "level"), [(0.02, 0.95), (0.05, 0.8), (0.3, 0.95)])
def test_a_precision_is_planned_from_a_pilot(share: float, level: float, monkeypatch: pytest.MonkeyPatch):
    values = [0.5, 0.56, 0.47, 0.61, 0.52, 0.55]
    asked: list[Any] = []
    monkeypatch.setattr(
        precision, "_pilot", lambda case, metric, pilot, told: asked.append((case.seed, metric, pilot)) or (
            replications(values), 3.0)
    )  # fmt: skip
    found = precision.plan_precision(SMALL, share, "jain", confidence=level, pilot=6, seed=5, workers=2)
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    rest = [spread * math.sqrt(5 / stats.chi2.ppf(part, 5)) for part in (0.9, 0.1)]
    assert (found.replications, found.low, found.high) == tuple(
        least(one, mean, share, level) for one in (spread, *rest)
    )
    longer = {times: least(spread / math.sqrt(times), mean, share, level) for times in (4, 16)}
    number = found.replications
    assert found.longer == {times: one for times, one in longer.items() if number > 10 and one < number}
    assert found.half_width == pytest.approx(stats.t.ppf(0.5 + level / 2, 5) * spread / math.sqrt(6))
    assert (found.mean, found.pilot, found.length, found.spent, found.workers) == (
        pytest.approx(mean), 6, "3 tasks", 3.0, 2,
    )  # fmt: skip
    assert asked == [(5, "jain", 6)] and found.confidence == level and found.precision == share


@pytest.mark.parametrize(("values", "more", "said"), [
    ([1.0] * 6, {}, "all replications are equal: the scenario is not random, so there are "
                    "no"), ([1.0, math.nan, 2, 2, 1, 1], {}, "not finite"),
    ([1.0, -1.0] * 3, {}, "the mean of jain is 0, so its relative precision is undefined: choose another"),
    ([1.0, 2.0], {"pilot": 4}, "pilot must be at least 5 replications, to estimate the spread; got 4"),
    ([1.0], {"precision": 1.0}, "precision must be a share above 0 and below 1, such as 5%; got 1"),
    ([1.0], {"confidence": 0.0}, "confidence must be a share above 0 and below 1, such as 5%; got 0"),
    ([1.0], {"metric": "no_such"}, "unknown metric"),
])  # fmt: skip
def test_precisions_that_cannot_be_planned(
    values: list[float], more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(precision, "_pilot", lambda *_: (replications(values), 3.0))
    with pytest.raises(HetsimError, match=said):
        precision.plan_precision(SMALL, **({"precision": 0.1, "metric": "jain", "pilot": 6} | more))


def test_the_pilot_of_a_plan():
    progress: list[float] = []
    runs, spent = precision._pilot(Case(load(SMALL), seed=4), "rho_max", 5, progress.append)
    assert len(runs) == 5 and runs.keeps("rho_max") and spent > 0 and progress[-1] == 1.0 and runs.seed == 4
    with pytest.raises(HetsimError, match="unknown metric"):
        Target.parse("no_such < 3")


# Bars -----------------------------------------------------------------------------------------------------------------


def test_a_bar_in_a_notebook_is_told_twice_a_second(monkeypatch: pytest.MonkeyPatch):
    now, shown = [100.0], []
    handle = SimpleNamespace(update=lambda value, raw: shown.append((value["text/plain"], raw)))
    display = SimpleNamespace(display=lambda value, raw, display_id: shown.append((value, raw, display_id)) or handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.NotebookBar()
    assert shown == [({"text/plain": ""}, True, True)]
    for seconds, share in ((0.25, 0.1), (0.5, 0.25), (0.75, 0.5), (1.0, 1.0)):
        now[0] = 100.0 + seconds
        bar(share)
    assert shown[1:] == [("25 % done, 500 ms passed, about 1.5 s left", True), ("100 % done, 1 s passed", True)]
    now[0] = 112.0
    bar.close(True)
    bar.close(False)
    assert [text for text, _ in shown[3:]] == ["done in 12 s", "stopped after 12 s"]


def test_a_bar_on_a_terminal_appears_after_two_seconds(monkeypatch: pytest.MonkeyPatch):
    now, made = [10.0], []

    class Bar:
        def __init__(self, **how: Any):
            self.how, self.n, self.start_t, self.closed = how, 0.0, 50.0, False
            made.append(self)

        def update(self, by: float) -> None:
            self.n += by

        def close(self) -> None:
            self.closed = True

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=Bar))  # type: ignore[arg-type]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda *_, **__: (99, 33))
    bar = progress.TerminalBar()
    now[0] = 11.9
    bar(0.2)
    bar.close()
    assert not made
    now[0] = 12.0
    bar(0.25)
    bar(0.75)
    (one,) = made
    assert one.n == 0.75 and one.start_t == 48.0  # as if it had been there from the beginning
    facts = {name: one.how[name] for name in ("total", "leave", "mininterval", "miniters", "ncols", "nrows")}
    assert facts == {"total": 1.0, "leave": False, "mininterval": 0, "miniters": 0, "ncols": 99, "nrows": 33}
    bar.close()
    assert one.closed and len(made) == 1


def test_reports_come_while_runs_are_made(monkeypatch: pytest.MonkeyPatch):
    told: list[float] = []
    monkeypatch.setattr(progress, "POLL", 0.001)
    with Meter(told.append, 4) as meter:
        meter.finished()
        while not told:
            pass
        meter.finished()
    assert told[0] in (0.0, 0.25) and told[-1] == 0.5 and told == sorted(told)
    meter.progress = None
    assert not [thread for thread in threading.enumerate() if thread is meter._thread]
