"""Constraint injection: a linear program assigns, an optimizer adds constraints.

The policy decides where and in which order tasks run, for sequential tasks with or without a task graph, with data
moved over links.  The assignment program of `assignment` counts work and ignores transfers.  `sharing` considers
effects that are not linear in the assignment: tasks on one device upload a common input once; data that one task writes
for another need not move within a device; uploads compete for links and switches; equal kernels are better launched one
after the other.  To use these effects, `sharing` proposes a tree of constraints.  A child node adds constraints to
those of its parent; siblings are alternatives in order of preference.  `walk` visits the tree and solves the program
with the constraints from the root to a node: if it is infeasible, the next sibling is tried, otherwise the children.
Every solution becomes a plan, and the plan with the shortest simulation on the estimates is chosen.  The plans of
linear_program and integer_program are always candidates, so the plan is never worse than these on the estimates.

Reference: Bastoul, Zhang, Razanajato, Lossing, Susungi et al., Optimizing GPU Deep Learning Operators with Polyhedral
Scheduling Constraint Injection (CGO 2022).
*As in the paper*: a linear scheduler and a non-linear optimizer communicate by constraints only; the tree of
constraints and its traversal; a constraint that groups operations which are best executed together (in the paper
vectorized loads and stores, here `Fuse`).  *Different*: the paper's program finds affine loop schedules for the
statements of one operator, dimension by dimension, and dependence polyhedra ensure that they are legal; the program
here assigns whole tasks to devices.  Inputs that are uploaded once take the place of the paper's coalesced and vector
loads.  The paper uses the first feasible branch; here the traversal continues while the budget lasts, and the
simulation decides.  `Fuse` puts equal kernels on one device, one after the other.  If their work is known, up to
`max_fused` of them are launched as one kernel, which has one launch overhead and reads common inputs once.  The best
plan is simulated again with chains fused: a kernel is fused with the only kernel that uses its result, and the result
is then not stored (`fused`).

No ratio is proven; the bound is that of integer_program, which ignores transfers and may be far below the optimum.
Weakness: groups are built greedily; the program does not count transfers between groups (only `parts` does, when it
assigns groups to devices); memory is ignored, so grouped items may be evicted.
Cost: one program of tasks × sites and one simulation per candidate; groups O((n + pairs with common data) log n).
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import refusal, suggestion
from hetsim.model.device import Device
from hetsim.model.plan import Plan, find_cycle
from hetsim.model.tasks import Tasks
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim_policies.common import grouped
from hetsim_policies.static.common.assignment import (
    Apart,
    AssignmentProgram,
    Before,
    Cap,
    Constraint,
    Fuse,
    LaneSite,
    Pin,
    Together,
    by_place,
    ordered,
    times_at,
    violated,
    with_order,
)
from hetsim_policies.static.common.flow_shop import johnson
from hetsim_policies.static.common.instance import Instance, runnable
from hetsim_policies.static.common.outcome import finished, plan_of
from hetsim_policies.static.common.parts import Groups, apart, as_one, chains, dealt, in_blocks
from hetsim_policies.static.common.prefetches import with_prefetches
from hetsim_policies.static.common.ranks import Traffic, traffic_of
from hetsim_policies.static.common.search import simulated
from hetsim_policies.static.programs import MAX_VARIABLES, Whole, integer_program, linear_program, rounded
from hetsim_policies.task_graphs import graph_of, topological

NODES = 50
GAP = 0.01
FRUGAL = 0.05
LEVELS = (0.25, 0.5, 1.0)  # maximum work of a group, in fractions of the makespan without constraints
CROWD = 32  # if an item has more readers, only neighbors in the table form pairs

# Data that bind tasks together: all, written by one for another, or common inputs
View = Literal["all", "flow", "inputs"]


class ConstraintInjection(PlannedScheduler):
    """Assignment by linear programs with added constraints, chosen by simulation.

    The constraints place or order tasks that share data.  Every set of constraints gives a plan to simulate.
    candidates: maximum number of simulated plans, including those of linear_program and integer_program, which have no
        added constraints; the best plan is simulated again with chains of kernels launched as one, and with prefetches.
    max_fused: maximum number of kernels of known work that are launched as one; 1: no fusion.
    patterns: sequences of classes of tasks for which a fused kernel exists, such as [[conv, norm, act]]: no other
        sequences are launched as one; default: any sequence.
    node_limit, max_variables: limits as in `integer_program`, for each constrained program; programs with more
        variables are relaxed and rounded.
    """

    def __init__(
        self,
        candidates: Annotated[int, Field(ge=2, strict=True)] = 24,
        max_fused: Annotated[int, Field(ge=1, strict=True)] = 3,
        patterns: list[Annotated[list[str], Field(min_length=2)]] | None = None,
        node_limit: Whole = NODES,
        max_variables: Whole = MAX_VARIABLES,
    ):
        super().__init__()
        self.candidates = candidates
        self.max_fused = max_fused
        self.patterns = patterns
        self.node_limit = node_limit
        self.max_variables = max_variables

    def check(self, problem: PlanProblem) -> None:
        classes = [name for name in problem.tasks.classes if name]
        for number, pattern in enumerate(self.patterns or ()):
            for name in pattern:
                if name not in classes:
                    near = suggestion(name, classes)
                    text = f'no class "{name}"{near}; the classes here are {", ".join(classes) or "none"}'
                    raise refusal(text, f"policy.scheduler.patterns.{number}")

    def plan(self, problem: PlanProblem) -> Plan:
        instance = runnable(problem, "constraint_injection")
        linear, bound = linear_program(instance)
        integer, better = integer_program(instance)
        free = [plan_of(instance, schedule, max(bound, better), draft=True) for schedule in (linear, integer)]
        spans = [simulated(problem, plan) for plan in free]
        unconstrained = min(spans)
        race = _Race(problem, free[spans.index(unconstrained)], unconstrained, len(free))
        self._constrain(race, instance, unconstrained if np.isfinite(unconstrained) else max(bound, better), free)
        tasks = problem.tasks
        if not problem.in_mid_run and self.max_fused > 1 and tasks.work is not None:
            joined = as_one(race.best, tasks, chains(tasks, self.max_fused, self.patterns))
            if joined.fused != race.best.fused:
                race.enter(joined)
        ahead = with_prefetches(instance, race.best)
        if ahead.copies:
            race.enter(ahead)
        best, best_makespan = race.best, race.makespan
        notes = {"constraints": race.won, "candidates": race.tried, "unconstrained_makespan": unconstrained}
        lower: float | None = free[0].bound
        if best.fused:  # bounds, and what is told of them, are of kernels launched one by one
            notes |= {"launches": len(best.launches())}
            bounded = ("covers", "ratio_certified", "ratio_guaranteed")
            lower, best = None, replace(best, notes={k: v for k, v in best.notes.items() if k not in bounded})
        lower = None if lower is None else min(lower, best_makespan)
        plan = replace(best, makespan=best_makespan, bound=lower, notes=best.notes | notes)
        return finished(instance, plan, judged=True)

    def _constrain(self, race: "_Race", instance: Instance, near: float, free: Sequence[Plan]) -> None:
        """Try plans with constraints that place or order tasks that share data.

        race: simulates the plans and keeps the best; near: rough makespan (s); free: plans without constraints.  Does
        nothing if no data move.
        """
        problem, tasks = race.problem, race.problem.tasks
        if (traffic := traffic_of(instance, graph_of(tasks))) is None:
            return
        sites, seen = by_place(instance), [plan.steps for plan in free]
        at_once = 1 if self.patterns is not None or problem.in_mid_run else self.max_fused

        def solve(constraints: tuple[Constraint, ...]) -> Plan | None:
            if find_cycle(with_order(tasks.predecessors, instance.size, constraints) or []) is not None:
                return None
            site_of = assigned(
                instance, sites, constraints, unit=near, node_limit=self.node_limit, max_variables=self.max_variables
            )
            if site_of is None:
                return None
            schedule = ordered(instance, sites, site_of, constraints=constraints, traffic=traffic)
            plan = plan_of(instance, schedule, draft=True)
            rows = [one.tasks for one in constraints if isinstance(one, Fuse)]
            return as_one(plan, tasks, rows, at_once) if rows and at_once > 1 else plan

        for names, made in walk(SharingTree(instance, sites, traffic, near).tree(), solve):
            for plan in (made, apart(made)) if made.fused else (made,):
                if plan.steps not in seen and race.tried < self.candidates:
                    seen.append(plan.steps)
                    race.enter(plan, " > ".join(names))
            if race.tried == self.candidates:
                return


@dataclass
class _Race:
    """The best of the plans so far, by a simulation of each."""

    problem: PlanProblem
    best: Plan
    makespan: float
    tried: int
    won: str = ""  # constraints of the best plan

    def enter(self, plan: Plan, constraints: str | None = None) -> None:
        """Simulate a plan; store the best, with its label `constraints` (None: old label)."""
        self.tried += 1
        if (makespan := simulated(self.problem, plan)) < self.makespan:
            self.best, self.makespan = plan, makespan
            self.won = self.won if constraints is None else constraints


@dataclass(frozen=True)
class ConstraintNode:
    """Constraints to add to a program; `children`, tried in turn, each add their own."""

    name: str
    constraints: tuple[Constraint, ...]
    children: "tuple[ConstraintNode, ...]" = field(default=())


def walk(
    siblings: Sequence[ConstraintNode], solve: Any, above: tuple[Constraint, ...] = (), names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and solution of the feasible nodes of a constraint tree, depth first.

    `solve(constraints)` returns None if the constraints are infeasible.  The node's children are then skipped, since
    they have these constraints and more.  above, names: constraints and names of the nodes on the path to `siblings`.
    """
    for node in siblings:
        constraints = (*above, *node.constraints)
        if (solution := solve(constraints)) is None:
            continue
        yield (*names, node.name), solution
        yield from walk(node.children, solve, constraints, (*names, node.name))


