"""Compute time of a launch: the true time, and the estimate that policies know."""

import math
from collections.abc import Sequence

from hetsim.engine.flight.history import History
from hetsim.engine.flight.launch import Launch, Timetable
from hetsim.model.curves import layout_of
from hetsim.model.fusion import Fusion, fused_seconds
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task


def planned(launch: Launch) -> float:
    """Return the compute seconds of a launch as estimated at its start."""
    table: Timetable | None = launch.table
    if table is None:
        return work(launch, True)
    if table.planned != table.planned:  # NaN: not asked before
        table.planned = work(launch, True)
    return table.planned


def work(launch: Launch, estimated: bool = False) -> float:
    """Return the (estimated) remaining compute seconds of a launch at rate 1."""
    mode, terms, tasks = launch.placement.mode, launch.terms, launch._tasks
    if launch.fusion is not None and tasks:
        return seconds_of(tasks, launch.fusion, mode.parts, estimated)
    if terms is None and tasks is not None and len(tasks) == 1:
        full_time, done = _of_one(tasks[0], launch.position, estimated)
        if mode.curve is not None:
            return full_time * mode.curve.seconds_left(layout_of(launch.placement.devices), done)
        return (mode.single + full_time) * (1.0 - done)
    max_left = 1.0
    if terms is not None and (tasks is None or (terms.fresh and not estimated)):  # no request has been computed before
        own = terms.requests.queue.seconds(launch.position, terms, estimated)
    else:
        assert tasks is not None
        parts_left = [1.0 - (task.done if estimated else task._done) for task in tasks]
        times = [(task.estimates if estimated else task._time)[task.shape.position[mode]] for task in tasks]
        # `fsum` rounds once, so the order of the members does not matter.
        own, max_left = math.fsum(time * part for time, part in zip(times, parts_left, strict=True)), max(parts_left)
    if terms is None:
        return mode.computing(len(launch.tasks), own, max_left)
    return mode.computing(terms.requests.size, own + terms.padding, max_left) * (1.0 if estimated else terms.compute)


def _of_one(task: Task, position: int, estimated: bool) -> tuple[float, float]:
    return (task.estimates[position], task.done) if estimated else (task._time[position], task._done)


def reached(launch: Launch, seconds: float, estimated: bool) -> float:
    """Return the (estimated) finished fraction of a task after `seconds` at rate 1."""
    mode = launch.placement.mode
    assert mode.curve is not None
    full_time, done = _of_one(launch.task, launch.position, estimated)
    # A task without work is finished.
    return mode.curve.reached(layout_of(launch.placement.devices), done, seconds / full_time) if full_time > 0 else 1.0


def restore_seconds(task: Task, history: History, placement: Placement) -> float:
    """Return the seconds to restore a task's saved state before it can compute."""
    if not history.state_saved:
        return 0.0
    seconds, devices = task.shape.stopping.restore, placement.devices
    if history.checkpoint < 1.0 and history.in_memory and any(device in history.devices for device in devices):
        part = task.shape.stopping.state / max(len(devices), len(history.devices))
        seconds += part / (history.devices[0].type.preemption.rate or math.inf)
    return seconds


def seconds_of(tasks: Sequence[Task], fusion: Fusion, modes: Sequence[Mode], estimated: bool) -> float:
    """Return the (estimated) compute seconds of tasks launched as one kernel."""
    positions = [task.shape.position[mode] for task, mode in zip(tasks, modes, strict=True)]
    own = [(task.estimates if estimated else task._time)[at] for task, at in zip(tasks, positions, strict=True)]
    parts_left = [1.0 - (task.done if estimated else task._done) for task in tasks]
    return fused_seconds(tasks[0]._table, fusion, positions, modes=modes, own=own, left=parts_left)
