"""Searching planners and the classic static family: against optima, their seeds and their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tiers import some, spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.record import COMPLETED
from hetsim.model.tasks import Item, StagedRequests
from hetsim.policy import PlanProblem
from hetsim.testing import System, audit
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.search import Loads, Ranked, Search, bound_together, seed_of
from hetsim_policies.static.greedy_best_fit import GreedyBestFit
from hetsim_policies.static.insertion import Heft, Prioritized, by_criterion, missed, prioritized
from hetsim_policies.static.lists import LoadBalance, Mct, load_balance, speeds
from hetsim_policies.static.random_search import Genetic, SimulatedAnnealing, ends_after, propose
from hetsim_policies.static.two_sides import GreedyDual

SEARCHES = [Genetic, SimulatedAnnealing]
FAMILY = [GreedyBestFit, Prioritized, LoadBalance]


def problem(times, counts, arrivals=None, link=None, **columns):
    """Tasks with a time for each type (cores, then types of GPU), on one node with so many of each."""
    types = [DeviceType(f"g{number}", link=link or Link()) for number in range(len(counts) - 1)]
    shape = Shape([cpu_mode(), *(gpu_mode(kind) for kind in types)])
    there = [0] * len(times) if arrivals is None else arrivals
    tasks = workload([(at, 0, *row) for at, row in zip(there, times, strict=True)], [shape], **columns)
    accelerators = tuple(zip(types, counts[1:], strict=True))
    return PlanProblem(tasks, Cluster([node(cpus=counts[0], accelerators=accelerators)]))


def random_problem(seed, graph=False, arrivals=False, data=False, size=None):
    rng = np.random.default_rng(seed)
    size = size or int(rng.integers(2, 25))
    counts = [int(rng.integers(1, 4)), *rng.integers(1, 3, rng.integers(1, 3)).tolist()]
    times = np.exp(rng.normal(0, 1, (size, len(counts))))
    barred = np.flatnonzero(rng.random(size) < 0.2)
    times[barred, rng.integers(len(counts), size=len(barred))] = np.inf
    columns = {}
    if graph:
        before = [tuple(sorted(set(rng.integers(0, j, rng.integers(0, min(j, 3) + 1)).tolist()))) for j in range(size)]
        columns["predecessors"] = before
    if data:
        columns["items"] = [Item(f"x{j}", int(rng.integers(1, 5)) * GB // 10) for j in range(size)] + [Item("w", GB)]
        columns["writes"] = [(j,) for j in range(size)]
        columns["reads"] = [(*row, size) if j % 2 else row for j, row in enumerate(columns["predecessors"])]
        columns["bytes_in"] = rng.integers(0, GB, size)
    there = np.sort(rng.uniform(0, 5, size)) if arrivals else None
    return problem(times.tolist(), counts, there, Link(upload=GB, download=GB) if data else None, **columns)


def replay(scheduler, given):
    record = Simulation(System("test", given.cluster, given.tasks).run_input(scheduler), check=True).run()
    assert audit(record) == []
    assert (record.status == COMPLETED).all()
    return float(record.finish.max() - given.tasks.arrival.min()), record.notes["planned_makespan"]


def optimum(times, counts):
    lanes = np.repeat(np.arange(len(counts)), counts)
    best = math.inf
    for chosen in itertools.product(range(len(lanes)), repeat=len(times)):
        load = np.zeros(len(lanes))
        np.add.at(load, list(chosen), [times[task][lanes[lane]] for task, lane in enumerate(chosen)])
        best = min(best, float(load.max()))
    return best


# Search ---------------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_never_worse_than_the_seed_and_no_shorter_than_what_the_engine_finds(search, seed):
    """The planned makespan is that of the run, wherever nothing but computing takes time."""
    graph, arrivals = seed % 2 == 1, seed % 4 >= 2
    given = random_problem(seed, graph, arrivals)
    plan = search(evaluations=some(2000, 400)).plan(given)
    rivals = [Heft()] if graph else [GreedyDual()] if len(given.cluster.types) == 2 else []
    assert all(plan.makespan <= rival.plan(given).makespan for rival in rivals)
    assert plan.makespan <= plan.notes["seed_makespan"]
    makespan, planned = replay(search(evaluations=some(2000, 400)), given)
    assert makespan == pytest.approx(planned)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.slow
def test_never_worse_than_the_seed_with_data(search):
    for seed in range(4):
        given = random_problem(seed, graph=True, data=True)
        assert search(evaluations=500).plan(given).makespan <= Heft().plan(given).makespan
        replay(search(evaluations=500), given)


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_near_the_optimum_of_small_instances(search):
    rng = np.random.default_rng(5)
    ratios, seeds = [], []
    for _ in range(12):
        times = rng.uniform(1, 10, (7, 2))
        plan = search().plan(problem(times.tolist(), [2, 1]))
        best = optimum(times, [2, 1])
        assert plan.makespan >= best * (1 - 1e-9)
        ratios.append(plan.makespan / best)
        seeds.append(plan.notes["seed_makespan"] / best)
    assert np.mean(ratios) <= 1.005
    assert np.mean(seeds) > 1.01


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_better_than_heft_on_graphs(search):
    found = []
    for seed in range(3):
        given = random_problem(seed, graph=True, size=40)
        plan = search().plan(given)
        assert plan.makespan <= plan.notes["seed_makespan"]  # of the best of several cheap planners
        found.append(plan.makespan / Heft().plan(given).makespan)
    assert np.mean(found) < 0.98


@pytest.mark.quick(1)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("graph", [False, True])
def test_the_same_seed_gives_the_same_plan(search, graph):
    given = random_problem(11, graph, size=20)

    def steps(seed):
        given.random = None if seed is None else np.random.default_rng(seed)
        return search(evaluations=some(500, 150)).plan(given).steps

    assert steps(None) == steps(None) == steps(0)
    assert steps(7) == steps(7)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_budget_of_evaluations_is_kept(search):
    given = random_problem(11, size=20)
    for evaluations in (1, 50, 1000):
        plan = search(evaluations=evaluations).plan(given)
        assert plan.notes["evaluations"] <= evaluations
        assert plan.notes["evaluations"] == evaluations or plan.makespan == plan.notes["seed_makespan"]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_budget_of_seconds_is_told_in_the_notes(search):
    given = random_problem(11, size=20)
    plan = search(seconds=0.05).plan(given)
    assert plan.makespan <= plan.notes["seed_makespan"]
    assert plan.notes["deterministic"] is False
    assert "evaluations" not in plan.notes  # how many depends on the machine
    assert "deterministic" not in search(evaluations=10).plan(given).notes


def candidates(landscape, rows, rng):
    size = landscape.instance.size
    lanes = landscape.random_lanes(np.tile(np.arange(size), (rows, 1)), rng)
    return lanes, rng.random((rows, size)) if landscape.uses_keys else np.empty((rows, 0))


@pytest.mark.parametrize("seed", range(8))
def test_all_candidates_at_once_are_as_each_alone(seed):
    """Makespans of a population against schedules built task by task, and those against the engine's order."""
    given = random_problem(seed, graph=seed % 2 == 1, arrivals=seed % 4 >= 2)
    instance = runnable(given, "test")
    landscape = Ranked(instance, None) if bound_together(instance) else Loads(instance)
    lanes, keys = candidates(landscape, 20, np.random.default_rng(seed))
    together = landscape.makespans(lanes, keys)
    for row in range(20):
        schedule = landscape.schedule(lanes[row], keys[row])
        assert together[row] == pytest.approx(schedule.makespan)
        assert (schedule.start >= given.tasks.arrival).all()
        for task, before in enumerate(given.tasks.predecessors or [()] * instance.size):
            assert all(schedule.start[task] >= schedule.finish[other] for other in before)
        for lane in np.unique(lanes[row]):
            chosen = np.flatnonzero(lanes[row] == lane)
            chosen = chosen[np.argsort(schedule.start[chosen])]
            assert (schedule.start[chosen][1:] >= schedule.finish[chosen][:-1] - 1e-12).all()


