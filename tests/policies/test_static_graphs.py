"""Planners of task graphs and of unlike lanes: published examples, exact optima, bounds, and what is simulated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cost import lines_run
from test_dual_approximation import SLACK
from tiers import some

import hetsim as hs
from benchmarks.hybrid_instances import FAMILIES, instances, optimum
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.tasks import Item
from hetsim.policy import PlanProblem
from hetsim.testing import System, check_policy, small_systems
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.bounds import area_bound, linear_bound, longest_task, released_bound
from hetsim_policies.static.common.graph_bounds import Paths, graph_bound
from hetsim_policies.static.common.ranks import Traffic, by_key, needs, ways
from hetsim_policies.static.common.unrelated import allowed_times, priced, split
from hetsim_policies.static.dual_approximation import solve
from hetsim_policies.static.insertion import Cpop, Heft, Insertion, Peft, critical_tasks, optimistic_costs
from hetsim_policies.static.lists import Graham, Mct
from hetsim_policies.static.programs import FRUGAL, Hlp, graph_linear_program, hlp
from hetsim_policies.static.vertices import Lst, lst, min_deadline
from hetsim_policies.task_graphs import downward, topological, upward

NEW = [Cpop, Peft, Hlp, Lst]
COUNT_TRANSFERS = [Heft, Cpop, Peft]
BOUNDED = [Graham, Mct, Heft, *NEW]


def heft(*given):
    return Heft.placed(Insertion(*given))


def cpop(*given):
    return Cpop.placed(Insertion(*given))


def peft(*given):
    return Peft.placed(Insertion(*given))


def problem(times, counts, arrivals=None, link=None, stages=None, **columns):
    """Tasks with a time for each type (cores, then types of GPU), on one node with so many of each.

    stages: a shape for each upload and download in it; tasks take them in turn.
    """
    types = [DeviceType(f"g{number}", link=link or Link()) for number in range(len(counts) - 1)]
    shapes = [
        Shape([cpu_mode(), *(gpu_mode(kind, upload=up, download=down) for kind in types)])
        for up, down in stages or [(StageTime(), StageTime())]
    ]
    there = [0] * len(times) if arrivals is None else arrivals
    rows = [(at, number % len(shapes), *row) for number, (at, row) in enumerate(zip(there, times, strict=True))]
    accelerators = tuple(zip(types, counts[1:], strict=True))
    return PlanProblem(workload(rows, shapes, **columns), Cluster([node(cpus=counts[0], accelerators=accelerators)]))


def simulate(scheduler, given):
    """The makespan of a plan, replayed."""
    record = Simulation(System("test", given.cluster, given.tasks).run_input(scheduler), check=True).run()
    return float(record.finish.max() - given.tasks.arrival.min())


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


def random_graph(rng, size, most=3):
    """Up to so many predecessors a task, not only tasks that stand before it in the table."""
    names = rng.permutation(size).tolist()
    graph = [()] * size
    for number, task in enumerate(names):
        chosen = rng.integers(0, number, int(rng.integers(most + 1))).tolist() if number else []
        graph[task] = tuple(sorted({names[before] for before in chosen}))
    return graph


def least_makespan(times, counts, graph, ready):
    """The last finish, at best: every order of placing that the graph allows, every lane, as early as possible."""
    size, kind = len(times), np.repeat(np.arange(len(counts)), counts).tolist()
    best = math.inf
    finish = {}

    def place(free):
        nonlocal best
        if len(finish) == size:
            best = min(best, max(finish.values()))
            return
        for task in range(size):
            if task in finish or any(before not in finish for before in graph[task]):
                continue
            there = max([ready[task], *(finish[before] for before in graph[task])])
            tried = set()
            for lane, until in enumerate(free):
                end = max(there, until) + times[task][kind[lane]]
                if (kind[lane], until) in tried or end >= best:
                    continue
                tried.add((kind[lane], until))
                finish[task] = end
                place([*free[:lane], end, *free[lane + 1 :]])
                del finish[task]

    place([0.0] * len(kind))
    return best


def small_graphs(seed, rounds, most=5):
    """Times, lanes, graph and arrivals of instances small enough for `least_makespan`."""
    rng = np.random.default_rng(seed)
    for number in range(rounds):
        counts = [[1, 1], [2, 1], [1, 1, 1], [1, 2], [3]][number % 5]
        size = int(rng.integers(2, most + 1))
        times = random_times(rng, size, len(counts))
        times[~np.isfinite(times).any(axis=1)] = 2.0
        graph = random_graph(rng, size, 2) if number % 4 else [()] * size
        ready = rng.uniform(0, 8, size) + 3 if number % 3 == 0 else np.zeros(size)
        yield times, counts, graph, ready


# Published examples ---------------------------------------------------------------------------------------------


def published(times, edges):
    """A graph on three unlike processors, with a time for the data of each edge (i, j) wherever it goes."""
    size, far = len(times), 1 - np.eye(3)
    sources = [{} for _ in range(size)]
    for (writer, reader), seconds in edges.items():
        sources[reader - 1][writer - 1] = seconds
    nothing = [()] * size, np.zeros((0, 3)), np.zeros((size, 3))
    traffic = Traffic(np.arange(3), 0 * far, far, sources, *nothing)
    return np.array(times, dtype=float), [1, 1, 1], [tuple(before) for before in sources], None, traffic


TOPCUOGLU = published(
    [[14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11], [5, 11, 14],
     [18, 12, 20], [21, 7, 16]],
    {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27,
     (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13},
)  # fmt: skip
ARABNEJAD = published(
    [[22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35], [26, 17, 24], [14, 25, 30], [29, 23, 36],
     [15, 21, 8], [13, 16, 33]],
    {(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7, (2, 8): 3, (2, 9): 30, (3, 7): 16, (4, 8): 11,
     (4, 9): 7, (5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42, (9, 10): 7},
)  # fmt: skip


def test_the_example_of_topcuoglu_hariri_and_wu():
    """Ten tasks on three processors: HEFT 80, CPOP 86, with the critical path 1, 2, 9, 10 on the second processor."""
    assert heft(*TOPCUOGLU).makespan == 80
    schedule = cpop(*TOPCUOGLU)
    assert schedule.makespan == 86
    assert schedule.kind[[0, 1, 8, 9]].tolist() == [1, 1, 1, 1]


def test_the_ranks_of_topcuoglu_hariri_and_wu():
    times, counts, graph, _, traffic = TOPCUOGLU
    mean, before, order = needs(times, counts, traffic).mean(), ways(graph, traffic), topological(graph)
    up, down = upward(mean, before, order), downward(mean, before, order)
    assert np.round(up, 1).tolist() == [108.0, 77.0, 80.0, 80.0, 69.0, 63.3, 42.7, 35.7, 44.3, 14.7]
    assert down[0] == 0
    assert [task + 1 for task in critical_tasks(up, before)] == [1, 2, 9, 10]
    for task in (0, 1, 8, 9):
        assert up[task] + down[task] == pytest.approx(108)


def test_the_example_of_arabnejad_and_barbosa():
    """PEFT 122, HEFT 133; the mean of each row of the optimistic cost table as printed, rounded."""
    assert peft(*ARABNEJAD).makespan == 122
    assert heft(*ARABNEJAD).makespan == 133
    times, counts, graph, _, traffic = ARABNEJAD
    need = needs(times, counts, traffic)
    table = optimistic_costs(need, ways(graph, traffic))
    assert need.mean(table).round().tolist() == [73, 41, 37, 44, 31, 42, 17, 21, 16, 0]


# By hand ----------------------------------------------------------------------------------------------------------


def test_peft_looks_ahead_where_heft_does_not():
    """Task 0 (2, 3) is done first on the core, but task 1 (20, 1), which waits for it, would need 9 s for the data."""
    graph = {"predecessors": [(), (0,)], "reads": [(), (0,)], "writes": [(0,), ()], "items": [Item("x", 9)]}
    given = problem([[2, 3], [20, 1]], [1, 1], link=Link(upload=1.0, download=1.0), **graph)
    assert Heft().plan(given).makespan == simulate(Heft(), given) == 2 + 9 + 1
    assert Peft().plan(given).makespan == simulate(Peft(), given) == 3 + 1


def test_cpop_keeps_the_critical_path_on_one_lane():
    """A chain of (4, 2), (1, 3), (4, 2): on the GPU 7; going to the core for the second, as heft does, takes 5."""
    times, graph = np.array([[4.0, 2], [1, 3], [4, 2]]), [(), (0,), (1,)]
    assert cpop(times, [1, 1], graph).makespan == 7
    assert heft(times, [1, 1], graph).makespan == 5


def test_cpop_where_no_lane_runs_the_whole_path():
    """Two tasks of the chain run only on the GPU, one only on the core: the GPU is the home of the path."""
    times = np.array([[np.inf, 2], [1, np.inf], [9, 2]])
    assert cpop(times, [2, 1], [(), (0,), (1,)]).kind.tolist() == [1, 0, 1]


def test_peft_takes_independent_tasks_longest_first():
    """Nothing comes after any of them: 2, 2, 4 on two cores take 4, not 6."""
    assert peft(np.array([[2.0], [2], [4]]), [2], [()] * 3).makespan == 4


def test_lst_by_hand():
    """Two tasks of (3, 3) and one of (2, 2), one lane each: the areas allow 4, one long task more makes 5."""
    schedule, bound = lst(np.array([[3.0, 3], [3, 3], [2, 2]]), [1, 1])
    assert bound == pytest.approx(4)
    assert schedule.makespan == 5
    # a split that needs the GPU for a task that takes 10 there is not one for T < 10
    assert min_deadline(np.array([[6.0, 10], [6, 10]]), [1, 1])[0] == pytest.approx(10)


# Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_of_independent_tasks_are_a_chain(family):
    """area ≤ linear = that of lst, by types and by lanes ≤ dual ≤ optimum ≤ lst ≤ 2 · optimum."""
    for p, q, m, k in instances(family, each=3, most=8, seed=31):
        times, exact = np.stack([p, q], axis=1), optimum(p, q, m, k)
        area, linear, dual = area_bound(p, q, m, k), linear_bound(p, q, m, k), solve(p, q, m, k).bound
        schedule, bound = lst(times, [m, k])
        lanes = times[:, [0] * m + [1] * k]
        assert area <= linear * SLACK
        assert bound == pytest.approx(linear, rel=1e-6)
        assert min_deadline(lanes, [1] * (m + k))[0] == pytest.approx(linear, rel=1e-6)
        assert linear <= dual * SLACK
        assert dual <= exact * SLACK
        assert exact <= schedule.makespan * SLACK
        assert schedule.makespan <= 2 * min(bound * SLACK, exact * SLACK)
        assert max(area, longest_task(p, q, m, k)) == pytest.approx(graph_bound(times, [m, k], [()] * len(p)))


@pytest.mark.slow
def test_the_bound_with_release_times():
    """It is the greatest over all release times, tried one by one, and no greater than the optimum."""
    rng = np.random.default_rng(32)
    above = 0
    for number in range(60):
        size, m, k = (5, 1 + number % 2, 1) if number < 30 else (40, 3, 2)
        times = random_times(rng, size, 2)
        times[~np.isfinite(times).any(axis=1)] = 2.0
        p, q = times.T
        release = rng.uniform(0, 12, size) if number % 3 else rng.integers(0, 5, size).astype(float)
        bound = released_bound(p, q, m, k, release)
        areas = [r + area_bound(p[release >= r], q[release >= r], m, k) for r in release]
        assert bound == pytest.approx(max(*areas, float((release + np.minimum(p, q)).max())))
        assert bound >= area_bound(p, q, m, k)
        assert released_bound(p, q, m, k, release, evaluations=1) <= bound
        above += bound > 1.05 * max(release.max() + 1e-9, area_bound(p, q, m, k))
        if size == 5:
            assert bound <= least_makespan(times, [m, k], [()] * size, release) * SLACK
    assert above > 10


@pytest.mark.slow
def test_bounds_of_graphs_and_hlp_enclose_the_optimum():
    """path ≤ program ≤ optimum, path ≤ cheap bound ≤ optimum ≤ hlp ≤ Q(Q + 1) · optimum; arrivals and three types."""
    beyond_path = beyond_cheap = 0
    for times, counts, graph, ready in small_graphs(33, 80):
        first, kinds = ready.min(), len(counts)
        exact = least_makespan(times, counts, graph, ready) - first
        path = Paths.through(allowed_times(times, counts).min(axis=1), graph, ready).longest
        share, program = graph_linear_program(times, counts, graph, ready)
        cheap = graph_bound(times, counts, graph, ready)
        schedule, bound = hlp(times, counts, graph, ready)
        assert not any(graph) or path <= program * (1 + FRUGAL) * SLACK
        assert path <= cheap * SLACK
        assert max(program, cheap, bound) <= exact * SLACK
        assert exact <= (schedule.makespan - first) * SLACK
        assert schedule.makespan - first <= kinds * (kinds + 1) * (1 + FRUGAL) * exact * SLACK
        assert share.sum(axis=1) == pytest.approx(1)
        beyond_path += cheap > path * 1.01
        beyond_cheap += program > cheap * 1.01
    assert beyond_path > 5  # neither is the path alone
    assert beyond_cheap > 0


@pytest.mark.parametrize("counts", [[4, 2], [6, 1], [3, 2, 1]])
def test_hlp_keeps_its_ratio_to_the_program(counts):
    """6 times its bound on two types, 12 on three, on random graphs from wide to narrow."""
    rng = np.random.default_rng(34)
    kinds = len(counts)
    for number in range(some(12, 4)):
        size = 40
        times = random_times(rng, size, kinds)
        times[~np.isfinite(times).any(axis=1)] = 2.0
        ready = rng.uniform(0, 30, size) if number % 2 else np.zeros(size)
        graph = random_graph(rng, size, number % 4)
        _, program = graph_linear_program(times, counts, graph, ready)
        schedule, bound = hlp(times, counts, graph, ready)
        span = schedule.makespan - ready.min()
        assert program <= bound <= span * SLACK
        assert span <= kinds * (kinds + 1) * (1 + FRUGAL) * program * (1 + FRUGAL) * SLACK


@pytest.mark.slow
def test_lst_keeps_its_ratio():
    """At most 2 · its own bound, which is at most the optimum; two, three types, several lanes, barred types."""
    rng = np.random.default_rng(35)
    worst = 0.0
    for number in range(100):
        counts = [[1, 1], [2, 1], [1, 1, 1], [2, 1, 1], [1, 1, 1, 1]][number % 5]
        times = random_times(rng, int(rng.integers(1, 6)), len(counts))
        schedule, bound = lst(times, counts)
        exact = least_makespan(times, counts, [()] * len(times), [0.0] * len(times))
        assert bound <= exact * SLACK
        assert exact <= schedule.makespan * SLACK
        assert schedule.makespan <= 2 * bound * SLACK
        worst = max(worst, schedule.makespan / exact)
    assert worst > 1.1  # the rounding is seen


def test_a_vertex_splits_few_tasks_and_prices_prove_its_value():
    rng = np.random.default_rng(36)
    for kinds in (1, 2, 3, 8):
        for family in range(4):
            times, counts = rng.uniform(1, 9, (60, kinds)), rng.integers(1, 5, kinds).tolist()
            times = times if family % 2 else np.exp(times / 2)
            found = split(times, counts)
            load = np.max((np.where(found.share > 0, times, 0) * found.share).sum(axis=0) / counts)
            assert (found.share.max(axis=1) < 1 - 1e-6).sum() <= kinds
            assert float(priced(times, counts, found.prices).sum()) == pytest.approx(load, rel=1e-6)
            assert np.dot(found.prices, counts) == pytest.approx(1)


@pytest.mark.parametrize("planner", ["lst", "hlp"])
def test_times_may_be_far_apart(planner):
    """Over twenty orders of magnitude and with zeros the solver still finds what is proven."""
    rng = np.random.default_rng(42)
    for number in range(some(30, 8)):
        counts = rng.integers(1, 4, 1 + number % 4).tolist()
        kinds = len(counts)
        times = np.exp(rng.normal(0, 12, (30, kinds))) * (rng.random((30, kinds)) > 0.1)
        if planner == "lst":
            (schedule, bound), ratio = lst(times, counts), 2.0
            if kinds == 2:
                assert bound == pytest.approx(linear_bound(*times.T, *counts), rel=1e-6)
        else:
            graph = random_graph(rng, 30)
            (schedule, bound), ratio = hlp(times, counts, graph), kinds * (kinds + 1) * (1 + FRUGAL)
        assert bound <= schedule.makespan * SLACK
        assert schedule.makespan <= ratio * bound * SLACK


# Every planner ----------------------------------------------------------------------------------------------------


def test_a_task_comes_after_those_it_waits_for():
    rng = np.random.default_rng(37)
    for _ in range(20):
        graph = random_graph(rng, 30)
        order = by_key(rng.uniform(size=30).tolist(), ways(graph))
        position = {task: number for number, task in enumerate(order)}
        assert sorted(order) == list(range(30))
        assert all(position[before] < position[task] for task in range(30) for before in graph[task])


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", BOUNDED)
def test_simulation_takes_as_long_as_planned(policy):
    """Without transfers and with exact estimates; with arrivals, several types of GPU and graphs where it may be."""
    rng = np.random.default_rng(38)
    for round_ in range(some(8, 4)):
        counts = [3, 2, 1] if round_ % 3 else [3, 2]
        times = random_times(rng, 25, len(counts))
        times[rng.random(times.shape) < 0.1] = 0.0
        arrivals = np.sort(rng.integers(2, 30, 25)).tolist() if round_ % 2 else None
        graph = {"predecessors": random_graph(rng, 25)} if policy is not Lst and round_ > 1 else {}
        given = problem(times, counts, arrivals, **graph)
        plan = policy().plan(given)
        assert simulate(policy(), given) == pytest.approx(plan.makespan, rel=1e-12)
        assert policy().plan(given) == plan
        assert 0 < plan.bound <= plan.makespan


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", COUNT_TRANSFERS)
def test_stages_given_as_durations_are_counted(policy, overlap):
    """On any graph: nobody else uses a GPU's link while a launch holds the GPU, so the model is exact."""
    rng = np.random.default_rng(39)
    stages = [
        (StageTime(fixed=0.5, per_item=0.25), StageTime(fixed=1.0)),
        (StageTime(), StageTime(per_item=2.0)),
        (StageTime(), StageTime()),
    ]
    counted = 0
    for round_ in range(10):
        size, counts = 24, [2, 2, 1]
        times = random_times(rng, size, 3)
        arrivals = np.sort(rng.integers(2, 30, size)).tolist() if round_ % 2 else None
        more = {"bytes_in": rng.integers(0, 4, size), "bytes_out": rng.integers(0, 3, size)} if round_ % 3 else {}
        link = Link(upload=2.0, download=3.0, latency=0.5, duplex=("half", "full")[round_ % 2])
        given = problem(times, counts, arrivals, link, stages, predecessors=random_graph(rng, size), **more)
        plan = policy(overlap=overlap).plan(given)
        assert simulate(policy(overlap=overlap), given) == pytest.approx(plan.makespan, rel=1e-9)
        bare = problem(times, counts, arrivals, link, predecessors=given.tasks.predecessors, **more)
        counted += plan.makespan > policy(overlap=overlap).plan(bare).makespan
    assert counted > 5


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", [Cpop, Peft])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_chain_takes_as_long_as_planned_over_nodes(policy, overlap):
    """Items written, and stages besides, between GPUs of two nodes: a chain never meets other transfers."""
    rng = np.random.default_rng(40)
    link = Link(upload=2.0, download=3.0, latency=0.5)
    types = [DeviceType(f"g{number}", link=link) for number in range(2)]
    specs = [node(cpus=1, accelerators=((t, 2),), network=Link(upload=5.0, download=4.0, latency=0.25)) for t in types]
    stage = StageTime(fixed=0.75)
    shape = Shape([cpu_mode(), *(gpu_mode(t, upload=stage, download=stage) for t in types)])
    for _ in range(some(15, 4)):
        chain = [(j - 1,) if j else () for j in range(6)]
        data = {"items": [Item(f"x{j}", int(rng.integers(1, 9))) for j in range(6)], "reads": chain}
        rows = [(0, 0, *row) for row in rng.choice([1.0, 4.0, 30.0], (6, 3))]
        tasks = workload(rows, [shape], predecessors=chain, writes=[(j,) for j in range(6)], **data)
        given = PlanProblem(tasks, Cluster(specs))
        plan = policy(overlap=overlap).plan(given)
        assert simulate(policy(overlap=overlap), given) == pytest.approx(plan.makespan, rel=1e-9)


