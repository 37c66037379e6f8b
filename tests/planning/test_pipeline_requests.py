"""Requests through the stages of a pipeline are counted once: theory, conservation, horizons, refusals, faults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats
from tiers import spread

import hetsim as hs
from hetsim.cli import main
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.learning.environment.episode import Episodes
from hetsim.policy import Accept, Admission, Defer, Reject
from hetsim.results.one_run.explain import causes, ending, explain, explain_all
from hetsim.results.one_run.result import Result

TWO = "layer,activations,weights,seconds.one,seconds.two\na,0,1,3,100\nb,0,1,100,2\n"
"""Layer a takes 3 s on a device of type one, b 2 s on one of type two; nothing is sent between them."""


def pipeline(folder: Path, layers: str = TWO, *, kinds: str = "one two", streams: int = 1, **keys: Any) -> dict:
    """A scenario of one pipeline, each type of device on a node of its own; `keys` change the entry or the scenario."""
    (folder / "layers.csv").write_text(layers)
    scenario = {key: keys.pop(key) for key in ("horizon", "warmup", "faults", "policy", "seed", "replications")
                if key in keys}  # fmt: skip
    stages = {"profile": str(folder / "layers.csv"), "replication": False, **keys.pop("pipeline", {})}
    entry = {"name": "net", "arrivals": {"process": "all_at_once", "count": 1}, "pipeline": stages, **keys}
    nodes = [{"name": kind, "gpus": {"type": kind, "streams": streams}} for kind in kinds.split()]
    return {"name": "pipe", "cluster": {"nodes": nodes}, "workload": [entry], **scenario}


def every(seconds: float) -> dict[str, Any]:
    return {"process": "deterministic", "interval": f"{seconds} s"}


def fates(result: Result) -> int:
    names = ("completed_count", "rejected_count", "expired_count", "failed_count", "unfinished_count")
    return int(sum(result.metric(name) for name in names))


# What a request takes ------------------------------------------------------------------------------------------------


def test_a_request_alone_takes_the_sum_of_its_stages(tmp_path: Path) -> None:
    run = hs.run(pipeline(tmp_path, arrivals=every(10), count=4, slo="5 s"))
    assert run.metric("task_count") == run.metric("completed_count") == len(run.tasks) == 4
    assert run.metric("response_mean") == run.metric("response_max") == 5
    assert run.metric("slowdown_max") == 1
    assert run.metric("wait_max") == 0
    assert [run.metric(name) for name in ("slo_attainment", "attainment_admitted", "goodput_fraction")] == [1, 1, 1]
    assert run.tasks["compute"].tolist() == [5] * 4
    assert run.tasks["device_type"].tolist() == ["one+two"] * 4


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(8))
def test_alone_on_any_pipeline_nothing_is_slowed_down(tmp_path: Path, seed: int) -> None:
    """Random networks and links: T* is what a run with nothing else takes, input, output and transfers included."""
    draw = np.random.default_rng(seed)
    items = 1 if seed < 5 else int(draw.integers(2, 20))
    sizes = draw.integers(0, 2_000_000, 5)
    times = draw.uniform(1, 9, (5, 3))
    rows = [f"l{k},{sizes[k]},1,{','.join(map(str, times[k]))}" for k in range(5)]
    scenario = pipeline(
        tmp_path, "\n".join(["layer,activations,weights,seconds.a,seconds.b,seconds.c", *rows]) + "\n", kinds="a b c",
        streams=2, pipeline={"items": items}, bytes_in="1 MB" if items == 1 else "0 B",
    )  # fmt: skip
    for node in scenario["cluster"]["nodes"]:
        node["network"] = {"out": f"{draw.uniform(0.5, 3)} MB/s", "latency": "10 ms"}
        node["gpus"]["pcie"] = {"upload": f"{draw.uniform(2, 12)} MB/s", "latency": "5 ms"}
    assert hs.run(scenario).metric("slowdown_mean") == pytest.approx(1, rel=1e-9)


def test_the_slowest_stage_sets_the_pace(tmp_path: Path) -> None:
    """20 requests at once: one leaves every 3 s, the k-th after 3k + 2 s; Little's law holds for requests."""
    run = hs.run(pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 20}, slo="31 s"))
    assert run.tasks["response"].tolist() == [3 * k + 2 for k in range(1, 21)]
    assert run.metric("throughput") == 20 / 62
    assert run.metric("slo_attainment") == run.metric("goodput_fraction") == 9 / 20
    assert run.metric("goodput") == pytest.approx(9 / 62)
    assert run.metric("jobs_in_system_mean") == pytest.approx(20 / 62 * run.metric("response_mean"))
    columns = run.tasks[["wait", "upload", "compute", "download", "overhead"]].sum(axis=1)
    assert columns.tolist() == pytest.approx(run.tasks["response"].tolist())
    assert run.tasks["wait"].tolist() == [3.0 * k for k in range(20)]


