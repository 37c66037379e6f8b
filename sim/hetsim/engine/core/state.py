"""The state of a run as data, and the calls upward: what all parts are given.

The state has no behavior: copies of it (`hetsim.engine.fork`) run on by themselves.  Each part changes what is its own.
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
from hetsim.model.cluster import Device
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
    steady: bool
    """True while every launch computes at nominal rate from its start on; frequencies and failures end it."""

    network: SharedNetwork | None = None
    """Links that jobs over several nodes share, where there are such jobs."""
    pacing: Pacing | None = None
    """The time that the scheduler itself takes, where it takes any."""
    sources: Sources = field(init=False)
    patience: Deadlines | None = None
    """When tasks that have not started expire, and clients leave their attempts."""
    clients: Any = None
    """Clients that time out and try again (`hetsim.engine.control.clients`), where there are any."""
    queues: list[Any] = field(default_factory=list)
    """Queues of requests, in the order of the services."""
    queue_of: dict[Any, Any] = field(default_factory=dict)
    """The same by shape."""

    running: dict[int, Launch] = field(default_factory=dict)
    """Launches in flight by number, in the order of their start."""
    residents: dict[int, Resident] = field(default_factory=dict)
    """Launches that keep their devices until they are given up, by number; not in `running`."""
    lent: dict[int, Launch] = field(default_factory=dict)  # likewise those on devices of replicas (`Launch.within`)
    waiting: dict[int, Task] = field(default_factory=dict)
    """Tasks that wait, by row, in the order in which they became ready."""
    lost_items: dict[int, None] = field(default_factory=dict)
    """Items that had a copy nowhere after a failure."""
    wait_causes: dict[int, str] = field(default_factory=dict)
    """Why policies keep tasks waiting, by row, as far as they say."""

    last_launch: int = 0
    """Number of the last launch (or prefetch), in start order."""
    wanting: dict[str, int] = field(default_factory=dict)
    """Language models that lack replicas, by name, and how many."""
    last_resident: int = 0
    """Number of the last launch that keeps its devices: they count downward, apart from the others."""
    ended: int = 0
    deferred: int = 0
    """Tasks that will be seen again: deferred by admission, or a request or its response is on its way."""
    requests_left: int = 0
    """Requests that wait in queues, are in batches or on their way back, and those to come by the clock."""
    iterating: int = 0
    """Requests to language models that have arrived and not ended."""

    rounds: int = 0
    decisions: int = 0
    settled: int = 0
    """Decisions made by the last look whether the policy goes in circles that found that it does not."""
    settled_at: tuple[float, int] = (-1.0, 0)
    """When it was, and how many tasks had ended."""
    wake_on: str = "change"
    """The event, besides time, for which the policy waits: change, fit, release or ready."""
    certain: float = -math.inf
    """Until when a policy that waits for `fit` need not be asked about tasks that fit nowhere."""
    may_strand: bool = False
    """True if tasks may wait to the end; else the policy forgot them, which is an error."""
    closed: bool = False
    planning: float = math.nan
    """Seconds that a planner took before the clock started."""


def launches_on(state: RunState, device: Device) -> list[Launch]:
    """Launches on a device: first those without an end, then the others by start.

    Linear in what runs; for rare things.
    """
    everything: list[Launch] = [*state.residents.values(), *state.lent.values(), *state.running.values()]
    return [launch for launch in everything if device in launch.placement.devices]


def launches_since(state: RunState, number: int) -> list[Launch]:
    """Launches in flight that started after the given one, the last first."""
    launches = []
    for launch in reversed(state.running.values()):  # in start order: the first known one ends the walk
        if launch.number <= number:
            break
        launches.append(launch)
    return launches


def lost_input(state: RunState, task: Task) -> str | None:
    """The name of an item that the task reads and of which no copy is left."""
    places = state.places
    for item in task.reads:
        # A lost item may have been written again since.
        if item in state.lost_items and not places.where[item] and item not in task.writes:
            return places.items[item].name
    return None


class Signals:
    """The handler of each event, by which lower parts of the engine call upper ones."""

    launch_completed: Callable[[Launch, tuple[float, ...]], None]
    """A launch with a timetable has ended well, at these times."""
    task_completed: Callable[[Task], None]
    """A task has been done without a launch of its own."""
    task_ended: Callable[[Task, int, str], None]
    """A task does not run (any more): with which status, and why."""
    generated: Callable[[Task], None]
    """A request to a language model has its last token."""
    drops: Callable[[Task], bool] | None
    """A request to a language model would join; True if admission has dropped it instead.  None: it is not asked."""
    kill: Callable[..., None]
    """A launch is to end now, for a reason, and its tasks as failed unless another status is given."""
    materialized: Callable[[Launch], None] | None
    """A launch that only computed so far has a timetable from now on."""
    slowed: Callable[[Launch], None] | None
    """A launch that only computed so far may end later than it was to."""
    paced: Callable[[Launch], None]
    """The devices of a launch that keeps them run at another speed."""
    offer: Callable[[], None]
    """A round begins, and language models lack replicas."""
    place: Callable[[WantedReplica], Placement | None]
    """Where the policy would have a replica start."""
    imagine: Callable[..., Any]
    """A policy wants to see what may come of the run (`View.fork`)."""
    foresee: Callable[..., Any]
    """A policy wants to know what becomes of the requests of a replica of a language model."""

    def __init__(self) -> None:
        self.materialized = self.slowed = None  # set by those that want to hear, in runs that have them
