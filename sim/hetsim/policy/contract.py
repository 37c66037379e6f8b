"""The contract between the engine and a policy: hooks, decisions, the view.

A policy never touches the clock and never changes state: it reads a view and yields decisions.  The engine
validates and applies each decision before it resumes the generator, so the view is always current.
`schedule` is asked once a round: when all changes of one instant have been applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.model.cluster import Cluster, Device
from hetsim.model.plan import Placement, Plan
from hetsim.model.slices import Layout, Slice
from hetsim.model.task import Task
from hetsim.model.tasks import Item, Mode, Shape, Tasks
from hetsim.policy.request_queue import RequestQueue, Requests
from hetsim.policy.routing import WantedReplica

if TYPE_CHECKING:
    import numpy as np

    from hetsim.model.record import Record

# Decisions ------------------------------------------------------------------------------------------------


class _Shown:
    """A decision shows itself by its parts."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(str(getattr(self, name)) for name in self.__slots__)})"


@dataclass(repr=False, eq=False, slots=True)
class Start(_Shown):
    """Launch one task, or several as one batch, on a placement.

    In a mode with `parts` (`hetsim.model.fusion.fused_mode`) several tasks are launched as one kernel, each in its own
    part, in this order; they wait, or wait only for those before them (`View.together`).
    """

    tasks: Task | Sequence[Task] | Requests
    placement: Placement


@dataclass(repr=False, eq=False, slots=True)
class Stop(_Shown):
    """Stop a running task's launch; it waits again. `keep=False` loses the work.

    Of a device: stop the replica of a language model that holds it.  Its requests wait again, and what they have
    produced is read again elsewhere; its service lacks a replica then, and asks where another is to start.
    """

    task: Task | Device
    keep: bool = True


@dataclass(repr=False, eq=False, slots=True)
class Move(_Shown):
    """Continue a running task elsewhere or in another mode; its state moves."""

    task: Task
    placement: Placement


@dataclass(repr=False, eq=False, slots=True)
class Reject(_Shown):
    """End a waiting task or requests for good; also an answer of admission.

    expired: it waited until its time ran out: its deadline or a timeout has passed, or cannot be met any more even
    alone and at once.  Then its status is `expired`; where it is refused by choice it is `rejected`.
    """

    task: Task | Requests | None = None
    reason: str = "rejected"
    expired: bool = False


@dataclass(repr=False, eq=False, slots=True)
class Annotate(_Shown):
    """State why a waiting task that would fit is passed over (quota, ...).

    Changes nothing; `hetsim explain` charges the wait from now on to this cause, until the task starts or
    another cause is given.
    """

    task: Task
    cause: Literal["quota", "reservation", "choice"]


@dataclass(repr=False, eq=False, slots=True)
class Set(_Shown):
    """Set a device's frequency (1: nominal), or to "off" (asleep), "on" or "wake".

    After "on" launches may be placed there at once, and wait for it; after "wake" it takes none before it is awake,
    which the hook `device` tells.
    """

    device: Device
    frequency: float | Literal["off", "on", "wake"] = 1.0


@dataclass(repr=False, eq=False, slots=True)
class Fetch(_Shown):
    """Bring a copy of an item to a device (prefetch, load a model)."""

    item: int
    device: Device


@dataclass(repr=False, eq=False, slots=True)
class Drop(_Shown):
    """Drop an unused copy of an item from a device."""

    item: int
    device: Device


@dataclass(repr=False, eq=False, slots=True)
class Partition(_Shown):
    """Cut a MIG GPU into a layout, given as slices, shares or profiles.

    It has to be empty or, with `recut: idle`, the layout to contain its busy slices.  The layout then stays, whatever
    starts, until the policy gives another one, or None: starts choose it again.
    """

    device: Device
    layout: Sequence[Slice | str | float] | None


class Wait(_Shown):
    """End the round; the next is at `until`, or as soon as something changes."""

    __slots__ = ("until",)

    on: str = "change"
    certain: float = -math.inf

    def __init__(self, until: float = math.inf):
        self.until = until


