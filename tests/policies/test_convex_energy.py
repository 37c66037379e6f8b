"""Least energy before a deadline: against closed forms, against optima, and replayed by the engine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tiers import some, spread

import hetsim as hs
from hetsim.engine.simulation import Simulation, play
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link, Power
from hetsim.model.mode import Shape
from hetsim.model.plan import Plan, Step
from hetsim.model.tasks import Item
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim.policy.rehearsal import problem_of
from hetsim.results.one_run.result import Result
from hetsim.testing import System, audit
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.search import seed_of
from hetsim_policies.static.convex_energy import ConvexEnergy, Machine, finishes, relaxed, slownesses
from hetsim_policies.static.insertion import Heft
from hetsim_policies.static.two_sides import GreedyDual

GPU = DeviceType("g", power=Power(idle=50, busy=250), link=Link(upload=10**9, download=10**9))
CORE_WATTS, GPU_WATTS = 9, 200
"""Above idle, of a core as `hetsim.testing.systems` has it and of this GPU."""


def problem(times, cpus=1, gpus=1, nodes=1, arrivals=None, **columns):
    """Tasks with (core, GPU) times."""
    arrivals = [0.0] * len(times) if arrivals is None else arrivals
    rows = [(at, 0, *row) for at, row in zip(arrivals, times, strict=True)]
    tasks = workload(rows, [Shape([cpu_mode(), gpu_mode(GPU)])], **columns)
    return PlanProblem(tasks, Cluster([node(cpus=cpus, accelerators=((GPU, gpus),), count=nodes)]))


def replayed(scheduler, given, horizon=None):
    """The run of a plan, checked."""
    run = System("test", given.cluster, given.tasks).run_input(scheduler)
    if horizon is not None:
        run.horizon = horizon
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    return Result(record)


def random_problem(seed, graph=False, arrivals=False, size=None):
    rng = np.random.default_rng(seed)
    size = size or int(rng.integers(2, 30))
    cpu = rng.uniform(1, 10, size)
    times = np.stack([cpu, cpu / rng.lognormal(1, 1, size)], axis=1)
    columns = {}
    if graph:
        before = [tuple(sorted(set(rng.integers(0, j, rng.integers(0, min(j, 3) + 1)).tolist()))) for j in range(size)]
        columns["predecessors"] = before
    there = np.sort(rng.uniform(0, 10, size)) if arrivals else None
    shape = {"cpus": int(rng.integers(1, 4)), "gpus": int(rng.integers(1, 3)), "nodes": int(rng.integers(1, 3))}
    return problem(times.tolist(), arrivals=there, **shape, **columns)


def test_one_device_runs_just_fast_enough():
    """Work of 4 s until 10 s: frequency 0.4, and 200 W × 0.4³ × 10 s = 128 J instead of 200 W × 4 s = 800 J."""
    given = problem([[np.inf, 1], [np.inf, 3]])
    plan = ConvexEnergy(deadline=10).plan(given)
    assert plan.frequencies == {"n0/g0": pytest.approx(0.4)}
    assert plan.notes["dynamic_energy_j"] == pytest.approx(128)
    assert plan.notes["full_speed_dynamic_energy_j"] == pytest.approx(800)
    result = replayed(ConvexEnergy(deadline=10), given)
    assert result.metric("energy_tasks_j") == pytest.approx(128)
    assert result.metric("makespan") == pytest.approx(10)
    assert result.metric("makespan") <= 10


def test_cores_of_a_node_share_the_frequency_of_the_most_loaded():
    """3 s and 1 s on two cores until 6 s: both at a half, 9 W × 4 s of work / 4."""
    plan = ConvexEnergy(deadline=6).plan(problem([[3, np.inf], [1, np.inf]], cpus=2))
    assert plan.frequencies == {"n0/cpu": pytest.approx(0.5)}
    assert plan.notes["dynamic_energy_j"] == pytest.approx(CORE_WATTS * 4 / 4)


def test_no_slower_than_the_lowest_frequency():
    plan = ConvexEnergy(deadline=1000, min_frequency=0.25).plan(problem([[np.inf, 1]]))
    assert plan.frequencies == {"n0/g0": pytest.approx(0.25)}
    assert plan.makespan == pytest.approx(4)


def test_later_arrivals_need_more_speed():
    """2 s of work at 0 and 4 s at 6: until 10 the GPU must run at full speed, until 14 at a half."""
    plan = ConvexEnergy(deadline=10).plan(problem([[np.inf, 2], [np.inf, 4]], arrivals=[0, 6]))
    assert plan.frequencies == {}
    plan = ConvexEnergy(deadline=14).plan(problem([[np.inf, 2], [np.inf, 4]], arrivals=[0, 6]))
    assert plan.frequencies == {"n0/g0": pytest.approx(0.5)}


def test_a_chain_slows_the_thirsty_device_more():
    """4 s on the core, then 4 s on the GPU, until 16 s: least c W / s² on the line of s₁ + s₂ = 4 has s ∝ c^⅓."""
    given = problem([[4, np.inf], [np.inf, 4]], predecessors=[(), (0,)])
    plan = ConvexEnergy(deadline=16).plan(given)
    ratio = (GPU_WATTS / CORE_WATTS) ** (1 / 3)
    slow = 4 / (1 + ratio)
    cores = 1 / plan.frequencies.get("n0/cpu", 1.0)
    assert cores == pytest.approx(max(1.0, slow), rel=0.02)
    assert 1 / plan.frequencies["n0/g0"] == pytest.approx(4 - max(1.0, slow), rel=0.02)
    least = 4 * (CORE_WATTS / max(1.0, slow) ** 2 + GPU_WATTS / (4 - max(1.0, slow)) ** 2)
    assert least <= plan.notes["dynamic_energy_j"] * (1 + 1e-9)
    assert plan.notes["dynamic_energy_j"] <= least * 1.001


@pytest.mark.quick(1)
@pytest.mark.parametrize("slack", spread([1.0, 1.1, 2.0, 30.0], 1))
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("arrivals", [False, True])
def test_never_more_energy_than_at_full_speed_and_never_late(slack, graph, arrivals):
    """Simulated, over the same window: from the first event to the deadline."""
    for seed in range(some(6, 2)):
        given = random_problem(seed, graph, arrivals)
        plan = ConvexEnergy(slack=slack).plan(given)
        end = float(given.tasks.arrival.min()) + plan.notes["deadline"]
        slow = replayed(ConvexEnergy(slack=slack), given, horizon=end * (1 + 1e-6))
        assert slow.metric("makespan") <= plan.notes["deadline"] * (1 + 1e-9)
        assert slow.metric("makespan") == pytest.approx(plan.makespan)
        assert slow.metric("energy_tasks_j") == pytest.approx(plan.notes["dynamic_energy_j"])
        ranks = [GreedyDual(), Heft()] if not graph else [Heft()]
        full = [replayed(one, given, horizon=end * (1 + 1e-6)) for one in ranks]
        fast = [run for run in full if run.metric("makespan") <= plan.notes["full_speed_makespan"] * (1 + 1e-9)]
        assert all(slow.metric("energy_j") <= run.metric("energy_j") * (1 + 1e-6) for run in fast)
        assert plan.notes["dynamic_energy_j"] <= plan.notes["full_speed_dynamic_energy_j"] * (1 + 1e-9)
        if slack > 1:
            assert plan.notes["dynamic_energy_j"] < plan.notes["full_speed_dynamic_energy_j"]


def least_energy(given, deadline, lowest):
    """By trying all assignments."""
    instance = runnable(given, "test")
    machine = Machine.from_instance(instance)
    every = itertools.product(range(len(machine.instance.lane_kind)), repeat=instance.size)
    return min(machine.cost(np.array(lanes), deadline, lowest) for lanes in every)


@pytest.mark.slow
def test_the_bound_is_below_every_assignment_and_the_plan_is_near_the_best():
    ratios = []
    for seed in range(12):
        given = random_problem(seed, size=5)
        plan = ConvexEnergy(slack=1.5, min_frequency=0.2).plan(given)
        least = least_energy(given, plan.notes["deadline"], 0.2)
        assert plan.notes["dynamic_energy_bound_j"] <= least * (1 + 1e-9)
        assert least <= plan.notes["dynamic_energy_j"] * (1 + 1e-6)
        ratios.append(plan.notes["dynamic_energy_j"] / least)
    assert np.mean(ratios) <= 1.1


@pytest.mark.slow
def test_the_convex_program_of_two_types_is_solved():
    """Against a fine grid of loads: divisible work of 10 s on cores or 10 s on GPUs."""
    size = 1000
    given = problem([[0.01, 0.01]] * size, cpus=2, gpus=1)
    fractions, value = relaxed(Machine.from_instance(runnable(given, "test")), 5.0, 0.1)
    assert fractions.sum(axis=1) == pytest.approx(np.ones(size))
    core = np.linspace(0, 10, 100_001)
    speed_core, speed_gpu = core / 10, (10 - core) / 5
    cost = CORE_WATTS * core * np.maximum(speed_core, 0.1) ** 2
    cost += GPU_WATTS * (10 - core) * np.maximum(speed_gpu, 0.1) ** 2
    assert value == pytest.approx(cost[speed_gpu <= 1].min(), rel=2e-4)
    assert value <= cost.min()


@pytest.mark.slow
def test_slownesses_are_optimal_on_graphs():
    """No random feasible point is better."""
    rng = np.random.default_rng(3)
    for seed in range(4):
        given = random_problem(seed, graph=True)
        plan = ConvexEnergy(slack=2.0).plan(given)
        instance = runnable(given, "test")
        machine = Machine.from_instance(instance)
        schedule = seed_of(instance).schedule
        deadline = plan.notes["deadline"]
        slow = slownesses(machine, schedule, 0.1, deadline)
        lanes = machine.lanes_of(schedule)
        cost = machine.watts * np.bincount(machine.device[lanes], machine.times(lanes), minlength=len(machine.devices))
        found = (cost / slow**2).sum()
        for _ in range(300):
            other = np.clip(slow * np.exp(rng.normal(0, 0.1, len(slow))), 1, 10)
            if float(finishes(machine, schedule, other)[0].max()) - machine.start <= deadline:
                assert found <= (cost / other**2).sum() * (1 + 1e-3)


def with_engine(given, scheduler):
    run = System("test", given.cluster, given.tasks).run_input(scheduler)
    return problem_of(run, np.random.default_rng(0), play)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.slow
def test_transfers_count_against_the_deadline(graph):
    """Each task uploads 1 GB in 1 s, which no frequency shortens."""
    columns = {"bytes_in": np.full(6, 10**9)}
    if graph:
        columns |= {"predecessors": [(), (0,), (0,), (1,), (1, 2), ()]}
        columns |= {"items": [Item("x", 10**9)], "writes": [(0,), *[()] * 5], "reads": [(), (0,), (0,), (), (), ()]}
    given = problem([[9.0, 1.0]] * 6, gpus=1, **columns)
    for slack in (1.0, 1.4):
        plan = ConvexEnergy(slack=slack).plan(with_engine(given, ConvexEnergy()))
        assert plan.makespan <= plan.notes["deadline"] * (1 + 1e-9)
        result = replayed(ConvexEnergy(slack=slack), given)
        assert result.metric("makespan") == pytest.approx(plan.makespan)
        assert result.metric("makespan") <= plan.notes["deadline"] * (1 + 1e-9)
        assert result.metric("energy_tasks_j") <= plan.notes["full_speed_dynamic_energy_j"] * (1 + 1e-9)


def test_a_deadline_that_no_schedule_meets_is_refused_with_how_much_is_missing():
    with pytest.raises(ScenarioError, match=r"no schedule meets the deadline of 2 s.* at least 5 s, 3 s longer"):
        ConvexEnergy(deadline=2).plan(problem([[np.inf, 5.0]]))


def test_a_deadline_between_bound_and_plan_is_not_called_impossible():
    """3, 3, 2, 2, 2 on two cores can end at 6 s, the bound; longest first ends at 7 s."""
    given = problem([[one, np.inf] for one in (3.0, 3, 2, 2, 2)], cpus=2)
    with pytest.raises(
        ScenarioError, match=r"deadline of 6.5 s is not met: the best .* takes 7 s at full speed, 0.5 s"
    ):
        ConvexEnergy(deadline=6.5).plan(given)


def test_the_refusal_reaches_the_user_of_a_scenario():
    with pytest.raises(ScenarioError, match="no schedule meets the deadline of 10 s"):
        hs.run("slack-before-the-deadline", policy={"name": "convex_energy", "deadline": "10 s"})


@pytest.mark.parametrize(
    "parameters",
    [
        {"deadline": 5.0, "slack": 2.0},
        {"slack": 0.5},
        {"min_frequency": 0.0},
        {"deadline": 0.0},
        {"deadline": float("nan")},
    ],
)
def test_parameters_that_make_no_sense(parameters):
    with pytest.raises(ValueError, match=r"deadline|slack|min_frequency"):
        ConvexEnergy(**parameters)


class Given(PlannedScheduler):
    def __init__(self, frequencies):
        super().__init__()
        self.frequencies = frequencies

    def plan(self, problem):
        return Plan([Step(0, 1, ("n0/g0",))], frequencies=self.frequencies)


@pytest.mark.parametrize(
    ("frequencies", "says"),
    [({"n0/g7": 0.5}, "which the cluster lacks"), ({"n0/g0": 0.0}, "to frequency 0"), ({"n0/g0": np.nan}, "nan")],
)
def test_frequencies_of_a_plan_that_cannot_be(frequencies, says):
    with pytest.raises(ScenarioError, match=says):
        replayed(Given(frequencies), problem([[4.0, 2.0]]))


def test_frequencies_of_a_plan_are_set_before_anything_starts():
    result = replayed(Given({"n0/g0": 0.5}), problem([[4.0, 2.0]]))
    assert result.metric("makespan") == 4
    assert result.record.device_log == [(0.0, 1, "frequency", 0.5)]
    assert result.metric("energy_tasks_j") == pytest.approx(GPU_WATTS * 0.125 * 4)


def test_without_tasks_there_is_nothing_to_plan():
    given = problem([[1.0, 1.0]])
    tasks = given.tasks
    empty = type(tasks)(tasks.arrival[:0], tasks.shape[:0], tasks.shapes, tasks.time[:0], tasks.estimate[:0])
    assert ConvexEnergy().plan(PlanProblem(empty, given.cluster)).steps == []
