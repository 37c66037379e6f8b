"""Runs of every kind, by name, for tests that compare whole runs: random decisions, faults, batches of requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hetsim.model.faults import FaultEvent
from hetsim.policy.contract import Scheduler
from hetsim.policy.decisions import Drop, Fetch, Move, Partition, Set, Start, Stop, Wait
from hetsim.scenario.scenario import load
from hetsim.testing.generate import random_system

Case = tuple[str, Callable[[], Any]]


class Chaos(Scheduler):
    """Starts, stops, moves, sets, fetches and drops at random, and looks around."""

    def __init__(self, seed: int, calm: float = 40.0):
        self.draw = np.random.default_rng(seed)
        self.calm = calm

    def schedule(self, view: Any) -> Iterator[Any]:
        draw = self.draw
        wild = view.now < self.calm
        sliced = [one for one in view.cluster.devices if view.slices(one)]
        for device in () if wild else sliced:
            yield Partition(device, None)
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement is not None and (not wild or draw.random() < 0.8):
                yield Start(task, placement)
        running = view.running("start")
        if wild and running and draw.random() < 0.3:
            task = running[int(draw.integers(len(running)))]
            if task.shape.preemptible:
                yield Stop(task, keep=bool(draw.random() < 0.7))
        running = view.running("start")
        if wild and running and draw.random() < 0.2:
            task = running[int(draw.integers(len(running)))]
            if task.shape.preemptible and len(view.launch_of(task).tasks) == 1:
                target = view.fit(task)
                if target is not None and not set(target.devices) & set(view.launch_of(task).placement.devices):
                    yield Move(task, target)
        if wild and draw.random() < 0.3:
            device = view.cluster.devices[int(draw.integers(len(view.cluster.devices)))]
            yield Set(device, float(draw.choice([0.5, 0.8, 1.0, 1.3])))
        if wild and view.items and draw.random() < 0.4:
            gpus = [device for node in view.cluster.nodes for device in node.accelerators]
            if gpus:
                gpu, item = gpus[int(draw.integers(len(gpus)))], int(draw.integers(len(view.items)))
                holders = view.holders(item)
                if gpu in holders and len(holders) > 1 and draw.random() < 0.5:
                    if not view.running("start", gpu):
                        yield Drop(item, gpu)
                elif holders and gpu not in holders and view.load(gpu) < 1:
                    yield Fetch(item, gpu)
        if wild and sliced and draw.random() < 0.4:
            yield from self.partition(sliced[int(draw.integers(len(sliced)))], view)
        later = view.now + float(draw.exponential(0.7))
        yield Wait(later if wild and view.num_waiting() + len(view.running()) else float("inf"))

    def partition(self, device: Any, view: Any) -> Iterator[Any]:
        """One of the layouts that contain the busy slices, or none of the policy's own."""
        idle, there = list(view.slices(device, idle=True)), list(view.slices(device))
        for one in idle:
            there.remove(one)
        sharing = device.type.sharing
        cuts = [cut for cut in sharing.cuts if all(cut.count(one) >= there.count(one) for one in there)]
        if not there or sharing.recut == "idle":
            yield Partition(device, cuts[int(self.draw.integers(len(cuts)))])
        if self.draw.random() < 0.6:
            yield Partition(device, None)


def chaotic(seeds: int, first: int = 0, faults: bool = True) -> Iterator[Case]:
    def build(seed: int) -> Any:
        system = random_system(seed, nodes=1 + seed % 3, tasks=20)
        run = system.run_input(Chaos(seed))
        if faults and seed % 2:
            draw = np.random.default_rng(seed)
            devices = run.cluster.devices
            for _ in range(4):
                device = int(draw.integers(len(devices)))
                begin = float(draw.exponential(8))
                kind = str(draw.choice(["fail", "slow"]))
                run.faults += fault_events(kind, device, begin, begin + float(draw.exponential(3)))
        return run

    for seed in range(first, first + seeds):
        yield f"chaos {seed}", lambda s=seed: build(s)


def fault_events(kind: str, device: int, begin: float, end: float) -> list[Any]:
    there, back = ("down", "up") if kind == "fail" else ("slow", "slow")
    return [FaultEvent(begin, device, there, 2.0), FaultEvent(end, device, back, 1.0)]


COSTS = {
    "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
    "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
    "download": {"fixed": "0.05 ms"},
}


def service(gpus: int = 1, rate: str = "400/s", horizon: str | None = "4 s", pcie: Any = None, policy: Any = None,
            streams: int = 2, more: Any = None, entry: Any = None, **details: Any) -> dict[str, Any]:  # fmt: skip
    described = {
        "name": "web", "arrivals": {"process": "poisson", "rate": rate}, "slo": "250 ms",
        "service": {**copy.deepcopy(COSTS), **details}, **(entry or {}),
    }  # fmt: skip
    node = {"cpus": 4, "gpus": {"type": "g", "count": gpus, "streams": streams}, "pcie": pcie or {"upload": "5 GB/s"}}
    found = {"name": "s", "cluster": {"nodes": node}, "workload": [described], "policy": policy or {}, **(more or {})}
    return found | ({"horizon": horizon} if horizon else {})


FAULT = {"on": "n0/g0", "every": {"distribution": "exponential", "mean": "1 s"}, "repair": "0.3 s"}
SERVICES: dict[str, dict[str, Any]] = {
    "plain": {}, "one stream": {"streams": 1}, "three streams": {"streams": 3, "rate": "600/s"},
    "three GPUs": {"gpus": 3, "rate": "1300/s"}, "noise": {"noise": "5%"},
    "async": {"policy": {"batching": "async_linear"}}, "async 3": {"gpus": 3, "rate": "1500/s", "policy": "sjf"},
    "network": {"network": {"request": "2 ms", "response": "3 ms"}},
    "network, drained": {"network": "2 ms", "horizon": None, "entry": {"count": 1000}},
    "bytes": {"pcie": {"upload": "5 GB/s", "download": "3 GB/s", "latency": "10 us"},
              "entry": {"bytes_in": "600 kB", "bytes_out": "4 kB"}},
    "half duplex": {"pcie": {"upload": "1 GB/s", "duplex": "half"}},
    "half duplex, 3 streams": {"pcie": {"upload": "1 GB/s", "duplex": "half"}, "streams": 3},
    "no limits": {"pcie": {"latency": "1 us"}}, "overload": {"rate": "1500/s", "horizon": "2 s"},
    "drawn sizes": {"compute": {"per_item": {"distribution": "exponential", "mean": "1 ms"}, "fixed": "13 ms"}},
    "admission": {"policy": {"admission": "accept_all"}},
    "queue limit": {"policy": {"admission": {"name": "queue_limit", "limit": 20}}, "rate": "900/s"},
    "patience": {"entry": {"patience": "60 ms"}, "rate": "800/s"},
    "edf": {"policy": {"scheduler": "edf"}},
    "faults": {"more": {"faults": [FAULT]}, "gpus": 2},
    "fixed": {"policy": {"batching": {"name": "fixed_size", "size": 16}}},
    "overhead": {"policy": {"batching": "serial_greedy"}, "streams": 1, "noise": "3%"},
}  # fmt: skip


def services() -> Iterator[Case]:
    for name, parts in SERVICES.items():
        for seed in (1, 2):
            yield f"service {name}, seed {seed}", lambda p=parts, s=seed: load(service(**copy.deepcopy(p))).build(s)
