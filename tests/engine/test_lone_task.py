"""A task that is alone and that one device can run: nothing that goes wrong makes it end earlier."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from machines import Job, Scripted, gpu_mode, simulation

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.exchange import link_names
from hetsim.model.faults import FaultEvent, FaultProcess, Maintenance
from hetsim.model.tasks import Item
from hetsim.policy import Set

HORIZON = 400.0


@dataclasses.dataclass
class Lone:
    """A drawn system: nodes with two GPUs each, of which the first ones run the one task."""

    work: float
    size: int
    gpus: int
    stopping: Stopping
    rate: float
    network: float
    latency: float
    home: int
    sets: list[tuple[float, float]]
    faults: list

    def finish(self) -> float:
        """When the task ends; inf if it does not by the horizon."""
        kind = DeviceType("g", link=Link(self.rate, self.rate, self.latency))
        network = Link(self.network, self.network, self.latency)
        here = NodeSpec(name="n", accelerators=((kind, self.gpus),), network=network)
        away = NodeSpec(name="m", cpus=4, network=network)
        job = Job([gpu_mode(kind, self.gpus)], [self.work], bytes_in=self.size, bytes_out=self.size, reads=(0,),
                  stopping=self.stopping)  # fmt: skip
        script = [(time, lambda view, f=f: [Set(view.cluster.by_name["n/g0"], f)]) for time, f in self.sets]
        run = simulation([here, away], [job], Scripted(script), [Item("x", self.size, home=self.home)], horizon=HORIZON,
                         faults=list(self.faults))  # fmt: skip
        finish = float(run.run().finish[0])
        return finish if finish == finish else math.inf


def drawn_fault(random: np.random.Generator, targets: list[int]):
    """A process, a maintenance or two rows of a file, on any of some devices."""
    device, start = int(random.choice(targets)), float(random.uniform(0, 40))
    length, factor = float(random.uniform(0.1, 30)), float(random.choice([1.5, 2.0, 4.0]))
    slow, kind = random.random() < 0.7, random.choice([0, 0, 1, 2, 2])
    if kind == 0:
        every = float(random.uniform(5, 40))
        return [FaultProcess("f", (device,), lambda _, n: np.full(n, every), lambda _, n: np.full(n, length),
                             factor if slow else None)]  # fmt: skip
    if kind == 1:
        return [Maintenance((targets[0],), start, length, start - min(start, 5.0), bool(random.integers(2)))]
    source = str(random.integers(1 << 30))
    first, last = ("slow", "slow") if slow else ("down", "up")
    return [FaultEvent(start, device, first, factor, source), FaultEvent(start + length, device, last, 1.0, source)]


def drawn(seed: int) -> tuple[np.random.Generator, Lone]:
    random = np.random.default_rng(seed)
    gpus = int(random.integers(1, 3))
    interval = float(random.choice([math.inf, 1.0, 3.0]))
    # To restore takes less than an interval: else a task with less work done may well be ahead of another.
    stopping = Stopping(restore=float(random.choice([0.0, 0.2])), state=int(random.choice([0, 1])), interval=interval)
    sets = [(float(random.uniform(0, 30)), float(random.choice([0.5, 0.75, 1.0]))) for _ in range(random.integers(3))]
    faults = [one for _ in range(random.integers(1, 5)) for one in drawn_fault(random, [0, 1, 1, gpus])]
    return random, Lone(float(random.uniform(1, 40)), int(random.integers(0, 40)), gpus, stopping,
                        float(random.choice([5.0, 20.0])), float(random.choice([5.0, 20.0])),
                        float(random.choice([0.0, 0.1])), 0, sets, faults)  # fmt: skip


@pytest.mark.quick(0)
@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_another_fault_a_slower_link_or_a_farther_input_never_makes_it_earlier(first):
    changed = 0
    for seed in range(first, first + (40 if first == 0 else 400)):
        random, lone = drawn(seed)
        finish = lone.finish()
        more = list(lone.faults)
        place = int(random.integers(len(more) + 1))
        more[place:place] = drawn_fault(random, [0, 1, 1, lone.gpus])
        for change in ({"faults": more}, {"rate": lone.rate / 2}, {"network": lone.network / 2, "home": 1},
                       {"latency": lone.latency + 0.3}, {"home": 1}):  # fmt: skip
            later = dataclasses.replace(lone, **change).finish()
            assert later >= finish * (1 - 1e-12), (seed, change, finish, later)
            changed += later > finish
    assert changed > 40


LOADS = {
    "task": {"gpu_time": "20 s"},
    "gang": {"gpus": 2, "gpu_time": "20 s", "stopping": {"interval": "3 s"}},
    "fraction": {"gpus": 0.5, "gpu_time": "20 s", "stopping": {"interval": "3 s"}},
    "cores": {"cpu_time": "20 s", "cpus": 4},
    "request": {"service": {"compute": {"per_item": "20 s"}}},
    "tokens": {"service": {"kind": "llm", "step": {"fixed": "100 ms"}}, "tokens": {"prompt": 10, "output": 200}},
    "job": {"nodes": 2, "cpu_time": "20 s", "communication": {"pattern": "ring", "bytes": "1 GB", "every": "1 s"}},
}  # fmt: skip


def windows(fault, faults: list) -> list[tuple[int, float, float, float]]:
    """Each (device, beginning, end, factor) of a fault; inf: down.  Of the rows of a file the first tells of both."""
    if isinstance(fault, FaultEvent):
        first, last = (one for one in faults if isinstance(one, FaultEvent) and one.source == fault.source)
        factor = first.factor if first.what == "slow" else math.inf
        return [(first.device, first.time, last.time, factor)] if fault is first else []
    if isinstance(fault, Maintenance):
        return [(device, fault.start, fault.end, math.inf) for device in fault.devices]
    (between,), (lasting,) = fault.between(None, 1), fault.lasting(None, 1)
    starts = np.arange(between, HORIZON, between + lasting).tolist()
    factor = math.inf if fault.factor is None else fault.factor
    return [(device, start, start + lasting, factor) for device in fault.devices for start in starts]


def told_by_one(faults: list) -> list[FaultEvent]:
    """The same faults as rows of a single file, with the product of all factors at each change."""
    rows, every = [], [window for fault in faults for window in windows(fault, faults)]
    for device in sorted({window[0] for window in every}):
        mine, was_down = [window for window in every if window[0] == device], False
        for time in sorted({time for _, start, end, _ in mine for time in (start, end)}):
            factors = [factor for _, start, end, factor in mine if start <= time < end]
            rows.append(FaultEvent(time, device, "slow", math.prod(f for f in factors if f < math.inf)))
            if (math.inf in factors) != was_down:
                was_down = not was_down
                rows.append(FaultEvent(time, device, "down" if was_down else "up"))
    return sorted(rows, key=lambda row: row.time)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", LOADS)
def test_sources_of_faults_do_what_one_does_that_tells_their_product(name):
    """Factors of faults that overlap multiply, failures add up; of devices and of links, whatever runs there."""
    nodes = {"cpus": 4} if name == "cores" else {"gpus": {"type": "g", "count": 1 + (name == "gang")}}
    if name == "job":
        nodes = {"count": 2, "cpus": 1, "network": {"out": "100 GB/s"}}
    document = {
        "name": "s",
        "cluster": {"nodes": nodes},
        "horizon": f"{HORIZON} s",
        "policy": "fcfs",
        "workload": [{"name": "w", "arrivals": {"process": "all_at_once", "count": 1}, **LOADS[name]}],
    }
    if name == "job":
        document["cluster"]["racks"] = {"nodes": 1, "uplink": "2 GB/s"}
    ends = set()
    for seed in range(6):
        random, run = np.random.default_rng(seed), hs.load(document).build()
        targets = [device.index for device in run.cluster.devices]
        targets += [len(targets) + place for place in range(len(link_names(run.cluster)) if name == "job" else 0)]
        faults = [one for _ in range(4) for one in drawn_fault(random, targets + targets[1:])]
        faults = [dataclasses.replace(one, drain=False) if isinstance(one, Maintenance) else one for one in faults]
        ended = []
        for run.faults in (faults, told_by_one(faults)):
            ended.append(Simulation(run, check=True).run().finish[0])
            run = hs.load(document).build()
        assert ended[0] == pytest.approx(ended[1], rel=1e-12, nan_ok=True), seed
        ends.add(ended[0])
    assert len(ends) > 4
