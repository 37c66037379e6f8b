"""Elastic jobs: each further device goes to the job that gains most by it."""

import math
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Annotated, Any

from pydantic import Field

from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, Stop, View, Wait

Interval = Annotated[Seconds, Field(gt=0)]

SLOWEST = 1e-9  # minimum rate of a mode, relative to the fastest

ROUND_COST = 3e-6  # seconds that a waiting job of several sizes adds to a round (docs/speed.md)

Sizes = dict[str, list[Mode]]  # By type, fastest type first: ascending sizes of a job, each faster than all before
Entry = tuple[Any, float, int, Task]  # (key, tie-breaker, row, job)


@dataclass(frozen=True)
class GrowthStep:
    """A possible growth of a job from mode `here` to `there`, by `more` GPUs."""

    task: Task
    here: Mode
    there: Mode
    more: float


class Wishes:
    """Possible growth steps of jobs; the step with the largest gain is first.

    If gains are equal, the step of the job with the lowest task index is first; a subclass may define another order.
    """

    def __init__(self, elastic: "Elastic", left: dict[int, float]):
        self._elastic, self._left = elastic, left
        self._heap: list[tuple[float, int, int, GrowthStep]] = []
        self._count = 0

    def add(self, step: GrowthStep) -> None:
        row = step.task.index
        self._count += 1
        heappush(self._heap, (-self._elastic.gain(step, self._left[row]), row, self._count, step))

    def take(self) -> GrowthStep | None:
        return heappop(self._heap)[-1] if self._heap else None


