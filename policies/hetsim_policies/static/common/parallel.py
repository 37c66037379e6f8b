"""Parallel tasks for planners: rigid and moldable, on cores or GPUs.

A task has *options*: a mode with its width (number of cores or GPUs occupied together) and the seconds for which it
occupies them, transfers included as in `instance`.  A *pool* is the lanes of one type on one node; an option fits the
pools of the nodes that can host its mode.  If all gangs (tasks on several GPUs) of a type may span nodes, all lanes of
the type are one pool; a gang of `nodes: N` occupies an equal part of its lanes in each of N pools at the same time.
Demands other than whole lanes of a pool are refused.  Bounds count areas, width × seconds: a task costs at least its
minimum area on each type, and no schedule does more work than its lanes can.  The reference of each algorithm is in its
own file.
"""

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hetsim.errors import refusal
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Plan, Step, can_host, lane_names
from hetsim.model.stages import private_bytes
from hetsim.policy import PlanProblem
from hetsim_policies.common import grouped
from hetsim_policies.static.common.graph_bounds import Paths
from hetsim_policies.static.common.instance import Instance, is_up, occupied, slowest_way, staged, undisturbed
from hetsim_policies.static.common.outcome import coverage, finished, notes_of
from hetsim_policies.static.common.ranks import by_key, ways
from hetsim_policies.static.common.unrelated import good_prices, priced
from hetsim_policies.task_graphs import graph_of, successors, topological, upward


@dataclass(frozen=True)
class LanePool:
    """Devices of a type on a node (-1: on all nodes), and when each is first free."""

    kind: int
    node: int
    lanes: list[str]
    free: list[float]


@dataclass(frozen=True)
class WideTasks:
    """Parallel tasks and their options: modes with devices, places and times.

    Option o is task `task[o]` in mode `mode[o]` on `width[o]` lanes (cores or GPUs) of type `kind[o]` for `seconds[o]`.
    The lanes are divided equally among `parts[o]` of the pools (nodes) `pools_of[o]`.  Options are grouped by task,
    those of task j from `first[j]` on.
    """

    problem: PlanProblem
    types: list[DeviceType]
    pools: list[LanePool]
    task: np.ndarray
    mode: np.ndarray
    kind: np.ndarray
    width: np.ndarray
    parts: np.ndarray
    seconds: np.ndarray
    pools_of: list[tuple[int, ...]]
    first: np.ndarray
    complete: bool  # True if all modes of its tasks are options, so that a bound covers all that the engine could do
    outline: Instance  # sequential tasks with the same minimum areas, for computations without widths

    @property
    def size(self) -> int:
        return len(self.first) - 1

    @property
    def counts(self) -> list[int]:
        return [sum(len(pool.lanes) for pool in self.pools if pool.kind == kind) for kind in range(len(self.types))]

    @property
    def area(self) -> np.ndarray:
        return self.width * self.seconds

    @cached_property
    def gathered(self) -> list[bool]:
        """Mask of the types whose devices are all in one pool and can work together."""
        return [sum(pool.kind == kind for pool in self.pools) == 1 for kind in range(len(self.types))]

    @property
    def spread_cores(self) -> bool:
        """Return True if gangs of cores may span nodes."""
        options = zip(self.kind, self.width, self.parts, self.pools_of, strict=True)
        return any(self.types[kind].kind == "cpu" and width > 1 and (parts > 1 or self.pools[homes[0]].node < 0)
                   for kind, width, parts, homes in options)  # fmt: skip

    def min_areas(self, longest: float = np.inf) -> np.ndarray:
        """Minimum width × seconds of each task by type; inf if it has no option there.

        longest: options (modes) that take more seconds are ignored.
        """
        areas = np.full((self.size, len(self.types)), np.inf)
        some = np.flatnonzero(self.seconds <= longest)
        np.minimum.at(areas, (self.task[some], self.kind[some]), self.area[some])
        return areas

    def fastest(self) -> np.ndarray:
        seconds = np.full(self.size, np.inf)
        np.minimum.at(seconds, self.task, self.seconds)
        return seconds


