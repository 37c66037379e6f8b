"""Searches from planners' schedules: genetic algorithm, annealing, local search.

Each planner changes a schedule at random until a budget is spent.  The first two change the lane (core or GPU) and the
order key of tasks (`hetsim_policies.static.common.search`), the third changes a plan that the engine simulates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from hetsim.errors import HetsimError
from hetsim.model.plan import Plan
from hetsim.model.units import Seconds
from hetsim.policy import PlanProblem
from hetsim_policies.dynamic.earliest import Dmda, Dmdas
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import DescendingPlanner, finished, plan_of, planned
from hetsim_policies.static.common.parallel import parallel
from hetsim_policies.static.common.prefetches import with_prefetches
from hetsim_policies.static.common.ranks import traffic_of
from hetsim_policies.static.common.search import (
    Landscape,
    Loads,
    Search,
    SearchBudget,
    check_budget,
    seeds_of,
    simulated,
    wide_search,
)
from hetsim_policies.static.common.timing import Placed, timing
from hetsim_policies.task_graphs import graph_of, successors

RIVALS = 3  # tournament size: the best of this number of random candidates becomes a parent
COLDEST = 1e-3  # temperature at the end, as a fraction of that at the start
HOTTEST = 0.02  # threshold at the start, as a fraction of the best makespan
FALSE_HOPE = 1.02  # a change whose timetable exceeds the former one by this factor is not simulated
HOPES = 200  # this number of consecutive changes that are not simulated ends the search


class BudgetedSearch(DescendingPlanner):
    """Base of planners that search until a budget is spent.

    evaluations: number of schedules evaluated (makespan computed); only a tenth of it if tasks are parallel, since each
        evaluation then takes longer.
    seconds: wall-clock seconds of the search, instead of `evaluations`; two runs with one seed then need not give the
        same plan, and its notes say that it is not deterministic.
    """

    name: ClassVar[str]  # name of the planner in messages

    def __init__(self, evaluations: int, seconds: float | None, descent: bool):
        super().__init__(descent)
        check_budget(evaluations, seconds, self.name)
        self.evaluations, self.seconds = evaluations, seconds

    def plan(self, problem: PlanProblem) -> Plan:
        if parallel(problem):
            budget = SearchBudget(max(1, self.evaluations // 10), self.seconds)
            return wide_search(problem, self.name, budget, self.best)
        search = Search.from_instance(runnable(problem, self.name), self.evaluations, self.seconds, self.descent)
        if search.hopeless:
            return search.finished(search.seed.schedule)
        return search.finished(search.landscape.schedule(*self.best(search)))

    def best(self, search: Search) -> tuple[np.ndarray, np.ndarray]:
        """Return the best schedule found: device and order key (ascending) of each task."""
        raise NotImplementedError


class Genetic(BudgetedSearch):
    """Genetic algorithm, for sequential and parallel tasks with or without a graph.

    Schedules are recombined and changed at random, better schedules more often.  Decides the core or GPU of each task;
    for task graphs, or if tasks read items, also the order (each task has a key, by which tasks are list-scheduled).
    Each generation is made from the previous one: two parents, each the best of three random candidates, contribute
    each task's lane and key with equal probability; then some tasks get a random new lane or key, or the lane of
    another task.  The best few schedules remain unchanged.
    Reference: Holland, Adaptation in Natural and Artificial Systems (1975); for this problem the GA of Braun et al., A
    Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks onto Heterogeneous Distributed
    Computing Systems (2001), and for graphs Wang, Siegel, Roychowdhury, Maciejewski, Task Matching and Scheduling in
    Heterogeneous Computing Environments Using a Genetic-Algorithm-Based Approach (1997), the source of the two strings
    (lanes and keys).  No ratio is proven; the first generation has a fast planner's schedule and variations of it, so
    the planned makespan is never above that of the fast planner (the better of greedy_dual and mct for independent
    tasks, heft for graphs).  Weakness: many evaluations for little gain; a uniform crossover separates assignments that
    fit together.  Transfers are counted as in `heft` for graphs, and ignored for independent tasks.  For parallel tasks
    the options (device type and width) and keys are searched, from the better of heft and mct.
    Cost: per evaluation of n tasks O(n), with arrivals O(n log n), for graphs O(n × maximum predecessors of a task),
    vectorized over the schedules of a generation; for parallel tasks about 10 us per task, one schedule at a time.

    population: number of schedules per generation.
    mutation: mean number of tasks of a child that change at random.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})
    name = "genetic"

    def __init__(
        self,
        evaluations: Annotated[int, Field(ge=1, le=10**9)] = 20_000,
        seconds: Seconds | None = None,
        population: Annotated[int, Field(ge=2, le=10_000)] = 64,
        mutation: Annotated[float, Field(gt=0, le=1000)] = 1.0,
        descent: bool = True,
    ):
        super().__init__(evaluations, seconds, descent)
        self.population, self.mutation = population, mutation

    def best(self, search: Search) -> tuple[np.ndarray, np.ndarray]:
        landscape, random = search.landscape, search.random
        lane, key = landscape.encoded(search.seed.schedule)
        lanes, keys = np.tile(lane, (self.population, 1)), np.tile(key, (self.population, 1))
        first = slice(1, None)  # the seed itself stays
        mutate(landscape, lanes[first], keys[first], mutation=self.mutation, random=random)
        granted = search.budget.spend(self.population)
        lanes, keys = lanes[:granted], keys[:granted]
        if not granted:
            return lane, key
        length = landscape.makespans(lanes, keys)
        while granted := search.budget.spend(max(1, self.population - max(1, self.population // 16))):
            ranked = np.argsort(length, kind="stable")
            kept = ranked[: max(1, self.population // 16)]
            # Positions in the ranking: the least of those drawn is the best.
            parents = ranked[random.integers(len(ranked), size=(2, granted, RIVALS)).min(axis=2)]
            mine = random.random((granted, lanes.shape[1])) < 0.5
            young = np.where(mine, lanes[parents[0]], lanes[parents[1]])
            young_keys = np.where(mine, keys[parents[0]], keys[parents[1]]) if landscape.uses_keys else keys[parents[0]]
            mutate(landscape, young, young_keys, mutation=self.mutation, random=random)
            lanes, keys = np.concatenate([lanes[kept], young]), np.concatenate([keys[kept], young_keys])
            length = np.concatenate([length[kept], landscape.makespans(young, young_keys)])
        best = int(length.argmin())
        return lanes[best], keys[best]


class SimulatedAnnealing(BudgetedSearch):
    """Simulated annealing, for sequential and parallel tasks with or without a graph.

    One schedule is changed move by move; moves that make it longer are accepted ever more rarely.  Decides the core or
    GPU of each task; for task graphs, or if tasks read items, also the order (each task has a key, by which tasks are
    list-scheduled).  A move assigns a task to another core or GPU, exchanges two tasks or, with keys, gives a task a
    new random key.  Half of the moves change a task of the core or GPU that finishes last.  `moves` moves are evaluated
    together from the same schedule.  Each is accepted with probability min(1, exp(-Δ/T)) for an increase Δ of the
    objective (Metropolis' rule); the first accepted move is made, and later ones are discarded.  The temperature T
    falls geometrically while the budget is spent.  The objective is the makespan plus the root mean square of the end
    times of the cores and GPUs, since most moves change only the second term.
    Reference: Kirkpatrick, Gelatt, Vecchi, Optimization by Simulated Annealing (1983); for this problem the SA of Braun
    et al., A Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks onto Heterogeneous
    Distributed Computing Systems (2001).
    No ratio is proven; the search begins with a fast planner's schedule (the better of greedy_dual and mct for
    independent tasks, heft for graphs), and the planned makespan is never above that of this schedule.
    Weakness: at high temperature most of the moves evaluated together are wasted; convergence to an optimum would need
    much slower cooling (Hajek, Cooling Schedules for Optimal Annealing, 1988).  Transfers are counted as in `heft` for
    graphs, and ignored for independent tasks.  For parallel tasks the options (device type and width) and keys are
    searched, from the better of heft and mct.  Cost: O(cores + GPUs) per move of independent tasks, with arrivals O(n
    log n); for graphs O(n × maximum predecessors of a task); for parallel tasks about 10 us per task.

    evaluations: number of moves evaluated.
    moves: number of moves evaluated together.
    temperature: temperature at the start, as a fraction of the mean time of a task in the seed schedule.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})
    name = "simulated_annealing"

    def __init__(
        self,
        evaluations: Annotated[int, Field(ge=1, le=10**9)] = 10_000,
        seconds: Seconds | None = None,
        moves: Annotated[int, Field(ge=1, le=100_000)] = 8,
        temperature: Annotated[float, Field(gt=0, le=100)] = 0.3,
        descent: bool = True,
    ):
        super().__init__(evaluations, seconds, descent)
        self.moves, self.temperature = moves, temperature

    def best(self, search: Search) -> tuple[np.ndarray, np.ndarray]:
        landscape, random, budget = search.landscape, search.random, search.budget
        lanes, keys = landscape.encoded(search.seed.schedule)
        ends = landscape.ends(lanes[None], keys[None])[0]
        hottest = self.temperature * float((search.seed.schedule.finish - search.seed.schedule.start).mean())
        now = float(_height(ends[None])[0])
        best, best_length = (lanes.copy(), keys.copy()), float(ends.max())
        while granted := budget.spend(self.moves):
            heat = hottest * COLDEST**budget.part
            drawn = propose(landscape, lanes, keys, ends=ends, count=granted, random=random)
            after = ends_after(landscape, lanes, keys, ends=ends, moves=drawn)
            passes = _height(after) - now <= -heat * np.log1p(-random.random(granted))
            if not passes.any():
                continue
            chosen = int(passes.argmax())  # the first: those after it count as not tried
            drawn.made(chosen, lanes, keys)
            # Anew, since differences would add up their rounding.
            ends = landscape.ends(lanes[None], keys[None])[0] if isinstance(landscape, Loads) else after[chosen]
            now = float(_height(ends[None])[0])
            if ends.max() < best_length:
                best, best_length = (lanes.copy(), keys.copy()), float(ends.max())
        return best


def mutate(
    landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, mutation: float, random: np.random.Generator
) -> None:
    """Change candidates in place; a row of `lanes` and of `keys` is one candidate.

    A candidate has a device (lane) and a priority (key) for each task.  A change is a new device of a task, an exchange
    of the devices of two tasks, or a new priority.  mutation: mean number of changes per candidate.
    """
    rows, size = lanes.shape
    count = random.poisson(mutation * rows)
    row, task, other = random.integers(rows, size=count), *random.integers(size, size=(2, count))
    way = random.integers(3 if landscape.uses_keys else 2, size=count)
    drawn = landscape.random_lanes(task, random)
    moved = way == 0
    lanes[row[moved], task[moved]] = drawn[moved]
    swapped = way == 1
    row_, one, two = row[swapped], task[swapped], other[swapped]
    mine, theirs = lanes[row_, one], lanes[row_, two]
    fits = landscape.can_run(one, theirs) & landscape.can_run(two, mine)
    # Where one task is drawn twice in a row, the last assignment stands: its lane is one that can run it all the same.
    lanes[row_[fits], one[fits]] = theirs[fits]
    lanes[row_[fits], two[fits]] = mine[fits]
    if landscape.uses_keys:
        keyed = way == 2
        keys[row[keyed], task[keyed]] = random.random(int(keyed.sum()))


@dataclass
class Moves:
    """Possible changes of one schedule; each field has one value per change.

    `task` moves to device `lane` with priority `key`.  In an exchange `other` moves to `back`, where `task` was; other
    is -1 if nothing is exchanged.
    """

    task: np.ndarray
    lane: np.ndarray
    key: np.ndarray
    other: np.ndarray
    back: np.ndarray

    def made(self, number: int, lanes: np.ndarray, keys: np.ndarray) -> None:
        lanes[self.task[number]] = self.lane[number]
        if self.other[number] >= 0:
            lanes[self.other[number]] = self.back[number]
        if len(keys):
            keys[self.task[number]] = self.key[number]


def _height(ends: np.ndarray) -> np.ndarray:
    """Objective to minimize: makespan + root mean square of the lanes' end times."""
    return ends.max(axis=1) + np.sqrt(np.square(ends).mean(axis=1))


def propose(
    landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, ends: np.ndarray, count: int, random: np.random.Generator
) -> Moves:
    """Draw random moves, half of them of tasks on the device that ends last."""
    size = len(lanes)
    task = random.integers(size, size=count)
    if len(last := landscape.last_ones(lanes, ends)):
        half = count - count // 2
        task[:half] = last[random.integers(len(last), size=half)]
    lane = landscape.random_lanes(task, random)
    way = random.integers(3 if len(keys) else 2, size=count)
    other = np.where(way == 1, random.integers(size, size=count), -1)
    back = lanes[task]
    theirs = lanes[other]
    fits = landscape.can_run(task, theirs) & landscape.can_run(other, back) & (other != task)
    other = np.where((way == 1) & fits, other, -1)
    lane = np.where(other >= 0, theirs, np.where(way == 2, back, lane))
    key = np.where(way == 2, random.random(count), keys[task]) if len(keys) else np.empty(0)
    return Moves(task, lane, key, other=other, back=back)


def ends_after(landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, ends: np.ndarray, moves: Moves) -> np.ndarray:
    """Return the end times of all cores and GPUs after each move."""
    count = len(moves.task)
    every = np.arange(count)
    swapped = moves.other >= 0
    if isinstance(landscape, Loads) and landscape.together:
        after = np.tile(ends, (count, 1))
        after[every, moves.back] -= landscape.times(moves.task, moves.back)
        after[every, moves.lane] += landscape.times(moves.task, moves.lane)
        rows, other = every[swapped], moves.other[swapped]
        after[rows, moves.lane[swapped]] -= landscape.times(other, moves.lane[swapped])
        after[rows, moves.back[swapped]] += landscape.times(other, moves.back[swapped])
        return after
    trial, trial_keys = np.tile(lanes, (count, 1)), np.tile(keys, (count, 1))
    trial[every, moves.task] = moves.lane
    trial[every[swapped], moves.other[swapped]] = moves.back[swapped]
    if len(keys):
        trial_keys[every, moves.task] = moves.key
    return landscape.ends(trial, trial_keys)


class LocalSearch(BudgetedSearch):
    """Local search on the simulated makespan, for sequential tasks, graphs included.

    Decides where, in which order, and which inputs are prefetched.  It begins with the plans of fast planners, and of
    dmda and dmdas run on the estimates, and simulates each without and with prefetches (inputs of a GPU's next task are
    transferred while the previous task computes).  Then it changes the best plan, and the engine simulates each change
    with contention, memory and prefetches: a task is moved to another core or GPU, to another position in the order
    between its predecessors and successors, or both.  A change is not simulated if the plan would be much longer even
    on idle links (`timing`).  A change is undone if the plan then ends later than the best plan by more than a
    threshold, which falls to 0 while the budget is spent.
    Reference: threshold accepting is that of Dueck, Scheuer, Threshold Accepting: A General Purpose Optimization
    Algorithm Appearing Superior to Simulated Annealing (1990).
    No ratio: the simulated makespan is never above that of any of its seeds, on the estimates.
    Weakness: every evaluation is a run; it ignores errors of the estimates.
    Cost: one simulation per evaluation, about 10 ms for 100 tasks.

    evaluations: number of simulated plans, seeds included.
    """

    name = "local_search"

    def __init__(self, evaluations: Annotated[int, Field(ge=1, le=10**9)] = 200, seconds: Seconds | None = None):
        super().__init__(evaluations, seconds, descent=False)

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, self.name)
        budget = SearchBudget(self.evaluations, self.seconds)
        bound = 0.0
        if not instance.pipelined:
            bound = graph_bound(instance.time, instance.counts, graph_of(problem.tasks), problem.tasks.arrival)
        search = Climb(instance, budget, problem.random or np.random.default_rng(0), bound)
        best = search.run()
        idle = planned(instance, best.rows, bound, draft=True)
        notes = idle.notes | {"seed": best.seed, "seed_makespan": search.seeded, **budget.notes}
        lower = None if idle.bound is None else min(idle.bound, best.makespan)
        if best.plan.steps != idle.steps:  # dmda may choose another mode on the same lane
            notes["timetable"] = "idle links"
        made = replace(best.plan, makespan=best.makespan, bound=lower, notes=notes, timetable=idle.timetable)
        return finished(instance, made, judged=True)


@dataclass(frozen=True)
class Found:
    """A simulated plan, its entries (`rows`), makespan, and the planner it began from."""

    rows: tuple[Placed, ...]
    plan: Plan
    makespan: float
    seed: str
    ahead: bool  # True if the inputs of the next task of each GPU are prefetched


class Climb:
    def __init__(self, instance: Instance, budget: SearchBudget, random: np.random.Generator, bound: float):
        self.enough = bound * (1 + 1e-9) if not instance.problem.in_mid_run else 0.0
        self.instance, self.budget, self.random = instance, budget, random
        self.problem = instance.problem
        self.graph = graph_of(self.problem.tasks)
        self.after = successors(self.graph)
        self.number = {
            name: (kind, lane) for kind, names in enumerate(instance.lanes) for lane, name in enumerate(names)
        }
        self.moves_items = any(self.problem.tasks.reads or ())
        self.seeded = np.inf

    def run(self) -> Found:
        ways = ((seed, plan, (None, False, True) if plan.copies else (False, True)) for seed, plan in self._seeds())
        tries = (self._tried(plan, seed, ahead) for seed, plan, choices in ways for ahead in choices)
        # The first seed is tried whatever the budget.
        best = min((one for one in tries if one is not None), key=lambda one: one.makespan)
        self.seeded = best.makespan
        return self._climbed(best) if self.instance.size > 1 else best

    def _seeds(self) -> Iterator[tuple[str, Plan]]:
        instance, problem = self.instance, self.problem
        for seed in seeds_of(instance, traffic_of(instance, self.graph)):
            yield seed.planner, plan_of(instance, seed.schedule, draft=True)
        for name, scheduler in (("dmda", Dmda()), ("dmdas", Dmdas())):
            try:
                plan = problem.rehearse(scheduler)
            except HetsimError:  # no engine, or a policy that cannot serve these tasks
                continue
            if len(plan.steps) == instance.size and all(step.devices[0] in self.number for step in plan.steps):
                yield name, plan

    def _tried(self, plan: Plan, seed: str, ahead: bool | None) -> Found | None:
        """Simulate a plan of a fast planner, and count it as a candidate.

        seed: name of the planner.  ahead: None keeps the plan's own copies of data; False removes them; True replaces
        them by prefetches.  The result is None if the budget is used up, or if no prefetch would move data.
        """
        if (ahead and not self.moves_items) or (not self.budget.spend(1) and self.seeded < np.inf):
            return None
        rows = tuple((step.task, *self.number[step.devices[0]]) for step in plan.steps)
        if ahead is not None:
            plan = replace(plan, copies=[])
            plan = with_prefetches(self.instance, plan) if ahead else plan
        makespan = simulated(self.problem, plan)
        self.seeded = min(self.seeded, makespan)
        return Found(rows, plan, makespan, seed=seed, ahead=bool(plan.copies))

    def _climbed(self, best: Found) -> Found:
        now, hopes = best, HOPES
        idle = self._idle(best.rows)
        while hopes and self.budget.part < 1 and best.makespan > self.enough:
            rows = self._changed(list(now.rows))
            if (there := self._idle(rows)) > FALSE_HOPE * idle:
                hopes -= 1
                continue
            if not self.budget.spend(1):
                break
            hopes = HOPES
            plan = Plan([self.instance.step(*row) for row in rows])
            if now.ahead:
                plan = with_prefetches(self.instance, plan)
            makespan = simulated(self.problem, plan)
            threshold = HOTTEST * (1 - self.budget.part)
            if makespan <= (1 + threshold) * best.makespan:
                now, idle = Found(tuple(rows), plan, makespan, seed=best.seed, ahead=now.ahead), there
                if makespan < best.makespan:
                    best = now
            elif now.makespan > (1 + threshold) * best.makespan:
                now, idle = best, self._idle(best.rows)
        return best

    def _idle(self, rows: Sequence[Placed]) -> float:
        return float(timing(self.instance, rows).finish.max())

    def _changed(self, rows: list[Placed]) -> list[Placed]:
        place = int(self.random.integers(len(rows)))
        task, kind, lane = rows.pop(place)
        low, high = self._between(rows, task)
        to = int(self.random.integers(low, high + 1)) if self.random.random() < 0.6 else min(max(place, low), high)
        if self.random.random() < 0.7:
            kind, lane = self._lane(task)
        rows.insert(to, (task, kind, lane))
        return rows

    def _lane(self, task: int) -> tuple[int, int]:
        usable = np.flatnonzero(np.isfinite(self.instance.time[task]))
        kind = int(usable[self.random.integers(len(usable))])
        return kind, int(self.random.integers(self.instance.counts[kind]))

    def _between(self, rows: list[Placed], task: int) -> tuple[int, int]:
        low, high = 0, len(rows)
        before, after = dict.fromkeys(self.graph[task]), dict.fromkeys(self.after[task])
        for position, (other, _, _) in enumerate(rows):
            if other in before:
                low = position + 1
            elif other in after:
                high = min(high, position)
        return low, high
