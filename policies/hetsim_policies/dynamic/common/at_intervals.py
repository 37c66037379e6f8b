"""Allocation of GPUs to all jobs at fixed intervals.

The base of `las_intervals`, `optimus_intervals` and `pollux`.

At every multiple of the interval a subclass says on which nodes each job has how many GPUs until the next one.  A job
with unchanged GPUs runs on; any other is stopped, with its work kept, and started again.  Between two instants nothing
starts, and GPUs that come free stand idle, as in the simulators of Pollux and Gavel.
All this is about one type of accelerator, that of which the cluster has most.  Jobs without a mode of whole devices of
it, and jobs that do not fit where they should (host memory, a partition), start when they fit, in the order of
arrival; jobs that are not preemptible stay where they are.
Cost: a look at all jobs and nodes once an interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from hetsim.model.cluster import Device, Node
from hetsim.model.curves import Layout, layout_of
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.model.tasks import Mode, Shape
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, Stop, View, Wait

Share = dict[int, int]
"""GPUs by node, nodes without any left out."""

ROUNDING = 1e-12
"""Part of a time by which a multiple of the interval may be missed."""

ROUND_COST = 3e-6
"""Seconds that a waiting job adds to an instant at which GPUs are dealt out."""


@dataclass
class IntervalJob:
    """The state of a job when GPUs are dealt out."""

    task: Task
    sizes: dict[int, Mode]
    """Its modes by number of GPUs, in ascending order."""
    share: Share = field(default_factory=dict)
    """Its GPUs now; empty while it waits."""
    done: float = 0.0
    """Fraction of its work that is done, by estimate."""
    attained: float = 0.0

    def estimate(self, gpus: int) -> float:
        """Estimated seconds of the whole job on the packed layout."""
        return self.task.estimate_in(self.sizes[gpus])

    def remaining(self, gpus: int, done: float) -> float:
        """Estimated seconds from `done` to the end on `gpus` GPUs over the fewest nodes."""
        curve = self.sizes[gpus].curve
        return self.estimate(gpus) * (1.0 - done if curve is None else curve.left(curve.packed, done))

    def speed(self, layout: Layout) -> float:
        """Fraction of the job per second on a layout; 0 where it cannot run."""
        mode = self.sizes.get(sum(layout))
        if mode is None or (len(layout) > 1 and not mode.span_any):
            return 0.0
        seconds = self.estimate(sum(layout))
        rate = 1.0 if mode.curve is None else mode.curve.rate(layout, self.done)
        return rate / seconds if seconds > 0 else math.inf


class AtIntervals(Scheduler):
    """Deals out whole GPUs at every multiple of `interval`."""

    at_own_times = True

    def __init__(self, interval: Annotated[Seconds, Field(gt=0)] = 60.0):
        self.interval = interval
        self._last = 0
        """Number of the last interval that has begun."""
        self._kind = ""
        self._down: set[int] = set()
        self._devices: list[tuple[Node, list[Device]]] = []
        """Those of the type, by node."""
        self._modes: dict[tuple[Shape, tuple[int, ...] | None], dict[int, Mode]] = {}
        """What `_sizes` has found, by shape and the modes that admission left."""
        self._here: dict[int, None] = {}
        """Rows of the tasks that have been ready and have not ended."""
        self._others: dict[int, Task] = {}
        """By row: tasks without modes on whole devices of the type, in the order in which they became ready."""

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        """By row of a job its GPUs until the next time; jobs not named have none.

        `room`: GPUs by node that the jobs may have, those that they have included.
        """
        raise NotImplementedError

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST

    def begin(self, view: View) -> None:
        counts = Counter(device.type.name for device in view.cluster.devices if device.type.kind != "cpu")
        self._kind = max(counts, key=lambda name: counts[name], default="")
        of_kind = ((n, [d for d in n.accelerators if d.type.name == self._kind]) for n in view.cluster.nodes)
        self._devices = [(node, devices) for node, devices in of_kind if devices]

    def ready(self, task: Task) -> None:
        self._here[task.index] = None
        if not self._sizes(task):
            self._others.pop(task.index, None)
            self._others[task.index] = task

    def finished(self, task: Task) -> None:
        self._here.pop(task.index, None)
        self._others.pop(task.index, None)

    def gone(self, task: Task) -> None:
        self.finished(task)

    def device(self, device: Device, up: bool) -> None:
        (self._down.discard if up else self._down.add)(device.index)

    def schedule(self, view: View) -> Iterator[Decision]:
        number = math.floor(view.now / self.interval * (1 + ROUNDING))
        due = number > self._last and view.now <= number * self.interval * (1 + ROUNDING)
        self._last = max(number, self._last)
        others = [task for task in self._others.values() if task.state == WAITING]
        if due:
            yield from self._deal_out(view.waiting(own=True), view.running("start", own=True), view)
        for task in others:
            placement = view.fit(task)
            if placement is not None:
                yield Start(task, placement)
        if self._here or view.num_waiting(own=True) or view.running("start", own=True):
            yield Wait(until=(self._last + 1) * self.interval)

    def _sizes(self, task: Task) -> dict[int, Mode]:
        key = task.shape, task.allowed
        by_size = self._modes.get(key)
        if by_size is None:
            allowed = task.allowed or range(len(task.modes))
            modes = [task.modes[position] for position in allowed]
            sizes = {mode.gpus: mode for mode in modes if mode.type.name == self._kind and mode.gpus and mode.whole}
            by_size = self._modes[key] = dict(sorted(sizes.items()))
        return by_size

    # Dealing out ----------------------------------------------------------------------------------------------

    def _deal_out(self, waiting: list[Task], running: list[Task], view: View) -> Iterator[Decision]:
        jobs = [
            self._job(task, view)
            for task in [*running, *waiting]
            if self._sizes(task) and (task.state != RUNNING or task.shape.preemptible)
        ]
        jobs.sort(key=lambda job: (job.task.arrival, job.task.index))
        free = self._free(view)
        room = {node: len(devices) for node, devices in free.items()}
        for job in jobs:
            for node, count in job.share.items():
                room[node] = room.get(node, 0) + count
        dealt = self.deal(jobs, dict(sorted(room.items())), view)
        stay: dict[int, None] = {}
        for job in jobs:
            if job.share and dealt.get(job.task.index) == job.share:
                stay[job.task.index] = None
            elif job.share:
                free = {}
                yield Stop(job.task)
        free = free or self._free(view)
        for job in jobs:
            share = dealt.get(job.task.index)
            if share and job.task.index not in stay:
                start = self._start(job, share, free, view)
                if start is not None:
                    yield start
        if not view.running("start", own=True):
            yield from self._start_any(jobs, view)

    def _job(self, task: Task, view: View) -> IntervalJob:
        job = IntervalJob(task, self._sizes(task), done=task.done, attained=view.attained(task))
        if task.state == RUNNING:
            placement = view.launch_of(task).placement
            assert placement is not None
            nodes = [device.node for device in placement.devices]
            job.share = dict(Counter(nodes)) if placement.mode.span_any else {nodes[0]: len(nodes)}
            remaining, total = view.remaining(task), job.estimate(placement.mode.gpus) if placement.mode.whole else 0.0
            curve = placement.mode.curve
            if total <= 0:
                job.done = 1.0
            elif curve is None:
                job.done = 1.0 - remaining / total
            else:
                layout = layout_of(placement.devices)
                job.done = curve.reached(layout, task.done, curve.left(layout, task.done) - remaining / total)
        return job

    def _free(self, view: View) -> dict[int, list[Device]]:
        """Devices by node of which nothing is in use."""
        idle_by_node: dict[int, list[Device]] = {}
        down, load = self._down, view.load
        for node, devices in self._devices:
            idle = [device for device in devices if device.index not in down and not load(device)]
            if idle and node.cpu.index not in down:
                idle_by_node[node.index] = idle
        return idle_by_node

    def _start(self, job: IntervalJob, share: Share, free: dict[int, list[Device]], view: View) -> Start | None:
        """Start a job on free devices and take these; None where there is no room."""
        mode = job.sizes[sum(share.values())]
        if any(len(free.get(node, ())) < count for node, count in share.items()):
            return None
        placement = Placement(mode, tuple(device for node, count in share.items() for device in free[node][:count]))
        if not (view.fits(mode, placement, (job.task,)) and view.holds(job.task, placement)):
            return None
        for node, count in share.items():
            del free[node][:count]
        return Start(job.task, placement)

    def _start_any(self, jobs: list[IntervalJob], view: View) -> Iterator[Decision]:
        """Nothing runs: the first job that fits anywhere must not wait for ever."""
        for job in jobs:
            placement = view.fit(job.task)
            if placement is not None:
                yield Start(job.task, placement)
                return


def spread(mode: Mode, room: Share) -> Share:
    """Take the GPUs of a mode from `room`, each from the node with most of them.

    Of a mode that must stay on one node, that of the node with most, or nothing.
    """
    share: Share = {}
    gpus = mode.gpus
    if not mode.span_any and gpus > max(room.values(), default=0):
        return share
    while gpus:
        node = max(room, key=lambda one: room[one])
        count = min(room[node], gpus)
        share[node] = share.get(node, 0) + count
        room[node] -= count
        gpus -= count
    return share
