"""EASY, conservative and Slurm's backfilling on several nodes, against reservations by hand on what nodes have free.

EASY: only the head of the queue has a reservation, on one node.  A task behind it starts on the first node with room,
or else on the first other one, unless the head would lack GPUs on its node when it is to start.

Conservative: at every instant all reservations are made anew, in order of arrival: with exact estimates they come out
as those that stand, with wrong ones that is the rule.  A task that fits one node takes the first of the nodes on which
it can begin earliest; a gang that may span nodes is spread where that is earlier, over nodes in their order; one of
equal parts takes the first nodes that have room for a part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, tasks_of

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType
from hetsim.model.faults import FaultEvent
from hetsim.model.randomness import RandomTree
from hetsim.model.record import RunInput
from hetsim_policies.dynamic.backfilling import ConservativeBackfill, EasyBackfill
from hetsim_policies.dynamic.common.reservations import FreeProfile
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor

GPU = DeviceType("g")
CPU = DeviceType("cpu", kind="cpu")
NODES, SIZE, LIMIT, ALL, JOBS = 3, 4, 7, -1, 30
Taken = list[tuple[float, float, dict[int, int]]]
"""Begin, end and GPUs by node of what runs and what has a reservation."""
Chosen = Iterator[tuple[int, dict[int, int]]]
"""Jobs that start now, and where."""


def least_free(taken: Taken, node: int, begin: float, end: float) -> int:
    """GPUs of a node that stay free from `begin` to `end`; of ALL: what a limit on all of them leaves."""
    moments = [begin] + [b for b, _, _ in taken if begin < b < end]
    if node == ALL:
        return min(LIMIT - sum(sum(on.values()) for b, e, on in taken if b <= at < e) for at in moments)
    return min(SIZE - sum(on.get(node, 0) for b, e, on in taken if b <= at < e) for at in moments)


def on_one_node(width: int, free: Callable[[int], int]) -> dict[int, int] | None:
    return next(({node: width} for node in range(NODES) if free(node) >= width), None)


def spread_out(width: int, free: Callable[[int], int]) -> dict[int, int] | None:
    found: dict[int, int] = {}
    for node in range(NODES):
        here = min(free(node), width - sum(found.values()))
        if here:
            found[node] = here
    return found if sum(found.values()) == width else None


def anywhere(width: int, free: Callable[[int], int]) -> dict[int, int] | None:
    return on_one_node(width, free) or spread_out(width, free)


def in_two_halves(width: int, free: Callable[[int], int]) -> dict[int, int] | None:
    nodes = [node for node in range(NODES) if free(node) >= width // 2]
    return dict.fromkeys(nodes[:2], width // 2) if len(nodes) > 1 else None


def within_limit(width: int, free: Callable[[int], int]) -> dict[int, int] | None:
    return on_one_node(width, free) if free(ALL) >= width else None


def reservation(taken: Taken, now: float, width: int, estimate: float, rule: Any) -> tuple[float, dict[int, int]]:
    """When and where: the first moment at which something ends and the rule finds room for long enough."""
    for begin in sorted({now} | {end for _, end, _ in taken if end > now}):
        found = rule(width, lambda node, at=begin: least_free(taken, node, at, at + estimate))
        if found is not None:
            return begin, found
    raise AssertionError("nothing runs for ever")


Row = tuple[float, int, float, float]
"""Arrival, width, time, estimate."""


def conservative(
    waiting: list[int], jobs: list[Row], taken: Taken, now: float, rule: Any, count: float = math.inf
) -> Chosen:
    """count: reservations that are kept for later."""
    for job in waiting:
        _, width, _, estimate = jobs[job]
        begin, nodes = reservation(taken, now, width, estimate, rule)
        if begin == now:
            yield job, nodes
        elif count:
            count -= 1
        else:
            continue
        taken.append((begin, begin + estimate, nodes))


def easy(waiting: list[int], jobs: list[Row], taken: Taken, now: float, rule: Any) -> Chosen:
    shadow, there, needs = math.inf, -1, 0
    for job in waiting:
        _, width, _, estimate = jobs[job]
        places = [node for node in range(NODES) if least_free(taken, node, now, now) >= width]
        if shadow < math.inf:  # the place that it would take, and those off the node of the head
            places = places[:1] + [node for node in places if node != there]
            places = [node for node in places if node != there or now + estimate <= shadow or
                      least_free(taken, node, shadow, shadow) >= needs + width]  # fmt: skip
        if places:
            taken.append((now, now + estimate, {places[0]: width}))
            yield job, {places[0]: width}
        elif shadow == math.inf:
            shadow, on = reservation(taken, now, width, 0.0, rule)
            (there,), needs = on, width


def by_hand(jobs: list[Row], rule: Any, choose: Any) -> list[float]:
    """The starts, from instant to instant."""
    start = [math.nan] * len(jobs)
    where: dict[int, dict[int, int]] = {}
    running: dict[int, float] = {}
    waiting, coming = [], list(range(len(jobs)))
    while coming or waiting:
        now = min([*(jobs[job][0] for job in coming[:1]), *running.values()])
        running = {job: end for job, end in running.items() if end > now}
        while coming and jobs[coming[0]][0] == now:
            waiting.append(coming.pop(0))
        taken: Taken = [
            (now, max(start[job] + jobs[job][3], math.nextafter(now, math.inf)), where[job]) for job in running
        ]
        for job, nodes in list(choose(list(waiting), jobs, taken, now, rule)):
            waiting.remove(job)
            start[job], where[job], running[job] = now, nodes, now + jobs[job][2]
    return start


def load(seed: int, widths: tuple[int, ...], wrong: bool) -> list[Row]:
    """Arrivals, widths, times and estimates at random; every other seed in whole seconds, so that much is at once."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1.0, JOBS))
    time = random.lognormal(1.0, 0.8, JOBS)
    if seed % 2:
        arrival, time = np.floor(arrival), np.ceil(time)
    estimate = time * random.choice([0.5, 1.0, 3.0], JOBS) if wrong else time
    width = random.choice(widths, JOBS)
    return [(float(a), int(w), float(t), float(e)) for a, w, t, e in zip(arrival, width, time, estimate, strict=True)]


