"""Launches of several kernels as one, for a plan that has none: which tasks, and where they stand in the plan.

Only tasks with known work (`hetsim.model.tasks.KernelWork`) are joined: of others nothing is known that a common launch
would save.  Whether it pays is for a simulation to judge: all inputs are uploaded before anything is computed, and
tasks elsewhere wait for the end of the whole launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hetsim.model.fusion import fusible
from hetsim.model.plan import Plan, Step
from hetsim.model.tasks import Tasks
from hetsim_policies.task_graphs import graph_of, topological

MANY = 64
"""Number of launches tried one by one where they are not possible all together."""

Patterns = Sequence[Sequence[str]]


def known_work(tasks: Tasks, step: Step) -> bool:
    """Is it known what the kernel does, and may it be launched with others?"""
    if tasks.work is None or not np.isfinite(tasks.work.alone(step.task, step.mode)):
        return False
    return fusible([tasks.shapes[tasks.shape[step.task]].modes[step.mode]]) is None


def chains(tasks: Tasks, most: int, patterns: Patterns | None = None) -> list[tuple[int, ...]]:
    """Tasks that follow each other, each the only one that waits for the one before, at most `most` of them.

    patterns: classes in order; only sequences of tasks of these classes, of several the longest that goes.
    """
    graph = graph_of(tasks)
    after: list[list[int]] = [[] for _ in range(len(tasks))]
    for task in range(len(tasks)):
        for before in graph[task]:
            after[before].append(task)
    wanted = None if patterns is None else sorted((tuple(one) for one in patterns), key=len, reverse=True)
    taken = [False] * len(tasks)
    found = []
    for task in topological(graph):
        if taken[task]:
            continue
        reach = most if wanted is None else max(map(len, wanted), default=0)
        chain = [task]
        while len(chain) < reach and len(after[chain[-1]]) == 1 and not taken[after[chain[-1]][0]]:
            chain.append(after[chain[-1]][0])
        if wanted is not None:
            names = tuple(tasks.classes[0 if tasks.class_code is None else int(tasks.class_code[one])] for one in chain)
            length = next((len(one) for one in wanted if names[: len(one)] == one), 1)
            chain = chain[:length]
        if len(chain) > 1:
            found.append(tuple(chain))
            for one in chain:
                taken[one] = True
    return found


def as_one(plan: Plan, tasks: Tasks, groups: Iterable[Sequence[int]], most: int | None = None) -> Plan:
    """The plan with the tasks of each group launched as one, as far as they stand on one device and that is possible.

    most: longer groups are cut.  The same plan where nothing can be joined.
    """
    step_of = {step.task: step for step in plan.steps}
    usable: list[tuple[int, ...]] = []
    for group in groups:
        by_device: dict[tuple[str, ...], list[int]] = {}
        for task in group:
            if step_of[task].launch is None and known_work(tasks, step_of[task]):
                by_device.setdefault(step_of[task].devices, []).append(task)
        for here in by_device.values():
            size = len(here) if most is None else most
            usable += [tuple(here[at : at + size]) for at in range(0, len(here), size) if len(here[at : at + size]) > 1]
    if not usable:
        return plan
    together = _joined(plan, usable, last=True)
    if not together.problems_of_order(tasks):
        return together
    for group in usable[:MANY]:
        for last in (True, False):
            tried = _joined(plan, [group], last)
            if not tried.problems_of_order(tasks):
                plan = tried
                break
    return plan


def apart(plan: Plan) -> Plan:
    """The same plan with every task launched by itself."""
    return replace(plan, steps=[replace(step, launch=None) for step in plan.steps])


def _joined(plan: Plan, groups: Sequence[tuple[int, ...]], last: bool) -> Plan:
    """Each group as one launch, where its last (or first) task stood; its tasks in the order given."""
    place = {step.task: number for number, step in enumerate(plan.steps)}
    number = max([step.launch for step in plan.steps if step.launch is not None], default=-1) + 1
    rank = {task: (float(at), 0) for task, at in place.items()}
    steps = {step.task: step for step in plan.steps}
    for one, group in enumerate(groups):
        at = (max if last else min)(place[task] for task in group)
        for position, task in enumerate(group):
            rank[task] = at + (-0.5 if last else 0.5), position
            steps[task] = replace(steps[task], launch=number + one)
    ranked = sorted(place, key=rank.__getitem__)
    return replace(plan, steps=[steps[task] for task in ranked], timetable=None)
