"""A certified lower bound on the makespan, given the arrival times.

For every time r, the tasks that arrive at or after r need a number of device-seconds (their area).  So the last finish
is at least r + the minimum time in which the cluster provides these (`area_bound`), and at least arrival + fastest time
of each task.  Task graphs add the critical path.

A task's own transfers count if the task runs alone on one whole accelerator and in one piece.  They are always part of
the task's own time.  They are part of its area only on an accelerator with one stream, since such a device is occupied
from the start of the upload to the end of the download.  Shared items and host resources are ignored, which only lowers
the bound.  The bound holds for devices at nominal frequency or below.
"""

import math
from itertools import pairwise

import numpy as np

from hetsim.model.record import COMPLETED, UNFINISHED
from hetsim.model.stages import private_bytes, stage_seconds, way_to_host
from hetsim.model.tasks import Tasks
from hetsim.results.declared import metric
from hetsim.results.one_run.measured import Measured
from hetsim.results.one_run.modes import ModeTable, units
from hetsim.results.one_run.plans import in_pieces

_EVALUATIONS = 200  # most release times at which the area is computed; fewer still give a valid bound


@metric(unit="s", better="neither", of="run")
def makespan_bound(run: Measured) -> float:
    """Lower bound of the makespan, from single tasks and from the remaining work.

    max(max_j(r_j + fastest time), max_r(r + `area_bound` of {j: r_j >= r})) - first arrival; r_j is the arrival of task
    j.  The area of a gang is its time × its GPUs, that of a fraction its time × its share; task graphs add the critical
    path.  Covers completed tasks; undefined, as the makespan is, while a task is unfinished, and for fused kernels.
    """
    if run.count(UNFINISHED) or not run.count(COMPLETED):
        return math.nan
    record, table = run.result.record, run.result.modes
    if record.fused:
        return math.nan  # kernels launched as one take less time than each alone
    if record.input.language:
        return math.nan  # requests share the steps of a replica: the sum of their times alone bounds nothing
    tasks = record.input.tasks
    chosen = np.flatnonzero(record.status == COMPLETED)
    chosen = chosen[(tasks.arrival[chosen] >= run.low) & (tasks.arrival[chosen] < run.result.horizon)]
    first = float(run.column("arrival").min())
    moved = None if in_pieces(record) else _transfers(tasks, table)
    fastest = _fastest(tasks, table, moved)
    finish = tasks.arrival + fastest if tasks.predecessors is None else _critical_path(tasks, fastest)
    work, capacity = areas(tasks, table, chosen, moved)
    release = tasks.arrival[chosen]
    order = np.argsort(release, kind="stable")
    return max(float(finish[chosen].max()), _released_area(release[order], work[order], capacity)) - first


def _transfers(tasks: Tasks, table: ModeTable) -> np.ndarray | None:
    """Seconds to move data that only one task uses, by mode, on the fastest idle link."""
    private = private_bytes(tasks)
    transfer_seconds = np.zeros((len(tasks), table.width))
    cluster = table.cluster
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        for position, mode in enumerate(shape.modes):
            if mode.on_cpu or mode.gpus != 1 or not mode.whole_devices or mode.batch_limit > 1 or not len(rows):
                continue
            ways = dict.fromkeys(way_to_host(cluster, one) for one in cluster.devices if one.type is mode.type)
            stages = [stage_seconds(mode, way, private, rows) for way in ways]
            if seconds := [up + down for up, down in stages]:
                transfer_seconds[rows, position] = np.min(seconds, axis=0)
    return transfer_seconds if transfer_seconds.any() else None


def _fastest(tasks: Tasks, table: ModeTable, moved: np.ndarray | None = None) -> np.ndarray:
    best = np.full(len(tasks), math.inf)
    for position in range(table.width):
        fixed = table.by_shape(position, lambda mode: mode.min_base, math.inf)[tasks.shape]
        more = 0.0 if moved is None else moved[:, position]
        np.fmin(best, tasks.time[:, position] + fixed + more, out=best)
    return best