def test_moves_are_counted_as_if_they_had_been_made():
    for seed in (0, 1, 2, 3):
        given = random_problem(seed, graph=seed % 2 == 1, arrivals=seed == 2, size=15)
        search = Search.from_instance(runnable(given, "test"), 100, None)
        landscape = search.landscape
        lanes, keys = landscape.encoded(search.seed.schedule)
        ends = landscape.ends(lanes[None], keys[None])[0]
        moves = propose(landscape, lanes, keys, ends, 40, np.random.default_rng(seed))
        after = ends_after(landscape, lanes, keys, ends, moves)
        for number in range(40):
            changed, changed_keys = lanes.copy(), keys.copy()
            moves.made(number, changed, changed_keys)
            assert np.isfinite(after[number]).all()
            assert after[number] == pytest.approx(landscape.ends(changed[None], changed_keys[None])[0])


def test_the_seed_decoded_is_no_longer_than_heft_says():
    for seed in range(6):
        given = random_problem(seed, graph=True)
        instance = runnable(given, "test")
        landscape = Ranked(instance, None)
        seeded = seed_of(instance).schedule
        lanes, keys = landscape.encoded(seeded)
        assert landscape.schedule(lanes, keys).makespan <= seeded.makespan * (1 + 1e-12)


@pytest.mark.slow
def test_search_on_a_thousand_tasks_is_quick_and_better():
    rng = np.random.default_rng(1)
    cpu = rng.uniform(1, 100, 1000)
    given = problem(np.stack([cpu, cpu / rng.lognormal(1.5, 1, 1000)], axis=1).tolist(), [32, 8])
    plan = SimulatedAnnealing(evaluations=40_000, temperature=0.02).plan(given)
    assert plan.makespan < plan.notes["seed_makespan"]
    assert plan.makespan <= 1.02 * plan.bound


