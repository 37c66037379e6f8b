"""Pairs of jobs in the programs over time fractions (`pairs: true`), and rounds that place two jobs on one GPU."""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pytest
from machines import gpu_mode, simulate
from scipy.optimize import linprog
from tiers import spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Sharing
from hetsim.model.mode import Shape
from hetsim.testing import audit, examine, generate, other_hash_seed, small_systems, workload
from hetsim.testing.systems import GB, System
from hetsim_policies.dynamic.common.fractions import (
    ModeOffers,
    best_ratio,
    equal_share,
    max_min,
    max_sum,
    min_worst_ratio,
)
from hetsim_policies.dynamic.common.side_by_side import Labels, SideBySideScheduler
from hetsim_policies.dynamic.time_fractions import FinishTimeFairness, MaxMinFairness, MaxThroughput, MinMakespan

POLICIES = [MaxMinFairness, FinishTimeFairness, MinMakespan, MaxThroughput]


# Programs ---------------------------------------------------------------------------------------------------------


class Table:
    """Jobs of some classes on some types of device, and how fast any two classes are beside each other."""

    def __init__(self, kinds, classes, times, speed, capacity):
        self.kinds, self.classes, self.times, self.speed = kinds, classes, np.array(times, dtype=float), speed
        self.capacity = np.array(capacity, dtype=float)

    @classmethod
    def drawn(cls, seed, jobs=7, kinds=2, classes=3):
        random = np.random.default_rng(seed)
        speed = random.uniform(0.2, 1.0, (kinds, classes, classes))
        speed[random.random(speed.shape) < 0.2] = 0.0
        times = random.lognormal(3, 1, (jobs, 1)) * random.lognormal(0, 0.6, (jobs, kinds))
        return cls(kinds, random.integers(0, classes, jobs), times, speed, random.integers(1, 4, kinds))

    def pair(self, kind, one, other, threshold=1.0):
        """Both speeds, or None."""
        speeds = self.speed[kind, one, other], self.speed[kind, other, one]
        return speeds if min(speeds) > 0 and sum(speeds) > threshold else None

    def offers(self, pairs=True, threshold=1.0):
        rows = [(j, k, 1.0, self.times[j, k], self.classes[j] * self.kinds + k, -1) for j, k in self.ways()]
        counts = np.bincount(self.classes, minlength=self.speed.shape[1])
        for j, k in self.ways() if pairs else ():
            mine = self.classes[j]
            for other in np.flatnonzero(counts - (np.arange(len(counts)) == mine)):
                speeds = self.pair(k, mine, other, threshold)
                if speeds:
                    label = mine * self.kinds + k, other * self.kinds + k
                    rows.append((j, k, 0.5, self.times[j, k] / speeds[0], *label))
        job, kind, width, time, own, beside = (np.array(column) for column in zip(*rows, strict=True))
        labels = (own, beside) if pairs else ()
        return ModeOffers(job, kind, width, time, self.capacity, np.ones(len(self.classes)), *labels)

    def ways(self):
        return itertools.product(range(len(self.classes)), range(self.kinds))

    def best_level(self, base):
        """The greatest least progress / base with a fraction for each two jobs, as Gavel writes the program.

        Besides: of an odd number of jobs of a class one is left over when they pair.
        """
        jobs, columns = len(self.classes), []
        for j, k in self.ways():
            columns.append((k, {j: 1 / self.times[j, k]}))
        for (i, one), (j, other) in itertools.combinations(enumerate(self.classes), 2):
            for k in range(self.kinds):
                speeds = self.pair(k, one, other, threshold=0.0)
                if speeds:
                    columns.append((k, {i: speeds[0] / self.times[i, k], j: speeds[1] / self.times[j, k]}))
        counts = np.bincount(self.classes)
        rows = np.zeros((2 * jobs + self.kinds + len(counts), len(columns) + 1))
        for number, (kind, rates) in enumerate(columns):
            rows[2 * jobs + kind, number] = 1.0
            for j, rate in rates.items():
                rows[j, number] = 1.0
                rows[jobs + j, number] = -rate / base[j]
            among = {self.classes[j] for j in rates}
            if len(rates) == 2 and len(among) == 1:
                rows[2 * jobs + self.kinds + among.pop(), number] = 1.0
        rows[jobs : 2 * jobs, -1] = 1.0
        limits = np.concatenate([np.ones(jobs), np.zeros(jobs), self.capacity, counts // 2])
        return -linprog([0.0] * len(columns) + [-1.0], A_ub=rows, b_ub=limits).fun


def check_feasible(found, fraction):
    """Time, devices with a pair counted once, and as long beside each other on both sides."""
    assert (fraction >= 0).all()
    assert (np.bincount(found.job, fraction, found.jobs) <= 1 + 1e-6).all()
    used = np.bincount(found.kind, fraction * found.width, len(found.capacity))
    assert (used <= found.capacity * (1 + 1e-6)).all()
    for own, beside in {(a, b) for a, b in zip(found.own, found.partner, strict=True) if b >= 0}:
        mine = fraction * ((found.own == own) & (found.partner == beside))
        theirs = fraction * ((found.own == beside) & (found.partner == own))
        assert mine.sum() == pytest.approx(theirs.sum(), abs=1e-6)
        if own == beside:
            assert 2 * np.bincount(found.job, mine, found.jobs).max() <= mine.sum() + 1e-6


def one_gpu(speed, jobs=2, capacity=1):
    """Jobs of one class that take a second alone."""
    return Table(1, np.zeros(jobs, dtype=int), np.ones((jobs, 1)), np.full((1, 1, 1), speed), [capacity]).offers()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("speed", "jobs", "progress"),
    [
        (0.8, 2, 0.8),  # both all the time, instead of half each
        (0.8, 3, 1.6 / 3),  # turns of pairs
        (0.0, 2, 0.5),  # cannot share
        (0.5, 2, 0.5),  # no more than turns
        (1.0, 4, 0.5),
    ],
)
def test_jobs_alike_on_one_gpu(speed, jobs, progress):
    found = one_gpu(speed, jobs)
    base = found.progress(equal_share(found))
    assert base == pytest.approx([1 / jobs] * jobs)
    for fraction in (max_min(found, base, 4), min_worst_ratio(found, np.zeros(jobs), np.ones(jobs), 1 / base)):
        check_feasible(found, fraction)
        assert found.progress(fraction) == pytest.approx([progress] * jobs, rel=1e-5)
    fraction = max_sum(found, found.rate, np.full(jobs, 0.5 * progress))
    check_feasible(found, fraction)
    assert found.progress(fraction).sum() == pytest.approx(progress * jobs)
    assert found.progress(fraction).min() >= 0.5 * progress * (1 - 1e-6)


def test_two_classes_worked_out_on_paper():
    """a runs at 0.9 beside b, b at 0.5 beside a: together for t, then b alone: 0.9 t = 0.5 t + (1 - t), t = 1 / 1.4."""
    speed = np.zeros((1, 2, 2))
    speed[0, 0, 1], speed[0, 1, 0] = 0.9, 0.5
    found = Table(1, np.array([0, 1]), [[1.0], [1.0]], speed, [1]).offers()
    fraction = max_min(found, np.ones(2))
    check_feasible(found, fraction)
    assert found.progress(fraction) == pytest.approx([0.9 / 1.4] * 2)
    assert found.progress(max_sum(found, found.rate, np.zeros(2))) == pytest.approx([0.9, 0.5])
    cost = found.width * 2.0
    assert (found.rate * best_ratio(found, found.rate, cost, np.zeros(2))).sum() == pytest.approx(1.4)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(25), 6))
