"""Time and order: same-instant key, arrivals, ends of runs, determinism, graphs, patience, closed loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiers
from machines import Job, Scripted, gpu_mode, simulate, simulation, tasks_of

from hetsim.engine.kernel.clock import ARRIVAL, FAULT, FINISH, TIMER, Clock, Timer
from hetsim.engine.kernel.environment import environment_of
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.record import EXPIRED, FAILED, REJECTED, UNFINISHED, ClosedStream
from hetsim.policy import Accept, Admission, Defer, ListScheduler, Reject, Scheduler, Start, Stop, Wait
from hetsim.scenario.schema.policy import PolicySpec
from hetsim.testing.systems import GB, System, node, workload

GPU = DeviceType("g")
MODE = gpu_mode(GPU)
ONE = NodeSpec(accelerators=((GPU, 1),))


def test_same_instant_order_is_finish_fault_arrival_timer_round():
    clock = Clock()
    fired = []
    for order, name in ((TIMER, "timer"), (ARRIVAL, "arrival"), (FINISH, "finish"), (FAULT, "fault")):
        clock.at(1.0, order, Timer(lambda _, name=name: fired.append(name)))
    environment_of(clock).timeout(1.0).callbacks.append(lambda _: fired.append("simpy"))
    clock.advance()
    assert fired == ["finish", "fault", "arrival", "timer", "simpy"]


def test_a_round_sees_all_changes_of_its_instant():
    """A finish and an arrival at t = 2: the one round at 2 sees the freed GPU and both waiting tasks."""
    seen = []

    class Watch(ListScheduler):
        def schedule(self, view):
            seen.append((view.now, len(list(view.waiting())), view.free("g")))
            yield from super().schedule(view)

    simulate(ONE, [Job([MODE], [2.0]), Job([MODE], [1.0], arrival=1.0), Job([MODE], [1.0], arrival=2.0)], Watch())
    assert (2.0, 2, 1.0) in seen
    assert sum(1 for time, _, _ in seen if time == 2.0) == 1


def test_canceled_timers_do_not_fire_and_are_compacted():
    clock = Clock()
    fired = []
    timers = [Timer(lambda _: fired.append(1)) for _ in range(5000)]
    for number, timer in enumerate(timers):
        clock.at(float(number), TIMER, timer)
    for timer in timers[:4000]:
        clock.cancel(timer)
    assert len(clock._heap) < 2500
    clock.advance()
    assert len(fired) == 1000


def test_simpy_processes_run_beside_the_engine():
    """A generator process, as user code would write it, slows the device at t = 1."""
    run = simulation(ONE, [Job([MODE], [3.0])])

    environment = environment_of(run.state.clock)

    def straggler():
        yield environment.timeout(1.0)
        run.parts.devices.set_slowdown(run.input.cluster.by_name["n0/g0"], 2.0)

    environment.process(straggler())
    assert run.run().finish == pytest.approx([5.0])


def test_a_drained_run_ends_at_its_last_task():
    """A pending fault or timer neither prolongs the run nor stretches it."""
    run = simulation(ONE, [Job([MODE], [3.0])])
    run.at(100.0, lambda: None)
    assert run.run().end == 3.0


def test_at_the_horizon_what_is_in_flight_is_unfinished():
    record = simulate(ONE, [Job([MODE], [3.0]), Job([MODE], [3.0]), Job([MODE], [3.0], arrival=5.0)], horizon=5.0)
    assert record.status.tolist() == [1, UNFINISHED, -1]
    assert record.end == 5.0
    assert record.start[1] == 3.0


def test_predecessors_make_ready():
    jobs = [Job([MODE], [2.0]), Job([MODE], [1.0]), Job([MODE], [1.0], after=(0, 1))]
    record = simulate(NodeSpec(accelerators=((GPU, 2),)), jobs)
    assert record.ready.tolist() == [0.0, 0.0, 2.0]
    assert record.finish.tolist() == [2.0, 1.0, 3.0]


def test_patience_ends_and_successors_fail():
    """Row 1 waits behind row 0 until its patience ends at 1; its successor fails with it."""
    jobs = [Job([MODE], [3.0]), Job([MODE], [1.0], expires=1.0), Job([MODE], [1.0], after=(1,))]
    record = simulate(ONE, jobs)
    assert record.status.tolist() == [1, EXPIRED, FAILED]
    assert record.finish.tolist() == [3.0, 1.0, 1.0]
    assert "expired" in record.reasons[2]


def test_admission_is_asked_in_arrival_order_and_rejections_have_reasons():
    class AtMostOne(Admission):
        def admit(self, task, view):
            return Reject(reason="full") if view.num_waiting() else Accept()

    jobs = [Job([MODE], [2.0]), Job([MODE], [2.0], arrival=0.5), Job([MODE], [2.0], arrival=0.6)]
    record = simulate(ONE, jobs, admission=AtMostOne())
    assert record.status.tolist() == [1, 1, REJECTED]
    assert record.reasons == {2: "full"}


def test_a_deferred_task_is_asked_again():
    class Later(Admission):
        def admit(self, task, view):
            return Defer(4.0) if view.now < 4 else Accept()

    record = simulate(ONE, [Job([MODE], [1.0])], admission=Later())
    assert record.start.tolist() == [4.0]


def test_redirection_restricts_the_modes():
    cpu = DeviceType("cpu", kind="cpu")
    from machines import cpu_mode

    class ToCpu(Admission):
        def admit(self, task, view):
            return Accept(modes=(1,))

    spec = NodeSpec(cpus=1, cpu_type=cpu, accelerators=((GPU, 1),))
    record = simulate(spec, [Job([MODE, cpu_mode(cpu)], [1.0, 5.0])], admission=ToCpu())
    assert record.finish.tolist() == [5.0]


def test_a_closed_loop_sends_when_its_clients_have_thought():
    """One client, think time 1, service 2: arrivals at 0, 3, 6, ..."""
    tasks = tasks_of([Job([MODE], [2.0], arrival=0.0), *[Job([MODE], [2.0], arrival=math.inf)] * 9])
    stream = ClosedStream("loop", np.arange(10), [(0.0, 1)], lambda rng, n: np.ones(n))
    record = simulate(ONE, tasks, closed=[stream], horizon=10.0)
    assert record.input.tasks.arrival[:4].tolist() == [0.0, 3.0, 6.0, 9.0]
    assert record.status.tolist() == [1, 1, 1, 0] + [-1] * 6


def test_the_same_run_twice_is_the_same_to_the_last_bit():
    rng = np.random.default_rng(5)
    arrivals, times = np.cumsum(rng.random(200)).tolist(), (rng.random(200) * 3).tolist()
    jobs = [Job([MODE], [t], arrival=a) for a, t in zip(arrivals, times, strict=True)]
    first, second = (simulate(NodeSpec(accelerators=((GPU, 2),)), jobs) for _ in range(2))
    assert np.array_equal(first.finish, second.finish)
    assert np.array_equal(first.place, second.place)


# Policies that break the rules ------------------------------------------------------------------------------


def run_bad(policy: Scheduler, jobs: list[Job] | None = None) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        simulate(ONE, jobs or [Job([MODE], [2.0]), Job([MODE], [1.0], arrival=1.0)], policy)
    assert caught.value.time is not None
    assert caught.value.record is not None
    return caught.value


def test_a_policy_that_raises_is_named_with_time_and_line():
    class Broken(Scheduler):
        def schedule(self, view):
            raise KeyError("oops")

    message = str(run_bad(Broken()))
    assert "KeyError" in message and "test_engine_order.py" in message and "t = 0 s" in message


def test_oversubscription_is_refused():
    class Greedy(Scheduler):
        def schedule(self, view):
            for task in list(view.waiting()):
                yield Start(task, view.first(MODE) or self.last)
                self.last = task._launch.placement

    message = str(run_bad(Greedy()))
    assert "task 1" in message and "n0/g0" in message and "t = 1 s" in message and "0 free" in message


def test_starting_a_running_task_is_refused():
    class Twice(Scheduler):
        def ready(self, task):
            self.task = task

        def schedule(self, view):
            placement = view.first(MODE)
            yield Start(self.task, placement)
            yield Start(self.task, placement)

    assert "is running already" in str(run_bad(Twice()))


def test_a_deadlock_says_who_waits_and_why():
    class Idle(Scheduler):
        pass

    message = str(run_bad(Idle()))
    assert "starts nothing" in message and "task 0" in message and "would fit" in message


def test_waiting_for_timers_for_ever_is_a_deadlock():
    class Sleepy(Scheduler):
        def schedule(self, view):
            yield Wait(until=view.now + 1.0)

    assert "starts nothing" in str(run_bad(Sleepy()))


def test_going_in_circles_at_one_instant_is_a_loop(monkeypatch):
    if not tiers.whole:
        for module in ("core.rounds", "control.decisions"):
            monkeypatch.setattr(f"hetsim.engine.{module}.LOOP_LIMIT", 1_000)

    class Circles(Scheduler):
        def schedule(self, view):
            while True:
                for task in list(view.waiting()):
                    placement = view.first(MODE)
                    if placement:
                        yield Start(task, placement)
                for task in view.running():
                    yield Stop(task)

    assert "loops" in str(run_bad(Circles()))


def test_asking_for_ever_without_deciding_is_a_loop():
    """This policy never comes back from its first round, before anything has arrived."""

    class Spins(Scheduler):
        def schedule(self, view):
            while True:
                for task in view.waiting():
                    yield Start(task, view.first(MODE))

    assert "loops" in str(run_bad(Spins()))


def test_what_is_no_decision_is_refused():
    class Chatty(Scheduler):
        def schedule(self, view):
            yield "start please"

    assert "not a decision" in str(run_bad(Chatty()))


def test_the_record_up_to_an_error_is_kept():
    class LateError(ListScheduler):
        def schedule(self, view):
            if view.now >= 1.0:
                raise RuntimeError("later")
            yield from super().schedule(view)

    error = run_bad(LateError())
    assert error.record.start[0] == 0.0
    assert error.record.status.tolist() == [UNFINISHED, UNFINISHED]


def test_scripts_do_what_they_say():
    """The tests' own scripted scheduler wakes up for its script."""
    seen = []
    simulate(ONE, [Job([MODE], [5.0])], Scripted([(2.5, lambda view: seen.append(view.now) or [])]))
    assert seen == [2.5]


def test_a_download_of_the_launch_that_started_first_comes_first_though_another_overtook_it():
    """The second launch has nothing to upload and computes first, and the first nothing to compute: both ask for the
    download engine at 5 s.  Without checks: they would look at the first before the second starts."""
    gpu = DeviceType("g", streams=2, link=Link(upload=GB, download=GB))
    shape = Shape([gpu_mode(gpu)])
    tasks = workload([(0, 0, 0), (1, 0, 4)], [shape], bytes_in=np.array([2 * GB, 0]), bytes_out=np.array([GB, 2 * GB]))
    system = System("overtaken", Cluster([node(accelerators=((gpu, 1),))]), tasks)
    record = Simulation(system.run_input(PolicySpec("scheduler", "fcfs").make())).run()
    assert record.finish.tolist() == [6, 8]
