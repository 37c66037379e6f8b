"""Shares of time, realized in rounds: fixed, or from linear programs.

A policy decides the fraction of time that each job runs on each device type; `rounds` realizes it.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.cluster import Cluster
from hetsim.policy import PlanProblem, View
from hetsim_policies.common import grouped
from hetsim_policies.dynamic.common.fractions import (
    ModeOffers,
    best_ratio,
    equal_share,
    max_min,
    max_sum,
    min_worst_ratio,
)
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, RoundScheduler, Rule
from hetsim_policies.dynamic.common.side_by_side import SideBySideScheduler, Threshold

Levels = Annotated[int, Field(ge=1, strict=True)]


class MaxMinFairness(SideBySideScheduler):
    """Max-min fairness over time fractions, relative to an equal share.

    Decides the fraction of time that each job runs on each device type; `rounds` realizes it.  Progress is measured
    relative to that on an equal share of every type (by weight), and the minimum is maximized.  So a job that profits
    more from a fast GPU gets more of it, and no job makes less progress than on an equal share, since equal shares are
    feasible.  Then the jobs that cannot gain more keep their progress, and the minimum progress of the other jobs is
    maximized, and so on (water filling, in `levels` steps).  With `pairs` two jobs may run on the same devices
    (`side_by_side`); the minimum progress in the program is never below that without pairs.
    Reference: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, Heterogeneity-Aware Cluster Scheduling Policies
    for Deep Learning Workloads (Gavel, OSDI 2020).  Weakness: all jobs progress simultaneously, so mean response is far
    from minimal; fractions are realized only approximately, in rounds with a switch of jobs (see `rounds`).
    Cost: `levels` + 1 linear programs at the next round after arrivals or ends, or a few sorts if each job has one
    mode; with pairs each program has a column for every job, mode and partner label (128 jobs of 26 classes on three
    types: 7,000 columns, 0.02 s in total, as equal jobs count once).

    levels: number of water-filling programs, after which the sum of progress of the remaining jobs is maximized.
    pairs: two jobs may share devices if their slowdowns were measured; they do not share otherwise.
    threshold: pairs count only if the sum of both speeds, each relative to running alone, is greater (with 2, hardly
        any pair).
    """

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", levels: Levels = 4, pairs: bool = False,
        threshold: Threshold = 1.0, mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, pairs, threshold=threshold, mid_round=mid_round)
        self.levels = levels

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        return max_min(offers, offers.fair_progress, self.levels)


class FinishTimeFairness(SideBySideScheduler):
    """Finish-time fairness over time fractions: minimize the worst finish-time ratio.

    Decides the fraction of time that each job runs on each device type; `rounds` realizes it.  It minimizes the maximum
    over jobs of (time since arrival + time left) / (time on an equal share), both estimated now.  For the past, the
    time on an equal share uses the equal shares of that time.
    Reference: Mahajan, Balasubramanian, Singhvi, Venkataraman, Akella, Phanishayee, Chawla, Themis: Fair and Efficient
    GPU Cluster Scheduling (NSDI 2020), as the program over fractions of Gavel (Narayanan et al., OSDI 2020).
    Weakness: a job that is far behind gets nearly all devices, and estimates of the time left are trusted.
    Cost: about five linear programs per round, in which equal jobs are separate columns; with pairs (`side_by_side`)
    each program takes 0.2 s for 128 jobs of 26 classes on three types.

    levels: number of water-filling programs after the worst ratio is known; 1: no water filling.
    pairs: jobs may share devices in pairs, if the sum of both relative speeds is above `threshold`.
    """

    moving = True

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", levels: Levels = 1, pairs: bool = False,
        threshold: Threshold = 1.0, mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, pairs, threshold=threshold, mid_round=mid_round)
        self.levels = levels

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        elapsed = np.array([view.now - job.task.arrival for job in jobs])
        remaining = np.array([job.remaining(view) for job in jobs])
        done = np.array([min(job.alone, 0.99) for job in jobs])
        with np.errstate(divide="ignore"):
            alone = elapsed + (1.0 - done) / offers.fair_progress
        return min_worst_ratio(offers, elapsed, remaining, alone=alone, levels=self.levels)


Price = Annotated[float, Field(gt=0)]
Costs = Literal["prices"] | dict[str, Price]


class MaxThroughput(SideBySideScheduler):
    """Maximum throughput over time fractions, or per cost, with deadlines met.

    Decides the fraction of time that each job runs on each device type; `rounds` realizes it.  Progress of a job is
    relative to running alone in its fastest mode, so a job that profits more from a fast GPU gets it.  The sum of
    progress is maximized, or with `costs` the sum of progress divided by the sum of costs; devices are then idle if
    their use would lower this ratio.  Jobs with deadlines get at least the progress that they need to end in time, if
    this is possible for all of these jobs.  With `pairs` two jobs may run on the same devices (`side_by_side`); each
    pays for half of the devices.
    Reference: Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads (Gavel,
    OSDI 2020); the ratio is maximized as in Dinkelbach, On Nonlinear Fractional Programming (1967).
    Weakness: jobs with little relative progress wait while others arrive; without deadlines no job has any guarantee.
    Cost: one linear program at the next round after arrivals or ends, two per round with deadlines; about five times as
    many with costs.

    costs: `prices` to use the cluster's prices; or, if it has none, a price per device and time, by name of type.
        Types without a price cost 1.
    pairs: jobs may share devices in pairs, if the sum of both relative speeds is above `threshold`.
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
            raise refusal("costs: prices needs prices of the cluster's types; give them a price such as 2.5/h")

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        fastest = offers.fastest()
        value = np.zeros(len(offers.job))
        served = fastest[offers.job] > 0
        value[served] = offers.rate[served] / fastest[offers.job[served]] * offers.weight[offers.job[served]]
        due = [(job, job.task.deadline - view.now) for job in jobs]  # the floor: to end by then; 0 once it is past
        floor = np.minimum(fastest, [job.remaining(view) / time if 0 < time < math.inf else 0.0 for job, time in due])
        self.moving = any(job.task.deadline < math.inf for job in jobs)
        if self.costs is None:
            return max_sum(offers, value, floor)
        of_type = prices(view.cluster, {} if self.costs == "prices" else self.costs)
        price = np.array([of_type[name] for name in self._kinds])
        return best_ratio(offers, value, price[offers.kind] * offers.width, floor)


