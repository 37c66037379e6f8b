"""Two runs side by side: the tasks that changed, the groups, the first decision that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.results.many_runs.difference import decisions

TASKS = """id,arrival,class,user,gpu_time
long,0,big,ann,10
middle,1,big,bob,6
short,2,small,ann,1
last,30,small,bob,1
"""
SCENARIO = """
name: three
cluster: {nodes: [{cpus: 1, gpus: {type: g, count: 1}}]}
workload: [{trace: {format: tasks, path: tasks.csv}}]
policy: fcfs
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "tasks.csv").write_text(TASKS)
    (tmp_path / "three.yaml").write_text(SCENARIO)
    return tmp_path / "three.yaml"


def test_by_hand(scenario: Path):
    # fcfs: long 0-10, middle 10-16, short 16-17.  sjf: long 0-10, short 10-11, middle 11-17.
    found = hs.difference(hs.run(scenario), hs.run(scenario, policy="sjf"))
    assert found.tasks[["id", "a", "b", "change"]].to_numpy().tolist() == [
        ["short", 15.0, 9.0, -6.0], ["middle", 15.0, 16.0, 1.0], ["long", 10.0, 10.0, 0.0], ["last", 1.0, 1.0, 0.0],
    ]  # fmt: skip
    by_class = found.by("class")
    assert by_class.index.tolist() == ["small", "big"]
    assert by_class.loc["small", ["tasks", "gained", "lost", "change_mean"]].tolist() == [2, 1, 0, -3.0]
    assert found.by("user").loc["bob", ["gained", "lost", "change_sum"]].tolist() == [0, 1, 1.0]
    assert found.first is not None
    assert (found.first.time, found.first.only_a, found.first.only_b) == (
        10.0, ("starts middle on n0/g0",), ("starts short on n0/g0",)
    )  # fmt: skip
    assert found.settings == {"policy.scheduler.name": ("fcfs", "sjf")}
    assert found.sentences[0] == (
        "mean response is 1.25 s (12.2 %) shorter in sjf than in fcfs: of 4 tasks 1 gained, 1 lost, 2 did not change"
    )


def test_the_same_run_differs_in_nothing(scenario: Path):
    found = hs.difference(hs.run(scenario), hs.run(scenario))
    assert found.first is None and not found.tasks["change"].any() and found.settings == {}
    assert found.sentences == ["every task has the same response in both runs", "all decisions are the same"]


def test_a_stop_is_a_decision(scenario: Path):
    found = hs.difference(hs.run(scenario), hs.run(scenario, policy="srtf"))
    assert found.first is not None and found.first.time == 1.0
    assert found.first.only_b == ("starts middle on n0/g0", "stops long on n0/g0")
    assert found.first.only_a == ()


def test_other_loads_are_told(scenario: Path, tmp_path: Path):
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.replace("tasks.csv", "fewer.csv"))
    (tmp_path / "fewer.csv").write_text(TASKS.replace("last,30,small,bob,1\n", "").replace("short,2", "short,3"))
    found = hs.difference(hs.run(scenario), hs.run(other))
    assert found.only == (1, 0) and found.unlike == {"arrival": 1}
    assert "did not have the same tasks: 3 are in both, 1 only in" in found.sentences[0]
    assert "1 with another arrival" in found.sentences[1]


def test_endings_that_differ(scenario: Path):
    limited = {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 1}}
    found = hs.difference(hs.run(scenario), hs.run(scenario, policy=limited))
    assert found.statuses.to_numpy().tolist() == [["completed", "rejected", 1]]
    assert any("1 task of fcfs" in text and "were rejected in" in text for text in found.sentences)
    rejected = decisions(found.b)
    assert rejected[rejected["what"].str.startswith("rejects")]["time"].tolist() == [2.0]


def test_saved_runs_differ_as_those_in_memory(scenario: Path, tmp_path: Path):
    runs = [hs.run(scenario, policy=policy) for policy in ("fcfs", "sjf")]
    for number, run in enumerate(runs):
        run.save(tmp_path / f"run-{number}")
    loaded = [hs.Result.load(tmp_path / f"run-{number}") for number in range(2)]
    one, other = hs.difference(*runs), hs.difference(*loaded)
    assert one.to_json() == other.to_json()


def called(*words: Any) -> Any:
    return CliRunner().invoke(main, ["diff", *map(str, words)])


@pytest.mark.slow
def test_command_line(scenario: Path, tmp_path: Path):
    for policy in ("fcfs", "sjf"):
        hs.run(scenario, policy=policy).save(tmp_path / policy)
    found = called(tmp_path / "fcfs", tmp_path / "sjf")
    assert found.exit_code == 0
    assert "the first decision that differs is at 10 s" in found.stdout and "tasks that changed most" in found.stdout
    assert "tasks that changed most" not in called(tmp_path / "fcfs", tmp_path / "sjf", "--by", "user").stdout
    content = json.loads(called(tmp_path / "fcfs", tmp_path / "sjf", "--json", "--top", "1").stdout)
    assert [row["id"] for row in content["tasks"]] == ["short"] and content["first"]["time"] == 10.0
    missing = called(tmp_path / "fcfs", tmp_path / "none")
    assert missing.exit_code == 2 and "the directory" in missing.stderr


def test_a_column_that_cannot_be_compared(scenario: Path):
    run = hs.run(scenario)
    with pytest.raises(UsageError, match='energy_j; got "color"'):
        hs.difference(run, run, "color")
    with pytest.raises(UsageError, match="class or user"):
        hs.difference(run, run).by("node")


@pytest.mark.slow
def test_runs_with_other_seeds_are_told_apart_from_runs_under_other_policies(tmp_path: Path):
    for name, more in (("a", []), ("b", ["--seed", "9"]), ("c", ["--set", "cluster.nodes.0.memory=null"])):
        done = CliRunner().invoke(main, ["run", "first-steps", "--out", str(tmp_path / name), "-q", *more])
        assert done.exit_code == 0
    seeds = CliRunner().invoke(main, ["diff", str(tmp_path / "a"), str(tmp_path / "b")]).stdout
    assert "seed: 6 in a, 9 in b" in seeds
    assert ": use the same seed" in " ".join(seeds.split())
    keys = CliRunner().invoke(main, ["diff", str(tmp_path / "a"), str(tmp_path / "c")]).stdout
    assert "cluster.nodes.0.memory: 64 GB in a, not given in b" in keys


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path):
    hs.sweep("first-steps", {"seed": [1, 2]}, out=tmp_path / "swept", workers=1)
    (tmp_path / "empty").mkdir()
    for name, said in (("swept", "is a sweep"), ("empty", "it has no run.json")):
        found = CliRunner().invoke(main, ["diff", str(tmp_path / name), str(tmp_path / name)])
        assert found.exit_code == 2
        assert said in found.stderr
