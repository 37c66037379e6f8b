"""Sources of tasks: open arrival streams, and closed loops of clients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetsim.engine.kernel.clock import ARRIVAL, Clock, Draws, Later, Timer
from hetsim.model.mode import Shape
from hetsim.model.record import NOT_ARRIVED, UNFINISHED, RunInput
from hetsim.model.task import Task

BLOCK = 4096  # number of tasks read from the columns at once

THINK_BLOCK = 256  # number of think times drawn at once


def with_own_columns(run: RunInput) -> RunInput:
    """Return the run with own copies of the columns that its simulated clients change."""
    if not run.closed and run.calls is None:
        return run
    columns = {name: getattr(run.tasks, name) for name in ("arrival", "deadline", "expires")}
    own: dict[str, Any] = {name: column.copy() for name, column in columns.items() if column is not None}
    return replace(run, tasks=replace(run.tasks, **own))


class Sources(Timer):
    """Delivers tasks at their arrival times.

    The open streams are one sequence of rows.  The clock knows only the next arrival, and stores it outside its heap,
    since pushing all arrivals to the heap would take four times as long.  Task objects are created from columns, a
    block at a time.
    """

    def __init__(
        self, run: RunInput, clock: Clock, status: Any, deliver: Callable[[Task], None],
        progress: Callable[[float, int, int], None] | None, each_block: Callable[[], None],
        absent: Sequence[np.ndarray] = (),
    ):  # fmt: skip
        """Create the sources; they deliver all tasks except the rows in `absent`."""
        super().__init__(self._arrive)
        self.run = run
        self.tasks = run.tasks
        self.clock = clock
        self.status = status
        self.deliver = deliver
        self.progress = progress
        self.each_block = each_block
        # Rows that a client has not sent yet stand last, with arrival inf.
        late = bool(run.closed) or run.calls is not None
        self._last = int((run.tasks.arrival < math.inf).sum()) if late else len(run.tasks)
        self._delivered: np.ndarray | None = None  # rows that are delivered, if not all are
        if absent:
            there: np.ndarray = np.ones(self._last, dtype=bool)
            there[np.concatenate(absent)] = False
            self._delivered = np.flatnonzero(there)
            self._last = len(self._delivered)
        self.thinking = 0  # clients that will send: in closed loops, or a retry
        self._stream_of: dict[int, int] = {}
        self._sent: list[int] = []
        self._think: list[Draws] = []
        self._surplus: list[int] = []  # by closed loop, the number of clients that leave when they have their answer
        for number, stream in enumerate(run.closed):
            self._stream_of.update(dict.fromkeys(stream.rows.tolist(), number))
            self._sent.append(stream.clients[0][1])
            self._surplus.append(0)
            self._change(number, 0)
            self._think.append(Draws(stream.think, run.random.stream("think", stream.name), THINK_BLOCK))
        # of the next tasks to arrive, from `_at` on
        self._rows: list[int] = []
        self._arrivals: list[float] = []
        self._shapes: list[Shape] = []
        self._times: list[tuple[float, ...]] = []
        self._estimates: list[tuple[float, ...]] = []
        # `_base`, `_at`: number of rows before the block, and in it, that have arrived; `_noted`: rows with a status
        self._base = self._at = self._noted = 0
        if self._last:
            self._load_block(0)

    @property
    def to_come(self) -> int:
        """Number of tasks still to arrive, including the next tasks of thinking clients."""
        return self._last - self._base - self._at + self.thinking

    def end_now(self) -> None:
        self._last, self.thinking = self._base + self._at, 0
        self.clock.feed_time = math.inf
        self._sent = [len(stream.rows) for stream in self.run.closed]

    def begin_at(self, row: int) -> None:
        """Continue with the extended table `run.tasks`: deliver its tasks from `row` on."""
        self.note_arrived()
        self.tasks = self.run.tasks
        self._delivered, self._noted = None, row
        self._last = len(self.tasks)
        self.thinking = 0
        self._load_block(row)

    def _load_block(self, first: int) -> None:
        tasks, stop = self.tasks, min(first + BLOCK, self._last)
        rows: Any = slice(first, stop) if self._delivered is None else self._delivered[first:stop]
        self._base, self._at = first, 0
        self._rows = list(range(first, stop)) if self._delivered is None else rows.tolist()
        self._arrivals = tasks.arrival[rows].tolist()
        self._shapes = list(map(tasks.shapes.__getitem__, tasks.shape[rows].tolist()))
        self._times = times = list(zip(*tasks.time[rows].T.tolist(), strict=True))  # policies cannot write to tuples
        same = tasks.estimate is tasks.time
        self._estimates = times if same else list(zip(*tasks.estimate[rows].T.tolist(), strict=True))
        self.clock.feed, self.clock.feed_time = self, self._arrivals[0]
        self.each_block()
        if self.progress is not None:
            self.progress(self.clock._now, first, len(tasks))

    def note_arrived(self) -> None:
        """Mark arrived tasks as unfinished; only checks and the end of the run need this."""
        first, stop = self._noted, self._base + self._at
        rows: Any = slice(first, stop) if self._delivered is None else self._delivered[first:stop]
        status = np.frombuffer(self.status, dtype=self.status.format)
        status[rows] = np.where(status[rows] == NOT_ARRIVED, UNFINISHED, status[rows])
        self._noted = stop  # rows up to here have their status, whatever became of them

    def _arrive(self, _: Timer) -> None:
        at, arrivals = self._at, self._arrivals
        task = Task(self._rows[at], arrivals[at], self._shapes[at], self._times[at], self._estimates[at], self.tasks)
        self._at = at = at + 1
        if at < len(arrivals):
            self.clock.feed_time = arrivals[at]
        elif self._base + at < self._last:
            self._load_block(self._base + at)
        else:
            self.clock.feed_time = math.inf
        deliver = self.deliver  # after the next arrival is set: what is delivered may look at the clock
        deliver(task)

    # Closed loops -------------------------------------------------------------------------------------------

    def answered(self, row: int) -> None:
        """Handle the end of a closed loop's task or call: its client thinks, or leaves."""
        if (number := self._stream_of.get(row)) is None:
            return
        if self._surplus[number]:
            self._surplus[number] -= 1  # this client leaves
        else:
            self._send_next(number)

    def _change(self, number: int, position: int) -> None:
        """Change a loop's number of clients: new ones think, surplus ones leave later."""
        clients = self.run.closed[number].clients
        self._surplus[number] += clients[max(position - 1, 0)][1] - clients[position][1]
        while self._surplus[number] < 0:
            self._surplus[number] += 1
            self._send_next(number)
        if position + 1 < len(clients):
            self.clock.at(clients[position + 1][0], ARRIVAL, Later(self._change, number, position + 1))

    def _send_next(self, number: int) -> None:
        if self._sent[number] >= len(self.run.closed[number].rows):
            return
        if (time := self.clock._now + self._think[number]()) >= self.run.horizon:
            return
        position = self._sent[number]
        self._sent[number] = position + 1
        self.thinking += 1  # the run is not over: it will send
        self.clock.at(time, ARRIVAL, Later(self._send, number, position, time))

    def _send(self, number: int, position: int, time: float) -> None:
        stream = self.run.closed[number]
        row = int(stream.rows[position])
        tasks = self.tasks
        if stream.deadline is not None and tasks.deadline is not None:
            tasks.deadline[row] = time + stream.deadline[position]
        if stream.patience is not None and tasks.expires is not None:
            tasks.expires[row] = time + stream.patience[position]
        self.send(row, time)

    def send(self, row: int, time: float) -> None:
        """Send a task of a client at `time`, after thinking or the wait before a retry."""
        tasks = self.tasks
        tasks.arrival[row] = time
        times = tuple(tasks.time[row].tolist())
        estimates = times if tasks.estimate is tasks.time else tuple(tasks.estimate[row].tolist())
        self.thinking -= 1
        self.status[row] = UNFINISHED
        self.deliver(Task(row, time, tasks.shapes[int(tasks.shape[row])], times, estimates, tasks))


