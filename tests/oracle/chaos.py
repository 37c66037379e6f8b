"""Random systems of GPUs, and a policy that decides at random and keeps a log of what it decided."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import WHOLE, DeviceType, Link, Preemption, Sharing
from hetsim.model.faults import FaultEvent
from hetsim.model.mode import Mode, Shape
from hetsim.model.randomness import RandomTree
from hetsim.model.record import RunInput
from hetsim.model.tasks import Tasks
from hetsim.policy import Move, Scheduler, Set, Start, Stop, Wait
from oracle.fluid_replay import FluidReplay, Gpu, Wire, Work

GB = 1e9
SWITCH_COST, INTERFERENCE = 0.1, 0.2


@dataclass
class Drawn:
    """A system: a cluster of equal nodes, a load, faults, and how often tasks are stopped and frequencies set."""

    kind: DeviceType
    node: NodeSpec
    tasks: Tasks
    faults: list[FaultEvent]
    stops: float
    sets: float

    def run_input(self, scheduler: Scheduler, *more: NodeSpec, horizon: float = math.inf) -> RunInput:
        return RunInput("drawn", Cluster([self.node, *more]), self.tasks, scheduler, None, RandomTree(1),
                        faults=list(self.faults), horizon=horizon, policy="drawn")  # fmt: skip

    def replay(self) -> FluidReplay:
        """The same system as the replay describes it."""
        link, switch, spec = self.kind.link, self.node.switch, self.node
        network = Wire(spec.network.upload, spec.network.download, spec.network.duplex == "half")
        gpus = {}
        for node in Cluster([spec]).nodes:
            for one in node.accelerators:
                hangs = None
                if spec.switch_size:
                    wire = Wire(switch.upload, switch.download, switch.duplex == "half")
                    hangs = ((one.node, one.local // spec.switch_size), wire)
                wire = Wire(link.upload, link.download, link.duplex == "half")
                kind = self.kind.sharing.kind
                gpus[one.index] = Gpu(one.index, wire, link.latency, hangs, kind, SWITCH_COST, INTERFERENCE,
                                      node=one.node, network=network, network_latency=spec.network.latency,
                                      saves_at=self.kind.preemption.rate)  # fmt: skip
        bytes_in, bytes_out = (
            [0] * len(self.tasks) if column is None else column.tolist()
            for column in (self.tasks.bytes_in, self.tasks.bytes_out)
        )
        states = [self.tasks.shapes[code].stopping.state for code in self.tasks.shape]
        works = [Work(*row) for row in zip(self.tasks.time.tolist(), bytes_in, bytes_out, states, strict=True)]
        return FluidReplay(gpus, works)


def drawn(seed: int, name: str = "g", scale: float = 1.0) -> Drawn:
    """Draw a system; `scale` multiplies all its times, and divides its rates."""
    draw = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    sharing = one("exclusive", "exclusive", "timeslice", "mps")
    transfers = bool(draw.random() < 0.8)
    link = switch = Link()
    switch_size = one(None, 2) if transfers else None
    if transfers:
        link = Link(one(2, 4) * GB / scale, one(1, 3) * GB / scale, one(0.0, 0.0, 0.05) * scale, one("full", "half"))
    if switch_size:
        switch = Link(one(3, 5) * GB / scale, one(2, 5) * GB / scale, duplex=one("full", "half"))
    streams = one(1, 2, 3) if sharing == "exclusive" else 4 if sharing == "timeslice" else 1
    shared = {"timeslice": Sharing("timeslice", switch_cost=SWITCH_COST),
              "mps": Sharing("mps", interference=INTERFERENCE)}.get(sharing, Sharing())  # fmt: skip
    kind = DeviceType(name, streams=streams, link=link, sharing=shared)
    nodes, gpus = int(draw.integers(1, 3)), int(draw.integers(1, 4))
    node = NodeSpec(cpus=4, accelerators=((kind, gpus),), switch_size=switch_size, switch=switch, count=nodes,
                    network=_network(seed, scale) if transfers else Link())  # fmt: skip
    state, kind = _state(seed, kind, scale)
    node = replace(node, accelerators=((kind, gpus),))
    modes = [Mode("one", kind, gpus=1, share=WHOLE)]
    if gpus > 1 and draw.random() < 0.5:
        modes.append(Mode("two", kind, gpus=2, share=WHOLE))
    if sharing in ("timeslice", "mps") or (draw.random() < 0.3 and not state):
        modes += [Mode("half", kind, gpus=1, share=WHOLE // 2), Mode("quarter", kind, gpus=1, share=WHOLE // 4)]
    shapes = [
        Shape([mode for mode in modes if draw.random() < 0.6] or [one(*modes)], Stopping(state=state))
        for _ in range(int(draw.integers(1, 4)))
    ]
    tasks = _tasks(draw, shapes, transfers, scale)
    devices = [one.index for node in Cluster([node]).nodes for one in node.accelerators]
    faults = list(_faults(draw, devices, scale))
    return Drawn(kind, node, tasks, faults, stops=one(0, 0.02, 0.05), sets=one(0, 0, 0.1))


def _network(seed: int, scale: float) -> Link:
    draw = random.Random(f"network {seed}")
    return Link(draw.choice([1, 2, 4]) * GB / scale, draw.choice([1, 2, 4]) * GB / scale,
                draw.choice([0.0, 0.0, 0.03]) * scale, draw.choice(["full", "half"]))  # fmt: skip


def _state(seed: int, kind: DeviceType, scale: float) -> tuple[int, DeviceType]:
    """Bytes of state of all tasks, and a type that may save them in its own memory: where a GPU has one launch."""
    draw = random.Random(f"state {seed}")
    if kind.streams > 1 or kind.sharing.kind != "exclusive" or draw.random() < 0.3:
        return 0, kind
    preemption = draw.choice([Preemption(), Preemption(rate=8 * GB / scale)])
    return round(draw.uniform(0.2, 2) * GB), replace(kind, preemption=preemption)


def _tasks(draw: np.random.Generator, shapes: list[Shape], transfers: bool, scale: float) -> Tasks:
    count = int(draw.integers(10, 40))
    shape = draw.integers(0, len(shapes), count).astype(np.int32)
    time = np.round(draw.exponential(2.0, (count, max(len(one.modes) for one in shapes))), 6) + 0.01
    for row, code in enumerate(shape):
        time[row, len(shapes[code].modes) :] = math.inf
    arrival = np.sort(np.round(draw.uniform(0, count * 0.6, count), 6))
    columns = {}
    if transfers:
        for name in ("bytes_in", "bytes_out"):
            size = draw.integers(0, 4, count) * draw.uniform(0.5, 1.5, count) * GB
            columns[name] = size.astype(np.int64)
    return Tasks(arrival * scale, shape, shapes, time * scale, time * scale, **columns)


def _faults(draw: np.random.Generator, gpus: list[int], scale: float) -> Iterator[FaultEvent]:
    """Failures and slowdowns, at most one of each a GPU."""
    for there, back, probability in (("down", "up", 0.3), ("slow", "slow", 0.25)):
        for gpu in gpus:
            begin, lasts, factor = draw.uniform(1, 20), draw.uniform(0.5, 8), float(draw.uniform(1.2, 3))
            if draw.random() < probability:
                yield FaultEvent(float(begin) * scale, gpu, there, factor)
                yield FaultEvent(float(begin + lasts) * scale, gpu, back, 1.0)


class Chaos(Scheduler):
    """Stops, moves, sets frequencies and starts at random."""

    def __init__(self, seed: int, system: Drawn) -> None:
        self.draw, self.system = random.Random(seed), system
        self.log: list[tuple[Any, ...]] = []
        """(time, verb, what it is given)."""
        self.failed: set[int] = set()

    def device(self, device: Any, up: bool) -> None:
        (self.failed.discard if up else self.failed.add)(device.index)

    def placed(self, task: Any, mode: Mode, placement: Any) -> tuple[Any, ...]:
        return task.index, [one.index for one in placement.devices], task.shape.position[mode], mode.share / WHOLE

    def schedule(self, view: Any) -> Iterator[Any]:
        draw, stops = self.draw, self.system.stops
        for task in list(view.running()):
            dice = draw.random()
            if dice < stops:
                keep = draw.random() < 0.7
                yield Stop(task, keep=keep)
                self.log.append((view.now, "stop", task.index, keep))
            elif dice < 1.5 * stops and task.shape.preemptible:
                mode = draw.choice(task.shape.modes)
                options = view.options(task, mode)
                if options:
                    yield Move(task, placement := draw.choice(options))
                    self.log.append((view.now, "stop", task.index, True))
                    self.log.append((view.now, "start", *self.placed(task, mode, placement)))
        if draw.random() < self.system.sets:
            gpus = [one for node in view.cluster.nodes for one in node.accelerators if one.index not in self.failed]
            if gpus:
                gpu, frequency = draw.choice(gpus), draw.choice([0.5, 0.75, 1.0])
                yield Set(gpu, frequency)
                self.log.append((view.now, "set", gpu.index, frequency))
        waiting = view.waiting()
        draw.shuffle(waiting)
        for task in waiting:
            if draw.random() < 0.3 and view.running():
                continue
            modes = list(task.shape.modes)
            draw.shuffle(modes)
            for mode in modes:
                options = view.options(task, mode)
                if options:
                    yield Start(task, placement := draw.choice(options))
                    self.log.append((view.now, "start", *self.placed(task, mode, placement)))
                    break
        if view.num_waiting():
            yield Wait(view.now + 0.5 + draw.random())
