"""What each node will have free, and when: the profile on which backfilling makes its reservations.

Reckoned from the cluster, from what runs until its expected end, and from the reservations made so far.
Reference: the profile of conservative backfilling in Mu'alem and Feitelson (2001), here a node at a time.
Devices of one type on a node are alike: a reservation counts them, and which they are shows when it is due.
Cost: a reservation walks the spans of each node until one has room long enough, and stops at the first node that has
room at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from sim.model.cluster import WHOLE, Device, DeviceType, Node, Partition
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task
from sim.policy import View


class Reservation(NamedTuple):
    """A task is to start at a time, in a mode, with so many devices on each of some nodes, and end at another."""

    time: float
    end: float
    mode: Mode
    nodes: tuple[tuple[int, int], ...]

    def placement(self, task: Task, view: View) -> Placement | None:
        """Where it starts, now that it is due: devices of a node are alike, so any that are free will do."""
        if len(self.nodes) > 1:
            return view.first(self.mode)
        return view.on_node(self.mode, self.nodes[0][0], task)


class Span:
    """What is free on a node for some time: cores (thousandths), memory, whole accelerators by type, and shares of
    those that are shared out."""

    __slots__ = ("cores", "memory", "whole", "shares")

    def __init__(self, cores: int, memory: float, whole: dict[DeviceType, int], shares: dict[DeviceType, list[int]]):
        self.cores = cores
        self.memory = memory
        self.whole = whole
        self.shares = shares
        """What is left of accelerators of which fractions are taken."""

    def copy(self) -> Span:
        shares = {kind: list(left) for kind, left in self.shares.items()}
        return Span(self.cores, self.memory, dict(self.whole), shares)

    def fits(self, mode: Mode, count: int, cores: int, memory: float) -> bool:
        if cores > self.cores or memory > self.memory:
            return False
        if not mode.gpus:
            return True
        if mode.whole:
            return self.whole.get(mode.type, 0) >= count
        begun = sum(left >= mode.share for left in self.shares.get(mode.type, ()))
        return begun + self.whole.get(mode.type, 0) >= count

    def take(self, mode: Mode, count: int, cores: int, memory: float) -> None:
        self.cores -= cores
        self.memory -= memory
        if mode.gpus and mode.whole:
            self.whole[mode.type] = self.whole.get(mode.type, 0) - count
        elif mode.gpus:
            shares = self.shares.setdefault(mode.type, [])
            for _ in range(count):
                fullest = min((left for left in shares if left >= mode.share), default=None)
                if fullest is None:  # one that is whole so far is begun
                    self.whole[mode.type] = self.whole.get(mode.type, 0) - 1
                else:
                    shares.remove(fullest)
                shares.append((WHOLE if fullest is None else fullest) - mode.share)


def host_part(mode: Mode, count: int) -> tuple[int, int]:
    """Cores (thousandths) and memory that so many of a launch's devices hold on their node."""
    if count >= mode.gpus:
        return mode.cpus, mode.memory
    return math.ceil(mode.cpus * count / mode.gpus), math.ceil(mode.memory * count / mode.gpus)


class Timeline:
    """One node: spans, each from its time to the next one's, the last for ever."""

    def __init__(self, node: Node, down: Iterable[Device], now: float):
        gone = {device.local for device in down if device.node == node.index}
        whole: dict[DeviceType, int] = {}
        for device in node.accelerators:
            if device.local not in gone:
                whole[device.type] = whole.get(device.type, 0) + device.type.streams
        self.node = node
        self.dead = -1 in gone
        self.times = [now]
        self.spans = [Span(node.cpus * 1000, math.inf if node.memory is None else node.memory, whole, {})]

    def forget(self, now: float) -> None:
        """Drop what is past."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past], self.spans[:past]

    def _split(self, time: float) -> int:
        """The position of the span that begins at a time, made if there is none."""
        position = max(0, bisect_right(self.times, time) - 1)
        if self.times[position] < time:
            position += 1
            self.times.insert(position, time)
            self.spans.insert(position, self.spans[position - 1].copy())
        return position

    def occupy(self, start: float, end: float, mode: Mode, count: int) -> None:
        """Take what a launch holds on this node from `start` to `end`."""
        cores, memory = host_part(mode, count)
        first = self._split(start)
        last = len(self.spans) if math.isinf(end) else self._split(end)
        for span in self.spans[first:last]:
            span.take(mode, count, cores, memory)

    def most(self, mode: Mode, start: float, end: float) -> int:
        """How many devices of a gang could be here all the time."""
        if self.dead or not mode.allows(self.node.index):
            return 0
        count = mode.gpus
        position = max(0, bisect_right(self.times, start) - 1)
        while count and position < len(self.spans):
            if self.times[position] > start and self.times[position] >= end:
                break
            while count and not self.spans[position].fits(mode, count, *host_part(mode, count)):
                count -= 1
            position += 1
        return count

    def earliest(
        self, mode: Mode, duration: float, now: float, before: float, since: float | None = None
    ) -> float | None:
        """The first time before another (and not before `since`) at which the mode has room long enough."""
        if self.dead or (mode.on_cpu and self.node.cpu.type is not mode.type) or not mode.allows(self.node.index):
            return None
        self.forget(now)
        times, spans = self.times, self.spans
        first, count = 0, len(spans)
        if since is not None:
            first, now = max(0, bisect_right(times, since) - 1), since
        while first < count:
            start = max(now, times[first])
            if start >= before:
                return None
            end, position = start + duration, first
            while position < count and (position == first or times[position] < end):
                if not spans[position].fits(mode, mode.gpus, mode.cpus, mode.memory):
                    break
                position += 1
            else:
                return start
            first = position + 1  # no start before the end of the span that has no room can do
        return None


class Pool:
    """GPUs (millionths) that jobs of a partition with a limit hold, from each time to the next one's."""

    def __init__(self, partition: Partition, now: float):
        assert partition.max_gpus is not None
        self.most = round(partition.max_gpus * WHOLE)
        self.times = [now]
        self.held = [0]

    def _split(self, time: float) -> int:
        position = max(0, bisect_right(self.times, time) - 1)
        if self.times[position] < time:
            position += 1
            self.times.insert(position, time)
            self.held.insert(position, self.held[position - 1])
        return position

    def occupy(self, start: float, end: float, mode: Mode) -> None:
        first = self._split(start)
        last = len(self.held) if math.isinf(end) else self._split(end)
        for position in range(first, last):
            self.held[position] += mode.gpus * mode.share

    def earliest(self, mode: Mode, duration: float, since: float) -> float:
        """The first time from `since` on at which the limit leaves room long enough; inf if there is none."""
        room = self.most - mode.gpus * mode.share
        start = since
        for position in range(max(0, bisect_right(self.times, since) - 1), len(self.times)):
            if self.times[position] > start and self.times[position] >= start + duration:
                break
            if self.held[position] > room:
                start = self.times[position + 1] if position + 1 < len(self.times) else math.inf
        return start


