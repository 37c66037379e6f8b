"""Tuning: the winner is right where the truth is known, its interval is not flattered, and bad input is told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiers import some

import hetsim as hs
from hetsim import registry
from hetsim.cli import hetsim
from hetsim.errors import ScenarioError, UsageError
from hetsim.policy import ListScheduler
from hetsim.search.tune import tune

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
ADMIT = {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 30}}


class Blend(ListScheduler):
    """Between first come first served (0) and shortest first (1)."""

    def __init__(self, share: float = 0.0):
        super().__init__(order=lambda task: (1 - share) * task.arrival + 1e3 * share * task.shortest_estimate)


class Shuffled(ListScheduler):
    """An order that `salt` mixes: no salt is better than another."""

    def __init__(self, salt: int = 0):
        super().__init__(order=lambda task: (task.arrival * 1e3 * (7919 + salt)) % 1.0)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(hetsim, list(arguments), prog_name="hetsim")


def test_the_best_setting_is_found():
    """The mean response of a queue is least where short tasks go first, and grows with a limit on who is admitted."""
    found = tune(SMALL, Blend, over={"share": [0.2, 0.0001, 1.0, 0.001]}, first=3, final=some(20, 8), check=True)
    assert found.values["share"] in (0.2, 1.0)
    assert found.difference.significant
    assert found.difference.mean < 0
    assert found.policy["scheduler"] == {"name": "Blend", "share": found.values["share"]}


@pytest.mark.slow
def test_a_warm_up_that_is_found_is_that_of_the_present_setting():
    """The scenario begins with a burst of tasks: what is chosen by is measured behind it, for all settings alike."""
    stream = SMALL["workload"][0]
    burst = {**stream, "name": "b", "arrivals": {"process": "poisson", "rate": "100/s"}, "count": 60}
    begun = {**SMALL, "workload": [{**stream, "count": 400}, burst], "warmup": "auto"}
    found = tune(begun, Blend, over={"share": [0.0001, 1.0]}, first=3, final=5)
    alone = hs.replicate(begun, policy=Blend, replications=20)
    assert alone.remarks[0] in found.sentences
    assert found.to_json()["remarks"] == list(found.remarks)
    cut = alone.results[0].warmup
    assert cut > 1
    for number in (0, -1):
        policy: Any = Blend if number else {"scheduler": {"name": "Blend", **found.settings[0].values}}
        seen = found.settings[number].seen
        same = hs.replicate({**begun, "warmup": f"{cut!r} s"}, policy=policy, replications=len(seen))
        assert seen == pytest.approx(same.contributions("response_mean").to_numpy())


@pytest.mark.slow
def test_metrics_of_which_more_is_better():
    scenario = {**SMALL, "workload": [{**SMALL["workload"][0], "slo": "100 s"}]}
    found = tune(scenario, ADMIT, over={"limit": [0, 1, 100]}, metric="goodput_fraction", first=2, final=5)
    assert found.values == {"limit": 100} or found.keeps
    assert found.interval.mean == 1.0
    assert found.to_json()["interval"]["ci_low"] is None  # the same in all replications: nothing to estimate


@pytest.mark.slow
def test_the_winner_is_judged_by_other_replications():
    """What is reported is the mean of runs that had no part in the choice, run here by themselves."""
    found = tune(SMALL, Blend, over={"share": [0.2, 1.0]}, first=2, final=6)
    runs = hs.replicate(SMALL, policy=found.policy, replications=found.used + 6).column("response_mean").to_numpy()
    assert found.ours == tuple(runs[found.used :])
    assert found.settings[found.best].seen == tuple(runs[: found.used])
    before = hs.replicate(SMALL, policy=Blend, replications=found.used + 6).column("response_mean").to_numpy()
    assert found.present == tuple(before[found.used :])
    assert found.difference.mean == pytest.approx((runs - before)[found.used :].mean())


@pytest.mark.slow
def test_the_curse_of_the_winner_is_real_and_avoided():
    """Of equal settings the chosen one's own figure is too good on average; that of the further runs is not."""
    flattered, honest = [], []
    for seed in range(10):
        found = tune(SMALL, Shuffled, over={"salt": list(range(1, 8))}, first=2, final=8, seed=seed)
        everything = np.mean([np.mean(setting.seen[:2]) for setting in found.settings])
        flattered.append(np.mean(found.settings[found.best].seen[:2]) - everything)
        honest.append(np.mean(found.ours) - np.mean(found.present))
    assert np.mean(flattered) < -3 * np.std(flattered, ddof=1) / np.sqrt(len(flattered))
    error = np.std(honest, ddof=1) / np.sqrt(len(honest))
    assert abs(np.mean(honest)) < 3 * error


@pytest.mark.slow
def test_hopeless_settings_leave_early():
    found = tune(SMALL, Blend, over={"share": [0.0, 0.0001, 0.0002, 0.0003, 0.0004, 0.5, 0.8, 1.0]}, first=2, final=3)
    table = found.table
    assert sorted(table["replications"].unique().tolist()) == [2, 6]
    assert (table["replications"] == 6).sum() == 3
    assert set(table["share"][table["replications"] == 6]) <= {0.5, 0.8, 1.0}


