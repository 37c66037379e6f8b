"""One guess of the dual approximation by the recursion as published: slow, for comparison.

Reference: Kedad-Sidhoum, Monna, Mounié and Trystram, Scheduling Independent Tasks on Multi-cores with GPU Accelerators
(HeteroPar 2013).  `hetsim_policies.static.dual_approximation` finds the same in collapsed states.
"""

from __future__ import annotations

import numpy as np

from hetsim_policies.static.common.bounds import TOLERANCE
from hetsim_policies.static.dual_approximation import TwoSidedSchedule, longest_first, weights


def as_published(p: np.ndarray, q: np.ndarray, m: int, k: int, guess: float) -> TwoSidedSchedule | None:
    """One guess by the recursion as published, without reductions; None: infeasible.

    W(j, μ, μ′, κ, κ′, N) is the least CPU area of tasks 1 to j with μ medium and μ′ long tasks on the CPUs, κ and κ′
    on the GPUs (not counted for k = 1) and N units of λ/(3n) of GPU area.  The published slides print N ≤ 2n in one
    place where 3kn is meant.
    """
    n, limit = len(p), guess * (1 + TOLERANCE)
    cpus, gpus = pairs(m), pairs(k) if k >= 2 else [(0, 0)]
    width = 3 * k * n + 1
    if np.any((p > limit) & (q > limit)):
        return None
    cpu_step, gpu_step = weights(p, limit), weights(q, limit) if k >= 2 else np.zeros(n, dtype=np.int64)
    with np.errstate(invalid="ignore"):
        area = np.floor(np.minimum(q, limit) * (3 * n / limit) * (1 - TOLERANCE)).astype(np.int64)
    before_cpu, before_gpu = predecessors(cpus), predecessors(gpus)
    # One block of (GPU pairs × N) after the other: it stays in the processor's cache.
    best = np.full((len(cpus), len(gpus), width), np.inf)
    best[0, 0, 0] = 0.0
    after = np.empty_like(best)
    chosen = []
    for j in range(n):
        better = np.zeros(best.shape, dtype=bool)
        v = before_gpu[gpu_step[j]]
        to, shift = np.flatnonzero(v >= 0), int(area[j])
        for pair, u in enumerate(before_cpu[cpu_step[j]].tolist()):
            if u < 0 or p[j] > limit:
                after[pair] = np.inf
            else:
                np.add(best[u], p[j], out=after[pair])
            if q[j] > limit or shift >= width:
                continue
            if gpu_step[j]:
                there, here = best[pair, v[to], : width - shift], after[pair, to, shift:]
                better[pair, to, shift:] = there < here
                after[pair, to, shift:] = np.minimum(there, here)
            else:
                there, here = best[pair, :, : width - shift], after[pair, :, shift:]
                np.less(there, here, out=better[pair, :, shift:])
                np.minimum(there, here, out=here)
        best, after = after, best
        chosen.append(np.packbits(better))
    if not best.min() <= m * limit:
        return None
    pair, other, units = (int(i) for i in np.unravel_index(int(best.argmin()), best.shape))
    on_gpu = np.zeros(n, dtype=bool)
    for j in range(n - 1, -1, -1):
        cell = (pair * len(gpus) + other) * width + units
        on_gpu[j] = chosen[j][cell >> 3] >> (7 - (cell & 7)) & 1
        if on_gpu[j]:
            other, units = int(before_gpu[gpu_step[j]][other]), units - int(area[j])
        else:
            pair = int(before_cpu[cpu_step[j]][pair])
    return longest_first(p, q, m, k=k, on_gpu=on_gpu)


def pairs(devices: int) -> list[tuple[int, int]]:
    """All (medium, long) with ½·medium + long ≤ devices: (devices + 1)² of them."""
    return [(medium, long) for long in range(devices + 1) for medium in range(2 * (devices - long) + 1)]


def predecessors(states: list[tuple[int, int]]) -> list[np.ndarray]:
    """For a small, medium and long task: the number of the state before it, or -1."""
    number = {state: i for i, state in enumerate(states)}
    steps = ((0, 0), (1, 0), (0, 1))
    return [np.array([number.get((medium - a, long - b), -1) for medium, long in states]) for a, b in steps]