def test_labels_give_the_optimum_of_a_program_with_every_two_jobs(seed):
    """And nothing is lost by leaving out pairs whose speeds sum to at most 1."""
    table = Table.drawn(seed)
    found = table.offers()
    base = found.progress(equal_share(found))
    for scaled in (base, base * np.random.default_rng(seed).uniform(0.5, 2.0, len(base))):
        fraction = max_min(found, scaled)
        check_feasible(found, fraction)
        level = float((found.progress(fraction) / scaled).min())
        assert level == pytest.approx(table.best_level(scaled), rel=1e-5)
    every = table.offers(threshold=0.0)
    assert len(every.job) >= len(found.job)
    level = (found.progress(max_min(found, base)) / base).min()
    assert (every.progress(max_min(every, base)) / base).min() == pytest.approx(level, rel=1e-5)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", spread(range(25, 60), 5))
@pytest.mark.parametrize("levels", [1, 4])
def test_with_pairs_nobody_who_is_worst_off_gets_less(seed, levels):
    table = Table.drawn(seed, jobs=9, kinds=3)
    found, alone = table.offers(), table.offers(pairs=False)
    base = alone.progress(equal_share(alone))
    assert found.progress(equal_share(found)) == pytest.approx(base)
    with_pairs = found.progress(max_min(found, base, levels)) / base
    without = alone.progress(max_min(alone, base, levels)) / base
    assert with_pairs.min() >= without.min() * (1 - 1e-6)
    assert with_pairs.min() >= 1 - 1e-6  # an equal share is a solution
    value = found.rate / found.fastest()[found.job]
    most = value @ max_sum(found, value, np.zeros(9))
    assert most >= value[found.partner < 0] @ max_sum(alone, value[found.partner < 0], np.zeros(9)) * (1 - 1e-9)


