"""List scheduling with preemption: what `srtf`, `priority` and `edf` have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from sim.errors import Problem, ScenarioError
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import (
    WAIT_FOR_READY,
    Counter,
    Decision,
    Discipline,
    ListScheduler,
    OrderKey,
    PlacementRule,
    Start,
    Stop,
    TaskQueue,
    View,
    claims_of,
)


class PreemptiveList(ListScheduler):
    """As `ListScheduler`, but a head that does not fit stops running tasks that rank behind it.

    The least urgent are stopped first, only as many as the head needs, and none if even all would not suffice.
    They wait again, with their work kept.  Tasks that are not preemptible are left alone.
    Cost: a pass over the running tasks for a head that does not fit and might displace one of them.
    """

    def __init__(
        self,
        order: OrderKey,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        preemptive: bool = True,
    ):
        super().__init__(order, placement, discipline)
        self.preemptive = preemptive
        self._in_vain: tuple[float, dict[int, None]] = (-1.0, {})
        self._worst: Any = None
        """No running task ranks behind this; None when none was started.  Ranks of running tasks never grow."""

    def rank(self, task: Task, view: View) -> Any:
        """Where a running task would stand in the queue; must not grow while it runs."""
        return self.order(task)

    def yields(self, running: Any, waiting: Any) -> bool:
        """Is a task of rank `running` preempted by one of rank `waiting`?"""
        return running > waiting

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        """A task is about to start."""
        key = self.order(task)
        if self._worst is None or key > self._worst:
            self._worst = key

    def victims(self, key: Any, view: View) -> Iterable[Task]:
        """Running tasks that one of this rank preempts, the least urgent first."""
        if self._worst is None or not self.yields(self._worst, key):
            return ()  # spares most heads the pass over all running tasks
        ranked = [(self.rank(other, view), other) for other in view.running("start", own=True)]
        ranked.sort(key=lambda entry: entry[0], reverse=True)
        self._worst = ranked[0][0] if ranked else None
        return [other for rank, other in ranked if self.yields(rank, key)]

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        if self.preemptive:
            text = "a scheduler that stops running tasks serves no requests: batches run to their end"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        super().serve(counters, alone)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.preemptive:
            yield from super().schedule(view)
            return
        queues = [queue for queue in self.queues() if queue.head() is not None]
        if not queues:
            yield WAIT_FOR_READY
        while queues:
            task, queue = min(((queue.head(), queue) for queue in queues), key=self._urgency)
            assert task is not None
            placement = self.place(task, view)
            if placement is None:
                placement = yield from self._make_room(task, view)
            if placement is None and (self.discipline == "skip" or view.over_limit(task)):
                queues.remove(queue)  # held back by a limit, it blocks its own partition alone, even on shared nodes
            elif placement is None:
                closed = claims_of(task)
                queues = [one for one in queues if (head := one.head()) is not None and not claims_of(head) & closed]
            else:
                queue.remove(task)
                self.starting(task, placement, view)
                yield Start(task, placement)
            queues = [queue for queue in queues if queue.head() is not None]

    def _urgency(self, head: tuple[Task | None, TaskQueue]) -> tuple[Any, float, int]:
        task = head[0]
        assert task is not None
        return self.order(task), task.arrival, task.index

    def _make_room(self, task: Task, view: View) -> Generator[Decision, None, Placement | None]:
        """Stop tasks that rank behind this one, and say where it can start then."""
        if any(view.fits(mode) for mode in task.modes):
            return None  # the placement rule declines what fits, or only the task's data find no room
        if self._in_vain[0] != view.now:
            self._in_vain = (view.now, {})
        if task.index in self._in_vain[1]:
            return None
        found = view.make_room(task, self.victims(self.order(task), view))
        if found is None:
            return None
        for victim in found[1]:
            yield Stop(victim)
        placement = self.place(task, view)
        if placement is None:
            # The rule declines, or the task's data find no room: not again at this instant, or it would go on.
            self._in_vain[1][task.index] = None
        return placement
