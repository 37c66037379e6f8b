"""Intervals over replications: means over customers estimate a ratio of expectations; degrees of freedom for skew."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hetsim as hs
from benchmarks import coverage
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race
from hetsim.results.one_run.estimands import contributions, ratio_contributions, weight_of
from hetsim.results.one_run.metrics import metrics
from hetsim.results.statistics import SHARE_SKEW, excess_kurtosis, freedom, student_interval, student_quantile


def test_contributions_are_the_jackknife_by_hand():
    values, counts = np.array([2.0, 4.0, 9.0]), np.array([1.0, 2.0, 5.0])
    whole, without = 55 / 8, (53 / 7, 47 / 6, 10 / 3)
    expected = [3 * whole - 2 * other for other in without]
    assert ratio_contributions(values, counts) == pytest.approx(expected, rel=1e-14)


def test_equal_counts_leave_values_as_they_are():
    values = np.random.default_rng(1).exponential(1.0, (5, 10))
    assert (ratio_contributions(values, np.full((5, 10), 17.0)) == values).all()
    assert (ratio_contributions(np.full(4, 0.1), np.array([1.0, 2.0, 3.0, 4.0])) == 0.1).all()


def test_the_jackknife_takes_the_bias_out():
    """X = N²: the mean of X / N is E[N]; the ratio of expectations E[N²] / E[N]."""
    draw = np.random.default_rng(2)
    counts = draw.integers(1, 10, (20_000, 10)).astype(float)
    estimates = ratio_contributions(counts, counts).mean(axis=1)
    ratio = (np.arange(1, 10) ** 2).sum() / np.arange(1, 10).sum()
    assert student_interval(estimates, 0.999).covers(ratio)
    assert counts.mean() < 0.8 * ratio


def test_what_is_missing_does_not_count():
    frame = pd.DataFrame({"wait_mean": [2.0, math.nan, 4.0], "_started": [1.0, 0.0, 2.0]})
    found = contributions(frame, "wait_mean")
    assert found.isna().tolist() == [False, True, False]
    assert found.dropna().to_numpy() == pytest.approx(ratio_contributions(np.array([2.0, 4.0]), np.array([1.0, 2.0])))
    assert contributions(frame[["wait_mean"]], "wait_mean").equals(frame["wait_mean"])


def test_degrees_of_freedom():
    assert freedom(0.0, 10) == 9 and freedom(6.0, 10) == pytest.approx(9 / (1 + 6 * 9 / 20))
    for metric in ("gpu_utilization", "no metric", ""):
        assert excess_kurtosis(metric, 1.0, 1.0) == 0
    assert excess_kurtosis("wait_mean", 0.0, 1.0) == excess_kurtosis("wait_mean", 0.0, 0.0) == 0
    assert excess_kurtosis("wait_mean", 1.0, 1.0) == 6  # at most the exponential's
    assert excess_kurtosis("wait_mean", 0.1, 1.0) == pytest.approx(1.5 * 0.65**2)


def test_a_share_varies_by_what_is_missed():
    """15/8: see `SHARE_SKEW`; of met deadlines the missed ones count, of rejected tasks the rejected ones."""
    for metric, mean in (("slo_attainment", 0.96), ("goodput_fraction", 0.96), ("rejected_fraction", 0.04)):
        assert excess_kurtosis(metric, 0.02, mean) == pytest.approx(1.5 * (15 / 8 * 0.5) ** 2)
        assert excess_kurtosis(metric, 10.0, mean) == 24
    assert excess_kurtosis("slo_attainment", np.zeros(2), np.array([0.5, 1.0])).tolist() == [0, 0]


def test_the_skewness_of_a_share_follows_from_brownian_motion():
    """The moments of the time above 0 by simulation: a walk with drift, in small steps."""
    draw = np.random.default_rng(1)
    step, runs = 0.01, 3_000
    place, above = np.zeros(runs), np.zeros(runs)
    for _ in range(2_000):
        place += draw.normal(-step, math.sqrt(step), runs)
        above += step * (place > 0)
    first, second, third = ((above**power).mean() for power in (1, 2, 3))
    assert first == pytest.approx(1 / 2, rel=0.1) and second == pytest.approx(1, rel=0.2)
    assert third * first / second**2 == pytest.approx(SHARE_SKEW, rel=0.2)


def test_an_interval_of_waits_is_wider_where_runs_differ_much_and_only_there():
    values = np.array([8.0, 10.0, 13.0, 9.0])
    plain, skewed = student_interval(values), student_interval(values, metric="wait_mean")
    spread = values.std(ddof=1)
    left = freedom(1.5 * (6.5 * spread / values.mean()) ** 2, 4)
    half = student_quantile(0.975, left) * spread / 2
    assert skewed.half_width == pytest.approx(half) and half > 1.02 * plain.half_width
    assert student_interval(values, metric="gpu_utilization").half_width == plain.half_width
    far = student_interval(1e4 + values, metric="wait_mean")
    assert far.half_width == pytest.approx(plain.half_width, rel=1e-5)


BURSTY: dict[str, Any] = {
    "name": "bursty", "seed": 4, "horizon": "100 s",
    "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g", "count": 1}}]},
    "workload": [
        {"name": "jobs", "arrivals": {"process": "renewal", "rate": "0.8/s", "scv": 4, "family": "gamma"},
         "gpu_time": {"distribution": "exponential", "mean": "1 s"}, "slo": "5 s"},
        {"name": "more", "arrivals": {"process": "poisson", "rate": "0.1/s"}, "gpu_time": "500 ms"},
    ],
}  # fmt: skip
METRICS = ("wait_mean", "response_mean", "slowdown_mean", "slo_attainment", "goodput_fraction", "attainment_admitted")


@pytest.fixture(scope="module")
def runs() -> dict[str, Replications]:
    found = {}
    for policy in ("fcfs", "sjf"):
        made = hs.replicate(BURSTY, policy=policy, replications=6, keep=True, metrics=["by:[\"class\", null, []]"])
        assert isinstance(made, Replications)
        found[policy] = made
    return found


def pooled(runs: Replications, metric: str) -> float:
    """The sum over the tasks of all runs / their number, from their tables."""
    tables = pd.concat([run.tasks for run in runs])
    if metric in ("wait_mean", "response_mean", "slowdown_mean"):
        return tables[metric.removesuffix("_mean")].mean()
    met = tables["met_deadline"]
    if metric == "goodput_fraction":
        return met.sum() / (len(met) - sum(run.metric("deadline_after_end") for run in runs))
    return met.dropna().astype(float).mean()


@pytest.mark.quick(1)
@pytest.mark.parametrize("metric", METRICS)
def test_the_estimate_is_the_ratio_over_all_runs_but_for_its_bias(runs: dict[str, Replications], metric: str):
    """The jackknife's estimate is n × ratio - (n - 1) × the mean ratio without one; both from the tables of tasks."""
    kept = runs["fcfs"]
    each = list(kept)
    without = [pooled(Replications([run for run in each if run is not left], keep=True), metric) for left in each]
    expected = 6 * pooled(kept, metric) - 5 * float(np.mean(without))
    row = kept.summary.loc[metric]
    assert row["mean"] == pytest.approx(expected, rel=1e-9)
    assert row["mean"] != kept.values[metric].mean()
    assert row["sd"] == pytest.approx(kept.values[metric].std())
    found = kept.interval(metric)
    assert (found.low, found.high) == (row["ci_low"], row["ci_high"])
    assert kept.relative_half_width(metric) == pytest.approx(found.half_width / abs(found.mean))