def assigned(
    instance: Instance, sites: Sequence[LaneSite], constraints: Sequence[Constraint], unit: float,
    node_limit: int = NODES, max_variables: int = MAX_VARIABLES,
) -> np.ndarray | None:  # fmt: skip
    """Return the site of each task under constraints; None if no solution is found.

    A site is a set of equal cores or GPUs. unit: seconds near the expected makespan, used to scale the program.
    """
    tasks, counts = instance.problem.tasks, [len(site.lanes) for site in sites]
    times = times_at(instance, sites)
    program = AssignmentProgram(
        times, counts, unit, predecessors=tasks.predecessors, arrivals=tasks.arrival, constraints=constraints,
        frugal=FRUGAL
    )
    if len(program.task) <= max_variables:
        return program.integral(node_limit, gap=GAP).site_of
    if (solution := program.relaxed()) is None:
        return None
    site_of = rounded(solution.share, matched=False)
    return None if violated([one for one in constraints if not isinstance(one, Cap)], site_of) else site_of


def _together(groups: Sequence[tuple[int, ...]]) -> tuple[Constraint, ...]:
    return tuple(Together(group) for group in groups if len(group) > 1)


@dataclass
class _Merging:
    """Groups of tasks during merging: members, work, and data shared between groups."""

    members: dict[int, list[int]]
    work: dict[int, np.ndarray]  # seconds of each group on each site, former (merged) groups included
    items: dict[int, dict[int, None]]  # items that each group reads
    flow: dict[int, dict[int, float]]  # seconds to move what one group writes for another, both directions
    cost: np.ndarray  # seconds to move each item

    def saved(self, one: int, other: int) -> float:
        few, many = sorted((self.items.get(one, {}), self.items.get(other, {})), key=len)
        return self.flow[one].get(other, 0.0) + sum(float(self.cost[item]) for item in few if item in many)

    def merge(self, one: int, other: int) -> int:
        new = len(self.work)
        self.members[new] = self.members.pop(one) + self.members.pop(other)
        self.work[new] = self.work[one] + self.work[other]
        self.items[new] = {**self.items.get(one, {}), **self.items.get(other, {})}
        joint = dict(self.flow[one])
        for third, seconds in self.flow[other].items():
            joint[third] = joint.get(third, 0.0) + seconds
        self.flow[new] = {third: seconds for third, seconds in joint.items() if third in self.members}
        for third, seconds in self.flow[new].items():
            self.flow[third][new] = seconds
        return new


