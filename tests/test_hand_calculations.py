"""Small cases by hand, and properties, of results, studies and readers."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hetsim.experiment.from_log import _down, inferred_nodes
from hypothesis import given
from hypothesis import strategies as st
from test_output_statistics import queue
from test_recorded_waits import log
from tiers import examples

import hetsim as hs
from hetsim import registry
from hetsim.errors import UsageError
from hetsim.experiment.folder import check_folder
from hetsim.experiment.workers import DaskCluster
from hetsim.results.formatting import PERCENT, one
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race
from hetsim.results.one_run.tables import batch_members
from hetsim.results.one_run.usage import overlap

# Results ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.9996, "99.96 %"), (0.99951, "99.951 %"), (0.999999, "99.9999 %"), (0.994, "99.4 %")],
)
def test_almost_all_is_not_all(value: float, text: str):
    assert one(value, PERCENT) == text


@pytest.mark.parametrize(("shift", "left"), [(3.0, ["a", "b"]), (4.7, ["a", "b"]), (5.0, ["a"])])
def test_a_policy_leaves_the_race_beyond_the_margin(shift: float, left: list[str]):
    """First stage of 3, probability 90 %: η = ((2 × 0.1)^(-1) - 1) / 2 = 2, h² = 2 × 2 × 2 = 8; δ = 10 % of 10.

    The differences have the variance 4: W(3) = (8 × 4 / 1² - 3) × 1 / 6 = 4.83.
    """
    race = Race(["a", "b"], "response_mean", 0.9, 0.1)
    for other in (-2.0, 0.0, 2.0):
        race.add("a", 10.0)
        race.add("b", 10.0 + shift + other)
    race.start()
    race.screen()
    assert race.left == left


@examples(100)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0, 30)), min_size=1), st.lists(st.floats(-60, 90), min_size=2))
def test_windows_side_by_side_share_out_each_span(spans: list[tuple[float, float]], bounds: list[float]):
    begin = np.array([start for start, _ in spans])
    end = np.array([start + length for start, length in spans])
    bounds = sorted(bounds)
    parts = [overlap(begin, end, low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
    assert all((part >= 0).all() for part in parts)
    assert sum(parts) == pytest.approx(overlap(begin, end, bounds[0], bounds[-1]), abs=1e-9)
    assert (overlap(begin, end, 200.0, 300.0) == 0).all() and (overlap(begin, np.nan * end, 0.0, 9.0) == 0).all()
    assert overlap(begin, end, -1e3, 1e3) == pytest.approx(end - begin)


@pytest.mark.slow
def test_members_of_a_batch_are_the_tasks_that_share_its_launch():
    found = hs.run("async-burst")
    batch = found.record.batch
    assert batch is not None and (batch >= 0).any()
    shared = np.array([(batch == number).sum() if number >= 0 else 1 for number in batch])
    members = batch_members(found.record)
    assert members is not None and members.tolist() == shared.tolist() and members.max() > 1


def test_replications_of_nothing_are_not_identical():
    assert Replications().identical is False


def test_a_run_is_saved_into_an_empty_folder_and_into_no_other(tmp_path: Path):
    found = hs.run(queue(5))
    (tmp_path / "empty").mkdir()
    found.save(tmp_path / "empty")
    assert len(hs.Result.load(tmp_path / "empty").tasks) == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a run directory"):
        found.save(tmp_path / "other")


# Studies ------------------------------------------------------------------------------------------------------------


def test_replications_stop_at_the_first_number_that_is_precise_enough():
    """For three precisions that take numbers of replications one after the other."""
    many = hs.replicate(queue(40, "0.5/s"), replications=30)
    reached = [many.among(range(number)).relative_half_width("response_mean") for number in range(10, 31)]
    falling = [reached[n] for n in range(1, len(reached)) if reached[n] < min(reached[:n])]
    assert len(falling) >= 3
    for precision in falling[:3]:
        wanted = {"precision": precision, "metric": "response_mean", "max": 200}
        found = hs.replicate(queue(40, "0.5/s"), replications=wanted)
        assert len(found) == 10 + reached.index(precision)


def test_a_cluster_has_room_for_a_run_even_where_no_worker_is_left():
    cluster = object.__new__(DaskCluster)
    cluster.workers, cluster._counted = 3, -math.inf
    cluster.client = SimpleNamespace(ncores=dict)
    assert cluster.room >= 1 and cluster.workers == 1
    cluster.client, cluster._counted = SimpleNamespace(ncores=lambda: {"a": 2, "b": 3}), -math.inf
    assert cluster.room >= 5 and cluster.workers == 5


def test_a_plan_says_whether_its_pilot_is_enough():
    loose, tight = (hs.plan_precision(queue(60, "0.5/s"), share) for share in (0.9, 0.02))
    assert loose.replications <= 10 < tight.replications
    assert "is reached by them" in loose.sentences[1] and "takes about" in tight.sentences[1]


def test_a_folder_without_anything_is_new(tmp_path: Path):
    for name in ("none", "empty"):
        if name == "empty":
            (tmp_path / name).mkdir()
        assert check_folder(tmp_path / name, {}, resume=False, fresh=False) == "new"
    with pytest.raises(UsageError, match="no sweep in"):
        check_folder(tmp_path / "none", {}, resume=True, fresh=False)


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


def test_jobs_over_several_nodes_do_not_name_nodes():
    found = inferred_nodes(log([(0, 0, 100, 3), (5, 5, 100, 2)], recorded_node=["n1|n2", "n1"]))
    assert sum(node.get("count", 1) * node["gpus"]["count"] for node in found) >= 5
    assert not {"n1", "n2", "n1|n2"} & {node["name"] for node in found}


# Readers ------------------------------------------------------------------------------------------------------------

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
    with pytest.raises(hs.errors.ScenarioError, match="not a number of any use") as caught:
        registry.entry("traces", "swf")(path)
    assert ":2:" in str(caught.value) and "column 6" in str(caught.value)


