"""Earliest start of a task that does not fit now (the reservation of backfilling)."""

import math
from bisect import insort
from collections.abc import Mapping
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
from hetsim.engine.views.node_availability import Ends
from hetsim.engine.views.placing import Placing
from hetsim.model.cluster import Partition
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.contract import NEVER, Shadow

SLACK = 64  # maximum number of ended launches in the list beyond the number of running ones


class PoolEnds:
    """Expected ends of launches, in order, in steady runs (`Changes.steady`).

    These are for gangs that may use any whole accelerators of a type and need no cores or memory of hosts: such a gang
    fits as soon as enough accelerators are free on any nodes.  Cost: a step for each end before the start of the gang,
    and a step for each launch since the last query.
    """

    def __init__(self, state: RunState, forecast: Forecast):
        self.state = state
        self.forecast = forecast
        self.capacity = state.capacity
        # (end, launch, type number, accelerators); some of the launches are over
        self.ends: list[tuple[float, int, int, int]] = []
        self._last = 0
        self._countable = True

    def counts(self, mode: Mode) -> bool:
        """Return True if it is enough to count free GPUs, for this mode and all launches."""
        if not (mode.span_any and self.capacity.undisturbed and mode.nodes is None and not mode.limited):
            return False
        if mode.millicores or mode.memory or not self.capacity.index_of(mode).simple:
            return False
        return self._known()

    def _known(self) -> bool:
        """Read new launches; return False if any of them is a batch or uses part of a GPU."""
        fresh, self._last = launches_since(self.state, self._last), self.state.last_launch
        capacity, running = self.capacity, self.state.running
        for launch in fresh:
            mode = launch.placement.mode
            if not mode.gpus:
                continue
            if len(launch.tasks) > 1 or not capacity.index_of(mode).simple:
                self._countable = False  # for good: launches that were not taken in would be missing
                break
            end = self.forecast.finish_of(launch)
            insort(self.ends, (end, launch.number, capacity.types[mode.type], mode.gpus))
        if len(self.ends) > 2 * len(running) + SLACK:  # removed in bulk, which is cheaper than at each end
            self.ends = [entry for entry in self.ends if entry[1] in running]
        return self._countable

    def earliest(self, mode: Mode) -> tuple[float, int]:
        """Return when a mode fits (inf: never), and how many accelerators are free then."""
        capacity, kind, needed = self.capacity, self.capacity.types[mode.type], mode.gpus
        free = sum(capacity.nodes[n].open[kind].bit_count() for n in capacity.nodes_in(capacity.with_open[kind]))
        time = -math.inf if free >= needed else math.inf  # it fits now, or an end must come first
        now = self.forecast.now
        for end, number, other, gpus in self.ends:
            if end > time and end > now:  # all launches that overran are expected to end now, together
                break
            if other == kind and number in self.state.running:
                free += gpus
                if time == math.inf and free >= needed:
                    time = end  # and all that ends with it
        return time, free


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
    _kept: "dict[tuple[int, Mode | None], EarliestFit]" = field(default_factory=dict)
    _ends: Ends | None = None
    _pool: PoolEnds | None = None

    @property
    def ends(self) -> Ends:
        """Times at which nodes will have room; valid only if all launches run steadily."""
        if self._ends is None:
            self._ends = Ends(self.state, self.forecast, self.stops)
        return self._ends

    @property
    def pool(self) -> PoolEnds:
        """Times at which accelerators are free anywhere; valid only in a steady run."""
        if self._pool is None:
            self._pool = PoolEnds(self.state, self.forecast)
        return self._pool

    def shadow_of(self, task: Task, mode: Mode | None = None) -> Shadow:
        if task.shape in self.fleets:
            return NEVER
        key = task.index, mode
        shadow = self._kept.get(key)
        if shadow is None or not shadow.holds():
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()  # shadows are computed again when needed
            shadow = self._kept[key] = EarliestFit(self, task, mode)
        return shadow


