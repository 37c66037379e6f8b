"""Lower bounds on the makespan of task graphs on lanes of any number of types.

`critical_path` ≤ `graph_bound` ≤ the optimum, and `critical_path` ≤ the program of `hlp` ≤ the optimum.
`times[j, t]` is the time of task j on each of the `counts[t]` lanes of type t, inf where it cannot run.  Transfers
are not counted, which only lowers a bound.
Reference: heads, tails and the work between them are those of the bound of Carlier, The One-Machine Sequencing
Problem (1982), here with the area bound in the place of the sum.
Cost: O(n + edges), and the area bound of at most 64 release times; on three types and more one linear program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim_policies.static.common.bounds import released_bound
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.unrelated import allowed_times, good_prices, priced
from hetsim_policies.task_graphs import Graph, downward, tails, topological


def earliest_starts(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Start of each task with unlimited lanes of its fastest type, and its time there."""
    fastest = allowed_times(times, counts).min(axis=1, initial=np.inf)
    return np.array(downward(fastest, ways(predecessors), topological(predecessors), ready)), fastest


def critical_path(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None
) -> float:
    """The last finish, from 0, with unlimited lanes of each task's fastest type."""
    start, fastest = earliest_starts(times, counts, predecessors, ready)
    return float((start + fastest).max(initial=0.0))


def graph_bound(
    times: np.ndarray, counts: Sequence[int], predecessors: Graph, ready: np.ndarray | None = None
) -> float:
    """A cheap bound on the makespan, from the first arrival: path and area together.

    For every r, what cannot start before r for the paths that lead to it needs its area after r; and what has to be
    done r before the end, for the paths that follow, needs its area before that.
    """
    if not len(times):
        return 0.0
    start, fastest = earliest_starts(times, counts, predecessors, ready)
    heads = start - (0.0 if ready is None else float(np.min(ready)))
    ends = np.array(tails(fastest, ways(predecessors), topological(predecessors)))
    bounds = [heads + fastest + ends]
    if len(counts) <= 2:
        p, q = times[:, 0], times[:, 1] if len(counts) > 1 else np.full(len(times), np.inf)
        m, k = (*counts, 0, 0)[:2]
        return max(float(bounds[0].max()), *(released_bound(p, q, m, k=k, release=r) for r in (heads, ends)))
    cost = priced(times, counts, good_prices(times, counts))
    for release in (heads, ends):
        order = np.argsort(-release, kind="stable")
        bounds.append(release[order] + np.cumsum(cost[order]))
    return float(max(bound.max() for bound in bounds))
