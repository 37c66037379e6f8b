"""Two levels: a coarse plan of classes over groups, a scheduler in each group.

Decides the group of each task; the inner scheduler decides order, device and mode.  At every multiple of `epoch` a plan
is made from the waiting tasks and the observed arrival rates: the share of each class that each group runs
(`hetsim_policies.hybrid.common.groups`).  New tasks are distributed in these shares: after any number of tasks of a
class, the number in a group differs by less than one task from its share.  Waiting tasks are moved to match the shares.
A new class is planned immediately.  Between plans a group *starves* if a task could start on its devices, none of its
waiting tasks can use them, and tasks of other groups could.  It then takes the newest task of the class that loses
least by the move, if the task is expected to end earlier there.  With an `objective`, four plans are compared at each
epoch in forks of the run (`View.fork`), in which the groups continue to decide: the planner's plan, the plan of the
last epoch, the plan in which every class runs where it takes the shortest time, and the plan that ends first.  The plan
with the best mean of the objective is followed; at ties, the planner's plan.
Reference: the split into a program over classes and a fast dispatcher is that of Gavel (Narayanan et al., OSDI 2020)
and, for two levels, of Mesos (Hindman et al., NSDI 2011); stealing between groups is that of Hawk (Delgado, Dinu,
Kermarrec, Zwaenepoel, Hawk: Hybrid Datacenter Scheduling, USENIX ATC 2015).  The optimization problems are those of
`hetsim_policies.static.common.unrelated` and `dual_approximation`.
No ratio is proven: the plan counts device-seconds, not single devices, and assumes that devices of a type are equal.
Weakness: with many small groups wide gangs wait long, and the inner order applies only within a group.  A plan from few
arrivals follows their noise, and if kinds have few tasks each, shares are met only coarsely.  The plan ignores data and
links.  Cost: O(log groups) per task and O(kinds) per round in addition to the inner schedulers' work, where a kind is a
class and a demand; an epoch costs a linear program of kinds × types variables, a pass over devices, and O(log n) per
moved task; with an objective four times that, and four forks, each O(running and waiting tasks) and the groups' work.
"""

import copy
import math
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds, forbid
from hetsim.policy import Decision, ListScheduler, PlanProblem, Scheduler, Start, View, Wait
from hetsim_policies.hybrid.common.groups import (
    FILL,
    DeviceGroup,
    GroupedTask,
    Grouping,
    Planner,
    TaskKind,
    Turns,
    apportion,
    make_groups,
    shares,
)
from hetsim_policies.hybrid.common.inner import check_nested
from hetsim_policies.hybrid.common.outlook import Objective, check_objective, mean_of
from hetsim_policies.hybrid.common.part_view import PartView
from hetsim_policies.orders import fcfs

LOOK = 8  # maximum number of groups in which a starving group searches waiting tasks of a kind
SMOOTH = 0.5  # weight of the last epoch in the observed arrival rate
RARE = 0.01  # arrivals per epoch below which a class is assumed to have ended
SHORTEST_EPOCH = 1.0  # Seconds, in a scenario: each epoch makes a plan, and a day has 86,400 of these
SLACK = 1e-9  # Relative gain of a mean that a plan needs over the planner's, since forks have rounding errors
# Tried plans, and the fraction of an epoch that each fills unbalanced; `kept` has the last shares
OPTIONS = {"planned": FILL, "kept": FILL, "fastest": math.inf, "balanced": 0.0}


LASTING = forbid(lambda epoch: epoch < SHORTEST_EPOCH, f"must be at least {SHORTEST_EPOCH:g} s; got {{:g}} s, "
                 "but a plan is made in every epoch; minutes are usual")  # fmt: skip


