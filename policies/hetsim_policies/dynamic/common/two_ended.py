"""A queue that is served from both ends: by owner and thieves, or by two types."""

from heapq import heappop, heappush

from hetsim.model.task import WAITING, Task

Key = tuple[float, ...]


class TwoEnded:
    """Double-ended priority queue of waiting tasks: two heaps, each with its own key.

    An entry is void once its task no longer waits or was pushed again.
    """

    def __init__(self) -> None:
        self._heaps: tuple[list[tuple[Key, int, Task]], ...] = ([], [])

    def push(self, task: Task, *keys: Key) -> None:
        task.ticket += 1
        for heap, key in zip(self._heaps, keys, strict=True):
            heappush(heap, (key, task.ticket, task))

    def head(self, end: int) -> tuple[Key, int, Task] | None:
        """Return the first valid entry (key, ticket, task) at one end, or None."""
        heap = self._heaps[end]
        while heap:
            _, ticket, task = heap[0]
            if task.state == WAITING and task.ticket == ticket:
                return heap[0]
            heappop(heap)
        return None
