"""Launches and their stage times, as data; `hetsim.engine.launching` acts on them.

Every launch has one pending entry in the clock.  A launch that only computes, at nominal rate, on devices that serve
one launch at a time needs nothing else; any other launch has a `Timetable`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from hetsim.engine.flight.links import Flow, LinkPath
from hetsim.engine.flight.part import Part, insert_part
from hetsim.engine.kernel.clock import Timer
from hetsim.model.fusion import Fusion
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.policy.request_queue import Requests

NAN, INF = math.nan, math.inf

BEFORE, UPLOAD, RESTORE, QUEUED, COMPUTE, DOWNLOAD, OVER = range(7)
STAGE_NAMES = ("preparing", "upload", "restore", "queued for compute", "compute", "download", "over")

END, READY, TURN, JOIN, COMPUTED = range(5)
"""Purpose of the pending clock entry of a launch.  END: it ends; READY: its devices are ready; TURN: it gets a copy
engine, and its transfer is simulated with events; JOIN: it begins to share a compute engine; COMPUTED: it has
computed, on which its download or the speed of other launches depends."""


Moves = tuple[float, float, float, float]  # bytes and seconds of an upload, then of a download

Sketch = tuple[
    "Lane", float, tuple[float, float, float], tuple[float, ...], float, Moves, Flow | None, Flow | None
]  # fmt: skip
"""The stages of a launch on one accelerator in compact form, without a `Timetable`.  Its fields: the accelerator
(`Lane`), compute seconds, rates, times (as `Timetable.times`), end, transfer sizes, and flows over shared paths
(`hetsim.engine.launching.sketches`).  Most launches with transfers end as planned, and nothing accesses their times
before.  An access to `Launch.table`, or a change of the launches on the accelerator, first converts it to a
`Timetable`."""


class Launch(Timer):
    """One or more tasks that run in one mode on one placement.

    The requests of a batch become task objects when they are first accessed.
    """

    __slots__ = ("number", "placement", "cores", "position", "decided", "terms", "sketch", "own_table", "_tasks")
    # Set where the launch is made.
    cores: int  # bitmask of the cores that a CPU launch occupies
    position: int  # position of its mode in the first task's shape
    resident = False  # True for a launch without a planned end (`Resident`)
    within: Any = None  # the replica that started it on its own devices (`LentLaunch`); None: it occupies them itself
    fusion: Fusion | None = None  # how its tasks are fused, if they are launched as one kernel (`FusedLaunch`)

    def __init__(self, then: Callable[[Any], None] | None, number: int, tasks: tuple[Task, ...], placement: Placement,
                 now: float):  # fmt: skip
        self.entry = -1
        self.then = then
        self.number = number
        self.placement = placement
        self.decided = now
        self.terms: Terms | None = None
        self.sketch: Sketch | None = None  # compact form of its stages, until it is expanded
        self.own_table: Any = None  # its `Timetable`, if it has one; else None
        self._tasks: tuple[Task, ...] | None = tasks

    @staticmethod
    def fill_copies(launches: "list[Launch]", copies: "list[Launch]", all_of: Callable[[list[Any]], list[Any]]) -> None:
        """Fill the empty launches of a forked run; `all_of` copies a list of objects."""
        then, terms = all_of([old.then for old in launches]), all_of([old.terms for old in launches])
        sketches, tables = all_of([old.sketch for old in launches]), all_of([old.own_table for old in launches])
        # most have one task: without a look at their tuples
        tasks = all_of([old._tasks[0] if old._tasks and len(old._tasks) == 1 else None for old in launches])
        for number, (old, new) in enumerate(zip(launches, copies, strict=True)):
            new.entry, new.number, new.placement = old.entry, old.number, old.placement
            new.cores, new.position, new.decided = old.cores, old.position, old.decided
            new.then, new.terms, new.sketch = then[number], terms[number], sketches[number]
            new.own_table, task = tables[number], tasks[number]
            new._tasks = all_of([old._tasks])[0] if task is None else (task,)

    @property
    def table(self) -> Any:
        """The `Timetable` (a compact form is converted first); None if compute-only."""
        if self.sketch is not None:
            self.sketch[0].write_out()
        return self.own_table

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The launch's tasks as objects; empty after its end."""
        if (tasks := self._tasks) is None:
            terms = self.terms
            assert terms is not None
            tasks = self._tasks = tuple(terms.requests.queue.made(terms.rows))
            for task in tasks:
                task.state = RUNNING
                task._launch = self
        return tasks

    @property
    def task(self) -> Task:
        return self.tasks[0]

    @property
    def count(self) -> int:
        return self.terms.requests.count if self._tasks is None else len(self._tasks)  # type: ignore[union-attr]

    def __hash__(self) -> int:
        return self.number  # a launch is hashed only once it has its number


