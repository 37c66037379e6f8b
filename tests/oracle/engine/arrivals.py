"""Arrivals: admission, waiting for predecessors or a device, and the way of a request to its node and back."""

from __future__ import annotations

import math
from collections.abc import Callable

from oracle.engine.clock import ARRIVAL, FINISH, Timer
from oracle.engine.complaints import raised
from oracle.engine.requests import Taskwise
from oracle.engine.state import State
from sim.errors import HetsimError
from sim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED
from sim.model.tasks import BLOCKED, FUTURE, RUNNING, WAITING, Task
from sim.policy.contract import Accept, Defer, Reject


class Arrivals(State):
    """From its arrival until a task waits for a device."""

    def _admit(self, task: Task) -> None:
        """Ask the admission policy, then let the task wait for its predecessors or for a device."""
        if self._refused and task.index in self._refused:
            self.end_task(task, REJECTED, self._refused[task.index])
            return
        if self._ask is not None:
            try:
                answer = self._ask(task, self.view)
            except HetsimError:
                raise
            except Exception as error:
                raise raised(self, error, "admit") from error
            if isinstance(answer, Accept):
                if answer.modes is not None:
                    self._redirect(task, answer.modes)
            elif isinstance(answer, Reject):
                self.end_task(task, EXPIRED if answer.expired else REJECTED, str(answer.reason))
                return
            elif isinstance(answer, Defer):
                self._defer(task, answer.until)
                return
            else:
                raise self.illegal(f"admission answered {answer!r} for {task}; Accept, Reject or Defer is expected")
        if self.patience is not None and task.expires < math.inf:
            self.patience.watch(task)
        if self.devices.lost_items:
            lost = self.devices.lost_input(task)
            if lost is not None:
                self.end_task(task, FAILED, f"its input {lost} was lost in a failure")
                return
        graph = self.graph
        if graph is not None and graph.missing[task.index]:
            task.state = BLOCKED
            if graph.doomed(task.index):
                self.end_task(task, FAILED, "a predecessor did not finish")
            else:
                graph.blocked[task.index] = task
            return
        self._make_ready(task)

    def _make_ready(self, task: Task) -> None:
        task.state = WAITING
        ready = self._ready
        if ready is not None and ready[task.index] != ready[task.index]:
            # The arrival or the last predecessor's finish, not the time of admission: deferral is waiting.
            last = -math.inf if self.graph is None else self.graph.ready.pop(task.index, -math.inf)
            ready[task.index] = task.ready = max(task.arrival, last)
        if self.serving is not None and task.shape in self.serving.fleets:
            self.serving.arrived(task)
            return
        self.waiting[task.index] = task
        if self._on_ready is not None:
            try:
                self._on_ready(task)
            except HetsimError:
                raise
            except Exception as error:
                raise raised(self, error, "ready") from error
        if self._wake_on != "release":
            self.clock.round_due = True

    def _join_queue(self, task: Task) -> None:
        """A task that waits goes to its service's queue, or to the scheduler."""
        queue = self._queue_of.get(task.shape)
        if queue is None:
            self.scheduler.ready(task)
            return
        assert isinstance(queue, Taskwise)
        if queue.cache is not None and queue.cache.holds(queue.input_of(task)):
            self._answer(task, queue)
            return
        if queue.service.request_delay and task._history is None:
            self._travel(task, queue.service.request_delay, lambda: self._arrive(task, queue))
            return
        self._arrive(task, queue)

    def _travel(self, task: Task, seconds: float, then: Callable[[], None]) -> None:
        """A request, or its response, is on its way between the front end and the node."""
        self.waiting.pop(task.index, None)
        task.state = FUTURE
        self.deferred += 1

        def there(_: Timer) -> None:
            self.deferred -= 1
            then()

        self.clock.at(self.clock._now + seconds, ARRIVAL, Timer(there))

    def _arrive(self, task: Task, queue: Taskwise) -> None:
        """A request is at the node that may serve it."""
        task.state = WAITING
        self.waiting[task.index] = task
        if task.expires <= self.clock._now:
            self.end_task(task, EXPIRED, "patience ended")
            return
        queue.push(task)
        if queue.wanted and (len(queue) >= queue.wanted or queue.over):
            self.clock.round_due = True

    def _answer(self, task: Task, queue: Taskwise) -> None:
        """The result of a request is in the cache: it needs no device."""
        assert queue.service.cache is not None
        queue.never()
        del self.waiting[task.index]
        task.state = RUNNING
        self.deferred += 1  # neither waiting nor in a launch, and yet to end
        self._starts[task.index] = self.clock._now
        self.clock.at(self.clock._now + queue.service.cache.hit, FINISH, Timer(lambda _: self._answered(task)))

    def _answered(self, task: Task) -> None:
        self.deferred -= 1
        row, now = task.index, self.clock._now
        self._finishes[row] = now
        self._status[row] = COMPLETED
        self.recorder.detail("compute")[row] = now - self._starts[row]
        self.recorder.detail("upload"), self.recorder.detail("download")
        self._completed(task)

    def _defer(self, task: Task, until: float) -> None:
        """Not yet: ask again.  A deferred task does not count as progress, or waiting for it could never end."""
        if not self.clock._now < until < math.inf:
            raise self.illegal(f"admission defers {task} until t = {until:g} s; a later, finite time is expected")
        task.state = FUTURE
        self.deferred += 1

        def ask_again(timer: Timer) -> None:
            self.deferred -= 1
            self._admit(task)
            self._woken(timer)  # it may be the head of a queue in order of arrival

        self.clock.at(until, ARRIVAL, Timer(ask_again))

    def _redirect(self, task: Task, positions: tuple[int, ...]) -> None:
        if not positions or any(not 0 <= p < len(task.shape.modes) for p in positions):
            raise self.illegal(f"admission redirects {task} to modes {positions}, which it does not have")
        if task.shape in self._queue_of or (self.serving is not None and task.shape in self.serving.fleets):
            what = "but it is a request, and all requests of a batch run in one mode"
            raise self.illegal(f"admission redirects {task} to modes {positions}, {what}; answer Accept() or Reject")
        task.allowed = positions

    def _expire(self, row: int) -> None:
        """Patience has ended: the task goes unless it has started (or is deferred, and not yet here)."""
        task = self.waiting.get(row)
        if task is None and self.graph is not None:
            task = self.graph.blocked.get(row)
        if task is None and self.serving is not None:
            task = self.serving.waiting(row)
        if task is not None and task._history is None:
            self.end_task(task, EXPIRED, "patience ended")
