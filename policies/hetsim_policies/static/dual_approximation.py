"""Dual approximation for independent tasks on m CPUs and k GPUs, by bisection.

Decides the CPU or the GPU side and the lane (core or GPU) of every task, and proves how far from optimal the result can
be.
Reference: Kedad-Sidhoum, Monna, Mounié and Trystram, Scheduling Independent Tasks on Multi-cores with GPU
Accelerators (HeteroPar 2013; Concurrency and Computation 2015).

For a guess λ, the algorithm either builds a schedule of length at most (4/3)λ or proves that no schedule of length λ
exists.  A task is *long* on a side if it takes more than 2λ/3 there, *medium* if more than λ/3, else *small*.  In a
schedule of length λ a device runs at most one long or two medium tasks, the CPUs are busy for at most mλ and the GPUs
for at most kλ.  A dynamic program finds the assignment of minimum CPU area under three constraints on the numbers of
tasks and areas: ½·medium + long ≤ m on the CPUs, ½·medium + long ≤ k on the GPUs (if k ≥ 2), and a GPU area of at most
kλ, where each task's area is rounded down to units of δ = λ/(3n).  If its CPU area is above mλ, there is no schedule of
length λ.  Otherwise each side is scheduled by longest processing time first.

Ratio 4/3 for every k (published: 4/3 + 1/(3k) for k ≥ 2).  Proof: long and medium tasks are placed first, at most one
long or two medium tasks per device, so they end by 4λ/3.  Rounding down omits less than nδ = λ/3 of area.  So when a
small task of time s is placed, the GPUs' area without it is at most kλ + λ/3 - s, and the least loaded GPU has at most
(kλ + λ/3 - s)/k.  The task is placed there and ends by λ + λ/(3k) + s(1 - 1/k), which is at most 4λ/3 since s ≤ λ/3.
On the CPUs the area is exact, so the same bound holds.  A single GPU has at most λ + λ/3 of area, so it ends by 4λ/3.
If the unit δ is c times as large, nδ = cλ/3, and the same proof gives 4/3 + (c - 1)/(3k).

Speedups that keep the proof: the linear relaxation (`bounds.relaxation`) refuses most impossible guesses, and for other
guesses it proves the side of most tasks, so that the program contains only the other (free) tasks; most feasible
guesses are accepted because tasks split by p/q already give a schedule within 4λ/3; the program is first solved in
coarse units, where a refusal is still a proof, and in finer units only if it gives neither a refusal nor a schedule
within 4λ/3.
Improvements beyond the ratio: guesses are also refused by counting the tasks longer than λ/2, λ/3, ... (`counts`), and
the best schedule, that of list scheduling included, is improved by moving and exchanging tasks (`descend`).  Cost: O(n
log n) and some O(n) passes per guess if the split or the relaxation decides, otherwise O(n² m k²) for k ≥ 2 and O(n² m)
for k = 1, with n free tasks.  A program of more than `LARGEST` cells is coarsened; the ratio then proven is in the
plan's notes.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.optimize import linprog

from hetsim.errors import ScenarioError, refusal
from hetsim.model.plan import Plan
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.bounds import TOLERANCE, Relaxation, by_gain, linear_bound, relaxation
from hetsim_policies.static.common.flow_shop import ordered
from hetsim_policies.static.common.instance import Instance, instance_of, list_schedule
from hetsim_policies.static.common.outcome import planned

RATIO = 4 / 3
FIRST_UNITS = 64  # GPU area units of the first, coarse program
LARGEST = 30_000_000  # maximum cells (tasks × states) of a program: about 0.15 s
COUNTS = 6  # number of counting inequalities on each side
LINEAR_TOLERANCE = 1e-6  # Number of devices by which a linear program must fail: ten times the solver's tolerance
# Maximum number of free tasks for the linear program of counts; with more, areas are nearly as good
LARGEST_LINEAR = 2_000
PAIRS = 5_000_000  # maximum number of task pairs of one descent: about 50 ms


@dataclass(frozen=True)
class TwoSidedSchedule:
    """Side (CPUs or GPUs), lane (core or GPU) and start of every task."""

    on_gpu: np.ndarray
    lanes: np.ndarray
    starts: np.ndarray
    makespan: float


@dataclass(frozen=True)
class Solution:
    """A schedule and a proven bound: no schedule is shorter than `bound`.

    `guess` is the smallest accepted guess λ; the schedule's makespan is at most `guarantee` times `guess`.  `guarantee`
    is the ratio of the algorithm; it exceeds the requested ratio if the dynamic program was too large and had to be
    coarsened.  `ratio` is the ratio that this schedule and bound prove, at most `guarantee`.  `guesses` is the number
    of guesses.
    """

    schedule: TwoSidedSchedule
    bound: float
    guarantee: float
    guesses: int
    guess: float

    @property
    def makespan(self) -> float:
        return self.schedule.makespan

    @property
    def ratio(self) -> float:
        """Upper bound of makespan / optimum."""
        return self.makespan / self.bound if self.bound > 0 else 1.0


class DualApproximation(PlannedScheduler):
    """Dual approximation of independent tasks on CPUs and one GPU type.

    The algorithm is that of Kedad-Sidhoum, Monna, Mounié, Trystram (2013).

    It plans as if all tasks were present at time 0; if tasks arrive at different times, each lane (core or GPU) waits
    for its next task.  Then, and also if it plans during a run (`rest_of_two_types`), the bound is valid, but no ratio
    is guaranteed.  On accelerators with one stream and their own links, the times include uploads and downloads, and
    ratio and bound hold.  With several streams the plan uses the time of a task's longest stage, and no ratio is
    guaranteed.
    ratio: proven ratio of makespan to optimum, 4/3 or more; a larger ratio needs less computation.
    tolerance: the bisection stops at this relative precision of the guess.
    """

    def __init__(
        self,
        ratio: Annotated[float, Field(ge=RATIO - TOLERANCE, allow_inf_nan=False)] = RATIO,
        tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3,
    ):
        super().__init__()
        _check_parameters(ratio, tolerance)
        self.ratio = ratio
        self.tolerance = tolerance

    def plan(self, problem: PlanProblem) -> Plan:
        instance = instance_of(problem, "dual_approximation")
        sides: dict[bool, int] = {}
        for number, kind in enumerate(instance.types):
            if sides.setdefault(kind.kind == "cpu", number) != number:
                names = ", ".join(kind.name for kind in instance.types)
                raise refusal(f"dual_approximation plans for one CPU and one GPU type; the cluster has {names}")
        if problem.tasks.predecessors and any(problem.tasks.predecessors):
            raise refusal("dual_approximation plans independent tasks; these have predecessors")
        impossible = np.full(instance.size, np.inf)
        p, q = (instance.time[:, sides[cpu]] if cpu in sides else impossible for cpu in (True, False))
        m, k = (instance.counts[sides[cpu]] if cpu in sides else 0 for cpu in (True, False))
        if instance.free is not None:
            both = [sides.get(True), sides.get(False)]
            return rest_of_two_types(instance, p, q, kinds=both, solve=lambda p, q: self._solve(p, q, m, k))
        solution = self._solve(p, q, m, k)
        best = solution.schedule
        order = np.argsort(best.starts, kind="stable").tolist()
        placed = [(task, sides[not best.on_gpu[task]], int(best.lanes[task])) for task in order]
        plan = planned(instance, ordered(instance, placed), solution.bound, solution.guarantee)
        plan.notes |= {"guesses": solution.guesses, "guess": solution.guess}
        return plan

    def _solve(self, p: np.ndarray, q: np.ndarray, m: int, k: int) -> Solution:
        return solve(p, q, m, k=k, ratio=self.ratio, tolerance=self.tolerance)


def solve(p: np.ndarray, q: np.ndarray, m: int, k: int, ratio: float = RATIO, tolerance: float = 1e-3) -> Solution:
    """Bisect on a guess λ of the makespan; return the best schedule and a lower bound.

    p, q: seconds of each task on a CPU, on a GPU; m, k: number of CPUs, of GPUs.  A guess is accepted if `attempt`
    returns a schedule, and refuted if it proves that no schedule has length λ.  `bound`: the largest refuted λ, or the
    bound of a linear relaxation.  `guess`: the smallest accepted λ.  The makespan is at most `guarantee` times the
    optimum.  `guarantee` is ratio·(1 + tolerance), or more if the dynamic program for `ratio` is too large.
    """
    p, q = _checked(p, q, m, k)
    _check_parameters(ratio, tolerance)
    low = linear_bound(p, q, m, k)
    best = shortest(descend(p, q, m, k=k, schedule=rival, enough=low * (1 + tolerance)) for rival in rivals(p, q, m, k))
    low, high = min(low, best.makespan), best.makespan
    order = by_gain(p, q)
    guesses = 0
    while high > low * (1 + tolerance):
        guess = math.sqrt(low * high)
        if low and not low < guess < high:  # neighboring numbers
            break
        guesses += 1
        if (schedule := attempt(p, q, m, k=k, guess=guess, ratio=ratio, order=order, known=best)) is None:
            low = guess
            continue
        best = shortest([best, descend(p, q, m, k=k, schedule=schedule, enough=low * (1 + tolerance))])
        high = min(guess, best.makespan)
    guarantee = max(RATIO, best.makespan / high if high > 0 else 1.0) * (1 + tolerance)
    return Solution(best, low, guarantee, guesses=guesses, guess=high)


def attempt(
    p: np.ndarray, q: np.ndarray, m: int, k: int, guess: float, ratio: float, order: np.ndarray, known: TwoSidedSchedule
) -> TwoSidedSchedule | None:
    """Return a schedule for a guess of the makespan; None: no schedule is that short.

    p, q: seconds of each task on a CPU, on a GPU; m, k: number of CPUs, of GPUs. order: tasks by decreasing p/q.  The
    makespan is at most `ratio` × `guess`, with two exceptions: `known`, the best schedule so far, is already that
    short, or the dynamic program is too large to be solved in fine units.
    """
    relaxed = relaxation(p, q, m, k=k, guess=guess, order=order)
    if relaxed is None or counting_refuses(p, q, m, k=k, guess=guess, relaxed=relaxed):
        return None
    schedule = longest_first(p, q, m, k=k, on_gpu=relaxed.cut)
    if schedule.makespan <= ratio * guess:
        return schedule
    shelves = Shelves(p, q, m, k=k, guess=guess, relaxed=relaxed)
    finest = shelves.units(coarseness=1 + 3 * k * max(0.0, ratio - RATIO))
    last = max(1, min(finest, LARGEST // shelves.cells_a_unit))
    units = min(FIRST_UNITS, last)
    while (on_gpu := shelves.assignment(units)) is not None:
        schedule = longest_first(p, q, m, k=k, on_gpu=on_gpu)
        if min(schedule.makespan, known.makespan) <= ratio * guess or units == last:
            return schedule
        units = min(8 * units, last)
    return None


def counting_refuses(p: np.ndarray, q: np.ndarray, m: int, k: int, guess: float, relaxed: Relaxation) -> bool:
    """Return True if a guess is too short because of the numbers of long tasks.

    The program of `relaxation` is solved with limits on these numbers (`counts`), too.  This refuses more guesses than
    the sum of times alone: three tasks of 0.4 λ (λ: the guess) need two devices, although their sum is only 1.2 λ.
    """
    free, limit = relaxed.free, guess * (1 + TOLERANCE)
    if len(free) > LARGEST_LINEAR:
        return False
    on_cpu, on_gpu = p[free] / limit, q[free] / limit
    rows = [on_cpu, -on_gpu]
    room = [m - p[relaxed.cpu].sum() / limit, k - q[relaxed.gpu].sum() / limit - on_gpu.sum()]
    for s in range(1, COUNTS + 1):
        fixed = counts(p[relaxed.cpu] / limit, s).sum(), counts(q[relaxed.gpu] / limit, s).sum()
        rows += [counts(on_cpu, s), -counts(on_gpu, s)]
        room += [m - fixed[0], k - fixed[1] + rows[-1].sum()]
    matter = [i for i, row in enumerate(rows) if i < 2 or row.any() or room[i] < 0]
    if len(matter) == 2:
        return False
    if not len(free):
        return min(room) < -LINEAR_TOLERANCE
    bound = np.array(room)[matter] + LINEAR_TOLERANCE
    return linprog(np.zeros(len(free)), A_ub=np.array(rows)[matter], b_ub=bound, bounds=(0, 1)).status == 2


def counts(part: np.ndarray, s: int) -> np.ndarray:
    """Return ⌊(s+1)x⌋/s for each task: weights that sum to at most 1 on one device.

    part: the x of each task, its time divided by the guess λ of the makespan.  s = 1: tasks longer than λ/2 weigh 1; s
    = 2: tasks longer than 2λ/3 weigh 1, others longer than λ/3 weigh ½.  Proof: the x of the tasks on one device sum to
    at most 1, and (s+1)x is reduced by a tolerance before it is rounded down.  So the reduced (s+1)x sum to less than s
    + 1, the rounded numbers to at most s, and the weights to at most 1.
    (Dual feasible functions: Fekete and Schepers, New Classes of Fast Lower Bounds for Bin Packing Problems, 2001.)
    """
    return np.maximum(np.floor(part * (s + 1) - TOLERANCE), 0.0) / s


class Shelves:
    """The dynamic program for one guess of the makespan.

    It assigns the tasks that a linear program (`relaxation`) left open.
    State: the capacity that the tasks considered so far may use: weight on CPUs, weight on GPUs, units of GPU time.  A
    long task has weight 2 and a medium task weight 1 (the constraint ½·medium + long ≤ m is used as medium + 2·long ≤
    2m).  Value: minimum CPU area, inf if there is no assignment.  A component of the state that cannot limit the
    assignment is omitted.
    """

    def __init__(self, p: np.ndarray, q: np.ndarray, m: int, k: int, guess: float, relaxed: Relaxation):
        fixed_cpu, fixed_gpu, free = relaxed.cpu, relaxed.gpu, relaxed.free
        self.p, self.free, self.fixed_gpu = p, free, fixed_gpu
        limit = guess * (1 + TOLERANCE)
        self.on_cpu, self.on_gpu = weights(p, limit), weights(q, limit)
        self.cpu_weight = 2 * m - int(self.on_cpu[fixed_cpu].sum())
        self.gpu_weight = 2 * k - int(self.on_gpu[fixed_gpu].sum()) if k >= 2 else 0
        if k < 2 or self.gpu_weight >= self.on_gpu[free].sum():
            self.on_gpu = np.zeros_like(self.on_gpu)
            self.gpu_weight = 0
        if self.cpu_weight >= self.on_cpu[free].sum():
            self.on_cpu = np.zeros_like(self.on_cpu)
            self.cpu_weight = 0
        self.gpu_time = q[free]
        self.gpu_area = k * limit - float(q[fixed_gpu].sum())
        self.cpu_area = m * limit - float(p[fixed_cpu].sum())
        self.guess = guess

    @property
    def cells_a_unit(self) -> int:
        return max(1, len(self.free)) * (max(self.cpu_weight, 0) + 1) * (max(self.gpu_weight, 0) + 1)

    def units(self, coarseness: float) -> int:
        """Number of units into which the GPU time not yet assigned to tasks is divided."""
        return max(1, math.ceil(3 * len(self.free) * self.gpu_area / (self.guess * coarseness)))

    def assignment(self, units: int) -> np.ndarray | None:
        """Return a mask of GPU tasks with least CPU work; None: makespan guess too low."""
        if min(self.cpu_weight, self.gpu_weight, self.gpu_area) < 0:
            return None
        unit = self.gpu_area / units
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            parts = np.where(self.gpu_time > 0, self.gpu_time / unit * (1 - TOLERANCE), 0.0)
        area = np.minimum(parts, units + 1).astype(np.int64)  # rounded down
        best = np.zeros((self.cpu_weight + 1, self.gpu_weight + 1, units + 1))
        chosen: list[np.ndarray] = []
        for task, n in zip(self.free.tolist(), area.tolist(), strict=True):
            u, v = int(self.on_cpu[task]), int(self.on_gpu[task])
            after = np.full_like(best, np.inf)
            np.add(best[: len(best) - u], self.p[task], out=after[u:])
            better = np.zeros(best.shape, dtype=bool)
            if n <= units and v <= self.gpu_weight:
                there = best[:, : self.gpu_weight + 1 - v, : units + 1 - n]
                np.less(there, after[:, v:, n:], out=better[:, v:, n:])
                np.minimum(there, after[:, v:, n:], out=after[:, v:, n:])
            best = after
            chosen.append(np.packbits(better))
        return None if best[-1, -1, -1] > self.cpu_area else self._back(chosen, area, best.shape)

    def _back(self, chosen: list[np.ndarray], area: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        gpu = self.fixed_gpu.copy()
        u, v, n = (size - 1 for size in shape)
        for i in range(len(chosen) - 1, -1, -1):
            task = self.free[i]
            cell = (u * shape[1] + v) * shape[2] + n
            if chosen[i][cell >> 3] >> (7 - (cell & 7)) & 1:
                gpu[task] = True
                v, n = v - int(self.on_gpu[task]), n - int(area[i])
            else:
                u -= int(self.on_cpu[task])
        return gpu


def weights(time: np.ndarray, guess: float) -> np.ndarray:
    """Return 2 for tasks longer than 2/3 of `guess`, 1 above 1/3, else 0."""
    return (time > guess / 3).astype(np.int64) + (time > 2 * guess / 3)


def longest_first(p: np.ndarray, q: np.ndarray, m: int, k: int, on_gpu: np.ndarray) -> TwoSidedSchedule:
    """Longest processing time first on each side of an assignment."""
    time = np.where(on_gpu, q, p)
    order = np.argsort(-time, kind="stable")
    starts, lanes = list_schedule(time, m, order[~on_gpu[order]].tolist())
    gpu_starts, gpu_lanes = list_schedule(time, k, order[on_gpu[order]].tolist())
    starts, lanes = np.where(on_gpu, gpu_starts, starts), np.where(on_gpu, gpu_lanes, lanes)
    return TwoSidedSchedule(on_gpu, lanes, starts, float(np.max(starts + time, initial=0.0)))


def shortest(schedules: Iterable[TwoSidedSchedule]) -> TwoSidedSchedule:
    return min(schedules, key=lambda schedule: schedule.makespan)


def descend(
    p: np.ndarray, q: np.ndarray, m: int, k: int, schedule: TwoSidedSchedule, enough: float
) -> TwoSidedSchedule:
    """Move or exchange tasks of the core or GPU that ends last, to let it end earlier.

    It stops at a local optimum, at a makespan of at most `enough`, or after `PAIRS` pairs of tasks.
    """
    n = len(p)
    if schedule.makespan <= enough:
        return schedule
    lane = schedule.lanes + np.where(schedule.on_gpu, m, 0)
    time = (np.ascontiguousarray(p), np.ascontiguousarray(q))
    side = (np.arange(m + k) >= m).astype(np.int64).tolist()
    on_gpu = lane >= m
    taken = np.where(on_gpu, q, p)  # by each task where it is
    load = np.zeros(m + k)
    np.add.at(load, lane, taken)
    budget = PAIRS
    while True:
        longest = int(load.argmax())
        goal = load[longest] * (1 - TOLERANCE)
        mine = np.flatnonzero(lane == longest)
        budget -= len(mine) * n
        if goal <= enough or budget < 0:
            break
        own, p_mine, q_mine = taken[mine], p[mine], q[mine]
        leasts = [
            part.start + int(load[part].argmin()) for part in (slice(0, m), slice(m, m + k)) if part.stop > part.start
        ]
        moved = np.column_stack([load[to] + (q_mine if side[to] else p_mine) for to in leasts])
        # after[i, j]: the longer of the two lanes when task mine[i] and task j change places
        here = (load[longest] - own)[:, None] + time[side[longest]]
        there = np.where(on_gpu, q_mine[:, None], p_mine[:, None])
        there += load[lane] - taken
        after = np.maximum(here, there, out=there)
        after[:, mine] = np.inf
        best_move, best_swap = float(moved.min()), float(after.min())
        if min(best_move, best_swap) >= goal:
            break
        if best_move <= best_swap:
            i, j = divmod(int(moved.argmin()), len(leasts))
            changes = [(int(mine[i]), leasts[j])]
        else:
            i, j = divmod(int(after.argmin()), n)
            changes = [(int(mine[i]), int(lane[j])), (j, longest)]
        for task, to in changes:
            load[lane[task]] -= taken[task]
            taken[task] = time[side[to]][task]
            load[to] += taken[task]
            lane[task], on_gpu[task] = to, bool(side[to])
    return shortest([schedule, sequenced(p, q, m, lane)])  # the loads above carry rounding


def sequenced(p: np.ndarray, q: np.ndarray, m: int, lane: np.ndarray) -> TwoSidedSchedule:
    """Return the schedule in which each device runs its tasks longest first.

    p, q: times on a CPU and on a GPU; lane: each task's device (0 to m - 1: CPUs, then the GPUs).
    """
    on_gpu = lane >= m
    time = np.where(on_gpu, q, p)
    order = np.lexsort((-time, lane))
    if not len(p):
        return TwoSidedSchedule(on_gpu, lane, time, 0.0)
    first = np.flatnonzero(np.diff(lane[order], prepend=-1))
    starts = np.empty(len(p))
    for begin, end in zip(first, [*first[1:], len(p)], strict=True):
        ends = np.cumsum(time[order[begin:end]])
        starts[order[begin:end]] = np.concatenate([[0.0], ends[:-1]])
    return TwoSidedSchedule(on_gpu, np.where(on_gpu, lane - m, lane), starts, float(np.max(starts + time, initial=0.0)))


def earliest_finish(p: np.ndarray, q: np.ndarray, m: int, k: int, order: np.ndarray) -> TwoSidedSchedule:
    """Assign tasks by earliest finish; redo CPUs and GPUs longest first if shorter."""
    cpus, gpus = [(0.0, lane) for lane in range(m)], [(0.0, lane) for lane in range(m, m + k)]
    lanes = np.zeros(len(p), dtype=np.int64)
    cpu_times, gpu_times = p.tolist(), q.tolist()
    for task in order.tolist():
        on_cpus = cpus[0][0] + cpu_times[task] if cpus else math.inf
        on_gpus = gpus[0][0] + gpu_times[task] if gpus else math.inf
        heap, end = (gpus, on_gpus) if on_gpus <= on_cpus else (cpus, on_cpus)
        lanes[task] = heap[0][1]
        heapq.heapreplace(heap, (end, heap[0][1]))
    return shortest([sequenced(p, q, m, lanes), longest_first(p, q, m, k=k, on_gpu=lanes >= m)])


def rivals(p: np.ndarray, q: np.ndarray, m: int, k: int) -> list[TwoSidedSchedule]:
    """Return three earliest-finish schedules to compare with, one per order of tasks."""
    shortest_time = np.minimum(p, q)
    mean = (m * p if m else 0.0) + (k * q if k else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.abs(np.log(p) - np.log(q))
    keys = (shortest_time, mean, np.where(np.isnan(acceleration), 0.0, acceleration))
    return [earliest_finish(p, q, m, k=k, order=np.argsort(-key, kind="stable")) for key in keys]


# Plans during a run, on two types of devices of which some are busy at first.
#
# A running task is given to the algorithm as a task that can run on its own side only.  Then the lanes of a side are
# renumbered so that each running task is first on its own lane; if two would share a lane, the tasks of the side are
# listed again, longest first.  The shorter schedule is used.  The algorithm's lower bound is valid, but not its ratio.
# Weakness: the algorithm assumes that all tasks are present.


def rest_of_two_types(
    instance: Instance, p: np.ndarray, q: np.ndarray, kinds: Sequence[int | None],
    solve: Callable[[np.ndarray, np.ndarray], Solution],
) -> Plan:  # fmt: skip
    """Plan the remaining tasks in mid-run; a running task first occupies its device.

    p, q: times of tasks on the two sides.  kinds: type of each side; None: the side does not exist.  solve: the
        algorithm, called with the times.  The makespan includes the running tasks.
    """
    problem = instance.problem
    assert instance.free is not None
    since = [np.empty(0) if kind is None else instance.free[kind] for kind in kinds]
    busy = [np.flatnonzero(times > problem.now) for times in since]
    until = [times[lanes] - problem.now for times, lanes in zip(since, busy, strict=True)]
    nowhere = [np.full(len(times), np.inf) for times in until]
    needs = np.concatenate([p, until[0], nowhere[1]]), np.concatenate([q, nowhere[0], until[1]])
    solution = solve(*needs)
    placed: list[tuple[float, int, int, int]] = []
    makespan = max(float(times.max(initial=0.0)) for times in until)
    size, first = instance.size, instance.size
    for side, (need, kind) in enumerate(zip(needs, kinds, strict=True)):
        if kind is None:
            continue
        tasks = np.flatnonzero(solution.schedule.on_gpu[:size] == bool(side))
        given = need, tasks, since[side], problem.tasks.arrival
        lanes = _renamed(solution.schedule.lanes, tasks, busy[side], first=first, count=len(since[side]))
        ways = [_spread(*given)] + ([] if lanes is None else [_spread(*given, lanes)])
        starts, chosen, end = min(ways, key=lambda way: way[2])
        placed += [(float(starts[task]), task, kind, int(chosen[task])) for task in tasks.tolist()]
        makespan = max(makespan, end - problem.now)
        first += len(busy[side])
    plan = planned(instance, ordered(instance, [entry[1:] for entry in sorted(placed)]))
    plan.makespan = max(makespan, plan.makespan or 0.0)  # a running task may end last
    if not instance.pipelined:
        plan.bound = min(solution.bound, plan.makespan)
        if placed and plan.bound > 0 and plan.notes["timetable"] == "exact":
            plan.notes["ratio_certified"] = plan.makespan / plan.bound
    return plan


def _renamed(lanes: np.ndarray, tasks: np.ndarray, busy: np.ndarray, first: int, count: int) -> np.ndarray | None:
    """Renumber lanes so that running tasks keep theirs; None if two were put on one."""
    names = lanes[first : first + len(busy)]
    if len(np.unique(names)) < len(names):
        return None
    name = np.full(count, -1)
    name[names] = busy
    name[name < 0] = np.setdiff1d(np.arange(count), busy)
    renamed = np.full(len(lanes), -1)
    renamed[tasks] = name[lanes[tasks]]
    return renamed


def _spread(
    need: np.ndarray, tasks: np.ndarray, since: np.ndarray, arrival: np.ndarray, lanes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Schedule tasks longest first; return their starts and lanes, and the last end.

    need: seconds of the tasks; since: times at which lanes are free; lanes: lane of each task, None to choose.
    """
    order = tasks[np.argsort(-need[tasks], kind="stable")].tolist()
    if lanes is None:
        starts, lanes = list_schedule(need, len(since), order, ready=arrival, since=since)
    else:
        free, starts = since.copy(), np.full(len(need), np.nan)
        for task in order:
            starts[task] = max(free[lanes[task]], arrival[task])
            free[lanes[task]] = starts[task] + need[task]
    return starts, lanes, float((starts[tasks] + need[tasks]).max(initial=0.0))


