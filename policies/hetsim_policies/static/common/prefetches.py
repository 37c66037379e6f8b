"""Add prefetches to a plan: inputs move while the previous task computes.

Each item that a task reads is fetched once the previous task on the same accelerator has started, or as soon as it has
been written (`hetsim.model.plan.Copy`).
Weakness: on shared links a prefetch may delay an upload that a task waits for; simulate the plan with and without them
and use the better one.
"""

from dataclasses import replace

from hetsim.model.fusion import fusion_of, users_of_items
from hetsim.model.plan import Copy, Plan
from hetsim_policies.static.common.instance import Instance


def with_prefetches(instance: Instance, plan: Plan) -> Plan:
    """Return the plan with inputs prefetched during the device's previous launch."""
    tasks = instance.problem.tasks
    if tasks.reads is None:
        return plan
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
    return replace(plan, copies=copies) if copies else plan
