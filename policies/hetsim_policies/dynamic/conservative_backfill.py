"""Conservative backfilling: all waiting tasks have reservations; none is delayed.

Decides when and where: a task is given the earliest start that leaves all earlier ones' as they are.
Reference: Mu'alem and Feitelson, Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling
the IBM SP2 with Backfilling (2001).  With exact estimates a task starts when its reservation says, which is never
later than under fcfs where all needs are of one kind (a pool of equal servers).
Estimates wrong in both directions: when a task ends early or overruns, all reservations are made again in order of
arrival; what was promised may then move in both directions.  A task that overruns counts as ending at once.
Weakness: fewer holes are filled than under EASY, since every wide task far down the queue stands in the way; on
several nodes a task that starts early may break up a node that fcfs would have left whole.
Cost: O(nodes × spans) a reservation; with wrong estimates a reservation a task of the window and release.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim_policies.dynamic.common.backfilling import Reserving


class ConservativeBackfill(Reserving):
    """Conservative backfilling, on the first devices.

    depth: how many tasks behind the head have reservations, of each partition; None: all.  The others
    wait for their turn.
    """

    def __init__(self, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(None, depth)
