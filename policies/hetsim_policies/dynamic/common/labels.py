"""Labels of jobs that share devices, and speeds of two labels beside each other.

A mode that may share has whole accelerators that take two launches at once by time slices (`streams: 2`) and on which
pairs of classes were measured (`sharing: pairs`).  The label is all that matters to a partner: class, type of device
and number of devices, memory claimed there, and the nodes allowed.  Gangs pair with gangs of the same width, on the
same devices, which is all that Gavel's pairs are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetsim.model.cluster import DeviceType
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim_policies.dynamic.common.pairs import is_shared


def takes_pairs(kind: DeviceType) -> bool:
    """Was it measured on this type how two jobs at once slow each other down?"""
    return kind.streams > 1 and kind.sharing.kind == "timeslice" and bool(kind.sharing.pairs)


class Labels:
    """The labels of all jobs seen so far, as numbers, and which may share devices.

    threshold: two may be where the sum of both speeds, each against alone, is greater.  At 1 that loses nothing: a
        pair with a sum of 1 or less gives both what turns by themselves, each for its speed's part of the time, give
        them as well, and takes no fewer devices.
    """

    def __init__(self, threshold: float = 1.0):
        self.threshold = threshold
        self._numbers: dict[tuple, int] = {}
        self._members: list[tuple[str, Mode]] = []
        self._speeds: dict[tuple[int, int], tuple[float, float] | None] = {}

    def of(self, task: Task) -> list[int]:
        """Labels by position of its modes; -1 where it shares with no job.

        Of modes with equal demands only the fastest has one.
        """
        found = [-1] * len(task.modes)
        for position in task.modes_by_speed():
            mode = task.modes[position]
            if not is_shared(mode) or not takes_pairs(mode.type):
                continue
            key = (task.class_, mode.type.name, mode.gpus, mode.gpu_memory, mode.nodes, mode.span_any)
            number = self._numbers.setdefault(key, len(self._numbers))
            if number == len(self._members):
                self._members.append((task.class_, mode))
            # A job with two variants of one width could else be its own partner.
            if not any(label >= 0 and self._same_devices(label, number) for label in found):
                found[position] = number
        return found

    def beside(self, label: int, others: dict[int, int]) -> Iterator[tuple[int, float]]:
        """Those of these labels that it may be beside, and its own speed there.

        others: labels, with the number of jobs that have each.
        """
        for other, count in others.items():
            if other == label and count < 2:
                continue
            pair = self.speeds(label, other)
            if pair is not None:
                yield other, pair[0]

    def speeds(self, one: int, other: int) -> tuple[float, float] | None:
        """Of both, against alone; None where they cannot share devices, or gain nothing by it."""
        if (one, other) not in self._speeds:
            self._speeds[one, other] = self._measured(one, other)
        return self._speeds[one, other]

    def _measured(self, one: int, other: int) -> tuple[float, float] | None:
        (first, mode), (second, its) = self._members[one], self._members[other]
        memory = mode.type.memory
        if not self._same_devices(one, other) or mode.nodes != its.nodes or mode.span_any != its.span_any:
            return None
        if memory is not None and mode.gpu_memory + its.gpu_memory > memory:
            return None
        sharing = mode.type.sharing
        slices = 0.5 * (1.0 - sharing.switch_cost)  # what the engine gives pairs that were not measured
        slower = sharing.slower.get((first, second)), sharing.slower.get((second, first))
        if math.inf in slower:
            return None
        speeds = tuple(slices if times is None else 1.0 / times for times in slower)
        return (speeds[0], speeds[1]) if sum(speeds) > self.threshold * (1 + 1e-9) else None

    def _same_devices(self, one: int, other: int) -> bool:
        mode, its = self._members[one][1], self._members[other][1]
        return mode.type is its.type and mode.gpus == its.gpus
