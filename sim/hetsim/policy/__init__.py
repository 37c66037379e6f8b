"""Names that authors of policies import: base classes, decisions and queues."""

from hetsim.model.device import Device
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.arrival_order import arrival_order, queueing
from hetsim.policy.backfilling import Backfilling, Demand, demand_fits_nowhere, demand_of, fits_nowhere
from hetsim.policy.batching import Batching, BatchReport, Counter
from hetsim.policy.contract import Admission, OrderKey, PlacementRule, PlanProblem, Scheduler, Shadow, View
from hetsim.policy.decisions import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_FIT,
    WAIT_FOR_READY,
    WAIT_FOR_RELEASE,
    Accept,
    Annotate,
    Decision,
    Defer,
    Delay,
    Discard,
    Drop,
    Fetch,
    Move,
    Partition,
    Pause,
    Reject,
    Set,
    Start,
    Stop,
    Take,
    Wait,
)
from hetsim.policy.dispatch import Dispatcher
from hetsim.policy.iterating import BatchStep, Foreseen, Generation, IterationPolicy, Replica
from hetsim.policy.lists import Discipline, ListScheduler
from hetsim.policy.planned import PlannedScheduler
from hetsim.policy.predictor import Predictor
from hetsim.policy.queues import EVERYWHERE, TaskQueue, claims_of, partition_of
from hetsim.policy.remaining import Progress, RemainingProblem
from hetsim.policy.request_queue import BatchTimes, RequestQueue, Requests
from hetsim.policy.routing import (
    Eviction,
    KeptModel,
    OpenReplicas,
    RoutedReplica,
    RoutedRequest,
    Routing,
    WantedReplica,
)
from hetsim.policy.scaling import RoleSignals, Scaling, ServiceSignals

__all__ = [
    "Accept", "Admission", "Annotate", "Backfilling", "BatchReport", "BatchStep", "BatchTimes", "Batching", "Counter",
    "Decision", "Defer", "Delay", "Demand", "Device", "Discard", "Discipline", "Dispatcher", "Drop", "EVERYWHERE",
    "Eviction", "Fetch", "Foreseen", "Generation", "IterationPolicy", "KeptModel", "ListScheduler", "Mode", "Move",
    "OpenReplicas", "OrderKey",
    "Partition", "Pause", "Placement", "PlacementRule", "PlanProblem", "PlannedScheduler", "Predictor", "Progress",
    "Reject", "RemainingProblem", "Replica", "RequestQueue", "Requests", "RoleSignals", "RoutedReplica",
    "RoutedRequest", "Routing", "Scaling", "Scheduler", "ServiceSignals", "Set", "Shadow", "Start", "Stop", "Take",
    "Task", "TaskQueue", "View", "WAIT_FOR_CHANGE", "WAIT_FOR_FIT", "WAIT_FOR_READY",
    "WAIT_FOR_RELEASE", "Wait", "WantedReplica", "arrival_order", "claims_of",
    "demand_fits_nowhere", "demand_of", "fits_nowhere", "partition_of", "queueing",
]  # fmt: skip
