"""Sweeps whose warm-up is found and whose replications go on until a precision: rows are those of `compare` and `run`,
whoever makes the runs, however often the sweep was killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pandas as pd
import pytest
import tiers
from click.testing import CliRunner
from stored import stored_runs

import hetsim as hs
from hetsim import registry
from hetsim.cli import hetsim
from hetsim.errors import UsageError
from hetsim.experiment import store, work
from hetsim.experiment.stopping import Amount
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.sweep import plan_sweep, sweep
from hetsim.experiment.work import RunOutcome, Setup
from hetsim.experiment.workers import Workers
from hetsim.page import report
from hetsim.policy import ListScheduler
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.sweep import MARK, Sweep
from hetsim.results.many_runs.warmup import PILOT
from hetsim.scenario.scenario import load

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "cluster": {
        "nodes": [{"cpus": 4, "gpus": {"type": "k20", "count": 2, "power": {"idle": "50 W", "busy": "200 W"}}}]
    },
    "workload": [
        {
            "name": "a",
            "arrivals": {"process": "poisson", "rate": "2/s"},
            "count": 150,
            "gpu_time": {"distribution": "exponential", "mean": "900 ms"},
        }
    ],
    "policy": "fcfs",
}
RATE = "workload.a.arrivals.rate"
GPUS = "cluster.nodes.0.gpus.count"
UNTIL = {"precision": "25%", "metric": "wait_mean", "max": 40}
BOTH = {**SMALL, "warmup": "auto", "replications": UNTIL}
POLICIES = ["fcfs", "sjf"]
OVER = {RATE: ["1.5/s", "2/s"]}
ROOT = Path(__file__).parents[2]


class Odd(ListScheduler):
    """Fails where there are three GPUs."""

    def schedule(self, view):
        if view.free("k20") == 3:
            raise ValueError("three GPUs are too many")
        yield from super().schedule(view)

    def __init__(self) -> None:
        super().__init__(order=lambda task: task.arrival)


class Late(ListScheduler):
    """Fails in the thirteenth replication, by the tasks' sizes: the others draw no such first task."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__(order=lambda task: task.arrival)
        self.first = first

    def ready(self, task):
        if task.index == 0 and abs(task.arrival - self.first) < 1e-12:
            raise ValueError("this one")
        super().ready(task)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(hetsim, list(arguments), prog_name="hetsim")


