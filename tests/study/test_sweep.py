"""Sweeps: the table is that of single runs, whoever makes them, however often the sweep was killed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pages
import pandas as pd
import pytest
from click.testing import CliRunner
from interrupts import heeds_interrupts
from saved_runs import unpacked
from stored import stored_runs
from tiers import some, spread
from yaml import safe_load

import hetsim as hs
from hetsim import registry
from hetsim.cli import hetsim
from hetsim.errors import DamageWarning, ScenarioError, UnknownName, UsageError
from hetsim.experiment import identity, precision, study, work
from hetsim.experiment import sweep as sweeps
from hetsim.experiment.points import MAX_ROWS, column_of, parse_over, rows
from hetsim.experiment.shard import ShardOver
from hetsim.experiment.sweep import plan_sweep, sweep
from hetsim.experiment.work import Packed, RunOutcome
from hetsim.experiment.workers import DaskCluster
from hetsim.policy import ListScheduler, Scheduler
from hetsim.results.many_runs.point_differences import differences
from hetsim.results.many_runs.sweep import FACTS, Sweep
from hetsim.results.many_runs.sweep_tables import SweepRow, SweepTables
from hetsim.results.stored_files import sealed, unsealed
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.sweep import read_range

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "cluster": {"nodes": [{"cpus": 4, "gpus": {"type": "k20", "count": 2}}]},
    "workload": [
        {
            "name": "a",
            "arrivals": {"process": "poisson", "rate": "2/s"},
            "count": 40,
            "gpu_time": {"distribution": "exponential", "mean": "900 ms"},
        }
    ],
    "policy": "fcfs",
}
RATE = "workload.a.arrivals.rate"
GPUS = "cluster.nodes.0.gpus.count"
OVER: dict[str, Any] = {RATE: ["1/s", "2/s"], GPUS: [2, 3]}
ROOT = Path(__file__).parents[2]


class Odd(ListScheduler):
    """Fails where there are three GPUs."""

    def schedule(self, view):
        if view.free("k20") == 3:
            raise ValueError("three GPUs are too many")
        yield from super().schedule(view)

    def __init__(self) -> None:
        super().__init__(order=lambda task: task.arrival)


class Deadly(ListScheduler):
    """Kills its process where there are three GPUs; with a file, only if that is not there yet."""

    identity = "deadly: the file decides no figure"

    def __init__(self, once: str = "") -> None:
        super().__init__(order=lambda task: task.arrival)
        self.once = once

    def schedule(self, view):
        mark = Path(f"{self.once}.mark")  # no input: a file that the scenario names is one
        if view.free("k20") == 3 and not (self.once and mark.exists()):
            if self.once:
                mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().schedule(view)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(hetsim, list(arguments), prog_name="hetsim")


def files(folder: Path) -> dict[str, bytes]:
    """Contents of a folder's files by their names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Made(BaseException):
    """A run that was there already; no Exception, which would become a row."""


def no_run(*_: Any) -> None:
    raise Made


# The table ----------------------------------------------------------------------------------------------------------


def test_every_row_is_the_run_of_its_point():
    found = sweep(SMALL, OVER, policies=["fcfs", "sjf"], metrics=["jain"], check=True)
    assert len(found.table) == 8
    assert found.keys == [RATE, GPUS]
    for row in found.table.to_dict("records"):
        values = {RATE: f"{row[RATE]:g}/s", GPUS: row[GPUS]}
        result = hs.run(SMALL, policy=row["policy"], overrides=values)
        for name, value in {**result.values(), **result.values(["jain"])}.items():
            if not name.startswith("energy"):  # taken to the common end of both policies
                assert row[name] == value or (np.isnan(row[name]) and np.isnan(value)), name
        assert (row["status"], row["error"], row["seed"], row["replications"]) == ("done", "", 3, 1)


def test_replications_are_those_of_run_and_common_to_all_policies():
    found = sweep(SMALL, {RATE: ["1/s", "2/s"]}, policies=["fcfs", "sjf"], replications=4)
    runs = hs.replicate(SMALL, policy="sjf", replications=4)
    one = found.table[(found.table[RATE] == 2.0) & (found.table["policy"] == "sjf")].iloc[0]
    interval = runs.interval("wait_mean")
    assert one["wait_mean"] == pytest.approx(interval.mean, rel=1e-12)
    assert one["wait_mean_ci_low"] == pytest.approx(interval.low, rel=1e-12)
    assert one["wait_mean_ci_high"] == pytest.approx(interval.high, rel=1e-12)
    each = found.by_replication
    assert len(each) == 16
    mine = each[(each[RATE] == 2.0) & (each["policy"] == "sjf")]
    assert mine["wait_mean"].tolist() == runs.column("wait_mean").tolist()
    # Common random numbers: under either policy the same work came.
    work = each.pivot(index=[RATE, "replication"], columns="policy", values="energy_tasks_j")
    assert (each.groupby([RATE, "replication"])["task_count"].nunique() == 1).all()
    assert work.shape == (8, 2)


def test_columns_are_tidy():
    found = sweep(SMALL, {"horizon": ["1 min", "90 s"], "policy.scheduler.discipline": ["block", "skip"]})
    assert found.table["horizon"].tolist() == [60.0, 60.0, 90.0, 90.0]
    assert found.points["horizon"].tolist() == ["1 min", "1 min", "90 s", "90 s"]
    assert found.table["policy.scheduler.discipline"].tolist() == ["block", "skip"] * 2
    assert found.table["policy"].tolist() == ["fcfs (discipline: block)", "fcfs (discipline: skip)"] * 2
    assert found.table["point"].tolist() == [0, 1, 2, 3]
    metrics = [name for name in found.table if name not in (*FACTS, *found.keys)]
    assert (found.table[metrics].dtypes == np.float64).all()


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1, 2], [1, 2]),
        ([1, 2.5], [1.0, 2.5]),
        (["5 ms", "1 min", 0], [0.005, 60.0, 0.0]),
        (["5 ms", "1 GB"], ["5 ms", "1 GB"]),
        (["10%", "20%"], [0.1, 0.2]),
        ([True, False], [True, False]),
        ([None, 3], ["null", "3"]),
        (["fcfs", {"name": "sjf", "discipline": "skip"}], ["fcfs", "sjf (discipline: skip)"]),
        ([[1, 2], [3]], ["[1, 2]", "[3]"]),
    ],
)
def test_values_as_columns(values: list[Any], column: list[Any]):
    assert column_of(values) == column


def test_seeds_and_traces_can_be_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("short", 1), ("long", 5)):
        rows_ = "".join(f"{task},{task},{seconds}\n" for task in range(6))
        (tmp_path / f"{name}.csv").write_text(f"id,arrival,cpu_time\n{rows_}")
    scenario = {
        "cluster": {"nodes": {"cpus": 1}},
        "workload": [{"name": "t", "trace": {"format": "tasks", "path": "short.csv"}}],
    }
    found = sweep(scenario, {"workload.t.trace.path": ["short.csv", "long.csv"]}, replications=2)
    assert found.table["makespan"].tolist() == [6.0, 30.0]
    assert found.table["makespan_ci_low"].isna().all()  # nothing is random
    seeds = sweep(SMALL, {"seed": [1, 2]})
    assert seeds.table["wait_mean"].tolist() == [hs.run(SMALL, seed=seed).metric("wait_mean") for seed in (1, 2)]
    large = sweep(SMALL, {"seed": [1 << 127, 5]}, out=tmp_path / "large")
    assert large.table["seed"].tolist() == [str(1 << 127), "5"]
    assert large.table["wait_mean"].iloc[0] == hs.run(SMALL, seed=1 << 127).metric("wait_mean")


