"""What a policy can and cannot do: no cheating, errors with an address, nothing kept alive."""

from __future__ import annotations

import abc
import ast
import copy
import gc
import pickle
import re
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from machines import Job, Scripted, gpu_mode, running, simulate, simulation
from tiers import some, spread

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, RunError, UsageError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType, Power
from hetsim.model.plan import Placement
from hetsim.model.record import EXPIRED, FAILED
from hetsim.model.task import Task
from hetsim.model.tasks import Item
from hetsim.policy import (
    Accept,
    Admission,
    Annotate,
    Backfilling,
    Batching,
    Defer,
    Fetch,
    ListScheduler,
    Reject,
    Scheduler,
    Set,
    Start,
    Stop,
    Take,
    TaskQueue,
    Wait,
)
from hetsim.policy.preemption import PreemptiveList
from hetsim.policy.rehearsal import WatchedRun
from hetsim.policy.relay import Relay

GPU = DeviceType("g")
MODE = gpu_mode(GPU)
ONE = NodeSpec(cpus=1, accelerators=((GPU, 1),))
TWO = NodeSpec(cpus=1, accelerators=((GPU, 2),))


class Doing(ListScheduler):
    """First come first served, and what `extra(view)` yields besides."""

    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def schedule(self, view):
        yield from self.extra(view)
        yield from super().schedule(view)


def error_of(extra, jobs=None, node=ONE):
    with pytest.raises(PolicyError) as caught:
        simulate(node, jobs or [Job([MODE], [2.0])], Doing(extra))
    return str(caught.value)


# No cheating ------------------------------------------------------------------------------------------------------


def test_estimates_cannot_be_written_and_the_truth_does_not_depend_on_them():
    class Writes(ListScheduler):
        def ready(self, task):
            task.estimates[0] = 0.001
            super().ready(task)

    with pytest.raises(PolicyError, match="TypeError"):
        simulate(ONE, [Job([MODE], [3.0])], Writes())


def test_a_task_is_not_done_because_a_policy_says_so():
    class Claims(ListScheduler):
        def ready(self, task):
            task.done = 1.0
            super().ready(task)

    assert simulate(ONE, [Job([MODE], [3.0])], Claims()).finish.tolist() == [3.0]


def test_a_stop_does_not_tell_the_true_size():
    """Estimate 2, truth 30: at t = 3 the estimate is overrun, before and after a stop; the truth stays hidden."""
    seen = []

    def look(view):
        task = running(view, 0)
        seen.append(view.remaining(task))
        yield Stop(task)
        seen.extend([view.remaining(task), task.done])

    record = simulate(ONE, [Job([MODE], [30.0], estimates=[2.0])], Scripted([(3.0, look)]))
    assert seen == [0.0, 0.0, 1.0]
    assert record.finish.tolist() == [30.0]


def test_deferral_is_waiting():
    class Later(Admission):
        def admit(self, task, view):
            return Defer(100.0) if view.now < 100 else super().admit(task, view)

    record = simulate(ONE, [Job([MODE], [1.0])], admission=Later())
    assert record.ready.tolist() == [0.0]
    assert record.start.tolist() == [100.0]


def test_a_deferred_task_may_be_the_head_of_the_queue():
    """Row 0 comes first but is let in at 10, when row 1 (two GPUs) is blocked by row 2's predecessor of the queue."""

    class FirstLater(Admission):
        def admit(self, task, view):
            return Defer(10.0) if task.index == 0 and view.now < 10 else super().admit(task, view)

    jobs = [Job([MODE], [5.0]), Job([MODE], [100.0]), Job([gpu_mode(GPU, 2)], [1.0], arrival=1.0)]
    assert simulate(TWO, jobs, admission=FirstLater()).start[0] == 10.0


def test_deferring_for_ever_is_refused():
    class Never(Admission):
        def admit(self, task, view):
            return Defer(float("inf"))

    with pytest.raises(PolicyError, match="finite"):
        simulate(ONE, [Job([MODE], [1.0])], admission=Never())


# Errors with an address ---------------------------------------------------------------------------------------------


def test_devices_of_another_cluster_are_refused_by_name():
    other = Cluster([NodeSpec(accelerators=((GPU, 9),))]).devices[9]
    task_on = lambda view: (Start(task, Placement(MODE, (other,))) for task in view.waiting())  # noqa: E731
    assert "n0/g8 is not a device of this cluster" in error_of(task_on)
    assert "not a device" in error_of(lambda view: [Fetch(0, other)] if view.now == 0 else [])
    assert "not a device" in error_of(lambda view: [Set(other, 1.0)] if view.now == 0 else [])


