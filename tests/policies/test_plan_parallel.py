"""Parallel tasks: rigid and moldable ones, planned, bounded, and run as planned."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from test_plan_transfers import random_graph, replayed, same
from tiers import some

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.policy import PlanProblem
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.parallel import PoolLanes, parallel, wide, wide_bound
from hetsim_policies.static.insertion import Prioritized
from hetsim_policies.static.vertices import MoldableDual, min_guess

GRAPHS = ["graham", "heft", "mct", "peft", "prioritized", "genetic", "simulated_annealing"]
LISTS = [*GRAPHS, "min_min", "max_min", "sufferage"]
PLANNERS = [*LISTS, "moldable_dual"]
SHORT = {name: {"name": name, "evaluations": 1000} if name in ("genetic", "simulated_annealing") else name
         for name in [*PLANNERS, "fcfs"]}  # fmt: skip
"""Policies to compare, of which those that search try a hundred plans of parallel tasks."""


def made(name):
    return registry.policy("scheduler", name)()


def machine(rng, size, cpus=4, gpus=2, nodes=1, link=None, **columns):
    """Tasks on 1, 2 or 4 cores or 1 or 2 GPUs, each width a little less efficient; a third of them are rigid."""
    gpu = DeviceType("g", link=link or Link())
    widths, gangs = [w for w in (1, 2, 4) if w <= cpus], [w for w in (1, 2) if w <= gpus]
    cores, accelerators = [cpu_mode(w) for w in widths], [gpu_mode(gpu, w) for w in gangs]
    rigid = [Shape([mode]) for mode in (*cores, *accelerators)]
    shapes = [Shape([*cores, *accelerators]), Shape(cores or accelerators), *rigid]
    rows = []
    for _ in range(size):
        number = int(rng.integers(2 + len(rigid))) if rng.random() < 0.6 else 0
        work, speed, loss = rng.uniform(2, 12), rng.uniform(1, 6), rng.uniform(0.6, 1)
        times = [work / width**loss / (speed if mode.gpus else 1.0)
                 for mode in shapes[number].modes for width in [mode.gpus or mode.millicores // 1000]]  # fmt: skip
        rows.append((0, number, *times))
    tasks = workload(rows, shapes, **columns)
    return PlanProblem(tasks, Cluster([node(cpus=cpus, accelerators=((gpu, gpus),) if gpus else (), count=nodes)]))


def optimum(instance):
    """The least makespan of independent tasks: all options in all orders, each as early as it can be."""
    best = math.inf
    options = [range(instance.first[j], instance.first[j + 1]) for j in range(instance.size)]
    for order in itertools.permutations(range(instance.size)):
        for chosen in itertools.product(*options):
            for homes in itertools.product(*(instance.pools_of[chosen[task]] for task in order)):
                lanes = PoolLanes(instance)
                for task, home in zip(order, homes, strict=True):
                    option = chosen[task]
                    start, pool = lanes.earliest((home,), int(instance.width[option]))
                    if lanes.put(option, pool, start) >= best:
                        break
                else:
                    best = lanes.makespan
    return best


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", PLANNERS)
def test_a_plan_of_parallel_tasks_runs_as_planned(name):
    rng = np.random.default_rng(3)
    for number in range(some(16)):
        columns = {"predecessors": random_graph(rng, 12)} if number % 2 and name in GRAPHS else {}
        link = Link(4.0, 4.0, 0.1) if number % 3 == 0 else None
        data = {"bytes_in": rng.integers(0, 9, 12), "bytes_out": rng.integers(0, 9, 12)} if link else {}
        given = machine(rng, 12, nodes=1 + number % 2, link=link, **columns, **data)
        if number % 4 == 3:
            given.tasks.arrival[:] = np.sort(rng.uniform(0, 9, 12))
        plan = made(name).plan(given)
        record = same(given, plan)
        assert plan.notes["timetable"] == "exact"
        makespan = float(record.finish.max() - given.tasks.arrival.min())
        assert plan.makespan == pytest.approx(makespan, rel=1e-9)
        assert plan.bound <= makespan * (1 + 1e-9)


@pytest.mark.slow
def test_bounds_and_ratios_of_parallel_tasks_hold_at_the_optimum():
    rng = np.random.default_rng(4)
    for number in range(some(60)):
        kinds = ({"cpus": 4, "gpus": 0}, {"cpus": 2, "gpus": 2}, {"cpus": 0, "gpus": 2})[number % 3]
        given = machine(rng, int(rng.integers(1, 5 - (number % 3 == 1))), **kinds)
        if not parallel(given):
            continue
        instance = wide(given, "test")
        best = optimum(instance)
        plan = MoldableDual().plan(given)
        assert wide_bound(instance) <= best * (1 + 1e-9) and plan.bound <= best * (1 + 1e-9), number
        ratio = plan.notes["ratio_guaranteed"]
        assert ratio == (2.0 if np.isfinite(instance.min_areas()).any(axis=0).sum() == 1 else 3.0)
        assert best * (1 - 1e-9) <= plan.makespan <= ratio * plan.bound * (1 + 1e-9)
        for name in LISTS:
            assert made(name).plan(given).makespan >= best * (1 - 1e-9)


@pytest.mark.slow
def test_gangs_on_several_nodes_have_bounds_and_no_ratio():
    rng = np.random.default_rng(5)
    for _ in range(some(8)):
        given = machine(rng, 3, cpus=0, gpus=2, nodes=2)
        if not parallel(given):
            continue
        plan = MoldableDual().plan(given)
        assert plan.bound <= optimum(wide(given, "test")) * (1 + 1e-9)
        assert "ratio_guaranteed" not in plan.notes


@pytest.mark.slow
def test_moldable_tasks_are_as_wide_as_pays():
    """Eight tasks of 8 s alone, 5 s on two cores, on eight cores: one core each, 8 s; two tasks: as wide as may be.

    Under `prioritized` each ends first, as wide as that takes.
    """
    shape = Shape([cpu_mode(1), cpu_mode(2), cpu_mode(4)])
    for count, least in ((8, 8.0), (2, 3.0)):
        tasks = workload([(0, 0, 8, 5, 3)] * count, [shape])
        given = PlanProblem(tasks, Cluster([node(cpus=8)]))
        for name in PLANNERS:
            widest = name == "prioritized" and count == 8
            assert made(name).plan(given).makespan == (12.0 if widest else least), name
        assert min_guess(wide(given, "test"))[0] == pytest.approx(least if count == 8 else 3.0)


def test_rigid_tasks_by_hand():
    """On four cores 3 × 2 s, 1 × 4 s and 2 × 1 s: the wide ones one after the other beside the narrow one."""
    modes = [cpu_mode(3), cpu_mode(1), cpu_mode(2)]
    tasks = workload([(0, 0, 2), (0, 1, 4), (0, 2, 1)], [Shape([mode]) for mode in modes])
    given = PlanProblem(tasks, Cluster([node(cpus=4)]))
    for name in PLANNERS:
        plan = made(name).plan(given)
        assert plan.makespan == plan.bound == 4.0
        assert all(len(step.devices) == width for step, width in
                   zip(sorted(plan.steps, key=lambda step: step.task), (3, 1, 2), strict=True))  # fmt: skip


def test_others_refuse_and_name_those_that_can():
    rng = np.random.default_rng(6)
    given = machine(rng, 12)
    with pytest.raises(ScenarioError, match="graham, heft, genetic and others plan parallel tasks"):
        made("lst").plan(given)
    for name in sorted(set(PLANNERS) - set(GRAPHS)):
        with pytest.raises(ScenarioError, match=f"{name} plans independent tasks"):
            made(name).plan(machine(rng, 12, predecessors=random_graph(rng, 12)))
    halves = workload([(0, 0, 1), (0, 1, 1)], [Shape([cpu_mode(2)]), Shape([cpu_mode(0.5)])])
    for name in PLANNERS:
        with pytest.raises(ScenarioError, match=rf"{name} plans tasks of whole cores .* 1 tasks .*the first is 1"):
            made(name).plan(PlanProblem(halves, Cluster([node(cpus=4)])))


@pytest.mark.slow
def test_gangs_in_a_scenario_have_their_ratio():
    """Training jobs of 1, 2, 4 and 8 GPUs: the second table has the planner's bound, and all plans are kept."""
    hour = {"distribution": "lognormal", "mean": "1 h", "cv": 1}
    scenario = {
        "name": "gangs",
        "seed": 2,
        "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "v100", "count": 8}}]},
        "workload": [{"name": "jobs", "arrivals": {"process": "all_at_once", "count": 40},
                      "classes": [{"class": f"g{gpus}", "weight": weight, "gpus": gpus, "gpu_time": hour}
                                  for gpus, weight in ((1, 4), (2, 2), (4, 2), (8, 1))]}],
    }  # fmt: skip
    plans = hs.compare(scenario, ["moldable_dual", "graham", "heft", "fcfs"]).plans
    assert (plans["makespan"] == plans["planned_makespan"])[:3].all()
    assert plans["ratio"]["moldable_dual"] <= 1.1 and plans["lower_bound"].nunique() == 1
    assert plans["makespan"]["moldable_dual"] <= plans["makespan"]["fcfs"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("why", ["parts of a GPU", "two streams"])
def test_no_bound_or_ratio_is_told_where_the_engine_can_do_more(why):
    """A mode on half a GPU that the planner does not see; stages that overlap, so that no lane is held for all."""
    gpu = DeviceType("g", streams=2 if why == "two streams" else 1, link=Link(1.0, 1.0))
    modes = [gpu_mode(gpu, 2), gpu_mode(gpu, 0.5)] if why == "parts of a GPU" else [gpu_mode(gpu, 2)]
    tasks = workload([(0, 0, *[2.0] * len(modes))] * 4, [Shape(modes)], bytes_in=np.full(4, 4))
    given = PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 2),))]))
    for name in PLANNERS:
        plan = made(name).plan(given)
        assert plan.bound is None and plan.notes["timetable"] == "idle links"
        assert not {"ratio_certified", "ratio_guaranteed"} & set(plan.notes)
        assert (replayed(given, plan).finish > 0).all()


