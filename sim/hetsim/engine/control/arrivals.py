"""Arrivals of tasks: admission, then waiting for predecessors or for a device."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.control.completion import Completion
from hetsim.engine.control.waiting import Waiting
from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, lost_input
from hetsim.engine.kernel.clock import ARRIVAL, Later
from hetsim.engine.language.llm_service import Serving
from hetsim.engine.views.view import EngineView
from hetsim.model.record import EXPIRED, FAILED, REJECTED
from hetsim.model.task import BLOCKED, ENDED, FUTURE, Task
from hetsim.policy.decisions import Accept, Defer, Reject, as_number


@dataclass(eq=False)
class Arrivals:
    """Handles a task from its arrival until it waits for a device."""

    state: RunState
    rounds: Rounds
    waiting: Waiting
    completion: Completion
    serving: Serving
    view: EngineView

    def __post_init__(self) -> None:
        state = self.state
        self._refused = state.tasks.refused
        asked = state.input.admission
        self._ask: Any = None if asked is None else asked.admit
        # `WholeRequests` if requests of several tasks are admitted as one, else None
        self._whole: Any = self.completion.whole

    def admit(self, task: Task) -> None:
        """Query the admission policy; a task that it accepts then waits until it can run."""
        state = self.state
        if self._refused and task.index in self._refused:
            self.completion.end_task(task, REJECTED, self._refused[task.index])
            return
        if self._whole is not None and self._whole.first[task.index] != task.index:
            self._follow(task)
            return
        if self._ask is not None:
            if self._whole is not None:
                self._whole.begun(task)  # before the query: the answer may end the task at once
            answer = call(state, self._ask, task, self.view)
            if isinstance(answer, Accept):
                if answer.modes is not None:
                    self._redirect(task, answer.modes)
            elif isinstance(answer, Reject):
                self.completion.end_task(task, EXPIRED if answer.expired else REJECTED, str(answer.reason))
                return
            elif isinstance(answer, Defer):
                self._defer(task, answer.until)
                return
            else:
                what = f"must answer Accept, Reject or Defer for {task} in admission; got {answer!r}"
                raise illegal(state, what)
        self._admitted(task)

    def _follow(self, task: Task) -> None:
        """Apply the admission decision on a request's first task to a later task."""
        if (deferred := self._whole.deferred.get(self._whole.first[task.index])) is not None:
            task.state = FUTURE
            self.state.deferred += 1
            deferred.append(task)
            return
        recorder, row = self.state.recorder, self._whole.first[task.index]
        if recorder.status[row] in (REJECTED, EXPIRED):  # refused earlier, or while it was deferred
            self.completion.end_task(task, recorder.status[row], recorder.reasons[row])
        else:
            self._admitted(task)

    def _admitted(self, task: Task) -> None:
        state = self.state
        if state.patience is not None:
            state.patience.watch(task.index, task.expires)
        if state.lost_items and (lost := lost_input(state, task)) is not None:
            self.completion.end_task(task, FAILED, f"its input {lost} was lost in a failure")
            return
        waits_for = state.graph.missing
        if waits_for and (missing := waits_for.get(task.index, 0)):
            task.state = BLOCKED
            if missing < 0:  # as `Graph.failed` sets it
                self.completion.end_task(task, FAILED, "a predecessor did not finish")
            else:
                state.graph.blocked[task.index] = task
            return
        self.waiting.make_ready(task)

    def _defer(self, task: Task, given: Any) -> None:
        if (until := as_number(given)) is None or not self.state.clock._now < until < math.inf:
            raise illegal(self.state, f"must defer {task} to a later, finite time; got t = {given} s")
        task.state = FUTURE
        self.state.deferred += 1
        if self._whole is not None and self._whole.size[task.index] > 1:
            self._whole.deferred.setdefault(task.index, [])
        self.state.clock.at(until, ARRIVAL, Later(self._ask_again, task))

    def _ask_again(self, task: Task) -> None:
        if task.state == ENDED:  # its client has left
            return
        self.state.deferred -= 1
        deferred = None if self._whole is None else self._whole.deferred.pop(task.index, None)
        self.admit(task)
        if deferred:
            if task.index in self._whole.deferred:  # deferred again
                self._whole.deferred[task.index] = deferred
            else:
                for one in deferred:
                    self.state.deferred -= 1
                    self._follow(one)
        self.rounds.wake()  # it may be the head of a queue in order of arrival

    def _redirect(self, task: Task, given: Any) -> None:
        to, count = f"redirects {task} to modes {given!r} in admission", len(task.shape.modes)
        positions = tuple([as_number(one, int) for one in given] if isinstance(given, Iterable) else ())
        if not positions or not all(one is not None and 0 <= one < count for one in positions):
            raise illegal(self.state, f"{to}, which the task does not have; it has the modes {(*range(count),)}")
        if task.shape in self.state.queue_of or task.shape in self.serving.fleets:
            what = "but requests cannot be redirected: all of a batch run in one mode"
            raise illegal(self.state, f"{to}, {what}; answer Accept() or Reject")
        task.allowed = positions  # `Starts` refuses any other mode from now on

    def expect_expiry(self) -> None:
        """Register when the patience of requests ends, if their arrivals cause no events."""
        tasks, deadlines = self.state.tasks, self.state.patience
        ends = [(one.service.rows, one.column.times) for one in self.state.queues if one.column is not None]
        if ends and deadlines is not None and tasks.expires is not None:
            rows, there = (np.concatenate(columns) for columns in zip(*ends, strict=True))
            deadlines.expect(rows, np.maximum(tasks.expires[rows], there))

    def may_expire(self, row: int) -> bool:
        """Return True if the task may still be waiting when its patience ends."""
        queues, tasks = self.state.queues, self.state.tasks
        if queues and queues[0].total == len(tasks):  # the run has only requests of this queue
            return bool(queues[0].may_wait(row))
        queue = self.state.queue_of.get(tasks.shapes[tasks.shape.item(row)])
        return queue is None or queue.may_wait(row)

    def expire(self, row: int) -> None:
        """End a task whose patience is over, unless it has started or is deferred."""
        state = self.state
        task = state.waiting.get(row) or state.graph.blocked.get(row) or self.serving.waiting(row)
        if task is None and state.queues:
            queue = state.queue_of.get(state.tasks.shapes[state.tasks.shape[row]])
            if queue is not None and queue.waits(row):
                task = queue.at(row)
        if task is not None and task._history is None:
            self.completion.end_task(task, EXPIRED, "patience ended")
