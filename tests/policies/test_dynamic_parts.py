"""Parts of policies that decide when, each against its definition: computed anew, or by hand."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, tasks_of

from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import WHOLE, DeviceType, Sharing
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim_policies.dynamic import sharing
from hetsim_policies.dynamic.as_recorded import AsRecorded
from hetsim_policies.dynamic.common.lines import DeviceLine
from hetsim_policies.dynamic.common.ranked_queue import RankedQueue
from hetsim_policies.dynamic.common.rounds import RoundRoom
from hetsim_policies.dynamic.common.service_tiers import NO_TIER, Tier, Tiers
from hetsim_policies.dynamic.heteroprio import HeteroPrio, from_scratch
from hetsim_policies.dynamic.intervals import (
    GeneticSearch,
    IntervalJob,
    LasIntervals,
    OptimusIntervals,
    Pollux,
    spread,
)
from hetsim_policies.dynamic.preemptive import Srtf
from hetsim_policies.dynamic.qssf import Qssf
from hetsim_policies.dynamic.sharing import Gandiva, SharingByTable, finish_times
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor
from hetsim_policies.dynamic.time_fractions import FcfsRounds, MaxMinFairness
from hetsim_policies.dynamic.turns import Themis, least_loaded
from hetsim_policies.dynamic.users import QuotaBorrow, Wfq
from hetsim_policies.dynamic.waited import Unicep, Wfp3

GPU = DeviceType("g")
NOTHING: Any = None


def test_what_a_waiting_task_adds_to_a_round():
    """Microseconds where rounds look at all waiting tasks; nothing elsewhere.  Jobs of one size are not looked at."""
    cluster = Cluster([NodeSpec(accelerators=((GPU, 4),))])
    rigid, elastic = ([gpu_mode(GPU)], [gpu_mode(GPU), gpu_mode(GPU, 2)])
    problems: list[Any] = [
        SimpleNamespace(tasks=tasks_of([Job(modes, [2.0, 1.0][: len(modes)])]), cluster=cluster)
        for modes in (rigid, elastic)
    ]
    all_waiting = ("slurm_multifactor", "wfp3", "unicep", "las_intervals", "max_min_fairness")
    for names, counts in ((all_waiting, (True, True)), (("afs", "optimus"), (False, True)),
                          (("easy_backfill", "las", "drf"), (False, False))):  # fmt: skip
        for name in names:
            costs = [registry.policy("scheduler", name)().round_cost(problem) for problem in problems]
            assert [1e-7 < cost < 1e-5 for cost in costs] == list(counts), name
            assert [cost == 0 for cost in costs] == [not one for one in counts], name
    assert Wfp3(formula="schedgym").round_cost(SimpleNamespace(tasks=[], cluster=cluster)) == 0  # type: ignore[arg-type]


def test_urgency_by_formula():
    wait, seconds, processors = np.array([8.0, 6.0]), np.array([4.0, 2.0]), np.array([2.0, 8.0])
    assert Wfp3().urgency(wait, seconds, processors).tolist() == [2**3 * 2, 3**3 * 8]
    assert Unicep().urgency(wait, seconds, processors).tolist() == [8 / (1 * 4), 6 / (3 * 2)]
    with np.errstate(divide="ignore"):
        assert Unicep().urgency(np.array([1.0]), np.array([5.0]), np.array([0.5])).tolist() == [math.inf]
    task: Any = tasks_of([Job([gpu_mode(GPU, 4)], [5.0], 9.0)])
    one = task_of(task, 0)
    assert Wfp3.schedgym(one) == pytest.approx((10 / 5) ** 3 * 4)
    assert Unicep.schedgym(one) == pytest.approx(10 / (2 * 5))


def task_of(tasks: Any, row: int) -> Any:
    from hetsim.model.task import Task

    shape = tasks.shapes[tasks.shape[row]]
    count = len(shape.modes)
    times = tuple(tasks.time[row][:count].tolist())
    return Task(row, float(tasks.arrival[row]), shape, times, times, tasks)


@pytest.mark.parametrize("seed", range(3))
def test_the_ranked_queue_is_sorted_anew(seed: int):
    """By tier, then by a score of two columns, then by arrival and row, whatever comes and goes between."""
    random = np.random.default_rng(seed)
    jobs = [Job([gpu_mode(GPU)], [1.0], float(at)) for at in np.sort(random.integers(0, 40, 200))]
    tasks = tasks_of(jobs)
    rows = [task_of(tasks, row) for row in range(200)]
    tier = random.integers(0, 2 + seed, 200) * (seed > 0)
    first, second = random.integers(0, 6, 200).astype(float), random.random(200).round(1)
    queue = RankedQueue(3, lambda task: (float(tier[task.index]), first[task.index], second[task.index]))
    waiting: dict[int, Any] = {}
    weight = 1.0
    queue.rescore(lambda columns: columns[1] + columns[2])
    for step in range(120):
        for row in random.integers(0, 200, 4).tolist():
            if row in waiting:
                assert queue.remove(waiting.pop(row))
                assert not queue.remove(rows[row])
            else:
                waiting[row] = rows[row]
                queue.add(rows[row])
        if step % 10 == 9:
            weight = float(random.integers(0, 3))
            queue.rescore(lambda columns, weight=weight: columns[1] + weight * columns[2])

        def key(row: int, weight: float = weight) -> tuple[float, ...]:
            return -tier[row], -(first[row] + weight * second[row]), rows[row].arrival, row

        count = int(random.integers(1, 12))
        expected = sorted(waiting, key=key)
        assert [task.index for task in queue.ranked(count)] == expected
        assert sorted(task.index for task in queue.tasks) == sorted(waiting)


@pytest.mark.parametrize("seed", range(4))
def test_a_line_knows_when_its_lanes_are_free(seed: int):
    """Against a sorted list of the ends of its lanes, all moved by what was late in proportion to its lanes."""
    random = np.random.default_rng(seed)
    lanes = seed + 1
    line, ends = DeviceLine(0, GPU, lanes), [0.0] * lanes
    changes: list[DeviceLine] = []
    line.changed = changes.append
    assert (line.most, line.head()) == (lanes * GPU.streams, None)
    for number in range(60):
        need, now = int(random.integers(1, lanes + 3)), float(random.integers(0, 50))
        assert line.free_at(need, now) == pytest.approx(max(now, sorted(ends)[min(need, lanes) - 1]))
        assert line.first_end() == pytest.approx(min(ends))
        if random.random() < 0.7:
            end = float(random.integers(10, 100))
            line.occupy(need, end)
            ends = sorted(ends)[min(need, lanes) :] + [end] * min(need, lanes)
        else:
            seconds = float(random.integers(-3, 4)) or 1.0
            line.delay(need, seconds)
            ends = [one + seconds * min(1.0, need / lanes) for one in ends]
        assert len(changes) == number + 1
    line.delay(1, 0.0)
    assert len(changes) == 60  # nothing has changed
    assert DeviceLine(1, GPU, 0).ends == [0.0]


def waiting_task(user: str, tier: str, gpus: float, index: int) -> Any:
    return SimpleNamespace(user=user, class_=tier, index=index, label=lambda _: "", modes_by_speed=lambda: [0],
                           modes=[SimpleNamespace(gpu_share=gpus)])  # fmt: skip


@pytest.mark.parametrize("limit", ["max_jobs", "max_gpus", "max_jobs_per_user", "max_gpus_per_user", ""])
def test_limits_of_a_tier_count_what_runs(limit: str):
    """Against a count over all that runs, after each start and end."""
    random = np.random.default_rng(1)
    tiers = Tiers({"a": Tier(**({limit: 3} if limit else {})), "b": Tier()})  # type: ignore[arg-type]
    running: list[Any] = []
    refused = 0
    for index in range(200):
        task = waiting_task(str(random.choice(["u", "v"])), str(random.choice(["a", "b", "c"])),
                            float(random.choice([0.5, 1, 2])), index)  # fmt: skip
        same = [one for one in running if one.class_ == task.class_ == "a"]
        same = [one for one in same if one.user == task.user] if limit.endswith("user") else same
        gpus = sum(one.modes[0].gpu_share for one in same) + task.modes[0].gpu_share
        over = (gpus > 3 if "gpus" in limit else len(same) + 1 > 3) and bool(limit) and task.class_ == "a"
        assert tiers.refuses(task) == over
        refused += over
        if not over:
            tiers.starting(task, SimpleNamespace(mode=task.modes[0]))  # type: ignore[arg-type]
            running.append(task)
        while running and random.random() < 0.4:
            tiers.leave(running.pop(int(random.integers(len(running)))))
    assert bool(limit) == bool(refused)
    assert tiers.tier(waiting_task("u", "c", 1, 0)) is NO_TIER


def test_the_factors_of_slurm_by_hand():
    """Half of the greatest age, 2 of 8 GPUs, partition 0.5, service 0.75, own priority 3 of 6, fair share 2^(-2/3)."""
    parameters = {"max_age": 100.0, "partitions": {"p": 0.5}, "shares": {"u": 3.0}}
    weights = {"age": 10.0, "fair_share": 200.0, "size": 3000.0, "partition": 40000.0, "priority": 5e5, "service": 6e6}
    policy = SlurmMultifactor(**weights, **parameters, qos={"q": Tier(priority=0.75)})  # type: ignore[arg-type]
    policy._gpus, policy._highest = 8.0, 6.0
    modes = [SimpleNamespace(gpu_share=2.0)]
    task: Any = SimpleNamespace(shape=SimpleNamespace(modes=[SimpleNamespace(partition=None)]), modes=modes, ready=20.0,
                                modes_by_speed=lambda: [0], partition="", class_="p", user="u", priority=3.0,
                                label=lambda key: "q" if key == "qos" else "")  # fmt: skip
    for user, received in (("u", 60.0), ("v", 60.0)):
        owner = ("", user)
        policy._usage.open(owner)
        policy._usage.change_rate(owner, 0, received)
        policy._codes[owner] = len(policy._codes)
        policy._shares += policy.shares.get(user, 1.0)
    fair = policy._fair_shares()
    assert fair.tolist() == pytest.approx([2 ** (-0.5 / 0.75), 2 ** (-0.5 / 0.25)])
    constant = 3000 * 0.25 + 40000 * 0.5 + 6e6 * 0.75
    columns = policy._columns_of(task)
    assert columns == (0.0, 20.0, 0, 3.0, pytest.approx(constant))
    for now, age in ((70.0, 0.5), (20.0, 0.0), (10.0, 0.0), (120.0, 1.0), (500.0, 1.0)):
        score = 10 * age + constant + 5e5 * 3 / 6
        assert policy._score(now, None, [*columns, 0.0, 0.0]) == pytest.approx(score)
        assert policy._score(now, fair, [*columns, 0.0, 0.0]) == pytest.approx(score + 200 * fair[0])
        many = np.array([[*columns, 0.0, 0.0]] * 2).T
        many[2, 1] = 1
        assert policy._score(now, fair, many) == pytest.approx([score + 200 * fair[0], score + 200 * fair[1]])
    policy.small_first, task.partition, task.priority = True, "x", -1.0
    assert policy._columns_of(task)[3:] == (0.0, pytest.approx(3000 * 0.75 + 6e6 * 0.75))
    modes[0].gpu_share = 80.0
    policy.small_first = False
    assert policy._columns_of(task)[4] == pytest.approx(3000 + 6e6 * 0.75)
    policy._highest = 0.0
    assert policy._score(20.0, None, [*columns, 0.0, 0.0]) == pytest.approx(constant)


# The room of a round ----------------------------------------------------------------------------------------------

SLICED = DeviceType("s", streams=2)
SPECS = [
    NodeSpec(cpus=8, memory=100, accelerators=((GPU, 4),)), NodeSpec(cpus=4, memory=60, accelerators=((GPU, 2),)),
    NodeSpec(cpus=6, accelerators=((SLICED, 2), (GPU, 1))), NodeSpec(cpus=2, memory=10, accelerators=()),
]  # fmt: skip


def room_of(down: tuple[str, ...] = ()) -> RoundRoom:
    cluster = Cluster(SPECS)
    return RoundRoom(cluster, {cluster.by_name[name].index for name in down})


@pytest.mark.parametrize("seed", range(6))
def test_the_room_of_a_round_is_what_is_not_taken(seed: int):
    """A mode finds a place if and only if some node has room for it, and nothing is taken twice."""
    random = np.random.default_rng(seed)
    down = ("n0/g1",) if seed % 2 else ()
    room = room_of(down)
    nodes = room.cluster.nodes
    free = {device.index: device.type.streams * WHOLE for node in nodes for device in node.accelerators}
    free |= dict.fromkeys((room.cluster.by_name[name].index for name in down), 0)
    cores = [node.cpus * 1000 for node in nodes]
    memory = [math.inf if node.memory is None else node.memory for node in nodes]
    full = 0
    for _ in range(40):
        kind = [GPU, GPU, SLICED][int(random.integers(3))]
        size = float(random.choice([0.25, 0.5, 1, 1, 2, 3]))
        host = {"millicores": int(random.choice([0, 500, 1000])), "memory": int(random.choice([0, 7, 20]))}
        mode = gpu_mode(kind, size, **host)
        fitting = {
            node.index: [d for d in node.accelerators if d.type is kind and free[d.index] >= mode.share]
            for node in nodes if cores[node.index] >= mode.millicores and memory[node.index] >= mode.memory
        }  # fmt: skip
        fitting = {number: devices for number, devices in fitting.items() if len(devices) >= mode.gpus}
        placement = room.place(mode)
        assert (placement is None) == (not fitting)
        if placement is None:
            full += 1
            continue
        (number,) = {device.node for device in placement.devices}
        assert len(placement.devices) == len(set(placement.devices)) == mode.gpus
        assert all(device in fitting[number] for device in placement.devices)
        assert len(fitting[number]) == min(map(len, fitting.values()))  # the tightest node
        shares = [free[device.index] for device in fitting[number]]
        if not mode.whole_devices:
            assert free[placement.devices[0].index] == min(shares)  # the fullest that takes it
        elif kind.streams > 1:
            assert free[placement.devices[0].index] == max(shares)  # the emptiest
        for device in placement.devices:
            free[device.index] -= mode.share
        cores[number] -= mode.millicores
        memory[number] -= mode.memory
        assert (room.cores, room.memory) == (cores, memory)
        assert all(room.room.get(index, 0) == share for index, share in free.items())
    assert full


def test_jobs_that_are_kept_take_their_devices_first():
    room = room_of()
    mode = gpu_mode(GPU, 3, millicores=2000, memory=30)
    devices = tuple(room.cluster.nodes[0].accelerators)
    launches = {1: Placement(mode, devices[:3]), 2: Placement(gpu_mode(GPU, 2), devices[2:]), 3: None}

    def job(index: int, mode: int = 0) -> Any:
        return SimpleNamespace(task=SimpleNamespace(index=index), mode=mode, placement=launches[index])

    room.expect([(job(1), 0), (job(2), 1), (job(3), 0)])
    assert room.expected == {0: 3}
    assert room.keep(job(1)) is True and room.kept == {1: None}
    assert (room.cores[0], room.memory[0]) == (6000, 70)
    assert room.keep(job(2)) is False and room.keep(job(3)) is False
    assert room.kept == {1: None}
    placement = room.place(gpu_mode(GPU))  # the tightest of the nodes on which no job hopes to stay
    assert placement is not None and placement.devices[0].node == 2


def test_gangs_and_cores_of_a_round():
    """Gangs across nodes; without a node whose cores are down; cores where the fewest are free."""
    room = room_of(("n1/cpu",))
    across = room.place(gpu_mode(GPU, 5, span_any=True))
    assert across is not None and [device.node for device in across.devices] == [0, 0, 0, 0, 2]
    assert room.place(gpu_mode(GPU, 1)) is None and room_of(("n1/cpu",)).place(gpu_mode(GPU, 5)) is None
    assert room_of(("n1/cpu",)).place(gpu_mode(GPU, 6, span_any=True)) is None
    room = room_of()
    kind = room.cluster.nodes[0].cpu.type
    taken = []
    for cores in (2, 3, 5, 5, 3):
        placement = room.place(cpu_mode(kind, cores))
        taken.append(None if placement is None else placement.devices[0].node)
    assert taken == [3, 1, 2, 0, 0]
    assert room.cores == [0, 1000, 1000, 0]
    assert room.place(cpu_mode(kind, 2)) is None
    node = room.cluster.nodes[1]
    room.take_host(node, gpu_mode(GPU, 2, millicores=333, memory=10), 0.5)
    assert (room.cores[1], room.memory[1]) == (1000 - 167, 55)
    assert room.host_holds(node, gpu_mode(GPU, 1, millicores=833, memory=55), 1.0)
    assert not room.host_holds(node, gpu_mode(GPU, 1, millicores=834), 1.0)
    assert not room.host_holds(node, gpu_mode(GPU, 1, memory=56), 1.0)
    assert room.host_holds(node, gpu_mode(GPU, 1, memory=110), 0.5)


# Which mode counts, which pair, which device ----------------------------------------------------------------------


def two_modes() -> Any:
    """A task of 10 s on one GPU, or 4 s on four."""
    return task_of(tasks_of([Job([gpu_mode(GPU), gpu_mode(GPU, 4)], [10.0, 4.0])]), 0)


def test_a_task_counts_with_its_fastest_mode():
    """On four GPUs: 16 GPU-seconds, half of eight GPUs; four jobs have an equal share of two GPUs, so it loses half."""
    task = two_modes()
    assert QuotaBorrow().needs(task) == 4
    wfq = Wfq()
    assert wfq._tag(task) == 0 and wfq._tags[task.index] == (0, 16)
    assert Qssf(default=100.0).predicted(task) == 400
    themis = Themis()
    themis._gpus = 8.0
    view: Any = SimpleNamespace(now=6.0, remaining=lambda _: 2.0)
    assert themis.rho(task, view, 4) == pytest.approx((6 + 2) / (4 * 4 * 4 / 8))
    assert themis.rho(task, view, 1) == pytest.approx((6 + 2) / 4)  # never less than alone
    nothing = task_of(tasks_of([Job([gpu_mode(GPU)], [0.0])]), 0)
    assert themis.rho(nothing, view, 4) == math.inf


def test_what_is_left_of_a_running_task_counts_on_its_best_mode():
    """Half of it is left on one GPU, 5 s, so 2 s on four; a task of no length has nothing left."""
    task = two_modes()
    launch = SimpleNamespace(placement=SimpleNamespace(mode=task.modes[0]))
    view: Any = SimpleNamespace(launch_of=lambda _: launch, remaining=lambda _: 5.0)
    assert Srtf().rank(task, view) == pytest.approx(2.0)
    nothing = task_of(tasks_of([Job([gpu_mode(GPU)], [0.0])]), 0)
    launch.placement.mode = nothing.modes[0]
    assert Srtf().rank(nothing, view) == 0


def test_gandiva_takes_the_pair_that_did_best(monkeypatch: pytest.MonkeyPatch):
    """Of those above the threshold; else one that was not tried, by lot; else none."""
    policy = Gandiva(threshold=1.1)
    policy.measured = {("a", "b"): 1.2, ("a", "c"): 1.5, ("a", "d"): 1.1, ("a", "e"): 1.0}
    asked: list[int] = []

    def lot(count: int) -> int:
        asked.append(count)
        return count - 1

    view: Any = SimpleNamespace(random=SimpleNamespace(integers=lot))
    task: Any = SimpleNamespace(class_="a")

    def best(classes: str) -> str:
        offered = [SimpleNamespace(partner=SimpleNamespace(class_=name)) for name in classes]
        monkeypatch.setattr(sharing, "pairs", lambda *_: offered)
        pair = policy.best_pair(task, view)
        return "" if pair is None else pair.partner.class_

    assert [best(classes) for classes in ("bcd", "cb", "xbc", "d", "dx")] == ["c", "c", "c", "d", "d"] and not asked
    assert [best(classes) for classes in ("exy", "x", "e", "")] == ["y", "x", "", ""] and asked == [2, 1]


def test_slowdowns_of_neighbors():
    """By the table, else as measured for the type, else by its way of sharing; whole is the sum of 0.5 and 0.75."""
    policy = SharingByTable({"a": {"b": 3.0}})

    def slower(mine: float, theirs: float, of: str = "xy", **sharing: Any) -> float:
        kind = DeviceType("k", sharing=Sharing(**sharing))
        one, other = (SimpleNamespace(class_=name) for name in of)
        return policy.slowdown(one, gpu_mode(kind, mine), other, gpu_mode(kind, theirs))  # type: ignore[arg-type]

    sliced = {"kind": "timeslice", "switch_cost": 0.2, "pairs": (("a", "b", 7.0), ("x", "b", 2.5))}
    assert slower(0.5, 0.5, "ab", **sliced) == 3 and slower(0.5, 0.5, "xb", **sliced) == 2.5
    assert slower(0.5, 0.75, **sliced) == pytest.approx(1.25 / 0.8)
    assert slower(0.25, 0.5, **sliced) == pytest.approx(1 / 0.8)
    assert slower(0.5, 0.25, kind="mps", interference=0.4) == pytest.approx(1.1)
    assert slower(0.5, 0.5) == 1
    assert finish_times(4, 2, 10, 3) == (8, 8 + 10 - 8 / 3)
    assert finish_times(10, 3, 4, 2) == (8 + 10 - 8 / 3, 8)


@pytest.mark.parametrize(("kind", "chosen"), [("timeslice", 0), ("exclusive", 1)])
def test_the_least_loaded_device_is_that_of_the_earliest_end(kind: str, chosen: int):
    """2 s next to one other, 3 s alone: in turns the first takes 4 s.  Where loads do not slow down, 2 s are less."""
    type_ = DeviceType("k", streams=4, sharing=Sharing(kind=kind))  # type: ignore[arg-type]
    mode = gpu_mode(type_)
    first, second = (SimpleNamespace(mode=mode, devices=(name,)) for name in ("alone", "crowded"))
    seconds = {"alone": 3.0, "crowded": 2.0}
    view: Any = SimpleNamespace(
        load=lambda device: float(device == "crowded"), options=lambda *_, **__: [first, second],
        duration=lambda _, placement: seconds[placement.devices[0]],
    )  # fmt: skip
    task: Any = SimpleNamespace(fastest_modes=lambda: [mode])
    assert least_loaded(task, view) is (first, second)[chosen]
    seconds["crowded"] = 3.0 if kind == "exclusive" else 1.5
    assert least_loaded(task, view) is first  # as early on the one with less load


@pytest.mark.parametrize(("discipline", "starts"), [("block", [0, 10, 15]), ("skip", [0, 22, 2])])
def test_nothing_passes_the_most_urgent_under_block(discipline: Any, starts: list[float]):
    """One of two GPUs is busy for 10 s; then a pair of 5 s waits, and a single task of 20 s that came after it."""
    jobs = [Job([gpu_mode(GPU)], [10.0]), Job([gpu_mode(GPU, 2)], [5.0], 1.0), Job([gpu_mode(GPU)], [20.0], 2.0)]
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs, Wfp3(discipline=discipline))
    assert record.start.tolist() == starts


@pytest.mark.parametrize(("core", "gpu"), [(2.0, 10.0), (10.0, 2.0)])
@pytest.mark.parametrize("spoliation", [True, False])
def test_an_idle_side_restarts_what_it_ends_earlier(core: float, gpu: float, spoliation: bool):
    """Both tasks are faster on one side: at 2 s it is idle again, and takes the other task from the slow side."""
    spec = NodeSpec(cpus=1, accelerators=((GPU, 1),))
    kind = Cluster([spec]).nodes[0].cpu.type
    modes = [cpu_mode(kind), gpu_mode(GPU)]
    record = simulate(spec, [Job(modes, [core, gpu]) for _ in range(2)], HeteroPrio(spoliation=spoliation))
    assert sorted(record.finish.tolist()) == ([2, 4] if spoliation else [2, 10])


def test_a_restart_counts_all_work_as_lost():
    """Also work that was saved earlier: `Stop(keep=False)` keeps nothing."""
    table = tasks_of([Job([gpu_mode(GPU)], [10.0])])
    task = Task(0, 0.0, table.shapes[0], (10.0,), (10.0,), table)
    task.done = 0.5
    [node] = Cluster([NodeSpec(cpus=1, accelerators=((GPU, 1),))]).nodes
    placement = Placement(task.modes[0], tuple(node.accelerators))
    stages = SimpleNamespace(ready=1.0, write_back=2.0, upload=3.0, download=4.0)
    view: Any = SimpleNamespace(stages=lambda tasks, placement: stages)
    assert from_scratch(task, placement, view) == 2 + 3 + 10 + 4


def test_rounds_look_for_replicas_from_the_first_that_is_wanted():
    """Before, no device can have one; a device of a replica has a load without an end."""
    cluster = Cluster([NodeSpec(cpus=1, accelerators=((GPU, 2),))])
    serving: set[Any] = set()
    view: Any = SimpleNamespace(
        cluster=cluster, load=lambda device: float(device in serving), first=lambda mode: None,
        free_at=lambda device: math.inf if device in serving else 0.0,
    )
    scheduler = FcfsRounds()
    assert scheduler._held_by_replicas(view) == {}
    first = cluster.nodes[0].accelerators[0]
    serving.add(first)
    scheduler.replica(SimpleNamespace(modes=()), view)
    assert scheduler._held_by_replicas(view) == {first.index: None}
    serving.clear()
    assert scheduler._held_by_replicas(view) == {}
    serving.add(first)  # another replica may open again
    assert scheduler._held_by_replicas(view) == {first.index: None}


def test_owners_without_tasks_are_refused():
    """With the first ten of the owners that there are."""
    policy = QuotaBorrow({"u3": 1.0, "x": 2.0})
    names = [f"u{n}" for n in range(12)]
    problem: Any = SimpleNamespace(tasks=SimpleNamespace(users=names, classes=[], partitions=[], extra={}))
    with pytest.raises(ScenarioError, match=r'quotas must have a user with tasks; got.* u0, u1, .*u9, and 2 more'):
        policy.check(problem)
    problem.tasks.users = [f"u{n}" for n in range(10)]
    with pytest.raises(ScenarioError, match="u8, u9") as caught:
        policy.check(problem)
    assert "more" not in str(caught.value)
    problem.tasks.users = ["u3", "x"]
    policy.check(problem)


def test_a_task_moves_for_the_fastest_mode_of_another():
    """Two singles on each of two nodes of three; the newcomer takes 5 s on two GPUs, or 50 s on three."""
    stopping = Stopping(save=1.0, restore=2.0)
    singles = [Job([gpu_mode(GPU)], [100.0], stopping=stopping) for _ in range(4)]
    jobs = [*singles, Job([gpu_mode(GPU, 3), gpu_mode(GPU, 2)], [50.0, 5.0], 10.0)]
    policy = registry.policy("scheduler", "defragment")(placement=registry.policy("placement", "worst_fit"))
    record = simulate(NodeSpec(accelerators=((GPU, 3),), count=2), jobs, policy)
    assert record.migrations is not None and record.migrations.sum() == 1 and record.start[4] == pytest.approx(11)


def test_a_job_that_comes_within_a_round_takes_an_idle_device():
    """And one that comes when none is idle waits for the next end, at 400 s."""
    jobs = [Job([gpu_mode(GPU)], [400.0]), Job([gpu_mode(GPU)], [900.0], 100.0), Job([gpu_mode(GPU)], [50.0], 361.0)]
    spec = NodeSpec(accelerators=((GPU, 2),))
    assert simulate(spec, jobs, MaxMinFairness(360.0)).start.tolist() == [0, 100, 400]
    assert simulate(spec, jobs[:2], MaxMinFairness(360.0, mid_round=False)).start.tolist() == [0, 360]


def test_where_the_record_says_that_a_task_ran():
    """On its one node, or among its nodes where the mode may span; else anywhere."""
    policy = AsRecorded()
    asked: list[dict[str, Any]] = []

    def first(mode: Any, task: Any, **where: int) -> Any:
        asked.append(where)
        return None if mode == "slow" else (mode, *where.items())

    view: Any = SimpleNamespace(first=first, fit=lambda task: "anywhere")

    def mode(name: str, span_any: bool = False, node_count: int = 1) -> Any:
        return SimpleNamespace(name=name, span_any=span_any, node_count=node_count)

    def placed(nodes: list[int], *modes: Any) -> Any:
        task: Any = SimpleNamespace(index=0, fastest_modes=lambda: modes)
        policy._nodes = [nodes]
        asked.clear()
        placement = policy._placement(task, view)
        return placement if placement is None or isinstance(placement, str) else placement[1:]

    one, wide, gang = mode("one"), mode("wide", span_any=True), mode("gang", span_any=True, node_count=2)
    assert placed([2], one) == placed([2], wide) == (("node", 2),)
    assert placed([0, 2], wide) == placed([0, 2], gang) == (("among", 0b101),)
    assert placed([0, 2], one) == placed([2], gang) == placed([], wide) == "anywhere"
    assert placed([0, 2], wide, one) == "anywhere"
    policy.nodes, policy._nodes = False, None
    task: Any = SimpleNamespace(index=0, fastest_modes=lambda: (one,))
    assert policy._placement(task, view) == "anywhere"


def test_notes_of_a_replay():
    """Two of three starts were late, by 2 and 4 s."""
    policy = AsRecorded()
    assert policy.notes == {"late_starts": 0, "mean_lateness": 0, "max_lateness": 0, "unknown_nodes": 0}
    policy._begun = [0.0, 2.0, 4.0]
    assert policy.notes == {"late_starts": 2, "mean_lateness": 2, "max_lateness": 4, "unknown_nodes": 0}
    cluster = Cluster([NodeSpec(accelerators=((GPU, 1),), count=2)])
    names = np.array(["n0", "n0|n9", "", None, "n1|n0"], dtype=object)
    start = np.array([1.0, np.nan, 2.0, 3.0, 4.0])
    tasks = tasks_of([Job([gpu_mode(GPU)], [1.0])] * 5)
    tasks.extra.update({"recorded_start": start, "recorded_node": names})
    policy.prepare(SimpleNamespace(tasks=tasks, cluster=cluster))  # type: ignore[arg-type]
    assert policy._nodes == [[0], [0], [], [], [1, 0]] and policy.notes["unknown_nodes"] == 1
    assert policy._start.tolist() == [1, math.inf, 2, 3, 4]


# GPUs at fixed intervals ----------------------------------------------------------------------------------------------


def at_interval(row: int, sizes: list[int], share: dict[int, int] | None = None, **more: Any) -> IntervalJob:
    """A job with modes of these sizes; on g GPUs over n nodes it is g^0.8 / n^0.2 times as fast as on one."""
    task = SimpleNamespace(index=row, arrival=more.pop("arrival", 0.0))
    job = IntervalJob(task, {size: gpu_mode(GPU, size, span_any=True) for size in sizes}, **more)  # type: ignore[arg-type]
    job.share = share or {}
    job.speed = lambda layout: sum(layout) ** 0.8 / len(layout) ** 0.2  # type: ignore[method-assign]
    job.remaining = lambda width, done=None: 100 * (1 - (done or 0.0)) / width**0.8  # type: ignore[method-assign]
    return job


@pytest.mark.parametrize("seed", range(6))
def test_gpus_are_taken_from_the_emptiest_nodes(seed: int):
    random = np.random.default_rng(seed)
    for _ in range(20):
        room = {node: int(count) for node, count in enumerate(1 + random.integers(0, 6, 4))}
        total, most = sum(room.values()), max(room.values())
        for anywhere in (True, False):
            gpus = int(random.integers(1, total + 1))
            left, mode = dict(room), gpu_mode(GPU, gpus, span_any=anywhere)
            share = spread(mode, left)
            if not anywhere and gpus > most:
                assert share == {} and left == room
                continue
            assert sum(share.values()) == gpus and {n: left[n] + share.get(n, 0) for n in room} == room
            # All but the last of its nodes are used up, and no node with more than one of these is left out.
            partly = [node for node in share if left[node]]
            assert len(partly) <= 1 and (anywhere or len(share) <= 1)
            if share:
                least = min(room[node] for node in share)
                assert all(room[node] <= least or node in share for node in room)


@pytest.mark.parametrize("seed", range(6))
def test_least_attained_service_at_intervals_by_loops(seed: int):
    """A job falls into a later queue and never back; within one in the order of coming; it runs if enough are left."""
    random = np.random.default_rng(seed)
    policy, queues, came = LasIntervals(60.0, [50.0, 10.0]), {}, 0
    attained = random.uniform(0, 15, 8)
    shares: dict[int, dict[int, int]] = {}
    for _ in range(6):
        seen = [float(one) for one in attained]
        jobs = [at_interval(row, [1 + row % 3], shares.get(row), attained=seen[row]) for row in range(8)]
        for row in range(8):
            level = sum(attained[row] >= one for one in (10.0, 50.0))
            if row not in queues or level > queues[row][0]:
                came += 1
                queues[row] = (level, came)
        room = {0: 4, 1: 3}
        dealt = policy.deal(jobs, dict(room), NOTHING)
        left, runs = 7, []
        for row in sorted(range(8), key=queues.__getitem__):
            width = 1 + row % 3
            if width <= left:
                left -= width
                runs.append(row)
        assert sorted(dealt) == sorted(runs)
        for row in runs:
            assert sum(dealt[row].values()) == 1 + row % 3 and (not shares.get(row) or dealt[row] == shares[row])
        for node, count in room.items():
            assert sum(share.get(node, 0) for share in dealt.values()) <= count
        shares = dealt
        attained[runs] += random.uniform(0, 30, len(runs))
    policy.finished(SimpleNamespace(index=0))  # type: ignore[arg-type]
    assert 0 not in policy._queued and len(policy._queued) == 7


@pytest.mark.parametrize("seed", range(6))
def test_optimus_at_intervals_by_loops(seed: int):
    """One GPU for each in turn, then each step to the job that gains most per GPU, while there are GPUs and gains."""
    random = np.random.default_rng(seed)
    jobs = [at_interval(row, sorted(set(random.integers(1, 6, 3).tolist())), done=float(random.uniform(0, 0.9)))
            for row in range(5)]  # fmt: skip
    room = {0: int(random.integers(1, 6)), 1: int(random.integers(1, 6))}
    free, widths = sum(room.values()), {}
    for job in jobs:
        if min(job.sizes) <= free:
            widths[job.task.index] = min(job.sizes)
            free -= min(job.sizes)
    hopeless: set[int] = set()
    while free:
        steps = {}
        for row, width in widths.items():
            wider = [size for size in jobs[row].sizes if size > width]
            if wider and row not in hopeless:
                done = jobs[row].done
                gain = jobs[row].remaining(width, done) - jobs[row].remaining(wider[0], done)
                steps[row] = gain / (wider[0] - width), wider[0]
        if not steps:
            break
        row = max(steps, key=lambda one: steps[one][0])
        if steps[row][1] - widths[row] > free:
            hopeless.add(row)
        else:
            free -= steps[row][1] - widths[row]
            widths[row] = steps[row][1]
    dealt = OptimusIntervals(60.0).deal(jobs, dict(room), NOTHING)
    assert {row: sum(share.values()) for row, share in dealt.items()} == widths
    kept = [at_interval(job.task.index, list(job.sizes), dealt.get(job.task.index), done=job.done) for job in jobs]
    assert OptimusIntervals(60.0).deal(kept, dict(room), NOTHING) == dealt  # who has as many keeps those


def test_a_step_that_does_not_pay_gets_nothing():
    job = at_interval(0, [1, 2, 4])
    job.remaining = lambda width, done=None: {1: 10.0, 2: 10.0, 4: 1.0}[width]  # type: ignore[method-assign]
    assert OptimusIntervals(60.0).deal([job], {0: 4}, NOTHING) == {0: {0: 1}}
    job.remaining = lambda width, done=None: {1: 10.0, 2: 9.0, 4: 9.0}[width]  # type: ignore[method-assign]
    assert OptimusIntervals(60.0).deal([job], {0: 4}, NOTHING) == {0: {0: 2}}


def searching(seed: int, count: int = 4) -> tuple[GeneticSearch, Pollux, list[IntervalJob], np.ndarray]:
    random = np.random.default_rng(seed)
    policy, room = Pollux(60.0, -2.0, 12, 6, 30.0), np.array([3, 2, 2])
    jobs = [at_interval(row, [1, 2, 4, 6][: 2 + row % 3], {row % 3: 1} if row % 2 else {}, arrival=-40.0 * row)
            for row in range(count)]  # fmt: skip
    for job in jobs:
        policy._widest[job.task.index], policy._starts[job.task.index] = 1 + job.task.index, job.task.index
    search = GeneticSearch(policy, jobs, [0, 1, 2], room, SimpleNamespace(now=100.0, random=random))  # type: ignore[arg-type]
    return search, policy, jobs, room


def feasible(matrix: np.ndarray, jobs: list[IntervalJob], room: np.ndarray, limits: list[int]) -> bool:
    wide = np.count_nonzero(matrix, axis=1) > 1
    return bool(
        (matrix >= 0).all() and (matrix.sum(axis=0) <= room).all() and ((matrix[wide] > 0).sum(axis=0) <= 1).all()
        and all(int(row.sum()) in (0, *job.sizes) and row.sum() <= limit
                for row, job, limit in zip(matrix, jobs, limits, strict=True))
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_candidates_of_pollux_are_made_feasible(seed: int):
    """Nothing is added; a candidate that is feasible stays as it is."""
    search, policy, jobs, room = searching(seed)
    limits = [max(size for size in job.sizes if size <= max(1, 2 * (1 + job.task.index))) for job in jobs]
    assert [policy.widest(job) for job in jobs] == limits
    given = np.random.default_rng(seed + 9).integers(0, 4, (40, 4, 3))
    repaired = search._repaired(given)
    assert (repaired <= given).all() and repaired.any(axis=(1, 2)).mean() > 0.9
    assert all(feasible(one, jobs, room, limits) for one in repaired)
    assert (search._repaired(repaired) == repaired).all()
    changed = search._changed(repaired)
    assert (changed >= 0).all() and (changed <= np.maximum(room, np.maximum(repaired, search.now))).all()
    assert (changed != repaired).any()
    empty = np.zeros((200, 4, 3), dtype=int)
    more = search._changed(empty)
    assert 0.5 < np.count_nonzero(more.sum(axis=1) > search.now.sum(axis=0), axis=1).mean() < 2.5
    full = np.zeros((200, 4, 3), dtype=int)
    full[:, 0] = room
    fewer = search._changed(full)  # nothing is free: it can only lose what it has, or be reset
    assert (fewer[:, 0] <= room).all() and 0.02 < (fewer[:, 0] != full[:, 0]).any(axis=1).mean() < 0.4


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(2))
def test_the_best_candidate_of_pollux(seed: int):
    """Its value is the power mean of speedups by hand, no less than that of what is there, and near the best of all."""
    search, policy, jobs, room = searching(seed, 3)
    limits = [policy.widest(job) for job in jobs]

    def value_of(matrix: np.ndarray) -> float:
        total, sum_of = room.sum(), 0.0
        for number, (row, job) in enumerate(zip(matrix, jobs, strict=True)):
            fair = max((size for size in job.sizes if size <= -(-total // len(jobs))), default=min(job.sizes))
            alone = fair**0.8 / (-(-fair // room.max())) ** 0.2
            gpus, nodes = row.sum(), np.count_nonzero(row)
            speedup = gpus**0.8 / nodes**0.2 / alone if gpus else 0.0
            if (row != search.now[number]).any():
                age, restarts = 100.0 - job.task.arrival, max(0, number - 1)
                speedup *= max(age - restarts * 30.0, 0.0) / (age + 30.0)
            sum_of += (speedup * len(room) / total + 1e-3) ** -2.0
        return float((sum_of / len(jobs)) ** -0.5)

    def all_rows(job: IntervalJob, limit: int) -> list[tuple[int, ...]]:
        cells = itertools.product(*(range(count + 1) for count in room.tolist()))
        return [row for row in cells if sum(row) in (0, *job.sizes) and sum(row) <= limit]

    found = search.run(np.zeros((0, 3, 3), dtype=np.int64))
    values = [value_of(matrix) for matrix in found]
    assert search._values(found).tolist() == pytest.approx(values) and values == sorted(values, reverse=True)
    assert len(found) <= 12 and len({matrix.tobytes() for matrix in found}) == len(found)
    every = [np.array(rows) for rows in itertools.product(*map(all_rows, jobs, limits))]
    best = max(value_of(one) for one in every if feasible(one, jobs, room, limits))
    assert value_of(search.now) <= values[0] <= best * (1 + 1e-9) and values[0] > 0.8 * best
    again = searching(seed, 3)[0].run(np.zeros((0, 3, 3), dtype=np.int64))
    assert (again == found).all()


def test_children_of_pollux_have_the_first_jobs_of_one_parent():
    search, *_ = searching(1)
    parents = np.arange(3)[:, None, None] * np.ones((3, 4, 3), dtype=int)
    children = search._crossed(parents, np.array([1.0, 3.0, 2.0]), 300)
    of_job = children[:, :, 0]
    assert (children == of_job[:, :, None]).all() and (np.count_nonzero(np.diff(of_job, axis=1), axis=1) <= 1).all()
    shares = [float((of_job == one).mean()) for one in range(3)]
    assert shares[1] > shares[2] > shares[0] > 0.05  # of two the better becomes a parent: 5, 3 and 1 of 9
    assert shares == pytest.approx([1 / 9, 5 / 9, 3 / 9], abs=0.08)
    for gpus, nodes, layout in ((6, 1, (6,)), (6, 2, (3, 3)), (7, 3, (3, 2, 2)), (8, 3, (3, 3, 2))):
        assert search._layout(gpus, nodes) == layout


def test_what_pollux_keeps_from_interval_to_interval():
    policy = Pollux(60.0, -1.0, 4, 2, 30.0)
    policy._last_rows, policy._last_nodes = [5, 3, 8], [0, 2]
    policy._last_matrices = np.array([[[1, 2], [3, 4], [5, 6]]])
    jobs = [at_interval(row, [1]) for row in (8, 7, 5)]
    assert policy._adapted(jobs, [2, 1, 0]).tolist() == [[[6, 0, 5], [0, 0, 0], [2, 0, 1]]]
    assert policy.deal([], {0: 1}, NOTHING) == {} == policy.deal(jobs, {}, NOTHING)
    view: Any = SimpleNamespace(now=10.0, random=np.random.default_rng(0))
    first = policy.deal([at_interval(0, [1, 2]), at_interval(1, [1, 2])], {0: 2, 1: 2}, view)
    assert sorted(first) == [0, 1] and policy._starts == {0: 1, 1: 1} and policy._widest == {0: 0, 1: 0}
    there = [at_interval(row, [1, 2], first[row]) for row in (0, 1)]
    second = policy.deal(there, {0: 2, 1: 2}, view)
    assert policy._widest == {row: sum(first[row].values()) for row in (0, 1)}
    assert policy._starts == {row: 1 + (second.get(row, first[row]) != first[row]) for row in (0, 1)}
    assert [policy.restarts(job) for job in there] == [policy._starts[row] - 1 for row in (0, 1)]
    policy.finished(there[0].task)
    assert policy._widest.keys() == policy._starts.keys() == {1}
