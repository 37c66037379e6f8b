"""Gandiva, simplified: pack jobs in pairs by trial, and undo pairs that lose.

Decides when and where; tasks start in the order of arrival, on a place of their own if there is one.  Else the head
joins a running job, both on fractions: the classes that did best together so far, or a pair not yet tried, by
lot.  After `trial` seconds the progress of both, against each alone on its fastest mode, is added up: below
`threshold` the newcomer goes back to the queue and the pair of classes is not tried again.  A job that is left alone
on a fraction gets the whole GPU again when no job waits.
Reference: Xiao, Bhardwaj, Ramjee, Sivathanu, Kwatra, Han, Patel, Peng, Zhao, Zhang, Yang, Zhou, Gandiva: Introspective
Cluster Scheduling for Deep Learning (OSDI 2018).  Left out: time slices of a minute (see `round_robin`), migration to
defragment, growing to idle GPUs; progress is measured as the run shows it, without noise.
Weakness: a bad pair costs a trial, and classes are taken to be all alike; estimates of sizes are not looked at, so
packing may lengthen short jobs (compare `sharing`).
Cost: linear in the running tasks for each head that finds no place; an event for each trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, ListScheduler, Move, Scheduler, Start, Stop, View, Wait, claims_of
from hetsim_policies.dynamic.common.pairs import Pair, back_to, is_fraction, pairs, place_alone
from hetsim_policies.orders import fcfs


@dataclass
class PairTrial:
    """A pair under observation: what both had left, as parts, when it began."""

    newcomer: Task
    partner: Task
    began: float
    end: float
    remaining: tuple[float, float]


class Gandiva(ListScheduler):
    """First come, first served, with pairs by trial.

    trial: seconds for which a new pair is watched.
    threshold: least sum of both speeds, each against alone, with which a pair goes on.
    """

    def __init__(self, trial: Annotated[Seconds, Field(gt=0)] = 60.0, threshold: Annotated[float, Field(ge=0)] = 1.1):
        super().__init__(fcfs, self._place)
        self.trial = trial
        self.threshold = threshold
        self.measured: dict[tuple[str, str], float] = {}
        """Sum of speeds by pair of classes."""
        self._trials: dict[int, PairTrial] = {}
        self._parts = True
        """True if a job may run on a fraction."""

    serve = Scheduler.serve  # refused: it pairs jobs, not batches

    def ready(self, task: Task) -> None:
        self._over(task)
        super().ready(task)

    def finished(self, task: Task) -> None:
        self._over(task)

    def gone(self, task: Task) -> None:
        self._over(task)

    def _place(self, task: Task, view: View) -> Placement | None:
        placement = place_alone(task, view)
        self._parts = self._parts or (placement is not None and is_fraction(placement.mode))
        return placement

    def schedule(self, view: View) -> Iterator[Decision]:
        yield from self._judge(view)
        closed = 0
        while (head := (yield from self.start_in_order(view, closed))) is not None:
            pair = self._best(head, view)
            self._parts = self._parts or pair is not None
            if pair is not None and pair.moved is not None:
                yield Move(pair.partner, pair.moved)
            if pair is None or not view.fits(pair.place.mode, pair.place):  # the host's memory
                closed |= claims_of(head)
                continue
            self.queue.remove(head)
            yield Start(head, pair.place)
            remaining = (1.0 - head.done, _left(pair.partner, view))
            self._trials[head.index] = PairTrial(
                head, pair.partner, view.now, end=view.now + self.trial, remaining=remaining
            )
        if not closed and self._parts:
            self._parts = False
            for task in view.running("start", own=True):
                placement = view.launch_of(task).placement
                self._parts = self._parts or (placement is not None and is_fraction(placement.mode))
                restored = back_to(task, view)
                if restored is not None:
                    yield Move(task, restored)
        yield Wait(until=min((trial.end for trial in self._trials.values()), default=math.inf))

    def _over(self, task: Task) -> None:
        """One of a pair ended or was stopped: nothing more can be learnt."""
        for index, trial in list(self._trials.items()):
            if task is trial.newcomer or task is trial.partner:
                del self._trials[index]

    def _judge(self, view: View) -> Iterator[Decision]:
        for index, trial in list(self._trials.items()):
            if trial.end > view.now or index not in self._trials:
                continue
            one, other = trial.newcomer, trial.partner
            if one.state != RUNNING or other.state != RUNNING:
                continue
            del self._trials[index]
            gained = zip((one, other), trial.remaining, strict=True)
            speed = sum(max(0.0, before - _left(task, view)) * task.shortest_estimate for task, before in gained)
            speed /= view.now - trial.began
            self.measured[_names(one, other)] = speed
            if speed < self.threshold and one.shape.preemptible and view.launch_of(one).stage == "compute":
                yield Stop(one)
                restored = back_to(other, view)
                if restored is not None:
                    yield Move(other, restored)

    def _best(self, task: Task, view: View) -> Pair | None:
        """The best pair known, one not yet tried by lot, or None."""
        untried: list[Pair] = []
        rated: list[tuple[float, Pair]] = []
        for pair in pairs(task, view):
            speed = self.measured.get(_names(task, pair.partner))
            if speed is None:
                untried.append(pair)
            elif speed >= self.threshold:
                rated.append((speed, pair))
        if rated:
            return max(rated, key=lambda entry: entry[0])[1]
        return untried[int(view.random.integers(len(untried)))] if untried else None


def _names(one: Task, other: Task) -> tuple[str, str]:
    first, second = sorted((one.class_, other.class_))
    return first, second


def _left(task: Task, view: View) -> float:
    """The part of a running task that is still to be done."""
    placement = view.launch_of(task).placement
    assert placement is not None
    total = task.estimate_in(placement.mode)
    return view.remaining(task) / total if total > 0 else 0.0
