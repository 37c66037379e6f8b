"""EASY backfilling: the head has a reservation; tasks that cannot delay it pass.

Decides when.  Tasks start in the order of arrival until one, the head, does not fit.  Its shadow is the earliest
time, and the node, at which it could start if running tasks ended as estimated.  Tasks behind it start, in order of
arrival, if they end by then, run elsewhere, or leave there what the head needs.
Reference: Lifka, The ANL/IBM SP Scheduling System (1995); Mu'alem and Feitelson, Utilization, Predictability,
Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling (2001).  With exact estimates a head
never starts after the shadow it had when it became head.  Only the head has a guarantee.
Estimates wrong in both directions: a task that ends early lets the shadow come nearer, since it is found again after
every release; a task that overruns counts as ending at once, and keeps what it has.
Weakness: a wide task far down the queue can be passed by any number of others; overestimates hide holes.
Cost: O(log n) a task, the tasks of the window that may fit, and one shadow a round in which one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.policy import Annotate, Backfilling, Decision, PlacementRule, Start, View


class EasyBackfill(Backfilling):
    """EASY backfilling.

    depth: how many tasks behind the head are looked at, of each partition; None: all.  0 is fcfs.
    """

    def __init__(self, placement: PlacementRule | None = None, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(placement, depth)

    def backfill(self, heads: list[Task], view: View) -> Iterator[Decision]:
        for task, placement in self.fitting(heads, view):
            ahead = self.reservations(heads, task, view)
            for place in chain((placement,), self.elsewhere(task, ahead, view)):
                # If one head says yes and a later one no, the first counts on too much in this round; it is not late.
                if all(shadow.survives(task, place) for shadow in ahead):
                    yield Start(task, place)
                    break
            else:
                yield Annotate(task, "reservation")
