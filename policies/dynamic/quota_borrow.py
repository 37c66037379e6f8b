"""Quotas with borrowing: every user (virtual cluster) owns some GPUs, lends what lies idle, and takes it back.

Decides when, and who must give way.  A job within its user's quota goes first, in the order of arrival; beyond the
quota it may borrow what fits while no job within a quota waits for the room.  When a job within its quota does not fit,
borrowers are stopped, the latest start first, just as many as it needs; they wait again, with their work kept.
Reference: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads (2019), section
2.3: virtual clusters with quotas, used beyond them while others are idle, and reclaim by preemption.
`tiers` order jobs of one kind: quality of service by class, the highest first, and a lower tier gives way first.
Weakness: a quota in GPUs says nothing of where they lie, so that a gang within its quota can wait for a whole node
held by others within theirs; borrowers pay for every stop.
Cost: O(users) a round, and one pass over the borrowers for a job within its quota that does not fit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Annotated

from pydantic import Field

from policies.dynamic.backfilling import fits_nowhere
from policies.dynamic.by_user import ByUser
from sim.errors import Problem, ScenarioError
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Hold, PlacementRule, PlanProblem, Start, Stop, View


class QuotaBorrow(ByUser):
    """Quotas, borrowing and reclaim.

    quotas: GPUs by user; the others own `default`.  Tasks on cores alone count nothing.
    borrow: may users go beyond their quotas?
    reclaim: are borrowers stopped for jobs within quotas?
    tiers: quality of service by class; the highest goes first, others have 0.
    """

    def __init__(
        self,
        quotas: dict[str, Annotated[float, Field(ge=0)]] | None = None,
        default: Annotated[float, Field(ge=0)] = 0.0,
        borrow: bool = True,
        reclaim: bool = True,
        tiers: dict[str, float] | None = None,
        placement: PlacementRule | None = None,
    ):
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
        unknown = [user for user in self.quotas if user not in problem.tasks.users]
        if unknown:
            known = ", ".join(user for user in problem.tasks.users if user) or "none: give the tasks users"
            text = f'quotas names user "{unknown[0]}", and no task is his; users are {known}'
            raise ScenarioError(Problem(text, key="policy.scheduler"))

    def quota(self, user: str) -> float:
        return self.quotas.get(user, self.default)

    def key(self, task: Task) -> tuple[float, float]:
        return -self.tiers.get(task.class_, 0.0), task.arrival

    def needs(self, task: Task) -> float:
        """GPUs in its fastest mode."""
        return task.modes[task.modes_by_speed()[0]].gpu_share

    def within(self, task: Task) -> bool:
        return self.used.get(task.user, 0.0) + self.needs(task) <= self.quota(task.user) + 1e-9

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        gpus = placement.mode.gpu_share
        self.used[task.user] = self.used.get(task.user, 0.0) + gpus
        self._of[task.index] = task, gpus

    def left(self, task: Task) -> None:
        entry = self._of.pop(task.index, None)
        if entry is not None:
            self.used[task.user] -= entry[1]

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        owed = yield from self._serve(view, within=True)
        if self.borrow:
            yield from self._serve(view, within=False, owed=owed)
        yield WAIT_FOR_CHANGE if view.waiting_count else WAIT_FOR_READY

    def _serve(self, view: View, within: bool, owed: bool = False) -> Generator[Decision, None, bool]:
        """Start heads of users, those within their quotas or those that borrow; does one within its quota wait?"""
        passed: dict[str, None] = {}
        while True:
            heads = [
                (self.key(task), task.index, user, task)
                for user, queue in self.of_user.items()
                if user not in passed and (task := queue.head()) is not None and self.within(task) == within
            ]
            if not heads:
                return bool(passed) and within
            _, _, user, task = min(heads)
            placement = self.place(task, view)
            if placement is None and within and self.reclaim and fits_nowhere(task, view):
                placement = yield from self._take_back(task, view)
            if placement is None or (owed and self._for_good(task)):
                if placement is not None:
                    yield Hold(task, "quota")
                passed[user] = None
                continue
            self.of_user[user].pop()
            self.starting(task, placement, view)
            yield Start(task, placement)

    def _for_good(self, task: Task) -> bool:
        """Could what this task borrows not be taken back?  Then it waits while somebody within his quota does."""
        return not (self.reclaim and task.shape.preemptible)

    def _take_back(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Stop borrowers of the lowest tiers, the latest start first, until the task fits."""
        over = {user: used - self.quota(user) for user, used in self.used.items() if used > self.quota(user) + 1e-9}
        borrowed = []
        for other, gpus in reversed(self._of.values()):
            if over.get(other.user, 0.0) > 1e-9:
                over[other.user] -= gpus
                borrowed.append(other)
        borrowed.sort(key=lambda other: self.tiers.get(other.class_, 0.0))
        found = view.make_room(task, borrowed)
        if found is None:
            return None
        for victim in found[1]:
            yield Stop(victim)
        return self.place(task, view)