class EarliestFit:
    """Time and place of a task's start if running tasks end as estimated.

    In steady runs where counting free devices is enough, the time is the minimum over the nodes (`Ends`), updated only
    for nodes that changed; `PoolEnds` is used for gangs that may use whole accelerators anywhere.  Otherwise the
    running launches are released in order of expected finish on what-if copies of their nodes, until a mode of the task
    fits; cost: one sort of the running launches.
    """

    def __init__(self, shadows: Shadows, task: Task, mode: Mode | None = None):
        self.shadows = shadows
        self.state = shadows.state
        self.forecast = shadows.forecast
        self.task = task
        self.mode = mode
        self.time = math.inf
        self.anywhere = False
        self._placement: Placement | None = None
        self._capacity = shadows.state.capacity
        self._sketches: dict[int, Sketch] = {}  # what-if copies of nodes at the shadow time
        self._at: tuple[int, Mode, Ends] | None = None  # node, mode and index, if the answer comes from `Ends`
        self._due: list[tuple[float, int, Launch]] = []  # launches that will have ended on that node by then
        self._accepted = False  # True if a launch beyond the shadow time has been accepted on its nodes
        self._last = shadows.state.last_launch  # later ones are released on sketches, if they end by then
        self._budgets: dict[Partition | None, Budget] = {}  # usage of limited partitions at the shadow time
        # mode of its start, if free capacity on all nodes was counted for it or `_walk` found it
        self._gang: Mode | None = None
        self._free = -1  # free for the gang at the shadow time (`amount_of`), if that was counted; else -1
        self._modes = [mode] if mode is not None else [task.shape.modes[p] for p in task.modes_by_speed()]
        self._stamp = 0, 0, 0
        self._find()

    def holds(self) -> bool:
        """Return True if the computed start is certainly still valid.

        This is known only if the start comes from `Ends`, its time is still to come, and its node has not changed: a
        task that started on another node cannot have made the task fit earlier on any node.
        """
        if self._at is None or self._accepted:
            return False
        node, _, ends = self._at
        state = ends.state
        if self.time <= state.clock._now or not state.steady or not ends.as_known():
            return False
        task, several = self.task, self.mode is None and len(self._modes) > 1
        if several and self._modes != [task.shape.modes[p] for p in task.modes_by_speed()]:  # redirected since
            return False
        if not ends.unchanged(node, self._stamp):
            return False
        self._stamp = ends.stamp()  # the next look compares with this
        return True

    def _find(self) -> None:
        now_fitting = self.shadows.placing.fit(self.task) if self.mode is None else self._capacity.first(self.mode)
        if now_fitting is not None:
            self.time, self._placement = self.forecast.now, now_fitting
            return
        modes, capacity, shadows = self._modes, self._capacity, self.shadows
        self._budgets = {mode.partition: capacity.budget(mode).copy() for mode in modes if mode.limited}
        steady = self.state.steady and not self._budgets
        if steady and all(map(capacity.countable, modes)) and shadows.ends.refresh():
            ends = shadows.ends  # The minimum over the nodes' times; the first node among equals.
            for mode in modes:
                time, number = ends.earliest(mode)
                if time < self.time:  # of equal times the faster mode, which comes first
                    self.time = max(self.forecast.now, time)
                    self._at = number, mode, ends
            if self._at is not None:
                self._due = ends.due(self._at[0], self.time)
                self._stamp = ends.stamp()
        elif steady and all(map(shadows.pool.counts, modes)):
            self.anywhere = True  # accelerators are counted on all nodes
            for mode in modes:
                time, free = shadows.pool.earliest(mode)
                if time < self.time:
                    self._gang, self._free = mode, free
                    self.time = max(self.forecast.now, time)
        else:
            self._walk(modes)

    def _walk(self, modes: list[Mode]) -> None:
        """Release launches on copies of nodes, by expected finish, until a mode fits."""
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
                fits = self._within_limits(modes) if limited else self._on_sketches(modes, nodes, free)
                self._placement, self.time = fits, end if fits is not None else math.inf
        if self._placement is not None and not self.anywhere:
            self._gang = self._placement.mode
            self._free = free.get(self._gang, -1)

    def _on_sketches(self, modes: list[Mode], nodes: list[int], free: dict[Mode, int]) -> Placement | None:
        for number in nodes:
            for mode in modes:
                if (placement := self._sketches[number].place(mode)) is not None:
                    return placement
        for mode in modes:
            if mode.span_any and free[mode] >= amount_of(mode):  # enough capacity on several nodes together
                return self._across(mode)
        return None

    def _within_limits(self, modes: list[Mode]) -> Placement | None:
        capacity, sketches = self._capacity, self._sketches
        for mode in modes:
            budget = self._budgets[mode.partition] if mode.limited else None
            room = capacity.room(mode)
            for number in sketches:  # these may have more room than now
                room |= 1 << number
            if budget is not None:
                room = budget.narrowed(mode, room)
            for number in capacity.nodes_in(room):
                if (placement := (sketches.get(number) or Sketch(capacity.nodes[number])).place(mode)) is not None:
                    return placement
            if mode.span_any:
                nodes = [sketches.get(node.index, node) for node in capacity.nodes]
                if (placement := capacity._across(mode, nodes, budget)) is not None:
                    return placement
        return None

    def _across(self, mode: Mode) -> Placement | None:
        numbers = self._capacity.having_room(mode)
        for number in self._sketches:
            numbers |= 1 << number
        for launch in launches_since(self.state, self._last):
            for device in launch.placement.devices:
                numbers |= 1 << device.node
        return self._capacity._across(mode, map(self._sketch, self._capacity.nodes_in(numbers)))

    @property
    def placement(self) -> Placement | None:
        """The placement at which the task would start; None if it can never start."""
        if self._placement is None:
            if self._at is not None:
                self._placement = self._sketch(self._at[0]).place(self._at[1])
            elif self._gang is not None and self.anywhere:
                self._walk([self._gang])
            elif self._gang is not None and self._free >= 0:
                self._placement = self._across(self._gang)
        return self._placement

    def _sketch(self, number: int) -> Sketch:
        if (sketch := self._sketches.get(number)) is None:
            sketch = self._sketches[number] = Sketch(self._capacity.nodes[number], lasting=True)
            over = [launch for launch in launches_since(self.state, self._last)
                    if any(device.node == number for device in launch.placement.devices)
                    and self.forecast.finish_of(launch) <= self.time]  # fmt: skip
            if self._at is not None and number == self._at[0]:
                over += [launch for _, _, launch in self._due if launch.number in self.state.running]
            for launch in over:
                sketch.release(launch.placement, launch)
        return sketch

    # Launches that go on beyond it --------------------------------------------------------------------------

    def survives(self, task: Task, placement: Placement) -> bool:
        """Return True if starting `task` at `placement` cannot delay the waiting task."""
        forecast = self.forecast
        # An end at the same time is early enough: ends come before the round.
        if self.time == math.inf or forecast.now + forecast.duration(task, placement) <= self.time:
            return True
        # Accepted launches remain on the sketches and reduce the count, for the next checks of this round.
        if (gang := self._gang) is not None and self._free >= 0:
            return self._spares_gang(placement, gang)
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
        """Return True if the task can still start in time next to this longer launch."""
        if self._at is not None:
            head, mode, _ = self._at
            if not placement.mode.span_any and placement.devices[0].node != head:
                return True  # nearly always
            mine = {head}  # a mode of one node, as counting needs
        else:
            assert self.placement is not None
            mine, mode = {number for number, _, _ in self.placement.hosts()}, self.placement.mode
        theirs = [number for number, _, _ in placement.hosts()]
        if mine.isdisjoint(theirs):
            return True
        looked_at = mine.union(theirs) if mode.span_any else mine  # a gang may move to any nodes, theirs included
        # Copies: kept only if it may start.
        sketches = {number: Sketch(self._sketch(number)) for number in sorted(looked_at)}
        for number in theirs:
            if number in sketches:
                sketches[number].occupy(placement)
        again = sketches[next(iter(mine))].place(mode) if len(mine) == 1 else None
        if again is None and mode.span_any:
            everywhere = [sketches.get(node.index) or self._sketch(node.index) for node in self._capacity.nodes]
            again = self._capacity._across(mode, everywhere)
        if again is None:
            return False
        self._placement, self._accepted = again, True  # the same time, on other devices
        self._sketches.update(sketches)
        return True

    def _spares_gang(self, placement: Placement, gang: Mode) -> bool:
        """Return True if a longer launch leaves enough devices for the waiting gang."""
        amount_left = self._free
        if self.anywhere:  # its nodes do not matter: a count will do
            if placement.mode.type is gang.type:
                amount_left -= placement.mode.gpus
                if amount_left < gang.gpus:
                    return False
                self._free = amount_left
            return True
        amount = amount_of(gang)
        sketches = {number: Sketch(self._sketch(number)) for number, _, _ in placement.hosts()}
        for sketch in sketches.values():
            amount_left -= share_of(gang, sketch, amount)
            sketch.occupy(placement)  # only these nodes change: the difference is counted
            amount_left += share_of(gang, sketch, amount)
        if amount_left < amount:
            return False
        if self._placement is not None and any(device.node in sketches for device in self._placement.devices):
            self._placement = None  # on other nodes; found when it is asked for
        self._free = amount_left
        self._sketches.update(sketches)
        return True
