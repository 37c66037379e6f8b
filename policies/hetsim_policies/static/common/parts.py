"""Groups of tasks dealt out to accelerators so that work and transfers together are even: local search, not linear.

Each part is one accelerator.  Its load is the work of its groups, every input that they read once, their private data,
and what they read from groups of other parts; what all parts behind one switch upload is a load too.  The search moves
one group at a time as long as the loads, in a high norm that stands for their maximum, become less.
Reference: the moves are those of Fiduccia and Mattheyses, A Linear-Time Heuristic for Improving Network Partitions
(1982), with loads instead of cut edges and without its tentative moves that make things worse.
Cost: a pass over the groups tries each on each other part, O(inputs and neighbors of a group) each; some ten passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NORM = 12
MAX_PASSES = 20


@dataclass(frozen=True)
class Groups:
    """Properties of groups and parts that the search needs."""

    work: np.ndarray
    """Seconds of each group on each part, private data included; inf: cannot run there."""
    inputs: Sequence[Mapping[int, None]]
    """Items each group reads that are there from the start."""
    cost: np.ndarray
    """Seconds to bring each item to each part."""
    reads: Sequence[Mapping[int, float]]
    """Seconds to move what each group reads from each other group."""
    switch: Sequence[int | None]
    """The switch behind which each part sits."""


class Dealing:
    """An assignment of groups to parts, with its loads kept up to date."""

    def __init__(self, groups: Groups, part_of: Sequence[int]):
        self.groups = groups
        self.parts = range(groups.work.shape[1])
        self.part_of = [-1] * len(part_of)
        self.load = [0.0] * len(self.parts)
        self.uploads = [0.0] * len(self.parts)
        self.held: list[dict[int, int]] = [{} for _ in self.parts]  # items of each part, by how many groups read them
        self.readers: list[dict[int, float]] = [{} for _ in part_of]
        for reader, sources in enumerate(groups.reads):
            for writer, seconds in sources.items():
                self.readers[writer][reader] = seconds
        for group, part in enumerate(part_of):
            self.put(group, part)

    def put(self, group: int, part: int) -> None:
        """Into a part, from none."""
        self._change(group, part, 1)
        self.part_of[group] = part

    def take(self, group: int) -> int:
        """Out of its part, which is returned."""
        part = self.part_of[group]
        self.part_of[group] = -1
        self._change(group, part, -1)
        return part

    def _change(self, group: int, part: int, sign: int) -> None:
        moved, held, known = 0.0, self.held[part], self.groups
        for item in known.inputs[group]:
            count = held.get(item, 0)
            held[item] = count + sign
            if count + sign == (1 if sign > 0 else 0):
                moved += float(known.cost[item, part])
        for writer, seconds in known.reads[group].items():
            if self.part_of[writer] not in (-1, part):
                moved += seconds
        self.load[part] += sign * (float(known.work[group, part]) + moved)
        self.uploads[part] += sign * moved
        for reader, seconds in self.readers[group].items():
            other = self.part_of[reader]
            if other not in (-1, part):
                self.load[other] += sign * seconds
                self.uploads[other] += sign * seconds

    def value(self) -> float:
        """The norm of all loads."""
        shared: dict[int, float] = {}
        for part, switch in enumerate(self.groups.switch):
            if switch is not None:
                shared[switch] = shared.get(switch, 0.0) + self.uploads[part]
        loads = [max(0.0, load) for load in (*self.load, *shared.values())]
        largest = max(loads, default=0.0)
        return largest * sum((load / largest) ** NORM for load in loads) ** (1 / NORM) if largest > 0 else 0.0


def dealt(groups: Groups, part_of: Sequence[int]) -> list[int]:
    """The parts after the search, from the given ones."""
    dealing = Dealing(groups, part_of)
    best = dealing.value()
    heavy = np.argsort(-np.where(np.isfinite(groups.work), groups.work, 0.0).max(axis=1), kind="stable").tolist()
    for _ in range(MAX_PASSES):
        before = best
        for group in heavy:
            home = there = dealing.take(group)
            for part in dealing.parts:
                if part == home or not np.isfinite(groups.work[group, part]):
                    continue
                dealing.put(group, part)
                value = dealing.value()
                if value < best * (1 - 1e-9):
                    best, there = value, part
                dealing.take(group)
            dealing.put(group, there)
        if best >= before * (1 - 1e-6):
            break
    return dealing.part_of


def in_blocks(weights: Sequence[float], parts: int) -> list[int]:
    """Consecutive groups into parts of about the same weight: the start that cuts a graph in stages."""
    total = sum(weights)
    passed, found = 0.0, []
    for weight in weights:
        middle = passed + weight / 2
        found.append(min(parts - 1, int(parts * middle / total)) if total > 0 else 0)
        passed += weight
    return found
