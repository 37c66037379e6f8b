"""Schedulers of GPU clusters: written again in a few lines they agree to the last second; what they promise holds."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import Job, gpu_mode, simulate, tasks_of
from scipy import stats

from policies.dynamic.conservative_backfill import ConservativeBackfill
from policies.dynamic.easy_backfill import EasyBackfill
from policies.dynamic.las import Las
from policies.dynamic.srtf import Srtf
from sim.engine.simulation import Simulation
from sim.model.cluster import Cluster, DeviceType, NodeSpec
from sim.model.record import RunInput
from sim.policy import ListScheduler

GPU = DeviceType("g")
SEEDS = range(6)


def load(seed, widths=(1, 1, 2, 4), count=300, wrong=False):
    """Random arrivals, widths, times and estimates; every other seed on whole seconds, so that much is at once."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1.2, count))
    time = random.lognormal(0.7, 1.0, count)
    if seed % 2:
        arrival, time = np.floor(arrival), np.ceil(time)
    estimate = time * random.choice([0.5, 1.0, 1.0, 3.0], count) if wrong else time
    return arrival.tolist(), random.choice(widths, count).tolist(), time.tolist(), estimate.tolist()


def starts(scheduler, servers, arrival, width, time, estimate, nodes=1):
    return run(scheduler, servers, arrival, width, time, estimate, nodes).start.tolist()


def run(scheduler, servers, arrival, width, time, estimate, nodes=1, **more):
    modes = {w: gpu_mode(GPU, w) for w in set(width)}
    jobs = [
        Job([modes[w]], [t], a, estimates=[e], **more)
        for a, w, t, e in zip(arrival, width, time, estimate, strict=True)
    ]
    return simulate(NodeSpec(cpus=4, accelerators=((GPU, servers),), count=nodes), jobs, scheduler)


def walk(servers, arrival, width, time, choose):
    """From instant to instant: finishes, arrivals, then what `choose(now, free, waiting, running)` starts."""
    start = [None] * len(arrival)
    running, waiting, coming = [], [], list(range(len(arrival)))[::-1]
    while coming or waiting:
        now = min(([arrival[coming[-1]]] if coming else []) + ([running[0][0]] if running else []))
        while running and running[0][0] == now:
            heapq.heappop(running)
        while coming and arrival[coming[-1]] == now:
            waiting.append(coming.pop())
        for task in choose(now, servers - sum(width[task] for _, task in running), waiting, dict(running_starts(running, start))):
            start[task] = now
            heapq.heappush(running, (now + time[task], task))
            waiting.remove(task)
    return start


def running_starts(running, start):
    return [(task, start[task]) for _, task in running]


def easy_by_hand(width, estimate, depth):
    def choose(now, free, waiting, running):
        chosen, queue = [], list(waiting)
        while queue and width[queue[0]] <= free:
            chosen.append(queue.pop(0))
            free -= width[chosen[-1]]
        if not queue:
            return chosen
        head, *behind = queue
        began = running | dict.fromkeys(chosen, now)
        room, shadow = free, now
        for end, task in sorted((max(now, s + estimate[t]), t) for t, s in began.items()):
            room, shadow = room + width[task], end
            if room >= width[head]:
                break
        # What ends together with it is over by then as well.
        extra = free + sum(width[t] for t, s in began.items() if max(now, s + estimate[t]) <= shadow) - width[head]
        for task in behind[:depth]:
            if width[task] <= free and (now + estimate[task] <= shadow or width[task] <= extra):
                extra -= 0 if now + estimate[task] <= shadow else width[task]
                free -= width[task]
                chosen.append(task)
        return chosen

    return choose


@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("seed", SEEDS)
def test_easy_backfilling_on_a_pool(seed, wrong):
    arrival, width, time, estimate = load(seed, wrong=wrong)
    expected = walk(6, arrival, width, time, easy_by_hand(width, estimate, 1000))
    assert starts(EasyBackfill(depth=None), 6, arrival, width, time, estimate) == expected
    assert expected != starts(ListScheduler(), 6, arrival, width, time, estimate)


def conservative_by_hand(servers, width, estimate):
    """All reservations anew at every instant, in order of arrival, on a profile of (time, free) steps."""

    def choose(now, free, waiting, running):
        taken = [(now, max(s + estimate[t], math.nextafter(now, math.inf)), width[t]) for t, s in running.items()]
        chosen = []
        for task in waiting:
            moments = sorted({now} | {end for _, end, _ in taken})

            def fits(begin, task=task):
                end = begin + estimate[task]
                steps = [begin] + [b for b, _, _ in taken if begin < b < end]
                return all(
                    sum(w for b, e, w in taken if b <= t < e) + width[task] <= servers for t in steps
                )

            begin = next(t for t in moments if fits(t))
            taken.append((begin, begin + estimate[task], width[task]))
            if begin == now:
                chosen.append(task)
        return chosen

    return choose


@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("seed", SEEDS)
def test_conservative_backfilling_on_a_pool(seed, wrong):
    arrival, width, time, estimate = load(seed, count=150, wrong=wrong)
    expected = walk(6, arrival, width, time, conservative_by_hand(6, width, estimate))
    assert starts(ConservativeBackfill(depth=None), 6, arrival, width, time, estimate) == expected