class Graph:
    """Precedence among tasks: number of unfinished predecessors, and successors."""

    def __init__(self, predecessors: Sequence[tuple[int, ...]]):
        # unfinished predecessors by row of a task; -1: one of them did not finish
        self.missing = {row: len(before) for row, before in enumerate(predecessors) if before}
        self.successors: dict[int, list[int]] = {}
        for row, before in enumerate(predecessors):
            for predecessor in before:
                self.successors.setdefault(predecessor, []).append(row)
        self.ready: dict[int, float] = {}  # when the last predecessor finished, of tasks that have none left
        self.blocked: dict[int, Task] = {}  # arrived tasks that wait for predecessors, by row

    def completed(self, row: int, now: float) -> list[Task]:
        """Return the arrived tasks that become ready because the task `row` completed."""
        freed = []
        for successor in self.successors.get(row, ()):
            if self.missing[successor] > 0:
                self.missing[successor] -= 1
                if not self.missing[successor]:
                    self.ready[successor] = now
                    if successor in self.blocked:
                        freed.append(self.blocked.pop(successor))
        return freed

    def failed(self, row: int) -> list[Task]:
        """Return the waiting successors of a failed task; later ones will fail on arrival."""
        doomed = []
        for successor in self.successors.get(row, ()):
            self.missing[successor] = -1  # final: its count is not used any more
            if successor in self.blocked:
                doomed.append(self.blocked.pop(successor))
        return doomed
