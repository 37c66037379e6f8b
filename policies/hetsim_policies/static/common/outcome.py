"""From a schedule to a plan: timetable, bounds, coverage; all planners end here.

Where the stages of tasks overlap on a lane, its tasks go in the order of a flow shop (`flow_shop`).
The planned makespan is that of the plan's timetable, with the transfers that the planner may not have looked at.  It
is worked out without the engine (`timing`).  Where that is not exact, as transfers meet on a link or the plan has
prefetches, `finished` takes the times of a rehearsal of the plan on the estimates.
A planner's bound is of tasks that hold lanes for `Instance.time`; where stages overlap it proves nothing
and is left out.  Bounds that always hold (`stage_bounds`) are added where links or engines can bind.
The note `timetable` is `exact` where each start and finish is that of the run, else `idle links`.
The note `covers` has a word each for transfers, memory and releases, and for keys that no proof takes into account:
    absent    there are none, or they can delay nothing
    covered   the bound counts them
    partly    the bound counts part of them
    ignored   the bound does not count them
A ratio is noted only where nothing is `partly` or `ignored`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.errors import PolicyError, UsageError
from hetsim.model.cluster import Device, DeviceType, Link
from hetsim.model.plan import Plan, Step, lane_names
from hetsim.model.stages import download_rate
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim.policy.planned import Following
from hetsim_policies.static.common.bounds import TOLERANCE
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
    """Base of the planners of assignments whose schedule may end with a local search.

    descent: end by moving and exchanging tasks of the longest lane (`descent`), of independent tasks there at once.
    """

    def __init__(self, descent: bool = True):
        super().__init__()
        self.descent = descent


class PlainPlanner(DescendingPlanner):
    """Those of which it is not part."""

    def __init__(self, descent: bool = False):
        super().__init__(descent)


def plan_of(
    instance: Instance,
    schedule: Schedule,
    bound: float | None = None,
    guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL,
    descent: bool = False,
    draft: bool = False,
    others: Sequence[Schedule] = (),
) -> Plan:
    """The schedule as a plan, in the order of starts, tasks of no length first.

    bound: what the planner proves of the makespan of all schedules, from the first arrival.
    guaranteed: the ratio of makespan and optimum that its algorithm promises for independent tasks that are there at
        once, on lanes that take one at a time; None: none.
    descent: first shorten the longest lanes (`descent`), where the schedule is one of independent tasks.
    others: schedules from which the descent starts too; one rounding may look worse and leave less to mend.
    draft: the planner goes on with the plan, and calls `finished` itself at its end.
    Makespan and bound are counted from the first arrival; in mid-run both are counted from `now`.
    """
    if descent:
        better = descended(instance, schedule, bound, others)
        if better is not schedule:
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
    instance: Instance,
    placed: Sequence[Placed],
    bound: float | None = None,
    guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL,
    draft: bool = False,
) -> Plan:
    """The same of (task, type, lane number) entries, in exactly their order."""
    modes = instance.mode
    steps = [Step(task, int(modes[task, kind]), (instance.lanes[kind][lane],)) for task, kind, lane in placed]
    times = timing(instance, placed, frequencies)
    problem = instance.problem
    makespan = max(0.0, float(times.finish.max(initial=0.0)) - problem.origin) if steps else 0.0
    covers = coverage(instance)
    best = _proven(instance, bound, covers["releases"] != "absent", makespan)
    # A bound that is met exactly may lie above by the last bits, as it adds the same times in another order.
    best = min(best, makespan) if best is not None and times.exact else best
    promised = guaranteed is not None and together(instance) and not problem.in_mid_run
    notes = notes_of(covers, times.exact, makespan, bound=best, guaranteed=guaranteed if promised else None)
    timetable = np.column_stack([times.start, times.finish])[[task for task, _, _ in placed]]
    plan = Plan(steps, makespan, best, notes=notes, frequencies=dict(frequencies), timetable=timetable)
    return plan if draft else finished(instance, plan)


def finished(instance: Instance, plan: Plan, judged: bool = False) -> Plan:
    """The plan with the timetable of its steps and copies as they now are.

    Its own timetable stands where it is exact.  Else the plan is rehearsed, unless tasks share links or memory binds:
    then planners promise what idle links allow, and only those that have simulated it anyway (`judged`) say more.
    """
    exact = plan.notes["timetable"] == "exact" and not plan.copies and not plan.fused
    exact = exact and not instance.problem.unplanned
    if not exact and not instance.problem.in_mid_run and (judged or undisturbed(instance)):
        return rehearsed(instance.problem, plan)
    return replace(plan, notes=plan.notes | {"timetable": "exact" if exact else "idle links"})


def rehearsed(problem: PlanProblem, plan: Plan) -> Plan:
    """The plan with the times of its run on the estimates, where it can be run."""
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


def _proven(instance: Instance, bound: float | None, late: bool, makespan: float) -> float | None:
    """The greatest bound that holds here; None if none.

    `late`: tasks come after others.
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
        best = max(best, configuration_bound(instance.time, instance.counts, best, makespan))
    return best + float(tasks.arrival.min()) - problem.origin if problem.in_mid_run else best


