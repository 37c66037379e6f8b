"""Two levels of scheduling: shares are what the programs say, quotas are kept, work moves, nothing is lost."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from cost import lines_run
from hypothesis import given
from hypothesis import strategies as st
from machines import Job, cpu_mode, gpu_mode, simulate
from test_shipped_scenarios import SHIPPED, below, column, states
from tiers import examples, some, spread, whole

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.record import COMPLETED
from hetsim.policy import ListScheduler, PlanProblem
from hetsim.testing import check_policy, examine, random_system, small_systems, systems
from hetsim.testing.systems import CPU, System, workload
from hetsim_policies.dynamic.earliest import Eft
from hetsim_policies.dynamic.preemptive import Srtf
from hetsim_policies.dynamic.users import Wfq
from hetsim_policies.hybrid.common.groups import PARTS, Turns, apportion, loads, make_groups, shares
from hetsim_policies.hybrid.hierarchical import OPTIONS, Hierarchical
from hetsim_policies.orders import sjf
from hetsim_policies.placements import BestFit
from hetsim_policies.static.common.bounds import area_bound

GPU = DeviceType("g")
OTHER = DeviceType("h")

# Shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.quick(7)
@pytest.mark.parametrize("seed", range(20))
def test_the_program_reaches_the_area_bound(seed):
    """Work that can be divided: the least T is that of the fractional knapsack, and no share exceeds it."""
    random = np.random.default_rng(seed)
    work = random.lognormal(3, 1.5, (int(random.integers(1, 12)), 2))
    work[random.random(work.shape) < 0.15] = np.inf
    work[np.isinf(work).all(axis=1)] = 1.0
    lanes = random.integers(1, 40, 2).astype(float)
    share = shares(work, lanes, 1e-9, "lp")
    assert share.sum(axis=1) == pytest.approx(1)
    assert (share[np.isinf(work)] == 0).all()
    least = area_bound(work[:, 0], work[:, 1], int(lanes[0]), int(lanes[1]))
    assert loads(share, work, lanes).max() == pytest.approx(least, rel=1e-5)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(10))
def test_the_guess_is_within_its_ratio(seed):
    """Whole parts of classes on two machines: 4/3 of the optimum, which is at most the area bound and a part more."""
    random = np.random.default_rng(seed)
    work, lanes = random.lognormal(3, 1, (6, 2)), random.integers(1, 20, 2).astype(float)
    share = shares(work, lanes, 1e-9, "dual_approximation")
    assert share * PARTS == pytest.approx(np.round(share * PARTS))
    least = area_bound(work[:, 0], work[:, 1], int(lanes[0]), int(lanes[1]))
    part = (work / lanes).min(axis=1).max() / PARTS
    assert loads(share, work, lanes).max() <= 4 / 3 * 1.01 * (least + part)


@pytest.mark.parametrize("planner", ["lp", "dual_approximation"])
def test_without_haste_everything_is_where_it_is_fastest(planner):
    work, lanes = np.array([[10.0, 1.0], [2.0, 9.0]]), np.array([4.0, 2.0])
    assert shares(work, lanes, 1000.0, planner).tolist() == [[0, 1], [1, 0]]
    hurried = shares(work * 100, lanes, 1.0, planner)
    assert loads(hurried, work * 100, lanes).max() < loads(np.array([[0, 1], [0, 1.0]]), work * 100, lanes).max()


def test_between_haste_and_none_the_gpus_are_filled_with_what_gains_most():
    work, lanes = np.array([[200.0, 10.0], [20.0, 10.0]]), np.array([10.0, 1.0])
    share = shares(work, lanes, 12.5, "lp")  # of the 20 s on the GPU 10 fit
    assert share[0] == pytest.approx([0, 1])
    assert share[1] == pytest.approx([1, 0], abs=1e-5)


def test_what_can_run_nowhere_has_no_share():
    share = shares(np.array([[np.inf, 5.0], [1.0, 2.0]]), np.array([2.0, 0.0]), 60.0, "lp")
    assert share.tolist() == [[0, 0], [1, 0]]


@examples(60)
@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=9), st.integers(1, 400))
def test_turns_are_never_a_task_off_their_shares(parts, count):
    """Tijdeman's theorem."""
    turns = Turns(dict(enumerate(parts)))
    for number in range(1, count + 1):
        turns.next()
        for group, part in turns.share.items():
            assert abs(turns.taken[group] - part * number) < 1 + 1e-9
    assert sum(turns.taken.values()) == count


