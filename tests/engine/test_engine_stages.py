"""Upload, compute and download, streams, links: times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate, simulation, stage_times

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType, Link
from hetsim.policy.lists import ListScheduler

GB = 10**9


def node(kind: DeviceType, count: int = 1, **more) -> NodeSpec:
    return NodeSpec(cpus=4, accelerators=((kind, count),), **more)


def test_stages_follow_each_other():
    """2 GB at 1 GB/s + 0.5 s latency up, 3 s compute, 1 GB at 2 GB/s + 0.5 s down: 2.5 + 3 + 1 = 6.5 s."""
    gpu = DeviceType("g", link=Link(upload=1 * GB, download=2 * GB, latency=0.5))
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [3.0], bytes_in=2 * GB, bytes_out=GB)])
    assert record.finish[0] == pytest.approx(6.5)
    assert record.upload[0] == pytest.approx(2.5)
    assert record.compute[0] == pytest.approx(3.0)
    assert record.download[0] == pytest.approx(1.0)


def test_a_cpu_launch_has_only_compute():
    cpu = DeviceType("cpu", kind="cpu")
    record = simulate(NodeSpec(cpus=1, cpu_type=cpu), [Job([cpu_mode(cpu)], [3.0], bytes_in=GB, bytes_out=GB)])
    assert record.finish[0] == 3.0


def test_one_stream_is_serial_and_two_overlap():
    """Three tasks of upload 2, compute 3, download 1 s on one GPU.

    streams 1: 3 × 6 = 18 s.  streams 2: of two launches in flight one computes while the other transfers:
    uploads [0, 2] [2, 4] [6, 8], computes [2, 5] [5, 8] [8, 11], downloads [5, 6] [8, 9] [11, 12].
    """
    for streams, expected in ((1, [6, 12, 18]), (2, [6, 9, 12])):
        gpu = DeviceType("g", streams=streams)
        mode = gpu_mode(gpu, upload=StageTime(fixed=2.0), download=StageTime(fixed=1.0))
        record = simulate(node(gpu), [Job([mode], [3.0]) for _ in range(3)])
        assert record.finish == pytest.approx(expected)


def test_pipeline_throughput_is_that_of_the_slowest_stage():
    """Long run: one launch per max(τ) seconds with enough streams, one per Σ τ / streams with too few."""
    for streams, period in ((1, 6.0), (2, 3.0), (3, 3.0)):
        gpu = DeviceType("g", streams=streams)
        mode = gpu_mode(gpu, upload=StageTime(fixed=2.0), download=StageTime(fixed=1.0))
        record = simulate(node(gpu), [Job([mode], [3.0]) for _ in range(40)])
        assert np.diff(record.finish[10:30]) == pytest.approx(period)


def test_half_duplex_shares_one_rate():
    """Upload of one launch against download of another on a half-duplex link: each gets half the rate meanwhile.

    GPU streams 2, rate 1 B/s.  Task 0: no input, compute 1, output 4.  Task 1: input 4, compute 1.
    Task 1 uploads alone in [0, 1] (1 byte), then both share: 0.5 B/s each; its 3 bytes left take 6 s, to 7.
    Task 0's output has 1 byte left at 7 and the link to itself: to 8.  Task 1 computes [7, 8].
    """
    gpu = DeviceType("g", streams=2, link=Link(upload=1.0, download=1.0, duplex="half"))
    jobs = [Job([gpu_mode(gpu)], [1.0], bytes_out=4), Job([gpu_mode(gpu)], [1.0], bytes_in=4)]
    record = simulate(node(gpu), jobs)
    assert record.finish == pytest.approx([8.0, 8.0])
    full = DeviceType("g", streams=2, link=Link(upload=1.0, download=1.0))
    jobs = [Job([gpu_mode(full)], [1.0], bytes_out=4), Job([gpu_mode(full)], [1.0], bytes_in=4)]
    assert simulate(node(full), jobs).finish == pytest.approx([5.0, 5.0])


def test_a_shared_switch_is_divided_fairly():
    """Two GPUs of 1 B/s links behind a switch of 1.5 B/s: 0.75 each while both upload, 1 when alone.

    3 and 6 bytes: both at 0.75 until 4 s (3 bytes each), then the other's 3 left at 1 B/s: 7 s.
    """
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0))
    spec = NodeSpec(accelerators=((gpu, 2),), switch_size=2, switch=Link(upload=1.5, download=1.5))
    jobs = [Job([gpu_mode(gpu)], [1.0], bytes_in=3), Job([gpu_mode(gpu)], [1.0], bytes_in=6)]
    record = simulate(spec, jobs)
    assert record.finish == pytest.approx([5.0, 8.0])
    apart = NodeSpec(accelerators=((gpu, 2),))
    assert simulate(apart, jobs).finish == pytest.approx([4.0, 7.0])


def test_a_stage_given_as_a_duration_is_its_time_on_an_idle_link_and_shares_a_busy_one():
    """2 s alone on a 1 B/s link counts as 2 bytes: on a switch of 1 B/s shared by two it takes 4 s."""
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0))
    mode = gpu_mode(gpu, upload=StageTime(fixed=2.0))
    spec = NodeSpec(accelerators=((gpu, 2),), switch_size=2, switch=Link(upload=1.0, download=1.0))
    assert simulate(spec, [Job([mode], [1.0])]).finish == pytest.approx([3.0])
    assert simulate(spec, [Job([mode], [1.0])] * 2).finish == pytest.approx([5.0, 5.0])


def test_gpu_memory_is_held_from_upload_to_the_end_of_download():
    """Two launches of 6 bytes on a GPU of 10: the second starts when the first has downloaded, streams or not."""
    gpu = DeviceType("g", streams=2, memory=10)
    mode = gpu_mode(gpu, gpu_memory=6, upload=StageTime(fixed=1.0), download=StageTime(fixed=1.0))
    record = simulate(node(gpu), [Job([mode], [1.0])] * 2)
    assert record.finish == pytest.approx([3.0, 6.0])


def test_a_gang_uploads_on_all_its_devices_at_once():
    """8 bytes over four GPUs of 1 B/s: 2 each, so 2 s, then 1 s of compute."""
    gpu = DeviceType("g", link=Link(upload=1.0, download=1.0))
    record = simulate(node(gpu, 4), [Job([gpu_mode(gpu, 4)], [1.0], bytes_in=8)])
    assert record.finish == pytest.approx([3.0])


def test_a_gang_across_nodes_holds_its_hosts_in_proportion():
    """A gang of 3 with 3 cores over nodes of 2 GPUs and 2 cores: 2 + 1 GPUs, 2 + 1 cores; then 1 core is left."""
    gpu, cpu = DeviceType("g"), DeviceType("cpu", kind="cpu")
    spec = NodeSpec(cpus=2, cpu_type=cpu, accelerators=((gpu, 2),), count=2)
    gang = gpu_mode(gpu, 3, millicores=3000, span_any=True, span_speed=0.5)
    record = simulate(spec, [Job([gang], [2.0]), Job([cpu_mode(cpu)], [1.0]), Job([cpu_mode(cpu)], [1.0])])
    assert record.finish == pytest.approx([4.0, 1.0, 2.0])  # half rate across nodes; one core for both others


def test_fractions_run_side_by_side_and_never_split_over_two_gpus():
    """Halves and a 0.75 on two GPUs: two halves share the first, the 0.75 takes the second, the next half waits."""
    gpu = DeviceType("g")
    halves = [Job([gpu_mode(gpu, 0.5)], [2.0]) for _ in range(2)]
    record = simulate(node(gpu, 2), [*halves, Job([gpu_mode(gpu, 0.75)], [1.0]), Job([gpu_mode(gpu, 0.5)], [1.0])])
    assert record.start == pytest.approx([0, 0, 0, 1])
    names = [record.places[place][0][0] for place in record.place]
    assert names[0] == names[1] != names[2]


def test_three_thirds_fit_on_one_gpu():
    gpu = DeviceType("g")
    record = simulate(node(gpu), [Job([gpu_mode(gpu, 1 / 3)], [1.0]) for _ in range(3)])
    assert (record.start == 0).all()


def test_mig_slices_and_reconfiguration():
    """Layouts (1/2, 1/2) and (1): halves take slices; a whole GPU needs the other layout, when it is empty."""
    from hetsim.model.device_type import Sharing

    gpu = DeviceType("g", sharing=Sharing("mig", layouts=((0.5, 0.5), (1.0,)), reconfigure=4.0))
    jobs = [Job([gpu_mode(gpu, 0.25)], [2.0]), Job([gpu_mode(gpu, 0.5)], [3.0]), Job([gpu_mode(gpu)], [1.0])]
    record = simulate(node(gpu), jobs)
    assert record.finish == pytest.approx([2.0, 3.0, 8.0])
    assert stage_times(record, 2)["compute_start"] == pytest.approx(7.0)


def test_a_batch_computes_its_fixed_part_once():
    """Three tasks of 1 s each in a mode with 5 s fixed: one launch of 8 s; each carries the batch's stage times."""
    from hetsim.policy import Scheduler, Start

    gpu = DeviceType("g")
    mode = gpu_mode(gpu, fixed=5.0, batch_limit=8, upload=StageTime(fixed=1.0, per_item=0.5))

    class TakeAll(Scheduler):
        def schedule(self, view):
            tasks = list(view.waiting())
            placement = view.first(mode)
            if tasks and placement:
                yield Start(tasks, placement)

    record = simulate(node(gpu), [Job([mode], [1.0]) for _ in range(3)], TakeAll())
    assert record.finish == pytest.approx([10.5] * 3)
    assert record.upload == pytest.approx([2.5] * 3)
    assert len(set(record.batch)) == 1


