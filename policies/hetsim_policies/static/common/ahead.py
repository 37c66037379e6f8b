"""Prefetches for a plan without any: inputs move while the task before computes.

Each item that a task reads is fetched once the previous task on the same accelerator has started.  An item that has
not been written by then is fetched as soon as it has been (`hetsim.model.plan.Copy`).
Weakness: on shared links a prefetch may delay an upload that a task waits for; simulate both and take the better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetsim.model.fusion import fusion_of, users_of_items
from hetsim.model.plan import Copy, Plan
from hetsim_policies.static.common.instance import Instance
from hetsim_policies.static.common.timing import Placed


def copies_ahead(instance: Instance, rows: Sequence[Placed]) -> list[Copy]:
    """Prefetches for a plan given as rows (task, type, lane number) in order."""
    reads = instance.problem.tasks.reads or ()
    last: dict[tuple[int, int], int] = {}
    copies: list[Copy] = []
    for task, kind, lane in rows if reads else ():
        if instance.types[kind].kind == "cpu":
            continue
        before = last.get((kind, lane))
        if before is not None:
            name = instance.lanes[kind][lane]
            copies += [Copy(item, name, before) for item in dict.fromkeys(reads[task])]
        last[kind, lane] = task
    return copies


def brought_ahead(instance: Instance, plan: Plan) -> Plan:
    """The plan with prefetches added; the plan itself if its tasks read nothing."""
    if plan.fused:
        return replace(plan, copies=_copies_of_launches(instance, plan)) if instance.problem.tasks.reads else plan
    place = {name: (kind, lane) for kind, names in enumerate(instance.lanes) for lane, name in enumerate(names)}
    copies = copies_ahead(instance, [(step.task, *place[step.devices[0]]) for step in plan.steps])
    return replace(plan, copies=copies) if copies else plan


def _copies_of_launches(instance: Instance, plan: Plan) -> list[Copy]:
    """Prefetches for a plan with fused launches: inputs move during the launch before."""
    tasks = instance.problem.tasks
    readers, writers = users_of_items(tasks)
    accelerators = {name for kind, names in zip(instance.types, instance.lanes, strict=True) if kind.kind != "cpu"
                    for name in names}  # fmt: skip
    last: dict[str, int] = {}
    copies: list[Copy] = []
    for numbers in plan.launches():
        steps = [plan.steps[number] for number in numbers]
        name = steps[0].devices[0]
        if name not in accelerators:
            continue
        if name in last:
            inputs = fusion_of(tasks, [step.task for step in steps], readers, writers).inputs
            copies += [Copy(item, name, last[name]) for item in inputs]
        last[name] = steps[-1].task
    return copies
