"""Input and outcome of a run, as columns: the hand-over between the rooms.

`RunInput` is what a scenario becomes before the clock starts; `Record` is what the engine wrote down.
Tables with names, metrics and files are made from a Record by `hetsim.results`.

`DeviceStates` makes the states of devices from a device log: up, asleep, waking or down.
A device sleeps on through a failure and its repair; an accelerator is down while its node is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.clients import Calls
from hetsim.model.cluster import Cluster
from hetsim.model.faults import Faults
from hetsim.model.randomness import RandomTree
from hetsim.model.service import LanguageService, Service
from hetsim.model.tasks import Tasks
from hetsim.model.units import Count, Seconds


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """Time that the scheduler takes to decide and to start.

    A cycle begins when something has changed since the last one and the scheduler is free.  It takes `per_cycle` and
    `per_waiting` for each waiting task; then the scheduler decides, on the state at that moment.  Its starts take their
    devices at once, and begin one after another, `per_start` apart.
    """

    cycle: Seconds = 0.0
    """Cycles begin at multiples of this time; as soon as something has changed unless given."""
    per_cycle: Seconds = 0.0
    """Time that each cycle takes before the scheduler decides."""
    per_waiting: Seconds = 0.0
    """Time that each task which waits when the cycle begins adds to it."""
    per_start: Seconds = 0.0
    """Time that each start takes to come into effect, one after another."""
    max_starts: Count | None = None
    """Starts of one cycle at most; what else could start is left to the next cycle."""
    overlap: bool = False
    """True if a cycle may begin before the starts of the last one take effect, as with asynchronous binding."""

    def check(self) -> None:
        """Raise ValueError or KeyProblem where these keys have no effect."""
        if self == DecisionTime():
            raise ValueError("must give at least one time: cycle, per_cycle, per_waiting or per_start")
        if self.overlap and not self.per_start:
            raise KeyProblem("overlap", "overlap needs a time of starts: give per_start, or leave overlap out")

    @property
    def shortest_cycle(self) -> float:
        """The minimum number of seconds between two cycles."""
        return max(self.cycle, self.per_cycle)


NOT_ARRIVED, UNFINISHED, COMPLETED, REJECTED, EXPIRED, FAILED, ABORTED = -1, 0, 1, 2, 3, 4, 5
STATUS_NAMES = {COMPLETED: "completed", REJECTED: "rejected", EXPIRED: "expired", FAILED: "failed", ABORTED: "aborted",
                UNFINISHED: "unfinished"}  # fmt: skip
STOPS, MOVES = "preemptions", "migrations"
PREEMPTIONS = ("recompute", "swap", "failure")
"""How requests to language models lose their place: read again, copied to the host, or their replica failed."""

LAUNCH_COMPLETED, LAUNCH_STOPPED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_RUNNING = range(5)
OUTCOME_NAMES = {LAUNCH_COMPLETED: "completed", LAUNCH_STOPPED: "stopped", LAUNCH_LOST: "lost",
                 LAUNCH_MOVED: "moved", LAUNCH_RUNNING: "running"}  # fmt: skip


STAGE_SPANS = {
    "upload": ("upload_start", "upload_end"),
    "compute": ("compute_start", "compute_end"),
    "download": ("download_start", "end"),
}
"""Columns of launches between which a stage lies."""


@dataclass
class ClosedStream:
    """A closed loop: `clients` that think, send a task, and wait for its end.

    `clients` are pairs of a time, the first 0, and the clients from then on.  `rows` are the rows of `Tasks` that
    belong to it, in the order in which they are sent; those of the first clients have arrival times, the others inf
    until the engine sends them.  `deadline` and `patience`, where its tasks have them, count seconds from sending, one
    entry a row of `rows`: of rows not yet sent the columns of `Tasks` cannot hold them.
    """

    name: str
    rows: np.ndarray
    clients: list[tuple[float, int]]
    think: Callable[[np.random.Generator, int], np.ndarray]
    deadline: np.ndarray | None = None
    patience: np.ndarray | None = None


@dataclass
class RunInput:
    """The input of one run; `policy` is the long form for messages."""

    name: str
    cluster: Cluster
    tasks: Tasks
    scheduler: Any = None
    admission: Any = None
    random: RandomTree = field(default_factory=lambda: RandomTree(0))
    closed: list[ClosedStream] = field(default_factory=list)
    calls: Calls | None = None
    """Calls of clients that time out or try again, where there are any."""
    horizon: float = math.inf
    warmup: float = 0.0
    policy: str = "policy"
    services: list[Service] = field(default_factory=list)
    batching: list[Any] = field(default_factory=list)
    """The batching policy of each service."""
    language: list[LanguageService] = field(default_factory=list)
    iteration: list[tuple[Any, Any]] = field(default_factory=list)
    """The batching and the routing policy of each language model."""
    warnings: list[str] = field(default_factory=list)
    """Warnings that a reader of the results needs first: a load beyond every capacity, ..."""
    overloads: list[tuple[str, float, float]] = field(default_factory=list)
    """Services whose waits must grow, in a line: the warning, the number of requests that are served at most until the
    last one arrives, and the seconds that the last of these has waited at least."""
    unplanned: list[str] = field(default_factory=list)
    """Keys of the scenario that no proof of a planner takes into account."""
    faults: list[Faults] = field(default_factory=list)
    decisions: DecisionTime | None = None
    """The time that the scheduler itself takes, where it takes any."""
    grace: float | None = None
    """Seconds after their time limit at which tasks are killed; None: they may overrun it."""
    traces: list[str] = field(default_factory=list)
    """How each trace with replayed arrivals was resampled; an empty text where it was not."""


@dataclass
class Record:
    """Columns of a run as the engine wrote them; seconds, NaN for no event.

    Per task (one entry a row of `tasks`): `status`, `ready`, `start` (first stage of its first launch),
    `finish` (also of rejected, expired and failed tasks: when that happened), `mode` (position in its shape)
    and `place` (index into `places`) of its last launch, -1 where none.
    `upload`, `compute`, `download` are the seconds of stages, without lost work; None in a run where every task
    only computed and none was stopped: compute is then finish - start and the others are 0.  Ask `stage` for them.
    `preemptions` and `migrations` are None where there were none; `reasons` has a text for some tasks.
    `batch` is the number of the last launch where launches had several tasks, else None.
    `steps`: columns of the steps of language models (`hetsim.results.one_run.steps`), `token_gaps` (time, seconds) the
    gaps between tokens that do not follow from them, `replicas` (service, number, KV blocks, place) what their column
    `replica` counts; `preemptions_by` and `cached_tokens` are per task, where there were any.
    `attempt_of` is the row of the first attempt of a call (-1: a task that is none), `call_end` by that row when the
    call was answered or given up; None where no client times out or tries again.
    `first_token` is when a request to a language model had its first token, None where there are none; `received` are
    device-seconds of its shares of steps, where clients time out or try again.
    `energy` (J above idle) likewise is None unless computed in the run (rates changed); then it is
    derived from `compute`.

    `launches`: columns, one row a launch: launch, task (the first), members, mode, place, decided (when the
    policy started it), start (its first stage), upload_start, upload_end, compute_start, compute_end,
    download_start, end (all NaN where skipped), outcome, busy (device-seconds computed: GPUs × share × time ×
    engine share), energy (J above idle), lost (busy that was lost).  None where each task had exactly one plain launch.
    `places`: (device indexes, core numbers or None); of cores on several nodes those of each node are numbered on
    behind those of the node before it (`hetsim.model.plan.cores_on`).
    `device_log`: (time, device index, what, value) with what in frequency, sleep, wake, awake, down, up.
    `holds`: (time, task, cause) as told by the policy.
    `cycles`: columns asked and decided of the cycles of a scheduler that takes time (`RunInput.decisions`), where
    they differ.
    `fused`: of launches of several tasks as one kernel, by number: their rows in order, and the bytes of memory traffic
    of each that fell away.
    `stays` and `links`: columns of what jobs over nodes did on the network (see
    `hetsim.engine.flight.contention`); None where no job tells what its nodes send.
    `notes`: what the policy tells of its work (of a plan its makespan and bound); `planning` the seconds of wall clock
    that it took to prepare, NaN for a policy that does not: never part of a table, as no two runs agree on it.
    """

    input: RunInput
    end: float
    status: np.ndarray
    ready: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    mode: np.ndarray
    place: np.ndarray
    places: list[tuple[tuple[int, ...], tuple[int, ...] | None]]
    upload: np.ndarray | None = None
    compute: np.ndarray | None = None
    download: np.ndarray | None = None
    preemptions: np.ndarray | None = None
    migrations: np.ndarray | None = None
    energy: np.ndarray | None = None
    batch: np.ndarray | None = None
    attempt_of: np.ndarray | None = None
    call_end: np.ndarray | None = None
    first_token: np.ndarray | None = None
    received: np.ndarray | None = None
    steps: dict[str, np.ndarray] | None = None
    token_gaps: np.ndarray | None = None
    replicas: list[tuple[str, int, int, int]] = field(default_factory=list)
    preemptions_by: dict[str, np.ndarray] = field(default_factory=dict)
    cached_tokens: np.ndarray | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    launches: dict[str, np.ndarray] | None = None
    device_log: list[tuple[float, int, str, float]] = field(default_factory=list)
    holds: list[tuple[float, int, str]] = field(default_factory=list)
    fused: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=dict)
    cycles: dict[str, np.ndarray] | None = None
    stays: dict[str, np.ndarray] | None = None
    links: dict[str, np.ndarray] | None = None
    stats: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    planning: float = math.nan

    def stage(self, name: str) -> np.ndarray | None:
        """Seconds of `upload`, `compute` or `download` counted for each task.

        None in a run where every task only computed. Where all launches are batches they follow from these: columns of
        millions of requests.
        """
        column: np.ndarray | None = getattr(self, name)
        if self.compute is not None or self.launches is None or self.batch is None:
            return column
        since, until = STAGE_SPANS[name]
        seconds = np.nan_to_num(self.launches[until] - self.launches[since])
        seconds[self.launches["outcome"] != LAUNCH_COMPLETED] = 0.0
        by_number = np.zeros(int(self.launches["launch"].max(initial=0)) + 1)
        by_number[self.launches["launch"]] = seconds
        return np.where(self.batch < 0, 0.0, by_number[np.maximum(self.batch, 0)])


UP, ASLEEP, WAKING, DOWN = "up", "asleep", "waking", "down"

_POWER = {"sleep": ASLEEP, "wake": WAKING, "awake": UP}
"""Entries by which a device goes to sleep and wakes, and what it is from then on unless it is down."""


class DeviceStates:
    """The state of every device by entry of the log; all are up at first."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._power = [UP] * len(cluster.devices)
        self._failed = [False] * len(cluster.devices)
        self.of = list(self._power)

    def change(self, index: int, what: str) -> list[int]:
        """Apply an entry; return the devices whose state changes."""
        device = self._cluster.devices[index]
        touched = [index]
        if what in _POWER:
            self._power[index] = _POWER[what]
        elif what in ("down", "up"):
            self._failed[index] = what == "down"
            if device.type.kind == "cpu":  # its cores stand for the node
                touched += [one.index for one in self._cluster.nodes[device.node].accelerators]
        else:
            return []
        changed = []
        for one in touched:
            state = self._state(one)
            if state != self.of[one]:
                self.of[one] = state
                changed.append(one)
        return changed

    def _state(self, index: int) -> str:
        host = self._cluster.nodes[self._cluster.devices[index].node].cpu.index
        return DOWN if self._failed[index] or self._failed[host] else self._power[index]
