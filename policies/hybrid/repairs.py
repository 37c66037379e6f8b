"""What a lane without work can do about it, short of a new plan: the repairs of `plan_and_repair`.

Each looks for a step that can start on the lane now, and leaves a plan alone that goes as it was made: nothing is
delayed by a reordered step, and what is stolen or restarted ends sooner than it would have ended.
"""

from __future__ import annotations

import math

from policies.hybrid.planned_lanes import Board, Forecast, Job, Lane, computing
from sim.model.cluster import DeviceType
from sim.model.plan import Placement
from sim.model.tasks import RUNNING, Task
from sim.policy import View

ROUNDING = 1e-9
"""What is gained has to be more than this part of the time to go."""

Known = dict[DeviceType, list[tuple[float, Job]]]
"""By type of lane: what runs and might end sooner there, with its end."""


def reordered(board: Board, lane: Lane, seen: Forecast, view: View) -> Job | None:
    """From behind the head of the lane's own queue: a step that ends before those it passes are to start."""
    now, limit, left = view.now, math.inf, lane.arrived
    for job in lane.queue.values():
        if not left:
            return None
        if job.task is not None:
            left -= 1
            if job.alone and now + job.seconds <= limit and board.fits(job.task, job.placement, view):
                return job
        limit = min(limit, seen.start.get(job.row, now))
        if limit <= now:
            return None
    return None


def stolen(board: Board, lane: Lane, seen: Forecast, view: View) -> tuple[Job, Job] | None:
    """From the lane that will be done last, the step whose move leaves the lesser of both ends: as it is, and here.

    It must end sooner here than there.  Where that lane has none, the next is looked at.
    """
    steady, now = view.changes.steady, view.now
    last_first = sorted(board.loaded.values(), key=lambda other: (-seen.lane.get(other.number, 0.0), other.number))
    for victim in last_first:
        end = seen.lane.get(victim.number, 0.0)
        best: tuple[float, Job, Job] | None = None
        for job in victim.queue.values() if victim is not lane else ():
            if job.task is None or not job.alone:
                continue
            if steady and now + least(job.task, lane) >= seen.finish.get(job.row, end):
                continue  # it cannot end sooner here, whatever else there is
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


def restartable(board: Board, lane: Lane, view: View, known: Known) -> Job | None:
    """A task that runs elsewhere and would end sooner if started over here; that which ends last is looked at first.

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


def _last_first(board: Board, lane: Lane, view: View) -> list[tuple[float, Job]]:
    """What runs and might end sooner on a lane of this type, with its end; what ends last first.

    Where everything computes at nominal rate, what ends when it was to end has less left than it takes in all, and on
    another lane it takes no less than it computes there: few are left to be looked at.
    """
    now = view.now
    found: list[tuple[float, Job]] = []
    if not view.changes.steady:
        jobs = [job for job, _ in board.running.values()]
        found = [(board.finish(job.task, view), job) for job in jobs if job.task is not None]
    else:
        for row, seconds in board.faster.get(lane.device.type, {}).items():
            job = board.running[row][0]
            assert job.task is not None
            if job.end is not None and job.end > now and not board.was_late(row):
                end, longer = job.end, 1.0
            else:
                end, longer = board.finish(job.task, view), board.lateness(row, now)
            if seconds * (1 - ROUNDING) * longer < end - now:
                found.append((end, job))
    found.sort(key=lambda one: -one[0])
    return found


def anew(task: Task, placement: Placement, view: View) -> float:
    """Seconds from a start there now to the end, without what it has done since it started."""
    stages = view.stages((task,), placement)
    compute = computing(task, placement.mode)
    return max(stages.ready, stages.write_back) + stages.upload + compute + stages.download


def least(task: Task, lane: Lane) -> float:
    """Seconds that a task computes at least on a lane of nominal rate, in any mode; inf where it has none there."""
    kind = lane.device.type
    times = [computing(task, mode) for mode in task.modes if mode.type is kind]
    return min(times, default=math.inf) * (1 - ROUNDING)


def _whole(task: Task, placement: Placement, view: View) -> float:
    return view.duration(task, placement)
