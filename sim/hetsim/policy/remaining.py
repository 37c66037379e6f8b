"""The remainder of a run as a planning problem: the tasks that have not started.

A policy that plans again during a run has a `Progress`, forwards its own hooks to it, and calls `Progress.rest`.  Only
estimates are used: the expected finish of running tasks, the estimated time of all other tasks.  A plan can be tried in
a fork of the run (`PlanProblem.simulate`).
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Plan, Step, lane_names
from hetsim.model.record import COMPLETED
from hetsim.model.task import RUNNING, Task
from hetsim.model.tasks import Tasks
from hetsim.policy.contract import PlanProblem, View
from hetsim.policy.planned import PlannedScheduler


@dataclass(frozen=True)
class RemainingProblem:
    """A plan problem of some tasks, and the rows of these tasks in the whole problem."""

    problem: PlanProblem
    rows: list[int]
    left_out: list[int]  # rows that no available lane can run, and rows that wait for them

    def steps(self, plan: Plan) -> list[Step]:
        """Convert a plan of the remaining tasks to steps with the original task numbers."""
        return [Step(self.rows[step.task], step.mode, step.devices) for step in plan.steps]


class Progress:
    """Tracks which tasks of a planning problem ended; `rest` is the remaining problem.

    Policies call the methods in their hooks.  Cost: O(1) a call; `rest` is linear in unfinished tasks and their items.
    """

    def __init__(self, problem: PlanProblem) -> None:
        self.problem = problem
        self.lanes = lane_names(problem.cluster)
        self._tasks: dict[int, Task] = {}  # tasks that have been ready and have not ended
        self._left = dict.fromkeys(range(len(problem.tasks)))
        self._down: dict[int, Device] = {}

    def ready(self, task: Task) -> None:
        self._tasks[task.index] = task

    def ended(self, task: Task) -> None:
        """Record that a task ended; called by the hooks `finished` and `gone`."""
        self._tasks.pop(task.index, None)
        self._left.pop(task.index, None)

    def device(self, device: Device, up: bool) -> None:
        if up:
            self._down.pop(device.index, None)
        else:
            self._down[device.index] = device

    def is_up(self, device: Device) -> bool:
        """Return True if neither the device nor its node is down."""
        return device.index not in self._down and self.problem.cluster.nodes[device.node].cpu.index not in self._down

    @property
    def count(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._left)

    def rest(
        self,
        view: View,
        foresight: bool = True,
        finish: Callable[[Task], float] | None = None,
        wanted: Callable[[int], bool] | None = None,
    ) -> RemainingProblem:
        """Return the tasks that have not started as a plan problem.

        Running tasks occupy their devices until they end; tasks that wait for them arrive at that time.  Stopped tasks
        have their remaining work.

        foresight: True to include the tasks that arrive later.  finish: function that returns the end of a running
        task; None: the estimate of the view.  wanted: function of a task's row that returns False if the planner cannot
        plan the task; such tasks are omitted, and also those that depend on them.
        """
        now = view.now
        arrival = self.problem.tasks.arrival
        running = {row: task for row, task in self._tasks.items() if task.state == RUNNING}
        finish = finish or (lambda task: view.launch_of(task).finish)
        ends = {row: max(now, finish(task)) for row, task in running.items()}
        free_at = {name: math.inf for name, device in self.lanes.items() if not self.is_up(device)}
        self._occupy(free_at, running, ends, view)
        up = {device.type for name, device in self.lanes.items() if free_at.get(name, now) < math.inf}
        before = self.problem.tasks.predecessors
        rows: list[int] = []
        left_out: dict[int, None] = {}
        since: dict[int, float] = {}
        for row in self._left:
            announced = row in self._tasks or arrival[row] <= now or (foresight and math.isfinite(arrival[row]))
            if row in running or not announced or (wanted is not None and not wanted(row)):
                continue
            waits_for = before[row] if before is not None else ()
            if not self._can_run(row, up) or any(p in left_out for p in waits_for):
                left_out[row] = None
                continue
            rows.append(row)
            since[row] = max([now, float(arrival[row]), *(ends[p] for p in waits_for if p in ends)])
        rows = self._closed(rows, running)
        rows.sort(key=since.__getitem__)  # stable
        tasks = self._table(rows, [since[row] for row in rows])
        simulate = _not_with_foresight if foresight else Trials(view, self.problem, rows).simulate
        problem = in_mid_run(
            self.problem, tasks, now, free_at=free_at, data=self._data(rows, running, view), simulate=simulate
        )
        return RemainingProblem(problem, rows, list(left_out))

    def _can_run(self, row: int, up: Container[DeviceType]) -> bool:
        modes = self.problem.tasks.shapes[self.problem.tasks.shape[row]].modes
        task = self._tasks.get(row)
        allowed = range(len(modes)) if task is None or task.allowed is None else task.allowed
        return any(modes[i].type in up for i in allowed)

    def _closed(self, rows: list[int], running: dict[int, Task]) -> list[int]:
        if (before := self.problem.tasks.predecessors) is None:
            return rows
        seen = dict.fromkeys(rows)
        while True:
            waiting = [r for r in seen if any(p in self._left and p not in seen and p not in running
                                               for p in before[r])]  # fmt: skip
            if not waiting:
                return list(seen)
            for row in waiting:
                del seen[row]

    def _occupy(self, free_at: dict[str, float], running: dict[int, Task], ends: dict[int, float], view: View) -> None:
        cores: dict[Device, list[float]] = {}
        for row, task in running.items():
            if (placement := view.launch_of(task).placement) is None:
                continue
            for device in placement.devices:
                if not placement.mode.on_cpu:
                    if device.type.streams == 1:
                        free_at[device.name] = max(free_at.get(device.name, 0.0), ends[row])
                    elif device.name not in free_at:
                        free_at[device.name] = max(view.now, view.free_at(device))
                elif placement.cores is not None:
                    free_at.update({f"{device.name}{core}": ends[row] for core in placement.cores})
                else:
                    count = max(1, -(-placement.mode.millicores // MILLI))
                    cores.setdefault(device, []).extend([ends[row]] * count)
        for device, times in cores.items():  # launches without named cores: any free cores
            names = [name for name, owner in self.lanes.items() if owner is device and name not in free_at]
            free_at.update(zip(names, times, strict=False))

    def _table(self, rows: list[int], since: Sequence[float]) -> Tasks:
        tasks = self.problem.tasks
        chosen = np.array(rows, dtype=np.int64)
        time = np.array(tasks.time[chosen], dtype=float)
        size = np.zeros(len(rows)) if tasks.bytes_in is None else np.array(tasks.bytes_in[chosen], dtype=float)
        for position, row in enumerate(rows):
            if (task := self._tasks.get(row)) is None:
                continue
            modes: tuple[Mode, ...] = task.shape.modes
            if task.done > 0:
                stopping = task.shape.stopping
                size[position] = stopping.state + (0.0 if stopping.input_saved else size[position])
                fixed = np.array([mode.single for mode in modes])
                width = len(modes)
                time[position, :width] = np.maximum(0.0, (fixed + time[position, :width]) * (1 - task.done) - fixed)
            if task.allowed is not None:
                time[position, [i for i in range(len(modes)) if i not in task.allowed]] = np.inf

        return replace(rows_of(tasks, rows, np.array(since, dtype=float)), time=time, estimate=time,
                       bytes_in=size if size.any() else None)  # fmt: skip

    def _data(self, rows: list[int], running: dict[int, Task], view: View) -> dict[int, Sequence[Device | int]]:
        """Return holders of the items that `rows` read, once the running tasks have ended."""
        if (reads := self.problem.tasks.reads) is None:
            return {}
        places: dict[int, Sequence[Device | int]] = {}
        for row in rows:
            for item in reads[row]:
                if item not in places:
                    places[item] = view.holders(item)
        for task in running.values():
            if (placement := view.launch_of(task).placement) is not None:
                places.update({item: [placement.devices[0]] for item in task.writes if item in places})
        return {item: holders for item, holders in places.items() if holders}


def in_mid_run(
    problem: PlanProblem,
    tasks: Tasks,
    now: float = 0.0,
    free_at: Mapping[str, float] | None = None,
    data: Mapping[int, Sequence[Device | int]] | None = None,
    simulate: Callable[[Plan], float] | None = None,
) -> PlanProblem:
    """Return a plan problem of these tasks on the same cluster that begins at `now`.

    free_at, data, simulate: as in `PlanProblem`.
    """
    return replace(
        problem, tasks=tasks, now=now, free_at=free_at or {}, data=data or {}, in_mid_run=True,
        simulate=simulate or _not_in_mid_run, rehearse=_not_rehearsed,
    )  # fmt: skip


class Resumed(PlannedScheduler):
    """A scheduler that follows a plan for some tasks of a run in progress."""

    def __init__(self, plan: Plan, tasks: Tasks, cluster: Cluster) -> None:
        super().__init__()
        self.follow(plan, tasks, cluster)

    def has(self, task: Task) -> bool:
        return task.index in self._number

    def ready(self, task: Task) -> None:
        if self.has(task):
            super().ready(task)

    def finished(self, task: Task) -> None:
        if self.has(task):
            super().finished(task)

    def gone(self, task: Task) -> None:
        if self.has(task):
            super().gone(task)


class Trials:
    """Tries plans for the remaining tasks in forks of the run."""

    def __init__(self, view: View, problem: PlanProblem, rows: Sequence[int]) -> None:
        self._view = view
        self._problem = problem
        self._rows = list(rows)

    def simulate(self, plan: Plan) -> float:
        """Return a plan's estimated makespan from now on; inf if not all of its tasks end."""
        full = self._whole(plan)
        record = self._view.fork(Resumed(full, self._problem.tasks, self._problem.cluster)).run()
        planned = [step.task for step in full.steps]
        if not planned:
            return 0.0
        if (record.status[planned] != COMPLETED).any():
            return math.inf
        return float(record.finish[planned].max()) - self._view.now

    def _whole(self, plan: Plan) -> Plan:
        rows = self._rows
        copies = [one if one.after is None else replace(one, after=rows[one.after]) for one in plan.copies]
        steps = [Step(rows[step.task], step.mode, step.devices) for step in plan.steps]
        return replace(plan, steps=steps, copies=copies)


