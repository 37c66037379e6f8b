"""Warm-up, batch means, precision, selection of the best, resampled traces: what intervals rest on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats
from tiers import some

import hetsim as hs
from benchmarks import coverage
from hetsim.cli.program import hetsim
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.experiment.compare import run_policies
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.precision import needed
from hetsim.results.many_runs.selection import Race
from hetsim.results.many_runs.warmup import WarmupSeries, mser
from hetsim.results.one_run.estimands import batch_interval, lag_one, means_of
from hetsim.scenario.schema.workload import by_block, by_user

DAY = 86_400.0


def queue(tasks: int = 600, rate: str = "0.8/s", **more) -> dict:
    """One GPU, Poisson arrivals, exponential times of 1 s."""
    entry = {"name": "q", "arrivals": {"process": "poisson", "rate": rate}, "count": tasks,
             "gpu_time": {"distribution": "exponential", "mean": "1 s"}}  # fmt: skip
    cluster = {"nodes": {"gpus": {"type": "a", "count": 1}}}
    return {"name": "queue", "seed": 5, "cluster": cluster, "workload": [entry], **more}


def replay(folder: Path, jobs: int = 400, days: int = 20, **more) -> dict:
    """A trace of Poisson arrivals and eight users on two GPUs, and its scenario."""
    draw = np.random.default_rng(8)
    arrival = np.sort(draw.uniform(0, days * DAY, jobs))
    user = [f"u{k}" for k in draw.integers(8, size=jobs)]
    table = {"id": [f"j{k}" for k in range(jobs)], "arrival": arrival, "user": user,
             "gpu_time": draw.exponential(4000, jobs)}  # fmt: skip
    pd.DataFrame(table).to_csv(folder / "trace.csv", index=False)
    entry = {"name": "trace", "trace": {"format": "tasks", "path": str(folder / "trace.csv")}, **more}
    return {"name": "replay", "cluster": {"nodes": {"gpus": {"type": "a", "count": 2}}}, "workload": [entry]}


def call(*arguments: str):
    return CliRunner().invoke(hetsim, list(arguments))


# Warm-up ---------------------------------------------------------------------------------------------------------


def test_mser_is_the_minimum_of_its_definition():
    draw = np.random.default_rng(1)
    for _ in range(50):
        series = draw.normal(size=int(draw.integers(2, 60))) + 5 * np.exp(-np.arange(1))
        m = len(series)
        by_hand = [((series[d:] - series[d:].mean()) ** 2).sum() / (m - d) ** 2 for d in range(m // 2 + 1)]
        assert mser(series) == int(np.argmin(by_hand))


def test_a_transient_is_cut_where_it_ends():
    """Responses 100 for 200 tasks, then about 10: the cut is at the 200th task, at the mean of its arrivals."""
    draw, series = np.random.default_rng(2), WarmupSeries()
    for _ in range(10):
        response = 10 + draw.normal(size=2000)
        response[:200] += 90
        series.add(np.arange(2000.0), response)
    assert series.cut.tasks == 200 and series.cut.time == 200.0 and not series.cut.near_half
    assert "200 of 2,000 tasks" in series.cut.sentence


def test_congestion_of_single_runs_is_not_cut():
    """Each of 20 runs begins on a level of its own, high or low: MSER of a run cuts that, not MSER of their mean."""
    draw, series, alone = np.random.default_rng(3), WarmupSeries(), []
    for number in range(20):
        response = 10 + draw.normal(size=2000)
        response[:500] += 5 if number % 2 else -5
        series.add(np.arange(2000.0), response)
        alone.append(mser(response.reshape(-1, 5).mean(axis=1)) * 5)
    assert np.median(alone) >= 500 and series.cut.tasks < 200


@pytest.mark.slow
def test_warmup_auto_is_told_kept_and_the_same_for_any_number_of_workers(tmp_path: Path):
    scenario = queue(warmup="auto", replications=6)
    runs = hs.replicate(scenario)
    assert len([text for text in runs.remarks if text.startswith("warm-up: ")]) == 1
    warmup = runs.results[0].warmup
    assert warmup > 0 and f"warmup: {warmup!r} s" in runs.results[0].scenario
    fixed = hs.replicate({**scenario, "warmup": f"{warmup!r} s"})
    pd.testing.assert_frame_equal(fixed.values, runs.values, check_exact=True)
    again = hs.replicate(scenario, workers=2)
    pd.testing.assert_frame_equal(again.values, runs.values, check_exact=True)
    from hetsim.experiment.directory import save

    loaded = hs.Replications.load(save(runs, tmp_path / "saved", picture=False))
    assert loaded.remarks == runs.remarks and loaded.results[0].warmup == warmup


@pytest.mark.slow
def test_policies_that_are_compared_share_the_warmup():
    runs = run_policies(queue(some(600, 200), warmup="auto", replications=6), ["fcfs", "sjf"], StudyOptions())
    assert len({run.results[0].warmup for run in runs.values()}) == 1
    assert runs["fcfs"].values["task_count"].equals(runs["sjf"].values["task_count"])


@pytest.mark.slow
def test_a_load_beyond_capacity_warns_that_the_cut_is_near_half():
    scenario = queue(rate="1.5/s", warmup="auto", replications=6)
    assert any("near the half" in text for text in hs.replicate(scenario).warnings)
    assert any("near the half" in text for text in hs.run(scenario).warnings)


@pytest.mark.parametrize("replications", [1, 4])
def test_warmup_auto_needs_replications(replications: int):
    with pytest.raises(UsageError, match="at least 5"):
        hs.replicate(queue(warmup="auto"), replications=replications)


# Batch means -----------------------------------------------------------------------------------------------------


def test_batch_means_by_hand():
    """2,010 independent values in 20 batches of 100, the first ten left out: Student's interval of their means."""
    values = np.random.default_rng(4).normal(3, 1, 2010)
    found = batch_interval(values, "response_mean")
    means = values[10:].reshape(20, 100).mean(axis=1)
    assert found.mean == pytest.approx(means.mean()) and found.n == 20
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 19) * means.std(ddof=1) / math.sqrt(20))
    assert "20 batch means of one run" in str(found)