class SharingTree:
    """A tree of constraints that keep tasks with common data together."""

    def __init__(self, instance: Instance, sites: Sequence[LaneSite], traffic: Traffic, makespan: float):
        self.instance = instance
        self.tasks: Tasks = instance.problem.tasks
        self.sites = sites
        self.traffic = traffic
        self.makespan = makespan
        self.times = times_at(instance, sites)
        # Place of each site, as numbered in `traffic`
        self.place = [int(traffic.place[instance.first_lane[site.kind] + site.lanes[0]]) for site in sites]
        self.depth: dict[int, int] = {}  # by task: the tasks on the longest path to it
        before = graph_of(self.tasks)
        for task in topological(before):
            self.depth[task] = 1 + max((self.depth[earlier] for earlier in before[task]), default=-1)
        self.devices = [number for number, site in enumerate(sites) if instance.types[site.kind].kind != "cpu"]
        self.cores = [number for number in range(len(sites)) if number not in self.devices]
        away = [self.place[site] for site in self.devices] or [0]
        self.cost = self.traffic.first_cost[:, away].mean(axis=1)  # of bringing an item to an accelerator
        if len(away) > 1:
            other = ~np.eye(len(away), dtype=bool)
            self.latency = float(self.traffic.latency[np.ix_(away, away)][other].mean())
            self.pace = float(self.traffic.pace[np.ix_(away, away)][other].mean())
        else:
            self.latency, self.pace = float(self.traffic.latency.max()), float(self.traffic.pace.max())

    def tree(self) -> list[ConstraintNode]:
        """Return trees of constraints to try, which keep tasks with common data together.

        Each tree begins with one way to group the tasks; its deeper nodes add constraints, such as larger groups.  If
        some tasks should run where their data are, the first tree adds this constraint to all the others.
        """
        alone = [(task,) for task in range(self.instance.size)]
        chains = [
            self._view("inputs", self.groups("inputs", self.makespan, alone)),
            self._view("flow", self.groups("flow", LEVELS[0] * self.makespan, alone)),
            self._view("all", self.groups("all", LEVELS[0] * self.makespan, alone)),
            ConstraintNode("uploads", self._uploads(alone)),
        ]
        pins = self._beside_their_data()
        return [ConstraintNode("beside data", pins, tuple(chains)), *chains] if pins else chains

    def _view(self, name: str, groups: list[tuple[int, ...]]) -> ConstraintNode:
        """Build a node that keeps each group of tasks together; its children are variants."""
        below = [*self._parts(groups), ConstraintNode("uploads", self._uploads(groups), tuple(self._orders(groups)))]
        for level in LEVELS[1:]:
            if (larger := self.groups("all", level * self.makespan, groups)) != groups:
                constraints = (*_together(larger), *self._uploads(larger))
                below.append(ConstraintNode(f"larger {level:g}", constraints, tuple(self._orders(larger))))
        return ConstraintNode(name, _together(groups), tuple(below))

    def _parts(self, groups: list[tuple[int, ...]]) -> Iterator[ConstraintNode]:
        """Yield two ways to spread task groups over the accelerators that run them faster."""
        sites = self.devices
        if len(sites) < 2:
            return
        host = self.times[:, self.cores].min(axis=1, initial=np.inf)
        gains = [g for g in groups if self.times[list(g)][:, sites].sum(axis=0).min() <= host[list(g)].sum()]
        gains.sort(key=lambda group: sum(self.depth[task] for task in group) / len(group))
        if len(gains) < len(sites):
            return
        facts = self._facts(gains)
        weights = np.where(np.isfinite(facts.work), facts.work, 0.0).mean(axis=1)
        stages, turns = in_blocks(weights.tolist(), len(sites)), [number % len(sites) for number in range(len(gains))]
        for name, start in (("stages", stages), ("in turn", turns)):
            usable = [p if np.isfinite(facts.work[g, p]) else int(facts.work[g].argmin()) for g, p in enumerate(start)]
            part_of = dealt(facts, usable)
            parts = [tuple(sorted(t for g, p in zip(gains, part_of, strict=True) if p == part for t in g))
                     for part in range(len(sites))]  # fmt: skip
            parts = [part for part in parts if part]
            constraints = (*_together(parts), Apart(tuple(part[0] for part in parts)))
            yield ConstraintNode(name, constraints, tuple(self._orders(parts)))

    def _facts(self, groups: Sequence[tuple[int, ...]]) -> Groups:
        places = [self.place[site] for site in self.devices]
        own = self.times[:, self.devices] + self.traffic.extra[:, places]
        work = [own[list(group)].sum(axis=0) for group in groups]
        group_of = {task: number for number, group in enumerate(groups) for task in group}
        reads: list[dict[int, float]] = [{} for _ in groups]
        for reader, sources in enumerate(self.traffic.sources):
            for writer, size in sources.items():
                one, other = group_of.get(writer, -1), group_of.get(reader, -1)
                if one != other and min(one, other) >= 0:
                    reads[other][one] = reads[other].get(one, 0.0) + self.latency + size * self.pace
        behind = [self._device(site) for site in self.devices]
        numbers: dict[tuple[int, int], int] = {}
        switch = [None if d.switch is None else numbers.setdefault((d.node, d.switch), len(numbers)) for d in behind]
        cost = self.traffic.first_cost[:, places]
        return Groups(np.array(work), [self._items(group) for group in groups], cost, reads=reads, switch=switch)

    def _device(self, site: int) -> Device:
        place = self.sites[site].place
        assert place is not None
        return place

    def _orders(self, groups: Sequence[tuple[int, ...]]) -> Iterator[ConstraintNode]:
        """Yield nodes of constraints to add to given groups of tasks, one kind per node.

        Kinds: fuse equal kernels; run the chains of a group one after the other; order the uploads of a group; place
        the groups with the largest uploads on different devices.
        """
        if fused := tuple(Fuse(row) for group in groups for row in self._equal_kernels(group)):
            yield ConstraintNode("fuse", fused)
        if rows := tuple(pair for group in groups for pair in self._one_chain_after_the_other(group)):
            yield ConstraintNode("chains in a row", rows)
        if before := tuple(pair for group in groups for pair in self._short_uploads_first(group)):
            yield ConstraintNode("short uploads first", before)
        heavy = sorted(groups, key=lambda group: -self._upload(group, self.devices[0]) if self.devices else 0.0)
        heavy = [group for group in heavy[: len(self.devices)] if self._upload(group, self.devices[0]) > 0]
        if len(heavy) > 1:
            yield ConstraintNode("apart", (Apart(tuple(group[0] for group in heavy)),))

    def _beside_their_data(self) -> tuple[Constraint, ...]:
        """Pin tasks to cores if their own transfers exceed any accelerator's gain."""
        if not self.cores or not self.devices:
            return ()
        own = self.times + self.traffic.extra[:, self.place]
        here = own[:, self.cores].min(axis=1) <= own[:, self.devices].min(axis=1)
        misled = here & (self.times[:, self.cores].min(axis=1) > self.times[:, self.devices].min(axis=1))
        pinned = tuple(np.flatnonzero(misled).tolist())
        return (Pin(pinned, tuple(self.cores)),) if pinned else ()

    def groups(self, view: View, limit: float, given: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Merge groups of tasks with common data, the largest saving of transfers first.

        view: the data that count: inputs, flow (results that one task writes for another), or all.  limit: maximum
        seconds of a group's work at its fastest site (a set of equal cores or GPUs).  given: the groups before merging.
        """
        merging = _Merging(
            {number: list(group) for number, group in enumerate(given)},
            {number: self.times[list(group)].sum(axis=0) for number, group in enumerate(given)},
            {number: self._items(group) for number, group in enumerate(given)} if view != "flow" else {},
            flow=self._flow(given) if view != "inputs" else {number: {} for number in range(len(given))},
            cost=self.cost,
        )
        near = {number: dict.fromkeys(flow) for number, flow in merging.flow.items()}
        for one, other in self._neighbors(merging.items):
            near[one][other] = near[other][one] = None
        heap = [(-merging.saved(one, other), one, other) for one in near for other in near[one] if one < other]
        heapq.heapify(heap)
        while heap:
            gain, one, other = heapq.heappop(heap)
            if one not in merging.members or other not in merging.members or gain >= 0:
                continue
            if (merging.work[one] + merging.work[other]).min() > limit:
                continue
            new = merging.merge(one, other)
            near[new] = {third: None for third in {**near[one], **near[other]} if third in merging.members}
            for third in near[new]:
                near[third][new] = None
                heapq.heappush(heap, (-merging.saved(third, new), third, new))
        return sorted(tuple(sorted(group)) for group in merging.members.values())

    def _items(self, group: Sequence[int]) -> dict[int, None]:
        return dict.fromkeys(item for task in group for item in self.traffic.firsts[task])

    def _flow(self, given: Sequence[tuple[int, ...]]) -> dict[int, dict[int, float]]:
        group_of = {task: number for number, group in enumerate(given) for task in group}
        flow: dict[int, dict[int, float]] = {number: {} for number in range(len(given))}
        for reader, sources in enumerate(self.traffic.sources):
            for writer, size in sources.items():
                one, other = group_of[writer], group_of[reader]
                if one != other:
                    seconds = self.latency + size * self.pace
                    flow[one][other] = flow[one].get(other, 0.0) + seconds
                    flow[other][one] = flow[other].get(one, 0.0) + seconds
        return flow

    def _neighbors(self, items: dict[int, dict[int, None]]) -> Iterator[tuple[int, int]]:
        for numbers in grouped((item, number) for number, used in items.items() for item in used).values():
            reach = len(numbers) if len(numbers) <= CROWD else 2
            for place, one in enumerate(numbers):
                for other in numbers[place + 1 : place + reach]:
                    yield one, other

    def _upload(self, group: Sequence[int], site: int) -> float:
        place = self.place[site]
        shared = sum(float(self.traffic.first_cost[item, place]) for item in self._items(group))
        return shared + float(self.traffic.private[list(group), place].sum())

    def _uploads(self, groups: Sequence[tuple[int, ...]]) -> tuple[Constraint, ...]:
        """Constrain accelerators and switches to finish transfers within the makespan.

        groups: sets of tasks that run on one device each.  Since they are given, the constraints are linear: the inputs
        of a group are counted once, at its first task.  An accelerator with one stream computes and transfers in turn,
        so the sum of both times must be at most the makespan.
        """
        constraints: list[Constraint] = []
        behind: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        cluster = self.instance.problem.cluster
        for site in self.devices:
            device = self._device(site)
            carried = [(group[0], site, self._upload(group, site)) for group in groups]
            carried = [term for term in carried if term[2] > 0]
            if not carried:
                continue
            work: list[tuple[int, int, float]] = []
            if device.type.streams == 1:  # private data are in `carried`
                alone = self.instance.compute[:, self.sites[site].kind]
                work = [(task, site, float(time)) for task, time in enumerate(alone) if time < np.inf]
            constraints.append(Cap((*work, *carried), per_makespan=1.0))
            if device.switch is not None:
                own, switch = device.type.link.upload, cluster.nodes[device.node].spec.switch.upload
                part = min(1.0, own / switch) if np.isfinite(switch) else 0.0  # of its time on the own link
                terms = behind.setdefault((device.node, device.switch), [])
                terms += [(task, site, seconds * part) for task, site, seconds in carried if part]
        constraints += [Cap(tuple(terms), per_makespan=1.0) for terms in behind.values() if terms]
        return tuple(constraints)

    def _equal_kernels(self, group: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield sets of tasks with equal shape, times and inputs, and no order among them."""
        firsts, times = self.traffic.firsts, self.times
        reading = [task for task in group if firsts[task]]
        alike = [(int(self.tasks.shape[task]), firsts[task], tuple(times[task].tolist())) for task in reading]
        for row in grouped(zip(alike, reading, strict=True)).values():
            if len(row) > 1 and not any(set(row) & set((self.tasks.predecessors or {task: ()})[task]) for task in row):
                yield tuple(row)

    def _one_chain_after_the_other(self, group: Sequence[int]) -> Iterator[Before]:
        """Yield constraints that run the chains of a group one after the other.

        A chain is the tasks of the group that pass data to each other.  If tasks were ordered by rank (distance from
        the end of the graph), a device would run the first operators of all chains, then all second operators.  A task
        on another device that needs the result of one chain would then wait for all chains.
        """
        chain_of: dict[int, int] = {task: task for task in group}

        def root(task: int) -> int:
            while chain_of[task] != task:
                chain_of[task] = chain_of[chain_of[task]]
                task = chain_of[task]
            return task

        for task in group:
            for writer in self.traffic.sources[task]:
                if writer in chain_of:
                    one, other = sorted((root(writer), root(task)))
                    chain_of[other] = one
        chains = grouped((root(task), task) for task in sorted(group, key=self.depth.__getitem__))
        rows = sorted(chains.values(), key=lambda chain: chain[0])
        if len(rows) < len(group):
            yield from (Before(one[-1], other[0]) for one, other in zip(rows, rows[1:], strict=False))

    def _short_uploads_first(self, group: Sequence[int]) -> Iterator[Before]:
        """Order tasks by Johnson's rule (1954) for link and device, if uploads overlap.

        Tasks with private data whose upload is shorter than their computation are first, by increasing upload time; the
        other tasks with private data follow by decreasing computation time.
        """
        if self.tasks.predecessors is not None or len(group) < 2 or not self.devices:
            return
        site = self.devices[0]
        if self.instance.types[self.sites[site].kind].streams < 2:
            return
        jobs = [(task, self._upload((task,), site), float(self.times[task, site])) for task in group]
        jobs = [job for job in jobs if job[1] > 0 and job[2] < np.inf]
        row = [jobs[number][0] for number in johnson([job[1] for job in jobs], [job[2] for job in jobs])]
        yield from (Before(one, other) for one, other in zip(row, row[1:], strict=False))
