"""Earliest deadline first: nearest deadline goes first, tasks without one last.

Decides when, with preemption which running task is preempted, and if wanted which tasks are dropped.
Reference: Liu and Layland, Scheduling Algorithms for Multiprogramming (1973); Dertouzos (1974): preemptive and on
one server it meets all deadlines whenever any policy can.  Not so on several (Dhall and Liu, 1978).
Weakness: under overload it runs what is about to be late and misses one deadline after the other; `drop_expired`
cuts that short.
Cost: O(log n) a task; if preemptive, one pass over the running tasks for a head that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from hetsim.policy import Decision, Discipline, PlacementRule, Reject, View
from hetsim_policies.dynamic.common.preemptive import PreemptiveList
from hetsim_policies.orders import edf


class Edf(PreemptiveList):
    """Earliest deadline first.

    preemptive: a head that does not fit stops running tasks with later deadlines.
    drop_expired: a waiting task that comes to the head of its queue when its deadline has passed expires.
    """

    def __init__(
        self,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = False,
        drop_expired: bool = False,
    ):
        super().__init__(edf, placement, discipline, preemptive)
        self.drop_expired = drop_expired

    def schedule(self, view: View) -> Iterator[Decision]:
        if self.drop_expired:
            for queue in self.queues():
                # Deadlines ascend along the queue: the expired ones are all at its head.
                while (task := queue.head()) is not None and task.deadline <= view.now:
                    yield Reject(task, "its deadline passed while it waited", expired=True)
        yield from super().schedule(view)
