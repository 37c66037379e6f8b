"""What a task that was stopped brings to its devices when it resumes: its state, its input, its output."""

from __future__ import annotations

import itertools
import random

import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, running, simulate, simulation
from tiers import some

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType, Link, Preemption
from hetsim.model.plan import Placement
from hetsim.policy import Move, Stop
from hetsim.policy.remaining import Progress
from hetsim.results.one_run.result import Result

CARD, NETWORK = 8.0, 4.0
"""Bytes per second of the link of a GPU, and of that of a node."""
GPU = DeviceType("g", link=Link(upload=CARD, download=CARD))
TWO_NODES = NodeSpec(cpus=4, accelerators=((GPU, 4),), count=2, network=Link(upload=NETWORK, download=NETWORK))


def on(node, *places):
    return tuple(f"n{node}/g{place}" for place in places)


def moved(job, at, first, then, spec=TWO_NODES):
    """The finish of a task that moves from some devices to others, and the seconds that the view tells for the move."""
    duration = []

    def move(view):
        task, devices = running(view, 0), tuple(view.cluster.by_name[name] for name in then)
        modes = [mode for mode in task.modes if mode.type is devices[0].type]
        mode = next(mode for mode in modes if mode.on_cpu or mode.gpus == len(devices))
        duration.append(view.duration(task, Placement(mode, devices)))
        return [Move(task, Placement(mode, devices))]

    record = simulate(spec, [job], Scripted([(at, move)], where={0: first}))
    return float(record.finish[0]), duration[0]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("given", "state"), list(itertools.product((None, "saved", "again"), (0, 32))))