def files(folder: Path) -> dict[str, bytes]:
    """Contents of a folder's files by their names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Made(BaseException):
    """A run that was there already; no Exception, which would become a row."""


def no_run(*_: Any) -> None:
    raise Made


def rows(found: Sweep) -> list[dict[str, Any]]:
    return found.table.to_dict("records")  # type: ignore[return-value]


# Rows are those of the other verbs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def precise() -> Sweep:
    over = OVER if tiers.whole else {RATE: ["1.5/s"]}
    return sweep(SMALL, over, policies=POLICIES, replications=UNTIL, check=tiers.whole)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path]:
    """A sweep with both, made by this process, and its directory, which no test writes to."""
    folder = tmp_path_factory.mktemp("both") / "alone"
    return sweep(BOTH, OVER, policies=POLICIES, out=folder), folder


@pytest.mark.slow
def test_a_row_has_as_many_replications_as_run_makes(precise: Sweep):
    for row in rows(precise):
        runs = hs.replicate(SMALL, policy=row["policy"], overrides={RATE: f"{row[RATE]:g}/s"}, replications=UNTIL)
        assert row["replications"] == len(runs)
        interval = runs.interval("wait_mean")
        assert row["wait_mean"] == pytest.approx(interval.mean, rel=1e-12)
        assert row["wait_mean_ci_high"] == pytest.approx(interval.high, rel=1e-12)
        each = precise.by_replication
        mine = each[(each["point"] == row["point"]) & (each["policy"] == row["policy"])]
        assert mine["wait_mean"].tolist() == runs.column("wait_mean").tolist()
        assert row["warnings"] == "; ".join(text for text in runs.warnings if text.startswith("precision"))
    numbers = precise.table["replications"]
    assert numbers.min() >= 10
    assert numbers.nunique() > 1  # else the tests below show nothing
    assert precise.table["warnings"].str.startswith("precision not reached").any() == (numbers.max() == 40)


@pytest.mark.slow
def test_energy_is_that_of_the_replications_which_all_policies_have(precise: Sweep):
    for point, frame in precise.table.groupby("point"):
        compared = hs.compare(
            SMALL, POLICIES, overrides={RATE: precise.points.loc[point, RATE]}, replications=UNTIL, metrics=["energy_j"]
        )
        expected = compared.table["energy_j"]
        of_policy = frame.set_index("policy")
        for policy in POLICIES:
            assert of_policy.loc[policy, "energy_j"] == pytest.approx(expected.loc[policy, "mean"], rel=1e-12)
            half = of_policy.loc[policy, "energy_j_ci_high"] - of_policy.loc[policy, "energy_j"]
            assert half == pytest.approx(expected.loc[policy, "half_width"], rel=1e-9)
        each = precise.by_replication[precise.by_replication["point"] == point]
        known = each[each["energy_j"].notna()]
        assert known.groupby("policy").size().tolist() == [frame["replications"].min()] * 2
        assert each["energy_tasks_j"].notna().all()


@pytest.mark.slow
def test_a_warm_up_is_that_of_compare():
    scenario = {**SMALL, "warmup": "auto"}
    found = sweep(scenario, OVER, policies=POLICIES, replications=12, check=True)
    for point, frame in found.table.groupby("point"):
        overrides = {RATE: found.points.loc[point, RATE]}
        compared = hs.compare(scenario, POLICIES, overrides=overrides, replications=12, metrics=["wait_mean"])
        first = compared.runs["fcfs"].results[0]
        assert frame["warmup_cut"].tolist() == [first.record.input.warmup] * 2
        for policy in POLICIES:
            row = frame.set_index("policy").loc[policy]
            runs = compared.runs[policy]
            assert row["wait_mean"] == pytest.approx(compared.table.loc[policy, ("wait_mean", "mean")], rel=1e-12)
            assert row["task_count"] == pytest.approx(runs.column("task_count").mean())
            near_half = [text for text in runs.warnings if "near the half" in text]
            assert ("near the half" in row["warnings"]) == bool(near_half)
    assert (found.table["warmup_cut"] > 0).any()
    assert found.table["warmup_cut"].nunique() > 1
    # A sweep of the time that was found has the same rows.
    row = rows(found)[-1]
    again = sweep({**SMALL, "warmup": f"{row['warmup_cut']!r} s"}, {RATE: ["2/s"]}, policies=["sjf"], replications=12)
    assert again.table["wait_mean"].tolist() == [row["wait_mean"]]
    assert "warmup_cut" not in again.table


@pytest.mark.slow
def test_both_together_are_those_of_compare():
    found = sweep(BOTH, {RATE: ["2/s"]}, policies=POLICIES)
    runs = hs.compare(BOTH, POLICIES).runs
    for row in rows(found):
        of_policy = runs[row["policy"]]
        assert row["replications"] == len(of_policy)
        assert row["wait_mean"] == pytest.approx(of_policy.interval("wait_mean").mean, rel=1e-12)
        assert row["warmup_cut"] == of_policy.results[0].record.input.warmup


def test_points_with_a_warm_up_of_their_own():
    found = sweep(SMALL, {"warmup": ["auto", "10 s"]}, replications=6)
    cuts = found.table["warmup_cut"].tolist()
    assert cuts[1] == 10.0
    assert cuts[0] == hs.replicate({**SMALL, "warmup": "auto"}, replications=6).results[0].record.input.warmup
    assert found.points["warmup"].tolist() == ["auto", "10 s"]


@pytest.mark.slow
def test_equal_rows_are_run_once(monkeypatch):
    made = []
    real = work.outcome_of
    monkeypatch.setattr(work, "outcome_of", lambda *given: made.append(given) or real(*given))
    found = sweep(BOTH, {RATE: ["2/s"]}, policies={"one": "fcfs", "two": "fcfs"})
    assert found.table["replications"].tolist() == [len(made) - PILOT] * 2
    assert found.table["wait_mean"].nunique() == 1


def test_nothing_random_ends_after_ten():
    still = {**SMALL["workload"][0], "arrivals": {"process": "deterministic", "rate": "1/s"}, "gpu_time": "900 ms"}
    found = sweep({**SMALL, "workload": [still]}, {GPUS: [1]}, replications={**UNTIL, "metric": "response_mean"})
    assert found.table["replications"].tolist() == [10]
    assert "precision undefined:" in found.table["warnings"][0]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replications": 4, "overrides": {"warmup": "auto"}}, "at least 5 replications, since it"),
        ({"replications": {"precision": "5%"}}, "replications: metric: Field required"),
        ({"replications": {**UNTIL, "precision": "2 s"}}, "replications: precision"),
        ({"replications": {**UNTIL, "max": 100_000}, "over": {"seed": list(range(20))}}, "up to 100,000 replications"),
    ],
)
def test_wrong_calls_are_told(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        sweep(SMALL, **{"over": OVER, **given})


# Whoever makes the runs -----------------------------------------------------------------------------------------------


class Backwards(Executor):
    """Makes nothing until it has three jobs or is asked for one, then the last first."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future, Any, tuple[Any, ...]]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future:
        future: Future = Future()
        self.jobs.append((future, function, arguments))
        if len(self.jobs) >= 3:
            future, function, arguments = self.jobs.pop()
            if future.set_running_or_notify_cancel():
                future.set_result(function(*arguments))
        elif not self.jobs[:-1]:
            self.jobs.pop()
            future.set_result(function(*arguments))
        return future


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_who_makes_the_runs(alone, tmp_path):
    given: dict[str, Any] = {"policies": POLICIES}
    table = alone[0].table
    sweep(BOTH, OVER, out=tmp_path / "two", workers=2, **given)
    with ThreadPoolExecutor(7) as pool:
        sweep(BOTH, OVER, out=tmp_path / "threads", executor=pool, workers=7, **given)
    expected = files(alone[1])
    for other in ("two", "threads"):
        assert files(tmp_path / other) == expected
    kept = stored_runs(alone[1])
    assert len(kept) == len(table) + table["replications"].sum()  # a cut a row, and its replications: no more


