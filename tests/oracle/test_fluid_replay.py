"""The engine against a replay that shares no line with it: random systems, random decisions, the same finishes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from hetsim.engine.simulation import Simulation
from oracle.chaos import Chaos, drawn
from oracle.fluid_replay import FluidReplay, Gpu, Wire, Work, shared_out


def finishes(seed: int) -> tuple[list[float], list[float], int]:
    """Of the engine and of the replay, and the number of decisions."""
    system = drawn(seed)
    policy = Chaos(seed, system)
    record = Simulation(system.run_input(policy), check=True).run()
    replay = system.replay()
    events = [(one.time, 0, number, ("fault", one)) for number, one in enumerate(system.faults)]
    events += [(time, 1, number, what) for number, (time, *what) in enumerate(policy.log)]
    for time, _, _, (verb, *given) in sorted(events, key=lambda event: event[:3]):
        if time > record.end:
            break
        replay.to(time)
        if verb == "start":
            replay.start(*given)
        elif verb == "stop":
            replay.stop(*given)
        elif verb == "set":
            replay.gpus[given[0]].frequency = given[1]
        elif given[0].what == "down":
            replay.fail(given[0].device)
        elif given[0].what == "slow":
            replay.gpus[given[0].device].slowdown = given[0].factor
    replay.to(math.inf)
    by_replay = [math.nan if work.finish is None else work.finish for work in replay.tasks]
    return record.finish.tolist(), by_replay, len(policy.log)


@pytest.mark.quick(0)
def test_finishes_are_those_of_the_replay_where_everything_is_drawn():
    decisions = 0
    for seed in range(60):
        by_engine, by_replay, made = finishes(seed)
        assert by_engine == pytest.approx(by_replay, rel=1e-12, abs=1e-12, nan_ok=True), f"seed {seed}"
        decisions += made
    assert decisions > 2000


@pytest.mark.slow
def test_finishes_are_those_of_the_replay_in_several_hundred_systems():
    for seed in range(60, 460):
        by_engine, by_replay, _ = finishes(seed)
        assert by_engine == pytest.approx(by_replay, rel=1e-12, abs=1e-12, nan_ok=True), f"seed {seed}"


# The replay itself, by hand -------------------------------------------------------------------------------------------


def test_two_uploads_share_a_half_duplex_switch():
    """4 GB and 2 GB over one switch of 2 GB/s: 1 GB/s each until 2 s, then 2 GB/s for the other 2 GB: 3 s."""
    switch = (("n0", 0), Wire(2e9, 2e9, half_duplex=True))
    gpus = {one: Gpu(one, Wire(4e9, 4e9), switch=switch) for one in (0, 1)}
    replay = FluidReplay(gpus, [Work([1.0], bytes_in=4e9), Work([1.0], bytes_in=2e9)])
    replay.start(0, [0], 0, 1.0)
    replay.start(1, [1], 0, 1.0)
    replay.to(math.inf)
    assert [work.finish for work in replay.tasks] == pytest.approx([4.0, 3.0])


def test_a_gang_runs_at_its_slowest_gpu_and_a_failure_takes_it_back_to_its_last_stop():
    """2 s of 4 s at half speed are 1 s of work, kept; after the failure 3 of 4 s are left again."""
    replay = FluidReplay({0: Gpu(0), 1: Gpu(1, frequency=0.5)}, [Work([4.0])])
    replay.start(0, [0, 1], 0, 1.0)
    replay.to(2.0)
    replay.stop(0, keep=True)
    replay.start(0, [0], 0, 1.0)
    replay.to(3.0)
    replay.fail(0)
    replay.start(0, [0], 0, 1.0)
    replay.to(math.inf)
    assert replay.tasks[0].finish == pytest.approx(6.0)


def test_time_slices_and_interference_slow_down_what_runs_side_by_side():
    """Two whole launches on time slices: half of 0.9 each.  Two halves under MPS: 1 / (1 + 0.2 * 0.5)."""
    sliced = FluidReplay({0: Gpu(0, sharing="timeslice", switch_cost=0.1)}, [Work([0.9]), Work([0.9])])
    shared = FluidReplay({0: Gpu(0, sharing="mps", interference=0.2)}, [Work([1.0]), Work([1.0])])
    for replay, share in ((sliced, 1.0), (shared, 0.5)):
        for row in (0, 1):
            replay.start(row, [0], 0, share)
        replay.to(math.inf)
    assert [work.finish for work in sliced.tasks] == pytest.approx([2.0, 2.0])
    assert [work.finish for work in shared.tasks] == pytest.approx([1.1, 1.1])


def test_output_and_state_travel_by_way_of_hosts():
    """6 GB in the memory of GPU 0, over links of 2 GB/s and a network of 1 GB/s: 3 s down, and 3 s up again to GPU 1,
    with 6 s over the network in between to GPU 2; output then goes down, 3 s.  A state is restored in 2 s where it is;
    2 s of work remain."""
    finishes_of_output, finishes_of_state = (3.0, 9.0, 15.0), (4.0, 8.0, 14.0)
    for done, gpu, finish in ((done, gpu, finish) for done, row in ((1.0, finishes_of_output), (0.5, finishes_of_state))
                              for gpu, finish in enumerate(row)):  # fmt: skip
        gpus = {one: Gpu(one, Wire(2e9, 2e9), node=one // 2, network=Wire(1e9, 1e9), saves_at=3e9) for one in range(3)}
        sizes = {"bytes_out": 6e9} if done == 1.0 else {"state": 6e9}
        work = Work([4.0], **sizes, done=done, saved=done, last_on=[0], lost=False)
        replay = FluidReplay(gpus, [work])
        replay.start(0, [gpu], 0, 1.0)
        replay.to(math.inf)
        assert work.finish == pytest.approx(finish)


def test_what_is_over_goes_to_the_same_node_first():
    """Two GPUs of unlike nodes become three: each keeps a third and gives a sixth, both to the one that lacks a third.
    Of four that become two of the other node, first come the two that are there."""
    gpus = [Gpu(one, node=node) for one, node in enumerate((0, 1, 1, 1, 0))]
    assert shared_out(gpus[:2], gpus[:3]) == {0: [], 1: [], 2: [(gpus[1], Fraction(1, 6)), (gpus[0], Fraction(1, 6))]}
    parts = shared_out([gpus[0], gpus[1], gpus[2], gpus[4]], [gpus[3], gpus[2]])
    assert parts == {3: [(gpus[1], Fraction(1, 4)), (gpus[0], Fraction(1, 4))], 2: [(gpus[4], Fraction(1, 4))]}
