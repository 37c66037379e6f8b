"""Corners where stages, stops, data and faults meet: each once went wrong or easily could."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, running, simulate, simulation

from hetsim.errors import InvariantError, PolicyError
from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType, Link, Sharing
from hetsim.model.plan import Placement
from hetsim.model.record import FAILED
from hetsim.model.tasks import Item
from hetsim.policy import Accept, Admission, Drop, Fetch, ListScheduler, Move, Scheduler, Set, Start, Stop

LINK = Link(upload=10.0, download=10.0)
GPU = DeviceType("g", memory=100, link=LINK)
CPU = DeviceType("cpu", kind="cpu")
MODE = gpu_mode(GPU)


def node(kind: DeviceType = GPU, count: int = 1, cpus: int = 2, **more) -> NodeSpec:
    return NodeSpec(cpus=cpus, cpu_type=CPU, accelerators=((kind, count),), **more)


def on(*names: str, script=()) -> Scripted:
    return Scripted(script, where={row: (name,) for row, name in enumerate(names)})


# Data ---------------------------------------------------------------------------------------------------------


def test_a_final_result_that_was_updated_in_place_is_brought_home():
    """Every tile of a factorization is read and written again by its last kernel: 20 bytes down, 2 s at the end."""
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), writes=(0,), after=(0,))]
    run = simulation(node(), jobs, items=[Item("tile", 20)])
    assert run.run().finish == pytest.approx([1.0, 4.0])
    assert list(run.state.places.where[0]) == [-1]  # on the host of n0, and nowhere else


def test_a_result_that_will_be_written_again_is_not_brought_home():
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], writes=(0,), after=(0,))]
    assert simulate(node(), jobs, items=[Item("x", 20)]).finish == pytest.approx([1.0, 4.0])


def test_a_prefetch_waits_for_the_room_it_makes():
    """An only copy of 80 bytes is in the way: written back 8 s, then 3 s of upload for 30 bytes: there at 12."""
    device = "n0/g0"
    jobs = [
        Job([MODE], [1.0], writes=(0,)),
        Job([MODE], [1.0], reads=(1,), arrival=12.0),
        Job([MODE], [1.0], reads=(0,), arrival=50.0, after=(0,)),
    ]
    script = [(1.0, lambda view: [Fetch(1, view.cluster.by_name[device])])]
    record = simulate(node(), jobs, Scripted(script), items=[Item("result", 80), Item("input", 30)])
    assert record.upload[1] == pytest.approx(0.0)
    early = [replace(jobs[1], arrival=11.0)]
    items = [Item("result", 80), Item("input", 30)]
    record = simulate(node(), [jobs[0], *early, jobs[2]], Scripted(script), items=items)
    assert record.start[1] == pytest.approx(12.0)


def test_everybody_waits_for_bytes_on_their_way_out():
    """Streams 2.  A result of 60 is evicted for a launch of 50 (6 s); a second launch of 50 needs that room too."""
    gpu = DeviceType("g", memory=100, streams=2, link=LINK)
    mode, big = gpu_mode(gpu), gpu_mode(gpu, gpu_memory=50)
    jobs = [
        Job([mode], [1.0], writes=(0,)),
        Job([big], [1.0], arrival=1.0),
        Job([big], [1.0], arrival=1.0),
        Job([mode], [1.0], reads=(0,), arrival=30.0, after=(0,)),
    ]
    record = simulate(node(gpu), jobs, items=[Item("result", 60)])
    assert record.start[1:3] == pytest.approx([7.0, 8.0])


def test_a_write_back_does_not_pass_for_what_was_written_since():
    """Version 1 of x is on its way to the host when the GPU writes version 2: the host's copy is no copy of it."""
    gpu = DeviceType("g", memory=100, streams=2, link=Link(upload=10.0, download=1.0))
    mode, big = gpu_mode(gpu), gpu_mode(gpu, gpu_memory=45)
    jobs = [
        Job([mode], [1.0], writes=(0,)),
        Job([big], [0.5], arrival=1.0),  # evicts x (60 s)
        Job([mode], [1.0], arrival=1.0, writes=(0,), after=(0,)),
        Job([mode], [1.0], arrival=100.0, reads=(0,), after=(2,)),
    ]
    run = simulation(node(gpu), jobs, items=[Item("x", 60)])
    record = run.run()
    assert (record.status == 1).all()
    assert run.state.places.version[0] == 2


