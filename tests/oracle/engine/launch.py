"""A launch, its stages, and the engines of an accelerator that they pass through."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

from oracle.engine.clock import Timer
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy.request_queue import Requests

NAN = math.nan
BEFORE, UPLOAD, RESTORE, QUEUED, COMPUTE, DOWNLOAD, OVER = range(7)
STAGE_NAMES = ("preparing", "upload", "restore", "queued for compute", "compute", "download", "over")


class Launch(Timer):
    """One or more tasks running in one mode on one placement.

    `left` is the compute time still to do at rate 1, true at `updated`; `total` what it was at the start.
    `stages` is None as long as the launch only computes, at rate 1, on devices that do nothing else: most
    launches of most runs live and die without it.
    """

    __slots__ = (
        "number", "task", "tasks", "placement", "cores", "decided", "stage", "total", "left", "rate", "updated",
        "finish_at", "stages", "position", "terms",
    )  # fmt: skip
    # Set by whoever makes the launch, or when its first stage begins.
    cores: int
    """Bitmask of the cores it took (a CPU launch)."""
    position: int
    """Of its mode in the first task's shape."""
    stage: int
    total: float
    left: float
    rate: float
    updated: float
    finish_at: float

    def __init__(self, then: Callable[[Any], None], number: int, task: Task, placement: Placement, now: float):
        self.entry = -1
        self.then = then
        self.number = number
        self.task = task
        self.tasks: tuple[Task, ...] = (task,)
        self.placement = placement
        self.decided = now
        self.stages: Stages | None = None
        self.terms: Terms | None = None

    def __lt__(self, other: Launch) -> bool:
        return self.number < other.number

    def __hash__(self) -> int:
        return self.number


class Terms:
    """What a batch of requests has besides its members: padding and noise.

    `extra` requests that are none are moved, and `padding` seconds computed, for nothing; the truth is each stage's
    time × its factor (`up`, `compute`, `down`).
    """

    __slots__ = ("requests", "extra", "padding", "up", "compute", "down")

    def __init__(self, requests: Requests, padding: float, factors: Sequence[float]):
        self.requests = requests
        self.extra = requests.size - requests.count
        self.padding = padding
        self.up, self.compute, self.down = factors


class Stages:
    """What a launch that does more than compute keeps besides."""

    __slots__ = (
        "start", "upload_start", "upload_end", "compute_start", "compute_end", "download_start", "waiting", "flows",
        "items", "busy", "energy", "busy_rate", "watts", "group", "upload_estimate",
    )  # fmt: skip

    def __init__(self) -> None:
        self.start = self.upload_start = self.upload_end = NAN
        self.compute_start = self.compute_end = self.download_start = NAN
        self.waiting = 0
        """Parts of the present stage (one an accelerator) still to end."""
        self.flows: list[Any] = []
        """Transfers and timers under way, to be cancelled by a stop."""
        self.items: tuple[int, ...] = ()
        self.busy = 0.0
        self.energy = 0.0
        self.busy_rate = 0.0
        self.watts = 0.0
        self.group: ShareGroup | None = None
        self.upload_estimate = 0.0
        """Of the upload stage, on idle links, as it looked when the stage was asked for."""


class History:
    """What a task keeps from its former launches."""

    __slots__ = ("rows", "saved_at", "saved_by", "checkpoint", "last_device")

    def __init__(self) -> None:
        self.rows: list[int] = []
        """Rows (oracle.engine.recorder) of stopped launches whose work is kept so far."""
        self.saved_at: int | None = None
        """The location (oracle.engine.places) of its saved state, if it has one."""
        self.saved_by = 0.0
        """The time from which that state is there."""
        self.last_device = -1
        """The (first) device on which it last computed."""
        self.checkpoint = 0.0
        """The finished fraction that is safe."""


class ShareGroup(Timer):
    """Launches computing side by side on one accelerator that slows them: one pending event, the next finish."""

    __slots__ = ("members",)

    def __init__(self, then: Callable[[Any], None]):
        super().__init__(then)
        self.members: list[Launch] = []


class TransferEngine:
    """One copy engine: serves one launch at a time, in start order."""

    __slots__ = ("current", "queue")

    def __init__(self) -> None:
        self.current: Any = None
        self.queue: list[tuple[int, Any, Callable[[], None]]] = []

    def request(self, launch: Any, begin: Callable[[], None]) -> None:
        if self.current is None:
            self.current = launch
            begin()
        else:
            insort(self.queue, (launch.number, launch, begin), key=lambda entry: entry[0])

    def release(self, launch: Any) -> None:
        """The launch is done with the engine, or gives up its place in the queue."""
        if self.current is not launch:
            self.queue = [entry for entry in self.queue if entry[1] is not launch]
            return
        self.current = None
        if self.queue:
            _, self.current, begin = self.queue.pop(0)
            begin()


class Engines:
    """The three engines of one accelerator."""

    __slots__ = ("upload", "download", "computing", "share", "queue", "group", "staged", "fetching")

    def __init__(self, group: ShareGroup | None):
        self.upload = TransferEngine()
        self.download = TransferEngine()
        self.computing: list[Launch] = []
        self.share = 0
        """Sum of the shares (millionths) of what is computing."""
        self.queue: list[Launch] = []
        """Waiting for the compute engine, in start order."""
        self.group = group
        self.staged: list[Launch] = []
        """Launches in flight that go through all stages, in start order."""
        self.fetching = 0
        """Prefetches under way."""
