"""A policy's fork: a copy of the run that contains only what the policy may know.

It is a copy of the run (`hetsim.engine.fork`) in which unknown values are replaced:

- The time of every task is its estimate, times the fraction of the estimate that the policy expects (if given), times a
  ratio drawn from the ratios that the policy gives (if any).  For a launch in progress, only ratios are drawn under
  which it would still be running; a launch that has exceeded its estimate, or all ratios, ends immediately.
- No further task of the run arrives, and clients of closed loops send nothing.  Only tasks that the policy imagines
arrive: each is a copy of an earlier task, and their rows follow those of the run.
- No device fails or is repaired, and slow devices remain slow; a task that can then run nowhere waits to the end.
  Announced maintenance takes place.
- Random numbers come from the fork's own seed; two forks with the same seed draw the same numbers.

Runs with requests to language models are refused, since the requests would reveal the lengths of their answers.

Cost: that of a fork, O(running) to compute the ends of launches, and a `memcpy` of the columns of times (of all
columns, if arrivals are imagined).
"""

import gc
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetsim.engine.control.clients import Clients
from hetsim.engine.control.faults import FaultInjector
from hetsim.engine.core.policy_errors import call
from hetsim.engine.core.state import RunState
from hetsim.engine.flight.durations import planned
from hetsim.engine.flight.launch import COMPUTE, DOWNLOAD, OVER, Launch
from hetsim.engine.fork import Copier, unchanging
from hetsim.engine.kernel.clock import FINISH, Draws, Later
from hetsim.engine.launching.launches import Launches
from hetsim.engine.parts import Parts
from hetsim.engine.queues.sources import Sources
from hetsim.errors import UsageError
from hetsim.model.faults import Maintenance
from hetsim.model.record import Record
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy.contract import Scheduler
from hetsim.policy.decisions import Decision

YOUNG = 300_000
"""Before a fork runs, garbage (earlier forks) is collected if more objects than this number were created since the last
time.  Runs collect nothing (`Simulation.run`), and a fork is a reference cycle."""


@dataclass(eq=False)
class Imagined:
    """Implementation of `hetsim.policy.contract.Imagined`: a fork that can be run."""

    _state: RunState
    _play: Callable[[], Record]

    @property
    def now(self) -> float:
        return self._state.clock._now

    def run(self, until: float = math.inf) -> Record:
        state = self._state
        state.input.horizon = state.clock.end = until
        if gc.get_count()[0] > YOUNG:
            gc.collect(0)
        return self._play()


