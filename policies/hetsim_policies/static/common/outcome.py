"""From a schedule to a plan: its timetable, what is proven of it, and what the proofs cover.  The one exit of planners.

Where the stages of tasks overlap on a lane, its tasks go in the order of a flow shop (`flow_shop`).
The planned makespan is that of the plan's own timetable (`timing`), with the transfers that the planner may not have
looked at.  A planner's bound is of tasks that hold lanes for `Instance.time`; where stages overlap it proves nothing
and is left out.  Bounds that always hold (`stage_bounds`) are added where links or engines can bind.
The note `covers` has a word each for transfers, memory and releases:
    absent    there are none, or they can delay nothing
    covered   the bound counts them and the timetable is true with them
    partly    the bound counts part of them; the timetable takes links for idle
    ignored   neither counts them
A ratio is noted only where nothing is `partly` or `ignored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from policies.static.common.configurations import configuration_bound
from policies.static.common.descent import descended
from policies.static.common.disturbance import cores_bind, memory_binds, shared_links
from policies.static.common.flow_shop import ordered
from policies.static.common.graph_bounds import graph_bound
from policies.static.common.instance import Instance
from policies.static.common.schedule import Schedule
from policies.static.common.stage_bounds import stage_bound
from policies.static.common.timing import NOMINAL, Placed, timing
from policies.task_graphs import graph_of
from sim.model.plan import Plan, Step

SILENT = ("absent", "covered")


def plan_of(
    instance: Instance,
    schedule: Schedule,
    bound: float | None = None,
    guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL,
    descent: bool = False,
) -> Plan:
    """The schedule as a plan, in the order of starts; tasks without length go before what starts with them.

    bound: what the planner proves of the makespan of all schedules, from the first arrival.
    guaranteed: the ratio of makespan and optimum that its algorithm promises for independent tasks that are there at
        once, on lanes that take one at a time; None: none.
    descent: first shorten the longest lanes (`descent`), where the schedule is one of independent tasks.
    Makespan and bound are counted from the first arrival; in mid-run both are counted from `now`.
    """
    if descent:
        better = descended(instance, schedule, bound)
        if better is not schedule:
            plans = [plan_of(instance, one, bound, guaranteed) for one in (schedule, better)]
            return min(plans, key=lambda plan: plan.makespan or 0.0)
    placed = np.empty(instance.size, dtype=np.int64)
    placed[schedule.order] = np.arange(instance.size)
    order = np.lexsort((placed, schedule.finish, schedule.start))
    rows = zip(order.tolist(), schedule.kind[order].tolist(), schedule.lane[order].tolist(), strict=True)
    return planned(instance, rows, bound, guaranteed, frequencies)


def planned(
    instance: Instance,
    placed: Iterable[Placed],
    bound: float | None = None,
    guaranteed: float | None = None,
    frequencies: Mapping[str, float] = NOMINAL,
) -> Plan:
    """The same of (task, type, lane number) entries in their order."""
    placed = ordered(instance, placed)
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
    notes = notes_of(covers, times.exact, makespan, best, guaranteed if promised else None)
    timetable = np.column_stack([times.start, times.finish])[[task for task, _, _ in placed]]
    return Plan(steps, makespan, best, notes, dict(frequencies), timetable=timetable)


def _proven(instance: Instance, bound: float | None, late: bool, makespan: float) -> float | None:
    """The greatest of the bounds that hold here; None if nothing is proven.  `late`: do tasks come after others?"""
    problem, tasks = instance.problem, instance.problem.tasks
    known = [] if bound is None or instance.pipelined else [bound]
    if known and late:
        known.append(graph_bound(instance.time, instance.counts, graph_of(tasks), tasks.arrival))
    if instance.size and (instance.pipelined or shared_links(instance)):
        known.append(stage_bound(instance))
    if not known or not instance.size:
        return max(known, default=None)
    best = max(known)
    if instance.free is None and together(instance):
        best = max(best, configuration_bound(instance.time, instance.counts, best, makespan))
    return best + float(tasks.arrival.min()) - problem.origin if problem.in_mid_run else best


def notes_of(
    covers: dict[str, str], exact: bool, makespan: float, bound: float | None, guaranteed: float | None
) -> dict[str, object]:
    """The notes of a plan.  exact: is its timetable?  guaranteed: the ratio that is promised here, None if none is."""
    notes: dict[str, object] = {"covers": covers, "timetable": "exact" if exact else "idle links"}
    if bound is not None and exact and all(word in SILENT for word in covers.values()):
        notes["ratio_certified"] = makespan / bound if bound > 0 else 1.0
        if guaranteed is not None:
            notes["ratio_guaranteed"] = guaranteed
    return notes


def together(instance: Instance) -> bool:
    """No graph, no task that comes later than another, and no lane that overlaps tasks: what ratios are proven for."""
    tasks = instance.problem.tasks
    alike = not instance.size or float(np.ptp(tasks.arrival)) == 0
    return alike and not any(tasks.predecessors or ()) and not instance.pipelined and instance.alike


def coverage(instance: Instance) -> dict[str, str]:
    """What the plan's makespan and bound cover, in a word each."""
    tasks = instance.problem.tasks
    shared = any(tasks.reads or ()) or any(tasks.writes or ())
    moved = bool((instance.up + instance.down).any())
    transfers = "absent"
    if shared:
        transfers = "partly"
    elif moved:
        transfers = "covered" if not shared_links(instance) and instance.alike else "partly"
    late = instance.size > 0 and float(np.ptp(tasks.arrival)) > 0
    found = {
        "transfers": transfers,
        "memory": "ignored" if memory_binds(instance) else "absent",
        "releases": "covered" if late else "absent",
    }
    if cores_bind(instance):
        found["host cores"] = "ignored"
    if moved and not all(kind.streams == 1 or kind.sharing.kind == "exclusive" for kind in instance.types):
        found["sharing"] = "ignored"
    return found
