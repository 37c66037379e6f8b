"""Small cases by hand of studies."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_output_statistics import queue

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.experiment.folder import check_folder
from hetsim.experiment.workers import DaskCluster


@pytest.mark.quick(0)
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
    assert "is reached by the pilot" in loose.sentences[1] and "needs about" in tight.sentences[1]


def test_a_folder_without_anything_is_new(tmp_path: Path):
    for name in ("none", "empty"):
        if name == "empty":
            (tmp_path / name).mkdir()
        assert check_folder(tmp_path / name, {}, resume=False, fresh=False) == "new"
    with pytest.raises(UsageError, match="has no sweep to resume"):
        check_folder(tmp_path / "none", {}, resume=True, fresh=False)
