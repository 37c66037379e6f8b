"""Earliest start of a task that does not fit now (the reservation of backfilling)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.core.policy_errors import Questions
from hetsim.engine.core.state import RunState, launches_since
from hetsim.engine.flight.launch import Launch
from hetsim.engine.launching.stopping import Stops
from hetsim.engine.resources.occupancy import Sketch
from hetsim.engine.resources.partition_limits import Budget
from hetsim.engine.resources.placement_index import amount_of, share_of
from hetsim.engine.views.forecast import Forecast
from hetsim.engine.views.node_availability import Profile
from hetsim.engine.views.placing import Placing
from hetsim.model.cluster import Partition
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.contract import NEVER, Shadow

MAX_KEPT = 64  # maximum number of cached shadows


@dataclass(eq=False)
class Shadows:
    """Cached earliest starts of waiting tasks, used again while they are valid."""

    state: RunState
    forecast: Forecast
    placing: Placing
    stops: Stops
    questions: Questions
    fleets: Mapping[Shape, Any]  # services by shape whose requests only replicas start
    profile: Profile | None = None  # from the first question on
    _kept: "dict[tuple[int, Mode | None], EarliestFit]" = field(default_factory=dict)

    def shadow_of(self, task: Task, mode: Mode | None = None) -> Shadow:
        if task.shape in self.fleets:
            return NEVER
        shadow = self._kept.get((task.index, mode))
        if shadow is None or not shadow.holds(task):
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()  # shadows are computed again when needed
            shadow = self._kept[task.index, mode] = EarliestFit(self, task, mode)
        return shadow


class EarliestFit:
    """Time and place of a task's start if running tasks end as estimated.

    If all launches are compute-only, the start is the earliest fit (`Profile`): on any one node, updated only for nodes
    that changed, or, for gangs of whole accelerators, on all nodes together.  Otherwise, or with partition limits,
    running launches are released in order of expected finish on what-if copies of their nodes, until a mode of the task
    fits; cost: one sort of the running launches.
    """

    def __init__(self, shadows: Shadows, task: Task, mode: Mode | None = None):
        self.shadows = shadows
        self.state = state = shadows.state
        self.forecast = shadows.forecast
        self._capacity = capacity = state.capacity
        self.time = math.inf
        self.anywhere = False  # True if accelerators are counted on all nodes
        self._placement: Placement | None = None
        self._mode: Mode | None = None  # mode of its start
        self._node = -1  # node of its start; -1: it may be on several nodes
        self._free = -1  # free for the gang at the shadow time (`amount_of`), if that was counted; else -1
        self._due: list[Launch] = []  # launches that will have ended on that node by then
        self._sketches: dict[int, Sketch] = {}  # what-if copies of nodes at the shadow time
        self._last = state.last_launch  # later ones are released on sketches, if they end by then
        self._budgets: dict[Partition | None, Budget] = {}  # usage of limited partitions at the shadow time
        self._stamp: tuple[Any, ...] = ()  # what must be the same for it to hold; (): it never holds
        self._position = 0  # up to where its node is known to be unchanged in the log
        modes = [mode] if mode is not None else [task.shape.modes[p] for p in task.modes_by_speed()]
        if self._look_up(modes, task):
            return
        self._placement = shadows.placing.fit(task) if mode is None else capacity.first(mode)
        free: dict[Mode, int] = {}
        if self._placement is not None:
            self.time = self.forecast.now
        else:
            self._budgets = {mode.partition: capacity.budget(mode).copy() for mode in modes if mode.limited}
            free = self._walk(modes)
        if self._placement is not None:
            self._mode = its_mode = self._placement.mode
            self._node = -1 if its_mode.span_any else self._placement.devices[0].node
            self._free = free.get(its_mode, -1)

    def holds(self, task: Task) -> bool:
        """Return True if the computed start is certainly still valid.

        This is known only if the start is in the future, its node has not changed, and every launch ends as expected.
        Tasks that start on other nodes only occupy more resources, so the task cannot fit earlier than before.
        """
        log, position = self._capacity.log, self._position
        if self._stamp != self._mark(task) or self.time <= self.forecast.now or self._node in log[position:]:
            return False
        self._position = len(log)
        return True

    def _mark(self, task: Task) -> tuple[Any, ...]:
        return self.state.steady, self.shadows.stops.count, self._capacity.log_generation, task.allowed

    def _look_up(self, modes: list[Mode], task: Task) -> bool:
        """Set the earliest time by the profile; False: a mode fits now or is not covered."""
        shadows, place = self.shadows, -1
        if not self.state.steady or any(mode.limited for mode in modes):
            return False
        if (profile := shadows.profile) is None:
            profile = shadows.profile = Profile(self.state, self.forecast)
        if not profile.covers(modes):
            return False
        for mode in modes:
            time, first = profile.earliest(mode)
            if time == -math.inf:
                return False
            if time < self.time:  # of equal times the faster mode, which comes first
                self.time, self._mode, place = max(self.forecast.now, time), mode, first
        if self._mode is None:
            return True  # it never fits
        due = profile.due(place, self.time)
        if profile.pooled:
            self.anywhere = True
            there = [launch.placement.mode for launch in due]
            self._free = profile.free(self._mode) + sum(mode.gpus for mode in there if mode.type is self._mode.type)
        else:
            self._node, self._due = place, due
            if profile.exact:
                self._stamp, self._position = self._mark(task), len(self._capacity.log)
        return True

    def _walk(self, modes: list[Mode]) -> dict[Mode, int]:
        """Release launches on copies of nodes, by expected finish, until a mode fits.

        Return the amount that is free at that time for each mode that may span nodes.
        """
        limited = self._budgets
        free = {mode: self._capacity.free_for(mode) for mode in modes if mode.span_any and not limited}
        # Sorted by end, stable: launches that end together are released in start order.
        self.shadows.questions.count()
        for launch in sorted(self.state.running.values(), key=self.forecast.finish_of):
            placement = launch.placement
            end = max(self.forecast.now, self.forecast.finish_of(launch))
            if self._placement is not None and (limited or end > self.time):
                break
            if placement.mode.partition in limited:
                # The limit alone may prevent its start.
                limited[placement.mode.partition].give(placement.mode, placement.devices)
            nodes = [number for number, _, _ in placement.hosts()]
            for number in nodes:
                sketch = self._sketch(number)
                before = [share_of(mode, sketch, amount_of(mode)) for mode in free]
                sketch.release(placement, launch)
                for mode, amount in zip(free, before, strict=True):
                    free[mode] += share_of(mode, sketch, amount_of(mode)) - amount  # only what this end adds
            if self._placement is None:  # else what ends at the same time is only given back
                self._placement = self._fitting(modes, nodes, free)
                self.time = end if self._placement is not None else math.inf
        return free

    def _fitting(self, modes: list[Mode], nodes: Iterable[int], free: dict[Mode, int]) -> Placement | None:
        """Return a placement on a node of `nodes` (with limits: any node) or across nodes."""
        capacity, sketches = self._capacity, self._sketches
        for mode in modes:
            if self._budgets:
                room = capacity.room(mode)
                for number in sketches:  # these may have more room than now
                    room |= 1 << number
                nodes = capacity.nodes_in(self._budgets[mode.partition].narrowed(mode, room) if mode.limited else room)
            for number in nodes:
                if (placement := (sketches.get(number) or Sketch(capacity.nodes[number])).place(mode)) is not None:
                    return placement
            enough = mode.span_any and (self._budgets or free[mode] >= amount_of(mode))  # on several nodes together
            if enough and (placement := self._across(mode, self._budgets.get(mode.partition))) is not None:
                return placement
        return None

    def _across(self, mode: Mode, budget: Budget | None = None) -> Placement | None:
        numbers = self._capacity.having_room(mode)
        for number in self._sketches:
            numbers |= 1 << number
        for launch in launches_since(self.state, self._last):
            for device in launch.placement.devices:
                numbers |= 1 << device.node
        nodes = map(self._sketch, self._capacity.nodes_in(numbers))
        return self._capacity._across(mode, nodes, budget)

    @property
    def placement(self) -> Placement | None:
        """The placement at which the waiting task would start; None if it can never start."""
        if self._placement is None and self._mode is not None:
            if self._node >= 0:
                self._placement = self._sketch(self._node).place(self._mode)
            elif self.anywhere:
                self._walk([self._mode])
            else:
                self._placement = self._across(self._mode)
        return self._placement

    def _sketch(self, number: int) -> Sketch:
        if (sketch := self._sketches.get(number)) is None:
            sketch = self._sketches[number] = Sketch(self._capacity.nodes[number], lasting=True)
            for launch in [*launches_since(self.state, self._last), *self._due]:
                here = any(device.node == number for device in launch.placement.devices)
                if here and launch.number in self.state.running and self.forecast.finish_of(launch) <= self.time:
                    sketch.release(launch.placement, launch)
        return sketch

    # Launches that go on beyond it --------------------------------------------------------------------------

    def _moved(self, before: Placement | None, mode: Mode) -> Placement | None:
        """Return another placement of the head, on its node or across nodes.

        Partition limits are checked with the present usage, so None does not prove that the head would be delayed.
        """
        there = {device.node for device in before.devices} if before is not None else ()
        again = self._sketch(next(iter(there))).place(mode) if len(there) == 1 else None
        return again or self._across(mode)

    def survives(self, task: Task, placement: Placement) -> bool:
        """Return True if `task`, started at `placement`, cannot delay the waiting task."""
        forecast = self.forecast
        # An end at the same time is early enough: ends come before the round.
        if self.time == math.inf or forecast.now + forecast.duration(task, placement) <= self.time:
            return True
        partition = placement.mode.partition
        if (budget := self._budgets.get(partition)) is None:
            return self._spares(placement)
        budget.take(placement.mode, placement.devices)  # a trial: released below if the head could not start
        head = self.placement
        assert head is not None
        beyond = head.mode.partition is partition and budget.refusal(head.mode, head.devices) is not None
        if beyond or not self._spares(placement):
            budget.give(placement.mode, placement.devices)
            return False
        return True

    def _spares(self, placement: Placement) -> bool:
        """Return True if the reserved start stays possible when a longer task starts here."""
        mode = self._mode
        assert mode is not None
        if self._node >= 0:
            if placement.devices[0].node != self._node and not placement.mode.span_any:
                return True  # nearly always
            sketch = Sketch(self._sketch(self._node))  # a copy: kept only if it may start
            sketch.occupy(placement)
            if (again := sketch.place(mode)) is None:
                return False
            self._sketches[self._node] = sketch
            self._placement, self._stamp = again, ()  # the same time, on other devices
            return True
        free, counted, amount = self._free, self._free >= 0, amount_of(mode)
        if self.anywhere:  # its nodes do not matter: a count will do
            free -= placement.mode.gpus if placement.mode.type is mode.type else 0
            if free >= amount:
                self._free = free
            return free >= amount
        before, kept = self._placement, self._sketches  # None: it will be found when it is asked for
        trial = {number: Sketch(self._sketch(number)) for number, _, _ in placement.hosts()}
        touched = before is not None and any(device.node in trial for device in before.devices)
        if not counted and not touched:
            return True
        for sketch in trial.values():
            free -= share_of(mode, sketch, amount) if counted else 0
            sketch.occupy(placement)  # only these nodes change: the difference is counted
            free += share_of(mode, sketch, amount) if counted else 0
        self._sketches = {**kept, **trial}
        after = before if not touched else None if counted else self._moved(before, mode)
        if free < amount if counted else after is None:
            self._sketches = kept
            return False
        self._placement, self._free = after, free
        return True
