"""Divide groups of tasks among accelerators, balancing work and transfers.

Each part is one accelerator.  The load of a part is the sum of four terms: the work of its groups, each of their inputs
(counted once), their private data, and what they read from groups of other parts.  For each switch there is one more
load: the uploads of all parts behind it.  The search moves one group at a time while this lowers a high-order norm of
the loads, which approximates their maximum.
Reference: the moves are those of Fiduccia and Mattheyses, A Linear-Time Heuristic for Improving Network Partitions
(1982), with loads instead of cut edges and without its tentative moves that worsen the result.
Cost: about ten passes; a pass tries each group on each other part, in O(inputs and neighbors of the group) per trial.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.model.fusion import fusible
from hetsim.model.plan import Plan, Step
from hetsim.model.tasks import Tasks
from hetsim_policies.common import grouped
from hetsim_policies.task_graphs import graph_of, successors, topological

NORM = 12
MAX_PASSES = 20
MANY = 64  # number of launches tried one by one if all together are impossible

Patterns = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Groups:
    """Groups of tasks to be divided among accelerators: their work, inputs, transfers."""

    work: np.ndarray  # seconds of each group on each part, private data included; inf: cannot run there
    inputs: Sequence[Mapping[int, None]]  # initial items that each group reads
    cost: np.ndarray  # seconds to bring each item to each part
    reads: Sequence[Mapping[int, float]]  # seconds to move what each group reads from each other group
    switch: Sequence[int | None]  # switch of each part


class Dealing:
    """An assignment of task groups to accelerators (parts), with current loads."""

    def __init__(self, groups: Groups, part_of: Sequence[int]):
        self.groups = groups
        self.parts = range(groups.work.shape[1])
        self.part_of = [-1] * len(part_of)
        self.load = [0.0] * len(self.parts)
        self.uploads = [0.0] * len(self.parts)
        self.held: list[dict[int, int]] = [{} for _ in self.parts]  # items of each part, by how many groups read them
        self.readers: list[dict[int, float]] = [{} for _ in part_of]
        for reader, sources in enumerate(groups.reads):
            for writer, seconds in sources.items():
                self.readers[writer][reader] = seconds
        for group, part in enumerate(part_of):
            self.put(group, part)

    def put(self, group: int, part: int) -> None:
        self._change(group, part, 1)
        self.part_of[group] = part

    def take(self, group: int) -> int:
        part = self.part_of[group]
        self.part_of[group] = -1
        self._change(group, part, -1)
        return part

    def _change(self, group: int, part: int, sign: int) -> None:
        moved, members, all_groups = 0.0, self.held[part], self.groups
        for item in all_groups.inputs[group]:
            count = members.get(item, 0)
            members[item] = count + sign
            if count + sign == (1 if sign > 0 else 0):
                moved += float(all_groups.cost[item, part])
        for writer, seconds in all_groups.reads[group].items():
            if self.part_of[writer] not in (-1, part):
                moved += seconds
        self.load[part] += sign * (float(all_groups.work[group, part]) + moved)
        self.uploads[part] += sign * moved
        for reader, seconds in self.readers[group].items():
            other = self.part_of[reader]
            if other not in (-1, part):
                self.load[other] += sign * seconds
                self.uploads[other] += sign * seconds

    def value(self) -> float:
        """Return a smooth maximum of all loads (their norm of order `NORM`), in seconds."""
        shared: dict[int, float] = {}
        for part, switch in enumerate(self.groups.switch):
            if switch is not None:
                shared[switch] = shared.get(switch, 0.0) + self.uploads[part]
        loads = [max(0.0, load) for load in (*self.load, *shared.values())]
        largest = max(loads, default=0.0)
        return largest * sum((load / largest) ** NORM for load in loads) ** (1 / NORM) if largest > 0 else 0.0


def dealt(groups: Groups, part_of: Sequence[int]) -> list[int]:
    """Improve an assignment of groups of tasks to accelerators (parts); return it.

    One group is moved at a time while the smooth maximum of the loads (`Dealing.value`) falls.  part_of: initial parts.
    """
    dealing = Dealing(groups, part_of)
    best = dealing.value()
    heavy = np.argsort(-np.where(np.isfinite(groups.work), groups.work, 0.0).max(axis=1), kind="stable").tolist()
    for _ in range(MAX_PASSES):
        before = best
        for group in heavy:
            home = there = dealing.take(group)
            for part in dealing.parts:
                if part == home or not np.isfinite(groups.work[group, part]):
                    continue
                dealing.put(group, part)
                if (value := dealing.value()) < best * (1 - 1e-9):
                    best, there = value, part
                dealing.take(group)
            dealing.put(group, there)
        if best >= before * (1 - 1e-6):
            break
    return dealing.part_of


def in_blocks(weights: Sequence[float], parts: int) -> list[int]:
    """Divide consecutive groups into parts of similar weight; return the part of each."""
    total = sum(weights)
    passed, blocks = 0.0, []
    for weight in weights:
        middle = passed + weight / 2
        blocks.append(min(parts - 1, int(parts * middle / total)) if total > 0 else 0)
        passed += weight
    return blocks


# Launches of several kernels as one, for a plan without any.  Only tasks with known work (`KernelWork`) are joined, as
# the saving of others is unknown.  A simulation decides if it is worthwhile: all inputs are uploaded before the compute
# begins, and tasks elsewhere wait for the end of the whole launch.


def known_work(tasks: Tasks, step: Step) -> bool:
    """Return True if the kernel's work is known and it may be fused."""
    if tasks.work is None or not np.isfinite(tasks.work.alone(step.task, step.mode)):
        return False
    return fusible([tasks.shapes[tasks.shape[step.task]].modes[step.mode]]) is None


