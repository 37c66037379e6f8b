"""A launch's speed can change while it runs: sharing, frequency, stragglers, faults; and energy follows."""

from __future__ import annotations

import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, simulate, simulation

from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType, Power, Sharing
from hetsim.policy import Set
from hetsim.results.one_run.result import Result


def node(kind: DeviceType, count: int = 1) -> NodeSpec:
    return NodeSpec(cpus=4, accelerators=((kind, count),))


def test_time_slices_share_the_gpu_equally():
    """Processor sharing by hand: works 2, 4, 6 from t = 0.

    Three share until 6 (2 each), two until 10 (2 more each), then one alone: 12.
    """
    gpu = DeviceType("g", streams=8, sharing=Sharing("timeslice"))
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [work]) for work in (2.0, 4.0, 6.0)])
    assert record.finish == pytest.approx([6.0, 10.0, 12.0])


def test_time_slices_cost_switching_only_while_shared():
    """Two of work 2 with switch cost 20 %: 0.4 each until 5 s; one alone runs at full rate."""
    gpu = DeviceType("g", streams=8, sharing=Sharing("timeslice", switch_cost=0.2))
    assert simulate(node(gpu), [Job([gpu_mode(gpu)], [2.0])] * 2).finish == pytest.approx([5.0, 5.0])
    assert simulate(node(gpu), [Job([gpu_mode(gpu)], [2.0])]).finish == pytest.approx([2.0])


def test_small_fractions_do_not_slow_each_other_under_time_slices():
    """A time measured on a quarter stays as it is while the shares in flight sum to at most one."""
    gpu = DeviceType("g", streams=8, sharing=Sharing("timeslice"))
    assert simulate(node(gpu), [Job([gpu_mode(gpu, 0.25)], [2.0])] * 4).finish == pytest.approx([2.0] * 4)


def test_mps_interferes_in_proportion_to_the_shares_of_others():
    """Two halves with interference 0.5: each at 1 / 1.25; work 1 ends at 1.25, the other (work 2) alone after: 2.25."""
    gpu = DeviceType("g", sharing=Sharing("mps", interference=0.5))
    record = simulate(node(gpu), [Job([gpu_mode(gpu, 0.5)], [work]) for work in (1.0, 2.0)])
    assert record.finish == pytest.approx([1.25, 2.25])


def test_frequency_changes_in_mid_run():
    """Work 4: 2 s at full speed, then half: 2 + 2 / 0.5 = 6 s; other devices are not touched."""
    gpu = DeviceType("g")
    script = [(2.0, lambda view: [Set(view.cluster.by_name["n0/g0"], 0.5)])]
    jobs = [Job([gpu_mode(gpu)], [4.0])] * 2
    record = simulate(node(gpu, 2), jobs, Scripted(script))
    assert record.finish == pytest.approx([6.0, 4.0])


def test_a_frequency_holds_for_later_launches():
    gpu = DeviceType("g")
    script = [(0.0, lambda view: [Set(view.cluster.by_name["n0/g0"], 2.0)])]
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [4.0])] * 2, Scripted(script))
    assert record.finish == pytest.approx([2.0, 4.0])


def test_a_gang_runs_at_the_rate_of_its_slowest_device():
    """A gang of two of which one GPU is slowed to a third at t = 1: 1 + 2 × 3 = 7 s."""
    gpu = DeviceType("g")
    run = simulation(node(gpu, 2), [Job([gpu_mode(gpu, 2)], [3.0])])
    run.at(1.0, lambda: run.parts.devices.set_slowdown(run.input.cluster.by_name["n0/g1"], 3.0))
    assert run.run().finish == pytest.approx([7.0])


def test_a_retiming_that_leaves_the_rate_equal_does_not_touch_the_event():
    gpu = DeviceType("g", sharing=Sharing("mps", interference=0.0))
    run = simulation(node(gpu), [Job([gpu_mode(gpu, 0.5)], [2.0]), Job([gpu_mode(gpu, 0.5)], [1.0], arrival=0.7)])
    record = run.run()
    assert record.finish.tolist() == [2.0, 1.7]
    assert record.launches["compute_end"][0] == 2.0  # exactly, not 2 within rounding