class Profile:
    """All nodes, from now on, and the limits of partitions on GPUs in use."""

    def __init__(self, view: View, down: Iterable[Device] = ()):
        now = view.now
        down = list(down)
        self.timelines = [Timeline(node, down, now) for node in view.cluster.nodes]
        limited = [one for one in view.cluster.partitions.values() if one.max_gpus is not None]
        self.pools = {one: Pool(one, now) for one in limited}
        self.ending = False
        """Did something run that was to have ended by then?"""
        for task in view.running("start"):
            placement = view.placement_of(task)
            if placement is None or view.batch_of(task)[0] is not task:
                continue
            counts: dict[int, int] = {}
            for device in placement.devices:
                counts[device.node] = counts.get(device.node, 0) + (placement.mode.gpus > 0)
            # Who overruns its estimate, or takes no time, ends at once, but not yet.
            end = max(view.expected_finish(task), math.nextafter(now, math.inf))
            self.ending = self.ending or end == math.nextafter(now, math.inf)
            self.occupy(Reservation(now, end, placement.mode, tuple(counts.items())))

    def occupy(self, reserved: Reservation) -> None:
        for number, count in reserved.nodes:
            self.timelines[number].occupy(reserved.time, reserved.end, reserved.mode, count)
        if reserved.mode.partition in self.pools:
            self.pools[reserved.mode.partition].occupy(reserved.time, reserved.end, reserved.mode)

    def find(self, task: Task, view: View) -> Reservation | None:
        """The earliest start of a task: of its modes the fastest that can start then, on the first such node."""
        best, chosen, now = math.inf, None, view.now
        for position in task.modes_by_speed():
            mode = task.modes[position]
            duration = _duration(task, mode)
            for timeline in self.timelines:
                start = self._earliest(timeline, mode, duration, now, best)
                if start is not None:
                    best = start
                    chosen = Reservation(start, start + duration, mode, ((timeline.node.index, mode.gpus),))
                    if start <= now:
                        return chosen
            if mode.span_any:
                across = self._across(mode, duration, now, best)
                if across is not None:
                    best, chosen = across.time, across
        return chosen

    def _earliest(
        self, timeline: Timeline, mode: Mode, duration: float, now: float, before: float
    ) -> float | None:
        """The first time at which a node has room and the limit of the partition leaves some."""
        start = timeline.earliest(mode, duration, now, before)
        pool = None if mode.partition is None else self.pools.get(mode.partition)
        while pool is not None and start is not None:
            allowed = pool.earliest(mode, duration, start)
            if allowed == start:
                break
            start = None if allowed >= before else timeline.earliest(mode, duration, now, before, allowed)
        return start

    def _across(self, mode: Mode, duration: float, now: float, before: float) -> Reservation | None:
        """A gang over several nodes, as many devices on each as fit, in the order of nodes."""
        moments = {max(now, time): None for timeline in self.timelines for time in timeline.times}
        pool = None if mode.partition is None else self.pools.get(mode.partition)
        if pool is not None:
            moments |= {max(now, time): None for time in pool.times}
        for start in sorted(moments):
            if start >= before:
                return None
            if pool is not None and pool.earliest(mode, duration, start) > start:
                continue
            chosen, left = [], mode.gpus
            for timeline in self.timelines:
                here = min(left, timeline.most(mode, start, start + duration))
                if here:
                    chosen.append((timeline.node.index, here))
                    left -= here
                if not left:
                    return Reservation(start, start + duration, mode, tuple(chosen))
        return None


def _duration(task: Task, mode: Mode) -> float:
    """By estimate, on any device of the mode's type, wherever it is."""
    left = 1.0 - task.done
    computing = mode.fixed * left + task.estimates[task.shape.position[mode]] * left
    return computing + mode.upload.of(1) + mode.download.of(1) + (task.shape.stopping.restore if task.done > 0 else 0)
