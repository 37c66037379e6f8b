"""Simulated annealing: one schedule, changed move by move; what makes it longer is accepted ever more rarely.

Decides where tasks run (which lane), and for task graphs, or tasks that read items, also in which order (a key for
each task, list scheduling by keys).  A move gives a task another lane, exchanges two tasks or, where there are keys,
draws a new one; every other move concerns a task of the lane that ends last.  `moves` of them are evaluated at once
from the same schedule; each passes with probability min(1, exp(-Δ/T)), and the first that passes is made, as if the
others after it had not been drawn: Metropolis' rule.  T falls geometrically while the budget is spent.  What is to
fall is the makespan plus the root mean square of the ends of the lanes: most moves leave the makespan as it is, and
the second term tells which of them lead anywhere.
Reference: Kirkpatrick, Gelatt, Vecchi, Optimization by Simulated Annealing (1983); for this problem the SA of Braun
et al., A Comparison of Eleven Static Heuristics for Mapping a Class of Independent Tasks onto Heterogeneous
Distributed Computing Systems (2001).
No ratio of its own: it begins with a fast planner's schedule (the better of greedy_dual and mct for independent
tasks, heft's for graphs), and the planned makespan is never above that one's.
Weakness: while it is hot most of the moves evaluated together are in vain; to be sure of an optimum in the limit, it
would have to cool far more slowly (Hajek, Cooling Schedules for Optimal Annealing, 1988).  Of independent tasks
transfers are not counted; of others as in `heft`.
The same seed gives the same plan where the budget is one of evaluations.  With `seconds` it depends on the speed of
the machine, and the plan's notes say that it is not deterministic.
Cost: a move of independent tasks is O(lanes), with arrivals O(n log n); of graphs O(n × most predecessors of a task).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from policies.static.common.instance import runnable
from policies.static.common.search import Landscape, Loads, Search, check_budget
from sim.model.plan import Plan
from sim.model.units import Seconds
from sim.policy import PlannedScheduler, PlanProblem

COLDEST = 1e-3
"""The temperature at the end, as a part of that at the start."""


class SimulatedAnnealing(PlannedScheduler):
    """Simulated annealing, for sequential tasks with or without a task graph.

    evaluations: moves that are evaluated before it ends.
    seconds: instead, wall-clock seconds after which it ends; two runs then need not give the same plan.
    moves: evaluated at once.
    temperature: at the start, as a part of the mean time of a task in the seed schedule.
    descent: end by moving and exchanging tasks of the longest lane (`descent`), of independent tasks there at once.
    """

    def __init__(
        self,
        evaluations: Annotated[int, Field(ge=1, le=10**9)] = 10_000,
        seconds: Seconds | None = None,
        moves: Annotated[int, Field(ge=1, le=100_000)] = 8,
        temperature: Annotated[float, Field(gt=0, le=100)] = 0.3,
        descent: bool = True,
    ):
        super().__init__()
        self.descent = descent
        check_budget(evaluations, seconds, "simulated_annealing")
        self.evaluations, self.seconds = evaluations, seconds
        self.moves, self.temperature = moves, temperature

    def plan(self, problem: PlanProblem) -> Plan:
        search = Search.of(runnable(problem, "simulated_annealing"), self.evaluations, self.seconds, self.descent)
        if search.hopeless:
            return search.finished(search.seed.schedule)
        return search.plan(*anneal(search, self.moves, self.temperature))


@dataclass
class Moves:
    """Changes of one schedule: `task` gets `lane` and `key`, and `other` (-1: none) gets `back`, the lane it had."""

    task: np.ndarray
    lane: np.ndarray
    key: np.ndarray
    other: np.ndarray
    back: np.ndarray

    def made(self, number: int, lanes: np.ndarray, keys: np.ndarray) -> None:
        """Make one of them, in place."""
        lanes[self.task[number]] = self.lane[number]
        if self.other[number] >= 0:
            lanes[self.other[number]] = self.back[number]
        if len(keys):
            keys[self.task[number]] = self.key[number]


def anneal(search: Search, moves: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Lanes and keys of the shortest schedule on the way."""
    landscape, random, budget = search.landscape, search.random, search.budget
    lanes, keys = landscape.encoded(search.seed.schedule)
    ends = landscape.ends(lanes[None], keys[None])[0]
    hottest = temperature * float((search.seed.schedule.finish - search.seed.schedule.start).mean())
    now = float(_height(ends[None])[0])
    best, best_length = (lanes.copy(), keys.copy()), float(ends.max())
    while granted := budget.spend(moves):
        heat = hottest * COLDEST**budget.part
        drawn = propose(landscape, lanes, keys, ends, granted, random)
        after = ends_after(landscape, lanes, keys, ends, drawn)
        heights = _height(after)
        passes = heights - now <= -heat * np.log1p(-random.random(granted))
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


def _height(ends: np.ndarray) -> np.ndarray:
    """The objective to minimize, for each row of completion times."""
    return ends.max(axis=1) + np.sqrt(np.square(ends).mean(axis=1))


def propose(
    landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, ends: np.ndarray, count: int, random: np.random.Generator
) -> Moves:
    """Moves drawn at random, half of them of tasks on the lane that ends last."""
    size = len(lanes)
    task = random.integers(size, size=count)
    last = np.flatnonzero(lanes == int(ends.argmax()))
    if len(last):
        half = count - count // 2
        task[:half] = last[random.integers(len(last), size=half)]
    lane = landscape.random_lanes(task, random)
    way = random.integers(3 if len(keys) else 2, size=count)
    other = np.where(way == 1, random.integers(size, size=count), -1)
    back = lanes[task]
    theirs = lanes[other]
    time, kind = landscape.instance.time, landscape.lane_kind
    fits = np.isfinite(time[task, kind[theirs]]) & np.isfinite(time[other, kind[back]]) & (other != task)
    other = np.where((way == 1) & fits, other, -1)
    lane = np.where(other >= 0, theirs, np.where(way == 2, back, lane))
    key = np.where(way == 2, random.random(count), keys[task]) if len(keys) else np.empty(0)
    return Moves(task, lane, key, other, back)


def ends_after(landscape: Landscape, lanes: np.ndarray, keys: np.ndarray, ends: np.ndarray, moves: Moves) -> np.ndarray:
    """The ends of all lanes after each of the moves."""
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