@pytest.mark.slow
@given(st.integers(0, 500), st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_apportioned_tasks_are_all_there(count, parts):
    share = [part / sum(parts) for part in parts]
    whole = apportion(count, share)
    assert sum(whole) == count
    assert all(abs(n - count * part) < 1 + 1e-9 for n, part in zip(whole, share, strict=True))


# The contract ---------------------------------------------------------------------------------------------------

SYSTEMS = ("CPU or GPU", "gangs on several nodes", "memory of hosts and GPUs", "task graph with data",
           "users, priorities, deadlines", "costly stops")  # fmt: skip
VARIANTS = {
    "short epochs": {"epoch": 0.7},
    "two nodes each": {"epoch": 0.9, "groups": 2},
    "always": {"epoch": 0.9, "moves": "always"},
    "never": {"epoch": 0.9, "moves": "never"},
    "sjf": {"epoch": 0.9, "inner": ListScheduler(sjf, discipline="skip")},
    "best_fit": {"epoch": 0.9, "groups": 2, "inner": ListScheduler(placement=BestFit())},
    "eft": {"epoch": 0.9, "inner": Eft()},
    "eft in pairs of nodes": {"epoch": 0.9, "groups": 2, "inner": Eft()},
    "stopping": {"epoch": 0.9, "inner": Srtf(discipline="skip")},
    "by user": {"epoch": 0.9, "groups": 2, "inner": Wfq()},
    "judged": {"epoch": 6.0, "objective": "response"},
}


def make(variant):
    from copy import deepcopy

    return Hierarchical(**deepcopy(VARIANTS[variant]))


@pytest.mark.parametrize("variant", spread(VARIANTS, 1))
@pytest.mark.slow
def test_variants_conform(variant):
    some = [system for system in small_systems() if system.name in SYSTEMS]
    assert len(some) == len(SYSTEMS)
    check_policy(functools.partial(make, variant), some, hash_seed=variant == "two nodes each")


@pytest.mark.slow
def test_single_nodes_conform_where_everything_fits_on_one():
    narrow = [system for system in small_systems() if system.name != "gangs on several nodes"]
    check_policy(lambda: Hierarchical(epoch=0.9, groups="node", inner=ListScheduler(discipline="skip")), narrow)


@examples(25)
@given(systems(), st.sampled_from(["type", 1, 2]), st.sampled_from([0.3, 5.0]), st.sampled_from(["earlier", "always"]))
def test_no_task_is_lost(system, groups, epoch, moves):
    try:
        assert examine(lambda _: Hierarchical(epoch=epoch, groups=groups, moves=moves), system) == []
    except ScenarioError as error:
        assert "even an idle group has no room for task 0 (and 1 more like it)" in str(error)  # noqa: PT017


class Asking(ListScheduler):
    """Asks for the first devices among some nodes, and compares with looking at each."""

    asked = 0

    def schedule(self, view):
        nodes = len(view.cluster.nodes)
        for mode in {mode: None for task in view.waiting() for mode in task.modes}:
            for mask in range(1 << nodes):
                found = view.first(mode, among=mask)
                fitting = [node for node in view.nodes.fitting(mode) if mask >> node & 1]
                if fitting:
                    assert found == view.first(mode, node=fitting[0])
                else:
                    assert found is None or (mode.span_any and all(mask >> d.node & 1 for d in found.devices))
                Asking.asked += found is not None
            assert view.first(mode, among=(1 << nodes) - 1) == view.first(mode)
        yield from super().schedule(view)


def test_the_first_devices_among_some_nodes():
    for system in small_systems()[:: 1 if whole else 3]:
        assert examine(lambda _: Asking(discipline="skip"), system) == []
    assert Asking.asked > 100


# Quotas ---------------------------------------------------------------------------------------------------------


def mixed(seed, count=400, classes=4, gpus=4, cores=8, nodes=1, rate=1.0, cls=None):
    """Tasks that gain differently from a GPU."""
    random = np.random.default_rng(seed)
    code = random.integers(0, classes, count) if cls is None else cls
    seconds = random.lognormal(0.5, 0.8, count)
    gain = np.linspace(1, 20, classes)[code]
    times = np.column_stack([seconds * gain, seconds])
    arrival = np.cumsum(random.exponential(1 / rate, count))
    rows = [(at, 0, *row) for at, row in zip(arrival.tolist(), times.tolist(), strict=True)]
    from hetsim.model.mode import Shape
    from hetsim.testing.systems import cpu_mode as core
    from hetsim.testing.systems import gpu_mode as whole

    names = [f"c{number}" for number in range(classes)]
    tasks = workload(rows, [Shape([core(), whole(GPU)])], class_code=code.astype(np.int32), classes=names)
    spec = NodeSpec(cpus=cores, cpu_type=CPU, accelerators=((GPU, gpus),), count=nodes)
    return System("mixed", Cluster([spec]), tasks)


class Recording(Hierarchical):
    """Notes when it plans, and the handed-out counts."""

    def __init__(self, **more):
        super().__init__(**more)
        self.plans = []
        self.worst = 0.0
        self.handed = 0

    def _plan_epoch(self, now):
        self.plans.append(now)
        return super()._plan_epoch(now)

    def _hand_out(self, task, kind):
        super()._hand_out(task, kind)
        self.handed += 1
        turns = kind.turns
        for group, part in turns.share.items():
            self.worst = max(self.worst, abs(turns.taken[group] - part * turns.count))


@pytest.mark.quick(1)
@pytest.mark.parametrize("groups", spread(["type", 1, 2], 2))
def test_quotas_are_kept_to_less_than_a_task(groups):
    system = mixed(3, nodes=4, rate=12.0)
    policy = Recording(epoch=7.0, groups=groups, planner="lp")
    record = Simulation(system.run_input(policy), check=True).run()
    assert (record.status == COMPLETED).all()
    assert policy.handed == len(system.tasks)
    assert 0 < policy.worst < 1
    assert record.notes["epochs"] > 3


@pytest.mark.slow
def test_shares_follow_the_load():
    """First only tasks that gain 20 times, then only ones that do not gain: the second kind ends up on cores."""
    code = np.repeat([1, 0], 300)
    system = mixed(1, count=600, classes=2, gpus=2, cores=8, rate=4.0, cls=code)
    record = Simulation(system.run_input(Hierarchical(epoch=10.0, moves="never"))).run()
    on_cpu = record.mode == 0
    assert on_cpu[:300].mean() < 0.2
    assert on_cpu[300:].mean() > 0.6


@pytest.mark.slow
def test_plans_are_made_at_multiples_of_the_epoch_and_equal_runs_are_equal():
    plans = []
    for _ in range(2):
        policy = Recording(epoch=7.0)
        record = Simulation(mixed(5, rate=30.0).run_input(policy), check=True).run()
        plans.append(policy.plans)
    assert plans[0] == plans[1]
    first, *later = plans[0]
    assert len(later) > 3
    for now in later:  # at a round that comes later only where nothing waited at the boundary
        boundary = math.floor(now / 7.0) * 7.0
        assert now == boundary or not ((record.ready <= boundary) & (record.start > boundary)).any()
    assert len({math.floor(now / 7.0) for now in plans[0]}) == len(plans[0])
    assert first == mixed(5, rate=30.0).tasks.arrival[0]


@pytest.mark.slow
def test_plans_move_what_waits():
    """All tasks come at once; at the first epoch they lie as planned already, later what is left is shared anew."""
    code = np.repeat([1, 0], 200)
    system = mixed(2, count=400, classes=2, gpus=2, cores=8, rate=1e6, cls=code)
    policy = Recording(epoch=20.0, moves="never")
    record = Simulation(system.run_input(policy), check=True).run()
    assert record.notes["moved_by_plan"] > 0
    stays = Simulation(system.run_input(Hierarchical(epoch=1e6, moves="never"))).run()
    assert stays.notes["moved_by_plan"] == 0
    assert record.finish.max() < stays.finish.max() * 1.05


# Plans tried out ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("groups", spread(["type", 1], 1))
def test_where_forks_tell_the_truth_the_plan_that_is_chosen_is_never_worse(groups):
    """All tasks are there and estimates are exact: what a fork promises is what comes, epoch after epoch."""
    others, seeds = 0, some(3, 1)
    for seed in range(seeds):
        system = mixed(seed, count=60, gpus=2, cores=4, nodes=2, rate=1e9)
        system.tasks.arrival[:] = 0.0
        means = []
        for objective in (None, "response"):
            policy = Hierarchical(epoch=15.0, groups=groups, objective=objective)
            record = Simulation(system.run_input(policy), check=True).run()
            assert (record.status == COMPLETED).all()
            means.append(record.finish.mean())
        assert means[1] <= means[0] * (1 + 1e-9)
        assert sum(policy.notes[f"plans_{name}"] for name in OPTIONS) == policy.notes["epochs"] > 1
        others += means[1] < means[0] * (1 - 1e-3)
    assert others >= (seeds + 1) // 2 or groups == 1  # equal nodes: there is one plan


@pytest.mark.slow
def test_what_is_hidden_changes_no_plan_that_is_tried_out():
    """Other times of what has not ended, and other arrivals to come: all starts up to then are the same."""
    random = np.random.default_rng(7)
    system = mixed(4, count=40, gpus=2, cores=4, rate=2.0)
    system.tasks.estimate = system.tasks.time * random.lognormal(0.0, 0.7, (40, 1))

    def run(tasks):
        policy = Hierarchical(epoch=10.0, objective="response")
        return Simulation(dataclasses.replace(system.run_input(policy), tasks=tasks)).run()

    tasks = system.tasks
    first = run(tasks)
    at = float(np.quantile(first.finish, 0.6))
    arrival = np.where(tasks.arrival > at, at + (tasks.arrival - at) * random.uniform(0.2, 2.0, 40), tasks.arrival)
    time = np.where((first.finish > at)[:, None], tasks.time * random.uniform(1.5, 3.0, (40, 1)), tasks.time)
    second = run(dataclasses.replace(tasks, arrival=np.sort(arrival), time=time))
    begun = first.start <= at
    assert 10 < begun.sum() < 40
    assert (second.start <= at).tolist() == begun.tolist()
    assert first.start[begun].tobytes() == second.start[begun].tobytes()
    assert first.mode[begun].tobytes() == second.mode[begun].tobytes()


# Starving -------------------------------------------------------------------------------------------------------

ONE_GPU_EACH = NodeSpec(accelerators=((GPU, 1),), count=2)


def starts(scheduler, times, spec=ONE_GPU_EACH):
    mode = gpu_mode(GPU)
    return simulate(spec, [Job([mode], [seconds]) for seconds in times], scheduler).start.tolist()


def test_work_moves_to_a_group_that_starves():
    """Tasks of 10, 1 and 10 s are dealt to two nodes in turns; the node that is done after 1 s takes the third."""
    assert sorted(starts(Hierarchical(epoch=100.0, groups="node"), [10, 1, 10])) == [0, 0, 1]
    stays = starts(Hierarchical(epoch=100.0, groups="node", moves="never"), [10, 1, 10])
    assert sorted(stays) == [0, 0, 10]


@pytest.mark.parametrize(("moves", "on_core"), [("earlier", 0), ("always", 1), ("never", 0)])
def test_it_moves_only_what_ends_earlier_so(moves, on_core):
    """Two tasks of 2 s on the GPU and 100 s on a core; the plan has time to put both on the GPU."""
    core = DeviceType("core", kind="cpu")
    modes = [gpu_mode(GPU), cpu_mode(core)]
    jobs = [Job(modes, [2.0, 100.0]) for _ in range(2)]
    spec = NodeSpec(cpus=1, cpu_type=core, accelerators=((GPU, 1),))
    record = simulate(spec, jobs, Hierarchical(epoch=1000.0, moves=moves))
    assert int((record.mode == 1).sum()) == on_core


def test_the_task_that_loses_least_moves():
    """On the GPU wait a task that gains ten times and one that gains twice: the core takes the second."""
    core = DeviceType("core", kind="cpu")
    modes = [gpu_mode(GPU), cpu_mode(core)]
    jobs = [Job(modes, [50.0, 5000.0]), Job(modes, [10.0, 100.0]), Job(modes, [10.0, 20.0])]
    spec = NodeSpec(cpus=1, cpu_type=core, accelerators=((GPU, 1),))
    system = simulate(spec, jobs, Hierarchical(epoch=1e6, moves="always"))
    assert (system.mode == 1).tolist()[2]


# Faults ---------------------------------------------------------------------------------------------------------

MANY = [
    {"name": "gpus", "on": "gpu", "every": {"distribution": "exponential", "mean": "10 h"}, "repair": "1 h"},
    {"name": "nodes", "on": "node", "every": {"distribution": "exponential", "mean": "20 h"}, "repair": "30 min"},
]


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["type", "node"])
@pytest.mark.parametrize("inner", ["fcfs_skip", "eft"])
def test_every_task_ends_once_whatever_breaks(groups, inner):
    jobs = [{"name": "job", "arrivals": {"process": "poisson", "rate": "40/h"}, "until": "15 h", "cpu_time": "2 h",
             "gpu_time": {"distribution": "lognormal", "mean": "10 min", "cv": 1}}]  # fmt: skip
    cluster = {"nodes": {"count": 3, "cpus": 2, "gpus": {"type": "g", "count": 2}}}
    policy = {"name": "hierarchical", "epoch": "10 min", "groups": groups, "inner": inner}
    result = hs.run({**scenario(policy, cluster, jobs), "faults": MANY, "seed": 2}, check=True)
    assert (result.tasks["status"] == "completed").all()
    assert result.metric("preemptions") > 3


