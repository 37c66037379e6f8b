"""The node with the least or the most room on which a mode fits, by an index."""

from __future__ import annotations

from bisect import bisect_left, insort

from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import NodeState
from hetsim.model.cluster import WHOLE
from hetsim.model.tasks import Mode

CORES = 36
"""Bits for thousandths of cores below the share of accelerators, so that an amount of both is one number."""


class RoomIndex:
    """Nodes by the free share of their accelerators of one type, then by free cores.

    Nodes with equal amounts are one bitmask.  It is brought up to date when it is asked, by looking at the nodes that
    have changed since.  Cost: O(log n) a change, and a question passes over amounts only where the mode does not fit
    for another reason (memory, a partition).
    """

    def __init__(self, capacity: Capacity, kind: int, whole: bool):
        """Of the type with this number.  `whole`: no accelerator is ever taken in part."""
        self._capacity, self._kind, self._whole = capacity, kind, whole
        self._generation = self._position = -1
        self._amount: dict[int, int] = {}
        """Node -> what was free there at the last look."""
        self._amounts: list[int] = []
        """Those that any node has, ascending."""
        self._nodes: dict[int, int] = {}
        """Amount -> bitmask of the nodes that have it."""
        capacity.noting = True

    def node(self, mode: Mode, among: int, tightest: bool) -> int:
        """The first of the nodes with the least (else the most) room.

        The mode fits on all of those given.
        """
        self._refresh()
        nodes, amounts = self._nodes, self._amounts
        if tightest:  # less than what the mode takes is not looked at
            needed = (mode.gpus * mode.share << CORES) + mode.millicores if self._whole and mode.node_count == 1 else 0
            amounts = amounts[bisect_left(amounts, needed) :]
        else:
            amounts = amounts[::-1]
        for amount in amounts:
            there = nodes[amount] & among
            if there:
                return (there & -there).bit_length() - 1
        raise AssertionError("the mode fits on none of these nodes")

    def _refresh(self) -> None:
        capacity, before, masks = self._capacity, self._amount, self._nodes
        log, nodes = capacity.log, capacity.nodes
        if self._generation == capacity.log_generation:
            touched = log[self._position :]
        else:
            touched = capacity.having[self._kind]
        self._generation, self._position = capacity.log_generation, len(log)
        for number in touched:
            node = nodes[number]
            share = node.open[self._kind].bit_count() * WHOLE if self._whole else self._share(node)
            amount, old = (share << CORES) + node.cpu_free, before.get(number, -1)
            if amount == old:
                continue
            before[number] = amount
            if old >= 0:
                mask = masks[old] = masks[old] ^ node.bit
                if not mask:
                    del masks[old]
                    del self._amounts[bisect_left(self._amounts, old)]
            if amount in masks:
                masks[amount] |= node.bit
            else:
                masks[amount] = node.bit
                insort(self._amounts, amount)

    def _share(self, node: NodeState) -> int:
        """The free share of a node's accelerators of the type, in millionths."""
        return sum(min(WHOLE, max(0, gpu.free)) for gpu in node.gpus
                   if gpu.kind == self._kind and gpu.up and not gpu.asleep)  # fmt: skip