def test_lag_one_is_half_of_von_neumanns_ratio_below_one():
    values = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    assert lag_one(values) == pytest.approx(1 - (4 + 1 + 9 + 1) / (2 * 10))
    assert lag_one(np.ones(5)) == 0
    assert list(means_of(np.arange(7.0), 3)) == [1.5, 3.5, 5.5]


def test_a_run_that_is_long_enough_has_batch_means_and_a_short_one_is_refused():
    short, long = hs.run(queue(1_000)), hs.run(queue(some(30_000, 6_000), "0.5/s"))
    with pytest.raises(UsageError, match="2,000 are needed"):
        short.batch_means("response_mean")
    found = long.batch_means("response_mean", confidence=0.999)
    assert found.mean == pytest.approx(long.metric("response_mean"), rel=1e-3)
    assert found.covers(2.0)  # M/M/1 at load 0.5: 1 / (1 - 0.5); misses one seed in a thousand, and this is one seed


def test_correlated_batches_are_refused():
    with pytest.raises(UsageError, match="still correlated"):
        hs.run(queue(4_000, "0.95/s")).batch_means("wait_mean")


@pytest.mark.parametrize(
    ("metric", "batches", "text"),
    [
        ("response_p95", 20, "percentile"),
        ("gpu_utilization", 20, "it is not a mean over tasks"),
        ("response_mean", 2, "10 to 100"),
        ("slo_attainment", 20, "0 tasks"),
    ],
)
def test_what_has_no_batch_means(metric: str, batches: int, text: str):
    with pytest.raises(UsageError, match=text):
        hs.run(queue(100)).batch_means(metric, batches)


def test_batch_means_of_an_unknown_metric():
    with pytest.raises(UnknownName, match='did you mean "response_mean"'):
        hs.run(queue(100)).batch_means("response_meen")


