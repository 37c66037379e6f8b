"""Future free resources of each node: the profile for backfilling reservations.

It is computed from the cluster, the running tasks until their expected ends, and the reservations made so far.
Reference: the profile of conservative backfilling in Mu'alem and Feitelson (2001), here one per node.
Cost: nodes are visited in the order in which running tasks leave room, until a node has room; on a node with
reservations a visit takes a pass over its spans of constant free resources.
"""

import math
from bisect import bisect_right, insort
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from hetsim.model.device import Device
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.dynamic.common.occupancy import Occupancy
from hetsim_policies.dynamic.common.timelines import LimitedPool, Timeline, amount_of


class Reservation(NamedTuple):
    """A planned start and end in a mode, with the amount on each node."""

    time: float
    end: float
    mode: Mode
    nodes: tuple[tuple[int, int], ...]

    def placement(self, task: Task, view: View) -> Placement | None:
        """Return a due reservation's placement on its nodes; None if it does not fit now."""
        if len(self.nodes) > 1:
            return view.first(self.mode, among=dict(self.nodes))
        return view.first(self.mode, task, node=self.nodes[0][0])


class FreeProfile:
    """Free capacity of nodes and partitions' limits over time, with reservations.

    It is valid while running tasks end when expected and nothing starts without a reservation.
    """

    def __init__(self, occupancy: Occupancy, view: View):
        self._occupancy = occupancy
        self._view = view
        self._made = view.now
        self._reserved: dict[int, Timeline] = {}  # nodes with reservations, by number
        # By queried mode (`open_until`): nodes with room now, in order, and the ends of their windows
        self._open: dict[Mode, dict[int, float]] = {}
        # By mode: (time before which a node has no room, node), in order
        self._order: dict[Mode, list[tuple[float, int]]] = {}
        self.version = 0  # grows with each change of these times
        self._is_open: set[int] = set()  # the nodes among these
        self.pools = {one: LimitedPool(one, view.now) for one in occupancy.limited}
        if self.pools:
            soon = math.nextafter(view.now, math.inf)
            for run in occupancy.runs.values():
                if run.mode.partition in self.pools:
                    self.pools[run.mode.partition].occupy(view.now, max(run.end, soon), run.mode)

    def occupy(self, reserved: Reservation) -> None:
        (start, end, mode, nodes), now = reserved, self._view.now
        for number, count in nodes:
            if (timeline := self._reserved.get(number)) is None:
                timeline = self._reserved[number] = self._occupancy.timelines[number].copy(now)
            elif now > self._made:
                timeline.forget(now)
            timeline.occupy(start, end, mode, count)
            alone = len(nodes) == 1 and mode in timeline.fields.alone  # a part of a gang leaves room for others
            if alone and (order := self._order.get(mode)) and order[0] == (start, number):
                del order[0]  # the node had no room before, and has none until the end
                insort(order, (end, number))
            for other, ends in self._open.items() if number in self._is_open else ():
                if number in ends and (until := timeline.open_until(other, now)) != ends[number]:
                    ends[number] = until
                    self.version += 1
        if self.pools and mode.partition in self.pools:
            self.pools[mode.partition].occupy(start, end, mode)

    def could_start(self, task: Task) -> bool:
        """Return True if a reservation for the task could begin now.

        The answer is exact except for tasks with transfers, gangs across nodes and partition limits.  Cost: a pass over
        the nodes with room now, once per mode after a change.
        """
        return any(
            self._view.now + task.estimates[position] * (1.0 - task.done) <= self.open_until(task.modes[position])
            for position in task.modes_by_speed()
        )

    def open_until(self, mode: Mode) -> float:
        """Return until when (s) some node has room for the mode; -inf: none has room now."""
        if mode.span_any or mode.partition in self.pools:
            return math.inf
        if (ends := self._open.get(mode)) is None:
            now, ends = self._view.now, {}
            order, reserved, shared = self._order_of(mode), self._reserved, self._occupancy.shared
            for number in sorted([number for _, number in order[: bisect_right(order, (now, math.inf))]]):
                limited = number in reserved or number in shared  # elsewhere there is ever more room
                ends[number] = self._timeline(number).open_until(mode, now) if limited else math.inf
            self._open[mode] = ends
            self._is_open.update(ends)
        return max(ends.values(), default=-math.inf)

    def find(self, task: Task, view: View) -> Reservation | None:
        """Return a task's earliest reservation in any mode, or None if it never fits."""
        best, chosen, now, steady, only = math.inf, None, view.now, view.changes.steady, _only_mode(task.shape)
        if only is not None and steady and not task.done:  # most jobs
            seconds = _stages(only, task.estimates[0], 1.0)
            start, number = self._on_a_node(only, seconds, now, best)
            nodes = ((number, only.gpus),)
            return None if number < 0 else tuple.__new__(Reservation, (start, start + seconds, only, nodes))
        for position in task.modes_by_speed():
            mode = task.shape.modes[position]
            part = 1.0 - task.done
            seconds = _stages(mode, task.estimates[position] * part, part)
            seconds += 0.0 if part == 1.0 else task.shape.stopping.restore
            while True:
                start, number = self._on_a_node(mode, seconds, now, best)
                if mode.span_any and start > now and (across := self._across(mode, seconds, now, start)) is not None:
                    reservation = across
                elif number < 0:
                    break
                else:
                    amount = mode.gpus if mode.unit is None else amount_of(mode)
                    reservation = tuple.__new__(Reservation, (start, start + seconds, mode, ((number, amount),)))
                longer = seconds if steady else _seconds_there(task, reservation, view)
                if longer <= seconds:
                    best, chosen = reservation.time, reservation
                    break
                seconds = longer
            if best <= now:
                break
        return chosen

    def _on_a_node(self, mode: Mode, duration: float, now: float, before: float) -> tuple[float, int]:
        """Return the earliest start before `before` on a node, and the node (-1: none)."""
        best, chosen = before, -1
        if self.pools and mode.partition in self.pools:
            pool = self.pools[mode.partition]
            for number, timeline in enumerate(self._timelines()):
                start = self._within_limit(timeline, pool, mode, duration=duration, now=now, before=best)
                if start is not None:
                    best, chosen = start, number
                    if start <= now:
                        break
            return best, chosen
        for number, until in self._open[mode].items() if mode in self._open else ():
            if now + duration <= until:
                return now, number
        order, reserved, place = self._order.get(mode) or self._order_of(mode), self._reserved, 0
        while place < len(order):
            time, number = order[place]
            if time > best:
                break
            own = reserved.get(number)
            if own is None and time > -math.inf:  # next to running tasks it has room from then on
                start = time if time > now else now
            else:
                first, start = (own or self._timeline(number)).first_gap(mode, duration, now, best, low=time)
                if first > time:
                    del order[place]
                    insort(order, (first, number), place)
                    continue
            place += 1
            if start < best or (start == best and number < chosen):  # of equal times the one on the first node
                best, chosen = start, number
        return best, chosen

    def _order_of(self, mode: Mode) -> list[tuple[float, int]]:
        if (order := self._order.get(mode)) is None:
            order = self._order[mode] = self._occupancy.by_first_time(mode).copy()
        return order

    def _timeline(self, number: int) -> Timeline:
        return self._reserved.get(number) or self._occupancy.timelines[number]

    def _timelines(self) -> list[Timeline]:
        return [self._timeline(number) for number in range(len(self._occupancy.timelines))]

    def _within_limit(
        self, timeline: Timeline, pool: LimitedPool, mode: Mode, duration: float, now: float, before: float
    ) -> float | None:
        start = timeline.earliest(mode, duration, now, before)
        while start is not None:
            if (allowed := pool.earliest(mode, duration, start)) == start:
                break
            start = None if allowed >= before else timeline.earliest(mode, duration, max(now, allowed), before)
        return start

    def _across(self, mode: Mode, duration: float, now: float, before: float) -> Reservation | None:
        timelines = self._timelines()
        pool = None if mode.partition is None else self.pools.get(mode.partition)
        if mode.node_count > 1 and pool is None:
            return self._on_nodes(mode, timelines, duration, now=now, before=before)
        # What each node could take at the moment, and how that changes; enough of it has to stay for the duration.
        here_now = [0] * len(timelines)
        changes: list[tuple[float, int, int]] = []
        for position, timeline in enumerate(timelines):
            for time, amount in zip(timeline.times, timeline.amounts(mode), strict=True):
                if time <= now:
                    here_now[position] = amount
                else:
                    changes.append((time, position, amount))
        changes += [(time, -1, 0) for time in (() if pool is None else pool.times) if time > now]
        changes.sort()
        total, place, start = sum(here_now), 0, now
        while start < before:
            while place < len(changes) and changes[place][0] == start:
                _, position, amount = changes[place]
                if position >= 0:
                    total += amount - here_now[position]
                    here_now[position] = amount
                place += 1
            moment, start = start, changes[place][0] if place < len(changes) else math.inf
            enough = total >= amount_of(mode) and (pool is None or pool.earliest(mode, duration, moment) <= moment)
            gang = self._filling(mode, timelines, moment, duration) if enough else None
            if gang is not None:
                return gang
        return None

    def _filling(self, mode: Mode, timelines: list[Timeline], start: float, duration: float) -> Reservation | None:
        """Return a reservation at `start` that fills one node after another, or None."""
        chosen, rest = [], amount_of(mode)
        for number, timeline in enumerate(timelines):
            if here := min(rest, timeline.max_amount(mode, start, start + duration)):
                chosen.append((number, here))
                rest -= here
            if not rest:
                return Reservation(start, start + duration, mode, tuple(chosen))
        return None

    def _on_nodes(
        self, mode: Mode, timelines: list[Timeline], duration: float, now: float, before: float
    ) -> Reservation | None:
        """Return the earliest reservation on several nodes with start < `before`, or None."""
        assert mode.unit is not None
        begins = []
        for position, timeline in enumerate(timelines):
            for begin, end in timeline.windows(mode.unit):
                start = begin if begin > now else now
                if end > start and start + duration <= end:
                    begins.append((start, end, position))
        begins.sort()
        open_: list[tuple[float, int]] = []
        for number, (start, end, position) in enumerate(begins, 1):
            if start >= before:
                return None
            heappush(open_, (end, position))
            if number < len(begins) and begins[number][0] == start:
                continue
            while open_ and (open_[0][0] <= start or start + duration > open_[0][0]):
                heappop(open_)
            if len(open_) >= mode.node_count:
                first = sorted(position for _, position in open_)[: mode.node_count]
                return Reservation(start, start + duration, mode, tuple((position, 1) for position in first))
        return None


