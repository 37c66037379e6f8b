"""Replay of launches: the free capacity of every node between the events of a run.

The replay reads only the launches and the device log, so that it also works for loaded runs.  A launch occupies its
place from the decision to its end; a device that is down, asleep or waking has no capacity.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetsim.engine.resources.slices import GpuSlices
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.fusion import fused_mode
from hetsim.model.mode import Mode
from hetsim.model.plan import cores_on
from hetsim.model.record import UP, DeviceStates, Record
from hetsim.results.one_run.launches import PlaceColumns, launch_numbers, occupations_of
from hetsim.results.one_run.modes import ModeTable

MAX_CELLS = 1 << 22  # Maximum number of states × accelerators × modes that one step examines.
FRAGMENTED, FITS = 1, 2


class FreeCapacity:
    """Free capacity by node, and which of the requested modes fit into it."""

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
        # slices of MIG GPUs by node and position, without cuts by `Partition`
        self.slices = {(device.node, device.local): GpuSlices(device.type) for device in gpus}
        self.share = self.full.copy()
        self._ask(names)

    def _ask(self, names: list[str]) -> None:
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
        self._sums = np.zeros((len(self.asked), 3 + 2 * types))
        self._sums[:, 0] = [mode.millicores for mode in self.asked]
        self._sums[:, 1] = [mode.memory for mode in self.asked]
        for row, kind in enumerate(self.asked_type):
            if self.asked[row].gpus and kind >= 0:
                self._sums[row, 3 + 2 * kind] = self.asked[row].gpus * self.asked_share[row]
                self._sums[row, 4 + 2 * kind] = self.asked[row].gpus * self.asked_gpu_memory[row]
            elif kind < 0:
                self._sums[row, 2] = np.inf

    def measure(
        self, node: np.ndarray, cores: np.ndarray, memory: np.ndarray, up: np.ndarray, share: np.ndarray,
        gpu_memory: np.ndarray, usable: np.ndarray, cuts: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return how much of each mode fits (modes × states), and free amounts by state.

        A state is the free capacity of one node for some time.  The count of a mode on one node is above 0 if the mode
        fits; the count of a mode over several nodes is the number of its parts that fit on this node.

        Parameters:
            node: the node of each state; cores, memory: free amounts on it; up: True if its cores can be used.
            share, gpu_memory, usable: free share, free memory, and True if up; by state and accelerator.
            cuts: by state, mode and accelerator, False if a MIG GPU has no slice for the mode; empty without MIG.
        """
        kind, cores = self.type[node], np.where(up, cores, 0)
        asked_cores, asked_memory = self.asked_cores[:, None], self.asked_memory[:, None]
        good = (kind == self.asked_type[:, None, None]) & usable
        good &= share >= self.asked_share[:, None, None]
        good &= gpu_memory >= self.asked_gpu_memory[:, None, None]
        if cuts.shape[1]:
            good &= cuts.swapaxes(0, 1)
        devices = good.sum(axis=2)
        host = (cores >= asked_cores) & (memory >= asked_memory)
        host &= ~self._on_cpu[:, None] | (self.cpu_type[node] == self.asked_type[:, None])
        allowed = self._parts[self._part][:, node]
        host &= allowed
        fits = (host & (devices >= self.asked_gpus[:, None])).astype(np.int64)
        limited = (asked_memory > 0) & (memory < np.inf)
        finite = np.where(memory < np.inf, memory, 0.0)
        if self.on_cores.any():
            by_memory = np.where(limited, finite // np.maximum(asked_memory, 1), np.inf)
            fits = np.where(self.on_cores[:, None], fits * np.minimum(cores // MILLI, by_memory), fits).astype(np.int64)
        if self.spans.any():
            # Of a mode over nodes each device brings its part of the cores and the memory.
            gpus = np.maximum(self.asked_gpus, 1)[:, None]
            by_cores = np.where(asked_cores > 0, cores * gpus // np.maximum(asked_cores, 1), devices)
            by_memory = np.where(limited, finite * gpus // np.maximum(asked_memory, 1), devices)
            room = np.minimum(devices, np.minimum(by_cores, by_memory)) * allowed
            fits = np.where(self.spans[:, None], room, fits).astype(np.int64)
        free = np.zeros((len(node), self._sums.shape[1]))
        free[:, 0], free[:, 1] = cores, memory
        for number in range((free.shape[1] - 3) // 2):
            of_kind = usable & (kind == number)
            free[:, 3 + 2 * number] = np.where(of_kind, share, 0).sum(axis=1)
            free[:, 4 + 2 * number] = np.where(of_kind, gpu_memory, 0.0).sum(axis=1)
        return fits, free

    def verdicts(self, at: np.ndarray, states: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Return, by mode and time interval, whether a mode fits: FITS, FRAGMENTED or 0.

        FRAGMENTED: it does not fit, but the free capacity of all nodes together would suffice. 0: even that does not.
        A node state is the free capacity of one node until it changes.  at: number of the time interval in which each
        node state begins; states: the arguments of `measure`, arrays with an entry per node state; count: number of
        intervals.
        """

        def over_time(values: np.ndarray) -> np.ndarray:
            return by_stretch(values.astype(np.int64), at, states[0], count=count)

        node, measured = states[0], [self.measure(*block) for block in self.blocks(states)]
        fits, free = np.hstack([one for one, _ in measured]), np.vstack([one for _, one in measured])
        sums: dict[tuple[int, int], np.ndarray] = {}
        verdicts = np.zeros((len(self.asked), count), np.int8)
        for mode, part in enumerate(self._part.tolist()):
            suffices = np.ones(count, bool)
            for column in np.flatnonzero(self._sums[mode]).tolist():
                if (part, column) not in sums:
                    amounts, inside = free[:, column], self._parts[part][node]
                    total = over_time(np.where(inside & (amounts < np.inf), amounts, 0))
                    sums[part, column] = np.where(over_time(inside & (amounts == np.inf)) > 0, np.inf, total)
                suffices &= self._sums[mode, column] <= sums[part, column]
            fitting = over_time(fits[mode]) >= self.needed[mode]
            verdicts[mode] = np.where(fitting, FITS, np.where(suffices, FRAGMENTED, 0))
        return verdicts

    def blocks(self, states: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Yield node states in blocks small enough to examine all modes in memory at once."""
        cells = len(states[0]) * self.type.shape[1] * len(self.asked)
        for block in np.array_split(np.arange(len(states[0])), 1 + cells // MAX_CELLS):
            yield [column[block] for column in states]

    def take(self, place: tuple[Sequence[int], Sequence[int] | None], mode: Mode, sign: int, key: int) -> list[int]:
        """Occupy (sign 1) or release (-1) the devices of launch `key`; return the nodes."""
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
        """Apply a change (`what`) of device `index` in the device log; return its nodes."""
        changed = [self.cluster.devices[one] for one in self.states.change(index, what)]
        for device in changed:
            usable = self.states.of[device.index] == UP
            if device.local >= 0:
                self.usable[device.node, device.local] = usable
            else:
                self.cpu_usable[device.node] = usable
        return [changed[0].node] if changed else []


def by_stretch(values: np.ndarray, at: np.ndarray, node: np.ndarray, count: int) -> np.ndarray:
    """Sum a value over all nodes, for each of `count` time intervals.

    A state is a time without a change on one node.  values, node: value and node of each state, grouped by node, in
    order of time.  at: the interval in which each state begins; it ends when the next state of its node begins.
    """
    order = np.argsort(at, kind="stable")
    last = np.searchsorted(at[order], np.arange(count), side="right") - 1
    before = np.where(np.append(True, node[1:] != node[:-1]), 0, np.append(0, values[:-1]))
    return np.cumsum((values - before)[order])[last]


class RunReplay:
    """Replays a run: the free capacity of each node, constant within each interval."""

    def __init__(self, record: Record, table: ModeTable, state: FreeCapacity, further: Sequence[np.ndarray] = ()):
        """Prepare the replay; `further`: arrays of more times at which an interval begins."""
        launches, kept = occupations_of(record, table)
        self.record, self.state, self._launches = record, state, launches
        self.modes = [table.modes[code] for code in launches.mode[: len(launches) - len(kept)]] + kept
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

    def verdicts(self) -> np.ndarray:
        return self.state.verdicts(*self.states(), count=len(self.grid))

    def states(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the interval in which each node state begins, and the states as arrays.

        A state is a node's free capacity until it changes; the states of one node follow each other in order of time.
        The arrays are the arguments of `FreeCapacity.measure`.
        """
        state, size = self.state, len(self.grid)
        if state.slices:
            return self._step_by_step()
        nodes, wide = state.share.shape
        on, at, parts = self._moves()
        # One row a node and moment, whose columns are running sums of these; all nodes have one at first.
        keys, row = np.unique(np.append(np.arange(nodes) * size, on[0] * size + at), return_inverse=True)
        node, row = keys // size, row[nodes:]
        begins = np.searchsorted(node, np.arange(nodes))[node]

        def running(changes: np.ndarray, cells: np.ndarray, width: int) -> np.ndarray:
            there = np.bincount(cells, weights=changes, minlength=len(keys) * width).reshape(len(keys), width)
            total = np.cumsum(np.rint(there).astype(np.int64), axis=0)
            return total - np.vstack([np.zeros(width, np.int64), total])[begins]

        gpu = on[1] >= 0
        cells = (row * wide + on[1])[gpu]
        share, gpu_memory, usable = (running(parts[name][gpu], cells, wide) for name in (0, 1, 4))
        cores, memory = (running(parts[name], row, 1)[:, 0] for name in (2, 3))
        up = running(parts[4][~gpu], row[~gpu], 1)[:, 0] == 0
        return keys % size, [
            node, state.cores[node] - cores, state.memory[node] - memory, up, state.share[node] - share,
            state.gpu_memory[node] - gpu_memory, state.usable[node] & (usable == 0),
            np.ones((len(node), 0, wide), bool),
        ]  # fmt: skip

    def _step_by_step(self) -> tuple[np.ndarray, list[np.ndarray]]:
        state, size = self.state, len(self.grid)
        rows: list[tuple[Any, ...]] = []
        moments = np.append(0, np.searchsorted(self.grid, self._times))
        events: list[tuple[int, int] | None] = [None, *self._events]
        for number, event in zip(moments.tolist(), events, strict=True):
            if number == size:
                break
            for node in range(len(state.cores)) if event is None else self._apply(*event):
                cuts = np.ones((len(state.asked), state.share.shape[1]), bool)
                for device in state.cluster.nodes[node].accelerators:
                    if (slices := state.slices.get((node, device.local))) is not None:
                        cuts[:, device.local] = [not ask.gpus or slices.cut_for(ask) is not None for ask in state.asked]
                columns = (state.share, state.gpu_memory, state.usable)
                rows.append((number, node, state.cores[node], state.memory[node], state.cpu_usable[node],
                             *(column[node].copy() for column in columns), cuts))  # fmt: skip
        rows.sort(key=lambda row: (row[1], row[0]))
        kept = [row for row, after in zip(rows, [*rows[1:], (-1, -1)], strict=True) if row[:2] != after[:2]]
        at, *states = (np.array(column) for column in zip(*kept, strict=True))
        return at, states

    def _moves(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state, moment = self.state, np.searchsorted(self.grid, self._times)
        where = np.array([(device.node, device.local) for device in state.cluster.devices]).T
        kinds, index = np.array(self._events, dtype=np.int64).reshape(-1, 2).T
        switches, off = [], np.zeros(len(where[0]), np.int64)
        for number in np.flatnonzero((kinds == 2) & (moment < len(self.grid))).tolist():
            for device in state.states.change(*self.log[index[number]][1:]):
                is_off = int(state.states.of[device] != UP)
                switches.append((*where[:, device], moment[number], is_off - off[device]))
                off[device] = is_off
        kept = np.flatnonzero((kinds < 2) & (moment < len(self.grid)))
        places, launch = PlaceColumns(self.record), index[kept]
        place = self._launches.place[launch] % max(places.count, 1)
        many = places.sizes[place]
        entry = np.repeat(np.cumsum(places.sizes)[place] - np.cumsum(many), many) + np.arange(many.sum())
        move = np.repeat(np.arange(len(kept)), many)
        demands = np.array([[m.share, m.gpu_memory, m.millicores, m.memory] for m in self.modes], np.int64)
        on, taken = where[:, places.flat[entry]], demands.reshape(-1, 4)[launch][move].T
        # What a node lends to a gang is its part, rounded up, and booked with the first device there.
        _, first, pair = np.unique(move * len(state.cores) + on[0], return_index=True, return_inverse=True)
        part = np.bincount(pair, weights=places.amount[entry]).astype(np.int64)
        lent = np.zeros((2, len(entry)), np.int64)
        lent[:, first] = -(-taken[2:, first] * part // places.totals[place[move[first]]].astype(np.int64))
        nodes, positions, moments, changes = np.array(switches, dtype=np.int64).reshape(-1, 4).T
        parts = np.zeros((5, len(entry) + len(changes)), np.int64)
        parts[:4, : len(entry)] = np.vstack([taken[:2], lent]) * np.where(kinds[kept] > 0, 1, -1)[move]
        parts[4, len(entry) :] = changes
        return np.hstack([on, [nodes, positions]]), np.append(moment[kept][move], moments), parts

    def _apply(self, kind: int, index: int) -> list[int]:
        if kind == 2:
            return self.state.switch(*self.log[index][1:])
        return self.state.take(self.places[index], self.modes[index], 1 if kind else -1, index)