class Elastic(Scheduler):
    """Base of elastic schedulers: allocate GPUs step by step, then resize jobs.

    A job's modes are its sizes (1, 2, 4, 8 GPUs, with times from `scaling`), whose speeds are estimates.  The papers
    have one type of GPU.  Here each type is allocated separately: of the types with room, a job gets its smallest size
    on the type where this size is fastest.  Its next step is the next faster size on the same type, or on another type,
    in which case it releases its present GPUs.  A gain is always per GPU of the type that the step occupies.  A job
    uses accelerators only if its fastest mode does, otherwise cores only.  Cost: O(steps × log jobs) per allocation,
    with at most as many steps as GPUs and types allow, plus the stops and starts; if each job has one size, a pass over
    the running jobs in each round in which a waiting job fits or a running job may be stopped.

    Jobs get their smallest size in the order of `first`; then each further step goes to the job with the largest
    `gain`.
    """

    def __init__(self, interval: Interval = 600.0):
        self.interval = interval
        self._total: dict[str, float] = {}
        self._sizes: dict[int, Mode] = {}  # the mode in which a running job was started, by row
        self._next = -math.inf  # when running jobs may be resized again
        self._idle: dict[str, float] = {}  # by type: GPUs that no running job holds, less those just given to others
        self._jobs: int = 1
        self._of: dict[int, Sizes] = {}  # by row: the sizes of a job
        self._speeds: dict[int, dict[Mode, float]] = {}  # by row: the speeds of a job's modes
        self._rigid = RigidJobs()  # waiting jobs that have one size
        self._elastic: dict[int, None] = {}  # rows of all others that wait or run
        self._whole = True  # true if all sizes have been whole numbers

    def round_cost(self, problem: PlanProblem) -> float:
        """Return decision time (wall-clock s) per waiting job and round; 0: fixed sizes."""
        for shape in problem.tasks.shapes:
            there = [mode for mode in shape.modes if mode.type.name in problem.cluster.types]
            on_cpu = sum(mode.on_cpu for mode in there)
            if max(on_cpu, len(there) - on_cpu) > 1:
                return ROUND_COST
        return 0.0

    def begin(self, view: View) -> None:
        for device in view.cluster.devices:
            kind, cores = device.type, view.cluster.nodes[device.node].cpus
            self._total[kind.name] = self._total.get(kind.name, 0) + (cores if kind.kind == "cpu" else kind.streams)

    def finished(self, task: Task) -> None:
        self._sizes.pop(task.index, None)
        self._of.pop(task.index, None)
        self._speeds.pop(task.index, None)
        self._elastic.pop(task.index, None)
        self._rigid.remove(task)

    gone = finished

    def ready(self, task: Task) -> None:
        self.finished(task)  # if it was stopped
        self._speeds[task.index] = {
            mode: max(SLOWEST, task.shortest_estimate / own) if (own := task.estimate_in(mode)) > 0 else 1.0
            for mode in task.modes
        }
        sizes = self._of[task.index] = self._find_sizes(task)
        modes = [mode for of_type in sizes.values() for mode in of_type]
        self._whole = self._whole and all(mode.width == int(mode.width) for mode in modes)
        if len(modes) == 1:
            self._rigid.add(task, modes[0], self.first(task, task.shortest_remaining))
        else:
            self._elastic[task.index] = None

    def first(self, task: Task, left: float) -> Any:
        """Return a job's sort key for getting its minimum size; the lowest key is first.

        `left`: estimated remaining time in the fastest mode.
        """
        return left

    def gain(self, step: GrowthStep, left: float) -> float:
        """Return the priority of a growth step: the job's gain per GPU added.

        Each policy has its own measure of gain, such as seconds saved.  left: estimated remaining seconds in the
        fastest mode.
        """
        raise NotImplementedError

    def wishes(self, left: dict[int, float]) -> Wishes:
        return Wishes(self, left)

    def speed(self, task: Task, mode: Mode) -> float:
        """Rate of a mode relative to the fastest; above 0 if the fastest takes no time."""
        return self._speeds[task.index][mode]

    def sizes(self, task: Task) -> Sizes:
        """Return the possible sizes of a job, on types that the cluster has."""
        return self._of[task.index]

    def _find_sizes(self, task: Task) -> Sizes:
        modes = [mode for mode in task.fastest_modes() if self._total.get(mode.type.name)]
        by_type: Sizes = {}
        for mode in sorted(modes, key=lambda mode: mode.width):
            if mode.on_cpu == modes[0].on_cpu:
                sizes = by_type.setdefault(mode.type.name, [])
                if not sizes or self.speed(task, mode) > self.speed(task, sizes[-1]):
                    sizes.append(mode)
        order = {mode.type.name: number for number, mode in reversed([*enumerate(modes)])}
        return dict(sorted(by_type.items(), key=lambda entry: order[entry[0]]))

    def smallest(self, task: Task, sizes: Sizes) -> list[Mode]:
        """Return the minimum size on each type, fastest type first.

        At ties the job's present type is first, to avoid needless moves, then the type with most idle GPUs.
        """
        if len(sizes) == 1:
            return [of_type[0] for of_type in sizes.values()]
        own = self._sizes.get(task.index)
        there = None if own is None else own.type

        def slowness(mode: Mode) -> tuple[float, bool, float]:
            return -self.speed(task, mode), mode.type is not there, -self._idle.get(mode.type.name, 0.0)

        return sorted((of_type[0] for of_type in sizes.values()), key=slowness)

    def allocate(self, jobs: list[Task], view: View) -> dict[int, Mode]:
        """Choose the size of each job that gets devices."""
        free = dict(self._total)
        self._idle = dict(self._total)
        for mode in self._sizes.values():
            self._idle[mode.type.name] -= mode.width
        self._jobs = max(1, len(jobs))
        remaining = {task.index: view.remaining(task) for task in jobs}
        for task in jobs:
            if (own := self._sizes.get(task.index)) is not None:  # `remaining` is in its mode
                remaining[task.index] *= self.speed(task, own)
        sizes = {task.index: self.sizes(task) for task in jobs}
        chosen: dict[int, Mode] = {}
        wishes = self.wishes(remaining)
        waiting = sorted(jobs, key=lambda task: (self.first(task, remaining[task.index]), task.arrival, task.index))
        waiting = self._begin_all(waiting, sizes, free, chosen=chosen, wishes=wishes)
        too_wide: dict[str, list[GrowthStep]] = {}  # by type: steps for which there is no room
        while (step := wishes.take()) is not None:
            row, name, old = step.task.index, step.there.type.name, step.here.type.name
            if chosen[row] is not step.here:
                continue  # the job has made another step instead
            if step.more > free[name]:
                too_wide.setdefault(name, []).append(step)
                continue
            free[name] -= step.more
            chosen[row] = step.there
            for further in self._steps(step.task, step.there, sizes[row]):
                wishes.add(further)
            if old != name:
                free[old] += step.here.width
                waiting = self._begin_all(waiting, sizes, free, chosen=chosen, wishes=wishes)
                for other in too_wide.pop(old, ()):
                    wishes.add(other)
        return chosen

    def _begin_all(
        self, jobs: list[Task], sizes: dict[int, Sizes], free: dict[str, float], chosen: dict[int, Mode], wishes: Wishes
    ) -> list[Task]:
        """Give each job its smallest size while devices last; return the jobs without one.

        Updates the devices left by type (`free`), the sizes (`chosen`) and the steps by which jobs may grow (`wishes`).
        """
        none = []
        for task in jobs:
            smallest = self.smallest(task, sizes[task.index])
            mode = next((mode for mode in smallest if mode.width <= free[mode.type.name]), None)
            if mode is None:
                none.append(task)
                continue
            free[mode.type.name] -= mode.width
            if task.index not in self._sizes:
                self._idle[mode.type.name] -= mode.width
            chosen[task.index] = mode
            for step in self._steps(task, mode, sizes[task.index]):
                wishes.add(step)
        return none

    def _steps(self, task: Task, here: Mode, sizes: Sizes) -> Iterator[GrowthStep]:
        now = self.speed(task, here)
        for name, of_type in sizes.items():
            if (there := next((mode for mode in of_type if self.speed(task, mode) > now), None)) is not None:
                yield GrowthStep(task, here, there, there.width - (here.width if name == here.type.name else 0))

    def schedule(self, view: View) -> Iterator[Decision]:
        if not (running := view.running("start", own=True)) and not view.num_waiting(own=True):
            return
        yield from self._resize(running, view) if self._elastic else self._order(running, view)
        yield Wait(until=self._next if self._next > view.now else math.inf)

    def _resize(self, running: list[Task], view: View) -> Iterator[Decision]:
        waiting = view.waiting(own=True)
        target = self.allocate(running + waiting, view)
        if view.now >= self._next:
            for task in running:
                if target.get(task.index) is not self._sizes.get(task.index) and task.shape.preemptible:
                    self._next = view.now + self.interval
                    yield Stop(task)
                    waiting.append(task)
        waiting.sort(key=lambda task: (-target[task.index].width if task.index in target else 0.0, task.arrival))
        started: dict[int, None] = {}
        for task, modes in self._attempts(waiting, target):
            for mode in () if task.index in started else modes:
                if (placement := self._place(task, mode, view)) is not None:
                    started[task.index] = None
                    yield self._start(task, placement)
                    break

    def _order(self, running: list[Task], view: View) -> Iterator[Decision]:
        rigid = self._rigid
        due = view.now >= self._next and (len(rigid) > 0 or not self._whole)
        if not due and not any(map(view.fits, rigid.modes())):
            return
        keep, chosen = rigid.deal([self._entry(task, view) for task in running], dict(self._total))
        for task in running if due else ():
            if task.index not in keep and task.shape.preemptible:
                self._next = view.now + self.interval
                yield Stop(task)
        blocked: dict[Mode, None] = {}
        tried = dict.fromkeys(task.index for task in chosen)
        for task in rigid.widest_first(chosen):
            yield from self._try(task, blocked, view)
        for task in rigid.in_order(blocked):
            if task.index not in tried:
                yield from self._try(task, blocked, view)

    def _entry(self, task: Task, view: View) -> tuple[Any, float, int, Mode]:
        mode = self._sizes[task.index]
        remaining = view.remaining(task) * self._speeds[task.index][mode]
        return self.first(task, remaining), task.arrival, task.index, mode

    def _try(self, task: Task, blocked: dict[Mode, None], view: View) -> Iterator[Decision]:
        mode = next(iter(self._of[task.index].values()))[0]
        if mode in blocked:
            return
        if (placement := self._place(task, mode, view)) is not None:
            yield self._start(task, placement)
        elif view.first(mode) is None:
            blocked[mode] = None

    def _place(self, task: Task, mode: Mode, view: View) -> Placement | None:
        placement = view.first(mode)
        if placement is not None and not view.holds(task, placement):
            return next(iter(view.options(task, mode)), None)
        return placement

    def _start(self, task: Task, placement: Placement) -> Start:
        self._sizes[task.index] = placement.mode
        self._rigid.remove(task)
        return Start(task, placement)

    def _attempts(self, waiting: list[Task], target: dict[int, Mode]) -> Iterator[tuple[Task, list[Mode]]]:
        """Yield jobs with modes to try: chosen sizes first, then sizes on other types."""
        elsewhere = []
        for task in waiting:
            if task.index in target:
                mode, sizes = target[task.index], self.sizes(task)
                # Where nodes are too broken up, a smaller size.
                yield task, [size for size in reversed(sizes[mode.type.name]) if size.width <= mode.width]
                others = [size for size in self.smallest(task, sizes) if size.type.name != mode.type.name]
                elsewhere.append((task, others))
        # Until its share is free on one type a job may run on another that others cannot use, and so may one that
        # gets no share.
        yield from elsewhere
        for task in waiting:
            if task.index not in target:
                yield task, self.smallest(task, self.sizes(task))


