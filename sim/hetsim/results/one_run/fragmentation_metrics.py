"""GPU fragmentation as in FGD: the free GPU share that the workload cannot use.

Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent (ATC 2023).
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.record import NOT_ARRIVED, Record
from hetsim.results.declared import metric
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.replay import FreeCapacity, RunReplay, by_stretch

ROUNDING = 1e-9  # Differences up to this value are rounding noise of a long sum.


@metric(unit="share", better="less", of="run", is_percent=False, sets=("cluster:120",))
def fragmentation(run: Measured) -> float:
    """Share of free GPU capacity that the workload's requests cannot use.

    It is unusable / unallocated GPUs, averaged over the time in which GPUs are unallocated.  On a node, a request
    cannot use any unallocated GPU if it does not fit there; otherwise it cannot use the GPUs with less free capacity
    than it needs on one GPU.  The unusable GPUs are summed over nodes, and averaged over the requests of all tasks.  If
    a task requests the same on several types of accelerator, it can use any of them; if its requests differ by type,
    only the request of its first accelerator mode counts.  For a request without GPUs that fits, all GPUs count as
    usable; in the paper and the placement `fgd`, all count as unusable.
    """
    time, free, stranded, _ = fragmentation_steps(run.result)
    span = np.minimum(np.append(time[1:], run.result.end), run.high) - np.maximum(time, run.low)
    there = (span > 0) & (free > 0)
    total = float(span[there].sum())
    return float((span[there] * stranded[there] / free[there]).sum()) / total if total else math.nan


def fragmentation_over_time(result: Run) -> pd.DataFrame:
    """Return fragmentation and allocation as step functions of time.

    Columns: `time`, `allocated_gpus` and `unallocated_gpus` (of those that are up), `fragmented_gpus` (the expected
    part of the unallocated ones that the requests cannot use), `fragmentation` = fragmented / unallocated (NaN if
    nothing is unallocated) and `allocation` = allocated / up.
    """
    time, unallocated, stranded, there = fragmentation_steps(result)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "time": time,
            "allocated_gpus": there - unallocated,
            "unallocated_gpus": unallocated,
            "fragmented_gpus": stranded,
            fragmentation.__name__: stranded / unallocated,
            "allocation": (there - unallocated) / there,
        }
    return pd.DataFrame(columns)


def fragmentation_between(result: Run, edges: np.ndarray) -> np.ndarray:
    """Mean fragmentation between consecutive times; NaN if undefined."""
    requests, _ = request_mix(result.record)
    if not any(mode.gpus for ways in requests for mode in ways):
        return np.array([])
    middle = (edges[:-1] + edges[1:]) / 2
    time, free, stranded, _ = fragmentation_steps(result)
    if not len(time):
        return np.array([])
    inside = np.minimum(edges, result.end)

    def areas(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(values * np.diff(time, append=result.end))])
        return np.diff(np.interp(inside, np.append(time, result.end), total))

    unallocated, lost = areas(free), areas(stranded)
    return np.divide(lost, unallocated, out=np.full(len(middle), math.nan), where=unallocated > 1e-9 * np.diff(edges))


# Times, and from each on: GPUs unallocated, those of them that are unusable, GPUs up.
Steps = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def fragmentation_steps(result: Run) -> Steps:
    """Return step functions: times, unallocated GPUs, unusable ones of these, GPUs up."""
    record, (requests, mix) = result.record, request_mix(result.record)
    # The measure knows only demands: it asks what would fit, regardless of which tasks may use the node.
    state = FreeCapacity(record.input.cluster, [replace(mode, partition=None) for ways in requests for mode in ways])
    if not state.share.size:
        return (np.zeros(0),) * 4
    starts = np.cumsum([0, *(len(ways) for ways in requests)])[:-1]
    replay = RunReplay(record, result.modes, state)
    at, states = replay.states()
    node, rows = states[0], []
    for block in state.blocks(states):
        full, kind, usable = state.full[block[0]], state.type[block[0]], block[6]
        remaining = np.where(usable, np.clip(block[4] - (full - WHOLE), 0, WHOLE) / WHOLE, 0.0)
        of_type = (kind == state.asked_type[:, None, None]) | (state.asked_gpus == 0)[:, None, None]
        good = np.logical_or.reduceat(of_type & (remaining >= state.asked_share[:, None, None] / WHOLE), starts, axis=0)
        fits = np.logical_or.reduceat(state.measure(*block)[0] > 0, starts, axis=0)
        free = remaining.sum(axis=1)
        lost = np.where(fits, free - (good * remaining).sum(axis=2), free)
        rows.append(np.stack([free, mix @ lost, np.count_nonzero(usable, axis=1)]))
    free, stranded, up = (by_stretch(values, at, node, count=len(replay.grid)) for values in np.hstack(rows))
    free = np.where(free > ROUNDING, np.rint(free / ROUNDING) * ROUNDING, 0.0)
    stranded = np.clip(np.where(stranded > ROUNDING, stranded, 0.0), 0.0, free)
    changed = np.append(True, (np.abs(np.diff([free, stranded, up])) > ROUNDING).any(axis=0))
    return replay.grid[changed], free[changed], stranded[changed], up[changed]


def request_mix(record: Record) -> tuple[list[list[Mode]], np.ndarray]:
    """The workload's distinct requests as modes, and the share of tasks with each."""
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
    return (mode.millicores, mode.gpus, mode.share, mode.memory, mode.gpu_memory, mode.span_any, mode.node_count)