class Pause(Wait):
    """End the round as Wait does, with hints for list scheduling.

    on="change": at any change; "fit": a task that becomes ready counts only if it fits somewhere (what fits nowhere
    cannot start), up to the time `certain`; "release": only when capacity comes free (arrivals alone cannot help);
    "ready": only when a task becomes ready (nothing waits, so a release cannot help).
    """

    __slots__ = ("on", "certain")

    def __init__(
        self, on: Literal["change", "fit", "release", "ready"], until: float = math.inf, certain: float = math.inf
    ):
        self.until = until
        self.on = on
        self.certain = certain


WAIT_FOR_CHANGE = Pause("change")
WAIT_FOR_FIT = Pause("fit")
WAIT_FOR_RELEASE = Pause("release")
WAIT_FOR_READY = Pause("ready")

Decision = Start | Stop | Move | Reject | Annotate | Set | Fetch | Drop | Partition | Wait


@dataclass(frozen=True)
class Accept:
    """Admission's yes; `modes`: the only mode positions that are allowed."""

    modes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Defer:
    """Admission's not yet: ask again at `until`."""

    until: float


def _no_engine(_: Any) -> Any:
    raise UsageError("this planning problem has no engine, so nothing can be simulated")


# What policies are ----------------------------------------------------------------------------------------

PlacementRule = Callable[[Task, "View"], Placement | None]
Preference = Literal["node", "load", "tightest", "roomiest"]
"""Chooses among the placements that fit now, or declines with None."""

OrderKey = Callable[[Task], Any]
"""The key of a waiting task, constant while it waits; the least goes first, ties by arrival."""


class Scheduler:
    """Base of dynamic policies; every hook is a no-op by default."""

    policy_kind: ClassVar[str] = "scheduler"

    queueing: ClassVar[str] = ""
    """The queueing model that it makes of a system, by its name in `hetsim.queueing`; empty: none that is known there.
    """

    sets_devices: ClassVar[bool] = False
    """True if it puts devices to sleep and wakes them.  Policies that do so themselves refuse such a base."""

    at_own_times: bool = False
    """True if it decides at exact times of its own, so that decisions may not take time (`policy.decisions`)."""
    knows_rates: bool = False
    """True if it is given the true `rates`: only a policy whose predictor is a yardstick, a declared exception."""

    rates: Mapping[str, Callable[[float], float]] | None = None
    """If it `knows_rates`, from before `check` on: arrivals per second of each class and service at any time."""

    spreads: ClassVar[frozenset[str]] = frozenset({"gpus", "cores", "nodes"})
    """Tasks that it runs on several nodes: GPUs or cores with `span: any`, `nodes: N`; messages propose no others."""

    said: str = ""
    """What errors about its decisions end with: of a process, its last words."""

    rejects: bool = True
    """False if it never yields a `Reject`: clients that retry on that alone are then refused."""

    looks_ahead: ClassVar[bool] = False
    """True if it forks the run.  Runs that cannot fork (with language models) refuse it before the clock starts."""

    notes: Mapping[str, Any] = {}
    """Notes on the policy's work that are kept with the run: names and plain values.

    Of a plan these are `planned_makespan` and `lower_bound` (certified for the estimates), where it knows them, and
    what is its own (`ratio_certified`, `gap`, ...).  Nothing in it may depend on how fast the machine is.
    """

    def check(self, problem: PlanProblem) -> None:
        """Check a scenario once when it is built; ScenarioError if it does not suit."""

    def prepare(self, problem: PlanProblem) -> None:
        """Get the known future tasks, once before `begin` (for planners)."""

    def round_cost(self, problem: PlanProblem) -> float:
        """Seconds that each waiting task adds to a round; 0 if bounded.

        From it a run of many tasks says beforehand that it may take long, since its time is then quadratic in the
        number of tasks.
        """
        return 0.0

    def begin(self, view: View) -> None:
        """Hook: called once, before the first event."""

    def ready(self, task: Task) -> None:
        """Hook: a task now waits: admitted and able to run, or stopped."""

    def finished(self, task: Task) -> None:
        """Hook: a running task completed (requests: see `Batching.ended`)."""

    def gone(self, task: Task) -> None:
        """Hook: a task ended without completing: rejected, expired, failed."""

    def device(self, device: Device, up: bool) -> None:
        """Hook: a device failed, was put to sleep, or came back."""

    def announced(self, device: Device, start: float, end: float) -> None:
        """Hook: a device (of cores: the node) will be down from `start` to `end`."""

    def replica(self, wanted: WantedReplica, view: View) -> Placement | None:
        """Choose where to place a missing replica; None: nowhere for now.

        Asked after `begin` for the replicas of the start, which have their model; then when the service comes to lack
        one and, as long as it does, when devices have come free or one of its requests arrives; in a round before
        `schedule`.  So replicas have free devices before the tasks that wait, unless the policy keeps these.
        """
        return next((place for mode in wanted.modes if (place := view.first(mode)) is not None), None)

    def serve(self, counters: Sequence[Any], alone: bool) -> None:
        """Get the queues of services with their batching policies, once.

        Before `begin`. `alone`: there are no tasks besides.
        """
        raise ScenarioError(
            Problem(
                f"{type(self).__name__} does not serve requests in batches; fcfs, edf, priority and the other "
                "list schedulers do",
                key="policy.scheduler",
            )
        )

    def run_ended(self, time: float | None) -> None:
        """Hook: the run is over, at this time; None: it failed."""

    def schedule(self, view: View) -> Iterator[Decision]:
        """Yield decisions for this round."""
        return iter(())