@pytest.mark.parametrize("policy", BOUNDED)
def test_degenerate_cases(policy):
    """No tasks; cores alone, GPUs alone; tasks for cores only beside idle GPUs; times of zero."""
    one = problem([[1, 1]], [1, 1])
    table = {name: getattr(one.tasks, name)[:0] for name in ("arrival", "shape", "time", "estimate")}
    empty = policy().plan(PlanProblem(replace(one.tasks, **table), one.cluster))
    assert (empty.steps, empty.makespan, empty.bound) == ([], 0, 0)
    for times, counts, best in (
        ([[3], [2], [1]], [2], 3),
        ([[3, 3], [3, 2], [3, 1]], [0, 2], 3),
        ([[3, math.inf], [2, math.inf], [1, math.inf]], [2, 4], 3),
        ([[0, 0], [0, 0]], [1, 1], 0),
    ):
        given = problem(times, counts)
        plan = policy().plan(given)
        assert best == pytest.approx(plan.bound, rel=2 * FRUGAL)
        assert best <= plan.makespan == simulate(policy(), given) <= best + 1


@pytest.mark.parametrize("counts", [[2, 0], [0, 2], [2, 0, 0], [0, 0, 2]])
def test_types_without_lanes(counts):
    """The functions themselves: what a type without lanes could do does not count."""
    times, graph = np.tile(np.array([[4.0], [2], [3]]), (1, len(counts))), [(), (0,), ()]
    for schedule in (*(f(times, counts, graph) for f in (heft, cpop, peft)), hlp(times, counts, graph)[0]):
        assert schedule.makespan == 6
    assert graph_bound(times, counts, graph) == pytest.approx(6)
    assert graph_linear_program(times, counts, graph)[1] == pytest.approx(6, rel=2 * FRUGAL)
    schedule, bound = lst(times, counts)
    assert (schedule.makespan, bound) == (5, pytest.approx(4.5))