# Waiting jobs with one size each, by mode, so that a round visits only jobs that may get devices.  Cost: O(log n) per
# change; a round takes the first jobs of each mode until no mode has room.


class RigidJobs:
    """Waiting jobs with one mode each; by mode, sorted by priority key and by arrival."""

    def __init__(self) -> None:
        self._by_key: dict[Mode, list[Entry]] = {}
        self._by_arrival: dict[Mode, list[Entry]] = {}
        self._entries: dict[int, tuple[Mode, Entry, Entry]] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._entries)

    def modes(self) -> Iterable[Mode]:
        return self._by_key.keys()

    def add(self, task: Task, mode: Mode, key: Any) -> None:
        self._came += 1
        by_key, by_arrival = (key, task.arrival, task.index, task), (task.arrival, self._came, task.index, task)
        self._entries[task.index] = mode, by_key, by_arrival
        insort(self._by_key.setdefault(mode, []), by_key)
        insort(self._by_arrival.setdefault(mode, []), by_arrival)

    def remove(self, task: Task) -> None:
        if (removed := self._entries.pop(task.index, None)) is None:
            return
        mode, *entries = removed
        for by_mode, entry in zip((self._by_key, self._by_arrival), entries, strict=True):
            jobs = by_mode[mode]
            del jobs[bisect_left(jobs, entry)]
            if not jobs:
                del by_mode[mode]

    def deal(
        self, running: list[tuple[Any, float, int, Mode]], free: dict[str, float]
    ) -> tuple[dict[int, None], list[Task]]:
        """Give devices to running and waiting jobs in the order of their keys.

        running: (key, arrival, row, mode).  free: devices by type.  Return the rows of running jobs that keep their
            devices, and the waiting jobs that get devices.
        """
        keep: dict[int, None] = {}
        chosen: list[Task] = []
        lines = [(mode.width, mode.type.name, jobs) for mode, jobs in self._by_key.items()]
        heads = [(jobs[0], number, 0) for number, (_, _, jobs) in enumerate(lines)]
        heapify(heads)
        for mine in [*sorted(running, key=lambda entry: entry[:3]), None]:
            while heads and (mine is None or heads[0][0][:3] < mine[:3]):
                entry, number, place = heads[0]
                width, kind, jobs = lines[number]
                if width > free[kind]:
                    heappop(heads)
                    continue
                free[kind] -= width
                chosen.append(entry[-1])
                if place + 1 < len(jobs):
                    heapreplace(heads, (jobs[place + 1], number, place + 1))
                else:
                    heappop(heads)
            if mine is not None and (width := mine[3].width) <= free[kind := mine[3].type.name]:
                free[kind] -= width
                keep[mine[2]] = None
        return keep, chosen

    def widest_first(self, chosen: Iterable[Task]) -> list[Task]:
        entries = [self._entries[task.index] for task in chosen]
        return [by_arrival[-1] for _, _, by_arrival in sorted(entries, key=lambda one: (-one[0].width, one[2][:3]))]

    def in_order(self, blocked: Container[Mode]) -> Iterator[Task]:
        """Yield jobs of unblocked modes, by arrival; removing jobs meanwhile is allowed."""
        lines = {number: (mode, list(jobs)) for number, (mode, jobs) in enumerate(self._by_arrival.items())
                 if mode not in blocked}  # fmt: skip
        heads = [(jobs[0], number, 0) for number, (_, jobs) in lines.items()]
        heapify(heads)
        while heads:
            entry, number, place = heads[0]
            mode, jobs = lines[number]
            if mode not in blocked:
                yield entry[-1]
            if mode not in blocked and place + 1 < len(jobs):
                heapreplace(heads, (jobs[place + 1], number, place + 1))
            else:
                heappop(heads)


