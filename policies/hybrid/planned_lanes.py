"""What is left of a plan, lane by lane, and when it will be done: the ground of `plan_and_repair`.

A *lane* is a core or an accelerator; it has the steps of the plan that are still to start there, in order.  All steps
together stand in one order too, that of the plan, in which every step comes after those it waits for.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from sim.model.cluster import MILLI, Device, DeviceType, Node
from sim.model.plan import Placement, can_host, lane_names
from sim.model.tasks import Mode, Task
from sim.policy import PlanProblem, Start, View


def computing(task: Task, mode: Mode) -> float:
    """Estimated seconds to compute what a task has left, in a mode, on idle devices of nominal rate."""
    return (mode.fixed + task.estimates[task.shape.position[mode]]) * (1.0 - task.done)


ENOUGH = 3
"""Tasks that were as late, for their mean to say something."""
LATE = 1e-9
"""What exceeds an estimate by less than this part of it is not late."""


class Lane:
    """A core or an accelerator, with the steps that are to start there and those that run, by row."""

    __slots__ = ("name", "number", "device", "node", "queue", "running", "arrived")

    def __init__(self, name: str, number: int, device: Device, node: Node):
        self.name = name
        self.number = number
        self.device = device
        self.node = node
        self.queue: dict[int, Job] = {}
        self.running: dict[int, Job] = {}
        self.arrived = 0
        """Steps of the queue whose tasks wait by now."""

    def head(self) -> Job | None:
        return next(iter(self.queue.values()), None)

    def placed(self, mode: Mode) -> Placement | None:
        """A mode on this lane, if it needs just one."""
        if mode.type is not self.device.type or not can_host(self.node, mode):
            return None
        if not mode.on_cpu:
            return Placement(mode, (self.device,)) if mode.gpus == 1 and mode.whole else None
        core = int(self.name[len(self.device.name) :])
        return Placement(mode, (self.device,), (core,)) if mode.millicores == MILLI else None

    def __repr__(self) -> str:
        return self.name


class Job:
    """A step of the plan: a task, its placement and lanes, and how long it is expected to hold them.

    `task` is None until it waits.
    """

    __slots__ = ("row", "placement", "lanes", "seconds", "task", "fetched", "end")

    def __init__(
        self, row: int, placement: Placement, lanes: tuple[Lane, ...], seconds: float, task: Task | None = None
    ):
        self.row = row
        self.placement = placement
        self.lanes = lanes
        self.seconds = seconds
        self.task = task
        self.fetched = False
        self.end: float | None = None
        """When it will end if it is not late, once that was asked for in a run in which it cannot change."""

    @property
    def alone(self) -> bool:
        """Does it stand on one lane?"""
        return len(self.lanes) == 1

    def __repr__(self) -> str:
        return f"job {self.row} on {'+'.join(lane.name for lane in self.lanes)}"


@dataclass
class Forecast:
    """When things will happen if every lane keeps its order and every estimate is right from now on.

    `start` and `finish` by row, `lane` by the number of a lane: when its last step ends; lanes that have none and run
    nothing are left out.
    """

    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    lane: dict[int, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When all will be done."""
        return max(self.lane.values(), default=0.0)


