"""Plans in a receding horizon, and trying plans out in mid-run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tiers import spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UsageError
from hetsim.model.cluster import Cluster, DeviceType
from hetsim.model.plan import Plan
from hetsim.model.record import COMPLETED
from hetsim.model.tasks import Shape
from hetsim.policy import ListScheduler, Progress, Scheduler
from hetsim.policy.planned import PlannedScheduler
from hetsim.policy.remaining import Resumed
from hetsim.testing import System
from hetsim.testing.generate import random_system
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.hybrid.ahead import Mpc
from hetsim_policies.hybrid.plan_and_repair import PlanAndRepair
from hetsim_policies.static.lists import Mct, MinMin
from hetsim_policies.static.random_search import Genetic

GPU = DeviceType("g")


def run(scheduler, cluster, tasks):
    return Simulation(System("test", cluster, tasks).run_input(scheduler), check=True).run()


class Shortest(PlannedScheduler):
    """On one core, the shortest first."""

    def plan(self, problem):
        plan = MinMin().plan(problem)
        tasks = problem.tasks
        return replace(plan, steps=sorted(plan.steps, key=lambda step: tasks.time[step.task, step.mode]))


def one_core(times):
    return Cluster([node(cpus=1)]), workload([(0.0, 0, time) for time in times], [Shape([cpu_mode()])])


def test_a_plan_is_followed_where_it_is_better_than_the_base():
    policy = Mpc(planner=Shortest())
    record = run(policy, *one_core([9, 1, 4]))
    assert record.start.tolist() == [5, 0, 1]
    assert policy.notes["plans_followed"] == 1


def test_the_base_is_followed_where_no_plan_is_better():
    policy = Mpc(planner=Mct())  # in the order of arrival, too
    record = run(policy, *one_core([9, 1, 4]))
    assert record.start.tolist() == [0, 9, 10]
    assert policy.notes["plans_followed"] == 0


def test_the_window_holds_what_is_planned():
    record = run(Mpc(planner=Shortest(), window=2, every=100.0), *one_core([9, 1, 4]))
    assert record.start.tolist() == [1, 0, 10]


@pytest.mark.parametrize("seed", spread(range(8), 1))
@pytest.mark.slow
def test_no_hidden_time_or_arrival_changes_a_decision(seed):
    random = np.random.default_rng(seed)
    system = random_system(seed, nodes=1 + seed % 2, tasks=20, features=("estimates", "people"))
    first = Simulation(system.run_input(Mpc(every=1.0, window=8))).run()
    at = float(np.quantile(first.finish, 0.6))
    tasks = system.tasks
    later = tasks.arrival > at
    arrival = np.where(later, at + (tasks.arrival - at) * random.uniform(0.2, 2.0), tasks.arrival)
    time = np.where((first.finish > at)[:, None], tasks.time * random.uniform(1.5, 3.0), tasks.time)
    hidden = replace(tasks, arrival=arrival, time=time, estimate=tasks.estimate)
    second = Simulation(replace(system.run_input(Mpc(every=1.0, window=8)), tasks=hidden)).run()
    begun = first.start <= at
    assert 5 < begun.sum() < 20
    assert (second.start <= at).tolist() == begun.tolist()
    assert first.start[begun].tobytes() == second.start[begun].tobytes()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"name": "mpc", "base": "easy_backfill"}, "mpc cannot nest EasyBackfill"),
        ({"name": "mpc", "planner": "as_planned"}, "AsPlanned cannot plan in mid-run"),
    ],
)
def test_what_cannot_be_is_said(policy, said):
    jobs = {"cpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 3}}
    with pytest.raises(ScenarioError, match=said):
        hs.run({"cluster": {"nodes": {"cpus": 1}}, "workload": jobs, "policy": policy})


# Trying plans out -----------------------------------------------------------------------------------------------


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
    with pytest.raises(UsageError, match="still to come"):
        run(Promises(at=1, foresight=True), *one_core([3, 4]))


def test_repairs_take_planners_that_try_plans_out():
    shape = Shape([cpu_mode(), gpu_mode(GPU)])
    rows = [(0.0, 0, 6.0, 2.0)] * 8 + [(1.0, 0, 3.0, 1.0)] * 4
    cluster = Cluster([node(cpus=2, accelerators=((GPU, 1),))])
    plain = run(PlanAndRepair(Mct()), cluster, workload(rows, [shape]))
    tried = run(PlanAndRepair(Genetic(evaluations=200)), cluster, workload(rows, [shape]))
    assert (tried.status == COMPLETED).all()
    assert tried.finish.max() <= plain.finish.max() + 1e-9
