"""Shortest remaining time first: the task with the least estimated time left runs, by preemption if need be.

Decides when, and who must give way.  Times are those on a task's best mode, so that a task that runs on a slow
device is not taken for a long one.
Reference: Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time Discipline (1968): on one
server, with exact estimates and stops that cost nothing, no policy has fewer tasks in the system at any time.  On
m servers it is O(log min(n/m, P)) competitive for mean response, P the ratio of longest to shortest (Leonardi and
Raz, 1997).  Weakness: long tasks can starve; every stop costs its save and restore; wrong estimates.
Cost: O(log n) a task, and one pass over the running tasks for a head that does not fit.
"""

from __future__ import annotations

from policies.dynamic.preemptive import PreemptiveList
from sim.model.tasks import Task
from sim.model.units import Seconds
from sim.policy import Discipline, PlacementRule, View

ROUNDING = 1e-9
"""Equal times that were computed in two ways differ by less than this part."""


class Srtf(PreemptiveList):
    """Shortest remaining time first.

    margin: a running task gives way only to one that is shorter by more than this (what a stop costs, say).
    """

    def __init__(
        self, placement: PlacementRule | None = None, discipline: Discipline = "block", margin: Seconds = 0.0
    ):
        super().__init__(_time_left, placement, discipline)
        self.margin = margin

    def rank(self, task: Task, view: View) -> float:
        """Of a running task: the fraction still to do, times its estimate on its best mode."""
        placement = view.placement_of(task)
        assert placement is not None
        mode = placement.mode
        whole = mode.fixed + task.estimates[task.shape.position[mode]]
        return view.remaining(task) / whole * task.shortest_estimate if whole > 0 else 0.0

    def yields(self, running: float, waiting: float) -> bool:
        return running > waiting * (1 + ROUNDING) + self.margin


def _time_left(task: Task) -> float:
    return task.shortest_remaining
