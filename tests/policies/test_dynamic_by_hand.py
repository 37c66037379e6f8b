"""Rules of dynamic schedulers at their edges and where nothing waits, by hand or against a second opinion."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappush
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, tasks_of

from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Power, Price
from hetsim.model.faults import FaultEvent
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.model.tasks import Item
from hetsim.policy import View
from hetsim_policies.dynamic import packing
from hetsim_policies.dynamic.adaptive_lifo import AdaptiveLifo
from hetsim_policies.dynamic.backfilling import GangBackfill
from hetsim_policies.dynamic.common.fair_tree import Account, FairTree
from hetsim_policies.dynamic.common.fractions import ModeOffers, equal_share, max_min, max_sum
from hetsim_policies.dynamic.common.lines import AssigningScheduler
from hetsim_policies.dynamic.common.occupancy import Occupancy
from hetsim_policies.dynamic.common.pairs import _smaller, alone_modes, empty_at, pairs, place_alone
from hetsim_policies.dynamic.common.reservations import FreeProfile, Reservation
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundScheduler
from hetsim_policies.dynamic.common.service_tiers import Tier, Tiers
from hetsim_policies.dynamic.earliest import EarliestLine, Eft, _share_of
from hetsim_policies.dynamic.elastic import Elastic
from hetsim_policies.dynamic.heteroprio import HeteroPrio, best_times
from hetsim_policies.dynamic.intervals import AtIntervals, LasIntervals
from hetsim_policies.dynamic.lws import Lws
from hetsim_policies.dynamic.packing import Defragment, Tetris, likeness
from hetsim_policies.dynamic.power_down import PowerDown
from hetsim_policies.dynamic.preemptive import Las, Priority, Srtf
from hetsim_policies.dynamic.qssf import Qssf
from hetsim_policies.dynamic.sharing import Gandiva, PairTrial, SharingByTable
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor
from hetsim_policies.dynamic.time_fractions import FcfsRounds, MaxMinFairness, MaxThroughput, check_costs, prices
from hetsim_policies.dynamic.turns import RoundRobin, Themis
from hetsim_policies.dynamic.unlike import AlloX, MultiGeneration
from hetsim_policies.dynamic.users import ByUser, QuotaBorrow
from hetsim_policies.dynamic.waited import Waited, Wfp3

GPU, OTHER, PRICED = DeviceType("g"), DeviceType("h"), DeviceType("p", price=Price(1.0, 1.0))


def task_of(*jobs: Job, row: int = 0) -> Task:
    tasks = tasks_of(jobs)
    shape = tasks.shapes[tasks.shape[row]]
    times = tuple(tasks.time[row][: len(shape.modes)].tolist())
    return Task(row, float(tasks.arrival[row]), shape, times, times, tasks)


# When a scheduler is asked ----------------------------------------------------------------------------------------

ASKED_WHEN_READY = [
    "wfp3", "unicep", "drf", "quota_borrow", "srtf", "easy_backfill", "conservative_backfill", "gang_backfill",
    "sharing", "tetris", "wfq", "qssf", "priority", "edf",
]  # fmt: skip


@pytest.mark.parametrize("name", ASKED_WHEN_READY)
def test_an_end_asks_for_no_decision_once_nothing_waits(name: str):
    """The third task waits from 1 to 2 s.  A scheduler may look once more at 5 s; then it knows that nothing waits."""
    policy = registry.policy("scheduler", name)()
    asked: list[float] = []
    schedule = policy.schedule

    def noted(view: View) -> Iterator[Any]:
        asked.append(view.now)
        return schedule(view)

    policy.schedule = noted
    jobs = [Job([gpu_mode(GPU)], [2.0]), Job([gpu_mode(GPU)], [5.0]), Job([gpu_mode(GPU)], [4.0], 1.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, policy)
    assert record.start.tolist() == [0, 0, 2]
    assert set(asked) - {1.0, 5.0} == {0, 2}


# Programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [(1.5e-3, 2e-16), (6e8, 3e-16), (1.0, 3.0), (2.0, 1e-4, 5e3)])
def test_the_greatest_least_progress_on_one_device(times: tuple[float, ...]):
    """Jobs that all make equal progress take parts as long as their times: each 1 / (sum of the times)."""
    count = len(times)
    zeros, ones = np.zeros(count, dtype=int), np.ones(count)
    offers = ModeOffers(np.arange(count), zeros, ones, time=np.array(times), capacity=np.ones(1), weight=ones)
    progress = offers.progress(max_min(offers, ones))
    assert progress.min() * math.fsum(times) == pytest.approx(1.0, rel=1e-6)


# What is left -----------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_task_shorter_than_a_second():
    """A quarter second of a half is left on one GPU; on four, where it takes a fifth, that is a tenth."""
    task = task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 4)], [0.5, 0.2]))
    launch = SimpleNamespace(placement=SimpleNamespace(mode=task.modes[0]))
    view: Any = SimpleNamespace(launch_of=lambda _: launch, remaining=lambda _: 0.25)
    assert Srtf().rank(task, view) == pytest.approx(0.1)


# Matching ---------------------------------------------------------------------------------------------------------


def test_allox_starts_what_fits_where_the_first_of_the_queue_fits_nowhere():
    """Only the node that is down until 30 s has memory for the shorter job.  The longer one is started in its place,
    and a third one that comes meanwhile waits for it."""
    specs = [NodeSpec(cpus=1, memory=100, accelerators=((GPU, 1),)),
             NodeSpec(cpus=1, memory=10, accelerators=((GPU, 1),))]  # fmt: skip
    jobs = [Job([gpu_mode(GPU, memory=50)], [5.0]), Job([gpu_mode(GPU, memory=5)], [20.0]),
            Job([gpu_mode(GPU, memory=5)], [8.0], 1.0)]  # fmt: skip
    cluster = Cluster(specs)
    gpu = cluster.nodes[0].accelerators[0].index
    faults: Any = [FaultEvent(0.0, gpu, "down"), FaultEvent(30.0, gpu, "up")]
    record = simulate(specs, jobs, AlloX(), faults=faults)
    assert record.start.tolist() == [30, 0, 20]


# Moves ------------------------------------------------------------------------------------------------------------


def test_what_may_be_moved():
    """Each of these runs, but one is not preemptible, one is in a batch, one uploads, and so on: two may move."""
    nodes = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 4), (OTHER, 2)), count=2)]).nodes
    kind = nodes[0].cpu.type
    plain, pair = gpu_mode(GPU), gpu_mode(GPU, 2, span_any=True)

    def running(row: int, mode: Any = plain, devices: Any = None, memo: float | None = None, **more: Any) -> Any:
        launch = SimpleNamespace(tasks=more.pop("tasks", [0]), stage=more.pop("stage", "compute"), placement=(
            SimpleNamespace(mode=mode, devices=devices or nodes[1].accelerators[: mode.gpus])))  # fmt: skip
        shape = SimpleNamespace(preemptible=more.pop("preemptible", True))
        return SimpleNamespace(index=row, state=more.pop("state", RUNNING), shape=shape, memo=memo, launch=launch)

    apart = (nodes[0].accelerators[0], nodes[1].accelerators[0])
    tasks = [
        running(0, pair), running(1), running(2, state=WAITING), running(3, preemptible=False),
        running(4, tasks=[0, 1]),
        running(5, stage="upload"), running(6, gpu_mode(OTHER), nodes[1].accelerators[4:5]),
        running(7, gpu_mode(GPU, 0.5)), running(8, gpu_mode(GPU, gpu_memory=1)), running(9, pair, apart),
        running(10, memo=91.0), running(11, memo=90.0), running(12, cpu_mode(kind), (nodes[1].cpu,)),
    ]  # fmt: skip
    view: Any = SimpleNamespace(now=100.0, running=lambda *_, **__: tasks, launch_of=lambda task: task.launch)
    found = Defragment(minimum_run=10.0)._movable(plain, view)
    assert {node: [task.index for task in some] for node, some in found.items()} == {1: [1, 11, 0]}


def test_moves_are_made_where_they_pay():
    """A single on each of two nodes of two GPUs, 10 s long.  From 2 s on a pair would wait for 8 s, 16 GPU-seconds.
    A move costs 4 s of one GPU: it pays up to a margin of 4."""
    stopping = Stopping(save=1.0, restore=3.0)
    jobs = [Job([gpu_mode(GPU)], [10.0], stopping=stopping) for _ in range(2)] + [Job([gpu_mode(GPU, 2)], [5.0], 2.0)]
    rule = registry.policy("placement", "worst_fit")
    for margin, start in ((3.9, 3.0), (4.1, 10.0)):
        policy = Defragment(placement=rule, margin=margin)
        record = simulate(NodeSpec(accelerators=((GPU, 2),), count=2), jobs, policy)
        assert record.start[2] == pytest.approx(start), margin


# Fractions of time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_offers_by_loops(seed: int):
    """Progress, the fastest mode that has devices, and equal shares, each offer by itself; some are next to others."""
    random = np.random.default_rng(seed)
    rows = [(job, kind, float(random.integers(1, 4)), float(random.integers(1, 9)), partner)
            for job in range(4) for kind in (0, 1, 1) for partner in ((-1,), (-1, 0, 2))[seed > 0]]  # fmt: skip
    job, kind, width, time, partner = (np.array(column) for column in zip(*rows, strict=True))
    weight, capacity = np.array([1.0, 2.0, 3.0, 2.0]), np.array([2.0, 5.0])
    pairs: dict[str, Any] = {"own": kind, "partner": partner} if seed else {}
    offers = ModeOffers(job, kind, width, time=time, capacity=capacity, weight=weight, **pairs)
    fraction = random.random(len(rows))
    assert offers.jobs == 4
    progress, fastest = [0.0] * 4, [0.0] * 4
    for (j, k, w, t, p), part in zip(rows, fraction, strict=True):
        progress[j] += part / t
        if p < 0 and w <= capacity[k]:
            fastest[j] = max(fastest[j], 1 / t)
    assert offers.progress(fraction).tolist() == pytest.approx(progress)
    assert offers.fastest().tolist() == pytest.approx(fastest)
    share = equal_share(offers)
    for j in range(4):
        alone = [i for i, row in enumerate(rows) if row[0] == j and row[4] < 0]
        part = {i: weight[j] / 8 * capacity[rows[i][1]] / rows[i][2] / (1 + rows[i][1]) for i in alone}
        part = {i: one / max(1.0, sum(part.values())) for i, one in part.items()}
        for i, row in enumerate(rows):
            if row[0] == j:
                assert share[i] == pytest.approx(part.get(i, 0.0))


def test_what_is_asked_for_and_cannot_be_is_missed_by_the_least_sum():
    """One device, times of 1 and 4 s: the first asks for half of the time.  The other asks for 0.2 jobs a second, and
    gets the other half, 0.125.  With 0.1 asked for it has two fifths, and the rest goes where it counts more."""
    ones = np.ones(2)
    offers = ModeOffers(np.arange(2), np.zeros(2, dtype=int), ones, time=np.array([1.0, 4.0]), capacity=ones[:1],
                        weight=ones)  # fmt: skip
    both = max_sum(offers, np.array([0.0, 0.0]), np.array([0.5, 0.2]))
    assert both.tolist() == pytest.approx([0.5, 0.5], rel=1e-5)
    for value, expected in (([1.0, 0.0], [0.6, 0.4]), ([0.0, 1.0], [0.5, 0.5])):
        fraction = max_sum(offers, np.array(value), np.array([0.5, 0.1]))
        assert fraction.tolist() == pytest.approx(expected, rel=1e-5)
    assert max_sum(offers, np.array([1.0, -1.0]), np.zeros(2)).tolist() == [1, 0]


# Rounds -----------------------------------------------------------------------------------------------------------


def test_the_books_of_a_round():
    """Rounds of 10 s.  The first job has run since 4 s, in its second mode, and was due 0.25 and 0.5 of the time."""
    scheduler = MaxMinFairness(10.0)
    first, second = (RoundJob(task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 2)], [8.0, 5.0]))) for _ in range(2))
    scheduler.jobs = {0: first, 1: second}
    scheduler._counted = 2.0
    first.target, first.share, first.received, first.due = [0.25, 0.5], 0.01, [0.0, 3.0], [1.0, 2.0]
    first.mode = first.way = 1
    first.since = 4.0
    scheduler._account(SimpleNamespace(now=12.0))
    assert (first.due, first.received, first.alone) == ([3.5, 7.0], [0.0, 11.0], pytest.approx(0.1))
    assert (second.due, second.received, second.alone) == ([0, 0], [0, 0], 0)
    scheduler._account(SimpleNamespace(now=15.0))
    assert (first.due, first.received) == ([4.25, 8.5], [0, 14])
    assert scheduler.urgency(first, 1) == (13.5 / 14, 13.5)
    assert scheduler.urgency(first, 0) == (math.inf, 6.75) and scheduler.urgency(second, 0) == (0, 0)
    scheduler.rule = "deficit"
    assert scheduler.urgency(first, 1) == (-0.5, 13.5) and scheduler.urgency(first, 0) == (6.75, 6.75)
    assert scheduler._lags(first, 0) and not scheduler._lags(first, 1)
    first.received[0] = 1.75  # half a round is due by the end of this one
    assert scheduler._lags(first, 0)
    first.received[0] = 1.76
    assert not scheduler._lags(first, 0)
    assert (first.seconds(0), first.seconds(1)) == (8, 5)


def test_what_is_left_of_a_job_in_rounds():
    """By estimate in the mode in which it runs; at least a hundredth, and never more than all."""
    job = RoundJob(task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 2)], [8.0, 5.0])))
    view: Any = SimpleNamespace(remaining=lambda _: 2.0)
    job.task.done = 0.25
    assert job.remaining(view) == 0.75  # it waits
    job.mode = 0
    assert job.remaining(view) == 0.75  # it is about to start
    job.task.state = RUNNING
    assert job.remaining(view) == 0.25
    job.mode = 1
    assert job.remaining(view) == pytest.approx(0.4)
    for seconds, expected in ((0.04, 0.01), (0.06, 0.012), (9.0, 1.0)):
        view.remaining = lambda _, seconds=seconds: seconds
        assert job.remaining(view) == pytest.approx(expected)


def test_which_job_stays_where_it_runs():
    """A job that has computed for less than half a round of 10 s on its two GPUs; or uploads; or may not be stopped."""
    scheduler = MaxMinFairness(10.0)
    job = RoundJob(task_of(Job([gpu_mode(GPU, 2)], [90.0])))
    job.mode, job.attained = 0, 30.0
    launch = SimpleNamespace(stage="compute")
    view: Any = SimpleNamespace(launch_of=lambda _: launch)
    for attained, may in ((39.9, False), (40.0, True), (50.0, True)):
        view.attained = lambda _, attained=attained: attained
        assert scheduler._may_stop(job, view) is may
    launch.stage = "upload"
    assert not scheduler._may_stop(job, view)
    fixed = RoundJob(task_of(Job([gpu_mode(GPU, 2)], [90.0], preemptible=False)))
    fixed.mode = 0
    launch.stage = "compute"
    assert not scheduler._may_stop(fixed, view)


def test_prices_of_types():
    kinds = [DeviceType("a", price=Price(2 / 3600, 1 / 3600)), DeviceType("b"), DeviceType("c")]
    cluster = Cluster([NodeSpec(accelerators=tuple((kind, 1) for kind in kinds))])
    found = prices(cluster, {"b": 5.0})
    assert {name: found[name] for name in "abc"} == pytest.approx({"a": 2.0, "b": 5.0, "c": 1.0})


# Two on one GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("modes", "more", "chosen"), [
    ([0.25, 0.5], {}, 0), ([0.5, 0.25], {}, 0), ([0.75, 0.25], {}, 1), ([0.75], {}, None), ([1], {}, None),
    ([0.5], {"stage": "upload"}, None), ([0.5], {"preemptible": False}, None), ([0.5], {"reads": (1,)}, None),
    ([0.5], {"writes": (1,)}, None), ([0.5], {"millicores": 1001}, None), ([0.5], {"millicores": 1000}, 0),
    ([0.5], {"memory": 11}, None), ([0.5], {"gpu_memory": 6}, None), ([0.5], {"gpu_memory": 5}, 0),
    ([0.5], {"theirs": 501}, None), ([0.5], {"theirs": 1000, "millicores": 500}, 0),
    ([0.5], {"theirs": 1001, "millicores": 500}, None),
])  # fmt: skip
def test_the_fraction_to_which_a_partner_moves(modes: list[float], more: dict[str, Any], chosen: int | None):
    """It has a whole GPU of 8 bytes of memory, a core and 10 bytes of the host, where half a core is free.  The
    newcomer needs half of the GPU and 3 bytes of it."""
    kind = DeviceType("g", memory=8)
    device = Cluster([NodeSpec(cpus=4, accelerators=((kind, 1),))]).nodes[0].accelerators[0]
    host = {name: more[name] for name in ("memory", "gpu_memory") if name in more}
    own = [gpu_mode(kind, share, millicores=more.get("millicores", 1000), **host) for share in modes]
    own.append(gpu_mode(OTHER, 0.25))
    now = Placement(gpu_mode(kind, millicores=1000, memory=10, gpu_memory=7), (device,))
    newcomer = gpu_mode(kind, 0.5, millicores=more.get("theirs", 500), gpu_memory=3)
    partner: Any = SimpleNamespace(
        fastest_modes=lambda: own, reads=more.get("reads", ()), writes=more.get("writes", ()),
        shape=SimpleNamespace(preemptible=more.get("preemptible", True)),
    )  # fmt: skip
    launch = SimpleNamespace(placement=now, stage=more.get("stage", "compute"))
    view: Any = SimpleNamespace(free=lambda *_: 0.5, launch_of=lambda _: launch)
    found = _smaller(partner, newcomer, view)
    assert found == (None if chosen is None else Placement(own[chosen], (device,)))


@pytest.mark.parametrize(("gpus", "time"), [(1, 10.0), (2, 25.0), (3, 40.0), (4, 50.0), (5, math.inf)])
def test_when_a_node_will_be_empty_enough(gpus: int, time: float):
    """It is 10 s.  Four GPUs are free from 10, 30, 40 and 50 s on, two of another node from 20 and 25 s on."""
    nodes = Cluster([NodeSpec(accelerators=((GPU, 4), (OTHER, 9))), NodeSpec(accelerators=((GPU, 2),))]).nodes
    first, second = nodes[0].accelerators, nodes[1].accelerators
    rows = [((first[1],), 30.0), ((first[1], first[2]), 20.0), ((first[2],), 40.0), ((first[3],), 50.0),
            ((second[0],), 20.0), ((second[1],), 25.0)]  # fmt: skip
    launches = [SimpleNamespace(placement=SimpleNamespace(devices=devices), finish=end) for devices, end in rows]
    view: Any = SimpleNamespace(now=10.0, running=lambda *_, **__: range(len(rows)), launch_of=launches.__getitem__,
                                cluster=SimpleNamespace(nodes=nodes))  # fmt: skip
    assert empty_at(gpu_mode(GPU, gpus), view) == time


def test_the_sum_of_both_finish_times():
    """2 and 6 s, 1.5 and 2 times slower: 3 s, and then 6 - 3 / 2 s more.  A save of 1 s comes before, if it moves."""
    policy = SharingByTable({"a": {"b": 1.5}, "b": {"a": 2.0}})
    ours, theirs = object(), object()
    one: Any = SimpleNamespace(class_="a")
    other: Any = SimpleNamespace(class_="b", shape=SimpleNamespace(stopping=Stopping(save=1.0)))
    mode = gpu_mode(GPU, 0.5)
    launch = SimpleNamespace(placement=SimpleNamespace(mode=mode), finish=16.0)
    place, moved = SimpleNamespace(mode=mode, of=ours), SimpleNamespace(mode=mode, of=theirs)
    view: Any = SimpleNamespace(now=10.0, launch_of=lambda _: launch,
                                duration=lambda _, where: 2.0 if where.of is ours else 5.0)  # fmt: skip
    for there in (None, moved):
        pair: Any = SimpleNamespace(partner=other, moved=there, place=place)
        assert policy.together(one, pair, view) == pytest.approx(3 + 3 + 4.5)
    policy.table["b"]["a"] = math.inf
    assert policy.together(one, pair, view) == math.inf


# Which mode, which node -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("measure", ["energy", "cost"])
def test_modes_within_a_budget_by_loops(seed: int, measure: Any):
    """At most 1.5 times the least; the gain of a mode is the time saved against the slowest, a device-second."""
    random = np.random.default_rng(seed)
    kinds = [DeviceType(name, power=Power(idle=10.0 * n, busy=100.0 + 70 * n)) for n, name in enumerate("abc")]
    modes = [gpu_mode(kind, size) for kind in kinds for size in (1, 2)]
    seconds = random.integers(2, 12, 6).astype(float)
    policy = MultiGeneration(budget=1.5, measure=measure)
    policy._prices = {"a": 1.0, "b": 2.5, "c": 4.0}
    task = task_of(Job(modes, seconds.tolist()))
    per_second = [m.gpus * (m.type.power.busy - m.type.power.idle if measure == "energy" else
                            policy._prices[m.type.name]) for m in modes]  # fmt: skip
    price = [a * b for a, b in zip(per_second, seconds, strict=True)]
    within = [p for p in range(6) if price[p] <= 1.5 * min(price) + 1e-6]
    slowest = max(seconds[p] for p in within)
    gains = {p: (slowest - seconds[p]) / (seconds[p] * modes[p].gpus) for p in within}
    found = policy.ways(task)
    assert {p: gain for gain, p in found} == pytest.approx(gains)
    assert [gain for gain, _ in found] == sorted(gains.values(), reverse=True)
    task.allowed = (2, 3)
    assert {p for _, p in policy.ways(task)} <= {2, 3}
    assert policy.ways(task_of(Job([modes[0]], [0.0]))) == [(math.inf, 0)]


def test_how_alike_two_jobs_are():
    """Speeds by type are 1 and 1/2, and 1/4 and 1: the cosine of the angle between; the best mode of a type counts."""

    def job(class_: str, *times: float) -> Any:
        modes = [gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(OTHER)][: len(times)]
        by_mode = dict(zip(modes, times, strict=True))
        return SimpleNamespace(class_=class_, modes=modes, shortest_estimate=min(times), estimate_in=by_mode.get)

    one, other = job("a", 9.0, 2.0, 4.0), job("b", 8.0, 8.0, 2.0)
    cosine = (1 * 0.25 + 0.5 * 1) / (math.hypot(1, 0.5) * math.hypot(0.25, 1))
    assert likeness(one, other) == likeness(other, one) == pytest.approx(cosine)
    assert likeness(one, job("a", 1.0)) == 1 and likeness(job("", 3.0, 9.0), job("", 1.0)) == pytest.approx(1)
    assert likeness(one, one) == pytest.approx(1)


def test_the_place_of_a_task_between_cores_and_accelerators():
    """By acceleration, then by priority and distance from the end: nearest the side that gains; then as they came."""
    kind = DeviceType("cpu", kind="cpu")
    modes = [cpu_mode(kind), cpu_mode(kind, 2), gpu_mode(GPU), gpu_mode(OTHER)]
    jobs = [Job(modes, [9.0, 8.0, 4.0, 2.0], priority=3.0), Job(modes, [1.0, 2.0, 4.0, 8.0], priority=3.0),
            Job(modes[:1], [5.0]), Job(modes[2:3], [5.0]), Job(modes, [2.0, 3.0, 2.0, 9.0], priority=1.0),
            Job(modes[1:3], [3.0, 0.0])]  # fmt: skip
    tasks = [task_of(*jobs, row=row) for row in range(len(jobs))]
    assert [best_times(task) for task in tasks] == [
        (8, 2), (1, 4), (5, math.inf), (math.inf, 5), (2, 2), (3, 0),
    ]  # fmt: skip
    policy = HeteroPrio()
    policy._levels = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0]
    assert [policy.key(task)[:3] for task in tasks] == [
        (-4, -3, -7), (-0.25, 3, 6), (0, 0, 5), (-math.inf, 0, -4), (-1, -1, -3), (-math.inf, 0, -2),
    ]  # fmt: skip
    tasks[0].ready = 9.0
    assert policy.key(tasks[0])[3:] == (9, 0) and policy.key(tasks[1])[3:] == (0, 1)
    policy._levels = []
    assert policy.key(tasks[0])[2] == 0


def test_lanes_that_a_launch_takes():
    """A core each, begun ones too; of a GPU one, or twelfths where a type has fractions."""
    kind, line = DeviceType("cpu", kind="cpu"), Eft()
    line.study(tasks_of([Job([gpu_mode(GPU, 0.5), gpu_mode(OTHER)], [1.0, 1.0])]))
    cores = [cpu_mode(kind), cpu_mode(kind, 3)] + [replace(cpu_mode(kind), millicores=n) for n in (1, 1001, 0)]
    assert [line.need(mode) for mode in cores] == [1, 3, 1, 2, 1]
    shares = [1, 0.5, 0.25, 1 / 3, 0.01, 0.999]
    assert [line.need(gpu_mode(GPU, share)) for share in shares] == [12, 6, 3, 4, 1, 11]
    assert line.need(gpu_mode(OTHER, 2)) == 1 and (line.unit(GPU), line.unit(OTHER)) == (12, 1)


def test_devices_of_a_gang_that_a_host_can_feed():
    nodes = Cluster([NodeSpec(cpus=3, memory=10), NodeSpec(cpus=3)]).nodes
    for mode, expected in ((gpu_mode(GPU, 4), (4, 4)), (gpu_mode(GPU, 4, millicores=4000), (3, 3)),
                           (gpu_mode(GPU, 4, memory=16), (2, 4)), (gpu_mode(GPU, 4, millicores=6000, memory=8), (2, 2)),
                           (gpu_mode(GPU, 4, millicores=1000, memory=40), (1, 4))):  # fmt: skip
        assert tuple(_share_of(node, mode) for node in nodes) == expected


@pytest.mark.parametrize(("gpus", "cores", "expected"), [
    (1, 0, [1]), (2, 0, [1]), (3, 0, [3, 4]), (4, 0, []), (2, 2000, [3]), (1, 2001, []),
])  # fmt: skip
def test_the_fewest_sleeping_accelerators_are_woken(gpus: int, cores: int, expected: list[int]):
    """Of the three of the first node one is free, one sleeps and one is down; of the other's one is free, two sleep.
    The first node has a core free, the other one two."""
    kind = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=4))
    cluster = Cluster([NodeSpec(cpus=4, accelerators=((kind, 3),), count=2)])
    devices = [device for node in cluster.nodes for device in node.accelerators]
    number = {device.index: place for place, device in enumerate(devices)}
    policy = PowerDown()
    policy.asleep = {devices[place].index: devices[place] for place in (4, 1, 3)}
    policy._down = {devices[2].index}
    task: Any = SimpleNamespace(fastest_modes=lambda: [gpu_mode(kind, gpus, millicores=cores)])
    view: Any = SimpleNamespace(cluster=cluster, load=lambda device: 0.0, free=lambda _, node: 1.0 + node)
    assert [number[device.index] for device in policy._to_wake(task, view)] == expected
    task.fastest_modes = lambda: [gpu_mode(kind, 5, span_any=True)]
    assert [number[device.index] for device in policy._to_wake(task, view)] == [1, 3, 4]


# Users ------------------------------------------------------------------------------------------------------------


def test_what_is_taken_back_from_borrowers():
    """Of users beyond their quotas, until they are within: the latest start first, lower tiers before all others."""

    def job(user: str, tier: str) -> Any:
        return SimpleNamespace(user=user, label=lambda _: tier, class_="")

    policy = QuotaBorrow({"u": 3.0, "v": 1.0, "w": 2.0}, tiers={"high": 2.0, "low": -1.0})
    started = [job("u", ""), job("v", "high"), job("u", ""), job("w", ""), job("v", ""), job("u", "low"),
               job("v", "")]  # fmt: skip
    for number, task in enumerate(started):
        task.index = number
        policy._of[number] = task, 2.0
        policy.used[task.user] = policy.used.get(task.user, 0.0) + 2.0
    offered: list[int] = []

    def make_room(_: Any, victims: Any) -> Any:
        offered.extend(task.index for task in victims)
        return ("there", started[5:6])

    policy.place = lambda *_: "placed"
    decided = policy._take_back(job("w", ""), SimpleNamespace(make_room=make_room))
    assert next(decided).task is started[5] and offered == [5, 6, 4, 2, 1]
    with pytest.raises(StopIteration) as end:
        next(decided)
    assert end.value.value == "placed"


def test_what_is_learnt_from_a_job():
    """20 GPU-seconds on two GPUs are 10 s of the user's; what was predicted is compared with that."""
    policy = Qssf(default=4.0)
    seen: list[Any] = []
    policy.history.observe = lambda *told: seen.append(told)
    policy.begin(SimpleNamespace(attained=lambda _: 20.0))
    task: Any = task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 2)], [8.0, 5.0]))
    policy._said[0] = 4.0
    policy.finished(task)
    assert seen == [(task.user, task.class_, 10.0)] and not policy._said
    policy.finished(task)  # it was never predicted
    assert len(seen) == 1


