"""Running tasks by a key that stays as it is while they run.

`task.memo` holds the number of the start (given by the policy), which tells a task's entry from those of its earlier
starts; the others are void, and removed when they may be half of all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from hetsim.model.task import RUNNING, Task

Entry = tuple[Any, int, Task]
"""Key, number of the start, task."""


class _Entries:
    """The entries, and their maximum number before void ones are removed."""

    __slots__ = ("_entries", "_limit")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._limit = 64


class RunningHeap(_Entries):
    """Running tasks, of which only the one with the least key is asked for."""

    __slots__ = ()

    def push(self, key: Any, task: Task) -> None:
        """Before the task starts, with its memo set."""
        heappush(self._entries, (key, task.memo, task))
        if len(self._entries) > self._limit:  # void entries rarely come to the top by themselves
            self._entries = _without_void(self._entries, task)
            heapify(self._entries)
            self._limit = max(64, 2 * len(self._entries))

    def head(self) -> tuple[Any, Task] | None:
        """The least key and its task."""
        entries = self._entries
        while entries:
            key, start, task = entries[0]
            if task.memo == start and task.state == RUNNING:
                return key, task
            heappop(entries)
        return None

    def pop(self) -> None:
        heappop(self._entries)


class RunningList(_Entries):
    """Running tasks in the order of their keys.

    Cost: a binary search, and a move of what follows, to put one in.
    """

    __slots__ = ()

    def push(self, key: Any, task: Task) -> None:
        """Before the task starts, with its memo set."""
        entries = self._entries
        while entries:  # where those that end first come last, nothing else has to be removed
            _, start, last = entries[-1]
            if last.memo == start and last.state == RUNNING:
                break
            entries.pop()
        insort(entries, (key, task.memo, task))
        if len(entries) > self._limit:
            self._entries = _without_void(self._entries, task)
            self._limit = max(64, 2 * len(self._entries))

    def clear(self) -> None:
        self._entries.clear()

    def until(self, reached: Callable[[Any], bool]) -> Iterator[Task]:
        """The tasks before the first with a key for which `reached` is true."""
        entries = self._entries
        if not entries or reached(entries[0][0]):
            return iter(())
        return self._first(bisect_left(entries, True, lo=1, key=lambda entry: reached(entry[0])))

    def all(self) -> Iterator[Task]:
        """All tasks, in order."""
        return self._first(len(self._entries))

    def _first(self, count: int) -> Iterator[Task]:
        """The tasks of the first entries, one by one, as often only a few are asked for."""
        for _, start, task in self._entries[:count]:
            if task.memo == start and task.state == RUNNING:
                yield task


def _without_void(entries: list[Entry], new: Task) -> list[Entry]:
    """The entries that count; `new`: a task that is about to start."""
    return [e for e in entries if e[2] is new or (e[2].memo == e[1] and e[2].state == RUNNING)]