def _check_parameters(ratio: float, tolerance: float) -> None:
    if not RATIO - TOLERANCE <= ratio < math.inf:
        raise refusal(f"ratio must be at least 4/3, the guarantee of dual_approximation; got {ratio:g}", "ratio")
    if not 0 < tolerance < math.inf:
        raise refusal(f"tolerance must be above 0; got {tolerance:g}", "tolerance")


def _checked(p: np.ndarray, q: np.ndarray, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.array(p, dtype=float), np.array(q, dtype=float)
    if p.ndim != 1 or p.shape != q.shape or m < 0 or k < 0:
        raise ScenarioError([f"times must match the devices; got {p.shape} and {q.shape} for {m} CPUs, {k} GPUs"])
    wrong = {"NaN": np.isnan(p) | np.isnan(q), "negative": (p < 0) | (q < 0)}
    p, q = (p if m else np.full_like(p, np.inf)), (q if k else np.full_like(q, np.inf))
    wrong["infinite wherever there is a device"] = np.isinf(p) & np.isinf(q)
    problems = [
        f"task {int(np.flatnonzero(rows)[0])}: its time is {what} ({int(rows.sum())} such tasks)"
        for what, rows in wrong.items()
        if rows.any()
    ]
    if problems:
        raise ScenarioError(problems)
    return p, q
