"""Causes of waits that dynamic schedulers state, and parts of theirs, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate

from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim_policies.dynamic.backfilling import ConservativeBackfill, EasyBackfill, GangBackfill
from hetsim_policies.dynamic.elastic import RigidJobs
from hetsim_policies.dynamic.packing import likeness
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor

GPU, OTHER = DeviceType("g"), DeviceType("o")
AT_ONCE: dict[str, Any] = {"calc_period": 0.0, "bf_interval": 0.0}


@pytest.mark.parametrize("policy", [
    EasyBackfill(), ConservativeBackfill(), GangBackfill(), SlurmMultifactor(**AT_ONCE),
], ids=lambda policy: type(policy).__name__)  # fmt: skip
def test_a_task_that_fits_waits_for_a_reservation(policy: Any):
    """The pair is promised 10 s.  The job of 20 s would fit next to the first, and would keep it waiting; that of 4 s
    goes ahead.  A job that does not fit needs no such cause."""
    jobs = [Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU, 2)], [5.0], 1.0), Job([gpu_mode(GPU)], [20.0], 2.0),
            Job([gpu_mode(GPU)], [4.0], 3.0)]  # fmt: skip
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, policy)
    assert record.start.tolist() == [0, 10, 15, 3]
    assert record.holds == [(2.0, 2, "reservation")]


def waiting(row: int, arrival: float) -> Any:
    return SimpleNamespace(index=row, arrival=arrival)


def test_waiting_jobs_of_one_size():
    """In the order of arrival over all modes; a mode that is blocked meanwhile is left out from there on."""
    one, two, three = (gpu_mode(GPU, width) for width in (1, 2, 3))
    rows = [(two, 0.0, 9), (one, 1.0, 8), (two, 2.0, 1), (one, 3.0, 2), (three, 4.0, 0), (two, 5.0, 5), (one, 5.0, 5)]
    jobs, tasks = RigidJobs(), []
    for row, (mode, arrival, key) in enumerate(rows):
        tasks.append(waiting(row, arrival))
        jobs.add(tasks[-1], mode, key)

    def order(blocked: dict[Any, None], after: int = -1, close: Any = None) -> list[int]:
        """Rows as they come; after one of them a mode is blocked."""
        found = []
        for task in jobs.in_order(blocked):
            found.append(task.index)
            if task.index == after:
                blocked[close] = None
        return found

    assert len(jobs) == 7 and set(jobs.modes()) == {one, two, three}
    assert order({}) == [0, 1, 2, 3, 4, 5, 6] and order({two: None}) == [1, 3, 4, 6]
    assert order({}, 2, two) == [0, 1, 2, 3, 4, 6] and order({}, 1, two) == [0, 1, 3, 4, 6]
    assert order({}, 3, three) == [0, 1, 2, 3, 5, 6] and order({one: None, two: None, three: None}) == []
    # By key: row 4 takes three of seven GPUs, 2 (of two), 3 (of one), and one is left for row 6.
    keep, chosen = jobs.deal([], {"g": 7.0})
    assert [task.index for task in chosen] == [4, 2, 3, 6] and keep == {}
    assert [task.index for task in jobs.widest_first(chosen)] == [4, 2, 3, 6]
    keep, chosen = jobs.deal([(1, 9.0, 7, two), (6, 0.0, 8, one), (7, 0.0, 9, two)], {"g": 8.0})
    assert [task.index for task in chosen] == [4, 2, 3] and keep == {7: None}
    keep, chosen = jobs.deal([(1, 1.0, 7, two)], {"g": 5.0})  # of equal keys the one that came first
    assert [task.index for task in chosen] == [4] and keep == {7: None}
    for task in tasks[:6]:
        jobs.remove(task)
        jobs.remove(task)
    assert len(jobs) == 1 and list(jobs.modes()) == [one] and order({}) == [6]


def test_likeness_of_jobs():
    """1 within a class; else the cosine of the speeds by type: 1 and 1/2 against 1/2 and 1 are 4/5."""

    def job(class_: str, **seconds: float) -> Any:
        modes = {name: gpu_mode(GPU if name == "g" else OTHER) for name in seconds}
        return SimpleNamespace(class_=class_, modes=list(modes.values()), shortest_estimate=min(seconds.values()),
                               estimate_in=lambda mode: seconds[mode.type.name])  # fmt: skip

    one, other = job("a", g=2.0, o=4.0), job("b", g=6.0, o=3.0)
    assert likeness(one, job("a", o=1.0)) == 1 and likeness(one, other) == pytest.approx(0.8)
    assert likeness(one, job("", g=1.0)) == pytest.approx(1 / np.sqrt(1.25))
    assert likeness(job("", g=1.0), job("", g=5.0)) == 1 and likeness(job("", g=1.0), job("", o=1.0)) == 0
    assert likeness(one, SimpleNamespace(class_="", modes=[], shortest_estimate=0.0)) == 0  # type: ignore[arg-type]
