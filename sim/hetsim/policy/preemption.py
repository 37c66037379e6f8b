"""List scheduling in which a first task that does not fit may stop running tasks."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hetsim.errors import refusal
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.policy.batching import Counter
from hetsim.policy.contract import OrderKey, PlacementRule, View
from hetsim.policy.decisions import WAIT_FOR_READY, Decision, Start, Stop, Wait
from hetsim.policy.lists import Discipline, ListScheduler
from hetsim.policy.queues import TaskQueue, claims_of

Head = tuple[Task, TaskQueue]


class PreemptiveList(ListScheduler):
    """A `ListScheduler` whose heads may stop lower-ranked running tasks.

    The least urgent tasks are stopped first, and only as many as the head needs; none, if stopping all would not
    suffice.  Stopped tasks wait again, with their work kept.  Tasks that are not preemptible continue.  Cost: for a
    head that does not fit but might displace a running task, one pass over the running tasks.  If the pass finds too
    few tasks to stop, it is usually repeated only after resources are released or another task starts.
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
        # An instant, and rows of tasks that did not start then although room had been made for them
        self._declined: tuple[float, dict[int, None]] = (-1.0, {})
        # Rows of tasks for which no room can be made, while releases and others' starts equal `_since`
        self._in_vain: dict[int, None] = {}
        self._since = -1, -1
        self._own_starts = 0  # starts under "block": they rank before all that waits, and are no victims of theirs
        # Upper bound of the ranks of running tasks (None: no start yet); these ranks never grow
        self._worst: Any = None

    def rank(self, task: Task, view: View) -> Any:
        """Return a running task's rank; a subclass whose ranks change calls `ranks_grew`."""
        return self.order(task)

    def yields(self, running: Any, waiting: Any) -> bool:
        """Return True if a task of rank `waiting` preempts rank `running`."""
        return bool(running > waiting)

    def ranks_grew(self) -> None:
        """Record that running tasks rank lower now, so that preemption is tried again."""
        self._in_vain.clear()

    def beginning(self, view: View) -> None:
        """Hook at the beginning of a round."""

    def until(self, view: View) -> Wait | None:
        """Time of the next round if nothing changes; None if no round is needed."""
        return None

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        key = self.order(task)
        if self._worst is None or key > self._worst:
            self._worst = key

    def victims(self, key: Any, view: View) -> Iterable[Task]:
        """Return running tasks that a task with rank `key` may stop, least urgent first."""
        if self._worst is None or not self.yields(self._worst, key):
            return ()  # spares most heads the pass over all running tasks
        ranked = [(self.rank(other, view), other) for other in view.running("start", own=True)]
        ranked.sort(key=lambda entry: entry[0], reverse=True)
        self._worst = ranked[0][0] if ranked else None
        return [other for rank, other in ranked if self.yields(rank, key)]

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        if self.preemptive:
            raise refusal("a preemptive scheduler cannot serve requests: batches cannot be preempted")
        super().serve(counters, alone)

    def schedule(self, view: View) -> Iterator[Decision]:
        return self._preempting(view) if self.preemptive else super().schedule(view)

    def _preempting(self, view: View) -> Iterator[Decision]:
        self.beginning(view)
        if not (heads := _heads_of(self.queues())):
            yield WAIT_FOR_READY
        blocking = self.discipline == "block"
        while heads:
            task, queue = heads[0]
            if len(heads) > 1:
                task, queue = min(heads, key=lambda head: (self.order(head[0]), head[0].arrival, head[0].index))
            if task.index in self._in_vain and self._since == self._known(view):
                placement = None
            elif (placement := self.place(task, view)) is not None:
                queue.pop()
            elif (room := self._room_for(task, view)) is not None:
                for victim in room[1]:
                    yield Stop(victim)
                if (placement := self.place(task, view)) is None:
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
        if (wait := self.until(view)) is not None:
            yield wait

    def _known(self, view: View) -> tuple[int, int]:
        """Return counts of releases and launches; a change allows a new preemption."""
        changes = view.changes
        return changes.releases, changes.launches - self._own_starts

    def _room_for(self, task: Task, view: View) -> tuple[Placement, list[Task]] | None:
        """Return a task's placement and the lower-ranked tasks to stop; None: impossible."""
        # Without a rule and data that have to find room, a task of one mode that found no place fits nowhere.
        plain = self.placement is None and not view.items
        if not (plain and len(task.modes) == 1) and any(view.fits(mode) for mode in task.modes):
            return None  # the placement rule declines what fits, or only the task's data find no room
        if self._declined[0] != view.now:
            self._declined = (view.now, {})
        if task.index in self._declined[1]:
            return None
        if (room := view.make_room(task, self.victims(self.order(task), view))) is None and plain:
            state = self._known(view)
            if self._since != state:
                self._since = state
                self._in_vain.clear()
            self._in_vain[task.index] = None
        return room


def _heads_of(queues: Iterable[TaskQueue]) -> list[Head]:
    return [(head, queue) for queue in queues if (head := queue.head()) is not None]


# Running tasks by a constant key.  An entry is void unless its start number is still that of the task (`task.memo`, set
# by the policy); void entries are removed when they may be half of all.


class RunningList:
    """Running tasks sorted by key.

    Cost: a binary search per insertion; insertions and removals at the front move the entries behind.
    """

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Task]] = []  # key, number of the start, task
        self._limit = 64  # maximum number of entries before void ones are removed

    def push(self, key: Any, task: Task) -> None:
        """Add a task before it starts.

        The caller sets `task.memo` to a number of this start, so that entries of earlier starts are recognized.
        """
        entries = self._entries
        while entries:  # where those that end first come last, nothing else has to be removed
            _, start, last = entries[-1]
            if last.memo == start and last.state == RUNNING:
                break
            entries.pop()
        insort(entries, (key, task.memo, task))
        if len(entries) > self._limit:
            self._entries = [e for e in entries if e[2] is task or (e[2].memo == e[1] and e[2].state == RUNNING)]
            self._limit = max(64, 2 * len(self._entries))

    def clear(self) -> None:
        self._entries.clear()

    def head(self) -> tuple[Any, Task] | None:
        """Return the lowest key and its task; None if no task runs."""
        entries = self._entries
        while entries:
            key, start, task = entries[0]
            if task.memo == start and task.state == RUNNING:
                return key, task
            del entries[0]
        return None

    def pop(self) -> None:
        del self._entries[0]

    def until(self, reached: Callable[[Any], bool]) -> Iterator[Task]:
        """Yield tasks before the first one whose key satisfies `reached`."""
        entries = self._entries
        if not entries or reached(entries[0][0]):
            return iter(())
        return self._first(bisect_left(entries, True, lo=1, key=lambda entry: reached(entry[0])))

    def all(self) -> Iterator[Task]:
        return self._first(len(self._entries))

    def _first(self, count: int) -> Iterator[Task]:
        for _, start, task in self._entries[:count]:
            if task.memo == start and task.state == RUNNING:
                yield task