def test_energy_is_over_one_common_window():
    scenario = json.loads(json.dumps(SMALL))
    scenario["cluster"]["nodes"][0]["gpus"]["power"] = {"idle": "40 W", "busy": "300 W"}
    found = sweep(scenario, policies=["fcfs", "lcfs"], over={})
    both = hs.compare(scenario, ["fcfs", "lcfs"], metrics=["energy_j"])
    assert found.table["energy_j"].tolist() == pytest.approx(both.table["energy_j", "mean"].tolist(), rel=1e-12)


def test_a_metric_that_one_replication_lacks_is_missing():
    found = sweep({**SMALL, "horizon": "16 s"}, {RATE: ["2/s"]}, replications=8)
    each = found.by_replication["makespan"]
    assert each.isna().any()
    assert each.notna().any()
    assert found.table["makespan"].isna().all()
    assert "unfinished" in found.table["warnings"].iloc[0]


# Points -------------------------------------------------------------------------------------------------------------


def test_the_scenarios_own_sweep_is_run():
    scenario = {**SMALL, "sweep": {RATE: ["1/s", "2/s"], "policy": ["fcfs", "sjf"]}}
    assert sweep(scenario).title == "small: 2 points × 2 policies, seed 3"
    ranged = {**SMALL, "sweep": {GPUS: {"low": 1, "high": 4, "integer": True, "steps": 4}}}
    assert sweep(ranged).table[GPUS].tolist() == [1, 2, 3, 4]
    with pytest.raises(ScenarioError, match="low must be below high; got 4 to 1"):
        load({**SMALL, "sweep": {GPUS: {"low": 4, "high": 1}}})


@pytest.mark.parametrize("sample", ["random", "latin_hypercube", "sobol"])
def test_a_sample_has_as_many_points_as_were_asked_for(sample: str):
    """Powers of two and what lies between; the points of Sobol's sequence begin with those of a shorter one."""
    sizes = {n: rows(load(SMALL), over={RATE: "1/s..100/s"}, sample=sample, n=n)[1] for n in (1, 2, 3, 5, 8, 9)}
    for n, points in sizes.items():
        assert len(points) == n and len({row.values[RATE] for row in points}) == n
    if sample == "sobol":
        assert [row.values for row in sizes[9]][:5] == [row.values for row in sizes[5]]


@pytest.mark.parametrize("sample", ["random", "latin_hypercube", "sobol"])
def test_samples_fill_their_ranges(sample: str):
    base = load(SMALL)
    over = {RATE: "1/s..100/s log", GPUS: "1..4 integer", "policy.scheduler.discipline": ["block", "skip"]}
    keys, found = rows(base, over=over, sample=sample, n=64)
    rates = np.array([float(row.values[RATE].removesuffix("/s")) for row in found])
    gpus = [row.values[GPUS] for row in found]
    assert keys == list(over)
    assert 1 <= rates.min() < 2 < 50 < rates.max() <= 100
    assert 20 < np.count_nonzero(rates < 10) < 44  # half of a log scale
    assert sorted(set(gpus)) == [1, 2, 3, 4]
    assert [row.values for row in rows(base, over=over, sample=sample, n=64)[1]] == [row.values for row in found]
    other = rows(base, over=over, sample=sample, n=64, sample_seed=1)[1]
    assert [row.values for row in other] != [row.values for row in found]
    if sample != "random":
        assert np.bincount(gpus).tolist() == [0, 16, 16, 16, 16]  # stratified


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1..8 integer 4", [1, 3, 6, 8]),
        ("10/s..1000/s log 3", ["10.0/s", "100.0/s", "1000.0/s"]),
        ("10 ms..1 s 2", ["0.01 s", "1.0 s"]),
        ("0..10 s 3", ["0.0 s", "5.0 s", "10.0 s"]),
        ("1 GB..3 GB integer 3", ["1 GB", "2 GB", "3 GB"]),
        ("1..1000 log integer 4", [1, 10, 100, 1000]),
    ],
)
def test_ranges_as_grids(text: str, values: list[Any]):
    assert read_range(text).grid() == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8..1", "low must be below high"),
        ("3..3", "low must be below high"),
        ("0..1 log", "a log scale must start above 0"),
        ("-1 s..1 s log", "a log scale must start above 0"),
        ("1 s..1 GB", "got 1 s and 1 GB"),
        ("1..b", "the ends of a range must be numbers"),
        ("0.5..3 integer", "both ends of an integer range must be whole numbers; got"),
        ("1..8 0", "steps: must be a whole number from 1"),
    ],
)
def test_bad_ranges(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        read_range(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=8,16", [8, 16]),
        ("k=[8, 16]", [8, 16]),
        ("k=10/s", ["10/s"]),
        ("k=[[0 s, 1/s], [9 s, 2/s]]", [["0 s", "1/s"], ["9 s", "2/s"]]),
        ("k=[0 s, 1/s], [9 s, 2/s]", [["0 s", "1/s"], ["9 s", "2/s"]]),
        ("k=fcfs, {name: sjf, discipline: skip}", ["fcfs", {"name": "sjf", "discipline": "skip"}]),
        ("k=1..8 integer", "1..8 integer"),
        ("k={low: 1, high: 8}", {"low": 1, "high": 8}),
    ],
)
def test_values_on_the_command_line(text: str, values: Any):
    assert parse_over(text) == ("k", values)


def test_points_are_given_as_a_list_or_a_table(tmp_path):
    points = [{RATE: "1/s", GPUS: 2}, {RATE: "3/s", GPUS: 4}]
    found = sweep(SMALL, points=points)
    assert found.table[RATE].tolist() == [1.0, 3.0]
    (tmp_path / "p.csv").write_text(f"{RATE},{GPUS}\n1/s,2\n3/s,4\n")
    (tmp_path / "s.yaml").write_text(json.dumps(SMALL))
    done = call("sweep", str(tmp_path / "s.yaml"), "--points", str(tmp_path / "p.csv"), "--workers", "1", "--json")
    assert json.loads(done.stdout)["rows"] == json.loads(json.dumps(found.to_json()["rows"]))


def test_points_may_name_their_policies():
    points = [{GPUS: 2, "policy": "fcfs"}, {GPUS: 3, "policy": "sjf+best_fit"}, {GPUS: 2, "policy": {"name": "sjf"}}]
    found = sweep(SMALL, points=points)
    assert found.keys == [GPUS]
    assert found.table[["point", GPUS, "policy"]].values.tolist() == [
        [0, 2, "fcfs"], [1, 3, "sjf + best_fit"], [0, 2, "sjf"]
    ]  # fmt: skip
    with pytest.raises(UsageError, match="policies must be given once"):
        sweep(SMALL, points=points, policies=["sjf"])


