"""The contract between the engine and a policy: hooks, decisions, the view.

A policy never accesses the clock and never changes state: it reads a view and yields decisions.  The engine validates
and applies each decision before it resumes the policy's generator, so the view is always current.  `schedule` is called
once per round, after all changes of one instant have been applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement, Plan
from hetsim.model.slices import Layout
from hetsim.model.task import Task
from hetsim.model.tasks import Item, Tasks
from hetsim.policy.base import Policy
from hetsim.policy.decisions import Accept, Decision, Defer, Reject
from hetsim.policy.request_queue import RequestQueue
from hetsim.policy.routing import WantedReplica

if TYPE_CHECKING:
    import numpy as np

    from hetsim.model.record import Record

def _no_engine(_: Any) -> Any:
    raise UsageError("this planning problem was not made by a run, so nothing can be simulated")


# What policies are ----------------------------------------------------------------------------------------

PlacementRule = Callable[[Task, "View"], Placement | None]
Preference = Literal["node", "load", "tightest", "roomiest"]
"""Preferred device or node among those on which a mode fits (see `View.first`)."""

# sort key of a waiting task, constant while it waits; the lowest goes first, ties by arrival
OrderKey = Callable[[Task], Any]


class Scheduler(Policy):
    """Base of dynamic policies; every hook is a no-op by default."""

    policy_kind: ClassVar[str] = "scheduler"

    queueing: ClassVar[str] = ""  # name in `hetsim.queueing` of the queueing model that the policy implies; empty: none

    # True if it puts devices to sleep; policies that do so themselves refuse such a base policy
    sets_devices: ClassVar[bool] = False

    # True if it decides at exact times, so that decisions may not take time (`policy.decisions`)
    at_own_times: bool = False
    # True if it receives the true `rates`: only for a predictor that is a yardstick (an oracle)
    knows_rates: bool = False

    # if `knows_rates`, set before `check`: arrivals per second of each class and service by time
    rates: Mapping[str, Callable[[float], float]] | None = None

    # multi-node tasks that it supports: GPUs or cores with `span: any`, `nodes: N`
    spreads: ClassVar[frozenset[str]] = frozenset({"gpus", "cores", "nodes"})

    said: str = ""  # suffix of errors about its decisions: the last output of an external process

    # False if it never yields `Reject`: clients that retry only after a rejection are then refused
    rejects: bool = True

    # True if it forks the run; runs that cannot fork (with language models) refuse it
    looks_ahead: ClassVar[bool] = False

    notes: Mapping[str, Any] = {}
    """Notes on the policy's work that are stored with the run: names and plain values.  For a plan these are
    `planned_makespan` and `lower_bound` (certified for the estimates), if known, and its own notes
    (`ratio_certified`, `gap`, ...).  No note may depend on the speed of the machine."""

    def check(self, problem: PlanProblem) -> None:
        """Check a scenario when it is built; raise ScenarioError if it is unsuitable."""

    def prepare(self, problem: PlanProblem) -> None:
        """Hook for planners: receive the known future tasks, once before `begin`."""

    def round_cost(self, problem: PlanProblem) -> float:
        """Return the wall-clock seconds that each waiting task adds to a decision round.

        0: a round considers a bounded number of tasks.  Otherwise a run takes a time quadratic in the number of its
        tasks, and the user is warned before a long run.
        """
        return 0.0

    def begin(self, view: View) -> None:
        """Hook: called once, before the first event."""

    def ready(self, task: Task) -> None:
        """Hook: a task begins to wait: it was admitted and can run, or it was stopped."""

    def finished(self, task: Task) -> None:
        """Hook: a running task completed (for requests see `Batching.ended`)."""

    def gone(self, task: Task) -> None:
        """Hook: a task ended without completing: rejected, expired, failed."""

    def device(self, device: Device, up: bool) -> None:
        """Hook: a device is available again (`up`), or has failed or was put to sleep."""

    def announced(self, device: Device, start: float, end: float) -> None:
        """Hook: a device (a CPU: its node) will be down from `start` to `end`."""

    def replica(self, wanted: WantedReplica, view: View) -> Placement | None:
        """Choose the placement of a missing replica; return None if there is no room now.

        The hook is called after `begin` for the initial replicas, whose model is already loaded.  Later it is called
        when a service lacks a replica: at once, and whenever devices are released or a request of the service arrives.
        In a round the hook is called before `schedule`, so replicas get free devices before waiting tasks, unless the
        policy reserves devices.
        """
        return next((place for mode in wanted.modes if (place := view.first(mode)) is not None), None)

    def serve(self, counters: Sequence[Any], alone: bool) -> None:
        """Receive the request queue and batching policy of each service, once.

        Called before `begin`.  alone: True if the run has no tasks other than requests to services.
        """
        raise ScenarioError(
            Problem(
                f"{type(self).__name__} does not serve requests in batches; fcfs, edf, priority and the other "
                "list schedulers do",
                key="policy.scheduler",
            )
        )

    def run_ended(self, time: float | None) -> None:
        """Hook: the run ended at this time; None: the run failed."""

    def schedule(self, view: View) -> Iterator[Decision]:
        """Yield decisions for this round."""
        return iter(())


@dataclass
class PlanProblem:
    """Knowledge of a planner: arrivals and estimates, never true durations.

    `random` is the policy's random stream, from the run's seed.  `simulate(plan)` and `rehearse(scheduler)` run the
    engine on the estimates: the first returns the makespan of a plan, from the first arrival; the second runs a
    scheduler of any kind and returns its starts as a plan.  Without an engine both raise UsageError.

    If planning happens during a run (`hetsim.policy.remaining`), the tasks are those that have not started, with their
    remaining work, and arrive at `now` or later.  `free_at` has, by lane (accelerator `n0/g1`, core `n0/cpu3`), the
    time at which its running work ends: inf if the lane is down, no entry if it is free.  `data` has the present
    locations of data items (devices, and node indexes for host memory); an item without an entry has not moved since
    the start.  Makespans count from `now`.
    """

    tasks: Tasks
    cluster: Cluster
    random: np.random.Generator | None = None
    simulate: Callable[[Plan], float] = _no_engine
    rehearse: Callable[[Scheduler], Plan] = _no_engine
    now: float = 0.0
    free_at: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[int, Sequence[Device | int]] = field(default_factory=dict)
    in_mid_run: bool = False
    unplanned: Sequence[str] = ()
    """Scenario keys that the bounds ignore: a certified bound holds only for the scenario without these keys."""

    @property
    def origin(self) -> float:
        """Time from which makespans count: the first arrival or, in mid-run, `now`."""
        if self.in_mid_run:
            return self.now
        return float(self.tasks.arrival.min()) if len(self.tasks) else 0.0


class Admission(Policy):
    """Base of admission policies, called once per task before the decision round."""

    policy_kind: ClassVar[str] = "admission"

    queueing: ClassVar[str] = ""  # name in `hetsim.queueing` of the queueing model that the policy implies; empty: none

    rejects: bool = True  # False if it rejects no task: clients that retry only after a rejection are then refused

    def check(self, problem: PlanProblem) -> None:
        """Check a scenario when it is built; raise ScenarioError for unknown classes."""

    def begin(self, view: View) -> None:
        """Hook: called once, before the first event."""

    def admit(self, task: Task, view: View) -> Accept | Reject | Defer:
        """Decide on a task that arrives, or that was deferred.

        For requests of a service the answer may not name `modes`: all requests of a batch run in one mode.
        """
        return Accept()

    def leaving(self, task: Task, view: View) -> Reject | None:
        """Decide whether to drop a task that is about to start; return None to start it.

        The hook is called for each task of a `Start`, whichever scheduler or batching policy decided it, and for each
        request that is about to join a replica of a language model; dropped requests are replaced by the requests
        behind them.
        """
        return None

    def finished(self, task: Task) -> None:
        """Hook: a task completed (for policies that estimate rates)."""

    def gone(self, task: Task) -> None:
        """Hook: a task ended without completing, whether it was admitted or not."""


class Shadow(Protocol):
    """Estimated earliest start of a task that does not fit now, and its place."""

    time: float
    anywhere: bool  # True if the task may use devices of any nodes, so that only their number matters

    @property
    def placement(self) -> Placement | None: ...

    def survives(self, task: Task, placement: Placement) -> bool:
        """Return True if starting `task` at `placement` cannot delay the waiting task."""


class Never:
    """The `Shadow` (earliest start) of a task for which no possible start is known."""

    time = math.inf
    anywhere = False
    placement: Placement | None = None

    def survives(self, task: Task, placement: Placement) -> bool:
        return True


NEVER: Shadow = Never()


class LaunchSeen(Protocol):
    """A task's launch as policies see it; without one, properties are None, () or inf."""

    @property
    def placement(self) -> Placement | None: ...

    @property
    def stage(self) -> str | None:
        """Name of the stage, such as upload, compute or download (`STAGE_NAMES`)."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the launch; several tasks are a batch."""

    @property
    def finish(self) -> float:
        """Return the estimated end at present rates, including waits for earlier launches.

        For a request to a language model: the time at which it leaves its replica if no other requests arrive, with the
        estimated answer length.
        """


