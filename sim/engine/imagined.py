"""A policy's fork: the run as its policy knows it, to be played on.

It is a copy of the run (`sim.engine.fork`) in which all that a policy cannot know is replaced by what it may:
- Every task takes its estimate from now on.  A launch under way computes for what its estimate leaves; one that has
  overrun its estimate ends at once.
- No task arrives any more: the streams have ended, and clients of closed loops send nothing.
- No device fails, none that is down comes up, and slow ones stay slow; a task that can then run nowhere waits to the
  end.  Maintenance that has been announced comes.
- Random numbers are those of the fork's own seed; two forks with one seed meet the same.
Requests to language models would tell how many tokens they are going to have, so such runs are refused.

Cost: that of a fork, O(running) to work out the ends of launches, and a `memcpy` of the columns of times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.engine.clock import Later
from sim.engine.draws import Draws
from sim.engine.durations import planned
from sim.engine.faults import FaultInjector
from sim.engine.fork import Copier
from sim.engine.launch import COMPUTE, DOWNLOAD, OVER, Launch
from sim.engine.requests import Sliced
from sim.engine.sources import Sources
from sim.errors import UsageError
from sim.model.faults import Maintenance
from sim.model.record import Record
from sim.model.tasks import Task, Tasks
from sim.policy.contract import Decision, Scheduler

if TYPE_CHECKING:
    from sim.engine.simulation import Simulation


class Imagined:
    """What may come of a run; see `sim.policy.contract.Imagined`."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation

    @property
    def now(self) -> float:
        return self._simulation.clock._now

    def run(self, until: float = math.inf) -> Record:
        simulation = self._simulation
        simulation.input.horizon = simulation.clock.end = until
        return simulation.run()


def imagine(original: Simulation, scheduler: Scheduler, decisions: Sequence[Decision] = (), seed: int = 0) -> Imagined:
    """Fork a run while its policy decides, for `scheduler` to go on after some decisions."""
    run = original.input
    if run.language:
        raise UsageError("the answers of language models have lengths that no policy knows: such a run has no forks "
                         "for policies")  # fmt: skip
    if type(scheduler).prepare is not Scheduler.prepare:
        raise UsageError("a scheduler that plans all tasks beforehand cannot take over a run that has begun")
    copier = Copier({id(run.tasks): _as_known(run.tasks, original.clock._now), id(original.sources.progress): None,
                     id(original.checker): None})  # fmt: skip
    copy: Simulation = copier.copy(original)
    taken_along = id(scheduler) in copier.known
    mine, first = copier.copy((scheduler, tuple(decisions)))
    for launch in copy.running.values():
        copy.launches.materialise(launch)  # by what it really is, up to now
    _forget_truths(list(copier.known.values()), seed)
    _end_streams(copy)
    _spare_devices(copy)
    for launch in list(copy.running.values()):
        _retime(copy, launch)
    copy.may_strand = True
    copy.input.scheduler = copy.scheduler = mine
    copy._hooks()
    for decision in first:
        copy.apply(decision)
    if not taken_along:
        if copy.queues:  # batching and admission policies know the run already
            copy.show_queues(mine)
        copy.call(mine.begin, copy.view)
        for task in copy.waiting.values():
            if task.shape not in copy._queue_of:
                copy.call(mine.ready, task)
    copy.clock.round_due = True
    return Imagined(copy)


def _as_known(tasks: Tasks, now: float) -> Tasks:
    """The columns as a policy knows them."""
    arrival = np.where(tasks.arrival <= now, tasks.arrival, math.inf)
    return replace(tasks, arrival=arrival, time=tasks.estimate)


def _forget_truths(everything: Sequence[Any], seed: int) -> None:
    fresh = np.random.SeedSequence(seed)
    for one in everything:
        if isinstance(one, Task):
            one._time, one._done = one.estimates, one.done
        elif isinstance(one, np.random.Generator):
            kind: Any = type(one.bit_generator)
            one.bit_generator.state = kind(fresh.spawn(1)[0]).state
        elif isinstance(one, Draws):
            one.left = []


def _end_streams(run: Simulation) -> None:
    sources: Sources = run.sources
    sources.to_come, sources._last = 0, sources._row
    run.clock.feed_time = math.inf
    sources._sent = [len(stream.rows) for stream in run.input.closed]
    for queue in run.queues:
        queue._factors = []
        if isinstance(queue, Sliced):
            run.requests_left -= queue.end_now()
        else:
            queue.to_come = 0
        queue.ring(True)


def _spare_devices(run: Simulation) -> None:
    """Cancel what is to happen to devices and clients, but for what has been announced."""
    now = run.clock._now
    for _, _, entry, event in list(run.clock._heap):
        if not isinstance(event, Later) or event.entry != entry:
            continue
        method: Any = event.method
        if method.__func__ is FaultInjector._fire:
            _, (about, *_) = event.arguments
            if not (isinstance(about, Maintenance) and about.announced <= now):
                run.clock.cancel(event)
        elif method.__func__ is Sources._send:
            run.clock.cancel(event)


def _retime(run: Simulation, launch: Launch) -> None:
    """Have a launch compute for as long as its estimate says."""
    launches, now = run.launches, run.clock._now
    table = launch.table
    assert table is not None
    stage = table.stage(now)
    if stage in (DOWNLOAD, OVER) or table.computed:
        return
    seconds = planned(launch)
    if stage != COMPUTE:
        table.total = table.left = seconds
        launches.follow(launch)
        return
    launches.speeds.settle(table, now)
    table.total, table.left = seconds, max(0.0, seconds - table.done)
    table.finish_at = now + table.left / table.rate if table.rate > 0 else math.inf
    if table.group is None:
        table.compute_end = table.finish_at
        launches.follow(launch)
    else:
        launches.moved(launches.speeds.regroup([table.group]))

