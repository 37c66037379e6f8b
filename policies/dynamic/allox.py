"""AlloX: jobs matched to devices and to places in their queues, so that the mean response is least.

Decides when and in which mode, without preemption.  Whoever runs k-th from the end on a device delays itself and the
k - 1 behind it, so on that place a job of time p costs k × p, and a device that is busy for d more seconds adds d.
The cheapest matching of jobs to places is the schedule of least total completion time of the waiting jobs; those at
the front of a free device's queue start, and the matching is made anew when jobs come or go.
Reference: Le, Sun, Chowdhury, Liu, AlloX: Compute Allocation in Hybrid Clusters (EuroSys 2020); the matching is that
of Horn, Minimizing Average Flow Time with Parallel Machines (1973), and Bruno, Coffman, Sethi, Scheduling Independent
Tasks to Reduce Mean Finishing Time (1974): optimal for sequential jobs that are all there, on devices that are free.
`alpha` below 1 offers devices only to that part of the users (rounded up) who received least, AlloX's fairness.
Here a gang of w devices costs p + (k - 1) w p, as if it delayed the w queues of its devices; that is no optimum, and
a gang that does not fit is passed, so gangs may wait long.  Weakness: estimates are believed; as with sjf long jobs
may starve; where devices are busy the matching is the best only if busy ones do not reorder their places.
Cost: O(n² places) a matching, with n at most `window`, and some 2n places of each type, whenever something was released
or has come and a device is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from sim.model.tasks import Task
from sim.policy import WAIT_FOR_READY, Decision, Scheduler, Start, View

SMALL = 256
"""With no more places of a type than this all are offered; else only so many places a device as are needed."""


class Matched(NamedTuple):
    """A job's place: its mode, type and number of the device, and how many run there after it."""

    job: int
    mode: int
    kind: int
    device: int
    behind: int


class AlloX(Scheduler):
    """Matching for the least mean response.

    alpha: part of the users (rounded up) whose jobs are considered, those who received least first.
    window: so many waiting jobs at most, the shortest, are matched at once; the others would come after them anyway.
    """

    def __init__(
        self,
        alpha: Annotated[float, Field(gt=0, le=1)] = 1.0,
        window: Annotated[int, Field(ge=1, strict=True)] = 32,
    ):
        self.alpha = alpha
        self.window = window
        self.waiting: dict[int, Task] = {}
        self._having: dict[str, list[int]] = {}
        """Nodes by type of device."""
        self._tried: tuple[int, int] = (-1, -1)
        self._arrivals = 0

    def begin(self, view: View) -> None:
        nodes = view.cluster.nodes
        for name in view.cluster.types:
            self._having[name] = [
                node.index for node in nodes
                if name == node.cpu.type.name or any(name == device.type.name for device in node.accelerators)
            ]  # fmt: skip

    def ready(self, task: Task) -> None:
        self.waiting[task.index] = task
        self._arrivals += 1

    def gone(self, task: Task) -> None:
        self.waiting.pop(task.index, None)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.waiting:
            yield WAIT_FOR_READY
            return
        if self._tried == (view.releases, self._arrivals):
            return
        queues = self._queues(view)
        if any(len(queue) and queue[0] <= 0 for queue in queues.values()):
            tasks = self._candidates(view)
            kinds = list(queues)
            found = matching([_ways(task, kinds) for task in tasks], list(queues.values()))
            for place in _fronts(found):
                task = tasks[place.job]
                mode = task.modes[place.mode]
                placement = view.first(mode) if queues[mode.type.name][place.device] <= 0 else None
                if placement is not None and view.holds(task, placement):
                    del self.waiting[task.index]
                    yield Start(task, placement)
            if not view.running("start"):
                yield from self._any(view)
        self._tried = (view.releases, self._arrivals)

    def _queues(self, view: View) -> dict[str, np.ndarray]:
        """By type of device, of each one the estimated seconds until it is free, ascending: 0 where there is room."""
        busy: dict[str, list[float]] = {name: [] for name in view.cluster.types}
        for task in view.running("start"):
            placement = view.placement_of(task)
            assert placement is not None
            seconds = max(1e-9, view.expected_finish(task) - view.now)
            busy[placement.mode.type.name] += [seconds] * max(1, round(placement.mode.width))
        found = {}
        for name, times in busy.items():
            free = sum(view.free_on(node, name) for node in self._having[name])
            found[name] = np.concatenate([np.zeros(math.ceil(free)), np.sort(times)])
        return found

    def _any(self, view: View) -> Iterator[Decision]:
        """Nothing runs, and what should go first fits nowhere: whatever fits, or all would wait for ever."""
        for task in list(self.waiting.values()):
            placement = view.fit(task)
            if placement is not None:
                del self.waiting[task.index]
                yield Start(task, placement)

    def _candidates(self, view: View) -> list[Task]:
        tasks = list(self.waiting.values())
        if self.alpha < 1:
            users = list(dict.fromkeys(task.user for task in tasks))
            users.sort(key=view.attained)
            served = dict.fromkeys(users[: math.ceil(self.alpha * len(users))])
            tasks = [task for task in tasks if task.user in served]
        if len(tasks) > self.window:
            tasks = nsmallest(self.window, tasks, key=lambda task: (task.shortest_remaining, task.index))
        return tasks


