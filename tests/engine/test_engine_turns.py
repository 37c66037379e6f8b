"""Which launch has its turn where several could, and what a change in mid-flight leaves of the turns that were planned.

Every time is worked out by hand in the docstring: U, C, D are the seconds of upload, compute and download.
"""

from __future__ import annotations

import pytest
from machines import Job, Scripted, gpu_mode, running, simulate

from hetsim.errors import PolicyError
from hetsim.model.cluster import NodeSpec, Partition
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType, Link, Sharing
from hetsim.model.plan import Placement
from hetsim.model.record import COMPLETED
from hetsim.policy import Scheduler, Set, Start, Stop
from hetsim.results.one_run.result import Result


def stages(gpu, gpus=1, up=0.0, down=0.0, **more):
    return gpu_mode(gpu, gpus, upload=StageTime(fixed=up), download=StageTime(fixed=down), **more)


def node(gpu, count=1, **more):
    return NodeSpec(accelerators=((gpu, count),), **more)


def slower(time, factor=0.5, device="n0/g0"):
    return (time, lambda view: [Set(view.cluster.by_name[device], factor)])


def stopped(time, row, keep=True):
    return (time, lambda view: [Stop(running(view, row), keep=keep)])


def test_those_that_wait_for_the_compute_engine_keep_their_order_when_it_becomes_slower():
    """C = 4, 1, 1 of three in flight, half the frequency from 1 on: 3 s of work last to 7, then 2 s each."""
    gpu = DeviceType("g", streams=3)
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [time]) for time in (4.0, 1.0, 1.0)], Scripted([slower(1.0)]))
    assert record.finish == pytest.approx([7, 9, 11])


def test_those_that_wait_for_a_copy_engine_keep_their_order_when_computing_becomes_slower():
    """U = 2, C = 1, D = 3: uploads end at 2, 4, 6; at half frequency computes are [2, 4] [4, 6] [6, 8] and downloads
    [4, 7] [7, 10] [10, 13]."""
    gpu = DeviceType("g", streams=3)
    record = simulate(node(gpu), [Job([stages(gpu, 1, 2.0, 3.0)], [1.0])] * 3, Scripted([slower(1.0)]))
    assert record.finish == pytest.approx([7, 10, 13])


@pytest.mark.parametrize("switch", [4.0, float("inf")], ids=["shared way", "own way"])
def test_an_upload_waits_for_the_engine_where_launches_slow_each_other_and_do_not_fit_side_by_side(switch):
    """U = 1 and 2 (4 B/s), C = 3: uploads [0, 1] [1, 3], and both want all of the GPU: computes [1, 4] [4, 7]."""
    sharing, link = Sharing("mps", interference=0.2), Link(upload=4.0, download=4.0)
    gpu = DeviceType("g", streams=2, sharing=sharing, link=link)
    spec = node(gpu, switch_size=2, switch=Link(upload=switch, download=switch))
    mode = gpu_mode(gpu)
    record = simulate(spec, [Job([mode], [3.0], bytes_in=4), Job([mode], [3.0], arrival=0.5, bytes_in=8)])
    assert (record.status == COMPLETED).all()
    assert record.finish == pytest.approx([4, 7])


def test_shares_that_are_a_millionth_too_large_do_not_compute_side_by_side():
    gpu = DeviceType("g", streams=2)
    for shares, finish in (((0.5, 0.5), [1, 1]), ((0.5, 0.500001), [1, 2])):
        record = simulate(node(gpu), [Job([gpu_mode(gpu, share)], [1.0]) for share in shares])
        assert record.finish == pytest.approx(finish)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_gang_ends_with_the_last_of_its_downloads(busy):
    """One of its devices brings down [1, 6] what computed there before: C = [1, 2] of the gang, D = 1 s on each."""
    gpu = DeviceType("g", streams=2)
    jobs = [Job([stages(gpu, 1, 0.0, 5.0)], [1.0]), Job([stages(gpu, 2, 0.0, 1.0)], [1.0])]
    record = simulate(node(gpu, 2), jobs, Scripted(where={0: (f"n0/g{busy}",), 1: ("n0/g0", "n0/g1")}))
    assert record.finish == pytest.approx([6, 7])


def test_a_gang_downloads_over_a_switch_that_its_parts_share():
    """6 B over two links of 1 B/s behind a switch of 1.5 B/s: 3 B each at 0.75 B/s."""
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0))
    spec = node(gpu, 2, switch_size=2, switch=Link(upload=1.5, download=1.5))
    assert simulate(spec, [Job([gpu_mode(gpu, 2)], [1.0], bytes_out=6)]).finish == pytest.approx([5.0])
    assert simulate(spec, [Job([gpu_mode(gpu, 2)], [1.0], bytes_in=6)]).finish == pytest.approx([5.0])


def test_the_latency_of_a_switch_adds_to_that_of_the_link():
    """3 B at 1 B/s with 0.5 + 0.25 s of latency up, the same down, and 1 s of compute."""
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0, latency=0.5))
    spec = node(gpu, 2, switch_size=2, switch=Link(upload=10.0, download=10.0, latency=0.25))
    record = simulate(spec, [Job([gpu_mode(gpu)], [1.0], bytes_in=3, bytes_out=3)])
    assert record.finish == pytest.approx([8.5])
    assert Result(record).metric("bytes_moved") == 6


