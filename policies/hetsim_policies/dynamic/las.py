"""Least attained service, discretized into a few queues; the least goes first.

Decides when, and which task is preempted.  The service a task has attained is GPUs × time (cores × time in CPU modes).
Between two thresholds all are alike and go in the order of arrival; a task that crosses one falls into the next queue,
and is preempted by all that are now before it.  Needs no estimates.
Reference: Nuyens and Wierman, The Foreground-Background Queue: A Survey (2008); discretized and for gangs: Gu et al.,
Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019).  Where sizes are heavy-tailed (decreasing
hazard rate) and stops cost nothing, least attained service minimizes the mean response in M/G/1 among orders that do
not know sizes (Righter and Shanthikumar, 1989).
Weakness: long tasks starve while load is high; with equal sizes worse than fcfs.
Cost: O(log n) a task, a stop and a threshold crossed; one timer a crossing while tasks wait.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Discipline, PlacementRule, View, Wait
from hetsim_policies.dynamic.common.preemptive import PreemptiveList
from hetsim_policies.dynamic.common.running import RunningHeap, RunningList

ROUNDING = 1e-9
"""A threshold that is missed by less than this part has been reached."""


class Las(PreemptiveList):
    """Least attained service.

    thresholds: GPU-seconds (core-seconds) at which a task falls into the next queue; without any, one at an hour.
    """

    def __init__(
        self,
        thresholds: Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(min_length=1)] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
    ):
        super().__init__(self._key, placement, discipline)
        self.thresholds = sorted(thresholds or [3600.0])
        self.order_of_levels = list(range(len(self.thresholds) + 1))
        """The rank of each queue; the least goes first."""
        self._level: dict[int, int] = {}
        """Of tasks that have crossed a threshold, by row."""
        self._starts = 0
        self._running = [RunningList() for _ in self.order_of_levels]
        """By level: running tasks, the latest arrival first."""
        self._crossings = RunningHeap()
        """When running tasks reach their next thresholds."""

    def _key(self, task: Task) -> tuple[int, float, int]:
        return self.order_of_levels[self._level.get(task.index, 0)], task.arrival, task.index

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        self._starts += 1
        task.memo = self._starts
        level = self._level.get(task.index, 0)
        self._running[level].push((-task.arrival, -task.index), task)
        self._foresee_crossing(task, level, placement.mode.width, view)

    def _foresee_crossing(self, task: Task, level: int, width: float, view: View) -> None:
        """Note when a task that runs now, in this queue, reaches the next threshold."""
        if level < len(self.thresholds):
            threshold = self.thresholds[level]
            missing = max(threshold - view.attained(task), ROUNDING * threshold)
            self._crossings.push(view.now + missing / width, task)

    def finished(self, task: Task) -> None:
        self._level.pop(task.index, None)

    def gone(self, task: Task) -> None:
        self._level.pop(task.index, None)

    def victims(self, key: tuple[int, float, int], view: View) -> Iterator[Task]:
        """Running tasks behind in the order of queues and arrivals, the last first."""
        own = -key[1], -key[2]
        for level in sorted(range(len(self._running)), key=self.order_of_levels.__getitem__, reverse=True):
            rank, running = self.order_of_levels[level], self._running[level]
            if rank < key[0]:
                return
            for task in running.until(lambda arrival: arrival >= own) if rank == key[0] else running.all():
                if self._level.get(task.index, 0) == level:
                    yield task

    def beginning(self, view: View) -> None:
        """Tasks that have reached their thresholds fall into the next queues."""
        now = view.now
        while (entry := self._crossings.head()) is not None and entry[0] <= now:
            task = entry[1]
            self._crossings.pop()
            placement = view.launch_of(task).placement
            assert placement is not None
            before = self._level.get(task.index, 0)
            level = max(before, bisect_right(self.thresholds, view.attained(task) * (1 + ROUNDING)))
            if level > before:
                self._level[task.index] = level
                self._running[level].push((-task.arrival, -task.index), task)
                self.ranks_grew()
            self._foresee_crossing(task, level, placement.mode.width, view)

    def until(self, view: View) -> Wait | None:
        if not view.num_waiting(own=True):
            return None
        entry, now = self._crossings.head(), view.now
        if entry is None:
            return Wait()
        return Wait(entry[0] if entry[0] > now else math.nextafter(now, math.inf))
