"""Static policies: a plan made before the clock starts, followed step by step."""

import math
from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.fusion import fused_mode
from hetsim.model.mode import Mode
from hetsim.model.plan import Copy, Moment, Placement, Plan, Step
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy.contract import PlanProblem, Scheduler, View
from hetsim.policy.decisions import Decision, Drop, Fetch, Set, Start, Wait


class PlannedScheduler(Scheduler):
    """Base of static policies: `plan` once before the run, then follow the plan.

    A task starts when it is first in the queues of all its devices, the devices are free and its predecessors have
    completed.  Frequencies in the plan are set in the first scheduling round (call of `schedule`), before any start.
    Prefetches and drops of data items are due when the task that they name becomes ready, starts or completes; without
    a task, in the first round.  A prefetch waits until the item exists and has room on the accelerator; a drop is
    skipped if the copy is the last one or is in use.  Steps of one launch (`Step.launch`) start as one kernel, as soon
    as each of their tasks waits, or waits only for tasks before it in the launch; tasks that will never run are left
    out of the launch.

    A plan that is impossible (`Plan.problems`: cycles, unknown devices, ...) is refused before the run.  Cost:
    O(devices of the step) per task; a head behind a running step is checked again when this step has ended, and a head
    that does not fit for another reason (host memory, a device that is down, ...) in every round.
    """

    spreads = frozenset()

    def __init__(self) -> None:
        self.made: Plan | None = None  # the plan that is followed
        self._steps: list[Step] = []
        self._number: dict[int, int] = {}
        self._placements: list[Placement] = []
        self._queues: dict[str, deque[int]] = {}
        self._waiting: dict[int, Task] = {}
        self._started: set[int] = set()
        self._frequencies: list[tuple[Device, float]] = []  # frequencies still to be set
        # heap of steps to try, in plan order; the task of each waits and heads all its devices' queues
        self._due: list[int] = []
        self._alone: list[bool] = []  # by step: True if nothing else fits on its devices while it runs
        # devices on which such a step runs, and the head that was tried there since
        self._taken: dict[str, int | None] = {}
        # prefetches and drops still to come, by task and moment
        self._copies: dict[tuple[int | None, Moment], list[Copy]] = {}
        self._copying: list[Copy] = []  # copies that are due
        # rows of the tasks of a fused launch that are still to start, by its first step
        self._fused: dict[int, list[int]] = {}
        self._modes: dict[int, Mode] = {}  # mode of each of these tasks by itself
        self._last_arrival: dict[int, float] = {}  # last arrival of a task of each of these launches
        self._sizes: list[int] = []  # bytes of each item
        self._devices: dict[str, Device] = {}

    def plan(self, problem: PlanProblem) -> Plan:
        """Return the plan for these tasks on this cluster."""
        raise NotImplementedError

    def prepare(self, problem: PlanProblem) -> None:
        if unknown := int((~np.isfinite(problem.tasks.arrival)).sum()):
            text = f"a static plan needs all arrival times in advance; {unknown} tasks arrive after others have ended"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        plan = self.plan(problem)
        if impossible := plan.problems(problem.tasks, problem.cluster):
            raise ScenarioError([Problem(text, key="plan") for text in impossible])
        figures = {name: float(value) for name, value in plan.figures.items() if value is not None}
        self.notes = {**figures, **plan.notes}
        self.follow(plan, problem.tasks, problem.cluster)

    def follow(self, plan: Plan, tasks: Tasks, cluster: Cluster) -> None:
        """Start to follow a plan, which must be valid (`Plan.problems` returns nothing)."""
        self.made = plan
        self._steps = plan.steps
        self._placements = [placement_of(step, tasks, cluster) for step in plan.steps]
        self._alone = [_fills(placement) for placement in self._placements]
        self._queues = {device: deque(numbers) for device, numbers in plan.queues().items()}
        self._number = {step.task: number for number, step in enumerate(plan.steps)}
        self._fused, self._last_arrival, self._modes = {}, {}, {}
        for first, *others in plan.fused:  # its first step represents the launch in the queue
            self._fused[first] = rows = [plan.steps[number].task for number in (first, *others)]
            self._modes.update({plan.steps[n].task: self._placements[n].mode for n in (first, *others)})
            self._last_arrival[first] = float(tasks.arrival[rows].max())
            self._number.update(dict.fromkeys(rows, first))
            for number in others:
                self._queues[plan.steps[number].devices[0]].remove(number)
        self._frequencies = [(cluster.by_name[name], value) for name, value in plan.frequencies.items()]
        self._devices = cluster.by_name
        self._sizes = [item.size for item in tasks.items]
        self._copies = {}
        for copy in plan.copies:
            moment: Moment = "start" if copy.after is None else copy.moment
            self._copies.setdefault((copy.after, moment), []).append(copy)
        self._reach(None, "start")

    def ready(self, task: Task) -> None:
        number = self._number[task.index]
        self._reach(task.index, "ready")
        if number in self._started:  # it was stopped (a device failed): it returns to the front of its queues
            self._started.discard(number)
            self._leave(number)
            for device in self._steps[number].devices:
                self._queues[device].appendleft(number)
        self._waiting[number] = task
        self._look_at(number)

    def gone(self, task: Task) -> None:
        number = self._number[task.index]
        if (rows := self._fused.get(number)) is not None:
            rows.remove(task.index)
            if rows:  # the other tasks of the launch may now be able to start
                self._look_at(number)
                return
        self._waiting.pop(number, None)
        if number in self._started:
            self._leave(number)
        else:
            self._remove(number)

    def finished(self, task: Task) -> None:
        self._leave(self._number[task.index])
        self._reach(task.index, "finish")

    def schedule(self, view: View) -> Iterator[Decision]:
        refused: list[int] = []
        arrives = math.inf
        while self._frequencies:
            yield Set(*self._frequencies.pop(0))
        if self._copying:
            yield from self._copied(view)
        while self._due:
            number = heappop(self._due)
            placement = self._placements[number]
            if number not in self._waiting or not self._heads(number):
                continue
            devices = self._steps[number].devices
            if (behind := next((device for device in devices if device in self._taken), None)) is not None:
                self._taken[behind] = number
                continue
            tasks: Task | tuple[Task, ...] = self._waiting[number]
            if number in self._fused:
                if (together := view.together(self._fused[number])) is None:
                    refused.append(number)
                    if self._last_arrival[number] > view.now:
                        arrives = min(arrives, self._last_arrival[number])
                    continue
                tasks, placement = self._as_one(number, together)
            if view.fits(placement.mode, placement) and view.holds(tasks, placement):
                del self._waiting[number]
                self._started.add(number)
                if self._alone[number]:
                    self._taken.update(dict.fromkeys(devices))
                self._remove(number)
                for task in tasks if isinstance(tasks, tuple) else (tasks,):
                    self._reach(task.index, "start")
                yield Start(tasks, placement)
                if self._copying:
                    yield from self._copied(view)
            else:
                refused.append(number)
        self._due = refused  # ascending, hence a heap
        if self._copying:
            yield from self._copied(view)
        if arrives < math.inf:
            yield Wait(arrives)

    def _as_one(self, number: int, tasks: tuple[Task, ...]) -> tuple[Task | tuple[Task, ...], Placement]:
        device = self._placements[number].devices
        cores = self._placements[number].cores
        own = [self._modes[task.index] for task in tasks]
        if len(tasks) == 1:
            return tasks[0], Placement(own[0], device, cores)
        return tasks, Placement(fused_mode(own), device, cores)

    def _reach(self, task: int | None, moment: Moment) -> None:
        if self._copies:
            self._copying += self._copies.pop((task, moment), ())

    def _copied(self, view: View) -> Iterator[Decision]:
        """Yield due prefetches and drops of items; blocked prefetches remain due."""
        waiting = []
        for copy in self._copying:
            device, holders = self._devices[copy.device], view.holders(copy.item)
            if copy.drop:
                if device in holders and len(holders) > 1 and not view.in_use(copy.item, device):
                    yield Drop(copy.item, device)
            elif device not in holders:
                if holders and self._sizes[copy.item] <= view.room(device):
                    yield Fetch(copy.item, device)
                else:
                    waiting.append(copy)
        self._copying = waiting

    def _heads(self, number: int) -> bool:
        return all(self._queues[device][0] == number for device in self._steps[number].devices)

    def _look_at(self, number: int) -> None:
        if number in self._waiting and self._heads(number):
            heappush(self._due, number)

    def _leave(self, number: int) -> None:
        """Release the devices of a step, and retry the steps that waited for them."""
        for device in self._steps[number].devices:
            if (head := self._taken.pop(device, None)) is not None:
                heappush(self._due, head)

    def _remove(self, number: int) -> None:
        for device in self._steps[number].devices:
            queue = self._queues[device]
            queue.remove(number)
            if queue:
                self._look_at(queue[0])


