"""Runs, replications and comparisons from Python: what they return, and that they are reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hetsim as hs
from hetsim import registry
from hetsim.errors import PolicyError, ScenarioError, UnknownName, UsageError
from hetsim.experiment.compare import run_policies
from hetsim.experiment.directory import save
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.policies import named_policies, named_policy
from hetsim.experiment.progress import POLL
from hetsim.policy import ListScheduler, Scheduler
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION

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
    result = hs.run(SMALL)
    assert isinstance(result, hs.Result)
    assert len(result.tasks) == 40
    assert (result.name, result.seed, result.policy) == ("small", 0, "fcfs")


def test_the_same_run_twice_is_the_same():
    pd.testing.assert_frame_equal(hs.run(SMALL, seed=3).tasks, hs.run(SMALL, seed=3).tasks)
    assert not hs.run(SMALL, seed=4).tasks.equals(hs.run(SMALL, seed=3).tasks)


def test_checking_changes_nothing():
    pd.testing.assert_frame_equal(hs.run(SMALL, check=True).tasks, hs.run(SMALL).tasks)


def test_policies_meet_the_same_load():
    runs = run_policies(SMALL, ["fcfs", "lcfs"], StudyOptions())
    first, second = (runs[name].tasks for name in ("fcfs", "lcfs"))
    pd.testing.assert_series_equal(first["arrival"], second["arrival"])
    pd.testing.assert_series_equal(first["compute"].round(9), second["compute"].round(9))
    assert not first["wait"].equals(second["wait"])


@pytest.mark.slow
def test_replications_do_not_depend_on_the_number_of_workers():
    alone = hs.replicate(SMALL, replications=5)
    shared = hs.replicate(SMALL, replications=5, workers=2)
    assert isinstance(alone, hs.Replications)
    assert len(alone) == 5
    pd.testing.assert_frame_equal(alone.values, shared.values, check_exact=True)
    assert alone.to_json() == shared.to_json()
    assert (shared.name, shared.policy) == ("small", "fcfs")


def test_a_replication_is_the_run_of_that_number():
    runs = hs.replicate(SMALL, replications=3, keep=True)
    assert [result.replication for result in runs] == [0, 1, 2]
    pd.testing.assert_frame_equal(next(iter(runs)).tasks, hs.run(SMALL).tasks)
    assert runs.values["wait_mean"].nunique() == 3


def test_the_scenario_says_how_many_replications():
    assert len(hs.replicate({**SMALL, "replications": 3})) == 3


@pytest.mark.parametrize(("more", "asked"), [({"replications": 3}, "3"), ({"warmup": "auto", "replications": 6}, "6"),
    pytest.param({"replications": {"precision": "25%", "metric": "wait_mean", "max": 60}}, "60",
                 marks=pytest.mark.slow),
])  # fmt: skip
def test_one_run_is_the_first_replication_and_says_so(more, asked, tmp_path: Path):
    scenario = {**SMALL, "workload": {**SMALL["workload"][0], "count": 150}, **more}
    one, first = hs.run(scenario), hs.replicate(scenario).results[0]
    assert isinstance(one, hs.Result) and one.warmup == first.warmup
    pd.testing.assert_frame_equal(one.tasks, first.tasks, check_exact=True)
    (text,) = [text for text in one.warnings if "hetsim.replicate" in text]
    assert f"the scenario has {asked} replications" in text and text not in first.warnings
    assert text in hs.Result.load(save(one, tmp_path / "r", picture=False)).warnings


def test_one_run_that_was_asked_for_needs_no_warning():
    assert not hs.run(SMALL).warnings
    assert not hs.run({**SMALL, "replications": 3}, overrides={"replications": 1}).warnings


def test_replications_of_one_run_have_no_intervals_and_say_so():
    runs = hs.replicate(SMALL)
    assert isinstance(runs, hs.Replications) and len(runs) == 1
    assert [text for text in runs.warnings if "no confidence interval" in text]
    assert runs.summary["ci_low"].isna().all()
    assert not hs.replicate(SMALL, replications=1).warnings


@pytest.mark.slow
def test_precision_stops_in_time_whatever_the_workers():
    wanted = {"precision": "25%", "metric": "response_mean", "max": 60}
    runs = hs.replicate(SMALL, replications=wanted)
    interval = runs.interval("response_mean")
    assert interval.half_width <= 0.25 * interval.mean
    assert MIN_FOR_PRECISION <= len(runs) < 60
    again = hs.replicate({**SMALL, "replications": wanted}, workers=2)
    pd.testing.assert_frame_equal(again.values, runs.values, check_exact=True)


def test_precision_that_is_not_reached_stops_at_the_most():
    runs = hs.replicate(SMALL, replications={"precision": "0.01%", "metric": "wait_mean", "max": 12})
    assert len(runs) == 12
    assert any(text.startswith("precision not reached") for text in runs.warnings)


def test_further_metrics_are_kept():
    runs = hs.replicate(SMALL, replications=2, metrics=["jain"])
    assert "jain" in runs.values


@pytest.mark.slow
def test_compare_finds_what_is_better():
    found = hs.compare(SMALL, ["fcfs", ShortestLast], replications=20, metrics=["response_mean"], workers=2)
    assert list(found.table.index) == ["fcfs", "ShortestLast"]
    assert found.winners["response_mean"] == "fcfs"
    assert found.sentences


def test_overrides_in_both_forms():
    for overrides in ({"workload.a.count": 7}, ["workload.a.count=7"]):
        assert len(hs.run(SMALL, overrides=overrides).tasks) == 7
    assert hs.run(SMALL, policy="sjf", overrides=["policy.scheduler.discipline=skip"]).policy.startswith("sjf (")


def test_a_policy_in_place_of_a_broken_one():
    with pytest.raises(ScenarioError):
        hs.run({**SMALL, "policy": "none_such"})
    assert hs.run({**SMALL, "policy": "none_such"}, policy="sjf").policy == "sjf"


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


@pytest.mark.slow
def test_a_class_or_function_is_a_policy():
    def newest(task: Any) -> float:
        return -task.arrival

    assert hs.run(SMALL, policy=newest).policy == "newest"
    assert hs.run(SMALL, policy=newest).tasks.equals(hs.run(SMALL, policy=newest).tasks)
    mine = hs.run(SMALL, policy=ShortestLast)
    assert mine.policy == "ShortestLast"

    def fcfs(task: Any) -> float:
        return -task.arrival

    with pytest.raises(UsageError, match="is taken by another policy"):
        named_policy(fcfs)


def test_wrong_calls_are_said():
    with pytest.raises(UnknownName, match="did you mean"):
        hs.run(SMALL, policy="sjff")
    with pytest.raises(UsageError, match="twice"):
        named_policies(["sjf", "sjf"])
    with pytest.raises(UsageError, match="at least two"):
        hs.compare(SMALL, ["sjf"])
    with pytest.raises(UsageError, match="replications"):
        hs.replicate(SMALL, replications=0)
    with pytest.raises(UsageError, match="workers"):
        hs.replicate(SMALL, workers=0)
    with pytest.raises(UsageError, match="one worker"):
        hs.replicate(SMALL, replications=3, keep=True, workers=2)
    with pytest.raises((UnknownName, UsageError), match="did you mean"):
        hs.replicate(SMALL, replications={"precision": "5%", "metric": "wait_men"})


def test_a_local_policy_cannot_go_to_workers():
    class Local(ListScheduler):
        pass

    with pytest.raises(UsageError, match="worker"):
        hs.replicate(SMALL, policy=Local, replications=3, workers=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_run_keeps_its_tables(workers: int):
    with pytest.raises(PolicyError, match="starts nothing") as caught:
        hs.replicate(SMALL, policy=Late, replications=2, workers=workers)
    result = caught.value.result
    assert (result.tasks["status"] == "unfinished").all()
    assert result.error == str(caught.value)


@pytest.mark.slow
def test_progress_is_told_and_grows():
    told: list[float] = []
    hs.replicate({**SMALL, "replications": 100}, overrides={"workload.a.count": 500}, progress=told.append)
    assert told == sorted(told)
    assert all(0 <= share <= 1 for share in told)
    assert len(told) >= 1, f"a run of this size takes longer than {POLL} s"


def test_a_directory_of_replications_comes_back(tmp_path):

    runs = hs.replicate(SMALL, replications=3)
    save(runs, tmp_path / "r", picture=False)
    again = hs.Replications.load(tmp_path / "r")
    pd.testing.assert_frame_equal(again.values, runs.values)
    assert again.to_json() == runs.to_json()
    assert hs.run(SMALL).tasks.equals(again.results[0].tasks) or len(again.results[0].tasks) == 40


def test_the_public_names():
    assert set(hs.__all__) <= set(dir(hs))
    for name in hs.__all__:
        assert getattr(hs, name) is not None
    with pytest.raises(AttributeError):
        hs.nothing_of_that_name  # noqa: B018
