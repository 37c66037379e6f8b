"""Relations between two runs that hold to the last bit, whatever the system: times doubled, names changed, nodes that
no task can use, a shorter horizon, two systems that share nothing in one cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.tasks import Tasks
from hetsim.policy import Scheduler, Start
from oracle.chaos import Drawn, drawn

SEEDS = range(30)


class QueueOfEachType(Scheduler):
    """First come, first served, with a queue for each type of device; a head that does not fit blocks its own."""

    def schedule(self, view):
        blocked = set()
        for task in sorted(view.waiting(), key=lambda task: (task.arrival, task.index)):
            kind = task.shape.modes[0].type
            placement = None if kind in blocked else view.fit(task)
            if placement is None:
                blocked.add(kind)
            else:
                yield Start(task, placement)


def finishes(system: Drawn, *more: NodeSpec, **given) -> np.ndarray:
    return np.array(Simulation(system.run_input(QueueOfEachType(), *more, **given), check=True).run().finish)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_doubled_times_double_the_finishes(seed):
    assert np.array_equal(finishes(drawn(seed)) * 2, finishes(drawn(seed, scale=2.0)), equal_nan=True)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_names_and_nodes_that_no_task_can_use_change_nothing(seed):
    expected = finishes(drawn(seed))
    useless = NodeSpec(cpus=2, accelerators=((DeviceType("useless"), 3),), count=2)
    assert np.array_equal(expected, finishes(drawn(seed, name="a name")), equal_nan=True)
    assert np.array_equal(expected, finishes(drawn(seed), useless), equal_nan=True)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_shorter_horizon_cuts_off_and_changes_nothing_before(seed):
    expected = finishes(drawn(seed))
    horizon = 0.6 * float(np.nanmax(expected))
    cut = finishes(drawn(seed), horizon=horizon)
    assert np.array_equal(cut, np.where(expected < horizon, expected, np.nan), equal_nan=True)
    assert np.isnan(cut).any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_systems_that_share_nothing_run_in_one_cluster_as_alone(seed):
    one, other = drawn(seed), drawn(seed + 10_000, name="h")
    alone = np.concatenate([finishes(one), finishes(other)])  # first: a shape has the number of its last load
    shift = len(Cluster([one.node]).devices)
    tasks, order = merged(one.tasks, other.tasks)
    faults = [*one.faults, *(replace(fault, device=fault.device + shift) for fault in other.faults)]
    both = finishes(replace(one, tasks=tasks, faults=faults), other.node)
    assert np.array_equal(both, alone[order], equal_nan=True)


def merged(one: Tasks, other: Tasks) -> tuple[Tasks, np.ndarray]:
    """The tasks of two loads by arrival, and the order in which they stand."""
    order = np.argsort(np.concatenate([one.arrival, other.arrival]), kind="stable")
    width = max(one.time.shape[1], other.time.shape[1])
    time = np.vstack([np.pad(part.time, ((0, 0), (0, width - part.time.shape[1])), constant_values=np.inf)
                      for part in (one, other)])[order]  # fmt: skip
    size = {}
    for name in ("bytes_in", "bytes_out"):
        columns = [getattr(part, name) for part in (one, other)]
        zeros = [np.zeros(len(part), np.int64) for part in (one, other)]
        size[name] = np.concatenate([zero if column is None else column
                                     for column, zero in zip(columns, zeros, strict=True)])[order]  # fmt: skip
    shape = np.concatenate([one.shape, other.shape + len(one.shapes)])[order].astype(np.int32)
    arrival = np.concatenate([one.arrival, other.arrival])[order]
    return Tasks(arrival, shape, [*one.shapes, *other.shapes], time, time, **size), order
