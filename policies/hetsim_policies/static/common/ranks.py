"""Ranks of the tasks of a graph: how far they are from its end and its beginning.

Times are means over lanes, as it is not known yet where a task will run; the time to move data is that of an average
way between two lanes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim_policies.static.common.traffic import Traffic
from hetsim_policies.task_graphs import Graph, Ways, successors, topological, upward


@dataclass(frozen=True)
class Needs:
    """Seconds of each task on a lane of each place, without reads; inf: cannot run.

    Where nothing moves, each type of device is one place.
    """

    seconds: np.ndarray
    lanes: np.ndarray
    """Lanes of each place."""
    place: np.ndarray
    """The place of each lane."""

    def mean(self, values: np.ndarray | None = None) -> np.ndarray:
        """The mean of times, or of other values, over the lanes that can run each task."""
        usable = np.isfinite(self.seconds)
        total = np.where(usable, self.seconds if values is None else values, 0.0) @ self.lanes
        return total / np.maximum(usable @ self.lanes, 1.0)


def needs(times: np.ndarray, counts: Sequence[int], traffic: Traffic | None = None) -> Needs:
    """How long tasks hold the `counts[t]` lanes of each type."""
    kind = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    if traffic is None:
        return Needs(times, np.asarray(counts, dtype=float), kind)
    kind_of_place = np.zeros(len(traffic.latency), dtype=np.int64)
    kind_of_place[traffic.place] = kind
    lanes = np.bincount(traffic.place, minlength=len(traffic.latency)).astype(float)
    return Needs(times[:, kind_of_place] + traffic.extra, lanes, traffic.place)


def ways(predecessors: Graph, traffic: Traffic | None = None) -> Ways:
    """The predecessors of each task, and the mean time to move what it reads of them."""
    ways: list[dict[int, float]] = [dict.fromkeys(before, 0.0) for before in predecessors]
    if traffic is not None:
        latency, pace = traffic.mean()
        for before, sources in zip(ways, traffic.sources, strict=True):
            before.update((writer, latency + size * pace) for writer, size in sources.items())
    return ways


def by_key(keys: Sequence[Any], before: Ways) -> list[int]:
    """All tasks, each after its predecessors, by the lowest key of those possible.

    Ties go to the first in topological order.
    """
    predecessors = [tuple(earlier) for earlier in before]
    position = {task: number for number, task in enumerate(topological(predecessors))}
    missing = [len(earlier) for earlier in predecessors]
    after = successors(predecessors)
    free = [(keys[task], position[task], task) for task, count in enumerate(missing) if not count]
    heapq.heapify(free)
    order = []
    while free:
        task = heapq.heappop(free)[2]
        order.append(task)
        for later in after[task]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(free, (keys[later], position[later], later))
    return order


def ranking(times: np.ndarray, counts: Sequence[int], predecessors: Graph, traffic: Traffic | None = None) -> list[int]:
    """Tasks by descending upward rank, each after its predecessors."""
    order = topological(predecessors)
    rank = upward(needs(times, counts, traffic).mean(), ways(predecessors, traffic), order)
    position = {task: number for number, task in enumerate(order)}
    return sorted(order, key=lambda task: (-rank[task], position[task]))
