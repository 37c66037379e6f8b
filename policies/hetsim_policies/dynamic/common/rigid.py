"""Waiting jobs of one size each, mode by mode, so that a round looks only at those that may get devices.

Cost: O(log n) a job that comes or goes; a round takes the first jobs of each mode until no mode has room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any

from hetsim.model.task import Task
from hetsim.model.tasks import Mode

Entry = tuple[Any, float, int, Task]
"""A key, what breaks ties, the row, and the job."""


class RigidJobs:
    """Waiting jobs with one mode each, in the order of a key and in that of arrival."""

    def __init__(self) -> None:
        self._by_key: dict[Mode, list[Entry]] = {}
        self._by_arrival: dict[Mode, list[Entry]] = {}
        self._entries: dict[int, tuple[Mode, Entry, Entry]] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._entries)

    def modes(self) -> Iterable[Mode]:
        return self._by_key.keys()

    def add(self, task: Task, mode: Mode, key: Any) -> None:
        self._came += 1
        by_key, by_arrival = (key, task.arrival, task.index, task), (task.arrival, self._came, task.index, task)
        self._entries[task.index] = mode, by_key, by_arrival
        insort(self._by_key.setdefault(mode, []), by_key)
        insort(self._by_arrival.setdefault(mode, []), by_arrival)

    def remove(self, task: Task) -> None:
        """If it is here."""
        found = self._entries.pop(task.index, None)
        if found is None:
            return
        mode, *entries = found
        for by_mode, entry in zip((self._by_key, self._by_arrival), entries, strict=True):
            jobs = by_mode[mode]
            del jobs[bisect_left(jobs, entry)]
            if not jobs:
                del by_mode[mode]

    def deal(
        self, running: list[tuple[Any, float, int, Mode]], free: dict[str, float]
    ) -> tuple[dict[int, None], list[Task]]:
        """Give jobs their devices in the order of their keys, among those that run, as far as `free` goes, by type.

        running: key, arrival, row and mode.  Returns the rows of the running jobs that keep theirs, and the waiting
        ones that get any.
        """
        keep: dict[int, None] = {}
        chosen: list[Task] = []
        lines = [(mode.width, mode.type.name, jobs) for mode, jobs in self._by_key.items()]
        heads = [(jobs[0], number, 0) for number, (_, _, jobs) in enumerate(lines)]
        heapify(heads)
        for mine in [*sorted(running, key=lambda entry: entry[:3]), None]:
            while heads and (mine is None or heads[0][0][:3] < mine[:3]):
                entry, number, place = heads[0]
                width, kind, jobs = lines[number]
                if width > free[kind]:
                    heappop(heads)
                    continue
                free[kind] -= width
                chosen.append(entry[-1])
                if place + 1 < len(jobs):
                    heapreplace(heads, (jobs[place + 1], number, place + 1))
                else:
                    heappop(heads)
            if mine is not None and (width := mine[3].width) <= free[kind := mine[3].type.name]:
                free[kind] -= width
                keep[mine[2]] = None
        return keep, chosen

    def widest_first(self, chosen: Iterable[Task]) -> list[Task]:
        """Those that still wait, the widest first, then in the order of arrival."""
        entries = [self._entries[task.index] for task in chosen]
        return [by_arrival[-1] for _, _, by_arrival in sorted(entries, key=lambda one: (-one[0].width, one[2][:3]))]

    def in_order(self, blocked: Container[Mode]) -> Iterator[Task]:
        """All in the order of arrival, without those of modes that are or become blocked; they may be removed."""
        lines = {number: (mode, list(jobs)) for number, (mode, jobs) in enumerate(self._by_arrival.items())
                 if mode not in blocked}  # fmt: skip
        heads = [(jobs[0], number, 0) for number, (_, jobs) in lines.items()]
        heapify(heads)
        while heads:
            entry, number, place = heads[0]
            mode, jobs = lines[number]
            if mode not in blocked:
                yield entry[-1]
            if mode not in blocked and place + 1 < len(jobs):
                heapreplace(heads, (jobs[place + 1], number, place + 1))
            else:
                heappop(heads)