def chains(tasks: Tasks, most: int, patterns: Patterns | None = None) -> list[tuple[int, ...]]:
    """Chains of at most `most` tasks, each the only successor of its predecessor.

    patterns: sequences of classes; a chain must match one, and the longest matching sequence is used.
    """
    graph = graph_of(tasks)
    after = successors(graph)
    wanted = None if patterns is None else sorted((tuple(one) for one in patterns), key=len, reverse=True)
    taken = [False] * len(tasks)
    rows = []
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
            rows.append(tuple(chain))
            for one in chain:
                taken[one] = True
    return rows


def as_one(plan: Plan, tasks: Tasks, groups: Iterable[Sequence[int]], most: int | None = None) -> Plan:
    """Return the plan with tasks of a group launched together if they share devices.

    most: maximum number of tasks in a launch; larger groups are cut.  If no tasks can be launched together, the plan
        is returned unchanged.
    """
    step_of = {step.task: step for step in plan.steps}
    usable: list[tuple[int, ...]] = []
    for group in groups:
        joinable = [task for task in group if step_of[task].launch is None and known_work(tasks, step_of[task])]
        for here in grouped((step_of[task].devices, task) for task in joinable).values():
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
    """Return the same plan with every task launched separately."""
    return replace(plan, steps=[replace(step, launch=None) for step in plan.steps])


def _joined(plan: Plan, groups: Sequence[tuple[int, ...]], last: bool) -> Plan:
    place = {step.task: number for number, step in enumerate(plan.steps)}
    number = max([step.launch for step in plan.steps if step.launch is not None], default=-1) + 1
    rank = {task: (float(at), 0) for task, at in place.items()}
    steps = {step.task: step for step in plan.steps}
    for one, group in enumerate(groups):
        at = (max if last else min)(place[task] for task in group)
        for position, task in enumerate(group):
            rank[task] = at + (-0.5 if last else 0.5), position
            steps[task] = replace(steps[task], launch=number + one)
    return replace(plan, steps=[steps[task] for task in sorted(place, key=rank.__getitem__)], timetable=None)
