"""Lower bounds on the makespan of task graphs on any number of device types.

The longest of `Paths` ≤ `graph_bound` ≤ the optimum; `graph_bound` ≤ the program of `hlp` ≤ the optimum.
`times[j, t]` is the time of task j on each of the `counts[t]` lanes of type t, inf if it cannot run.  Transfers are
ignored, which only lowers a bound.
Reference: the heads and tails of tasks (path lengths before and after them) and the work between are used as in
Carlier, The One-Machine Sequencing Problem (1982), with the area bound instead of the sum of the times.
Cost: O(n + edges), and the area bound of at most 64 release times; on three or more types one linear program.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim_policies.static.common.bounds import released_bound
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.unrelated import allowed_times, good_prices, priced
from hetsim_policies.task_graphs import Graph, downward, tails, topological


@dataclass(frozen=True)
class Paths:
    """Longest paths to each task's start and from its end to the graph's end."""

    fastest: np.ndarray  # minimum time of each task
    heads: np.ndarray
    tails: np.ndarray

    @classmethod
    def through(cls, fastest: np.ndarray, predecessors: Graph, ready: np.ndarray | None = None) -> "Paths":
        before, order = ways(predecessors), topological(predecessors)
        first = 0.0 if ready is None else float(np.min(ready))
        heads = np.array(downward(fastest, before, order, ready)) - first
        return cls(fastest, heads, np.array(tails(fastest, before, order)))

    @property
    def longest(self) -> float:
        return float((self.heads + self.fastest + self.tails).max())

    def bound(self, cost: np.ndarray) -> float:
        """Return a lower bound on the makespan from paths and from the tasks' costs.

        It is the longest path or, if larger, the maximum over times r of r + the cost of the tasks that cannot start
        before r, or that a path of at least r follows.  cost: each task's part of an area bound (their sum is a bound).
        """
        best = self.longest
        for release in (self.heads, self.tails):
            latest = np.argsort(-release, kind="stable")
            best = max(best, float((release[latest] + np.cumsum(cost[latest])).max()))
        return best


def graph_bound(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None
) -> float:
    """A fast lower bound on the makespan from the first arrival, by paths and areas.

    For every r: the tasks with a path of at least r seconds before them cannot start in the first r seconds, so the
    makespan is at least r plus their area bound.  The same holds for the tasks with a path of at least r seconds after
    them, which must end r seconds before the end.
    """
    if not len(times):
        return 0.0
    paths = Paths.through(allowed_times(times, counts).min(axis=1, initial=np.inf), predecessors, ready)
    if len(counts) <= 2:
        p, q = times[:, 0], times[:, 1] if len(counts) > 1 else np.full(len(times), np.inf)
        m, k = (*counts, 0, 0)[:2]
        return max(paths.longest, *(released_bound(p, q, m, k=k, release=r) for r in (paths.heads, paths.tails)))
    return paths.bound(priced(times, counts, good_prices(times, counts)))
