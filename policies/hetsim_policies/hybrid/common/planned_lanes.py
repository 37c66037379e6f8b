"""Lanes, their steps and expected ends: the data of `plan_and_repair`.

A *lane* is a core or an accelerator, with its unstarted steps of the plan in order.  The steps of all lanes together
are in an order in which each step is after the steps for which it waits.
"""

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from hetsim.model.cluster import Node
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, can_host, lane_names
from hetsim.model.task import Task
from hetsim.policy import PlanProblem, Start, View

ENOUGH = 3  # minimum number of equally late tasks for a mean of their ratios
LATE = 1e-9  # a task that exceeds its estimate by less than this fraction is not late


@dataclass(eq=False, slots=True, repr=False)
class PlannedLane:
    """A core or accelerator, with its planned and its running steps."""

    name: str
    number: int
    device: Device
    node: Node
    queue: "dict[int, PlannedJob]" = field(default_factory=dict)
    running: "dict[int, PlannedJob]" = field(default_factory=dict)
    kind: int = 0  # numbers shared by lanes of one type, and of one type and node
    group: int = 0
    arrived: int = 0  # number of queued steps whose tasks have arrived and wait
    rows: list[int] = field(default_factory=list)  # last forecast of this lane
    holds_until: float = math.inf  # time until which the forecast is valid if nothing changes here

    def head(self) -> "PlannedJob | None":
        return next(iter(self.queue.values()), None)

    def placed(self, mode: Mode) -> Placement | None:
        if mode.type is not self.device.type or not can_host(self.node, mode):
            return None
        if not mode.on_cpu:
            return Placement(mode, (self.device,)) if mode.gpus == 1 and mode.whole_devices else None
        core = int(self.name[len(self.device.name) :])
        return Placement(mode, (self.device,), (core,)) if mode.millicores == MILLI else None

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, slots=True, repr=False)
class PlannedJob:
    """A step of the plan: one task on one placement, with its expected seconds.

    row: number of the task.  task: None until the task has arrived and is ready.
    """

    row: int
    placement: Placement
    lanes: tuple[PlannedLane, ...]
    seconds: float
    task: Task | None = None
    fetched: bool = False
    number: int = 0  # number of its start, in the order of starts
    end: float | None = None  # end if not late, cached in a run in which it cannot change
    overdue: bool = False  # True once it should have ended by now; in a steady run it then stays True until the end

    @property
    def alone(self) -> bool:
        return len(self.lanes) == 1

    def __repr__(self) -> str:
        return f"job {self.row} on {'+'.join(lane.name for lane in self.lanes)}"


