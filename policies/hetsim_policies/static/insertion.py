"""Insertion planners: one task after the other, into gaps (HEFT, CPOP, PEFT).

All three visit the tasks of a graph in an order of priority, each task after its predecessors, and place each once on
a lane (core or GPU); later tasks may be placed into gaps between earlier ones.  The planners differ in the order and in
the quantity that the chosen lane minimizes.
Cost of all: O((n + edges) lanes), vectorized over the lanes, and a search for gaps.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np

from hetsim.model.plan import Plan
from hetsim.model.tasks import Tasks
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.static.common.graph_bounds import graph_bound
from hetsim_policies.static.common.instance import Free, Schedule, runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.parallel import in_order, listed, parallel, wide, wide_heft, wide_peft, wide_plan
from hetsim_policies.static.common.ranks import Needs, Traffic, by_key, needs, ranking, traffic_of, ways
from hetsim_policies.task_graphs import Graph, Ways, downward, graph_of, topological, upward

# Chooses a task's lane, given its finish on each; ties: the first type and lane
Choice = Callable[[int, np.ndarray], int]


def first_finish(task: int, finish: np.ndarray) -> int:
    return int(finish.argmin())


class InsertionPlanner(PlannedScheduler):
    """Base of planners that place one task after the other (HEFT, CPOP, PEFT).

    insertion: a task may be placed into a gap before tasks that were placed earlier.
    overlap: assume, as the planners' papers do, that data move while the lane (core or GPU) still runs the previous
        task; if false, data move once the lane is free, as in a run of the plan.
    For tasks with transfers, the note `schedule_length` is the length of the schedule under the papers' assumptions
    (idle links, data move while lanes work); the planned makespan is that of a run of the plan.
    """

    name: ClassVar[str]  # name of the planner in messages

    def __init__(self, insertion: bool = True, overlap: bool = True):
        super().__init__()
        self.insertion = insertion
        self.overlap = overlap

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, self.name), problem.tasks
        before = graph_of(tasks)
        given = (instance.time, instance.counts, before, tasks.arrival)
        traffic = traffic_of(instance, before)
        schedule = self.placed(Insertion(*given, traffic, self.insertion, self.overlap, instance.free))
        plan = plan_of(instance, schedule, graph_bound(*given))
        if traffic is not None and schedule.finish.size:
            plan.notes["schedule_length"] = float(schedule.finish.max()) - problem.origin
        return plan

    @classmethod
    def placed(cls, lanes: "Insertion") -> Schedule:
        """Place all tasks on initially idle cores and GPUs."""
        return lanes.fill(*cls.priorities(lanes))

    @classmethod
    def priorities(cls, lanes: "Insertion") -> tuple[list[int], Choice]:
        """Return the tasks in placing order, and the function that chooses their devices."""
        raise NotImplementedError


class Heft(InsertionPlanner):
    """HEFT, for sequential and parallel tasks with or without a task graph.

    HEFT (heterogeneous earliest finish time) places the tasks with the longest path to the end of the graph first, each
    where it finishes first.  For parallel tasks `insertion` and `overlap` are not used.

    Decides where and in which order.  The upward rank of a task is its mean time, its own transfers included, over the
    lanes (cores or GPUs) that can run it, plus the largest term of a successor: the successor's rank + the mean time to
    move the data that it reads from the task.  In descending order of rank each task is placed on the lane where it
    finishes first, if possible into a gap between tasks placed earlier (insertion).
    Reference: Topcuoglu, Hariri, Wu, Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous
    Computing (2002).  No ratio is proven for graphs; the plan has a certified lower bound (`graph_bounds`).  Without a
    graph, arrivals and transfers, tasks are placed by longest mean time first; the makespan is at most m times the
    minimum on m unrelated lanes, and 4/3 - 1/(3m) times the minimum on equal lanes (Graham, 1969).
    A transfer moves an item from where it is written to where it is read, over idle links, hop by hop, starting at the
    end of the writing task.  Initial items on a host, `bytes_in`, `bytes_out`, items that no later task reads, and
    stages given as durations lengthen the task that reads or writes them; initial items are moved to each device once.
    Weakness: it considers one task at a time, and means over unlike devices are uninformative; it ignores contention on
    links, limited memory and copies made for other readers; with `overlap` it assumes that data arrive earlier than
    they do in a run.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    name = "heft"

    def plan(self, problem: PlanProblem) -> Plan:
        return listed(problem, "heft", wide_heft) if parallel(problem) else super().plan(problem)

    @classmethod
    def priorities(cls, lanes: "Insertion") -> tuple[list[int], Choice]:
        return ranking(lanes.times, lanes.counts, lanes.predecessors, lanes.traffic), first_finish


