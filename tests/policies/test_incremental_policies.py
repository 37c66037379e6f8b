"""Schedulers that keep what they know from round to round decide as if they found it anew; and how often they look."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from machines import Job, gpu_mode, simulate, tasks_of
from tiers import spread

import hetsim as hs
from hetsim.engine.views.view import EngineView
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.policy import PlanProblem
from hetsim.scenario.building.run_input import may_take_long, offered_load
from hetsim_policies.dynamic.backfilling import ConservativeBackfill
from hetsim_policies.dynamic.common.fair_tree import DecayedUsage
from hetsim_policies.dynamic.common.reservations import FreeProfile
from hetsim_policies.dynamic.elastic import Afs, Optimus, SpeedupMean
from hetsim_policies.dynamic.slurm_multifactor import SlurmMultifactor

GPU = DeviceType("g")
AT_ONCE = {"calc_period": 0.0, "bf_interval": 0.0, "bf_job_part_count_reserve": 0}
NODES = NodeSpec(cpus=16, accelerators=((GPU, 4),), count=3)


def jobs(seed, count=80, sizes=1, wrong=False, shares=(1,), load=1.1):
    """Random jobs of five users, every other seed on whole seconds; with `sizes` up to so many modes each."""
    random = np.random.default_rng(seed)
    width = random.choice([1, 1, 2, 4], count)
    time = random.lognormal(1.0, 1.0, count)
    arrival = np.cumsum(random.exponential(float((width * time).mean()) / 12 / load, count))
    if seed % 2:
        arrival, time = np.floor(arrival), np.ceil(time)
    estimate = time * random.choice([0.5, 1.0, 1.0, 3.0], count) if wrong else time
    whole = {w: [gpu_mode(GPU, w * 2**n, millicores=500 * w) for n in range(sizes) if w * 2**n <= 4] for w in (1, 2, 4)}
    parts = {share: [gpu_mode(GPU, share)] for share in shares if share != 1}
    found = []
    for w, t, e, a in zip(width.tolist(), time.tolist(), estimate.tolist(), arrival.tolist(), strict=True):
        share = random.choice(shares)
        modes = whole[w] if share == 1 else parts[share]
        pace = [1.8**n for n in range(len(modes))]
        found.append(Job(modes, [t / p for p in pace], a, estimates=[e / p for p in pace]))
    users = random.integers(0, 5, count)
    return replace(tasks_of(found), users=list("abcde"), user_code=users, priority=random.integers(0, 3, count) * 1.0)


# Multifactor priority ---------------------------------------------------------------------------------------------


class EveryNode(FreeProfile):
    """Looks at all windows of all nodes."""

    def _on_a_node(self, mode, duration, now, before):
        best, chosen = before, -1
        for number, timeline in enumerate(self._timelines()):
            for begin, end in timeline.windows(mode):
                start = max(begin, now)
                if start < best and end > now and start + duration <= end:
                    best, chosen = start, number
        return best, chosen


class Plain(SlurmMultifactor):
    """Asks every running task in each round what it received, ranks all, and makes all reservations in all passes."""

    def begin(self, view):
        super().begin(view)
        self._one_queue = False
        self._constant = self._constant and self.calc_period > 0  # what is credited once a period decays otherwise

    def _backfill(self, order, view):
        self._occupancy._launches = -1
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hetsim_policies.dynamic.slurm_multifactor.FreeProfile", EveryNode)
            yield from super()._backfill(order, view)

    def _nothing_fits(self, view):
        return super()._nothing_fits(view) if self.bf_interval else False  # which delays the next pass

    def _last_fitting(self, fitting, order, *_, **named):
        return len(order) - 1


@pytest.mark.slow
@pytest.mark.by_turns(2)
@pytest.mark.parametrize("wrong", [False, True], ids=["exact", "wrong"])
@pytest.mark.parametrize("seed", spread(range(3), 1))
def test_slurm_decides_as_if_it_found_everything_anew(seed, wrong):
    tasks, crowd = jobs(seed, wrong=wrong), jobs(seed, count=200, wrong=wrong, load=1.6)
    for parameters in (
        {**AT_ONCE, "half_life": 30.0, "fair_share": 5000.0, "max_age": 50.0},
        {**AT_ONCE, "half_life": 0.05, "bf_max_job_test": 4, "size": 1000.0, "small_first": True},
        {**AT_ONCE, "age": 0.0, "shares": {"a": 5.0}, "bf_max_job_user": 2, "bf_job_part_count_reserve": 2},
        {**AT_ONCE, "accounts": {}, "half_life": 1e6, "fair_share": 1e6, "bf_resolution": 3.0},
        {"calc_period": 5.0, "bf_interval": 2.0, "fair_share": 1e5, "default_queue_depth": 3, "sched_interval": 7.0},
        {"calc_period": 5.0, "bf_interval": 2.0, "bf_job_part_count_reserve": 0, "bf_resolution": 3.0},
    ):
        for these in (tasks, crowd):
            one, other = (simulate(NODES, these, kind(**parameters)) for kind in (SlurmMultifactor, Plain))
            np.testing.assert_array_equal(one.start, other.start)


@pytest.mark.quick(1)
@pytest.mark.parametrize("parameters", [
    {}, {"max_age": 20.0}, {"size": 1000.0, "small_first": True, "max_age": 1e5},
    {"priority": 0.0, "bf_max_job_test": 4},
])  # fmt: skip
@pytest.mark.parametrize("users", [1, 5])
def test_slurm_keeps_a_queue_sorted_as_if_it_ranked_it_anew(users, parameters):
    """Of one user, or of several whose shares do not count; until the first has waited for `max_age`."""
    tasks = jobs(4, count=150)
    if users == 1:
        tasks = replace(tasks, user_code=np.zeros(150, dtype=int))
    weight = AT_ONCE if users == 1 else {**AT_ONCE, "fair_share": 0.0}
    one, other = (simulate(NODES, tasks, kind(**parameters, **weight)) for kind in (SlurmMultifactor, Plain))
    assert (one.start - tasks.arrival).max() > 20
    np.testing.assert_array_equal(one.start, other.start)


def test_slurm_with_fractions_decides_as_if_it_found_everything_anew():
    """Which fractions lie on one device depends on their order: then no reservation stands."""
    tasks = jobs(3, shares=(1, 0.5, 0.3, 0.25))
    one, other = (simulate(NODES, tasks, kind(half_life=30.0, **AT_ONCE)) for kind in (SlurmMultifactor, Plain))
    np.testing.assert_array_equal(one.start, other.start)


def test_slurm_looks_at_no_task_to_know_who_received_what(monkeypatch):
    """Where all compute at full rate nothing is asked, and owners have what their jobs took."""
    asked = []
    attained = EngineView.attained
    monkeypatch.setattr(EngineView, "attained", lambda view, who: asked.append(who) or attained(view, who))
    tasks, policy = jobs(1, count=300), SlurmMultifactor(half_life=1e15)
    record = simulate(NODES, tasks, policy)
    assert not asked
    taken = [tasks.shapes[s].modes[0].gpus for s in tasks.shape] * (record.finish - record.start)
    for code, user in enumerate("abcde"):
        assert policy._usage["", user] == pytest.approx(taken[tasks.user_code == code].sum(), rel=1e-9)
    assert policy._usage.total == pytest.approx(taken.sum(), rel=1e-9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("half_life", [0.01, 3.0, 1e7])
def test_decayed_usage_is_that_of_the_plain_recursion(half_life):
    """Steps of all lengths, some so long that everything is forgotten."""
    random = np.random.default_rng(4)
    usage, rates, amounts, now = DecayedUsage(half_life), dict.fromkeys("abc", 0), dict.fromkeys("abc", 0.0), 0.0
    for owner in "abc":
        usage.open(owner)
    for _ in range(400):
        step = float(random.choice([0.0, 0.1, 5.0, 1e3]))
        now += step
        usage.advance(now)
        amounts = {k: v * 0.5 ** (step / half_life) + rates[k] * 1e-6 * step for k, v in amounts.items()}
        owner = str(random.choice(list("abc")))
        change, credit = int(random.integers(-rates[owner], 3_000_000)), float(random.exponential())
        usage.change_rate(owner, change, credit)
        rates[owner] += change
        amounts[owner] += credit
        for k, amount in amounts.items():
            assert usage[k] == pytest.approx(amount, rel=1e-9, abs=1e-12)
        assert usage.total == pytest.approx(sum(amounts.values()), rel=1e-9)


# Conservative backfilling -----------------------------------------------------------------------------------------


def test_reservations_know_of_a_head_that_starts_after_all_others_have_started():
    """The second job starts when it was promised to; then the third starts as a head, on the last two free GPUs but
    one.  The fourth cannot start before that ends, so the fifth does not have to wait for it."""
    modes = {w: gpu_mode(GPU, w) for w in (1, 2, 5)}
    rows = [(0.0, 5, 10.0), (1.0, 2, 10.0), (11.0, 2, 100.0), (11.0, 5, 5.0), (12.0, 1, 20.0)]
    tasks = [Job([modes[w]], [t], a) for a, w, t in rows]
    record = simulate(NodeSpec(accelerators=((GPU, 5),)), tasks, ConservativeBackfill())
    assert record.start.tolist() == [0, 10, 11, 111, 12]


# Elastic jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", [Afs, Optimus, SpeedupMean])
@pytest.mark.parametrize("seed", range(2))
def test_jobs_of_one_size_are_dealt_with_as_all_others(policy, seed):
    """The short way decides what the allocation of sizes decides; fractions of GPUs sum up in the same order."""

    class Long(policy):
        def ready(self, task):
            super().ready(task)
            self._rigid.remove(task)
            self._elastic[task.index] = None

    tasks = jobs(seed, wrong=seed > 0, shares=(1, 0.3) if seed % 2 else (1,))
    one, other = (simulate(NODES, tasks, kind(interval=5.0)) for kind in (policy, Long))
    np.testing.assert_array_equal(one.start, other.start)
    np.testing.assert_array_equal(one.finish, other.finish)
    assert one.preemptions.sum() == other.preemptions.sum() > 0


# What says that it may take long ----------------------------------------------------------------------------------


@functools.cache
def problem(sizes, count, load):
    return PlanProblem(jobs(0, count=count, sizes=sizes, load=load), Cluster([NODES]))


@pytest.mark.slow
def test_the_offered_load_is_that_of_the_draw():
    for load in (0.5, 2.0):
        assert offered_load(problem(1, 2_000, load).tasks, Cluster([NODES])) == pytest.approx(load, rel=0.1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", [Afs, Optimus, SpeedupMean])
def test_a_run_that_may_take_long_says_so(policy, monkeypatch):
    """Only where there are sizes to choose from, the queue grows, and there are many jobs."""
    monkeypatch.setattr("hetsim.scenario.building.run_input.LONG", 1.0)
    scheduler = policy()
    assert may_take_long(scheduler, "x", problem(1, 2_000, 2.0)) == []
    assert may_take_long(scheduler, "x", problem(3, 2_000, 0.5)) == []
    assert may_take_long(scheduler, "x", problem(3, 200, 2.0)) == []
    (text,) = may_take_long(scheduler, "x", problem(3, 2_000, 2.0))
    assert text.startswith("x examines all waiting tasks in each round, and at a load of")
    assert "with 2,000 tasks a run may take" in text


def test_the_warning_is_among_those_of_the_run(monkeypatch):
    monkeypatch.setattr("hetsim.scenario.building.run_input.LONG", 1e-9)
    job = {"name": "jobs", "arrivals": {"process": "poisson", "rate": "10/s"}, "count": 30, "gpu_time": "1 s"}
    nodes = [{"cpus": 1, "gpus": {"type": "g", "count": 1}}]
    scenario = {"name": "s", "cluster": {"nodes": nodes}, "workload": [job], "policy": "slurm_multifactor"}
    assert any("slurm_multifactor examines all waiting tasks" in text for text in hs.run(scenario).warnings)
    assert not any("examines all" in text for text in hs.run({**scenario, "policy": "fcfs"}).warnings)