def parallel(problem: PlanProblem) -> bool:
    """Return True if a task has a mode with several cores or GPUs."""
    used = {problem.tasks.shapes[number] for number in dict.fromkeys(problem.tasks.shape.tolist())}
    return not problem.in_mid_run and any(_width(mode) > 1 for shape in used for mode in shape.modes)


def _width(mode: Mode) -> int:
    if mode.on_cpu:
        return 0 if mode.millicores % 1000 else mode.millicores // 1000
    return mode.gpus if mode.whole_devices else 0


class _Option(NamedTuple):
    task: int
    mode: int
    kind: int
    width: int
    parts: int
    seconds: float
    homes: tuple[int, ...]


def wide(problem: PlanProblem, planner: str) -> WideTasks:
    """Return a problem's parallel tasks; raise ScenarioError if one has no option."""
    tasks = problem.tasks
    types, pools = _pools(problem)
    stages = np.zeros((3, len(tasks), len(types)))
    options, complete = _options(problem, types, pools, stages)
    task = np.array([one.task for one in options], dtype=np.int64)
    first = np.searchsorted(task, np.arange(len(tasks) + 1))
    if len(nowhere := np.flatnonzero(np.diff(first) == 0)):
        named = tasks.name(int(nowhere[0]))
        text = f"{planner} plans tasks of whole cores or whole GPUs of one node, or of equal parts of N nodes; "
        raise refusal(f"{text}{len(nowhere)} tasks have no mode that fits (the first is {named})")
    modes, kinds, widths, parts = (np.array([one[k] for one in options], dtype=np.int64) for k in (1, 2, 3, 4))
    seconds = np.array([one.seconds for one in options])
    areas = np.full((len(tasks), len(types)), np.inf)
    np.minimum.at(areas, (task, kinds), widths * seconds)
    names = [[lane for pool in pools if pool.kind == kind for lane in pool.lanes] for kind in range(len(types))]
    outline = Instance(problem, types, names, areas, np.zeros(areas.shape, dtype=np.int32), None, *stages)
    homes = [one.homes for one in options]
    return WideTasks(
        problem, types, pools, task=task, mode=modes, kind=kinds, width=widths, parts=parts, seconds=seconds,
        pools_of=homes, first=first, complete=complete, outline=outline
    )


def _options(
    problem: PlanProblem, types: list[DeviceType], pools: list[LanePool], stages: np.ndarray
) -> tuple[list[_Option], bool]:
    """Return each task's possible modes with widths, times and nodes (options).

    Also returns True if the options cover all ways in which the engine could run the tasks.  Fills `stages` with the
    maximum seconds of each stage (up, compute, down) of a task by type.
    """
    tasks = problem.tasks
    column = {kind: number for number, kind in enumerate(types)}
    ways_of = {kind: slowest_way(problem, kind) for kind in types}
    private = private_bytes(tasks)
    options: list[_Option] = []
    complete = True
    for shape in tasks.shapes:
        of_shape = np.flatnonzero(tasks.shape == shape.index)
        for position, mode in enumerate(shape.modes if len(of_shape) else ()):
            if mode.type not in column:
                continue  # a type without lanes
            kind, width = column[mode.type], _width(mode)
            complete &= bool(width) and mode.span_speeds is None and mode.batch_limit == 1
            complete &= mode.node_count == 1 or (mode.span_speed == 1.0 and mode.exchange is None)
            if not (homes := _homes(problem, pools, kind, width=width, mode=mode)):
                continue
            parts = np.array(staged(tasks, of_shape, position, mode=mode, way=ways_of[mode.type], private=private))
            parts[1] /= mode.span_speed if mode.node_count > 1 else 1.0
            seconds = occupied(parts, mode)
            stages[:, of_shape, kind] = np.maximum(stages[:, of_shape, kind], np.where(np.isfinite(parts), parts, 0.0))
            options += [_Option(task, position, kind, width=width, parts=mode.node_count, seconds=time, homes=homes)
                        for task, time in zip(of_shape.tolist(), seconds.tolist(), strict=True)
                        if time < np.inf]  # fmt: skip
    options.sort(key=lambda one: (one.task, one.mode))
    return options, complete


