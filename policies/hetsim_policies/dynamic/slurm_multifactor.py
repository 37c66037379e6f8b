"""Slurm's multifactor priority with backfilling: weighted factors, reservations.

Decides when, and which job is preempted.  Jobs of partitions of a higher tier come first.  Within a tier the priority
is the sum of weights times factors between 0 and 1: age (time waited / `max_age`, at most 1), fair share, size (the
job's GPUs / the cluster's GPUs), partition, quality of service, and the task's own priority.  If `accounts` are given,
fair share is by Fair Tree (`hetsim_policies.dynamic.common.fair_tree`).  Otherwise it is that of the user, by the
classic formula 2^(-usage / shares), where usage is the user's fraction of all GPU time so far and shares is the user's
fraction of all shares.  Usage is halved every `half_life`.  All factors are computed every `calc_period`, and when a
job of a new user arrives.  The main pass runs at every change of the state; it starts jobs in the order of priority.  A
job that does not fit preempts running jobs, if its quality of service allows this and it then fits; otherwise no job
behind it may use its partition's nodes.  This pass considers `default_queue_depth` jobs; once per `sched_interval` it
considers all jobs.  The backfill pass, once per `bf_interval`, makes reservations for the first jobs and starts jobs
that delay no reservation.  Both intervals count from time 0.  A job that waits because of a limit does not block the
jobs behind it.  Reference: Yoo, Jette, Grondona, SLURM: Simple Linux Utility for Resource Management (2003); Slurm
Workload Manager: Multifactor Priority Plugin, Scheduling Configuration Guide, Preemption (SchedMD).
Weakness: the joint effect of many weights is hard to foresee; jobs beyond `bf_max_job_test` cannot backfill, and jobs
without a reservation can be passed by any number of jobs; jobs shorter than `bf_interval` are hardly backfilled;
requeued work is lost, and a busy high tier can requeue a long job forever.  Cost: a backfill pass makes reservations,
O(nodes) each, until no further job could start now.  Computing priorities takes some operations on columns (nanoseconds
per job), and sorts only the first jobs.  Usage takes O(1) per start and end or, if rates change (transfers, shared
devices, failures), a pass over the running jobs per computation.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.model.cluster import Partition
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import WAIT_FOR_READY, Annotate, Decision, Scheduler, Start, Stop, View, Wait
from hetsim.policy.backfilling import Demand, demand_fits_nowhere, demand_of, fits_nowhere
from hetsim.policy.contract import PlacementRule, PlanProblem
from hetsim.policy.queues import EVERYWHERE, claims_of, partition_of
from hetsim_policies.dynamic.common.fair_tree import Account, DecayedUsage, FairTree, Member
from hetsim_policies.dynamic.common.occupancy import Occupancy, amounts_of
from hetsim_policies.dynamic.common.ranked_queue import RankedQueue
from hetsim_policies.dynamic.common.reservations import FreeProfile, Reservation
from hetsim_policies.dynamic.common.service_tiers import Tier, Tiers

Weight = Annotated[float, Field(ge=0)]

NO_USER = "(no user)"  # user of jobs that name none; an empty name is the account itself

ROUND_COST = 2e-6  # seconds that a waiting job adds to a round (docs/speed.md)


class SlurmMultifactor(Scheduler):
    """Multifactor priority and backfilling.

    age, fair_share, size, partition, priority, service: weights of the factors (service: of the `qos` factor).
    small_first: favor small jobs instead of large ones.
    partitions: factor by partition (for tasks without a partition: by class), from 0 to 1; default of each: 0.
    shares: share of each user, in any unit; default of each: 1.
    usage: GPU-seconds received before the start, by user; with accounts: by ACCOUNT/USER.
    accounts: the tree of accounts, for Fair Tree.
    qos: qualities of service by name: priority, limits and preemption.
    max_age: wait at which the age factor is 1.  half_life: time in which usage is halved.
    calc_period: time between computations of priorities (PriorityCalcPeriod); 0: at each change.
    default_queue_depth: jobs that the main pass considers.  sched_interval: time between passes over all jobs; 0:
        always; null (-1 in Slurm): never.
    bf_interval: time between backfill passes; 0: a pass at each change.  bf_max_job_test: jobs that a backfill pass
        considers; bf_max_job_user: jobs of one user that it considers.
    bf_job_part_count_reserve: jobs of each partition that get reservations; 0: all.  bf_window: maximum time ahead at
        which a reservation may begin (a day by default in Slurm).
    bf_resolution: begins and ends of reservations are rounded to multiples of this time; 0: exact (60 s by default in
        Slurm).
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
        bf_max_job_test: Annotated[int, Field(ge=0)] = 100,
        placement: PlacementRule | None = None,
        service: Weight = 1000.0,
        accounts: dict[str, Account] | None = None,
        qos: dict[str, Tier] | None = None,
        bf_max_job_user: Annotated[int, Field(ge=1)] | None = None,
        calc_period: Annotated[Seconds, Field(ge=0)] = 300.0,
        sched_interval: Annotated[Seconds, Field(ge=0)] | None = 60.0,
        default_queue_depth: Annotated[int, Field(ge=1)] = 100,
        bf_interval: Annotated[Seconds, Field(ge=0)] = 30.0,
        bf_resolution: Annotated[Seconds, Field(ge=0)] = 0.0,
        bf_job_part_count_reserve: Annotated[int, Field(ge=0)] = 0,
        bf_window: Annotated[Seconds, Field(ge=0)] | None = None,
        usage: dict[str, Annotated[float, Field(ge=0)]] | None = None,
    ):
        self.weights = {"age": age, "fair": fair_share, "size": size, "partition": partition, "own": priority,
                        "service": service}  # fmt: skip
        self.tree = None if accounts is None else FairTree(accounts, shares or {})
        self.tiers = Tiers(qos or {})
        self.bf_max_job_test = bf_max_job_test
        self.bf_max_job_user = bf_max_job_user
        self.calc_period = calc_period
        self.sched_interval = math.inf if sched_interval is None else sched_interval
        self.default_queue_depth = default_queue_depth
        self.bf_interval = bf_interval
        self.bf_resolution = bf_resolution
        self.bf_window = math.inf if bf_window is None else bf_window
        self.bf_job_part_count_reserve = bf_job_part_count_reserve
        self.small_first = small_first
        self.partitions = partitions or {}
        self.shares = shares or {}
        self.max_age = max_age
        self.half_life = half_life
        self.rule = placement
        # GPU time received, by account and user, or by user alone
        self._usage: DecayedUsage[Member] = DecayedUsage(half_life)
        self._usage_before: dict[Member, float] = {}
        for name, received in (usage or {}).items():
            account, slash, user = name.rpartition("/") if self.tree else ("", "/", name)
            if not slash:
                raise ValueError(f'usage must have users as ACCOUNT/USER, since accounts are given; got "{name}"')
            self._usage_before[account, user or NO_USER if self.tree else user] = received
        self._shares = 0.0  # sum of the shares of all users
        self._running: dict[int, RunningUsage] = {}  # running jobs by row, in the order of their starts
        self._again: dict[int, None] = {}  # rows of jobs that may have attained service before they start
        self._constant = True  # True if all that runs receives at a constant rate
        self._codes: dict[Member, int] = {}  # owners by number, in the order in which they came
        self._queue = RankedQueue(5, self._columns_of)
        # Next times of: computing priorities, a main pass over all jobs, a backfill pass
        self._calculates_at = self._backfills_at = -math.inf
        self._looks_at_all_at = -math.inf if self.sched_interval < math.inf else math.inf
        self._demands: dict[Demand, int] = {}  # the number of waiting tasks by demand
        self._full: dict[Demand, None] = {}  # demands that fit nowhere, as far as checked since the last release
        self._releases = -1
        self._causes: dict[int, str] = {}  # by row: the cause of waiting that was stated last
        self._highest = 0.0

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST

    def begin(self, view: View) -> None:
        self._view = view
        self._occupancy = Occupancy(view)
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))
        self._limited = any(one.limited for one in view.cluster.partitions.values())
        self._one_queue = not (self.tiers.tiers or view.cluster.partitions or self.rule)
        for owner, received in self._usage_before.items():
            self._open(owner)
            self._usage.change_rate(owner, 0, received)

    def device(self, device: Device, up: bool) -> None:
        self._occupancy.device(device, up)

    def ready(self, task: Task) -> None:
        if (owner := self._owner(task)) not in self._codes:
            self._open(owner)
        self._settle(task)
        if task.ready < self._view.now:
            self._again[task.index] = None
        if (priority := task.priority) > self._highest:
            self._highest, self._calculates_at = priority, -math.inf
        self._queue.add(task)
        demand = demand_of(task)
        self._demands[demand] = self._demands.get(demand, 0) + 1

    def _open(self, owner: Member) -> None:
        self._usage.open(owner)
        self._codes[owner] = len(self._codes)
        self._shares += self.shares.get(owner[1], 1.0)
        self._calculates_at = -math.inf

    def finished(self, task: Task) -> None:
        self._settle(task, ended=True)

    def gone(self, task: Task) -> None:
        self._settle(task)
        self._leave(task)

    def _leave(self, task: Task) -> None:
        if self._queue.remove(task):
            self._causes.pop(task.index, None)
            demand = demand_of(task)
            self._demands[demand] -= 1
            if not self._demands[demand]:
                del self._demands[demand]

    def _settle(self, task: Task, ended: bool = False) -> None:
        """Account for a task that no longer runs: add its uncounted usage to its owner."""
        entry, view = self._running.pop(task.index, None), self._view
        if entry is None:
            return
        self.tiers.leave(task)
        self._occupancy.ended(task)
        if ended and self._constant and view.changes.steady:  # it has computed at full rate since it started
            self._usage.change_rate(entry.owner, -entry.rate, entry.rate / WHOLE * (view.now - self._usage.as_of))
            return
        received = view.attained(task) - self._counted(entry)
        self._usage.change_rate(entry.owner, -entry.rate if self._constant else 0, received)

    def _owner(self, task: Task) -> Member:
        return ("", task.user) if self.tree is None else (task.label("account"), task.user or NO_USER)

    def _counted(self, entry: "RunningUsage") -> float:
        if self._constant:
            return entry.received + entry.rate / WHOLE * (self._usage.as_of - entry.since)
        return entry.received

    def _count(self, view: View) -> None:
        if self._constant and not view.changes.steady:
            for entry in self._running.values():
                self._usage.change_rate(entry.owner, -entry.rate)
                entry.received = self._counted(entry)
            self._constant = False
        self._usage.advance(view.now)
        if not self._constant:
            for entry in self._running.values():
                received = view.attained(entry.task)
                self._usage.change_rate(entry.owner, 0, received - entry.received)
                entry.received = received

    def _fair_shares(self) -> np.ndarray:
        usage = self._usage
        if self.tree is not None:
            factors = self.tree.factors({member: usage[member] for member in usage})
            return np.array([factors[owner] for owner in self._codes])
        total = usage.total
        return np.array([
            2.0 ** (-(usage[owner] / total if total > 0 else 0.0) / (self.shares.get(owner[1], 1.0) / self._shares))
            for owner in self._codes
        ])  # fmt: skip

    def _columns_of(self, task: Task) -> tuple[float, ...]:
        """Return ranking inputs: tier, ready time, owner, priority, constant factors' sum."""
        partition = task.shape.modes[0].partition
        size = min(1.0, task.modes[task.modes_by_speed()[0]].gpu_share / self._gpus)
        constant = self.weights["size"] * (1.0 - size if self.small_first else size)
        if self.partitions:
            constant += self.weights["partition"] * self.partitions.get(task.partition or task.class_, 0.0)
        if self.tiers.tiers:
            constant += self.weights["service"] * self.tiers.tier(task).priority
        tier = 0.0 if partition is None else partition.tier
        return tier, task.ready, self._codes[self._owner(task)], max(0.0, task.priority), constant

    def _calculate(self, view: View) -> None:
        self._count(view)
        fair = self._fair_shares() if len(self._codes) > 1 and self.weights["fair"] > 0 else None
        self._queue.rescore(partial(self._score, view.now, fair))
        self._calculates_at = _next_multiple(view.now, self.calc_period)

    def _score(self, now: float, fair: np.ndarray | None, columns: Any) -> Any:
        """Return priorities (sums of weighted factors); age is 0 until a job is ready."""
        _, ready, owner, own, constant, *_ = columns
        age, alone = (now - ready) / self.max_age, not isinstance(ready, np.ndarray)
        age = min(1.0, max(0.0, age)) if alone else np.clip(age, 0.0, 1.0)
        score = age * self.weights["age"] + constant
        if self._highest > 0:
            score = score + own * (self.weights["own"] / self._highest)
        if fair is not None:
            score = score + self.weights["fair"] * (fair.item(int(owner)) if alone else fair[owner.astype(int)])
        return score

    def schedule(self, view: View) -> Iterator[Decision]:
        now, count, tasks = view.now, self.bf_max_job_test, self._queue.tasks
        if not tasks:
            yield WAIT_FOR_READY
            return
        if self._constant:
            self._usage.advance(now)
        if now >= self._calculates_at:
            self._calculate(view)
        if (releases := view.changes.releases) != self._releases:
            self._releases = releases
            self._full.clear()
        if len(tasks) > 1 and self._nothing_fits(view):
            return
        backfills, depth = count > 0 and now >= self._backfills_at, self.default_queue_depth
        if now >= self._looks_at_all_at:
            self._looks_at_all_at, depth = _next_multiple(now, self.sched_interval), len(tasks)
        if backfills or not self._one_queue or self._fits_somewhere(demand_of(self._queue.first(depth)), view):
            ranked = self._queue.ranked(count if backfills else depth)
            behind = yield from self._main_pass(ranked, depth, count if backfills else 0, view)
            if self._nothing_fits(view):
                if not tasks:
                    yield WAIT_FOR_READY
                return
        elif len(tasks) == 1:
            return
        until = self._looks_at_all_at if depth < len(tasks) else math.inf
        if backfills:
            self._backfills_at = _next_multiple(now, self.bf_interval)
            yield from self._backfill(behind[:count], view)
        elif count:
            until = min(until, self._backfills_at)
        if now < until < math.inf:
            yield Wait(until)

    def _main_pass(
        self, ranked: Iterator[Task], depth: int, count: int, view: View
    ) -> Generator[Decision, None, list[Task]]:
        """Start the first `depth` jobs in order; return the first `count` that must wait."""
        competing = 0 if view.cluster.partitions else EVERYWHERE  # what waiting jobs compete for
        for demand in self._demands if not competing else ():
            partition = (demand[0] if isinstance(demand, tuple) else demand).modes[0].partition
            competing |= EVERYWHERE if partition is None else partition.claims
        behind: list[Task] = []
        of_user: dict[str, int] = {}
        closed = 0  # what jobs wait for that those behind them must not take
        for place, task in enumerate(ranked):
            if place == depth:
                closed = EVERYWHERE
            claims = claims_of(task)
            if not claims & closed:
                if self.tiers.refuses(task):
                    yield from self._because(task, "quota")
                    continue
                if (placement := view.fit(task, self.rule)) is None and self.tiers.tiers and fits_nowhere(task, view):
                    placement = yield from self._preempt(task, view)
                if placement is not None:
                    yield self._begin(task, placement)
                    continue
                if view.over_limit(task):
                    yield from self._because(task, "quota")
                    continue
                closed |= claims
            user = "" if self.bf_max_job_user is None else task.user
            of_user[user] = of_user.get(user, 0) + 1
            if of_user[user] <= (self.bf_max_job_user or math.inf):
                behind.append(task)
            if not competing & ~closed and (len(behind) >= count or self.bf_max_job_user is None):
                break
        return behind + list(islice(ranked, max(0, count - len(behind))))

    def _nothing_fits(self, view: View) -> bool:
        """Return True if no waiting task can start, so that the round may end.

        Always False with limits or QOS (wait causes are reported) or a placement rule (it may draw random numbers).
        """
        if self.tiers.tiers or self._limited or self.rule is not None:
            return False
        for demand in self._demands:  # noqa: SIM110 (asked in each round)
            if demand not in self._full and self._fits_somewhere(demand, view):
                return False
        return True

    def _fits_somewhere(self, demand: Demand, view: View) -> bool:
        if demand in self._full:
            return False
        alone = demand.__class__ is not tuple and len(demand.modes) == 1
        fits = view.fits(demand.modes[0]) if alone else not demand_fits_nowhere(demand, view)
        if not fits:
            self._full[demand] = None
        return fits

    def _because(self, task: Task, cause: Literal["quota", "reservation"]) -> Iterator[Decision]:
        if self._causes.get(task.index) != cause:
            self._causes[task.index] = cause
            yield Annotate(task, cause)

    def _preempt(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Preempt jobs of lower quality of service, latest first, if that makes room."""
        lower = self.tiers.tier(task).preempts
        if not lower or view.over_limit(task):
            return None
        victims = [
            entry.task for entry in reversed(self._running.values())
            if self.tiers.name(entry.task) in lower and view.now - entry.since >= self.tiers.tier(entry.task).exempt
        ]  # fmt: skip
        victims.sort(key=lambda other: self.tiers.tier(other).priority)
        room = view.make_room(task, victims) if victims else None
        if room is None:
            return None
        for victim in room[1]:
            yield Stop(victim, keep=self.tiers.tier(victim).preempt_mode == "suspend")
            self._full.clear()
        placement = view.fit(task, self.rule)
        # Where the rule waits for other devices, the victims could resume at once and be stopped again, without end.
        return room[0] if placement is None and view.fits(room[0].mode, room[0], (task,)) else placement

    def _backfill(self, order: list[Task], view: View) -> Iterator[Decision]:
        causes, limits, now = self._causes, bool(self.tiers.tiers), view.now
        max_kept, one_queue = self.bf_job_part_count_reserve, not (limits or view.cluster.partitions)
        fits = {demand for demand in self._demands if self._fits_somewhere(demand, view)}
        demands = [task.shape if task.allowed is None else demand_of(task) for task in order]
        fitting = [place for place, demand in enumerate(demands) if demand in fits]
        if not fitting:
            return
        last = fitting[-1]
        silent = [place for place in reversed(fitting) if causes.get(order[place].index) != "reservation"]
        self._occupancy.update()
        profile, checked = FreeProfile(self._occupancy, view), -1  # the version that `last` is of
        position, ahead, exact = 0, Counter[Partition | None](), not self.bf_resolution
        while position <= last or (limits and position < len(order)):  # behind the last no reservation can matter
            task = order[position]
            while silent and silent[-1] < position:
                yield from self._state_reserved(order[silent.pop()], view)
            if limits and self.tiers.refuses(task):
                yield from self._because(task, "quota")
                if silent and silent[-1] == position:
                    silent.pop()
            elif position <= last:
                keeps = not max_kept or ahead[partition_of(task)] < max_kept
                if profile.version != checked:
                    last = self._last_fitting(fitting, order, view.now, first=position, profile=profile)
                    checked = profile.version
                placement = None
                asked = keeps or (self._fits_somewhere(demand_of(task), view) and profile.could_start(task))
                reservation = profile.find(task, view) if asked and position <= last else None
                if reservation is not None and reservation.time <= now + self.bf_window:
                    if reservation.time <= now:
                        placement = reservation.placement(task, view)
                    if keeps or reservation.time <= now:
                        plain = exact and (placement is None or len(reservation.nodes) == 1)
                        profile.occupy(reservation if plain else self._kept(reservation, task, placement))
                if placement is not None:
                    yield self._begin(task, placement)
                elif keeps and max_kept:
                    ahead[partition_of(task)] += 1
                if one_queue and not keeps:  # no job behind gets a reservation: on to the next that may start
                    following = bisect_right(fitting, position)
                    position = fitting[following] - 1 if following < len(fitting) else last
            position += 1
        for position in reversed(silent):
            yield from self._state_reserved(order[position], view)

    def _kept(self, reservation: Reservation, task: Task, placement: Placement | None) -> Reservation:
        """Return the reservation to store: exact if the job starts now, otherwise rounded."""
        unit = self.bf_resolution
        if placement is not None:
            nodes = tuple(amounts_of(placement).items())
            if unit or nodes != reservation.nodes:
                end = reservation.time + self._view.duration(task, placement)
                return Reservation(reservation.time, end, placement.mode, nodes)
        elif unit:
            return reservation._replace(time=reservation.time // unit * unit, end=(reservation.end // unit + 1) * unit)
        return reservation

    def _state_reserved(self, task: Task, view: View) -> Iterable[Decision]:
        """Report that a task waits because of a reservation, if it would fit without."""
        if task.state == WAITING and self._fits_somewhere(demand_of(task), view) and view.fit(task) is not None:
            return self._because(task, "reservation")
        return ()

    def _last_fitting(
        self, fitting: list[int], order: list[Task], now: float, *, first: int, profile: FreeProfile
    ) -> int:
        """Return the last position (`first` or later) of a task that could start, or -1.

        fitting: candidate positions, ascending; those after the result are deleted.  profile: reservations to respect.
        """
        ends = dict[Demand, float]()
        while fitting and fitting[-1] >= first:
            task = order[fitting[-1]]
            if task.state == WAITING:
                demand = task.shape if task.allowed is None else demand_of(task)
                if (until := ends.get(demand)) is None:
                    none = demand in self._full
                    until = ends[demand] = -math.inf if none else max(map(profile.open_until, task.shape.modes))
                alone = len(task.shape.modes) == 1
                if now + task.shortest_remaining <= until and (alone or profile.could_start(task)):
                    return fitting[-1]
            fitting.pop()
        return -1

    def _begin(self, task: Task, placement: Placement) -> Start:
        mode, owner = placement.mode, self._owner(task)
        rate = mode.gpus * mode.share if mode.gpus else mode.millicores * 1000
        received = self._view.attained(task) if task.index in self._again else 0.0
        self._leave(task)
        self._occupancy.started(task)
        self._running[task.index] = RunningUsage(task, owner, rate, since=self._view.now, received=received)
        if self._constant:
            self._usage.change_rate(owner, rate)
        self.tiers.starting(task, placement)
        return Start(task, placement)


@dataclass(eq=False, slots=True)
class RunningUsage:
    """A running task: owner, devices (millionths), last start, earlier device-seconds."""

    task: Task
    owner: Member
    rate: int
    since: float
    received: float


def _next_multiple(now: float, period: float) -> float:
    count = now // period + 1 if period else 0
    return (count + (count * period <= now)) * period or now  # 43 * 0.2 is 8.6, and 8.6 // 0.2 is 42
