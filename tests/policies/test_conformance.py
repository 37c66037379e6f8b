"""Every policy that ships keeps the contract, and the suite catches every way of breaking it."""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import tiers
from hashed import Sound, TrustsHashes
from tiers import some, spread

from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster
from hetsim.model.plan import Placement, Plan, Step
from hetsim.policy import Fetch, ListScheduler, PlannedScheduler, Reject, Scheduler, Start, Stop, Wait
from hetsim.testing import PolicyTestCase, audit, check_policy, examine, other_hash_seed, random_system, small_systems
from hetsim.testing.conformance import all_systems, differing_elsewhere
from hetsim.testing.systems import all_at_once, cpu_mode, fractions, gangs, node, one_core, people, task_graph, workload

PLANNERS = [
    name for name in registry.policies("scheduler")
    if inspect.isclass(item := registry.policy("scheduler", name)) and issubclass(item, PlannedScheduler)
]  # fmt: skip
"""Static policies refuse what they cannot plan; they have tests of their own."""
THRIFTY = {"rollout": {"samples": 3, "forks": 10}, "pollux": {"population": 8, "generations": 4}}
"""A third of the forks, a fifth of the generations that these try unless told otherwise: the same, less often."""
GIVEN = ["external", "learned"]
"""Schedulers that cannot be made without a parameter or a program; each has tests of its own."""


def make(scheduler, placement=None, **parameters):
    """A registered scheduler, with a registered placement."""
    item = registry.policy("scheduler", scheduler)
    parameters = {**THRIFTY.get(scheduler, {}), **parameters}
    if placement is not None:
        rule = registry.policy("placement", placement)
        parameters["placement"] = rule() if inspect.isclass(rule) else rule
    return item(**parameters) if inspect.isclass(item) else ListScheduler(item, **parameters)


def takes_placement(scheduler):
    item = registry.policy("scheduler", scheduler)
    return not inspect.isclass(item) or "placement" in registry.parameters(item)


SCHEDULERS = [name for name in registry.policies("scheduler") if name not in PLANNERS + GIVEN]
PAIRS = [
    (scheduler, placement)
    for scheduler in SCHEDULERS
    for placement in [None, *(registry.policies("placement") if takes_placement(scheduler) else ())]
]
VARIANTS = [
    ("srtf", {"discipline": "skip", "margin": 0.5}),
    ("priority", {"preemptive": True}),
    ("priority", {"preemptive": True, "aging": 0.1, "discipline": "skip"}),
    ("edf", {"preemptive": True, "discipline": "skip"}),
    ("edf", {"drop_expired": True}),
    ("edf", {"preemptive": True, "drop_expired": True, "discipline": "skip"}),
    ("round_robin", {"quantum": 0.4}),
    ("sjf", {"discipline": "skip"}),
    ("random", {"discipline": "skip"}),
]


def tiered(scheduler, placement):
    """The quick tier tries each placement under fcfs, and every fourth scheduler; test_properties.py tries all.

    The whole suite tries each scheduler with its own placement and with a third of the others, by turns.
    """
    if scheduler == "fcfs" or (placement is None and SCHEDULERS.index(scheduler) % 4 == 0):
        return pytest.param(scheduler, placement)
    nightly = [pytest.mark.nightly] if turn(scheduler, placement) else []
    return pytest.param(scheduler, placement, marks=[pytest.mark.slow, *nightly])


def turn(scheduler, placement):
    """By which of three turns a pair is tried: 0 that of the whole suite, 1 and 2 nightly ones."""
    if placement is None or scheduler == "fcfs":
        return 0
    return (SCHEDULERS.index(scheduler) + list(registry.policies("placement")).index(placement)) % 3


SYSTEMS = all_systems()
PLACED = [scheduler for scheduler in SCHEDULERS if takes_placement(scheduler)]
"""Schedulers that take a placement."""
PLACEMENTS = list(registry.policies("placement"))


def systems_of(scheduler, placement):
    """The systems on which a pair is tried: all with a scheduler's own placement, else one.

    Each two of scheduler, placement and system meet; which one it is turns with both.
    """
    if placement is None:
        return SYSTEMS
    return [SYSTEMS[(PLACED.index(scheduler) + PLACEMENTS.index(placement)) % len(SYSTEMS)]]


def test_every_placement_meets_every_system():
    for placement in PLACEMENTS:
        met = {system.name for scheduler in PLACED for system in systems_of(scheduler, placement)}
        assert met == {system.name for system in SYSTEMS}, placement


