"""Lanes with the tasks placed on them so far, and the gaps between: where could the next task go, and when?

What the planners of task graphs share that place one task after the other (heft, cpop, peft).  Transfers are counted
as `policies.static.common.traffic` knows them, and start when the writer has finished.
Cost: O(lanes) a task, vectorized, and a look at the gaps of lanes that have one long enough.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from policies.static.common.graph_bounds import graph_bound
from policies.static.common.instance import Free, runnable
from policies.static.common.outcome import plan_of
from policies.static.common.schedule import Schedule
from policies.static.common.traffic import Traffic, traffic_of
from policies.task_graphs import Graph, graph_of
from sim.model.plan import Plan
from sim.policy import PlannedScheduler, PlanProblem


class InsertionPlanner(PlannedScheduler):
    """Base of the planners that place one task after the other, of a graph or independent.

    insertion: may a task go into a gap before tasks that were placed earlier?
    overlap: do data move while the lane still works on the task before, as in the papers, or, as when the plan is
        followed, once it is free?
    Where data move, the note `schedule_length` is the length of the schedule as the papers count it, over links that
    are idle and while lanes work; the planned makespan is that of the plan as it is followed.
    """

    name: ClassVar[str]
    """As the planner is called in messages."""

    def __init__(self, insertion: bool = True, overlap: bool = True):
        super().__init__()
        self.insertion = insertion
        self.overlap = overlap

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, self.name), problem.tasks
        before = graph_of(tasks)
        given = (instance.time, instance.counts, before, tasks.arrival)
        traffic = traffic_of(instance, before)
        schedule = self.placed(*given, traffic, self.insertion, self.overlap, instance.free)
        plan = plan_of(instance, schedule, graph_bound(*given))
        if traffic is not None and schedule.finish.size:
            plan.notes["schedule_length"] = float(schedule.finish.max()) - problem.origin
        return plan

    def placed(
        self,
        times: np.ndarray,
        counts: Sequence[int],
        predecessors: Graph,
        ready: np.ndarray | None,
        traffic: Traffic | None,
        insertion: bool,
        overlap: bool,
        since: Free,
    ) -> Schedule:
        """The algorithm itself."""
        raise NotImplementedError


class Insertion:
    """A schedule in the making on the `counts[t]` lanes of each type; options as for `InsertionPlanner`.

    since: when each lane of each type is free at first; None: at 0.
    """

    def __init__(
        self,
        times: np.ndarray,
        counts: Sequence[int],
        predecessors: Graph,
        ready: np.ndarray | None = None,
        traffic: Traffic | None = None,
        insertion: bool = True,
        overlap: bool = True,
        since: Free = None,
    ):
        self.schedule = Schedule.empty(len(times))
        self.times = times
        self.predecessors = predecessors
        self.ready = np.zeros(len(times)) if ready is None else np.asarray(ready, dtype=float)
        self.traffic = traffic
        self.insertion = insertion
        self.overlap = overlap
        self.kind = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
        """Type of each lane."""
        self.number = np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(count) for count in counts)])
        """Number of each lane among those of its type."""
        # Completion of the last task on each lane.
        self._end = np.concatenate([np.empty(0), *since]) if since else np.zeros(len(self.kind))
        self._gaps: list[list[tuple[float, float]]] = [[] for _ in self.kind]
        self._widest = np.zeros(len(self.kind))  # gap
        self._place_of_task = [0] * len(times)
        self._brought = None if traffic is None else np.zeros(traffic.first_cost.shape, dtype=bool)

    def offer(self, task: int) -> tuple[np.ndarray, np.ndarray]:
        """When each lane could begin the task, and how long the lane would be held; its predecessors are placed."""
        schedule = self.schedule
        cost = self.times[task, self.kind]
        there = max([float(self.ready[task]), *(float(schedule.finish[p]) for p in self.predecessors[task])])
        starts = np.full(len(self.kind), there)
        if self.traffic is not None:
            cost = cost + self._transfers(task, starts)
        begin = np.maximum(starts, self._end)
        if self.insertion:
            for lane in np.flatnonzero((self._widest >= cost) & (self._widest > 0)).tolist():
                for since, until in self._gaps[lane]:
                    at = max(since, float(starts[lane]))
                    if at + cost[lane] <= until:
                        begin[lane] = at
                        break
        return begin, cost

    def _transfers(self, task: int, starts: np.ndarray) -> np.ndarray:
        """Seconds of transfers on each lane while it is held; `starts` wait for those that come before."""
        traffic, brought = self.traffic, self._brought
        assert traffic is not None and brought is not None
        more = traffic.extra[task].copy()
        for writer, size in traffic.sources[task].items():
            source = self._place_of_task[writer]
            way = traffic.latency[source] + size * traffic.pace[source]
            if self.overlap:
                np.maximum(starts, self.schedule.finish[writer] + way[traffic.place], out=starts)
            else:
                more += way
        for item in traffic.firsts[task]:
            more += np.where(brought[item], 0.0, traffic.first_cost[item])
        return more[traffic.place]

    def place(self, task: int, lane: int, begin: np.ndarray, cost: np.ndarray) -> None:
        """Put a task on one of the lanes as they were offered."""
        start, tail = float(begin[lane]), float(self._end[lane])
        finish = self.schedule.put(task, start, float(cost[lane]), int(self.kind[lane]), int(self.number[lane]))
        gaps = self._gaps[lane]
        if start >= tail:
            if start > tail:
                gaps.append((tail, start))
            self._end[lane] = finish
        else:
            number = next(n for n, (since, until) in enumerate(gaps) if since <= start and finish <= until)
            since, until = gaps.pop(number)
            for gap in ((since, start), (finish, until)):
                if gap[1] > gap[0]:
                    insort(gaps, gap)
        self._widest[lane] = max((until - since for since, until in gaps), default=0.0)
        if self.traffic is not None and self._brought is not None:
            place = self._place_of_task[task] = int(self.traffic.place[lane])
            self._brought[list(self.traffic.firsts[task]), place] = True
