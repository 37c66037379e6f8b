"""List scheduling with preemption, the base of `srtf`, `priority` and `edf`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import (
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
    Wait,
    claims_of,
)

Head = tuple[Task, TaskQueue]


class PreemptiveList(ListScheduler):
    """As `ListScheduler`, but a head that does not fit stops tasks that rank behind.

    The least urgent are stopped first, only as many as the head needs, and none if even all would not suffice.
    They wait again, with their work kept.  Tasks that are not preemptible are left alone.
    Cost: a pass over the running tasks for a head that does not fit and might displace one of them, once until
    something comes free.
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
        self._declined: tuple[float, dict[int, None]] = (-1.0, {})
        """An instant, and rows of tasks that did not start then although room had been made for them."""
        self._in_vain: dict[int, None] = {}
        """Rows of tasks for which no room can be made, `_since` these counts of releases and of others' starts."""
        self._since = -1, -1
        self._own_starts = 0
        """Starts under "block": they rank before all that waits, and are no victims of theirs."""
        self._worst: Any = None
        """No running task ranks behind this; None when none was started.  Ranks of running tasks never grow."""

    def rank(self, task: Task, view: View) -> Any:
        """The rank of a running task; must not grow while it runs (else `ranks_grew`)."""
        return self.order(task)

    def yields(self, running: Any, waiting: Any) -> bool:
        """Return True if a task of rank `waiting` preempts one of rank `running`."""
        return running > waiting

    def ranks_grew(self) -> None:
        """Note that running tasks rank further behind: there may be room to be made."""
        self._in_vain.clear()

    def beginning(self, view: View) -> None:
        """A round begins."""

    def until(self, view: View) -> Wait | None:
        """When a round is to come although nothing has changed; None: not at all."""
        return None

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
        return self._preempting(view) if self.preemptive else super().schedule(view)

    def _preempting(self, view: View) -> Iterator[Decision]:
        self.beginning(view)
        heads = _heads_of(self.queues())
        if not heads:
            yield WAIT_FOR_READY
        blocking = self.discipline == "block"
        while heads:
            task, queue = heads[0] if len(heads) == 1 else min(heads, key=self._urgency)
            if task.index in self._in_vain and self._since == self._known(view):
                placement = None
            elif (placement := self.place(task, view)) is not None:
                queue.pop()
            elif (room := self._room_for(task, view)) is not None:
                for victim in room[1]:
                    yield Stop(victim)
                placement = self.place(task, view)
                if placement is not None:
                    queue.remove(task)
                else:
                    # The rule declines, or the task's data find no room: not again at this instant, or it would go on.
                    self._declined[1][task.index] = None
            queues = [other for _, other in heads]
            if placement is not None:
                self.starting(task, placement, view)
                self._own_starts += blocking
                yield Start(task, placement)
            elif len(heads) == 1:
                break
            elif not blocking or view.over_limit(task):
                queues.remove(queue)  # held back by a limit, it blocks its own partition alone, even on shared nodes
            else:
                closed = claims_of(task)
                queues = [other for head, other in _heads_of(queues) if not claims_of(head) & closed]
            heads = _heads_of(queues)
        wait = self.until(view)
        if wait is not None:
            yield wait

    def _urgency(self, head: Head) -> tuple[Any, float, int]:
        task = head[0]
        return self.order(task), task.arrival, task.index

    def _known(self, view: View) -> tuple[int, int]:
        """A key of the state: while it is equal, no preemption newly makes room."""
        changes = view.changes
        return changes.releases, changes.launches - self._own_starts

    def _room_for(self, task: Task, view: View) -> tuple[Placement, list[Task]] | None:
        """Where a task could start once lower-ranked tasks have stopped, and these."""
        # Without a rule and data that have to find room, a task of one mode that found no place fits nowhere.
        plain = self.placement is None and not view.items
        if not (plain and len(task.modes) == 1) and any(view.fits(mode) for mode in task.modes):
            return None  # the placement rule declines what fits, or only the task's data find no room
        if self._declined[0] != view.now:
            self._declined = (view.now, {})
        if task.index in self._declined[1]:
            return None
        room = view.make_room(task, self.victims(self.order(task), view))
        if room is None and plain:
            state = self._known(view)
            if self._since != state:
                self._since = state
                self._in_vain.clear()
            self._in_vain[task.index] = None
        return room


def _heads_of(queues: Iterable[TaskQueue]) -> list[Head]:
    """The queues in which tasks wait, each with the one that goes first."""
    return [(head, queue) for queue in queues if (head := queue.head()) is not None]
