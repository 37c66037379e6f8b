"""Schedulers and placements against their papers: leases, elastic jobs, fragmentation, sleep; fairness without GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import record, workload
from machines import Job, cpu_mode, gpu_mode, simulate

import hetsim as hs
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Power
from hetsim.model.mode import Shape
from hetsim.results.one_run.groups import cores_label, size_labels, title
from hetsim.results.one_run.result import Result
from hetsim_policies.dynamic.elastic import Afs, Optimus, SpeedupMean
from hetsim_policies.dynamic.power_down import PowerDown
from hetsim_policies.dynamic.turns import Themis
from hetsim_policies.placement_rules.common.fragmentation import Mix, NodeClass

GPU, SLOW = DeviceType("g"), DeviceType("s", speed=0.9)
CPU = DeviceType("cpu", kind="cpu")
HOUR = 3600.0
ELASTIC = [Optimus, Afs, SpeedupMean]


# Themis: leases ---------------------------------------------------------------------------------------------------


def test_themis_auctions_again_when_a_lease_ended_long_before_somebody_came():
    """A newcomer's ρ is 1/N, exactly that of the job that runs alone: A keeps the GPU for one lease more, not for good.

    At 2 h + 20 min B has waited a lease: (1/3 + 1/2) / (1/2 × 2) is above A's 100 / (100 × 2).
    """
    modes = [gpu_mode(GPU)]
    jobs = [Job(modes, [100 * HOUR]), Job(modes, [0.5 * HOUR], 2 * HOUR)]
    found = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Themis())
    assert found.start.tolist() == [0, 2 * HOUR + 1200]
    assert found.finish == pytest.approx([100.5 * HOUR, 2 * HOUR + 1200 + 0.5 * HOUR])
    assert found.preemptions.tolist() == [1, 0]


def test_themis_renews_the_lease_of_whoever_keeps_the_gpu():
    """A's lease of 100 s is over when B comes at 150 s: a tie, and A has it until 250 s.  Then ρ is 300 / 600 of A and
    1100 / 2000 of B.  From there on they take turns, a lease each, and nobody is asked in between."""
    rounds = []

    class Watched(Themis):
        def schedule(self, view):
            rounds.append(view.now)
            yield from super().schedule(view)

    modes = [gpu_mode(GPU)]
    jobs = [Job(modes, [300.0], 0.0), Job(modes, [1000.0], 150.0)]
    found = simulate(NodeSpec(accelerators=((GPU, 1),)), jobs, Watched(lease=100.0))
    assert found.start.tolist() == [0, 250]
    assert found.finish[0] == pytest.approx(400)  # it has had 250 s; B's lease ends at 350
    assert sorted(set(rounds)) == [0, 150, 250, 350, 400, 1300] and len(rounds) <= 10


# Elastic schedulers on several types ------------------------------------------------------------------------------


def sizes(kind, *widths):
    return [gpu_mode(kind, width) for width in widths]


TWO_TYPES = [*sizes(GPU, 1, 2, 4), *sizes(SLOW, 1, 2, 4)]


def times(work, gains=(1, 1.9, 3.5)):
    """On 1, 2 and 4 GPUs of the fast type, then of the slow one."""
    return [work / gain / speed for speed in (1.0, 0.9) for gain in gains]


@pytest.mark.parametrize("policy", ELASTIC)
def test_elastic_jobs_use_all_types_of_gpu(policy):
    """Twelve jobs of 1 h, four fast and eight slow GPUs: all start at once, and the last ends with the slow ones."""
    nodes = [NodeSpec(accelerators=((GPU, 4),)), NodeSpec(accelerators=((SLOW, 8),))]
    found = simulate(nodes, [Job(TWO_TYPES, times(HOUR)) for _ in range(12)], policy())
    assert found.start.tolist() == [0.0] * 12
    assert found.finish.max() == pytest.approx(HOUR * (1 + (1 - 0.9)))  # at 1 h four move to the fast type


@pytest.mark.parametrize("policy", ELASTIC)
def test_an_elastic_job_alone_takes_the_type_where_it_is_fastest_in_all(policy):
    """One fast GPU is worth less than four slow ones (3.5 × 0.9)."""
    nodes = [NodeSpec(accelerators=((GPU, 1),)), NodeSpec(accelerators=((SLOW, 4),))]
    found = simulate(nodes, [Job(TWO_TYPES, times(HOUR))], policy())
    assert found.finish[0] == pytest.approx(HOUR / 3.15)


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_job_whose_type_is_busy_runs_on_another_until_jobs_may_be_resized(policy):
    """The first job gives up one of its two GPUs at 50 s, when the second comes; the third comes within the interval:
    as the shortest it should be on the fast type, and starts on the slow one."""
    modes = [*sizes(GPU, 1, 2), *sizes(SLOW, 1)]
    nodes = [NodeSpec(accelerators=((GPU, 2),)), NodeSpec(accelerators=((SLOW, 1),))]
    jobs = [Job(modes, [t, t / 1.9, t / 0.9], at) for t, at in ((1000.0, 0.0), (900.0, 50.0), (500.0, 60.0))]
    found = simulate(nodes, jobs, policy(interval=600.0))
    assert found.start.tolist() == [0.0, 50.0, 60.0]


def test_equally_fast_types_are_no_reason_to_move():
    """Two types alike; the short job comes second, ranks first and takes what is idle."""
    other = DeviceType("h")
    modes = [gpu_mode(GPU), gpu_mode(other)]
    nodes = [NodeSpec(accelerators=((GPU, 1),)), NodeSpec(accelerators=((other, 1),))]
    jobs = [Job(modes, [1000.0] * 2), Job(modes, [500.0] * 2, 10.0)]
    found = simulate(nodes, jobs, Optimus(interval=1.0))
    assert found.preemptions is None or not found.preemptions.any()
    assert found.finish.tolist() == [1000.0, 510.0]


@pytest.mark.parametrize("policy", ELASTIC)
@pytest.mark.parametrize("absent", [SLOW, DeviceType("fast", speed=2.0)])
def test_a_type_that_the_cluster_has_not_is_no_size(policy, absent):
    modes = [*sizes(GPU, 1, 2), *sizes(absent, 1, 2)]
    job = Job(modes, [100.0, 60.0, 100.0 / absent.speed, 60.0 / absent.speed])
    assert simulate(NodeSpec(accelerators=((GPU, 2),)), [job], policy()).finish.tolist() == [60.0]


# AFS: the pairwise rule -------------------------------------------------------------------------------------------


def test_afs_gives_the_gpu_to_the_longer_job_that_gains_more():
    """1 h with 1.2 on two GPUs, 10 h with 1.9: 0.9 / 1.9 > 0.2, so the third GPU is the longer job's."""
    modes = sizes(GPU, 1, 2)
    jobs = [Job(modes, [HOUR, HOUR / 1.2]), Job(modes, [10 * HOUR, 10 * HOUR / 1.9])]
    found = simulate(NodeSpec(accelerators=((GPU, 3),)), jobs, Afs())
    assert found.finish == pytest.approx([HOUR, 10 * HOUR / 1.9])


