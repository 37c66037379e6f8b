"""What a cluster could do at best, and what is each one's due: by linear programs, loops and cases by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hand_made import GPU, cluster, gpu_mode, launches, record, slow_link, workload
from scipy.optimize import linprog
from test_replay_by_loops import CPU, NOWHERE, PLAIN, SHARED, Story, free_at, machine, story, verdict
from tiers import some, spread

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import StageTime
from hetsim.model.device_type import WHOLE, DeviceType, Link, Sharing
from hetsim.model.mode import Mode
from hetsim.model.record import COMPLETED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED, UNFINISHED
from hetsim.results.one_run.bounds import _critical_path, _released_area, area_bound, areas, min_area, offered_load
from hetsim.results.one_run.fairness import core_demand, gpu_demand, rho_of_tasks
from hetsim.results.one_run.modes import ModeTable, exclusive_time, offered
from hetsim.results.one_run.replay import FITS, FreeCapacity, RunReplay
from hetsim.results.one_run.result import Result

NAN, INF = math.nan, math.inf

# Bounds ---------------------------------------------------------------------------------------------------------------


def least_share(work: np.ndarray, capacity: np.ndarray) -> float:
    """min λ: each task split among the types that it can use, the load of each at most λ × its capacity."""
    tasks, kinds = work.shape
    cost = [*np.zeros(tasks * kinds), 1.0]
    loads = np.zeros((kinds, tasks * kinds + 1))
    ones = np.zeros((tasks, tasks * kinds + 1))
    for task in range(tasks):
        for kind in range(kinds):
            if math.isfinite(work[task, kind]):
                loads[kind, task * kinds + kind] = work[task, kind]
                ones[task, task * kinds + kind] = 1
    loads[:, -1] = -capacity
    return float(linprog(cost, loads, np.zeros(kinds), ones, np.ones(tasks)).fun)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(some(160)))
def test_the_least_area_is_the_linear_program(seed: int):
    """Tasks of one way and of several, of up to three types of which some have nothing to choose."""
    rng = np.random.default_rng(seed)
    kinds, count = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    work = rng.choice([0.0, 1.0, 2.0, 5.0, 7.5], (count, kinds), p=[0.1, 0.3, 0.2, 0.2, 0.2])
    work[rng.random((count, kinds)) < 0.35] = INF
    work[np.arange(count), rng.integers(kinds, size=count)] = rng.uniform(0.1, 6, count)
    capacity = rng.integers(1, 5, kinds).astype(float)
    assert min_area(work, capacity) == pytest.approx(least_share(work, capacity), rel=1e-6)
    assert area_bound(work, capacity) == pytest.approx(least_share(work, capacity), rel=1e-6)
    release = np.sort(rng.integers(0, 9, count).astype(float))
    at = [time + least_share(work[release >= time], capacity) for time in release]
    assert _released_area(release, work, capacity) == pytest.approx(max(at), rel=1e-6)


def test_no_work_has_no_area():
    assert area_bound(np.zeros((0, 2)), np.ones(2)) == 0.0 and min_area(np.zeros((0, 2)), np.ones(2)) == 0.0


def test_of_many_release_times_some_are_looked_at():
    """The bound is valid then, and within a stretch of the best."""
    rng = np.random.default_rng(3)
    release = np.cumsum(rng.exponential(1.0, 3000))
    work = rng.exponential(0.99, (3000, 1))
    exact = max(release + np.cumsum(work[::-1, 0])[::-1])
    found = _released_area(release, work, np.ones(1))
    assert 0.999 * exact < found <= exact * (1 + 1e-12)


def test_the_area_of_each_task_on_each_type():
    """Least device-seconds over the modes that the cluster offers, of a batch with the fixed part shared at best."""
    fast = DeviceType("fast", streams=2)
    where = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 2), (fast, 1)), cpu_type=CPU)])
    modes = [[
        gpu_mode(2, fixed=1.0), gpu_mode(share=WHOLE // 4), gpu_mode(3), Mode("c", CPU, millicores=3000),
        gpu_mode(kind=fast, fixed=6.0, batch_limit=3),
    ], [Mode("few", CPU, millicores=500)]]  # fmt: skip
    times = [[3.0, 20.0, 1.0, 5.0, 2.0], [1.0, 2.0, 1.0, INF, 9.0], [7.0, INF, INF, INF, INF]]
    tasks = workload([0, 0, 0], times, modes, [0, 0, 1])
    table = ModeTable(tasks, where)
    work, capacity = areas(tasks, table, np.arange(3))
    named = dict(zip(("g", "cpu", "fast"), work.T.tolist(), strict=True))
    assert named == {
        "g": [min(2 * (3 + 1), 20 / 4), min(2 * (1 + 1), 2 / 4), INF], "cpu": [15, INF, 3.5], "fast": [2 + 2, 9 + 2,
            INF],
    }  # fmt: skip
    assert capacity.tolist() == [2, 4, 1]
    moved = np.arange(15.0).reshape(3, 5)  # counts where one stream has the device
    work, _ = areas(tasks, table, np.array([1, 0]), moved)
    assert work.T.tolist() == [[min(2 * (1 + 1 + 5), (2 + 6) / 4), min(2 * (3 + 1), (20 + 1) / 4)],
                               [INF, 3 * (5 + 3)], [9 + 2, 2 + 2]]  # fmt: skip
    together = DeviceType("m", streams=3, sharing=Sharing("mps"))
    one = workload([0], [1], [[gpu_mode(kind=together)]])
    assert areas(one, ModeTable(one, cluster(gpus=2, kind=together)), np.arange(1))[1].tolist() == [6]


def test_the_critical_path():
    """A diamond whose tasks are not in order, and a task that comes late."""
    tasks = workload([0, 0, 1, 9, 0], [1] * 5, predecessors=[(1, 2), (), (1,), (2,), (0, 3)])
    assert _critical_path(tasks, np.array([1.0, 2.0, 4.0, 3.0, 5.0])).tolist() == [7, 2, 6, 12, 17]


def moving(kind: DeviceType, modes: list[Mode], count: int = 2, **more: Any) -> float:
    """The bound of equal tasks with 2 GB in and 1 GB out, which take 5 s, on one device."""
    tasks = workload([0] * count, [[5.0] * len(modes)] * count, [modes], bytes_in=np.full(count, 2 * 10**9),
                     bytes_out=np.full(count, 10**9))  # fmt: skip
    rec = record(cluster(gpus=2, cpus=8, kind=kind), tasks, [0] * count, [50] * count, [(1,)] * count)
    for name, value in more.items():
        setattr(rec, name, value)
    return Result(rec).metric("makespan_bound")


def test_own_transfers_in_the_bound():
    """Up 2.1 s, 5 s, down 2.1 s: two GPUs with one stream have them for 9.2 s a task; with two for 5 s."""
    kind = slow_link()
    assert moving(kind, [gpu_mode(kind=kind)]) == pytest.approx(9.2)
    assert moving(kind, [gpu_mode(kind=kind)], 6) == pytest.approx(3 * 9.2)
    streams = DeviceType("g", link=kind.link, power=kind.power, streams=2)
    assert moving(streams, [gpu_mode(kind=streams)]) == pytest.approx(9.2)
    assert moving(streams, [gpu_mode(kind=streams)], 6) == pytest.approx(15)
    assert moving(kind, [gpu_mode(2, kind=kind)], 1) == 5 and moving(kind, [gpu_mode(share=WHOLE // 2, kind=kind)]) == 5
    assert moving(kind, [gpu_mode(kind=kind, batch_limit=4)]) == 5
    cores = Mode("c", cluster(cpus=8, kind=kind).devices[0].type, millicores=1000)
    assert moving(kind, [gpu_mode(kind=kind), cores]) == 5
    staged = gpu_mode(kind=kind, upload=StageTime(0.5), download=StageTime(0.25))
    assert moving(kind, [staged]) == pytest.approx(9.95)


def cut(outcome: int, lost: float) -> dict[str, np.ndarray]:
    return launches([{"task": 0, "place": 0, "start": 0, "end": 4, "outcome": outcome, "lost": lost},
                     {"task": 1, "place": 0, "start": 4, "end": 50}])  # fmt: skip


@pytest.mark.parametrize(("outcome", "lost", "bound"), [
    (0, 0, 9.2), (LAUNCH_STOPPED, 4, 5), (LAUNCH_STOPPED, 0, 5), (LAUNCH_MOVED, 1, 5), (LAUNCH_LOST, 4, 9.2),
    (LAUNCH_LOST, 3, 5),
])  # fmt: skip
def test_transfers_count_for_tasks_that_run_in_one_piece(outcome: int, lost: float, bound: float):
    kind = slow_link()
    assert moving(kind, [gpu_mode(kind=kind)], launches=cut(outcome, lost)) == pytest.approx(bound)


def test_where_no_makespan_is_bounded():
    kind = slow_link()
    assert math.isnan(moving(kind, [gpu_mode(kind=kind)], fused={0: ([0, 1], [])}))
    assert math.isnan(moving(kind, [gpu_mode(kind=kind)], status=np.array([COMPLETED, UNFINISHED])))
    assert math.isnan(moving(kind, [gpu_mode(kind=kind)], status=np.array([4, 4])))
    tasks = workload([0, 2, 3, 9], [50, 3, 4, 90])  # of what comes in the window, from its first arrival
    rec = record(cluster(), tasks, [0, 50, 53, 57], [50, 53, 57, 147], [(1,)] * 4, warmup=1.0, horizon=9.0)
    assert Result(rec).metric("makespan_bound") == 7


def test_the_offered_load():
    """Of 12 device-seconds in 4 s on 2 GPUs 1.5; tasks that never come, or can never run, ask for nothing."""
    modes = [[gpu_mode()], [gpu_mode(3)]]
    tasks = workload([2, 3, 6, INF, 5], [4, 4, 4, 99, 99], modes, [0, 0, 0, 0, 1])
    assert offered_load(tasks, ModeTable(tasks, cluster(gpus=2))) == pytest.approx(1.5)
    for arrivals, times, load in (([1.0, 1.0], [2, 2], INF), ([1.0], [0.0], 0.0), ([INF], [3.0], 0.0)):
        some_tasks = workload(arrivals, times)
        assert offered_load(some_tasks, ModeTable(some_tasks, cluster())) == load


# What the cluster offers ----------------------------------------------------------------------------------------------


def random_mode(rng: np.random.Generator) -> Mode:
    kind = [SHARED, PLAIN, NOWHERE, CPU, CPU][int(rng.integers(5))]
    cores, memory = int(rng.choice([0, 1, 2, 4, 6, 9, 14, 21])), int(rng.choice([0, 1, 18, 33, 40, 41, 64, 65, 90]))
    if kind is CPU:
        gang = rng.random()
        cores = max(1, cores)
        if gang < 0.3:
            return Mode("m", CPU, millicores=1000 * cores, memory=memory, span_any=True)
        nodes = int(rng.choice([2, 3])) if gang < 0.6 else 1
        return Mode(
            "m", CPU, millicores=1000 * cores * nodes // (2 if nodes == 2 else 1), memory=memory, node_count=nodes
        )
    gpus, form = int(rng.integers(1, 5)), rng.random()
    more: dict[str, Any] = {"gpu_memory": int(rng.choice([0, 5, 10, 11, 16, 17])), "memory": memory}
    if form < 0.3:
        nodes = int(rng.choice([2, 3]))
        return gpu_mode(gpus * nodes, kind=kind, millicores=1000 * cores * nodes, node_count=nodes, **more)
    share = int(rng.choice([WHOLE // 3, WHOLE, 2 * WHOLE, 2 * WHOLE + 1]))
    return gpu_mode(gpus, share, kind=kind, millicores=1000 * cores, span_any=bool(form < 0.6), **more)


def test_a_mode_is_offered_if_it_fits_on_the_empty_cluster():
    """Of a gang whose devices may lie anywhere the devices alone are counted, not the cores and bytes next to them."""
    rng = np.random.default_rng(8)
    where = machine()
    modes = [random_mode(rng) for _ in range(some(3000, 600))]
    nodes = free_at(0.0, [], where, ())
    fits = [verdict(mode, nodes) == 2 for mode in modes]
    empty = record(where, workload([0], [1], [[modes[0]]]), [math.nan], [math.nan], [None], end=1.0)
    verdicts = RunReplay(empty, Result(empty).modes, FreeCapacity(where, modes)).verdicts()[:, 0]
    assert (verdicts == FITS).tolist() == fits
    assert (verdicts > 0).tolist() == [verdict(mode, nodes) > 0 or could(mode, nodes) for mode in modes]
    plain = [not (mode.span_any and mode.gpus) for mode in modes]
    assert [offered(mode, where) for mode, one in zip(modes, plain, strict=True) if one] == [
        can for can, one in zip(fits, plain, strict=True) if one
    ]  # fmt: skip
    for mode in (mode for mode, one in zip(modes, plain, strict=True) if not one):
        devices = sum(one.type is mode.type and mode.gpu_memory <= one.type.memory
            and mode.share <= one.type.streams * WHOLE
                      for one in where.devices if one.type.kind != "cpu")  # fmt: skip
        assert offered(mode, where) == (devices >= mode.gpus)
    assert 0.2 < np.mean(fits) < 0.8


def could(mode: Mode, nodes: list[Any]) -> bool:
    """Would all that is free do, if it were on one node?  (`verdict` answers before it comes to this where it fits.)"""
    gpus = [gpu for node in nodes for gpu in node.gpus.values() if gpu.type == mode.type.name]
    return (
        mode.type is not NOWHERE and sum(node.cores for node in nodes) >= mode.millicores
        and sum(gpu.share for gpu in gpus) >= mode.gpus * mode.share
        and sum(gpu.memory for gpu in gpus) >= mode.gpus * mode.gpu_memory
    )  # fmt: skip


def test_the_time_alone_is_that_of_the_fastest_mode():
    """Links are of the device: half duplex has one rate; what goes to cores moves nothing."""
    half = DeviceType("h", link=Link(upload=2e9, download=8e9, latency=0.25, duplex="half"))
    full = DeviceType("f", link=Link(upload=4e9, download=1e9, latency=0.5))
    where = Cluster([NodeSpec(cpus=4, accelerators=((half, 2), (full, 2)), cpu_type=CPU)])
    modes = [[gpu_mode(kind=half), gpu_mode(2, kind=full, fixed=1.0, upload=StageTime(0.5), download=StageTime(0.25)),
              Mode("c", CPU, millicores=1000, fixed=2.0)], [gpu_mode(3, kind=half)]]  # fmt: skip
    times = [[1, 10, 20], [30, 2, 20], [30, 30, 3], [1, 1, 1], [30, 2, 40]]
    tasks = workload([0] * 5, times, modes, [0, 0, 0, 1, 0], bytes_in=np.array([8, 8, 8, 8, 0]) * 10**9,
                     bytes_out=np.array([4, 4, 4, 4, 0]) * 10**9)  # fmt: skip
    assert exclusive_time(ModeTable(tasks, where)).tolist() == pytest.approx([
        1 + (0.25 + 4) + (0.25 + 2), 2 + 1.75 + (0.5 + 1) + (0.5 + 2), 3 + 2, INF, 2 + 1.75,
    ])  # fmt: skip


# Each one's due -------------------------------------------------------------------------------------------------------


def due(made: Story, task: int) -> float:
    """Response over the time alone on one part of as many as there are active on average while the task is there."""
    rec = made.result.record
    arrival = made.ready[task]
    finish = float(rec.finish[task])
    crowd = 0
    for second in range(int(arrival), int(finish)):
        active = [one for one in range(16) if made.ready[one] <= second
                  and not (rec.status[one] != UNFINISHED and rec.finish[one] <= second)]  # fmt: skip
        crowd += len(active)
    mean = max(1.0, crowd / (finish - arrival))
    isolated = INF
    for mode in made.modes(task):
        size = mode.millicores / 1000 if mode.on_cpu else mode.gpu_share
        there = sum(node.spec.cpus for node in made.where.nodes) if mode.on_cpu else made.where.count(mode.type.name)
        if there:
            isolated = min(isolated, 4.0 * max(1.0, mean * size / there))
    return (finish - arrival) / isolated


@pytest.mark.parametrize("seed", spread(range(8), 4))
def test_fairness_second_by_second(seed: int):
    made = story(seed + 90)
    rec = made.result.record
    done = [task for task in range(16) if rec.status[task] == COMPLETED]
    found = rho_of_tasks(made.result)
    assert [int(row) for row in np.flatnonzero(~np.isnan(found))] == done and len(done) > 3
    assert found[done] == pytest.approx([due(made, task) for task in done])


@pytest.mark.parametrize("on_cores", [False, True])
def test_jain_by_loops(on_cores: bool):
    """Users with weights; work that was lost counts for none; a user without demand in the window has no part."""
    rng = np.random.default_rng(4)
    modes = [[Mode("c", CPU, millicores=2000)], [Mode("d", CPU, millicores=500)]] if on_cores else [
        [gpu_mode(2), gpu_mode()], [gpu_mode(share=WHOLE // 2), Mode("c", CPU, millicores=1000)]]  # fmt: skip
    count, high, low, horizon = 24, 40.0, 5.0, 30.0
    arrival = np.sort(rng.integers(0, 36, count)).astype(float)
    times = rng.integers(1, 9, (count, len(modes[0]))).astype(float)
    shape, users, weight = (
        rng.integers(2, size=count),
        rng.integers(3, size=count),
        rng.integers(1, 4, count).astype(float),
    )
    users[arrival < low] = 3
    tasks = workload(
        list(arrival), times.tolist(), modes, shape, user_code=users, users=["a", "b", "c", "d"], weight=weight
    )
    rows = [{"task": task, "place": 0, "start": arrival[task], "end": arrival[task] + 2, "busy": 2.0 + task % 5,
             "lost": float(rng.choice([0.0, 1.0, 99.0]))} for task in range(0, count, 2)]  # fmt: skip
    rec = record(Cluster([NodeSpec(cpus=6, accelerators=() if on_cores else ((GPU, 3),), cpu_type=CPU)]), tasks,
                 [NAN] * count, [NAN] * count, [(0,)] * count, end=high, warmup=low, horizon=horizon)  # fmt: skip
    rec.launches = launches(rows)
    demand, got, weights = np.zeros(4), np.zeros(4), [list[float]() for _ in range(4)]
    for task in range(count):
        if not low <= arrival[task] < horizon:
            continue
        ways = modes[shape[task]]
        needs = [times[task, at] * (mode.millicores / 1000 if on_cores else mode.gpu_share) for at,
            mode in enumerate(ways)
                 if mode.on_cpu == on_cores]  # fmt: skip
        demand[users[task]] += min(needs)
        weights[users[task]].append(weight[task])
        got[users[task]] += sum(row["busy"] - min(row["lost"], row["busy"]) for row in rows if row["task"] == task)
    part = np.array([np.mean(one) if one else 0.0 for one in weights])
    entitled = (high - low) * (6 if on_cores else 3) * part / part.sum()
    x = got[:3] / np.minimum(demand, entitled)[:3]
    assert Result(rec).metric("jain") == pytest.approx(x.sum() ** 2 / (3 * (x * x).sum()))
    table = Result(rec).modes
    mine = core_demand(table) if on_cores else gpu_demand(table)
    assert mine[:5].tolist() == [min(times[task, at] * (mode.millicores / 1000 if on_cores else mode.gpu_share)
                                     for at, mode in enumerate(modes[shape[task]]) if mode.on_cpu == on_cores)
                                 for task in range(5)]  # fmt: skip
    rec.launches = launches([{**row, "lost": 99.0} for row in rows])
    assert math.isnan(Result(rec).metric("jain"))