@pytest.mark.parametrize(("busy", "order"), [(3.0, [1, 3, 2]), (3.1, [3, 2, 1])])
def test_the_newest_goes_first_once_the_queue_stands(busy: float, order: list[int]):
    """Tasks wait from 1 s on, so that the queue stands after 3 s: at 3 s the oldest starts, later the newest."""
    late = [Job([gpu_mode(GPU)], [0.01], arrival) for arrival in (1.0, 1.5, 2.5)]
    record = simulate(NodeSpec(accelerators=((GPU, 1),)), [Job([gpu_mode(GPU)], [busy]), *late], AdaptiveLifo(2.0))
    assert sorted((1, 2, 3), key=lambda row: record.start[row]) == order


# What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Wfp3(discipline="keep"), "keep needs a fixed order"),
    (lambda: MaxMinFairness(0.0), "round_length must be above 0; got 0 s"),
    (lambda: FairTree({"a": Account(parent="b")}, {}), 'the parent of account a must be one of the accounts; got'),
    (lambda: FairTree({"a": Account(parent="b"), "b": Account(parent="a")}, {}), "a → b → a"),
    (lambda: Tiers({"a": Tier(preempts=("b",))}), 'qos a must preempt one of a'),
    (lambda: SlurmMultifactor(usage={"u": 1.0}, accounts={"a": Account()}), 'usage must have users as ACCOUNT/USER'),
    (lambda: check_costs({"x": 1.0}, Cluster([NodeSpec(accelerators=((GPU, 1),))])), 'no type "x"; it has .*g'),
    (lambda: check_costs({"p": 1.0}, Cluster([NodeSpec(accelerators=((PRICED, 1),))])),
        'must be given once: here or in the cluster'),
    (lambda: MultiGeneration(costs={"g": 1.0}), "costs need `measure: cost`; set it, or leave costs out"),
    (lambda: Priority(preemptive=True).serve([], True), "a preemptive scheduler cannot serve requests: batches "
                                                        "cannot be preempted"),
    (lambda: MaxThroughput(costs="prices").check(problem_on(GPU)), "give them a price such as 2.5/h"),
    (lambda: MaxMinFairness(pairs=True).check(problem_on(GPU)), "pairs: true needs a GPU type with measured "
                                                                "pairs; give one streams: 2 and"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(make: Any, says: str):
    with pytest.raises((ValueError, ScenarioError), match=says):
        make()


def problem_on(kind: DeviceType) -> Any:
    return SimpleNamespace(cluster=Cluster([NodeSpec(accelerators=((kind, 1),))]))


def test_prices_count_where_the_cluster_has_them():
    MaxThroughput(costs="prices").check(problem_on(PRICED))
    MaxThroughput(costs={"g": 1.0}).check(problem_on(GPU))
    with pytest.raises(ScenarioError, match='the price of "p" must be given once'):
        MaxThroughput(costs={"p": 1.0}).check(problem_on(PRICED))


# Where a device is down -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eft", "dmda", "dmdas", "er_ls", "lws"])
def test_a_task_that_leaves_while_no_device_is_up(name: str):
    """The only GPU is down until 10 s.  One task gives up at 5 s; the other starts at 10 s, and nothing waits then."""
    spec = NodeSpec(cpus=1, accelerators=((GPU, 1),))
    gpu = Cluster([spec]).nodes[0].accelerators[0].index
    faults: Any = [FaultEvent(0.0, gpu, "down"), FaultEvent(10.0, gpu, "up")]
    jobs = [Job([gpu_mode(GPU)], [2.0], expires=5.0), Job([gpu_mode(GPU)], [3.0], 1.0)]
    policy = registry.policy("scheduler", name)()
    record = simulate(spec, jobs, policy, faults=faults)
    assert math.isnan(record.start[0]) and record.start[1] == 10
    assert getattr(policy, "waiting", 0) == 0


def test_first_come_first_served_in_rounds_passes_what_no_device_is_up_for():
    """The first job's type is down until 30 s; the second one, of the other type, does not wait for it."""
    spec = NodeSpec(accelerators=((GPU, 1), (OTHER, 1)))
    gpu = Cluster([spec]).nodes[0].accelerators[0].index
    faults: Any = [FaultEvent(0.0, gpu, "down"), FaultEvent(30.0, gpu, "up")]
    jobs = [Job([gpu_mode(GPU)], [5.0]), Job([gpu_mode(OTHER)], [5.0]), Job([gpu_mode(OTHER)], [5.0])]
    record = simulate(spec, jobs, FcfsRounds(10.0), faults=faults)
    assert record.start.tolist() == [30, 0, 10]  # a new round begins then


def test_devices_that_draw_as_much_asleep_never_sleep():
    kind = DeviceType("g", power=Power(idle=50, busy=250, sleep=50, wake=4))
    jobs = [Job([gpu_mode(kind)], [5.0]), Job([gpu_mode(kind)], [4.0], 1.0), Job([gpu_mode(kind)], [3.0], 99.0)]
    record = simulate(NodeSpec(accelerators=((kind, 1),)), jobs, PowerDown(patience=1.0))
    assert record.start.tolist() == [0, 5, 99] and not record.device_log


# Longer lists, odd states -----------------------------------------------------------------------------------------


def test_tasks_that_are_worth_a_restart():
    """Of 90 that run on their worse side those whose time has not passed and that still run from that start on."""
    policy, jobs = HeteroPrio(), [Job([gpu_mode(GPU)], [1.0])] * 90
    tasks = [task_of(*jobs, row=row) for row in range(90)]
    shape = tasks[0].shape
    here = policy._misplaced[0].setdefault(shape, {})
    for task in tasks:
        task.ticket, task.shape = task.index % 3, shape
        if task.index % 2:
            here[task.index] = task
        heappush(policy._worth[0], (-float(task.index), task.index, 1, task))
    found = policy._worth_it(0, 50.0)
    assert sorted(task.index for task in found) == [row for row in range(51, 90) if row % 2 and row % 3 == 1]
    assert {task.index for task in policy._worth_it(0, 60.5)} == {task.index for task in found if task.index > 60}
    later = tasks_of(jobs)
    more = [Task(row, 0.0, shape, (1.0,), (1.0,), later) for row in range(100, 200)]
    for task in more:
        heappush(policy._worth[0], (-10.0, task.index, task.ticket, task))
    policy._worth_it(0, 20.0)
    kept = {entry[1] for entry in policy._worth[0]}
    assert kept == {row for row in range(90) if row % 2 and row % 3 == 1} and policy._limit == 64
    assert policy._worth[1] == []


@pytest.mark.parametrize("seconds", [0.0, 8.0])
def test_how_much_of_a_job_is_done(seconds: float):
    """Of 8 s on two GPUs 6 s are left: a quarter is done.  A job without a length is done, one that waits as it was."""
    task = task_of(Job([gpu_mode(GPU, 2, span_any=True)], [seconds]))
    policy, node = LasIntervals(), Cluster([NodeSpec(accelerators=((GPU, 2),), count=2)]).nodes
    policy._kind, task.done = "g", 0.5
    devices = (node[0].accelerators[1], node[1].accelerators[0])
    launch = SimpleNamespace(placement=Placement(task.modes[0], devices))
    view: Any = SimpleNamespace(launch_of=lambda _: launch, remaining=lambda _: 6.0, attained=lambda _: 3.0)
    waits = policy._job(task, view)
    assert (waits.done, waits.share, waits.attained) == (0.5, {}, 3.0)
    task.state = RUNNING
    runs = policy._job(task, view)
    assert (runs.done, runs.share) == (0.25 if seconds else 1.0, {0: 1, 1: 1})


def test_a_worker_is_chosen_although_none_is_up():
    """In turn, each task to the next; one that ended last gives its successors to its own worker."""
    spec = NodeSpec(cpus=1, accelerators=((GPU, 2),))
    policy, cluster = Lws(), Cluster([spec])
    policy.begin(SimpleNamespace(cluster=cluster))
    policy.prepare(SimpleNamespace(tasks=SimpleNamespace(predecessors=[(), (), (), (1,), ()])))
    task = task_of(Job([gpu_mode(GPU)], [1.0]))
    assert [policy._home(task).number for _ in range(4)] == [1, 1, 2, 1]  # the first worker is the cores
    task.index, policy._last = 3, (1, policy.workers[2])
    assert [policy._home(task).number for _ in range(2)] == [2, 2]
    policy._last = (2, policy.workers[2])
    assert policy._home(task).number == 1
    for worker in policy.workers:
        worker.up = False
    assert policy._home(task).number == 2
    policy.workers[1].up = True
    assert policy._home(task).number == 1
    policy._running[1] = policy.workers[1:]
    policy.finished(task_of(*[Job([gpu_mode(GPU, 2)], [1.0])] * 2, row=1))
    assert policy._last == (1, policy.workers[1])  # the first of a gang


def test_usage_received_before_counts_for_the_shares():
    """The user that has received much goes last, with accounts and without; a user alone is a member of no account."""
    labels = {"account": np.array(["x", "y", "x"], dtype=object)}
    for usage, accounts in (({"u": 1e4, "v": 1.0}, None), ({"x/u": 1e4, "y/v": 1.0}, {"x": Account(), "y": Account()})):
        jobs = tasks_of([Job([gpu_mode(GPU)], [5.0]), Job([gpu_mode(GPU)], [5.0]), Job([gpu_mode(GPU)], [5.0])])
        tasks = replace(jobs, users=["u", "v"], user_code=np.array([0, 1, 0]), extra=labels)
        policy = SlurmMultifactor(fair_share=1.0, usage=usage, accounts=accounts)
        record = simulate(NodeSpec(accelerators=((GPU, 1),)), tasks, policy)
        assert record.start.tolist() == [5, 0, 10]
    policy = SlurmMultifactor(usage={"u": 3.0})
    assert policy._usage_before == {("", "u"): 3.0}
    policy = SlurmMultifactor(usage={"x/": 3.0, "x/v": 2.0}, accounts={"x": Account()})
    assert policy._usage_before == {("x", "(no user)"): 3.0, ("x", "v"): 2.0}


def test_usage_counts_from_the_start_of_a_job():
    """Priorities are computed at 0 s and from 5 s on.  By 6 s the first user has received 6 s, the other one 1 s and,
    from 3 s on, 3 s more: its job goes first, although it came later."""
    one = [gpu_mode(GPU)]
    jobs = [Job(one, [6.0]), Job(one, [1.0]), Job(one, [6.0], 3.0), Job(one, [5.0], 4.0), Job(one, [5.0], 4.5)]
    tasks = replace(tasks_of(jobs), users=["u", "v"], user_code=np.array([0, 1, 1, 0, 1]))
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), tasks, SlurmMultifactor(fair_share=1.0, calc_period=5.0))
    assert record.start.tolist() == [0, 0, 3, 9, 6]


