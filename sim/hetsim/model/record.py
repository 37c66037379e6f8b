"""Input and outcome of a run, as columns.

`RunInput` is built from a scenario before the clock starts; `Record` is written by the engine.  `hetsim.results` makes
tables with names, metrics and files from a Record.  `DeviceStates` computes the states of devices (up, asleep, waking
or down) from a device log.  A device that is asleep remains asleep through a failure and its repair; an accelerator is
down while its node is down.
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
    """Time that the scheduler takes to decide and to start tasks.

    A decision cycle begins when the state has changed since the last cycle and the scheduler is free.  It takes
    `per_cycle` seconds plus `per_waiting` for each waiting task; then the scheduler decides on the state at that time.
    The starts occupy their devices immediately, and begin one after another, `per_start` seconds apart.
    """

    cycle: Seconds = 0.0
    """Cycles begin at multiples of this time. Default: a cycle begins as soon as something has changed."""
    per_cycle: Seconds = 0.0
    """Time that each cycle takes before the scheduler decides."""
    per_waiting: Seconds = 0.0
    """Time added by each task that waits when the cycle begins."""
    per_start: Seconds = 0.0
    """Time that each start takes to come into effect, one after another."""
    max_starts: Count | None = None
    """Maximum number of starts in a cycle; the next cycle continues with the remaining tasks."""
    overlap: bool = False
    """True if a cycle may begin before the starts of the previous cycle take effect, as with asynchronous binding."""

    def check(self) -> None:
        """Raise ValueError if no time is given, KeyProblem if `overlap` has no effect."""
        if self == DecisionTime():
            raise ValueError("must give at least one time: cycle, per_cycle, per_waiting or per_start")
        if self.overlap and not self.per_start:
            raise KeyProblem("overlap", "overlap needs a time of starts: give per_start, or leave overlap out")

    @property
    def shortest_cycle(self) -> float:
        """Minimum number of seconds from one decision cycle to the next."""
        return max(self.cycle, self.per_cycle)


NOT_ARRIVED, UNFINISHED, COMPLETED, REJECTED, EXPIRED, FAILED, ABORTED = -1, 0, 1, 2, 3, 4, 5
STATUS_NAMES = {COMPLETED: "completed", REJECTED: "rejected", EXPIRED: "expired", FAILED: "failed", ABORTED: "aborted",
                UNFINISHED: "unfinished"}  # fmt: skip
STOPS, MOVES = "preemptions", "migrations"
# preemptions of LLM requests: recomputed, swapped to the host, or their replica failed
PREEMPTIONS = ("recompute", "swap", "failure")

LAUNCH_COMPLETED, LAUNCH_STOPPED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_RUNNING = range(5)
OUTCOME_NAMES = {LAUNCH_COMPLETED: "completed", LAUNCH_STOPPED: "stopped", LAUNCH_LOST: "lost",
                 LAUNCH_MOVED: "moved", LAUNCH_RUNNING: "running"}  # fmt: skip


STAGE_SPANS = {
    "upload": ("upload_start", "upload_end"),
    "compute": ("compute_start", "compute_end"),
    "download": ("download_start", "end"),
}  # columns of launches with the begin and the end of each stage


@dataclass
class ClosedStream:
    """A closed loop: `clients` that think, send a task, and wait for its end.

    `clients` are pairs: a time (the first is 0), and the number of clients from that time on.  `rows` are the rows of
    `Tasks` that belong to the loop, in the order of sending.  The first task of each client has an arrival time; the
    arrival of all other tasks is inf until the engine sends them.  `deadline` and `patience` (None: the tasks have
    none) are seconds from sending, for each of `rows`; the columns of `Tasks` have them only once the tasks are sent.
    """

    name: str
    rows: np.ndarray
    clients: list[tuple[float, int]]
    think: Callable[[np.random.Generator, int], np.ndarray]
    deadline: np.ndarray | None = None
    patience: np.ndarray | None = None


@dataclass
class RunInput:
    """The input of one run; `policy`: its policy with parameters, for error messages."""

    name: str
    cluster: Cluster
    tasks: Tasks
    scheduler: Any = None
    admission: Any = None
    random: RandomTree = field(default_factory=lambda: RandomTree(0))
    closed: list[ClosedStream] = field(default_factory=list)
    calls: Calls | None = None  # calls of clients that time out or retry, if there are any
    horizon: float = math.inf
    warmup: float = 0.0
    policy: str = "policy"
    services: list[Service] = field(default_factory=list)
    batching: list[Any] = field(default_factory=list)  # the batching policy of each service
    # likewise the routing and the scaling policy of its replicas; None: it has no replicas, or does not scale
    replica_policies: list[tuple[Any, Any]] = field(default_factory=list)
    language: list[LanguageService] = field(default_factory=list)
    # the batching, the routing and the scaling policy of each language model; None: it does not scale
    iteration: list[tuple[Any, Any, Any]] = field(default_factory=list)
    eviction: Any = None  # the policy that chooses the model to evict when host memory or a disk is full
    # warnings that the results show first, such as a load beyond every capacity
    warnings: list[str] = field(default_factory=list)
    overloads: list[tuple[str, float, float]] = field(default_factory=list)
    """Services that serve first come, first served, at a constant load above capacity.

    For each: the warning, the maximum number of requests that can be served before the last arrival, and the wait
    (s) that the last of these requests has at least.
    """
    # keys of the scenario that no proof of a planner takes into account
    unplanned: list[str] = field(default_factory=list)
    faults: list[Faults] = field(default_factory=list)
    decisions: DecisionTime | None = None  # time that the scheduler's decisions take, if any
    grace: float | None = None  # seconds after their time limit at which tasks are killed; None: they may exceed it
    # how each trace with replayed arrivals was resampled; an empty text if it was not
    traces: list[str] = field(default_factory=list)


@dataclass
class Record:
    """Columns of a run as the engine wrote them; seconds, NaN for no event.

    Per task (one entry per row of `tasks`): `status`, `ready`, `start` (first stage of its first launch), `finish`
    (also of rejected, expired and failed tasks), `mode` (position in the list of the task's modes) and `place` (index
    into `places`) of the last launch, -1 if there was none.

    `upload`, `compute`, `download`: seconds of stages, without lost work; None if every task only computed and no task
    was stopped: compute is then finish - start, and the other two are 0.  `stage` returns the seconds in both cases.

    `preemptions`, `migrations`: numbers per task, None if there were none; `reasons`: why a task was rejected, aborted
        or failed.  `batch`: number of the task's last launch; None if no launch had several tasks.

    `steps`: columns of the steps of language models (`hetsim.results.one_run.steps`); `token_gaps`: (time, seconds) of
    gaps between tokens that do not follow from `steps`; `replicas`: (service, number, KV blocks, place) by the numbers
    in the column `replica` of `steps`; `preemptions_by`, `cached_tokens`: per task, if there were any.
    `cold_start`: 1 for a request for which a replica began to load its model; None if none.  `occupied`: (shape, mode's
    position, place, taken, released, loading from, loaded) of each replica that forms batches; NaN if it did not load.

    `attempt_of`: row of the first attempt of the same call (-1: not an attempt); `call_end`: by row of the first
    attempt, the time at which the call was answered or given up.  Both are None if no client times out or retries.

    `first_token`: time of the first token of a request to a language model, None if there are none; `received`:
    device-seconds of the request's share of the steps, None if no client times out or retries.

    `energy`: J above idle; None if the energy follows from `compute`.

    `launches`: columns, one row per launch: launch, task (the first), members, mode, place, decided (when the policy
    started it), start (its first stage), upload_start, upload_end, compute_start, compute_end, download_start, end (all
    NaN if skipped), outcome, busy (device-seconds computed: GPUs × share × time × engine share), energy (J above idle),
    lost (busy that was lost).  None if each task had exactly one plain launch.

    `places`: (device indexes, core numbers or None); cores on several nodes are numbered consecutively, node after node
    (`hetsim.model.plan.cores_on`).  `device_log`: (time, device index, what, value) with what in frequency, sleep,
    wake, awake, down, up.  `holds`: (time, task, cause) as stated by the policy.

    `cycles`: columns asked (time at which a cycle was due) and decided, for the decision cycles of a scheduler
    (`RunInput.decisions`) in which they differ.
    `fused`: by number of a fused launch: rows of its tasks in order, and the memory traffic in bytes that each saved.
    `stays` and `links`: columns of jobs on the shared network (`hetsim.engine.flight.contention`); None if no job has a
    traffic model.

    `notes`: the policy's notes on its work (of a plan its makespan and bound); `planning`: wall-clock seconds of the
    policy's preparation, NaN if there was none; never part of a table, since it differs between runs.
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
    cold_start: np.ndarray | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    launches: dict[str, np.ndarray] | None = None
    device_log: list[tuple[float, int, str, float]] = field(default_factory=list)
    holds: list[tuple[float, int, str]] = field(default_factory=list)
    occupied: list[tuple[int, int, int, float, float, float, float]] = field(default_factory=list)
    fused: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=dict)
    cycles: dict[str, np.ndarray] | None = None
    stays: dict[str, np.ndarray] | None = None
    links: dict[str, np.ndarray] | None = None
    stats: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    planning: float = math.nan

    def stage(self, name: str) -> np.ndarray | None:
        """Return the seconds of `upload`, `compute` or `download` counted for each task.

        Return None if every task of the run only computed.  If all launches are batches, the seconds are derived from
        the launches, which saves memory if there are millions of requests.
        """
        column: np.ndarray | None = getattr(self, name)
        if self.compute is not None or self.launches is None or self.batch is None:
            return column
        since, until = STAGE_SPANS[name]
        seconds = np.nan_to_num(self.launches[until] - self.launches[since])
        numbers = self.launches["launch"]
        ended = (self.launches["outcome"] == LAUNCH_COMPLETED) & (numbers >= 0)  # -1: a task that only computed
        by_number = np.zeros(int(numbers.max(initial=0)) + 1)
        by_number[numbers[ended]] = seconds[ended]
        plain = (self.status == COMPLETED) & (self.place >= 0) & (name == "compute")
        alone = np.where(plain, self.finish - self.start, 0.0)
        return np.where(self.batch < 0, alone, by_number[np.maximum(self.batch, 0)])


UP, ASLEEP, WAKING, DOWN = "up", "asleep", "waking", "down"

# log entries for sleeping and waking, and the state after each unless the device is down
_POWER = {"sleep": ASLEEP, "wake": WAKING, "awake": UP}


class DeviceStates:
    """States of all devices, updated entry by entry from a device log."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._power = [UP] * len(cluster.devices)
        self._failed = [False] * len(cluster.devices)
        self.of = list(self._power)

    def change(self, index: int, what: str) -> list[int]:
        """Apply a device event (`what`: "down", ...); return devices whose state changes."""
        device = self._cluster.devices[index]
        touched = [index]
        if what in _POWER:
            self._power[index] = _POWER[what]
        elif what in ("down", "up"):
            self._failed[index] = what == "down"
            if device.type.kind == "cpu":  # a CPU stands for its node
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