@pytest.mark.slow
def test_runs_that_end_in_another_order_are_counted_in_theirs(alone):
    other = sweep(BOTH, OVER, policies=POLICIES, executor=Backwards(), workers=1)
    pd.testing.assert_frame_equal(other.table, alone[0].table, check_exact=True)


@pytest.mark.slow
def test_what_was_made_ahead_and_is_not_needed_is_forgotten(tmp_path, monkeypatch):
    made = []
    real = work.outcome_of
    monkeypatch.setattr(work, "outcome_of", lambda *given: made.append(given[2].replication) or real(*given))
    given: dict[str, Any] = {"over": {RATE: ["1.5/s"]}, "replications": UNTIL}
    with ThreadPoolExecutor(8) as pool:
        found = sweep(SMALL, **given, executor=pool, workers=8, out=tmp_path / "s")
    number = found.table["replications"][0]
    assert 10 < number < 40
    assert sorted(set(made))[:number] == list(range(number))
    assert len(made) == len(set(made)) < 2 * number + 8
    assert len(stored_runs(tmp_path / "s")) == number


def test_idle_workers_get_what_is_likely_to_be_needed():
    """The values ± 1 have a mean of 10: after ten the half-width is 7.5 %, so that 5 % would take 23."""
    amount = Amount(40, 0.05, "x")
    study = Study(Setup((load(SMALL),)), Workers())
    case = Case(study.setup.scenarios[0])
    series = Replicates(case, amount.first, most=40, rule=amount.rule(study), runs=Replications())
    study._source = iter([series])

    def land(place: tuple[Replicates, int]) -> int:
        study._land(*place, RunOutcome({"replication": float(place[1]), "x": 10.0 + (-1) ** place[1]}))
        return len(series.taken)

    first = [study._next() for _ in range(10)]
    assert [place[1] for place in first if place is not None] == list(range(10))
    assert study._next() is study._ahead() is None
    for place in reversed(first):
        assert place is not None
        assert land(place) == (10 if place[1] == 0 else 0)  # they count in their order
    tenth = study._next()
    assert tenth is not None
    assert study._next() is None  # what more is needed is not known yet
    ahead = []
    while (place := study._ahead()) is not None:
        ahead.append(place)
    assert [number for _, number in ahead] == list(range(11, 20))  # never more than as many again
    assert [land(place) for place in ahead] == [10] * 9
    assert land(tenth) == 19
    assert (series.done, study._open) == (True, {})  # 4.92 %; the twentieth is forgotten