def test_afs_gives_the_gpu_to_the_shorter_job_that_gains_as_much():
    """Both 1.9: 0.9 / 1.9 < 0.9.  The longer one is at 1 h / 1.9 when it grows."""
    modes = sizes(GPU, 1, 2)
    jobs = [Job(modes, [10 * HOUR, 10 * HOUR / 1.9]), Job(modes, [HOUR, HOUR / 1.9])]
    found = simulate(NodeSpec(accelerators=((GPU, 3),)), jobs, Afs())
    assert found.finish == pytest.approx([HOUR / 1.9 + (10 * HOUR - HOUR / 1.9) / 1.9, HOUR / 1.9])


def test_of_two_jobs_afs_makes_the_choice_of_less_mean_response():
    """Three GPUs, two jobs of up to two, worked out for both choices; the longer one ends last in either."""
    random = np.random.default_rng(5)
    modes = sizes(GPU, 1, 2)
    longer = 0
    for _ in range(60):
        short, gain, other = random.uniform(1, 10), *random.uniform(1.05, 1.95, 2)
        long = other * short * random.uniform(1.1, 4)
        to_short = short / gain + (short / gain + (long - short / gain) / other)
        to_long = short + long / other
        longer += to_long < to_short
        jobs = [Job(modes, [short, short / gain]), Job(modes, [long, long / other])]
        found = simulate(NodeSpec(accelerators=((GPU, 3),)), jobs, Afs())
        assert found.finish.sum() == pytest.approx(min(to_short, to_long))
    assert 10 < longer < 50