class Changes(Protocol):
    """Counters of what has changed in the cluster, for policies that cache results."""

    @property
    def releases(self) -> int:
        """Number of capacity releases so far; what did not fit cannot fit before the next."""

    @property
    def launches(self) -> int:
        """Number of starts; if it and `releases` are unchanged, no launch began or ended."""

    @property
    def steady(self) -> bool:
        """True if all tasks have always computed at nominal rate so far."""


class Imagined(Protocol):
    """A possible future of a run, computed from what its policy knows (`View.fork`)."""

    @property
    def now(self) -> float: ...

    def run(self, until: float = math.inf) -> Record:
        """Run this future once, to the end or until a time, and return the record."""


class View(Protocol):
    """The state that a policy may read; reading changes nothing.

    Every method covers tasks, requests of services and requests to language models.
    """

    cluster: Cluster
    random: np.random.Generator
    items: Sequence[Item]
    nodes: Any
    """Free capacity by node.

    `fitting(mode)`: indexes of the nodes on which a single-node mode fits now, ascending.  `candidates(mode)` returns
    them as an array, and updates NumPy columns of one value per node: `cores`, `memory` (bytes) and `gpus[type name]`;
    `refresh()` only updates these.  `accelerators` has each GPU, by node and position: its free `share` (millionths),
    free memory (`room`, bytes) and `kind` (index in `types`); and by node `stamp`, which changes whenever a node does.
    """

    @property
    def now(self) -> float:
        """The simulated time, in seconds."""

    @property
    def changes(self) -> Changes:
        """Counters that show whether cached results are still valid."""

    # Where does it fit?

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        """Return a placement that fits now: by `rule`, else the first in the fastest mode."""

    def first(
        self,
        mode: Mode,
        task: Task | None = None,
        *,
        node: int | None = None,
        among: int | Mapping[int, int] | None = None,
        by: Preference = "node",
    ) -> Placement | None:
        """Return the first devices on which a mode (and a task's data) fits now, or None.

        node: only on this node.  among: only on some nodes: a bitmask (bit n is node n), or, for a gang, a mapping of
        each node to the exact amount there: GPUs, thousandths of cores, or 1 if the gang has equal parts, one per node.
        by="load": for a mode of one whole device, the device with the fewest launches in flight; at ties, a device that
        has the data.  by="tightest" or "roomiest": for modes of whole accelerators or cores, the node with the smallest
        or largest free share of accelerators of this type, then of free cores; where the data is does not matter.
        """

    def options(self, task: Task, mode: Mode, distinct: bool = False) -> list[Placement]:
        """Return all placements of a mode that fit now; one per node unless it has 1 GPU.

        The task's data must fit, too.  distinct: return only the first placement if the task would end at the same time
        on all placements.
        """

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        """Return True if a mode (and tasks' data) fits now, anywhere or at a placement."""

    def together(self, rows: Sequence[int]) -> tuple[Task, ...] | None:
        """Return the tasks of these rows if they can start now as one kernel, else None.

        They can if each task is ready, or waits only for tasks before it in `rows`.
        """

    def holds(self, tasks: Task | Sequence[Task], placement: Placement) -> bool:
        """Return True if a placement has room for the tasks' data and the launch's memory."""

    def over_limit(self, task: Task) -> bool:
        """Return True if only a limit of its partition prevents the task's start."""

    def earliest_fit(self, task: Task, mode: Mode | None = None) -> Shadow:
        """Return the task's earliest start and place, if all launches end as estimated."""

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """Return a placement for the task and the victims to stop; None if impossible.

        Victims are tried in their order; the placement is on the first node on which stopping some of them suffices.
        """

    # How long?

    def duration(self, task: Task, placement: Placement) -> float:
        """Return the estimated seconds from a start now to the finish, transfers included."""

    def stages(self, tasks: Sequence[Task], placement: Placement) -> Any:
        """Return the seconds of each stage (ready, upload, ...) if the tasks started now."""

    def crowding(self, placement: Placement) -> tuple[float, float]:
        """Return the effects of shared links if a job started at `placement` now.

        The first number is the job's step time divided by its step time at the best placement.  The second is a sum
        over all other jobs: the number of devices of each, times the fraction of its speed that it would lose.
        """

    def remaining(self, task: Task) -> float:
        """Return a task's estimated compute time left; if it waits, in its fastest mode."""

    def free_at(self, device: Device, engine: Literal["stream", "upload", "compute", "download"] = "stream") -> float:
        """Return when a device can start one more launch ("stream"), or an engine is free."""

    # Running and waiting tasks

    def running(
        self, by: Literal["finish", "start"] = "finish", device: Device | None = None, own: bool = False
    ) -> list[Task]:
        """Return running tasks, on one device or all, by expected finish or by start.

        Each request to a language model has its own expected finish.  own: leave out requests to language models, which
        no policy starts, moves or stops.
        """

    def launch_of(self, task: Task) -> LaunchSeen:
        """Return `placement`, `stage`, `tasks` and estimated `finish` of a running task."""

    def waiting(self, count: int | None = None, own: bool = False) -> list[Task]:
        """Return the first `count` waiting tasks, or all, in the order of becoming ready.

        own: leave out requests to language models, which wait for a replica (`fit` returns None for them).
        """

    def num_waiting(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> int:
        """Return the number of waiting tasks, of all types and classes or of some.

        kind: only tasks whose fastest mode is on this type of device.  class_: only this class.  own: as in `waiting`.
        """

    def queue_of(self, task: Task) -> RequestQueue | None:
        """Return the queue that a request is in or will join; None for any other task."""

    # How much?

    def free(self, kind: str, node: int | None = None) -> float:
        """Return the free cores ("cpu") or GPUs of a kind or type, on one or all nodes."""

    def load(self, device: Device) -> float:
        """Return the share of a device in use (for a CPU: the fraction of busy cores)."""

    def backlog(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> float:
        """Return the estimated compute seconds of waiting and running work.

        kind: only tasks that run on this device type, or that wait and are fastest on it.  class_: only this class.
        own: leave out language-model requests.
        """

    def request_mix(self) -> Mapping[Shape, int]:
        """Return the number of tasks by demand (shape) in the whole input, arrived or not."""

    def attained(self, of: Task | str) -> float:
        """Return the GPU-seconds (CPU modes: core-seconds) used so far by a task or user."""

    def holders(self, item: int) -> list[Device | int]:
        """Return where valid copies of an item are: devices, and node indexes for hosts."""

    def room(self, device: Device) -> float:
        """Return an accelerator's free bytes without evicting items; 0 if it is down."""

    def slices(self, device: Device, idle: bool = False) -> Layout:
        """Return the slices of a MIG GPU in its present layout: all, or only idle ones."""

    def in_use(self, item: int, device: Device) -> bool:
        """Return True if a launch or a copy in progress needs an item on this device."""

    def fork(
        self,
        scheduler: Scheduler,
        decisions: Sequence[Decision] = (),
        seed: int = 0,
        coming: Sequence[tuple[float, Task]] = (),
        ratios: Sequence[float] = (),
        expected: Callable[[Tasks], np.ndarray] | None = None,
    ) -> Imagined:
        """Return a copy of the run with what the policy knows, to be run by `scheduler`.

        In the copy `decisions` are applied first, tasks take their estimated times, no further task arrives, nothing
        fails, and random numbers come from `seed`; the run itself is not affected.

        coming: arrivals that the policy imagines: pairs of a time and an earlier task, which the new task copies; not
        allowed with task graphs, shared data and requests.

        ratios: true time divided by estimated time, of tasks that have ended.  Each task takes its estimate times one
        of these ratios, drawn with `seed`; for a running task only ratios that fit its elapsed time are drawn.

        expected: function that gets the table of tasks as the policy knows it, and returns for each row the expected
        true time divided by the estimate; `ratios` are then true times divided by expected times.

        If `scheduler` is a field of the policy, which must have passed its hooks on to it, the copy has its state; any
        other scheduler is first notified of the waiting tasks.  UsageError for language models and for schedulers that
        plan beforehand.
        """
