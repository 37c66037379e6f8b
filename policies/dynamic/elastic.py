"""What elastic schedulers have in common: GPUs are dealt out step by step among all jobs, then jobs are resized.

A job's modes are its sizes (1, 2, 4, 8 GPUs, with times from `scaling`); the estimates say how fast each is.
Cost: O(GPUs × log jobs) a new allocation, and the stops and starts that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from sim.model.tasks import Mode, Task
from sim.policy import WAIT_FOR_READY, Decision, Scheduler, Start, Stop, View, Wait

SLOWEST = 1e-9
"""Least rate of a mode against the fastest."""


class Elastic(Scheduler):
    """Deals out GPUs anew when jobs come or go, but running jobs are resized at most once an interval.

    Jobs get their least size in the order of `first`, then the next size goes where `gain` a GPU is greatest.
    """

    def __init__(self, interval: float):
        self.interval = interval
        self._total: dict[str, int] = {}
        self._sizes: dict[int, Mode] = {}
        """The mode in which a running job was started, by row."""
        self._next = -math.inf
        """When running jobs may be resized again."""
        self._jobs: int = 1

    def begin(self, view: View) -> None:
        for device in view.cluster.devices:
            share = device.type.streams if device.type.kind != "cpu" else 0
            self._total[device.type.name] = self._total.get(device.type.name, 0) + share
        for node in view.cluster.nodes:
            self._total[node.cpu.type.name] = self._total.get(node.cpu.type.name, 0) + node.cpus

    def finished(self, task: Task) -> None:
        self._sizes.pop(task.index, None)

    def gone(self, task: Task) -> None:
        self._sizes.pop(task.index, None)

    def ready(self, task: Task) -> None:
        self._sizes.pop(task.index, None)

    def first(self, task: Task, left: float) -> Any:
        """Who gets the least size first: the least key.  `left`: estimated time in the fastest mode."""
        return left

    def gain(self, task: Task, left: float, here: Mode, there: Mode) -> float:
        """What a job gains by the next size, for each GPU more."""
        raise NotImplementedError

    def speed(self, task: Task, mode: Mode) -> float:
        """Of a mode: the rate against its fastest, above 0 even where that takes no time."""
        own = mode.fixed + task.estimates[task.shape.position[mode]]
        return max(SLOWEST, task.shortest_estimate / own) if own > 0 else 1.0

    def sizes(self, task: Task) -> list[Mode]:
        """Its sizes from the least on, each faster than all before."""
        modes = [task.modes[position] for position in task.modes_by_speed()]
        kind = modes[0].type
        found: list[Mode] = []
        for mode in sorted((mode for mode in modes if mode.type is kind), key=lambda mode: mode.width):
            if not found or self.speed(task, mode) > self.speed(task, found[-1]):
                found.append(mode)
        return found

    def allocate(self, jobs: list[Task], view: View) -> dict[int, Mode]:
        """The size of each job that gets any."""
        free = {name: float(count) for name, count in self._total.items()}
        self._jobs = max(1, len(jobs))
        left = {task.index: view.remaining(task) for task in jobs}
        for task in jobs:
            mode = self._sizes.get(task.index)
            if mode is not None:  # `remaining` is in its mode
                left[task.index] *= self.speed(task, mode)
        chosen: dict[int, Mode] = {}
        steps: list[tuple[float, int, int, Task, list[Mode]]] = []
        for task in sorted(jobs, key=lambda task: (self.first(task, left[task.index]), task.arrival, task.index)):
            sizes = self.sizes(task)
            if sizes[0].width <= free[sizes[0].type.name]:
                free[sizes[0].type.name] -= sizes[0].width
                chosen[task.index] = sizes[0]
                if len(sizes) > 1:
                    gain = self.gain(task, left[task.index], sizes[0], sizes[1])
                    steps.append((-gain, task.index, 1, task, sizes))
        heapify(steps)
        while steps:
            _, row, step, task, sizes = heappop(steps)
            more = sizes[step].width - sizes[step - 1].width
            name = sizes[step].type.name
            if more > free[name]:
                continue
            free[name] -= more
            chosen[row] = sizes[step]
            if step + 1 < len(sizes):
                gain = self.gain(task, left[row], sizes[step], sizes[step + 1])
                heappush(steps, (-gain, row, step + 1, task, sizes))
        return chosen

    def schedule(self, view: View) -> Iterator[Decision]:
        running, waiting = view.running("start"), view.waiting()
        if not running and not waiting:
            yield WAIT_FOR_READY
            return
        target = self.allocate(running + waiting, view)
        due = view.now >= self._next
        if due:
            for task in running:
                if target.get(task.index) is not self._sizes.get(task.index) and task.shape.preemptible:
                    self._next = view.now + self.interval
                    yield Stop(task)
                    waiting.append(task)
        waiting.sort(key=lambda task: (-target[task.index].width if task.index in target else 0.0, task.arrival))
        for task in waiting:
            if task.index in target:
                smaller = [mode for mode in self.sizes(task) if mode.width <= target[task.index].width]
            else:
                smaller = self.sizes(task)[:1]  # where its share cannot be used by others it may run all the same
            for mode in reversed(smaller):  # where nodes are too broken up, a smaller size
                placement = view.first(mode)
                if placement is not None and not view.holds(task, placement):
                    placement = next((p for p in view.options(task, mode)), None)
                if placement is not None:
                    self._sizes[task.index] = mode
                    yield Start(task, placement)
                    break
        yield Wait(until=self._next if self._next > view.now else math.inf)
