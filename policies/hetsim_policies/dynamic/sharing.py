"""Two jobs on one GPU: chosen by a table of slowdowns, or by trial."""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.units import Seconds
from hetsim.policy import ListScheduler, Scheduler, View, claims_of
from hetsim.policy.decisions import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Move, Start, Stop, Wait
from hetsim_policies.common import part_left, place_of
from hetsim_policies.dynamic.common.pairs import (
    Pair,
    alone_modes,
    back_to,
    empty_at,
    is_fraction,
    is_shared,
    pairs,
    place_alone,
)
from hetsim_policies.orders import fcfs

Slowdown = Annotated[float, Field(ge=1)]


class PairingScheduler(ListScheduler):
    """Base class: tasks start by arrival; if no device is free, two may share one."""

    serve = Scheduler.serve  # refused: it pairs jobs, not batches

    def best_pair(self, task: Task, view: View) -> Pair | None:
        """Return the pair to form; None if waiting is better."""
        raise NotImplementedError

    def joined(self, task: Task, pair: Pair, view: View) -> None:
        """Hook after a pair was formed."""

    def start_or_join(self, view: View) -> Generator[Decision, None, int]:
        """Start or pair tasks; return the nodes (bitmask) for which a queue's head waits."""
        closed = 0
        while (head := (yield from self.start_in_order(view, closed))) is not None:
            pair = self.best_pair(head, view)
            if pair is not None and pair.moved is not None:
                yield Move(pair.partner, pair.moved)
            if pair is None or not view.fits(pair.place.mode, pair.place):  # the host's memory
                closed |= claims_of(head)
                continue
            yield Start(head, pair.place)
            self.joined(head, pair, view)
        return closed


class SharingByTable(PairingScheduler):
    """Sharing: join another job on its GPU if that shortens the mean response.

    Decides when and where; tasks start in the order of arrival.  The head of the queue starts on free devices if there
    are any.  Otherwise every GPU with one job is considered: a pair pays if the sum of both finish times, with each job
    slowed down as in the table until the first of them ends, is less than if the head waited for free devices.  The
    best pair that pays is formed; a partner that uses a whole GPU moves to its mode on a fraction.  The table has the
    slowdown of a job by its class and its partner's class; without a table the device's own data are used (its measured
    `pairs`, `interference` of mps, shares and `switch_cost` of time slices).
    Reference: Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU
    Clusters (NSDI 2022), for GPU sharing; Gavel (Narayanan et al., OSDI 2020) for tables of measured pairs.
    Weakness: the wait for free devices is estimated as if no other task arrived, so it is too short and sharing is
    chosen too seldom; tasks that wait behind the head are ignored.
    Cost: linear in the running tasks for each head without free devices, and a sort of them for the wait.

    table: slowdown by class and by class of the partner, relative to running alone on the same fraction.
    margin: pairs are formed only if they save more than this fraction of the sum of finish times.
    """

    def __init__(
        self, table: dict[str, dict[str, Slowdown]] | None = None, margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    ):
        super().__init__(fcfs, place_alone)
        self.table = table or {}
        self.margin = margin

    def schedule(self, view: View) -> Iterator[Decision]:
        yield WAIT_FOR_CHANGE if (yield from self.start_or_join(view)) else WAIT_FOR_READY

    def best_pair(self, task: Task, view: View) -> Pair | None:
        best: Pair | None = None
        saving = 0.0
        later = self._alone_later(task, view)
        for pair in pairs(task, view):
            partner_ends = view.launch_of(pair.partner).finish - view.now
            apart = partner_ends + (later if later < math.inf else partner_ends + view.duration(task, pair.place))
            if (saved := apart * (1 - self.margin) - self.together(task, pair, view)) > saving:
                best, saving = pair, saved
        return best

    @staticmethod
    def _alone_later(task: Task, view: View) -> float:
        """Seconds until the task would end if it waited for free devices; inf if unknown."""
        best = math.inf
        for mode in alone_modes(task):
            if is_shared(mode):
                seconds = task.estimates[task.shape.position[mode]] * (1.0 - task.done) + mode.single
                best = min(best, empty_at(mode, view) - view.now + seconds)
                continue
            shadow = view.earliest_fit(task, mode)
            if shadow.placement is not None and shadow.time > view.now:
                best = min(best, shadow.time - view.now + view.duration(task, shadow.placement))
        return best

    def together(self, task: Task, pair: Pair, view: View) -> float:
        """Sum of both jobs' seconds from now to the end if they share until one ends."""
        if pair.moved is None:
            theirs, mode = view.launch_of(pair.partner).finish - view.now, place_of(pair.partner, view).mode
        else:
            mode = pair.moved.mode
            theirs = view.duration(pair.partner, pair.moved) + pair.partner.shape.stopping.save
        ours = view.duration(task, pair.place)
        first = self.slowdown(task, pair.place.mode, pair.partner, mode)
        second = self.slowdown(pair.partner, mode, task, pair.place.mode)
        if math.inf in (first, second):
            return math.inf
        return math.fsum(finish_times(ours, first, theirs, second))

    def slowdown(self, task: Task, mode: Mode, partner: Task, its: Mode) -> float:
        """Slowdown of a task in `mode` next to a partner in mode `its`; 1: as if alone."""
        if (slowdown := self.table.get(task.class_, {}).get(partner.class_)) is not None:
            return slowdown
        sharing = mode.type.sharing
        if (measured := sharing.slower.get((task.class_, partner.class_))) is not None:
            return measured
        if sharing.kind == "mps":
            return 1.0 + sharing.interference * its.share / WHOLE
        if sharing.kind == "timeslice":
            return max(1.0, (mode.share + its.share) / WHOLE) / (1.0 - sharing.switch_cost)
        return 1.0


