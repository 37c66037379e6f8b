"""Free resources of a node, and of a partition's limit, by time span from now on.

Devices of one type on a node are interchangeable: a launch takes a number of them, chosen when it starts.
Cost: a query visits the spans of the node.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice

from hetsim.model.cluster import Node, Partition
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import host_part


def amount_of(mode: Mode) -> int:
    """Amount of a launch in its unit: nodes, thousandths of cores, or accelerators."""
    if mode.node_count > 1:
        return mode.node_count
    return mode.gpus if mode.unit is None else mode.millicores


def occupied(mode: Mode, amount: int) -> tuple[int, int, int]:
    """Accelerators, cores (thousandths) and host bytes that part of a launch occupies.

    amount: size of the part: a number of nodes, of thousandths of cores, or of accelerators (see `amount_of`).
    """
    if (part := mode.unit) is None:
        return amount, *host_part(mode, amount)
    if mode.node_count > 1:
        return part.gpus * amount, part.millicores * amount, part.memory * amount
    return 0, amount, -(-mode.memory * amount // mode.millicores)


WIDTH = 64  # bits of a field

SPARE = 1 << WIDTH - 2

UNLIMITED = 1 << WIDTH + WIDTH - 4  # memory of a node without a stated memory


class Fields:
    """Free resources of a node packed in one integer, with a field for each.

    Fields: cores (thousandths), memory, and accelerators of every type.
    A field stores the free amount plus `SPARE`, so that one subtraction and one mask test whether a demand fits.
    """

    def __init__(self, node: Node, down: Iterable[Device]):
        gone = {device.local for device in down if device.node == node.index}
        self.node = node
        self.dead = -1 in gone  # True if it is down
        self.offsets: dict[str, int] = {}  # bits before the field of each type of accelerator
        self.free = node.cpus * 1000 + (UNLIMITED if node.memory is None else node.memory << WIDTH)
        for device in node.accelerators:
            offset = self.offsets.setdefault(device.type.name, (len(self.offsets) + 2) * WIDTH)
            self.free += device.type.streams * (device.local not in gone) << offset
        self.spare = sum(SPARE << WIDTH * number for number in range(len(self.offsets) + 2))
        self.one_field = len(self.offsets) == 1  # nothing but accelerators of one type was ever taken
        self.packed: dict[tuple[Mode, int], int] = {}
        self.needs: dict[Mode, tuple[int, int] | None] = {}
        self.alone: dict[Mode, None] = {}  # Queried modes of which two launches never fit at once

    def need(self, mode: Mode) -> tuple[int, int] | None:
        """Return what a launch needs on this node as one integer, and a mask for the test.

        The launch fits if free ≥ need and, unless mask is 0, (free - need) & mask == mask.  Return None if it never
        fits, or if it needs several nodes or fractions of accelerators.
        """
        if (need := self.needs.get(mode)) is None and mode not in self.needs:
            plain = mode.node_count == 1 and self.allows(mode) and (not mode.gpus or mode.whole_devices)
            need = (self.pack(mode, mode.gpus, mode.millicores, mode.memory), self.mask(mode)) if plain else None
            if need is not None and self.one_field and mode.gpus and not (mode.millicores or mode.memory):
                need = self.spare + self.free % (1 << 2 * WIDTH) + need[0], 0  # cores and memory stay as they are
            self.needs[mode] = need
            if plain and mode.gpus and 2 * mode.gpus > (self.free >> self.offsets[mode.type.name]) % (1 << WIDTH):
                self.alone[mode] = None
        return need

    def allows(self, mode: Mode) -> bool:
        if self.dead or not mode.allows(self.node.index):
            return False
        return mode.type.name in self.offsets if mode.gpus else self.node.cpu.type is mode.type

    def mask(self, mode: Mode) -> int:
        """Return the bits that stay 1 in `free` minus a mode's demand if the mode fits."""
        return SPARE | SPARE << WIDTH | (SPARE << self.offsets[mode.type.name] if mode.gpus else 0)

    def pack(self, mode: Mode, gpus: int, cores: int, memory: int) -> int:
        return cores + (memory << WIDTH) + (gpus << self.offsets[mode.type.name] if gpus else 0)

    def demand(self, mode: Mode, count: int) -> int:
        """Pack the demand of `count` GPUs, 1/1000 cores or nodes of a mode in one integer."""
        if (packed := self.packed.get((mode, count))) is None:
            gpus, cores, memory = occupied(mode, count)
            if self.one_field and (cores or memory):
                self.one_field = False
                self.needs.clear()
            packed = self.packed[mode, count] = self.pack(mode, gpus * mode.whole_devices, cores, memory)
        return packed