def test_a_failed_device_loses_its_copies():
    """The input can be had from the host again; a result that nobody else has is lost, and its reader fails."""
    for written, expected in ((False, 1), (True, FAILED)):
        first = Job([MODE], [1.0], writes=(0,)) if written else Job([MODE], [1.0], reads=(0,))
        jobs = [first, Job([MODE], [1.0], reads=(0,), arrival=5.0, after=(0,) if written else ())]
        run = simulation(node(count=2), jobs, on("n0/g0", "n0/g1"), items=[Item("x", 20)])
        device = run.input.cluster.by_name["n0/g0"]
        run.at(4.0, lambda run=run, device=device: run.parts.devices.set_up(device, False))
        record = run.run()
        assert record.status[1] == expected
        assert written == ("lost" in record.reasons.get(1, ""))


def test_an_upload_from_a_device_that_fails_ends_the_reader():
    """Down 2 s from g0, up 2 s to g1; g0 fails in the middle of the first hop and had the only copy."""
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), after=(0,))]
    run = simulation(node(count=2), jobs, on("n0/g0", "n0/g1"), items=[Item("x", 20)])
    device = run.input.cluster.by_name["n0/g0"]
    run.at(2.0, lambda: run.parts.devices.set_up(device, False))
    assert run.run().status.tolist() == [1, FAILED]


def test_data_cannot_be_fetched_to_a_device_that_sleeps_nor_dropped_without_a_name():
    device = "n0/g0"
    sleep = [(0.0, lambda view: [Set(view.cluster.by_name[device], "off"), Fetch(0, view.cluster.by_name[device])])]
    jobs = [Job([cpu_mode(CPU)], [1.0]), Job([MODE], [1.0], reads=(0,))]
    with pytest.raises(PolicyError, match="asleep"):
        simulate(node(), jobs, Scripted(sleep), items=[Item("x", 20)])
    with pytest.raises(PolicyError, match="does not exist"):
        drop = [(0.0, lambda view: [Drop(99, view.cluster.by_name[device])])]
        simulate(node(), jobs, Scripted(drop), items=[Item("x", 20)])
    awake = [(0.0, lambda view: [Fetch(0, view.cluster.by_name[device]), Set(view.cluster.by_name[device], "off")])]
    with pytest.raises(PolicyError, match="transferred to it"):
        simulate(node(), jobs[:1], Scripted(awake), items=[Item("x", 20)])


def test_a_prefetch_queues_behind_launches_that_came_before():
    """Two uploads of 2 s are queued when a third item is fetched: it comes last, at 6."""
    gpu = DeviceType("g", memory=100, streams=3, link=LINK)
    mode = gpu_mode(gpu)
    jobs = [Job([mode], [1.0], reads=(0,)), Job([mode], [1.0], reads=(1,)), Job([mode], [1.0], reads=(2,), arrival=5.5)]
    script = [(1.0, lambda view: [Fetch(2, view.cluster.by_name["n0/g0"])])]
    record = simulate(node(gpu), jobs, Scripted(script), items=[Item(n, 20) for n in "abc"])
    assert record.finish == pytest.approx([3.0, 5.0, 7.0])


