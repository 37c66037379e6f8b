"""Clients that time out, give up, retry their calls, or hedge them.

A client sends a call as one attempt; after a failure it may retry, and while it waits it may send hedges (duplicate
attempts).  The first answer completes the call; when all attempts of a try have failed, the client retries or gives up.
In a chain of services the server of an attempt is itself a client: after its own work it calls the next stage, and it
answers when that call is answered.  Time-outs, planned hedges and ends of patience are in one heap of deadlines.
"""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.control.arrivals import Arrivals
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.kernel.clock import ARRIVAL, Later
from hetsim.model.clients import MAX_TOKENS, Calls, Cause
from hetsim.model.clients import Clients as Behavior
from hetsim.model.record import ABORTED, COMPLETED, FAILED, NOT_ARRIVED, UNFINISHED, Record
from hetsim.model.task import ENDED, FUTURE, WAITING, Task


@dataclass(eq=False)
class Clients:
    """The clients of all workload entries, and the requests that they await.

    A call is one or more attempts (requests).  Attributes by row of an attempt in the table of tasks: `awaited`, its
    task while the client waits; `left`, the time at which the client stopped waiting, or at which a call made by the
    attempt failed.  Attributes by row of a call's first attempt: `end`, the time at which the call was answered or
    given up; `hedges`, the row of the next duplicate (hedge) to send.  `tokens`: number of retries and hedges that each
    retry budget allows now; `silent`: True in a policy's copy of the run, where clients do nothing.
    """

    state: RunState
    signals: Signals
    arrivals: Arrivals
    calls: Calls
    forward: Callable[[Task], None]  # called with each task that has been sent

    def __post_init__(self) -> None:
        calls = self.calls
        self.clock = self.state.clock
        self.total = len(calls.whose)
        self.awaited: dict[int, Any] = {}  # None: a hedge that is sent together with the first attempt
        self.left = array("d", [math.nan]) * self.total
        self.end = array("d", [math.nan]) * self.total
        self.tokens: list[dict[int, float]] = [{} for _ in calls.clients]
        self.hedges: dict[int, int] = {}
        self.silent = False

    def _whose(self, row: int) -> int:
        return self.calls.whose.item(row) if row < self.total else -1

    def _timeout(self, row: int, clients: Behavior) -> float:
        drawn = self.calls.timeout
        return clients.timeout if drawn is None else drawn.item(row)

    def deliver(self, task: Task) -> None:
        """Send a task to its service; a client that sent it begins to wait for an answer."""
        row, calls, at_once = task.index, self.calls, list[int]()
        whose = self._whose(row)
        if whose >= 0:
            planned, self.awaited[row] = row in self.awaited, task
            clients, first = calls.clients[whose], calls.attempt_of.item(row)
            if first == row and clients.retry is not None and clients.retry.budget is not None:
                bucket, tokens = calls.bucket.item(row), self.tokens[whose]
                tokens[bucket] = min(MAX_TOKENS, tokens.get(bucket, 0.0) + clients.retry.budget)
            due = task.arrival + self._timeout(row, clients)
            if clients.give_up_after < math.inf:
                due = min(due, self.state.tasks.arrival.item(calls.root.item(row)) + clients.give_up_after)
            if due < math.inf:
                assert self.state.patience is not None
                self.state.patience.watch(row, due)
            if clients.hedge is not None and not planned:
                at_once = self._plan_hedges(row, first, clients)  # before it is sent: it may be refused
        self.forward(task)
        for hedge in at_once:
            self._send(hedge)

    def _plan_hedges(self, row: int, first: int, clients: Behavior) -> list[int]:
        """Plan the next hedge of an attempt; return the rows to send immediately."""
        calls, hedge, rows = self.calls, clients.hedge, list[int]()
        assert hedge is not None and self.state.patience is not None
        if hedge.after == 0:
            for _ in range(hedge.times):
                row = calls.following.item(row)
                if self._pays(row, clients):
                    rows.append(row)
            self.awaited.update(dict.fromkeys(rows))  # the call goes on if the first attempt is refused
            self.state.sources.thinking += len(rows)
        elif calls.number.item(row) % clients.copies < hedge.times:
            self.hedges[first] = following = calls.following.item(row)
            self.state.patience.watch(following, self.clock._now + hedge.after)
        return rows

    def _is_late(self, row: int, time: float, clients: Behavior) -> bool:
        return time >= self.state.tasks.arrival.item(self.calls.root.item(row)) + clients.give_up_after

    def _pays(self, row: int, clients: Behavior) -> bool:
        """Count a retry or hedge against the retry budget; return False if it is used up."""
        if clients.retry is None or clients.retry.budget is None:
            return True
        bucket, tokens = self.calls.bucket.item(row), self.tokens[self._whose(row)]
        if tokens[bucket] < 1.0 - 1e-9:
            return False
        tokens[bucket] -= 1.0
        return True

    def awaits(self, row: int) -> bool:
        """Return True if the deadline of `row` still counts (time-out, hedge or patience)."""
        if row in self.awaited:
            return True
        if self._whose(row) < 0:
            return self.arrivals.may_expire(row)
        return bool(self.hedges) and self.hedges.get(self.calls.attempt_of.item(row)) == row

    def due(self, row: int) -> None:
        """Handle an expired deadline: end of patience, planned hedge, or time-out."""
        whose = self._whose(row)
        if whose < 0:
            self.arrivals.expire(row)
        elif self.silent:
            return
        elif row in self.awaited:
            clients = self.calls.clients[whose]
            if clients.at_timeout == "stay" and not math.isnan(self.state.recorder.start[row]):
                return  # it has begun, even if it was stopped or waits for the next stage
            reason = f"timed out after {(timeout := self._timeout(row, clients)):g} s"
            if self.clock._now < self.state.tasks.arrival.item(row) + timeout:
                reason = f"its call was given up after {clients.give_up_after:g} s"
            task = self._leave(row, reason)
            self._lost(row, "timeout")  # before `_cancel`: the run is not over if the call is retried
            if clients.at_timeout != "leave":
                self._cancel(task, reason)
        else:
            del self.hedges[self.calls.attempt_of.item(row)]
            clients = self.calls.clients[whose]
            if not self._is_late(row, self.clock._now, clients) and self._pays(row, clients):
                self.state.sources.thinking += 1
                self._send(row)

    def _leave(self, row: int, reason: str) -> Task:
        self.left[row], self.state.recorder.reasons[row] = self.clock._now, reason
        task: Task = self.awaited.pop(row)
        return task

    def _in_progress(self, row: int) -> list[int]:
        """Return the awaited attempts of a call, from its attempt `row` on."""
        rows = []
        while row >= 0:
            if row in self.awaited:
                rows.append(row)
            row = self.calls.following.item(row)
        return rows

    def _cancel(self, task: Task, reason: str) -> None:
        launch, fleet, state = task._launch, self.state.serving.fleets.get(task.shape), task.state
        if state == FUTURE or (state == WAITING and fleet is None):
            self.state.deferred -= state == FUTURE
            self.signals.task_ended(task, ABORTED, reason)
        elif state == ENDED:
            self._abandon(task.index, reason)
        elif fleet is not None:
            fleet.abort(task)
        elif launch is not None and launch.terms is None and launch.count == 1 and task.shape.preemptible:
            self.signals.kill(launch, reason, ABORTED)  # a batched or non-preemptible attempt continues

    def _abandon(self, row: int, reason: str) -> None:
        """Cancel all attempts of the call that attempt `row` made to the next service."""
        calls = self.calls
        one = -1 if calls.child is None else calls.child.item(row)
        if one < 0 or not math.isnan(self.end[one]):
            return
        self.end[one] = self.clock._now  # `_send` then skips the attempts of this call
        self.hedges.pop(one, None)
        for attempt in self._in_progress(one):
            self._cancel(self._leave(attempt, reason), reason)

    def ended(self, task: Task, status: int) -> None:
        """Handle the end of a task at its server, which may call the next stage."""
        row, calls = task.index, self.calls
        if calls.child is not None and status == COMPLETED and not self.silent and row < self.total:
            child, is_left = calls.child.item(row), not math.isnan(self.left[row])
            if child >= 0 and not (is_left and calls.clients[self._whose(row)].at_timeout != "leave"):
                self.state.sources.thinking += 1
                self.clock.at(self.clock._now, ARRIVAL, Later(self._send, child))  # as an event: a launch is ending
                return
        self._over(row, status)

    def _over(self, row: int, status: int) -> None:
        if self.awaited.pop(row, None) is None:
            if self._whose(row) < 0:
                self.state.sources.answered(row)
        elif status == COMPLETED:
            self._close(row, True)
        else:
            self._lost(row, "failed" if status == FAILED else "rejected")

    def _lost(self, row: int, cause: Cause) -> None:
        """Handle a failed attempt: wait for its hedges, retry, or give up the call."""
        calls, first, following = self.calls, self.calls.attempt_of.item(row), row
        clients = calls.clients[self._whose(row)]
        if clients.hedge is not None:
            if self._in_progress(first):
                return
            self.hedges.pop(first, None)
        tries, copy = divmod(calls.number.item(row), clients.copies)
        for _ in range(clients.copies - copy):  # over hedges that were never sent
            following = calls.following.item(following)
        retry = clients.retry
        if retry is None or following < 0 or cause not in retry.on or self.silent:
            self._close(row, False)
            return
        time = self.clock._now + retry.wait.seconds(tries, calls.drawn.item(following))
        if self._is_late(row, time, clients) or not self._pays(row, clients):  # at the decision
            self._close(row, False)
            return
        self.state.sources.thinking += 1  # the run is not over before the retry is sent
        self.clock.at(time, ARRIVAL, Later(self._send, following))

    def _send(self, row: int) -> None:
        state, calls = self.state, self.calls
        if calls.child is not None and not math.isnan(self.end[calls.attempt_of.item(row)]):
            state.sources.thinking -= 1  # the attempt that made this call has been canceled meanwhile
            self.arrivals.rounds.look_whether_drained()
            return
        deadline = state.tasks.deadline
        if deadline is not None:
            deadline[row] = deadline[calls.root.item(row)]
        state.sources.send(row, self.clock._now)

    def _close(self, row: int, answered: bool) -> None:
        state, calls, first = self.state, self.calls, self.calls.attempt_of.item(row)
        self.end[first] = self.clock._now
        self.hedges.pop(first, None)
        clients, reason = calls.clients[self._whose(row)], "another attempt of its call was answered"
        for rival in self._in_progress(first) if clients.hedge is not None else ():
            task = self._leave(rival, reason)
            if clients.at_timeout != "leave" and not self.silent:  # as an event: the end of a launch is under way
                self.clock.at(self.clock._now, ARRIVAL, Later(self._cancel, task, reason))
        shape, other = state.tasks.shapes[state.tasks.shape.item(row)], first
        service = state.queue_of.get(shape, state.serving.fleets.get(shape))
        while service is not None and (other := calls.following.item(other)) >= 0:
            if state.recorder.status[other] == NOT_ARRIVED:
                service.never()  # attempts that will not be made
        if calls.parent is not None and (parent := calls.parent.item(first)) >= 0:
            if not answered and math.isnan(self.left[parent]):
                self.left[parent] = self.clock._now
                state.recorder.reasons[parent] = "the call that it made was given up"
            self._over(parent, COMPLETED if answered else FAILED)
        else:
            state.sources.answered(first)

    def write(self, record: Record) -> None:
        """Add the columns of calls to the record, and mark abandoned attempts as aborted."""
        left_at, status, calls = np.array(self.left), record.status, self.calls
        in_vain = ~np.isnan(left_at)
        if record.first_token is not None:
            record.first_token[record.first_token > left_at] = math.nan  # the client had left before the first token
        if calls.parent is not None:
            by = np.where(calls.attempt_of < 0, -1, calls.parent[calls.attempt_of])
            while (further := (by >= 0) & in_vain[by] & ~in_vain).any():
                in_vain |= further  # a call made for an abandoned attempt is wasted too
            for row in np.flatnonzero(in_vain & np.isin(status, (UNFINISHED, COMPLETED))).tolist():
                record.reasons.setdefault(row, "the client of its call has left")
        status[in_vain & (status == COMPLETED)] = ABORTED
        record.attempt_of, record.call_end = calls.root, np.array(self.end)