class Way(NamedTuple):
    """A mode of a job: its position, the number of its type of device, time, and devices."""

    mode: int
    kind: int
    time: float
    width: float


def matching(ways: Sequence[Sequence[Way]], delays: Sequence[np.ndarray]) -> list[Matched]:
    """Places for jobs with the least total completion time, jobs with no place left out.

    delays: by type, of each device the seconds until it is free, ascending.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(ways)
    delays = [delay[:count] for delay in delays]  # of places as far from the end only so many can be taken
    deep = [_depth(count, len(delay)) for delay in delays]
    first = np.concatenate([[0], np.cumsum([len(d) * k for d, k in zip(delays, deep, strict=True)])]).astype(int)
    cost = np.full((count, int(first[-1])), math.inf)
    chosen = np.zeros(cost.shape, dtype=int)
    ahead = [np.arange(k)[:, None] for k in deep]
    for job, mine in enumerate(ways):
        for mode, kind, time, width in mine:  # of several modes on a type the cheaper one, place by place
            part = slice(first[kind], first[kind + 1])
            here = (time * (1 + ahead[kind] * width) + delays[kind][None, :]).ravel()
            better = here < cost[job, part]
            cost[job, part][better] = here[better]
            chosen[job, part][better] = mode
    # A place that is out of the question costs more than all others together.
    most = float(cost[np.isfinite(cost)].max(initial=0.0)) + 1.0
    jobs, places = linear_sum_assignment(np.where(np.isfinite(cost), cost, most * (count + 1)))
    found = []
    for job, place in zip(jobs.tolist(), places.tolist(), strict=True):
        if math.isfinite(cost[job, place]):
            kind = int(np.searchsorted(first, place, side="right")) - 1
            behind, device = divmod(int(place - first[kind]), len(delays[kind]))
            found.append(Matched(job, int(chosen[job, place]), kind, device, behind))
    return found


def _depth(jobs: int, devices: int) -> int:
    """Places a device: all jobs could stand there, but with many devices they will not."""
    if not devices:
        return 0
    return jobs if jobs * devices <= SMALL else math.ceil(jobs / devices) + 1


def _fronts(found: Sequence[Matched]) -> list[Matched]:
    """Who goes first on each device: those with the most behind them first."""
    front: dict[tuple[int, int], Matched] = {}
    for place in sorted(found, key=lambda place: (-place.behind, place.job)):
        front.setdefault((place.kind, place.device), place)
    return list(front.values())


def _ways(task: Task, kinds: Sequence[str]) -> list[Way]:
    left = 1.0 - task.done
    found = []
    for position in task.allowed or range(len(task.modes)):
        mode, time = task.modes[position], task.estimates[position] + task.modes[position].fixed
        if math.isfinite(time):
            found.append(Way(position, kinds.index(mode.type.name), time * left, mode.width))
    return found
