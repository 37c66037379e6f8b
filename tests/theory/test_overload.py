"""Overload against exact models: clients that come back, give up or hedge, and where a collapse stays."""

import numpy as np
import pytest
from scipy.integrate import quad

from benchmarks import overload, vulnerable


def covered(sets: int) -> float:
    """Share of intervals that hold their exact value, of all models together."""
    return float(np.mean([one.covers(exact) for _, exact, found in overload.intervals(sets) for one in found]))


@pytest.mark.slow
def test_intervals_hold_what_is_exact() -> None:
    assert 0.925 <= covered(400) <= 0.973


@pytest.mark.nightly
def test_five_thousand_intervals_hold_what_is_exact() -> None:
    assert 0.94 <= covered(5_000) <= 0.965


def test_the_tail_of_hedged_calls_has_a_mean_of_one_second() -> None:
    assert quad(overload.tail, 0, np.inf)[0] == pytest.approx(1, rel=1e-6)


def test_the_fluid_stays_where_it_is_without_a_trigger() -> None:
    """At a load of 0.7 each attempt fails with exp(-3), so that 0.7 (1 - exp(-12)) / (1 - exp(-3)) are in service."""
    inside, answered = vulnerable.fluid(0.7, 0, 30, 0.1)
    assert inside == pytest.approx(np.full(len(inside), 0.7 * -np.expm1(-12) / -np.expm1(-3)), rel=1e-9)
    assert answered == pytest.approx(np.full(len(inside), -np.expm1(-12)), rel=1e-9)


@pytest.mark.parametrize(("load", "stays"), [(0.24, False), (0.26, True)])
def test_attempts_that_fail_are_four_times_the_load(load: float, stays: bool) -> None:
    """In the collapse the queue changes by 4 load - 1 a second; below 1/4 it falls, and ends."""
    inside, answered = vulnerable.fluid(load, 8, 100, 0.1)
    assert (inside[-1] - inside[-101]) / 10 == pytest.approx(4 * load - 1, abs=1e-9) and answered[-1] == 0
    if not stays:
        seconds = vulnerable.back_after(vulnerable.fluid(load, 8, 1500, 0.1)[1], 0.1)
        assert seconds == pytest.approx((inside[-1] - 4) / (1 - 4 * load) + 91, abs=15)


def test_what_fails_is_counted_up_to_the_last_task() -> None:
    """The integral of the chance, by quadrature: exp(-3) while a server is free, then exp(w - 3) up to 3 s of wait."""
    for tasks in (0.4, 1.0, 2.5, 4.0, 7.0):
        right = quad(lambda x: np.exp(min(max(x - 1, 0) - 3, 0)), 0, tasks, points=[1, 4], limit=200)[0]
        assert vulnerable.failing(tasks) == pytest.approx(right, rel=1e-9)
