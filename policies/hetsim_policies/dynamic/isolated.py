"""Isolated: every job has an equal share of every type of device.

Decides which part of the time each job runs on which type: 1/n of each type's devices (by weight), never more than
all the time; `rounds` realizes it, and no job runs beyond its share, not even on idle devices.  With `spare: true` idle
devices go to those that lag most: max-min fairness that is blind to types of devices (Gavel's LAS), where jobs are
equally wide.
Reference: the yardstick of Gavel (Narayanan et al., OSDI 2020) and Themis (Mahajan et al., NSDI 2020); every
job's progress under `max_min_fairness` is at least this in the program.
Weakness: blind to what a job makes of a device, and wasteful by design: it is there to be compared with.
Cost: linear in the jobs, a round.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers, equal_share
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, RoundScheduler, Rule


class Isolated(RoundScheduler):
    """An equal share for each.

    spare: jobs may run beyond their shares on devices that would else stand idle.
    """

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", mid_round: bool = True, spare: bool = False
    ):
        super().__init__(round_length, rule, mid_round)
        self.spare = spare

    def _content(self) -> bool:
        return False  # blind to which device is the fastest, jobs take turns on all

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        return equal_share(offers)
