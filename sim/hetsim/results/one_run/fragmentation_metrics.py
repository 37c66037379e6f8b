"""GPU fragmentation after FGD: free GPU share of no use to the workload.

Reference: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent (USENIX ATC 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from hetsim.model.cluster import MILLI, WHOLE, Cluster
from hetsim.model.record import NOT_ARRIVED, Record
from hetsim.model.tasks import Mode
from hetsim.results.declared import metric
from hetsim.results.one_run.launches import PlaceColumns, launches_of
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.replay import FreeCapacity, RunReplay

ROUNDING = 1e-9
"""Differences up to here are noise of a long sum."""


@metric(unit="share", better="less", of="run", is_percent=False, sets=("cluster:120",))
def fragmentation(run: Measured) -> float:
    """Time average of Σ_n Σ_m p_m F_n(m) / Σ_n unallocated_n, while that is above 0.

    F_n(m) is all of node n's unallocated GPU share if request
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
    """Fragmentation and allocation as steps between `time`s.

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
            fragmentation.__name__: stranded / unallocated,
            "allocation": (there - unallocated) / there,
        }
    return pd.DataFrame(columns)


def fragmentation_between(result: Run, edges: np.ndarray) -> np.ndarray:
    """Mean fragmentation between these times; NaN where undefined.

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

    unallocated, lost = areas(free), areas(stranded)
    return np.divide(lost, unallocated, out=np.full(len(middle), math.nan), where=unallocated > 1e-9 * np.diff(edges))


MAX_REPLAYED = 20_000
"""Tasks up to which a picture replays every launch of a run with shared GPUs."""

Steps = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Times, and from each to the next: GPUs unallocated, the part of them the mix cannot use, GPUs up."""


def fragmentation_steps(result: Run, times: np.ndarray | None = None) -> Steps:
    """The free GPUs over the run, or at these `times` where cheaper.

    Where tasks take whole GPUs it is a few passes over columns, otherwise the run is replayed launch by launch.
    """
    steps = whole_gpu_steps(result)
    if steps is not None:
        return steps
    rows: list[tuple[float, float, float, float]] = []
    for begin, free, stranded, up in _replayed(result, times):
        if not rows or rows[-1][1:] != (free, stranded, up):
            rows.append((begin, free, stranded, up))
    time, free_, stranded_, up_ = np.array(rows, dtype=float).reshape(-1, 4).T
    return time, free_, stranded_, up_


def _replayed(result: Run, times: np.ndarray | None) -> Iterator[tuple[float, float, float, float]]:
    """(begin, GPUs unallocated, part the mix cannot use, GPUs up) by stretch."""
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
    """By node unallocated GPUs, the part the mix cannot use, and GPUs up."""

    def __init__(self, state: FreeCapacity, requests: list[list[Mode]], mix: np.ndarray):
        self.state, self.mix = state, mix
        self.starts = np.cumsum([0, *(len(ways) for ways in requests)])[:-1]
        self.free, self.stranded, self.up = np.zeros((3, len(state.cores)))

    def update(self, nodes: Iterable[int]) -> None:
        """Measure these nodes again."""
        state, starts = self.state, self.starts
        asked_share = state.asked_share[:, None] / WHOLE
        for node in nodes:
            usable = state.usable[node]
            remaining = np.clip(state.share[node] - (state.full[node] - WHOLE), 0, WHOLE) / WHOLE
            remaining = np.where(usable, remaining, 0.0)
            of_type = (state.type[node] == state.asked_type[:, None]) | (state.asked_gpus == 0)[:, None]
            good = np.logical_or.reduceat(of_type & (remaining >= asked_share), starts, axis=0)
            fits = np.logical_or.reduceat(state.fitting[:, node] > 0, starts)
            all_free = remaining.sum()
            lost = np.where(fits, all_free - (good * remaining).sum(axis=1), all_free)
            self.free[node], self.stranded[node] = all_free, float(self.mix @ lost)
            self.up[node] = np.count_nonzero(usable)


# The free GPUs of a run in which tasks take whole ones, from columns alone: see
# `hetsim.results.one_run.fragmentation_metrics`.
#
# Of such a node the number of free GPUs, cores and bytes says which requests fit, so that the state of every node after
# every event is a running sum, and no event costs a step of Python.


def request_mix(record: Record) -> tuple[list[list[Mode]], np.ndarray]:
    """The distinct requests as modes on accelerators, and shares of tasks."""
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


def whole_gpu_steps(result: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Steps of GPUs unallocated, the part the mix cannot use, and GPUs up.

    None where GPUs are shared, a node has two types of them, or devices came and went.
    """
    record, table = result.record, result.modes
    cluster = record.input.cluster
    if record.device_log or not _whole(table, cluster):
        return None
    node, time, *change = _changes(record, table)
    order = np.lexsort((time, node))
    node, time = node[order], time[order]
    last = np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True) if len(node) else np.zeros(0, bool)
    first = np.searchsorted(node, np.arange(len(cluster.nodes)))
    taken = []
    for column in change:
        total = np.cumsum(column[order])
        before = np.concatenate([[0], total])[first]
        taken.append((total - before[node])[last])
    node, time = node[last], time[last]
    nodes = np.arange(len(cluster.nodes))
    zero = np.zeros(len(nodes), np.int64)
    requests = request_mix(record)
    free0, lost0 = _stranded(cluster, requests, nodes, (zero, zero, zero))
    free, lost = _stranded(cluster, requests, node, tuple(taken))
    # What each row changes against the one before it on its node.
    opens = np.append(True, node[1:] != node[:-1]) if len(node) else np.zeros(0, bool)
    d_free = free - np.where(opens, free0[node], np.roll(free, 1))
    d_lost = lost - np.where(opens, lost0[node], np.roll(lost, 1))
    times, row = np.unique(np.append(0.0, np.maximum(time, 0.0)), return_inverse=True)
    there = free0.sum()
    unallocated = there + np.cumsum(np.bincount(row, weights=np.append(0.0, d_free)))
    stranded = lost0.sum() + np.cumsum(np.bincount(row, weights=np.append(0.0, d_lost)))
    unallocated = np.rint(unallocated)
    stranded = np.where(unallocated > 0, np.clip(stranded, 0.0, unallocated), 0.0)
    changed = np.append(True, (np.diff(unallocated) != 0) | (np.abs(np.diff(stranded)) > ROUNDING))
    kept = (times <= record.end) & changed
    return times[kept], unallocated[kept], stranded[kept], np.full(int(kept.sum()), float(there))


