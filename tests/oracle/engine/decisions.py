"""Decisions: `apply` validates one and carries it out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from oracle.engine.clock import FAULT, FINISH, TIMER, Timer
from oracle.engine.complaints import state_of
from oracle.engine.holdings import available_at
from oracle.engine.launch import Launch, Terms
from oracle.engine.state import State
from sim.errors import UsageError
from sim.model.plan import Placement
from sim.model.record import EXPIRED, LAUNCH_MOVED, REJECTED
from sim.model.tasks import BLOCKED, RUNNING, WAITING, Task
from sim.policy.contract import Annotate, Decision, Drop, Fetch, Move, Pause, Reject, Set, Start, Stop, Wait
from sim.policy.request_queue import Requests

LOOP_LIMIT = 10_000
"""Rounds, or decisions, at one instant without any task ending, after which a policy is reported as looping."""


class Decisions(State):
    """What a policy may decide."""

    def apply(self, decision: Decision) -> None:
        """Validate and carry out one decision; an illegal one raises PolicyError."""
        self.decisions += 1
        kind: Any = decision.__class__
        if kind is Start:
            self._start(cast(Start, decision))
        elif kind is Wait or kind is Pause:
            self._wait(cast(Wait, decision))
        else:
            handler = self._handlers.get(kind)
            if handler is None:
                raise self.illegal(f"yielded {decision!r}, which is not a decision")
            handler(self, decision)
        if self.decisions - self._settled > LOOP_LIMIT:
            self._look_for_loop()

    def _start(self, decision: Start) -> None:
        """Launch.  The usual case, one task that only computes on one device or one node, is validated and done at
        once; everything else, errors included, goes the full way."""
        task, placement = decision.tasks, decision.placement
        mode = placement.mode
        if (
            task.__class__ is Task
            and mode in self._quick
            and task.state == WAITING
            and task._history is None
            and task.allowed is None
        ):
            position = task.shape.position.get(mode)
            if position is not None:
                cores = self.capacity.quick_take(placement)
                if cores >= 0:
                    now = self.clock._now
                    self.last_launch = number = self.last_launch + 1
                    launch = Launch(self._finish_quick_method, number, task, placement, now)
                    launch.cores = cores
                    launch.position = position
                    task.state = RUNNING
                    task._launch = launch
                    row = task.index
                    del self.waiting[row]
                    self.running[number] = launch
                    self._starts[row] = now
                    self.clock.at(now + (mode.fixed + task._time[position]), FINISH, launch)
                    if self.limits is not None:
                        self.limits.watch(launch)
                    return
        self._start_fully(decision)

    def _start_fully(self, decision: Start) -> None:
        tasks, placement = decision.tasks, decision.placement
        mode = placement.mode
        terms = None
        if isinstance(tasks, Requests):
            requests = tasks
            position = self._may_start(requests, placement)
            if self.pipeline is not None:
                if self.capacity.quick_take(placement) < 0:
                    raise self.illegal(f"started {requests} on {placement}, but {self.capacity.refusal(placement)}")
                self.pipeline.begin(requests, placement, position)
                return
            padding = (requests.size - requests.count) * requests.queue.service.per_item[position]
            terms = Terms(requests, padding, requests.queue.factors())
            tasks = requests.tasks or ()
        batch = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
        if not batch or len({task.index for task in batch}) != len(batch):
            raise self.illegal(f"started a batch of {len(batch)} tasks on {placement}: empty, or one task twice")
        if terms is None and len(batch) > max(1, mode.batch_limit):
            raise self.illegal(f"started {len(batch)} tasks as one batch; mode {mode} takes {mode.batch_limit}")
        for task in batch:
            if task.state != WAITING:
                raise self.illegal(f"started {task} on {placement}, but it {state_of(task)}")
            its_own = task.shape.position.get(mode)
            if its_own is None or (task.allowed is not None and its_own not in task.allowed):
                may_not = "lacks" if its_own is None else "may not use"
                raise self.illegal(f"started {task} in mode {mode}, which it {may_not}")
        refusal = self.capacity.refusal(placement)
        if refusal is not None:
            raise self.illegal(f"started {batch[0]} on {placement}, but {refusal}")
        self._launch(batch, placement, terms)

    def _may_start(self, requests: Requests, placement: Placement) -> int:
        """The position of the mode, if these requests may be launched as one batch; else PolicyError."""
        queue, mode = requests.queue, placement.mode
        position: int | None = queue.service.shape.position.get(mode)
        if self.queues[queue.number] is not queue or position is None:
            raise self.illegal(f"started {requests} in mode {mode}, which is none of theirs")
        waiting = len(queue)
        if not 1 <= requests.count <= waiting:
            raise self.illegal(f"started {requests}, of which {waiting} wait")
        if not requests.count <= requests.size <= mode.batch_limit:
            limit = mode.batch_limit
            raise self.illegal(f"started {requests} as a batch of {requests.size}; mode {mode} takes {limit}")
        return position

    def taken(self, launch: Any, tasks: tuple[Task, ...]) -> None:
        """These requests have left their queue for a launch."""
        queue = launch.requests.queue
        for task in tasks:
            if task.state != WAITING:
                raise self.illegal(f"started {task}, but it {state_of(task)}")
            queue.remove(task)
            self.waiting.pop(task.index, None)
            task.state = RUNNING
            task._launch = launch

    def _launch(self, batch: tuple[Task, ...], placement: Placement, terms: Terms | None = None) -> None:
        """Occupy a validated placement and start the first stage."""
        now = self.clock._now
        task, mode = batch[0], placement.mode
        self.last_launch = number = self.last_launch + 1
        launch = Launch(self._finish_quick_method, number, task, placement, now)
        launch.tasks = batch
        launch.terms = terms
        launch.position = task.shape.position[mode]
        launch.cores = self.capacity.take(placement, launch)
        self.running[number] = launch
        for member in batch:
            self.waiting.pop(member.index, None)
            member.state = RUNNING
            member._launch = launch
        if terms is not None:
            for member in batch:
                terms.requests.queue.remove(member)
        elif mode in self._quick and task._history is None and len(batch) == 1:
            for device in placement.devices:
                if not self.capacity.of[device.index].normal:
                    break
            else:
                self._starts[task.index] = now
                self.clock.at(now + (mode.fixed + task._time[launch.position]), FINISH, launch)
                if self.limits is not None:
                    self.limits.watch(launch)
                return
        self._start_staged(launch)
        if self.limits is not None and launch.tasks:
            self.limits.watch(launch)

    def _start_staged(self, launch: Launch) -> None:
        """The full way: devices may have to become ready, data to move, engines to be shared."""
        refusal = self.launcher.transfers.items_refusal(launch.tasks, launch.placement, 0)
        if refusal is not None:
            raise self.illegal(f"started {launch.task} on {launch.placement}, but {refusal}")
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            at_once = available_at(state, self.clock._now, 0) <= self.clock._now and state.up and not state.asleep
            if not state.normal and at_once and state.frequency == state.slowdown == 1.0:
                state.normal = True  # for the next launch; this one gets here only if something was unusual
        self.launcher.begin(launch)
        if self.backlog is not None:
            self.backlog.materialised(launch)

    def _stop(self, decision: Stop) -> None:
        self._not_short(decision)
        launch = self._running_launch(decision.task, "stopped")
        self.stop_launch(launch, decision.keep)

    def stop_launch(self, launch: Launch, keep: bool, fault: bool = False) -> None:
        tasks = launch.tasks
        if not fault and not all(task.shape.preemptible for task in tasks):
            raise self.illegal(f"stopped {launch.task}, which is not preemptible")
        self._note_start(launch)
        self.launcher.stop(launch, keep, fault=fault)
        if self.limits is not None:
            self.limits.over(launch, keep and not fault)
        self._forget(launch)
        for task in tasks:
            self._make_ready(task)
        self.changed("release")

    def _move(self, decision: Move) -> None:
        self._not_short(decision)
        task, placement = decision.task, decision.placement
        launch = self._running_launch(task, "moved")
        if len(launch.tasks) > 1:
            raise self.illegal(f"moved {task}, which runs in a batch of {len(launch.tasks)}")
        position = task.shape.position.get(placement.mode)
        if position is None or (task.allowed is not None and position not in task.allowed):
            may_not = "lacks" if position is None else "may not use"
            raise self.illegal(f"moved {task} to mode {placement.mode}, which it {may_not}")
        if not task.shape.preemptible:
            raise self.illegal(f"moved {task}, which is not preemptible")
        self._note_start(launch)
        self.launcher.stop(launch, keep=True, outcome=LAUNCH_MOVED)
        if self.limits is not None:
            self.limits.over(launch)
        self._forget(launch)
        refusal = self.capacity.refusal(placement)
        if refusal is not None:
            raise self.illegal(f"moved {task} to {placement}, but {refusal}")
        self._launch((task,), placement)
        self.changed("release")

    def _note_start(self, launch: Launch) -> None:
        """The first stage of a task's first launch is the end of its wait."""
        start = launch.decided if launch.stages is None else launch.stages.start
        if start == start:
            for task in launch.tasks:
                if self._starts[task.index] != self._starts[task.index]:
                    self._starts[task.index] = start

    def _forget(self, launch: Launch) -> None:
        """A launch that ended: nothing keeps it or its tasks alive, not even a stale event."""
        del self.running[launch.number]
        for task in launch.tasks:
            self._place_of(task, launch)
            task._launch = None
        launch.tasks = ()
        launch.task = None  # type: ignore[assignment]

    def _place_of(self, task: Task, launch: Launch) -> None:
        self._place[task.index] = self._place_code(launch.placement, launch.cores)
        self._modes[task.index] = task.shape.position[launch.placement.mode]

    def _running_launch(self, task: Task, verb: str) -> Launch:
        if task.state != RUNNING or task._launch is None:
            raise self.illegal(f"{verb} {task}, but it {state_of(task)}")
        return task._launch

    def _not_short(self, decision: Decision) -> None:
        """Batches that go the short way can be disturbed by nothing."""
        if self.pipeline is not None:
            raise self.illegal(f"yields {decision!r}, but its batching policies say `undisturbed`; let one say False")

    def _reject(self, decision: Reject) -> None:
        task = decision.task
        if isinstance(task, Requests):
            self._discard(task, EXPIRED if decision.expired else REJECTED, str(decision.reason))
            return
        if task is None or task.state not in (WAITING, BLOCKED):
            state = "names no task" if task is None else f"names {task}, which {state_of(task)}"
            raise self.illegal(f"yielded a Reject that {state}")
        self.end_task(task, EXPIRED if decision.expired else REJECTED, str(decision.reason))

    def _discard(self, requests: Requests, status: int, reason: str) -> None:
        """Waiting requests end without having run."""
        queue = requests.queue
        waiting = len(queue)
        if self.queues[queue.number] is not queue or not 1 <= requests.count <= waiting:
            raise self.illegal(f"discards {requests}, of which {waiting} wait")
        if requests.tasks is not None:
            for task in requests.tasks:
                if task.state != WAITING:
                    raise self.illegal(f"discards {task}, but it {state_of(task)}")
                self.end_task(task, status, reason)
            return
        first, now = queue.take(requests.count), self.clock._now
        self.recorder.discard(queue.number, first, requests.count, status, now, reason)
        self.requests_left -= requests.count
        self.ended += requests.count
        self._settled = self.decisions
        self._look_whether_drained()

    def _annotate(self, decision: Annotate) -> None:
        task, cause = decision.task, decision.cause
        if task.state != WAITING or cause not in ("quota", "reservation", "choice"):
            meant = "a waiting task, and quota, reservation or choice, are meant"
            raise self.illegal(f"holds {task} for {cause!r}; {meant}")
        if self._held.get(task.index) != cause:
            self._held[task.index] = cause
            self.recorder.holds.append((self.clock._now, task.index, cause))

    def _set(self, decision: Set) -> None:
        self._not_short(decision)
        self.devices.set(decision.device, decision.frequency)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time, in the order of faults (before arrivals, after finishes)."""
        if time < self.clock._now:
            raise UsageError(f"t = {time:g} s is past: it is {self.clock._now:g} s")
        self.clock.at(time, FAULT, Timer(lambda _: action()))

    def _fetch(self, decision: Fetch) -> None:
        self.devices.state(decision.device)
        self.last_launch += 1  # a place in the start order of the upload engine
        problem = self.launcher.transfers.fetch(
            decision.item, decision.device, self.last_launch, lambda: self.changed("change")
        )
        if problem is not None:
            raise self.illegal(f"fetches item {decision.item} to {decision.device}, but {problem}")

    def _drop(self, decision: Drop) -> None:
        self.devices.state(decision.device)
        problem = self.places.drop(decision.item, decision.device)
        if problem is not None:
            raise self.illegal(f"drops item {decision.item} from {decision.device}, but {problem}")

    def _wait(self, decision: Wait) -> None:
        self._wake_on = "change" if decision.on == "fit" else decision.on
        if self.capacity.budgets and self.waiting:
            self._wake_on = "change"  # whom a limit of his partition keeps waits, even where a policy sees nobody
        until = decision.until
        if until == math.inf:
            if self._wake.entry >= 0:
                self.clock.cancel(self._wake)
            return
        if not until > self.clock._now:
            raise self.illegal(f"waits until t = {until:g} s, which is not later than now")
        here = self.running or self.waiting or self.deferred or self.requests_left or self.iterating
        # A run with a horizon lasts until then, and devices take power: whoever puts them to sleep is heard as well.
        if here or self.sources.to_come or self.input.horizon < math.inf:
            self.clock.again(until, TIMER, self._wake)

    _handlers: dict[type, Any] = {
        Stop: _stop, Move: _move, Reject: _reject, Annotate: _annotate, Set: _set, Fetch: _fetch, Drop: _drop,
    }  # fmt: skip

    def launches_on(self, device: Any) -> list[Launch]:
        """Launches in flight on a device, in the order of their start.  Linear in what runs; for rare things."""
        return [launch for launch in self.running.values() if device in launch.placement.devices]
