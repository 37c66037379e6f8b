"""Slurm's multifactor priority with backfilling: weighted factors, reservations.

Decides when, and which job is preempted.  Jobs of partitions of a higher tier come first.  Within a tier the priority
is the sum of weights times factors between 0 and 1: age (time waited over `max_age`, at most 1), fair share, size (GPUs
over those of the cluster), partition, quality of service, and the task's own priority.
Fair share is that of `accounts` by Fair Tree (`hetsim_policies.dynamic.common.fair_tree`) where they are given; else of
users alone, the classic formula 2^(-usage / shares) on the part of all GPU time that the user has received.  Usage is
halved every `half_life`.  In that order jobs start.  One that does not fit may preempt jobs of lower qualities of
service; else it closes its partition's nodes to those behind it.  The first
`depth` of these (at most `depth_per_user` of one user) are given reservations and start if theirs is now, as in Slurm's
backfill scheduler (`bf_max_job_test`, `bf_max_job_user`).  A job that a limit keeps waiting does not block the jobs
behind it. Reference: Yoo, Jette, Grondona, SLURM: Simple Linux Utility for Resource Management (2003); Slurm Workload
Manager: Multifactor Priority Plugin, Scheduling Configuration Guide, Preemption (SchedMD).
Weakness: many weights with a joint effect that is hard to foresee; jobs beyond `depth` cannot backfill; requeued work
is lost, and a busy high tier can requeue a long job for ever.
Cost: the queue is kept sorted while only ages change (one user, or no weight of fair share; none older than `max_age`).
Else a round in which a waiting job fits somewhere computes all priorities as columns (nanoseconds a job) and sorts the
first `depth`.  It makes the reservations behind the first one that moved in the order, as far as a job behind them
could start now (`hetsim_policies.dynamic.common.standing`).  Usage takes O(1) a start and an end; where rates change
(transfers, shared devices, failures), a look at every running job a round.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hetsim.model.cluster import Device
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.tasks import Mode
from hetsim.model.units import Seconds
from hetsim.policy import (
    EVERYWHERE,
    Annotate,
    Decision,
    Demand,
    PlacementRule,
    PlanProblem,
    Scheduler,
    Start,
    Stop,
    View,
    claims_of,
    demand_fits_nowhere,
    demand_of,
    fits_nowhere,
)
from hetsim_policies.dynamic.common.fair_tree import Account, DecayedUsage, FairTree, Member
from hetsim_policies.dynamic.common.occupancy import Occupancy
from hetsim_policies.dynamic.common.standing import Standing

Weight = Annotated[float, Field(ge=0)]

ROUND_COST = 2e-6
"""Seconds that a waiting job adds to a round (docs/speed.md)."""
WIDTH = 7


class SlurmMultifactor(Scheduler):
    """Multifactor priority and backfilling.

    age, fair_share, size, partition, priority, service: weights of the factors; service is that of `qos`.
    small_first: favor small jobs instead of large ones.
    partitions: factor by partition (of tasks bound to none: by class), from 0 to 1; others have 0.
    shares: of users, in any unit; others have 1.
    accounts: the tree of accounts, for Fair Tree.
    qos: qualities of service by name: priority, limits and preemption.
    max_age: wait from which on age counts in full.  half_life: of usage.
    depth: jobs that the backfiller looks at; depth_per_user: of one user.
    """

    def __init__(
        self,
        age: Weight = 1000.0,
        fair_share: Weight = 2000.0,
        size: Weight = 100.0,
        partition: Weight = 1000.0,
        priority: Weight = 1000.0,
        small_first: bool = False,
        partitions: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None,
        shares: dict[str, Annotated[float, Field(gt=0)]] | None = None,
        max_age: Annotated[Seconds, Field(gt=0)] = 7 * 86400.0,
        half_life: Annotated[Seconds, Field(gt=0)] = 7 * 86400.0,
        depth: Annotated[int, Field(ge=0)] = 100,
        placement: PlacementRule | None = None,
        service: Weight = 1000.0,
        accounts: dict[str, Account] | None = None,
        qos: dict[str, Tier] | None = None,
        depth_per_user: Annotated[int, Field(ge=1)] | None = None,
    ):
        self.weights = {"age": age, "fair": fair_share, "size": size, "partition": partition, "own": priority,
                        "service": service}  # fmt: skip
        self.tree = None if accounts is None else FairTree(accounts, shares or {})
        self.tiers = Tiers(qos or {})
        self.depth_per_user = depth_per_user
        self.small_first = small_first
        self.partitions = partitions or {}
        self.shares = shares or {}
        self.max_age = max_age
        self.half_life = half_life
        self.depth = depth
        self.rule = placement
        self._gpus = 1.0
        self._usage: DecayedUsage[Member] = DecayedUsage(half_life)
        """GPU time received, by account and user, or by user alone."""
        self._shares = 0.0
        """Sum of the shares of all users."""
        self._owed: dict[Member, float] = {}
        """Factors of fair share, as far as they were asked for in this round."""
        self._running: dict[int, RunningUsage] = {}
        """Running jobs by row, in the order of their starts."""
        self._constant = True
        """True if all that runs receives at a constant rate."""
        self._codes: dict[Member, int] = {}
        """Owners by number, in the order in which they came."""
        self._queue = FactorTable()
        """The waiting tasks; and as long as their order cannot change, sorted."""
        self._sorted: SortedQueue | None = SortedQueue()
        self._demands: dict[Demand, int] = {}
        """The number of waiting tasks by demand; and whether each fits somewhere, as far as it was asked in this round
        and since the last start."""
        self._fits: dict[Demand, bool] = {}
        self._causes: dict[int, str] = {}
        """By row: the cause of waiting that was stated last."""
        self._highest = 0.0

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST

    def begin(self, view: View) -> None:
        self._view = view
        self._occupancy = Occupancy(view)
        self._reserved = Standing(self._occupancy, view)
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))
        self._limited = any(one.limited for one in view.cluster.partitions.values())

    def device(self, device: Device, up: bool) -> None:
        self._occupancy.device(device, up)

    def ready(self, task: Task) -> None:
        owner = self._owner(task)
        if owner not in self._usage:
            self._usage.open(owner)
            self._codes[owner] = len(self._codes)
            self._shares += self.shares.get(task.user, 1.0)
        self._settle(task)
        if task.priority > self._highest:
            self._highest = task.priority
            if self._sorted is not None:
                self._sorted = SortedQueue({waiting.index: self._key(waiting) for waiting in self._queue.tasks})
        self._queue.add(task)
        if self._sorted is not None:
            self._sorted.add(task, self._key(task))
        demand = demand_of(task)
        self._demands[demand] = self._demands.get(demand, 0) + 1

    def finished(self, task: Task) -> None:
        self._settle(task)

    def gone(self, task: Task) -> None:
        self._settle(task)
        self._leave(task)

    def _leave(self, task: Task) -> None:
        """It waits no longer, if it did."""
        if self._fits:  # what has started makes no room
            self._fits = {demand: False for demand, fits in self._fits.items() if not fits}
        if self._queue.remove(task):
            if self._sorted is not None:
                self._sorted.remove(task)
            self._causes.pop(task.index, None)
            demand = demand_of(task)
            self._demands[demand] -= 1
            if not self._demands[demand]:
                del self._demands[demand]

    def _settle(self, task: Task) -> None:
        """If it was running, it no longer does: count what is not counted yet."""
        entry = self._running.pop(task.index, None)
        if entry is None:
            return
        self.tiers.leave(task)
        self._occupancy.ended(task)
        owner = self._owner(task)
        if self._constant:
            self._usage.change_rate(owner, -_millionths(entry.mode))
        self._usage.credit(owner, self._view.attained(task) - self._counted(entry))

    def _owner(self, task: Task) -> Member:
        """The owner that its usage is charged to: without accounts, its user."""
        return ("", task.user) if self.tree is None else (task.label("account"), task.user or "nobody")

    def _counted(self, entry: RunningUsage) -> float:
        """Service of a running task that is already in the usage."""
        if self._constant:
            return entry.received + entry.mode.width * (self._usage.as_of - entry.since)
        return entry.received

    def _count(self, view: View) -> None:
        """Bring the usage up to now, task by task where rates change."""
        if self._constant and not view.changes.steady:
            for entry in self._running.values():
                self._usage.change_rate(self._owner(entry.task), -_millionths(entry.mode))
                entry.received = self._counted(entry)
            self._constant = False
        self._usage.advance(view.now)
        if not self._constant:
            for entry in self._running.values():
                received = view.attained(entry.task)
                self._usage.credit(self._owner(entry.task), received - entry.received)
                entry.received = received
        self._owed = {}

    def _fair_share(self, owner: Member) -> float:
        owed = self._owed.get(owner)
        if owed is not None:
            return owed
        usage = self._usage
        if self.tree is not None:
            self._owed = self.tree.factors({member: usage[member] for member in usage})
            return self._owed[owner]
        part, total = self.shares.get(owner[1], 1.0) / self._shares, usage.total
        owed = self._owed[owner] = float(2.0 ** (-(usage[owner] / total if total > 0 else 0.0) / part))
        return owed

    def _constant_terms(self, task: Task) -> tuple[float, float, float]:
        """The weighted factors of size, partition and quality of service."""
        size = min(1.0, task.modes[task.modes_by_speed()[0]].gpu_share / self._gpus)
        return (
            self.weights["size"] * (1.0 - size if self.small_first else size),
            self.weights["partition"] * self.partitions.get(task.partition or task.class_, 0.0),
            self.weights["service"] * self.tiers.tier(task).priority,
        )

    def _tier(self, task: Task) -> float:
        partition = task.shape.modes[0].partition
        return 0.0 if partition is None else partition.tier

    def _columns_of(self, task: Task) -> tuple[float, ...]:
        """Ready time, owner, tier, own priority, and the sum of the constant factors."""
        constant = sum(self._constant_terms(task))
        return task.ready, self._codes[self._owner(task)], self._tier(task), max(0.0, task.priority), constant

    def _key(self, task: Task) -> Key:
        """The key of a task while only ages change, and these at one rate."""
        waited = self.weights["age"] * task.ready / self.max_age - sum(self._constant_terms(task))
        if self._highest > 0:
            waited -= self.weights["own"] * max(0.0, task.priority) / self._highest
        return -self._tier(task), waited, task.arrival, task.index, task

    def _ranked(self, view: View) -> Iterator[Task]:
        """The waiting jobs by tier, then by priority, the sum of weighted factors."""
        queue, weights = self._queue, self.weights
        if len(queue.tasks) == 1:
            return iter(queue.tasks)
        if self._sorted is not None:
            of_several = len(self._codes) > 1 and weights["fair"] > 0
            if not of_several and view.now - self._sorted.oldest <= self.max_age:
                return self._sorted.tasks()
            self._sorted = None  # from now on the order may change at any time
        ready, owner, tier, own, constant, *_ = queue.columns(self._columns_of)
        score = np.minimum(1.0, (view.now - ready) / self.max_age)
        score *= weights["age"]
        score += constant
        if self._highest > 0:
            score += own * (weights["own"] / self._highest)
        if len(self._codes) > 1:
            codes = owner.astype(int)
            fair, queued = np.zeros(len(self._codes)), set(codes.tolist())
            for name, code in self._codes.items():
                if code in queued:
                    fair[code] = self._fair_share(name)
            score += weights["fair"] * fair[codes]
        return queue.ranked(score, tier, self.depth + 10)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self._queue.tasks:
            return
        self._count(view)
        self._fits.clear()
        if len(self._queue.tasks) > 1 and self._nothing_fits(view):
            return
        competing = 0 if view.cluster.partitions else EVERYWHERE  # what waiting jobs compete for
        for demand in self._demands if not competing else ():
            partition = (demand[0] if isinstance(demand, tuple) else demand).modes[0].partition
            competing |= EVERYWHERE if partition is None else partition.claims
        behind: list[Task] = []
        of_user: dict[str, int] = {}
        closed = 0  # what jobs wait for that those behind them must not take
        ranked = self._ranked(view)
        for task in ranked:
            claims = claims_of(task)
            if not claims & closed:
                if self.tiers.refuses(task):
                    yield from self._because(task, "quota")
                    continue
                placement = view.fit(task, self.rule)
                if placement is None and fits_nowhere(task, view):
                    placement = yield from self._preempt(task, view)
                if placement is not None:
                    yield self._begin(task, placement)
                    continue
                if view.over_limit(task):
                    yield from self._because(task, "quota")
                    continue
                closed |= claims
            if self.depth_per_user is None or self._is_of_few(task, of_user):
                behind.append(task)
            if not competing & ~closed and (len(behind) > self.depth or self.depth_per_user is None):
                break
        if not behind or not self.depth or self._nothing_fits(view):
            return
        if self.depth_per_user is None:
            behind += islice(ranked, max(0, self.depth + 1 - len(behind)))
        yield from self._backfill(behind[: self.depth + 1], view)

    def _is_of_few(self, task: Task, of_user: dict[str, int]) -> bool:
        number = of_user[task.user] = of_user.get(task.user, 0) + 1
        return self.depth_per_user is None or number <= self.depth_per_user

    def _nothing_fits(self, view: View) -> bool:
        """Return True if nothing can start and there is nothing to note of it.

        A rule is asked always, since it may draw lots.
        """
        if self.tiers.tiers or self._limited or self.rule is not None:
            return False
        for demand in self._demands:  # noqa: SIM110 (asked twice a round)
            if self._fits_somewhere(demand, view):
                return False
        return True

    def _fits_somewhere(self, demand: Demand, view: View) -> bool:
        fits = self._fits.get(demand)
        if fits is None:
            alone = not isinstance(demand, tuple) and len(demand.modes) == 1
            fits = view.fits(demand.modes[0]) if alone else not demand_fits_nowhere(demand, view)
            self._fits[demand] = fits
        return fits

    def _because(self, task: Task, cause: Literal["quota", "reservation"]) -> Iterator[Decision]:
        """State why a task waits, unless this is known."""
        if self._causes.get(task.index) != cause:
            self._causes[task.index] = cause
            yield Annotate(task, cause)

    def _preempt(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Preempt jobs of lower qualities of service, the latest start first, if enough."""
        lower = self.tiers.tier(task).preempts
        if not lower or view.over_limit(task):
            return None
        victims = []
        for entry in reversed(self._running.values()):
            other = entry.task
            if self.tiers.name(other) in lower and view.now - entry.since >= self.tiers.tier(other).exempt:
                victims.append(other)
        victims.sort(key=lambda other: self.tiers.tier(other).priority)
        room = view.make_room(task, victims) if victims else None
        if room is None:
            return None
        for victim in room[1]:
            yield Stop(victim, keep=self.tiers.tier(victim).preempt_mode == "suspend")
            self._fits.clear()
        return view.fit(task, self.rule)

    def _backfill(self, order: list[Task], view: View) -> Iterator[Decision]:
        fits, causes, reserved, limits = self._fits, self._causes, self._reserved, bool(self.tiers.tiers)
        fitting = [position for position, task in enumerate(order) if fits.get(demand_of(task), True)]
        last = self._last_fitting(fitting, order, view)
        if last < 0:
            return
        silent = [position for position in reversed(fitting) if causes.get(order[position].index) != "reservation"]
        reserved.walk()
        position = 0 if limits else reserved.standing(order, last)
        while position <= last or (limits and position < len(order)):  # behind the last no reservation can matter
            task = order[position]
            while silent and silent[-1] < position:
                yield from self._state_reserved(order[silent.pop()], view)
            if limits and self.tiers.refuses(task):
                yield from self._because(task, "quota")
                if silent and silent[-1] == position:
                    silent.pop()
            elif position <= last:
                if not reserved.stands(task):
                    last = self._last_fitting(fitting, order, view, first=position, reserved=reserved)
                reservation = reserved.reserve(task) if position <= last else None
                due = reservation is not None and reservation.time <= view.now
                placement = reservation.placement(task, view) if reservation is not None and due else None
                if placement is not None:
                    yield self._begin(task, placement)
                    last = self._last_fitting(fitting, order, view)
                    position += 0 if limits else reserved.standing(order[position + 1 :], last - position - 1)
            position += 1
        for position in reversed(silent):
            yield from self._state_reserved(order[position], view)

    def _state_reserved(self, task: Task, view: View) -> Iterable[Decision]:
        """State that a task waits because of a reservation, if it would fit."""
        fits = self._fits.get(demand_of(task), True) and task.state == WAITING
        if fits and self._fits_somewhere(demand_of(task), view) and view.fit(task) is not None:
            return self._because(task, "reservation")
        return ()

    def _last_fitting(
        self, fitting: list[int], order: list[Task], view: View, first: int = 0, reserved: Standing | None = None
    ) -> int:
        """The last position from `first` on of a waiting task that fits, or -1.

        fitting: the positions in question; those behind that position are taken out.
        reserved: whose reservations leave room for it now; only where none of them `stands`.
        """
        fits, now = self._fits, view.now
        ends: dict[Demand, float] = {}
        while fitting and fitting[-1] >= first:
            task = order[fitting[-1]]
            demand = demand_of(task)
            there = fits.get(demand)
            if (self._fits_somewhere(demand, view) if there is None else there) and task.state == WAITING:
                if reserved is None:
                    return fitting[-1]
                if demand not in ends:
                    ends[demand] = max(map(reserved.profile.open_until, task.modes))
                if now + task.shortest_remaining <= ends[demand] and reserved.profile.could_start(task):
                    return fitting[-1]
            fitting.pop()
        return -1

    def _begin(self, task: Task, placement: Placement) -> Start:
        mode = placement.mode
        self._leave(task)
        self._reserved.began(task, placement)
        self._occupancy.started(task)
        self._running[task.index] = RunningUsage(task, mode, self._view.now, self._view.attained(task))
        if self._constant:
            self._usage.change_rate(self._owner(task), _millionths(mode))
        self.tiers.starting(task, placement)
        return Start(task, placement)


