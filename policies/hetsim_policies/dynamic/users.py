"""Shares among users, by weights or by quotas."""

from collections import defaultdict
from collections.abc import Generator, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.cluster import Partition
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Annotate,
    Decision,
    Demand,
    Discipline,
    ListScheduler,
    PlacementRule,
    PlanProblem,
    Start,
    Stop,
    TaskQueue,
    View,
    claims_of,
    demand_of,
    fits_nowhere,
    partition_of,
)

Line = tuple[str, Partition | None]  # owner, and a partition to which some of its tasks are bound


Owners = Literal["user", "account", "vc", "partition", "class"]  # what owns a task


def owner_of(task: Task, of: Owners) -> str:
    if of == "user":
        return task.user
    if of == "class":
        return task.class_
    return task.partition if of == "partition" else task.label(of)


def owners_of(tasks: Tasks, of: Owners) -> list[str]:
    listed = {"user": tasks.users, "class": tasks.classes, "partition": tasks.partitions}.get(of)
    if listed is not None:
        return listed
    column = tasks.extra.get(of)
    return [] if column is None else list(dict.fromkeys(str(cell) for cell in column.tolist()))


class ByUser(ListScheduler):
    """Base of policies with one queue per user, served in the order of `standing`.

    With discipline "block" no task passes a task that does not fit, on any node of its partition; with "skip" the next
    user's task may pass it.  A user's tasks are in the order of arrival; tasks bound to another partition have their
    own queue.  `standing` is computed again at the start of a round, and for a user whose task has started.
    """

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "skip"):
        super().__init__(placement=placement, discipline=discipline)
        self.of_user: defaultdict[Line, TaskQueue] = defaultdict(TaskQueue)
        self._full: dict[Demand, None] = {}  # demands that fit nowhere since the last release
        self._seen = -1

    def standing(self, user: str) -> Any:
        """Sort key of users, lowest first."""
        raise NotImplementedError

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        """Hook before a task starts."""

    def key(self, task: Task) -> Any:
        return task.arrival

    def owner(self, task: Task) -> str:
        """Return the owner in whose queue a task waits; by default its user."""
        return task.user

    def ready(self, task: Task) -> None:
        self.finished(task)  # if it was stopped
        self.of_user[self.owner(task), partition_of(task)].push(self.key(task), task)

    def gone(self, task: Task) -> None:
        self.finished(task)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if view.changes.releases != self._seen:
            self._seen = view.changes.releases
            self._full.clear()
        heads = [self._entry(line, task) for line, queue in self.of_user.items() if (task := queue.head()) is not None]
        if not heads:
            yield WAIT_FOR_READY
            return
        heapify(heads)
        while heads:
            line, task = heads[0][-2:]
            if line[1] is not None and heads[0] < (again := self._entry(line, task)):
                heapreplace(heads, again)  # another line of the user has moved on
                continue
            placement = None if demand_of(task) in self._full else self.place(task, view)
            if placement is None:
                if fits_nowhere(task, view):
                    self._full[demand_of(task)] = None
                if self.discipline == "block":
                    heads = [entry for entry in heads if not claims_of(entry[-1]) & claims_of(task)]
                    heapify(heads)
                else:
                    heappop(heads)
                continue
            self.starting(task, placement, view)
            yield Start(task, placement)
            if (following := self.of_user[line].head()) is None:
                heappop(heads)
            else:
                heapreplace(heads, self._entry(line, following))
        yield WAIT_FOR_CHANGE

    def _entry(self, line: Line, task: Task) -> tuple[Any, float, int, Line, Task]:
        return self.standing(line[0]), task.arrival, task.index, line, task