def test_entries_of_nanoseconds_beside_hours_are_solved():
    """HiGHS gives up on such rows as they are, with pairs and without."""
    times = np.array([3.6e4, 1.6e-9, 1.2e3, 5.5e4, 2.5e4, 1.2e-7])
    table = Table(1, np.zeros(6, dtype=int), times[:, None], np.full((1, 1, 1), 0.7), [2])
    for pairs in (True, False):
        found = table.offers(pairs)
        left = np.array([0.01, 1.0, 1.0, 0.2, 0.01, 1.0])
        fraction = min_worst_ratio(found, np.full(6, 7.3e4), left, 1 / found.progress(equal_share(found)))
        assert (np.bincount(found.job, fraction, 6) <= 1 + 1e-6).all()


# Labels -----------------------------------------------------------------------------------------------------------


def shared(pairs, name="g", **more):
    """A type of GPU that takes two jobs at once."""
    return DeviceType(name, streams=2, sharing=Sharing("timeslice", pairs=tuple(pairs)), **more)


def tasks_of(rows, shapes, classes, **columns):
    """Rows: (arrival, shape, times...), with a class each."""
    names = sorted(set(classes))
    return workload(rows, shapes, class_code=np.array([names.index(c) for c in classes]), classes=names, **columns)


class Task:
    """As much of a task as labels look at."""

    def __init__(self, class_, *modes):
        self.class_, self.modes = class_, modes

    def modes_by_speed(self):
        return range(len(self.modes))


def test_who_may_be_beside_whom():
    kind = shared([("a", "a", 1.25), ("a", "b", 1.25), ("b", "a", 1.6), ("b", "b", math.inf), ("c", "a", 2.0),
                   ("a", "c", 2.0), ("d", "a", 1.5)], memory=16 * GB)  # fmt: skip
    labels = Labels()
    mode, wide, greedy = gpu_mode(kind), gpu_mode(kind, 2), gpu_mode(kind, gpu_memory=9 * GB)
    a, b, c, d = ([*labels.of_task(Task(name, mode))][0] for name in "abcd")
    assert labels.speeds(a, a) == pytest.approx((0.8, 0.8))
    assert labels.speeds(a, b) == pytest.approx((0.8, 0.625))
    assert labels.speeds(b, b) is None  # cannot
    assert labels.speeds(a, c) is None  # no better than turns
    assert labels.speeds(a, d) == pytest.approx((0.5, 1 / 1.5))  # one side was not measured: by slices
    two, full = labels.of_task(Task("a", wide))[0], labels.of_task(Task("a", greedy))[0]
    assert labels.speeds(two, two) == pytest.approx((0.8, 0.8))
    assert labels.speeds(a, two) is None  # gangs of the same width only
    assert labels.speeds(full, full) is None  # 18 of 16 GB
    assert labels.speeds(a, full) == pytest.approx((0.8, 0.8))
    assert dict(labels.beside(a, {a: 1, b: 1})) == {b: pytest.approx(0.8)}  # not beside itself
    without = gpu_mode(kind, 0.5), gpu_mode(DeviceType("x"))
    assert labels.of_task(Task("a", gpu_mode(kind), wide, *without)) == [a, two, -1, -1]
    # Two variants of one width: only the fastest, or a job could be its own partner.
    assert labels.of_task(Task("a", mode, greedy)) == [a, -1]
    strict = Labels(threshold=1.5)
    assert strict.speeds(*[strict.of_task(Task(name, mode))[0] for name in "ab"]) is None