def test_a_prefetch_under_way_takes_room_from_launches():
    """80 of 100 bytes are being fetched (8 s): a launch that needs 50 of its own waits for that, then evicts."""
    big = gpu_mode(GPU, gpu_memory=50)

    class Load(ListScheduler):
        def schedule(self, view):
            if view.now == 0 and not view.waiting():
                view.fits(big)
                yield Fetch(0, view.cluster.by_name["n0/g0"])
            yield from super().schedule(view)

    record = simulate(node(), [Job([big], [1.0], arrival=1.0)], Load(), items=[Item("x", 80)])
    assert record.start.tolist() == [8.0]


def test_the_check_sees_a_launch_that_computes_without_its_data(monkeypatch):
    """The invariants are worth something: an engine that forgets uploads is caught."""
    run = simulation(node(), [Job([MODE], [1.0], reads=(0,)), Job([cpu_mode(CPU)], [0.5])], items=[Item("x", 20)])
    monkeypatch.setattr(run.parts.launches.transfers, "missing", lambda *_, **named: [])
    with pytest.raises(InvariantError, match="without x"):
        run.run()


def test_the_check_sees_a_consumer_without_what_another_device_made(monkeypatch):
    """The same for a result: made on g0, needed on g1, and nobody brings it."""
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [2.0], reads=(0,), after=(0,)), Job([cpu_mode(CPU)], [2.0])]
    run = simulation(node(count=2), jobs, on("n0/g0", "n0/g1", "n0/cpu"), items=[Item("result", 20)])
    monkeypatch.setattr(run.parts.launches.transfers, "missing", lambda *_, **named: [])
    with pytest.raises(InvariantError, match="without result"):
        run.run()


# Stops ----------------------------------------------------------------------------------------------------------


def test_a_batch_does_not_pay_its_fixed_part_twice():
    """A batch of two: 13 + 2 × 1 s, stopped half way at 7.5, resumed at once: ends at 15 all the same."""
    mode = gpu_mode(GPU, fixed=13.0, batch_limit=2)

    class Both(Scheduler):
        stopped = False

        def schedule(self, view):
            from hetsim.policy import Wait

            if view.now >= 7.5 and not self.stopped:
                self.stopped = True
                yield Stop(next(iter(view.running())))
            tasks = list(view.waiting())
            if len(tasks) == 2:
                yield Start(tasks, view.first(mode))
            if not self.stopped:
                yield Wait(until=7.5)

    record = simulate(node(), [Job([mode], [1.0])] * 2, Both())
    assert record.finish == pytest.approx([15.0, 15.0])
    assert record.compute == pytest.approx([15.0, 15.0])


def test_saving_one_task_does_not_block_other_cores():
    """Of four cores one saves for 10 s: three newcomers start at once on the others."""
    mode = cpu_mode(CPU)

    def swap(view):
        yield Stop(running(view, 0))
        for task in [task for task in view.waiting() if task.index]:
            yield Start(task, view.first(mode))

    jobs = [Job([mode], [50.0], stopping=Stopping(save=10.0)), *[Job([mode], [1.0], arrival=2.0)] * 4]
    scheduler = Scripted([(2.0, swap)], where={})
    record = simulate(NodeSpec(cpus=4, cpu_type=CPU), jobs, scheduler)
    assert sorted(record.start[1:])[:3] == pytest.approx([2.0] * 3)
    assert record.start[0] == 0.0


def test_input_is_not_smuggled_in_by_starting_on_a_cpu():
    """10 bytes of input: a task that ran 1 s on the CPU still uploads it (1 s) when it moves to the GPU."""
    modes = [cpu_mode(CPU), MODE]

    def to_gpu(view):
        return [Move(running(view, 0), Placement(MODE, (view.cluster.by_name["n0/g0"],)))]

    job = Job(modes, [10.0, 4.0], bytes_in=10)
    record = simulate(node(), [job], Scripted([(1.0, to_gpu)], where={0: ("n0/cpu",)}))
    assert record.finish == pytest.approx([1.0 + 1.0 + 3.6])


