"""Gangs and elastic jobs whose GPUs are allocated at fixed intervals."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.cluster import Node
from hetsim.model.curves import Layout, layout_of
from hetsim.model.device import Device
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, Stop, View, Wait
from hetsim_policies.common import place_of

Share = dict[int, int]  # number of GPUs by node, without nodes that have none

ROUNDING = 1e-12  # relative rounding error of a multiple of the interval

ROUND_COST = 3e-6  # seconds that a waiting job adds to an instant at which GPUs are allocated


@dataclass
class IntervalJob:
    task: Task
    sizes: dict[int, Mode]  # its modes by number of GPUs, in ascending order
    share: Share = field(default_factory=dict)  # its GPUs now; empty while it waits
    done: float = 0.0  # fraction of its work that is done, by estimate
    attained: float = 0.0

    def estimate(self, gpus: int) -> float:
        """Estimated seconds of the job on `gpus` GPUs of the fewest nodes."""
        return self.task.estimate_in(self.sizes[gpus])

    def remaining(self, gpus: int, done: float) -> float:
        """Estimated seconds from the fraction `done` to the end on `gpus` packed GPUs."""
        curve = self.sizes[gpus].curve
        return self.estimate(gpus) * (1.0 - done if curve is None else curve.seconds_left(curve.packed, done))

    def speed(self, layout: Layout) -> float:
        """Fraction of the job per second on a layout; 0 if the job cannot use the layout."""
        mode = self.sizes.get(sum(layout))
        if mode is None or (len(layout) > 1 and not mode.span_any):
            return 0.0
        seconds = self.estimate(sum(layout))
        rate = 1.0 if mode.curve is None else mode.curve.rate(layout, self.done)
        return rate / seconds if seconds > 0 else math.inf


class AtIntervals(Scheduler):
    """Base of policies that allocate GPUs to all jobs at fixed intervals.

    The policies are `las_intervals`, `optimus_intervals` and `pollux`.  At every multiple of the interval a subclass
    decides the number of GPUs of each job on each node.  A job with unchanged GPUs continues; any other running job is
    stopped, with its work kept, and started again.  Between two multiples no job starts, and GPUs that become free
    remain idle, as in the simulators of Pollux and Gavel.  This applies to one accelerator type, the most frequent type
    of the cluster.  Jobs without a mode on whole devices of this type, and jobs that do not fit on the chosen nodes
    (host memory, a partition), start when they fit, in the order of arrival; jobs that are not preemptible remain on
    their devices.  Cost: a pass over all jobs and nodes per interval.
    """

    at_own_times = True

    def __init__(self, interval: Annotated[Seconds, Field(gt=0)] = 60.0):
        self.interval = interval
        self._last = 0  # number of the last interval that has begun
        self._kind = ""
        self._down: set[int] = set()
        self._devices: list[tuple[Node, list[Device]]] = []  # accelerators of the type, by node
        # Cache of `_sizes`, by shape and the modes that admission allows
        self._modes: dict[tuple[Shape, tuple[int, ...] | None], dict[int, Mode]] = {}
        self._here: dict[int, None] = {}  # rows of the tasks that have been ready and have not ended
        # By row: tasks without modes on whole devices of the type, in the order in which they became ready
        self._others: dict[int, Task] = {}

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        """Return each job's GPUs, by row, for the coming interval; other jobs have none.

        `room`: GPUs by node that the jobs may use, including their present ones.
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
            if (placement := view.fit(task)) is not None:
                yield Start(task, placement)
        if self._here or view.num_waiting(own=True) or view.running("start", own=True):
            yield Wait(until=(self._last + 1) * self.interval)

    def _sizes(self, task: Task) -> dict[int, Mode]:
        key = task.shape, task.allowed
        if (by_size := self._modes.get(key)) is None:
            modes = [task.modes[position] for position in task.allowed or range(len(task.modes))]
            own = {m.gpus: m for m in modes if m.type.name == self._kind and m.gpus and m.whole_devices}
            by_size = self._modes[key] = dict(sorted(own.items()))
        return by_size

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
            share = None if job.task.index in stay else dealt.get(job.task.index)
            if share and (start := self._start(job, share, free, view)) is not None:
                yield start
        if not view.running("start", own=True):  # the first job that fits anywhere must not wait for ever
            for job in jobs:
                if (placement := view.fit(job.task)) is not None:
                    yield Start(job.task, placement)
                    break

    def _job(self, task: Task, view: View) -> IntervalJob:
        job = IntervalJob(task, self._sizes(task), done=task.done, attained=view.attained(task))
        if task.state == RUNNING:
            placement = place_of(task, view)
            nodes = [device.node for device in placement.devices]
            job.share = dict(Counter(nodes)) if placement.mode.span_any else {nodes[0]: len(nodes)}
            mode, remaining = placement.mode, view.remaining(task)
            total = job.estimate(mode.gpus) if mode.whole_devices else 0.0
            if total <= 0:
                job.done = 1.0
            elif (curve := mode.curve) is None:
                job.done = 1.0 - remaining / total
            else:
                layout = layout_of(placement.devices)
                job.done = curve.reached(layout, task.done, curve.seconds_left(layout, task.done) - remaining / total)
        return job

    def _free(self, view: View) -> dict[int, list[Device]]:
        idle_by_node: dict[int, list[Device]] = {}
        down, load = self._down, view.load
        for node, devices in self._devices:
            idle = [device for device in devices if device.index not in down and not load(device)]
            if idle and node.cpu.index not in down:
                idle_by_node[node.index] = idle
        return idle_by_node

    def _start(self, job: IntervalJob, share: Share, free: dict[int, list[Device]], view: View) -> Start | None:
        mode = job.sizes[sum(share.values())]
        if any(len(free.get(node, ())) < count for node, count in share.items()):
            return None
        placement = Placement(mode, tuple(device for node, count in share.items() for device in free[node][:count]))
        if not (view.fits(mode, placement, (job.task,)) and view.holds(job.task, placement)):
            return None
        for node, count in share.items():
            del free[node][:count]
        return Start(job.task, placement)