def test_decisions_made_of_the_wrong_things_are_shown():
    assert "its placement is None" in error_of(lambda view: (Start(task, None) for task in view.waiting()))
    assert "not a task or a list" in error_of(lambda view: [Start("t", view.first(MODE))])
    assert "is neither a task nor a device" in error_of(lambda view: [Stop(None)])


def test_schedule_must_give_decisions():
    class Forgetful(Scheduler):
        def schedule(self, view):
            return None

    with pytest.raises(PolicyError, match="yield decisions"):
        simulate(ONE, [Job([MODE], [1.0])], Forgetful())


def test_a_reason_is_a_text():
    class RejectAll(Scheduler):
        def schedule(self, view):
            return [Reject(task, None) for task in view.waiting()]

    assert simulate(ONE, [Job([MODE], [1.0])], RejectAll()).reasons == {0: "None"}


def test_waiting_for_nonsense_is_refused_where_it_is_said():
    assert "a time after now; got t = tomorrow s" in error_of(lambda view: [Wait(until="tomorrow")])


@pytest.mark.parametrize(("answer", "said"), [
    (Accept("x"), "redirects task 0 to modes 'x' in admission, which the task does not have; it has the modes (0, 1)"),
    (Accept((0.5,)), "to modes (0.5,) in admission, which the task does not have"),
    (Accept(0), "to modes 0 in admission, which the task does not have"),
    (Defer("x"), "must defer task 0 to a later, finite time; got t = x s"),
    (Defer(None), "must defer task 0 to a later, finite time; got t = None s"),
])  # fmt: skip
def test_nonsense_of_an_admission_policy_is_said(answer, said):
    class Says(Admission):
        def admit(self, task, view):
            return answer

    with pytest.raises(PolicyError, match=re.escape(said)):
        simulate(ONE, [Job([MODE, gpu_mode(GPU)], [1.0, 1.0])], admission=Says())


def test_numbers_of_numpy_are_numbers():
    """Of an admission policy and in decisions: they give what Python's give, and a list of modes is a tuple."""
    def run(whole, real, positions):
        class Says(Admission):
            def admit(self, task, view):
                return Accept(positions) if view.now or task.index else Defer(real(0.5))

        def script(view):
            return [Fetch(whole(0), view.cluster.by_name["n0/g0"]), Set(view.cluster.by_name["n0/g0"], real(0.5)),
                    Wait(real(1.5))] if view.now < 1 else []  # fmt: skip

        class Skips(Doing):
            def __init__(self):
                ListScheduler.__init__(self, discipline="skip")
                self.extra = script

        jobs = [Job([MODE, gpu_mode(GPU)], [2.0, 1.0], reads=(0,)), Job([MODE, gpu_mode(GPU)], [1.0, 2.0])]
        return simulate(ONE, jobs, Skips(), items=[Item("a", 10)], admission=Says()).finish.tolist()

    plain = run(int, float, (0,))
    assert run(np.int64, np.float32, [np.int64(0)]) == run(np.float64, np.float64, np.array([0])) == plain
    assert "item a to n0/g0, but the item does not exist" in error_of(
        lambda view: [Fetch("a", view.cluster.by_name["n0/g0"])])  # fmt: skip


def test_queries_take_whole_numbers_of_numpy():
    """Such as the index of a minimum; compiled code would refuse them in place of Python's own."""
    seen = {}

    class Asking(Batching):
        def __init__(self, kind):
            self.kind = kind

        def next_batch(self, queue, placement, view):
            whole = self.kind
            seen.setdefault(whole, []).append((
                queue.stages(whole(1), placement), queue.arrival(whole(0)), queue.deadline(whole(0)),
                queue.want(whole(2)), len(queue.look(whole(1))), len(view.waiting(whole(1))),
                view.free("gpu", whole(0)), queue.head.estimate_at(whole(0)), queue.first(whole(1), whole(1)).size,
            ))  # fmt: skip
            return Take(whole(1))

    for kind in (int, np.int64):
        built = hs.load("batch-size-rules").build(0)
        built.batching, built.horizon = [Asking(kind) for _ in built.services], 0.02
        Simulation(built, check=True).run()
    assert seen[int] == seen[np.int64] and len(seen[int]) > 1


def test_a_policy_that_is_abstract_is_refused():
    """Where a run is built; Python refuses it earlier, but a compiled base makes an object of it."""
    class Abstract(ListScheduler, abc.ABC):
        @abc.abstractmethod
        def missing(self):
            """Which a subclass defines."""

    with pytest.raises(PolicyError, match='policy "Abstract" cannot be created: TypeError: .*missing'):
        hs.run("first-steps", policy=Abstract)


