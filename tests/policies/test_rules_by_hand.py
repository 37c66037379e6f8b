"""Single rules of dynamic schedulers at their edges, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, tasks_of

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.plan import Placement
from hetsim_policies.dynamic.common.fair_tree import DecayedUsage
from hetsim_policies.dynamic.common.pairs import back_to
from hetsim_policies.dynamic.common.reservations import Reservation
from hetsim_policies.dynamic.common.rounds import RoundRoom
from hetsim_policies.dynamic.earliest import Dmda, Eft, ErLs
from hetsim_policies.dynamic.intervals import LasIntervals
from hetsim_policies.dynamic.preemptive import Las, gittins
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor, _next_multiple
from hetsim_policies.dynamic.users import Drf

GPU = DeviceType("g")
CPU = DeviceType("cpu", kind="cpu")


# Lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("core", "mode", "start"), [(4.0, 1, 2), (3.9375, 0, 0), (4.0625, 1, 2), (2.0, 0, 0)])
def test_the_first_rule_of_er_ls(core: float, mode: int, start: float):
    """The GPU is taken until 2 s, and takes 2 s: with 4 s on a core the task goes there.  Below that the second rule
    compares with 2 / sqrt(1), of four cores: up to 4 s go to the cores."""
    spec = NodeSpec(cpus=4, accelerators=((GPU, 1),), cpu_type=CPU)
    both = [cpu_mode(CPU), gpu_mode(GPU)]
    record = simulate(spec, [Job([gpu_mode(GPU)], [2.0]), Job(both, [core, 2.0])], ErLs())
    assert (int(record.mode[1]), record.start[1]) == (mode, start)


@pytest.mark.parametrize("policy", [Eft, Dmda])
@pytest.mark.parametrize(("host", "spans"), [
    ({"millicores": 4000}, True), ({"millicores": 8000}, False), ({"memory": 40}, True), ({"memory": 80}, False),
    ({}, True),
])  # fmt: skip
def test_a_gang_over_nodes_takes_what_each_host_has_room_for(policy: Any, host: dict[str, int], spans: bool):
    """Four GPUs on a node with a core and 10 bytes, three on one with eight cores and 100 bytes.  A gang of four needs
    a part of the host for each GPU: with a core each it takes one GPU of the first node and three of the other, with
    two it finds three at most, and the job takes its slow mode."""
    specs = [NodeSpec(cpus=1, memory=10, accelerators=((GPU, 4),)),
             NodeSpec(cpus=8, memory=100, accelerators=((GPU, 3),))]  # fmt: skip
    gang = gpu_mode(GPU, 4, span_any=True, **host)
    record = simulate(specs, [Job([gang, gpu_mode(GPU, 3)], [10.0, 1000.0])], policy())
    assert (int(record.mode[0]) == 0) == spans and record.start[0] == 0


# Rounds and intervals ---------------------------------------------------------------------------------------------


def test_tasks_on_other_devices_go_in_the_order_in_which_they_became_ready():
    """One that was stopped goes behind those that came meanwhile."""
    policy = LasIntervals()
    policy._sizes = lambda task: {}  # type: ignore[method-assign]
    first, second = (SimpleNamespace(index=row) for row in (0, 1))
    for task in (first, second, first):
        policy.ready(task)  # type: ignore[arg-type]
    assert list(policy._others) == [1, 0] and list(policy._here) == [0, 1]
    policy.finished(second)  # type: ignore[arg-type]
    policy.gone(first)  # type: ignore[arg-type]
    assert not policy._others and not policy._here


def test_cores_over_nodes_in_a_round():
    """Two nodes have three cores each; five go on both, six as well, and seven do not fit."""
    cluster = Cluster([NodeSpec(cpus=3, memory=100, cpu_type=CPU, count=2), NodeSpec(cpus=0, cpu_type=CPU)])
    for cores, memory, expected in ((5, 0, (3000, 2000)), (6, 0, (3000, 3000)), (7, 0, None), (3, 50, (2000, 1000)),
                                    (2, 100, (1000, 1000)), (3, 101, None)):  # fmt: skip
        made = RoundRoom(cluster, set())._gang(cpu_mode(CPU, cores), cpu_mode(CPU, 1, memory=memory))
        assert (None if made is None else made.parts) == expected, (cores, memory)


# Usage and priorities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "period", "expected"), [
    (0.0, 2.0, 2.0), (1.0, 2.0, 2.0), (2.0, 2.0, 4.0), (5.0, 2.0, 6.0), (8.6, 0.2, 8.8), (3.0, 0.0, 3.0), (0.0, 0.0, 0),
])  # fmt: skip
def test_the_next_multiple(now: float, period: float, expected: float):
    assert _next_multiple(now, period) == pytest.approx(expected)


@pytest.mark.parametrize("period", [0.1, 0.2, 0.3, 0.7, 30.0])
def test_the_next_multiple_is_later(period: float):
    for count in range(300):
        now = count * period
        assert now < _next_multiple(now, period) <= now + period * (1 + 1e-9)


def test_reservations_that_are_kept_are_rounded():
    """To whole units outwards; that of a start is exact, with the nodes where it starts."""
    mode = gpu_mode(GPU)
    reservation = Reservation(130.0, 250.0, mode, ((0, 1),))
    policy = SlurmMultifactor(bf_resolution=60.0)
    assert policy._kept(reservation, None, None) == Reservation(120.0, 300.0, mode, ((0, 1),))  # type: ignore[arg-type]
    whole = reservation._replace(time=120.0, end=240.0)
    assert policy._kept(whole, None, None)[:2] == (120.0, 300.0)  # type: ignore[arg-type]
    cluster = Cluster([NodeSpec(accelerators=((GPU, 1),), count=2)])
    placed = [Placement(mode, tuple(node.accelerators)) for node in cluster.nodes]
    for unit in (60.0, 0.0):
        policy = SlurmMultifactor(bf_resolution=unit)
        policy._view = SimpleNamespace(duration=lambda task, placement: 7.0)  # type: ignore[assignment]
        moved = policy._kept(reservation, None, placed[1])  # type: ignore[arg-type]
        assert moved == Reservation(130.0, 137.0, mode, ((1, 1),))
        same = policy._kept(reservation, None, placed[0])  # type: ignore[arg-type]
        assert same == (Reservation(130.0, 137.0, mode, ((0, 1),)) if unit else reservation)
    assert policy._kept(reservation, None, None) is reservation  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1900.0, 2200.0])
def test_own_priority_counts_against_the_highest(size: float):
    """Of 4 GPUs, one for the job with priority 0.5, which is the highest: 1000 + size / 4, against size / 2."""
    jobs = [Job([gpu_mode(GPU, 4)], [10.0]), Job([gpu_mode(GPU)], [10.0], 1.0, priority=0.5),
            Job([gpu_mode(GPU, 2)], [20.0], 1.0), Job([gpu_mode(GPU, 2)], [20.0], 1.0)]  # fmt: skip
    weights: dict[str, Any] = {"age": 0.0, "fair_share": 0.0, "partition": 0.0, "service": 0.0}
    policy = SlurmMultifactor(**weights, priority=1000.0, size=size, bf_max_job_test=0)
    record = simulate(NodeSpec(accelerators=((GPU, 4),)), jobs, policy)
    assert record.start[1] == 10 and sorted(record.start[2:].tolist()) == [10, 20]


@pytest.mark.parametrize("cores", [True, False])
def test_usage_is_what_was_received(cores: bool):
    """Two devices for 10 s; nothing is added after the end, and what runs counts up to now."""
    mode = cpu_mode(CPU, 2) if cores else gpu_mode(GPU, 2)
    one = cpu_mode(CPU, 1) if cores else gpu_mode(GPU, 1)
    spec = NodeSpec(cpus=4, accelerators=((GPU, 4),), cpu_type=CPU)
    jobs = [Job([mode], [10.0]), Job([one], [4.0], 100.0), Job([mode], [1.0], 200.0)]
    tasks = replace(tasks_of(jobs), users=["u", "v"], user_code=np.array([0, 1, 0]))
    policy = SlurmMultifactor(half_life=1e15, calc_period=0.0, bf_interval=0.0)
    simulate(spec, tasks, policy)
    assert policy._usage[("", "u")] == pytest.approx(22, rel=1e-6)
    assert policy._usage[("", "v")] == pytest.approx(4, rel=1e-6)
    assert policy._usage.total == pytest.approx(26, rel=1e-6)


def test_usage_after_a_very_long_time_is_that_of_the_last_half_lives():
    """A rate of one device for ever is half_life / ln 2 at most; here all that was before has decayed to nothing."""
    usage: DecayedUsage[str] = DecayedUsage(1.0)
    usage.open("a")
    usage.change_rate("a", 0, 8.0)
    usage.advance(3.0)
    assert usage["a"] == usage.total == pytest.approx(1.0)
    usage.advance(2000.0)
    assert usage["a"] == usage.total == 0
    usage.change_rate("a", 2_000_000)
    usage.change_rate("a", 0, 4.0)
    usage.advance(2001.0)
    assert usage["a"] == usage.total == pytest.approx(4 / 2 + 2)
    for step in range(1, 500):
        usage.advance(2001.0 + step)
    assert usage["a"] == pytest.approx(4, rel=1e-9)  # x = x / 2 + 2


def test_memory_that_no_node_states_is_no_resource():
    """The dominant share is then that of GPUs: a quarter, over the weight."""
    for memory, share in ((None, 0.25), (100, 0.5)):
        cluster = Cluster([NodeSpec(cpus=8, memory=memory, accelerators=((GPU, 4),), cpu_type=CPU)])
        policy = Drf(weights={"u": 2.0})
        policy.begin(SimpleNamespace(cluster=cluster))  # type: ignore[arg-type]
        task: Any = SimpleNamespace(user="u", index=3)
        mode = gpu_mode(GPU, 1, millicores=1000, memory=50)
        assert policy.standing("u") == 0
        policy.starting(task, Placement(mode, tuple(cluster.nodes[0].accelerators[:1])), None)  # type: ignore[arg-type]
        assert policy.standing("u") == share / 2 and policy.standing("v") == 0
        policy.finished(task)
        policy.finished(task)
        assert policy.standing("u") == 0


# Queues of attained service ---------------------------------------------------------------------------------------


def test_the_index_of_a_queue():
    """Sizes 1, 1, 4, 10: from the start, half end within 1 for 1 s each: 1/2; three quarters within 4 for 10/4."""
    sizes, edges = np.array([1.0, 1, 4, 10]), np.array([0.0, 1, 4, np.inf])
    assert gittins(sizes, edges, 0) == pytest.approx(max(0.5 / 1, 0.75 / 2.5, 1 / 4))
    assert gittins(sizes, edges, 1) == pytest.approx(max(0.5 / 3, 1 / 6))
    assert gittins(sizes, edges, 2) == pytest.approx(1 / 6)
    assert gittins(np.array([1.0, 4]), edges, 2) == 0 == gittins(np.zeros(0), edges, 0)


def test_ties_within_a_queue_stop_nothing():
    """Jobs that came at one instant go by row; the later one is stopped for an earlier one only where that waits."""
    jobs = [Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU)], [2.0])]
    record = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Las(thresholds=[100.0]))
    assert record.start.tolist() == [0, 10, 20] and record.preemptions is None
    record = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Las(thresholds=[4.0]))
    assert record.finish.tolist() == [16, 22, 10]


# Pairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "free", "goes"), [
    ((500, 4), 0.0, True), ((500, 5), 9.0, False), ((1000, 4), 0.0, False), ((1000, 4), 0.5, True),
    ((1000, 4), 0.25, False), ((0, 0), 0.0, True), ((1000, 5), 0.0, False),
])  # fmt: skip
def test_a_job_that_is_left_alone_gets_its_gpu_back(host: tuple[int, int], free: float, goes: bool):
    """If the host has room: it has half a core and 4 bytes; cores may be free, memory is taken only as it has it."""
    cluster = Cluster([NodeSpec(cpus=4, accelerators=((GPU, 1),))])
    device = cluster.nodes[0].accelerators[0]
    now = gpu_mode(GPU, 0.5, millicores=500, memory=4)
    whole = gpu_mode(GPU, 1, millicores=host[0], memory=host[1])
    task: Any = SimpleNamespace(modes=[now, whole], shape=SimpleNamespace(preemptible=True), reads=(), writes=(),
                                fastest_modes=lambda: [whole, now])  # fmt: skip
    launch = SimpleNamespace(placement=Placement(now, (device,)), stage="compute")
    view: Any = SimpleNamespace(
        launch_of=lambda one: launch, running=lambda order, on: [task], free=lambda kind, node: free
    )  # fmt: skip
    placement = back_to(task, view)
    assert (placement is not None) == goes
    assert placement is None or placement == Placement(whole, (device,))
    launch.stage = "upload"
    assert back_to(task, view) is None