@pytest.mark.parametrize("times", [(3.0, 2.0), (2.0, 3.0), (2.5, 2.5)])
def test_two_queues_in_a_row(tmp_path: Path, times: tuple[float, float]) -> None:
    """Each request by itself, by Lindley's recursion (1952): a stage begins when the one before it and its own last
    request have ended."""
    layers = f"layer,activations,weights,seconds.one,seconds.two\na,0,1,{times[0]},100\nb,0,1,100,{times[1]}\n"
    entry: dict[str, Any] = {"arrivals": {"process": "poisson", "rate": "0.3/s"}, "count": 400}
    run = hs.run(pipeline(tmp_path, layers, **entry))
    done = run.tasks["arrival"].to_numpy()
    waited = np.zeros(len(done))
    for time in times:
        ended, free = [], -math.inf
        for k, there in enumerate(done):
            waited[k] += max(0.0, free - there)
            free = max(free, there) + time
            ended.append(free)
        done = np.array(ended)
    assert run.tasks["finish"].to_numpy() == pytest.approx(done)
    assert run.tasks["wait"].to_numpy() == pytest.approx(waited, abs=1e-9)
    assert run.metric("response_p95") > 2 * sum(times)


ONE_NODE = {"name": "n", "gpus": {"type": "gpu"}, "accelerators": {"type": "npu", "kind": "npu"}}


def on_one_node(folder: Path, *others: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """a takes 3 s on an NPU and b 4 s on the GPU of the same node, 20 requests at once; other work comes first."""
    layers = "layer,activations,weights,seconds.npu,seconds.gpu\na,0,1,3,100\nb,0,1,100,4\n"
    scenario = pipeline(folder, layers, arrivals={"process": "all_at_once", "count": 20}, **keys)
    return {**scenario, "cluster": {"nodes": [ONE_NODE]}, "workload": [*others, *scenario["workload"]]}


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "ljf", "easy_backfill", "conservative_backfill"])
def test_what_waits_for_one_stage_does_not_hold_up_another(tmp_path: Path, policy: str) -> None:
    """A request leaves every 4 s, whichever of the stages the policy puts first."""
    run = hs.run(on_one_node(tmp_path, policy=policy), check=True)
    assert run.metric("makespan") == 3 + 20 * 4


