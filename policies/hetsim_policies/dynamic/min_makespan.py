"""Minimum makespan over time fractions, for all jobs that are there now.

Decides which part of the time each job runs on which type of device; `rounds` realizes it.  With fractions that stay,
the job with the most left against its progress ends last, so the least ratio of progress to what is left is made
greatest: the program of `max_min_fairness` with another base.  Its optimum is the least makespan of all preemptive
schedules of the jobs there, if devices of a type are one pool; with `pairs` (see `side_by_side`) it is a lower bound.
Reference: Lawler, Labetoulle, On Preemptive Scheduling of Unrelated Parallel Processors by Linear Programming (1978),
the source of the program; as a policy in Gavel (Narayanan et al., OSDI 2020).
Weakness: short jobs are stretched to the end of the longest, so mean response is bad by design.
Cost: two linear programs a round, with pairs as of `finish_time_fairness`.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers, max_min
from hetsim_policies.dynamic.common.rounds import RoundJob
from hetsim_policies.dynamic.common.side_by_side import SideBySideScheduler


class MinMakespan(SideBySideScheduler):
    """Least time until all jobs there now have ended.

    pairs, threshold: as of `max_min_fairness`.
    """

    moving = True

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        remaining = np.array([job.remaining(view) for job in jobs])
        return max_min(offers, np.where(offers.fastest() > 0, remaining, 0.0))
