"""Ends of launches: by completion, a policy, a fault or a time limit."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hetsim.engine.control.arrivals import Arrivals
from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Launch
from hetsim.engine.kernel.clock import FINISH, Later
from hetsim.engine.launching.attained import AttainedService
from hetsim.engine.launching.stopping import Stops, TimeLimits
from hetsim.model.record import ABORTED, COMPLETED, EXPIRED, FAILED, REJECTED
from hetsim.model.task import ENDED, Task
from hetsim.policy.batching import Batching, BatchReport
from hetsim.policy.contract import Admission, Scheduler

FATES = {REJECTED: "was rejected", EXPIRED: "expired", FAILED: "failed", ABORTED: "was aborted"}


@dataclass(eq=False)
class Completion:
    """Ends launches and tasks, and assigns each task its one final status."""

    state: RunState
    rounds: Rounds
    arrivals: Arrivals
    received: AttainedService
    stops: Stops
    limits: TimeLimits | None
    linked: bool  # True if the end of a task affects others (successors, clients, readers of its data)

    def __post_init__(self) -> None:
        state = self.state
        self.clock, self.capacity = state.clock, state.capacity
        recorder = state.recorder
        self._finishes, self._status = recorder.finish, recorder.status
        self._modes, self._place, self._place_code = recorder.mode, recorder.place, recorder.place_code
        self._listens = [type(policy).ended is not Batching.ended for policy in state.input.batching]
        self._on_finished: Any = None
        self._admitted_finished: Any = None
        self._told = self.linked  # True if each completed task must be reported
        self._admitted_gone: Any = None

    def hooks(self) -> None:
        scheduler, asked = self.state.scheduler, self.state.input.admission
        self._on_finished = None if type(scheduler).finished is Scheduler.finished else scheduler.finished
        self._admitted_finished = None if asked is None or inert(asked, "finished") else asked.finished
        self._admitted_gone = None if asked is None or inert(asked, "gone") else asked.gone
        requests = self.arrivals.whole
        if requests is not None:
            requests.on_finished, requests.on_gone = self._admitted_finished, self._admitted_gone
            if requests.on_finished is not None or requests.on_gone is not None:
                self._admitted_finished, self._admitted_gone = requests.finished, requests.gone
        self._told = self.linked or self._on_finished is not None or self._admitted_finished is not None

    # Launches -----------------------------------------------------------------------------------------------

    def finish_quick(self, launch: Launch) -> None:
        (task,) = launch._tasks  # type: ignore[misc]
        row, placement, cores = task.index, launch.placement, launch.cores
        self._finishes[row] = self.clock._now
        self._modes[row] = launch.position
        self._status[row] = COMPLETED
        devices = placement.devices
        if len(devices) == 1:
            # The code of one device is its index.
            self._place[row] = self._place_code(placement, cores) if cores else devices[0].index
            self.capacity.quick_give(placement, cores)
        else:
            self._place[row] = self._place_code(placement, cores)
            self.capacity.give(placement, launch, cores)
        del self.state.running[launch.number]
        if self.received.by_user is not None:
            self.received.plain(task)
        self.completed(task)

    def launch_completed(self, launch: Launch, times: tuple[float, ...]) -> None:
        """Complete a launch that has stages; `times`: begins and ends of its stages."""
        terms = launch.terms
        # before any hook, which must not see it as running
        del (self.state.running if launch.within is None else self.state.lent)[launch.number]
        if self.limits is not None:
            self.limits.over(launch, keep=False)
        if terms is not None:
            self._batch_completed(launch, times)
            return
        tasks = launch._tasks
        assert tasks is not None
        if len(tasks) == 1:  # the recorder has its columns
            self.completed(tasks[0])
            return
        note_start(self.state, launch, times[0])
        for member, task in enumerate(tasks):
            note_place(self.state, task, launch)
            self._finishes[task.index] = self.clock._now
            self._status[task.index] = COMPLETED
            self.completed(task, member + 1 < len(tasks))

    def _batch_completed(self, launch: Launch, times: tuple[float, ...]) -> None:
        state, terms = self.state, launch.terms
        assert terms is not None
        requests = terms.requests
        queue = requests.queue
        queue.ring(True)  # call its policy again: a device is free
        if self._listens[queue.number]:
            policy = state.input.batching[queue.number] if queue.holder is None else queue.holder.batching
            call(state, policy.ended, _report(launch, times, self.clock._now), queue)
        if queue.cache is not None:
            for row in terms.rows:
                queue.cache.add(queue.input_of(row))
        # Requests become objects only if a hook or another task needs them.
        tasks = launch.tasks if self.linked or self._admitted_finished is not None else launch._tasks or ()
        for task in tasks:
            task.state = ENDED
            task._launch = None
        if queue.holder is not None:
            queue.holder.fleet.served(launch)
        elif state.wake_on != "ready":
            self.clock.round_due = True
        back = queue.service.response_delay
        if back:
            # Its devices are free already; only the answer is in transit.
            self.clock.at(self.clock._now + back, FINISH, Later(self._answered, requests.count, tasks))
        else:
            self._answered(requests.count, tasks)

    def _answered(self, count: int, tasks: tuple[Task, ...]) -> None:
        self.state.requests_left -= count
        self._served(count, tasks)

    def generated(self, task: Task) -> None:
        """Complete a request to a language model when its client has the last token."""
        task.state = ENDED
        self._served(1, (task,))

    def _served(self, count: int, tasks: tuple[Task, ...]) -> None:
        state = self.state
        state.ended += count
        if self._admitted_finished is not None:
            for task in tasks:
                call(state, self._admitted_finished, task)
        if self.linked:
            for task in tasks:
                self._after(task)
        if not state.running and not state.waiting and not state.iterating:
            self.rounds.look_whether_drained()

    # Tasks --------------------------------------------------------------------------------------------------

    def completed(self, task: Task, more: bool = False) -> None:
        """Complete a task; `more`: True if other tasks of its launch complete now, too."""
        state = self.state
        task.state = ENDED
        task._launch = None
        state.ended += 1
        if self._told:
            if self._on_finished is not None:
                call(state, self._on_finished, task)
            if self._admitted_finished is not None:
                call(state, self._admitted_finished, task)
            if self.linked:
                self._after(task)
        if state.wake_on != "ready":  # an end is both a change and a release
            self.clock.round_due = True
        if not state.running and not state.waiting and not more:
            self.rounds.look_whether_drained()

    def _after(self, task: Task) -> None:
        state = self.state
        if state.places.items:
            state.places.ended(task)
        for freed in state.graph.completed(task.index, self.clock._now):
            self.arrivals.make_ready(freed)
        if state.clients is not None:
            state.clients.ended(task, COMPLETED)
        else:
            state.sources.answered(task.index)

    def end_task(self, task: Task, status: int, reason: str) -> None:
        """End a task as rejected, expired, failed or aborted; its successors fail."""
        state = self.state
        # Each task is ended before those that wait for it, which find it so; and each only once, as it leaves
        # `blocked`.
        doomed = [(task, status, reason)]
        for task, status, reason in doomed:  # grows while it is walked: a chain may be longer than the stack
            row = task.index
            state.waiting.pop(row, None)
            service: Any = state.queue_of.get(task.shape, state.serving.fleets.get(task.shape))
            if service is not None and service.gone(task):
                state.requests_left -= 1
            task.state = ENDED
            self._status[row] = status
            self._finishes[row] = self.clock._now
            state.recorder.reasons[row] = reason
            state.ended += 1
            if service is None:
                call(state, state.scheduler.gone, task)
            if self._admitted_gone is not None:
                call(state, self._admitted_gone, task)
            if state.places.items:
                state.places.ended(task)
            state.graph.blocked.pop(row, None)  # it may have been rejected while it waited for others
            lost = state.graph.failed(row)
            if lost:
                fate = f"predecessor {task.id} {FATES[status]}"
                doomed += [(successor, FAILED, fate) for successor in lost]
            if state.clients is not None:
                state.clients.ended(task, status)
            else:
                state.sources.answered(row)
        self.rounds.changed("change")
        self.rounds.look_whether_drained()

    # Before their time ----------------------------------------------------------------------------------------

    def lose(self, launches: Iterable[Launch]) -> None:
        """Stop launches that lost a device or input; their tasks resume from checkpoints."""
        for launch in launches:
            self._stop(launch, keep=True, fault=True)
        self.stops.follow()  # after all have stopped: no lost launch gets the turn of another

    def stop(self, launch: Launch, keep: bool) -> None:
        """Stop a launch for a policy; its tasks wait again (`keep`: with finished work)."""
        if not all(task.shape.preemptible for task in launch.tasks):
            raise illegal(self.state, f"stopped {launch.task}, but it is not preemptible")
        self._stop(launch, keep)

    def _stop(self, launch: Launch, keep: bool, fault: bool = False) -> None:
        tasks = launch.tasks  # saved first: `end_early` empties `launch.tasks`
        self.end_early(launch, keep and launch.fusion is None, fault)
        self.arrivals.wait_again(tasks)
        self.rounds.changed("release")

    def kill(self, launch: Launch, reason: str, status: int = FAILED) -> None:
        """End a launch and its tasks with a status (default: failed); its work is lost."""
        tasks = launch.tasks
        self.end_early(launch, keep=False, killed=True)
        fused = launch.fusion is not None
        if fused:
            self.arrivals.wait_again(tasks)
        for task in tasks:
            if not fused:
                self.arrivals.make_ready(task, killed=True)
            if task.state != ENDED:  # it may have failed with its predecessor above
                self.end_task(task, status, reason)
        self.rounds.changed("release")

    def end_early(self, launch: Launch, keep: bool, fault: bool = False, **how: Any) -> None:
        """Stop a launch, detach its tasks; its work counts if `keep` (see `Stops.stop`)."""
        note_start(self.state, launch, self.stops.stop(launch, keep, fault=fault, **how))
        if self.limits is not None:
            self.limits.over(launch, keep and not fault)
        del (self.state.running if launch.within is None else self.state.lent)[launch.number]
        for task in launch.tasks:
            note_place(self.state, task, launch)
            task._launch = None
        launch._tasks = ()  # a stale entry of the clock may still hold the launch


def inert(policy: Any, hook: str) -> bool:
    """Return True if an admission policy does not override this hook."""
    return getattr(type(policy), hook, None) in (None, getattr(Admission, hook))


def _report(launch: Launch, times: tuple[float, ...], now: float) -> BatchReport:
    terms = launch.terms
    assert terms is not None
    _, up, uploaded, began, computed, down = times
    return BatchReport(
        terms.requests.count, terms.requests.size, launch.placement, decided=launch.decided,
        upload_start=up if up == up else began, upload_end=uploaded if up == up else began, compute_start=began,
        compute_end=computed, download_start=down if down == down else now, end=now, oldest=terms.oldest,
    )  # fmt: skip


def note_start(state: RunState, launch: Launch, start: float) -> None:
    """Record the start of those tasks of a launch that had not started before."""
    starts = state.recorder.start
    if start == start:
        for task in launch.tasks:
            if starts[task.index] != starts[task.index]:  # NaN: this is its first start
                starts[task.index] = start


def note_place(state: RunState, task: Task, launch: Launch) -> None:
    recorder = state.recorder
    recorder.place[task.index] = recorder.place_code(launch.placement, launch.cores)
    mode = launch.placement.mode
    if mode.parts:
        mode = mode.parts[launch.tasks.index(task)]  # each task of a fused launch has its own mode
    recorder.mode[task.index] = task.shape.position[mode]
