"""Data have places: uploads of what is missing only, hops, eviction, results that stay."""

from __future__ import annotations

import pytest
from machines import Job, Scripted, cpu_mode, gpu_mode, simulate, simulation, stage_times

from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.tasks import Item
from hetsim.policy import Drop, Fetch

GPU = DeviceType("g", memory=100, link=Link(upload=10.0, download=5.0))
MODE = gpu_mode(GPU)
CPU = DeviceType("cpu", kind="cpu")


def node(count: int = 1, nodes: int = 1) -> NodeSpec:
    network = Link(upload=2.0, download=2.0)
    return NodeSpec(cpus=2, cpu_type=CPU, accelerators=((GPU, count),), count=nodes, network=network)


def on(*names: str) -> Scripted:
    """Row i runs on names[i]."""
    return Scripted(where={row: (name,) for row, name in enumerate(names)})


def test_only_what_is_missing_is_uploaded():
    """Weights of 20 bytes at 10 B/s: the first task uploads 2 s, the second finds them there."""
    jobs = [Job([MODE], [1.0], reads=(0,)), Job([MODE], [1.0], reads=(0,))]
    record = simulate(node(), jobs, items=[Item("weights", 20)])
    assert record.finish == pytest.approx([3.0, 4.0])
    assert record.upload == pytest.approx([2.0, 0.0])


def test_a_result_stays_on_the_device_where_it_was_made():
    """Producer and consumer on one GPU: no transfer at all between them; only the final result downloads.

    Producer 1 s; consumer 1 s, its result of 10 bytes has no reader: 2 s down at 5 B/s.
    """
    items = [Item("middle", 20), Item("final", 10)]
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), writes=(1,), after=(0,))]
    record = simulate(node(), jobs, items=items)
    assert record.finish == pytest.approx([1.0, 4.0])


def test_a_consumer_elsewhere_pays_device_host_network_device():
    """20 bytes: down at 5 B/s 4 s, network at 2 B/s 10 s, up at 10 B/s 2 s."""
    items = [Item("middle", 20)]
    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), after=(0,))]
    for place, transfer in (("n0/g0", 0.0), ("n0/g1", 6.0), ("n1/g0", 16.0), ("n0/cpu", 4.0), ("n1/cpu", 14.0)):
        modes = [cpu_mode(CPU) if "cpu" in place else MODE]
        jobs[1] = Job(modes, [1.0], reads=(0,), after=(0,))
        record = simulate(node(2, 2), jobs, on("n0/g0", place), items=items)
        assert record.finish[1] == pytest.approx(2.0 + transfer), place


def test_the_nearest_copy_is_taken():
    """The host has a copy (an input): another GPU's copy is not asked, though it is there as well."""
    jobs = [Job([MODE], [1.0], reads=(0,)), Job([MODE], [1.0], reads=(0,), arrival=10.0)]
    record = simulate(node(2), jobs, on("n0/g0", "n0/g1"), items=[Item("input", 20)])
    assert record.upload == pytest.approx([2.0, 2.0])


def test_an_input_with_a_home_comes_over_the_network():
    """20 bytes at home on n1: network 10 s, up 2 s."""
    record = simulate(node(1, 2), [Job([MODE], [1.0], reads=(0,))], on("n0/g0"), items=[Item("input", 20, home=1)])
    assert record.finish == pytest.approx([13.0])


def test_least_recently_used_items_are_evicted():
    """Three items of 40 bytes on a GPU of 100: reading c evicts b (a was used later), so a is still there."""
    items = [Item(name, 40) for name in "abc"]
    order = [0, 1, 0, 2, 0, 1]
    jobs = [Job([MODE], [1.0], arrival=10.0 * i, reads=(item,)) for i, item in enumerate(order)]
    record = simulate(node(), jobs, items=items)
    assert record.upload == pytest.approx([4, 4, 0, 4, 0, 4])


