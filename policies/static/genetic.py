"""A genetic algorithm: schedules that are recombined and changed at random, the better ones more often.

Decides where tasks run (which lane), and for task graphs, or tasks that read items, also in which order (a key for
each task, list scheduling by keys).  Each generation is born from the one before: two parents, each the best of
three drawn at random, give each task's lane and key with equal chance; then some tasks get a new lane or key, drawn
at random, or the lane of another task.  The best few live on as they are.
Reference: Holland, Adaptation in Natural and Artificial Systems (1975); for this problem the GA of Braun et al., A
Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks onto Heterogeneous Distributed
Computing Systems (2001), and for graphs Wang, Siegel, Roychowdhury, Maciejewski, Task Matching and Scheduling in
Heterogeneous Computing Environments Using a Genetic-Algorithm-Based Approach (1997), the source of the two strings.
No ratio of its own: the first generation holds a fast planner's schedule and its changes (the better of greedy_dual
and mct for independent tasks, heft's for graphs), and the planned makespan is never above that one's.
Weakness: many evaluations for little; a uniform crossover tears apart lanes that go well together.  Of independent
tasks transfers are not counted; of others as in `heft`.
The same seed gives the same plan where the budget is one of evaluations.  With `seconds` it depends on the speed of
the machine, and the plan's notes say that it is not deterministic.
Cost: an evaluation is O(n), with arrivals O(n log n), of graphs O(n × most predecessors of a task); all schedules of
a generation are evaluated together.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from policies.static.common.instance import runnable
from policies.static.common.search import Landscape, Search, check_budget
from sim.model.plan import Plan
from sim.model.units import Seconds
from sim.policy import PlannedScheduler, PlanProblem

RIVALS = 3
"""Tournament size: the best of this number of random draws becomes a parent."""


class Genetic(PlannedScheduler):
    """Genetic algorithm, for sequential tasks with or without a task graph.

    evaluations: number of schedules evaluated (makespan computed) before it ends.
    seconds: instead, wall-clock seconds after which it ends; two runs then need not give the same plan.
    population: schedules of a generation.
    mutation: tasks of a child that change at random, on average.
    descent: end by moving and exchanging tasks of the longest lane (`descent`), of independent tasks there at once.
    """

    def __init__(
        self,
        evaluations: Annotated[int, Field(ge=1, le=10**9)] = 20_000,
        seconds: Seconds | None = None,
        population: Annotated[int, Field(ge=2, le=10_000)] = 64,
        mutation: Annotated[float, Field(gt=0, le=1000)] = 1.0,
        descent: bool = True,
    ):
        super().__init__()
        self.descent = descent
        check_budget(evaluations, seconds, "genetic")
        self.evaluations, self.seconds = evaluations, seconds
        self.population, self.mutation = population, mutation

    def plan(self, problem: PlanProblem) -> Plan:
        search = Search.of(runnable(problem, "genetic"), self.evaluations, self.seconds, self.descent)
        if search.hopeless:
            return search.finished(search.seed.schedule)
        return search.plan(*evolve(search, self.population, self.mutation))


def evolve(search: Search, population: int, mutation: float) -> tuple[np.ndarray, np.ndarray]:
    """Lanes and keys of the best schedule that the budget allowed to find."""
    landscape, random = search.landscape, search.random
    lane, key = landscape.encoded(search.seed.schedule)
    lanes, keys = np.tile(lane, (population, 1)), np.tile(key, (population, 1))
    first = slice(1, None)  # the seed itself stays
    mutate(landscape, lanes[first], keys[first], mutation, random)
    granted = search.budget.spend(population)
    lanes, keys = lanes[:granted], keys[:granted]
    if not granted:
        return lane, key
    length = landscape.makespans(lanes, keys)
    while granted := search.budget.spend(max(1, population - max(1, population // 16))):
        ranked = np.argsort(length, kind="stable")
        kept = ranked[: max(1, population // 16)]
        # Positions in the ranking: the least of those drawn is the best.
        parents = ranked[random.integers(len(ranked), size=(2, granted, RIVALS)).min(axis=2)]
        mine = random.random((granted, lanes.shape[1])) < 0.5
        young = np.where(mine, lanes[parents[0]], lanes[parents[1]])
        young_keys = np.where(mine, keys[parents[0]], keys[parents[1]]) if landscape.uses_keys else keys[parents[0]]
        mutate(landscape, young, young_keys, mutation, random)
        lanes, keys = np.concatenate([lanes[kept], young]), np.concatenate([keys[kept], young_keys])
        length = np.concatenate([length[kept], landscape.makespans(young, young_keys)])
    best = int(length.argmin())
    return lanes[best], keys[best]


def mutate(
    landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, mutation: float, random: np.random.Generator
) -> None:
    """Change some tasks of every row, in place: a random lane, an exchange with another task, or a new key."""
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
    time, kind = landscape.instance.time, landscape.lane_kind
    fits = np.isfinite(time[one, kind[theirs]]) & np.isfinite(time[two, kind[mine]])
    # Where one task is drawn twice in a row, the last assignment stands: its lane is one that can run it all the same.
    lanes[row_[fits], one[fits]] = theirs[fits]
    lanes[row_[fits], two[fits]] = mine[fits]
    if landscape.uses_keys:
        keyed = way == 2
        keys[row[keyed], task[keyed]] = random.random(int(keyed.sum()))