class Optimus(Elastic):
    """Optimus: the next GPU is given to the job whose remaining time it shortens most.

    Decides the size of elastic jobs, and when they are resized.  Every job first gets its smallest size, the shortest
    job first; then sizes grow where the time saved per added GPU is largest.
    Reference: Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters (2018), its
    marginal gains; the online fit of convergence and speed curves is replaced by the estimates.  Several types of GPU
    are an extension (see `hetsim_policies.dynamic.elastic`).
    Weakness: long jobs save most, so they grow first, and short jobs remain at their smallest size.
    Cost: O(steps × log jobs) per allocation, and the stops and starts.

    interval: seconds in which running jobs are resized at most once.
    """

    def gain(self, step: GrowthStep, left: float) -> float:
        now, then = self.speed(step.task, step.here), self.speed(step.task, step.there)
        return (left / now - left / then) / step.more


class Afs(Elastic):
    """Apathetic future share: GPUs for short jobs, unless a longer job gains more.

    Decides the size of elastic jobs, and when they are resized.  Every job first gets its smallest size, the shortest
    job first.  Each further step is given to the winner of pairwise comparisons.  Let a be the job with less time left
    at its present size, b the other job, p a job's present speed, and p' its speed with one more GPU: b wins if (p'_b -
    p_b) / p'_b > (p'_a - p_a) / p_a, otherwise a.
    Reference: Hwang, Kim, Kim, Shin, Park, Elastic Resource Sharing for Distributed Deep Learning (NSDI 2021): AFS-L,
    the rule for known durations.  If b gets the GPU at the latest when a ends, this choice minimizes the mean response
    of the two.  In the paper sizes grow by one GPU; here the gain of a larger step is divided equally among its GPUs.
    Several types of GPU are an extension (see `hetsim_policies.dynamic.elastic`).
    Weakness: the rule is not transitive, so the order of comparisons matters (here from the shortest job on); wrong
    estimates mislead it.  Cost: a pass over the jobs per growth step, and the stops and starts.

    interval: seconds in which running jobs are resized at most once.
    """

    def first(self, task: Task, left: float) -> float:
        return left / self.speed(task, self.smallest(task, self.sizes(task))[0])

    def wishes(self, left: dict[int, float]) -> Wishes:
        return Duels(self, left)

    def gain(self, step: GrowthStep, left: float) -> float:
        """Relative gain in speed per GPU that the step adds."""
        now, then = self.speed(step.task, step.here), self.speed(step.task, step.there)
        return (then - now) / now / step.more