def _critical_path(tasks: Tasks, fastest: np.ndarray) -> np.ndarray:
    predecessors = tasks.predecessors or []
    finish = np.full(len(tasks), -math.inf)
    for root in range(len(tasks)):
        stack = [root]
        while stack:
            task = stack[-1]
            open_ = [p for p in predecessors[task] if finish[p] == -math.inf]
            if open_ and finish[task] == -math.inf:
                stack.extend(open_)
                continue
            finish[task] = max([tasks.arrival[task], *(finish[p] for p in predecessors[task])]) + fastest[task]
            stack.pop()
    return finish


def areas(
    tasks: Tasks, table: ModeTable, chosen: np.ndarray, moved: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return device-seconds by task and type (inf: cannot run), and type capacities.

    On each type the mode with the fewest device-seconds counts.  chosen: rows of the tasks.  moved: seconds of each
    task's transfers by mode; they are added on devices with one stream, which cannot overlap them.
    """
    types = list(dict.fromkeys(mode.type.name for mode in table.modes if table.offered(mode)))
    needed = np.full((len(chosen), len(types)), math.inf)
    shape = tasks.shape[chosen]
    for position in range(table.width):
        time = tasks.time[chosen, position]
        if moved is not None:
            serial = table.by_shape(position, lambda mode: float(mode.type.streams == 1), 0.0)[shape]
            time = time + serial * moved[chosen, position]
        place = table.by_shape(position, lambda mode: float(types.index(mode.type.name)), math.nan)[shape]
        size = table.by_shape(position, units, math.inf)[shape]
        fixed = table.by_shape(position, lambda mode: mode.min_share, 0.0)[shape]
        with np.errstate(invalid="ignore"):
            for column in range(len(types)):
                here = np.where(place == column, size, math.inf)
                needed[:, column] = np.fmin(needed[:, column], (time + fixed) * here)
    # Under MPS as many launches as there are streams may compute at once.
    kinds = [table.cluster.types[name] for name in types]
    together = [kind.streams if kind.sharing.kind == "mps" else 1 for kind in kinds]
    return needed, np.array([float(table.cluster.count(name)) for name in types]) * together


def _released_area(release: np.ndarray, areas: np.ndarray, capacity: np.ndarray) -> float:
    """Return the maximum over r of: r + area bound of the tasks that arrive from r on.

    The area bound decreases in r, so for r between two arrivals r + area(r) <= later arrival + area(earlier arrival).
    If this sum does not exceed the best value so far, the times between the two are not searched.
    """
    times, first = np.unique(release, return_index=True)
    area: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in area:
            area[index] = area_bound(areas[first[index] :], capacity)
        return times[index] + area[index]

    best = max(at(0), at(len(times) - 1))
    stretches = [(0, len(times) - 1)]
    while stretches and len(area) < _EVALUATIONS:
        stretches.sort(key=lambda pair: times[pair[1]] + area[pair[0]])
        low, high = stretches.pop()
        if high - low < 2 or times[high] + area[low] <= best:
            continue
        middle = (low + high) // 2
        best = max(best, at(middle))
        stretches += pairwise((low, middle, high))
    return float(best)


def area_bound(areas: np.ndarray, capacity: np.ndarray) -> float:
    """Return the minimum time λ in which the devices could do all tasks, split freely.

    areas: device-seconds of task j on type t; capacity: number of devices by type.  The tasks fit if each type t gets
    at most λ·capacity_t device-seconds.  Solves the dual, max over prices w >= 0 with Σ_t w_t·capacity_t = 1 of Σ_j
    min_t w_t·area_jt, by cutting planes: every assignment of tasks to types is a cut, so a few small linear programs
    suffice, and any prices give a valid bound.
    """
    from scipy.optimize import linprog  # takes as long to import as a small run takes, and most runs do not ask

    kinds = len(capacity)
    if not len(areas):
        return 0.0
    prices, best, cuts = np.full(kinds, 1.0 / kinds) / capacity, 0.0, []
    rows = np.arange(len(areas))
    with np.errstate(invalid="ignore"):
        for _ in range(100):
            costs = np.where(np.isinf(areas), np.inf, areas * prices)
            choice = costs.argmin(axis=1)
            value = float(costs[rows, choice].sum())
            best = max(best, value)
            if kinds == 1:
                break
            cuts.append(np.bincount(choice, weights=areas[rows, choice], minlength=kinds))
            # max θ with θ <= w · loads of every cut, w · capacity = 1
            solution = linprog(
                [*np.zeros(kinds), -1.0],
                A_ub=np.column_stack([-np.array(cuts), np.ones(len(cuts))]),
                b_ub=np.zeros(len(cuts)),
                A_eq=[[*capacity, 0.0]],
                b_eq=[1.0],
                bounds=[(0, None)] * kinds + [(None, None)],
            )
            if not solution.success or -solution.fun <= best * (1 + 1e-9):
                break
            prices = solution.x[:kinds]
    return best


# How much work comes, as a share of what the cluster can do: the load of headlines and of `load:` at a trace.
#
# Work of a task on a type of device is devices × time in its way there of least device-seconds (fractions count as
# such, of a batch the fixed part is shared at best); what it holds besides, cores next to a GPU, is not counted. The
# load is the least x such that all the work that comes, split among the types of device as well as can be, takes at
# most x of the device-seconds of every type between the first arrival and the last.  Above 1 no policy keeps up; below
# 1 one may, if gangs and uneven arrivals let it.  On a cluster with one type of device it is work / (devices × time).


def offered_load(tasks: Tasks, table: ModeTable) -> float:
    """Return work / capacity between first and last arrival (above 1: overload)."""
    chosen = np.flatnonzero(np.isfinite(tasks.arrival))
    if not len(chosen):
        return 0.0
    arrival = tasks.arrival[chosen]
    span = float(arrival.max() - arrival.min())
    work, capacity = areas(tasks, table, chosen)
    kept = np.isfinite(work).any(axis=1)  # what can never run asks for nothing
    area = min_area(work[kept], capacity)
    return area / span if span > 0 else (math.inf if area > 0 else 0.0)


def min_area(work: np.ndarray, capacity: np.ndarray) -> float:
    """Return the minimum time for all work (`area_bound`), fast for up to two types."""
    choice = np.isfinite(work).sum(axis=1) > 1
    single = np.where(np.isfinite(work[~choice]), work[~choice], 0.0).sum(axis=0) / capacity
    if not choice.any():
        return float(single.max(initial=0.0))
    open_ = np.isfinite(work[choice]).any(axis=0)
    if open_.sum() > 2:
        return area_bound(work, capacity)
    first, second = np.flatnonzero(open_).tolist()
    both = max(_split(work[choice][:, [first, second]] / capacity[[first, second]], single[[first, second]]), 0.0)
    return max(both, float(single.max()))


def _split(loads: np.ndarray, fixed: np.ndarray) -> float:
    """Return `area_bound` (s) for two types; `fixed`: load of tasks of one type only."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(loads[:, 0] / loads[:, 1], posinf=math.inf)
    order = np.argsort(ratio, kind="stable")
    first = fixed[0] + np.concatenate([[0.0], np.cumsum(loads[order, 0])])
    second = fixed[1] + np.concatenate([np.cumsum(loads[order[::-1], 1])[::-1], [0.0]])
    meet = int(np.searchsorted(first >= second, True))
    if meet == 0 or meet == len(first):
        return float(max(first[0], second[0]) if meet == 0 else max(first[-1], second[-1]))
    # One task is split so that both are equal.
    rise, fall = first[meet] - first[meet - 1], second[meet - 1] - second[meet]
    share = (second[meet - 1] - first[meet - 1]) / (rise + fall)
    return float(first[meet - 1] + share * rise)
