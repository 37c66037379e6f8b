"""Parallel tasks for planners: rigid and moldable, on cores or GPUs.

A task has *options*: a mode with its width (cores or GPUs that it holds together) and the seconds for which it holds
them, transfers folded in as in `instance`.  A *pool* is the lanes of one type on one node; an option fits the pools of
the nodes that can host its mode.  Where all gangs of a type may span nodes its lanes are one pool.  What is not of
whole lanes of a pool is refused.
Bounds count areas, width × seconds: a task costs at least its least area on each type, and no schedule does more work
than its lanes hold.  The reference of each algorithm stands in its own file.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import DeviceType
from hetsim.model.plan import Plan, Step, can_host, lane_names
from hetsim.model.stages import private_bytes
from hetsim.model.tasks import Mode
from hetsim.policy import PlanProblem
from hetsim_policies.static.common.disturbance import undisturbed
from hetsim_policies.static.common.instance import Instance, occupied, slowest_way, staged
from hetsim_policies.static.common.outcome import coverage, finished, notes_of
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.unrelated import good_prices, priced
from hetsim_policies.task_graphs import downward, graph_of, tails, topological


@dataclass(frozen=True)
class LanePool:
    """The lanes of a type on a node (-1: on all), and when each is free first."""

    kind: int
    node: int
    lanes: list[str]
    free: list[float]


@dataclass(frozen=True)
class WideTasks:
    """n parallel tasks and their options.

    Option o is task `task[o]` in mode `mode[o]` on `width[o]` lanes of type `kind[o]` for `seconds[o]`, in one of
    `pools_of[o]`.  Options of a task stand together, those of task j from `first[j]` on.
    """

    problem: PlanProblem
    types: list[DeviceType]
    pools: list[LanePool]
    task: np.ndarray
    mode: np.ndarray
    kind: np.ndarray
    width: np.ndarray
    seconds: np.ndarray
    pools_of: list[tuple[int, ...]]
    first: np.ndarray
    complete: bool
    """True if all modes of its tasks are options, so that a bound holds for all that the engine could do."""
    outline: Instance
    """Sequential tasks of the same least areas: what does not depend on widths is asked there."""

    @property
    def size(self) -> int:
        return len(self.first) - 1

    @property
    def counts(self) -> list[int]:
        """Lanes of each type."""
        return [sum(len(pool.lanes) for pool in self.pools if pool.kind == kind) for kind in range(len(self.types))]

    @property
    def area(self) -> np.ndarray:
        """Lane-seconds of each option."""
        return self.width * self.seconds

    @cached_property
    def gathered(self) -> list[bool]:
        """By type, whether all its lanes stand on one node and can work together."""
        return [sum(pool.kind == kind for pool in self.pools) == 1 for kind in range(len(self.types))]

    def min_areas(self, longest: float = np.inf) -> np.ndarray:
        """The least area of each task on each type within a time limit; inf: none."""
        areas = np.full((self.size, len(self.types)), np.inf)
        some = np.flatnonzero(self.seconds <= longest)
        np.minimum.at(areas, (self.task[some], self.kind[some]), self.area[some])
        return areas

    def fastest(self) -> np.ndarray:
        """The fewest seconds of each task."""
        seconds = np.full(self.size, np.inf)
        np.minimum.at(seconds, self.task, self.seconds)
        return seconds


def parallel(problem: PlanProblem) -> bool:
    """Return True if a task has a mode of several lanes."""
    used = {problem.tasks.shapes[number] for number in dict.fromkeys(problem.tasks.shape.tolist())}
    return not problem.in_mid_run and any(_width(mode) > 1 for shape in used for mode in shape.modes)


def _width(mode: Mode) -> int:
    """Lanes that a mode holds; 0 where it takes parts of them."""
    if mode.on_cpu:
        return 0 if mode.millicores % 1000 else mode.millicores // 1000
    return mode.gpus if mode.whole else 0


class _Option(NamedTuple):
    """A task in a mode: width in lanes of a type, seconds, and pools with room."""

    task: int
    mode: int
    kind: int
    width: int
    seconds: float
    homes: tuple[int, ...]


def wide(problem: PlanProblem, planner: str) -> WideTasks:
    """The parallel tasks of a problem; ScenarioError where a task has no option."""
    tasks = problem.tasks
    types, pools = _pools(problem)
    stages = np.zeros((3, len(tasks), len(types)))
    options, complete = _options(problem, types, pools, stages)
    task = np.array([one.task for one in options], dtype=np.int64)
    first = np.searchsorted(task, np.arange(len(tasks) + 1))
    nowhere = np.flatnonzero(np.diff(first) == 0)
    if len(nowhere):
        named = tasks.name(int(nowhere[0]))
        text = f"{planner} plans tasks of whole cores or whole GPUs of one node; {len(nowhere)} tasks have no mode "
        raise ScenarioError(Problem(f"{text}that fits one (the first is {named})", key="policy.scheduler"))
    modes, kinds, widths = (np.array([one[k] for one in options], dtype=np.int64) for k in (1, 2, 3))
    seconds = np.array([one.seconds for one in options])
    areas = np.full((len(tasks), len(types)), np.inf)
    np.minimum.at(areas, (task, kinds), widths * seconds)
    names = [[lane for pool in pools if pool.kind == kind for lane in pool.lanes] for kind in range(len(types))]
    outline = Instance(problem, types, names, areas, np.zeros(areas.shape, dtype=np.int32), None, *stages)
    homes = [one.homes for one in options]
    return WideTasks(
        problem, types, pools, task=task, mode=modes, kind=kinds, width=widths, seconds=seconds, pools_of=homes,
        first=first, complete=complete, outline=outline
    )


def _options(
    problem: PlanProblem, types: list[DeviceType], pools: list[LanePool], stages: np.ndarray
) -> tuple[list[_Option], bool]:
    """The options of all tasks, task by task, and whether all modes are among them.

    stages: gets the most seconds of each stage (up, compute, down) of a task on each type.
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
            homes = _homes(problem, pools, kind, width=width, mode=mode)
            if not homes:
                continue
            parts = np.array(staged(tasks, of_shape, position, mode=mode, way=ways_of[mode.type], private=private))
            seconds = occupied(parts, mode)
            stages[:, of_shape, kind] = np.maximum(stages[:, of_shape, kind], np.where(np.isfinite(parts), parts, 0.0))
            options += [_Option(task, position, kind, width=width, seconds=time, homes=homes) for task, time in
                      zip(of_shape.tolist(), seconds.tolist(), strict=True) if time < np.inf]  # fmt: skip
    options.sort(key=lambda one: (one.task, one.mode))
    return options, complete


