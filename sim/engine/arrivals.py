"""Arrivals: admission, waiting for predecessors or a device, and the way of a request to its node and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sim.engine.clock import ARRIVAL, FINISH, Later
from sim.engine.complaints import raised
from sim.engine.state import State
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
        if self.patience is not None:
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
            self._come_to_replicas(task)
            return
        self.waiting[task.index] = task
        if self._on_ready is not None:
            try:
                self._on_ready(task)
            except HetsimError:
                raise
            except Exception as error:
                raise raised(self, error, "ready") from error
        on = self._wake_on
        if on == "release" or (
            on == "fit" and self.clock._now <= self._certain and not self.capacity.has_room(task.shape.modes)
        ):
            return
        self.clock.round_due = True

    def _join_queue(self, task: Task) -> None:
        """A task that waits goes to its service's queue, or to the scheduler."""
        queue = self._queue_of.get(task.shape)
        if queue is None:
            self.scheduler.ready(task)
            return
        if queue.cache is not None and queue.cache.holds(queue.input_of(task)):
            self._answer(task, queue)
            return
        if queue.service.request_delay and task._history is None:
            self._travel(task, queue.service.request_delay, self._arrive, task, queue)
            return
        self._arrive(task, queue)

    def _travel(self, task: Task, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        """A request, or its response, is on its way between the front end and the node."""
        self.waiting.pop(task.index, None)
        task.state = FUTURE
        self.deferred += 1
        self.clock.at(self.clock._now + seconds, ARRIVAL, Later(self._there, then, arguments))

    def _there(self, then: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.deferred -= 1
        then(*arguments)

    def _come_to_replicas(self, task: Task) -> None:
        """A request to a language model is on its way to its replicas, or there."""
        assert self.serving is not None
        service = self.serving.fleets[task.shape].service
        delay, now = service.request_delay, self.clock._now
        aborts = max(now, task.arrival + service.timeout)
        if not delay:
            self.serving.arrived(task)
        elif aborts <= now + delay:
            self._travel(task, aborts - now, self._at_replicas, task, True)
        else:
            self._travel(task, delay, self._at_replicas, task, False)

    def _at_replicas(self, task: Task, aborted: bool) -> None:
        """It is there; or its client has aborted it on its way."""
        assert self.serving is not None
        task.state = WAITING
        if task.expires <= self.clock._now:
            self.end_task(task, EXPIRED, "patience ended")
        elif aborted:
            self.serving.fleets[task.shape].aborted(task)
        else:
            self.serving.arrived(task)

    def _arrive(self, task: Task, queue: Any) -> None:
        """A request is at the node that may serve it."""
        task.state = WAITING
        self.waiting[task.index] = task
        if self.patience is not None and task.expires <= self.clock._now:
            self.end_task(task, EXPIRED, "patience ended")
            return
        queue.push(task)
        if queue.wanted and (len(queue) >= queue.wanted or queue.over):
            queue.ring()
            self.clock.round_due = True

    def _answer(self, task: Task, queue: Any) -> None:
        """The result of a request is in the cache: it needs no device."""
        assert queue.service.cache is not None
        queue.never()
        del self.waiting[task.index]
        task.state = RUNNING
        self.deferred += 1  # neither waiting nor in a launch, and yet to end
        self._starts[task.index] = self.clock._now
        self.clock.at(self.clock._now + queue.service.cache.hit, FINISH, Later(self._answered, task))

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
        self.clock.at(until, ARRIVAL, Later(self._ask_again, task))

    def _ask_again(self, task: Task) -> None:
        self.deferred -= 1
        self._admit(task)
        self._woken(self._wake)  # it may be the head of a queue in order of arrival

    def _redirect(self, task: Task, positions: tuple[int, ...]) -> None:
        if not positions or any(not 0 <= p < len(task.shape.modes) for p in positions):
            raise self.illegal(f"admission redirects {task} to modes {positions}, which it does not have")
        if task.shape in self._queue_of or (self.serving is not None and task.shape in self.serving.fleets):
            what = "but it is a request, and a batch runs in one mode, whoever is in it"
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
