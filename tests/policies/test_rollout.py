"""What rollouts and forks with imagined arrivals do, and that they know nothing of what is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiers
from tiers import some, spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, ScenarioError, UsageError
from hetsim.model.cluster import Cluster
from hetsim.model.mode import Shape
from hetsim.model.record import COMPLETED
from hetsim.policy import ListScheduler, Scheduler
from hetsim.scenario.scenario import load
from hetsim.testing import System
from hetsim.testing.conformance import fingerprint
from hetsim.testing.generate import random_system
from hetsim.testing.systems import cpu_mode, node, workload
from hetsim_policies.dynamic.backfilling import GangBackfill
from hetsim_policies.hybrid.ahead import First, Led, Rollout
from hetsim_policies.orders import FcfsSkip, sjf
from hetsim_policies.prediction.estimates import ENOUGH, ENOUGH_ARRIVALS, ArrivalHistory, EstimateHistory

OBJECTIVES = ("response", "slowdown")
FEATURES = ("estimates", "people")


def run(scheduler, cluster, tasks):
    return Simulation(System("test", cluster, tasks).run_input(scheduler), check=True).run()


def one_core(rows, **columns):
    return Cluster([node(cpus=1)]), workload([(arrival, 0, time) for arrival, time in rows], [Shape([cpu_mode()])],
                                             **columns)  # fmt: skip


# Decisions ------------------------------------------------------------------------------------------------------


@pytest.mark.quick(0)
def test_over_fcfs_the_shortest_goes_first():
    record = run(Rollout(), *one_core([(0, 9), (0, 1), (0, 4)]))
    assert record.start.tolist() == [5, 0, 1]


@pytest.mark.slow
def test_a_device_is_held_for_what_needs_all_of_it_where_that_pays():
    """Two cores, one busy until 1: the long narrow task would keep twenty wide ones waiting, but alone it fits."""
    shapes = [Shape([cpu_mode()]), Shape([cpu_mode(2)])]
    rows = [(0, 0, 1), (0.5, 0, 100), *((0.5, 1, 1) for _ in range(20))]
    cluster = Cluster([node(cpus=2)])
    shortest = ListScheduler(sjf, discipline="skip")
    held = run(Rollout(shortest), cluster, workload(rows, shapes))
    assert held.start[1] == 21 and held.start[2:].tolist() == list(range(1, 21))
    shortest = ListScheduler(sjf, discipline="skip")
    assert run(Rollout(shortest, hold=False), cluster, workload(rows, shapes)).start[1] == 0.5


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("objective", "expected"), [("response", [0, 2]), ("slowdown", [0, 2]), ("deadline_misses", [4, 0])]
)
def test_the_objective_decides(objective, expected):
    """One core and two tasks, of which the second is longer; only its deadline is near."""
    deadline = np.array([50.0, 5.0])
    record = run(Rollout(objective=objective), *one_core([(0, 2), (0, 4)], deadline=deadline))
    assert record.start.tolist() == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("objective", ["response_mean", "energy", "cost"])
def test_what_is_dear_is_waited_for_only_in_seconds(objective):
    """The GPU takes 3 s and little, a core 4 s and much: to save energy or money both tasks go to the GPU."""
    gpu = {"type": "g", "count": 1, "power": {"idle": "0 W", "busy": "3 W"}, "price": "1/h"}
    described = {
        "cluster": {"nodes": {"cpus": 1, "cpu": {"power": {"idle": "0 W", "busy": "10 W"}, "price": "5/h"},
                              "gpus": gpu}},
        "workload": {"cpu_time": "4 s", "gpu_time": "3 s", "arrivals": {"process": "all_at_once", "count": 2}},
        "policy": {"name": "rollout", "base": "fcfs_skip", "objective": objective.removesuffix("_mean")},
    }  # fmt: skip
    tasks = hs.run(described).tasks
    assert sorted(tasks["device_type"]) == (["cpu", "g"] if objective == "response_mean" else ["g", "g"])


@pytest.mark.slow
@pytest.mark.by_turns(4)
@pytest.mark.parametrize("seed", spread(range(12), 1))
def test_where_nothing_is_hidden_it_is_never_worse_than_its_base(seed):
    """Policy improvement: each decision lowers what the fork promises, and forks keep their promise."""
    system = random_system(seed, nodes=1 + seed % 3, tasks=some(20, 12))
    system.tasks.arrival[:] = 0.0
    system.tasks.estimate = system.tasks.time
    objective = OBJECTIVES[seed % 2]

    def base():
        return ListScheduler(sjf, discipline="skip") if seed % 3 else FcfsSkip()

    def value(record):
        seconds = record.finish[record.status == COMPLETED]
        if objective == "response":
            return seconds.mean()
        tasks = system.tasks
        fixed = [[mode.fixed for mode in tasks.shapes[shape].modes] for shape in tasks.shape]
        shortest = [(row[: len(more)] + more).min() for row, more in zip(tasks.time, map(np.array, fixed), strict=True)]
        return (record.finish / np.maximum(shortest, 1e-9)).mean()

    plain = Simulation(system.run_input(base())).run()
    ahead = Simulation(system.run_input(Rollout(base(), objective=objective)), check=True).run()
    assert (plain.status == COMPLETED).all() and (ahead.status == COMPLETED).all()
    assert value(ahead) <= value(plain) * (1 + 1e-9)


# What it knows --------------------------------------------------------------------------------------------------


@pytest.mark.quick(0)
@pytest.mark.parametrize("arrivals", spread(["learned", "none"], 1))
@pytest.mark.parametrize("seed", spread(range(8), 1))
def test_no_hidden_time_or_arrival_changes_a_decision(seed, arrivals):
    """Two runs that are alike up to a time: what has started by then started at the same times and places."""
    random = np.random.default_rng(seed)
    system = random_system(seed, nodes=1 + seed % 2, tasks=30, features=FEATURES)

    def policy():
        return Rollout(FcfsSkip(), horizon=30.0, arrivals=arrivals, samples=2, forks=6)

    first = Simulation(system.run_input(policy())).run()
    at = float(np.quantile(first.finish, 0.6))
    tasks = system.tasks
    later = tasks.arrival > at
    arrival = np.where(later, at + (tasks.arrival - at) * random.uniform(0.2, 2.0), tasks.arrival)
    time = np.where((first.finish > at)[:, None], tasks.time * random.uniform(1.5, 3.0), tasks.time)
    hidden = replace(tasks, arrival=arrival, time=time, estimate=tasks.estimate)
    second = Simulation(replace(system.run_input(policy()), tasks=hidden)).run()
    begun = first.start <= at
    assert 5 < begun.sum() < 30
    assert (second.start <= at).tolist() == begun.tolist()
    assert first.start[begun].tobytes() == second.start[begun].tobytes()
    assert first.mode[begun].tobytes() == second.mode[begun].tobytes()


@pytest.mark.slow
def test_equal_runs_are_equal_and_the_budget_is_kept():
    def record(forks):
        policy = Rollout(FcfsSkip(), horizon=20.0, arrivals="learned", samples=2, forks=forks)
        return policy, Simulation(random_system(5, tasks=30, features=FEATURES).run_input(policy)).run()

    (one, first), (_, second) = record(6), record(6)
    assert fingerprint(first) == fingerprint(second)
    assert 0 < one.notes["forks"] <= 6 * one.notes["decisions_tried"]
    assert one.notes["decisions_without_arrivals"] > 0


# Arrivals that are imagined -------------------------------------------------------------------------------------


class Imagines(Scheduler):
    """Follows fcfs, and forks once at a time with arrivals of its own."""

    def __init__(self, coming, at=0.0):
        self.by = FcfsSkip()
        self.coming, self.at, self.told = coming, at, None

    def ready(self, task):
        self.by.ready(task)

    def schedule(self, view):
        if self.told is None and view.now >= self.at and view.waiting():
            like = view.waiting()[-1]
            self.told = view.fork(self.by, coming=[(at, like) for at in self.coming]).run()
        yield from self.by.schedule(view)


def test_imagined_arrivals_come_in_a_fork_and_nowhere_else():
    policy = Imagines([7.0, 3.0])
    cluster, tasks = one_core([(0, 2), (0, 5), (4, 1)], deadline=np.array([np.nan, 6.0, np.nan]))
    record = run(policy, cluster, tasks)
    assert record.finish.tolist() == [2, 7, 8]
    told = policy.told
    assert told.start[[0, 1, 3, 4]].tolist() == [0, 2, 7, 12]  # the third has not come, and does not
    assert np.isnan(told.start[2])
    assert told.input.tasks.arrival[3:].tolist() == [3, 7]
    assert told.input.tasks.deadline[3:].tolist() == [9, 13]  # as far from the arrival as that of the second
    assert len(tasks) == 3


def test_imagined_arrivals_have_patience_and_limits_of_their_own():
    policy = Imagines([1.0])
    expires = np.array([np.inf, 3.0])
    run(policy, *one_core([(0, 10), (0, 5)], expires=expires))
    assert policy.told.finish.tolist() == [10, 3, 4]


@pytest.mark.parametrize(("at", "said"), [(-1.0, "must not be in the past"), (float("nan"), "must not be in the past")])
def test_imagined_arrivals_come_from_now_on(at, said):
    with pytest.raises((UsageError, PolicyError), match=said):
        run(Imagines([at]), *one_core([(0, 1)]))


def test_too_few_arrivals_are_no_model():
    history = ArrivalHistory()
    tasks = workload([(float(k), 0, 1.0) for k in range(ENOUGH_ARRIVALS)], [Shape([cpu_mode()])])
    seen = []

    class Watches(FcfsSkip):
        def ready(self, task):
            super().ready(task)
            history.observe(task)
            seen.append(len(history.sample(100.0, 200.0, np.random.default_rng(1))))

    run(Watches(), Cluster([node(cpus=1)]), tasks)
    assert seen == [0] * (ENOUGH_ARRIVALS - 1) + [99]  # a second apart, and before the end


# Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"name": "rollout", "base": "heft"}, "Heft plans in advance or puts devices to sleep, so it cannot "
                                              "run in a fork;"),
        ({"name": "rollout", "base": "power_down"}, "puts devices to sleep"),
        ({"name": "rollout", "base": "round_robin"}, "RoundRobin records only the starts that it made itself"),
        ({"name": "rollout", "arrivals": "learned"}, "needs a horizon"),
        ({"name": "rollout", "samples": 9, "forks": 16}, "forks must be at least 20"),
        ({"name": "rollout", "arrivals": "learned", "horizon": "1 min"}, "a model of arrivals needs 20 or more "
                                                                         "arrivals"),
        ({"name": "rollout", "objective": "deadline_misses"}, "no task has a deadline"),
        ({"name": "rollout", "objective": "cost"}, "nothing in the cluster has a price"),
        ({"name": "rollout", "objective": "energy"}, "no device of the cluster has watts"),
    ],
)
def test_what_cannot_be_is_said(policy, said):
    jobs = {"cpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 3}}
    with pytest.raises(ScenarioError, match=said):
        hs.run({"cluster": {"nodes": {"cpus": 1}}, "workload": jobs, "policy": policy})


def test_language_models_have_no_rollouts():
    from test_llm import scenario

    described = scenario(gpus=2)
    described["workload"].append({"name": "jobs", "gpu_time": "1 s",
                                  "arrivals": {"process": "all_at_once", "count": 1}})  # fmt: skip
    described["policy"] = {**described.get("policy", {}), "scheduler": {"name": "rollout"}}
    with pytest.raises(ScenarioError, match="no policy knows the lengths of answers"):
        Simulation(load(described).build())


# Times that are drawn --------------------------------------------------------------------------------------------


class Draws(FcfsSkip):
    """Forks once at a time with ratios, and keeps what came of it by seed."""

    def __init__(self, ratios, at, seeds=(0,)):
        super().__init__()
        self.ratios, self.at, self.seeds, self.told = ratios, at, seeds, {}
        self.base = FcfsSkip()

    def schedule(self, view):
        if view.now >= self.at and not self.told:
            for seed in self.seeds:
                self.told[seed] = view.fork(FcfsSkip(), seed=seed, ratios=self.ratios).run()
        yield from super().schedule(view)


def test_forks_draw_times_from_ratios_that_have_not_passed_yet():
    """At 3 s a task of 4 s runs: with ratios 0.5 and 2 it can only be twice as long; what waits is drawn freely."""
    rows = [(0, 4), (3, 10), (3, 10), (3, 10), (3, 10)]
    policy = Draws([0.5, 2.0], 3.0, seeds=range(20))
    run(policy, *one_core(rows))
    lasted = [told.finish[1:] - told.start[1:] for told in policy.told.values()]
    assert all(told.finish[0] == 8.0 for told in policy.told.values())
    assert set(np.round(np.concatenate(lasted), 9)) == {5.0, 20.0}
    assert len({tuple(times) for times in lasted}) > 10
    again = Draws([0.5, 2.0], 3.0, seeds=range(20))
    run(again, *one_core(rows))
    assert all((again.told[seed].finish == policy.told[seed].finish).all() for seed in range(20))


def test_what_has_outrun_all_ratios_ends_at_once():
    policy = Draws([0.5], 3.0)
    run(policy, *one_core([(0, 4), (3, 10)]))
    assert policy.told[0].finish.tolist() == [3.0, 8.0]


def test_one_part_is_expected_of_each_task():
    with pytest.raises((UsageError, PolicyError), match=r"one number for each of 2 tasks; got shape \(1,\)"):
        run(Expects(np.array([1.0])), *one_core([(9, 1), (9, 1)]))


class Expects(FcfsSkip):
    """Forks once with a part of the estimate for each row."""

    def __init__(self, parts, ratios=(), at=0.0):
        super().__init__()
        self.parts, self.ratios, self.at, self.told = parts, ratios, at, None

    def schedule(self, view):
        if self.told is None and view.now >= self.at:
            coming = [(50.0, view.waiting()[-1])] if view.waiting() else []
            self.told = view.fork(FcfsSkip(), (), 0, coming, self.ratios, lambda tasks: self.parts[: len(tasks)]).run()
        yield from super().schedule(view)


def test_forks_take_the_expected_part_of_each_estimate():
    parts = np.array([0.5, 3.0, 1.0])
    policy = Expects(parts)
    run(policy, *one_core([(0, 4), (0, 2)]))
    assert policy.told.finish.tolist() == [2.0, 8.0, 52.0]  # the third is imagined, like the second
    doubled = Expects(parts, ratios=[2.0])
    run(doubled, *one_core([(0, 4), (0, 2)]))
    assert doubled.told.finish.tolist() == [4.0, 16.0, 54.0]
    running = Expects(np.array([2.0, 1.0, 1.0]), ratios=[0.25, 1.0], at=3.0)  # at 3 s of 4: 8 s in all
    run(running, *one_core([(0, 4), (3, 1)]))
    assert running.told.finish[0] == 8.0


@pytest.mark.parametrize("part", [0.0, -1.0, float("nan")])
def test_expected_parts_that_are_none_are_refused(part):
    with pytest.raises((UsageError, PolicyError), match="finite and above 0"):
        run(Expects(np.array([1.0, part])), *one_core([(0, 1)]))


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_ratios_that_are_none_are_refused(ratio):
    with pytest.raises((UsageError, PolicyError), match="finite and above 0"):
        run(Draws([ratio], 0.0), *one_core([(0, 1)]))


@pytest.mark.quick(0)
def test_what_is_gained_by_chance_only_is_left_to_the_base():
    """Estimates say nothing: by them the shortest goes first, while a look at what has ended shows no gain.

    Once that is known few tasks are even expected to gain; before, and where estimates will prove exact, a hundredth of
    the time is no gain beyond doubt.
    """
    random = np.random.default_rng(4)
    count = some(40, 20)
    rows = [(0.0, float(time)) for time in random.uniform(9.9, 10.1, count)]
    cluster, tasks = one_core(rows)
    tasks.estimate = tasks.time.copy()
    tasks.time = tasks.time * random.lognormal(0.0, 1.5, (count, 1))
    few = {} if tiers.whole else {"samples": 4, "forks": 16}
    believing, doubting = Rollout(samples=1), Rollout(**few)
    run(believing, cluster, tasks)
    run(doubting, cluster, tasks)
    assert doubting.notes["in_doubt"] > some(10, 4)
    assert doubting.notes["other_starts"] < 0.2 * believing.notes["other_starts"]
    exact = Rollout(**few)
    run(exact, *one_core(rows))
    assert exact.notes["in_doubt"] == ENOUGH and exact.notes["other_starts"] > some(20, 8)


# What is believed of estimates ----------------------------------------------------------------------------------


def ended(seconds, estimates, classes=None):
    """A history of tasks that took these times, and their table."""
    count = len(seconds)
    names = sorted(set(classes or ["a"]))
    code = np.array([names.index(name) for name in classes or ["a"] * count], dtype=np.int32)
    tasks = workload([(0.0, 0, float(time)) for time in seconds], [Shape([cpu_mode()])], class_code=code, classes=names)
    tasks.estimate = np.array(estimates, dtype=float).reshape(count, 1)
    history = EstimateHistory()

    class Watches(FcfsSkip):
        def finished(self, task):
            super().finished(task)
            history.observe(task, float(tasks.time[task.index, 0]) / task.estimates[0])

    run(Watches(), Cluster([node(cpus=4)]), tasks)
    return history, tasks


def lognormal(seed, count=500, size=0.8, error=0.8):
    random = np.random.default_rng(seed)
    seconds = random.lognormal(3.0, size, count)
    return seconds, seconds * random.lognormal(0.0, error, count)


@pytest.mark.parametrize(("size", "error"), [(0.8, 0.8), (1.0, 0.3), (0.0, 0.8)])
def test_estimates_are_believed_as_bayes_has_it(size, error):
    """Normal logarithms: the expected logarithm lies between estimate and mean, by the variances of both."""
    history, tasks = ended(*lognormal(1, size=size, error=error))
    believed = history.believed()
    assert believed.slope == pytest.approx(-(error**2) / (size**2 + error**2), abs=0.1)
    expected = np.log(tasks.estimate[:, 0] * believed.parts(tasks))
    left = np.log(tasks.time[:, 0]) - expected
    posterior = size * error / np.hypot(size, error)
    assert left.std() == pytest.approx(posterior, rel=0.1, abs=0.03)
    assert np.log(believed.residuals).std() == pytest.approx(posterior, rel=0.1, abs=0.03)
    assert left.mean() == pytest.approx(0.0, abs=0.05)


def test_few_tasks_tell_the_slope_by_the_variances():
    """Ten tasks that all take 20 s: estimates tell nothing, whatever they are."""
    seconds = np.full(10, 20.0)
    history, tasks = ended(seconds, seconds * np.random.default_rng(3).lognormal(0.0, 0.8, 10))
    assert history.believed().slope == pytest.approx(-1.0)
    expected = tasks.estimate[:, 0] * history.believed().parts(tasks)
    assert expected.max() == pytest.approx(expected.min())


def test_classes_have_factors_of_their_own():
    random = np.random.default_rng(5)
    seconds = random.lognormal(3.0, 1.0, 60)
    classes = ["right", "late"] * 30
    history, tasks = ended(seconds, seconds / np.array([1.0, 4.0] * 30) * random.lognormal(0.0, 0.01, 60), classes)
    parts = history.believed().parts(tasks)
    assert parts[0::2] == pytest.approx(1.0, rel=0.25)  # each leans towards the other
    assert parts[1::2] == pytest.approx(4.0, rel=0.25)


def test_exact_estimates_are_certain_once_enough_is_known():
    history, _ = ended(np.full(4, 7.0), np.full(4, 7.0))
    assert history.uncertain and len(history.believed().residuals) > 1
    history, _ = ended(np.full(5, 7.0), np.full(5, 7.0))
    assert not history.uncertain
    history, _ = ended(np.full(5, 7.0), np.full(5, 7.1))
    assert history.uncertain


class Forced(Led):
    """A base for which the third task is started at 3 s, whatever that delays."""

    forced = False

    def schedule(self, view):
        if view.now >= 3 and not self.forced:
            self.forced = True
            task = next(task for task in view.waiting() if task.index == 2)
            self.first = First((task, view.fit(task)))
        yield from super().schedule(view)


def test_a_start_for_the_base_makes_its_reservations_again():
    """The third task would delay the gang; once it runs, the gang is late anyway and the fourth may start."""
    sizes = ((2, 10), (4, 5), (1, 100), (1, 50))
    jobs = [{"arrivals": {"process": "all_at_once", "count": 1}, "gpus": gpus, "gpu_time": f"{seconds} s"}
            for gpus, seconds in sizes]  # fmt: skip
    cluster = {"nodes": {"cpus": 8, "gpus": {"type": "g", "count": 4}}}
    run = load({"cluster": cluster, "workload": jobs, "policy": "gang_backfill"}).build(1)
    run.tasks.arrival = np.array([0.0, 1.0, 2.0, 3.0])
    record = Simulation(replace(run, scheduler=Forced(GangBackfill())), check=True).run()
    assert record.start.tolist() == [0, 103, 3, 3]
