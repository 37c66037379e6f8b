"""Static policies: a plan made before the clock starts, followed step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from sim.errors import Problem, ScenarioError
from sim.model.cluster import Cluster, Device
from sim.model.plan import Placement, Plan, Step
from sim.model.tasks import Task, Tasks
from sim.policy.contract import Decision, PlanProblem, Scheduler, Set, Start, View


class PlannedScheduler(Scheduler):
    """Base of static policies: `plan` is called once, before the clock starts; then the plan is followed.

    A task starts when it heads the queues of all its devices, they are free and its predecessors are done.
    Frequencies that the plan gives are set in the first round, before anything starts.
    A plan that is impossible (`Plan.problems`: cycles, devices that do not exist, ...) is refused before anything
    runs.  Cost: O(devices of the step) a task, and a look at each queue's head that does not fit a round.
    """

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._number: dict[int, int] = {}
        self._placements: list[Placement] = []
        self._queues: dict[str, deque[int]] = {}
        self._waiting: dict[int, Task] = {}
        self._started: set[int] = set()
        self._frequencies: list[tuple[Device, float]] = []
        """Still to be set."""
        self._due: list[int] = []
        """Steps whose task waits and heads the queues of all its devices: a heap, in the order of the plan."""

    def plan(self, problem: PlanProblem) -> Plan:
        """The plan for these tasks on this cluster."""
        raise NotImplementedError

    def prepare(self, problem: PlanProblem) -> None:
        unknown = int((~np.isfinite(problem.tasks.arrival)).sum())
        if unknown:
            text = f"a plan needs every arrival before the clock starts; {unknown} tasks come when others have ended"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        plan = self.plan(problem)
        impossible = plan.problems(problem.tasks, problem.cluster)
        if impossible:
            raise ScenarioError([Problem(text, key="plan") for text in impossible])
        self.notes = {**_figures(plan), **plan.notes}
        self.follow(plan, problem.tasks, problem.cluster)

    def follow(self, plan: Plan, tasks: Tasks, cluster: Cluster) -> None:
        """From now on: this plan, which has no problems."""
        self._steps = plan.steps
        self._placements = [placement_of(step, tasks, cluster) for step in plan.steps]
        self._queues = {device: deque(numbers) for device, numbers in plan.queues().items()}
        self._number = {step.task: number for number, step in enumerate(plan.steps)}
        self._frequencies = [(cluster.by_name[name], value) for name, value in plan.frequencies.items()]

    def ready(self, task: Task) -> None:
        number = self._number[task.index]
        if number in self._started:  # it was stopped (a device failed): it goes on before what comes after it
            self._started.discard(number)
            for device in self._steps[number].devices:
                self._queues[device].appendleft(number)
        self._waiting[number] = task
        self._look_at(number)

    def gone(self, task: Task) -> None:
        number = self._number[task.index]
        self._waiting.pop(number, None)
        if number not in self._started:
            self._remove(number)

    def schedule(self, view: View) -> Iterator[Decision]:
        refused: list[int] = []
        while self._frequencies:
            yield Set(*self._frequencies.pop(0))
        while self._due:
            number = heappop(self._due)
            placement = self._placements[number]
            if number not in self._waiting or not self._heads(number):
                continue
            task = self._waiting[number]
            if view.fits(placement.mode, placement) and view.holds(task, placement):
                del self._waiting[number]
                self._started.add(number)
                self._remove(number)
                yield Start(task, placement)
            else:
                refused.append(number)
        self._due = refused  # ascending, hence a heap

    def _heads(self, number: int) -> bool:
        return all(self._queues[device][0] == number for device in self._steps[number].devices)

    def _look_at(self, number: int) -> None:
        if number in self._waiting and self._heads(number):
            heappush(self._due, number)

    def _remove(self, number: int) -> None:
        """Take a step out of its queues: others may head them now."""
        for device in self._steps[number].devices:
            queue = self._queues[device]
            queue.remove(number)
            if queue:
                self._look_at(queue[0])


def _figures(plan: Plan) -> dict[str, float]:
    known = {"planned_makespan": plan.makespan, "lower_bound": plan.bound}
    return {name: float(value) for name, value in known.items() if value is not None}


class Following(PlannedScheduler):
    """Follows a plan that is there already."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.given = plan

    def plan(self, problem: PlanProblem) -> Plan:
        return self.given


def placement_of(step: Step, tasks: Tasks, cluster: Cluster) -> Placement:
    """Mode and devices of a step; core lanes become cores of their node."""
    mode = tasks.shapes[tasks.shape[step.task]].modes[step.mode]
    if not mode.on_cpu:
        return Placement(mode, tuple(cluster.by_name[name] for name in step.devices))
    device = cluster.by_name[step.devices[0].rstrip("0123456789")]
    if mode.cpus % 1000:  # parts of cores have no name
        return Placement(mode, (device,))
    return Placement(mode, (device,), tuple(sorted(int(name[len(device.name) :]) for name in step.devices)))