def _homes(problem: PlanProblem, pools: list[LanePool], kind: int, width: int, mode: Mode) -> tuple[int, ...]:
    """Return the pools that can run a mode, or its part on each node; () if none can."""
    nodes, count = problem.cluster.nodes, mode.node_count
    part = mode.unit if count > 1 and mode.unit is not None else mode
    homes = tuple(
        number for number, pool in enumerate(pools) if pool.kind == kind and 0 < width // count <= len(pool.lanes)
        and (_spreads(problem, mode, width) if pool.node < 0 else can_host(nodes[pool.node], part))
    )  # fmt: skip
    return homes if len(homes) >= count and width % count == 0 else ()


def _spreads(problem: PlanProblem, mode: Mode, width: int) -> bool:
    """Return True if every set of `width` devices of the mode's type can run a task."""
    for node in problem.cluster.nodes:
        lanes = node.cpus if mode.on_cpu else sum(one.type is mode.type for one in node.accelerators)
        share = min(lanes, width) / width
        enough = mode.on_cpu or mode.millicores * share <= 1000 * node.cpus
        if lanes and not (mode.allows(node.index) and enough and mode.memory * share <= (node.memory or np.inf)):
            return False
    return mode.type.memory is None or mode.gpu_memory <= mode.type.memory


def _pools(problem: PlanProblem) -> tuple[list[DeviceType], list[LanePool]]:
    cluster = problem.cluster
    used = {problem.tasks.shapes[number] for number in dict.fromkeys(problem.tasks.shape.tolist())}
    gangs = [mode for shape in used for mode in shape.modes if _width(mode) > 1]
    bound = {mode.type for mode in gangs if not mode.span_any or mode.node_count > 1}
    spanning = {mode.type for mode in gangs} - bound
    lanes_up = ((name, device) for name, device in lane_names(cluster).items() if is_up(problem, name))
    by_pool = grouped(((d.type, -1 if d.type in spanning else d.node), name) for name, d in lanes_up)
    kinds = dict.fromkeys(kind for kind, _ in by_pool)
    types = sorted(kinds, key=lambda kind: (kind.kind != "cpu", list(cluster.types).index(kind.name)))
    begin = problem.now if problem.in_mid_run else 0.0
    pools = [
        LanePool(types.index(kind), node, lanes, [max(begin, problem.free_at.get(lane, 0.0)) for lane in lanes])
        for (kind, node), lanes in sorted(by_pool.items(), key=lambda entry: (types.index(entry[0][0]), entry[0][1]))
    ]
    return types, pools


# Schedules in the making ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LanePlacing:
    option: int
    lanes: tuple[str, ...]
    start: float
    finish: float


class PoolLanes:
    """A schedule of parallel tasks, built by placing one option after the other.

    An option is a task in one mode.  A lane is a core or GPU; a pool has the lanes of one type, on one node or on all.
    """

    def __init__(self, instance: WideTasks):
        self.instance = instance
        self.free = [sorted((at, lane) for lane, at in enumerate(pool.free)) for pool in instance.pools]
        self.placed: list[LanePlacing] = []

    def earliest(
        self, homes: Iterable[int], width: int, ready: float = 0.0, parts: int = 1
    ) -> tuple[float, tuple[int, ...]]:
        """Return when `width` devices are free, and in which pools (of `homes`).

        The devices are divided equally among `parts` pools (nodes).
        """
        each = width // parts - 1
        soonest = heapq.nsmallest(parts, ((self.free[home][each][0], home) for home in homes))
        return max(soonest[-1][0], ready), tuple(home for _, home in soonest)

    def of_option(self, option: int, ready: float) -> tuple[float, tuple[int, ...]]:
        """Return the earliest start of an option (mode) from `ready` on, and its pools."""
        instance = self.instance
        parts = int(instance.parts[option])
        return self.earliest(instance.pools_of[option], int(instance.width[option]), ready, parts)

    def after_those(self, homes: Iterable[int], width: int, parts: int) -> float:
        """Return a task's start if an equal task takes the first lanes, or inf (no room)."""
        each = width // parts
        ends = [lanes[count * each - 1][0] for lanes in (self.free[home] for home in homes) for count in (1, 2)
                if count * each <= len(lanes)]  # fmt: skip
        return sorted(ends)[2 * parts - 1] if len(ends) >= 2 * parts else np.inf

    def put(self, option: int, pools: Sequence[int], start: float) -> float:
        """Place an option at `start` on the lanes idle for the least time; return its end."""
        instance, names = self.instance, list[str]()
        each, finish = int(instance.width[option]) // len(pools), start + float(instance.seconds[option])
        for pool in pools:
            free = self.free[pool]
            last = bisect_right(free, (start, len(free)))
            taken = free[last - each : last]
            del free[last - each : last]
            for _, lane in taken:
                insort(free, (finish, lane))
                names.append(instance.pools[pool].lanes[lane])
        self.placed.append(LanePlacing(option, tuple(names), start=start, finish=finish))
        return finish

    @property
    def makespan(self) -> float:
        return max((one.finish for one in self.placed), default=0.0)