def test_what_waited_for_a_gang_goes_on_on_each_of_its_devices_when_it_is_stopped():
    """A gang on two GPUs is stopped at 2 of its 10 s and goes elsewhere; what waited on each computes [2, 3]."""
    gpu = DeviceType("g", streams=2)
    jobs = [Job([gpu_mode(gpu, 2)], [10.0]), Job([gpu_mode(gpu)], [1.0]), Job([gpu_mode(gpu)], [1.0])]
    policy = Scripted(where={0: ("n0/g0", "n0/g1"), 1: ("n0/g0",), 2: ("n0/g1",)})

    def elsewhere(view):
        policy.where[0] = ("n0/g2", "n0/g3")
        return [Stop(running(view, 0), keep=False)]

    policy.script = [(2.0, elsewhere)]
    assert simulate(node(gpu, 4), jobs, policy).finish == pytest.approx([12, 3, 3])


def test_an_output_waits_for_the_one_before_it_on_a_shared_way():
    """No input, C = 1, 4 B at 1 B/s behind a switch: computes [0, 1] [1, 2], downloads [1, 5] [5, 9]."""
    gpu = DeviceType("g", streams=2, link=Link(upload=1.0, download=1.0))
    spec = node(gpu, 1, switch_size=2, switch=Link(upload=2.0, download=2.0))
    record = simulate(spec, [Job([gpu_mode(gpu)], [1.0], bytes_out=4)] * 2)
    assert record.finish == pytest.approx([5, 9])


def test_a_launch_that_was_stopped_shares_its_accelerator_again():
    """C = 4 and 4 in time slices: at 1 both have half a second; stopped and started at once, both end at 8."""
    gpu = DeviceType("g", streams=2, sharing=Sharing("timeslice"))
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [4.0])] * 2, Scripted([stopped(1.0, 0)]))
    assert record.finish == pytest.approx([8, 8])


@pytest.mark.parametrize("shared", [0, 1])
def test_a_gang_goes_at_the_rate_of_the_device_that_it_shares(shared):
    """Time slices: beside C = 1 on one of its two GPUs a gang of C = 4 computes at half speed to 2, and ends at 5."""
    gpu = DeviceType("g", streams=2, sharing=Sharing("timeslice"))
    jobs = [Job([gpu_mode(gpu, 2)], [4.0]), Job([gpu_mode(gpu)], [1.0])]
    where = {0: ("n0/g0", "n0/g1"), 1: (f"n0/g{shared}",)}
    assert simulate(node(gpu, 2), jobs, Scripted(where=where)).finish == pytest.approx([5, 2])


def test_an_output_goes_on_to_other_devices_in_equal_parts():
    """A gang of two has computed at 1 and downloads 4 B, 2 B on each device at 1 B/s.  It is stopped at 2 and goes on
    on two others: 2 B each leave the first two in 2 s, come there in 2 s, and go down again in 2 s."""
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0))
    policy = Scripted(where={0: ("n0/g0", "n0/g1")})

    def elsewhere(view):
        policy.where = {0: ("n0/g2", "n0/g3")}
        return [Stop(running(view, 0))]

    policy.script = [(2.0, elsewhere)]
    record = simulate(node(gpu, 4), [Job([gpu_mode(gpu, 2)], [1.0], bytes_out=4)], policy)
    assert record.finish == pytest.approx([8.0])


class Together(Scheduler):
    """Starts all that waits as one launch."""

    def schedule(self, view):
        tasks = list(view.waiting())
        placement = view.first(tasks[0].modes[0]) if tasks else None
        if placement is not None:
            yield Start(tasks, placement)


@pytest.mark.parametrize("down", [0.0, 1.0])
def test_tasks_of_one_launch_end_together(down):
    """U = 1 + 2 · 0.5, C = 3 + 2 + 4, and D: both end with the launch, and nothing is left."""
    gpu = DeviceType("g")
    upload, download = StageTime(fixed=1.0, per_item=0.5), StageTime(fixed=down)
    mode = gpu_mode(gpu, fixed=3.0, batch_limit=2, upload=upload, download=download)
    record = simulate(node(gpu), [Job([mode], [2.0]), Job([mode], [4.0])], Together())
    assert record.finish == pytest.approx([11.0 + down] * 2)
    assert (record.status == COMPLETED).all()


# Which device ---------------------------------------------------------------------------------------------------------


def test_whole_launches_that_overlap_go_to_the_emptiest_accelerator():
    """Two streams on each of two GPUs, and memory for both: the second does not wait behind the first."""
    gpu = DeviceType("g", streams=2, memory=10)
    record = simulate(node(gpu, 2), [Job([gpu_mode(gpu, gpu_memory=1)], [1.0])] * 4)
    assert record.finish == pytest.approx([1, 1, 2, 2])


@pytest.mark.parametrize("gpus", [1, 2])
def test_nothing_starts_outside_its_partition(gpus):
    gpu = DeviceType("g")
    mode = gpu_mode(gpu, gpus, partition=Partition("a", mask=0b01))
    spec = NodeSpec(accelerators=((gpu, 2),), count=2)
    assert simulate(spec, [Job([mode], [1.0])] * 4).finish == pytest.approx([1, 1, 2, 2] if gpus == 1 else [1, 2, 3, 4])
    there = tuple(f"n1/g{number}" for number in range(gpus))
    with pytest.raises(PolicyError, match="n1/g0 is not in partition"):
        simulate(spec, [Job([mode], [1.0])], Anywhere(there))


class Anywhere(Scheduler):
    """Starts its tasks on devices of these names, whether that is allowed or not."""

    def __init__(self, names):
        self.names = names

    def schedule(self, view):
        for task in list(view.waiting()):
            devices = tuple(view.cluster.by_name[name] for name in self.names)
            yield Start(task, Placement(task.modes[0], devices))
