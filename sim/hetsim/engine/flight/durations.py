"""How long a launch computes: by the truth, and by what policies may know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.engine.flight.data_locations import kept_there
from sim.engine.flight.launch import Launch
from sim.model.curves import layout_of
from sim.model.fusion import Fusion, fused_seconds
from sim.model.tasks import Mode, Task


def work(launch: Launch) -> float:
    """Compute seconds a launch has before it at rate 1: truth, less what is done."""
    mode, tasks = launch.placement.mode, launch._tasks
    if launch.terms is None and tasks and len(tasks) == 1 and mode.curve is None and launch.fusion is None:
        task = tasks[0]
        return (mode.fixed + task._time[launch.position]) * (1.0 - task._done)
    return _seconds(launch, False)


def planned(launch: Launch) -> float:
    """Estimated compute seconds of a launch as it looked when it started."""
    table = launch.table
    if table is None:
        return _seconds(launch, True)
    if table.planned != table.planned:
        table.planned = _seconds(launch, True)
    return table.planned


def _seconds(launch: Launch, estimated: bool) -> float:
    """Compute seconds of a launch at rate 1: by estimate, or true; less what is done."""
    mode, terms, tasks = launch.placement.mode, launch.terms, launch._tasks
    if launch.fusion is not None and tasks:
        return seconds_of(tasks, launch.fusion, mode.parts, estimated)
    if terms is not None and tasks is None:
        members = terms.requests.queue.seconds(launch.position, terms, estimated)
        seconds = mode.base(terms.requests.size) + (members + terms.padding)
        return seconds if estimated else seconds * terms.compute
    assert tasks is not None
    if terms is None and len(tasks) == 1:
        whole, done = _of_one(launch, estimated)
        if mode.curve is not None:
            return whole * mode.curve.left(layout_of(launch.placement.devices), done)
        return (mode.fixed + whole) * (1.0 - done)
    if terms is not None and terms.fresh and not estimated:  # of one shape, and nothing is done of any
        position = launch.position
        members = math.fsum([task._time[position] for task in tasks])
        return (mode.base(terms.requests.size) + (members + terms.padding)) * terms.compute
    left = [1.0 - (task.done if estimated else task._done) for task in tasks]
    times = [(task.estimates if estimated else task._time)[task.shape.position[mode]] for task in tasks]
    members = math.fsum(time * part for time, part in zip(times, left, strict=True))
    if terms is None:
        return mode.fixed * max(left) + members
    seconds = mode.base(terms.requests.size) * max(left) + (members + terms.padding)
    return seconds if estimated else seconds * terms.compute


def _of_one(launch: Launch, estimated: bool) -> tuple[float, float]:
    """Seconds of the one task of a launch, and what is done of it."""
    task, position = launch.task, launch.position
    return (task.estimates[position], task.done) if estimated else (task._time[position], task._done)


def reached(launch: Launch, seconds: float, estimated: bool) -> float:
    """What is done of a launch's one task, in a mode with a curve, after computing for these seconds at rate 1."""
    mode = launch.placement.mode
    assert mode.curve is not None
    whole, done = _of_one(launch, estimated)
    return mode.curve.reached(layout_of(launch.placement.devices), done, seconds / whole) if whole > 0 else 1.0


def restore_seconds(launch: Launch, task: Task) -> float:
    """Seconds to restore what was saved of a task, before computing goes on."""
    device = launch.placement.devices[0]
    if task._done == 0 or task._history.saved_at is None:
        return 0.0
    seconds = task.shape.stopping.restore
    if kept_there(task, device):
        seconds += task.shape.stopping.state / (device.type.preemption.rate or math.inf)
    return seconds


def seconds_of(tasks: Sequence[Task], fusion: Fusion, modes: Sequence[Mode], estimated: bool) -> float:
    """Compute seconds of tasks launched as one kernel."""
    positions = [task.shape.position[mode] for task, mode in zip(tasks, modes, strict=True)]
    own = [(task.estimates if estimated else task._time)[at] for task, at in zip(tasks, positions, strict=True)]
    left = [1.0 - (task.done if estimated else task._done) for task in tasks]
    return fused_seconds(tasks[0]._table, fusion, positions, modes, own, left)
