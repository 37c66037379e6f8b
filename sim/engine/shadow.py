"""The shadow of a task: when and where it could start (the reservation of backfilling)."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.budgets import Budget
from sim.engine.capacity import NodeState, Tally, host_part
from sim.engine.launch import Launch
from sim.model.cluster import Device, Partition
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task

if TYPE_CHECKING:
    from sim.engine.view import EngineView


MANY = 64
"""Launches noted on a node from which on those that are over are looked for with every new one."""


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
        """That node at the shadow time, as long as counting is enough."""
        self._accepted: list[Placement] = []
        """What was found to survive there by counting."""
        self._known = view._simulation.last_launch
        self._budgets: dict[Partition, Budget] = {}
        """What partitions with a limit will have in use at the shadow time."""
        self._find()

    def _find(self) -> None:
        now_fitting = self.view.fit(self.task) if self.mode is None else self.view.first(self.mode)
        if now_fitting is not None:
            self.time, self._placement = self.view.now, now_fitting
            return
        modes = [self.mode] if self.mode else [self.task.shape.modes[p] for p in self.task.modes_by_speed()]
        if any(mode.limited for mode in modes):
            self._find_limited(modes)
            return
        if self.view.steady and all(map(self._capacity.countable, modes)):
            ends = self.view.ends
            if ends.known():
                self._earliest(ends, modes)
                return
        if self.view.steady and all(mode.span_any for mode in modes) and all(map(self.view.pool.counts, modes)):
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
                self._capacity.release(self._sketch(number), launch.placement, launch)
            if self._placement is None:  # else what ends at the same time is only given back
                self._placement = self._on_sketches(modes, nodes)
                self.time = end if self._placement is not None else math.inf

    def _on_sketches(self, modes: list[Mode], nodes: list[int]) -> Placement | None:
        """Where a mode fits, now that something ended on these nodes."""
        for number in nodes:
            for mode in modes:
                found = self._capacity.on_sketch(self._sketches[number], mode)
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
        if self._placement is None and self.anywhere and self.time < math.inf and self.mode is not None:
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
                capacity.release(self._sketch(number), placement, launch)
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
            found = capacity.on_sketch(node, mode)
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
            number, mode, _ = self._at
            self._tally = ends.tally(number, self.time)
            self._placement = self._tally.place(mode, self._capacity.types[mode.type])

    def _sketch(self, number: int) -> NodeState:
        """The node as it will be at the shadow time, as far as is known."""
        if number not in self._sketches and self._at is not None:
            sketch = self._sketches[number] = self._capacity.sketch(self._capacity.nodes[number])
            for end, _, running in self._at[2].launches(number):
                if max(self.view.now, end) <= self.time:
                    self._capacity.release(sketch, running.placement, running)
            for placement in self._accepted:
                if placement.devices[0].node == number:
                    _occupy(sketch, placement.mode, list(placement.devices))
        elif number not in self._sketches:
            sketch = self._sketches[number] = self._capacity.sketch(self._capacity.nodes[number])
            # What was started since the shadow was found may be over by then.
            for launch in reversed(self.view._simulation.running.values()):
                if launch.number <= self._known:
                    break
                here = any(device.node == number for device in launch.placement.devices)
                if here and self.view.expected_finish(launch.task) <= self.time:
                    self._capacity.release(sketch, launch.placement, launch)
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
        assert self.placement is not None
        mine = {device.node for device in self.placement.devices}
        theirs = {device.node for device in placement.devices}
        if not mine & theirs:
            return True
        if self._tally is not None and self._capacity.countable(placement.mode):
            return self._survives_counted(placement, self._tally, self.placement.mode)
        sketches = {number: self._capacity.sketch(self._sketch(number)) for number in sorted(mine | theirs)}
        for number, sketch in sketches.items():
            here = [device for device in placement.devices if device.node == number]
            if here:
                _occupy(sketch, placement.mode, here)
        mode = self.placement.mode
        again = self._capacity.on_sketch(sketches[next(iter(mine))], mode) if len(mine) == 1 else None
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
        kind = self._capacity.types[mode.type]
        before = list(tally.open), tally.cpu_free, tally.mem_free
        tally.occupy(placement)
        if not tally.fits(mode, kind):
            tally.open, tally.cpu_free, tally.mem_free = before
            return False
        self._placement = tally.place(mode, kind)
        self._accepted.append(placement)
        return True


def _occupy(sketch: NodeState, mode: Mode, devices: list[Device]) -> None:
    """Take on a sketch what a launch of the mode would hold on these devices of the node."""
    cpus, memory = host_part(mode, len(devices))
    sketch.cpu_free -= cpus
    sketch.mem_free -= memory
    for device in devices:
        if mode.gpus:
            gpu = sketch.gpus[device.local]
            gpu.free -= mode.share
            gpu.room -= mode.gpu_memory


def _only_gpus(node: NodeState, mode: Mode) -> bool:
    """Is there nothing that a mode lacks on a node but accelerators?"""
    if mode.cpus > node.cpu_free or mode.memory > node.mem_free:
        return False
    return mode.nodes is None or bool(mode.nodes & node.bit)


class Ends:
    """When each node will have room for a mode, as far as estimates tell, kept from the first question on.

    For runs in which every launch computes steadily from its start: its end by estimate does not move then, so only
    nodes on which something started or ended are looked at again.
    Cost: O(what started and ended since the last question) and a minimum over the nodes.
    """

    def __init__(self, view: EngineView):
        self.view = view
        self.capacity = view._capacity
        self.capacity.noting = True
        self.running = view._simulation.running
        nodes = len(self.capacity.nodes)
        self.on: list[list[tuple[float, int, Launch]]] = [[] for _ in range(nodes)]
        """By node: (end, number, launch) of what runs there, and of some that are over."""
        self.times: dict[Mode, np.ndarray] = {}
        """By mode: by node the time at which it would fit there."""
        self.behind: dict[Mode, dict[int, None]] = {}
        """By mode: nodes that changed since its times were reckoned."""
        self._last = 0
        self._generation = -1
        self._position = 0
        self._countable = True

    def known(self) -> bool:
        """Take note of what has happened; False if something runs whose room cannot be counted."""
        capacity = self.capacity
        fresh = []
        for launch in reversed(self.running.values()):
            if launch.number <= self._last:
                break
            fresh.append(launch)
        self._last = self.view._simulation.last_launch
        for launch in reversed(fresh):
            if len(launch.tasks) > 1 or not capacity.countable(launch.placement.mode):
                self._countable = False
                break
            end = self.view.expected_finish(launch.task)
            number = launch.placement.devices[0].node
            insort(self.on[number], (end, launch.number, launch))
            if len(self.on[number]) > MANY:
                self.launches(number)
        if not self._countable:
            return False
        log = capacity.log
        changed: Iterable[int]
        if self._generation != capacity.log_generation:
            changed = range(len(capacity.nodes))
        else:
            changed = log[self._position :]
        self._generation, self._position = capacity.log_generation, len(log)
        for behind in self.behind.values():
            behind.update(dict.fromkeys(changed))
        return True

    def launches(self, number: int) -> list[tuple[float, int, Launch]]:
        """What runs on a node, by end."""
        here, running = self.on[number], self.running
        if any(entry[1] not in running for entry in here):
            here = self.on[number] = [entry for entry in here if entry[1] in running]
        return here

    def earliest(self, mode: Mode) -> tuple[float, int]:
        """The first time at which a mode fits somewhere, and the first such node."""
        times = self.times.get(mode)
        if times is None:
            nodes = len(self.capacity.nodes)
            times = self.times[mode] = np.full(nodes, math.inf)
            self.behind[mode] = dict.fromkeys(range(nodes))
        behind = self.behind[mode]
        for number in behind:
            times[number] = self._time(number, mode)
        behind.clear()
        number = int(times.argmin())
        return float(times[number]), number

    def _time(self, number: int, mode: Mode) -> float:
        """When a mode will fit on a node; -inf if it does now, inf if it never will."""
        node, kind = self.capacity.nodes[number], self.capacity.types[mode.type]
        if mode.gpus and self.capacity.undisturbed and _only_gpus(node, mode):
            # Nothing but accelerators can be missing: a count will do, three times as fast as a tally.
            missing = mode.gpus - node.open[kind].bit_count()
            if missing <= 0:
                return -math.inf
            gpus = node.gpus
            for end, _, launch in self.launches(number):
                held = launch.placement
                if held.mode.gpus and gpus[held.devices[0].local].kind == kind:
                    missing -= held.mode.gpus
                    if missing <= 0:
                        return end
            return math.inf
        tally = Tally(node)
        if tally.fits(mode, kind):
            return -math.inf
        for end, _, launch in self.launches(number):
            tally.release(launch.placement)
            if tally.fits(mode, kind):
                return end
        return math.inf

    def tally(self, number: int, time: float) -> Tally:
        """A node as it will be at a time."""
        tally = Tally(self.capacity.nodes[number])
        for end, _, launch in self.launches(number):
            if end > time:
                break
            tally.release(launch.placement)
        return tally
