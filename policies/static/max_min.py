"""Max-min: place next the task with the latest earliest completion time.

Decides where, and in which order: long tasks come first, each where it is complete first.
Reference: Ibarra and Kim, Heuristic Algorithms for Scheduling Independent Tasks on Nonidentical Processors (1977),
algorithm E: at most m times the least makespan on m unlike lanes.  On equal lanes it is longest processing time
first, at most 4/3 - 1/(3m) (Graham, 1969).  Good where few tasks are long and many are short.
Weakness: where most tasks are long, they take the fast devices from those that gain most there (Braun et al., 2001,
find it much behind min-min then).  Transfers are not counted.
Cost: O(n^2 types), vectorized over the tasks, as min-min.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.static.common.instance import Free, independent
from policies.static.common.outcome import plan_of
from policies.static.common.schedule import Schedule
from policies.static.min_min import rounds
from sim.model.plan import Plan
from sim.policy import PlannedScheduler, PlanProblem


class MaxMin(PlannedScheduler):
    """Max-min, for independent sequential tasks.

    descent: end by moving and exchanging tasks of the longest lane (`descent`), of independent tasks there at once.
    """

    def __init__(self, descent: bool = False):
        super().__init__()
        self.descent = descent

    def plan(self, problem: PlanProblem) -> Plan:
        instance = independent(problem, "max_min")
        return plan_of(instance, max_min(instance.time, instance.counts, problem.tasks.arrival, instance.free),
                       descent=self.descent)  # fmt: skip


def max_min(times: np.ndarray, counts: Sequence[int], ready: np.ndarray | None = None, since: Free = None) -> Schedule:
    """Max-min on the `counts[t]` lanes of each type; ties go to the first task, type and lane."""
    return rounds(times, counts, ready, lambda first, second: first.min(axis=0), since)