@dataclass(eq=False, slots=True)
class RunningUsage:
    """A running task: its mode, its last start, and its attained service then."""

    task: Task
    mode: Mode
    since: float
    received: float


def _millionths(mode: Mode) -> int:
    """Service per second of a launch in a mode."""
    return mode.gpus * mode.share if mode.gpus else mode.millicores * 1000


# Waiting tasks with the factors of their priorities as columns, so that a round need not look at each of them.
#
# Cost: O(1) a task that comes or goes; a ranking is some operations on columns (nanoseconds a task) and sorts only the
# tasks that are asked for.


Key = tuple[float, float, float, int, Task]


class SortedQueue:
    """The waiting tasks in an order that stays.

    Cost: O(log n), and to move the pointers behind the place.
    """

    def __init__(self, keys: dict[int, Key] | None = None):
        self._keys = keys or {}
        """By row."""
        self._order = sorted(self._keys.values())
        self.oldest = min((key[-1].ready for key in self._order), default=math.inf)
        """When the first of them became ready, or one that was there before it was empty last."""

    def add(self, task: Task, key: Key) -> None:
        self.oldest = min(self.oldest, task.ready) if self._keys else task.ready
        self._keys[task.index] = key
        insort(self._order, key)

    def remove(self, task: Task) -> None:
        del self._order[bisect_left(self._order, self._keys.pop(task.index))]

    def tasks(self) -> Iterator[Task]:
        """As they are now, whatever starts meanwhile."""
        return map(itemgetter(-1), self._order.copy())


