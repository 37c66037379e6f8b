"""Running tasks by a key that stays as it is while they run."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from sim.model.tasks import RUNNING, Task


class RunningHeap:
    """Running tasks, the least key first.  `task.memo` holds the number of the start (given by the policy), which
    tells a task's entry from those of its earlier starts; the others are void, and removed when they may be half of
    all."""

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Task]] = []
        self._limit = 64

    def push(self, key: Any, task: Task) -> None:
        """Before the task starts, with its memo set."""
        heappush(self._entries, (key, task.memo, task))
        if len(self._entries) > self._limit:  # void entries rarely come to the top by themselves
            self._entries = [e for e in self._entries if e[2] is task or _counts(e)]
            heapify(self._entries)
            self._limit = max(64, 2 * len(self._entries))

    def head(self) -> tuple[Any, Task] | None:
        """The least key and its task."""
        entries = self._entries
        while entries and not _counts(entries[0]):
            heappop(entries)
        return (entries[0][0], entries[0][2]) if entries else None

    def pop(self) -> None:
        heappop(self._entries)

    def ascending(self) -> Iterator[tuple[Any, Task]]:
        """From the least on, as many as are asked for; all stay in the heap."""
        entries = self._entries
        taken: list[tuple[Any, int, Task]] = []
        try:
            while entries:
                entry = heappop(entries)
                if _counts(entry):
                    taken.append(entry)
                    yield entry[0], entry[2]
        finally:
            for entry in taken:
                heappush(entries, entry)


def _counts(entry: tuple[Any, int, Task]) -> bool:
    return entry[2].memo == entry[1] and entry[2].state == RUNNING
