"""Repairs of `plan_and_repair`: work for idle lanes, short of a new plan.

Each looks for a step that can start on the lane now, and leaves a plan alone that goes as it was made: nothing is
delayed by a reordered step, and what is stolen or restarted ends sooner than it would have ended.
"""

from __future__ import annotations

import math

from hetsim.model.cluster import DeviceType
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.policy import View
from hetsim_policies.hybrid.common.planned_lanes import Board, Movable, min_seconds
from hetsim_policies.hybrid.common.planned_steps import LaneForecast, PlannedJob, PlannedLane

ROUNDING = 1e-9
"""The gain has to be more than this part of the remaining time."""

Known = dict[DeviceType, list[tuple[float, PlannedJob]]]
"""By type of lane: running tasks that might end sooner there, with their ends."""


def reordered(board: Board, lane: PlannedLane, seen: LaneForecast, view: View) -> PlannedJob | None:
    """A step behind the head of its lane that ends before those it passes start."""
    now, limit, position = view.now, math.inf, lane.arrived
    for job in lane.queue.values():
        if not position:
            return None
        if job.task is not None:
            position -= 1
            if job.alone and now + job.seconds <= limit and board.fits(job.task, job.placement, view):
                return job
        limit = min(limit, seen.start.get(job.row, now))
        if limit <= now:
            return None
    return None


def stolen(board: Board, lane: PlannedLane, seen: LaneForecast, view: View) -> tuple[PlannedJob, PlannedJob] | None:
    """The step to steal from the lane that will be done last: as it is, and here.

    Of that lane's steps it is the one that makes the later end of both lanes earliest.  It must end sooner here than
    there.  If that lane has no such step, the lane that is done next to last is looked at, and so on.
    """
    now, kind = view.now, lane.device.type
    if board.separable(view):
        movable = board.movable.get(kind)
        if movable is None:
            movable = board.movable[kind] = Movable(kind, board.loaded)
        steps = movable.towards(seen, now)
    else:
        steps = [(victim, _movable(victim, lane, seen, view)) for victim in board.loaded.values()]
    steps.sort(key=lambda one: (-seen.lane.get(one[0].number, 0.0), one[0].number))
    for victim, jobs in steps:
        end = seen.lane.get(victim.number, 0.0)
        best: tuple[float, PlannedJob, PlannedJob] | None = None
        for job in jobs if victim is not lane else ():
            assert job.task is not None
            here = board.at(job.task, lane, view, _whole)
            if here is None:
                continue
            ends = view.now + here.seconds
            value = max(ends, end - job.seconds) if end < math.inf else ends
            sooner = ends < seen.finish.get(job.row, end) - ROUNDING * here.seconds
            if sooner and value < end and (best is None or value < best[0]):
                best = value, job, here
        if best is not None:
            return best[1], best[2]
    return None


def _movable(victim: PlannedLane, lane: PlannedLane, seen: LaneForecast, view: View) -> list[PlannedJob]:
    """Steps of waiting tasks on a lane that could end sooner on another lane."""
    steady, end = view.changes.steady, seen.lane.get(victim.number, 0.0)
    return [
        job
        for job in victim.queue.values()
        if job.task is not None
        and job.alone
        and not (steady and view.now + min_seconds(job.task, lane.device.type) >= seen.finish.get(job.row, end))
    ]


def restartable(board: Board, lane: PlannedLane, view: View, known: Known) -> PlannedJob | None:
    """A task that would end sooner if started over here; the latest end goes first.

    One that is late is expected to be as late here, so that it is only ever moved to a faster lane.  Ends are asked for
    now: a forecast may be older than the last restart, and would have the same task started over and over.
    known: what was found for lanes of the same type since something was last started.
    """
    kind = lane.device.type
    if kind not in known:
        known[kind] = _last_first(board, lane, view)
    for end, job in known[kind]:
        task = job.task
        if task is None or not job.alone or not task.shape.preemptible or task.state != RUNNING:
            continue
        here = board.at(task, lane, view, anew)
        if here is None:
            continue
        if here.seconds * board.lateness(job.row, view.now) < (end - view.now) * (1 - ROUNDING):
            return here
    return None


def _last_first(board: Board, lane: PlannedLane, view: View) -> list[tuple[float, PlannedJob]]:
    """Running tasks that might end sooner on this type, with ends; latest first."""
    if view.changes.steady:
        ends = board.restartable(lane.device.type, view, ROUNDING)
    else:
        jobs = [job for job, _ in board.running.values()]
        ends = [(board.finish(job.task, view), job) for job in jobs if job.task is not None]
    ends.sort(key=lambda one: (-one[0], one[1].number))
    return ends


def anew(task: Task, placement: Placement, view: View) -> float:
    """Seconds from a start there now to the end, without the work done so far."""
    stages = view.stages((task,), placement)
    compute = task.remaining_in(placement.mode)
    return max(stages.ready, stages.write_back) + stages.upload + compute + stages.download


def _whole(task: Task, placement: Placement, view: View) -> float:
    return view.duration(task, placement)
