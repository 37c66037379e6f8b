"""Second opinions: schedulers written again in a few lines, without the engine, agree to the last second."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.policy import ListScheduler
from hetsim.testing import System
from hetsim.testing.systems import cpu_mode, gpu_mode, node, workload
from hetsim_policies.dynamic.preemptive import Srtf
from hetsim_policies.orders import FcfsSkip, fcfs, sjf

GPU = DeviceType("g")
SEEDS = range(8)


def load(seed, widths, count=400):
    """Random arrivals, widths and times; every other seed on whole seconds, so that much falls on one instant."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1.0, count))
    time = random.lognormal(0.5, 1.0, count)
    if seed % 2:
        arrival, time = np.floor(arrival), np.ceil(time)
    return arrival.tolist(), random.choice(widths, count).tolist(), time.tolist()


def simulate(scheduler, servers, arrival, width, time):
    """GPUs of one node; a task takes `width` of them."""
    widths = sorted(set(width))
    shapes = [Shape([gpu_mode(GPU, w)]) for w in widths]
    rows = [(a, widths.index(w), t) for a, w, t in zip(arrival, width, time, strict=True)]
    cluster = Cluster([node(accelerators=((GPU, servers),))])
    system = System("second opinion", cluster, workload(rows, shapes))
    return Simulation(system.run_input(scheduler), check=True).run()


def queue_by_hand(servers, arrival, width, time, key, strict):
    """Walk from instant to instant: finishes, arrivals, then starts in order, until one does not fit if strict."""
    start = [None] * len(arrival)
    free, running, waiting, coming = servers, [], [], list(range(len(arrival)))[::-1]
    while coming or waiting:
        now = min(([arrival[coming[-1]]] if coming else []) + ([running[0][0]] if running else []))
        while running and running[0][0] == now:
            free += heapq.heappop(running)[1]
        while coming and arrival[coming[-1]] == now:
            waiting.append(coming.pop())
        for task in sorted(waiting, key=key):
            if width[task] <= free:
                start[task] = now
                free -= width[task]
                heapq.heappush(running, (now + time[task], width[task]))
            elif strict:
                break
        waiting = [task for task in waiting if start[task] is None]
    return start


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_strict_fcfs_with_gangs(seed):
    arrival, width, time = load(seed, [1, 1, 2, 4])
    expected = queue_by_hand(6, arrival, width, time, key=lambda task: task, strict=True)
    assert simulate(ListScheduler(fcfs), 6, arrival, width, time).start.tolist() == expected


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_skipping_fcfs_with_gangs(seed):
    arrival, width, time = load(seed, [1, 1, 2, 4])
    expected = queue_by_hand(6, arrival, width, time, key=lambda task: task, strict=False)
    assert simulate(FcfsSkip(), 6, arrival, width, time).start.tolist() == expected


@pytest.mark.quick(4)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "skipping"])
@pytest.mark.parametrize("seed", SEEDS)
def test_shortest_job_first_with_gangs(seed, strict):
    arrival, width, time = load(seed, [1, 2, 3])
    expected = queue_by_hand(4, arrival, width, time, key=lambda task: (time[task], task), strict=strict)
    scheduler = ListScheduler(sjf, discipline="block" if strict else "skip")
    assert simulate(scheduler, 4, arrival, width, time).start.tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_fcfs_on_equal_servers_is_the_kiefer_wolfowitz_recursion(seed):
    """Each arrival takes the server that is free first."""
    arrival, width, time = load(seed, [1])
    free_at, expected = [0.0] * 3, []
    for a, t in zip(arrival, time, strict=True):
        begin = max(a, heapq.heappop(free_at))
        heapq.heappush(free_at, begin + t)
        expected.append(begin)
    assert simulate(ListScheduler(fcfs), 3, arrival, width, time).start.tolist() == expected


def srtf_by_hand(arrival, time):
    """One server: always the least time left; ties stay with the one that runs, then by arrival."""
    left, finish = list(time), [0.0] * len(arrival)
    now, coming, here, current = 0.0, list(range(len(arrival)))[::-1], [], None
    while coming or here:
        if not here:
            now = max(now, arrival[coming[-1]])
        while coming and arrival[coming[-1]] <= now:
            here.append(coming.pop())
        current = min(here, key=lambda task: (left[task], task != current, task))
        until = min(now + left[current], arrival[coming[-1]] if coming else float("inf"))
        left[current] -= until - now
        if until == now + left[current] or left[current] <= 1e-12:
            finish[current] = until
            here.remove(current)
            current = None
        now = until
    return finish


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", SEEDS[::2])
def test_srtf_on_one_server(seed):
    """Without ties: the time left of a stopped task is rounded, so whole seconds would not stay equal."""
    arrival, _, time = load(seed, [1], count=300)
    arrival = [2.6 * a for a in arrival]  # mean time about 2.7: busy, not hopeless
    rows = [(a, 0, t) for a, t in zip(arrival, time, strict=True)]
    system = System("srtf", Cluster([node(cpus=1)]), workload(rows, [Shape([cpu_mode()])]))
    record = Simulation(system.run_input(Srtf()), check=True).run()
    assert record.finish.tolist() == pytest.approx(srtf_by_hand(arrival, time), rel=1e-12, abs=1e-9)
    assert record.preemptions.sum() > 20