def test_a_sharing_group_keeps_one_pending_event():
    gpu = DeviceType("g", streams=64, sharing=Sharing("timeslice"))
    run = simulation(node(gpu), [Job([gpu_mode(gpu)], [1.0 + i]) for i in range(50)])
    run.advance()
    for decision in run.input.scheduler.schedule(run.view):
        run.apply(decision)
    assert run.state.clock.pending == 1


def test_a_sleeping_device_serves_nobody_and_takes_time_to_wake():
    """Asleep at 0; woken at 2 with a delay of 3: the task's first stage is at 5."""
    gpu = DeviceType("g", power=Power(idle=50, busy=250, sleep=5, wake=3.0))
    device = "n0/g0"
    script = [
        (0.0, lambda view: [Set(view.cluster.by_name[device], "off")]),
        (2.0, lambda view: [Set(view.cluster.by_name[device], "on")]),
    ]
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [1.0])], Scripted(script))
    assert record.start == pytest.approx([5.0])
    assert record.finish == pytest.approx([6.0])
    assert [row[2] for row in record.device_log] == ["sleep", "wake", "awake"]


def test_dynamic_energy_grows_with_the_cube_of_frequency():
    """200 W above idle: 4 s at full speed are 800 J; at half speed 8 s × 200 / 8 = 200 J."""
    gpu = DeviceType("g", power=Power(idle=50, busy=250))
    for frequency, expected in ((1.0, 800.0), (0.5, 200.0)):
        script = [(0.0, lambda view, f=frequency: [Set(view.cluster.by_name["n0/g0"], f)])]
        record = simulate(node(gpu), [Job([gpu_mode(gpu)], [4.0])], Scripted(script))
        assert Result(record).tasks["energy_j"].tolist() == pytest.approx([expected])


def test_shared_busy_time_is_not_counted_twice():
    """Two launches of work 2 share a GPU for 4 s: 2 device-seconds each."""
    gpu = DeviceType("g", streams=2, sharing=Sharing("timeslice"))
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [2.0])] * 2)
    assert record.launches["busy"] == pytest.approx([2.0, 2.0])


def test_a_failed_device_loses_its_work_and_comes_back():
    """One GPU, work 4, down in [1, 3]: everything again from 3, done at 7; with checkpoints every 0.4 s
    (0.8 s safe at t = 1) done at 3 + 3.2."""
    from hetsim.model.demand import Stopping

    gpu = DeviceType("g")
    for stopping, expected in ((Stopping(), 7.0), (Stopping(interval=0.4), 6.2)):
        run = simulation(node(gpu), [Job([gpu_mode(gpu)], [4.0], stopping=stopping)])
        device = run.input.cluster.by_name["n0/g0"]
        run.at(1.0, lambda run=run, device=device: run.parts.devices.set_up(device, False))
        run.at(3.0, lambda run=run, device=device: run.parts.devices.set_up(device, True))
        record = run.run()
        assert record.finish == pytest.approx([expected])
        assert record.status[0] == 1


def test_cpu_frequency_slows_cpu_launches():
    cpu = DeviceType("cpu", kind="cpu")
    script = [(1.0, lambda view: [Set(view.cluster.by_name["n0/cpu"], 0.5)])]
    record = simulate(NodeSpec(cpus=2, cpu_type=cpu), [Job([cpu_mode(cpu)], [2.0])] * 2, Scripted(script))
    assert record.finish == pytest.approx([3.0, 3.0])


def test_a_gang_without_work_may_still_be_there_when_the_next_one_begins():
    """At 0 s the first gang has nothing to compute; the second one has the accelerators to itself, as the invariants
    (`check`) agree."""
    gpu = DeviceType("g", streams=2, sharing=Sharing("mps", interference=0.2))
    run = simulation(node(gpu, 2), [Job([gpu_mode(gpu, 2)], [work]) for work in (0.0, 2.0, 1.0)])
    assert run.run().finish.tolist() == [0.0, 2.0, 3.0]