@pytest.mark.by_turns(104)
@pytest.mark.parametrize(("scheduler", "placement"), [tiered(*pair) for pair in PAIRS])
def test_registered_policies_conform(scheduler, placement):
    systems = systems_of(scheduler, placement)
    if scheduler == "fcfs" and placement is not None:  # each placement under the plainest scheduler
        step = some(6, 12)
        systems = SYSTEMS[PLACEMENTS.index(placement) % step :: step]
    if placement is None and not tiers.whole:
        systems = systems[SCHEDULERS.index(scheduler) // 4 % 8 :: 8]  # of the schedulers tried, each eighth meets one
    check_policy(functools.partial(make, scheduler, placement), systems, hash_seed=False)


@pytest.mark.quick(1)
@pytest.mark.by_turns(3)
@pytest.mark.parametrize(("scheduler", "parameters"), spread(VARIANTS, 2))
def test_variants_conform(scheduler, parameters):
    may_reject = bool(parameters.get("drop_expired"))
    systems = all_systems()[:: some(1, 7)]  # with people among them, whose deadlines are missed
    check_policy(functools.partial(make, scheduler, **parameters), systems, may_reject=may_reject, hash_seed=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 7))])
def test_no_registered_policy_depends_on_the_hash_seed(part):
    """In the whole suite pairs of the turn 0; each nightly part has a third of those of another turn."""
    pairs = [pair for pair in PAIRS if turn(*pair) == (part + 2) // 3]
    jobs = [(functools.partial(make, *pair), systems_of(*pair)) for pair in (pairs[part % 3 :: 3] if part else pairs)]
    if part == 0:
        jobs += [(functools.partial(make, name, **parameters), SYSTEMS) for name, parameters in VARIANTS]
    assert differing_elsewhere(jobs) == []


@pytest.mark.xdist_group("suite as a class")  # one pass over the systems answers all of its tests
class TestSuiteAsAClass(PolicyTestCase):
    """As a policy author would use it."""

    def make(self):
        return make("fcfs_skip", "best_fit")

    def systems(self):
        return all_systems()[:: some(1, 5)]

    @pytest.mark.slow  # the other process imports this module, which takes most of the time
    def test_hash_seed_does_not_matter(self):
        super().test_hash_seed_does_not_matter()


@pytest.mark.xdist_group("suite with rejections")
class TestSuiteAsAClassWithRejections(PolicyTestCase):
    may_reject = True
    test_hash_seed_does_not_matter = None  # another process for the same code; the test above tries this variant too

    def make(self):
        return make("edf", drop_expired=True)

    def systems(self):
        return all_systems()[:: some(1, 7)]  # with people among them, whose deadlines are missed


def test_policies_can_be_sent_to_another_process():
    for name in SCHEDULERS:
        pickle.loads(pickle.dumps(make(name)))
    for name in ("codel", "head_codel"):
        pickle.loads(pickle.dumps(registry.policy("admission", name)(target=1.0, interval=2.0)))


@pytest.mark.quick(4)
@pytest.mark.parametrize("system", small_systems(), ids=lambda system: system.name)
def test_a_recorded_run_can_be_replayed_as_a_plan(system):
    """Follow the order of starts of an fcfs run; each task in its mode, on its devices."""
    assert examine(lambda _: plan_follower(system), system) == []


def plan_follower(system):
    record = Simulation(system.run_input(ListScheduler())).run()
    return Follower(plan_of(record))


def plan_of(record):
    """The plan that a finished run amounts to."""
    cluster, tasks = record.input.cluster, record.input.tasks
    steps = []
    for row in np.lexsort((np.arange(len(tasks)), record.start)).tolist():
        devices, cores = record.places[record.place[row]]
        names = [cluster.devices[index].name for index in devices]
        if cores is not None:
            names = [f"{names[0]}{core}" for core in cores]
        elif tasks.shapes[tasks.shape[row]].modes[record.mode[row]].on_cpu:
            names = [f"{names[0]}0"]
        steps.append(Step(row, int(record.mode[row]), tuple(names)))
    return Plan(steps)


class Follower(PlannedScheduler):
    def __init__(self, plan):
        super().__init__()
        self.given = plan

    def plan(self, problem):
        return self.given


def test_random_systems_are_the_same_for_the_same_seed():
    one, two = random_system(7), random_system(7)
    assert one.cluster.describe() == two.cluster.describe()
    assert (one.tasks.time == two.tasks.time).all()
    assert (one.tasks.arrival == two.tasks.arrival).all()


# Broken on purpose ------------------------------------------------------------------------------------------


def complaints(factory, *systems, **options):
    return [c for system in systems or small_systems() for c in examine(lambda _: factory(), system, **options)]


def rules(factory, *systems, **options):
    return {complaint.rule for complaint in complaints(factory, *systems, **options)}


class Idle(Scheduler):
    """Starts nothing."""


def test_starting_nothing_is_caught_with_the_tasks_that_wait():
    (complaint,) = complaints(Idle, one_core())
    assert complaint.rule == "legal"
    assert "one core" in str(complaint)
    assert 'policy "Idle" starts nothing: at t = 30 s' in complaint.text
    assert "task 0: waiting since t = 0 s, would fit now" in complaint.text


class Loses(ListScheduler):
    """Rejects one task."""

    def schedule(self, view):
        for task in list(view.waiting()):
            if task.index == 3:
                yield Reject(task, "I do not like it")
        yield from super().schedule(view)


def test_losing_a_task_is_caught_unless_rejecting_is_its_business():
    (complaint,) = complaints(Loses, one_core())
    assert complaint.rule == "ends"
    assert "task 3 is rejected" in complaint.text
    assert complaints(Loses, one_core(), may_reject=True) == []


class Oversubscribes(Scheduler):
    """Starts everything on the first device of its type at once."""

    def schedule(self, view):
        for task in list(view.waiting()):
            mode = task.modes[0]
            devices = [device for device in view.cluster.devices if device.type is mode.type]
            yield Start(task, Placement(mode, tuple(devices[: max(1, mode.gpus)])))


def test_oversubscribing_is_refused():
    (complaint,) = complaints(Oversubscribes, one_core())
    assert complaint.rule == "legal"
    assert "task 1" in complaint.text
    assert "t = 1 s" in complaint.text
    assert "0 cores free" in complaint.text


class StartsTwice(Scheduler):
    def schedule(self, view):
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement is not None:
                yield Start(task, placement)
                yield Start(task, placement)


class StopsWaiting(ListScheduler):
    def schedule(self, view):
        yield from super().schedule(view)
        for task in list(view.waiting()):
            yield Stop(task)


class ForeignMode(ListScheduler):
    def schedule(self, view):
        for task in list(view.waiting()):
            yield Start(task, Placement(cpu_mode(), (view.cluster.nodes[0].cpu,)))


class WaitsForThePast(Scheduler):
    def schedule(self, view):
        yield Wait(until=view.now)


class FetchesNothing(ListScheduler):
    def schedule(self, view):
        yield Fetch(99, view.cluster.devices[0])


class YieldsNonsense(Scheduler):
    def schedule(self, view):
        yield "start everything"


class Raises(ListScheduler):
    def finished(self, task):
        raise KeyError(task.index)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (StartsTwice, "is running already"),
        (StopsWaiting, "is waiting"),
        (ForeignMode, "which it lacks"),
        (WaitsForThePast, "a time after now"),
        (FetchesNothing, "does not exist"),
        (YieldsNonsense, "not a decision"),
        (Raises, "raised KeyError in finished"),
    ],
)
def test_illegal_decisions_are_caught(policy, says):
    (complaint,) = complaints(policy, one_core())
    assert complaint.rule == "legal"
    assert says in complaint.text
    assert f'policy "{policy.__name__}"' in complaint.text


