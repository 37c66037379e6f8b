"""HeteroPrio: GPUs take the tasks that gain most from a GPU, cores the opposite.

Decides when, where, and which tasks are restarted.  Ready tasks are sorted by acceleration: the time on a core divided
by the time on a GPU (in the fastest mode on each side).  An idle GPU takes tasks from the most accelerated end, an
idle core from the other.  Equally accelerated tasks are sorted by `priority`, then by the distance from the end of the
task graph; the task with the highest value is next for the side (GPUs or cores) on which these tasks are faster.  An
idle device that finds no task restarts a running task of the other side that would then end earlier; the task that ends
last is tried first (spoliation: the work done is lost).
Reference: Agullo, Bramas, Coulaud, Darve, Messner, Takahashi, Task-based FMM for Heterogeneous Architectures (2015);
Beaumont, Eyraud-Dubois, Kumar, Approximation Proofs of a Fast and Efficient List Scheduling Algorithm for Task-Based
Runtime Systems on Multicores and GPUs (2017), and Fast Approximation Algorithms for Task-Based Runtime Systems
(2018).  With spoliation the makespan of independent tasks is at most phi = 1.618 times the minimum on one core and one
GPU, 1 + phi on m cores and one GPU, 2 + sqrt 2 on m cores and k GPUs; that of graphs is at most 2 + max(m/k, k/m) times
the minimum (Beaumont, Eyraud-Dubois, Simon, Analysis of a List Scheduling Algorithm for Task Graphs on Two Types of
Resources, 2020).  Without spoliation there is no bound: the last idle core may take a task that a GPU would finish far
sooner.  Weakness: transfers are not counted when a task is chosen; the work and energy of restarted tasks are lost.
Cost: O(distinct demands + log n) per decision.  Spoliation considers only tasks that run on their slower side and, if
tasks have no transfers, only tasks that would end earlier after a restart.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, Stop, View
from hetsim_policies.dynamic.common.two_ended import TwoEnded
from hetsim_policies.task_graphs import bottom_levels

CORES, ACCELERATORS = 0, 1  # sides, and the ends of a queue from which they take tasks
ROUNDING = 1e-9  # a restart must gain more than this fraction of the time to the end


class HeteroPrio(Scheduler):
    """HeteroPrio: one queue by acceleration; GPUs and CPUs take opposite ends.

    spoliation: idle devices may restart tasks that run on the other side.
    """

    def __init__(self, spoliation: bool = True):
        self.spoliation = spoliation
        self.queues: defaultdict[Shape, TwoEnded] = defaultdict(TwoEnded)
        self._levels: list[float] = []
        # By side and shape: tasks that run on this side although the other side would be faster
        self._misplaced: tuple[dict[Shape, dict[int, Task]], dict[Shape, dict[int, Task]]] = ({}, {})
        # By side, a heap of misplaced tasks: (-last time at which a restart pays, row, ticket, task)
        self._worth: tuple[list[Any], list[Any]] = ([], [])
        self._blocked: dict[tuple[Shape, int], None] = {}
        self._limit = 64
        self._releases = -1

    def prepare(self, problem: PlanProblem) -> None:
        self._levels = bottom_levels(problem.tasks)

    def ready(self, task: Task) -> None:
        self.finished(task)
        key = self.key(task)
        self.queues[task.shape].push(task, tuple(-part for part in key), key)

    def finished(self, task: Task) -> None:
        for misplaced in self._misplaced:
            if (tasks := misplaced.get(task.shape)) and tasks.pop(task.index, None) and not tasks:
                del misplaced[task.shape]

    gone = finished

    def key(self, task: Task) -> tuple[float, ...]:
        """Sort key of a task in the queue; accelerators take the lowest."""
        core, gpu = best_times(task)
        acceleration = 1.0 if core == gpu else core / gpu if gpu else math.inf  # both may be 0
        sign = -1.0 if acceleration >= 1 else 1.0
        level = self._levels[task.index] if self._levels else 0.0
        return -acceleration, sign * task.priority, sign * level, task.ready, task.index

    def schedule(self, view: View) -> Iterator[Decision]:
        if view.changes.releases != self._releases:
            self._releases = view.changes.releases
            self._blocked.clear()
        for side in (ACCELERATORS, CORES):
            yield from self._take(side, view)
        if self.spoliation:
            for side in (ACCELERATORS, CORES):
                yield from self._spoliate(side, view)

    def _take(self, side: int, view: View) -> Iterator[Decision]:
        heads: list[Any] = []
        for number, (shape, queue) in enumerate(self.queues.items()):
            entry = queue.head(side) if (shape, side) not in self._blocked and _modes(shape, side) else None
            if entry is not None:
                heappush(heads, (entry[0], number, entry[2], queue))
        while heads:
            _, number, task, queue = heappop(heads)
            if (placement := self._place(task, side, view)) is None:
                if not any(view.fits(mode) for mode in _modes(task.shape, side)):
                    self._blocked[task.shape, side] = None
                continue
            yield self._start(task, placement, view)
            if (entry := queue.head(side)) is not None:
                heappush(heads, (entry[0], number, entry[2], queue))

    @staticmethod
    def _place(task: Task, side: int, view: View) -> Placement | None:
        for mode in task.fastest_modes():
            if mode.on_cpu == (side == CORES) and (placement := view.first(mode, task)) is not None:
                return placement
        return None

    def _start(self, task: Task, placement: Placement, view: View) -> Start:
        core, gpu = best_times(task)
        side = CORES if placement.mode.on_cpu else ACCELERATORS
        here, there = (core, gpu) if side == CORES else (gpu, core)
        if self.spoliation and there < here and task.shape.preemptible:
            self._misplaced[side].setdefault(task.shape, {})[task.index] = task
            gain = task.estimate_in(placement.mode) - there
            heappush(self._worth[side], (-(view.now + gain * (1.0 - task.done)), task.index, task.ticket, task))
        return Start(task, placement)

    def _spoliate(self, side: int, view: View) -> Iterator[Decision]:
        shapes = [shape for shape in self._misplaced[1 - side] if any(view.fits(mode) for mode in _modes(shape, side))]
        if not shapes:
            return
        if view.changes.steady:
            tasks = self._worth_it(1 - side, view.now)
        else:
            tasks = [task for shape in shapes for task in self._misplaced[1 - side][shape].values()]
        ranked = [(-view.launch_of(task).finish, -task.priority, task.index, task) for task in tasks]
        for end, _, _, task in sorted(ranked):
            if task.state != RUNNING:
                continue
            placement = self._place(task, side, view)
            if placement is None and not any(view.fits(mode) for shape in shapes for mode in _modes(shape, side)):
                return
            if placement is not None and from_scratch(task, placement, view) < (-end - view.now) * (1 - ROUNDING):
                yield Stop(task, keep=False)
                yield self._start(task, placement, view)

    def _worth_it(self, side: int, now: float) -> list[Task]:
        """Return tasks on `side` that would end earlier on the other, by compute times."""
        heap, candidates = self._worth[side], []
        while heap and -heap[0][0] > now:
            entry = heappop(heap)
            task = entry[3]
            if task.ticket == entry[2] and task.index in self._misplaced[side].get(task.shape, ()):
                candidates.append(entry)
        for entry in candidates:
            heappush(heap, entry)
        if len(heap) > self._limit:  # entries of tasks that have ended
            heap[:] = [e for e in heap if e[3].ticket == e[2] and e[1] in self._misplaced[side].get(e[3].shape, ())]
            heapify(heap)
            self._limit = max(64, 2 * len(heap))
        return [entry[3] for entry in candidates]


def from_scratch(task: Task, placement: Placement, view: View) -> float:
    """Return seconds to the end if the task restarts now and its present work is lost."""
    stages = view.stages((task,), placement)
    return max(stages.ready, stages.write_back) + stages.upload + task.estimate_in(placement.mode) + stages.download


def best_times(task: Task) -> tuple[float, float]:
    """Minimum estimated time on cores and on accelerators; inf if impossible."""
    best = [math.inf, math.inf]
    for position in task.modes_by_speed():
        side = CORES if task.modes[position].on_cpu else ACCELERATORS
        best[side] = min(best[side], task.estimate_at(position))
    return best[CORES], best[ACCELERATORS]


def _modes(shape: Shape, side: int) -> list[Mode]:
    return [mode for mode in shape.modes if mode.on_cpu == (side == CORES)]