def test_requests_to_language_models_are_not_preempted():
    """Of two tasks and a request that rank behind, the tasks, the one that ranks last first."""
    jobs = [Job([gpu_mode(GPU)], [5.0], priority=priority) for priority in (2.0, 1.0, 0.0, 4.0)]
    tasks = [task_of(*jobs, row=row) for row in range(4)]
    policy = Priority(preemptive=True)
    view: Any = SimpleNamespace(running=lambda by, own=False: [*tasks[:2], tasks[3]] if own else tasks)
    for task in tasks:
        policy.starting(task, Placement(task.modes[0], ()), view)
    assert policy.victims(-3.0, view) == [tasks[1], tasks[0]]
    assert policy._worst == -1 and policy.victims(-1.0, view) == () and policy.victims(-1.5, view) == [tasks[1]]


def test_a_base_asks_for_what_it_lacks():
    """Each of these has to be said by a policy."""
    task: Any = None
    for call in (
        lambda: RoundScheduler().fractions(task, task, task), lambda: AssigningScheduler().make_lines(task),
        lambda: AssigningScheduler().assign(task, task), lambda: EarliestLine().expected(task, task, 0.0, task),
        lambda: Elastic().gain(task, 0.0), lambda: AtIntervals().deal(task, task, task),
        lambda: ByUser().standing("u"), lambda: Waited().urgency(task, task, task), lambda: Waited.schedgym(task),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError):
            call()


# Packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shortness", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_packing_by_alignment_by_loops(seed: int, shortness: float):
    """Each start goes to the demand and node of greatest alignment, less the price of the work, until none fits."""
    random = np.random.default_rng(seed)
    specs = [NodeSpec(cpus=cpus, memory=memory, accelerators=((GPU, gpus),))
             for cpus, memory, gpus in ((8, 30, 2), (6, 50, 4), (12, 20, 3))]  # fmt: skip
    demands = [(int(random.integers(1, 4)), int(random.integers(2, 12)), int(random.integers(1, 3))) for _ in range(3)]
    modes = [gpu_mode(GPU, gpus, millicores=1000 * cores, memory=memory) for cores, memory, gpus in demands]
    kinds = random.integers(0, 3, 12).tolist()
    seconds = random.permutation(np.arange(20.0, 32.0)).tolist()
    jobs = [Job([modes[kind]], [time]) for kind, time in zip(kinds, seconds, strict=True)]
    record = simulate(specs, jobs, Tetris(shortness=shortness))
    largest = (12, 50, 4)
    free = [[8, 30, 2], [6, 50, 4], [12, 20, 3]]
    lines = {kind: [row for row in range(12) if kinds[row] == kind] for kind in range(3)}
    if shortness:
        lines = {kind: sorted(rows, key=seconds.__getitem__) for kind, rows in lines.items()}
    place: dict[int, int] = {}
    while True:
        fitting = []
        for kind, rows in lines.items():
            need = demands[kind]
            nodes = [n for n in range(3) if all(a <= b for a, b in zip(need, free[n], strict=True))]
            if rows and nodes:
                fits = {n: sum(a / c * b / c for a, b, c in zip(need, free[n], largest, strict=True)) for n in nodes}
                node = max(nodes, key=lambda n: (round(fits[n], 9), -n))
                work = seconds[rows[0]] * sum(a / c for a, c in zip(need, largest, strict=True))
                fitting.append((fits[node], work, kind, node))
        if not fitting:
            break
        price = shortness * sum(one[0] for one in fitting) / sum(one[1] for one in fitting)
        _, _, kind, node = max(fitting, key=lambda one: one[0] - price * one[1])
        place[lines[kind].pop(0)] = node
        free[node] = [b - a for a, b in zip(demands[kind], free[node], strict=True)]
    started = {row: record.places[record.place[row]][0][0] for row in range(12) if record.start[row] == 0}
    device_node = {device.index: node.index for node in Cluster(specs).nodes for device in node.accelerators}
    assert {row: device_node[device] for row, device in started.items()} == place
    assert 3 < len(place) < 12


# Turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantum", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("gpus", [1, 2])
def test_turns_second_by_second(quantum: float, gpus: int):
    """A turn that is over ends when a task waits; then it joins the tail.  All times are whole seconds."""
    random = np.random.default_rng(gpus)
    arrival = np.sort(random.integers(0, 9, 5)).tolist()
    seconds = random.integers(1, 8, 5).tolist()
    jobs = [Job([gpu_mode(GPU)], [float(t)], float(a)) for a, t in zip(arrival, seconds, strict=True)]
    record = simulate(NodeSpec(accelerators=((GPU, gpus),)), jobs, RoundRobin(quantum))
    left, finish = dict(enumerate(seconds)), {}
    queue: list[int] = []
    turns: dict[int, int] = {}
    """Seconds of the turn of each that runs, in the order of their starts."""
    for now in range(60):
        for row in list(turns):
            if left[row] == 0:
                finish[row] = now
                del turns[row]
        queue += [row for row in range(5) if arrival[row] == now]
        while queue:
            if len(turns) == gpus:
                over = next((row for row, turn in turns.items() if turn >= quantum), None)
                if over is None:
                    break
                del turns[over]
                queue.append(over)
            turns[queue.pop(0)] = 0
        for row in turns:
            turns[row] += 1
            left[row] -= 1
    assert record.finish.tolist() == [finish[row] for row in range(5)]