def _homes(problem: PlanProblem, pools: list[LanePool], kind: int, width: int, mode: Mode) -> tuple[int, ...]:
    """The pools with enough lanes for a mode; none where it takes parts of lanes."""
    nodes = problem.cluster.nodes
    return tuple(
        number for number, pool in enumerate(pools) if pool.kind == kind and 0 < width <= len(pool.lanes)
        and (_spreads(problem, mode, width) if pool.node < 0 else can_host(nodes[pool.node], mode))
    )  # fmt: skip


def _spreads(problem: PlanProblem, mode: Mode, width: int) -> bool:
    """Return True if each node with lanes of the type can host a mode's parts there."""
    for node in problem.cluster.nodes:
        lanes = node.cpus if mode.on_cpu else sum(one.type is mode.type for one in node.accelerators)
        share = min(lanes, width) / width
        enough = mode.on_cpu or mode.millicores * share <= 1000 * node.cpus
        if lanes and not (mode.allows(node.index) and enough and mode.memory * share <= (node.memory or np.inf)):
            return False
    return mode.type.memory is None or mode.gpu_memory <= mode.type.memory


def _pools(problem: PlanProblem) -> tuple[list[DeviceType], list[LanePool]]:
    """Types in cluster order, cores first, and the lanes up of each on each node."""
    cluster = problem.cluster
    used = {problem.tasks.shapes[number] for number in dict.fromkeys(problem.tasks.shape.tolist())}
    gangs = [mode for shape in used for mode in shape.modes if _width(mode) > 1]
    bound = {mode.type for mode in gangs if not mode.span_any or mode.node_count > 1}
    spanning = {mode.type for mode in gangs} - bound
    by_pool: dict[tuple[DeviceType, int], list[str]] = {}
    for name, device in lane_names(cluster).items():
        if problem.free_at.get(name, 0.0) < np.inf:
            by_pool.setdefault((device.type, -1 if device.type in spanning else device.node), []).append(name)
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
    """An option on lanes of a pool."""

    option: int
    pool: int
    lanes: tuple[int, ...]
    start: float
    finish: float


