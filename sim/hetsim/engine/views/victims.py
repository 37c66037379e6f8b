"""Victims: tasks that would have to stop for another one to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.what_if import Sketch
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode, Shape


class Victims:
    """Tries out what fits on nodes without some of the tasks that run there."""

    def __init__(self, capacity: Capacity, fleets: Mapping[Shape, Any]):
        """`fleets`: services by shape of which replicas take in the requests: no victims."""
        self._capacity = capacity
        self._fleets = fleets

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """A placement for a task and the victims to stop; None if all are not enough.

        Victims are added in the order given until it fits on a node; then the best ones are spared again.
        """
        if self._fleets:
            if task.shape in self._fleets:
                return None
            victims = [victim for victim in victims if victim.shape not in self._fleets]
        modes = [task.shape.modes[position] for position in task.modes_by_speed()]
        capacity = self._capacity
        wanted = modes[0] if len(modes) == 1 and modes[0].gpus and capacity.countable(modes[0]) else None
        kind = capacity.types[modes[0].type]
        lacking: dict[int, int] = {}
        """By node the accelerators that it lacks, where that tells that nothing fits yet without a look at the rest."""
        stopped: dict[int, list[Task]] = {}
        sketches: dict[int, Sketch] = {}
        seen: set[int] = set()
        for victim in victims:
            launch = victim._launch
            if launch is None or not victim.shape.preemptible or launch.number in seen:
                continue
            seen.add(launch.number)
            placement = launch.placement
            if not stopped and placement.mode is modes[0]:
                # The first victim holds just what is wanted: nothing has to be tried out.
                return placement, [victim]
            if wanted is not None:
                if capacity.countable(placement.mode):
                    number = placement.devices[0].node
                    lack = lacking.get(number)
                    if lack is None:
                        lack = wanted.gpus - capacity.nodes[number].open[kind].bit_count()
                    if placement.mode.gpus and placement.mode.type is wanted.type:
                        lack -= placement.mode.gpus
                    lacking[number] = lack
                    if lack > 0:
                        stopped.setdefault(number, []).append(victim)
                        continue
                else:
                    wanted = None
            for number, _, _ in placement.hosts():
                stopped.setdefault(number, []).append(victim)
                if number in sketches:
                    sketches[number].release(placement, launch)
                else:
                    sketches[number] = self._released(number, stopped[number])
                for mode in modes:
                    if sketches[number].fits(mode) and self._allows(mode, number, stopped[number]):
                        return self._sparing(number, mode, stopped[number], sketches[number])
        return None

    def _sparing(
        self, number: int, mode: Mode, needed: list[Task], sketch: Sketch
    ) -> tuple[Placement, list[Task]]:  # fmt: skip
        """The placement on a node, and the victims that must stop for it.

        The first ones are spared first.  sketch: the node without all of these victims.
        """
        for spared in needed[:-1]:
            fewer = [victim for victim in needed if victim is not spared]
            without = self._released(number, fewer)
            if without.fits(mode) and self._allows(mode, number, fewer):
                needed, sketch = fewer, without
        placement = sketch.place(mode)
        assert placement is not None
        return placement, needed

    def _allows(self, mode: Mode, number: int, victims: list[Task]) -> bool:
        """Return True if its partition's limits let a mode start without these tasks."""
        if not mode.limited:
            return True
        budget = self._capacity.budget(mode).copy()
        for placement in (victim._launch.placement for victim in victims):
            if placement.mode.partition is mode.partition:
                budget.give(placement.mode, placement.devices)
        return budget.narrowed(mode, 1 << number) != 0

    def _released(self, number: int, victims: list[Task]) -> Sketch:
        """A node as it would be without these tasks."""
        sketch = Sketch(self._capacity.nodes[number])
        for victim in victims:
            sketch.release(victim._launch.placement, victim._launch)
        return sketch