# Bounds -----------------------------------------------------------------------------------------------------------


def wide_bound(instance: WideTasks) -> float | None:
    """Return a lower bound on the seconds from the first arrival to the last end.

    It follows from paths of tasks in their fastest modes, and from the total work.  None if it might not hold: modes
    were left out, or stages of different tasks overlap on a device.
    """
    if not instance.complete or instance.outline.pipelined:
        return None
    if not instance.size:
        return 0.0
    tasks, areas = instance.problem.tasks, instance.min_areas()
    paths = Paths.through(instance.fastest(), graph_of(tasks), tasks.arrival)
    return paths.bound(priced(areas, instance.counts, good_prices(areas, instance.counts)))


# Plans ------------------------------------------------------------------------------------------------------------


def wide_plan(
    instance: WideTasks, placed: Sequence[LanePlacing], bound: float | None = None, guaranteed: float | None = None
) -> Plan:
    """Return a plan for parallel tasks from their placings, in order of starts.

    placed: mode, devices and start of each task.  bound: a bound that the planner proves, in addition to `wide_bound`.
    guaranteed: the algorithm's ratio for independent tasks present at the start.
    """
    problem, tasks = instance.problem, instance.problem.tasks
    steps, times = _timetable(instance, placed)
    makespan = max(0.0, float(times[:, 1].max(initial=0.0)) - problem.origin) if steps else 0.0
    covers = coverage(instance.outline) | {"parallel": "covered" if instance.complete else "partly"}
    moved = any(tasks.reads or ()) or any(tasks.writes or ()) or instance.outline.pipelined
    exact = not moved and instance.complete and undisturbed(instance.outline) and instance.outline.alike
    exact = exact and not instance.spread_cores
    usual = wide_bound(instance)
    best = usual if usual is None or bound is None else max(usual, bound)
    if best is not None and problem.in_mid_run and instance.size:
        best += float(tasks.arrival.min()) - problem.origin
    best = min(best, makespan) if best is not None and exact else best
    notes = notes_of(covers, exact, makespan, bound=best, guaranteed=guaranteed)
    return finished(instance.outline, Plan(steps, makespan, best, notes, timetable=times))


def _timetable(instance: WideTasks, placed: Sequence[LanePlacing]) -> tuple[list[Step], np.ndarray]:
    problem, tasks = instance.problem, instance.problem.tasks
    order = sorted(range(len(placed)), key=lambda number: (placed[number].start, placed[number].finish, number))
    arrival = np.maximum(tasks.arrival, problem.now) if problem.in_mid_run else tasks.arrival
    free = {name: at for pool in instance.pools for name, at in zip(pool.lanes, pool.free, strict=True)}
    graph, ended = graph_of(tasks), np.zeros(instance.size)
    steps, times = [], np.zeros((len(placed), 2))
    for row, number in enumerate(order):
        one = placed[number]
        task = int(instance.task[one.option])
        step = Step(task, int(instance.mode[one.option]), one.lanes)
        start = max([float(arrival[task]), *(free[name] for name in step.devices), *(ended[j] for j in graph[task])])
        ended[task] = finish = start + float(instance.seconds[one.option])
        free.update(dict.fromkeys(step.devices, finish))
        steps.append(step)
        times[row] = start, finish
    return steps, times