def spread(mode: Mode, room: Share) -> Share:
    """Remove a mode's GPUs from `room` (free GPUs by node); return them by node.

    Nodes with most free GPUs are used up first.  A mode that must stay on one node gets all its GPUs there, or none.
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


def spread_others(dealt: dict[int, Share], widths: Iterable[tuple[IntervalJob, int]], room: Share) -> dict[int, Share]:
    """Add to `dealt` the missing jobs, spread over the nodes' remaining GPUs.

    dealt: each job's GPUs by node.  widths: jobs with their number of GPUs.  room: GPUs by node.
    """
    for share in dealt.values():
        for node, count in share.items():
            room[node] -= count
    for job, width in widths:
        if job.task.index not in dealt:
            dealt[job.task.index] = spread(job.sizes[width], room)
    return dealt


class LasIntervals(AtIntervals):
    """Least attained service at fixed intervals: gangs in a few queues, on any nodes.

    Decides when, where and which job is preempted.  As in `las` a job moves to the next queue when its GPU time crosses
    a threshold, and never back; within a queue jobs are in the order in which they entered it.  At every multiple of
    the interval the jobs are visited in that order, and a job runs if enough GPUs are left on any nodes.  Jobs that ran
    before keep their GPUs; other jobs get GPUs of the emptiest nodes.
    Reference: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019), as Qiao et al., Pollux
    (OSDI 2021), simulate it: two queues with a threshold of 16 GPU hours, and intervals of 60 s.
    Weakness: long jobs starve while load is high; a gang is spread over nodes although it would fit on one node that is
    less empty.  Cost: a pass over all jobs and nodes per interval.

    interval: seconds between decisions.
    thresholds: attained GPU-seconds at which a job is demoted to the next queue.
    """

    def __init__(
        self,
        interval: Annotated[Seconds, Field(gt=0)] = 60.0,
        thresholds: Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(min_length=1)] | None = None,
    ):
        super().__init__(interval)
        self.thresholds = sorted(thresholds or [57600.0])
        self._queued: dict[int, tuple[int, int]] = {}  # by row: the queue, and the sequence number of the entry into it
        self._entries = 0

    def finished(self, task: Task) -> None:
        super().finished(task)
        self._queued.pop(task.index, None)

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        for job in jobs:
            level = sum(job.attained * (1 + 1e-9) >= threshold for threshold in self.thresholds)
            if (queue := self._queued.get(job.task.index)) is None or level > queue[0]:
                self._entries += 1
                self._queued[job.task.index] = level, self._entries
        free = sum(room.values())
        chosen = []
        for job in sorted(jobs, key=lambda job: self._queued[job.task.index]):
            width = sum(job.share.values()) if job.share else next(iter(job.sizes))
            if width <= free:
                free -= width
                chosen.append((job, width))
        return spread_others({job.task.index: job.share for job, _ in chosen if job.share}, chosen, room)


NOT_YET_OVER = 1e-6  # minimum remaining fraction that a job in its last epoch is assumed to have


class OptimusIntervals(AtIntervals):
    """Optimus at fixed intervals: each GPU is given to the job that saves most time.

    Decides sizes and nodes of elastic jobs, and when they change.  Every job gets one GPU in the order of arrival,
    while GPUs are left; then one GPU at a time is given where it saves most time, and a job that the next GPU would not
    speed up gets no more.  A job with an unchanged number of GPUs keeps its GPUs; other jobs get GPUs of the emptiest
    nodes, small jobs first.  The remaining time of a job is the time of the epochs after the present epoch.
    Reference: Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters (2018), as Qiao
    et al., Pollux (OSDI 2021), simulate it: with given step times and numbers of epochs, every 60 s.
    Weakness: long jobs grow first, as under `optimus`; a step that does not pay (such as the fifth GPU if nodes have
    four) hides all larger ones.  Cost: O(GPUs × jobs) per interval.

    interval: seconds between decisions.
    """

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        free = sum(room.values())
        widths: dict[int, int] = {}
        gains: dict[int, float] = {}
        by_row = {job.task.index: job for job in jobs}
        for row, job in by_row.items():
            if (smallest := next(iter(job.sizes))) <= free:
                widths[row] = smallest
                free -= smallest
                gains[row] = self._gain(job, smallest)
        while free and gains:
            row = max(gains, key=lambda one: gains[one])
            if gains[row] <= 0:
                break
            more = self._next(by_row[row], widths[row]) - widths[row]
            if more > free:
                gains[row] = 0.0
                continue
            widths[row] += more
            free -= more
            gains[row] = self._gain(by_row[row], widths[row])
        running = [job for job in jobs if job.share]
        dealt = {job.task.index: job.share for job in running if sum(job.share.values()) == widths.get(job.task.index)}
        others = [(by_row[row], widths[row]) for row in sorted(widths, key=lambda row: widths[row])]
        return spread_others(dealt, others, room)

    @staticmethod
    def _next(job: IntervalJob, width: int) -> int:
        return next((size for size in job.sizes if size > width), width)

    def _gain(self, job: IntervalJob, width: int) -> float:
        if (wider := self._next(job, width)) == width:
            return 0.0
        curve = job.sizes[width].curve
        done = min(job.done if curve is None else curve.section(job.done)[1], 1.0 - NOT_YET_OVER)
        return (job.remaining(width, done) - job.remaining(wider, done)) / (wider - width)


# Probabilities: a job is reset to its present GPUs; a job is thinned out; then each of its nodes is cleared
RESET, EMPTIED, CLEARED = 0.1, 0.1, 0.1
FLOOR = 1e-3  # added to every speedup, so that a waiting job does not outweigh all others

Matrices = np.ndarray  # GPUs by candidate, job and node


class Pollux(AtIntervals):
    """Pollux: a genetic search for the GPUs and nodes of jobs, by mean speedup.

    Decides sizes and nodes, and when they change.  The speedup of a job is its progress per second relative to that on
    an equal share of the GPUs on the fewest nodes; the objective is the power mean of all speedups.  A job that would
    have to restart counts less, by the share of its life that restarts take.  A job gets at most twice the maximum
    number of GPUs that it has had, so that its speed is not extrapolated far.  A node has at most one job that spans
    several nodes, so that jobs do not compete for its network.  At each interval, matrices of jobs × nodes are crossed
    over by jobs, mutated and repaired, beginning with those of the previous interval; the best matrix is allocated.
    Reference: Qiao, Choe, Subramanya, Neiswanger, Ho, Zhang, Ganger, Xing, Pollux: Co-adaptive Cluster Scheduling for
    Goodput-Optimized Deep Learning (OSDI 2021).  In the paper speeds are predicted by a model that is fitted to each
    job's steps; here they are the estimates of its modes, which for jobs with measured curves depend on layout and
    progress.  Batch sizes adapt as the job defines (`batch: adaptive` of the trace format pollux).  The search keeps
    the better half of parents and children; the authors' search also keeps solutions that use the cluster better
    (NSGA-II).  Weakness: it ignores the time left, so short jobs are treated as long ones; a search of few generations
    does not find the optimum.  Cost: O(generations × population × jobs × nodes) per interval.

    interval: seconds between decisions.
    fairness: exponent of the power mean, below 0; towards minus infinity only the slowest job counts.
    population, generations: number of candidates, and of generations per decision.
    restart: assumed seconds that a job loses when its GPUs change.
    """

    def __init__(
        self,
        interval: Annotated[Seconds, Field(gt=0)] = 60.0,
        fairness: Annotated[float, Field(lt=0, ge=-20)] = -1.0,
        population: Annotated[int, Field(ge=2, le=1000)] = 40,
        generations: Annotated[int, Field(ge=1, le=1000)] = 20,
        restart: Annotated[Seconds, Field(ge=0)] = 30.0,
    ):
        super().__init__(interval)
        self.fairness = fairness
        self.population = population
        self.generations = generations
        self.restart = restart
        self._widest: dict[int, int] = {}  # by row: most GPUs that the job has had for an interval
        self._starts: dict[int, int] = {}  # by row: how often the job has been given GPUs
        self._last_rows: list[int] = []
        self._last_nodes: list[int] = []
        self._last_matrices: Matrices = np.zeros((0, 0, 0), dtype=np.int64)

    def finished(self, task: Task) -> None:
        super().finished(task)
        self._widest.pop(task.index, None)
        self._starts.pop(task.index, None)

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        if not jobs or not room:
            return {}
        jobs = sorted(jobs, key=lambda job: (job.attained, job.task.arrival, job.task.index))
        for job in jobs:
            row = job.task.index
            self._widest[row] = max(self._widest.get(row, 0), sum(job.share.values()))
        nodes = list(room)
        search = GeneticSearch(self, jobs, nodes, room=np.array([room[node] for node in nodes]), view=view)
        matrices = search.run(self._adapted(jobs, nodes))
        self._last_rows, self._last_nodes = [job.task.index for job in jobs], nodes
        self._last_matrices = matrices
        dealt: dict[int, Share] = {}
        for job, counts in zip(jobs, matrices[0].tolist(), strict=True):
            share = {node: count for node, count in zip(nodes, counts, strict=True) if count}
            if share and share != job.share:
                self._starts[job.task.index] = self._starts.get(job.task.index, 0) + 1
            if share:
                dealt[job.task.index] = share
        return dealt

    def restarts(self, job: IntervalJob) -> int:
        """Number of times that the job's GPUs have been changed."""
        return max(0, self._starts.get(job.task.index, 0) - 1)

    def widest(self, job: IntervalJob) -> int:
        """Maximum number of GPUs that the job may get now."""
        limit = max(1, 2 * self._widest[job.task.index])
        return max((gpus for gpus in job.sizes if gpus <= limit), default=next(iter(job.sizes)))

    def _adapted(self, jobs: list[IntervalJob], nodes: list[int]) -> Matrices:
        """Adapt the last interval's candidate allocations to the present jobs and nodes."""
        last = self._last_matrices
        adapted = np.zeros((len(last), len(jobs), len(nodes)), dtype=np.int64)
        if len(last):
            row_at = {row: place for place, row in enumerate(self._last_rows)}
            node_at = {node: place for place, node in enumerate(self._last_nodes)}
            here = [place for place, job in enumerate(jobs) if job.task.index in row_at]
            there = [row_at[jobs[place].task.index] for place in here]
            columns = [place for place, node in enumerate(nodes) if node in node_at]
            before = [node_at[nodes[place]] for place in columns]
            adapted[np.ix_(range(len(last)), here, columns)] = last[np.ix_(range(len(last)), there, before)]
        return adapted


