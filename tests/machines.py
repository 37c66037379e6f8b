"""Small systems for tests, built by hand from the model: no scenario file in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import Stopping
from hetsim.model.device_type import MILLI, WHOLE, DeviceType, micro_share
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.randomness import RandomTree
from hetsim.model.record import Record, RunInput
from hetsim.model.task import Task
from hetsim.model.tasks import Item, Tasks
from hetsim.policy import Decision, ListScheduler, Scheduler, Start, View


def gpu_mode(kind: DeviceType, gpus: float = 1, **more: Any) -> Mode:
    """A mode on whole GPUs, or on a fraction of one."""
    if gpus < 1:
        return Mode(kind.name, kind, gpus=1, share=micro_share(gpus), **more)
    return Mode(kind.name, kind, gpus=int(gpus), share=WHOLE, **more)


def cpu_mode(kind: DeviceType, cores: int = 1, **more: Any) -> Mode:
    return Mode(kind.name, kind, millicores=cores * MILLI, **more)


@dataclass
class Job:
    """One task: when it comes, how long it takes in each of its modes, and what else is special about it."""

    modes: Sequence[Mode]
    times: Sequence[float]
    arrival: float = 0.0
    estimates: Sequence[float] | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    after: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    deadline: float = float("nan")
    expires: float = float("inf")
    priority: float = 0.0
    stopping: Stopping = field(default_factory=Stopping)
    preemptible: bool = True


def tasks_of(jobs: Sequence[Job], items: Sequence[Item] = ()) -> Tasks:
    """Columns of some jobs, which must stand in the order of their arrival."""
    shapes: dict[Any, Shape] = {}
    rows = []
    for job in jobs:
        key = (tuple(id(mode) for mode in job.modes), job.stopping, job.preemptible)
        shapes.setdefault(key, Shape(job.modes, job.stopping, job.preemptible))
        rows.append(list(shapes).index(key))
    width = max(len(job.modes) for job in jobs)

    def table(values: Any) -> np.ndarray:
        return np.array([[*row, *[np.nan] * (width - len(row))] for row in values], dtype=float)

    time = table([job.times for job in jobs])
    inexact = any(job.estimates for job in jobs)
    return Tasks(
        arrival=np.array([job.arrival for job in jobs], dtype=float),
        shape=np.array(rows, dtype=np.int32),
        shapes=list(shapes.values()),
        time=time,
        estimate=table([job.estimates or job.times for job in jobs]) if inexact else time,
        bytes_in=np.array([job.bytes_in for job in jobs], dtype=float) if any(j.bytes_in for j in jobs) else None,
        bytes_out=np.array([job.bytes_out for job in jobs], dtype=float) if any(j.bytes_out for j in jobs) else None,
        predecessors=[job.after for job in jobs] if any(j.after for j in jobs) else None,
        reads=[job.reads for job in jobs] if any(j.reads or j.writes for j in jobs) else None,
        writes=[job.writes for job in jobs] if any(j.reads or j.writes for j in jobs) else None,
        deadline=np.array([job.deadline for job in jobs]),
        expires=np.array([j.expires for j in jobs]) if any(j.expires < float("inf") for j in jobs) else None,
        priority=np.array([job.priority for job in jobs]),
        items=list(items),
    )


def simulation(
    nodes: NodeSpec | Sequence[NodeSpec],
    jobs: Sequence[Job] | Tasks,
    scheduler: Scheduler | None = None,
    items: Sequence[Item] = (),
    **more: Any,
) -> Simulation:
    """A simulation with the invariants on."""
    specs = [nodes] if isinstance(nodes, NodeSpec) else list(nodes)
    tasks = jobs if isinstance(jobs, Tasks) else tasks_of(jobs, items)
    run = RunInput("test", Cluster(specs), tasks, scheduler or ListScheduler(), random=RandomTree(1), **more)
    return Simulation(run, check=True)


def simulate(*arguments: Any, **named: Any) -> Record:
    return simulation(*arguments, **named).run()


def stage_times(record: Record, launch: int = 0) -> dict[str, float]:
    """The times of one launch row, by stage name."""
    assert record.launches is not None
    names = ("start", "upload_start", "upload_end", "compute_start", "compute_end", "download_start", "end")
    return {name: float(record.launches[name][launch]) for name in names}


class Scripted(ListScheduler):
    """A list scheduler that carries out some decisions at given times before it goes on as usual.

    `script`: (time, function from the view to decisions).  The engine wakes it by timers.
    """

    def __init__(self, script: Sequence[tuple[float, Any]] = (), where: dict[int, tuple[str, ...]] | None = None):
        super().__init__()
        self.script = sorted(script, key=lambda step: step[0])
        self.where = where or {}

    def schedule(self, view: View) -> Iterator[Decision]:
        from hetsim.policy import Wait

        while self.script and self.script[0][0] <= view.now:
            _, action = self.script.pop(0)
            yield from action(view)
        for task in list(view.waiting()):
            placement = self.place_named(task, view)
            if placement is not None and view.fits(placement.mode, placement):
                yield Start(task, placement)
        if self.script:
            yield Wait(until=self.script[0][0])

    def place_named(self, task: Task, view: View) -> Placement | None:
        names = self.where.get(task.index)
        if names is None:
            return view.fit(task)
        devices = tuple(view.cluster.by_name[name] for name in names)
        mode = next(mode for mode in task.modes if mode.type is devices[0].type)
        return Placement(mode, devices)


def running(view: View, row: int) -> Task:
    """The running task of that row."""
    return next(task for task in view.running("start") if task.index == row)