BOUND = Partition("p", mask=(1 << NODES) - 1, max_gpus=LIMIT)
RULES: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "one node": (on_one_node, (1, 2, 3, 4), partial(gpu_mode, GPU)),
    "any nodes": (anywhere, (1, 2, 4, 6), partial(gpu_mode, GPU, span_any=True)),
    "two halves": (in_two_halves, (2, 4, 8), partial(gpu_mode, GPU, span_any=True, node_count=2)),
    "a limit on all": (within_limit, (1, 2, 3, 4), partial(gpu_mode, GPU, partition=BOUND)),
    "cores of any nodes": (anywhere, (1, 2, 4, 6), partial(cpu_mode, CPU, span_any=True)),
}


def starts(jobs: list[Row], policy: Any, mode: Any, own: list[float] | None = None, **more: Any) -> list[float]:
    modes = {width: mode(width) for _, width, _, _ in jobs}
    ranks = own or [0.0] * len(jobs)
    given = [
        Job([modes[w]], [t], a, estimates=[e], priority=p, **more) for (a, w, t, e), p in zip(jobs, ranks, strict=True)
    ]
    cluster = Cluster([NodeSpec(cpus=SIZE, cpu_type=CPU, accelerators=((GPU, SIZE),), count=NODES)])
    cluster.partitions = {"p": BOUND}
    run = RunInput("test", cluster, tasks_of(given), policy, random=RandomTree(1))
    found: list[float] = Simulation(run, check=True).run().start.tolist()
    return found


@pytest.mark.quick(6)
@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("kind", RULES)
def test_conservative_reservations_by_hand(kind, seed, wrong):
    rule, widths, mode = RULES[kind]
    jobs = load(seed, widths, wrong)
    assert starts(jobs, ConservativeBackfill(depth=None), mode) == by_hand(jobs, rule, conservative)


