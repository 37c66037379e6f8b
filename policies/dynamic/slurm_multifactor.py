"""Slurm's multifactor priority with backfilling: many weighted reasons, and reservations for the first few.

Decides when, and who gives way.  Jobs of partitions of a higher tier come first.  Within a tier the priority is the
sum of weights times factors between 0 and 1: age (time waited over `max_age`, at most 1), fair share, size (GPUs over
those of the cluster), partition, quality of service, and the task's own priority.
Fair share is that of `accounts` by Fair Tree (`policies.dynamic.fair_tree`) where they are given; else of users alone,
the classic formula 2^(-usage / shares) on the part of all GPU time that the user has received.  Usage is halved every
`half_life`.  In that order jobs start.  One that does not fit may preempt jobs of lower qualities of service
(`policies.dynamic.qos`); else it closes its partition's nodes to those behind it.  The first `depth` of these (at most
`depth_per_user` of one user) are given reservations and start if theirs is now, as in Slurm's backfill scheduler
(`bf_max_job_test`, `bf_max_job_user`).  Whom a limit keeps blocks nobody.
Reference: Yoo, Jette, Grondona, SLURM: Simple Linux Utility for Resource Management (2003); Slurm Workload Manager:
Multifactor Priority Plugin, Scheduling Configuration Guide, Preemption (SchedMD).
Weakness: many weights, and nobody knows what they do together; jobs beyond `depth` cannot backfill; requeued work is
lost, and a busy high tier can requeue a long job for ever.
Cost: a sort of those who wait and `depth` reservations a round in which anything came free, or somebody came.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Annotated

from pydantic import Field

from policies.dynamic.backfilling import fits_nowhere
from policies.dynamic.fair_tree import Account, FairTree, Member
from policies.dynamic.qos import Tier, Tiers
from policies.dynamic.reservations import Profile
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import WAITING, Task
from sim.model.units import Seconds
from sim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Hold, PlacementRule, Scheduler, Start, Stop, View

Weight = Annotated[float, Field(ge=0)]


class SlurmMultifactor(Scheduler):
    """Multifactor priority and backfilling.

    age, fair_share, size, partition, priority, service: weights of the factors; service is that of `qos`.
    small_first: favour small jobs instead of large ones.
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
        self._members: dict[Member, float] = {}
        """With accounts: GPU time received, decayed up to `_as_of`, by account and user."""
        self._factors: dict[Member, float] = {}
        """Fair shares of the accounts' users, as of this round."""
        self.small_first = small_first
        self.partitions = partitions or {}
        self.shares = shares or {}
        self.max_age = max_age
        self.half_life = half_life
        self.depth = depth
        self.rule = placement
        self._gpus = 1.0
        self._users: dict[str, float] = {}
        """By user: GPU time received, decayed up to `_as_of`."""
        self._as_of = 0.0
        self._running: dict[int, tuple[Task, float]] = {}
        """By row: a running task, and what it has received that is in `_users` already."""
        self._since: dict[int, float] = {}
        """By row: when it was started last."""
        self._down: dict[Device, None] = {}
        self._view: View | None = None
        self._highest = 0.0

    def begin(self, view: View) -> None:
        self._view = view
        self._everywhere = (1 << len(view.cluster.nodes)) - 1
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))

    def device(self, device: Device, up: bool) -> None:
        if up:
            self._down.pop(device, None)
        else:
            self._down[device] = None

    def ready(self, task: Task) -> None:
        self._users.setdefault(task.user, 0.0)
        if self.tree is not None:
            self._members.setdefault(_member(task), 0.0)
        self._highest = max(self._highest, task.priority)
        self._settle(task)

    def finished(self, task: Task) -> None:
        self._settle(task)

    def gone(self, task: Task) -> None:
        self._settle(task)

    def _settle(self, task: Task) -> None:
        """A task has stopped running: count what is not counted yet."""
        self.tiers.left(task)
        self._since.pop(task.index, None)
        entry = self._running.pop(task.index, None)
        if entry is not None:
            assert self._view is not None
            self._credit(task, self._view.attained(task) - entry[1])

    def _credit(self, task: Task, received: float) -> None:
        self._users[task.user] += received
        if self.tree is not None:
            self._members[_member(task)] += received

    def _usage(self, view: View) -> None:
        """Let what was received decay, and add what has been received since."""
        faded = 0.5 ** ((view.now - self._as_of) / self.half_life)
        self._as_of = view.now
        for usage in (self._users, self._members):
            for who in usage:
                usage[who] *= faded  # type: ignore[index]
        for row, (task, counted) in self._running.items():
            received = view.attained(task)
            self._credit(task, received - counted)
            self._running[row] = task, received
        if self.tree is not None:
            self._factors = self.tree.factors(self._members)

    def _fair_share(self, task: Task) -> float:
        if self.tree is not None:
            return self._factors[_member(task)]
        everything = sum(self._users.values())
        shares = sum(self.shares.get(user, 1.0) for user in self._users)
        part = self.shares.get(task.user, 1.0) / shares
        usage = self._users[task.user] / everything if everything > 0 else 0.0
        return float(2.0 ** (-usage / part))

    def priority_of(self, task: Task, view: View) -> float:
        """The sum of weighted factors; the greatest goes first."""
        size = min(1.0, task.modes[task.modes_by_speed()[0]].gpu_share / self._gpus)
        factors = {
            "age": min(1.0, (view.now - task.ready) / self.max_age),
            "fair": self._fair_share(task),
            "size": 1.0 - size if self.small_first else size,
            "partition": self.partitions.get(task.partition or task.class_, 0.0),
            "service": self.tiers.tier(task).priority,
            "own": max(0.0, task.priority) / self._highest if self._highest > 0 else 0.0,
        }
        return math.fsum(self.weights[name] * factor for name, factor in factors.items())

    def schedule(self, view: View) -> Iterator[Decision]:
        if not view.waiting_count:
            yield WAIT_FOR_READY
            return
        self._usage(view)
        partitions = view.cluster.partitions
        tiers = {name: one.tier for name, one in partitions.items()}
        ranked = [
            (-tiers.get(task.partition, 0), -self.priority_of(task, view), task.arrival, task.index, task)
            for task in view.waiting()
        ]
        ranked.sort(key=lambda entry: entry[:4])
        behind: list[Task] = []
        closed = 0  # nodes on which a job waits that those behind it must not pass
        for *_, task in ranked:
            nodes = partitions[task.partition].mask if task.partition else self._everywhere
            if nodes & closed:
                behind.append(task)
                continue
            if self.tiers.refuses(task):
                yield Hold(task, "quota")
                continue
            placement = view.fit(task, self.rule)
            if placement is None and fits_nowhere(task, view):
                placement = yield from self._preempt(task, view)
            if placement is not None:
                yield self._begin(task, placement)
            elif view.over_limit(task):
                yield Hold(task, "quota")
            else:
                closed |= nodes
                behind.append(task)
        if behind:
            yield from self._backfill(behind, view)
        yield WAIT_FOR_CHANGE

    def _preempt(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Stop jobs of qualities of service that give way to the task's, the latest start first, if that makes room."""
        lower = self.tiers.tier(task).preempts
        if not lower or view.over_limit(task):
            return None
        victims = []
        for other, _ in reversed(self._running.values()):
            since = view.now - self._since[other.index]
            if self.tiers.name(other) in lower and since >= self.tiers.tier(other).exempt:
                victims.append(other)
        victims.sort(key=lambda other: self.tiers.tier(other).priority)
        found = view.make_room(task, victims) if victims else None
        if found is None:
            return None
        for victim in found[1]:
            yield Stop(victim, keep=self.tiers.tier(victim).preempt_mode == "suspend")
        return view.fit(task, self.rule)

    def _backfill(self, order: list[Task], view: View) -> Iterator[Decision]:
        order = self._looked_at(order)
        if self.depth == 0 or all(not view.fits(mode) for task in order for mode in task.modes):
            return
        profile = Profile(view, self._down)
        for task in order:
            if self.tiers.refuses(task):
                yield Hold(task, "quota")
                continue
            found = profile.find(task, view)
            if found is None:
                continue
            profile.occupy(found)
            placement = found.placement(task, view) if found.time <= view.now else None
            if placement is not None and task.state == WAITING:
                yield self._begin(task, placement)
            elif view.fit(task) is not None:
                yield Hold(task, "reservation")

    def _looked_at(self, order: list[Task]) -> list[Task]:
        """Those who get reservations: the first and `depth` behind it, a few of each user."""
        if self.depth_per_user is None:
            return order[: 1 + self.depth]
        chosen: list[Task] = []
        of_user: dict[str, int] = {}
        for task in order:
            number = of_user[task.user] = of_user.get(task.user, 0) + 1
            if number <= self.depth_per_user:
                chosen.append(task)
                if len(chosen) > self.depth:
                    break
        return chosen

    def _begin(self, task: Task, placement: Placement) -> Start:
        assert self._view is not None
        self._running[task.index] = task, self._view.attained(task)
        self._since[task.index] = self._view.now
        self.tiers.starting(task, placement)
        return Start(task, placement)


def _member(task: Task) -> Member:
    return task.label("account"), task.user or "nobody"
