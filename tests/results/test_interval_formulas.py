"""Quantiles, Student intervals and Holm's procedure against scipy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hetsim.errors import UsageError
from hetsim.results.statistics import (
    Interval,
    chi_square_quantile,
    deviation,
    normal_quantile,
    paired_differences,
    student_interval,
    student_quantile,
    student_tail,
)

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("share", [0.025, 0.4, 0.9, 0.995])
@pytest.mark.parametrize("freedom", [1, 2, 9, 40])
def test_quantiles_are_scipys(share, freedom):
    assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom))
    assert chi_square_quantile(share, freedom) == pytest.approx(stats.chi2.ppf(share, freedom))
    assert normal_quantile(share) == pytest.approx(stats.norm.ppf(share))
    assert student_tail(1.3, freedom) == pytest.approx(stats.t.sf(1.3, freedom))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_a_student_interval_is_scipys(confidence):
    values = [3.0, 4.5, 1.0, NAN, 7.25, 2.0]
    found = student_interval(values, confidence, "energy_j")
    known = [value for value in values if value == value]
    low, high = stats.t.interval(confidence, 4, np.mean(known), stats.sem(known))
    assert (found.low, found.high, found.mean) == pytest.approx((low, high, np.mean(known)))
    assert (found.n, found.confidence, found.metric, found.method) == (5, confidence, "energy_j", "replications")
    assert found.half_width == pytest.approx((high - low) / 2)
    assert found.covers(found.low) and found.covers(found.high)
    assert not found.covers(found.low - 1e-9) and not found.covers(found.high + 1e-9)


def test_what_has_no_interval():
    for values, mean, n in (([], NAN, 0), ([NAN], NAN, 0), ([2.0], 2.0, 1), ([2.0, INF], INF, 2)):
        found = student_interval(values)
        assert found.mean == pytest.approx(mean, nan_ok=True)
        assert math.isnan(found.low) and math.isnan(found.high) and found.n == n
    assert student_interval([2.0, 2.0]).low == student_interval([2.0, 2.0]).high == 2.0
    for confidence in (0.0, 1.0, -0.1, 1.5, NAN):
        with pytest.raises(UsageError, match="between 0 and 1"):
            student_interval([1.0, 2.0], confidence)


def test_deviations():
    assert deviation(np.array([1.0, 3.0])) == pytest.approx(math.sqrt(2))
    for values in ([], [1.0], [1.0, INF], [1.0, NAN]):
        assert math.isnan(deviation(np.array(values)))


def test_how_an_interval_is_written():
    assert str(Interval("wait_mean", 2.0, 1.5, 2.5, 0.95, 10)) == "wait_mean: 2 ± 0.5 (95%, n = 10)"
    assert str(Interval("wait_mean", 2.0, 1.5, 2.5, 0.9, 20, "batches")) == "wait_mean: 2 ± 0.5 (90%, 20 batches)"


def with_p(p, n=12, sign=1.0, deviation=3.0):
    """Differences whose two-sided t test gives just this p."""
    shape = np.resize([-1.0, 0.0, 1.0], n)
    shape = (shape - shape.mean()) / shape.std(ddof=1) * deviation
    return sign * (shape + stats.t.isf(p / 2, n - 1) * deviation / math.sqrt(n))


def holm(ps):
    """Adjusted p of Holm: the k-th smallest times m - k + 1, at least what stands before it, at most 1."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    found, before = [0.0] * len(ps), 0.0
    for step, index in enumerate(order):
        before = max(before, min(1.0, ps[index] * (len(ps) - step)))
        found[index] = before
    return found


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    "ps", [(0.2,), (0.04, 0.03), (0.001, 0.02, 0.03, 0.8), (0.6, 0.004, 0.5, 0.0131), (0.9, 0.7)]
)
def test_holms_procedure(ps, confidence):
    """Adjusted p; significant where it is at most 1 - confidence; the interval excludes 0 exactly then."""
    found = paired_differences([with_p(p, sign=(-1) ** i) for i, p in enumerate(ps)], confidence)
    assert [one.p for one in found] == pytest.approx(holm(ps))
    for i, one in enumerate(found):
        assert one.significant == (one.p <= 1 - confidence)
        assert one.significant == (abs(one.mean) > one.half_width)
        assert one.n == 12
        assert math.copysign(1.0, one.mean) == (-1) ** i


def test_the_level_of_each_interval():
    """Of three at 95 %: 0.001 is tested at 0.05 / 3 and holds; 0.03 at 0.05 / 2 fails; 0.6 keeps that level."""
    found = paired_differences([with_p(0.6), with_p(0.001), with_p(0.03)])
    error = 3.0 / math.sqrt(12)
    for one, level in zip(found, (0.025, 0.05 / 3, 0.025), strict=True):
        assert one.half_width == pytest.approx(stats.t.isf(level / 2, 11) * error)


def test_differences_that_cannot_be_tested_are_no_comparison():
    """One pair says nothing and takes nothing from the level of the other."""
    plain = with_p(0.03, n=5)
    one, nothing, none, other = paired_differences([np.array([4.0]), np.array([INF, 1.0]), np.array([]), plain])
    assert (one.mean, one.n, one.significant) == (4.0, 1, False)
    assert math.isnan(one.half_width) and math.isnan(one.p)
    assert math.isnan(nothing.p) and not nothing.significant
    assert math.isnan(none.mean) and none.n == 0
    assert other.significant and other.p == pytest.approx(0.03)
    assert other.half_width == pytest.approx(stats.t.isf(0.025, 4) * plain.std(ddof=1) / math.sqrt(5))


def test_two_pairs_are_enough():
    (found,) = paired_differences([np.array([1.0, 3.0])])
    assert found.p == pytest.approx(2 * stats.t.sf(2.0, 1))
    assert found.half_width == pytest.approx(stats.t.isf(0.025, 1))


def test_differences_without_any_chance():
    """All alike: certain if they are not 0, and nothing if they are."""
    zero, two, minus = paired_differences([np.zeros(3), np.full(3, 2.0), np.full(3, -2.0)])
    assert (zero.p, zero.significant, zero.half_width) == (1.0, False, 0.0)
    assert (two.p, two.significant, two.half_width) == (0.0, True, 0.0)
    assert (minus.p, minus.significant, minus.mean) == (0.0, True, -2.0)
