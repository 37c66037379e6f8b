"""Runs, replications and comparisons from Python: what they return, and that they are reproducible."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import sim
from sim import registry
from sim.errors import PolicyError, ScenarioError, UnknownName, UsageError
from sim.experiment.compare import run_policies
from sim.experiment.policies import named_policies, named_policy
from sim.experiment.progress import POLL
from sim.policy import ListScheduler, Scheduler
from sim.scenario.schema.whole import MIN_FOR_PRECISION

SMALL: dict[str, Any] = {
    "name": "small",
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


class Late(Scheduler):
    """Starts nothing: a deadlock in every run."""


class ShortestLast(ListScheduler):
    def __init__(self) -> None:
        super().__init__(order=lambda task: -task.shortest_estimate)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test registers outlives it."""
    monkeypatch.setattr(registry, "_registered", {})


def test_one_run_gives_a_result():
    result = sim.run(SMALL)
    assert isinstance(result, sim.Result)
    assert len(result.tasks) == 40
    assert (result.name, result.seed, result.policy) == ("small", 0, "fcfs")


def test_the_same_run_twice_is_the_same():
    pd.testing.assert_frame_equal(sim.run(SMALL, seed=3).tasks, sim.run(SMALL, seed=3).tasks)
    assert not sim.run(SMALL, seed=4).tasks.equals(sim.run(SMALL, seed=3).tasks)


def test_checking_changes_nothing():
    pd.testing.assert_frame_equal(sim.run(SMALL, check=True).tasks, sim.run(SMALL).tasks)


def test_policies_meet_the_same_load():
    runs = run_policies(SMALL, ["fcfs", "lcfs"])
    first, second = (runs[name].tasks for name in ("fcfs", "lcfs"))
    pd.testing.assert_series_equal(first["arrival"], second["arrival"])
    pd.testing.assert_series_equal(first["compute"].round(9), second["compute"].round(9))
    assert not first["wait"].equals(second["wait"])


@pytest.mark.slow
def test_replications_do_not_depend_on_the_number_of_workers():
    alone = sim.run(SMALL, replications=5)
    shared = sim.run(SMALL, replications=5, workers=2)
    assert isinstance(alone, sim.Replications)
    assert len(alone) == 5
    pd.testing.assert_frame_equal(alone.values, shared.values, check_exact=True)
    assert alone.to_json() == shared.to_json()
    assert (shared.name, shared.policy) == ("small", "fcfs")


def test_a_replication_is_the_run_of_that_number():
    runs = sim.run(SMALL, replications=3, keep=True)
    assert [result.replication for result in runs] == [0, 1, 2]
    pd.testing.assert_frame_equal(next(iter(runs)).tasks, sim.run(SMALL).tasks)
    assert runs.values["wait_mean"].nunique() == 3


def test_the_scenario_says_how_many_replications():
    runs = sim.run({**SMALL, "replications": 3})
    assert len(runs) == 3
    assert isinstance(sim.run({**SMALL, "replications": 3}, replications=1), sim.Result)


@pytest.mark.slow
def test_precision_stops_in_time_whatever_the_workers():
    wanted = {"precision": "25%", "metric": "response_mean", "max": 60}
    runs = sim.run(SMALL, replications=wanted)
    interval = runs.interval("response_mean")
    assert interval.half_width <= 0.25 * interval.mean
    assert MIN_FOR_PRECISION <= len(runs) < 60
    again = sim.run({**SMALL, "replications": wanted}, workers=2)
    pd.testing.assert_frame_equal(again.values, runs.values, check_exact=True)


def test_precision_that_is_not_reached_stops_at_the_most():
    runs = sim.run(SMALL, replications={"precision": "0.01%", "metric": "wait_mean", "max": 12})
    assert len(runs) == 12
    assert any(text.startswith("precision not reached") for text in runs.warnings)


def test_further_metrics_are_kept():
    runs = sim.run(SMALL, replications=2, metrics=["jain"])
    assert "jain" in runs.values


@pytest.mark.slow
def test_compare_finds_what_is_better():
    found = sim.compare(SMALL, ["fcfs", ShortestLast], replications=20, metrics=["response_mean"], workers=2)
    assert list(found.table.index) == ["fcfs", "ShortestLast"]
    assert found.winners["response_mean"] == "fcfs"
    assert found.sentences