def finish_times(one: float, one_slower: float, other: float, other_slower: float) -> tuple[float, float]:
    """End times of two tasks that start together and share until the first has ended.

    one, other: seconds of each task alone.  one_slower, other_slower: their slowdowns while both run.
    """
    first, second = one * one_slower, other * other_slower
    if first <= second:
        return first, first + other - first / other_slower
    return second + one - second / one_slower, second


@dataclass
class PairTrial:
    """A pair on trial, with the remaining fractions of both tasks at the start."""

    newcomer: Task
    partner: Task
    began: float
    end: float
    remaining: tuple[float, float]


class Gandiva(PairingScheduler):
    """Gandiva, simplified: pair jobs on a GPU by trial; undo pairs that gain little.

    Decides when and where; tasks start in the order of arrival, on free devices if there are any.  Otherwise the first
    waiting task joins a running job, each on a fraction of the GPU: in the pair of classes with the best result so far,
    or in a random untried pair.  After `trial` seconds the relative speeds of both jobs (1: alone in the fastest mode)
    are added.  If the sum is below `threshold`, the new task returns to the queue, and the pair of classes is not tried
    again.  A job that remains alone on a fraction gets the whole GPU again when no job waits.
    Reference: Xiao, Bhardwaj, Ramjee, Sivathanu, Kwatra, Han, Patel, Peng, Zhao, Zhang, Yang, Zhou, Gandiva:
    Introspective Cluster Scheduling for Deep Learning (OSDI 2018).  Left out: time slices of a minute (see
    `round_robin`), migration to defragment, growing to idle GPUs; progress is measured in the run without noise.
    Weakness: a bad pair costs a trial, and jobs of a class are assumed equal; estimates of sizes are ignored, so
    packing may lengthen short jobs (compare `sharing`).
    Cost: linear in the running tasks for each head without free devices; an event for each trial.

    trial: seconds after which a new pair is judged.
    threshold: minimum sum of both speeds, each relative to running alone, with which a pair continues.
    """

    def __init__(self, trial: Annotated[Seconds, Field(gt=0)] = 60.0, threshold: Annotated[float, Field(ge=0)] = 1.1):
        super().__init__(fcfs, self._place)
        self.trial = trial
        self.threshold = threshold
        self.measured: dict[tuple[str, str], float] = {}  # sum of speeds by pair of classes
        self._trials: dict[int, PairTrial] = {}
        self._parts = True  # True if a job may run on a fraction

    def ready(self, task: Task) -> None:
        self.finished(task)
        super().ready(task)

    def finished(self, task: Task) -> None:
        for index, trial in list(self._trials.items()):
            if task is trial.newcomer or task is trial.partner:
                del self._trials[index]

    gone = finished

    def _place(self, task: Task, view: View) -> Placement | None:
        placement = place_alone(task, view)
        self._parts = self._parts or (placement is not None and is_fraction(placement.mode))
        return placement

    def schedule(self, view: View) -> Iterator[Decision]:
        yield from self._judge(view)
        closed = yield from self.start_or_join(view)
        if not closed and self._parts:
            self._parts = False
            for task in view.running("start", own=True):
                placement = view.launch_of(task).placement
                self._parts = self._parts or (placement is not None and is_fraction(placement.mode))
                if (restored := back_to(task, view)) is not None:
                    yield Move(task, restored)
        yield Wait(until=min((trial.end for trial in self._trials.values()), default=math.inf))

    def joined(self, task: Task, pair: Pair, view: View) -> None:
        remaining, end = (1.0 - task.done, part_left(pair.partner, view)), view.now + self.trial
        self._trials[task.index] = PairTrial(task, pair.partner, view.now, end=end, remaining=remaining)

    def _judge(self, view: View) -> Iterator[Decision]:
        for index, trial in list(self._trials.items()):
            if trial.end > view.now or index not in self._trials:
                continue
            one, other = trial.newcomer, trial.partner
            if one.state != RUNNING or other.state != RUNNING:
                continue
            del self._trials[index]
            gained = zip((one, other), trial.remaining, strict=True)
            speed = sum(max(0.0, before - part_left(task, view)) * task.shortest_estimate for task, before in gained)
            speed /= view.now - trial.began
            self.measured[_names(one, other)] = speed
            if speed < self.threshold and one.shape.preemptible and view.launch_of(one).stage == "compute":
                yield Stop(one)
                if (restored := back_to(other, view)) is not None:
                    yield Move(other, restored)

    def best_pair(self, task: Task, view: View) -> Pair | None:
        """Return the best known pair, else a random untried one; None if there is no pair."""
        untried: list[Pair] = []
        rated: list[tuple[float, Pair]] = []
        for pair in pairs(task, view):
            if (speed := self.measured.get(_names(task, pair.partner))) is None:
                untried.append(pair)
            elif speed >= self.threshold:
                rated.append((speed, pair))
        self._parts = self._parts or bool(rated or untried)
        if rated:
            return max(rated, key=lambda entry: entry[0])[1]
        return untried[int(view.random.integers(len(untried)))] if untried else None


def _names(one: Task, other: Task) -> tuple[str, str]:
    first, second = sorted((one.class_, other.class_))
    return first, second