# Precision -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_precision_takes_ten_and_tells_what_it_reached():
    runs = hs.replicate(queue(300), replications={"precision": "90%", "metric": "response_mean", "confidence": "90%"})
    assert len(runs) == 10 and any(text.startswith("precision: 90 % interval") for text in runs.remarks)
    out = hs.replicate(queue(300), replications={"precision": "0.1%", "metric": "response_mean", "max": 10})
    assert len(out) == 10 and any("after 10 replications, the maximum (" in text for text in out.warnings)


def test_precision_where_nothing_is_random_stops(tmp_path: Path):
    scenario = replay(tmp_path, jobs=some(400, 60))
    runs = hs.replicate(scenario, replications={"precision": "5%", "metric": "response_mean"})
    assert len(runs) == 10 and any("precision undefined:" in text for text in runs.warnings)


def test_the_number_needed_by_hand():
    """sd 1, mean 10, ± 5 %: the least n with t(n - 1) / √n ≤ 0.5, which is 18; never fewer than ten."""
    assert stats.t.ppf(0.975, 17) / math.sqrt(18) <= 0.5 < stats.t.ppf(0.975, 16) / math.sqrt(17)
    assert needed(1, 10, 0.05, 0.95) == 18
    assert needed(0, 10, 0.05, 0.95) == 10 and needed(0.1, 10, 0.5, 0.95) == 10
    for spread in (3, 10, 30):
        number = needed(spread, 10, 0.05, 0.95)
        assert stats.t.ppf(0.975, number - 1) * spread / math.sqrt(number) <= 0.5 * 1.000001
        assert stats.t.ppf(0.975, number - 2) * spread / math.sqrt(number - 1) > 0.5 * 0.97


@pytest.mark.slow
def test_a_plan_for_a_precision_says_what_it_costs():
    plan = hs.plan_precision(queue(some(2000, 200)), 0.05)
    assert plan.low <= plan.replications <= plan.high and plan.pilot == 10
    text = " ".join(plan.sentences)
    assert "Runs 4 times as long" in text and "with one worker" in text and "max:" in text
    for bad in ({"precision": 0}, {"precision": 0.05, "pilot": 2}, {"precision": 0.05, "confidence": 1}):
        with pytest.raises(UsageError):
            hs.plan_precision(queue(100), **bad)


# Best of k -------------------------------------------------------------------------------------------------------


def race(means: list[float], seed: int, delta: float = 0.05) -> tuple[str | None, int]:
    """Normal values around the means, with a part in common: who wins, and replications made of it."""
    draw = np.random.default_rng(seed)
    found = Race([str(k) for k in range(len(means))], "response_mean", 0.9, delta)
    for replication in range(5_000):
        common = draw.normal()
        for policy in list(found.left):
            found.add(policy, means[int(policy)] + common + draw.normal(0, 0.7))
        if replication + 1 == 10:
            found.start()
        if replication + 1 >= 10:
            found.screen()
            if found.over:
                break
    selection = found.outcome()
    return selection.best, max(selection.runs.values())


@pytest.mark.slow
def test_the_best_is_selected_as_often_as_promised():
    """The least favourable case: all others exactly δ = 0.5 behind.  Of 200 races at least 90 % (less three
    standard errors: 167) must end with the best; and with a clear best hardly any goes beyond the first stage.
    """
    won = sum(race([10, 10.5, 10.5, 10.5], seed)[0] == "0" for seed in range(200))
    assert won >= 200 * 0.9 - 3 * math.sqrt(200 * 0.09)
    assert np.mean([race([10, 20, 30], seed)[1] for seed in range(20)]) <= 12


@pytest.mark.slow
def test_compare_selects_the_best():
    found = hs.compare(queue(400), ["fcfs", "sjf"], best="response_mean", delta=0.05, metrics=["response_mean"])
    assert found.selection is not None and found.selection.best == "sjf"
    assert found.sentences[0].startswith("Best in response mean: sjf, with a probability of at least 95 %")
    again = hs.compare(queue(400), ["fcfs", "sjf"], best="response_mean", delta=0.05, workers=2)
    assert again.selection == found.selection


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"best": "gpu_utilization"}, "neither more nor less is always better"),
        ({"best": "response_mean", "delta": 0}, "delta"),
        ({"best": "response_mean", "delta": -0.1}, "delta"),
        ({"best": "response_mean", "probability": 0.4}, "above chance"),
        ({"best": "goodput"}, "undefined"),
        ({"best": "response_mean", "replications": 2}, "at least 3"),
    ],
)
def test_selections_that_make_no_sense(how: dict, text: str):
    with pytest.raises(UsageError, match=text):
        hs.compare(queue(50), ["fcfs", "sjf"], **how)