@pytest.mark.parametrize("where", [(0, 0), (0, 2), (1, 0)], ids=["same", "neighbor", "other node"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_input_of_a_stopped_task_against_the_sum_of_its_transfers(given, state, where, gpus):
    """16 bytes of input, 10 s of work, moved after 4 s of it; a gang has half of everything on each GPU."""
    size, saves = 16, given == "saved" or (given is None and state > 0)
    job = Job([gpu_mode(GPU, gpus)], [10.0], bytes_in=size, stopping=Stopping(0.5, 0.25, state, input=given))
    at, (node, place) = size / CARD / gpus + 4.0, where
    finish, duration = moved(job, at, on(0, *range(gpus)), on(node, *range(place, place + gpus)))
    up = state + (0 if saves and node == 0 else size)
    over = 0 if node == 0 else state + (size if saves else 0)
    resumed = over / NETWORK + up / CARD / gpus + 0.25 + 6.0
    assert finish == pytest.approx(at + 0.5 + state / CARD / gpus + resumed)
    if gpus == 1:  # of a gang the view takes the network as idle for each of its GPUs
        assert duration == pytest.approx(resumed)


@pytest.mark.parametrize(
    ("stopping", "finish"),
    [
        ({}, 14.0),
        ({"input": "saved"}, 12.0),
        ({"state": "1 GB"}, 14.0),
        ({"state": "1 GB", "input": "again"}, 16.0),
        ({"input": "saved", "interval": "1 s"}, 12.0),
    ],
)
def test_two_gigabytes_of_input_and_ten_seconds_of_work_stopped_once(stopping, finish):
    """At 1 GB/s: 2 s, 10 s, for a state 1 s each way, and 2 s more if the input comes again."""
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "10 s", "bytes_in": "2 GB",
           "stopping": stopping}  # fmt: skip
    nodes = {"gpus": {"type": "g", "count": 1}, "pcie": {"upload": "1 GB/s", "download": "1 GB/s"}}
    run = hs.load({"name": "s", "cluster": {"nodes": nodes}, "workload": [job], "policy": "fcfs"}).build()
    run.scheduler = Scripted([(7.0, lambda view: [Stop(running(view, 0))])])
    assert Simulation(run, check=True).run().finish == pytest.approx([finish])


@pytest.mark.parametrize(("given", "then", "finish"), [
    ("saved", on(0, 0), 12.0), ("saved", on(0, 1), 12.0), ("saved", on(1, 0), 14.0), ("again", on(0, 0), 14.0),
])  # fmt: skip
def test_an_upload_given_as_a_duration_is_input_too(given, then, finish):
    job = Job([gpu_mode(GPU, upload=StageTime(fixed=2.0))], [10.0], stopping=Stopping(input=given))
    assert moved(job, 6.0, on(0, 0), then) == pytest.approx((finish, finish - 6.0))


@pytest.mark.parametrize("given", ["saved", "again"])
def test_after_a_failure_the_input_comes_again_whatever_was_saved_before(given):
    """Input 2 s, 4 s of work, stopped at 6, state 1 s each way; failed at 9, up at 12: state 1 s, input 2 s, 6 s."""
    job = Job([gpu_mode(GPU)], [10.0], bytes_in=16, stopping=Stopping(state=8, input=given))
    run = simulation(TWO_NODES, [job], Scripted([(6.0, lambda view: [Stop(running(view, 0))])], where={0: on(0, 0)}))
    for time, up in ((9.0, False), (12.0, True)):
        run.at(time, lambda up=up: run.parts.devices.set_up(run.input.cluster.by_name["n0/g0"], up))
    assert run.run().finish == pytest.approx([12 + 1 + 2 + 6])


@pytest.mark.parametrize(("old", "new", "seconds"), [
    # Each has 8 of the 32 bytes and needs no more; it downloads 8.
    (on(0, 0, 1, 2, 3), on(0, 0, 1, 2, 3), [8 / CARD]),
    # The same with 16.
    (on(0, 0, 1), on(0, 1, 0), [16 / CARD]),
    # 1 keeps 16, 2 gets the 16 of 0: over the link of 0, over that of 2; 1 and 2 download 16 each.
    (on(0, 0, 1), on(0, 1, 2), [16 / CARD, 16 / CARD, 16 / CARD]),
    # 0 and 1 keep 8 of 16; 2 gets 8 of 0, and 3 those of 1; each downloads 8.
    (on(0, 0, 1), on(0, 0, 1, 2, 3), [8 / CARD, 8 / CARD, 8 / CARD]),
    # 2 and 3 have 8 and need 16: 2 gets the 8 of 0, and 3 those of 1; both download 16.
    (on(0, 0, 1, 2, 3), on(0, 2, 3), [8 / CARD, 8 / CARD, 16 / CARD]),
    # 16 from each to its host, 32 over the network, 16 to each, and 16 from each.
    (on(0, 0, 1), on(1, 0, 1), [16 / CARD, 32 / NETWORK, 16 / CARD, 16 / CARD]),
    # 1 of the other node gets the 16 of 0, with the network to itself; 1 of the first one keeps its own.
    (on(0, 0, 1), (*on(0, 1), *on(1, 0)), [16 / CARD, 16 / NETWORK, 16 / CARD, 16 / CARD]),
])  # fmt: skip
def test_a_gang_stopped_in_its_download_brings_only_what_its_devices_lack(old, new, seconds):
    """32 bytes of output in equal parts; 1 s of work, moved half a second into the download."""
    across = {"span_any": True} if len({name[:2] for name in new}) > 1 else {}
    modes = [gpu_mode(GPU, len(old)), gpu_mode(GPU, 6 - len(old))]  # the first is that of its first start
    if across:
        modes = [gpu_mode(GPU, 2, **across)]
    job = Job(modes, [1.0] * len(modes), bytes_out=32)
    finish, _ = moved(job, 1.5, old, new)
    assert finish == pytest.approx(1.5 + sum(seconds))


@pytest.mark.parametrize(("new", "seconds"), [
    (on(0, 0), [4]),  # it lies there: 32 bytes down at 8 bytes/s
    (on(0, 1), [4, 4, 4]),  # to the host, to the other GPU, and to the host again
    (on(1, 0), [4, 8, 4, 4]),  # and over the network, at 4 bytes/s
    (("n0/cpu",), [4]),  # to the host
    (("n1/cpu",), [4, 8]),
])  # fmt: skip
def test_output_reaches_another_device_by_way_of_the_host_of_the_first(new, seconds):
    """32 bytes, of which 4 have come when the task is moved: they come again.  A view says the same."""
    job = Job([gpu_mode(GPU), cpu_mode(TWO_NODES.cpu_type)], [1.0, 1.0], bytes_out=32)
    assert moved(job, 1.5, on(0, 0), new) == pytest.approx((1.5 + sum(seconds), sum(seconds)))


def test_output_that_was_brought_to_another_device_lies_there():
    """4 s down from g0 and 4 s up to g1, where the download begins at 9.5 and again, after a stop, at 10: 4 s."""
    def move(view):
        task = running(view, 0)
        return [Move(task, Placement(task.modes[0], (view.cluster.by_name["n0/g1"],)))]

    job = Job([gpu_mode(GPU)], [1.0], bytes_out=32)
    assert simulate(TWO_NODES, [job], Scripted([(1.5, move), (10.0, move)], where={0: on(0, 0)})).finish[0] == 14.0


def beside(view):
    """Move the first task to g1."""
    task = running(view, 0)
    return [Move(task, Placement(task.modes[0], (view.cluster.by_name["n0/g1"],)))]


def test_it_shares_the_link_of_the_first_device_with_a_download_that_begins_later():
    """From 1.5 at 8 bytes/s: 8 of 32 by 2.5, then 4 bytes/s beside the 16 of the next task there, which end at 6.5;
    the last 8 by 7.5.  Up 4 s, down 4 s."""
    jobs = [Job([gpu_mode(GPU)], [1.0], bytes_out=32), Job([gpu_mode(GPU)], [1.0], arrival=1.0, bytes_out=16)]
    record = simulate(TWO_NODES, jobs, Scripted([(1.5, beside)], where={0: on(0, 0), 1: on(0, 0)}))
    assert record.finish == pytest.approx([15.5, 6.5])


def test_it_shares_the_link_of_the_first_device_with_a_download_under_way():
    """The second GPU uploads for a third task until 3.  At 3 the second task, computed by 2 on the first GPU, has 8 of
    its 16 bytes left: 4 bytes/s each, to 5; the other 24 of 32 bytes to 8.  Up 4 s, down 4 s."""
    kind = DeviceType("g", link=GPU.link, streams=2)
    jobs = [Job([gpu_mode(kind)], [1.0], bytes_out=size, bytes_in=more) for size, more in ((32, 0), (16, 0), (0, 24))]
    where = {0: on(0, 0), 1: on(0, 0), 2: on(0, 1)}
    record = simulate(NodeSpec(accelerators=((kind, 2),)), jobs, Scripted([(1.5, beside)], where=where))
    assert record.finish == pytest.approx([16.0, 5.0, 4.0])
    assert Result(record).metric("bytes_moved") == 32 + 16 + 24 + 32 + 32 + 32  # what was lost on its way counts, too


def test_it_shares_a_half_duplex_link_with_an_upload():
    """Both begin at 1.5, at 4 bytes/s each: the 16 up to 5.5, the other 16 of 32 down to 7.5; up 4 s, down 4 s."""
    kind = DeviceType("g", link=Link(upload=CARD, download=CARD, duplex="half"))
    jobs = [Job([gpu_mode(kind)], [1.0], bytes_out=32), Job([gpu_mode(kind)], [1.0], arrival=1.0, bytes_in=16)]
    where = {0: on(0, 0), 1: on(0, 0)}
    record = simulate(NodeSpec(accelerators=((kind, 2),)), jobs, Scripted([(1.5, beside)], where=where))
    assert record.finish == pytest.approx([15.5, 6.5])


def test_it_shares_a_switch_with_the_download_of_another_device():
    """Behind a switch of 8 bytes/s for both: 4 bytes/s each from 1.5, as g1 uploads nothing yet: 16 of the second task
    to 5.5, the other 16 of 32 to 7.5; up 4 s, down 4 s."""
    jobs = [Job([gpu_mode(GPU)], [1.0], bytes_out=32), Job([gpu_mode(GPU)], [1.5], bytes_out=16)]
    start = {0: on(0, 0), 1: on(0, 2)}
    spec = NodeSpec(accelerators=((GPU, 3),), switch_size=3, switch=Link(upload=CARD, download=CARD))
    record = simulate(spec, jobs, Scripted([(1.5, beside)], where=start))
    assert record.finish == pytest.approx([15.5, 5.5])


@pytest.mark.parametrize(("fails", "finish"), [(None, 15.0), (2.0, 11.0)])
def test_what_lies_on_a_device_that_fails_is_lost_and_comes_from_the_host(fails, finish):
    """Stopped at 1.5, g1 is free at 3: down 4 s, up 4 s, down 4 s.  After a failure of g0 what a saved stop kept is on
    the host: up 4 s, down 4 s."""
    scheduler = Scripted(where={0: on(0, 0), 1: on(0, 1)})

    def stop(view):
        scheduler.where[0] = on(0, 1)
        return [Stop(running(view, 0))]

    scheduler.script = [(1.5, stop)]
    run = simulation(TWO_NODES, [Job([gpu_mode(GPU)], [1.0], bytes_out=32), Job([gpu_mode(GPU)], [3.0])], scheduler)
    if fails is not None:
        run.at(fails, lambda: run.parts.devices.set_up(run.input.cluster.by_name["n0/g0"], False))
    assert run.run().finish == pytest.approx([finish, 3.0])


def test_a_launch_that_fetches_from_a_device_that_fails_is_lost():
    """Moved at 1.5; g0 fails at 2: stopped, and started again at once: up 4 s and down 4 s."""
    scheduler = Scripted(where={0: on(0, 0)})

    def move(view):
        scheduler.where[0] = on(0, 1)
        return beside(view)

    scheduler.script = [(1.5, move)]
    run = simulation(TWO_NODES, [Job([gpu_mode(GPU)], [1.0], bytes_out=32)], scheduler)
    run.at(2.0, lambda: run.parts.devices.set_up(run.input.cluster.by_name["n0/g0"], False))
    assert run.run().finish == pytest.approx([10.0])


@pytest.mark.parametrize(("new", "over"), [((0, 1), 0), ((1, 2), 16), ((2, 3), 32)])
@pytest.mark.parametrize("cores", [False, True])
def test_a_job_over_nodes_saves_its_state_on_each_of_them(new, over, cores):
    """32 bytes of state, half on each of two nodes, of 4 s of work moved at 1; each node sends at 4 bytes/s."""
    spec = NodeSpec(cpus=2, accelerators=((GPU, 1),), count=4, network=Link(upload=NETWORK, download=NETWORK))
    mode = cpu_mode(spec.cpu_type, 4, span_any=True, node_count=2)
    if not cores:
        mode = gpu_mode(GPU, 2, span_any=True, node_count=2)
    first, then = ([f"n{node}/{'cpu' if cores else 'g0'}" for node in nodes] for nodes in ((0, 1), new))
    finish, _ = moved(Job([mode], [4.0], stopping=Stopping(state=32)), 1.0, first, then, spec)
    card = 0.0 if cores else 16 / CARD
    assert finish == pytest.approx(1.0 + card + (16 / NETWORK if over else 0.0) + card + 3.0)


@pytest.mark.parametrize(("then", "seconds"), [
    # From its own memory: 16 bytes at 4 bytes/s.
    (on(0, 0, 1), [16 / 4]),
    # To the host and up again, 16 bytes over each link.
    (on(0, 2, 3), [16 / CARD, 16 / CARD]),
    # 2 gets the part of 0; when it is there 1 restores its own.
    (on(0, 1, 2), [16 / CARD, 16 / CARD, 16 / 4]),
    # 0 gets the part of 1 and restores its own.
    (on(0, 0), [16 / CARD, 16 / CARD, 16 / 4]),
    # 2 and 3 get 8 of 0 and of 1; these restore the 8 that they keep.
    (on(0, 0, 1, 2, 3), [8 / CARD, 8 / CARD, 8 / 4]),
    # To the host, 32 bytes over the network, up.
    (on(1, 0, 1), [16 / CARD, 32 / NETWORK, 16 / CARD]),
])  # fmt: skip
def test_a_gang_saves_into_the_memory_of_each_of_its_devices(then, seconds):
    """32 bytes, 16 of them in each of two GPUs, where 4 bytes/s are saved: 4 s; moved at 1 of 4 s."""
    kind = DeviceType("g", link=GPU.link, preemption=Preemption("context_switch", rate=4.0))
    modes = [gpu_mode(kind, 2), *(gpu_mode(kind, count) for count in (1, 4))]
    spec = NodeSpec(accelerators=((kind, 4),), count=2, network=TWO_NODES.network)
    finish, duration = moved(Job(modes, [4.0] * 3, stopping=Stopping(state=32)), 1.0, on(0, 0, 1), then, spec)
    assert finish == pytest.approx(1 + 4 + sum(seconds) + 3)
    if 32 / NETWORK not in seconds:  # of a gang the view takes the network as idle for each of its GPUs
        assert duration == pytest.approx(sum(seconds) + 3)


@pytest.mark.parametrize(("then", "seconds"), [(on(0, 1), [2, 2]), (on(1, 0), [2, 4 + 6, 2 + 3])])
def test_a_state_in_memory_travels_from_there_and_its_input_from_the_host(then, seconds):
    """16 bytes of state, 24 of input, which is saved: it comes along to another node, from the host of the first."""
    kind = DeviceType("g", link=GPU.link, preemption=Preemption("context_switch", rate=16.0))
    spec = NodeSpec(accelerators=((kind, 2),), count=2, network=TWO_NODES.network)
    job = Job([gpu_mode(kind)], [4.0], bytes_in=24, stopping=Stopping(state=16))
    assert moved(job, 4.0, on(0, 0), then, spec)[0] == pytest.approx(4 + 1 + sum(seconds) + 3)


def test_a_state_in_memory_and_then_an_output_each_move_to_another_device():
    """Moved at 1: 16 bytes saved at 4 bytes/s to 5, down 2 s, up 2 s, 3 s of work to 12.  Moved back at 13: saved to
    17, the 32 bytes of output down 4 s and up 4 s to 25; nothing of the state is needed; down 4 s."""
    kind = DeviceType("g", link=GPU.link, preemption=Preemption("context_switch", rate=4.0))
    job = Job([gpu_mode(kind)], [4.0], bytes_out=32, stopping=Stopping(state=16))

    def back(view):
        task = running(view, 0)
        return [Move(task, Placement(task.modes[0], (view.cluster.by_name["n0/g0"],)))]

    spec, first = NodeSpec(accelerators=((kind, 2),)), {0: on(0, 0)}
    record = simulate(spec, [job], Scripted([(1.0, beside), (13.0, back)], first))
    assert record.finish == pytest.approx([29.0])
    stays = simulate(spec, [job], Scripted([(5.0, back)], first))
    assert stays.finish == pytest.approx([5 + 4 + 4])  # stopped at 5, one second into its download


@pytest.mark.slow
def test_resuming_on_another_device_is_never_earlier_than_on_the_same_one():
    """All else equal, and a device's own memory no slower than its link."""
    draw, later, cases = random.Random(1), 0, some(120, 40)
    for case in range(cases):
        rate, network = draw.choice([2.0, 8.0]), draw.choice([1.0, 4.0, 16.0])
        link = Link(rate, draw.choice([2.0, 8.0]), draw.choice([0.0, 0.1]), draw.choice(["full", "half"]))
        fast = max(link.upload, link.download) * draw.choice([1, 4])
        how = draw.choice([Preemption("context_switch"), Preemption("context_switch", rate=fast), Preemption("drain")])
        kind = DeviceType("g", link=link, preemption=how)
        spec = NodeSpec(accelerators=((kind, 4),), count=2, network=Link(network, network, draw.choice([0.0, 0.1])))
        old, new = draw.sample([1, 2], 2) if draw.random() < 0.5 else [2, 2]
        size = {name: draw.choice([0, 8, 24]) for name in ("bytes_in", "bytes_out")}
        stopping = Stopping(0.5, 0.25, draw.choice([0, 16]), input=draw.choice([None, "saved", "again"]))
        modes = [gpu_mode(kind, count) for count in dict.fromkeys((old, new))]
        job = Job(modes, [5.0] * len(modes), **size, stopping=stopping)
        (alone,) = simulate(spec, [job], Scripted(where={0: on(0, *range(old))})).finish
        at = draw.uniform(0.05, 0.95) * alone
        first, same = on(0, *range(old)), on(0, *range(min(old, new)), *range(old, new))
        others = on(0, *range(old - 1, old - 1 + new)), on(0, *range(4 - new, 4)), on(1, *range(new))
        finish = [moved(job, at, first, then, spec)[0] for then in (same, *others)]
        assert all(other >= finish[0] - 1e-9 for other in finish[1:]), (case, at, finish)
        later += finish[2] > finish[0] + 1e-9
    assert later > cases // 4


class Replanning(Scripted):
    """Stops the running task and notes what a planner is given of it."""

    def prepare(self, problem):
        self.progress = Progress(problem)
        self.script = [(6.0, self.stop)]

    def ready(self, task):
        super().ready(task)
        self.progress.ready(task)

    def stop(self, view):
        yield Stop(running(view, 0))
        self.rest = self.progress.rest(view).problem.tasks


@pytest.mark.parametrize(("given", "size"), [(None, 8), ("again", 24)])
def test_a_planner_is_given_what_a_stopped_task_brings(given, size):
    scheduler = Replanning()
    simulate(TWO_NODES, [Job([gpu_mode(GPU)], [10.0], bytes_in=16, stopping=Stopping(state=8, input=given))], scheduler)
    assert scheduler.rest.bytes_in.tolist() == [size]
    assert scheduler.rest.time.tolist() == [[pytest.approx(6.0)]]


@pytest.mark.parametrize("wrong", ["never", True, 3])
def test_an_input_that_is_neither_saved_nor_uploaded_again_is_refused(tmp_path, wrong):
    file = tmp_path / "s.yaml"
    file.write_text(f"""\
name: s
cluster: {{nodes: {{gpus: {{type: g}}}}}}
workload:
  - name: job
    arrivals: {{process: all_at_once, count: 1}}
    gpu_time: 1 s
    stopping: {{input: {str(wrong).lower()}}}
policy: fcfs
""")
    with pytest.raises(ScenarioError, match=r"s\.yaml:7:16: .*stopping\.input: .*saved, again") as caught:
        hs.load(file)
    assert len(caught.value.problems) == 1
