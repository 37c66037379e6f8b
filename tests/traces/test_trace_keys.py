"""Keys of an entry next to a trace: they stand in for what rows leave blank, and are refused where they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hetsim as hs
from hetsim.errors import ScenarioError

SWF = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "clusters" / "jobs.swf"
TABLE = "id,arrival,gpu_time,gpus,bytes_in,user\na,0,10,1,1000,ann\nb,0,10,1,,\n"


def run(trace: dict[str, Any], **keys: Any) -> Any:
    nodes = {"count": 64, "cpus": 128, "gpus": {"type": "v100", "count": 2, "memory": "16 GB"}}
    entry = {"name": "jobs", "trace": trace, "count": 30, **keys}
    return hs.run({"cluster": {"nodes": [nodes]}, "workload": [entry], "policy": "fcfs"})


def swf(**keys: Any) -> Any:
    return run({"format": "swf", "path": str(SWF)}, **keys)


def table(tmp_path: Path, text: str = TABLE, **keys: Any) -> Any:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return run({"format": "tasks", "path": str(path)}, **keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"nodes": 2}, "workload.0.nodes: the rows of .* have the totals of a job, and this key multiplies them by 2 "
                       r"\(cpus\); cores_per_node: N under trace gives the nodes of each job"),
        ({"cpus": 4}, "workload.0.cpus: every row of .* has its cpus, so this key has no effect; leave it out"),
        ({"user": "ann"}, "workload.0.user: every row"),
        ({"users": 3}, "workload.0.users: every row"),
        ({"time_limit": "1 h"}, "workload.0.time_limit: every row"),
        ({"gpus": 2}, "workload.0.gpus: no row of .* has a time on a GPU, so this key has no effect"),
        ({"gpu_memory": "1 GB"}, "workload.0.gpu_memory: no row"),
        ({"bytes_in": "1 GB"}, "workload.0.bytes_in: no row"),
        ({"devices": "cpu"}, "workload.0.devices: the key is for work or a profile, but these"),
        ({"tokens": {"prompt": 1, "output": 1}}, "workload.0.tokens: the key is for requests to a language "
                                                 "model, but these"),
    ],
)  # fmt: skip
def test_a_key_without_effect_on_a_log_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        swf(**keys)


def test_jobs_wider_than_a_node_are_told_what_gives_a_log_several(tmp_path: Path) -> None:
    """`nodes` of the entry would be refused: rows say what a job has in all."""
    cluster = {"nodes": [{"count": 64, "cpus": 8}]}
    path = tmp_path / "jobs.csv"
    path.write_text("id,arrival,cpu_time,cpus\na,0,10,16\n")
    for trace, by in (
        ({"format": "swf", "path": str(SWF)}, "cores_per_node: N under trace"),
        ({"format": "tasks", "path": str(path)}, "a column nodes of the table"),
    ):
        said = rf"of any node \({by} or span: any would use several nodes\)"
        with pytest.raises(ScenarioError, match=said):
            hs.run({"cluster": cluster, "workload": [{"trace": trace}], "policy": "fcfs"})
    entry = {"trace": {"format": "swf", "path": str(SWF)}, "count": 30, "unfit": "leave_out"}
    found = hs.run({"cluster": cluster, "workload": [entry], "policy": "fcfs"})
    assert any("cores_per_node: N under trace or span: any would use several nodes" in one for one in found.warnings)


def test_what_a_log_does_not_say_the_entry_may() -> None:
    plain, given = swf(), swf(nodes=1, priority=3, slo="2 h", patience="100 h", memory="0 B", weight=2)
    assert (given.tasks["finish"] == plain.tasks["finish"]).all()
    assert given.tasks["deadline"].notna().all() and plain.tasks["deadline"].isna().all()


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ScenarioError) as error:
        swf(nodes=2, cpus=4, gpus=1)
    assert {one.key for one in error.value.problems} == {f"workload.0.{key}" for key in ("nodes", "cpus", "gpus")}


def test_a_key_stands_in_for_blank_cells(tmp_path: Path) -> None:
    found = table(tmp_path, bytes_in="5 kB", user="bob", cpus=3).tasks
    assert list(found["user"]) == ["ann", "bob"]
    record = table(tmp_path, bytes_in="5 kB", cpus=3).record
    assert record.input.tasks.bytes_in.tolist() == [1000, 5000]
    assert record.input.tasks.shapes[0].modes[0].cpus == 3
    assert table(tmp_path).record.input.tasks.bytes_in.tolist() == [1000, 0]
    for keys, said in (
        ({"gpus": 2}, "every row of .* has its gpus, so this key has no effect"),
        ({"nodes": 2}, r"multiplies them by 2 \(gpus\); a column nodes"),
    ):
        with pytest.raises(ScenarioError, match=said):
            table(tmp_path, **keys)


def test_nodes_of_rows_that_hold_nothing_of_their_own(tmp_path: Path) -> None:
    found = table(tmp_path, "id,gpu_time\na,10\n", nodes=2, gpus=2)
    assert found.tasks["hosts"].tolist() == [2]
    assert found.record.input.tasks.shapes[0].modes[0].gpus == 4


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, "must be a whole number of steps, 1 or more; got 0"),
        (1.5, "must be a whole number of steps, 1 or more; got 1.5"),
        ({"distribution": "exponential", "mean": 0.5}, "must be at least one step; got 0.5 on average"),
    ],
)
def test_steps_are_whole_and_at_least_one(steps: Any, said: str) -> None:
    peak = {"flops": "312 TFLOP/s", "bandwidth": "2039 GB/s"}
    cluster = {"nodes": [{"cpus": 8, "gpus": {"type": "a100", "count": 1, "peak": peak}}]}
    model = {"layers": 2, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 1000}
    arrivals = {"process": "all_at_once", "count": 200}
    for entry, key in (
        ({"training": {"model": model, "batch": 1, "steps": steps}}, "training.steps"),
        ({"profile": "cnn_training", "steps": steps}, "steps"),
    ):
        with pytest.raises(ScenarioError, match=rf"workload\.0\.{key}: {said}"):
            hs.run({"cluster": cluster, "workload": [{"arrivals": arrivals, **entry}], "policy": "fcfs"})
    drawn = {"distribution": "exponential", "mean": 1}
    entry = {"arrivals": arrivals, "training": {"model": model, "batch": 1, "steps": drawn}, "devices": "a100"}
    time = hs.run({"cluster": cluster, "workload": [entry], "policy": "fcfs"}).tasks["compute"]
    assert (time / time.min()).round(9).isin(range(1, 20)).all() and time.nunique() > 3


@pytest.mark.parametrize("key", ["gpus", "gpu_memory"])
def test_what_is_held_on_gpus_is_not_of_tasks_on_cores(key: str) -> None:
    entry = {"arrivals": {"process": "all_at_once", "count": 1}, "cpu_time": "1 s", key: 2 if key == "gpus" else "1 GB"}
    with pytest.raises(ScenarioError, match=rf"workload\.0\.{key}: gpu_memory needs a time on GPUs; give "
                                            rf"gpu_time, too"):
        hs.run({"cluster": {"nodes": [{"cpus": 2}]}, "workload": [entry], "policy": "fcfs"})


@pytest.mark.parametrize("column", [
    "v100_time", "time_v100", "V100 time (s)", "gpu_time_v100", "v100-runtime", "v100_time_estimate", "v100_seconds",
])  # fmt: skip
@pytest.mark.parametrize("cell", ["1", "1 s"])
def test_a_time_on_a_type_under_another_name_is_refused(tmp_path: Path, column: str, cell: str) -> None:
    """It would be kept as a number, or ignored as a text, and the tasks would run on cores."""
    (tmp_path / "t.csv").write_text(f"id,arrival,cpu_time,{column}\na,0,10,{cell}\n")
    scenario: dict[str, Any] = {
        "name": "typed", "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "t.csv")}}],
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "v100", "count": 1}}]}, "policy": "fcfs",
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=r't\.csv:1: column ".*" has no effect: .* column "gpu_time\.v100"'):
        hs.run(scenario)
    scenario["cluster"]["nodes"][0]["gpus"]["type"] = "a100"  # in a sweep of clusters another type is right
    assert hs.run(scenario).tasks["device_type"].tolist() == ["cpu"]


@pytest.mark.parametrize("column", ["v100", "time", "v100_wait_time", "start_time", "v1000_time", "v100_count"])
def test_other_columns_are_kept(tmp_path: Path, column: str) -> None:
    (tmp_path / "t.csv").write_text(f"id,arrival,cpu_time,{column}\na,0,10,1\n")
    scenario: dict[str, Any] = {
        "name": "typed", "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "t.csv")}}],
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "v100", "count": 1}}]}, "policy": "fcfs",
    }  # fmt: skip
    assert len(hs.run(scenario).tasks) == 1