def test_overrides_in_both_forms():
    for overrides in ({"workload.a.count": 7}, ["workload.a.count=7"]):
        assert len(sim.run(SMALL, overrides=overrides).tasks) == 7
    assert sim.run(SMALL, policy="sjf", overrides=["policy.scheduler.discipline=skip"]).policy.startswith("sjf (")


def test_a_policy_in_place_of_a_broken_one():
    with pytest.raises(ScenarioError):
        sim.run({**SMALL, "policy": "none_such"})
    assert sim.run({**SMALL, "policy": "none_such"}, policy="sjf").policy == "sjf"


@pytest.mark.parametrize(
    ("policy", "label", "value"),
    [
        ("sjf", "sjf", {"scheduler": {"name": "sjf"}}),
        ("sjf+best_fit", "sjf + best_fit", {"scheduler": {"name": "sjf", "placement": "best_fit"}}),
        ("sjf + accept_all", "sjf + accept_all", {"scheduler": {"name": "sjf"}, "admission": {"name": "accept_all"}}),
        ("{name: sjf, discipline: skip}", "sjf (discipline: skip)", {"name": "sjf", "discipline": "skip"}),
        ({"scheduler": "fcfs"}, "fcfs", {"scheduler": "fcfs"}),
    ],
)
def test_names_of_policies(policy: Any, label: str, value: Any):
    assert named_policy(policy) == (label, value)


def test_a_class_or_function_is_a_policy():
    def newest(task: Any) -> float:
        return -task.arrival

    assert sim.run(SMALL, policy=newest).policy == "newest"
    assert sim.run(SMALL, policy=newest).tasks.equals(sim.run(SMALL, policy=newest).tasks)
    mine = sim.run(SMALL, policy=ShortestLast)
    assert mine.policy == "ShortestLast"

    def fcfs(task: Any) -> float:
        return -task.arrival

    with pytest.raises(UsageError, match="already"):
        named_policy(fcfs)


def test_wrong_calls_are_said():
    with pytest.raises(UnknownName, match="did you mean"):
        sim.run(SMALL, policy="sjff")
    with pytest.raises(UsageError, match="twice"):
        named_policies(["sjf", "sjf"])
    with pytest.raises(UsageError, match="at least two"):
        sim.compare(SMALL, ["sjf"])
    with pytest.raises(UsageError, match="replications"):
        sim.run(SMALL, replications=0)
    with pytest.raises(UsageError, match="workers"):
        sim.run(SMALL, workers=0)
    with pytest.raises(UsageError, match="one worker"):
        sim.run(SMALL, replications=3, keep=True, workers=2)
    with pytest.raises((UnknownName, UsageError), match="did you mean"):
        sim.run(SMALL, replications={"precision": "5%", "metric": "wait_men"})


def test_a_local_policy_cannot_go_to_workers():
    class Local(ListScheduler):
        pass

    with pytest.raises(UsageError, match="worker"):
        sim.run(SMALL, policy=Local, replications=3, workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_run_keeps_its_tables(workers: int):
    with pytest.raises(PolicyError, match="starts nothing") as caught:
        sim.run(SMALL, policy=Late, replications=2, workers=workers)
    result = caught.value.result
    assert (result.tasks["status"] == "unfinished").all()
    assert result.error == str(caught.value)


@pytest.mark.slow
def test_progress_is_told_and_grows():
    told: list[float] = []
    sim.run({**SMALL, "replications": 100}, overrides={"workload.a.count": 500}, progress=told.append)
    assert told == sorted(told)
    assert all(0 <= share <= 1 for share in told)
    assert len(told) >= 1, f"a run of this size takes longer than {POLL} s"


def test_a_directory_of_replications_comes_back(tmp_path):
    from sim.experiment.directory import save

    runs = sim.run(SMALL, replications=3)
    save(runs, tmp_path / "r", picture=False)
    again = sim.load(tmp_path / "r")
    pd.testing.assert_frame_equal(again.values, runs.values)
    assert again.to_json() == runs.to_json()
    assert sim.run(SMALL).tasks.equals(again.results[0].tasks) or len(again.results[0].tasks) == 40


def test_the_public_names():
    assert set(sim.__all__) <= set(dir(sim))
    for name in sim.__all__:
        assert getattr(sim, name) is not None
    with pytest.raises(AttributeError):
        sim.nothing_of_that_name  # noqa: B018