# Bad input ----------------------------------------------------------------------------------------------------------


def test_all_points_are_checked_before_the_first_runs(monkeypatch):
    monkeypatch.setattr(work, "outcome_of", no_run)
    with pytest.raises(ScenarioError) as caught:
        sweep(SMALL, {RATE: ["1/s", "5", "-2/s"], GPUS: [1, 2]})
    first, second = map(str, caught.value.problems)
    assert first.startswith(f"point 2 ({RATE}=5, {GPUS}=1) and 1 more: workload.0.arrivals.rate: ")
    assert first.endswith('"5" has no unit; write 5/s (or per minute: 5/min)')
    assert second.startswith(f"point 4 ({RATE}=-2/s, {GPUS}=1) and 1 more")


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"clustr.nodes.0.count": [1]}, 'there is no key "clustr" in a scenario; did you mean "cluster"'),
        ({"workload.b.count": [1]}, 'workload has no entry "b"'),
        ({"cluster.nodes.0.cout": [1, 2]}, 'every point, such as point 0 .*unknown key "cout"; did you mean "count"'),
        ({"replications": [1, 2]}, "cannot be swept"),
        ({"policy.scheduler.disciplin": ["skip"]}, 'no parameter "disciplin"; did you mean "discipline"'),
    ],
)
def test_keys_that_do_not_exist(over: dict[str, Any], said: str):
    with pytest.raises(ScenarioError, match=said):
        sweep(SMALL, over)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "nothing to sweep"),
        ({"over": {RATE: []}}, "workload.a.arrivals.rate must have at least one value to try"),
        ({"over": {RATE: "5/s"}}, "must be a list of values, or a range"),
        ({"over": {RATE: "9/s..1/s"}, "sample": "random", "n": 3}, "low must be below high"),
        ({"over": {RATE: "0/s..1/s log"}, "sample": "random", "n": 3}, "a log scale must start above 0"),
        ({"over": {RATE: "1/s..2/s"}}, "a range in a grid needs a step count"),
        ({"over": OVER, "sample": "sobl", "n": 4}, 'unknown sample "sobl"; did you mean "sobol"'),
        ({"over": OVER, "sample": "sobol"}, ", its number of points, which must be at least 1"),
        ({"over": OVER, "n": 4}, "n .* is for samples"),
        ({"over": OVER, "points": [{RATE: "1/s"}]}, "with points, over, sample and n must be left out"),
        ({"points": []}, "points must have at least one point"),
        ({"points": [{RATE: "1/s"}, {GPUS: 1}]}, "point 1 and point 0 have different keys"),
        ({"over": {"seed": [1, 2]}, "seed": 3}, "seeds must be given once: as the key seed, or as seed"),
        ({"over": OVER, "replications": 0}, "replications must be a whole number"),
        ({"over": OVER, "workers": 0}, "workers must be a whole number from 1"),
        ({"over": OVER, "resume": True}, "resume needs the directory of the sweep: give out"),
        ({"over": OVER, "workers": 2, "dask": "tcp://127.0.0.1:1"}, "with dask, workers and executor must be "
                                                                    "left out: the Dask cluster has"),
        ({"over": {**OVER, "policy": ["sjf"]}, "policies": ["fcfs"]}, "policies must be given once"),
        ({"over": OVER, "overrides": {"warmup": "auto"}}, "warmup: auto needs at least 5 replications"),
    ],
)
def test_wrong_calls_are_told(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        sweep(SMALL, **given)
    with pytest.raises(UnknownName, match="did you mean"):
        sweep(SMALL, OVER, metrics=["wait_men"])


def test_a_grid_of_a_billion_points_is_refused_with_its_count():
    over = {"seed": "0..999 integer 1000", "horizon": "1 s..9 s 1000", GPUS: "1..1000 integer 1000"}
    with pytest.raises(UsageError, match=f"at most {MAX_ROWS:,} points.*; got 1,000,000,000"):
        sweep(SMALL, over)
    with pytest.raises(UsageError, match="2,000,000 runs"):
        sweep(SMALL, {"seed": list(range(200))}, replications=10_000)


def test_rows_are_made_when_they_are_looked_at():
    """A million of them, in the order of a grid: the last key changes fastest, then the policies."""
    keys, found = rows(load(SMALL), over={"seed": range(500), GPUS: range(1, 1001)}, policies=["fcfs", "sjf"])
    assert (keys, len(found)) == (["seed", GPUS], 1_000_000)
    last = found[-1]
    assert (last.point, last.policy, last.values) == (499_999, "sjf", {"seed": 499, GPUS: 1000})
    few = [(row.point, row.policy, *row.values.values()) for row in found[:5]]
    assert few == [(0, "fcfs", 0, 1), (0, "sjf", 0, 1), (1, "fcfs", 0, 2), (1, "sjf", 0, 2), (2, "fcfs", 0, 3)]


@pytest.mark.parametrize(("over", "more"), [
    ({"seed": [3, 1, 2], GPUS: [1, 2], "horizon": ["1 s", "1 min"]}, {}),
    ({"seed": "1..9 integer", "horizon": ["1 s", None]}, {"sample": "random", "n": 7}),
    (None, {"points": [{"seed": 4, GPUS: 2}, {"seed": 4, GPUS: 1}, {"seed": 1, GPUS: 2}]}),
])  # fmt: skip
def test_a_column_has_the_values_of_the_rows(over: Any, more: dict[str, Any]):
    """Those of a grid are reckoned from its lists, without a look at each point."""
    policies = ["fcfs", "sjf"]
    keys, found = rows(load(SMALL), over=over, policies=policies, **more)
    plan = plan_sweep(SMALL, over, policies=policies, **more)
    for key in keys:
        values = [row.values[key] for row in found]
        assert plan._column(key) == column_of(values)
        assert [point[keys.index(key)] for point in plan.about["points"]] == values[:: len(policies)]


def test_points_that_name_their_policies_have_columns_too():
    points = [{"seed": 5, "policy": "fcfs"}, {"seed": 4, "policy": "fcfs"}, {"seed": 5, "policy": "sjf"}]
    plan = plan_sweep(SMALL, points=points)
    assert plan.about["points"] == [[5], [4]]
    assert plan._column("seed") == [5, 4, 5]
    assert plan_sweep(SMALL, policies=["fcfs", "sjf"]).about["points"] == [[]]


@pytest.mark.parametrize("changed", [
    {"seed": 2}, {"policy": "fcfs"}, {"policy.scheduler.name": "fcfs"}, {"policy.placement": "best_fit"},
    {"0.policy": "sjf"}, {"workload.a.service.batching": "greedy"},
    {"policy": {"scheduler": "sjf", "admission": "all"}},
])  # fmt: skip
def test_a_point_has_the_policies_of_the_scenario_that_is_loaded_with_its_values(changed: dict[str, Any]):
    """They are taken from the base where the values leave them as they are."""
    for policy in ("sjf", {"scheduler": {"name": "easy_backfill", "placement": "best_fit"}}):
        base = {**SMALL, "policy": policy}
        made, said = [], []
        for make in (lambda one=base: load(one).with_overrides(changed), lambda one=base: load(one, changed)):
            try:
                made.append(make().policies)
            except ScenarioError as error:
                said.append(str(error))
        assert made == made[::-1]
        assert said == said[::-1]
        assert len(made) + len(said) == 2


def test_rows_with_the_same_first_half_of_a_digest_are_told_apart():
    checked = sweeps.Checked()
    for run in ("aa" * 32, "aa" * 16 + "bb" * 16, "cc" * 32, "aa" * 32):
        checked.add("fcfs", scenario="00" * 32, run=run, seed=1, warmup=0.0)
    assert checked.same.tolist() == [0, 1, 2, 0]


@pytest.mark.slow
def test_a_planned_point_holds_no_object():
    base = load(SMALL)
    plan_sweep(base, {"seed": range(10)})
    gc.collect()
    before = len(gc.get_objects())
    plan = plan_sweep(base, {"seed": range(120)})
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert len(plan.checked) == 120


def test_numbers_of_a_finished_run_are_packed():
    values = {"wait_mean": 2.5, "makespan": math.nan, "completed_count": 3.0}
    packed = RunOutcome(values, ["slow"]).packed()
    assert isinstance(packed.values, Packed)
    assert list(packed.values) == list(values)
    assert [repr(value) for value in packed.values.values()] == ["2.5", "nan", "3.0"]
    assert packed.values.get("no", 7.0) == 7.0
    assert packed.packed() is packed
    assert RunOutcome(None, error="failed").packed().values is None
    again = pickle.loads(pickle.dumps(packed))
    assert dict(again.values)["wait_mean"] == 2.5


# On disk ------------------------------------------------------------------------------------------------------------


def test_what_was_run_is_not_run_again(tmp_path, monkeypatch):
    given: dict[str, Any] = {"policies": ["fcfs", "sjf"], "replications": 2, "out": tmp_path / "s"}
    first = sweep(SMALL, OVER, **given)
    before = files(tmp_path)
    monkeypatch.setattr(work, "outcome_of", no_run)
    again = sweep(SMALL, OVER, **given)
    resumed = sweep(SMALL, OVER, resume=True, **given)
    for found in (again, resumed, hs.Sweep.load(tmp_path / "s")):
        pd.testing.assert_frame_equal(found.table, first.table, check_exact=True)
        pd.testing.assert_frame_equal(found.by_replication, first.by_replication, check_exact=True)
        assert repr(found) == repr(first)
    assert files(tmp_path) == before
    assert [name for name in before if "runs/" in name and not name.endswith(".runs")] == []
    assert len(stored_runs(tmp_path / "s")) == 16
    with pytest.raises(Made):
        sweep(SMALL, OVER, fresh=True, **given)


def test_equal_points_are_run_once(monkeypatch):
    made = []
    real = work.outcome_of
    monkeypatch.setattr(work, "outcome_of", lambda *given: made.append(given) or real(*given))
    found = sweep(SMALL, points=[{GPUS: 2}, {GPUS: 3}, {GPUS: 2}])
    assert len(made) == 2
    assert found.table["wait_mean"].iloc[0] == found.table["wait_mean"].iloc[2]


def test_a_cache_is_shared_between_sweeps(tmp_path, monkeypatch):
    sweep(SMALL, {GPUS: [2, 3]}, replications=2, out=tmp_path / "one", cache=tmp_path / "cache")
    assert not (tmp_path / "one" / "runs").exists()
    sweep(SMALL, {GPUS: [2, 3, 4]}, replications=3, cache=tmp_path / "cache")
    monkeypatch.setattr(work, "outcome_of", no_run)
    sweep(SMALL, {GPUS: [4, 3]}, replications=2, cache=tmp_path / "cache")
    with pytest.raises(Made):  # a metric that those runs did not keep
        sweep(SMALL, {GPUS: [4]}, metrics=["jain"], cache=tmp_path / "cache")


def hash_of(scenario: dict[str, Any], base: Path = Path(), **overrides: Any) -> str:
    from hetsim.scenario.scenario import load as load_at

    return identity.Identity().scenario(load_at(scenario, overrides, base=base))


def test_the_hash_covers_what_decides_a_run(tmp_path, monkeypatch):
    first = hash_of(SMALL)
    assert hash_of({**SMALL, "name": "other", "description": "x", "sweep": {GPUS: [1]}, "replications": 9}) == first
    assert hash_of({**SMALL, "horizon": "5 s"}) != first
    assert hash_of({**SMALL, "policy": "sjf"}) != first
    hashes = identity.Identity()
    assert hashes.run(first, 1, 0) != hashes.run(first, 0, 1)
    assert identity.Identity(check=True).scenario(load(SMALL)) != first
    monkeypatch.setattr(identity, "fingerprint", lambda: {"numpy": "0.1"})
    assert hash_of(SMALL) != first


def test_the_hash_covers_files_and_the_code_of_policies(tmp_path, monkeypatch):
    trace = {"cluster": {"nodes": {"cpus": 1}}, "workload": {"trace": {"format": "tasks", "path": "t.csv"}}}
    seen = set()
    for seconds in (1, 2):
        (tmp_path / "t.csv").write_text(f"id,cpu_time\n0,{seconds}\n")
        seen.add(hash_of(trace, tmp_path))
    assert len(seen) == 2
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, key in enumerate(("task.arrival", "-task.arrival")):
        (tmp_path / f"mine{number}.py").write_text(f"def mine(task):\n    return {key}\n")
        registry.register("mine", __import__(f"mine{number}").mine)
        seen.add(hash_of({**SMALL, "policy": "mine"}))
    assert len(seen) == 4


def test_a_run_that_is_not_whole_is_made_again(tmp_path, monkeypatch):
    found = sweep(SMALL, {GPUS: [2, 3]}, out=tmp_path / "s")
    before = files(tmp_path)
    (segment,) = (tmp_path / "s" / "runs").iterdir()
    whole, made = segment.read_bytes(), []
    real = work.outcome_of
    monkeypatch.setattr(work, "outcome_of", lambda *given: made.append(given) or real(*given))
    for torn in (whole[:-40], whole[:60]):  # the last run, and all of them
        segment.write_bytes(torn)
        (tmp_path / "s" / ".hetsim-left").write_text("x")
        with pytest.warns(DamageWarning, match=r"1, such as .*\.runs; the lost runs were simulated again"):
            again = sweep(SMALL, {GPUS: [2, 3]}, out=tmp_path / "s")
        pd.testing.assert_frame_equal(again.table, found.table, check_exact=True)
        assert files(tmp_path) == before
    assert len(made) == 1 + 2


def test_a_directory_of_something_else_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, said in (("mine", "not the directory of a sweep"), ("file", "got a file, which was not "
                                                                            "changed"), ("file/x", "cannot be")):
        with pytest.raises(UsageError, match=said):
            sweep(SMALL, OVER, out=tmp_path / target, fresh=True)
    with pytest.raises(UsageError, match="has no sweep to resume; leave out --resume to start one"):
        sweep(SMALL, OVER, out=tmp_path / "new", resume=True)
    assert sorted(files(tmp_path)) == ["file", "mine/notes.txt"]


def test_the_mark_of_a_stranger_is_one_sentence(tmp_path):
    """Neither a pipe nor an endless or an empty giant is read; digests of rows may be anything."""
    out = tmp_path / "s"
    sweep(SMALL, {GPUS: [2]}, out=out)
    whole = (out / "sweep.json").read_bytes()
    rows = json.loads(whole)["rows"]
    for make in (
        os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"),
        lambda path: (path.touch(), os.truncate(path, 1 << 40)),
        lambda path: path.write_text(sealed({**safe_load(whole), "rows": 5, "format": 2})),
        lambda path: path.write_text(sealed({**safe_load(whole), "rows": [1, rows], "format": 2})),
    ):
        mark = out / "sweep.json"
        mark.rmdir() if mark.is_dir() else mark.unlink()
        make(mark)
        with pytest.raises(UsageError) as caught:
            sweep(SMALL, {GPUS: [2]}, out=out)
        assert str(mark) in str(caught.value) or "has another sweep" in str(caught.value)
    mark.unlink()
    mark.write_bytes(whole)
    (out / "tables.json").unlink()
    (out / "tables.json").mkdir()
    with pytest.raises(UsageError, match=r"tables.json must be a file of a sweep, but is a folder; nothing"):
        sweep(SMALL, {GPUS: [2]}, out=out)


def test_the_directory_of_another_sweep(tmp_path, monkeypatch):
    sweep(SMALL, {GPUS: [2, 3]}, out=tmp_path / "s")
    before = files(tmp_path)
    with pytest.raises(UsageError, match=r"it differs in the points"):
        sweep(SMALL, {GPUS: [2, 3, 4]}, out=tmp_path / "s")
    with pytest.raises(UsageError, match="no run of it belongs to this sweep"):
        sweep(SMALL, {GPUS: [4]}, out=tmp_path / "s", resume=True)
    assert files(tmp_path) == before
    made = []
    real = work.outcome_of
    monkeypatch.setattr(work, "outcome_of", lambda *given: made.append(given) or real(*given))
    assert len(sweep(SMALL, {GPUS: [2, 3, 4]}, out=tmp_path / "s", resume=True)) == 3
    assert len(made) == 1
    assert len(sweep(SMALL, {GPUS: [4]}, out=tmp_path / "s", fresh=True)) == 1
    assert len(stored_runs(tmp_path / "s")) == 1


def test_two_cannot_work_on_one_directory(tmp_path):
    from hetsim.experiment.folder import claim

    about = plan_sweep(SMALL, OVER).about
    first = claim(tmp_path / "s", about, "", resume=False, fresh=False)
    with pytest.raises(UsageError, match="another hetsim process is running the sweep in"):
        sweep(SMALL, OVER, out=tmp_path / "s")
    first.release()
    assert len(sweep(SMALL, OVER, out=tmp_path / "s")) == 4


# Failures -----------------------------------------------------------------------------------------------------------


def test_a_failing_point_is_a_row_with_its_error(tmp_path):
    found = sweep(SMALL, {GPUS: [2, 3]}, policies=[Odd, "fcfs"], replications=2, out=tmp_path / "s")
    table = found.table.set_index([GPUS, "policy"])
    assert (table["status"] == "failed").tolist() == [False, False, True, False]
    failed = table.loc[(3, "Odd")]
    assert failed["error"].startswith('replication 0: policy "Odd" raised ValueError')
    assert "three GPUs are too many" in failed["error"]
    assert np.isnan(failed["response_mean"])
    assert table.drop((3, "Odd"))["response_mean"].notna().all()
    assert len(found.failed) == 1
    assert found.best("response_mean")["policy"] in ("fcfs", "Odd")
    pd.testing.assert_frame_equal(Sweep.load(tmp_path / "s").table, found.table, check_exact=True)


def test_where_all_runs_fail_each_row_has_its_error_and_no_figure():
    class Raises(Scheduler):
        def schedule(self, view):
            raise RuntimeError("mine")

    for replications in (1, 2):
        found = sweep(SMALL, {"cluster.nodes.0.cpus": [1, 2]}, policies=[Raises], replications=replications)
        assert found.table["status"].tolist() == ["failed"] * 2 and "mine" in found.table["error"][0]


def test_the_command_tells_of_failing_rows(tmp_path, monkeypatch):
    registry.register("odd", Odd)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(SMALL))
    done = call("sweep", "s.yaml", "--over", f"{GPUS}=2,3", "--policy", "odd", "--workers", "1")
    assert done.exit_code == 0
    assert "failed" in done.stdout
    assert "1 of 2 rows failed; the first is point 1 (odd)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]  # nothing is written unasked


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept", ["a worker dies once", pytest.param("a worker dies in every try", marks=pytest.mark.slow)]
)
def test_a_worker_that_dies(kept: str, tmp_path):
    """It is retried; if that kills the next one too, the point is a row with an error, and all others are there."""
    once = str(tmp_path / "died") if kept == "a worker dies once" else ""
    policies = {"deadly": {"name": "deadly", "once": once}, "fcfs": "fcfs"}
    registry.register("deadly", Deadly)
    found = sweep(SMALL, {GPUS: [1, 3, 2]}, policies=policies, workers=2, out=tmp_path / "s")
    alone = sweep(SMALL, {GPUS: [1, 3, 2]})
    assert len(found.table) == 6
    sound = found.table[found.table["status"] == "done"]
    assert len(sound) == (6 if once else 5)
    assert len(stored_runs(tmp_path / "s")) == len(sound)
    for row in sound.to_dict("records"):
        assert row["wait_mean"] == alone.table.set_index(GPUS).loc[row[GPUS], "wait_mean"]
    if not once:
        assert "a worker process died" in found.failed["error"].iloc[0]
        assert found.failed[[GPUS, "policy"]].values.tolist() == [[3, "deadly"]]