def afs_l(time, gpus):
    """The paper's rule a GPU at a time; `time[job][size - 1]`.  Jobs meet from the shortest on."""
    size = [1] * len(time)
    for _ in range(gpus - len(time)):
        able = sorted((time[j][size[j] - 1], j) for j in range(len(time)) if size[j] < len(time[j]))
        if not able:
            break
        best = able[0][1]
        for _, job in able[1:]:
            (a, a_more), (b, b_more) = ([1 / time[j][size[j] - 1 + k] for k in (0, 1)] for j in (best, job))
            if (b_more - b) / b_more > (a_more - a) / a:
                best = job
        size[best] += 1
    return size


@pytest.mark.parametrize("seed", range(8))
def test_afs_agrees_with_its_rule_written_again(seed):
    random = np.random.default_rng(seed)
    modes, dealt = sizes(GPU, 1, 2, 3, 4), []

    class Watched(Afs):
        def allocate(self, jobs, view):
            found = super().allocate(jobs, view)
            dealt.append([found[job.index].gpus for job in sorted(jobs, key=lambda job: job.index)])
            return found

    work = random.lognormal(0, 1.5, 5)
    gain = np.cumsum(np.sort(random.uniform(0.05, 1, (5, 4)), axis=1)[:, ::-1], axis=1)
    time = work[:, None] / gain * gain[:, :1]
    jobs = [Job(modes, row.tolist()) for row in time]
    simulate(NodeSpec(accelerators=((GPU, 11),)), jobs, Watched())
    assert dealt[0] == afs_l(time.tolist(), 11)


# Fragmentation of the paper ---------------------------------------------------------------------------------------


def state(gpus, cores, whole):
    share = np.array([0] * (gpus - whole) + [WHOLE] * whole)
    return NodeClass(cores * 1000, np.inf, ("g",) * gpus, share, np.full(gpus, np.inf))


def test_all_free_gpus_are_fragments_to_a_task_that_asks_for_none():
    mix = Mix({Shape([cpu_mode(CPU, 4)]): 1})
    assert mix.fragmentation(state(8, 64, 8)) == 8
    assert mix.fragmentation(state(8, 0, 3)) == 3


def test_fragmentation_is_that_of_the_papers_program():
    """Its own test, with alike requests put together: 9.54 % ask for no GPU, 1.55 % for more cores than a node has.

    8 × 11.09 %; with half of the cores and GPUs 2.77 % more do not fit, 4 × 13.86 %; without cores all are lost.
    """
    mix = Mix({
        Shape([cpu_mode(CPU, 1)]): 954, Shape([gpu_mode(GPU, 8, millicores=120_000)]): 155,
        Shape([gpu_mode(GPU, 4, millicores=60_000)]): 277, Shape([gpu_mode(GPU, 1, millicores=16_000)]): 8614,
    })  # fmt: skip
    assert mix.fragmentation(state(8, 64, 8)) == pytest.approx(0.8872)
    assert mix.fragmentation(state(8, 32, 4)) == pytest.approx(0.5544)
    assert mix.fragmentation(state(8, 0, 4)) == pytest.approx(4)


# Power down on a small cluster ------------------------------------------------------------------------------------


