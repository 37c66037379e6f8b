"""Which waiting steps of a plan could end sooner on another type of lane: the ground of thefts."""

from __future__ import annotations

import math

from hetsim.model.cluster import DeviceType
from hetsim.model.task import Task
from hetsim_policies.hybrid.common.planned_steps import LATE, LaneForecast, PlannedJob, PlannedLane, computing


class Movable:
    """Waiting steps that could end sooner on an idle lane of a type than where they stand, by the lane they stand on.

    Only in a steady run.  The time at which a step would end here grows, and that at which it ends there stays as long
    as its lane is as it was: what has dropped out comes back only with a change there.
    """

    def __init__(self, kind: DeviceType, loaded: dict[int, PlannedLane]):
        self.kind = kind
        self.steps: dict[int, tuple[PlannedLane, list[tuple[float, float, PlannedJob]]]] = {}
        """With the seconds that each computes here at least, and its end there."""
        self.changed: dict[int, PlannedLane] = dict(loaded)

    def of(self, seen: LaneForecast, now: float) -> list[tuple[PlannedLane, list[PlannedJob]]]:
        """By lane, in no order; the steps in that of the queue."""
        for number, lane in self.changed.items():
            self.steps.pop(number, None)
            end = seen.lane.get(number, 0.0)
            if lane.arrived:
                steps = [
                    (least(job.task, self.kind), seen.finish.get(row, end), job)
                    for row, job in lane.queue.items()
                    if job.task is not None and job.alone
                ]
                if steps:
                    self.steps[number] = lane, steps
        self.changed = {}
        found = []
        for number, (lane, steps) in list(self.steps.items()):
            kept = [one for one in steps if now + one[0] < one[1]]
            if kept:
                self.steps[number] = lane, kept
                found.append((lane, [job for _, _, job in kept]))
            else:
                del self.steps[number]
        return found


def least(task: Task, kind: DeviceType) -> float:
    """Seconds that a task computes at least on a lane of a type at nominal rate; inf where it has no mode there."""
    times = [computing(task, mode) for mode in task.modes if mode.type is kind]
    return min(times, default=math.inf) * (1 - LATE)
