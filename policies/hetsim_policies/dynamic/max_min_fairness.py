"""Max-min fairness over time fractions, relative to an equal share.

Decides which part of the time each job runs on which type of device; `rounds` realizes it.  Progress is measured
against that on an equal share of every type (by weight), so a job that profits more from a fast GPU gets more of it,
and no job makes less progress than on an equal share, as that is a solution too.  Then by water filling: a job that
cannot get more is left there, and the others are raised.  With `pairs` a job may also be next to another on its devices
(`side_by_side`); the least progress in the program is never below that without, as all that was feasible still is.
Reference: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, Heterogeneity-Aware Cluster Scheduling Policies for
Deep Learning Workloads (Gavel, OSDI 2020).  Weakness: all jobs progress at once, so mean response is far from least;
realized only in rounds, with a change of hands in each (see `rounds` for how far that strays).
Cost: `levels` + 1 linear programs whenever jobs have come or gone, at the next round; with pairs each has a column for
every job, mode and label next to it (128 jobs of 26 classes on three types: 7,000 columns, 0.02 s in all, as jobs that
are alike count once).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers, equal_share, max_min
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, Rule
from hetsim_policies.dynamic.common.side_by_side import SideBySideScheduler, Threshold

Levels = Annotated[int, Field(ge=1, strict=True)]


class MaxMinFairness(SideBySideScheduler):
    """Greatest least progress against an equal share.

    levels: programs of water filling; after these the sum of progress of those left is made greatest.
    pairs: two jobs may share devices where that was measured.  Then no job shares them otherwise.
    threshold: pairs count only where the sum of both speeds, each against alone, is greater; at 2 hardly any.
    """

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", levels: Levels = 4, pairs: bool = False,
        threshold: Threshold = 1.0, mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, pairs, threshold=threshold, mid_round=mid_round)
        self.levels = levels

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        return max_min(offers, offers.progress(equal_share(offers)), self.levels)
