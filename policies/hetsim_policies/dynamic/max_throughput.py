"""Maximum throughput over time fractions, or per cost, with deadlines kept.

Decides which part of the time each job runs on which type of device; `rounds` realizes it.  Progress of a job counts
against that alone in its fastest mode, so a job that profits more from a fast GPU gets it.  With `costs` the sum of
progress over the sum of costs is made greatest; then devices stand idle when using them would cost more than it
brings.  A job with a deadline gets at least what it still needs to end in time, as far as that is possible for all of
them.  With `pairs` a job may also be next to another on its devices (`side_by_side`), and each pays for half of them.
Reference: Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads (Gavel, OSDI
2020); the ratio by Dinkelbach, On Nonlinear Fractional Programming (1967).
Weakness: jobs that bring little wait as long as others come; without deadlines no job has any guarantee.
Cost: one linear program at the next round when jobs have come or gone, two a round where there are deadlines; some
five times as many with costs.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.policy import PlanProblem, View
from hetsim_policies.dynamic.common.fractions import ModeOffers, best_ratio, max_sum
from hetsim_policies.dynamic.common.prices import check_costs, prices
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, Rule
from hetsim_policies.dynamic.common.side_by_side import SideBySideScheduler, Threshold

Price = Annotated[float, Field(gt=0)]
Costs = Literal["prices"] | dict[str, Price]


class MaxThroughput(SideBySideScheduler):
    """Greatest sum of progress, or of progress per cost.

    costs: `prices` takes those of the cluster; or by name of type, of a device for an hour or any other time, where the
        cluster has none.  Types without a price cost 1.
    pairs, threshold: as of `max_min_fairness`.
    """

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", costs: Costs | None = None, pairs: bool = False,
        threshold: Threshold = 1.0, mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, pairs, threshold=threshold, mid_round=mid_round)
        self.costs = costs
        self.spare = costs is None

    def check(self, problem: PlanProblem) -> None:
        super().check(problem)
        if self.costs != "prices":
            check_costs(self.costs or {}, problem.cluster)
        elif not problem.cluster.priced:
            text = "costs: prices takes the cluster's, and it has none; give its types a price such as 2.5/h"
            raise ScenarioError(Problem(text, key="policy.scheduler"))

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        fastest = offers.fastest()
        value = np.zeros(len(offers.job))
        served = fastest[offers.job] > 0
        value[served] = offers.rate[served] / fastest[offers.job[served]] * offers.weight[offers.job[served]]
        floor = np.minimum(fastest, [self._needed(job, view) for job in jobs])
        self.moving = any(job.task.deadline < math.inf for job in jobs)
        if self.costs is None:
            return max_sum(offers, value, floor)
        of_type = prices(view.cluster, {} if self.costs == "prices" else self.costs)
        price = np.array([of_type[name] for name in self._kinds])
        return best_ratio(offers, value, price[offers.kind] * offers.width, floor)

    @staticmethod
    def _needed(job: RoundJob, view: View) -> float:
        """Progress with which the job would end at its deadline; 0 once that has passed."""
        time = job.task.deadline - view.now
        return job.remaining(view) / time if 0 < time < math.inf else 0.0
