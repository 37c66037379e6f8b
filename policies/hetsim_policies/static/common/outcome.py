"""Turns a planner's schedule into a plan with timetable, lower bound and notes.

If the stages of different tasks overlap on a lane (core or GPU), its tasks are ordered as in a flow shop
(`flow_shop`).  The planned makespan is that of the plan's timetable, which includes transfers, also those that the
planner ignored.
`timing` computes this timetable without the engine.  It is not exact if transfers share a link or the plan has
prefetches; `finished` can then use the times of a rehearsal (a simulation of the plan on the estimates).
A planner's bound assumes that tasks occupy lanes for `Instance.time`; if stages overlap this is false, and the bound is
omitted.  Bounds that are always valid (`stage_bound`) are added if links or engines can limit the makespan.
`Plan.notes` has two entries on this.  `timetable` is `exact` if each start and finish is that of the run, else `idle
links`.  `covers` states for each effect that can lengthen a run (transfers, memory, release times, others):
    absent    the effect does not occur, or can delay nothing
    covered   the bound counts it
    partly    the bound counts part of it
    ignored   the bound does not count it
A ratio is noted only if nothing is `partly` or `ignored`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.errors import PolicyError, UsageError
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.plan import Plan
from hetsim.model.stages import download_rate
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim.policy.planned import Following
from hetsim_policies.static.common.descent import descended
from hetsim_policies.static.common.flow_shop import ordered
from hetsim_policies.static.common.graph_bounds import Paths, graph_bound
from hetsim_policies.static.common.instance import (
    Instance,
    Schedule,
    cores_bind,
    memory_binds,
    shared_links,
    undisturbed,
)
from hetsim_policies.static.common.timing import NOMINAL, Placed, timing
from hetsim_policies.static.common.unrelated import SAMPLE
from hetsim_policies.task_graphs import graph_of

SILENT = ("absent", "covered")


class DescendingPlanner(PlannedScheduler):
    """Base of assignment planners that can improve their schedule by local search.

    descent: finally move and exchange tasks of the longest lane (`descent`), for independent tasks present at the
        start.
    """

    def __init__(self, descent: bool = True):
        super().__init__()
        self.descent = descent


class PlainPlanner(DescendingPlanner):
    """Base of planners without a final local search."""

    def __init__(self, descent: bool = False):
        super().__init__(descent)


def plan_of(
    instance: Instance, schedule: Schedule, bound: float | None = None, guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL, descent: bool = False, draft: bool = False,
    others: Sequence[Schedule] = (),
) -> Plan:  # fmt: skip
    """Return a schedule as a plan in order of starts; at ties, length 0 first.

    bound: a lower bound on the makespan of all schedules, from the first arrival, that the planner proves.
    guaranteed: the algorithm's ratio of makespan and optimum for independent tasks present at the start, on lanes
        (cores or GPUs) that run one task at a time; None: no ratio.
    descent: first shorten the longest lanes (`descent`), if the tasks are independent.
    others: further schedules from which the descent starts, since a worse schedule may lead to a better local optimum.
    draft: the result is not final: the planner changes it, and calls `finished` itself.
    Makespan and bound are counted from the first arrival; in mid-run both are counted from `now`.
    """
    if descent and (better := descended(instance, schedule, bound, others)) is not schedule:
        plans = [plan_of(instance, one, bound, guaranteed, draft=True) for one in (schedule, better)]
        best = min(plans, key=lambda plan: plan.makespan or 0.0)
        return best if draft else finished(instance, best)
    placed = np.empty(instance.size, dtype=np.int64)
    placed[schedule.order] = np.arange(instance.size)
    order = np.lexsort((placed, schedule.finish, schedule.start))
    rows = zip(order.tolist(), schedule.kind[order].tolist(), schedule.lane[order].tolist(), strict=True)
    return planned(
        instance, ordered(instance, rows), bound, guaranteed=guaranteed, frequencies=frequencies, draft=draft
    )


def planned(
    instance: Instance, placed: Sequence[Placed], bound: float | None = None, guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL, draft: bool = False,
) -> Plan:  # fmt: skip
    """Return a plan of (task, type, lane) entries in order; draft: no final times yet."""
    steps = [instance.step(*one) for one in placed]
    times = timing(instance, placed, frequencies)
    problem = instance.problem
    makespan = max(0.0, float(times.finish.max(initial=0.0)) - problem.origin) if steps else 0.0
    covers = coverage(instance)
    best = _proven(instance, bound, covers["releases"] != "absent")
    # A bound that is met exactly may lie above by the last bits, as it adds the same times in another order.
    best = min(best, makespan) if best is not None and times.exact else best
    promised = guaranteed is not None and together(instance) and not problem.in_mid_run
    notes = notes_of(covers, times.exact, makespan, bound=best, guaranteed=guaranteed if promised else None)
    timetable = np.column_stack([times.start, times.finish])[[task for task, _, _ in placed]]
    plan = Plan(steps, makespan, best, notes=notes, frequencies=dict(frequencies), timetable=timetable)
    return plan if draft else finished(instance, plan)


def finished(instance: Instance, plan: Plan, judged: bool = False) -> Plan:
    """Return the plan with its final times.

    If its timetable is not exact, the times are those of a simulation of the plan on the estimates (rehearsal).  But
    the timetable for idle links remains if the plan is made during a run; and, unless `judged` is True (the planner
    compared plans by simulation), if links, memory, host cores or sharing can delay tasks.
    """
    exact = plan.notes["timetable"] == "exact" and not plan.copies and not plan.fused
    exact = exact and not instance.problem.unplanned
    if not exact and not instance.problem.in_mid_run and (judged or undisturbed(instance)):
        return rehearsed(instance.problem, plan)
    return replace(plan, notes=plan.notes | {"timetable": "exact" if exact else "idle links"})


def rehearsed(problem: PlanProblem, plan: Plan) -> Plan:
    """Return the plan with times simulated on estimates; with its own if that fails."""
    try:
        played = problem.rehearse(Following(plan))
    except (PolicyError, UsageError):
        played = plan
    if played is plan or played.timetable is None or not np.isfinite(played.timetable).all():  # faults stop tasks
        return replace(plan, notes=plan.notes | {"timetable": "idle links"})
    makespan = 0.0 if played.makespan is None else played.makespan
    times = np.full((len(problem.tasks), 2), np.nan)
    times[[step.task for step in played.steps]] = played.timetable
    bound = None if plan.bound is None else min(plan.bound, makespan)
    timetable = times[[step.task for step in plan.steps]]
    notes = plan.notes | {"timetable": "idle links" if problem.unplanned else "exact"}
    return replace(plan, makespan=makespan, bound=bound, notes=notes, timetable=timetable)


def _proven(instance: Instance, bound: float | None, late: bool) -> float | None:
    """Return the largest valid lower bound on the makespan; None if there is none.

    bound: bound of the planner.  late: True if tasks arrive at different times; `graph_bound` is then computed, too.
    """
    problem, tasks = instance.problem, instance.problem.tasks
    proven = [] if bound is None or instance.pipelined else [bound]
    if proven and late:
        proven.append(graph_bound(instance.time, instance.counts, graph_of(tasks), tasks.arrival))
    if instance.size and (instance.pipelined or shared_links(instance)):
        proven.append(stage_bound(instance))
    if not proven or not instance.size:
        return max(proven, default=None)
    best = max(proven)
    if instance.free is None and together(instance):
        best = max(best, counted(instance.time, instance.counts))
    return best + float(tasks.arrival.min()) - problem.origin if problem.in_mid_run else best


def counted(times: np.ndarray, counts: Sequence[int]) -> float:
    """Return the minimum makespan if all tasks are equal; otherwise 0 (no bound)."""
    size, each = len(times), times[0]
    if (times != each).any():
        return 0.0
    lanes = [(t, c) for t, c in zip(each.tolist(), counts, strict=True) if c and t < np.inf]
    done = [np.repeat(t * np.arange(1, size // c + 2), c) for t, c in lanes]
    return float(np.sort(np.concatenate(done))[size - 1])


def notes_of(
    covers: dict[str, str], exact: bool, makespan: float, bound: float | None, guaranteed: float | None
) -> dict[str, object]:
    """Return the notes of a plan.

    covers: which parts of the model the bound includes (`coverage`).  exact: True if the plan's timetable is exact.
    guaranteed: the proven ratio of makespan to optimum, or None.
    """
    notes: dict[str, object] = {"covers": covers, "timetable": "exact" if exact else "idle links"}
    if bound is not None and exact and all(word in SILENT for word in covers.values()):
        notes["ratio_certified"] = makespan / bound if bound > 0 else 1.0
        if guaranteed is not None:
            notes["ratio_guaranteed"] = guaranteed
    return notes


def together(instance: Instance) -> bool:
    """Return True if tasks have no graph, arrive together and cannot overlap stages."""
    tasks = instance.problem.tasks
    alike = not instance.size or float(np.ptp(tasks.arrival)) == 0
    return alike and not any(tasks.predecessors or ()) and not instance.pipelined and instance.alike


def coverage(instance: Instance) -> dict[str, str]:
    """Return whether a plan's makespan and bound include each part of the model.

    By part, such as transfers or memory: covered, partly, ignored, or absent (the input has no such part).
    """
    tasks = instance.problem.tasks
    shared = any(tasks.reads or ()) or any(tasks.writes or ())
    moved = bool((instance.up + instance.down).any())
    transfers = "absent"
    if shared:
        transfers = "partly"
    elif moved:
        transfers = "covered" if not shared_links(instance) and instance.alike else "partly"
    late = instance.size > 0 and float(np.ptp(tasks.arrival)) > 0
    words = {
        "transfers": transfers,
        "memory": "ignored" if memory_binds(instance) else "absent",
        "releases": "covered" if late else "absent",
    }
    if cores_bind(instance):
        words["host cores"] = "ignored"
    if moved and not all(kind.streams == 1 or kind.sharing.kind == "exclusive" for kind in instance.types):
        words["sharing"] = "ignored"
    return words | dict.fromkeys(instance.problem.unplanned, "ignored")


# A lower bound on the makespan if stages of tasks overlap or share links: a linear program with a row per resource.
#
# In a schedule of length T every engine works for at most T, a lane with s streams has at most s launches in flight,
# and a link carries at most rate × T bytes.  Each gives a row Σ_j Σ_t a[j, t] x[j, t] ≤ C T, where x[j, t] = 1 if task
# j runs on type t (the lanes of a type are added, which only weakens the row).  Prices w ≥ 0 of the rows with Σ C w = 1
# certify Σ_j min_t Σ_r w_r a_r[j, t] ≤ T, whatever the solver.  With arrivals and graphs the sum is over the tasks that
# cannot start before r, or must end r before the end, and r is added.  Only private data count, as shared items may be
# moved once.
# Reference: the dual of the area bound of Agullo, Beaumont, Eyraud-Dubois and Kumar, Are Static Schedules so Bad?
# (2016), with rows for engines as in the machine-based bounds of flow shops (Lageweg, Lenstra, Rinnooy Kan, 1978).
# Cost: one linear program of n × types variables; if n is large, the prices of a sample.


@dataclass(frozen=True)
class ResourceRow:
    """One resource: its use by task and device type, and its capacity per second."""

    use: np.ndarray
    capacity: float


def stage_bound(instance: Instance) -> float:
    """A lower bound on makespans, counted from the first arrival.

    In mid-run, it is counted from the first arrival of the remaining tasks.
    """
    if not instance.size:
        return 0.0
    usable = np.isfinite(instance.time)
    alone = np.where(usable, instance.alone, np.inf)
    tasks = instance.problem.tasks
    paths = Paths.through(alone.min(axis=1), graph_of(tasks), tasks.arrival)
    return paths.bound(priced_rows(list(rows_of(instance)), usable))


def rows_of(instance: Instance) -> Iterator[ResourceRow]:
    usable = np.isfinite(instance.time)
    blank = np.zeros(instance.time.shape)
    up, compute, down = (np.where(usable, part, 0.0) for part in (instance.up, instance.compute, instance.down))
    for kind, (one, count) in enumerate(zip(instance.types, instance.counts, strict=True)):

        def on(values: np.ndarray, kind: int = kind) -> np.ndarray:
            use = blank.copy()
            use[:, kind] = values[:, kind]
            return use

        if one.kind == "cpu":
            yield ResourceRow(on(compute), float(count))
            continue
        yield ResourceRow(on(up + compute + down), float(count * one.streams))
        if one.streams > 1:
            yield ResourceRow(on(compute), float(count * (one.streams if one.sharing.kind == "mps" else 1)))
            yield ResourceRow(on(up), float(count))
            yield ResourceRow(on(down), float(count))
        for sizes, capacity in _links(instance, one, instance.devices[kind]):
            use = blank.copy()
            use[:, kind] = np.where(usable[:, kind], sizes, 0.0)
            yield ResourceRow(use, capacity)


def _links(instance: Instance, kind: DeviceType, devices: list[Device]) -> Iterator[tuple[np.ndarray, float]]:
    """Yield tasks' bytes and capacity (bytes/s) of each kind of link of a device type."""
    cluster = instance.problem.cluster
    above, below = instance.private.up, instance.private.down
    switch_of = {(d.node, d.switch): cluster.nodes[d.node].spec.switch for d in devices if d.switch is not None}
    behind = [(d.node, d.switch) for d in devices]

    def rate(link: Link, direction: str) -> float:
        return link.upload if direction == "up" else download_rate(link)

    def together(direction: str) -> float:
        own = rate(kind.link, direction)
        total = own * sum(one not in switch_of for one in behind)
        return total + sum(min(rate(s, direction), own * behind.count(key)) for key, s in switch_of.items())

    for sizes, direction in ((above, "up"), (below, "down")):
        if np.isfinite(together(direction)):
            yield sizes, together(direction)
    if kind.link.duplex == "half" and np.isfinite(kind.link.upload):
        yield above + below, kind.link.upload * len(devices)
    one_way = (
        switch_of and all(key in switch_of for key in behind) and all(s.duplex == "half" for s in switch_of.values())
    )
    if one_way and np.isfinite(sum(s.upload for s in switch_of.values())):
        yield above + below, sum(s.upload for s in switch_of.values())


