"""Small cases by hand of policies that decide when, and of what they share."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate, tasks_of

from hetsim.model.cluster import NodeSpec
from hetsim.model.curves import Layout
from hetsim.model.device_type import DeviceType, Power
from hetsim.model.task import Task
from hetsim_policies.dynamic.common.side_by_side import with_partner
from hetsim_policies.dynamic.intervals import IntervalJob
from hetsim_policies.dynamic.packing import _Nodes
from hetsim_policies.dynamic.power_down import PowerDown
from hetsim_policies.dynamic.preemptive import Las


@dataclass(frozen=True)
class Curve:
    """A curve by hand: half of the time remains when a quarter is done; it begins three times as fast."""

    packed: Layout = (2,)

    def seconds_left(self, layout: Layout, done: float) -> float:
        assert (layout, done) == (self.packed, 0.25)
        return 0.5

    def rate(self, layout: Layout, done: float) -> float:
        assert (layout, done) == (self.packed, 0.0)
        return 3.0


def job(**more: Any) -> IntervalJob:
    """A job of 10 s by estimate and 1 s more on two GPUs."""
    mode = gpu_mode(DeviceType("g"), 2, fixed=1.0, **more)
    tasks = tasks_of([Job([mode], [20.0], estimates=[10.0])])
    return IntervalJob(Task(0, 0.0, tasks.shapes[0], (20.0,), (10.0,), tasks), {2: mode})


def test_what_is_left_of_a_job():
    assert job().remaining(2, 0.25) == pytest.approx(11 * 0.75)
    assert job(curve=Curve()).remaining(2, 0.25) == pytest.approx(5.5)


def test_speed_of_a_job_on_a_layout():
    one, spanning = job(), job(span_any=True)
    assert one.speed((2,)) == spanning.speed((1, 1)) == pytest.approx(1 / 11)
    assert one.speed((1, 1)) == one.speed((1,)) == spanning.speed((2, 1)) == 0
    assert job(curve=Curve()).speed((2,)) == pytest.approx(3 / 11)


def test_the_first_that_may_join_is_the_partner():
    """Two that stay where they run do not meet; one that stays in its mode takes one that comes."""
    first, second, third = (SimpleNamespace(mode=0) for _ in range(3))
    one = SimpleNamespace(row=1, job=first, position=0)
    stays = SimpleNamespace(row=2, job=second, position=0)
    moves = SimpleNamespace(row=2, job=second, position=1)
    comes = SimpleNamespace(row=3, job=third, position=0)

    def partner(others: list[Any], staying: set[int], taken: set[int] | None = None) -> Any:
        return with_partner(one, others, taken or set(), staying)  # type: ignore[arg-type]

    assert partner([stays], {2}) == (one, stays)
    assert partner([moves], {2}) == partner([stays], {1, 2}) == ()
    assert partner([comes], {1}) == partner([comes], {1, 2}) == partner([comes], set()) == (one, comes)
    assert partner([one, stays, comes], {1, 2}) == (one, comes)
    assert partner([stays, comes], {2}, {2}) == (one, comes) and partner([], set()) == ()


def test_what_a_node_gives_and_takes_back():
    nodes = object.__new__(_Nodes)
    nodes.gpus, nodes.cores, nodes.memory = np.array([4, 1]), np.array([8.0, 8.0]), np.array([10.0, 10.0])
    mode: Any = SimpleNamespace(gpus=3, millicores=2000, memory=4.0, nodes=None)
    assert nodes.takes(mode).tolist() == [True, False]
    nodes.give(0, mode, -1)
    assert (nodes.gpus.tolist(), nodes.cores.tolist(), nodes.memory.tolist()) == ([1, 1], [6, 8], [6, 10])
    nodes.give(1, mode)
    assert nodes.takes(mode).tolist() == [False, True]
    assert nodes.tightest(mode, but=1) is None and nodes.tightest(mode, but=0) == 1


def test_a_task_falls_at_each_threshold_of_las():
    """Thresholds of 5 and 20 s on one GPU: the first task is interrupted at 5 by the second, and ends at 33."""
    kind = DeviceType("g")
    jobs = [Job([gpu_mode(kind)], [30.0], 0.0), Job([gpu_mode(kind)], [3.0], 1.0)]
    found = simulate(NodeSpec(accelerators=((kind, 1),)), jobs, Las([5.0, 20.0]))
    assert found.finish.tolist() == pytest.approx([33.0, 8.0])


def test_devices_kept_for_a_forecast_sleep_when_it_has_fallen():
    """Ten tasks in 100 s keep devices awake; by the time of the last one, far later, all slept."""
    kind = DeviceType("g", power=Power(idle=100, busy=300, sleep=10, wake=30))
    jobs = [Job([gpu_mode(kind)], [1.0], 10.0 * number) for number in range(10)] + [Job([gpu_mode(kind)], [1.0], 5e4)]
    found = simulate(NodeSpec(accelerators=((kind, 3),)), jobs, PowerDown(memory=500.0))
    before = [(time, device, what) for time, device, what, _ in found.device_log if time < 5e4]
    last = {device: what for _, device, what in before}
    assert len(last) == 3 and set(last.values()) == {"sleep"}
    assert max(time for time, *_ in before) > 200  # not at once: the forecast kept some
