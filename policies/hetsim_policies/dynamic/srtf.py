"""Shortest remaining time first, by estimate, with preemption.

Decides when, and which task is preempted.  Times are those on a task's best mode, so that a task that runs on a slow
device is not taken for a long one.
Reference: Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time Discipline (1968): on one
server, with exact estimates and stops that cost nothing, no policy has fewer tasks in the system at any time.  On
m servers it is O(log min(n/m, P)) competitive for mean response, P the ratio of longest to shortest (Leonardi and
Raz, 1997).  Weakness: long tasks can starve; every stop costs its save and restore; wrong estimates.
Cost: O(log n) a task and a stop, where running tasks compute steadily in their best mode: the sum of remaining time
and present time is then constant, and a sorted list of it finds the task with most left.  Else one pass over the
running tasks for a head that does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Discipline, PlacementRule, View
from hetsim_policies.dynamic.common.preemptive import PreemptiveList
from hetsim_policies.dynamic.common.running import RunningList

ROUNDING = 1e-9
"""Equal times that were computed in two ways differ by less than this part."""


class Srtf(PreemptiveList):
    """Shortest remaining time first.

    margin: a running task is preempted only by one that is shorter by more than this (what a stop costs, say).
    """

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "block", margin: Seconds = 0.0):
        super().__init__(_time_left, placement, discipline)
        self.margin = margin
        self._worst = math.inf  # nothing is noted of it while ends are
        self._steady = True
        self._starts = 0
        self._ends = RunningList()
        """Running tasks by -end: the latest end first."""

    def rank(self, task: Task, view: View) -> float:
        """The remaining fraction of a running task times its estimate on its best mode."""
        placement = view.launch_of(task).placement
        assert placement is not None
        mode = placement.mode
        total = task.estimate_in(mode)
        return view.remaining(task) / total * task.shortest_estimate if total > 0 else 0.0

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        mode = placement.mode
        best = len(task.modes) == 1 or task.estimate_in(mode) <= task.shortest_estimate
        if self._steady and best and view.changes.steady:
            self._starts += 1
            task.memo = self._starts
            self._ends.push(-(view.now + task.shortest_remaining), task)
            return
        if self._steady:
            self._steady = False
            self._ends.clear()
        super().starting(task, placement, view)

    def victims(self, key: float, view: View) -> Iterable[Task]:
        if not (self._steady and view.changes.steady):
            return super().victims(key, view)
        now = view.now
        return self._ends.until(lambda end: not self.yields(-end - now, key))

    def yields(self, running: float, waiting: float) -> bool:
        return running > waiting * (1 + ROUNDING) + self.margin


def _time_left(task: Task) -> float:
    return task.shortest_remaining
