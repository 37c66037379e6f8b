"""Free capacity of all nodes as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hetsim.engine.resources.capacity import Capacity
from hetsim.model.cluster import WHOLE
from hetsim.model.tasks import Mode


@dataclass
class AcceleratorColumns:
    """Every accelerator: a row a node, a column a position on it (`Device.local`)."""

    share: np.ndarray
    """Free share in millionths, from 0 to WHOLE; 0 where there is none, and of one that is down or asleep."""
    room: np.ndarray
    """Bytes of memory that launches may claim; 0 where there is none."""
    kind: np.ndarray
    """Number of its type in `types`; -1 where there is none."""
    types: list[str]
    stamp: np.ndarray
    """By node: the `look` at which it was last found changed."""
    look: int = 0
    """Grows with every refresh."""


class NodeColumns:
    """Free capacity of all nodes as NumPy columns, for placements that score nodes.

    `cores`, `memory`, and `gpus[type name]` (free share, summed over the node).  Only nodes touched since the
    last look are refreshed; `refresh()` is called by `candidates`.  `accelerators` are kept once they were asked for.
    """

    def __init__(self, capacity: Capacity):
        self._capacity = capacity
        nodes = self._capacity.nodes
        self.cores = np.zeros(len(nodes))
        self.memory = np.zeros(len(nodes))
        self.gpus = {kind.name: np.zeros(len(nodes)) for kind in self._capacity.types if kind.kind != "cpu"}
        self._accelerators: AcceleratorColumns | None = None
        self._generation = -1
        self._position = 0

    @property
    def accelerators(self) -> AcceleratorColumns:
        """Every accelerator on its own, as of the last refresh."""
        if self._accelerators is None:
            nodes = self._capacity.nodes
            size = len(nodes), max((len(node.gpus) for node in nodes), default=0)
            names = [kind.name for kind in self._capacity.types]
            kind = np.full(size, -1)
            for node in nodes:
                for gpu in node.gpus:
                    kind[node.index, gpu.device.local] = gpu.kind
            self._accelerators = AcceleratorColumns(
                np.zeros(size, np.int64), np.zeros(size), kind, types=names, stamp=np.zeros(len(nodes), np.int64)
            )
            self._generation = -1  # every node anew
            self.refresh()
        return self._accelerators

    def refresh(self) -> None:
        """Bring the columns of touched nodes up to date."""
        self._capacity.noting = True
        log = self._capacity.log
        touched: Iterable[int] = dict.fromkeys(log[self._position :])
        if self._generation != self._capacity.log_generation:
            touched = range(len(self._capacity.nodes))
        self._generation, self._position = self._capacity.log_generation, len(log)
        single = self._accelerators
        if single is not None:
            single.look += 1
        for number in touched:
            node = self._capacity.nodes[number]
            self.cores[number] = node.cpu_free / 1000 if node.up else 0.0
            self.memory[number] = float(node.mem_free)
            sums = dict.fromkeys(self.gpus, 0)
            for gpu in node.gpus:
                free = min(WHOLE, max(0, gpu.free)) if gpu.up and not gpu.asleep else 0
                sums[gpu.device.type.name] += free
                if single is not None:
                    single.share[number, gpu.device.local] = free if node.up else 0
                    single.room[number, gpu.device.local] = gpu.room
            if single is not None:
                single.stamp[number] = single.look
            for name, total in sums.items():
                self.gpus[name][number] = total / WHOLE

    def fitting(self, mode: Mode) -> list[int]:
        """Indexes of nodes on which the mode fits, ascending; columns stay as they are."""
        return list(self._capacity.nodes_in(self._capacity.mask(mode)))

    def candidates(self, mode: Mode) -> np.ndarray:
        """Indexes of nodes on which the mode fits, ascending, with the columns fresh."""
        mask = self._capacity.mask(mode)
        self.refresh()
        size = (len(self._capacity.nodes) + 7) // 8
        bits = np.frombuffer(mask.to_bytes(size, "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))