class MinMakespan(SideBySideScheduler):
    """Minimum makespan over time fractions, for all present jobs.

    Decides the fraction of time that each job runs on each device type; `rounds` realizes it.  With constant fractions,
    the job with the largest ratio of remaining work to progress ends last, so the minimum ratio of progress to
    remaining work is maximized (the program of `max_min_fairness`, with remaining work in place of the progress on an
    equal share).  The optimum is the least makespan of all preemptive schedules of the present jobs, if devices of a
    type are one pool; with `pairs` (see `side_by_side`) it is a lower bound on the makespan.
    Reference: Lawler, Labetoulle, On Preemptive Scheduling of Unrelated Parallel Processors by Linear Programming
    (1978), the source of the program; as a policy in Gavel (Narayanan et al., OSDI 2020).
    Weakness: short jobs are stretched to the end of the longest, so mean response is bad by design.
    Cost: two linear programs per round; with pairs each takes longer (0.2 s for 128 jobs of 26 classes on 3 types).

    pairs: jobs may share devices in pairs, if the sum of both relative speeds is above `threshold`.
    """

    moving = True

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        return max_min(offers, np.where(offers.fastest() > 0, [job.remaining(view) for job in jobs], 0.0))


class Isolated(RoundScheduler):
    """Isolated: every job has an equal share of every type of device.

    Decides the fraction of time that each job runs on each type: 1/n of each type's devices (by weight), at most all
    the time; `rounds` realizes it, and no job runs beyond its share, not even on idle devices.  With `spare: true` idle
    devices are given to the jobs that lag most; for jobs of equal width this is max-min fairness that ignores device
    types (the policy LAS of Gavel).
    Reference: the baseline of Gavel (Narayanan et al., OSDI 2020) and Themis (Mahajan et al., NSDI 2020); in the
    program of `max_min_fairness` every job progresses at least as fast.
    Weakness: it is a baseline that ignores the speed of a job on a device, and keeps devices idle.
    Cost: linear in the jobs per round.

    spare: jobs may run beyond their shares on devices that would otherwise be idle.
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


class FcfsRounds(RoundScheduler):
    """First come, first served in rounds: the first jobs have the best devices.

    Decides which type each job runs on; `rounds` realizes it.  At the next round after arrivals or ends, jobs choose in
    the order of arrival, each its fastest mode that still has room; the first job without room ends the pass, so no job
    passes another (Gavel's FIFO).  With `blind: true` each job takes the first type of the cluster with room, whatever
    its speed there.
    Reference: FIFO of Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads
    (Gavel, OSDI 2020), type-aware and type-blind.
    Weakness: devices are idle while a wide job does not fit, and a job moves to a faster type whenever an earlier job
    there ends.  Cost: linear in the jobs and modes after arrivals or ends.

    blind: each job takes the first type of the cluster with room, instead of its fastest.
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
        order = np.argsort(offers.kind if self.blind else offers.time, kind="stable")
        ways = grouped(zip(offers.job[order].tolist(), order.tolist(), strict=True))
        for number in sorted(range(len(jobs)), key=lambda number: (jobs[number].task.arrival, number)):
            if number not in ways:
                continue  # no device that is up can run it
            way = next((w for w in ways[number] if offers.width[w] <= free[offers.kind[w]] + 1e-9), None)
            if way is None:
                break  # nothing passes it
            free[offers.kind[way]] -= offers.width[way]
            fraction[way] = 1.0
        return fraction


# Prices of devices: those of the cluster (`price` of a type or node), as in the metric `cost`; for other types `costs`
# of the policy.  A type with both is refused, so that a policy optimizes the cost that is reported.


def check_costs(costs: Mapping[str, float], cluster: Cluster) -> None:
    """Raise ScenarioError if `costs` has an unknown type or one priced in the cluster."""
    for name in costs:
        if name not in cluster.types:
            raise refusal(f'costs: the cluster has no type "{name}"; it has {", ".join(cluster.types)}')
        if cluster.price_of(name):
            raise refusal(f'costs: the price of "{name}" must be given once: here or in the cluster')


def prices(cluster: Cluster, costs: Mapping[str, float]) -> dict[str, float]:
    """Price of a device per time, by type: from `costs`, else the cluster's, else 1."""
    hour = 3600.0
    return {name: costs.get(name) or hour * cluster.price_of(name) or 1.0 for name in cluster.types}