@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("seed", range(4))
def test_easy_backfilling_by_hand(seed, wrong):
    jobs = load(seed, (1, 2, 3, 4), wrong)
    assert starts(jobs, EasyBackfill(depth=None), partial(gpu_mode, GPU)) == by_hand(jobs, on_one_node, easy)


def multifactor(priority: Callable[[int, float], float], count: float) -> Any:
    """Start in the order of priority; from the first job that does not fit on, reservations in that order.  A job that
    a limit keeps waiting does not block the jobs behind it, and has no reservation."""

    def choose(waiting: list[int], jobs: list[Row], taken: Taken, now: float, rule: Any) -> Chosen:
        behind: list[int] = []
        for job in sorted(waiting, key=lambda job: (-priority(job, now), job)):
            width = jobs[job][1]
            nodes = None if behind else rule(width, lambda node: least_free(taken, node, now, now))
            if nodes:
                taken.append((now, now + jobs[job][3], nodes))
                yield job, nodes
            elif behind or rule is not within_limit or least_free(taken, ALL, now, now) >= width:
                behind.append(job)
        yield from conservative(behind, jobs, taken, now, rule, count or math.inf)

    return choose


AT_ONCE = {"calc_period": 0.0, "bf_interval": 0.0, "bf_job_part_count_reserve": 0}


def priorities(moving: bool, seed: int, jobs: list[Row], gpus: bool) -> tuple[dict[str, Any], Any, list[float]]:
    """Parameters of multifactor priority, the same by hand, and the jobs' own priorities."""
    own = np.random.default_rng(seed).integers(0, 3, JOBS).astype(float).tolist()
    if not moving:
        weights = {"age": 0.0, "size": 0.0, "fair_share": 0.0, "priority": 1.0}
        return weights | AT_ONCE, lambda job, now: own[job], own
    weights = {"age": 64.0, "max_age": 64.0, "size": 66.0, "fair_share": 0.0, "priority": 0.0}
    size = 66 / (NODES * SIZE) if gpus else 0.0
    return weights | AT_ONCE, lambda job, now: min(64.0, now - jobs[job][0]) + size * jobs[job][1], own


@pytest.mark.quick(2)
@pytest.mark.parametrize("moving", [False, True], ids=["own priority", "age and size"])
@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_multifactor_priority_by_hand(count, kind, wrong, moving):
    """count: how many jobs get reservations; 0: all."""
    rule, widths, mode = RULES[kind]
    for seed in (2, 3):
        jobs = load(seed, widths, wrong)
        parameters, priority, own = priorities(moving, seed, jobs, "cores" not in kind)
        found = starts(jobs, SlurmMultifactor(**parameters | {"bf_job_part_count_reserve": count}), mode, own)
        assert found == by_hand(jobs, rule, multifactor(priority, count))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", [kind for kind in RULES if kind != "a limit on all"])
def test_no_backfilled_job_delays_a_reservation(kind, monkeypatch):
    """In order of arrival and with exact estimates a job starts when it was first told, or earlier."""
    first: dict[int, float] = {}

    class Noted(FreeProfile):
        def find(self, task, view):
            found = super().find(task, view)
            assert found is not None
            first.setdefault(task.index, found.time)
            return found

    monkeypatch.setattr("hetsim_policies.dynamic.slurm_multifactor.FreeProfile", Noted)
    _, widths, mode = RULES[kind]
    count = 0
    for seed in range(4, 8):
        policy = SlurmMultifactor(age=1.0, max_age=1e9, size=0.0, fair_share=0.0, **AT_ONCE)
        begun = starts(load(seed, widths, False), policy, mode)
        assert all(begun[job] <= time for job, time in first.items())
        count += len(first)
        first.clear()
    assert count > 20


