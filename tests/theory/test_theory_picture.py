"""One call draws theory and simulation together."""

import numpy as np
import pytest

from hetsim.errors import UsageError
from hetsim.queueing.picture import theory_and_simulation
from hetsim.theory import mmc

RATE = "workload.customers.arrivals.rate"
SHORT = {"horizon": "60 s", "warmup": "10 s"}


def test_the_line_is_erlangs_formula_and_ends_where_there_is_no_steady_state():
    picture = theory_and_simulation(
        "mm16", RATE, ["12/s", "14/s", "17/s"], "wait_mean", replications=2, overrides=SHORT
    )  # fmt: skip
    (panel,) = picture.panels
    simulated, theory = panel.marks[0], panel.marks[-1]
    factor = 1e-3 if "(ms)" in panel.y.label else 1.0
    drawn = theory.y * factor
    assert drawn[:2] == pytest.approx([mmc(rate, 1.0, 16).wait_mean for rate in (12.0, 14.0)])
    assert np.isnan(drawn[2]) and np.isfinite(simulated.y).all()
    assert [mark.label for mark in panel.marks if mark.label] == ["simulated", "theory: M/M/16"]


def test_theory_knows_what_was_overridden():
    """Of 20 servers at 14/s of 1 s each it is M/M/20, and not the M/M/16 of the scenario."""
    more = {**SHORT, "cluster.nodes.gpus.count": 20}
    picture = theory_and_simulation("mm16", RATE, ["14/s", "18/s"], "wait_mean", replications=2, overrides=more)
    (panel,) = picture.panels
    factor = 1e-3 if "(ms)" in panel.y.label else 1.0
    exact = [mmc(rate, 1.0, 20).wait_mean for rate in (14.0, 18.0)]
    assert panel.marks[-1].y * factor == pytest.approx(exact)
    assert [mark.label for mark in panel.marks if mark.label] == ["simulated", "theory: M/M/20"]


@pytest.mark.slow
def test_theory_is_of_one_policy():
    with pytest.raises(UsageError, match="one policy: set it with overrides"):
        theory_and_simulation("mm16", RATE, ["14/s"], "wait_mean", policies=["sjf"])
    picture = theory_and_simulation(
        "mm16", RATE, ["12/s", "14/s"], "wait_mean", replications=2, overrides={**SHORT, "policy": "sjf"}
    )
    assert np.isnan(picture.panels[0].marks[-1].y).all()
