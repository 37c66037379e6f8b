"""Small cases by hand of readers, and of the cluster that a log shows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_recorded_waits import log

import hetsim as hs
from hetsim import registry
from hetsim.traces.from_log import _down, inferred_nodes

SLURM = "JobID|Submit|Start|End|State|AllocTRES\n1|{0}00|{0}05|{0}20|COMPLETED|{1}\n"


@pytest.mark.parametrize(
    ("held", "nodes", "cpus", "gpus", "memory"),
    [
        ("cpu=6,node=3,mem=1K,gres/gpu=3", 3, 2, 1, 342), ("cpu=6,node=2,mem=4K,gres/gpu=2", 2, 3, 1, 2048),
        ("cpu=5,node=2,mem=1K", 1, 5, 0, 1024),
    ],
)  # fmt: skip
def test_a_node_holds_its_part_of_a_job(tmp_path: Path, held: str, nodes: int, cpus: int, gpus: int, memory: int):
    """Memory in whole bytes, rounded up; unequal parts are one pool of what is held in all."""
    path = tmp_path / "log.txt"
    path.write_text(SLURM.format("2025-03-01T10:00:", held))
    found = registry.entry("traces", "slurm")(path, node_counts=True).numbers
    assert found["cpus"].tolist() == [cpus] and found["memory"].tolist() == [memory]
    assert found["gpus"].tolist() == [gpus] if gpus else "gpus" not in found or not found["gpus"].any()
    assert found["nodes"].tolist() == [nodes] if nodes > 1 else not (found.get("nodes", np.ones(1)) > 1).any()


@pytest.mark.parametrize("cell", ["-2e15", "2e15", "nan", "inf", "x"])
def test_numbers_of_no_use_are_named(tmp_path: Path, cell: str):
    path = tmp_path / "log.swf"
    row = "{} 0 5 10 2 {} -1 2 20 -1 1 3 1 -1 1 -1 -1 -1\n"
    path.write_text(row.format(1, -1) + row.format(2, cell))
    with pytest.raises(hs.errors.ScenarioError, match="is not a usable number") as caught:
        registry.entry("traces", "swf")(path)
    assert ":2:" in str(caught.value) and "column 6" in str(caught.value)


def down(names: list[str] | None, *curve: tuple[float, float]) -> list[tuple[list[str], str, str, str]]:
    """What is said of nodes of 2 GPUs each, at capacity 8; jobs last 10 s, the last one until 100."""
    jobs = SimpleNamespace(start=np.array([0.0, 90.0]), end=np.array([10.0, 100.0]))
    explained: Any = SimpleNamespace(capacity=8.0, curve=[(0.0, 8.0), *curve], jobs=jobs)
    found = [one["maintenance"] for one in _down(explained, names, 5.0)]
    return [(one["nodes"], one["from"], one["for"], one["announced"]) for one in found]


def test_nodes_are_down_as_long_as_their_capacity_was_lacking():
    names = ["n1", "n2", "n3", "n4"]
    assert down(names, (20, 6), (30, 8)) == [(["n4"], "15 s", "10 s", "5 s")]
    assert down(names, (20, 6), (25, 5.9), (30, 8)) == [(["n4"], "15 s", "10 s", "5 s")]  # a part of a node is none
    assert down(names, (20, 6), (30, 4), (40, 8)) == [
        (["n4"], "15 s", "10 s", "5 s"), (["n3", "n4"], "25 s", "10 s", "15 s"),
    ]  # fmt: skip
    assert down(names, (20, 6), (30, 8), (40, 6), (45, 8)) == [
        (["n4"], "15 s", "10 s", "5 s"), (["n4"], "35 s", "5 s", "25 s"),
    ]  # fmt: skip
    assert down(names, (90, 6)) == [(["n4"], "85 s", "10 s", "75 s")]  # until the last job ends
    assert down(["n1"], (20, 0), (30, 8)) == down(None, (20, 6), (30, 8)) == []


def test_jobs_over_several_nodes_hold_an_equal_part_of_each():
    """Three GPUs on two nodes are 1.5 on each, and n1 has two more of another job: 4 and 2 in whole GPUs."""
    nodes = inferred_nodes(log([(0, 0, 100, 3), (5, 5, 100, 2)], recorded_node=["n1|n2", "n1"]))
    assert [(node["name"], node["gpus"]["count"]) for node in nodes] == [("n1", 4), ("n2", 2)]