def test_a_finished_result_does_not_jump_to_another_device():
    """Compute done at 1, download of 40 bytes stopped at 2; resumed on another GPU: 4 s down from the first, which
    has them, 4 s up and 4 s down."""

    def away(view):
        return [Move(running(view, 0), Placement(MODE, (view.cluster.by_name["n0/g1"],)))]

    job = Job([MODE], [1.0], bytes_out=40)
    record = simulate(node(count=2), [job], Scripted([(2.0, away)], where={0: ("n0/g0",)}))
    assert record.finish == pytest.approx([14.0])


def test_what_was_saved_is_not_saved_again():
    """Work 3, input 2 s.  Computes from 2, stopped at 3, saved at 4, uploads from 4, stopped at 5: nothing new to
    save, so it uploads again at once, to 7, and computes the 2 s left: 9."""
    job = Job([MODE], [3.0], bytes_in=20, stopping=Stopping(save=1.0))
    stop = lambda view: [Stop(running(view, 0))]  # noqa: E731
    record = simulate(node(), [job], Scripted([(3.0, stop), (5.0, stop)]))
    assert record.finish == pytest.approx([9.0])


def test_a_move_respects_what_admission_allowed():
    class CpuOnly(Admission):
        def admit(self, task, view):
            return Accept(modes=(0,))

    def to_gpu(view):
        return [Move(running(view, 0), Placement(MODE, (view.cluster.by_name["n0/g0"],)))]

    with pytest.raises(PolicyError, match="may not use"):
        simulate(node(), [Job([cpu_mode(CPU), MODE], [10.0, 4.0])], Scripted([(1.0, to_gpu)]), admission=CpuOnly())


# Devices --------------------------------------------------------------------------------------------------------


def test_an_accelerator_of_a_failed_host_cannot_be_used():
    class Stubborn(ListScheduler):
        def schedule(self, view):
            for task in list(view.waiting()):
                yield Start(task, Placement(MODE, (view.cluster.by_name["n0/g0"],)))

    run = simulation(node(), [Job([MODE], [1.0], arrival=2.0)], Stubborn())
    run.at(1.0, lambda: run.parts.devices.set_up(run.input.cluster.by_name["n0/cpu"], False))
    with pytest.raises(PolicyError, match="down"):
        run.run()


def test_a_failed_host_takes_launches_on_its_accelerators_along():
    run = simulation(node(), [Job([MODE], [4.0])])
    host = run.input.cluster.by_name["n0/cpu"]
    run.at(1.0, lambda: run.parts.devices.set_up(host, False))
    run.at(3.0, lambda: run.parts.devices.set_up(host, True))
    assert run.run().finish == pytest.approx([7.0])


def test_a_slowdown_makes_a_round():
    asked = []

    class Watch(ListScheduler):
        def schedule(self, view):
            asked.append(view.now)
            for task in list(view.waiting()):
                yield Start(task, view.fit(task))

    run = simulation(node(), [Job([MODE], [4.0])], Watch())
    run.at(1.0, lambda: run.parts.devices.set_slowdown(run.input.cluster.by_name["n0/g0"], 2.0))
    run.run()
    assert 1.0 in asked


def test_the_fastest_mode_counts_the_fixed_part():
    slow = gpu_mode(DeviceType("a"), fixed=13.0)
    fast = gpu_mode(DeviceType("b"))
    spec = NodeSpec(accelerators=((slow.type, 1), (fast.type, 1)))
    assert simulate(spec, [Job([slow, fast], [1.0, 2.0])]).finish == pytest.approx([2.0])


def test_there_is_a_round_before_the_first_arrival():
    """A policy can load data before anybody comes."""

    class Preload(ListScheduler):
        def schedule(self, view):
            if view.now == 0:
                yield Fetch(0, view.cluster.by_name["n0/g0"])
            yield from super().schedule(view)

    record = simulate(node(), [Job([MODE], [1.0], arrival=5.0, reads=(0,))], Preload(), items=[Item("x", 20)])
    assert record.finish == pytest.approx([6.0])