SCRIPT = """
import sys
from hetsim.cli import main
sys.argv[0] = "hetsim"
if __name__ == "__main__":
    main()
"""


def command(folder: Path, workers: int) -> list[str]:
    """A sweep of 40 runs."""
    (folder / "s.yaml").write_text(json.dumps({**SMALL, "workload": [{**SMALL["workload"][0], "count": 400}]}))
    (folder / "main.py").write_text(SCRIPT)
    return [
        sys.executable, str(folder / "main.py"), "sweep", str(folder / "s.yaml"), "--over", f"{RATE}=1/s..3/s 10",
        "--policy", "fcfs", "--policy", "sjf", "--replications", "2", "--workers", str(workers), "-q",
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": pages.SOURCES}


@pytest.mark.parametrize("workers", spread([1, 2], 1))
@pytest.mark.slow
def test_ctrl_c_leaves_what_can_be_resumed(tmp_path, workers: int):
    arguments = command(tmp_path, workers)[:-1]
    out = tmp_path / "s"
    started = subprocess.Popen(
        [*arguments, "--out", str(out)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=heeds_interrupts,
    )  # fmt: skip

    def finished() -> int:
        return len(stored_runs(out))

    while started.poll() is None and finished() < 3:
        time.sleep(0.005)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does: the whole group hears it
    try:
        said = started.communicate(timeout=60)[1]
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 130, said
    assert "--resume continues from there" in said
    assert "Traceback" not in said
    assert 3 <= finished() < 40
    assert not list(out.rglob(".hetsim-*"))


def test_the_same_run_many_times_over_is_no_evidence():
    """Nothing is random here: four replications are one, of which no interval and no p can be given."""
    workload = [
        {"name": name, "arrivals": {"process": "deterministic", "rate": rate}, "count": 20, "gpu_time": time}
        for name, rate, time in (("a", "1/s", "1.4 s"), ("b", "0.5/s", "0.3 s"))
    ]
    fixed = {"name": "fixed", "cluster": {"nodes": [{"gpus": {"type": "g"}}]}, "workload": workload, "replications": 4}
    compared = sweep(fixed, {"workload.a.gpu_time": ["1.4 s", "1.2 s"]}, policies=["fcfs", "sjf"])
    table = differences(compared, "wait_mean")
    assert len(table) == 2 and (table["difference"] > 0).all()
    assert (table["n"] == 1).all() and table[["half_width", "p"]].isna().all(axis=None)
    assert not table["significant"].any()


def test_a_folder_under_the_name_of_any_file_is_one_sentence(tmp_path: Path):
    """Nothing is run and nothing is touched; a folder of that name is named, and the exit code is that of usage."""
    sweep(SMALL, {GPUS: [2, 3]}, out=tmp_path / "done")
    files = sorted(path for path in (tmp_path / "done").rglob("*") if path.is_file())
    assert any(path.suffix == ".runs" for path in files) and len(files) > 4
    for number, path in enumerate(files):
        there = tmp_path / str(number)
        shutil.copytree(tmp_path / "done", there)
        (there / path.relative_to(tmp_path / "done")).unlink()
        (there / path.relative_to(tmp_path / "done")).mkdir()
        before = sorted(there.rglob("*"))
        with pytest.raises(UsageError, match=f"{re.escape(path.name)} must be a file") as refusal:
            sweep(SMALL, {GPUS: [2, 3]}, out=there, resume=True)
        assert "\n" not in str(refusal.value) and sorted(there.rglob("*")) == before


# Whoever makes the runs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_any_executor_gives_the_same_table():
    def found(**given: Any) -> Sweep:
        return sweep(SMALL, {RATE: "1/s..3/s log"}, sample="sobol", n=4, policies=["fcfs", "sjf"], **given)

    alone = found()
    with ThreadPoolExecutor(3) as pool:
        others = [found(workers=2), found(executor=pool, workers=3)]
    for other in others:
        pd.testing.assert_frame_equal(other.table, alone.table, check_exact=True)


@pytest.mark.slow
def test_a_policy_that_workers_cannot_load_matters_only_where_it_is_named(monkeypatch):
    """As one that was registered in a notebook, and workers elsewhere that have not its module."""
    module = ModuleType("only_here")
    module.Mine = type("Mine", (ListScheduler,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    registry.register("mine", module.Mine)
    found = sweep(SMALL, {RATE: ["1/s"]}, policies=["fcfs", "mine"], workers=2).table
    assert found["status"].tolist() == ["done", "failed"]
    assert 'scheduler "mine" cannot be loaded in the worker process: No module named' in found["error"][1]


@pytest.mark.slow
def test_a_dask_address_that_does_not_answer():
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="is not the address of a Dask scheduler"):
        sweep(SMALL, OVER, dask="somewhere")
    with pytest.raises(UsageError, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
        sweep(SMALL, OVER, dask="tcp://127.0.0.1:9")


@pytest.mark.slow
def test_a_dask_worker_killed_in_mid_sweep_loses_nothing(tmp_path, monkeypatch):
    """Nothing lost, nothing counted twice, the same bytes as a serial run."""
    distributed = pytest.importorskip("distributed")
    address = tmp_path / "scheduler.json"

    def start(kind: str, *arguments: str) -> subprocess.Popen:
        line = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *arguments]
        return subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL)

    started = [start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(address))]
    try:
        where = ""
        while not where:  # the file is there before it is written
            time.sleep(0.05)
            with contextlib.suppress(OSError, ValueError):
                where = json.loads(address.read_text())["address"]
        started += [start("worker", where, "--nthreads", "1", "--no-nanny") for _ in range(4)]
        with distributed.Client(where, set_as_default=False) as client:
            client.wait_for_workers(4, timeout=120)

        # A run at a time, so that half of the runs are still to be sent when the twelfth is, and the worker that dies
        # has some of those that are under way.
        monkeypatch.setattr(study, "MAX_TASK", 1)
        sent = []
        submit = DaskCluster.submit

        def kill_one_at_the_twelfth(crew: DaskCluster, *job: Any) -> Any:
            sent.append(job)
            if len(sent) == 12:
                started[1].kill()
            return submit(crew, *job)

        monkeypatch.setattr(DaskCluster, "submit", kill_one_at_the_twelfth)
        given: dict[str, Any] = {"policies": ["fcfs", "sjf"], "overrides": {"workload.a.count": 800}}
        over = {RATE: "1/s..3/s 12"}
        out = tmp_path / "dask"
        found = sweep(SMALL, over, out=out, dask=where, **given)
        assert found.table[["status", "error"]].drop_duplicates().to_numpy().tolist() == [["done", ""]]
        assert started[1].wait(60) == -signal.SIGKILL
        assert [one.poll() for one in started[2:]] == [None] * 3
        assert len(sent) == len(stored_runs(out)) == 24
        sweep(SMALL, over, out=tmp_path / "alone", **given)
        assert files(out) == files(tmp_path / "alone")
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


# Questions, and how it is shown --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid() -> Sweep:
    return sweep(SMALL, OVER, policies=["fcfs", "sjf"], replications=2)


def test_the_best_row(grid: Sweep):
    assert grid.best("response_mean")["response_mean"] == grid.table["response_mean"].min()
    assert grid.best("throughput")["throughput"] == grid.table["throughput"].max()
    by = grid.best("response_mean", by=[RATE])
    assert by[RATE].tolist() == [1.0, 2.0]
    assert by["response_mean"].tolist() == grid.table.groupby(RATE)["response_mean"].min().tolist()
    with pytest.raises(UsageError, match="neither more nor less is always better"):
        grid.best("gpu_utilization")
    with pytest.raises(UsageError, match="not defined in any row"):
        grid.best("slo_attainment")
    with pytest.raises(UnknownName, match="did you mean"):
        grid.best("response_men")


def test_pivot(grid: Sweep):
    found = grid.pivot(RATE, GPUS, "response_mean", where={"policy": "sjf"})
    assert found.shape == (2, 2)
    assert found.loc[3, 1.0] == grid.table.set_index([GPUS, RATE, "policy"]).loc[(3, 1.0, "sjf"), "response_mean"]
    with pytest.raises(UsageError, match=f"several rows .* choose {GPUS}"):
        grid.pivot(RATE, "policy", "response_mean")
    with pytest.raises(UsageError, match="no row has policy = 'lcfs'; there are fcfs, sjf"):
        grid.pivot(RATE, GPUS, "response_mean", where={"policy": "lcfs"})
    with pytest.raises(UnknownName, match="column"):
        grid.pivot("rate", GPUS, "response_mean")


def test_how_it_is_shown(grid: Sweep):
    assert grid.title == "small: 4 points × 2 policies, 2 replications each, seed 3"
    assert "1/s" in repr(grid)
    html = grid._repr_html_()
    assert html.count("<tr>") == 9
    assert "±" in html
    assert json.loads(json.dumps(grid.to_json(), allow_nan=False))["rows"][7]["values"] == {RATE: "2/s", GPUS: 3}
    each = grid.to_json(by_replication=True)["rows"]
    assert len(each) == 16
    assert isinstance(each[0]["metrics"]["wait_mean"], float)


def test_progress_is_told_and_grows():
    told: list[float] = []
    sweep(SMALL, {"seed": list(range(12))}, overrides={"workload.a.count": some(600)}, progress=told.append)
    assert told == sorted(told)
    assert told
    assert 0 <= told[0] <= told[-1] <= 1


def test_a_bar_in_a_notebook(monkeypatch):
    from hetsim.experiment import progress as bars

    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    class Display:
        @staticmethod
        def get_ipython() -> Any:
            return type("Shell", (), {"kernel": True})()

        @staticmethod
        def display(*_: Any, **__: Any) -> Handle:
            return Handle()

    monkeypatch.setitem(sys.modules, "IPython", Display)
    monkeypatch.setitem(sys.modules, "IPython.display", Display)
    monkeypatch.setattr(bars, "EVERY", 0.0)
    sweep(SMALL, {"seed": list(range(12))}, overrides={"workload.a.count": some(600)}, progress=True)
    assert re.fullmatch(r"done in [\d.]+ m?s", shown[-1])
    assert bars.NotebookBar.text(0.25, 10.0) == "25 % done, 10 s passed, about 30 s left"


def test_a_dry_run_prints_the_points_and_an_estimate_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(SMALL))
    arguments = ["sweep", "s.yaml", "--over", f"{RATE}=1/s,2/s", "--policy", "fcfs", "--policy", "sjf", "--out", "o",
                 "--workers", "1"]  # fmt: skip
    done = call(*arguments, "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "4 runs to make: about" in done.stdout
    assert "2/s" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
    assert call(*arguments).exit_code == 0
    assert "0 runs to make, 4 there already." in call(*arguments, "--dry-run").stdout
    assert json.loads(call(*arguments, "--dry-run", "--json").stdout)["there"] == 4


@pytest.mark.slow
def test_the_estimate_of_a_long_run_is_from_its_beginning(monkeypatch):
    from hetsim.experiment.sweep import estimate_sweep

    ticks = itertools.count()
    monkeypatch.setattr(precision, "LONGEST", 500)
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))  # one a round
    plan = plan_sweep({**SMALL, "workload": [{**SMALL["workload"][0], "count": 20_000}]}, {"seed": [1]})
    found = estimate_sweep(plan, None, False)
    assert next(ticks) < 1000  # stopped after 500 rounds of many more
    simulation, rounds = plan.base.begin(1, 0), 0
    while simulation.advance():
        for decision in simulation.input.scheduler.schedule(simulation.view):
            simulation.apply(decision)
        rounds += 1
    assert found.total == pytest.approx(rounds, rel=0.1)


