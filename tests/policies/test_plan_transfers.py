"""Plans that know about transfers: timetables equal to the run, start by start, and bounds below every optimum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from test_static_review import PLANNERS
from tiers import some, spread

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.tasks import Item
from hetsim.policy import PlanProblem
from hetsim.policy.planned import Following
from hetsim.testing import System
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.flow_shop import best_order, johnson, length
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.outcome import planned, stage_bound
from hetsim_policies.static.common.timing import timing
from hetsim_policies.static.vertices import lst

JUDGED = ("constraint_injection", "local_search")
"""Planners whose planned makespan is that of a simulation; their timetable is their own all the same."""


def machine(rng, size, streams=1, switch=None, duplex="full", kinds=1, nodes=1, **columns):
    """Tasks with private data, and stages given as durations, on two cores and GPUs with links of their own."""
    link = Link(2.0, 4.0, 0.25, duplex)
    types = [DeviceType(f"g{number}", link=link, streams=streams) for number in range(kinds)]
    stage = StageTime(fixed=0.5)
    shapes = [Shape([cpu_mode(), *(gpu_mode(kind) for kind in types)]),
              Shape([cpu_mode(), *(gpu_mode(kind, upload=stage, download=stage) for kind in types)])]  # fmt: skip
    rows = [(0, int(rng.integers(2)), *rng.uniform(1, 9, 1 + kinds)) for _ in range(size)]
    data = {"bytes_in": rng.integers(0, 7, size), "bytes_out": rng.integers(0, 7, size)}
    tasks = workload(rows, shapes, **data, **columns)
    tasks.arrival.sort()
    more = {} if switch is None else {"switch": Link(switch, switch), "switch_size": 2}
    spec = node(cpus=2, accelerators=tuple((kind, 2) for kind in types), count=nodes, **more)
    return PlanProblem(tasks, Cluster([spec]), np.random.default_rng(0))


def replayed(given, plan):
    return Simulation(System("test", given.cluster, given.tasks).run_input(Following(plan)), check=True).run()


def with_engine(given):
    """The problem with `simulate` and `rehearse` behind it, as a run gives it."""
    from hetsim.engine.simulation import play
    from hetsim.policy.rehearsal import problem_of

    return problem_of(System("test", given.cluster, given.tasks).run_input(None), np.random.default_rng(0), play)


def same(given, plan):
    """Start by start, to 1e-9 of the longest."""
    record = replayed(given, plan)
    tasks = [step.task for step in plan.steps]
    longest = float(record.finish.max())
    assert np.abs(plan.timetable[:, 0] - record.start[tasks]).max() <= 1e-9 * longest
    assert np.abs(plan.timetable[:, 1] - record.finish[tasks]).max() <= 1e-9 * longest
    return record


def random_graph(rng, size):
    return [tuple(sorted({int(rng.integers(task)) for _ in range(rng.integers(3))})) if task else () for task in
            range(size)]  # fmt: skip


def shared_items(rng, graph):
    """Some items that lie on the first node, on the second or on both, and one that each of three tasks writes."""
    homes = [0, 1, None]
    items = [Item(f"i{k}", int(rng.integers(1, 6)), home=homes[k] if k < 3 else None) for k in range(6)]
    reads = [tuple(sorted({int(rng.integers(3))} if rng.random() < 0.2 else set())) for _ in graph]
    reads = [(*row, *(3 + one for one in before if one < 3 and rng.random() < 0.5)) for row, before in
             zip(reads, graph, strict=True)]  # fmt: skip
    return {"items": items, "reads": reads, "writes": [(3 + task,) if task < 3 else () for task in range(len(graph))]}


def made(name, **options):
    return registry.policy("scheduler", name)(**options)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", spread(PLANNERS, 4))
def test_the_timetable_of_every_planner_is_that_of_the_run(name):
    rng = np.random.default_rng(5)
    for number in range(4):
        size = 9
        columns = {"predecessors": random_graph(rng, size)} if number % 2 else {}
        given = machine(rng, size, **columns)
        if number > 1:
            given.tasks.arrival[:] = np.sort(rng.uniform(0, 9, size))
        try:
            plan = made(name).plan(with_engine(given))
        except ScenarioError:
            assert columns  # it plans independent tasks
            continue
        record = same(given, plan)
        assert plan.notes["timetable"] == "exact"
        makespan = float(record.finish.max() - given.tasks.arrival.min())
        assert plan.makespan == pytest.approx(makespan, rel=1e-9)
        assert plan.bound is None or plan.bound <= makespan * (1 + 1e-9)
        assert plan.notes["covers"]["transfers"] == "covered"


def results_on_edges(rng, graph):
    """Every edge of the graph moves the result of its task; some tasks read an input that lies on a host."""
    size = len(graph)
    items = [Item(f"i{number}", int(rng.integers(1, 6))) for number in range(size + 2)]
    reads = [(*before, *((size + int(rng.integers(2)),) if rng.random() < 0.3 else ())) for before in graph]
    return {"items": items, "reads": reads, "writes": [(task,) for task in range(size)]}


BUDGETS = {"local_search": {"evaluations": 25}, "genetic": {"evaluations": 200},
           "simulated_annealing": {"evaluations": 200}, "constraint_injection": {"candidates": 4}}  # fmt: skip
QUICK = ("hlp", "local_search", "mct")


@pytest.mark.slow
@pytest.mark.by_turns(6)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ("as_planned", *PLANNERS)]
)
def test_an_exact_timetable_is_the_run(name):
    """Random graphs, one to three streams, links that transfers share or not: after search, order and prefetches."""
    for streams, number in itertools.product((1, 2, 3), range(4)):
        rng = np.random.default_rng(10 * streams + number)
        size = 10
        columns = {"predecessors": random_graph(rng, size)} if number else {}
        columns |= results_on_edges(rng, columns["predecessors"]) if number > 1 else {}
        given = machine(rng, size, streams, nodes=1 + number // 2, switch=3.0 if number == 3 else None, **columns)
        try:
            plan = made(name, **BUDGETS.get(name, {})).plan(with_engine(given))
        except ScenarioError:
            assert number  # it plans independent tasks
            continue
        exact = plan.notes["timetable"] == "exact"
        assert exact or number == 3, "links are private"
        if exact:
            record = same(given, plan)
            assert plan.makespan == pytest.approx(float(record.finish.max() - given.tasks.arrival.min()), rel=1e-9)


@pytest.mark.slow
def test_prefetches_and_launches_of_several_kernels_are_in_the_timetable():
    """Both are exact, and prefetches do come ahead of the plan without them."""
    plan = hs.plan("fused-network", policy={"name": "constraint_injection", "candidates": 2}).plan
    assert plan.fused and plan.notes["timetable"] == "exact" and np.isfinite(plan.timetable).all()
    ahead = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 9)
        given = machine(rng, 9, predecessors=graph, **results_on_edges(rng, graph))
        plan = made("constraint_injection", candidates=3).plan(with_engine(given))
        assert plan.notes["timetable"] == "exact"
        same(given, plan)
        ahead += bool(plan.copies)
    assert ahead


@pytest.mark.slow
def test_the_order_that_a_search_leaves_is_the_one_in_the_timetable():
    """Stages overlap, and the flow shop has a shorter order of its own for most lanes."""
    for seed in range(4):
        given = machine(np.random.default_rng(seed), 9, streams=2)
        plan = made("local_search", evaluations=25).plan(with_engine(given))
        assert plan.notes["timetable"] == "exact"
        same(given, plan)


@pytest.mark.quick(1)
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("duplex", ["full", "half"])
def test_any_order_on_any_lanes_is_timed_as_it_runs(streams, duplex):
    """Random placements of tasks with private data and items, on two nodes: where exact, the same to the last start."""
    rng = np.random.default_rng(streams)
    exact, rounds = 0, some(40, 16)
    for number in range(rounds):
        size = 10
        graph = random_graph(rng, size)
        more = {} if number % 4 < 2 else shared_items(rng, graph)
        given = machine(rng, size, streams, duplex=duplex, nodes=2, predecessors=graph, **more)
        instance = runnable(given, "test")
        placed = [(task, kind, int(rng.integers(instance.counts[kind]))) for task, kind in
                  enumerate(rng.integers(2, size=size).tolist())]  # fmt: skip
        plan = planned(instance, placed)
        if plan.notes["timetable"] == "exact":
            exact += 1
            same(given, plan)
    assert exact > 0.37 * rounds or (duplex == "half" and streams > 1)


@pytest.mark.slow
def test_uploads_are_planned_for_on_the_founding_example():
    """28 tasks, 4 cores, 2 GPUs with links of 2 GB/s: planned is simulated, and within 5 % of the bound."""
    found = {name: hs.run(founding(), policy=name) for name in ("dual_approximation", "lst", "mct", "integer_program")}
    for result in found.values():
        assert result.notes["planned_makespan"] == pytest.approx(result.metric("makespan"), rel=1e-9)
    best = found["dual_approximation"]
    assert best.notes["ratio_guaranteed"] <= 4 / 3 * (1 + 1e-3)
    assert best.metric("makespan") <= 1.05 * best.notes["lower_bound"]


def founding(streams=1, **link):
    cluster = {"nodes": [{"cpus": 4, "gpus": {"type": "g", "count": 2, "streams": streams},
                          "pcie": {"upload": "2 GB/s", "download": "2 GB/s", **link}}]}  # fmt: skip
    return {
        "name": "write-run-read",
        "seed": 1,
        "cluster": cluster,
        "workload": [{"name": "kernels", "arrivals": {"process": "all_at_once", "count": 28},
                      "cpu_time": {"speedup": 6}, "gpu_time": {"distribution": "lognormal", "mean": "1 s", "cv": 0.8},
                      "bytes_in": "2 GB", "bytes_out": "2 GB"}],
    }  # fmt: skip


@pytest.mark.slow
def test_no_ratio_is_told_where_links_are_shared():
    shared = founding(switch={"size": 2, "upload": "2 GB/s", "download": "2 GB/s"})
    for name in ("dual_approximation", "lst", "greedy_dual"):
        notes = hs.run(shared, policy=name).notes
        assert notes["covers"]["transfers"] == "partly" and notes["timetable"] == "idle links"
        assert not {"ratio_certified", "ratio_guaranteed"} & set(notes)


# Bounds -----------------------------------------------------------------------------------------------------------


def lane_times(instance, kind, tasks):
    """The least time of a lane for some tasks in any order."""
    stages = [
        tuple(float(part[task, kind]) for part in (instance.up, instance.compute, instance.down)) for task in tasks
    ]
    if instance.serial[kind]:
        return sum(map(sum, stages))
    orders = itertools.permutations(stages)
    return min(length(order, instance.types[kind].streams) for order in orders)


def optimum(instance):
    """The least makespan of independent tasks that are there at once, over all assignments and all orders."""
    lanes = [kind for kind, count in enumerate(instance.counts) for _ in range(count)]
    known: dict[tuple[int, tuple[int, ...]], float] = {}

    def seconds(kind, tasks):
        if (kind, tasks) not in known:
            known[kind, tasks] = lane_times(instance, kind, tasks) if tasks else 0.0
        return known[kind, tasks]

    best = math.inf

    def go(task, held):
        nonlocal best
        if task == instance.size:
            best = min(best, max(seconds(kind, tasks) for kind, tasks in zip(lanes, held, strict=True)))
            return
        seen = set()
        for lane, kind in enumerate(lanes):
            if (kind, held[lane]) not in seen and np.isfinite(instance.time[task, kind]):
                seen.add((kind, held[lane]))
                more = (*held[:lane], (*held[lane], task), *held[lane + 1 :])
                if sum(instance.compute[t, kind] for t in more[lane]) < best:
                    go(task + 1, more)

    go(0, tuple(() for _ in lanes))
    return best


def bounds(instance):
    """Every bound that a plan of this instance could carry."""
    plan = planned(instance, [(task, 0, task % instance.counts[0]) for task in range(instance.size)], 0.0)
    found = [plan.bound, stage_bound(instance)]
    if not instance.pipelined:
        found += [
            lst(instance.time, instance.counts)[1],
            graph_bound(instance.time, instance.counts, [()] * instance.size),
        ]
        found.append(made("dual_approximation").plan(instance.problem).bound)
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("switch", [None, pytest.param(1.5, marks=pytest.mark.slow)])
def test_no_bound_exceeds_the_optimum(streams, switch):
    rng = np.random.default_rng(17 * streams)
    for number in range(12 if switch is None else 4):
        size = int(rng.integers(1, 6)) if switch is None else 2 + number % 2
        given = machine(rng, size, streams, switch, duplex="half" if number % 3 == 0 else "full")
        instance = runnable(given, "test")
        best = optimum(instance) if switch is None else simulated_optimum(given, instance)
        assert all(bound <= best * (1 + 1e-9) for bound in bounds(instance)), number


def simulated_optimum(given, instance):
    """The least simulated makespan over all assignments and orders, where transfers share a switch."""
    lanes = [(kind, lane) for kind, count in enumerate(instance.counts) for lane in range(count)]
    best = math.inf
    for order in itertools.permutations(range(instance.size)):
        for chosen in itertools.product(lanes, repeat=instance.size):
            if instance.counts[0] and (0, 1) in chosen and (0, 0) not in chosen:
                continue  # equal cores
            plan = planned(instance, [(task, *lane) for task, lane in zip(order, chosen, strict=True)])
            if best < math.inf and plan.makespan >= best:
                continue  # sharing a link only delays
            record = Simulation(System("test", given.cluster, given.tasks).run_input(Following(plan))).run()
            best = min(best, float(record.finish.max()))
    return best


def test_a_bound_counts_links_and_switches():
    """Ten tasks of 1 s that upload 4 s each on two GPUs with two streams: 20 s of a link; one switch for both: 40 s."""
    for switch, least in ((None, 20.0), (Link(1.0, 1.0), 40.0)):
        gpu = DeviceType("g", link=Link(1.0, 1.0), streams=2)
        tasks = workload([(0, 0, 1)] * 10, [Shape([gpu_mode(gpu)])], bytes_in=np.full(10, 4))
        more = {} if switch is None else {"switch": switch, "switch_size": 2}
        given = PlanProblem(tasks, Cluster([node(cpus=0, accelerators=((gpu, 2),), **more)]))
        assert stage_bound(runnable(given, "test")) == pytest.approx(least)


# The order of a flow shop -----------------------------------------------------------------------------------------


def test_johnson_is_optimal_for_two_machines():
    rng = np.random.default_rng(2)
    for _ in range(60):
        jobs = [(float(up), float(run), 0.0) for up, run in rng.integers(0, 9, (5, 2))]
        order = johnson([job[0] for job in jobs], [job[1] for job in jobs])
        best = min(length(some, 5) for some in itertools.permutations(jobs))
        assert length([jobs[job] for job in order], 5) == best


def test_the_best_order_is_never_worse_than_the_one_given():
    rng = np.random.default_rng(3)
    for streams in (2, 3):
        instance = runnable(machine(rng, 9, streams), "test")
        for _ in range(5):
            tasks = rng.permutation(9).tolist()
            placed = [(task, 1, 0) for task in tasks]
            better = [(task, 1, 0) for task in best_order(instance, tasks, 1)]
            assert timing(instance, better).finish.max() <= timing(instance, placed).finish.max() + 1e-9