@dataclass
class PlanProblem:
    """Knowledge of a planner: arrivals and estimates, never true durations.

    `random` is the policy's stream of the run's seed.  `simulate(plan)` and `rehearse(scheduler)` run the engine on
    the estimates: the first gives the makespan of a plan, counted from the first arrival; the second runs a
    scheduler of any kind and gives what it did as a plan.  Where there is no engine they raise.

    In mid-run (`hetsim.policy.remaining`) the tasks are those that have not started, with the work that they have left,
    and arrive at `now` or later.  `free_at` says by the name of a lane (`n0/g1`, `n0/cpu3`) when it will have ended
    what it runs; lanes that it does not name are free, inf: the lane is down.  `data`: where copies of items lie by now
    (devices, and node indexes for host memory); of items that it does not name, where they were at the start.
    Makespans are then counted from `now`.
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
    """Keys of the scenario that proofs do not take into account: what is proven is of the scenario without them."""

    @property
    def origin(self) -> float:
        """Time from which makespans count: the first arrival; in mid-run, `now`."""
        if self.in_mid_run:
            return self.now
        return float(self.tasks.arrival.min()) if len(self.tasks) else 0.0


class Admission:
    """Base of admission policies, asked by task in arrival order before the round."""

    policy_kind: ClassVar[str] = "admission"

    queueing: ClassVar[str] = ""
    """The queueing model that it makes of a system, by its name in `hetsim.queueing`; empty: none that is known there.
    """

    rejects: bool = True
    """False if it rejects no task: clients that retry on that alone are then refused."""

    def check(self, problem: PlanProblem) -> None:
        """Check a scenario once when it is built; ScenarioError for unknown classes."""

    def begin(self, view: View) -> None:
        """Hook: called once, before the first event."""

    def admit(self, task: Task, view: View) -> Accept | Reject | Defer:
        """Decide on a task that arrives, or that was deferred.

        Requests of a service are answered without `modes`: a batch runs in one mode, whatever requests are in it.
        """
        return Accept()

    def leaving(self, task: Task, view: View) -> Reject | None:
        """Drop this task, which is about to start, or keep it: None.

        Asked of each task of a `Start`, whichever scheduler or batching policy decided it, and of each request that is
        to join a replica of a language model; dropped ones are replaced by those behind them.
        """
        return None

    def finished(self, task: Task) -> None:
        """Hook: a task completed (for policies that estimate rates)."""

    def gone(self, task: Task) -> None:
        """Hook: a task ended without completing, admitted or not."""


class Shadow(Protocol):
    """Estimated start and place of a task that does not fit now."""

    time: float
    anywhere: bool
    """True if nodes do not matter to the task: another start leaves it the same, wherever it is."""

    @property
    def placement(self) -> Placement | None: ...

    def survives(self, task: Task, placement: Placement) -> bool:
        """True if starting `task` there now cannot delay the shadow's task."""