def test_the_first_entry_may_be_named_where_there_is_no_list():
    scenario = {**SMALL, "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "k20", "count": 2}}}}
    assert load(scenario, {"cluster.nodes.0.gpus.count": 5}).raw["cluster"]["nodes"]["gpus"]["count"] == 5


# What is written about it ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_sweep_gives_the_figures_it_states():
    found = sweep("latency-against-load")
    assert found.title == "latency-against-load: 5 points × 3 policies, 5 replications each, seed 1"
    minutes = (found.pivot("policy", "workload.jobs.arrivals.rate", "response_mean") / 60).round(1)
    description = load("latency-against-load").description
    slow, fast = (" and ".join(", ".join(map(str, row)).rsplit(", ", 1)) for row in minutes.to_numpy()[[0, -1]])
    assert f"under fcfs, sjf and srtf is {slow} min at 24/h, and {fast} min at 45.6/h." in description
    # Near saturation the differences are no chance.
    each = found.by_replication[found.by_replication["point"] == 4]
    wide = each.pivot(index="replication", columns="policy", values="response_mean")
    assert (wide["fcfs"] > wide["sjf"]).all()
    assert (wide["sjf"] > wide["srtf"]).all()


PAGE = ROOT / "docs" / "sweeps.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_page_shows_the_sweep_that_ships_and_every_column():
    (shown,) = blocks("yaml")
    assert safe_load(shown)["sweep"] == load("latency-against-load").raw["sweep"]
    for column in (*FACTS, "METRIC_ci_low", "METRIC_ci_high"):
        assert f"`{column}`" in PAGE.read_text(encoding="utf-8")


def test_null_is_a_value_of_a_table():
    key = "workload.chat.service.max_num_batched_tokens"
    found = hs.sweep(
        "chunked-prefill", over={key: [64, None]}, overrides={"horizon": "20 s", "warmup": "1 s"}, metrics=["ttft_mean"]
    )
    assert [row[1] for row in found.shown()[1]] == ["64", "null"]


# Blocks, and figures that are kept ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_that_are_kept_alone(tmp_path, monkeypatch):
    """They are those of a sweep that keeps all, as are the other way round figures taken from its runs."""
    given: dict[str, Any] = {"over": {GPUS: [2, 3]}, "policies": ["fcfs", "sjf"], "replications": 3}
    whole = sweep(SMALL, **given, cache=tmp_path / "all")
    few = sweep(SMALL, **given, keep=["wait_mean", "energy_j"], metrics="rho_p95", out=tmp_path / "few")
    metrics = [name for name in few.table if name not in (*FACTS, GPUS) and "_ci_" not in name]
    assert sorted(metrics) == ["energy_j", "rho_p95", "wait_mean"]
    assert len(few.by_replication.columns) < len(whole.by_replication.columns) / 4
    for name in ("wait_mean", "energy_j", "energy_j_ci_low", "wait_mean_ci_high"):
        pd.testing.assert_series_equal(few.table[name], whole.table[name], check_exact=True)
    assert few.shown_metrics == ["rho_p95"]
    with pytest.raises(UsageError, match="differs in the figures that are kept"):
        sweep(SMALL, **given, out=tmp_path / "few", metrics="rho_p95")
    monkeypatch.setattr(work, "outcome_of", no_run)
    again = sweep(SMALL, **given, keep="wait_mean", cache=tmp_path / "all")
    assert [name for name in again.table if name not in (*FACTS, GPUS) and "_ci_" not in name] == ["wait_mean"]
    pd.testing.assert_series_equal(again.table["wait_mean"], whole.table["wait_mean"], check_exact=True)
    sweep(SMALL, **given, keep="energy_j", cache=tmp_path / "few" / "runs")
    for more in ({}, {"keep": "response_mean"}):
        with pytest.raises(Made):
            sweep(SMALL, **given, **more, cache=tmp_path / "few" / "runs")


@pytest.mark.quick(0)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_many_blocks_give_the_tables_of_one(tmp_path, monkeypatch, workers: int):
    """With an equal point in another block, and a policy that fails in one: there it has no metrics at all."""
    points = [{GPUS: count} for count in (3, 3, 3, 2, 4, 5, 2)]
    given: dict[str, Any] = {"points": points, "policies": [Odd, "fcfs"], "replications": 2}
    one = sweep(SMALL, **given, out=tmp_path / "one")
    monkeypatch.setattr(sweeps, "BLOCK", 8)
    several = sweep(SMALL, **given, out=tmp_path / "several", workers=workers)
    for found in (several, Sweep.load(tmp_path / "several"), sweep(SMALL, **given)):
        pd.testing.assert_frame_equal(found.table, one.table, check_exact=True)
        pd.testing.assert_frame_equal(found.by_replication, one.by_replication, check_exact=True)
    assert {run: dict(outcome.values or {}) for run, outcome in stored_runs(tmp_path / "one").items()}.keys() == (
        stored_runs(tmp_path / "several").keys()
    )
    assert len(list((tmp_path / "several" / "runs").iterdir())) == 3  # the last has only rows that others have
    assert not list((tmp_path / "several").glob(".hetsim-*"))


def test_columns_that_a_later_block_brings(tmp_path):
    """The rows before have none there, in memory as in files."""
    rows_of = [[SweepRow(0, "a", 1, [None], ["failed"])], [SweepRow(1, "a", 1, [{"wait_mean": 1.0, "jain": 2.0}])],
               [SweepRow(2, "a", 1, [{"wait_mean": 3.0}])]]  # fmt: skip
    found = []
    for folder in (None, tmp_path / "t"):
        tables = SweepTables({"key": ["x", "y", "z"]}, several=False, text_seeds=False, folder=folder)
        for block in rows_of:
            tables.add(block)
        if folder is None:
            found.append(tables.frames())
        else:
            tables.write(tmp_path / "table.parquet", tmp_path / "each.parquet")
            tables.close()
            found.append([pd.read_parquet(tmp_path / name) for name in ("table.parquet", "each.parquet")])
    for one, other in zip(*found, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
        assert one["wait_mean"].fillna(-1).tolist() == [-1, 1, 3]
        assert one["jain"].fillna(-1).tolist() == [-1, 2, -1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["each.parquet", "table.parquet"]


@pytest.mark.slow
def test_shards_of_many_blocks_make_whole_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "BLOCK", 2)
    over = {"seed": range(17)}
    for number in (2, 1):
        with pytest.raises(ShardOver) as over_part:
            sweep(SMALL, over, out=tmp_path / "s", shard=f"{number}/2")
        assert (over_part.value.report.made, over_part.value.report.there) == ((8, 0) if number == 2 else (9, 0))
    assert [path.suffix for path in (tmp_path / "s" / "runs").iterdir()] == [".runs"] * 9
    sweep(SMALL, over, out=tmp_path / "whole")
    monkeypatch.setattr(work, "outcome_of", no_run)
    sweep(SMALL, over, out=tmp_path / "s")
    assert files(tmp_path / "s") == files(tmp_path / "whole")


@pytest.mark.slow
def test_blocks_under_way_are_bounded(monkeypatch):
    """The first run hangs until others are not begun any more: those of eight blocks and of the one begun."""
    monkeypatch.setattr(sweeps, "BLOCK", 2)
    real, begun, stuck = work.outcome_of, [], threading.Event()

    def outcome(setup: Any, scenario: Any, job: Any, meter: Any = None) -> Any:
        if job.seed == 0:
            stuck.wait(60)
        begun.append(job.seed)
        return real(setup, scenario, job, meter)

    def crowded(blocks: Any) -> bool:
        found = is_crowded(blocks)
        if found and len(begun) == 2 * sweeps.OPEN_BLOCKS:  # all but the first of those that were handed out
            stuck.set()
        return found

    is_crowded = sweeps.OpenBlocks.crowded.fget
    monkeypatch.setattr(sweeps.OpenBlocks, "crowded", property(crowded))
    monkeypatch.setattr(work, "outcome_of", outcome)
    with ThreadPoolExecutor(2) as pool:
        found = sweep(SMALL, {"seed": range(60)}, executor=pool, workers=2)
    assert found.table["seed"].tolist() == list(range(60))
    assert begun.index(0) == 2 * sweeps.OPEN_BLOCKS


def test_a_folder_with_a_file_a_run_is_resumed(tmp_path, monkeypatch):
    """As sweeps were kept before there were segments."""
    from hetsim.experiment.segment import line_of

    out = tmp_path / "s"
    whole = sweep(SMALL, {GPUS: [2, 3]}, replications=2, out=out)
    for run, outcome in stored_runs(out).items():
        (out / "runs" / run[:2]).mkdir(exist_ok=True)
        (out / "runs" / run[:2] / f"{run}.json").write_bytes(line_of(run, outcome))
    next((out / "runs").glob("*.runs")).unlink()
    mark = unsealed(out / "sweep.json")
    mark["rows"] = [mark["rows"][at : at + 64] for at in range(0, len(mark["rows"]), 64)]
    (out / "sweep.json").write_text(sealed(mark, 1))
    kept = sorted(path for path in (out / "runs").rglob("*") if path.is_file())
    assert len(kept) == 4
    monkeypatch.setattr(work, "outcome_of", no_run)
    for given in ({}, {"resume": True}, {}):
        again = sweep(SMALL, {GPUS: [2, 3]}, replications=2, out=out, **given)
        pd.testing.assert_frame_equal(again.table, whole.table, check_exact=True)
    assert sorted(path for path in (out / "runs").rglob("*") if path.is_file()) == kept


@pytest.mark.slow
def test_folders_of_a_file_a_run_that_an_earlier_version_wrote(tmp_path, monkeypatch):
    """`sweep`, and `cache` with `sweep_cached`: they load, merge, and are resumed where nothing else has changed."""
    from hetsim.experiment.store import merge_stores

    unpacked(Path(__file__).parent.parent / "data" / "sweep_folders_1.tar.xz", tmp_path)
    there = hs.load(tmp_path / "sweep")
    assert isinstance(there, Sweep)
    assert there.points.to_numpy().tolist() == [[1], [2]]
    assert len(there.by_replication) == 12
    assert len(stored_runs(tmp_path / "sweep")) == 12
    assert merge_stores([tmp_path / "sweep", tmp_path / "cache"], tmp_path / "all").copied == 14  # 4 are in both
    monkeypatch.setattr(work, "outcome_of", no_run)
    mark = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    for module in (identity, sweeps, study, work):
        if hasattr(module, "fingerprint"):
            monkeypatch.setattr(module, "fingerprint", lambda: mark["versions"])
    for folder, cache in (("sweep", None), ("again", "all")):
        found = sweep(
            tmp_path / "sweep" / "scenario.yaml", {mark["keys"][0]: [1, 2], "policy": ["fcfs", "sjf"]}, replications=3,
            out=tmp_path / folder, cache=cache and tmp_path / cache,
        )  # fmt: skip
        pd.testing.assert_frame_equal(found.table, there.table, check_exact=True)
