"""GPU fragmentation as FGD measures it: the part of the free GPU share that the workload's requests cannot
use.

Reference: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent (USENIX ATC 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hetsim.model.cluster import WHOLE
from hetsim.model.tasks import Mode
from hetsim.results.declared import metric
from hetsim.results.one_run.replay import FreeCapacity, RunReplay
from hetsim.results.one_run.whole_gpus import request_mix, whole_gpu_steps

if TYPE_CHECKING:
    from hetsim.results.one_run.measured import Measured, Run


@metric(unit="share", better="less", of="run", is_percent=False, sets=("cluster:120",))
def fragmentation(run: Measured) -> float:
    """Time average, over the part of the window in which some GPU share is unallocated, of

    Σ_n Σ_m p_m F_n(m) / Σ_n unallocated_n, where F_n(m) is all of node n's unallocated GPU share if request
    m does not fit on n, else the share on GPUs with less left than m asks of one; p_m is the share of the
    workload's tasks with request m.  A task that is equally demanding on several types of accelerator can use any of
    them; one with other modes counts with those like its first accelerator mode.  A task that asks for no GPU and
    fits loses nothing; in the paper, and for the placement `fgd`, all free GPUs are lost to it.
    """
    time, free, stranded, _ = fragmentation_steps(run.result)
    until = np.append(time[1:], run.result.end)
    span = np.minimum(until, run.high) - np.maximum(time, run.low)
    there = (span > 0) & (free > 0)
    total = float(span[there].sum())
    return float((span[there] * stranded[there] / free[there]).sum()) / total if total else math.nan


def fragmentation_over_time(result: Run) -> pd.DataFrame:
    """Fragmentation and allocation as steps: each row holds from its `time` to the next row's.

    `allocated_gpus` and `unallocated_gpus` (of those that are up), `fragmented_gpus` (the part of the latter that
    the mix cannot use, in expectation), `fragmentation` = fragmented / unallocated (NaN where nothing is unallocated)
    and `allocation` = allocated / up.
    """
    time, unallocated, stranded, there = fragmentation_steps(result)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "time": time,
            "allocated_gpus": there - unallocated,
            "unallocated_gpus": unallocated,
            "fragmented_gpus": stranded,
            "fragmentation": stranded / unallocated,
            "allocation": (there - unallocated) / there,
        }
    return pd.DataFrame(columns)


def fragmentation_between(result: Run, edges: np.ndarray) -> np.ndarray:
    """Fragmentation as means between these times; NaN where nothing is unallocated and after the end of the run.

    Empty where there are no GPUs, or no request for any.  Of long runs with shared GPUs it is the state in the middle.
    """
    requests, _ = request_mix(result.record)
    if not any(mode.gpus for ways in requests for mode in ways):
        return np.array([])
    middle = (edges[:-1] + edges[1:]) / 2
    few = len(result.tasks) <= MAX_REPLAYED
    time, free, stranded, _ = fragmentation_steps(result, None if few else middle[middle <= result.end])
    if not len(time):
        return np.array([])
    inside = np.minimum(edges, result.end)

    def areas(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(values * np.diff(time, append=result.end))])
        return np.diff(np.interp(inside, np.append(time, result.end), total))

    whole, lost = areas(free), areas(stranded)
    return np.divide(lost, whole, out=np.full(len(middle), math.nan), where=whole > 1e-9 * np.diff(edges))


MAX_REPLAYED = 20_000
"""Tasks up to which a picture replays every launch of a run with shared GPUs."""

Steps = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Times, and from each to the next: GPUs unallocated, the part of them the mix cannot use, GPUs up."""


def fragmentation_steps(result: Run, times: np.ndarray | None = None) -> Steps:
    """The free GPUs over the whole run; at these `times` only, where looking more often would cost more.

    Where tasks take whole GPUs it is a few passes over columns, otherwise the run is replayed launch by launch.
    """
    found = whole_gpu_steps(result)
    if found is not None:
        return found
    rows: list[tuple[float, float, float, float]] = []
    for begin, free, stranded, up in _replayed(result, times):
        if not rows or rows[-1][1:] != (free, stranded, up):
            rows.append((begin, free, stranded, up))
    time, free_, stranded_, up_ = np.array(rows, dtype=float).reshape(-1, 4).T
    return time, free_, stranded_, up_


def _replayed(result: Run, times: np.ndarray | None) -> Iterator[tuple[float, float, float, float]]:
    """(begin, GPUs unallocated, the part of them the mix cannot use, GPUs up) of each stretch of the run."""
    record = result.record
    requests, mix = request_mix(record)
    # The measure knows only demands: it asks what would fit, regardless of which tasks may use the node.
    state = FreeCapacity(record.input.cluster, [replace(mode, partition=None) for ways in requests for mode in ways])
    if not state.share.size:
        return
    measure = _Measure(state, requests, mix)
    measure.update(range(len(state.cores)))
    replay = RunReplay(record, result.modes, state, () if times is None else (times,))
    wanted = None if times is None else np.isin(replay.grid, times)
    for number, (begin, _, touched) in enumerate(replay.segments(wanted)):
        if touched:
            measure.update(touched)
        if wanted is None or wanted[number]:
            yield begin, float(measure.free.sum()), float(measure.stranded.sum()), float(measure.up.sum())


class _Measure:
    """Per node the unallocated GPU share, the part of it that the mix cannot use, and the GPUs that are up."""

    def __init__(self, state: FreeCapacity, requests: list[list[Mode]], mix: np.ndarray):
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
