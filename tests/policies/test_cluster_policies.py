"""Schedulers of GPU clusters: written again in a few lines they agree to the last second; what they promise holds."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import Job, gpu_mode, simulate, tasks_of
from scipy import stats
from tiers import examples, spread

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.record import RunInput
from hetsim.policy import ListScheduler
from hetsim_policies.dynamic.backfilling import ConservativeBackfill, EasyBackfill, GangBackfill
from hetsim_policies.dynamic.elastic import Afs, Optimus, SpeedupMean
from hetsim_policies.dynamic.preemptive import Las, Srtf
from hetsim_policies.dynamic.qssf import Qssf
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor
from hetsim_policies.dynamic.turns import Themis
from hetsim_policies.dynamic.users import Drf, QuotaBorrow, Wfq
from hetsim_policies.orders import FcfsSkip

GPU = DeviceType("g")
SEEDS = spread(range(6), 3)


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
        free = servers - sum(width[task] for _, task in running)
        for task in choose(now, free, waiting, {task: start[task] for _, task in running}):
            start[task] = now
            heapq.heappush(running, (now + time[task], task))
            waiting.remove(task)
    return start


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


@pytest.mark.quick(2)
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


@pytest.mark.quick(2)
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


@pytest.mark.quick(1)
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

    def backfill(self, heads, view):
        for head in heads:
            self.shadows.setdefault(head.index, view.earliest_fit(head).time)
        return super().backfill(heads, view)


@examples(40)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 4), depth=st.sampled_from([0, 1, 5, 50, None]))
def test_no_head_starts_after_the_shadow_it_had_when_it_became_head(seed, nodes, depth):
    arrival, width, time, _ = load(seed, widths=(1, 2, 4), count=60)
    policy = Noting(depth)
    arrival = [a / nodes for a in arrival]
    begun = starts(policy, 4, arrival, width, time, time, nodes)
    for row, shadow in policy.shadows.items():
        assert begun[row] <= shadow


@examples(40)
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


@pytest.mark.slow
def test_on_heavy_tails_with_free_preemption_srtf_is_before_las_and_las_before_fcfs():
    """Paired over replications, 99 %: one-GPU jobs, attained service = GPUs × time."""
    means = {"srtf": [], "las": [], "fcfs": []}
    for seed in range(10):
        random = np.random.default_rng(seed)
        times = random.pareto(1.6, 1000) + 1
        arrivals = np.cumsum(random.exponential(times.mean() / 4 / 0.85, 1000))
        mode = gpu_mode(GPU, 1)
        jobs = tasks_of([Job([mode], [t], a) for a, t in zip(arrivals.tolist(), times.tolist(), strict=True)])
        for name, policy in (("srtf", Srtf()), ("las", Las([2.0, 4.0, 8.0, 32.0])), ("fcfs", ListScheduler())):
            cluster = Cluster([NodeSpec(accelerators=((GPU, 4),))])
            record = Simulation(RunInput("heavy tails", cluster, jobs, policy)).run()
            means[name].append(float((record.finish - record.ready).mean()))
    for better, worse in (("srtf", "las"), ("las", "fcfs")):
        difference = np.array(means[worse]) - np.array(means[better])
        assert stats.ttest_1samp(difference / means[worse], 0, alternative="greater").pvalue < 0.01


# Users -------------------------------------------------------------------------------------------------------------


def of_users(names, arrival, width, time, cores=None, **more):
    """Tasks with users: names by row."""
    modes = {}
    for w, c in zip(width, cores or [0] * len(width), strict=True):
        modes.setdefault((w, c), gpu_mode(GPU, w, millicores=1000 * c))
    keys = zip(width, cores or [0] * len(width), strict=True)
    tasks = tasks_of([Job([modes[k]], [t], a, **more) for k, a, t in zip(keys, arrival, time, strict=True)])
    users = sorted(set(names))
    return replace(tasks, users=users, user_code=np.array([users.index(name) for name in names]))


def drf_by_hand(users, arrival, width, cores, time, gpus, cpus):
    """At every instant: of the users whose first task fits, the one with the least dominant share."""
    start, running, coming, waiting = [None] * len(arrival), [], list(range(len(arrival)))[::-1], []
    while coming or waiting:
        now = min(([arrival[coming[-1]]] if coming else []) + ([running[0][0]] if running else []))
        while running and running[0][0] == now:
            heapq.heappop(running)
        while coming and arrival[coming[-1]] == now:
            waiting.append(coming.pop())
        while True:
            free = gpus - sum(width[t] for _, t in running), cpus - sum(cores[t] for _, t in running)
            firsts = {}
            for task in waiting:
                firsts.setdefault(users[task], task)

            def share(user):
                mine = [t for _, t in running if users[t] == user]
                return max(sum(width[t] for t in mine) / gpus, sum(cores[t] for t in mine) / cpus)

            fitting = [(share(u), t) for u, t in firsts.items() if width[t] <= free[0] and cores[t] <= free[1]]
            if not fitting:
                break
            task = min(fitting)[1]
            start[task] = now
            waiting.remove(task)
            heapq.heappush(running, (now + time[task], task))
    return start


@pytest.mark.parametrize("seed", SEEDS)
def test_dominant_resource_fairness(seed):
    arrival, width, time, _ = load(seed, widths=(1, 2))
    random = np.random.default_rng(seed)
    users = random.choice(["a", "b", "c"], len(arrival), p=[0.6, 0.3, 0.1]).tolist()
    cores = random.choice([0, 1, 4], len(arrival)).tolist()
    tasks = of_users(users, arrival, width, time, cores)
    record = simulate(NodeSpec(cpus=8, accelerators=((GPU, 4),)), tasks, Drf())
    assert record.start.tolist() == drf_by_hand(users, arrival, width, cores, time, 4, 8)


def test_wfq_serves_backlogged_users_by_their_weights():
    """Both have 300 tasks of a second there at once on one GPU: at every time a has had twice what b has."""
    users = ["a"] * 300 + ["b"] * 300
    tasks = of_users(users, [0.0] * 600, [1] * 600, [1.0] * 600)
    start = simulate(NodeSpec(accelerators=((GPU, 1),)), tasks, Wfq({"a": 2.0})).start
    for until in range(30, 420, 30):
        a, b = (start[:300] < until).sum(), (start[300:] < until).sum()
        assert abs(a / 2 - b) <= 1.5


def test_qssf_learns_who_has_short_jobs():
    """From the second job on, the user whose first was short goes before the one whose first was long."""
    users = ["long", "short", "long", "short"]
    tasks = of_users(users, [0, 1, 2, 3], [1] * 4, [100.0, 5.0, 100.0, 5.0])
    start = simulate(NodeSpec(accelerators=((GPU, 1),)), tasks, Qssf()).start
    assert start.tolist() == [0, 100, 105, 205]  # nobody was known when they began to wait
    tasks = of_users(["long", "short", "x", "long", "short"], [0, 1, 2, 110, 111], [1] * 5, [100, 5, 50, 100, 5])
    start = simulate(NodeSpec(accelerators=((GPU, 1),)), tasks, Qssf()).start
    assert start[4] < start[3]


def test_quotas_are_borrowed_and_taken_back():
    """b lends its four GPUs to a, and takes back just what it needs: the latest borrower stops."""
    users = ["a"] * 8 + ["b"]
    tasks = of_users(users, [0.0] * 8 + [5.0], [1] * 8 + [2], [20.0] * 9)
    nodes = NodeSpec(accelerators=((GPU, 8),))
    record = simulate(nodes, tasks, QuotaBorrow({"a": 4, "b": 4}))
    assert record.start.tolist() == [0.0] * 8 + [5.0]
    assert record.preemptions.tolist() == [0] * 6 + [1, 1, 0]
    assert simulate(nodes, tasks, QuotaBorrow({"a": 4, "b": 4}, reclaim=False)).start[8] == 20
    alone = simulate(nodes, tasks, QuotaBorrow({"a": 4, "b": 4}, borrow=False))
    assert alone.start.tolist() == [0] * 4 + [20] * 4 + [5]


def test_slurm_ranks_by_usage_age_and_size():
    """While one GPU is busy with a's job, a and b ask: b has used nothing and goes first; by age alone, a does."""
    tasks = of_users(["a", "a", "b"], [0, 1, 2], [1] * 3, [10.0] * 3)
    nodes = NodeSpec(accelerators=((GPU, 1),))
    assert simulate(nodes, tasks, SlurmMultifactor()).start.tolist() == [0, 20, 10]
    assert simulate(nodes, tasks, SlurmMultifactor(fair_share=0.0)).start.tolist() == [0, 10, 20]


