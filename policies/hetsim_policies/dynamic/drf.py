"""Dominant resource fairness: the user with the least dominant share goes first.

Decides when.  A user's dominant share is the greatest of the parts of the cluster's resources (cores, memory, GPUs,
GPU memory aside) that the user's running tasks hold, over the user's weight; the first task of the user with the least
starts next.
Reference: Ghodsi et al., Dominant Resource Fairness: Fair Allocation of Multiple Resource Types (2011): progressive
filling is strategy-proof, envy-free and Pareto-efficient for divisible demands.
Weakness: looks at what is held now, not at the past, so a user that comes late is owed nothing; without preemption a
share that has grown shrinks only as tasks end.
Cost: O(log users) a start and an end; under `skip` the users that wait, once a round.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Discipline, PlacementRule, View
from hetsim_policies.dynamic.common.by_user import ByUser


class Drf(ByUser):
    """Dominant resource fairness.

    weights: of users by name; the others have 1.
    """

    def __init__(
        self,
        weights: dict[str, Annotated[float, Field(gt=0)]] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "skip",
    ):
        super().__init__(weights, placement, discipline)
        self._total: dict[str, float] = {}
        self._held: dict[str, dict[str, float]] = {}
        self._of: dict[int, tuple[str, dict[str, float]]] = {}

    def begin(self, view: View) -> None:
        for node in view.cluster.nodes:
            amounts = {"cores": node.cpus * 1000.0, "memory": float(node.memory or 0)}
            for device in node.accelerators:
                amounts["gpus"] = amounts.get("gpus", 0.0) + device.type.streams
            for name, amount in amounts.items():
                self._total[name] = self._total.get(name, 0.0) + amount

    def standing(self, user: str) -> float:
        usage = self._held.get(user, {})
        parts = (amount / self._total[name] for name, amount in usage.items() if self._total.get(name))
        return max(parts, default=0.0) / self.weight(user)

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        mode = placement.mode
        amounts = {"cores": float(mode.millicores), "memory": float(mode.memory), "gpus": mode.gpu_share}
        usage = self._held.setdefault(task.user, {})
        for name, amount in amounts.items():
            usage[name] = usage.get(name, 0.0) + amount
        self._of[task.index] = task.user, amounts

    def leave(self, task: Task) -> None:
        entry = self._of.pop(task.index, None)
        if entry is not None:
            for name, amount in entry[1].items():
                self._held[entry[0]][name] -= amount