class Cpop(InsertionPlanner):
    """CPOP, for sequential tasks with or without a task graph.

    CPOP (critical path on a processor) places the longest path of the graph on one lane (core or GPU), and other tasks
    where they finish first.

    Decides where and in which order.  The priority of a task is the length of the longest path through it, with mean
    times over the lanes and the mean time to move data (upward plus downward rank).  The path with the highest priority
    is the critical path; all its tasks are placed on the lane with their minimum total time.  The next task is the one
    with the highest priority among the tasks whose predecessors are all placed.  A task off the critical path is placed
    where it finishes first, into a gap if one is long enough.
    Reference: Topcuoglu, Hariri, Wu, Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous
    Computing (2002), which introduces `heft` as well.  No ratio is proven.  Transfers are counted as in `heft`.  If no
    lane can run every task of the critical path, the lane that can run most of these tasks is used, and the remaining
    ones are placed where they finish first.
    Weakness: one lane for the critical path costs much if its tasks are fast on different types: on published
    Cholesky and LU graphs without transfers, on 16 cores and 4 GPUs, it takes up to 3.6 times as long as `heft`.
    """

    name = "cpop"

    @classmethod
    def priorities(cls, lanes: "Insertion") -> tuple[list[int], Choice]:
        need, before = lanes.needs_and_ways()
        order, mean = topological([tuple(earlier) for earlier in before]), need.mean()
        up, down = upward(mean, before, order), downward(mean, before, order)
        path = critical_tasks(up, before)
        home, critical = lane_of_path(need, path, lanes.free), set(path)

        def choice(task: int, finish: np.ndarray) -> int:
            return home if task in critical and np.isfinite(finish[home]) else int(finish.argmin())

        return by_key([-(u + d) for u, d in zip(up, down, strict=True)], before), choice


class Peft(InsertionPlanner):
    """PEFT, for sequential and parallel tasks with or without a task graph.

    PEFT (predict earliest finish time) places a task on the lane from which the graph's end can be reached first.

    Decides where and in which order.  The optimistic cost of a task on a lane (core or GPU) estimates the time from the
    task's end to the end of the graph. For each successor, compute on every lane the successor's time plus its
    optimistic cost plus, on another lane, the mean time to move the data, and take the minimum over the lanes.  The
    maximum over the successors is the optimistic cost.  The next task is the one with the highest mean optimistic cost
    among the tasks whose predecessors are all placed (at ties, as for independent tasks, the longest task).  It is
    placed on the lane where its finish plus its optimistic cost is lowest, into a gap if one is long enough.
    Reference: Arabnejad, Barbosa, List Scheduling Algorithm for Heterogeneous Systems by an Optimistic Cost Table
    (2014).  No ratio is proven.  Transfers are counted as in `heft`.  Lanes of one host share their data here, so
    nothing moves between them; without any transfers the optimistic cost is the same on every lane, and only the order
    differs from that of `heft`.  For parallel tasks the optimistic cost is that of their shortest options, and no gap
    is filled.  Weakness: the optimistic costs ignore that lanes are busy, so they are too low for graphs that are wider
    than the cluster.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    name = "peft"

    def plan(self, problem: PlanProblem) -> Plan:
        return listed(problem, "peft", wide_peft) if parallel(problem) else super().plan(problem)

    @classmethod
    def priorities(cls, lanes: "Insertion") -> tuple[list[int], Choice]:
        need, before = lanes.needs_and_ways()
        ahead = optimistic_costs(need, before)
        keys = np.stack([-need.mean(ahead), -need.mean()], axis=1).tolist()
        return by_key(keys, before), lambda task, finish: int((finish + ahead[task, need.place]).argmin())


def critical_tasks(up: Sequence[float], before: Ways) -> list[int]:
    """Return the tasks of the first critical path (in table order), from start to end."""
    after: list[dict[int, float]] = [{} for _ in before]
    for task, earlier in enumerate(before):
        for writer, seconds in earlier.items():
            after[writer][task] = seconds
    path = []
    heads = {task: 0.0 for task, earlier in enumerate(before) if not earlier}
    while heads:
        task = max(heads, key=lambda later: heads[later] + up[later])  # the first of the greatest
        path.append(task)
        heads = after[task]
    return path


def lane_of_path(need: Needs, path: Sequence[int], free: np.ndarray) -> int:
    """Return the core or GPU that can run most of a path's tasks; ties: the fastest."""
    seconds = need.seconds[list(path)]
    usable = np.isfinite(seconds)
    order = np.lexsort((np.where(usable, seconds, 0.0).sum(axis=0), -usable.sum(axis=0)))
    with_lanes = order[need.lanes[order] > 0]
    if not len(with_lanes):
        return 0
    lanes = np.flatnonzero(need.place == with_lanes[0])
    return int(lanes[free[lanes].argmin()])


