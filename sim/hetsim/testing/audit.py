"""Audit a run: recompute capacity use and task states from its launches alone."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.fusion import fused_mode
from hetsim.model.mode import Mode
from hetsim.model.plan import cores_on
from hetsim.model.record import (
    ABORTED,
    COMPLETED,
    LAUNCH_COMPLETED,
    LAUNCH_LOST,
    LAUNCH_MOVED,
    LAUNCH_STOPPED,
    NOT_ARRIVED,
    STATUS_NAMES,
    UNFINISHED,
    Record,
)
from hetsim.results.one_run.language import rows_of


@dataclass(frozen=True)
class Occupation:
    task: int
    mode: Mode
    devices: tuple[Device, ...]
    cores: tuple[tuple[int, ...], ...]  # core numbers by device; empty for devices without cores
    start: float
    end: float
    outcome: int
    fused: tuple[int, ...] = ()  # all tasks of a launch that runs several as one kernel


def audit(record: Record) -> list[str]:
    """List everything impossible in a finished run, as sentences."""
    launches = list(occupations(record))
    return [*_placements(record, launches), *_capacities(record, launches), *_lives(record, launches)]


def occupations(record: Record) -> Iterator[Occupation]:
    """Yield all launches of a run, from its launch or task columns."""
    cluster, tasks = record.input.cluster, record.input.tasks
    columns: dict[str, Any] | None = record.launches
    if columns is None:
        rows = [i for i in range(len(tasks)) if record.place[i] >= 0]
        columns = {
            "task": rows, "mode": record.mode[rows], "place": record.place[rows], "decided": record.start[rows],
            "end": record.finish[rows],
            "outcome": [LAUNCH_COMPLETED if record.status[i] == COMPLETED else LAUNCH_STOPPED for i in rows],
        }  # fmt: skip
    names = ("task", "mode", "place", "decided", "end", "outcome")
    numbers = columns.get("launch", [-1] * len(columns["task"]))
    for number, task, mode, place, start, end, outcome in zip(numbers, *(columns[name] for name in names), strict=True):
        devices, cores = record.places[place]
        fused = record.fused.get(int(number), ((), ()))[0]
        modes = tasks.shapes[tasks.shape[task]].modes
        if fused:
            own = [tasks.shapes[tasks.shape[row]].modes[record.mode[row]] for row in fused]
            modes, mode = (fused_mode(own),), 0
        until = record.end if math.isnan(end) else float(end)
        where = tuple(cluster.devices[index] for index in devices)
        named = tuple(map(tuple, cores_on(devices, cores, cluster)))
        yield Occupation(
            int(task), modes[mode], where, cores=named, start=float(start), end=until, outcome=int(outcome), fused=fused
        )


def _placements(record: Record, launches: list[Occupation]) -> Iterator[str]:
    for launch in launches:
        name, mode = record.input.tasks.name(launch.task), launch.mode
        wanted = mode.gpus or (mode.node_count if mode.node_count > 1 or mode.unit is None else len(launch.devices))
        label = f"task {name} at t = {launch.start:g} s"
        if len(launch.devices) != wanted or len(set(launch.devices)) != wanted:
            yield f"{label}: mode {mode} needs {wanted} different devices, but ran on {launch.devices}"
        outside = [device for device in launch.devices if not mode.allows(device.node)]
        if outside:
            yield f"{label}: ran on {outside[0]}, which is not in partition {mode.partition}"
        wrong = [device for device in launch.devices if device.type is not mode.type]
        if wrong:
            yield f"{label}: mode {mode} ran on {wrong[0]}, which is a {wrong[0].type.name}"
        if mode.node_count > 1:
            counts = Counter(device.node for device in launch.devices)
            if len(counts) != mode.node_count or len(set(counts.values())) > 1:
                yield f"{label}: mode {mode} needs equal parts of {mode.node_count} nodes, but ran on {launch.devices}"
        if len({device.node for device in launch.devices}) > 1 and not mode.span_any:
            yield f"{label}: mode {mode} must not span nodes, but ran on {launch.devices}"


def _capacities(record: Record, launches: list[Occupation]) -> Iterator[str]:
    occupied: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    limit: dict[tuple[str, str], float] = {}

    def hold(what: str, where: str, amount: float, most: float | None, launch: Occupation) -> None:
        if amount and most is not None:
            limit[what, where] = most
            # What ends at an instant is gone before what starts then.
            occupied[what, where] += [(launch.start, amount, launch.task), (launch.end, -amount, launch.task)]

    for launch in launches:
        mode = launch.mode
        for device in launch.devices:
            if mode.gpus:
                share = device.type.streams * WHOLE
                hold("share (millionths)", device.name, mode.share, most=share, launch=launch)
                hold("memory (bytes)", device.name, mode.gpu_memory, most=device.type.memory, launch=launch)
        for node in dict.fromkeys(device.node for device in launch.devices):
            here = record.input.cluster.nodes[node]
            count = sum(device.node == node for device in launch.devices)
            named = [core for device, cores in zip(launch.devices, launch.cores, strict=True)
                     if device.node == node for core in cores]  # fmt: skip
            if mode.on_cpu and len(launch.devices) > 1:
                count, all_of = len(named), sum(map(len, launch.cores))
            else:
                all_of = mode.gpus
            cores, memory = mode.millicores, mode.memory
            if all_of and count != all_of:
                cores, memory = math.ceil(cores * count / all_of), math.ceil(memory * count / all_of)
            hold("cores (thousandths)", here.name, cores, most=here.cpus * 1000, launch=launch)
            hold("host memory (bytes)", here.name, memory, most=here.memory, launch=launch)
            for core in named:
                hold("core", f"{here.name}/cpu{core}", 1, most=1, launch=launch)
    for (what, where), changes in occupied.items():
        total = 0.0
        for time, amount, task in sorted(changes):
            total += amount
            if total > limit[what, where]:
                used = f"{what} in use of {where}: {total:,.0f}; capacity {limit[what, where]:,.0f}"
                yield f"task {record.input.tasks.name(task)} at t = {time:g} s: {used}"
                break


def _lives(record: Record, launches: list[Occupation]) -> Iterator[str]:
    """Check that each task has one status, and one launch at a time once ready."""
    tasks = record.input.tasks
    occupations: dict[int, list[Occupation]] = defaultdict(list)
    for launch in launches:
        for row in launch.fused or (launch.task,):
            occupations[row].append(launch)
    back = np.zeros(len(tasks))  # an answer comes back over the network after its launch has ended
    cached = np.zeros(len(tasks), dtype=bool)
    for service in record.input.services:
        back[service.rows] = service.response_delay
        cached[service.rows] = service.cache is not None
    for row in np.setdiff1d(np.arange(len(tasks)), rows_of(record.input)).tolist():
        name, status = tasks.name(row), int(record.status[row])
        if status != NOT_ARRIVED and status not in STATUS_NAMES:
            yield f"task {name} has no status"
        mine = sorted(occupations[row], key=lambda launch: (launch.start, launch.end))
        ready = record.ready[row]
        if mine and not mine[0].start >= max(ready, tasks.arrival[row]):
            yield f"task {name} started at t = {mine[0].start:g} s, but was ready only at t = {ready:g} s"
        for first, second in zip(mine, mine[1:], strict=False):
            if second.start < first.end:
                yield f"task {name} at t = {second.start:g} s: started while it was running"
        if cached[row] and all(launch.outcome in (LAUNCH_STOPPED, LAUNCH_LOST) for launch in mine):
            continue  # it may have been answered without a launch, or after one that was stopped
        yield from _end(record, row, mine, float(back[row]))


def _end(record: Record, row: int, mine: list[Occupation], back: float) -> Iterator[str]:
    tasks = record.input.tasks
    name, status, finish = tasks.name(row), int(record.status[row]), record.finish[row]
    complete = [launch for launch in mine if launch.outcome == LAUNCH_COMPLETED]
    if status == COMPLETED:
        ended = len(complete) == 1 and finish == complete[0].end + back
        if not ended and record.batch is None:
            yield f"task {name} is completed at t = {finish:g} s, but {len(complete)} of its launches completed, not 1"
        if any(launch.outcome not in (LAUNCH_STOPPED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_COMPLETED) for launch in mine):
            yield f"task {name} is completed, but still runs"
        for before in (tasks.predecessors or {row: ()})[row]:
            if mine and before not in mine[0].fused and not record.finish[before] <= mine[0].start:
                yield f"task {name} at t = {mine[0].start:g} s: started before task {tasks.name(before)} had finished"
    elif complete and (status != ABORTED or record.attempt_of is None):  # a server works on when its client has left
        yield f"task {name} ran to its end, but has the status {STATUS_NAMES.get(status, 'nowhere')}"
    if status not in (UNFINISHED, NOT_ARRIVED) and math.isnan(finish):
        yield f"task {name} has ended without a finish time"