# On disk --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_run_is_not_run_again(alone, tmp_path, monkeypatch):
    first = alone[0]
    shutil.copytree(alone[1], tmp_path / "s")
    before = files(tmp_path)
    monkeypatch.setattr(work, "outcome_of", no_run)
    again = sweep(BOTH, OVER, policies=POLICIES, out=tmp_path / "s", resume=True, workers=2)
    for found in (again, Sweep.load(tmp_path / "s")):
        pd.testing.assert_frame_equal(found.table, first.table, check_exact=True)
        assert found.replications == first.replications
        assert found.shown() == first.shown()
    assert files(tmp_path) == before
    looser = {**UNTIL, "precision": "35%"}
    found = sweep(BOTH, OVER, policies=POLICIES, replications=looser, cache=tmp_path / "s" / "runs")
    assert found.table["replications"].sum() < first.table["replications"].sum()
    with pytest.raises(UsageError, match="differs in the number of replications"):
        sweep(BOTH, OVER, policies=POLICIES, replications=looser, out=tmp_path / "s")
    with pytest.raises(Made):
        sweep(BOTH, OVER, policies=POLICIES, replications={**UNTIL, "precision": "10%"}, cache=tmp_path / "s" / "runs")


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on_and_gives_the_same_bytes(alone, tmp_path, monkeypatch):
    given: dict[str, Any] = {"policies": POLICIES}
    whole = alone[0]
    written = len(whole) + whole.table["replications"].sum()
    put = store.Store.put
    out = tmp_path / "stopped"
    for stop in (1, 3, 1, 9, 20, 21):  # counted from where the one before was stopped
        left = [stop]

        def stopping(place: Any, *given: Any, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            put(place, *given)

        monkeypatch.setattr(store.Store, "put", stopping)
        with pytest.raises(KeyboardInterrupt):
            sweep(BOTH, OVER, out=out, **given)
        monkeypatch.setattr(store.Store, "put", put)
    assert len(stored_runs(out)) == 55 < written
    sweep(BOTH, OVER, out=out, resume=True, **given)
    assert files(out) == files(alone[1])


SCRIPT = """
import sys
from hetsim.cli import main
sys.argv[0] = "hetsim"
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_and_gives_the_same_bytes(alone, tmp_path):
    workers = 2
    (tmp_path / "s.yaml").write_text(json.dumps(BOTH))
    (tmp_path / "main.py").write_text(SCRIPT)
    arguments = [
        sys.executable, str(tmp_path / "main.py"), "sweep", str(tmp_path / "s.yaml"), "--over", f"{RATE}=1.5/s,2/s",
        "--policy", "fcfs", "--policy", "sjf", "--workers", str(workers), "-q",
    ]  # fmt: skip
    quietly: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": pages.SOURCES}, "stdout": subprocess.DEVNULL}
    subprocess.run([*arguments, "--out", str(tmp_path / "whole")], check=True, **quietly)
    out = tmp_path / "killed"
    kills = 0
    for wanted in (1, 5, 30, 45):  # finished runs, cuts among them, at which it is killed
        more = ["--resume"] if (out / MARK).is_file() else []
        started = subprocess.Popen([*arguments, "--out", str(out), *more], start_new_session=True, **quietly)
        while started.poll() is None and len(stored_runs(out)) < wanted:
            time.sleep(0.002)
        if started.poll() is None:
            kills += 1
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    assert kills == 4, "it ended before it could be killed"
    assert not (out / "table.parquet").exists()
    subprocess.run([*arguments, "--out", str(out), "--resume"], check=True, **quietly)
    assert files(out) == files(tmp_path / "whole")


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_policy_that_fails_is_a_row_and_the_others_go_on(tmp_path):
    given: dict[str, Any] = {"over": {GPUS: [2, 3]}, "policies": [Odd, "fcfs"]}
    found = sweep(BOTH, out=tmp_path / "s", **given)
    table = found.table.set_index([GPUS, "policy"])
    assert (table["status"] == "failed").tolist() == [False, False, True, False]
    failed = table.loc[(3, "Odd")]
    assert failed["error"].startswith("replication 0, in the pilot that finds the warm-up: policy")
    assert failed["replications"] == 0
    assert np.isnan(failed["warmup_cut"])
    alone = sweep(BOTH, {GPUS: [3]}, policies=["fcfs"]).table.iloc[0]
    for name in ("wait_mean", "energy_j", "warmup_cut", "replications"):
        assert table.loc[(3, "fcfs"), name] == alone[name]
    plain = sweep(SMALL, replications=UNTIL, **given).table.set_index([GPUS, "policy"]).loc[(3, "Odd")]
    assert (plain["status"], plain["replications"]) == ("failed", 10)
    sweep(BOTH, out=tmp_path / "two", workers=2, **given)
    assert files(tmp_path / "two") == files(tmp_path / "s")
    nobody = sweep(BOTH, {GPUS: [3]}, policies=[Odd])
    assert nobody.table["status"].tolist() == ["failed"]
    assert len(nobody.by_replication) == 0


@pytest.mark.slow
def test_after_a_replication_that_fails_there_are_no_more(tmp_path):
    thirteenth = hs.replicate(SMALL, replications=13, keep=True).results[12]
    policy = {"late": {"name": "late", "first": float(thirteenth.tasks["arrival"].iloc[0])}}
    registry.register("late", Late)
    given: dict[str, Any] = {"over": {RATE: ["2/s"]}, "policies": policy, "replications": {**UNTIL, "precision": "1%"}}
    found = sweep(SMALL, out=tmp_path / "one", **given)
    (row,) = rows(found)
    assert (row["status"], row["replications"]) == ("failed", 13)
    assert row["error"].startswith("replication 12: policy")
    assert found.by_replication["status"].tolist() == ["done"] * 12 + ["failed"]
    with ThreadPoolExecutor(5) as pool:
        sweep(SMALL, out=tmp_path / "five", executor=pool, workers=5, **given)
    assert files(tmp_path / "five") == files(tmp_path / "one")


@pytest.mark.slow
def test_a_pilot_that_was_lost_fails_its_point_for_now_only(tmp_path, monkeypatch):
    real = work.outcome_of

    def lost(setup: Any, scenario: Any, job: Any, *more: Any) -> Any:
        if scenario.policies.label == "sjf" and job.replication == 2:
            raise OSError("the disk is full")
        return real(setup, scenario, job, *more)

    given: dict[str, Any] = {"over": {RATE: ["2/s"]}, "policies": POLICIES, "out": tmp_path / "s"}
    monkeypatch.setattr(work, "outcome_of", lost)
    found = sweep(BOTH, **given)
    assert found.table["status"].tolist() == ["failed", "failed"]
    assert found.table["error"][0].startswith("the warm-up of the point cannot be found: replication 2")
    monkeypatch.setattr(work, "outcome_of", real)
    again = sweep(BOTH, **given)
    assert again.table["status"].tolist() == ["done", "done"]
    sweep(BOTH, **{**given, "out": tmp_path / "whole"})
    assert files(tmp_path / "s") == files(tmp_path / "whole")


# How it is shown ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_number_of_replications_is_shown(precise: Sweep):
    fewest, most = precise.table["replications"].min(), precise.table["replications"].max()
    points = "2 points" if tiers.whole else "1 point"
    assert precise.title == f"small: {points} × 2 policies, {fewest} to {most} replications each, seed 3"
    titles, shown = precise.shown()
    assert titles[:5] == ["point", RATE, "policy", "replications", "wait mean"]
    assert [row[3] for row in shown] == precise.table["replications"].astype(str).tolist()
    found = precise.to_json()["rows"][0]
    assert found["replications"] == precise.table["replications"][0]
    assert precise.remarks == [
        "replications: each row is repeated until the 95 % interval of its wait mean is within ± 25 % of the "
        "mean, 10 to 40 "
        "replications"
    ]


@pytest.mark.slow
def test_a_dry_run_says_that_it_is_a_lower_bound(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(BOTH))
    arguments = ["sweep", "s.yaml", "--over", f"{RATE}=1.5/s,2/s", "--policy", "fcfs", "--workers", "1", "--out", "o"]
    done = call(*arguments, "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert f"at least {2 * PILOT + 20} runs to make: about" in done.stdout
    assert "a lower bound" in done.stdout
    assert "10 to 40 replications each" in done.stdout
    told = json.loads(call(*arguments, "--dry-run", "--json").stdout)
    assert (told["runs"], told["lower_bound"]) == (2 * PILOT + 20, True)
    assert told["replications"] == {"precision": 0.25, "metric": "wait_mean", "max": 40, "confidence": 0.95}
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
    assert call(*arguments).exit_code == 0
    told = json.loads(call(*arguments, "--dry-run", "--json").stdout)
    assert (told["runs"], told["lower_bound"]) == (0, False)
    fixed = call(*arguments[:-2], "--replications", "7", "--dry-run").stdout
    assert f"\n{2 * 7 + 2 * 7} runs to make" in fixed
    assert "bound" not in fixed


@pytest.mark.slow
def test_the_command_shows_it_and_a_report_says_how_to_make_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(SMALL))
    done = call(
        "sweep", "s.yaml", "--over", f"{RATE}=2/s", "--policy", "fcfs", "--policy", "sjf", "--workers", "1",
        "--set", "replications={precision: 25%, metric: wait_mean, max: 40}", "--set", "warmup=auto", "--out", "o",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "replications" in done.stdout
    assert "MSER-5" in done.stdout
    page = report(hs.load("o"), "o")
    assert "--set &#x27;replications={precision: 0.25, metric: wait_mean, max: 40, confidence: 0.95}&#x27;" in page


@pytest.mark.slow
def test_progress_grows_to_its_end():
    told: list[float] = []
    over = {RATE: ["1.5/s", "2/s"], "seed": [1, 2]}
    sweep(BOTH, over, overrides={"workload.a.count": 400}, progress=told.append)
    assert told
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_plan_makes_no_run(monkeypatch):
    monkeypatch.setattr(work, "outcome_of", no_run)
    plan = plan_sweep(BOTH, OVER, policies=POLICIES)
    assert plan.replications == {"precision": 0.25, "metric": "wait_mean", "max": 40, "confidence": 0.95}
    assert plan.max_runs == 4 * (40 + PILOT)
