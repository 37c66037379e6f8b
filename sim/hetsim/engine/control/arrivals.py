"""Tasks until they start: admission, predecessors, queues, and patience."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.core.recorder import rows_of
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals, lost_input
from hetsim.engine.kernel.clock import ARRIVAL, FINISH, Later
from hetsim.engine.queues.queue import Queue
from hetsim.engine.views.view import EngineView
from hetsim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED
from hetsim.model.task import BLOCKED, ENDED, FUTURE, RUNNING, WAITING, Task
from hetsim.model.tasks import StagedRequests
from hetsim.policy.contract import Scheduler
from hetsim.policy.decisions import Accept, Defer, Reject, as_number


@dataclass(eq=False)
class Arrivals:
    """Handles tasks from their arrival until they no longer wait."""

    state: RunState
    rounds: Rounds
    signals: Signals
    view: EngineView
    linked: bool  # True if the end of a task may affect others, so ready times are recorded

    def __post_init__(self) -> None:
        state = self.state
        self.clock = state.clock
        recorder = state.recorder
        self._ready: memoryview[float] | None = None
        if self.linked or state.input.admission is not None:  # a column of its own: it can differ from the arrival
            self._ready = recorder.ready = rows_of("d", math.nan, len(recorder.status))
            for queue in state.queues:
                if queue.column is not None:  # the arrival of such a request is no event
                    rows = queue.service.rows
                    np.asarray(self._ready)[rows] = state.tasks.arrival[rows]
        self._starts, self._finishes, self._status = recorder.start, recorder.finish, recorder.status
        self._on_ready: Any = None
        self._refused = state.tasks.refused
        asked, staged = state.input.admission, state.tasks.staged
        self._ask: Any = None if asked is None else asked.admit
        # requests of several tasks that admission decides on as one
        self.whole: Any = None if staged is None or asked is None else WholeRequests(state, staged)
        # True if all tasks are ready as they arrive
        self._fleets = state.serving.fleets
        self._by_itself = not state.queues and not self._fleets and self._ready is None

    def hooks(self) -> None:
        scheduler = self.state.scheduler
        self._on_ready = None if type(scheduler).ready is Scheduler.ready else scheduler.ready

    # Admission ----------------------------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """Query the admission policy; a task that it accepts then waits until it can run."""
        state = self.state
        if self._refused and task.index in self._refused:
            self.signals.task_ended(task, REJECTED, self._refused[task.index])
            return
        if self.whole is not None and self.whole.first[task.index] != task.index:
            self._follow(task)
            return
        if self._ask is not None:
            if self.whole is not None:
                self.whole.begun(task)  # before the query: the answer may end the task at once
            answer = call(state, self._ask, task, self.view)
            if isinstance(answer, Accept):
                if answer.modes is not None:
                    self._redirect(task, answer.modes)
            elif isinstance(answer, Reject):
                self.signals.task_ended(task, EXPIRED if answer.expired else REJECTED, str(answer.reason))
                return
            elif isinstance(answer, Defer):
                self._defer(task, answer.until)
                return
            else:
                what = f"must answer Accept, Reject or Defer for {task} in admission; got {answer!r}"
                raise illegal(state, what)
        self._admitted(task)

    def _follow(self, task: Task) -> None:
        """Apply to a later task of a request the admission decision on its first task."""
        if (deferred := self.whole.deferred.get(self.whole.first[task.index])) is not None:
            task.state = FUTURE
            self.state.deferred += 1
            deferred.append(task)
            return
        recorder, row = self.state.recorder, self.whole.first[task.index]
        if recorder.status[row] in (REJECTED, EXPIRED):  # refused earlier, or while it was deferred
            self.signals.task_ended(task, recorder.status[row], recorder.reasons[row])
        else:
            self._admitted(task)

    def _admitted(self, task: Task) -> None:
        state = self.state
        if state.patience is not None:
            state.patience.watch(task.index, task.expires)
        if state.lost_items and (lost := lost_input(state, task)) is not None:
            self.signals.task_ended(task, FAILED, f"its input {lost} was lost in a failure")
            return
        waits_for = state.graph.missing
        if waits_for and (missing := waits_for.get(task.index, 0)):
            task.state = BLOCKED
            if missing < 0:  # as `Graph.failed` sets it
                self.signals.task_ended(task, FAILED, "a predecessor did not finish")
            else:
                state.graph.blocked[task.index] = task
            return
        self.make_ready(task)

    def _defer(self, task: Task, given: Any) -> None:
        if (until := as_number(given)) is None or not self.state.clock._now < until < math.inf:
            raise illegal(self.state, f"must defer {task} to a later, finite time; got t = {given} s")
        task.state = FUTURE
        self.state.deferred += 1
        if self.whole is not None and self.whole.size[task.index] > 1:
            self.whole.deferred.setdefault(task.index, [])
        self.state.clock.at(until, ARRIVAL, Later(self._ask_again, task))

    def _ask_again(self, task: Task) -> None:
        if task.state == ENDED:  # its client has left
            return
        self.state.deferred -= 1
        deferred = None if self.whole is None else self.whole.deferred.pop(task.index, None)
        self.admit(task)
        if deferred:
            if task.index in self.whole.deferred:  # deferred again
                self.whole.deferred[task.index] = deferred
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
        if task.shape in self.state.queue_of or task.shape in self.state.serving.fleets:
            what = "but requests cannot be redirected: all of a batch run in one mode"
            raise illegal(self.state, f"{to}, {what}; answer Accept() or Reject")
        task.allowed = positions  # `Starts` refuses any other mode from now on

    # Waiting ------------------------------------------------------------------------------------------------

    def make_ready(self, task: Task, killed: bool = False) -> None:
        """Make a task wait; killed: it is about to end, so no result cache may answer it."""
        state = self.state
        task.state = WAITING
        queue: Queue | None = None
        if not self._by_itself:
            ready, row = self._ready, task.index
            # The arrival or the end of the last predecessor: a deferral counts as waiting.
            if ready is not None and (ready_since := ready[row]) != ready_since:
                at, last = task.arrival, state.graph.ready
                ready[row] = task.ready = max(at, last.pop(row, -math.inf)) if last else at
            if self._fleets and (fleet := self._fleets.get(task.shape)) is not None:
                if fleet.service.request_delay:
                    self._travel(task, fleet.service.request_delay, None, fleet)
                else:
                    fleet.arrived(task)
                return
            queue = state.queue_of.get(task.shape)
        if queue is not None:
            again = task._history is not None  # A request that arrives one by one, or returns from a stopped batch.
            if not killed and queue.cache is not None and queue.cache.holds(queue.input_of(task.index)):
                self._answer(task, queue, again)
            elif again:
                queue.push(task)  # before all that have not started
                queue.came()
                if queue.fleet is not None:
                    queue.fleet.again(task)
            elif queue.delay:
                self._travel(task, queue.delay, queue, queue.fleet)
            else:
                self._arrive(task, queue, queue.fleet)
            if queue.fleet is not None:
                return  # no scheduler starts it
        else:
            state.waiting[task.index] = task
            if (on_ready := self._on_ready) is not None:
                call(state, on_ready, task)
        on = state.wake_on
        # No round if the policy waits for a release, or for a task that fits.
        if on == "release" or (
            on == "fit" and self.clock._now <= state.certain and not state.capacity.has_room(task.shape.modes)
        ):
            return
        self.clock.round_due = True

    def ready_inside(self, task: Task) -> None:
        """Record the ready time of a task whose unfinished predecessors share its launch."""
        ready = self._ready
        if ready is None or ready[task.index] == ready[task.index]:
            return
        last = task.arrival
        for row in (self.state.tasks.predecessors or {task.index: ()})[task.index]:
            ended = self._finishes[row]
            last = max(last, ended if ended == ended else ready[row])
        ready[task.index] = task.ready = last

    def wait_again(self, tasks: Sequence[Task]) -> None:
        """Make the tasks of a stopped fused launch wait for each other again."""
        graph = self.state.graph
        for task in tasks:
            if graph.missing.get(task.index, 0) > 0:
                task.state = BLOCKED  # all states are set before a hook is called, which may read them
                graph.blocked[task.index] = task
        for task in tasks:
            if task.state != BLOCKED:
                self.make_ready(task)

    # Requests -----------------------------------------------------------------------------------------------

    def _travel(self, task: Task, seconds: float, queue: Queue | None, fleet: Any) -> None:
        """Delay a request by `seconds` before it arrives at its queue or LLM service."""
        task.state = FUTURE  # neither waiting nor running while in transit
        self.state.deferred += 1
        self.clock.at(self.clock._now + seconds, ARRIVAL, Later(self._there, task, queue, fleet))

    def _there(self, task: Task, queue: Queue | None, fleet: Any) -> None:
        if task.state != ENDED:  # else its client has left
            self.state.deferred -= 1
            self._arrive(task, queue, fleet)

    def _arrive(self, task: Task, queue: Queue | None, fleet: Any) -> None:
        """Let a request wait in `queue` and at replicas of `fleet`, unless they are None."""
        task.state = WAITING
        if self.state.patience is not None and task.expires <= self.clock._now:
            self.signals.task_ended(task, EXPIRED, "patience ended")
            return
        if queue is not None:
            queue.join(task)
            self.state.requests_left += 1  # counted from now on: `requests_left` did not include it
        if fleet is not None:
            fleet.arrived(task)
        if queue is not None:
            queue.came()

    def _answer(self, task: Task, queue: Queue, again: bool) -> None:
        """Answer a request from a result cache; `again`: its earlier launch was stopped."""
        assert queue.service.cache is not None
        if again:
            self.state.requests_left -= 1
        else:
            queue.never()
        task.state = RUNNING
        self.state.deferred += 1  # neither waiting nor in a launch, and yet to end
        self._starts[task.index] = self.clock._now
        self.clock.at(self.clock._now + queue.service.cache.hit, FINISH, Later(self._answered, task))

    def _answered(self, task: Task) -> None:
        self.state.deferred -= 1
        row, now = task.index, self.clock._now
        self._finishes[row] = now
        self._status[row] = COMPLETED
        detail = self.state.recorder.detail
        detail("compute")[row] = now - self._starts[row]
        detail("upload"), detail("download")  # create the other two stage columns as well
        self.signals.task_completed(task)

    # Patience -----------------------------------------------------------------------------------------------

    def expect_expiry(self) -> None:
        """Register the patience deadlines of requests whose arrivals cause no events."""
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
        task = state.waiting.get(row) or state.graph.blocked.get(row) or state.serving.waiting(row)
        if task is None and state.queues:
            queue = state.queue_of.get(state.tasks.shapes[state.tasks.shape[row]])
            if queue is not None and queue.waits(row):
                task = queue.at(row)
        if task is not None and task._history is None:
            self.signals.task_ended(task, EXPIRED, "patience ended")


class WholeRequests:
    """Calls admission hooks once per request, also for a request of several tasks."""

    def __init__(self, state: RunState, staged: StagedRequests):
        self.state = state
        self.first: list[int] = staged.first.tolist()
        self.size: list[int] = np.bincount(staged.first, minlength=len(self.first)).tolist()
        self.deferred: dict[int, list[Task]] = {}  # later tasks of deferred requests, by the row of the first task
        self.heads: dict[int, Task] = {}  # first tasks of unfinished requests, if the policy has a hook for their end
        self.left: dict[int, int] = {}  # tasks of a request that have not ended, if others of it have
        self.failed: dict[int, None] = {}  # requests of which a task ended badly, and others have not ended
        self.on_finished: Any = None
        self.on_gone: Any = None  # the policy's hooks that are called; None where it has none

    def begun(self, task: Task) -> None:
        """Store a request's first task for the policy's hooks at the request's end."""
        if self.on_finished is not None or self.on_gone is not None:
            self.heads[task.index] = task

    def gone(self, task: Task) -> None:
        self.failed[self.first[task.index]] = None
        self.finished(task)

    def finished(self, task: Task) -> None:
        """Record the end of a task; after a request's last task, call the policy's hook."""
        row = self.first[task.index]
        tasks_left = self.left.pop(row, self.size[row]) - 1  # an entry only while some have ended, and some not
        if tasks_left:
            self.left[row] = tasks_left
            return
        well = row not in self.failed
        self.failed.pop(row, None)
        hook = self.on_finished if well else self.on_gone
        head = self.heads.pop(row, task)
        if hook is not None:
            call(self.state, hook, head)