class LentLaunch(Launch):
    """A batch on devices that a replica occupies."""

    __slots__ = ("within",)


class FusedLaunch(Launch):
    """A launch of several tasks as one kernel, each task in its own mode."""

    __slots__ = ("fusion",)


class Terms:
    """Padding and noise of a batch: properties that its requests do not have.

    Padding adds the transfers of `extra` requests and `padding` compute seconds.  The true time of each stage is its
    nominal time × a factor (`up`, `compute`, `down`).
    """

    __slots__ = ("requests", "extra", "padding", "up", "compute", "down", "first", "own_rows", "fresh", "oldest")

    def __init__(self, requests: Requests, padding: float, factors: Sequence[float], oldest: float):
        self.requests = requests
        self.extra = requests.size - requests.count
        self.padding = padding
        self.up, self.compute, self.down = factors
        self.first = -1  # position of the first request in its service, if the batch is a slice of it; else -1
        self.own_rows: list[int] | None = None
        self.fresh = True  # True if its requests have no data items and were in no batch before
        self.oldest = oldest  # when its oldest request arrived at the node

    @property
    def rows(self) -> Any:
        """Row numbers of the batch's requests in the table of tasks: a list or an array."""
        if self.own_rows is None:
            return self.requests.queue.service.rows[self.first : self.first + self.requests.count]
        return self.own_rows


def _written_out(launch: Launch, sketch: Sketch) -> "Timetable":
    lane, seconds_left, rates, times, end, moves, up_flow, down_flow = sketch
    up_bytes, up_seconds, down_bytes, down_seconds = moves
    device, begin = launch.placement.devices[0], launch.decided
    _, up_at, uploaded, began, computed, down_at = times
    table = Timetable(begin, seconds_left, (lane,))
    table.rate, table.busy_rate, table.watts = rates  # still nominal: any change expands sketches first
    table.uploaded = table.ready = begin
    table.compute_start = table.updated = began
    table.compute_end = table.finish_at = computed
    table.end = table.armed = end
    if up_at == up_at:
        up = Part(launch, lane, device, line=lane.up, size=up_bytes, seconds=up_seconds)
        up.ask, up.at, up.until = begin, up_at, uploaded
        insert_part(lane.uploads, up)  # a launch that starts now may be in the list already
        table.up = (up,)
        table.uploaded = table.ready = uploaded
        if up_flow is not None:
            up.sent(up_flow)
    if down_bytes or down_seconds:
        down = Part(launch, lane, device, line=lane.down, size=down_bytes, seconds=down_seconds)
        down.ask, down.at, down.until = computed, down_at, end
        insert_part(lane.downloads, down)  # it is queued now, and requests the engine after computing
        table.down = (down,)
        if down_flow is not None:
            down.sent(down_flow)
        elif lane.shared:
            down.at = lane.download if lane.download > computed else computed  # as `serve` computes it
            lane.download = INF
            if launch.entry >= 0:
                table.armed, table.due = computed, TURN
    return table


