"""Starts of launches: a policy's Start decision is validated and becomes a launch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetsim.engine.control.arrivals import Arrivals
from hetsim.engine.core.policy_errors import STATES, illegal, position_in
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.durations import work
from hetsim.engine.flight.launch import FusedLaunch, Launch, LentLaunch, Terms
from hetsim.engine.kernel.clock import FINISH
from hetsim.engine.launching.launches import Launches
from hetsim.engine.launching.stopping import TimeLimits
from hetsim.engine.resources.occupancy import available_at
from hetsim.engine.views.placing import together
from hetsim.model.demand import Stopping
from hetsim.model.fusion import fused_mode, fusible
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import BLOCKED, RUNNING, WAITING, Task
from hetsim.model.tasks import Tasks
from hetsim.policy.decisions import Start
from hetsim.policy.request_queue import Requests


@dataclass(eq=False)
class Starts:
    """Validates and starts launches."""

    state: RunState
    signals: Signals
    launches: Launches
    arrivals: Arrivals
    limits: TimeLimits | None
    finish_quick: Callable[[Launch], None]  # called at the end of a launch in one of the `quick` modes
    quick: frozenset[Mode]

    def __post_init__(self) -> None:
        self._boundary = self.launches.boundary
        self._starts = self.state.recorder.start
        run, quick = self.state.input, self.quick
        asked = {*(service.shape for service in run.services), *(service.shape for service in run.language)}
        # by mode without data items, MIG and requests: True if compute-only
        self._simple = {} if run.tasks.items else {
            mode: mode in quick for shape in run.tasks.shapes for mode in shape.modes
            if mode.type.sharing.kind != "mig" and shape not in asked
        }  # fmt: skip
        # shapes of tasks that cost nothing to stop and resume
        self._free = frozenset(shape for shape in run.tasks.shapes if shape.stopping == Stopping())

    def start(self, decision: Start) -> None:
        """Start tasks; the usual case is handled here, all other ones in `start_fully`."""
        placement: Placement = decision.placement
        mode = placement.mode
        quick = self._simple.get(mode)
        if quick is not None and decision.tasks.__class__ is Task:
            task: Task = decision.tasks
            position = task.shape.position.get(mode)
            if task.state == WAITING and task._history is None and task.allowed is None and position is not None:
                state = self.state
                if (cores := state.capacity.quick_take(placement)) >= 0:
                    now = state.clock._now
                    state.last_launch = number = state.last_launch + 1
                    task.state = RUNNING
                    row = task.index
                    del state.waiting[row]  # after `quick_take`, which may refuse with nothing changed
                    then = self.finish_quick if quick else self._boundary
                    task._launch = launch = Launch(then, number, (task,), placement, now)
                    launch.cores = cores
                    launch.position = position
                    if quick:
                        # It only computes, so its end is known now: one clock entry, and no timetable.
                        self._starts[row] = now
                        state.clock.at(now + (mode.single + task._time[position]), FINISH, launch)
                    else:
                        self.launches.begin(launch)
                    state.running[number] = launch
                    if self.limits is not None:
                        self.limits.watch(launch)
                    return
        self.start_fully(decision)

    def start_fully(self, decision: Start) -> None:
        """Start a task, a batch, requests of a queue, or several tasks as one kernel."""
        tasks, placement = decision.tasks, decision.placement
        if isinstance(tasks, Requests):
            self._start_requests(tasks, placement)
            return
        batch = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
        if batch and (queue := self.state.queue_of.get(batch[0].shape)) is not None:
            # Requests that a policy names one by one are a batch of their own.
            self._start_requests(Requests(queue, len(batch), len(batch), batch), placement)
            queue.ring()  # its policy may want another batch at once
        elif batch and placement.mode.parts:
            self._start_fused(batch, placement)
        else:
            self._check(batch, placement, max(1, placement.mode.batch_limit))
            self.launch(batch, placement)

    def _check(self, batch: tuple[Task, ...], placement: Placement, limit: int) -> None:
        """Raise PolicyError if the batch is too large or its tasks may not start here."""
        mode = placement.mode
        if not batch or len({task.index for task in batch}) != len(batch):  # a task must not end twice
            raise illegal(self.state, f"started a batch on {placement} that is empty, or contains a task twice")
        if len(batch) > limit:
            raise illegal(self.state, f"started {len(batch)} tasks as one batch; mode {mode} allows at most {limit}")
        for task in batch:
            if (fleet := self.state.serving.fleets.get(task.shape)) is not None:
                text = f"a request to {fleet.service}, a language model, whose replicas admit requests themselves"
                raise illegal(self.state, f"started {task} on {placement}, but it is {text}")
            if task.state != WAITING:
                raise illegal(self.state, f"started {task} on {placement}, but it {STATES[task.state]}")
            its_own = task.shape.position.get(mode)
            if its_own is None or (task.allowed is not None and its_own not in task.allowed):  # inlined: hot path
                position_in(self.state, task, mode, "started")

    def _start_fused(self, batch: tuple[Task, ...], placement: Placement) -> None:
        """Launch tasks as one kernel; each may wait only for tasks of the same launch."""
        mode, names = placement.mode, ", ".join(str(task) for task in batch[:5])
        if len(mode.parts) != len(batch) or not _as_fused(mode):
            raise illegal(self.state, f"started {names} in mode {mode}, which is not the mode of their fused launch")
        if together(self.state, [task.index for task in batch]) != batch:
            waits = next((task for task in batch if task.state not in (WAITING, BLOCKED)), None)
            why = "a task waits for others, or is named twice" if waits is None else f"{waits} {STATES[waits.state]}"
            raise illegal(self.state, f"started {names} as one launch on {placement}, but {why}")
        for task, own in zip(batch, mode.parts, strict=True):
            position_in(self.state, task, own, "started")
        now, fusion = self.state.clock._now, self.launches.transfers.fusion(batch)
        launch = FusedLaunch(self._boundary, 0, batch, placement=placement, now=now)
        launch.fusion, launch.position = fusion, batch[0].shape.position[mode.parts[0]]
        self._seat(launch, batch[0])
        for task in batch:
            if task.state == BLOCKED:
                del self.state.graph.blocked[task.index]
                self.arrivals.ready_inside(task)
        self._run(launch)
        self._begin(launch)

    def _start_requests(self, requests: Requests, placement: Placement) -> None:
        queue, mode, count = requests.queue, placement.mode, requests.count
        position: int | None = queue.service.shape.position.get(mode)
        holder = queue.holder
        foreign = holder is None and self.state.queues[queue.number] is not queue
        if position is None or foreign or queue.fleet is not None:
            why = "which is not one of their modes" if queue.fleet is None else "but replicas form batches themselves"
            raise illegal(self.state, f"started {requests} in mode {mode}, {why}")
        waiting = len(queue)
        if not 1 <= count <= waiting:
            raise illegal(self.state, f"started {requests}, but only {waiting} of them wait")
        if not count <= requests.size <= mode.batch_limit:
            limit = f"mode {mode} allows at most {mode.batch_limit}"
            raise illegal(self.state, f"started {requests} as a batch of {requests.size}; {limit}")
        if (tasks := requests.tasks) is not None:
            self._check(tasks, placement, len(tasks))
        padding = (requests.size - count) * queue.service.per_item[position]
        factors = queue.factors(mode, requests.size)
        terms = Terms(requests, padding, factors, queue.arrival(0))
        launch = (Launch if holder is None else LentLaunch)(
            self._boundary, 0, (), placement=placement, now=self.state.clock._now
        )
        if holder is not None:
            launch.within = holder
        launch.terms, launch.position = terms, position
        self._seat(launch, requests if tasks is None else tasks[0])  # before the queue changes: it may be refused
        if tasks is None:
            terms.first, terms.own_rows, tasks = queue.take(count)
        else:
            terms.own_rows = [task.index for task in tasks]
            for row in terms.own_rows:
                queue.remove(row)
        for row in terms.rows if holder is not None else ():
            holder.fleet.queue.remove(row)
        if tasks is not None and terms.first < 0:  # not always in order of arrival
            terms.oldest = min([task.arrival for task in tasks]) + queue.delay
        again = tasks is not None and queue.returned and any(task._history is not None for task in tasks)
        terms.fresh = not (self.state.places.items or mode.on_cpu or again)
        launch._tasks = tasks  # only requests that exist as objects
        self._run(launch)
        self._begin(launch)

    def _seat(self, launch: Launch, what: Any, verb: str = "started") -> None:
        """Place and number a launch; PolicyError (text: `verb`, `what`) if it cannot run."""
        placement, cores = launch.placement, -1
        if (holder := launch.within) is not None and holder.first(placement.mode) is not placement:
            raise illegal(self.state, f"{verb} {what} on {placement}, but {holder} has no room there")
        if holder is None and not self.state.places.items and placement.mode.type.sharing.kind != "mig":
            cores = self.state.capacity.quick_take(placement)
        if holder is None and cores < 0 and (refusal := self.state.capacity.refusal(placement)) is not None:
            to = "to" if verb == "moved" else "on"
            raise illegal(self.state, f"{verb} {what} {to} {placement}, but {refusal}")
        # Before `take`: the launch is a key of the slices, and its hash is its number.
        self.state.last_launch = launch.number = self.state.last_launch + 1
        launch.cores = self.state.capacity.take(placement, launch) if cores < 0 else cores

    def _run(self, launch: Launch) -> None:
        (self.state.running if launch.within is None else self.state.lent)[launch.number] = launch
        waiting = self.state.waiting
        for task in launch._tasks or ():
            if task.index in waiting:  # else a moved or blocked task, or a request
                del waiting[task.index]
            task.state = RUNNING
            task._launch = launch

    def launch(self, batch: tuple[Task, ...], placement: Placement, verb: str = "started") -> None:
        now = self.state.clock._now
        task, mode = batch[0], placement.mode
        launch = Launch(self.finish_quick, 0, batch, placement, now)
        launch.position = task.shape.position[mode]
        self._seat(launch, task, verb)
        self._run(launch)
        again = task._history is not None  # it was stopped before: something may have to be restored
        quick = mode in self.quick and len(batch) == 1 and not (again and task.shape not in self._free)
        if quick and all(self.state.capacity.of[device.index].normal for device in placement.devices):
            if again:
                launch.then = self.launches.end_resumed  # its row is added to those of earlier launches
            else:
                self._starts[task.index] = now
            self.state.clock.at(now + work(launch), FINISH, launch)
            if self.limits is not None:
                self.limits.watch(launch)
            return
        self._begin(launch)
        if self.signals.materialized is not None:
            self.signals.materialized(launch)

    def _begin(self, launch: Launch) -> None:
        transfers, items = self.launches.transfers, self.state.places.items
        # Its own memory is taken by now (`_seat`): 0 bytes more.
        if items and (refusal := transfers.items_refusal(launch.tasks, launch.placement, 0)) is not None:
            raise illegal(self.state, f"started {launch.task} on {launch.placement}, but {refusal}")
        launch.then = self._boundary  # it may have stages, whatever its mode
        now = self.state.clock._now
        for device in launch.placement.devices:  # a device whose special state has ended is normal again
            state = self.state.capacity.of[device.index]
            if state.normal:
                continue
            at_once = available_at(state, now, 0) <= now and state.up and not state.asleep
            if at_once and state.frequency == state.slowdown == 1.0:  # 1.0 exactly: a product of no factors
                state.normal = True
        self.launches.begin(launch)
        if self.limits is not None and launch.tasks:  # it may have ended already
            self.limits.watch(launch)


def compute_only(tasks: Tasks) -> frozenset[Mode]:
    """Return the modes in which launches only compute, one at a time on each device."""
    if not tasks.plain or tasks.items:
        return frozenset()
    ready_modes = set()
    for shape in tasks.shapes:
        for mode in shape.modes:
            kind = mode.type
            serial = mode.on_cpu or (kind.streams == 1 and kind.sharing.kind == "exclusive")
            slower = mode.span_any and mode.span_speed != 1.0
            over_nodes = slower or mode.span_speeds is not None or (mode.exchange is not None and mode.node_count > 1)
            no_transfer = not (mode.upload.seconds_for(1) or mode.download.seconds_for(1))
            if serial and no_transfer and not over_nodes and mode.curve is None:
                ready_modes.add(mode)
    return frozenset(ready_modes)


def all_steady(tasks: Tasks, quick: frozenset[Mode]) -> bool:
    """Return True if all modes are `quick` (compute-only) and stopping costs nothing."""
    free = all(shape.stopping == Stopping() for shape in tasks.shapes)  # nothing is saved or restored
    return free and all(mode in quick for mode in tasks.modes)


def _as_fused(mode: Mode) -> bool:
    if fusible(mode.parts) is not None:
        return False
    due = fused_mode(mode.parts)
    return all(getattr(mode, name) == getattr(due, name) for name in ("type", "millicores", "gpus", "share", "memory",
               "gpu_memory", "fixed", "upload", "download", "partition", "table", "span_any"))  # fmt: skip