def test_jobs_and_stages_keep_their_order(tmp_path: Path) -> None:
    """A job that came first and wants both accelerators' node holds up the stages, as strict order wants it; so does
    one in a partition of that node."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 2}, "gpu_time.gpu": "10 s"}
    first = hs.run(on_one_node(tmp_path, job))
    assert first.stages["start"].min() == 10  # the second job waits for the GPU until then
    scenario = on_one_node(tmp_path, {**job, "partition": "p"})
    scenario["cluster"] = {"nodes": [{**ONE_NODE, "partitions": ["p"]}]}
    assert hs.run(scenario).stages["start"].min() == 10
    cluster = hs.load(on_one_node(tmp_path)).build().cluster
    gpu, npu = cluster.types["gpu"], cluster.types["npu"]
    assert cluster.claims(1, gpu) & cluster.claims(1, npu) == 0
    assert cluster.claims(1, gpu) & cluster.claims(1) and cluster.claims(1, npu) & cluster.claims(1)
    alike = hs.load(pipeline(tmp_path)).build().cluster
    assert [alike.claims(mask) for mask in (1, 2, 3)] == [1, 2, 3]
    assert alike.claims(3, alike.types["one"]) == 3


# Stages by themselves -------------------------------------------------------------------------------------------------


def test_stages_stay_in_a_table_of_their_own(tmp_path: Path) -> None:
    run = hs.run(pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 4}))
    stages = run.stages
    assert stages["id"].tolist() == [f"{k}/{s}" for k in range(4) for s in (1, 2)]
    assert stages["request"].tolist() == [f"{k}" for k in range(4) for _ in (1, 2)]
    assert set(stages["id"]) == set(run.launches["task"])
    assert not {"response", "deadline", "met_deadline", "slowdown"} & set(stages.columns)
    figures = run.by_stage
    assert figures.index.tolist() == ["net stage 1", "net stage 2"]
    assert figures["service_mean"].tolist() == [3, 2]
    assert figures["items"].tolist() == figures["completed"].tolist() == [4, 4]
    assert figures["wait_mean"].tolist() == [(0 + 3 + 6 + 9) / 4, 0]
    assert figures["utilization"].tolist() == pytest.approx([12 / 14, 8 / 14])
    parts = figures[["wait_mean", "service_mean", "overhead_mean"]].to_numpy().sum()
    assert parts == pytest.approx(run.metric("response_mean"))


def test_without_pipelines_there_are_no_stages() -> None:
    run = hs.run({"name": "plain", "cluster": {"nodes": [{"cpus": 1}]},
                   "workload": [{"name": "w", "arrivals": every(1), "count": 3, "cpu_time": "1 s"}]})  # fmt: skip
    assert run.stages.empty
    assert run.by_stage.empty


# Several items --------------------------------------------------------------------------------------------------------


def test_a_job_of_many_items_is_one_job(tmp_path: Path) -> None:
    """10 items take 2 + 10 × 3 s; of the job all of that is computing."""
    run = hs.run(pipeline(tmp_path, streams=2, pipeline={"items": 10}, slo="32 s"))
    (job,) = run.tasks.to_dict("records")
    assert (job["id"], job["response"], job["compute"], job["wait"], job["overhead"]) == ("0", 32, 32, 0, 0)
    assert job["met_deadline"] is True
    assert run.metric("slowdown_mean") == 1
    assert run.by_stage["items"].tolist() == [10, 10]
    late = pipeline(tmp_path, streams=2, pipeline={"items": 10, "training": True}, slo="31.9 s")
    assert hs.run(late).metric("slo_attainment") == 0


def test_the_plan_keeps_the_deadline_of_all_items(tmp_path: Path) -> None:
    """All on type one: an item every 5 s, 5 s for the first; with b on type two every 4 s, but 8 s for the first."""
    layers = "layer,activations,weights,seconds.one,seconds.two\na,0,1,4,100\nb,0,1,1,4\n"

    def plan(items: int, slo: str) -> str:
        loaded = hs.load(pipeline(tmp_path, layers, pipeline={"items": items}, slo=slo))
        loaded.build()
        return next(note for note in loaded.notes if "an item every" in note)

    assert "an item every 4 s, latency 8 s" in plan(3, "16 s")  # 8 + 2 × 4
    assert "an item every 5 s, latency 5 s" in plan(3, "15.5 s")  # 5 + 2 × 5
    said = "with an item every 5 s all take 15 s"
    with pytest.raises(ScenarioError, match=said):
        plan(3, "14 s")


def test_replicas_and_rounds(tmp_path: Path) -> None:
    """31 items of 12 s on three devices are 11 rounds, and none of it is delay."""
    scenario = pipeline(tmp_path, "layer,activations,weights,seconds.one\na,0,1,12\n", kinds="one",
                        pipeline={"items": 31, "replication": True})  # fmt: skip
    scenario["cluster"]["nodes"][0]["count"] = 3
    run = hs.run(scenario)
    assert run.metric("response_mean") == 132
    assert run.metric("slowdown_mean") == 1
    assert run.by_stage["devices"].tolist() == [3]


# The end of a run -----------------------------------------------------------------------------------------------------


def test_a_horizon_judges_requests_by_their_deadline(tmp_path: Path) -> None:
    """A request every 3 s from 0 on takes 5 s and is due after 6 s.  At 20.5 s those that came up to 14.5 s are judged;
    that of 15 s is done before its deadline and does not count, that of 18 s is in its first stage."""
    run = hs.run(pipeline(tmp_path, arrivals=every(3), slo="6 s", horizon="20.5 s"))
    arrived = run.tasks["arrival"].tolist()
    assert arrived == [0, 3, 6, 9, 12, 15, 18]
    assert run.metric("deadline_after_end") == 2
    assert run.tasks["met_deadline"].tolist()[:5] == [True] * 5
    assert run.tasks["met_deadline"].isna().tolist()[5:] == [True] * 2
    assert run.metric("slo_attainment") == run.metric("goodput_fraction") == 1
    assert run.metric("goodput") == pytest.approx(7 / 20.5)
    assert run.metric("unfinished_count") == 1
    open_ = run.tasks[run.tasks["status"] == "unfinished"]
    assert open_[["finish", "response", "slowdown", "overhead"]].isna().all(axis=None)
    assert fates(run) == run.metric("task_count") == len(arrived)


def test_a_warm_up_leaves_out_whole_requests(tmp_path: Path) -> None:
    run = hs.run(pipeline(tmp_path, arrivals=every(4), count=10, warmup="9 s"))
    kept = run.tasks.query("arrival >= 9")
    assert run.metric("task_count") == len(kept)
    assert run.by_stage["items"].tolist() == [len(kept)] * 2
    assert run.metric("throughput") == (run.tasks["finish"] >= 9).sum() / (run.end - 9)


def test_wait_is_known_once_the_last_stage_has_started(tmp_path: Path) -> None:
    run = hs.run(pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 3}, horizon="7 s"))
    assert run.tasks["status"].tolist() == ["completed", "unfinished", "unfinished"]
    assert run.tasks["wait"].tolist()[:2] == [0, 3]
    assert math.isnan(run.tasks["wait"][2])
    assert run.metric("wait_max") == math.inf


# Admission, expiry, faults --------------------------------------------------------------------------------------------


class Answering(Admission):
    """Gives answers in turn, and writes down what it was asked and told."""

    answers: tuple[Any, ...] = ()
    made: Answering

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        type(self).made = self

    def admit(self, task: Any, view: Any) -> Any:
        answer = self.answers[sum(what == "asked" for what, _ in self.seen) % len(self.answers)]
        self.seen.append(("asked", task.id))
        return Defer(view.now + 1.0) if answer is Defer else answer

    def finished(self, task: Any) -> None:
        self.seen.append(("finished", task.id))

    def gone(self, task: Any) -> None:
        self.seen.append(("gone", task.id))


def answered(scenario: dict[str, Any], *answers: Any) -> tuple[Result, list[tuple[str, Any]]]:
    """A run under such answers, and what the policy saw."""
    hs.register("answering", type("Mine", (Answering,), {"answers": answers}), kind="admission")
    policy = {"scheduler": "fcfs", "admission": "answering"}
    run = hs.run({**scenario, "policy": policy}, check=True)
    return run, run.record.input.admission.seen


def test_admission_is_asked_once_for_a_request(tmp_path: Path) -> None:
    """Yes, no, yes: the first stage is what it is asked about and what it is told of, at the end of the last one."""
    scenario = pipeline(tmp_path, arrivals=every(10), count=3, slo="5 s")
    run, seen = answered(scenario, Accept(), Reject(reason="full"), Accept())
    assert seen == [("asked", "0/1"), ("finished", "0/1"), ("asked", "1/1"), ("gone", "1/1"), ("asked", "2/1"),
                    ("finished", "2/1")]  # fmt: skip
    assert run.tasks["status"].tolist() == ["completed", "rejected", "completed"]
    assert run.tasks["reason"].tolist()[1] == "full"
    assert run.stages["status"].tolist() == ["completed"] * 2 + ["rejected"] * 2 + ["completed"] * 2
    assert run.metric("rejected_count") == 1
    assert run.metric("rejected_fraction") == pytest.approx(1 / 3)
    assert run.metric("slo_attainment") == run.metric("goodput_fraction") == pytest.approx(2 / 3)
    assert run.metric("attainment_admitted") == 1
    assert fates(run) == 3


@pytest.mark.parametrize("items", [1, 3])
def test_a_deferred_request_waits_as_a_whole(tmp_path: Path, items: int) -> None:
    scenario = pipeline(tmp_path, arrivals=every(60), count=2, streams=2, pipeline={"items": items})
    run, seen = answered(scenario, Defer, Defer, Accept(), Defer, Reject(reason="no"))
    assert [what for what, _ in seen] == ["asked"] * 3 + ["finished"] + ["asked"] * 2 + ["gone"]
    assert run.tasks["status"].tolist() == ["completed", "rejected"]
    assert run.tasks["response"][0] == 2 + 5 + 3 * (items - 1)
    assert run.tasks["wait"][0] == 2
    assert run.tasks["finish"][1] == run.tasks["arrival"][1] + 1
    assert len(run.stages) == 4 * items


def test_a_request_that_expires_in_its_second_stage_has_expired(tmp_path: Path) -> None:
    """Three at once, due after 10.5 s, where b takes 4 s: edf gives up the third, whose second stage could begin at
    11 s.  The second one is done at 11 s, too late."""
    layers = TWO.replace("100,2", "100,4")
    entry: dict[str, Any] = {"arrivals": {"process": "all_at_once", "count": 3}, "slo": "10.5 s"}
    run = hs.run(pipeline(tmp_path, layers, **entry, policy={"scheduler": {"name": "edf", "drop_expired": True}}))
    assert run.stages["status"].tolist() == ["completed"] * 5 + ["expired"]
    assert run.tasks["status"].tolist() == ["completed", "completed", "expired"]
    assert "deadline passed" in run.tasks["reason"][2]
    assert run.metric("expired_count") == 1
    assert run.metric("failed_count") == 0
    assert run.metric("slo_attainment") == pytest.approx(1 / 3)
    assert fates(run) == 3
    assert run.explain("2")["stage"].unique().tolist() == ["net stage 1", "net stage 2"]
    assert ending(run, "2")["status"] == "expired"
    assert ending(run, "2")["launches"] == 1


def test_a_fault_in_one_stage_delays_its_requests(tmp_path: Path) -> None:
    """The second device fails from 4 s to 10 s: its work on the first request is lost."""
    faults = [{"maintenance": {"nodes": "two", "from": "4 s", "for": "6 s"}}]
    run = hs.run(pipeline(tmp_path, arrivals=every(10), count=2, faults=faults))
    assert run.tasks["response"].tolist() == [12, 5]
    assert run.tasks["overhead"].tolist() == [7, 0]
    assert run.metric("completed_count") == 2
    assert ending(run, "0")["stops"] == 1


# With other work ------------------------------------------------------------------------------------------------------


def mixed(folder: Path) -> dict[str, Any]:
    """Two pipelines, a service and plain jobs on the same devices."""
    scenario = pipeline(folder, arrivals={"process": "poisson", "rate": "0.1/s"}, count=80, slo="40 s", user="a",
                        bytes_in="1 kB")  # fmt: skip
    first = scenario["workload"][0]
    second = {**first, "name": "wide", "user": "b", "count": 30, "weight": 3,
              "pipeline": {**first["pipeline"], "items": 3}}  # fmt: skip
    service = {"name": "served", "arrivals": {"process": "poisson", "rate": "0.2/s"}, "count": 100, "slo": "30 s",
               "service": {"compute": {"fixed": "0.5 s"}, "max_batch": 4}}  # fmt: skip
    jobs = {"name": "jobs", "arrivals": {"process": "poisson", "rate": "0.05/s"}, "count": 40, "user": "c",
            "gpu_time": "2 s"}  # fmt: skip
    return {**scenario, "workload": [first, second, service, jobs]}


@pytest.mark.slow
def test_two_pipelines_beside_a_service_and_jobs(tmp_path: Path) -> None:
    run = hs.run(mixed(tmp_path), check=True)
    tasks, stages = run.tasks, run.stages
    assert run.metric("task_count") == len(tasks) == fates(run) == 250
    assert tasks["id"].is_unique
    assert tasks["class"].value_counts().to_dict() == {"net": 80, "wide": 30, "served": 100, "jobs": 40}
    assert set(stages["request"]) == set(tasks[tasks["class"].isin(["net", "wide"])]["id"])
    assert len(stages) == 80 * 2 + 30 * 3 * 2
    assert run.by_stage.index.tolist() == ["net stage 1", "net stage 2", "wide stage 1", "wide stage 2"]
    ends = stages.groupby("request")["finish"].max()
    whole = tasks.set_index("id")["finish"]
    assert (whole[ends.index] == ends).all()
    groups = run.by("class", ["task_count", "response_mean", "slo_attainment", "gpu_seconds"])
    assert groups.loc["net", "response_mean"] == tasks.loc[tasks["class"] == "net", "response"].mean()
    assert groups["gpu_seconds"].sum() == pytest.approx(run.metric("gpu_seconds"))
    assert groups.loc["wide", "gpu_seconds"] == pytest.approx(30 * 3 * 5)
    assert run.metric("jobs_in_system_mean") * run.end == pytest.approx(tasks["response"].sum())
    assert explain_all(run)["tasks"].to_dict() == tasks["class"].value_counts().to_dict()
    waits = causes(run).set_index("id")["wait"]
    alone = tasks[tasks["class"] != "wide"].set_index("id")
    assert waits[alone.index].to_numpy() == pytest.approx(alone["wait"].to_numpy())
    columns = alone[["wait", "upload", "compute", "download", "overhead"]].sum(axis=1)
    assert columns.to_numpy() == pytest.approx(alone["response"].to_numpy())
    assert 0 < run.metric("jain") <= 1
    assert run.metric("rho_max") < math.inf


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", spread(range(5), 2))
def test_requests_are_what_their_stages_say(tmp_path: Path, seed: int) -> None:
    """Random loads under faults, refusals, expiry and a horizon: each row of `tasks`, from `stages` row by row."""
    draw = np.random.default_rng(seed)
    scenario = mixed(tmp_path)
    for entry in scenario["workload"]:
        entry["arrivals"] = {"process": "poisson", "rate": f"{draw.uniform(0.05, 0.3)}/s"}
    scenario["policy"] = {"scheduler": {"name": "edf", "drop_expired": True},
                          "admission": {"name": "queue_limit", "limit": int(draw.integers(1, 5))}}  # fmt: skip
    scenario["faults"] = [{"on": "gpu", "every": {"distribution": "exponential", "mean": "60 s"}, "repair": "5 s"}]
    scenario["horizon"] = f"{draw.uniform(50, 400)} s"
    run = hs.run(scenario, seed=seed, check=True)
    assert fates(run) == run.metric("task_count") == len(run.tasks)
    rows = run.tasks.set_index("id")
    met = 0
    for request, mine in run.stages.groupby("request"):
        row = rows.loc[request]
        bad = mine[~mine["status"].isin(["completed", "unfinished"])].sort_values("finish", kind="stable")
        if len(bad):
            assert (row["status"], row["reason"]) == (bad.iloc[0]["status"], bad.iloc[0]["reason"])
            assert row["finish"] == bad.iloc[0]["finish"]
        elif (mine["status"] == "completed").all():
            assert row["status"] == "completed"
            assert row["response"] == mine["finish"].max() - mine["arrival"].min()
            if request.startswith("net"):
                parts = mine[["wait", "upload", "compute", "download", "overhead"]].to_numpy().sum()
                assert parts == pytest.approx(row["response"])
        else:
            assert row["status"] == "unfinished"
        in_time = row["status"] == "completed" and row["finish"] <= row["deadline"]
        assert pd.isna(row["met_deadline"]) == (row["deadline"] > run.end)
        assert pd.isna(row["met_deadline"]) or row["met_deadline"] == in_time
        met += in_time and row["deadline"] <= run.end
        if row["status"] == "rejected":
            assert set(mine["status"]) == {"rejected"}
    assert {"completed", "rejected"} <= set(rows["status"][run.stages["request"].unique()])
    judged = run.tasks[run.tasks["class"].isin(["net", "wide"])]["met_deadline"].dropna()
    assert judged.sum() == met
    assert {*map(str, run.tasks["status"])} & {"expired", "unfinished"}


@pytest.mark.slow
def test_a_saved_run_tells_the_same(tmp_path: Path) -> None:
    run = hs.run(mixed(tmp_path))
    again = Result.load(run.save(tmp_path / "out"))
    pd.testing.assert_frame_equal(again.tasks, run.tasks)
    pd.testing.assert_frame_equal(again.stages, run.stages)
    pd.testing.assert_frame_equal(again.by_stage, run.by_stage)
    names = ["gpu_seconds", "rho_mean", "jain", "value_fraction", "slo_attainment", "response_p95"]
    assert again.values(names) == run.values(names)
    assert explain(again, "net/7").equals(explain(run, "net/7"))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_tables(tmp_path: Path) -> None:
    one, two = hs.run(mixed(tmp_path), seed=3), hs.run(mixed(tmp_path), seed=3)
    pd.testing.assert_frame_equal(one.tasks, two.tasks)
    assert not one.tasks["arrival"].equals(hs.run(mixed(tmp_path), seed=4).tasks["arrival"])


# What one is shown ----------------------------------------------------------------------------------------------------


def shown(*arguments: object) -> str:
    answer = CliRunner().invoke(main, [str(one) for one in arguments])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


@pytest.mark.slow
def test_the_summary_and_explain_tell_of_requests(tmp_path: Path) -> None:
    file, out = tmp_path / "pipe.json", tmp_path / "out"
    file.write_text(json.dumps(pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 20}, slo="31 s")))
    text = shown("run", file, "--out", out)
    assert "20, all completed" in text
    assert "45 % of arrivals" in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("net stage")] == [
        ["net", "stage", "1", "one"], ["net", "stage", "2", "two"]]  # fmt: skip
    told = shown("explain", out, 4)
    assert "request 4 of pipe (fcfs): 2 stages, arrived at 0 s, its first stage began at 12 s" in told
    assert "it waited 12 s in all" in told
    found = json.loads(shown("explain", out, 4, "--json"))
    assert (found["items"], found["stages"], found["wait"], found["status"]) == (1, 2, 12, "completed")
    assert "task 4/2" in shown("explain", out, "4/2")


def test_explain_tells_items_from_stages(tmp_path: Path) -> None:
    """Three items at once: the second waits 3 s and the third 6 s for the first stage, of the 11 s that all take."""
    out = tmp_path / "out"
    hs.run(pipeline(tmp_path, pipeline={"items": 3})).save(out)
    told = shown("explain", out, 0)
    assert "request 0 of pipe (fcfs): 3 items through 2 stages, arrived at 0 s" in told
    assert "its items waited 9 s in all, summed over items that wait at the same time" in told
    found = json.loads(shown("explain", out, 0, "--json"))
    assert (found["items"], found["stages"], found["wait"]) == (3, 2, 9)


@pytest.mark.slow
def test_the_page_of_a_run_has_its_stages(tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    hs.run(pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 20})).save(out)
    shown("report", out, "--page", page)
    text = page.read_text()
    assert "By stage" in text
    assert "20 of 20 tasks completed" in text
    assert "net stage 2" in text


@pytest.mark.slow
def test_sizes_and_comparisons_count_requests(tmp_path: Path) -> None:
    """20 at once: the share of those in time is 9 / 20 with one item every 3 s, whatever the number of stages."""
    scenario = pipeline(tmp_path, arrivals={"process": "all_at_once", "count": 20}, slo="31 s")
    found = hs.compare(scenario, ["fcfs", "edf"])
    assert {name: run.metric("slo_attainment") for name, run in found.runs.items()} == {"fcfs": 0.45, "edf": 0.45}
    entry = scenario["workload"][0]
    entry["slo"] = "45 s"  # with two of type one a request leaves every 2 s, the last after 43 s
    entry["pipeline"]["replication"] = True
    assert hs.size(scenario, "slo_attainment > 99%", "cluster.nodes.0.count", most=4, replications=2).size == 2


def test_rewards_of_learning_count_requests(tmp_path: Path) -> None:
    """They add up to the figures of the tables, as with tasks."""
    scenario = pipeline(tmp_path, arrivals={"process": "poisson", "rate": "0.3/s"}, count=40, slo="9 s")
    totals = {}
    for name in ("response", "slowdown", "goodput"):
        episodes = Episodes(scenario, reward=name)
        episodes.reset(5, 0)
        totals[name] = 0.0
        while not episodes.over:
            totals[name] += episodes.step(int(np.flatnonzero(episodes.mask)[0]))
    tasks = episodes.result.tasks
    assert totals["response"] == pytest.approx(-tasks["response"].sum())
    assert totals["slowdown"] == pytest.approx(-tasks["slowdown"].sum())
    assert totals["goodput"] == tasks["met_deadline"].sum() < len(tasks) == 40


# Tandem queues --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tandem_of_exponential_queues(tmp_path: Path) -> None:
    """Two M/M/1 in a row (Jackson 1957; Reich 1957): the response is hypoexponential with rates μ1 - λ and μ2 - λ.

    The stages of a pipeline take a constant time, so the times of its tasks are drawn here.
    """
    rate, means = 0.5, np.array([1.0, 0.8])
    first, second = 1 / means - rate
    due = 6.0
    loaded = hs.load(pipeline(tmp_path, arrivals={"process": "poisson", "rate": f"{rate}/s"}, count=6_000,
                               slo=f"{due} s", warmup="300 s"))  # fmt: skip
    found = []
    for seed in range(8):
        run = loaded.build(seed=seed)
        random = np.random.default_rng(seed)
        stage = run.tasks.staged.stage
        run.tasks.time[:, 0] = random.exponential(means[stage])
        measured = Result(Simulation(run).run())
        found.append([measured.metric(name) for name in ("response_mean", "slo_attainment", "throughput")])
    late = (first * math.exp(-second * due) - second * math.exp(-first * due)) / (first - second)
    exact = np.array([1 / first + 1 / second, 1 - late, rate])
    values = np.array(found)
    half = stats.t.ppf(0.9995, len(values) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - exact) < half).all()
    assert (half / exact < [0.1, 0.03, 0.03]).all()
