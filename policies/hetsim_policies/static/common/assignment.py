"""Assignment of sequential tasks to places as an LP or MIP with added constraints.

A *site* is a set of equal lanes (cores or GPUs) to which a task is assigned: all lanes of a type, the cores of one
node, one accelerator, or one lane.  Let x[j, s] be the fraction of task j on site s, t[j, s] its time there, and c[s]
the number of lanes of site s:

    minimize T  with  Σ_s x[j, s] = 1  every task is assigned
                         Σ_j t[j, s] x[j, s] ≤ c[s] T   no site works longer than T
                         start[j] ≥ arrival[j],  start[i] + Σ_s t[i, s] x[i, s] ≤ start[j]  for i before j,
                         start[j] + Σ_s t[j, s] x[j, s] ≤ T      (with a graph, arrivals or sites of several lanes)

Every schedule satisfies these rows if T is its makespan, so the minimum T is a lower bound on the makespan of all
schedules.  The minimum of the relaxation (0 ≤ x ≤ 1) is computed from its dual prices, so it is a valid bound whatever
the solver's tolerances.  The constraints that can be added are linear too: `Together`, `Apart`, `Pin`, `Cap`, `Before`
and `Fuse` (in the program like `Together`; the list schedule made from its solution also runs the fused tasks one after
the other).  The program ignores transfers unless a `Cap` includes them.
References: the program is that of Lenstra, Shmoys and Tardos, Approximation Algorithms for Scheduling Unrelated
Parallel Machines (1990), with paths as in Kedad-Sidhoum, Monna, Trystram, Scheduling Tasks with Precedence Constraints
on Hybrid Multi-core Machines (2015); the bound from approximate prices is that of Neumaier and Shcherbina, Safe Bounds
in Linear and Mixed-Integer Linear Programming (2004).
Cost: tasks × sites variables; the solver is HiGHS, through scipy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.model.device import Device
from hetsim_policies.common import grouped
from hetsim_policies.static.common.instance import Instance, Schedule
from hetsim_policies.static.common.ranks import Traffic, ranking
from hetsim_policies.static.lists import graham
from hetsim_policies.task_graphs import Graph, graph_of

ROUNDING = 1e-6  # Tolerance of HiGHS: for a number that is nearly an integer, and for a violated row


@dataclass(frozen=True)
class LaneSite:
    """A site: equal cores or GPUs (lanes) of one type.

    `lanes`: numbers of the lanes within the type; `place`: the device whose memory all lanes use, or None.
    """

    kind: int
    lanes: tuple[int, ...]
    place: Device | None = None


def by_type(instance: Instance) -> list[LaneSite]:
    """Return one site per type, with all its cores or GPUs."""
    return [LaneSite(kind, tuple(range(count))) for kind, count in enumerate(instance.counts)]


def by_lane(instance: Instance) -> list[LaneSite]:
    """Return a site (place to which tasks are assigned) per core or GPU, by type."""
    return [LaneSite(kind, (lane,)) for kind, count in enumerate(instance.counts) for lane in range(count)]


def by_place(instance: Instance) -> list[LaneSite]:
    """Return a site (group of lanes) for each node's cores, and for each accelerator."""
    each = ((kind, lane, one) for kind, devices in enumerate(instance.devices) for lane, one in enumerate(devices))
    lanes = grouped(((kind, device), lane) for kind, lane, device in each)
    return [LaneSite(kind, tuple(numbers), device) for (kind, device), numbers in lanes.items()]


def times_at(instance: Instance, sites: Sequence[LaneSite]) -> np.ndarray:
    return instance.time[:, [site.kind for site in sites]].reshape(instance.size, len(sites))


