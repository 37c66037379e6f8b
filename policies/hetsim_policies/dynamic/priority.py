"""Priority: the highest priority goes first, with optional aging and preemption.

Decides when, and with preemption which running task is preempted.  Equal priorities go in the order of arrival and
never stop each other.
Reference: Cobham, Priority Assignment in Waiting Line Problems (1954), and for preemption White and Christie,
Queuing with Preemptive Priorities (1958); both give the exact mean waits for M/M/1.  Aging, a priority that grows
with time in the system, is Kleinrock's delay-dependent discipline (1964).
Weakness: without aging low priorities starve while the higher ones fill the devices.
Cost: O(log n) a task; if preemptive, one pass over the running tasks for a head that does not fit.
"""

from __future__ import annotations

from hetsim.model.task import Task
from hetsim.model.units import PerSecond
from hetsim.policy import Discipline, PlacementRule
from hetsim_policies.dynamic.common.preemptive import PreemptiveList


class Priority(PreemptiveList):
    """Highest `priority` first.

    preemptive: a head that does not fit stops running tasks of lower priority.
    aging: priority gained per second since arrival.  All grow alike, so the order of two tasks never changes and
        the key stays constant: slope × arrival - priority.
    """

    queueing = "priorities"

    def __init__(
        self,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = False,
        aging: PerSecond = 0.0,
    ):
        super().__init__(self._key, placement, discipline, preemptive)
        self.aging = aging

    def _key(self, task: Task) -> float:
        return self.aging * task.arrival - task.priority