def las_by_hand(arrival, time, threshold):
    """One server, two queues: those below the threshold first, each in order of arrival; a crossing counts at once."""
    left, got, finish = list(time), [0.0] * len(time), [0.0] * len(time)
    now, coming, here = 0.0, list(range(len(arrival)))[::-1], []
    while coming or here:
        if not here:
            now = max(now, arrival[coming[-1]])
        while coming and arrival[coming[-1]] <= now:
            here.append(coming.pop())
        current = min(here, key=lambda t: (got[t] >= threshold * (1 - 1e-9), t))  # rows by arrival
        ahead = [left[current]] + ([threshold - got[current]] if got[current] < threshold * (1 - 1e-9) else [])
        until = min([now + min(ahead)] + ([arrival[coming[-1]]] if coming else []))
        left[current] -= until - now
        got[current] += until - now
        now = until
        if left[current] <= 1e-9:
            finish[current] = now
            here.remove(current)
    return finish


@pytest.mark.parametrize("seed", SEEDS)
def test_las_with_two_queues_on_one_server(seed):
    arrival, _, time, _ = load(seed)
    arrival = [3.2 * a for a in arrival]
    record = run(Las([2.5]), 1, arrival, [1] * len(arrival), time, time)
    assert record.finish.tolist() == pytest.approx(las_by_hand(arrival, time, 2.5), rel=1e-9, abs=1e-6)
    assert record.preemptions.sum() > 10


# Promises ----------------------------------------------------------------------------------------------------------


class Noting(EasyBackfill):
    """Notes the shadow that each head had when it became head."""

    def __init__(self, depth):
        super().__init__(depth=depth)
        self.shadows = {}

    def _backfill(self, head, view):
        self.shadows.setdefault(head.index, view.earliest_fit(head).time)
        return super()._backfill(head, view)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 4), depth=st.sampled_from([0, 1, 5, 50, None]))
def test_no_head_starts_after_the_shadow_it_had_when_it_became_head(seed, nodes, depth):
    arrival, width, time, _ = load(seed, widths=(1, 2, 4), count=60)
    policy = Noting(depth)
    arrival = [a / nodes for a in arrival]
    begun = starts(policy, 4, arrival, width, time, time, nodes)
    for row, shadow in policy.shadows.items():
        assert begun[row] <= shadow


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), depth=st.sampled_from([0, 1, 5, None]))
def test_conservative_starts_no_task_later_than_fcfs_on_one_pool(seed, depth):
    arrival, width, time, _ = load(seed, count=60)
    ours = starts(ConservativeBackfill(depth=depth), 5, arrival, width, time, time)
    plain = starts(ListScheduler(), 5, arrival, width, time, time)
    assert all(a <= b for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("policy", [EasyBackfill, ConservativeBackfill])
def test_depth_zero_is_fcfs_and_depth_is_a_limit(policy):
    """Four GPUs: one runs with 3 for 10 s, the head wants 4, behind it three tasks of one GPU that end in time."""
    arrival, width, time = [0, 1, 2, 2, 2], [3, 4, 4, 1, 1], [10, 5, 1, 2, 2]
    for depth, third in ((0, 16), (1, 16), (2, 2), (None, 2)):
        begun = starts(policy(depth=depth), 4, arrival, width, time, time)
        assert begun[:2] == [0, 10]
        assert begun[3] == third, depth


def test_an_underestimated_task_neither_blocks_nor_is_stopped():
    """The first says 2 s and takes 20: the head waits on, and a short one may pass only where it leaves room."""
    begun = starts(EasyBackfill(), 4, [0, 1, 3], [3, 4, 1], [20, 5, 4], [2, 5, 4])
    assert begun == [0, 20, 25]  # the shadow is always "now": nobody may use what the head would need
    begun = starts(EasyBackfill(), 4, [0, 1, 3], [3, 2, 1], [20, 5, 4], [2, 5, 4])
    assert begun == [0, 20, 3]


# Heavy tails -------------------------------------------------------------------------------------------------------


def test_on_heavy_tails_with_free_preemption_srtf_is_before_las_and_las_before_fcfs():
    """Paired over replications, 99 %: one-GPU jobs, attained service = GPUs × time."""
    means = {"srtf": [], "las": [], "fcfs": []}
    for seed in range(12):
        random = np.random.default_rng(seed)
        times = random.pareto(1.6, 2000) + 1
        arrivals = np.cumsum(random.exponential(times.mean() / 4 / 0.85, 2000))
        mode = gpu_mode(GPU, 1)
        jobs = tasks_of([Job([mode], [t], a) for a, t in zip(arrivals.tolist(), times.tolist(), strict=True)])
        for name, policy in (("srtf", Srtf()), ("las", Las([2.0, 4.0, 8.0, 32.0])), ("fcfs", ListScheduler())):
            cluster = Cluster([NodeSpec(accelerators=((GPU, 4),))])
            record = Simulation(RunInput("heavy tails", cluster, jobs, policy)).run()
            means[name].append(float((record.finish - record.ready).mean()))
    for better, worse in (("srtf", "las"), ("las", "fcfs")):
        difference = np.array(means[worse]) - np.array(means[better])
        assert stats.ttest_1samp(difference / means[worse], 0, alternative="greater").pvalue < 0.01