def test_an_unknown_discipline_and_a_negative_depth_are_refused():
    """Where the policy is made, or in its first round if a subclass sets it later."""
    with pytest.raises(ValueError, match="discipline must be one of block, skip, keep, keep_backfill; got 'fifo'"):
        ListScheduler(discipline="fifo")
    policy = ListScheduler()
    policy.discipline = "fifo"
    with pytest.raises(PolicyError, match="policy .* discipline must be one of block, skip"):
        simulate(ONE, [Job([MODE], [1.0])], policy)
    for depth in (-1, np.int64(-2), 2.5, "x"):
        with pytest.raises(ValueError, match="depth must be a whole number of at least 0, or None for all tasks; got"):
            Backfilling(None, depth)
    for depth in (3, np.int64(3), np.float32(3)):
        assert Backfilling(None, depth).window.size == 4


def test_holding_needs_a_waiting_task_and_a_cause_and_is_noted_once():
    assert "weather" in error_of(lambda view: (Annotate(task, "weather") for task in view.waiting()))
    held = lambda view: (Annotate(task, "quota") for task in view.waiting() if task.index == 1)  # noqa: E731
    record = simulate(ONE, [Job([MODE], [2.0]), Job([MODE], [1.0]), Job([MODE], [1.0], arrival=1.0)], Doing(held))
    assert record.holds == [(0.0, 1, "quota")]


@pytest.mark.skipif(hs.__build__ == "compiled", reason="a method of a compiled class cannot be replaced")
def test_defects_of_the_engine_are_not_blamed_on_the_policy(monkeypatch):
    run = simulation(ONE, [Job([MODE], [2.0])])

    def broken(*_):
        raise ZeroDivisionError("engine")

    monkeypatch.setattr(run.state.capacity, "quick_take", broken)
    with pytest.raises(ZeroDivisionError):
        run.run()


def test_cores_named_must_be_as_many_as_the_mode_takes():
    from machines import cpu_mode

    cpu = DeviceType("cpu", kind="cpu")
    mode = cpu_mode(cpu, 2)
    named = lambda view: (  # noqa: E731
        Start(task, Placement(mode, (view.cluster.by_name["n0/cpu"],), (0,))) for task in view.waiting()
    )
    node = NodeSpec(cpus=4, cpu_type=cpu)
    assert "needs 2 cores; got 1" in error_of(named, [Job([mode], [1.0])], node)


class Ending(ListScheduler):
    """Says that the run is over, and then fails; it has an `end` of its own, which is no hook."""

    end, said = 7, None

    def run_ended(self, time):
        self.said = time
        raise ZeroDivisionError("at the end")


def test_an_error_at_the_end_keeps_the_record_and_never_hides_another():
    policy = Ending()
    with pytest.raises(PolicyError, match="ZeroDivisionError in run_ended at t = 2 s .*: at the end") as caught:
        simulate(ONE, [Job([MODE], [2.0])], policy)
    assert policy.said == 2.0 and caught.value.record.finish.tolist() == [2.0]
    policy.said, policy.schedule = 1.0, lambda view: [7]
    with pytest.raises(PolicyError, match="yielded 7") as caught:
        simulate(ONE, [Job([MODE], [2.0])], policy)
    assert policy.said is None and caught.value.record.end == 0.0
    assert gc.isenabled()


def test_a_simulation_runs_once_and_not_into_the_past():
    run = simulation(ONE, [Job([MODE], [2.0])])
    run.run()
    with pytest.raises(RunError, match="once"):
        run.run()
    with pytest.raises(UsageError, match="past"):
        run.at(1.0, lambda: None)


def test_waiting_can_be_walked_while_tasks_start():
    class Natural(Scheduler):
        def schedule(self, view):
            for task in view.waiting():
                placement = view.fit(task)
                if placement:
                    yield Start(task, placement)

    assert simulate(TWO, [Job([MODE], [1.0])] * 4, Natural()).finish.tolist() == [1, 1, 2, 2]


def test_a_task_pushed_to_another_queue_leaves_the_first():
    first, second = TaskQueue(), TaskQueue()
    tasks = simulation(ONE, [Job([MODE], [2.0])]).input.tasks
    task = Task(0, 0.0, tasks.shapes[0], (1.0,), (1.0,), tasks)
    first.push(1, task)
    second.push(1, task)
    assert first.head() is None
    assert second.head() is task


