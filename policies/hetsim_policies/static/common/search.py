"""Shared parts of schedule searches: seed, budget, makespans of many schedules.

A candidate assigns a lane (core or GPU, numbered over all types) to every task.  If tasks have predecessors or read
data items, it also assigns a key to every task: tasks are placed in ascending order of keys, each after its
predecessors.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetsim.errors import PolicyError, UsageError, refusal
from hetsim.model.plan import Plan
from hetsim.policy import PlanProblem
from hetsim_policies.static.common import parallel
from hetsim_policies.static.common.instance import Instance, Schedule, by_arrival
from hetsim_policies.static.common.outcome import finished, plan_of
from hetsim_policies.static.common.prefetches import with_prefetches
from hetsim_policies.static.common.ranks import Traffic, traffic_of
from hetsim_policies.static.insertion import Heft, Insertion, Peft
from hetsim_policies.static.lists import max_min, mct, sufferage
from hetsim_policies.static.two_sides import greedy_dual, two_types
from hetsim_policies.static.vertices import lst
from hetsim_policies.task_graphs import Graph, topological

MAX_ROUNDS = 2_000  # maximum number of tasks for seeds by planners of quadratic cost
MAX_PAIRS = 40_000  # maximum number of (task, type) pairs for a seed by a linear program


class SearchBudget:
    """A budget: a number of schedules to evaluate, or seconds of wall-clock time."""

    def __init__(self, evaluations: int, seconds: float | None):
        self.evaluations, self.seconds = evaluations, seconds
        self.used = 0
        self._began = time.perf_counter()

    def spend(self, wanted: int) -> int:
        """Use up to `wanted` evaluations of the budget; return the number allowed."""
        granted = min(wanted, self.evaluations - self.used) if self.seconds is None else wanted * (self.part < 1)
        self.used += granted
        return granted

    @property
    def part(self) -> float:
        """Used fraction of the budget, 0 to 1."""
        if self.seconds is None:
            return self.used / self.evaluations
        return min(1.0, (time.perf_counter() - self._began) / self.seconds) if self.seconds else 1.0

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of a plan: number of evaluations, or that the clock ended the search."""
        return {"evaluations": self.used} if self.seconds is None else {"deterministic": False}


@dataclass
class Seed:
    """The best schedule of some fast planners, the planner's name, and a lower bound."""

    schedule: Schedule
    planner: str
    bound: float | None = None


def seeds_of(instance: Instance, traffic: Traffic | None = None) -> list[Seed]:
    """Return schedules of all fast planners that can plan the instance's tasks.

    The `bound` of each seed is a lower bound of the makespan of all schedules that start at 0 and transfer only data
    that one task uses; None if no bound was proven.
    """
    tasks, times, counts = instance.problem.tasks, instance.time, instance.counts
    before: Graph = tasks.predecessors or [()] * len(tasks)
    free = instance.free
    if bound_together(instance):
        given = (times, counts, before, tasks.arrival, traffic)
        return [
            Seed(Heft.placed(Insertion(*given, since=free)), "heft"),
            Seed(Heft.placed(Insertion(*given, overlap=False, since=free)), "heft"),
            Seed(Peft.placed(Insertion(*given, since=free)), "peft"),
            Seed(mct(times, counts, topological(before), ready=tasks.arrival, predecessors=before, since=free), "mct"),
        ]
    longest = np.argsort(-times.min(axis=1, initial=np.inf), kind="stable").tolist()
    seeds = [Seed(mct(times, counts, longest, ready=tasks.arrival, predecessors=None, since=free), "mct")]
    bound = None
    if len(instance.types) <= 2:
        schedule, bound = greedy_dual(*two_types(instance, "greedy_dual"), tasks.arrival)
        seeds = [Seed(schedule, "greedy_dual"), *seeds]
    if instance.size <= MAX_ROUNDS:
        seeds.append(Seed(max_min(times, counts, tasks.arrival, free), "max_min"))
        seeds.append(Seed(sufferage(times, counts, tasks.arrival, since=free), "sufferage"))
    if instance.size and instance.size * len(counts) <= MAX_PAIRS:
        schedule, better = lst(times, counts, tasks.arrival, free)
        seeds.append(Seed(schedule, "lst"))
        bound = max(better, bound or 0.0)
    for seed in seeds:
        seed.bound = bound
    return seeds


