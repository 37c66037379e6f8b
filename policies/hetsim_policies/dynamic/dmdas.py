"""Deque model data aware sorted (`dmdas` of StarPU): `dmda`, lines by priority.

Decides where, and in which order the tasks of a worker start: the highest `priority` first, among equals the one
farthest from the end of the task graph (by the chain of best estimated times), then as they came.  A task counts as
starting after all that its worker has, although it may overtake them.
Reference: Augonnet, Thibault, Namyst, Wacrenier, StarPU (2011); with priorities by distance from the end it is the
dynamic kin of HEFT, as in Agullo, Beaumont, Eyraud-Dubois, Kumar, Are Static Schedules So Bad? (2016).
Weakness: as `dmda`; and a steady flow of urgent tasks starves the others.
Cost: as `dmda`; the distances once a run, O(n + edges).
"""

from __future__ import annotations

from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim_policies.dynamic.dmda import Dmda
from hetsim_policies.task_graphs import bottom_levels


class Dmdas(Dmda):
    """Least expected completion, urgent tasks first."""

    def study(self, tasks: Tasks) -> None:
        super().study(tasks)
        self._levels = bottom_levels(tasks)

    def key(self, task: Task) -> tuple[float, float]:
        return -task.priority, -self._levels[task.index] if self._levels else 0.0