def imagine(
    simulation: Any, original: Parts, scheduler: Scheduler, decisions: Sequence[Decision] = (), seed: int = 0,
    coming: Sequence[tuple[float, Task]] = (), ratios: Sequence[float] = (),
    expected: Callable[[Tasks], np.ndarray] | None = None,
) -> Imagined:  # fmt: skip
    """Copy a run for its policy; the copy applies `decisions`, then runs `scheduler`.

    `seed`: of the copy's random numbers.  `coming`: arrivals, as (time, earlier task to copy).  `ratios`: samples of
    true time / estimate, of which one is drawn for each task.  `expected`: function that returns by which factor to
    multiply each task's estimate.
    """
    state = original.state
    run = state.input
    if run.language:
        raise UsageError("a policy cannot fork a run with language models: it does not know the lengths of answers")
    if not isinstance(scheduler, Scheduler):
        made = f"; make one: {scheduler.__name__}(...)" if isinstance(scheduler, type) else ""
        raise UsageError(f"scheduler must be a scheduler such as ListScheduler(order=...); got {scheduler!r}{made}")
    if not isinstance(decisions, Iterable):
        raise UsageError(f"decisions must be a list of decisions; got {decisions!r}")
    _check_coming(state, coming)
    # Future arrivals are unknown to the policy: they never arrive in the fork.
    arrival = np.where(run.tasks.arrival <= state.clock._now, run.tasks.arrival, math.inf)
    tasks = replace(run.tasks, arrival=arrival, time=run.tasks.estimate)
    if coming:
        coming = sorted(coming, key=lambda one: one[0])
        tasks = with_arrivals(tasks, [at for at, _ in coming], [task.index for _, task in coming])
    drawn = None
    if len(ratios) or expected is not None:
        parts = np.ones(len(tasks)) if expected is None else np.asarray(expected(tasks), dtype=float)
        if parts.shape != (len(tasks),):
            raise UsageError(f"expected must return one number for each of {len(tasks)} tasks; got shape {parts.shape}")
        drawn = _Drawn(ratios if len(ratios) else [1.0], parts, seed)
        tasks = replace(tasks, time=tasks.estimate * drawn.factors[:, None])  # the true times of the fork
    copier = Copier(unchanging(state) | {id(run.tasks): tasks, id(original.checker): None})
    if coming:
        copier.known.update(state.recorder.longer(len(coming)))  # in place of the run's own columns, wherever they are
    copied = copier.copy(simulation)
    taken_along = id(scheduler) in copier.known  # the scheduler is a part of the run, so it knows the tasks already
    prepared = taken_along or getattr(scheduler, "made", None) is not None
    if type(scheduler).prepare is not Scheduler.prepare and not prepared:
        text = "a static scheduler cannot continue a run in progress; use a dynamic one"
        raise UsageError(text)
    mine, first = copier.copy((scheduler, tuple(decisions)))  # by the same copier: they name the fork's tasks
    copy: Parts = copier.known[id(original)]
    _make_known(copy, copier, seed, drawn)
    new = copy.state
    if coming:
        copy.launches.transfers.read_columns()  # the table has more rows than when the run began
        new.sources.begin_at(len(run.tasks))  # none of the run's own rows arrives any more
    new.may_strand = True  # a task that fits only on a down device waits to the end
    new.input.scheduler = new.scheduler = mine
    copy.hooks()  # the scheduler may be another one
    for decision in first:
        copy.decisions.apply(decision)
    if not taken_along:
        if new.queues:  # batching and admission policies know the run already
            copy.show_queues(mine)
        call(new, mine.begin, copy.view)
        if type(mine).ready is not Scheduler.ready:
            for task in new.waiting.values():
                call(new, mine.ready, task)
    new.clock.round_due = True  # the fork begins with a round at this instant
    return Imagined(new, copied.run)


def _make_known(copy: Parts, copier: Copier, seed: int, drawn: "_Drawn | None") -> None:
    """Remove from a fork what policies cannot know: true times and future arrivals."""
    state = copy.state
    if copy.signals.slowed is not None:  # compute-only launches may now exceed their time limit
        for launch in state.running.values():
            copy.launches.materialize(launch)  # with its true duration, up to now
    _forget_truths(copier, seed, drawn)
    state.sources.end_now()
    if state.clients is not None:
        state.clients.silent = True  # they neither time out nor try again
    for queue in state.queues:
        state.requests_left -= queue.end_now()  # requests still expected were counted
        queue.ring(True)
        for replica in () if queue.fleet is None else queue.fleet.replicas:
            replica.wake()
    _spare_devices(state)
    launches = [*state.running.values(), *state.lent.values()]
    for launch in sorted(launches, key=lambda one: one.table is not None):
        _retime(copy.launches, launch, drawn)


def _check_coming(run: RunState, coming: Sequence[tuple[float, Task]]) -> None:
    if not coming:
        return
    if run.tasks.predecessors is not None or run.tasks.items:
        raise UsageError("arrivals of task graphs, and of tasks that share data, cannot be added to a fork")
    for at, task in coming:
        if not run.clock._now <= at < math.inf:
            raise UsageError(f"an arrival added to a fork must not be in the past; got {at:g} s")
        if task.shape in run.queue_of:
            raise UsageError("requests to services cannot be added to a fork, only tasks")


