"""GPU fragmentation as FGD measures it: the part of the free GPU share that the workload's requests cannot
use.

Reference: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent (USENIX ATC 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sim.model.cluster import WHOLE
from sim.model.record import NOT_ARRIVED, Record
from sim.model.tasks import Mode
from sim.results.replay import Capacity, Replay

if TYPE_CHECKING:
    from sim.results.metrics import Measured
    from sim.results.result import Result


def fragmentation(run: Measured) -> float:
    """Time average, over the part of the window in which some GPU share is unallocated, of

    Σ_n Σ_m p_m F_n(m) / Σ_n unallocated_n, where F_n(m) is all of node n's unallocated GPU share if request
    m does not fit on n, else the share on GPUs with less left than m asks of one; p_m is the share of the
    workload's tasks with request m.  A task that is equally demanding on several types of accelerator can use any of
    them; one with other modes counts with those like its first accelerator mode.
    """
    total = weighted = 0.0
    for begin, end, free, stranded, _ in _stretches(run.result):
        span = min(end, run.high) - max(begin, run.low)
        if span > 0 and free > 0:
            total += span
            weighted += span * stranded / free
    return float(weighted / total) if total else math.nan


def fragmentation_over_time(result: Result) -> pd.DataFrame:
    """Fragmentation and allocation as steps: each row holds from its `time` to the next row's.

    `allocated_gpus` and `unallocated_gpus` (of those that are up), `fragmented_gpus` (the part of the latter that
    the mix cannot use, in expectation), `fragmentation` = fragmented / unallocated (NaN where nothing is unallocated)
    and `allocation` = allocated / up.
    """
    rows: list[tuple[float, float, float, float]] = []
    for begin, _, free, stranded, up in _stretches(result):
        if not rows or rows[-1][1:] != (free, stranded, up):
            rows.append((begin, free, stranded, up))
    time, unallocated, stranded_, there = np.array(rows, dtype=float).reshape(-1, 4).T
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "time": time,
            "allocated_gpus": there - unallocated,
            "unallocated_gpus": unallocated,
            "fragmented_gpus": stranded_,
            "fragmentation": stranded_ / unallocated,
            "allocation": (there - unallocated) / there,
        }
    return pd.DataFrame(columns)


def _stretches(result: Result) -> Iterator[tuple[float, float, float, float, float]]:
    """(begin, end, GPUs unallocated, the part of them the mix cannot use, GPUs up) of each stretch of the run."""
    record = result.record
    requests, mix = request_mix(record)
    state = Capacity(record.input.cluster, [mode for ways in requests for mode in ways])
    if not state.share.size:
        return
    measure = _Measure(state, requests, mix)
    measure.update(range(len(state.cores)))
    for begin, end, touched in Replay(record, result.modes, state).segments():
        if touched:
            measure.update(touched)
        yield begin, end, float(measure.free.sum()), float(measure.stranded.sum()), float(measure.up.sum())


def request_mix(record: Record) -> tuple[list[list[Mode]], np.ndarray]:
    """The distinct requests of the workload, each as its modes on types of accelerator, and their shares of tasks."""
    arrived = record.status != NOT_ARRIVED
    numbers = np.bincount(record.input.tasks.shape[arrived], minlength=len(record.input.tasks.shapes))
    shares: dict[tuple, float] = {}
    requests: dict[tuple, list[Mode]] = {}
    for shape, number in zip(record.input.tasks.shapes, numbers, strict=True):
        first = next((mode for mode in shape.modes if mode.gpus), shape.modes[0])
        ways = {mode.type.name: mode for mode in reversed(shape.modes) if _demand(mode) == _demand(first)}
        if first.on_cpu:
            ways = {first.type.name: first}
        key = (_demand(first), *sorted(ways))
        shares[key] = shares.get(key, 0.0) + number
        requests.setdefault(key, [ways[name] for name in sorted(ways)])
    mix = np.array(list(shares.values()))
    return list(requests.values()), mix / max(mix.sum(), 1.0)


def _demand(mode: Mode) -> tuple:
    return (mode.cpus, mode.gpus, mode.share, mode.memory, mode.gpu_memory, mode.span_any)


class _Measure:
    """Per node the unallocated GPU share, the part of it that the mix cannot use, and the GPUs that are up."""

    def __init__(self, state: Capacity, requests: list[list[Mode]], mix: np.ndarray):
        self.state, self.mix = state, mix
        self.starts = np.cumsum([0, *(len(ways) for ways in requests)])[:-1]
        self.free, self.stranded, self.up = np.zeros((3, len(state.cores)))

    def update(self, nodes: Iterable[int]) -> None:
        """Measure these nodes anew."""
        state, starts = self.state, self.starts
        asked_share = state.asked_share[:, None] / WHOLE
        for node in nodes:
            usable = state.usable[node]
            left = np.clip(state.share[node] - (state.full[node] - WHOLE), 0, WHOLE) / WHOLE
            left = np.where(usable, left, 0.0)
            of_type = (state.type[node] == state.asked_type[:, None]) | (state.asked_gpus == 0)[:, None]
            good = np.logical_or.reduceat(of_type & (left >= asked_share), starts, axis=0)
            fits = np.logical_or.reduceat(state.fitting[:, node] > 0, starts)
            all_free = left.sum()
            lost = np.where(fits, all_free - (good * left).sum(axis=1), all_free)
            self.free[node], self.stranded[node] = all_free, float(self.mix @ lost)
            self.up[node] = np.count_nonzero(usable)
