"""What is free, and where modes fit: random takes, gives, failures and sleep against counting it all again.

The books are a list of what was taken.  A mode fits on a node if the cores, the memory and the accelerators that
it needs are left there; `mask` has to say the same after every change, `first` the lowest such node.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hetsim.engine.resources.capacity import Capacity
from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.device_type import MILLI, WHOLE, DeviceType, micro_share
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement

CPU = DeviceType("cpu", kind="cpu")
ONE, TWO = DeviceType("one", memory=10), DeviceType("two", streams=2, memory=10)
NODES = [
    NodeSpec(cpus=4, cpu_type=CPU, memory=20, accelerators=((ONE, 3),), count=2),
    NodeSpec(cpus=2, cpu_type=CPU, memory=20, accelerators=((ONE, 1), (TWO, 2)), count=2),
]
MODES = [
    Mode("bare", ONE, gpus=1, share=WHOLE),
    Mode("pair", ONE, gpus=2, share=WHOLE),
    Mode("pair with cores", ONE, gpus=2, share=WHOLE, millicores=2 * MILLI, memory=3),
    Mode("memory", ONE, gpus=1, share=WHOLE, gpu_memory=4, millicores=MILLI),
    Mode("part", ONE, gpus=1, share=micro_share(0.4), gpu_memory=3),
    Mode("two streams", TWO, gpus=1, share=WHOLE),
    Mode("two streams, memory", TWO, gpus=1, share=WHOLE, gpu_memory=6),
    Mode("two streams, pair", TWO, gpus=2, share=WHOLE),
    Mode("core", CPU, millicores=MILLI),
    Mode("cores", CPU, millicores=2 * MILLI, memory=7),
    Mode("bound", ONE, gpus=1, share=WHOLE, partition=Partition("p", mask=0b0110)),
    Mode("bound pair", ONE, gpus=2, share=WHOLE, partition=Partition("p", mask=0b0010)),
]


class Books:
    """What is taken, and by it what is left."""

    def __init__(self, capacity: Capacity):
        self.capacity = capacity
        self.taken: list[tuple[Placement, int, Any]] = []
        self.off: set[int] = set()
        """Devices that are down or asleep."""

    def left(self, node: Any) -> tuple[int, int]:
        here = [placement.mode for placement, _, _ in self.taken if placement.devices[0].node == node.index]
        memory = node.memory - sum(mode.memory for mode in here)
        return node.cpus * MILLI - sum(mode.millicores for mode in here), memory

    def takes(self, device: Any, mode: Mode) -> bool:
        on = [placement.mode for placement, _, _ in self.taken if device in placement.devices]
        share = device.type.streams * WHOLE - sum(one.share for one in on)
        memory = device.type.memory - sum(one.gpu_memory for one in on)
        return device.index not in self.off and mode.share <= share and mode.gpu_memory <= memory

    def fits(self, node: Any, mode: Mode) -> bool:
        cores, memory = self.left(node)
        if mode.millicores > cores or mode.memory > memory or node.cpu.index in self.off:
            return False
        if mode.partition is not None and not mode.partition.mask >> node.index & 1:
            return False
        if not mode.gpus:
            return True
        return sum(device.type is mode.type and self.takes(device, mode) for device in node.accelerators) >= mode.gpus

    def take(self, placement: Placement, slowly: bool) -> None:
        launch = object()
        cores = -1 if slowly else self.capacity.quick_take(placement)
        if cores < 0:
            assert self.capacity.refusal(placement) is None
            cores = self.capacity.take(placement, launch)
        assert cores.bit_count() == (0 if placement.mode.gpus else placement.mode.millicores // MILLI)
        self.taken.append((placement, cores, launch))

    def give(self, number: int, slowly: bool) -> None:
        placement, cores, launch = self.taken.pop(number)
        if slowly or len(placement.devices) > 1:
            self.capacity.give(placement, launch, cores)
        else:
            self.capacity.quick_give(placement, cores)

    def toggle(self, state: Any, asleep: bool) -> None:
        self.off ^= {state.device.index}
        if asleep and state.device.type is not CPU:
            state.asleep = not state.asleep
        else:
            state.up = not state.up
        state.normal = state.up and not state.asleep
        self.capacity.changed(state)


@pytest.mark.parametrize("limit", [3, 10_000], ids=["a short log", "a long log"])
@pytest.mark.parametrize("seed", range(3))
def test_where_modes_fit_after_random_changes(seed, limit):
    random = np.random.default_rng(seed)
    cluster = Cluster(NODES)
    capacity = Capacity(cluster)
    capacity._log_limit = limit
    capacity.moved = moved = []
    books = Books(capacity)
    off: list[tuple[Any, bool]] = []
    for _ in range(250):
        mode = MODES[random.integers(len(MODES))]
        slowly = bool(random.random() < 0.3)
        act = random.random()
        if act < 0.55:
            nodes = [node.index for node in cluster.nodes if books.fits(node, mode)]
            assert capacity.mask(mode) == sum(1 << number for number in nodes), mode.name
            assert len(capacity.log) <= limit or mode.bare
            placement = capacity.first(mode)
            assert (placement is None) == (not nodes), mode.name
            if placement is not None:
                assert {device.node for device in placement.devices} == {nodes[0]}
                assert all(books.takes(device, mode) for device in placement.devices if mode.gpus)
                moved.clear()
                books.take(placement, slowly)
                assert {state.device for state in moved} == (set(placement.devices) if mode.gpus else set())
        elif act < 0.9 and books.taken:
            releases, number = capacity.releases, int(random.integers(len(books.taken)))
            given = books.taken[number][0]
            moved.clear()
            books.give(number, slowly)
            assert capacity.releases > releases
            assert {state.device for state in moved} == (set(given.devices) if given.mode.gpus else set())
        elif off and random.random() < 0.6:
            books.toggle(*off.pop())
        else:
            idle = [state for state in capacity.of if state.device.index not in books.off and not any(
                state.device.node == placement.devices[0].node for placement, _, _ in books.taken)]  # fmt: skip
            if idle:
                off.append((idle[random.integers(len(idle))], bool(random.random() < 0.5)))
                books.toggle(*off[-1])
    while off:
        books.toggle(*off.pop())
    while books.taken:
        books.give(0, False)
    for state in capacity.nodes:
        assert (state.cpu_free, state.mem_free) == (state.node.cpus * MILLI, 20)
        assert state.cores == (1 << state.node.cpus) - 1
        assert all((gpu.free, gpu.room) == (gpu.device.type.streams * WHOLE, 10) for gpu in state.gpus)
    assert 0 < capacity.peak_memory() <= 10


def test_without_accelerators_none_of_their_memory_is_ever_held():
    assert Capacity(Cluster([NodeSpec(cpus=1)])).peak_memory() == 0


def test_a_gang_over_nodes_stays_in_its_partition():
    """Three of its GPUs are on one of the partition's nodes and one is on the other; both other nodes are free."""
    mode = Mode("gang", ONE, gpus=4, share=WHOLE, span_any=True, partition=Partition("p", mask=0b0110))
    capacity = Capacity(Cluster(NODES))
    placement = capacity.first(mode)
    assert placement is not None
    assert [device.name for device in placement.devices] == ["n1/g0", "n1/g1", "n1/g2", "n2/g0"]
    assert capacity.refusal(placement) is None
    capacity.take(placement, None)
    assert capacity.first(mode) is None


