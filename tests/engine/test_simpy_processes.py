"""A user's SimPy code beside the engine goes on as in an environment of its own, and the tasks as without it."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from machines import Job, gpu_mode, simulation

from hetsim.engine.fork import fork
from hetsim.engine.kernel.clock import TIMER, Clock, Timer
from hetsim.engine.kernel.environment import environment_of
from hetsim.errors import UsageError
from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType

GPU = DeviceType("g")
TASKS, PROCESSES, STEPS = 1_000, 8, 40


def program(seed: int) -> list[list[tuple[str, float, int]]]:
    """What each process does, step by step: a verb, how long, and with which other process."""
    random = np.random.default_rng(seed)
    verbs = ["wait", "wait", "use", "jump queue", "interrupt", "signal", "listen", "both", "either"]
    return [
        [(str(random.choice(verbs)), float(random.integers(0, 4)) / 2, int(random.integers(PROCESSES)))
         for _ in range(STEPS)] for _ in range(PROCESSES)
    ]  # fmt: skip


def start(environment: simpy.Environment, steps: list[list[tuple[str, float, int]]]) -> list[tuple[float, int, str]]:
    """Start the processes; the log of who did what when."""
    log: list[tuple[float, int, str]] = []
    desk, ranked = simpy.Resource(environment, 2), simpy.PriorityResource(environment, 1)
    signals = [environment.event() for _ in steps]
    processes: list[simpy.Process] = []

    def one(verb, seconds, other):
        if verb == "use":
            with desk.request() as turn:
                yield turn
                yield environment.timeout(seconds)
        elif verb == "jump queue":
            with ranked.request(priority=other) as turn:
                yield turn | environment.timeout(1.5)
        elif verb == "interrupt":
            if processes[other].is_alive and processes[other] is not environment.active_process:
                processes[other].interrupt(verb)
            yield environment.timeout(seconds)
        elif verb == "signal":
            signals[other].succeed(seconds)
            signals[other] = environment.event()
        elif verb == "listen":
            yield signals[other] | environment.timeout(2.0)
        elif verb == "both":
            yield environment.all_of([environment.timeout(seconds), environment.timeout(0.5)])
        elif verb == "either":
            yield environment.any_of([environment.timeout(seconds), environment.timeout(0.5)])
        else:
            yield environment.timeout(seconds)

    def process(number):
        for verb, seconds, other in steps[number]:
            try:
                yield from one(verb, seconds, other)
                log.append((environment.now, number, verb))
            except simpy.Interrupt as interrupt:
                log.append((environment.now, number, f"interrupted in {verb}: {interrupt.cause}"))

    processes += [environment.process(process(number)) for number in range(len(steps))]
    return log


def tasks(seed: int) -> list[Job]:
    """Tasks that come, and end, at times at which the processes do something too."""
    random = np.random.default_rng(seed)
    mode = gpu_mode(GPU)
    arrivals = np.sort(random.integers(0, 200, TASKS)) / 2
    return [Job([mode], [float(random.integers(1, 9)) / 2], float(arrival)) for arrival in arrivals]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_processes_next_to_a_thousand_tasks_do_the_same_as_in_plain_simpy(seed):
    plain = simpy.Environment()
    expected = start(plain, program(seed))
    plain.run()
    alone = simulation(NodeSpec(accelerators=((GPU, 32),)), tasks(seed)).run()
    run = simulation(NodeSpec(accelerators=((GPU, 32),)), tasks(seed))
    log = start(environment_of(run.state.clock), program(seed))
    beside = run.run()
    assert len(expected) > PROCESSES * STEPS / 2
    assert log == [line for line in expected if line[0] <= beside.end]
    assert log == expected
    assert beside.finish.tobytes() == alone.finish.tobytes()
    assert beside.start.tobytes() == alone.start.tobytes()


def test_there_is_one_environment_for_a_clock_and_the_simulation_steps_it():
    clock = Clock()
    environment = environment_of(clock)
    assert environment_of(clock) is environment
    assert environment.peek() == float("inf")
    clock.at(2.0, TIMER, Timer(lambda _: None))
    assert environment.peek() == 2.0
    with pytest.raises(UsageError, match="run the simulation"):
        environment.run()


def test_what_a_process_does_not_catch_ends_the_run():
    run = simulation(NodeSpec(accelerators=((GPU, 1),)), [Job([gpu_mode(GPU)], [3.0])])
    environment = environment_of(run.state.clock)

    def breaks():
        yield environment.timeout(1.0)
        raise ValueError("of the user's own")

    environment.process(breaks())
    with pytest.raises(ValueError, match="of the user's own"):
        run.run()


def test_a_run_with_a_process_cannot_be_forked():
    run = simulation(NodeSpec(accelerators=((GPU, 1),)), [Job([gpu_mode(GPU)], [3.0])])
    environment = environment_of(run.state.clock)
    environment.process(iter_forever(environment))
    with pytest.raises(UsageError, match="SimPy"):
        fork(run, run.state)


def iter_forever(environment):
    while True:
        yield environment.timeout(1.0)
