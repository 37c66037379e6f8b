"""The free GPUs of a run in which tasks take whole ones, from columns alone: see
`hetsim.results.one_run.fragmentation`.

Of such a node the number of free GPUs, cores and bytes says which requests fit, so that the state of every node after
every event is a running sum, and no event costs a step of Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsim.model.cluster import MILLI, WHOLE, Cluster
from hetsim.model.record import NOT_ARRIVED, Record
from hetsim.model.tasks import Mode
from hetsim.results.one_run.launches import PlaceColumns, launches_of

ROUNDING = 1e-9
"""Differences up to here are noise of a long sum."""

if TYPE_CHECKING:
    from hetsim.results.one_run.measured import Run
    from hetsim.results.one_run.modes import ModeTable


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
    return (mode.millicores, mode.gpus, mode.share, mode.memory, mode.gpu_memory, mode.span_any, mode.node_count)


def whole_gpu_steps(result: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Times, and from each to the next: GPUs unallocated, the part of them that the mix cannot use, GPUs up.

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
    """Return True if every task takes whole GPUs of one type a node, one launch at a time."""
    types = [{device.type.name for device in node.accelerators} for node in cluster.nodes]
    single = all(len(names) < 2 for names in types) and any(types)
    plain = all(device.type.streams == 1 for device in cluster.devices if device.local >= 0)
    return single and plain and all(not mode.gpus or mode.share == WHOLE for mode in table.modes)


def _changes(record: Record, table: ModeTable) -> tuple[np.ndarray, ...]:
    """Of every start and end on every node: the node, the time, and GPUs, thousandths of cores and bytes taken."""
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
        """A gang over nodes takes cores and memory in proportion to its devices there, rounded up."""
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
    """Free GPUs of nodes of which so much is taken, and the part of them that the mix cannot use, in expectation."""
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