def optimistic_costs(need: Needs, before: Ways) -> np.ndarray:
    """Minimum seconds from a task's end to the graph's end, by place, on idle devices."""
    ahead = np.zeros(need.seconds.shape)
    for task in reversed(topological([tuple(earlier) for earlier in before])):
        here = np.where(need.lanes > 0, need.seconds[task] + ahead[task], np.inf)
        best = here.min(initial=np.inf)
        for earlier, seconds in before[task].items():
            np.maximum(ahead[earlier], np.minimum(here, best + seconds), out=ahead[earlier])
    return ahead


class Insertion:
    """A partial schedule on the `counts[t]` cores or GPUs of each type.

    since: time when each lane of each type is first free; None: 0 for all.
    """

    def __init__(
        self, times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None,
        traffic: Traffic | None = None, insertion: bool = True, overlap: bool = True, since: Free = None,
    ):  # fmt: skip
        self.schedule = Schedule.empty(len(times))
        self.times = times
        self.counts = counts
        self.predecessors = predecessors
        self.ready = np.zeros(len(times)) if ready is None else np.asarray(ready, dtype=float)
        self.traffic = traffic
        self.insertion = insertion
        self.overlap = overlap
        self.kind = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))  # type of each lane
        # Number of each lane among those of its type
        self.number = np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(count) for count in counts)])
        # When each lane has done its last task so far
        self.free = np.concatenate([np.empty(0), *since]) if since else np.zeros(len(self.kind))
        self._gaps: list[list[tuple[float, float]]] = [[] for _ in self.kind]
        self._widest = np.zeros(len(self.kind))  # gap
        self._place_of_task = [0] * len(times)
        self._brought = None if traffic is None else np.zeros(traffic.first_cost.shape, dtype=bool)

    def needs_and_ways(self) -> tuple[Needs, Ways]:
        """Return tasks' times on each device, and their predecessors with transfer times."""
        return needs(self.times, self.counts, self.traffic), ways(self.predecessors, self.traffic)

    def fill(self, order: Sequence[int], choice: Choice = first_finish) -> Schedule:
        for task in order:
            begin, cost = self.offer(task)
            self.place(task, choice(task, begin + cost), begin, cost)
        return self.schedule

    def offer(self, task: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the task's start time and occupied seconds on each core or GPU."""
        schedule = self.schedule
        cost = self.times[task, self.kind]
        there = max([float(self.ready[task]), *(float(schedule.finish[p]) for p in self.predecessors[task])])
        starts = np.full(len(self.kind), there)
        if self.traffic is not None:
            cost = cost + self._transfers(task, starts)
        begin = np.maximum(starts, self.free)
        if self.insertion:
            for lane in np.flatnonzero((self._widest >= cost) & (self._widest > 0)).tolist():
                for since, until in self._gaps[lane]:
                    at = max(since, float(starts[lane]))
                    if at + cost[lane] <= until:
                        begin[lane] = at
                        break
        return begin, cost

    def _transfers(self, task: int, starts: np.ndarray) -> np.ndarray:
        """Return by device the seconds of a task's transfers that occupy the device.

        With `overlap`, transfers from predecessors do not occupy the device, but delay the task's earliest `starts`
        there (changed in place).
        """
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
        """Place a task on a core or GPU (lane); begin, cost: start and seconds by lane."""
        start, tail = float(begin[lane]), float(self.free[lane])
        finish = self.schedule.put(
            task, start, float(cost[lane]), kind=int(self.kind[lane]), lane=int(self.number[lane])
        )
        gaps = self._gaps[lane]
        if start >= tail:
            if start > tail:
                gaps.append((tail, start))
            self.free[lane] = finish
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


Criterion = Literal["deadline", "demand", "importance"]


class Prioritized(PlannedScheduler):
    """Priorities: tasks in a given order, each in the first free interval.

    For sequential and parallel tasks, with or without a task graph.  Decides where and when.  `by: deadline` places the
    earliest deadline first (tasks without one last), `demand` the longest task first (by its time on its fastest
    device), `importance` the highest priority first, then the largest weight.  Ties are by arrival, then in table
    order; in a task graph a task is considered once its predecessors have been placed.  A task is placed where it ends
    first, if possible into a gap between tasks placed earlier (parallel tasks fill no gaps; moldable tasks use the
    width that ends first).  Placed tasks never move, so no task can delay a task that was placed before it.
    Reference: Liu and Layland, Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment (1973), for
    deadlines; Graham, Bounds on Multiprocessing Timing Anomalies (1969), for the longest first; Coffman (ed.), Computer
    and Job-Shop Scheduling Theory (1976), for both.  On one lane (core or GPU), if all tasks arrive together, the order
    by deadline minimizes the maximum lateness (Jackson's rule, 1955); with the longest task first the makespan is at
    most 4/3 - 1/(3m) times the minimum on m equal lanes.  Neither result is valid for unlike lanes.  Missed deadlines
    do not invalidate the plan: its notes have their number and the maximum lateness.
    Weakness: it considers one task at a time; a lane is reserved for a task that cannot start yet; transfers are not
    counted.  Cost: O(n lanes) for n tasks, vectorized over the lanes, and a search for gaps.

    by: order of tasks: the earliest `deadline`, the largest `demand` of time, or the highest `importance` first.
    """

    spreads = frozenset({"gpus", "cores", "nodes"})

    def __init__(self, by: Criterion = "deadline"):
        super().__init__()
        if by not in ("deadline", "demand", "importance"):
            raise ValueError(f"by must be deadline, demand or importance; got {by!r}")
        self.by = by

    def plan(self, problem: PlanProblem) -> Plan:
        tasks = problem.tasks
        if parallel(problem):
            # Every option is open to each task: it ends first, whatever that takes from those behind it.
            instance = wide(problem, "prioritized")
            ranked = by_criterion(tasks, instance.fastest()[:, None], self.by)
            plan = wide_plan(instance, in_order(instance, np.ones(len(instance.task), bool), ranked).placed)
            finish = np.zeros(len(tasks))
            assert plan.timetable is not None
            finish[[step.task for step in plan.steps]] = plan.timetable[:, 1]
        else:
            sequential = runnable(problem, "prioritized")
            order = by_criterion(tasks, sequential.time, self.by)
            schedule = prioritized(
                sequential.time, sequential.counts, order, ready=tasks.arrival, predecessors=tasks.predecessors
            )
            plan, finish = plan_of(sequential, schedule), schedule.finish
        plan.notes |= missed(finish, tasks)
        return plan


def missed(finish: np.ndarray, tasks: Tasks) -> dict[str, float]:
    """Number of missed deadlines, and maximum lateness; {} if no deadline is missed."""
    if tasks.deadline is None or np.isnan(tasks.deadline).all():
        return {}
    # A request with stages ends with whichever ends last, and counts once.
    first = np.arange(len(tasks)) if tasks.staged is None else np.unique(tasks.staged.first)
    finish = np.maximum.reduceat(finish, first)
    late = finish - tasks.deadline[first]
    late = late[late > 1e-9 * np.abs(finish)]  # NaN, no deadline, is not
    return {"deadlines_missed": len(late), "deadline_missed_by": float(late.max(initial=0.0))}


def by_criterion(tasks: Tasks, times: np.ndarray, by: Criterion) -> list[int]:
    """Return tasks in placing order, each after its predecessors."""
    blank = np.zeros(len(tasks))
    if by == "deadline":
        deadline = blank if tasks.deadline is None else tasks.deadline
        key = np.where(np.isnan(deadline), np.inf, deadline)
        order = np.lexsort((tasks.arrival, key))
    elif by == "demand":
        order = np.lexsort((tasks.arrival, -times.min(axis=1, initial=np.inf)))
    else:
        priority = blank if tasks.priority is None else tasks.priority
        weight = blank if tasks.weight is None else tasks.weight
        order = np.lexsort((tasks.arrival, -weight, -priority))
    if tasks.predecessors is None:
        return order.tolist()
    topological(tasks.predecessors)  # refuses circles by the table's own rows
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    # Next is the first task of the order with all predecessors placed.
    return order[topological([position[list(tasks.predecessors[task])].tolist() for task in order.tolist()])].tolist()


def prioritized(
    times: np.ndarray, counts: Sequence[int], order: Sequence[int], ready: np.ndarray | None = None,
    predecessors: Graph | None = None,
) -> Schedule:  # fmt: skip
    """Place each task in order where it ends first; at ties, on the first device."""
    return Insertion(times, counts, predecessors or [()] * len(times), ready).fill(order)