class Wfq(ListScheduler):
    """Weighted fair queueing: users share the cluster in proportion to their weights.

    Decides when.  Every task has two virtual tags: the start tag is the later of the virtual time and its user's last
    finish tag; the finish tag is the start tag plus its service (GPUs × estimated time; cores × time) divided by the
    user's weight.  The task with the lowest start tag starts next; the virtual time is the start tag of the last
    started task (start-time fair queueing, which needs no simulated fluid system).
    Reference: Demers, Keshav, Shenker, Analysis and Simulation of a Fair Queueing Algorithm (1989); Goyal, Vin, Cheng,
    Start-time Fair Queueing (1996): on one server, while two users have waiting tasks, the difference of their
    services, each divided by the user's weight, is at most the service of one task of each user, divided likewise.
    Weakness: service is charged by estimates; a user gets no credit for being idle.  The bound grows with the number of
    servers.  Cost: O(log n) per task; with `skip` also O(distinct demands) per round.

    weights: weight of each user, by name; users not named have 1.
    """

    def __init__(
        self,
        weights: dict[str, Annotated[float, Field(gt=0)]] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
    ):
        super().__init__(self._tag, self._begin, discipline)
        self.weights = weights or {}
        self.rule = placement
        self._virtual = 0.0
        self._last: dict[str, float] = {}  # by user: the finish tag of the last task that came
        # Start and finish tag of waiting and running tasks, by row; kept through stops
        self._tags: dict[int, tuple[float, float]] = {}

    def _tag(self, task: Task) -> float:
        if (tags := self._tags.get(task.index)) is None:
            mode = task.fastest_modes()[0]
            begin = max(self._virtual, self._last.get(task.user, 0.0))
            service = mode.width * task.shortest_estimate / self.weights.get(task.user, 1.0)
            tags = self._tags[task.index] = begin, begin + service
            self._last[task.user] = tags[1]
        return tags[0]

    def _begin(self, task: Task, view: View) -> Placement | None:
        placement = view.fit(task) if self.rule is None else self.rule(task, view)
        if placement is not None:
            self._virtual = max(self._virtual, self._tags[task.index][0])
        return placement

    def finished(self, task: Task) -> None:
        self._tags.pop(task.index, None)

    gone = finished


class Drf(ByUser):
    """Dominant resource fairness: the user with the lowest dominant share is next.

    Decides when.  A user's dominant share is the largest part of any cluster resource (cores, memory or GPUs; not GPU
    memory) that the user's running tasks occupy, divided by the user's weight; the first task of the user with the
    lowest share starts next.
    Reference: Ghodsi et al., Dominant Resource Fairness: Fair Allocation of Multiple Resource Types (2011): progressive
    filling is strategy-proof, envy-free and Pareto-efficient for divisible demands.
    Weakness: it considers only the present use, so a user that arrives late gets no compensation; without preemption a
    share decreases only as tasks end.
    Cost: O(log users) per start and end; with `skip` also O(waiting users) per round.

    weights: weight of each user, by name; users not named have 1.
    """

    def __init__(
        self,
        weights: dict[str, Annotated[float, Field(gt=0)]] | None = None,
        placement: PlacementRule | None = None,
        discipline: Discipline = "skip",
    ):
        super().__init__(placement, discipline)
        self.weights = weights or {}
        self._total: dict[str, float] = {}
        self._held: dict[str, dict[str, float]] = {}
        self._of: dict[int, tuple[str, dict[str, float]]] = {}

    def begin(self, view: View) -> None:
        for node in view.cluster.nodes:
            amounts = {"cores": node.cpus * 1000.0, "memory": float(node.memory or 0)}
            for device in node.accelerators:
                amounts["gpus"] = amounts.get("gpus", 0.0) + device.type.streams
            for name, amount in amounts.items():
                self._total[name] = self._total.get(name, 0.0) + amount

    def standing(self, user: str) -> float:
        usage = self._held.get(user, {})
        parts = (amount / self._total[name] for name, amount in usage.items() if self._total.get(name))
        return max(parts, default=0.0) / self.weights.get(user, 1.0)

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        mode = placement.mode
        amounts = {"cores": float(mode.millicores), "memory": float(mode.memory), "gpus": mode.gpu_share}
        usage = self._held.setdefault(task.user, {})
        for name, amount in amounts.items():
            usage[name] = usage.get(name, 0.0) + amount
        self._of[task.index] = task.user, amounts

    def finished(self, task: Task) -> None:
        if (entry := self._of.pop(task.index, None)) is not None:
            for name, amount in entry[1].items():
                self._held[entry[0]][name] -= amount


SHOWN = 10  # maximum number of owners in a message


