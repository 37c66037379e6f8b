"""Queues of waiting tasks, in the order of a key."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain
from typing import Any

from hetsim.model.cluster import Partition
from hetsim.model.task import WAITING, Task

# key, arrival, row, ticket, task: comparable between queues; ties never reach the task
Entry = tuple[Any, float, int, int, Task]

EVERYWHERE = -1  # bitmask of all nodes and limits for which tasks compete


def partition_of(task: Task) -> Partition | None:
    """Return the partition of a task; None if the task has no partition."""
    return task.shape.modes[0].partition


def claims_of(task: Task) -> int:
    """Return a bitmask of the resources for which a task competes.

    Tasks without a common bit do not compete.  The bits stand for the nodes of the task's partition, or for one
    accelerator type of each node (`Cluster.claims`).  All bits are set (EVERYWHERE) for a task without a partition.
    """
    partition = task.shape.modes[0].partition
    return EVERYWHERE if partition is None else partition.claims


class TaskQueue:
    """A priority queue of tasks; equal keys in the order of arrival.

    Tasks whose keys arrive in ascending order (every first-come order) are appended to a deque in O(1); all other tasks
    are pushed to a heap.  An entry is void once its task no longer waits or was pushed again, to any queue.
    `Task.ticket` identifies the valid entry, so a removal needs no search and is O(1).  Void entries are deleted when
    they may be half of all entries.
    """

    __slots__ = ("_run", "_heap", "_limit")

    def __init__(self) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._limit = 64

    def push(self, key: Any, task: Task) -> None:
        task.ticket = ticket = task.ticket + 1
        entry: Any = (key, task.arrival, task.index, ticket, task)  # Any: keys of NumPy compare to NumPy's bool
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
        self._run = deque(entry for entry in self._run if _live(entry))
        self._heap = [entry for entry in self._heap if _live(entry)]
        heapify(self._heap)
        self._limit = max(64, 2 * max(len(self._run), len(self._heap)))

    def head(self) -> Task | None:
        """Return the task that goes next, or None."""
        run, heap = self._run, self._heap
        while run:
            _, _, _, ticket, task = run[0]
            if task.ticket == ticket and task.state == WAITING:
                if heap:
                    break
                return task
            run.popleft()
        while heap:
            entry: Any = heap[0]
            task = entry[4]
            if task.ticket == entry[3] and task.state == WAITING:
                if not run or entry < run[0]:
                    return task
                break
            heappop(heap)
        return run[0][4] if run else None

    def head_entry(self) -> Entry | None:
        if self.head() is None:
            return None
        heap: Any = self._heap
        return heap[0] if heap and (not self._run or heap[0] < self._run[0]) else self._run[0]

    def pop(self) -> Task:
        """Remove and return the head; `head` must have been called just before."""
        run = self._run
        heap: Any = self._heap
        task: Task = heappop(heap)[4] if heap and (not run or heap[0] < run[0]) else run.popleft()[4]
        return task

    def remove(self, task: Task) -> None:
        """Remove the task; its entry becomes void."""
        task.ticket += 1

    def __iter__(self) -> Iterator[Task]:
        """Iterate over all waiting tasks in order; sorts them."""
        entries = sorted(chain(self._run, self._heap)) if self._heap else list(self._run)
        return (entry[4] for entry in entries if _live(entry))

    def first(self, count: int) -> list[Task]:
        if not self._heap and len(self._run) <= count:
            return list(self)
        live = (entry for entry in chain(self._run, self._heap) if _live(entry))
        return [entry[4] for entry in nsmallest(count, live)]

    def __len__(self) -> int:
        """Return the number of waiting tasks; linear (use `head()` to test for any)."""
        return sum(1 for _ in self)


def _live(entry: Entry) -> bool:
    return entry[4].ticket == entry[3] and entry[4].state == WAITING