class Timetable:
    """Begin and end of each stage of a launch; inf: unknown, NaN: there is no stage.

    Times up to now have happened; later times are predictions that any change revises.  `left`: compute seconds that
    remained, at rate 1, at the time `updated`; `total`: its initial value.  If the launch shares its accelerator
    (`group`), `compute_end` is inf until computing has ended, and `finish_at` predicts this end at the present rates.
    """

    open_at = 0.0  # when its devices are ready, evictions not counted
    blocked = 0  # number of evictions that must end before it may begin
    prepared = True  # True once its uploads are known
    up: tuple[Part, ...] = ()
    down: tuple[Part, ...] = ()
    restore = 0.0  # seconds to restore saved state, between `uploaded` and `ready`
    uploaded: float = INF
    ready: float = INF
    compute_start: float = INF
    compute_end: float = INF
    end: float = INF
    updated: float = INF
    finish_at: float = INF
    busy = 0.0
    energy = 0.0
    busy_rate = 0.0
    watts = 0.0
    rate = 1.0
    done = 0.0  # compute seconds done by `updated`, counted apart from `left`
    group: "ShareGroup | None" = None
    items: tuple[int, ...] = ()
    traffic: Any = None  # its network traffic (`hetsim.engine.flight.contention.Member`), if it is on several nodes
    armed = INF  # when its clock entry is due; `due`: the purpose of that entry
    due = END
    joined = False
    computed = False  # `joined`: it shares an accelerator; `computed`: it is known to have computed
    estimate: tuple[float, float] | None = None  # estimated seconds of its upload and download, once queried
    planned = NAN  # estimated compute seconds, once queried

    def __init__(self, begin: float, work: float, lanes: "tuple[Lane, ...]" = ()):
        self.lanes = lanes
        self.begin = begin  # when its devices are ready for its first stage
        self.total = self.left = work

    def stage(self, now: float) -> int:
        if self.compute_start <= now:
            return COMPUTE if self.compute_end > now else DOWNLOAD  # at its very end it has computed
        if self.begin > now:
            return BEFORE
        if self.uploaded > now:
            return UPLOAD
        return RESTORE if self.ready > now else QUEUED

    @property
    def upload_start(self) -> float:
        """Time at which the first upload begins or began; NaN without uploads."""
        return min([part.at for part in self.up if part.moved], default=NAN)

    @property
    def download_start(self) -> float:
        return min([part.at for part in self.down], default=NAN)

    def times(self, now: float = INF) -> tuple[float, ...]:
        """Return begin and end times of the stages up to `now`; NaN for later times."""
        began = start = self.compute_start if self.compute_start <= now else NAN
        up = uploaded = NAN
        if self.restore and self.uploaded <= now:
            start = self.uploaded  # without an upload it starts with what comes next
        if self.up and (first := self.upload_start) <= now:
            up = start = first
            uploaded = self.uploaded if self.uploaded <= now else NAN
        computed = self.compute_end if self.compute_end <= now else NAN
        down = self.download_start if self.down else NAN
        return start, up, uploaded, began, computed, down if down <= now else NAN

    def settle(self, now: float) -> None:
        """Update remaining work, busy time and energy of a computing launch up to `now`."""
        if (elapsed := now - self.updated) > 0:
            done = self.rate * elapsed  # at the rate since `updated`: a change of rate settles first
            seconds_left = self.left - done
            self.left = seconds_left if seconds_left > 0.0 else 0.0  # rounding may overshoot
            self.done += done  # counted apart, since `left` may be set to other values
            self.busy += self.busy_rate * elapsed
            self.energy += self.watts * elapsed
        self.updated = now

    def unsettled(self, now: float) -> float:
        """Return the seconds up to now that busy time and energy do not include yet."""
        if self.computed or self.updated > now:  # settled, or not yet begun
            return 0.0
        return min(now, self.compute_end) - self.updated  # after its end no more is computed


