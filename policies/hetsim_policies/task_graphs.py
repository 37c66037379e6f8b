"""Task graphs: orders of tasks, and longest paths from the start and to the end."""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from hetsim.errors import ScenarioError
from hetsim.model.tasks import Tasks

Graph = Sequence[Sequence[int]]  # predecessors of each task

# For each task: the tasks it waits for or reads from, with the mean seconds to move the data it reads
Ways = Sequence[Mapping[int, float]]


def graph_of(tasks: Tasks) -> Graph:
    """Return the predecessors of each task; empty without a graph."""
    return tasks.predecessors or [()] * len(tasks)


def successors(predecessors: Graph) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in predecessors]
    for task, before in enumerate(predecessors):
        for predecessor in dict.fromkeys(before):
            after[predecessor].append(task)
    return after


def topological(predecessors: Graph) -> list[int]:
    """Return tasks in topological order; of ready tasks, the first row is next."""
    missing = [len(set(before)) for before in predecessors]
    after = successors(predecessors)
    free = [task for task, count in enumerate(missing) if not count]
    order = []
    while free:
        task = heapq.heappop(free)
        order.append(task)
        for successor in after[task]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(free, successor)
    if len(order) < len(missing):
        stuck = [task for task, count in enumerate(missing) if count]
        raise ScenarioError(f"{len(stuck)} tasks are on a cycle or follow one: rows {stuck[:5]}")
    return order


def upward(mean: np.ndarray, before: Ways, order: Sequence[int]) -> list[float]:
    """Return each task's longest path (s): from its start to the end of the graph."""
    return [own + tail for own, tail in zip(mean.tolist(), tails(mean, before, order), strict=True)]


def tails(mean: np.ndarray, before: Ways, order: Sequence[int]) -> list[float]:
    """Longest path from the end of each task to the end of the graph."""
    times = mean.tolist()
    tail = [0.0] * len(times)
    for task in reversed(order):
        through = times[task] + tail[task]
        for earlier, seconds in before[task].items():
            tail[earlier] = max(tail[earlier], through + seconds)
    return tail


def downward(mean: np.ndarray, before: Ways, order: Sequence[int], ready: np.ndarray | None = None) -> list[float]:
    """Return the longest path (s) to each task's start, from 0 or from `ready` times."""
    times = mean.tolist()
    rank = [0.0] * len(times) if ready is None else np.asarray(ready, dtype=float).tolist()
    for task in order:
        for earlier, seconds in before[task].items():
            rank[task] = max(rank[task], rank[earlier] + times[earlier] + seconds)
    return rank


def bottom_levels(tasks: Tasks) -> list[float]:
    """Longest path from each task to the end, by estimates; [] without a graph.

    Cost: O(n + edges), once per run.
    """
    if (before := tasks.predecessors) is None:
        return []
    best = tasks.computing(tasks.time).min(axis=1)
    return upward(best, [dict.fromkeys(earlier, 0.0) for earlier in before], topological(before))