# List algorithms for parallel tasks: `graham`, `mct`, `heft`, `peft`, `prioritized`, and rounds (`min_min`, ...).
#
# They decide where, when and on how many lanes, as the sequential algorithms do, with a task's options in place of
# types.  To finish first makes every task as wide as possible, although wide options waste work.  So each algorithm is
# run with several lower bounds (FLOORS) on the efficiency of options, and the shortest schedule is used.
# Reference: Garey and Graham, Bounds for Multiprocessor Scheduling with Resource Constraints (1975): list scheduling of
# rigid tasks on one type on one node takes at most twice the minimum makespan, without a graph and arrivals; Casanova,
# Desprez, Suter, From Heterogeneous Task Scheduling to Heterogeneous Mixed Parallel Scheduling (2004): HEFT with
# options (M-HEFT); the floors are ours.
# Weakness: no gaps are filled, except by `graham`; shared items are ignored; no ratio on unlike lanes.
# Cost: some floors × O(n (options + log lanes)); rounds O(n^2 options), vectorized; `graham` up to O(n) per start.


# Efficiencies (minimum area / area) below which options are excluded, tried in turn
FLOORS = (0.0, 0.5, 0.75, 0.9, 1.0)

Rule = Callable[[WideTasks, np.ndarray], PoolLanes]  # places the tasks of an instance in options that a mask allows


def listed(problem: PlanProblem, planner: str, rule: Rule) -> Plan:
    """Return the plan of the shortest schedule that a list-scheduling rule makes."""
    instance = wide(problem, planner)
    return wide_plan(instance, shortest(instance, rule).placed)


def shortest(instance: WideTasks, rule: Rule) -> PoolLanes:
    """Run a rule with several sets of allowed options; return the shortest schedule.

    For each minimum in FLOORS there is one set, of the options with at least this efficiency.  The efficiency of an
    option is the task's smallest area (width × seconds) among options on the same device type, divided by the option's
    own area.
    """
    areas = instance.min_areas()[instance.task, instance.kind]
    with np.errstate(invalid="ignore", divide="ignore"):
        efficiency = np.where(instance.area > 0, areas / instance.area, 1.0)
    masks = dict.fromkeys(tuple((efficiency >= floor * (1 - 1e-9)).tolist()) for floor in FLOORS)
    return min([rule(instance, np.array(mask, dtype=bool)) for mask in masks], key=lambda lanes: lanes.makespan)


def in_order(instance: WideTasks, allowed: np.ndarray, order: Sequence[int]) -> PoolLanes:
    """Place tasks in order, each where it ends first (of equal options, the first)."""
    tasks, lanes = instance.problem.tasks, PoolLanes(instance)
    graph, finish = graph_of(tasks), [0.0] * instance.size
    for task in order:
        ready = max([float(tasks.arrival[task]), *(finish[before] for before in graph[task])])
        # The option of least area passes every floor.
        options = [option for option in range(instance.first[task], instance.first[task + 1]) if allowed[option]]
        places = [(*lanes.of_option(option, ready), option) for option in options]
        start, pools, option = min(places, key=lambda one: one[0] + float(instance.seconds[one[2]]))
        finish[task] = lanes.put(option, pools, start)
    return lanes


