"""Free resources of a node, and of a partition's limit, by span from now on.

Devices of one type on a node are alike: a launch takes a number of them, and which they are shows when it starts.
Cost: a question walks the windows in which a mode has room, which are found when a node is first asked about after a
change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hetsim.model.cluster import WHOLE, Device, Node, Partition
from hetsim.model.plan import host_part
from hetsim.model.tasks import Mode


@dataclass(eq=False, slots=True)
class FreeSpan:
    """Free resources of a node during some time.

    Cores (thousandths), memory, whole accelerators by the name of their type, and shares of those that are shared out.
    """

    cores: int
    memory: float
    accelerators: dict[str, int]
    shares: dict[str, list[int]]
    """Free parts of accelerators of which fractions are taken."""

    def copy(self) -> FreeSpan:
        shares = {kind: list(parts) for kind, parts in self.shares.items()} if self.shares else {}
        return FreeSpan(self.cores, self.memory, self.accelerators.copy(), shares)

    def fits(self, mode: Mode, count: int, cores: int, memory: float) -> bool:
        if cores > self.cores or memory > self.memory:
            return False
        if not mode.gpus:
            return True
        kind = mode.type.name
        free = self.accelerators.get(kind, 0)
        if mode.share != WHOLE:
            free += sum(part >= mode.share for part in self.shares.get(kind, ()))
        return free >= count

    def take(self, mode: Mode, count: int, cores: int, memory: float) -> None:
        self.cores -= cores
        self.memory -= memory
        if not mode.gpus:
            return
        kind = mode.type.name
        if mode.share == WHOLE:
            self.accelerators[kind] = self.accelerators.get(kind, 0) - count
            return
        shares = self.shares.setdefault(kind, [])
        for _ in range(count):
            fullest = min((part for part in shares if part >= mode.share), default=None)
            if fullest is None:  # one that is whole so far is begun
                self.accelerators[kind] = self.accelerators.get(kind, 0) - 1
            else:
                shares.remove(fullest)
            shares.append((WHOLE if fullest is None else fullest) - mode.share)


def amount_of(mode: Mode) -> int:
    """The amount of a launch: nodes, thousandths of cores, or accelerators."""
    if mode.node_count > 1:
        return mode.node_count
    return mode.gpus if mode.unit is None else mode.millicores


def occupied(mode: Mode, amount: int) -> tuple[int, int, int]:
    """Accelerators, cores (thousandths) and memory of an amount of a launch."""
    if mode.node_count > 1:
        part = mode.unit
        assert part is not None
        return part.gpus * amount, part.millicores * amount, part.memory * amount
    if mode.unit is not None:
        return 0, amount, -(-mode.memory * amount // mode.millicores)
    return amount, *host_part(mode, amount)


class Timeline:
    """One node: spans, each from its time to the next one's, the last for ever."""

    __slots__ = ("node", "dead", "times", "spans", "known_windows", "_amounts")

    def __init__(self, node: Node, dead: bool, times: list[float], spans: list[FreeSpan]):
        self.node = node
        self.dead = dead
        """True if it is down."""
        self.times = times
        self.spans = spans
        self.known_windows: dict[Mode, list[tuple[float, float]]] = {}
        self._amounts: dict[Mode, list[int]] = {}

    @classmethod
    def empty(cls, node: Node, down: Iterable[Device], now: float) -> Timeline:
        """Nothing runs there; these devices are down."""
        gone = {device.local for device in down if device.node == node.index}
        accelerators: dict[str, int] = {}
        for device in node.accelerators:
            if device.local not in gone:
                accelerators[device.type.name] = accelerators.get(device.type.name, 0) + device.type.streams
        memory = math.inf if node.memory is None else node.memory
        return cls(node, -1 in gone, [now], [FreeSpan(node.cpus * 1000, memory, accelerators, {})])

    def copy(self) -> Timeline:
        return Timeline(self.node, self.dead, self.times.copy(), [span.copy() for span in self.spans])

    def usable(self, mode: Mode) -> bool:
        """Return True if tasks may run on this node alone in this mode at all."""
        return mode.node_count == 1 and self._allowed(mode)

    def _allowed(self, mode: Mode) -> bool:
        return not self.dead and (not mode.on_cpu or self.node.cpu.type is mode.type) and mode.allows(self.node.index)

    def forget(self, now: float) -> None:
        """Drop what is past."""
        past = bisect_right(self.times, now) - 1
        if past > 0:
            del self.times[:past], self.spans[:past]
            self._amounts.clear()

    def _split(self, time: float) -> int:
        """The position of the span that begins at a time, made if there is none."""
        position = max(0, bisect_right(self.times, time) - 1)
        if self.times[position] < time:
            position += 1
            self.times.insert(position, time)
            self.spans.insert(position, self.spans[position - 1].copy())
        return position

    def occupy(self, start: float, end: float, mode: Mode, count: int, sign: int = 1) -> None:
        """Add the occupancy of `count` of a launch from `start` to `end` on this node.

        See `occupied`.  sign -1: give it back, where the accelerators are whole.
        """
        self.known_windows.clear()
        self._amounts.clear()
        gpus, cores, memory = occupied(mode, count)
        first = self._split(start)
        last = len(self.spans) if math.isinf(end) else self._split(end)
        for span in self.spans[first:last]:
            span.take(mode, sign * gpus, sign * cores, sign * memory)

    @property
    def is_overfull(self) -> bool:
        """Return True if more is held at some time than there is."""
        return any(
            span.cores < 0 or span.memory < 0 or min(span.accelerators.values(), default=0) < 0 for span in self.spans
        )

    def max_amount(self, mode: Mode, start: float, end: float) -> int:
        """How much of a gang could be here all the time."""
        amounts, times = self.amounts(mode), self.times
        position = max(0, bisect_right(times, start) - 1)
        count = amounts[position]
        position += 1
        while count and position < len(times) and times[position] < end:
            count = min(count, amounts[position])
            position += 1
        return count

    def amounts(self, mode: Mode) -> list[int]:
        """How much of a gang could be here, by span."""
        amounts = self._amounts.get(mode)
        if amounts is None:
            allowed = self._allowed(mode)
            amounts = self._amounts[mode] = [self._amount(mode, span) if allowed else 0 for span in self.spans]
        return amounts

    @staticmethod
    def _amount(mode: Mode, span: FreeSpan) -> int:
        count, step = (1 if mode.node_count > 1 else amount_of(mode)), 1
        if mode.unit is not None and mode.node_count == 1:
            step = 1000
            count = min(count, span.cores // step * step)
            if not mode.memory:  # cores alone
                return max(0, count)
        while count > 0 and not span.fits(mode, *occupied(mode, count)):
            count -= step
        return max(0, count)

    def windows(self, mode: Mode) -> list[tuple[float, float]]:
        """From when until when the mode has room, in order; the first may be past."""
        windows = self.known_windows.get(mode)
        if windows is None:
            windows = self.known_windows[mode] = list(self._with_room(mode)) if self.usable(mode) else []
        return windows

    def _with_room(self, mode: Mode) -> Iterator[tuple[float, float]]:
        begun, gpus, cores, memory = -1.0, mode.gpus, mode.millicores, mode.memory
        simple, kind = gpus > 0 and mode.share == WHOLE, mode.type.name
        for time, span in zip(self.times, self.spans, strict=True):
            if simple:  # `FreeSpan.fits`, inline
                fits = cores <= span.cores and memory <= span.memory and span.accelerators.get(kind, 0) >= gpus
            else:
                fits = span.fits(mode, gpus, cores, memory)
            if not fits:
                if begun >= 0:
                    yield begun, time
                    begun = -1.0
            elif begun < 0:
                begun = time
        if begun >= 0:
            yield begun, math.inf

    def earliest(self, mode: Mode, duration: float, since: float, before: float) -> float | None:
        """The first time in [since, before) from which the mode has room long enough."""
        for begin, end in self.windows(mode):
            if end <= since:
                continue
            start = since if begin < since else begin
            if start >= before:
                return None
            if start + duration <= end:
                return start
        return None


class LimitedPool:
    """GPUs (millionths) that jobs of a limited partition occupy, by time."""

    def __init__(self, partition: Partition, now: float):
        assert partition.max_gpus is not None
        self.limit = round(partition.max_gpus * WHOLE)
        self.times = [now]
        self.occupied = [0]

    def _split(self, time: float) -> int:
        position = max(0, bisect_right(self.times, time) - 1)
        if self.times[position] < time:
            position += 1
            self.times.insert(position, time)
            self.occupied.insert(position, self.occupied[position - 1])
        return position

    def occupy(self, start: float, end: float, mode: Mode) -> None:
        first = self._split(start)
        last = len(self.occupied) if math.isinf(end) else self._split(end)
        for position in range(first, last):
            self.occupied[position] += mode.gpus * mode.share

    def earliest(self, mode: Mode, duration: float, since: float) -> float:
        """The first time from `since` with enough of the limit for long enough, or inf."""
        room = self.limit - mode.gpus * mode.share
        start = since
        for position in range(max(0, bisect_right(self.times, since) - 1), len(self.times)):
            if self.times[position] > start and self.times[position] >= start + duration:
                break
            if self.occupied[position] > room:
                start = self.times[position + 1] if position + 1 < len(self.times) else math.inf
        return start
