"""Measured layers of a network, and the places where it can be cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layer:
    """One layer: what a micro-batch costs there, and what it passes on."""

    name: str
    forward: float
    backward: float
    activations: float
    """Bytes that it passes on."""
    weights: float
    on: Mapping[str, float] | None = None
    """Seconds by type of device, where they are measured apart (in training forward and backward together)."""

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Cuts:
    """The cuts of a network: the layers before each, and the data that cross it.

    Cut j is a set of layers that is closed under predecessors; `before[k, j]` says whether cut k lies inside it.
    The last is the whole network.
    """

    layers: tuple[Layer, ...]
    sets: tuple[frozenset[int], ...]
    crossing: np.ndarray
    before: np.ndarray

    def sums(self, values: Sequence[float]) -> np.ndarray:
        """[i, j] = the sum over the layers after cut i - 1 up to cut j; else infinite."""
        up_to = np.array([math.fsum(values[one] for one in members) for members in self.sets])
        between = up_to[None, :] - np.concatenate([[0.0], up_to])[:, None]
        between[1:][~self.before] = math.inf
        return between

    def between(self, first: int, last: int) -> list[Layer]:
        """Layers of the stage after cut `first` - 1 up to cut `last`."""
        earlier = self.sets[first - 1] if first else frozenset()
        return [self.layers[one] for one in sorted(self.sets[last] - earlier)]


def chain(layers: Sequence[Layer]) -> Cuts:
    """The cuts of a network in which each layer follows the one before."""
    n = len(layers)
    sets = tuple(frozenset(range(last + 1)) for last in range(n))
    return Cuts(tuple(layers), sets, np.array([one.activations for one in layers]), np.triu(np.ones((n, n), bool), 1))
