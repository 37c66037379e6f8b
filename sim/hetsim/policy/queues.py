"""Queues of waiting tasks, in the order of a key."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain
from typing import Any

from hetsim.model.cluster import Partition
from hetsim.model.task import WAITING, Task

Entry = tuple[Any, float, int, int, Task]
"""Key, arrival, row, ticket, task: comparable between queues, and never down to the task."""

EVERYWHERE = -1
"""All that there is to compete for, as a bitmask."""


def partition_of(task: Task) -> Partition | None:
    """The partition of a task; None if it may run anywhere."""
    return task.shape.modes[0].partition


def claims_of(task: Task) -> int:
    """Bitmask of what a task competes for: no common bit, no competition.

    The nodes of its partition, or a part of what they have (`Cluster.claims`); EVERYWHERE where it is bound to none.
    """
    partition = task.shape.modes[0].partition
    return EVERYWHERE if partition is None else partition.claims


class TaskQueue:
    """A priority queue of tasks; equal keys in the order of arrival.

    Tasks with keys that come in ascending order (every first-come order) go to a deque and cost O(1); the others go
    to a heap.  An entry is void once its task is no longer waiting or was pushed again, to this queue or another:
    `Task.ticket` names the entry that counts, so removing is O(1) and nothing is searched.  Void entries are removed
    out when they may be half of all.
    """

    __slots__ = ("_run", "_heap", "_limit")

    def __init__(self) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._limit = 64

    def push(self, key: Any, task: Task) -> None:
        task.ticket = ticket = task.ticket + 1
        entry = (key, task.arrival, task.index, ticket, task)
        run = self._run
        if not run or run[-1] < entry:
            run.append(entry)
            size = len(run)
        else:
            heappush(self._heap, entry)
            size = len(self._heap)
        if size > self._limit:
            self._compact()

    def _compact(self) -> None:
        """Throw out void entries; again when there are twice as many as are left."""
        self._run = deque(entry for entry in self._run if _live(entry))
        self._heap = [entry for entry in self._heap if _live(entry)]
        heapify(self._heap)
        self._limit = max(64, 2 * max(len(self._run), len(self._heap)))

    def head(self) -> Task | None:
        """The task that goes next, or None."""
        run, heap = self._run, self._heap
        while run:
            _, _, _, ticket, task = run[0]
            if task.ticket == ticket and task.state == WAITING:
                if heap:
                    break
                return task
            run.popleft()
        while heap:
            entry = heap[0]
            task = entry[4]
            if task.ticket == entry[3] and task.state == WAITING:
                if not run or entry < run[0]:
                    return task
                break
            heappop(heap)
        return run[0][4] if run else None

    def head_entry(self) -> Entry | None:
        """The entry of the head, or None."""
        if self.head() is None:
            return None
        if self._heap and (not self._run or self._heap[0] < self._run[0]):
            return self._heap[0]
        return self._run[0]

    def pop(self) -> Task:
        """Remove the head, which `head` has just returned."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heappop(heap)[4]
        return run.popleft()[4]

    def remove(self, task: Task) -> None:
        """Remove the task; its entry becomes void."""
        task.ticket += 1

    def __iter__(self) -> Iterator[Task]:
        """All live tasks in order. Linear with a sort."""
        entries = sorted(chain(self._run, self._heap)) if self._heap else list(self._run)
        return (entry[4] for entry in entries if _live(entry))

    def first(self, count: int) -> list[Task]:
        """The first `count` tasks, in order."""
        if not self._heap and len(self._run) <= count:
            return list(self)
        live = (entry for entry in chain(self._run, self._heap) if _live(entry))
        return [entry[4] for entry in nsmallest(count, live)]

    def __len__(self) -> int:
        """Live tasks.  Linear; ask `head()` to learn whether there is any."""
        return sum(1 for _ in self)


def _live(entry: Entry) -> bool:
    return entry[4].ticket == entry[3] and entry[4].state == WAITING
