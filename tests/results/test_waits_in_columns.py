"""Waits by cause and free GPUs in columns, compared with a replay stretch by stretch and task by task."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hand_made import cluster, gpu_mode, record, workload
from replay_by_step import FreeCapacity, RunReplay, free_gpus

import hetsim as hs
from hetsim.model.record import LAUNCH_LOST, LAUNCH_STOPPED
from hetsim.results.one_run import replay as in_columns
from hetsim.results.one_run.explain import CAUSES, _seconds, _sum_below, _waits, causes
from hetsim.results.one_run.fragmentation_metrics import fragmentation_steps
from hetsim.results.one_run.replay import FITS, FRAGMENTED
from hetsim.results.one_run.result import Result

PCIE = {"upload": "4 GB/s", "download": "4 GB/s"}
FAULTS = [
    {"on": "gpu", "every": {"distribution": "exponential", "mean": "40 s"}, "repair": "6 s"},
    {"on": "node", "every": {"distribution": "exponential", "mean": "150 s"}, "repair": "6 s"},
]


def scenario(seed: int, policy: Any, classes: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """Gangs, tasks with transfers, and tasks on cores, on nodes of two kinds."""
    own = classes or [{}, {}, {}]

    def entry(name: str, count: int, rate: str, mean: str, at: int, **keys: Any) -> dict[str, Any]:
        time = "cpu_time" if name == "cores" else "gpu_time"
        return {"name": name, "count": count, "arrivals": {"process": "poisson", "rate": rate}, "users": 3,
                time: {"distribution": "exponential", "mean": mean}, **keys, **own[at]}  # fmt: skip

    return {
        "name": "waits", "seed": seed, "policy": policy,
        "cluster": {"nodes": [
            {"count": 2, "cpus": 4, "memory": "40 GB",
             "gpus": {"type": "g", "count": 4, "pcie": PCIE, "memory": "16 GB"}},
            {"count": 2, "cpus": 8, "gpus": {"type": "h", "count": 2, "pcie": PCIE}},
        ]},
        "workload": [
            entry("gang", 40, "0.25/s", "6 s", 0, gpus=3),
            entry("small", 120, "1/s", "3 s", 1, bytes_in="2 GB", bytes_out="1 GB"),
            entry("cores", 60, "0.5/s", "10 s", 2, cpus=3),
        ],
    } | more  # fmt: skip


def mig(seed: int) -> dict[str, Any]:
    made = scenario(seed, "fcfs_skip", [{}, {"gpus": 0.25}, {}])
    made["cluster"]["nodes"][1]["gpus"] = {
        "type": "a100", "count": 2, "memory": "40 GB", "sharing": {"kind": "mig"}, "pcie": PCIE,
    }  # fmt: skip
    return made


def cores_alone(seed: int) -> dict[str, Any]:
    made = scenario(seed, "fcfs")
    return made | {"cluster": {"nodes": [{"count": 2, "cpus": 4}]}, "workload": made["workload"][2:]}


def partitions(seed: int) -> dict[str, Any]:
    made = scenario(seed, "fcfs", [{"partition": "p"}, {"partition": "q"}, {"partition": "p"}])
    for node, name in zip(made["cluster"]["nodes"], "pq", strict=True):
        node["partitions"] = name
    return made


CASES = {
    **{name: scenario(1, name) for name in ("fcfs", "fcfs_skip", "easy_backfill", "conservative_backfill", "srtf")},
    **{f"{name}, faults": scenario(2, name, faults=FAULTS) for name in ("fcfs", "easy_backfill", "srtf")},
    "gangs over nodes": scenario(3, "easy_backfill", [{"gpus": 6, "span": "any", "cpus": 2}, {}, {}]),
    "decisions take time": scenario(4, {"scheduler": {"name": "fcfs"}, "decisions": {"per_cycle": "0.5 s"}}),
    "parts of GPUs, memory": scenario(5, "fcfs_skip", [{"memory": "15 GB"}, {"gpus": 0.25, "gpu_memory": "6 GB"}, {}]),
    "partitions": partitions(6),
    "MIG": mig(7),
    "no accelerators": cores_alone(8),
}  # fmt: skip


def by_stretch(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """The states of variants and the earliest waiting tasks, from a replay step by step."""
    waits, rec = _waits(result), result.record
    tasks = rec.input.tasks
    usable = np.isfinite(tasks.time[waits.row])
    bits = usable @ (1 << np.arange(usable.shape[1]))
    modes: list[list[Any]] = [[] for _ in waits.state]
    for variant, row, mask in zip(waits.variant.tolist(), waits.row.tolist(), bits.tolist(), strict=True):
        shape = tasks.shapes[tasks.shape[row]]
        modes[variant] = [mode for j, mode in enumerate(shape.modes) if mask >> j & 1]
    state = FreeCapacity(rec.input.cluster, [mode for own in modes for mode in own])
    noted = np.array([time for time, _, _ in rec.holds])
    cycles = () if rec.cycles is None else rec.cycles.values()
    until = np.where(np.isnan(rec.finish), rec.end, rec.finish)
    until = np.where(np.isnan(rec.start), until, rec.start)[waits.row]
    replay = RunReplay(rec, result.modes, state, [waits.ready, until, waits.decided, noted, *cycles])
    assert np.array_equal(replay.grid, waits.grid)
    events = [(time, False, at) for at, time in enumerate(waits.ready.tolist())]
    events += [(time, True, at) for at, time in enumerate(waits.decided.tolist())]
    place = {row: at for at, row in enumerate(waits.row.tolist())}
    events += [(rec.finish[row], True, at) for row, at in place.items() if not np.isnan(rec.finish[row])]
    names = ("task", "decided", "end", "outcome")
    for task, decided, end, outcome in [] if rec.launches is None else zip(*map(rec.launches.get, names), strict=True):
        if task in place:
            events.append((decided, True, place[task]))
            if outcome in (LAUNCH_STOPPED, LAUNCH_LOST):
                events.append((end, False, place[task]))
    heapq.heapify(events)
    waiting: set[int] = set()
    firsts = [waits.row[waits.variant == variant][0] for variant in range(len(modes))]
    bound = [tasks.shapes[tasks.shape[row]].modes[0].partition for row in firsts]
    claims = [-1 if one is None else one.claims for one in bound]
    states, heads = np.zeros_like(waits.state), np.full_like(waits.head, np.iinfo(np.int64).max)
    for number, (begin, _, _) in enumerate(replay.segments()):
        while events and events[0][0] <= begin:
            _, leaves, at = heapq.heappop(events)
            (waiting.discard if leaves else waiting.add)(at)
        fits, suffices = state.fit(), state.suffices()
        position = 0
        for variant, own in enumerate(modes):
            part = slice(position, position + len(own))
            states[variant, number] = FITS if fits[part].any() else FRAGMENTED if suffices[part].any() else 0
            position += len(own)
        for at in waiting:
            variant = waits.variant[at]
            if states[variant, number] != FITS:
                for other in range(len(modes)):
                    if claims[other] & claims[variant]:
                        head = heads[waits.part[other]]
                        head[number] = min(head[number], waits.rank[at])
    return states, heads


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_columns_are_what_a_replay_gives(name: str):
    """Of each stretch in which a task waits, and of each task, the same; the seconds but for rounding."""
    result = hs.run(CASES[name])
    assert isinstance(result, Result)
    waits = _waits(result)
    states, heads = by_stretch(result)
    np.testing.assert_array_equal(waits.state, states)
    np.testing.assert_array_equal(waits.head, heads)
    lengths, made = np.diff(waits.grid, append=waits.grid[-1]), _seconds(waits)
    expected = np.zeros_like(made)
    for at in range(len(waits.row)):
        part, cause = waits.stretches(at)
        expected[at] = np.bincount(cause, weights=lengths[part], minlength=len(CAUSES))
    np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-11 * result.end)
    np.testing.assert_array_equal(made == 0, expected == 0)
    assert (expected > 0).any(axis=0).sum() >= (1 if name == "no accelerators" else 2)
    if "faults" in name:
        assert result.record.launches is not None and np.asarray(result.record.launches["outcome"]).any()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_states_of_nodes_are_those_of_the_replay(name: str):
    """Cores, memory, shares and GPU memory that are free, and what is up, of every node in every stretch."""
    result = hs.run(CASES[name])
    assert isinstance(result, Result)
    given, asked = result.record.input, result.record.input.tasks.modes
    columns = in_columns.RunReplay(result.record, result.modes, in_columns.FreeCapacity(given.cluster, asked))
    step = RunReplay(result.record, result.modes, FreeCapacity(given.cluster, asked))
    at, (node, *states) = columns.states()
    here = np.full(len(given.cluster.nodes), -1)
    for number, _ in enumerate(step.segments()):
        begins = np.flatnonzero(at == number)
        here[node[begins]] = begins
        now = step.state
        expected = (now.cores, now.memory, now.cpu_usable, now.share, now.gpu_memory, now.usable)
        for column, values in zip(states[:6], expected, strict=True):
            np.testing.assert_array_equal(column[here], values)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [name for name in CASES if name != "no accelerators"])
def test_free_gpus_are_those_of_the_replay(name: str):
    """GPUs unallocated, those that the mix cannot use, and those up, whenever any of them changes."""
    result = hs.run(CASES[name])
    assert isinstance(result, Result)
    steps, expected = fragmentation_steps(result), np.array(list(free_gpus(result))).T
    at = np.searchsorted(steps[0], expected[0], side="right") - 1
    for values, others in zip(steps[1:], expected[1:], strict=True):
        np.testing.assert_allclose(values[at], others, rtol=0, atol=1e-8)
    assert np.isin(steps[0], expected[0]).all() and 0 < steps[2].max() < steps[3].max()


def test_a_reservation_and_a_line_by_hand():
    """One node of two GPUs: A runs on one of them 0-10, then B, a gang of two from 1, C (one GPU) from 2 behind B.

    B: no capacity 1-10, then it runs to 12.  C fits from 2 to 10: behind B to 4, where the policy states a
    reservation; then there is no room until 12.
    """
    tasks = workload([0, 1, 2], [10, 2, 1], [[gpu_mode()], [gpu_mode(2)]], [0, 1, 0])
    rec = record(cluster(gpus=2), tasks, [0, 10, 12], [10, 12, 13], [(1,), (1, 2), (1,)])
    rec.holds = [(4.0, 2, "reservation")]
    found = causes(Result(rec))
    assert found.loc[1, list(CAUSES)].tolist() == [9, 0, 0, 0, 0, 0, 0, 0, 0]
    assert found.loc[2, list(CAUSES)].tolist() == [2, 0, 2, 0, 6, 0, 0, 0, 0]


def test_sums_below_a_bound():
    random = np.random.default_rng(3)
    values, weights = random.integers(0, 40, 200), random.integers(0, 10**12, 200)
    first, last = np.sort(random.integers(0, 201, (2, 500)), axis=0)
    bound = random.integers(0, 42, 500)
    expected = [weights[a:b][values[a:b] < c].sum() for a, b, c in zip(first, last, bound, strict=True)]
    assert _sum_below(values, weights, first, last=last, bound=bound).tolist() == expected
    nothing, zeros = np.zeros(0, np.int64), np.zeros(2, np.int64)
    assert _sum_below(nothing, nothing, zeros, last=zeros, bound=zeros).tolist() == [0, 0]


def test_nothing_was_launched():
    """One task is ready at 1 and waits until the end at 5, though there is room."""
    rec = record(cluster(), workload([1], [2]), [np.nan], [np.nan], [None], end=5.0)
    assert causes(Result(rec)).loc[0, "choice"] == 4