class ShareGroup(Timer):
    """Launches that slow each other on one accelerator; they share one pending event."""

    __slots__ = ("members", "share")

    def __init__(self, then: Callable[[Any], None]):
        super().__init__(then)
        self.members: list[Launch] = []  # those that compute there, gangs that take part included
        self.share = 0  # sum of their shares (millionths)


class Lane:
    """One accelerator: its launches, and when its copy and compute units are free."""

    __slots__ = (
        "flights", "uploads", "downloads", "upload", "ready", "compute", "download", "group", "sliced", "regular",
        "direct", "shared", "fetching", "up", "down",
    )  # fmt: skip

    def __init__(
        self, up: LinkPath, down: LinkPath, group: ShareGroup | None, sliced: bool, regular: bool, direct: bool
    ):  # fmt: skip
        self.up, self.down = up, down  # its ways from and to the host
        self.flights: list[Launch] = []  # launches with a timetable, in start order
        self.uploads: list[Part] = []
        self.downloads: list[Part] = []
        self.upload = self.ready = self.compute = self.download = 0.0
        self.group = group  # the group of an accelerator on which launches slow each other; None for others
        self.sliced = sliced  # True if launches take turns, so that any number of them may compute
        self.direct = direct  # True if launches use it whole and unshared, so that most are sketches
        self.shared = not (up.private and down.private)  # True if other transfers may use its paths
        self.regular = regular  # True if launches run one at a time, or share it and use no other accelerator
        self.fetching = 0  # prefetches under way

    @staticmethod
    def fill_copies(lanes: "list[Lane]", copies: "list[Lane]", all_of: Callable[[list[Any]], list[Any]]) -> None:
        """Copy the values of `lanes` to a fork's `copies`; all_of returns copied objects."""
        for old, new, group in zip(lanes, copies, all_of([lane.group for lane in lanes]), strict=True):
            new.up, new.down, new.upload = old.up, old.down, old.upload
            new.ready, new.compute, new.download = old.ready, old.compute, old.download
            new.fetching, new.sliced, new.regular = old.fetching, old.sliced, old.regular
            new.direct, new.shared, new.group = old.direct, old.shared, group
            new.flights = list(all_of(old.flights)) if old.flights else []
            new.uploads = list(all_of(old.uploads)) if old.uploads else []
            new.downloads = list(all_of(old.downloads)) if old.downloads else []

    def write_out(self, end: float = 0.0) -> None:
        """Give every launch of the accelerator a timetable in place of its compact form.

        Transfers that were simulated without events get events.  `end`: end of the run, if it is over; uploads that
        ended before it remain as they are.
        """
        for launch in self.flights:
            if (drawn := launch.sketch) is not None:
                up, down = drawn[6:]
                if up is not None and end <= up.until < INF:
                    up.then(up)  # type: ignore[misc]
                if down is not None and down.until < INF:
                    down.then(down, INF, -INF)  # type: ignore[call-arg, misc]
        # Sending them may have changed the sketches, which are read again.
        for launch in self.flights:
            if launch.sketch is not None:
                launch.own_table = _written_out(launch, launch.sketch)
                launch.sketch = None


class Resident(Launch):
    """A launch without a planned end, such as a replica of a language model.

    It occupies its devices until they are released or one of them fails; its clock entry is the next step boundary.  It
    is in `RunState.residents`.  Like any launch it is notified of changes of its devices; its `holder` (the replica)
    reacts to them.  Its number is negative; each of its busy periods is a row of the table of launches.
    """

    __slots__ = ("holder",)
    resident = True

    def __init__(self, then: Callable[[Any], None], number: int, placement: Placement, now: float, holder: Any):
        super().__init__(then, number, (), placement=placement, now=now)
        self.holder = holder
        self.cores = 0
        self.position = 0

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Requests in the replica's present batch."""
        return tuple(request.task for request in self.holder.taken_in)