def test_a_lease_that_ends_goes_to_the_job_that_is_worst_off():
    """One GPU, leases of 4 s.  At 4 s the newcomer of 1 s has waited 3 s: its ratio, (3 + 1) / 2, is above that of the
    job of 10 s, 10 / 20; so it runs from 4 to 5 s.  The third, of 8 s, comes at 3 s: 9 / 24 against 10 / 30."""
    jobs = [Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU)], [1.0], 1.0), Job([gpu_mode(GPU)], [8.0], 3.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Themis(lease=4.0))
    assert record.start[1] == 4 and record.finish[1] == 5
    assert record.preemptions is not None and record.preemptions[1] == 0
    alone = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs[:1], Themis(lease=4.0))
    assert alone.finish.tolist() == [10] and alone.preemptions is None


# Rounds: what is offered, and who is chosen -----------------------------------------------------------------------


def test_what_is_offered_to_the_programs():
    """A mode on each type with devices that are up: of GPUs all but one that is down and one that a replica keeps; no
    node counts whose cores are down."""
    cluster = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 3), (OTHER, 1)), count=2), NodeSpec(cpus=2)])
    nodes, kind = cluster.nodes, cluster.nodes[0].cpu.type
    scheduler = MaxMinFairness(10.0)
    modes = [gpu_mode(GPU), gpu_mode(GPU, 3), cpu_mode(kind, 6), gpu_mode(OTHER, 0.5)]
    jobs = [RoundJob(task_of(Job(modes, [8.0, 4.0, 16.0, 0.0]))), RoundJob(task_of(Job(modes[1:2], [math.inf]))),
            RoundJob(task_of(Job(modes[:2], [3.0, 2.0])))]  # fmt: skip
    jobs[2].task.allowed = (1,)
    scheduler._down = {nodes[0].accelerators[1].index}
    scheduler._held = {nodes[1].accelerators[0].index: None}
    offers, ways = scheduler.offers(jobs, cluster)
    kinds = list(cluster.types)
    assert {name: offers.capacity[number] for number, name in enumerate(kinds)} == {"g": 4, "h": 2, kind.name: 10}
    assert ways == [0, 1, 2, 3, 1] and offers.job.tolist() == [0, 0, 0, 0, 2]
    assert [kinds[number] for number in offers.kind] == ["g", "g", kind.name, "h", "g"]
    assert offers.width.tolist() == [1, 3, 6, 0.5, 3] and offers.time.tolist() == [8, 4, 16, 1e-9, 2]
    assert offers.weight.tolist() == [1, 1, 1]
    scheduler._down.add(nodes[1].cpu.index)
    offers, ways = scheduler.offers(jobs, cluster)
    assert {name: offers.capacity[number] for number, name in enumerate(kinds)} == {"g": 2, "h": 1, kind.name: 6}
    assert ways == [0, 2, 3] and offers.job.tolist() == [0, 0, 0]
    assert len(scheduler.offers([], cluster)[0].job) == 0


@pytest.mark.parametrize("spare", [True, False])
def test_who_is_chosen_for_a_round(spare: bool):
    """The most urgent way first, each job once, while there are devices; without spare ones only what lags."""
    random = np.random.default_rng(int(spare))
    scheduler = MaxMinFairness(10.0, "deficit")
    scheduler.spare = spare
    modes = [gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(OTHER)]
    for row in range(8):
        job = scheduler.jobs[row] = RoundJob(task_of(*[Job(modes, [8.0, 4.0, 6.0])] * 8, row=row))
        job.target = random.choice([0.0, 0.25, 0.5, 1.0], 3).tolist()
        job.due = random.integers(0, 20, 3).astype(float).tolist()
        job.received = random.integers(0, 20, 3).astype(float).tolist()
    lag = {(row, p): job.due[p] + 10 * job.target[p] - job.received[p] for row, job in scheduler.jobs.items()
           for p in range(3)}  # fmt: skip
    due = {(row, p): scheduler.jobs[row].due[p] + 10 * scheduler.jobs[row].target[p] for row, p in lag}
    kept = {2: None}
    wanted = [way for way in lag if scheduler.jobs[way[0]].target[way[1]] > 0 and way[0] not in kept]
    wanted = [way for way in wanted if spare or lag[way] >= 5]
    free, expected = {"g": 4.0, "h": 1.0}, []
    for row, p in sorted(wanted, key=lambda way: (-lag[way], -due[way], way)):
        if row not in [one for one, _ in expected] and modes[p].gpus <= free[modes[p].type.name]:
            free[modes[p].type.name] -= modes[p].gpus
            expected.append((row, p))
    given = {"g": 4.0, "h": 1.0}
    found = scheduler._choose(given, kept)
    assert [(job.task.index, position) for job, position in found] == expected and given == free


def test_all_run_in_their_fastest_modes():
    """Or in one that is as fast; a job that waits, or could be faster, is not content."""
    scheduler = MaxMinFairness(10.0)
    job = scheduler.jobs[0] = RoundJob(
        task_of(Job([gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(OTHER)], [4.0, 6.0, 4.0]))
    )
    for mode, content in ((-1, False), (0, True), (1, False), (2, True)):
        job.mode = mode
        assert scheduler._content() is content
    job.task.allowed, job.mode = (1,), 1
    assert scheduler._content()


def test_a_program_is_asked_again_only_when_something_has_changed():
    """At 10 s a job has come, and at 40 s one has ended; the one that is left then runs in its fastest mode."""
    asked: list[tuple[float, int]] = []

    class Noted(MaxMinFairness):
        def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
            asked.append((view.now, len(jobs)))
            return super().fractions(offers, jobs, view)

    jobs = [Job([gpu_mode(GPU)], [12.0]), Job([gpu_mode(GPU)], [40.0]), Job([gpu_mode(GPU)], [45.0], 5.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Noted(10.0))
    assert asked == [(0, 2), (10, 3), (40, 2)]
    assert record.finish.max() == pytest.approx(97)


# Devices that fail ------------------------------------------------------------------------------------------------


def test_devices_that_fail_do_not_count_as_asleep():
    """What the policy itself put to sleep is not down, and cores never are."""
    node = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 2),))]).nodes[0]
    first, second = node.accelerators
    policy = PowerDown()
    policy.asleep = {second.index: second}
    for device in (first, second, node.cpu):
        policy.device(device, False)
    assert policy._down == {first.index}
    policy.asleep.clear()
    policy.device(second, False)
    policy.device(first, True)
    assert policy._down == {second.index}


