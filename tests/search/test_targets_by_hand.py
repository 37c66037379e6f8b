"""Targets, judges and estimates of cost by hand: units, verdicts, pilots that fail, sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hetsim as hs
from hetsim.errors import RunError, UsageError
from hetsim.experiment import precision
from hetsim.experiment.precision import START, Estimate
from hetsim.experiment.work import RunOutcome
from hetsim.results.statistics import half_width
from hetsim.search import targets
from hetsim.search.targets import MET, MISSED, OPEN, UNDEFINED, Judge, Target, TargetFinding, TargetsTrial

NOTHING: Any = None


@pytest.mark.parametrize(("text", "value"), [
    ("energy_j < 2 J", 2.0), ("energy_j < 2 kJ", 2e3), ("energy_j < 2 MJ", 2e6), ("energy_j < 2 Wh", 7200.0),
    ("energy_j < 2 kWh", 7.2e6), ("energy_j < 2 MWh", 7.2e9), ("throughput > 7200/h", 2.0),
    ("slo_attainment > 0.5", 0.5), ("slo_attainment > 50%", 0.5), ("wait_mean < 1500 ms", 1.5),
])  # fmt: skip
def test_values_of_targets_in_their_units(text: str, value: float):
    assert Target.parse(text).value == pytest.approx(value, rel=1e-12)


def test_a_target_says_which_relation_it_is():
    signs = {"<": (True, True), "<=": (True, False), "≤": (True, False), ">": (False, True), ">=": (False, False),
             "≥": (False, False)}  # fmt: skip
    for sign, (below, strict) in signs.items():
        target = Target.parse(f"  wait_mean{sign}2 s ")
        assert (target.metric, target.below, target.strict, target.text) == (
            "wait_mean", below, strict, f"wait_mean {sign} 2 s",
        )  # fmt: skip


def test_an_overload_misses_a_target_where_the_queue_grows_beyond_it():
    """A queue that grows evenly to 100 s: waits are uniform to 100 s, with mean 50 s, for the served share."""
    def misses(text: str, served: int = 100, longest: float = 100.0, tasks: int = 100) -> bool:
        return Target.parse(text).missed_by((served, longest), tasks)

    assert misses("wait_mean < 49 s") and not misses("wait_mean < 50 s")
    assert misses("response_p99 < 98 s") and not misses("response_p99 < 99.5 s")
    assert misses("response_p50 < 49 s") and not misses("response_p50 < 51 s")
    # Half of the tasks alone are certain: their waits are 50 s in the mean, 25 s of all.
    assert misses("wait_mean < 24 s", served=50) and not misses("wait_mean < 26 s", served=50)
    assert misses("wait_p95 < 89 s", served=50) and not misses("wait_p95 < 91 s", served=50)
    assert not misses("wait_mean > 1 s") and not misses("slowdown_mean < 1") and not misses("wait_mean < 100 s")


@pytest.mark.parametrize(("mean", "below", "verdict"), [
    (math.inf, True, MISSED), (math.inf, False, MET), (-math.inf, True, MET), (-math.inf, False, MISSED),
])  # fmt: skip
def test_an_infinite_mean_is_on_one_side(mean: float, below: bool, verdict: str):
    assert Target("wait_mean", below, 2.0, "").judge(mean, math.nan) == verdict


def judged(text: str, values: Sequence[float], replications: int = 9) -> TargetFinding:
    judge = Judge(NOTHING, [], replications, 0.09)
    return judge._judge(Target.parse(text), np.array(values))


def test_one_target_of_one_case_by_hand():
    assert judged("wait_mean < 2 s", [1.0, math.nan, 1.0]).verdict == UNDEFINED
    early = judged("wait_mean < 2 s", [1.5] * 8)  # fewer than the nine that were asked for: no spread is luck
    assert (early.mean, early.verdict) == (1.5, OPEN) and math.isnan(early.half)
    equal = judged("wait_mean < 2 s", [1.5] * 9)
    assert equal == TargetFinding(1.5, 0.0, MET)
    assert judged("wait_mean < 1.5 s", [1.5] * 9).verdict == MISSED
    assert judged("wait_mean < 2 s", [1.0, math.inf, 1.0]).verdict == MISSED
    values = np.array([1.0, 2.0, 3.0, 4.0])
    spread = judged("wait_mean < 90 s", list(values))
    # Three looks share the error: a one-sided t interval of 97 % each.
    assert (spread.mean, spread.half) == (2.5, half_width(values, "wait_mean", 0.97))
    assert spread.verdict == MET and judged("wait_mean > 90 s", list(values)).verdict == MISSED


def test_the_worst_verdict_of_a_case_counts():
    def verdict(*said: str) -> str:
        return TargetsTrial(3, tuple(TargetFinding(1.0, 0.0, one) for one in said)).verdict

    assert verdict(MET, MET) == MET and verdict(MET, OPEN) == OPEN
    assert verdict(OPEN, UNDEFINED, MET) == UNDEFINED and verdict(OPEN, MISSED, UNDEFINED) == MISSED


SHORT: dict[str, Any] = {
    "name": "short", "horizon": "80 s", "warmup": "auto",
    "cluster": {"nodes": {"cpus": 1}},
    "workload": {"arrivals": {"process": "poisson", "rate": "2/s"},
                 "cpu_time": {"distribution": "exponential", "mean": "200 ms"}},
}  # fmt: skip


def test_a_search_finds_the_warmup_of_each_size():
    """Each size is measured after the cut of its own pilot, as a run with this warm-up is."""
    found = hs.size(SHORT, "wait_mean < 10 s", "cluster.nodes.cpus", least=2, most=2, replications=3)
    pilot = hs.replicate(SHORT, replications=12, overrides={"cluster.nodes.cpus": 2})
    trial = found.trials[0]
    assert trial.verdict == MET and trial.replications == 3
    assert trial.mean == pytest.approx(pilot.among(range(3)).interval("wait_mean").mean, rel=1e-12)


def test_a_size_whose_pilot_is_too_short_is_named():
    few = {**SHORT, "workload": {**SHORT["workload"], "count": 3}}
    with pytest.raises(UsageError, match=r"^cluster\.nodes\.cpus = 2: .*warm"):
        hs.size(few, "wait_mean < 10 s", "cluster.nodes.cpus", least=2, most=2, replications=10)


@pytest.mark.parametrize("refused", [True, False])
def test_a_pilot_that_fails_is_a_case_that_cannot_run(refused: bool, monkeypatch: pytest.MonkeyPatch):
    def fails(study: Any, pilots: Any) -> None:
        pilots[0].error = RunOutcome(None, error="no room\nfor it", refused=refused)

    monkeypatch.setattr(targets, "find_cuts", fails)
    expected: list[int] = []
    study: Any = SimpleNamespace(meter=SimpleNamespace(expect=expected.append))
    judge = Judge(study, [Target.parse("wait_mean < 1 s")] * 2, 10, 0.05)
    case: Any = SimpleNamespace(auto_warmup=True)
    if not refused:
        with pytest.raises(RunError, match="here: no room\nfor it"):
            judge.try_(case, "here")
        return
    trial, series = judge.try_(case, "here")
    assert series is None and (trial.replications, trial.reason, trial.verdict) == (0, "no room", MISSED)
    assert len(trial.findings) == 2 and all(math.isnan(one.mean) and math.isnan(one.half) for one in trial.findings)
    assert expected == [20]


# What a sweep will cost ----------------------------------------------------------------------------------------------


def test_the_cost_of_runs_by_hand():
    assert Estimate(10, 0, 1, (2.0, 4.0)).total == 30.0
    assert Estimate(10, 0, 2, (2.0, 4.0)).total == 15.0 + START
    assert math.isnan(Estimate(10, 0, 1, ()).total)


@pytest.mark.parametrize(("made", "said"), [
    (Estimate(10, 0, 1, (2.0, 4.0)),
     "10 runs to make: about 30 s with one worker (2 s to 4 s a run, from 2 of them tried now)."),
    (Estimate(1, 0, 1, (2.0,)), "1 run to make: about 2 s with one worker (2 s a run, from one of them tried now)."),
    (Estimate(2000, 3000, 4, (2.0, 2.1)),
     "2,000 runs to make, 3,000 there already: about 16.7 min with 4 workers (2 s a run, from 2 of them tried now)."),
    (Estimate(0, 7, 1, ()), "0 runs to make, 7 there already."),
    (Estimate(5, 0, 1, ()), "5 runs to make; all tried runs failed."),
    (Estimate(5, 0, 1, (1.0,), is_bound=True),
     "at least 5 runs to make: about 5 s with one worker (1 s a run, from one of them tried now). This is a lower "
     "bound: the number that the precision needs is known only during the runs."),
    (Estimate(2, 0, 1, (1.0, 1.1)),
     "2 runs to make: about 2.1 s with one worker (1 s to 1.1 s a run, from 2 of them tried now)."),
])  # fmt: skip
def test_the_sentence_of_an_estimate(made: Estimate, said: str):
    assert made.sentence == said


def test_the_first_the_middle_and_the_last_run_are_tried(monkeypatch: pytest.MonkeyPatch):
    def timed(job: int, setup: Any) -> float:
        if job == 4:
            raise RunError("it fails")
        return 10.0 + job

    monkeypatch.setattr(precision, "_time", timed)
    jobs: Any = range(9)
    assert precision.estimate(jobs, 3, NOTHING, 2) == Estimate(9, 3, 2, (10.0, 18.0))
    assert precision.estimate(jobs[:2], 0, NOTHING, 1, True) == Estimate(2, 0, 1, (10.0, 11.0), is_bound=True)
    assert precision.estimate(jobs[:1], 0, NOTHING, 1).spent == (10.0,)
    assert precision.estimate(jobs[:0], 0, NOTHING, 1).spent == ()


def test_of_a_long_run_the_rest_is_estimated_from_the_share_done(monkeypatch: pytest.MonkeyPatch):
    """With no patience at all, a run is timed by the share after its first step."""
    from hetsim.experiment.work import RunJob, Setup

    scenario = hs.Scenario.load({**SHORT, "warmup": "0 s"})
    setup, job = Setup((scenario,)), RunJob(0, {}, 1, 0)
    monkeypatch.setattr(precision, "LONGEST", -1.0)
    monkeypatch.setattr(precision, "run_share", lambda simulation: 0.25)
    ticks = iter([10.0, 12.0])
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert precision._time(job, setup) == 8.0
    # Short enough to be made in full: only that is timed.
    monkeypatch.setattr(precision, "LONGEST", 1e9)
    clock = iter(range(10**6))
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    made: list[Any] = []
    monkeypatch.setattr(precision, "outcome_of", lambda *given: made.append(given))
    assert precision._time(job, setup) == 1
    assert [given[2] for given in made] == [job] and made[0][0] is setup