@pytest.mark.parametrize(("moves", "last"), [("earlier", 15.0), ("never", 20.0)])
def test_what_waits_before_a_dead_group_goes_elsewhere(tmp_path, moves, last):
    """Three tasks of 5 s on two nodes, one of which fails for good after 1 s.  What it ran moves when the other node is
    free, at 10 s, or with the plan of the first epoch after that, at 15 s."""
    (tmp_path / "faults.csv").write_text("time,device,event,factor\n1,n1,down,\n", encoding="utf-8")
    jobs = [{"name": "w", "arrivals": {"process": "all_at_once", "count": 3}, "gpu_time": "5 s"}]
    cluster = {"nodes": {"count": 2, "cpus": 1, "gpus": {"type": "g", "count": 1}}}
    policy = {"name": "hierarchical", "epoch": "15 s", "groups": "node", "moves": moves}
    file = [{"file": str(tmp_path / "faults.csv")}]
    result = hs.run({**scenario(policy, cluster, jobs), "faults": file}, check=True)
    assert result.tasks.finish.max() == last


# Bad input ------------------------------------------------------------------------------------------------------

TASKS = [{"name": "w", "arrivals": {"process": "all_at_once", "count": 6}, "cpu_time": "5 s"}]
CORES = {"nodes": {"cpus": 4}}