@pytest.mark.slow
@pytest.mark.parametrize("policy", NEW)
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


@pytest.mark.parametrize("policy", NEW)
def test_planners_refuse_what_they_cannot_place(policy):
    with pytest.raises(ScenarioError, match="1 tasks can run on no core and no whole GPU"):
        policy().plan(problem([[1, 1], [math.inf, math.inf]], [1, 1]))
    wide = workload([(0, 0, 1)], [Shape([cpu_mode(2)])])
    cores = PlanProblem(wide, Cluster([node(cpus=2)]))
    if policy.spreads:
        assert [step.mode for step in policy().plan(cores).steps] == [0]  # its only one, of two cores
        return
    with pytest.raises(ScenarioError, match="one core or one whole GPU"):
        policy().plan(cores)


def test_lst_refuses_a_graph():
    with pytest.raises(ScenarioError, match=r"lst plans independent tasks; 1 tasks have predecessors .*cpop, graham"):
        Lst().plan(problem([[1, 1], [1, 1]], [1, 1], predecessors=[(), (0,)]))


@pytest.mark.slow
def test_registered_by_name_on_the_cholesky_graph():
    """Every planner of graphs tells its bound, that of hlp is no worse, and none a ratio: items move between tasks."""
    notes = {name: hs.run("cholesky-8", policy=name).notes for name in ("heft", "cpop", "peft", "hlp", "mct")}
    bounds = {name: told["lower_bound"] for name, told in notes.items()}
    assert bounds["heft"] == bounds["cpop"] == bounds["peft"] == bounds["mct"] <= bounds["hlp"]
    assert all(told["lower_bound"] <= told["planned_makespan"] for told in notes.values())
    assert all(told["covers"]["transfers"] == "partly" for told in notes.values())
    assert not any("ratio_certified" in told for told in notes.values())


@pytest.mark.slow
def test_planners_take_few_lines_on_many_lanes():
    """A thousand tasks on 24 lanes, of three types or all unlike, and a graph on a hundred: lines a task and lane."""
    rng = np.random.default_rng(41)
    for counts in ([16, 4, 4], [1] * 24):
        times = rng.uniform(1, 100, (1000, len(counts)))
        found = []
        assert lines_run(lambda times=times, counts=counts, found=found: found.extend(lst(times, counts))) < 120_000
        schedule, bound = found
        assert schedule.makespan <= 1.15 * bound
    times = rng.uniform(1, 10, (1000, 100))
    graph = [tuple({int(rng.integers(max(0, j - 30), j)) for _ in range(2)}) if j else () for j in range(1000)]
    assert lines_run(lambda: cpop(times, [1] * 100, graph)) < 4_000_000
    assert lines_run(lambda: peft(times, [1] * 100, graph)) < 4_000_000
