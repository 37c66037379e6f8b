"""Column pricing: an integer program over few pairs, chosen by LP prices.

Decides where, for independent tasks on any number of device types that are all there at once.
The program of `lst` gives prices w of lanes, with sum 1, and a lower bound; its plan is the first schedule, U long.
The reduced cost of task j on lane s is w_s p_js - min_r w_r p_jr.  No schedule shorter than U has a pair that costs
more than U - Σ_j min_r w_r p_jr.  Of the others, those remain that cost at most `SHARE` of U over the lanes' number,
and the `FEW` cheapest at least.  The integer program over them is solved to `gap`, and a descent follows.
With more than `LANES` lanes, `restarts` programs follow each other, each of the longest and of random lanes.
Reference: Gogos, Valouxis, Alefragis, Goulas, Voros, Housos, Scheduling Independent Tasks on Heterogeneous Processors
Using Heuristics and Column Pricing (FGCS 60, 2016); limits on pairs and lanes, descent and restarts are ours.
Ratio 2, as the plan is never longer than that of `lst`; the certified bound is that of the linear program.
Weakness: with arrivals, shared items or more than `MAX_PAIRS` pairs in a program, it is the plan of `lst`.
Cost: `restarts` integer programs of at most `node_limit` nodes (HiGHS), a few seconds each for 512 tasks on 16 lanes.
The same plan on every machine, unless `time_limit` ends a search: nodes do not limit the solver's own heuristics.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Plan
from hetsim.model.units import Seconds
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.assignment import AssignmentProgram, by_lane, ordered, times_at
from hetsim_policies.static.common.bounds import TOLERANCE
from hetsim_policies.static.common.descent import descended, improved, is_additive
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Instance, independent
from hetsim_policies.static.common.outcome import finished, plan_of
from hetsim_policies.static.common.schedule import Schedule
from hetsim_policies.static.common.unrelated import good_prices
from hetsim_policies.static.integer_program import Whole
from hetsim_policies.static.lst import RATIO, roundings

Part = Annotated[float, Field(ge=0, lt=1)]
Limit = Annotated[Seconds, Field(gt=0)]

SHARE = 0.011
"""Part of the makespan, over the number of lanes, that the reduced cost of a pair may have."""
FEW = 600
"""Pairs up to which a program needs no limit but the one that loses nothing."""
LANES = 16
"""Lanes of a program at most."""
MAX_PAIRS = 10_000
"""Larger programs are not tried: they take minutes to get to their first node."""
ROOM = 1.01
"""A solution may be longer than the schedule there is by this factor: the descent may make it shorter."""


class ColumnPricing(PlannedScheduler):
    """Integer programs over the pairs of minimum reduced cost, independent tasks.

    gap: a plan within this part of the lower bound is good enough, as is a program's solution within it of its own.
    restarts: programs at most, where there are more than 16 lanes.
    node_limit: nodes of the search tree of a program at most.
    time_limit: seconds of all searches together at most; the plan then depends on the machine.
    """

    def __init__(self, gap: Part = 0.004, restarts: Whole = 12, node_limit: Whole = 100, time_limit: Limit = 60.0):
        super().__init__()
        self.gap, self.restarts, self.node_limit, self.time_limit = gap, restarts, node_limit, time_limit

    def plan(self, problem: PlanProblem) -> Plan:
        instance, arrival = independent(problem, "column_pricing"), problem.tasks.arrival
        (schedule, *others), bound = roundings(instance.time, instance.counts, arrival, instance.free)
        bound = max(bound, graph_bound(instance.time, instance.counts, [()] * instance.size, arrival))
        schedules = [schedule, descended(instance, schedule, bound, others)]
        if is_additive(instance):
            schedules.append(self._repriced(instance, schedules[1], bound))
        plans = [plan_of(instance, one, bound, RATIO, draft=True) for one in schedules]
        return finished(instance, min(plans, key=lambda plan: plan.makespan or 0.0))

    def _repriced(self, instance: Instance, schedule: Schedule, bound: float) -> Schedule:
        """The schedule after the programs."""
        sites = by_lane(instance)
        times, kind = times_at(instance, sites), np.array([site.kind for site in sites])
        lane = np.searchsorted(kind, schedule.kind) + schedule.lane
        since = np.zeros(len(sites))
        if instance.free is not None:
            since = np.maximum(0.0, np.concatenate(instance.free) - float(instance.problem.tasks.arrival[0]))
        prices = good_prices(instance.time, instance.counts)[kind]
        end = time.perf_counter() + self.time_limit
        random = np.random.default_rng(0)  # restarts are part of the algorithm, not of the run's randomness
        load = loads(times, lane, since)
        for _ in range(self.restarts if len(sites) > LANES else 1):
            seconds = end - time.perf_counter()
            if load.max() <= bound * (1 + self.gap) or seconds <= 0:
                break
            chosen = np.argsort(-load, kind="stable")
            rest = random.permutation(chosen[LANES // 2 :])
            chosen = np.sort(np.append(chosen[: LANES // 2], rest[: LANES // 2]))
            trial = self._solved(times, lane, chosen, since=since, prices=prices, seconds=seconds)
            trial = improved(instance.time, instance.counts, trial, enough=bound, since=since, rounds=0)
            after = loads(times, trial, since)
            if after.max() <= load.max():
                lane, load = trial, after
        return ordered(instance, sites, lane)

    def _solved(
        self, times: np.ndarray, lane: np.ndarray, lanes: np.ndarray, since: np.ndarray, prices: np.ndarray,
        seconds: float,
    ) -> np.ndarray:  # fmt: skip
        """The lane of each task after the program of some lanes, unchanged without one."""
        tasks = np.flatnonzero(np.isin(lane, lanes))
        own, at = times[np.ix_(tasks, lanes)], np.searchsorted(lanes, lane[tasks])
        makespan = float(loads(times, lane, since)[lanes].max())
        keep = cheap_pairs(own, prices[lanes], since[lanes], makespan)
        keep[np.arange(len(tasks)), at] = True
        if keep.sum() > MAX_PAIRS:
            return lane
        # A lane that is occupied at first has a task more, which can run there only.
        occupied = np.where(np.eye(len(lanes), dtype=bool), since[lanes], np.inf)
        allowed = np.vstack([np.where(keep, own, np.inf), occupied])
        program = AssignmentProgram(allowed, [1] * len(lanes), makespan * ROOM, longest=False)
        site_of = program.integral(self.node_limit, seconds, self.gap).site_of
        result = lane.copy()
        result[tasks] = lane[tasks] if site_of is None else lanes[site_of[: len(tasks)]]
        return result


def loads(times: np.ndarray, lane: np.ndarray, since: np.ndarray) -> np.ndarray:
    """When each lane is free, given the lane of each task."""
    return since + np.bincount(lane, times[np.arange(len(lane)), lane], minlength=len(since))


def cheap_pairs(times: np.ndarray, prices: np.ndarray, since: np.ndarray, makespan: float) -> np.ndarray:
    """Pairs of task and lane of small reduced cost, by prices of the lanes.

    If no pair is left out but by `makespan`, every shorter schedule consists of pairs that remain.
    """
    worth = prices / prices.sum() if prices.sum() > 0 else np.full(len(prices), 1 / max(1, len(prices)))
    allowed = np.isfinite(times)
    cost = np.where(allowed, np.where(allowed, times, 0.0) * worth, np.inf)
    cheapest = cost.min(axis=1, keepdims=True, initial=np.inf)
    reduced = np.where(allowed, cost - cheapest, np.inf)
    slack = makespan - float(cheapest.sum()) - float(since @ worth)
    few = np.sort(reduced, axis=None)[:FEW][-1:].max(initial=0.0)
    return reduced <= min(slack * (1 + TOLERANCE), max(SHARE * makespan / len(prices), few))
