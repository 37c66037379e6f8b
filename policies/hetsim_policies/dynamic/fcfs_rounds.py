"""First come, first served in rounds: the first jobs have the best devices.

Decides which type each job runs on; `rounds` realizes it.  When jobs have come or gone, at the next round, jobs choose
in the order of their arrival, each the mode in which it is fastest of those that the ones before it left room for; the
first that finds none ends it, so nothing passes it (Gavel's FIFO).  With `blind: true` each takes the first type of the
cluster that has room instead, whatever it makes of it.
Reference: FIFO of Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads (Gavel,
OSDI 2020), aware of types and blind.
Weakness: devices stand idle behind a wide job that does not fit, and a job moves up whenever one before it ends.
Cost: linear in the jobs and modes whenever jobs have come or gone.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import View
from hetsim_policies.dynamic.common.fractions import ModeOffers
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, RoundScheduler, Rule


class FcfsRounds(RoundScheduler):
    """The oldest jobs on the devices that are fastest for them.

    blind: each takes the first type of the cluster that has room, in place of its fastest.
    """

    spare = False

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", mid_round: bool = True, blind: bool = False
    ):
        super().__init__(round_length, rule, mid_round)
        self.blind = blind

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        fraction = np.zeros(len(offers.job))
        free = offers.capacity.copy()
        key = offers.kind if self.blind else offers.time
        ways: list[list[int]] = [[] for _ in jobs]
        for way in np.argsort(key, kind="stable").tolist():
            ways[int(offers.job[way])].append(way)
        for number in sorted(range(len(jobs)), key=lambda number: (jobs[number].task.arrival, number)):
            way = next((w for w in ways[number] if offers.width[w] <= free[offers.kind[w]] + 1e-9), None)
            if way is None:
                if ways[number]:
                    break  # nothing passes it; a job that no device that is up can run is left out
                continue
            free[offers.kind[way]] -= offers.width[way]
            fraction[way] = 1.0
        return fraction
