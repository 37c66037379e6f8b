"""One run: arrivals in, rounds of decisions, records out.

`advance()` goes to the next round and `apply(decision)` validates and carries out one decision; `run()` calls
nothing else, and neither does any other driver of the engine.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np

from sim.engine.backlog import Backlog
from sim.engine.capacity import Capacity, available_at
from sim.engine.checks import Checker
from sim.engine.clock import ARRIVAL, FAULT, FINISH, TIMER, Clock, Timer
from sim.engine.complaints import deadlock, malformed, raised, state_of
from sim.engine.devices import Devices
from sim.engine.faults import FaultInjector
from sim.engine.fleet import Serving
from sim.engine.launch import COMPUTE, Launch, Terms
from sim.engine.launcher import Launcher
from sim.engine.links import Links
from sim.engine.pipeline import BatchLaunch, Pipeline, undisturbed
from sim.engine.places import Places
from sim.engine.received import Received
from sim.engine.recorder import Recorder
from sim.engine.requests import Sliced, Taskwise, make_queues
from sim.engine.sources import Graph, Patience, Sources, with_own_columns
from sim.engine.view import EngineView
from sim.errors import HetsimError, PolicyError, Problem, RunError, ScenarioError, UsageError
from sim.model.plan import Placement
from sim.model.record import (
    COMPLETED,
    EXPIRED,
    FAILED,
    LAUNCH_MOVED,
    LAUNCH_RUNNING,
    REJECTED,
    UNFINISHED,
    Record,
    RunInput,
)
from sim.model.tasks import BLOCKED, ENDED, FUTURE, RUNNING, WAITING, Stopping, Task
from sim.policy.batching import BatchReport, Counter
from sim.policy.contract import (
    Accept,
    Admission,
    Decision,
    Defer,
    Drop,
    Fetch,
    Hold,
    Move,
    Reject,
    Requests,
    Scheduler,
    Set,
    Start,
    Stop,
    Wait,
)

FATES = {REJECTED: "was rejected", EXPIRED: "expired", FAILED: "failed"}

LOOP_LIMIT = 10_000
"""Rounds, or decisions, at one instant without any task ending, after which a policy is reported as looping."""


class Simulation:
    """The engine.  `fast=False` sends every launch through all stages (same tables; a test says so)."""

    def __init__(
        self,
        run: RunInput,
        *,
        check: bool = False,
        fast: bool = True,
        progress: Callable[[float, int, int], None] | None = None,
    ):
        self.input = run = with_own_columns(run)
        self.tasks = run.tasks
        self.scheduler: Scheduler = run.scheduler
        self.admission = run.admission
        self.clock = Clock()
        self.clock.end = run.horizon
        self.clock.round_due = True  # one round before anything happens, for policies that prepare
        self.capacity = Capacity(run.cluster)
        self.links = Links(run.cluster, self.clock)
        self.places = Places(run.cluster, self.capacity, self.links, run.tasks)
        self.recorder = Recorder(run)
        self.received = Received(self)
        self.launcher = Launcher(
            self.clock, self.capacity, self.links, self.places, self.recorder, self._launch_completed,
            self.received.staged,
        )
        self.running: dict[int, Launch] = {}
        """Launches in flight by number, in the order of their start."""
        self.waiting: dict[int, Task] = {}
        """Tasks that wait, by row, in the order in which they became ready."""
        self.view = EngineView(self)
        self.ended = 0
        self.decisions = 0
        self.rounds = 0
        plain = self.tasks.plain and not self.tasks.items
        quick = self._quick_modes() if plain else frozenset()
        self._quick = quick if fast else frozenset()
        free = all(shape.stopping == Stopping() for shape in self.tasks.shapes)
        self.steady = free and all(mode in quick for shape in self.tasks.shapes for mode in shape.modes)
        """Does every launch compute, at nominal rate, from its start on?  Until frequencies or failures change it."""
        self.last_launch = 0
        """Number of the last launch (or prefetch), in start order."""
        self._wake_on = "change"
        self._wake = Timer(self._woken)
        self._instant = -1.0
        self._settled = 0  # decisions made before this instant, or before the last task ended
        self._idle_wakes = 0
        self.deferred = 0
        """Tasks that admission will be asked about again."""
        self._closed = False
        self.backlog: Backlog | None = None
        """Work ahead by kind, from the first question on."""
        self._planning = math.nan
        self._held: dict[int, str] = {}
        self._finish_quick_method = self._finish_quick
        self._starts = self.recorder.start
        self._finishes = self.recorder.finish
        self._modes = self.recorder.mode
        self._place = self.recorder.place
        self._place_code = self.recorder.place_code
        self._status = self.recorder.status
        self.graph = None if self.tasks.predecessors is None else Graph(self.tasks.predecessors)
        self.patience = None if self.tasks.expires is None else Patience(self.clock, self._expire)
        self.devices = Devices(self)
        self._linked = self.graph is not None or bool(run.closed) or bool(self.tasks.items)
        """Does the end of a task concern others (successors, clients of a closed loop, readers of its data)?"""
        self._ready = self.recorder.ready_column() if self._linked or run.admission is not None else None
        unconditional = not (run.admission or self.graph or self.patience or self.tasks.items)
        deliver = self._make_ready if unconditional else self._admit
        self.pipeline = Pipeline(self) if fast and undisturbed(run, self.links) else None
        """The short way of batches, where nothing can disturb them."""
        single = not unconditional or run.closed or any(batching.per_request for batching in run.batching)
        single = single or any(service.cache is not None for service in run.services)
        self.queues: list[Any] = make_queues(self, sliced=self.pipeline is not None and not single)
        self.requests_left = sum(queue.total for queue in self.queues if isinstance(queue, Sliced))
        """Requests without an object of their own that have not ended, those to come included."""
        self.iterating = 0
        """Requests to language models that have arrived and not ended."""
        self.checker = Checker(self) if check else None
        self.serving = Serving(self) if run.language else None
        self._queue_of = {queue.service.shape: queue for queue in self.queues}
        self._hooks()
        absent = self.requests_left > 0
        self.sources = Sources(run, self.clock, self._status, deliver, progress, self.capacity.tidy, absent)
        self.bind(run.scheduler)
        if run.faults:
            FaultInjector(self, run.faults)

    # Preparation --------------------------------------------------------------------------------------------

    def bind(self, scheduler: Scheduler) -> None:
        """Hand the problem (to policies that plan) and the view to the policy, once."""
        if type(scheduler).prepare is not Scheduler.prepare:
            if self.serving is not None:
                what = f"{self.input.policy} plans all tasks beforehand, and requests to language models are none"
                raise ScenarioError(Problem(f"{what}; name a dynamic policy", key="policy.scheduler"))
            from sim.engine.rehearsal import problem_of  # which builds simulations

            begun = perf_counter()
            self.call(scheduler.prepare, problem_of(self.input, self.view.random))
            self._planning = perf_counter() - begun
        if self.queues:
            batching = self.input.batching
            counters = [Counter(queue, policy) for queue, policy in zip(self.queues, batching, strict=True)]
            served = sum(queue.total for queue in self.queues)
            self.call(scheduler.serve, counters, served == len(self.tasks))
            for queue, policy in zip(self.queues, batching, strict=True):
                self.call(policy.begin, queue, self.view)
        self.call(scheduler.begin, self.view)
        if not _inert(self.admission, "begin"):
            self.call(self.admission.begin, self.view)

    def _hooks(self) -> None:
        """Hooks that a policy does not override are not called."""
        kind = type(self.scheduler)
        self._on_finished = None if kind.finished is Scheduler.finished else self.scheduler.finished
        self._on_ready: Any = None if kind.ready is Scheduler.ready else self.scheduler.ready
        if self.queues:
            self._on_ready = self._join_queue
        asked = self.admission
        self._ask = None if asked is None else asked.admit
        self._admitted_finished = None if _inert(asked, "finished") else asked.finished
        self._admitted_gone = None if _inert(asked, "gone") else asked.gone

    def _quick_modes(self) -> frozenset[Any]:
        """Modes whose launches only compute: no transfers, and devices that serve one launch at a time."""
        quick = set()
        for shape in self.tasks.shapes:
            for mode in shape.modes:
                kind = mode.type
                serial = mode.on_cpu or (kind.streams == 1 and kind.sharing.kind == "exclusive")
                one_node = (not mode.span_any or mode.span_speed == 1.0) and mode.span_speeds is None
                no_transfer = not any((mode.upload.fixed, mode.upload.per_item, mode.download.fixed,
                                       mode.download.per_item))  # fmt: skip
                if serial and no_transfer and one_node:
                    quick.add(mode)
        return frozenset(quick)

    # The loop -----------------------------------------------------------------------------------------------

    def run(self) -> Record:
        """Until drained or the horizon.  A RunError carries the record up to then as `record`."""
        collecting = gc.isenabled()
        gc.disable()  # nothing here makes cycles in bulk, and collecting costs up to 14 % of a run
        if self._closed:
            raise RunError("a simulation runs once; build another for another run")
        try:
            schedule = self.scheduler.schedule
            view, apply = self.view, self.apply
            while self.advance():
                decision = None
                try:
                    for decision in schedule(view):
                        apply(decision)
                except HetsimError:
                    raise
                except Exception as error:
                    raise self._blame(error, decision) from error
                if self.checker is not None:
                    self.checker.check()
            self._finish_run()
        except RunError as error:
            error.time = self.clock._now
            error.record = self.record(self.clock._now)  # type: ignore[attr-defined]
            raise
        finally:
            if collecting:
                gc.enable()
        return self.record(self.clock._now if math.isinf(self.input.horizon) else self.input.horizon)

    def _blame(self, error: Exception, decision: Any) -> Exception:
        """Whose fault is what a round raised?  The frame below `run` is either the policy's or `apply`."""
        trace = error.__traceback__
        inner = None if trace is None else trace.tb_next
        if inner is None:
            return self.illegal("returned from schedule what cannot be walked; yield decisions, or return a list")
        if inner.tb_frame.f_code is not Simulation.apply.__code__:
            return raised(self, error, "schedule")
        wrong = malformed(self, decision)
        return error if wrong is None else self.illegal(wrong)

    def advance(self) -> bool:
        """Go to the next instant at which the policy is to be asked; False when the run is over."""
        clock = self.clock
        if not clock.advance():
            return False
        clock.round_due = False
        self.rounds += 1
        now = clock._now
        if now != self._instant:
            self._instant = now
            self._settled = self.decisions
        self._wake_on = "change"
        if self._wake.entry >= 0:
            clock.cancel(self._wake)
        return True

    def _look_for_loop(self) -> None:
        """Many decisions at one instant are fine while tasks keep starting; going in circles is not."""
        made = self.decisions - self._settled
        if made > LOOP_LIMIT + 10 * (len(self.waiting) + len(self.running)):
            raise self.illegal(f"made {made:,} decisions at one instant and no task came to an end: it loops")

    def changed(self, cause: str) -> None:
        """Something of this kind happened: is the policy to be asked?  cause: change, release or ready."""
        wake_on = self._wake_on
        if wake_on == "change" or cause in (wake_on, "change"):
            self.clock.round_due = True

    def _woken(self, _: Timer) -> None:
        """A policy's own timer.  One that only ever waits for timers while nothing runs waits for ever."""
        self.clock.round_due = True
        if self.running or self.sources.to_come or self.iterating:
            self._idle_wakes = 0
            return
        self._idle_wakes += 1
        if self._idle_wakes > LOOP_LIMIT:
            raise deadlock(self)

    def _finish_run(self) -> None:
        """The heap has run dry or the horizon is reached: is anything waiting for nothing?"""
        if self.iterating and not self.clock.pending:
            raise RunError(f"{self.iterating} requests to language models wait, and nothing will ever happen")
        if self.clock.pending or self.running:
            return
        if not (self.waiting or self.requests_left or any(len(queue) for queue in self.queues)):
            return
        if self.clock._now < self.input.horizon or math.isinf(self.input.horizon):
            raise deadlock(self)

    def _close(self, now: float) -> None:
        """At the end of the run: write down what is still in flight."""
        for launch in list(self.running.values()):
            if isinstance(launch, BatchLaunch):
                assert self.pipeline is not None
                self.pipeline.write(launch, LAUNCH_RUNNING, now)
                continue
            if launch.stages is not None:
                if launch.stage == COMPUTE:
                    self.clock._now = now
                    self.launcher.compute.settle(launch)
                self.recorder.launch(launch, LAUNCH_RUNNING, now)
                self._note_start(launch)
                for task in launch.tasks:
                    self.recorder.detail("batch")[task.index] = launch.number
            for task in launch.tasks:
                self._place_of(task, launch)

    def record(self, end: float) -> Record:
        """Close the books at a time."""
        self._closed = True
        for queue in self.queues:
            if isinstance(queue, Sliced):
                self._status_of(queue, end)
        self._close(end)
        if self.serving is not None:
            self.serving.close(end)
        stats = {"rounds": self.rounds, "decisions": self.decisions, "launches": self.last_launch}
        record = self.recorder.record(end, {name: float(value) for name, value in stats.items()})
        record.notes, record.planning = dict(self.scheduler.notes), self._planning
        return record

    # Arrivals -----------------------------------------------------------------------------------------------

    def _admit(self, task: Task) -> None:
        """Ask the admission policy, then let the task wait for its predecessors or for a device."""
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
                self.end_task(task, REJECTED, str(answer.reason))
                return
            elif isinstance(answer, Defer):
                self._defer(task, answer.until)
                return
            else:
                raise self.illegal(f"admission answered {answer!r} for {task}; Accept, Reject or Defer is expected")
        if self.patience is not None and task.expires < math.inf:
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
            self.serving.arrived(task)
            return
        self.waiting[task.index] = task
        if self._on_ready is not None:
            try:
                self._on_ready(task)
            except HetsimError:
                raise
            except Exception as error:
                raise raised(self, error, "ready") from error
        if self._wake_on != "release":
            self.clock.round_due = True

    def _join_queue(self, task: Task) -> None:
        """A task that waits goes to its service's queue, or to the scheduler."""
        queue = self._queue_of.get(task.shape)
        if queue is None:
            self.scheduler.ready(task)
            return
        assert isinstance(queue, Taskwise)
        if queue.cache is not None and queue.cache.holds(queue.input_of(task)):
            self._answer(task, queue)
            return
        if queue.service.request_delay and task._history is None:
            self._travel(task, queue.service.request_delay, lambda: self._arrive(task, queue))
            return
        self._arrive(task, queue)

    def _travel(self, task: Task, seconds: float, then: Callable[[], None]) -> None:
        """A request, or its response, is on its way between the front end and the node."""
        self.waiting.pop(task.index, None)
        task.state = FUTURE
        self.deferred += 1

        def there(_: Timer) -> None:
            self.deferred -= 1
            then()

        self.clock.at(self.clock._now + seconds, ARRIVAL, Timer(there))

    def _arrive(self, task: Task, queue: Taskwise) -> None:
        """A request is at the node that may serve it."""
        task.state = WAITING
        self.waiting[task.index] = task
        if task.expires <= self.clock._now:
            self.end_task(task, EXPIRED, "patience ended")
            return
        queue.push(task)
        if queue.wanted and (len(queue) >= queue.wanted or queue.over):
            self.clock.round_due = True

    def _answer(self, task: Task, queue: Taskwise) -> None:
        """The result of a request is in the cache: it needs no device."""
        assert queue.service.cache is not None
        queue.never()
        del self.waiting[task.index]
        task.state = RUNNING
        self.deferred += 1  # neither waiting nor in a launch, and yet to end
        self._starts[task.index] = self.clock._now
        self.clock.at(self.clock._now + queue.service.cache.hit, FINISH, Timer(lambda _: self._answered(task)))

    def _answered(self, task: Task) -> None:
        self.deferred -= 1
        row, now = task.index, self.clock._now
        self._finishes[row] = now
        self._status[row] = COMPLETED
        self.recorder.detail("compute")[row] = now - self._starts[row]
        self.recorder.detail("upload"), self.recorder.detail("download")
        self._completed(task)

    def _status_of(self, queue: Sliced, end: float) -> None:
        """At the end of the run: the requests of a slice that have come are unfinished so far."""
        arrival = self.tasks.arrival[queue.service.rows]
        # What would arrive at the very end of a horizon does not; a run that stops elsewhere has seen its instant.
        side: Any = "left" if end > self.clock._now or end == self.input.horizon else "right"
        arrived = max(queue.head_at, int(np.searchsorted(arrival, end, side=side)))
        np.frombuffer(self._status, dtype=self._status.typecode)[queue.service.rows[:arrived]] = UNFINISHED

    def _defer(self, task: Task, until: float) -> None:
        """Not yet: ask again.  A deferred task does not count as progress, or waiting for it could never end."""
        if not self.clock._now < until < math.inf:
            raise self.illegal(f"admission defers {task} until t = {until:g} s; a later, finite time is expected")
        task.state = FUTURE
        self.deferred += 1

        def ask_again(timer: Timer) -> None:
            self.deferred -= 1
            self._admit(task)
            self._woken(timer)  # it may be the head of a queue in order of arrival

        self.clock.at(until, ARRIVAL, Timer(ask_again))

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

    # Decisions ----------------------------------------------------------------------------------------------

    def apply(self, decision: Decision) -> None:
        """Validate and carry out one decision; an illegal one raises PolicyError."""
        self.decisions += 1
        kind: Any = decision.__class__
        if kind is Start:
            self._start(cast(Start, decision))
        elif kind is Wait:
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
                return
        self._start_staged(launch)

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
            self._discard(task, str(decision.reason))
            return
        if task is None or task.state not in (WAITING, BLOCKED):
            state = "names no task" if task is None else f"names {task}, which {state_of(task)}"
            raise self.illegal(f"yielded a Reject that {state}")
        self.end_task(task, REJECTED, str(decision.reason))

    def _discard(self, requests: Requests, reason: str) -> None:
        """Waiting requests end without having run."""
        queue = requests.queue
        waiting = len(queue)
        if self.queues[queue.number] is not queue or not 1 <= requests.count <= waiting:
            raise self.illegal(f"discards {requests}, of which {waiting} wait")
        if requests.tasks is not None:
            for task in requests.tasks:
                if task.state != WAITING:
                    raise self.illegal(f"discards {task}, but it {state_of(task)}")
                self.end_task(task, REJECTED, reason)
            return
        first, now = queue.take(requests.count), self.clock._now
        self.recorder.discard(queue.number, first, requests.count, REJECTED, now, reason)
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
        self._wake_on = decision.on
        until = decision.until
        if self.queues:
            self._await_requests(decision.arrivals)
        if until == math.inf:
            if self._wake.entry >= 0:
                self.clock.cancel(self._wake)
            return
        if not until > self.clock._now:
            raise self.illegal(f"waits until t = {until:g} s, which is not later than now")
        here = self.running or self.waiting or self.deferred or self.requests_left or self.iterating
        if here or self.sources.to_come:
            self.clock.again(until, TIMER, self._wake)

    def _await_requests(self, arrivals: Any) -> None:
        """Wake the policy when so many requests wait in each of these queues, or the last has come."""
        for queue in self.queues:
            queue.wanted = 0
        for queue, count in arrivals:
            queue.wanted = count
        for queue in self.queues:
            if isinstance(queue, Sliced):
                if queue.wanted:
                    queue.wake_at(queue.wanted)
                else:
                    self.clock.cancel(queue.timer)

    _handlers: dict[type, Any] = {
        Stop: _stop, Move: _move, Reject: _reject, Hold: _hold, Set: _set, Fetch: _fetch, Drop: _drop,
    }  # fmt: skip

    def launches_on(self, device: Any) -> list[Launch]:
        """Launches in flight on a device, in the order of their start.  Linear in what runs; for rare things."""
        return [launch for launch in self.running.values() if device in launch.placement.devices]

    # Ends ---------------------------------------------------------------------------------------------------

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
        """If nothing waits, runs or is to come, nothing is blocked either: later events do not prolong the run."""
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

    # Errors -------------------------------------------------------------------------------------------------

    def call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a policy's hook; what it raises becomes an error with an address."""
        try:
            return hook(*arguments)
        except HetsimError:
            raise
        except Exception as error:
            raise raised(self, error, getattr(hook, "__name__", "hook")) from error

    def illegal(self, what: str) -> PolicyError:
        return PolicyError(f'policy "{self.input.policy}" {what} (t = {self.clock._now:g} s)')


def _inert(policy: Any, hook: str) -> bool:
    """Has a policy nothing to do in a hook?"""
    return getattr(type(policy), hook, None) in (None, getattr(Admission, hook))