def scenario(policy, cluster=None, workload=None):
    return {"name": "bad", "cluster": cluster or CORES, "workload": workload or TASKS, "policy": policy}


def refusal(policy, **more):
    with pytest.raises(ScenarioError) as caught:
        hs.run(scenario(policy, **more))
    return str(caught.value)


@pytest.mark.parametrize("epoch", ["0 s", "-5 s", 0])
def test_an_epoch_has_to_last(epoch):
    said = refusal({"name": "hierarchical", "epoch": epoch})
    assert "policy.scheduler.epoch" in said
    assert "greater than 0" in said or "above 0" in said or "negative" in said
    with pytest.raises(ValueError, match="must be positive and finite"):
        Hierarchical(epoch=0.0)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"groups": 0}, "policy.scheduler.groups"),
        ({"groups": "rack"}, "groups: rack needs racks; give the nodes `rack: NAME`, or use"),
        ({"groups": "switch"}, "policy.scheduler.groups"),
        ({"planner": "greedy"}, "policy.scheduler.planner"),
        ({"inner": "heft"}, "hierarchical cannot nest Heft"),
        ({"inner": "easy_backfill"}, "hierarchical cannot nest EasyBackfill"),
        ({"inner": "nobody"}, 'unknown scheduler "nobody"'),
        ({"moves": "often"}, "policy.scheduler.moves"),
        ({"objective": "fairness"}, "policy.scheduler.objective"),
        ({"objective": "cost"}, "nothing in the cluster has a price"),
        ({"objective": "deadline_misses"}, "no task has a deadline (slo) that could be missed"),
    ],
)
def test_parameters_that_make_no_sense(parameters, says):
    assert says in refusal({"name": "hierarchical", **parameters})