class Timeline:
    """Free resources of one node over time, as spans; the last span has no end."""

    __slots__ = ("fields", "times", "free", "shares", "known_windows", "_amounts")

    def __init__(self, fields: Fields, times: list[float], free: list[int]):
        self.fields = fields
        self.times = times
        self.free = free
        # Free shares of accelerators with fractions in use, by span; empty if there are none
        self.shares: list[dict[str, list[int]]] = []
        self.known_windows: dict[Mode, list[tuple[float, float]]] = {}
        self._amounts: dict[Mode, list[int]] = {}

    @classmethod
    def empty(cls, node: Node, down: Iterable[Device], now: float) -> "Timeline":
        """Return a timeline without launches, on which these devices are down."""
        fields = Fields(node, down)
        return cls(fields, [now], [fields.spare + fields.free])

    def copy(self, now: float) -> "Timeline":
        past = max(0, bisect_right(self.times, now) - 1)
        copy = Timeline(self.fields, self.times[past:], self.free[past:])
        if self.shares:
            copy.shares = list(map(_copied, self.shares[past:]))
        return copy

    def forget(self, now: float) -> None:
        if len(self.times) > 1 and self.times[1] <= now:
            past = bisect_right(self.times, now) - 1
            del self.times[:past], self.free[:past], self.shares[:past]
            self._amounts.clear()

    def occupy(self, start: float, end: float, mode: Mode, count: int) -> None:
        if self.known_windows or self._amounts:
            self.known_windows.clear()
            self._amounts.clear()
        free, times = self.free, self.times
        demand = self.fields.packed.get((mode, count)) or self.fields.demand(mode, count)
        first = bisect_left(times, start)
        if first and (first == len(times) or times[first] > start):
            times.insert(first, start)
            free.insert(first, free[first - 1])
            if self.shares:
                self.shares.insert(first, _copied(self.shares[first - 1]))
        last = bisect_left(times, end, first)
        if last and (last == len(times) or times[last] > end) and end < math.inf:
            times.insert(last, end)
            free.insert(last, free[last - 1])
            if self.shares:
                self.shares.insert(last, _copied(self.shares[last - 1]))
        for span in range(first, last):
            free[span] -= demand
        if mode.share != WHOLE and mode.gpus:
            self._take_shares(mode, occupied(mode, count)[0], range(first, last))

    def _take_shares(self, mode: Mode, count: int, spans: Iterable[int]) -> None:
        kind = mode.type.name
        self.shares = self.shares or [{} for _ in self.times]
        for span in spans:
            shares = self.shares[span].setdefault(kind, [])
            for _ in range(count):
                fullest = min((part for part in shares if part >= mode.share), default=None)
                if fullest is None:  # one that is whole so far is begun
                    self.free[span] -= 1 << self.fields.offsets[kind]
                else:
                    shares.remove(fullest)
                shares.append((WHOLE if fullest is None else fullest) - mode.share)

    def max_amount(self, mode: Mode, start: float, end: float) -> int:
        """Return how many GPUs, 1/1000 cores or nodes of a mode fit from `start` to `end`."""
        amounts, times = self.amounts(mode), self.times
        position = max(0, bisect_right(times, start) - 1)
        count = amounts[position]
        position += 1
        while count and position < len(times) and times[position] < end:
            count = min(count, amounts[position])
            position += 1
        return count

    def amounts(self, mode: Mode) -> list[int]:
        """Return how many units (see `amount_of`) of a mode fit here in each time span."""
        if (amounts := self._amounts.get(mode)) is None:
            allowed = self.fields.allows(mode)
            amounts = [self._amount(mode, span) if allowed else 0 for span in range(len(self.times))]
            self._amounts[mode] = amounts
        return amounts

    def _amount(self, mode: Mode, span: int) -> int:
        count, step = (1 if mode.node_count > 1 else amount_of(mode)), 1
        if mode.unit is not None and mode.node_count == 1:
            step = 1000
            count = min(count, (self.free[span] % (1 << WIDTH) - SPARE) // step * step)
            if not mode.memory:  # cores alone
                return max(0, count)
        while count > 0 and not self._fits(mode, span, *occupied(mode, count)):
            count -= step
        return max(0, count)

    def _fits(self, mode: Mode, span: int, count: int, cores: int, memory: int) -> bool:
        fields, mask = self.fields, self.fields.mask(mode)
        if self.shares and mode.gpus and not mode.whole_devices:
            count -= sum(part >= mode.share for part in self.shares[span].get(mode.type.name, ()))
        return (self.free[span] - fields.pack(mode, max(0, count), cores, memory)) & mask == mask

    def windows(self, mode: Mode) -> list[tuple[float, float]]:
        """Intervals in which the mode has room; the first may begin in the past."""
        if (windows := self.known_windows.get(mode)) is None:
            windows = self.known_windows[mode] = []
            fields, spans, begun = self.fields, self.free, -1.0
            if (plain := fields.needs.get(mode) or fields.need(mode)) is not None:
                need, mask = plain
            else:
                room = fields.allows(mode) and mode.node_count == 1
                demand = mode.gpus, mode.millicores, mode.memory
                need, mask, spans = 0, 1, [int(room and self._fits(mode, span, *demand)) for span in range(len(spans))]
            for time, free in zip(self.times, spans, strict=True):
                if free >= need and (not mask or (free - need) & mask == mask):
                    if begun < 0:
                        begun = time
                elif begun >= 0:
                    windows.append((begun, time))
                    begun = -1.0
            if begun >= 0:
                windows.append((begun, math.inf))
        return windows

    def first_time(self, mode: Mode, now: float) -> float:
        """Return the time at which the mode first has room; inf if never.

        This assumes that free capacity only grows from now on.  For a mode that needs part of a GPU all windows are
        searched, without this assumption.
        """
        plain = self.fields.needs.get(mode) or self.fields.need(mode)
        if plain is None:
            return next((begin for begin, end in self.windows(mode) if end > now), math.inf)
        times, free, (need, mask) = self.times, self.free, plain
        place = bisect_left(free, need, max(0, bisect_right(times, now) - 1))
        while mask and place < len(free) and (free[place] - need) & mask != mask:
            place += 1
        return times[place] if place < len(times) else math.inf

    def first_gap(self, mode: Mode, duration: float, since: float, until: float, low: float = 0) -> tuple[float, float]:
        """Return when a mode first has room, and when it first has room for `duration`.

        The second time is in [since, until], or inf; the first may be in the past.  low: a time before which there is
        no room.
        """
        plain = self.fields.needs.get(mode) or self.fields.need(mode)
        if plain is None:
            windows, start = self.windows(mode), self.earliest(mode, duration, since, math.nextafter(until, math.inf))
            return windows[0][0] if windows else math.inf, math.inf if start is None else start
        (need, mask), times, first = plain, self.times, -1.0
        spans: Iterator[tuple[float, int]] = zip(times, self.free)  # noqa: B905 (asked of each node of a search)
        if len(times) > 12 and low > times[6]:
            spans = islice(spans, bisect_right(times, low) - 1, None)
        for begin, free in spans:
            if free >= need and (not mask or (free - need) & mask == mask):
                if first < 0.0:
                    first = begin
                if begin > until:
                    return first, math.inf
                start = begin if begin > since else since
                end = start + duration
                for time, free in spans:  # on from this one
                    if time >= end and time > since:
                        return first, start
                    if free < need or (mask and (free - need) & mask != mask):
                        break
                else:
                    return first, start
        return math.inf if first < 0 else first, math.inf

    def open_until(self, mode: Mode, now: float) -> float:
        """End of the interval from now on in which the mode has room; -inf if it has none."""
        plain = self.fields.needs.get(mode) or self.fields.need(mode)
        if plain is None:
            return next((end for begin, end in self.windows(mode) if begin <= now < end), -math.inf)
        until, (need, mask), times = -math.inf, plain, self.times
        for time, free in islice(zip(times, self.free, strict=True), max(0, bisect_right(times, now) - 1), None):
            if free < need or (mask and (free - need) & mask != mask):
                return until if until < 0 else time
            until = time
        return math.inf

    def earliest(self, mode: Mode, duration: float, since: float, before: float) -> float | None:
        """First time in [since, before) at which a mode has room for `duration`, or None."""
        for begin, end in self.windows(mode):
            if end <= since:
                continue
            start = since if begin < since else begin
            if start >= before:
                return None
            if start + duration <= end:
                return start
        return None


def _copied(shares: dict[str, list[int]]) -> dict[str, list[int]]:
    return {kind: list(parts) for kind, parts in shares.items()}


class LimitedPool:
    """GPUs (millionths) that jobs of a limited partition occupy, over time."""

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
        """First time from `since` at which the limit has room for `duration`, or inf."""
        room = self.limit - mode.gpus * mode.share
        start = since
        for position in range(max(0, bisect_right(self.times, since) - 1), len(self.times)):
            if self.times[position] > start and self.times[position] >= start + duration:
                break
            if self.occupied[position] > room:
                start = self.times[position + 1] if position + 1 < len(self.times) else math.inf
        return start
