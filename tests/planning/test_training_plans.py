"""`hetsim plan training`: each candidate is what a run of the scenario with its degrees gives, or refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import ScenarioError, UsageError
from hetsim.planning.training_plans import PlanCandidate, training_plans
from hetsim.scenario.scenario import load

SMALL = {"layers": 8, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 51200}


def scenario(memory: str = "40 GB", **training: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "cluster": {
            "nodes": {
                "count": 2, "cpus": 8, "nvlink": {"rate": "240 GB/s"}, "network": {"out": "25 GB/s"},
                "gpus": {"type": "a100", "count": 4, "memory": memory,
                         "peak": {"flops": "312 TFLOP/s", "bandwidth": "2039 GB/s"}},
            }
        },
        "workload": [{
            "name": "train", "arrivals": {"process": "all_at_once", "count": 1}, "nodes": 2, "gpus": 4,
            "training": {"model": SMALL, "batch": 16, "data": 8, "steps": 1, **training},
        }],
        "policy": "fcfs",
    }  # fmt: skip


def overrides(one: PlanCandidate) -> dict[str, Any]:
    keys = ("tensor", "pipeline", "data", "micro_batch", "schedule", "chunks")
    return {f"workload.train.training.{key}": getattr(one.plan, key) for key in keys}


def hetsim(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["plan", "training", *(str(one) for one in arguments)])


def test_a_run_takes_what_the_candidate_says() -> None:
    found = training_plans(load(scenario()))
    fitting = [one for one in found if one.fits]
    assert {one.plan.schedule for one in fitting} == {"1f1b", "interleaved"}
    for one in (fitting[0], fitting[len(fitting) // 2], fitting[-1]):
        ran = hs.run(scenario(), overrides=overrides(one))
        assert ran.metric("makespan") == pytest.approx(one.step.seconds, rel=1e-9)
    assert [one.step.seconds for one in fitting] == sorted(one.step.seconds for one in fitting)


def test_uplinks_of_racks_count() -> None:
    """Each node in a rack of its own, joined at a fiftieth of its rate: a run crosses the uplinks, and so do plans."""
    slow = scenario()
    slow["cluster"] |= {"racks": {"nodes": 1, "uplink": "500 MB/s"}}
    found = [one for one in training_plans(load(slow)) if one.fits]
    assert found[0].plan != training_plans(load(scenario()))[0].plan
    for one in (found[0], found[len(found) // 2], found[-1]):
        ran = hs.run(slow, overrides=overrides(one))
        assert ran.metric("makespan") == pytest.approx(one.step.seconds, rel=1e-9)


def test_a_run_refuses_what_does_not_fit_with_the_same_figures() -> None:
    refused = [one for one in training_plans(load(scenario())) if not one.fits]
    assert refused
    for one in (refused[0], refused[-1]):
        with pytest.raises(ScenarioError) as error:
            hs.run(scenario(), overrides=overrides(one))
        assert one.refusal in str(error.value)


def test_all_degrees_that_divide_are_there_once() -> None:
    """8 GPUs, 8 layers, 32 heads, 16 samples: every tensor × pipeline × data that makes 8."""
    plans = [one.plan for one in training_plans(load(scenario("10 TB")))]
    assert len(plans) == len(set(plans))
    degrees = {(one.tensor, one.pipeline, one.data) for one in plans}
    assert degrees == {(t, p, 8 // t // p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8) if t * p <= 8}
    assert all(one.data * one.micro_batch * one.micro_batches == 16 for one in plans)
    assert {one.chunks for one in plans if one.pipeline == 2 and one.schedule == "interleaved"} == {2, 4}


def test_command(tmp_path: Any) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(scenario()))
    text = hetsim(path, "--top", 3).stdout
    found = training_plans(load(scenario()))
    assert f"small: {len(found)} candidates on 8 GPUs, {sum(one.fits for one in found)} fit" in text
    refused = next(one for one in found if not one.fits)
    assert refused.refusal in " ".join(text.split())
    rows = json.loads(hetsim(path, "--json").stdout)["candidates"]
    assert [row["step_seconds"] for row in rows] == [one.step.seconds for one in found]
    parts = ("compute", "bubble", "communication", "update")
    assert all(sum(row[f"{part}_seconds"] for part in parts) == pytest.approx(row["step_seconds"]) for row in rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "cluster.nodes.gpus.memory=1 GB"), "with tensor 8, pipeline 1, data 1, which needs the least"),
        (("--entry", "trian"), 'no entry with training: is called "trian"; did you mean "train"?'),
        (("--set", "workload.train.nodes=1", "--set", "workload.train.gpus=3"),
         "no degrees divide 3 GPUs, 8 layers and a batch of 16"),
        (("--set", "workload.train.nodes=3"), "3 nodes with 4 × a100 each exceed the 2 of the cluster"),
        (("--set", "workload.train.gpus=8"), "2 nodes with 8 × a100 each exceed the 0 of the cluster"),
        (("--set", "workload.train.nodes=1", "--set", "workload.train.gpus=0.5"),
         "training must use whole GPUs; got 0.5 of a GPU"),
        (("--set", "cluster.nodes.gpus={type: x, count: 4, peak: null}"), "the speed of x is unknown"),
        (("--gpus", "8,16"), "4 nodes with 4 × a100 each exceed the 2 of the cluster"),
        (("--set", "workload.train.partition=fast"), 'unknown partition "fast"; the cluster has none'),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_said(tmp_path: Any, options: tuple[str, ...], said: str) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(scenario()))
    answer = hetsim(path, *options)
    assert answer.exit_code == 3
    assert said in answer.stderr
    assert answer.stderr.startswith((str(path), "--set workload.train."))


@pytest.mark.slow
def test_several_numbers_of_gpus_are_ranked_together(tmp_path: Any) -> None:
    """4 GPUs on one node, 8 on two: the candidates of each, in one order; a run of one says what it costs."""
    wide = scenario("80 GB", steps=5)
    found = training_plans(load(wide), gpus=[4, 8, 2])
    assert {one.plan.gpus for one in found} == {2, 4, 8}
    assert [one for one in found if one.plan.gpus == 8] == training_plans(load(wide))
    fitting = [one.step.seconds for one in found if one.fits]
    assert fitting == sorted(fitting) and {one.plan.gpus for one in found if one.fits} == {2, 4, 8}
    cheap = [one.gpu_hours for one in training_plans(load(wide), gpus=[2, 4, 8], rank="gpu_hours") if one.fits]
    assert cheap == sorted(cheap) and sorted(cheap) == sorted(one.gpu_hours for one in found if one.fits)
    best = next(one for one in found if one.plan.gpus == 4 and one.fits)
    ran = hs.run(wide, overrides=overrides(best) | {"workload.train.nodes": 1})
    assert 4 * ran.metric("makespan") / 3600 == pytest.approx(best.gpu_hours, rel=1e-9)
    path = tmp_path / "small.json"
    path.write_text(json.dumps(wide))
    answer = hetsim(path, "--gpus", "2,4,8", "--top", 7)
    assert "candidates on 2, 4 or 8 GPUs" in answer.stdout
    table = [line.split()[0] for line in answer.stdout.splitlines()[3:12]]
    assert sorted(table) == ["2"] * 3 + ["4"] * 3 + ["8"] * 3 and "refused on 2 GPUs: " in answer.stdout
    rows = json.loads(hetsim(path, "--gpus", "2,4,8", "--json").stdout)["candidates"]
    assert [(row["gpus"], row["gpu_hours"]) for row in rows] == [(one.plan.gpus, one.gpu_hours) for one in found]
    for options, said in (
        (("--gpus", "6"), "the number of GPUs must be a multiple of 4, the GPUs of one node"),
        (("--gpus", "8,x"), '--gpus must be whole numbers from 1 to 1,000,000; got "x"'),
        (("--gpus", "0"), 'got "0"'),
        (("--picture", "plan.txt"), "a picture must be a file name ending in .png, .pdf or .svg"),
    ):
        answer = hetsim(path, *options)
        assert answer.exit_code == 2 and said in " ".join(answer.stderr.split())


def test_an_elastic_job_is_planned_for_each_of_its_widths() -> None:
    elastic = scenario("80 GB", data=None)
    (entry,) = elastic["workload"]
    del entry["nodes"], entry["training"]["data"]
    entry["training"]["widths"] = [1, 2]
    assert training_plans(load(elastic)) == training_plans(load(scenario("80 GB")), gpus=[4, 8])


def test_plans_keep_to_the_partition_of_the_entry() -> None:
    """Two fast nodes and two slow ones, each pair a partition: candidates are those of the pair alone."""
    given = scenario()
    fast = given["cluster"]["nodes"]
    slow = json.loads(json.dumps(fast))
    slow["gpus"] |= {"type": "old", "peak": {"flops": "100 TFLOP/s", "bandwidth": "900 GB/s"}}
    both = {**given, "cluster": {"nodes": [{**fast, "partitions": ["new"]}, {**slow, "partitions": ["past"]}]}}
    assert {one.device for one in training_plans(load(both))} == {"a100", "old"}
    both["workload"][0]["partition"] = "new"
    assert training_plans(load(both)) == training_plans(load(scenario()))
    both["workload"][0]["partition"] = "past"
    assert {one.device for one in training_plans(load(both))} == {"old"}
    both["workload"][0]["nodes"] = 3
    with pytest.raises(ScenarioError, match="3 nodes with 4 × old each exceed the 2 of its partition"):
        training_plans(load(both))
    del both["workload"][0]["partition"]
    with pytest.raises(ScenarioError, match="exceed the 2 of the cluster; a job uses one type of GPU .hetsim "
                                            "plan part"):
        training_plans(load(both))
    both["workload"][0] |= {"nodes": 2, "devices": "old"}
    assert {one.device for one in training_plans(load(both))} == {"old"}


@pytest.mark.slow
def test_the_picture_of_a_candidate_ends_with_its_step(tmp_path: Any) -> None:
    found = training_plans(load(scenario("80 GB")))
    staged = [one for one in found if one.plan.pipeline > 1]
    for one in staged[:: len(staged) // 7]:
        assert one.schedule().makespan == pytest.approx(one.step.seconds, rel=1e-9)
        assert one.schedule().bubble * one.step.seconds == pytest.approx(one.step.bubble, rel=1e-6)
    with pytest.raises(UsageError, match="the plan must have at least two stages to be drawn; got one"):
        next(one for one in found if one.plan.pipeline == 1).schedule()
    path = tmp_path / "small.json"
    path.write_text(json.dumps(scenario("80 GB")))
    answer = hetsim(path, "--picture", tmp_path / "plan.png")
    assert answer.exit_code == 0 and "picture: " in answer.stderr and (tmp_path / "plan.png").stat().st_size > 5000
    alone = hetsim(path, "--gpus", 1, "--set", "cluster.nodes.gpus.memory=1 TB", "--picture", tmp_path / "plan.png")
    assert alone.exit_code == 2 and "no candidate that fits has more than one stage, so there is no" in alone.stderr


def test_a_class_that_trains_is_planned_as_an_entry_is() -> None:
    given = scenario()
    (entry,) = given["workload"]
    entry["classes"] = [{"class": "net", "training": entry.pop("training")}, {"class": "other", "gpu_time": "1 s"}]
    assert training_plans(load(given), "net") == training_plans(load(given)) == training_plans(load(scenario()))


def test_a_scenario_without_training_is_refused() -> None:
    answer = hetsim("first-steps")
    assert answer.exit_code == 3
    assert "no workload entry has training:" in answer.stderr
    assert "those of its plan (hetsim plan partition, run -v)" in " ".join(hetsim("two-generations").stderr.split())


def test_a_model_by_name_is_planned_as_its_figures_are() -> None:
    named = scenario(memory="80 GB", model={"name": "llama-2-7b", "sequence": 4096})
    found = training_plans(load(named))
    assert {32 % one.plan.pipeline for one in found} == {0} and len({one.plan.pipeline for one in found}) > 2


@pytest.mark.slow
def test_keys_that_no_step_has_are_told():
    """A run with flep has longer steps than are told; limits of a site change none."""
    for changes, said in (
        ({"cluster.nodes.0.gpus.preemption": {"kind": "flep", "overhead": "10%"}}, ["preemption.overhead: not recogn"]),
        ({"faults": [{"on": "gpu", "every": "1 d", "repair": "1 h"}]}, ["faults: not recognized: faults; times of"]),
        ({"site": {"at_limit": "kill"}, "workload.0.time_limit": "9 d", "policy": "sjf"}, []),
    ):
        scenario = hs.load("parallel-training", changes)
        training_plans(scenario)
        training_plans(scenario)
        told = [note for note in scenario.notes if "times of steps" in note]
        assert len(told) == len(said) and all(one in note for one, note in zip(said, told, strict=True)), told
