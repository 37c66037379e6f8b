"""Any scheduler as a plan: rehearse it on the estimates, then follow what it did.

Decides nothing of its own: mode, devices and the order on each device are those of the rehearsal, in which every task
takes as long as estimated.  With exact estimates the run is the scheduler's own, unless that stopped tasks: a plan
runs each once, where the scheduler started it last, which may end sooner or, where tasks went on with their work
elsewhere (round_robin, srtf), much later.  The difference between `as_planned` of a scheduler and
the scheduler itself is what deciding late is worth when estimates are wrong.
Reference: Agullo, Beaumont, Eyraud-Dubois, Kumar, Are Static Schedules So Bad? A Case Study on Cholesky Factorization
(2016), where such plans are followed strictly and loosely.
Prefetches and drops are part of the plan, in the round in which the scheduler made them.
Weakness: that of every plan: an order that waits for a late task leaves devices empty.  What else the scheduler does
besides placing tasks (sleep, frequencies) is not in the plan; batches cannot be planned.
Cost: two more runs: the rehearsal, and one of its plan for the times that a plan without idle waits has.
"""

from __future__ import annotations

from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem, Scheduler
from hetsim_policies.dynamic.heteroprio import HeteroPrio
from hetsim_policies.static.common.outcome import rehearsed


class AsPlanned(PlannedScheduler):
    """Follows what another scheduler does on the estimates.

    base: that scheduler, by name or as a mapping with its parameters; none given: heteroprio.
    """

    def __init__(self, base: Scheduler | None = None):
        super().__init__()
        self.base = HeteroPrio() if base is None else base

    def check(self, problem: PlanProblem) -> None:
        self.base.check(problem)

    def plan(self, problem: PlanProblem) -> Plan:
        return rehearsed(problem, problem.rehearse(self.base))
