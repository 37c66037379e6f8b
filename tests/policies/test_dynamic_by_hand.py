"""Rules of dynamic schedulers at their edges and where nothing waits, by hand or against a second opinion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, tasks_of

from hetsim import registry
from hetsim.model.cluster import Cluster, DeviceType, NodeSpec
from hetsim.model.faults import FaultEvent
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.model.tasks import Stopping
from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers, max_min
from hetsim_policies.dynamic.packing import Defragment
from hetsim_policies.dynamic.preemptive import Srtf
from hetsim_policies.dynamic.unlike import AlloX

GPU, OTHER = DeviceType("g"), DeviceType("h")


def task_of(*jobs: Job, row: int = 0) -> Task:
    tasks = tasks_of(jobs)
    shape = tasks.shapes[tasks.shape[row]]
    times = tuple(tasks.time[row][: len(shape.modes)].tolist())
    return Task(row, float(tasks.arrival[row]), shape, times, times, tasks)


# When a scheduler is asked ----------------------------------------------------------------------------------------

ASKED_WHEN_READY = [
    "wfp3", "unicep", "drf", "quota_borrow", "srtf", "easy_backfill", "conservative_backfill", "gang_backfill",
    "sharing", "tetris", "wfq", "qssf", "priority", "edf",
]  # fmt: skip


@pytest.mark.parametrize("name", ASKED_WHEN_READY)
def test_an_end_asks_for_no_decision_once_nothing_waits(name: str):
    """The third task waits from 1 to 2 s.  A scheduler may look once more at 5 s; then it knows that nothing waits."""
    policy = registry.policy("scheduler", name)()
    asked: list[float] = []
    schedule = policy.schedule

    def noted(view: View) -> Iterator[Any]:
        asked.append(view.now)
        return schedule(view)

    policy.schedule = noted
    jobs = [Job([gpu_mode(GPU)], [2.0]), Job([gpu_mode(GPU)], [5.0]), Job([gpu_mode(GPU)], [4.0], 1.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, policy)
    assert record.start.tolist() == [0, 0, 2]
    assert set(asked) - {1.0, 5.0} == {0, 2}


# Programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [(1.5e-3, 2e-16), (6e8, 3e-16), (1.0, 3.0), (2.0, 1e-4, 5e3)])
def test_the_greatest_least_progress_on_one_device(times: tuple[float, ...]):
    """Jobs that all make equal progress take parts as long as their times: each 1 / (sum of the times)."""
    count = len(times)
    zeros, ones = np.zeros(count, dtype=int), np.ones(count)
    offers = ModeOffers(np.arange(count), zeros, ones, time=np.array(times), capacity=np.ones(1), weight=ones)
    progress = offers.progress(max_min(offers, ones))
    assert progress.min() * math.fsum(times) == pytest.approx(1.0, rel=1e-6)


# What is left -----------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_task_shorter_than_a_second():
    """A quarter second of a half is left on one GPU; on four, where it takes a fifth, that is a tenth."""
    task = task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 4)], [0.5, 0.2]))
    launch = SimpleNamespace(placement=SimpleNamespace(mode=task.modes[0]))
    view: Any = SimpleNamespace(launch_of=lambda _: launch, remaining=lambda _: 0.25)
    assert Srtf().rank(task, view) == pytest.approx(0.1)


# Matching ---------------------------------------------------------------------------------------------------------


def test_allox_starts_what_fits_where_the_first_of_the_queue_fits_nowhere():
    """Only the node that is down until 30 s has memory for the shorter job.  The longer one is started in its place,
    and a third one that comes meanwhile waits for it."""
    specs = [NodeSpec(cpus=1, memory=100, accelerators=((GPU, 1),)),
             NodeSpec(cpus=1, memory=10, accelerators=((GPU, 1),))]  # fmt: skip
    jobs = [Job([gpu_mode(GPU, memory=50)], [5.0]), Job([gpu_mode(GPU, memory=5)], [20.0]),
            Job([gpu_mode(GPU, memory=5)], [8.0], 1.0)]  # fmt: skip
    cluster = Cluster(specs)
    gpu = cluster.nodes[0].accelerators[0].index
    faults: Any = [FaultEvent(0.0, gpu, "down"), FaultEvent(30.0, gpu, "up")]
    record = simulate(specs, jobs, AlloX(), faults=faults)
    assert record.start.tolist() == [30, 0, 20]


# Moves ------------------------------------------------------------------------------------------------------------


def test_what_may_be_moved():
    """Each of these runs, but one is not preemptible, one is in a batch, one uploads, and so on: two may move."""
    nodes = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 4), (OTHER, 2)), count=2)]).nodes
    kind = nodes[0].cpu.type
    plain, pair = gpu_mode(GPU), gpu_mode(GPU, 2, span_any=True)

    def running(row: int, mode: Any = plain, devices: Any = None, memo: float | None = None, **more: Any) -> Any:
        launch = SimpleNamespace(tasks=more.pop("tasks", [0]), stage=more.pop("stage", "compute"), placement=(
            SimpleNamespace(mode=mode, devices=devices or nodes[1].accelerators[: mode.gpus])))  # fmt: skip
        shape = SimpleNamespace(preemptible=more.pop("preemptible", True))
        return SimpleNamespace(index=row, state=more.pop("state", RUNNING), shape=shape, memo=memo, launch=launch)

    apart = (nodes[0].accelerators[0], nodes[1].accelerators[0])
    tasks = [
        running(0, pair), running(1), running(2, state=WAITING), running(3, preemptible=False),
        running(4, tasks=[0, 1]),
        running(5, stage="upload"), running(6, gpu_mode(OTHER), nodes[1].accelerators[4:5]),
        running(7, gpu_mode(GPU, 0.5)), running(8, gpu_mode(GPU, gpu_memory=1)), running(9, pair, apart),
        running(10, memo=91.0), running(11, memo=90.0), running(12, cpu_mode(kind), (nodes[1].cpu,)),
    ]  # fmt: skip
    view: Any = SimpleNamespace(now=100.0, running=lambda *_, **__: tasks, launch_of=lambda task: task.launch)
    found = Defragment(minimum_run=10.0)._movable(plain, view)
    assert {node: [task.index for task in some] for node, some in found.items()} == {1: [1, 11, 0]}


def test_moves_are_made_where_they_pay():
    """A single on each of two nodes of two GPUs, 10 s long.  From 2 s on a pair would wait for 8 s, 16 GPU-seconds.
    A move costs 4 s of one GPU: it pays up to a margin of 4."""
    stopping = Stopping(save=1.0, restore=3.0)
    jobs = [Job([gpu_mode(GPU)], [10.0], stopping=stopping) for _ in range(2)] + [Job([gpu_mode(GPU, 2)], [5.0], 2.0)]
    rule = registry.policy("placement", "worst_fit")
    for margin, start in ((3.9, 3.0), (4.1, 10.0)):
        policy = Defragment(placement=rule, margin=margin)
        record = simulate(NodeSpec(accelerators=((GPU, 2),), count=2), jobs, policy)
        assert record.start[2] == pytest.approx(start), margin