def test_a_single_gpu_sleeps_between_rare_tasks():
    """100 s each 1,000 s, 30 s to wake: 0.03 tasks are expected while it wakes, and nothing stays awake for them.

    Busy 200 s at 300 W at first and in the end, in between asleep after 30 × 100 / 90 s of idling at 100 W, waking at
    100 W.
    """
    kind = DeviceType("g", power=Power(idle=100, busy=300, sleep=10, wake=30))
    jobs = [Job([gpu_mode(kind)], [100.0], at) for at in (0.0, 1000.0)]
    found = simulate(NodeSpec(accelerators=((kind, 1),)), jobs, PowerDown())
    idle = 30 * 100 / 90
    assert [what for _, _, what, _ in found.device_log] == ["sleep", "wake", "awake"]
    assert [time for time, *_ in found.device_log] == pytest.approx([100 + idle, 1000, 1030])
    energy = Result(found).metric("energy_j")
    assert energy == pytest.approx(2 * 100 * 300 + (idle + 30) * 100 + (900 - idle) * 10)


def test_the_reserve_is_rounded_up_but_less_than_half_a_device_is_none():
    kind = DeviceType("g", power=Power(idle=100, busy=300, sleep=10, wake=30))
    mode = gpu_mode(kind)

    def wanted(gap):
        policy = PowerDown(memory=1000.0)
        for time in np.arange(0, 20_000, gap):
            policy._ask(mode, float(time))
        return policy.wanted_awake(kind, 20_000.0)

    # Of m tasks a waking time m + √m: 0.03 + 0.17, 0.2 + 0.45, 1 + 1, 3 + 1.73.
    assert [wanted(gap) for gap in (1000, 150, 30, 10)] == [0, 1, 2, 5]


# Without GPUs: cores ----------------------------------------------------------------------------------------------


def test_jain_counts_core_seconds_where_no_task_can_use_a_gpu():
    """Four cores for 10 s; ann asks for two cores and bob for one, all the time, and each is entitled to 20 core-s.

    ann got 16 of 20, bob 10 of 10: x = 0.8 and 1, 3.24 / (2 × 1.64).
    """
    where = Cluster([NodeSpec(cpus=4, cpu_type=CPU, accelerators=((GPU, 1),))])
    tasks = workload(
        [0, 0, 0], [8, 2, 10], modes=[[cpu_mode(CPU, 2)], [cpu_mode(CPU, 1)]], shape=[0, 0, 1],
        user_code=np.array([0, 0, 1]), users=["ann", "bob"],
    )  # fmt: skip
    cpu = next(device.index for device in where.devices if device.type.kind == "cpu")
    places = [(cpu, cpu), None, (cpu,)]
    found = record(where, tasks, [0, np.nan, 0], [8, np.nan, 10], places, end=10.0)
    assert Result(found).metric("jain") == pytest.approx(3.24 / (2 * 1.64))


def test_sizes_are_cores_where_no_task_asks_for_a_gpu():
    one, three, wide = (Shape([cpu_mode(CPU, cores)]) for cores in (1, 3, 600))
    assert size_labels([one, three, wide]) == ["1 core", "2–3 cores", "512–1023 cores"]
    assert cores_label(Shape([cpu_mode(CPU, 1), cpu_mode(CPU, 4)])) == "1 to 4 cores"
    assert size_labels([one, three, Shape([gpu_mode(GPU, 2)])]) == ["none", "none", "2"]
    assert title("gpus", ["1 core", "2–3 cores"]) == "cores asked for"
    assert title("gpus", ["none", "2"]) == "GPUs asked for"


def test_a_comparison_of_a_log_without_gpus_is_split_by_cores_and_tells_jain():
    entries = [
        {"name": f"w{cores}", "arrivals": {"process": "poisson", "rate": "20/h"}, "count": 20, "cpus": cores,
         "cpu_time": {"distribution": "exponential", "mean": "10 min"}}
        for cores in (16, 1, 4)
    ]  # fmt: skip
    scenario = {"name": "cores", "cluster": {"nodes": [{"cpus": 16}]}, "workload": entries}
    found = hs.compare(scenario, ["fcfs", "sjf"], metrics=["jain"], by=["gpus"])
    assert found.by("gpus").index.get_level_values(0).unique().tolist() == ["1 core", "4–7 cores", "16–31 cores"]
    assert hs.run(scenario).metric("jain") == pytest.approx(1)  # of one user