def _fills(placement: Placement) -> bool:
    mode, kind = placement.mode, placement.mode.type
    if mode.on_cpu:
        return placement.cores is not None
    return mode.whole_devices and kind.streams == 1 and kind.sharing.kind != "mig"


class Following(PlannedScheduler):
    """A scheduler that follows an existing plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.given = plan

    def plan(self, problem: PlanProblem) -> Plan:
        return self.given


def placement_of(step: Step, tasks: Tasks, cluster: Cluster) -> Placement:
    """Return a step's placement; core lanes (`n0/cpu3`) become cores of their node."""
    mode = tasks.shapes[tasks.shape[step.task]].modes[step.mode]
    if not mode.on_cpu:
        return Placement(mode, tuple(cluster.by_name[name] for name in step.devices))
    lanes = Counter(name.rstrip("0123456789") for name in step.devices)
    device = cluster.by_name[step.devices[0].rstrip("0123456789")]
    if len(lanes) > 1:
        parts = tuple(1000 * count for count in lanes.values())
        return Placement(mode, tuple(cluster.by_name[name] for name in lanes), parts=parts)
    if mode.millicores % 1000:  # parts of cores have no name
        return Placement(mode, (device,))
    return Placement(mode, (device,), tuple(sorted(int(name[len(device.name) :]) for name in step.devices)))