@lru_cache(4096)
def _only_mode(shape: Shape) -> Mode | None:
    mode = shape.modes[0]
    return mode if len(shape.modes) == 1 and mode.unit is None and not mode.span_any else None


@lru_cache(4096)
def _stages(mode: Mode, compute: float, remaining: float) -> float:
    """Estimated seconds of all stages of a task in a mode, without data transfers."""
    return mode.stages(1, compute, remaining).total


def _seconds_there(task: Task, reservation: Reservation, view: View) -> float:
    """Estimated seconds of all stages of a task at its reservation.

    If the task cannot start there now, its GPUs count as idle; without GPUs, return 0 (the caller uses its estimate).
    """
    mode, placement = reservation.mode, reservation.placement(task, view) if reservation.time <= view.now else None
    if placement is not None:
        return view.duration(task, placement)
    if not mode.gpus:
        return 0.0
    devices: list[Device] = []
    for number, amount in reservation.nodes:
        count = amount if mode.node_count == 1 else mode.gpus // mode.node_count
        here = [device for device in view.cluster.nodes[number].accelerators if device.type is mode.type]
        devices += here[: max(1, count)]
    sharing = mode.type.sharing
    ready = sharing.reconfigure if sharing.kind == "mig" and len(sharing.cuts) > 1 else 0.0
    return float(view.stages((task,), Placement(mode, tuple(devices)))._replace(ready=ready).total)
