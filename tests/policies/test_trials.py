"""Plans for the rest of a run, tried out in forks of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiers import spread

from hetsim.engine.simulation import Simulation
from hetsim.errors import UsageError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan
from hetsim.model.record import COMPLETED
from hetsim.policy import ListScheduler, Progress, Scheduler
from hetsim.policy.remaining import Resumed
from hetsim.testing import System
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.hybrid.plan_and_repair import PlanAndRepair
from hetsim_policies.static.lists import Mct
from hetsim_policies.static.random_search import Genetic

GPU = DeviceType("g")


def run(scheduler, cluster, tasks):
    return Simulation(System("test", cluster, tasks).run_input(scheduler), check=True).run()


def one_core(times):
    return Cluster([node(cpus=1)]), workload([(0.0, 0, time) for time in times], [Shape([cpu_mode()])])


class Promises(Scheduler):
    """In its n-th round plans the rest with mct, asks what comes of it, and follows it from then on."""

    def __init__(self, at, foresight=False):
        self.at, self.foresight = at, foresight
        self.by = ListScheduler(discipline="skip")
        self.rounds, self.promise, self.steps, self.now = 0, math.nan, None, 0.0

    def prepare(self, problem):
        self.progress = Progress(problem)

    def ready(self, task):
        self.progress.ready(task)
        (self.by if self.steps is None else self.steps).ready(task)

    def finished(self, task):
        self.progress.ended(task)
        if self.steps is not None:
            self.steps.finished(task)

    def schedule(self, view):
        self.rounds += 1
        if self.rounds == self.at:
            rest = self.progress.rest(view, foresight=self.foresight)
            plan = Mct().plan(rest.problem)
            self.promise, self.now = rest.problem.simulate(plan), view.now
            self.planned = list(rest.rows)
            problem = self.progress.problem
            self.steps = Resumed(Plan(rest.steps(plan)), problem.tasks, problem.cluster)
            for task in view.waiting():
                self.steps.ready(task)
        yield from (self.by if self.steps is None else self.steps).schedule(view)


@pytest.mark.parametrize("seed", spread(range(10), 4))
def test_what_is_simulated_in_mid_run_comes_true(seed):
    """Where estimates are exact and nothing comes later."""
    random = np.random.default_rng(seed)
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    rows = [(0.0, 0, float(random.integers(1, 9)), float(random.integers(1, 9))) for _ in range(20)]
    policy = Promises(at=5)
    record = run(policy, Cluster([node(cpus=2, accelerators=((GPU, 2),))]), workload(rows, [shape]))
    assert (record.status == COMPLETED).all() and len(policy.planned) > 3
    assert policy.promise == pytest.approx(record.finish[policy.planned].max() - policy.now)


def test_with_foresight_nothing_is_tried_out():
    with pytest.raises(UsageError, match="with foresight no plan can be simulated"):
        run(Promises(at=1, foresight=True), *one_core([3, 4]))


def test_repairs_take_planners_that_try_plans_out():
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    rows = [(0.0, 0, 6.0, 2.0)] * 8 + [(1.0, 0, 3.0, 1.0)] * 4
    cluster = Cluster([node(cpus=2, accelerators=((GPU, 1),))])
    plain = run(PlanAndRepair(Mct()), cluster, workload(rows, [shape]))
    tried = run(PlanAndRepair(Genetic(evaluations=200)), cluster, workload(rows, [shape]))
    assert (tried.status == COMPLETED).all()
    assert tried.finish.max() <= plain.finish.max() + 1e-9