def _whole(table: ModeTable, cluster: Cluster) -> bool:
    """Return True if every task takes whole GPUs of one type a node, one at a time."""
    types = [{device.type.name for device in node.accelerators} for node in cluster.nodes]
    single = all(len(names) < 2 for names in types) and any(types)
    plain = all(device.type.streams == 1 for device in cluster.devices if device.local >= 0)
    return single and plain and all(not mode.gpus or mode.share == WHOLE for mode in table.modes)


def _changes(record: Record, table: ModeTable) -> tuple[np.ndarray, ...]:
    """Node, time, GPUs, millicores and bytes of every start and end on a node."""
    launches, places = launches_of(record, table), PlaceColumns(record)
    cluster = record.input.cluster
    node_of = np.array([device.node for device in cluster.devices])[places.flat]
    pairs, which = np.unique(np.stack([places.owner, node_of]), axis=1, return_inverse=True)
    count = np.bincount(which.ravel(), weights=places.amount, minlength=pairs.shape[1]).astype(np.int64)
    first = np.searchsorted(pairs[0], np.arange(places.count + 1))
    many = np.diff(first)[launches.place]
    launch = np.repeat(np.arange(len(launches)), many)
    pair = np.repeat(first[launches.place], many) + np.arange(len(launch)) - np.repeat(np.cumsum(many) - many, many)
    part, size, mode = count[pair], places.totals[launches.place][launch].astype(np.int64), launches.mode[launch]

    def taken(column: np.ndarray) -> np.ndarray:
        """Part of cores and memory of a gang on a node, rounded up."""
        return -(-column[mode] * part // size)

    gpus = np.where(table.column(lambda m: m.gpus, np.int64)[mode] > 0, part, 0)
    cores = taken(table.column(lambda m: m.millicores, np.int64))
    memory = taken(table.column(lambda m: m.memory, np.int64))
    ended = ~launches.open[launch]
    node = pairs[1][pair]
    return (
        np.concatenate([node, node[ended]]),
        np.concatenate([launches.decided[launch], launches.end[launch][ended]]),
        *(np.concatenate([column, -column[ended]]) for column in (gpus, cores, memory)),
    )


def _stranded(
    cluster: Cluster, requests: tuple[list[list[Mode]], np.ndarray], node: np.ndarray, taken: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Free GPUs of nodes, and the expected part that the mix cannot use."""
    nodes = cluster.nodes
    gpus = np.array([len(one.accelerators) for one in nodes])[node] - taken[0]
    cores = np.array([one.cpus * MILLI for one in nodes])[node] - taken[1]
    memory = np.array([np.inf if one.memory is None else one.memory for one in nodes])[node] - taken[2]
    kind = np.array([one.accelerators[0].type.name if one.accelerators else "" for one in nodes])
    host = np.array([one.cpu.type.name for one in nodes])
    used = np.zeros(len(node))
    for ways, share in zip(*requests, strict=True):
        fits = np.zeros(len(node), bool)
        for mode in ways:
            of_type = ((host if mode.on_cpu else kind) == mode.type.name)[node]
            if mode.gpus and mode.type.memory is not None and mode.gpu_memory > mode.type.memory:
                continue
            if mode.unit is not None:  # a part on one node
                part = mode.unit
                room = (gpus >= part.gpus) & (cores >= part.millicores) & (memory >= part.memory)
            elif mode.span_any and mode.gpus:  # one of its devices with its part of the rest
                room = (gpus >= 1) & (cores * mode.gpus >= mode.millicores) & (memory * mode.gpus >= mode.memory)
            else:
                room = (gpus >= mode.gpus) & (cores >= mode.millicores) & (memory >= mode.memory)
            fits |= of_type & room
        used += share * fits
    return gpus.astype(float), gpus * (1.0 - used)