def test_copies_of_a_policy_keep_its_fields():
    """Those of its base, which may be compiled, and those of the class in Python."""
    class Noting(ListScheduler):
        def __init__(self):
            super().__init__(discipline="keep", drop_expired=True)
            self.noted = [1]

    policy = Noting()
    for other in (copy.copy(policy), copy.deepcopy(policy)):
        assert (other.noted, other.discipline, other.rejects) == ([1], "keep", True)
    assert copy.copy(policy).noted is policy.noted is not copy.deepcopy(policy).noted


def test_slots_frozen_policies_and_results_are_copied():
    class Slotted(Scheduler):
        __slots__ = ("kept",)

    @dataclass(frozen=True)
    class Frozen(Scheduler):
        most: int

    slotted = Slotted()
    slotted.kept = [2]
    assert copy.deepcopy(slotted).kept == [2]
    assert copy.deepcopy(Frozen(3)).most == 3
    result = hs.run("first-steps")
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert other.tasks.equals(result.tasks)


@pytest.mark.parametrize("discipline", ["block", "skip", "keep"])
@pytest.mark.parametrize("kind", [np.float64, np.int64, lambda value: (np.float32(value), 1)])
def test_keys_of_numpy_order_as_numbers_do(discipline, kind):
    jobs = [Job([MODE], [2.0], arrival=0.5 * (number // 3)) for number in range(12)]
    sizes = [5, 3, 8, 1, 9, 2, 7, 4, 6, 0, 11, 10]

    def starts(key, preemptive=False):
        made = PreemptiveList(key, discipline="block") if preemptive else ListScheduler(key, discipline=discipline)
        return simulate(ONE, jobs, made).start.tolist()

    for preemptive in (False, discipline == "block"):
        assert starts(lambda task: kind(sizes[task.index]), preemptive) == starts(
            lambda task: sizes[task.index], preemptive)  # fmt: skip


@pytest.mark.parametrize("policy", [ListScheduler, Backfilling, PreemptiveList])
def test_parameters_are_those_that_the_source_states(policy):
    """A compiled `__init__` has no signature of its own; a subclass without one has that of its base."""
    class Other(policy):
        pass

    source = Path(hs.__file__).parent / f"{policy.__module__.partition('.')[2].replace('.', '/')}.py"
    inside = next(node for node in ast.parse(source.read_text()).body if getattr(node, "name", "") == policy.__name__)
    stated = next(node for node in inside.body if getattr(node, "name", "") == "__init__").args
    for kind in (policy, Other):
        found = registry.parameters(kind)
        assert [*found] == [one.arg for one in stated.args[1:]]
        assert [str(p.default) for p in found.values() if p.default is not p.empty and not callable(p.default)] == [
            str(ast.literal_eval(one)) for one in stated.defaults if not isinstance(one, ast.Name)
        ]
        assert all(p.annotation is not p.empty for p in found.values())


# Much at one instant ------------------------------------------------------------------------------------------------


def test_rejecting_thousands_at_one_instant_is_no_loop():
    class RejectAll(Scheduler):
        def schedule(self, view):
            for task in view.waiting():
                yield Reject(task, "no room")

    run = simulation(ONE, [Job([MODE], [1.0])] * 12_000, RejectAll())
    run.checker = None
    assert (run.run().status == 2).all()


def test_a_long_chain_fails_with_its_first_task():
    jobs = [Job([MODE], [1.0]), Job([MODE], [1.0], expires=0.5)]
    jobs += [Job([MODE], [1.0], after=(row - 1,)) for row in range(2, 3000)]
    run = simulation(ONE, jobs)
    run.checker = None
    status = run.run().status
    assert status[1] == EXPIRED
    assert (status[2:] == FAILED).all()


# Books --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_asked", [0.0, 15.0])
def test_what_a_user_received_does_not_depend_on_when_one_asks(first_asked):
    """10 s of computing with a stop at 4 and a transfer of 5 s each way: 10 GPU-seconds, whoever asks when."""
    mode = gpu_mode(GPU, upload=StageTime(fixed=5.0), download=StageTime(fixed=5.0))
    seen = []

    def extra(view):
        if view.now >= first_asked:
            seen.append(view.attained(""))
        return []

    script = [(9.0, lambda view: [Stop(running(view, 0))])]

    class Both(Scripted):
        def schedule(self, view):
            yield from extra(view)
            yield from super().schedule(view)

    jobs = [Job([mode], [10.0]), Job([MODE], [1.0], arrival=50.0)]
    simulate(ONE, jobs, Both(script))
    assert seen[-2] == pytest.approx(10.0)


def test_what_is_lost_includes_earlier_launches():
    """5 s kept at a first stop, 3 more until a stop that keeps nothing: all 8 s are lost."""
    script = [(5.0, lambda v: [Stop(running(v, 0))]), (8.0, lambda v: [Stop(running(v, 0), keep=False)])]
    record = simulate(ONE, [Job([MODE], [10.0])], Scripted(script))
    assert record.launches["lost"].sum() == pytest.approx(8.0)
    assert record.finish.tolist() == [18.0]


def test_a_device_put_to_sleep_while_waking_never_woke():
    gpu = DeviceType("g", power=Power(idle=50, busy=100, sleep=1, wake=10.0))
    device = "n0/g0"
    states = [(1.0, "off"), (5.0, "on"), (6.0, "off"), (30.0, "on")]
    script = [(t, lambda view, s=state: [Set(view.cluster.by_name[device], s)]) for t, state in states]
    node = NodeSpec(accelerators=((gpu, 1),))
    record = simulate(node, [Job([gpu_mode(gpu)], [0.5]), Job([gpu_mode(gpu)], [1.0], arrival=20.0)], Scripted(script))
    assert [(row[0], row[2]) for row in record.device_log] == [
        (1.0, "sleep"), (5.0, "wake"), (6.0, "sleep"), (30.0, "wake"), (40.0, "awake"),
    ]  # fmt: skip
    assert record.start[1] == 40.0


def test_an_expected_finish_knows_of_a_lower_frequency():
    seen = []

    def slow_down(view):
        return [Set(view.cluster.by_name["n0/g0"], 0.5)]

    def ask(view):
        seen.extend(view.launch_of(task).finish for task in view.running())
        seen.append(view.free_at(view.cluster.by_name["n0/g0"]))
        return []

    simulate(ONE, [Job([MODE], [10.0])], Scripted([(1.0, slow_down), (2.0, ask)]))
    assert seen == [19.0, 19.0]


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopping", spread([Stopping(), Stopping(save=0.01)], 1))
@pytest.mark.parametrize("policy", spread(["fcfs", "sjf", "srtf"], 1))
def test_a_finished_task_leaves_no_object_behind(policy, stopping):
    """Overload with patience and stops: at no time are many more tasks alive than are in the system."""
    from hetsim import registry

    alive: weakref.WeakSet = weakref.WeakSet()
    rng = np.random.default_rng(1)
    count = some(3000, 1200)
    jobs = [
        Job([MODE], [float(t)], arrival=float(a), expires=float(a) + 20.0, stopping=stopping)
        for a, t in zip(np.cumsum(rng.exponential(0.3, count)), rng.exponential(1.0, count), strict=True)
    ]
    entry = registry.policy("scheduler", policy)
    scheduler = entry() if isinstance(entry, type) else ListScheduler(entry)

    class Tracked(Task):
        __slots__ = ("__weakref__",)

        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            alive.add(self)

    import hetsim.engine.queues.sources as sources

    original, sources.Task = sources.Task, Tracked
    try:
        run = simulation(TWO, jobs, scheduler)
        run.checker = None
        run.parts.starts.quick = frozenset()  # class Task itself takes the fast path; the rest is the same
        most = 0
        while run.advance():
            for decision in scheduler.schedule(run.view):
                run.apply(decision)
            if run.state.rounds % 500 == 0:
                gc.collect()
                most = max(most, len(alive) - len(run.state.waiting) - len(run.state.running))
    finally:
        sources.Task = original
    assert run.state.ended == count
    assert most <= 200


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda view: view.free("gpuu"), 'queries devices of type "gpuu", which the cluster lacks; did you '
                                         'mean "gpu"?'),
        (lambda view: view.num_waiting("cup"), 'queries devices of type "cup"'),
        (lambda view: view.backlog(class_="trian"), 'queries tasks of class "trian", which the workload lacks'),
    ],
)
def test_a_misspelt_name_is_no_zero(ask, said):
    class Asks(ListScheduler):
        def schedule(self, view):
            assert view.free("gpu") == view.free("k20") == 1 and view.free("npu") == view.backlog("npu") == 0
            ask(view)
            yield from super().schedule(view)

    hs.register("asks", Asks, kind="scheduler")
    jobs = {"name": "train", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 2}}
    scenario = {"cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "k20", "count": 1}}]}, "workload": [jobs]}
    with pytest.raises(PolicyError, match=re.escape(said)):
        hs.run(scenario, policy="asks")


def test_a_policy_that_is_rehearsed_is_told_of_everything():
    hooks = {name for name, member in vars(Scheduler).items() if callable(member) and not name.startswith("_")}
    told = vars(WatchedRun).keys() | vars(Relay).keys()
    assert hooks - {"check", "round_cost"} <= told  # these two are asked before any clock starts
