"""Random order: each task draws a number when ready; the lowest goes first.

Decides when.  Draws come from the run's own stream `policy`, so that runs repeat.
Reference: Kingman, On Queues in Which Customers Are Served in Random Order (1962): the mean wait of fcfs in M/G/1,
at a greater variance.  The baseline that a policy must beat to be worth anything.
Weakness: blind to everything; a long wait is as likely as luck makes it.
Cost: O(log n) a task.
"""

from __future__ import annotations

from hetsim.model.task import Task
from hetsim.policy import Discipline, ListScheduler, PlacementRule, View


class RandomOrder(ListScheduler):
    """A queue in random order."""

    queueing = "blind to sizes"

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "block"):
        super().__init__(self._draw, placement, discipline)

    def begin(self, view: View) -> None:
        self._random = view.random

    def _draw(self, task: Task) -> float:
        return self._random.random()