class StopsAndStarts(ListScheduler):
    """Stops what it has just started, for ever."""

    def schedule(self, view):
        yield from super().schedule(view)
        for task in view.running():
            yield Stop(task)


def test_looping_at_one_instant_is_caught(monkeypatch):
    for module in ("core.rounds", "control.decisions"):
        monkeypatch.setattr(f"hetsim.engine.{module}.LOOP_LIMIT", 300)
    (complaint,) = complaints(StopsAndStarts, one_core())
    assert complaint.rule == "legal"
    assert "loops" in complaint.text


class LosesProgress(ListScheduler):
    """Stops everything each tenth of a second, and throws the work away."""

    last = 0.0

    def schedule(self, view):
        if view.now > self.last:
            self.last = view.now
            for task in view.running():
                yield Stop(task, keep=False)
        yield from super().schedule(view)
        yield Wait(until=view.now + 0.1)


def test_getting_nowhere_is_caught(monkeypatch):
    monkeypatch.setattr("hetsim.testing.conformance.ROUND_LIMIT", 200)
    (complaint,) = complaints(LosesProgress, one_core())
    assert complaint.rule == "legal"
    assert "200 rounds" in complaint.text


class ChangesTasks(ListScheduler):
    def ready(self, task):
        task.estimates = tuple(0.5 for _ in task.estimates)
        super().ready(task)


class ChangesProgress(ListScheduler):
    def schedule(self, view):
        for task in list(view.waiting()):
            task.done = 0.5
        yield from super().schedule(view)


class ChangesView(ListScheduler):
    def schedule(self, view):
        view.now += 1.0
        yield from super().schedule(view)


class ChangesTable(ListScheduler):
    def ready(self, task):
        task._table.deadline[task.index] = 0.0
        super().ready(task)