def test_zero_length_tasks_take_no_time_and_count():
    gpu = DeviceType("g")
    record = simulate(node(gpu), [Job([gpu_mode(gpu)], [0.0]) for _ in range(50)])
    assert (record.status == 1).all()
    assert (record.finish == 0).all()


def test_many_zero_length_tasks_are_no_loop():
    """More tasks at one instant than the limit at which a policy counts as looping."""
    gpu = DeviceType("g")
    mode = gpu_mode(gpu)
    from machines import tasks_of

    from hetsim.engine.simulation import Simulation
    from hetsim.model.cluster import Cluster
    from hetsim.model.record import RunInput
    from hetsim.policy import ListScheduler

    jobs = tasks_of([Job([mode], [0.0])] * 15_000)
    record = Simulation(RunInput("zero", Cluster([node(gpu)]), jobs, ListScheduler())).run()
    assert (record.finish == 0).all()


class Looks(ListScheduler):
    """First come, first served; asks at some rounds when what runs will have ended, or its stage."""

    def __init__(self, every: int):
        super().__init__()
        self.every, self.rounds, self.seen = every, 0, 0

    def schedule(self, view):
        self.rounds += 1
        if self.rounds % self.every == 0:
            self.seen += sum(view.launch_of(task).stage is not None for task in view.running())
        yield from super().schedule(view)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("every", [1, 4])
def test_looking_at_what_runs_changes_nothing(streams, every):
    """On private links the stages of a launch are a few numbers until something looks at them."""
    gpu = DeviceType("g", streams=streams, link=Link(upload=1 * GB, download=2 * GB, latency=0.01))
    draw = np.random.default_rng(5)
    jobs = [
        Job([gpu_mode(gpu)], [float(draw.exponential(2))], arrival=float(n), bytes_in=int(draw.integers(0, 3)) * GB,
            bytes_out=int(draw.integers(0, 3)) * GB)
        for n in range(60)
    ]  # fmt: skip
    looks = Looks(every)
    run = simulation(node(gpu, 2), jobs).input
    unseen, seen = Simulation(run).run(), simulate(node(gpu, 2), jobs, looks)  # what checks the invariants looks too
    assert looks.seen > 10
    for name, column in unseen.launches.items():
        assert np.array_equal(column, seen.launches[name], equal_nan=True), name
    assert unseen.stats["bytes_moved"] == seen.stats["bytes_moved"] > 0
