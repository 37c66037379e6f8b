"""Base of schedulers that choose a place once, when a task becomes ready.

A *line* is the queue of one accelerator, of the cores of a node, or of all devices of a type.  For each of its lanes
(cores, GPUs or, if tasks use fractions, twelfths of a GPU) it stores the estimated time at which all assigned tasks
will have been served.  A gang is in the lines of all its devices and starts when it is at the head of each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace, nsmallest
from typing import Any

import numpy as np

from hetsim.errors import refusal
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, WHOLE, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.tasks import Tasks
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, View

SLICES = 12  # lanes per GPU of a type on which fractions run


class DeviceLine:
    """Queue of one device or of a type's pool, and when its cores or GPUs are free.

    `ends` stores end times minus `shift`: when a task ends early or late, a change of `shift` moves all later tasks.
    If the task uses only a fraction of the queue's cores or GPUs, `shift` changes by this fraction of the delay.
    """

    __slots__ = ("number", "type", "device", "lanes", "most", "ends", "shift", "queue", "used", "up", "changed")

    def __init__(self, number: int, kind: DeviceType, lanes: int, device: Device | None = None):
        self.number = number
        self.type = kind
        self.device = device
        self.lanes = lanes
        self.most = lanes * kind.streams  # lanes of launches that may be in flight
        self.ends = [0.0] * max(1, lanes)
        self.shift = 0.0
        self.queue: list[tuple[Any, int, LineTask]] = []
        self.used = 0
        self.up = True
        self.changed: Callable[[DeviceLine], None] | None = None  # told of every change of the ends

    def first_end(self) -> float:
        """Time at which the first lane (core or GPU) has served its assigned tasks."""
        return self.ends[0] + self.shift

    def free_at(self, need: int, now: float) -> float:
        """Time at which `need` lanes (cores or GPUs; at most all) will be free."""
        end = self.ends[0] if need == 1 else nsmallest(need, self.ends)[-1]
        return max(now, end + self.shift)

    def occupy(self, need: int, end: float) -> None:
        """Occupy `need` lanes (cores or GPUs), the first ones free, until `end`."""
        if need == 1:
            heapreplace(self.ends, end - self.shift)
        else:
            need = min(need, len(self.ends))
            for _ in range(need):
                heappop(self.ends)
            for _ in range(need):
                heappush(self.ends, end - self.shift)
        if self.changed is not None:
            self.changed(self)

    def delay(self, need: int, seconds: float) -> None:
        """Move the queue's end times: a task on `need` lanes takes `seconds` longer."""
        if seconds:
            self.shift += seconds * min(1.0, need / len(self.ends))
            if self.changed is not None:
                self.changed(self)

    def head(self) -> "LineTask | None":
        queue = self.queue
        while queue and queue[0][2].over:
            heappop(queue)
        return queue[0][2] if queue else None


def refuse_gangs(problem: PlanProblem) -> None:
    """Raise ScenarioError if a task spans nodes, or may spread its cores over nodes."""
    tasks = problem.tasks
    gangs = [shape.index for shape in tasks.shapes if any(mode.unit is not None for mode in shape.modes)]
    if len(rows := np.flatnonzero(np.isin(tasks.shape, gangs))):
        text = f"it chooses single devices, but {len(rows)} tasks need several nodes at once"
        raise refusal(f"{text}; the first is task {tasks.name(int(rows[0]))}")


@dataclass(eq=False, slots=True)
class LineTask:
    """A task in device queues (lines); `need`: cores, GPUs or 1/12 GPUs in each queue.

    `placement` is None if the task may run on any devices of the queue's type.  `begin`, `length`: estimates in s.
    """

    task: Task
    mode: Mode
    placement: Placement | None
    lines: tuple[DeviceLine, ...]
    need: int
    begin: float
    length: float
    since: list[float] = field(init=False)  # shift of each line when the task was assigned
    started: bool = False
    over: bool = False  # True once the task has started or is gone
    fetched: bool = False

    def __post_init__(self) -> None:
        self.since = [0.0] * len(self.lines)