def test_an_unknown_metric_has_no_best():
    with pytest.raises(UnknownName, match="response_mean"):
        hs.compare(queue(50), ["fcfs", "sjf"], best="response_meen")


# Traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replaying_a_trace_has_no_intervals(tmp_path: Path):
    scenario = replay(tmp_path, jobs=some(400, 60))
    runs = hs.replicate(scenario, replications=3)
    with pytest.raises(UsageError, match=r"resample: \{block: 1 week\}"):
        runs.interval("response_mean")
    assert runs.summary["ci_low"].isna().all() and runs.to_json()["summary"]["response_mean"]["ci_low"] is None
    found = hs.compare(scenario, ["fcfs", "sjf"], replications=3)
    assert found.identical and set(found.winners.values()) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"block": "2 days"}, {"by": "user"}, {"block": "31 h"}])
def test_a_resampled_trace_has_intervals_and_is_labeled(tmp_path: Path, how: dict):
    scenario = replay(tmp_path, resample=how)
    runs = hs.replicate(scenario, replications=4)
    assert runs.interval("response_mean").half_width > 0
    ids = runs.results[0].tasks["id"]
    assert ids.is_unique and set(ids.str.partition("#")[0]) < {f"j{k}" for k in range(400)}
    (tmp_path / "replay.json").write_text(json.dumps(scenario))
    shown = call("run", str(tmp_path / "replay.json"), "--replications", "2")
    assert "open-loop replay of a trace resampled" in shown.stdout
    again = hs.replicate(scenario, replications=4, workers=2)
    pd.testing.assert_frame_equal(again.values, runs.values, check_exact=True)


def test_blocks_keep_order_gaps_and_the_time_of_day():
    """Every stretch inside a block of two days is one of the trace, moved by whole days."""
    draw = np.random.default_rng(6)
    arrival = np.sort(draw.uniform(0, 20 * DAY, 3000))
    positions, times, blocks = by_block(arrival, 2 * DAY, draw)
    assert blocks == 10 and (np.diff(times) >= 0).all() and times[-1] <= arrival[0] + 20 * DAY
    moved = (times - arrival[positions]) / DAY
    assert np.allclose(moved, np.rint(moved), atol=1e-6)
    for block in range(10):
        inside = positions[(times - arrival[0] >= block * 2 * DAY) & (times - arrival[0] < (block + 1) * 2 * DAY)]
        assert (np.diff(inside) == 1).sum() >= len(inside) - 2  # one jump at most: past the end of the trace


def test_every_row_is_as_likely_as_any_other():
    """Thousands of draws of a short trace: each row comes once on average, within five standard errors."""
    count = some(4000)
    draw = np.random.default_rng(7)
    arrival = np.array([0.0, 1, 2, 10, 11, 40, 41, 42, 43, 90])
    draws = np.array([np.bincount(by_block(arrival, 13.0, draw)[0], minlength=10) for _ in range(count)])
    error = draws.std(axis=0) / math.sqrt(count)
    assert (np.abs(draws.mean(axis=0) - 1)[:-1] < 5 * error[:-1]).all()


def test_users_are_drawn_whole():
    user = np.array(["a", "b", "a", "c", "b", "a"])
    positions, copies, users = by_user(user, np.random.default_rng(3))
    drawn = pd.DataFrame({"user": user[positions], "copy": copies, "position": positions})
    assert users == 3 and drawn.groupby("user")["copy"].max().add(1).sum() == 3
    for (name, _), rows in drawn.groupby(["user", "copy"]):
        assert list(rows["position"]) == list(np.flatnonzero(user == name))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"block": "0 s"}, "above 0"),
        ({"block": "-1 day"}, "negative"),
        ({"block": "15 days"}, "at most half"),
        ({"by": "usr"}, 'did you mean "user"'),
        ({}, "either block"),
        ({"block": "1 day", "by": "user"}, "either block"),
    ],
)
def test_resampling_that_makes_no_sense(tmp_path: Path, how: dict, text: str):
    with pytest.raises(ScenarioError, match=text):
        hs.run(replay(tmp_path, resample=how))