class GeneticSearch:
    def __init__(self, policy: Pollux, jobs: list[IntervalJob], nodes: list[int], room: np.ndarray, view: View):
        self.policy, self.jobs, self.room, self.random = policy, jobs, room, view.random
        self.now = np.array([[job.share.get(node, 0) for node in nodes] for job in jobs], dtype=np.int64)
        self.limits = np.array([policy.widest(job) for job in jobs])
        total = int(room.sum())
        self.fair = max(1, -(-total // len(jobs)))
        age = np.array([view.now - job.task.arrival for job in jobs])
        restarts = np.array([policy.restarts(job) for job in jobs])
        # Weight of a job's speedup if it restarts
        self.kept = np.maximum(age - restarts * policy.restart, 0.0) / np.maximum(age + policy.restart, 1e-9)
        width = int(self.limits.max()) + 1
        own = [np.array([0, *job.sizes]) for job in jobs]
        # By job and number of GPUs: the largest size of the job up to that number
        self.sizes = np.array([each[np.searchsorted(each, np.arange(width), side="right") - 1] for each in own])
        # Speedup by job, number of nodes and of GPUs, as far as queried
        self.table = np.full((len(jobs), len(nodes) + 1, width), np.nan)
        self.table[:, 0, :] = self.table[:, :, 0] = 0.0
        self.scale = len(nodes) / total
        self.base = [self._fair_speed(job) for job in jobs]

    def run(self, seeds: Matrices) -> Matrices:
        """Run the search; return the remaining candidates, best first."""
        size = self.policy.population
        candidates = self._repaired(np.concatenate([self.now[np.newaxis], seeds[: size - 1]]))
        values = self._values(candidates)
        for _ in range(self.policy.generations):
            children = self._repaired(self._changed(self._crossed(candidates, values, size)))
            candidates = np.concatenate([candidates, children])
            values = np.concatenate([values, self._values(children)])
            _, first = np.unique(candidates.reshape(len(candidates), -1), axis=0, return_index=True)
            best = first[np.lexsort((first, -values[first]))][:size]
            candidates, values = candidates[best], values[best]
        return candidates

    def _fair_speed(self, job: IntervalJob) -> float:
        width = max((gpus for gpus in job.sizes if gpus <= self.fair), default=next(iter(job.sizes)))
        return max(job.speed(self._layout(width, -(-width // int(self.room.max())))), 1e-300)

    @staticmethod
    def _layout(gpus: int, nodes: int) -> tuple[int, ...]:
        base, more = divmod(gpus, nodes)
        return (base + 1,) * more + (base,) * (nodes - more)

    def _values(self, matrices: Matrices) -> np.ndarray:
        nodes, gpus = np.count_nonzero(matrices, axis=2), matrices.sum(axis=2)
        numbers = np.broadcast_to(np.arange(len(self.jobs)), gpus.shape)
        speedups = self.table[numbers, nodes, gpus]
        missing = np.isnan(speedups)
        if missing.any():
            asked = np.unique(np.column_stack([numbers[missing], nodes[missing], gpus[missing]]), axis=0)
            for number, count, width in asked.tolist():
                speed = self.jobs[number].speed(self._layout(width, count))
                self.table[number, count, width] = speed / self.base[number]
            speedups = self.table[numbers, nodes, gpus]
        again = np.any(matrices != self.now, axis=2)
        scaled = np.where(again, speedups * self.kept, speedups) * self.scale + FLOOR
        power = self.policy.fairness
        with np.errstate(divide="ignore"):  # the power of nothing is infinite, and its mean none
            return np.asarray(np.mean(scaled**power, axis=1) ** (1 / power))

    def _crossed(self, found: Matrices, values: np.ndarray, count: int) -> Matrices:
        """Create children of candidates; each parent is the better of two random ones."""
        drawn = self.random.integers(len(found), size=(2, 2, count))
        parents = np.where(values[drawn[0]] >= values[drawn[1]], drawn[0], drawn[1])
        point = self.random.integers(len(self.jobs), size=(count, 1, 1))
        first = np.arange(len(self.jobs))[np.newaxis, :, np.newaxis] < point
        return np.where(first, found[parents[0]], found[parents[1]])

    def _changed(self, matrices: Matrices) -> Matrices:
        random = self.random
        jobs = matrices.shape[:2]
        matrices = np.where((random.random(jobs) < RESET)[:, :, np.newaxis], self.now, matrices)
        thinned = np.where(random.random(jobs) < EMPTIED, CLEARED, 0.0)
        matrices = np.where(random.random(matrices.shape) < thinned[:, :, np.newaxis], 0, matrices)
        free = (self.room - matrices.sum(axis=1) > 0)[:, np.newaxis, :] & np.ones(matrices.shape, dtype=bool)
        anywhere, more = (
            mask / np.maximum(mask.sum(axis=1, keepdims=True), 1) for mask in (free, free & (matrices > 0))
        )  # on each node one job on average gets more, and one of those that are there
        grown = random.random(matrices.shape) < anywhere + more - anywhere * more
        upper = np.maximum(np.broadcast_to(self.room, matrices.shape), matrices)
        return np.where(grown, random.integers(matrices, upper + 1), matrices)

    def _repaired(self, matrices: Matrices) -> Matrices:
        """Make allocations legal: free GPUs, allowed sizes, one multi-node job per node."""
        matrices = matrices.copy()
        spread = (np.count_nonzero(matrices, axis=2) > 1)[:, :, np.newaxis] & (matrices > 0)
        matrices[spread & (np.cumsum(spread, axis=1) > 1)] = 0
        order = np.argsort(self.random.random(matrices.shape), axis=2)
        mixed = np.take_along_axis(matrices, order, axis=2)
        mixed = np.minimum(np.cumsum(mixed, axis=2), self.limits[:, np.newaxis])
        np.put_along_axis(matrices, order, np.diff(mixed, axis=2, prepend=0), axis=2)
        matrices = np.diff(np.minimum(np.cumsum(matrices, axis=1), self.room), axis=1, prepend=0)
        sizes = self.sizes[np.arange(len(self.jobs)), matrices.sum(axis=2)]
        return np.diff(np.minimum(np.cumsum(matrices, axis=2), sizes[:, :, np.newaxis]), axis=2, prepend=0)
