"""Clients: they time out, give up, and send their calls again.

Time-outs stand in the run's one heap of deadlines, next to those of patience.  An attempt that ends badly ends the
call, or leads to the next attempt.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetsim.engine.control.arrivals import Arrivals
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.kernel.clock import ARRIVAL, Later
from hetsim.model.clients import MAX_TOKENS, Calls, Cause
from hetsim.model.record import ABORTED, COMPLETED, FAILED, Record
from hetsim.model.task import FUTURE, RUNNING, WAITING, Task


@dataclass(eq=False)
class Clients:
    """The clients of all entries: which attempts they await, and what they do next.

    `awaited`: attempts for which a client waits, by row; `is_left`: those that were left; `end`: when a call was
    answered or given up, by its first row; `tokens`: retries that each budget allows by now; `silent`: they no longer
    do anything, as in what a policy imagines.
    """

    state: RunState
    signals: Signals
    arrivals: Arrivals
    calls: Calls
    forward: Callable[[Task], None]
    """Where a task goes that has been sent."""

    def __post_init__(self) -> None:
        calls = self.calls
        self.clock = self.state.clock
        self.total = len(calls.whose)
        self.awaited: dict[int, Task] = {}
        self.is_left = bytearray(self.total)
        self.end = array("d", [math.nan]) * self.total
        self.tokens: list[dict[int, float]] = [{} for _ in calls.clients]
        self.silent = False

    def _whose(self, row: int) -> int:
        return self.calls.whose.item(row) if row < self.total else -1

    def deliver(self, task: Task) -> None:
        """Deliver a task; if it is an attempt, its client waits from now on."""
        row, calls = task.index, self.calls
        whose = self._whose(row)
        if whose >= 0:
            self.awaited[row] = task
            clients, first = calls.clients[whose], calls.attempt_of.item(row)
            if first == row and clients.retry is not None and clients.retry.budget is not None:
                bucket, tokens = calls.bucket.item(row), self.tokens[whose]
                tokens[bucket] = min(MAX_TOKENS, tokens.get(bucket, 0.0) + clients.retry.budget)
            called = self.state.tasks.arrival.item(first)
            due = min(task.arrival + clients.timeout, called + clients.give_up_after)
            if due < math.inf:
                assert self.state.patience is not None
                self.state.patience.watch(row, due)
        self.forward(task)

    def awaits(self, row: int) -> bool:
        """Return True if a deadline of this row is still to be watched."""
        return row in self.awaited or (self._whose(row) < 0 and self.arrivals.may_expire(row))

    def due(self, row: int) -> None:
        """Handle a deadline that has come: patience, or the time-out of an attempt."""
        whose = self._whose(row)
        if whose < 0:
            self.arrivals.expire(row)
        elif not self.silent:
            task, self.is_left[row] = self.awaited.pop(row), 1
            clients, recorder = self.calls.clients[whose], self.state.recorder
            recorder.reasons[row] = reason = f"timed out after {clients.timeout:g} s"
            if self.clock._now < self.state.tasks.arrival.item(row) + clients.timeout:
                recorder.reasons[row] = reason = f"its call was given up after {clients.give_up_after:g} s"
            self._go_on(row, "timeout")  # first: the run is not over if it is sent again
            if clients.at_timeout != "cancel":
                return
            launch = task._launch
            alone = launch is not None and launch.terms is None and launch.count == 1
            if task.state in (WAITING, FUTURE):
                self.state.deferred -= task.state == FUTURE
                self.signals.task_ended(task, ABORTED, reason)
            elif task.state == RUNNING and alone and task.shape.preemptible:  # else it is served with its batch
                self.signals.kill(launch, reason, ABORTED)

    def ended(self, task: Task, status: int) -> None:
        """Handle the end of a task at the server."""
        row = task.index
        if self._whose(row) < 0:
            self.state.sources.answered(row)
        elif self.awaited.pop(row, None) is not None:
            if status == COMPLETED:
                self._close(row)
            else:
                self._go_on(row, "failed" if status == FAILED else "rejected")

    def _go_on(self, row: int, cause: Cause) -> None:
        """After an attempt that ended badly: send the next one later, or end the call."""
        calls, state, now = self.calls, self.state, self.clock._now
        whose, following = self._whose(row), calls.following.item(row)
        clients = calls.clients[whose]
        retry = clients.retry
        if retry is None or following < 0 or cause not in retry.on or self.silent:
            self._close(row)
            return
        bucket, tokens = calls.bucket.item(row), self.tokens[whose]
        time = now + retry.wait.seconds(calls.number.item(row), calls.drawn.item(following))
        late = time >= state.tasks.arrival.item(calls.attempt_of.item(row)) + clients.give_up_after
        if late or (retry.budget is not None and tokens[bucket] < 1.0 - 1e-9):
            self._close(row)
            return
        if retry.budget is not None:
            tokens[bucket] -= 1.0  # paid as it is decided, not as it is sent
        state.sources.thinking += 1  # the run goes on until it has sent
        self.clock.at(time, ARRIVAL, Later(self._send, following))

    def _send(self, row: int) -> None:
        deadline = self.state.tasks.deadline
        if deadline is not None:
            deadline[row] = deadline[self.calls.attempt_of.item(row)]
        self.state.sources.send(row, self.clock._now)

    def _close(self, row: int) -> None:
        """A call is over: answered by this attempt, or given up after it."""
        state, first = self.state, self.calls.attempt_of.item(row)
        self.end[first] = self.clock._now
        queue = state.queue_of.get(state.tasks.shapes[state.tasks.shape.item(row)]) if state.queues else None
        while queue is not None and (row := self.calls.following.item(row)) >= 0:
            queue.never()  # attempts that will not be made
        if state.sources.closed:
            state.sources.answered(first)

    def write(self, record: Record) -> None:
        """Complete a record: work for clients that had left counts as aborted."""
        is_left = np.frombuffer(self.is_left, bool)
        record.status[is_left & (record.status == COMPLETED)] = ABORTED
        record.attempt_of, record.call_end = self.calls.attempt_of, np.array(self.end)