def test_only_traces_are_resampled(tmp_path: Path):
    scenario = queue(50)
    scenario["workload"][0]["resample"] = {"by": "user"}
    with pytest.raises(ScenarioError, match="but the entry has no trace"):
        hs.run(scenario)
    with pytest.raises(ScenarioError, match="resample and arrivals both draw new arrivals of the trace; leave one out"):
        hs.run(replay(tmp_path, resample={"by": "user"}, arrivals={"process": "poisson", "rate": "1/h"}))


# From outside ----------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "queue.json").write_text(json.dumps(queue(3000, "0.3/s")))
    return str(tmp_path / "queue.json")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "--plan-precision", "0"), 2, "share above 0"),
        (("run", "--plan-precision", "-5%"), 2, "share above 0"),
        (("run", "--plan-precision", "5%", "--metric", "respons_mean"), 3, 'did you mean "response_mean"'),
        (("run", "--batch-means", "--replications", "3"), 2, "one long run"),
        (("run", "--batch-means", "--metric", "response_p99"), 2, "percentile"),
        (("run", "--set", "replications={precision: 0, metric: wait_mean}"), 3, "above 0"),
        (("run", "--set", "replications={precision: 5%, metric: wait_mean, max: 5}"), 3, "at least 10"),
        (("run", "--set", "warmup=auto", "--replications", "1"), 2, "at least 5"),
        (("compare", "--policy", "fcfs", "--policy", "sjf", "--best", "respons_mean"), 3, "response_mean"),
        (("compare", "--policy", "fcfs", "--policy", "sjf", "--best", "wait_mean", "--delta", "0"), 2, "share above 0"),
        (("compare", "--policy", "fcfs", "--best", "wait_mean"), 2, "two policies"),
    ],
)
def test_bad_wishes_end_in_a_sentence(file: str, arguments: tuple[str, ...], code: int, text: str):
    result = call(arguments[0], file, *arguments[1:])
    assert result.exit_code == code and text in result.stderr and "Traceback" not in result.output


@pytest.mark.slow
def test_the_command_line_marks_batch_means_and_plans_precision(file: str):
    shown = call("run", file, "--batch-means", "--metric", "wait_mean").stdout
    assert "Intervals of 95 % from 20 batch means of one run" in shown and "±" in shown
    found = json.loads(call("run", file, "--batch-means", "--metric", "wait_mean", "--json").stdout)
    assert found["batch_means"]["wait_mean"]["batches"] == 20
    assert "Pilot: 10 replications of 3,000 tasks" in call("run", file, "--plan-precision", "5%").stdout
    assert json.loads(call("run", file, "--plan-precision", "5%", "--json").stdout)[0]["replications"] >= 10
    assert "jain" in call("run", file, "--metric", "jain").stdout
    both = call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--best", "wait_mean", "--delta", "5%").stdout
    assert "Best in wait mean: sjf" in both


# Coverage, and what common random numbers are worth ---------------------------------------------------------------


@pytest.mark.slow
def test_the_recursion_of_the_benchmark_is_the_engine():
    *_, row = coverage.engine_figures(replace(coverage.QUICK, lengths=(some(1_000, 200),)))
    assert row.holds


@pytest.mark.slow
def test_the_coverage_benchmark_runs(capsys):
    coverage.main(["--quick"])
    shown = capsys.readouterr().out
    for line in ("10 replications of 1,000, warm-up auto", "20 batch means", "customers in all at load 0.9"):
        assert line in shown
    with pytest.raises(SystemExit):
        coverage.main(["--only", "nonsense"])