def refused(mode: Mode, *names: str, **parts: Any) -> str:
    capacity = Capacity(Cluster(NODES))
    devices = tuple(capacity.cluster.by_name[name] for name in names)
    return str(capacity.refusal(Placement(mode, devices, **parts)))


def test_refusals_say_what_is_wrong():
    bare, pair, core = MODES[0], MODES[1], MODES[8]
    assert refused(bare, "n0/g0") == refused(pair, "n0/g0", "n0/g2") == refused(core, "n3/cpu") == "None"
    assert "needs 1 different devices; got 2" in refused(bare, "n0/g0", "n0/g1")
    assert "needs 2 different devices; got 2" in refused(pair, "n0/g0", "n0/g0")
    assert "is of type two and mode bare runs on one" in refused(bare, "n2/g1")
    assert "mode pair does not span nodes" in refused(pair, "n0/g0", "n1/g0")
    assert "n0/g0 is not in partition" in refused(MODES[10], "n0/g0")
    assert "needs 1 cores; got 2" in refused(core, "n0/cpu", cores=(0, 1))
    assert refused(core, "n0/cpu", cores=(3,)) == "None"
    foreign = Cluster(NODES).by_name["n0/g0"]
    assert "is not a device of this cluster" in str(Capacity(Cluster(NODES)).refusal(Placement(bare, (foreign,))))
    halves = dataclasses.replace(pair, name="halves", span_any=True, node_count=2)
    assert refused(halves, "n0/g0", "n1/g2") == "None"
    assert "needs equal parts of 2 nodes; got 1 nodes" in refused(halves, "n0/g0", "n0/g1")


def test_named_cores_are_taken_and_no_others():
    capacity = Capacity(Cluster(NODES))
    cpu = capacity.cluster.by_name["n0/cpu"]
    placement = Placement(MODES[9], (cpu,), cores=(1, 3))
    assert capacity.quick_take(placement) == -1
    assert capacity.take(placement, None) == 0b1010
    assert "a named core of n0 is busy" in str(capacity.refusal(Placement(MODES[8], (cpu,), cores=(3,))))
    assert capacity.quick_take(Placement(MODES[9], (cpu,))) == 0b0101
    assert "0 cores free and the mode needs 1" in str(capacity.refusal(Placement(MODES[8], (cpu,))))