def test_no_reservation_is_made_where_no_job_behind_it_could_start(monkeypatch):
    """Narrow jobs fit, but would delay wide ones: they need no reservations before these start."""
    finds = []
    find = FreeProfile.find
    note = lambda self, task, view: finds.append((view.now, task.index)) or find(self, task, view)  # noqa: E731
    monkeypatch.setattr(FreeProfile, "find", note)
    count = 40
    running = [(0.0, SIZE - 1, 1000.0, 1000.0)] * NODES
    wide = [(1.0, SIZE, 10.0, 10.0)] * NODES
    narrow = [(2.0 + number, 1, 2000.0, 2000.0) for number in range(count)]
    own = [900.0] * (2 * NODES) + [float(number) for number in range(count)]
    policy = SlurmMultifactor(age=0.0, size=0.0, fair_share=0.0, **AT_ONCE)
    begun = starts(running + wide + narrow, policy, partial(gpu_mode, GPU), own)
    assert begun[: 2 * NODES] == [0.0] * NODES + [1000.0] * NODES
    assert all(start >= 1010 for start in begun[2 * NODES :])
    assert finds
    assert not [row for now, row in finds if now < 1000 and row >= 2 * NODES]


def test_a_part_of_a_gang_leaves_room_on_its_node():
    """M1 takes three of eight GPUs of n1 and two of n0 later, so that M2 starts on the other five of n1 at once."""

    def job(name, **more):
        return {"name": name, "arrivals": {"process": "all_at_once", "count": 1}, **more}

    nodes = [{"name": name, "cpus": cpus, "gpus": {"type": "a", "count": 8}}
             for name, cpus in (("n0", 4), ("nW", 1), ("n1", 8))]  # fmt: skip
    found = hs.run({"name": "parts", "cluster": {"nodes": nodes}, "policy": "conservative_backfill", "workload": [
        job("C", cpus=8, cpu_time="100 s"), job("C0", cpus=4, cpu_time="60 s"), job("Y", gpus=5, gpu_time="1000 s"),
        job("W", gpus=8, gpu_time="30 s"), job("X", gpus=4, cpus=8, gpu_time="1000 s"),
        job("Z", gpus=1, cpus=4, gpu_time="1000 s"), job("M1", gpus=5, span="any", gpu_time="500 s"),
        job("M2", gpus=5, span="any", gpu_time="50 s")]})  # fmt: skip
    last = found.tasks.iloc[-1]
    assert (last.start, last.finish) == (0, 50) and last.device.startswith("n1/g3")


def test_a_reservation_lasts_for_all_stages_and_for_no_restore_of_what_was_never_saved():
    """A second of upload and two of download for each job; in whole seconds, so that sums are exact."""
    jobs = load(9, (1, 2, 3, 4), False)
    mode = partial(gpu_mode, GPU, upload=StageTime(per_item=1.0), download=StageTime(per_item=2.0))
    found = starts(jobs, ConservativeBackfill(depth=None), mode, stopping=Stopping(restore=3.0))
    assert found == by_hand([(a, w, t + 3, e + 3) for a, w, t, e in jobs], on_one_node, conservative)


RESERVING = "conservative_backfill", "gang_backfill", "slurm_multifactor"