class Never:
    """The shadow of a task that will never start, by what is known."""

    time = math.inf
    anywhere = False
    placement: Placement | None = None

    def survives(self, task: Task, placement: Placement) -> bool:
        return True


NEVER: Shadow = Never()


class LaunchSeen(Protocol):
    """State of a running task's launch; None, empty or inf if it does not run."""

    @property
    def placement(self) -> Placement | None: ...

    @property
    def stage(self) -> str | None:
        """preparing, upload, restore, queued for compute, compute or download."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the launch: several are a batch."""

    @property
    def finish(self) -> float:
        """Estimated end at present rates, given the launches before it.

        A request to a language model: when it leaves its replica if no others come, with an answer of estimated length.
        """


class Changes(Protocol):
    """Changes since an earlier look, for policies that cache results."""

    @property
    def releases(self) -> int:
        """Counter of releases: what did not fit cannot fit before the next one."""

    @property
    def launches(self) -> int:
        """Counter of launches; if `releases` is also equal, the same launches run."""

    @property
    def steady(self) -> bool:
        """Return True if all tasks so far compute at nominal rate all the time."""


class Imagined(Protocol):
    """A possible future of a run, as its policy knows it (`View.fork`)."""

    @property
    def now(self) -> float: ...

    def run(self, until: float = math.inf) -> Record:
        """Run it once, to the end or to a time, and return the record."""