def wide_mct(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """Place tasks in table order, each after its predecessors, where it ends first."""
    return in_order(instance, allowed, topological(graph_of(instance.problem.tasks)))


def wide_heft(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """Place parallel tasks by HEFT: by descending upward rank of mean times."""
    graph = graph_of(instance.problem.tasks)
    order = topological(graph)
    rank = upward(_mean(instance, allowed), ways(graph), order)
    return in_order(instance, allowed, sorted(order, key=lambda task: -rank[task]))


def wide_peft(instance: WideTasks, allowed: np.ndarray) -> PoolLanes:
    """Place parallel tasks by PEFT: by descending length of the path after each task.

    All tasks on this path take their fastest allowed mode (optimistic cost).
    """
    graph = graph_of(instance.problem.tasks)
    fastest = np.full(instance.size, np.inf)
    np.minimum.at(fastest, instance.task[allowed], instance.seconds[allowed])
    ahead = upward(fastest, ways(graph), topological(graph)) - fastest
    return in_order(instance, allowed, by_key(list(zip(-ahead, -_mean(instance, allowed), strict=True)), ways(graph)))


def _mean(instance: WideTasks, allowed: np.ndarray) -> np.ndarray:
    total = np.bincount(instance.task[allowed], instance.seconds[allowed], minlength=instance.size)
    return total / np.maximum(1, np.bincount(instance.task[allowed], minlength=instance.size))


# Function of completion times, on the lanes free first and on others (types by tasks), to task values
Choice = Callable[[np.ndarray, np.ndarray], np.ndarray]


def wide_rounds(instance: WideTasks, allowed: np.ndarray, choice: Choice) -> PoolLanes:
    """In each step, place the task of highest value (`choice`) where it ends first."""
    lanes, arrival = PoolLanes(instance), instance.problem.tasks.arrival[instance.task]
    wanted = list(zip(instance.pools_of, instance.width.tolist(), instance.parts.tolist(), strict=True))
    demands = list(dict.fromkeys(wanted))
    number = {demand: index for index, demand in enumerate(demands)}
    demand_of = np.array([number[one] for one in wanted], int)
    seconds = np.where(allowed, instance.seconds, np.inf)
    waits, cell = np.ones(instance.size, dtype=bool), (instance.kind, instance.task)
    for _ in range(instance.size):
        starts = [lanes.earliest(homes, width, parts=parts) for homes, width, parts in demands]
        begin = np.maximum(np.array([start for start, _ in starts])[demand_of], arrival)
        other = np.maximum(np.array([lanes.after_those(*demand) for demand in demands])[demand_of], arrival)
        first, second = np.full((2, len(instance.types), instance.size), np.inf)
        np.minimum.at(first, cell, begin + seconds)
        np.minimum.at(second, cell, other + seconds)
        task = int(np.where(waits, choice(first, second), -np.inf).argmax())
        option = int(instance.first[task] + (begin + seconds)[instance.first[task] : instance.first[task + 1]].argmin())
        lanes.put(option, starts[demand_of[option]][1], float(begin[option]))
        waits[task] = False
    return lanes


def wide_graham(instance: WideTasks, allowed: np.ndarray, order: Sequence[int]) -> PoolLanes:
    """Start, one by one, the first task that fits idle devices, where it ends first.

    order: the list; independent tasks that are not in it are not placed.  If a task does not fit, later tasks with the
        same widths and pools are not tested.
    """
    tasks, lanes = instance.problem.tasks, PoolLanes(instance)
    graph = graph_of(tasks)
    after, missing = successors(graph), [len(set(before)) for before in graph]
    position = np.empty(instance.size, dtype=np.int64)
    position[list(order)] = np.arange(len(order))
    options = [[o for o in range(instance.first[j], instance.first[j + 1]) if allowed[o]] for j in range(instance.size)]
    group = [tuple((int(instance.width[o]), int(instance.parts[o]), instance.pools_of[o]) for o in row)
             for row in options]  # fmt: skip
    waiting: dict[tuple[tuple[int, int, tuple[int, ...]], ...], list[tuple[int, int]]] = {}
    # (time, task is there (0), task is over (1), lanes are free at first (-1), number)
    events = [(float(tasks.arrival[j]), 0, j) for j in order if not missing[j]]
    events += [(at, -1, 0) for at in dict.fromkeys(at for pool in instance.pools for at in pool.free)]
    heapq.heapify(events)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, what, task = heapq.heappop(events)
            if what == 0:
                heapq.heappush(waiting.setdefault(group[task], []), (int(position[task]), task))
            elif what == 1:
                for later in after[task]:
                    missing[later] -= 1
                    if not missing[later]:
                        heapq.heappush(events, (max(now, float(tasks.arrival[later])), 0, later))
        heads = [(heap[0], key) for key, heap in waiting.items() if heap]
        heapq.heapify(heads)
        while heads:
            (_, task), key = heapq.heappop(heads)
            if (begun := _begin(instance, lanes, options[task], now)) is None:
                continue  # nor does any other of its group
            heapq.heappush(events, (begun, 1, task))
            heapq.heappop(waiting[key])
            if waiting[key]:
                heapq.heappush(heads, (waiting[key][0], key))
    return lanes


def _begin(instance: WideTasks, lanes: PoolLanes, options: Sequence[int], now: float) -> float | None:
    for option in sorted(options, key=lambda one: float(instance.seconds[one])):
        start, pools = lanes.of_option(option, now)
        if start <= now:
            return lanes.put(option, pools, now)
    return None
