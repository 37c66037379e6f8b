"""Reservations in the order of a queue, kept while a search would repeat them.

A queue with a changing order gets its reservations again in every round.  Most of them are the same as before: what
runs ends when it is expected to, what starts does so when and where it was to, and the order changes only further back.
So the reservations up to the first change stand, and those behind it are withdrawn.  They are found again only as far
as a task behind them could start now: a reservation takes room from those behind it and gives none.
Cost: a reservation for each task behind the first change with one behind it that could start now; all reservations
where something came otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.dynamic.common.occupancy import Occupancy, amounts_of
from hetsim_policies.dynamic.common.reservations import FreeProfile, Reservation


class Standing:
    """Call `walk` as a round begins, `stands` task by task, `began` before a start.

    resolution: reservations are kept from a multiple of it to the next one after their end; 0: exactly.
    """

    def __init__(self, occupancy: Occupancy, view: View, resolution: float = 0.0):
        self.resolution = resolution
        self._occupancy = occupancy
        self._view = view
        self.profile = FreeProfile(occupancy, view)
        self._surprises = -1
        """`Occupancy.surprises` when the profile was made; -1: nothing that was found stands."""
        self._made: list[tuple[Task, Reservation | None]] = []
        """In order; None: the task will never fit."""
        self._next = 0
        """How many of them were asked for in this walk."""
        self._begun: dict[int, Reservation] = {}
        """By row: what tasks hold that started since the last walk, if all goes as expected."""

    def walk(self) -> None:
        """From now on tasks are asked about in order."""
        occupancy = self._occupancy
        occupancy.update()
        runs, begun = occupancy.runs, self._begun
        stands = self.profile.commutes and not occupancy.shared and self._surprises == occupancy.surprises
        if stands and all(runs[row].end == reservation.end for row, reservation in begun.items()):
            for reservation in begun.values():
                self.profile.release(reservation)
        else:
            self.profile = FreeProfile(occupancy, self._view)
            self._made.clear()
            self._surprises = occupancy.surprises
        begun.clear()
        self.profile.changed()
        self._next = 0

    def standing(self, order: Sequence[Task]) -> int:
        """Pass over tasks with valid reservations that are not due; return their number."""
        now, start = self._view.now, self._next
        for task, (other, reservation) in zip(order, islice(self._made, start, None), strict=False):
            if other is not task or (reservation is not None and reservation.time <= now):
                break
            self._next += 1
        return self._next - start

    @property
    def is_complete(self) -> bool:
        """Return True if no reservation is left that was not asked for in this walk."""
        return self._next >= len(self._made)

    def stands(self, task: Task) -> bool:
        """Return True if the next task's reservation stands; else withdraw those behind."""
        made, place = self._made, self._next
        if place < len(made):
            other, reservation = made[place]
            if other is task and (reservation is None or reservation.time >= self._view.now):
                return True
            self._withdraw(place)
        return False

    def reserve(self, task: Task, keeps: bool = True) -> Reservation | None:
        """The reservation of the next task, which those behind it will leave as it is.

        keeps: also where it is not due.
        """
        stands = self.stands(task)
        if stands:
            reservation = self._made[self._next][1]
        else:
            reservation = self.profile.find(task, self._view)
        if stands or keeps or (reservation is not None and reservation.time <= self._view.now):
            self._next += 1
            if not stands:
                self._made.append((task, reservation))
                if reservation is not None:
                    self.profile.occupy(self._rounded(reservation))
        return reservation

    def _rounded(self, reservation: Reservation) -> Reservation:
        """A reservation as it is kept, from a multiple of the resolution to another."""
        unit = self.resolution
        if not unit:
            return reservation
        return reservation._replace(time=reservation.time // unit * unit, end=(reservation.end // unit + 1) * unit)

    def _withdraw(self, place: int) -> None:
        """Give up the reservations from this place on."""
        while len(self._made) > place:
            last = self._made.pop()[1]
            if last is not None:
                self.profile.withdraw(self._rounded(last))

    def began(self, task: Task, placement: Placement) -> None:
        """A task is about to start."""
        made, profile, now = self._made, self.profile, self._view.now
        if not made:
            return
        mode, nodes = placement.mode, tuple(amounts_of(placement).items())
        place = max(0, min(self._next, len(made)) - 1)  # most often it was reserved just now
        if made[place][0] is not task:
            place = next((place for place, (other, _) in enumerate(made) if other is task), len(made))
        promised = made[place][1] if place < len(made) else None
        as_planned = promised is not None and promised.time == now and promised.mode is mode and promised.nodes == nodes
        if promised is not None and as_planned and not self.resolution:
            del made[place]
            self._next -= place < self._next
            self._begun[task.index] = promised
        elif profile.commutes:
            self._withdraw(place)
            actual = Reservation(now, now + self._view.duration(task, placement), mode, nodes)
            self._begun[task.index] = actual
            profile.occupy(actual)
            while made and not as_planned and profile.is_overfull(actual):
                self._withdraw(len(made) - 1)
        else:
            made.clear()
