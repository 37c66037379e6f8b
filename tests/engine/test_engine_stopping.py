"""Stop, resume, move: what is kept, what is lost, what it costs."""

from __future__ import annotations

import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, running, simulate, stage_times

from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType, Link, Power, Preemption, Sharing
from hetsim.model.plan import Placement
from hetsim.policy import Move, Start, Stop


def node(kind: DeviceType, count: int = 1, **more) -> NodeSpec:
    return NodeSpec(cpus=4, accelerators=((kind, count),), **more)


def stop(row: int, **how):
    return lambda view: [Stop(running(view, row), **how)]


def test_a_stopped_task_resumes_with_the_remaining_work():
    """Work 5 stopped at 2 (and started again at once by the scheduler, behind nobody): ends at 5 all the same."""
    gpu = DeviceType("g")
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [5.0])], Scripted([(2.0, stop(0))]))
    assert record.finish == pytest.approx([5.0])
    assert record.preemptions[0] == 1
    assert record.compute == pytest.approx([5.0])


def test_a_gang_that_resumed_has_a_row_for_each_launch_even_where_the_run_is_cut_off():
    """2 GPUs of 10 W idle, 110 W busy, work 5, stopped at 2: 400 J above idle; then 3 s, 600 J, or the 2 s to the
    horizon, 400 J."""
    gpu = DeviceType("g", power=Power(idle=10.0, busy=110.0))
    for horizon, rows in ((None, [(0, 2, 400), (2, 5, 600)]), (4.0, [(0, 2, 400), (2, 4, 400)])):
        more = {} if horizon is None else {"horizon": horizon}
        jobs = [Job([gpu_mode(gpu, 2)], [5.0])]
        record = simulate(node(gpu, 2), jobs, Scripted([(2.0, stop(0))]), **more)
        launches = record.launches
        found = zip(launches["compute_start"], launches["end"], launches["energy"], strict=True)
        assert [pytest.approx(row) for row in rows] == list(found)
        assert list(launches["busy"]) == pytest.approx([2 * (end - start) for start, end, _ in rows])
        assert bool(record.finish[0] == 5.0) is (horizon is None)


def test_save_and_restore_cost_time_and_the_newcomer_waits_for_the_save():
    """Work 5 stopped at 2; save 1, restore 0.5.  The same task again: ready at 3, restore to 3.5, compute 3: 6.5."""
    gpu = DeviceType("g")
    stopping = Stopping(save=1.0, restore=0.5)
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [5.0], stopping=stopping)], Scripted([(2.0, stop(0))]))
    assert record.finish == pytest.approx([6.5])

    def swap(view):
        yield Stop(running(view, 0))
        task = next(task for task in view.waiting() if task.index == 1)
        yield Start(task, view.fit(task))

    jobs = [Job([gpu_mode(gpu)], [5.0], stopping=stopping), Job([gpu_mode(gpu)], [1.0], arrival=1.0)]
    record = simulate(node(gpu), jobs, Scripted([(2.0, swap)]))
    assert record.start[1] == pytest.approx(3.0)  # decided at 2, its first stage after the save
    assert record.finish == pytest.approx([7.5, 4.0])  # restore at 4, 3 s of work left


def test_state_travels_over_the_link():
    """10 bytes of state at 10 B/s: 1 s to save, 1 s to bring back."""
    gpu = DeviceType("g", link=Link(upload=10.0, download=10.0))
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [5.0], stopping=Stopping(state=10))], Scripted([(2.0, stop(0))]))
    assert record.finish == pytest.approx([7.0])


def test_a_stop_that_does_not_keep_loses_all_work():
    gpu = DeviceType("g")
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [5.0])], Scripted([(2.0, stop(0, keep=False))]))
    assert record.finish == pytest.approx([7.0])
    assert record.compute == pytest.approx([5.0])
    assert record.launches["lost"].sum() == pytest.approx(2.0)


def test_a_stop_during_upload_loses_the_transfer():
    """Upload 4 s, stopped at 3: it starts over."""
    gpu = DeviceType("g")
    mode = gpu_mode(gpu, upload=StageTime(fixed=4.0))
    record = simulate(node(gpu), [Job([mode], [1.0])], Scripted([(3.0, stop(0))]))
    assert record.finish == pytest.approx([8.0])
    assert record.upload == pytest.approx([4.0])