# Constraints --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """Constraint: all these tasks run at one site (a set of equal cores or GPUs)."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Apart:
    """Constraint: no two of these tasks at one site."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Pin:
    """Constraint: `tasks` run only on `sites` (numbers of groups of cores or GPUs)."""

    tasks: tuple[int, ...]
    sites: tuple[int, ...]


@dataclass(frozen=True)
class Cap:
    """Constraint: Σ weight × x[task, site] ≤ upper + per_makespan × T (T: makespan)."""

    terms: tuple[tuple[int, int, float], ...]
    upper: float = 0.0
    per_makespan: float = 0.0


@dataclass(frozen=True)
class Before:
    """Constraint: the second task starts after the first, as a successor in the graph.

    A plan enforces this only on one lane (core or GPU); elsewhere tasks start when their data and lanes are available.
    """

    first: int
    second: int


@dataclass(frozen=True)
class Fuse:
    """Constraint: all these tasks run at one site, one right after the other.

    A site is a set of equal cores or GPUs.  In the schedule, the tasks run in the position of the first of them.
    """

    tasks: tuple[int, ...]


Constraint = Together | Apart | Pin | Cap | Before | Fuse


def with_order(predecessors: Graph | None, size: int, constraints: Sequence[Constraint]) -> Graph | None:
    """Return the graph with the edges that `Before` adds; None without any edges."""
    graph = [list(before) for before in predecessors or [()] * size]
    for one in constraints:
        if isinstance(one, Before):
            graph[one.second].append(one.first)
    return graph if any(graph) else None


def violated(constraints: Sequence[Constraint], site_of: np.ndarray, makespan: float = np.inf) -> list[Constraint]:
    """Return the constraints that an assignment breaks; `Cap` needs a makespan."""
    violations: list[Constraint] = []
    for one in constraints:
        if isinstance(one, Before):
            continue
        if isinstance(one, Cap):
            used = sum(weight for task, site, weight in one.terms if site_of[task] == site)
            room = one.upper + (one.per_makespan * makespan if one.per_makespan else 0.0)
            broken = used > room + ROUNDING * max(abs(room), used)
        else:
            sites = site_of[list(one.tasks)]
            if isinstance(one, Pin):
                broken = not np.isin(sites, one.sites).all()
            elif isinstance(one, Apart):
                broken = len(np.unique(sites)) < len(sites)
            else:
                broken = len(np.unique(sites)) > 1
        if broken:
            violations.append(one)
    return violations


# The program --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fractional:
    """Relaxed optimum: fractions of tasks at sites, its makespan, a certified bound."""

    share: np.ndarray
    value: float
    bound: float


@dataclass(frozen=True)
class Integral:
    """The integer solution: each task's site, and a lower bound on the makespan.

    A site is a set of equal cores or GPUs.  `site_of` is None if no solution was found.
    """

    site_of: np.ndarray | None
    bound: float


class AssignmentProgram:
    """The linear program that assigns tasks to sites (sets of lanes: cores or GPUs).

    times[j, s]: inf if a task cannot run there.  Times are in multiples of `unit`, which without constraints is the
        makespan of some schedule, so the optimum is at most 1.
    longest: add a row for each task: its time is at most T (redundant if sites have one lane or there are start
        variables).
    frugal: weight of the mean work per lane in the objective: among solutions of equal makespan one of minimum work is
        preferred.  With 0 (as for bounds) work does not matter.
    """

    def __init__(
        self, times: np.ndarray, counts: Sequence[int], unit: float, predecessors: Graph | None = None,
        arrivals: np.ndarray | None = None, constraints: Sequence[Constraint] = (), longest: bool = True,
        frugal: float = 0.0,
    ):  # fmt: skip
        self.size, self.sites = times.shape
        self.scale = unit if unit > 0 else 1.0
        allowed = np.isfinite(times)
        for one in constraints:
            if isinstance(one, Pin):
                allowed[np.array(one.tasks)[:, None], np.setdiff1d(np.arange(self.sites), one.sites)] = False
        self.task, self.site = np.nonzero(allowed)
        self.possible = bool(allowed.any(axis=1).all())
        self.number = np.full(times.shape, -1)
        self.number[self.task, self.site] = np.arange(len(self.task))
        self.time = times[self.task, self.site] / self.scale
        self.counts = np.asarray(counts, dtype=float)
        self.span = len(self.task)  # the variable T
        self.variables = self.span + 1
        self.rows: list[tuple[np.ndarray, np.ndarray, float, bool]] = []  # columns, coefficients, limit, is equality
        self.upper = self._in_a_row(times, arrivals, constraints) if constraints else 1.0
        self.low, self.high = np.zeros(self.variables), np.ones(self.variables)
        self.high[self.span] = self.upper
        graph = with_order(predecessors, self.size, constraints)
        spread = arrivals is not None and self.size > 0 and float(np.ptp(arrivals)) > 0
        if graph is not None or spread:
            self._paths(graph, arrivals)
        elif longest and max(counts, default=1) > 1:
            self._longest()
        for one in constraints:
            self._inject(one)
        self.cost = np.zeros(self.variables)
        self.cost[self.span] = 1.0
        if frugal:
            self.cost[: self.span] = frugal * self.time / self.counts.sum()

    def _in_a_row(self, times: np.ndarray, arrivals: np.ndarray | None, constraints: Sequence[Constraint]) -> float:
        """Return an upper bound of the makespan: all tasks in sequence, constraints met."""
        total = float(np.where(np.isfinite(times), times, 0.0).max(axis=1, initial=0.0).sum())
        total += 0.0 if arrivals is None else float(np.ptp(arrivals))
        for one in constraints:
            if isinstance(one, Cap) and one.per_makespan > 0:
                total += sum(abs(weight) for _, _, weight in one.terms) / one.per_makespan
        return max(1.0, total / self.scale)

    def _row(self, columns: Any, coefficients: Any, limit: float, equal: bool = False) -> None:
        self.rows.append((np.asarray(columns, dtype=int), np.asarray(coefficients, dtype=float), limit, equal))

    def _of(self, task: int) -> tuple[np.ndarray, np.ndarray]:
        columns = self.number[task][self.number[task] >= 0]
        return columns, self.time[columns]

    def _longest(self) -> None:
        for task in range(self.size):
            columns, times = self._of(task)
            self._row([*columns, self.span], [*times, -1.0], 0.0)

    def _paths(self, graph: Graph | None, arrivals: np.ndarray | None) -> None:
        start = self.variables + np.arange(self.size)
        self.variables += self.size
        there = np.zeros(self.size) if arrivals is None else (np.asarray(arrivals) - arrivals.min()) / self.scale
        self.low = np.concatenate([self.low, there])
        self.high = np.concatenate([self.high, np.maximum(self.upper, there)])
        inner = {before for row in graph for before in row} if graph is not None else frozenset()
        for task in range(self.size):
            for before in dict.fromkeys(graph[task]) if graph is not None else ():
                columns, times = self._of(before)
                self._row([*columns, start[before], start[task]], [*times, 1.0, -1.0], 0.0)
            if task not in inner:
                columns, times = self._of(task)
                self._row([*columns, start[task], self.span], [*times, 1.0, -1.0], 0.0)

    def _inject(self, one: Constraint) -> None:
        if isinstance(one, Together | Fuse):
            first, *others = one.tasks
            for site in range(self.sites):
                for other in others:
                    pair = [(self.number[first, site], 1.0), (self.number[other, site], -1.0)]
                    if usable := [(column, sign) for column, sign in pair if column >= 0]:
                        self._row([column for column, _ in usable], [sign for _, sign in usable], 0.0, equal=True)
        elif isinstance(one, Apart):
            for site in range(self.sites):
                there = self.number[list(one.tasks), site]
                if (there >= 0).sum() > 1:
                    self._row(there[there >= 0], np.ones((there >= 0).sum()), 1.0)
        elif isinstance(one, Cap):
            terms = [(self.number[task, site], w) for task, site, w in one.terms if self.number[task, site] >= 0]
            largest = max([abs(w) for _, w in terms] + [abs(one.per_makespan) * self.scale], default=0.0)
            if largest == 0:
                self.possible &= one.upper >= 0
                return
            columns = [column for column, _ in terms] + [self.span]
            weights = [w / largest for _, w in terms] + [-one.per_makespan * self.scale / largest]
            self._row(columns, weights, one.upper / largest)

    def _matrices(self) -> tuple[Any, np.ndarray, Any, np.ndarray]:
        from scipy.sparse import coo_array, vstack

        pairs = np.arange(self.span)
        somewhere = coo_array((np.ones(self.span), (self.task, pairs)), (self.size, self.variables))
        working = np.append(self.time, -self.counts)
        lines = np.append(self.site, np.arange(self.sites))
        columns = np.append(pairs, np.full(self.sites, self.span))
        loads = coo_array((working, (lines, columns)), (self.sites, self.variables))
        parts: dict[bool, list[Any]] = {True: [somewhere], False: [loads]}
        limits = {True: [np.ones(self.size)], False: [np.zeros(self.sites)]}
        for equal in (True, False):
            if rows := [row for row in self.rows if row[3] == equal]:
                lines = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
                entries = np.concatenate([row[1] for row in rows]), (lines, np.concatenate([row[0] for row in rows]))
                parts[equal].append(coo_array(entries, (len(rows), self.variables)))
                limits[equal].append(np.array([row[2] for row in rows]))
        stacked = {equal: vstack(parts[equal]).tocsr() for equal in parts}
        return stacked[False], np.concatenate(limits[False]), stacked[True], np.concatenate(limits[True])

    def relaxed(self) -> Fractional | None:
        """Solve the relaxation; the solution is a vertex.  None if it is infeasible."""
        from scipy.optimize import linprog

        if not self.possible:
            return None
        upper, limit, equal, exact = self._matrices()
        bounds = np.column_stack([self.low, self.high])
        solution = linprog(self.cost, upper, limit, A_eq=equal, b_eq=exact, bounds=bounds, method="highs-ds")
        if solution.x is None or solution.status != 0:
            return None
        share = np.zeros(self.number.shape)
        share[self.task, self.site] = solution.x[: self.span]
        prices = np.minimum(solution.ineqlin.marginals, 0.0), solution.eqlin.marginals
        reduced = self.cost - upper.T @ prices[0] - equal.T @ prices[1]
        bound = prices[0] @ limit + prices[1] @ exact + np.minimum(reduced * self.low, reduced * self.high).sum()
        return Fractional(share, float(solution.x[self.span]) * self.scale, max(0.0, float(bound)) * self.scale)

    def integral(
        self, node_limit: int | None = None, time_limit: float | None = None, gap: float = 0.0,
        fixed: np.ndarray | None = None,
    ) -> Integral:  # fmt: skip
        """Solve the integer program to 1e-6; at a limit, return the best solution found.

        node_limit, time_limit: maximum number of branch-and-bound nodes, maximum seconds; None: no limit. gap: relative
        gap to the bound at which the solver may stop.
        fixed: mask (tasks × sites), True for assignments that are fixed to 0; some optimum must use none of them.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        if not self.possible:
            return Integral(None, np.inf)
        upper, limit, equal, exact = self._matrices()
        high = self.high.copy()
        if fixed is not None:
            high[: self.span][fixed[self.task, self.site]] = 0.0
        options: dict[str, Any] = {"mip_rel_gap": gap}
        options |= {} if node_limit is None else {"node_limit": node_limit}
        options |= {} if time_limit is None else {"time_limit": time_limit}
        integer = np.zeros(self.variables)
        integer[: self.span] = 1
        constraints = [LinearConstraint(upper, -np.inf, limit), LinearConstraint(equal, exact, exact)]
        solution = milp(self.cost, integrality=integer, bounds=Bounds(self.low, high), constraints=constraints,
                     options=options)  # fmt: skip
        dual_bound = getattr(solution, "mip_dual_bound", None)
        bound = float(dual_bound) if dual_bound is not None and np.isfinite(dual_bound) else 0.0
        if solution.x is None:
            return Integral(None, max(0.0, bound - ROUNDING) * self.scale)
        share = np.zeros(self.number.shape)
        share[self.task, self.site] = solution.x[: self.span]
        return Integral(share.argmax(axis=1), max(0.0, bound - ROUNDING) * self.scale)


