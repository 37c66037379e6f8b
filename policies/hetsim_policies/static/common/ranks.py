"""Ranks of the tasks of a graph: their distance from its end and its beginning.

Times are means over lanes (cores or GPUs), as the lane of a task is not known yet; data moves over an average path
between two lanes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.model.device import Device
from hetsim.model.stages import download_rate, final_bytes, way_to_host
from hetsim_policies.static.common.instance import Instance
from hetsim_policies.task_graphs import Graph, Ways, successors, topological, upward


@dataclass(frozen=True)
class Needs:
    """Seconds of each task on a device of each place (a node's devices of one type).

    Moving what the task reads is not included.  A time is inf if the task cannot run there.  If no data moves, each
    device type is one place.
    """

    seconds: np.ndarray
    lanes: np.ndarray  # number of lanes of each place
    place: np.ndarray  # place of each lane

    def mean(self, values: np.ndarray | None = None) -> np.ndarray:
        """Mean of times (or other values) over the devices that can run each task."""
        usable = np.isfinite(self.seconds)
        total = np.where(usable, self.seconds if values is None else values, 0.0) @ self.lanes
        return total / np.maximum(usable @ self.lanes, 1.0)


def needs(times: np.ndarray, counts: Sequence[int], traffic: Traffic | None = None) -> Needs:
    """Return task times (s) per place: a type's devices (with `traffic`: in one node)."""
    kind = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    if traffic is None:
        return Needs(times, np.asarray(counts, dtype=float), kind)
    kind_of_place = np.zeros(len(traffic.latency), dtype=np.int64)
    kind_of_place[traffic.place] = kind
    lanes = np.bincount(traffic.place, minlength=len(traffic.latency)).astype(float)
    return Needs(times[:, kind_of_place] + traffic.extra, lanes, traffic.place)


def ways(predecessors: Graph, traffic: Traffic | None = None) -> Ways:
    """Return each task's predecessors, with the mean seconds to move data from them."""
    ways: list[dict[int, float]] = [dict.fromkeys(before, 0.0) for before in predecessors]
    if traffic is not None:
        latency, pace = traffic.mean()
        for before, sources in zip(ways, traffic.sources, strict=True):
            before.update((writer, latency + size * pace) for writer, size in sources.items())
    return ways


def by_key(keys: Sequence[Any], before: Ways) -> list[int]:
    """Order tasks by ascending key, but each one after all its predecessors."""
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
    """Order of tasks by descending upward rank, each after its predecessors."""
    order = topological(predecessors)
    rank = upward(needs(times, counts, traffic).mean(), ways(predecessors, traffic), order)
    return sorted(order, key=lambda task: -rank[task])


# Transfer costs for graph planners, on idle links, hop by hop.
#
# Initial items on a host, and items that no later task reads, lengthen the task that reads or writes them; an initial
# item moves to each device once.  `bytes_in`, `bytes_out` and stages given as durations are in the times of `Instance`.
# Contention on links, limited memory and copies made for other readers are ignored.


@dataclass
class Traffic:
    """Cost of moving data between places; a place is a host or an accelerator."""

    place: np.ndarray  # place of each lane, lanes of the first type first
    latency: np.ndarray
    pace: np.ndarray  # seconds per byte from place to place (`latency`: fixed seconds)
    sources: list[dict[int, int]]  # bytes that each task reads, by the task that wrote them
    # Initial items that each task reads; in mid-run also those that ended tasks have written
    firsts: list[tuple[int, ...]]
    first_cost: np.ndarray  # seconds to bring each item from its initial location to each place
    # Seconds for private input and output not included in a task's time on a lane (`Instance`), at each place
    extra: np.ndarray
    # Seconds for all private input and output of each task, at each place
    private: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def mean(self) -> tuple[float, float]:
        """Mean latency and seconds per byte between two different cores or GPUs."""
        if len(self.place) < 2:
            return 0.0, 0.0
        lanes = np.bincount(self.place, minlength=len(self.latency)).astype(float)
        pairs = len(self.place) * (len(self.place) - 1)
        return float(lanes @ self.latency @ lanes / pairs), float(lanes @ self.pace @ lanes / pairs)


def traffic_of(instance: Instance, predecessors: Graph) -> Traffic | None:
    """Return costs of moving the tasks' data over the links; None if no data moves."""
    cluster, tasks = instance.problem.cluster, instance.problem.tasks
    if not (instance.up + instance.down).any() and tasks.reads is None and tasks.writes is None:
        return None
    places, lanes = instance.places
    number = {device: place for place, device in enumerate(places)}
    to_host = [way_to_host(cluster, device) for device in places]
    local, up, down = np.array([(way.latency, way.up, way.down) for way in to_host]).reshape(-1, 3).T
    network = [node.spec.network for node in cluster.nodes]
    delay = np.array([link.latency for link in network])
    out, into = np.array([link.upload for link in network]), np.array([download_rate(link) for link in network])
    node = np.array([device.node for device in places], dtype=np.int64)
    far = node[:, None] != node
    latency = local[:, None] + local + np.where(far, delay[node][:, None] + delay[node], 0.0)
    pace = down[:, None] + up + np.where(far, 1 / np.minimum(out[node][:, None], into[node]), 0.0)
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(pace, 0.0)
    first_cost = np.empty((len(tasks.items), len(places)))
    for row, item in enumerate(tasks.items):
        first_cost[row] = local + item.size * up
        if item.home is not None:
            seconds = delay[item.home] + delay[node] + item.size / np.minimum(out[item.home], into[node])
            first_cost[row] += np.where(node != item.home, seconds, 0.0)
    for row, holders in instance.problem.data.items():
        volume = tasks.items[row].size
        ways = []
        for holder in holders:
            if isinstance(holder, Device):
                if holder in number:
                    ways.append(latency[number[holder]] + volume * pace[number[holder]])
            else:  # a host's memory
                over = delay[holder] + delay[node] + volume / np.minimum(out[holder], into[node])
                ways.append(local + volume * up + np.where(node != holder, over, 0.0))
        if ways:
            first_cost[row] = np.min(ways, axis=0)
    sources, firsts, results = _reads(instance, predecessors)
    kind = [instance.types.index(device.type) for device in places]
    more = results - final_bytes(tasks)  # items that go home at the end of the last of several tasks that use them
    late = np.where(more[:, None] > 0, np.where(instance.private.down[:, None] > 0, 0.0, local), 0.0)
    late += more[:, None] * down
    extra = (np.where(instance.serial, 0.0, instance.idle_while_held)[:, kind]) + late
    private = (instance.up + instance.down)[:, kind] + late
    return Traffic(
        lanes, latency, pace, sources=sources, firsts=firsts, first_cost=first_cost, extra=extra, private=private
    )


def _reads(instance: Instance, predecessors: Graph) -> tuple[list[dict[int, int]], list[tuple[int, ...]], np.ndarray]:
    """Return for each task what it reads and writes: three columns.

    Bytes read, by the task that wrote them; initial items read; bytes of results.  The writer of an item is the last
    earlier task that writes it.  Initial items are written by no earlier task.  Results are bytes that a task writes
    and no later task reads; they are downloaded at the end.
    """
    tasks = instance.problem.tasks
    sources: list[dict[int, int]] = [{} for _ in range(len(tasks))]
    firsts: list[tuple[int, ...]] = [()] * len(tasks)
    results = np.zeros(len(tasks))
    writer: dict[int, int] = {}
    unread: dict[int, int] = {}
    for task in topological(predecessors):
        fresh = []
        for item in dict.fromkeys(tasks.reads[task] if tasks.reads is not None else ()):
            unread.pop(item, None)
            if item in writer:
                sources[task][writer[item]] = sources[task].get(writer[item], 0) + tasks.items[item].size
            else:
                fresh.append(item)
        firsts[task] = tuple(fresh)
        written = dict.fromkeys(tasks.writes[task] if tasks.writes is not None else (), task)
        writer.update(written)
        unread.update(written)
    for item, task in unread.items():
        results[task] += tasks.items[item].size
    return sources, firsts, results