class PoolLanes:
    """The lanes of all pools with their tasks; a task goes behind earlier ones."""

    def __init__(self, instance: WideTasks):
        self.instance = instance
        self.free = [sorted((at, lane) for lane, at in enumerate(pool.free)) for pool in instance.pools]
        self.placed: list[LanePlacing] = []

    def earliest(self, homes: Iterable[int], width: int, ready: float = 0.0) -> tuple[float, int]:
        """When `width` lanes of one of these pools are free, and the first such pool."""
        start, pool = min((self.free[home][width - 1][0], home) for home in homes)
        return max(start, ready), pool

    def put(self, option: int, pool: int, start: float) -> float:
        """Place an option on the lanes that became free last before its start; its finish."""
        instance, free = self.instance, self.free[pool]
        width, finish = int(instance.width[option]), start + float(instance.seconds[option])
        last = bisect_right(free, (start, len(free)))
        taken = free[last - width : last]
        del free[last - width : last]
        for _, lane in taken:
            insort(free, (finish, lane))
        self.placed.append(LanePlacing(option, pool, tuple(lane for _, lane in taken), start=start, finish=finish))
        return finish

    @property
    def makespan(self) -> float:
        """The last finish, counted from 0."""
        return max((one.finish for one in self.placed), default=0.0)


# Bounds -----------------------------------------------------------------------------------------------------------


def wide_bound(instance: WideTasks) -> float | None:
    """A lower bound from the first arrival: paths of the fastest options, and areas.

    None where the engine could do what the options do not say.
    """
    if not instance.complete or instance.outline.pipelined:
        return None
    if not instance.size:
        return 0.0
    tasks = instance.problem.tasks
    before, fastest = ways(graph_of(tasks)), instance.fastest()
    order = topological(graph_of(tasks))
    heads = np.array(downward(fastest, before, order, tasks.arrival)) - float(tasks.arrival.min())
    ends = np.array(tails(fastest, before, order))
    areas = instance.min_areas()
    cost = priced(areas, instance.counts, good_prices(areas, instance.counts))
    best = float((heads + fastest + ends).max())
    for release in (heads, ends):
        latest = np.argsort(-release, kind="stable")
        best = max(best, float((release[latest] + np.cumsum(cost[latest])).max()))
    return best


# Plans ------------------------------------------------------------------------------------------------------------


def wide_plan(
    instance: WideTasks, placed: Sequence[LanePlacing], bound: float | None = None, guaranteed: float | None = None
) -> Plan:
    """The placings as a plan in the order of starts, with timetable and notes.

    bound: what the planner proves besides `wide_bound`.  guaranteed: the ratio that its algorithm promises for
    independent tasks that are there at once.
    """
    problem, tasks = instance.problem, instance.problem.tasks
    steps, times = _timetable(instance, placed)
    makespan = max(0.0, float(times[:, 1].max(initial=0.0)) - problem.origin) if steps else 0.0
    covers = coverage(instance.outline) | {"parallel": "covered" if instance.complete else "partly"}
    moved = any(tasks.reads or ()) or any(tasks.writes or ()) or instance.outline.pipelined
    exact = not moved and instance.complete and undisturbed(instance.outline) and instance.outline.alike
    usual = wide_bound(instance)
    best = usual if usual is None or bound is None else max(usual, bound)
    if best is not None and problem.in_mid_run and instance.size:
        best += float(tasks.arrival.min()) - problem.origin
    best = min(best, makespan) if best is not None and exact else best
    notes = notes_of(covers, exact, makespan, bound=best, guaranteed=guaranteed)
    return finished(instance.outline, Plan(steps, makespan, best, notes, timetable=times))


def _timetable(instance: WideTasks, placed: Sequence[LanePlacing]) -> tuple[list[Step], np.ndarray]:
    """The placings as steps in the order of starts, with their starts and ends."""
    problem, tasks = instance.problem, instance.problem.tasks
    order = sorted(range(len(placed)), key=lambda number: (placed[number].start, placed[number].finish, number))
    arrival = np.maximum(tasks.arrival, problem.now) if problem.in_mid_run else tasks.arrival
    free = {name: at for pool in instance.pools for name, at in zip(pool.lanes, pool.free, strict=True)}
    graph, ended = graph_of(tasks), np.zeros(instance.size)
    steps, times = [], np.zeros((len(placed), 2))
    for row, number in enumerate(order):
        one = placed[number]
        task, lanes = int(instance.task[one.option]), instance.pools[one.pool].lanes
        step = Step(task, int(instance.mode[one.option]), tuple(lanes[lane] for lane in one.lanes))
        start = max([float(arrival[task]), *(free[name] for name in step.devices), *(ended[j] for j in graph[task])])
        ended[task] = finish = start + float(instance.seconds[one.option])
        free.update(dict.fromkeys(step.devices, finish))
        steps.append(step)
        times[row] = start, finish
    return steps, times