def test_comparisons_are_of_the_same_estimates(runs: dict[str, Replications]):
    found = compare(runs, ["wait_mean"])
    one, other = (runs[policy].interval("wait_mean").mean for policy in ("fcfs", "sjf"))
    assert found.table["wait_mean", "mean"].tolist() == [one, other]
    assert found.pairs["difference"].iloc[0] == pytest.approx(one - other, rel=1e-9)


def test_groups_are_estimated_alike(runs: dict[str, Replications]):
    kept = runs["fcfs"]
    tables = pd.concat([run.tasks for run in kept])
    for name, mine in tables.groupby("class", observed=True):
        told = kept.by("class").loc[name, ("wait_mean", "mean")]
        own = [run.tasks[run.tasks["class"] == name]["wait"] for run in kept]
        counts, means = np.array([one.count() for one in own]), np.array([one.mean() for one in own])
        assert told == pytest.approx(ratio_contributions(means, counts.astype(float)).mean(), rel=1e-9)
        assert len(mine) and not any(str(column[0]).startswith("_") for column in kept.by("class").columns)


def test_sweeps_are_estimated_alike(tmp_path: Any):
    swept = hs.sweep(BURSTY, {"seed": [4]}, replications=6, metrics=["wait_mean"], cache=tmp_path)
    alone = hs.replicate(BURSTY, replications=6)
    assert isinstance(alone, Replications)
    row, expected = swept.table.iloc[0], alone.summary.loc["wait_mean"]
    assert row["wait_mean"] == pytest.approx(expected["mean"], rel=1e-12)
    assert row["wait_mean_ci_high"] == pytest.approx(expected["ci_high"], rel=1e-12)


def test_a_selection_follows_the_ratio():
    """One policy has the lower mean of means, the other the lower ratio."""
    race = Race(["a", "b"], "wait_mean", delta=0.5)
    for count, value in ((1.0, 1.0), (9.0, 5.0), (1.0, 1.2), (9.0, 5.2)):
        race.add("a", value, count)
        race.add("b", 4.0 + value / 100, count)
    race.start()
    means = {policy: race._contributions(policy).mean() for policy in ("a", "b")}
    assert means["a"] == pytest.approx((1 + 45 + 1.2 + 46.8) / 20) and means["a"] > means["b"]


def test_every_weight_belongs_to_a_metric():
    assert {"wait_mean", "response_mean", "bounded_slowdown_10s_mean"} <= {n for n in metrics() if weight_of(n)}
    assert weight_of("response_p95") is None and weight_of("gpu_utilization") is None


@pytest.mark.parametrize("name", coverage.BURSTY)
def test_the_recursion_of_the_benchmark_is_the_engine(name: str):
    assert coverage._off_the_engine(coverage.BURSTY[name], 300) < 1e-9


@pytest.mark.slow
def test_coverage_under_bursty_arrivals():
    """400 sets of ten replications: with 4,000 (benchmarks/coverage.py) 94 to 96.5 %; Student's t of means has 91 %."""
    setting = coverage.BURSTY["gamma gaps, scv 4, load 0.8"]
    sums, numbers = coverage.run_sums(setting, 4_000, np.random.default_rng(8))
    values, counts = (sums / numbers).reshape(-1, 10), numbers.reshape(-1, 10)
    given = ratio_contributions(values, counts)
    assert setting.exact is not None
    covered = np.mean([student_interval(row, metric="wait_mean").covers(setting.exact) for row in given])
    plain = np.mean([student_interval(row).covers(setting.exact) for row in values])
    error = math.sqrt(0.95 * 0.05 / 400)
    assert 0.94 - 2 * error <= covered <= 0.965 + 2 * error and plain < covered - 0.02