def priced_rows(rows: list[ResourceRow], usable: np.ndarray) -> np.ndarray:
    """Return each task's cost on its cheapest type, at dual prices of the resources.

    The sum of all costs is a lower bound on the makespan.  rows: resources.  usable: True where a task (row) can run on
    a type (column).
    """
    rows = [row for row in rows if row.use.any()]
    if not rows:
        return np.zeros(len(usable))
    every = max(1, -(-len(usable) // SAMPLE))
    prices = _prices([ResourceRow(row.use[::every], row.capacity) for row in rows], usable[::every])
    cost = sum(price * row.use for price, row in zip(prices.tolist(), rows, strict=True))
    return np.where(usable, cost, np.inf).min(axis=1)


def _prices(rows: list[ResourceRow], usable: np.ndarray) -> np.ndarray:
    """Return each resource's dual price per unit; the sum of price × capacity is 1."""
    from scipy.optimize import linprog  # takes as long to import as a small plan takes
    from scipy.sparse import coo_array, hstack

    capacity = np.array([row.capacity for row in rows])
    even = 1 / capacity / len(rows)
    task, kind = np.nonzero(usable)
    number, size = np.arange(len(task)), len(usable)
    units = np.array([row.use.sum() / row.capacity for row in rows])  # rows in bytes and in seconds alike
    scale = float(units.max())
    load = np.array([row.use[task, kind] / row.capacity / scale for row in rows])
    upper = hstack([coo_array(load), coo_array(-np.ones((len(rows), 1)))]).tocsr()
    once = coo_array((np.ones(len(task)), (task, number)), shape=(size, len(task) + 1)).tocsr()
    goal = np.zeros(len(task) + 1)
    goal[-1] = 1.0
    solution = linprog(goal, upper, np.zeros(len(rows)), A_eq=once, b_eq=np.ones(size), method="highs-ds")
    if solution.x is None:
        return even
    dual = np.maximum(0.0, -solution.ineqlin.marginals) / capacity
    worth = float(dual @ capacity)
    return dual / worth if worth > 0 else even