# The classic family ---------------------------------------------------------------------------------------------


@pytest.mark.quick(13)
@pytest.mark.parametrize("scheduler", FAMILY)
@pytest.mark.parametrize("seed", range(8))
def test_the_family_plans_what_the_engine_does(scheduler, seed):
    given = random_problem(seed, graph=seed % 2 == 1, arrivals=seed % 4 >= 2)
    makespan, planned = replay(scheduler(), given)
    assert makespan <= planned * (1 + 1e-9)


@pytest.mark.slow
def test_load_balance_on_uniform_lanes_keeps_its_ratio():
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(60):
        work, factor = rng.uniform(1, 10, 7), rng.uniform(1, 8)
        times = np.stack([work, work / factor], axis=1)
        counts = [2, 1] if rng.random() < 0.5 else [1, 1]
        assert speeds(times) == pytest.approx([1, factor])
        ratio = load_balance(times, counts, list(range(7))).makespan / optimum(times, counts)
        assert ratio <= ((1 + 5**0.5) / 2 if sum(counts) == 2 else 1 + (2 * sum(counts) - 2) ** 0.5 / 2) + 1e-9
        worst = max(worst, ratio)
    assert worst > 1.05


def test_load_balance_is_blind_to_what_a_task_gains():
    """Both types have speed 1 on average: (9, 1) and (1, 9) are as good on one side as on the other."""
    schedule = load_balance(np.array([[9.0, 1], [1, 9]]), [1, 1], [0, 1])
    assert schedule.kind.tolist() == [0, 1]
    assert Mct().plan(problem([[9, 1], [1, 9]], [1, 1])).makespan == 1


def test_prioritized_orders():
    columns = {"deadline": np.array([9.0, np.nan, 3, 9]), "priority": np.array([0.0, 2, 1, 2])}
    given = problem([[4, 1], [2, 5], [3, 3], [1, 1]], [1, 1], weight=np.array([1.0, 1, 1, 2]), **columns)
    times = runnable(given, "test").time
    assert by_criterion(given.tasks, times, "deadline") == [2, 0, 3, 1]
    assert by_criterion(given.tasks, times, "demand") == [2, 1, 0, 3]
    assert by_criterion(given.tasks, times, "importance") == [3, 1, 2, 0]
    given.tasks.predecessors = [(1,), (), (0,), ()]
    assert by_criterion(given.tasks, times, "deadline") == [3, 1, 0, 2]


def test_prioritized_fills_gaps_and_moves_nothing():
    """The first arrives at 5 and has the lane from then on; a task of 4 s goes before it, one of 3 s after it."""
    schedule = prioritized(np.array([[2.0], [4], [3], [1]]), [1], [0, 1, 2, 3], np.array([5.0, 0, 0, 0]))
    assert schedule.start.tolist() == [5, 0, 7, 4]


def test_earliest_deadline_first_has_the_least_greatest_lateness_on_one_lane():
    rng = np.random.default_rng(4)
    for _ in range(20):
        times, deadline = rng.uniform(1, 5, (5, 1)), rng.uniform(1, 15, 5)
        given = problem(times.tolist(), [1], deadline=deadline)
        notes = Prioritized().plan(given).notes
        late = []
        for order in itertools.permutations(range(5)):
            ends = np.cumsum(times[list(order), 0])
            late.append((ends - deadline[list(order)]).max())
        assert notes["deadline_missed_by"] == pytest.approx(max(0.0, min(late)))