def test_dual_approximation_plans_for_two_types():
    types = {"nodes": [{"cpus": 2, "gpus": {"type": "a", "count": 1}}, {"gpus": {"type": "b", "count": 1}}]}
    said = refusal({"name": "hierarchical", "planner": "dual_approximation"}, cluster=types)
    assert "the cluster has cpu, a, b; planner lp has no such limit" in said


def test_a_gang_that_no_group_can_hold_is_refused():
    wide = [{"name": "wide", "arrivals": {"process": "all_at_once", "count": 2}, "gpus": 6, "gpu_time": "5 s",
             "span": "any"}]  # fmt: skip
    cluster = {"nodes": {"count": 2, "gpus": {"type": "a", "count": 4}}}
    said = refusal({"name": "hierarchical", "groups": "node"}, cluster=cluster, workload=wide)
    assert "even an idle group has no room for task 0 (and 1 more like it)" in said
    result = hs.run(scenario({"name": "hierarchical", "groups": 2}, cluster, wide), check=True)
    assert result.metric("completed_count") == 2


@pytest.mark.parametrize("planner", ["lp", "dual_approximation"])
@pytest.mark.parametrize("cluster", [{"nodes": {"cpus": 1}}, CORES], ids=["one core", "no GPU"])
def test_without_gpus_and_on_one_device_it_is_its_inner_order(cluster, planner):
    result = hs.run(scenario({"name": "hierarchical", "planner": planner, "inner": "sjf"}, cluster), check=True)
    alone = hs.run(scenario("sjf", cluster))
    assert result.tasks.finish.tolist() == alone.tasks.finish.tolist()