# Estimates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_the_expected_finish_of_what_runs_counts_all_stages(streams):
    """With exact estimates and a link of its own, what the view expects of a pipeline is what comes."""
    gpu = DeviceType("g", streams=streams, link=LINK)
    rng = np.random.default_rng(streams)
    expected: dict[int, list[float]] = {}

    class Ask(ListScheduler):
        def schedule(self, view):
            yield from super().schedule(view)
            for task in view.running():
                expected.setdefault(task.index, []).append(view.launch_of(task).finish)

    mode = gpu_mode(gpu, upload=StageTime(fixed=0.3))
    sizes = rng.integers(0, 30, (40, 2)).tolist()
    jobs = [
        Job([mode], [float(time)], arrival=float(t), bytes_in=up, bytes_out=down)
        for t, time, (up, down) in zip(np.cumsum(rng.random(40) * 2), rng.random(40) * 2, sizes, strict=True)
    ]
    record = simulate(node(gpu), jobs, Ask())
    for row, times in expected.items():
        assert times == pytest.approx([record.finish[row]] * len(times)), row


def test_duration_is_what_a_lone_launch_takes():
    """Upload, write-back of what is in the way, compute at the device's frequency, download of final items."""
    seen = {}

    class Ask(Scripted):
        def schedule(self, view):
            for task in list(view.waiting()):
                if task.index == 1:
                    seen["duration"] = view.duration(task, Placement(task.modes[0], (view.cluster.by_name["n0/g0"],)))
            yield from super().schedule(view)

    big = gpu_mode(GPU, gpu_memory=30, upload=StageTime(fixed=0.5))
    jobs = [
        Job([MODE], [1.0], writes=(0,)),
        Job([big], [3.0], arrival=5.0, reads=(1,), writes=(2,), bytes_in=10, bytes_out=5),
        Job([MODE], [1.0], arrival=50.0, reads=(0,), after=(0,)),
    ]
    items = [Item("in the way", 60), Item("input", 20), Item("final", 10)]
    script = [(4.0, lambda view: [Set(view.cluster.by_name["n0/g0"], 0.5)])]
    record = simulate(node(), jobs, Ask(script), items=items)
    assert record.finish[1] - 5.0 == pytest.approx(6.0 + 0.5 + 3.0 + 6.0 + 1.5)
    assert seen["duration"] == pytest.approx(record.finish[1] - 5.0)


def test_the_duration_of_a_running_task_counts_its_progress():
    seen = {}

    def ask(view):
        task = running(view, 0)
        seen["duration"] = view.duration(task, Placement(MODE, (view.cluster.by_name["n0/g1"],)))
        return []

    simulate(node(count=2), [Job([MODE], [10.0])], Scripted([(8.0, ask)], where={0: ("n0/g0",)}))
    assert seen["duration"] == pytest.approx(2.0)


def test_rates_across_nodes_count_in_estimates():
    gang = gpu_mode(GPU, 2, span_any=True, span_speed=0.5)
    seen = {}

    class Ask(ListScheduler):
        def schedule(self, view):
            for task in list(view.waiting()):
                seen["duration"] = view.duration(task, view.fit(task))
            yield from super().schedule(view)

    record = simulate([node(), node()], [Job([gang], [3.0])], Ask())
    assert seen["duration"] == pytest.approx(record.finish[0]) == pytest.approx(6.0)


def test_sharing_kinds_do_not_disturb_the_books():
    """A storm of stops on a time-sliced GPU, with the invariants on."""
    gpu = DeviceType("g", streams=4, sharing=Sharing("timeslice", switch_cost=0.1))
    mode = gpu_mode(gpu)
    script = [(0.1 * i, lambda view: [Stop(view.running("start")[0])] if view.running() else []) for i in range(1, 40)]
    record = simulate(node(gpu), [Job([mode], [0.7], arrival=0.05 * i) for i in range(20)], Scripted(script))
    assert (record.status == 1).all()
