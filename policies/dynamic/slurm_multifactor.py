"""Slurm's multifactor priority with backfilling: many weighted reasons, and reservations for the first few.

Decides when.  A job's priority is the sum of weights times factors between 0 and 1: age (time waited over `max_age`,
at most 1), fair share, size (GPUs over those of the cluster), partition (by class) and the task's own priority.
Fair share is simplified: one level of users instead of a tree of accounts, the classic formula 2^(-usage / shares) on
the part of all GPU time that the user has received, halved every `half_life`; Slurm's Fair Tree ranks siblings
level by level, which for one level is the same order.  In that order jobs start until one does not fit; the first
`depth` behind it are given reservations and start if theirs is now, as in Slurm's backfill scheduler
(`bf_max_job_test`).
Reference: Yoo, Jette, Grondona, SLURM: Simple Linux Utility for Resource Management (2003); Slurm Workload Manager:
Multifactor Priority Plugin, Scheduling Configuration Guide (SchedMD).
Weakness: many weights, and nobody knows what they do together; jobs beyond `depth` cannot backfill.
Cost: a sort of those who wait and `depth` reservations a round in which anything came free, or somebody came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from policies.dynamic.reservations import Profile
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import WAITING, Task
from sim.model.units import Seconds
from sim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Hold, PlacementRule, Scheduler, Start, View

Weight = Annotated[float, Field(ge=0)]


class SlurmMultifactor(Scheduler):
    """Multifactor priority and backfilling.

    age, fair_share, size, partition, priority: weights of the factors.
    small_first: favour small jobs instead of large ones.
    partitions: factor by class, from 0 to 1; others have 0.
    shares: of users, in any unit; others have 1.
    max_age: wait from which on age counts in full.  half_life: of usage.
    depth: jobs that the backfiller looks at.
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
    ):
        self.weights = {"age": age, "fair": fair_share, "size": size, "partition": partition, "own": priority}
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
        self._down: dict[Device, None] = {}
        self._view: View | None = None
        self._highest = 0.0

    def begin(self, view: View) -> None:
        self._view = view
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))

    def device(self, device: Device, up: bool) -> None:
        if up:
            self._down.pop(device, None)
        else:
            self._down[device] = None

    def ready(self, task: Task) -> None:
        self._users.setdefault(task.user, 0.0)
        self._highest = max(self._highest, task.priority)
        self._settle(task)

    def finished(self, task: Task) -> None:
        self._settle(task)

    def gone(self, task: Task) -> None:
        self._settle(task)

    def _settle(self, task: Task) -> None:
        """A task has stopped running: count what is not counted yet."""
        entry = self._running.pop(task.index, None)
        if entry is not None:
            assert self._view is not None
            self._users[task.user] += self._view.attained(task) - entry[1]

    def _usage(self, view: View) -> None:
        """Let what was received decay, and add what has been received since."""
        faded = 0.5 ** ((view.now - self._as_of) / self.half_life)
        self._as_of = view.now
        for user in self._users:
            self._users[user] *= faded
        for row, (task, counted) in self._running.items():
            received = view.attained(task)
            self._users[task.user] += received - counted
            self._running[row] = task, received

    def priority_of(self, task: Task, view: View) -> float:
        """The sum of weighted factors; the greatest goes first."""
        everything = sum(self._users.values())
        shares = sum(self.shares.get(user, 1.0) for user in self._users)
        part = self.shares.get(task.user, 1.0) / shares
        usage = self._users[task.user] / everything if everything > 0 else 0.0
        size = min(1.0, task.modes[task.modes_by_speed()[0]].gpu_share / self._gpus)
        factors = {
            "age": min(1.0, (view.now - task.ready) / self.max_age),
            "fair": 2.0 ** (-usage / part),
            "size": 1.0 - size if self.small_first else size,
            "partition": self.partitions.get(task.class_, 0.0),
            "own": max(0.0, task.priority) / self._highest if self._highest > 0 else 0.0,
        }
        return math.fsum(self.weights[name] * factor for name, factor in factors.items())

    def schedule(self, view: View) -> Iterator[Decision]:
        if not view.waiting_count:
            yield WAIT_FOR_READY
            return
        self._usage(view)
        ranked = [(-self.priority_of(task, view), task.arrival, task.index, task) for task in view.waiting()]
        ranked.sort(key=lambda entry: entry[:3])
        order = [entry[3] for entry in ranked]
        first = 0
        for task in order:
            placement = view.fit(task, self.rule)
            if placement is None:
                break
            first += 1
            yield self._begin(task, placement)
        if first < len(order):
            yield from self._backfill(order[first : first + 1 + self.depth], view)
        yield WAIT_FOR_CHANGE

    def _backfill(self, order: list[Task], view: View) -> Iterator[Decision]:
        if self.depth == 0 or all(not view.fits(mode) for task in order for mode in task.modes):
            return
        profile = Profile(view, self._down)
        for task in order:
            found = profile.find(task, view)
            if found is None:
                continue
            profile.occupy(found)
            placement = found.placement(task, view) if found.time <= view.now else None
            if placement is not None and task.state == WAITING:
                yield self._begin(task, placement)
            elif view.fit(task) is not None:
                yield Hold(task, "reservation")

    def _begin(self, task: Task, placement: Placement) -> Start:
        assert self._view is not None
        self._running[task.index] = task, self._view.attained(task)
        return Start(task, placement)