class AssigningScheduler(Scheduler):
    """Base: `assign` chooses a task's device queue (line); `key` orders each queue.

    When a device fails, the tasks of its line are assigned again.  Cost: O(log n) per task and line, in addition to
    `assign`; a round visits only lines that have changed, and lines whose head lacks host cores or memory.
    """

    rejects = False

    def __init__(self) -> None:
        self.lines: list[DeviceLine] = []
        self.jobs: dict[int, LineTask] = {}
        self._new: list[Task] = []
        self._homeless: list[Task] = []
        self._due: dict[int, DeviceLine] = {}
        self._starved: dict[int, DeviceLine] = {}
        self._unit: dict[DeviceType, int] = {}
        self._down: dict[int, None] = {}
        self._tickets = 0
        self._releases = -1
        self.waiting = 0

    def make_lines(self, cluster: Cluster) -> list[DeviceLine]:
        """Create all lines (device queues), numbered from 0."""
        raise NotImplementedError

    def assign(self, task: Task, view: View) -> LineTask | None:
        """Choose a task's device queue and placement; None while all devices are down."""
        raise NotImplementedError

    def key(self, task: Task) -> Any:
        """Sort key of a task in a device queue, lowest first, then in order of assignment."""
        return 0

    def after_starts(self, lines: Sequence[DeviceLine], view: View) -> Iterator[Decision]:
        """Hook: yield further decisions after a round tried the devices' queues `lines`."""
        return iter(())

    def prepare(self, problem: PlanProblem) -> None:
        self.study(problem.tasks)

    def study(self, tasks: Tasks) -> None:
        """Record the device types on which tasks with fractions of a GPU run."""
        for shape in tasks.shapes:
            for mode in shape.modes:
                if mode.gpus and not mode.whole_devices:
                    self._unit[mode.type] = SLICES

    def need(self, mode: Mode) -> int:
        """Lanes per device that a launch occupies: cores, GPUs, or 1/12 of shared GPUs."""
        if mode.on_cpu:
            return max(1, -(-mode.millicores // MILLI))
        return max(1, (mode.share * self._unit.get(mode.type, 1) + WHOLE // 100) // WHOLE)

    def unit(self, kind: DeviceType) -> int:
        """Return how many lanes a device of this type has: 1, or more for GPU fractions."""
        return self._unit.get(kind, 1)

    def begin(self, view: View) -> None:
        self._view = view
        self.lines = self.make_lines(view.cluster)
        self.of_device = {line.device.index: line for line in self.lines if line.device is not None}

    def ready(self, task: Task) -> None:
        if task.index in self.jobs:  # a device failed under it
            self._leave(task)
        self._new.append(task)
        self.waiting += 1

    def finished(self, task: Task) -> None:
        self._leave(task)

    def gone(self, task: Task) -> None:
        if not self._leave(task):
            for waiting in (self._new, self._homeless):  # it may go on elsewhere, where groups have lines of their own
                if task in waiting:
                    waiting.remove(task)
                    self.waiting -= 1

    def device(self, device: Device, up: bool) -> None:
        """Record if a device is up; if a node's cores are down, its accelerators are, too."""
        if up:
            self._down.pop(device.index, None)
            self._new += self._homeless
            self._homeless = []
        else:
            self._down[device.index] = None
        node = self._view.cluster.nodes[device.node]
        for other in (node.cpu, *node.accelerators) if device is node.cpu else (device,):
            if (line := self.of_device.get(other.index)) is not None:
                line.up = other.index not in self._down and node.cpu.index not in self._down
                if not line.up:
                    self._give_up(line)

    def _give_up(self, line: DeviceLine) -> None:
        for _, _, job in sorted(line.queue, key=lambda entry: entry[:2]):
            if not job.over:
                self._unassign(job)
                self._new.append(job.task)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.waiting:
            return
        if view.changes.releases != self._releases:
            self._releases = view.changes.releases
            self._due.update(self._starved)
            self._starved.clear()
        new, self._new = self._new, []
        for task in new:
            if task.state == WAITING:
                if (job := self.assign(task, view)) is None:
                    self._homeless.append(task)
                else:
                    self._enqueue(job)
        looked_at = []
        while self._due:
            line = self._due.pop(next(iter(self._due)))
            looked_at.append(line)
            while (job := line.head()) is not None and all(other.head() is job for other in job.lines):
                if (placement := self._placement(job, line, view)) is None:
                    break
                self._start(job)
                yield Start(job.task, placement)
        yield from self.after_starts(looked_at, view)

    def _placement(self, job: LineTask, line: DeviceLine, view: View) -> Placement | None:
        if (placement := job.placement) is None:
            placement = view.first(job.mode, job.task)
        elif any(other.used and other.used + job.need > other.most for other in job.lines):
            return None  # the next end on that line makes it due
        elif not view.fits(job.mode, placement, (job.task,)):
            placement = None
        if placement is None:
            self._starved[line.number] = line
        return placement

    def _enqueue(self, job: LineTask) -> None:
        self._tickets += 1
        self.jobs[job.task.index] = job
        end = job.begin + job.length
        for number, line in enumerate(job.lines):
            job.since[number] = line.shift
            line.occupy(job.need, end)
            heappush(line.queue, (self.key(job.task), self._tickets, job))
            self._due[line.number] = line

    def _start(self, job: LineTask) -> None:
        job.started = job.over = True
        self.waiting -= 1
        for line in job.lines:
            line.used += job.need
        if len(job.lines) > 1:  # the others have new heads, and may have been looked at already
            self._due.update((line.number, line) for line in job.lines)

    def _leave(self, task: Task) -> bool:
        """Remove a task that ended or no longer waits; return False if it is unknown."""
        if (job := self.jobs.get(task.index)) is None:
            return False
        if not job.started:
            self.waiting -= 1
            self._unassign(job)
            return True
        del self.jobs[task.index]
        late = self._view.now - (job.begin + job.length)
        for number, line in enumerate(job.lines):
            line.used -= job.need
            line.delay(job.need, late - (line.shift - job.since[number]))
            self._due[line.number] = line
        return True

    def _unassign(self, job: LineTask) -> None:
        del self.jobs[job.task.index]
        job.over = True
        for line in job.lines:
            line.delay(job.need, -job.length)
            self._due[line.number] = line