@dataclass
class LaneForecast:
    """Expected times if device queues keep their order and estimates are right.

    `start`, `finish`: by row of the task.  `lane`: end of the last planned job, by number of the device that has jobs.
    """

    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    lane: dict[int, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return max(self.lane.values(), default=0.0)


class Experience:
    """Actual over estimated times of ended tasks, to predict the times of late tasks."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._sums: list[float] | None = None

    def add(self, estimate: float, took: float) -> None:
        if estimate > 0:
            insort(self._ratios, took / estimate)
            self._sums = None

    def ratio(self, least: float) -> float:
        """Expected ratio of actual to estimated time of a task that runs.

        least: its time so far divided by its estimate.  Below 1 + LATE the result is max(1, least).  Otherwise it is
        the mean ratio of the ended tasks with a larger ratio or, if fewer than ENOUGH had one, 2 × least - 1.
        """
        if least < 1 + LATE:
            return least if least > 1.0 else 1.0
        if (longer := len(self._ratios) - bisect_right(self._ratios, least)) < ENOUGH:
            return 2 * least - 1
        if self._sums is None:
            self._sums = list(accumulate(reversed(self._ratios)))
        return max(least, self._sums[longer - 1] / longer)


class Board:
    """The remaining plan by lane (core or GPU): the base of `plan_and_repair`.

    Results of a lane are cached until this lane changes, so the cost of an event hardly grows with the number of lanes.
    Cost: O(lanes of a step) to add, start and remove it; a forecast is one pass over the steps and their predecessors.
    """

    def __init__(self, problem: PlanProblem, is_up: Callable[[Device], bool]):
        names = lane_names(problem.cluster).items()
        nodes = problem.cluster.nodes
        self.lanes = {name: PlannedLane(name, n, device, nodes[device.node]) for n, (name, device) in enumerate(names)}
        self.pending: dict[int, PlannedJob] = {}  # steps that have not started, by row, in the order of the plan
        self.running: dict[int, tuple[PlannedJob, float]] = {}  # with their starts
        self.due: dict[int, PlannedLane] = {}  # lanes on which something may be able to start
        self.loaded: dict[int, PlannedLane] = {}  # lanes with steps of waiting tasks, by number
        # By type: running tasks that would take less time there from a restart, with these seconds
        self.faster: dict[DeviceType, dict[int, float]] = {}
        self.changes = 0  # since the last forecast
        self.movable: dict[DeviceType, Movable] = {}  # by type of lane
        self._starts = 0
        self._by_kind: dict[DeviceType, list[PlannedLane]] = {}
        for lane in self.lanes.values():
            alike = self._by_kind.setdefault(lane.device.type, [])
            lane.kind = alike[0].kind if alike else len(self._by_kind)
            lane.group = lane.kind * len(nodes) + lane.device.node
            alike.append(lane)
        self._able: dict[Mode, list[PlannedLane]] = {}
        self._down: dict[int, PlannedLane] = {}
        self._idle: list[PlannedLane] | None = None  # lanes on which nothing of the plan runs, if known
        self._made: LaneForecast | None = None  # the last forecast, as long as it can be mended lane by lane
        self._touched: dict[int, PlannedLane] = {}  # lanes that have changed since
        self._joint = problem.tasks.predecessors is not None  # True if a step on one lane depends on another lane
        # Heap of (expected end, row, start) of tasks, ended ones included
        self._due: list[tuple[float, int, float]] = []
        self._overdue: dict[int, None] = {}  # rows that may be late
        self._hopeless: dict[DeviceType, list[tuple[float, int, int, float]]] = {}
        self._refused: dict[int, int] = {}  # for lanes whose head step had no room: the node
        self._released: dict[int, None] | None = {}  # nodes with releases since the last check; None: perhaps all
        self._releases = 0
        self._tasks = problem.tasks
        self._is_up = is_up
        self._experience = Experience()
        # For tasks that were stopped late: the part of their estimate that they had run for
        self._late: dict[int, float] = {}

    def is_up(self, lane: PlannedLane) -> bool:
        return lane.number not in self._down

    def devices_changed(self) -> None:
        self._down = {lane.number: lane for lane in self.lanes.values() if not self._is_up(lane.device)}
        self.due.update((lane.number, lane) for lane in self.lanes.values())
        self._idle = self._made = self._released = None

    def idle(self) -> list[PlannedLane]:
        if self._idle is None:
            down = self._down
            self._idle = [lane for lane in self.lanes.values() if not lane.running and lane.number not in down]
        return self._idle

    def able(self, mode: Mode) -> list[PlannedLane]:
        """Return the cores or GPUs that can run a mode, whether up or down."""
        if (lanes := self._able.get(mode)) is None:
            lanes = [lane for lane in self._by_kind.get(mode.type, ()) if lane.placed(mode) is not None]
            self._able[mode] = lanes
        return lanes

    def _touch(self, lane: PlannedLane) -> None:
        self.due[lane.number] = lane
        self._touched[lane.number] = lane
        self._refused.pop(lane.number, None)
        for movable in self.movable.values():
            movable.changed[lane.number] = lane

    def put(self, job: PlannedJob) -> None:
        self.changes += 1
        self._joint |= not job.alone
        self.pending[job.row] = job
        for lane in job.lanes:
            lane.queue[job.row] = job
            if job.task is not None:
                self._load(lane, 1)
            self._touch(lane)

    def _load(self, lane: PlannedLane, more: int) -> None:
        lane.arrived += more
        if lane.arrived:
            self.loaded[lane.number] = lane
        else:
            self.loaded.pop(lane.number, None)

    def put_first(self, job: PlannedJob) -> None:
        self.put(job)
        self.pending = {job.row: job, **self.pending}
        for lane in job.lanes:
            lane.queue = {job.row: job, **lane.queue}

    def arrived(self, job: PlannedJob, task: Task) -> None:
        """Record that the task of a step now waits."""
        for lane in job.lanes:
            if job.task is None:
                self._load(lane, 1)
            self._touch(lane)
        job.task = task

    def take_out(self, job: PlannedJob) -> None:
        self.changes += 1
        del self.pending[job.row]
        for lane in job.lanes:
            del lane.queue[job.row]
            if job.task is not None:
                self._load(lane, -1)
            self._touch(lane)

    def clear(self) -> None:
        self.changes += 1
        self.pending = {}
        self.loaded = {}
        self._made = None
        self.movable = {}
        for lane in self.lanes.values():
            lane.queue = {}
            lane.arrived = 0

    def start(self, job: PlannedJob, view: View) -> Start:
        """Record a step as started, and return the decision that starts its task."""
        assert job.task is not None
        self.take_out(job)
        job.seconds = view.duration(job.task, job.placement)
        job.end, job.overdue = None, False
        self._starts += 1
        job.number = self._starts
        self.running[job.row] = job, view.now
        heapq.heappush(self._due, (view.now + job.seconds, job.row, view.now))
        self._idle = None
        for mode in job.task.modes:
            seconds = job.task.remaining_in(mode)
            if seconds * (1 - LATE) < job.seconds:
                there = self.faster.setdefault(mode.type, {})
                there[job.row] = min(seconds, there.get(job.row, math.inf))
        for lane in job.lanes:
            lane.running[job.row] = job
        return Start(job.task, job.placement)

    def ended(self, row: int, now: float, completed: bool) -> PlannedJob | None:
        self.changes += 1
        job, since = self.running.pop(row, (None, 0.0))
        if job is None:
            return None
        self._idle = None
        self._overdue.pop(row, None)
        for rows in self.faster.values():
            rows.pop(row, None)
        spent = (now - since) / job.seconds if job.seconds > 0 else 0.0
        if completed:
            self._experience.add(job.seconds, now - since)
        elif spent > 1 + LATE:
            self._late[row] = max(spent, self._late.get(row, 0.0))
        for lane in job.lanes:
            lane.running.pop(row, None)
            self._touch(lane)
            if self._released is not None:
                self._released[lane.device.node] = None
        self._releases += 1
        return job

    def startable(self, view: View) -> Iterator[PlannedJob]:
        """Yield planned jobs that are next on all their devices and fit now.

        The caller starts each.  A job without room is not tried again before something was released on its node.
        """
        freed, refused = self._freed(view), self._refused
        due, again = self.due, {}
        while due:
            number = next(iter(due))
            lane = due.pop(number)
            if (node := refused.get(number)) is not None:
                if freed is not None and node not in freed:
                    again[number] = lane
                    continue
                del refused[number]
            job = lane.head()
            if job is None or job.task is None or not all(other.head() is job for other in job.lanes):
                continue
            if self.fits(job.task, job.placement, view):
                yield job
                continue
            again[number] = lane
            if job.alone and not job.placement.mode.limited and not view.items:
                refused[number] = lane.device.node
        self.due = again

    def _freed(self, view: View) -> dict[int, None] | None:
        freed = self._released if view.changes.releases == self._releases else None
        self._released, self._releases = {}, view.changes.releases
        return freed

    @staticmethod
    def fits(task: Task, placement: Placement, view: View) -> bool:
        return view.fits(placement.mode, placement) and view.holds(task, placement)

    def at(
        self, task: Task, lane: PlannedLane, view: View, seconds: Callable[[Task, Placement, View], float]
    ) -> PlannedJob | None:
        """Return a planned job for the task on this device (lane), in its fastest mode.

        Only modes that fit there now count; None if none does.  seconds: returns the time of a task at a placement.
        """
        best: PlannedJob | None = None
        for position, mode in enumerate(task.modes):
            placement = lane.placed(mode)
            if placement is None or (task.allowed is not None and position not in task.allowed):
                continue
            if self.fits(task, placement, view):
                time = seconds(task, placement, view)
                if best is None or time < best.seconds:
                    best = PlannedJob(task.index, placement, (lane,), seconds=time, task=task)
        return best

    def lateness(self, row: int, now: float) -> float:
        """Predicted ratio of a running task's time to its estimate, at least 1."""
        job, since = self.running[row]
        spent = (now - since) / job.seconds if job.seconds > 0 else 0.0
        before = self._late.get(row, 0.0)
        return self._experience.ratio(spent if spent >= before else before)

    def finish(self, task: Task, view: View) -> float:
        """Expected end of a running task.

        If the task is already late, its end is predicted from the lateness of tasks that have ended.
        """
        now, row = view.now, task.index
        job, since = self.running.get(row, (None, 0.0))
        if job is None:
            return view.launch_of(task).finish
        steady = view.changes.steady
        if steady and job.overdue:
            end = now
        elif steady and job.end is not None and job.end > now:
            end = job.end
        else:
            if (end := view.launch_of(task).finish) > now:
                job.end = end  # of use as long as the run is steady
            else:
                job.overdue = True
        if end > now and row not in self._late:
            return end
        return max(now, since + job.seconds * self.lateness(row, now))

    def forecast(self, view: View) -> LaneForecast:
        """Forecast all lanes (cores or GPUs); a task on a lane that is down never ends.

        If no lane's steps depend on other lanes, the last forecast is updated in place: only for lanes that have
        changed, or whose running step should have ended since.
        """
        self.changes = 0
        if not self.separable(view):
            self._made = None
            self.movable = {}
            return self._forecast(view)
        made, now = self._made, view.now
        if made is None:
            made = self._made = LaneForecast()
            self.movable = {}
            stale = list(self.lanes.values())
            for lane in stale:
                lane.rows = []
        else:
            stale = [lane for lane in self.lanes.values() if lane.holds_until <= now or lane.number in self._touched]
            for lane in stale:
                for row in lane.rows:
                    made.start.pop(row, None)
                    made.finish.pop(row, None)
                made.lane.pop(lane.number, None)
        self._touched = {}
        for lane in stale:
            self._forecast_lane(lane, made, view)
            for movable in self.movable.values():
                movable.changed[lane.number] = lane
        return made

    def separable(self, view: View) -> bool:
        """Return True if the plan of each device can be changed alone.

        That is: no planned step needs several devices, and tasks end as estimated.
        """
        return not self._joint and view.changes.steady

    def _forecast_lane(self, lane: PlannedLane, made: LaneForecast, view: View) -> None:
        now, until = view.now, math.inf
        free: float | None = None
        lane.rows = [*lane.running, *lane.queue]
        for row, job in lane.running.items():
            assert job.task is not None
            made.finish[row] = end = self.finish(job.task, view)
            free = max(now if free is None else free, end)
            # Of what is late, or was, experience tells more every time.
            on_time = row not in self._late and job.end is not None and job.end > now
            until = min(until, end if on_time else now)
        up, arrival = self.is_up(lane), self._tasks.arrival
        for row, job in lane.queue.items():
            start = max(now, float(arrival[row]))
            start = max(start, now if free is None else free) if up else math.inf
            made.start[row] = start
            made.finish[row] = free = start + job.seconds
        if free is not None:
            made.lane[lane.number] = free
        lane.holds_until = now if lane.queue and not lane.running else until

    def _forecast(self, view: View) -> LaneForecast:
        made, now = LaneForecast(), view.now
        finish, free = made.finish, made.lane
        for job, _ in self.running.values():
            assert job.task is not None
            finish[job.row] = end = self.finish(job.task, view)
            for lane in job.lanes:
                free[lane.number] = max(free.get(lane.number, now), end)
        arrival, before = self._tasks.arrival, self._tasks.predecessors
        for row, job in self.pending.items():
            start = max(now, float(arrival[row]))
            for lane in job.lanes:
                start = max(start, free.get(lane.number, now)) if self.is_up(lane) else math.inf
            if before is not None:
                start = max([start, *(finish.get(earlier, now) for earlier in before[row])])
            made.start[row] = start
            finish[row] = end = start + job.seconds
            for lane in job.lanes:
                free[lane.number] = end
        return made

    def late(self, now: float) -> bool:
        return any(now - since >= job.seconds * (1 - LATE) for job, since in self._perhaps_late(now))

    def _perhaps_late(self, now: float) -> list[tuple[PlannedJob, float]]:
        while self._due and self._due[0][0] <= now * (1 + 2 * LATE) + 2 * LATE * (self._due[0][0] - self._due[0][2]):
            _, row, since = heapq.heappop(self._due)
            job, began = self.running.get(row, (None, 0.0))
            if job is not None and began == since:
                self._overdue[row] = None
        return [self.running[row] for row in self._overdue]

    def next_look(self, now: float) -> float:
        """Return when to check again: a task is due, or a delay has grown by 50 %."""
        looks: Iterable[float] = (
            since + job.seconds
            if now - since < job.seconds * (1 - LATE)
            else now + max(0.05 * job.seconds, 0.5 * (now - since - job.seconds))
            for job, since in self._perhaps_late(now)
        )
        soonest = min((at for at in looks if at > now * (1 + LATE)), default=math.inf)
        while self._due:
            at, row, since = self._due[0]
            job, began = self.running.get(row, (None, 0.0))
            if job is not None and began == since:
                return min(soonest, at)
            heapq.heappop(self._due)
        return soonest

    def restartable(self, kind: DeviceType, view: View, rounding: float) -> list[tuple[float, PlannedJob]]:
        """Return the running tasks that might end sooner on this type, and their ends.

        A restart takes at least the task's compute time on the type, so a task is returned only if its time left
        exceeds this by more than the fraction `rounding`.  The other tasks are not checked again until they are late.
        """
        now, jobs = view.now, []
        there, away = self.faster.get(kind, {}), self._hopeless.setdefault(kind, [])
        while away and away[0][0] <= now:
            _, row, number, seconds = heapq.heappop(away)
            job, _ = self.running.get(row, (None, 0.0))
            if job is not None and job.number == number:
                there[row] = seconds
        for row, seconds in list(there.items()):
            job, since = self.running[row]
            assert job.task is not None
            on_time = job.end is not None and job.end > now and row not in self._late
            if on_time:
                assert job.end is not None
                end, longer = job.end, 1.0
            elif job.overdue:  # what `finish` says then, with one look at what was as late
                longer = self.lateness(row, now)
                end = max(now, since + job.seconds * longer)
            else:
                end, longer = self.finish(job.task, view), self.lateness(row, now)
            if seconds * (1 - rounding) * longer < end - now:
                # What has just started here has all of it left, and gains nothing elsewhere at this moment.
                if seconds * longer < (end - now) * (1 - rounding):
                    jobs.append((end, job))
            elif on_time:
                heapq.heappush(away, (end, row, job.number, seconds))
                del there[row]
        return jobs


class Movable:
    """Planned jobs that wait and could end sooner on an idle core or GPU of a type.

    The set is only used if jobs take constant times.  Then a job's end on the idle device gets later as time passes,
    while its end on its own device is constant until that device's queue changes.  So a job that would not end sooner
    is removed from the set, and is tested again only after such a change.
    """

    def __init__(self, kind: DeviceType, loaded: dict[int, PlannedLane]):
        self.kind = kind
        # Steps by lane, with their minimum compute seconds on the type, and their end on their own lane
        self.steps: dict[int, tuple[PlannedLane, list[tuple[float, float, PlannedJob]]]] = {}
        self.changed: dict[int, PlannedLane] = dict(loaded)

    def towards(self, seen: LaneForecast, now: float) -> list[tuple[PlannedLane, list[PlannedJob]]]:
        """Return devices with those waiting jobs that might end sooner on an idle device."""
        for number, lane in self.changed.items():
            self.steps.pop(number, None)
            end = seen.lane.get(number, 0.0)
            if lane.arrived:
                steps = [
                    (min_seconds(job.task, self.kind), seen.finish.get(row, end), job)
                    for row, job in lane.queue.items()
                    if job.task is not None and job.alone
                ]
                if steps:
                    self.steps[number] = lane, steps
        self.changed = {}
        movable = []
        for number, (lane, steps) in list(self.steps.items()):
            if kept := [one for one in steps if now + one[0] < one[1]]:
                self.steps[number] = lane, kept
                movable.append((lane, [job for _, _, job in kept]))
            else:
                del self.steps[number]
        return movable


def min_seconds(task: Task, kind: DeviceType) -> float:
    """Minimum seconds of a task on a device of a type; inf without a mode."""
    return min([task.remaining_in(mode) for mode in task.modes if mode.type is kind], default=math.inf) * (1 - LATE)