class View(Protocol):
    """All that a policy may see; reading changes nothing.

    Every verb tells the truth about tasks, requests of services and language models alike.
    """

    cluster: Cluster
    random: np.random.Generator
    items: Sequence[Item]
    nodes: Any
    """Free capacity by node.  `fitting(mode)`: indexes of the nodes on which a mode of one node fits now, ascending.
    As NumPy columns: `cores`, `memory`, `gpus[type name]`; `candidates(mode)` gives those indexes as an array, with
    the columns fresh (`refresh()` does only that).  `accelerators` has every GPU on its own: `share`, `room`, `kind`
    by node and position, `stamp` by node, which says what changed."""

    @property
    def now(self) -> float:
        """The simulated time, seconds."""

    @property
    def changes(self) -> Changes:
        """Counters that tell whether cached results still hold."""

    # Where does it fit?

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        """A placement that fits now: the fastest mode, first devices (or by `rule`)."""

    def first(
        self,
        mode: Mode,
        task: Task | None = None,
        *,
        node: int | None = None,
        among: int | Mapping[int, int] | None = None,
        by: Preference = "node",
    ) -> Placement | None:
        """The first devices on which a mode (and a task's data) fits now.

        node: on this node alone.  among: on these nodes; bit n is set for node n.  A mapping: a gang with exactly that
        much on each of its nodes: GPUs, thousandths of cores, or 1 for a part of a gang of equal parts.  by="load": of
        the devices on which a mode of one whole device fits the one with the least in flight, among equals one that
        holds the data.  by="tightest", "roomiest": on the node with the least or most free share of such accelerators,
        then free cores; a mode of whole accelerators or cores, and no data are looked at.
        """

    def options(self, task: Task, mode: Mode, distinct: bool = False) -> list[Placement]:
        """Every placement of a one-device mode that fits now; of gangs one per node.

        The task's data included. distinct: only the first where the task would end at the same time on all of them.
        """

    def fits(self, mode: Mode, placement: Placement | None = None, tasks: Sequence[Task] = ()) -> bool:
        """Return True if a mode fits somewhere, or there, now (with the tasks' data)."""

    def together(self, rows: Sequence[int]) -> tuple[Task, ...] | None:
        """The tasks of these rows if they can be launched as one kernel now, or None.

        Each waits, or waits only for those before it.
        """

    def holds(self, tasks: Task | Sequence[Task], placement: Placement) -> bool:
        """Return True if there is room for the task's data there, besides its own memory."""

    def over_limit(self, task: Task) -> bool:
        """Return True if only a limit of its partition prevents the start."""

    def earliest_fit(self, task: Task, mode: Mode | None = None) -> Shadow:
        """Earliest start and place of the task, if all launches end as estimated."""

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """The first node on which stopping some of `victims` makes the task fit.

        Taken in their order: where it would run and which of them must stop; None if not even all of them suffice.
        """

    # How long?

    def duration(self, task: Task, placement: Placement) -> float:
        """Estimated seconds from a start there now to the finish, transfers included."""

    def stages(self, tasks: Sequence[Task], placement: Placement) -> Any:
        """`duration` by stage: ready, write_back, upload, restore, compute, download."""

    def crowding(self, placement: Placement) -> tuple[float, float]:
        """Slowdown on shared links if a job started there now: its own, and others'.

        How many times as long as in the best place its step would take, and the devices' worth of work that all others
        would lose.
        """

    def remaining(self, task: Task) -> float:
        """Estimated compute seconds left, of a waiting task in its best mode."""

    def free_at(self, device: Device, engine: Literal["stream", "upload", "compute", "download"] = "stream") -> float:
        """Time at which an engine of a device is free; "stream": for one more launch."""

    # Running and waiting tasks

    def running(
        self, by: Literal["finish", "start"] = "finish", device: Device | None = None, own: bool = False
    ) -> list[Task]:
        """Running tasks, on one device or all, by finish or by start.

        Requests to language models stand by the finish of each.

        own: without requests to language models, which no policy starts, moves or stops.
        """

    def launch_of(self, task: Task) -> LaunchSeen:
        """`placement`, `stage`, `tasks` and estimated `finish` of a running task."""

    def waiting(self, count: int | None = None, own: bool = False) -> list[Task]:
        """Waiting tasks in the order of readiness, all or the first `count`.

        own: without requests to language models, which wait for a replica (`fit`: None).
        """

    def num_waiting(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> int:
        """Number of waiting tasks, by kind or type of best mode, and by class."""

    def queue_of(self, task: Task) -> RequestQueue | None:
        """The queue of a request, now or to come; None of other tasks."""

    # How much?

    def free(self, kind: str, node: int | None = None) -> float:
        """Free cores ("cpu") or GPUs of a kind or type, on one node or all."""

    def load(self, device: Device) -> float:
        """Shares in use on a device (of cores: the busy part)."""

    def backlog(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> float:
        """Estimated compute seconds waiting and running, by kind of best mode."""

    def request_mix(self) -> Mapping[Shape, int]:
        """Demands of all tasks of the run, and their counts."""

    def attained(self, of: Task | str) -> float:
        """GPU-seconds (for CPU modes core-seconds) received so far by a task or by a user."""

    def holders(self, item: int) -> list[Device | int]:
        """Holders of valid copies of an item: devices, and node indexes for hosts."""

    def room(self, device: Device) -> float:
        """Free bytes of an accelerator's memory, unused items aside; 0 if down."""

    def slices(self, device: Device, idle: bool = False) -> Layout:
        """The slices of a MIG GPU in its present layout, all or the idle ones."""

    def in_use(self, item: int, device: Device) -> bool:
        """Return True if a launch, or a copy under way, needs an item on this accelerator."""

    def fork(
        self,
        scheduler: Scheduler,
        decisions: Sequence[Decision] = (),
        seed: int = 0,
        coming: Sequence[tuple[float, Task]] = (),
        ratios: Sequence[float] = (),
        expected: Callable[[Tasks], np.ndarray] | None = None,
    ) -> Imagined:
        """A copy of the run with what the policy knows; `scheduler` continues it.

        Tasks take their estimates, no other task arrives, nothing fails, random numbers are those of `seed`; the run
        itself never notices.  coming: arrivals that the policy imagines, each a time and a task that has come and that
        the newcomer is like; not for graphs, shared data and requests.
        ratios: times of tasks that have ended, as parts of their estimates: each task takes its estimate times one of
        them, drawn with `seed`, and a running one a ratio by which it has not ended yet.
        expected: of the table of the tasks as the policy knows it, by row: the part of its estimate that a task is
        expected to take; `ratios` are then of what tasks took to what was expected of them.
        A scheduler that is a field of the policy's own, and that the policy keeps informed, is copied with all that it
        knows; any other is told of the tasks that wait.  UsageError for language models and for schedulers that plan
        beforehand.
        """
