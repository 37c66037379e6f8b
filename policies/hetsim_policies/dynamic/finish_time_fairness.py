"""Finish-time fairness over time fractions: minimize the worst finish-time ratio.

Decides which part of the time each job runs on which type of device; `rounds` realizes it.  The greatest ratio of
(time since arrival + time left at the present progress) to the time on an equal share, both as they look now, is
made least.  The time on an equal share counts the shares that the job would have had so far.
Reference: Mahajan, Balasubramanian, Singhvi, Venkataraman, Akella, Phanishayee, Chawla, Themis: Fair and Efficient GPU
Cluster Scheduling (NSDI 2020), as the program over fractions of Gavel (Narayanan et al., OSDI 2020).
Weakness: a job that is far behind takes nearly everything, and estimates of the time left are believed.
Cost: some five linear programs a round, in which hardly any two jobs are alike; with pairs (`side_by_side`) 0.2 s each
for 128 jobs of 26 classes on three types.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers, equal_share, min_worst_ratio
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, Rule
from hetsim_policies.dynamic.common.side_by_side import SideBySideScheduler, Threshold
from hetsim_policies.dynamic.max_min_fairness import Levels


class FinishTimeFairness(SideBySideScheduler):
    """Least greatest finish-time ratio.

    levels: programs of water filling once the worst ratio is known; 1: none.
    pairs, threshold: as of `max_min_fairness`.
    """

    moving = True

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", levels: Levels = 1, pairs: bool = False,
        threshold: Threshold = 1.0, mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, pairs, threshold=threshold, mid_round=mid_round)
        self.levels = levels

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        share = offers.progress(equal_share(offers))
        elapsed = np.array([view.now - job.task.arrival for job in jobs])
        remaining = np.array([job.remaining(view) for job in jobs])
        done = np.array([min(job.alone, 0.99) for job in jobs])
        with np.errstate(divide="ignore"):
            alone = elapsed + (1.0 - done) / share
        return min_worst_ratio(offers, elapsed, remaining, alone=alone, levels=self.levels)
