"""Ends: of launches and batches, and of tasks, with all that an end sets free."""

from __future__ import annotations

import math

from sim.engine.clock import FINISH, Later
from sim.engine.launch import Launch
from sim.engine.requests import Sliced
from sim.engine.state import State
from sim.model.record import ABORTED, COMPLETED, EXPIRED, FAILED, REJECTED
from sim.model.tasks import ENDED, Task
from sim.policy.batching import BatchReport

FATES = {REJECTED: "was rejected", EXPIRED: "expired", FAILED: "failed", ABORTED: "was aborted"}


class Endings(State):
    """How tasks come to their one status."""

    def _finish_quick(self, launch: Launch) -> None:
        """A launch that only computed has ended."""
        (task,) = launch._tasks  # type: ignore[misc]
        row = task.index
        placement = launch.placement
        cores = launch.cores
        self._finishes[row] = self.clock._now
        self._modes[row] = launch.position
        self._status[row] = COMPLETED
        if len(placement.devices) == 1:
            self._place[row] = self._place_code(placement, cores) if cores else placement.devices[0].index
            self.capacity.quick_give(placement, cores)
        else:
            self._place[row] = self._place_code(placement, cores)
            self.capacity.give(placement, launch, cores)
        del self.running[launch.number]
        if self.received.by_user is not None:
            self.received.plain(task)
        self._completed(task)

    def _launch_completed(self, launch: Launch, times: tuple[float, ...]) -> None:
        """A launch with a timetable has ended well."""
        terms = launch.terms
        del self.running[launch.number]
        if self.limits is not None:
            self.limits.ended(launch)
        if terms is None:
            start, place, now = times[0], self._place_code(launch.placement, launch.cores), self.clock._now
            for task in launch.tasks:
                row = task.index
                if self._starts[row] != self._starts[row]:
                    self._starts[row] = start
                self._place[row] = place
                self._modes[row] = launch.position
                self._finishes[row] = now
                self._status[row] = COMPLETED
                self._completed(task)
            return
        requests = terms.requests
        queue = requests.queue
        queue.ring(True)
        if self._listens[queue.number]:
            self.call(self.input.batching[queue.number].ended, _report(launch, times, self.clock._now), queue)
        if queue.cache is not None:
            queue.keep_results(launch.tasks)
        back = queue.service.response_delay
        if launch._tasks is None or terms.first >= 0:
            for task in launch._tasks or ():  # those that were looked at
                task.state = ENDED
                task._launch = None
            self._settled = self.decisions
            if self._wake_on != "ready":
                self.clock.round_due = True
            if back:
                self.clock.at(self.clock._now + back, FINISH, Later(self._slice_ended, requests.count))
            else:
                self._slice_ended(requests.count)
            return
        for task in launch.tasks:
            if back:
                self._travel(task, back, self._batch_member_ended, task)
            else:
                self._batch_member_ended(task)
        if back:
            self.changed("release")

    def _slice_ended(self, count: int) -> None:
        self.ended += count
        self.requests_left -= count
        if not self.running and not self.waiting:
            self._look_whether_drained()

    def _batch_member_ended(self, task: Task) -> None:
        self._status[task.index] = COMPLETED  # the other columns are written at the end of the run
        if self.requests_left:
            self.requests_left -= 1
        self._completed(task)

    def _completed(self, task: Task) -> None:
        task.state = ENDED
        task._launch = None
        self.ended += 1
        self._settled = self.decisions
        if self._on_finished is not None:
            self.call(self._on_finished, task)
        if self._admitted_finished is not None:
            self.call(self._admitted_finished, task)
        if self._linked:
            self._after(task)
        if self._wake_on != "ready":
            self.clock.round_due = True
        if not self.running and not self.waiting:
            self._look_whether_drained()

    def generated(self, task: Task) -> None:
        """A request to a language model has its last token."""
        task.state = ENDED
        self.ended += 1
        self._settled = self.decisions
        if self._admitted_finished is not None:
            self.call(self._admitted_finished, task)
        if self._linked:
            self._after(task)
        if not self.running and not self.waiting and not self.iterating:
            self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        """If nothing waits, runs or is to come, nothing is blocked either: later events do not prolong the run.

        One with a horizon lasts until then: devices still idle, sleep, fail and take power.
        """
        if self.input.horizon < math.inf:
            return
        here = self.running or self.waiting or self.deferred or self.requests_left or self.iterating
        if not (here or self.sources.to_come):
            self.clock.end = math.nextafter(self.clock._now, math.inf)

    def _after(self, task: Task) -> None:
        """What the completion of a task sets free: items, successors, a client of a closed loop."""
        if self.places.items:
            self.places.ended(task)
        if self.graph is not None:
            for freed in self.graph.completed(task.index, self.clock._now):
                self._make_ready(freed)
        if self.sources.closed:
            self.sources.answered(task)

    def kill(self, launch: Launch, reason: str) -> None:
        """End a launch and its tasks as failed: what they have done is wasted, and counted as such.

        To the policy it looks like a stop and, at the same instant, the end of a waiting task.
        """
        tasks = launch.tasks
        self._note_start(launch, self.stops.stop(launch, keep=False, killed=True)[0])
        if self.limits is not None:
            self.limits.ended(launch)
        self._forget(launch)
        for task in tasks:
            self._make_ready(task)
            self.end_task(task, FAILED, reason)
        self.changed("release")

    def end_task(self, task: Task, status: int, reason: str) -> None:
        """A task that does not run (any more) ends as rejected, expired or failed, and its successors with it."""
        doomed = [(task, status, reason)]
        for task, status, reason in doomed:  # grows while it is walked: a chain may be longer than the stack
            row = task.index
            waited = self.waiting.pop(row, None) is not None
            fleet = None if self.serving is None else self.serving.fleets.get(task.shape)
            if fleet is not None:
                fleet.gone(task)
            elif self.queues and task.shape in self._queue_of:
                self._leave_queue(task, waited)
            task.state = ENDED
            self._status[row] = status
            self._finishes[row] = self.clock._now
            self.recorder.reasons[row] = reason
            self.ended += 1
            if fleet is None and not (self.queues and task.shape in self._queue_of):
                self.call(self.scheduler.gone, task)
            if self._admitted_gone is not None:
                self.call(self._admitted_gone, task)
            if self.places.items:
                self.places.ended(task)
            if self.graph is not None:
                self.graph.blocked.pop(row, None)
                fate = f"predecessor {task.id} {FATES[status]}"
                doomed += [(successor, FAILED, fate) for successor in self.graph.failed(row)]
            if self.sources.closed:
                self.sources.answered(task)
        self._settled = self.decisions
        self.changed("change")
        self._look_whether_drained()

    def _leave_queue(self, task: Task, waited: bool) -> None:
        """A request ends without having run."""
        queue = self._queue_of[task.shape]
        waited = waited or isinstance(queue, Sliced)  # whose requests wait from their arrival on
        if self.requests_left:
            self.requests_left -= 1
        if waited:
            self._dequeue(queue, task)
            queue.ring()
        elif task._history is None:
            queue.never()


def _report(launch: Launch, times: tuple[float, ...], now: float) -> BatchReport:
    """What the batching policy is told of a launch that has ended."""
    terms = launch.terms
    assert terms is not None
    _, up, uploaded, began, computed, down = times
    return BatchReport(
        terms.requests.count,
        terms.requests.size,
        launch.placement,
        launch.decided,
        up if up == up else began,
        uploaded if up == up else began,
        began,
        computed,
        down if down == down else now,
        now,
        terms.oldest,
    )
