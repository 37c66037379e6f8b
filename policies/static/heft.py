"""Heterogeneous earliest finish time: tasks by their distance from the end, each where it finishes first.

Decides where and in which order, for task graphs.  The upward rank of a task is its mean time over the lanes that
can run it, plus the most, over the tasks that wait for it, of their rank and the mean time to move what they read
of it.  In descending order of rank each task goes to the lane on which it finishes first, into a gap between tasks
placed before if one is long enough (insertion).
Reference: Topcuoglu, Hariri, Wu, Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous
Computing (2002).  No ratio is proven for graphs.  Without one, arrivals and transfers it is longest mean time first
and at most m times the least makespan on m unlike lanes, 4/3 - 1/(3m) times on equal ones (Graham, 1969).
Transfers are those of items between the places where they are written and read, over idle links, hop by hop, and
start when the writer has finished.  What lies on a host at the start, `bytes_in`, `bytes_out` and items that nobody
reads any more lengthen the task that reads or writes them; what lies there at the start moves to each device once.
Weakness: it looks one task ahead, and means over unlike devices say little; contention on links, limited memory and
copies made for other readers are not seen; a plan with `overlap` expects data that its lane will have to wait for.
Cost: O((n + edges) lanes), vectorised over the lanes, and a look at the gaps of lanes that have one long enough.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.static.instance import Instance, runnable
from policies.static.schedule import Graph, Schedule, plan_of, topological
from sim.model.cluster import Cluster, Device, Link
from sim.model.plan import Plan, lane_names
from sim.policy import PlannedScheduler, PlanProblem


class Heft(PlannedScheduler):
    """HEFT, for sequential tasks with or without a task graph.

    insertion: may a task go into a gap before tasks that were placed earlier?
    overlap: do data move while the lane still works on the task before, as in the paper, or, as when the plan is
        followed, once it is free?
    """

    def __init__(self, insertion: bool = True, overlap: bool = True):
        super().__init__()
        self.insertion = insertion
        self.overlap = overlap

    def plan(self, problem: PlanProblem) -> Plan:
        instance, tasks = runnable(problem, "heft"), problem.tasks
        before: Graph = tasks.predecessors or [()] * len(tasks)
        data = (tasks.bytes_in, tasks.bytes_out, tasks.reads, tasks.writes)
        traffic = traffic_of(instance, before) if any(column is not None for column in data) else None
        options = (self.insertion, self.overlap)
        return plan_of(instance, heft(instance.time, instance.counts, before, tasks.arrival, traffic, *options))


@dataclass
class Traffic:
    """What moving data costs.  A *place* is where data can lie: a host or an accelerator."""

    place: np.ndarray
    """The place of each lane, lanes of the first type first."""
    latency: np.ndarray
    pace: np.ndarray
    """Seconds, and seconds per byte, from place to place."""
    sources: list[dict[int, int]]
    """Bytes that each task reads, by the task that wrote them."""
    firsts: list[tuple[int, ...]]
    """Items each task reads that are there from the start."""
    first_cost: np.ndarray
    """Seconds to bring each item from where it is at the start to each place."""
    extra: np.ndarray
    """Seconds for input and output of each task that are not items, at each place."""


def heft(
    times: np.ndarray,
    counts: Sequence[int],
    predecessors: Graph,
    ready: np.ndarray | None = None,
    traffic: Traffic | None = None,
    insertion: bool = True,
    overlap: bool = True,
) -> Schedule:
    """HEFT on the `counts[t]` lanes of each type; ties go to the first type and lane."""
    size = len(times)
    schedule = Schedule.empty(size)
    kind_of = np.repeat(np.arange(len(counts)), counts)
    lane_of = np.concatenate([np.arange(count) for count in counts]) if counts else np.empty(0, dtype=int)
    end = np.zeros(len(kind_of))  # of the last task on each lane
    widest = np.zeros(len(kind_of))  # gap
    gaps: list[list[tuple[float, float]]] = [[] for _ in kind_of]
    arrivals = np.zeros(size) if ready is None else np.asarray(ready, dtype=float)
    place_of_task = [0] * size
    brought = None if traffic is None else np.zeros(traffic.first_cost.shape, dtype=bool)
    for task in ranking(times, counts, predecessors, traffic):
        cost = times[task, kind_of]
        there = max([float(arrivals[task]), *(float(schedule.finish[p]) for p in predecessors[task])])
        starts = np.full(len(kind_of), there)
        if traffic is not None and brought is not None:
            more = traffic.extra[task].copy()
            for writer, size_read in traffic.sources[task].items():
                source = place_of_task[writer]
                way = traffic.latency[source] + size_read * traffic.pace[source]
                if overlap:
                    np.maximum(starts, schedule.finish[writer] + way[traffic.place], out=starts)
                else:
                    more += way
            for item in traffic.firsts[task]:
                more += np.where(brought[item], 0.0, traffic.first_cost[item])
            cost = cost + more[traffic.place]
        begin = np.maximum(starts, end)
        if insertion:
            for lane in np.flatnonzero((widest >= cost) & (widest > 0)).tolist():
                for since, until in gaps[lane]:
                    at = max(since, float(starts[lane]))
                    if at + cost[lane] <= until:
                        begin[lane] = at
                        break
        lane = int((begin + cost).argmin())
        start, tail = float(begin[lane]), float(end[lane])
        finish = schedule.put(task, start, float(cost[lane]), int(kind_of[lane]), int(lane_of[lane]))
        if start >= tail:
            if start > tail:
                gaps[lane].append((tail, start))
            end[lane] = finish
        else:
            number = next(n for n, (since, until) in enumerate(gaps[lane]) if since <= start and finish <= until)
            since, until = gaps[lane].pop(number)
            for gap in ((since, start), (finish, until)):
                if gap[1] > gap[0]:
                    insort(gaps[lane], gap)
        widest[lane] = max((until - since for since, until in gaps[lane]), default=0.0)
        if traffic is not None and brought is not None:
            place_of_task[task] = int(traffic.place[lane])
            brought[list(traffic.firsts[task]), place_of_task[task]] = True
    return schedule


def ranking(times: np.ndarray, counts: Sequence[int], predecessors: Graph, traffic: Traffic | None = None) -> list[int]:
    """Tasks by descending upward rank, each after its predecessors."""
    order = topological(predecessors)
    usable = np.isfinite(times)
    lanes = np.asarray(counts, dtype=float)
    mean = (np.where(usable, times, 0.0) @ lanes) / np.maximum(usable @ lanes, 1.0)
    latency = pace = 0.0
    if traffic is not None and len(traffic.place) > 1:
        pairs = len(traffic.place) * (len(traffic.place) - 1)
        every = np.ix_(traffic.place, traffic.place)  # a lane and itself are one place, which costs nothing
        latency, pace = float(traffic.latency[every].sum() / pairs), float(traffic.pace[every].sum() / pairs)
    rank = mean.tolist()
    tail = [0.0] * len(rank)  # the most of what comes after
    for task in reversed(order):
        rank[task] += tail[task]
        for before in predecessors[task]:
            tail[before] = max(tail[before], rank[task])
        for writer, size in traffic.sources[task].items() if traffic is not None else ():
            tail[writer] = max(tail[writer], rank[task] + latency + size * pace)
    position = {task: number for number, task in enumerate(order)}
    return sorted(order, key=lambda task: (-rank[task], position[task]))


# Transfers ----------------------------------------------------------------------------------------------------


def traffic_of(instance: Instance, predecessors: Graph) -> Traffic:
    """What the data of the tasks cost on the links of the cluster."""
    cluster, tasks = instance.problem.cluster, instance.problem.tasks
    device_of = lane_names(cluster)
    devices = [device_of[name] for lanes in instance.lanes for name in lanes]
    places = list(dict.fromkeys(devices))
    number = {device: place for place, device in enumerate(places)}
    local, up, down = np.array([_to_host(cluster, device) for device in places]).reshape(-1, 3).T
    network = [node.spec.network for node in cluster.nodes]
    delay = np.array([link.latency for link in network])
    out, into = np.array([link.upload for link in network]), np.array([_download(link) for link in network])
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
    sources, firsts, results = _reads(instance, predecessors)
    extra = np.zeros((len(tasks), len(places)))
    for column, more, per_byte in ((tasks.bytes_in, 0.0, up), (tasks.bytes_out, results, down)):
        size = (np.zeros(len(tasks)) if column is None else np.asarray(column, dtype=float)) + more
        extra += np.where(size[:, None] > 0, local + size[:, None] * per_byte, 0.0)
    return Traffic(np.array([number[device] for device in devices]), latency, pace, sources, firsts, first_cost, extra)


def _reads(instance: Instance, predecessors: Graph) -> tuple[list[dict[int, int]], list[tuple[int, ...]], np.ndarray]:
    """Of each task: bytes read by the task that wrote them last before it, items read that nobody wrote before it,
    and bytes written that nobody reads, which go home at the end."""
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


def _to_host(cluster: Cluster, device: Device) -> tuple[float, float, float]:
    """Latency, and seconds per byte from and to its host; nothing for the cores."""
    if device.type.kind == "cpu":
        return 0.0, 0.0, 0.0
    links = [device.type.link]
    if device.switch is not None:
        links.append(cluster.nodes[device.node].spec.switch)
    latency = sum(link.latency for link in links)
    return latency, 1 / min(link.upload for link in links), 1 / min(_download(link) for link in links)


def _download(link: Link) -> float:
    return link.upload if link.duplex == "half" else link.download
