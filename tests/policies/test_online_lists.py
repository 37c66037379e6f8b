"""Online list algorithms: proven ratios against exact optima, second opinions, data, driver cores, and their plans."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
import tiers
from test_dual_approximation import SLACK
from tiers import some, spread

import hetsim as hs
from benchmarks.hybrid_instances import FAMILIES, hybrid, instances, optimum
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.record import COMPLETED
from hetsim.model.tasks import Item
from hetsim.policy import PlannedScheduler, Scheduler
from hetsim.testing import System, check_policy, random_system, small_systems
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload
from hetsim_policies.dynamic.earliest import Dmda, Dmdas, EarliestLine, Eft, ErLs
from hetsim_policies.dynamic.heteroprio import HeteroPrio
from hetsim_policies.dynamic.lws import Lws
from hetsim_policies.static.lists import mct
from hetsim_policies.static.recorded import AsPlanned
from hetsim_policies.task_graphs import bottom_levels

G = DeviceType("g")
PHI = (1 + math.sqrt(5)) / 2
ONLINE = {"heteroprio": HeteroPrio, "eft": Eft, "er_ls": ErLs, "dmda": Dmda, "dmdas": Dmdas, "lws": Lws}


def run(system, scheduler):
    record = Simulation(system.run_input(scheduler), check=True).run()
    assert (record.status == COMPLETED).all()
    return record


def makespan(system, scheduler):
    return run(system, scheduler).finish.max()


# Ratios -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", spread(FAMILIES, 1))
def test_heteroprio_keeps_its_ratios(family):
    """phi on one core and one GPU, 1 + phi on m and one, 2 + sqrt 2 on m and k."""
    rng = np.random.default_rng([5, list(FAMILIES).index(family)])
    cases = list(instances(family, each=some(3, 1), most=9, seed=5))
    cases += [(*FAMILIES[family](rng, int(rng.integers(2, 9))), 1, 1) for _ in range(6)]
    for p, q, m, k in cases:
        bound = PHI if m == k == 1 else 1 + PHI if min(m, k) == 1 else 2 + math.sqrt(2)
        assert makespan(hybrid(p, q, m, k), HeteroPrio()) <= bound * optimum(p, q, m, k) * SLACK


@pytest.mark.parametrize("gain", [10.0, 1e3, 1e6])
def test_without_spoliation_heteroprio_has_no_bound(gain):
    """Two tasks that a GPU does in 1 s, and a core that takes one of them: gain / 2 times the optimum of 2 s."""
    p, q = np.array([gain, gain * 0.9]), np.ones(2)
    assert optimum(p, q, 1, 1) == pytest.approx(2)
    assert makespan(hybrid(p, q, 1, 1), HeteroPrio(spoliation=False)) == pytest.approx(0.9 * gain)
    assert makespan(hybrid(p, q, 1, 1), HeteroPrio()) == pytest.approx(2)


def test_phi_is_reached_on_one_core_and_one_gpu():
    """The published worst case: (phi, 1) and (1, 1/phi), equally accelerated; the wrong one goes to the GPU."""
    p, q = np.array([1.0, PHI]), np.array([1 / PHI, 1.0])
    found = makespan(hybrid(p, q, 1, 1, priority=np.array([1.0, 0.0])), HeteroPrio())
    assert optimum(p, q, 1, 1) == pytest.approx(1)
    assert found == pytest.approx(PHI)


@pytest.mark.parametrize("family", spread(FAMILIES, 2))
@pytest.mark.slow
def test_er_ls_keeps_its_ratio(family):
    """4 sqrt(m/k) for m >= k, all tasks there at the start."""
    for p, q, m, k in instances(family, each=5, most=9, seed=6):
        if m >= k:
            assert makespan(hybrid(p, q, m, k), ErLs()) <= 4 * math.sqrt(m / k) * optimum(p, q, m, k) * SLACK


@pytest.mark.parametrize("family", spread(FAMILIES, 2))
@pytest.mark.slow
def test_eft_is_at_most_the_lanes_times_the_optimum(family):
    for p, q, m, k in instances(family, each=3, most=8, seed=7):
        assert makespan(hybrid(p, q, m, k), Eft()) <= (m + k) * optimum(p, q, m, k) * SLACK


# Second opinions ----------------------------------------------------------------------------------------------


def random_loads(count=25, most=30):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, most))
        p, q = list(FAMILIES.values())[seed % len(FAMILIES)](rng, n)
        yield p, q, int(rng.integers(1, 6)), int(rng.integers(1, 5)), rng


def test_er_ls_follows_the_published_rules():
    for p, q, m, k, _ in random_loads():
        free = {"cpu": [0.0] * m, "gpu": [0.0] * k}
        finish = []
        for core, gpu in zip(p, q, strict=True):
            if core >= free["gpu"][0] + gpu:
                side = "gpu"
            else:
                side = "cpu" if core / math.sqrt(m) <= gpu / math.sqrt(k) else "gpu"
            finish.append(free[side][0] + (core if side == "cpu" else gpu))
            heapq.heapreplace(free[side], finish[-1])
        assert run(hybrid(p, q, m, k), ErLs()).finish.tolist() == pytest.approx(finish)


def test_eft_is_minimum_completion_time_done_online():
    for p, q, m, k, rng in random_loads():
        p, q = p * rng.uniform(1, 1.01, len(p)), q * rng.uniform(1, 1.01, len(p))  # no ties
        arrival = np.sort(rng.uniform(0, 10, len(p)))
        expected = mct(np.column_stack([p, q]), [m, k], range(len(p)), arrival)
        record = run(hybrid(p, q, m, k, arrival=arrival), Eft())
        assert record.finish.tolist() == pytest.approx(expected.finish.tolist())


def brute_heteroprio(p, q, m, k):
    """Event by event, over plain lists: the makespan."""
    queue = sorted(range(len(p)), key=lambda j: (-p[j] / q[j], j))
    running = {}  # device -> (end, task)
    time = done = 0.0
    devices = [("gpu", i) for i in range(k)] + [("cpu", i) for i in range(m)]
    while True:
        for device in devices:
            if device not in running and queue:
                task = queue.pop(0 if device[0] == "gpu" else -1)
                running[device] = (time + (q if device[0] == "gpu" else p)[task], task)
        for device in devices:
            others = [(end, task, other) for other, (end, task) in running.items() if other[0] != device[0]]
            for end, task, other in sorted(others, key=lambda entry: (-entry[0], entry[1])):
                need = (q if device[0] == "gpu" else p)[task]
                if device not in running and time + need < end * (1 - 1e-9):
                    del running[other]
                    running[device] = (time + need, task)
        if not running:
            return done
        time = done = min(end for end, _ in running.values())
        running = {device: entry for device, entry in running.items() if entry[0] > time * (1 + 1e-12)}


def test_heteroprio_agrees_with_a_brute_force():
    for p, q, m, k, rng in random_loads(40):
        p, q = p * rng.uniform(1, 1.01, len(p)), q * rng.uniform(1, 1.01, len(p))
        assert makespan(hybrid(p, q, m, k), HeteroPrio()) == pytest.approx(brute_heteroprio(p, q, m, k))


# Details of HeteroPrio ----------------------------------------------------------------------------------------


def test_ties_go_by_priority_as_published():
    """Equal acceleration of 4: the GPU takes the urgent one first; of 1/4: the core does."""
    urgent = np.array([0.0, 1.0, 2.0])
    quick = run(hybrid([8.0] * 3, [2.0] * 3, 1, 1, priority=urgent), HeteroPrio(spoliation=False))
    assert quick.start[2] == 0 and quick.mode.tolist() == [0, 1, 1]
    slow = run(hybrid([2.0] * 3, [8.0] * 3, 1, 1, priority=urgent), HeteroPrio(spoliation=False))
    assert slow.start[2] == 0 and slow.mode.tolist() == [1, 0, 0]


def test_the_distance_from_the_end_breaks_ties_of_graphs():
    before = [(), (), (), (1,), (3,)]
    system = hybrid([8.0] * 5, [2.0] * 5, 1, 1, predecessors=before)
    assert bottom_levels(system.tasks) == [2, 6, 2, 4, 2]
    record = run(system, HeteroPrio())
    assert record.start[1] == 0 and record.mode[1] == 1


def test_what_may_not_be_preempted_is_not_spoliated():
    system = hybrid([100.0, 90.0], [1.0, 1.0], 1, 1)
    system.tasks.shapes[0].preemptible = False
    assert makespan(system, HeteroPrio()) == 90


# Data ---------------------------------------------------------------------------------------------------------


def cholesky(tiles, size, **parts):
    """A tiled Cholesky factorization on one node; every kernel updates one tile in place and reads up to two more."""
    gpu = DeviceType("g", link=Link(upload=4 * GB, download=4 * GB))
    number = {(i, j): i * (i + 1) // 2 + j for i in range(tiles) for j in range(i + 1)}
    rows, before, reads, writes, last = [], [], [], [], {}

    def kernel(core, on_gpu, out, *read):
        tiles_read = (out, *read)
        before.append(tuple(dict.fromkeys(last[tile] for tile in tiles_read if tile in last)))
        reads.append(tuple(number[tile] for tile in tiles_read))
        writes.append((number[out],))
        last[out] = len(rows)
        rows.append((0, 0, core, on_gpu))

    for k in range(tiles):
        kernel(1, 0.5, (k, k))
        for i in range(k + 1, tiles):
            kernel(8, 1, (i, k), (k, k))
        for i in range(k + 1, tiles):
            for j in range(k + 1, i):
                kernel(16, 1, (i, j), (i, k), (j, k))
            kernel(8, 1, (i, i), (i, k))
    items = [Item(f"{i},{j}", size, home=0) for i, j in number]
    shape = Shape([cpu_mode(), gpu_mode(gpu)])
    cluster = Cluster([node(cpus=8, accelerators=((gpu, 4),))])
    tasks = workload(rows, [shape], predecessors=before, reads=reads, writes=writes, items=items, **parts)
    return System("cholesky", cluster, tasks)


@pytest.mark.slow
def test_knowing_where_data_are_pays_where_they_are_large():
    """Eight by eight tiles of 2 GB over links of 4 GB/s, where a GPU computes for 1 s: dmda needs a quarter less than
    eft, and two fifths less if it brings data ahead; where moving them costs nothing it is no worse."""
    large, none = cholesky(8, 2 * GB), cholesky(8, 0)
    blind = makespan(large, Eft())
    assert makespan(large, Dmda(prefetch=False)) <= 0.76 * blind
    assert makespan(large, Dmda()) <= 0.61 * blind
    assert makespan(large, Dmdas()) <= 0.61 * blind
    assert makespan(none, Dmda()) <= makespan(none, Eft())


def test_a_chain_stays_where_its_data_are():
    """Four chains on four GPUs; eft sends the tasks round, dmda and lws leave each chain on its GPU."""
    gpu = DeviceType("g", link=Link(upload=GB, download=GB))
    before = [(i - 4,) if i >= 4 else () for i in range(20)]
    system = System(
        "chains",
        Cluster([node(accelerators=((gpu, 4),))]),
        workload(
            [(0, 0, 1 + 0.1 * (i * 7 % 4)) for i in range(20)], [Shape([gpu_mode(gpu)])], predecessors=before,
            reads=before, writes=[(i,) for i in range(20)], items=[Item(f"x{i}", GB) for i in range(20)],
        ),
    )  # fmt: skip
    for scheduler in (Dmda(), Dmdas(), Lws()):
        places = run(system, scheduler).place.reshape(5, 4)
        assert (places == places[0]).all()
    places = run(system, Eft()).place.reshape(5, 4)
    assert not (places == places[0]).all()


def test_dmdas_starts_the_urgent_first_and_dmda_those_that_came_first():
    first = [0.0, 5.0, 1.0, 3.0]
    system = System(
        "one GPU", Cluster([node(accelerators=((G, 1),))]),
        workload([(0, 0, 1)] * 4, [Shape([gpu_mode(G)])], priority=np.array(first)),
    )  # fmt: skip
    assert run(system, Dmda()).start.tolist() == [0, 1, 2, 3]
    assert run(system, Dmdas()).start.tolist() == [3, 0, 2, 1]


# Work stealing ------------------------------------------------------------------------------------------------


def test_thieves_take_the_oldest_from_the_nearest():
    """A task on node 1 sets six free there; its GPU takes the newest, its neighbor and then nodes 0 and 2 the oldest;
    node 5 is too far to get any of them before they are gone."""
    before = [(), *([(0,)] * 6)]
    shape = Shape([gpu_mode(G)])
    cluster = Cluster(
        [node(accelerators=((G, 1),)), node(accelerators=((G, 2),)), node(accelerators=((G, 1),), count=4)]
    )
    rows = [(0, 0, 1)] + [(0, 0, 10)] * 6
    system = System("steal", cluster, workload(rows, [shape], predecessors=before))
    scheduler = Lws()
    record = run(system, scheduler)
    home = int(record.place[0])
    names = [cluster.devices[record.places[place][0][0]].name for place in record.place]
    assert names[6] == names[0]  # the newest stays
    assert home == record.place[6]
    assert len(set(names[1:])) == 6  # every GPU has got one
    distance = [abs(int(name[1]) - int(names[0][1])) for name in names[1:6]]
    assert distance == sorted(distance)  # the older, the nearer


# Driver cores -------------------------------------------------------------------------------------------------


def most_cores_at_once(record):
    changes = []
    for start, finish, mode in zip(record.start, record.finish, record.mode, strict=True):
        if mode == 0:
            changes += [(finish, -1), (start, 1)]
    return int(np.cumsum([change for _, change in sorted(changes)]).max(initial=0))


@pytest.mark.parametrize("name", ["eft", "dmda", "dmdas", "lws"])
def test_all_cores_get_work(name):
    """Two GPUs and eight cores: which of them drive GPUs is a property of the machine."""
    assert most_cores_at_once(run(hybrid([3.0] * 60, [2.0] * 60, 8, 2), ONLINE[name]())) == 8


# Plans --------------------------------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize("features", [(), ("transfers",), ("items", "graph"), ("gangs",), ("memory", "ties")])
@pytest.mark.parametrize("name", ["heteroprio", "eft", "dmda", "lws"])
def test_a_scheduler_as_planned_is_the_scheduler_itself_on_exact_estimates(name, features):
    parameters = {"heteroprio": {"spoliation": False}, "dmda": {"prefetch": False}}.get(name, {})
    for seed in range(some(4, 2)):
        system = random_system(seed, tasks=15, features=features)
        itself = makespan(system, ONLINE[name](**parameters))
        planned = run(system, AsPlanned(ONLINE[name](**parameters)))
        assert planned.finish.max() == pytest.approx(itself)
        assert planned.notes["planned_makespan"] == pytest.approx(itself - system.tasks.arrival.min())


def test_a_plan_of_a_spoliating_scheduler_is_not_later():
    for p, q, m, k, _ in random_loads(10):
        system = hybrid(p, q, m, k)
        assert makespan(system, AsPlanned(HeteroPrio())) <= makespan(system, HeteroPrio()) * (1 + 1e-9)


def test_the_plan_is_made_of_estimates_and_followed_whatever_is_true():
    """The estimates say GPU for both, though a core would be free: the second waits for the first, which is late."""
    rows = [(0, 0, 9, 10), (0, 0, 9, 1)]
    shape = Shape([cpu_mode(), gpu_mode(G)])
    cluster = Cluster([node(cpus=1, accelerators=((G, 1),))])
    tasks = workload(rows, [shape], estimate=[[9, 1], [9, 1]])
    record = run(System("late", cluster, tasks), AsPlanned(Eft()))
    assert record.start.tolist() == [0, 10] and record.mode.tolist() == [1, 1]
    assert record.notes["planned_makespan"] == 2


# Scenario files -----------------------------------------------------------------------------------------------


SCENARIO = {
    "name": "s",
    "cluster": {"nodes": [{"cpus": 4, "gpus": {"type": "g", "count": 1}}]},
    "workload": [
        {"name": "a", "arrivals": {"process": "all_at_once", "count": 10}, "cpu_time": "3 s", "gpu_time": "1 s"}
    ],
}


def with_policy(**scheduler):
    return {**SCENARIO, "policy": {"scheduler": scheduler}}


@pytest.mark.parametrize("base", ["eft", {"name": "dmda", "prefetch": False}, {"name": "as_planned", "base": "sjf"}])
def test_a_policy_names_another(base):
    planned = hs.run(with_policy(name="as_planned", base=base))
    itself = hs.run({**SCENARIO, "policy": {"scheduler": base}})
    assert planned.summary.loc["makespan", "value"] == itself.summary.loc["makespan", "value"]


@pytest.mark.parametrize(
    ("base", "where", "what"),
    [
        ("eff", "policy.scheduler.base", 'unknown scheduler "eff"; did you mean "eft"'),
        ({"name": "eff"}, "policy.scheduler.base.name", "unknown scheduler"),
        ({"name": "dmda", "prefetsh": 1}, "policy.scheduler.base.prefetsh", 'did you mean "prefetch"'),
        ({"name": "dada", "alpha": -1}, "policy.scheduler.base.alpha", "at least 0"),
        ({"name": "as_planned", "base": "eff"}, "policy.scheduler.base.base", "unknown scheduler"),
        (3, "policy.scheduler.base", "must be the name of a scheduler"),
        ([], "policy.scheduler.base", "must be the name of a scheduler"),
    ],
)
def test_errors_point_into_the_inner_policy(base, where, what):
    with pytest.raises(hs.errors.ScenarioError) as caught:
        hs.run(with_policy(name="as_planned", base=base))
    (problem,) = caught.value.problems
    assert problem.key == where and what in problem.message


class Hybrid(Scheduler):
    """Wants a planner, and a scheduler that need not be given."""

    def __init__(self, planner: PlannedScheduler, then: Scheduler | None = None):
        self.parts = planner, then


def test_a_policy_may_ask_for_a_planner(monkeypatch):
    monkeypatch.setitem(registry._registered, "scheduler", {"hybrid": Hybrid})
    loaded = hs.load(with_policy(name="hybrid", planner="heft", then={"name": "dmda", "prefetch": False}))
    label = "hybrid (planner: heft, then: dmda (prefetch: false))"
    assert loaded.policies.scheduler.label == label
    for given, where, what in [
        ({"planner": "fcfs"}, "policy.scheduler.planner", 'needs a static policy, one that makes a plan; got "fcfs"'),
        ({"planner": "heftt"}, "policy.scheduler.planner", "unknown scheduler"),
        ({}, "policy.scheduler.planner", "missing"),
    ]:
        with pytest.raises(hs.errors.ScenarioError) as caught:
            hs.load(with_policy(name="hybrid", **given))
        assert [problem.key for problem in caught.value.problems] == [where]
        assert what in caught.value.problems[0].message


# Robustness ---------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ONLINE)
def test_failures_are_survived(name):
    """A node with its GPUs, and a GPU elsewhere, fail in mid-run and come back."""
    for seed in range(3):
        system = random_system(seed, nodes=3, tasks=25, features=("memory", "fractions", "gangs"))
        simulation = Simulation(system.run_input(ONLINE[name]()), check=True)
        nodes = simulation.input.cluster.nodes
        for device in (nodes[0].cpu, *nodes[1].accelerators[:1]):
            simulation.at(1.0, lambda device=device, run=simulation: run.parts.devices.set_up(device, False))
            simulation.at(6.0, lambda device=device, run=simulation: run.parts.devices.set_up(device, True))
        record = simulation.run()
        assert (record.status == COMPLETED).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    spread([("dmda", {"prefetch": False}), ("dmdas", {"prefetch": False}), ("heteroprio", {"spoliation": False})], 1),
)  # fmt: skip
def test_variants_conform(name, parameters):
    few = None if tiers.whole else small_systems()[::3]
    check_policy(lambda: ONLINE[name](**parameters), few, hash_seed=False)


@pytest.mark.parametrize("name", ONLINE)
def test_a_mode_without_devices_is_passed_over(name):
    shape = Shape([cpu_mode(), gpu_mode(G)])
    system = System("no cores", Cluster([node(accelerators=((G, 1),))]), workload([(0, 0, 1, 5)] * 3, [shape]))
    assert makespan(system, ONLINE[name]()) == 15


@pytest.mark.parametrize("name", ["eft", "dmda"])
def test_a_task_looks_at_one_line_of_each_kind_however_many_there_are(name, monkeypatch):
    looks = []
    expected = ONLINE[name].expected
    monkeypatch.setattr(ONLINE[name], "expected", lambda self, *a: looks.append(1) or expected(self, *a))
    assert issubclass(ONLINE[name], EarliestLine)
    for nodes in (2, 50):
        looks.clear()
        cluster = Cluster([node(cpus=4, accelerators=((G, 2),), count=nodes)])
        shape = Shape([cpu_mode(), gpu_mode(G)])
        run(System("many", cluster, workload([(i * 0.01, 0, 3, 1) for i in range(100)], [shape])), ONLINE[name]())
        assert len(looks) == 200  # two modes of each task