def run_table(tmp_path: Any, table: pd.DataFrame, policy: Any, **gpus: Any) -> pd.DataFrame:
    """Run a table of tasks on a node of four GPUs, each with a link of 1 GB/s."""
    table.to_csv(tmp_path / "tasks.csv", index=False)
    node = {"cpus": 8, "gpus": {"type": "g", "count": 4, **gpus}, "pcie": {"upload": "1 GB/s", "download": "1 GB/s"}}
    workload = [{"trace": {"format": "tasks", "path": str(tmp_path / "tasks.csv")}}]
    scenario = {"name": "x", "cluster": {"nodes": [node]}, "workload": workload, "policy": policy}
    return hs.run(scenario).tasks.set_index("id")


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", RESERVING)
def test_transfers_count_in_reservations_as_computing_does(policy, seed, tmp_path):
    """On links of their own, tasks with bytes start as those do that compute for as long as all stages take."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame({"id": range(40), "arrival": np.cumsum(random.integers(0, 4, 40)), "gpus": 1})
    table["gpu_time"] = random.integers(1, 20, 40)
    table.loc[random.random(40) < 0.3, "gpus"] = 4
    table["bytes_in"] = np.where(table.gpus == 1, random.integers(0, 9, 40) * 10**9, 0)
    table["bytes_out"] = np.where(table.gpus == 1, random.integers(0, 9, 40) * 10**9, 0)
    moving = run_table(tmp_path, table, policy)
    seconds = table.gpu_time + (table.bytes_in + table.bytes_out) / 1e9
    computing = run_table(tmp_path, table.assign(gpu_time=seconds, bytes_in=0, bytes_out=0), policy)
    assert computing.wait.max() > 20
    np.testing.assert_allclose(moving.start, computing.start, atol=1e-6)


@pytest.mark.parametrize("depth", [100, 2])
def test_a_small_task_that_gives_up_leaves_the_reservation_of_a_gang(depth, tmp_path):
    """All GPUs are busy until 5, when the gang is due, which came after a small task of 1 s.  Another small one loses
    its patience at that very instant; with a window of three it makes room there for the last one."""
    table = pd.DataFrame({
        "id": range(5), "arrival": [0, 1, 2, 3, 4], "gpus": [4, 1, 4, 1, 1], "gpu_time": [5, 1, 3, 9, 1],
        "patience": [np.nan, np.nan, np.nan, 2, np.nan],
    })  # fmt: skip
    tasks = run_table(tmp_path, table, {"scheduler": {"name": "gang_backfill", "depth": depth}})
    assert tasks.status.tolist() == ["completed"] * 3 + ["expired", "completed"]
    assert tasks.start.drop(3).tolist() == [0, 8, 5, 8]


@pytest.mark.parametrize("policy", RESERVING)
def test_the_time_to_recut_a_gpu_counts_in_reservations(policy, tmp_path):
    """Three GPUs are busy until 10, when the second is to have all four.  On the idle one half a GPU would compute from
    1 to 8, but 4 s are needed to cut it: it waits until the second has ended, at 15, and computes from 19."""
    table = pd.DataFrame({"id": [0, 1, 2], "arrival": [0, 1, 1], "gpus": [3, 4, 0.5], "gpu_time": [10, 5, 7]})
    sharing = {"kind": "mig", "layouts": [[1.0], [0.5, 0.5]], "reconfigure": "4 s"}
    assert run_table(tmp_path, table, policy, memory="80 GB", sharing=sharing).start.tolist() == [0, 10, 19]


@pytest.mark.parametrize("policy", [EasyBackfill, ConservativeBackfill])
def test_who_fits_and_is_held_back_is_told_why(policy):
    """Of four GPUs one runs to 10 with 3, and the head needs all: a long one could run on the last and must not, one
    that is too wide cannot."""
    jobs = [Job([gpu_mode(GPU, w)], [t], a) for a, w, t in [(0, 3, 10), (1, 4, 5), (2, 1, 20), (3, 2, 1)]]
    record = simulate(NodeSpec(accelerators=((GPU, 4),)), jobs, policy(depth=None))
    assert record.start.tolist() == [0, 10, 15, 15]
    assert record.holds == [(2.0, 2, "reservation")]


@pytest.mark.parametrize("policy", [EasyBackfill, ConservativeBackfill])
def test_what_a_failed_device_makes_impossible_holds_nobody_up(policy):
    """One GPU of two is down from 1 to 5: the pair that came at 2 has no place before, and a single one passes it."""
    spec = NodeSpec(accelerators=((GPU, 2),))
    down = Cluster([spec]).by_name["n0/g1"].index
    faults = [FaultEvent(1.0, down, "down"), FaultEvent(5.0, down, "up")]
    jobs = [Job([gpu_mode(GPU, 2)], [3.0], 2.0), Job([gpu_mode(GPU)], [2.0], 2.0)]
    assert simulate(spec, jobs, policy(depth=None), faults=faults).start.tolist() == [5, 2]


def test_a_round_costs_something_where_every_waiting_task_may_have_a_reservation():
    problem: Any = None
    assert ConservativeBackfill(depth=None).round_cost(problem) > 0 == ConservativeBackfill(depth=5).round_cost(problem)