class QuotaBorrow(ByUser):
    """Quotas with borrowing: users own GPUs, lend idle ones, and reclaim them.

    Decides when, and which job is preempted.  Jobs within their user's quota start first, in the order of arrival; a
    job beyond the quota may borrow free GPUs while no job within a quota waits for them.  When a job within its quota
    does not fit, borrowers are stopped, latest start first, only as many as needed; they wait again, with their work
    kept.
    Reference: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads (2019), section
    2.3: a virtual cluster may exceed its quota while other virtual clusters are idle; these reclaim their quotas by
    preemption.  `of` names the owners of the quotas: users, accounts, virtual clusters (the column `vc`), partitions or
    classes.  `tiers` order the jobs within quotas, and also the borrowers, by quality of service (the label `qos`, or
    else the class): the highest starts first, and the lowest is preempted first.
    Weakness: quotas ignore the location of GPUs, so a gang within its quota can wait for a whole node that other owners
    occupy within their quotas; borrowers bear the cost of every stop.
    Cost: O(users) per round, and one pass over the borrowers for a job within its quota that does not fit.

    quotas: GPUs by owner; `default` is the quota of all other owners.  Tasks without GPUs do not count.
    of: owner of quotas: user, account, vc, partition or class.
    borrow: owners may exceed their quotas.
    reclaim: borrowers are stopped for jobs within quotas.
    tiers: rank of each quality of service by name (default 0); the highest is first.
    """

    def __init__(
        self,
        quotas: dict[str, Annotated[float, Field(ge=0)]] | None = None,
        default: Annotated[float, Field(ge=0)] = 0.0,
        borrow: bool = True,
        reclaim: bool = True,
        tiers: dict[str, float] | None = None,
        placement: PlacementRule | None = None,
        of: Owners = "user",
    ):
        self.of = of
        super().__init__(placement, "skip")
        self.quotas = quotas or {}
        self.default = default
        self.borrow = borrow
        self.reclaim = reclaim
        self.tiers = tiers or {}
        self.used: dict[str, float] = {}
        self._of: dict[int, tuple[Task, float]] = {}  # running tasks in the order of their start, and their GPUs

    def check(self, problem: PlanProblem) -> None:
        present = owners_of(problem.tasks, self.of)
        if unknown := [owner for owner in self.quotas if owner not in present]:
            listed = [owner for owner in present if owner]
            more = f", and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
            names = ", ".join(listed[:SHOWN]) + more or f"none: give the tasks a {self.of}"
            raise refusal(f'quotas must have a {self.of} with tasks; got "{unknown[0]}"; the workload has {names}')

    def owner(self, task: Task) -> str:
        return owner_of(task, self.of)

    def tier(self, task: Task) -> float:
        return self.tiers.get(task.label("qos") or task.class_, 0.0)

    def quota(self, owner: str) -> float:
        return self.quotas.get(owner, self.default)

    def key(self, task: Task) -> tuple[float, float]:
        return -self.tier(task), task.arrival

    def needs(self, task: Task) -> float:
        return task.fastest_modes()[0].gpu_share

    def within(self, task: Task) -> bool:
        owner = self.owner(task)
        return self.used.get(owner, 0.0) + self.needs(task) <= self.quota(owner) + 1e-9

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        gpus = placement.mode.gpu_share
        owner = self.owner(task)
        self.used[owner] = self.used.get(owner, 0.0) + gpus
        self._of[task.index] = task, gpus

    def finished(self, task: Task) -> None:
        if (entry := self._of.pop(task.index, None)) is not None:
            self.used[self.owner(task)] -= entry[1]

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        owed = yield from self._serve(view, within=True, owed=0)
        if self.borrow:
            yield from self._serve(view, within=False, owed=owed)
        yield WAIT_FOR_CHANGE if view.num_waiting(own=True) else WAIT_FOR_READY

    def _serve(self, view: View, within: bool, owed: int) -> Generator[Decision, None, int]:
        """Start users' first jobs: those within quotas (`within`), otherwise borrowers.

        owed: bitmask of nodes for which jobs within quotas wait; borrowers that cannot be stopped later do not use
        them.  Return the bitmask of the nodes on which the jobs that did not start could run.
        """
        passed: dict[Line, None] = {}
        waited_for = 0
        while True:
            heads = [
                (self.key(task), task.index, line, task)
                for line, queue in self.of_user.items()
                if line not in passed and (task := queue.head()) is not None and self.within(task) == within
            ]
            if not heads:
                return waited_for
            _, _, line, task = min(heads)
            if (placement := self.place(task, view)) is None and within and self.reclaim and fits_nowhere(task, view):
                placement = yield from self._take_back(task, view)
            for_good = not (self.reclaim and task.shape.preemptible)  # a final loan waits for jobs within quotas
            if placement is None or (owed & claims_of(task) and for_good):
                if placement is not None:
                    yield Annotate(task, "quota")
                passed[line] = None
                waited_for |= claims_of(task)
                continue
            self.starting(task, placement, view)
            yield Start(task, placement)

    def _take_back(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        over = {user: used - self.quota(user) for user, used in self.used.items() if used > self.quota(user) + 1e-9}
        borrowed = []
        for other, gpus in reversed(self._of.values()):
            owner = self.owner(other)
            if over.get(owner, 0.0) > 1e-9:
                over[owner] -= gpus
                borrowed.append(other)
        borrowed.sort(key=self.tier)
        if (room := view.make_room(task, borrowed)) is None:
            return None
        for victim in room[1]:
            yield Stop(victim)
        return self.place(task, view)