def with_arrivals(tasks: Tasks, times: Sequence[float], like: Sequence[int]) -> Tasks:
    """Return the table extended by copies of the rows `like`, which arrive at `times`.

    The times ascend.  Deadline and patience end as long after the arrival as in the copied row.
    """
    count, rows, late = len(tasks), np.array(like, dtype=np.int64), np.array(times, dtype=float)
    more = tasks.taken(rows)
    for name in {"deadline", "expires"} & more.keys():
        more[name] += late - more["arrival"]
    more["arrival"] = late
    changes: dict[str, Any] = {name: np.concatenate([getattr(tasks, name), column]) for name, column in more.items()}
    if tasks.estimate is tasks.time:
        changes["estimate"] = changes["time"]
    extra = {name: np.concatenate([column, column[rows]]) for name, column in tasks.extra.items()}
    refused = {count + k: tasks.refused[row] for k, row in enumerate(like) if row in tasks.refused}
    return replace(tasks, **changes, extra=extra, refused={**tasks.refused, **refused}, hash_ids=None)


class _Drawn:
    """Random factors of time estimates: `expected` × one of `ratios`, finite and > 0."""

    def __init__(self, ratios: Sequence[float], expected: np.ndarray, seed: int):
        self.known = np.asarray(ratios, dtype=float)
        self.expected = expected
        for some in (self.known, expected):
            if not (np.isfinite(some) & (some > 0)).all():
                raise UsageError("ratios of times to estimates must be finite and above 0")
        self._random = np.random.default_rng((seed, len(expected)))
        self.factors = self._random.choice(self.known, len(expected)) * expected

    def longer(self, row: int, least: float) -> float:
        """Return a random ratio of true to estimated time that is at least `least`."""
        if self.factors[row] <= least:
            ratios = self.known * self.expected[row]
            possible = ratios[ratios > least]
            self.factors[row] = self._random.choice(possible) if len(possible) else least
        return float(self.factors[row])


def _forget_truths(copier: Copier, seed: int, drawn: _Drawn | None) -> None:
    fresh = np.random.SeedSequence(seed)
    for task in copier.copies(Task):
        task._time, task._done = task.estimates, task.done  # the true progress would reveal the true length
        if task._history is not None:
            task._history.checkpoint = task._done
        if drawn is not None:
            factor = float(drawn.factors[task.index])
            task._time = tuple(factor * estimate for estimate in task.estimates)
    for generator in copier.copies(np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(fresh.spawn(1)[0]).state  # one new stream each, in the order of copying
    for draws in copier.copies(Draws):
        draws.unused = []  # numbers drawn ahead are the future of the run itself


def _spare_devices(run: RunState) -> None:
    """Cancel future faults and client events, except announced maintenance."""
    now = run.clock._now
    for _, _, entry, event in list(run.clock._heap):  # a list: to cancel may compact the heap
        if not isinstance(event, Later) or event.entry != entry:
            continue
        owner, method = getattr(event.method, "__self__", None), getattr(event.method, "__name__", "")
        if isinstance(owner, FaultInjector) and method == "_fire":
            _, (about, *_) = event.arguments
            if not (isinstance(about, Maintenance) and about.announced <= now):
                run.clock.cancel(event)
        elif isinstance(owner, Sources | Clients) and method in ("_send", "_change"):
            run.clock.cancel(event)


def _retime(launches: Launches, launch: Launch, drawn: _Drawn | None) -> None:
    now, table, stage = launches.clock._now, launch.table, COMPUTE
    if table is None:
        done = now - launch.decided
    else:
        stage = table.stage(now)
        if stage in (DOWNLOAD, OVER) or table.computed:  # nothing is left to compute
            return
        if stage == COMPUTE:
            table.settle(now)
        done = table.done
    seconds = planned(launch)
    if drawn is not None and launch._tasks is not None and len(launch._tasks) == 1 and seconds > 0:
        seconds *= drawn.longer(launch.tasks[0].index, done / seconds)
    if table is None:  # one that has overrun its estimate ends at once
        launches.clock.again(now + max(0.0, seconds - done), FINISH, launch)
        return
    if stage != COMPUTE:
        table.total = table.left = seconds
        launches.follow(launch)
        return
    table.total, table.left = seconds, max(0.0, seconds - done)
    table.finish_at = now + table.left / table.rate if table.rate > 0 else math.inf
    if table.group is None:
        table.compute_end = table.finish_at
        launches.follow(launch)
    else:
        launches.moved(launches.speeds.regroup([table.group]))  # the group has one event for the ends of all members
