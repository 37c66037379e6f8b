"""Weighted fair queueing: users share the cluster in proportion to their weights.

Decides when.  Every task carries two virtual tags: its start is the later of the virtual time and its user's last
finish tag, its finish that plus its service (GPUs × estimated time; cores × time) over the user's weight.  The least
start tag starts next; the virtual time is that of what started last (start-time fair queueing, which needs no
simulated fluid system).
Reference: Demers, Keshav, Shenker, Analysis and Simulation of a Fair Queueing Algorithm (1989); Goyal, Vin, Cheng,
Start-time Fair Queueing (1996): on one server the service of two users with waiting tasks differs, over their weights,
by no more than one task of each.
Weakness: estimates decide which user pays; a user gains nothing from having been idle.  On many servers the bound grows
with their number.  Cost: O(log n) a task under `block`, O(shapes) a round more under `skip`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Discipline, ListScheduler, PlacementRule, View


class Wfq(ListScheduler):
    """Weighted fair queueing between users.

    weights: of users by name; the others have 1.
    """

    def __init__(
        self,
        weights: dict[str, Annotated[float, Field(gt=0)]] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
    ):
        super().__init__(self._tag, self._begin, discipline)
        self.weights = weights or {}
        self.rule = placement
        self._virtual = 0.0
        self._last: dict[str, float] = {}
        """By user: the finish tag of the last task that came."""
        self._tags: dict[int, tuple[float, float]] = {}
        """Of waiting and running tasks, by row: start and finish tag, kept through stops."""

    def _tag(self, task: Task) -> float:
        tags = self._tags.get(task.index)
        if tags is None:
            mode = task.modes[task.modes_by_speed()[0]]
            begin = max(self._virtual, self._last.get(task.user, 0.0))
            service = mode.width * task.shortest_estimate / self.weights.get(task.user, 1.0)
            tags = self._tags[task.index] = begin, begin + service
            self._last[task.user] = tags[1]
        return tags[0]

    def _begin(self, task: Task, view: View) -> Placement | None:
        placement = view.fit(task) if self.rule is None else self.rule(task, view)
        if placement is not None:
            self._virtual = max(self._virtual, self._tags[task.index][0])
        return placement

    def finished(self, task: Task) -> None:
        self._tags.pop(task.index, None)

    def gone(self, task: Task) -> None:
        self._tags.pop(task.index, None)