def test_until_when_a_mode_has_room():
    """Two GPUs on each of two nodes, taken until 10 and 20 s, and again from 30 s on the second; none is open now."""
    cluster = Cluster([NodeSpec(accelerators=((GPU, 2),), count=2)])
    running = {row: SimpleNamespace(index=row) for row in range(3)}
    modes = {0: gpu_mode(GPU, 2), 1: gpu_mode(GPU, 2), 2: gpu_mode(GPU)}
    where = {row: Placement(modes[row], tuple(cluster.nodes[row % 2].accelerators[: modes[row].gpus])) for row in modes}
    ends = {0: 10.0, 1: 20.0, 2: math.inf}
    launches = {row: SimpleNamespace(placement=where[row], finish=ends[row], tasks=[running[row]]) for row in (0, 1)}
    view: Any = SimpleNamespace(now=5.0, cluster=cluster, changes=SimpleNamespace(launches=2, steady=True))
    view.running = lambda *_, **__: [running[row] for row in launches]
    view.launch_of = lambda task: launches[task.index]
    occupancy = Occupancy(view)
    occupancy.update()
    single = gpu_mode(GPU)
    assert FreeProfile(occupancy, view).open_until(single) == -math.inf
    assert occupancy.by_first_time(single) == [(10, 0), (20, 1)]
    view.now = 10.0
    occupancy.ended(running[0])
    del launches[0]
    occupancy.update()
    profile = FreeProfile(occupancy, view)
    assert profile.open_until(single) == math.inf and occupancy.by_first_time(single) == [(10, 0), (20, 1)]
    profile.occupy(Reservation(12.0, 15.0, gpu_mode(GPU, 2), ((0, 2),)))
    assert profile.open_until(single) == 12
    kept = occupancy.timelines
    ends[2] = 11.0
    launches[2] = SimpleNamespace(placement=where[2], finish=11.0, tasks=[running[2]])
    occupancy.started(running[2])
    view.changes.launches = 3
    occupancy.update()
    assert occupancy.timelines is kept and sorted(occupancy.runs) == [1, 2]  # only what has changed is looked at
    assert occupancy.by_first_time(gpu_mode(GPU, 2)) == [(11, 0), (20, 1)]
    view.changes.launches = 4  # something that it was not told of
    occupancy.update()
    assert occupancy.timelines is not kept
    short, longer = (task_of(Job([single], [seconds])) for seconds in (2.0, 2.5))
    assert profile.could_start(short) and not profile.could_start(longer)
    longer.done = 0.25
    assert profile.could_start(longer)
    found = profile.find(short, view)
    assert found is not None and found == (10.0, 12.0, single, ((0, 1),))
    longer.done = 0.0
    found = profile.find(longer, view)
    assert found is not None and found == (15.0, 17.5, single, ((0, 1),))
    both = task_of(Job([gpu_mode(GPU, 3, span_any=True)], [4.0]))
    found = profile.find(both, view)
    assert found is not None and (found.time, found.nodes) == (20.0, ((0, 2), (1, 1)))
    assert profile.open_until(both.modes[0]) == math.inf


# Pairs and moves, offer by offer ----------------------------------------------------------------------------------


def test_the_pairs_that_a_task_could_form():
    """Of what runs: one on a half, one on a whole GPU that could move to a quarter, one of two GPUs, two on one GPU,
    one on another type, and one next to which nothing fits."""
    kind = DeviceType("g", memory=8)
    cluster = Cluster([NodeSpec(cpus=8, accelerators=((kind, 7), (OTHER, 1)))])
    devices = cluster.nodes[0].accelerators
    whole, half, quarter = gpu_mode(kind), gpu_mode(kind, 0.5), gpu_mode(kind, 0.25)
    where = [(half, devices[:1]), (whole, devices[1:2]), (gpu_mode(kind, 2), devices[2:4]), (quarter, devices[4:5]),
             (quarter, devices[4:5]), (gpu_mode(OTHER, 0.5), devices[7:]), (half, devices[5:6]),
             (whole, devices[6:7])]  # fmt: skip
    tasks = []
    for row, (mode, here) in enumerate(where):
        modes = [whole, quarter] if row == 1 else [mode]
        launch = SimpleNamespace(placement=Placement(mode, tuple(here)), stage="compute")
        tasks.append(SimpleNamespace(row=row, launch=launch, modes=modes, fastest_modes=lambda m=modes: m,
                                     shape=SimpleNamespace(preemptible=True), reads=(), writes=()))  # fmt: skip

    def running(order: str, device: Any = None, own: bool = False) -> list[Any]:
        return [task for task in tasks if device is None or device in task.launch.placement.devices]

    view: Any = SimpleNamespace(running=running, launch_of=lambda task: task.launch, free=lambda *_: 1.0,
                                fits=lambda mode, place: place.devices[0] is not devices[5],
                                holds=lambda task, place: True)  # fmt: skip
    task: Any = SimpleNamespace(fastest_modes=lambda: [half], reads=(), writes=())
    found = [(pair.partner.row, pair.moved, pair.place) for pair in pairs(task, view)]
    assert found == [(0, None, Placement(half, (devices[0],))),
                     (1, Placement(quarter, (devices[1],)), Placement(half, (devices[1],)))]  # fmt: skip
    task.reads = (1,)  # with data it joins only where nothing has to move
    assert [pair.partner.row for pair in pairs(task, view)] == [0]
    view.holds = lambda task, place: False
    assert not list(pairs(task, view))
    task.modes = [whole]
    assert not list(pairs(task, view))


def test_a_place_of_its_own():
    """A fraction only on an empty GPU; the fastest mode that fits comes first."""
    devices = Cluster([NodeSpec(accelerators=((GPU, 3),))]).nodes[0].accelerators
    half, whole = gpu_mode(GPU, 0.5), gpu_mode(GPU)
    busy, full = {devices[0]}, True
    view: Any = SimpleNamespace(
        running=lambda order, device: [1] * (device in busy), holds=lambda task, place: True,
        options=lambda task, mode: [Placement(mode, (device,)) for device in devices],
        first=lambda mode: None if full else Placement(mode, (devices[2],)),
    )  # fmt: skip
    task: Any = SimpleNamespace(fastest_modes=lambda: [whole, half])
    assert place_alone(task, view) == Placement(half, (devices[1],))
    busy |= set(devices)
    assert place_alone(task, view) is None
    full = False
    assert place_alone(task, view) == Placement(whole, (devices[2],))
    view.holds = lambda task, place: False
    assert place_alone(task, view) is None
    assert alone_modes(task) == [whole]
    task.fastest_modes = lambda: [half]
    assert alone_modes(task) == [half]  # all of them, where none is alone


def test_the_cheapest_moves_that_empty_a_node(monkeypatch: pytest.MonkeyPatch):
    """Three GPUs are wanted.  Node 0 has two free and runs a single that costs 5; node 1 has one free and runs two of
    1 s each; node 2 has two free and runs a pair, which nothing takes, and a single of 4 s."""
    sizes = {size: gpu_mode(GPU, size) for size in (1, 2, 3)}
    cost = {0: 5.0, 1: 1.0, 2: 1.0, 3: 0.1, 4: 4.0}
    width = {0: 1, 1: 1, 2: 1, 3: 2, 4: 1}
    tasks = [SimpleNamespace(row=row) for row in cost]
    monkeypatch.setattr(packing, "_pause", lambda task, *_: cost[task.row])
    view: Any = SimpleNamespace(
        launch_of=lambda task: SimpleNamespace(placement=SimpleNamespace(mode=sizes[width[task.row]]))
    )

    def cheapest(free: list[int], movable: dict[int, list[int]], moves: int = 4) -> Any:
        nodes = object.__new__(packing._Nodes)
        nodes.gpus, nodes.cores, nodes.memory = np.array(free), np.full(3, 9.0), np.full(3, 9.0)
        given: Any = {node: [tasks[row] for row in rows] for node, rows in movable.items()}
        found = packing._cheapest(nodes, sizes[3], given, moves, view)
        assert nodes.gpus.tolist() == free  # only copies are changed
        return found and (found[0], [(task.row, node) for task, node in found[1]])

    movable = {0: [0], 1: [1, 2], 2: [4, 3]}
    assert cheapest([2, 1, 2], movable) == (2, [(1, 0), (2, 0)])
    assert cheapest([2, 1, 2], movable, 1) == (4, [(4, 1)])
    assert cheapest([2, 1, 2], {0: [0], 2: [4]}) == (4, [(4, 1)])
    assert cheapest([2, 1, 2], {2: [4], 0: [0]}) == (4, [(4, 1)])
    assert cheapest([2, 0, 0], {0: [0]}) is None and cheapest([2, 1, 0], {0: [0]}) == (5, [(0, 1)])
    assert cheapest([1, 1, 1], {2: [3]}) is None  # a pair finds no node
    assert cheapest([1, 2, 1], {2: [3]}) == (0.2, [(3, 1)])
    cost[4] = 2.0
    assert cheapest([2, 1, 2], movable) == (2, [(1, 0), (2, 0)])  # of equal ones the first


