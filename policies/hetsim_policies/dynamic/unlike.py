"""Jobs on the device types that suit them: by matching, or within a budget."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.mode import Mode
from hetsim.model.task import Task
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, View
from hetsim_policies.dynamic.time_fractions import check_costs, prices


class Matched(NamedTuple):
    """Place of a job: mode, type and number of a device, number of later jobs there."""

    job: int
    mode: int
    kind: int
    device: int
    behind: int


class JobMode(NamedTuple):
    """One mode of a job: its position, number of the device type, seconds, devices."""

    mode: int
    kind: int
    time: float
    width: float


class WaitingJobs(NamedTuple):
    """Entry of one waiting job: minimum time (s), row (`number`), task and its modes."""

    time: float
    number: int
    task: Task
    ways: tuple[JobMode, ...]


class AlloX(Scheduler):
    """AlloX: match jobs to devices and queue positions for the minimum mean response.

    Decides when and in which mode, without preemption.  A place is a position in the queue of a device, counted from
    the end of the queue: the k-th job from the end delays itself and the k - 1 jobs behind it.  So a job of time p at
    place k adds k × p to the total completion time, plus d if the device is busy for another d seconds.  The matching
    of jobs to places with the minimum sum is the schedule of minimum total completion time of the waiting jobs.  The
    first job in the queue of each free device starts, and the matching is repeated when jobs arrive or end.
    Reference: Le, Sun, Chowdhury, Liu, AlloX: Compute Allocation in Hybrid Clusters (EuroSys 2020); the matching is
    that of Horn, Minimizing Average Flow Time with Parallel Machines (1973), and Bruno, Coffman, Sethi, Scheduling
    Independent Tasks to Reduce Mean Finishing Time (1974): optimal for sequential jobs that are all present, on free
    devices.  With `alpha` below 1 (AlloX's fairness) only the jobs of this fraction of the users, those with the least
    attained service, are considered.  An extension: a gang of w devices adds p + (k - 1) w p, as if it delayed the
    queues of all its devices.  This is not optimal, and other jobs pass a gang that does not fit, so gangs may wait
    long.  Weakness: it depends on the estimates; long jobs may starve, as with sjf; with busy devices the matching is
    optimal only if the running jobs are not moved.
    Cost: a matching after each release, and after an arrival while a device is free.  For n jobs (at most `window`) it
    takes at most O(n³) steps on a matrix of jobs × candidate places: 0.5, 1.5 and 6 ms with n = 32, 64 and 128 on four
    types of 128 devices.  Only a sort grows with the length of the queue.  A shorter window may give much longer
    responses: see four-generations in docs/speed.md.

    alpha: fraction of the users (rounded up), with the least attained service, whose jobs are considered.
    window: maximum number of waiting jobs in a matching: the shortest jobs, since longer jobs would be behind them
        anyway.
    """

    def __init__(
        self, alpha: Annotated[float, Field(gt=0, le=1)] = 1.0, window: Annotated[int, Field(ge=1, strict=True)] = 64
    ):
        self.alpha = alpha
        self.window = window
        self.waiting: dict[int, WaitingJobs] = {}
        self._order: list[WaitingJobs] = []  # the same, shortest first
        self._kinds: dict[str, int] = {}
        self._having: dict[str, np.ndarray] = {}  # nodes by type of processor
        self._ends: list[list[float]] = []  # by type: expected ends of running jobs, ascending, once per device
        # For running jobs: number of the type, expected end, and devices
        self._held: dict[int, tuple[int, float, int]] = {}
        self._tried = -1

    def begin(self, view: View) -> None:
        self._kinds = {name: number for number, name in enumerate(view.cluster.types)}
        self._ends = [[] for _ in self._kinds]
        for name in self._kinds:
            if nodes := [node.index for node in view.cluster.nodes if node.cpu.type.name == name]:
                self._having[name] = np.array(nodes)

    def ready(self, task: Task) -> None:
        self.finished(task)  # if it was stopped
        jobs = WaitingJobs(task.shortest_remaining, task.index, task, _ways(task, self._kinds))
        self.waiting[task.index] = jobs
        insort(self._order, jobs)
        self._tried = -1

    def finished(self, task: Task) -> None:
        if (devices_until := self._held.pop(task.index, None)) is not None:
            kind, end, count = devices_until
            at = bisect_left(self._ends[kind], end)
            del self._ends[kind][at : at + count]

    def gone(self, task: Task) -> None:
        self.finished(task)
        if task.index in self.waiting:
            self._leave(task)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.waiting or self._tried == view.changes.releases:
            return
        queues = self._queues(view)
        if any(len(queue) and queue[0] <= 0 for queue in queues):
            jobs = self._candidates(view)
            for place in _fronts(matching([job.ways for job in jobs], queues)):
                task = jobs[place.job].task
                placement = view.first(task.modes[place.mode]) if queues[place.kind][place.device] <= 0 else None
                if placement is not None and view.holds(task, placement):
                    self._leave(task)
                    yield Start(task, placement)
                    self._holds(task, view)
            if not view.running("start", own=True):  # the first fits nowhere: any task that fits
                for job in list(self.waiting.values()):
                    if (placement := view.fit(job.task)) is not None:
                        self._leave(job.task)
                        yield Start(job.task, placement)
                        self._holds(job.task, view)
        self._tried = view.changes.releases

    def _leave(self, task: Task) -> None:
        del self._order[bisect_left(self._order, self.waiting.pop(task.index))]

    def _holds(self, task: Task, view: View) -> None:
        if (placement := view.launch_of(task).placement) is None:  # it took no time
            return
        kind, end = self._kinds[placement.mode.type.name], view.launch_of(task).finish
        count = max(1, round(placement.mode.width))
        self._held[task.index] = kind, end, count
        at = bisect_left(self._ends[kind], end)
        self._ends[kind][at:at] = [end] * count

    def _queues(self, view: View) -> list[np.ndarray]:
        """Return by device type the sorted seconds until each device is free."""
        if not view.changes.steady:
            for task in view.running("start", own=True):
                self.finished(task)
                self._holds(task, view)
        view.nodes.refresh()
        by_device = []
        for name, number in self._kinds.items():
            free = view.nodes.cores[self._having[name]] if name in self._having else view.nodes.gpus[name]
            room = min(self.window, math.ceil(float(free.sum()) - 1e-9))
            busy = np.array(self._ends[number][: self.window])
            by_device.append(np.concatenate([np.zeros(room), np.maximum(1e-9, busy - view.now)]))
        return by_device

    def _candidates(self, view: View) -> list[WaitingJobs]:
        if self.alpha >= 1:
            return self._order[: self.window]
        users = list(dict.fromkeys(job.task.user for job in self.waiting.values()))
        users.sort(key=view.attained)
        served = dict.fromkeys(users[: math.ceil(self.alpha * len(users))])
        return [job for job in self._order if job.task.user in served][: self.window]


def matching(ways: Sequence[Sequence[JobMode]], delays: Sequence[np.ndarray]) -> list[Matched]:
    """Assign places to jobs with minimum total completion time; some jobs get none.

    ways: modes of each job.  delays: by type, for each device the seconds until it is free, ascending.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(ways)
    places = [_places(count, len(delay)) for delay in delays]
    first = np.concatenate([[0], np.cumsum([len(behind) for behind, _ in places])]).astype(int)
    cost = np.full((count, int(first[-1])), math.inf)
    for kind, (behind, device) in enumerate(places):
        part = slice(first[kind], first[kind + 1])
        for rows, times, widths in _layers(ways, kind):  # of several modes on a type the cheaper one, place by place
            here = times * (1 + behind * widths) + delays[kind][device]
            cost[rows, part] = np.minimum(cost[rows, part], here)
    # A place that is out of the question costs more than all others together.
    max_cost = float(cost[np.isfinite(cost)].max(initial=0.0)) + 1.0
    cost[~np.isfinite(cost)] = impossible = max_cost * (count + 1)
    kept = _wanted(cost)
    jobs, chosen = linear_sum_assignment(cost[::-1, kept])  # the longest first are 10 % faster
    matched = []
    for job, place in zip((count - 1 - jobs).tolist(), kept[chosen].tolist(), strict=True):
        if cost[job, place] < impossible:
            kind = int(np.searchsorted(first, place, side="right")) - 1
            after, number = (int(column[place - first[kind]]) for column in places[kind])
            matched.append(Matched(job, _cheapest(ways[job], kind, after), kind, device=number, behind=after))
    return matched


def _cheapest(ways: Sequence[JobMode], kind: int, behind: int) -> int:
    return min((way.time * (1 + behind * way.width), order, way.mode)
               for order, way in enumerate(ways) if way.kind == kind)[2]  # fmt: skip


def _places(jobs: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return candidate places on the devices of one type, for jobs to be ordered.

    A place is a position in the queue of a device, given by the number of jobs behind it.  Return two columns: number
    of jobs behind, and number of the device.  Devices are sorted by when they are free, so a place is at least as good
    as a place on a later device with at least as many jobs behind.  A place is omitted if at least `jobs` other places
    are at least as good.
    """
    each = [min(devices, jobs // (behind + 1)) for behind in range(jobs if devices else 0)]
    return np.repeat(np.arange(len(each)), each), np.concatenate([np.arange(0), *map(np.arange, each)])


def _wanted(cost: np.ndarray) -> np.ndarray:
    """Return the places (columns) that are among the n cheapest for any of the n jobs.

    An optimal assignment of the jobs needs no other places.
    """
    count, places = cost.shape
    if places <= count:
        return np.arange(places)
    best = np.zeros(places, dtype=bool)
    best[np.argpartition(cost, count - 1, axis=1)[:, :count].ravel()] = True
    return np.flatnonzero(best)


def _layers(ways: Sequence[Sequence[JobMode]], kind: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield arrays of jobs, times and widths of the modes on one type.

    The first arrays have the first mode of each job, the next ones the second mode, and so on.
    """
    mine = [[(job, way.time, way.width) for way in some if way.kind == kind] for job, some in enumerate(ways)]
    for layer in range(max(map(len, mine))):
        rows, times, widths = zip(*(some[layer] for some in mine if len(some) > layer), strict=True)
        yield np.array(rows), np.array(times)[:, None], np.array(widths)[:, None]


def _fronts(found: Sequence[Matched]) -> list[Matched]:
    front: dict[tuple[int, int], Matched] = {}
    for place in sorted(found, key=lambda place: (-place.behind, place.job)):
        front.setdefault((place.kind, place.device), place)
    return list(front.values())


def _ways(task: Task, kinds: dict[str, int]) -> tuple[JobMode, ...]:
    part = 1.0 - task.done
    modes = []
    for position in task.allowed or range(len(task.modes)):
        mode, time = task.modes[position], task.estimate_at(position)
        if math.isfinite(time):
            modes.append(JobMode(position, kinds[mode.type.name], time * part, mode.width))
    return tuple(modes)


ROUNDING = 1e-9


class MultiGeneration(Scheduler):
    """Several generations: newer devices for jobs that gain most, within a budget.

    Decides when and in which mode.  A job may use the modes in which it needs at most `budget` times the minimum energy
    (or cost) of all its modes.  A free device is given to the waiting job that saves most time per device-second on it,
    compared with the job's slowest allowed mode.  Energy of a mode: devices × estimated time × watts above idle; cost:
    devices × estimated time × the type's price in the cluster, or in `costs`.
    References: Smith, Various Optimizers for Single-Stage Production (1956), for the gain per unit of time as the
    order; Gavel (Narayanan et al., OSDI 2020) and Gandiva_fair (Chaudhary et al., Balancing Efficiency and Fairness in
    Heterogeneous GPU Clusters for Deep Learning, EuroSys 2020), which trade fast devices by speedup.
    Weakness: greedy and without preemption; jobs that gain little may never get fast devices; with a budget of 1 each
    job has one type only, so queues grow while other devices are idle.
    Cost: a sort of the waiting jobs by type after an arrival or a release.

    budget: maximum energy or cost of a job, in multiples of its minimum.
    measure: energy or cost.
    costs: price per device and time by name of type, if the cluster has none; types without a price cost 1.
    """

    def __init__(
        self,
        budget: Annotated[float, Field(ge=1)] = 1.5,
        measure: Literal["energy", "cost"] = "energy",
        costs: dict[str, Annotated[float, Field(gt=0)]] | None = None,
    ):
        if costs is not None and measure == "energy":
            raise refusal("costs need `measure: cost`; set it, or leave costs out")
        self.budget = budget
        self.measure = measure
        self.costs = costs or {}
        self.waiting: dict[int, Task] = {}
        # By task: (gain, position) of the modes within the budget, largest gain first
        self._ways: dict[int, list[tuple[float, int]]] = {}
        self._prices: dict[str, float] = {}
        self._tried = -1

    def check(self, problem: PlanProblem) -> None:
        check_costs(self.costs, problem.cluster)

    def begin(self, view: View) -> None:
        self._prices = prices(view.cluster, self.costs)

    def ready(self, task: Task) -> None:
        self.waiting[task.index] = task
        self._ways[task.index] = self.ways(task)
        self._tried = -1

    def gone(self, task: Task) -> None:
        self.waiting.pop(task.index, None)
        self._ways.pop(task.index, None)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.waiting or self._tried == view.changes.releases:
            return
        offers = [(-gain, task.arrival, index, position) for index, task in self.waiting.items()
                  for gain, position in self._ways[index]]  # fmt: skip
        blocked: dict[Mode, None] = {}
        for _, _, index, position in sorted(offers):
            task = self.waiting.get(index)
            if task is None or (mode := task.modes[position]) in blocked:
                continue
            if (placement := view.first(mode)) is None:
                blocked[mode] = None
            elif view.holds(task, placement):
                self.gone(task)
                yield Start(task, placement)
        self._tried = view.changes.releases

    def ways(self, task: Task) -> list[tuple[float, int]]:
        """Return (gain, position) of the affordable modes of a task, largest gain first.

        Affordable: at most `budget` times the minimum energy (or cost) of the task's modes.  Gain: seconds saved
        compared with the slowest affordable mode, per device-second.
        """
        times = [(p, task.estimate_at(p)) for p in task.allowed or range(len(task.modes))]
        seconds = {p: value for p, value in times if math.isfinite(value)}
        price = {p: self._price(task.modes[p]) * value for p, value in seconds.items()}
        limit = self.budget * min(price.values()) * (1 + ROUNDING)
        allowed = [p for p in seconds if price[p] <= limit]
        slowest = max(seconds[p] for p in allowed)

        def gain(position: int) -> float:
            area = seconds[position] * task.modes[position].width
            return (slowest - seconds[position]) / area if area > 0 else math.inf

        return sorted(((gain(p), p) for p in allowed), reverse=True)

    def _price(self, mode: Mode) -> float:
        if self.measure == "energy":
            return mode.width * (mode.type.power.busy - mode.type.power.idle)
        return mode.width * self._prices[mode.type.name]