def test_a_stop_during_download_keeps_the_finished_compute():
    """Compute 2, download 4, stopped at 4: only the download again: 4 + 4 = 8."""
    gpu = DeviceType("g")
    mode = gpu_mode(gpu, download=StageTime(fixed=4.0))
    record = simulate(node(gpu), [Job([mode], [2.0])], Scripted([(4.0, stop(0))]))
    assert record.finish == pytest.approx([8.0])
    assert record.compute == pytest.approx([2.0])
    assert record.download == pytest.approx([4.0])


def test_resuming_in_another_mode_keeps_the_done_fraction():
    """Half done on the CPU (10 s) at 5; the GPU mode takes 4 s in all: 2 more."""
    gpu, cpu = DeviceType("g"), DeviceType("cpu", kind="cpu")
    modes = [cpu_mode(cpu), gpu_mode(gpu)]
    spec = NodeSpec(cpus=1, cpu_type=cpu, accelerators=((gpu, 1),))

    def to_gpu(view):
        task = running(view, 0)
        return [Move(task, Placement(modes[1], (view.cluster.by_name["n0/g0"],)))]

    record = simulate(spec, [Job(modes, [10.0, 4.0])], Scripted([(5.0, to_gpu)], where={0: ("n0/cpu",)}))
    assert record.finish == pytest.approx([7.0])
    assert record.migrations[0] == 1
    assert record.preemptions is None or record.preemptions[0] == 0


def test_a_move_to_another_node_takes_the_state_over_all_links():
    """10 bytes: down at 10 B/s (1 s), network at 5 B/s (2 s), up at 10 B/s (1 s); work 4, moved at 2: 2+1+2+1+2."""
    gpu = DeviceType("g", link=Link(upload=10.0, download=10.0))
    network = Link(upload=5.0, download=5.0)
    spec = NodeSpec(accelerators=((gpu, 1),), count=2, network=network)
    mode = gpu_mode(gpu)

    def away(view):
        return [Move(running(view, 0), Placement(mode, (view.cluster.by_name["n1/g0"],)))]

    record = simulate(spec, [Job([mode], [4.0], stopping=Stopping(state=10))], Scripted([(2.0, away)]))
    assert record.finish == pytest.approx([8.0])


def test_stages_account_for_the_whole_response():
    """time before start + upload + compute + download + held = response, with held = save + restore here."""
    gpu = DeviceType("g")
    mode = gpu_mode(gpu, upload=StageTime(fixed=1.0), download=StageTime(fixed=1.0))
    job = Job([mode], [5.0], stopping=Stopping(save=0.25, restore=0.5))
    record = simulate(node(gpu), [job], Scripted([(3.0, stop(0))]))
    stages = record.upload[0] + record.compute[0] + record.download[0]
    assert record.finish[0] - stages == pytest.approx(0.75)


def test_a_fast_launch_can_be_stopped():
    """Without transfers a launch has no stages until somebody touches it; stopping it must not lose anything."""
    gpu = DeviceType("g")
    jobs = [Job([gpu_mode(gpu)], [4.0]), Job([gpu_mode(gpu)], [1.0], arrival=1.0)]

    def swap(view):
        yield Stop(running(view, 0))
        yield Start(next(t for t in view.waiting() if t.index == 1), view.first(jobs[1].modes[0]))

    record = simulate(node(gpu), jobs, Scripted([(1.5, swap)]))
    assert record.finish == pytest.approx([5.0, 2.5])
    assert stage_times(record, 0)["compute_end"] == pytest.approx(1.5)


# How a device lets go -----------------------------------------------------------------------------------------


def kernel_and_newcomer(preemption: Preemption, stopping: Stopping):
    """A kernel of 5 s is stopped at 2.3 s for a newcomer of 1 s, and goes on after it."""
    gpu = DeviceType("g", preemption=preemption, link=Link(upload=10.0, download=10.0))

    def swap(view):
        yield Stop(running(view, 0))
        task = next(task for task in view.waiting() if task.index == 1)
        yield Start(task, view.fit(task))

    jobs = [Job([gpu_mode(gpu)], [5.0], stopping=stopping), Job([gpu_mode(gpu)], [1.0], arrival=1.0)]
    return simulate(node(gpu), jobs, Scripted([(2.3, swap)]))


