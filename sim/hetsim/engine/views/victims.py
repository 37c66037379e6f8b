"""What would have to stop for a task to start: victims, and which of them can be spared after all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import NodeState
from hetsim.engine.resources.what_if import Tally, on_sketch, release, what_if_copy
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode, Shape


class Victims:
    """Tries out what nodes would have room for without some of the tasks that run there."""

    def __init__(self, capacity: Capacity, fleets: Mapping[Shape, Any]):
        """`fleets`: by shape, the services of which replicas take in the requests: these are no victims."""
        self._capacity = capacity
        self._fleets = fleets

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """A placement for the task once some of the victims have stopped, and these; None if all together are too
        few.  Victims are added in the order given until it fits on a node; then the best ones are spared again."""
        if self._fleets:
            if task.shape in self._fleets:
                return None
            victims = [victim for victim in victims if victim.shape not in self._fleets]
        modes = [task.shape.modes[position] for position in task.modes_by_speed()]
        if len(modes) == 1 and modes[0].gpus and self._capacity.countable(modes[0]):
            likely = self._not_too_few(modes[0], iter(victims))
            return None if likely is None else self._first_room(modes, likely)
        return self._first_room(modes, victims)

    def _first_room(self, modes: list[Mode], victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """As `make_room`, in the first of these modes that comes to fit."""
        capacity = self._capacity
        counted: dict[Mode, bool] = {mode: capacity.countable(mode) for mode in modes}
        counting = all(counted.values())
        wanted = modes[0] if len(modes) == 1 and counting and modes[0].gpus else None
        kind = capacity.types[modes[0].type]
        lacking: dict[int, int] = {}
        """By node the accelerators that it lacks, where that tells that nothing fits yet without a look at the rest."""
        stopped: dict[int, list[Task]] = {}
        sketches: dict[int, NodeState] = {}
        seen: set[int] = set()
        for victim in victims:
            launch = victim._launch
            if launch is None or not victim.shape.preemptible or launch.number in seen:
                continue
            seen.add(launch.number)
            held = launch.placement
            if not stopped and held.mode is modes[0]:
                # The first victim holds just what is wanted: nothing has to be tried out.
                return held, [victim]
            if held.mode not in counted:
                counted[held.mode] = capacity.countable(held.mode)
            if counting and not counted[held.mode]:
                counting, wanted = False, None
                sketches = {number: self._released(number, tasks) for number, tasks in stopped.items()}
            if not counting:
                found = self._without(victim, modes, sketches, stopped)
                if found is not None:
                    return found
                continue
            number = held.devices[0].node
            if number not in stopped:
                stopped[number] = []
                lacking[number] = 0 if wanted is None else wanted.gpus - capacity.nodes[number].open[kind].bit_count()
            stopped[number].append(victim)
            if wanted is not None:
                if held.mode.gpus and held.mode.type is wanted.type:
                    lacking[number] -= held.mode.gpus
                if lacking[number] > 0:
                    continue
            tally = self._tally_without(number, stopped[number])
            for mode in modes:
                if tally.fits(mode, capacity.types[mode.type]):
                    return self._sparing_counted(number, mode, stopped[number])
        return None

    def _not_too_few(self, mode: Mode, victims: Iterator[Task]) -> Iterator[Task] | None:
        """The same victims; None if no node would have enough accelerators even if all of them were stopped.

        It takes a quarter of the time that trying it out does, and tells of nine heads in ten that nothing helps.
        """
        kind, nodes, wanted = self._capacity.types[mode.type], self._capacity.nodes, mode.gpus
        lacking: dict[int, int] = {}
        seen: list[Task] = []
        for victim in victims:
            seen.append(victim)
            launch = victim._launch
            if launch is None:
                continue
            held = launch.placement
            number = held.devices[0].node
            if number in lacking:
                left = lacking[number] - held.mode.gpus
            else:
                left = wanted - nodes[number].open[kind].bit_count() - held.mode.gpus
            if left <= 0 or held.mode.span_any:
                return chain(seen, victims)
            lacking[number] = left
        return None

    def _without(
        self, victim: Task, modes: list[Mode], sketches: dict[int, NodeState], stopped: dict[int, list[Task]]
    ) -> tuple[Placement, list[Task]] | None:
        """Stop one more victim on copies of its nodes; `make_room`'s answer if one of the modes now fits."""
        launch = victim._launch
        for number in dict.fromkeys(device.node for device in launch.placement.devices):
            if number not in sketches:
                sketches[number] = what_if_copy(self._capacity.nodes[number])
                stopped[number] = []
            release(sketches[number], launch.placement, launch)
            stopped[number].append(victim)
            for mode in modes:
                if on_sketch(sketches[number], mode) is not None:
                    return self._sparing(number, mode, stopped[number])
        return None

    def _tally_without(self, number: int, victims: list[Task]) -> Tally:
        """What would be free on a node without these tasks, where counting is enough."""
        tally = Tally(self._capacity.nodes[number])
        for victim in victims:
            tally.change(victim._launch.placement, 1)
        return tally

    def _released(self, number: int, victims: list[Task]) -> NodeState:
        """A node as it would be without these tasks."""
        sketch = what_if_copy(self._capacity.nodes[number])
        for victim in victims:
            release(sketch, victim._launch.placement, victim._launch)
        return sketch

    def _sparing_counted(self, number: int, mode: Mode, victims: list[Task]) -> tuple[Placement, list[Task]]:
        """As `_sparing`, where counting is enough."""
        kind = self._capacity.types[mode.type]
        tally, needed = self._tally_without(number, victims), list(victims)
        for spared in victims[:-1]:
            tally.change(spared._launch.placement, -1)
            if tally.fits(mode, kind):
                needed.remove(spared)
            else:
                tally.change(spared._launch.placement, 1)
        return tally.place(mode, kind), needed

    def _sparing(self, number: int, mode: Mode, victims: list[Task]) -> tuple[Placement, list[Task]]:
        """The placement on a node once the victims that must stop have stopped, and these victims."""
        needed = self._needed(number, mode, victims)
        placement = on_sketch(self._released(number, needed), mode)
        assert placement is not None
        return placement, needed

    def _needed(self, number: int, mode: Mode, victims: list[Task]) -> list[Task]:
        """The victims on a node that must stop for the mode to fit; the best ones are spared first."""
        needed = list(victims)
        for spared in victims[:-1]:
            if self._released(number, [victim for victim in needed if victim is not spared]).fits(mode):
                needed.remove(spared)
        return needed
