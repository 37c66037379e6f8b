"""Tiresias with known sizes: queues of attained service, ranked by Gittins index.

Decides when, and which task is preempted: as `las`, but which queue goes first follows from the distribution of GPU
time.  The index of a queue is the chance that a task that has got there ends before the next threshold, over the
service it is expected to take until then: sup over the thresholds ahead.  The greatest goes first.
Reference: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019), its discretized
2D-Gittins index; Gittins, Bandit Processes and Dynamic Allocation Indices (1979): optimal mean response in M/G/1
among orders that know only the distribution, in the limit of many thresholds.
The distribution is that of the estimates of the whole workload (GPUs × estimated time in the fastest mode), not what
any one task will take.  Where the hazard rate falls, this is `las`.
Weakness: a distribution that changes.  Cost: as `las`.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import PlanProblem
from hetsim_policies.dynamic.las import Las


class Tiresias(Las):
    """`las` with the queues in the order of their Gittins index."""

    def prepare(self, problem: PlanProblem) -> None:
        sizes = _services(problem)
        if not len(sizes):
            return
        edges = np.array([0.0, *self.thresholds, np.inf])
        indexes = [gittins(sizes, edges, level) for level in range(len(edges) - 1)]
        by_index = sorted(range(len(indexes)), key=lambda level: (-indexes[level], level))
        for rank, level in enumerate(by_index):
            self.order_of_levels[level] = rank


def gittins(sizes: np.ndarray, edges: np.ndarray, level: int) -> float:
    """The maximum ratio, over edges ahead, of completion chance to expected service."""
    attained = edges[level]
    remaining = sizes[sizes > attained] - attained
    if not len(remaining):
        return 0.0
    best = 0.0
    for until in edges[level + 1 :] - attained:
        best = max(best, float((remaining <= until).mean() / np.minimum(remaining, until).mean()))
    return best


def _services(problem: PlanProblem) -> np.ndarray:
    """GPU-seconds (core-seconds) of each task in its fastest mode, by estimate."""
    tasks = problem.tasks
    times = tasks.computing(tasks.time)
    best, fastest = times.min(axis=1), times.argmin(axis=1).tolist()
    width = [tasks.shapes[shape].modes[mode].width for shape, mode in zip(tasks.shape, fastest, strict=True)]
    services: np.ndarray = (best * width)[np.isfinite(best)]
    return services
