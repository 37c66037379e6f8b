"""First come, first served, but whatever fits may pass what does not.

Decides when: the oldest waiting task that fits now starts.
Reference: "first fit" in Feitelson and Rudolph, Parallel Job Scheduling (1995); aggressive sharing without a
reservation.  No device stands idle that a waiting task could use.  Weakness: a wide gang can starve, since narrower
tasks keep taking what comes free (`easy_backfill` reserves for the head).
Cost: O(log n) a task and O(shapes) a round.
"""

from __future__ import annotations

from hetsim.policy import Discipline, ListScheduler, PlacementRule
from hetsim_policies.orders import fcfs


class FcfsSkip(ListScheduler):
    """`fcfs` with discipline `skip`."""

    queueing = "order of arrival"

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "skip"):
        super().__init__(fcfs, placement, discipline)