def notes_of(
    covers: dict[str, str], exact: bool, makespan: float, bound: float | None, guaranteed: float | None
) -> dict[str, object]:
    """The notes of a plan.

    exact: its timetable is exact; guaranteed: the ratio that is promised here, None if none is.
    """
    notes: dict[str, object] = {"covers": covers, "timetable": "exact" if exact else "idle links"}
    if bound is not None and exact and all(word in SILENT for word in covers.values()):
        notes["ratio_certified"] = makespan / bound if bound > 0 else 1.0
        if guaranteed is not None:
            notes["ratio_guaranteed"] = guaranteed
    return notes


def together(instance: Instance) -> bool:
    """Return True for tasks without graph or arrivals on lanes without overlap."""
    tasks = instance.problem.tasks
    alike = not instance.size or float(np.ptp(tasks.arrival)) == 0
    return alike and not any(tasks.predecessors or ()) and not instance.pipelined and instance.alike


def coverage(instance: Instance) -> dict[str, str]:
    """The coverage of the plan's makespan and bound, a word each."""
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


# A lower bound on the makespan where stages of tasks overlap or share links: engines, streams, links and switches.
#
# In a schedule of length T every engine of every accelerator works for at most T, a lane with s streams has at most s
# launches in flight, and a link carries at most rate × T bytes.  Each of these is a row Σ_j Σ_t a[j, t] x[j, t] ≤ C T
# with x[j, t] = 1 where task j runs on type t; lanes of one type are taken together, which only weakens a row.  Prices
# w ≥ 0 of the rows with Σ C w = 1 certify Σ_j min_t Σ_r w_r a_r[j, t] ≤ T, whatever solver they come from.  With
# release times and tails the sum is taken of what cannot start before r, or must be done r before the end, and r added.
# Only private data are counted: items that several tasks read may be brought once, before, or by another task.
# Reference: the dual is that of the area bound of Agullo, Beaumont, Eyraud-Dubois and Kumar, Are Static Schedules so
# Bad? (2016), with rows for engines as in the machine-based bounds of flow shops (Lageweg, Lenstra, Rinnooy Kan, 1978).
# Cost: one linear program of n × types variables and a row a resource; prices of a sample where n is large.


@dataclass(frozen=True)
class ResourceRow:
    """The demand of tasks for a resource by device type, and its rate of supply."""

    use: np.ndarray
    capacity: float


def stage_bound(instance: Instance) -> float:
    """A lower bound on makespans, counted from the first arrival.

    In mid-run from the first arrival of what remains.
    """
    if not instance.size:
        return 0.0
    usable = np.isfinite(instance.time)
    alone = np.where(usable, instance.alone, np.inf)
    tasks = instance.problem.tasks
    paths = Paths.through(alone.min(axis=1), graph_of(tasks), tasks.arrival)
    return paths.bound(priced_rows(list(rows_of(instance)), usable))