def seed_of(instance: Instance, traffic: Traffic | None = None) -> Seed:
    """Return the best schedule of the fast planners, from which a search begins."""
    return min(seeds_of(instance, traffic), key=lambda seed: seed.schedule.makespan)


def bound_together(instance: Instance) -> bool:
    """Return True if tasks have predecessors or read items."""
    tasks = instance.problem.tasks
    return any(tasks.predecessors or ()) or any(tasks.reads or ())


class Landscape(ABC):
    """The schedules that a random search can try, and their makespans.

    A candidate is a row of `lanes` and of `keys`: device and priority of each task (column).
    """

    uses_keys: bool

    def __init__(self, instance: Instance):
        self.instance = instance
        self.lane_kind, self.first_lane = instance.lane_kind, instance.first_lane
        usable = np.isfinite(instance.time) & (np.asarray(instance.counts) > 0)
        self.choices = usable.sum(axis=1)
        self.choice = np.argsort(~usable, axis=1, kind="stable")  # usable types of each task first

    @abstractmethod
    def ends(self, lanes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return when each core or GPU of each candidate has done its last task."""

    @abstractmethod
    def schedule(self, lanes: np.ndarray, keys: np.ndarray) -> Schedule:
        """Return the schedule of one candidate: device (lane) and key of each task."""

    def makespans(self, lanes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return self.ends(lanes, keys).max(axis=1, initial=0.0)

    def times(self, tasks: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return self.instance.time[tasks, self.lane_kind[lanes]]

    def can_run(self, tasks: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return np.isfinite(self.times(tasks, lanes))

    def last_ones(self, lanes: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return a candidate's tasks on the core or GPU that ends last."""
        return np.flatnonzero(lanes == int(ends.argmax()))

    def random_lanes(self, tasks: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw a core or GPU for each task: first a type, then a device of the type."""
        drawn = (random.random(tasks.shape) * self.choices[tasks]).astype(np.int64)
        kind = self.choice[tasks, drawn]
        first = self.first_lane[kind]
        return first + (random.random(tasks.shape) * (self.first_lane[kind + 1] - first)).astype(np.int64)

    def encoded(self, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
        """Encode a schedule as devices and keys between 0 and 1, in the order of starts."""
        placed = np.empty(self.instance.size)
        placed[np.lexsort((schedule.finish, schedule.start))] = np.arange(self.instance.size)
        lanes = self.first_lane[schedule.kind] + schedule.lane
        return lanes, placed / max(1, self.instance.size) if self.uses_keys else np.empty(0)


class Loads(Landscape):
    """Schedules of independent tasks for random search; a device's task times add up."""

    uses_keys = False

    def __init__(self, instance: Instance):
        super().__init__(instance)
        arrival = instance.problem.tasks.arrival
        self.arrival = arrival
        self.start = float(arrival.min()) if len(arrival) else 0.0
        self.together = not len(arrival) or self.start == float(arrival.max())
        self.by_arrival = np.argsort(arrival, kind="stable")

    def ends(self, lanes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        rows, size = lanes.shape
        count = len(self.lane_kind)
        number = lanes + np.arange(rows)[:, None] * count
        needs = self.times(np.arange(size), lanes)
        loads = np.bincount(number.ravel(), needs.ravel(), minlength=rows * count).reshape(rows, count)
        return self.start + loads if self.together else self._after_arrivals(number, needs, loads)

    def _after_arrivals(self, number: np.ndarray, needs: np.ndarray, loads: np.ndarray) -> np.ndarray:
        """End of each device: maximum over its tasks of arrival + work from that task on."""
        number, needs = number[:, self.by_arrival].ravel(), needs[:, self.by_arrival].ravel()
        there = np.tile(self.arrival[self.by_arrival], len(loads))
        order = np.argsort(number, kind="stable")
        number, needs, there = number[order], needs[order], there[order]
        begin = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        done = np.cumsum(needs) - needs  # before each task, over all lanes; differences within a lane count
        done -= np.repeat(done[begin], np.diff(np.append(begin, len(number))))
        ends = np.zeros(loads.size)
        ends[number[begin]] = np.maximum.reduceat(there + loads.ravel()[number] - done, begin)
        return ends.reshape(loads.shape)

    def schedule(self, lanes: np.ndarray, keys: np.ndarray) -> Schedule:
        return by_arrival(self.instance, lanes, self.times(np.arange(len(lanes)), lanes))


class Ranked(Landscape):
    """Schedules of dependent tasks for a random search: list scheduling by keys.

    All candidates are scheduled together.  Transfers are estimated as in `heft`.  It is assumed that links are idle,
    that data move while the core or GPU still runs the previous task, and that initial items on a host are moved to
    each device once.  Cost: for P candidates of n tasks with at most d predecessors O(P n d) in n steps.
    """

    uses_keys = True

    def __init__(self, instance: Instance, traffic: Traffic | None):
        super().__init__(instance)
        tasks, size = instance.problem.tasks, instance.size
        graph: Graph = tasks.predecessors or [()] * size
        sources: list[dict[int, int]] = [{}] * size if traffic is None else traffic.sources
        waits = [dict.fromkeys([*graph[task], *sources[task]]) for task in range(size)]
        order = topological([list(names) for names in waits])
        self.order = np.array(order, dtype=np.int64)  # tasks are numbered by it from here on: predecessors first
        number = {task: position for position, task in enumerate(order)}
        self.before = _padded([[number[name] for name in waits[task]] for task in order], size)
        self.bytes = _padded([[sources[task].get(name, 0) for name in waits[task]] for task in order], 0)
        self.moves = _padded([[name in sources[task] for name in waits[task]] for task in order], 0).astype(bool)
        self.arrival = tasks.arrival[self.order]
        self.time = instance.time[self.order]
        self.levels = _levels(self.before)
        self.traffic = traffic
        if traffic is not None:
            self.firsts = _padded([list(traffic.firsts[task]) for task in order], len(traffic.first_cost))
            self.first_cost = np.concatenate([traffic.first_cost, np.zeros((1, traffic.first_cost.shape[1]))])
            self.extra = traffic.extra[self.order]

    def ends(self, lanes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return self._decode(lanes, keys)[0]

    def _decode(self, lanes: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return when devices are free, tasks' starts and finishes, and the tasks' order.

        Each of the four arrays has a row per candidate; tasks are numbered as in `self.order`.
        """
        rows, size = lanes.shape
        every = np.arange(rows)
        order = self._placing(keys[:, self.order])
        lanes = lanes[:, self.order]
        free = np.zeros((rows, len(self.lane_kind)))
        start, finish = np.zeros((rows, size)), np.full((rows, size + 1), -np.inf)  # the last column belongs to no task
        # Where tasks were placed, and which items were brought where: nothing yet.
        place, brought = np.zeros((rows, size + 1), dtype=np.int64), np.empty(0, dtype=bool)
        if self.traffic is not None:
            brought = np.zeros((rows, *self.first_cost.shape), dtype=bool)
        for step in range(size):
            task = order[:, step]
            lane = lanes[every, task]
            before = self.before[task]
            ends = finish[every[:, None], before]
            cost = self.time[task, self.lane_kind[lane]]
            if self.traffic is not None:
                here = self.traffic.place[lane]
                source = place[every[:, None], before]
                way = self.traffic.latency[source, here[:, None]]
                way = way + self.bytes[task] * self.traffic.pace[source, here[:, None]]
                ends = ends + np.where(self.moves[task], way, 0.0)
                items = self.firsts[task]
                fetched = brought[every[:, None], items, here[:, None]]
                cost = cost + self.extra[task, here]
                cost += np.where(fetched, 0.0, self.first_cost[items, here[:, None]]).sum(axis=1)
                brought[every[:, None], items, here[:, None]] = True
                place[every, task] = here
            begin = np.maximum(np.maximum(free[every, lane], self.arrival[task]), ends.max(axis=1, initial=-np.inf))
            start[every, task] = begin
            free[every, lane] = finish[every, task] = begin + cost
        return free, start, finish[:, :size], order

    def _placing(self, keys: np.ndarray) -> np.ndarray:
        """Return tasks by key, after raising each key to its predecessors' maximum."""
        lifted = np.concatenate([keys, np.full((len(keys), 1), -np.inf)], axis=1)
        for level in self.levels:
            lifted[:, level] = np.maximum(lifted[:, level], lifted[:, self.before[level]].max(axis=2))
        return np.argsort(lifted[:, :-1], axis=1, kind="stable")

    def schedule(self, lanes: np.ndarray, keys: np.ndarray) -> Schedule:
        _, start, finish, order = self._decode(lanes[None], keys[None])
        schedule = Schedule.empty(self.instance.size)
        for number in order[0].tolist():
            task = int(self.order[number])
            kind = int(self.lane_kind[lanes[task]])
            begin, end = float(start[0, number]), float(finish[0, number])
            schedule.put(task, begin, end - begin, kind=kind, lane=int(lanes[task] - self.first_lane[kind]))
            schedule.finish[task] = end
        return schedule


class WideRanked(Ranked):
    """Schedules of parallel tasks for a random search: list scheduling by keys.

    A candidate has an option (mode and devices) and a key for each task.  A pool has the devices of one type, on one
    node or on all.  Candidates are scheduled one by one; cost of each: O(n (pools + devices of a pool)) for n tasks.
    """

    def __init__(self, instance: parallel.WideTasks):
        super().__init__(instance.outline, None)
        self.wide = instance
        self.first_lane = np.zeros(1, dtype=np.int64)  # the seed's lanes are options too

    def ends(self, lanes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.array([[free[-1][0] for free in one.free] for one in self.candidates(lanes, keys)])

    def candidates(self, lanes: np.ndarray, keys: np.ndarray) -> Iterator[parallel.PoolLanes]:
        before, arrival = self.before.tolist(), self.arrival.tolist()
        for options, order in zip(lanes[:, self.order].tolist(), self._placing(keys[:, self.order]), strict=True):
            made, finish = parallel.PoolLanes(self.wide), [-np.inf] * (len(options) + 1)
            for number in order.tolist():
                ready = max(arrival[number], *(finish[one] for one in before[number]))
                start, pools = made.of_option(options[number], ready)
                finish[number] = made.put(options[number], pools, start)
            yield made

    def can_run(self, tasks: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        return np.asarray(self.wide.task[lanes] == tasks)

    def last_ones(self, lanes: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return np.empty(0, dtype=np.int64)  # options stand for no lane

    def random_lanes(self, tasks: np.ndarray, random: np.random.Generator) -> np.ndarray:
        first = self.wide.first[tasks]
        return first + (random.random(tasks.shape) * (self.wide.first[tasks + 1] - first)).astype(np.int64)


def wide_search(
    problem: PlanProblem, planner: str, budget: SearchBudget, best: Callable[[Search], tuple[np.ndarray, np.ndarray]]
) -> Plan:
    """Search for a plan of parallel tasks, starting from plans of list algorithms.

    best: function that returns a search's best candidate: an option (mode and devices) and a priority for each task.
    """
    instance = parallel.wide(problem, planner)
    rules = {"heft": parallel.wide_heft, "mct": parallel.wide_mct}
    seeds = {name: parallel.shortest(instance, rule) for name, rule in rules.items()}
    name = min(seeds, key=lambda one: seeds[one].makespan)
    made, schedule = seeds[name], Schedule.empty(instance.size)
    for one in made.placed:
        seconds = float(instance.seconds[one.option])
        schedule.put(int(instance.task[one.option]), one.start, seconds, kind=0, lane=one.option)
    landscape, seed = WideRanked(instance), Seed(schedule, name, parallel.wide_bound(instance))
    search = Search(landscape, seed, budget, random=problem.random or np.random.default_rng(0), seeds=[seed])
    if not search.hopeless:
        made = min(made, *landscape.candidates(*(one[None] for one in best(search))), key=lambda one: one.makespan)
    plan = parallel.wide_plan(instance, made.placed)
    notes = {"seed": name, "seed_makespan": seeds[name].makespan - problem.origin}
    return replace(plan, notes=plan.notes | notes | budget.notes)


def _padded(rows: list[list[int]], blank: int) -> np.ndarray:
    matrix = np.full((len(rows), max([1, *map(len, rows)])), blank, dtype=np.int64)
    for number, row in enumerate(rows):
        matrix[number, : len(row)] = row
    return matrix


def _levels(before: np.ndarray) -> list[np.ndarray]:
    """Group tasks by the length (1, 2, ...) of the longest chain of predecessors."""
    depth = np.zeros(len(before) + 1, dtype=np.int64)
    depth[-1] = -1
    for task in range(len(before)):
        depth[task] = depth[before[task]].max() + 1
    return [np.flatnonzero(depth[:-1] == level) for level in range(1, int(depth.max(initial=0)) + 1)]


@dataclass
class Search:
    """A search for a schedule of an instance: candidates, start schedule and budget."""

    landscape: Landscape
    seed: Seed
    budget: SearchBudget
    random: np.random.Generator
    seeds: list[Seed]
    descent: bool = True  # True if the search ends with moves and exchanges of tasks

    @classmethod
    def from_instance(cls, instance: Instance, evaluations: int, seconds: float | None, descent: bool = True) -> Search:
        budget = SearchBudget(evaluations, seconds)  # its clock runs from here on
        traffic = None
        if bound_together(instance):
            traffic = traffic_of(instance, instance.problem.tasks.predecessors or [()] * instance.size)
        landscape = Ranked(instance, traffic) if bound_together(instance) else Loads(instance)
        random = instance.problem.random or np.random.default_rng(0)
        seeds = seeds_of(instance, traffic)
        best = min(seeds, key=lambda seed: seed.schedule.makespan)
        return cls(landscape, best, budget, random=random, seeds=seeds, descent=descent)

    @property
    def hopeless(self) -> bool:
        """Return True if no search is needed: the best initial schedule meets the bound."""
        arrival = self.landscape.instance.problem.tasks.arrival
        if not len(arrival):
            return True
        floor = 0.0 if self.seed.bound is None else self.seed.bound
        return self.seed.schedule.makespan - float(arrival.min()) <= floor

    def finished(self, schedule: Schedule) -> Plan:
        """Return the plan of `schedule`, or of an initial schedule (seed) that is shorter.

        Plans are compared by timetable or, if one is inexact and there is an engine, by simulation on estimates.
        """
        instance = self.landscape.instance
        bound = self.seed.bound
        plans = [plan_of(instance, seed.schedule, bound, draft=True) for seed in self.seeds]
        if all(schedule is not seed.schedule for seed in self.seeds):
            plans.append(plan_of(instance, schedule, bound, descent=self.descent, draft=True))
        if not all(plan.notes["timetable"] == "exact" for plan in plans):
            for plan in plans:
                plan.makespan = simulated(instance.problem, plan)
        spans = [span_of(plan) for plan in plans]
        seed_span = min(spans[: len(self.seeds)])
        planner = self.seeds[spans.index(seed_span)].planner
        plan = plans[spans.index(min(spans))]
        ahead = with_prefetches(instance, plan)
        if ahead.copies and (makespan := simulated(instance.problem, ahead)) < min(spans):
            plan = replace(ahead, makespan=makespan)
        plan.notes |= {"seed": planner, "seed_makespan": seed_span, **self.budget.notes}
        return finished(instance, plan, judged=True)


def simulated(problem: PlanProblem, plan: Plan) -> float:
    """Simulated makespan of a plan on the estimates; inf if memory forbids the order.

    If the problem was not made by a run, it cannot be simulated, and the planned makespan is returned.
    """
    try:
        return problem.simulate(plan)
    except PolicyError:
        return np.inf
    except UsageError:
        return span_of(plan)


def span_of(plan: Plan) -> float:
    assert plan.makespan is not None
    return plan.makespan


def check_budget(evaluations: int, seconds: float | None, planner: str) -> None:
    """Raise ScenarioError unless evaluations >= 1 and 0 <= seconds < inf (or None)."""
    if evaluations < 1 or (seconds is not None and not 0 <= seconds < np.inf):
        raise refusal(f"{planner} needs a budget: evaluations at least 1, and seconds at least 0 and finite")