def test_gangs_of_whole_nodes_do_not_starve_behind_small_tasks():
    """One node of 4: single GPUs keep coming; the gang of 4 starts when those before it have ended."""
    arrival, width, time = [0, 0.5] + list(range(1, 40)), [1, 4] + [1] * 39, [4, 5] + [4.0] * 39
    assert starts(FcfsSkip(), 4, arrival, width, time, time)[1] > 30
    assert starts(GangBackfill(), 4, arrival, width, time, time)[1] == 4


def test_themis_gives_way_to_the_worst_off_when_a_lease_ends():
    """A job of 1,000 s has the GPU; one of 10 s comes at 100 and gets it at the end of the lease, at 200."""
    begun = starts(Themis(lease=200.0), 1, [0, 100], [1, 1], [1000, 10], [1000, 10])
    assert begun == [0, 200]


@pytest.mark.parametrize("policy", [Optimus, Afs, SpeedupMean])
def test_elastic_jobs_grow_when_alone_and_share_when_not(policy):
    """Times 80, 44, 26 s on 1, 2 and 4 GPUs: alone a job has all four, and two share them."""
    modes = [gpu_mode(GPU, size) for size in (1, 2, 4)]
    nodes = NodeSpec(accelerators=((GPU, 4),))
    alone = simulate(nodes, [Job(modes, [80.0, 44.0, 26.0])], policy())
    assert alone.finish.tolist() == [26.0]
    two = simulate(nodes, [Job(modes, [80.0, 44.0, 26.0])] * 2, policy(interval=1000.0))
    assert two.finish.tolist() == [44.0, 44.0]
    late = simulate(nodes, [Job(modes, [80.0, 44.0, 26.0]), Job(modes, [80.0, 44.0, 26.0], 13.0)], policy(interval=1.0))
    assert late.finish[0] == pytest.approx(13 + 22)  # half done on four, the other half on two
    assert late.start[1] == 13
