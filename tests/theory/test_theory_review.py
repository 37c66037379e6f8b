"""What a demanding user found in theory, admission and statistics: each a defect once."""

from __future__ import annotations

import math

import pytest
from click.testing import CliRunner

from hetsim import theory
from hetsim.cli import main as hetsim
from hetsim.errors import UsageError
from hetsim.report.overview import gathered
from hetsim.results.many_runs.replications import Replications


@pytest.mark.parametrize("servers", [50, 120])
def test_trunk_reservation_of_different_means_where_the_empty_system_is_unlikely(servers):
    """Without reservation Erlang's B, whatever the means: at 0.8 × 50 the empty system has a chance of 1e-17."""
    load = 0.8 * servers
    found = theory.trunk_reservation(servers, [(load / 2, 1.0), (load / 4, 2.0)])
    lost = theory.erlang_b(load, servers)
    assert found.loss == pytest.approx((lost, lost), rel=1e-9)
    assert found.utilization == pytest.approx(load * (1 - lost) / servers, rel=1e-9)


def test_trunk_reservation_of_nearly_equal_means_is_that_of_equal_ones():
    equal = theory.trunk_reservation(100, [(50, 1.0, 0), (40, 1.0, 20)])
    nearly = theory.trunk_reservation(100, [(50, 1.0, 0), (40, 1 + 1e-9, 20)])
    assert nearly.loss == pytest.approx(equal.loss, rel=1e-6)


@pytest.mark.slow
def test_trunk_reservation_far_from_the_first_guess():
    """A class that may use a quarter of the servers only, at an enormous rate; the other hardly ever comes."""
    found = theory.trunk_reservation(200, [(1e6, 1.0, 150), (1e-3, 100.0, 0)])
    assert found.utilization == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: theory.closed_loop(10**9, 1, 1), "got 1,000,000,000"),
        (lambda: theory.mmck(1, 1, 1, 10**9), "room must be at most"),
        (lambda: theory.token_bucket(1, 1, "3"), "depth must be a number"),
        (lambda: theory.token_bucket(1, 1, math.nan), "depth must be a number"),
        (lambda: theory.mm1(0.7, 1).wait_tail(math.nan), "seconds must be a number; got nan"),
        (lambda: theory.mm1(0.7, 1).response_tail("1"), "seconds must be a number; got '1'"),
        (lambda: theory.birth_death([1e300] * 3, [1e-300] * 3), "births and deaths differ too much for "
                                                                "floating-point numbers"),
    ],
)
def test_odd_input_is_refused(ask, said):
    with pytest.raises(UsageError, match=said):
        ask()


def test_a_warning_of_all_replications_is_not_told_as_one_of_a_single_one():
    runs = Replications()
    runs.warnings += ["replication 0: slow", "precision not reached"]
    runs._rows = {0: {}, 1: {}}
    assert gathered(runs) == ["slow (in 1 of 2 replications)", "precision not reached"]


@pytest.mark.parametrize("option", ["--probability", "--delta"])
def test_options_of_a_selection_need_one(option):
    found = CliRunner().invoke(hetsim, ["compare", "mm16", option, "5%"])
    assert found.exit_code == 2
    assert "add --best" in found.output