def test_how_long_a_task_would_wait_for_its_own_place():
    """The earliest end: in its mode of four GPUs it starts at 14 s and takes 3 s, in that of one at 12 and 7; a mode
    that could start now counts no more, as it was tried."""
    policy = SharingByTable()
    modes = [gpu_mode(GPU), gpu_mode(GPU, 4), gpu_mode(GPU, 0.5)]
    starts: dict[Any, Any] = {modes[0]: (12.0, "a"), modes[1]: (14.0, "b"), modes[2]: (11.0, "c")}
    view: Any = SimpleNamespace(
        now=10.0, duration=lambda _, place: {"a": 7.0, "b": 3.0, "c": 0.5}[place],
        earliest_fit=lambda _, mode: SimpleNamespace(time=starts[mode][0], placement=starts[mode][1]),
    )  # fmt: skip
    task: Any = SimpleNamespace(fastest_modes=lambda: [modes[1], modes[0], modes[2]])
    assert policy._alone_later(task, view) == 7
    starts[modes[1]] = 10.0, "b"
    assert policy._alone_later(task, view) == 9
    starts[modes[0]] = 12.0, None
    assert policy._alone_later(task, view) == math.inf


def test_a_trial_is_judged_by_the_progress_of_both():
    """After 10 s of a trial the newcomer of 20 s has made a quarter, its partner of 40 s a tenth: 0.5 + 0.4."""
    for threshold, stops in ((0.89, False), (0.91, True)):
        policy = Gandiva(trial=10.0, threshold=threshold)
        mode = gpu_mode(GPU, 0.5)
        left = {0: 0.75 * 60, 1: 0.5 * 80}

        def running(row: int, class_: str, seconds: float, left: dict[int, float] = left, mode: Any = mode) -> Any:
            return SimpleNamespace(
                index=row, class_=class_, shortest_estimate=seconds, state=RUNNING, reads=(), writes=(), modes=[mode],
                estimate_in=lambda _: (60.0, 80.0)[row], shape=SimpleNamespace(preemptible=True),
                fastest_modes=lambda: [mode], remaining=left[row],
            )  # fmt: skip

        one, other = running(0, "b", 20.0), running(1, "a", 40.0)
        launch = SimpleNamespace(placement=SimpleNamespace(mode=mode, devices=("d",)), stage="compute")
        view: Any = SimpleNamespace(now=30.0, launch_of=lambda _, launch=launch: launch,
                                    remaining=lambda task: task.remaining)  # fmt: skip
        view.running = lambda *_: [one, other]  # noqa: B023
        policy._trials[0] = PairTrial(one, other, 20.0, 30.0, (1.0, 0.6))
        decided = list(policy._judge(view))
        assert policy.measured == {("a", "b"): pytest.approx(0.9)} and not policy._trials
        assert [decision.task for decision in decided] == ([one] if stops else [])
        policy._trials[0] = PairTrial(one, other, 20.0, 30.1, (1.0, 0.6))
        assert not list(policy._judge(view)) and len(policy._trials) == 1
        policy.finished(other)
        assert not policy._trials


@pytest.mark.parametrize("name", ["eft", "dmda", "dmdas", "er_ls"])
@pytest.mark.parametrize(("claimed", "side"), [(30, 1), (31, 0)])
def test_a_task_whose_data_do_not_fit_the_accelerator_goes_to_the_cores(name: str, claimed: int, side: int):
    """100 bytes of memory; the task reads 50 and writes 20 there, besides what it claims for itself."""
    kind, cores = DeviceType("g", memory=100), DeviceType("cpu", kind="cpu")
    spec = NodeSpec(cpus=1, memory=10**6, accelerators=((kind, 1),), cpu_type=cores)
    modes = [cpu_mode(cores), gpu_mode(kind, gpu_memory=claimed)]
    items = [Item("a", 50, 0), Item("b", 20, 0)]
    jobs = [Job(modes, [50.0, 1.0], reads=(0,), writes=(1,))]
    record = simulate(spec, jobs, registry.policy("scheduler", name)(), items)
    assert record.mode.tolist() == [side]


def test_the_queues_of_the_paper():
    """Two queues, with 16 GPU hours between them; `las` has one at an hour."""
    assert LasIntervals().thresholds == [16 * 3600] and Las().thresholds == [3600]
    assert LasIntervals(60.0, [9.0, 2.0]).thresholds == [2, 9]


@pytest.mark.parametrize("name", ["easy_backfill", "conservative_backfill", "gang_backfill"])
def test_a_task_that_gives_up_leaves_its_reservation_to_others(name: str):
    """A task has one of two GPUs until 10 s, and one for both is promised these from then to 20 s.  The third, of 15 s,
    would be in its way, until it gives up at 5 s."""
    jobs = [Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU, 2)], [10.0], expires=5.0),
            Job([gpu_mode(GPU)], [15.0], 1.0)]  # fmt: skip
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, registry.policy("scheduler", name)())
    assert math.isnan(record.start[1]) and record.start[2] == 5
    jobs[1] = replace(jobs[1], expires=math.inf)
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, registry.policy("scheduler", name)())
    assert record.start.tolist() == [0, 10, 20]


def test_a_gang_keeps_its_time_although_another_task_comes_and_gives_up_then():
    """The node is taken until 5 s, which is promised to a gang.  The small task before it is promised nothing, and
    starts at 8 s, after the gang; that one comes at 5 s that does not wait at all changes nothing."""
    small, gang = [gpu_mode(GPU, 2)], [gpu_mode(GPU, 3)]
    jobs = [Job(gang, [5.0]), Job(small, [1.0], 1.0), Job(gang, [3.0], 1.0), Job(small, [9.0], 5.0, expires=5.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 3),)), jobs, GangBackfill())
    assert record.start[:3].tolist() == [0, 8, 5] and math.isnan(record.start[3])


# Nothing is kept --------------------------------------------------------------------------------------------------

DYNAMIC = [name for name in registry.policies("scheduler")
           if ".dynamic." in registry.policy("scheduler", name).__module__ and name != "external"]  # fmt: skip
SHORT: dict[str, Any] = {"round_length": 50.0, "interval": 2.0, "quantum": 1.0, "lease": 2.0, "thresholds": [2.0, 6.0],
                         "preemptive": True, "population": 4, "generations": 2, "timeout": 1.5}  # fmt: skip


def rows_kept(thing: Any, rows: range) -> set[int]:
    """Rows of tasks that a policy's books still name: as keys, or as tasks."""
    if isinstance(thing, Task):
        return {thing.index} & set(rows)
    if isinstance(thing, dict):
        keys = {key for key in thing if isinstance(key, int) and key in rows}
        return keys.union(*(rows_kept(value, rows) for value in thing.values()))
    if isinstance(thing, list | tuple | set | deque):
        return set().union(*(rows_kept(one, rows) for one in thing))
    return set()


@pytest.mark.quick(20)
@pytest.mark.parametrize("name", DYNAMIC)
def test_nothing_is_kept_of_tasks_that_have_ended(name: str):
    """Of 21 that come within 10 s three give up; one more comes long after.  Rows from 10 on cannot be devices.  What
    was found out about the last head that did not fit may be there until another takes its place."""
    known = registry.parameters(registry.policy("scheduler", name))
    policy = registry.policy("scheduler", name)(**{key: value for key, value in SHORT.items() if key in known})
    modes = [gpu_mode(GPU), gpu_mode(GPU, 2), gpu_mode(GPU, 4, span_any=True)]
    jobs = [Job([modes[row % 3]], [1.0 + row % 4], 0.5 * row, expires=1.0 if row % 7 == 6 else math.inf,
                priority=float(row % 5), deadline=9.0 * (1 + row % 3)) for row in range(21)]  # fmt: skip
    jobs.append(Job(modes[:1], [1.0], 1000.0))
    record = simulate(NodeSpec(cpus=4, accelerators=((GPU, 3),), count=2), jobs, policy)
    assert record.finish[21] == 1001
    kept = {key: rows_kept(value, range(10, 21)) for key, value in vars(policy).items()}
    assert {key: rows for key, rows in kept.items() if len(rows) > 1} == {}
