"""Calls: goodput that does not come back is told, and what is drawn over time adds up to what is counted."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.results.one_run.calls import RATES, rates_over

SHORT = {"warmup": "0 s", "horizon": "6 min", "replications": 1}


@pytest.fixture(scope="module")
def storm():
    return hs.run("metastable", overrides=SHORT)


def test_goodput_that_stays_down_is_told_with_the_time_since_the_trigger(storm):
    """The last part with clearly more arrivals than were ever served ends at 2 min, of 6 min."""
    (text,) = [text for text in storm.warnings if "not recovered" in text]
    assert text.startswith("goodput has not recovered 24") and " 0% of the calls are answered" in text
    assert storm.metric("call_goodput") < 3


@pytest.mark.quick(0)
def test_goodput_that_comes_back_or_never_was_there_is_not_told():
    """Under lcfs it comes back; where the load stays above capacity the trigger is not over."""
    for more in ({"policy": "lcfs"}, {"workload.calls.arrivals": {"process": "poisson", "rate": "21/s"}},
                 {"workload.calls.cpu_time": "5 s"}):  # fmt: skip
        assert not [text for text in hs.run("metastable", overrides=SHORT | more).warnings if "not recovered" in text]


@pytest.mark.slow
def test_rates_over_time_add_up(storm):
    edges = np.linspace(0, storm.end, 37)
    answered, attempts, wasted = (rates_over(storm.record, storm.modes, edges)[name] * np.diff(edges) for name in RATES)
    assert answered.sum() == (storm.calls["status"] == "completed").sum()
    assert attempts.sum() == len(storm.tasks) == storm.calls["attempts"].sum()
    assert wasted.sum() == pytest.approx(storm.metric("wasted_device_s"))
    table = storm.tasks
    ran = (table["finish"].fillna(storm.end) - table["start"])[table["status"].isin(["aborted", "unfinished"])]
    assert storm.metric("wasted_device_s") == pytest.approx(ran.dropna().sum(), abs=10 * 1.5)
    names = {panel.y.label for panel in hs.plots.over_time(storm).panels}
    assert set(RATES) < names


@pytest.mark.slow
def test_what_is_shown_of_a_run_says_what_became_of_its_calls(storm, tmp_path):
    storm.save(tmp_path / "run")
    command = CliRunner()
    assert command.invoke(main, ["report", str(tmp_path / "run")]).exit_code == 0
    shown = command.invoke(main, ["run", "metastable", *(f"--set={key}={value}" for key, value in SHORT.items())])
    line = r"^calls +[\d.]+/s answered, 3.\d+ attempts each, \d+ min of devices wasted$"
    assert re.search(line, shown.output, re.MULTILINE)
    assert storm.text("call_response_p99") == "∞"


def test_runs_without_clients_have_no_calls():
    run = hs.run("first-steps")
    assert run.calls.empty and "attempt_of" not in run.tasks and "call_goodput" not in run.summary.index
    assert np.isnan(run.metric("wasted_device_s")) and np.isnan(run.metric("call_goodput"))
