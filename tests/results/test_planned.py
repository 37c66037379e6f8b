"""Following a plan: what heads a queue starts when it can, and is looked at only when that may have changed."""

from __future__ import annotations

import numpy as np
import pytest

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan, Step
from hetsim.policy.planned import Following
from hetsim.testing import System
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload


class Counting(Following):
    """Counts how often it asks whether a step fits."""

    def __init__(self, plan):
        super().__init__(plan)
        self.asked = 0

    def schedule(self, view):
        yield from super().schedule(Asked(self, view))


class Asked:
    def __init__(self, policy, view):
        self.policy, self.view = policy, view

    def fits(self, *given):
        self.policy.asked += 1
        return self.view.fits(*given)

    def __getattr__(self, name):
        return getattr(self.view, name)


def followed(cluster, tasks, steps, disturb=lambda simulation: None):
    scheduler = Counting(Plan([Step(*step) for step in steps]))
    simulation = Simulation(System("plan", cluster, tasks).run_input(scheduler), check=True)
    disturb(simulation)
    return simulation.run(), scheduler


def one_after_the_other(lanes, times, steps):
    """Starts if every lane runs its steps without a pause."""
    free = dict.fromkeys(lanes, 0.0)
    start = np.empty(len(times))
    for task, _, (lane,) in steps:
        start[task] = free[lane]
        free[lane] += times[task]
    return start


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_step_behind_a_running_one_is_tried_once(on_cpu):
    """60 tasks on 4 lanes of unlike load: 60 questions, and no pause."""
    rng = np.random.default_rng(3)
    times, kind = rng.uniform(1, 9, 60), DeviceType("g")
    cluster = Cluster([node(cpus=4) if on_cpu else node(accelerators=((kind, 4),))])
    lanes = [f"n0/cpu{n}" if on_cpu else f"n0/g{n}" for n in range(4)]
    tasks = workload([(0, 0, time) for time in times], [Shape([cpu_mode() if on_cpu else gpu_mode(kind)])])
    steps = [(task, 0, (lanes[int(rng.integers(4))],)) for task in rng.permutation(60).tolist()]
    record, scheduler = followed(cluster, tasks, steps)
    assert scheduler.asked == 60
    assert record.start == pytest.approx(one_after_the_other(lanes, times, steps))


def test_a_step_that_lacks_memory_is_tried_until_it_has_some():
    """Two cores, memory for one of the three tasks that want it: the second core's waits for what the first holds."""
    big, small = Shape([cpu_mode(memory=3 * GB)]), Shape([cpu_mode()])
    cluster = Cluster([node(cpus=2, memory=4 * GB)])
    tasks = workload([(0, 0, 4.0), (0, 0, 1.0), (0, 1, 1.0), (0, 0, 2.0)], [big, small])
    steps = [(0, 0, ("n0/cpu0",)), (1, 0, ("n0/cpu1",)), (2, 0, ("n0/cpu1",)), (3, 0, ("n0/cpu0",))]
    record, _ = followed(cluster, tasks, steps)
    assert record.start.tolist() == [0.0, 4.0, 5.0, 5.0]


def test_streams_let_the_next_step_in_beside_a_running_one():
    """Two streams: the second uploads for 1 s while the first computes for 3 s, the third when that has ended."""
    kind = DeviceType("g", streams=2)
    tasks = workload([(0, 0, 3.0)] * 3, [Shape([gpu_mode(kind, upload=StageTime(fixed=1.0))])])
    steps = [(task, 0, ("n0/g0",)) for task in range(3)]
    record, _ = followed(Cluster([node(accelerators=((kind, 1),))]), tasks, steps)
    assert record.start.tolist() == [0.0, 1.0, 4.0]
    assert record.finish.tolist() == [4.0, 7.0, 10.0]


def test_halves_of_a_gpu_run_side_by_side():
    kind = DeviceType("g")
    tasks = workload([(0, 0, 3.0)] * 3, [Shape([gpu_mode(kind, 0.5)])])
    steps = [(task, 0, ("n0/g0",)) for task in range(3)]
    record, _ = followed(Cluster([node(accelerators=((kind, 1),))]), tasks, steps)
    assert record.start.tolist() == [0.0, 0.0, 3.0]


def test_a_step_that_was_stopped_goes_on_before_the_next():
    """The GPU fails at 1 and is back at 5: what ran starts again then, and what waited behind it comes after."""
    kind = DeviceType("g")
    tasks = workload([(0, 0, 3.0)] * 3, [Shape([gpu_mode(kind)])])
    steps = [(task, 0, ("n0/g0",)) for task in range(3)]

    def fail(simulation):
        (device,) = simulation.input.cluster.nodes[0].accelerators
        for at, up in ((1.0, False), (5.0, True)):
            simulation.at(at, lambda up=up: simulation.parts.devices.set_up(device, up))

    record, _ = followed(Cluster([node(accelerators=((kind, 1),))]), tasks, steps, fail)
    assert record.finish.tolist() == [8.0, 11.0, 14.0]