@pytest.mark.parametrize(
    ("policy", "says"),
    [(ChangesTasks, "task job-0: the policy changed its estimates in ready at t = 0 s"),
     (ChangesProgress, "changed its done fraction in schedule"),
     (ChangesTable, "the table of tasks was changed")],
)  # fmt: skip
def test_changing_tasks_is_caught(policy, says):
    found = complaints(policy, people())
    assert found[0].rule == "changes"
    assert says in found[0].text


def test_changing_the_view_is_caught():
    # Either as a change or, where the view does not allow it, as what the policy raised.
    assert rules(ChangesView, one_core()) & {"changes", "legal"}


class Gambles(ListScheduler):
    """Draws from a global generator."""

    def __init__(self):
        super().__init__(lambda task: random.random())


class TrustsSets(ListScheduler):
    """Starts tasks in the order of a set."""

    def schedule(self, view):
        for task in set(view.waiting()):
            placement = view.fit(task)
            if placement is not None:
                yield Start(task, placement)


class TrustsAddresses(ListScheduler):
    def __init__(self):
        super().__init__(id)


class Remembers(ListScheduler):
    """Keeps something from one run to the next."""

    runs = itertools.count()

    def begin(self, view):
        self.sign = 1 if next(self.runs) % 2 else -1
        self.order = lambda task: self.sign * task.shortest_estimate


@pytest.mark.parametrize("policy", [Gambles, TrustsSets, TrustsAddresses, Remembers])
def test_runs_that_differ_are_caught(policy):
    (complaint,) = complaints(policy, all_at_once())
    assert complaint.rule == "repeats"
    assert "two equal runs differ: task" in complaint.text


@pytest.mark.slow
def test_dependence_on_the_hash_seed_is_caught():
    """One of two is caught: the policy that depends on it, not the suite of one that does not."""
    found = other_hash_seed([TrustsHashes, Sound], [people()])
    assert [complaint.rule for complaint in found] == ["hash seed"]
    assert "TrustsHashes" in found[0].text


def test_check_policy_tells_system_task_and_time():
    with pytest.raises(AssertionError, match=r"on the system 'one core': .*task 1 .*t = 1 s"):
        check_policy(Oversubscribes, [one_core()])


# The recount itself -------------------------------------------------------------------------------------------


def finished(system):
    return Simulation(system.run_input(ListScheduler()), check=True).run()


@pytest.mark.parametrize("system", small_systems(), ids=lambda system: system.name)
def test_the_recount_has_nothing_against_a_sound_run(system):
    assert audit(finished(system)) == []


def test_the_recount_sees_two_tasks_on_one_core():
    record = finished(one_core())
    start, finish = record.start.copy(), record.finish.copy()
    start[1], finish[1] = 1.0, 2.0  # while task 0 runs from 0 to 3
    (text,) = audit(replace(record, start=start, finish=finish))[:1]
    assert text == "task 1 at t = 1 s: cores (thousandths) in use of n0: 2,000; capacity 1,000"


def test_the_recount_sees_an_oversubscribed_fraction():
    record = finished(fractions())
    place = np.full_like(record.place, record.place[0])
    assert any("share (millionths) in use of n0/g" in text for text in audit(replace(record, place=place)))


def test_the_recount_sees_a_scattered_gang():
    record = finished(gangs())
    row = 2  # two GPUs on one node
    places = [*record.places, ((record.input.cluster.nodes[0].accelerators[0].index,
                                record.input.cluster.nodes[1].accelerators[0].index), None)]  # fmt: skip
    columns = {name: column.copy() for name, column in record.launches.items()}
    columns["place"][columns["task"] == row] = len(places) - 1
    assert any("must not span nodes, but ran "
               "on" in text for text in audit(replace(record, places=places, launches=columns)))


def test_the_recount_sees_a_start_before_the_predecessor_has_finished():
    record = finished(task_graph())
    finish = record.finish.copy()
    finish[0] += 100.0
    assert any("before task 0 had finished" in text for text in audit(replace(record, finish=finish)))


def test_the_recount_sees_a_start_before_arrival():
    record = finished(one_core())
    start = record.start.copy()
    start[5] = 20.0
    assert any("task 5 started at t = 20 s, but was ready only at t "
               "=" in text for text in audit(replace(record, start=start)))


def test_the_recount_sees_a_completed_task_without_a_launch():
    tasks = workload([(0, 0, 1)], [gangs().tasks.shapes[0]])
    record = finished(one_core())
    place = record.place.copy()
    place[0] = -1
    assert len(tasks) == 1
    assert any("task 0 is completed" in text for text in audit(replace(record, place=place)))


def test_nodes_of_systems_share_one_type_of_core():
    cluster = Cluster([node(cpus=2), node(cpus=4)])
    assert [device.type.name for device in cluster.devices] == ["cpu", "cpu"]
