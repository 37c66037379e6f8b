"""Tasks that wait: for a device, in a service's queue, or in transit to a node."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.core.policy_errors import raised
from hetsim.engine.core.recorder import rows_of
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.kernel.clock import ARRIVAL, FINISH, Later
from hetsim.engine.language.llm_service import Fleet, Serving
from hetsim.engine.queues.queue import Queue
from hetsim.errors import HetsimError
from hetsim.model.record import COMPLETED, EXPIRED
from hetsim.model.task import BLOCKED, ENDED, FUTURE, RUNNING, WAITING, Task
from hetsim.policy.contract import Scheduler


@dataclass(eq=False)
class Waiting:
    """Handles tasks from the time they are ready until they no longer wait."""

    state: RunState
    signals: Signals
    serving: Serving
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
        # True if all tasks are ready as they arrive
        self._fleets = self.serving.fleets
        self._by_itself = not state.queues and not self._fleets and self._ready is None

    def hooks(self) -> None:
        scheduler = self.state.scheduler
        self._on_ready = None if type(scheduler).ready is Scheduler.ready else scheduler.ready

    def make_ready(self, task: Task, killed: bool = False) -> None:
        """Make a task wait; `killed`: it ends next and must not be answered by a cache."""
        state = self.state
        task.state = WAITING
        queue = None
        if not self._by_itself:
            ready, row = self._ready, task.index
            if ready is not None and ready[row] != ready[row]:  # arrival or last predecessor: deferral counts as wait
                at, last = task.arrival, state.graph.ready
                ready[row] = task.ready = max(at, last.pop(row, -math.inf)) if last else at
            if (fleet := self._fleets.get(task.shape)) is not None:
                if fleet.service.request_delay:
                    self.travel(task, fleet.service.request_delay, self._at_replicas, task, fleet)
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
            elif queue.service.request_delay:
                self.travel(task, queue.service.request_delay, self._arrive, task, queue)
            else:
                self._arrive(task, queue)
            if queue.fleet is not None:
                return  # no scheduler starts it
        else:
            state.waiting[task.index] = task
            if (on_ready := self._on_ready) is not None:
                try:
                    on_ready(task)
                except HetsimError:
                    raise
                except Exception as error:
                    raise raised(state, error, "ready") from error
        on = state.wake_on
        # No round if the policy waits for a release, or for a task that fits.
        if on == "release" or (
            on == "fit" and self.clock._now <= state.certain and not state.capacity.has_room(task.shape.modes)
        ):
            return
        self.clock.round_due = True

    def ready_inside(self, task: Task) -> None:
        """Record the ready time of a task that waits only for tasks of its own launch."""
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

    def travel(self, task: Task, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        """Call `then(*arguments)` when a request has traveled `seconds` to the node."""
        task.state = FUTURE  # neither waiting nor running while in transit
        self.state.deferred += 1
        self.clock.at(self.clock._now + seconds, ARRIVAL, Later(self._there, then, arguments))

    def _there(self, then: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if arguments[0].state != ENDED:  # else its client has left
            self.state.deferred -= 1
            then(*arguments)

    def _at_replicas(self, task: Task, fleet: Fleet) -> None:
        task.state = WAITING
        if task.expires <= self.clock._now:
            self.signals.task_ended(task, EXPIRED, "patience ended")
        else:
            fleet.arrived(task)

    def _arrive(self, task: Task, queue: Queue) -> None:
        task.state = WAITING
        if self.state.patience is not None and task.expires <= self.clock._now:
            self.signals.task_ended(task, EXPIRED, "patience ended")
            return
        queue.join(task)
        self.state.requests_left += 1  # counted from now on: `requests_left` did not include it
        if queue.fleet is not None:
            queue.fleet.arrived(task)
        queue.came()

    def _answer(self, task: Task, queue: Queue, again: bool) -> None:
        """Answer a request from a result cache; `again`: it returns from a stopped batch."""
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
