"""Sufferage: the task that would lose most by not getting its best lane gets it; then again.

Decides where, and in which order.  The sufferage of a task is the difference between its completion on the best and on
the second best lane, lanes of one type included; a task that only one lane can run suffers without limit.
Reference: Maheswaran, Ali, Siegel, Hensgen, Freund, Dynamic Mapping of a Class of Independent Tasks onto
Heterogeneous Computing Systems (1999); placing one task a round, as here, Casanova et al., Heuristics for Scheduling
Parameter Sweep Applications in Grid Environments (2000).  No ratio is proven.
Weakness: with two or more equal lanes that are free at the same time the sufferage of every task is 0, and ties decide
(Casanova et al. propose the difference between clusters of lanes for that: `between: types`).  Transfers are not
counted.
Cost: O(n^2 types), vectorized over the tasks, as min-min.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from policies.static.common.instance import Free, independent
from policies.static.common.outcome import plan_of
from policies.static.common.schedule import Schedule
from policies.static.min_min import rounds
from sim.model.plan import Plan
from sim.policy import PlannedScheduler, PlanProblem

Between = Literal["lanes", "types"]


class Sufferage(PlannedScheduler):
    """Sufferage, for independent sequential tasks.

    between: what is second best: another lane, or a lane of another type of device (XSufferage).
    descent: end by moving and exchanging tasks of the longest lane (`descent`), of independent tasks there at once.
    """

    def __init__(self, between: Between = "lanes", descent: bool = False):
        super().__init__()
        self.descent = descent
        self.between = between

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "sufferage")
        given = (instance.time, instance.counts, problem.tasks.arrival, self.between, instance.free)
        return plan_of(instance, sufferage(*given), descent=self.descent)


def sufferage(
    times: np.ndarray,
    counts: Sequence[int],
    ready: np.ndarray | None = None,
    between: Between = "lanes",
    since: Free = None,
) -> Schedule:
    """Sufferage on the `counts[t]` lanes of each type; ties go to the first task, type and lane."""

    def suffers(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        ends = first if between == "types" else np.concatenate([first, second])
        if len(ends) == 1:  # one type: there is no other
            return np.full(ends.shape[1], np.inf)
        best = np.partition(ends, 1, axis=0)
        return best[1] - best[0]

    return rounds(times, counts, ready, suffers, since)
