"""One run: arrivals in, rounds of decisions, records out.

`advance()` goes to the next round and `apply(decision)` validates and carries out one decision; `run()` calls
nothing else, and neither does any other driver of the engine.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from oracle.engine.arrivals import Arrivals
from oracle.engine.backlog import Backlog
from oracle.engine.capacity import Capacity
from oracle.engine.checks import Checker
from oracle.engine.clock import Clock, Timer
from oracle.engine.complaints import deadlock, malformed, raised
from oracle.engine.decisions import LOOP_LIMIT, Decisions
from oracle.engine.devices import Devices
from oracle.engine.endings import Endings
from oracle.engine.faults import FaultInjector
from oracle.engine.fleet import Serving
from oracle.engine.launch import COMPUTE, Launch
from oracle.engine.launcher import Launcher
from oracle.engine.limits import TimeLimits
from oracle.engine.links import Links
from oracle.engine.pipeline import BatchLaunch, Pipeline, undisturbed
from oracle.engine.places import Places
from oracle.engine.received import AttainedService
from oracle.engine.recorder import Recorder
from oracle.engine.requests import Sliced, make_queues
from oracle.engine.sources import Graph, Patience, Sources, with_own_columns
from oracle.engine.view import EngineView
from sim.errors import HetsimError, Problem, RunError, ScenarioError
from sim.model.record import (
    LAUNCH_RUNNING,
    UNFINISHED,
    Record,
    RunInput,
)
from sim.model.tasks import Stopping, Task
from sim.policy.batching import Counter
from sim.policy.contract import (
    Admission,
    Scheduler,
)


class Simulation(Arrivals, Decisions, Endings):
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
        self.received = AttainedService(self)
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
        limited = run.grace is not None and self.tasks.time_limit is not None
        self.limits = TimeLimits(self, run.grace or 0.0) if limited else None
        self._refused = self.tasks.refused
        unconditional = not (run.admission or self.graph or self.patience or self.tasks.items or self._refused)
        deliver = self._make_ready if unconditional else self._admit
        self.pipeline = Pipeline(self) if fast and undisturbed(run, self.links) else None
        """The short way of batches, where nothing can disturb them."""
        looks = ("TritonDynamic", "SizeOrTimeout")
        single = not unconditional or run.closed or any(type(one).__name__ in looks for one in run.batching)
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
                what = f"{self.input.policy} is told of all tasks beforehand, and requests to language models are none"
                raise ScenarioError(Problem(f"{what}; name a dynamic policy", key="policy.scheduler"))
            from oracle.engine.rehearsal import problem_of  # which builds simulations

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
            return self.finish()
        except RunError as error:
            error.time = self.clock._now
            error.record = self.record(self.clock._now)  # type: ignore[attr-defined]
            raise
        finally:
            if collecting:
                gc.enable()

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
        if self.running or self.sources.to_come or self.iterating or not self.waiting:
            self._idle_wakes = 0
            return
        self._idle_wakes += 1
        if self._idle_wakes > LOOP_LIMIT:
            raise deadlock(self)

    def finish(self) -> Record:
        """After the last round: what was written down; a RunError if something waits for nothing."""
        self._finish_run()
        return self.record(self.clock._now if math.isinf(self.input.horizon) else self.input.horizon)

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

    def _status_of(self, queue: Sliced, end: float) -> None:
        """At the end of the run: the requests of a slice that have come are unfinished so far."""
        arrival = self.tasks.arrival[queue.service.rows]
        # What would arrive at the very end of a horizon does not; a run that stops elsewhere has seen its instant.
        side: Any = "left" if end > self.clock._now or end == self.input.horizon else "right"
        arrived = max(queue.head_at, int(np.searchsorted(arrival, end, side=side)))
        np.frombuffer(self._status, dtype=self._status.typecode)[queue.service.rows[:arrived]] = UNFINISHED


def _inert(policy: Any, hook: str) -> bool:
    """Has a policy nothing to do in a hook?"""
    return getattr(type(policy), hook, None) in (None, getattr(Admission, hook))
