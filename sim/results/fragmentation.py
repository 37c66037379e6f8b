"""GPU fragmentation as FGD measures it: the part of the free GPU share that the workload's requests cannot
use.

Reference: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent (USENIX ATC 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from sim.model.cluster import WHOLE
from sim.model.record import NOT_ARRIVED, Record
from sim.model.tasks import Mode
from sim.results.modes import ModeTable
from sim.results.replay import Capacity, Replay

if TYPE_CHECKING:
    from sim.results.metrics import Measured


def fragmentation(run: Measured) -> float:
    """Time average, over the part of the window in which some GPU share is unallocated, of

    Σ_n Σ_m p_m F_n(m) / Σ_n unallocated_n, where F_n(m) is all of node n's unallocated GPU share if request
    m does not fit on n, else the share on GPUs with less left than m asks of one; p_m is the share of the
    workload's tasks with request m.  A task with several modes counts with the first accelerator mode of its
    shape.
    """
    record = run.result.record
    requests, mix = request_mix(record, run.result.modes)
    state = Capacity(record.input.cluster, requests)
    if not state.share.size:
        return math.nan
    free, stranded = _measure(state, mix, np.arange(len(state.cores)))
    total = weighted = 0.0
    for begin, end, touched in Replay(record, run.result.modes, state).segments():
        if len(touched):
            free[touched], stranded[touched] = (part[touched] for part in _measure(state, mix, touched, free, stranded))
        span = min(end, run.high) - max(begin, run.low)
        unallocated = free.sum()
        if span > 0 and unallocated > 0:
            total += span
            weighted += span * stranded.sum() / unallocated
    return float(weighted / total) if total else math.nan


def request_mix(record: Record, table: ModeTable) -> tuple[list[Mode], np.ndarray]:
    """The distinct requests of the workload, and the share of tasks that make each."""
    arrived = record.status != NOT_ARRIVED
    numbers = np.bincount(record.input.tasks.shape[arrived], minlength=len(record.input.tasks.shapes))
    shares: dict[tuple, float] = {}
    modes: dict[tuple, Mode] = {}
    for shape, number in zip(record.input.tasks.shapes, numbers, strict=True):
        mode = next((mode for mode in shape.modes if mode.gpus), shape.modes[0])
        key = (mode.type.name, mode.cpus, mode.gpus, mode.share, mode.memory, mode.gpu_memory, mode.span_any)
        shares[key] = shares.get(key, 0.0) + number
        modes.setdefault(key, mode)
    mix = np.array(list(shares.values()))
    return list(modes.values()), mix / max(mix.sum(), 1.0)


def _measure(
    state: Capacity,
    mix: np.ndarray,
    nodes: Iterable[int],
    free: np.ndarray | None = None,
    stranded: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Unallocated GPU share per node, and the part of it that the mix cannot use; only `nodes` are recomputed."""
    count = len(state.cores)
    free = np.zeros(count) if free is None else free
    stranded = np.zeros(count) if stranded is None else stranded
    for node in nodes:
        left = np.clip(state.share[node] - (state.full[node] - WHOLE), 0, WHOLE) / WHOLE
        left = np.where(state.usable[node], left, 0.0)
        all_free = left.sum()
        asked = state.asked_share[:, None] / WHOLE
        small = np.where(left[None, :] < asked, left[None, :], 0.0).sum(axis=1)
        lost = np.where(state.fitting[:, node] > 0, small, all_free)
        free[node], stranded[node] = all_free, float(mix @ lost)
    return free, stranded