def test_an_only_copy_is_written_back_before_the_newcomer_begins():
    """A result of 60 bytes without other copy; a launch that needs 50 of 100: write-back 60 / 5 = 12 s first."""
    items = [Item("result", 60)]
    big = gpu_mode(GPU, gpu_memory=50)
    jobs = [
        Job([MODE], [1.0], writes=(0,)),
        Job([big], [1.0], arrival=1.0),
        Job([MODE], [1.0], reads=(0,), after=(0, 1), arrival=1.0),
    ]
    record = simulate(node(), jobs, items=items)
    assert record.finish == pytest.approx([1.0, 14.0, 21.0])
    assert stage_times(record, 1)["start"] == pytest.approx(13.0)


def test_memory_in_use_is_never_evicted():
    """Two launches in flight with 60 bytes of data each on a GPU of 100 with two streams: one after the other."""
    gpu = DeviceType("g", memory=100, streams=2, link=Link(upload=10.0, download=10.0))
    mode = gpu_mode(gpu)
    jobs = [Job([mode], [1.0], reads=(0,)), Job([mode], [1.0], reads=(1,))]
    spec = NodeSpec(accelerators=((gpu, 1),))
    record = simulate(spec, jobs, items=[Item("a", 60), Item("b", 60)])
    assert record.finish == pytest.approx([7.0, 14.0])


def test_prefetch_and_drop():
    """Fetched at 0 (2 s), used at 5 without upload; dropped at 7, so uploaded again at 10."""
    device = "n0/g0"
    script = [
        (0.0, lambda view: [Fetch(0, view.cluster.by_name[device])]),
        (7.0, lambda view: [Drop(0, view.cluster.by_name[device])]),
    ]
    jobs = [Job([MODE], [1.0], arrival=5.0, reads=(0,)), Job([MODE], [1.0], arrival=10.0, reads=(0,))]
    jobs.insert(0, Job([cpu_mode(CPU)], [0.1]))  # somebody to be there at 0
    record = simulate(node(), jobs, Scripted(script), items=[Item("weights", 20)])
    assert record.upload == pytest.approx([0.0, 0.0, 2.0])


def test_a_rewritten_item_voids_other_copies():
    """g0 and g1 read x; a task on g0 rewrites it; the next reader on g1 must fetch it anew (6 s)."""
    jobs = [
        Job([MODE], [1.0], reads=(0,)),
        Job([MODE], [1.0], reads=(0,)),
        Job([MODE], [1.0], arrival=10.0, reads=(0,), writes=(0,)),
        Job([MODE], [1.0], arrival=20.0, reads=(0,), after=(2,)),
    ]
    record = simulate(node(2), jobs, on("n0/g0", "n0/g1", "n0/g0", "n0/g1"), items=[Item("x", 20, home=0)])
    assert record.upload == pytest.approx([2.0, 2.0, 0.0, 6.0])


def test_items_read_by_nobody_any_more_are_dropped():
    run = simulation(
        node(),
        [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), after=(0,))],
        items=[Item("middle", 20)],
    )
    run.run()
    assert run.state.places.where[0] == {}
    assert run.state.places.on(run.input.cluster.by_name["n0/g0"]).unpinned == 0


def test_the_view_tells_where_data_lie_and_what_they_cost():
    seen = {}

    class Curious(Scripted):
        def schedule(self, view):
            for task in list(view.waiting()):
                if task.index == 1:
                    for name in ("n0/g0", "n0/g1", "n1/g0"):
                        device = view.cluster.by_name[name]
                        placement = self.place_named(task, view).__class__(MODE, (device,))
                        seen[name] = view.duration(task, placement)
                    seen["holders"] = view.holders(0)
            yield from super().schedule(view)

    jobs = [Job([MODE], [1.0], writes=(0,)), Job([MODE], [1.0], reads=(0,), after=(0,))]
    simulate(node(2, 2), jobs, Curious(), items=[Item("middle", 20)])
    assert seen["n0/g0"] == pytest.approx(1.0)
    assert seen["n0/g1"] == pytest.approx(7.0)
    assert seen["n1/g0"] == pytest.approx(17.0)
    assert [device.name for device in seen["holders"]] == ["n0/g0"]
