"""Round robin: a task runs for a quantum, then joins the tail of the queue.

Decides when, and which task is preempted.  A turn that is over goes on while no waiting task could use the device, and
ends as soon as one could.
Reference: Kleinrock, Analysis of a Time-Shared Processor (1964); as the quantum shrinks it becomes processor
sharing, with a mean response in M/G/1 that depends on the sizes only through their mean.  Needs no estimates.
Weakness: tasks of equal length all end late; every turn pays for restoring and saving, so a quantum should be long
against these.  Cost: one event a quantum while tasks wait, and one pass over the running tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import WAIT_FOR_READY, Decision, ListScheduler, PlacementRule, Scheduler, Stop, View, Wait, claims_of

ROUNDING = 1e-6
"""A turn that lacks less than this part of a quantum is over."""


class RoundRobin(ListScheduler):
    """Round robin with a strict queue.

    quantum: seconds of computing in one turn; transfers, saving and restoring do not count.
    """

    def __init__(self, quantum: Annotated[Seconds, Field(gt=0)] = 1.0, placement: PlacementRule | None = None):
        if not quantum > 0:
            raise ValueError(f"a quantum of {quantum:g} s: a turn has to last some time")
        super().__init__(self._ticket, self._begin_turn)
        self._tickets = count()
        self.quantum = quantum
        self.rule = placement
        self.turn_ends: dict[int, float] = {}
        self.received: dict[int, float] = {}
        """Device-seconds that a task had received when its turn began."""

    def _ticket(self, _: Task) -> int:
        """The order is that of entries into the queue, not of arrivals."""
        return next(self._tickets)

    def _begin_turn(self, task: Task, view: View) -> Placement | None:
        """Where a task goes; it starts there at once, and its turn begins."""
        placement = view.fit(task) if self.rule is None else self.rule(task, view)
        if placement is not None:
            self.turn_ends[task.index] = view.now + self.quantum
            self.received[task.index] = view.attained(task)
        return placement

    def _is_over(self, task: Task, view: View) -> bool:
        """Return True if the task has computed for a quantum.

        If not, its turn is prolonged: a stop would lose its transfers.
        """
        if self.turn_ends[task.index] > view.now:
            return False
        placement = view.launch_of(task).placement
        assert placement is not None
        width = placement.mode.width
        missing = self.quantum - (view.attained(task) - self.received[task.index]) / width
        if missing <= ROUNDING * self.quantum:
            return True
        self.turn_ends[task.index] = view.now + max(missing, self.quantum / 10)
        return False

    def finished(self, task: Task) -> None:
        self.turn_ends.pop(task.index, None)
        self.received.pop(task.index, None)

    gone = finished
    serve = Scheduler.serve  # refused: batches run to their end, and have no turns

    def schedule(self, view: View) -> Iterator[Decision]:
        closed = 0
        while (head := (yield from self.start_in_order(view, closed))) is not None:
            room = None
            if not any(view.fits(mode) for mode in head.modes):  # else the rule declines, or its data find no room
                over = [task for task in view.running("start", own=True) if self._is_over(task, view)]
                room = view.make_room(head, over)
            if room is None:
                closed |= claims_of(head)
                continue
            for victim in room[1]:
                del self.turn_ends[victim.index]
                yield Stop(victim)
        if not closed:
            yield WAIT_FOR_READY
            return
        to_come = (end for end in self.turn_ends.values() if end > view.now)
        yield Wait(until=min(to_come, default=math.inf))
