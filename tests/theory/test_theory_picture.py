"""One call draws theory and simulation together."""

import numpy as np
import pytest

from hetsim.errors import UsageError
from hetsim.queueing.picture import theory_and_simulation
from hetsim.theory import mmc

RATE = "workload.customers.arrivals.rate"
SHORT = {"horizon": "60 s", "warmup": "10 s"}


def test_the_line_is_erlangs_formula_and_ends_where_there_is_no_steady_state():
    ax = theory_and_simulation(
        "mm16", RATE, ["12/s", "14/s", "17/s"], "wait_mean", replications=2, overrides=SHORT
    )  # fmt: skip
    simulated, theory = ax.lines
    factor = 1e-3 if "(ms)" in ax.get_ylabel() else 1.0
    drawn = np.array(theory.get_ydata()) * factor
    assert drawn[:2] == pytest.approx([mmc(rate, 1.0, 16).wait_mean for rate in (12.0, 14.0)])
    assert np.isnan(drawn[2]) and np.isfinite(simulated.get_ydata()).all()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["simulated", "theory: M/M/16"]


def test_theory_knows_what_was_overridden():
    """Of 20 servers at 14/s of 1 s each it is M/M/20, and not the M/M/16 of the scenario."""
    more = {**SHORT, "cluster.nodes.gpus.count": 20}
    ax = theory_and_simulation("mm16", RATE, ["14/s", "18/s"], "wait_mean", replications=2, overrides=more)
    factor = 1e-3 if "(ms)" in ax.get_ylabel() else 1.0
    exact = [mmc(rate, 1.0, 20).wait_mean for rate in (14.0, 18.0)]
    assert np.array(ax.lines[1].get_ydata()) * factor == pytest.approx(exact)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["simulated", "theory: M/M/20"]


@pytest.mark.slow
def test_theory_is_of_one_policy():
    with pytest.raises(UsageError, match="one policy: set it with overrides"):
        theory_and_simulation("mm16", RATE, ["14/s"], "wait_mean", policies=["sjf"])
    ax = theory_and_simulation(
        "mm16", RATE, ["12/s", "14/s"], "wait_mean", replications=2, overrides={**SHORT, "policy": "sjf"}
    )
    assert np.isnan(np.array(ax.lines[1].get_ydata())).all()
