"""`pipeline:` of an entry: the plan for a cluster, and items that stream through its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiers import spread

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import ScenarioError

LAYERS = """\
layer,activations,weights,forward,backward
a,1000000,10,4,1
b,500000,10,2,1
c,500000,10,2,1
d,250000,10,2,1
e,0,10,2,1
"""


def scenario(folder: Path, layers: str = LAYERS, **keys: Any) -> dict[str, Any]:
    """One fast device, and two slow ones on nodes of their own."""
    (folder / "layers.csv").write_text(layers)
    entry = {"name": "net", "arrivals": {"process": "all_at_once", "count": 1}, **keys.pop("entry", {})}
    pipeline = {"profile": str(folder / "layers.csv"), **keys.pop("pipeline", {})}
    link = {"pcie": {"upload": "4 MB/s"}, "streams": 2}
    nodes = keys.pop("nodes", None) or [
        {"name": "f", "gpus": {"type": "fast", "speed": 2, **link}, "network": {"out": "1 MB/s"}},
        {"name": "s", "count": 2, "gpus": {"type": "slow", **link}, "network": {"out": "1 MB/s"}},
    ]
    return {"name": "pipe", "cluster": {"nodes": nodes}, "workload": [{**entry, "pipeline": pipeline}], **keys}


def makespan(*args: Any, **keys: Any) -> float:
    return float(hs.run(scenario(*args, **keys)).metric("makespan"))


def plan(*args: Any, **keys: Any) -> tuple[str, float, float]:
    """Stages, seconds between two items, and latency of one, as the note says them."""
    loaded = hs.load(scenario(*args, **keys))
    loaded.build()
    note = next(note for note in loaded.notes if "an item every" in note)
    stages, _, figures = note.partition("; an item every ")
    every, latency = figures.removesuffix(" s").split(" s, latency ")
    return stages, float(every), float(latency)


def test_items_stream_at_the_rate_of_the_slowest_stage(tmp_path: Path) -> None:
    """By hand: a, b and c take 4 s on the fast device, d and e 4 s on a slow one; between them 0.5 MB go down at
    4 MB/s, over the network at 1 MB/s and up at 4 MB/s, in 0.75 s."""
    keys: dict[str, Any] = {"pipeline": {"replication": False, "items": 10}}
    assert plan(tmp_path, **keys) == ("net: fast has a to c, slow has d to e", 4, 8.75)
    assert makespan(tmp_path, **keys) == 9 * 4 + 8.75


def test_training_goes_back_the_same_way(tmp_path: Path) -> None:
    """Forward and backward a takes 5 s on a slow device, b 3 s on the other, the rest 4.5 s on the fast one; twice the
    bytes are sent, in 3 s and 1.5 s."""
    stages, every, latency = plan(tmp_path, pipeline={"training": True, "replication": False})
    assert stages == "net: slow has a, slow has b, fast has c to e"
    assert (every, latency) == (5, 5 + 3 + 3 + 1.5 + 4.5)
    items = {"training": True, "replication": False, "items": 7}
    assert makespan(tmp_path, pipeline=items) == pytest.approx(6 * 5 + 17)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_a_run_takes_what_its_plan_says(tmp_path: Path, seed: int) -> None:
    """Random networks and clusters, each stage on one device: the latency, and the slowest for each other item."""
    draw = np.random.default_rng(seed)
    n, training = int(draw.integers(2, 7)), bool(seed % 2)
    rows = ["layer,activations,weights,forward,backward"]
    for k in range(n):
        sent = 0 if k == n - 1 else int(draw.integers(0, 3_000_000))
        rows.append(f"l{k},{sent},{int(draw.integers(0, 1000))},{draw.uniform(1, 10):.6f},{draw.uniform(1, 10):.6f}")
    nodes = [
        {
            "name": name, "count": int(draw.integers(1, 4)),
            "gpus": {"type": name, "speed": float(draw.uniform(0.5, 3)), "streams": 2},
            "network": {"out": f"{draw.uniform(0.5, 3)} MB/s", "latency": "10 ms"},
            "pcie": {"upload": f"{draw.uniform(2, 12)} MB/s", "latency": "5 ms"},
        }
        for name in "abc"[: int(draw.integers(1, 4))]
    ]  # fmt: skip
    keys: dict[str, Any] = {"nodes": nodes, "pipeline": {"items": 50, "training": training, "replication": False}}
    _, every, latency = plan(tmp_path, "\n".join(rows) + "\n", **keys)
    found = makespan(tmp_path, "\n".join(rows) + "\n", **keys)
    assert found == pytest.approx(49 * every + latency, rel=1e-3)  # the note has four digits


def test_replicas_take_items_in_turn(tmp_path: Path) -> None:
    """One layer of 12 s on three devices: an item every 4 s."""
    nodes, layers = [{"name": "s", "count": 3, "gpus": {"type": "slow"}}], LAYERS.splitlines()[0] + "\na,0,10,12,0\n"
    assert plan(tmp_path, layers, nodes=nodes) == ("net: 3 × slow has a", 4, 12)
    assert makespan(tmp_path, layers, nodes=nodes, pipeline={"items": 30}) == 10 * 12


def test_stages_stay_on_the_nodes_of_the_plan(tmp_path: Path) -> None:
    """Two stages on two nodes of one type: each has its own, and none takes over where the other is idle."""
    layers = "layer,activations,weights,seconds.slow\na,0,1,3\nb,0,1,1\nc,0,1,1\n"
    keys: dict[str, Any] = {"pipeline": {"replication": False, "items": 20, "devices": "slow"}}
    run = hs.run(scenario(tmp_path, layers, **keys))
    places = {stage: set(rows["node"]) for stage, rows in run.stages.groupby("stage", observed=True)}
    assert places == {"net stage 1": {"s0"}, "net stage 2": {"s1"}}
    assert run.tasks["node"].tolist() == ["s0+s1"]
    assert run.metric("makespan") == 19 * 3 + 5


def test_types_with_their_own_columns_take_those_times(tmp_path: Path) -> None:
    """Measured seconds count as they are, whatever the speed of the type; a type without a column is left out."""
    layers = "layer,activations,weights,seconds.fast\na,0,1,3\nb,0,1,1\n"
    assert plan(tmp_path, layers) == ("net: fast has a to b", 4, 4)


def test_requests_have_deadlines_users_and_a_response(tmp_path: Path) -> None:
    """The input goes up first; stages have the class, user and deadline of their request."""
    entry = {"arrivals": {"process": "deterministic", "interval": "20 s"}, "count": 3, "slo": "10 s", "user": "u",
             "bytes_in": "1 MB", "weight": 2, "class": "request"}  # fmt: skip
    run = hs.run(scenario(tmp_path, entry=entry, pipeline={"replication": False}))
    whole = run.tasks
    assert list(whole["id"]) == ["0", "1", "2"]
    assert set(whole["class"]) == {"request"}
    assert whole["response"].tolist() == pytest.approx([9] * 3)  # 0.25 s of upload and 8.75 s
    assert whole["met_deadline"].tolist() == [True] * 3
    assert set(run.tasks["user"]) == set(run.stages["user"]) == {"u"}
    assert run.metric("value_fraction") == 1
    assert run.record.input.tasks.deadline.tolist() == [10, 10, 30, 30, 50, 50]
    factor = hs.run(scenario(tmp_path, entry={**entry, "slo": {"factor": 1.02}}, pipeline={"replication": False}))
    assert factor.tasks["met_deadline"].tolist() == [False] * 3  # 8.925 s


def test_a_plan_for_less_latency_where_the_deadline_needs_it(tmp_path: Path) -> None:
    """All on the fast device takes 6 s; with e on a slow one an item every 5 s and 7.375 s in all, with d too 4 s and
    8.75 s."""
    keys: dict[str, Any] = {"pipeline": {"replication": False}}
    assert plan(tmp_path, entry={"slo": "8.8 s"}, **keys)[1:] == (4, 8.75)
    assert plan(tmp_path, entry={"slo": "8.7 s"}, **keys) == ("net: fast has a to d, slow has e", 5, 7.375)
    assert plan(tmp_path, entry={"slo": "7 s"}, **keys) == ("net: fast has a to e", 6, 6)
    with pytest.raises(ScenarioError, match=r"no plan meets the deadline of 5 s: the shortest latency is 6 s;"):
        plan(tmp_path, entry={"slo": "5 s"}, **keys)


def test_memory_decides(tmp_path: Path) -> None:
    """The fast device holds layers of 10 bytes of weights and 1 MB of activations, or none."""
    small = {"type": "fast", "speed": 2, "memory": "0.6 MB", "streams": 2}
    slow = {"type": "slow", "memory": "2 MB", "streams": 2}
    nodes = [{"name": "f", "gpus": small}, {"name": "s", "gpus": slow}]
    assert plan(tmp_path, nodes=nodes)[0] == "net: slow has a, fast has b to e"
    with pytest.raises(ScenarioError, match="the best cut needs 1.00005 MB on a device, but fast has 600 kB"):
        plan(tmp_path, nodes=nodes[:1])


def test_a_run_can_be_saved_and_explained(tmp_path: Path) -> None:
    out = tmp_path / "out"
    loaded = hs.load(scenario(tmp_path, pipeline={"items": 3, "replication": False}))
    hs.run(loaded).save(out)
    answer = CliRunner().invoke(main, ["explain", str(out), "0.1/2"])
    assert answer.exit_code == 0, answer.output
    assert "0.1/2" in answer.stdout


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"pipeline": {"profile": "none.csv"}}, "pipeline.profile", 'no file "none.csv"'),
        ({"pipeline": {"items": 0}}, "pipeline.items", "at least 1"),
        ({"pipeline": {"devices": ["fst"]}}, "pipeline.devices.0", 'no accelerator "fst"; did you mean "fast"?'),
        ({"pipeline": {"devices": []}}, "pipeline.devices", "at least 1"),
        ({"pipeline": {"item": 1}}, "pipeline.item", 'did you mean "items"?'),
        ({"entry": {"gpu_time": "1 s"}}, "pipeline", "leave out gpu_time"),
        ({"entry": {"gpu_time.fast": "1 s"}}, "pipeline", "leave out gpu_time.TYPE"),
        ({"entry": {"nodes": 2}}, "pipeline", "pipeline defines times and devices of all stages"),
        ({"entry": {"trace": {"format": "tasks", "path": "x.csv"}}}, "pipeline", "leave out trace"),
        ({"entry": {"arrivals": {"process": "closed", "clients": 1, "think": "1 s"}, "count": 3}}, "arrivals", "loop"),
        ({"nodes": [{"cpus": 4}]}, "pipeline", "the cluster has no accelerators"),
        ({"nodes": [{"count": 33, "gpus": {"type": "fast"}}]}, "pipeline", "select types with devices"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, keys: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        hs.load(scenario(tmp_path, **keys)).build()
    found = {one.key: one.message for one in caught.value.problems}
    assert said in found[f"workload.0.{key}"]


def test_profiles_that_do_not_suit_are_said(tmp_path: Path) -> None:
    only_npu = "layer,activations,weights,seconds.npu\na,0,1,3\n"
    with pytest.raises(ScenarioError, match="no times for fast and slow; it has columns for npu"):
        plan(tmp_path, only_npu)
    with pytest.raises(ScenarioError, match=r"layers.csv:2:7: forward: must be a number"):
        plan(tmp_path, "layer,activations,weights,forward\na,0,1,x\n")


def test_one_stream_is_told_of(tmp_path: Path) -> None:
    nodes = [{"name": "f", "gpus": {"type": "fast", "speed": 2}}, {"name": "s", "gpus": {"type": "slow"}}]
    loaded = hs.load(scenario(tmp_path, nodes=nodes))
    loaded.build()
    assert any("with one stream a device cannot transfer while it computes; streams: "
               "2" in note for note in loaded.notes)