def rows_of(tasks: Tasks, rows: Sequence[int] | np.ndarray, arrival: np.ndarray | None = None) -> Tasks:
    """Return a table of some rows; `arrival`: new arrival times in ascending order."""
    chosen = np.array(rows, dtype=np.int64)
    kept: list[int] = chosen.tolist()
    number = {row: position for position, row in enumerate(kept)}
    columns = tasks.taken(chosen)
    for name in ("predecessors", "reads", "writes"):
        if (column := getattr(tasks, name)) is not None:
            columns[name] = [column[row] for row in kept]
    if arrival is not None:
        columns["arrival"] = arrival
    if "predecessors" in columns:
        columns["predecessors"] = [tuple(number[p] for p in some if p in number) for some in columns["predecessors"]]
    columns |= {
        "id": np.array([tasks.name(row) for row in kept], dtype=object), "expires": None, "hash_ids": None,
        "work": None if tasks.work is None else tasks.work.take(chosen), "extra": {}, "staged": None,
        "refused": {number[row]: text for row, text in tasks.refused.items() if row in number},
    }  # fmt: skip
    return replace(tasks, **columns)


def _not_in_mid_run(_: Any) -> Any:
    raise UsageError("this plan problem cannot simulate plans; call in_mid_run with simulate")


def _not_with_foresight(_: Any) -> Any:
    raise UsageError("with foresight no plan can be simulated: a fork of the run has no tasks that arrive later")


def _not_rehearsed(_: Any) -> Any:
    raise UsageError("it must simulate a scheduler (`rehearse`), which is possible only before the run")