@pytest.mark.slow
def test_ranges_are_drawn_and_workers_change_nothing():
    def text(**given: Any) -> str:
        found = tune(SMALL, ADMIT, over={"limit": "1..40 log integer"}, n=6, first=2, final=4, **given)
        return json.dumps(found.to_json())

    assert text() == text(workers=2)


def test_runs_are_kept(tmp_path, monkeypatch):
    def search() -> Any:
        return tune(SMALL, ADMIT, over={"limit": [1, 9]}, first=2, final=3, cache=tmp_path / "cache").to_json()

    once = search()
    from hetsim.experiment import work

    def no_run(*_: Any) -> None:
        raise KeyboardInterrupt  # what is no Exception does not become a failed setting

    monkeypatch.setattr(work, "outcome_of", no_run)
    assert search() == once


def test_a_setting_that_fails_loses():
    class Broken(ListScheduler):
        def __init__(self, fails: bool = True):
            super().__init__(order=lambda task: 1 / 0 if fails else task.arrival)

    found = tune(SMALL, Broken, over={"fails": [True, False]}, first=2, final=3)
    assert found.values == {"fails": False}
    assert "where the present setting fails" in " ".join(found.sentences)
    with pytest.raises(UsageError, match="not defined under any setting: .*division"):
        tune(SMALL, Broken, over={"fails": [True]}, first=2, final=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"over": {"limt": [1]}}, 'no parameter "limt"; did you mean "limit"'),
        ({"over": {}}, "nothing to tune"),
        ({"over": {"limit": "9..1"}}, "low must be below high; got"),
        ({"over": {"limit": "0..9 log"}}, "a log scale must start above 0"),
        ({"over": {"limit": [1]}, "metric": "gpu_utilization"}, "neither more nor less is always better"),
        ({"over": {"limit": [1]}, "first": 1}, "first must be at least 2"),
        ({"over": {"limit": [1]}, "confidence": 2}, "confidence must be between 0 and 1"),
        ({"over": {"limit": [1]}, "overrides": {"warmup": "auto"}}, "at least 100 tasks in every replication"),
    ],
)
def test_bad_input_is_told(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        tune(SMALL, ADMIT, **given)


def test_bad_values_name_their_setting():
    with pytest.raises(ScenarioError, match=r"point 1 \(policy.admission.limit=-3\).*at least 0"):
        tune(SMALL, ADMIT, over={"limit": [1, -3]})


def test_a_parameter_of_two_parts_needs_its_path(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    class Limited(ListScheduler):
        def __init__(self, limit: int = 1):
            super().__init__(order=lambda task: task.arrival)

    hs.register("limited", Limited)
    both = {"scheduler": "limited", "admission": {"name": "queue_limit", "limit": 30}}
    with pytest.raises(UsageError, match="policy.scheduler.limit or policy.admission.limit"):
        tune(SMALL, both, over={"limit": [1]})
    found = tune(SMALL, both, over={"policy.admission.limit": [1, 2]}, first=2, final=3)
    assert len(found.settings) == 3


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenario = json.dumps(SMALL).replace("fcfs", "sjf")
    (tmp_path / "s.yaml").write_text(scenario)
    arguments = ["tune", "s.yaml", "--policy", "{scheduler: fcfs, admission: {name: queue_limit, limit: 30}}", "--over",
                 "limit=1,4", "--first", "2", "--final", "4", "--workers", "1"]  # fmt: skip
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert "Best of 3 settings: limit=1." in done.stdout
    assert "replications not used for the choice" in " ".join(done.stdout.split())
    assert "admission: {name: queue_limit, limit: 1}" in done.stdout
    found = json.loads(call(*arguments, "--json").stdout)
    assert found["best"] == {"limit": 1}
    assert found["interval"]["n"] == 4
    wrong = call("tune", "s.yaml", "--over", "limit=1")
    assert wrong.exit_code == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "s.yaml"]


def test_how_it_is_shown():
    found = tune(SMALL, ADMIT, over={"limit": [1, 9]}, first=2, final=3)
    assert "Best of 3 settings" in repr(found)
    assert "<table" in found._repr_html_()


@pytest.mark.slow
def test_the_present_setting_is_tried_once_where_the_values_name_it():
    """Written out or not, and as a default that nobody has written."""
    count_now = some(40, 20)
    few = {**SMALL, "workload": [{**SMALL["workload"][0], "count": count_now}]}
    for policy, over, count in ((Blend, {"share": [0.0, 0.2]}, 2), (Blend, {"share": [0, 0.2]}, 2),
                                (ADMIT, {"limit": [30, 1, 2]}, 3), ("sjf", {"discipline": ["block", "skip"]}, 2),
                                (ADMIT, {"workload.0.count": [count_now, 30]}, 2)):  # fmt: skip
        found = tune(few, policy, over=over, first=2, final=3)
        assert len(found.settings) == count and f"Best of {count} settings" in found.sentences[0]
        assert [bool(one.values) for one in found.settings] == [True] * (count - 1) + [False]
        seen = [one.seen for one in found.settings]
        assert len(seen) == count and all(seen)
