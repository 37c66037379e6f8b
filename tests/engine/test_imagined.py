"""What a policy's fork knows, and what it must not know: estimates, no task to come, no faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import SERVICES, fault_events, service
from tiers import spread

from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, UsageError
from hetsim.model.record import COMPLETED, NOT_ARRIVED
from hetsim.policy import Scheduler, Start, Wait
from hetsim.scenario.scenario import load
from hetsim.testing.conformance import fingerprint
from hetsim.testing.generate import random_system

BASES = ("fcfs", "fcfs_skip", "sjf", "srtf", "las", "easy_backfill", "round_robin", "processor_sharing")


def base(name):
    made = registry.policy("scheduler", name)
    return made() if isinstance(made, type) else _ordered(name)


def _ordered(name):
    from hetsim.scenario.schema.policy import PolicySpec

    return PolicySpec("scheduler", name).make()


class Asks(Scheduler):
    """Follows its base, and plays the run on from some of its rounds."""

    def __init__(self, name, at, afresh=False):
        self.base, self.at, self.afresh, self.name = base(name), at, afresh, name
        self.rounds = 0
        self.told = []

    def begin(self, view):
        self.base.begin(view)

    def serve(self, counters, only):
        self.base.serve(counters, only)

    def ready(self, task):
        self.base.ready(task)

    def finished(self, task):
        self.base.finished(task)

    def gone(self, task):
        self.base.gone(task)

    def device(self, device, up):
        self.base.device(device, up)

    def schedule(self, view):
        self.rounds += 1
        if self.rounds in self.at or (view.now in self.at and not self.told):
            self.told.append((view.now, view.fork(base(self.name) if self.afresh else self.base).run()))
        yield from self.base.schedule(view)


def known_beforehand(seed, **more):
    """A random system in which nothing is hidden: all is there at once, and estimates are true."""
    system = random_system(seed, nodes=1 + seed % 3, tasks=20, **more)
    system.tasks.arrival[:] = 0.0
    system.tasks.estimate = system.tasks.time
    return system


def close(one, other):
    return np.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("seed", spread(range(12), 2))
def test_where_nothing_is_hidden_a_fork_ends_as_the_run_will(name, seed):
    policy = Asks(name, at=(1, 3, 8, 15))
    record = Simulation(known_beforehand(seed).run_input(policy), check=True).run()
    assert policy.told
    for _, told in policy.told:
        assert close(told.start, record.start) and close(told.finish, record.finish)
        assert (told.status == record.status).all()


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["fcfs", "sjf", "easy_backfill"])
@pytest.mark.parametrize("seed", spread(range(12), 3))
def test_a_scheduler_that_knows_nothing_yet_is_told_who_waits(name, seed):
    """These keep nothing of the past, so that a new one goes on as the old one."""
    policy = Asks(name, at=(1, 4, 9), afresh=True)
    record = Simulation(known_beforehand(seed).run_input(policy)).run()
    for _, told in policy.told:
        assert close(told.finish, record.finish)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", spread(range(30), 8))
def test_no_hidden_time_arrival_or_fault_changes_a_fork(seed):
    """Two runs that are alike up to a time, in which tasks then take longer, come at other times and devices fail."""
    random = np.random.default_rng(seed)
    features = ("estimates", "people", "stops", *(("transfers", "memory") if seed % 3 else ()))
    system = random_system(seed, nodes=1 + seed % 3, tasks=25, features=features)
    name = BASES[seed % len(BASES)]
    plain = Simulation(system.run_input(Asks(name, at=()))).run()
    at = float(np.quantile(plain.finish, 0.4))
    policy = Asks(name, at=(at,))
    run = system.run_input(Waker(policy, at))
    record = Simulation(run).run()

    tasks = system.tasks
    later = tasks.arrival > at
    arrival = np.where(later, at + (tasks.arrival - at) * random.uniform(0.5, 2.0), tasks.arrival)
    computed = record.finish - (0 if record.download is None else record.download)
    free = computed > at
    if record.launches is not None:  # how far a task had come when it was stopped tells of its time
        free[record.launches["task"][record.launches["end"] <= at]] = False
    time = np.where(free[:, None], tasks.time * random.uniform(1.0, 3.0), tasks.time)
    hidden = replace(tasks, arrival=arrival, time=time, estimate=tasks.estimate)
    other_policy = Asks(name, at=(at,))
    other = replace(run, tasks=hidden, scheduler=Waker(other_policy, at))
    other.faults = fault_events("fail", int(random.integers(len(run.cluster.devices))), at + 1e-6, at + 4)
    Simulation(other).run()
    (((_, one),), ((_, two),)) = policy.told, other_policy.told
    for column in ("start", "finish", "status", "place"):
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()
    assert (one.status[later] == NOT_ARRIVED).all()
    assert (one.finish[later] != one.finish[later]).all()


class Waker(Scheduler):
    """Has its policy asked at a time, whatever else happens."""

    def __init__(self, policy, at):
        self.policy, self.at = policy, at
        for hook in ("begin", "serve", "ready", "finished", "gone", "device"):
            setattr(self, hook, getattr(policy, hook))

    def schedule(self, view):
        for decision in self.policy.schedule(view):
            if not isinstance(decision, Wait):
                yield decision
        yield Wait(until=self.at if view.now < self.at else view.now + 0.25)

    ready = finished = gone = device = lambda self, *given: None


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_the_run_itself_never_notices(seed):
    """With faults, transfers, shared links and wrong estimates."""
    def made(at):
        system = random_system(seed, nodes=1 + seed % 3, tasks=25)
        run = system.run_input(Asks("srtf", at))
        slow = len(run.cluster.devices) - 1
        run.faults = fault_events("fail", 0, 2.0, 4.0) + fault_events("slow", slow, 1.0, 6.0)
        return run

    assert fingerprint(Simulation(made(range(100))).run()) == fingerprint(Simulation(made(())).run())


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "name", ["plain", "three GPUs", "async", "bytes", "half duplex", "admission", "patience", "fixed"]
)
def test_a_fork_serves_whoever_has_come(name):
    """As the same service whose stream ends then, where times are exact."""
    options = {**SERVICES[name], "horizon": None}
    options["entry"] = {**options.get("entry", {}), "count": 700}
    if isinstance(options.get("policy"), dict) and "scheduler" in options["policy"]:
        options["policy"] = {**options["policy"]}
    described = service(**options)
    run = load(described).build(3)
    policy = Asks("fcfs", at=(40,))
    Simulation(replace(run, scheduler=policy)).run()
    (((now, told),)) = policy.told
    came = int((run.tasks.arrival <= now).sum())
    assert 50 < came < 700
    assert (told.status[came:] == NOT_ARRIVED).all()
    described["workload"][0]["count"] = came
    alone = Simulation(load(described).build(3), check=True).run()
    if name == "fixed":  # the last batch is not full, and it is known a moment before that no request will fill it
        assert (told.status[:came] == COMPLETED).all()
    else:
        assert close(told.finish[:came], alone.finish)


@pytest.mark.parametrize("name", ["plain", "admission", "patience"])
def test_batching_and_admission_go_on_where_another_scheduler_takes_over(name):
    """Neither begins anew: they hear of the start of the run once, and the fork ends as the one that goes on."""
    options = {**SERVICES[name], "horizon": None}
    options["entry"] = {**options.get("entry", {}), "count": 700}
    run = load(service(**options)).build(3)
    begun = []

    class Once(type(run.batching[0])):
        def begin(self, queue, view):
            begun.append(queue)
            super().begin(queue, view)

    run.batching[0].__class__ = Once
    told = []

    class Both(Asks):
        def schedule(self, view):
            self.rounds += 1
            if self.rounds == 40:
                told.extend(view.fork(one).run() for one in (self.base, base("fcfs")))
            yield from self.base.schedule(view)

    Simulation(replace(run, scheduler=Both("fcfs", ()))).run()
    goes_on, afresh = told
    assert len(begun) == 1
    assert close(goes_on.finish, afresh.finish)


def test_noise_is_that_of_the_seed():
    described = service(noise="20%", horizon=None, entry={"count": 400})
    found = []

    class Twice(Asks):
        def schedule(self, view):
            self.rounds += 1
            if self.rounds == 10:
                found.extend(view.fork(self.base, seed=seed).run().finish for seed in (1, 1, 2))
            yield from self.base.schedule(view)

    Simulation(replace(load(described).build(3), scheduler=Twice("fcfs", ()))).run()
    same, again, other = found
    assert same.tobytes() == again.tobytes() != other.tobytes()


def test_decisions_are_tried_out_in_forks():
    """Two orders of two tasks on one core: the shorter first is the better mean, and the policy finds out by asking."""
    class Tries(Scheduler):
        def schedule(self, view):
            tasks = view.waiting()
            if not tasks or view.fit(tasks[0]) is None:
                return
            means = []
            for task in tasks:
                record = view.fork(base("fcfs"), [Start(task, view.fit(task))]).run()
                means.append(float(np.mean(record.finish - record.input.tasks.arrival)))
            best = tasks[int(np.argmin(means))]
            yield Start(best, view.fit(best))

    tasks = [{"name": name, "cpu_time": time, "arrivals": {"process": "all_at_once", "count": 1}}
             for name, time in (("long", "9 s"), ("short", "1 s"), ("middle", "4 s"))]  # fmt: skip
    run = load({"cluster": {"nodes": {"cpus": 1}}, "workload": tasks}).build()
    record = Simulation(replace(run, scheduler=Tries())).run()
    assert record.start.tolist() == [5.0, 0.0, 1.0]


def test_a_fork_may_end_at_a_time():
    class Short(Asks):
        def schedule(self, view):
            self.rounds += 1
            if self.rounds == 1:
                self.told.append(view.fork(self.base).run(until=2.0))
            yield from self.base.schedule(view)

    policy = Short("fcfs", ())
    tasks = {"cpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 5}}
    run = load({"cluster": {"nodes": {"cpus": 1}}, "workload": tasks}).build()
    Simulation(replace(run, scheduler=policy)).run()
    (told,) = policy.told
    assert told.end == 2.0 and (told.status == COMPLETED).sum() == 1  # what ends at the very end does not


def test_who_overruns_its_estimate_ends_at_once():
    tasks = {"cpu_time": "10 s", "arrivals": {"process": "all_at_once", "count": 2}}
    run = load({"cluster": {"nodes": {"cpus": 1}}, "workload": tasks}).build()
    run = replace(run, tasks=replace(run.tasks, estimate=run.tasks.time / 5))
    policy = Asks("fcfs", at=(4.5,))
    Simulation(replace(run, scheduler=Waker(policy, 4.5))).run()
    (((now, told),)) = policy.told
    assert now == 4.5 and told.finish.tolist() == [4.5, 6.5]


class Expects(Asks):
    """Imagines two more arrivals of what waits at the fork."""

    def schedule(self, view):
        self.rounds += 1
        if self.rounds == 1:
            like = view.waiting()[0]
            coming = [(view.now + 50.0, like), (view.now + 40.0, like)]
            self.told.append(view.fork(base("fcfs"), coming=coming).run())
        yield from self.base.schedule(view)


def test_arrivals_that_are_imagined_send_their_data_and_keep_their_limits():
    """Each moves 1 GB at 1 GB/s and computes 2 s; the second limits its tasks to half a second."""
    nodes = {"cpus": 1, "gpus": {"type": "v100", "count": 1, "pcie": {"upload": "1 GB/s", "download": "1 GB/s"}}}
    tasks = {"gpu_time": "2 s", "bytes_in": "1 GB", "arrivals": {"process": "all_at_once", "count": 1}}
    run = load({"cluster": {"nodes": nodes}, "workload": tasks}).build()
    policy = Expects("fcfs", ())
    Simulation(replace(run, scheduler=policy)).run()
    (told,) = policy.told
    assert told.finish.tolist() == [3.0, 43.0, 53.0]
    policy = Expects("fcfs", ())
    limited = replace(run.tasks, time_limit=np.array([0.5]))
    Simulation(replace(run, scheduler=policy, tasks=limited, grace=0.0)).run()
    (told,) = policy.told
    assert told.finish.tolist() == [0.5, 40.5, 50.5]


@pytest.mark.parametrize(("scheduler", "decisions", "said"), [
    ("sjf", (), "must be a scheduler such as ListScheduler"), (Asks, (), r"make one: Asks\(\.\.\.\)"),
    (None, (), "got None"), (base("fcfs"), 7, "must be a list of decisions; got 7"),
])  # fmt: skip
def test_what_a_fork_takes_is_said(scheduler, decisions, said):
    class Forks(Scheduler):
        def schedule(self, view):
            view.fork(scheduler, decisions)
            yield from ()

    with pytest.raises(UsageError, match=said):
        Simulation(replace(random_system(1).run_input(None), scheduler=Forks())).run()


@pytest.mark.parametrize(("scheduler", "said"), [("heft", "a static scheduler cannot continue")])
def test_what_cannot_go_on_is_said(scheduler, said):
    run = random_system(1).run_input(None)
    policy = Asks("fcfs", at=(2,))
    policy.name, policy.afresh = scheduler, True
    with pytest.raises((UsageError, PolicyError), match=said):
        Simulation(replace(run, scheduler=policy)).run()


def test_language_models_have_no_forks_for_policies():
    from test_llm import scenario

    jobs = {"name": "jobs", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 1}}
    described = scenario(gpus=2)
    described["workload"].append(jobs)
    with pytest.raises((UsageError, PolicyError), match="does not know the lengths of answers"):
        Simulation(replace(load(described).build(), scheduler=Asks("fcfs", at=(1,)))).run()