class Duels(Wishes):
    """Choose which job gets more GPUs next, by comparing jobs in pairs (see `Afs`)."""

    def __init__(self, afs: Afs, left: dict[int, float]):
        self._afs, self._left = afs, left
        # (time left at the present size, row, -gain, count, step): a job's best step is first
        self._steps: list[tuple[float, int, float, int, GrowthStep]] = []
        self._count = 0

    def add(self, step: GrowthStep) -> None:
        remaining = self._left[step.task.index]
        now = remaining / self._afs.speed(step.task, step.here)
        self._count += 1
        insort(self._steps, (now, step.task.index, -self._afs.gain(step, remaining), self._count, step))

    def take(self) -> GrowthStep | None:
        if not self._steps:
            return None
        winner, top_loss = 0, -self._steps[0][2]
        met = self._steps[0][1]
        for place, (_, row, loss, _, _) in enumerate(self._steps):
            # p' = p (1 + gain), so that the gain over p' is gain / (1 + gain).
            if row != met and -loss / (1 - loss) > top_loss:
                winner, top_loss = place, -loss
            met = row
        return self._steps.pop(winner)[-1]


class SpeedupMean(Elastic):
    """Greedy sizes of elastic jobs for Pollux's objective, a power mean of speedups.

    Decides the size of elastic jobs, and when they are resized.  It maximizes the power mean, with exponent `fairness`,
    of the jobs' speeds, each relative to the job's speed on a fair share of the cluster.  With an exponent towards
    minus infinity only the slowest job counts.
    Reference: Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (2021).  Pollux
    also places GPUs by a genetic search (`pollux`) and adapts batch sizes; here sizes grow greedily by the gain in the
    sum of powers; this is optimal, except for the last step, if speeds are concave.  Several types of GPU are an
    extension (see `hetsim_policies.dynamic.elastic`).
    Weakness: it ignores the time left, so short jobs are treated as long ones.
    Cost: O(steps × log jobs) per allocation, and the stops and starts.

    fairness: the exponent, below 0.
    interval: seconds in which running jobs are resized at most once.
    """

    def __init__(self, fairness: Annotated[float, Field(lt=0, ge=-20)] = -1.0, interval: Interval = 600.0):
        super().__init__(interval)
        self.fairness = fairness

    def first(self, task: Task, left: float) -> float:
        return task.arrival

    def gain(self, step: GrowthStep, left: float) -> float:
        fair = self._fair_speed(step.task)
        now, then = self.speed(step.task, step.here) / fair, self.speed(step.task, step.there) / fair
        return float(now**self.fairness - then**self.fairness) / step.more

    def _fair_speed(self, task: Task) -> float:
        """Fastest speed on at most an equal share of GPUs; if too few, at minimum size."""
        sizes = self.sizes(task)
        share = sum(self._total[name] for name in sizes) / self._jobs
        within = [mode for of_type in sizes.values() for mode in of_type if mode.width <= share]
        return max(self.speed(task, mode) for mode in within or self.smallest(task, sizes)[:1])