def test_missed_deadlines_are_told_and_not_refused():
    given = problem([[4.0], [4], [4]], [1], deadline=np.array([4.0, 5, np.nan]))
    plan = Prioritized().plan(given)
    assert (plan.notes["deadlines_missed"], plan.notes["deadline_missed_by"]) == (1, 3.0)
    assert "deadlines_missed" not in Prioritized().plan(problem([[4.0]], [1])).notes
    scenario = {
        "name": "late", "cluster": {"nodes": [{"cpus": 1}]}, "policy": "prioritized",
        "workload": [{"arrivals": {"process": "all_at_once", "count": 2}, "cpu_time": "4 s", "slo": "5 s"}],
    }  # fmt: skip
    assert hs.run(scenario).record.notes["deadlines_missed"] == 1


def test_a_request_with_stages_is_late_where_any_of_them_is():
    """Two stages side by side: the one in the last row ends first, and two tasks without stages follow."""
    given = problem([[4.0], [1], [1], [1]], [2], deadline=np.array([3.0, 3, 1, 9]))
    staged = (np.array([0, 0, 2, 3]), np.array([0, 1, -1, -1]), ["a", "b"])
    given.tasks.staged = StagedRequests(*staged, id=np.arange(4), alone=np.array([4.0, 4, np.nan, np.nan]))
    assert missed(np.array([4.0, 1, 2, 3]), given.tasks) == {"deadlines_missed": 2, "deadline_missed_by": 1.0}


def memory_problem(needs, capacities, times=None, **columns):
    """One task a need (GB), one GPU a capacity, each on a node of its own."""
    types = [DeviceType(f"g{number}", memory=int(one * GB)) for number, one in enumerate(capacities)]
    shapes = [Shape([gpu_mode(kind, gpu_memory=int(need * GB)) for kind in types]) for need in needs]
    times = [1.0] * len(needs) if times is None else times
    tasks = workload([(0, number, *[time] * len(types)) for number, time in enumerate(times)], shapes, **columns)
    return PlanProblem(tasks, Cluster([node(accelerators=((kind, 1),)) for kind in types]))


def test_best_fit_fills_memory_tightly():
    """8, 6, 4 and 2 GB into 12 and 8 GB: 8 and, with 12 GB, 6 + 4 + 2, which takes all room there is."""
    given = memory_problem([2, 6, 8, 4], [12, 8], times=[1, 1, 3, 1])
    plan = GreedyBestFit().plan(given)
    assert {step.task: step.devices[0] for step in plan.steps} == {0: "n0/g0", 1: "n0/g0", 2: "n1/g0", 3: "n0/g0"}
    replay(GreedyBestFit(), given)


def test_best_fit_goes_on_when_memory_is_used_up():
    given = memory_problem([8, 8, 8, 8], [12, 8])
    plan = GreedyBestFit().plan(given)
    assert sorted(step.devices[0] for step in plan.steps) == ["n0/g0", "n0/g0", "n1/g0", "n1/g0"]
    assert replay(GreedyBestFit(), given)[0] == 2


def test_best_fit_puts_readers_of_one_item_together():
    columns = {"items": [Item("a", 5 * GB), Item("b", 5 * GB)], "reads": [(0,), (1,), (0,), (1,)]}
    given = memory_problem([1, 1, 1, 1], [8, 8], **columns)
    where = {step.task: step.devices[0] for step in GreedyBestFit().plan(given).steps}
    assert where[0] == where[2] != where[1] == where[3]


def test_best_fit_knows_that_nodes_differ():
    """20 GB fit on the second node only; planners that take all cores for alike refuse."""
    shapes = [Shape([cpu_mode(memory=one * GB)]) for one in (1, 20)]
    tasks = workload([(0, 0, 1.0), (0, 1, 1.0)], shapes)
    given = PlanProblem(tasks, Cluster([node(cpus=1, memory=4 * GB), node(cpus=1, memory=64 * GB)]))
    where = {step.task: step.devices[0] for step in GreedyBestFit().plan(given).steps}
    assert where[1] == "n1/cpu0"
    assert replay(GreedyBestFit(), given)[0] == 1
