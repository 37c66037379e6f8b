"""Shares of deadlines at the end of a run: the tasks that are judged are chosen by deadline, and then none is unknown.

The check is exact.  A run with a longer horizon does the same until the shorter one ends, and there the fate of every
task is known whose deadline lies before the end of the shorter run.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.results.one_run.result import Result

HORIZON = 100.0
CLUSTER = {"nodes": [{"cpus": 1, "gpus": {"type": "g", "count": 1}}]}
EXPONENTIAL = {"distribution": "exponential", "mean": "1 s"}
DUE = {
    "name": "due", "arrivals": {"process": "poisson", "rate": "0.9/s"}, "gpu_time": EXPONENTIAL, "slo": "20 s",
}  # fmt: skip
MANY = {**DUE, "arrivals": {"process": "poisson", "rate": "3/s"}}
FREE = {"name": "free", "arrivals": {"process": "poisson", "rate": "0.2/s"}, "gpu_time": EXPONENTIAL}
REQUESTS = {
    "name": "requests", "arrivals": {"process": "poisson", "rate": "5/s"}, "slo": "15 s",
    "service": {"compute": {"fixed": "2 s", "per_item": "150 ms"}},
}  # fmt: skip
WEIGHTY = {
    "name": "weighty", "arrivals": {"process": "poisson", "rate": "0.5/s"},
    "classes": [{"class": "dear", "weight": 1, "gpu_time": EXPONENTIAL, "slo": "30 s"},
                {"class": "cheap", "weight": 1, "gpu_time": "500 ms", "slo": "3 s"}],
}  # fmt: skip


def ran(horizon: float, workload: list[dict[str, Any]], policy: Any, **more: Any) -> Result:
    return hs.run({
        "name": "deadlines", "seed": 3, "horizon": f"{horizon} s", "cluster": CLUSTER, "workload": workload,
        "policy": policy, **more,
    })  # fmt: skip


def of_cohort(longer: pd.DataFrame, warmup: float = 0.0) -> dict[str, float]:
    """The figures that the short run should give, by a longer one that knows how its tasks ended."""
    window = longer[(longer["arrival"] >= warmup) & (longer["arrival"] < HORIZON)]
    known = window[~(window["deadline"] > HORIZON)]
    judged = known[known["deadline"].notna()]
    met = judged["finish"].le(judged["deadline"]) & (judged["status"] == "completed")
    return {
        "slo_attainment": met.mean(),
        "attainment_admitted": met.sum() / (judged["status"] != "rejected").sum(),
        "goodput_fraction": met.sum() / len(known),
        "goodput": met.sum() / len(known) * len(window) / (HORIZON - warmup),
        "deadline_after_end": len(window) - len(known),
    }


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("workload", "policy"),
    [
        ([DUE], "fcfs"),
        ([DUE, FREE], "sjf"),
        ([WEIGHTY, FREE], "edf"),
        ([MANY], {"admission": {"name": "queue_limit", "limit": 9}}),
        ([REQUESTS], {"batching": "serial_greedy"}),
        ([{**DUE, "patience": "10 s"}], "fcfs"),
    ],
)  # fmt: skip
def test_shares_of_deadlines_are_those_of_a_run_that_sees_how_it_ends(workload: list[dict[str, Any]], policy: Any):
    found = ran(HORIZON, workload, policy)
    expected = of_cohort(ran(2 * HORIZON, workload, policy).tasks)
    assert expected["deadline_after_end"] > 0 and found.metric("unfinished_count") > 0
    assert found.values(expected) == pytest.approx(expected, rel=1e-12)


def test_a_warmup_leaves_its_tasks_out():
    expected = of_cohort(ran(2 * HORIZON, [DUE], "fcfs").tasks, warmup=30)
    assert ran(HORIZON, [DUE], "fcfs", warmup="30 s").values(expected) == pytest.approx(expected, rel=1e-12)


def test_met_deadline_is_open_after_the_end_and_only_there():
    tasks = ran(HORIZON, [WEIGHTY, FREE], "fcfs").tasks
    late = tasks["deadline"] > HORIZON
    assert tasks["met_deadline"].isna().equals(late | tasks["deadline"].isna())
    assert (late & (tasks["status"] == "completed")).any()  # what was fast leaves with the rest


def test_values_of_tasks_by_the_same_rule():
    workload = [DUE, FREE]
    found, tasks = ran(HORIZON, workload, "fcfs"), ran(2 * HORIZON, workload, "fcfs").tasks
    tasks = tasks[(tasks["arrival"] < HORIZON) & ~(tasks["deadline"] > HORIZON)]
    done = (tasks["status"] == "completed") & (tasks["finish"] < HORIZON)
    worth = done & ~(tasks["finish"] > tasks["deadline"])
    assert found.metric("value_fraction") == pytest.approx(worth.mean(), rel=1e-12)


def test_a_drained_run_counts_every_deadline():
    """Nothing is open there, however far away the deadlines are."""
    found = hs.run({
        "name": "drained", "cluster": CLUSTER,
        "workload": [{"name": "few", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 20,
                      "gpu_time": "10 ms", "slo": "1 h"}],
    })  # fmt: skip
    assert found.metric("slo_attainment") == found.metric("goodput_fraction") == 1.0
    assert found.metric("deadline_after_end") == 0




@pytest.mark.parametrize("limits", [{"ttft": "1 s", "tpot": "50 ms"}, {"ttft": "3 s"}])
def test_limits_on_tokens_have_a_deadline_too(limits: dict[str, str]):
    """Of the first token, and of further ones from when the first is due."""
    horizon, key = 45.0, "workload.chat.service.slo"
    scenario = hs.load("chunked-prefill", {key: limits, "horizon": f"{horizon} s", "warmup": "0 s"})
    found = hs.run(scenario)
    tasks = hs.run(scenario.with_overrides({"horizon": f"{2 * horizon} s"})).tasks
    tasks = tasks[tasks["arrival"] < horizon]
    first, further = 1.0 if "tpot" in limits else 3.0, 0.05 if "tpot" in limits else 0.0
    judged = tasks[tasks["arrival"] + first + further * (tasks["output_tokens"] - 1) <= horizon]
    met = judged["ttft"] <= first
    if further:
        met &= (judged["status"] == "completed") & ~(judged["tpot"] > further)
    assert 0 < len(judged) < len(tasks) and found.metric("unfinished_count") > 0
    assert found.metric("deadline_after_end") == len(tasks) - len(judged)
    assert found.metric("slo_attainment") == pytest.approx(met.mean(), rel=1e-12)


def test_batch_means_are_of_the_same_tasks():
    found = ran(4000.0, [DUE], "fcfs")
    judged = int(found.metric("task_count") - found.metric("deadline_after_end"))
    for metric in ("slo_attainment", "goodput_fraction"):
        over = judged % 10
        told = found.batch_means(metric, 10).mean
        assert told == pytest.approx(found.tasks["met_deadline"].dropna().astype(float).iloc[over:].mean(), rel=1e-12)


def test_the_same_from_a_directory(tmp_path: Any):
    found = ran(HORIZON, [DUE], "fcfs")
    loaded = Result.load(found.save(tmp_path / "run"))
    for metric in ("slo_attainment", "deadline_after_end", "value_fraction"):
        assert loaded.metric(metric) == found.metric(metric)


def test_deadlines_that_all_lie_after_the_end_are_told():
    found = ran(10, [DUE], "fcfs")
    assert math.isnan(found.metric("slo_attainment")) and math.isnan(found.metric("goodput"))
    assert any("lies after the end of the run" in text for text in found.warnings)


SERVED = {
    "name": "served", "horizon": "2 s", "warmup": "500 ms",
    "cluster": {"nodes": [{"count": 1, "cpus": 1, "gpus": {"type": "g", "count": 1}}]},
    "workload": [{"name": "requests", "arrivals": {"process": "poisson", "rate": "2000/s"}, "slo": "250 ms",
                  "service": {"compute": {"per_item": "1.2 ms", "fixed": "10 ms"}}}],
    "policy": {"batching": "serial_greedy"},
}  # fmt: skip


@pytest.mark.slow
def test_a_target_of_deadlines_can_be_met():
    """Requests in flight at the end were misses, so that no number of GPUs met a target of 99.99 %."""
    found = hs.size(SERVED, "slo_attainment > 99.99%", "cluster.nodes.0.count", least=2, most=6, replications=3)
    assert found.size == 3
    assert next(trial.mean for trial in found.trials if trial.size == 3) == 1.0


def test_the_overview_counts_those_after_the_end(tmp_path: Any):
    import yaml

    file = tmp_path / "served.yaml"
    file.write_text(yaml.safe_dump(SERVED))
    shown = CliRunner().invoke(main, ["run", str(file), "--set", "cluster.nodes.0.count=6"])
    assert "deadlines met   100 %" in shown.stdout
    assert "with a deadline after the end" in shown.stdout
