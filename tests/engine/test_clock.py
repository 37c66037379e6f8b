"""One clock: what a batch takes, asked in several places, is one number."""

from __future__ import annotations

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate
from test_batching_policies import PLAIN, system

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.policy import ListScheduler, Start, Stop, Wait
from hetsim.queueing.matching import match
from hetsim.scenario.scenario import load
from hetsim_policies.batching.fixed_rules import SizeOrTimeout


def test_theory_refuses_batches_that_take_another_time_than_its_line(monkeypatch):
    """A timing that the formula has not heard of: every eighth request costs 1 ms more."""
    scenario = {
        "name": "waves",
        "cluster": {"nodes": [{"gpus": {"type": "g"}}]},
        "workload": [{
            "name": "s", "arrivals": {"process": "poisson", "rate": "10/s"}, "count": 20,
            "service": {"compute": {"fixed": "5 ms", "per_item": "1 ms"}, "max_batch": 16},
        }],
        "policy": {"batching": "serial_greedy"},
    }  # fmt: skip
    assert match(load(scenario)).verdict == "nearly"
    plain = Mode.computing
    monkeypatch.setattr(Mode, "computing", lambda m, n, own, left=1.0: plain(m, n, own, left) + n // 8 * 0.001)
    found = match(load(scenario))
    assert found.verdict == "none"
    assert any(not a.holds and a.value == "the time of a batch of 8 is off the line" for a in found.assumptions)


class StopOnce(ListScheduler):
    """Starts two tasks as a batch in a mode (None: batching policies decide), stops it once and sees what is done."""

    def __init__(self, at, mode=None):
        super().__init__()
        self.at, self.mode, self.seen = at, mode, []

    def schedule(self, view):
        if view.now >= self.at and not self.seen:
            stopped = next(iter(view.running()))
            batch = list(stopped._launch.tasks)
            yield Stop(stopped)
            self.seen = [task.done for task in batch]
        elif self.mode is None:
            yield from super().schedule(view)
        elif len(tasks := list(view.waiting())) == 2:
            yield Start(tasks, view.first(self.mode))
        if not self.seen:
            yield Wait(until=self.at)


def test_a_stop_leaves_as_much_of_each_task_of_a_batch_by_estimate_as_in_truth():
    """13 + 1 + 3 s, stopped at 8.5: half of each is done, whatever the order of the tasks."""
    gpu = DeviceType("g")
    mode = gpu_mode(gpu, fixed=13.0, batch_limit=2)
    policy = StopOnce(8.5, mode)
    jobs = [Job([mode], [1.0]), Job([mode], [3.0])]
    simulate(NodeSpec(cpus=4, accelerators=((gpu, 1),)), jobs, policy)
    assert policy.seen == pytest.approx([0.5, 0.5])


def test_padding_is_part_of_what_a_stopped_batch_had_to_do():
    """Three requests as eight take 2 + 8 s, so that half of each is done after 5 s."""
    run = system(SizeOrTimeout(8, 0.0, [8]), np.zeros(3), **PLAIN)
    run.scheduler = policy = StopOnce(5.0)
    Simulation(run, check=True).run()
    assert policy.seen == pytest.approx([0.5] * 3)
