"""How far tasks of a graph are from its end: what list algorithms break ties by."""

from __future__ import annotations

import numpy as np

from policies.static.common.ranks import upward, ways
from policies.static.common.schedule import topological
from sim.model.tasks import Tasks


def bottom_levels(tasks: Tasks) -> list[float]:
    """Of each task: the longest chain from it to the end, every task at its best estimated time; [] without a graph.

    O(n + edges), once a run.
    """
    before = tasks.predecessors
    if before is None:
        return []
    best = np.full(len(tasks), np.inf)
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        for position, mode in enumerate(shape.modes):
            best[rows] = np.fmin(best[rows], tasks.time[rows, position] + mode.fixed)
    return upward(best, ways(before), topological(before))