class Hierarchical(Scheduler):
    """Plans quotas of groups every epoch, with a scheduler in each group.

    epoch: seconds between plans, at least 1 in a scenario.
    planner: "lp", or "dual_approximation" (cores and one type of accelerator).
    inner: the scheduler in each group, by name or as a mapping with its parameters: a list order, or one that chooses a
        device queue for each task (eft, dmda, ...); default: fcfs that skips tasks that do not fit.
    groups: "type" (of device), "node", "rack", or a number of nodes each.
    moves: when a starving group takes a task: if the task ends "earlier" there, "always" if it can run there, or
        "never".
    objective: the mean by which plans are compared in forks of the run: response, slowdown, deadline_misses, energy
        (above idle) or cost; default: the planner's plan is followed without a comparison.
    """

    def __init__(
        self,
        epoch: Annotated[Seconds, Field(gt=0), LASTING] = 600.0,
        planner: Planner = "lp",
        inner: Scheduler | None = None,
        groups: Literal["type", "node", "rack"] | Annotated[int, Field(ge=1, strict=True)] = "type",
        moves: Literal["earlier", "always", "never"] = "earlier",
        objective: Objective | None = None,
    ):
        if not 0 < epoch < math.inf:
            raise ValueError(f"epoch must be positive and finite; got {epoch:g} s")
        self.epoch = epoch
        self.planner: Planner = planner
        self.inner = ListScheduler(fcfs, discipline="skip") if inner is None else inner
        self.grouping: Grouping = groups
        self.moves = moves
        self.objective: Objective | None = objective
        self.groups: list[DeviceGroup] = []
        self.kinds: dict[Any, TaskKind] = {}
        self._of: dict[int, GroupedTask] = {}  # tasks that wait or run, by row
        self._new: list[Task] = []
        self._dirty: dict[int, None] = {}  # groups with a scheduler that has to be asked
        self._down: set[int] = set()
        self._next = 0.0
        self._counted = 0.0
        self._by_node: dict[int, list[DeviceGroup]] = {}
        self._by_type: dict[DeviceType, DeviceGroup] = {}
        self._with_timers = False  # True if any inner scheduler wanted to be asked at a time of its own
        self._option: str | None = None  # the plan of the next epoch that a fork tries out, or that was chosen so
        self._trial = False  # True in a fork, where later plans are followed untried
        self.notes: dict[str, int] = {"epochs": 0, "moved_by_plan": 0, "moved_when_starving": 0}
        if objective is not None:
            self.notes |= {f"plans_{name}": 0 for name in OPTIONS}

    def check(self, problem: PlanProblem) -> None:
        self._check(problem)
        self.inner.check(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self._check(problem)
        # Copied before it has seen anything, so that the groups' schedulers share nothing.
        for group in self._make(problem.cluster):
            group.scheduler.prepare(problem)

    def _check(self, problem: PlanProblem) -> None:
        check_nested(self.inner, "hierarchical", "inner", lines=True)
        if self.objective is not None:
            check_objective(self.objective, problem)
        types = [kind for kind in problem.cluster.types.values() if problem.cluster.count(kind.name)]
        if self.planner == "dual_approximation" and (len(types) > 2 or sum(kind.kind == "cpu" for kind in types) > 1):
            names = ", ".join(kind.name for kind in types)
            text = f"planner dual_approximation plans for cores and one type of accelerator; the cluster has {names}"
            raise refusal(f"{text}; planner lp has no such limit", "policy.scheduler.planner")
        groups = make_groups(problem.cluster, self.grouping)
        tasks = problem.tasks
        for shape in tasks.shapes:
            if any(group.can_host(mode) for mode in shape.modes for group in groups):
                continue
            if len(rows := np.flatnonzero(tasks.shape == shape.index)):
                more = f" (and {len(rows) - 1} more like it)" if len(rows) > 1 else ""
                text = f"even an idle group has no room for task {tasks.name(int(rows[0]))}{more}; use larger groups"
                raise refusal(text, "policy.scheduler.groups")

    def _make(self, cluster: Cluster) -> list[DeviceGroup]:
        if not self.groups:
            self.groups = make_groups(cluster, self.grouping)
            for group in self.groups:
                group.scheduler = copy.deepcopy(self.inner)
                for node in group.nodes:
                    self._by_node.setdefault(node.index, []).append(group)
                for kind in group.lanes:
                    self._by_type[kind] = group
        return self.groups

    def begin(self, view: View) -> None:
        self._cluster = view.cluster
        self._types = [kind for kind in view.cluster.types.values() if view.cluster.count(kind.name)]
        self._types.sort(key=lambda kind: kind.kind != "cpu")
        for group in self._make(view.cluster):
            group.view = PartView(
                view, group.mask, group.lanes, waiting_tasks=group.waiting, running_tasks=group.running
            )
            group.scheduler.begin(group.view)  # type: ignore[arg-type]

    def ready(self, task: Task) -> None:
        if (entry := self._of.get(task.index)) is None:
            self._new.append(task)
            return
        group = entry.group  # it was stopped: it waits where it ran
        group.end(entry)
        entry.place(group)
        entry.kind.wait(task, 1)
        self._put(entry)

    def finished(self, task: Task) -> None:
        entry = self._of.pop(task.index)
        entry.group.end(entry)
        entry.group.scheduler.finished(task)
        self._look_at(entry.group)

    def gone(self, task: Task) -> None:
        if (entry := self._of.pop(task.index, None)) is None:
            self._new = [other for other in self._new if other is not task]
            return
        if entry.end is None:
            entry.kind.wait(task, -1)
            entry.group.dequeue(entry)
        else:
            entry.group.end(entry)
        entry.group.scheduler.gone(task)
        self._look_at(entry.group)

    def device(self, device: Device, up: bool) -> None:
        (self._down.discard if up else self._down.add)(device.index)
        for group in self._by_node.get(device.node, ()):
            group.count_lanes(self._down)
            for other in self._told(device, group):
                group.scheduler.device(other, up and other.index not in self._down)
            self._look_at(group)

    def _told(self, device: Device, group: DeviceGroup) -> list[Device]:
        """Return the group's devices that cannot be used while `device` is down.

        If the group has devices of its type, this is `device` itself; else, if `device` is the CPU of a node, these are
        the accelerators of this node in the group.
        """
        if device.type in group.lanes:
            return [device]
        node = self._cluster.nodes[device.node]
        return [other for other in node.accelerators if device is node.cpu and other.type in group.lanes]

    def announced(self, device: Device, start: float, end: float) -> None:
        for group in self._by_node.get(device.node, ()):
            group.scheduler.announced(device, start, end)
            self._look_at(group)

    def _look_at(self, group: DeviceGroup) -> None:
        if group.mask is not None:
            self._dirty[group.number] = None
        else:  # types of device share their nodes' cores and memory
            self._dirty = dict.fromkeys(range(len(self.groups)))

    def schedule(self, view: View) -> Iterator[Decision]:
        now = view.now
        planned = now >= self._next and bool(self._new or self._of)
        if planned and self.objective is not None and not self._trial:
            self._option = self._best_option(self.objective, view)
            self.notes[f"plans_{self._option}"] += 1
        new, self._new = self._new, []
        kinds = [self._kind(task) for task in new]
        moved = self._plan_epoch(now) if planned else 0
        if unplanned := [kind for kind in dict.fromkeys(kinds) if kind.turns is None]:
            self._plan(unplanned, new, kinds)
        for task, kind in zip(new, kinds, strict=True):
            self._hand_out(task, kind)
        if view.items:  # data that come free are the completion of no task
            self._dirty = dict.fromkeys(range(len(self.groups)))
        if self._with_timers:
            self._dirty.update((group.number, None) for group in self.groups if group.until <= now)
        started = yield from self._ask(view)
        if self.moves != "never":
            started |= yield from self._feed(view)
        until = min(group.until for group in self.groups) if self._with_timers else math.inf
        waits = any(kind.waiting for kind in self.kinds.values())
        # Another plan does not help where this one moved nothing and nothing runs: only a change can help.
        stuck = planned and not (moved or started or any(group.running for group in self.groups))
        yield Wait(until=min(until, self._next) if waits and not stuck else until)

    def _ask(self, view: View) -> Generator[Decision, None, bool]:
        """Run the scheduler of each group with changes; return True if one started a task."""
        started = False
        while self._dirty:
            group = self.groups[min(self._dirty)]
            del self._dirty[group.number]
            group.until = math.inf
            if not (group.waiting or group.running):
                continue
            for decision in group.scheduler.schedule(group.view):  # type: ignore[arg-type]
                if isinstance(decision, Wait):
                    group.until = decision.until
                    self._with_timers |= decision.until < math.inf
                    break
                if isinstance(decision, Start):
                    self._started(decision, view.now)
                    started = True
                yield decision
        return started

    def _started(self, decision: Start, now: float) -> None:
        assert isinstance(decision.tasks, Task)
        entry = self._of[decision.tasks.index]
        entry.kind.wait(entry.task, -1)
        entry.group.dequeue(entry)
        entry.group.start(entry, decision.placement.mode, now)

    def _kind(self, task: Task) -> TaskKind:
        key = task.class_, task.shape.index, task.allowed
        if (kind := self.kinds.get(key)) is None:
            kind = self.kinds[key] = TaskKind(len(self.kinds), task)
        kind.came(task)
        return kind

    def _plan_epoch(self, now: float) -> int:
        """Update arrival rates, make a plan and move tasks; return the number of moves."""
        if (passed := now - self._counted) > 0:
            for kind in self.kinds.values():
                observed = kind.arrived / passed
                kind.rate = SMOOTH * observed + (1 - SMOOTH) * kind.rate if kind.rate else observed
                if kind.rate * self.epoch < RARE:
                    kind.rate = 0.0
                kind.arrived = 0
            self._counted = now
        self._next = (math.floor(now / self.epoch) + 1) * self.epoch
        if self._next <= now:  # rounding
            self._next += self.epoch
        self.notes["epochs"] += 1
        option, self._option = self._option or "planned", None
        expected = [kind for kind in self.kinds.values() if kind.waiting or kind.rate > 0]
        if option != "kept":
            for kind in self.kinds.values():
                kind.turns = None
        self._plan([kind for kind in expected if kind.turns is None], [], [], OPTIONS[option])
        moved = sum(self._rebalance(kind) for kind in expected)
        self.notes["moved_by_plan"] += moved
        return moved

    def _best_option(self, objective: Objective, view: View) -> str:
        """Return the way to plan this epoch that gives the best simulated future.

        Each option is simulated in a copy of the run (a fork), with estimated times.
        """
        best, best_mean = "planned", math.inf
        for option in OPTIONS:
            if option == "kept" and not self.notes["epochs"]:
                continue
            self._option, self._trial = option, True
            try:
                fork = view.fork(self)
            finally:
                self._option, self._trial = None, False
            mean = mean_of(fork.run(), objective, view.now)
            if mean < best_mean - SLACK * abs(mean):
                best, best_mean = option, mean
        return best

    def _plan(self, wanted: list[TaskKind], new: list[Task], kinds: list[TaskKind], fill: float = FILL) -> None:
        """Compute how tasks of the `wanted` kinds are shared among groups, given all load.

        new: tasks without a group; kinds: the kind of each.  fill: see `shares`.
        """
        if not wanted:
            return
        here = Counter(kind.number for kind in kinds)
        coming = {kind.number: here[kind.number] + kind.rate * self.epoch for kind in self.kinds.values()}
        planned = [kind for kind in self.kinds.values() if kind.waiting or coming[kind.number] > 0]
        lanes = {kind: sum(group.lanes.get(kind, 0) for group in self.groups) for kind in self._types}
        work = np.full((len(planned), len(self._types)), np.inf)
        for row, kind in enumerate(planned):
            for column, of_type in enumerate(self._types):
                groups = [self._by_type[of_type]] if self.grouping == "type" else self.groups
                possible = [p for p in kind.positions if kind.modes[p].type is of_type
                            and any(p in group.hosts(kind) for group in groups)]  # fmt: skip
                needs = [kind.expected(p, coming[kind.number]) * max(kind.modes[p].width, 1e-3) for p in possible]
                work[row, column] = min(needs, default=np.inf)
        split = shares(
            work, np.array([lanes[kind] for kind in self._types], dtype=float), self.epoch, planner=self.planner,
            fill=fill
        )
        for row, kind in enumerate(planned):
            if kind in wanted:
                kind.turns = Turns(self._by_group(kind, split[row]), kind.number)

    def _by_group(self, kind: TaskKind, share: np.ndarray) -> dict[int, float]:
        parts: dict[int, float] = {}
        for of_type, part in zip(self._types, share.tolist(), strict=True):
            if part <= 0:
                continue
            able = [group for group in self.groups if any(kind.modes[p].type is of_type for p in group.hosts(kind))]
            total = sum(group.lanes[of_type] for group in able)
            for group in able:
                if total and group.lanes[of_type]:
                    parts[group.number] = parts.get(group.number, 0.0) + part * group.lanes[of_type] / total
        if not parts:  # all that could run it is down: it waits for what comes back
            parts = {group.number: 1.0 for group in self.groups if group.hosts(kind)}
        return parts

    def _hand_out(self, task: Task, kind: TaskKind) -> None:
        assert kind.turns is not None
        entry = self._of[task.index] = GroupedTask(task, kind, self.groups[kind.turns.next()])
        kind.wait(task, 1)
        self._put(entry)

    def _put(self, entry: GroupedTask) -> None:
        entry.group.enqueue(entry)
        entry.group.scheduler.ready(entry.task)
        self._look_at(entry.group)

    def _rebalance(self, kind: TaskKind) -> int:
        assert kind.turns is not None
        share = kind.turns.share
        if not kind.waiting:
            return 0
        wanted = dict(zip(share, apportion(kind.waiting, list(share.values())), strict=True))
        spare: list[GroupedTask] = []
        moved = 0
        for number in [*kind.holders]:
            here = self.groups[number].of_kind[kind.number]
            if (surplus := len(here) - wanted.get(number, 0)) > 0:
                spare += [self._of[index] for index in [*here][-surplus:]]
        for number, count in wanted.items():
            lacking = count - len(self.groups[number].of_kind.get(kind.number, ()))
            for _ in range(min(lacking, len(spare))):
                self._move(spare.pop(), self.groups[number])
                moved += 1
        return moved

    def _move(self, entry: GroupedTask, group: DeviceGroup) -> None:
        entry.group.dequeue(entry)
        entry.group.scheduler.gone(entry.task)
        entry.task.ticket += 1  # whatever queue holds it there, it stands in none any more
        self._look_at(entry.group)
        entry.place(group)
        self._put(entry)

    def _feed(self, view: View) -> Generator[Decision, None, bool]:
        """Move waiting tasks to groups with idle devices; return True if any task started."""
        started = False
        full: dict[Mode, None] = {}
        barred: dict[tuple[int, int], None] = {}
        while True:
            chosen = None
            for kind in self.kinds.values():
                if kind.waiting:
                    move = self._hungry(kind, full, barred, view)
                    if move is not None and (chosen is None or move[0] < chosen[0]):
                        chosen = move
            if chosen is None:
                return started
            _, entry, group = chosen
            self._move(entry, group)
            self.notes["moved_when_starving"] += 1
            started |= yield from self._ask(view)
            if entry.end is None:  # its scheduler has other plans
                barred[entry.kind.number, group.number] = None

    def _hungry(
        self, kind: TaskKind, full: dict[Mode, None], barred: dict[tuple[int, int], None], view: View
    ) -> tuple[float, GroupedTask, DeviceGroup] | None:
        """Return the best move of a task of a kind to a group with idle devices, or None.

        Result: (slowdown there, task, group).  full: modes that fit nowhere (updated).  barred: (kind, group) to skip.
        """
        best: tuple[float, GroupedTask, DeviceGroup] | None = None
        for position in kind.positions:
            mode = kind.modes[position]
            if mode in full:
                continue
            if (placement := view.first(mode)) is None:
                full[mode] = None
                continue
            group = self._group_of(placement)
            if group is not None and group.number in kind.holders and group.mask is not None:
                others = ~sum(self.groups[number].mask or 0 for number in [*kind.holders][:LOOK])
                placement = view.first(mode, among=others & ((1 << len(view.cluster.nodes)) - 1))
                group = None if placement is None else self._group_of(placement)
            if group is None or group.queued[mode.type] or (kind.number, group.number) in barred:
                continue
            candidate = self._candidate(kind, position, group, view)
            if candidate is not None and (best is None or candidate[0] < best[0]):
                best = (*candidate, group)
        return best

    def _group_of(self, placement: Placement) -> DeviceGroup | None:
        groups = self._by_node[placement.devices[0].node]
        group = self._by_type[placement.mode.type] if groups[0].mask is None else groups[0]
        return group if group.mask is None or all(group.mask >> d.node & 1 for d in placement.devices) else None

    def _candidate(
        self, kind: TaskKind, position: int, group: DeviceGroup, view: View
    ) -> tuple[float, GroupedTask] | None:  # fmt: skip
        """Return a task to move to this group and its slowdown there, as (slowdown, task).

        Only the newest task of the kind in some other groups is considered, if it would end earlier here (`moves:
        always`: in any case).  Of these, the one that would otherwise end last is returned; None if there is none.
        """
        best: tuple[float, GroupedTask] | None = None
        latest = -math.inf
        for number in [*kind.holders][:LOOK]:
            other = self.groups[number]
            if other is group:
                continue
            entry = self._of[next(reversed(other.of_kind[kind.number]))]
            here = entry.task.remaining_in(entry.task.modes[position])
            there = other.wait_for(entry.type, entry.width, view.now, entry.seconds * entry.width) + entry.seconds
            if (self.moves == "always" or here < there) and there > latest:
                if view.items:  # its data must have room where it would start
                    placement = group.view.first(kind.modes[position])
                    if placement is None or not group.view.holds(entry.task, placement):
                        continue
                latest, best = there, (here / entry.seconds if entry.seconds > 0 else math.inf, entry)
        return best
