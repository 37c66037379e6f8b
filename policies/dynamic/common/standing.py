"""Reservations in the order of a queue, kept from round to round as long as they would be found again.

A queue with an order that changes gets its reservations anew in every round.  Most of them are the same as before: what
runs ends when it is expected to, what starts does so when and where it was to, and the order changes only further back.
So the reservations up to the first change stand, those behind it are withdrawn and found again.
Cost: a reservation for each task behind the first change; all of them where something came otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from policies.dynamic.common.occupancy import Occupancy
from policies.dynamic.common.reservations import FreeProfile, Reservation
from policies.dynamic.common.timelines import Timeline, whole
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import View


class Made(NamedTuple):
    """A task's reservation (None: it will never fit), and its nodes as they were before."""

    task: Task
    found: Reservation | None
    before: list[Timeline | None]

    def on(self, number: int) -> bool:
        return self.found is not None and any(node == number for node, _ in self.found.nodes)


class Standing:
    """Call `walk` at the beginning of a round, `of` task by task in order, and `began` before each start."""

    def __init__(self, occupancy: Occupancy, view: View):
        self._occupancy = occupancy
        self._view = view
        self._profile: FreeProfile | None = None
        """None: nothing that was found stands."""
        self._surprises = 0
        self._made: list[Made] = []
        """In order."""
        self._next = 0
        """How many of them were asked for in this walk."""
        self._begun: dict[int, Reservation] = {}
        """By row: tasks that started since the last walk as was expected."""

    def walk(self) -> None:
        """From now on tasks are asked about in order."""
        occupancy = self._occupancy
        occupancy.update()
        profile = self._profile
        stands = self._made and profile is not None and profile.commutes and not occupancy.shared
        stands = stands and self._surprises == occupancy.surprises
        if stands and all(self._is_as_expected(row, found) for row, found in self._begun.items()):
            assert profile is not None
            for number in {found.nodes[0][0]: None for found in self._begun.values()}:
                if not any(made.on(number) for made in self._made):
                    profile.restore(number, None)
        else:
            self._profile = FreeProfile(occupancy, self._view)
            self._made.clear()
            self._surprises = occupancy.surprises
        self._begun.clear()
        self._next = 0

    def _is_as_expected(self, row: int, found: Reservation) -> bool:
        run = self._occupancy.runs.get(row)
        return run is not None and run.end == found.end

    def of(self, task: Task) -> Reservation | None:
        """The reservation of the next task, which those behind it will leave as it is."""
        made, profile, place = self._made, self._profile, self._next
        assert profile is not None
        self._next += 1
        if place < len(made) and made[place].task is task:
            found = made[place].found
            if found is None or found.time >= self._view.now:
                return found
        while len(made) > place:
            last = made.pop()
            if last.found is not None:
                profile.withdraw(last.found, last.before)
        found = profile.find(task, self._view)
        made.append(Made(task, found, [] if found is None else profile.occupy(found)))
        return found

    def began(self, task: Task, placement: Placement) -> None:
        """A task is about to start."""
        if self._profile is None:
            return
        place = next((place for place, made in enumerate(self._made) if made.task is task), -1)
        found = self._made[place].found if place >= 0 else None
        if found is None or not self._is_due(found, placement):
            self._profile = None
            self._made.clear()
            return
        del self._made[place]
        self._next -= place < self._next
        self._begun[task.index] = found
        number, count = found.nodes[0]
        for earlier in self._made[:place]:  # without those it would run all the same
            if earlier.on(number):
                assert earlier.found is not None
                before = earlier.before[[node for node, _ in earlier.found.nodes].index(number)]
                if before is not None:
                    before.occupy(found.time, found.end, found.mode, count)

    def _is_due(self, found: Reservation, placement: Placement) -> bool:
        nodes = [(placement.devices[0].node, whole(found.mode))]
        return found.time == self._view.now and found.mode is placement.mode and list(found.nodes) == nodes