class FactorTable:
    """The waiting tasks, in no order."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._position: dict[int, int] = {}
        """By row."""
        self._columns = np.zeros((WIDTH, 64))
        self._filled = 0
        """The number of tasks, from the first, whose columns are filled in."""

    def add(self, task: Task) -> None:
        self._position[task.index] = len(self.tasks)
        self.tasks.append(task)

    def remove(self, task: Task) -> bool:
        """Take a task out; returns False if it is not there."""
        position = self._position.pop(task.index, None)
        if position is None:
            return False
        last, count = self.tasks.pop(), len(self.tasks)
        if last is not task:  # the last one takes its position
            self.tasks[position] = last
            self._position[last.index] = position
            if count < self._filled:
                self._columns[:, position] = self._columns[:, count]
            else:
                self._filled = min(self._filled, position)
        self._filled = min(self._filled, count)
        return True

    def columns(self, columns_of: Callable[[Task], Sequence[float]]) -> np.ndarray:
        """The rows of `columns_of` of all tasks, which are constant, with arrival and row."""
        count = len(self.tasks)
        while self._columns.shape[1] < count:
            self._columns = np.hstack((self._columns, self._columns))
        for position in range(self._filled, count):
            task = self.tasks[position]
            self._columns[:, position] = *columns_of(task), task.arrival, task.index
        self._filled = count
        return self._columns[:, :count]

    def ranked(self, score: np.ndarray, tier: np.ndarray, first: int) -> Iterator[Task]:
        """All tasks by falling tier, then by falling score, ties by arrival.

        first: the number of tasks that are likely to be asked for.
        """
        tasks, rest = self.tasks.copy(), np.arange(len(score))
        arrival, row = self._columns[-2:, : len(score)]
        while len(rest):
            chosen, rest = rest, rest[:0]
            if len(chosen) > 2 * first and not tier.any():
                value = score[chosen]
                late = value < np.partition(value, len(value) - first)[len(value) - first]
                chosen, rest = chosen[~late], chosen[late]
            order = np.lexsort((row[chosen], arrival[chosen], -score[chosen], -tier[chosen]))
            yield from [tasks[place] for place in chosen[order].tolist()]
            first *= 4


# Quality of service (QOS): tiers with priority, limits and preemption (MaxJobsPerUser, MaxTRESPerUser, GrpJobs,
# GrpTRES, Preempt, PreemptMode, PreemptExemptTime).  The tier of a task is its label `qos`, or where it has none its
# class.  A job that a limit of its tier holds back waits, and does not block the jobs behind it.


Gpus = Annotated[float, Field(gt=0)]
Jobs = Annotated[int, Field(ge=1)]


class Tier(BaseModel):
    """One tier.

    priority: its factor, from 0 to 1.  max_jobs, max_gpus: running jobs and their GPUs in all; `_per_user`: of each
    user.  preempts: tiers with running jobs that it may preempt.  preempt_mode: what becomes of a preempted job of this
    tier: requeue, it begins again; suspend, it keeps its work.  exempt: how long a job of this tier may run before it
    can be preempted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    priority: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_jobs: Jobs | None = None
    max_gpus: Gpus | None = None
    max_jobs_per_user: Jobs | None = None
    max_gpus_per_user: Gpus | None = None
    preempts: tuple[str, ...] = ()
    preempt_mode: Literal["requeue", "suspend"] = "requeue"
    exempt: Seconds = 0.0


