"""Free capacity of all nodes as columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.engine.capacity import Capacity
from sim.model.cluster import WHOLE
from sim.model.tasks import Mode


class NodeColumns:
    """Free capacity of all nodes as NumPy columns, for placements that score many nodes at once.

    `cores`, `memory`, and `gpus[type name]` (free share, summed over the node).  Only nodes touched since the
    last look are refreshed; `refresh()` is called by `candidates`.
    """

    def __init__(self, capacity: Capacity):
        self._capacity = capacity
        nodes = self._capacity.nodes
        self.cores = np.zeros(len(nodes))
        self.memory = np.zeros(len(nodes))
        self.gpus = {kind.name: np.zeros(len(nodes)) for kind in self._capacity.types if kind.kind != "cpu"}
        self._generation = -1
        self._position = 0

    def refresh(self) -> None:
        self._capacity.noting = True
        log = self._capacity.log
        if self._generation != self._capacity.log_generation:
            self._generation = self._capacity.log_generation
            touched: Iterable[int] = range(len(self._capacity.nodes))
        else:
            touched = dict.fromkeys(log[self._position :])
        self._position = len(log)
        self._capacity.tidy()
        if self._generation != self._capacity.log_generation:
            self._generation, self._position = self._capacity.log_generation, 0
        for number in touched:
            node = self._capacity.nodes[number]
            self.cores[number] = node.cpu_free / 1000 if node.up else 0.0
            self.memory[number] = float(node.mem_free)
            sums = dict.fromkeys(self.gpus, 0)
            for gpu in node.gpus:
                if gpu.up and not gpu.asleep:
                    sums[gpu.device.type.name] += min(WHOLE, max(0, gpu.free))
            for name, total in sums.items():
                self.gpus[name][number] = total / WHOLE

    def candidates(self, mode: Mode) -> np.ndarray:
        """Indexes of the nodes on which the mode fits now, ascending, with the columns fresh."""
        mask = self._capacity.mask(mode)
        self.refresh()
        size = (len(self._capacity.nodes) + 7) // 8
        bits = np.frombuffer(mask.to_bytes(size, "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))