def spanning(folder, seed, span="any"):
    """Jobs of 1 to 6 GPUs on three nodes of four, over a day."""
    random, count = np.random.default_rng(seed), some(60, 30)
    gpus = random.choice([1, 2, 4, 6] if span else [1, 2, 4], count)
    rows = [f"{at:.0f},{took:.0f},{width}" for at, took, width in
            zip(np.sort(random.uniform(0, 1440 * count, count)), random.uniform(600, 9000, count), gpus,
                strict=True)]  # fmt: skip
    (folder / "jobs.csv").write_text("\n".join(["arrival,gpu_time,gpus", *rows]) + "\n")
    nodes = [{"count": 3, "cpus": 8, "gpus": {"type": "g", "count": 4}}]
    entry = {"trace": {"format": "tasks", "path": str(folder / "jobs.csv")}, **({"span": span} if span else {})}
    return {"cluster": {"nodes": nodes}, "workload": [entry], "policy": "fcfs"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_gangs_that_span_nodes_are_planned_on_all_lanes_of_their_type(tmp_path, seed):
    """Wider than any node: all are planned and run as planned, none below the bound; and it is said what plans know."""
    found = hs.compare(spanning(tmp_path, seed), SHORT)
    plans = found.plans.loc[PLANNERS]
    assert not found.refused
    assert (plans["makespan"] >= plans["lower_bound"] - 1e-6).all()
    np.testing.assert_allclose(plans["makespan"], plans["planned_makespan"])
    assert found.plan_notes[0] == f"{', '.join(PLANNERS)} know all arrivals from the start"


def test_gangs_keep_to_one_node_unless_they_may_span(tmp_path):
    result = hs.run({**spanning(tmp_path, 1, span=None), "policy": "graham"}, check=True)
    assert result.launches.groupby("task")["node"].nunique().max() == 1


def over_nodes(folder, cores=False):
    """Jobs of one to three nodes with two devices on each, and jobs of a single device, on three nodes of four."""
    random, what = np.random.default_rng(4), "cpu_time,cpus" if cores else "gpu_time,gpus"
    size = some(60, 30)
    rows = [f"{at:.0f},{took:.0f},{width},{count}" for at, took, width, count in
            zip(np.sort(random.uniform(0, 40000 * size / 60, size)), random.uniform(600, 9000, size),
                random.choice([1, 2], size), random.choice([1, 1, 2, 3], size), strict=True)]  # fmt: skip
    (folder / "jobs.csv").write_text("\n".join([f"arrival,{what},nodes", *rows]) + "\n")
    nodes = [{"count": 3, "cpus": 4, **({} if cores else {"gpus": {"type": "g", "count": 4}})}]
    entry = {"trace": {"format": "tasks", "path": str(folder / "jobs.csv")}}
    return {"cluster": {"nodes": nodes}, "workload": [entry], "policy": "fcfs"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("cores", [False, True])
def test_gangs_of_equal_parts_of_nodes_are_planned_at_the_same_time_on_each(tmp_path, cores):
    found = hs.compare(over_nodes(tmp_path, cores), SHORT)
    plans = found.plans.loc[PLANNERS]
    assert not found.refused
    assert (plans["makespan"] >= plans["lower_bound"] - 1e-6).all()
    np.testing.assert_allclose(plans["makespan"], plans["planned_makespan"])


def test_gangs_of_equal_parts_by_hand():
    """On two nodes of two GPUs a gang of one on each and a job of two; the job waits for neither half."""
    gpu = DeviceType("g")
    gang = replace(gpu_mode(gpu, 2), span_any=True, node_count=2)
    shapes = [Shape([one]) for one in (gang, gpu_mode(gpu, 2), gpu_mode(gpu, 1))]
    tasks = workload([(0, 0, 4.0), (0, 1, 3.0), (0, 2, 4.0)], shapes)
    given = PlanProblem(tasks, Cluster([node(cpus=0, accelerators=((gpu, 2),), count=2)]))
    for name in PLANNERS:
        plan = made(name).plan(given)
        first = next(step for step in plan.steps if step.task == 0)
        assert {device.split("/")[0] for device in first.devices} == {"n0", "n1"}, name
        assert plan.makespan == 7.0 and plan.bound <= 7.0


def test_the_value_of_a_gang_is_what_other_lanes_would_cost():
    """Two lanes of three are left for a pair: no other two, so it loses most; two jobs of one lane lose nothing."""
    tasks = workload([(0, 0, 1.0), (0, 0, 1.0), (0, 1, 1.0)], [Shape([cpu_mode(1)]), Shape([cpu_mode(2)])])
    given = PlanProblem(tasks, Cluster([node(cpus=3)]))
    lanes = PoolLanes(wide(given, "test"))
    assert lanes.after_those((0,), 1, 1) == 0.0 and lanes.after_those((0,), 2, 1) == math.inf
    assert made("sufferage").plan(given).steps[0].task == 2 != made("mct").plan(given).steps[0].task


@pytest.mark.slow
def test_searches_of_parallel_tasks_never_lose_to_their_seed():
    """And find on some of the instances what list algorithms do not."""
    better = 0
    for number in range(3, 6):
        given = machine(np.random.default_rng(number), 30, cpus=4, gpus=2, nodes=2)
        lists = min(made(name).plan(given).makespan for name in ("heft", "mct"))
        for name in ("genetic", "simulated_annealing"):
            plan = made(name).plan(given)
            assert plan.makespan <= lists * (1 + 1e-9) and plan.notes["seed_makespan"] == pytest.approx(lists)
            assert plan.notes.get("evaluations", 0) <= 2000
            better += plan.makespan < lists * 0.99
    assert better >= 3


@pytest.mark.parametrize(("by", "column"), [("deadline", "deadline"), ("importance", "priority")])
def test_no_later_task_delays_one_that_goes_first(by, column):
    """A moldable task of 8, 5 or 3.5 s on 1, 2 or 4 GPUs ends first on all four, whatever comes behind it."""
    gpu = DeviceType("g")
    shape = Shape([gpu_mode(gpu, width) for width in (1, 2, 4)])
    one = Shape([gpu_mode(gpu, 1)])
    first = {"deadline": 3.6, "priority": 1}[column]
    columns = {column: np.array([first, *[math.nan if column == "deadline" else 0] * 3])}
    tasks = workload([(0, 0, 8.0, 5.0, 3.5), *[(0, 1, 8.0)] * 3], [shape, one], **columns)
    plan = Prioritized(by).plan(PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 4),))])))
    starts = {step.task: times for step, times in zip(plan.steps, plan.timetable.tolist(), strict=True)}
    assert starts[0] == [0.0, 3.5] and [starts[task] for task in (1, 2, 3)] == [[3.5, 11.5]] * 3
    assert plan.notes.get("deadlines_missed", 0) == 0