@pytest.mark.parametrize(
    ("preemption", "stopping", "newcomer", "kernel"),
    [
        # Blocks of 1 s: the third runs to its end, at 3; then 1 s of the newcomer, then 2 s of work left.
        (Preemption("drain"), Stopping(block=1.0), 3.0, 6.0),
        # The third block is thrown away: the newcomer starts at once, 3 s of work are left.
        (Preemption("flush"), Stopping(block=1.0, idempotent=True), 2.3, 6.3),
        # What is not idempotent cannot be thrown away.
        (Preemption("flush"), Stopping(block=1.0), 3.0, 6.0),
        # Without blocks a kernel can be left anywhere.
        (Preemption("drain"), Stopping(), 2.3, 6.0),
        # 10 bytes of state at 20 B/s to the device's own memory, and back.
        (Preemption("context_switch", rate=20.0), Stopping(block=1.0, state=10), 2.8, 2.8 + 1 + 0.5 + 2.7),
        # The same to the host and back, over a link of 10 B/s.
        (Preemption("context_switch"), Stopping(block=1.0, state=10), 3.3, 3.3 + 1 + 1 + 2.7),
        # Everything is slower by a quarter: at 2.3 s 1.84 of the work are done, the block ends at 2.5.
        (Preemption("flep", overhead=0.25), Stopping(block=1.0), 2.5, 2.5 + 1.25 + 3.75),
    ],
)
def test_a_device_lets_go_in_its_own_way(preemption, stopping, newcomer, kernel):
    record = kernel_and_newcomer(preemption, stopping)
    assert record.start[1] == pytest.approx(newcomer)
    assert record.finish[0] == pytest.approx(kernel)


def test_what_drains_is_computed_once_and_what_is_flushed_is_lost():
    drained = kernel_and_newcomer(Preemption("drain"), Stopping(block=1.0))
    assert drained.compute == pytest.approx([5.0, 1.0])
    assert drained.launches["busy"].sum() == pytest.approx(6.0)
    assert drained.launches["lost"].sum() == 0.0
    flushed = kernel_and_newcomer(Preemption("flush"), Stopping(block=1.0, idempotent=True))
    assert flushed.compute == pytest.approx([5.0, 1.0])
    assert flushed.launches["busy"].sum() == pytest.approx(6.3)
    assert flushed.launches["lost"].sum() == pytest.approx(0.3)


def test_blocks_are_counted_from_the_start_of_the_task():
    """Stopped at 1.5 and 2.6: its second block ends at 2, its third at 3, whatever was between."""
    gpu = DeviceType("g", preemption=Preemption("drain"))
    jobs = [Job([gpu_mode(gpu)], [5.0], stopping=Stopping(block=1.0))]
    record = simulate(node(gpu), jobs, Scripted([(1.5, stop(0)), (2.6, stop(0))]))
    assert record.launches["end"] == pytest.approx([2.0, 3.0, 5.0])
    assert record.finish == pytest.approx([5.0])


@pytest.mark.parametrize("devices", [1, 2])
def test_one_that_resumes_later_leaves_the_upload_engine_to_one_that_starts_now(devices: int):
    """A task stopped at 2 saves for 0.5 s, and its state of 1 s comes down and up again: it uploads from 3.5 s on.

    Another that starts at 2 on that GPU, time sliced at a cost of 10 %, uploads until 2.1 and computes 2.4 of its 3 s
    until 4.5, the rest at 0.45: it ends at 5.8333.  The first has 4 s left, 3.4 of them then: it ends at 9.2333.
    """
    gpu = DeviceType("g", streams=4, link=Link(1e9, 1e9), sharing=Sharing("timeslice", switch_cost=0.1))
    stopping, mode = Stopping(save=0.5, state=10**9), gpu_mode(gpu)
    jobs = [
        Job([mode], [5.0], stopping=stopping, bytes_in=10**9), Job([mode], [3.0], arrival=2.0, bytes_in=10**8)
    ]  # fmt: skip

    def exchange(view):
        first = running(view, 0)
        yield Stop(first, keep=True)
        place = Placement(mode, (view.cluster.by_name[f"n0/g{devices - 1}"],))
        yield Start(first, place)
        yield Start(next(task for task in view.waiting() if task.index == 1), place)

    record = simulate(node(gpu, devices), jobs, Scripted([(2.0, exchange)], where={0: ("n0/g0",)}))
    assert record.finish == pytest.approx([0.6 / 0.45 + 4.5 + 3.4, 4.5 + 0.6 / 0.45])
    assert record.launches["upload_start"][-1] == pytest.approx(2.0)