@pytest.mark.slow
def test_intervals_over_long_replications_cover():
    """M/M/1 at load 0.9, 10 replications of 100,000: of 300 intervals at least 92 %, less three standard errors."""
    covered = 0
    for repeat in range(300):
        draw = coverage.streams("test", repeat)
        means = [coverage.run(100_000, draw)[1].mean() for _ in range(10)]
        covered += coverage.student_interval(means).covers(coverage.WAIT)
    assert covered >= 300 * (0.92 - 3 * math.sqrt(0.92 * 0.08 / 300))


BATCHING = {"serial": {"batching": "serial_greedy"}, "asynchronous": {"batching": "async_linear"}}


@pytest.mark.by_turns(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "overrides"),
    [
        ("async-burst", {}),
        ("async-latency", {"workload.resnet50.arrivals.rate": "400/s", "horizon": "30 s", "warmup": "5 s"}),
    ],
)
def test_common_random_numbers_make_differences_of_batching_narrow(scenario: str, overrides: dict):
    """Against independent streams (another seed for one of the two) the variance of the difference falls at least
    five-fold: so the ratio of variances over 30 replications exceeds five times the 95 % quantile of F(29, 29).
    """
    runs = run_policies(scenario, BATCHING, StudyOptions(replications=30, overrides=overrides))
    apart = hs.replicate(scenario, policy=BATCHING["asynchronous"], replications=30, overrides=overrides, seed=99)
    serial, paired = (runs[name].values["response_mean"].to_numpy() for name in BATCHING)
    independent = apart.values["response_mean"].to_numpy()
    ratio = (serial - independent).var(ddof=1) / (serial - paired).var(ddof=1)
    assert ratio > 5 * stats.f.ppf(0.95, 29, 29), ratio


# No warm-up ------------------------------------------------------------------------------------------------------


def sparse(rate: str = "10/h") -> dict:
    """Two minutes in which a few tasks come, or none."""
    entry = {"name": "q", "arrivals": {"process": "poisson", "rate": rate},
             "gpu_time": {"distribution": "exponential", "mean": "1 s"}}  # fmt: skip
    cluster = {"nodes": {"gpus": {"type": "a", "count": 2}}}
    return {"name": "e", "horizon": "2 min", "warmup": "auto", "replications": 5, "cluster": cluster,
            "workload": [entry]}  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rate", "said"),
    [("10/h", r"replication \d+ has no task: make"), ("20/min", r"replication \d+ has \d\d tasks: make")],
)
def test_too_few_tasks_for_a_warm_up_are_said(rate: str, said: str):
    with pytest.raises(UsageError, match=f"warmup: auto needs at least 100 tasks in every replication, but {said}"):
        hs.run(sparse(rate))
    with pytest.raises(UsageError, match=said):
        hs.compare(sparse(rate), ["fcfs", "sjf"])
    with pytest.raises(UsageError, match=said):
        hs.size(sparse(rate), "wait_mean < 1 s", "cluster.nodes.0.gpus.count")


def test_the_replication_with_the_fewest_tasks_is_named():
    series = WarmupSeries()
    for count in (120, 90, 110, 40, 60):
        series.add(np.arange(count, dtype=float), np.ones(count))
    with pytest.raises(UsageError, match="replication 3 has 40 tasks"):
        _ = series.cut


@pytest.mark.slow
def test_too_few_tasks_for_a_warm_up_are_a_failed_row_of_a_sweep():
    found = hs.sweep(sparse(), {"workload.q.arrivals.rate": ["10/h", "4/s"]}, policies=["fcfs", "sjf"])
    table = found.table
    assert table["status"].tolist() == ["failed", "failed", "done", "done"]
    assert table["error"].str.contains("warmup: auto needs at least 100 tasks in every replication, "
                                       "but").tolist() == [True, True, False, False]


def test_where_nothing_completes_nothing_is_cut_and_that_is_said():
    long = {"horizon": "10 min", "workload.0.gpu_time": "1 d"}
    runs = hs.replicate(queue(some(600, 200), warmup="auto", replications=5), overrides=long)
    assert runs.values["completed_count"].tolist() == [0] * 5
    assert [text for text in runs.remarks if "too few tasks completed" in text]
    assert runs.results[0].warmup == 0
