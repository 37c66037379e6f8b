"""Ends: of launches and batches, and of tasks, with all that an end sets free."""

from __future__ import annotations

import math
from functools import partial

from oracle.engine.clock import FINISH, Timer
from oracle.engine.launch import Launch
from oracle.engine.pipeline import BatchLaunch
from oracle.engine.requests import Taskwise
from oracle.engine.state import State
from sim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED
from sim.model.tasks import ENDED, Task
from sim.policy.batching import BatchReport

FATES = {REJECTED: "was rejected", EXPIRED: "expired", FAILED: "failed"}


class Endings(State):
    """How tasks come to their one status."""

    def _finish_quick(self, launch: Launch) -> None:
        """A launch that only computed has ended."""
        task = launch.task
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

    def batch_over(self, launch: BatchLaunch) -> None:
        """A batch that went the short way has ended."""
        assert self.pipeline is not None
        del self.running[launch.number]
        requests = launch.requests
        queue = requests.queue
        if self.pipeline.listens[queue.number]:
            self.call(self.input.batching[queue.number].ended, self.pipeline.report(launch), queue)
        back = queue.service.response_delay
        if launch.task is None:
            self._settled = self.decisions
            self.clock.round_due = self.clock.round_due or self._wake_on != "ready"
            if back:
                answered = Timer(lambda _: self._slice_ended(requests.count))
                self.clock.at(self.clock._now + back, FINISH, answered)
            else:
                self._slice_ended(requests.count)
            return
        for task in launch.tasks:
            if back:
                self._travel(task, back, partial(self._batch_member_ended, task))
            else:
                self._batch_member_ended(task)
        if back:
            self.changed("release")
        if queue.cache is not None:
            queue.keep_results(requests.tasks)
        launch.tasks, launch.task = (), None

    def _slice_ended(self, count: int) -> None:
        self.ended += count
        self.requests_left -= count
        if not self.running and not self.waiting:
            self._look_whether_drained()

    def _batch_member_ended(self, task: Task) -> None:
        self._status[task.index] = COMPLETED  # the other columns are written at the end of the run
        self._completed(task)

    def _report_batch(self, launch: Launch) -> None:
        """Tell the batching policy of a batch that went the full way."""
        stages, terms, now = launch.stages, launch.terms, self.clock._now
        assert stages is not None and terms is not None
        requests = terms.requests
        up, down = stages.upload_start == stages.upload_start, stages.download_start == stages.download_start
        report = BatchReport(
            requests.count,
            requests.size,
            launch.placement,
            launch.decided,
            stages.upload_start if up else stages.compute_start,
            stages.upload_end if up else stages.compute_start,
            stages.compute_start,
            stages.compute_end,
            stages.download_start if down else now,
            now,
            min(task.arrival for task in launch.tasks) + requests.queue.service.request_delay,
        )
        self.call(self.input.batching[requests.queue.number].ended, report, requests.queue)
        if requests.queue.cache is not None:
            requests.queue.keep_results(launch.tasks)

    def _launch_completed(self, launch: Launch) -> None:
        """A staged launch has ended well (told by the launcher)."""
        self._note_start(launch)
        tasks = launch.tasks
        back = 0.0 if launch.terms is None else launch.terms.requests.queue.service.response_delay
        for task in tasks:
            self._place_of(task, launch)
        del self.running[launch.number]
        if self.limits is not None:
            self.limits.ended(launch)
        if launch.terms is not None:
            self._report_batch(launch)
        for task in tasks:
            if back:
                self._travel(task, back, partial(self._member_ended, task))
            else:
                self._member_ended(task)
        if back:
            self.changed("release")

    def _member_ended(self, task: Task) -> None:
        self._finishes[task.index] = self.clock._now
        self._status[task.index] = COMPLETED
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
        self._note_start(launch)
        self.launcher.stop(launch, keep=False, killed=True)
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
        assert isinstance(queue, Taskwise)
        if waited:
            queue.remove(task)
        elif task._history is None:
            queue.never()
            if queue.wanted and queue.over:
                self.clock.round_due = True
