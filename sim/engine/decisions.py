"""Decisions: `apply` validates one and carries it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from sim.engine.clock import FAULT, FINISH, TIMER, Later
from sim.engine.complaints import state_of
from sim.engine.holdings import available_at
from sim.engine.launch import FusedLaunch, Launch, Terms
from sim.engine.prefetch import fetch
from sim.engine.state import State
from sim.errors import UsageError
from sim.model.fusion import fused_mode, fusible
from sim.model.plan import Placement
from sim.model.record import EXPIRED, LAUNCH_MOVED, REJECTED
from sim.model.tasks import BLOCKED, ENDED, RUNNING, WAITING, Mode, Task
from sim.policy.contract import Decision, Drop, Fetch, Hold, Move, Pause, Reject, Requests, Set, Start, Stop, Wait

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
        """Launch.  The usual case, one task on one device or one node in its normal state, is validated and done at
        once; everything else, errors included, is looked at more closely."""
        task, placement = decision.tasks, decision.placement
        mode = placement.mode
        if (
            task.__class__ is Task
            and task.state == WAITING
            and task._history is None
            and task.allowed is None
            and mode in self._simple
        ):
            position = task.shape.position.get(mode)
            if position is not None:
                cores = self.capacity.quick_take(placement)
                if cores >= 0:
                    now = self.clock._now
                    self.last_launch = number = self.last_launch + 1
                    task.state = RUNNING
                    row = task.index
                    del self.waiting[row]
                    if mode in self._quick:
                        launch = Launch(self._finish_quick_method, number, (task,), placement, now)
                        self._starts[row] = now
                        self.clock.at(now + (mode.fixed + task._time[position]), FINISH, launch)
                        launch.cores = cores
                        launch.position = position
                        task._launch = launch
                        self.running[number] = launch
                    else:
                        launch = Launch(self._boundary, number, (task,), placement, now)
                        launch.cores = cores
                        launch.position = position
                        task._launch = launch
                        self.launches.begin(launch)
                        self.running[number] = launch
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
            padding = (requests.size - requests.count) * requests.queue.service.per_item[position]
            factors = requests.queue.factors(mode, requests.size)
            terms = Terms(requests, padding, factors, requests.queue.arrival(0))
            if requests.tasks is None:
                self._start_slice(requests, placement, position, terms)
                return
            tasks = requests.tasks
            terms.oldest = min(task.arrival for task in tasks) + requests.queue.service.request_delay
        batch = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
        if terms is None and batch and (queue := self._queue_of.get(batch[0].shape)) is not None:
            # Requests that a policy names one by one are a batch of their own.
            self._start_fully(Start(Requests(queue, len(batch), len(batch), batch), placement))
            return
        if batch and placement.mode.parts:
            self._start_fused(batch, placement)
            return
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
        self._launch(batch, placement, terms, self._take(placement, batch[0]))

    def _start_fused(self, batch: tuple[Task, ...], placement: Placement) -> None:
        """Launch several tasks as one kernel: they wait, or wait only for those before them in the launch."""
        mode, names = placement.mode, ", ".join(str(task) for task in batch[:5])
        if len(mode.parts) != len(batch) or not _as_fused(mode):
            raise self.illegal(f"started {names} in mode {mode}, which is not that of a launch of these as one")
        if self.together([task.index for task in batch]) != batch:
            waits = next((task for task in batch if task.state not in (WAITING, BLOCKED)), None)
            why = "they wait for others, or one is named twice" if waits is None else f"{waits} {state_of(waits)}"
            raise self.illegal(f"started {names} as one on {placement}, but {why}")
        for task, own in zip(batch, mode.parts, strict=True):
            position = task.shape.position.get(own)
            if position is None or (task.allowed is not None and position not in task.allowed):
                may_not = "lacks" if position is None else "may not use"
                raise self.illegal(f"started {task} in mode {own}, which it {may_not}")
        cores = self._take(placement, batch[0])
        now = self.clock._now
        fusion = self.launches.transfers.fusion(batch)
        self.last_launch = number = self.last_launch + 1
        launch = FusedLaunch(self._boundary, number, batch, placement, now, fusion)
        launch.cores = self.capacity.take(placement, launch) if cores < 0 else cores
        self.running[number] = launch
        for task in batch:
            if task.state == BLOCKED:
                assert self.graph is not None
                del self.graph.blocked[task.index]
                self._ready_inside(task)
            else:
                del self.waiting[task.index]
            task.state = RUNNING
            task._launch = launch
        self._start_staged(launch)
        if self.limits is not None and launch.tasks:
            self.limits.watch(launch)

    def together(self, rows: Sequence[int]) -> tuple[Task, ...] | None:
        """Tasks that can be launched as one now, in this order; None if one waits for any but those before it."""
        found: list[Task] = []
        before: dict[int, None] = {}
        for row in rows:
            task = self.waiting.get(row)
            if row in before:
                return None
            if task is None:
                task = None if self.graph is None else self.graph.blocked.get(row)
                if task is None or self.tasks.predecessors is None or self.graph is None:
                    return None
                if self.graph.missing[row] != sum(p in before for p in self.tasks.predecessors[row]):
                    return None
            if task.shape in self._queue_of:
                return None  # requests are launched in batches
            found.append(task)
            before[row] = None
        return tuple(found)

    def _ready_inside(self, task: Task) -> None:
        """A task that only waited for others of its launch was ready with the last of them, or of its others."""
        ready = self._ready
        if ready is None or ready[task.index] == ready[task.index]:
            return
        last = task.arrival
        for row in (self.tasks.predecessors or {task.index: ()})[task.index]:
            ended = self._finishes[row]
            last = max(last, ended if ended == ended else ready[row])
        ready[task.index] = task.ready = last

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

    def _start_slice(self, requests: Requests, placement: Placement, position: int, terms: Terms) -> None:
        """Launch the oldest requests of a queue; they become objects only if something looks at them."""
        cores = self._take(placement, requests)
        self.last_launch = number = self.last_launch + 1
        queue = requests.queue
        terms.first = queue.take(requests.count)
        launch = Launch(self._boundary, number, (), placement, self.clock._now)
        launch._tasks = queue.seen(terms.first, requests.count)
        launch.terms, launch.position = terms, position
        launch.cores = self.capacity.take(placement, launch) if cores < 0 else cores
        for task in launch._tasks or ():
            task.state = RUNNING
            task._launch = launch
        self.running[number] = launch
        self._begin(launch)
        if self.limits is not None:
            self.limits.watch(launch)

    def _take(self, placement: Placement, what: Any) -> int:
        """Check and occupy a placement; the bitmask of cores taken."""
        if not self.places.items and placement.mode.type.sharing.kind != "mig":
            cores = self.capacity.quick_take(placement)
            if cores >= 0:
                return cores
        refusal = self.capacity.refusal(placement)
        if refusal is not None:
            raise self.illegal(f"started {what} on {placement}, but {refusal}")
        return -1

    def _launch(
        self, batch: tuple[Task, ...], placement: Placement, terms: Terms | None = None, cores: int = -1
    ) -> None:
        """Start on a validated placement; `cores` is -1 where it has not been occupied yet."""
        now = self.clock._now
        task, mode = batch[0], placement.mode
        self.last_launch = number = self.last_launch + 1
        launch = Launch(self._finish_quick_method, number, batch, placement, now)
        launch.terms = terms
        launch.position = task.shape.position[mode]
        launch.cores = self.capacity.take(placement, launch) if cores < 0 else cores
        self.running[number] = launch
        for member in batch:
            self.waiting.pop(member.index, None)
            member.state = RUNNING
            member._launch = launch
        if terms is not None:
            for member in batch:
                self._dequeue(terms.requests.queue, member)
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
        if self.backlog is not None:
            self.backlog.materialised(launch)

    def _dequeue(self, queue: Any, task: Task) -> None:
        """A request leaves its queue."""
        for passed in queue.remove(task):
            self.waiting[passed.index] = passed

    def _start_staged(self, launch: Launch) -> None:
        """The full way: devices may have to become ready, data to move, engines to be shared."""
        if self.places.items:
            refusal = self.launches.transfers.items_refusal(launch.tasks, launch.placement, 0)
            if refusal is not None:
                raise self.illegal(f"started {launch.task} on {launch.placement}, but {refusal}")
        launch.then = self._boundary
        self._begin(launch)

    def _begin(self, launch: Launch) -> None:
        """Begin; devices that were unusual and are so no longer are taken as normal from now on."""
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if state.normal:
                continue
            at_once = available_at(state, self.clock._now, 0) <= self.clock._now and state.up and not state.asleep
            if at_once and state.frequency == state.slowdown == 1.0:
                state.normal = True
        self.launches.begin(launch)

    def _stop(self, decision: Stop) -> None:
        launch = self._running_launch(decision.task, "stopped")
        self.stop_launch(launch, decision.keep)

    def stop_launch(self, launch: Launch, keep: bool, fault: bool = False) -> None:
        tasks = launch.tasks
        keep = keep and launch.fusion is None
        if not fault and not all(task.shape.preemptible for task in tasks):
            raise self.illegal(f"stopped {launch.task}, which is not preemptible")
        self._note_start(launch, self.stops.stop(launch, keep, fault=fault)[0])
        if self.limits is not None:
            self.limits.over(launch, keep and not fault)
        self._forget(launch)
        self.wait_again(tasks)
        self.changed("release")

    def wait_again(self, tasks: Sequence[Task]) -> None:
        """Tasks of a launch that was stopped: those that it launched as one wait for each other again."""
        graph = self.graph
        for task in tasks:
            if graph is not None and graph.missing[task.index] > 0:
                task.state = BLOCKED
                graph.blocked[task.index] = task
        for task in tasks:
            if task.state != BLOCKED:
                self._make_ready(task)

    def _move(self, decision: Move) -> None:
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
        self._note_start(launch, self.stops.stop(launch, keep=True, outcome=LAUNCH_MOVED)[0])
        if self.limits is not None:
            self.limits.over(launch)
        self._forget(launch)
        refusal = self.capacity.refusal(placement)
        if refusal is not None:
            raise self.illegal(f"moved {task} to {placement}, but {refusal}")
        self._launch((task,), placement)
        self.changed("release")

    def _note_start(self, launch: Launch, start: float) -> None:
        """The first stage of a task's first launch is the end of its wait."""
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
        launch._tasks = ()

    def _place_of(self, task: Task, launch: Launch) -> None:
        self._place[task.index] = self._place_code(launch.placement, launch.cores)
        mode = launch.placement.mode
        if mode.parts:
            mode = mode.parts[launch.tasks.index(task)]
        self._modes[task.index] = task.shape.position[mode]

    def _running_launch(self, task: Task, verb: str) -> Launch:
        if task.state != RUNNING or task._launch is None:
            raise self.illegal(f"{verb} {task}, but it {state_of(task)}")
        return task._launch

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
        for task in queue.seen(first, requests.count) or ():
            task.state = ENDED
        self.recorder.discard(queue.number, first, requests.count, status, now, reason)
        self.requests_left -= requests.count
        self.ended += requests.count
        self._settled = self.decisions
        self._look_whether_drained()

    def _hold(self, decision: Hold) -> None:
        task, cause = decision.task, decision.cause
        if task.state != WAITING or cause not in ("quota", "reservation", "choice"):
            meant = "a waiting task, and quota, reservation or choice, are meant"
            raise self.illegal(f"holds {task} for {cause!r}; {meant}")
        if self._held.get(task.index) != cause:
            self._held[task.index] = cause
            self.recorder.holds.append((self.clock._now, task.index, cause))

    def _set(self, decision: Set) -> None:
        self.devices.set(decision.device, decision.frequency)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time, in the order of faults (before arrivals, after finishes)."""
        if time < self.clock._now:
            raise UsageError(f"t = {time:g} s is past: it is {self.clock._now:g} s")
        self.clock.at(time, FAULT, Later(action))

    def _fetch(self, decision: Fetch) -> None:
        self.devices.state(decision.device)
        self.last_launch += 1  # a place in the start order of the upload engine
        problem = fetch(self.launches.transfers, decision.item, decision.device, self.last_launch, self._fetched)
        if problem is not None:
            raise self.illegal(f"fetches item {decision.item} to {decision.device}, but {problem}")

    def _fetched(self) -> None:
        self.changed("change")

    def _drop(self, decision: Drop) -> None:
        self.devices.state(decision.device)
        problem = self.places.drop(decision.item, decision.device)
        if problem is not None:
            raise self.illegal(f"drops item {decision.item} from {decision.device}, but {problem}")

    def _wait(self, decision: Wait) -> None:
        self._wake_on = decision.on
        self._certain = decision.certain
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
        Stop: _stop, Move: _move, Reject: _reject, Hold: _hold, Set: _set, Fetch: _fetch, Drop: _drop,
    }  # fmt: skip

    def launches_on(self, device: Any) -> list[Launch]:
        """Launches in flight on a device, in the order of their start.  Linear in what runs; for rare things."""
        return [launch for launch in self.running.values() if device in launch.placement.devices]


def _as_fused(mode: Mode) -> bool:
    """Does the mode of a launch of several tasks as one hold what it must?"""
    if fusible(mode.parts) is not None:
        return False
    due = fused_mode(mode.parts)
    return all(getattr(mode, name) == getattr(due, name) for name in ("type", "millicores", "gpus", "share", "memory",
               "gpu_memory", "fixed", "upload", "download", "partition", "table", "span_any"))  # fmt: skip
