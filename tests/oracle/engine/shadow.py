"""The shadow of a task: when and where it could start (the reservation of backfilling)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from oracle.engine.budgets import Budget
from oracle.engine.ends import Ends
from oracle.engine.holdings import NodeState
from oracle.engine.launch import Launch
from oracle.engine.sketches import Tally, occupy, on_sketch, release, what_if_copy
from sim.model.cluster import Partition
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task

if TYPE_CHECKING:
    from oracle.engine.view import EngineView


MOST_KEPT = 64


class Shadows:
    """Those that were found, until they no longer hold."""

    def __init__(self, view: EngineView):
        self.view = view
        self._kept: dict[tuple[int, Mode | None], EarliestFit] = {}

    def of(self, task: Task, mode: Mode | None) -> EarliestFit:
        key = task.index, mode
        shadow = self._kept.get(key)
        if shadow is None or not shadow.holds():
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            shadow = self._kept[key] = EarliestFit(self.view, task, mode)
        return shadow


class EarliestFit:
    """The shadow of a task: when and where it could start if running tasks ended as estimated.

    Where counting is enough and ends are known (`Ends`), the earliest of the nodes' own times, kept up to date for
    the nodes that changed.  Else walks through the running launches in order of expected finish, giving back what
    each holds on copies of its nodes, until a mode of the task fits; cost: one sort of the running launches.
    """

    def __init__(self, view: EngineView, task: Task, mode: Mode | None = None):
        self.view = view
        self.task = task
        self.mode = mode
        self.time = math.inf
        self.anywhere = False
        self._placement: Placement | None = None
        self._left = 0
        """What is left over beside the task at the shadow time, where its nodes do not matter (`anywhere`)."""
        self._capacity = view._capacity
        self._sketches: dict[int, NodeState] = {}
        self._at: tuple[int, Mode, Ends] | None = None
        """The node and mode, if they were found from the nodes' own times."""
        self._tally: Tally | None = None
        """That node at the shadow time, as long as counting is enough, once what is `_due` there is given back."""
        self._due: list[tuple[float, int, Launch]] = []
        """What will have ended there by then; most shadows are never asked about their node."""
        self._accepted: list[Placement] = []
        """What was found to survive there by counting."""
        self._known = view._simulation.last_launch
        self._budgets: dict[Partition, Budget] = {}
        """What partitions with a limit will have in use at the shadow time."""
        self._modes = [mode] if mode is not None else [task.shape.modes[p] for p in task.modes_by_speed()]
        self._stamp = 0, 0, 0
        self._find()

    def holds(self) -> bool:
        """Would it be found again as it is?  True only of one that was found from the nodes' own times, is still to
        come, and on whose node nothing has changed.  Then whoever started elsewhere made no node have room earlier."""
        if self._at is None or self._tally is None or self._accepted or self._sketches:
            return False
        node, _, ends = self._at
        if self.time <= self.view.now or not self.view.steady or not ends.known():
            return False
        task = self.task
        if self.mode is None and len(self._modes) > 1:
            modes = [task.shape.modes[p] for p in task.modes_by_speed()]
            if modes != self._modes:
                return False
        if not ends.unchanged(node, self._stamp):
            return False
        self._stamp = ends.stamp()
        return True

    def _find(self) -> None:
        now_fitting = self.view.fit(self.task) if self.mode is None else self.view.first(self.mode)
        if now_fitting is not None:
            self.time, self._placement = self.view.now, now_fitting
            return
        modes = self._modes
        counted = steady = self.view.steady
        for mode in modes:
            if mode.limited:
                self._find_limited(modes)
                return
            counted = counted and self._capacity.countable(mode)
        if counted and self.view.ends.known():
            self._earliest(self.view.ends, modes)
            return
        if steady and all(mode.span_any for mode in modes) and all(map(self.view.pool.counts, modes)):
            self._earliest_anywhere(modes)
            return
        self._walk(modes)

    def _walk(self, modes: list[Mode]) -> None:
        """Through what runs in order of expected finish, until a mode fits."""
        seen: set[int] = set()
        for running in self.view.running("finish"):
            launch = running._launch
            if launch.number in seen:
                continue
            seen.add(launch.number)
            end = max(self.view.now, self.view.expected_finish(running))
            if self._placement is not None and end > self.time:
                return
            nodes = list(dict.fromkeys(device.node for device in launch.placement.devices))
            for number in nodes:
                release(self._sketch(number), launch.placement, launch)
            if self._placement is None:  # else what ends at the same time is only given back
                self._placement = self._on_sketches(modes, nodes)
                self.time = end if self._placement is not None else math.inf

    def _on_sketches(self, modes: list[Mode], nodes: list[int]) -> Placement | None:
        """Where a mode fits, now that something ended on these nodes."""
        for number in nodes:
            for mode in modes:
                found = on_sketch(self._sketches[number], mode)
                if found is not None:
                    return found
        for mode in modes:
            if mode.span_any:
                everywhere = [self._sketches.get(node.index, node) for node in self._capacity.nodes]
                found = self._capacity._across(mode, everywhere)
                if found is not None:
                    return found
        return None

    def _earliest_anywhere(self, modes: list[Mode]) -> None:
        """By counting accelerators, wherever they are."""
        self.anywhere = True
        for mode in modes:
            time, left = self.view.pool.earliest(mode)
            if time < self.time:
                self.mode, self._left = mode, left
                self.time = max(self.view.now, time)

    @property
    def placement(self) -> Placement | None:
        """Where it would start; None if it never will."""
        if self._placement is None:
            if self._tally is not None:
                self._place_counted(self._tally)
            elif self.anywhere and self.time < math.inf and self.mode is not None:
                self._walk([self.mode])
        return self._placement

    def _find_limited(self, modes: list[Mode]) -> None:
        """As the walk of `_find`, where a partition's limit may be what is waited for: an end anywhere in it counts."""
        capacity = self._capacity
        self._budgets = {m.partition: capacity.budget(m).copy() for m in modes if m.limited and m.partition is not None}
        seen: set[int] = set()
        for running in self.view.running("finish"):
            launch = running._launch
            if launch.number in seen:
                continue
            seen.add(launch.number)
            placement = launch.placement
            if placement.mode.partition in self._budgets:
                self._budgets[placement.mode.partition].give(placement.mode, placement.devices)
            for number in dict.fromkeys(device.node for device in placement.devices):
                release(self._sketch(number), placement, launch)
            for mode in modes:
                found = self._with_room(mode)
                if found is not None:
                    self.time = max(self.view.now, self.view.expected_finish(running))
                    self._placement = found
                    return

    def _with_room(self, mode: Mode) -> Placement | None:
        """Where a mode would start, with the nodes and limits as they are sketched."""
        capacity = self._capacity
        budget = self._budgets[mode.partition] if mode.limited and mode.partition is not None else None
        room = capacity.room(mode)
        for number in self._sketches:  # these may have more room than now
            room |= 1 << number
        if budget is not None:
            room = budget.narrowed(mode, room)
        for number in capacity.nodes_in(room):
            node = self._sketches.get(number) or capacity.nodes[number]
            found = on_sketch(node, mode)
            if found is not None:
                return found
        if not mode.span_any:
            return None
        return capacity._across(mode, [self._sketches.get(n.index, n) for n in capacity.nodes], budget)

    def _earliest(self, ends: Ends, modes: list[Mode]) -> None:
        """From the nodes' own times; among equal times the first mode and node."""
        for mode in modes:
            time, number = ends.earliest(mode)
            if time < self.time:
                self.time = max(self.view.now, time)
                self._at = number, mode, ends
        if self.time < math.inf:
            assert self._at is not None
            number = self._at[0]
            self._tally = Tally(self._capacity.nodes[number])
            self._due = ends.due(number, self.time)
            self._stamp = ends.stamp()

    def _give_back(self, tally: Tally) -> None:
        """Bring the node to the shadow time."""
        for _, _, launch in self._due:
            tally.release(launch.placement)
        self._due = []

    def _place_counted(self, tally: Tally) -> None:
        """On the devices that will be free on its node."""
        assert self._at is not None
        self._give_back(tally)
        mode = self._at[1]
        self._placement = tally.place(mode, self._capacity.types[mode.type])

    def _sketch(self, number: int) -> NodeState:
        """The node as it will be at the shadow time, as far as is known."""
        if number not in self._sketches and self._at is not None:
            sketch = self._sketches[number] = what_if_copy(self._capacity.nodes[number])
            for end, _, running in self._at[2].launches(number):
                if max(self.view.now, end) <= self.time:
                    release(sketch, running.placement, running)
            for placement in self._accepted:
                if placement.devices[0].node == number:
                    occupy(sketch, placement.mode, list(placement.devices))
        elif number not in self._sketches:
            sketch = self._sketches[number] = what_if_copy(self._capacity.nodes[number])
            # What was started since the shadow was found may be over by then.
            for launch in reversed(self.view._simulation.running.values()):
                if launch.number <= self._known:
                    break
                here = any(device.node == number for device in launch.placement.devices)
                if here and self.view.expected_finish(launch.task) <= self.time:
                    release(sketch, launch.placement, launch)
        return self._sketches[number]

    def survives(self, task: Task, placement: Placement) -> bool:
        """True if `task` may start there without delaying the shadow; the answer counts on that it then does."""
        if self.time == math.inf or self.view.now + self.view.duration(task, placement) <= self.time:
            return True
        if self.anywhere:
            return self._spares_anywhere(placement)
        if not self._budgets:
            return self._spares(placement)
        partition = placement.mode.partition
        budget = None if partition is None else self._budgets.get(partition)
        if budget is None:
            return self._spares(placement)
        budget.take(placement.mode, placement.devices)
        head = self.placement
        assert head is not None
        if head.mode.partition is partition and budget.refusal(head.mode, head.devices) is not None:
            budget.give(placement.mode, placement.devices)
            return False
        if not self._spares(placement):
            budget.give(placement.mode, placement.devices)
            return False
        return True

    def _spares_anywhere(self, placement: Placement) -> bool:
        """Does a launch that lasts beyond the shadow leave enough accelerators, wherever they are?"""
        assert self.mode is not None
        taken = placement.mode
        if not taken.gpus or taken.type is not self.mode.type:
            return True
        if taken.gpus > self._left:
            return False
        self._left -= taken.gpus
        return True

    def _spares(self, placement: Placement) -> bool:
        """Does a launch that lasts beyond the shadow leave it the devices it needs?"""
        tally = self._tally
        if tally is not None:
            assert self._at is not None
            if not placement.mode.span_any and placement.devices[0].node != self._at[0]:
                return True
            if self._capacity.countable(placement.mode):
                return self._survives_counted(placement, tally, self._at[1])
        assert self.placement is not None
        mine = {device.node for device in self.placement.devices}
        theirs = {device.node for device in placement.devices}
        if not mine & theirs:
            return True
        sketches = {number: what_if_copy(self._sketch(number)) for number in sorted(mine | theirs)}
        for number, sketch in sketches.items():
            here = [device for device in placement.devices if device.node == number]
            if here:
                occupy(sketch, placement.mode, here)
        mode = self.placement.mode
        again = on_sketch(sketches[next(iter(mine))], mode) if len(mine) == 1 else None
        if again is None and mode.span_any:
            everywhere = [sketches.get(node.index) or self._sketch(node.index) for node in self._capacity.nodes]
            again = self._capacity._across(mode, everywhere)
        if again is None:
            return False
        self._placement = again
        self._sketches.update(sketches)
        self._tally = None
        return True

    def _survives_counted(self, placement: Placement, tally: Tally, mode: Mode) -> bool:
        """As `survives`, on the one node where the task is to start."""
        self._give_back(tally)
        kind = self._capacity.types[mode.type]
        before = list(tally.open), tally.cpu_free, tally.mem_free
        tally.occupy(placement)
        if not tally.fits(mode, kind):
            tally.open, tally.cpu_free, tally.mem_free = before
            return False
        self._placement = None  # on what is left, once somebody asks
        self._accepted.append(placement)
        return True