# Rounds -----------------------------------------------------------------------------------------------------------


def run(kind, policy, times, classes=None, count=1, modes=None, stopping=Stopping(), preemptible=True, arrival=None):  # noqa: B008
    """One-GPU jobs that are there from the start, on so many GPUs of one node."""
    classes = classes or ["a"] * len(times)
    rows = [(0.0 if arrival is None else arrival[i], 0, time) for i, time in enumerate(times)]
    shape = Shape(modes or [gpu_mode(kind)], stopping, preemptible)
    record = simulate(NodeSpec(cpus=8, accelerators=((kind, count),)), tasks_of(rows, [shape], classes), policy)
    assert audit(record) == []
    return record


@pytest.mark.quick(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_two_jobs_at_80_per_cent_each(policy):
    kind = shared([("a", "a", 1.25)])
    assert run(kind, policy(10.0, pairs=True), [100.0, 100.0]).finish.tolist() == pytest.approx([125, 125])


@pytest.mark.quick(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_who_cannot_share_takes_turns(policy):
    kind = shared([("a", "a", math.inf)])
    finish = run(kind, policy(10.0, pairs=True), [100.0, 100.0]).finish
    assert finish.max() == pytest.approx(200)
    nobody = shared([("a", "a", 1.25)])
    assert run(nobody, policy(10.0, pairs=True, threshold=3.0), [100.0, 100.0]).finish.max() == pytest.approx(200)


def test_the_partner_who_is_left_goes_on_alone():
    """a at 1 / 1.25 beside b, b at 1 / 2: b has done its 50 s at 100, when a has 20 s left."""
    kind = shared([("a", "b", 1.25), ("b", "a", 2.0)])
    record = run(kind, MaxThroughput(1000.0, pairs=True), [100.0, 50.0], ["a", "b"])
    assert record.finish.tolist() == pytest.approx([120, 100])
    assert record.preemptions is None or record.preemptions.sum() == 0


def test_gangs_of_one_width_share_their_gpus():
    kind = shared([("a", "a", 1.25)])
    record = run(kind, MaxMinFairness(10.0, pairs=True), [100.0, 100.0], count=2, modes=[gpu_mode(kind, 2)])
    assert record.finish.tolist() == pytest.approx([125, 125])


def test_a_waiting_job_joins_one_that_may_not_be_stopped_at_the_next_round():
    """From 10 s on: the first has 90 s left, at 0.8 of its speed."""
    kind = shared([("a", "a", 1.25)])
    record = run(kind, MaxMinFairness(10.0, pairs=True), [100.0, 100.0], preemptible=False, arrival=[0.0, 3.0])
    assert record.start.tolist() == [0, 10]
    assert record.finish[0] == pytest.approx(10 + 90 * 1.25)


def test_the_host_holds_one_of_a_pair():
    """Eight cores and jobs of five: they take turns, whatever the program says."""
    kind = shared([("a", "a", 1.25)])
    record = run(kind, MaxMinFairness(10.0, pairs=True), [100.0, 100.0], modes=[gpu_mode(kind, millicores=5000)])
    assert record.finish.max() == pytest.approx(200)


class Watched(MaxMinFairness):
    """Writes down how far everybody is behind what is due in each way, at the end of each round, in rounds."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.strays, self.pairs_made = [], 0

    def _account(self, view):
        super()._account(view)
        for job in self.jobs.values():
            gaps = (due - got for due, got in zip(job.due, job.received, strict=True))
            self.strays += [gap / self.round_length for gap in gaps]

    def _meet(self, one, other, view):
        super()._meet(one, other, view)
        self.pairs_made += 1


@pytest.mark.parametrize("couples", spread([3, 5, 8], 1))
def test_by_deficit_couples_lag_no_more_than_single_jobs(couples):
    """Each class pairs with one other only, on two GPUs: couples take turns, 1 + ln n rounds (Adler et al., 2003)."""
    names = [f"{side}{number}" for number in range(couples) for side in "ab"]
    pairs = [(f"{x}{n}", f"{y}{n}", 1.2 + 0.01 * n) for n in range(couples) for x, y in ("ab", "ba")]
    policy = Watched(1.0, "deficit", pairs=True)
    run(shared(pairs), policy, [30.0 + n // 2 for n in range(2 * couples)], names, count=2)
    assert policy.pairs_made > couples
    assert max(policy.strays) <= 1 + math.log(couples) + 1e-6


class Compared(MaxMinFairness):
    """What part of the progress that its fractions promise each job has made, as long as all are there."""

    def _account(self, view):
        super()._account(view)
        if len(self.jobs) == 8 and view.now > 0:
            self.parts = [self.progress(job, job.received) / self.progress(job, job.due) for job in self.jobs.values()]

    def progress(self, job, seconds):
        total = 0.0
        for (position, label), time in zip(job.ways, seconds, strict=True):
            pair = self.labels.speeds(job.labels[position], label) if label >= 0 and time else (1.0, 1.0)
            total += time * pair[0] / job.seconds(position)
        return total


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ratio", "deficit"])
def test_realized_progress_comes_near_with_pairs_on_several_types(rule):
    """All the time of all jobs is in pairs, on both types: nobody below 0.8 of what is promised, half above 0.97."""
    worst = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        both = list(itertools.product("abc", repeat=2))
        pairs = [[(*pair, float(random.choice([1.1, 1.4, 1.7, 2.5]))) for pair in both] for _ in range(2)]
        kinds = [shared(some, name) for some, name in zip(pairs, ("old", "new"), strict=True)]
        classes = [str(c) for c in random.permutation(list("aaaabbcc"))]
        rows = [(0.0, 0, 200.0 * (1 + "abc".index(c)), 200.0) for c in classes]
        specs = [NodeSpec(accelerators=((kind, 2),)) for kind in kinds]
        policy = Compared(1.0, rule, pairs=True)
        record = simulate(specs, tasks_of(rows, [Shape([gpu_mode(kind) for kind in kinds])], classes), policy)
        assert audit(record) == []
        worst.append(min(policy.parts))
    assert min(worst) >= 0.8
    assert np.median(worst) >= 0.97


def test_of_three_jobs_of_a_class_one_is_left_over():
    """Three a that run well beside each other, two b that need what is left: no promise that nobody could keep."""
    speed = np.array([[[0.9, 0.1], [0.1, 0.1]]])
    found = Table(1, np.array([0, 0, 0, 1, 1]), [[1.0]] * 5, speed, [3]).offers()
    fraction = max_min(found, np.array([1.0, 1.0, 1.0, 0.75, 0.75]))
    check_feasible(found, fraction)
    assert fraction[found.partner >= 0].sum() == pytest.approx(2.0)  # of the three, two at a time; 3 without that


def test_received_time_adds_up_to_the_time_that_jobs_ran():
    """Alone and beside others together, of both members of every pair."""
    kind = shared([("a", "a", 1.3), ("a", "b", 1.4), ("b", "a", 1.2)])
    seen = {}

    class Kept(MaxMinFairness):
        def finished(self, task):
            seen[task.index] = self.jobs[task.index]
            super().finished(task)

    record = run(kind, Kept(10.0, pairs=True), [40.0, 70.0, 55.0, 90.0, 61.0], list("aabab"), count=2)
    launches = record.launches
    for row, job in seen.items():
        ran = sum(end - start for task, start, end in
                  zip(launches["task"], launches["decided"], launches["end"], strict=True) if task == row)  # fmt: skip
        last = record.finish[row] - max(10.0 * math.floor(record.finish[row] / 10.0), job.since)
        assert sum(job.received) + last == pytest.approx(ran, abs=1e-6)


# The contract -----------------------------------------------------------------------------------------------------


class Maker(generate._Maker):
    """Random systems all of whose GPUs take pairs."""

    def gpu(self, name):
        kind = super().gpu(name)
        times = (1.0, 1.2, 1.5, 1.9, 3.0, math.inf)
        both = itertools.product(("", "a", "b"), repeat=2)
        pairs = [(*pair, self.one_of(*times)) for pair in both if self.random.random() < 0.9]
        return shared(pairs, name, memory=kind.memory, link=kind.link, power=kind.power)


def paired_system(seed, nodes=2, tasks=20):
    random = np.random.default_rng(seed)
    maker = Maker(random, [feature for feature in generate.FEATURES if random.random() < 0.5])
    cluster = maker.cluster(nodes)
    return System(f"pairs {seed}", cluster, maker.tasks(cluster, tasks), seed=seed)


def both_places():
    """Two types, gangs, jobs that may not be stopped, and stops that cost."""
    kinds = [shared([(x, y, 1.3 + 0.1 * n) for x in "ab" for y in "ab"], name) for n, name in enumerate(("g", "h"))]
    shapes = [
        Shape([gpu_mode(kind) for kind in kinds], Stopping(save=0.25, restore=0.5)),
        Shape([gpu_mode(kinds[0], 2), gpu_mode(kinds[1], 2)]),
        Shape([gpu_mode(kinds[1])], preemptible=False),
    ]
    rows = [(i // 3, i % 3, 3.0 + i % 4, 2.0 + i % 5)[: 4 - (i % 3 == 2)] for i in range(24)]
    cluster = Cluster([NodeSpec(cpus=4, accelerators=((kind, 2),)) for kind in kinds])
    return System("pairs", cluster, tasks_of(rows, shapes, ["ab"[i % 2] for i in range(24)]))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", ["ratio", "deficit"])
def test_the_contract_with_pairs(policy, rule):
    if policy is MinMakespan and rule == "deficit":
        rule = "ratio"
    make = functools.partial(policy, 1.7, rule, pairs=True)
    slow = policy is FinishTimeFairness
    some = [s for s in small_systems() if s.name != "all at once"]
    some = [both_places(), *some[:: 8 if slow else 4], *map(paired_system, range(1 if slow else 4))]
    for system in some:
        assert examine(lambda _: make(), system) == []


@pytest.mark.slow
def test_runs_with_pairs_do_not_depend_on_the_hash_seed():
    systems = [both_places(), paired_system(3)]
    assert other_hash_seed([functools.partial(policy, 1.7, pairs=True) for policy in POLICIES], systems) == []


@pytest.mark.slow
def test_what_pairs_bring_is_there_in_random_systems():
    """They are formed at all, by every policy."""
    for policy in POLICIES:
        made = []

        class Counting(policy):
            def _meet(self, one, other, view, made=made):
                made.append((one, other))
                super()._meet(one, other, view)

        assert issubclass(Counting, SideBySideScheduler)
        assert audit(Simulation(both_places().run_input(Counting(1.7, pairs=True)), check=True).run()) == []
        assert made


# Scenarios --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path):
    """Two jobs of 100 s and 50 s on one V100 of a table of throughputs."""
    table = {"v100": {"('A', 1)": {"null": 8.0, "('A', 1)": [5.0, 5.0], "('B', 1)": [6.4, 2.0], "('C', 1)": [0.0, 0.0]},
                      "('B', 1)": {"null": 4.0}, "('C', 1)": {"null": 1.0}}}  # fmt: skip

    def of(jobs, **more):
        (tmp_path / "t.json").write_text(json.dumps(table))
        rows = [f"{name}\tx\td\t-s\t1\t{steps}\t1\t1\t-1\t0\n" for name, steps in jobs]
        (tmp_path / "jobs.trace").write_text("".join(rows))
        path = str(tmp_path / "t.json")
        trace = {"format": "gavel", "path": str(tmp_path / "jobs.trace"), "throughputs": path}
        return {
            "name": "t", "cluster": {"trace": {"format": "gavel_gpus", "path": path, "gpus": {"v100": 1}, **more}},
            "workload": [{"name": "j", "trace": trace}],
            "policy": {"name": "max_throughput", "pairs": True, "round_length": "1000 s"},
        }  # fmt: skip

    return of


def test_a_table_of_throughputs_is_all_it_takes(scenario):
    tasks = hs.run(scenario([("A", 800), ("B", 200)]), check=True).tasks.set_index("class")
    assert tasks.finish["B"] == pytest.approx(100)
    assert tasks.finish["A"] == pytest.approx(120)
    apart = hs.run(scenario([("A", 800), ("C", 50)]), check=True).tasks  # zeros: they cannot share
    assert sorted(apart.start) == [0, apart.finish.min()]


def test_pairs_without_a_measured_pair_are_refused(scenario):
    with pytest.raises(ScenarioError, match="pairs: true needs a GPU type with measured pairs; give one "
                                            "streams: 2 and"):
        hs.run(scenario([("A", 800)], pairs=False))
    bad = scenario([("A", 800)])
    bad["policy"]["threshold"] = 0.9
    with pytest.raises(ScenarioError, match="threshold"):
        hs.run(bad)
