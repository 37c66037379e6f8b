"""What a policy author imports: the contract, list scheduling, queues."""

from sim.policy.backfilling import Backfilling, Demand, demand_fits_nowhere, demand_of, fits_nowhere
from sim.policy.batching import (
    Batching,
    BatchReport,
    Counter,
    Delay,
    Discard,
    Take,
)
from sim.policy.contract import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_FIT,
    WAIT_FOR_READY,
    WAIT_FOR_RELEASE,
    Accept,
    Admission,
    Annotate,
    Decision,
    Defer,
    Drop,
    Fetch,
    Move,
    OrderKey,
    Pause,
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
from sim.policy.dispatch import Dispatcher
from sim.policy.iterating import BatchStep, Foreseen, Generation, IterationPolicy, Replica, Routing, WantedReplica
from sim.policy.lists import Discipline, ListScheduler, arrival_order, queueing
from sim.policy.planned import PlannedScheduler
from sim.policy.queues import EVERYWHERE, TaskQueue, claims_of, partition_of
from sim.policy.remaining import Progress, RemainingProblem
from sim.policy.request_queue import BatchTimes, RequestQueue, Requests

__all__ = [
    "Accept", "Admission", "Annotate", "Backfilling", "BatchReport", "BatchStep", "BatchTimes", "Batching", "Counter",
    "Decision", "Defer", "Delay", "Demand", "Discard", "Discipline", "Dispatcher", "Drop", "EVERYWHERE", "Fetch",
    "Foreseen", "Generation", "IterationPolicy", "ListScheduler", "Move", "OrderKey", "Pause", "PlacementRule",
    "PlanProblem", "PlannedScheduler", "Progress", "Reject", "RemainingProblem", "Replica", "RequestQueue", "Requests",
    "Routing", "Scheduler", "Set", "Shadow", "Start", "Stop", "Take", "TaskQueue", "View", "WAIT_FOR_CHANGE",
    "WAIT_FOR_FIT", "WAIT_FOR_READY", "WAIT_FOR_RELEASE", "Wait", "WantedReplica", "arrival_order",
    "demand_fits_nowhere", "demand_of", "fits_nowhere", "claims_of", "partition_of", "queueing",
]  # fmt: skip