class Experience:
    """How long tasks that have ended took, as a part of their estimates: what to expect of one that runs late."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._sums: list[float] | None = None

    def add(self, estimate: float, took: float) -> None:
        if estimate > 0:
            insort(self._ratios, took / estimate)
            self._sums = None

    def ratio(self, least: float) -> float:
        """What to expect of a task that takes at least this part of its estimate: the mean over those known that did.

        1 of a task that is not late; if fewer than ENOUGH were as late, late again by as much as it is by now.
        """
        if least < 1 + LATE:
            return max(1.0, least)
        longer = len(self._ratios) - bisect_right(self._ratios, least)
        if longer < ENOUGH:
            return 2 * least - 1
        if self._sums is None:
            self._sums = list(accumulate(reversed(self._ratios)))
        return max(least, self._sums[longer - 1] / longer)


class Board:
    """Steps that are to start, and those that run: on which lanes, in which order, and until when.

    Cost: O(lanes of a step) to put, start and take out; a forecast is one pass over the steps and their predecessors.
    """

    def __init__(self, problem: PlanProblem, is_up: Callable[[Device], bool]):
        names = lane_names(problem.cluster).items()
        nodes = problem.cluster.nodes
        self.lanes = {name: Lane(name, n, device, nodes[device.node]) for n, (name, device) in enumerate(names)}
        self.pending: dict[int, Job] = {}
        """Steps that have not started, by row, in the order of the plan."""
        self.running: dict[int, tuple[Job, float]] = {}
        """With their starts."""
        self.due: dict[int, Lane] = {}
        """Lanes on which something may be able to start."""
        self.loaded: dict[int, Lane] = {}
        """Lanes with steps whose tasks wait, by number."""
        self.faster: dict[DeviceType, dict[int, float]] = {}
        """Of what runs, by type: what would compute there from the start in less time than it takes where it is, and
        for how long."""
        self.changes = 0
        """Since the last forecast."""
        self._tasks = problem.tasks
        self._is_up = is_up
        self._experience = Experience()
        self._late: dict[int, float] = {}
        """Of tasks that were stopped late: the part of their estimate that they had run for."""

    def is_up(self, lane: Lane) -> bool:
        return self._is_up(lane.device)

    def idle(self) -> list[Lane]:
        """Lanes on which nothing of the plan runs."""
        return [lane for lane in self.lanes.values() if not lane.running and self.is_up(lane)]

    # Changes --------------------------------------------------------------------------------------------------

    def put(self, job: Job) -> None:
        """At the end of its queues."""
        self.changes += 1
        self.pending[job.row] = job
        for lane in job.lanes:
            lane.queue[job.row] = job
            if job.task is not None:
                self._load(lane, 1)
            self.due[lane.number] = lane

    def _load(self, lane: Lane, more: int) -> None:
        """So many tasks more (or less) wait there."""
        lane.arrived += more
        if lane.arrived:
            self.loaded[lane.number] = lane
        else:
            self.loaded.pop(lane.number, None)

    def put_first(self, job: Job) -> None:
        """Before everything else."""
        self.put(job)
        self.pending = {job.row: job, **self.pending}
        for lane in job.lanes:
            lane.queue = {job.row: job, **lane.queue}

    def arrived(self, job: Job, task: Task) -> None:
        """The task of a step begins to wait."""
        for lane in job.lanes:
            if job.task is None:
                self._load(lane, 1)
            self.due[lane.number] = lane
        job.task = task

    def take_out(self, job: Job) -> None:
        self.changes += 1
        del self.pending[job.row]
        for lane in job.lanes:
            del lane.queue[job.row]
            if job.task is not None:
                self._load(lane, -1)
            self.due[lane.number] = lane

    def clear(self) -> None:
        """No steps are to start any more; those that run stay."""
        self.changes += 1
        self.pending = {}
        self.loaded = {}
        for lane in self.lanes.values():
            lane.queue = {}
            lane.arrived = 0

    def start(self, job: Job, view: View) -> Start:
        """The decision, noted."""
        assert job.task is not None
        self.take_out(job)
        job.seconds = view.duration(job.task, job.placement)
        job.end = None
        self.running[job.row] = job, view.now
        for mode in job.task.modes:
            seconds = computing(job.task, mode)
            if seconds * (1 - LATE) < job.seconds:
                there = self.faster.setdefault(mode.type, {})
                there[job.row] = min(seconds, there.get(job.row, math.inf))
        for lane in job.lanes:
            lane.running[job.row] = job
        return Start(job.task, job.placement)

    def ended(self, row: int, now: float, completed: bool) -> Job | None:
        """A step runs no longer: it was completed, or stopped."""
        self.changes += 1
        job, since = self.running.pop(row, (None, 0.0))
        if job is None:
            return None
        for rows in self.faster.values():
            rows.pop(row, None)
        spent = (now - since) / job.seconds if job.seconds > 0 else 0.0
        if completed:
            self._experience.add(job.seconds, now - since)
        elif spent > 1 + LATE:
            self._late[row] = max(spent, self._late.get(row, 0.0))
        for lane in job.lanes:
            lane.running.pop(row, None)
            self.due[lane.number] = lane
        return job

    # Questions ------------------------------------------------------------------------------------------------

    @staticmethod
    def fits(task: Task, placement: Placement, view: View) -> bool:
        return view.fits(placement.mode, placement) and view.holds(task, placement)

    def at(self, task: Task, lane: Lane, view: View, seconds: Callable[[Task, Placement, View], float]) -> Job | None:
        """A task on one lane, in the mode in which it takes least there; None where none can start now."""
        best: Job | None = None
        for position, mode in enumerate(task.modes):
            placement = lane.placed(mode)
            if placement is None or (task.allowed is not None and position not in task.allowed):
                continue
            if self.fits(task, placement, view):
                time = seconds(task, placement, view)
                if best is None or time < best.seconds:
                    best = Job(task.index, placement, (lane,), time, task)
        return best

    def was_late(self, row: int) -> bool:
        """Was a task late before it was started over?"""
        return row in self._late

    def lateness(self, row: int, now: float) -> float:
        """By which factor a running task is expected to exceed its estimate; 1 as long as it is not late."""
        job, since = self.running[row]
        spent = (now - since) / job.seconds if job.seconds > 0 else 0.0
        return self._experience.ratio(max(spent, self._late.get(row, 0.0)))

    def finish(self, task: Task, view: View) -> float:
        """When a running task will end; of one that is late, or was before it was started over, by experience."""
        job, since = self.running.get(task.index, (None, 0.0))
        end = None if job is None else job.end
        if end is None or end <= view.now or not view.changes.steady:
            end = view.launch_of(task).finish
            if job is not None and end > view.now:
                job.end = end  # of use as long as the run is steady
        if job is None or (end > view.now and task.index not in self._late):
            return end
        return max(view.now, since + job.seconds * self.lateness(task.index, view.now))

    def forecast(self, view: View) -> Forecast:
        """What stands on a lane that is down never ends."""
        self.changes = 0
        made, now = Forecast(), view.now
        finish, free = made.finish, made.lane
        for job, _ in self.running.values():
            assert job.task is not None
            finish[job.row] = end = self.finish(job.task, view)
            for lane in job.lanes:
                free[lane.number] = max(free.get(lane.number, now), end)
        arrival, before = self._tasks.arrival, self._tasks.predecessors
        for row, job in self.pending.items():
            start = max(now, float(arrival[row]))
            for lane in job.lanes:
                start = max(start, free.get(lane.number, now)) if self.is_up(lane) else math.inf
            if before is not None:
                start = max([start, *(finish.get(earlier, now) for earlier in before[row])])
            made.start[row] = start
            finish[row] = end = start + job.seconds
            for lane in job.lanes:
                free[lane.number] = end
        return made

    def late(self, now: float) -> bool:
        """Should anything that runs have ended by now?"""
        return any(now - since >= job.seconds * (1 - LATE) for job, since in self.running.values())

    def next_look(self, now: float) -> float:
        """When the next of what runs should have ended or is late by half as much again: idle lanes could help then."""
        looks: Iterable[float] = (
            since + job.seconds
            if now - since < job.seconds * (1 - LATE)
            else now + max(0.05 * job.seconds, 0.5 * (now - since - job.seconds))
            for job, since in self.running.values()
        )
        return min((at for at in looks if at > now * (1 + LATE)), default=math.inf)
