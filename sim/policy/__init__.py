"""What a policy author imports: the contract, list scheduling, queues."""

from sim.policy.contract import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    WAIT_FOR_RELEASE,
    Accept,
    Admission,
    Decision,
    Defer,
    Drop,
    Fetch,
    Hold,
    Move,
    OrderKey,
    PlacementRule,
    PlanProblem,
    Reject,
    Scheduler,
    Set,
    Shadow,
    Start,
    Stop,
    View,
    Wait,
)
from sim.policy.lists import Discipline, ListScheduler, arrival_order
from sim.policy.planned import PlannedScheduler
from sim.policy.queues import TaskQueue

__all__ = [
    "WAIT_FOR_CHANGE", "WAIT_FOR_READY", "WAIT_FOR_RELEASE", "Accept", "Admission", "Decision", "Defer", "Discipline",
    "Drop", "Fetch", "Hold", "ListScheduler", "Move", "OrderKey", "PlacementRule", "PlanProblem", "PlannedScheduler",
    "Reject", "Scheduler", "Set", "Shadow", "Start", "Stop", "TaskQueue", "View", "Wait", "arrival_order",
]  # fmt: skip
