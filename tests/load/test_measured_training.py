"""Training jobs whose speed follows from measured tables, and the schedulers that deal out GPUs at intervals."""

import itertools
import math

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.model.plan import Placement
from hetsim.policy import Scheduler, Start, Stop, Wait
from hetsim.workload.costs.measured_training import StepModel, TrainingCurve
from hetsim.workload.readers.pollux import applications, read
from hetsim_policies.dynamic.intervals import IntervalJob as Standing
from hetsim_policies.dynamic.intervals import LasIntervals, OptimusIntervals, Pollux

GPU = DeviceType("g")
PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,1.0,0.0
1,16,1.8,0.0
2,8,1.1,0.1
2,16,1.9,0.1
11,8,1.5,0.5
11,16,2.3,0.5
12,8,1.6,0.6
12,16,2.4,0.6
"""
# Of batches of 16 and 32: a step of 32 is worth (var + sqr) / (var / 2 + sqr) of 16: 2 in the first epoch, where the
# gradient is all noise, and 1.5 in the second.
SMALL = "progress,iteration,metric,grad_sqr,grad_var\n100,100,0,0.0,1.0\n200,200,0,1.0,2.0\n"
LARGE = "progress,iteration,metric,grad_sqr,grad_var\n110,60,0,0.0,1.0\n220,125,0,1.0,2.0\n"
JOBS = "name,time,application,num_replicas,batch_size\na,5,net,2,32\nb,65,net,1,16\n"


@pytest.fixture
def profiles(tmp_path):
    folder = tmp_path / "profiles" / "net"
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "validation-16.csv").write_text(SMALL)
    (folder / "validation-32.csv").write_text(LARGE)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


@pytest.fixture
def net(profiles):
    return applications(profiles / "profiles", {})["net"]


def scenario(folder, policy="las_intervals", gpus=2, **trace):
    """Both jobs on two nodes."""
    return {
        "name": "small",
        "cluster": {"nodes": [{"count": 2, "cpus": 0, "gpus": {"type": "g", "count": gpus}}]},
        "workload": [{
            "name": "jobs", "span": "any",
            "trace": {
                "format": "pollux", "path": str(folder / "jobs.csv"), "profiles": str(folder / "profiles"), **trace,
            },
        }],
        "policy": policy,
    }  # fmt: skip


def test_times_are_those_of_the_tables_by_hand(net):
    # 32 samples on 2 GPUs are 16 on each, 1.9 s a step; 100 / 2 steps, then 100 / 1.5.
    curve = TrainingCurve(net, 2, 32)
    assert curve.packed == (2,)
    assert curve.seconds == pytest.approx(1.9 * (100 / 2 + 100 / 1.5))
    # On two nodes each step takes 2.3 s; half of the progress is the first epoch.
    assert curve.seconds_left((1, 1), 0.0) * curve.seconds == pytest.approx(2.3 * (50 + 100 / 1.5))
    assert curve.seconds_left((2,), 0.5) * curve.seconds == pytest.approx(1.9 * 100 / 1.5)
    assert curve.reached((1, 1), 0.0, 2.3 * 50 / curve.seconds) == pytest.approx(0.5)
    assert curve.rate((2,), 0.0) / curve.seconds == pytest.approx(2 / 1.9 / 200)
    assert curve.section(0.25) == (0.0, 0.5) and curve.section(0.5) == (0.5, 1.0) and curve.section(1.0) == (0.5, 1.0)


def test_a_batch_too_large_for_one_gpu_is_accumulated(net):
    # 32 samples on one GPU: two passes of 16, neither of which synchronizes.
    assert TrainingCurve(net, 1, 32).seconds == pytest.approx(3.6 * (50 + 100 / 1.5))
    assert TrainingCurve(net, 1, 16).seconds == pytest.approx(1.8 * 200)


def test_what_was_not_measured_cannot_run(net):
    """Four GPUs with 4 samples each."""
    assert TrainingCurve(net, 4, 16).seconds == math.inf


def test_a_placement_is_read_from_any_of_its_nodes(net):
    local = np.array([8.0])
    assert net.step_times((2, 1), local)[0] == net.step_times((1, 2), local)[0] == 1.6


def test_left_and_reached_undo_each_other(net):
    curve = TrainingCurve(net, 2, None)
    for layout, done in itertools.product([(2,), (1, 1)], [0.0, 0.2, 0.5, 0.9]):
        left = curve.seconds_left(layout, done)
        for part in (0.1, 0.6, 1.0):
            there = curve.reached(layout, done, part * left)
            assert curve.seconds_left(layout, there) == pytest.approx((1 - part) * left, abs=1e-12)


def test_the_formula_of_steps_is_found_again():
    model = StepModel((0.1, 0.01, 0.3, 0.002, 0.05, 0.001, 1.5))
    layouts = [(1, 1), (1, 2), (1, 4), (2, 4), (3, 8), (4, 16)]
    rows = [(nodes, gpus, local) for nodes, gpus in layouts for local in (8, 16, 32, 64)]
    nodes, gpus, local = np.array(rows, dtype=float).T
    step = model.seconds(nodes, gpus, local, np.zeros(len(rows)))
    sync = step - (0.1 + 0.01 * local)
    found = StepModel.fitted(np.column_stack([nodes, gpus, local, step, sync]))
    assert found.seconds(nodes, gpus, local, np.zeros(len(rows))) == pytest.approx(step, rel=0.05)


# Engine ---------------------------------------------------------------------------------------------------------------


class Script(Scheduler):
    """Runs one job on these devices from these times on."""

    def __init__(self, script):
        self.script = list(script)

    def schedule(self, view):
        while self.script and self.script[0][0] <= view.now:
            _, devices = self.script.pop(0)
            running = view.running()
            for task in running:
                yield Stop(task)
            for task in view.waiting() if devices else ():
                picked = tuple(view.cluster.devices[number] for number in devices)
                mode = next(mode for mode in task.modes if mode.gpus == len(devices))
                yield Start(task, Placement(mode, picked))
        if self.script:
            yield Wait(until=self.script[0][0])


def gpus_of(cluster):
    return [device.index for device in cluster.devices if device.type.kind != "cpu"]


def test_progress_goes_with_the_job_from_layout_to_layout(net):
    """Reckoned by epochs, not by the curve."""
    curves = {gpus: TrainingCurve(net, gpus, 32) for gpus in (1, 2)}
    modes = [gpu_mode(GPU, gpus, span_any=gpus > 1, curve=curve) for gpus, curve in curves.items()]
    nodes = NodeSpec(cpus=1, accelerators=((GPU, 2),), count=2)
    a, b, c, _ = gpus_of(Cluster([nodes]))
    script = Script([(0.0, [a, b]), (40.0, [a, c]), (70.0, []), (80.0, [c])])
    record = simulate(nodes, [Job(modes, [curve.seconds for curve in curves.values()])], script)
    # Progress a second: (2,): 2 and 1.5 steps in 1.9 s; (1, 1): in 2.3 s; (1,): in 3.6 s.
    progress = 40 * 2 / 1.9 + 30 * 2 / 2.3
    assert progress < 100
    finish = 80 + (100 - progress) / (2 / 3.6) + 100 / (1.5 / 3.6)
    assert record.finish[0] == pytest.approx(finish, abs=1e-6)


def test_policies_see_what_is_left_on_a_layout(net):
    seen = {}

    class Watch(Script):
        def schedule(self, view):
            yield from super().schedule(view)
            for task in view.running():
                seen[view.now] = view.remaining(task)

    curve = TrainingCurve(net, 2, 32)
    nodes = NodeSpec(cpus=1, accelerators=((GPU, 2),), count=2)
    a, _, c, _ = gpus_of(Cluster([nodes]))
    script = Watch([(0.0, [a, c]), (23.0, [a, c])])
    simulate(nodes, [Job([gpu_mode(GPU, 2, span_any=True, curve=curve)], [curve.seconds])], script)
    whole = 2.3 * (50 + 100 / 1.5)
    assert seen == pytest.approx({0.0: whole, 23.0: whole - 23.0})


# Reader ---------------------------------------------------------------------------------------------------------------


def test_a_workload_runs_from_its_files(profiles):
    found = hs.run(scenario(profiles), check=True).tasks.set_index("id")
    # Decided at 60 s: two GPUs for a; at 120 s one for b.
    assert found.finish["a"] == pytest.approx(60 + 1.9 * (50 + 100 / 1.5))
    assert found.start["b"] == 120 and found.finish["b"] == pytest.approx(120 + 360)


def test_a_run_can_be_saved_and_read_again(profiles, tmp_path):
    result = hs.run(scenario(profiles))
    result.save(tmp_path / "kept")
    again = type(result).load(tmp_path / "kept")
    assert list(again.tasks["finish"]) == list(result.tasks["finish"])


def test_sizes_and_batches(profiles):
    table = read(profiles / "jobs.csv", profiles=profiles / "profiles", sizes="any")
    a, b = table.curves.kinds
    assert [gpus for gpus, _ in a] == [1, 2, 3] and [gpus for gpus, _ in b] == [1]  # 32 on 4 GPUs were not measured
    adaptive = read(profiles / "jobs.csv", profiles=profiles / "profiles", sizes="any", batch="adaptive")
    best = dict(adaptive.curves.kinds[0])[2]
    assert best.seconds <= dict(a)[2].seconds


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("a,5,nets,2,32", 'column application: "nets" has no profile'),
        ("a,5,net,2.5,32", 'column num_replicas: "2.5" is not a number of GPUs'),
        ("a,5,net,0,32", 'column num_replicas: "0" is not a number of GPUs'),
        ("a,x,net,2,32", 'column time: "x" is not a number'),
        ("a,5,net,2,64", 'column batch_size: "64" is not from 16 to 32, as measured'),
    ],
)
def test_what_is_wrong_with_a_row_is_told(profiles, row, told):
    (profiles / "jobs.csv").write_text(JOBS + row + "\n")
    with pytest.raises(ScenarioError, match="jobs.csv:4: " + told.replace("(", r"\(")):
        read(profiles / "jobs.csv", profiles=profiles / "profiles")


def test_what_is_wrong_with_a_profile_is_told(profiles):
    path = profiles / "profiles" / "net" / "validation-32.csv"
    path.write_text(LARGE.replace("220", "much"))
    with pytest.raises(ScenarioError, match='validation-32.csv:3: column progress: "much" is not a number'):
        read(profiles / "jobs.csv", profiles=profiles / "profiles")
    path.write_text(LARGE.replace("grad_var", "variance"))
    with pytest.raises(ScenarioError, match='validation-32.csv:1: no column "grad_var"'):
        read(profiles / "jobs.csv", profiles=profiles / "profiles")
    (profiles / "profiles" / "net" / "placements.csv").unlink()
    with pytest.raises(ScenarioError, match="placements.csv: is missing"):
        read(profiles / "jobs.csv", profiles=profiles / "profiles")


def test_a_job_that_was_not_measured_so_wide_is_told(profiles):
    (profiles / "jobs.csv").write_text(JOBS + "c,9,net,7,32\n")
    with pytest.raises(ScenarioError, match="net: no measured range includes batches of 32 samples on 7 GPUs"):
        read(profiles / "jobs.csv", profiles=profiles / "profiles")


def test_profiles_are_a_folder(profiles):
    given = scenario(profiles)
    given["workload"][0]["trace"]["profiles"] = str(profiles / "jobs.csv")
    with pytest.raises(ScenarioError, match="is a file, not a folder"):
        hs.load(given)


# Schedulers -----------------------------------------------------------------------------------------------------------


def minute_by_minute(jobs, gpus, threshold):
    """Two queues of attained service, gone through every 60 s: finishes of rigid jobs (arrival, GPUs, seconds)."""
    left, served, finish = [seconds for *_, seconds in jobs], [0.0] * len(jobs), {}
    queues, running, now = [[], []], [], 0.0
    while len(finish) < len(jobs):
        for job in running:
            if left[job] <= 60:
                finish[job] = now + left[job]
            left[job] -= 60
            served[job] += 60 * jobs[job][1]
        now += 60
        queues[0] += [n for n, (came, *_) in enumerate(jobs) if now - 60 < came <= now]
        queues = [[job for job in queue if job not in finish] for queue in queues]
        fallen = [job for job in range(len(jobs)) if job in queues[0] and served[job] >= threshold]
        queues = [[job for job in queues[0] if job not in fallen], queues[1] + fallen]
        free, running = gpus, []
        for job in queues[0] + queues[1]:
            if jobs[job][1] <= free:
                free -= jobs[job][1]
                running.append(job)
    return [finish[job] for job in range(len(jobs))]


@pytest.mark.parametrize("seed", range(5))
def test_las_at_intervals_is_what_a_loop_over_minutes_gives(seed):
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.uniform(1, 150, 25))
    given = [(float(a), int(random.integers(1, 6)), float(random.uniform(20, 900))) for a in arrivals]
    nodes = NodeSpec(cpus=1, accelerators=((GPU, 4),), count=2)
    modes = {width: gpu_mode(GPU, width, span_any=width > 1) for width in range(1, 6)}
    jobs = [Job([modes[width]], [seconds], arrival=came) for came, width, seconds in given]
    record = simulate(nodes, jobs, LasIntervals(60.0, [600.0]))
    assert list(record.finish) == pytest.approx(minute_by_minute(given, 8, 600.0))


def test_optimus_at_intervals_gives_the_next_gpu_where_it_saves_most():
    """Two jobs on 4 GPUs: from one to two the long one saves 300 s, the short one 30 s; its third GPU saves nothing."""
    nodes = NodeSpec(cpus=1, accelerators=((GPU, 4),))
    modes = [gpu_mode(GPU, width) for width in (1, 2, 3)]
    jobs = [Job(modes, [600.0, 300.0, 300.0]), Job(modes, [60.0, 30.0, 20.0])]
    record = simulate(nodes, jobs, OptimusIntervals(60.0))
    assert list(record.finish) == pytest.approx([60 + 300, 60 + 30])


class Still:
    """As much of a view as the search asks for."""

    now = 1000.0

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)


class Named:
    """As much of a task as the search asks for."""

    def __init__(self, index):
        self.index, self.arrival = index, 0.0


class Concave(Standing):
    """Twice the GPUs, 1.6 times the speed; over two nodes a tenth less."""

    def speed(self, layout):
        return sum(layout) ** 0.678 * (0.9 if len(layout) > 1 else 1.0)


def worth(shares, count, total):
    """The mean of speedups that the search makes as great as it can, reckoned for one candidate."""
    fair = -(-total // count)
    base = Concave(Named(0), {}).speed((fair,))
    speeds = [Concave(Named(0), {}).speed(tuple(share.values())) if share else 0.0 for share in shares]
    return 1 / np.mean([1 / (speed / base * 2 / total + 1e-3) for speed in speeds])


def test_the_search_finds_the_best_of_all_small_allocations():
    """Three jobs on two nodes of two GPUs, none of which has run: by trying all that keep the rules."""
    sizes = dict.fromkeys(range(1, 5))
    jobs = [Concave(Named(number), sizes) for number in range(3)]
    policy = Pollux(population=30, generations=30)
    policy._widest = dict.fromkeys(range(3), 4)
    dealt = policy.deal(jobs, {0: 2, 1: 2}, Still(1))
    rows = list(itertools.product(range(3), repeat=2))
    best = 0.0
    for candidate in itertools.product(rows, repeat=3):
        spread = [row for row in candidate if all(row)]
        if all(sum(column) <= 2 for column in zip(*candidate, strict=True)) and len(spread) <= 1:
            shares = [{node: count for node, count in enumerate(row) if count} for row in candidate]
            best = max(best, worth(shares, 3, 4))
    # Every job would start anew, which counts for each alike: 1000 s of age against 30 s.
    assert worth([dealt.get(number, {}) for number in range(3)], 3, 4) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
def test_what_pollux_deals_out_keeps_the_rules(seed):
    random = np.random.default_rng(seed)
    sizes = dict.fromkeys([1, 2, 3, 4, 6, 8])
    policy = Pollux(population=12, generations=6)
    jobs = [Concave(Named(number), sizes) for number in range(9)]
    had = {}
    for _ in range(6):
        room = {0: 4, 1: 4, 3: 2}
        dealt = policy.deal(jobs, dict(room), Still(int(random.integers(1000))))
        for job in jobs:
            share = dealt.get(job.task.index, {})
            width = sum(share.values())
            assert width == 0 or width in sizes
            assert width <= max(1, 2 * had.get(job.task.index, 0)), "at most twice what it has had"
            job.share = share
        for job in jobs:
            had[job.task.index] = max(had.get(job.task.index, 0), sum(job.share.values()))
        for node, count in room.items():
            assert sum(share.get(node, 0) for share in dealt.values()) <= count
            assert sum(node in share and len(share) > 1 for share in dealt.values()) <= 1
    assert max(had.values()) > 1


def test_pollux_runs_a_measured_workload(profiles):
    given = scenario(profiles, "pollux", sizes="any", batch="adaptive")
    found = hs.run(given, check=True).tasks
    assert (found["status"] == "completed").all()
    assert (found["start"] % 60 == 0).all()
