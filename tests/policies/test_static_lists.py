"""The list algorithms that plan: on instances small enough to work out, against optima, and replayed by the engine."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cost import lines_run
from tiers import some

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.tasks import Item
from hetsim.policy import PlanProblem
from hetsim.testing import System, check_policy, small_systems
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.insertion import Heft, Insertion
from hetsim_policies.static.lists import (
    Graham,
    MaxMin,
    Mct,
    MinMin,
    Sufferage,
    graham,
    max_min,
    mct,
    min_min,
    sufferage,
)
from hetsim_policies.static.two_sides import BalancedMakespan, Clb2c, GreedyDual, balanced_makespan, clb2c, greedy_dual
from hetsim_policies.task_graphs import topological

TWO_TYPES = [GreedyDual, Clb2c, BalancedMakespan]
GRAPHS = [Graham, Mct, Heft]
INDEPENDENT = [MinMin, MaxMin, Sufferage, *TWO_TYPES]
ALL = [*GRAPHS, *INDEPENDENT]


def problem(times, counts, arrivals=None, link=None, streams=1, **columns):
    """Tasks with a time for each type (cores, then types of GPU), on one node with so many of each."""
    types = [DeviceType(f"g{number}", link=link or Link(), streams=streams) for number in range(len(counts) - 1)]
    shape = Shape([cpu_mode(), *(gpu_mode(kind) for kind in types)])
    there = [0] * len(times) if arrivals is None else arrivals
    tasks = workload([(at, 0, *row) for at, row in zip(there, times, strict=True)], [shape], **columns)
    accelerators = tuple(zip(types, counts[1:], strict=True))
    return PlanProblem(tasks, Cluster([node(cpus=counts[0], accelerators=accelerators)]))


def simulate(scheduler, given):
    """The makespan of a plan, replayed."""
    record = Simulation(System("test", given.cluster, given.tasks).run_input(scheduler), check=True).run()
    return float(record.finish.max() - given.tasks.arrival.min())


def optimum(times, counts):
    """The least makespan of independent tasks, by trying all lanes."""
    lanes = np.repeat(np.arange(len(counts)), counts)
    best = math.inf
    for chosen in itertools.product(range(len(lanes)), repeat=len(times)):
        load = np.zeros(len(lanes))
        for task, lane in enumerate(chosen):
            load[lane] += times[task][lanes[lane]]
        best = min(best, float(load.max()))
    return best


def given_order(algorithm):
    return lambda times, counts, ready=None: algorithm(times, counts, list(range(len(times))), ready)


FUNCTIONS = {
    "graham": given_order(graham),
    "mct": given_order(mct),
    "min_min": min_min,
    "max_min": max_min,
    "sufferage": sufferage,
    "heft": lambda times, counts, ready=None: Heft.placed(Insertion(times, counts, [()] * len(times), ready)),
    "greedy_dual": lambda times, counts, ready=None: greedy_dual(times, counts, ready)[0],
    "clb2c": clb2c,
    "balanced_makespan": balanced_makespan,
}


def random_times(rng, size, kinds):
    """Times of one of several families; now and then a type that cannot run a task."""
    family = rng.integers(4)
    if family == 0:
        times = rng.uniform(1, 10, (size, kinds))
    elif family == 1:
        times = rng.integers(1, 4, (size, kinds)).astype(float)
    elif family == 2:
        times = np.exp(rng.normal(0, 1.5, (size, kinds)))
    else:
        times = rng.choice([1.0, 20.0], (size, kinds))
    barred = np.flatnonzero(rng.random(size) < 0.15)
    times[barred, rng.integers(kinds, size=len(barred))] = np.inf
    return times


# By hand --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [2, 5, 100])
def test_list_scheduling_can_be_worse_than_the_largest_speed_up(x):
    """(x, 1) is first and takes the core, (1, x + 1) the GPU: x + 1, where 1 is possible; mct finds it."""
    times = np.array([[x, 1.0], [1.0, x + 1]])
    assert graham(times, [1, 1], [0, 1]).makespan == x + 1
    assert optimum(times, [1, 1]) == 1
    assert mct(times, [1, 1], [0, 1]).makespan == 1


def test_graham_follows_its_list():
    """3, 3, 2, 2, 2 on two cores: 3 + 2 + 2 = 7 and 3 + 2; shortest first 2 + 2 + 3 = 7 and 2 + 3."""
    times = np.array([[3.0], [3], [2], [2], [2]])
    schedule = graham(times, [2], [0, 1, 2, 3, 4])
    assert schedule.start.tolist() == [0, 0, 3, 3, 5]
    assert schedule.lane.tolist() == [0, 1, 0, 1, 0]
    given = problem([[2], [2], [4]], [2])
    assert [Graham(order).plan(given).makespan for order in ("given", "longest", "shortest")] == [6, 4, 6]


def test_graham_passes_what_cannot_run_and_what_is_not_there():
    """The GPU passes the first task (cores only) and takes the second; the third arrives at 5."""
    times = np.array([[4, np.inf], [4, 1], [1, 1]])
    schedule = graham(times, [1, 1], [0, 1, 2], np.array([0.0, 0, 5]))
    assert schedule.start.tolist() == [0, 0, 5]
    assert schedule.kind.tolist() == [0, 1, 0]


def test_mct_waits_for_a_fast_device():
    """Three tasks (4, 1) queue for the GPU (1, 2, 3) because the core would take 4; (2, 3) takes the core."""
    schedule = mct(np.array([[4.0, 1], [4, 1], [4, 1], [2, 3]]), [1, 1], [0, 1, 2, 3])
    assert schedule.finish.tolist() == [1, 2, 3, 2]
    assert schedule.kind.tolist() == [1, 1, 1, 0]


def test_min_min_ends_with_the_long_task_and_max_min_begins_with_it():
    """2, 2, 4 on two cores: 2 and 2, then 4 ends at 6; or 4 beside 2 + 2."""
    times = np.array([[2.0], [2], [4]])
    assert min_min(times, [2]).finish.tolist() == [2, 2, 6]
    assert max_min(times, [2]).finish.tolist() == [2, 4, 4]


def test_sufferage_gives_the_device_to_who_needs_it():
    """(3, 2) loses 1 without the GPU, (10, 2) loses 8: makespan 3, where min-min serves the first and needs 4."""
    times = np.array([[3.0, 2], [10, 2]])
    assert sufferage(times, [1, 1]).finish.tolist() == [3, 2]
    assert min_min(times, [1, 1]).finish.tolist() == [2, 4]


def test_sufferage_between_types_sees_through_equal_lanes():
    """Two idle GPUs: nobody loses between lanes, so the first task begins; between types the third loses most."""
    times = np.array([[3.0, 2], [3, 2], [10, 2]])
    assert sufferage(times, [1, 2]).order[0] == 0
    assert sufferage(times, [1, 2], between="types").order == [2, 0, 1]


def test_heft_serves_the_long_path_first():
    """Chain 1, 2 of (10, 3) and a task 0 of (6, 4).  By rank (13, 6.5, 5) the chain has the GPU and 0 the core: 6.

    mct gives the GPU to task 0 because it comes first: 4 + 3 + 3 = 10.
    """
    given = problem([[6, 4], [10, 3], [10, 3]], [1, 1], predecessors=[(), (), (1,)])
    assert Heft().plan(given).makespan == simulate(Heft(), given) == 6
    assert Mct().plan(given).makespan == simulate(Mct(), given) == 10


@pytest.mark.parametrize("overlap", [True, False])
def test_heft_counts_transfers(overlap):
    """Task 0 (1, 9) writes, task 1 (4, 1) reads: on the GPU 1 + bytes + 1, on the core 1 + 4."""
    for size, end in ((1, 3), (5, 5)):
        graph = {"predecessors": [(), (0,)], "reads": [(), (0,)], "writes": [(0,), ()], "items": [Item("x", size)]}
        given = problem([[1, 9], [4, 1]], [1, 1], link=Link(upload=1.0, download=1.0), **graph)
        assert Heft(overlap=overlap).plan(given).makespan == simulate(Heft(overlap=overlap), given) == end


def test_heft_counts_inputs_once_a_device():
    """Two tasks (9, 1) read the same 2 bytes: 2 + 1, then 1 on the GPU, where the data are by then: 4."""
    graph = {"reads": [(0,), (0,)], "writes": [(), ()], "items": [Item("x", 2)]}
    given = problem([[9, 1], [9, 1]], [1, 1], link=Link(upload=1.0, download=1.0), **graph)
    assert Heft().plan(given).makespan == simulate(Heft(), given) == 4


def test_heft_goes_by_both_links_between_gpus():
    """Down 1 s and up 1 s from one GPU to the other, each with a latency of 0.5 s; only GPU types 0, then 1 can run."""
    graph = {"predecessors": [(), (0,)], "reads": [(), (0,)], "writes": [(0,), ()], "items": [Item("x", 1)]}
    link = Link(upload=1.0, download=1.0, latency=0.5)
    given = problem([[math.inf, 1, math.inf], [math.inf, math.inf, 1]], [1, 1, 1], link=link, **graph)
    assert Heft().plan(given).makespan == simulate(Heft(), given) == 5


@pytest.mark.slow
@pytest.mark.parametrize("duplex", ["half", "full"])
@pytest.mark.parametrize("kind", ["written", "there", "bytes"])
def test_heft_foresees_a_chain_over_switches_and_nodes(kind, duplex):
    """A chain with one kind of data never meets other transfers: the engine must take as long as planned."""
    rng = np.random.default_rng(9)
    link = Link(upload=2.0, download=3.0, latency=0.5, duplex=duplex)
    types = [DeviceType(f"g{number}", link=link) for number in range(2)]
    network = Link(upload=5.0, download=4.0, latency=0.25, duplex=duplex)
    switch = Link(upload=1.5, download=8.0, latency=0.125)
    specs = [node(cpus=1, accelerators=((t, 2),), network=network, switch=switch, switch_size=1) for t in types]
    shape = Shape([cpu_mode(), *(gpu_mode(t) for t in types)])
    for _ in range(20):
        size = 6
        columns = {"predecessors": [(j - 1,) if j else () for j in range(size)]}
        if kind == "written":
            columns["items"] = [Item(f"x{number}", int(rng.integers(1, 9))) for number in range(size)]
            columns["reads"] = columns["predecessors"]
            columns["writes"] = [(j,) for j in range(size)]
        elif kind == "there":
            columns["items"] = [Item(f"x{number}", 3, home=(None, 0, 1)[number % 3]) for number in range(size)]
            columns["reads"] = [(int(rng.integers(size)),) for _ in range(size)]
            columns["writes"] = [()] * size
        else:
            columns |= {name: rng.integers(0, 3, size) for name in ("bytes_in", "bytes_out")}
        tasks = workload([(0, 0, *row) for row in rng.choice([1.0, 4.0, 30.0], (size, 3))], [shape], **columns)
        given = PlanProblem(tasks, Cluster(specs))
        for overlap in (True, False):
            plan = Heft(overlap=overlap).plan(given)
            assert simulate(Heft(overlap=overlap), given) == pytest.approx(plan.makespan, rel=1e-9)


def test_heft_fills_gaps():
    """One core: the task of 10 arrives at 5 and is placed first, that of 4 fits before it; else it starts at 15."""
    given = problem([[4], [10]], [1], [0, 5])
    assert Heft().plan(given).makespan == simulate(Heft(), given) == 15
    assert Heft(insertion=False).plan(given).makespan == 19


def test_greedy_dual_and_clb2c_by_hand():
    """(4, 1), (4, 1) on the GPU and (2, 3) on the core: 2, which is optimal."""
    times = np.array([[4.0, 1], [4, 1], [2, 3]])
    schedule, bound = greedy_dual(times, [1, 1])
    assert schedule.finish.tolist() == [2, 1, 2] or schedule.finish.tolist() == [1, 2, 2]
    assert 2 / 2.002 <= bound <= 2
    assert clb2c(times, [1, 1]).finish.tolist() == [1, 2, 2]


# Proven ratios ----------------------------------------------------------------------------------------------------


def test_balanced_makespan_by_hand():
    """GPU favourites (3, 2), (4, 2), (9, 2): 6 on the GPU; (3, 2) costs least to move and leaves 4 beside 3."""
    schedule = balanced_makespan(np.array([[3.0, 2], [4, 2], [9, 2]]), [1, 1])
    assert schedule.kind.tolist() == [0, 1, 1]
    assert schedule.makespan == 4


def test_balanced_makespan_keeps_a_long_task_where_it_is_short():
    """Favourites: all on the GPU, 10 + 10 x 1.  (20, 10) costs least to move, but would take 20 on the core.

    With the limit below 20 the small ones (2.5, 1) move: four of them leave 16 beside 10, five 15 beside 12.5.
    """
    times = np.array([[20.0, 10]] + [[2.5, 1]] * 10)
    assert balanced_makespan(times, [1, 1]).makespan == 15


def test_balanced_makespan_keeps_its_ratio():
    rng = np.random.default_rng(8)
    for _ in range(80):
        counts = [int(rng.integers(1, 3)), int(rng.integers(1, 3))]
        times = random_times(rng, int(rng.integers(1, 6)), 2)
        best = optimum(times, counts)
        assert balanced_makespan(times, counts).makespan <= 2 * best * (1 + 1e-9)
        assert balanced_makespan(times[:, ::-1], counts[::-1]).makespan <= 2 * best * (1 + 1e-9)


def test_greedy_dual_keeps_its_ratio_and_its_bound():
    rng = np.random.default_rng(1)
    for _ in range(60):
        counts = [int(rng.integers(1, 3)), int(rng.integers(1, 3))]
        times = random_times(rng, int(rng.integers(1, 6)), 2)
        schedule, bound = greedy_dual(times, counts, precision=1e-6)
        best = optimum(times, counts)
        assert bound <= best * (1 + 1e-9)
        assert schedule.makespan <= 2 * (1 + 1e-6) * bound * (1 + 1e-9)


def test_clb2c_is_at_most_twice_the_optimum_where_no_task_is_longer_than_it():
    rng = np.random.default_rng(2)
    tried, rounds = 0, some(80)
    for _ in range(rounds):
        counts, times = [2, 1], rng.uniform(1, 4, (6, 2))
        best = optimum(times, counts)
        if times.max() <= best:
            tried += 1
            assert clb2c(times, counts).makespan <= 2 * best
    assert tried > rounds // 4


@pytest.mark.parametrize("lanes", [2, 3])
def test_graham_keeps_its_ratio_on_equal_lanes(lanes):
    rng = np.random.default_rng(3)
    for _ in range(some(25)):
        times = random_times(rng, 6, 1)
        times[~np.isfinite(times)] = 7.0
        best = optimum(times, [lanes])
        longest = np.argsort(-times[:, 0]).tolist()
        assert graham(times, [lanes], list(range(6))).makespan <= (2 - 1 / lanes) * best * (1 + 1e-12)
        for schedule in (graham(times, [lanes], longest), max_min(times, [lanes])):
            assert schedule.makespan <= (4 / 3 - 1 / (3 * lanes)) * best * (1 + 1e-12)
        for schedule in (min_min(times, [lanes]), mct(times, [lanes], list(range(6)))):
            assert schedule.makespan <= (2 - 1 / lanes) * best * (1 + 1e-12)


def test_graham_on_graphs_is_within_area_and_longest_path():
    """Makespan <= area / m + (1 - 1/m) longest path, from which 2 - 1/m follows."""
    rng = np.random.default_rng(4)
    for _ in range(30):
        size, lanes = 30, int(rng.integers(1, 6))
        times = rng.uniform(0, 5, (size, 1))
        graph = random_graph(rng, size)
        path = np.zeros(size)
        for task in topological(graph):
            path[task] = times[task, 0] + max((path[before] for before in graph[task]), default=0)
        order = rng.permutation(size).tolist()
        made = graham(times, [lanes], order, predecessors=graph).makespan
        assert made <= (times.sum() / lanes + (1 - 1 / lanes) * path.max()) * (1 + 1e-12)


def random_graph(rng, size):
    """Up to three predecessors a task, not only tasks that stand before it in the table."""
    names = rng.permutation(size).tolist()
    graph = [()] * size
    for number, task in enumerate(names):
        chosen = rng.integers(0, number, int(rng.integers(4))).tolist() if number else []
        graph[task] = tuple(sorted({names[before] for before in chosen}))
    return graph


# Every planner ----------------------------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_schedules_are_possible(name):
    """Every task once, not precede it is there, where it can run, and one at a time on each lane."""
    rng = np.random.default_rng(5)
    for round_ in range(25):
        times, counts = random_times(rng, 20, 2), [int(rng.integers(1, 5)), int(rng.integers(1, 4))]
        ready = np.sort(rng.uniform(0, 20, 20)) if round_ % 2 else None
        schedule = FUNCTIONS[name](times, counts, ready)
        assert sorted(schedule.order) == list(range(20))
        assert np.array_equal(schedule.finish, schedule.start + times[np.arange(20), schedule.kind])
        assert (schedule.start >= (0 if ready is None else ready)).all()
        assert (schedule.lane < np.array(counts)[schedule.kind]).all()
        lanes = {}
        for task in np.argsort(schedule.start, kind="stable").tolist():
            place = (int(schedule.kind[task]), int(schedule.lane[task]))
            assert schedule.start[task] >= lanes.get(place, 0.0)
            lanes[place] = schedule.finish[task]


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", ALL)
def test_simulation_takes_as_long_as_planned(policy):
    """Without transfers and with exact estimates; with arrivals, several types of GPU and graphs where it may be."""
    rng = np.random.default_rng(6)
    for round_ in range(some(6, 4)):
        counts = [3, 2] if policy in TWO_TYPES else [3, 2, 1]
        times = random_times(rng, 25, len(counts))
        times[rng.random(times.shape) < 0.1] = 0.0
        arrivals = np.sort(rng.integers(2, 30, 25)).tolist() if round_ % 2 else None
        graph = {"predecessors": random_graph(rng, 25)} if policy in GRAPHS and round_ > 1 else {}
        given = problem(times, counts, arrivals, **graph)
        plan = policy().plan(given)
        assert simulate(policy(), given) == pytest.approx(plan.makespan, rel=1e-12)
        assert policy().plan(given) == plan
        if plan.bound is not None:
            assert plan.bound <= plan.makespan


@pytest.mark.parametrize("policy", ALL)
def test_no_tasks_and_one_type(policy):
    one = problem([[1, 1]], [1, 1])
    table = {name: getattr(one.tasks, name)[:0] for name in ("arrival", "shape", "time", "estimate")}
    assert policy().plan(PlanProblem(replace(one.tasks, **table), one.cluster)).steps == []
    given = problem([[3], [2], [1]], [2])
    assert policy().plan(given).makespan == simulate(policy(), given) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("policy", ALL)
def test_policies_keep_the_contract(policy):
    """On the systems of the suite whose tasks they plan; the others they refuse."""
    planned = []
    for system in small_systems():
        try:
            policy().plan(PlanProblem(system.tasks, system.cluster))
        except ScenarioError as error:
            assert str(error)
        else:
            planned.append(system)
    assert planned
    check_policy(policy, planned)


# Through scenarios --------------------------------------------------------------------------------------------------


def test_registered_planners_run_from_a_scenario(tmp_path):
    """The lemma with x = 4 as a table of tasks: graham 5, mct 1; greedy_dual at most 2."""
    (tmp_path / "lemma.csv").write_text("id,cpu_time,gpu_time\na,4,1\nb,1,5\n")
    scenario = {
        "cluster": {"nodes": {"cpus": 1, "gpus": {"type": "k20", "count": 1}}},
        "workload": {"trace": {"format": "tasks", "path": str(tmp_path / "lemma.csv")}},
    }
    found = {}
    for name, policy in (("graham", Graham), ("mct", Mct), ("greedy_dual", GreedyDual), ("heft", Heft)):
        hs.register(f"lists_{name}", policy)
        result = hs.run(scenario, policy=f"lists_{name}", check=True)
        found[name] = float(result.summary.loc["makespan"].item())
    assert (found["graham"], found["mct"]) == (5, 1)
    assert found["greedy_dual"] <= 2 and found["heft"] <= 5


@pytest.mark.slow
def test_heft_on_the_cholesky_graph():
    """Better than mct, which sees neither paths nor transfers; best if it knows that lanes wait for their data."""
    hs.register("lists_heft", Heft)
    hs.register("lists_mct", Mct)
    policies = ["lists_mct", "lists_heft", {"name": "lists_heft", "overlap": False}]
    spans = [float(hs.run("cholesky-8", policy=policy).summary.loc["makespan"].item()) for policy in policies]
    assert spans == sorted(spans, reverse=True)
    assert spans[2] < spans[1] < spans[0]


# Refusals and speed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", TWO_TYPES)
def test_planners_for_two_types_refuse_three(policy):
    with pytest.raises(ScenarioError, match="at most two types of devices; the cluster has 3: cpu, g0, g1"):
        policy().plan(problem([[1, 1, 1]], [1, 1, 1]))


@pytest.mark.parametrize("policy", INDEPENDENT)
def test_planners_of_independent_tasks_refuse_graphs(policy):
    with pytest.raises(ScenarioError, match=r"plans independent tasks; 1 tasks have predecessors \(1, ...\)"):
        policy().plan(problem([[1, 1], [1, 1]], [1, 1], predecessors=[(), (0,)]))


@pytest.mark.parametrize("policy", ALL)
def test_planners_refuse_what_they_cannot_place(policy):
    with pytest.raises(ScenarioError, match="1 tasks can run on no core and no whole GPU"):
        policy().plan(problem([[1, 1], [math.inf, math.inf]], [1, 1]))
    half = workload([(0, 0, 1)], [Shape([cpu_mode(0.5)])])
    with pytest.raises(ScenarioError, match="one core or one whole GPU"):
        policy().plan(PlanProblem(half, Cluster([node(cpus=2)])))


@pytest.mark.parametrize("policy", TWO_TYPES)
def test_planners_of_sequential_tasks_refuse_wide_ones(policy):
    wide = workload([(0, 0, 1)], [Shape([cpu_mode(2)])])
    with pytest.raises(ScenarioError, match="one core or one whole GPU"):
        policy().plan(PlanProblem(wide, Cluster([node(cpus=2)])))


@pytest.mark.slow
def test_graph_planners_take_few_lines_on_many_unlike_lanes():
    """A thousand tasks on a hundred lanes, all unlike: some lines of Python a task and lane."""
    rng = np.random.default_rng(7)
    times = rng.uniform(1, 10, (1000, 100))
    graph = [tuple({int(rng.integers(max(0, j - 30), j)) for _ in range(2)}) if j else () for j in range(1000)]

    def plans():
        mct(times, [1] * 100, range(1000))
        Heft.placed(Insertion(times, [1] * 100, graph))
        min_min(times, [1] * 100)

    assert lines_run(plans) < 4_000_000
