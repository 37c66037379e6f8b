"""A task in flight: created when it arrives, dropped when it ends."""

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from hetsim.model.mode import Mode, Shape
from hetsim.model.tasks import Tasks

# not arrived or deferred, waiting for predecessors, waiting, running, over
FUTURE, BLOCKED, WAITING, RUNNING, ENDED = 0, 1, 2, 3, 4


class Task:
    """A task in flight, as seen by policies.

    Policies may read everything without a leading underscore.  `estimates[j]` is the estimated compute time in
    `shape.modes[j]` (only the engine knows true times).  `done` is the finished fraction of the estimated work, at most
    1; it changes when the task is stopped.
    """

    __slots__ = (
        "index", "arrival", "ready", "shape", "estimates", "_time", "_table", "state", "done", "_done", "_launch",
        "ticket", "memo", "allowed", "_history",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        arrival: float,
        shape: Shape,
        time: tuple[float, ...],
        estimates: tuple[float, ...],
        table: Tasks,
    ):
        self.index = index
        self.arrival = arrival
        self.ready = arrival
        self.shape = shape
        self._time = time
        self.estimates = estimates
        self._table = table
        self.state = WAITING
        self.done = 0.0
        self._done = 0.0  # the true fraction
        self._launch: Any = None
        self.ticket = 0  # number of its valid queue entry (hetsim.policy.queues)
        self.memo: Any = None  # a policy's own note on the task
        self.allowed: tuple[int, ...] | None = None  # positions of the modes that admission allows; None: all
        self._history: Any = None  # `History` of a task that was stopped (engine only)

    @staticmethod
    def fill_copies(tasks: "list[Task]", copies: "list[Task]", all_of: Callable[[list[Any]], list[Any]]) -> None:
        """Copy the fields of `tasks` to the empty `copies`; `all_of` copies a list."""
        launches, memos = all_of([task._launch for task in tasks]), all_of([task.memo for task in tasks])
        histories = all_of([task._history for task in tasks])
        for old, new, launch, memo, history in zip(tasks, copies, launches, memos, histories, strict=True):
            new.index, new.arrival, new.ready = old.index, old.arrival, old.ready
            new.shape, new._time, new.estimates = old.shape, old._time, old.estimates
            new._table, new.state, new.done = old._table, old.state, old.done
            new._done, new.ticket, new.allowed = old._done, old.ticket, old.allowed
            new._launch, new.memo, new._history = launch, memo, history

    @property
    def id(self) -> Any:
        return self._table.name(self.index)

    @property
    def modes(self) -> tuple[Mode, ...]:
        return self.shape.modes

    @property
    def class_(self) -> str:
        table = self._table
        return table.classes[0 if table.class_code is None else table.class_code[self.index]]

    @property
    def user(self) -> str:
        table = self._table
        return table.users[0 if table.user_code is None else table.user_code[self.index]]

    @property
    def client(self) -> str:  # routers of requests use this name and the next; an alias would not compile
        return self.user

    @property
    def row(self) -> int:
        return self.index

    @property
    def priority(self) -> float:
        """Priority of the task: higher is more urgent (default: 0)."""
        column = self._table.priority
        return 0.0 if column is None else float(column[self.index])

    @property
    def weight(self) -> float:
        column = self._table.weight
        return 1.0 if column is None else float(column[self.index])

    @property
    def deadline(self) -> float:
        """Deadline of the task as absolute time; inf without one."""
        column = self._table.deadline
        value = math.inf if column is None else float(column[self.index])
        return math.inf if value != value else value

    @property
    def expires(self) -> float:
        """Time at which patience ends if the task has not started; inf without patience."""
        column = self._table.expires
        return math.inf if column is None else float(column[self.index])

    @property
    def time_limit(self) -> float:
        """Maximum seconds that it may occupy its devices; inf without a limit."""
        column = self._table.time_limit
        return math.inf if column is None else float(column[self.index])

    @property
    def partition(self) -> str:
        """Name of the partition to which it is bound; empty if there is none."""
        table = self._table
        return table.partitions[0 if table.partition_code is None else table.partition_code[self.index]]

    def label(self, name: str) -> str:
        """Return a text label from the task's source, such as `account`; empty if none."""
        column = self._table.extra.get(name)
        value = None if column is None else column[self.index]
        return "" if value is None or value != value else str(value)

    @property
    def bytes_in(self) -> int:
        column = self._table.bytes_in
        return 0 if column is None else int(column[self.index])

    @property
    def bytes_out(self) -> int:
        column = self._table.bytes_out
        return 0 if column is None else int(column[self.index])

    @property
    def reads(self) -> tuple[int, ...]:
        """Indexes of the items that it reads."""
        column = self._table.reads
        return () if column is None else column[self.index]

    @property
    def writes(self) -> tuple[int, ...]:
        column = self._table.writes
        return () if column is None else column[self.index]

    def estimate_at(self, position: SupportsIndex) -> float:
        """Return the estimated seconds of the whole task in the mode at this position."""
        return self.estimates[position] + self.shape.modes[position].single

    def estimate_in(self, mode: Mode) -> float:
        """Return the estimated seconds of the whole task in one of its modes."""
        return self.estimates[self.shape.position[mode]] + mode.single

    def remaining_in(self, mode: Mode) -> float:
        """Return the estimated remaining seconds in a mode; at least 0."""
        return self.estimate_in(mode) * (1.0 - self.done)

    @property
    def shortest_estimate(self) -> float:
        """Estimated seconds of the whole task in its fastest mode."""
        modes = self.shape.modes
        if len(modes) == 1:
            return self.estimates[0] + modes[0].single
        return min(self.estimate_at(i) for i in (self.allowed or range(len(modes))))

    @property
    def shortest_remaining(self) -> float:
        """Estimated remaining seconds in its fastest mode; at least 0."""
        return self.shortest_estimate * (1.0 - self.done)

    def modes_by_speed(self) -> Sequence[int]:
        """Return the positions of its modes, fastest by estimate first; ties by position."""
        count = len(self.shape.modes)
        if count == 1:
            return (0,)
        return sorted(self.allowed or range(count), key=self.estimate_at)

    def fastest_modes(self) -> Sequence[Mode]:
        """Return the modes of the task, fastest by estimate first; ties by position."""
        modes = self.shape.modes
        return modes if len(modes) == 1 else [modes[position] for position in self.modes_by_speed()]

    def __repr__(self) -> str:
        return f"task {self.id}"