NO_TIER = Tier()


class Tiers:
    """The tiers of a run, and the running jobs of each."""

    def __init__(self, tiers: dict[str, Tier]):
        for name, tier in tiers.items():
            unknown = [other for other in tier.preempts if other not in tiers]
            if unknown:
                raise ValueError(f'qos {name} preempts "{unknown[0]}", which is none of {", ".join(tiers)}')
        self.tiers = tiers
        self._jobs: dict[tuple[str, str | None], int] = {}
        """Running jobs by tier and user; by tier and None in all."""
        self._gpus: dict[tuple[str, str | None], float] = {}
        self._of: dict[int, tuple[str, str, float]] = {}

    def name(self, task: Task) -> str:
        return task.label("qos") or task.class_

    def tier(self, task: Task) -> Tier:
        return self.tiers.get(self.name(task), NO_TIER) if self.tiers else NO_TIER

    def refuses(self, task: Task) -> bool:
        """Return True if a limit of its tier keeps the task from its fastest mode."""
        tier = self.tier(task)
        if tier is NO_TIER:
            return False
        name, gpus = self.name(task), task.modes[task.modes_by_speed()[0]].gpu_share
        limits: tuple[tuple[str | None, int | None, float | None], ...] = (
            (None, tier.max_jobs, tier.max_gpus), (task.user, tier.max_jobs_per_user, tier.max_gpus_per_user),
        )  # fmt: skip
        for user, jobs, limit in limits:
            if jobs is not None and self._jobs.get((name, user), 0) >= jobs:
                return True
            if limit is not None and self._gpus.get((name, user), 0.0) + gpus > limit + 1e-9:
                return True
        return False

    def starting(self, task: Task, placement: Placement) -> None:
        if not self.tiers:
            return
        name, gpus = self.name(task), placement.mode.gpu_share
        self._of[task.index] = name, task.user, gpus
        self._add(name, task.user, 1, gpus)

    def leave(self, task: Task) -> None:
        """A task has ended, or was stopped."""
        entry = self._of.pop(task.index, None)
        if entry is not None:
            self._add(entry[0], entry[1], -1, -entry[2])

    def _add(self, name: str, user: str, jobs: int, gpus: float) -> None:
        for key in ((name, user), (name, None)):
            self._jobs[key] = self._jobs.get(key, 0) + jobs
            self._gpus[key] = self._gpus.get(key, 0.0) + gpus