# Order --------------------------------------------------------------------------------------------------------


def ordered(
    instance: Instance, sites: Sequence[LaneSite], site_of: np.ndarray, constraints: Sequence[Constraint] = (),
    traffic: Traffic | None = None,
) -> Schedule:  # fmt: skip
    """List-schedule assigned tasks: an idle device starts its most urgent ready task.

    The most urgent task has the longest path to the end of the graph (upward rank, with mean transfers if `traffic`
    is given); without a graph it is the longest task.  Fused tasks take the list position of their first task.
    """
    times = np.full((instance.size, len(sites)), np.inf)
    rows = np.arange(instance.size)
    times[rows, site_of] = times_at(instance, sites)[rows, site_of]
    counts = [len(site.lanes) for site in sites]
    tasks = instance.problem.tasks
    graph: Graph = with_order(tasks.predecessors, instance.size, constraints) or graph_of(tasks)
    order = ranking(times, counts, graph, traffic)
    position = {task: place for place, task in enumerate(order)}
    key: Mapping[int, tuple[int, int]] = {task: (position[task], 0) for task in order}
    for one in constraints:
        if isinstance(one, Fuse):
            head = min(position[task] for task in one.tasks)
            key = {**key, **{task: (head, number) for number, task in enumerate(one.tasks)}}
    order.sort(key=key.__getitem__)
    since = None if instance.free is None else [instance.free[site.kind][list(site.lanes)] for site in sites]
    made = graham(times, counts, order, ready=tasks.arrival, predecessors=graph, since=since)
    lanes = [sites[site].lanes[lane] for site, lane in zip(made.kind.tolist(), made.lane.tolist(), strict=True)]
    kinds = [sites[site].kind for site in made.kind.tolist()]
    return Schedule(
        made.start, made.finish, np.array(kinds, dtype=int), lane=np.array(lanes, dtype=int), order=made.order
    )
