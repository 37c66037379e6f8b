"""What a task that was stopped brings to its devices when it resumes: its state, its input, its output."""

from __future__ import annotations

import itertools

import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, running, simulate, simulation

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import DeviceType, Link, NodeSpec, Preemption
from hetsim.model.plan import Placement
from hetsim.model.tasks import StageTime, Stopping
from hetsim.policy import Move, Stop
from hetsim.policy.remaining import Progress

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
        mode = next(mode for mode in task.modes if mode.on_cpu or mode.gpus == len(devices))
        duration.append(view.duration(task, Placement(mode, devices)))
        return [Move(task, Placement(mode, devices))]

    record = simulate(spec, [job], Scripted([(at, move)], where={0: first}))
    return float(record.finish[0]), duration[0]


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


@pytest.mark.parametrize(("old", "new", "up", "down"), [
    (on(0, 0, 1, 2, 3), on(0, 0, 1, 2, 3), 0, 8),
    (on(0, 0, 1), on(0, 1, 0), 0, 16),
    (on(0, 0, 1), on(0, 1, 2), 16, 16),
    (on(0, 0, 1), on(0, 0, 1, 2, 3), 8, 8),
    (on(0, 0, 1, 2, 3), on(0, 2, 3), 8, 16),
    (on(0, 0, 1), on(1, 0, 1), 16, 16),
])  # fmt: skip
def test_a_gang_stopped_in_its_download_brings_only_what_its_devices_lack(old, new, up, down):
    """32 bytes of output in equal parts; 1 s of work, moved half a second into the download."""
    modes = [gpu_mode(GPU, len(old)), gpu_mode(GPU, 6 - len(old))]  # the first is that of its first start
    job = Job(modes, [1.0, 1.0], bytes_out=32)
    finish, _ = moved(job, 1.5, old, new)
    network = 32 / NETWORK if new[0].startswith("n1") else 0.0
    assert finish == pytest.approx(1.5 + network + (up + down) / CARD)


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


def test_a_gang_saves_into_the_memory_of_each_of_its_devices():
    """32 bytes at 4 bytes/s in each of two GPUs: 4 s each way; moved at 1 of 4 s; from host memory 2 s to resume."""
    kind = DeviceType("g", link=GPU.link, preemption=Preemption("context_switch", rate=4.0))
    job = Job([gpu_mode(kind, 2)], [4.0], stopping=Stopping(state=32))
    for then, back in ((on(0, 0, 1), 4.0), (on(0, 2, 3), 2.0)):
        assert moved(job, 1.0, on(0, 0, 1), then, NodeSpec(accelerators=((kind, 4),)))[0] == pytest.approx(8.0 + back)


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
