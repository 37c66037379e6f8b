"""One run: arrivals, rounds of decisions, record.

`advance()` advances to the next round, and `apply(decision)` validates and carries out one decision; `run()` and all
other drivers of the engine call nothing else.
"""

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from hetsim.engine.control.completion import note_place, note_start
from hetsim.engine.core.policy_errors import call, deadlock, illegal, malformed, raised
from hetsim.engine.kernel.clock import FAULT, Later
from hetsim.engine.language.continuous_batching import Replica
from hetsim.engine.language.generation import Generation
from hetsim.engine.parts import Parts, Progress
from hetsim.engine.queues.queue import Queue
from hetsim.errors import HetsimError, InvariantError, RunError, UsageError
from hetsim.model.record import LAUNCH_RUNNING, NOT_ARRIVED, UNFINISHED, Record, RunInput
from hetsim.policy.contract import Imagined, View
from hetsim.policy.decisions import Decision
from hetsim.policy.iterating import Foreseen
from hetsim.policy.rehearsal import problem_of


class Simulation:
    """One run of the engine."""

    def __init__(self, run: RunInput, *, check: bool = False, progress: Progress | None = None):
        self.parts = parts = Parts(run, check, progress)
        self.state = parts.state
        self.view = parts.view
        self.checker = parts.checker
        parts.signals.imagine, parts.signals.foresee = self._imagine, self._foresee
        parts.bind(partial(problem_of, self.input, self.view.random, play))

    @property
    def input(self) -> RunInput:
        return self.state.input

    def run(self) -> Record:
        """Run until no task is left, or to the horizon; a RunError also has a `record`."""
        if self.state.closed:
            raise RunError("a simulation can run only once; build a new one for another run")
        collecting, scheduler = gc.isenabled(), self.state.scheduler
        gc.disable()  # a run creates few reference cycles, and collection costs up to 14 % of a run
        record: Record | None = None
        try:
            schedule = self.schedule
            view, apply, advance = self.view, self.parts.decisions.apply, self.parts.rounds.advance
            while advance():
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
            record = self.finish()
            call(self.state, scheduler.run_ended, record.end)
            return record
        except BaseException as error:
            if record is None:
                with suppress(Exception):  # the first error is the one to tell
                    scheduler.run_ended(None)
            if isinstance(error, RunError):
                error.time = now = self.state.clock._now
                # Recording closes the accounts: the run cannot continue.
                error.record = self.record(now) if record is None else record  # type: ignore[attr-defined]
            raise
        finally:
            if collecting:
                gc.enable()

    def fork(self) -> "Simulation":
        """Return a copy of the run that goes on independently."""
        from hetsim.engine.fork import fork  # which few runs need

        return fork(self, self.state)

    def _imagine(self, *arguments: Any, **named: Any) -> Imagined:
        from hetsim.engine.imagined import imagine  # which few runs need

        return imagine(self, self.parts, *arguments, **named)

    @staticmethod
    def _foresee(replica: Replica, newcomer: Generation | None) -> Foreseen:
        from hetsim.engine.foresight import foresee  # which few runs need

        return foresee(replica, newcomer)

    def _blame(self, error: Exception, decision: Any) -> Exception:
        trace = error.__traceback__
        inner = None if trace is None else trace.tb_next
        if inner is None:
            what = "must yield decisions in schedule, or return a list of them"
            return illegal(self.state, what)
        code = inner.tb_frame.f_code  # a compiled function has an artificial code object: compare only its names
        if code.co_name != "apply" or not code.co_filename.endswith("hetsim/engine/control/decisions.py"):
            return raised(self.state, error, "schedule")
        wrong = malformed(self.state, decision)
        return error if wrong is None else illegal(self.state, wrong)

    def advance(self) -> bool:
        """Advance to the next instant at which the policy is called; False at the end."""
        return self.parts.rounds.advance()

    def apply(self, decision: Decision) -> None:
        """Validate and carry out one decision; raise PolicyError if it is illegal."""
        self.parts.decisions.apply(decision)

    @property
    def schedule(self) -> Callable[[View], Iterable[Any]]:
        """Function that yields a round's decisions; `max_starts`, if set, limits starts."""
        scheduler, pacing = self.state.scheduler, self.state.pacing
        if pacing is None or pacing.time.max_starts is None:
            return scheduler.schedule
        return partial(self._cycle, scheduler)

    def _cycle(self, scheduler: Any, view: View) -> Iterator[Any]:
        pacing = self.state.pacing
        for decision in scheduler.schedule(view):
            yield decision
            if pacing is not None and pacing.starts_left <= 0:
                self.state.clock.round_due = True  # the rest of its queue is left to the next cycle
                return

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call `action` at a time, after finishes and before arrivals of that instant."""
        clock = self.state.clock
        if time < clock._now:
            raise UsageError(f"the time must not be in the past (now t = {clock._now:g} s); got {time:g} s")
        clock.at(time, FAULT, Later(action))

    # The end --------------------------------------------------------------------------------------------------

    def finish(self) -> Record:
        """Complete the record after the last round; RunError if a task waits for ever."""
        state, serving = self.state, self.parts.serving
        now, horizon = state.clock._now, state.input.horizon
        if (state.iterating or any(one.lobby for one in serving.sets)) and not state.clock.pending:
            raise serving.unanswered()
        if state.running and not state.clock.pending:
            launch = next(iter(state.running.values()))
            where = ", ".join(device.name for device in launch.placement.devices) or launch.placement.mode.type.name
            text = f"no event is left, and launch {launch.number} on {where} has not ended ({len(state.running)} run)"
            raise InvariantError(f"t = {now:g} s: {text}")
        waits = state.waiting or state.requests_left or any(len(queue) for queue in state.queues)
        cut_short = state.clock.pending or state.running or state.may_strand  # by a horizon
        if waits and not cut_short and (now < horizon or math.isinf(horizon)):
            raise deadlock(state)
        return self.record(now if math.isinf(horizon) else horizon)

    def record(self, end: float) -> Record:
        """Account for unfinished launches at time `end`, and return the record."""
        state, serving = self.state, self.parts.serving
        state.closed = True
        state.sources.note_arrived()
        for queue in state.queues:
            if queue.column is not None:
                self._status_of(queue, end)
        self._close(end)
        for one in serving.sets:
            one.close(end)
        stats = {"rounds": state.rounds, "decisions": state.decisions, "launches": state.last_launch,
                 "bytes_moved": state.links.moved, "peak_memory": state.capacity.peak_memory(),
                 **state.loading.counts}  # fmt: skip
        record = state.recorder.record(end, {name: float(value) for name, value in stats.items()})
        if state.clients is not None:
            state.clients.write(record)
        if state.network is not None:
            record.stays, record.links = state.network.columns()
        if state.pacing is not None:
            asked, decided = np.array(state.pacing.cycles, float).reshape(-1, 2).T
            record.cycles = {"asked": asked, "decided": decided}
        record.notes, record.planning = dict(state.scheduler.notes), state.planning
        return record

    def _close(self, now: float) -> None:
        state = self.state
        recorder = state.recorder
        for launch in [*state.running.values(), *state.lent.values()]:
            if launch.sketch is not None:
                launch.sketch[0].write_out(now)
            if (table := launch.table) is None and launch.task._history is not None:
                table = self.parts.launches.tabulate(launch)  # tasks that were never stopped need no row
            if table is not None:
                times = self.parts.launches.close(launch, now)
                if launch.terms is not None:
                    recorder.batch(launch, LAUNCH_RUNNING, times, end=now, busy=table.busy, energy=table.energy)
                    continue
                recorder.launch(launch, LAUNCH_RUNNING, times, end=now, busy=table.busy, energy=table.energy)
                note_start(state, launch, times[0])
                for task in launch.tasks:
                    recorder.detail("batch")[task.index] = launch.number
            for task in launch.tasks:
                note_place(state, task, launch)

    def _status_of(self, queue: Queue, end: float) -> None:
        """Mark requests of a queue that arrived by `end` and have not ended as unfinished."""
        state = self.state
        arrival = state.tasks.arrival[queue.service.rows]
        # Arrivals at the horizon itself do not count; a run that stops elsewhere has processed its last instant.
        side: Any = "left" if end > state.clock._now or end == state.input.horizon else "right"
        arrived = max(queue.head_at, int(np.searchsorted(arrival, end, side=side)))
        rows, status = queue.service.rows[:arrived], np.asarray(state.recorder.status)
        status[rows] = np.where(status[rows] == NOT_ARRIVED, UNFINISHED, status[rows])


def play(run: RunInput) -> Record:
    """Run a simulation from the beginning to the end."""
    return Simulation(run).run()