def test_nothing_to_do():
    core = DeviceType("core", kind="cpu")
    record = simulate(NodeSpec(cpus=1, cpu_type=core), [Job([cpu_mode(core)], [0.0])], Hierarchical())
    assert record.finish.tolist() == [0.0]


def test_services_are_refused():
    arrivals = {"process": "poisson", "rate": "5/s"}
    service = {"name": "s", "service": {"compute": {"per_item": "10 ms"}}, "arrivals": arrivals, "until": "5 s"}
    cluster = {"nodes": {"gpus": {"type": "a", "count": 1}}}
    said = refusal({"name": "hierarchical"}, cluster=cluster, workload=[service])
    assert "does not serve requests" in said


# Groups ---------------------------------------------------------------------------------------------------------


def test_groups():
    with_gpu = NodeSpec(cpus=2, accelerators=((GPU, 1),), rack="r2")
    cluster = Cluster([NodeSpec(cpus=2, rack="r1", count=2), with_gpu, NodeSpec(cpus=1)])
    names = {how: [group.name for group in make_groups(cluster, how)] for how in ("type", "node", "rack", 3)}
    assert names == {
        "type": ["cpu", "g"],
        "node": ["n0", "n1", "n2", "n3"],
        "rack": ["r1", "r2", "without a rack"],
        3: ["n0..n2", "n3"],
    }
    assert [sum(group.lanes.values()) for group in make_groups(cluster, 3)] == [7, 1]


