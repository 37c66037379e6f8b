"""Shortest remaining time first: the task with the least estimated time left runs, by preemption if need be.

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

from bisect import insort
from collections.abc import Iterable, Iterator

from policies.dynamic.common.preemptive import PreemptiveList
from sim.model.plan import Placement
from sim.model.tasks import RUNNING, Task
from sim.model.units import Seconds
from sim.policy import Discipline, PlacementRule, View

ROUNDING = 1e-9
"""Equal times that were computed in two ways differ by less than this part."""


class Srtf(PreemptiveList):
    """Shortest remaining time first.

    margin: a running task is preempted only by one that is shorter by more than this (what a stop costs, say).
    """

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "block", margin: Seconds = 0.0):
        super().__init__(_time_left, placement, discipline)
        self.margin = margin
        self._steady = True
        self._starts = 0
        self._limit = 64
        self._ends: list[tuple[float, int, Task]] = []
        """(-end, number of the start, task): running tasks, the latest end first, and void entries."""

    def rank(self, task: Task, view: View) -> float:
        """The remaining fraction of a running task times its estimate on its best mode."""
        placement = view.launch_of(task).placement
        assert placement is not None
        mode = placement.mode
        whole = mode.fixed + task.estimates[task.shape.position[mode]]
        return view.remaining(task) / whole * task.shortest_estimate if whole > 0 else 0.0

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        super().starting(task, placement, view)
        mode = placement.mode
        if not view.changes.steady or task.estimates[task.shape.position[mode]] + mode.fixed > task.shortest_estimate:
            self._steady = False
            self._ends.clear()
        if self._steady:
            self._starts += 1
            task.memo = self._starts  # tells the entry of this start from those of earlier ones
            insort(self._ends, (-(view.now + task.shortest_remaining), self._starts, task))
            if len(self._ends) > self._limit:
                self._ends = [e for e in self._ends if e[2] is task or e[2].state == RUNNING and e[2].memo == e[1]]
                self._limit = max(64, 2 * len(self._ends))

    def victims(self, key: float, view: View) -> Iterable[Task]:
        return self._latest_ends(key, view) if self._steady and view.changes.steady else super().victims(key, view)

    def _latest_ends(self, key: float, view: View) -> Iterator[Task]:
        """The running tasks to preempt, the latest end first."""
        now = view.now
        for end, start, task in self._ends:
            if task.state == RUNNING and task.memo == start:
                if not self.yields(-end - now, key):
                    return
                yield task

    def yields(self, running: float, waiting: float) -> bool:
        return running > waiting * (1 + ROUNDING) + self.margin


def _time_left(task: Task) -> float:
    return task.shortest_remaining
