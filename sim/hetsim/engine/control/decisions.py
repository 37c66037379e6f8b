"""Decisions of policies: validate and apply them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hetsim.engine.control.completion import Completion, inert
from hetsim.engine.control.devices import Devices
from hetsim.engine.control.starts import Starts
from hetsim.engine.core.policy_errors import STATES, call, illegal, position_in
from hetsim.engine.core.rounds import LOOP_LIMIT, Rounds
from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Launch, Resident
from hetsim.engine.flight.prefetch import fetch
from hetsim.engine.launching.launches import Launches
from hetsim.engine.views.view import EngineView
from hetsim.model.device import Device
from hetsim.model.record import EXPIRED, LAUNCH_MOVED, REJECTED
from hetsim.model.task import BLOCKED, ENDED, RUNNING, WAITING, Task
from hetsim.policy.decisions import Annotate, Drop, Fetch, Move, Partition, Pause, Reject, Set, Start, Stop, Wait
from hetsim.policy.request_queue import Requests


@dataclass(eq=False)
class Decisions:
    """Validates and applies the decisions of a policy."""

    state: RunState
    rounds: Rounds
    starts: Starts
    launches: Launches
    completion: Completion
    devices: Devices
    view: EngineView
    start: Callable[[Start], None] = field(init=False)

    def hooks(self) -> None:
        """Find out whether admission is asked before each start (its hook `leaving`)."""
        asked = self.state.input.admission
        self.asks = asked is not None and not inert(asked, "leaving")
        self.start = self._start_asked if self.asks else self.starts.start

    def apply(self, decision: Any) -> None:
        """Validate and carry out one decision; raise PolicyError if it is illegal."""
        state, kind = self.state, decision.__class__
        state.decisions = made_so_far = state.decisions + 1
        if kind is Start:
            self.start(decision)
            return  # starts cannot loop, since a started task no longer waits
        if kind is Pause or kind is Wait:
            self.rounds.wait(decision)
        else:
            if (handler := _HANDLERS.get(kind)) is None:
                raise illegal(state, f"yielded {decision!r}, which is not a decision")
            handler(self, decision)
        if made_so_far - state.settled > LOOP_LIMIT:
            self.rounds.look_for_loop()

    def _start_asked(self, decision: Start) -> None:
        """Start the tasks of a decision, except those that admission drops."""
        tasks, placement = decision.tasks, decision.placement
        if isinstance(tasks, Requests) and tasks.tasks is None:
            queue, count = tasks.queue, 0
            # A dropped request has left the queue, so the next one is at its position; `count` is the number kept.
            while count < min(tasks.count, len(queue)):
                count += not self.dropped(queue.at(queue.waiting_rows(count + 1)[-1]))
            kept: Any = queue.first(count, tasks.size if tasks.size > tasks.count else None)
        else:
            named: Any = tasks.tasks if isinstance(tasks, Requests) else tasks
            kept = tuple(one for one in ((named,) if isinstance(named, Task) else named) if not self.dropped(one))
            count = len(kept)
            if isinstance(tasks, Requests):
                kept = tasks.queue.chosen(kept, tasks.size if tasks.size > tasks.count else None)
        if count:
            self.starts.start(Start(kept[0] if isinstance(tasks, Task) else kept, placement))

    def dropped(self, task: Task) -> bool:
        """Return True, and end the task, if admission drops a task that is about to start."""
        answer = None
        if task.state == WAITING:
            answer = call(self.state, self.state.input.admission.leaving, task, self.view)
        if answer is None:
            return False
        if not isinstance(answer, Reject):
            raise illegal(self.state, f"must answer Reject or None for {task}, which leaves the queue; got {answer!r}")
        self.completion.end_task(task, EXPIRED if answer.expired else REJECTED, str(answer.reason))
        return True

    def _stop(self, decision: Stop) -> None:
        if isinstance(decision.task, Device):
            self.devices.stop_replica(decision.task)
            return
        self.completion.stop(self._running_launch(decision.task, "stopped"), decision.keep)

    def _move(self, decision: Move) -> None:
        task, placement = decision.task, decision.placement
        launch = self._running_launch(task, "moved")
        if len(launch.tasks) > 1:
            raise illegal(self.state, f"moved {task}, but it runs in a batch of {len(launch.tasks)}, which cannot move")
        position_in(self.state, task, placement.mode, "moved")
        if not task.shape.preemptible:
            raise illegal(self.state, f"moved {task}, but it is not preemptible")
        # Before the start: it may move to devices that it occupies now.
        self.completion.end_early(launch, keep=True, outcome=LAUNCH_MOVED)
        self.starts.launch((task,), placement, "moved")
        self.rounds.changed("release")

    def _running_launch(self, task: Task, verb: str) -> Launch:
        if task.state != RUNNING or task._launch is None:
            raise illegal(self.state, f"{verb} {task}, but it {STATES[task.state]}")
        launch: Launch = task._launch
        if (replica := launch.holder if isinstance(launch, Resident) else launch.within) is not None:
            hint = "; Stop(device) stops a replica" if verb == "stopped" else ""
            raise illegal(self.state, f"{verb} {task}, but {replica} serves it with other requests{hint}")
        return launch

    def _reject(self, decision: Reject) -> None:
        task = decision.task
        given: Any = decision  # its reason may not be a text: types of user policies are not checked
        status, reason = EXPIRED if decision.expired else REJECTED, str(given.reason)
        if isinstance(task, Requests):
            self._discard(task, status, reason)
            return
        if task is None or task.state not in (WAITING, BLOCKED):
            state = "does not name a task" if task is None else f"names {task}, which {STATES[task.state]}"
            raise illegal(self.state, f"yielded a Reject that {state}")
        self.completion.end_task(task, status, reason)

    def _discard(self, requests: Requests, status: int, reason: str) -> None:
        state, queue = self.state, requests.queue
        waiting = len(queue)
        if (queue.holder is None and state.queues[queue.number] is not queue) or not 1 <= requests.count <= waiting:
            raise illegal(self.state, f"discards {requests}, but only {waiting} of them wait")
        if requests.tasks is not None or queue.column is None or queue.apart:
            for task in requests.tasks or queue.look(requests.count):  # some are objects: ended one by one
                if task.state != WAITING:
                    raise illegal(self.state, f"discards {task}, but it {STATES[task.state]}")
                self.completion.end_task(task, status, reason)
            return
        first, _, tasks = queue.take(requests.count)  # a slice: its rows are marked at the end of the run
        for task in tasks or ():
            task.state = ENDED
        state.recorder.discarded.append((queue.number, first, requests.count, status, state.clock._now, reason))
        state.requests_left -= requests.count
        state.ended += requests.count
        self.rounds.look_whether_drained()

    def _annotate(self, decision: Annotate) -> None:
        task, cause = decision.task, decision.cause
        if task.state != WAITING or cause not in ("quota", "reservation", "topology", "choice"):
            meant = "the task must wait, and the cause must be quota, reservation, topology or choice"
            raise illegal(self.state, f"annotates {task} with the cause {cause!r}; {meant}")
        if self.state.wait_causes.get(task.index) != cause:  # one row per change of the cause
            self.state.wait_causes[task.index] = cause
            self.state.recorder.holds.append((self.state.clock._now, task.index, cause))

    def _set(self, decision: Set) -> None:
        self.devices.set(decision.device, decision.frequency)

    def _fetch(self, decision: Fetch) -> None:
        self.devices.state(decision.device)
        self.state.last_launch = number = self.state.last_launch + 1  # its place in the engine's start order
        then = partial(self.rounds.changed, "change")
        problem = fetch(self.launches.transfers, decision.item, decision.device, number=number, then=then)
        if problem is not None:
            raise illegal(self.state, f"fetches item {decision.item} to {decision.device}, but {problem}")

    def _drop(self, decision: Drop) -> None:
        self.devices.state(decision.device)
        if (problem := self.state.places.drop(decision.item, decision.device)) is not None:
            raise illegal(self.state, f"drops item {decision.item} from {decision.device}, but {problem}")

    def _partition(self, decision: Partition) -> None:
        self.devices.partition(decision.device, decision.layout)


_HANDLERS: dict[type, Any] = {
    Stop: Decisions._stop, Move: Decisions._move, Reject: Decisions._reject, Annotate: Decisions._annotate,
    Set: Decisions._set, Fetch: Decisions._fetch, Drop: Decisions._drop, Partition: Decisions._partition,
}  # fmt: skip
