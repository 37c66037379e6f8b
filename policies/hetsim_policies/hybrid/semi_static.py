"""A plan for long, predictable tasks, and a queue of other tasks, which fill gaps.

Decides when and where.  Tasks of the `static` classes are planned once, before the run, by a static policy on lanes
(cores, accelerators) that are reserved for them; a planned task starts when it has arrived and is at the head of its
idle lane.  All other tasks wait in the order of `rest` and use unreserved lanes.  A reserved lane, with the host cores
and memory that its planned tasks need, may run another task if that task is expected to end by the arrival of the
lane's next planned task plus `slack`.  With exact estimates no planned task starts later than in the plan by more than
`slack`.  `static: auto` plans each class without a task graph that planners can plan, if it is predictable and long:
the coefficient of variation of its estimated times is at most `cv`, and its mean time at least that of all tasks.
Reference: the split by predictability is that of Hawk, which plans long jobs centrally and leaves short ones to
distributed schedulers (Delgado, Dinu, Kermarrec, Zwaenepoel, Hawk: Hybrid Datacenter Scheduling, USENIX ATC 2015);
filling gaps by estimates is that of Mu'alem and Feitelson (2001).  Weakness: a task that overruns its estimate on a
lent lane delays the plan (`margin` stretches these estimates); planned tasks never use devices that are not reserved,
even idle ones; contention on shared links is not modeled.  When a lane's device fails, its planned tasks join the
unplanned tasks.  Cost: that of the planner; O(lanes of the plan) per round, O(lanes of a node) for each placement
checked, and if the first placement is refused a pass over the nodes on which the task fits.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError, UsageError, refusal
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, Plan, Step, lane_names
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.model.units import Seconds
from hetsim.policy import (
    Decision,
    ListScheduler,
    PlacementRule,
    PlannedScheduler,
    PlanProblem,
    Scheduler,
    Start,
    View,
    Wait,
)
from hetsim.policy.remaining import rows_of
from hetsim_policies.common import grouped
from hetsim_policies.hybrid.common.inner import check_nested
from hetsim_policies.placements import first_fit
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.lists import Mct


class SemiStatic(Scheduler):
    """Planned classes run on reserved devices; other tasks fill the gaps from a queue.

    static: the classes to plan, or "auto".
    planner: a static policy for them, by name or as a mapping with its parameters; default: mct.
    rest: the list order of unplanned tasks; default: fcfs that skips tasks that do not fit.
    reserve: fraction of the lanes of each type to reserve; "auto": the planned classes' share of all estimated work.
    slack: seconds by which an unplanned task on a reserved lane may delay the lane's next planned task.
    cv: for "auto": maximum coefficient of variation of the estimated times of a planned class.
    margin: factor on estimated times of unplanned tasks that fill a gap.
    """

    def __init__(
        self,
        static: Literal["auto"] | list[str] = "auto",
        planner: PlannedScheduler | None = None,
        rest: Scheduler | None = None,
        reserve: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = "auto",
        slack: Annotated[Seconds, Field(ge=0)] = 0.0,
        cv: Annotated[float, Field(ge=0)] = 0.5,
        margin: Annotated[float, Field(gt=0)] = 1.0,
    ):
        self.static = static
        self.planner = Mct() if planner is None else planner
        self.rest = ListScheduler(placement=first_fit, discipline="skip") if rest is None else rest
        self.reserve = reserve
        self.slack = slack
        self.cv = cv
        self.margin = margin
        self.planned: PlanInProgress | None = None
        self._down: set[int] = set()
        self._tasks: dict[int, Task] = {}  # waiting and running tasks

    def check(self, problem: PlanProblem) -> None:
        check_nested(self.rest, "semi_static", "rest", lines=False)
        classes = _classes(problem.tasks)
        if self.static != "auto" and (unknown := [name for name in self.static if name not in classes]):
            names = ", ".join(filter(None, classes)) or "none: give the tasks classes"
            text = f'static must have classes of tasks; got "{unknown[0]}", the classes are {names}'
            raise refusal(text, "policy.scheduler.static")
        self.rest.check(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self.check(problem)
        self.rest.prepare(problem)
        tasks = problem.tasks
        rows = self._rows(problem)
        self.notes = {"planned_tasks": len(rows), "kept_lanes": 0}
        if not len(rows):
            return
        if unknown := int((~np.isfinite(tasks.arrival[rows])).sum()):
            text = f"a static plan needs all arrival times in advance; {unknown} tasks of static classes have none"
            raise refusal(text, "policy.scheduler.static")
        kept = kept_lanes(problem.cluster, self._part(tasks, rows))
        others = {name: np.inf for name in lane_names(problem.cluster) if name not in kept}
        part = PlanProblem(rows_of(tasks, rows), problem.cluster, problem.random, free_at=others)
        try:
            plan = self.planner.plan(part)
        except UsageError as error:
            text = f"semi_static plans a part of the tasks, and {type(self.planner).__name__} cannot: {error}"
            raise refusal(text, "policy.scheduler.planner") from None
        impossible = plan.problems(part.tasks, problem.cluster)
        impossible += [f"the plan uses {name}, which is not reserved" for name in plan.queues() if name not in kept]
        if impossible:
            raise ScenarioError([Problem(text, key="policy.scheduler.planner") for text in impossible])
        self.planned = PlanInProgress(plan, rows, tasks, problem.cluster)
        self.notes = {"planned_tasks": len(rows), "kept_lanes": len(kept)}

    def _rows(self, problem: PlanProblem) -> np.ndarray:
        """Return the rows of the tasks to plan; ScenarioError if they have predecessors."""
        tasks = problem.tasks
        code = np.zeros(len(tasks), dtype=int) if tasks.class_code is None else tasks.class_code
        graph = np.zeros(len(tasks), dtype=bool)
        for row, before in enumerate(tasks.predecessors or ()):
            if before:
                graph[[row, *before]] = True
        if self.static == "auto":
            chosen = [number for number in range(len(tasks.classes)) if self._suits(problem, code == number, graph)]
            return np.flatnonzero(np.isin(code, chosen))
        rows = np.flatnonzero(np.isin(code, [tasks.classes.index(name) for name in self.static]))
        if graph[rows].any():
            first = tasks.name(int(rows[graph[rows]][0]))
            count = int(graph[rows].sum())
            text = f"semi_static plans independent tasks; {count} of its static classes are in a graph ({first}, ...)"
            raise refusal(text, "policy.scheduler.static")
        return rows

    def _suits(self, problem: PlanProblem, which: np.ndarray, graph: np.ndarray) -> bool:
        tasks, rows = problem.tasks, np.flatnonzero(which)
        if not len(rows) or graph[rows].any() or not np.isfinite(tasks.arrival[rows]).all():
            return False
        seconds, overall = fastest(tasks)[rows], float(fastest(tasks).mean())
        mean = float(seconds.mean())
        if not 0 < mean < np.inf or mean < overall or float(seconds.std()) > self.cv * mean:
            return False
        try:
            runnable(replace(problem, tasks=rows_of(tasks, rows)), "semi_static")
        except ScenarioError:
            return False
        return True

    def _part(self, tasks: Tasks, rows: np.ndarray) -> float:
        if self.reserve != "auto":
            return self.reserve
        seconds = fastest(tasks)
        total = float(seconds.sum())
        return float(seconds[rows].sum()) / total if 0 < total < np.inf else 1.0

    def begin(self, view: View) -> None:
        self._view = view if self.planned is None else GapView(view, self.planned, self.slack, self.margin)
        self.rest.begin(self._view)

    def _number(self, task: Task) -> int | None:
        return None if self.planned is None else self.planned.number.get(task.index)

    def ready(self, task: Task) -> None:
        if (number := self._number(task)) is None or self.planned is None:
            self.rest.ready(task)
        elif self._impossible(number, task):
            self.planned.end(number)
            del self.planned.number[task.index]
            self.rest.ready(task)
        elif number in self.planned.ends:
            self.planned.back(number)
        else:
            self.planned.waiting[number] = None
        self._tasks[task.index] = task

    def _impossible(self, number: int, task: Task) -> bool:
        """Return True if step `number` has a failed device or a mode denied by admission."""
        assert self.planned is not None
        if task.allowed is not None and self.planned.steps[number].mode not in task.allowed:
            return True
        devices = [self.planned.lanes[name].device for name in self.planned.steps[number].devices]
        cluster = self._view.cluster
        return any(d.index in self._down or cluster.nodes[d.node].cpu.index in self._down for d in devices)

    def finished(self, task: Task) -> None:
        self._over(task, self.rest.finished)

    def gone(self, task: Task) -> None:
        self._over(task, self.rest.gone)

    def _over(self, task: Task, tell: Callable[[Task], None]) -> None:
        """Remove an ended task from the plan; if it is not planned, call `tell` with it."""
        self._tasks.pop(task.index, None)
        if (number := self._number(task)) is None or self.planned is None:
            tell(task)
        else:
            self.planned.end(number)

    def device(self, device: Device, up: bool) -> None:
        (self._down.discard if up else self._down.add)(device.index)
        if not up and self.planned is not None:
            node = self._view.cluster.nodes[device.node]
            for other in (node.cpu, *node.accelerators) if device is node.cpu else (device,):
                self._give_up(self.planned, other)
        self.rest.device(device, up)

    def _give_up(self, planned: "PlanInProgress", device: Device) -> None:
        for number in planned.forget(device):
            row = planned.steps[number].task
            del planned.number[row]
            if row in self._tasks:
                self.rest.ready(self._tasks[row])

    def announced(self, device: Device, start: float, end: float) -> None:
        self.rest.announced(device, start, end)

    def schedule(self, view: View) -> Iterator[Decision]:
        if (planned := self.planned) is not None:
            for number in planned.next_steps():
                task = self._tasks[planned.steps[number].task]
                placement = planned.placement(number, view.cluster)
                if view.fits(placement.mode, placement) and view.holds(task, placement):
                    planned.begin(number, view.now + view.duration(task, placement))
                    yield Start(task, placement)
        for decision in self.rest.schedule(self._view):
            if not isinstance(decision, Wait):
                yield decision
                continue
            # The other scheduler does not wait for everything that may happen: planned tasks come and end.
            yield Wait(until=decision.until) if planned is not None else decision
            return


class GapView:
    """View of unplanned tasks: a placement fits only if it does not delay the plan."""

    def __init__(self, view: View, planned: "PlanInProgress", slack: float, margin: float):
        self._view = view
        self._planned = planned
        self._slack = slack
        self._margin = margin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def now(self) -> float:
        return self._view.now

    def end(self, task: Task, placement: Placement) -> float:
        """Return the end of a task started now that takes its estimated time × the margin."""
        return self._view.now + self._margin * self._view.duration(task, placement)

    def leaves(self, task: Task, placement: Placement) -> bool:
        return self._planned.leaves(placement, self.end(task, placement), self._slack, self._view)

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            placement = rule(task, self)
            return placement if placement is None or self.leaves(task, placement) else None
        for mode in task.fastest_modes():
            if (placement := self._view.first(mode)) is None:
                continue
            if self.leaves(task, placement) and self._view.holds(task, placement):
                return placement
            end = self.end(task, placement)
            nodes = self._view.nodes.fitting(mode)
            placement = self._planned.spared(mode, end, self._slack, nodes=nodes, view=self._view)
            if placement is not None and self._view.holds(task, placement):
                return placement
        return None

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        if placement is not None and tasks and not all(self.leaves(task, placement) for task in tasks):
            return False
        return self._view.fits(mode, placement, tasks)


def fastest(tasks: Tasks) -> np.ndarray:
    """Estimated seconds of every task in its fastest mode."""
    return tasks.computing(tasks.estimate).min(axis=1)


def _classes(tasks: Tasks) -> list[str]:
    if tasks.class_code is None:
        return tasks.classes[:1] if len(tasks) else []
    return [tasks.classes[number] for number in np.unique(tasks.class_code)]


# A lane (core or accelerator) has its planned tasks in order.  While it is idle it is reserved for the next one, with
# host cores and memory, but may be lent to a task that is expected to end before that one is due.


def kept_lanes(cluster: Cluster, part: float) -> dict[str, Device]:
    """Return the lanes to reserve: of each type the fraction `part`, at least one.

    They are the last lanes, which first-fit placement uses last.
    """
    lanes = lane_names(cluster)
    by_type = grouped((device.type, name) for name, device in lanes.items())
    counts = {kind: max(1, math.ceil(part * len(names) - 1e-9)) for kind, names in by_type.items()}
    return {name: lanes[name] for kind, names in by_type.items() for name in names[-counts[kind] :]}


@dataclass(eq=False, slots=True)
class LaneQueue:
    """A core or GPU with its unstarted planned tasks, by number in the plan."""

    device: Device
    steps: deque[int] = field(default_factory=deque)
    cores: int = 0  # host cores (thousandths) and bytes that its largest planned task needs
    memory: int = 0
    busy: bool = False  # True while a planned task runs there


class PlanInProgress:
    """A plan in progress: the next task of each core or GPU, and when it is due."""

    def __init__(self, plan: Plan, rows: np.ndarray, tasks: Tasks, cluster: Cluster):
        self.steps = [Step(int(rows[step.task]), step.mode, step.devices) for step in plan.steps]
        self.modes: list[Mode] = [tasks.shapes[tasks.shape[step.task]].modes[step.mode] for step in self.steps]
        self.number = {step.task: number for number, step in enumerate(self.steps)}
        self.arrival = [float(tasks.arrival[step.task]) for step in self.steps]
        self.lanes: dict[str, LaneQueue] = {}
        self.on_node: dict[int, list[LaneQueue]] = {}
        self.kept: dict[Device, LaneQueue] = {}  # accelerators of the plan
        self.waiting: dict[int, None] = {}
        self.ends: dict[int, float] = {}  # planned tasks that run, by number, and when they will have ended
        names = lane_names(cluster)
        for number, step in enumerate(self.steps):
            for name in step.devices:
                if name not in self.lanes:
                    device = names[name]
                    self.lanes[name] = LaneQueue(device)
                    self.on_node.setdefault(device.node, []).append(self.lanes[name])
                    if device.local >= 0:
                        self.kept[device] = self.lanes[name]
                self.lanes[name].steps.append(number)
        self.start = self._starts(tasks)

    def _starts(self, tasks: Tasks) -> list[float]:
        """Return when each planned task would start by the estimates.

        On the way, record how many cores and how much memory the steps of each device need at most.
        """
        free: dict[str, float] = {}
        starts = []
        for number, step in enumerate(self.steps):
            mode = self.modes[number]
            start = max([self.arrival[number], *(free.get(name, 0.0) for name in step.devices)])
            end = start + mode.computing(1, float(tasks.estimate[step.task, step.mode]))
            for name in step.devices:
                free[name] = end
                lane = self.lanes[name]
                lane.cores = max(lane.cores, MILLI if mode.on_cpu else -(-mode.millicores // len(step.devices)))
                lane.memory = max(lane.memory, -(-mode.memory // len(step.devices)))
            starts.append(start)
        return starts

    def heads(self, number: int) -> bool:
        """Return True if task `number` is next on all its cores or GPUs, all of them idle."""
        lanes = [self.lanes[name] for name in self.steps[number].devices]
        return all(lane.steps and lane.steps[0] == number and not lane.busy for lane in lanes)

    def next_steps(self) -> list[int]:
        """Return planned tasks that wait and may start now, in plan order; O(devices)."""
        first = dict.fromkeys(lane.steps[0] for lane in self.lanes.values() if lane.steps and not lane.busy)
        return sorted(number for number in first if number in self.waiting and self.heads(number))

    def begin(self, number: int, end: float) -> None:
        for name in self.steps[number].devices:
            lane = self.lanes[name]
            lane.steps.popleft()
            lane.busy = True
        del self.waiting[number]
        self.ends[number] = end

    def end(self, number: int) -> None:
        """Record a task that has ended, or will never start."""
        self.waiting.pop(number, None)
        running = self.ends.pop(number, None) is not None
        for name in self.steps[number].devices:
            lane = self.lanes[name]
            if running:
                lane.busy = False
            elif number in lane.steps:
                lane.steps.remove(number)

    def back(self, number: int) -> None:
        """Put a stopped task back into its queues of cores or GPUs, before later tasks."""
        self.end(number)
        for name in self.steps[number].devices:
            self.lanes[name].steps.appendleft(number)
        self.waiting[number] = None

    def placement(self, number: int, cluster: Cluster) -> Placement:
        """Return a planned task's placement; on a CPU the task may use any free cores."""
        mode, names = self.modes[number], self.steps[number].devices
        if mode.on_cpu:
            return Placement(mode, (self.lanes[names[0]].device,))
        return Placement(mode, tuple(cluster.by_name[name] for name in names))

    def forget(self, device: Device) -> list[int]:
        """Remove a failed device's tasks from the plan; return their numbers."""
        lanes = [lane for lane in self.on_node.get(device.node, ()) if lane.device is device]
        numbers = dict.fromkeys(number for lane in lanes for number in lane.steps)
        for number in numbers:
            self.end(number)
        return list(numbers)

    def claimed(self, node: int, end: float, slack: float) -> tuple[dict[Device, None], float, float]:
        """Return the resources of a node that must not be lent until `end`.

        They are: the accelerators that run a planned task, or whose next planned task is due before `end` - `slack`;
        and the cores and bytes that such next tasks need on the host.
        """
        devices: dict[Device, None] = {}
        cores = memory = 0.0
        for lane in self.on_node.get(node, ()):
            # The next planned task of an idle lane may start at its arrival.
            soon = not lane.busy and bool(lane.steps) and self.arrival[lane.steps[0]] + slack < end
            if (lane.busy or soon) and lane.device.local >= 0:
                devices[lane.device] = None
            if soon:
                cores += lane.cores / MILLI
                memory += lane.memory
        return devices, cores, memory

    def leaves(self, placement: Placement, end: float, slack: float, view: View) -> bool:
        """Return True if a task that runs until `end` leaves room for planned ones."""
        mode = placement.mode
        for node, count in Counter(device.node for device in placement.devices).items():
            devices, cores, memory = self.claimed(node, end, slack)
            if mode.gpus and any(device in devices for device in placement.devices):
                return False
            part = count / max(1, mode.gpus)
            free = view.free(view.cluster.nodes[node].cpu.type.name, node)
            if mode.millicores and cores and mode.millicores * part / MILLI > free - cores + 1e-9:
                return False
            if mode.memory and memory:
                view.nodes.refresh()
                if mode.memory * part > view.nodes.memory[node] - memory:
                    return False
        return True

    def spared(self, mode: Mode, end: float, slack: float, nodes: Iterable[int], view: View) -> Placement | None:
        """Return a placement on one of the nodes that delays no planned task, or None."""
        for node in nodes:
            if not mode.gpus:
                placement = view.first(mode, node=node)
                if placement is not None and self.leaves(placement, end, slack, view):
                    return placement
                continue
            devices, _, _ = self.claimed(node, end, slack)
            unplanned = (d for d in view.cluster.nodes[node].accelerators if d.type is mode.type and d not in devices)
            if mode.gpus == 1:
                free = (device for device in unplanned if view.fits(mode, Placement(mode, (device,))))
            else:
                free = (device for device in unplanned if not view.load(device))
            chosen = tuple(islice(free, mode.gpus))
            placement = Placement(mode, chosen)
            if len(chosen) == mode.gpus and view.fits(mode, placement) and self.leaves(placement, end, slack, view):
                return placement
        return None
