"""Intervals, replications and comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hand_made import cluster, record, three, workload
from scipy import stats

from hetsim.errors import UnknownName, UsageError
from hetsim.results.formatting import gap
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import paired_differences, student_interval


def one_task(response: float, replication: int, time: float = 1.0) -> Result:
    """A run of one task that waits response - time on one GPU."""
    rec = record(cluster(), workload([0], [time]), [response - time], [response], [(1,)])
    return Result(rec, replication=replication)


def runs(responses: list[float]) -> Replications:
    return Replications(one_task(value, number) for number, value in enumerate(responses))


def test_student_interval_by_hand():
    """Values 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.3027: half-width 4.3027 / √3 = 2.4841."""
    found = student_interval([1, 2, 3])
    assert found.mean == 2 and found.half_width == pytest.approx(2.4841, abs=1e-4)
    assert found.covers(4.4) and not found.covers(4.5)


def test_the_interval_covers_as_often_as_it_says():
    """1,000 samples of 10 normal values: 90 % intervals cover about 900 times (± 4 standard deviations)."""
    draws = np.random.default_rng(3).normal(5, 2, (1000, 10))
    covered = sum(student_interval(row, 0.9).covers(5) for row in draws)
    assert abs(covered - 900) < 4 * math.sqrt(1000 * 0.9 * 0.1)


def test_replications_summarize():
    found = runs([2, 3, 4])
    row = found.summary.loc["response_mean"]
    assert (row["mean"], row["sd"], row["n"]) == (3, 1, 3)
    interval = found.interval("response_mean", 0.95)
    assert (interval.low, interval.high) == (row["ci_low"], row["ci_high"])
    assert list(found.values["wait_mean"]) == [1, 2, 3] and found.values.index.name == "replication"
    json = found.to_json()["summary"]
    assert json["response_mean"]["n"] == 3 and json["slo_attainment"]["mean"] is None


def test_an_undefined_metric_is_counted_out():
    """Makespan is undefined in a run with an unfinished task: n says in how many it was defined."""
    cut = Result(record(cluster(), workload([0], [1]), [0], [math.nan], [(1,)], end=0.5), replication=2)
    found = Replications([one_task(2, 0), one_task(3, 1), cut])
    assert found.summary.loc["makespan", "n"] == 2
    assert math.isinf(found.summary.loc["response_p95", "mean"])
    assert any("replication 2" in warning for warning in found.warnings)


def test_one_run_has_no_interval():
    with pytest.raises(UsageError, match="replications"):
        three().interval("wait_mean")
    with pytest.raises(UsageError, match="two replications"):
        runs([1.5]).interval("wait_mean")
    with pytest.raises(UnknownName, match="wait_mean"):
        runs([1.5, 2]).interval("wait_meen")


def test_further_metrics_are_kept_or_computed_from_kept_runs():
    results = [one_task(2, 0), one_task(3, 1)]
    assert Replications(results, ["makespan_bound"]).column("makespan_bound").tolist() == [1, 1]
    assert Replications(results, keep=True).interval("makespan_bound").mean == 1
    with pytest.raises(UsageError, match="keep=True"):
        list(Replications(results))
    with pytest.raises(UsageError, match="twice"):
        Replications([results[0], results[0]])


def test_paired_differences_use_the_pairing():
    """Differences 1.9, 2.0, 2.1 between values that vary by far more: clearly above zero; t = 2 / (0.1 / √3)."""
    (found,) = paired_differences([np.array([1.9, 2.0, 2.1])])
    assert found.significant
    assert found.p == pytest.approx(2 * stats.t.sf(2 / (0.1 / math.sqrt(3)), 2))
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3))


def test_holm_steps_down():
    """Three comparisons with p about 0.001, 0.03 and 0.02: tested at 0.05/3, 0.05/2: 0.02 passes, then 0.03 < 0.05.

    With 0.03 and 0.04 the second step (0.025) fails, and so do all after it.
    """

    def differences(p: float) -> np.ndarray:
        shape = np.array([-1.0, 0.0, 1.0] * 4)
        shift = stats.t.isf(p / 2, 11) * shape.std(ddof=1) / math.sqrt(12)
        return shape + shift

    found = paired_differences([differences(p) for p in (0.001, 0.03, 0.02)])
    assert [d.significant for d in found] == [True, True, True]
    found = paired_differences([differences(p) for p in (0.001, 0.03, 0.04)])
    assert [d.significant for d in found] == [True, False, False]
    for difference in found:
        assert difference.significant == (abs(difference.mean) > difference.half_width)


def test_equal_differences_need_no_chance():
    assert paired_differences([np.zeros(4)])[0].significant is False
    assert paired_differences([np.full(4, 2.0)])[0].significant is True


def test_compare_states_a_winner_only_where_the_interval_excludes_zero():
    """Policy b is 1 s faster in every pair (± a little); c is faster and slower by turns."""
    base = [5.0, 7.0, 9.0, 12.0]
    found = compare(
        {"a": runs(base), "b": runs([4.0, 5.9, 8.1, 11.0]), "c": runs([4.5, 7.5, 8.5, 12.6])},
        ["response_mean"], baseline="a",
    )  # fmt: skip
    assert found.sentences[0] == "b: response mean 1.00 ± 0.17 s below a (paired, 95 %, Holm, n = 4)"
    assert "no significant difference" in found.sentences[1]
    assert found.winners == {"response_mean": None}, "b was not compared with c"
    assert found.table.loc["a", ("response_mean", "mean")] == 8.25
    two = compare({"a": runs(base), "b": runs([4.0, 5.9, 8.1, 11.0])}, ["response_mean"])
    assert two.winners == {"response_mean": "b"} and "◂" in repr(two)


def test_compare_over_one_run_says_so():
    found = compare({"a": one_task(4, 0), "b": one_task(3, 0)}, ["response_mean"])
    assert found.sentences == ["b: response mean 1 s below a in one run of each; one run gives no confidence interval"]
    assert found.winners["response_mean"] is None and math.isnan(found.pairs.half_width[0])


def test_energy_is_compared_over_a_common_window():
    """a ends at 4, b at 3: b idles one more second at 50 W.  Both worked 1 s: 200 J; so no difference at all."""
    found = compare({"a": runs([4.0, 5.0]), "b": runs([3.0, 4.5])}, ["energy_j", "energy_idle_j"])
    assert list(found.table["energy_j", "mean"]) == [200 + 225, 200 + 225]
    assert list(found.pairs.difference) == [0, 0]


def test_metrics_that_nobody_defines_are_left_out():
    found = compare({"a": runs([4.0, 5.0]), "b": runs([3.0, 4.5])})
    assert "goodput_fraction" not in found.winners and "response_mean" in found.winners


def test_bad_comparisons_are_refused():
    with pytest.raises(UsageError, match="two policies"):
        compare({"a": runs([1.0, 2.0])})
    with pytest.raises(UnknownName, match="did you mean"):
        compare({"fcfs": runs([1.0, 2.0]), "sjf": runs([1.0, 2.0])}, baseline="fcsf")


def test_sentences_have_the_units_people_use():
    """One unit for a difference and its half-width, and never a difference that reads like its own half-width."""
    slow = [(1500.0 + shift) * 60 for shift in (0, 3, 9)]
    found = compare({"a": runs(slow), "b": runs([value - 3000 - 9 * n for n, value in enumerate(slow)])}, ["wait_mean"])
    assert found.sentences == ["b: wait mean 50.15 ± 0.37 min below a (paired, 95 %, Holm, n = 3)"]
    barely = gap("response_mean", -0.02312, 0.02291)
    assert barely == "23.1 ± 22.9 ms"
    assert gap("gpu_utilization", 0.27, 0.12) == "27 ± 12 percentage points"
    assert gap("response_mean", 0.3, 2.1) == "0.3 ± 2.1 s"


def test_where_nothing_is_random_there_is_no_interval_to_state():
    found = compare({"a": runs([4.0] * 3), "b": runs([3.0] * 3), "c": runs([3.0] * 3)}, ["response_mean"])
    assert found.sentences == [
        "b: response mean 1 s below a in every run; the scenario is not random, so there is no interval",
        "b: response mean the same as c in every run; the scenario is not random, so there is no interval",
    ]
    assert found.winners == {"response_mean": None} and found.table["response_mean", "half_width"].isna().all()


def test_runs_in_which_one_policy_is_undefined_are_not_dropped_silently():
    """b leaves its task unfinished in one of three runs: the two others would speak too well of it."""
    cut = Result(record(cluster(), workload([0], [1]), [0], [math.nan], [(1,)], end=0.5), replication=2)
    other = Replications([one_task(2, 0), one_task(3, 1), cut])
    found = compare({"a": runs([4.0, 5.0, 6.0]), "b": other}, ["makespan", "response_p95"])
    assert found.sentences[0] == "b and a: makespan cannot be compared: undefined or infinite in 1 of the pairs of runs"
    assert found.pairs.significant.sum() == 0 and list(found.table["makespan", "n"]) == [3, 2]
    assert found.winners == {"makespan": None, "response_p95": None}


def test_the_metrics_of_a_comparison_are_those_that_tell_something():
    """No deadlines, rejections or unfinished tasks here, and every run drained; with a horizon there is no makespan."""
    found = compare({"a": runs([4.0, 5.0]), "b": runs([3.0, 4.5])})
    assert found.metrics == ["makespan", "response_mean", "response_p95", "gpu_utilization", "energy_j"]

    def until(horizon: float) -> Result:
        return Result(record(cluster(), workload([0, 0], [1, 9]), [0, 1], [1, math.nan], [(1,)] * 2, end=horizon,
                             horizon=horizon))  # fmt: skip

    found = compare({"a": until(5.0), "b": until(5.0)})
    assert found.metrics == ["response_mean", "response_p95", "unfinished_count", "gpu_utilization", "energy_j"]


def test_noise_of_floating_point_is_no_difference():
    """0.1 + 0.2 and 0.3 differ in the last digit, always in the same direction: that is not significant."""
    found = compare({"a": runs([0.1 + 0.2] * 3), "b": runs([0.3] * 3)}, ["response_mean"])
    assert not found.pairs.significant.any() and found.winners["response_mean"] is None


def test_nobody_wins_by_keeping_devices_busy():
    """Work that is lost later, or done slowly, keeps a device busy too."""
    busy = Replications(one_task(2, n, time=2.0 + n / 10) for n in range(3))
    assert compare({"a": runs([2.0, 2.1, 2.2]), "b": busy}, ["gpu_utilization"]).winners == {"gpu_utilization": None}


def test_what_a_notebook_shows_of_a_comparison():
    shown = compare({"a<1": runs([4.0, 5.0]), "b": runs([3.0, 4.5])}, ["response_mean"])._repr_html_()
    assert "a&lt;1" in shown and "response mean" in shown and "no significant difference" in shown
