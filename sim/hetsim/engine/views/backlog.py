"""Estimated seconds of waiting and running work, by device type and task class.

Waiting tasks count in their fastest modes.  A compute-only launch (no transfers, nominal speed) counts its estimated
end minus the present time, or 0 s if it has exceeded its estimate.  All other launches are queried one by one.
Cost: O(log n) per start; a query is linear in the pairs of type and class, and in the launches that are not
compute-only.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.durations import planned
from hetsim.engine.views.forecast import Forecast
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.task import Task

Key = tuple[str, str, str]  # kind and name of the device type, and the class; device types themselves are slow to hash


class Watched(dict[int, Any]):
    """A dictionary of tasks or launches that reports each insertion and removal.

    It replaces the engine's own dictionary when the backlog is first queried; runs without a query are not slower.
    """

    def __init__(self, items: dict[int, Any], joins: Callable[[Any], None], leaves: Callable[[Any], None]):
        super().__init__(items)
        self._joins, self._leaves = joins, leaves  # after `super()`, which inserts the present items without reporting
        for item in items.values():
            joins(item)

    def __setitem__(self, key: int, item: Any) -> None:
        if key not in self:  # a replaced item was reported before
            self._joins(item)
        dict.__setitem__(self, key, item)

    def __delitem__(self, key: int) -> None:
        self._leaves(self[key])
        dict.__delitem__(self, key)

    def pop(self, key: int, *default: Any) -> Any:
        if key in self:
            self._leaves(self[key])
        return dict.pop(self, key, *default)


class Running:
    """Remaining seconds of the launches of one device type and class.

    `total` is the sum of the expected end times of compute-only launches; it needs no update as time passes.
    """

    __slots__ = ("ends", "total", "heap", "staged")

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.total = 0.0
        self.heap: list[tuple[float, int]] = []
        self.staged: dict[int, Any] = {}  # all other launches, by number

    def add(self, launch: Any) -> None:
        if launch.table is None and launch.terms is None and len(launch.tasks) == 1:
            self.ends[launch.number] = end = launch.decided + planned(launch)
            self.total += end  # the sum of ends: seconds left at any time by one subtraction
            heappush(self.heap, (end, launch.number))
        else:
            self.staged[launch.number] = launch

    def remove(self, number: int) -> None:
        if (end := self.ends.pop(number, None)) is not None:
            self.total = self.total - end if self.ends else 0.0  # exactly 0 when empty: rounding does not add up

    def seconds(self, now: float, remaining: Callable[[Any], float]) -> float:
        heap = self.heap
        while heap and (heap[0][0] <= now or heap[0][1] not in self.ends):  # overdue by its estimate, or over
            self.remove(heappop(heap)[1])
        plain = max(0.0, self.total - now * len(self.ends))  # of what is not overdue; rounding aside
        return plain + sum(remaining(launch) for launch in self.staged.values())


class Backlog:
    """Waiting and running work, by key (device type and class)."""

    def __init__(self, state: RunState, forecast: Forecast):
        self.state = state
        self.forecast = forecast
        self.waiting: dict[Key, list[Any]] = {}  # seconds and number of the tasks that wait
        self.running: dict[Key, Running] = {}
        state.waiting = Watched(state.waiting, self.waits, self.leaves)
        state.running = Watched(state.running, self.runs, self.ends)

    # What happens ---------------------------------------------------------------------------------------------

    def waits(self, task: Task) -> None:
        entry = self._entry(task)
        entry[0] += task.shortest_remaining  # it does not change while the task waits
        entry[1] += 1

    def leaves(self, task: Task) -> None:
        entry = self._entry(task)
        entry[1] -= 1
        # Exactly 0 when empty: rounding does not add up.
        entry[0] = entry[0] - task.shortest_remaining if entry[1] else 0.0

    def runs(self, launch: Any) -> None:
        if (terms := launch.terms) is None:
            first = launch.task.class_
        else:  # of a batch its first request's, which need not be an object
            table = self.state.tasks
            first = table.classes[0 if table.class_code is None else table.class_code[terms.rows[0]]]
        self.running.setdefault(key_of(launch.placement.mode.type, first), Running()).add(launch)

    def ends(self, launch: Any) -> None:
        for running in self.running.values():
            running.remove(launch.number)
            running.staged.pop(launch.number, None)

    def materialized(self, launch: Any) -> None:
        """Move a launch that has got a timetable to those that are queried one by one."""
        self.ends(launch)
        self.runs(launch)

    def _entry(self, task: Task) -> list[Any]:
        return self.waiting.setdefault(key_of(best_mode(task).type, task.class_), [0.0, 0])

    # Questions ------------------------------------------------------------------------------------------------

    def seconds(self, kind: str | None, class_: str | None, queues: Sequence[Any], residents: Iterable[Any]) -> float:
        """Return the work (s) of waiting tasks, launches and `residents`; None: no filter."""
        now, remaining = self.state.clock._now, self.forecast.remaining_of
        _, total = self._requests(kind, class_, queues)
        for key in matching(self.waiting, kind, class_):
            total += self.waiting[key][0]
        for key in matching(self.running, kind, class_):
            total += self.running[key].seconds(now, remaining)
        return total + math.fsum(
            self.forecast.remaining(task) for launch in residents for task in launch.tasks
            if matching([key_of(launch.placement.mode.type, task.class_)], kind, class_)
        )  # fmt: skip

    def count(self, kind: str | None, class_: str | None, queues: Sequence[Any]) -> int:
        requests, _ = self._requests(kind, class_, queues)
        return requests + sum(self.waiting[key][1] for key in matching(self.waiting, kind, class_))

    def _requests(self, kind: str | None, class_: str | None, queues: Sequence[Any]) -> tuple[int, float]:
        count, seconds = 0, []
        for queue in queues:
            if not len(queue):
                continue
            if queue.uniform:
                if wanted(queue.head, kind, class_):
                    count += len(queue)
                    seconds.append(len(queue) * queue.head.shortest_remaining)
                continue
            tasks = [task for task in queue.look() if wanted(task, kind, class_)]
            count += len(tasks)
            seconds += map(self.forecast.remaining, tasks)
        return count, math.fsum(seconds)


def best_mode(task: Task) -> Mode:
    """Return the fastest mode of a task."""
    return task.shape.modes[task.modes_by_speed()[0]]


def wanted(task: Task, kind: str | None, class_: str | None) -> bool:
    """Return True if a task's fastest device type and class are these (None: any)."""
    return bool(matching([key_of(best_mode(task).type, task.class_)], kind, class_))


def key_of(used: DeviceType, class_: str) -> Key:
    return used.kind, used.name, class_


def matching(keys: Iterable[Key], kind: str | None, class_: str | None) -> list[Key]:
    return [key for key in keys if (kind is None or kind in key[:2]) and class_ in (None, key[2])]
