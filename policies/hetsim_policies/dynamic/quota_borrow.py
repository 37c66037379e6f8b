"""Quotas with borrowing: users own GPUs, lend idle ones, and take them back.

Decides when, and which job is preempted.  A job within its user's quota goes first, in the order of arrival; beyond the
quota it may borrow what fits while no job within a quota waits for the room.  When a job within its quota does not fit,
borrowers are stopped, the latest start first, just as many as it needs; they wait again, with their work kept.
Reference: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads (2019), section
2.3: virtual clusters with quotas, used beyond them while others are idle, and reclaim by preemption.
`of` names the owners of the quotas: users, accounts, virtual clusters (the column `vc`), partitions or classes.
`tiers` order jobs of one kind by their quality of service (the label `qos`, without one the class), the highest first,
and a lower tier is preempted first.
Weakness: a quota in GPUs says nothing of where they lie, so that a gang within its quota can wait for a whole node
held by others within theirs; borrowers pay for every stop.
Cost: O(users) a round, and one pass over the borrowers for a job within its quota that does not fit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Annotated, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Annotate,
    Decision,
    PlacementRule,
    PlanProblem,
    Start,
    Stop,
    View,
    claims_of,
    fits_nowhere,
)
from hetsim_policies.dynamic.common.by_user import ByUser, Line

SHOWN = 10
"""Owners that a message lists."""


class QuotaBorrow(ByUser):
    """Quotas, borrowing and reclaim.

    quotas: GPUs by owner; the others own `default`.  Tasks on cores alone count nothing.
    of: their owner: user, account, vc, partition or class.
    borrow: owners may go beyond their quotas.
    reclaim: borrowers are stopped for jobs within quotas.
    tiers: quality of service by its name; the highest goes first, others have 0.
    """

    def __init__(
        self,
        quotas: dict[str, Annotated[float, Field(ge=0)]] | None = None,
        default: Annotated[float, Field(ge=0)] = 0.0,
        borrow: bool = True,
        reclaim: bool = True,
        tiers: dict[str, float] | None = None,
        placement: PlacementRule | None = None,
        of: Literal["user", "account", "vc", "partition", "class"] = "user",
    ):
        self.of = of
        super().__init__(None, placement, "skip")
        self.quotas = quotas or {}
        self.default = default
        self.borrow = borrow
        self.reclaim = reclaim
        self.tiers = tiers or {}
        self.used: dict[str, float] = {}
        self._of: dict[int, tuple[Task, float]] = {}
        """Running tasks in the order of their start, and their GPUs."""

    def check(self, problem: PlanProblem) -> None:
        present = self._owners(problem.tasks)
        unknown = [owner for owner in self.quotas if owner not in present]
        if unknown:
            listed = [owner for owner in present if owner]
            more = f", and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
            names = ", ".join(listed[:SHOWN]) + more or f"none: give the tasks a {self.of}"
            text = f'quotas names {self.of} "{unknown[0]}", and no task is theirs; there are {names}'
            raise ScenarioError(Problem(text, key="policy.scheduler"))

    def _owners(self, tasks: Tasks) -> list[str]:
        """All owners of tasks."""
        listed = {"user": tasks.users, "class": tasks.classes, "partition": tasks.partitions}.get(self.of)
        if listed is not None:
            return listed
        column = tasks.extra.get(self.of)
        return [] if column is None else list(dict.fromkeys(str(cell) for cell in column.tolist()))

    def owner(self, task: Task) -> str:
        if self.of == "user":
            return task.user
        if self.of == "class":
            return task.class_
        return task.partition if self.of == "partition" else task.label(self.of)

    def tier(self, task: Task) -> float:
        return self.tiers.get(task.label("qos") or task.class_, 0.0)

    def quota(self, owner: str) -> float:
        return self.quotas.get(owner, self.default)

    def key(self, task: Task) -> tuple[float, float]:
        return -self.tier(task), task.arrival

    def needs(self, task: Task) -> float:
        """GPUs in its fastest mode."""
        return task.modes[task.modes_by_speed()[0]].gpu_share

    def within(self, task: Task) -> bool:
        owner = self.owner(task)
        return self.used.get(owner, 0.0) + self.needs(task) <= self.quota(owner) + 1e-9

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        gpus = placement.mode.gpu_share
        owner = self.owner(task)
        self.used[owner] = self.used.get(owner, 0.0) + gpus
        self._of[task.index] = task, gpus

    def leave(self, task: Task) -> None:
        entry = self._of.pop(task.index, None)
        if entry is not None:
            self.used[self.owner(task)] -= entry[1]

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        owed = yield from self._serve(view, within=True, owed=0)
        if self.borrow:
            yield from self._serve(view, within=False, owed=owed)
        yield WAIT_FOR_CHANGE if view.num_waiting(own=True) else WAIT_FOR_READY

    def _serve(self, view: View, within: bool, owed: int) -> Generator[Decision, None, int]:
        """Start heads of users, those within their quotas or those that borrow.

        owed: bitmask of the nodes on which a job within its quota waits.  Returns the nodes of the jobs that it passed
            over.
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
            placement = self.place(task, view)
            if placement is None and within and self.reclaim and fits_nowhere(task, view):
                placement = yield from self._take_back(task, view)
            if placement is None or (owed & claims_of(task) and self._for_good(task)):
                if placement is not None:
                    yield Annotate(task, "quota")
                passed[line] = None
                waited_for |= claims_of(task)
                continue
            self.of_user[line].pop()
            self.starting(task, placement, view)
            yield Start(task, placement)

    def _for_good(self, task: Task) -> bool:
        """Return True if loans to it are final: then it waits for jobs within quotas."""
        return not (self.reclaim and task.shape.preemptible)

    def _take_back(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Stop borrowers of the lowest tiers, the latest start first, until the task fits."""
        over = {user: used - self.quota(user) for user, used in self.used.items() if used > self.quota(user) + 1e-9}
        borrowed = []
        for other, gpus in reversed(self._of.values()):
            owner = self.owner(other)
            if over.get(owner, 0.0) > 1e-9:
                over[owner] -= gpus
                borrowed.append(other)
        borrowed.sort(key=self.tier)
        room = view.make_room(task, borrowed)
        if room is None:
            return None
        for victim in room[1]:
            yield Stop(victim)
        return self.place(task, view)
