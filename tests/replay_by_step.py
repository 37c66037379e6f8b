"""The free capacity of every node between the events of a run, replayed launch by launch.

`hetsim.results.one_run.replay` finds the same in columns; this is what it replaced, and its second opinion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hetsim.engine.resources.slices import GpuSlices
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.fusion import fused_mode
from hetsim.model.mode import Mode
from hetsim.model.plan import cores_on
from hetsim.model.record import UP, DeviceStates, Record
from hetsim.results.one_run.fragmentation_metrics import request_mix
from hetsim.results.one_run.launches import launch_numbers, launches_of
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.result import Result


class FreeCapacity:
    """Free capacity by node, and the number of nodes on which each mode fits."""

    def __init__(self, cluster: Cluster, asked: Sequence[Mode]):
        self.cluster, self.asked = cluster, list(asked)
        self.states = DeviceStates(cluster)
        nodes, widest = len(cluster.nodes), max((len(node.accelerators) for node in cluster.nodes), default=0)
        names = list(cluster.types)
        self.cores = np.array([node.cpus * MILLI for node in cluster.nodes], dtype=np.int64)
        self.memory = np.array([np.inf if node.memory is None else node.memory for node in cluster.nodes])
        self.cpu_usable = np.ones(nodes, bool)
        self.cpu_type = np.array([names.index(node.cpu.type.name) for node in cluster.nodes])
        self.type = np.full((nodes, widest), -1)
        self.full = np.zeros((nodes, widest), np.int64)
        self.gpu_memory = np.zeros((nodes, widest))
        self.usable = np.zeros((nodes, widest), bool)
        for node in cluster.nodes:
            for device in node.accelerators:
                where = node.index, device.local
                self.type[where] = names.index(device.type.name)
                self.full[where] = device.type.streams * WHOLE
                self.gpu_memory[where] = np.inf if device.type.memory is None else device.type.memory
                self.usable[where] = True
        gpus = [device for node in cluster.nodes for device in node.accelerators if device.type.sharing.slices]
        self.slices = {(device.node, device.local): GpuSlices(device.type) for device in gpus}
        """Of MIG GPUs by node and position; cuts by `Partition` are not among them."""
        self.share = self.full.copy()
        self._ask(names)
        self.fitting = np.zeros((len(self.asked), nodes), np.int64)
        """Per asked mode and node: 1 where it, or its part of a node, fits; of one over any nodes its part."""
        self._free = np.zeros((nodes, 3 + 2 * len(names)))
        for index in range(nodes):
            self.refresh(index)
        self.totals = self._sum_up()
        self.found = self.fitting.sum(axis=1)

    def _ask(self, names: list[str]) -> None:
        """Demands of each mode: on one node, on which nodes, and on all of them together."""
        asked = self.asked
        self.asked_type = np.array([names.index(mode.type.name) if mode.type.name in names else -2 for mode in asked])
        # Of a gang over a number of nodes, and of one of cores, a node is asked for one part.
        parts = [mode.unit or mode for mode in asked]
        self.asked_cores = np.array([mode.millicores for mode in parts], dtype=np.int64)
        self.asked_gpus = np.array([mode.gpus for mode in parts], dtype=np.int64)
        self.asked_share = np.array([mode.share if mode.gpus else 0 for mode in parts], dtype=np.int64)
        self.asked_memory = np.array([mode.memory for mode in parts], dtype=np.float64)
        self.asked_gpu_memory = np.array([mode.gpu_memory for mode in asked], dtype=np.float64)
        self._on_cpu = self.asked_gpus == 0
        self._ask_parts()
        self._ask_sums(len(names))

    def _ask_parts(self) -> None:
        """Modes divided over nodes, their parts, and the nodes of each."""
        asked, nodes = self.asked, len(self.cluster.nodes)
        self.spans = np.array([mode.span_any and mode.gpus > 0 and mode.unit is None for mode in asked], dtype=bool)
        self.on_cores = np.array([mode.unit is not None and mode.node_count == 1 for mode in asked], dtype=bool)
        cores = np.array([mode.millicores // MILLI for mode in asked], dtype=np.int64)
        parts_of = np.array([mode.node_count for mode in asked], dtype=np.int64)
        self.needed = np.where(self.spans, self.asked_gpus, np.where(self.on_cores, cores, parts_of))
        masks = list(dict.fromkeys(mode.nodes for mode in asked)) or [None]
        self._parts = np.array([[mask is None or bool(mask >> node & 1) for node in range(nodes)] for mask in masks])
        self._part = np.array([masks.index(mode.nodes) for mode in asked], dtype=np.int64)

    def _ask_sums(self, types: int) -> None:
        """The demand of a mode on all nodes that it may use, in the columns of `totals`."""
        self._sums = np.zeros((len(self.asked), 3 + 2 * types))
        self._sums[:, 0] = [mode.millicores for mode in self.asked]
        self._sums[:, 1] = [mode.memory for mode in self.asked]
        for row, kind in enumerate(self.asked_type):
            if self.asked[row].gpus and kind >= 0:
                self._sums[row, 3 + 2 * kind] = self.asked[row].gpus * self.asked_share[row]
                self._sums[row, 4 + 2 * kind] = self.asked[row].gpus * self.asked_gpu_memory[row]
            elif kind < 0:
                self._sums[row, 2] = np.inf

    def refresh(self, node: int) -> None:
        """Recompute what depends on one node."""
        cores = self.cores[node] if self.cpu_usable[node] else 0
        memory, usable = self.memory[node], self.usable[node]
        good = (self.type[node] == self.asked_type[:, None]) & usable
        good &= self.share[node] >= self.asked_share[:, None]
        good &= self.gpu_memory[node] >= self.asked_gpu_memory[:, None]
        for device in self.cluster.nodes[node].accelerators if self.slices else ():
            if (slices := self.slices.get((node, device.local))) is not None:
                good[:, device.local] &= [not ask.gpus or slices.cut_for(ask) is not None for ask in self.asked]
        devices = good.sum(axis=1)
        host = (cores >= self.asked_cores) & (memory >= self.asked_memory)
        host &= ~self._on_cpu | (self.cpu_type[node] == self.asked_type)
        allowed = self._parts[self._part, node]
        host &= allowed
        fits = (host & (devices >= self.asked_gpus)).astype(np.int64)
        if self.on_cores.any():
            by_memory = np.full(len(fits), np.inf) if memory == np.inf else memory // np.maximum(self.asked_memory, 1)
            room = np.where(self.asked_memory > 0, np.minimum(cores // MILLI, by_memory), cores // MILLI)
            fits = np.where(self.on_cores, fits * room, fits).astype(np.int64)
        if self.spans.any():
            # Of a mode over nodes each device brings its part of the cores and the memory.
            gpus = np.maximum(self.asked_gpus, 1)
            by_cores = np.where(self.asked_cores > 0, cores * gpus // np.maximum(self.asked_cores, 1), devices)
            room = devices if memory == np.inf else memory * gpus // np.maximum(self.asked_memory, 1)
            by_memory = np.where(self.asked_memory > 0, room, devices)
            fits = np.where(self.spans, np.minimum(devices, np.minimum(by_cores, by_memory)) * allowed, fits)
        self.fitting[:, node] = fits
        free = self._free[node]
        free[0], free[1] = cores, memory if memory != np.inf else 1e30
        for kind in range((len(free) - 3) // 2):
            of_kind = usable & (self.type[node] == kind)
            free[3 + 2 * kind] = self.share[node][of_kind].sum()
            free[4 + 2 * kind] = np.minimum(self.gpu_memory[node][of_kind], 1e30).sum()

    def update(self, nodes: Sequence[int]) -> None:
        """Recompute after the state of some nodes changed."""
        for node in nodes:
            before = self.fitting[:, node].copy()
            self.refresh(node)
            self.found += self.fitting[:, node] - before
        self.totals = self._sum_up()

    def _sum_up(self) -> np.ndarray:
        """Free amounts, summed over the nodes of each partition that a mode is bound to."""
        if len(self._parts) == 1 and self._parts.all():
            return self._free.sum(axis=0)[None, :]
        return np.array([self._free[part].sum(axis=0) for part in self._parts])

    def fit(self) -> np.ndarray:
        """Which asked modes fit somewhere now."""
        return self.found >= self.needed

    def suffices(self) -> np.ndarray:
        """Asked modes that fit into the free capacity summed over nodes."""
        return np.all(self._sums <= self.totals[self._part], axis=1)

    def take(self, place: tuple[Sequence[int], Sequence[int] | None], mode: Mode, sign: int, key: int) -> list[int]:
        """Take (sign 1) or return (-1) a launch's place; gives the nodes."""
        cluster = self.cluster
        nodes: dict[int, int] = {}
        devices, cores = place
        counts = [len(here) for here in cores_on(devices, cores, cluster)] if len(devices) > 1 and cores else None
        total = len(cores) if counts is not None and cores else len(devices)
        for position, index in enumerate(devices):
            device = cluster.devices[index]
            nodes[device.node] = nodes.get(device.node, 0) + (1 if counts is None else counts[position])
            if device.local >= 0:
                self.share[device.node, device.local] -= sign * mode.share
                self.gpu_memory[device.node, device.local] -= sign * mode.gpu_memory
                if (slices := self.slices.get((device.node, device.local))) is not None:
                    slices.take(mode, key, 0.0) if sign > 0 else slices.give(key)
        for node, count in nodes.items():
            # A gang over nodes books its cores and memory in proportion to what it has there, rounded up.
            self.cores[node] -= sign * -(-mode.millicores * count // total)
            self.memory[node] -= sign * -(-mode.memory * count // total)
        return list(nodes)

    def switch(self, index: int, what: str) -> list[int]:
        """Apply an entry of the device log; the nodes touched."""
        changed = [self.cluster.devices[one] for one in self.states.change(index, what)]
        for device in changed:
            usable = self.states.of[device.index] == UP
            if device.local >= 0:
                self.usable[device.node, device.local] = usable
            else:
                self.cpu_usable[device.node] = usable
        return [changed[0].node] if changed else []


class RunReplay:
    """The run again, as stretches of time in which the capacity stays the same."""

    def __init__(self, record: Record, table: ModeTable, state: FreeCapacity, further: Sequence[np.ndarray] = ()):
        """`further`: times at which a stretch must end although no capacity changes."""
        launches = launches_of(record, table)
        self.record, self.state = record, state
        self.modes = [table.modes[code] for code in launches.mode]
        for at, number in enumerate([] if record.launches is None else launch_numbers(record.launches).tolist()):
            if number in record.fused:
                shapes, rows = record.input.tasks.shapes, record.fused[number][0]
                own = [shapes[record.input.tasks.shape[row]].modes[record.mode[row]] for row in rows]
                self.modes[at] = fused_mode(own)
        self.places = [record.places[place] for place in launches.place]
        log = [(time, device, what) for time, device, what, _ in record.device_log]
        self.log = log
        closed = np.flatnonzero(~launches.open)
        self._times = np.concatenate([launches.end[closed], launches.decided, [time for time, _, _ in log]])
        kinds = np.repeat([0, 1, 2], [len(closed), len(launches), len(log)])
        index = np.concatenate([closed, np.arange(len(launches)), np.arange(len(log))]).astype(np.int64)
        order = np.argsort(self._times, kind="stable")
        self._events = list(zip(kinds[order].tolist(), index[order].tolist(), strict=True))
        self._times = self._times[order]
        grid = np.unique(np.concatenate([[0.0], self._times, *further, [record.end]]))
        self.grid = grid[(grid <= record.end) & (grid >= 0)]

    def segments(self, wanted: np.ndarray | None = None) -> Iterator[tuple[float, float, list[int]]]:
        """(begin, end, nodes touched at begin), with the state as it is in between.

        `wanted`: in which stretches of the grid the state is looked at; in the others it is left to be brought up
        to date, which costs most of the time.
        """
        times, events, at = self._times, self._events, 0
        grid = self.grid.tolist()
        looked = [True] * len(grid) if wanted is None else wanted.tolist()
        touched: set[int] = set()
        for begin, end, look in zip(grid, [*grid[1:], self.record.end], looked, strict=True):
            while at < len(events) and times[at] <= begin:
                touched.update(self._apply(*events[at]))
                at += 1
            nodes: list[int] = []
            if look and touched:
                nodes = sorted(touched)
                touched.clear()
                self.state.update(nodes)
            yield begin, end, nodes

    def _apply(self, kind: int, index: int) -> list[int]:
        if kind == 2:
            return self.state.switch(*self.log[index][1:])
        return self.state.take(self.places[index], self.modes[index], 1 if kind else -1, index)


def free_gpus(result: Result) -> Iterator[tuple[float, float, float, float]]:
    """Begin, GPUs unallocated, part the mix cannot use and GPUs up, by stretch."""
    record = result.record
    requests, mix = request_mix(record)
    # The measure knows only demands: it asks what would fit, regardless of which tasks may use the node.
    state = FreeCapacity(record.input.cluster, [replace(mode, partition=None) for ways in requests for mode in ways])
    if not state.share.size:
        return
    measure = _Measure(state, requests, mix)
    measure.update(range(len(state.cores)))
    for begin, _, touched in RunReplay(record, result.modes, state).segments():
        if touched:
            measure.update(touched)
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
