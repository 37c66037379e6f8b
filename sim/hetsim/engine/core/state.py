"""The state of a run as plain data, and callbacks to upper parts of the engine.

The state has no behavior, so that copies (`hetsim.engine.fork`) can run independently.  Each part of the engine changes
only its own fields.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.core.pacing import Pacing
from hetsim.engine.core.recorder import Recorder
from hetsim.engine.flight.contention import SharedNetwork
from hetsim.engine.flight.data_locations import Places
from hetsim.engine.flight.launch import Launch, Resident
from hetsim.engine.flight.links import Links
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.queues.patience import Deadlines
from hetsim.engine.queues.sources import Graph, Sources
from hetsim.engine.resources.capacity import Capacity
from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.record import RunInput
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy.contract import Scheduler
from hetsim.policy.routing import WantedReplica


@dataclass(slots=True, eq=False)
class RunState:
    """The changing state of a run."""

    input: RunInput
    tasks: Tasks
    scheduler: Scheduler
    clock: Clock
    capacity: Capacity
    links: Links
    places: Places
    recorder: Recorder
    graph: Graph
    steady: bool  # True while every launch computes at its nominal rate; frequencies and failures end it

    network: SharedNetwork | None = None  # links that jobs on several nodes share, if there are such jobs
    serving: Any = None  # services with replicas (`hetsim.engine.language.llm_service.Serving`)
    loading: Any = None  # the loads of models (`hetsim.engine.residents.loading`)
    pacing: Pacing | None = None  # decision cycles, if the scheduler's decisions take time
    sources: Sources = field(init=False)
    patience: Deadlines | None = None  # deadlines of tasks that have not started, and of clients' attempts
    clients: Any = None  # clients that time out and retry (`hetsim.engine.control.clients`), if any
    queues: list[Any] = field(default_factory=list)  # queues of requests, in the order of the services
    queue_of: dict[Any, Any] = field(default_factory=dict)  # queues by the shape of their requests

    running: dict[int, Launch] = field(default_factory=dict)  # launches in flight by number, in start order
    # replicas on their devices, by number; not in `running`
    residents: dict[int, Resident] = field(default_factory=dict)
    lent: dict[int, Launch] = field(default_factory=dict)  # launches on their devices (`Launch.within`)
    # waiting tasks by row, in the order in which they became ready
    waiting: dict[int, Task] = field(default_factory=dict)
    lost_items: dict[int, None] = field(default_factory=dict)  # items whose last copy was lost in a failure
    # why the policy keeps a task waiting, by row, if the policy says so
    wait_causes: dict[int, str] = field(default_factory=dict)

    last_launch: int = 0  # number of the last launch or prefetch, in start order
    wanting: dict[str, int] = field(default_factory=dict)  # number of missing replicas by name of the service
    last_resident: int = 0  # number of the last replica; they count downward from -1
    ended: int = 0
    deferred: int = 0  # tasks that return later: deferred by admission, or a request or response in transit
    requests_left: int = 0  # requests in queues, in batches, in transit back, or with known arrival times to come
    ticking: int = 0  # questions to scaling policies at equal intervals that are to come
    iterating: int = 0  # requests to language models that have arrived and not ended

    rounds: int = 0
    decisions: int = 0
    settled: int = 0  # value of `decisions` when progress was last seen
    settled_at: tuple[float, int] = (-1.0, 0)  # time of that check, and the number of ended tasks then
    wake_on: str = "change"  # event for which the policy waits: change, fit, release or ready
    certain: float = -math.inf  # until this time a policy that waits for `fit` is not called for tasks that fit nowhere
    may_strand: bool = False  # True if tasks may wait to the end; otherwise that is an error of the policy
    closed: bool = False
    planning: float = math.nan  # seconds that a planner took before the clock started


def launches_on(state: RunState, device: Device) -> list[Launch]:
    """Return the launches on a device: replicas first, then the others in start order.

    Cost: linear in the number of launches in flight; for rare events only.
    """
    everything: list[Launch] = [*state.residents.values(), *state.lent.values(), *state.running.values()]
    return [launch for launch in everything if device in launch.placement.devices]


def launches_since(state: RunState, number: int) -> list[Launch]:
    """Return the launches in flight that started after launch `number`, latest first."""
    launches = []
    for launch in reversed(state.running.values()):  # in start order: stop at the first known launch
        if launch.number <= number:
            break
        launches.append(launch)
    return launches


def lost_input(state: RunState, task: Task) -> str | None:
    """Return the name of an input item that has no copy left; None if all have one."""
    places = state.places
    for item in task.reads:
        # A lost item may have been written again since.
        if item in state.lost_items and not places.where[item] and item not in task.writes:
            return places.items[item].name
    return None


class Signals:
    """Callbacks through which lower parts of the engine call upper parts."""

    # a launch with a timetable has completed, with these stage times
    launch_completed: Callable[[Launch, tuple[float, ...]], None]
    task_completed: Callable[[Task], None]  # a task has completed without a launch of its own
    task_ended: Callable[[Task, int, str], None]  # a task ended without completing: status and reason
    generated: Callable[[Task], None]  # the last token of a request to a language model was generated
    drops: Callable[[Task], bool] | None  # asks admission about a request that would join a batch; True: it was dropped
    kill: Callable[..., None]  # ends a launch for a reason; its tasks fail unless another status is given
    materialized: Callable[[Launch], None] | None  # a compute-only launch now has a timetable
    slowed: Callable[[Launch], None] | None  # a compute-only launch may end later than planned
    place: Callable[[WantedReplica], Placement | None]  # returns the policy's placement of a new replica
    imagine: Callable[..., Any]  # makes a fork of the run for a policy (`View.fork`)
    foresee: Callable[..., Any]  # forecasts the requests of a replica of a language model for a policy

    def __init__(self) -> None:
        self.materialized = self.slowed = None  # set by listeners, in runs that need them
