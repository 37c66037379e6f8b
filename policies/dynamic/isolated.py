"""Isolated: every job has an equal share of every type of device, as if it owned that part of the cluster.

Decides which part of the time each job runs on which type: 1/n of each type's devices (by weight), never more than
all the time; `rounds` realises it, and nobody runs beyond its share, not even on idle devices.
Reference: the yardstick of Gavel (Narayanan et al., OSDI 2020) and Themis (Mahajan et al., NSDI 2020); every
job's progress under `max_min_fairness` is at least this in the program.
Weakness: blind to what a job makes of a device, and wasteful by design: it is there to be compared with.
Cost: linear in the jobs, a round.
"""

from __future__ import annotations

import numpy as np

from policies.dynamic.fractions import Offers, equal_share
from policies.dynamic.rounds import Job, RoundScheduler
from sim.policy import View


class Isolated(RoundScheduler):
    """An equal share for each."""

    spare = False

    def fractions(self, offers: Offers, jobs: list[Job], view: View) -> np.ndarray:
        return equal_share(offers)
