"""A policy that refuses a scenario before its clock starts is a row of a comparison; the others are as without it."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli.program import hetsim as program
from hetsim.errors import PolicyError, ScenarioError, UnknownName, UsageError
from hetsim.experiment.directory import load_any
from hetsim.policy import Scheduler

TIME = {"distribution": "exponential", "mean": "1 s"}
JOBS = {"name": "jobs", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 40, "gpu_time": TIME}
NODES = {"cpus": 2, "gpus": {"type": "g", "count": 2}}
SCENARIO = {"name": "s", "cluster": {"nodes": [NODES]}, "workload": [JOBS], "policy": "fcfs"}


class RefusesLate(Scheduler):
    """Refuses when the run is begun, after the scenario was read."""

    def prepare(self, problem):
        raise ScenarioError("no plan for such jobs")


class Fails(Scheduler):
    """Raises in its first round."""

    def schedule(self, view):
        raise RuntimeError("lost")
        yield


LEARNED = "policy.scheduler.path: this key is missing"


@pytest.fixture(autouse=True)
def registered():
    hs.register("refuses_late", RefusesLate)
    hs.register("fails", Fails)


@pytest.mark.quick(2)
@pytest.mark.parametrize("more", [
    {}, {"replications": 3}, {"replications": {"precision": 0.5, "metric": "response_mean", "max": 12}},
    {"replications": 5, "best": "response_mean", "delta": 0.5}, {"replications": 3, "by": ["user"], "baseline": "sjf"},
    pytest.param({"replications": 10, "overrides": {"warmup": "auto", "workload.0.count": 400}},
                 marks=pytest.mark.slow),
], ids=["one run", "replications", "precision", "best", "groups", "warm-up"])  # fmt: skip
def test_the_others_are_compared_as_if_it_were_not_there(more):
    asked = ["refuses_late", "fcfs", "learned", "sjf"]
    found, alone = (hs.compare(SCENARIO, policies, **more) for policies in (asked, ["fcfs", "sjf"]))
    assert found.refused == {"refuses_late": "no plan for such jobs", "learned": LEARNED} and not alone.refused
    pd.testing.assert_frame_equal(found.table, alone.table)
    pd.testing.assert_frame_equal(found.pairs, alone.pairs)
    assert found.sentences == alone.sentences and list(found.runs) == ["fcfs", "sjf"]


@pytest.mark.slow
def test_workers_find_the_same():
    asked = ["refuses_late", "fcfs", "learned", "sjf"]
    one, two = (hs.compare(SCENARIO, asked, replications=4, workers=workers) for workers in (1, 2))
    assert one.refused == two.refused
    pd.testing.assert_frame_equal(one.table, two.table)


@pytest.mark.parametrize("more", [{}, {"replications": 3, "best": "response_mean"}], ids=["compare", "best"])
@pytest.mark.parametrize(("policy", "message"), [
    ("sfj", 'did you mean "sjf"'),
    ({"schedule": "sjf"}, 'did you mean "scheduler"'),
    ({"scheduler": {"name": "sfj"}}, 'did you mean "sjf"'),
    ({"scheduler": {"name": "fcfs", "placement": "bestfit"}}, 'did you mean "best_fit"'),
    ({"scheduler": {"name": "local_search", "evaluatons": 3}}, 'did you mean "evaluations"'),
    ({"scheduler": {"name": "local_search", "evaluations": "many"}}, "must be a whole number"),
    ({"scheduler": {"name": "learned", "pth": "net.zip"}}, 'did you mean "path"'),
    ({"scheduler": {"name": "learned", "path": "nowhere.zip"}}, "no file"),
])  # fmt: skip
def test_a_mistake_in_a_policy_is_no_refusal(policy, message, more):
    with pytest.raises((ScenarioError, UnknownName), match=message):
        hs.compare(SCENARIO, ["srtf", "learned", policy], **more)


def test_where_all_refuse_the_errors_are_told():
    with pytest.raises(ScenarioError, match="no plan for such jobs") as caught:
        hs.compare(SCENARIO, ["refuses_late", "learned"])
    assert "this key is missing" in str(caught.value)


@pytest.mark.parametrize("baseline", ["refuses_late", "learned"])
def test_a_baseline_that_refuses_ends_the_comparison(baseline):
    with pytest.raises(ScenarioError, match=f'the baseline "{baseline}" cannot run the scenario'):
        hs.compare(SCENARIO, ["fcfs", baseline, "sjf"], baseline=baseline)


def test_a_selection_needs_two_that_run():
    with pytest.raises(ScenarioError, match="no plan for such jobs"):
        hs.compare(SCENARIO, ["fcfs", "refuses_late"], best="response_mean")


def test_one_that_is_left_is_no_winner():
    found = hs.compare(SCENARIO, ["fcfs", "refuses_late"], replications=3)
    assert set(found.winners.values()) == {None} and found.pairs.empty
    assert "refuses_late refuses: no plan for such jobs" in repr(found)


@pytest.mark.quick(0)
def test_a_run_that_fails_is_no_refusal():
    with pytest.raises(PolicyError, match="lost"):
        hs.compare(SCENARIO, ["fcfs", "fails"])
    with pytest.raises(UsageError, match="given twice"):
        hs.compare(SCENARIO, ["fcfs", "refuses_late", "refuses_late"])


def hetsim(*words):
    return CliRunner().invoke(program, ["compare", "cholesky-8", "--policy", "heft", "--policy", "learned", *words])


@pytest.mark.quick(0)
def test_table_and_json_show_the_reason():
    shown = hetsim("--policy", "peft")
    assert shown.exit_code == 0 and f"learned   refuses: {LEARNED}" in shown.stdout
    assert json.loads(hetsim("--policy", "peft", "--json").stdout)["refused"] == {"learned": LEARNED}
    assert hetsim("--policy", "peft", "--baseline", "learned").exit_code == 3


@pytest.mark.slow
def test_folder_and_page_show_the_reason(tmp_path):
    assert hetsim("--policy", "peft", "--out", str(tmp_path / "out")).exit_code == 0
    assert pd.read_csv(tmp_path / "out" / "comparison.csv", index_col=0)["refused"]["learned"] == LEARNED
    assert load_any(tmp_path / "out").refused == {"learned": LEARNED}
    assert CliRunner().invoke(program, ["report", str(tmp_path / "out")]).exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"refuses: {LEARNED}" in page and "--policy learned" in page
