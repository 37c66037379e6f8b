"""A queue served at both ends, by stealing workers or by two device types."""

from heapq import heappop, heappush

from hetsim.model.task import WAITING, Task

Key = tuple[float, ...]


class TwoEnded:
    """Waiting tasks in two heaps, with a key for each end.

    An entry is void once its task no longer waits or was pushed again.
    """

    def __init__(self) -> None:
        self._heaps: tuple[list[tuple[Key, int, Task]], ...] = ([], [])

    def push(self, task: Task, *keys: Key) -> None:
        """Add a task; at each end the lowest key is first."""
        task.ticket += 1
        for heap, key in zip(self._heaps, keys, strict=True):
            heappush(heap, (key, task.ticket, task))

    def head(self, end: int) -> tuple[Key, int, Task] | None:
        """Return key, ticket and task of the first entry at one end; None if it is empty."""
        heap = self._heaps[end]
        while heap:
            _, ticket, task = heap[0]
            if task.state == WAITING and task.ticket == ticket:
                return heap[0]
            heappop(heap)
        return None