def test_a_problem_is_refused_before_anything_runs():
    system = random_system(4)
    problem = PlanProblem(system.tasks, system.cluster)
    Hierarchical().check(problem)
    with pytest.raises(ScenarioError, match="groups: rack needs racks; give the nodes `rack: NAME`, or use"):
        Hierarchical(groups="rack").check(problem)


# Cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["type", 4])
def test_the_cost_of_a_task_does_not_grow_with_the_devices(groups):
    """Sixteen times the devices with sixteen times the rate: far less than sixteen times the lines a task."""

    def lines_of(nodes):
        system = mixed(1, count=4000, gpus=8, cores=8, nodes=nodes, rate=8.0 * nodes)
        run = Simulation(system.run_input(Hierarchical(epoch=10.0, groups=groups)))
        return lines_run(run.run)

    few, many = lines_of(8), lines_of(128)
    assert many < 1.5 * few


@pytest.mark.slow
def test_nothing_is_kept_of_tasks_that_have_ended():
    policy = Hierarchical(epoch=10.0)
    system = mixed(1, count=some(2000, 500), gpus=8, cores=8, nodes=2, rate=8.0)
    assert np.isfinite(Simulation(system.run_input(policy)).run().finish).all()
    assert not policy._of
    assert sum(len(ends) for group in policy.groups for ends in group._ends.values()) < 100


# What it gains --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quotas_by_type():
    name = "quotas-by-type"
    found = {p: column(name, "response_mean", p) for p in ("fcfs", "sjf", "eft", "heteroprio", "er_ls")}
    planned = column(name, "response_mean", {"name": "as_planned", "base": "eft"})
    quotas = column(name, "response_mean")
    states(name, "105 s under fcfs and 105 s under sjf", found["fcfs"].mean(), found["sjf"].mean())
    states(name, "69 s under eft and 159 s where its plan is followed", found["eft"].mean(), planned.mean())
    states(name, "by sjf on each type: the mean response is 47 s", quotas.mean())
    assert len(quotas) == 4
    for other in (found["fcfs"], found["sjf"], found["eft"], planned):
        assert below(quotas, other, confidence=0.99)
    comment = SHIPPED[name].path.read_text(encoding="utf-8")
    assert f"mean response is {found['heteroprio'].mean():.1f} s under heteroprio" in comment
    assert f"{found['er_ls'].mean():.1f} s under er_ls" in comment


# Sentences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key", "sentence"),
    [
        ({"groups": "nod"}, "groups", 'must be type, node, rack or a whole number; got "nod"; did you mean "node"?'),
        ({"groups": 0}, "groups", "must be type, node, rack or a number that is at least 1; got 0"),
        ({"groups": [2]}, "groups", "must be type, node, rack or a whole number; got a list"),
        ({"moves": "nevr"}, "moves", 'unknown moves "nevr"; did you mean "never"?'),
        ({"epoch": "1 ms"}, "epoch", "must be at least 1 s; got 0.001 s, but a plan is made in every epoch; "
                                     "minutes are usual"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_sentence_that_lists_what_is_possible(given, key, sentence):
    with pytest.raises(ScenarioError) as error:
        hs.load("quotas-by-type", {"policy": {"name": "hierarchical", **given}})
    [problem] = error.value.problems
    assert problem.message == sentence and problem.key == f"policy.scheduler.{key}"


@pytest.mark.parametrize(
    ("given", "key", "sentence"),
    [
        ({"static": ["a"], "reserve": 2}, "reserve", "must be auto or a number that is at most 1; got 2"),
        ({"static": ["a"], "reserve": "all"}, "reserve", 'must be auto or a number; got "all"'),
        ({"static": [["a"]]}, "static.0", "must be a text; got a list"),
    ],
)
def test_words_beside_other_values_are_told_in_one_sentence(given, key, sentence):
    with pytest.raises(ScenarioError) as error:
        hs.load("quotas-by-type", {"policy": {"name": "semi_static", **given}})
    [problem] = error.value.problems
    assert problem.message == sentence and problem.key == f"policy.scheduler.{key}"