def rows_of(instance: Instance) -> Iterator[ResourceRow]:
    """The resources of an instance."""
    usable = np.isfinite(instance.time)
    blank = np.zeros(instance.time.shape)
    lanes = lane_names(instance.problem.cluster)
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
            at_once = one.streams if one.sharing.kind == "mps" else 1
            yield ResourceRow(on(compute), float(count * at_once))
            yield ResourceRow(on(up), float(count))
            yield ResourceRow(on(down), float(count))
        devices = [lanes[name] for name in instance.lanes[kind]]
        for sizes, capacity in _links(instance, one, devices):
            use = blank.copy()
            use[:, kind] = np.where(usable[:, kind], sizes, 0.0)
            yield ResourceRow(use, capacity)


def _links(instance: Instance, kind: DeviceType, devices: list[Device]) -> Iterator[tuple[np.ndarray, float]]:
    """Bytes of tasks over a type's links by direction, or both, and the links' rate."""
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
    """The minimum cost of each task; the sum is a lower bound on the makespan."""
    rows = [row for row in rows if row.use.any()]
    if not rows:
        return np.zeros(len(usable))
    every = max(1, -(-len(usable) // SAMPLE))
    prices = _prices([ResourceRow(row.use[::every], row.capacity) for row in rows], usable[::every])
    cost = sum(price * row.use for price, row in zip(prices.tolist(), rows, strict=True))
    return np.where(usable, cost, np.inf).min(axis=1)


def _prices(rows: list[ResourceRow], usable: np.ndarray) -> np.ndarray:
    """Prices of the program, scaled so that the capacities cost 1 together."""
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


# A lower bound for few kinds of tasks: the configuration program, by columns.
#
# A *configuration* of a type is how many tasks of each kind one of its lanes does within T.  If a schedule of length T
# exists, then so do numbers x[t, C] ≥ 0 of lanes with configuration C with Σ_C x[t, C] ≤ c[t] lanes of each type and
# Σ_t Σ_C a[C, k] x[t, C] ≥ n[k] tasks of each kind.  Prices π[k] ≥ 0 refute T: with σ[t] at least π · a of every
# configuration of t, Σ n π > Σ c σ.  Configurations are generated by a knapsack for each type; where that would take
# too long its relaxation stands for it, which only weakens the bound.  Bisection finds the greatest T that is refuted.
# With one kind the program counts: T is possible if Σ c[t] ⌊T / p[t]⌋ ≥ n.
# Reference: Gilmore, Gomory, A Linear Programming Approach to the Cutting-Stock Problem (1961); for unrelated machines
# Svensson, Santa Claus Schedules Jobs on Unrelated Machines (2012).
# Cost: some ten guesses, each a few programs of types + kinds rows and knapsacks of `NODES` nodes at most.


KINDS = 4
"""Kinds of tasks at most."""
OF_EACH = 3
"""Tasks of a kind at least, on average: with fewer the area says as much."""
PRECISION = 1e-3
"""Precision of the bisection, where there is more than one kind."""
NODES = 4_000
"""Nodes of a knapsack's search; beyond, its relaxation is taken."""
ROUNDS = 60
"""Programs for one guess at most."""
CLEAR = 1e-7
"""By so much prices must refute a guess, in parts of a lane: more than the solver's rounding."""


def kinds_of(times: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Times of each kind and its number of tasks; None above `KINDS` kinds."""
    if not len(times) or len(np.unique(times[: 4 * KINDS], axis=0)) > KINDS:
        return None
    kinds, number = np.unique(times, axis=0, return_counts=True)
    return (kinds, number) if len(kinds) <= KINDS and len(times) >= OF_EACH * len(kinds) else None


def configuration_bound(times: np.ndarray, counts: Sequence[int], low: float, high: float) -> float:
    """The maximum T from `low`, a bound, to `high`, a makespan, that is refuted."""
    few = kinds_of(times)
    if few is None or not low < high:
        return low
    kinds, number = few
    lanes = np.asarray(counts, dtype=float)
    # Only at a multiple of some time, or a sum of them, anything changes: the end points are tried as they are.
    if _refuted(kinds, number, lanes, high * (1 - 1e-6)):
        return high * (1 - 1e-6)
    first, last = low, high * (1 - 1e-6)
    precision = 1e-6 if len(kinds) == 1 else PRECISION
    while last > first * (1 + precision):
        guess = (first + last) / 2
        if _refuted(kinds, number, lanes, guess):
            first = guess
        else:
            last = guess
    return first


def _refuted(kinds: np.ndarray, number: np.ndarray, lanes: np.ndarray, guess: float) -> bool:
    """Return True if no schedule is as short as the guess, by proof."""
    limit = guess * (1 + TOLERANCE)
    if len(kinds) == 1:
        with np.errstate(divide="ignore"):
            each = np.where(kinds[0] > 0, np.floor(limit / np.maximum(kinds[0], 1e-300)), np.inf)
        return float(np.where(lanes > 0, lanes * each, 0.0).sum()) < number[0]
    able = (kinds <= limit) & (lanes > 0)
    if not able.any(axis=1).all():
        return True
    if (kinds == 0).any():
        return False  # tasks of no length make a configuration endless
    pairs = np.argwhere(able).tolist()
    columns: list[tuple[int, np.ndarray]] = [(kind, _alone(kinds, row, kind, limit)) for row, kind in pairs]
    for _ in range(ROUNDS):
        prices, worth = _kind_prices(columns, number, lanes)
        if prices is None:
            return False
        new, sure = [], np.zeros(len(lanes))
        for kind in np.flatnonzero(lanes > 0).tolist():
            bound, best = _knapsack(prices, kinds[:, kind], limit)
            sure[kind] = bound
            if bound > worth[kind] + CLEAR:
                new.append((kind, best))
        if float(number @ prices) > float(lanes @ sure) + CLEAR * max(1.0, float(lanes @ sure)):
            return True
        if not new:
            return False
        seen = {(kind, tuple(one)) for kind, one in columns}
        fresh = [(kind, one) for kind, one in new if (kind, tuple(one)) not in seen]
        if not fresh:
            return False
        columns += fresh
    return False


def _alone(kinds: np.ndarray, row: int, kind: int, limit: float) -> np.ndarray:
    """As many tasks of one kind as a lane can do."""
    counts = np.zeros(len(kinds))
    counts[row] = np.floor(limit / kinds[row, kind]) if kinds[row, kind] > 0 else 0.0
    return counts


def _kind_prices(
    columns: list[tuple[int, np.ndarray]], number: np.ndarray, lanes: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray]:
    """Prices of kinds and lanes, if some tasks find no place; None if all do."""
    from scipy.optimize import linprog  # takes as long to import as a small plan takes

    count = len(columns)
    place = np.zeros((len(number), count + len(number)))
    used = np.zeros((len(lanes), count + len(number)))
    for column, (kind, config) in enumerate(columns):
        place[:, column] = -config
        used[kind, column] = 1.0
    place[:, count:] = -np.diag(number.astype(float))  # the part of a kind that is left over
    goal = np.concatenate([np.zeros(count), np.ones(len(number))])
    solution = linprog(goal, np.vstack([place, used]), np.concatenate([-number, lanes]), method="highs-ds")
    if solution.x is None or solution.fun <= CLEAR:
        return None, lanes
    dual = np.maximum(0.0, -solution.ineqlin.marginals)
    return dual[: len(number)], dual[len(number) :]


def _knapsack(prices: np.ndarray, needs: np.ndarray, room: float) -> tuple[float, np.ndarray]:
    """A bound on the worth of a lane's configurations, and the best one found."""
    usable = np.flatnonzero((needs <= room) & (prices > 0))
    order = usable[np.argsort(-(prices[usable] / needs[usable]), kind="stable")]
    best, chosen, nodes, cut = 0.0, np.zeros(len(prices)), 0, False
    stack: list[tuple[int, float, float, tuple[int, ...]]] = [(0, room, 0.0, ())]
    while stack:
        depth, rest, value, taken = stack.pop()
        nodes += 1
        if value > best:
            best = value
            chosen = np.zeros(len(prices))
            chosen[order[: len(taken)]] = taken
        if depth == len(order):
            continue
        item = order[depth]
        if value + rest * prices[item] / needs[item] <= best * (1 + 1e-12):
            continue
        if nodes > NODES:
            cut = True
            break
        copies = int(rest // needs[item])
        stack += [(depth + 1, rest - many * needs[item], value + many * float(prices[item]), (*taken, many))
                  for many in range(copies + 1)]  # fmt: skip
    if cut:
        relaxed = room * float(prices[order[0]] / needs[order[0]])
        return relaxed, chosen
    return best, chosen
